/* test_fit.c: the memory answer and the predicted speed: sizes of tiny checkpoints, the arithmetic over made-up rates, what control
 * groups leave, the measurement of this machine, and where measurements are kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/fit.h"
#include "engine/kv.h"
#include "hub/layout.h"
#include "hub/measures.h"

#define TINY "tests/golden/tiny/"

static void check(mb_status st, const mb_error *err)
{
    if (st != MB_OK) fail_msg("%s", err->text);
}

static struct fit_model model_of(const char *dir, uint64_t budget)
{
    struct fit_model m;
    mb_error err;
    struct engine_load load = { .dir = dir, .kv_format = KV_OF_TIER, .n_threads = 1, .memory_budget_bytes = budget };
    check(fit_model_read(&m, &load, &err), &err);
    return m;
}

/* --- memory --- */

/* REG-113 REG-125: a plan is weights, KV and scratch; the loaded engine divides the same. */
static void test_plan_is_what_the_engine_decides(void **state)
{
    struct engine_load load = { .dir = TINY "gemma3", .kv_format = KV_OF_TIER, .n_threads = 1, .memory_budget_bytes = 200 << 20,
                                .engine = { .batch = 2 } };
    struct engine_loaded info;
    struct engine *e;
    struct engine_stats stats;
    struct fit_model m;
    struct fit_report r;
    mb_error err;
    check(fit_model_read(&m, &load, &err), &err);
    check(engine_load(&e, &load, &info, &err), &err);
    engine_stats_get(e, &stats);
    assert_int_equal(m.info.weight_bytes, info.weight_bytes);
    assert_int_equal(m.info.scratch_bytes, info.scratch_bytes);
    assert_int_equal(m.info.pool_bytes, info.pool_bytes);
    fit_report_make(&r, &m, NULL, 100);
    assert_int_equal(r.max_safe_context, stats.max_safe_context);
    assert_int_equal(r.max_safe_context, info.max_context_in_pool);
    engine_close(e, 0);
    assert_int_equal(r.total_bytes, r.weights_bytes + r.kv_bytes + r.transient_bytes);
    assert_int_equal(r.kv_bytes, kv_pages_bytes(m.size.kinds, m.size.n_kinds, 100));
    assert_true(r.fits);
    assert_int_equal(r.n_context, 100);
    assert_true(r.decode_tps == 0); /* not measured */
}

/* What a request touches of scratch grows with its prompt, up to the rows of one step, and is never more than what is set aside. */
static void test_scratch_that_is_touched(void **state)
{
    static const char *const dirs[] = { TINY "llama", TINY "gemma3", TINY "qwen3_moe" };
    for (int i = 0; i < 3; i++) {
        struct fit_model m = model_of(dirs[i], 1 << 30);
        struct fit_report one, some, all;
        int32_t n = m.info.n_context;
        fit_report_make(&one, &m, NULL, 1);
        fit_report_make(&some, &m, NULL, n / 4);
        fit_report_make(&all, &m, NULL, n);
        assert_true(one.transient_bytes < some.transient_bytes && some.transient_bytes < all.transient_bytes);
        assert_int_equal(one.scratch_bytes, m.info.scratch_bytes); /* admission's own */
        assert_int_equal(all.scratch_bytes, m.info.scratch_bytes);
        size_t tables = model_size_touched(&m.size, 0, n) - model_size_touched(&m.size, 0, 0);
        assert_true(all.transient_bytes <= m.info.scratch_bytes + tables + (size_t)(m.size.touched.positions_first * m.size.touched.position_bytes));
        double row = (double)(some.transient_bytes - one.transient_bytes) / (n / 4 - 1);
        assert_true(row > 4.0 * m.size.d_model); /* at least the residual */
        m.prefill_chunk = 16; /* a step takes no more of it: only the context grows */
        fit_report_make(&all, &m, NULL, n);
        assert_true(all.transient_bytes < some.transient_bytes);
    }
}

/* Behind a window the prompt cache keeps pages while there is room; nothing is kept of a model without windows. */
static void test_pages_that_are_kept(void **state)
{
    const struct kv_kind kinds[] = { { .type = KIND_FULL, .page_bytes = 8192 }, { .type = KIND_WINDOW, .window = 128, .page_bytes = 4096 } };
    const struct kv_kind recurrent[] = { { .type = KIND_STATE, .page_bytes = 4096 } };
    assert_int_equal(kv_pages_kept_bytes(kinds, 2, 192, 192, true), 0);
    assert_int_equal(kv_pages_kept_bytes(kinds, 2, 1024, 1024, true), (16 - 3) * 4096);
    assert_int_equal(kv_pages_kept_bytes(kinds, 2, 1024, 256, false), 4 * 4096); /* what one step adds to the window */
    assert_int_equal(kv_pages_kept_bytes(recurrent, 1, 1000, 1000, true), (2 + 4) * 4096); /* at 1, 2, 4, 8 pages, and two ends */
    assert_int_equal(kv_pages_kept_bytes(recurrent, 1, 1000, 1000, false), 0);
    struct fit_model m = model_of(TINY "gemma3", 1 << 30);
    struct fit_report r;
    int32_t n = m.info.n_context;
    m.prompt_cache_bytes = (size_t)1 << 30;
    fit_report_make(&r, &m, NULL, n);
    size_t all = kv_pages_kept_bytes(m.size.kinds, m.size.n_kinds, n, n, true);
    assert_true(all > 0);
    assert_int_equal(r.kept_bytes, all);
    assert_int_equal(r.total_bytes, r.weights_bytes + r.kv_bytes + r.transient_bytes);
    m.prompt_cache_bytes = 4096;
    fit_report_make(&r, &m, NULL, n);
    assert_int_equal(r.kept_bytes, 4096);
    m.prompt_cache_bytes = (size_t)1 << 30;
    m.info.usable_bytes = r.total_bytes + 100; /* hardly any room */
    fit_report_make(&r, &m, NULL, n);
    assert_int_equal(r.kept_bytes, 100);
}

/* ENG-269: in the least budget the requests run, and without their pages nothing does. */
static void test_the_least_budget(void **state)
{
    struct engine_load load = { .dir = TINY "gemma3", .kv_format = KV_OF_TIER, .n_threads = 1, .engine = { .batch = 1 } };
    struct engine_loaded info;
    struct engine *e;
    struct fit_model m;
    mb_error err;
    load.memory_budget_bytes = 1 << 30;
    check(fit_model_read(&m, &load, &err), &err);
    size_t one = fit_least_bytes(&m, 100, 1), two = fit_least_bytes(&m, 100, 2);
    size_t pages = kv_pool_bytes_for(m.size.kinds, m.size.n_kinds, ENGINE_POOL_MIN_TOKENS);
    assert_int_equal(two - one, pages);
    load.memory_budget_bytes = one;
    check(engine_load(&e, &load, &info, &err), &err);
    assert_true(info.max_context_in_pool >= ENGINE_POOL_MIN_TOKENS);
    engine_close(e, 0);
    load.memory_budget_bytes = one - pages;
    assert_int_equal(engine_load(&e, &load, &info, &err), MB_NO_MEMORY);
}

/* REG-115: a layer with a window stops growing at it. */
static void test_windows_stop_growing(void **state)
{
    const struct kv_kind kinds[] = { { .type = KIND_FULL, .page_bytes = 8192 },
                                     { .type = KIND_WINDOW, .window = 128, .page_bytes = 4096 } };
    size_t at_1k = kv_pages_bytes(kinds, 2, 1024), at_2k = kv_pages_bytes(kinds, 2, 2048);
    assert_int_equal(at_2k - at_1k, 16 * 8192);
    assert_int_equal(kv_pages_bytes(kinds, 2, 64), 8192 + 4096);
    struct fit_model m = { .size = { .n_kinds = 2, .attend = { { .bytes = 100 }, { .bytes = 10 } } } };
    memcpy(m.size.kinds, kinds, sizeof kinds);
    struct ops_rates rates = { .read_bytes_s = 1, .kv_bytes_s = { 1000, 1000, 1000 } };
    assert_true(fabs(fit_decode_s(&m, &rates, 1000) - (100 * 1000 + 10 * 128) / 1000.0) < 1e-9);
    assert_true(fabs(fit_decode_s(&m, &rates, 100) - (100 * 100 + 10 * 100) / 1000.0) < 1e-9);
}

/* REG-110 REG-122: what does not fit has a full report and no context. */
static void test_a_model_that_does_not_fit(void **state)
{
    struct fit_model m = model_of(TINY "llama", 1 << 20);
    struct fit_report r;
    assert_false(m.info.fits);
    fit_report_make(&r, &m, NULL, 0);
    assert_false(r.fits);
    assert_int_equal(r.max_safe_context, 0);
    assert_true(r.weights_bytes > 0 && r.total_bytes > r.usable_bytes && r.usable_bytes == 1 << 20);
}

/* REG-112 REG-114: the same twice; the weights are those of the headers. */
static void test_the_same_twice(void **state)
{
    struct fit_model a = model_of(TINY "qwen3", 1 << 30), b = model_of(TINY "qwen3", 1 << 30);
    assert_memory_equal(&a.size, &b.size, sizeof a.size);
    assert_int_equal(a.info.max_context_in_pool, b.info.max_context_in_pool);
    double bytes = 0;
    for (int c = 0; c < OPS_CLASSES; c++) bytes += a.size.read[c].bytes;
    assert_true(bytes <= (double)a.size.weight_bytes && bytes > 0.4 * (double)a.size.weight_bytes);
}

static mb_status no_reserve(void *ctx, size_t bytes, mb_error *err)
{
    (void)ctx, (void)bytes, (void)err;
    return MB_OK;
}

/* The number is the one that the open pool knows. */
static void test_the_pool_before_and_after(void **state)
{
    struct stepper none = { .pool_reserve = no_reserve };
    const struct kv_kind kinds[] = { { .type = KIND_FULL, .page_bytes = 40000 },
                                     { .type = KIND_WINDOW, .window = 300, .page_bytes = 9000 } };
    for (size_t bytes = 1 << 20; bytes < 600 << 20; bytes = bytes * 3 + 4567) {
        struct kv_pool p;
        mb_error err;
        int32_t got = kv_pool_tokens_for(kinds, 2, bytes, 100000);
        check(kv_pool_init(&p, &none, kinds, 2, bytes, &err), &err);
        assert_int_equal(kv_pool_max_tokens(&p, 100000), got);
        kv_pool_free(&p);
        assert_true(got > 0 && kv_pages_bytes(kinds, 2, got) <= bytes);
    }
}

/* --- speed --- */

/* REG-116 ENG-262 API-301: of experts those count that a token goes to. */
static void test_experts_that_are_read(void **state)
{
    struct fit_model m = model_of(TINY "qwen3_moe", 1 << 30);
    struct model_spec spec;
    mb_error err;
    check(model_config_read(&spec, TINY "qwen3_moe", &err), &err);
    double all = 0, read = 0, experts = 0, used = 0, values = 0;
    for (int i = 0; i < spec.n_layer; i++) {
        const struct layer_spec *l = &spec.layers[i];
        if (l->mlp != MLP_MOE) continue;
        assert_true(l->top_k < l->n_expert);
        experts += 3.0 * l->n_expert * l->d_ff * spec.d_model;
        used += 3.0 * l->top_k * l->d_ff * spec.d_model;
    }
    assert_true(experts > 0);
    for (int c = 0; c < OPS_CLASSES; c++) {
        read += m.size.read[c].bytes;
        values += m.size.read[c].values;
    }
    all = (double)m.size.weight_bytes;
    assert_true(read < all);
    /* What is not read weighs as the experts that are not. */
    double dense = values - used;
    assert_true(dense > 0);
    assert_true(fabs((all - read) / read - (experts - used) / values) < 0.25 * (experts - used) / values);
    model_spec_free(&spec);
}

static struct ops_rates made_up(void)
{
    struct ops_rates r = { .read_bytes_s = 20e9, .region_s = 1e-6, .vocab_s = 1e-9, .n_threads = 2 };
    for (int t = 0; t < OPS_TIERS; t++) {
        r.value_s[t] = 1e-9;
        for (int c = 0; c < OPS_CLASSES; c++) r.weight_bytes_s[c][t] = 1e9, r.macs_s[c][t] = 1e11;
    }
    for (int f = 0; f < KV_FORMAT_COUNT; f++) r.kv_bytes_s[f] = 1e9, r.attn_macs_s[f] = 1e10;
    return r;
}

/* REG-110 REG-118: every part of a token's time counts, and longer contexts are slower. */
static void test_the_time_of_a_token(void **state)
{
    struct fit_model m = model_of(TINY "llama", 1 << 30);
    struct ops_rates r = made_up(), half = r;
    struct fit_report near, far;
    double bytes = 0;
    for (int c = 0; c < OPS_CLASSES; c++) bytes += m.size.read[c].bytes;
    double want = bytes / 1e9 + (5 * m.size.n_layer + 4) * 1e-6 + 2.0 * m.size.n_layer * m.size.d_model * 1e-9 + m.size.n_vocab * 0.5e-9 +
                  m.size.attend[0].bytes * 64 / 1e9;
    want /= 0.82; /* two threads wait for each other */
    assert_true(fabs(fit_decode_s(&m, &r, 64) - want) < 1e-3 * want);
    for (int c = 0; c < OPS_CLASSES; c++) half.weight_bytes_s[c][TIER_L1] /= 2;
    assert_true(fit_decode_s(&m, &half, 64) > fit_decode_s(&m, &r, 64));
    /* Caches: what is near is faster, weights beyond them are not, and in between lies in between. */
    struct ops_rates cached = r, beyond = r;
    for (int c = 0; c < OPS_CLASSES; c++) cached.near_bytes_s[c][TIER_L1] = beyond.near_bytes_s[c][TIER_L1] = 4e9;
    cached.far_bytes = 16.0 * (double)OPS_NEAR_BYTES;
    assert_true(fabs(fit_decode_s(&m, &cached, 64) - (want - 0.75 * bytes / 1e9 / 0.82)) < 1e-3 * want);
    struct fit_model large = m;
    large.size.weight_bytes = 16 * OPS_NEAR_BYTES; /* of which a token may read little */
    assert_true(fit_decode_s(&large, &cached, 64) == fit_decode_s(&large, &r, 64));
    large.size.weight_bytes /= 4;
    assert_true(fabs(fit_decode_s(&large, &cached, 64) - (want - 0.5 * bytes / 1e9 / 0.82)) < 1e-3 * want);
    assert_true(fit_decode_s(&m, &beyond, 64) == fit_decode_s(&m, &r, 64)); /* nothing known of memory beyond */
    struct ops_rates one = r;
    one.n_threads = 1;
    assert_true(fabs(fit_decode_s(&m, &one, 64) - (want * 0.82 + m.size.n_vocab * 0.5e-9)) < 1e-3 * want);
    fit_report_make(&near, &m, &r, 64);
    fit_report_make(&far, &m, &r, 128);
    assert_true(near.decode_tps > far.decode_tps && far.decode_tps > 0 && near.prefill_tps > far.prefill_tps && far.prefill_tps > 0);
    assert_true(fabs(near.decode_tps * fit_decode_s(&m, &r, 64) - 1) < 1e-9);
    /* A prompt: the output matrix once, attention over what each token sees. */
    double values = 0;
    for (int c = 0; c < OPS_CLASSES; c++) values += m.size.read[c].values;
    assert_true(m.size.head_values == (double)m.size.n_vocab * m.size.d_model);
    double prompt = (values * 64 - m.size.head_values * 63) / 0.6e11 + m.size.attend[0].macs * 64 * 64 / 2 / 1e10;
    assert_true(fabs(fit_prefill_s(&m, &r, 64) - prompt) < 1e-9 * prompt);
    m.size.kinds[0].format = KV_F32; /* a format that was not measured: as f16 */
    r.kv_bytes_s[KV_F32] = 0;
    assert_true(fabs(fit_decode_s(&m, &r, 64) - want) < 1e-3 * want);
}

/* REG-111 REG-126: the list has small and large machines, and the answer goes by their memory and bandwidth. */
static void test_other_machines(void **state)
{
    struct fit_model m = model_of(TINY "llama", 1 << 30);
    size_t n;
    const struct fit_sku *s = fit_skus(&n);
    assert_true(n >= 8);
    for (size_t i = 0; i < n; i++) {
        struct fit_report a, b;
        struct fit_sku twice = s[i];
        twice.gbs *= 2;
        fit_report_sku(&a, &m, &s[i], FIT_SKU_CONTEXT);
        fit_report_sku(&b, &m, &twice, FIT_SKU_CONTEXT);
        assert_true(a.fits && a.max_safe_context == m.info.n_context && a.n_context == m.info.n_context);
        assert_true(a.decode_tps > 0 && b.decode_tps > a.decode_tps);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(s[i].name, s[j].name);
    }
    m.size.weight_bytes = (size_t)30e9; /* a large one fits where there is room */
    size_t n_fits = 0;
    for (size_t i = 0; i < n; i++) {
        struct fit_report a;
        fit_report_sku(&a, &m, &s[i], FIT_SKU_CONTEXT);
        assert_int_equal(a.fits, s[i].ram_gb * 1e9 * (s[i].gpu ? 0.92 : 0.85) > 30.2e9);
        n_fits += a.fits;
    }
    assert_true(n_fits > 0 && n_fits < n);
}

/* REG-117: every rate of the measurement is there, whatever the level. */
static void test_the_machine_is_measured(void **state)
{
    static const char *const levels[] = { "portable", NULL };
    for (int i = 0; i < 2; i++) {
        struct engine_load load = { .cpu_level = levels[i], .n_threads = 1 + i };
        struct ops_rates r;
        char device[96];
        mb_error err;
        check(engine_probe(&load, 0.02, &r, device, &err), &err);
        assert_true(strstr(device, levels[i] ? levels[i] : "cpu"));
        assert_int_equal(r.n_threads, 1 + i);
        assert_true(r.read_bytes_s > 1e6 && r.region_s > 0 && r.vocab_s > 0 && r.far_bytes > (double)OPS_NEAR_BYTES);
        for (int t = 0; t < OPS_TIERS; t++) {
            assert_true(r.value_s[t] > 0);
            for (int c = 0; c < OPS_CLASSES; c++) assert_true(r.weight_bytes_s[c][t] > 1e5 && r.near_bytes_s[c][t] > 1e5 && r.macs_s[c][t] > 1e5);
        }
        for (int k = 0; k < KV_FORMAT_COUNT; k++) assert_true(r.kv_bytes_s[k] > 1e5 && r.attn_macs_s[k] > 1e5);
    }
    char chip[96];
    uint64_t ram;
    fit_machine(chip, &ram);
    assert_true(chip[0] && ram > 1 << 20);
}

/* --- control groups --- */

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        mkdir(full, 0700);
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void begin_root(void)
{
    snprintf(root, sizeof root, "/tmp/mb-fit-XXXXXX");
    assert_non_null(mkdtemp(root));
    put("/proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\nMemAvailable:    8000000 kB\n");
}

static void end_root(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    assert_int_equal(system(command), 0);
}

#define FREE ((size_t)8000000 * 1024)

static void test_without_groups(void **state)
{
    begin_root();
    assert_int_equal(engine_memory_available_at(root), FREE);
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/memory.current", "5\n");
    assert_int_equal(engine_memory_available_at(root), FREE);
    end_root();
}

/* The limit of a group above counts too, and file pages that can go do not. */
static void test_groups_of_version_2(void **state)
{
    begin_root();
    put("/proc/self/cgroup", "0::/app.slice/job.scope\n");
    put("/sys/fs/cgroup/app.slice/job.scope/memory.max", "max\n");
    put("/sys/fs/cgroup/app.slice/job.scope/memory.current", "100\n");
    assert_int_equal(engine_memory_available_at(root), FREE);
    put("/sys/fs/cgroup/app.slice/memory.max", "3000000000\n");
    put("/sys/fs/cgroup/app.slice/memory.current", "1000000000\n");
    assert_int_equal(engine_memory_available_at(root), 2000000000);
    put("/sys/fs/cgroup/app.slice/memory.stat", "anon 400000000\nfile 600000000\nactive_file 0\ninactive_file 500000000\n");
    assert_int_equal(engine_memory_available_at(root), 2500000000);
    put("/sys/fs/cgroup/app.slice/job.scope/memory.max", "50\n");
    assert_int_equal(engine_memory_available_at(root), 0);
    end_root();
}

/* In a container the path is the host's and only the root is mounted. */
static void test_groups_of_version_1(void **state)
{
    begin_root();
    put("/proc/self/cgroup", "9:cpu,cpuacct:/x\n7:memory:/docker/abc\n1:name=systemd:/y\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "4000000000\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1500000000\n");
    put("/sys/fs/cgroup/memory/memory.stat", "cache 9\ninactive_file 1\ntotal_inactive_file 500000000\n");
    assert_int_equal(engine_memory_available_at(root), 3000000000);
    put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1\n");
    assert_int_equal(engine_memory_available_at(root), 3000000000);
    put("/proc/self/cgroup", "0::/../../etc\ngarbage\n::\n0::");
    assert_int_equal(engine_memory_available_at(root), 3000000000);
    end_root();
}

/* --- what is kept --- */

/* REG-127 REG-129 API-298 ENG-261 */
static void test_measurements_are_kept(void **state)
{
    struct registry *r;
    struct buf text;
    struct decode_measure d;
    int64_t at;
    mb_error err;
    char path[96];
    begin_root();
    snprintf(path, sizeof path, "%s/cache/registry.sqlite", root);
    check(registry_open(&r, path, &err), &err);
    buf_init(&text, 1 << 10);
    assert_int_equal(measures_machine_get(r, "here", &text, &at, &err), MB_NOT_FOUND);
    check(measures_machine_put(r, "here", "{1}", 3, 5, &err), &err);
    check(measures_machine_put(r, "here", "{22}", 4, 7, &err), &err);
    assert_int_equal(measures_machine_put(r, "here", "x", (64 << 10) + 1, 7, &err), MB_TOO_LARGE);
    assert_int_equal(measures_decode_get(r, "/m@1", "l1 bf16", &d, &err), MB_NOT_FOUND);
    check(measures_decode_put(r, "/m@1", "l1 bf16", &(struct decode_measure){ 12.5, 11, 300, 9 }, &err), &err);
    check(measures_decode_put(r, "/m@1", "l2 bf16", &(struct decode_measure){ 20, 0, 300, 9 }, &err), &err);
    /* The registry of another version is made anew; what was measured stays. */
    registry_close(r);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 77", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    check(registry_open(&r, path, &err), &err);
    check(measures_machine_get(r, "here", &text, &at, &err), &err);
    assert_string_equal(text.data, "{22}");
    assert_int_equal(at, 7);
    check(measures_decode_get(r, "/m@1", "l1 bf16", &d, &err), &err);
    assert_true(d.tokens_per_s == 12.5 && d.predicted_per_s == 11 && d.n_context == 300 && d.at_ms == 9);
    check(measures_decode_get(r, "/m@1", "l2 bf16", &d, &err), &err);
    assert_true(d.tokens_per_s == 20 && d.predicted_per_s == 0);
    assert_int_equal(measures_decode_get(r, "/m@2", "l1 bf16", &d, &err), MB_NOT_FOUND);
    registry_close(r);
    buf_free(&text);
    end_root();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_is_what_the_engine_decides),
        cmocka_unit_test(test_scratch_that_is_touched),
        cmocka_unit_test(test_pages_that_are_kept),
        cmocka_unit_test(test_the_least_budget),
        cmocka_unit_test(test_windows_stop_growing),
        cmocka_unit_test(test_a_model_that_does_not_fit),
        cmocka_unit_test(test_the_same_twice),
        cmocka_unit_test(test_the_pool_before_and_after),
        cmocka_unit_test(test_experts_that_are_read),
        cmocka_unit_test(test_the_time_of_a_token),
        cmocka_unit_test(test_other_machines),
        cmocka_unit_test(test_the_machine_is_measured),
        cmocka_unit_test(test_without_groups),
        cmocka_unit_test(test_groups_of_version_2),
        cmocka_unit_test(test_groups_of_version_1),
        cmocka_unit_test(test_measurements_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
