/* words.h: the hot half of words.c, inline: a word's key, and the look-up in the table of one-token words. */
#ifndef TOKENIZER_WORDS_H
#define TOKENIZER_WORDS_H

#include <string.h>

#include "tokenizer/tokenizer_int.h"

static inline uint64_t word_low_bytes(uint64_t v, size_t n)
{
    return n >= 8 ? v : v & (((uint64_t)1 << (8 * n)) - 1);
}

static inline void word_key_hash(struct word_key *k)
{
    uint64_t h = (k->w[0] ^ (k->w[1] << 21 | k->w[1] >> 43)) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32 ^ k->w[2] ^ (uint64_t)k->tail << 13) * 0xC4CEB9FE1A85EC53u;
    k->hash = (uint32_t)(h >> 32);
}

/* Key of the word text[0, len), len from 1 to WORD_BYTES, in a text that goes on for `room` bytes from there. */
static inline void word_key_set(struct word_key *k, const char *text, size_t len, size_t room)
{
    uint64_t w[4] = { 0, 0, 0, 0 };
    if (room < sizeof w) {
        memcpy(w, text, len);
    } else { /* read on behind the word, then drop what is not of it */
        memcpy(&w[0], text, 8);
        if (len <= 8) {
            w[0] = word_low_bytes(w[0], len);
        } else {
            memcpy(&w[1], text + 8, 24);
            w[1] = word_low_bytes(w[1], len - 8);
            w[2] = len > 16 ? word_low_bytes(w[2], len - 16) : 0;
            w[3] = len > 24 ? word_low_bytes(w[3], len - 24) : 0;
        }
    }
    memcpy(k->w, w, sizeof k->w);
    k->tail = (uint32_t)w[3] | (uint32_t)len << 24;
    word_key_hash(k);
}

static inline uint32_t word_first_entry(uint32_t n, const struct word_key *k)
{
    return (uint32_t)((uint64_t)k->hash * n >> 32);
}

static inline bool word_is_short(const struct word_key *k)
{
    return k->tail >> 24 <= WORD_SHORT_BYTES;
}

static inline uint32_t word_short_tail(const struct word_key *k)
{
    return (uint32_t)k->w[1] | k->tail; /* what is behind eight bytes is in w[1]; of tail only the length is not zero */
}

/* The word's one token; -1: it has several, or is not in the table. */
static inline int32_t word_table_find(const struct word_table *t, const struct word_key *k)
{
    uint32_t n = word_is_short(k) ? t->n_shorts : t->n;
    if (!n) return -1;
    if (word_is_short(k)) {
        uint32_t tail = word_short_tail(k);
        for (uint32_t i = word_first_entry(n, k);; i = i + 1 < n ? i + 1 : 0) {
            const struct word_short *e = &t->shorts[i];
            if (e->tail == tail && e->w == k->w[0]) return e->id;
            if (!e->tail) return -1;
        }
    }
    for (uint32_t i = word_first_entry(n, k);; i = i + 1 < n ? i + 1 : 0) {
        const struct word_entry *e = &t->at[i];
        if (e->tail == k->tail && e->w[0] == k->w[0] && e->w[1] == k->w[1] && e->w[2] == k->w[2]) return e->id;
        if (!e->tail) return -1;
    }
}

/* The token of a piece that is one known word; -1: bpe_encode has to look. */
static inline int32_t word_known(const struct word_table *t, const struct mtext *x, struct piece p)
{
    struct word_key key;
    if (p.len > WORD_BYTES) return -1;
    word_key_set(&key, x->s + p.off, p.len, x->n - p.off);
    return word_table_find(t, &key);
}

#endif
