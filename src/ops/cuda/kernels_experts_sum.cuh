/* kernels_experts_sum.cuh: what becomes of the leaf sums of a unit of kernels_experts.cu: they are added in order and go to their slots'
 * rows, or, of few tokens, on into the sum over a token's experts. On sm_90 warps of their own do it.
 */
#ifndef OPS_CUDA_KERNELS_EXPERTS_SUM_CUH
#define OPS_CUDA_KERNELS_EXPERTS_SUM_CUH

#include "ops/cuda/kernels_experts_unit.cuh"

/* What the leaf sums of a unit meet, loaded a unit ahead of them: factors of its rows, where its columns go. */
template <int NT, int RT, bool GLU> struct experts_ends {
    enum { OUT = GLU ? RT / 2 : RT };
    struct ck_row rows[OUT][2], ups[OUT][2];
    int slot[NT][2];     /* -1: no column */
    /* every, part: column eighths q with q % every == part. */
    __device__ __forceinline__ void load(const struct experts_args &a, int i_piece, int u, int every, int part, int l)
    {
        const struct ck_piece p = ck_piece_at(a.list, i_piece);
        const struct ck_out o = ck_expert_part(a.part[0], p.expert), up = ck_expert_part(a.part[GLU ? 1 : 0], p.expert);
#pragma unroll
        for (int r = 0; r < OUT; r++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int row = ck_row_tile<RT, GLU>(u, r) * 16 + (l >> 2) + 8 * h;
                rows[r][h] = ck_row_load(o, a.x.mul, row);
                if (GLU) ups[r][h] = ck_row_load(up, a.x.mul, row);
            }
#pragma unroll
        for (int q = 0; q < NT; q++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int col = q * 8 + (l & 3) * 2 + e;
                slot[q][e] = -1;
                if (q % every == part && col < p.n) slot[q][e] = a.list.most == 1 ? i_piece : a.list.slots[p.first + col];
            }
    }
};

template <int NT, int RT, bool GLU>
static __device__ __forceinline__ void experts_out(const struct experts_args &a, const struct experts_ends<NT, RT, GLU> &ends, const float4 (*red)[RT][NT][32], int u,
                                                   int q, int l)
{
    constexpr int OUT = GLU ? RT / 2 : RT;
    const float inv = GLU ? __fdiv_rn(1.0f, a.out.mul) : 0.0f;
#pragma unroll
    for (int r = 0; r < OUT; r++) {
        const float4 s4 = ck_leaves_sum<NT, RT>(red, r, q, l), t4 = GLU ? ck_leaves_sum<NT, RT>(red, r + OUT, q, l) : s4;
        const float s[4] = { s4.x, s4.y, s4.z, s4.w }, t[4] = { t4.x, t4.y, t4.z, t4.w };
        const int row = ck_row_tile<RT, GLU>(u, r) * 16 + (l >> 2);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int rr = row + (e >> 1) * 8, slot = ends.slot[q][e & 1];
            if (slot < 0) continue;
            if (!GLU) {
                if (rr < a.part[0].n) a.part[0].y[(int64_t)slot * a.part[0].ld_y + rr] = ck_out_linear(a.part[0], ends.rows[r][e >> 1], s[e]);
            } else if (rr < a.out.k_pad) {
                const float v = ck_glu_value(a.part[0], a.part[1], a.glu, inv, ends.rows[r][e >> 1], ends.ups[r][e >> 1], rr, s[e], t[e]);
                ((__half *)a.out.v)[(int64_t)slot * a.out.k_pad + rr] = __float2half_rn(v);
            }
        }
    }
}

#if __CUDA_ARCH__ >= 900
/* Adds the leaf sums of every unit; of the warps that do, number `part`. */
template <int NT, int RT, bool GLU, typename R>
static __device__ __forceinline__ void experts_sum(const struct experts_args &a, const float4 (*red)[CK_LEAVES][RT][NT][32], const ck_ring_bars<R> &bars, int part,
                                                   int lane)
{
    struct experts_ends<NT, RT, GLU> ends, then;
    int b = 0;
    uint32_t phase = 0;
    ck_pdl_wait();
    experts_walk<false> at(a);
    if (at.on()) then.load(a, at.piece(), at.u, R::n_sum, part, lane);
    while (at.on()) {
        const int u = at.u;
        ends = then;
        at.next();
        if (at.on()) then.load(a, at.piece(), at.u, R::n_sum, part, lane);
        ck_mbar_wait(bars.red_full + 8u * (uint32_t)b, phase);
#pragma unroll
        for (int q = 0; q < NT; q++)
            if (q % R::n_sum == part) experts_out<NT, RT, GLU>(a, ends, red[b], u, q, lane);
        ck_ring_pass(bars.red_empty + 8u * (uint32_t)b, lane);
        if (++b == R::n_red) {
            b = 0;
            phase ^= 1;
        }
    }
}

/* Of a row tile's token, what all its experts bring, to shared memory: factors and biases of 16 rows each. Lane j returns the weight of
 * expert j. */
static __device__ __forceinline__ float experts_token_ends(const struct experts_args &a, int token, int u, float *factor, float *bias, int lane)
{
    const float *route = a.sum.route + token * a.sum.ld_route;
    const int expert = lane < a.top_k ? (int)route[lane] : 0;
    const float weight = lane < a.top_k ? route[a.top_k + lane] : 0.0f;
#pragma unroll 4
    for (int i = lane; i < (a.top_k * 16 + 31) / 32 * 32; i += 32) {
        const int e = __shfl_sync(0xffffffffu, expert, i >> 4);
        const struct ck_row r = ck_row_load(ck_expert_part(a.part[0], e), a.x.mul, u * 16 + (i & 15));
        factor[i] = r.factor;
        bias[i] = r.bias;
    }
    __syncwarp();
    return weight;
}

/* The same for a token's experts in rising id: the lanes of column 0 hold rows l / 4 and 8 more. */
template <typename R>
static __device__ __forceinline__ void experts_sum_token(const struct experts_args &a, const float4 (*red)[CK_LEAVES][1][1][32], const ck_ring_bars<R> &bars,
                                                         float *factor, float *bias, int lane)
{
    int b = 0;
    uint32_t phase = 0;
    ck_pdl_wait();
    for (experts_walk<true> at(a); at.on();) {
        const int row0 = at.u * 16 + (lane >> 2), token = at.i;
        const bool mine = (lane & 3) == 0;
        const float weight = experts_token_ends(a, token, at.u, factor, bias, lane);
        float old[2], acc[2] = { 0.0f, 0.0f };
#pragma unroll
        for (int h = 0; h < 2; h++) old[h] = mine && a.sum.add && row0 + 8 * h < a.part[0].n ? a.sum.out[token * a.sum.ld_out + row0 + 8 * h] : 0.0f;
        for (int j = 0; j < a.top_k; j++) {
            const float w = __shfl_sync(0xffffffffu, weight, j);
            struct ck_row rows[2];
#pragma unroll
            for (int h = 0; h < 2; h++) rows[h] = { factor[j * 16 + (lane >> 2) + 8 * h], bias[j * 16 + (lane >> 2) + 8 * h] };
            ck_mbar_wait(bars.red_full + 8u * (uint32_t)b, phase);
            const float4 s = ck_leaves_sum<1, 1>(red[b], 0, 0, lane);
            acc[0] = __fadd_rn(acc[0], __fmul_rn(w, ck_out_linear(a.part[0], rows[0], s.x)));
            acc[1] = __fadd_rn(acc[1], __fmul_rn(w, ck_out_linear(a.part[0], rows[1], s.z)));
            ck_ring_pass(bars.red_empty + 8u * (uint32_t)b, lane);
            if (++b == R::n_red) {
                b = 0;
                phase ^= 1;
            }
            at.next();
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (mine && row0 + 8 * h < a.part[0].n) ck_expert_sum_out(a.sum, token, row0 + 8 * h, acc[h], old[h]);
        __syncwarp();
    }
}
#endif

#endif
