/* bench_cpu.c: prefill and decode rates of one model on this machine, straight through the model (engine/direct.h), sampling
 * included. Prints one JSON line: {"prefill_tok_s", "decode_tok_s", "barriers_per_token", "barrier_us_per_token"}.
 * Usage: bench_cpu DIR TIER(l1|l2|f32) THREADS N_PROMPT N_DECODE [LEVEL]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/direct.h"

static int fail(const mb_error *err)
{
    fprintf(stderr, "bench_cpu: %s\n", err->text);
    return 1;
}

static enum fidelity_tier tier_of(const char *name)
{
    return strcmp(name, "l2") == 0 ? TIER_L2 : strcmp(name, "f32") == 0 ? TIER_F32 : TIER_L1;
}

int main(int argc, char **argv)
{
    struct device *dev;
    struct model *model;
    struct direct *d;
    mb_error err = { 0 };
    if (argc < 6) {
        fprintf(stderr, "usage: bench_cpu DIR l1|l2|f32 THREADS N_PROMPT N_DECODE [LEVEL]\n");
        return 2;
    }
    int32_t n_prompt = atoi(argv[4]), n_decode = atoi(argv[5]);
    struct device_options dopt = { .n_threads = atoi(argv[3]), .cpu_level = argc > 6 ? argv[6] : NULL, .n_ranks = 1 };
    if (ops_cpu.device_open(&dev, &dopt, &err) != MB_OK) return fail(&err);
    struct model_options mopt = { .ops = &ops_cpu, .device = dev, .tier = tier_of(argv[2]), .kv_format = -1, .n_rows_max = 1 };
    if (model_open(&model, argv[1], &mopt, &err) != MB_OK) return fail(&err);
    if (direct_open(&d, model, n_prompt + n_decode + 1, &err) != MB_OK) return fail(&err);
    int32_t n_vocab = model_plan_get(model)->n_vocab, id;
    int32_t *ids = malloc((size_t)n_prompt * sizeof *ids);
    for (int32_t i = 0; i < n_prompt; i++) ids[i] = (i * 37 + 11) % n_vocab;
    struct draw draw;
    int64_t t0 = clock_now_ns();
    for (int32_t i = 0; i < n_prompt; i += 512)
        if (direct_run(d, ids + i, n_prompt - i < 512 ? n_prompt - i : 512, NULL, NULL, NULL, &err) != MB_OK) return fail(&err);
    int64_t t1 = clock_now_ns();
    uint64_t barriers = 0, barrier_ns = 0;
    id = ids[n_prompt - 1];
    for (int32_t i = 0; i < n_decode; i++) {
        struct ops_step_stats s;
        if (direct_run(d, &id, 1, NULL, NULL, &draw, &err) != MB_OK) return fail(&err);
        ops_cpu.stats(model_compiled(model), &s);
        barriers += s.n_barriers;
        barrier_ns += s.barrier_ns;
        id = draw.id;
    }
    int64_t t2 = clock_now_ns();
    printf("{\"prefill_tok_s\": %.1f, \"decode_tok_s\": %.1f, \"barriers_per_token\": %.0f, \"barrier_us_per_token\": %.1f}\n",
           n_prompt / ((double)(t1 - t0) * 1e-9), n_decode / ((double)(t2 - t1) * 1e-9), (double)barriers / n_decode,
           (double)barrier_ns / n_decode * 1e-3);
    free(ids);
    direct_close(d);
    model_close(model);
    ops_cpu.device_close(dev);
    return 0;
}
