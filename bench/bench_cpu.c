/* bench_cpu.c: prefill and decode rates of one model on this machine, straight through the model (engine/direct.h), sampling
 * included. Prints one JSON line: {"load_ms", "prefill_tok_s", "decode_tok_s", "decode_best_tok_s" (the fastest token),
 * "barriers_per_token", "barrier_us_per_token" (waited by thread 0)}; with BUSY, that many processes then spin beside a second
 * decode run: "busy_decode_tok_s", "busy_share" (of the first).
 * Usage: bench_cpu DIR TIER(l1|l2|f32) THREADS N_PROMPT N_DECODE [LEVEL|-] [BUSY]
 */
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/direct.h"

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

int main(int argc, char **argv)
{
    struct device *dev;
    struct model *model;
    struct direct *d;
    mb_error err = { 0 };
    if (argc < 6) {
        fprintf(stderr, "usage: bench_cpu DIR l1|l2|f32 THREADS N_PROMPT N_DECODE [LEVEL|-] [BUSY]\n");
        return 2;
    }
    pid_t pids[64];
    int n_busy = argc > 7 ? atoi(argv[7]) : 0;
    if (n_busy > 64) n_busy = 64;
    int32_t n_prompt = atoi(argv[4]), n_decode = atoi(argv[5]);
    struct device_options dopt = { .n_threads = atoi(argv[3]), .cpu_level = argc > 6 && strcmp(argv[6], "-") != 0 ? argv[6] : NULL, .n_ranks = 1 };
    int64_t t_load = clock_now_ns();
    if (ops_cpu.device_open(&dev, &dopt, &err) != MB_OK) return fail(&err);
    struct model_options mopt = { .ops = &ops_cpu, .device = dev, .tier = tier_of(argv[2]), .kv_format = -1, .n_rows_max = 1 };
    if (model_open(&model, argv[1], &mopt, &err) != MB_OK) return fail(&err);
    double load_ms = (double)(clock_now_ns() - t_load) * 1e-6;
    if (direct_open(&d, model, n_prompt + (n_busy ? 2 : 1) * n_decode + 1, &err) != MB_OK) return fail(&err);
    int32_t n_vocab = model_plan_get(model)->n_vocab, id;
    int32_t *ids = malloc((size_t)n_prompt * sizeof *ids);
    for (int32_t i = 0; i < n_prompt; i++) ids[i] = (i * 37 + 11) % n_vocab;
    struct decode alone, busy;
    int64_t t0 = clock_now_ns();
    for (int32_t i = 0; i < n_prompt; i += 512)
        if (direct_run(d, ids + i, n_prompt - i < 512 ? n_prompt - i : 512, NULL, NULL, NULL, &err) != MB_OK) return fail(&err);
    int64_t t1 = clock_now_ns();
    id = ids[n_prompt - 1];
    if (decode_run(&alone, d, model, &id, n_decode, &err) != MB_OK) return fail(&err);
    printf("{\"load_ms\": %.0f, \"prefill_tok_s\": %.1f, \"decode_tok_s\": %.1f, \"decode_best_tok_s\": %.1f, \"barriers_per_token\": %.0f, "
           "\"barrier_us_per_token\": %.1f", load_ms, n_prompt / ((double)(t1 - t0) * 1e-9), n_decode / alone.seconds, 1 / alone.best_s,
           (double)alone.n_barriers / n_decode, (double)alone.barrier_ns / n_decode * 1e-3);
    if (n_busy > 0) {
        busy_start(pids, n_busy);
        mb_status st = decode_run(&busy, d, model, &id, n_decode, &err);
        busy_stop(pids, n_busy);
        if (st != MB_OK) return fail(&err);
        printf(", \"busy_decode_tok_s\": %.1f, \"busy_share\": %.2f", n_decode / busy.seconds, alone.seconds / busy.seconds);
    }
    printf("}\n");
    free(ids);
    direct_close(d);
    model_close(model);
    ops_cpu.device_close(dev);
    return 0;
}
