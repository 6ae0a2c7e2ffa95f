/* ckpt_int.h: what the files of the checkpoint conversion share. Steps: rules (what the family wants) -> plan (each output
 * tensor: its sources, its form, its shard) -> config (JSON) -> write (stream). One struct conv lives on the stack of
 * convert_checkpoint; its arena holds names and lists.
 */
#ifndef CONVERT_CKPT_INT_H
#define CONVERT_CKPT_INT_H

#include "base/mem.h"
#include "convert/convert.h"
#include "convert/out_folder.h"
#include "format/safetensors.h"
#include "model/spec.h"

/* A LoRA update of rows [first, first + n) of a module: w[first + o][i] += sum over j of b[j][o] * a[j][i]. */
struct conv_delta {
    const char *module;             /* as the source's tensors name it, without ".weight" */
    int64_t first, n, k;
    int32_t rank;
    const float *a, *b;             /* [rank][k], [rank][n]; the scale is in b */
};

/* One module or plain tensor of the output. */
struct conv_item {
    const char *name;               /* of the output, whole: "model.layers.0.mlp.up_proj.weight" */
    const char *module;             /* without ".weight"; NULL: not a weight */
    const struct tensor_view **src; /* [n_src] its rows, one below the other (experts one by one) */
    size_t n_src;
    const struct tensor_view *scales, *biases; /* of a quantised source; n_src is then 1. biases NULL: mxfp4, mxfp8, nvfp4 */
    struct quant_spec from, to;     /* QUANT_NONE: floats */
    enum dtype dtype;               /* of the floats, or of scales and biases; as in the source when it is no float */
    const struct tensor_view **block_scales; /* [n_src] of float8 sources (format/fp8.h), else NULL */
    int32_t n_head, head_rows, head_first; /* kv_b_proj: of each of n_head heads, head_rows rows, those of this item from head_first on */
    bool turned;                    /* n_head: each head's rows are columns here */
    int32_t n_turns, i_turn;        /* n_turns > 1: row r is row r * n_turns + i_turn of the source, whose view holds this item's share
                                       of the bytes; scales likewise */
    bool plus_one;                  /* a norm that is published as weight - 1: the sum is rounded to the source's type */
    const struct conv_delta *deltas; /* [n_deltas] those of this module, rows rising */
    size_t n_deltas;
    bool as_is;                     /* bytes are copied */
    int64_t n_rows, n_in;           /* of all sources together; n_in logical */
    size_t i_shard, i_out;          /* first tensor in the shard: the weight; then scales and biases */
};

struct conv {
    const char *src_dir;
    const struct checkpoint_opts *opts;
    struct checkpoint *ckpt;        /* owned */
    json_t *config;                 /* owned */
    struct model_spec spec;         /* owned */
    struct quant_config *plan;      /* owned; NULL without opts->plan */
    struct quant_spec global;       /* what a module gets unless something says otherwise; QUANT_NONE: no quantisation */
    bool cast;                      /* floats become dtype */
    enum dtype dtype;
    const struct conv_delta *deltas; /* [n_deltas] of all modules, those of a module together; borrowed */
    size_t n_deltas;
    bool hybrid_published;          /* delta nets as their makers store them: taps last, norms as weight - 1 */
    bool keeps_experts;             /* mxfp4 experts stay so unless a plan says otherwise */
    bool keep_types;                /* floats stay as they are, whatever config.json names */
    struct arena arena;
    struct conv_item *items;
    size_t n_items;
    struct tensor_view *out;        /* [n_out] names, types, shapes, in the order of items */
    size_t n_out;
    struct conv_item *mtp;          /* [n_mtp] the head for several tokens, in floats or as its codes are */
    struct tensor_view *mtp_out;    /* [n_mtp] */
    size_t n_mtp;
    uint64_t mtp_bytes;
    size_t *shard_first;            /* [n_shards + 1] into out */
    size_t n_shards;
    struct checkpoint_result result;
};

/* --- ckpt_mtp.c: the head for several tokens at once, which goes into mtp/ as it is --- */
/* One tensor of it, if it is one (*is). */
mb_status conv_mtp_add(struct conv *c, const struct tensor_view *t, bool *is, mb_error *err);
/* mtp/config.json: the source's. */
mb_status conv_mtp_config(struct conv *c, const struct out_folder *o, mb_error *err);

/* --- ckpt_rules.c --- */
bool conv_is_mtp(const struct conv *c, const char *name);
/* Name of a source tensor in the output; NULL when it is dropped (or without memory, which the arena remembers). */
const char *conv_rename(struct conv *c, const char *name);
/* Is this one of the tensors whose floats are never rounded? */
bool conv_keeps_type(const char *name);
/* A convolution over what a delta net reads: never packed. */
bool conv_is_taps(const char *name);
/* Is this checkpoint of delta nets as published? */
bool conv_hybrid_published(const struct conv *c);
/* A norm that such a checkpoint stores as weight - 1; name as in the output. */
bool conv_is_less_one(const struct conv *c, const char *name);
/* Bits and group that the family or the recipe gives a module when only bits and group are asked for. */
struct quant_spec conv_module_spec(const struct conv *c, const char *module);
/* Part of an expert: *layer, *part ("gate_proj" ...) and *i_expert; false: an ordinary tensor. */
struct conv_expert { int layer, i_expert, i_part; };
/* The same of a published tensor of all experts: i_part 0 holds gate and up, one after the other in each expert; 2: down. */
bool conv_published_parse(const struct conv *c, const char *name, struct conv_expert *out);
bool conv_expert_parse(const struct conv *c, const char *name, struct conv_expert *out);
const char *conv_expert_source(const struct conv *c, const struct conv_expert *e, int i_expert, char *out, size_t cap);
const char *conv_expert_target(struct conv *c, const struct conv_expert *e);
/* A tensor of all experts of gpt-oss as published; *tail: "_blocks", "_scales", "_bias", or "" when the experts are floats. */
bool conv_blocks_parse(const struct conv *c, const char *name, struct conv_expert *out, const char **tail);
/* Are these experts of mxfp4 in a model that is otherwise floats, as gpt-oss is published? -q is for the rest then, as mlx-lm does. */
bool conv_keeps_experts(const struct conv *c);
/* kv_b_proj of a layer with attention over latents. */
bool conv_kv_parse(const struct conv *c, const char *name, int *layer);
bool conv_recipe_known(const char *recipe, int *low_bits, int *high_bits);

/* --- ckpt_plan.c --- */
/* Tensors of a module: the floats; codes and scales; codes, scales and biases. */
size_t conv_n_tensors(const struct quant_spec *s);
mb_status conv_plan(struct conv *c, mb_error *err);
/* One item of the output. told: NULL, or what its sources' shapes do not tell: heads, turns, n_rows, n_in, from, scales. */
mb_status conv_item_add(struct conv *c, const char *name, const struct tensor_view **src, size_t n_src, const struct conv_item *told,
                        mb_error *err);

/* --- ckpt_parts.c: each the items of one tensor --- */
mb_status conv_experts_add(struct conv *c, const struct conv_expert *e, mb_error *err);
mb_status conv_published_add(struct conv *c, const struct conv_expert *e, const struct tensor_view *t, mb_error *err);
mb_status conv_blocks_add(struct conv *c, const struct conv_expert *e, const struct tensor_view *t, const char *tail, mb_error *err);
mb_status conv_kv_add(struct conv *c, const struct tensor_view *t, int layer, mb_error *err);

/* --- ckpt_config.c --- */
/* Reads the type and the numbers of the options. */
mb_status conv_settle(struct conv *c, mb_error *err);
/* After conv_plan: MB_INVALID for a key of the options' plan that names no module. */
mb_status conv_plan_check(const struct conv *c, mb_error *err);
/* config.json of the output; the caller owns it. */
mb_status conv_config_make(struct conv *c, json_t **out, mb_error *err);
/* model.safetensors.index.json. */
mb_status conv_index_make(struct conv *c, json_t **out, mb_error *err);
void conv_shard_name(const struct conv *c, size_t i_shard, char out[64]);

/* --- ckpt_write.c --- */
mb_status conv_write(struct conv *c, const struct out_folder *o, mb_error *err);
/* Row r of an item as floats [n_in], out of whichever source holds it. */
void conv_row_read(const struct conv_item *it, int64_t r, float *out);

/* --- ckpt_convert.c --- */
/* Fill out_dir with what is planned; publish it. */
mb_status conv_folder_make(struct conv *c, const char *out_dir, mb_error *err);
/* Read config and headers of c->src_dir, settle the options, plan the tensors. conv_close in every case. */
mb_status conv_open(struct conv *c, mb_error *err);
void conv_close(struct conv *c);

#endif
