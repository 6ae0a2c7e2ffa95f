/* kernels.h: the CUDA backend's heavy kernels behind a plain C interface: packed weights and the products with them,
 * linear inputs, attention over KV pages.
 *
 * Every launcher queues work on a stream and returns 0 or a cudaError_t (ck_error_text). Nothing here allocates,
 * waits or keeps a pointer after it returned. All pointers are device memory unless it says "host".
 *
 * Numbers (one class; sm_90a wgmma and mma.sync give equal bits on the same chip, which a test shows):
 *   linear inputs are f16, a power of two apart from the value (struct ck_x.mul). Quantised weights are made f16 in
 *   registers: w' = rn16(s' * q + b'), s' and b' the scale and bias of the file over a power of two of the row
 *   (exact from f16 and bf16, rounded once from f32); float weights are f16 over the row's power of two (exact from f16
 *   and bf16 up to 2^-40 of the row's largest). The product runs on the tensor core, k in steps of 16 in the order below,
 *   in ck_leaves(k) leaves, each from +0, added left to right in float32 from the first; then y = (sum * (mul * row
 *   power)), bias, scale, soft cap, residual, one rounding each.
 *   Rows of 4-bit tiles have their power so that w' is below 2^-5 (kernels_dev.cuh says why): w' to 2^-19 of the row's largest, or to 11
 *   bits where that is coarser.
 *   Bound, for weights that are not below 2^-8 of their row's largest: |y - exact| <= (2^-10 + 2^-20 * sqrt(k)) * sum |w x| (weights and inputs rounded to 11 bits each); with f32 scales
 *   (|s q| + |b|) stands for |w|.
 * Invariance: row i of y depends on row i of x alone, for every m and every launcher here.
 */
#ifndef OPS_CUDA_KERNELS_H
#define OPS_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#include <cuda_runtime_api.h>
#else
typedef struct CUstream_st *cudaStream_t; /* host code is built without CUDA */
#endif

#ifdef __cplusplus
extern "C" {
#endif

const char *ck_error_text(int error); /* static text */

/* --- context: one a device and stream --- */

struct ck_ctx {
    int device, n_sm;
    int major, minor;     /* compute capability */
    int wgmma;            /* 1: sm_90a code runs here; set 0 to force the mma.sync kernels (same bits) */
    int pdl;              /* 1: launched with programmatic dependent launch: a kernel starts while the one before it on the
                             stream ends. Every kernel here waits (griddepcontrol.wait) before it touches what a kernel
                             before it may write. A kernel of others between them needs nothing special when it is
                             launched without the attribute. 0 after ck_ctx_init */
    void *work;           /* ck_work_bytes of device memory, zeroed once by the owner (cudaMemset) before the first launch;
                             kernels leave its counters zero. Launches that share it must be in order (one stream) */
    size_t work_bytes;
};
/* Fills everything but work and work_bytes from the current state of the driver. */
int ck_ctx_init(struct ck_ctx *c, int device);
/* For batches of up to m_max tokens, heads of up to d_max, n_head query heads, and contexts of n_context tokens. */
size_t ck_work_bytes(const struct ck_ctx *c, int m_max, int n_head, int d_max, int n_context);

/* --- packed weights --- */

enum ck_format { CK_Q4 = 0, CK_Q8, CK_F16, CK_FORMATS };
enum ck_dtype { CK_DT_F32 = 0, CK_DT_F16, CK_DT_BF16 };

/* A packed weight: tiles of 16 rows x 64 k, [n_pad / 16][k_pad / 64], then one float a row (its power of two).
 * n_pad, k_pad: n and k rounded up to 16 and 64; what is added is zero. Tile: codes (Q4 512, Q8 1,024, f16 2,048 bytes), then
 * for codes n_scale x [8 rows][row, row + 8][scale, bias] f16. Inside a tile k lies in the order of the MMA fragments. */
struct ck_weight {
    int format;           /* enum ck_format */
    int n_scale;          /* scales of 64 k: 1 (groups of 64 or 128), 2 (32), 4 (16, CK_Q8 only); CK_F16: 0 */
    int64_t n, k;
    void *tiles;          /* ck_weight_bytes, 256-byte aligned (cudaMalloc) */
    float *row_scale;     /* [n_pad], inside the same block */
};
/* Sets format, n_scale, n, k and returns the bytes of the block, 0 when there is no such format here:
 * affine bits 2, 3, 4 -> CK_Q4; 5, 6, 8 -> CK_Q8; bits 0 -> CK_F16. group 32, 64, 128 (16: CK_Q8 only, force_q8). */
size_t ck_weight_bytes(struct ck_weight *w, int bits, int group, int force_q8, int64_t n, int64_t k);
/* Block of ck_weight_bytes -> tiles, row_scale. */
void ck_weight_place(struct ck_weight *w, void *block);
int64_t ck_tile_bytes(const struct ck_weight *w);

/* Rows [row0, row0 + n_rows) of a checkpoint's matrix (device copies of the file's bytes) into the packed block; row0 a
 * multiple of 16, n_rows too but at the end of the matrix (rows up to n_pad are then filled with zeros).
 *   src      bits 2..8: [n_rows][k * bits / 32] u32 words as MLX packs them; bits 0: [n_rows][k] of type dt
 *   scales, biases  [n_rows][k / group] of type dt; NULL for bits 0
 *   row_step, row_off   source row of packed row row0 + i is i * row_step + row_off (1, 0: as they lie)
 * Codes of other formats (fp4 as 2v + 12) come as bits 8 with scales and biases made by the caller. */
int ck_pack(const struct ck_ctx *c, const struct ck_weight *w, int bits, int group, int dt, const void *src, const void *scales,
            const void *biases, int64_t row0, int64_t n_rows, int64_t row_step, int64_t row_off, cudaStream_t st);
/* out[i][k] = row ids[i] as float32, times scale: fma(q, s', b') * power (not rounded to f16). ids on the device; an id
 * outside [0, n) gives zeros. */
int ck_gather(const struct ck_ctx *c, const struct ck_weight *w, const int32_t *ids, int n_ids, float scale, float *out,
              int64_t ld_out, cudaStream_t st);

/* --- linear inputs --- */

/* CK_X_ROWS: [token][k_pad] f16. CK_X_TILES: blocks of 128 tokens in the order of the shared-memory tiles (kernels_dev.cuh:
 * ck_x_off). CK_X_PIECES: about the same for experts, a block for each piece (kernels_experts.cuh). Whoever writes an input writes k in [k, k_pad)
 * as zeros; tokens beyond m need not be written. */
enum ck_x_layout { CK_X_ROWS = 0, CK_X_TILES, CK_X_PIECES };
#define CK_X_ROWS_MAX 64
struct ck_x {
    void *v;
    int layout;
    int64_t k, k_pad;
    float mul;           /* power of two: value = stored * mul. 1 for norms and attention, 16 for gated MLPs (range 1e6):
                            what is beyond becomes an infinity, then NaN logits, which the sampler reports */
    /* Or: not written anywhere yet, but the RMS norm of float rows, which the products take themselves, with the bits of cs_norm
     * (steps.h). For up to ck_norm_tokens(k) tokens; norm_in NULL: none of this. */
    const float *norm_in;  /* [m][ld_norm] */
    int64_t ld_norm;
    const float *norm_weight; /* [k] or NULL */
    float norm_eps;
    int32_t norm_identity; /* the rows as they are */
};
/* Tokens of a batch whose norm ck_linear and ck_linear_glu may take over rows of k; 0: none. */
int ck_norm_tokens(const struct ck_ctx *c, int64_t k);
/* The layout that ck_linear wants for a batch of m tokens. */
int ck_x_layout_for(const struct ck_ctx *c, int m);
/* Bytes for up to m_max tokens, either layout. */
size_t ck_x_bytes(int m_max, int64_t k);
/* float rows [m][ld] -> linear input (plain; norms and activations write theirs themselves through kernels_dev.cuh). */
int ck_x_write(const struct ck_ctx *c, const float *in, int64_t ld_in, int m, const struct ck_x *x, cudaStream_t st);

/* --- products --- */

#define CK_MAX_PARTS 4
int ck_leaves(int64_t k);
struct ck_part {
    const struct ck_weight *w; /* host struct */
    float *y;                  /* [m][ld_y]; first column of this part */
    int64_t ld_y;
    const float *bias;         /* [n] f32 or NULL */
    float scale;               /* 0 = none: of the product and bias */
    float softcap;             /* 0 = none: cap * tanh(v / cap) */
    int add;                   /* y += instead of = */
};
/* All parts read x (same k). Parts of one format and n_scale go in one launch. m > 0. */
int ck_linear(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st);

/* out = act(gate) * up as linear input of the next product (out->layout as for m; out->k = gate's n), the two products and the
 * activation in one launch. Kinds as plan.h: 0 silu, 1 gelu tanh, 2 clamped swiglu. gate and up of one format and shape. */
int ck_linear_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                  const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st);

/* --- products of a mixture of experts --- */

/* Slot i * top_k + j is the way of token i through the expert whose id is its j-th (rising). What the router chose is listed on the
 * device (steps.h: cs_route) and stays there: slots by expert, cut into pieces of one expert each. The matrices of all experts of a
 * layer lie one below the other in a stack, whole tiles each. A row's bits are those of ck_linear and ck_linear_glu with its expert's
 * matrices, whatever piece it is in. */
struct ck_piece {
    int32_t expert, first, n; /* its slots: slots[first .. first + n) */
    int32_t unused;           /* 16 bytes, one load */
};
#define CK_PIECE_TILE 64      /* slots of a piece of a prompt */
struct ck_expert_list {
    int32_t most;             /* slots of a piece at most (ck_experts_most); 1: piece i is slot i */
    struct ck_piece *pieces;  /* [ck_experts_pieces] */
    int32_t *slots;           /* [m * top_k] */
    int32_t *n_piece;
    int32_t *n_done;          /* zero between launches */
};
struct ck_experts {
    struct ck_expert_list list;
    int32_t m, top_k, n_expert;
};
/* Slots of a piece for such a batch. 1: few tokens, whose sums ck_experts_down_sum takes with the products. CK_PIECE_TILE: a prompt, whose
 * linear inputs are CK_X_PIECES (steps.h: cs_gather_pieces). Else they are CK_X_ROWS: x the batch's, down's with a row for each slot. */
int ck_experts_most(const struct ck_ctx *c, int m, int top_k, int n_expert);
size_t ck_experts_pieces(int m_max, int top_k, int n_expert);                        /* that a batch may have */
size_t ck_experts_rows(const struct ck_ctx *c, int m_max, int top_k, int n_expert);  /* of the linear inputs that are not the batch's */
/* out's row of a slot = act(gate) * up of its row of x. width: rows of an expert in gate and up. */
int ck_experts_glu(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *gate, const struct ck_weight *up,
                   int64_t width, const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st);
/* y[slot] = the slot's row of x through down, d rows an expert. */
int ck_experts_down(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *down, int64_t d, const float *bias,
                    float *y, int64_t ld_y, cudaStream_t st);
/* A token's experts: acc = +0, then acc += weight * y in rising id; acc += shared / (1 + exp(-gate)) (shared NULL: none; gate NULL: shared as it
 * is); out = acc or out += acc. */
struct ck_expert_sum {
    const float *route;       /* [m][ld_route] what cs_route wrote: weight j at top_k + j */
    const float *shared, *gate;
    float *out;
    int64_t ld_route, ld_shared, ld_gate, ld_out;
    int add;
};
/* ck_experts_down and the sum of what it makes, for lists of single slots. */
int ck_experts_down_sum(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *down, int64_t d, const float *bias,
                        const struct ck_expert_sum *sum, cudaStream_t st);

/* --- attention over pages --- */

/* A page (64 tokens) holds for each layer and KV head K [64 keys][d_pad], then V turned: [d_pad][64 keys], elements of the page's
 * format; d_pad = d rounded up to 64; where an element lies: kernels_dev.cuh, ck_k_off and ck_v_off. Who writes a key writes K's
 * dims [d, d_pad) as zeros. Keys that no token sees, and V's dims from d on, may hold anything.
 * Order: splits of CK_ATTN_SPLIT keys from index 0, tiles of 64 in them; docs/numerics.md. */
#define CK_ATTN_SPLIT 256
enum ck_kv { CK_KV_BF16 = 0, CK_KV_F16, CK_KV_F32 }; /* as enum kv_format */
size_t ck_kv_head_bytes(int kv_format, int head_dim);

/* Tokens tok0 .. tok0 + n_tok - 1 of the batch, all of one sequence, whose page table is row i_table of `pages`. */
struct ck_attn_unit { int32_t tok0, n_tok, i_table, i_split; };

struct ck_attend {
    const float *q;        /* [m][ld_q], scaled (times log2 e / sqrt d unless softcap); head h at column h * q_step */
    int64_t ld_q, q_step;
    float *out;            /* [m][ld_out] float, head h at column h * d; or NULL */
    int64_t ld_out;
    const struct ck_x *x;  /* host struct: linear input written too; or NULL */
    const int32_t *lo, *hi; /* [m] token i of the batch sees keys [lo, hi) of its sequence; hi > lo */
    const void *pool;      /* page p at p * 4096 bytes */
    const int32_t *pages;  /* [..][ld_pages] page ids by index / 64; entries outside what is visible are not read */
    int64_t ld_pages;
    int64_t head_off;      /* bytes from a page's beginning to K of KV head 0 of this layer */
    int kv_format, n_head, n_head_kv, head_dim;
    float softcap;         /* 0 = none */
    const float *sinks;    /* [n_head], times log2 e; or NULL */
    /* Few tokens (decode, drafts): n_small units of at most ck_attn_small_tokens each; splits run in parallel.
     * i_split of these units is unused; n_split: the most splits any of them sees, (max hi + 255) / 256 (more is right too:
     * a captured graph takes the largest it may meet). */
    const struct ck_attn_unit *small_units; int n_small; int n_split;
    /* Many tokens (prefill): n_large units of at most ck_attn_large_tokens each. A token is in exactly one unit. */
    const struct ck_attn_unit *large_units; int n_large;
};
int ck_attn_small_tokens(int n_head, int n_head_kv); /* 16 / group, at least 1 */
int ck_attn_large_tokens(int n_head, int n_head_kv);
int ck_attend(const struct ck_ctx *c, const struct ck_attend *a, cudaStream_t st);

#ifdef __cplusplus
}
#endif
#endif
