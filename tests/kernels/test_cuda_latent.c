/* test_cuda_latent.c: the kernels of attention over latents: pages written and attended to, near float64; a token alone has the bits that it has among
 * others, whatever way a batch of its size goes (a block a split, a block a token); heads have the bits of the products that they
 * are; an indexer chooses what its scores, made on the host, say. MLX_BUN_TEST_TIMES=1 prints what shapes of real models take. All of it is skipped without a GPU.
 */
#include "kernels/cuda_calls.h"

#include <math.h>

#include "base/clock.h"

enum { KEYS_MAX = 8192, M_MAX = 512 };

struct shape {
    const char *name;
    int32_t n_head, d_value, d_rope, fmt, m, keys, top_k; /* the last m of so many keys; top_k > 0: chosen, every (keys / top_k)-th */
};
static const struct shape SHAPES[] = {
    { "one token, three splits", 128, 512, 64, CK_KV_F16, 1, 700, 0 },
    { "three tokens, twenty heads", 20, 512, 64, CK_KV_F16, 3, 257, 0 },
    { "small heads", 4, 48, 16, CK_KV_F16, 5, 300, 0 },
    { "heads without whole tiles", 4, 32, 16, CK_KV_F16, 70, 333, 0 },
    { "many tokens", 32, 512, 64, CK_KV_F16, 300, 600, 0 },
    { "chosen keys", 16, 512, 64, CK_KV_F16, 3, 1500, 300 },
    { "chosen keys, many tokens", 128, 512, 64, CK_KV_F16, 70, 900, 128 },
    { "f32 pages", 16, 512, 64, CK_KV_F32, 3, 300, 0 },
    { "bf16 pages", 16, 64, 32, CK_KV_BF16, 3, 300, 100 },
};

struct data {
    float *q, *kv, *table, *norm, *chosen; /* host: [m][n_head * d], [keys][d], [keys][d_rope], [d_value], [m][top_k] */
    float *q_dev, *chosen_dev, *out_dev;
    void *pool, *pages, *zeros, *index, *work;
    size_t work_bytes;
    struct cl_pages p;
    int32_t d;
    struct ck_ctx ctx;
};

/* Keys written by the step that writes them. */
static void write_keys(struct data *t, const struct shape *s)
{
    float *kv = on_device(t->kv, (size_t)(s->keys * t->d) * sizeof(float)), *table = on_device(t->table, (size_t)(s->keys * s->d_rope) * sizeof(float));
    float *norm = on_device(t->norm, (size_t)s->d_value * sizeof(float)), *out = room((size_t)(s->keys * t->d) * sizeof(float));
    int32_t *index = malloc((size_t)s->keys * sizeof *index);
    for (int32_t i = 0; i < s->keys; i++) index[i] = i;
    void *index_dev = on_device(index, (size_t)s->keys * sizeof *index);
    struct cl_latent a = { .p = t->p, .q = kv, .ld_q = t->d, .q_first = s->d_value, .kv = kv, .ld_kv = t->d, .out = out, .ld_out = t->d, .m = s->keys,
                           .n_head = 1, .d_latent = s->d_value, .d_rope = s->d_rope, .interleaved = 1, .norm = norm, .norm_eps = 1e-6f, .q_scale = 1.0f,
                           .table = table };
    a.p.index = index_dev;
    check(lib->fill(out, 0, (size_t)(s->keys * t->d) * sizeof(float), dev->stream), "zeros");
    check(lib->latent(&t->ctx, &a, dev->stream), s->name);
    check(lib->stream_wait(dev->stream), s->name);
    void *all[] = { kv, table, norm, out, index_dev };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lib->free(all[i]);
    free(index);
}

/* Page j lies where page_of says: not in order. */
static void make_places(struct data *t, const struct shape *s)
{
    int32_t n_pages = (s->keys + 63) / 64, *v = calloc(M_MAX + KEYS_MAX, sizeof *v);
    size_t page_bytes = lib->latent_page_bytes(s->fmt, t->d);
    t->pool = room((size_t)n_pages * page_bytes);
    check(lib->fill(t->pool, 0xff, (size_t)n_pages * page_bytes, dev->stream), "poison"); /* not a number */
    t->zeros = on_device(v, (M_MAX + KEYS_MAX) * sizeof *v);
    for (int32_t j = 0; j < n_pages; j++) v[j] = (int32_t)((size_t)(n_pages - 1 - j) * (page_bytes / 4096));
    t->pages = on_device(v, (size_t)n_pages * sizeof *v);
    for (int32_t i = 0; i < s->m; i++) v[i] = s->keys - s->m + i;
    t->index = on_device(v, (size_t)s->m * sizeof *v);
    t->p = (struct cl_pages){ .pool = t->pool, .pages = t->pages, .table_of = t->zeros, .index = t->index, .format = s->fmt, .rows = t->d };
    free(v);
}

static void data_open(struct data *t, const struct shape *s)
{
    memset(t, 0, sizeof *t);
    t->d = s->d_value + s->d_rope;
    t->ctx = dev->ctx;
    t->ctx.pdl = 1;
    t->q = floats((size_t)(s->m * s->n_head * t->d), 3);
    for (int32_t i = 0; i < s->m * s->n_head * t->d; i++) t->q[i] *= 0.25f;
    t->kv = floats((size_t)(s->keys * t->d), 4);
    t->norm = floats((size_t)s->d_value, 5);
    t->table = floats((size_t)(s->keys * s->d_rope), 6);
    t->chosen = calloc((size_t)(s->m * s->top_k + 1), sizeof(float));
    for (int32_t i = 0; i < s->m * s->top_k; i++) t->chosen[i] = (float)(i % s->top_k * (s->keys / s->top_k - 1) + i / s->top_k % 2);
    t->q_dev = on_device(t->q, (size_t)(s->m * s->n_head * t->d) * sizeof(float));
    t->chosen_dev = on_device(t->chosen, (size_t)(s->m * s->top_k + 1) * sizeof(float));
    t->out_dev = room((size_t)(s->m * s->n_head * s->d_value) * sizeof(float));
    t->work_bytes = lib->latent_work_bytes(&t->ctx, s->n_head, s->d_value, KEYS_MAX);
    t->work = room(t->work_bytes);
    make_places(t, s);
    write_keys(t, s);
}

static void data_close(struct data *t)
{
    void *device[] = { t->q_dev, t->chosen_dev, t->out_dev, t->pool, t->pages, t->zeros, t->index, t->work };
    void *host[] = { t->q, t->kv, t->norm, t->table, t->chosen };
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) lib->free(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++) free(host[i]);
}

/* Tokens [first, first + n) of the batch by themselves, told of more splits than there are. */
static struct cl_attend attend_of(const struct data *t, const struct shape *s, int32_t first, int32_t n, int32_t more_splits)
{
    struct cl_attend a = { .p = t->p, .q = t->q_dev + (int64_t)first * s->n_head * t->d, .ld_q = (int64_t)s->n_head * t->d, .out = t->out_dev,
                           .ld_out = (int64_t)s->n_head * s->d_value, .m = n, .n_head = s->n_head, .d = t->d, .d_value = s->d_value,
                           .n_split = (s->keys + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT + more_splits, .work = t->work, .work_bytes = t->work_bytes };
    a.p.index += first;
    if (s->top_k > 0) {
        a.chosen = t->chosen_dev + (int64_t)first * s->top_k;
        a.ld_chosen = s->top_k;
        a.top_k = s->top_k;
    }
    return a;
}

static float *run(const struct data *t, const struct shape *s, int32_t first, int32_t n, int32_t more_splits)
{
    struct cl_attend a = attend_of(t, s, first, n, more_splits);
    size_t bytes = (size_t)(n * s->n_head * s->d_value) * sizeof(float);
    float *got = malloc(bytes);
    check(lib->fill(t->out_dev, 0xee, bytes, dev->stream), "poison");
    check(lib->latent_attend(&t->ctx, &a, dev->stream), s->name);
    put(got, t->out_dev, bytes);
    return got;
}

/* Key j in float64: normalised latent, rotated part. */
static void key_of(const struct data *t, const struct shape *s, int32_t j, double *key)
{
    const float *x = t->kv + (int64_t)j * t->d, *cs = t->table + (int64_t)j * s->d_rope;
    double ss = 0;
    for (int32_t i = 0; i < s->d_value; i++) ss += (double)x[i] * (double)x[i];
    double r = 1 / sqrt(ss / s->d_value + 1e-6);
    for (int32_t i = 0; i < s->d_value; i++) key[i] = (double)x[i] * r * (double)t->norm[i];
    for (int32_t i = 0; i < s->d_rope / 2; i++) {
        double a = (double)x[s->d_value + 2 * i], b = (double)x[s->d_value + 2 * i + 1], c = (double)cs[i], n = (double)cs[s->d_rope / 2 + i];
        key[s->d_value + 2 * i] = a * c - b * n;
        key[s->d_value + 2 * i + 1] = b * c + a * n;
    }
}

/* Token i's head h in float64, over keys [keys][d]. */
static void attend_exactly(const struct data *t, const struct shape *s, int32_t i, int32_t h, const double *keys, double *out)
{
    const float *q = t->q + ((int64_t)i * s->n_head + h) * t->d;
    int32_t n = s->keys - s->m + i + 1, chooses = s->top_k > 0 && n > s->top_k;
    double sum = 0;
    memset(out, 0, (size_t)s->d_value * sizeof *out);
    if (chooses) n = s->top_k;
    for (int32_t j = 0; j < n; j++) { /* scores are small: no maximum is needed */
        const double *key = keys + (int64_t)(chooses ? (int32_t)t->chosen[i * s->top_k + j] : j) * t->d;
        double x = 0;
        for (int32_t c = 0; c < t->d; c++) x += (double)q[c] * key[c];
        double p = exp2(x);
        sum += p;
        for (int32_t c = 0; c < s->d_value; c++) out[c] += p * key[c];
    }
    for (int32_t c = 0; c < s->d_value; c++) out[c] /= sum;
}

static void check_near(const struct data *t, const struct shape *s, const float *got)
{
    double *keys = malloc((size_t)(s->keys * t->d) * sizeof *keys), *want = malloc((size_t)s->d_value * sizeof *want), most = 0, top = 0;
    for (int32_t j = 0; j < s->keys; j++) key_of(t, s, j, keys + (int64_t)j * t->d);
    for (int32_t i = 0; i < s->m; i += s->m > 8 ? s->m / 3 : 1)
        for (int32_t h = 0; h < s->n_head; h += s->n_head > 8 ? 5 : 1) {
            const float *v = got + ((int64_t)i * s->n_head + h) * s->d_value;
            attend_exactly(t, s, i, h, keys, want);
            for (int32_t c = 0; c < s->d_value; c++) {
                if (fabs(want[c]) > top) top = fabs(want[c]);
                double e = fabs(want[c] - (double)v[c]);
                if (!(e <= most)) most = e;
            }
        }
    printf("%-28s error %.2g of %.2g\n", s->name, most, top);
    if (!(most <= (s->fmt == CK_KV_BF16 ? 1e-2 : 2e-3) * top)) fail_msg("%s: off by %g, values are up to %g", s->name, most, top);
    free(keys);
    free(want);
}

static void check_shape(const struct shape *s)
{
    struct data t;
    size_t row = (size_t)(s->n_head * s->d_value) * sizeof(float);
    data_open(&t, s);
    float *all = run(&t, s, 0, s->m, 0);
    check_near(&t, s, all);
    t.ctx.wgmma = 0; /* the other form */
    float *other = run(&t, s, 0, s->m, 0);
    for (size_t i = 0; i < (size_t)s->m * row / sizeof(float); i++)
        if (memcmp(&other[i], &all[i], sizeof(float)) != 0)
            fail_msg("%s: value %zu is %.9g without wgmma, %.9g with", s->name, i, (double)other[i], (double)all[i]);
    free(other);
    t.ctx.wgmma = dev->ctx.wgmma;
    for (int32_t i = 0; i < s->m; i += s->m > 8 ? 13 : 1)
        for (int32_t n = 1; n <= 2 && i + n <= s->m; n++) {
            float *alone = run(&t, s, i, n, 3 * (n - 1));
            if (memcmp(alone, all + (size_t)i * row / sizeof(float), row * (size_t)n) != 0) fail_msg("%s: token %d has other bits in a batch of %d", s->name, (int)i, (int)n);
            free(alone);
        }
    free(all);
    data_close(&t);
}

static void test_attention_over_latents(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) check_shape(&SHAPES[i]);
}

/* --- heads --- */

struct heads { int bits, group; int32_t n_head, n, k; };
static const struct heads HEADS[] = { { 4, 64, 8, 512, 128 }, { 4, 32, 3, 48, 32 }, { 8, 64, 5, 128, 512 }, { 8, 32, 4, 48, 32 }, { 0, 0, 5, 144, 512 }, { 0, 0, 3, 16, 24 } };

static void pack(struct ck_weight *w, const struct heads *h)
{
    int64_t n = (int64_t)h->n_head * h->n;
    size_t words = (size_t)(n * h->k) * (size_t)(h->bits > 0 ? h->bits : 32) / 32, groups = h->bits > 0 ? (size_t)(n * h->k / h->group) : 1;
    size_t bytes = lib->weight_bytes(w, h->bits, h->bits > 0 ? h->group : 64, 0, n, h->k);
    float *codes = floats(words, 11), *scales = floats(groups, 12), *biases = floats(groups, 13);
    void *c = on_device(codes, words * 4), *s = on_device(scales, groups * 4), *b = on_device(biases, groups * 4);
    lib->weight_place(w, room(bytes));
    check(lib->pack(&dev->ctx, w, h->bits, h->bits > 0 ? h->group : 64, CK_DT_F32, c, h->bits > 0 ? s : NULL, h->bits > 0 ? b : NULL, 0, n, 1, 0, dev->stream), "pack");
    check(lib->stream_wait(dev->stream), "pack");
    lib->free(c);
    lib->free(s);
    lib->free(b);
    free(codes);
    free(scales);
    free(biases);
}

/* Head by head through the products. */
static void by_products(const struct heads *h, const struct ck_weight *w, const float *in, int32_t m, float *out)
{
    int64_t k_pad = (h->k + 63) / 64 * 64;
    struct ck_x x = { .v = room(lib->x_bytes(m, h->k)), .layout = lib->x_layout_for(&dev->ctx, m), .k = h->k, .k_pad = k_pad, .mul = 1.0f };
    for (int32_t i = 0; i < h->n_head; i++) {
        struct ck_weight one = *w;
        one.n = h->n;
        one.tiles = (uint8_t *)w->tiles + (size_t)(i * h->n / 16) * (size_t)(k_pad / 64) * (size_t)lib->tile_bytes(w);
        one.row_scale = w->row_scale + i * h->n;
        struct ck_part part = { .w = &one, .y = out + i * h->n, .ld_y = (int64_t)h->n_head * h->n };
        check(lib->x_write(&dev->ctx, in + i * h->k, (int64_t)h->n_head * h->k, m, &x, dev->stream), "input");
        check(lib->linear(&dev->ctx, &x, m, &part, 1, dev->stream), "product");
    }
    check(lib->stream_wait(dev->stream), "products");
    lib->free(x.v);
}

static void check_heads(const struct heads *h)
{
    static const int32_t ms[] = { 1, 8, 9, 33, 70, 150 };
    struct ck_weight w;
    pack(&w, h);
    for (size_t i = 0; i < sizeof ms / sizeof ms[0]; i++) {
        size_t n_in = (size_t)(ms[i] * h->n_head * h->k), bytes = (size_t)(ms[i] * h->n_head * h->n) * sizeof(float);
        float *from = floats(n_in, 7), *in = on_device(from, n_in * sizeof(float)), *out = room(bytes), *want = malloc(bytes), *got = malloc(bytes);
        struct cl_heads a = { .w = &w, .in = in, .ld_in = (int64_t)h->n_head * h->k, .in_step = h->k, .out = out, .ld_out = (int64_t)h->n_head * h->n,
                              .out_step = h->n, .m = ms[i], .n_head = h->n_head };
        by_products(h, &w, in, ms[i], out);
        put(want, out, bytes);
        check(lib->fill(out, 0xee, bytes, dev->stream), "poison");
        check(lib->heads(&dev->ctx, &a, dev->stream), "heads");
        put(got, out, bytes);
        for (size_t j = 0; j < bytes / sizeof(float); j++)
            if (memcmp(&got[j], &want[j], sizeof(float)) != 0)
                fail_msg("heads of %d bits, %d tokens: output %zu is %.9g, the product's %.9g", h->bits, (int)ms[i], j, (double)got[j], (double)want[j]);
        lib->free(in);
        lib->free(out);
        free(from);
        free(want);
        free(got);
    }
    lib->free(w.tiles);
}

static void test_heads_are_products(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof HEADS / sizeof HEADS[0]; i++) check_heads(&HEADS[i]);
}

/* --- the indexer --- */

struct indexer { const char *name; int32_t n_head, dim, n_rot, top_k, m, keys, rows_at_once; bool interleaved; }; /* rows_at_once: of scores that fit the work area */
static const struct indexer INDEXERS[] = {
    { "an indexer of a real model", 64, 128, 64, 2048, 3, 5000, 3, true },
    { "tokens in two goes, halves", 8, 128, 64, 40, 5, 700, 3, false },
    { "some choose, some do not", 4, 32, 16, 64, 70, 70, 70, true },
};
#define LATENT 32 /* of a page's row, before the rotated part and the indexer's key */

struct index_data {
    float *key, *norm, *bias, *table, *q, *w; /* host: [keys][dim], [dim], [dim], [keys][n_rot], [m][n_head * dim], [m][n_head] */
    float *stored;                            /* [keys][dim] what the pages hold */
};

static void write_index_keys(struct data *t, const struct indexer *x, const struct index_data *d)
{
    struct shape s = { x->name, 1, LATENT, x->n_rot, CK_KV_F16, x->m, x->keys, 0 };
    int32_t before = LATENT + x->n_rot, *index = malloc((size_t)x->keys * sizeof *index);
    size_t n = (size_t)x->keys;
    t->d = before + x->dim;
    t->ctx = dev->ctx;
    make_places(t, &s);
    for (int32_t i = 0; i < x->keys; i++) index[i] = i;
    float *kv_host = floats(n * (size_t)before, 21), *kv = on_device(kv_host, n * (size_t)before * sizeof(float)), *key = on_device(d->key, n * (size_t)x->dim * sizeof(float));
    float *norm = on_device(d->norm, (size_t)x->dim * sizeof(float)), *bias = on_device(d->bias, (size_t)x->dim * sizeof(float));
    float *table = on_device(d->table, n * (size_t)x->n_rot * sizeof(float)), *out = on_device(kv_host, n * (size_t)before * sizeof(float));
    void *index_dev = on_device(index, n * sizeof *index);
    struct cl_latent a = { .p = t->p, .q = kv, .ld_q = before, .kv = kv, .ld_kv = before, .out = out, .ld_out = before, .m = x->keys, .n_head = 1, .d_latent = LATENT,
                           .d_rope = x->n_rot, .norm = norm, .norm_eps = 1e-6f, .q_scale = 1.0f, .table = table, .index_key = key, .ld_index = x->dim,
                           .index_norm = norm, .index_bias = bias, .index_eps = 1e-6f, .index_interleaved = x->interleaved, .d_index = x->dim };
    a.p.index = index_dev;
    check(lib->latent(&t->ctx, &a, dev->stream), x->name);
    check(lib->stream_wait(dev->stream), x->name);
    void *all[] = { kv, key, norm, bias, table, out, index_dev };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lib->free(all[i]);
    free(kv_host);
    free(index);
}

/* The pages back, chunk c of key j at c ^ (j % 8), near float64. */
static void read_index_keys(const struct data *t, const struct indexer *x, struct index_data *d)
{
    size_t page_bytes = lib->latent_page_bytes(CK_KV_F16, t->d), n_pages = (size_t)(x->keys + 63) / 64;
    uint16_t *pool = malloc(n_pages * page_bytes);
    put(pool, t->pool, n_pages * page_bytes);
    d->stored = malloc((size_t)(x->keys * x->dim) * sizeof(float));
    for (int32_t j = 0; j < x->keys; j++) {
        const uint16_t *row = pool + (n_pages - 1 - (size_t)j / 64) * page_bytes / 2 + (size_t)(j % 64 * ((t->d + 63) / 64 * 64));
        const float *in = d->key + j * x->dim, *cs = d->table + j * x->n_rot;
        double mean = 0, var = 0, want[256], y[256];
        for (int32_t i = 0; i < x->dim; i++) mean += (double)in[i] / x->dim;
        for (int32_t i = 0; i < x->dim; i++) var += ((double)in[i] - mean) * ((double)in[i] - mean) / x->dim;
        for (int32_t i = 0; i < x->dim; i++) want[i] = y[i] = ((double)in[i] - mean) / sqrt(var + 1e-6) * (double)d->norm[i] + (double)d->bias[i];
        for (int32_t i = 0, half = x->n_rot / 2; i < half; i++) {
            int32_t i0 = x->interleaved ? 2 * i : i, i1 = x->interleaved ? i0 + 1 : i + half;
            want[i0] = y[i0] * (double)cs[i] - y[i1] * (double)cs[half + i];
            want[i1] = y[i1] * (double)cs[i] + y[i0] * (double)cs[half + i];
        }
        for (int32_t i = 0; i < x->dim; i++) {
            int32_t at = LATENT + x->n_rot + i;
            float v = d->stored[j * x->dim + i] = f16_to_f32(row[((at / 8) ^ (j & 7)) * 8 + at % 8]);
            if (!(fabs((double)v - want[i]) <= 4e-3)) fail_msg("%s: key %d, value %d is %g, in float64 %g", x->name, (int)j, (int)i, (double)v, want[i]);
        }
    }
    free(pool);
}

struct scored { float score; int32_t index; };

static int better_first(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->index - y->index;
}

static int by_index(const void *a, const void *b)
{
    return ((const struct scored *)a)->index - ((const struct scored *)b)->index;
}

/* Token i's keys, best first, by the operations of docs/numerics.md in float32. */
static void score_keys(const struct indexer *x, const struct index_data *d, int32_t i, struct scored *out, int32_t n)
{
    float *q = malloc((size_t)(x->n_head * x->dim) * sizeof *q);
    const float *from = d->q + i * x->n_head * x->dim, *cs = d->table + (x->keys - x->m + i) * x->n_rot;
    memcpy(q, from, (size_t)(x->n_head * x->dim) * sizeof *q);
    for (int32_t h = 0; h < x->n_head; h++)
        for (int32_t r = 0, half = x->n_rot / 2; r < half; r++) {
            int32_t i0 = h * x->dim + (x->interleaved ? 2 * r : r), i1 = x->interleaved ? i0 + 1 : i0 + half;
            q[i0] = fmaf(from[i0], cs[r], -(from[i1] * cs[half + r]));
            q[i1] = fmaf(from[i1], cs[r], from[i0] * cs[half + r]);
        }
    for (int32_t j = 0; j < n; j++) {
        float sum = 0;
        for (int32_t h = 0; h < x->n_head; h++) {
            float s = 0;
            for (int32_t c = 0; c < x->dim; c++) s = fmaf(q[h * x->dim + c], d->stored[j * x->dim + c], s);
            sum = fmaf(d->w[i * x->n_head + h], s > 0 ? s : 0, sum);
        }
        out[j] = (struct scored){ sum, j };
    }
    qsort(out, (size_t)n, sizeof *out, better_first);
    free(q);
}

static void check_lists(const struct data *t, const struct indexer *x, const struct index_data *d)
{
    size_t n_out = (size_t)(x->m * x->top_k);
    int32_t n_split = (x->keys + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
    size_t work_bytes = (size_t)(x->rows_at_once * n_split * CK_ATTN_SPLIT) * sizeof(float);
    float *q = on_device(d->q, (size_t)(x->m * x->n_head * x->dim) * sizeof(float)), *w = on_device(d->w, (size_t)(x->m * x->n_head) * sizeof(float));
    float *table = on_device(d->table + (x->keys - x->m) * x->n_rot, (size_t)(x->m * x->n_rot) * sizeof(float)), *out = room(n_out * sizeof(float)), *got = malloc(n_out * sizeof(float));
    struct scored *want = malloc((size_t)x->keys * sizeof *want);
    struct cl_index a = { .p = t->p, .q = q, .weights = w, .ld_q = (int64_t)x->n_head * x->dim, .ld_weights = x->n_head, .table = table, .out = out, .ld_out = x->top_k,
                          .m = x->m, .n_head = x->n_head, .dim = x->dim, .n_rot = x->n_rot, .interleaved = x->interleaved, .top_k = x->top_k,
                          .first_row = LATENT + x->n_rot, .n_split = n_split, .work = room(work_bytes), .work_bytes = work_bytes };
    check(lib->fill(out, 0xee, n_out * sizeof(float), dev->stream), "poison");
    check(lib->index(&t->ctx, &a, dev->stream), x->name);
    put(got, out, n_out * sizeof(float));
    for (int32_t i = 0; i < x->m; i++) {
        int32_t n = x->keys - x->m + i + 1;
        if (n <= x->top_k) continue;
        score_keys(x, d, i, want, n);
        qsort(want, (size_t)x->top_k, sizeof *want, by_index);
        for (int32_t j = 0; j < x->top_k; j++)
            if (got[i * x->top_k + j] != (float)want[j].index)
                fail_msg("%s: token %d, place %d of its list: key %g, not %d", x->name, (int)i, (int)j, (double)got[i * x->top_k + j], (int)want[j].index);
    }
    void *all[] = { q, w, table, out, a.work };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lib->free(all[i]);
    free(got);
    free(want);
}

static void check_indexer(const struct indexer *x)
{
    struct data t;
    size_t n = (size_t)x->keys;
    struct index_data d = { .key = floats(n * (size_t)x->dim, 31), .norm = floats((size_t)x->dim, 32), .bias = floats((size_t)x->dim, 33), .table = floats(n * (size_t)x->n_rot, 34),
                            .q = floats((size_t)(x->m * x->n_head * x->dim), 35), .w = floats((size_t)(x->m * x->n_head), 36) };
    memset(&t, 0, sizeof t);
    write_index_keys(&t, x, &d);
    read_index_keys(&t, x, &d);
    check_lists(&t, x, &d);
    void *device[] = { t.pool, t.pages, t.zeros, t.index }, *host[] = { d.key, d.norm, d.bias, d.table, d.q, d.w, d.stored };
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) lib->free(device[i]);
    for (size_t i = 0; i < sizeof host / sizeof host[0]; i++) free(host[i]);
}

static void test_indexers_choose_as_written(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof INDEXERS / sizeof INDEXERS[0]; i++) check_indexer(&INDEXERS[i]);
}

/* --- times --- */

static void print_time(int32_t n_head, int32_t m, int32_t keys, int wgmma)
{
    struct shape s = { "time", n_head, 512, 64, CK_KV_F16, m, keys, 0 };
    struct data t;
    enum { REPEATS = 20 };
    data_open(&t, &s);
    t.ctx.wgmma = wgmma;
    struct cl_attend a = attend_of(&t, &s, 0, m, 0);
    for (int round = 0; round < 2; round++) { /* the first one warms up */
        int64_t t0 = clock_now_ns();
        for (int i = 0; i < REPEATS; i++) check(lib->latent_attend(&t.ctx, &a, dev->stream), "time");
        check(lib->stream_wait(dev->stream), "time");
        if (round == 1) printf("%d heads, %d tokens, %d keys, wgmma %d: %.1f us\n", (int)n_head, (int)m, (int)keys, wgmma, (double)(clock_now_ns() - t0) / 1e3 / REPEATS);
    }
    data_close(&t);
}

/* The two matrices of a head of 128 and latents of 512, 4 bit. */
static void print_heads_time(int32_t m)
{
    static const struct heads both[] = { { 4, 64, 128, 512, 128 }, { 4, 64, 128, 128, 512 } };
    for (int i = 0; i < 2; i++) {
        const struct heads *h = &both[i];
        struct ck_weight w;
        enum { REPEATS = 20 };
        pack(&w, h);
        size_t in_bytes = (size_t)(m * h->n_head * h->k) * sizeof(float), out_bytes = (size_t)(m * h->n_head * h->n) * sizeof(float);
        float *in = room(in_bytes), *out = room(out_bytes);
        struct cl_heads a = { .w = &w, .in = in, .ld_in = (int64_t)h->n_head * h->k, .in_step = h->k, .out = out, .ld_out = (int64_t)h->n_head * h->n,
                              .out_step = h->n, .m = m, .n_head = h->n_head };
        check(lib->fill(in, 0, in_bytes, dev->stream), "zeros");
        for (int round = 0; round < 2; round++) {
            int64_t t0 = clock_now_ns();
            for (int j = 0; j < REPEATS; j++) check(lib->heads(&dev->ctx, &a, dev->stream), "time");
            check(lib->stream_wait(dev->stream), "time");
            if (round == 1) printf("128 heads of %d x %d, %d tokens: %.1f us\n", (int)h->n, (int)h->k, (int)m, (double)(clock_now_ns() - t0) / 1e3 / REPEATS);
        }
        lib->free(in);
        lib->free(out);
        lib->free(w.tiles);
    }
}

static void test_times(void **state)
{
    static const int32_t heads[] = { 128, 20 }, batch[][2] = { { 1, 1024 }, { 1, 8192 }, { 8, 1024 }, { 8, 8192 }, { 32, 1024 }, { 512, 512 }, { 512, 8192 } };
    NEEDS_GPU();
    if (!getenv("MLX_BUN_TEST_TIMES")) skip();
    print_heads_time(1);
    print_heads_time(32);
    print_heads_time(512);
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < sizeof batch / sizeof batch[0]; j++)
            for (int wgmma = dev->ctx.wgmma; wgmma >= 0; wgmma--) print_time(heads[i], batch[j][0], batch[j][1], wgmma);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heads_are_products),
        cmocka_unit_test(test_attention_over_latents),
        cmocka_unit_test(test_indexers_choose_as_written),
        cmocka_unit_test(test_times),
    };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
