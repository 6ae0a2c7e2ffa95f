/* charsmap.c: the normaliser Precompiled: SentencePiece's map of characters, as the file carries it.
 *
 * The map is base64 of: the size of a double array in bytes (u32, little endian), the array, and the texts that characters
 * become, each with a NUL behind it. The oracle looks up grapheme clusters of less than six bytes as wholes, and takes the
 * shortest entry that begins the cluster for all of it; else character by character. Both are kept as they are.
 * Every index of the file's array is checked: whatever it holds, a walk ends and stays inside.
 */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define WHOLE_BELOW 6   /* bytes of a cluster */
#define TEXT_MAX 4096   /* bytes that a character may become */

/* --- loading --- */

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* out has room for len / 4 * 3 bytes. */
static bool base64_bytes(const char *s, size_t len, uint8_t *out, size_t *n_out)
{
    size_t n = 0, n_pad = len && s[len - 1] == '=' ? 1 : 0;
    if (len % 4) return false;
    if (n_pad && s[len - 2] == '=') n_pad = 2;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t v = 0;
        size_t n_here = i + 4 == len ? 3 - n_pad : 3;
        for (size_t k = 0; k < 4; k++) {
            int six = k > n_here ? 0 : base64_value(s[i + k]);
            if (six < 0) return false;
            v = v << 6 | (uint32_t)six;
        }
        for (size_t k = 0; k < n_here; k++) out[n++] = (uint8_t)(v >> (16 - 8 * k));
    }
    *n_out = n;
    return true;
}

static uint32_t little_32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool transform(const struct charsmap *m, const char *s, size_t len, struct str *to);

/* Looking up a text reads it to its end, for every character that becomes it. */
static bool texts_are_short(struct str texts)
{
    for (size_t at = 0, n; at < texts.len; at += n + 1) {
        const char *end = memchr(texts.ptr + at, '\0', texts.len - at);
        n = end ? (size_t)(end - (texts.ptr + at)) : texts.len - at;
        if (n > TEXT_MAX) return false;
    }
    return true;
}

static mb_status read_map(struct charsmap *m, struct arena *mem, const uint8_t *data, size_t n, mb_error *err)
{
    static const char section[] = "normalizer";
    size_t n_units = n >= 4 ? little_32(data) / 4 : 0;
    if (n < 4 || n_units > (n - 4) / 4) return step_bad(err, section, "Precompiled: the map is cut off");
    uint32_t *units = arena_alloc_array(mem, n_units + 1, sizeof *units);
    char *texts = arena_strndup(mem, (const char *)data + 4 + 4 * n_units, n - 4 - 4 * n_units);
    if (!units || !texts) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the map of characters");
    for (size_t i = 0; i < n_units; i++) units[i] = little_32(data + 4 + 4 * i);
    m->units = units;
    m->n_units = n_units;
    m->texts = (struct str){ texts, n - 4 - 4 * n_units };
    if (!utf8_valid(m->texts.ptr, m->texts.len)) return step_bad(err, section, "Precompiled: its texts are not UTF-8");
    if (!texts_are_short(m->texts)) return step_bad(err, section, "Precompiled: a character becomes more than 4,096 bytes");
    for (int c = 0; c < 128; c++) {
        struct str to;
        char s = (char)c;
        m->plain[c] = !transform(m, &s, 1, &to);
    }
    return MB_OK;
}

mb_status charsmap_load(struct charsmap *m, struct arena *mem, const char *base64, size_t len, mb_error *err)
{
    size_t n;
    uint8_t *data = mb_alloc(len / 4 * 3 + 1);
    if (!data) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the map of characters");
    mb_status st = base64_bytes(base64, len, data, &n) ? read_map(m, mem, data, n, err)
                                                       : step_bad(err, "normalizer", "Precompiled: precompiled_charsmap is not base64");
    mb_free(data);
    return st;
}

/* --- look-up --- */

static uint32_t unit_offset(uint32_t unit)
{
    return unit >> 10 << ((unit & 1u << 9) >> 6);
}

/* What the shortest entry that begins s becomes. */
static bool transform(const struct charsmap *m, const char *s, size_t len, struct str *to)
{
    size_t node = 0;
    if (!m->n_units) return false;
    node ^= unit_offset(m->units[0]);
    for (size_t i = 0; i < len && s[i]; i++) {
        node ^= (uint8_t)s[i];
        if (node >= m->n_units) return false;
        uint32_t unit = m->units[node];
        if ((unit & (1u << 31 | 0xFF)) != (uint8_t)s[i]) return false;
        node ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        size_t at = node < m->n_units ? m->units[node] & ~(1u << 31) : m->texts.len;
        if (at >= m->texts.len || ((uint8_t)m->texts.ptr[at] & 0xC0) == 0x80) return false;
        *to = str_of(m->texts.ptr + at);
        return true;
    }
    return false;
}

/* End of the grapheme cluster at s[first]. */
static size_t cluster_end(const char *s, size_t n, size_t first)
{
    utf8proc_int32_t state = 0;
    size_t end = first;
    uint32_t cp = utf8_next(s, n, &end);
    for (size_t next = end; end < n; end = next) {
        uint32_t following = utf8_next(s, n, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)following, &state)) break;
        cp = following;
    }
    return end;
}

struct charsmap_run {
    const struct charsmap *m;
    const struct mtext *x;
    struct mbuf *out;
    size_t kept;  /* bytes of x before this one are in out */
    bool changed;
};

static bool replace(struct charsmap_run *r, size_t first, size_t end)
{
    struct str to;
    if (!transform(r->m, r->x->s + first, end - first, &to)) return false;
    mbuf_copy(r->out, r->x, r->kept, first);
    mbuf_put(r->out, to.ptr, to.len, mtext_first(r->x, first), mtext_end(r->x, end - 1));
    r->kept = end;
    return r->changed = true;
}

bool charsmap_run(const struct charsmap *m, const struct mtext *x, struct mbuf *out)
{
    struct charsmap_run r = { .m = m, .x = x, .out = out };
    for (size_t i = 0, end; i < x->n && out->failed == MB_OK; i = end) {
        /* Plain ASCII with plain ASCII behind it is a cluster of its own. */
        while (i + 1 < x->n && (uint8_t)x->s[i] < 0x80 && (uint8_t)x->s[i + 1] < 0x80 && x->s[i] != '\r' && m->plain[(uint8_t)x->s[i]]) i++;
        end = cluster_end(x->s, x->n, i);
        if (end - i < WHOLE_BELOW && replace(&r, i, end)) continue;
        for (size_t at = i, next = i; at < end; at = next) {
            utf8_next(x->s, end, &next);
            replace(&r, at, next);
        }
    }
    if (r.changed) mbuf_copy(out, x, r.kept, x->n);
    return r.changed;
}
