/* kernels_latent_plain.cu: attention over latents a key at a time, a warp a head, without tensor cores: for f32 and bf16 pages and for heads that
 * are not whole steps of 16. Splits begin and merge as in kernels_latent.cu.
 */
#include "ops/cuda/kernels_latent.cuh"

#define Q_EACH (CL_D_MAX / 32)
#define V_EACH (CL_VALUE_MAX / 32)

static __global__ void latent_plain_kernel(const __grid_constant__ struct cl_attend a)
{
    ck_pdl_launch();
    ck_pdl_wait();
    const int lane = (int)threadIdx.x, token = (int)blockIdx.x, head = (int)blockIdx.y;
    const struct seen s = seen_by(a, token);
    const float *from = a.q + (int64_t)token * a.ld_q + (int64_t)head * a.d;
    float q[Q_EACH], o[V_EACH], all_o[V_EACH], m = -INFINITY, l = 0.0f;
    struct merged all = { -INFINITY, 0.0f, 0.0f, 0.0f };
    for (int i = 0; i < Q_EACH; i++) q[i] = lane + 32 * i < a.d ? from[lane + 32 * i] : 0.0f;
    for (int i = 0; i < V_EACH; i++) o[i] = all_o[i] = 0.0f;
    for (int j = 0; j < s.n; j++) {
        const int index = key_index(s, j), key = index & 63;
        const uint8_t *row = cl_key(a.p, token, index);
        float x = 0.0f;
        for (int i = 0; i < Q_EACH; i++)
            if (lane + 32 * i < a.d) x = __fmaf_rn(q[i], cl_get(row, a.p.format, key, lane + 32 * i), x);
        for (int step = 16; step > 0; step /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, step));
        const float top = fmaxf(m, x), al = ck_exp2(__fsub_rn(m, top)), p = ck_exp2(__fsub_rn(x, top));
        m = top;
        l = __fmaf_rn(l, al, p);
        for (int i = 0; i < V_EACH; i++)
            if (lane + 32 * i < a.d_value) o[i] = __fmaf_rn(p, cl_get(row, a.p.format, key, lane + 32 * i), __fmul_rn(o[i], al));
        if (j + 1 < s.n && (j + 1) % CK_ATTN_SPLIT != 0) continue;
        merge_next(all, m, l);
        for (int i = 0; i < V_EACH; i++) {
            all_o[i] = __fmaf_rn(o[i], all.new_by, __fmul_rn(all_o[i], all.old_by));
            o[i] = 0.0f;
        }
        m = -INFINITY;
        l = 0.0f;
    }
    const float by = all.l == 0.0f ? 0.0f : __fdiv_rn(1.0f, all.l);
    float *out = a.out + (int64_t)token * a.ld_out + (int64_t)head * a.d_value;
    for (int i = 0; i < V_EACH; i++)
        if (lane + 32 * i < a.d_value) out[lane + 32 * i] = __fmul_rn(all_o[i], by);
}

extern "C" int cl_attend_plain(const struct ck_ctx *c, const struct cl_attend *a, cudaStream_t st)
{
    return ck_launch(c, latent_plain_kernel, dim3((unsigned)a->m, (unsigned)a->n_head), 32, 0, st, *a);
}
