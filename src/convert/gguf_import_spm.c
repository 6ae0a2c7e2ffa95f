/* gguf_import_spm.c: merges of a SentencePiece BPE vocabulary.
 *
 * SentencePiece merges the pair whose joined piece has the best score; the Hugging Face form wants a list of pairs in rank
 * order. Every cut of a piece into two pieces of the vocabulary is a pair. Order, as the converter of transformers makes
 * it: pairs of one piece by (id of left, id of right); all pairs by (score, characters of left, characters of right), each
 * descending, and otherwise as they came.
 */
#include <stdlib.h>
#include <string.h>

#include "convert/gguf_import_int.h"

#define MAX_MERGES 8000000

struct merge {
    float score;
    int32_t left, right, whole; /* ids */
    uint16_t left_chars, right_chars;
    uint32_t order;             /* place before the sort */
};

struct piece_table {
    const struct import_vocab *v;
    int32_t *slots; /* id + 1, 0 = empty */
    size_t n_slots;
};

static size_t piece_slot(const struct piece_table *t, const char *text, size_t len)
{
    uint64_t h = 14695981039346656037ull; /* FNV-1a */
    for (size_t i = 0; i < len; i++) h = (h ^ (unsigned char)text[i]) * 1099511628211ull;
    size_t slot = (size_t)(h ^ h >> 29) & (t->n_slots - 1);
    while (t->slots[slot]) {
        struct str s = t->v->pieces[t->slots[slot] - 1];
        if (s.len == len && memcmp(s.ptr, text, len) == 0) break;
        slot = (slot + 1) & (t->n_slots - 1);
    }
    return slot;
}

static bool table_make(struct piece_table *t, struct arena *a, const struct import_vocab *v)
{
    t->v = v;
    for (t->n_slots = 16; t->n_slots < 2 * (size_t)v->n; t->n_slots *= 2) continue;
    t->slots = arena_alloc_array(a, t->n_slots, sizeof *t->slots);
    if (!t->slots) return false;
    for (int64_t i = 0; i < v->n; i++) {
        size_t slot = piece_slot(t, v->pieces[i].ptr, v->pieces[i].len);
        if (!t->slots[slot]) t->slots[slot] = (int32_t)i + 1; /* the first of equal pieces */
    }
    return true;
}

static bool is_char_start(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

static size_t count_chars(const char *s, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += is_char_start(s[i]);
    return n;
}

/* A list of merges that grows in place. */
struct merge_list {
    struct merge *items; /* owned */
    size_t n, cap;
};

static bool merge_add(struct merge_list *l, struct merge m)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4096;
        struct merge *items = cap > 2 * (size_t)MAX_MERGES ? NULL : mb_realloc(l->items, cap * sizeof *items);
        if (!items) return false;
        l->items = items;
        l->cap = cap;
    }
    m.order = (uint32_t)l->n;
    l->items[l->n++] = m;
    return true;
}

static bool cuts_add(const struct piece_table *t, int64_t whole, struct merge_list *l)
{
    struct str s = t->v->pieces[whole];
    size_t n_chars = count_chars(s.ptr, s.len), left_chars = 0;
    for (size_t cut = 1; cut < s.len; cut++) {
        if (!is_char_start(s.ptr[cut])) continue;
        left_chars++;
        int32_t left = t->slots[piece_slot(t, s.ptr, cut)];
        if (!left) continue;
        int32_t right = t->slots[piece_slot(t, s.ptr + cut, s.len - cut)];
        if (!right) continue;
        struct merge m = { t->v->scores[whole], left - 1, right - 1, (int32_t)whole, (uint16_t)left_chars,
                           (uint16_t)(n_chars - left_chars), 0 };
        if (!merge_add(l, m)) return false;
    }
    return true;
}

static int by_rank(const void *a, const void *b)
{
    const struct merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars) return x->left_chars > y->left_chars ? -1 : 1;
    if (x->right_chars != y->right_chars) return x->right_chars > y->right_chars ? -1 : 1;
    if (x->whole != y->whole) return x->whole < y->whole ? -1 : 1;
    if (x->left != y->left) return x->left < y->left ? -1 : 1;
    if (x->right != y->right) return x->right < y->right ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static json_t *merges_json(const struct import_vocab *v, const struct merge_list *l)
{
    json_t *out = json_array();
    for (size_t i = 0; out && i < l->n; i++) {
        struct str a = v->pieces[l->items[i].left], b = v->pieces[l->items[i].right];
        if (json_array_append_new(out, json_pack("[s%, s%]", a.ptr, a.len, b.ptr, b.len)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

mb_status import_spm_merges(struct import *im, const struct import_vocab *v, json_t **merges, mb_error *err)
{
    struct piece_table t;
    struct merge_list l = { 0 };
    *merges = NULL;
    if (!v->scores) return mb_fail(err, MB_BAD_FORMAT, "%s: the vocabulary has no scores", im->path);
    bool ok = table_make(&t, &im->arena, v);
    for (int64_t i = 0; ok && i < v->n; i++)
        if (v->scores[i] == v->scores[i] && v->pieces[i].len <= 65535) ok = cuts_add(&t, i, &l);
    if (ok) {
        if (l.n > 0) qsort(l.items, l.n, sizeof *l.items, by_rank);
        *merges = merges_json(v, &l);
    }
    mb_free(l.items);
    return *merges ? MB_OK : mb_fail(err, MB_NO_MEMORY, "%s: no memory for the merges", im->path);
}
