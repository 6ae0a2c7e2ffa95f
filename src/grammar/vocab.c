/* vocab.c: the tokens of a model as a trie.
 *
 * Nodes lie in preorder, each with the size of its subtree, so a walk is one pass over an array that skips what is
 * forbidden. Ids with equal bytes share a node (`same` links them). Added tokens are not in the trie: they are found by
 * their text when a grammar names them.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_int.h"

enum { TOKEN_TEXT = 0, TOKEN_ADDED = 1, TOKEN_NONE = 2 };

struct sorted {
    const uint8_t *bytes;
    uint32_t len;
    int32_t id;
};

static int by_bytes(const void *x, const void *y)
{
    const struct sorted *a = x, *b = y;
    uint32_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->bytes, b->bytes, n) : 0;
    if (c) return c;
    if (a->len != b->len) return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static uint32_t common_prefix(const struct sorted *a, const struct sorted *b)
{
    uint32_t n = 0;
    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* Nodes from sorted tokens; path[d] is the open node of depth d. */
static void fill_trie(struct grammar_vocab *v, const struct sorted *s, size_t n, uint32_t *path)
{
    uint32_t depth = 0;
    v->n_nodes = 1;
    v->nodes[0] = (struct trie_node){ .token = -1 };
    path[0] = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t keep = i ? common_prefix(&s[i - 1], &s[i]) : 0;
        for (; depth > keep; depth--) v->nodes[path[depth]].size = v->n_nodes - path[depth];
        for (; depth < s[i].len; depth++) {
            path[depth + 1] = v->n_nodes;
            v->nodes[v->n_nodes++] = (struct trie_node){ .token = -1, .depth = (uint16_t)(depth + 1), .byte = s[i].bytes[depth] };
        }
        struct trie_node *node = &v->nodes[path[depth]];
        if (node->token < 0) {
            node->token = s[i].id;
        } else { /* equal bytes: ids ascend, so the new one goes behind the first */
            int32_t first = token_first(node);
            v->same[s[i].id] = v->same[first];
            v->same[first] = s[i].id;
            node->token |= TRIE_MORE;
        }
    }
    for (;; depth--) {
        v->nodes[path[depth]].size = v->n_nodes - path[depth];
        if (!depth) break;
    }
}

uint8_t byte_class(uint8_t byte)
{
    if (byte >= 'a' && byte <= 'z') return 1;
    if (byte >= 'A' && byte <= 'Z') return 2;
    if (byte >= '0' && byte <= '9') return 4;
    if (byte == ' ') return 8;
    if (byte == '"' || byte == '\\') return 32;
    return byte < 0x20 ? 64 : byte < 0x80 ? 16 : 128;
}

static void fill_below(struct grammar_vocab *v)
{
    for (uint32_t i = v->n_nodes; i-- > 0;) {
        uint32_t end = i + v->nodes[i].size;
        for (uint32_t k = i + 1; k < end; k += v->nodes[k].size)
            v->nodes[i].below |= (uint8_t)(v->nodes[k].below | byte_class(v->nodes[k].byte));
    }
}

static mb_status build_trie(struct grammar_vocab *v, mb_error *err)
{
    size_t n = 0;
    struct sorted *s = mb_alloc(((size_t)v->n_vocab + 1) * sizeof *s);
    if (!s) return mb_fail(err, MB_NO_MEMORY, "no memory for the vocabulary of grammars");
    for (int32_t i = 0; i < v->n_vocab; i++) {
        uint32_t len = v->offs[i + 1] - v->offs[i];
        if (v->added[i] != TOKEN_TEXT) continue;
        s[n++] = (struct sorted){ v->bytes + v->offs[i], len, i };
        if (len > v->max_len) v->max_len = len;
    }
    qsort(s, n, sizeof *s, by_bytes);
    size_t n_nodes = 1;
    for (size_t i = 0; i < n; i++) n_nodes += s[i].len - (i ? common_prefix(&s[i - 1], &s[i]) : 0);
    v->nodes = mb_alloc(n_nodes * sizeof *v->nodes);
    uint32_t *path = mb_alloc(((size_t)v->max_len + 2) * sizeof *path);
    mb_status st = MB_OK;
    if (!v->nodes || !path) st = mb_fail(err, MB_NO_MEMORY, "no memory for the vocabulary of grammars");
    else fill_trie(v, s, n, path), fill_below(v);
    mb_free(path);
    mb_free(s);
    return st;
}

static bool is_space_text(const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!strchr(" \t\n\r", s[i]) || !s[i]) return false;
    return len > 0;
}

#define MAX_TOKEN_BYTES 4096 /* a longer token is never drawn under a grammar */

static void put_token(struct grammar_vocab *v, struct buf *all, int32_t id, size_t len, bool added)
{
    v->offs[id + 1] = (uint32_t)all->len;
    v->same[id] = -1;
    bool space = len && all->failed == MB_OK && is_space_text(all->data + all->len - len, len);
    v->added[id] = !len || len > MAX_TOKEN_BYTES ? TOKEN_NONE : added && !space ? TOKEN_ADDED : TOKEN_TEXT;
}

static struct grammar_vocab *vocab_new(int32_t n, const int32_t *end_ids, int32_t n_end, mb_error *err)
{
    struct grammar_vocab *v = mb_calloc(1, sizeof *v);
    if (v && pthread_mutex_init(&v->lock, NULL) != 0) {
        mb_free(v);
        v = NULL;
    }
    if (v) {
        v->n_refs = 1;
        v->n_vocab = n;
        v->n_end = n_end;
        v->end_ids = mb_alloc(((size_t)n_end + 1) * sizeof *v->end_ids);
        v->same = mb_alloc(((size_t)n + 1) * sizeof *v->same);
        v->offs = mb_calloc((size_t)n + 1, sizeof *v->offs);
        v->added = mb_calloc((size_t)n + 1, 1);
        if (v->end_ids && v->same && v->offs && v->added) {
            if (n_end) memcpy(v->end_ids, end_ids, (size_t)n_end * sizeof *end_ids);
            return v;
        }
        grammar_vocab_close(v);
    }
    mb_fail(err, MB_NO_MEMORY, "no memory for the vocabulary of grammars");
    return NULL;
}

static mb_status finish(struct grammar_vocab **out, struct grammar_vocab *v, struct buf *all, mb_error *err)
{
    mb_status st = buf_status(all, "the bytes of the vocabulary", err);
    if (st == MB_OK) {
        v->bytes = (uint8_t *)buf_take(all, NULL);
        for (int32_t i = 0; i < v->n_end; i++) /* an end id ends; it is never text as well */
            if (v->end_ids[i] >= 0 && v->end_ids[i] < v->n_vocab && v->added[v->end_ids[i]] == TOKEN_TEXT)
                v->added[v->end_ids[i]] = TOKEN_ADDED;
        st = build_trie(v, err);
        if (st == MB_OK) st = grammar_vocab_warm(v, err);
    }
    buf_free(all);
    if (st == MB_OK) *out = v;
    else grammar_vocab_close(v);
    return st;
}

mb_status grammar_vocab_open(struct grammar_vocab **out, const struct tokenizer *t, const int32_t *end_ids,
                             int32_t n_end_ids, mb_error *err)
{
    *out = NULL;
    int32_t n = tokenizer_n_vocab(t);
    struct grammar_vocab *v = vocab_new(n, end_ids, n_end_ids, err);
    if (!v) return MB_NO_MEMORY;
    struct buf all;
    buf_init(&all, (size_t)1 << 30);
    for (int32_t i = 0; i < n && all.failed == MB_OK; i++) {
        size_t before = all.len, piece_len;
        if (tokenizer_piece(t, i, &piece_len)) tokenizer_token_bytes(t, i, false, &all);
        put_token(v, &all, i, all.len - before, tokenizer_is_added(t, i) || tokenizer_is_special(t, i));
    }
    return finish(out, v, &all, err);
}

mb_status grammar_vocab_from_tokens(struct grammar_vocab **out, const struct grammar_token *tokens, int32_t n_tokens,
                                    const int32_t *end_ids, int32_t n_end_ids, mb_error *err)
{
    *out = NULL;
    struct grammar_vocab *v = vocab_new(n_tokens, end_ids, n_end_ids, err);
    if (!v) return MB_NO_MEMORY;
    struct buf all;
    buf_init(&all, (size_t)1 << 30);
    for (int32_t i = 0; i < n_tokens && all.failed == MB_OK; i++) {
        buf_append(&all, tokens[i].bytes, tokens[i].len);
        put_token(v, &all, i, tokens[i].len, tokens[i].added);
    }
    return finish(out, v, &all, err);
}

struct grammar_vocab *vocab_ref(struct grammar_vocab *v)
{
    pthread_mutex_lock(&v->lock);
    v->n_refs++;
    pthread_mutex_unlock(&v->lock);
    return v;
}

int32_t grammar_vocab_n(const struct grammar_vocab *v)
{
    return v->n_vocab;
}

int32_t vocab_find_added(const struct grammar_vocab *v, const char *text, size_t len)
{
    for (int32_t i = 0; i < v->n_vocab; i++)
        if (v->added[i] == TOKEN_ADDED && v->offs[i + 1] - v->offs[i] == len && !memcmp(v->bytes + v->offs[i], text, len))
            return i;
    return -1;
}
