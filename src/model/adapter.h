/* adapter.h: a LoRA adapter folder to an adapter_handle bound to one loaded model.
 *
 * Two forms are read:
 *   MLX   adapters.safetensors (<module>.lora_a [k][r], .lora_b [r][n]) beside adapter_config.json of mlx-lm
 *         (lora_parameters: rank, scale, keys; num_layers), and optiq_lora_config.json where a trainer wrote one (rank,
 *         scale, applied_ranks, use_rslora);
 *   PEFT  adapter_model.safetensors (base_model.model.<module>.lora_A.weight [r][k], .lora_B.weight [n][r]) beside
 *         adapter_config.json (r, lora_alpha, rank_pattern, alpha_pattern, use_rslora, target_modules).
 * Everything is checked before anything is kept: a tensor that no module takes, a pair with one half, a shape, a rank that
 * the configuration contradicts. An adapter may name fewer modules than the model has. DoRA, full weights, adapted
 * embeddings and whatever else is not a plain LoRA is refused by name.
 * Files: adapter.c (tensors), adapter_config.c (configurations), adapter_pattern.c (PEFT's patterns). Any thread; the model
 * is only read.
 */
#ifndef MODEL_ADAPTER_H
#define MODEL_ADAPTER_H

#include "base/buf.h"

struct model;
struct adapter_handle; /* ops/plan.h */

struct adapter_info {
    int32_t rank;          /* largest of its modules */
    double scale;          /* what B A is multiplied by; of the configuration, else of its first module */
    size_t size_bytes;     /* of its tensors in the file */
    size_t memory_bytes;   /* of the handle */
    int32_t n_modules;     /* linears it touches */
    char form[8];          /* "mlx" or "peft" */
    char base[256];        /* base model the folder names, "" = none */
};

#define ADAPTER_MAX_PROBLEMS 64 /* lines listed; more are counted */

/* Load `dir` for `m` under the name `id` (copied). problems: one line each of what does not fit, in words (NULL: not
 * wanted). MB_NOT_FOUND (no such folder, no adapter in it), MB_BAD_FORMAT (a file is broken, or the adapter does not fit:
 * the text holds the number of problems and the first), MB_UNSUPPORTED (DoRA ...), MB_NO_MEMORY. */
mb_status adapter_load(struct adapter_handle **out, struct adapter_info *info, const struct model *m, const char *id,
                       const char *dir, struct buf *problems, mb_error *err);
void adapter_free(struct adapter_handle *h); /* NULL is allowed */

/* Rank, scale, form and base of a folder from its configuration and headers alone. */
mb_status adapter_peek(struct adapter_info *info, const char *dir, mb_error *err);

#endif
