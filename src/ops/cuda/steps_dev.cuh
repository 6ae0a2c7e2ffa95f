/* steps_dev.cuh: what several steps do in the same way, and in the same order of operations: a sum over a block, a pair of values rotated.
 */
#ifndef OPS_CUDA_STEPS_DEV_CUH
#define OPS_CUDA_STEPS_DEV_CUH

/* Sum over the block, the same for every thread: lanes by halves, then warps in order. shared: a float a warp; it may be what a sum before
 * this one has used. WARPS: of the block, where that is known. */
template <unsigned WARPS = 0> static __device__ float cs_block_sum(float v, float *shared)
{
    for (int step = 16; step > 0; step /= 2) v = v + __shfl_xor_sync(0xffffffffu, v, step);
    __syncthreads(); /* the last use of shared is over */
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0.0f;
    for (unsigned i = 0; i < (WARPS ? WARPS : blockDim.x / 32); i++) sum = sum + shared[i];
    return sum;
}

/* The pair (x0, x1) turned by cosine c and sine s, to put(place, value). */
template <class Put> static __device__ __forceinline__ void cs_turn(int i0, int i1, float x0, float x1, float c, float s, Put put)
{
    put(i0, __fmaf_rn(x0, c, -(x1 * s)));
    put(i1, __fmaf_rn(x1, c, x0 * s));
}
/* Pair i of 2 * half values at x. cs: half cosines, then the sines. */
template <class Put> static __device__ __forceinline__ void cs_rotate(const float *x, const float *cs, int half, bool interleaved, int i, Put put)
{
    const int i0 = interleaved ? 2 * i : i, i1 = interleaved ? i0 + 1 : i + half;
    const float x0 = x[i0], x1 = x[i1], c = cs[i], s = cs[half + i];
    cs_turn(i0, i1, x0, x1, c, s, put);
}

#endif
