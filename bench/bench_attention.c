/* bench_attention.c: decode attention of one layer on synthetic shapes, as notes and design quote it: a plan that consists of
 * rope + KV and attend steps alone, pages filled with random values, shuffled, and enough layers that every byte comes from
 * memory. Prints one JSON line a length: microseconds a layer (best and median of the runs; on one thread the
 * least processor time, which other load disturbs less), GB/s of KV bytes, and the
 * share of a plain read of the same pages by the same threads. With new=N that many tokens behind LENGTH others at once, a chunk
 * of a prompt: GFLOP/s of the two products, of visible keys alone, and no reading. mb=0: one layer, whose keys stay in a cache if they fit.
 * Usage: bench_attention SHAPE(a|b|c) THREADS FORMAT(f16|bf16|f32|8|4) [LENGTH ...] [level=NAME] [new=N] [mb=N]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "ops/cpu/cpu_int.h"
#include "ops/ops.h"

static int mb_min = 192; /* of keys and values, so that they come from memory */
enum { N_RUNS = 41, N_LAYER_MAX = 64, N_LAYER_PROMPT = 1 };

static const struct { const char *name; int n_head, n_head_kv, d; } shapes[] = {
    { "a", 9, 3, 64 }, { "b", 32, 8, 128 }, { "c", 4, 1, 256 },
};

static uint64_t rng_state = 88172645463325252ull;
static uint64_t rng(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

static void die(const char *what, const mb_error *err)
{
    fprintf(stderr, "bench_attention: %s: %s\n", what, err->text);
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* q, k, v, q_rot, attn, and steps of n_layer layers. */
static void plan_make(struct plan *p, struct plan_step *steps, int i_shape, int n_layer, int format, int32_t n_context, int32_t n_new)
{
    int nh = shapes[i_shape].n_head, nkv = shapes[i_shape].n_head_kv, d = shapes[i_shape].d;
    static const char *const names[] = { "q", "k", "v", "q_rot", "attn" };
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 5; i++)
        p->bufs[p->n_bufs++] = (struct plan_buf){ .name = names[i], .type = BUF_F32, .device = -1,
                                                  .width = (i == 1 || i == 2 ? nkv : nh) * d };
    p->kinds[0] = (struct kv_kind){ .type = KIND_FULL, .n_layer = n_layer, .n_head_kv = nkv, .head_dim = d, .format = format };
    p->n_kinds = 1;
    p->steps = steps;
    p->d_model = nh * d;
    p->n_vocab = 32;
    p->n_context = n_context;
    p->m_max = n_new;
    p->n_draw_max = 1;
    for (int l = 0; l < n_layer; l++) {
        struct plan_step *s = &steps[p->n_steps];
        memset(s, 0, 2 * sizeof *s);
        for (int i = 0; i < 2; i++) {
            s[i].i_layer = (int16_t)l;
            s[i].add_to = -1;
            for (int o = 0; o < PLAN_MAX_OUTS; o++) s[i].outs[o] = -1;
        }
        s[0].op = STEP_ROPE_KV, s[0].in = 0, s[0].out = 3;
        s[0].u.rope_kv.k = 1, s[0].u.rope_kv.v = 2, s[0].u.rope_kv.q_scale = 0.1f;
        s[0].u.rope_kv.n_head = nh, s[0].u.rope_kv.n_head_kv = nkv, s[0].u.rope_kv.head_dim = s[0].u.rope_kv.q_step = d;
        s[0].u.rope_kv.i_in_kind = (int16_t)l;
        s[1].op = STEP_ATTEND, s[1].in = 3, s[1].out = 4;
        s[1].u.attend.n_head = nh, s[1].u.attend.n_head_kv = nkv, s[1].u.attend.head_dim = s[1].u.attend.value_dim = d;
        s[1].u.attend.i_in_kind = (int16_t)l, s[1].u.attend.causal = true, s[1].u.attend.gate = s[1].u.attend.chosen = -1;
        p->n_steps += 2;
    }
}

/* Random numbers of about one half in every format. */
static void page_fill(uint8_t *page, size_t bytes, int format)
{
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t r = rng();
        if (format == KV_F32) r = (r & 0x807fffff807fffffull) | 0x3e8000003e800000ull;
        else if (format == KV_F16) r = (r & 0x83ff83ff83ff83ffull) | 0x3400340034003400ull;
        else r = (r & 0x807f807f807f807full) | 0x3e803e803e803e80ull;
        memcpy(page + i, &r, 8);
    }
}

static int64_t now_ns(bool cpu_time)
{
    struct timespec t;
    if (!cpu_time) return clock_now_ns();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct read_job {
    const uint8_t *data;
    size_t bytes;
    uint64_t sum[64];
};

static void read_share(void *ctx, int i, int n)
{
    struct read_job *j = ctx;
    int64_t first, end;
    threads_share((int64_t)j->bytes, 64, i, n, &first, &end);
    uint64_t s[8] = { 0 };
    for (const uint64_t *p = (const uint64_t *)(j->data + first), *e = (const uint64_t *)(j->data + end); p + 8 <= e; p += 8)
        for (int k = 0; k < 8; k++) s[k] += p[k];
    j->sum[i % 64] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void run_length(struct device *dev, int i_shape, int format, int32_t length, int32_t n_new)
{
    mb_error err = { 0 };
    struct plan plan;
    struct plan_step steps[2 * N_LAYER_MAX];
    struct compiled *c;
    size_t head = kv_head_bytes((enum kv_format)format, shapes[i_shape].d) * (size_t)shapes[i_shape].n_head_kv;
    int32_t n_page = (length + n_new - 1) / KV_PAGE_TOKENS + 1;
    int n_layer = (int)(((size_t)mb_min << 20) / (head * (size_t)n_page)) + 1;
    int most = n_new > 1 ? N_LAYER_PROMPT : N_LAYER_MAX;
    if (n_layer > most) n_layer = most;
    plan_make(&plan, steps, i_shape, n_layer, format, length + n_new + 64, n_new);
    struct kv_kind *kind = &plan.kinds[0];
    ops_cpu.kv_sizes(dev, kind);
    struct compile_options copt = { .n_rows_max = 1 };
    if (ops_cpu.compile(dev, &plan, &copt, &c, &err) != MB_OK) die("compile", &err);
    size_t total = kind->page_bytes * (size_t)n_page;
    if (ops_cpu.pool_reserve(dev, total, &err) != MB_OK) die("pages", &err);
    page_fill(dev->kv, total, format);
    struct seq_state seq = { 0 };
    int32_t *pages = malloc((size_t)n_page * sizeof *pages);
    for (int32_t i = 0; i < n_page; i++) {
        int32_t j = (int32_t)(rng() % (uint64_t)(i + 1)), unit = i * (int32_t)(kind->page_bytes / KV_PAGE_UNIT);
        pages[i] = i > 0 ? pages[j] : unit;
        pages[j] = unit;
    }
    seq.kind[0] = (struct kv_table){ .page = pages, .n_page = n_page, .cap = n_page };
    size_t row_bytes;
    for (int b = 0; b < 3; b++) {
        float *x = ops_cpu.buffer(c, (buf_id)b, &row_bytes);
        for (int32_t i = 0; i < n_new * (int32_t)(row_bytes / sizeof *x); i++) x[i] = (float)(rng() % 1000) * 1e-3f - 0.5f;
    }
    int32_t *ids = calloc((size_t)n_new, sizeof *ids);
    struct row row = { .seq = &seq, .i_first = length, .n = n_new, .ids = ids };
    struct row_result result;
    bool one = pool_n_threads(dev->pool) == 1;
    double us[N_RUNS], read_best = 0;
    struct read_job job = { .data = dev->kv, .bytes = total };
    for (int r = 0; r < N_RUNS; r++) {
        int64_t t0 = now_ns(one);
        if (n_new == 1) pool_run(dev->pool, read_share, &job);
        double gb = (double)total / (double)(now_ns(one) - t0);
        if (gb > read_best) read_best = gb;
        t0 = now_ns(one);
        if (ops_cpu.submit(c, &row, 1, &result, &err) != MB_OK || result.status != MB_OK) die("run", &err);
        us[r] = (double)(now_ns(one) - t0) * 1e-3 / n_layer;
    }
    qsort(us, N_RUNS, sizeof us[0], compare);
    double bytes = (double)length * (double)head / KV_PAGE_TOKENS, pairs = (double)n_new * (length + (n_new + 1) / 2.0);
    if (n_new > 1)
        printf("{\"shape\": \"%s\", \"threads\": %d, \"length\": %d, \"new\": %d, \"us_best\": %.1f, \"us_median\": %.1f, \"gflops\": %.1f}\n",
               shapes[i_shape].name, pool_n_threads(dev->pool), length, n_new, us[0], us[N_RUNS / 2],
               4e-3 * pairs * shapes[i_shape].n_head * shapes[i_shape].d / us[0]);
    else printf("{\"shape\": \"%s\", \"threads\": %d, \"length\": %d, \"us_best\": %.1f, \"us_median\": %.1f, \"gb_s\": %.1f, "
           "\"read_gb_s\": %.1f, \"share\": %.2f}\n", shapes[i_shape].name, pool_n_threads(dev->pool), length, us[0],
           us[N_RUNS / 2], bytes / us[0] * 1e-3, read_best, bytes / us[0] * 1e-3 / read_best);
    free(ids);
    free(pages);
    ops_cpu.compiled_free(c);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; int format; } formats[] = { { "f32", KV_F32 }, { "f16", KV_F16 }, { "8", KV_Q8 }, { "4", KV_Q4 } };
    static const int32_t lengths[] = { 512, 2048, 8192, 32768 };
    mb_error err = { 0 };
    struct device *dev;
    struct device_options opt = { .n_ranks = 1 };
    int n_given = 0, n_new = 1;
    if (argc < 4 || argv[1][0] < 'a' || argv[1][0] > 'c') {
        fprintf(stderr, "usage: bench_attention a|b|c THREADS f16|bf16|f32|8|4 [LENGTH ...] [level=NAME] [new=N] [mb=N]\n");
        return 2;
    }
    int i_shape = argv[1][0] - 'a';
    int format = KV_BF16;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(argv[3], formats[i].name) == 0) format = formats[i].format;
    opt.n_threads = atoi(argv[2]);
    for (int i = 4; i < argc; i++)
        if (strncmp(argv[i], "level=", 6) == 0) opt.cpu_level = argv[i] + 6;
        else if (strncmp(argv[i], "new=", 4) == 0) n_new = atoi(argv[i] + 4);
        else if (strncmp(argv[i], "mb=", 3) == 0) mb_min = atoi(argv[i] + 3);
    if (n_new < 1) n_new = 1;
    if (ops_cpu.device_open(&dev, &opt, &err) != MB_OK) die("open", &err);
    for (int i = 4; i < argc; i++)
        if (argv[i][0] >= '0' && argv[i][0] <= '9') run_length(dev, i_shape, format, atoi(argv[i]), n_new), n_given++;
    for (size_t i = 0; n_given == 0 && i < sizeof lengths / sizeof lengths[0]; i++) run_length(dev, i_shape, format, lengths[i], n_new);
    ops_cpu.device_close(dev);
    return 0;
}
