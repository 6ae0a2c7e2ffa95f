/* tokenizer.h: Hugging Face tokenizer.json, text <-> token ids.
 *
 * Models: BPE (byte-level and byte-fallback), Unigram, WordPiece, WordLevel. All normalisers, post-processors and decoders
 * of the format, all pre-tokenisers but UnicodeScripts, which is refused by name. Worst case linear (up to a log) in the text; no
 * recursion on input; one tokenizer is shared by any number of threads (each encode brings its own scratch).
 * Oracle: the `tokenizers` library; goldens in tests/golden/tokenizer/.
 */
#ifndef TOKENIZER_TOKENIZER_H
#define TOKENIZER_TOKENIZER_H

#include "base/buf.h"
#include "base/mem.h"

struct tokenizer; /* opaque */

/* Read <dir>/tokenizer.json (and tokenizer_config.json for bos/eos/pad names, added_tokens_decoder flags).
 * MB_NOT_FOUND, MB_BAD_FORMAT (path of the key), MB_UNSUPPORTED (names the model or step), MB_NO_MEMORY. */
mb_status tokenizer_open(struct tokenizer **out, const char *dir, mb_error *err);
/* The same through a cache below cache_dir (NULL or "": none): tables made once are mapped at the next start, in a few
 * milliseconds, as long as the files are unchanged. Anything wrong with the cache means that the files are parsed. */
mb_status tokenizer_open_cached(struct tokenizer **out, const char *dir, const char *cache_dir, mb_error *err);
/* From memory: the text of tokenizer.json; config_json may be NULL. What the fuzzer drives. */
mb_status tokenizer_parse(struct tokenizer **out, const char *json, size_t len, const char *config_json,
                          size_t config_len, mb_error *err);
void tokenizer_close(struct tokenizer *t);

struct token_list {
    int32_t *ids;   /* owned by the arena that was passed */
    size_t n;
    size_t *ends;   /* byte in the input just behind token i (of the original text, before normalisation);
                       NULL unless asked for. Special tokens of the post-processor have the end of their neighbour. */
    bool over_limit; /* MB_TOO_LARGE was answered because of encode_opts.max_tokens */
};

/* A byte range of the input that a user wrote: a match of an added token with `special: true` that overlaps one of
 * these bytes is not taken (design.md section 6, B-008). Sorted, disjoint. */
struct text_span {
    size_t first, end; /* half-open, bytes */
};

struct encode_opts {
    bool add_special_tokens;        /* run the post-processor's template (bos, eos ...) */
    bool want_ends;
    const struct text_span *content; /* NULL: the whole text is trusted (template text) */
    size_t n_content;
    size_t max_tokens; /* 0: no limit. A text of more is refused (MB_TOO_LARGE) as soon as that is certain */
};

/* Encode UTF-8 text of len bytes. Ids and ends live in `a`. MB_INVALID (not UTF-8: byte offset), MB_NO_MEMORY,
 * MB_TOO_LARGE (the arena's ceiling). Any thread. */
mb_status tokenizer_encode(const struct tokenizer *t, struct arena *a, const char *text, size_t len,
                           const struct encode_opts *opts, struct token_list *out, mb_error *err);
/* Decode ids to text as the `decoder` section says, appended to b. Unknown ids are skipped. */
mb_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *b,
                           mb_error *err);

int32_t tokenizer_n_vocab(const struct tokenizer *t);            /* last id + 1, added tokens included */
/* The raw vocabulary piece ("\u2581Hello", "\u0120the"); NULL for an id without one. Owned by the tokenizer. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, size_t *len);
int32_t tokenizer_id(const struct tokenizer *t, const char *piece, size_t len); /* -1 when absent */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
bool tokenizer_is_added(const struct tokenizer *t, int32_t id);
/* The bytes this id adds to a running text, before any cleanup: byte-level map and byte fallback applied, added tokens
 * their own text (B-004). first: it stands at the very beginning (a decoder may strip a space there). Appends to b. */
void tokenizer_token_bytes(const struct tokenizer *t, int32_t id, bool first, struct buf *b);
/* Ids from tokenizer_config.json; -1 when there is none. */
int32_t tokenizer_bos_id(const struct tokenizer *t);
int32_t tokenizer_eos_id(const struct tokenizer *t);
/* Their texts, for the chat template; "" when there is none. */
const char *tokenizer_bos_text(const struct tokenizer *t);
const char *tokenizer_eos_text(const struct tokenizer *t);

/* tokenizer_config.json without added_tokens_decoder, which is nearly all of it, as JSON text; "" when there is no such
 * file. Owned by the tokenizer. */
const char *tokenizer_config_text(const struct tokenizer *t, size_t *len);

/* --- streaming detokeniser: never emits half a character --- */
struct detok {
    const struct tokenizer *t;
    struct buf pending; /* bytes that are not yet whole characters, or that the decoder may still change */
    bool at_start;
    bool skip_special;
    int32_t held;       /* id that waits for the one behind it (BPEDecoder, CTC); -1 none */
    size_t n_lead;      /* characters that the decoder may still strip at the beginning of the text */
};
void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special);
void detok_free(struct detok *d);
/* Feed one id; text that is now certain is appended to out. */
void detok_push(struct detok *d, int32_t id, struct buf *out);
/* The end: torn bytes become one U+FFFD per maximal ill-formed run (B-040). */
void detok_finish(struct detok *d, struct buf *out);

#endif
