/* test_sample.c: the sample step. The filters against a reference that sorts the whole vocabulary; every step of the chain
 * by itself; the same draw on every level. Requirement: ops/sample.h; ENG-080..083, B-028. */
#include "kernels/kt.h"

#include "ops/cpu/sample_int.h"

static struct cpu_kernels level[CPU_LEVEL_COUNT];
static int n_level;

static int setup(void **state)
{
    (void)state;
    n_level = kt_levels(level);
    return 0;
}

#define N_MAX 4096

static const float *sort_x;

static int by_order(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sort_x[i] != sort_x[j]) return sort_x[i] > sort_x[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static bool exempt(const struct sample_params *p, int32_t id)
{
    for (int i = 0; i < p->n_xtc_exempt; i++)
        if (p->xtc_exempt[i] == id) return true;
    return false;
}

/* The four filters in mlx-lm's order on sorted ids, each on the survivors of the one before. */
static void naive_filter(float *x, int64_t n, const struct sample_params *p, bool xtc)
{
    int32_t id[N_MAX];
    int64_t c = 0;
    float max = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] > -INFINITY) id[c++] = (int32_t)i;
        if (x[i] > max) max = x[i];
    }
    sort_x = x;
    qsort(id, (size_t)c, sizeof *id, by_order);
    double total = (double)level[0].vocab_sumexp(x, n, max), above = 0;
    bool *dead = calloc((size_t)n, 1);
    if (p->top_p > 0.0f && p->top_p < 1.0f) {
        int64_t k = 0;
        for (; k < c && (k == 0 || above < (double)p->top_p * total); k++) above += (double)mb_exp(x[id[k]] - max);
        for (int64_t i = k; i < c; i++) dead[id[i]] = true;
        c = k;
    }
    if (p->min_p > 0.0f) {
        float floor = max + mb_log(p->min_p);
        int64_t k = 0, keep = p->min_keep > 1 ? p->min_keep : 1;
        while (k < c && (k < keep || x[id[k]] >= floor)) k++;
        for (int64_t i = k; i < c; i++) dead[id[i]] = true;
        c = k;
    }
    if (xtc) {
        double z = 0;
        int64_t high = 0;
        for (int64_t i = 0; i < c; i++) z += (double)mb_exp(x[id[i]] - max);
        while (high < c && (float)((double)mb_exp(x[id[high]] - max) / z) > p->xtc_threshold) high++;
        for (int64_t i = 0; i < high; i++)
            if (x[id[i]] > x[id[high - 1]] && !exempt(p, id[i])) dead[id[i]] = true;
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < c; i++) {
        if (dead[id[i]]) continue;
        if (p->top_k > 0 && kept >= p->top_k) dead[id[i]] = true;
        kept++;
    }
    for (int64_t i = 0; i < n; i++)
        if (dead[i]) x[i] = -INFINITY;
    free(dead);
}

static void logits_fill(float *x, int64_t n, int kind)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = kind == 0 ? kt_unit() * 10.0f : kind == 1 ? (float)kt_below(6) : kind == 2 ? kt_unit() * 0.01f : kt_value() * 20.0f;
        if (kind != 2 && kt_below(10) == 0) x[i] = -INFINITY;
    }
    if (kind == 3) x[kt_below((int)n)] = 40.0f;
}

static void test_filters_equal_sorting(void **state)
{
    (void)state;
    static float x[N_MAX], want[N_MAX];
    static int32_t order[N_MAX], heap[N_MAX], keep[N_MAX];
    for (int c = 0; c < 3000; c++) {
        int64_t n = 1 + kt_below(c % 3 ? 60 : N_MAX - 1);
        logits_fill(x, n, c % 4);
        x[kt_below((int)n)] = 5.0f;
        int32_t ex[2] = { kt_below((int)n), kt_below((int)n) };
        struct sample_params p = { .top_p = kt_below(2) ? 0.5f + 0.5f * kt_unit() : 0.0f,
                                   .min_p = kt_below(2) ? 0.5f + 0.5f * kt_unit() : 0.0f,
                                   .min_keep = kt_below(4), .top_k = kt_below(2) ? 1 + kt_below(20) : 0,
                                   .xtc_probability = 1.0f, .xtc_threshold = kt_below(3) ? 0.1f : 0.002f,
                                   .xtc_exempt = ex, .n_xtc_exempt = kt_below(3) };
        bool xtc = kt_below(2);
        if (!(p.top_p > 0.0f && p.top_p < 1.0f) && p.min_p <= 0.0f && p.top_k == 0 && !xtc) continue;
        float max = -INFINITY;
        for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
        float z = level[0].vocab_sumexp(x, n, max);
        memcpy(want, x, sizeof *x * (size_t)n);
        naive_filter(want, n, &p, xtc);
        sample_filter(x, n, max, z, &p, xtc, order, heap, keep);
        /* With XTC after top-p or min-p the reference adds the same mass in the same order; alone it uses another sum. */
        for (int64_t i = 0; i < n; i++)
            if (!kt_same(want[i], x[i]))
                fail_msg("case %d id %d: want %g got %g (top_p %g min_p %g keep %d k %d xtc %d)", c, (int)i, (double)want[i],
                         (double)x[i], (double)p.top_p, (double)p.min_p, p.min_keep, p.top_k, xtc);
    }
}

struct fixture {
    struct sample_params p;
    struct sample_pos pos;
    int32_t history[64];
};

static void fixture_init(struct fixture *f)
{
    memset(f, 0, sizeof *f);
    f->pos.params = &f->p;
    f->pos.history = f->history;
    f->pos.target = -1;
    f->p.noise.seed = 7;
}

static struct draw draw(const struct cpu_kernels *t, const float *x, int64_t n, const struct fixture *f)
{
    struct kt_buf y = kt_alloc((size_t)n * 4), scratch = kt_alloc(cpu_sample_scratch_bytes(n));
    struct draw d;
    memcpy(y.p, x, (size_t)n * 4);
    memset(&d, 0xee, sizeof d);
    cpu_sample(t, (float *)y.p, n, &f->pos, scratch.p, &d);
    kt_free(&y);
    kt_free(&scratch);
    return d;
}

static double naive_logprob(const float *x, int64_t n, int32_t id)
{
    double max = -INFINITY, s = 0;
    for (int64_t i = 0; i < n; i++) max = (double)x[i] > max ? (double)x[i] : max;
    for (int64_t i = 0; i < n; i++) s += exp((double)x[i] - max);
    return (double)x[id] - max - log(s);
}

static void test_greedy_and_logprobs(void **state)
{
    (void)state;
    float x[10] = { 1, 5, 2, 5, 0, -1, 3, 2, 9, 9 };
    struct fixture f;
    fixture_init(&f);
    f.p.n_vocab_live = 8; /* 8 and 9 are padding of the head: in the sum, never drawn */
    f.p.n_top = 3;
    f.pos.target = 6;
    for (int l = 0; l < n_level; l++) {
        struct draw d = draw(&level[l], x, 10, &f);
        assert_int_equal(d.id, 1); /* tie with 3: lowest id */
        assert_int_equal(d.argmax, 1);
        assert_true(fabs((double)d.logprob - naive_logprob(x, 10, 1)) < 1e-6);
        assert_true(d.logprob == d.argmax_logprob);
        assert_true(fabs((double)d.target_logprob - naive_logprob(x, 10, 6)) < 1e-6);
        assert_int_equal(d.n_top, 3);
        assert_int_equal(d.top_id[0], 1);
        assert_int_equal(d.top_id[1], 3);
        assert_int_equal(d.top_id[2], 6);
        assert_true(d.top_logprob[0] == d.logprob);
    }
}

/* bias, then repetition, presence, frequency; each in its own window. */
static void test_penalties(void **state)
{
    (void)state;
    float x[6] = { 2.0f, -2.0f, 4.0f, 1.0f, 0.5f, 3.0f };
    struct fixture f;
    fixture_init(&f);
    static const int32_t h[] = { 5, 0, 1, 0, 2, 0, 99, -3 };
    memcpy(f.history, h, sizeof h);
    f.pos.n_history = 8;
    static const struct logit_bias bias[] = { { 3, 1.0f }, { 77, 5.0f } };
    f.p.bias = bias;
    f.p.n_bias = 2;
    f.p.repetition_penalty = 2.0f;
    f.p.repetition_context = 6; /* 1 0 2 0 and the two ids that do not exist */
    f.p.presence_penalty = 0.25f;
    f.p.presence_context = 0; /* all */
    f.p.frequency_penalty = 0.5f;
    f.p.frequency_context = 7;
    f.p.n_top = 6;
    float want[6] = { 2.0f / 2 - 0.25f - 0.5f * 3, -2.0f * 2 - 0.25f - 0.5f, 4.0f / 2 - 0.25f - 0.5f, 2.0f, 0.5f, 3.0f - 0.25f };
    f.pos.target = 0;
    struct draw d = draw(&level[n_level - 1], x, 6, &f);
    assert_int_equal(d.id, 5);
    assert_int_equal(d.n_top, 6);
    for (int i = 0; i < 6; i++) assert_true(fabs((double)d.top_logprob[i] - naive_logprob(want, 6, d.top_id[i])) < 1e-6);
    static const int32_t order[] = { 5, 3, 2, 4, 0, 1 };
    for (int i = 0; i < 6; i++) assert_int_equal(d.top_id[i], order[i]);
}

static void test_masks(void **state)
{
    (void)state;
    float x[70];
    for (int i = 0; i < 70; i++) x[i] = (float)i;
    struct fixture f;
    fixture_init(&f);
    uint32_t mask[3] = { 1u << 5, 1u << 3, 0 }; /* ids 5 and 35 */
    f.pos.mask = mask;
    struct draw d = draw(&level[0], x, 70, &f);
    assert_int_equal(d.id, 35);
    assert_int_equal(d.argmax, 69); /* without the mask */
    assert_true(fabs((double)d.logprob - naive_logprob(x, 70, 35)) < 1e-5);
    static const int32_t ends[] = { 35, 35, 400 };
    f.p.end_ids = ends;
    f.p.n_end_ids = 3;
    f.p.min_tokens = 2;
    f.pos.n_drawn = 1;
    assert_int_equal(draw(&level[0], x, 70, &f).id, 5);
    f.pos.n_drawn = 2;
    assert_int_equal(draw(&level[0], x, 70, &f).id, 35);
    f.p.ignore_eos = true;
    assert_int_equal(draw(&level[0], x, 70, &f).id, 5);
    mask[0] = 0; /* the grammar leaves the end alone: it wins */
    d = draw(&level[0], x, 70, &f);
    assert_int_equal(d.id, 35);
    assert_true(fabs((double)d.logprob - naive_logprob(x, 70, 35)) < 1e-5);
    mask[1] = 0;
    d = draw(&level[0], x, 70, &f);
    assert_int_equal(d.id, -1);
    assert_true(d.no_candidate && !d.non_finite);
    assert_int_equal(d.argmax, 69);
}

static void test_b028_non_finite(void **state)
{
    (void)state;
    float x[40] = { 0 };
    struct fixture f;
    fixture_init(&f);
    f.p.temperature = 1.0f;
    for (int l = 0; l < n_level; l++)
        for (int c = 0; c < 3; c++) {
            x[17] = c == 0 ? NAN : c == 1 ? INFINITY : -INFINITY;
            struct draw d = draw(&level[l], x, 40, &f);
            assert_int_equal(d.non_finite, c < 2);
            assert_int_equal(d.id >= 0, c == 2);
        }
}

/* Random parameters: the same draw on every level, inside the set that the filters leave, with its true log-probability. */
static void test_draw_levels(void **state)
{
    (void)state;
    static float x[N_MAX];
    for (int c = 0; c < 400; c++) {
        int64_t n = 40 + kt_below(N_MAX - 40);
        logits_fill(x, n, c % 4);
        struct fixture f;
        fixture_init(&f);
        f.p.noise = (struct noise_key){ kt_u32(), kt_u32() & 3, 0 };
        f.pos.index = (int32_t)(kt_u32() & 0xffff);
        f.p.temperature = kt_below(5) == 0 ? 0.0f : 0.1f + fabsf(kt_unit()) * 2.0f;
        f.p.top_p = kt_below(2) ? 0.9f : 1.0f;
        f.p.min_p = kt_below(2) ? 0.05f : 0.0f;
        f.p.top_k = kt_below(2) ? 40 : 0;
        f.p.xtc_probability = kt_below(2) ? 0.5f : 0.0f;
        f.p.xtc_threshold = 0.05f;
        f.p.hlg = kt_below(3) == 0;
        f.p.hlg_width = f.p.hlg_shoulder = 4.0f;
        f.p.hlg_toe = f.p.hlg_pivot_offset = 6.0f;
        f.p.n_top = kt_below(12);
        struct draw want = draw(&level[0], x, n, &f);
        assert_true(want.id >= 0 && x[want.id] > -INFINITY);
        assert_true(fabs((double)want.logprob - naive_logprob(x, n, want.id)) < 1e-4);
        for (int l = 1; l < n_level; l++) {
            struct draw got = draw(&level[l], x, n, &f);
            if (memcmp(&want, &got, sizeof got) != 0) fail_msg("%s: case %d: id %d or %d", level[l].level, c, want.id, got.id);
        }
        f.p.n_top = 0;
        f.p.no_logprobs = true; /* the same id without the sum that nobody asked for */
        struct draw quiet = draw(&level[n_level - 1], x, n, &f);
        assert_int_equal(quiet.id, want.id);
        assert_int_equal(quiet.argmax, want.argmax);
        assert_true(quiet.logprob == 0.0f && quiet.argmax_logprob == 0.0f);
    }
}

/* Survivors of the filters drawn one by one from a list, and by the vector kernel over the filtered row: the same id. */
static void test_draw_listed(void **state)
{
    (void)state;
    static float x[N_MAX], y[N_MAX];
    static int32_t order[N_MAX], heap[N_MAX], keep[N_MAX];
    const struct cpu_kernels *t = &level[n_level - 1];
    for (int c = 0; c < 400; c++) {
        int64_t n = 600 + kt_below(N_MAX - 600), at;
        float max;
        bool finite;
        struct fixture f;
        logits_fill(x, n, c % 4);
        fixture_init(&f);
        f.p.noise = (struct noise_key){ kt_u32(), kt_u32() & 3, 0 };
        f.pos.index = (int32_t)(kt_u32() & 0xffff);
        f.p.temperature = 0.5f + fabsf(kt_unit());
        f.p.top_k = 1 + kt_below(500); /* on both sides of the length of a list */
        memcpy(y, x, (size_t)n * sizeof *x);
        t->vocab_max(y, n, &max, &at, &finite);
        sample_filter(y, n, max, 1.0f, &f.p, false, order, heap, keep);
        int64_t want = t->vocab_gumbel(y, n, 1.0f / f.p.temperature, &f.p.noise, (uint32_t)f.pos.index, NOISE_DRAW);
        assert_int_equal(draw(t, x, n, &f).id, want);
    }
}

/* ENG-080, ENG-081: a monotone curve that leaves the middle alone, compresses the top and lifts the tail; its effect is
 * seen through frequencies. Off by default: same draws as without. */
static void test_eng080_hlg(void **state)
{
    (void)state;
    float x[3] = { 20.0f, 12.0f, 0.0f }; /* pivot 14: top is 6 above, tail 14 below */
    struct fixture f;
    fixture_init(&f);
    f.p.temperature = 4.0f;
    f.p.hlg_width = f.p.hlg_shoulder = 4.0f;
    f.p.hlg_toe = f.p.hlg_pivot_offset = 6.0f;
    int count[2][3] = { { 0 } };
    for (int on = 0; on < 2; on++)
        for (int i = 0; i < 20000; i++) {
            f.p.hlg = on;
            f.pos.index = i;
            count[on][draw(&level[n_level - 1], x, 3, &f).id]++;
        }
    double y[3] = { 14.0 + 4.0 + 4.0 * log(1.0 + 2.0 / 4.0), 12.0, 14.0 - (4.0 + 6.0 * log(1.0 + 10.0 / 6.0)) };
    for (int on = 0; on < 2; on++) {
        double z = 0, chi = 0;
        for (int i = 0; i < 3; i++) z += exp((on ? y[i] : (double)x[i]) / 4.0);
        for (int i = 0; i < 3; i++) {
            double want = 20000.0 * exp((on ? y[i] : (double)x[i]) / 4.0) / z;
            chi += (count[on][i] - want) * (count[on][i] - want) / want;
        }
        assert_true(chi < 13.8); /* 2 degrees, p = 0.001, fixed seed */
    }
    assert_true(count[1][1] > count[0][1] && count[1][2] > count[0][2]);
}

/* XTC hits about as often as asked and strikes the top id. */
static void test_xtc_rate(void **state)
{
    (void)state;
    float x[4] = { 3.0f, 3.0f, 2.5f, -5.0f };
    struct fixture f;
    fixture_init(&f);
    f.p.temperature = 1.0f;
    f.p.xtc_probability = 0.4f;
    f.p.xtc_threshold = 0.1f;
    f.p.top_k = 1; /* after XTC: what is left of the top three is id 2 */
    int hit = 0;
    for (int i = 0; i < 20000; i++) {
        f.pos.index = i;
        int32_t id = draw(&level[n_level - 1], x, 4, &f).id;
        assert_true(id == 0 || id == 2);
        hit += id == 2;
    }
    assert_true(abs(hit - 8000) < 250);
}

static void bench(void)
{
    int64_t n = 151936;
    struct kt_buf x = kt_alloc((size_t)n * 4), y = kt_alloc((size_t)n * 4), scratch = kt_alloc(cpu_sample_scratch_bytes(n));
    for (int64_t i = 0; i < n; i++) ((float *)x.p)[i] = kt_unit() * 3.0f + kt_unit() * 3.0f + kt_unit() * 3.0f;
    ((float *)x.p)[77] = 14.0f;
    for (int mode = 0; mode < 4; mode++)
        for (int l = 0; l < n_level; l++) {
            struct fixture f;
            struct draw d;
            double t;
            fixture_init(&f);
            f.p.temperature = mode == 0 ? 0.0f : 1.0f;
            f.p.top_p = mode == 2 ? 0.9f : 1.0f;
            f.p.top_k = mode == 3 ? 40 : 0;
            KT_TIME(t, (memcpy(y.p, x.p, (size_t)n * 4), cpu_sample(&level[l], (float *)y.p, n, &f.pos, scratch.p, &d)));
            printf("%-9s sample %s, %d ids: %.0f us\n", level[l].level,
                   mode == 0 ? "greedy" : mode == 1 ? "plain" : mode == 2 ? "top_p" : "top_k", (int)n, t * 1e6);
        }
    kt_free(&x);
    kt_free(&y);
    kt_free(&scratch);
}

int main(int argc, char **argv)
{
    kt_seed();
    if (kt_bench_asked(argc, argv)) {
        setup(NULL);
        bench();
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filters_equal_sorting), cmocka_unit_test(test_greedy_and_logprobs),
        cmocka_unit_test(test_penalties),             cmocka_unit_test(test_masks),
        cmocka_unit_test(test_b028_non_finite),       cmocka_unit_test(test_draw_levels),
        cmocka_unit_test(test_draw_listed),
        cmocka_unit_test(test_eng080_hlg),            cmocka_unit_test(test_xtc_rate),
    };
    return cmocka_run_group_tests_name("sample", tests, setup, NULL);
}
