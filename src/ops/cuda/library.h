/* library.h: what libmlxbun-cuda.so gives the program: one table of functions. The program is built without CUDA and finds
 * the library when a device "cuda" is first asked for (load.c); everything that needs nvcc is behind this table. Plain C:
 * read by C17 host code and by library.cu.
 *
 * Every function returns 0 or an error code, whose text error_text gives. `stream` is the device's one stream; functions
 * with a stream only enqueue. Pointers are device memory unless they say host. No function allocates but `alloc`,
 * `alloc_host`, `graph_end`.
 */
#ifndef OPS_CUDA_LIBRARY_H
#define OPS_CUDA_LIBRARY_H

#include "ops/cuda/kernels.h"
#include "ops/cuda/latent.h"
#include "ops/cuda/steps.h"

#define CUDA_LIBRARY_ABI 8 /* a change of any line here, in steps.h, latent.h or kernels.h */

struct cuda_device_info {
    char name[64];
    int32_t major, minor;      /* compute capability */
    int32_t n_sm;
    size_t shared_bytes;       /* that a block may ask for */
    size_t total_bytes, free_bytes;
};

struct cuda_library {
    uint32_t abi, struct_bytes;
    const char *(*error_text)(int code);
    /* Driver, library and devices: the count, or why there is none. */
    int (*device_count)(int *count);
    /* Make `ordinal` the calling thread's device; every thread that calls in does this first. */
    int (*device_use)(int ordinal);
    int (*device_info)(int ordinal, struct cuda_device_info *out);
    int (*stream_open)(void **out);
    void (*stream_close)(void *stream);
    int (*stream_wait)(void *stream);
    int (*stream_poll)(void *stream, int *done); /* does not wait */
    int (*alloc)(void **out, size_t bytes);
    void (*free)(void *p);
    int (*alloc_host)(void **out, size_t bytes); /* pinned */
    void (*free_host)(void *p);
    /* Memory of card `other` becomes memory that `ordinal` may use; *can 0: there is no way. */
    int (*peer_open)(int ordinal, int other, int *can);
    int (*copy)(void *dst, const void *src, size_t bytes, void *stream); /* either way; host memory pinned to be async */
    int (*fill)(void *dst, int byte, size_t bytes, void *stream);
    /* Between begin and end, what is enqueued on the stream is recorded instead; end makes it a graph to run again. */
    int (*graph_begin)(void *stream);
    int (*graph_end)(void *stream, void **graph);
    int (*graph_run)(void *graph, void *stream);
    void (*graph_free)(void *graph);
    /* A place in the stream that can be waited for while more is queued behind it. */
    int (*event_open)(void **out);
    void (*event_close)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    /* steps.h */
    int (*norm)(const struct ck_ctx *c, const struct cs_norm *a, cudaStream_t st);
    int (*glu)(const struct ck_ctx *c, const struct cs_glu *a, cudaStream_t st);
    int (*gate)(const struct ck_ctx *c, const struct cs_gate *a, cudaStream_t st);
    int (*rope)(const struct ck_ctx *c, const struct cs_rope *a, cudaStream_t st);
    int (*rope_attend)(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st);
    int (*fetch)(const struct ck_ctx *c, void *dst, const void *src, size_t bytes, cudaStream_t st);
    int (*gather_rows)(const struct ck_ctx *c, const float *in, int64_t ld_in, const int32_t *rows, int32_t n, int32_t width, float *out, int64_t ld_out,
                       cudaStream_t st);
    int (*lora_apply)(const struct ck_ctx *c, const struct cs_lora *a, cudaStream_t st);
    int (*linear_finish)(const struct ck_ctx *c, const float *y, int64_t ld_y, int32_t m, int64_t n, float scale, float softcap, float *out,
                         int64_t ld_out, int add, cudaStream_t st);
    int (*delta)(const struct ck_ctx *c, const struct cs_delta *a, cudaStream_t st);
    int (*route)(const struct ck_ctx *c, const struct cs_route *a, cudaStream_t st);
    int (*gather_pieces)(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *in, const struct ck_x *out, cudaStream_t st);
    int (*experts_sum)(const struct ck_ctx *c, const struct ck_expert_sum *a, const float *y, int64_t ld_y, int32_t m, int32_t top_k, int32_t width,
                       cudaStream_t st);
    int (*meet)(const struct ck_ctx *c, const struct cs_meet *a, cudaStream_t st);
    int (*join)(const struct ck_ctx *c, const struct cs_join *a, cudaStream_t st);
    int (*join_input)(const struct ck_ctx *c, const struct cs_join_input *a, cudaStream_t st);
    int (*trade)(const struct ck_ctx *c, const struct cs_trade *a, cudaStream_t st);
    int (*trade_norm)(const struct ck_ctx *c, const struct cs_trade *a, const struct cs_norm *n, cudaStream_t st);
    int (*trade_end)(const struct ck_ctx *c, void *inbox, int32_t n, cudaStream_t st);
    size_t (*sample_scratch_bytes)(int32_t n_vocab, int32_t n_draw);
    int (*sample)(const struct ck_ctx *c, const struct cs_draws *a, cudaStream_t st);
    /* kernels.h */
    int (*ctx_init)(struct ck_ctx *c, int device);
    size_t (*work_bytes)(const struct ck_ctx *c, int m_max, int n_head, int d_max, int n_context);
    size_t (*weight_bytes)(struct ck_weight *w, int bits, int group, int force_q8, int64_t n, int64_t k);
    int64_t (*tile_bytes)(const struct ck_weight *w);
    void (*weight_place)(struct ck_weight *w, void *block);
    int (*pack)(const struct ck_ctx *c, const struct ck_weight *w, int bits, int group, int dt, const void *src, const void *scales,
                const void *biases, int64_t row0, int64_t n_rows, int64_t row_step, int64_t row_off, cudaStream_t st);
    int (*gather)(const struct ck_ctx *c, const struct ck_weight *w, const int32_t *ids, int n_ids, float scale, float *out,
                  int64_t ld_out, cudaStream_t st);
    int (*x_layout_for)(const struct ck_ctx *c, int m);
    size_t (*x_bytes)(int m_max, int64_t k);
    int (*x_write)(const struct ck_ctx *c, const float *in, int64_t ld_in, int m, const struct ck_x *x, cudaStream_t st);
    int (*norm_tokens)(const struct ck_ctx *c, int64_t k);
    int (*linear)(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st);
    int (*linear_glu)(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                      const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st);
    int (*experts_most)(const struct ck_ctx *c, int m, int top_k, int n_expert);
    size_t (*experts_pieces)(int m_max, int top_k, int n_expert);
    size_t (*experts_rows)(const struct ck_ctx *c, int m_max, int top_k, int n_expert);
    int (*experts_glu)(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *gate, const struct ck_weight *up,
                       int64_t width, const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st);
    int (*experts_down)(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *down, int64_t d, const float *bias,
                        float *y, int64_t ld_y, cudaStream_t st);
    int (*experts_down_sum)(const struct ck_ctx *c, const struct ck_experts *e, const struct ck_x *x, const struct ck_weight *down, int64_t d, const float *bias,
                            const struct ck_expert_sum *sum, cudaStream_t st);
    size_t (*kv_head_bytes)(int kv_format, int head_dim);
    int (*attn_small_tokens)(int n_head, int n_head_kv);
    int (*attn_large_tokens)(int n_head, int n_head_kv);
    int (*attend)(const struct ck_ctx *c, const struct ck_attend *a, cudaStream_t st);
    /* latent.h */
    size_t (*latent_page_bytes)(int format, int rows);
    size_t (*latent_work_bytes)(const struct ck_ctx *c, int n_head, int d_value, int n_context);
    int (*heads)(const struct ck_ctx *c, const struct cl_heads *a, cudaStream_t st);
    int (*latent)(const struct ck_ctx *c, const struct cl_latent *a, cudaStream_t st);
    int (*latent_attend)(const struct ck_ctx *c, const struct cl_attend *a, cudaStream_t st);
    int (*index)(const struct ck_ctx *c, const struct cl_index *a, cudaStream_t st);
    size_t (*index_work_bytes)(int n_context);
};

/* The only symbol that the library exports. */
#define CUDA_LIBRARY_SYMBOL "mlxbun_cuda_library"
typedef const struct cuda_library *(*cuda_library_fn)(void);

#endif
