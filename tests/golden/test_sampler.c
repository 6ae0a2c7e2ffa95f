/* test_sampler.c: the sampler chain against mlx-lm's sample_utils (tests/golden/sampler): survivors of every filter and
 * chain of filters, and log-probabilities after the logits processors, on every CPU level. */
#include "kernels/kt.h"

#include "base/json.h"
#include "ops/cpu/sample_int.h"

#define N_VOCAB 24
#define FILE_NAME "tests/golden/sampler/sampler.json"

static json_t *golden;
static struct cpu_kernels level[CPU_LEVEL_COUNT];
static int n_level;

static int setup(void **state)
{
    mb_error err;
    n_level = kt_levels(level);
    return json_read_file(&golden, FILE_NAME, 1 << 20, &err) == MB_OK ? 0 : -1;
}

static int teardown(void **state)
{
    json_decref(golden);
    return 0;
}

static void vector_read(const json_t *list, float *x)
{
    assert_int_equal(json_array_size(list), N_VOCAB);
    for (size_t i = 0; i < N_VOCAB; i++) {
        const json_t *v = json_array_get(list, i);
        x[i] = json_is_null(v) ? -INFINITY : (float)json_number_value(v);
    }
}

static int32_t ids_read(const json_t *list, int32_t *ids, size_t max)
{
    assert_true(json_array_size(list) <= max);
    for (size_t i = 0; i < json_array_size(list); i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (int32_t)json_array_size(list);
}

static float number(const json_t *params, const char *name, double dflt)
{
    const json_t *v = json_object_get(params, name);
    return (float)(v ? json_number_value(v) : dflt);
}

/* --- filters --- */

static void filter_params(const json_t *params, struct sample_params *p, int32_t exempt[N_VOCAB])
{
    memset(p, 0, sizeof *p);
    p->temperature = 4.0f; /* filters look at untempered probabilities: any temperature leaves the same survivors */
    p->top_p = number(params, "top_p", 0);
    p->min_p = number(params, "min_p", 0);
    p->min_keep = (int32_t)number(params, "min_keep", 1);
    p->top_k = (int32_t)number(params, "top_k", 0);
    p->xtc_probability = number(params, "xtc_probability", 0);
    p->xtc_threshold = number(params, "xtc_threshold", 0);
    p->xtc_exempt = exempt;
    p->n_xtc_exempt = ids_read(json_object_get(params, "xtc_exempt"), exempt, N_VOCAB);
    p->n_vocab_live = N_VOCAB;
}

static bool kept(const json_t *c, int32_t id)
{
    const json_t *keep = json_object_get(c, "keep");
    for (size_t i = 0; i < json_array_size(keep); i++)
        if (json_integer_value(json_array_get(keep, i)) == id) return true;
    return false;
}

/* mlx-lm keeps every id that ties with the last one of the top-p set; here the order (logit descending, id ascending)
 * decides (docs/numerics-math.md section 5), so that a higher id may be missing where a lower one of the same value stays. */
static bool tie_cut_by_top_p(const json_t *c, const float *x, const float *y, int id)
{
    if (!json_object_get(json_object_get(c, "params"), "top_p")) return false;
    for (int i = 0; i < id; i++)
        if (x[i] == x[id] && y[i] > -INFINITY) return true;
    return false;
}

static void check_survivors(const struct cpu_kernels *t, const json_t *c, const struct sample_params *p, const float *x)
{
    float y[N_VOCAB], max = -INFINITY;
    int32_t order[N_VOCAB], heap[N_VOCAB], keep[N_VOCAB];
    memcpy(y, x, sizeof y);
    for (int i = 0; i < N_VOCAB; i++) max = x[i] > max ? x[i] : max;
    sample_filter(y, N_VOCAB, max, t->vocab_sumexp(x, N_VOCAB, max), p, p->xtc_probability > 0, order, heap, keep);
    for (int i = 0; i < N_VOCAB; i++) {
        bool want = kept(c, i) && x[i] > -INFINITY, got = y[i] > -INFINITY;
        if (want != got && !(want && tie_cut_by_top_p(c, x, y, i)))
            fail_msg("%s: id %d %s: %s", t->level, i, got ? "survived" : "was dropped", json_dumps(c, JSON_COMPACT));
    }
}

/* Through the whole step: what is drawn is one of the survivors, with the log-probability of before the filters. */
static void check_draws(const struct cpu_kernels *t, const json_t *c, struct sample_params *p, const float *x,
                        const float *logprobs)
{
    struct sample_pos pos = { .params = p, .target = -1 };
    for (uint64_t seed = 0; seed < 24; seed++) {
        struct kt_buf y = kt_alloc(sizeof(float) * N_VOCAB), scratch = kt_alloc(cpu_sample_scratch_bytes(N_VOCAB));
        struct draw d;
        p->noise.seed = seed;
        memcpy(y.p, x, sizeof(float) * N_VOCAB);
        cpu_sample(t, (float *)y.p, N_VOCAB, &pos, scratch.p, &d);
        assert_true(d.id >= 0 && d.id < N_VOCAB);
        if (!kept(c, d.id)) fail_msg("%s: drew %d: %s", t->level, (int)d.id, json_dumps(c, JSON_COMPACT));
        assert_true(fabsf(d.logprob - logprobs[d.id]) <= 2e-5f + 1e-6f * fabsf(logprobs[d.id]));
        kt_free(&y);
        kt_free(&scratch);
    }
}

/* ENG-059, ENG-061, ENG-062, ENG-063, ENG-072: top-p, min-p, XTC and top-k keep what mlx-lm keeps, alone and in chains. */
static void test_eng059_filters(void **state)
{
    const json_t *filters = json_object_get(golden, "filters");
    int n_checked = 0;
    for (size_t i = 0; i < json_array_size(filters); i++) {
        const json_t *c = json_array_get(filters, i);
        const char *name = json_string_value(json_object_get(c, "vector"));
        struct sample_params p;
        int32_t exempt[N_VOCAB];
        float x[N_VOCAB], logprobs[N_VOCAB];
        if (json_is_true(json_object_get(c, "near_edge"))) continue;
        vector_read(json_object_get(json_object_get(golden, "vectors"), name), x);
        vector_read(json_object_get(json_object_get(golden, "logprobs"), name), logprobs);
        filter_params(json_object_get(c, "params"), &p, exempt);
        for (int l = 0; l < n_level; l++) {
            check_survivors(&level[l], c, &p, x);
            check_draws(&level[l], c, &p, x, logprobs);
        }
        n_checked++;
    }
    assert_true(n_checked > 200);
}

/* --- processors --- */

static int32_t bias_read(const json_t *map, struct logit_bias *bias)
{
    int32_t n = 0;
    for (int32_t id = 0; id < N_VOCAB; id++) { /* sorted by id */
        char key[16];
        snprintf(key, sizeof key, "%d", (int)id);
        const json_t *v = json_object_get(map, key);
        if (v) bias[n++] = (struct logit_bias){ id, (float)json_number_value(v) };
    }
    assert_int_equal(n, json_object_size(map));
    return n;
}

static void processor_params(const json_t *params, struct sample_params *p, struct logit_bias *bias)
{
    memset(p, 0, sizeof *p);
    p->bias = bias;
    p->n_bias = bias_read(json_object_get(params, "logit_bias"), bias);
    p->repetition_penalty = number(params, "repetition_penalty", 0);
    p->repetition_context = (int32_t)number(params, "repetition_context_size", 20);
    p->presence_penalty = number(params, "presence_penalty", 0);
    p->presence_context = (int32_t)number(params, "presence_context_size", 20);
    p->frequency_penalty = number(params, "frequency_penalty", 0);
    p->frequency_context = (int32_t)number(params, "frequency_context_size", 20);
    p->n_vocab_live = N_VOCAB;
}

static void check_processor(const struct cpu_kernels *t, const json_t *c)
{
    struct logit_bias bias[N_VOCAB];
    struct sample_params p;
    float x[N_VOCAB], want[N_VOCAB];
    int32_t history[64];
    const char *name = json_string_value(json_object_get(c, "history"));
    processor_params(json_object_get(c, "params"), &p, bias);
    vector_read(json_object_get(json_object_get(golden, "vectors"), json_string_value(json_object_get(c, "vector"))), x);
    vector_read(json_object_get(c, "logprobs"), want);
    int32_t n = ids_read(json_object_get(json_object_get(golden, "histories"), name), history, 64);
    struct sample_pos pos = { .params = &p, .history = history, .n_history = n, .index = n };
    int32_t best = 0;
    for (int32_t id = 1; id < N_VOCAB; id++)
        if (want[id] > want[best]) best = id;
    for (int32_t id = 0; id < N_VOCAB; id++) {
        struct kt_buf y = kt_alloc(sizeof x), scratch = kt_alloc(cpu_sample_scratch_bytes(N_VOCAB));
        struct draw d;
        memcpy(y.p, x, sizeof x);
        pos.target = id;
        cpu_sample(t, (float *)y.p, N_VOCAB, &pos, scratch.p, &d);
        bool same = want[id] == -INFINITY ? d.target_logprob == -INFINITY
                                          : fabsf(d.target_logprob - want[id]) <= 2e-5f + 1e-6f * fabsf(want[id]);
        if (!same) fail_msg("%s: id %d: want %g, got %g: %s", t->level, (int)id, (double)want[id], (double)d.target_logprob,
                            json_dumps(c, JSON_COMPACT));
        if (want[d.id] < want[best] - 2e-5f - 1e-6f * fabsf(want[best])) fail_msg("greedy drew %d, not %d", (int)d.id, (int)best);
        kt_free(&y);
        kt_free(&scratch);
    }
}

/* ENG-058, ENG-060, ENG-064, ENG-066, ENG-067, ENG-068, ENG-075: bias, repetition, presence and frequency as mlx-lm applies them;
 * log-probabilities are the full log-softmax after them; temperature 0 takes the largest. */
static void test_eng066_processors(void **state)
{
    const json_t *list = json_object_get(golden, "processors");
    assert_true(json_array_size(list) > 100);
    for (size_t i = 0; i < json_array_size(list); i++)
        for (int l = 0; l < n_level; l++) check_processor(&level[l], json_array_get(list, i));
}

/* --- switched off --- */

static struct draw draw_with(const struct sample_params *p, const float *x, const int32_t *history, int32_t n)
{
    struct kt_buf y = kt_alloc(sizeof(float) * N_VOCAB), scratch = kt_alloc(cpu_sample_scratch_bytes(N_VOCAB));
    struct sample_pos pos = { .params = p, .history = history, .n_history = n, .index = n, .target = -1 };
    struct draw d;
    memcpy(y.p, x, sizeof(float) * N_VOCAB);
    cpu_sample(&level[0], (float *)y.p, N_VOCAB, &pos, scratch.p, &d);
    kt_free(&y);
    kt_free(&scratch);
    return d;
}

/* ENG-060, ENG-061, ENG-062, ENG-069: 0 switches each filter off, the neutral value each penalty: the same draws and bits. */
static void test_eng061_zero_is_off(void **state)
{
    float x[N_VOCAB];
    int32_t history[] = { 1, 2, 3, 3 };
    vector_read(json_object_get(json_object_get(golden, "vectors"), "normal"), x);
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct sample_params plain = { .temperature = 1.0f, .n_vocab_live = N_VOCAB, .noise.seed = seed };
        struct sample_params off = plain;
        off.top_p = seed & 1 ? 1.0f : 0.0f;
        off.top_k = seed & 2 ? N_VOCAB : 0;
        off.repetition_penalty = 1.0f;
        off.repetition_context = off.presence_context = off.frequency_context = 20;
        struct draw a = draw_with(&plain, x, history, 4), b = draw_with(&off, x, history, 4);
        assert_int_equal(a.id, b.id);
        assert_true(kt_same(a.logprob, b.logprob));
        plain.temperature = 0;
        assert_int_equal(draw_with(&plain, x, history, 4).id, a.argmax);
    }
}

/* ENG-070: the draw is a function of the seed (and the sequence index): equal seeds draw alike, others differ. */
static void test_eng070_seed(void **state)
{
    float x[N_VOCAB];
    int32_t history[64] = { 0 };
    int n_other = 0;
    vector_read(json_object_get(json_object_get(golden, "vectors"), "flat"), x);
    for (int32_t i = 0; i < 64; i++) {
        struct sample_params p = { .temperature = 1.0f, .n_vocab_live = N_VOCAB, .noise.seed = 5 }, q = p;
        q.noise.seed = 6;
        assert_int_equal(draw_with(&p, x, history, i).id, draw_with(&p, x, history, i).id);
        n_other += draw_with(&p, x, history, i).id != draw_with(&q, x, history, i).id;
    }
    assert_true(n_other > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eng059_filters),
        cmocka_unit_test(test_eng066_processors),
        cmocka_unit_test(test_eng061_zero_is_off),
        cmocka_unit_test(test_eng070_seed),
    };
    kt_seed();
    return cmocka_run_group_tests(tests, setup, teardown);
}
