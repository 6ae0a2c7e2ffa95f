/* test_cuda_ranks.c: one model over several ranks. Without a GPU: which names make ranks, that the ranks' plans have every column
 * once, and what cannot be split is refused by name. With one: 2, 3 and 4 ranks that share it give the bits of one, for every
 * chunk size and batch width. MLX_BUN_TEST_DEVICES=cuda:0,1 adds ranks on cards of their own.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/direct.h"
#include "kernels/cuda_rig.h"
#include "ops/cuda/ranks_int.h"

#define N_TOKENS 170

static const char *const FAMILIES[] = { "llama", "llama-bf16", "llama-fp", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma4",
                                        "gemma4-kv", "granite", "minicpm", "smollm3", "phi3", "glm4" };
#define N_FAMILIES (sizeof FAMILIES / sizeof FAMILIES[0])
/* What cannot be split, and a word of the refusal. */
static const struct { const char *family, *word; } REFUSED[] = {
    { "olmo2", "norm over all heads" }, { "mixtral", "experts" }, { "qwen3_moe", "experts" }, { "gpt_oss", "experts" },
    { "qwen3_next", "delta nets" },
};
#define N_REFUSED (sizeof REFUSED / sizeof REFUSED[0])

/* --- on every machine --- */

static void test_names_of_ranks(void **state)
{
    static const char *const bad[] = { "cuda:0,", "cuda:,1", "cuda:0,1,x", "cpu:0,1", "cuda:0,1,2,3,4,5,6,7,8", "cuda:0/nccl", "cuda:0,1/ncc", "cuda:0,1/nccl/", "cuda:0/step",
                                      "cuda:0/steps/steps", "cuda:0,1/nccl,2" };
    const struct ops *ops;
    struct device_options opt = { 0 };
    mb_error err;
    (void)state;
    assert_int_equal(ops_parse("cuda:2,5", &ops, &opt, &err), MB_OK);
    assert_ptr_equal(ops, &ops_cuda_ranks);
    assert_int_equal(opt.n_ranks, 2);
    assert_int_equal(opt.cards[0], 2);
    assert_int_equal(opt.cards[1], 5);
    assert_int_equal(ops_parse("cuda:1,1,1,1", &ops, &opt, &err), MB_OK);
    assert_int_equal(opt.n_ranks, 4);
    assert_false(opt.nccl);
    assert_int_equal(ops_parse("cuda:0,1/nccl", &ops, &opt, &err), MB_OK);
    assert_int_equal(opt.n_ranks, 2);
    assert_true(opt.nccl);
    assert_false(opt.no_graphs);
    assert_int_equal(ops_parse("cuda:0,1/nccl/steps", &ops, &opt, &err), MB_OK);
    assert_true(opt.nccl && opt.no_graphs);
    assert_int_equal(ops_parse("cuda:1/steps", &ops, &opt, &err), MB_OK);
    assert_int_equal(opt.ordinal, 1);
    assert_true(!opt.nccl && opt.no_graphs);
    assert_int_equal(ops_parse("cuda:3", &ops, &opt, &err), MB_OK);
    assert_ptr_equal(ops, &ops_cuda);
    assert_int_equal(opt.n_ranks, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ops_parse(bad[i], &ops, &opt, &err), MB_INVALID);
        assert_null(ops);
        assert_non_null(strstr(err.text, "cuda:N,M"));
    }
    assert_int_equal(ops_parse("cuda:0,0,1", &ops, &opt, &err), MB_INVALID);
    assert_non_null(strstr(err.text, "names a card twice"));
}

/* Rows go to ranks without gaps, whole units each, within one unit of equal shares. */
static void test_shares_cover_all_rows(void **state)
{
    static const struct { int64_t n; int32_t split; } cases[] = { { 576, 0 }, { 49152, 0 }, { 1000, 0 }, { 7, 0 }, { 192, 64 }, { 384, 192 }, { 4096, 512 } };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int n = 1; n <= OPS_RANKS_MAX; n++) {
            int64_t at = 0, unit = cases[i].split ? cases[i].split : 16, share = (cases[i].n + n - 1) / n;
            for (int r = 0; r < n; r++) {
                int64_t first, end;
                rank_rows(cases[i].n, cases[i].split, n, r, &first, &end);
                assert_int_equal(first, at);
                assert_true(end == cases[i].n || end % unit == 0);
                assert_true(end - first < share + unit);
                at = end;
            }
            assert_int_equal(at, cases[i].n);
        }
}

/* A plan as it is before anything is packed: the CPU's, with weights that nobody has. */
struct bare {
    struct device *dev;
    struct model *model;
    struct plan plan;
    struct plan_step *steps;
    struct weight *weights;
    struct device ranks[OPS_RANKS_MAX];
    struct rank_group group;
    struct rank_plans all;
};

static struct weight *bare_weight(struct bare *b, const struct weight *w, int32_t *n)
{
    struct weight *to = &b->weights[(*n)++];
    *to = *w;
    to->impl = NULL;
    return to;
}

static struct bare *bare_open(const char *family, int n_ranks)
{
    char dir[512];
    mb_error err = { 0 };
    struct bare *b = calloc(1, sizeof *b);
    int32_t n = 0;
    struct device_options dopt = { .n_threads = 1 };
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", family);
    if (ops_cpu.device_open(&b->dev, &dopt, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cpu, .device = b->dev, .kv_format = -1, .n_rows_max = 4 };
    if (model_open(&b->model, dir, &mopt, &err) != MB_OK) fail_msg("%s", err.text);
    b->plan = *model_plan_get(b->model);
    b->steps = calloc((size_t)b->plan.n_steps, sizeof *b->steps);
    b->weights = calloc((size_t)b->plan.n_steps * PLAN_MAX_PARTS, sizeof *b->weights);
    memcpy(b->steps, b->plan.steps, (size_t)b->plan.n_steps * sizeof *b->steps);
    b->plan.steps = b->steps;
    for (int32_t i = 0; i < b->plan.n_steps; i++) {
        struct plan_step *s = &b->steps[i];
        for (int j = 0; s->op == STEP_LINEAR && j < s->u.linear.n_parts; j++) s->u.linear.part[j].w = bare_weight(b, s->u.linear.part[j].w, &n);
        if (s->op == STEP_EMBED) s->u.embed.table = bare_weight(b, s->u.embed.table, &n);
    }
    b->group.n = n_ranks;
    for (int r = 0; r < n_ranks; r++) b->group.rank[r] = &b->ranks[r];
    b->all.group = &b->group;
    b->all.model = &b->plan;
    return b;
}

static void bare_close(struct bare *b)
{
    ranks_split_free(&b->all);
    model_close(b->model);
    ops_cpu.device_close(b->dev);
    free(b->steps);
    free(b->weights);
    free(b);
}

/* The parts of a join lie one behind the other; of linear inputs and residuals they are all there is. */
static void check_joins(const struct bare *b, const char *family)
{
    for (int32_t i = 0; i < b->all.n_joins; i++) {
        const struct rank_join *j = &b->all.joins[i];
        int32_t at = 0;
        for (int r = 0; r < b->group.n; r++) {
            if (j->part[r].n == 0) continue;
            if (j->part[r].first != at) fail_msg("%s, %d ranks: join %d has a gap at column %d", family, b->group.n, (int)i, (int)at);
            at += j->part[r].n;
        }
        if (at != b->plan.bufs[j->full].width) fail_msg("%s, %d ranks: join %d ends at column %d of %d", family, b->group.n, (int)i, (int)at,
                                                         (int)b->plan.bufs[j->full].width);
    }
}

static void test_plans_have_every_column_once(void **state)
{
    static const int counts[] = { 2, 3, 4, 8 };
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++)
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            mb_error err = { 0 };
            struct bare *b = bare_open(FAMILIES[i], counts[k]);
            if (ranks_split(&b->all, &err) != MB_OK) fail_msg("%s: %s", FAMILIES[i], err.text);
            assert_true(b->all.n_joins >= 4 * b->plan.n_layer); /* before and behind O and down */
            check_joins(b, FAMILIES[i]);
            for (int kind = 0; kind < b->plan.n_kinds; kind++) {
                int32_t heads = 0;
                for (int r = 0; r < counts[k]; r++) heads += b->all.rank[r].plan.kinds[kind].n_head_kv;
                assert_int_equal(heads, b->plan.kinds[kind].n_head_kv);
            }
            bare_close(b);
        }
}

static void test_what_cannot_be_split_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_REFUSED; i++) {
        mb_error err = { 0 };
        struct bare *b = bare_open(REFUSED[i].family, 2);
        assert_int_equal(ranks_split(&b->all, &err), MB_UNSUPPORTED);
        if (!strstr(err.text, REFUSED[i].word) || !strstr(err.text, "--device cuda")) fail_msg("%s: %s", REFUSED[i].family, err.text);
        bare_close(b);
    }
}

static int inputs_in_rows(const struct ck_ctx *c, int m)
{
    (void)c;
    (void)m;
    return CK_X_ROWS;
}

/* Parts are pushed only where every rank has one: a rank that sends nothing would let the others run ahead of it. */
static void test_pushes_need_a_part_of_every_rank(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        int32_t n_pushed = 0, n_met = 0;
        mb_error err = { 0 };
        struct bare *b = bare_open(FAMILIES[i], 4);
        struct cuda_library lib = { .x_layout_for = inputs_in_rows };
        if (ranks_split(&b->all, &err) != MB_OK) fail_msg("%s: %s", FAMILIES[i], err.text);
        b->ranks[0].lib = &lib;
        b->group.comm.inbox[0] = b;
        for (int32_t k = 0; k < b->all.n_joins; k++) {
            const struct rank_join *j = &b->all.joins[k];
            bool every = true, takes = ranks_trade_takes(&b->all, j, 1);
            for (int r = 0; r < 4; r++) every = every && j->part[r].n > 0;
            if (takes && !every) fail_msg("%s: join %d is pushed, and a rank has no part of it", FAMILIES[i], (int)k);
            n_pushed += takes;
            n_met += !every;
        }
        assert_true(n_pushed > 0 && n_met > 0); /* 1 or 2 KV heads: ranks without one */
        bare_close(b);
    }
}

/* A norm is part of the push that its input comes by where it is the whole of what comes next: then every rank's next step is that norm. */
static void test_a_push_covers_the_norm_behind_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++) {
        int32_t n_covered = 0;
        mb_error err = { 0 };
        struct bare *b = bare_open(FAMILIES[i], 2);
        struct cuda_library lib = { .x_layout_for = inputs_in_rows };
        if (ranks_split(&b->all, &err) != MB_OK) fail_msg("%s: %s", FAMILIES[i], err.text);
        b->ranks[0].lib = &lib;
        for (int32_t k = 0; k < b->all.n_joins; k++) {
            const struct rank_join *j = &b->all.joins[k];
            if (j->i_step + 1 >= b->plan.n_steps || !ranks_trade_takes_norm(&b->all, j, 1, j->i_step + 1)) continue;
            n_covered++;
            assert_false(j->is_input);
            for (int r = 0; r < 2; r++) {
                const struct plan_step *s = &b->all.rank[r].plan.steps[j->part[r].at];
                if (s->op != STEP_NORM || s->in != j->full || s->post_add) fail_msg("%s: join %d covers another step than its norm", FAMILIES[i], (int)k);
                assert_int_equal(j->part[r].at, b->all.rank[r].step_of[j->i_step + 1]);
            }
        }
        if (strcmp(FAMILIES[i], "llama") == 0) assert_true(n_covered >= 2 * b->plan.n_layer - 1);
        if (strcmp(FAMILIES[i], "gemma2") == 0) assert_int_equal(n_covered, 0); /* norms behind O and down are added to the residual */
        bare_close(b);
    }
}

/* Without NCCL the text says what it is and where to get it. */
static void test_no_nccl_is_told_with_a_remedy(void **state)
{
    struct comm c = { .ops = &comm_nccl, .n = 2 };
    mb_error err = { 0 };
    void *h = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    (void)state;
    if (h) {
        dlclose(h);
        skip();
    }
    assert_int_equal(comm_nccl.open(&c, &err), MB_UNSUPPORTED);
    assert_non_null(strstr(err.text, "nvidia-nccl-cu13"));
    assert_non_null(strstr(err.text, "--device cuda"));
    assert_string_equal(err.at, "device");
}

/* --- on a GPU --- */

struct run {
    const struct ops *ops;
    struct device *dev;
    struct model *model;
    struct direct *d;
    int32_t n_vocab;
};

static mb_status try_open(struct run *r, const char *device, const char *family, mb_error *err)
{
    char dir[512];
    struct device_options opt = { 0 };
    memset(r, 0, sizeof *r);
    snprintf(dir, sizeof dir, "%s%s", strchr(family, '/') ? "" : "tests/golden/tiny/", family);
    MB_TRY(ops_parse(device, &r->ops, &opt, err));
    MB_TRY(r->ops->device_open(&r->dev, &opt, err));
    struct model_options mopt = { .ops = r->ops, .device = r->dev, .tier = TIER_L1, .kv_format = -1, .n_rows_max = 64 };
    MB_TRY(model_open(&r->model, dir, &mopt, err));
    MB_TRY(direct_open(&r->d, r->model, N_TOKENS, err));
    r->n_vocab = model_plan_get(r->model)->n_vocab;
    return MB_OK;
}

static void run_open(struct run *r, const char *device, const char *family)
{
    mb_error err = { 0 };
    if (try_open(r, device, family, &err) != MB_OK) fail_msg("%s on %s: %s", family, device, err.text);
}

static void run_close(struct run *r)
{
    direct_close(r->d);
    model_close(r->model);
    if (r->dev) r->ops->device_close(r->dev);
}

static float *run_text(struct run *r, int32_t chunk, struct draw *draws)
{
    int32_t ids[N_TOKENS];
    mb_error err = { 0 };
    float *logits = malloc((size_t)N_TOKENS * (size_t)r->n_vocab * sizeof *logits);
    direct_reset(r->d, 1);
    for (int32_t i = 0; i < N_TOKENS; i++) ids[i] = (i * 37 + 11) % r->n_vocab;
    for (int32_t i = 0; i < N_TOKENS; i += chunk) {
        int32_t n = N_TOKENS - i < chunk ? N_TOKENS - i : chunk;
        if (direct_run(r->d, ids + i, n, NULL, logits + (int64_t)i * r->n_vocab, draws + i, &err) != MB_OK) fail_msg("%s", err.text);
    }
    return logits;
}

static void check_same(const float *want, const float *got, int32_t n, int32_t n_vocab, const char *family, const char *device, int32_t how)
{
    int64_t at = 0, all = (int64_t)n * n_vocab;
    if (memcmp(want, got, (size_t)all * sizeof(float)) == 0) return;
    while (memcmp(&want[at], &got[at], sizeof(float)) == 0) at++;
    fail_msg("%s on %s, %d at once: token %d logit %d is %.9g, on one GPU %.9g", family, device, (int)how, (int)(at / n_vocab), (int)(at % n_vocab),
             (double)got[at], (double)want[at]);
}

static void check_chunks(const char *family, const char *device)
{
    static const int32_t chunks[] = { N_TOKENS, 1, 7, 64, 100 };
    static struct draw want_draws[N_TOKENS], draws[N_TOKENS];
    struct run one, many;
    run_open(&one, "cuda", family);
    float *want = run_text(&one, N_TOKENS, want_draws);
    run_close(&one);
    run_open(&many, device, family);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        float *got = run_text(&many, chunks[i], draws);
        check_same(want, got, N_TOKENS, many.n_vocab, family, device, chunks[i]);
        for (int32_t t = 0; t < N_TOKENS; t++) {
            assert_int_equal(draws[t].id, want_draws[t].id);
            assert_memory_equal(&draws[t].logprob, &want_draws[t].logprob, sizeof(float));
        }
        free(got);
    }
    free(want);
    run_close(&many);
}

/* --- many sequences in one batch: captured graphs from the third step on --- */

enum { WIDTH_MAX = 64, PROMPT = 70, STEPS = 6 };

static void fill_sequence(struct seq_state *seq, const struct plan *p, int32_t pages[KV_MAX_KINDS][4], int32_t *unit)
{
    *seq = (struct seq_state){ .n_committed = 0 };
    for (int k = 0; k < p->n_kinds; k++) {
        seq->kind[k] = (struct kv_table){ .page = pages[k], .n_page = 2, .cap = 4 };
        for (int j = 0; j < 2; j++) {
            pages[k][j] = *unit;
            *unit += (int32_t)(p->kinds[k].page_bytes / KV_PAGE_UNIT);
        }
    }
}

/* Logits of every sequence and step: [STEPS][width][n_vocab]. */
static float *decode_all(struct run *r, int32_t width)
{
    const struct plan *p = model_plan_get(r->model);
    static struct seq_state seq[WIDTH_MAX];
    static int32_t pages[WIDTH_MAX][KV_MAX_KINDS][4], ids[WIDTH_MAX][PROMPT], next[WIDTH_MAX];
    struct sample_params greedy = { .n_vocab_live = r->n_vocab };
    struct sample_pos pos[WIDTH_MAX];
    struct draw draws[WIDTH_MAX];
    struct row rows[WIDTH_MAX];
    struct row_result results[WIDTH_MAX];
    mb_error err = { 0 };
    int32_t unit = 0;
    float *out = malloc((size_t)STEPS * (size_t)width * (size_t)r->n_vocab * sizeof *out);
    for (int32_t s = 0; s < width; s++) {
        fill_sequence(&seq[s], p, pages[s], &unit);
        for (int32_t i = 0; i < PROMPT; i++) ids[s][i] = (i * 29 + s * 17 + 3) % r->n_vocab;
    }
    if (r->ops->pool_reserve(r->dev, (size_t)unit * KV_PAGE_UNIT, &err) != MB_OK) fail_msg("%s", err.text);
    if (model_reserve_positions(r->model, PROMPT + STEPS, &err) != MB_OK) fail_msg("%s", err.text);
    for (int32_t step = 0; step < STEPS; step++) {
        for (int32_t s = 0; s < width; s++) {
            int32_t n = step > 0 ? 1 : s == 0 ? PROMPT : 1 + s % 23;
            pos[s] = (struct sample_pos){ .params = &greedy, .history = ids[s], .n_history = n, .index = seq[s].n_committed + n, .target = -1 };
            rows[s] = (struct row){ .seq = &seq[s], .i_first = seq[s].n_committed, .n = n, .ids = step > 0 ? &next[s] : ids[s], .draw = DRAW_LAST,
                                    .draws = &pos[s], .logits_out = out + ((int64_t)step * width + s) * r->n_vocab };
            results[s] = (struct row_result){ .draws = &draws[s] };
        }
        if (r->ops->submit(model_compiled(r->model), rows, width, results, &err) != MB_OK) fail_msg("%s", err.text);
        if (r->ops->collect(model_compiled(r->model), &err) != MB_OK) fail_msg("%s", err.text);
        for (int32_t s = 0; s < width; s++) {
            seq[s].n_committed += rows[s].n;
            seq[s].i_state = seq[s].n_committed;
            next[s] = draws[s].id;
        }
    }
    return out;
}

static void check_widths(const char *family, const char *device)
{
    static const int32_t widths[] = { 1, 3, 17, 64 };
    struct run one, many;
    run_open(&one, "cuda", family);
    run_open(&many, device, family);
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        float *want = decode_all(&one, widths[i]), *got = decode_all(&many, widths[i]);
        check_same(want, got, STEPS * widths[i], one.n_vocab, family, device, widths[i]);
        free(want);
        free(got);
    }
    run_close(&many);
    run_close(&one);
}

static const char *const SHARED[] = { "cuda:0,0", "cuda:0,0,0", "cuda:0,0,0,0" };

static void test_ranks_change_no_bit(void **state)
{
    const char *more = getenv("MLX_BUN_TEST_DEVICES"), *model = getenv("MLX_BUN_TEST_MODEL");
    NEEDS_GPU();
    for (size_t i = 0; i < N_FAMILIES; i++) {
        for (int k = 0; k < 3; k++) check_chunks(FAMILIES[i], SHARED[k]);
        if (more) check_chunks(FAMILIES[i], more);
    }
    for (int k = 0; k < 3 && model; k++) check_chunks(model, SHARED[k]);
    if (model && more) check_chunks(model, more);
}

static void test_ranks_and_widths_change_no_bit(void **state)
{
    const char *more = getenv("MLX_BUN_TEST_DEVICES"), *model = getenv("MLX_BUN_TEST_MODEL");
    NEEDS_GPU();
    for (size_t i = 0; i < N_FAMILIES; i++) {
        for (int k = 0; k < 3; k++) check_widths(FAMILIES[i], SHARED[k]);
        if (more) check_widths(FAMILIES[i], more);
    }
    for (int k = 0; k < 3 && model; k++) check_widths(model, SHARED[k]);
    if (model && more) check_widths(model, more);
}

/* Fewer KV heads than ranks: on cards of their own, where parts are pushed, and on one card. A rank has no columns of attention. */
static void test_ranks_without_a_head_change_no_bit(void **state)
{
    static const char *const families[] = { "gemma3", "qwen2", "smollm3" };
    const char *more = getenv("MLX_BUN_TEST_DEVICES");
    NEEDS_GPU();
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        struct run r;
        run_open(&r, "cuda", families[i]);
        assert_int_equal(model_plan_get(r.model)->kinds[0].n_head_kv, 1);
        run_close(&r);
        check_widths(families[i], SHARED[0]);
        if (more) check_chunks(families[i], more);
        if (more) check_widths(families[i], more);
    }
}

static void test_refused_at_load(void **state)
{
    NEEDS_GPU();
    for (size_t i = 0; i < N_REFUSED; i++) {
        struct run r;
        mb_error err = { 0 };
        assert_int_equal(try_open(&r, "cuda:0,0", REFUSED[i].family, &err), MB_UNSUPPORTED);
        if (!strstr(err.text, "--device cuda")) fail_msg("%s: %s", REFUSED[i].family, err.text);
        run_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_ranks),           cmocka_unit_test(test_shares_cover_all_rows),
        cmocka_unit_test(test_plans_have_every_column_once), cmocka_unit_test(test_what_cannot_be_split_is_named),
        cmocka_unit_test(test_pushes_need_a_part_of_every_rank), cmocka_unit_test(test_a_push_covers_the_norm_behind_it), cmocka_unit_test(test_ranks_without_a_head_change_no_bit),
        cmocka_unit_test(test_no_nccl_is_told_with_a_remedy), cmocka_unit_test(test_ranks_change_no_bit),
        cmocka_unit_test(test_ranks_and_widths_change_no_bit), cmocka_unit_test(test_refused_at_load),
    };
    return cmocka_run_group_tests(tests, look_for_gpu, NULL);
}
