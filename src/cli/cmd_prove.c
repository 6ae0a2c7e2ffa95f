/* cmd_prove.c: `mlx-bun prove MODEL`: the promise of docs/numerics.md shown on this machine, line by line. One request is
 * drawn alone; then one thing at a time is changed that must not change a bit. A line that could not be set up as it says
 * is skipped with the reason, never counted as identical. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/threads.h"
#include "cli/prove.h"

#define EACH_QUICK 100   /* tokens at each of the two temperatures */
#define EACH_FULL 1000
#define EACH_PORTABLE 16
#define EACH_PORTABLE_FULL 100
#define PAGE_TOKENS 64

struct report {
    struct prove p;
    struct prove_result ref;
    int32_t n_each, n_each_portable;
    bool json;
    const char *only;  /* lines with this in their names; NULL: all */
    int32_t n_identical, n_different, n_skipped;
    char skipped[160];  /* why the last one was */
    struct buf lines; /* JSON */
};

static bool wanted(const struct report *r, const char *axis)
{
    return !r->only || strstr(axis, r->only) != NULL;
}

/* --- lines --- */
static void line_print(struct report *r, const char *axis, const struct prove_result *got, const char *verdict,
                       const char *reason)
{
    char digest[24] = "-";
    int32_t n = got ? 2 * got->n_each : 0;
    if (got) snprintf(digest, sizeof digest, "%016llx", (unsigned long long)prove_digest(got));
    if (r->json) {
        buf_printf(&r->lines, "%s{\"line\":\"%s\",\"tokens\":%d,\"digest\":\"%s\",\"result\":\"%s\"", r->lines.len ? "," : "", axis,
                   (int)n, digest, verdict);
        if (reason) {
            buf_append_str(&r->lines, ",\"reason\":");
            json_write_string(&r->lines, reason, strlen(reason));
        }
        buf_append_char(&r->lines, '}');
        return;
    }
    printf("%-28s %5d tokens  %-16s  %s%s%s\n", axis, (int)n, digest, verdict, reason ? ": " : "", reason ? reason : "");
    fflush(stdout);
}

static void line_compare(struct report *r, const char *axis, const struct prove_result *got)
{
    bool same = prove_same(&r->ref, got);
    *(same ? &r->n_identical : &r->n_different) += 1;
    line_print(r, axis, got, same ? "identical" : "DIFFERENT", NULL);
}

static void line_skip(struct report *r, const char *axis, const char *reason)
{
    r->n_skipped++;
    snprintf(r->skipped, sizeof r->skipped, "%.159s", reason);
    line_print(r, axis, NULL, "skipped", reason);
}

/* Open, run once, close. *got must be freed. */
static mb_status run_fresh(struct report *r, const struct prove_setup *s, int32_t n_each, struct prove_result *got, mb_error *err)
{
    mb_engine *e;
    *got = (struct prove_result){ 0 };
    MB_TRY(prove_open(&r->p, s, &e, err));
    mb_status st = prove_run(&r->p, e, s, n_each, got, err);
    mb_engine_close(e);
    return st;
}

static mb_status line_fresh(struct report *r, const char *axis, const struct prove_setup *s, int32_t n_each, mb_error *err)
{
    struct prove_result got;
    if (!wanted(r, axis)) return MB_OK;
    MB_TRY(run_fresh(r, s, n_each, &got, err));
    line_compare(r, axis, &got);
    prove_result_free(&got);
    return MB_OK;
}

/* The reference, and strangers beside it in the same engine. */
static mb_status lines_alone_and_batched(struct report *r, mb_error *err)
{
    static const int32_t on_cpu[] = { 0, 1, PROVE_STRANGERS }, on_gpu[] = { 0, 1, 3, 8, 16, 31, PROVE_STRANGERS_GPU };
    const int32_t *counts = r->p.on_gpu ? on_gpu : on_cpu;
    int n = r->p.on_gpu ? 7 : 3;
    struct prove_setup alone = { 0 };
    mb_engine *e;
    MB_TRY(prove_open(&r->p, &alone, &e, err));
    mb_status st = prove_run(&r->p, e, &alone, r->n_each, &r->ref, err);
    for (int i = 0; st == MB_OK && i < n; i++) { /* alone a second time: the line shows the digest that all are held to */
        struct prove_setup s = { .n_strangers = counts[i] };
        struct prove_result got;
        char axis[32] = "alone";
        if (i > 0) snprintf(axis, sizeof axis, "with %d stranger%s", (int)counts[i], counts[i] == 1 ? "" : "s");
        if (!wanted(r, axis)) continue;
        st = prove_run(&r->p, e, &s, r->n_each, &got, err);
        if (st != MB_OK) break;
        line_compare(r, axis, &got);
        prove_result_free(&got);
    }
    mb_engine_close(e);
    return st;
}

static mb_status lines_chunks(struct report *r, mb_error *err)
{
    static const int32_t chunks[] = { 1, 7, 64, 512 };
    char axis[32];
    for (int i = 0; i < 4; i++) {
        struct prove_setup s = { .prefill_chunk = chunks[i] };
        snprintf(axis, sizeof axis, "prompt in chunks of %d", (int)chunks[i]);
        MB_TRY(line_fresh(r, axis, &s, r->n_each, err));
    }
    return MB_OK;
}

static mb_status line_warm(struct report *r, mb_error *err)
{
    static const struct prove_setup s = { .prompt_cache = true };
    struct prove_result got = { 0 };
    mb_engine *e;
    if (!wanted(r, "warm prefix")) return MB_OK;
    MB_TRY(prove_open(&r->p, &s, &e, err));
    mb_status st = prove_run(&r->p, e, &s, r->n_each, &got, err);
    prove_result_free(&got);
    if (st == MB_OK) st = prove_run(&r->p, e, &s, r->n_each, &got, err);
    mb_engine_close(e);
    MB_TRY(st);
    if (got.n_cached > 0) line_compare(r, "warm prefix", &got);
    else line_skip(r, "warm prefix", "nothing of the prompt was found in the cache");
    prove_result_free(&got);
    return MB_OK;
}

/* A pool that n_strangers and the request fill with their prompts alone, but for `extra` pages: growing, the youngest must
 * go, and that is the request. */
static uint64_t budget_that_preempts(const struct report *r, const struct prove_setup *s, int32_t extra)
{
    uint64_t prompt = prove_budget_for(&r->p, r->p.n_prompt + 1);
    uint64_t page = prove_budget_for(&r->p, r->p.n_prompt + 1 + PAGE_TOKENS) - prompt;
    uint64_t longest = prove_budget_for(&r->p, r->p.n_prompt + s->stranger_tokens + 1);
    uint64_t budget = (uint64_t)(s->n_strangers + 1) * prompt + (uint64_t)extra * page;
    return prompt == 0 || longest == 0 ? 0 : budget > longest ? budget : longest;
}

/* How much room the rounding of pages to chunks leaves depends on the model, so a few settings are tried. */
static mb_status line_preempted(struct report *r, mb_error *err)
{
    static const struct { int32_t n_strangers, extra; } tries[] = { { 1, 1 }, { 1, 0 }, { 3, 1 }, { 3, 0 }, { 7, 0 },
                                                                   { 1, 4 }, { 1, 16 }, { 3, 16 }, { 3, 64 } };
    for (size_t i = 0; wanted(r, "preempted") && i < sizeof tries / sizeof tries[0]; i++) {
        struct prove_setup s = { .n_strangers = tries[i].n_strangers, .stranger_tokens = r->n_each + PAGE_TOKENS };
        struct prove_result got;
        s.kv_budget_bytes = budget_that_preempts(r, &s, tries[i].extra);
        if (s.kv_budget_bytes == 0) break;
        mb_status st = run_fresh(r, &s, r->n_each, &got, err);
        if (st == MB_CONTEXT_OVER_BUDGET) continue; /* rounded to chunks, the pool cannot hold one alone */
        MB_TRY(st);
        bool preempted = got.n_preempted > 0;
        if (preempted) line_compare(r, "preempted", &got);
        prove_result_free(&got);
        if (preempted) return MB_OK;
    }
    if (wanted(r, "preempted")) line_skip(r, "preempted", "no pool size made this model's engine preempt the request");
    return MB_OK;
}

static mb_status lines_threads(struct report *r, mb_error *err)
{
    int counts[] = { 1, threads_default_count() };
    char axis[32];
    if (counts[1] == 1) counts[1] = 2;
    for (int i = 0; i < 2; i++) {
        struct prove_setup s = { .n_threads = counts[i] };
        snprintf(axis, sizeof axis, "%d thread%s", counts[i], counts[i] == 1 ? "" : "s");
        MB_TRY(line_fresh(r, axis, &s, r->n_each, err));
    }
    return MB_OK;
}

static mb_status lines_levels(struct report *r, mb_error *err)
{
    static const char *const levels[] = { "portable", "avx2", "avx512", "amx" };
    char axis[32], text[96];
    for (int i = 0; i < 4; i++) {
        /* Portable is slow: its second half may take the prompt's pages from its first, which the same kernels have written. */
        struct prove_setup s = { .cpu_level = levels[i], .prompt_cache = i == 0 };
        snprintf(axis, sizeof axis, "cpu level %s", levels[i]);
        if (!wanted(r, axis)) continue;
        if (r->p.on_gpu) {
            line_skip(r, axis, "a GPU computes; the CPU is a device class of its own");
            continue;
        }
        if (mb_device_text(levels[i], text, err) != MB_OK) {
            line_skip(r, axis, "not on this machine");
            continue;
        }
        MB_TRY(line_fresh(r, axis, &s, i == 0 ? r->n_each_portable : r->n_each, err));
    }
    return MB_OK;
}

/* On another device of the same class; one that is not there, or that this family or this memory does not allow, is skipped. */
static mb_status line_device(struct report *r, const char *axis, const char *device, mb_error *err)
{
    struct prove_setup s = { .device = device };
    mb_error why = { 0 };
    mb_status st = line_fresh(r, axis, &s, r->n_each, &why);
    if (st == MB_UNSUPPORTED || st == MB_NO_MEMORY || st == MB_INVALID) line_skip(r, axis, why.text);
    else if (st != MB_OK) {
        *err = why;
        return st;
    }
    return MB_OK;
}

/* On a GPU: launch by launch where captured graphs run, split over ranks that share the card, over two cards, and these through NCCL. */
static mb_status lines_devices(struct report *r, mb_error *err)
{
    static const int counts[] = { 1, 2, 4 };
    char axis[32], device[PROVE_DEVICE + 16];
    if (!r->p.on_gpu) return MB_OK;
    int card = r->p.device[4] == ':' ? atoi(r->p.device + 5) : 0;
    if (!strstr(r->p.device, "/steps")) {
        snprintf(device, sizeof device, "%s%s/steps", r->p.device, r->p.device[4] == ':' ? "" : ":0");
        MB_TRY(line_device(r, "launch by launch", device, err));
    }
    for (int i = 0; i < 3; i++) {
        size_t len = (size_t)snprintf(device, sizeof device, "cuda:%d", card);
        for (int k = 1; k < counts[i]; k++) len += (size_t)snprintf(device + len, sizeof device - len, ",%d", card);
        snprintf(axis, sizeof axis, "%d rank%s on one GPU", counts[i], counts[i] == 1 ? "" : "s");
        MB_TRY(line_device(r, axis, device, err));
    }
    snprintf(device, sizeof device, "cuda:%d,%d", card, card == 0 ? 1 : 0);
    MB_TRY(line_device(r, "2 ranks, a GPU each", device, err));
    snprintf(device, sizeof device, "cuda:%d,%d/nccl", card, card == 0 ? 1 : 0);
    return line_device(r, "2 ranks, a GPU each, NCCL", device, err);
}

static mb_status lines_all(struct report *r, mb_error *err)
{
    static const struct prove_setup restart = { 0 };
    MB_TRY(lines_alone_and_batched(r, err));
    MB_TRY(lines_chunks(r, err));
    MB_TRY(line_warm(r, err));
    MB_TRY(line_preempted(r, err));
    MB_TRY(lines_threads(r, err));
    MB_TRY(lines_levels(r, err));
    MB_TRY(lines_devices(r, err));
    MB_TRY(line_fresh(r, "after a restart", &restart, r->n_each, err));
    if (r->n_identical + r->n_different > 0) return MB_OK;
    if (r->n_skipped > 0)
        return mb_fail(err, MB_UNSUPPORTED, "nothing was compared, all %d lines were skipped: %s", (int)r->n_skipped, r->skipped);
    return mb_fail_at(err, MB_INVALID, "only", "no line of prove has %.64s in its name; prove without --only shows them all", r->only);
}

static void set_lengths(struct report *r, const struct flags *f)
{
    r->n_each = f->tokens.given ? (int32_t)(f->tokens.i + 1) / 2 : f->full.b ? EACH_FULL : EACH_QUICK;
    r->n_each_portable = f->full.b ? EACH_PORTABLE_FULL : EACH_PORTABLE;
    int32_t room = r->p.n_context - r->p.n_prompt - 1;
    if (r->n_each > room) {
        r->n_each = room > 1 ? room : 1;
        fprintf(stderr, "the model's context of %d tokens leaves room for %d tokens a line, half at each of two temperatures\n",
                (int)r->p.n_context, 2 * (int)r->n_each);
    }
    if (r->n_each_portable > r->n_each) r->n_each_portable = r->n_each;
}

static mb_status print_json(struct report *r, mb_error *err)
{
    MB_TRY(buf_status(&r->lines, "the report", err));
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, "{\"model\":");
    json_write_string(&b, r->p.path, strlen(r->p.path));
    buf_printf(&b, ",\"identical\":%s,\"lines\":[%s]}\n", r->n_different ? "false" : "true", r->lines.data);
    mb_status st = buf_status(&b, "the report", err);
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    return st;
}

static void print_end(const struct report *r)
{
    if (r->n_different) printf("DIFFERENT on %d lines: the same request gave other bits; please report it; ", (int)r->n_different);
    else printf("the same bits on every line: ");
    printf("%d line%s identical, %d skipped\n", (int)r->n_identical, r->n_identical == 1 ? "" : "s", (int)r->n_skipped);
}

mb_status cmd_prove(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    char path[MODEL_PATH_MAX];
    struct report r = { .json = f->json.b, .only = f->only.given ? f->only.s : NULL };
    MB_TRY(model_find(f, n_pos > 0 ? pos[0] : NULL, true, path, err));
    buf_init(&r.lines, 0);
    mb_status st = prove_init(&r.p, f, path, err);
    if (st == MB_OK) {
        set_lengths(&r, f);
        st = lines_all(&r, err);
    }
    if (st == MB_OK && r.json) st = print_json(&r, err);
    if (st == MB_OK && r.n_different) *exit_status = 1;
    if (st == MB_OK && !r.json) print_end(&r);
    prove_result_free(&r.ref);
    prove_free(&r.p);
    buf_free(&r.lines);
    return st;
}
