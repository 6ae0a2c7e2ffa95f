/* image_check.c: are the tables of an image such that no reader of them leaves their memory or turns in circles?
 *
 * Checked: every offset and id lies inside, every hash table has an empty slot and a size its readers can mask with. Not
 * checked: whether the answers are right; that is what the checksum is for.
 * The four large tables, tens of megabytes, are looked at block by block, right behind the checksum of the same block,
 * while it is in the cache: what a start costs is mostly the one way through memory. No branches in those loops, one
 * verdict at the end.
 */
#include "tokenizer/tokenizer_int.h"

static bool is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* --- tables that are looked at in parts --- */

static void look_at_entries(struct vocab_sums *c, const struct vocab_entry *at, size_t n)
{
    uint64_t end = c->end;
    uint32_t longest = c->longest;
    for (size_t i = 0; i < n; i++) {
        uint64_t e = at[i].len_1 ? (uint64_t)at[i].off + at[i].len_1 : 0;
        end = e > end ? e : end;
        longest = at[i].len_1 > longest ? at[i].len_1 : longest;
    }
    c->end = end;
    c->longest = longest;
}

static void look_at_slots(struct vocab_sums *c, const struct vocab_slot *slots, size_t n)
{
    int32_t least = c->least, most = c->most;
    for (size_t i = 0; i < n; i++) {
        int32_t id = slots[i].id;
        least = id < least ? id : least;
        most = id > most ? id : most;
    }
    c->least = least;
    c->most = most;
}

static void look_at_merges(struct image_check *c, const struct merge_slot *m, size_t n)
{
    int32_t least = c->merge_least, most = c->merge_most, used_bad = c->merge_bad;
    for (size_t i = 0; i < n; i++) {
        least = m[i].left < least ? m[i].left : least;
        most = m[i].id > most ? m[i].id : most;
        used_bad |= ~m[i].left & m[i].id; /* negative when a used slot has a negative id */
    }
    c->merge_least = least;
    c->merge_most = most;
    c->merge_bad = used_bad;
}

static void look_at_words(struct image_check *c, const struct word_entry *e, size_t n)
{
    int32_t most = c->word_most, used_bad = c->word_bad;
    size_t n_empty = 0;
    for (size_t i = 0; i < n; i++) {
        n_empty += e[i].tail == 0;
        most = e[i].id > most ? e[i].id : most;
        used_bad |= -(int32_t)(e[i].tail != 0) & e[i].id;
    }
    c->word_most = most;
    c->word_bad = used_bad;
    c->n_empty_words += n_empty;
}

void image_check_begin(struct image_check *c, const struct tokenizer *t)
{
    *c = (struct image_check){ .t = t, .vocab = { .most = -1 }, .merge_most = -1, .word_most = -1 };
}

/* The part of a table of n elements at `at` that lies in [first, end): its elements, none across the borders. */
static size_t part_of(const void *at, size_t n, size_t size, const uint8_t *first, const uint8_t *end, size_t *from)
{
    const uint8_t *a = at, *z = a + n * size;
    if (!n || end <= a || first >= z) return 0;
    *from = first > a ? (size_t)(first - a) / size : 0;
    return (end < z ? (size_t)(end - a) / size : n) - *from;
}

void image_check_bytes(struct image_check *c, const uint8_t *first, const uint8_t *end)
{
    const struct tokenizer *t = c->t;
    const struct vocab *v = &t->vocab;
    size_t from = 0, n;
    if ((n = part_of(v->at, (size_t)v->n_ids, sizeof *v->at, first, end, &from))) look_at_entries(&c->vocab, v->at + from, n);
    if ((n = part_of(v->slots, v->n_slots, sizeof *v->slots, first, end, &from))) look_at_slots(&c->vocab, v->slots + from, n);
    if ((n = part_of(t->bpe.slots, t->bpe.n_slots, sizeof *t->bpe.slots, first, end, &from))) look_at_merges(c, t->bpe.slots + from, n);
    if ((n = part_of(t->bpe.words.at, t->bpe.words.n, sizeof *t->bpe.words.at, first, end, &from)))
        look_at_words(c, t->bpe.words.at + from, n);
}

/* --- verdicts --- */

static bool vocab_is_sound(const struct vocab *v, const struct vocab_sums *c)
{
    if (c->end > v->blob.len || c->longest > v->max_len + 1u || v->max_len >= UINT32_MAX / 4) return false;
    if (v->n_slots == 0) return v->n_ids == 0;
    return is_power_of_two(v->n_slots) && c->least == -1 /* one is empty */ && c->most < v->n_ids;
}

static bool added_vocab_is_sound(const struct vocab *v)
{
    struct vocab_sums c = { .most = -1 };
    look_at_entries(&c, v->at, (size_t)v->n_ids);
    look_at_slots(&c, v->slots, v->n_slots);
    return vocab_is_sound(v, &c);
}

static bool trie_is_sound(const struct trie *t, size_t n_tokens)
{
    bool bad = false, empty = false;
    if (t->n_nodes == 0) return true; /* never read */
    if (!is_power_of_two(t->n_slots) || t->n_nodes > 1u << 24) return false;
    for (uint32_t i = 0; i < t->n_slots; i++) {
        bad |= t->nodes[i] >= t->n_nodes;
        empty |= !t->keys[i];
    }
    for (uint32_t i = 0; i < t->n_nodes; i++) bad |= t->tokens[i] < -1 || t->tokens[i] >= (int64_t)n_tokens;
    return !bad && empty;
}

static bool merges_are_sound(const struct image_check *c)
{
    if (c->t->bpe.n_slots == 0) return true; /* never read: model_is_whole */
    return is_power_of_two(c->t->bpe.n_slots) && c->merge_least < 0 && c->merge_most < c->t->vocab.n_ids && c->merge_bad >= 0;
}

static bool words_are_sound(const struct image_check *c)
{
    return (c->t->bpe.words.n == 0 || c->n_empty_words > 0) && c->word_most < c->t->vocab.n_ids && c->word_bad >= 0;
}

/* Children lie behind their parent, so that no walk goes in circles. */
static bool pieces_are_sound(const struct piece_trie *t, int32_t n_ids)
{
    bool bad = false;
    if (t->n == 0) return true;
    for (uint32_t i = 0; i < t->n; i++) {
        bad |= t->first[i] <= i || t->first[i] > t->first[i + 1];
        bad |= t->id[i] < -1 || t->id[i] >= n_ids;
    }
    return !bad && t->first[t->n] == t->n;
}

bool image_is_sound(const struct image_check *c)
{
    const struct tokenizer *t = c->t;
    if (t->n_vocab > TOKENIZER_MAX_ID || t->n_vocab < t->vocab.n_ids || t->n_vocab < t->added_vocab.n_ids) return false;
    if (t->bos_id >= t->n_vocab || t->eos_id >= t->n_vocab) return false;
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.items[i];
        if ((uint32_t)a->id >= (uint32_t)t->n_vocab || a->pattern.len > TOKENIZER_MAX_ADDED_LEN) return false;
    }
    return vocab_is_sound(&t->vocab, &c->vocab) && added_vocab_is_sound(&t->added_vocab) &&
           trie_is_sound(&t->added.raw, t->added.n) && trie_is_sound(&t->added.normalized, t->added.n) && merges_are_sound(c) &&
           words_are_sound(c) && pieces_are_sound(&t->pieces, t->vocab.n_ids) && model_is_whole(t);
}
