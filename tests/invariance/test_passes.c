/* test_passes.c: how the CPU backend cuts a step: barriers a decoded token, no allocation in a step, and the same bits when
 * attention of a long context is split over threads as when one thread does all of it.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/direct.h"

#define DIR "tests/golden/tiny/"
#define N_LONG 1200 /* three splits of 512 keys */

/* --- every allocation of this program is counted (a sanitizer brings its own malloc) --- */

static atomic_long n_allocated;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t m);
void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n) { atomic_fetch_add(&n_allocated, 1); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { atomic_fetch_add(&n_allocated, 1); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { atomic_fetch_add(&n_allocated, 1); return __libc_realloc(p, n); }
#endif

struct rig {
    struct device *dev;
    struct model *model;
    struct direct *d;
    int32_t n_vocab;
};

static void rig_open(struct rig *r, const char *dir, int n_threads, int32_t n_tokens)
{
    mb_error err = { 0 };
    struct device_options dopt = { .n_threads = n_threads, .n_ranks = 1 };
    if (ops_cpu.device_open(&r->dev, &dopt, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cpu, .device = r->dev, .kv_format = -1, .n_rows_max = 1 };
    if (model_open(&r->model, dir, &mopt, &err) != MB_OK) fail_msg("%s", err.text);
    if (direct_open(&r->d, r->model, n_tokens, &err) != MB_OK) fail_msg("%s", err.text);
    r->n_vocab = model_plan_get(r->model)->n_vocab;
}

static void rig_close(struct rig *r)
{
    direct_close(r->d);
    model_close(r->model);
    ops_cpu.device_close(r->dev);
}

static void feed(struct rig *r, int32_t n, float *logits, struct draw *draws)
{
    mb_error err = { 0 };
    int32_t ids[N_LONG], first = direct_length(r->d);
    for (int32_t i = 0; i < n; i++) ids[i] = ((first + i) * 37 + 11) % r->n_vocab;
    if (direct_run(r->d, ids, n, NULL, logits, draws, &err) != MB_OK) fail_msg("%s", err.text);
}

static uint64_t barriers_of(struct rig *r, int32_t n)
{
    struct ops_step_stats s;
    struct draw draws[64];
    feed(r, n, NULL, draws);
    ops_cpu.stats(model_compiled(r->model), &s);
    return s.n_barriers;
}

/* qkv, attend, o, gate and up, down: five a layer; head, and two for sampling. A chunk: rope and KV before attend, and norms
 * of their own only when they are long. Gemma 4's per-layer inputs and its experts beside the MLP take three more a layer. */
static void test_barriers(void **state)
{
    (void)state;
    static const struct { const char *dir; uint64_t a_layer, more; } rows[] = {
        { DIR "llama", 5, 3 },     { DIR "qwen2", 5, 3 },  { DIR "qwen3", 5, 3 },      { DIR "gemma3", 5, 3 },
        { DIR "gemma4-kv", 5, 3 }, { DIR "gemma4", 8, 4 }, { DIR "gemma4-moe", 8, 3 }, { DIR "llama-bf16", 5, 3 },
        { DIR "qwen3_5", 5, 3 },   { DIR "qwen3_next", 8, 3 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rig r;
        rig_open(&r, rows[i].dir, 2, 64);
        uint64_t n_layer = (uint64_t)model_plan_get(r.model)->n_layer;
        feed(&r, 8, NULL, NULL);
        uint64_t one = barriers_of(&r, 1), chunk = barriers_of(&r, 4);
        if (one > rows[i].a_layer * n_layer + rows[i].more)
            fail_msg("%s: %d barriers a token, %d layers", rows[i].dir, (int)one, (int)n_layer);
        if (chunk > 9 * n_layer + 6) fail_msg("%s: %d barriers a chunk, %d layers", rows[i].dir, (int)chunk, (int)n_layer);
        rig_close(&r);
    }
}

static void test_no_allocation(void **state)
{
    (void)state;
    struct rig r;
    struct draw draw;
    rig_open(&r, DIR "llama", 2, 64);
    feed(&r, 16, NULL, NULL);
    feed(&r, 1, NULL, &draw);
    long before = atomic_load(&n_allocated);
    for (int i = 0; i < 8; i++) feed(&r, 1, NULL, &draw);
    assert_int_equal(atomic_load(&n_allocated), before);
    rig_close(&r);
}

/* More threads than KV heads at a short context: query heads of a group on different threads. */
static void test_cut_heads_bits(void **state)
{
    (void)state;
    static const char *const dirs[] = { DIR "llama", DIR "qwen3", DIR "gemma3", DIR "gemma4", DIR "gemma4-kv", DIR "llama-bf16",
                                       DIR "qwen3_5", DIR "qwen3_next" };
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        float *want = NULL;
        static const int threads[] = { 1, 2, 4, 5, 16 };
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            struct rig r;
            rig_open(&r, dirs[i], threads[t], 64);
            struct draw draw;
            size_t bytes = (size_t)r.n_vocab * 6 * sizeof(float);
            float *got = malloc(bytes);
            feed(&r, 9, NULL, NULL);
            for (int j = 0; j < 6; j++) feed(&r, 1, got + (int64_t)j * r.n_vocab, &draw);
            if (want) assert_memory_equal(got, want, bytes);
            if (want) free(got);
            else want = got;
            rig_close(&r);
        }
        free(want);
    }
}

/* Decoding after 1,190 tokens: three splits, dealt to threads and merged by whoever comes last. */
static void test_split_attention_bits(void **state)
{
    (void)state;
    static const char *const dirs[] = { DIR "llama", DIR "gemma3", DIR "gemma4", DIR "qwen3_5" };
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        float *want = NULL;
        static const int threads[] = { 1, 2, 3, 8 };
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            struct rig r;
            rig_open(&r, dirs[i], threads[t], N_LONG);
            assert_true(model_plan_get(r.model)->n_context >= N_LONG);
            struct draw draws[4];
            size_t bytes = (size_t)r.n_vocab * 7 * sizeof(float);
            float *got = malloc(bytes);
            for (int32_t n = 0; n < 1190; n += 170) feed(&r, 170, NULL, NULL);
            for (int j = 0; j < 4; j++) feed(&r, 1, got + (int64_t)j * r.n_vocab, draws);
            feed(&r, 3, got + 4 * (int64_t)r.n_vocab, draws);
            if (want) assert_memory_equal(got, want, bytes);
            if (want) free(got);
            else want = got;
            rig_close(&r);
        }
        free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_cut_heads_bits),
        cmocka_unit_test(test_split_attention_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
