/* inspect.h: what a snapshot is, from config.json, small files and safetensors headers alone: no tensor byte is read (REG-056). */
#ifndef HUB_INSPECT_H
#define HUB_INSPECT_H

#include "base/status.h"

struct model_facts {
    char model_type[64];
    int64_t param_count;          /* logical weights: packed ones counted unpacked (REG-064) */
    int64_t num_layers, hidden_size, vocab_size, context; /* 0 = not said */
    int64_t size_bytes;           /* of tensors, without the vision sidecar (REG-065) */
    int64_t sidecar_bytes, experts_bytes;
    int32_t quant_bits, quant_group_size;
    char quant_mode[16];          /* "affine", "mxfp4"; "" = plain */
    char vision_config_type[64];  /* only when it names a vision tower (REG-070) */
    char license[64];
    bool has_vision_sidecar, has_kv_config, has_tool_template, readable;
    char problem[160];            /* why it is not readable */
};

/* Never fails: what cannot be read stays 0, `readable` and `problem` say so. */
void inspect_model(struct model_facts *out, const char *dir);
/* REG-073..076 */
bool inspect_is_vision(const struct model_facts *f);

#endif
