/* unigram.c: SentencePiece's Unigram model: of all ways to cut a word into pieces, the one of the greatest score.
 *
 * One walk over the word: at each character the trie gives the pieces that begin there, each end remembers the best way to
 * it (Viterbi). A character that is no piece costs the least score less 10; neighbours of the kind become one unknown
 * token, or the tokens of their bytes. Scores are the oracle's doubles, added in its order, so that ties fall alike. Work:
 * the longest piece per byte at most.
 */
#include <math.h>
#include <string.h>

#include "tokenizer/words.h"

#define UNKNOWN_COSTS 10.0

/* --- loading --- */

struct piece_loader {
    struct unigram *u;
    struct vocab *v;
};

static mb_status take_piece(void *ctx, struct str text, double score, mb_error *err)
{
    struct piece_loader *l = ctx;
    struct unigram *u = l->u;
    MB_TRY(vocab_append(l->v, text.ptr, text.len, err));
    if (!scratch_grow((void **)&u->scores, &u->cap, u->n_scores + 1, sizeof *u->scores))
        return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the scores");
    u->scores[u->n_scores++] = score;
    return MB_OK;
}

mb_status unigram_load_pieces(struct unigram *u, struct vocab *v, struct str pieces, mb_error *err)
{
    struct piece_loader l = { u, v };
    return scan_pieces(pieces, take_piece, &l, err);
}

mb_status unigram_load(struct unigram *u, const struct vocab *v, const json_t *model, mb_error *err)
{
    const json_t *unk = json_object_get(model, "unk_id");
    u->unk_id = -1;
    if (unk && !json_is_null(unk)) {
        if (!json_is_integer(unk) || json_integer_value(unk) < 0 || json_integer_value(unk) >= v->n_ids)
            return step_bad(err, "model", "unk_id must be null or the number of a piece, below %d", (int)v->n_ids);
        u->unk_id = (int32_t)json_integer_value(unk);
    }
    MB_TRY(step_bool(model, "model", "byte_fallback", false, &u->byte_fallback, err));
    u->min_score = INFINITY;
    for (size_t i = 0; i < u->n_scores; i++) u->min_score = u->scores[i] < u->min_score ? u->scores[i] : u->min_score;
    for (int i = 0; i < 256; i++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)i);
        u->byte_id[i] = vocab_find(v, s, 6);
    }
    return MB_OK;
}

/* --- a word --- */

struct unigram_word {
    const struct unigram *u;
    const struct piece_trie *t;
    const struct vocab *v;
    struct path_node *nodes; /* [len + 1] */
    const char *text;
    size_t len;
};

static bool offer(struct path_node *to, double score, size_t from, int32_t id)
{
    if (to->from_1 && !(score > to->score)) return false;
    *to = (struct path_node){ .score = score, .from_1 = (uint32_t)from + 1, .id = id };
    return true;
}

/* All pieces that begin at `at`; true: the character there, n_char bytes, is one of them. */
static bool offer_pieces(struct unigram_word *w, size_t at, size_t n_char)
{
    double here = w->nodes[at].score;
    bool single = false;
    uint32_t node = 0;
    for (size_t end = at; w->t->n && end < w->len;) {
        node = piece_trie_child(w->t, node, (uint8_t)w->text[end++]);
        if (!node) break;
        int32_t id = w->t->id[node];
        if (id < 0) continue;
        offer(&w->nodes[end], w->u->scores[id] + here, at, id);
        single |= end - at == n_char;
    }
    return single;
}

static mb_status no_way(const struct unigram_word *w, size_t at, mb_error *err)
{
    return mb_fail(err, MB_INVALID, "tokenizer: no piece for byte %zu of a word of %zu bytes, and the model has no unk_id", at, w->len);
}

static mb_status find_way(struct unigram_word *w, mb_error *err)
{
    double unknown = w->u->min_score - UNKNOWN_COSTS;
    for (size_t i = 0; i <= w->len; i++) w->nodes[i] = (struct path_node){ .id = -1 };
    for (size_t at = 0, next = 0; at < w->len; at = next) {
        utf8_next(w->text, w->len, &next);
        if (offer_pieces(w, at, next - at)) continue;
        if (offer(&w->nodes[next], unknown + w->nodes[at].score, at, w->u->unk_id) && w->u->unk_id < 0) return no_way(w, at, err);
    }
    for (size_t end = w->len; end > 0;) { /* turn the links of the best way around */
        size_t from = w->nodes[end].from_1 - 1;
        w->nodes[from].next = (uint32_t)end;
        end = from;
    }
    return MB_OK;
}

static mb_status no_memory(mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the tokens of a text");
}

/* text[first, end) is unknown: all its bytes as tokens, or the one for unknown text. */
static mb_status put_unknown(const struct unigram_word *w, const struct mtext *x, size_t off, size_t first, size_t end,
                             struct token_out *out, mb_error *err)
{
    const struct unigram *u = w->u;
    int32_t id = vocab_find(w->v, w->text + first, end - first); /* the text of the unknown token, say */
    bool whole = u->byte_fallback;
    for (size_t i = first; id < 0 && whole && i < end; i++) whole = u->byte_id[(uint8_t)w->text[i]] >= 0;
    if (id >= 0 || !whole) {
        if (!token_out_push(out, id >= 0 ? id : u->unk_id, (uint32_t)end, mtext_end(x, off + end - 1))) return no_memory(err);
        return MB_OK;
    }
    if (!token_out_room(out, end - first)) return no_memory(err);
    for (size_t i = first; i < end; i++) token_out_push(out, u->byte_id[(uint8_t)w->text[i]], (uint32_t)i + 1, mtext_end(x, off + i));
    return MB_OK;
}

static mb_status put_way(const struct unigram_word *w, const struct mtext *x, size_t off, struct token_out *out, mb_error *err)
{
    for (size_t at = 0, end; at < w->len; at = end) {
        end = w->nodes[at].next;
        int32_t id = w->nodes[end].id;
        if (id != w->u->unk_id) {
            if (!token_out_push(out, id, (uint32_t)end, mtext_end(x, off + end - 1))) return no_memory(err);
            continue;
        }
        while (end < w->len && w->nodes[w->nodes[end].next].id == id) end = w->nodes[end].next;
        MB_TRY(put_unknown(w, x, off, at, end, out, err));
    }
    return MB_OK;
}

mb_status unigram_word(const struct unigram *u, const struct piece_trie *t, const struct vocab *v, struct model_scratch *s,
                       const struct mtext *x, struct piece p, struct token_out *out, mb_error *err)
{
    if (!scratch_grow((void **)&s->nodes, &s->cap_nodes, (size_t)p.len + 1, sizeof *s->nodes))
        return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for a word of %u bytes", p.len);
    struct unigram_word w = { u, t, v, s->nodes, x->s + p.off, p.len };
    MB_TRY(find_way(&w, err));
    return put_way(&w, x, p.off, out, err);
}
