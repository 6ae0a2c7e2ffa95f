/* image.c: a tokenizer as one file that the next start maps instead of parsing tokenizer.json again.
 *
 * A head (magic, version, key, checksum), then sections, each at a multiple of 64 bytes: the large tables as they lie in
 * memory, and the small parts of tokenizer.json as JSON text, which are loaded as ever. The file is a cache of this
 * machine: native byte order, no promise between versions. It is trusted only so far: key and checksum must be right, and
 * image_check.c looks at every index, so that a file that passes both by malice still cannot lead a reader out of it. Both
 * are one walk over the file, block by block.
 */
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

#include "tokenizer/tokenizer_int.h"

#define IMAGE_VERSION 8 /* a change of any table, or of what the tables are made from, is a new one */
#define IMAGE_ALIGN 64
static const char image_magic[8] = "mlxbtok";

enum section { SEC_JSON, SEC_CONFIG, SEC_SCALARS, SEC_TEXT, SEC_ADDED, SEC_FLAGS, SEC_VOCAB_BLOB, SEC_VOCAB_AT, SEC_VOCAB_SLOTS,
               SEC_ADDED_BLOB, SEC_ADDED_AT, SEC_ADDED_SLOTS, SEC_RAW_KEYS, SEC_RAW_NODES, SEC_RAW_TOKENS, SEC_NORM_KEYS,
               SEC_NORM_NODES, SEC_NORM_TOKENS, SEC_MERGES, SEC_MERGE_IDS, SEC_WORDS, SEC_SHORT_WORDS, SEC_SCORES,
               SEC_PIECE_FIRST, SEC_PIECE_LABEL, SEC_PIECE_ID, N_SECTIONS };

struct image_head {
    char magic[8];
    uint32_t version, n_sections;
    uint64_t key, size_bytes;
    uint64_t checksum;                          /* of everything behind this */
    struct { uint64_t off, len; } at[N_SECTIONS];
};
#define CHECKED_FROM (offsetof(struct image_head, checksum) + sizeof(uint64_t))
struct image_text {                             /* of SEC_TEXT */
    uint32_t off, len;
};
struct image_scalars {
    int32_t n_vocab, bos_id, eos_id;
    uint32_t model;                             /* enum model_kind */
    uint32_t cuts;
    uint32_t n_added;
    struct image_text bos, eos;                 /* each with a NUL behind it */
    struct { int32_t n_ids; uint32_t max_len; } vocab[2];
    struct { uint32_t n_nodes; uint8_t first[256]; } trie[2];
    uint64_t joined[JOIN_CLASSES][3];
};
struct image_added {
    struct image_text text, pattern;
    int32_t id;
    uint32_t flags;
};

#define CHECK_BLOCK ((size_t)1 << 16)           /* bytes: the inner caches hold them; a multiple of IMAGE_ALIGN */

/* The checksum: XXH3 of each block, seeded with that of the blocks before. c may be NULL. */
static uint64_t check_blocks(const uint8_t *data, size_t n, struct image_check *c)
{
    uint64_t h = 0;
    for (size_t first = CHECKED_FROM, end; first < n; first = end) {
        end = (first / CHECK_BLOCK + 1) * CHECK_BLOCK;
        if (end > n) end = n;
        h = XXH3_64bits_withSeed(data + first, end - first, h);
        if (c) image_check_bytes(c, data + first, data + end);
    }
    return h;
}

/* --- writing --- */

struct image_writer {
    struct buf out, text;
    struct image_head head;
};

static void put_section(struct image_writer *w, enum section s, const void *data, size_t len)
{
    static const char zeros[IMAGE_ALIGN];
    buf_append(&w->out, zeros, (IMAGE_ALIGN - w->out.len % IMAGE_ALIGN) % IMAGE_ALIGN);
    w->head.at[s].off = w->out.len;
    w->head.at[s].len = len;
    if (len) buf_append(&w->out, data, len);
}

static struct image_text put_text(struct image_writer *w, const char *s, size_t len)
{
    struct image_text t = { (uint32_t)w->text.len, (uint32_t)len };
    buf_append(&w->text, s, len);
    buf_append_char(&w->text, '\0');
    return t;
}

static void put_vocab(struct image_writer *w, enum section blob, const struct vocab *v)
{
    put_section(w, blob, v->blob.data, v->blob.len);
    put_section(w, blob + 1, v->at, (size_t)v->n_ids * sizeof *v->at);
    put_section(w, blob + 2, v->slots, v->n_slots * sizeof *v->slots);
}

static void put_trie(struct image_writer *w, enum section keys, const struct trie *t)
{
    put_section(w, keys, t->keys, t->n_slots * sizeof *t->keys);
    put_section(w, keys + 1, t->nodes, t->n_slots * sizeof *t->nodes);
    put_section(w, keys + 2, t->tokens, t->n_nodes * sizeof *t->tokens);
}

static void put_scalars(struct image_writer *w, const struct tokenizer *t)
{
    struct image_scalars s = { .n_vocab = t->n_vocab, .bos_id = t->bos_id, .eos_id = t->eos_id, .model = t->model,
                               .cuts = t->bpe.cuts, .n_added = (uint32_t)t->added.n };
    const struct vocab *vocabs[2] = { &t->vocab, &t->added_vocab };
    const struct trie *tries[2] = { &t->added.raw, &t->added.normalized };
    memcpy(s.joined, t->bpe.joined, sizeof s.joined);
    s.bos = put_text(w, t->bos_text, strlen(t->bos_text));
    s.eos = put_text(w, t->eos_text, strlen(t->eos_text));
    for (int i = 0; i < 2; i++) {
        s.vocab[i].n_ids = vocabs[i]->n_ids;
        s.vocab[i].max_len = vocabs[i]->max_len;
        s.trie[i].n_nodes = tries[i]->n_nodes;
        for (int c = 0; c < 256; c++) s.trie[i].first[c] = tries[i]->first[c];
    }
    put_section(w, SEC_SCALARS, &s, sizeof s);
}

static void put_added(struct image_writer *w, const struct added_set *set)
{
    struct buf rows;
    buf_init(&rows, TOKENIZER_MAX_FILE);
    for (size_t i = 0; i < set->n; i++) {
        const struct added_token *a = &set->items[i];
        struct image_added row = { .id = a->id, .flags = a->flags };
        row.text = put_text(w, a->text.ptr, a->text.len);
        row.pattern = put_text(w, a->pattern.ptr, a->pattern.len);
        buf_append(&rows, &row, sizeof row);
    }
    if (rows.failed != MB_OK) w->out.failed = rows.failed;
    put_section(w, SEC_ADDED, rows.data, rows.len);
    buf_free(&rows);
}

static void put_all(struct image_writer *w, const struct tokenizer *t, struct str sections)
{
    buf_append(&w->out, &w->head, sizeof w->head); /* its place */
    put_section(w, SEC_JSON, sections.ptr, sections.len);
    put_section(w, SEC_CONFIG, t->config.ptr, t->config.len);
    put_scalars(w, t);
    put_added(w, &t->added);
    put_section(w, SEC_TEXT, w->text.data, w->text.len);
    put_section(w, SEC_FLAGS, t->id_flags, (size_t)t->n_vocab);
    put_vocab(w, SEC_VOCAB_BLOB, &t->vocab);
    put_vocab(w, SEC_ADDED_BLOB, &t->added_vocab);
    put_trie(w, SEC_RAW_KEYS, &t->added.raw);
    put_trie(w, SEC_NORM_KEYS, &t->added.normalized);
    put_section(w, SEC_MERGES, t->bpe.slots, t->bpe.n_slots * sizeof *t->bpe.slots);
    put_section(w, SEC_MERGE_IDS, t->bpe.merge_ids, t->bpe.n_merges * sizeof *t->bpe.merge_ids);
    put_section(w, SEC_WORDS, t->bpe.words.at, t->bpe.words.n * sizeof *t->bpe.words.at);
    put_section(w, SEC_SHORT_WORDS, t->bpe.words.shorts, t->bpe.words.n_shorts * sizeof *t->bpe.words.shorts);
    put_section(w, SEC_SCORES, t->unigram.scores, t->unigram.n_scores * sizeof *t->unigram.scores);
    put_section(w, SEC_PIECE_FIRST, t->pieces.first, t->pieces.n ? (t->pieces.n + 1u) * sizeof *t->pieces.first : 0);
    put_section(w, SEC_PIECE_LABEL, t->pieces.label, t->pieces.n);
    put_section(w, SEC_PIECE_ID, t->pieces.id, t->pieces.n * sizeof *t->pieces.id);
}

mb_status image_write(const struct tokenizer *t, struct str sections, const char *path, uint64_t key, mb_error *err)
{
    struct image_writer w;
    memset(&w.head, 0, sizeof w.head);
    buf_init(&w.out, 2 * TOKENIZER_MAX_FILE);
    buf_init(&w.text, TOKENIZER_MAX_FILE);
    put_all(&w, t, sections);
    mb_status st = buf_status(&w.out, "tokenizer image", err);
    if (st == MB_OK) st = buf_status(&w.text, "tokenizer image", err);
    if (st == MB_OK) {
        memcpy(w.head.magic, image_magic, sizeof w.head.magic);
        w.head.version = IMAGE_VERSION;
        w.head.n_sections = N_SECTIONS;
        w.head.key = key;
        w.head.size_bytes = w.out.len;
        memcpy(w.out.data, &w.head, sizeof w.head);
        w.head.checksum = check_blocks((const uint8_t *)w.out.data, w.out.len, NULL);
        memcpy(w.out.data, &w.head, sizeof w.head);
        st = file_write_replace(path, w.out.data, w.out.len, err);
    }
    buf_free(&w.out);
    buf_free(&w.text);
    return st;
}

/* --- reading --- */

struct image_reader {
    const uint8_t *data;
    const struct image_head *head;
    bool bad;
};

/* A section as an array of `size`-byte elements. */
static void *take(struct image_reader *r, enum section s, size_t size, size_t *n)
{
    size_t len = (size_t)r->head->at[s].len;
    if (len % size) r->bad = true;
    *n = len / size;
    return (void *)(uintptr_t)(r->data + r->head->at[s].off); /* never written: the map is read-only */
}

static void take_vocab(struct image_reader *r, enum section blob, struct vocab *v, int32_t n_ids, uint32_t max_len)
{
    size_t n;
    v->blob.data = take(r, blob, 1, &v->blob.len);
    v->at = take(r, blob + 1, sizeof *v->at, &n);
    if (n_ids < 0 || (size_t)n_ids != n || n_ids > TOKENIZER_MAX_ID) r->bad = true;
    v->n_ids = v->cap_ids = n_ids;
    v->slots = take(r, blob + 2, sizeof *v->slots, &n);
    v->n_slots = n <= UINT32_MAX ? (uint32_t)n : 0;
    v->max_len = max_len;
}

static void take_trie(struct image_reader *r, enum section keys, struct trie *t, uint32_t n_nodes, const uint8_t first[256])
{
    size_t n_keys, n_children, n_tokens;
    t->keys = take(r, keys, sizeof *t->keys, &n_keys);
    t->nodes = take(r, keys + 1, sizeof *t->nodes, &n_children);
    t->tokens = take(r, keys + 2, sizeof *t->tokens, &n_tokens);
    if (n_keys != n_children || n_tokens != n_nodes || n_keys > UINT32_MAX / 4) r->bad = true;
    t->n_slots = (uint32_t)n_keys;
    t->n_nodes = t->cap_nodes = n_nodes;
    for (int c = 0; c < 256; c++) t->first[c] = first[c] != 0;
}

static struct str take_text(struct image_reader *r, struct image_text t)
{
    size_t n;
    const char *all = take(r, SEC_TEXT, 1, &n);
    if (t.off >= n || t.len >= n - t.off || all[t.off + t.len] != '\0') {
        r->bad = true;
        return STR_LIT("");
    }
    return (struct str){ all + t.off, t.len };
}

static mb_status take_added(struct image_reader *r, struct added_set *set, uint32_t n_added, mb_error *err)
{
    size_t n;
    const struct image_added *rows = take(r, SEC_ADDED, sizeof *rows, &n);
    if (n != n_added) r->bad = true;
    set->items = mb_calloc(n + 1, sizeof *set->items);
    if (!set->items) return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for the added tokens");
    set->n = set->cap = n;
    for (size_t i = 0; i < n; i++)
        set->items[i] = (struct added_token){ .text = take_text(r, rows[i].text), .pattern = take_text(r, rows[i].pattern),
                                              .id = rows[i].id, .flags = rows[i].flags };
    return MB_OK;
}

static void take_pieces(struct image_reader *r, struct piece_trie *t)
{
    size_t n, n_first, n_id;
    t->first = take(r, SEC_PIECE_FIRST, sizeof *t->first, &n_first);
    t->label = take(r, SEC_PIECE_LABEL, 1, &n);
    t->id = take(r, SEC_PIECE_ID, sizeof *t->id, &n_id);
    if (n != n_id || n > TOKENIZER_MAX_NODES || n_first != (n ? n + 1 : 0)) r->bad = true;
    t->n = r->bad ? 0 : (uint32_t)n;
}

static mb_status take_tables(struct image_reader *r, struct tokenizer *t, mb_error *err)
{
    size_t n;
    const struct image_scalars *s = take(r, SEC_SCALARS, sizeof *s, &n);
    if (n != 1) return mb_fail(err, MB_BAD_FORMAT, "tokenizer image: damaged");
    if (s->model >= N_MODELS) return mb_fail(err, MB_BAD_FORMAT, "tokenizer image: damaged");
    t->model = (enum model_kind)s->model;
    t->n_vocab = s->n_vocab;
    t->bos_id = s->bos_id;
    t->eos_id = s->eos_id;
    t->bos_text = take_text(r, s->bos).ptr;
    t->eos_text = take_text(r, s->eos).ptr;
    t->id_flags = take(r, SEC_FLAGS, 1, &n);
    if (s->n_vocab < 0 || n != (size_t)s->n_vocab) r->bad = true;
    take_vocab(r, SEC_VOCAB_BLOB, &t->vocab, s->vocab[0].n_ids, s->vocab[0].max_len);
    take_vocab(r, SEC_ADDED_BLOB, &t->added_vocab, s->vocab[1].n_ids, s->vocab[1].max_len);
    take_trie(r, SEC_RAW_KEYS, &t->added.raw, s->trie[0].n_nodes, s->trie[0].first);
    take_trie(r, SEC_NORM_KEYS, &t->added.normalized, s->trie[1].n_nodes, s->trie[1].first);
    t->bpe.slots = take(r, SEC_MERGES, sizeof *t->bpe.slots, &n);
    t->bpe.n_slots = n <= UINT32_MAX ? (uint32_t)n : 0;
    t->bpe.merge_ids = take(r, SEC_MERGE_IDS, sizeof *t->bpe.merge_ids, &n);
    t->bpe.n_merges = n <= UINT32_MAX ? (uint32_t)n : 0;
    t->bpe.words.at = take(r, SEC_WORDS, sizeof *t->bpe.words.at, &n);
    t->bpe.words.n = n <= UINT32_MAX ? (uint32_t)n : 0;
    t->bpe.words.shorts = take(r, SEC_SHORT_WORDS, sizeof *t->bpe.words.shorts, &n);
    t->bpe.words.n_shorts = n <= UINT32_MAX ? (uint32_t)n : 0;
    t->unigram.scores = take(r, SEC_SCORES, sizeof *t->unigram.scores, &t->unigram.n_scores);
    take_pieces(r, &t->pieces);
    return take_added(r, &t->added, s->n_added, err);
}

/* The sections that are kept as text; they set options, so the tables must be there and sound. */
static mb_status take_sections(struct image_reader *r, struct tokenizer *t, mb_error *err)
{
    size_t n;
    json_t *root = NULL;
    const struct image_scalars *s = take(r, SEC_SCALARS, sizeof *s, &n);
    const char *text = take(r, SEC_JSON, 1, &n);
    mb_status st = json_read(&root, text, n, JSON_READ_DEFAULT, err);
    if (st == MB_OK) st = load_sections(t, root, err);
    t->config.ptr = take(r, SEC_CONFIG, 1, &t->config.len);
    t->bpe.cuts = s->cuts != 0;
    memcpy(t->bpe.joined, s->joined, sizeof s->joined);
    json_decref(root);
    return st;
}

static bool head_is_good(const struct filemap *m, uint64_t key)
{
    const struct image_head *h = (const struct image_head *)m->data;
    if (m->size_bytes < sizeof *h || memcmp(h->magic, image_magic, sizeof h->magic) != 0) return false;
    if (h->version != IMAGE_VERSION || h->n_sections != N_SECTIONS || h->key != key || h->size_bytes != m->size_bytes) return false;
    for (int i = 0; i < N_SECTIONS; i++)
        if (h->at[i].off % IMAGE_ALIGN || h->at[i].off < sizeof *h || h->at[i].off > m->size_bytes ||
            h->at[i].len > m->size_bytes - h->at[i].off)
            return false;
    return true;
}

mb_status image_open(struct tokenizer **out, const char *path, uint64_t key, mb_error *err)
{
    *out = NULL;
    struct filemap map;
    MB_TRY(filemap_open(&map, path, err));
    if (!head_is_good(&map, key)) {
        filemap_close(&map);
        return mb_fail(err, MB_BAD_FORMAT, "%s is out of date or damaged", path);
    }
    struct tokenizer *t = tokenizer_new();
    if (!t) {
        filemap_close(&map);
        return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory");
    }
    t->image = map;
    struct image_reader r = { .data = map.data, .head = (const struct image_head *)map.data };
    struct image_check check;
    mb_status st = take_tables(&r, t, err);
    if (st == MB_OK && !r.bad) {
        image_check_begin(&check, t);
        r.bad = check_blocks(map.data, map.size_bytes, &check) != r.head->checksum || !image_is_sound(&check);
    }
    if (st == MB_OK && r.bad) st = mb_fail(err, MB_BAD_FORMAT, "%s is damaged", path);
    if (st == MB_OK) st = take_sections(&r, t, err);
    if (st != MB_OK) {
        tokenizer_close(t);
        return st;
    }
    tokenizer_finish(t);
    *out = t;
    return MB_OK;
}

void image_release(struct tokenizer *t)
{
    if (!t->image.data) return;
    vocab_init(&t->vocab);
    vocab_init(&t->added_vocab);
    memset(&t->added.raw, 0, sizeof t->added.raw);
    memset(&t->added.normalized, 0, sizeof t->added.normalized);
    t->bpe.slots = NULL;
    t->bpe.merge_ids = NULL;
    t->bpe.words = (struct word_table){ 0 };
    t->pieces = (struct piece_trie){ 0 };
    t->unigram.scores = NULL;
    t->id_flags = NULL;
    filemap_close(&t->image);
}
