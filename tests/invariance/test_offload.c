/* test_offload.c: experts that stay in a file (--expert-offload): the bits of a model in memory, whatever the cache holds (one expert,
 * two, all), in any chunks, with any number of threads, alone and in batches (ENG-227, T3.18, T5.21); a file that is of something else,
 * cut short or damaged is made anew, one that goes bad under way fails the step with a text that says so, and is read again when it
 * is whole; a full disk ends the start, and leaves nothing behind. */
#include "unit/engine_rig.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "engine/direct.h"
#include "engine/open.h"

enum { N_TOKENS = 90, VOCAB_MAX = 1024 };

static const char *const families[] = { "qwen3_moe", "mixtral", "gpt_oss", "gemma4-moe", "qwen3_5_moe", "qwen3_next",
                                        "deepseek_v3", "glm4_moe_lite", "deepseek_v32", "glm_moe_dsa" };
enum { N_FAMILIES = sizeof families / sizeof families[0] };
static char folder[] = "/tmp/mlx-bun-offload-XXXXXX";
static char file[sizeof folder + 32];

/* A model on a device of its own; its experts in `file` with memory for n_cached of them, or in memory (n_cached 0). */
struct one {
    struct device *dev;
    struct model *model;
    struct direct *d;
};

static mb_status one_open(struct one *o, const char *family, int n_threads, int n_cached, uint64_t key, mb_error *err)
{
    char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", family);
    memset(o, 0, sizeof *o);
    struct device_options dopt = { .n_threads = n_threads, .n_ranks = 1, .experts_path = n_cached ? file : NULL, .experts_key = key };
    mb_status st = ops_cpu.device_open(&o->dev, &dopt, err);
    struct model_options mopt = { .ops = &ops_cpu, .device = o->dev, .tier = TIER_L1, .kv_format = KV_OF_TIER, .n_rows_max = 1,
                                  .expert_offload = n_cached > 0 };
    if (st == MB_OK) st = model_open(&o->model, dir, &mopt, err);
    if (st == MB_OK && n_cached)
        st = ops_cpu.experts_reserve(o->dev, (size_t)n_cached * model_expert_slot_bytes(o->model), err);
    return st == MB_OK ? direct_open(&o->d, o->model, N_TOKENS, err) : st;
}

static void one_close(struct one *o)
{
    if (o->d) direct_close(o->d);
    model_close(o->model);
    ops_cpu.device_close(o->dev);
}

/* Logits of all positions. */
static mb_status one_run(struct one *o, int32_t chunk, float *logits, mb_error *err)
{
    int32_t ids[N_TOKENS], n_vocab = model_plan_get(o->model)->n_vocab;
    static struct draw draws[N_TOKENS];
    assert_true(n_vocab <= VOCAB_MAX);
    for (int32_t i = 0; i < N_TOKENS; i++) ids[i] = (i * 37 + 11) % n_vocab;
    direct_reset(o->d, 1);
    for (int32_t i = 0, n; i < N_TOKENS; i += n) {
        n = N_TOKENS - i < chunk ? N_TOKENS - i : chunk;
        MB_TRY(direct_run(o->d, ids + i, n, NULL, logits + (int64_t)i * n_vocab, draws, err));
    }
    return MB_OK;
}

static float want[N_TOKENS * VOCAB_MAX], got[N_TOKENS * VOCAB_MAX];

static void must(mb_status st, const mb_error *err)
{
    if (st != MB_OK) fail_msg("%s", err->text);
}

static void resident(const char *family)
{
    struct one o;
    mb_error err = { 0 };
    must(one_open(&o, family, 1, 0, 0, &err), &err);
    must(one_run(&o, N_TOKENS, want, &err), &err);
    one_close(&o);
}

static void check_equal(const struct one *o, const char *what)
{
    size_t bytes = (size_t)N_TOKENS * (size_t)model_plan_get(o->model)->n_vocab * sizeof *got;
    if (memcmp(want, got, bytes) != 0) fail_msg("%s: other logits than with the experts in memory", what);
}

/* ENG-227 */
static void test_same_bits_whatever_is_cached(void **state)
{
    static const struct { int n_threads, n_cached; int32_t chunk; } ways[] = {
        { 1, 1, N_TOKENS }, { 3, 1, 7 }, { 2, 2, N_TOKENS }, { 3, 2, 1 }, { 2, 3, 17 }, { 2, 1000, 1 }, { 3, 1000, N_TOKENS },
    };
    for (int f = 0; f < N_FAMILIES; f++) {
        resident(families[f]);
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            struct one o;
            struct ops_expert_stats s;
            char what[96];
            mb_error err = { 0 };
            snprintf(what, sizeof what, "%s, %d cached, %d threads, chunks of %d", families[f], ways[w].n_cached, ways[w].n_threads, (int)ways[w].chunk);
            must(one_open(&o, families[f], ways[w].n_threads, ways[w].n_cached, (uint64_t)f + 1, &err), &err);
            for (int again = 0; again < 2; again++) {
                memset(got, 0, sizeof got);
                must(one_run(&o, ways[w].chunk, got, &err), &err);
                check_equal(&o, what);
            }
            ops_cpu.experts_stats(o.dev, &s);
            bool all = ways[w].n_cached == 1000;
            uint64_t bytes = model_expert_bytes(o.model), each = model_expert_slot_bytes(o.model);
            assert_true(s.n_misses > 0 && s.n_errors == 0 && s.n_slots == (all ? (int32_t)(bytes / each) : ways[w].n_cached));
            assert_int_equal(s.cache_bytes, (uint64_t)s.n_slots * each);
            assert_true(all ? s.read_bytes <= bytes : s.read_bytes > bytes / each);
            one_close(&o);
        }
    }
}

/* --- the file --- */

static struct stat stat_of(const char *path)
{
    struct stat s;
    if (stat(path, &s) != 0) fail_msg("%s is not there", path);
    return s;
}

static int n_files(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void patch(off_t at, uint8_t mask)
{
    uint8_t b;
    int fd = open(file, O_RDWR);
    assert_true(fd >= 0 && pread(fd, &b, 1, at) == 1);
    b ^= mask;
    assert_int_equal(pwrite(fd, &b, 1, at), 1);
    close(fd);
}

/* Opens, runs, closes. */
static void once(uint64_t key, const char *what)
{
    struct one o;
    mb_error err = { 0 };
    must(one_open(&o, "qwen3_moe", 2, 2, key, &err), &err);
    must(one_run(&o, 30, got, &err), &err);
    check_equal(&o, what);
    one_close(&o);
}

static void test_the_file_is_made_once_and_again_when_it_must(void **state)
{
    unlink(file);
    resident("qwen3_moe");
    once(7, "made");
    struct stat first = stat_of(file);
    once(7, "found");
    assert_true(stat_of(file).st_ino == first.st_ino && n_files() == 1);
    once(8, "another key");
    struct stat s = stat_of(file);
    assert_true(s.st_size == first.st_size && (s.st_ino != first.st_ino || s.st_mtim.tv_nsec != first.st_mtim.tv_nsec));
    static const off_t from_start[] = { 3, 9, 20, 40, 60 };
    for (size_t i = 0; i < sizeof from_start / sizeof from_start[0]; i++) {
        patch(from_start[i], 0x41);
        once(8, "damaged head");
    }
    patch(first.st_size - 3, 0x10);
    once(8, "damaged table");
    assert_int_equal(truncate(file, first.st_size / 2), 0);
    once(8, "half a file");
    assert_int_equal(truncate(file, 0), 0);
    once(8, "an empty file");
    char orphan[sizeof file + 32];
    snprintf(orphan, sizeof orphan, "%s.tmp.12345", file);
    int fd = open(orphan, O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0 && close(fd) == 0);
    once(8, "beside what an end by force has left");
    assert_int_equal(n_files(), 2); /* nothing had to be made */
    once(9, "made again");
    assert_int_equal(stat_of(file).st_size, first.st_size);
    assert_int_equal(n_files(), 1);
}

/* The disk lies or fails while the model runs: the step says what and where; afterwards all is as before. */
static void test_a_file_that_goes_bad_fails_the_step(void **state)
{
    struct one o;
    struct ops_expert_stats s;
    mb_error err = { 0 };
    resident("qwen3_moe");
    for (int n_cached = 1; n_cached <= 3; n_cached++) {
        must(one_open(&o, "qwen3_moe", 3, n_cached, 8, &err), &err);
        must(one_run(&o, 30, got, &err), &err);
        off_t whole = stat_of(file).st_size;
        for (off_t at = 4096; at < whole - 4096; at += 8192) patch(at + 100, 0x80);
        assert_int_equal(one_run(&o, N_TOKENS, got, &err), MB_IO);
        assert_true(strstr(err.text, "damaged") && strstr(err.text, file) && strstr(err.text, "expert"));
        for (off_t at = 4096; at < whole - 4096; at += 8192) patch(at + 100, 0x80);
        must(one_run(&o, 7, got, &err), &err);
        check_equal(&o, "after damage");
        char *copy = malloc((size_t)whole);
        int fd = open(file, O_RDWR);
        assert_int_equal(pread(fd, copy, (size_t)whole, 0), whole);
        assert_int_equal(ftruncate(fd, 4096), 0);
        assert_int_equal(one_run(&o, 1, got, &err), MB_IO);
        assert_true(strstr(err.text, "ends inside") && strstr(err.text, file));
        assert_int_equal(pwrite(fd, copy, (size_t)whole, 0), whole);
        close(fd);
        free(copy);
        must(one_run(&o, 11, got, &err), &err);
        check_equal(&o, "after a cut");
        ops_cpu.experts_stats(o.dev, &s);
        assert_true(s.n_errors >= 2);
        one_close(&o);
    }
}

/* No room for the file: the start fails with the reason, and no half of it stays. */
static void test_no_room_for_the_file(void **state)
{
    struct one o;
    mb_error err = { 0 };
    struct rlimit old, small;
    unlink(file);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 20000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    mb_status st = one_open(&o, "qwen3_moe", 2, 2, 8, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, MB_IO);
    assert_true(strstr(err.text, "no room") && strstr(err.text, file) && strstr(err.text, "--cache-dir"));
    if (o.dev) one_close(&o);
    assert_int_equal(n_files(), 0);
    resident("qwen3_moe");
    once(8, "with room again");
}

/* --- through the engine --- */

static void engine_start(struct rig *r, const char *family, int32_t batch, int32_t chunk, int n_threads, uint64_t cache_bytes, bool offload)
{
    char dir[128];
    struct engine_loaded info;
    mb_error err = { 0 };
    rig_init(r);
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", family);
    struct engine_load load = { .dir = dir, .kv_format = KV_OF_TIER, .n_threads = n_threads, .expert_offload = offload, .expert_dir = folder,
                                .expert_cache_bytes = cache_bytes,
                                .engine = { .batch = batch, .queue_max = 32, .prefill_chunk = chunk, .prompt_cache_bytes = 1 << 20 } };
    must(engine_load(&r->engine, &load, &info, &err), &err);
    assert_true((info.expert_bytes > 0) == offload && info.expert_cache_bytes <= info.expert_bytes);
}

static void start_job(struct rig_job *j, struct rig *r, uint32_t seed)
{
    int32_t n = 60 - 9 * (int32_t)seed, n_vocab = engine_info(r->engine)->n_vocab;
    job_init(j, r, n, 0, seed);
    for (int32_t i = 0; i < n; i++) j->ids[i] %= n_vocab;
    j->job.max_tokens = 12;
    j->job.params.n_vocab_live = n_vocab;
    j->job.params.temperature = 0.8f;
    j->job.params.min_keep = 1;
    job_submit(j);
}

/* T3.18 T5.21: in batches, the same ids and log-probabilities as alone with all in memory. */
static void test_batches(void **state)
{
    enum { N = 4 };
    static const struct { int32_t batch, chunk; int n_threads; uint64_t cache_bytes; } ways[] = {
        { 4, 0, 2, 1 }, { 3, 7, 3, 20000 }, { 1, 16, 2, 1 }, { 4, 64, 1, 1 << 30 },
    };
    for (int f = 0; f < N_FAMILIES; f += 2) {
        struct rig r;
        struct rig_job alone[N], j[N];
        engine_start(&r, families[f], 1, 0, 1, 0, false);
        for (uint32_t i = 0; i < N; i++) {
            start_job(&alone[i], &r, i);
            job_wait(&alone[i]);
        }
        rig_close(&r);
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            engine_start(&r, families[f], ways[w].batch, ways[w].chunk, ways[w].n_threads, ways[w].cache_bytes, true);
            for (uint32_t i = 0; i < N; i++) start_job(&j[i], &r, i);
            for (int i = 0; i < N; i++) {
                job_wait(&j[i]);
                assert_same_output(&j[i], &alone[i], 0);
                job_free(&j[i]);
            }
            assert_true(rig_stats(&r).experts.n_slots > 0 && rig_stats(&r).experts.n_misses > 0);
            rig_close(&r);
        }
        for (int i = 0; i < N; i++) job_free(&alone[i]);
    }
}

static int set_up(void **state)
{
    log_set_sink(rig_quiet, NULL);
    if (!mkdtemp(folder)) return -1;
    snprintf(file, sizeof file, "%s/one.experts", folder);
    return 0;
}

static int tear_down(void **state)
{
    DIR *d = opendir(folder);
    char path[sizeof folder + 300];
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_whatever_is_cached), cmocka_unit_test(test_the_file_is_made_once_and_again_when_it_must),
        cmocka_unit_test(test_a_file_that_goes_bad_fails_the_step), cmocka_unit_test(test_no_room_for_the_file),
        cmocka_unit_test(test_batches),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
