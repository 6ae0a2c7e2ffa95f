/* models_int.h: how a piece becomes ids: BPE, Unigram, WordPiece, WordLevel, and the words whose tokens are known. Files of this
 * folder include tokenizer_int.h, which includes this. */
#ifndef TOKENIZER_MODELS_INT_H
#define TOKENIZER_MODELS_INT_H

#include "base/json.h"
#include "tokenizer/steps_int.h"
#include "tokenizer/vocab_int.h"

struct tokenizer; /* tokenizer_int.h */

/* --- words.c: words whose tokens are known --- */
struct token_out;
#define WORD_BYTES 27       /* longer words are not kept */
#define WORD_IDS 7          /* more tokens are not kept */
struct word_key {
    uint64_t w[3];          /* the bytes, zeros behind them */
    uint32_t tail;          /* the last three, and the length in the highest byte */
    uint32_t hash;
};
struct word_entry {         /* of the table of one-token words: half a cache line */
    uint64_t w[3];
    uint32_t tail;          /* 0: empty */
    int32_t id;
};
#define WORD_SHORT_BYTES 11 /* most words are no longer */
struct word_short {         /* the same for them: a quarter of a cache line */
    uint64_t w;
    uint32_t tail;          /* the last three bytes, and the length in the highest byte; 0: empty */
    int32_t id;
};
struct word_table {         /* open addressing, read-only once it is built; n 0: none of the kind */
    struct word_entry *at;
    struct word_short *shorts;
    uint32_t n, n_shorts;
};
struct word_slot {          /* of the cache of one encode: one cache line */
    uint64_t w[3];
    uint32_t tail;
    int32_t ids[WORD_IDS];
    uint8_t n, rel[WORD_IDS];
};
struct word_cache {         /* direct-mapped; n a power of two, 0: none */
    struct word_slot *at;
    uint32_t n;
};
/* word_key_set and word_table_find: words.h. */
mb_status word_table_init(struct word_table *t, size_t n_words, size_t n_shorts, mb_error *err);
void word_table_put(struct word_table *t, const struct word_key *k, int32_t id); /* at most as many of each kind */
void word_table_free(struct word_table *t);
void word_cache_init(struct word_cache *c, size_t n_text);
void word_cache_free(struct word_cache *c);
/* false: not there. */
bool word_cache_recall(const struct word_cache *c, const struct word_key *k, const struct mtext *x, size_t off,
                       struct token_out *out);
/* The last n tokens of out are those of the word. What does not fit is not remembered. */
void word_cache_keep(struct word_cache *c, const struct word_key *k, const struct token_out *out, size_t n);

/* --- bpe.c, bpe_load.c --- */
struct merge_slot {
    int32_t left, right; /* left -1: empty */
    uint32_t rank;       /* of the merge; what it makes is merge_ids[rank] */
};
/* Classes of characters for cutting: ASCII its own, U+2581, all others. */
enum { JOIN_META = 128, JOIN_OTHER, JOIN_CLASSES };
struct bpe {
    struct merge_slot *slots; /* [n_slots] open addressing */
    uint32_t n_slots, n_used;
    int32_t *merge_ids;       /* [n_merges] by rank */
    uint32_t n_merges;
    size_t cap_merges;
    int32_t unit_id[256];  /* raw: id of each byte's character; else of each ASCII character */
    int32_t byte_id[256];  /* id of "<0xNN>" */
    int32_t unk_id;
    bool has_unk, fuse_unk, byte_fallback, ignore_merges;
    bool raw;              /* pieces are plain bytes; the byte-level alphabet is applied to the tables instead */
    bool cuts;             /* a piece may be cut between characters that no merge joins: */
    uint64_t joined[JOIN_CLASSES][3]; /* a bit for class y behind class x (join_class) */
    struct str prefix, suffix;
    struct word_table words; /* pieces of the vocabulary that are one token */
};
struct symbol {
    int32_t id;
    uint32_t end;          /* byte of the piece behind it */
    int32_t prev, next;    /* -1 none */
};
struct heap_item {
    uint32_t rank, pos;
    int32_t id, left, right;
};
struct token_out {
    int32_t *ids;
    size_t *ends;          /* kept only when want_ends: byte of the original text behind the token */
    uint32_t *rel;         /* likewise: byte of its word behind the token */
    size_t n, cap;
    bool want_ends;
};
struct path_node {         /* of Unigram: the best way to a byte of the piece */
    union {
        double score;      /* going there */
        uint32_t next;     /* coming back: where the token that begins here ends */
    };
    uint32_t from_1;       /* 1 + byte where its last token begins; 0: no way yet */
    int32_t id;            /* of that token */
};
struct model_scratch {
    struct symbol *symbols;       /* BPE */
    size_t cap_symbols;
    struct heap_item *heap;       /* BPE */
    size_t cap_heap;
    struct path_node *nodes;      /* Unigram */
    size_t cap_nodes;
    struct word_cache cache;
    struct buf map;               /* for ignore_merges and affixes */
};
bool scratch_grow(void **at, size_t *cap, size_t n, size_t size); /* an array of the scratch to n elements and more */
/* Options and single characters; the merges have to follow. */
mb_status bpe_load(struct bpe *b, const struct vocab *v, struct arena *mem, const json_t *model, bool raw, mb_error *err);
mb_status bpe_load_merges(struct bpe *b, const struct vocab *v, struct str merges, mb_error *err);
void bpe_free(struct bpe *b);
/* Find out which pieces are one token (b->words). */
mb_status bpe_find_words(struct bpe *b, const struct vocab *v, mb_error *err);
/* Class of the character at s[i], its length in *n_bytes. */
static inline int join_class(const char *s, size_t n, size_t i, size_t *n_bytes)
{
    uint8_t c = (uint8_t)s[i];
    *n_bytes = 1;
    if (c < 0x80) return c;
    size_t k = i + 1;
    while (k < n && ((uint8_t)s[k] & 0xC0) == 0x80) k++;
    *n_bytes = k - i;
    return c == 0xE2 && *n_bytes == 3 && (uint8_t)s[i + 1] == 0x96 && (uint8_t)s[i + 2] == 0x81 ? JOIN_META : JOIN_OTHER;
}
static inline uint32_t pair_hash(int32_t left, int32_t right)
{
    uint64_t k = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    k *= 0x9E3779B97F4A7C15u;
    return (uint32_t)((k ^ k >> 29) * 0xBF58476D1CE4E5B9u >> 32);
}
static inline uint32_t merge_first_slot(int32_t left, int32_t right, uint32_t n_slots)
{
    return (uint32_t)((uint64_t)pair_hash(left, right) * n_slots >> 32);
}
static inline const struct merge_slot *merge_find(const struct bpe *b, int32_t left, int32_t right)
{
    for (uint32_t i = merge_first_slot(left, right, b->n_slots);; i = i + 1 < b->n_slots ? i + 1 : 0) {
        const struct merge_slot *m = &b->slots[i];
        if (m->left == left && m->right == right) return m;
        if (m->left < 0) return NULL;
    }
}
/* Ids of one piece of x, appended to out (ends in bytes of the original text). Behind max_tokens (0: no limit) it may
 * stop. */
mb_status bpe_encode(const struct bpe *b, const struct vocab *v, struct model_scratch *s, const struct mtext *x,
                     struct piece p, size_t max_tokens, struct token_out *out, mb_error *err);
bool token_out_grow(struct token_out *o, size_t n);
static inline bool token_out_room(struct token_out *o, size_t n)
{
    return o->n + n <= o->cap || token_out_grow(o, n);
}
static inline bool token_out_push(struct token_out *o, int32_t id, uint32_t rel, size_t end)
{
    if (!token_out_room(o, 1)) return false;
    o->ids[o->n] = id;
    if (o->want_ends) {
        o->rel[o->n] = rel;
        o->ends[o->n] = end;
    }
    o->n++;
    return true;
}

/* --- piece_trie.c: all pieces of a vocabulary by their bytes --- */
/* Nodes lie level by level: the children of node i are the nodes first[i] .. first[i + 1] - 1, by rising label. */
struct piece_trie {
    uint32_t *first; /* [n + 1] */
    uint8_t *label;  /* [n] the byte that leads here; node 0 is the root */
    int32_t *id;     /* [n] piece that ends here, -1 none */
    uint32_t n;      /* 0: no trie */
};
mb_status piece_trie_build(struct piece_trie *t, const struct vocab *v, mb_error *err);
void piece_trie_free(struct piece_trie *t);
/* 0: none. */
static inline uint32_t piece_trie_child(const struct piece_trie *t, uint32_t node, uint8_t byte)
{
    uint32_t first = t->first[node], end = t->first[node + 1];
    while (end - first > 8) {
        uint32_t mid = first + (end - first) / 2;
        if (t->label[mid] <= byte) first = mid;
        else end = mid;
    }
    for (; first < end; first++)
        if (t->label[first] == byte) return first;
    return 0;
}

/* --- unigram.c --- */
struct unigram {
    double *scores;        /* [n_scores] by id */
    size_t n_scores, cap;
    double min_score;
    int32_t unk_id;        /* -1: none */
    bool byte_fallback;
    int32_t byte_id[256];  /* id of "<0xNN>" */
};
/* The list of pieces to v and to scores. */
mb_status unigram_load_pieces(struct unigram *u, struct vocab *v, struct str pieces, mb_error *err);
mb_status unigram_load(struct unigram *u, const struct vocab *v, const json_t *model, mb_error *err);
mb_status unigram_word(const struct unigram *u, const struct piece_trie *t, const struct vocab *v, struct model_scratch *s,
                       const struct mtext *x, struct piece p, struct token_out *out, mb_error *err);

/* --- wordpiece.c: the longest piece first (WordPiece), or the whole word (WordLevel) --- */
struct wordpiece {
    struct str unk, prefix;
    int32_t unk_id;        /* -1: none */
    size_t max_chars;      /* longer words are unknown */
    bool whole;            /* WordLevel */
};
mb_status wordpiece_load(struct wordpiece *w, const struct vocab *v, struct arena *mem, const json_t *model, bool whole,
                         mb_error *err);
mb_status wordpiece_word(const struct wordpiece *w, const struct piece_trie *t, const struct vocab *v, const struct mtext *x,
                         struct piece p, struct token_out *out, mb_error *err);

/* --- models.c: the kinds of model --- */
enum model_kind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL, N_MODELS };
void model_scratch_init(struct model_scratch *s, size_t n_text);
void model_scratch_free(struct model_scratch *s);
/* Which one tokenizer.json holds. */
mb_status model_kind_of(const json_t *root, const struct scan_parts *parts, enum model_kind *out, mb_error *err);
/* In this order; all but the options are what an image brings. */
mb_status model_load_vocab(struct tokenizer *t, const struct scan_parts *parts, mb_error *err);
mb_status model_load_options(struct tokenizer *t, const json_t *model, mb_error *err);
mb_status model_load_tables(struct tokenizer *t, const struct scan_parts *parts, mb_error *err);
bool model_is_whole(const struct tokenizer *t);   /* are the tables there that its kind wants? */
/* How many bytes of a normalised text one token stands for at most; 0: any number. */
size_t model_bytes_per_token(const struct tokenizer *t);
/* Ids of one piece of x, appended to out. Behind max_tokens (0: no limit) it may stop. */
mb_status model_encode(const struct tokenizer *t, struct model_scratch *s, const struct mtext *x, struct piece p,
                       size_t max_tokens, struct token_out *out, mb_error *err);

#endif
