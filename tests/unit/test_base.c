/* test_base.c: errors, memory, buffers, UTF-8, files, log, clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/filemap.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"

static mb_error err;

static void test_fail_texts(void **state)
{
    (void)state;
    assert_int_equal(mb_fail_at(&err, MB_INVALID, "top_p", "%s must be below %d", "top_p", 1), MB_INVALID);
    assert_string_equal(err.text, "top_p must be below 1");
    assert_string_equal(err.at, "top_p");
    assert_int_equal(mb_error_prefix(&err, "body %d", 7), MB_INVALID);
    assert_string_equal(err.text, "body 7: top_p must be below 1");
    assert_string_equal(err.at, "top_p");
    assert_int_equal(mb_fail(&err, MB_IO, "%s again", err.text), MB_IO); /* the argument is the record itself */
    assert_string_equal(err.text, "body 7: top_p must be below 1 again");
    assert_null(err.at);
    assert_int_equal(mb_fail(NULL, MB_BUSY, "x"), MB_BUSY);
    errno = ENOENT;
    assert_int_equal(mb_fail_errno(&err, "open", "/a"), MB_NOT_FOUND);
    assert_string_equal(err.text, "open /a: No such file or directory");
    errno = EACCES;
    assert_int_equal(mb_fail_errno(&err, "open", "/a"), MB_IO);
    errno = ENOMEM;
    assert_int_equal(mb_fail_errno(&err, "map", "/a"), MB_NO_MEMORY);
}

/* A text that is too long is cut between characters, whatever the offset. */
static void test_fail_cuts_at_character(void **state)
{
    (void)state;
    char text[1200];
    for (int shift = 0; shift < 5; shift++) {
        memset(text, 'a', (size_t)shift);
        text[shift] = 0;
        for (int i = 0; i < 250; i++) strcat(text, "🙂");
        mb_fail(&err, MB_IO, "%s", text);
        assert_true(strlen(err.text) >= 508);
        assert_true(utf8_valid(err.text, strlen(err.text)));
    }
}

static void test_error_table(void **state)
{
    (void)state;
    size_t n;
    const struct error_row *rows = error_rows(&n);
    assert_int_equal(n, MB_INTERNAL + 1);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(rows[i].code, i);
        assert_ptr_equal(error_row_get((mb_status)i), &rows[i]);
        assert_true(rows[i].name && rows[i].meaning && (i == 0 || rows[i].http_type));
        assert_true((rows[i].exit_status == 0) == (i == 0));
        for (size_t j = 0; j < i; j++) assert_int_not_equal(rows[i].exit_status, rows[j].exit_status);
    }
    assert_int_equal(error_row_get((mb_status)999)->code, MB_INTERNAL);
    assert_int_equal(error_row_get((mb_status)-1)->code, MB_INTERNAL);
}

/* API-030, API-319: the body of a prompt above the memory budget */
static void test_api030_context_over_budget_row(void **state)
{
    (void)state;
    const struct error_row *row = error_row_get(MB_CONTEXT_OVER_BUDGET);
    assert_int_equal(row->http_status, 400);
    assert_string_equal(row->http_type, "memory_admission");
    assert_string_equal(row->http_code, "context_over_budget");
    assert_string_equal(error_row_get(MB_CONTEXT_LENGTH)->http_code, "context_length_exceeded");
}

static void test_alloc(void **state)
{
    (void)state;
    void *a = mb_alloc(0), *b = mb_calloc(0, 8), *c = mb_alloc_aligned(64, 100);
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal((uintptr_t)c % 64, 0);
    volatile size_t huge = SIZE_MAX / 2;
    assert_null(mb_calloc(huge, 4));
    char *s = mb_strndup("hello", 3);
    assert_string_equal(s, "hel");
    mb_free(a), mb_free(b), mb_free(c), mb_free(s), mb_free(NULL);
}

static void test_arena(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    unsigned char *p[200];
    for (int i = 0; i < 200; i++) {
        size_t size = (size_t)(i * 97 % 9000) + 1;
        p[i] = arena_alloc(&a, size);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        for (size_t j = 0; j < size; j++) assert_int_equal(p[i][j], 0);
        memset(p[i], i, size);
    }
    for (int i = 0; i < 200; i++) assert_int_equal(p[i][i * 97 % 9000], i); /* nobody overwrote a neighbour */
    assert_string_equal(arena_printf(&a, "%d-%s", 5, "x"), "5-x");
    assert_string_equal(arena_strndup(&a, "abc", 2), "ab");
    assert_false(a.failed);
    assert_null(arena_alloc_array(&a, SIZE_MAX / 2, 3));
    assert_true(a.failed);
    assert_null(arena_alloc(&a, 1)); /* remembered */
    arena_free(&a);
    assert_int_equal(a.used_bytes, 0);
}

static void test_arena_ceiling(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, 1024);
    assert_non_null(arena_alloc(&a, 1000));
    assert_null(arena_alloc(&a, 100));
    assert_true(a.failed);
    arena_free(&a);
    assert_non_null(arena_alloc(&a, 1024)); /* usable again after arena_free */
    arena_free(&a);
}

static void test_buf(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    buf_append_str(&b, "12345");
    buf_printf(&b, "%d", 678);
    buf_append_char(&b, '9');
    assert_string_equal(b.data, "123456789");
    buf_append_str(&b, "xy");
    assert_int_equal(b.failed, MB_TOO_LARGE);
    buf_append_str(&b, "z"); /* a no-op now */
    assert_int_equal(b.len, 9);
    assert_int_equal(buf_status(&b, "header", &err), MB_TOO_LARGE);
    assert_non_null(strstr(err.text, "10 bytes"));
    assert_null(buf_take(&b, NULL));
    buf_clear(&b);
    buf_append(&b, "a\0b", 3);
    size_t len;
    char *taken = buf_take(&b, &len);
    assert_int_equal(len, 3);
    assert_memory_equal(taken, "a\0b", 4);
    mb_free(taken);
    taken = buf_take(&b, &len); /* empty, but a string */
    assert_string_equal(taken, "");
    mb_free(taken);
    buf_free(&b);
    assert_true(str_eq(STR_LIT("ab"), str_of("ab")));
    assert_true(str_starts(STR_LIT("abc"), STR_LIT("ab")));
    assert_false(str_starts(STR_LIT("a"), STR_LIT("ab")));
}

/* Every code point there and back; every surrogate and everything above U+10FFFF refused. */
static void test_utf8_all(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char s[4];
        uint32_t back;
        int n = utf8_encode(cp, s);
        bool surrogate = cp >= 0xD800 && cp <= 0xDFFF;
        assert_int_equal(utf8_decode(s, (size_t)n, &back), surrogate ? 0 : n);
        if (!surrogate) {
            assert_int_equal(back, cp);
            if (n > 1) assert_int_equal(utf8_decode(s, (size_t)n - 1, &back), -1);
        }
    }
}

/* B-050: what one U+FFFD stands for, as Python's errors="replace" counts it */
static void test_b050_invalid_length(void **state)
{
    (void)state;
    static const struct { const char *bytes; size_t len, want; } rows[] = {
        { "\xC0\x80", 2, 1 }, { "\xE2\x82", 2, 2 }, { "\xE2\x82" "A", 3, 2 }, { "\xF0\x9F\x99" "A", 4, 3 },
        { "\xED\xA0\x80", 3, 1 }, { "\xF4\x90\x80\x80", 4, 1 }, { "\x80", 1, 1 }, { "\xFF\xFE", 2, 1 },
        { "\xF0\x80\x80", 3, 1 }, { "\xE0\x9F\x80", 3, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(utf8_invalid_length(rows[i].bytes, rows[i].len), rows[i].want);
    bool cut;
    assert_int_equal(utf8_valid_prefix("abcdefghij\xF0\x9F", 12, &cut), 10);
    assert_true(cut);
    assert_int_equal(utf8_valid_prefix("abcdefgh\xC0xyz", 12, &cut), 8);
    assert_false(cut);
}

static void test_files(void **state)
{
    (void)state;
    char dir[64], sub[160], path[200];
    snprintf(dir, sizeof dir, "/tmp/mb_test_base.%ld", (long)getpid());
    snprintf(sub, sizeof sub, "%s/a/b/", dir);
    assert_int_equal(dir_make(sub, &err), MB_OK);
    assert_int_equal(dir_make(sub, &err), MB_OK);
    assert_true(dir_exists(sub));
    assert_int_equal(path_join(path, sizeof path, sub, "f", &err), MB_OK);
    assert_false(file_exists(path));

    struct filemap m;
    assert_int_equal(filemap_open(&m, path, &err), MB_NOT_FOUND);
    assert_int_equal(filemap_open(&m, dir, &err), MB_IO);
    assert_non_null(strstr(err.text, "is a directory"));
    assert_int_equal(file_write_atomic(path, "", 0, &err), MB_OK);
    assert_int_equal(filemap_open(&m, path, &err), MB_OK);
    assert_null(m.data);
    filemap_close(&m);

    static char big[100000];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 31);
    assert_int_equal(file_write_atomic(path, big, sizeof big, &err), MB_OK);
    assert_int_equal(filemap_open(&m, path, &err), MB_OK);
    assert_int_equal(m.size_bytes, sizeof big);
    filemap_drop(&m, 1, sizeof big * 2);
    assert_memory_equal(m.data, big, sizeof big);
    filemap_close(&m);

    struct buf b;
    buf_init(&b, sizeof big);
    assert_int_equal(file_read(&b, path, sizeof big - 1, &err), MB_TOO_LARGE);
    assert_int_equal(b.len, 0);
    assert_int_equal(file_read(&b, path, sizeof big, &err), MB_OK); /* fills the buffer to its very ceiling */
    assert_memory_equal(b.data, big, sizeof big);
    assert_int_equal(file_read(&b, path, sizeof big, &err), MB_TOO_LARGE);
    buf_free(&b);

    char pipe[200];
    assert_int_equal(path_join(pipe, sizeof pipe, sub, "pipe", &err), MB_OK);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    alarm(20); /* who waits for a writer ends here */
    assert_int_equal(filemap_open(&m, pipe, &err), MB_IO);
    assert_non_null(strstr(err.text, "pipe: is a named pipe, wanted a regular file"));
    buf_init(&b, 0);
    assert_int_equal(file_read(&b, pipe, 100, &err), MB_IO);
    assert_int_equal(file_read(&b, "/dev/zero", 100, &err), MB_IO);
    assert_non_null(strstr(err.text, "/dev/zero: is a device, wanted a regular file"));
    assert_true(path_exists(pipe) && !file_exists(pipe));
    int fd = open(pipe, O_RDWR | O_CLOEXEC), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && null >= 0);
    assert_int_equal(file_read_any(&b, "/dev/null", 100, &err), MB_OK);
    assert_int_equal(write(fd, big, 200), 200);
    assert_int_equal(file_read_any(&b, pipe, 100, &err), MB_TOO_LARGE);
    assert_int_equal(file_read_any(&b, dir, 100, &err), MB_IO);
    alarm(0);
    buf_free(&b);
    close(fd);
    close(null);
    assert_int_equal(unlink(pipe), 0);

    char below[300];
    assert_int_equal(path_join(below, sizeof below, path, "x", &err), MB_OK);
    assert_int_equal(dir_make(below, &err), MB_IO); /* a file is in the way */
    assert_int_equal(file_write_atomic(below, "x", 1, &err), MB_IO);
    snprintf(below, sizeof below, "%s/dangling", dir);
    assert_int_equal(symlink("nowhere", below), 0);
    assert_int_equal(dir_make(below, &err), MB_IO); /* the reason is that of making, not of looking whether it is there */
    assert_non_null(strstr(err.text, "File exists"));
    assert_int_equal(unlink(below), 0);
    assert_int_equal(path_join(below, 5, "abc", "def", &err), MB_TOO_LARGE);
    assert_string_equal(below, "");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(sub), 0); /* no temporary file is left */
    snprintf(path, sizeof path, "%s/a", dir);
    assert_int_equal(rmdir(path) | rmdir(dir), 0);
}

/* What killed writers left goes; what a writer holds and what belongs to other files stays. */
static void test_temps_sweep(void **state)
{
    (void)state;
    static const char *const names[] = { "f.tmp.1", "f.tmp.2", "g.tmp.1", "f.tm", "f" };
    char dir[64], path[5][160], temp[2][200];
    int fd[5];
    snprintf(dir, sizeof dir, "/tmp/mb_test_temps.%ld", (long)getpid());
    assert_int_equal(dir_make(dir, &err), MB_OK);
    for (int i = 0; i < 5; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", dir, names[i]);
        fd[i] = open(path[i], O_RDWR | O_CREAT, 0644);
        assert_true(fd[i] >= 0 && (i != 1 || flock(fd[i], LOCK_EX) == 0));
        if (i != 1) close(fd[i]);
    }
    file_temps_sweep(path[4]);
    for (int i = 0; i < 5; i++) assert_int_equal(file_exists(path[i]), i != 0);
    close(fd[1]);
    file_temps_sweep(path[4]);
    for (int i = 0; i < 5; i++) assert_int_equal(file_exists(path[i]), i > 1);
    for (int i = 0; i < 2; i++) { /* two writers of one process: each a file of its own */
        fd[i] = file_temp_open(path[4], temp[i], sizeof temp[i]);
        assert_true(fd[i] >= 0 && write(fd[i], "abc", 3) == 3);
    }
    assert_string_not_equal(temp[0], temp[1]);
    file_temps_sweep(path[4]);
    assert_true(file_exists(temp[0]) && file_exists(temp[1]));
    close(fd[0]);
    fd[0] = file_temp_open(path[4], temp[0], sizeof temp[0]); /* what is left there is taken over, empty */
    struct stat st;
    assert_true(fstat(fd[0], &st) == 0 && st.st_size == 0);
    for (int i = 0; i < 2; i++) close(fd[i]);
    file_temps_sweep(path[4]);
    for (int i = 2; i < 5; i++) assert_int_equal(unlink(path[i]), 0);
    assert_int_equal(rmdir(dir), 0);
}

static char logged[4096];

static void keep(void *ctx, enum log_level level, const char *area, const char *text)
{
    snprintf(logged, sizeof logged, "%d %s %s %s", (int)level, area, text, (const char *)ctx);
}

static void test_log(void **state)
{
    (void)state;
    log_set_sink(keep, "ctx");
    LOGW("http", "line one\nline %d", 2);
    assert_string_equal(logged, "1 http line one line 2 ctx");
    LOGD("http", "hidden");
    assert_string_equal(logged, "1 http line one line 2 ctx");
    log_set_level(LOG_DEBUG);
    LOGD("x", "%03000d", 1);
    assert_int_equal(strlen(logged), strlen("3 x ") + 2047 + strlen(" ctx"));
    assert_non_null(strstr(logged, "000... ctx"));
    log_set_level(LOG_INFO);
    log_set_sink(NULL, NULL);
}

static void test_clock(void **state)
{
    (void)state;
    int64_t begin = clock_now_ns();
    clock_sleep_ms(5);
    assert_true(clock_now_ns() - begin >= 5000000);
    int64_t s = clock_unix_s(), ms = clock_unix_ms();
    assert_true(ms / 1000 - s <= 1 && s > 1700000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_texts),    cmocka_unit_test(test_fail_cuts_at_character),
        cmocka_unit_test(test_error_table),   cmocka_unit_test(test_api030_context_over_budget_row),
        cmocka_unit_test(test_alloc),         cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_ceiling), cmocka_unit_test(test_buf),
        cmocka_unit_test(test_utf8_all),      cmocka_unit_test(test_b050_invalid_length),
        cmocka_unit_test(test_files),         cmocka_unit_test(test_temps_sweep),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
