/* bpe_load.c: the tables of byte-pair encoding: merges by pair, ids of single characters.
 *
 * Byte-level vocabularies work on plain bytes: the alphabet is applied to the tables here, not to every text.
 */
#include <string.h>

#include "tokenizer/tokenizer_int.h"

static const char meta[] = "\xE2\x96\x81";

static void slot_put(struct bpe *b, struct merge_slot m)
{
    uint32_t i = merge_first_slot(m.left, m.right, b->n_slots);
    while (b->slots[i].left >= 0 && !(b->slots[i].left == m.left && b->slots[i].right == m.right)) i = i + 1 < b->n_slots ? i + 1 : 0;
    if (b->slots[i].left < 0) b->n_used++;
    b->slots[i] = m; /* the same pair twice: the later rank counts */
}

static bool slots_resize(struct bpe *b, uint32_t n)
{
    struct merge_slot *slots = mb_alloc(n * sizeof *slots), *old = b->slots;
    uint32_t n_old = b->n_slots;
    if (!slots) return false;
    memset(slots, 0xFF, n * sizeof *slots);
    b->slots = slots;
    b->n_slots = n;
    b->n_used = 0;
    for (uint32_t i = 0; i < n_old; i++)
        if (old[i].left >= 0) slot_put(b, old[i]);
    mb_free(old);
    return true;
}

static bool merge_put(struct bpe *b, struct merge_slot m, int32_t id)
{
    if ((uint64_t)(b->n_used + 1) * 5 > (uint64_t)b->n_slots * 3 && !slots_resize(b, b->n_slots * 2)) return false;
    if (!scratch_grow((void **)&b->merge_ids, &b->cap_merges, (size_t)m.rank + 1, sizeof *b->merge_ids)) return false;
    b->merge_ids[m.rank] = id; /* ranks come in order */
    b->n_merges = m.rank + 1;
    slot_put(b, m);
    return true;
}

/* Merges wait in a queue, so that the three look-ups of each do not wait for memory one by one: half a million of
 * them is what loading a large tokenizer.json takes its time for. */
#define N_QUEUE 16
struct queued_merge {
    struct buf text;   /* left, right, result, one behind the other */
    size_t len[3];
    uint32_t hash[3];
    uint32_t rank;
};
struct merge_loader {
    struct bpe *b;
    const struct vocab *v;
    struct queued_merge queue[N_QUEUE];
    size_t n;
};

/* "<0xNN>": stands for a byte, not for its text. */
static bool is_byte_piece(const char *s, size_t n)
{
    return n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>';
}

/* What merges join tells where a text may be cut before it is encoded: no token lies across two characters that no merge
 * brings together. */
static void note_join(struct bpe *b, const char *left, size_t n_left, const char *right, size_t n_right)
{
    size_t last = n_left, n;
    if (!n_left || !n_right) return;
    if (is_byte_piece(left, n_left) || is_byte_piece(right, n_right)) b->cuts = false;
    do last--;
    while (last > 0 && ((uint8_t)left[last] & 0xC0) == 0x80);
    int x = join_class(left, n_left, last, &n), y = join_class(right, n_right, 0, &n);
    b->joined[x][y / 64] |= (uint64_t)1 << (y % 64);
}

/* Characters that are no tokens (they become byte tokens, or fuse to an unknown one) stay with their neighbours. */
static void finish_joins(struct bpe *b, const struct vocab *v)
{
    b->joined[JOIN_OTHER][JOIN_OTHER / 64] |= (uint64_t)1 << (JOIN_OTHER % 64);
    for (int c = 0; c <= JOIN_META; c++) {
        if (c < JOIN_META ? b->unit_id[c] >= 0 : vocab_find(v, meta, 3) >= 0) continue;
        for (int k = 0; k < JOIN_CLASSES; k++) {
            b->joined[c][k / 64] |= (uint64_t)1 << (k % 64);
            b->joined[k][c / 64] |= (uint64_t)1 << (c % 64);
        }
    }
}

static mb_status take_merge(struct merge_loader *l, const struct queued_merge *q, mb_error *err)
{
    const char *s = q->text.data ? q->text.data : "", *all = s + q->len[0] + q->len[1];
    struct merge_slot m = { vocab_find_hashed(l->v, q->hash[0], s, q->len[0]),
                            vocab_find_hashed(l->v, q->hash[1], s + q->len[0], q->len[1]), q->rank };
    int32_t id = vocab_find_hashed(l->v, q->hash[2], all, q->len[2]);
    if (m.left < 0 || m.right < 0 || id < 0)
        return mb_fail(err, MB_BAD_FORMAT, "tokenizer.json: model.merges[%u]: its %s is not in model.vocab", q->rank,
                       m.left < 0 ? "left piece" : m.right < 0 ? "right piece" : "result");
    if (l->b->cuts) note_join(l->b, s, q->len[0], s + q->len[0], q->len[1]);
    if (!merge_put(l->b, m, id)) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the merges");
    return MB_OK;
}

static mb_status take_queue(struct merge_loader *l, mb_error *err)
{
    size_t n = l->n;
    l->n = 0;
    for (int step = 1; step < 3; step++)
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < 3; k++) vocab_prefetch(l->v, l->queue[i].hash[k], step);
    for (size_t i = 0; i < n; i++) MB_TRY(take_merge(l, &l->queue[i], err));
    return MB_OK;
}

static mb_status load_merge(void *ctx, uint32_t i, struct str left, struct str right, mb_error *err)
{
    struct merge_loader *l = ctx;
    struct queued_merge *q = &l->queue[l->n];
    size_t skip = l->b->prefix.len <= right.len ? l->b->prefix.len : right.len;
    buf_clear(&q->text);
    buf_append(&q->text, left.ptr, left.len);
    buf_append(&q->text, right.ptr, right.len);
    buf_append(&q->text, left.ptr, left.len);
    buf_append(&q->text, right.ptr + skip, right.len - skip);
    MB_TRY(buf_status(&q->text, "model.merges", err));
    q->rank = i;
    q->len[0] = left.len;
    q->len[1] = right.len;
    q->len[2] = left.len + right.len - skip;
    const char *s = q->text.data ? q->text.data : "";
    for (size_t k = 0, at = 0; k < 3; at += q->len[k++]) {
        q->hash[k] = text_hash(s + at, q->len[k]);
        vocab_prefetch(l->v, q->hash[k], 0);
    }
    return ++l->n == N_QUEUE ? take_queue(l, err) : MB_OK;
}

mb_status bpe_load_merges(struct bpe *b, const struct vocab *v, struct str merges, mb_error *err)
{
    if (!slots_resize(b, 1024)) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the merges");
    struct merge_loader l = { .b = b, .v = v };
    for (size_t i = 0; i < N_QUEUE; i++) buf_init(&l.queue[i].text, TOKENIZER_MAX_FILE);
    mb_status st = scan_merges(merges, load_merge, &l, err);
    if (st == MB_OK) st = take_queue(&l, err);
    uint32_t n = b->n_used + b->n_used / 3 * 2 + 16; /* three fifths full: what a start reads should be small */
    if (st == MB_OK && n < b->n_slots && !slots_resize(b, n)) st = mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the merges");
    finish_joins(b, v);
    for (size_t i = 0; i < N_QUEUE; i++) buf_free(&l.queue[i].text);
    return st;
}

static void load_units(struct bpe *b, const struct vocab *v)
{
    for (int i = 0; i < 256; i++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)i);
        b->byte_id[i] = vocab_find(v, s, 6);
        uint32_t cp = b->raw ? byte_to_char((uint8_t)i) : (uint32_t)i;
        size_t n = 1;
        s[0] = (char)cp;
        if (cp >= 0x80) {
            s[0] = (char)(0xC0 | cp >> 6);
            s[1] = (char)(0x80 | (cp & 0x3F));
            n = 2;
        }
        b->unit_id[i] = vocab_find(v, s, n);
    }
}

mb_status bpe_load(struct bpe *b, const struct vocab *v, struct arena *mem, const json_t *model, bool raw, mb_error *err)
{
    static const char section[] = "model";
    struct str unk;
    b->raw = raw;
    MB_TRY(step_str(model, section, "unk_token", mem, &unk, err));
    MB_TRY(step_str(model, section, "continuing_subword_prefix", mem, &b->prefix, err));
    MB_TRY(step_str(model, section, "end_of_word_suffix", mem, &b->suffix, err));
    MB_TRY(step_bool(model, section, "fuse_unk", false, &b->fuse_unk, err));
    MB_TRY(step_bool(model, section, "byte_fallback", false, &b->byte_fallback, err));
    MB_TRY(step_bool(model, section, "ignore_merges", false, &b->ignore_merges, err));
    b->unk_id = unk.ptr ? vocab_find(v, unk.ptr, unk.len) : -1;
    b->has_unk = b->unk_id >= 0;
    b->cuts = !raw && !b->ignore_merges && !b->prefix.len && !b->suffix.len;
    load_units(b, v);
    return MB_OK;
}

void bpe_free(struct bpe *b)
{
    mb_free(b->slots);
    mb_free(b->merge_ids);
    b->slots = NULL;
    b->merge_ids = NULL;
    word_table_free(&b->words);
}
