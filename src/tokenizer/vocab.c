/* vocab.c: pieces by id and ids by piece.
 *
 * One blob holds all texts; a table by id points into it, an open-addressing table of ids finds them by text. No
 * allocation per entry, so that 262,144 pieces load in a few tens of milliseconds. Freed whole.
 */
#include <string.h>

#include "tokenizer/tokenizer_int.h"

uint32_t text_hash(const char *s, size_t len)
{
    uint64_t h = 0x9E3779B97F4A7C15u ^ (len * 0xD6E8FEB86659FD93u);
    while (len >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
        s += 8;
        len -= 8;
    }
    uint64_t w = 0;
    for (size_t i = 0; i < len; i++) w |= (uint64_t)(uint8_t)s[i] << (8 * i);
    h = (h ^ w) * 0xC4CEB9FE1A85EC53u;
    h ^= h >> 29;
    h *= 0xFF51AFD7ED558CCDu;
    return (uint32_t)(h >> 32);
}

void vocab_init(struct vocab *v)
{
    memset(v, 0, sizeof *v);
    buf_init(&v->blob, TOKENIZER_MAX_FILE);
}

void vocab_free(struct vocab *v)
{
    buf_free(&v->blob);
    mb_free(v->at);
    mb_free(v->slots);
    memset(v, 0, sizeof *v);
}

static bool ids_grow(struct vocab *v, int32_t id)
{
    if (id < v->cap_ids) return true;
    int32_t cap = v->cap_ids ? v->cap_ids : 1024;
    while (cap <= id) cap *= 2;
    struct vocab_entry *at = mb_realloc(v->at, (size_t)cap * sizeof *at);
    if (!at) return false;
    memset(at + v->cap_ids, 0, (size_t)(cap - v->cap_ids) * sizeof *at);
    v->at = at;
    v->cap_ids = cap;
    return true;
}

/* The slot of a text: its id's, or the empty one where it would go. */
static uint32_t slot_of(const struct vocab *v, uint32_t hash, const char *s, size_t len)
{
    uint32_t mask = v->n_slots - 1;
    for (uint32_t i = hash & mask;; i = (i + 1) & mask) {
        const struct vocab_slot *slot = &v->slots[i];
        if (slot->id < 0) return i;
        if (slot->hash != hash) continue;
        const struct vocab_entry *e = &v->at[slot->id];
        if (e->len_1 - 1 == len && memcmp(v->blob.data + e->off, s, len) == 0) return i;
    }
}

/* Where a slot whose text is in no other slot goes. */
static void slot_insert(struct vocab *v, struct vocab_slot slot)
{
    uint32_t mask = v->n_slots - 1, i = slot.hash & mask;
    while (v->slots[i].id >= 0) i = (i + 1) & mask;
    v->slots[i] = slot;
}

static bool slots_grow(struct vocab *v)
{
    uint32_t n_old = v->n_slots, n = n_old ? n_old * 4 : 2048;
    struct vocab_slot *old = v->slots, *slots = mb_alloc(n * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0xFF, n * sizeof *slots);
    v->slots = slots;
    v->n_slots = n;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].id >= 0) slot_insert(v, old[i]);
    mb_free(old);
    return true;
}

/* Take a text out of the table, closing the gap in its probe chain. */
static void slot_remove(struct vocab *v, uint32_t hole)
{
    uint32_t mask = v->n_slots - 1;
    v->slots[hole].id = -1;
    v->n_used--;
    for (uint32_t i = (hole + 1) & mask; v->slots[i].id >= 0; i = (i + 1) & mask) {
        struct vocab_slot moved = v->slots[i];
        v->slots[i].id = -1;
        slot_insert(v, moved);
    }
}

/* The id is about to get another text: forget the one it has. */
static void entry_drop(struct vocab *v, int32_t id)
{
    struct vocab_entry *e = &v->at[id];
    const char *text = v->blob.data + e->off;
    uint32_t i = slot_of(v, text_hash(text, e->len_1 - 1), text, e->len_1 - 1);
    if (v->slots[i].id == id) slot_remove(v, i);
    e->len_1 = 0;
}

/* keep: the text's other id, if it has one, keeps the text. */
static mb_status put(struct vocab *v, const char *s, size_t len, int32_t id, bool keep, mb_error *err)
{
    if (id < 0 || id >= TOKENIZER_MAX_ID)
        return mb_fail(err, MB_BAD_FORMAT, "tokenizer.json: token id %d is outside 0..%d", (int)id,
                       (int)TOKENIZER_MAX_ID - 1);
    if (len > UINT32_MAX / 4) return mb_fail(err, MB_TOO_LARGE, "tokenizer.json: a piece has %zu bytes", len);
    if (((v->n_used + 1) * 2 > v->n_slots && !slots_grow(v)) || !ids_grow(v, id))
        return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the vocabulary");
    if (v->at[id].len_1) entry_drop(v, id);
    size_t off = v->blob.len;
    buf_append(&v->blob, s, len);
    buf_append_char(&v->blob, '\0');
    MB_TRY(buf_status(&v->blob, "tokenizer.json: vocabulary", err));
    uint32_t hash = text_hash(s, len), slot = slot_of(v, hash, s, len);
    if (v->slots[slot].id < 0) v->n_used++;
    else if (!keep) v->at[v->slots[slot].id].len_1 = 0; /* the text had another id */
    v->at[id] = (struct vocab_entry){ (uint32_t)off, (uint32_t)len + 1 };
    v->slots[slot] = (struct vocab_slot){ hash, id };
    if (id >= v->n_ids) v->n_ids = id + 1;
    if (len > v->max_len) v->max_len = (uint32_t)len;
    return MB_OK;
}

mb_status vocab_put(struct vocab *v, const char *s, size_t len, int32_t id, mb_error *err)
{
    return put(v, s, len, id, false, err);
}

mb_status vocab_append(struct vocab *v, const char *s, size_t len, mb_error *err)
{
    return put(v, s, len, v->n_ids, true, err);
}

int32_t vocab_find_hashed(const struct vocab *v, uint32_t hash, const char *s, size_t len)
{
    if (!v->n_slots || len > v->max_len) return -1;
    return v->slots[slot_of(v, hash, s, len)].id;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t len)
{
    return len > v->max_len ? -1 : vocab_find_hashed(v, text_hash(s, len), s, len);
}

void vocab_prefetch(const struct vocab *v, uint32_t hash, int step)
{
    if (!v->n_slots) return;
    const struct vocab_slot *slot = &v->slots[hash & (v->n_slots - 1)];
    if (step == 0) __builtin_prefetch(slot);
    else if (slot->id >= 0 && step == 1) __builtin_prefetch(&v->at[slot->id]);
    else if (slot->id >= 0) __builtin_prefetch(v->blob.data + v->at[slot->id].off);
}

const char *vocab_text(const struct vocab *v, int32_t id, size_t *len)
{
    if (id < 0 || id >= v->n_ids || !v->at[id].len_1) return NULL;
    if (len) *len = v->at[id].len_1 - 1;
    return v->blob.data + v->at[id].off;
}
