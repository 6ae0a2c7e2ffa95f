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

/* The loops below run over tens of megabytes at every start: no branches, one verdict at the end. */

static bool entries_are_sound(const struct vocab *v)
{
    uint64_t end = 0;
    uint32_t longest = 0;
    for (int32_t i = 0; i < v->n_ids; i++) {
        uint64_t e = (uint64_t)v->at[i].off + v->at[i].len_1;
        end = e > end && v->at[i].len_1 ? e : end;
        longest = v->at[i].len_1 > longest ? v->at[i].len_1 : longest;
    }
    return end <= v->blob.len && longest <= v->max_len + 1u && v->max_len < UINT32_MAX / 4;
}

static bool vocab_is_sound(const struct vocab *v)
{
    int32_t least = 0, most = -1;
    if (!entries_are_sound(v)) return false;
    if (v->n_slots == 0) return v->n_ids == 0;
    for (uint32_t i = 0; i < v->n_slots; i++) {
        int32_t id = v->slots[i].id;
        least = id < least ? id : least;
        most = id > most ? id : most;
    }
    return is_power_of_two(v->n_slots) && least == -1 /* one is empty */ && most < v->n_ids;
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

static bool merges_are_sound(const struct bpe *b, int32_t n_ids)
{
    int32_t least = 0, most = -1, used_bad = 0; /* used_bad: negative when a used slot has a negative id */
    if (b->n_slots == 0) return true; /* never read: model_is_whole */
    if (!is_power_of_two(b->n_slots)) return false;
    for (uint32_t i = 0; i < b->n_slots; i++) {
        const struct merge_slot *m = &b->slots[i];
        least = m->left < least ? m->left : least;
        most = m->id > most ? m->id : most;
        used_bad |= ~m->left & m->id;
    }
    return least < 0 && most < n_ids && used_bad >= 0;
}

static bool words_are_sound(const struct word_table *t, int32_t n_ids)
{
    int32_t most = -1, used_bad = 0;
    uint32_t n_empty = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        const struct word_entry *e = &t->at[i];
        n_empty += e->tail == 0;
        most = e->id > most ? e->id : most;
        used_bad |= -(int32_t)(e->tail != 0) & e->id;
    }
    return (t->n == 0 || n_empty > 0) && most < n_ids && used_bad >= 0;
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

bool image_is_sound(const struct tokenizer *t)
{
    if (t->n_vocab > TOKENIZER_MAX_ID || t->n_vocab < t->vocab.n_ids || t->n_vocab < t->added_vocab.n_ids) return false;
    if (t->bos_id >= t->n_vocab || t->eos_id >= t->n_vocab) return false;
    for (size_t i = 0; i < t->added.n; i++) {
        const struct added_token *a = &t->added.items[i];
        if ((uint32_t)a->id >= (uint32_t)t->n_vocab || a->pattern.len > TOKENIZER_MAX_ADDED_LEN) return false;
    }
    return vocab_is_sound(&t->vocab) && vocab_is_sound(&t->added_vocab) && trie_is_sound(&t->added.raw, t->added.n) &&
           trie_is_sound(&t->added.normalized, t->added.n) && merges_are_sound(&t->bpe, t->vocab.n_ids) &&
           words_are_sound(&t->bpe.words, t->vocab.n_ids) && pieces_are_sound(&t->pieces, t->vocab.n_ids) && model_is_whole(t);
}
