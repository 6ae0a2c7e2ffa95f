/* vocab_int.h: the large tables of tokenizer.json, and pieces by id and ids by piece. Files of this folder include tokenizer_int.h,
 * which includes this. */
#ifndef TOKENIZER_VOCAB_INT_H
#define TOKENIZER_VOCAB_INT_H

#include "base/buf.h"
#include "base/status.h"

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

#endif
