/* normalize.c: the normaliser section of tokenizer.json.
 *
 * norm_load flattens it to a list of steps (BertNormalizer becomes up to five); norm_run applies them one after the
 * other between two buffers, each output byte remembering the byte of the original text it came from. A step that
 * changes nothing copies nothing. Precompiled (SentencePiece's character map) is in charsmap.c.
 */
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define SECTION "normalizer"

struct norm_loader {
    struct norm_list *list;
    struct arena *mem;
};

static struct norm_step *step_new(struct norm_loader *l, enum norm_kind kind)
{
    struct norm_step *s = &l->list->steps[l->list->n++];
    *s = (struct norm_step){ .kind = kind };
    return s;
}

static mb_status load_bert(struct norm_loader *l, const json_t *j, mb_error *err)
{
    bool clean, cjk, lower, accents;
    MB_TRY(step_bool(j, SECTION, "clean_text", true, &clean, err));
    MB_TRY(step_bool(j, SECTION, "handle_chinese_chars", true, &cjk, err));
    MB_TRY(step_bool(j, SECTION, "lowercase", true, &lower, err));
    MB_TRY(step_bool(j, SECTION, "strip_accents", lower, &accents, err));
    if (clean) step_new(l, NORM_BERT_CLEAN);
    if (cjk) step_new(l, NORM_BERT_CJK);
    if (accents) {
        step_new(l, NORM_NFD);
        step_new(l, NORM_STRIP_NONSPACING);
    }
    if (lower) step_new(l, NORM_LOWERCASE);
    return MB_OK;
}

static mb_status load_precompiled(struct norm_loader *l, const json_t *j, mb_error *err)
{
    const json_t *text = json_object_get(j, "precompiled_charsmap");
    struct charsmap *m = arena_alloc(l->mem, sizeof *m);
    if (!m) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the normaliser");
    if (!json_is_string(text)) return step_bad(err, SECTION, "Precompiled: the key precompiled_charsmap is missing or not a string");
    *m = (struct charsmap){ 0 };
    step_new(l, NORM_CHARSMAP)->charsmap = m;
    return charsmap_load(m, l->mem, json_string_value(text), json_string_length(text), err);
}

static mb_status load_one(void *ctx, const json_t *j, const char *type, mb_error *err)
{
    struct norm_loader *l = ctx;
    static const struct { const char *type; enum norm_kind kind; } plain[] = {
        { "NFC", NORM_NFC }, { "NFD", NORM_NFD }, { "NFKC", NORM_NFKC }, { "NFKD", NORM_NFKD },
        { "Lowercase", NORM_LOWERCASE }, { "StripAccents", NORM_STRIP_ACCENTS }, { "Nmt", NORM_NMT },
        { "ByteLevel", NORM_BYTE_LEVEL },
    };
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(type, plain[i].type) == 0) {
            step_new(l, plain[i].kind);
            return MB_OK;
        }
    if (strcmp(type, "BertNormalizer") == 0) return load_bert(l, j, err);
    if (strcmp(type, "Strip") == 0) {
        struct norm_step *s = step_new(l, NORM_STRIP);
        MB_TRY(step_bool(j, SECTION, "strip_left", true, &s->left, err));
        return step_bool(j, SECTION, "strip_right", true, &s->right, err);
    }
    if (strcmp(type, "Prepend") == 0) {
        struct norm_step *s = step_new(l, NORM_PREPEND);
        MB_TRY(step_str(j, SECTION, "prepend", l->mem, &s->content, err));
        return s->content.ptr ? MB_OK : step_bad(err, SECTION, "Prepend: the key prepend is missing");
    }
    if (strcmp(type, "Replace") == 0) {
        struct norm_step *s = step_new(l, NORM_REPLACE);
        MB_TRY(step_pattern(j, SECTION, l->mem, &s->pattern, err));
        MB_TRY(step_str(j, SECTION, "content", l->mem, &s->content, err));
        return s->content.ptr ? MB_OK : step_bad(err, SECTION, "Replace: the key content is missing");
    }
    if (strcmp(type, "Precompiled") == 0) return load_precompiled(l, j, err);
    return mb_fail(err, MB_UNSUPPORTED, "tokenizer.json: %s: the type %.40s is not supported", SECTION, type);
}

mb_status norm_load(struct norm_list *l, struct arena *mem, const json_t *j, mb_error *err)
{
    *l = (struct norm_list){ 0 };
    if (!j || json_is_null(j)) return MB_OK;
    l->steps = arena_alloc_array(mem, TOKENIZER_MAX_STEPS * 5, sizeof *l->steps);
    if (!l->steps) return mb_fail(err, MB_NO_MEMORY, "tokenizer.json: no memory for the normaliser");
    struct norm_loader loader = { l, mem };
    return step_walk(j, SECTION, "normalizers", load_one, &loader, err);
}

void norm_free(struct norm_list *l)
{
    for (size_t i = 0; i < l->n; i++) regex_close(l->steps[i].pattern.regex);
    l->n = 0;
}

/* --- running --- */

/* What a per-character step makes of cp: number of characters written to out (at most 3); -1: as it is. */
static int map_lower(uint32_t cp, uint32_t out[3])
{
    if (cp < 0x80) {
        if (cp < 'A' || cp > 'Z') return -1;
        out[0] = cp + 32;
        return 1;
    }
    if (cp == 0x130) { /* the only character whose lower case is two */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    uint32_t low = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    if (low == cp) return -1;
    out[0] = low;
    return 1;
}

static int map_nmt(uint32_t cp, uint32_t out[3])
{
    if ((cp >= 1 && cp <= 8) || cp == 0x0B || (cp >= 0x0E && cp <= 0x1F) || cp == 0x7F || cp == 0x8F || cp == 0x9F)
        return 0;
    if (cp == 9 || cp == 10 || cp == 12 || cp == 13 || cp == 0x1680 || (cp >= 0x200B && cp <= 0x200F) ||
        cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD) {
        out[0] = ' ';
        return 1;
    }
    return -1;
}

static int map_bert_clean(uint32_t cp, uint32_t out[3])
{
    if (cp == '\t' || cp == '\n' || cp == '\r' || (uni_is_space(cp) && !uni_is_other(cp))) {
        out[0] = ' ';
        return cp == ' ' ? -1 : 1;
    }
    return cp == 0 || cp == 0xFFFD || uni_is_other(cp) ? 0 : -1;
}

static int map_bert_cjk(uint32_t cp, uint32_t out[3])
{
    if (!uni_is_cjk(cp)) return -1;
    out[0] = out[2] = ' ';
    out[1] = cp;
    return 3;
}

static int map_char(enum norm_kind kind, uint32_t cp, uint32_t out[3])
{
    switch (kind) {
    case NORM_LOWERCASE: return map_lower(cp, out);
    case NORM_STRIP_ACCENTS: return uni_is_mark(cp) ? 0 : -1;
    case NORM_STRIP_NONSPACING: return uni_is_mark_nonspacing(cp) ? 0 : -1;
    case NORM_NMT: return map_nmt(cp, out);
    case NORM_BERT_CLEAN: return map_bert_clean(cp, out);
    case NORM_BERT_CJK: return map_bert_cjk(cp, out);
    default: return -1;
    }
}

static bool run_map(enum norm_kind kind, const struct mtext *x, struct mbuf *out)
{
    size_t kept = 0;
    bool changed = false;
    for (size_t i = 0; i < x->n;) {
        size_t first = i;
        uint32_t to[3];
        int n = map_char(kind, utf8_next(x->s, x->n, &i), to);
        if (n < 0) continue;
        changed = true;
        mbuf_copy(out, x, kept, first);
        kept = i;
        for (int k = 0; k < n; k++) {
            char utf8[4];
            size_t len = (size_t)utf8_encode(to[k], utf8);
            mbuf_put(out, utf8, len, mtext_first(x, first), mtext_end(x, i - 1));
        }
    }
    if (changed) mbuf_copy(out, x, kept, x->n);
    return changed;
}

static bool run_byte_level(const struct mtext *x, struct mbuf *out)
{
    for (size_t i = 0; i < x->n; i++) {
        char utf8[4];
        size_t len = (size_t)utf8_encode(byte_to_char((uint8_t)x->s[i]), utf8);
        mbuf_put(out, utf8, len, mtext_first(x, i), mtext_end(x, i));
    }
    return true;
}

static bool run_strip(const struct norm_step *s, const struct mtext *x, struct mbuf *out)
{
    size_t first = 0, end = x->n, pos;
    while (s->left && first < end) {
        pos = first;
        if (!uni_is_space(utf8_next(x->s, end, &pos))) break;
        first = pos;
    }
    while (s->right && end > first) {
        if (!uni_is_space(utf8_last(x->s, end, &pos))) break;
        end = pos;
    }
    if (first == 0 && end == x->n) return false;
    mbuf_copy(out, x, first, end);
    return true;
}

static mb_status run_replace(const struct norm_step *s, struct regex_scratch *rx, const struct mtext *x,
                             struct mbuf *out, bool *changed, mb_error *err)
{
    struct match_iter it = { .p = &s->pattern, .text = x->s, .len = x->n };
    size_t kept = 0, first, end;
    bool found;
    *changed = false;
    for (;;) {
        MB_TRY(match_next(&it, rx, &found, &first, &end, err));
        if (!found) break;
        *changed = true;
        mbuf_copy(out, x, kept, first);
        mbuf_put(out, s->content.ptr, s->content.len, mtext_first(x, first), end ? mtext_end(x, end - 1) : x->base);
        if (out->failed != MB_OK) return mbuf_status(out, err);
        kept = end;
    }
    if (*changed) mbuf_copy(out, x, kept, x->n);
    return MB_OK;
}

static mb_status run_step(const struct norm_step *s, struct regex_scratch *rx, const struct mtext *x,
                          struct mbuf *out, bool *changed, mb_error *err)
{
    switch (s->kind) {
    case NORM_NFC: case NORM_NFD: case NORM_NFKC: case NORM_NFKD:
        *changed = nf_run(s->kind, x, out);
        break;
    case NORM_STRIP:
        *changed = run_strip(s, x, out);
        break;
    case NORM_REPLACE:
        MB_TRY(run_replace(s, rx, x, out, changed, err));
        break;
    case NORM_PREPEND:
        *changed = x->n > 0;
        mbuf_put(out, s->content.ptr, *changed ? s->content.len : 0, x->base, x->base);
        if (*changed) mbuf_copy(out, x, 0, x->n);
        break;
    case NORM_BYTE_LEVEL:
        *changed = run_byte_level(x, out);
        break;
    case NORM_CHARSMAP:
        *changed = charsmap_run(s->charsmap, x, out);
        break;
    default:
        *changed = run_map(s->kind, x, out);
    }
    return mbuf_status(out, err);
}

mb_status norm_run(const struct norm_list *l, struct regex_scratch *s, const struct mtext *src, struct mbuf tmp[2],
                   struct mtext *out, mb_error *err)
{
    int i_buf = 0;
    *out = *src;
    for (size_t i = 0; i < l->n; i++) {
        struct mbuf *b = &tmp[i_buf];
        bool changed = false;
        b->n = 0;
        MB_TRY(run_step(&l->steps[i], s, out, b, &changed, err));
        if (!changed) continue;
        *out = mbuf_view(b);
        i_buf ^= 1;
    }
    return MB_OK;
}
