/* test_server_dead.c: the engine thread dies while clients wait. faults: yes (run by `make alloc-fail`; skipped unless the build says
 * FAULTS=1). */
#include "server_rig.h"

#include <signal.h>

static int post(struct server_rig *r, const char *body)
{
    char head[256];
    int fd = srig_connect(r);
    snprintf(head, sizeof head, "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", strlen(body));
    srig_puts(fd, head);
    srig_puts(fd, body);
    return fd;
}

/* B-106 */
static void test_b106_engine_death(void **state)
{
    (void)state;
#ifndef MB_FAULTS
    skip();
#endif
    struct server_rig r;
    struct answer a;
    struct sse s;
    memset(&r, 0, sizeof r);
    rig_init(&r.gen, NULL);
    for (r.gen.n_script = 0; r.gen.n_script < 4000; r.gen.n_script++) rig_encode("a", &r.gen.script[r.gen.n_script], 1);
    r.gen.so.step_delay_ms = 20;
    r.so.shutdown_timeout_ms = 1000;
    srig_start(&r);
    int stream = post(&r, "{" HI ",\"stream\":true}"), whole = post(&r, "{" HI "}");
    assert_true(answer_read(whole, &a)); /* an error, and soon */
    assert_true(a.status >= 500);
    json_decref(answer_json(&a));
    answer_free(&a);
    assert_true(answer_read(stream, &a));
    if (a.status == 200) {
        sse_parse(&a, &s);
        assert_true(s.error[0] && s.done);
        sse_free(&s);
    } else {
        assert_true(a.status >= 500);
    }
    answer_free(&a);
    for (int i = 0; i < 10000; i++) { /* the thread ends after its clients heard of it */
        http_get(&r, "GET", "/health", NULL, &a);
        if (a.status == 503) break;
        answer_free(&a);
        clock_sleep_ms(10);
    }
    assert_int_equal(a.status, 503);
    answer_free(&a);
    http_post(&r, CHAT, "{" HI "}", &a); /* a new one hears it at once */
    assert_int_equal(a.status, 503);
    answer_free(&a);
    close(stream);
    close(whole);
    srig_close(&r);
}

int main(void)
{
    setenv("MLX_BUN_TEST_FAULT", "engine_death=10", 1);
    log_set_sink(rig_quiet, NULL);
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_b106_engine_death) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
