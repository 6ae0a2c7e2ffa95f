/* test_token_rate.c: tokens per second of requests together, from made-up times. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/token_rate.h"

enum { LANES = 32, TOKENS = 128 };

struct made {
    int64_t t_ns[LANES][TOKENS];
    struct token_times of[LANES];
};

/* n requests of `tokens` tokens: request i's first one at start + i * apart, then one a step. */
static void make(struct made *m, int n, int tokens, int64_t start, int64_t apart, int64_t step)
{
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < tokens; j++) m->t_ns[i][j] = start + i * apart + j * step;
        m->of[i] = (struct token_times){ m->t_ns[i], tokens };
    }
}

static void assert_rate(double got, double want)
{
    if (fabs(got / want - 1) > 1e-9) fail_msg("%.9g tokens/s instead of %.9g", got, want);
}

/* A step's tokens come one after the other: the rate is tokens of a step over its time, whoever comes first. */
static void test_a_steps_tokens_all_count(void **state)
{
    static struct made m;
    struct token_rates r;
    make(&m, LANES, TOKENS, 5000000, 1000, 100000);
    token_rates_of(m.of, LANES, 1000000, &r);
    assert_rate(r.decode_tok_s, LANES / 100e-6);
    assert_rate(r.first_s, (4000000 + 31 * 1000) * 1e-9);
}

/* Prompts that are read one after the other: what comes before all have begun, or behind the first end, does not count. */
static void test_only_while_all_generate(void **state)
{
    static struct made m;
    struct token_rates r;
    make(&m, 2, TOKENS, 0, 3000000, 100000);
    for (int j = 0; j < TOKENS; j++)
        if (m.t_ns[0][j] < m.t_ns[1][0]) m.t_ns[0][j] -= 1000000000; /* alone it was much slower */
    token_rates_of(m.of, 2, 0, &r);
    assert_rate(r.decode_tok_s, 2 / 100e-6);
}

/* Two tokens that a reader finds at once, and then none until the other one has ended, weigh as little as the time between them. */
static void test_a_burst_does_not_decide(void **state)
{
    static struct made m;
    struct token_rates r;
    make(&m, 2, 101, 0, 0, 1000000);
    m.of[1].n = 3;
    m.t_ns[1][0] = 90000000;
    m.t_ns[1][1] = 90000001;
    m.t_ns[1][2] = 200000000;
    token_rates_of(m.of, 2, 0, &r);
    assert_rate(r.decode_tok_s, 2 * 11 / (10000001 * 1e-9));
}

/* No time in which all generate, or fewer than two tokens of one in it: all that comes behind the last one's first token. */
static void test_without_a_common_time(void **state)
{
    static struct made m;
    struct token_rates r;
    make(&m, 2, 11, 1000, 50000, 1000); /* the first one has ended before the second begins */
    token_rates_of(m.of, 2, 0, &r);
    assert_rate(r.decode_tok_s, 1 / 1e-6);
    make(&m, 2, 11, 1000, 10000, 1000); /* one token of each in common */
    token_rates_of(m.of, 2, 0, &r);
    assert_rate(r.decode_tok_s, 1 / 1e-6);
}

static void test_too_few_tokens(void **state)
{
    static struct made m;
    struct token_rates r;
    make(&m, 3, 1, 7000, 0, 0);
    token_rates_of(m.of, 3, 2000, &r);
    assert_true(r.decode_tok_s == 0);
    assert_rate(r.first_s, 5000e-9);
    make(&m, 2, 11, 1000, 0, 1000);
    m.of[1].n = 0; /* nothing came */
    token_rates_of(m.of, 2, 0, &r);
    assert_rate(r.decode_tok_s, 1 / 1e-6);
    token_rates_of(m.of, 0, 2000, &r);
    assert_true(r.decode_tok_s == 0 && r.first_s == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_steps_tokens_all_count), cmocka_unit_test(test_only_while_all_generate), cmocka_unit_test(test_a_burst_does_not_decide),
        cmocka_unit_test(test_without_a_common_time),    cmocka_unit_test(test_too_few_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
