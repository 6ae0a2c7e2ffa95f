/* bench_cpu.c: prefill and decode rates of one model on this machine, straight through the model (engine/direct.h), sampling
 * included. Prints one JSON line: {"load_ms", "prefill_tok_s", "decode_tok_s", "decode_best_tok_s" (the fastest token),
 * "barriers_per_token", "barrier_us_per_token" (waited by thread 0)}; with BUSY, that many processes then spin beside a second
 * decode run: "busy_decode_tok_s", "busy_share" (of the first).
 * With "session" for N_DECODE: a line with load and prefill, then one with the decode figures for each line "N" on standard input: so many
 * tokens more behind what is there, at most SESSION_TOKENS in all, or what the context holds. A long prompt is then computed once for all rounds.
 * Usage: bench_cpu DIR TIER(l1|l2|f32) THREADS N_PROMPT N_DECODE|session [LEVEL|-] [BUSY]
 */
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/threads.h"
#include "base/turns.h"
#include "engine/direct.h"

#define SESSION_TOKENS 2048

static int fail(const mb_error *err)
{
    fprintf(stderr, "bench_cpu: %s\n", err->text);
    return 1;
}

static enum fidelity_tier tier_of(const char *name)
{
    return strcmp(name, "l2") == 0 ? TIER_L2 : strcmp(name, "f32") == 0 ? TIER_F32 : TIER_L1;
}

struct decode {
    double seconds, best_s;
    uint64_t n_barriers, barrier_ns;
};

static mb_status decode_run(struct decode *out, struct direct *d, struct model *model, int32_t *id, int32_t n, mb_error *err)
{
    struct draw draw;
    *out = (struct decode){ .best_s = 1e9 };
    int64_t t0 = clock_now_ns(), before = t0;
    for (int32_t i = 0; i < n; i++) {
        struct ops_step_stats s;
        MB_TRY(direct_run(d, id, 1, NULL, NULL, &draw, err));
        ops_cpu.stats(model_compiled(model), &s);
        out->n_barriers += s.n_barriers;
        out->barrier_ns += s.barrier_ns;
        *id = draw.id;
        int64_t now = clock_now_ns();
        if ((double)(now - before) * 1e-9 < out->best_s) out->best_s = (double)(now - before) * 1e-9;
        before = now;
    }
    out->seconds = (double)(clock_now_ns() - t0) * 1e-9;
    return MB_OK;
}

/* Processes that use all they get. */
static void busy_start(pid_t *pids, int n)
{
    for (int i = 0; i < n; i++)
        if ((pids[i] = fork()) == 0)
            for (volatile unsigned x = 0;; x++) { }
}

static void busy_stop(const pid_t *pids, int n)
{
    for (int i = 0; i < n; i++)
        if (pids[i] > 0) kill(pids[i], SIGKILL), waitpid(pids[i], NULL, 0);
}

struct bench {
    struct device *dev;
    struct model *model;
    struct direct *d;
    double load_ms, prefill_tok_s;
    int32_t n_room;                /* of a session: tokens behind the prompt */
    int32_t id;                    /* the last one, which the next decode begins with */
};

/* n_context 0: a session, which has room for n_room tokens behind the prompt. */
static mb_status bench_open(struct bench *b, char **argv, const char *level, int32_t n_prompt, int32_t n_context, mb_error *err)
{
    bool is_session = n_context == 0;
    struct device_options dopt = { .n_threads = atoi(argv[3]), .cpu_level = level, .n_ranks = 1 };
    int64_t t0 = clock_now_ns();
    MB_TRY(ops_cpu.device_open(&b->dev, &dopt, err));
    struct model_options mopt = { .ops = &ops_cpu, .device = b->dev, .tier = tier_of(argv[2]), .kv_format = -1, .n_rows_max = 1 };
    MB_TRY(model_open(&b->model, argv[1], &mopt, err));
    b->load_ms = (double)(clock_now_ns() - t0) * 1e-6;
    int32_t most = model_plan_get(b->model)->n_context;
    b->n_room = most - n_prompt - 1 < SESSION_TOKENS ? most - n_prompt - 1 : SESSION_TOKENS;
    return direct_open(&b->d, b->model, is_session ? n_prompt + b->n_room + 1 : n_context, err);
}

static void bench_close(struct bench *b)
{
    direct_close(b->d);
    model_close(b->model);
    ops_cpu.device_close(b->dev);
}

static mb_status prefill(struct bench *b, int32_t n, mb_error *err)
{
    int32_t n_vocab = model_plan_get(b->model)->n_vocab, ids[512];
    int64_t t0 = clock_now_ns();
    for (int32_t first = 0; first < n; first += 512) {
        int32_t n_part = n - first < 512 ? n - first : 512;
        for (int32_t i = 0; i < n_part; i++) ids[i] = ((first + i) * 37 + 11) % n_vocab;
        MB_TRY(direct_run(b->d, ids, n_part, NULL, NULL, NULL, err));
        b->id = ids[n_part - 1];
    }
    b->prefill_tok_s = n / ((double)(clock_now_ns() - t0) * 1e-9);
    return MB_OK;
}

static mb_status decode(struct decode *out, struct bench *b, int32_t n, mb_error *err)
{
    MB_TRY(decode_run(out, b->d, b->model, &b->id, n, err));
    printf("\"decode_tok_s\": %.2f, \"decode_best_tok_s\": %.2f, \"barriers_per_token\": %.0f, \"barrier_us_per_token\": %.1f",
           n / out->seconds, 1 / out->best_s, (double)out->n_barriers / n, (double)out->barrier_ns / n * 1e-3);
    return MB_OK;
}

/* Lines of standard input until it ends. */
static mb_status session(struct bench *b, mb_error *err)
{
    struct decode run;
    int n, left = b->n_room;
    printf("{\"load_ms\": %.0f, \"prefill_tok_s\": %.1f}\n", b->load_ms, b->prefill_tok_s);
    fflush(stdout);
    while (scanf("%d", &n) == 1) {
        if (n < 1 || n > left) return mb_fail(err, MB_INVALID, "a session has room for %d tokens more, not %d", left, n);
        left -= n;
        printf("{");
        MB_TRY(decode(&run, b, n, err));
        printf("}\n");
        fflush(stdout);
    }
    return MB_OK;
}

static mb_status once(struct bench *b, int32_t n, int n_busy, mb_error *err)
{
    struct decode alone, busy;
    pid_t pids[64];
    printf("{\"load_ms\": %.0f, \"prefill_tok_s\": %.1f, ", b->load_ms, b->prefill_tok_s);
    MB_TRY(decode(&alone, b, n, err));
    if (n_busy > 0) {
        busy_start(pids, n_busy);
        mb_status st = decode_run(&busy, b->d, b->model, &b->id, n, err);
        busy_stop(pids, n_busy);
        if (st != MB_OK) return st;
        printf(", \"busy_decode_tok_s\": %.1f, \"busy_share\": %.2f", n / busy.seconds, alone.seconds / busy.seconds);
    }
    printf("}\n");
    return MB_OK;
}

int main(int argc, char **argv)
{
    struct bench b = { 0 };
    mb_error err = { 0 };
    bool is_session = argc > 5 && strcmp(argv[5], "session") == 0;
    const char *level = argc > 6 && strcmp(argv[6], "-") != 0 ? argv[6] : NULL;
    int32_t n_prompt = argc > 4 ? atoi(argv[4]) : 0, n_decode = is_session ? SESSION_TOKENS : argc > 5 ? atoi(argv[5]) : 0;
    int n_busy = argc > 7 ? atoi(argv[7]) : 0;
    if (n_prompt < 1 || n_decode < 1 || n_busy < 0 || n_busy > 64) {
        fprintf(stderr, "usage: bench_cpu DIR l1|l2|f32 THREADS N_PROMPT N_DECODE|session [LEVEL|-] [BUSY: 0 to 64]\n");
        return 2;
    }
    turns_take_short(); /* as the engine's thread does */
    mb_status st = bench_open(&b, argv, level, n_prompt, is_session ? 0 : n_prompt + (n_busy ? 2 : 1) * n_decode + 1, &err);
    if (st == MB_OK) st = prefill(&b, n_prompt, &err);
    if (st == MB_OK) st = is_session ? session(&b, &err) : once(&b, n_decode, n_busy, &err);
    if (st != MB_OK) return fail(&err);
    bench_close(&b);
    return 0;
}
