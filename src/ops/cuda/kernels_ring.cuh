/* kernels_ring.cuh: what the products with mma.sync share (kernels_linear.cu, kernels_experts.cu): the leaf sums of a block's row tiles, and
 * the ring through which its weights come. Which rows and columns a block takes, and what becomes of the sums, is each file's own.
 *
 * A block owns RT tiles of 16 rows at a time and takes 8 leaves of k at once, one a warp; leaf sums meet in shared memory and are added in
 * order. Columns (tokens) are 8 an instruction, NT instructions.
 * sm_90: eight warps multiply, one leaf each; a ninth brings weights by bulk copies into a ring of stages (some tiles of every leaf), far
 * ahead, over units; others add the leaf sums. So the warps that multiply do nothing else, and neither the summing nor what it reads from
 * memory is waited for. Up to 16 columns two blocks share a multiprocessor.
 */
#ifndef OPS_CUDA_KERNELS_RING_CUH
#define OPS_CUDA_KERNELS_RING_CUH

#include "ops/cuda/kernels_dev.cuh"

/* Row tile r of a unit: plain units are RT neighbours, gated ones RT / 2 of gate, then the same of up. */
template <int RT, bool GLU> static __device__ __forceinline__ int ck_row_tile(int unit, int r) { return GLU ? unit * (RT / 2) + r % (RT / 2) : unit * RT + r; }

/* Codes of one tile against NT x 8 columns. */
template <int FMT, int NS, int NT, int RT>
static __device__ __forceinline__ void ck_tile_product(float (&acc)[RT][NT][4], const ck_lane_tile<FMT, NS> (&w)[RT], const uint4 (&x)[NT][2], int lane)
{
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int r = 0; r < RT; r++) {
            uint32_t f[4];
            w[r].frag(f, j, lane);
#pragma unroll
            for (int q = 0; q < NT; q++) {
                const uint4 v = x[q][j >> 1];
                ck_mma_f16(acc[r][q], f, j & 1 ? v.z : v.x, j & 1 ? v.w : v.y);
            }
        }
}

/* A warp's leaf sums to where they meet those of the other leaves. */
template <int NT, int RT> static __device__ __forceinline__ void ck_leaf_put(float4 (&to)[RT][NT][32], const float (&acc)[RT][NT][4], int lane)
{
#pragma unroll
    for (int r = 0; r < RT; r++)
#pragma unroll
        for (int q = 0; q < NT; q++) to[r][q][lane] = make_float4(acc[r][q][0], acc[r][q][1], acc[r][q][2], acc[r][q][3]);
}

/* Leaf sums of row tile r, eighth q of the columns, in order. */
template <int NT, int RT> static __device__ __forceinline__ float4 ck_leaves_sum(const float4 (*red)[RT][NT][32], int r, int q, int l)
{
    float4 s = red[0][r][q][l];
#pragma unroll
    for (int k = 1; k < CK_LEAVES; k++) {
        const float4 v = red[k][r][q][l];
        s.x = __fadd_rn(s.x, v.x);
        s.y = __fadd_rn(s.y, v.y);
        s.z = __fadd_rn(s.z, v.z);
        s.w = __fadd_rn(s.w, v.w);
    }
    return s;
}

/* Sizes in bytes. SHORT: stages of half the size; N_RED: how many units' leaf sums have room where they are few; ROOM_KB: of a block. */
template <int FMT, int NS, int NT, int RT, bool SHORT, int N_RED, int ROOM_KB> struct ck_ring {
    enum {
        blocks = NT <= 2 ? 2 : 1,
        n_sum = NT == 4 ? 4 : 1, /* warps that add leaf sums */
        threads = (CK_LEAVES + 1 + n_sum) * 32,
        tile = ck_tile_size<FMT, NS>(),
        most = NT == 4 || SHORT ? 1152 : 2304, /* bytes; of many columns a tile takes long, and their values need the registers */
        n_row_tile = RT,
        stage = most / (RT * tile) > 0 ? most / (RT * tile) : 1, /* tiles of a leaf in a stage */
        leaf = RT * stage * tile,
        slot = CK_LEAVES * leaf,
        red = CK_LEAVES * RT * NT * 512,
        n_red = NT * RT > 4 ? 1 : N_RED,
        fit = (ROOM_KB * 1024 - n_red * red) / slot,
        depth = fit > 8 ? 8 : fit < 2 ? 2 : fit,
        bars = depth * slot + n_red * red,
        bytes = bars + 16 * (depth + n_red)
    };
};

#if __CUDA_ARCH__ >= 900
/* The barriers: stages that are there, stages that are used up; the same of leaf sums. */
template <typename R> struct ck_ring_bars {
    uint32_t full, empty, red_full, red_empty;
    __device__ __forceinline__ ck_ring_bars(const uint8_t *smem)
        : full(ck_smem(smem + R::bars)), empty(full + 8u * R::depth), red_full(empty + 8u * R::depth), red_empty(red_full + 8u * R::n_red)
    {
    }
    /* For the whole block, which then meets. */
    __device__ __forceinline__ void init(void) const
    {
        if (threadIdx.x == 0) {
            for (int i = 0; i < R::depth; i++) {
                ck_mbar_init(full + 8u * (uint32_t)i, CK_LEAVES);
                ck_mbar_init(empty + 8u * (uint32_t)i, CK_LEAVES);
            }
            for (int i = 0; i < R::n_red; i++) {
                ck_mbar_init(red_full + 8u * (uint32_t)i, CK_LEAVES);
                ck_mbar_init(red_empty + 8u * (uint32_t)i, R::n_sum);
            }
        }
        ck_mbar_init_done();
        __syncthreads();
    }
};

/* Stages of a unit: of its longest leaf. */
template <typename R> static __device__ __forceinline__ int ck_ring_stages(const int &n_ktile)
{
    int longest = 0;
#pragma unroll
    for (int i = 0; i < CK_LEAVES; i++) longest = max(longest, ck_leaf_first(n_ktile, i + 1) - ck_leaf_first(n_ktile, i));
    return (longest + R::stage - 1) / R::stage;
}

/* Brings stage s of a leaf, n tiles of each row tile; src: where the leaf begins. */
template <typename R>
static __device__ __forceinline__ void ck_ring_bring(const uint8_t *const (&src)[R::n_row_tile], int s, int n, uint32_t to, uint32_t bar, uint64_t policy)
{
    ck_mbar_expect(bar, n > 0 ? (uint32_t)(R::n_row_tile * n * R::tile) : 0u);
    if (n > 0)
#pragma unroll
        for (int r = 0; r < R::n_row_tile; r++)
            ck_bulk(to + (uint32_t)(r * R::stage * R::tile), src[r] + s * (R::stage * R::tile), (uint32_t)(n * R::tile), bar, policy);
}

/* Tile i of a warp's leaf in the stage at `from`. */
template <typename R, int FMT, int NS, int RT>
static __device__ __forceinline__ void ck_ring_load(ck_lane_tile<FMT, NS> (&w)[RT], uint32_t from, int i, int lane)
{
#pragma unroll
    for (int r = 0; r < RT; r++) w[r].load_shared(from + (uint32_t)((r * R::stage + i) * R::tile), lane);
}

/* This warp is done with what a barrier guards, or has put it there. */
static __device__ __forceinline__ void ck_ring_pass(uint32_t bar, int lane)
{
    __syncwarp();
    if (lane == 0) ck_mbar_arrive(bar);
}
#endif

#endif
