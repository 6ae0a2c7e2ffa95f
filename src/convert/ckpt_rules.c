/* ckpt_rules.c: what differs from family to family when a Hugging Face checkpoint becomes an MLX one: tensors that are left
 * out, names, experts that are stacked, modules that want more bits. All of it as mlx-lm does, so that it loads there too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/ckpt_int.h"

/* --- names --- */

/* Tables that every program computes itself, the towers of models that see or hear, which the text model does not
 * read. */
static const char *const dropped_parts[] = { "rotary_emb.inv_freq" };
static const char *const dropped_starts[] = { "vision_tower.", "multi_modal_projector.", "audio_tower.", "embed_vision.",
                                              "embed_audio.", "vision_embedder.", "visual.", "encoder.vision_tower.",
                                              "encoder.embed_vision." }; /* with or without "model." */
#define NEW_TEXT_PREFIX "model.language_model."

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static bool starts_with(const char *s, const char *start)
{
    return strncmp(s, start, strlen(start)) == 0;
}

/* A number and what is behind it; NULL: no digits here. */
static const char *number_read(const char *p, int *out)
{
    char *end;
    if (*p < '0' || *p > '9') return NULL;
    long v = strtol(p, &end, 10);
    if (v > 1000000) return NULL;
    *out = (int)v;
    return end;
}

static bool is_head(const char *name)
{
    static const char *const starts[] = { "", "language_model.", "model.language_model.", "language_model.model." };
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (starts_with(name, starts[i]) && starts_with(name + strlen(starts[i]), "lm_head.")) return true;
    return false;
}

/* Keys and values of a layer that reads those of an earlier one. */
static bool is_unused_kv(const struct conv *c, const char *name)
{
    static const char *const parts[] = { "self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm." };
    int layer;
    if (!starts_with(name, c->spec.prefix) || !starts_with(name += strlen(c->spec.prefix), "layers.")) return false;
    if (!(name = number_read(name + strlen("layers."), &layer)) || *name++ != '.' || layer >= c->spec.n_layer) return false;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (c->spec.layers[layer].attn == ATTN_SHARED_KV && starts_with(name, parts[i])) return true;
    return false;
}

/* Weights that the text over which a canvas lies shares with the canvas: only its scalars are its own. */
static bool is_encoder_twin(const struct conv *c, const char *name)
{
    return c->spec.encoder && starts_with(name, c->spec.encoder) && !ends_with(name, ".layer_scalar");
}

bool conv_is_mtp(const struct conv *c, const char *name)
{
    static const char *const starts[] = { "", "model.", "language_model.", "model.language_model.", "language_model.model." };
    int layer;
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        if (starts_with(name, starts[i]) && starts_with(name + strlen(starts[i]), "mtp.")) return true;
    if (!starts_with(name, c->spec.prefix) || !starts_with(name += strlen(c->spec.prefix), "layers.")) return false;
    return number_read(name + strlen("layers."), &layer) && layer >= c->spec.n_layer;
}

const char *conv_rename(struct conv *c, const char *name)
{
    const char *bare = starts_with(name, "model.") ? name + strlen("model.") : name;
    for (size_t i = 0; i < sizeof dropped_parts / sizeof dropped_parts[0]; i++)
        if (strstr(name, dropped_parts[i])) return NULL;
    for (size_t i = 0; i < sizeof dropped_starts / sizeof dropped_starts[0]; i++)
        if (starts_with(bare, dropped_starts[i])) return NULL;
    if (is_unused_kv(c, name) || is_encoder_twin(c, name)) return NULL;
    if (is_head(name) && c->spec.tied_head) return NULL;
    bool newer = strcmp(c->spec.prefix, NEW_TEXT_PREFIX) == 0;
    if (newer && starts_with(name, NEW_TEXT_PREFIX))
        return arena_printf(&c->arena, "language_model.model.%s", name + strlen(NEW_TEXT_PREFIX));
    if (newer && starts_with(name, "lm_head.")) return arena_printf(&c->arena, "language_model.%s", name);
    return arena_strdup(&c->arena, name);
}

/* Decays of gated delta nets, an exponent of an exponent; what counts for the choice of experts alone. */
bool conv_keeps_type(const char *name)
{
    return ends_with(name, ".A_log") || ends_with(name, ".e_score_correction_bias");
}

bool conv_is_taps(const char *name)
{
    return ends_with(name, ".conv1d.weight");
}

bool conv_hybrid_published(const struct conv *c)
{
    for (size_t i = 0; c->spec.delta.n_conv > 0 && i < checkpoint_n_tensors(c->ckpt); i++) {
        const struct tensor_view *t = checkpoint_at(c->ckpt, i);
        if (conv_is_taps(t->name) && t->n_dim == 3 && t->shape[2] != 1) return true;
    }
    return false;
}

bool conv_is_less_one(const struct conv *c, const char *name)
{
    static const char *const ends[] = { ".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight",
                                        ".q_norm.weight", ".k_norm.weight" };
    for (size_t i = 0; c->hybrid_published && i < sizeof ends / sizeof ends[0]; i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

/* --- experts --- */

static const char *part_name(const struct moe_names *m, int i)
{
    return i == 0 ? m->gate : i == 1 ? m->up : m->down;
}

bool conv_expert_parse(const struct conv *c, const char *name, struct conv_expert *out)
{
    const struct moe_names *m = c->spec.moe;
    const char *p = name, *hole = m && m->listed ? strstr(m->listed, "%d") : NULL;
    if (!hole || !starts_with(p, c->spec.prefix)) return false;
    p += strlen(c->spec.prefix);
    if (!starts_with(p, "layers.") || !(p = number_read(p + strlen("layers."), &out->layer)) || *p++ != '.') return false;
    if (out->layer >= c->spec.n_layer || strncmp(p, m->listed, (size_t)(hole - m->listed)) != 0) return false;
    if (!(p = number_read(p + (hole - m->listed), &out->i_expert)) || *p++ != '.') return false;
    for (out->i_part = 0; out->i_part < 3; out->i_part++) {
        const char *part = part_name(m, out->i_part);
        if (starts_with(p, part) && strcmp(p + strlen(part), ".weight") == 0) return true;
    }
    return false;
}

const char *conv_expert_source(const struct conv *c, const struct conv_expert *e, int i_expert, char *out, size_t cap)
{
    const struct moe_names *m = c->spec.moe;
    const char *hole = strstr(m->listed, "%d");
    snprintf(out, cap, "%slayers.%d.%.*s%d%s.%s.weight", c->spec.prefix, e->layer, (int)(hole - m->listed), m->listed, i_expert,
             hole + 2, part_name(m, e->i_part));
    return out;
}

/* What is behind ".gate_up_proj" or ".down_proj" of the published experts of a layer; NULL: another tensor. */
static const char *published_tail(const struct conv *c, const char *name, struct conv_expert *out)
{
    const struct moe_names *m = c->spec.moe;
    const char *p = name;
    if (!m || !m->published || !starts_with(p, c->spec.prefix)) return NULL;
    p += strlen(c->spec.prefix);
    if (!starts_with(p, "layers.") || !(p = number_read(p + strlen("layers."), &out->layer)) || *p++ != '.') return NULL;
    if (out->layer >= c->spec.n_layer || !starts_with(p, m->published)) return NULL;
    p += strlen(m->published);
    out->i_expert = 0;
    out->i_part = starts_with(p, ".gate_up_proj") ? 0 : 2;
    return out->i_part == 0 ? p + strlen(".gate_up_proj") : starts_with(p, ".down_proj") ? p + strlen(".down_proj") : NULL;
}

bool conv_published_parse(const struct conv *c, const char *name, struct conv_expert *out)
{
    const char *tail = c->spec.moe_blocks ? NULL : published_tail(c, name, out);
    return tail && *tail == '\0';
}

bool conv_blocks_parse(const struct conv *c, const char *name, struct conv_expert *out, const char **tail)
{
    static const char *const tails[] = { "_blocks", "_scales", "_bias", "" };
    *tail = c->spec.moe_blocks ? published_tail(c, name, out) : NULL;
    for (size_t i = 0; *tail && i < sizeof tails / sizeof tails[0]; i++)
        if (strcmp(*tail, tails[i]) == 0) return true;
    return false; /* MLX's names go on with a point */
}

bool conv_keeps_experts(const struct conv *c)
{
    const struct tensor_view *embed = checkpoint_findf(c->ckpt, "%sembed_tokens.weight", c->spec.prefix);
    return c->spec.moe_blocks && embed && dtype_get(embed->dtype)->is_float;
}

const char *conv_expert_target(struct conv *c, const struct conv_expert *e)
{
    static const char *const parts[] = { "gate_proj", "up_proj", "down_proj" };
    const char *name = arena_printf(&c->arena, "%slayers.%d.%s.%s.weight", c->spec.prefix, e->layer, c->spec.moe->stacked,
                                    parts[e->i_part]);
    return name ? conv_rename(c, name) : NULL;
}

bool conv_kv_parse(const struct conv *c, const char *name, int *layer)
{
    if (!starts_with(name, c->spec.prefix) || !starts_with(name += strlen(c->spec.prefix), "layers.")) return false;
    if (!(name = number_read(name + strlen("layers."), layer)) || *layer >= c->spec.n_layer) return false;
    return c->spec.layers[*layer].attn == ATTN_MLA && strcmp(name, ".self_attn.kv_b_proj.weight") == 0;
}

/* --- bits --- */

/* Modules that a family keeps at 8 bits in groups of 64. */
static const struct keep_row {
    const char *model_type, *module_end;
} keep_rows[] = {
    { "qwen3_next", "mlp.gate" },    { "qwen3_next", "shared_expert_gate" },
    { "qwen3_5_moe", "mlp.gate" },   { "qwen3_5_moe", "shared_expert_gate" },
    { "qwen3_moe", "mlp.gate" },     { "gpt_oss", "router" },         { "granite", "self_attn.o_proj" },
    { "granite", "mlp.down_proj" },  { "granite", "lm_head" },        { "gemma4", "router.proj" },
    { "gemma4_text", "router.proj" },
    { "diffusion_gemma", "router.proj" },   { "diffusion_gemma", "embed_tokens" },    { "diffusion_gemma", "self_attn.q_proj" },
    { "diffusion_gemma", "self_attn.k_proj" }, { "diffusion_gemma", "self_attn.v_proj" }, { "diffusion_gemma", "self_attn.o_proj" },
    { "diffusion_gemma", "mlp.gate_proj" }, { "diffusion_gemma", "mlp.up_proj" },     { "diffusion_gemma", "mlp.down_proj" },
};

static const struct recipe_row {
    const char *name;
    int low_bits, high_bits;
} recipe_rows[] = { { "mixed_2_6", 2, 6 }, { "mixed_3_4", 3, 4 }, { "mixed_3_6", 3, 6 }, { "mixed_4_6", 4, 6 } };

bool conv_recipe_known(const char *recipe, int *low_bits, int *high_bits)
{
    for (size_t i = 0; i < sizeof recipe_rows / sizeof recipe_rows[0]; i++) {
        if (strcmp(recipe_rows[i].name, recipe) != 0) continue;
        *low_bits = recipe_rows[i].low_bits;
        *high_bits = recipe_rows[i].high_bits;
        return true;
    }
    return false;
}

/* The layer of a module, 0 for one outside of the layers. */
static int layer_of(const char *module)
{
    int layer = 0;
    const char *at = strstr(module, "layers.");
    return at && number_read(at + strlen("layers."), &layer) ? layer : 0;
}

/* v (of latents: what both keys and values come of) and down in the first and last eighth of the layers and in every third of the rest, and the head. */
static int recipe_bits(const struct conv *c, const char *module, int low_bits, int high_bits)
{
    int n = c->spec.n_layer, i = layer_of(module);
    bool more = i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    bool wants = strstr(module, "v_proj") || strstr(module, "v_a_proj") || strstr(module, "v_b_proj") || strstr(module, "down_proj");
    return (wants && more) || strstr(module, "lm_head") ? high_bits : low_bits;
}

struct quant_spec conv_module_spec(const struct conv *c, const char *module)
{
    struct quant_spec s = c->global;
    int low_bits, high_bits;
    if (c->spec.route == ROUTE_SIGMOID && c->spec.moe && ends_with(module, c->spec.moe->router))
        return (struct quant_spec){ QUANT_NONE, 0, 0 }; /* stays in floats */
    if (c->opts->recipe && conv_recipe_known(c->opts->recipe, &low_bits, &high_bits)) {
        s.bits = recipe_bits(c, module, low_bits, high_bits);
        return s;
    }
    for (size_t i = 0; i < sizeof keep_rows / sizeof keep_rows[0]; i++)
        if (strcmp(keep_rows[i].model_type, c->spec.model_type) == 0 && ends_with(module, keep_rows[i].module_end))
            return (struct quant_spec){ QUANT_AFFINE, 8, 64 };
    return s;
}
