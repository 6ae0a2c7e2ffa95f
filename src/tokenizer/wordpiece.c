/* wordpiece.c: WordPiece (at each place of a word the longest piece; one place without a piece makes the whole word
 * unknown) and WordLevel (the word is a piece or it is unknown).
 *
 * Pieces that do not begin a word carry a prefix ("##"): their walk through the trie begins behind it. Work: the longest
 * piece per byte at most.
 */
#include <string.h>

#include "tokenizer/tokenizer_int.h"

#define SECTION "model"

mb_status wordpiece_load(struct wordpiece *w, const struct vocab *v, struct arena *mem, const json_t *model, bool whole,
                         mb_error *err)
{
    w->whole = whole;
    MB_TRY(step_str(model, SECTION, "unk_token", mem, &w->unk, err));
    MB_TRY(step_str(model, SECTION, "continuing_subword_prefix", mem, &w->prefix, err));
    MB_TRY(step_size(model, SECTION, "max_input_chars_per_word", 100, &w->max_chars, err));
    if (!w->unk.ptr) w->unk = whole ? STR_LIT("<unk>") : STR_LIT("[UNK]");
    if (!w->prefix.ptr) w->prefix = STR_LIT("##");
    w->unk_id = vocab_find(v, w->unk.ptr, w->unk.len);
    return MB_OK;
}

static bool is_longer_than(const char *s, size_t len, size_t n_chars)
{
    size_t n = 0;
    if (len <= n_chars) return false;
    for (size_t i = 0; i < len; i++) n += ((uint8_t)s[i] & 0xC0) != 0x80;
    return n > n_chars;
}

static mb_status put(struct token_out *out, int32_t id, const struct mtext *x, struct piece p, size_t end, mb_error *err)
{
    if (token_out_push(out, id, (uint32_t)end, mtext_end(x, p.off + end - 1))) return MB_OK;
    return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the tokens of a text");
}

static mb_status put_unknown(const struct wordpiece *w, const struct mtext *x, struct piece p, struct token_out *out, mb_error *err)
{
    if (w->unk_id >= 0) return put(out, w->unk_id, x, p, p.len, err);
    return mb_fail(err, MB_INVALID, "tokenizer: a word of %u bytes is not in the vocabulary, nor is the model's unk_token \"%.40s\"",
                   p.len, w->unk.ptr);
}

/* End of the longest piece at s[at]; its id in *id, -1: none. */
static size_t longest(const struct piece_trie *t, uint32_t node, const char *s, size_t len, size_t at, int32_t *id)
{
    size_t end = at;
    *id = -1;
    for (size_t i = at; i < len;) {
        node = piece_trie_child(t, node, (uint8_t)s[i++]);
        if (!node) break;
        if (t->id[node] < 0) continue;
        *id = t->id[node];
        end = i;
    }
    return end;
}

/* Node behind the prefix; false: no piece has it. */
static bool behind_prefix(const struct piece_trie *t, struct str prefix, uint32_t *node)
{
    *node = 0;
    for (size_t i = 0; i < prefix.len; i++)
        if (!(*node = piece_trie_child(t, *node, (uint8_t)prefix.ptr[i]))) return false;
    return true;
}

mb_status wordpiece_word(const struct wordpiece *w, const struct piece_trie *t, const struct vocab *v, const struct mtext *x,
                         struct piece p, struct token_out *out, mb_error *err)
{
    const char *s = x->s + p.off;
    size_t n_out = out->n;
    uint32_t node = 0;
    int32_t id = w->whole ? vocab_find(v, s, p.len) : -1;
    if (id >= 0) return put(out, id, x, p, p.len, err);
    if (w->whole || !t->n || is_longer_than(s, p.len, w->max_chars)) return put_unknown(w, x, p, out, err);
    for (size_t at = 0; at < p.len;) {
        at = longest(t, node, s, p.len, at, &id);
        if (id < 0) break;
        MB_TRY(put(out, id, x, p, at, err));
        id = -1;
        if (at == p.len) return MB_OK;
        if (!behind_prefix(t, w->prefix, &node)) break;
    }
    out->n = n_out;
    return put_unknown(w, x, p, out, err);
}
