/* steps_int.h: what happens to a text before the model sees it: normalisers, pre-tokenisers, added tokens. Files of this folder
 * include tokenizer_int.h, which includes this. */
#ifndef TOKENIZER_STEPS_INT_H
#define TOKENIZER_STEPS_INT_H

#include "base/json.h"
#include "tokenizer/text_int.h"
#include "tokenizer/tokenizer.h"

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

#endif
