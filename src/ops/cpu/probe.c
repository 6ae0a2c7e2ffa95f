/* probe.c: how fast this CPU is, by the kernels that a model would run, on memory of our own: products of one row with weights
 * that no cache holds, products of many rows with weights that one does, attention over pages, a barrier, what a norm and a draw
 * cost. All threads of the device, as in a step.
 *
 * A measurement is a number of short rounds within its share of the time; the fastest counts: other programs on the machine
 * only ever make a round slower. What the bytes are does not matter, but that they are ordinary numbers: 0x3c everywhere is a
 * small positive scale, bias or key in every format.
 */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "ops/cpu/cpu_int.h"

enum {
    K = 1024, GROUP = 64,        /* of the products */
    ROWS = 128,                  /* of those with many rows */
    TILE_BLOCKS = 8,             /* of 16 outputs */
    HEAD = 128, QUERIES = 4,     /* attention of one token: a head's width, query heads of a KV head */
    TILE_QUERIES = 48,           /* of many */
    VALUES = 4096, VOCAB = 32768,
    REGION_TILES = 4             /* of a thread, as a pass over a matrix has them (passes.c) */
};
#define FILL 0x3c
#define LEAST_BYTES ((size_t)128 << 20) /* of memory that is read in turn; more than OPS_NEAR_BYTES */
#define MOST_BYTES ((size_t)1 << 30)
#define SEGMENT_BYTES ((size_t)8 << 20) /* of memory in one round */

/* One thread's own memory. */
struct probe_thread {
    float y[ROWS * 16 * TILE_BLOCKS];
    float q[TILE_QUERIES * HEAD], o[TILE_QUERIES * HEAD], m[TILE_QUERIES], ls[TILE_QUERIES];
    int32_t lo[TILE_QUERIES], hi[TILE_QUERIES];
    uint64_t sum;                /* of the plain read: keeps the reads alive */
    _Alignas(64) uint8_t scratch[];
};

struct probe {
    struct device *d;
    uint8_t *mem;                /* size_bytes, all FILL */
    size_t size_bytes, thread_bytes;
    size_t used_bytes;           /* of mem, by the measurement at hand */
    uint8_t *threads;            /* [n_threads] probe_thread, thread_bytes apart */
    uint8_t *act;                /* ROWS linear inputs of any form */
    float *values;               /* [VOCAB] */
    double budget_s;             /* of one measurement */
    /* Of the measurement at hand. */
    struct cpu_weight w;
    struct cpu_act x;
    cpu_matmul_fn matmul;
    enum kv_format format;
    int n_queries;
    size_t tile_bytes, at, next; /* bytes of memory of a tile; where this region begins, and the next one */
    int64_t n_tiles;             /* of a round */
    int32_t n_regions;           /* left in this round */
    void (*tile)(struct probe *p, int64_t i, struct probe_thread *t);
};

static struct probe_thread *thread_of(const struct probe *p, int i_thread)
{
    return (struct probe_thread *)(void *)(p->threads + (size_t)i_thread * p->thread_bytes);
}

/* --- rounds --- */

static int64_t open_round(void *ctx, int i_thread, const int32_t **bounds)
{
    struct probe *p = ctx;
    (void)i_thread, (void)bounds;
    if (p->n_regions-- <= 0) return 0;
    p->at = p->next;
    p->next += (size_t)p->n_tiles * p->tile_bytes;
    return p->n_tiles;
}

static void run_tile(void *ctx, int64_t i, int i_thread)
{
    struct probe *p = ctx;
    p->tile(p, i, thread_of(p, i_thread));
}

/* Fastest round, in seconds. Each begins where the last one ended, so that a stream through memory finds nothing cached. */
static double fastest(struct probe *p, int32_t n_regions)
{
    static const struct pool_work work = { open_round, run_tile };
    int64_t t_end = clock_now_ns() + (int64_t)(p->budget_s * 1e9), now;
    double best = 1e9;
    do {
        if (p->next + (size_t)n_regions * (size_t)p->n_tiles * p->tile_bytes > p->used_bytes) p->next = 0;
        p->n_regions = n_regions;
        int64_t t0 = clock_now_ns();
        pool_run_regions(p->d->pool, &work, p);
        now = clock_now_ns();
        if ((double)(now - t0) * 1e-9 < best) best = (double)(now - t0) * 1e-9;
    } while (now < t_end);
    return best > 1e-9 ? best : 1e-9;
}

static void set_tiles(struct probe *p, size_t tile_bytes, void (*tile)(struct probe *, int64_t, struct probe_thread *))
{
    p->tile = tile;
    p->tile_bytes = tile_bytes;
    p->n_tiles = (int64_t)(SEGMENT_BYTES / tile_bytes);
    p->next = 0;
}

/* --- memory --- */

static void read_tile(struct probe *p, int64_t i, struct probe_thread *t)
{
    const uint64_t *v = (const uint64_t *)(const void *)(p->mem + p->at + (size_t)i * p->tile_bytes);
    uint64_t sum[8] = { 0 };
    for (size_t j = 0; j < p->tile_bytes / 8; j += 8) {
        __builtin_prefetch(v + j + 512);
        for (int l = 0; l < 8; l++) sum[l] += v[j + (size_t)l];
    }
    for (int l = 0; l < 8; l++) t->sum += sum[l];
}

static double read_rate(struct probe *p)
{
    set_tiles(p, 64 << 10, read_tile);
    return (double)p->n_tiles * (double)p->tile_bytes / fastest(p, 1);
}

/* --- products --- */

static void one_row_tile(struct probe *p, int64_t i, struct probe_thread *t)
{
    struct cpu_weight w = p->w;
    w.data = p->mem + p->at + (size_t)i * p->tile_bytes;
    p->matmul(&w, 0, TILE_BLOCKS, &p->x, 0, 1, t->y, 16 * TILE_BLOCKS);
}

/* The same weights for all tiles: from a cache. */
static void many_rows_tile(struct probe *p, int64_t i, struct probe_thread *t)
{
    (void)i;
    p->matmul(&p->w, 0, TILE_BLOCKS, &p->x, 0, ROWS, t->y, 16 * TILE_BLOCKS);
}

static const enum act_form forms[OPS_TIERS] = { [TIER_L1] = ACT_Q16, [TIER_L2] = ACT_Q8, [TIER_F32] = ACT_F32 };

static void product_rates(struct probe *p, enum ops_class class, int tier, struct ops_rates *out)
{
    static const enum cpu_wtype types[OPS_CLASSES] = { CPU_W_Q4, CPU_W_Q8, CPU_W_F };
    enum act_form form = class == OPS_CLASS_F ? ACT_F32 : forms[tier];
    struct cpu_weight w = { .type = types[class], .dt = DT_BF16, .g = class == OPS_CLASS_F ? 0 : GROUP, .n = 16 * TILE_BLOCKS,
                            .k = K, .data = p->mem };
    w.block_bytes = cpu_weight_block_bytes(w.type, w.dt, w.g, w.k);
    p->w = w;
    p->x = (struct cpu_act){ .form = form, .g = GROUP, .k = K, .row_bytes = act_row_bytes(form, K, GROUP), .data = p->act };
    p->matmul = cpu_matmul_choose(&p->d->kernels, w.type, form);
    p->d->kernels.quantise_rows(form, GROUP, K, ROWS, p->values, 64, p->act, p->x.row_bytes);
    set_tiles(p, TILE_BLOCKS * w.block_bytes, one_row_tile);
    out->weight_bytes_s[class][tier] = (double)p->n_tiles * (double)p->tile_bytes / fastest(p, 1);
    p->used_bytes = OPS_NEAR_BYTES;
    out->near_bytes_s[class][tier] = (double)p->n_tiles * (double)p->tile_bytes / fastest(p, 1);
    p->used_bytes = p->size_bytes;
    set_tiles(p, TILE_BLOCKS * w.block_bytes, many_rows_tile);
    p->n_tiles = 2 * pool_n_threads(p->d->pool);
    out->macs_s[class][tier] = (double)p->n_tiles * ROWS * 16 * TILE_BLOCKS * K / fastest(p, 1);
}

/* --- attention --- */

static void attend_tile(struct probe *p, int64_t i, struct probe_thread *t)
{
    size_t head = kv_head_bytes(p->format, HEAD);
    const uint8_t *pages = p->n_queries == QUERIES ? p->mem + p->at + (size_t)i * p->tile_bytes : p->mem;
    struct attn_unit u = { .d = HEAD, .n_rows = p->n_queries, .q = t->q, .ld_q = HEAD, .format = p->format, .vis_lo = t->lo,
                           .vis_hi = t->hi, .m = t->m, .ls = t->ls, .o = t->o, .ld_o = HEAD, .scratch = t->scratch };
    for (size_t j = 0; j < ATTN_SPLIT / KV_PAGE_TOKENS; j++) u.page[j] = pages + j * head;
    p->d->kernels.attend_unit(&u);
}

static void attention_rates(struct probe *p, enum kv_format format, struct ops_rates *out)
{
    size_t unit = ATTN_SPLIT / KV_PAGE_TOKENS * kv_head_bytes(format, HEAD);
    p->format = format;
    p->n_queries = QUERIES;
    set_tiles(p, unit, attend_tile);
    out->kv_bytes_s[format] = (double)p->n_tiles * (double)unit / fastest(p, 1);
    p->n_queries = TILE_QUERIES;
    p->n_tiles = 4 * pool_n_threads(p->d->pool);
    out->attn_macs_s[format] = (double)p->n_tiles * TILE_QUERIES * ATTN_SPLIT * 2 * HEAD / fastest(p, 1);
}

/* --- the rest of a step --- */

/* What a region takes besides its bytes: the barrier, the wait for the last tile, and the first bytes of a stream, which nobody has
 * prefetched. As in a step: one product after the other, each as a few tiles a thread; rate: the same in one large region. */
static double region_seconds(struct probe *p, double rate)
{
    set_tiles(p, TILE_BLOCKS * p->w.block_bytes, one_row_tile);
    p->n_tiles = REGION_TILES * pool_n_threads(p->d->pool);
    size_t bytes = (size_t)p->n_tiles * p->tile_bytes, n = SEGMENT_BYTES / bytes;
    if (n == 0) n = 1;
    double s = fastest(p, (int32_t)n) / (double)n - (double)bytes / rate;
    return s > 1e-9 ? s : 1e-9;
}

static double value_seconds(struct probe *p, enum act_form form)
{
    const struct cpu_kernels *k = &p->d->kernels;
    struct probe_thread *t = thread_of(p, 0);
    double best = 1e9;
    for (int i = 0; i < 20; i++) {
        int64_t t0 = clock_now_ns();
        k->rmsnorm(p->values, p->values, VALUES, 1e-5f, t->y);
        k->quantise_rows(form, GROUP, VALUES, 1, t->y, VALUES, p->act, act_row_bytes(form, VALUES, GROUP));
        double s = (double)(clock_now_ns() - t0) * 1e-9;
        if (s < best) best = s;
    }
    return best / VALUES;
}

static double vocab_seconds(struct probe *p)
{
    const struct cpu_kernels *k = &p->d->kernels;
    struct noise_key key = { 0 };
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        float max;
        int64_t id;
        bool finite;
        int64_t t0 = clock_now_ns();
        k->vocab_max(p->values, VOCAB, &max, &id, &finite);
        float sum = k->vocab_sumexp(p->values, VOCAB, max);
        id += k->vocab_gumbel(p->values, VOCAB, 1 / (1 + sum), &key, 0, (enum noise_purpose)0);
        thread_of(p, 0)->sum += (uint64_t)id;
        double s = (double)(clock_now_ns() - t0) * 1e-9;
        if (s < best) best = s;
    }
    return best / VOCAB;
}

/* --- the whole --- */

static size_t memory_bytes(void)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t want = cache > 0 ? 4 * (size_t)cache : LEAST_BYTES;
    want = want < LEAST_BYTES ? LEAST_BYTES : want > MOST_BYTES ? MOST_BYTES : want;
    return want / SEGMENT_BYTES * SEGMENT_BYTES;
}

static void prepare_thread(struct probe_thread *t)
{
    for (int i = 0; i < TILE_QUERIES * HEAD; i++) t->q[i] = 0.01f;
    for (int i = 0; i < TILE_QUERIES; i++) t->hi[i] = ATTN_SPLIT;
}

static void fill_share(void *ctx, int i_thread, int n_threads)
{
    struct probe *p = ctx;
    int64_t first, end;
    threads_share((int64_t)p->size_bytes, 4096, i_thread, n_threads, &first, &end);
    memset(p->mem + first, FILL, (size_t)(end - first));
    prepare_thread(thread_of(p, i_thread));
}

static void measure(struct probe *p, double seconds, struct ops_rates *out)
{
    p->budget_s = seconds / (2 + 3 * (2 * OPS_TIERS + 1) + 2 * KV_FORMAT_COUNT);
    p->used_bytes = p->size_bytes;
    out->far_bytes = (double)p->size_bytes;
    out->n_threads = pool_n_threads(p->d->pool);
    out->read_bytes_s = read_rate(p);
    for (int tier = 0; tier < OPS_TIERS; tier++) {
        product_rates(p, OPS_CLASS_Q4, tier, out);
        if (tier == TIER_L1) out->region_s = region_seconds(p, out->weight_bytes_s[OPS_CLASS_Q4][tier]);
        product_rates(p, OPS_CLASS_Q8, tier, out);
        out->value_s[tier] = value_seconds(p, forms[tier]);
    }
    product_rates(p, OPS_CLASS_F, 0, out);
    for (int tier = 1; tier < OPS_TIERS; tier++) { /* float weights know no tier */
        out->weight_bytes_s[OPS_CLASS_F][tier] = out->weight_bytes_s[OPS_CLASS_F][0];
        out->near_bytes_s[OPS_CLASS_F][tier] = out->near_bytes_s[OPS_CLASS_F][0];
        out->macs_s[OPS_CLASS_F][tier] = out->macs_s[OPS_CLASS_F][0];
    }
    for (int f = 0; f < KV_FORMAT_COUNT; f++) attention_rates(p, (enum kv_format)f, out);
    out->vocab_s = vocab_seconds(p);
}

mb_status cpu_probe(struct device *d, double seconds, struct ops_rates *out, mb_error *err)
{
    struct probe p = { .d = d, .size_bytes = memory_bytes() };
    int n = pool_n_threads(d->pool);
    size_t act_bytes = ROWS * act_row_bytes(ACT_F32, VALUES, GROUP), values_bytes = VOCAB * sizeof(float);
    memset(out, 0, sizeof *out);
    p.thread_bytes = (sizeof(struct probe_thread) + attn_scratch_bytes(TILE_QUERIES, HEAD, 0) + 4095) / 4096 * 4096;
    size_t rest = (size_t)n * p.thread_bytes + act_bytes + values_bytes;
    p.mem = huge_map(p.size_bytes, false);
    p.threads = huge_map(rest, false);
    mb_status st = MB_OK;
    if (p.mem && p.threads) {
        p.act = p.threads + (size_t)n * p.thread_bytes;
        p.values = (float *)(void *)(p.act + act_bytes);
        for (int i = 0; i < VOCAB; i++) p.values[i] = (float)(i % 61) * 0.03f - 0.9f;
        pool_run(d->pool, fill_share, &p);
        measure(&p, seconds, out);
    } else {
        st = mb_fail(err, MB_NO_MEMORY, "no memory to measure this machine: %zu MB are wanted", (p.size_bytes + rest) >> 20);
    }
    if (p.mem) huge_unmap(p.mem, p.size_bytes);
    if (p.threads) huge_unmap(p.threads, rest);
    return st;
}
