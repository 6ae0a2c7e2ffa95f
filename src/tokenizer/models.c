/* models.c: the four kinds of model: which one a file holds, what it needs loaded, and a piece of text to its ids.
 *
 * BPE has its own memory for words (bpe.c); the words of the others are remembered here, for one encode, by their bytes.
 */
#include <string.h>

#include "tokenizer/words.h"

static const char *const names[N_MODELS] = { "BPE", "Unigram", "WordPiece", "WordLevel" };

/* --- scratch --- */

void model_scratch_init(struct model_scratch *s, size_t n_text)
{
    memset(s, 0, sizeof *s);
    buf_init(&s->map, TOKENIZER_MAX_TEXT);
    word_cache_init(&s->cache, n_text);
}

void model_scratch_free(struct model_scratch *s)
{
    mb_free(s->symbols);
    mb_free(s->heap);
    mb_free(s->nodes);
    word_cache_free(&s->cache);
    buf_free(&s->map);
    memset(s, 0, sizeof *s);
}

bool scratch_grow(void **at, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap) return true;
    size_t c = *cap ? *cap : 64;
    while (c < n) c *= 2;
    void *p = mb_realloc(*at, c * size);
    if (!p) return false;
    *at = p;
    *cap = c;
    return true;
}

/* --- loading --- */

/* Old files do not name the type: what tells them apart is which keys there are. */
static enum model_kind kind_by_keys(const json_t *model, const struct scan_parts *parts)
{
    if (parts->merges.ptr) return MODEL_BPE;
    if (parts->vocab.ptr && *parts->vocab.ptr == '[') return MODEL_UNIGRAM;
    if (json_object_get(model, "max_input_chars_per_word")) return MODEL_WORDPIECE;
    return json_object_get(model, "unk_token") ? MODEL_WORDLEVEL : MODEL_BPE;
}

mb_status model_kind_of(const json_t *root, const struct scan_parts *parts, enum model_kind *out, mb_error *err)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model)) return step_bad(err, "model", "expected an object");
    const json_t *type = json_object_get(model, "type");
    *out = kind_by_keys(model, parts);
    if (!type) return MB_OK;
    if (!json_is_string(type)) return step_bad(err, "model", "type must be a string");
    for (int i = 0; i < N_MODELS; i++)
        if (strcmp(json_string_value(type), names[i]) == 0) {
            *out = (enum model_kind)i;
            return MB_OK;
        }
    return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: model: the type %.40s is not supported, only BPE, Unigram, WordPiece and WordLevel are",
                   json_string_value(type));
}

mb_status model_load_vocab(struct tokenizer *t, const struct scan_parts *parts, mb_error *err)
{
    if (!parts->vocab.ptr) return step_bad(err, "model", "the key vocab is missing");
    if (t->model == MODEL_UNIGRAM) return unigram_load_pieces(&t->unigram, &t->vocab, parts->vocab, err);
    return scan_vocab(parts->vocab, &t->vocab, err);
}

mb_status model_load_options(struct tokenizer *t, const json_t *model, mb_error *err)
{
    struct str prefix, suffix;
    if (t->model == MODEL_UNIGRAM) return unigram_load(&t->unigram, &t->vocab, model, err);
    if (t->model != MODEL_BPE) return wordpiece_load(&t->wordpiece, &t->vocab, &t->mem, model, t->model == MODEL_WORDLEVEL, err);
    MB_TRY(step_str(model, "model", "continuing_subword_prefix", &t->mem, &prefix, err));
    MB_TRY(step_str(model, "model", "end_of_word_suffix", &t->mem, &suffix, err));
    bool raw = !prefix.len && !suffix.len && !json_is_true(json_object_get(model, "byte_fallback")) &&
               pretok_take_byte_map(&t->pretok);
    return bpe_load(&t->bpe, &t->vocab, &t->mem, model, raw, err);
}

mb_status model_load_tables(struct tokenizer *t, const struct scan_parts *parts, mb_error *err)
{
    if (t->model == MODEL_WORDLEVEL) return MB_OK;
    if (t->model != MODEL_BPE) return piece_trie_build(&t->pieces, &t->vocab, err);
    if (!parts->merges.ptr) return step_bad(err, "model", "the key merges is missing");
    MB_TRY(bpe_load_merges(&t->bpe, &t->vocab, parts->merges, err));
    return bpe_find_words(&t->bpe, &t->vocab, err);
}

bool model_is_whole(const struct tokenizer *t)
{
    switch (t->model) {
    case MODEL_BPE: return t->bpe.n_slots > 0;
    case MODEL_UNIGRAM: return t->pieces.n > 0 && t->unigram.n_scores == (size_t)t->vocab.n_ids;
    case MODEL_WORDPIECE: return t->pieces.n > 0;
    default: return t->model == MODEL_WORDLEVEL;
    }
}

size_t model_bytes_per_token(const struct tokenizer *t)
{
    bool loses; /* may a token stand for text of any length, or text vanish? */
    if (t->model == MODEL_BPE) {
        loses = (t->bpe.has_unk && t->bpe.fuse_unk && !t->bpe.byte_fallback) /* unknown text becomes one token */
                || (!t->bpe.has_unk && !t->bpe.raw);                         /* characters without a token vanish */
    } else if (t->model == MODEL_UNIGRAM) {
        loses = !t->unigram.byte_fallback;
        for (int i = 0; i < 256; i++) loses |= t->unigram.byte_id[i] < 0;
    } else {
        loses = true;
    }
    return loses ? 0 : t->vocab.max_len;
}

/* --- a piece --- */

static mb_status word_tokens(const struct tokenizer *t, struct model_scratch *s, const struct mtext *x, struct piece p,
                             struct token_out *out, mb_error *err)
{
    if (t->model == MODEL_UNIGRAM) return unigram_word(&t->unigram, &t->pieces, &t->vocab, s, x, p, out, err);
    return wordpiece_word(&t->wordpiece, &t->pieces, &t->vocab, x, p, out, err);
}

mb_status model_encode(const struct tokenizer *t, struct model_scratch *s, const struct mtext *x, struct piece p,
                       size_t max_tokens, struct token_out *out, mb_error *err)
{
    struct word_key key;
    size_t n = out->n;
    if (t->model == MODEL_BPE) return bpe_encode(&t->bpe, &t->vocab, s, x, p, max_tokens, out, err);
    if (p.len > WORD_BYTES || !p.len) return word_tokens(t, s, x, p, out, err);
    word_key_set(&key, x->s + p.off, p.len, x->n - p.off);
    if (word_cache_recall(&s->cache, &key, x, p.off, out)) return MB_OK;
    MB_TRY(word_tokens(t, s, x, p, out, err));
    word_cache_keep(&s->cache, &key, out, out->n - n);
    return MB_OK;
}
