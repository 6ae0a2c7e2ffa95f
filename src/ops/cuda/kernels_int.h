/* kernels_int.h: entries between the kernel files; not for callers. */
#ifndef OPS_CUDA_KERNELS_INT_H
#define OPS_CUDA_KERNELS_INT_H

#include "ops/cuda/kernels.h"

/* kernels_gemm.cu: x in CK_X_TILES; parts of one format. */
extern "C" int ck_gemm(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st);
extern "C" int ck_gemm_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st);

#endif
