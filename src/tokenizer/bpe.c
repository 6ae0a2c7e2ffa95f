/* bpe.c: byte-pair encoding.
 *
 * A word becomes symbols (ids of its characters), then the pair of lowest rank, leftmost first, is merged until none
 * is left. Short words scan for the best pair; long ones (a run of 200,000 letters is one word) keep the pairs in a
 * heap over a linked list, n log n. Most words never come here: words.c knows them.
 * SentencePiece-like vocabularies have no pre-tokeniser: their texts are cut between characters that no merge joins, which
 * cannot change the result and keeps words short.
 */
#include <string.h>

#include "tokenizer/words.h"

#define SHORT_WORD 32       /* symbols */

/* --- output --- */

bool token_out_grow(struct token_out *o, size_t n)
{
    size_t cap = o->cap ? o->cap : 64;
    while (cap < o->n + n) cap *= 2;
    int32_t *ids = mb_realloc(o->ids, cap * sizeof *ids);
    if (!ids) return false;
    o->ids = ids;
    if (o->want_ends) {
        size_t *ends = mb_realloc(o->ends, cap * sizeof *ends);
        if (ends) o->ends = ends;
        uint32_t *rel = ends ? mb_realloc(o->rel, cap * sizeof *rel) : NULL;
        if (rel) o->rel = rel;
        if (!ends || !rel) return false;
    }
    o->cap = cap;
    return true;
}

/* --- symbols of a word --- */

struct word {
    const struct bpe *b;
    const struct vocab *v;
    struct model_scratch *s;
    const char *text;
    size_t len;
    uint32_t n;             /* symbols */
    bool unk_pending;
    uint32_t unk_end;
};

static void symbol_add(struct word *w, int32_t id, size_t end)
{
    struct symbol *sym = &w->s->symbols[w->n];
    *sym = (struct symbol){ id, (uint32_t)end, (int32_t)w->n - 1, (int32_t)w->n + 1 };
    w->n++;
}

/* Id of the character text[first, end), with the affixes of its place. */
static int32_t unit_find(struct word *w, size_t first, size_t end)
{
    const struct bpe *b = w->b;
    uint8_t c = (uint8_t)w->text[first];
    bool affixed = (first > 0 && b->prefix.len) || (end == w->len && b->suffix.len);
    if (!affixed && (b->raw || c < 0x80)) return b->unit_id[c];
    if (!affixed) return vocab_find(w->v, w->text + first, end - first);
    buf_clear(&w->s->map);
    if (first > 0) buf_append(&w->s->map, b->prefix.ptr, b->prefix.len);
    buf_append(&w->s->map, w->text + first, end - first);
    if (end == w->len) buf_append(&w->s->map, b->suffix.ptr, b->suffix.len);
    return w->s->map.failed == MB_OK ? vocab_find(w->v, w->s->map.data, w->s->map.len) : -1;
}

/* All bytes of the (affixed) character as <0xNN>, or nothing. */
static bool fallback_add(struct word *w, size_t first, size_t end)
{
    const struct bpe *b = w->b;
    bool affixed = (first > 0 && b->prefix.len) || (end == w->len && b->suffix.len);
    const char *s = affixed ? w->s->map.data : w->text + first;
    size_t n = affixed ? w->s->map.len : end - first;
    if (affixed && w->s->map.failed != MB_OK) return false;
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(uint8_t)s[i]] < 0) return false;
    if (!scratch_grow((void **)&w->s->symbols, &w->s->cap_symbols, w->n + n + w->len, sizeof *w->s->symbols)) return false;
    for (size_t i = 0; i < n; i++) {
        size_t at = first + i + 1;
        symbol_add(w, b->byte_id[(uint8_t)s[i]], at < end && !affixed ? at : end);
    }
    return true;
}

static void unk_flush(struct word *w)
{
    if (w->unk_pending) symbol_add(w, w->b->unk_id, w->unk_end);
    w->unk_pending = false;
}

static mb_status word_symbols(struct word *w, mb_error *err)
{
    const struct bpe *b = w->b;
    w->n = 0;
    w->unk_pending = false;
    if (!scratch_grow((void **)&w->s->symbols, &w->s->cap_symbols, w->len + 8, sizeof *w->s->symbols))
        return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for a word of %zu bytes", w->len);
    for (size_t first = 0, end = 0; first < w->len; first = end) {
        if (b->raw) end = first + 1;
        else utf8_next(w->text, w->len, &end);
        int32_t id = unit_find(w, first, end);
        if (id >= 0) {
            unk_flush(w);
            symbol_add(w, id, end);
        } else if (!(b->byte_fallback && fallback_add(w, first, end)) && b->has_unk) {
            if (!b->fuse_unk) unk_flush(w);
            w->unk_pending = true;
            w->unk_end = (uint32_t)end;
        }
        if (w->n + (w->len - end) + 8 > w->s->cap_symbols &&
            !scratch_grow((void **)&w->s->symbols, &w->s->cap_symbols, w->n + (w->len - end) + 8, sizeof *w->s->symbols))
            return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for a word of %zu bytes", w->len);
    }
    unk_flush(w);
    if (w->n) w->s->symbols[w->n - 1].next = -1;
    return MB_OK;
}

/* --- merging --- */

static void merge_short(struct word *w)
{
    struct symbol *sym = w->s->symbols;
    const struct merge_slot *best[SHORT_WORD];
    uint32_t n = w->n;
    for (uint32_t i = 0; i + 1 < n; i++) best[i] = merge_find(w->b, sym[i].id, sym[i + 1].id);
    for (;;) {
        uint32_t at = n, rank = UINT32_MAX;
        for (uint32_t i = 0; i + 1 < n; i++)
            if (best[i] && best[i]->rank < rank) {
                rank = best[i]->rank;
                at = i;
            }
        if (at == n) break;
        sym[at].id = w->b->merge_ids[best[at]->rank];
        sym[at].end = sym[at + 1].end;
        n--;
        memmove(sym + at + 1, sym + at + 2, (n - at - 1) * sizeof *sym);
        memmove(best + at, best + at + 1, (n - at) * sizeof *best);
        if (at + 1 < n) best[at] = merge_find(w->b, sym[at].id, sym[at + 1].id);
        if (at > 0) best[at - 1] = merge_find(w->b, sym[at - 1].id, sym[at].id);
    }
    w->n = n;
}

static bool item_less(const struct heap_item *a, const struct heap_item *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void heap_down(struct heap_item *h, size_t n, size_t i)
{
    struct heap_item x = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && item_less(&h[child + 1], &h[child])) child++;
        if (!item_less(&h[child], &x)) break;
        h[i] = h[child];
    }
    h[i] = x;
}

static void heap_up(struct heap_item *h, size_t i)
{
    struct heap_item x = h[i];
    while (i > 0 && item_less(&x, &h[(i - 1) / 2])) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = x;
}

/* The pair that begins at symbol pos, if it can merge, goes to the end of the heap array. */
static bool pair_add(struct word *w, int32_t pos, size_t *n, bool sift)
{
    const struct symbol *sym = w->s->symbols;
    if (pos < 0 || sym[pos].next < 0) return true;
    int32_t left = sym[pos].id, right = sym[sym[pos].next].id;
    const struct merge_slot *m = merge_find(w->b, left, right);
    if (!m) return true;
    if (!scratch_grow((void **)&w->s->heap, &w->s->cap_heap, *n + 1, sizeof *w->s->heap)) return false;
    w->s->heap[*n] = (struct heap_item){ m->rank, (uint32_t)pos, w->b->merge_ids[m->rank], left, right };
    if (sift) heap_up(w->s->heap, *n);
    (*n)++;
    return true;
}

static bool merge_long(struct word *w)
{
    struct symbol *sym = w->s->symbols;
    size_t n = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (!pair_add(w, (int32_t)i, &n, false)) return false;
    for (size_t i = n / 2; i-- > 0;) heap_down(w->s->heap, n, i);
    while (n) {
        struct heap_item top = w->s->heap[0];
        w->s->heap[0] = w->s->heap[--n];
        if (n) heap_down(w->s->heap, n, 0);
        struct symbol *a = &sym[top.pos];
        if (a->id != top.left || a->next < 0 || sym[a->next].id != top.right) continue; /* out of date */
        struct symbol *b = &sym[a->next];
        a->id = top.id;
        a->end = b->end;
        a->next = b->next;
        b->id = -1;
        if (a->next >= 0) sym[a->next].prev = (int32_t)top.pos;
        if (!pair_add(w, a->prev, &n, true) || !pair_add(w, (int32_t)top.pos, &n, true)) return false;
    }
    uint32_t k = 0; /* close the gaps; the first symbol never disappears, and k never passes i */
    for (int32_t i = 0, next; w->n && i >= 0; i = next) {
        next = sym[i].next;
        sym[k++] = sym[i];
    }
    w->n = k;
    return true;
}

/* --- a piece --- */

static mb_status no_memory(mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the tokens of a text");
}

/* The whole word as one piece of the vocabulary (ignore_merges). */
static int32_t whole_word(const struct bpe *b, const struct vocab *v, struct model_scratch *s, const char *text, size_t len)
{
    if (len > v->max_len) return -1;
    if (!b->raw) return vocab_find(v, text, len);
    buf_clear(&s->map);
    for (size_t i = 0; i < len; i++) {
        uint32_t cp = byte_to_char((uint8_t)text[i]);
        if (cp >= 0x80) buf_append_char(&s->map, (char)(0xC0 | cp >> 6));
        buf_append_char(&s->map, (char)(cp < 0x80 ? cp : 0x80 | (cp & 0x3F)));
    }
    return s->map.failed == MB_OK && s->map.data ? vocab_find(v, s->map.data, s->map.len) : -1;
}

static mb_status word_encode(struct word *w, const struct mtext *x, size_t off, struct token_out *out, mb_error *err)
{
    int32_t id = w->b->ignore_merges ? whole_word(w->b, w->v, w->s, w->text, w->len) : -1;
    if (id >= 0) {
        if (!token_out_push(out, id, (uint32_t)w->len, mtext_end(x, off + w->len - 1))) return no_memory(err);
        return MB_OK;
    }
    MB_TRY(word_symbols(w, err));
    if (w->n <= SHORT_WORD) merge_short(w);
    else if (!merge_long(w)) return no_memory(err);
    if (!token_out_room(out, w->n)) return no_memory(err);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct symbol *sym = &w->s->symbols[i];
        token_out_push(out, sym->id, sym->end, mtext_end(x, off + sym->end - 1));
    }
    return MB_OK;
}

/* A word that is not one known token: from the cache, or by merging. key NULL: too long for the cache. */
static mb_status __attribute__((noinline)) word_tokens(const struct bpe *b, const struct vocab *v, struct model_scratch *s,
                                                       const struct mtext *x, struct piece p, const struct word_key *key,
                                                       struct token_out *out, mb_error *err)
{
    struct word w = { .b = b, .v = v, .s = s, .text = x->s + p.off, .len = p.len };
    if (!key) return word_encode(&w, x, p.off, out, err);
    if (word_cache_recall(&s->cache, key, x, p.off, out)) return MB_OK;
    size_t n = out->n;
    MB_TRY(word_encode(&w, x, p.off, out, err));
    word_cache_keep(&s->cache, key, out, out->n - n);
    return MB_OK;
}

/* End of the word that begins at `at`: between two characters that no merge joins. */
static size_t word_cut(const struct bpe *b, const char *s, size_t n, size_t at)
{
    size_t n_bytes;
    int x = join_class(s, n, at, &n_bytes);
    for (size_t i = at + n_bytes; i < n; i += n_bytes) {
        int y = join_class(s, n, i, &n_bytes);
        if (!(b->joined[x][y / 64] >> (y % 64) & 1)) return i;
        x = y;
    }
    return n;
}

mb_status bpe_encode(const struct bpe *b, const struct vocab *v, struct model_scratch *s, const struct mtext *x,
                     struct piece p, size_t max_tokens, struct token_out *out, mb_error *err)
{
    for (size_t first = 0, end; first < p.len; first = end) {
        struct word_key key;
        end = b->cuts ? word_cut(b, x->s + p.off, p.len, first) : p.len;
        size_t off = p.off + first, len = end - first;
        bool is_short = len <= WORD_BYTES;
        int32_t id = -1;
        if (is_short) {
            word_key_set(&key, x->s + off, len, x->n - off);
            id = word_table_find(&b->words, &key);
        }
        if (id < 0) {
            struct piece word = { (uint32_t)off, (uint32_t)len };
            MB_TRY(word_tokens(b, v, s, x, word, is_short ? &key : NULL, out, err));
        } else if (!token_out_push(out, id, (uint32_t)len, mtext_end(x, off + len - 1))) {
            return no_memory(err);
        }
        if (max_tokens && out->n > max_tokens) break; /* the caller refuses the text */
    }
    return MB_OK;
}

/* --- the words of the vocabulary --- */

/* The piece as a word of a text: plain bytes. false: no text gives it, or it is too long. */
static bool piece_bytes(const struct bpe *b, const struct vocab *v, int32_t id, char out[2 * WORD_BYTES], size_t *n)
{
    const char *s = vocab_text(v, id, n);
    if (!s || !*n || *n > (b->raw ? 2 * WORD_BYTES : WORD_BYTES)) return false;
    if (b->raw) return bytes_of_alphabet(s, *n, (uint8_t *)out, n) && *n <= WORD_BYTES;
    memcpy(out, s, *n);
    return true;
}

mb_status bpe_find_words(struct bpe *b, const struct vocab *v, mb_error *err)
{
    struct model_scratch s;
    struct token_out out = { 0 };
    char text[2 * WORD_BYTES];
    model_scratch_init(&s, 0);
    struct word w = { .b = b, .v = v, .s = &s, .text = text };
    size_t n_long = 0, n_short = 0;
    for (int32_t id = 0; id < v->n_ids; id++) {
        size_t n;
        if (!piece_bytes(b, v, id, text, &n)) continue;
        if (n <= WORD_SHORT_BYTES) n_short++;
        else n_long++;
    }
    mb_status st = word_table_init(&b->words, n_long, n_short, err);
    for (int32_t id = 0; id < v->n_ids && st == MB_OK; id++) {
        struct mtext x = { .s = text };
        if (!piece_bytes(b, v, id, text, &x.n)) continue;
        w.len = x.n;
        w.n = 0;
        w.unk_pending = false;
        out.n = 0;
        st = word_encode(&w, &x, 0, &out, err);
        if (st != MB_OK || out.n != 1) continue;
        struct word_key key;
        word_key_set(&key, text, x.n, 0);
        word_table_put(&b->words, &key, out.ids[0]);
    }
    mb_free(out.ids);
    model_scratch_free(&s);
    return st;
}
