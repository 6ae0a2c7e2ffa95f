/* Choosing bits under a bound, with guards (convert/ckpt_choose.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "convert/ckpt_choose.h"

#define N_WEIGHTS 8000
#define N_BLOCKS 12
#define TARGET 5.0

/* Two modules a block, then a head. 3, 4, 6 and 8 bits, without scales; a module's loss halves a bit. */
static size_t model_make(struct mixed_module m[2 * N_BLOCKS + 1], const double weight[N_BLOCKS], double head)
{
    static const int bits[] = { 3, 4, 6, 8 };
    size_t n = 2 * N_BLOCKS + 1;
    memset(m, 0, n * sizeof *m);
    for (size_t i = 0; i < n; i++) {
        m[i].block = i + 1 < n ? (int)i / 2 : -1;
        m[i].n_weights = N_WEIGHTS;
        m[i].n_choices = 4;
        for (int k = 0; k < 4; k++)
            m[i].choice[k] = (struct choice){ .spec = { QUANT_AFFINE, bits[k], 64 }, .bytes = (uint64_t)bits[k] * N_WEIGHTS / 8,
                                              .loss = (i + 1 < n ? weight[i / 2] : head) / (1 << bits[k]) };
    }
    return n;
}

static uint64_t room_for(size_t n, double target)
{
    return (uint64_t)((target - 3) * N_WEIGHTS / 8) * n;
}

static int bits_of(const struct mixed_module *m)
{
    return m->choice[m->i_now].spec.bits;
}

static double mean_of(const struct mixed_module *m, int block)
{
    return (bits_of(&m[2 * block]) + bits_of(&m[2 * block + 1])) / 2.0;
}

static void test_block_of(void **state)
{
    (void)state;
    assert_int_equal(choose_block_of("model.layers.17.mlp.up_proj"), 17);
    assert_int_equal(choose_block_of("layers.0.x"), 0);
    assert_int_equal(choose_block_of("model.embed_tokens"), -1);
    assert_int_equal(choose_block_of("model.players.3.x"), -1);
    assert_int_equal(choose_block_of("model.layers.x.y"), -1);
    assert_int_equal(choose_block_of("model.layers.99999999999.y"), -1);
}

/* REG-204: even losses get even bits, and more weight gets more; never above the bound; the same twice. */
static void test_greedy(void **state)
{
    struct mixed_module a[2 * N_BLOCKS + 1], b[2 * N_BLOCKS + 1];
    double weight[N_BLOCKS];
    (void)state;
    for (int i = 0; i < N_BLOCKS; i++) weight[i] = 1 + i;
    size_t n = model_make(a, weight, 6);
    model_make(b, weight, 6);
    uint64_t used = choose_bits(a, n, room_for(n, TARGET), TARGET), sum = 0;
    assert_true(used <= room_for(n, TARGET) && choose_bits(b, n, room_for(n, TARGET), TARGET) == used);
    for (size_t i = 0; i < n; i++) {
        sum += a[i].choice[a[i].i_now].bytes - a[i].choice[0].bytes;
        assert_int_equal(a[i].i_now, b[i].i_now);
    }
    assert_int_equal(sum, used);
    assert_true(mean_of(a, N_BLOCKS - 1) > mean_of(a, 0));
    assert_int_equal(choose_bits(a, n, 0, TARGET), 0); /* no room: the guards yield */
    for (size_t i = 0; i < n; i++) assert_int_equal(bits_of(&a[i]), 3);
}

/* REG-205: embedding, head, first and last block keep 4 bits though the figures see no use in it. */
static void test_protected(void **state)
{
    struct mixed_module m[2 * N_BLOCKS + 1];
    double weight[N_BLOCKS];
    (void)state;
    for (int i = 0; i < N_BLOCKS; i++) weight[i] = i == 0 || i == N_BLOCKS - 1 ? 1e-9 : 1;
    size_t n = model_make(m, weight, 1e-9);
    choose_bits(m, n, room_for(n, 4.5), 4.5);
    assert_true(bits_of(&m[0]) >= 4 && bits_of(&m[1]) >= 4 && bits_of(&m[n - 2]) >= 4 && bits_of(&m[n - 3]) >= 4 && bits_of(&m[n - 1]) >= 4);
}

/* REG-205: a block that nothing speaks for does not fall below its floor; with a high target that is more than 3 bits. */
static void test_block_floor(void **state)
{
    struct mixed_module m[2 * N_BLOCKS + 1];
    double weight[N_BLOCKS];
    (void)state;
    for (int i = 0; i < N_BLOCKS; i++) weight[i] = i == 5 ? 1e-9 : 1;
    size_t n = model_make(m, weight, 1);
    choose_bits(m, n, room_for(n, 6), 6);
    assert_true(mean_of(m, 5) >= CHOOSE_FLOOR * 6);
}

/* REG-205: not more than four blocks in a row are low. */
static void test_runs(void **state)
{
    struct mixed_module m[2 * N_BLOCKS + 1];
    double weight[N_BLOCKS];
    (void)state;
    for (int i = 0; i < N_BLOCKS; i++) weight[i] = i > 0 && i < N_BLOCKS - 1 ? 1e-9 : 1e9;
    size_t n = model_make(m, weight, 1e9);
    /* Both ends and the head at 8 bits, one module a block at 4 (its floor), and four modules more. */
    uint64_t room = 5 * 5 * N_WEIGHTS / 8 + (N_BLOCKS - 2 + 4) * N_WEIGHTS / 8;
    assert_true(choose_bits(m, n, room, TARGET) <= room);
    int run = 0, longest = 0;
    for (int b = 0; b < N_BLOCKS; b++) {
        run = mean_of(m, b) < CHOOSE_LOW * TARGET ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    assert_true(longest <= 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_block_of), cmocka_unit_test(test_greedy), cmocka_unit_test(test_protected),
                                        cmocka_unit_test(test_block_floor), cmocka_unit_test(test_runs) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
