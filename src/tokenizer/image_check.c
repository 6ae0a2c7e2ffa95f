/* image_check.c: are the tables of an image such that no reader of them leaves their memory or turns in circles?
 *
 * Checked: every offset and id lies inside, every hash table has an empty slot and a size its readers can mask with. Not
 * checked: whether the answers are right; that is what the checksum is for.
 * The large tables, tens of megabytes, are looked at block by block, right behind the checksum of the same block,
 * while it is in the cache: what a start costs is mostly the one way through memory. No branches in those loops, one
 * verdict at the end.
 */
#include "tokenizer/tokenizer_int.h"

static bool is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* --- tables that are looked at in parts: signs of differences, gathered --- */

static void look_at_entries(const struct vocab *v, struct vocab_sums *c, const struct vocab_entry *at, size_t n)
{
    uint64_t n_blob = v->blob.len, longest_1 = (uint64_t)v->max_len + 1, bad = 0;
    for (size_t i = 0; i < n; i++) bad |= (n_blob - at[i].off - at[i].len_1) | (longest_1 - at[i].len_1);
    c->bad |= bad >> 63 != 0;
}

static void look_at_slots(const struct vocab *v, struct vocab_sums *c, const struct vocab_slot *slots, size_t n)
{
    uint32_t most = (uint32_t)v->n_ids - 1, bad = 0, any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)slots[i].id;
        any |= id;
        bad |= (id + 1) | (most - id); /* -1 .. most */
    }
    c->bad |= bad >> 31 != 0;
    c->has_empty |= any >> 31 != 0;
}

static void look_at_merges(struct image_check *c, const struct merge_slot *m, size_t n)
{
    uint64_t n_merges = c->t->bpe.n_merges, bad = 0;
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        any |= (uint32_t)m[i].left;
        bad |= (uint64_t)(uint32_t)~m[i].left << 32 & (n_merges - 1 - m[i].rank); /* the sign, where left is not negative */
    }
    c->merges_bad |= bad >> 63 != 0;
    c->merges_have_empty |= any >> 31 != 0;
}

static void look_at_words(struct image_check *c, const struct word_entry *e, size_t n)
{
    uint32_t most = (uint32_t)c->t->vocab.n_ids - 1, bad = 0;
    bool empty = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)e[i].id, used = 0u - (uint32_t)(e[i].tail != 0);
        empty |= !e[i].tail;
        bad |= used & (id | (most - id));
    }
    c->words_bad |= bad >> 31 != 0;
    c->words_have_empty |= empty;
}

static void look_at_short_words(struct image_check *c, const struct word_short *e, size_t n)
{
    uint32_t most = (uint32_t)c->t->vocab.n_ids - 1, bad = 0;
    bool empty = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)e[i].id, used = 0u - (uint32_t)(e[i].tail != 0);
        empty |= !e[i].tail;
        bad |= used & (id | (most - id));
    }
    c->shorts_bad |= bad >> 31 != 0;
    c->shorts_have_empty |= empty;
}

void image_check_begin(struct image_check *c, const struct tokenizer *t)
{
    *c = (struct image_check){ .t = t };
}

/* The elements of a table that end in the part of the file that ends at `end`, and not before `first`. */
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
    if ((n = part_of(v->at, (size_t)v->n_ids, sizeof *v->at, first, end, &from))) look_at_entries(v, &c->vocab, v->at + from, n);
    if ((n = part_of(v->slots, v->n_slots, sizeof *v->slots, first, end, &from))) look_at_slots(v, &c->vocab, v->slots + from, n);
    if ((n = part_of(t->bpe.slots, t->bpe.n_slots, sizeof *t->bpe.slots, first, end, &from))) look_at_merges(c, t->bpe.slots + from, n);
    if ((n = part_of(t->bpe.words.at, t->bpe.words.n, sizeof *t->bpe.words.at, first, end, &from)))
        look_at_words(c, t->bpe.words.at + from, n);
    if ((n = part_of(t->bpe.words.shorts, t->bpe.words.n_shorts, sizeof *t->bpe.words.shorts, first, end, &from)))
        look_at_short_words(c, t->bpe.words.shorts + from, n);
}

/* --- verdicts --- */

static bool vocab_is_sound(const struct vocab *v, const struct vocab_sums *c)
{
    if (c->bad || v->max_len >= UINT32_MAX / 4 || v->blob.len > TOKENIZER_MAX_FILE) return false;
    if (v->n_slots == 0) return v->n_ids == 0;
    return is_power_of_two(v->n_slots) && c->has_empty;
}

static bool added_vocab_is_sound(const struct vocab *v)
{
    struct vocab_sums c = { 0 };
    look_at_entries(v, &c, v->at, (size_t)v->n_ids);
    look_at_slots(v, &c, v->slots, v->n_slots);
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
    const struct bpe *b = &c->t->bpe;
    bool bad = false;
    for (uint32_t i = 0; i < b->n_merges; i++) bad |= (uint32_t)b->merge_ids[i] >= (uint32_t)c->t->vocab.n_ids;
    return !bad && !c->merges_bad && c->merges_have_empty;
}

static bool words_are_sound(const struct image_check *c)
{
    const struct word_table *t = &c->t->bpe.words;
    return !c->words_bad && !c->shorts_bad && (t->n == 0 || c->words_have_empty) && (t->n_shorts == 0 || c->shorts_have_empty);
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
