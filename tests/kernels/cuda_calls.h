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
