/* cuda_ranks.c: steps of a model over ranks, straight through the backend: a prompt of 2,048 tokens in one chunk, then decode steps of
 * 1, 8 and 32 sequences of 512 tokens each, and how much of each step its exchanges between the ranks take by themselves. One line
 * of JSON; `digest` is of all logits of the prompt's end and of the decode steps: equal for equal bits.
 *
 *   cuda_ranks DIR DEVICE [meet]             DEVICE as --device has it: cuda, cuda:0,1, cuda:0,0; meet: nothing is pushed (ranks_trade.c)
 * Build: make build/cuda_ranks. Run by bench/bench_cuda_ranks.py.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/clock.h"
#include "engine/direct.h"
#include "ops/cuda/ranks_int.h"

enum { PROMPT = 2048, CONTEXT = 512, BATCH_MAX = 32, STEPS = 24, PAGES = PROMPT / KV_PAGE_TOKENS + 1 };

static const struct ops *ops;
static struct device *dev;
static struct model *model;
static struct seq_state seq[BATCH_MAX];
static int32_t pages[BATCH_MAX][KV_MAX_KINDS][PAGES], ids[PROMPT], next[BATCH_MAX];
static float *logits;
static XXH3_state_t *digest;

static void check(mb_status st, const mb_error *err)
{
    if (st == MB_OK) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static void deal_pages(int n_seq, int n_page)
{
    const struct plan *p = model_plan_get(model);
    mb_error err = { 0 };
    int32_t unit = 0;
    for (int s = 0; s < n_seq; s++) {
        seq[s] = (struct seq_state){ .n_committed = 0 };
        for (int k = 0; k < p->n_kinds; k++) {
            seq[s].kind[k] = (struct kv_table){ .page = pages[s][k], .n_page = n_page, .cap = PAGES };
            for (int j = 0; j < n_page; j++, unit += (int32_t)(p->kinds[k].page_bytes / KV_PAGE_UNIT)) pages[s][k][j] = unit;
        }
    }
    check(ops->pool_reserve(dev, (size_t)unit * KV_PAGE_UNIT, &err), &err);
}

/* One step: sequences [first, first + n), `tokens` of each. Seconds. */
static double step(int first, int n, int32_t tokens)
{
    struct sample_params greedy = { .n_vocab_live = model_plan_get(model)->n_vocab, .no_logprobs = true };
    struct sample_pos pos[BATCH_MAX];
    struct draw draws[BATCH_MAX];
    struct row rows[BATCH_MAX];
    struct row_result results[BATCH_MAX];
    mb_error err = { 0 };
    for (int i = 0; i < n; i++) {
        struct seq_state *s = &seq[first + i];
        const int32_t *in = tokens > 1 ? ids : &next[first + i];
        pos[i] = (struct sample_pos){ .params = &greedy, .history = in, .n_history = tokens, .index = s->n_committed + tokens, .target = -1 };
        rows[i] = (struct row){ .seq = s, .i_first = s->n_committed, .n = tokens, .ids = in, .draw = DRAW_LAST, .draws = &pos[i], .logits_out = i ? NULL : logits };
        results[i] = (struct row_result){ .draws = &draws[i] };
    }
    int64_t t0 = clock_now_ns();
    check(ops->submit(model_compiled(model), rows, n, results, &err), &err);
    check(ops->collect(model_compiled(model), &err), &err);
    double seconds = (double)(clock_now_ns() - t0) * 1e-9;
    for (int i = 0; i < n; i++) {
        seq[first + i].n_committed += tokens;
        seq[first + i].i_state = seq[first + i].n_committed;
        next[first + i] = draws[i].id;
    }
    XXH3_64bits_update(digest, logits, (size_t)model_plan_get(model)->n_vocab * sizeof *logits);
    return seconds;
}

static double joins_share(double step_s)
{
    mb_error err = { 0 };
    double s = 0;
    if (ops != &ops_cuda_ranks) return 0;
    check(ranks_joins_time(model_compiled(model), 5, &s, &err), &err);
    return s / step_s;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure_prefill(void)
{
    double best = 1e9;
    for (int i = 0; i < 4; i++) {
        deal_pages(1, PAGES);
        double s = step(0, 1, PROMPT);
        if (i > 0 && s < best) best = s;
    }
    printf("\"prefill_tok_s\":%.1f,\"prefill_exchange_share\":%.4f", PROMPT / best, joins_share(best));
}

static void measure_decode(int batch)
{
    double s[STEPS];
    deal_pages(batch, (CONTEXT + STEPS + 2) / KV_PAGE_TOKENS + 1);
    for (int i = 0; i < batch; i++) step(i, 1, CONTEXT);
    for (int i = 0; i < 2; i++) step(0, batch, 1); /* the graph is made here */
    for (int i = 0; i < STEPS; i++) s[i] = step(0, batch, 1);
    qsort(s, STEPS, sizeof s[0], by_value);
    printf(",\"b%d_tok_s\":%.1f,\"b%d_exchange_share\":%.4f", batch, batch / s[STEPS / 2], batch, joins_share(s[STEPS / 2]));
}

int main(int argc, char **argv)
{
    struct device_options opt = { 0 };
    mb_error err = { 0 };
    if (argc < 3 || argc > 4 || (argc == 4 && strcmp(argv[3], "meet") != 0)) {
        fprintf(stderr, "usage: cuda_ranks DIR DEVICE [meet]\n");
        return 2;
    }
    check(ops_parse(argv[2], &ops, &opt, &err), &err);
    check(ops->device_open(&dev, &opt, &err), &err);
    if (argc == 4 && ops == &ops_cuda_ranks) ranks_group(dev)->comm.no_trade = true;
    struct model_options mopt = { .ops = ops, .device = dev, .tier = TIER_L1, .kv_format = -1, .n_rows_max = BATCH_MAX, .n_context = 4096 };
    int64_t t0 = clock_now_ns();
    check(model_open(&model, argv[1], &mopt, &err), &err);
    check(model_reserve_positions(model, PROMPT, &err), &err);
    double load_s = (double)(clock_now_ns() - t0) * 1e-9;
    digest = XXH3_createState();
    logits = malloc((size_t)model_plan_get(model)->n_vocab * sizeof *logits);
    if (!digest || !logits) return 1;
    XXH3_64bits_reset(digest);
    for (int32_t i = 0; i < PROMPT; i++) ids[i] = (int32_t)((i * 7919LL + 13) % model_plan_get(model)->n_vocab);
    printf("{\"device\":\"%s\",\"load_s\":%.1f,\"weight_mb\":%zu,", ops->device_describe(dev), load_s, model_weight_bytes(model) >> 20);
    measure_prefill();
    static const int batches[] = { 1, 8, 32 };
    for (int i = 0; i < 3; i++) measure_decode(batches[i]);
    printf(",\"digest\":\"%016llx\"}\n", (unsigned long long)XXH3_64bits_digest(digest));
    model_close(model);
    ops->device_close(dev);
    return 0;
}
