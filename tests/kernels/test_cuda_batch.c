/* test_cuda_batch.c: products of some tokens (a batch that decodes) on a card, against the same products of one row at a time: the same
 * bits, for shapes that reach every form of kernels_batch.cu: clusters of eight and of four blocks, blocks of several units, several parts,
 * gate, up and activation; with wgmma and without. All of it is skipped without a GPU.
 */
#include "kernels/cuda_weights.h"

enum { ROWS_MAX = CK_X_ROWS_MAX, PARTS_MAX = 3, GAP = 8 };

static const int32_t WIDTHS[] = { 17, 24, 25, 31, 32, 33, 40, 41, 48, 57, 63, 64 };
static const struct form Q4 = { "4 bit, groups of 64", 4, 64, 0 };

/* With 132 multiprocessors. */
struct shape {
    const char *name;
    int64_t k, n[PARTS_MAX];
};
static const struct shape SHAPES[] = {
    { "clusters of eight", 4160, { 3000, 0, 0 } },
    { "clusters of four", 1088, { 5992, 0, 0 } },
    { "blocks of several units", 576, { 40008, 0, 0 } },
    { "three parts", 2048, { 4096, 1024, 1000 } },
};

struct data {
    struct ck_ctx ctx;
    struct ck_weight w[PARTS_MAX];
    float *in, *y, *before, *bias;
    void *x;
    int64_t k, ld; /* of y: GAP columns behind the last part */
    int32_t n_part;
};

static void data_open(struct data *t, const struct shape *s)
{
    *t = (struct data){ .ctx = dev->ctx, .k = s->k, .ld = GAP };
    t->ctx.pdl = 1;
    for (; t->n_part < PARTS_MAX && s->n[t->n_part] > 0; t->n_part++) {
        t->w[t->n_part] = weight_make(&t->ctx, &Q4, s->n[t->n_part], s->k, 100u + 10u * (uint32_t)t->n_part);
        t->ld += s->n[t->n_part];
    }
    t->in = floats_make((size_t)(ROWS_MAX * t->k), 3);
    t->before = floats_make((size_t)(ROWS_MAX * t->ld), 4);
    t->bias = floats_make((size_t)t->ld, 5);
    t->y = room((size_t)(ROWS_MAX * t->ld) * sizeof *t->y);
    t->x = room(lib->x_bytes(ROWS_MAX, t->k));
}

static void data_close(struct data *t)
{
    void *all[] = { t->in, t->before, t->bias, t->y, t->x };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lib->free(all[i]);
    for (int32_t i = 0; i < t->n_part; i++) lib->free(t->w[i].tiles);
}

/* Rows [row, row + m) of y. Part 1 is scaled; add: what is there already stays in. */
static void product(struct data *t, const struct ck_ctx *ctx, int32_t row, int32_t m, int add, const char *what)
{
    struct ck_part parts[PARTS_MAX] = { 0 };
    struct ck_x x = input_for(ctx, t->x, m, t->k);
    int64_t column = 0;
    for (int32_t i = 0; i < t->n_part; i++) {
        parts[i] = (struct ck_part){ .w = &t->w[i], .y = t->y + row * t->ld + column, .ld_y = t->ld, .bias = t->bias + column,
                                     .scale = i == 1 ? 0.37f : 0.0f, .add = add };
        column += t->w[i].n;
    }
    check(lib->x_write(ctx, t->in + row * t->k, t->k, m, &x, dev->stream), what);
    check(lib->linear(ctx, &x, m, parts, t->n_part, dev->stream), what);
}

static void begin(struct data *t) { check(lib->copy(t->y, t->before, (size_t)(ROWS_MAX * t->ld) * sizeof *t->y, dev->stream), "copy"); }

static void check_widths(struct data *t, const char *name, int add, const float *want, const float *before)
{
    size_t all = (size_t)(ROWS_MAX * t->ld), n;
    for (int32_t wgmma = 0; wgmma <= t->ctx.wgmma; wgmma++)
        for (size_t i = 0; i < sizeof WIDTHS / sizeof WIDTHS[0]; i++) {
            struct ck_ctx ctx = t->ctx;
            ctx.wgmma = wgmma;
            begin(t);
            product(t, &ctx, 0, WIDTHS[i], add, name);
            float *got = fetch(t->y, all * sizeof *got);
            size_t rows = (size_t)(WIDTHS[i] * t->ld);
            n = first_difference(got, want, rows, sizeof *got);
            if (n == rows) n += first_difference(got + rows, before + rows, all - rows, sizeof *got);
            if (n < all)
                fail_msg("%s, %d tokens, wgmma %d, add %d: row %zu, column %zu differs from one row at a time", name, WIDTHS[i], wgmma, add, n / (size_t)t->ld,
                         n % (size_t)t->ld);
            free(got);
        }
}

static void test_batches_have_the_bits_of_single_rows(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        struct data t;
        data_open(&t, &SHAPES[i]);
        size_t bytes = (size_t)(ROWS_MAX * t.ld) * sizeof *t.y;
        float *before = fetch(t.before, bytes);
        for (int add = 0; add < 2; add++) {
            begin(&t);
            for (int32_t row = 0; row < ROWS_MAX; row++) product(&t, &t.ctx, row, 1, add, SHAPES[i].name);
            float *want = fetch(t.y, bytes);
            all_numbers(want, bytes / sizeof *want, SHAPES[i].name);
            check_widths(&t, SHAPES[i].name, add, want, before);
            free(want);
        }
        free(before);
        data_close(&t);
    }
}

/* --- gate, up and activation --- */

struct gated {
    struct ck_ctx ctx;
    struct ck_weight gate, up;
    float *in, *bias[2];
    void *x, *out;
    int64_t k, n, n_pad;
};

/* Of rows [row, row + m): m rows of [n_pad] 16-bit floats from `out` on; what is not written is 0xee. free() it: of ROWS_MAX + 1 rows. */
static uint16_t *gated_run(struct gated *t, const struct ck_ctx *ctx, int32_t row, int32_t m, int kind)
{
    size_t bytes = (size_t)((ROWS_MAX + 1) * t->n_pad) * sizeof(uint16_t);
    struct ck_x x = input_for(ctx, t->x, m, t->k), out = input_for(ctx, t->out, m, t->n);
    out.mul = CUDA_GLU_MUL;
    check(lib->fill(t->out, 0xee, bytes, dev->stream), "poison");
    check(lib->x_write(ctx, t->in + row * t->k, t->k, m, &x, dev->stream), "input");
    check(lib->linear_glu(ctx, &x, m, &t->gate, &t->up, t->bias[0], t->bias[1], kind, &out, dev->stream), "gate and up");
    return fetch(t->out, bytes);
}

static void check_gated(struct gated *t, int kind)
{
    size_t rows = (size_t)t->n_pad, all = (ROWS_MAX + 1) * rows;
    uint16_t *want = malloc(all * sizeof *want);
    memset(want, 0xee, all * sizeof *want);
    for (int32_t row = 0; row < ROWS_MAX; row++) {
        uint16_t *one = gated_run(t, &t->ctx, row, 1, kind);
        memcpy(want + (size_t)row * rows, one, rows * sizeof *one);
        for (size_t i = (size_t)t->n; i < rows; i++) assert_int_equal(one[i], 0);
        free(one);
    }
    for (int32_t wgmma = 0; wgmma <= t->ctx.wgmma; wgmma++)
        for (size_t i = 0; i < sizeof WIDTHS / sizeof WIDTHS[0]; i++) {
            struct ck_ctx ctx = t->ctx;
            ctx.wgmma = wgmma;
            uint16_t *got = gated_run(t, &ctx, 0, WIDTHS[i], kind);
            size_t used = (size_t)WIDTHS[i] * rows, n = first_difference(got, want, used, sizeof *got);
            while (n >= used && n < all && got[n] == 0xeeee) n++;
            if (n < all) fail_msg("kind %d, %d tokens, wgmma %d: row %zu, column %zu differs from one row at a time", kind, WIDTHS[i], wgmma, n / rows, n % rows);
            free(got);
        }
    free(want);
}

static void test_gated_batches_have_the_bits_of_single_rows(void **state)
{
    NEEDS_GPU();
    struct gated t = { .ctx = dev->ctx, .k = 1088, .n = 5000, .n_pad = 5056 };
    t.ctx.pdl = 1;
    t.gate = weight_make(&t.ctx, &Q4, t.n, t.k, 11);
    t.up = weight_make(&t.ctx, &Q4, t.n, t.k, 21);
    t.in = floats_make((size_t)(ROWS_MAX * t.k), 31);
    for (int i = 0; i < 2; i++) t.bias[i] = floats_make((size_t)t.n, 41u + (uint32_t)i);
    t.x = room(lib->x_bytes(ROWS_MAX, t.k));
    t.out = room(lib->x_bytes(2 * ROWS_MAX, t.n));
    for (int kind = 0; kind < 3; kind++) check_gated(&t, kind);
    void *all[] = { t.gate.tiles, t.up.tiles, t.in, t.bias[0], t.bias[1], t.x, t.out };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lib->free(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_batches_have_the_bits_of_single_rows),
                                        cmocka_unit_test(test_gated_batches_have_the_bits_of_single_rows) };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
