/* kernels_int.h: entries between the kernel files; not for callers. */
#ifndef OPS_CUDA_KERNELS_INT_H
#define OPS_CUDA_KERNELS_INT_H

#include "ops/cuda/kernels.h"

/* kernels_gemm.cu: x in CK_X_TILES; parts of one format. */
extern "C" int ck_gemm(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st);
extern "C" int ck_gemm_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st);

/* kernels_experts_gemm.cu: pieces of CK_PIECE_TILE; parts: the stacks, n an expert's rows. out: gate and up into it; NULL: down. w: their form. */
struct ck_out;
extern "C" int ck_experts_gemm(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *w, const struct ck_out *parts,
                               int glu, const struct ck_x *out, cudaStream_t st);

/* kernels_batch.cu: some tokens, x in CK_X_ROWS; parts of one format. Does it take products with so many rows, of weights like w? */
extern "C" bool ck_batch_takes(const struct ck_ctx *c, int m, const struct ck_weight *w, int64_t n_row);
extern "C" int ck_batch(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st);
extern "C" int ck_batch_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st);

/* Attention by form; the caller has checked shapes. d_pad: head_dim rounded up to 64. */
struct attend_args {
    struct ck_attend a;
    struct ck_x x;         /* of a.x */
    int write_x, group, row_tiles, n_split;
    const struct ck_attn_unit *units;
    int part_rows;         /* query rows that a split leaves: 16, or fewer where a unit has no more */
    float *part;           /* [unit][KV head and row tile][split]: o [part_rows][d_pad] behind m [16], l [16] */
    unsigned *count;       /* [unit][KV head and row tile], zero between launches */
};
/* Products of more tokens than these, up to CK_X_ROWS_MAX, have a form of their own where there are enough of them (kernels_batch.cu). */
#define CK_BATCH_TOKENS_FEW 16
/* Has the tensor-core form these pages? bf16 pages are for families with heads of 64 or 128. */
static inline int ck_attend_on_tensor_cores(int kv_format, int d_pad)
{
    return kv_format == CK_KV_BF16 ? d_pad == 64 || d_pad == 128 : kv_format == CK_KV_F16 && (d_pad & (d_pad - 1)) == 0;
}
struct attend_args ck_attend_args(const struct ck_attend *a);
/* Sets row_tiles, part and count for units of max_tok tokens; returns how many units a launch may have, 0: the work area is too small. */
int ck_attend_room(const struct ck_ctx *c, struct attend_args *g, int d_pad, int max_tok, int n);
extern "C" int ck_attend_plain(const struct ck_ctx *c, const struct ck_attend *a, const struct ck_attn_unit *units, int n, cudaStream_t st);
extern "C" int ck_attend_small(const struct ck_ctx *c, const struct attend_args *g, int d_pad, const struct ck_attn_unit *units, int n, int max_tok,
                               cudaStream_t st);
struct cs_rope;
extern "C" bool ck_attend_streams(const struct ck_attend *a); /* is there a form for the heads? */
extern "C" int ck_attend_stream(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st); /* d_pad <= 128, groups of 8 */
extern "C" int ck_attend_large(const struct ck_ctx *c, const struct attend_args *g, int d_pad, cudaStream_t st); /* d_pad <= 256 */

#endif
