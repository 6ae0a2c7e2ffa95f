/* words.c: words whose tokens are known, so that most words of a text never meet a merge.
 *
 * Two tables. word_table belongs to the tokenizer and is read-only: every piece of the vocabulary that byte-pair encoding
 * keeps whole (nearly all of them), half a cache line each, or a quarter; it answers four words of five in ordinary text.
 * word_cache belongs to one encode and remembers short words of several tokens, direct-mapped, a cache line each.
 * The result of a word depends on its bytes alone, so both are memory and nothing else.
 */
#include <string.h>

#include "tokenizer/words.h"

/* --- one-token words --- */

static void *table_of(size_t n_words, size_t size, uint32_t *n_out)
{
    size_t n = n_words + n_words / 2 + 16; /* two thirds full at most */
    void *at = mb_alloc_aligned(64, n * size);
    if (at) memset(at, 0, n * size);
    *n_out = at ? (uint32_t)n : 0;
    return at;
}

mb_status word_table_init(struct word_table *t, size_t n_words, size_t n_shorts, mb_error *err)
{
    t->at = table_of(n_words, sizeof *t->at, &t->n);
    t->shorts = table_of(n_shorts, sizeof *t->shorts, &t->n_shorts);
    if (!t->at || !t->shorts) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the words");
    return MB_OK;
}

void word_table_free(struct word_table *t)
{
    mb_free(t->at);
    mb_free(t->shorts);
    *t = (struct word_table){ 0 };
}

void word_table_put(struct word_table *t, const struct word_key *k, int32_t id)
{
    bool is_short = word_is_short(k);
    uint32_t n = is_short ? t->n_shorts : t->n, i = word_first_entry(n, k);
    while (is_short ? t->shorts[i].tail : t->at[i].tail) i = i + 1 < n ? i + 1 : 0;
    if (is_short) t->shorts[i] = (struct word_short){ k->w[0], word_short_tail(k), id };
    else t->at[i] = (struct word_entry){ { k->w[0], k->w[1], k->w[2] }, k->tail, id };
}

/* --- words of several tokens --- */

void word_cache_init(struct word_cache *c, size_t n_text)
{
    uint32_t n = 64;
    while (n < n_text / 16 && n < 32768) n *= 2;
    c->at = mb_calloc(n, sizeof *c->at); /* without it there is just no cache */
    c->n = c->at ? n : 0;
}

void word_cache_free(struct word_cache *c)
{
    mb_free(c->at);
    *c = (struct word_cache){ 0 };
}

bool word_cache_recall(const struct word_cache *c, const struct word_key *k, const struct mtext *x, size_t off,
                       struct token_out *out)
{
    if (!c->n) return false;
    const struct word_slot *s = &c->at[k->hash & (c->n - 1)];
    if (s->tail != k->tail || s->w[0] != k->w[0] || s->w[1] != k->w[1] || s->w[2] != k->w[2]) return false;
    if (!token_out_room(out, s->n)) return false;
    for (size_t i = 0; i < s->n; i++) {
        out->ids[out->n] = s->ids[i];
        if (out->want_ends) {
            out->rel[out->n] = s->rel[i];
            out->ends[out->n] = mtext_end(x, off + s->rel[i] - 1);
        }
        out->n++;
    }
    return true;
}

void word_cache_keep(struct word_cache *c, const struct word_key *k, const struct token_out *out, size_t n)
{
    if (!c->n || n > WORD_IDS) return;
    struct word_slot *s = &c->at[k->hash & (c->n - 1)];
    memcpy(s->w, k->w, sizeof s->w);
    s->tail = k->tail;
    s->n = (uint8_t)n;
    for (size_t i = 0; i < n; i++) {
        s->ids[i] = out->ids[out->n - n + i];
        s->rel[i] = (uint8_t)(out->want_ends ? out->rel[out->n - n + i] : 0);
    }
}
