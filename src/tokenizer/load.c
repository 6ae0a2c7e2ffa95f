/* load.c: tokenizer.json and tokenizer_config.json to a struct tokenizer.
 *
 * The sections load themselves (norm_load, pretok_load, models.c, post_load, dec_load, load_added); this file joins both
 * vocabularies into per-id flags and answers the look-ups of tokenizer.h. Files are opened by open.c.
 */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define MEM_LIMIT ((size_t)256 << 20)

/* --- ids --- */

static mb_status load_flags(struct tokenizer *t, mb_error *err)
{
    t->n_vocab = t->vocab.n_ids > t->added_vocab.n_ids ? t->vocab.n_ids : t->added_vocab.n_ids;
    t->id_flags = mb_calloc((size_t)t->n_vocab + 1, 1);
    if (!t->id_flags) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the vocabulary");
    for (int32_t i = 0; i < t->vocab.n_ids; i++)
        if (t->vocab.at[i].len_1) t->id_flags[i] |= ID_MODEL;
    for (uint32_t i = 0; i < t->bpe.n_merges; i++) t->id_flags[t->bpe.merge_ids[i]] |= ID_MERGED;
    for (int i = 0; i < 256 && t->model == MODEL_BPE; i++)
        if (t->bpe.unit_id[i] >= 0) t->id_flags[t->bpe.unit_id[i]] |= ID_MERGED; /* single characters too */
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.items[i];
        t->id_flags[a->id] |= ID_ADDED | (a->flags & ADDED_SPECIAL ? ID_SPECIAL : 0);
    }
    return MB_OK;
}

/* How many bytes of a text one token can stand for; 0: any number of them (text is dropped or swallowed somewhere). */
static size_t bytes_per_token(const struct tokenizer *t)
{
    size_t most = model_bytes_per_token(t);
    if (!most) return 0;
    if (most < t->added_vocab.max_len) most = t->added_vocab.max_len;
    for (size_t i = 0; i < t->norm.n; i++) {
        const struct norm_step *s = &t->norm.steps[i];
        if (s->kind == NORM_NFC) most *= 3; /* composing shrinks a text, to a third at most */
        else if (s->kind != NORM_PREPEND && (s->kind != NORM_REPLACE || s->pattern.regex || s->pattern.literal.len > s->content.len))
            return 0;
    }
    for (size_t i = 0; i < t->pretok.n; i++)
        if (t->pretok.steps[i].behavior == SPLIT_REMOVED && !t->pretok.steps[i].scanner) return 0;
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.items[i].flags & (ADDED_LSTRIP | ADDED_RSTRIP)) return 0;
    return most;
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

mb_status load_sections(struct tokenizer *t, const json_t *root, mb_error *err)
{
    MB_TRY(norm_load(&t->norm, &t->mem, json_object_get(root, "normalizer"), err));
    MB_TRY(pretok_load(&t->pretok, &t->mem, json_object_get(root, "pre_tokenizer"), err));
    MB_TRY(model_load_options(t, json_object_get(root, "model"), err));
    MB_TRY(post_load(&t->post, &t->mem, json_object_get(root, "post_processor"), err));
    return dec_load(&t->decoder, &t->mem, json_object_get(root, "decoder"), err);
}

static mb_status load_root(struct tokenizer *t, json_t *root, const struct scan_parts *parts, mb_error *err)
{
    MB_TRY(model_kind_of(root, parts, &t->model, err));
    MB_TRY(model_load_vocab(t, parts, err));
    MB_TRY(load_sections(t, root, err));
    MB_TRY(model_load_tables(t, parts, err));
    return load_added(t, json_object_get(root, "added_tokens"), err);
}

static mb_status load_config(struct tokenizer *t, const json_t *config, mb_error *err)
{
    if (config) MB_TRY(load_added_decoder(t, config, err));
    MB_TRY(load_added_patterns(t, err));
    MB_TRY(added_build(&t->added, err));
    MB_TRY(load_flags(t, err));
    if (!config) return MB_OK;
    MB_TRY(load_named(t, config, "bos_token", &t->bos_id, &t->bos_text, err));
    return load_named(t, config, "eos_token", &t->eos_id, &t->eos_text, err);
}

/* What image.c stores beside the tables: the sections as text. */
static mb_status keep_sections(struct buf *b, json_t *root, mb_error *err)
{
    json_object_del(root, "added_tokens");
    json_write(b, root, NULL);
    return buf_status(b, "tokenizer.json", err);
}

static mb_status keep_config(struct tokenizer *t, json_t *config, mb_error *err)
{
    struct buf b;
    if (!config) return MB_OK;
    if (!json_is_object(config)) return mb_fail(err, MB_BAD_FORMAT, "tokenizer_config.json: expected an object");
    buf_init(&b, TOKENIZER_MAX_FILE);
    json_object_del(config, "added_tokens_decoder");
    json_write(&b, config, NULL);
    mb_status st = buf_status(&b, "tokenizer_config.json", err);
    if (st == MB_OK) {
        t->config = (struct str){ arena_strndup(&t->mem, b.data, b.len), b.len };
        if (!t->config.ptr) st = mb_fail(err, MB_NO_MEMORY, "tokenizer_config.json: no memory");
    }
    buf_free(&b);
    return st;
}

static mb_status parse(struct tokenizer *t, const char *json, size_t len, const char *config_json, size_t config_len,
                       struct buf *sections, mb_error *err)
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
    if (st == MB_OK) st = keep_config(t, config, err);
    if (st == MB_OK && sections) st = keep_sections(sections, root, err);
    json_decref(root);
    json_decref(config);
    return st;
}

void tokenizer_finish(struct tokenizer *t)
{
    t->max_bytes = bytes_per_token(t);
}

struct tokenizer *tokenizer_new(void)
{
    struct tokenizer *t = mb_calloc(1, sizeof *t);
    if (!t) return NULL;
    arena_init(&t->mem, MEM_LIMIT);
    vocab_init(&t->vocab);
    vocab_init(&t->added_vocab);
    t->bos_id = t->eos_id = -1;
    t->bos_text = t->eos_text = "";
    t->config = STR_LIT("");
    return t;
}

mb_status tokenizer_parse_keep(struct tokenizer **out, const char *json, size_t len, const char *config_json,
                               size_t config_len, struct buf *sections, mb_error *err)
{
    *out = NULL;
    struct tokenizer *t = tokenizer_new();
    if (!t) return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory");
    mb_status st = parse(t, json, len, config_json, config_len, sections, err);
    if (st != MB_OK) {
        tokenizer_close(t);
        return st;
    }
    tokenizer_finish(t);
    *out = t;
    return MB_OK;
}

mb_status tokenizer_parse(struct tokenizer **out, const char *json, size_t len, const char *config_json,
                          size_t config_len, mb_error *err)
{
    return tokenizer_parse_keep(out, json, len, config_json, config_len, NULL, err);
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    image_release(t);
    norm_free(&t->norm);
    pretok_free(&t->pretok);
    bpe_free(&t->bpe);
    piece_trie_free(&t->pieces);
    mb_free(t->unigram.scores);
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

const char *tokenizer_config_text(const struct tokenizer *t, size_t *len)
{
    *len = t->config.len;
    return t->config.ptr;
}
