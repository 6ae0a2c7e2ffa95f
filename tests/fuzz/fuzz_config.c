/* fuzz_config.c: config.json's quantization entry. What is accepted must be a scheme that exists (B-113). */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "format/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_spec(struct quant_spec s)
{
    if (s.mode == QUANT_NONE && (s.bits || s.group_size)) abort();
    if (s.mode == QUANT_AFFINE && (s.bits < 2 || s.bits > 8 || s.bits == 7 || s.group_size < 32)) abort();
    if (s.mode == QUANT_TRELLIS && (s.bits < 2 || s.bits > 4 || s.group_size < 32 || s.group_size > 128)) abort();
    if (s.mode > QUANT_TRELLIS) abort();
}

/* Ask for the global spec, and for every key of the entry under another prefix. */
static void ask(const struct quant_config *q, const json_t *config)
{
    const char *key;
    json_t *v;
    char path[300];
    json_t *entry = json_object_get(config, "quantization");
    check_spec(quant_config_get(q, "model.layers.0.self_attn.q_proj"));
    json_object_foreach(entry, key, v) {
        snprintf(path, sizeof path, "language_model.model.%.200s", key);
        check_spec(quant_config_get(q, key));
        check_spec(quant_config_get(q, path));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *config;
    struct quant_config *q;
    mb_error err = { 0 };
    if (json_read(&config, (const char *)data, size, 0, &err) != MB_OK) return 0;
    if (quant_config_read(&q, config, &err) == MB_OK) ask(q, config);
    else if (q || !err.text[0]) abort();
    quant_config_free(q);
    json_decref(config);
    return 0;
}
