/* cuda_rig.h: is there a GPU? What the tests of the CUDA backend share: they skip without one. MLX_BUN_TEST_DEVICE=cuda:1 takes another
 * card. Header-only.
 */
#ifndef TESTS_KERNELS_CUDA_RIG_H
#define TESTS_KERNELS_CUDA_RIG_H

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

static bool have_gpu;

static inline const char *device_name(void)
{
    const char *name = getenv("MLX_BUN_TEST_DEVICE");
    return name && strncmp(name, "cuda", 4) == 0 ? name : "cuda";
}

static inline mb_status open_gpu(struct device **dev, mb_error *err)
{
    const struct ops *ops;
    struct device_options opt = { .n_ranks = 1 };
    MB_TRY(ops_parse(device_name(), &ops, &opt, err));
    return ops->device_open(dev, &opt, err);
}

/* A group's set-up. */
static inline int look_for_gpu(void **state)
{
    struct device *dev;
    mb_error err = { 0 };
    (void)state;
    have_gpu = open_gpu(&dev, &err) == MB_OK;
    if (have_gpu) ops_cuda.device_close(dev);
    else printf("no GPU: %s\n", err.text);
    return 0;
}

#define NEEDS_GPU()              \
    do {                         \
        (void)state;             \
        if (!have_gpu) skip();   \
    } while (0)

#endif
