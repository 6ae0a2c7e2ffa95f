/* cuda_calls.h: for tests that call the kernels themselves: one card, open while the group runs, its library, memory on it. Other tests see no
 * more of the backend than cuda_rig.h shows them. Header-only; an error ends the test with what was being done.
 */
#ifndef TESTS_KERNELS_CUDA_CALLS_H
#define TESTS_KERNELS_CUDA_CALLS_H

#include "kernels/cuda_rig.h"

#include "ops/cuda/cuda_int.h"

static struct device *dev;
static const struct cuda_library *lib;

static inline void check(int code, const char *what)
{
    if (code != 0) fail_msg("%s: %s", what, lib->error_text(code));
}

static inline void *room(size_t bytes)
{
    void *p;
    check(lib->alloc(&p, bytes), "memory");
    return p;
}

/* To the card or from it. */
static inline void put(void *to, const void *from, size_t bytes)
{
    check(lib->copy(to, from, bytes, dev->stream), "copy");
    check(lib->stream_wait(dev->stream), "copy");
}

static inline uint32_t draw(uint32_t *x)
{
    *x ^= *x << 13, *x ^= *x >> 17, *x ^= *x << 5;
    return *x;
}

/* Values below 1 of any sign, in host memory; free() them. */
static inline float *floats(size_t n, uint32_t seed)
{
    float *h = malloc(n * sizeof *h);
    for (size_t i = 0; i < n; i++) h[i] = (float)(int32_t)draw(&seed) * 0x1p-31f;
    return h;
}
static inline void fill_floats(float *to, size_t n, uint32_t seed)
{
    float *h = floats(n, seed);
    put(to, h, n * sizeof *h);
    free(h);
}

static inline void *on_device(const void *from, size_t bytes)
{
    void *p = room(bytes);
    put(p, from, bytes);
    return p;
}

/* A group's set-up and its end. */
static inline int open_card(void **state)
{
    mb_error err = { 0 };
    look_for_gpu(state);
    if (!have_gpu) return 0;
    if (open_gpu(&dev, &err) != MB_OK) return -1;
    lib = dev->lib;
    return 0;
}
static inline int close_card(void **state)
{
    (void)state;
    if (dev) ops_cuda.device_close(dev);
    return 0;
}

#endif
