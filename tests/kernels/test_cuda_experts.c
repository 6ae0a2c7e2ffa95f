/* test_cuda_experts.c: the products of a mixture of experts on a card (all experts in one launch, listed by the router there) against those of
 * one expert and one token at a time: the same bits in what each slot gives and in the sum over a token's experts. For every form of the
 * weights, shapes that reach the long loops (rings that go round, leaves of uneven length, blocks of many units), and batches from one
 * token to a prompt, of which some experts get many and one gets none. All of it is skipped without a GPU.
 */
#include "kernels/cuda_weights.h"

enum { TOKENS_MAX = 300, SLOTS_MAX = TOKENS_MAX * 8 };

static const struct form FORMS[] = {
    { "4 bit, groups of 64", 4, 64, 0 }, { "4 bit, groups of 32", 4, 32, 0 },   { "8 bit, groups of 64", 8, 64, 0 },
    { "8 bit, groups of 32", 8, 32, 0 }, { "8 bit, groups of 16", 8, 16, 1 }, { "bfloat16", 0, 0, 0 },
};

struct mix {
    const char *name;
    int64_t k, width;
    int32_t n_expert, top_k, kind;
    bool bias, shared, add;
};
static const struct mix MIXES[] = {
    { "one k tile", 64, 64, 4, 1, 0, false, false, false },
    { "leaves of uneven length", 1088, 192, 8, 2, 1, true, false, true },
    { "an odd k tile at the end", 4160, 320, 16, 4, 2, true, true, false },
    { "many units a block", 2048, 768, 32, 8, 0, false, true, true },
};

static const int32_t BATCHES[] = { 1, 2, 3, 8, 17, 24, 33, 48, 64, 65, 150, TOKENS_MAX };

struct data {
    const struct mix *s;
    struct ck_ctx ctx;
    struct ck_weight gate, up, down;
    float *in, *logits, *route, *y, *out, *before, *shared, *bias_gate, *bias_up, *bias_down;
    void *x, *x_pieces, *hidden;
    struct ck_expert_list list;
};

/* Two experts are liked by most, the last by nobody. */
static float *logits_make(const struct mix *s)
{
    size_t n_expert = (size_t)s->n_expert, n = TOKENS_MAX * n_expert;
    float *h = floats(n, 77);
    for (size_t i = 0; i < n; i++) h[i] += i % n_expert < 2 ? 1.0f : i % n_expert + 1 == n_expert ? -8.0f : 0.0f;
    float *p = on_device(h, n * sizeof *h);
    free(h);
    return p;
}

static void lists_open(struct data *t)
{
    const struct mix *s = t->s;
    size_t n_piece = 0;
    for (size_t i = 0; i < sizeof BATCHES / sizeof BATCHES[0]; i++) {
        size_t n = lib->experts_pieces(BATCHES[i], s->top_k, s->n_expert);
        n_piece = n > n_piece ? n : n_piece;
    }
    t->list.pieces = room(n_piece * sizeof *t->list.pieces);
    t->list.slots = room(SLOTS_MAX * sizeof *t->list.slots);
    t->list.n_piece = room(sizeof *t->list.n_piece);
    t->list.n_done = room(sizeof *t->list.n_done);
    check(lib->fill(t->list.n_done, 0, sizeof *t->list.n_done, dev->stream), "counter");
}

static void data_open(struct data *t, const struct mix *s, const struct form *f)
{
    size_t rows, all = (size_t)(TOKENS_MAX * s->k);
    *t = (struct data){ .s = s, .ctx = dev->ctx };
    t->ctx.pdl = 1;
    rows = lib->experts_rows(&t->ctx, TOKENS_MAX, s->top_k, s->n_expert);
    t->gate = weight_make(&t->ctx, f, s->n_expert * s->width, s->k, 11);
    t->up = weight_make(&t->ctx, f, s->n_expert * s->width, s->k, 21);
    t->down = weight_make(&t->ctx, f, s->n_expert * s->k, s->width, 31);
    t->in = floats_make(all, 41);
    t->before = floats_make(all, 42);
    t->shared = floats_make(all, 43);
    t->bias_gate = floats_make((size_t)(s->n_expert * s->width), 44);
    t->bias_up = floats_make((size_t)(s->n_expert * s->width), 45);
    t->bias_down = floats_make((size_t)(s->n_expert * s->k), 46);
    t->logits = logits_make(s);
    t->route = room((size_t)(TOKENS_MAX * 2 * s->top_k) * sizeof(float));
    t->out = room(all * sizeof(float));
    t->y = room(all * (size_t)s->top_k * sizeof(float));
    t->x = room(lib->x_bytes(TOKENS_MAX, s->k));
    t->x_pieces = room(lib->x_bytes((int)rows, s->k));
    t->hidden = room(lib->x_bytes((int)rows, s->width));
    lists_open(t);
}

static void data_close(struct data *t)
{
    void *all[] = { t->gate.tiles, t->up.tiles, t->down.tiles, t->in, t->before, t->shared, t->bias_gate, t->bias_up, t->bias_down, t->logits, t->route, t->out,
                    t->y, t->x, t->x_pieces, t->hidden, t->list.pieces, t->list.slots, t->list.n_piece, t->list.n_done };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) lib->free(all[i]);
}

/* The router's choice for the first m tokens, and who goes where. */
static void choose(struct data *t, int32_t m)
{
    const struct mix *s = t->s;
    t->list.most = lib->experts_most(&t->ctx, m, s->top_k, s->n_expert);
    struct cs_route a = { .in = t->logits, .ld_in = s->n_expert, .out = t->route, .ld_out = 2 * s->top_k, .m = m, .n_expert = s->n_expert, .top_k = s->top_k,
                          .kind = CS_ROUTE_SOFTMAX_CHOSEN, .n_group = 1, .list = t->list };
    check(lib->route(&t->ctx, &a, dev->stream), "route");
}

/* An expert's matrix in its stack: n rows. */
static struct ck_weight matrix_of(const struct ck_weight *stack, int64_t expert, int64_t n)
{
    struct ck_weight w = *stack;
    w.n = n;
    w.tiles = (uint8_t *)stack->tiles + expert * (n / 16) * ((stack->k + 63) / 64) * lib->tile_bytes(stack);
    w.row_scale = stack->row_scale + expert * n;
    return w;
}

/* --- one expert and one token at a time --- */

static void one_slot(struct data *t, const struct ck_x *x, int64_t expert, int64_t slot)
{
    const struct mix *s = t->s;
    struct ck_weight gate = matrix_of(&t->gate, expert, s->width), up = matrix_of(&t->up, expert, s->width), down = matrix_of(&t->down, expert, s->k);
    struct ck_x hidden = input_for(&t->ctx, t->hidden, 1, s->width);
    struct ck_part part = { .w = &down, .y = t->y + slot * s->k, .ld_y = s->k, .bias = s->bias ? t->bias_down + expert * s->k : NULL };
    hidden.mul = CUDA_GLU_MUL;
    check(lib->linear_glu(&t->ctx, x, 1, &gate, &up, s->bias ? t->bias_gate + expert * s->width : NULL, s->bias ? t->bias_up + expert * s->width : NULL,
                          s->kind, &hidden, dev->stream), s->name);
    check(lib->linear(&t->ctx, &hidden, 1, &part, 1, dev->stream), s->name);
}

/* What every slot gives, [TOKENS_MAX * top_k][k]; free() it. */
static float *slots_singly(struct data *t, const float *route)
{
    const struct mix *s = t->s;
    for (int64_t token = 0; token < TOKENS_MAX; token++) {
        struct ck_x x = input_for(&t->ctx, t->x, 1, s->k);
        check(lib->x_write(&t->ctx, t->in + token * s->k, s->k, 1, &x, dev->stream), "input");
        for (int32_t j = 0; j < s->top_k; j++) one_slot(t, &x, (int64_t)route[token * 2 * s->top_k + j], token * s->top_k + j);
    }
    return fetch(t->y, (size_t)(TOKENS_MAX * s->top_k * s->k) * sizeof(float));
}

/* The sums as kernels.h says (struct ck_expert_sum); free() it. */
static float *sums_of(struct data *t, const float *route, const float *y)
{
    const struct mix *s = t->s;
    size_t all = (size_t)(TOKENS_MAX * s->k);
    float *out = fetch(t->before, all * sizeof *out), *shared = fetch(t->shared, all * sizeof *shared);
    for (int64_t token = 0; token < TOKENS_MAX; token++)
        for (int64_t i = 0; i < s->k; i++) {
            float acc = 0.0f;
            for (int32_t j = 0; j < s->top_k; j++) {
                float product = route[token * 2 * s->top_k + s->top_k + j] * y[(token * s->top_k + j) * s->k + i];
                acc = acc + product;
            }
            if (s->shared) acc = acc + shared[token * s->k + i];
            out[token * s->k + i] = s->add ? out[token * s->k + i] + acc : acc;
        }
    free(shared);
    return out;
}

/* --- all in one launch --- */

/* m tokens: y where slots are not summed with their products, and the sums. */
static void run_mixture(struct data *t, int32_t m)
{
    const struct mix *s = t->s;
    struct ck_experts e = { .list = t->list, .m = m, .top_k = s->top_k, .n_expert = s->n_expert };
    struct ck_expert_sum sum = { .route = t->route, .ld_route = 2 * s->top_k, .shared = s->shared ? t->shared : NULL, .ld_shared = s->k, .out = t->out,
                                 .ld_out = s->k, .add = s->add };
    struct ck_x x = input_for(&t->ctx, t->x, m, s->k), hidden = input_for(&t->ctx, t->hidden, 1, s->width);
    const float *bias_down = s->bias ? t->bias_down : NULL;
    check(lib->x_write(&t->ctx, t->in, s->k, m, &x, dev->stream), "input");
    if (e.list.most == CK_PIECE_TILE) {
        struct ck_x pieces = x;
        pieces.v = t->x_pieces;
        pieces.layout = CK_X_PIECES;
        check(lib->gather_pieces(&t->ctx, &e, &x, &pieces, dev->stream), "pieces");
        x = pieces;
    }
    hidden.layout = x.layout;
    hidden.mul = CUDA_GLU_MUL;
    check(lib->experts_glu(&t->ctx, &e, &x, &t->gate, &t->up, s->width, s->bias ? t->bias_gate : NULL, s->bias ? t->bias_up : NULL, s->kind, &hidden, dev->stream),
          s->name);
    if (e.list.most == 1) {
        check(lib->experts_down_sum(&t->ctx, &e, &hidden, &t->down, s->k, bias_down, &sum, dev->stream), s->name);
        return;
    }
    check(lib->experts_down(&t->ctx, &e, &hidden, &t->down, s->k, bias_down, t->y, s->k, dev->stream), s->name);
    check(lib->experts_sum(&t->ctx, &sum, t->y, s->k, m, s->top_k, (int32_t)s->k, dev->stream), s->name);
}

static void check_batch(struct data *t, const char *form, int32_t m, const float *want_y, const float *want, const float *before)
{
    const struct mix *s = t->s;
    size_t all = (size_t)(TOKENS_MAX * s->k), used = (size_t)(m * s->k), k = (size_t)s->k, n;
    check(lib->fill(t->y, 0xee, all * (size_t)s->top_k * sizeof(float), dev->stream), "poison");
    check(lib->copy(t->out, t->before, all * sizeof(float), dev->stream), "copy");
    choose(t, m);
    run_mixture(t, m);
    float *got = fetch(t->out, all * sizeof *got);
    if (t->list.most != 1) {
        float *y = fetch(t->y, used * (size_t)s->top_k * sizeof *y);
        n = first_difference(y, want_y, used * (size_t)s->top_k, sizeof *y);
        if (n < used * (size_t)s->top_k)
            fail_msg("%s, %s, %d tokens, pieces of %d: slot %zu, row %zu differs from its expert's alone", form, s->name, m, t->list.most, n / k, n % k);
        free(y);
    }
    n = first_difference(got, want, used, sizeof *got);
    if (n == used) n += first_difference(got + used, before + used, all - used, sizeof *got);
    if (n < all) fail_msg("%s, %s, %d tokens, pieces of %d: token %zu, column %zu of the sums differs", form, s->name, m, t->list.most, n / k, n % k);
    free(got);
}

static void check_mix(const struct mix *s, const struct form *f)
{
    struct data t;
    data_open(&t, s, f);
    choose(&t, TOKENS_MAX);
    float *route = fetch(t.route, (size_t)(TOKENS_MAX * 2 * s->top_k) * sizeof *route), *y = slots_singly(&t, route), *want = sums_of(&t, route, y);
    float *before = fetch(t.before, (size_t)(TOKENS_MAX * s->k) * sizeof *before);
    all_numbers(y, (size_t)(TOKENS_MAX * s->top_k * s->k), s->name);
    for (size_t i = 0; i < sizeof BATCHES / sizeof BATCHES[0]; i++) check_batch(&t, f->name, BATCHES[i], y, want, before);
    free(route);
    free(y);
    free(want);
    free(before);
    data_close(&t);
}

static void test_a_mixture_has_the_bits_of_its_experts_alone(void **state)
{
    NEEDS_GPU();
    for (size_t f = 0; f < sizeof FORMS / sizeof FORMS[0]; f++)
        for (size_t i = 0; i < sizeof MIXES / sizeof MIXES[0]; i++) check_mix(&MIXES[i], &FORMS[f]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_a_mixture_has_the_bits_of_its_experts_alone) };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
