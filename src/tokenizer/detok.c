/* detok.c: ids to text, one at a time and all at once.
 *
 * Each id adds bytes (dec_token); here they are joined: text leaves only as whole characters, and only when no later
 * id can change it. Held back are at most: the beginning of a character, as many characters as a Strip at the end may
 * take, and one token for decoders whose token depends on the next (BPEDecoder, CTC). tokenizer_decode feeds the same
 * machine, so that both agree by construction.
 */
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

void detok_init(struct detok *d, const struct tokenizer *t, bool skip_special)
{
    memset(d, 0, sizeof *d);
    d->t = t;
    d->at_start = true;
    d->skip_special = skip_special;
    d->held = -1;
    d->n_lead = t->decoder.lead.start;
    buf_init(&d->pending, 1 << 26);
}

void detok_free(struct detok *d)
{
    buf_free(&d->pending);
    memset(d, 0, sizeof *d);
}

/* Bytes at s that are certain: *len of them; replaced: they are ill-formed, one U+FFFD stands for them. 0: wait. */
static size_t certain(const char *s, size_t n, bool final, bool *replaced)
{
    bool cut_off = false;
    size_t good = utf8_valid_prefix(s, n, &cut_off);
    *replaced = false;
    if (good || !n) return good;
    if (cut_off && !final) return 0;
    *replaced = true;
    return utf8_invalid_length(s, n);
}

/* Does the text begin with the Strip's character? 1 yes, 0 no, -1 more bytes are needed. */
static int begins(const struct str *c, const char *s, size_t n)
{
    size_t k = n < c->len ? n : c->len;
    if (memcmp(s, c->ptr, k) != 0) return 0;
    return k == c->len ? 1 : -1;
}

/* Take what a Strip of the whole text removes at its beginning. */
static size_t strip_lead(struct detok *d, const char *s, size_t n, bool final)
{
    const struct str *c = &d->t->decoder.lead.text;
    size_t off = 0;
    while (d->n_lead && off < n) {
        int is = begins(c, s + off, n - off);
        if (is < 0 && !final) break;
        if (is <= 0) {
            d->n_lead = 0;
            break;
        }
        off += c->len;
        d->n_lead--;
    }
    return off;
}

/* Length of the run at the end that a Strip may still take. */
static size_t tail_at_risk(const struct dec_step *lead, const char *s, size_t n)
{
    size_t back = 0;
    for (size_t i = 0; i < lead->stop && n - back >= lead->text.len; i++, back += lead->text.len)
        if (memcmp(s + n - back - lead->text.len, lead->text.ptr, lead->text.len) != 0) break;
    return back;
}

static void emit(struct detok *d, struct buf *out, bool final)
{
    struct buf *p = &d->pending;
    if (!p->data) return;
    size_t off = strip_lead(d, p->data, p->len, final), held = 0;
    if (d->t->decoder.lead.stop) held = tail_at_risk(&d->t->decoder.lead, p->data + off, p->len - off);
    size_t end = p->len - held;
    if (d->n_lead && !final && off < p->len) end = off; /* the beginning is not decided yet */
    while (off < end) {
        bool replaced;
        size_t n = certain(p->data + off, end - off, final || held, &replaced);
        if (!n) break;
        if (replaced) buf_append_str(out, "\xEF\xBF\xBD");
        else buf_append(out, p->data + off, n);
        off += n;
    }
    if (final) off = p->len;
    memmove(p->data, p->data + off, p->len - off);
    p->len -= off;
    p->data[p->len] = '\0';
}

static void take(struct detok *d, int32_t id, bool last)
{
    dec_token(d->t, id, d->at_start, last, &d->pending);
    d->at_start = false;
}

void detok_push(struct detok *d, int32_t id, struct buf *out)
{
    const struct tokenizer *t = d->t;
    if (!tokenizer_piece(t, id, NULL)) return;
    if (d->skip_special && tokenizer_is_special(t, id)) return;
    if (t->decoder.hold) {
        int32_t held = d->held;
        if (held == id && t->decoder.steps[t->decoder.n - 1].kind == DEC_CTC) return; /* repeats count once */
        d->held = id;
        if (held < 0) return;
        id = held;
    }
    take(d, id, false);
    emit(d, out, false);
}

void detok_finish(struct detok *d, struct buf *out)
{
    if (d->held >= 0) take(d, d->held, true);
    d->held = -1;
    emit(d, out, true);
    if (d->pending.failed != MB_OK && out->failed == MB_OK) out->failed = d->pending.failed;
}

mb_status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, struct buf *b,
                           mb_error *err)
{
    struct detok d;
    detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n && b->failed == MB_OK && d.pending.failed == MB_OK; i++) detok_push(&d, ids[i], b);
    detok_finish(&d, b);
    detok_free(&d);
    return buf_status(b, "tokenizer: decoded text", err);
}

void tokenizer_token_bytes(const struct tokenizer *t, int32_t id, bool first, struct buf *b)
{
    size_t base = b->len, off = 0;
    const struct dec_step *lead = &t->decoder.lead;
    dec_token(t, id, first, false, b);
    if (!first || !lead->start || b->failed != MB_OK || b->len == base) return;
    for (size_t i = 0; i < lead->start && b->len - base - off >= lead->text.len; i++, off += lead->text.len)
        if (memcmp(b->data + base + off, lead->text.ptr, lead->text.len) != 0) break;
    memmove(b->data + base, b->data + base + off, b->len - base - off);
    b->len -= off;
    b->data[b->len] = '\0';
}
