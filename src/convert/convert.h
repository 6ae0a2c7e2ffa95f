/* convert.h: making MLX checkpoints out of other files.
 *
 * convert_gguf imports a GGUF model without loss where the scheme allows it:
 *   Q4_0 Q4_1 Q5_0 Q5_1 Q8_0   affine, group 32, float16 scales (float32 where 8 or 128 times a scale leaves float16)
 *   Q4_K Q5_K                  affine, group 32, float32 scales (a group's scale is a product of two numbers)
 *   Q6_K                       8 bit, group 32, float32 scales; its groups of 16 may differ, so this one may round: the
 *                              report holds the largest error
 *   F32 F16 BF16               as they are
 * Row order (rope), norms (Gemma's +1), names, config.json, tokenizer.json and the chat template come out as Hugging
 * Face and mlx-lm write them. Source: the block layouts of ggml, the converters of transformers (facts only).
 */
#ifndef CONVERT_CONVERT_H
#define CONVERT_CONVERT_H

#include "base/status.h"

/* Bytes of the source done so far. Return false to stop: MB_CANCELLED, nothing is left behind. */
typedef bool (*convert_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);

struct convert_report {
    char arch[32];              /* general.architecture */
    size_t n_tensors;           /* of the source that were taken over */
    size_t n_plain;             /* in floats, as they are */
    size_t n_exact;             /* quantised, every weight equal to the source's */
    size_t n_rounded;           /* quantised again (Q6_K), at least one weight not equal */
    size_t n_f32_scales;        /* quantised tensors whose scales are float32 */
    double worst_error;         /* largest |weight - source weight| over the rounded tensors */
    double worst_error_share;   /* largest error as a share of the largest |weight| of its group of 32 */
    char worst_tensor[128];     /* where worst_error is; "" when nothing was rounded */
    uint64_t size_bytes;        /* of the tensors in model.safetensors */
    char notes[1024];           /* lines for the user, each ended by '\n'; "" when there is nothing to say */
};

struct convert_opts {
    convert_progress_fn progress; /* NULL: silent; called from this thread */
    void *progress_ctx;
    struct convert_report *report; /* NULL, or filled; valid after success */
};

/* Import gguf_path into the new folder out_dir, which must not exist or be empty. Everything is written into a folder
 * beside it that gets the name at the end: out_dir is whole or absent. opts may be NULL.
 * MB_NOT_FOUND, MB_BAD_FORMAT (file and place), MB_UNSUPPORTED (names architecture, tensor type or tokenizer, and what to
 * take instead), MB_INVALID (out_dir is in use), MB_IO (no space: needed and free bytes), MB_CANCELLED, MB_NO_MEMORY.
 * Blocks on disk; memory stays a few MB plus the tokenizer. Any thread. */
mb_status convert_gguf(const char *gguf_path, const char *out_dir, const struct convert_opts *opts, mb_error *err);

#endif
