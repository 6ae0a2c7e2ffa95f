/* cuda_weights.h: for tests of the CUDA products: random packed weights of every form, linear inputs, comparing bits. Header-only.
 */
#ifndef TESTS_KERNELS_CUDA_WEIGHTS_H
#define TESTS_KERNELS_CUDA_WEIGHTS_H

#include "kernels/cuda_calls.h"

struct form {
    const char *name;
    int32_t bits, group, force_q8; /* ck_weight_bytes */
};

/* bfloat16 of any sign, from 2^low below 2^(low + 7). */
static inline uint16_t draw_bf16(uint32_t *x, int32_t low)
{
    uint32_t r = draw(x);
    return (uint16_t)((r & 0x807fu) | ((uint32_t)(127 + low) + (r >> 16) % 7u) << 7);
}

static inline void *random_bf16(size_t n, uint32_t seed, int32_t low)
{
    uint16_t *h = malloc(n * sizeof *h);
    for (size_t i = 0; i < n; i++) h[i] = draw_bf16(&seed, low);
    void *p = on_device(h, n * sizeof *h);
    free(h);
    return p;
}

static inline void *random_codes(size_t n_word, uint32_t seed)
{
    uint32_t *h = malloc(n_word * sizeof *h);
    for (size_t i = 0; i < n_word; i++) h[i] = draw(&seed);
    void *p = on_device(h, n_word * sizeof *h);
    free(h);
    return p;
}

/* lib->free(w.tiles) in the end: the block begins with them. */
static inline struct ck_weight weight_make(const struct ck_ctx *ctx, const struct form *f, int64_t n, int64_t k, uint32_t seed)
{
    struct ck_weight w;
    size_t bytes = lib->weight_bytes(&w, f->bits, f->group, f->force_q8, n, k), n_value = (size_t)(n * k);
    void *src, *scales = NULL, *biases = NULL;
    if (bytes == 0) fail_msg("%s: no such form", f->name);
    lib->weight_place(&w, room(bytes));
    if (f->bits == 0) {
        src = random_bf16(n_value, seed, -12);
    } else {
        src = random_codes(n_value * (size_t)f->bits / 32, seed);
        scales = random_bf16(n_value / (size_t)f->group, seed + 1, -16);
        biases = random_bf16(n_value / (size_t)f->group, seed + 2, -13);
    }
    check(lib->pack(ctx, &w, f->bits, f->group, CK_DT_BF16, src, scales, biases, 0, n, 1, 0, dev->stream), f->name);
    check(lib->stream_wait(dev->stream), "pack");
    lib->free(src);
    if (scales) lib->free(scales);
    if (biases) lib->free(biases);
    return w;
}

static inline struct ck_x input_for(const struct ck_ctx *ctx, void *v, int32_t m, int64_t k)
{
    return (struct ck_x){ .v = v, .layout = lib->x_layout_for(ctx, m), .k = k, .k_pad = (k + 63) / 64 * 64, .mul = 1.0f };
}

static inline float *floats_make(size_t n, uint32_t seed)
{
    float *p = room(n * sizeof *p);
    fill_floats(p, n, seed);
    return p;
}

/* From the card; free() it. */
static inline void *fetch(const void *from, size_t bytes)
{
    void *h = malloc(bytes);
    put(h, from, bytes);
    return h;
}

/* The first of n values of `size` bytes that differs; n: none. */
static inline size_t first_difference(const void *a, const void *b, size_t n, size_t size)
{
    size_t i = 0;
    if (memcmp(a, b, n * size) == 0) return n;
    while (memcmp((const char *)a + i * size, (const char *)b + i * size, size) == 0) i++;
    return i;
}

static inline void all_numbers(const float *v, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!(v[i] - v[i] == 0.0f)) fail_msg("%s: value %zu is not a finite number", what, i);
}

#endif
