/* piece_trie.c: a trie of all pieces of a vocabulary, for models that look for pieces at every place of a word.
 *
 * Built once from the sorted texts, level by level, so that the children of a node lie side by side and a node is nine
 * bytes: the quarter of a million pieces of a large multilingual model take about ten megabytes. Read-only afterwards.
 */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_int.h"

struct sorted_piece {
    const char *s;
    uint32_t len;
    int32_t id;
};
struct range { /* the pieces that begin with a node's bytes */
    uint32_t first, end;
};
struct trie_builder {
    struct piece_trie *t;
    struct sorted_piece *pieces;
    struct range *ranges; /* by node */
    size_t n, cap;
};

void piece_trie_free(struct piece_trie *t)
{
    mb_free(t->first);
    mb_free(t->label);
    mb_free(t->id);
    *t = (struct piece_trie){ 0 };
}

static int by_text(const void *a, const void *b)
{
    const struct sorted_piece *x = a, *y = b;
    int order = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);
    return order ? order : x->len < y->len ? -1 : x->len > y->len;
}

static mb_status no_memory(mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the pieces");
}

static mb_status grow(struct trie_builder *b, mb_error *err)
{
    size_t cap = b->cap ? b->cap * 2 : 1024;
    if (cap > TOKENIZER_MAX_NODES)
        return mb_fail(err, MB_TOO_LARGE, "tokenizer.json: model.vocab: its pieces need more than %zu trie nodes", TOKENIZER_MAX_NODES);
    uint32_t *first = mb_realloc(b->t->first, (cap + 1) * sizeof *first);
    if (first) b->t->first = first;
    uint8_t *label = first ? mb_realloc(b->t->label, cap) : NULL;
    if (label) b->t->label = label;
    int32_t *id = label ? mb_realloc(b->t->id, cap * sizeof *id) : NULL;
    if (id) b->t->id = id;
    struct range *ranges = id ? mb_realloc(b->ranges, cap * sizeof *ranges) : NULL;
    if (!ranges) return no_memory(err);
    b->ranges = ranges;
    b->cap = cap;
    return MB_OK;
}

static mb_status node_new(struct trie_builder *b, uint8_t label, uint32_t first, uint32_t end, mb_error *err)
{
    if (b->n == b->cap) MB_TRY(grow(b, err));
    b->t->label[b->n] = label;
    b->t->id[b->n] = -1;
    b->ranges[b->n++] = (struct range){ first, end };
    return MB_OK;
}

/* The children of a node whose text has `depth` bytes. */
static mb_status expand(struct trie_builder *b, size_t node, uint32_t depth, mb_error *err)
{
    struct range r = b->ranges[node];
    b->t->first[node] = (uint32_t)b->n;
    if (r.first < r.end && b->pieces[r.first].len == depth) b->t->id[node] = b->pieces[r.first++].id;
    for (uint32_t i = r.first, first = i; i < r.end; first = i) {
        uint8_t label = (uint8_t)b->pieces[first].s[depth];
        while (i < r.end && (uint8_t)b->pieces[i].s[depth] == label) i++;
        MB_TRY(node_new(b, label, first, i, err));
    }
    return MB_OK;
}

static mb_status build(struct trie_builder *b, uint32_t n_pieces, mb_error *err)
{
    MB_TRY(node_new(b, 0, 0, n_pieces, err));
    size_t level_end = 1;
    uint32_t depth = 0;
    for (size_t node = 0; node < b->n; node++) {
        if (node == level_end) {
            level_end = b->n;
            depth++;
        }
        MB_TRY(expand(b, node, depth, err));
    }
    b->t->first[b->n] = (uint32_t)b->n;
    b->t->n = (uint32_t)b->n;
    return MB_OK;
}

mb_status piece_trie_build(struct piece_trie *t, const struct vocab *v, mb_error *err)
{
    struct trie_builder b = { .t = t };
    uint32_t n = 0;
    *t = (struct piece_trie){ 0 };
    if (v->max_len > TOKENIZER_MAX_PIECE)
        return mb_fail(err, MB_TOO_LARGE, "tokenizer.json: model.vocab: a piece of %u bytes, at most %d", v->max_len, TOKENIZER_MAX_PIECE);
    b.pieces = mb_alloc(((size_t)v->n_used + 1) * sizeof *b.pieces);
    if (!b.pieces) return no_memory(err);
    for (uint32_t i = 0; i < v->n_slots; i++) { /* each text once, under the id it is found by */
        size_t len;
        const char *s = vocab_text(v, v->slots[i].id, &len);
        if (s) b.pieces[n++] = (struct sorted_piece){ s, (uint32_t)len, v->slots[i].id };
    }
    qsort(b.pieces, n, sizeof *b.pieces, by_text);
    mb_status st = build(&b, n, err);
    mb_free(b.pieces);
    mb_free(b.ranges);
    return st; /* what there is of t is the caller's to free */
}
