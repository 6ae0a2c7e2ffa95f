/* kernels_attend_turned.cuh: attention with keys and values as the operand of 16 rows and up to eight query heads as that of 8 columns: half the
 * instructions of kernels_attend.cuh where a token's KV head has few query heads, and the same sums, so the same bits. Of a warp: query heads in
 * registers, scores of 32 keys, their mask, 16 dims of a tile's values. Who waits for whom is the caller's (kernels_attend_stream.cu).
 */
#ifndef OPS_CUDA_KERNELS_ATTEND_TURNED_CUH
#define OPS_CUDA_KERNELS_ATTEND_TURNED_CUH

#include "ops/cuda/kernels_attend.cuh"

#if __CUDA_ARCH__ >= 900
/* Query heads as columns: element order as q_frags has it. Heads from n_q on are zeros. */
template <int DP, bool BF> struct stream_query {
    uint2 h[DP / 16], l[BF ? DP / 16 : 1];
    template <typename ROWS> __device__ __forceinline__ void load(const ROWS &rows, int n_q, float scale, int lane)
    {
        const int c = lane >> 2, t = lane & 3;
#pragma unroll
        for (int s = 0; s < DP / 16; s++) {
            const float4 v = c < n_q ? *(const float4 *)&rows[c][32 * (s >> 1) + 8 * t + 4 * (s & 1)] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            put(s, v.x, v.y, v.z, v.w, scale);
        }
    }
    /* From the products, rotated on the way: whole heads in halves, without a norm. x: head c of the lane, cs: the token's rotary row. */
    __device__ __forceinline__ void load_rotated(const float *x, const float *cs, bool in, float scale, int lane)
    {
        const int t = lane & 3;
#pragma unroll
        for (int v = 0; v < DP / 64; v++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int at = 32 * v + 8 * t + 4 * i;
                float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
                const float4 co = *(const float4 *)(cs + at), si = *(const float4 *)(cs + DP / 2 + at);
                if (in) {
                    a = *(const float4 *)(x + at);
                    b = *(const float4 *)(x + DP / 2 + at);
                }
                put(2 * v + i, __fmaf_rn(a.x, co.x, -(b.x * si.x)), __fmaf_rn(a.y, co.y, -(b.y * si.y)), __fmaf_rn(a.z, co.z, -(b.z * si.z)),
                    __fmaf_rn(a.w, co.w, -(b.w * si.w)), scale);
                put(2 * v + i + DP / 32, __fmaf_rn(b.x, co.x, a.x * si.x), __fmaf_rn(b.y, co.y, a.y * si.y), __fmaf_rn(b.z, co.z, a.z * si.z),
                    __fmaf_rn(b.w, co.w, a.w * si.w), scale);
            }
    }
    __device__ __forceinline__ void put(int s, float v0, float v1, float v2, float v3, float scale)
    {
        uint2 lo;
        pair<BF>(v0 * scale, v1 * scale, h[s].x, lo.x);
        pair<BF>(v2 * scale, v3 * scale, h[s].y, lo.y);
        if (BF) l[BF ? s : 0] = lo;
    }
};

/* d += rows (r0 and, 8 below, r1: 16 bytes of each) times a column operand; odd: the second half of the 16 bytes. */
template <bool BF> static __device__ __forceinline__ void turned_mma(float d[4], const uint4 &r0, const uint4 &r1, bool odd, const uint2 &bh, const uint2 &bl)
{
    const uint32_t a[4] = { odd ? r0.z : r0.x, odd ? r1.z : r1.x, odd ? r0.w : r0.y, odd ? r1.w : r1.y };
    if (!BF) {
        ck_mma_f16(d, a, bh.x, bh.y);
        return;
    }
    ck_mma_bf16(d, a, bh.x, bh.y);
    ck_mma_bf16(d, a, bl.x, bl.y);
}

/* Scores of 32 keys from `key` of a tile on: s[j][e] is of key 16 j + c + 8 (e / 2) and head 2 t + e % 2. */
template <int DP, bool BF> static __device__ __forceinline__ void stream_scores(float s[2][4], const struct stream_query<DP, BF> &q, const uint16_t *k, int key, int lane)
{
    const int c = lane >> 2, t = lane & 3;
    const uint16_t *row = k + (key + c) * DP;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[j][e] = 0;
#pragma unroll
    for (int v0 = 0; v0 < DP / 32; v0 += 2) {
        uint4 r[2][2][2];
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int v = 0; v < 2; v++) r[j][i][v] = ((const uint4 *)(row + (16 * j + 8 * i) * DP))[((v0 + v) * 4 + t) ^ ((c & 1) << 2)];
#pragma unroll
        for (int st = 0; st < 4; st++)
#pragma unroll
            for (int j = 0; j < 2; j++) turned_mma<BF>(s[j], r[j][0][st >> 1], r[j][1][st >> 1], st & 1, q.h[2 * v0 + st], q.l[BF ? 2 * v0 + st : 0]);
    }
}

/* Soft cap, mask; the largest of each of the two heads over these keys. */
static __device__ __forceinline__ void stream_mask(float s[2][4], float softcap, int key, int lo, int hi, int lane, float most[2])
{
    const int c = lane >> 2;
    if (softcap != 0.0f)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = __fmul_rn(__fmul_rn(softcap, ck_tanh(__fdiv_rn(s[j][e], softcap))), 1.44269504088896341f);
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = key + 16 * j + c + 8 * (e >> 1);
            s[j][e] = at >= lo && at < hi ? s[j][e] : -INFINITY;
            most[e & 1] = larger(s[j][e], most[e & 1]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int x = 4; x <= 16; x <<= 1) most[r] = larger(__shfl_xor_sync(~0u, most[r], x), most[r]);
}

/* A value of head c for the lanes that have heads 2 t and 2 t + 1. */
static __device__ __forceinline__ float2 of_columns(float v, int lane)
{
    const int t = lane & 3;
    return make_float2(__shfl_sync(~0u, v, 8 * t), __shfl_sync(~0u, v, 8 * t + 4));
}

/* o += V P of a tile for this warp's 16 dims, dims 2 c and 2 c + 1 a lane, the first of them with the parity of c in rows 0 to 7; returns the
 * sum of head c's weights. */
template <bool BF> static __device__ __forceinline__ float stream_values(float o[4], const float (*p)[68], const uint16_t *v, int dim0, int valid, int lane)
{
    const int c = lane >> 2, t = lane & 3, odd = c & 1;
    uint4 r[2][2];
    float4 f[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int parity = odd ^ i;
        const uint4 *row = (const uint4 *)(v + (dim0 + 2 * c + parity) * 64);
#pragma unroll
        for (int k = 0; k < 2; k++) r[i][k] = row[(4 * k + t) ^ (parity << 2)];
    }
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int i = 0; i < 2; i++) f[k][i] = *(const float4 *)&p[c][32 * k + 8 * t + 4 * i];
    if (valid < 64)
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int k = 0; k < 2; k++) r[i][k] = cut_keys(r[i][k], 32 * k + 8 * t, valid);
    float sum = 0.0f;
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        const float4 w = f[kk >> 1][kk & 1];
        uint2 h, l;
        pair<BF>(w.x, w.y, h.x, l.x);
        pair<BF>(w.z, w.w, h.y, l.y);
        turned_mma<BF>(o, r[0][kk >> 1], r[1][kk >> 1], kk & 1, h, l);
        sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, w.x), w.y), w.z), w.w);
    }
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    return __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
}

/* A lane's two values of a head side by side. e: column. */
static __device__ __forceinline__ float2 in_order(const float o[4], int e, int lane)
{
    const bool odd = lane >> 2 & 1;
    return make_float2(odd ? o[2 + e] : o[e], odd ? o[e] : o[2 + e]);
}
#endif

#endif
