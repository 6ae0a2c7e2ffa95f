/* tokenizer_int.h: what the files of this folder share.
 *
 * The way of a text (encode.c walks it): added tokens cut the text (added.c) -> each rest is normalised
 * (normalize.c) -> normalised added tokens cut again -> the pre-tokeniser cuts pieces (pretok.c, regex.c) -> the model
 * (models.c) turns each piece into ids: BPE (bpe.c), Unigram (unigram.c), WordPiece or WordLevel (wordpiece.c) -> the
 * post-processor frames them (post.c). Back: decode.c knows what one id adds to a text, detok.c joins those bytes to
 * whole characters; tokenizer_decode is the same machine fed at once.
 *
 * tokenizer.json is read by load.c; its two large tables (vocab, merges) are read straight from the text by scan.c. What
 * came of it is kept as an image (image.c), which open.c maps at the next start.
 * Lifetimes: everything below `struct tokenizer` lives in its arena or is freed by tokenizer_close; scratch belongs to
 * one encode. Threads: a tokenizer is read-only once it is open.
 */
#ifndef TOKENIZER_TOKENIZER_INT_H
#define TOKENIZER_TOKENIZER_INT_H

#include "base/filemap.h"
#include "base/json.h"
#include "tokenizer/tokenizer.h"

#define TOKENIZER_MAX_TEXT ((size_t)1 << 30)       /* bytes of one encode, also after normalisation */
#define TOKENIZER_MAX_ID ((int32_t)1 << 22)        /* ids must be below */
#define TOKENIZER_MAX_FILE ((size_t)512 << 20)     /* bytes of tokenizer.json */
#define TOKENIZER_MAX_ADDED_LEN 1024               /* bytes of one added token: bounds the work per input byte */
#define TOKENIZER_MAX_PIECE 4096                   /* bytes of a piece of a Unigram or WordPiece vocabulary: likewise */
#define TOKENIZER_MAX_NODES ((size_t)1 << 25)      /* of the trie of their pieces */
#define TOKENIZER_MAX_STEPS 256                    /* steps of one section, nested sequences flattened */

/* --- unicode.c: character classes as Rust's standard library and the `tokenizers` library define them --- */
bool uni_is_space(uint32_t cp);       /* White_Space */
bool uni_is_numeric(uint32_t cp);     /* Nd Nl No */
bool uni_is_punct(uint32_t cp);       /* ASCII punctuation or P* */
bool uni_is_mark(uint32_t cp);        /* Mn Mc Me */
bool uni_is_mark_nonspacing(uint32_t cp);
bool uni_is_other(uint32_t cp);       /* C* */
bool uni_is_word(uint32_t cp);        /* \w of Rust's regex */
bool uni_is_cjk(uint32_t cp);         /* the ideograph blocks of BertNormalizer */
/* The byte-level alphabet: one printable character a byte. */
uint32_t byte_to_char(uint8_t b);
int char_to_byte(uint32_t cp);        /* -1: not of the alphabet */
/* "\uXXXX" style text mapped back to bytes: false when a character is not of the alphabet. out has room for len. */
bool bytes_of_alphabet(const char *s, size_t len, uint8_t *out, size_t *n_out);
/* Characters before/after a position of valid UTF-8. */
uint32_t utf8_next(const char *s, size_t len, size_t *pos);
uint32_t utf8_last(const char *s, size_t len, size_t *first);

/* --- text with its origin (normalize.c) --- */
/* A text under work. ends[i]: original byte just behind what byte i came from (inserted bytes: that of the byte
 * before); NULL: byte i is original byte base + i. */
struct mtext {
    const char *s;
    size_t n;
    const uint32_t *ends;
    size_t base;
};
static inline size_t mtext_end(const struct mtext *x, size_t i)
{
    return x->ends ? x->ends[i] : x->base + i + 1;
}
/* Original byte where byte i begins. */
static inline size_t mtext_first(const struct mtext *x, size_t i)
{
    if (!x->ends) return x->base + i;
    return i ? x->ends[i - 1] : x->base;
}
/* A growing mtext. */
struct mbuf {
    char *s;
    uint32_t *ends; /* kept only when want_ends */
    size_t n, cap;
    size_t limit;
    size_t base;    /* original byte where the first byte's origin begins */
    bool want_ends;
    mb_status failed;
};
void mbuf_free(struct mbuf *b);
void mbuf_reset(struct mbuf *b, size_t limit, bool want_ends);
void mbuf_put(struct mbuf *b, const char *s, size_t n, size_t first, size_t end); /* all made of [first, end) */
void mbuf_copy(struct mbuf *b, const struct mtext *src, size_t first, size_t end); /* bytes keep their origin */
struct mtext mbuf_view(const struct mbuf *b);
mb_status mbuf_status(const struct mbuf *b, mb_error *err);

/* --- scan.c: the large tables of tokenizer.json --- */
struct scan_parts {
    struct str vocab, merges; /* raw JSON text of model.vocab and model.merges; ptr NULL when absent */
};
/* Copy json to rest with both tables replaced by null, and say where they are. */
mb_status scan_split(const char *json, size_t len, struct scan_parts *parts, struct buf *rest, mb_error *err);

struct vocab;
mb_status scan_vocab(struct str json, struct vocab *v, mb_error *err);
/* Calls piece(ctx, text, score) for each [text, score] of a list, in order. */
typedef mb_status (*scan_piece_fn)(void *ctx, struct str text, double score, mb_error *err);
mb_status scan_pieces(struct str json, scan_piece_fn piece, void *ctx, mb_error *err);
/* Calls merge(ctx, i, left, right) for each entry of either form. */
typedef mb_status (*scan_merge_fn)(void *ctx, uint32_t i, struct str left, struct str right, mb_error *err);
mb_status scan_merges(struct str json, scan_merge_fn merge, void *ctx, mb_error *err);

/* --- vocab.c: pieces by id and ids by piece --- */
struct vocab_entry {
    uint32_t off;
    uint32_t len_1; /* length + 1; 0: no such id */
};
struct vocab_slot {
    uint32_t hash; /* of the text: most other texts are told apart without looking at them */
    int32_t id;    /* -1 empty */
};
struct vocab {
    struct buf blob;           /* texts, one behind the other, each with a NUL */
    struct vocab_entry *at;    /* [cap_ids] by id */
    int32_t n_ids, cap_ids;    /* n_ids: last id + 1 */
    struct vocab_slot *slots;  /* [n_slots] open addressing */
    uint32_t n_slots, n_used;
    uint32_t max_len;
};
void vocab_init(struct vocab *v);
void vocab_free(struct vocab *v);
/* A piece known already gets the new id (last wins). */
mb_status vocab_put(struct vocab *v, const char *s, size_t len, int32_t id, mb_error *err);
/* The next id, for a list of pieces: a text known already is found under the new id and keeps its old one too. */
mb_status vocab_append(struct vocab *v, const char *s, size_t len, mb_error *err);
int32_t vocab_find(const struct vocab *v, const char *s, size_t len);      /* -1 */
const char *vocab_text(const struct vocab *v, int32_t id, size_t *len);    /* NULL */
uint32_t text_hash(const char *s, size_t len);
/* vocab_find in steps for many texts at once: each step brings the memory of the next one into the cache. */
int32_t vocab_find_hashed(const struct vocab *v, uint32_t hash, const char *s, size_t len);
void vocab_prefetch(const struct vocab *v, uint32_t hash, int step); /* step 0, 1, 2 */

/* --- regex.c, regex_translate.c --- */
struct regex; /* opaque: compiled, immutable */
struct regex_scratch {
    void *match_data, *match_ctx, *jit_stack; /* of PCRE2, made on first use */
};
mb_status regex_open(struct regex **out, const char *pattern, size_t len, mb_error *err);
void regex_close(struct regex *r);
void regex_scratch_free(struct regex_scratch *s);
/* First match at or behind `start`. *found false: none. */
mb_status regex_find(const struct regex *r, struct regex_scratch *s, const char *text, size_t len, size_t start,
                     bool *found, size_t *first, size_t *end, mb_error *err);
/* Rewrite a pattern of Oniguruma (Ruby syntax) for PCRE2. */
mb_status regex_translate(struct buf *out, const char *pattern, size_t len, mb_error *err);

/* --- scanner.c: known split patterns, by hand --- */
struct scanner; /* a row of a table */
const struct scanner *scanner_find(const char *pattern, size_t len); /* by the exact text; NULL: not known */
const char *scanner_pattern(size_t i);                               /* pattern of row i, NULL behind the last (tests) */
/* End of the piece that begins at `at` < len. Pieces follow each other without gaps. */
size_t scanner_next(const struct scanner *r, const char *s, size_t len, size_t at);

/* A pattern of tokenizer.json: {"String": s} or {"Regex": r}. */
struct pattern {
    struct str literal;    /* when regex is NULL; never empty */
    struct regex *regex;   /* owned */
};
mb_status pattern_find(const struct pattern *p, struct regex_scratch *s, const char *text, size_t len, size_t start,
                       bool *found, size_t *first, size_t *end, mb_error *err);

/* Walks all matches of a text: non-overlapping, an empty match right behind the last match is not taken. */
struct match_iter {
    const struct pattern *p;
    const char *text;
    size_t len, pos, last_end;
    bool any;
};
mb_status match_next(struct match_iter *it, struct regex_scratch *s, bool *found, size_t *first, size_t *end,
                     mb_error *err);

/* --- normalize.c --- */
enum norm_kind {
    NORM_NFC, NORM_NFD, NORM_NFKC, NORM_NFKD, NORM_LOWERCASE, NORM_STRIP, NORM_STRIP_ACCENTS, NORM_STRIP_NONSPACING,
    NORM_REPLACE, NORM_PREPEND, NORM_NMT, NORM_BERT_CLEAN, NORM_BERT_CJK, NORM_BYTE_LEVEL, NORM_CHARSMAP
};
/* --- charsmap.c: SentencePiece's compiled map of characters (normaliser Precompiled) --- */
struct charsmap {
    const uint32_t *units;  /* [n_units] of a double array (arena) */
    size_t n_units;
    struct str texts;       /* what characters become, each with a NUL behind it (arena) */
    bool plain[128];        /* ASCII that stays as it is */
};
mb_status charsmap_load(struct charsmap *m, struct arena *mem, const char *base64, size_t len, mb_error *err);
bool charsmap_run(const struct charsmap *m, const struct mtext *x, struct mbuf *out); /* false: nothing to do */

struct norm_step {
    enum norm_kind kind;
    bool left, right;       /* NORM_STRIP */
    struct pattern pattern; /* NORM_REPLACE */
    struct str content;     /* NORM_REPLACE, NORM_PREPEND */
    const struct charsmap *charsmap; /* NORM_CHARSMAP (arena) */
};
struct norm_list {
    struct norm_step *steps;
    size_t n;
};
mb_status norm_load(struct norm_list *l, struct arena *mem, const json_t *j, mb_error *err);
void norm_free(struct norm_list *l);
/* Runs all steps on src; *out views one of the two buffers, or src itself when nothing changed. */
mb_status norm_run(const struct norm_list *l, struct regex_scratch *s, const struct mtext *src, struct mbuf tmp[2],
                   struct mtext *out, mb_error *err);
/* One of the four normal forms, appended to out (nfc.c). false: nothing to do, out untouched. */
bool nf_run(enum norm_kind kind, const struct mtext *src, struct mbuf *out);

/* --- pretok.c --- */
enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_MERGED_PREVIOUS, SPLIT_MERGED_NEXT, SPLIT_CONTIGUOUS };
enum pretok_kind { PRETOK_PATTERN, PRETOK_CLASS, PRETOK_WORDS, PRETOK_METASPACE, PRETOK_PREFIX_SPACE, PRETOK_BYTE_MAP,
                   PRETOK_LENGTH };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };
struct pretok_step {
    enum pretok_kind kind;
    enum split_behavior behavior;
    bool invert;
    struct pattern pattern;           /* PRETOK_PATTERN */
    const struct scanner *scanner;    /* instead of pattern: every stretch of it is a piece */
    bool (*in_class)(uint32_t cp);    /* PRETOK_CLASS */
    uint64_t ascii_class[2];          /* the same for ASCII, a bit a character */
    struct str replacement;           /* PRETOK_METASPACE: one character */
    enum prepend_scheme scheme;
    bool split;
    size_t n_chars;                   /* PRETOK_LENGTH */
};
struct pretok_list {
    struct pretok_step *steps;
    size_t n;
    bool needs_origin; /* a step asks where a piece came from (Metaspace "first") */
};
struct piece {
    uint32_t off, len;
};
struct piece_list {
    struct piece *at;
    size_t n, cap;
};
struct pretok_scratch {
    struct regex_scratch regex;
    struct piece_list lists[2];
    struct mbuf texts[2];
};
mb_status pretok_load(struct pretok_list *l, struct arena *mem, const json_t *j, mb_error *err);
/* Is the list at most a class that cuts and a scanner? Then its pieces come one by one, without a list. */
struct pretok_stream {
    const struct pretok_step *digits; /* NULL: none */
    const struct scanner *scanner;
    const char *s;
    size_t n, at, region_end;
};
bool pretok_stream_init(struct pretok_stream *w, const struct pretok_list *l, const struct mtext *x);
bool pretok_stream_next(struct pretok_stream *w, struct piece *out);
/* If the list ends in its only byte map, drop that step: BPE then works on plain bytes. */
bool pretok_take_byte_map(struct pretok_list *l);
void pretok_free(struct pretok_list *l);
void pretok_scratch_free(struct pretok_scratch *s);
/* Cut src; *out_text is the text the pieces point into, *out the pieces (owned by s, valid until the next run). */
mb_status pretok_run(const struct pretok_list *l, struct pretok_scratch *s, const struct mtext *src,
                     struct mtext *out_text, const struct piece_list **out, mb_error *err);
/* Shared readers of tokenizer.json (load_step.c). */
mb_status step_bad(mb_error *err, const char *section, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
mb_status step_type(const json_t *j, const char *section, const char **type, mb_error *err);
mb_status step_bool(const json_t *j, const char *section, const char *key, bool dflt, bool *out, mb_error *err);
mb_status step_str(const json_t *j, const char *section, const char *key, struct arena *mem, struct str *out,
                   mb_error *err); /* missing or null: ptr NULL */
mb_status step_size(const json_t *j, const char *section, const char *key, size_t dflt, size_t *out, mb_error *err);
mb_status step_pattern(const json_t *j, const char *section, struct arena *mem, struct pattern *out, mb_error *err);
mb_status step_scheme(const json_t *j, const char *section, enum prepend_scheme *out, mb_error *err);
/* Calls one(ctx, step) for j, or for each element of a (nested) Sequence whose list is under `key`. */
typedef mb_status (*step_fn)(void *ctx, const json_t *step, const char *type, mb_error *err);
mb_status step_walk(const json_t *j, const char *section, const char *key, step_fn one, void *ctx, mb_error *err);

/* --- added.c --- */
enum { ADDED_SINGLE_WORD = 1, ADDED_LSTRIP = 2, ADDED_RSTRIP = 4, ADDED_NORMALIZED = 8, ADDED_SPECIAL = 16 };
struct added_token {
    struct str text;     /* as the file spells it */
    struct str pattern;  /* what is looked for: normalised when ADDED_NORMALIZED */
    int32_t id;
    unsigned flags;
};
struct trie {
    uint32_t *keys;   /* [n_slots] (node << 8 | byte) + 1, 0 = empty */
    uint32_t *nodes;  /* [n_slots] the child */
    int32_t *tokens;  /* [cap_nodes] token that ends here, -1 none */
    uint32_t n_slots, n_nodes, cap_nodes;
    bool first[256];  /* bytes that may begin a token */
};
struct added_set {
    struct added_token *items;
    size_t n, cap;
    struct trie raw, normalized;
};
struct added_match {
    const struct added_token *token;
    size_t first, end; /* bytes of the text that was searched */
};
void added_free(struct added_set *s);
/* Build the tries; patterns are set. */
mb_status added_build(struct added_set *s, mb_error *err);
/* Next match of text[*pos..]; *prev_end: end of the last one taken (lstrip stops there). Spans: see tokenizer.h. */
bool added_next(const struct added_set *s, const struct trie *trie, const struct mtext *x,
                const struct encode_opts *opts, size_t *pos, size_t prev_end, struct added_match *m);

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

/* --- post.c --- */
struct post {
    int32_t *before, *after; /* ids around the text (arena) */
    size_t n_before, n_after;
};
mb_status post_load(struct post *p, struct arena *mem, const json_t *j, mb_error *err);

/* --- decode.c --- */
enum dec_kind { DEC_BYTE_LEVEL, DEC_BYTE_FALLBACK, DEC_METASPACE, DEC_STRIP, DEC_REPLACE, DEC_WORDPIECE, DEC_BPE,
                DEC_CTC, DEC_JOIN };
struct dec_step {
    enum dec_kind kind;
    struct pattern pattern;     /* DEC_REPLACE; CTC: the word delimiter */
    struct str text;            /* content, prefix, suffix, replacement character; CTC: the pad token */
    size_t start, stop;         /* DEC_STRIP */
    bool flag;                  /* METASPACE: drop it in the first token; WORDPIECE, CTC: cleanup */
};
struct decoder {
    struct dec_step *steps;     /* per token */
    size_t n;
    bool byte_level, fused;
    bool hold;                  /* what an id adds depends on the id behind it (BPEDecoder, CTC) */
    struct dec_step lead;       /* a Strip behind a Fuse: text empty when there is none */
};
mb_status dec_load(struct decoder *d, struct arena *mem, const json_t *j, mb_error *err);
void dec_free(struct decoder *d);
/* Appends the bytes of token `id`, before they are joined to characters and before the Strip of the whole text. */
void dec_token(const struct tokenizer *t, int32_t id, bool first, bool last, struct buf *b);

enum { ID_MODEL = 1, ID_ADDED = 2, ID_SPECIAL = 4, ID_MERGED = 8 };
struct tokenizer {
    struct arena mem;
    struct vocab vocab;        /* of the model */
    struct vocab added_vocab;  /* of the added tokens */
    struct added_set added;
    struct norm_list norm;
    struct pretok_list pretok;
    enum model_kind model;
    struct bpe bpe;            /* MODEL_BPE */
    struct piece_trie pieces;  /* MODEL_UNIGRAM, MODEL_WORDPIECE */
    struct unigram unigram;
    struct wordpiece wordpiece;
    struct post post;
    struct decoder decoder;
    uint8_t *id_flags;         /* [n_vocab] */
    int32_t n_vocab;
    int32_t bos_id, eos_id;
    const char *bos_text, *eos_text;
    struct str config;         /* tokenizer_config.json but its added tokens, as text */
    size_t max_bytes;          /* of a text, that one token can stand for; 0: unbounded */
    struct filemap image;      /* when it was mapped: the large tables lie in there (image.c) */
};

/* --- load.c, load_added.c --- */
struct tokenizer *tokenizer_new(void); /* empty; NULL: no memory */
void tokenizer_finish(struct tokenizer *t); /* all tables are there: what follows from them */
/* tokenizer_parse that also keeps what image_write wants beside the tables; sections may be NULL. */
mb_status tokenizer_parse_keep(struct tokenizer **out, const char *json, size_t len, const char *config_json,
                               size_t config_len, struct buf *sections, mb_error *err);
/* All sections but vocab, merges and added tokens; the vocabulary is there, and the kind of model known. */
mb_status load_sections(struct tokenizer *t, const json_t *root, mb_error *err);
mb_status load_added(struct tokenizer *t, const json_t *list, mb_error *err);
mb_status load_added_decoder(struct tokenizer *t, const json_t *config, mb_error *err);
mb_status load_added_patterns(struct tokenizer *t, mb_error *err);

/* --- image.c, image_check.c: a tokenizer as one file that the next start maps --- */
/* key says what the tables were made of; an image with another one is not opened. */
mb_status image_write(const struct tokenizer *t, struct str sections, const char *path, uint64_t key, mb_error *err);
/* MB_NOT_FOUND: no file. MB_BAD_FORMAT: another key, another version or damaged. The caller parses then. */
mb_status image_open(struct tokenizer **out, const char *path, uint64_t key, mb_error *err);
void image_release(struct tokenizer *t); /* let go of what lies in the map; nothing without one */
/* Every index and length of the tables, so that whatever the file holds, no reader leaves them. image_check_bytes is
 * shown all bytes of the image once, in order, in parts. */
struct vocab_sums {
    bool bad, has_empty;
};
struct image_check {
    const struct tokenizer *t; /* its tables lie in the image */
    struct vocab_sums vocab;
    bool merges_bad, merges_have_empty, words_bad, words_have_empty, shorts_bad, shorts_have_empty;
};
void image_check_begin(struct image_check *c, const struct tokenizer *t);
void image_check_bytes(struct image_check *c, const uint8_t *first, const uint8_t *end);
bool image_is_sound(const struct image_check *c); /* all were shown */

#endif
