/* test_fault.c: fault points. faults: yes (also run by `make alloc-fail`, in a build that has them; elsewhere the tests
 * check that a fault that is set does nothing, and skip the rest). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"

static void test_plain_build_has_no_faults(void **state)
{
    (void)state;
#ifdef MB_FAULTS
    skip();
#endif
    for (int i = 0; i < 10; i++) assert_false(fault_hit("once"));
    assert_int_equal(fault_value("number", 5), 5);
}

static void test_hit_once_and_later(void **state)
{
    (void)state;
#ifndef MB_FAULTS
    skip();
#endif
    for (int i = 1; i <= 6; i++) assert_int_equal(fault_hit("once"), i == 3);
    for (int i = 1; i <= 6; i++) assert_int_equal(fault_hit("later"), i >= 3);
    assert_false(fault_hit("unset"));
    assert_int_equal(fault_value("number", 5), -42);
    assert_int_equal(fault_value("unset", 5), 5);
}

static void test_alloc_every(void **state)
{
    (void)state;
#ifndef MB_FAULTS
    skip();
#endif
    int n_failed = 0;
    for (int i = 0; i < 40000; i++) {
        void *p = mb_alloc(8);
        n_failed += !p;
        mb_free(p);
    }
    assert_in_range(n_failed, 300, 500); /* 1 in 100 */
    /* jansson is reached too, and json_read says so with the right status */
    int n_json = 0;
    for (int i = 0; i < 1000; i++) {
        json_t *v;
        mb_status status = json_read(&v, "{\"a\":[\"a long string value\",1]}", 31, 0, NULL);
        assert_true(status == MB_OK || status == MB_NO_MEMORY);
        assert_true((v != NULL) == (status == MB_OK));
        n_json += status != MB_OK;
        json_decref(v);
    }
    assert_true(n_json > 20);
}

static void test_disk_full(void **state)
{
    (void)state;
#ifndef MB_FAULTS
    skip();
#endif
    mb_error err;
    char dir[] = "/tmp/mb_test_fault.XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    assert_int_equal(path_join(path, sizeof path, dir, "f", &err), MB_OK);
    assert_int_equal(file_write_atomic(path, "old", 3, &err), MB_OK);
    assert_int_equal(file_write_atomic(path, "new", 3, &err), MB_IO); /* disk_full=2 */
    assert_non_null(strstr(err.text, "No space left"));
    char now[4] = "";
    int fd = open(path, 0);
    assert_int_equal(read(fd, now, 3), 3);
    close(fd);
    assert_string_equal(now, "old"); /* the old bytes are whole */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0); /* and no temporary file is left */
}

static void test_clock_shift(void **state)
{
    (void)state;
#ifndef MB_FAULTS
    skip();
#endif
    assert_in_range(clock_unix_s() - time(NULL), 3599, 3601);
}

int main(void)
{
    setenv("MLX_BUN_TEST_FAULT", "once=3;later=3+;number=-42;alloc_every=100:7;disk_full=2;clock=3600000", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_build_has_no_faults), cmocka_unit_test(test_hit_once_and_later),
        cmocka_unit_test(test_alloc_every), cmocka_unit_test(test_disk_full), cmocka_unit_test(test_clock_shift),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
