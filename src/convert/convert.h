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
 *
 * convert_checkpoint makes an MLX checkpoint of one in Hugging Face or MLX layout: names and tensors as mlx-lm writes them,
 * weights quantised (the same bits as mlx_lm.convert), or cast.
 */
#ifndef CONVERT_CONVERT_H
#define CONVERT_CONVERT_H

#include "format/quant.h"

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

/* --- checkpoints in safetensors --- */

struct checkpoint_result {
    char model_type[64];
    size_t n_tensors, n_quantised;  /* tensors written; modules quantised */
    size_t n_kept;                  /* of these as they were in the source, byte for byte */
    size_t n_requantised;           /* of these from a source that was quantised otherwise: rounded a second time */
    size_t n_indivisible;           /* modules left in floats: their inputs are no multiple of the group */
    size_t n_mtp;                   /* of the source's head for several tokens at once, in OUT/mtp/ */
    size_t n_dropped;               /* tensors of the source that the model does not read */
    size_t n_shards;
    uint64_t size_bytes, n_parameters;
    double bits_per_weight;         /* 8 * size_bytes / n_parameters: scales and biases count */
    const char *dtype;              /* of the floats: "bfloat16", or "as in the source" */
};

struct checkpoint_opts {
    const char *dtype;              /* "float16", "bfloat16", "float32"; NULL: what config.json names, else as it is */
    bool quantise;
    enum quant_mode mode;           /* QUANT_AFFINE (0: the same) or QUANT_TRELLIS */
    int bits, group_size;           /* 2 3 4 5 6 8 (0: 4; trellis: 2 3 4); 32 64 128 (0: 64) */
    const char *recipe;             /* NULL, or "mixed_2_6", "mixed_3_4", "mixed_3_6", "mixed_4_6": mlx-lm's */
    const json_t *plan;             /* NULL, or an object like config.json's "quantization": decides alone */
    const char *note_name;          /* NULL, or a JSON file that goes beside config.json: its name and content */
    const json_t *note;
    uint64_t max_shard_bytes;       /* 0: 5 GB */
    int n_threads;                  /* 0: as many as there are cores; no effect on the output */
    convert_progress_fn progress;   /* NULL: silent; called from this thread */
    void *progress_ctx;
    struct checkpoint_result *result; /* NULL, or filled; valid after success */
};

/* Convert the checkpoint in src_dir into the new folder out_dir, which must not exist or be empty; whole or absent as above.
 * A module that is quantised in the source (affine, trellis, mxfp4, mxfp8, nvfp4) keeps its bytes where it gets the same form, bits and
 * group, else it is dequantised and quantised again. opts may be NULL: a copy with MLX's names and types.
 * MB_INVALID (out_dir in use, a number out of range, a key of plan that names no module, a weight that is not finite in the
 * type), MB_NOT_FOUND, MB_BAD_FORMAT, MB_UNSUPPORTED (names the family or the scheme), MB_IO (no space: both numbers),
 * MB_CANCELLED, MB_NO_MEMORY. Memory: some MB a thread; source pages are dropped behind. Any thread. */
mb_status convert_checkpoint(const char *src_dir, const char *out_dir, const struct checkpoint_opts *opts, mb_error *err);

/* --- adapters --- */

struct fuse_opts {
    int n_threads;
    convert_progress_fn progress;
    void *progress_ctx;
    struct checkpoint_result *result;
    size_t *n_fused;                /* NULL, or receives the number of modules that were changed */
};

/* Add a LoRA adapter (MLX or PEFT form, model/adapter.h) to the weights: W + scale * B A for each of its modules, with that module's
 * own scale. A quantised module is dequantised, updated and quantised again in its own bits and group; every other tensor keeps its
 * bytes. Fails as convert_checkpoint and adapter_load do. Opens the model to check the adapter against it: memory as for serving. */
mb_status convert_fuse(const char *src_dir, const char *adapter_dir, const char *out_dir, const struct fuse_opts *opts,
                       mb_error *err);

/* --- mixed precision --- */

#define MIXED_MAX_CANDIDATES 24

struct mixed_opts {
    const char *dtype;              /* as in checkpoint_opts */
    double target_bpw;              /* bits per weight of the whole model at most */
    struct quant_spec candidates[MIXED_MAX_CANDIDATES]; /* affine */
    int n_candidates;
    struct quant_spec probe;        /* what the figures were measured with */
    const json_t *figures;          /* module -> mean KL in nats (engine/sensitivity.h) */
    int n_threads;
    convert_progress_fn progress;   /* NULL: silent */
    void *progress_ctx;
};

struct mixed_result {
    double bits_per_weight;         /* of the plan */
    double predicted_kl;            /* sum over the modules, nats */
    size_t n_by_bits[9];            /* modules with so many bits */
};

/* The texts to measure on when the user names none; static, *len bytes. */
const char *convert_calibration_text(size_t *len);
/* Before the figures are measured: can the source be converted, and the target be met? From config and headers alone. */
mb_status convert_mixed_check(const char *src_dir, const struct mixed_opts *opts, mb_error *err);
/* Choose bits and group of each module. A candidate's loss is the module's figure times its squared weight error over the probe's
 * (loss grows with the square of the error); beginning with the fewest bytes, the step that saves most loss a byte is taken while
 * the target allows; embedding, head, first and last block, blocks and runs of blocks are guarded (ckpt_choose.h). *plan: a new object for checkpoint_opts.plan. The same inputs give the same plan, whatever n_threads.
 * MB_INVALID when even the smallest candidates are above the target (names the least bits per weight), when all figures are 0, and what
 * convert_checkpoint gives for a source. Reads the whole source once. */
mb_status convert_mixed_plan(const char *src_dir, const struct mixed_opts *opts, json_t **plan, struct mixed_result *result,
                             mb_error *err);

#endif
