/* kernels_latent.cuh: what the forms of attention over latents share: what a token sees, how splits merge, where they leave their results.
 */
#ifndef OPS_CUDA_KERNELS_LATENT_CUH
#define OPS_CUDA_KERNELS_LATENT_CUH

#include "ops/cuda/latent_dev.cuh"

#define CL_TILE 64
#define CL_TILES (CK_ATTN_SPLIT / CL_TILE) /* of a split */
#define CL_THREADS 256                     /* of a block of either form on the tensor cores */

/* What token i sees: n keys, of all or of the list. */
struct seen { int n; const float *list; };
static __device__ __forceinline__ struct seen seen_by(const struct cl_attend &a, int token)
{
    struct seen s = { a.p.index[token] + 1, NULL };
    if (a.chosen && s.n > a.top_k) {
        s.n = a.top_k;
        s.list = a.chosen + (int64_t)token * a.ld_chosen;
    }
    return s;
}
static __device__ __forceinline__ int key_index(const struct seen &s, int j) { return s.list ? (int)s.list[j] : j; }

/* One split more: left to right. */
struct merged { float m, l, old_by, new_by; };
static __device__ __forceinline__ void merge_next(struct merged &t, float m, float l)
{
    const float top = fmaxf(t.m, m);
    t.old_by = ck_exp2(__fsub_rn(t.m, top));
    t.new_by = ck_exp2(__fsub_rn(m, top));
    t.m = top;
    t.l = __fmaf_rn(l, t.new_by, __fmul_rn(t.l, t.old_by));
}

/* Where a split leaves o and (m, l) of a token's head. */
static __device__ __forceinline__ int64_t part_at(const struct cl_attend &a, int token, int head, int split)
{
    return ((int64_t)token * a.n_head + head) * a.n_split + split;
}
static __host__ __device__ __forceinline__ float *part_ml(const struct cl_attend &a) { return (float *)a.work; }
static __device__ __forceinline__ float *part_o(const struct cl_attend &a) { return (float *)a.work + (int64_t)a.m * a.n_head * a.n_split * 2; }

static __device__ __forceinline__ void cl_copy16(uint32_t dst, const void *src, bool there) /* zeros where it is not */
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void cl_copies_end(void) { asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory"); }

/* Bytes of a token's split. */
static inline size_t cl_pair_bytes(int n_head, int d_value) { return (size_t)n_head * (size_t)(d_value + 2) * sizeof(float); }

/* kernels_latent_merge.cu: of all tokens' splits. */
extern "C" int cl_attend_merge(const struct ck_ctx *c, const struct cl_attend *a, cudaStream_t st);
/* kernels_latent_plain.cu: any format of a page, any head. */
extern "C" int cl_attend_plain(const struct ck_ctx *c, const struct cl_attend *a, cudaStream_t st);
/* kernels_latent_wide.cu: 64 heads a block, for latents of 512 and 64 on sm_90a. */
extern "C" int cl_attend_wide(const struct ck_ctx *c, const struct cl_attend *a, int alone, cudaStream_t st);
static inline bool cl_is_wide(const struct ck_ctx *c, const struct cl_attend *a)
{
    return c->wgmma && a->d == 576 && a->d_value == 512 && a->ld_q % 4 == 0 && (uintptr_t)a->q % 16 == 0;
}

#endif
