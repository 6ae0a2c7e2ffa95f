/* model.h: one loaded model instance: spec, packed weights, plan, compiled plan. The engine drives it through the
 * stepper of engine/stepper.h; nothing else of the program sees weights.
 * Lifetime: model_open .. model_close; weights are packed once, source pages are dropped as they are read.
 * Threads: after open, submit/collect by one thread; everything else is immutable.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/spec.h"
#include "ops/ops.h"

struct model; /* opaque */

/* KV formats by rule. KV_OF_TIER: float32 with TIER_F32, with TIER_L2 what kv_config.json says where there is one, else the family's
 * 16-bit type; KV_OF_FAMILY: that type; KV_OF_CONFIG: kv_config.json. */
enum { KV_OF_TIER = -1, KV_OF_FAMILY = -2, KV_OF_CONFIG = -3 };

/* kv_form.c: the format of each layer's keys and values. asked: enum kv_format or one of the above (KV_OF_TIER: float32 with TIER_F32,
 * with TIER_L2 what kv_config.json says where there is one, else the family's). codes: the device has pages of codes. Fills kv_asked
 * and the layers' kv_format, and makes the kinds anew. MB_UNSUPPORTED, MB_NOT_FOUND, MB_BAD_FORMAT (kv_config.json). */
mb_status model_kv_formats(struct model_spec *s, const char *dir, int asked, enum fidelity_tier tier, bool codes, mb_error *err);
const char *kv_format_name(int format); /* "bf16", "f16", "f32", "kv8", "kv4" */
/* "f16", "uniform-kv8", "mixed (kv_config.json)" (API-273). Static text. */
const char *model_kv_mode(const struct model_spec *s);
/* Layers by format; recurrent state counts as float32. */
void model_kv_count(const struct model_spec *s, int32_t n_layer[KV_FORMAT_COUNT]);
/* One line for the log: which layers have codes and which do not, and why; empty where no codes were asked for. True: some layer has
 * something else than what was asked for. */
bool model_kv_note(const struct model_spec *s, char *text, size_t cap);

struct model_options {
    const struct ops *ops;       /* backend */
    struct device *device;       /* borrowed */
    enum fidelity_tier tier;
    int kv_format;               /* enum kv_format, KV_OF_TIER, KV_OF_FAMILY or KV_OF_CONFIG */
    int32_t n_rows_max;          /* --batch */
    int32_t m_max;               /* tokens of a batch, 0 = 2048 */
    int32_t n_context;           /* lower the model's context; 0 = the model's own */
    int32_t max_lora_rank;       /* of adapters that may be used; 0 = 64, < 0 = none */
    bool expert_offload;         /* experts stay in the file that the device was opened with; before the first step the caller
                                    reserves memory for some of them (ops.h, experts_reserve) */
    void (*progress)(void *ctx, double fraction); /* may be NULL */
    void *progress_ctx;
};

mb_status model_open(struct model **out, const char *dir, const struct model_options *opt, mb_error *err);
void model_close(struct model *m);
const struct model_spec *model_spec_get(const struct model *m);
const struct plan *model_plan_get(const struct model *m);
const struct ops *model_ops(const struct model *m);
struct device *model_device(const struct model *m);
struct compiled *model_compiled(const struct model *m);
struct compiled *model_canvas(const struct model *m); /* for rows over a canvas; NULL: the model has none (spec.canvas) */
enum fidelity_tier model_tier(const struct model *m);
/* Bytes of packed weights in memory and of scratch: what admission subtracts, beside the cache of offloaded experts. */
size_t model_weight_bytes(const struct model *m);
size_t model_scratch_bytes(const struct model *m);
/* Offloaded experts: bytes of all of them, and of the largest: the least that a cache of them takes. 0: there are none. */
size_t model_expert_bytes(const struct model *m);
size_t model_expert_slot_bytes(const struct model *m);
/* Hash of config and weights (sizes, names and a sample of bytes): part of every cache key. */
uint64_t model_fingerprint(const struct model *m);
/* Make sure rope tables cover positions [0, n). Called between steps by the engine's thread; cheap when they do. */
mb_status model_reserve_positions(struct model *m, int32_t n, mb_error *err);
/* The i-th packed matrix (its name is the module's path; matrices of one fused tensor follow each other, in order of rows); NULL
 * behind the last. Those of recurrent layers (gated delta nets) and of attention
 * over latents are not among them. */
struct weight *model_weight_at(struct model *m, size_t i);
/* Put other numbers in its place: the same shape, packed otherwise. Only under TIER_F32, where no step depends on how a weight
 * is packed, and between steps. src's memory must live as long as they stand there when w is a gathered table (an untied
 * embedding). On failure the model can only be closed. */
mb_status model_weight_replace(struct model *m, struct weight *w, const struct weight_source *src, mb_error *err);
/* Memory this directory would take, from config and headers alone: weights, scratch, bytes of one page of each kind. */
struct model_size {
    size_t weight_bytes, scratch_bytes; /* scratch: of the largest step */
    struct {                     /* model_size_touched */
        size_t fixed_bytes;
        double row_bytes, key_bytes, position_bytes;
        int32_t rows_max, positions_first, n_context;
    } touched;
    size_t expert_bytes, expert_slot_bytes; /* offloaded: all experts, which are not in weight_bytes; the largest of them */
    struct kv_kind kinds[KV_MAX_KINDS];
    int32_t n_kinds;
    const char *kv_mode;         /* model_kv_mode */
    int32_t n_layer_kv[KV_FORMAT_COUNT]; /* model_kv_count */
    size_t kv_bytes_per_token;   /* full kinds and latents */
    /* What one token takes to compute, for predictions of speed. */
    struct {
        double bytes, values;    /* of the packed weights that it reads; multiply-adds with them. Of experts: those it goes to */
    } read[OPS_CLASSES];
    double head_values;          /* of these, the output matrix: of a prompt only its last token goes through it */
    enum ops_class head_class;
    struct {
        double bytes, macs;      /* of one visible key, all layers that read this kind together */
    } attend[KV_MAX_KINDS];
    int32_t n_layer, d_model, n_vocab;
};
mb_status model_size_estimate(struct model_size *out, const char *dir, const struct model_options *opt, mb_error *err);
/* Bytes of scratch that become memory, and of tables of positions, behind one request without an adapter whose largest step has at
 * most n_rows rows and whose context has grown to n. Where a backend takes scratch as a whole: scratch_bytes, and the tables. */
size_t model_size_touched(const struct model_size *z, int32_t n_rows, int32_t n);

#endif
