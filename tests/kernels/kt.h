/* kt.h: what the kernel tests share: seeded numbers, guarded buffers, bit comparison, the levels of this machine, timing.
 *
 * After checkasm: every level is compared with the plain portable build on random inputs shaped to reach each branch;
 * outputs lie between guard bytes; the seed is printed and taken from MLX_BUN_TEST_SEED; --bench times the same cases.
 * Two NaN are equal whatever their payload: the instruction sets differ there and nothing reads it.
 */
#ifndef TESTS_KERNELS_KT_H
#define TESTS_KERNELS_KT_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "ops/cpu/kernels.h"
#include "ops/mathfn.h"

#define KT_GUARD 64
#define KT_FILL 0xA5

struct kt_buf {
    uint8_t *raw, *p; /* p: 64-byte aligned data between two guards */
    size_t size;
};

static uint64_t kt_state;

static inline uint32_t kt_u32(void)
{
    kt_state = kt_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = kt_state;
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdu;
    x ^= x >> 29;
    return (uint32_t)(x >> 16);
}

static inline int kt_below(int n)
{
    return (int)(kt_u32() % (uint32_t)n);
}

static inline float kt_unit(void) /* [-1, 1) */
{
    return (float)(kt_u32() >> 8) * 0x1p-23f - 1.0f;
}

/* Heavier tails than a uniform number: now and then ten times larger. */
static inline float kt_value(void)
{
    float v = kt_unit();
    return kt_below(32) == 0 ? v * 10.0f : v;
}

static inline void kt_seed(void)
{
    const char *s = getenv("MLX_BUN_TEST_SEED");
    kt_state = s ? strtoull(s, NULL, 0) : (uint64_t)time(NULL) * 2654435761u;
    printf("seed: MLX_BUN_TEST_SEED=%llu\n", (unsigned long long)kt_state);
}

static inline struct kt_buf kt_alloc(size_t size)
{
    struct kt_buf b;
    size_t total = (size + 2 * KT_GUARD + 127) / 64 * 64;
    b.raw = aligned_alloc(64, total);
    assert_non_null(b.raw);
    memset(b.raw, KT_FILL, total);
    b.p = b.raw + KT_GUARD;
    b.size = size;
    return b;
}

static inline void kt_free(struct kt_buf *b)
{
    for (int i = 0; i < KT_GUARD; i++) {
        if (b->p[-1 - i] != KT_FILL) fail_msg("guard byte %d before the buffer was written", -1 - i);
        if (b->p[b->size + (size_t)i] != KT_FILL) fail_msg("guard byte %d after the buffer was written", i);
    }
    free(b->raw);
    memset(b, 0, sizeof *b);
}

static inline uint32_t kt_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline bool kt_same(float a, float b)
{
    return kt_bits(a) == kt_bits(b) || (a != a && b != b);
}

static inline void kt_expect_same(const float *want, const float *got, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!kt_same(want[i], got[i]))
            fail_msg("%s: element %zu of %zu: want %a (%08x), got %a (%08x)", what, i, n, (double)want[i],
                     kt_bits(want[i]), (double)got[i], kt_bits(got[i]));
}

/* Levels of this machine; index 0 is the portable build with hardware fma (or the plain one again). */
static inline int kt_levels(struct cpu_kernels t[CPU_LEVEL_COUNT])
{
    int top = (int)cpu_level_detect();
    for (int l = 0; l <= top; l++) cpu_kernels_fill(&t[l], (enum cpu_level)l);
    return top + 1;
}

static inline double kt_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Best time of one call in seconds, over about 0.15 s. */
#define KT_TIME(best, call)                                    \
    do {                                                       \
        (best) = 1e9;                                          \
        double kt_t0 = kt_now(), kt_end = kt_t0 + 0.15;        \
        do {                                                   \
            double kt_a = kt_now();                            \
            call;                                              \
            double kt_b = kt_now();                            \
            if (kt_b - kt_a < (best)) (best) = kt_b - kt_a;    \
            kt_t0 = kt_b;                                      \
        } while (kt_t0 < kt_end);                              \
    } while (0)

static inline bool kt_bench_asked(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "--bench") == 0;
}

#endif
