/* gguf_import_tokenizer.c: tokenizer.json and tokenizer_config.json out of the tokenizer.ggml.* metadata.
 *
 * Two models: "gpt2" = byte-level BPE, whose pre-tokeniser GGUF names by a word (tokenizer.ggml.pre, the table below), and
 * "llama" = SentencePiece BPE with byte fallback, whose merges are derived from the scores (gguf_import_spm.c). Control
 * tokens become special added tokens, user-defined ones plain added tokens; every piece keeps its id. Padding pieces that
 * a converter put in to reach the embedding's height ("[PAD123]", unused) are left out.
 */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "convert/gguf_import_int.h"
#include "format/safetensors_write.h"

/* --- pre-tokenisers --- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES_TAIL "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define RE_LLAMA3 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_TAIL
#define RE_QWEN2 CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_TAIL
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_TEKKEN "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*|\\p{N}|" \
                  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES_TAIL
#define RE_GPT4O "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?" UPPER \
                 "+" LOWER "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES_TAIL

enum pre_kind { PRE_BYTE_LEVEL, PRE_DIGITS, PRE_REGEX, PRE_LLAMA_CPP_DEFAULT };

struct pre_row {
    const char *name;
    enum pre_kind kind;
    const char *regex;
    bool nfc, ignore_merges;
    bool bos_by_default; /* when tokenizer.ggml.add_bos_token is absent */
};

static const struct pre_row pre_rows[] = {
    { "gpt-2", PRE_BYTE_LEVEL, NULL, false, false, false },
    { "smollm", PRE_DIGITS, NULL, false, false, false },
    { "starcoder", PRE_DIGITS, NULL, false, false, false },
    { "refact", PRE_DIGITS, NULL, false, false, false },
    { "codeshell", PRE_DIGITS, NULL, false, false, false },
    { "llama-bpe", PRE_REGEX, RE_LLAMA3, false, true, true },
    { "llama3", PRE_REGEX, RE_LLAMA3, false, true, true },
    { "llama-v3", PRE_REGEX, RE_LLAMA3, false, true, true },
    { "dbrx", PRE_REGEX, RE_LLAMA3, false, false, false },
    { "smaug-bpe", PRE_REGEX, RE_LLAMA3, false, false, false },
    { "qwen2", PRE_REGEX, RE_QWEN2, true, false, false },
    { "deepseek-r1-qwen", PRE_REGEX, RE_QWEN2, true, false, false },
    { "stablelm2", PRE_REGEX, RE_QWEN2, false, false, false },
    { "tekken", PRE_REGEX, RE_TEKKEN, false, true, true },
    { "gpt-4o", PRE_REGEX, RE_GPT4O, false, false, false },
    { "llama4", PRE_REGEX, RE_GPT4O, false, false, false },
    { "default", PRE_LLAMA_CPP_DEFAULT, NULL, false, false, false },
};

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
                     use_regex);
}

static json_t *split_isolated(const char *regex)
{
    return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", regex, "behavior", "Isolated",
                     "invert", 0);
}

/* What a GGUF without a named pre-tokeniser gets: several passes, each cutting what the one before left whole. */
static json_t *default_steps(void)
{
    return json_pack("{s:s, s:[o, o, o, o, o]}", "type", "Sequence", "pretokenizers",
                     split_isolated("[\\p{P}\\$\\+<=>\\^~\\|]+"),
                     split_isolated("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"),
                     split_isolated("\\p{N}+"), split_isolated("[0-9][0-9][0-9]"), byte_level(false));
}

static json_t *pre_tokenizer(const struct pre_row *row)
{
    switch (row->kind) {
    case PRE_BYTE_LEVEL:
        return byte_level(true);
    case PRE_DIGITS:
        return json_pack("{s:s, s:[{s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Digits",
                         "individual_digits", 1, byte_level(true));
    case PRE_REGEX:
        return json_pack("{s:s, s:[o, o]}", "type", "Sequence", "pretokenizers", split_isolated(row->regex),
                         byte_level(false));
    case PRE_LLAMA_CPP_DEFAULT:
        return default_steps();
    }
    return NULL;
}

static mb_status pre_find(struct import *im, const struct pre_row **out, mb_error *err)
{
    struct str name;
    *out = NULL;
    MB_TRY(gguf_get_string(im->g, "tokenizer.ggml.pre", &name, err));
    if (!name.ptr) {
        name = STR_LIT("default");
        import_note(im, "the file does not name its pre-tokeniser (tokenizer.ggml.pre): the default one is used, and the "
                    "tokens of numbers and punctuation may differ from the original model's");
    }
    for (size_t i = 0; i < sizeof pre_rows / sizeof pre_rows[0]; i++)
        if (str_eq(name, str_of(pre_rows[i].name))) *out = &pre_rows[i];
    if (*out) return MB_OK;
    char text[64], safe[64];
    snprintf(text, sizeof text, "%.*s", (int)(name.len < 60 ? name.len : 60), name.ptr);
    return mb_fail(err, MB_UNSUPPORTED, "%s: the pre-tokeniser %s (tokenizer.ggml.pre) is not known; take an MLX conversion "
                   "of this model instead", im->path, tensor_safe_name(safe, sizeof safe, text));
}

/* --- vocabulary --- */

static mb_status no_memory(const struct import *im, mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "%s: no memory for the tokenizer", im->path);
}

static mb_status vocab_arrays(struct import *im, const struct gguf_value *tokens, struct import_vocab *v, mb_error *err)
{
    v->n = (int64_t)tokens->n_items;
    if (v->n < 1 || v->n > 4000000)
        return mb_fail(err, MB_BAD_FORMAT, "%s: a vocabulary of %lld tokens", im->path, (long long)v->n);
    v->pieces = arena_alloc_array(&im->arena, (size_t)v->n, sizeof *v->pieces);
    v->types = arena_alloc_array(&im->arena, (size_t)v->n, sizeof *v->types);
    return v->pieces && v->types ? MB_OK : no_memory(im, err);
}

static mb_status vocab_extras(struct import *im, struct import_vocab *v, mb_error *err)
{
    const struct gguf_value *types = gguf_find(im->g, "tokenizer.ggml.token_type");
    const struct gguf_value *scores = gguf_find(im->g, "tokenizer.ggml.scores");
    if ((types && (int64_t)types->n_items != v->n) || (scores && (int64_t)scores->n_items != v->n))
        return mb_fail(err, MB_BAD_FORMAT, "%s: tokens, scores and token_type differ in length", im->path);
    if (scores) v->scores = arena_alloc_array(&im->arena, (size_t)v->n, sizeof *v->scores);
    if (scores && !v->scores) return no_memory(im, err);
    for (int64_t i = 0; i < v->n; i++) {
        int64_t type = types ? gguf_item_int(types, (uint64_t)i) : GGUF_TOKEN_NORMAL;
        v->types[i] = type >= GGUF_TOKEN_NORMAL && type <= GGUF_TOKEN_BYTE ? (uint8_t)type : GGUF_TOKEN_NORMAL;
        if (scores) v->scores[i] = (float)gguf_item_float(scores, (uint64_t)i);
    }
    return MB_OK;
}

mb_status import_vocab_read(struct import *im, struct import_vocab *v, mb_error *err)
{
    const struct gguf_value *tokens = gguf_find(im->g, "tokenizer.ggml.tokens");
    size_t off = 0;
    *v = (struct import_vocab){ 0 };
    if (!tokens || tokens->type != GGUF_ARRAY || tokens->item != GGUF_STRING)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the file has no vocabulary (tokenizer.ggml.tokens)", im->path);
    MB_TRY(vocab_arrays(im, tokens, v, err));
    for (int64_t i = 0; gguf_item_next(tokens, &off, &v->pieces[i]); i++) {
        if (!utf8_valid(v->pieces[i].ptr, v->pieces[i].len) || memchr(v->pieces[i].ptr, 0, v->pieces[i].len))
            return mb_fail(err, MB_BAD_FORMAT, "%s: token %lld is not UTF-8 text", im->path, (long long)i);
        if (i + 1 == v->n) break;
    }
    if (v->n > im->n_vocab)
        return mb_fail(err, MB_BAD_FORMAT, "%s: %lld tokens but %lld rows in token_embd.weight", im->path, (long long)v->n,
                       (long long)im->n_vocab);
    return vocab_extras(im, v, err);
}

int64_t import_token_id(const struct import *im, const char *which)
{
    char key[64];
    int64_t id;
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", which);
    if (gguf_get_int(im->g, key, -1, &id, NULL) != MB_OK || id >= im->n_vocab) return -1;
    return id < 0 ? -1 : id;
}

static bool is_end_mark(struct str s)
{
    static const char *const marks[] = { "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
                                         "<end_of_turn>", "<|end|>", "<eos>", "</s>" };
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (str_eq(s, str_of(marks[i]))) return true;
    return false;
}

static void id_add(int64_t *ids, size_t *n, size_t cap, int64_t id)
{
    for (size_t i = 0; i < *n; i++)
        if (ids[i] == id) return;
    if (id >= 0 && *n < cap) ids[(*n)++] = id;
}

size_t import_eos_ids(struct import *im, int64_t *ids, size_t cap)
{
    struct import_vocab v;
    size_t n = 0;
    id_add(ids, &n, cap, import_token_id(im, "eos"));
    id_add(ids, &n, cap, import_token_id(im, "eot"));
    id_add(ids, &n, cap, import_token_id(im, "eom"));
    if (import_vocab_read(im, &v, NULL) != MB_OK) return n;
    for (int64_t i = 0; i < v.n; i++)
        if (v.types[i] == GGUF_TOKEN_CONTROL && is_end_mark(v.pieces[i])) id_add(ids, &n, cap, i);
    return n;
}

/* "[PAD<id>]" or an empty text that only fills the table up. */
static bool is_filler(const struct import_vocab *v, int64_t i)
{
    char pad[32];
    int len = snprintf(pad, sizeof pad, "[PAD%lld]", (long long)i);
    if (v->types[i] != GGUF_TOKEN_UNUSED) return false;
    return v->pieces[i].len == 0 || str_eq(v->pieces[i], (struct str){ pad, (size_t)len });
}

static bool is_added(const struct import_vocab *v, int64_t i)
{
    return v->types[i] == GGUF_TOKEN_UNKNOWN || v->types[i] == GGUF_TOKEN_CONTROL || v->types[i] == GGUF_TOKEN_USER;
}

/* One entry for the "added_tokens" list (with_id) or for added_tokens_decoder (without). */
static json_t *added_token(const struct import_vocab *v, int64_t i, bool with_id)
{
    json_t *t = json_pack("{s:s%, s:b, s:b, s:b, s:b, s:b}", "content", v->pieces[i].ptr, v->pieces[i].len, "single_word",
                          0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", v->types[i] != GGUF_TOKEN_USER);
    if (t && with_id && json_object_set_new(t, "id", json_integer(i)) != 0) {
        json_decref(t);
        return NULL;
    }
    return t;
}

static mb_status vocab_json(struct import *im, const struct import_vocab *v, json_t **vocab, json_t **added, mb_error *err)
{
    size_t n_double = 0;
    *vocab = json_object();
    *added = json_array();
    bool ok = *vocab && *added;
    for (int64_t i = 0; ok && i < v->n; i++) {
        if (is_filler(v, i)) continue;
        if (json_object_getn(*vocab, v->pieces[i].ptr, v->pieces[i].len)) {
            n_double++; /* the first id keeps the text */
            continue;
        }
        ok = json_object_setn_new(*vocab, v->pieces[i].ptr, v->pieces[i].len, json_integer(i)) == 0;
        if (ok && is_added(v, i)) ok = json_array_append_new(*added, added_token(v, i, true)) == 0;
    }
    if (n_double > 0) import_note(im, "%zu tokens have the text of an earlier one and are left out", n_double);
    return ok ? MB_OK : no_memory(im, err);
}

/* --- models --- */

static mb_status merges_from_file(struct import *im, json_t **out, mb_error *err)
{
    const struct gguf_value *m = gguf_find(im->g, "tokenizer.ggml.merges");
    struct str s;
    size_t off = 0;
    if (!m || m->type != GGUF_ARRAY || m->item != GGUF_STRING)
        return mb_fail(err, MB_BAD_FORMAT, "%s: the vocabulary has no merges (tokenizer.ggml.merges)", im->path);
    *out = json_array();
    bool ok = *out != NULL;
    while (ok && gguf_item_next(m, &off, &s)) {
        const char *space = s.len > 1 ? memchr(s.ptr + 1, ' ', s.len - 1) : NULL;
        if (!space || !utf8_valid(s.ptr, s.len) || memchr(s.ptr, 0, s.len))
            return mb_fail(err, MB_BAD_FORMAT, "%s: merge %zu is no pair of tokens", im->path, json_array_size(*out));
        size_t left = (size_t)(space - s.ptr);
        ok = json_array_append_new(*out, json_pack("[s%, s%]", s.ptr, left, space + 1, s.len - left - 1)) == 0;
    }
    return ok ? MB_OK : no_memory(im, err);
}

/* The template that puts bos in front; null when the model wants none. */
static json_t *post_processor(const struct import *im, const struct import_vocab *v, bool add_bos)
{
    int64_t bos = import_token_id(im, "bos");
    if (!add_bos || bos < 0 || bos >= v->n) return json_null();
    const char *text = v->pieces[bos].ptr;
    size_t len = v->pieces[bos].len;
    json_t *special = json_object();
    if (!special || json_object_setn_new(special, text, len,
                                         json_pack("{s:s%, s:[I], s:[s%]}", "id", text, len, "ids", (json_int_t)bos,
                                                   "tokens", text, len)) != 0) {
        json_decref(special);
        return NULL; /* the caller's json_pack fails on it */
    }
    return json_pack("{s:s, s:[{s:{s:s%, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:s%, s:i}}, {s:{s:s, s:i}}, {s:{s:s%, s:i}}, "
                     "{s:{s:s, s:i}}], s:o}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", text, len, "type_id", 0, "Sequence",
                     "id", "A", "type_id", 0, "pair", "SpecialToken", "id", text, len, "type_id", 0, "Sequence", "id",
                     "A", "type_id", 0, "SpecialToken", "id", text, len, "type_id", 1, "Sequence", "id", "B", "type_id",
                     1, "special_tokens", special);
}

static json_t *bpe_model(json_t *vocab, json_t *merges, const char *unknown, bool byte_fallback, bool ignore_merges)
{
    return json_pack("{s:s, s:n, s:s?, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type", "BPE", "dropout", "unk_token", unknown,
                     "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", byte_fallback, "byte_fallback",
                     byte_fallback, "ignore_merges", ignore_merges, "vocab", vocab, "merges", merges);
}

struct parts {
    json_t *vocab, *added, *merges; /* owned */
    json_t *normalizer, *pre_tokenizer, *decoder, *model; /* handed on */
    bool add_bos;
};

static mb_status parts_byte_level(struct import *im, struct parts *p, mb_error *err)
{
    const struct pre_row *row;
    MB_TRY(pre_find(im, &row, err));
    MB_TRY(merges_from_file(im, &p->merges, err));
    MB_TRY(gguf_get_bool(im->g, "tokenizer.ggml.add_bos_token", row->bos_by_default, &p->add_bos, err));
    p->normalizer = row->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    p->pre_tokenizer = pre_tokenizer(row);
    p->decoder = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1,
                           "use_regex", 1);
    p->model = bpe_model(p->vocab, p->merges, NULL, false, row->ignore_merges);
    return MB_OK;
}

#define SPM_SPACE "\xe2\x96\x81" /* U+2581 */

static json_t *spm_replace(const char *from, const char *to)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content", to);
}

/* With a prefix space (Llama): prepend and strip one. Without (Gemma): spaces only, cut after each space first. */
static mb_status parts_spm(struct import *im, const struct import_vocab *v, struct parts *p, mb_error *err)
{
    bool prefix;
    char unknown[256];
    int64_t unk = import_token_id(im, "unknown");
    MB_TRY(gguf_get_bool(im->g, "tokenizer.ggml.add_space_prefix", true, &prefix, err));
    MB_TRY(gguf_get_bool(im->g, "tokenizer.ggml.add_bos_token", true, &p->add_bos, err));
    MB_TRY(import_spm_merges(im, v, &p->merges, err));
    for (int64_t i = 0; unk < 0 && i < v->n; i++)
        if (v->types[i] == GGUF_TOKEN_UNKNOWN) unk = i;
    if (unk >= v->n || (unk >= 0 && v->pieces[unk].len >= sizeof unknown)) unk = -1;
    if (unk >= 0) snprintf(unknown, sizeof unknown, "%.*s", (int)v->pieces[unk].len, v->pieces[unk].ptr);
    json_t *spaces = spm_replace(" ", SPM_SPACE), *back = spm_replace(SPM_SPACE, " ");
    json_t *bytes = json_pack("{s:s}", "type", "ByteFallback"), *fuse = json_pack("{s:s}", "type", "Fuse");
    if (prefix) {
        p->normalizer = json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers", "type", "Prepend",
                                  "prepend", SPM_SPACE, spaces);
        p->pre_tokenizer = json_null();
        p->decoder = json_pack("{s:s, s:[o, o, o, {s:s, s:s, s:i, s:i}]}", "type", "Sequence", "decoders", back, bytes,
                               fuse, "type", "Strip", "content", " ", "start", 1, "stop", 0);
    } else {
        p->normalizer = spaces;
        p->pre_tokenizer = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "String", " ", "behavior",
                                     "MergedWithPrevious", "invert", 0);
        p->decoder = json_pack("{s:s, s:[o, o, o]}", "type", "Sequence", "decoders", back, bytes, fuse);
    }
    p->model = bpe_model(p->vocab, p->merges, unk >= 0 ? unknown : NULL, true, false);
    return MB_OK;
}

static mb_status parts_make(struct import *im, const struct import_vocab *v, struct parts *p, mb_error *err)
{
    struct str model;
    MB_TRY(gguf_get_string(im->g, "tokenizer.ggml.model", &model, err));
    MB_TRY(vocab_json(im, v, &p->vocab, &p->added, err));
    if (str_eq(model, STR_LIT("gpt2"))) return parts_byte_level(im, p, err);
    if (str_eq(model, STR_LIT("llama"))) return parts_spm(im, v, p, err);
    return mb_fail(err, MB_UNSUPPORTED, "%s: the tokenizer is neither gpt2 (byte-level BPE) nor llama (SentencePiece BPE); "
                   "take an MLX conversion of this model instead", im->path);
}

static mb_status tokenizer_json(struct import *im, const struct import_vocab *v, json_t **out, bool *add_bos, mb_error *err)
{
    struct parts p = { 0 };
    mb_status st = parts_make(im, v, &p, err);
    if (st == MB_OK) {
        *add_bos = p.add_bos;
        *out = json_pack("{s:s, s:n, s:n, s:O, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
                         "added_tokens", p.added, "normalizer", p.normalizer, "pre_tokenizer", p.pre_tokenizer,
                         "post_processor", post_processor(im, v, p.add_bos), "decoder", p.decoder, "model", p.model);
        if (!*out) st = no_memory(im, err);
    }
    json_decref(p.vocab);
    json_decref(p.added);
    json_decref(p.merges);
    return st;
}

/* --- tokenizer_config.json --- */

static mb_status named_tokens(struct import *im, const struct import_vocab *v, json_t *config, mb_error *err)
{
    static const struct {
        const char *which, *key;
    } rows[] = { { "bos", "bos_token" }, { "eos", "eos_token" }, { "unknown", "unk_token" }, { "padding", "pad_token" } };
    bool ok = true;
    for (size_t i = 0; ok && i < sizeof rows / sizeof rows[0]; i++) {
        int64_t id = import_token_id(im, rows[i].which);
        if (id >= 0 && id < v->n)
            ok = json_object_set_new(config, rows[i].key, json_stringn(v->pieces[id].ptr, v->pieces[id].len)) == 0;
    }
    return ok ? MB_OK : no_memory(im, err);
}

static mb_status config_json(struct import *im, const struct import_vocab *v, bool add_bos, const char *chat_template,
                             json_t **out, mb_error *err)
{
    json_t *decoder = json_object();
    bool ok = decoder != NULL;
    char key[24];
    for (int64_t i = 0; ok && i < v->n; i++) {
        if (!is_added(v, i)) continue;
        snprintf(key, sizeof key, "%lld", (long long)i);
        ok = json_object_set_new(decoder, key, added_token(v, i, false)) == 0;
    }
    *out = json_pack("{s:o, s:b, s:b, s:b, s:I, s:s}", "added_tokens_decoder", decoder, "add_bos_token", add_bos,
                     "add_eos_token", 0, "clean_up_tokenization_spaces", 0, "model_max_length", (json_int_t)im->n_ctx,
                     "tokenizer_class", "PreTrainedTokenizerFast");
    if (!ok || !*out) return no_memory(im, err);
    MB_TRY(named_tokens(im, v, *out, err));
    if (chat_template && json_object_set_new(*out, "chat_template", json_string(chat_template)) != 0)
        return no_memory(im, err);
    return MB_OK;
}

static mb_status template_read(struct import *im, char **out, mb_error *err)
{
    struct str s;
    *out = NULL;
    MB_TRY(gguf_get_string(im->g, "tokenizer.chat_template", &s, err));
    if (!s.ptr) {
        import_note(im, "the file has no chat template: put chat_template.jinja into the folder, or use raw text (generate --raw)");
        return MB_OK;
    }
    if (!utf8_valid(s.ptr, s.len) || memchr(s.ptr, 0, s.len))
        return mb_fail(err, MB_BAD_FORMAT, "%s: tokenizer.chat_template is not UTF-8 text", im->path);
    *out = mb_strndup(s.ptr, s.len);
    return *out ? MB_OK : no_memory(im, err);
}

mb_status import_tokenizer_make(struct import *im, json_t **tokenizer, json_t **tokenizer_config, char **chat_template,
                                mb_error *err)
{
    struct import_vocab v;
    bool add_bos = false;
    *tokenizer = *tokenizer_config = NULL;
    *chat_template = NULL;
    mb_status st = import_vocab_read(im, &v, err);
    if (st == MB_OK) st = template_read(im, chat_template, err);
    if (st == MB_OK) st = tokenizer_json(im, &v, tokenizer, &add_bos, err);
    if (st == MB_OK) st = config_json(im, &v, add_bos, *chat_template, tokenizer_config, err);
    if (st == MB_OK) return MB_OK;
    json_decref(*tokenizer);
    json_decref(*tokenizer_config);
    mb_free(*chat_template);
    *tokenizer = *tokenizer_config = NULL;
    *chat_template = NULL;
    return st;
}
