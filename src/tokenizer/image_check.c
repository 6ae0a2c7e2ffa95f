/* image_check.c: are the tables of an image such that no reader of them leaves their memory or turns in circles?
 *
 * Checked: every offset and id lies inside, every hash table has an empty slot and a size its readers can mask with. Not
 * checked: whether the answers are right; that is what the checksum is for.
 */
#include "tokenizer/tokenizer_int.h"

static bool is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static bool vocab_is_sound(const struct vocab *v)
{
    bool bad = false, empty = false;
    for (int32_t i = 0; i < v->n_ids; i++) {
        const struct vocab_entry *e = &v->at[i];
        bad |= e->len_1 && (uint64_t)e->off + e->len_1 > v->blob.len;
        bad |= e->len_1 > v->max_len + 1u;
    }
    if (v->n_slots == 0) return !bad && v->n_ids == 0;
    for (uint32_t i = 0; i < v->n_slots; i++) {
        bad |= v->slots[i].id >= v->n_ids || v->slots[i].id < -1;
        empty |= v->slots[i].id < 0;
    }
    return !bad && empty && v->max_len < UINT32_MAX / 4 && is_power_of_two(v->n_slots);
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

static bool bpe_is_sound(const struct bpe *b, int32_t n_ids)
{
    bool bad = false, empty = false;
    if (!is_power_of_two(b->n_slots)) return false;
    for (uint32_t i = 0; i < b->n_slots; i++) {
        const struct merge_slot *m = &b->slots[i];
        empty |= m->left < 0;
        bad |= m->left >= 0 && ((uint32_t)m->id >= (uint32_t)n_ids);
    }
    if (bad || !empty) return false;
    empty = b->words.n == 0;
    for (uint32_t i = 0; i < b->words.n; i++) {
        const struct word_entry *e = &b->words.at[i];
        empty |= !e->tail;
        bad |= e->tail && (uint32_t)e->id >= (uint32_t)n_ids;
    }
    return !bad && empty;
}

bool image_is_sound(const struct tokenizer *t)
{
    if (t->n_vocab > TOKENIZER_MAX_ID || t->n_vocab < t->vocab.n_ids || t->n_vocab < t->added_vocab.n_ids) return false;
    if (t->bos_id >= t->n_vocab || t->eos_id >= t->n_vocab) return false;
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.items[i];
        if ((uint32_t)a->id >= (uint32_t)t->n_vocab || a->pattern.len > TOKENIZER_MAX_ADDED_LEN) return false;
    }
    return vocab_is_sound(&t->vocab) && vocab_is_sound(&t->added_vocab) && trie_is_sound(&t->added.raw, t->added.n) &&
           trie_is_sound(&t->added.normalized, t->added.n) && bpe_is_sound(&t->bpe, t->vocab.n_ids);
}
