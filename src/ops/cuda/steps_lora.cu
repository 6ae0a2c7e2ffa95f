/* steps_lora.cu: adapters: u = A x of each token and each adapter of its stack, then y += B u, adapters in stack order.
 * Sums of A x: 32 lanes, k mod 32, folded by halves; of B u: r rising. A token without adapters is not touched.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/steps.h"

#define WARPS 8

static __device__ const cs_lora_module *module_of(const cs_lora &a, int i, int s)
{
    int token = a.token_of ? a.token_of[i] : i;
    const cs_lora_module *m = a.stack[(int64_t)token * a.stack_max + s];
    return m && m[a.i_module].rank > 0 ? m + a.i_module : NULL;
}

static __device__ float *u_of(const cs_lora &a, int i, int s)
{
    return a.u + ((int64_t)i * a.stack_max + s) * a.rank_max;
}

static __global__ void project_kernel(cs_lora a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int i = (int)blockIdx.x, s = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    const cs_lora_module *m = module_of(a, i, s);
    if (!m) return;
    const float *x = a.x + (int64_t)i * a.ld_x;
    for (int r = (int)threadIdx.x / 32; r < m->rank; r += WARPS) {
        const float *row = m->a + (int64_t)r * a.k;
        float sum = 0.0f;
        for (int64_t k = lane; k < a.k; k += 32) sum = __fmaf_rn(row[k], x[k], sum);
        for (int step = 16; step > 0; step /= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0) u_of(a, i, s)[r] = sum;
    }
}

static __global__ void add_kernel(cs_lora a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int i = (int)blockIdx.y;
    int64_t o = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (o >= a.n) return;
    for (int s = 0; s < a.stack_max; s++) {
        const cs_lora_module *m = module_of(a, i, s);
        if (!m) continue;
        const float *u = u_of(a, i, s);
        float d = 0.0f;
        for (int r = 0; r < m->rank; r++) d = __fmaf_rn(m->b[(int64_t)r * a.n + o], u[r], d);
        a.y[(int64_t)i * a.ld_y + o] = a.y[(int64_t)i * a.ld_y + o] + d;
    }
}

extern "C" int cs_lora_apply(const struct ck_ctx *c, const struct cs_lora *a, cudaStream_t st)
{
    int e = ck_launch(c, project_kernel, dim3((unsigned)a->m, (unsigned)a->stack_max), 32 * WARPS, 0, st, *a);
    return e != 0 ? e : ck_launch(c, add_kernel, dim3((unsigned)((a->n + 255) / 256), (unsigned)a->m), 256, 0, st, *a);
}
