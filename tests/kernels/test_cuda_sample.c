/* test_cuda_sample.c: draws on a card against the CPU's sampler of the same logits, bit for bit: vocabularies of one block of ids and of many, rows
 * that begin at any float, few positions and many, ties, hidden ids, rows with a NaN, with infinities, with nothing to draw. All of it is
 * skipped without a GPU.
 */
#include <math.h>

#include "kernels/cuda_calls.h"

enum { DRAWS_MAX = 64, HIDDEN_MAX = 4 };

struct rows {
    int32_t n_vocab;
    int64_t ld;
    float *host, *card;
    void *jobs, *scratch, *cpu_scratch;
    float *copy; /* of a row: the CPU's sampler writes to it */
    struct cuda_draw_out *outs;
};

/* Row i: what its number says, so that any count of rows has some of each. */
static void fill_row(float *x, int32_t n, int i, uint32_t *seed)
{
    for (int32_t j = 0; j < n; j++) x[j] = (float)(int32_t)draw(seed) * 0x1p-31f * (draw(seed) % 512 == 0 ? 40.0f : 6.0f);
    if (i % 8 == 1)
        for (int32_t j = 0; j < n; j++) x[j] = floorf(x[j]);
    if (i % 16 == 2) x[draw(seed) % (uint32_t)n] = NAN;
    if (i % 16 == 3) x[draw(seed) % (uint32_t)n] = INFINITY;
    if (i % 16 == 4)
        for (int32_t j = 0; j < n; j++) x[j] = -INFINITY;
    if (i % 8 == 5)
        for (int32_t j = 0; j < n; j++) x[j] = draw(seed) % 8 ? -INFINITY : x[j];
    if (i % 16 == 6)
        for (int32_t j = 0; j < n; j++) x[j] = -3e37f * (float)(draw(seed) >> 8) * 0x1p-24f;
    if (i % 16 == 7)
        for (int32_t j = 0; j < n; j++) x[j] = (float)j;
}

static void rows_open(struct rows *t, int32_t n_vocab, int32_t gap)
{
    uint32_t seed = 77;
    *t = (struct rows){ .n_vocab = n_vocab, .ld = n_vocab + gap };
    size_t bytes = (size_t)t->ld * DRAWS_MAX * sizeof *t->host;
    t->host = calloc(1, bytes);
    for (int i = 0; i < DRAWS_MAX; i++) fill_row(t->host + i * t->ld, n_vocab, i, &seed);
    t->card = on_device(t->host, bytes);
    t->jobs = room(DRAWS_MAX * sizeof(struct cuda_draw_job));
    t->scratch = room(lib->sample_scratch_bytes(n_vocab, DRAWS_MAX));
    t->copy = malloc((size_t)n_vocab * sizeof *t->copy);
    check(lib->alloc_host((void **)&t->outs, DRAWS_MAX * sizeof *t->outs), "memory");
    if (posix_memalign(&t->cpu_scratch, 64, cpu_sample_scratch_bytes(n_vocab)) != 0) fail_msg("out of memory");
}

static void rows_close(struct rows *t)
{
    lib->free(t->card);
    lib->free(t->jobs);
    lib->free(t->scratch);
    lib->free_host(t->outs);
    free(t->host);
    free(t->copy);
    free(t->cpu_scratch);
}

static bool same(const struct cuda_draw_out *got, const struct draw *want)
{
    if (got->state == CUDA_DRAW_NON_FINITE || want->non_finite) return got->state == CUDA_DRAW_NON_FINITE && want->non_finite;
    if (got->state == CUDA_DRAW_NO_CANDIDATE) return want->no_candidate;
    return got->id == want->id && got->argmax == want->argmax && memcmp(&got->logprob, &want->logprob, sizeof(float)) == 0 &&
           memcmp(&got->argmax_logprob, &want->argmax_logprob, sizeof(float)) == 0;
}

/* p of the i-th position: its own noise, every fourth without log-probabilities, every third greedy. */
static struct sample_params params_of(const struct sample_params *p, int32_t i)
{
    struct sample_params own = *p;
    own.noise.seed += (uint64_t)i;
    own.no_logprobs = i % 4 == 3;
    if (i % 3 == 2) own.temperature = 0;
    return own;
}

static void check_rows(struct rows *t, const struct sample_params *p, int32_t n_draw, const char *what)
{
    struct cuda_draw_job jobs[DRAWS_MAX];
    struct sample_params own[DRAWS_MAX];
    struct sample_pos pos[DRAWS_MAX];
    struct cs_draws a = { .logits = t->card, .n_vocab = t->n_vocab, .n_draw = n_draw, .ld = t->ld, .jobs = t->jobs, .outs = t->outs, .scratch = t->scratch };
    struct ck_ctx ctx = dev->ctx;
    ctx.pdl = 1;
    for (int32_t i = 0; i < n_draw; i++) {
        own[i] = params_of(p, i);
        pos[i] = (struct sample_pos){ .params = &own[i], .index = 100 + i, .target = -1 };
        cuda_job_fill(&pos[i], t->n_vocab, &jobs[i]);
    }
    put(t->jobs, jobs, (size_t)n_draw * sizeof *jobs);
    memset(t->outs, 0x55, DRAWS_MAX * sizeof *t->outs);
    check(lib->sample(&ctx, &a, dev->stream), what);
    check(lib->stream_wait(dev->stream), what);
    for (int32_t i = 0; i < n_draw; i++) {
        struct draw want;
        const struct cuda_draw_out *got = &t->outs[i];
        memcpy(t->copy, t->host + i * t->ld, (size_t)t->n_vocab * sizeof *t->copy);
        cpu_sample(&dev->host, t->copy, t->n_vocab, &pos[i], t->cpu_scratch, &want);
        if (got->state != CUDA_DRAW_HOST && !same(got, &want))
            fail_msg("%d ids, %s, position %d of %d: state %d, id %d, log-probability %a, maximum %d, %a; the CPU draws %d, %a, %d, %a", (int)t->n_vocab, what, (int)i,
                     (int)n_draw, (int)got->state, (int)got->id, (double)got->logprob, (int)got->argmax, (double)got->argmax_logprob, (int)want.id,
                     (double)want.logprob, (int)want.argmax, (double)want.argmax_logprob);
        bool may_be_none = p->n_end_ids > 0 || p->n_vocab_live < t->n_vocab; /* then the host decides */
        if (got->state == CUDA_DRAW_HOST && !may_be_none) fail_msg("%s: position %d was left to the host", what, (int)i);
    }
}

static void test_draws_are_the_cpus(void **state)
{
    static const int32_t vocabs[] = { 7, 1024, 2047, 50257, 128256 }, draws[] = { 1, 3, 8, 9, 32, DRAWS_MAX };
    NEEDS_GPU();
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++)
        for (int32_t gap = 0; gap < 4; gap += 3) {
            struct rows t;
            rows_open(&t, vocabs[v], gap);
            int32_t hidden[HIDDEN_MAX] = { vocabs[v] - 1, 5, vocabs[v] / 2, 0 };
            for (size_t d = 0; d < sizeof draws / sizeof draws[0]; d++) {
                struct sample_params p = { .n_vocab_live = vocabs[v], .noise = { .seed = 0x123456789abcdefULL, .i_choice = 2 } };
                check_rows(&t, &p, draws[d], "greedy");
                p.temperature = 0.8f;
                check_rows(&t, &p, draws[d], "temperature");
                p.n_vocab_live = vocabs[v] - 3;
                check_rows(&t, &p, draws[d], "ids that are none");
                p.ignore_eos = true;
                p.end_ids = hidden;
                p.n_end_ids = HIDDEN_MAX;
                check_rows(&t, &p, draws[d], "hidden end ids");
            }
            rows_close(&t);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_draws_are_the_cpus) };
    return cmocka_run_group_tests(tests, open_card, close_card);
}
