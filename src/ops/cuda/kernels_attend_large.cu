/* kernels_attend_large.cu: attention of many tokens: a warp takes 16 query rows through all keys. */
#include "ops/cuda/kernels_attend.cuh"

/* A block: 64 rows of a unit, a warp 16 of them. Sums over splits lie in shared memory, each read by its writer alone. */
template <int DP, bool BF> static __global__ void __launch_bounds__(128) large_kernel(const __grid_constant__ struct attend_args g)
{
    constexpr int NB = DP / 8;
    extern __shared__ __align__(16) uint8_t smem[];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, kvh = (int)blockIdx.y;
    uint4 *qs = (uint4 *)smem + warp * (BF ? 2 : 1) * DP * 2;
    float *total = (float *)(smem + 4 * (BF ? 2 : 1) * DP * 32) + threadIdx.x; /* [NB * 4][128] */
    ck_pdl_launch();
    ck_pdl_wait();
    const struct ck_attn_unit u = g.units[gridDim.x - 1 - blockIdx.x]; /* the longest come last in a prompt: they start first */
    const int n_rows = u.n_tok * g.group;
    for (int row0 = warp * 16; row0 < n_rows; row0 += 64) {
        int lo[2], hi[2], lo_min, hi_max;
        ranges(g, u, row0, n_rows, lane, lo, hi, &lo_min, &hi_max);
        __syncwarp();
        q_frags<DP, BF>(qs, g, u, kvh, row0, n_rows, lane, 0, 1);
        __syncwarp();
        const int64_t head = g.a.head_off + (int64_t)kvh * 2 * 64 * DP * 2;
        float M[2] = { -INFINITY, -INFINITY }, L[2] = { 0, 0 };
        bool first = true;
        for (int split = lo_min / CK_ATTN_SPLIT; split * CK_ATTN_SPLIT < hi_max; split++) {
            float o[NB][4] = {}, l[2] = { 0, 0 }, m[2] = { -INFINITY, -INFINITY };
            for (int w = 0; w < CK_ATTN_SPLIT / 64; w++) {
                int key0 = split * CK_ATTN_SPLIT + w * 64;
                if (key0 >= hi_max || key0 + 64 <= lo_min) continue;
                const uint16_t *page = (const uint16_t *)((const uint8_t *)g.a.pool + (int64_t)g.a.pages[u.i_table * g.a.ld_pages + (key0 >> 6)] * 4096 + head);
                float s[8][4], most[2], sum[2];
                uint4 ph[4], pl[4];
                s_tile<DP, BF>(s, qs, page, lane);
                mask_tile(s, g.a.softcap, key0, lo, hi, lane, most);
                raise_maximum<NB>(o, m, most);
                p_tile<BF>(s, m, ph, pl, sum);
#pragma unroll
                for (int r = 0; r < 2; r++) l[r] = __fmaf_rn(l[r], most[r], sum[r]);
                pv_tile<NB, BF>(o, ph, pl, page + 64 * DP, 0, hi_max - key0, lane);
            }
            float ea[2], eb[2];
#pragma unroll
            for (int r = 0; r < 2; r++) merge(M[r], L[r], m[r], l[r], ea[r], eb[r]);
#pragma unroll
            for (int n = 0; n < NB; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float v = __fadd_rn(o[n][e], 0.0f), before = first ? 0.0f : total[(n * 4 + e) * 128];
                    total[(n * 4 + e) * 128] = __fmaf_rn(v, eb[e >> 1], __fmul_rn(before, ea[e >> 1]));
                }
            first = false;
        }
        store_rows<NB>(g, u, kvh, row0, n_rows, M, L, 0, true, lane,
                       [&](int r, int n, int e) { return first ? 0.0f : total[(n * 4 + 2 * r + e) * 128]; });
    }
}

template <int DP, bool BF> static int large_launch(const struct ck_ctx *c, struct attend_args g, cudaStream_t st)
{
    g.units = g.a.large_units;
    return ck_launch(c, large_kernel<DP, BF>, dim3((unsigned)g.a.n_large, (unsigned)g.a.n_head_kv), 128,
                     (size_t)(4 * (BF ? 2 : 1) * DP * 32 + DP * 64 * 4), st, g);
}

extern "C" int ck_attend_large(const struct ck_ctx *c, const struct attend_args *g, int d_pad, cudaStream_t st)
{
    if (g->a.kv_format == CK_KV_BF16) return d_pad == 64 ? large_launch<64, true>(c, *g, st) : large_launch<128, true>(c, *g, st);
    return d_pad == 64 ? large_launch<64, false>(c, *g, st) : d_pad == 128 ? large_launch<128, false>(c, *g, st) : large_launch<256, false>(c, *g, st);
}
