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
#include "tokenizer/models_int.h"
#include "tokenizer/steps_int.h"
#include "tokenizer/text_int.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab_int.h"

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
