/* kernels_attend_plain.cu: attention a key at a time, for f32 pages and heads of unusual width. */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/kernels_int.h"

static __device__ __forceinline__ float kv_at(const uint8_t *p, int fmt, int off)
{
    if (fmt == CK_KV_F32) return ((const float *)p)[off];
    if (fmt == CK_KV_F16) return __half2float(((const __half *)p)[off]);
    return __bfloat162float(((const __nv_bfloat16 *)p)[off]);
}
static __device__ __forceinline__ float warp_sum(float v)
{
    for (int i = 16; i; i >>= 1) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, i));
    return v;
}

/* A warp per (token, head), a key at a time: splits from a fresh maximum, merged left to right. d <= 512. */
static __global__ void plain_kernel(const __grid_constant__ struct ck_attend a, struct ck_x x, int write_x, const struct ck_attn_unit *units)
{
    ck_pdl_launch();
    ck_pdl_wait();
    struct ck_attn_unit u = units[blockIdx.x];
    int lane = (int)threadIdx.x, h = (int)blockIdx.y, d = a.head_dim, d_pad = (d + 63) / 64 * 64, elem = a.kv_format == CK_KV_F32 ? 4 : 2;
    int64_t half = (int64_t)64 * d_pad * elem, head = a.head_off + (int64_t)(h / (a.n_head / a.n_head_kv)) * 2 * half;
    for (int tok = u.tok0; tok < u.tok0 + u.n_tok; tok++) {
        float q[16], o[16], O[16], M = -INFINITY, L = 0, m = -INFINITY, l = 0;
        for (int i = 0; i < 16; i++) {
            q[i] = lane + 32 * i < d ? a.q[tok * a.ld_q + h * a.q_step + lane + 32 * i] : 0.0f;
            o[i] = O[i] = 0;
        }
        for (int key = a.lo[tok]; key <= a.hi[tok]; key++) {
            bool end = key == a.hi[tok];
            if ((end || key % CK_ATTN_SPLIT == 0) && l != 0.0f) {
                float N = fmaxf(M, m), ea = ck_exp2(__fsub_rn(M, N)), eb = ck_exp2(__fsub_rn(m, N));
                L = __fmaf_rn(l, eb, __fmul_rn(L, ea));
                for (int i = 0; i < 16; i++) { O[i] = __fmaf_rn(o[i], eb, __fmul_rn(O[i], ea)); o[i] = 0; }
                M = N; m = -INFINITY; l = 0;
            }
            if (end) break;
            const uint8_t *k = (const uint8_t *)a.pool + (int64_t)a.pages[u.i_table * a.ld_pages + key / 64] * 4096 + head;
            float s = 0;
            for (int i = 0; i < 16; i++) if (lane + 32 * i < d) s = __fmaf_rn(q[i], kv_at(k, a.kv_format, ck_k_off(key & 63, lane + 32 * i, d_pad, elem)), s);
            s = warp_sum(s);
            if (a.softcap != 0.0f) s = __fmul_rn(__fmul_rn(a.softcap, ck_tanh(__fdiv_rn(s, a.softcap))), 1.44269504088896341f);
            float m1 = fmaxf(m, s), al = ck_exp2(__fsub_rn(m, m1)), p = ck_exp2(__fsub_rn(s, m1));
            m = m1;
            l = __fmaf_rn(l, al, p);
            for (int i = 0; i < 16; i++) if (lane + 32 * i < d)
                o[i] = __fmaf_rn(p, kv_at(k + half, a.kv_format, ck_v_off(key & 63, lane + 32 * i, elem)), __fmul_rn(o[i], al));
        }
        if (a.sinks) {
            float N = fmaxf(M, a.sinks[h]), ea = ck_exp2(__fsub_rn(M, N)), eb = ck_exp2(__fsub_rn(a.sinks[h], N));
            L = __fmaf_rn(1.0f, eb, __fmul_rn(L, ea));
            for (int i = 0; i < 16; i++) O[i] = __fmul_rn(O[i], ea);
        }
        float inv = L == 0.0f ? 0.0f : __fdiv_rn(1.0f, L);
        for (int i = 0; i < 16; i++) {
            int c = lane + 32 * i;
            if (c >= d) break;
            float v = __fmul_rn(O[i], inv);
            if (a.out) a.out[tok * a.ld_out + h * d + c] = v;
            if (write_x) ((__half *)x.v)[ck_x_off(x.layout, x.k_pad, tok, h * d + c)] = __float2half_rn(__fmul_rn(v, 1.0f / x.mul));
        }
        if (write_x && h == a.n_head - 1)
            for (int64_t c = x.k + lane; c < x.k_pad; c += 32) ((__half *)x.v)[ck_x_off(x.layout, x.k_pad, tok, (int)c)] = __float2half_rn(0.0f);
    }
}

extern "C" int ck_attend_plain(const struct ck_ctx *c, const struct ck_attend *a, const struct ck_attn_unit *units, int n, cudaStream_t st)
{
    struct ck_x none = {};
    return ck_launch(c, plain_kernel, dim3((unsigned)n, (unsigned)a->n_head), 32, 0, st, *a, a->x ? *a->x : none, a->x != NULL, units);
}
