/* text_int.h: characters, texts that know where they came from, and the patterns that are looked for in them. Files of this folder
 * include tokenizer_int.h, which includes it. */
#ifndef TOKENIZER_TEXT_INT_H
#define TOKENIZER_TEXT_INT_H

#include "base/buf.h"
#include "base/status.h"

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

#endif
