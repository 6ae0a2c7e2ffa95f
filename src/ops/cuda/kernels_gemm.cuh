/* kernels_gemm.cuh: how a block of the products of many tokens works (kernels_gemm.cu, kernels_experts_gemm.cu), sm_90a.
 *
 * A warp fills a ring with two k tiles of 8 row tiles and of the linear input a stage; two warpgroups of 64 rows make their codes 16-bit floats
 * in registers (the A operand) and multiply. While one waits or makes, the other's instructions keep the tensor cores busy.
 */
#ifndef OPS_CUDA_KERNELS_GEMM_CUH
#define OPS_CUDA_KERNELS_GEMM_CUH

#include "ops/cuda/kernels_wgmma.cuh"

#define CK_GEMM_GROUPS 2                             /* warpgroups that multiply */
#define CK_GEMM_TILES (CK_GEMM_GROUPS * 4)           /* row tiles of a block; gated: of gate and of up together */
#define CK_GEMM_THREADS (CK_GEMM_GROUPS * 128 + 128) /* a whole warpgroup brings, so that the others can have its registers */

/* Sizes in bytes. N_TOKEN: tokens of a stage, DEPTH_MAX: stages. */
template <int FMT, int NS, bool GLU, int N_TOKEN, int DEPTH_MAX> struct ck_gemm_ring {
    enum {
        tile = ck_tile_size<FMT, NS>(),
        w_bytes = CK_GEMM_TILES * 2 * tile,
        x_bytes = 2 * 64 * N_TOKEN * 2,
        slot = w_bytes + x_bytes,
        gated = GLU ? CK_GEMM_GROUPS * 32 * N_TOKEN * 2 : 0, /* outputs on their way */
        fit = (226 * 1024 - gated) / slot,
        depth = fit > DEPTH_MAX ? DEPTH_MAX : fit,
        bars = depth * slot + gated,
        bytes = bars + 16 * depth
    };
};

#if __CUDA_ARCH_FEAT_SM90_ALL
/* For the whole block, which then meets: stages that are there, stages that are used up. */
static __device__ __forceinline__ void ck_gemm_begin(uint32_t full, uint32_t empty, int depth)
{
    if (threadIdx.x == 0)
        for (int i = 0; i < depth; i++) {
            ck_mbar_init(full + 8u * (uint32_t)i, 1);
            ck_mbar_init(empty + 8u * (uint32_t)i, CK_GEMM_GROUPS);
        }
    ck_mbar_init_done();
    __syncthreads();
}

/* A stage on, of a warpgroup that multiplies or the warp that brings. */
static __device__ __forceinline__ void ck_gemm_next(int depth, int &slot, uint32_t &phase)
{
    if (++slot == depth) {
        slot = 0;
        phase ^= 1;
    }
}

/* The sums of a warpgroup's rows for N tokens, leaf by leaf. first_tile: of this warp, in a slot; stride: tokens of the input in a slot. */
template <int FMT, int NS, bool GLU, int N, typename G>
static __device__ __forceinline__ void ck_gemm_multiply(int n_ktile, const uint8_t *smem, uint32_t full, uint32_t empty, int &slot, uint32_t &phase, int first_tile,
                                                        int half, int lane, bool leads, int stride, float (&total)[N / 2])
{
    constexpr int tile = G::tile, D = G::depth;
    float acc[N / 2];
    auto before = [&]() { return empty + 8u * (uint32_t)(slot == 0 ? D - 1 : slot - 1); };
#pragma unroll
    for (int i = 0; i < N / 2; i++) total[i] = -0.0f; /* the one value that changes no sum */
    for (int leaf = 0; leaf < CK_LEAVES; leaf++) {
        const int s0 = ck_leaf_first(n_ktile, leaf) / 2, s1 = (ck_leaf_first(n_ktile, leaf + 1) + 1) / 2;
        if (s0 == s1) continue;
        for (int s = s0; s < s1; s++) {
            const uint8_t *w = smem + slot * G::slot + first_tile * 2 * tile;
            const uint32_t x = ck_smem(smem) + (uint32_t)(slot * G::slot) + G::w_bytes;
            const bool two = 2 * s + 1 < n_ktile;
            uint32_t f[2][16];
            wg_rows<FMT, NS, GLU> c[2]; /* of F16 they are the operand itself: read until the products have ended */
            ck_mbar_wait(full + 8u * (uint32_t)slot, phase);
            c[0].load(w, 2 * tile, half, lane);
#pragma unroll
            for (int j = 0; j < 4; j++) c[0].frag(f[0] + 4 * j, j, half, lane);
            wg_fence();
#pragma unroll
            for (int j = 0; j < 4; j++) wg_mma(acc, f[0] + 4 * j, b_desc(x + (uint32_t)(j * 2 * stride * 16), stride), s != s0 || j != 0);
            wg_commit();
            if (two && FMT != CK_F16) c[1].load(w + tile, 2 * tile, half, lane);
            if (s != s0) { /* the stage before is done with */
                wg_wait<1>();
                if (leads) ck_mbar_arrive(before());
            }
            if (two) {
                if (FMT == CK_F16) c[1].load(w + tile, 2 * tile, half, lane);
#pragma unroll
                for (int j = 0; j < 4; j++) c[1].frag(f[1] + 4 * j, j, half, lane);
                wg_fence();
#pragma unroll
                for (int j = 0; j < 4; j++) wg_mma(acc, f[1] + 4 * j, b_desc(x + (uint32_t)((8 + j * 2) * stride * 16), stride), 1);
                wg_commit();
                wg_wait<1>(); /* the first half's registers are free again */
            }
            ck_gemm_next(D, slot, phase);
        }
        wg_wait<0>();
        if (leads) ck_mbar_arrive(before());
#pragma unroll
        for (int i = 0; i < N / 2; i++) total[i] = __fadd_rn(total[i], acc[i]);
    }
}

/* A warpgroup's threads meet. */
static __device__ __forceinline__ void ck_gemm_meet(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

/* A thread's sums of one row of gate and of up, in turn two by two, become a row of the next linear input: `in32` of the warpgroup's 32 in
 * `room`, in the order of CK_X_TILES with N_TOKEN tokens. The warpgroup then meets. a: args with part and glu; inv: 1 / out.mul. */
template <int N, int N_TOKEN, typename A>
static __device__ __forceinline__ void ck_gemm_activate(const A &a, float inv, const struct ck_row &gate, const struct ck_row &up, int row, int in32, int group, int lane,
                                                        const float (&total)[N / 2], __half *room)
{
    __half *to = room + (((in32 >> 2) & 1) * 2 + ((in32 >> 1) & 1)) * N_TOKEN * 8 + (in32 >> 3) * 2 + (in32 & 1) + (lane & 3) * 16;
    auto activate = [&](int kind) { /* each kind's code by itself */
#pragma unroll
        for (int k = 0; k < N / 2; k += k & 1 ? 3 : 1)
            to[((k >> 2) * 8 + (k & 1)) * 8] = __float2half_rn(ck_glu_value(a.part[0], a.part[1], kind, inv, gate, up, row, total[k], total[k + 2]));
    };
    if (a.glu == 0) activate(0);
    else if (a.glu == 1) activate(1);
    else activate(2);
    ck_gemm_meet(group);
}
#endif

#endif
