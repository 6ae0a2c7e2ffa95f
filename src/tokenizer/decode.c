/* decode.c: what one id adds to a text.
 *
 * The decoder section becomes steps that rewrite one token's text at the end of the output buffer. Steps behind a Fuse
 * (or ByteLevel, which fuses) see the whole text: a Strip there is kept apart for the detokeniser, a Replace of one
 * character works token by token all the same; others are refused by name. Two deliberate differences from the
 * oracle: an added token of a byte-level vocabulary is its own text, not byte-mapped (B-004), and torn bytes become
 * one U+FFFD per maximal ill-formed run in every family (B-040).
 */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define SECTION "decoder"

struct dec_loader {
    struct decoder *d;
    struct arena *mem;
};

static struct dec_step *step_new(struct dec_loader *l, enum dec_kind kind)
{
    struct dec_step *s = &l->d->steps[l->d->n++];
    *s = (struct dec_step){ .kind = kind };
    return s;
}

static mb_status behind_fuse(const char *type, mb_error *err)
{
    return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: %s: %.40s behind a Fuse is not supported", SECTION, type);
}

static mb_status required_str(struct dec_loader *l, const json_t *j, const char *key, const char *dflt,
                              struct str *out, mb_error *err)
{
    MB_TRY(step_str(j, SECTION, key, l->mem, out, err));
    if (out->ptr) return MB_OK;
    if (!dflt) return step_bad(err, SECTION, "the key %s is missing", key);
    *out = str_of(dflt);
    return MB_OK;
}

static mb_status load_strip(struct dec_loader *l, const json_t *j, mb_error *err)
{
    struct dec_step *s = l->d->fused ? &l->d->lead : step_new(l, DEC_STRIP);
    if (l->d->fused && s->text.ptr) return behind_fuse("a second Strip", err);
    size_t pos = 0;
    MB_TRY(required_str(l, j, "content", NULL, &s->text, err));
    if (s->text.len) utf8_next(s->text.ptr, s->text.len, &pos);
    if (!s->text.len || pos != s->text.len) return step_bad(err, SECTION, "Strip: content must be one character");
    MB_TRY(step_size(j, SECTION, "start", 0, &s->start, err));
    MB_TRY(step_size(j, SECTION, "stop", 0, &s->stop, err));
    if (s->start > 65535 || s->stop > 65535) return step_bad(err, SECTION, "Strip: start and stop must be below 65536");
    return MB_OK;
}

static mb_status load_replace(struct dec_loader *l, const json_t *j, mb_error *err)
{
    struct dec_step *s = step_new(l, DEC_REPLACE);
    MB_TRY(step_pattern(j, SECTION, l->mem, &s->pattern, err));
    MB_TRY(required_str(l, j, "content", NULL, &s->text, err));
    if (!l->d->fused) return MB_OK;
    size_t pos = 0;
    if (!s->pattern.regex) utf8_next(s->pattern.literal.ptr, s->pattern.literal.len, &pos);
    if (s->pattern.regex || pos != s->pattern.literal.len || l->d->lead.text.ptr)
        return behind_fuse("a Replace of more than one character", err);
    return MB_OK;
}

static mb_status load_ctc(struct dec_loader *l, const json_t *j, mb_error *err)
{
    struct dec_step *s = step_new(l, DEC_CTC);
    l->d->hold = true;
    MB_TRY(required_str(l, j, "pad_token", "<pad>", &s->text, err));
    MB_TRY(required_str(l, j, "word_delimiter_token", "|", &s->pattern.literal, err));
    return step_bool(j, SECTION, "cleanup", true, &s->flag, err);
}

static mb_status load_one(void *ctx, const json_t *j, const char *type, mb_error *err)
{
    struct dec_loader *l = ctx;
    struct dec_step *s;
    if (strcmp(type, "Fuse") == 0) {
        l->d->fused = true;
        return MB_OK;
    }
    if (strcmp(type, "Strip") == 0) return load_strip(l, j, err);
    if (strcmp(type, "Replace") == 0) return load_replace(l, j, err);
    if (l->d->fused) return behind_fuse(type, err);
    if (strcmp(type, "ByteLevel") == 0) {
        step_new(l, DEC_BYTE_LEVEL);
        l->d->byte_level = l->d->fused = true;
        return MB_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        step_new(l, DEC_BYTE_FALLBACK);
        return MB_OK;
    }
    if (strcmp(type, "Metaspace") == 0) {
        enum prepend_scheme scheme;
        s = step_new(l, DEC_METASPACE);
        MB_TRY(required_str(l, j, "replacement", "\xE2\x96\x81", &s->text, err));
        MB_TRY(step_scheme(j, SECTION, &scheme, err));
        s->flag = scheme != PREPEND_NEVER;
        return s->text.len ? MB_OK : step_bad(err, SECTION, "Metaspace: replacement is empty");
    }
    if (strcmp(type, "WordPiece") == 0) {
        s = step_new(l, DEC_WORDPIECE);
        MB_TRY(required_str(l, j, "prefix", "##", &s->text, err));
        return step_bool(j, SECTION, "cleanup", true, &s->flag, err);
    }
    if (strcmp(type, "BPEDecoder") == 0) {
        l->d->hold = true;
        return required_str(l, j, "suffix", "</w>", &step_new(l, DEC_BPE)->text, err);
    }
    if (strcmp(type, "CTC") == 0) return load_ctc(l, j, err);
    return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: %s: the type %.40s is not supported", SECTION, type);
}

mb_status dec_load(struct decoder *d, struct arena *mem, const json_t *j, mb_error *err)
{
    *d = (struct decoder){ 0 };
    d->steps = arena_alloc_array(mem, TOKENIZER_MAX_STEPS + 1, sizeof *d->steps);
    if (!d->steps) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the decoder");
    struct dec_loader l = { d, mem };
    if (!j || json_is_null(j)) step_new(&l, DEC_JOIN);
    return step_walk(j, SECTION, "decoders", load_one, &l, err);
}

void dec_free(struct decoder *d)
{
    for (size_t i = 0; i < d->n; i++) regex_close(d->steps[i].pattern.regex);
    d->n = 0;
}

/* --- running: the token's text is b[base..len) --- */

/* Replace all matches in the tail. at_most 0: no bound. */
static void tail_replace(struct buf *b, size_t base, const struct pattern *p, struct str content, size_t at_most)
{
    struct regex_scratch rx = { 0 };
    size_t end_old = b->len, kept = base, n_done = 0, first, end;
    bool found = false;
    if (!b->data || end_old == base) return;
    struct match_iter it = { .p = p, .len = end_old - base };
    for (;;) {
        it.text = b->data + base; /* the buffer may have moved */
        if (match_next(&it, &rx, &found, &first, &end, NULL) != MB_OK || !found) break;
        if (!buf_reserve(b, base + first - kept + content.len)) break;
        buf_append(b, b->data + kept, base + first - kept);
        buf_append(b, content.ptr, content.len);
        kept = base + end;
        if (++n_done == at_most) break;
    }
    regex_scratch_free(&rx);
    if (!n_done || !buf_reserve(b, end_old - kept)) return;
    buf_append(b, b->data + kept, end_old - kept);
    memmove(b->data + base, b->data + end_old, b->len - end_old);
    b->len = base + (b->len - end_old);
    b->data[b->len] = '\0';
}

static void tail_literal(struct buf *b, size_t base, struct str from, struct str to, size_t at_most)
{
    struct pattern p = { .literal = from };
    if (from.len) tail_replace(b, base, &p, to, at_most);
}

static void tail_insert_space(struct buf *b, size_t base)
{
    size_t n = b->len - base;
    buf_append_char(b, ' ');
    if (b->failed != MB_OK) return;
    memmove(b->data + base + 1, b->data + base, n);
    b->data[base] = ' ';
}

static void tail_cut(struct buf *b, size_t base, size_t n_front, size_t n_back)
{
    if (!b->data || b->failed != MB_OK) return;
    size_t n = b->len - base - n_front - n_back;
    memmove(b->data + base, b->data + base + n_front, n);
    b->len = base + n;
    b->data[b->len] = '\0';
}

static void tail_strip(const struct dec_step *s, struct buf *b, size_t base)
{
    size_t n = b->len - base, front = 0, back = 0;
    const char *at = b->data + base;
    for (size_t i = 0; i < s->start && n - front >= s->text.len; i++, front += s->text.len)
        if (memcmp(at + front, s->text.ptr, s->text.len) != 0) break;
    for (size_t i = 0; i < s->stop && n - front - back >= s->text.len; i++, back += s->text.len)
        if (memcmp(at + n - back - s->text.len, s->text.ptr, s->text.len) != 0) break;
    tail_cut(b, base, front, back);
}

static void tail_cleanup(struct buf *b, size_t base)
{
    static const struct { struct str from, to; } rows[] = {
        { { " .", 2 }, { ".", 1 } }, { { " ?", 2 }, { "?", 1 } }, { { " !", 2 }, { "!", 1 } },
        { { " ,", 2 }, { ",", 1 } }, { { " ' ", 3 }, { "'", 1 } }, { { " n't", 4 }, { "n't", 3 } },
        { { " 'm", 3 }, { "'m", 2 } }, { { " do not", 7 }, { " don't", 6 } }, { { " 's", 3 }, { "'s", 2 } },
        { { " 've", 4 }, { "'ve", 3 } }, { { " 're", 4 }, { "'re", 3 } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) tail_literal(b, base, rows[i].from, rows[i].to, 0);
}

/* Characters of the byte-level alphabet to bytes; a text with any other character stays. */
static void tail_byte_map(struct buf *b, size_t base)
{
    size_t n = b->len - base, n_out = 0;
    for (size_t i = base; i < b->len;)
        if (char_to_byte(utf8_next(b->data, b->len, &i)) < 0) return;
    bytes_of_alphabet(b->data + base, n, (uint8_t *)b->data + base, &n_out); /* never ahead of what it reads */
    b->len = base + n_out;
    b->data[b->len] = '\0';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0xNN>" becomes that byte. */
static bool tail_fallback(struct buf *b, size_t base)
{
    const char *s = b->data + base;
    if (b->len - base != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return false;
    int high = hex_value(s[3]), low = hex_value(s[4]);
    if (high < 0 || low < 0) return false;
    b->data[base] = (char)(high << 4 | low);
    b->len = base + 1;
    b->data[b->len] = '\0';
    return true;
}

static void run_wordpiece(const struct dec_step *s, bool first, struct buf *b, size_t base)
{
    if (!first) {
        struct str text = { b->data + base, b->len - base };
        if (s->text.len && str_starts(text, s->text)) tail_cut(b, base, s->text.len, 0);
        else if (s->text.len) tail_insert_space(b, base);
    }
    if (s->flag) tail_cleanup(b, base);
}

static void run_ctc(const struct dec_step *s, struct buf *b, size_t base)
{
    tail_literal(b, base, s->text, STR_LIT(""), 0);
    if (!s->flag) return;
    tail_cleanup(b, base);
    tail_literal(b, base, s->pattern.literal, STR_LIT(" "), 0);
}

void dec_token(const struct tokenizer *t, int32_t id, bool first, bool last, struct buf *b)
{
    size_t len, base = b->len;
    const char *piece = tokenizer_piece(t, id, &len);
    if (!piece) return;
    buf_append(b, piece, len);
    bool own_text = t->decoder.byte_level && (t->id_flags[id] & ID_ADDED) && !(t->id_flags[id] & ID_MERGED);
    for (size_t i = 0; i < t->decoder.n && b->failed == MB_OK && b->data; i++) {
        const struct dec_step *s = &t->decoder.steps[i];
        switch (s->kind) {
        case DEC_BYTE_LEVEL:
            if (!own_text) tail_byte_map(b, base);
            break;
        case DEC_BYTE_FALLBACK:
            if (tail_fallback(b, base) && (uint8_t)b->data[base] >= 0x80) return; /* part of a character: no text yet */
            break;
        case DEC_METASPACE: tail_literal(b, base, s->text, first && s->flag ? STR_LIT("") : STR_LIT(" "), 0); break;
        case DEC_STRIP: tail_strip(s, b, base); break;
        case DEC_REPLACE: tail_replace(b, base, &s->pattern, s->text, 0); break;
        case DEC_WORDPIECE: run_wordpiece(s, first, b, base); break;
        case DEC_BPE: tail_literal(b, base, s->text, last ? STR_LIT("") : STR_LIT(" "), 0); break;
        case DEC_CTC: run_ctc(s, b, base); break;
        case DEC_JOIN:
            if (!first) tail_insert_space(b, base);
            break;
        }
    }
}
