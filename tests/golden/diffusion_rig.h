/* diffusion_rig.h: the goldens of DiffusionGemma (tests/golden/diffusion), read. Header-only. */
#ifndef TESTS_GOLDEN_DIFFUSION_RIG_H
#define TESTS_GOLDEN_DIFFUSION_RIG_H

#include "unit/engine_rig.h"

#include "base/filemap.h"
#include "base/json.h"

#define GOLDEN "tests/golden/diffusion"
enum { ROUNDS = 3, MAX_CANVAS = 64, MAX_PROMPT = 256 };

static const char *const checkpoints[] = { "diffusion_gemma", "diffusion_gemma-4bit" };

struct golden {
    json_t *root;
    char dir[256];
    int32_t prompt[MAX_PROMPT], n_prompt, canvas[MAX_CANVAS], n_canvas, n_vocab, d_model;
    float temperature;
    struct buf values; /* logits [ROUNDS][n_canvas][n_vocab], then expected embeddings [ROUNDS][n_canvas][d_model] */
    const float *logits, *expect;
};

static inline json_t *must_get(const json_t *o, const char *key)
{
    json_t *v = json_object_get(o, key);
    if (!v) fail_msg("the golden lacks %s", key);
    return v;
}

static inline int32_t ints(const json_t *v, int32_t *out, int32_t cap)
{
    int32_t n = (int32_t)json_array_size(v);
    assert_in_range(n, 1, cap);
    for (int32_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(v, (size_t)i));
    return n;
}

static inline void golden_open(struct golden *g, const char *name)
{
    char path[256];
    mb_error err = { 0 };
    snprintf(path, sizeof path, GOLDEN "/%s.json", name);
    if (json_read_file(&g->root, path, 1 << 24, &err) != MB_OK) fail_msg("%s", err.text);
    snprintf(g->dir, sizeof g->dir, "%s", json_string_value(must_get(g->root, "checkpoint")));
    g->n_prompt = ints(must_get(g->root, "prompt"), g->prompt, MAX_PROMPT);
    g->n_canvas = ints(must_get(g->root, "canvas"), g->canvas, MAX_CANVAS);
    g->n_vocab = (int32_t)json_integer_value(must_get(g->root, "n_vocab"));
    g->temperature = (float)json_number_value(must_get(g->root, "temperature"));
    g->d_model = (int32_t)json_integer_value(must_get(g->root, "d_model"));
    snprintf(path, sizeof path, GOLDEN "/%s", json_string_value(must_get(g->root, "values_file")));
    buf_init(&g->values, 0);
    if (file_read(&g->values, path, 1 << 24, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(g->values.len, (size_t)ROUNDS * (size_t)g->n_canvas * (size_t)(g->n_vocab + g->d_model) * 4);
    g->logits = (const float *)(const void *)g->values.data;
    g->expect = g->logits + (size_t)ROUNDS * (size_t)g->n_canvas * (size_t)g->n_vocab;
}

static inline void golden_close(struct golden *g)
{
    buf_free(&g->values);
    json_decref(g->root);
}

#endif
