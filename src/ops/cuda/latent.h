/* latent.h: the kernels of attention over latents behind a plain C interface (plan.h: STEP_HEADS, STEP_LATENT, STEP_INDEX and
 * STEP_ATTEND over pages of latents). As in steps.h: launchers queue work, return 0 or an error code, and a
 * kernel waits for the one ahead before it touches memory; device memory unless it says host.
 *
 * A page of latents holds of each layer 64 keys, one after the other: the latent, the rotated part, where there is one the indexer's key;
 * `rows` values, padded to a multiple of 64. The values of attention are the first d_value of a key. Where an element lies: latent_dev.cuh.
 * Order: splits of CK_ATTN_SPLIT keys from index 0 (of the list, where keys were chosen), tiles of 64 in them; docs/numerics.md.
 */
#ifndef OPS_CUDA_LATENT_H
#define OPS_CUDA_LATENT_H

#include <stdbool.h>

#include "ops/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What steps over pages of latents share. */
struct cl_pages {
    void *pool;                 /* page p at p * 4096 bytes */
    const int32_t *pages;       /* page ids of all rows of the batch */
    const int32_t *table_of;    /* [m] where the token's row begins in pages */
    const int32_t *index;       /* [m] of the token in its sequence */
    int64_t area_off;           /* bytes from a page's beginning to this layer's keys */
    int32_t format;             /* enum ck_kv */
    int32_t rows;               /* of the kind */
};
/* Bytes of a layer in a page. */
size_t cl_page_bytes(int format, int rows);

/* out[i][h * out_step ..] = head h's matrix times in[i][h * in_step ..], the product of kernels.h with mul 1: the same bits for every m. */
struct cl_heads {
    const struct ck_weight *w;  /* host struct: [n_head * n][k], n a multiple of 16 */
    const float *in;
    int64_t ld_in, in_step;
    float *out;
    int64_t ld_out, out_step;
    int32_t m, n_head;
};
#define CL_HEADS_K_MAX 576
int cl_heads(const struct ck_ctx *c, const struct cl_heads *a, cudaStream_t st);

/* q' in out: of each head d_latent columns that are there already and d_rope that are rotated here, all scaled; the token's latent, normalised,
 * its rotated key and the indexer's key to its page. */
struct cl_latent {
    struct cl_pages p;
    const float *q, *kv;
    int64_t ld_q, ld_kv;
    float *out;
    int64_t ld_out;
    int32_t m, n_head, d_latent, d_rope, q_first, q_step, interleaved;
    const float *norm;          /* [d_latent] */
    float norm_eps, q_scale;
    const float *table;         /* [m][d_rope] cosines then sines of each token */
    const float *index_key;     /* NULL: none */
    int64_t ld_index;
    const float *index_norm, *index_bias; /* [d_index] */
    float index_eps;
    int32_t index_interleaved, d_index;
};
#define CL_ROWS_MAX 1024        /* of a page */
int cl_latent(const struct ck_ctx *c, const struct cl_latent *a, cudaStream_t st);

/* The indexer: of the keys of a token at an index from top_k on, the best top_k; its list, rising, as exact floats, to out. */
struct cl_index {
    struct cl_pages p;
    const float *q, *weights;   /* [m][n_head * dim] not rotated yet, [m][n_head] */
    int64_t ld_q, ld_weights;
    const float *table;         /* [m][n_rot] */
    float *out;                 /* [m][top_k] */
    int64_t ld_out;
    int32_t m, n_head, dim, n_rot, interleaved, top_k, first_row; /* first_row: where the indexer's key begins in a key */
    int32_t n_split;            /* as below */
    void *work;                 /* scores; cl_index_work_bytes suffice for any batch */
    size_t work_bytes;
};
#define CL_INDEX_DIM_MAX 128
#define CL_INDEX_Q_BYTES 48000  /* of a token's queries and weights */
int cl_index(const struct ck_ctx *c, const struct cl_index *a, cudaStream_t st);
size_t cl_index_work_bytes(int n_context);

/* All keys up to the token's own; from index top_k on the chosen ones alone, when there are any. */
struct cl_attend {
    struct cl_pages p;
    const float *q;             /* [m][ld_q], scaled; head h at column h * d */
    int64_t ld_q;
    float *out;                 /* [m][ld_out]: head h at column h * d_value */
    int64_t ld_out;
    int32_t m, n_head, d, d_value;
    const float *chosen;        /* [m][ld_chosen] indices, rising, exact floats; NULL: all keys */
    int64_t ld_chosen;
    int32_t top_k;
    int32_t n_split;            /* the most splits of a token; more is right too */
    void *work;                 /* what splits leave for one another; cl_attend_work_bytes suffice for any batch */
    size_t work_bytes;
};
#define CL_D_MAX 640
#define CL_VALUE_MAX 512
int cl_attend(const struct ck_ctx *c, const struct cl_attend *a, cudaStream_t st);
size_t cl_attend_work_bytes(const struct ck_ctx *c, int n_head, int d_value, int n_context);

#ifdef __cplusplus
}
#endif
#endif
