/* added.c: finding added tokens in a text.
 *
 * A trie over bytes; at each position the longest token wins, the leftmost position first. The length of a token is
 * bounded, so the work is at most that bound per byte, and one table look-up where no token can begin.
 *
 * Provenance (B-008): a `special` token that a user typed is no control token. A match that lies wholly in content is
 * passed over as the oracle does when told to encode special tokens as text (the search goes on behind it); one that
 * lies partly in content is no match at all, so that a template's own token beside it is still found.
 */
#include <string.h>

#include "tokenizer/tokenizer_int.h"

static void trie_free(struct trie *t)
{
    mb_free(t->keys);
    mb_free(t->nodes);
    mb_free(t->tokens);
    memset(t, 0, sizeof *t);
}

void added_free(struct added_set *s)
{
    trie_free(&s->raw);
    trie_free(&s->normalized);
    mb_free(s->items);
    memset(s, 0, sizeof *s);
}

static uint32_t trie_slot(const struct trie *t, uint32_t node, uint8_t byte)
{
    uint32_t key = (node << 8 | byte) + 1, mask = t->n_slots - 1;
    uint32_t i = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 40) & mask;
    while (t->keys[i] && t->keys[i] != key) i = (i + 1) & mask;
    return i;
}

static bool trie_slots(struct trie *t, size_t n_nodes)
{
    size_t n = 64;
    while (n < 2 * n_nodes) n *= 2;
    t->n_slots = (uint32_t)n;
    t->keys = mb_calloc(n, sizeof *t->keys);
    t->nodes = mb_calloc(n, sizeof *t->nodes);
    return t->keys && t->nodes;
}

/* n_bytes: length of all tokens together, which bounds the nodes. */
static bool trie_init(struct trie *t, size_t n_bytes)
{
    t->cap_nodes = (uint32_t)n_bytes + 1;
    t->tokens = mb_alloc(t->cap_nodes * sizeof *t->tokens);
    if (!trie_slots(t, n_bytes) || !t->tokens) return false;
    memset(t->tokens, 0xFF, t->cap_nodes * sizeof *t->tokens);
    t->n_nodes = 1;
    return true;
}

static void trie_add(struct trie *t, struct str s, int32_t token)
{
    uint32_t node = 0;
    if (!s.len) return;
    t->first[(uint8_t)s.ptr[0]] = true;
    for (size_t i = 0; i < s.len; i++) {
        uint32_t slot = trie_slot(t, node, (uint8_t)s.ptr[i]);
        if (!t->keys[slot]) {
            t->keys[slot] = (node << 8 | (uint8_t)s.ptr[i]) + 1;
            t->nodes[slot] = t->n_nodes++;
        }
        node = t->nodes[slot];
    }
    t->tokens[node] = token;
}

/* Tokens share their beginnings, so that there are often far fewer nodes than bytes: what a start reads should be small. */
static bool trie_shrink(struct trie *t)
{
    struct trie old = *t;
    t->keys = NULL;
    t->nodes = NULL;
    bool ok = trie_slots(t, t->n_nodes);
    for (uint32_t i = 0; ok && i < old.n_slots; i++) {
        if (!old.keys[i]) continue;
        uint32_t slot = trie_slot(t, (old.keys[i] - 1) >> 8, (uint8_t)(old.keys[i] - 1));
        t->keys[slot] = old.keys[i];
        t->nodes[slot] = old.nodes[i];
    }
    mb_free(old.keys);
    mb_free(old.nodes);
    return ok;
}

mb_status added_build(struct added_set *s, mb_error *err)
{
    for (int normalized = 0; normalized < 2; normalized++) {
        struct trie *t = normalized ? &s->normalized : &s->raw;
        size_t n_bytes = 0;
        for (size_t i = 0; i < s->n; i++)
            if (!!(s->items[i].flags & ADDED_NORMALIZED) == normalized) n_bytes += s->items[i].pattern.len;
        if (!n_bytes) continue;
        if (n_bytes > (1u << 23))
            return mb_fail(err, MB_TOO_LARGE, "tokenizer.json: added_tokens: %zu bytes of text, at most 8388608", n_bytes);
        if (!trie_init(t, n_bytes)) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the added tokens");
        for (size_t i = 0; i < s->n; i++)
            if (!!(s->items[i].flags & ADDED_NORMALIZED) == normalized) trie_add(t, s->items[i].pattern, (int32_t)i);
        if (!trie_shrink(t)) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the added tokens");
    }
    return MB_OK;
}

/* How many of the original bytes [first, end) are content. */
static size_t content_bytes(const struct encode_opts *o, size_t first, size_t end)
{
    size_t low = 0, high = o->n_content, n = 0;
    while (low < high) { /* the first span that ends behind `first` */
        size_t mid = low + (high - low) / 2;
        if (o->content[mid].end <= first) low = mid + 1;
        else high = mid;
    }
    for (; low < o->n_content && o->content[low].first < end; low++) {
        size_t a = o->content[low].first > first ? o->content[low].first : first;
        size_t b = o->content[low].end < end ? o->content[low].end : end;
        if (b > a) n += b - a;
    }
    return n;
}

enum origin { ORIGIN_TRUSTED, ORIGIN_MIXED, ORIGIN_CONTENT };

static enum origin origin_of(const struct mtext *x, const struct encode_opts *o, size_t first, size_t end)
{
    if (!o->content || !o->n_content) return ORIGIN_TRUSTED;
    size_t a = mtext_first(x, first), b = mtext_end(x, end - 1);
    size_t n = content_bytes(o, a, b);
    return n == 0 ? ORIGIN_TRUSTED : n == b - a ? ORIGIN_CONTENT : ORIGIN_MIXED;
}

/* Longest token at `at`; special ones of mixed origin are no candidates. */
static bool longest_at(const struct added_set *s, const struct trie *t, const struct mtext *x,
                       const struct encode_opts *o, size_t at, struct added_match *m, enum origin *origin)
{
    uint32_t node = 0;
    bool found = false;
    for (size_t i = at; i < x->n; i++) {
        uint32_t slot = trie_slot(t, node, (uint8_t)x->s[i]);
        if (!t->keys[slot]) break;
        node = t->nodes[slot];
        if (t->tokens[node] < 0) continue;
        const struct added_token *token = &s->items[t->tokens[node]];
        enum origin from = token->flags & ADDED_SPECIAL ? origin_of(x, o, at, i + 1) : ORIGIN_TRUSTED;
        if (from == ORIGIN_MIXED) continue;
        found = true;
        *origin = from;
        *m = (struct added_match){ token, at, i + 1 };
    }
    return found;
}

static bool is_single_word(const struct mtext *x, const struct added_match *m)
{
    size_t pos = m->end;
    if (m->first > 0 && uni_is_word(utf8_last(x->s, m->first, &pos))) return false;
    pos = m->end;
    return pos >= x->n || !uni_is_word(utf8_next(x->s, x->n, &pos));
}

static void take_spaces(const struct mtext *x, struct added_match *m, size_t prev_end)
{
    size_t pos;
    if (m->token->flags & ADDED_LSTRIP)
        while (m->first > prev_end && uni_is_space(utf8_last(x->s, m->first, &pos))) m->first = pos;
    if (m->token->flags & ADDED_RSTRIP)
        for (pos = m->end; m->end < x->n && uni_is_space(utf8_next(x->s, x->n, &pos));) m->end = pos;
}

bool added_next(const struct added_set *s, const struct trie *trie, const struct mtext *x,
                const struct encode_opts *opts, size_t *pos, size_t prev_end, struct added_match *m)
{
    if (!trie->n_nodes) return false;
    for (size_t i = *pos; i < x->n;) {
        enum origin origin = ORIGIN_TRUSTED;
        if (!trie->first[(uint8_t)x->s[i]] || !longest_at(s, trie, x, opts, i, m, &origin)) {
            i++;
            continue;
        }
        i = *pos = m->end;
        if (origin == ORIGIN_CONTENT) continue;
        if ((m->token->flags & ADDED_SINGLE_WORD) && !is_single_word(x, m)) continue;
        take_spaces(x, m, prev_end);
        return true;
    }
    return false;
}
