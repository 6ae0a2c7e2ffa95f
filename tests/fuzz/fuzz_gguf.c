/* fuzz_gguf.c: a GGUF file from memory, then everything of the import that writes no file: plan, block decoding, config.json
 * and tokenizer.json. */
#include <stdlib.h>
#include <string.h>

#include "convert/gguf_import_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink; /* keeps the reads */

static void read_values(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_n_values(g); i++) {
        const struct gguf_value *v = gguf_value_at(g, i);
        struct str s;
        size_t off = 0;
        if (gguf_find(g, v->key) != v) abort();
        for (uint64_t k = 0; v->item != GGUF_STRING && k < v->n_items; k++)
            sink += (uint64_t)gguf_item_int(v, k) + (gguf_item_float(v, k) > 0);
        while (gguf_item_next(v, &off, &s)) sink += s.len ? (uint64_t)s.ptr[s.len - 1] : 0;
    }
}

static void read_tensors(const struct gguf *g)
{
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const struct import_scheme *s = import_scheme_get(t->type->type);
        struct import_group groups[8];
        uint8_t packed[IMPORT_GROUP];
        if (gguf_tensor_find(g, t->name) != t) abort();
        for (size_t k = 0; k < t->size_bytes; k++) sink += t->data[k];
        if (!s) continue;
        for (size_t k = 0; k + (size_t)t->type->block_bytes <= t->size_bytes; k += (size_t)t->type->block_bytes) {
            s->split(t->data + k, groups);
            for (int j = 0; j < t->type->block_elements / IMPORT_GROUP; j++) {
                for (int c = 0; c < IMPORT_GROUP; c++)
                    if (groups[j].code[c] >> s->bits) abort();
                import_pack(groups[j].code, s->bits, packed);
                sink += packed[0];
            }
        }
    }
}

static void import_texts(const struct gguf *g)
{
    struct import im = { .g = g, .path = "fuzz" };
    json_t *config = NULL, *generation = NULL, *tokenizer = NULL, *tokenizer_config = NULL;
    char *chat_template = NULL;
    mb_error err = { 0 };
    arena_init(&im.arena, 1 << 26);
    mb_status st = import_arch_read(&im, &err);
    if (st == MB_OK) st = import_plan(&im, &err);
    if (st == MB_OK) st = import_config_make(&im, &config, &generation, &err);
    if (st == MB_OK) st = import_tokenizer_make(&im, &tokenizer, &tokenizer_config, &chat_template, &err);
    if (st != MB_OK && !err.text[0]) abort();
    json_decref(config);
    json_decref(generation);
    json_decref(tokenizer);
    json_decref(tokenizer_config);
    mb_free(chat_template);
    arena_free(&im.arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    mb_error err = { 0 };
    if (size > 1 << 20) return 0;
    if (gguf_parse(&g, data, size, "fuzz", &err) != MB_OK) {
        if (g || !err.text[0]) abort();
        return 0;
    }
    read_values(g);
    read_tensors(g);
    import_texts(g);
    gguf_close(g);
    return 0;
}
