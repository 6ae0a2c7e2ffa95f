/* adapter_int.h: what the files that read an adapter folder share. */
#ifndef MODEL_ADAPTER_INT_H
#define MODEL_ADAPTER_INT_H

#include <jansson.h>

#include "model/adapter.h"

enum adapter_form { ADAPTER_MLX = 0, ADAPTER_PEFT };

/* The configuration of a folder, refusals done. */
struct adapter_config {
    enum adapter_form form;
    const char *file;        /* of the tensors */
    json_t *config, *optiq;  /* owned; may be NULL */
    /* borrowed from them */
    const json_t *keys;      /* MLX: paths inside a layer, or whole ones; NULL = all */
    const json_t *targets;   /* PEFT: list of suffixes, or a string; NULL = not said */
    const json_t *ranks;     /* MLX: module -> rank */
    const json_t *rank_pattern, *alpha_pattern; /* PEFT */
    int32_t rank;            /* 0 = not said */
    int32_t n_layers;        /* MLX: last so many layers; 0 = all */
    double scale;            /* MLX */
    bool has_scale, has_alpha, rslora;
    double alpha;            /* of PEFT's rule: alpha / r, rsLoRA: alpha / sqrt(r) */
    char base[256];
};

mb_status adapter_config_read(struct adapter_config *c, const char *dir, mb_error *err);
void adapter_config_free(struct adapter_config *c);
/* May a module (whole name, e.g. "model.layers.3.self_attn.q_proj") of layer i_layer (-1: outside) be adapted? */
mb_status adapter_config_covers(const struct adapter_config *c, const char *module, int32_t i_layer, int32_t n_layer,
                                bool *covers, mb_error *err);
/* Rank that the configuration wants of it (0 = does not say). */
mb_status adapter_config_rank(const struct adapter_config *c, const char *module, int32_t *rank, mb_error *err);
/* Factor of a module whose tensors have this rank. */
mb_status adapter_config_scale(const struct adapter_config *c, const char *module, int32_t rank, double *scale,
                               mb_error *err);

/* adapter_pattern.c: PEFT's rule for the keys of rank_pattern and alpha_pattern: a key is an expression that matches the
 * end of the name behind a dot, or the whole of it; the first key in the file wins. NULL: none. */
mb_status adapter_pattern_find(const json_t *patterns, const char *module, const json_t **value, mb_error *err);
/* Does the whole name match the expression? */
mb_status adapter_pattern_matches(const char *pattern, const char *module, bool *matches, mb_error *err);

#endif
