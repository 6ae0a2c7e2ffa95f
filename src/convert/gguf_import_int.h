/* gguf_import_int.h: what the files of the GGUF import share. One struct import lives on the stack of convert_gguf; its
 * arena holds names and lists. Steps: arch (which family) -> plan (each tensor's new name, type, rows) -> config,
 * tokenizer (JSON) -> write (stream the tensors).
 */
#ifndef CONVERT_GGUF_IMPORT_INT_H
#define CONVERT_GGUF_IMPORT_INT_H

#include <jansson.h>

#include "base/mem.h"
#include "convert/convert.h"
#include "format/gguf.h"
#include "format/quant.h"
#include "format/safetensors.h"

#define IMPORT_GROUP 32

struct import;

/* One architecture. Keys of the metadata begin with `name`. */
struct import_arch {
    const char *name;          /* general.architecture */
    const char *model_type;    /* config.json */
    const char *class_name;    /* config.json "architectures" */
    bool permuted;             /* rows of q and k are in interleaved rope order */
    bool norm_plus_one;        /* norms hold w + 1 */
    const char *ffn_norm;      /* what blk.N.ffn_norm is called */
    const char *post_attn_norm; /* what blk.N.post_attention_norm is called; NULL: not in this family */
    mb_status (*config)(struct import *im, json_t *config, mb_error *err); /* keys of this family alone; may be NULL */
};

enum import_rows { ROWS_AS_IS = 0, ROWS_UNPERMUTE };

/* One source tensor and where it goes. */
struct import_item {
    const struct gguf_tensor *src;
    const char *module;       /* new name without ".weight" / ".bias" */
    size_t i_out;             /* first tensor in `out`: the weight; then scales and biases when bits > 0 */
    int bits;                 /* 0: floats as they are */
    enum dtype scale_dtype;
    enum import_rows rows;
    int64_t head_dim;         /* for ROWS_UNPERMUTE */
    bool minus_one;
    int64_t n_rows, n_in;
};

struct import {
    const struct gguf *g;
    const char *path;         /* of the source, for texts */
    const struct import_arch *arch;
    struct arena arena;
    struct import_item *items;
    size_t n_items;
    struct tensor_view *out;  /* names, types, shapes */
    size_t n_out;
    struct convert_report report;
    /* from the metadata */
    int64_t n_layer, n_embd, n_ff, n_head, n_head_kv, head_dim, n_vocab, n_ctx;
    double eps, rope_base;
    bool tied;
};

/* --- gguf_import_arch.c --- */
/* Find the row and read the numbers above. MB_UNSUPPORTED names the architecture. */
mb_status import_arch_read(struct import *im, mb_error *err);
/* The metadata key "<arch>.<rest>"; in the import's arena. */
const char *import_key(struct import *im, const char *rest);
/* New name of a source tensor, NULL when it is not carried over (*known tells whether it is known at all). */
const char *import_tensor_name(struct import *im, const char *name, bool *known);

/* --- gguf_import_plan.c --- */
mb_status import_plan(struct import *im, mb_error *err);

/* --- gguf_import_config.c --- */
mb_status import_config_make(struct import *im, json_t **config, json_t **generation_config, mb_error *err);
/* The float as the shortest decimal that gives it back, as a double: 1e-05 and not 9.99999974e-06. */
double import_decimal(double f32_value);
mb_status import_config_gemma3(struct import *im, json_t *config, mb_error *err);

/* --- gguf_import_tokenizer.c, gguf_import_spm.c --- */
struct import_vocab {
    struct str *pieces;   /* [n], views into the file */
    uint8_t *types;       /* [n] GGUF_TOKEN_* */
    float *scores;        /* [n] or NULL */
    int64_t n;
};
enum { GGUF_TOKEN_NORMAL = 1, GGUF_TOKEN_UNKNOWN, GGUF_TOKEN_CONTROL, GGUF_TOKEN_USER, GGUF_TOKEN_UNUSED,
       GGUF_TOKEN_BYTE };
/* *chat_template is NULL when the file has none. All owned by the caller. */
mb_status import_tokenizer_make(struct import *im, json_t **tokenizer, json_t **tokenizer_config,
                                char **chat_template, mb_error *err);
mb_status import_vocab_read(struct import *im, struct import_vocab *v, mb_error *err);
/* Merges of a SentencePiece BPE vocabulary from its scores, as [["a","b"], ...]. */
mb_status import_spm_merges(struct import *im, const struct import_vocab *v, json_t **merges, mb_error *err);
/* Ids that end a generation: the file's eos and eot first, then other well-known end marks. Returns the count. */
size_t import_eos_ids(struct import *im, int64_t *ids, size_t cap);
/* A token id of the metadata ("bos", "eos", ...), -1 when absent or out of range. */
int64_t import_token_id(const struct import *im, const char *which);

/* --- gguf_import_write.c --- */
mb_status import_write(struct import *im, const char *path, const struct convert_opts *opts, mb_error *err);

/* --- gguf_blocks.c --- */
struct import_group {
    uint8_t code[IMPORT_GROUP];
    float scale, bias; /* weight = fma(scale, code, bias) */
    float error;       /* largest |weight - source weight|: 0 but for Q6_K */
    float amax;        /* largest |source weight|, set only where error > 0 */
};
struct import_scheme {
    int type;          /* enum gguf_tensor_type */
    int bits;
    bool f16_scales;   /* float16 scales and biases are exact, or exact unless the bias overflows */
    /* One block -> block_elements / 32 groups. */
    void (*split)(const uint8_t *block, struct import_group *out);
};
/* NULL for a type that is not quantised or cannot be imported. */
const struct import_scheme *import_scheme_get(int type);
/* 32 codes -> 4 * bits bytes. */
void import_pack(const uint8_t code[IMPORT_GROUP], int bits, uint8_t *out);

/* A line into the report. */
void import_note(struct import *im, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
