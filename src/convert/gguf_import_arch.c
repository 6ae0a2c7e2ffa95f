/* gguf_import_arch.c: the architectures that can be imported, one row each, the numbers every family has, and the names
 * of tensors. A new dense family is a row here and, if it has keys of its own, a function in gguf_import_config.c.
 */
#include <string.h>

#include "convert/gguf_import_int.h"

#define MAX_LAYERS 1024 /* as the reader of config.json */

static const struct import_arch archs[] = {
    { "llama", "llama", "LlamaForCausalLM", true, false, "post_attention_layernorm", NULL, NULL },
    { "qwen2", "qwen2", "Qwen2ForCausalLM", false, false, "post_attention_layernorm", NULL, NULL },
    { "qwen3", "qwen3", "Qwen3ForCausalLM", false, false, "post_attention_layernorm", NULL, NULL },
    { "gemma3", "gemma3_text", "Gemma3ForCausalLM", false, true, "pre_feedforward_layernorm", "post_attention_layernorm",
      import_config_gemma3 },
};

const char *import_key(struct import *im, const char *rest)
{
    const char *key = arena_printf(&im->arena, "%s.%s", im->arch->name, rest);
    return key ? key : "";
}

/* --- numbers --- */

static mb_status get_size(struct import *im, const char *rest, int64_t dflt, int64_t *out, mb_error *err)
{
    const char *key = import_key(im, rest);
    const struct gguf_value *v = gguf_find(im->g, key);
    if (v && v->type == GGUF_ARRAY)
        return mb_fail(err, MB_UNSUPPORTED, "%s: %s differs from layer to layer, which the import does not do", im->path,
                       key);
    MB_TRY(gguf_get_int(im->g, key, dflt, out, err));
    if (*out < 1 || *out > INT32_MAX)
        return mb_fail(err, MB_BAD_FORMAT, v ? "%s: the metadata key %s is out of range" :
                       "%s: the metadata key %s is missing", im->path, key);
    return MB_OK;
}

static mb_status arch_find(struct import *im, mb_error *err)
{
    struct str name;
    MB_TRY(gguf_get_string(im->g, "general.architecture", &name, err));
    if (!name.ptr) return mb_fail(err, MB_BAD_FORMAT, "%s: the metadata key general.architecture is missing", im->path);
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (str_eq(name, str_of(archs[i].name))) im->arch = &archs[i];
    if (im->arch) return MB_OK;
    char safe[64];
    struct buf b;
    buf_init(&b, 64);
    buf_append(&b, name.ptr, name.len < 48 ? name.len : 48);
    for (size_t i = 0; i < b.len; i++)
        if ((unsigned char)b.data[i] < 33 || (unsigned char)b.data[i] > 126) b.data[i] = '?';
    memcpy(safe, b.data ? b.data : "", b.len + 1);
    buf_free(&b);
    return mb_fail(err, MB_UNSUPPORTED,
                   "%s: GGUF architecture %s cannot be imported; llama (Mistral, SmolLM2 and others included), qwen2, qwen3 "
                   "and gemma3 can: take an MLX conversion of this model instead", im->path, safe);
}

static mb_status refuse_experts(struct import *im, mb_error *err)
{
    int64_t n;
    MB_TRY(gguf_get_int(im->g, import_key(im, "expert_count"), 0, &n, err));
    if (n > 0)
        return mb_fail(err, MB_UNSUPPORTED, "%s: a mixture of %lld experts; only dense models can be imported from GGUF: "
                       "take an MLX conversion of this model instead", im->path, (long long)n);
    return MB_OK;
}

/* Heads: key and value lengths must be one, and rope must turn the whole head. */
static mb_status read_head_dim(struct import *im, mb_error *err)
{
    int64_t value_length, rope_dim;
    if (im->n_head_kv > im->n_head || im->n_head % im->n_head_kv)
        return mb_fail(err, MB_BAD_FORMAT, "%s: %lld heads over %lld key-value heads", im->path, (long long)im->n_head,
                       (long long)im->n_head_kv);
    MB_TRY(get_size(im, "attention.key_length", im->n_embd / im->n_head, &im->head_dim, err));
    MB_TRY(get_size(im, "attention.value_length", im->head_dim, &value_length, err));
    MB_TRY(get_size(im, "rope.dimension_count", im->head_dim, &rope_dim, err));
    if (value_length != im->head_dim || rope_dim != im->head_dim || im->head_dim % 2)
        return mb_fail(err, MB_UNSUPPORTED, "%s: heads of %lld (keys), %lld (values) and %lld (rope); the import needs one "
                       "even length", im->path, (long long)im->head_dim, (long long)value_length, (long long)rope_dim);
    return MB_OK;
}

mb_status import_arch_read(struct import *im, mb_error *err)
{
    MB_TRY(arch_find(im, err));
    snprintf(im->report.arch, sizeof im->report.arch, "%s", im->arch->name);
    MB_TRY(refuse_experts(im, err));
    MB_TRY(get_size(im, "block_count", 0, &im->n_layer, err));
    if (im->n_layer > MAX_LAYERS)
        return mb_fail(err, MB_BAD_FORMAT, "%s: %s is %lld, at most %d", im->path, import_key(im, "block_count"),
                       (long long)im->n_layer, MAX_LAYERS);
    MB_TRY(get_size(im, "embedding_length", 0, &im->n_embd, err));
    MB_TRY(get_size(im, "feed_forward_length", 0, &im->n_ff, err));
    MB_TRY(get_size(im, "attention.head_count", 0, &im->n_head, err));
    MB_TRY(get_size(im, "attention.head_count_kv", im->n_head, &im->n_head_kv, err));
    MB_TRY(get_size(im, "context_length", 0, &im->n_ctx, err));
    MB_TRY(read_head_dim(im, err));
    MB_TRY(gguf_get_float(im->g, import_key(im, "attention.layer_norm_rms_epsilon"), 1e-5, &im->eps, err));
    MB_TRY(gguf_get_float(im->g, import_key(im, "rope.freq_base"), 10000.0, &im->rope_base, err));
    const struct gguf_tensor *embd = gguf_tensor_find(im->g, "token_embd.weight");
    if (!embd || embd->n_dim != 2)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the tensor token_embd.weight is missing or no matrix", im->path);
    im->n_vocab = embd->ne[1];
    im->tied = gguf_tensor_find(im->g, "output.weight") == NULL;
    return MB_OK;
}

/* --- names --- */

static const struct {
    const char *from, *to; /* `to` NULL: from the arch row */
} block_names[] = {
    { "attn_norm", "input_layernorm" },     { "attn_q", "self_attn.q_proj" },      { "attn_k", "self_attn.k_proj" },
    { "attn_v", "self_attn.v_proj" },       { "attn_output", "self_attn.o_proj" }, { "attn_q_norm", "self_attn.q_norm" },
    { "attn_k_norm", "self_attn.k_norm" },  { "ffn_gate", "mlp.gate_proj" },       { "ffn_up", "mlp.up_proj" },
    { "ffn_down", "mlp.down_proj" },        { "ffn_norm", NULL },                  { "post_attention_norm", NULL },
    { "post_ffw_norm", "post_feedforward_layernorm" },
};

static const char *block_name(const struct import_arch *arch, const char *part, size_t len)
{
    struct str p = { part, len };
    if (str_eq(p, STR_LIT("ffn_norm"))) return arch->ffn_norm;
    if (str_eq(p, STR_LIT("post_attention_norm"))) return arch->post_attn_norm;
    for (size_t i = 0; i < sizeof block_names / sizeof block_names[0]; i++)
        if (str_eq(p, str_of(block_names[i].from))) return block_names[i].to;
    return NULL;
}

/* "blk.<N>.<part>.<weight|bias>" */
static const char *layer_tensor_name(struct import *im, const char *name)
{
    int64_t layer = 0;
    const char *p = name + 4;
    if (*p < '0' || *p > '9') return NULL;
    for (; *p >= '0' && *p <= '9' && layer < im->n_layer; p++) layer = layer * 10 + (*p - '0');
    const char *dot = strrchr(p, '.');
    if (*p != '.' || layer >= im->n_layer || dot == p) return NULL;
    if (strcmp(dot, ".weight") != 0 && strcmp(dot, ".bias") != 0) return NULL;
    const char *to = block_name(im->arch, p + 1, (size_t)(dot - p - 1));
    return to ? arena_printf(&im->arena, "model.layers.%lld.%s%s", (long long)layer, to, dot) : NULL;
}

const char *import_tensor_name(struct import *im, const char *name, bool *known)
{
    const char *to = NULL;
    *known = strcmp(name, "rope_freqs.weight") == 0; /* becomes rope_scaling of config.json */
    if (strcmp(name, "token_embd.weight") == 0) to = "model.embed_tokens.weight";
    else if (strcmp(name, "output_norm.weight") == 0) to = "model.norm.weight";
    else if (strcmp(name, "output.weight") == 0) to = "lm_head.weight";
    else if (strncmp(name, "blk.", 4) == 0) to = layer_tensor_name(im, name);
    if (to) *known = true;
    return to;
}
