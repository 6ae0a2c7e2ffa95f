/* plain_read.h: reading memory in the ways a plain program would try: one march or several side by side, with and without hints. What a
 * kernel reaches is compared with the best of them, so they must not be an easy mark: on huge pages, as weights lie. */
#ifndef PLAIN_READ_H
#define PLAIN_READ_H

#include <stddef.h>
#include <stdint.h>

struct read_way {
    int n_streams;      /* so many parts are read in turn */
    size_t ahead_bytes; /* hints go so far ahead; 0: none */
};

static const struct read_way read_ways[] = { { 1, 0 }, { 1, 2048 }, { 4, 0 }, { 4, 512 }, { 4, 2048 }, { 8, 0 }, { 8, 1024 } };
#define N_READ_WAYS ((int)(sizeof read_ways / sizeof *read_ways))
#define READ_STRETCH 256 /* bytes of one stream before the next */

static inline uint64_t sum_stretch(const char *p)
{
    const uint64_t *v = (const uint64_t *)(const void *)p;
    uint64_t s[8] = { 0 };
    for (int i = 0; i < READ_STRETCH / 8; i += 8)
        for (int k = 0; k < 8; k++) s[k] += v[i + k];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

/* The sum of n_bytes at p, but for a rest of less than n_streams stretches; the last hints look behind the end. A function of its own:
 * inside a large one its eight sums may not stay in registers, and it reads at half of the rate. */
static __attribute__((noinline)) uint64_t plain_read(const char *p, size_t n_bytes, const struct read_way *way)
{
    size_t part = n_bytes / (size_t)way->n_streams / READ_STRETCH * READ_STRETCH;
    uint64_t sum = 0;
    for (size_t at = 0; at < part; at += READ_STRETCH)
        for (int k = 0; k < way->n_streams; k++) {
            const char *q = p + (size_t)k * part + at;
            if (way->ahead_bytes)
                for (int i = 0; i < READ_STRETCH; i += 64) __builtin_prefetch(q + way->ahead_bytes + i);
            sum += sum_stretch(q);
        }
    return sum;
}

#endif
