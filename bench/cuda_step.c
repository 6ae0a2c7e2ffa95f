/* cuda_step.c: where the time of a decode step goes. The launches of one step of a llama-shaped model (random 4-bit weights,
 * groups of 64, every layer with weights of its own), as ops/cuda/run.c makes them, through the table of libmlxbun-cuda.so:
 * captured as one graph and timed whole, with each kind of launch alone, and with each kind left out. What a kind costs in a
 * step is what leaving it out saves: launches overlap, so times alone need not add up. A batch above 64 is a prompt of so many
 * tokens from the first index on, of which the last one draws.
 *
 *   cuda_step [--brief] LIBRARY [SHAPE] [KEYS] [BATCH...]     SHAPE 8b (default), 1b, 135m; KEYS 576; batches 1 8 32 512
 * Build: cc -std=c17 -O2 -Isrc -o build/cuda_step bench/cuda_step.c -ldl
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/cuda/library.h"

#define LAYERS_MAX 32
#define BATCH_MAX 64   /* single tokens */
#define TOKENS_MAX 512 /* of a prompt */
#define SOURCE_BYTES ((size_t)64 << 20) /* random codes; every matrix is made of them */

enum kind { GATHER, NORM, QKV, ATTEND, O, GLU, DOWN, TAKE, HEAD, SAMPLE, KINDS };
static const char *const NAMES[KINDS] = { "embed", "norms", "qkv", "attend", "o", "gate+up", "down", "draws' rows", "head", "sample" };

struct shape {
    const char *name;
    int d, ff, n_head, n_kv, head, layers, vocab;
};
static const struct shape SHAPES[] = { { "8b", 4096, 14336, 32, 8, 128, 32, 128256 }, { "1b", 2048, 8192, 32, 8, 64, 16, 128256 },
                                       { "135m", 576, 1536, 9, 3, 64, 30, 49152 } };

struct layer {
    struct ck_weight q, k, v, o, gate, up, down;
};

static const struct cuda_library *lib;
static struct ck_ctx ctx;
static void *stream;
static struct shape shape;
static bool brief; /* whole steps alone */
static struct layer layers[LAYERS_MAX];
static struct ck_weight embed, head;
static size_t weight_bytes; /* that a token reads */

static struct {
    void *codes;
    float *scales, *ones, *residual, *qkv, *rotated, *attended, *last, *logits, *table;
    struct ck_x in, attn, hidden;
    int32_t *id, *lo, *hi, *pages, *table_of, *index, *rows;
    struct ck_attn_unit *units, *prompt_units;
    int32_t *prompt_hi, *prompt_index, *zeros;
    int n_prompt_units;
    struct cuda_draw_job *jobs;
    struct cuda_draw_out *outs;
    void *scratch;
    uint8_t *pool;
    size_t page_bytes, head_bytes;
    int n_pages;
} g;

static void check(int code, const char *what)
{
    if (code == 0) return;
    fprintf(stderr, "%s: %s\n", what, lib->error_text(code));
    exit(2);
}

static void *room(size_t bytes)
{
    void *p;
    check(lib->alloc(&p, bytes + 256), "memory");
    check(lib->fill(p, 0, bytes + 256, stream), "memory");
    return p;
}

/* A device copy. */
static void *put(const void *host, size_t bytes)
{
    void *p = room(bytes);
    check(lib->copy(p, host, bytes, stream), "copy");
    check(lib->stream_wait(stream), "copy");
    return p;
}

/* --- weights --- */

/* Scales of about 1 / sqrt(k) and biases that centre the codes, as bfloat16. */
static void fill_scales(int64_t k)
{
    size_t n = (size_t)shape.vocab * (size_t)(k / 64) * 2;
    uint16_t *h = malloc(n * sizeof *h);
    if (!h) exit(2);
    float root = 1;
    for (int j = 0; j < 30; j++) root = 0.5f * (root + (float)k / root);
    for (size_t i = 0; i < n; i++) {
        float v = (i < n / 2 ? 1.0f : -7.5f) * 0.13f / root;
        uint32_t bits;
        memcpy(&bits, &v, 4);
        h[i] = (uint16_t)(bits >> 16);
    }
    check(lib->copy(g.scales, h, n * sizeof *h, stream), "scales");
    check(lib->stream_wait(stream), "scales");
    free(h);
}

static void make(struct ck_weight *w, int64_t n, int64_t k)
{
    size_t bytes = lib->weight_bytes(w, 4, 64, 0, n, k);
    int64_t step = (int64_t)(SOURCE_BYTES / (size_t)(k / 2)) / 16 * 16;
    const uint16_t *scales = (const uint16_t *)g.scales, *biases = scales + (size_t)shape.vocab * (size_t)(k / 64);
    lib->weight_place(w, room(bytes));
    for (int64_t row = 0; row < n; row += step)
        check(lib->pack(&ctx, w, 4, 64, CK_DT_BF16, g.codes, scales, biases, row, n - row < step ? n - row : step, 1, 0, stream), "pack");
    weight_bytes += bytes;
}

static void make_weights(void)
{
    uint32_t *h = malloc(SOURCE_BYTES), x = 1;
    if (!h) exit(2);
    for (size_t i = 0; i < SOURCE_BYTES / 4; i++) {
        x ^= x << 13, x ^= x >> 17, x ^= x << 5;
        h[i] = x;
    }
    g.codes = put(h, SOURCE_BYTES);
    free(h);
    g.scales = room((size_t)shape.vocab * (size_t)(shape.ff / 64) * 4);
    fill_scales(shape.d);
    make(&embed, shape.vocab, shape.d);
    weight_bytes = 0;
    make(&head, shape.vocab, shape.d);
    for (int i = 0; i < shape.layers; i++) {
        struct layer *l = &layers[i];
        make(&l->q, (int64_t)shape.n_head * shape.head, shape.d);
        make(&l->k, (int64_t)shape.n_kv * shape.head, shape.d);
        make(&l->v, (int64_t)shape.n_kv * shape.head, shape.d);
        make(&l->o, shape.d, (int64_t)shape.n_head * shape.head);
        make(&l->gate, shape.ff, shape.d);
        make(&l->up, shape.ff, shape.d);
    }
    fill_scales(shape.ff);
    for (int i = 0; i < shape.layers; i++) make(&layers[i].down, shape.d, shape.ff);
}

/* --- buffers and a batch of single tokens, each at the end of `keys` --- */

static struct ck_x make_x(int64_t k)
{
    return (struct ck_x){ .v = room(lib->x_bytes(TOKENS_MAX, k)), .k = k, .k_pad = (k + 63) / 64 * 64, .mul = 1.0f };
}

static void make_buffers(int keys)
{
    int width = (shape.n_head + 2 * shape.n_kv) * shape.head, wide = shape.ff > width ? shape.ff : width;
    float *ones = malloc((size_t)wide * sizeof *ones);
    if (!ones) exit(2);
    for (int i = 0; i < wide; i++) ones[i] = 1.0f;
    g.ones = put(ones, (size_t)wide * sizeof *ones);
    for (int i = 0; i < wide; i++) ones[i] = i < shape.head / 2 ? 0.6f : 0.8f;
    g.table = room((size_t)TOKENS_MAX * (size_t)shape.head * sizeof(float));
    for (int i = 0; i < TOKENS_MAX; i++) check(lib->copy(g.table + i * shape.head, ones, (size_t)shape.head * sizeof(float), stream), "table");
    check(lib->stream_wait(stream), "table");
    free(ones);
    g.residual = room((size_t)TOKENS_MAX * (size_t)shape.d * sizeof(float));
    g.last = room((size_t)BATCH_MAX * (size_t)shape.d * sizeof(float));
    g.qkv = room((size_t)TOKENS_MAX * (size_t)width * sizeof(float));
    g.rotated = room((size_t)TOKENS_MAX * (size_t)width * sizeof(float));
    g.attended = room((size_t)TOKENS_MAX * (size_t)width * sizeof(float));
    g.logits = room((size_t)BATCH_MAX * (size_t)shape.vocab * sizeof(float));
    g.in = make_x(shape.d);
    g.attn = make_x((int64_t)shape.n_head * shape.head);
    g.hidden = make_x(shape.ff);
    g.hidden.mul = 16.0f;
    g.n_pages = (keys + 63) / 64;
    g.head_bytes = lib->kv_head_bytes(CK_KV_F16, shape.head);
    g.page_bytes = ((size_t)shape.layers * (size_t)shape.n_kv * g.head_bytes + 4095) / 4096 * 4096;
    g.pool = room((size_t)g.n_pages * BATCH_MAX * g.page_bytes);
    g.scratch = room(lib->sample_scratch_bytes(shape.vocab, BATCH_MAX));
    g.outs = room(BATCH_MAX * sizeof *g.outs);
}

static void make_batch(int keys)
{
    int32_t v[6][BATCH_MAX], *pages = malloc((size_t)g.n_pages * BATCH_MAX * sizeof *pages);
    struct ck_attn_unit units[BATCH_MAX];
    struct cuda_draw_job jobs[BATCH_MAX];
    if (!pages) exit(2);
    memset(jobs, 0, sizeof jobs);
    for (int i = 0; i < BATCH_MAX; i++) {
        v[0][i] = 1000 + 7 * i;
        v[1][i] = 0;
        v[2][i] = keys;
        v[3][i] = i * g.n_pages;
        v[4][i] = keys - 1;
        v[5][i] = i;
        units[i] = (struct ck_attn_unit){ .tok0 = i, .n_tok = 1, .i_table = i * g.n_pages };
        jobs[i].n_live = shape.vocab;
        jobs[i].wants_sum = 1;
        for (int j = 0; j < g.n_pages; j++) pages[i * g.n_pages + j] = (int32_t)((size_t)(j * BATCH_MAX + i) * (g.page_bytes / 4096));
    }
    int32_t **to[6] = { &g.id, &g.lo, &g.hi, &g.table_of, &g.index, &g.rows };
    for (int i = 0; i < 6; i++) *to[i] = put(v[i], sizeof v[i]);
    g.pages = put(pages, (size_t)g.n_pages * BATCH_MAX * sizeof *pages);
    g.units = put(units, sizeof units);
    g.jobs = put(jobs, sizeof jobs);
    free(pages);
}

/* A prompt over the pages of the first row. */
static void make_prompt(void)
{
    int32_t hi[TOKENS_MAX], index[TOKENS_MAX];
    struct ck_attn_unit units[TOKENS_MAX];
    int per = lib->attn_large_tokens(shape.n_head, shape.n_kv);
    for (int i = 0; i < TOKENS_MAX; i++) {
        hi[i] = i + 1;
        index[i] = i;
    }
    for (int i = 0; i < TOKENS_MAX; i += per) units[g.n_prompt_units++] = (struct ck_attn_unit){ .tok0 = i, .n_tok = per < TOKENS_MAX - i ? per : TOKENS_MAX - i };
    g.prompt_hi = put(hi, sizeof hi);
    g.prompt_index = put(index, sizeof index);
    g.prompt_units = put(units, sizeof units);
    g.zeros = room(TOKENS_MAX * sizeof(int32_t));
}

/* --- the step --- */

/* The norm of `in` as the input of the next products: a launch, or left to them as run.c does where they can. */
static void norm(const float *in, int m, unsigned launch)
{
    struct cs_norm a = { .in = in, .ld_in = shape.d, .m = m, .width = shape.d, .n_pieces = 1, .weight = g.ones, .eps = 1e-5f, .x = &g.in };
    g.in.norm_in = NULL;
    if (!launch) return;
    if (m > lib->norm_tokens(&ctx, shape.d)) {
        check(lib->norm(&ctx, &a, stream), "norm");
        return;
    }
    g.in.norm_in = in;
    g.in.ld_norm = shape.d;
    g.in.norm_weight = g.ones;
    g.in.norm_eps = 1e-5f;
}

static void qkv(const struct layer *l, int m)
{
    int64_t ld = (int64_t)(shape.n_head + 2 * shape.n_kv) * shape.head, nq = (int64_t)shape.n_head * shape.head, nk = (int64_t)shape.n_kv * shape.head;
    struct ck_part p[3] = { { .w = &l->q, .y = g.qkv, .ld_y = ld }, { .w = &l->k, .y = g.qkv + nq, .ld_y = ld }, { .w = &l->v, .y = g.qkv + nq + nk, .ld_y = ld } };
    check(lib->linear(&ctx, &g.in, m, p, 3, stream), "qkv");
}

/* Rotation, the writing of keys and values, attention. */
static void attend(int i_layer, int m, int keys)
{
    int64_t ld = (int64_t)(shape.n_head + 2 * shape.n_kv) * shape.head, nq = (int64_t)shape.n_head * shape.head;
    int64_t off = (int64_t)i_layer * shape.n_kv * (int64_t)g.head_bytes;
    struct cs_rope r = { .q = g.qkv, .ld_q = ld, .q_step = shape.head, .out = g.rotated, .ld_out = nq, .m = m, .n_head = shape.n_head,
                         .n_head_kv = shape.n_kv, .head_dim = shape.head, .q_scale = 0.1f, .k = g.qkv + nq, .ld_k = ld,
                         .v = g.qkv + nq + (int64_t)shape.n_kv * shape.head, .ld_v = ld, .table = g.table, .n_rot = shape.head, .pool = g.pool,
                         .pages = g.pages, .table_of = g.table_of, .index = g.index, .head_off = off, .kv_format = CK_KV_F16 };
    struct ck_attend a = { .q = g.rotated, .ld_q = nq, .q_step = shape.head, .out = g.attended, .ld_out = nq, .x = &g.attn, .lo = g.lo, .hi = g.hi,
                           .pool = g.pool, .pages = g.pages, .ld_pages = 1, .head_off = off, .kv_format = CK_KV_F16, .n_head = shape.n_head,
                           .n_head_kv = shape.n_kv, .head_dim = shape.head, .small_units = g.units, .n_small = m, .n_split = 1 };
    while (a.n_split * CK_ATTN_SPLIT < keys) a.n_split *= 2;
    if (m <= BATCH_MAX) {
        check(lib->rope_attend(&ctx, &r, &a, stream), "attend");
        return;
    }
    r.table_of = a.lo = g.zeros;
    r.index = g.prompt_index;
    a.hi = g.prompt_hi;
    a.small_units = NULL;
    a.n_small = 0;
    a.large_units = g.prompt_units;
    a.n_large = g.n_prompt_units * m / TOKENS_MAX;
    check(lib->rope(&ctx, &r, stream), "rope");
    check(lib->attend(&ctx, &a, stream), "attend");
}

static void into_residual(const struct ck_weight *w, const struct ck_x *x, int m)
{
    struct ck_part p = { .w = w, .y = g.residual, .ld_y = shape.d, .add = 1, .scale = 0.1f };
    check(lib->linear(&ctx, x, m, &p, 1, stream), "into the residual");
}

static void sample(int n_draw)
{
    struct cs_draws a = { .logits = g.logits, .n_vocab = shape.vocab, .n_draw = n_draw, .ld = shape.vocab, .jobs = g.jobs, .outs = g.outs, .scratch = g.scratch };
    check(lib->sample(&ctx, &a, stream), "sample");
}

/* The kinds of launch whose bit is set in `mask`. */
static void step(int m, int keys, unsigned mask)
{
#define ON(kind) (mask >> (kind) & 1u)
    int n_draw = m <= BATCH_MAX ? m : 1;
    g.in.layout = g.attn.layout = g.hidden.layout = lib->x_layout_for(&ctx, m);
    if (ON(GATHER)) check(lib->gather(&ctx, &embed, m <= BATCH_MAX ? g.id : g.prompt_index, m, 1.0f, g.residual, shape.d, stream), "embed");
    for (int i = 0; i < shape.layers; i++) {
        const struct layer *l = &layers[i];
        norm(g.residual, m, ON(NORM));
        if (ON(QKV)) qkv(l, m);
        if (ON(ATTEND)) attend(i, m, keys);
        if (ON(O)) into_residual(&l->o, &g.attn, m);
        norm(g.residual, m, ON(NORM));
        if (ON(GLU)) check(lib->linear_glu(&ctx, &g.in, m, &l->gate, &l->up, NULL, NULL, 0, &g.hidden, stream), "gate+up");
        if (ON(DOWN)) into_residual(&l->down, &g.hidden, m);
    }
    bool takes = m > BATCH_MAX; /* else every token draws, in its order */
    if (ON(TAKE) && takes) check(lib->gather_rows(&ctx, g.residual, shape.d, g.rows, n_draw, shape.d, g.last, shape.d, stream), "draws' rows");
    g.in.layout = lib->x_layout_for(&ctx, n_draw);
    norm(takes ? g.last : g.residual, n_draw, ON(NORM));
    struct ck_part p = { .w = &head, .y = g.logits, .ld_y = shape.vocab };
    if (ON(HEAD)) check(lib->linear(&ctx, &g.in, n_draw, &p, 1, stream), "head");
    if (ON(SAMPLE)) sample(n_draw);
#undef ON
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Microseconds of a step as a graph: the best of four runs of about 30 ms. */
static double time_step(int m, int keys, unsigned mask)
{
    void *graph;
    double best = 1e9;
    check(lib->graph_begin(stream), "capture");
    step(m, keys, mask);
    check(lib->graph_end(stream, &graph), "capture");
    for (int r = 0, n = 1; r < 6; r++) { /* two to warm up and to see how many fit */
        check(lib->stream_wait(stream), "run");
        double t0 = now();
        for (int i = 0; i < n; i++) check(lib->graph_run(graph, stream), "run");
        check(lib->stream_wait(stream), "run");
        double t = (now() - t0) / n;
        if (t < best && r >= 2) best = t;
        n = t > 0.015 ? 2 : t < 0.0015 ? 20 : (int)(0.03 / t);
    }
    lib->graph_free(graph);
    return best * 1e6;
}

/* Of the logits that the last whole step left: kernels that keep the order of sums keep it. */
static uint64_t digest(int rows)
{
    size_t n = (size_t)rows * (size_t)shape.vocab;
    uint32_t *h = malloc(n * sizeof *h);
    uint64_t d = 14695981039346656037u;
    if (!h) exit(2);
    check(lib->copy(h, g.logits, n * sizeof *h, stream), "logits");
    check(lib->stream_wait(stream), "logits");
    for (size_t i = 0; i < n; i++) d = (d ^ h[i]) * 1099511628211u;
    free(h);
    return d;
}

static void profile(int m, int keys)
{
    unsigned all = (1u << KINDS) - 1u;
    int per_layer[KINDS] = { [NORM] = 2, [QKV] = 1, [ATTEND] = 1, [O] = 1, [GLU] = 1, [DOWN] = 1 };
    double whole = time_step(m, keys, all);
    printf("\n%s, batch %d, %d keys: %.0f us a step, %.0f tokens/s, weights at %.0f GB/s, logits %016llx\n", shape.name, m, keys, whole, 1e6 * m / whole,
           (double)weight_bytes / whole * 1e-3, (unsigned long long)digest(m <= BATCH_MAX ? m : 1));
    if (brief) return;
    printf("  %-12s %8s %12s %14s %16s\n", "launches", "number", "alone, us", "left out, us", "the same, each");
    for (int k = 0; k < KINDS; k++) {
        int n = per_layer[k] * shape.layers + (per_layer[k] == 0 || k == NORM);
        double alone = time_step(m, keys, 1u << k), saved = whole - time_step(m, keys, all & ~(1u << k));
        printf("  %-12s %8d %12.0f %14.0f %16.2f\n", NAMES[k], n, alone, saved, saved / n);
        fflush(stdout);
    }
    double products = time_step(m, keys, 1u << QKV | 1u << O | 1u << GLU | 1u << DOWN | 1u << HEAD);
    printf("  products alone %.0f us, everything else alone %.0f us\n", products,
           time_step(m, keys, all & ~(1u << QKV | 1u << O | 1u << GLU | 1u << DOWN | 1u << HEAD)));
}

int main(int argc, char **argv)
{
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) brief |= strcmp(argv[1], "--brief") == 0;
    int keys = argc > 3 ? atoi(argv[3]) : 576;
    const char *name = argc > 2 ? argv[2] : "8b";
    void *so = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    cuda_library_fn get;
    if (!so) {
        fprintf(stderr, "usage: cuda_step [--brief] LIBRARY [8b | 1b | 135m] [KEYS] [BATCH...]: %s\n", argc > 1 ? dlerror() : "no library named");
        return 2;
    }
    *(void **)&get = dlsym(so, CUDA_LIBRARY_SYMBOL);
    lib = get ? get() : NULL;
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++)
        if (strcmp(SHAPES[i].name, name) == 0) shape = SHAPES[i];
    if (!lib || lib->abi != CUDA_LIBRARY_ABI || lib->struct_bytes != sizeof *lib || !shape.name || keys < TOKENS_MAX) {
        fprintf(stderr, "cuda_step: not this library (ABI %d), no such shape, or fewer than %d keys\n", CUDA_LIBRARY_ABI, TOKENS_MAX);
        return 2;
    }
    check(lib->device_use(0), "the card");
    check(lib->stream_open(&stream), "stream");
    check(lib->ctx_init(&ctx, 0), "the card");
    ctx.pdl = 1;
    ctx.work_bytes = lib->work_bytes(&ctx, BATCH_MAX, shape.n_head, shape.head, keys);
    ctx.work = room(ctx.work_bytes);
    make_weights();
    make_buffers(keys);
    make_batch(keys);
    make_prompt();
    if (argc <= 4) {
        static const int batches[] = { 1, 8, 32, TOKENS_MAX };
        for (int i = 0; i < 4; i++) profile(batches[i], keys);
    }
    for (int i = 4; i < argc; i++)
        if (atoi(argv[i]) >= 1 && atoi(argv[i]) <= TOKENS_MAX) profile(atoi(argv[i]), keys);
    return 0;
}
