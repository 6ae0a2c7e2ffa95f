/* arch.c: the arch table. A family that differs by switches is a row and a reader; see docs/add-a-family.md. */
#include <stdio.h>
#include <string.h>

#include "model/arch_int.h"

static const char *const llama_types[] = { "llama", "mistral", "ministral", NULL };
static const char *const ministral3_types[] = { "ministral3", "mistral3", NULL };
static const char *const qwen2_types[] = { "qwen2", NULL };
static const char *const qwen3_types[] = { "qwen3", NULL };
static const char *const qwen3_moe_types[] = { "qwen3_moe", NULL };
static const char *const qwen3_next_types[] = { "qwen3_next", NULL };
static const char *const qwen3_5_types[] = { "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", NULL };
static const char *const mixtral_types[] = { "mixtral", NULL };
static const char *const gpt_oss_types[] = { "gpt_oss", NULL };
static const char *const olmo2_types[] = { "olmo2", NULL };
static const char *const olmo3_types[] = { "olmo3", NULL };
static const char *const granite_types[] = { "granite", NULL };
static const char *const minicpm_types[] = { "minicpm", "minicpm5", NULL };
static const char *const smollm3_types[] = { "smollm3", NULL };
static const char *const starcoder2_types[] = { "starcoder2", NULL };
static const char *const phi3_types[] = { "phi3", NULL };
static const char *const glm4_types[] = { "glm4", NULL };
static const char *const gemma_types[] = { "gemma", NULL };
static const char *const gemma2_types[] = { "gemma2", NULL };
static const char *const gemma3_types[] = { "gemma3_text", "gemma3", NULL };
static const char *const gemma4_types[] = { "gemma4_text", "gemma4", "gemma4_unified_text", "gemma4_unified", NULL };

static const char *const diffusion_gemma_types[] = { "diffusion_gemma", NULL };
static const char *const deepseek_v3_types[] = { "deepseek_v3", "kimi_k2", "joyai_llm_flash", NULL };
static const char *const deepseek_v32_types[] = { "deepseek_v32", NULL };
static const char *const glm4_moe_lite_types[] = { "glm4_moe_lite", NULL };
static const char *const glm_moe_dsa_types[] = { "glm_moe_dsa", NULL };

static const struct arch_row rows[] = {
    { "llama", llama_types, arch_read_llama, KV_F16, "Llama 1-3, SmolLM2, Mistral and Ministral with or without windows" },
    { "ministral3", ministral3_types, arch_read_ministral3, KV_F16,
      "Ministral 3: queries that grow with their position; Mistral Small 3 (text)" },
    { "qwen2", qwen2_types, arch_read_qwen2, KV_BF16, "Qwen 1.5, 2, 2.5: biases on q, k, v" },
    { "qwen3", qwen3_types, arch_read_qwen3, KV_F16, "Qwen3 dense: norms on q and k" },
    { "qwen3_moe", qwen3_moe_types, arch_read_qwen3_moe, KV_F16, "Qwen3 mixtures of experts (30B-A3B, 235B-A22B)" },
    { "qwen3_next", qwen3_next_types, arch_read_qwen3_next, KV_F16,
      "Qwen3-Next: gated delta nets, every fourth layer attention with output gates, shared expert" },
    { "qwen3_5", qwen3_5_types, arch_read_qwen3_5, KV_F16,
      "Qwen3.5 text, dense and with experts: gated delta nets, every fourth layer attention with output gates" },
    { "mixtral", mixtral_types, arch_read_mixtral, KV_F16, "Mixtral: mixtures of experts over the Mistral shape" },
    { "gpt_oss", gpt_oss_types, arch_read_gpt_oss, KV_F16, "gpt-oss: sinks, every other layer a window, mxfp4 experts with biases" },
    { "minicpm", minicpm_types, arch_read_minicpm, KV_F16, "MiniCPM: scaled embedding, residual and logits where the config has them" },
    { "granite", granite_types, arch_read_granite, KV_F16, "Granite 3 dense: multipliers of embedding, attention, residual, logits" },
    { "olmo2", olmo2_types, arch_read_olmo2, KV_F16, "OLMo 2: norms behind the blocks only, norms over all of q and k" },
    { "olmo3", olmo3_types, arch_read_olmo3, KV_F16, "OLMo 3: OLMo 2 with windows on three of four layers" },
    { "smollm3", smollm3_types, arch_read_smollm3, KV_F16, "SmolLM3: some layers without positions" },
    { "starcoder2", starcoder2_types, arch_read_starcoder2, KV_F16, "StarCoder2: layer norms, MLPs without a gate, biases, windows" },
    { "phi3", phi3_types, arch_read_phi3, KV_F16, "Phi-3, Phi-4-mini: fused q k v and gate up, longrope" },
    { "glm4", glm4_types, arch_read_glm4, KV_F16, "GLM-4 (0414): half-rotated interleaved heads, post-norms, fused gate up" },
    { "deepseek_v3", deepseek_v3_types, arch_read_deepseek_v3, KV_F16,
      "DeepSeek-V3, R1, Kimi K2: attention over latents, sigmoid router with groups, shared expert" },
    { "deepseek_v32", deepseek_v32_types, arch_read_deepseek_v32, KV_F16, "DeepSeek-V3.2: the same with an indexer that chooses keys" },
    { "glm4_moe_lite", glm4_moe_lite_types, arch_read_glm4_moe_lite, KV_F16, "GLM-4.7-Flash: attention over latents, sigmoid router" },
    { "glm_moe_dsa", glm_moe_dsa_types, arch_read_glm_moe_dsa, KV_F16,
      "GLM-5, GLM-5.2: attention over latents, an indexer, some layers with an earlier layer's choice" },
    { "gemma", gemma_types, arch_read_gemma, KV_F16, "Gemma 1" },
    { "gemma2", gemma2_types, arch_read_gemma2, KV_F16, "Gemma 2: soft caps, every other layer a window, post-norms" },
    { "gemma3", gemma3_types, arch_read_gemma3, KV_F16, "Gemma 3 text: windows, two rope bases, post-norms" },
    { "gemma4", gemma4_types, arch_read_gemma4, KV_F16, "Gemma 4 text: shared keys, per-layer inputs, a mixture beside the MLP" },
    { "diffusion_gemma", diffusion_gemma_types, arch_read_diffusion_gemma, KV_F16,
      "DiffusionGemma text: not autoregressive; a canvas of tokens by rounds, one request at a time ([diffusion.md](diffusion.md))" },
};

const struct arch_row *arch_rows(size_t *n)
{
    *n = sizeof rows / sizeof rows[0];
    return rows;
}

const struct arch_row *arch_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (const char *const *t = rows[i].model_types; *t; t++)
            if (strcmp(*t, model_type) == 0) return &rows[i];
    return NULL;
}

char *arch_known(char text[512])
{
    size_t len = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (const char *const *t = rows[i].model_types; *t && len < 480; t++)
            len += (size_t)snprintf(text + len, 512 - len, "%s%s", len ? ", " : "", *t);
    return text;
}
