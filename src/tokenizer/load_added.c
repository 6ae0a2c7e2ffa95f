/* load_added.c: the added tokens of tokenizer.json (added_tokens) and tokenizer_config.json (added_tokens_decoder). */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

static struct added_token *added_find(struct tokenizer *t, struct str text)
{
    int32_t id = vocab_find(&t->added_vocab, text.ptr, text.len);
    for (size_t i = t->added.n; id >= 0 && i-- > 0;)
        if (t->added.items[i].id == id && str_eq(t->added.items[i].text, text)) return &t->added.items[i];
    return NULL;
}

static mb_status added_flags(const json_t *j, const char *section, unsigned *flags, mb_error *err)
{
    static const struct { const char *key; unsigned flag; } rows[] = {
        { "single_word", ADDED_SINGLE_WORD }, { "lstrip", ADDED_LSTRIP }, { "rstrip", ADDED_RSTRIP },
        { "normalized", ADDED_NORMALIZED }, { "special", ADDED_SPECIAL },
    };
    *flags = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool on;
        MB_TRY(step_bool(j, section, rows[i].key, false, &on, err));
        if (on) *flags |= rows[i].flag;
    }
    return MB_OK;
}

/* A token whose text the model knows has the model's id. Known already: its flags are replaced. */
static mb_status added_put(struct tokenizer *t, struct str text, int32_t id, unsigned flags, mb_error *err)
{
    if (!text.len) return MB_OK;
    if (text.len > TOKENIZER_MAX_ADDED_LEN)
        return mb_fail(err, MB_TOO_LARGE, "tokenizer.json: added_tokens: a text of %zu bytes, at most %d", text.len,
                       TOKENIZER_MAX_ADDED_LEN);
    struct added_token *known = added_find(t, text);
    if (known) {
        known->flags = flags;
        return MB_OK;
    }
    int32_t model_id = vocab_find(&t->vocab, text.ptr, text.len);
    if (model_id >= 0) id = model_id;
    MB_TRY(vocab_put(&t->added_vocab, text.ptr, text.len, id, err));
    struct added_set *s = &t->added;
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 64;
        struct added_token *items = mb_realloc(s->items, cap * sizeof *items);
        if (!items) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the added tokens");
        s->items = items;
        s->cap = cap;
    }
    s->items[s->n++] = (struct added_token){ .text = text, .pattern = text, .id = id, .flags = flags };
    return MB_OK;
}

static mb_status read_token_id(const json_t *v, int32_t *id, const char *section, mb_error *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= TOKENIZER_MAX_ID)
        return step_bad(err, section, "id must be an integer from 0 to %d", (int)TOKENIZER_MAX_ID - 1);
    *id = (int32_t)json_integer_value(v);
    return MB_OK;
}

mb_status load_added(struct tokenizer *t, const json_t *list, mb_error *err)
{
    static const char section[] = "added_tokens";
    const json_t *j;
    size_t i;
    if (!list || json_is_null(list)) return MB_OK;
    if (!json_is_array(list)) return step_bad(err, section, "expected a list");
    json_array_foreach(list, i, j) {
        struct str text;
        int32_t id = -1;
        unsigned flags;
        if (!json_is_object(j)) return step_bad(err, section, "[%zu] must be an object", i);
        MB_TRY(step_str(j, section, "content", &t->mem, &text, err));
        if (!text.ptr) return step_bad(err, section, "[%zu]: the key content is missing", i);
        MB_TRY(read_token_id(json_object_get(j, "id"), &id, section, err));
        MB_TRY(added_flags(j, section, &flags, err));
        MB_TRY(added_put(t, text, id, flags, err));
    }
    return MB_OK;
}

/* tokenizer_config.json: {"added_tokens_decoder": {"<id>": {"content": ..., flags}}} */
mb_status load_added_decoder(struct tokenizer *t, const json_t *config, mb_error *err)
{
    static const char section[] = "tokenizer_config.json: added_tokens_decoder";
    json_t *map = json_object_get(config, "added_tokens_decoder"), *j;
    const char *key;
    if (!json_is_object(map)) return MB_OK;
    json_object_foreach(map, key, j) {
        struct str text;
        unsigned flags;
        int64_t id = 0;
        for (const char *p = key; *p; p++) {
            if (*p < '0' || *p > '9' || id >= TOKENIZER_MAX_ID) return step_bad(err, section, "a key is not a token id");
            id = id * 10 + (*p - '0');
        }
        if (!*key || id >= TOKENIZER_MAX_ID || !json_is_object(j)) return step_bad(err, section, "a bad entry");
        MB_TRY(step_str(j, section, "content", &t->mem, &text, err));
        if (!text.ptr) return step_bad(err, section, "the key content is missing");
        MB_TRY(added_flags(j, section, &flags, err));
        MB_TRY(added_put(t, text, (int32_t)id, flags, err));
    }
    return MB_OK;
}

/* What a normalised token looks like in normalised text. */
mb_status load_added_patterns(struct tokenizer *t, mb_error *err)
{
    struct mbuf tmp[2] = { 0 };
    struct regex_scratch rx = { 0 };
    mb_status st = MB_OK;
    for (size_t i = 0; i < t->added.n && st == MB_OK; i++) {
        struct added_token *a = &t->added.items[i];
        struct mtext src = { .s = a->text.ptr, .n = a->text.len }, out;
        if (!(a->flags & ADDED_NORMALIZED) || !t->norm.n) continue;
        for (int k = 0; k < 2; k++) mbuf_reset(&tmp[k], 64 * TOKENIZER_MAX_ADDED_LEN, false);
        st = norm_run(&t->norm, &rx, &src, tmp, &out, err);
        if (st == MB_OK && out.n > TOKENIZER_MAX_ADDED_LEN)
            st = mb_fail(err, MB_TOO_LARGE, "tokenizer.json: added_tokens: a normalised text of %zu bytes, at most %d",
                         out.n, TOKENIZER_MAX_ADDED_LEN);
        if (st != MB_OK) break;
        char *copy = arena_strndup(&t->mem, out.s, out.n);
        if (!copy) st = mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the added tokens");
        a->pattern = (struct str){ copy, out.n };
    }
    for (int k = 0; k < 2; k++) mbuf_free(&tmp[k]);
    regex_scratch_free(&rx);
    return st;
}
