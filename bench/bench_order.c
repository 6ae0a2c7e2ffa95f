/* bench_order.c: what the order rule of docs/numerics.md costs, and how near the matmuls come to the machine.
 *
 * For each level the machine has and each hot shape: our kernel and one of the same formats that is free of the order
 * (free.h), in alternation on the same data, best of many short runs; the share of the integer peak or of the read bandwidth
 * measured in the same minute. Prints a table and, last, one JSON line. One thread.
 * Usage: bench_order [seconds for each row, 0.5] [level]
 *        bench_order peak     {"level", "int_gops", "float_gflops"} of one thread at the best level this machine has
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "free.h"
#include "ops/cpu/cpu_int.h"
#include "plain_read.h"

#define SET_BYTES ((size_t)640 << 20) /* a weight set that no cache holds */
#define HUGE_PAGE ((size_t)2 << 20)

double free_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

struct shape {
    const char *name;
    int bits, g;
    enum act_form form;
    int64_t n, k, m;
    bool cold; /* weights from memory: copies cycled through SET_BYTES */
};

static const struct shape shapes[] = {
    { "decode, weights in memory", 4, 32, ACT_Q16, 1536, 576, 1, true },
    { "decode, weights in memory", 4, 32, ACT_Q8, 1536, 576, 1, true },
    { "decode, weights in memory", 4, 64, ACT_Q16, 4096, 4096, 1, true },
    { "decode, weights in cache", 4, 32, ACT_Q16, 1536, 576, 1, false },
    { "decode, weights in cache", 4, 32, ACT_Q8, 1536, 576, 1, false },
    { "4 rows, weights in memory", 4, 32, ACT_Q16, 1536, 576, 4, true },
    { "8 rows, weights in memory", 4, 32, ACT_Q16, 1536, 576, 8, true },
    { "prefill", 4, 32, ACT_Q16, 1536, 576, 128, false },
    { "prefill", 4, 32, ACT_Q8, 1536, 576, 128, false },
    { "prefill", 4, 64, ACT_Q16, 1536, 576, 128, false },
    { "prefill", 4, 64, ACT_Q8, 1536, 576, 128, false },
    { "prefill, deep", 4, 32, ACT_Q16, 512, 4096, 128, false },
    { "prefill, deep", 4, 32, ACT_Q8, 512, 4096, 128, false },
    { "bf16 weights, decode", 16, 0, ACT_F32, 1536, 576, 1, true },
};

static uint32_t seed = 1;

static uint32_t random_u32(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed ^ seed >> 15;
}

/* One packed matrix of random codes with small scales. */
static struct cpu_weight weight_make(const struct shape *s, size_t *n_copies)
{
    struct cpu_weight w = { s->bits == 4 ? CPU_W_Q4 : CPU_W_F, DT_BF16, s->g, s->n, s->k, 0, NULL };
    w.block_bytes = cpu_weight_block_bytes(w.type, w.dt, w.g, w.k);
    size_t bytes = (size_t)(s->n / 16) * w.block_bytes;
    *n_copies = s->cold ? (SET_BYTES + bytes - 1) / bytes : 1;
    uint32_t *p = huge_map(bytes * *n_copies + HUGE_PAGE, false); /* the last hints look behind the end */
    if (!p) exit(1);
    size_t step = w.type == CPU_W_Q4 ? (size_t)w.g * 2 + 16 : 0;
    for (size_t i = 0; i < bytes / 4; i++) {
        bool scale = step == 0 || i % step >= step - 16;
        p[i] = scale ? 0x3c003c00u | (random_u32() & 0x007f007fu) : random_u32();
    }
    for (size_t c = 1; c < *n_copies; c++) memcpy((uint8_t *)p + c * bytes, p, bytes);
    w.data = (uint8_t *)p;
    return w;
}

static struct cpu_act act_make(const struct cpu_kernels *t, const struct shape *s)
{
    int g = s->g ? s->g : 32;
    struct cpu_act a = { .form = s->form, .g = g, .k = s->k, .row_bytes = act_row_bytes(s->form, s->k, g) };
    float *x = malloc((size_t)(s->m * s->k) * sizeof *x);
    uint8_t *out = aligned_alloc(64, a.row_bytes * (size_t)s->m);
    if (!x || !out) exit(1);
    for (int64_t i = 0; i < s->m * s->k; i++) x[i] = (float)(random_u32() >> 8) * 0x1p-23f - 1.0f;
    t->quantise_rows(s->form, g, s->k, s->m, x, s->k, out, a.row_bytes);
    free(x);
    a.data = out;
    return a;
}

static cpu_matmul_fn ours_of(const struct cpu_kernels *t, const struct shape *s)
{
    return s->bits == 16 ? t->matmul_f_f32 : s->form == ACT_Q8 ? t->matmul_q4_q8 : t->matmul_q4_q16;
}

static cpu_matmul_fn free_of(const struct free_kernels *t, const struct shape *s)
{
    return s->bits == 16 ? t->f_f32 : s->form == ACT_Q8 ? t->q4_q8 : t->q4_q16;
}

/* Best bytes a second that this thread reads from memory. */
static double read_bandwidth(void)
{
    size_t size = SET_BYTES + HUGE_PAGE; /* the last hints look behind the end */
    uint8_t *p = huge_map(size, false);
    uint64_t sum = 0;
    double best = 1e9;
    if (!p) exit(1);
    memset(p, 1, size);
    for (int t = 0; t < 3 * N_READ_WAYS; t++) {
        double t0 = free_now();
        sum += plain_read((const char *)p, SET_BYTES, &read_ways[t % N_READ_WAYS]);
        double s = free_now() - t0;
        if (s < best) best = s;
    }
    if (sum == 42) puts("");
    huge_unmap(p, size);
    return (double)SET_BYTES / best;
}

struct runner {
    struct cpu_weight w;
    size_t n_copies, i_copy, bytes;
    const uint8_t *data;
    struct cpu_act a;
    float *y;
    const struct shape *s;
};

static double run_once(struct runner *r, cpu_matmul_fn f)
{
    r->w.data = r->data + r->i_copy * r->bytes;
    r->i_copy = (r->i_copy + 1) % r->n_copies;
    double t0 = free_now();
    f(&r->w, 0, r->s->n / 16, &r->a, 0, r->s->m, r->y, r->s->n);
    return free_now() - t0;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

enum { RUNS_MAX = 20000 };

/* Time of one call: the 10 % quantile, which other jobs on the machine disturb less than a mean. */
static double quantile(double *t, size_t n)
{
    qsort(t, n, sizeof *t, compare_seconds);
    return t[n / 10];
}

/* What a machine could do: vpdpbusd or its like on one thread, also beside tiles, since a product's bar is a share of that; tiles. */
struct limits {
    double int_peak, tile_peak, float_peak, bandwidth; /* tile_peak 0: none */
};

static void row_run(const struct cpu_kernels *k, const struct free_kernels *f, const struct shape *s, double seconds, const struct limits *z,
                    bool first)
{
    static double t_ours[RUNS_MAX], t_free[RUNS_MAX];
    struct runner r = { .s = s };
    r.w = weight_make(s, &r.n_copies);
    r.data = r.w.data;
    r.bytes = (size_t)(s->n / 16) * r.w.block_bytes;
    r.a = act_make(k, s);
    r.y = malloc((size_t)(s->m * s->n) * sizeof *r.y);
    if (!r.y) exit(1);
    size_t n = 0;
    run_once(&r, ours_of(k, s));
    run_once(&r, free_of(f, s));
    for (double end = free_now() + seconds; n < RUNS_MAX && free_now() < end; n++) {
        t_ours[n] = run_once(&r, ours_of(k, s));
        t_free[n] = run_once(&r, free_of(f, s));
    }
    double a = quantile(t_ours, n), b = quantile(t_free, n), ops = 2.0 * (double)(s->m * s->n * s->k);
    double roof = s->m <= 8 ? z->bandwidth : s->bits == 16 ? z->float_peak : z->int_peak, work = s->m <= 8 ? (double)r.bytes : ops;
    double cost = (a / b - 1) * 100;
    fprintf(stderr, "%-9s %-27s g%-3d %-3s n %5d k %5d m %4d: %8.1f us, free %8.1f us, cost %+5.1f %%; %7.1f %s, %3.0f %% (free %3.0f %%) of %s\n",
            f->level, s->name, s->g, s->form == ACT_Q8 ? "l2" : s->form == ACT_Q16 ? "l1" : "f32", (int)s->n, (int)s->k,
            (int)s->m, a * 1e6, b * 1e6, cost, work / a * 1e-9, s->m <= 8 ? "GB/s" : "GOP/s", work / a / roof * 100,
            work / b / roof * 100, s->m <= 8 ? "read bandwidth" : "peak");
    printf("%s{\"level\": \"%s\", \"name\": \"%s g%d %s n %d k %d m %d\", \"us\": %.2f, \"free_us\": %.2f, \"cost_percent\": %.1f, "
           "\"share\": %.3f, \"free_share\": %.3f, \"tile_share\": %.3f}",
           first ? "" : ", ", f->level, s->name, s->g, s->form == ACT_Q8 ? "l2" : s->form == ACT_Q16 ? "l1" : "f32", (int)s->n,
           (int)s->k, (int)s->m, a * 1e6, b * 1e6, cost, work / a / roof, work / b / roof,
           z->tile_peak > 0 && s->m > 8 ? work / a / z->tile_peak : 0);
    huge_unmap((void *)r.data, r.bytes * r.n_copies + HUGE_PAGE);
    free((void *)r.a.data);
    free(r.y);
}

static struct limits limits_of(const struct free_kernels *f, enum cpu_level l, double bandwidth)
{
    struct limits z = { f->int_peak(), 0, f->float_peak(), bandwidth };
    if (l == CPU_AMX) {
        struct free_kernels vectors;
        free_fill_avx512(&vectors);
        z.tile_peak = z.int_peak;
        z.int_peak = vectors.int_peak();
    }
    fprintf(stderr, "%s: integer peak %.0f GOP/s, of tiles %.0f, float peak %.0f GFLOP/s, read bandwidth %.1f GB/s\n", f->level,
            z.int_peak * 1e-9, z.tile_peak * 1e-9, z.float_peak * 1e-9, z.bandwidth * 1e-9);
    return z;
}

static int print_peak(void (*const fill[])(struct free_kernels *))
{
    struct free_kernels f;
    enum cpu_level l = cpu_level_detect();
    while (l > CPU_AVX2 && !fill[l]) l--;
    if (!fill[l]) {
        fprintf(stderr, "bench_order: there is no measure of this processor's peak\n");
        return 1;
    }
    if (l == CPU_AMX) l = CPU_AVX512; /* the peak of vectors: products are compared with that (limits_of) */
    fill[l](&f);
    printf("{\"level\": \"%s\", \"int_gops\": %.1f, \"float_gflops\": %.1f}\n", f.level, f.int_peak() * 1e-9, f.float_peak() * 1e-9);
    return 0;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 0.5;
    void (*const fill[CPU_LEVEL_COUNT])(struct free_kernels *) = {
        [CPU_AVX2] = free_fill_avx2, [CPU_AVX512] = free_fill_avx512, [CPU_AMX] = free_fill_amx,
    };
    bool first = true;
    if (argc > 1 && strcmp(argv[1], "peak") == 0) return print_peak(fill);
    printf("{\"rows\": [");
    double bandwidth = read_bandwidth(); /* before any wide vectors: behind them the same loop took a third longer */
    for (int l = CPU_AVX2; l <= (int)cpu_level_detect(); l++) {
        if (argc > 2 && strcmp(argv[2], cpu_level_name((enum cpu_level)l)) != 0) continue;
        struct cpu_kernels k;
        struct free_kernels f;
        cpu_kernels_fill(&k, (enum cpu_level)l);
        fill[l](&f);
        struct limits z = limits_of(&f, (enum cpu_level)l, bandwidth);
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++, first = false)
            row_run(&k, &f, &shapes[i], seconds, &z, first);
    }
    printf("]}\n");
    return 0;
}
