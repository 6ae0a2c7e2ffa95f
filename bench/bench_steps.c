/* bench_steps.c: where a step of the CPU backend spends its time, by kind of pass (docs/cpu-step.md). Every pass of the compiled plan
 * gets an `open` and a `tile` that look at the clock around its own. For each kind:
 *   serial_us   what the thread that opens the pass does alone, while the others wait
 *   wall_us     from there to the next pass's opening, or to the end of the run
 *   busy_us     inside tiles, over all threads; of wall_us x threads the rest is waiting, or a share that ended early
 * On one thread all of it is processor time.
 * A prefill is measured twice: `first` touches buffers and pages that nobody has used yet; `warm`: the others, the median in all, of each
 * kind the least.
 * A decode step: N_ROWS requests at once, each one token behind N_PROMPT keys of its own, which mean nothing.
 * Usage: bench_steps DIR TIER(l1|l2|f32) THREADS N_PROMPT [N_DECODE, 16] [LEVEL|-] [N_ROWS, 1]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/direct.h"
#include "ops/cpu/cpu_int.h"

#define THREADS_MAX 256
#define KINDS_MAX 64
#define REPEATS 5
#define ROWS_MAX 64

struct timed_pass {
    cpu_open_fn open;
    cpu_tile_fn tile;
    int i_kind;
};

struct kind {
    char name[96];
    int n;                                /* passes opened with tiles, or alone */
    int64_t serial_ns, wall_ns, n_tiles;
};

static struct timed_pass *passes;
static struct kind kinds[KINDS_MAX];
static int n_kinds;
static struct { _Alignas(128) int64_t ns[KINDS_MAX]; } busy[THREADS_MAX];
static int64_t opened_ns;                 /* the opener's: when the open pass was handed out */
static bool one;                          /* a thread alone: its processor time, which other programs disturb less */
static int i_open = -1;

static int64_t now_ns(void)
{
    struct timespec t;
    if (!one) return clock_now_ns();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t timed_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    const struct timed_pass *t = &passes[p - c->passes];
    struct kind *k = &kinds[t->i_kind];
    int64_t t0 = now_ns();
    if (i_open >= 0) kinds[i_open].wall_ns += t0 - opened_ns;
    int64_t n = t->open(c, p, i_thread, bounds);
    opened_ns = now_ns();
    k->serial_ns += opened_ns - t0;
    k->n_tiles += n;
    k->n++;
    i_open = n > 0 ? t->i_kind : -1;
    return n;
}

/* Behind a run: what lies between two runs belongs to no pass. */
static void close_open_pass(void)
{
    if (i_open >= 0) kinds[i_open].wall_ns += now_ns() - opened_ns;
    i_open = -1;
}

static void timed_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct timed_pass *t = &passes[p - c->passes];
    int64_t t0 = now_ns();
    t->tile(c, p, i_tile, i_thread);
    busy[i_thread % THREADS_MAX].ns[t->i_kind] += now_ns() - t0;
}

/* What a pass is called: its op, the shapes of its weights, and what its tiles go on to do. */
static void pass_name(const struct cpu_pass *p, char *out, size_t cap)
{
    static const char *const ops[] = { "embed", "norm", "linear", "rope+kv", "attend", "heads", "latent", "index", "delta", "glu", "route",
                                       "experts", "draws", "sample", "signal", "expect" };
    size_t n = (size_t)snprintf(out, cap, "%s", ops[p->s->op]);
    for (int32_t i = 0; p->s->op == STEP_LINEAR && i < p->n_steps; i++)
        for (int32_t j = 0; j < p->s[i].u.linear.n_parts && n < cap; j++)
            n += (size_t)snprintf(out + n, cap - n, " %lldx%lld", (long long)p->s[i].u.linear.part[j].w->n,
                                  (long long)p->s[i].u.linear.part[j].w->k);
    if (p->s->op == STEP_LINEAR && p->partner && n < cap) snprintf(out + n, cap - n, " + glu");
}

static int kind_of(const struct cpu_pass *p)
{
    char name[sizeof kinds[0].name];
    pass_name(p, name, sizeof name);
    for (int i = 0; i < n_kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) return i;
    if (n_kinds == KINDS_MAX) return KINDS_MAX - 1;
    snprintf(kinds[n_kinds].name, sizeof kinds[n_kinds].name, "%s", name);
    return n_kinds++;
}

static bool passes_wrap(struct compiled *c)
{
    passes = calloc((size_t)c->n_passes, sizeof *passes);
    if (!passes) return false;
    for (int32_t i = 0; i < c->n_passes; i++) {
        passes[i] = (struct timed_pass){ c->passes[i].open, c->passes[i].tile, kind_of(&c->passes[i]) };
        c->passes[i].open = timed_open;
        c->passes[i].tile = timed_tile;
    }
    return true;
}

static void counts_clear(void)
{
    for (int i = 0; i < n_kinds; i++) kinds[i].n = 0, kinds[i].serial_ns = kinds[i].wall_ns = kinds[i].n_tiles = 0;
    memset(busy, 0, sizeof busy);
    i_open = -1;
}

/* What each kind took least, over the runs so far. */
static struct { int64_t serial_ns, wall_ns, busy_ns; } least[KINDS_MAX];

static void least_take(bool is_first)
{
    for (int i = 0; i < n_kinds; i++) {
        int64_t used = 0;
        for (int t = 0; t < THREADS_MAX; t++) used += busy[t].ns[i];
        if (!is_first && kinds[i].serial_ns + kinds[i].wall_ns >= least[i].serial_ns + least[i].wall_ns) continue;
        least[i].serial_ns = kinds[i].serial_ns;
        least[i].wall_ns = kinds[i].wall_ns;
        least[i].busy_ns = used;
    }
}

static void counts_print(const char *what, int n_threads, int n_runs, double total_ms)
{
    printf("%s: %.2f ms\n  %-40s %7s %8s %10s %10s %10s %6s\n", what, total_ms, "pass", "times", "tiles", "serial us", "wall us", "busy us", "busy");
    for (int i = 0; i < n_kinds; i++) {
        double used = (double)least[i].busy_ns * 1e-3 / n_runs, wall = (double)least[i].wall_ns * 1e-3 / n_runs;
        if (kinds[i].n == 0) continue;
        printf("  %-40s %7.1f %8.1f %10.1f %10.1f %10.1f", kinds[i].name, (double)kinds[i].n / n_runs, (double)kinds[i].n_tiles / n_runs,
               (double)least[i].serial_ns * 1e-3 / n_runs, wall, used);
        printf(wall > 0 ? " %5.0f%%\n" : "\n", 100 * used / (wall * n_threads));
    }
}

static int fail(const mb_error *err)
{
    fprintf(stderr, "bench_steps: %s\n", err->text);
    return 1;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The requests of a decode step. */
struct requests {
    struct seq_state seq[ROWS_MAX];
    struct row row[ROWS_MAX];
    struct row_result result[ROWS_MAX];
    struct draw draw[ROWS_MAX];
    struct sample_pos pos[ROWS_MAX];
    struct sample_params greedy;
    size_t kv_bytes;                      /* of the pool, under all their pages */
};

struct run {
    struct device *dev;
    struct direct *d;
    struct model *model;
    const int32_t *ids;
    int32_t n_prompt, n_decode, n_rows;
    struct requests *requests;
};

static mb_status run_ids(const struct run *r, const int32_t *ids, int32_t n, struct draw *draws, mb_error *err)
{
    mb_status st = direct_run(r->d, ids, n, NULL, NULL, draws, err);
    close_open_pass();
    return st;
}

/* One prefill from an empty sequence, in chunks of 512. */
static mb_status prefill(const struct run *r, double *ms, mb_error *err)
{
    direct_reset(r->d, 1);
    int64_t t0 = now_ns();
    for (int32_t i = 0; i < r->n_prompt; i += 512)
        MB_TRY(run_ids(r, r->ids + i, r->n_prompt - i < 512 ? r->n_prompt - i : 512, NULL, err));
    *ms = (double)(now_ns() - t0) * 1e-6;
    return MB_OK;
}

/* Pages for every request, one after the other from the pool's first on; false: no memory. */
static bool requests_init(struct requests *q, const struct plan *p, int32_t n_rows, int32_t n_tokens)
{
    int32_t n_page = n_tokens / KV_PAGE_TOKENS + 1, unit = 0;
    q->greedy.n_vocab_live = p->n_vocab;
    for (int32_t r = 0; r < n_rows; r++)
        for (int k = 0; k < p->n_kinds; k++) {
            struct kv_table *t = &q->seq[r].kind[k];
            *t = (struct kv_table){ .page = malloc((size_t)n_page * sizeof(int32_t)), .n_page = n_page, .cap = n_page };
            if (!t->page) return false;
            for (int32_t j = 0; j < n_page; j++, unit += (int32_t)(p->kinds[k].page_bytes / KV_PAGE_UNIT)) t->page[j] = unit;
        }
    q->kv_bytes = (size_t)unit * KV_PAGE_UNIT;
    return true;
}

static mb_status decode_step(const struct run *r, int32_t i_first, mb_error *err)
{
    struct requests *q = r->requests;
    for (int32_t i = 0; i < r->n_rows; i++) {
        q->pos[i] = (struct sample_pos){ .params = &q->greedy, .history = r->ids, .n_history = 1, .index = i_first + 1, .target = -1 };
        q->row[i] = (struct row){ .seq = &q->seq[i], .i_first = i_first, .n = 1, .ids = &r->ids[i % r->n_prompt], .draw = DRAW_LAST, .draws = &q->pos[i] };
        q->result[i] = (struct row_result){ .draws = &q->draw[i] };
    }
    MB_TRY(ops_cpu.submit(model_compiled(r->model), q->row, r->n_rows, q->result, err));
    MB_TRY(ops_cpu.collect(model_compiled(r->model), err));
    close_open_pass();
    for (int32_t i = 0; i < r->n_rows; i++) q->seq[i].n_committed = i_first + 1;
    return MB_OK;
}

static mb_status decode(const struct run *r, double *ms, mb_error *err)
{
    int64_t t0 = now_ns();
    MB_TRY(model_reserve_positions(r->model, r->n_prompt + r->n_decode, err));
    for (int32_t i = 0; i < r->n_decode; i++) MB_TRY(decode_step(r, r->n_prompt + i, err));
    *ms = (double)(now_ns() - t0) * 1e-6 / r->n_decode;
    return MB_OK;
}

static mb_status measure(const struct run *r, int n_threads, mb_error *err)
{
    double ms[REPEATS], first, token;
    counts_clear();
    MB_TRY(prefill(r, &first, err));
    least_take(true);
    counts_print("prefill, first", n_threads, 1, first);
    for (int i = 0; i < REPEATS; i++) {
        counts_clear();
        MB_TRY(prefill(r, &ms[i], err));
        least_take(i == 0);
    }
    qsort(ms, REPEATS, sizeof ms[0], by_size);
    counts_print("prefill, warm", n_threads, 1, ms[REPEATS / 2]);
    if (r->n_decode < 1) return MB_OK;
    memset(r->dev->kv, 1, r->requests->kv_bytes); /* not sooner: the first prefill is to find the pool as nobody has used it */
    counts_clear();
    MB_TRY(decode(r, &token, err));
    least_take(true);
    counts_print("a decode step", n_threads, r->n_decode, token);
    return MB_OK;
}

int main(int argc, char **argv)
{
    struct device *dev;
    struct model *model;
    struct direct *d;
    mb_error err = { 0 };
    if (argc < 5) {
        fprintf(stderr, "usage: bench_steps DIR l1|l2|f32 THREADS N_PROMPT [N_DECODE] [LEVEL|-] [N_ROWS]\n");
        return 2;
    }
    int n_threads = atoi(argv[3]);
    one = n_threads == 1;
    int32_t n_prompt = atoi(argv[4]), n_decode = argc > 5 ? atoi(argv[5]) : 16, n_rows = argc > 7 ? atoi(argv[7]) : 1;
    if (n_rows < 1 || n_rows > ROWS_MAX) n_rows = 1;
    struct device_options dopt = { .n_threads = n_threads, .cpu_level = argc > 6 && strcmp(argv[6], "-") != 0 ? argv[6] : NULL, .n_ranks = 1 };
    struct model_options mopt = { .ops = &ops_cpu, .tier = strcmp(argv[2], "l2") == 0 ? TIER_L2 : strcmp(argv[2], "f32") == 0 ? TIER_F32 : TIER_L1,
                                  .kv_format = -1, .n_rows_max = n_rows };
    if (ops_cpu.device_open(&dev, &dopt, &err) != MB_OK) return fail(&err);
    mopt.device = dev;
    if (model_open(&model, argv[1], &mopt, &err) != MB_OK || direct_open(&d, model, (n_prompt + n_decode + KV_PAGE_TOKENS) * n_rows, &err) != MB_OK) return fail(&err);
    int32_t n_vocab = model_plan_get(model)->n_vocab, *ids = malloc((size_t)n_prompt * sizeof *ids);
    if (!ids || !passes_wrap(model_compiled(model))) return 1;
    for (int32_t i = 0; i < n_prompt; i++) ids[i] = (i * 37 + 11) % n_vocab;
    struct requests *q = calloc(1, sizeof *q);
    if (!q || !requests_init(q, model_plan_get(model), n_rows, n_prompt + n_decode)) return 1;
    struct run r = { dev, d, model, ids, n_prompt, n_decode, n_rows, q };
    mb_status st = measure(&r, n_threads, &err);
    free(ids);
    free(passes);
    for (int i = 0; i < n_rows; i++)
        for (int k = 0; k < KV_MAX_KINDS; k++) free(q->seq[i].kind[k].page);
    free(q);
    direct_close(d);
    model_close(model);
    ops_cpu.device_close(dev);
    return st == MB_OK ? 0 : fail(&err);
}
