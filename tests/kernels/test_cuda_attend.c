/* test_cuda_attend.c: a decode step's rotation, writing of keys and attention as one launch, against the two launches that it
 * stands for: the same bits in what comes out and in the pages. Batches of few and of so many splits that each form of it is met
 * (few splits: clusters; some: the form of many blocks; many: blocks that take stretches of all splits). Older pages are shared by all rows, the one
 * that is written is a row's own. All of it is skipped without a GPU.
 */
#include "kernels/cuda_calls.h"

enum { SHARED = 96, ROWS_MAX = 40, KEYS_MAX = SHARED * 64 };

struct shape {
    const char *name;
    int32_t n_head, n_kv, d, fmt, m, keys, window; /* row i sees keys - 37 i keys, the last `window` of them (0: all) */
    float softcap;
    bool interleaved;
    int32_t spare; /* floats between rows of q, k, v: pieces of 16 bytes or not */
};

/* With 132 multiprocessors; n_split is of the longest row. */
static const struct shape SHAPES[] = {
    { "one row, three splits", 32, 8, 128, CK_KV_F16, 1, 576, 0, 0, false, 0 },
    { "one row, one split", 9, 3, 64, CK_KV_F16, 1, 200, 0, 0, true, 0 },
    { "one row, many splits", 32, 8, 128, CK_KV_F16, 1, 6000, 0, 0, false, 0 },
    { "eight rows", 32, 8, 128, CK_KV_F16, 8, 900, 0, 0, false, 0 },
    { "eight rows of two groups of sixteen", 32, 2, 128, CK_KV_F16, 8, 900, 0, 0, false, 0 },
    { "many rows of two groups of sixteen", 32, 2, 128, CK_KV_F16, 40, 1900, 0, 0, false, 0 },
    { "stream, short rows", 32, 8, 128, CK_KV_F16, 32, 576, 0, 0, false, 0 },
    { "stream, rows of all lengths, a window", 32, 8, 128, CK_KV_F16, 40, 1460, 700, 0, false, 0 },
    { "stream, heads cut between blocks", 32, 8, 128, CK_KV_F16, 9, 5000, 0, 0, false, 0 },
    { "stream, groups of eight", 64, 8, 128, CK_KV_F16, 5, 6140, 0, 0, false, 0 },
    { "stream, heads of 128", 32, 8, 128, CK_KV_F16, 33, 5900, 0, 0, false, 0 },
    { "stream, heads of 64, bf16", 16, 8, 64, CK_KV_BF16, 32, 5000, 0, 0, true, 0 },
    { "stream, heads of 128, bf16", 32, 8, 128, CK_KV_BF16, 32, 5210, 0, 0, false, 0 },
    { "stream, a window and a soft cap", 32, 16, 64, CK_KV_F16, 40, 6140, 3000, 30.0f, false, 0 },
    { "stream, heads of 80", 8, 8, 80, CK_KV_F16, 40, 6001, 0, 0, false, 0 },
    { "stream, rows that no 16 bytes divide", 32, 8, 128, CK_KV_F16, 9, 2500, 0, 0, false, 1 },
    { "stream, heads of 64, several a block", 32, 8, 64, CK_KV_F16, 40, 1000, 0, 0, false, 4 },
};

/* Values below 1 of any sign, in 16 bits. */
static uint16_t page_value(uint32_t *x, int32_t fmt)
{
    uint32_t r = draw(x);
    return fmt == CK_KV_BF16 ? (uint16_t)((r & 0x807fu) | (120u + (r >> 16) % 7u) << 7) : (uint16_t)((r & 0x83ffu) | (8u + (r >> 16) % 7u) << 10);
}

struct data {
    float *in, *rotated, *out, *table;
    uint8_t *pool;
    void *x, *work;
    int32_t *lo, *hi, *index, *table_of, *pages;
    struct ck_attn_unit *units;
    size_t head_bytes, page_bytes, pool_bytes;
    int64_t width, n_q; /* floats of a row of q, k, v; of q alone */
    struct ck_ctx ctx;
    int32_t n_split;
};

static void make_numbers(struct data *t, const struct shape *s)
{
    static int32_t v[4][ROWS_MAX], pages[ROWS_MAX * SHARED];
    struct ck_attn_unit units[ROWS_MAX];
    for (int32_t i = 0; i < s->m; i++) {
        int32_t hi = s->keys - 37 * i > 0 ? s->keys - 37 * i : 1;
        v[0][i] = s->window > 0 && hi > s->window ? hi - s->window : 0;
        v[1][i] = hi;
        v[2][i] = hi - 1;
        v[3][i] = i * SHARED;
        units[i] = (struct ck_attn_unit){ .tok0 = i, .n_tok = 1, .i_table = i * SHARED };
        for (int32_t j = 0; j < SHARED; j++)
            pages[i * SHARED + j] = (int32_t)((size_t)(j == (hi - 1) / 64 ? SHARED + i : j) * (t->page_bytes / 4096));
    }
    put(t->lo, v[0], sizeof v[0]);
    put(t->hi, v[1], sizeof v[1]);
    put(t->index, v[2], sizeof v[2]);
    put(t->table_of, v[3], sizeof v[3]);
    put(t->pages, pages, sizeof pages);
    put(t->units, units, sizeof units);
    t->n_split = (s->keys + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
}

static void data_open(struct data *t, const struct shape *s)
{
    size_t ints = ROWS_MAX * sizeof(int32_t), n_out = (size_t)s->m * (size_t)(s->n_head * s->d);
    t->head_bytes = lib->kv_head_bytes(s->fmt, s->d);
    t->page_bytes = (t->head_bytes * (size_t)s->n_kv + 4095) / 4096 * 4096;
    t->pool_bytes = t->page_bytes * (SHARED + ROWS_MAX);
    t->n_q = (int64_t)s->n_head * s->d;
    t->width = t->n_q + 2 * (int64_t)s->n_kv * s->d + s->spare;
    t->ctx = dev->ctx;
    t->ctx.pdl = 1;
    t->ctx.work_bytes = lib->work_bytes(&t->ctx, ROWS_MAX, s->n_head, s->d, KEYS_MAX);
    t->ctx.work = t->work = room(t->ctx.work_bytes);
    check(lib->fill(t->work, 0, t->ctx.work_bytes, dev->stream), "work");
    t->in = room((size_t)(s->m * t->width) * sizeof(float));
    t->rotated = room(n_out * sizeof(float));
    t->out = room(n_out * sizeof(float));
    t->table = room((size_t)(s->m * s->d) * sizeof(float));
    t->x = room(lib->x_bytes(s->m, t->n_q));
    t->pool = room(t->pool_bytes);
    t->lo = room(ints);
    t->hi = room(ints);
    t->index = room(ints);
    t->table_of = room(ints);
    t->pages = room(ints * SHARED);
    t->units = room(ROWS_MAX * sizeof(struct ck_attn_unit));
    make_numbers(t, s);
}

static void data_close(struct data *t)
{
    void *all[] = { t->in, t->rotated, t->out, t->table, t->x, t->pool, t->work, t->lo, t->hi, t->index, t->table_of, t->pages, t->units };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lib->free(all[i]);
}

/* The launches, `fused` or two; what came out and the pages: [out][linear input][pool], free() it. */
static uint8_t *run(struct data *t, const struct shape *s, const uint8_t *pool, bool fused, size_t *bytes)
{
    size_t n_out = (size_t)(s->m * t->n_q) * sizeof(float), n_x = lib->x_bytes(s->m, t->n_q);
    struct ck_x x = { .v = t->x, .layout = lib->x_layout_for(&t->ctx, s->m), .k = t->n_q, .k_pad = (t->n_q + 63) / 64 * 64, .mul = 1.0f };
    struct cs_rope r = { .q = t->in, .ld_q = t->width, .q_step = s->d, .out = t->rotated, .ld_out = t->n_q, .m = s->m, .n_head = s->n_head,
                         .n_head_kv = s->n_kv, .head_dim = s->d, .q_scale = 0.2f, .k = t->in + t->n_q, .ld_k = t->width,
                         .v = t->in + t->n_q + (int64_t)s->n_kv * s->d, .ld_v = t->width, .table = t->table, .n_rot = s->d, .interleaved = s->interleaved,
                         .pool = t->pool, .pages = t->pages, .table_of = t->table_of, .index = t->index, .kv_format = s->fmt };
    struct ck_attend a = { .q = t->rotated, .ld_q = t->n_q, .q_step = s->d, .out = t->out, .ld_out = t->n_q, .x = &x, .lo = t->lo, .hi = t->hi,
                           .pool = t->pool, .pages = t->pages, .ld_pages = 1, .kv_format = s->fmt, .n_head = s->n_head, .n_head_kv = s->n_kv,
                           .head_dim = s->d, .softcap = s->softcap, .small_units = t->units, .n_small = s->m, .n_split = t->n_split };
    uint8_t *got = malloc(*bytes = n_out + n_x + t->pool_bytes);
    put(t->pool, pool, t->pool_bytes);
    check(lib->fill(t->out, 0xee, n_out, dev->stream), "poison");
    check(lib->fill(t->x, 0xee, n_x, dev->stream), "poison");
    check(fused ? lib->rope_attend(&t->ctx, &r, &a, dev->stream) : lib->rope(&t->ctx, &r, dev->stream), s->name);
    if (!fused) check(lib->attend(&t->ctx, &a, dev->stream), s->name);
    put(got, t->out, n_out);
    put(got + n_out, t->x, n_x);
    put(got + n_out + n_x, t->pool, t->pool_bytes);
    return got;
}

static void check_shape(const struct shape *s)
{
    struct data t;
    size_t bytes, n;
    uint32_t seed = 99;
    data_open(&t, s);
    uint8_t *pool = malloc(t.pool_bytes);
    for (size_t i = 0; i < t.pool_bytes / 2; i++) ((uint16_t *)(void *)pool)[i] = page_value(&seed, s->fmt);
    fill_floats(t.in, (size_t)(s->m * t.width), 5);
    fill_floats(t.table, (size_t)(s->m * s->d), 6);
    uint8_t *want = run(&t, s, pool, false, &bytes);
    for (n = 0; n < (size_t)(s->m * t.n_q) && ((float *)(void *)want)[n] == ((float *)(void *)want)[n]; n++) {}
    if (n < (size_t)(s->m * t.n_q)) fail_msg("%s: output %zu is not a number", s->name, n);
    for (int again = 0; again < 2; again++) { /* counters of the work area come back as they were */
        uint8_t *got = run(&t, s, pool, true, &bytes);
        for (n = 0; memcmp(got, want, bytes) != 0 && got[n] == want[n]; n++) {}
        if (memcmp(got, want, bytes) != 0)
            fail_msg("%s: byte %zu of output, linear input and pages (%zu, %zu and on) differs from two launches'", s->name, n,
                     (size_t)(s->m * t.n_q) * sizeof(float), lib->x_bytes(s->m, t.n_q));
        free(got);
    }
    free(want);
    free(pool);
    data_close(&t);
}

static void test_one_launch_has_the_bits_of_two(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) check_shape(&SHAPES[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_one_launch_has_the_bits_of_two) };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
