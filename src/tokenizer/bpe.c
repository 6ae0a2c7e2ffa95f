/* bpe.c: byte-pair encoding.
 *
 * A word becomes symbols (ids of its characters), then the pair of lowest rank, leftmost first, is merged until none
 * is left. Short words scan for the best pair; long ones (a run of 200,000 letters is one word) keep the pairs in a
 * heap over a linked list, n log n. Byte-level vocabularies work on plain bytes: the alphabet was applied to the
 * tables at load. Short words of one encode are remembered in a direct-mapped cache, a line of memory each.
 * SentencePiece-like vocabularies have no pre-tokeniser; when no merge spans "x\u2581" the text is cut before
 * each U+2581, which cannot change the result and keeps words short.
 */
#include <string.h>

#include "tokenizer/tokenizer_int.h"

#define SHORT_WORD 32       /* symbols */

static const char meta[] = "\xE2\x96\x81";

/* --- tables --- */

static uint32_t pair_hash(int32_t left, int32_t right)
{
    uint64_t k = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    k *= 0x9E3779B97F4A7C15u;
    return (uint32_t)((k ^ k >> 29) * 0xBF58476D1CE4E5B9u >> 32);
}

static const struct merge_slot *merge_find(const struct bpe *b, int32_t left, int32_t right)
{
    uint32_t mask = b->n_slots - 1;
    for (uint32_t i = pair_hash(left, right) & mask;; i = (i + 1) & mask) {
        const struct merge_slot *m = &b->slots[i];
        if (m->left == left && m->right == right) return m;
        if (m->left < 0) return NULL;
    }
}

static bool slots_grow(struct bpe *b)
{
    uint32_t n = b->n_slots ? b->n_slots * 2 : 1024, n_old = b->n_slots;
    struct merge_slot *slots = mb_alloc(n * sizeof *slots), *old = b->slots;
    if (!slots) return false;
    memset(slots, 0xFF, n * sizeof *slots);
    for (uint32_t i = 0; i < n_old; i++) {
        if (old[i].left < 0) continue;
        uint32_t k = pair_hash(old[i].left, old[i].right) & (n - 1);
        while (slots[k].left >= 0) k = (k + 1) & (n - 1);
        slots[k] = old[i];
    }
    mb_free(old);
    b->slots = slots;
    b->n_slots = n;
    return true;
}

static bool merge_put(struct bpe *b, struct merge_slot m)
{
    if ((b->n_used + 1) * 5 > b->n_slots * 3 && !slots_grow(b)) return false;
    uint32_t mask = b->n_slots - 1, i = pair_hash(m.left, m.right) & mask;
    while (b->slots[i].left >= 0 && !(b->slots[i].left == m.left && b->slots[i].right == m.right)) i = (i + 1) & mask;
    if (b->slots[i].left < 0) b->n_used++;
    b->slots[i] = m; /* the same pair twice: the later rank counts */
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

/* Does s hold a U+2581 behind another character? */
static bool spans_meta(const char *s, size_t n)
{
    for (size_t i = 1; i + 3 <= n; i++)
        if (memcmp(s + i, meta, 3) == 0 && !(i >= 3 && memcmp(s + i - 3, meta, 3) == 0)) return true;
    return false;
}

static mb_status take_merge(struct merge_loader *l, const struct queued_merge *q, mb_error *err)
{
    const char *s = q->text.data ? q->text.data : "", *all = s + q->len[0] + q->len[1];
    struct merge_slot m = { vocab_find_hashed(l->v, q->hash[0], s, q->len[0]),
                            vocab_find_hashed(l->v, q->hash[1], s + q->len[0], q->len[1]), q->rank,
                            vocab_find_hashed(l->v, q->hash[2], all, q->len[2]) };
    if (m.left < 0 || m.right < 0 || m.id < 0)
        return mb_fail(err, MB_BAD_FORMAT, "tokenizer.json: model.merges[%u]: its %s is not in model.vocab", q->rank,
                       m.left < 0 ? "left piece" : m.right < 0 ? "right piece" : "result");
    if (l->b->cut_meta && spans_meta(all, q->len[2])) l->b->cut_meta = false;
    if (!merge_put(l->b, m)) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the merges");
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

static mb_status load_merges(struct bpe *b, const struct vocab *v, struct str merges, mb_error *err)
{
    struct merge_loader l = { .b = b, .v = v };
    for (size_t i = 0; i < N_QUEUE; i++) buf_init(&l.queue[i].text, TOKENIZER_MAX_FILE);
    mb_status st = scan_merges(merges, load_merge, &l, err);
    if (st == MB_OK) st = take_queue(&l, err);
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

mb_status bpe_load(struct bpe *b, const struct vocab *v, struct arena *mem, const json_t *model, struct str merges,
                   bool raw, mb_error *err)
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
    b->cut_meta = !raw && !b->ignore_merges && !b->prefix.len && !b->suffix.len && vocab_find(v, meta, 3) >= 0;
    load_units(b, v);
    if (!slots_grow(b)) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the merges");
    if (!merges.ptr) return step_bad(err, section, "the key merges is missing");
    return load_merges(b, v, merges, err);
}

void bpe_free(struct bpe *b)
{
    mb_free(b->slots);
    b->slots = NULL;
}

/* --- scratch and output --- */

void bpe_scratch_init(struct bpe_scratch *s, size_t n_text)
{
    memset(s, 0, sizeof *s);
    buf_init(&s->map, TOKENIZER_MAX_TEXT);
    uint32_t n = 64;
    while (n < n_text / 8 && n < 8192) n *= 2;
    s->words = mb_calloc(n, sizeof *s->words); /* without one there is just no cache */
    s->n_words = s->words ? n : 0;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    mb_free(s->symbols);
    mb_free(s->heap);
    mb_free(s->words);
    buf_free(&s->map);
    memset(s, 0, sizeof *s);
}

static bool out_room(struct token_out *o, size_t n)
{
    if (o->n + n <= o->cap) return true;
    size_t cap = o->cap ? o->cap : 64;
    while (cap < o->n + n) cap *= 2;
    int32_t *ids = mb_realloc(o->ids, cap * sizeof *ids);
    if (!ids) return false;
    o->ids = ids;
    if (o->want_ends) {
        size_t *ends = mb_realloc(o->ends, cap * sizeof *ends);
        if (ends) o->ends = ends;
        uint32_t *rel = ends ? mb_realloc(o->rel, cap * sizeof *rel) : NULL;
        if (rel) o->rel = rel;
        if (!ends || !rel) return false;
    }
    o->cap = cap;
    return true;
}

bool token_out_push(struct token_out *o, int32_t id, uint32_t rel, size_t end)
{
    if (!out_room(o, 1)) return false;
    o->ids[o->n] = id;
    if (o->want_ends) {
        o->rel[o->n] = rel;
        o->ends[o->n] = end;
    }
    o->n++;
    return true;
}

static bool grow(void **at, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap) return true;
    size_t c = *cap ? *cap : 64;
    while (c < n) c *= 2;
    void *p = mb_realloc(*at, c * size);
    if (!p) return false;
    *at = p;
    *cap = c;
    return true;
}

/* --- symbols of a word --- */

struct word {
    const struct bpe *b;
    const struct vocab *v;
    struct bpe_scratch *s;
    const char *text;
    size_t len;
    uint32_t n;             /* symbols */
    bool unk_pending;
    uint32_t unk_end;
};

static void symbol_add(struct word *w, int32_t id, size_t end)
{
    struct symbol *sym = &w->s->symbols[w->n];
    *sym = (struct symbol){ id, (uint32_t)end, (int32_t)w->n - 1, (int32_t)w->n + 1 };
    w->n++;
}

/* Id of the character text[first, end), with the affixes of its place. */
static int32_t unit_find(struct word *w, size_t first, size_t end)
{
    const struct bpe *b = w->b;
    uint8_t c = (uint8_t)w->text[first];
    bool affixed = (first > 0 && b->prefix.len) || (end == w->len && b->suffix.len);
    if (!affixed && (b->raw || c < 0x80)) return b->unit_id[c];
    if (!affixed) return vocab_find(w->v, w->text + first, end - first);
    buf_clear(&w->s->map);
    if (first > 0) buf_append(&w->s->map, b->prefix.ptr, b->prefix.len);
    buf_append(&w->s->map, w->text + first, end - first);
    if (end == w->len) buf_append(&w->s->map, b->suffix.ptr, b->suffix.len);
    return w->s->map.failed == MB_OK ? vocab_find(w->v, w->s->map.data, w->s->map.len) : -1;
}

/* All bytes of the (affixed) character as <0xNN>, or nothing. */
static bool fallback_add(struct word *w, size_t first, size_t end)
{
    const struct bpe *b = w->b;
    bool affixed = (first > 0 && b->prefix.len) || (end == w->len && b->suffix.len);
    const char *s = affixed ? w->s->map.data : w->text + first;
    size_t n = affixed ? w->s->map.len : end - first;
    if (affixed && w->s->map.failed != MB_OK) return false;
    for (size_t i = 0; i < n; i++)
        if (b->byte_id[(uint8_t)s[i]] < 0) return false;
    if (!grow((void **)&w->s->symbols, &w->s->cap_symbols, w->n + n + w->len, sizeof *w->s->symbols)) return false;
    for (size_t i = 0; i < n; i++) {
        size_t at = first + i + 1;
        symbol_add(w, b->byte_id[(uint8_t)s[i]], at < end && !affixed ? at : end);
    }
    return true;
}

static void unk_flush(struct word *w)
{
    if (w->unk_pending) symbol_add(w, w->b->unk_id, w->unk_end);
    w->unk_pending = false;
}

static mb_status word_symbols(struct word *w, mb_error *err)
{
    const struct bpe *b = w->b;
    w->n = 0;
    w->unk_pending = false;
    if (!grow((void **)&w->s->symbols, &w->s->cap_symbols, w->len + 8, sizeof *w->s->symbols))
        return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for a word of %zu bytes", w->len);
    for (size_t first = 0, end = 0; first < w->len; first = end) {
        if (b->raw) end = first + 1;
        else utf8_next(w->text, w->len, &end);
        int32_t id = unit_find(w, first, end);
        if (id >= 0) {
            unk_flush(w);
            symbol_add(w, id, end);
        } else if (!(b->byte_fallback && fallback_add(w, first, end)) && b->has_unk) {
            if (!b->fuse_unk) unk_flush(w);
            w->unk_pending = true;
            w->unk_end = (uint32_t)end;
        }
        if (w->n + (w->len - end) + 8 > w->s->cap_symbols &&
            !grow((void **)&w->s->symbols, &w->s->cap_symbols, w->n + (w->len - end) + 8, sizeof *w->s->symbols))
            return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for a word of %zu bytes", w->len);
    }
    unk_flush(w);
    if (w->n) w->s->symbols[w->n - 1].next = -1;
    return MB_OK;
}

/* --- merging --- */

static void merge_short(struct word *w)
{
    struct symbol *sym = w->s->symbols;
    const struct merge_slot *best[SHORT_WORD];
    uint32_t n = w->n;
    for (uint32_t i = 0; i + 1 < n; i++) best[i] = merge_find(w->b, sym[i].id, sym[i + 1].id);
    for (;;) {
        uint32_t at = n, rank = UINT32_MAX;
        for (uint32_t i = 0; i + 1 < n; i++)
            if (best[i] && best[i]->rank < rank) {
                rank = best[i]->rank;
                at = i;
            }
        if (at == n) break;
        sym[at].id = best[at]->id;
        sym[at].end = sym[at + 1].end;
        n--;
        memmove(sym + at + 1, sym + at + 2, (n - at - 1) * sizeof *sym);
        memmove(best + at, best + at + 1, (n - at) * sizeof *best);
        if (at + 1 < n) best[at] = merge_find(w->b, sym[at].id, sym[at + 1].id);
        if (at > 0) best[at - 1] = merge_find(w->b, sym[at - 1].id, sym[at].id);
    }
    w->n = n;
}

static bool item_less(const struct heap_item *a, const struct heap_item *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->pos < b->pos;
}

static void heap_down(struct heap_item *h, size_t n, size_t i)
{
    struct heap_item x = h[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && item_less(&h[child + 1], &h[child])) child++;
        if (!item_less(&h[child], &x)) break;
        h[i] = h[child];
    }
    h[i] = x;
}

static void heap_up(struct heap_item *h, size_t i)
{
    struct heap_item x = h[i];
    while (i > 0 && item_less(&x, &h[(i - 1) / 2])) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = x;
}

/* The pair that begins at symbol pos, if it can merge, goes to the end of the heap array. */
static bool pair_add(struct word *w, int32_t pos, size_t *n, bool sift)
{
    const struct symbol *sym = w->s->symbols;
    if (pos < 0 || sym[pos].next < 0) return true;
    int32_t left = sym[pos].id, right = sym[sym[pos].next].id;
    const struct merge_slot *m = merge_find(w->b, left, right);
    if (!m) return true;
    if (!grow((void **)&w->s->heap, &w->s->cap_heap, *n + 1, sizeof *w->s->heap)) return false;
    w->s->heap[*n] = (struct heap_item){ m->rank, (uint32_t)pos, m->id, left, right };
    if (sift) heap_up(w->s->heap, *n);
    (*n)++;
    return true;
}

static bool merge_long(struct word *w)
{
    struct symbol *sym = w->s->symbols;
    size_t n = 0;
    for (uint32_t i = 0; i < w->n; i++)
        if (!pair_add(w, (int32_t)i, &n, false)) return false;
    for (size_t i = n / 2; i-- > 0;) heap_down(w->s->heap, n, i);
    while (n) {
        struct heap_item top = w->s->heap[0];
        w->s->heap[0] = w->s->heap[--n];
        if (n) heap_down(w->s->heap, n, 0);
        struct symbol *a = &sym[top.pos];
        if (a->id != top.left || a->next < 0 || sym[a->next].id != top.right) continue; /* out of date */
        struct symbol *b = &sym[a->next];
        a->id = top.id;
        a->end = b->end;
        a->next = b->next;
        b->id = -1;
        if (a->next >= 0) sym[a->next].prev = (int32_t)top.pos;
        if (!pair_add(w, a->prev, &n, true) || !pair_add(w, (int32_t)top.pos, &n, true)) return false;
    }
    uint32_t k = 0; /* close the gaps; the first symbol never disappears, and k never passes i */
    for (int32_t i = 0, next; w->n && i >= 0; i = next) {
        next = sym[i].next;
        sym[k++] = sym[i];
    }
    w->n = k;
    return true;
}

/* --- a piece --- */

static mb_status no_memory(mb_error *err)
{
    return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the tokens of a text");
}

/* The whole word as one piece of the vocabulary (ignore_merges). */
static int32_t whole_word(const struct bpe *b, const struct vocab *v, struct bpe_scratch *s, const char *text, size_t len)
{
    if (len > v->max_len) return -1;
    if (!b->raw) return vocab_find(v, text, len);
    buf_clear(&s->map);
    for (size_t i = 0; i < len; i++) {
        uint32_t cp = byte_to_char((uint8_t)text[i]);
        if (cp >= 0x80) buf_append_char(&s->map, (char)(0xC0 | cp >> 6));
        buf_append_char(&s->map, (char)(cp < 0x80 ? cp : 0x80 | (cp & 0x3F)));
    }
    return s->map.failed == MB_OK && s->map.data ? vocab_find(v, s->map.data, s->map.len) : -1;
}

static mb_status word_encode(struct word *w, const struct mtext *x, size_t off, struct token_out *out, mb_error *err)
{
    int32_t id = w->b->ignore_merges ? whole_word(w->b, w->v, w->s, w->text, w->len) : -1;
    if (id >= 0) {
        if (!token_out_push(out, id, (uint32_t)w->len, mtext_end(x, off + w->len - 1))) return no_memory(err);
        return MB_OK;
    }
    MB_TRY(word_symbols(w, err));
    if (w->n <= SHORT_WORD) merge_short(w);
    else if (!merge_long(w)) return no_memory(err);
    if (!out_room(out, w->n)) return no_memory(err);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct symbol *sym = &w->s->symbols[i];
        token_out_push(out, sym->id, sym->end, mtext_end(x, off + sym->end - 1));
    }
    return MB_OK;
}

static uint64_t load_bytes(const char *p, size_t n)
{
    uint64_t v = 0;
    if (n >= 4) { /* two reads that may overlap */
        uint32_t low, high;
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        return low | (uint64_t)high << (8 * (n - 4));
    }
    for (size_t i = 0; i < n; i++) v |= (uint64_t)(uint8_t)p[i] << (8 * i);
    return v;
}

static struct word_key key_of(const char *p, size_t n)
{
    struct word_key k = { { 0, 0, (uint64_t)n << 56 } };
    size_t i = 0;
    for (; n - i > 8; i += 8) memcpy(&k.w[i / 8], p + i, 8);
    k.w[i / 8] |= load_bytes(p + i, n - i);
    return k;
}

static uint32_t key_hash(const struct word_key *k)
{
    uint64_t h = (k->w[0] ^ (k->w[1] << 21 | k->w[1] >> 43)) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32 ^ k->w[2]) * 0xC4CEB9FE1A85EC53u;
    return (uint32_t)(h >> 32);
}

/* Remember the tokens of out from `first` on. What does not fit is not remembered. */
static void word_remember(struct word_slot *slot, const struct word_key *key, size_t n_tokens,
                          const struct token_out *out)
{
    size_t first = out->n - n_tokens;
    if (n_tokens >= CACHED_IDS) return;
    slot->key = *key;
    slot->n = (uint8_t)n_tokens;
    for (size_t i = 0; i < n_tokens; i++) {
        slot->ids[i] = out->ids[first + i];
        slot->rel[i] = (uint8_t)(out->want_ends ? out->rel[first + i] : 0);
    }
}

static void word_recall(const struct word_slot *slot, const struct mtext *x, size_t off, struct token_out *out)
{
    for (size_t i = 0; i < slot->n; i++) {
        out->ids[out->n] = slot->ids[i];
        if (out->want_ends) {
            out->rel[out->n] = slot->rel[i];
            out->ends[out->n] = mtext_end(x, off + slot->rel[i] - 1);
        }
        out->n++;
    }
}

static mb_status word_encode_cached(struct word *w, const struct mtext *x, size_t off, struct token_out *out,
                                    mb_error *err)
{
    struct bpe_scratch *s = w->s;
    if (w->len > CACHED_WORD || !s->n_words) return word_encode(w, x, off, out, err);
    struct word_key key = key_of(w->text, w->len);
    struct word_slot *slot = &s->words[key_hash(&key) & (s->n_words - 1)];
    if (memcmp(&slot->key, &key, sizeof key) == 0 && out_room(out, CACHED_IDS)) {
        word_recall(slot, x, off, out);
        return MB_OK;
    }
    size_t n = out->n;
    MB_TRY(word_encode(w, x, off, out, err));
    word_remember(slot, &key, out->n - n, out);
    return MB_OK;
}

/* End of the word that begins at `at` when U+2581 opens words. */
static size_t meta_cut(const char *s, size_t n, size_t at)
{
    size_t i = at;
    while (i + 3 <= n && memcmp(s + i, meta, 3) == 0) i += 3; /* a run of them stays with what follows */
    for (;;) {
        const char *p = i < n ? memchr(s + i, meta[0], n - i) : NULL;
        if (!p) return n;
        i = (size_t)(p - s);
        if (n - i >= 3 && memcmp(p, meta, 3) == 0) return i;
        i++;
    }
}

mb_status bpe_encode(const struct bpe *b, const struct vocab *v, struct bpe_scratch *s, const struct mtext *x,
                     struct piece p, struct token_out *out, mb_error *err)
{
    struct word w = { .b = b, .v = v, .s = s };
    const char *text = x->s + p.off;
    for (size_t first = 0, end; first < p.len; first = end) {
        end = b->cut_meta ? meta_cut(text, p.len, first) : p.len;
        w.text = text + first;
        w.len = end - first;
        MB_TRY(word_encode_cached(&w, x, p.off + first, out, err));
    }
    return MB_OK;
}
