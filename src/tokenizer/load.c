/* load.c: tokenizer.json and tokenizer_config.json to a struct tokenizer.
 *
 * The sections load themselves (norm_load, pretok_load, bpe_load, post_load, dec_load); this file reads the added
 * tokens, joins both vocabularies into per-id flags and answers the look-ups of tokenizer.h.
 */
#include <string.h>

#include "base/filemap.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define MEM_LIMIT ((size_t)256 << 20)

/* --- added tokens --- */

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

static mb_status load_added(struct tokenizer *t, const json_t *list, mb_error *err)
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
static mb_status load_added_decoder(struct tokenizer *t, const json_t *config, mb_error *err)
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
static mb_status added_patterns(struct tokenizer *t, mb_error *err)
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

/* --- ids --- */

static mb_status load_flags(struct tokenizer *t, mb_error *err)
{
    t->n_vocab = t->vocab.n_ids > t->added_vocab.n_ids ? t->vocab.n_ids : t->added_vocab.n_ids;
    t->id_flags = mb_calloc((size_t)t->n_vocab + 1, 1);
    if (!t->id_flags) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the vocabulary");
    for (int32_t i = 0; i < t->vocab.n_ids; i++)
        if (t->vocab.at[i].present) t->id_flags[i] |= ID_MODEL;
    for (uint32_t i = 0; i < t->bpe.n_slots; i++)
        if (t->bpe.slots[i].left >= 0) t->id_flags[t->bpe.slots[i].id] |= ID_MERGED;
    for (int i = 0; i < 256; i++)
        if (t->bpe.unit_id[i] >= 0) t->id_flags[t->bpe.unit_id[i]] |= ID_MERGED; /* single characters too */
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.items[i];
        t->id_flags[a->id] |= ID_ADDED | (a->flags & ADDED_SPECIAL ? ID_SPECIAL : 0);
    }
    return MB_OK;
}

/* "bos_token" is a string or {"content": string}. */
static mb_status load_named(struct tokenizer *t, const json_t *config, const char *key, int32_t *id, const char **text,
                            mb_error *err)
{
    static const char section[] = "tokenizer_config.json";
    const json_t *v = json_object_get(config, key);
    struct str s = { 0 };
    if (json_is_object(v)) MB_TRY(step_str(v, section, "content", &t->mem, &s, err));
    else MB_TRY(step_str(config, section, key, &t->mem, &s, err));
    if (!s.ptr) return MB_OK;
    if (memchr(s.ptr, '\0', s.len)) return step_bad(err, section, "%s holds a NUL", key);
    *text = s.ptr;
    *id = tokenizer_id(t, s.ptr, s.len);
    return MB_OK;
}

/* --- the whole --- */

static mb_status check_model(const json_t *root, mb_error *err)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model)) return step_bad(err, "model", "expected an object");
    const json_t *type = json_object_get(model, "type");
    if (!type) return MB_OK; /* old files: BPE when it has merges, which bpe_load asks for */
    if (!json_is_string(type)) return step_bad(err, "model", "type must be a string");
    if (strcmp(json_string_value(type), "BPE") == 0) return MB_OK;
    return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: model: the type %.40s is not supported, only BPE is",
                   json_string_value(type));
}

static mb_status load_model(struct tokenizer *t, const json_t *model, const struct scan_parts *parts, mb_error *err)
{
    struct str prefix, suffix;
    if (!parts->vocab.ptr) return step_bad(err, "model", "the key vocab is missing");
    MB_TRY(scan_vocab(parts->vocab, &t->vocab, err));
    MB_TRY(step_str(model, "model", "continuing_subword_prefix", &t->mem, &prefix, err));
    MB_TRY(step_str(model, "model", "end_of_word_suffix", &t->mem, &suffix, err));
    bool raw = !prefix.len && !suffix.len && !json_is_true(json_object_get(model, "byte_fallback")) &&
               pretok_take_byte_map(&t->pretok);
    return bpe_load(&t->bpe, &t->vocab, &t->mem, model, parts->merges, raw, err);
}

static mb_status load_root(struct tokenizer *t, const json_t *root, const struct scan_parts *parts, mb_error *err)
{
    MB_TRY(check_model(root, err));
    MB_TRY(norm_load(&t->norm, &t->mem, json_object_get(root, "normalizer"), err));
    MB_TRY(pretok_load(&t->pretok, &t->mem, json_object_get(root, "pre_tokenizer"), err));
    MB_TRY(load_model(t, json_object_get(root, "model"), parts, err));
    MB_TRY(post_load(&t->post, &t->mem, json_object_get(root, "post_processor"), err));
    MB_TRY(dec_load(&t->decoder, &t->mem, json_object_get(root, "decoder"), err));
    return load_added(t, json_object_get(root, "added_tokens"), err);
}

static mb_status load_config(struct tokenizer *t, const json_t *config, mb_error *err)
{
    if (config) MB_TRY(load_added_decoder(t, config, err));
    MB_TRY(added_patterns(t, err));
    MB_TRY(added_build(&t->added, err));
    MB_TRY(load_flags(t, err));
    if (!config) return MB_OK;
    MB_TRY(load_named(t, config, "bos_token", &t->bos_id, &t->bos_text, err));
    return load_named(t, config, "eos_token", &t->eos_id, &t->eos_text, err);
}

static mb_status parse(struct tokenizer *t, const char *json, size_t len, const char *config_json, size_t config_len,
                       mb_error *err)
{
    struct scan_parts parts;
    struct buf rest;
    json_t *root = NULL, *config = NULL;
    size_t good = utf8_valid_prefix(json, len, NULL);
    if (good != len) return mb_fail(err, MB_BAD_FORMAT, "tokenizer.json: not UTF-8 at byte %zu", good);
    buf_init(&rest, TOKENIZER_MAX_FILE);
    mb_status st = scan_split(json, len, &parts, &rest, err);
    if (st == MB_OK) st = json_read(&root, rest.data ? rest.data : "", rest.len, JSON_READ_DEFAULT, err);
    if (st != MB_OK && err) mb_error_prefix(err, "tokenizer.json");
    buf_free(&rest);
    if (st == MB_OK && config_json) {
        st = json_read(&config, config_json, config_len, JSON_READ_DEFAULT, err);
        if (st != MB_OK && err) mb_error_prefix(err, "tokenizer_config.json");
    }
    if (st == MB_OK) st = load_root(t, root, &parts, err);
    if (st == MB_OK) st = load_config(t, config, err);
    json_decref(root);
    json_decref(config);
    return st;
}

mb_status tokenizer_parse(struct tokenizer **out, const char *json, size_t len, const char *config_json,
                          size_t config_len, mb_error *err)
{
    *out = NULL;
    struct tokenizer *t = mb_calloc(1, sizeof *t);
    if (!t) return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory");
    arena_init(&t->mem, MEM_LIMIT);
    vocab_init(&t->vocab);
    vocab_init(&t->added_vocab);
    t->bos_id = t->eos_id = -1;
    t->bos_text = t->eos_text = "";
    mb_status st = parse(t, json, len, config_json, config_len, err);
    if (st != MB_OK) {
        tokenizer_close(t);
        return st;
    }
    *out = t;
    return MB_OK;
}

mb_status tokenizer_open(struct tokenizer **out, const char *dir, mb_error *err)
{
    char path[4096];
    struct filemap map;
    struct buf config;
    *out = NULL;
    MB_TRY(path_join(path, sizeof path, dir, "tokenizer.json", err));
    MB_TRY(filemap_open(&map, path, err));
    mb_status st = path_join(path, sizeof path, dir, "tokenizer_config.json", err);
    buf_init(&config, 0);
    bool has_config = st == MB_OK && file_exists(path);
    if (has_config) st = file_read(&config, path, 64 << 20, err);
    if (st == MB_OK && map.size_bytes > TOKENIZER_MAX_FILE)
        st = mb_fail(err, MB_TOO_LARGE, "%s/tokenizer.json has %zu bytes, at most %zu", dir, map.size_bytes,
                     TOKENIZER_MAX_FILE);
    if (st == MB_OK) {
        st = tokenizer_parse(out, (const char *)map.data, map.size_bytes,
                             has_config ? (config.data ? config.data : "") : NULL, config.len, err);
        if (st != MB_OK && err) mb_error_prefix(err, "%s", dir);
    }
    buf_free(&config);
    filemap_close(&map);
    return st;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    norm_free(&t->norm);
    pretok_free(&t->pretok);
    bpe_free(&t->bpe);
    dec_free(&t->decoder);
    added_free(&t->added);
    vocab_free(&t->vocab);
    vocab_free(&t->added_vocab);
    mb_free(t->id_flags);
    arena_free(&t->mem);
    mb_free(t);
}

/* --- look-ups --- */

int32_t tokenizer_n_vocab(const struct tokenizer *t) { return t->n_vocab; }

const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len)
{
    const char *s = vocab_text(&t->added_vocab, id, len);
    return s ? s : vocab_text(&t->vocab, id, len);
}

int32_t tokenizer_id(const struct tokenizer *t, const char *piece, size_t len)
{
    int32_t id = vocab_find(&t->added_vocab, piece, len);
    return id >= 0 ? id : vocab_find(&t->vocab, piece, len);
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab && (t->id_flags[id] & ID_SPECIAL);
}

bool tokenizer_is_added(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab && (t->id_flags[id] & ID_ADDED);
}

int32_t tokenizer_bos_id(const struct tokenizer *t) { return t->bos_id; }
int32_t tokenizer_eos_id(const struct tokenizer *t) { return t->eos_id; }
const char *tokenizer_bos_text(const struct tokenizer *t) { return t->bos_text; }
const char *tokenizer_eos_text(const struct tokenizer *t) { return t->eos_text; }
