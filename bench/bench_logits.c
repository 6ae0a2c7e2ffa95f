/* bench_logits.c: the logits of one model at every position of given sequences, for bench/fidelity.py. Writes float32 [n][vocab] a
 * sequence, one after the other, to the output file. The float32 tier keeps float32 keys and values: the reference.
 * Usage: bench_logits DIR TIER(l1|l2|f32) THREADS IDS OUT    IDS: a text file, a sequence of ids a line
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/direct.h"

enum { CHUNK = 64, MOST = 4096 };

struct run {
    struct direct *direct;
    float *logits;      /* [CHUNK][n_vocab] */
    struct draw *draws; /* [CHUNK] */
    size_t n_vocab;
    FILE *out;
};

static int32_t parse_ids(const char *line, int32_t *ids)
{
    int32_t n = 0;
    char *end;
    for (long id = strtol(line, &end, 10); end != line && n < MOST; id = strtol(line, &end, 10)) {
        ids[n++] = (int32_t)id;
        line = end;
    }
    return n;
}

static mb_status write_sequence(struct run *r, const int32_t *ids, int32_t n, mb_error *err)
{
    direct_reset(r->direct, 1);
    for (int32_t at = 0; at < n; at += CHUNK) {
        int32_t m = n - at < CHUNK ? n - at : CHUNK;
        MB_TRY(direct_run(r->direct, ids + at, m, NULL, r->logits, r->draws, err));
        if (fwrite(r->logits, r->n_vocab * sizeof(float), (size_t)m, r->out) != (size_t)m)
            return mb_fail_errno(err, "cannot write", "the logits");
    }
    return MB_OK;
}

static mb_status write_all(struct model *model, const char *ids_file, const char *out_file, mb_error *err)
{
    static char line[MOST * 8];
    static int32_t ids[MOST];
    struct run r = { .n_vocab = (size_t)model_plan_get(model)->n_vocab };
    FILE *in = fopen(ids_file, "r");
    mb_status st = in ? MB_OK : mb_fail_errno(err, "cannot read", ids_file);
    if (st == MB_OK && !(r.out = fopen(out_file, "wb"))) st = mb_fail_errno(err, "cannot write", out_file);
    if (st == MB_OK) st = direct_open(&r.direct, model, MOST, err);
    r.logits = mb_alloc(CHUNK * r.n_vocab * sizeof *r.logits);
    r.draws = mb_calloc(CHUNK, sizeof *r.draws);
    if (st == MB_OK && (!r.logits || !r.draws)) st = mb_fail(err, MB_NO_MEMORY, "out of memory for logits");
    while (st == MB_OK && fgets(line, sizeof line, in)) st = write_sequence(&r, ids, parse_ids(line, ids), err);
    mb_free(r.logits);
    mb_free(r.draws);
    direct_close(r.direct);
    if (in) fclose(in);
    if (r.out && fclose(r.out) != 0 && st == MB_OK) st = mb_fail_errno(err, "cannot write", out_file);
    return st;
}

int main(int argc, char **argv)
{
    if (argc != 6) return fprintf(stderr, "usage: bench_logits DIR TIER THREADS IDS OUT\n"), 2;
    mb_error err = { 0 };
    struct device *dev = NULL;
    struct model *model = NULL;
    struct device_options dopt = { .n_threads = atoi(argv[3]), .n_ranks = 1 };
    bool exact = strcmp(argv[2], "f32") == 0;
    struct model_options mopt = { .ops = &ops_cpu, .tier = exact ? TIER_F32 : strcmp(argv[2], "l2") == 0 ? TIER_L2 : TIER_L1,
                                  .kv_format = exact ? KV_OF_TIER : KV_OF_FAMILY, .n_rows_max = 1, .m_max = CHUNK };
    mb_status st = ops_cpu.device_open(&dev, &dopt, &err);
    mopt.device = dev;
    if (st == MB_OK) st = model_open(&model, argv[1], &mopt, &err);
    if (st == MB_OK) st = write_all(model, argv[4], argv[5], &err);
    model_close(model);
    if (dev) ops_cpu.device_close(dev);
    if (st != MB_OK) fprintf(stderr, "bench_logits: %s\n", err.text);
    return st != MB_OK;
}
