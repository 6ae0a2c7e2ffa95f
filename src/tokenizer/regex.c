/* regex.c: regular expressions over PCRE2 (UTF, UCP, JIT).
 *
 * A compiled pattern is immutable and shared; the scratch of one encode holds match data and, once a text asks for it,
 * a JIT stack that grows to 64 MiB, so that a run of 200,000 letters neither overflows the thread's stack nor fails
 * (B-001). Past that the interpreter, which works on the heap, takes over; past its limits the text is refused.
 */
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define MAX_PATTERN 65536
#define JIT_STACK_FIRST (64 * 1024)
#define JIT_STACK_MAX (64 * 1024 * 1024)
#define HEAP_LIMIT_KIB (1024 * 1024)
#define MATCH_LIMIT_FIXED 10000000
#define MATCH_LIMIT_PER_BYTE 64

struct regex {
    pcre2_code *code;
    bool jit;
};

static void *re_alloc(PCRE2_SIZE n, void *ctx)
{
    (void)ctx;
    return mb_alloc(n);
}

static void re_free(void *p, void *ctx)
{
    (void)ctx;
    mb_free(p);
}

static mb_status compile(pcre2_code **out, const struct buf *text, mb_error *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_general_context *general = pcre2_general_context_create(re_alloc, re_free, NULL);
    pcre2_compile_context *ctx = general ? pcre2_compile_context_create(general) : NULL;
    if (ctx) {
        pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
        *out = pcre2_compile((PCRE2_SPTR)(text->data ? text->data : ""), text->len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at, ctx);
    }
    pcre2_compile_context_free(ctx);
    pcre2_general_context_free(general);
    if (*out) return MB_OK;
    if (!ctx || code == 121 /* failed to allocate heap memory */)
        return mb_fail(err, MB_NO_MEMORY, "regular expression: no memory");
    PCRE2_UCHAR why[160] = "unknown error";
    pcre2_get_error_message(code, why, sizeof why);
    return mb_fail(err, MB_UNSUPPORTED, "regular expression: %s", (const char *)why);
}

mb_status regex_open(struct regex **out, const char *pattern, size_t len, mb_error *err)
{
    struct buf text;
    *out = NULL;
    if (len > MAX_PATTERN)
        return mb_fail(err, MB_TOO_LARGE, "regular expression: %zu bytes, at most %d are read", len, MAX_PATTERN);
    buf_init(&text, 16 * MAX_PATTERN);
    struct regex *r = mb_calloc(1, sizeof *r);
    mb_status st = r ? regex_translate(&text, pattern, len, err)
                     : mb_fail(err, MB_NO_MEMORY, "regular expression: no memory");
    if (st == MB_OK) st = compile(&r->code, &text, err);
    buf_free(&text);
    if (st != MB_OK) {
        regex_close(r);
        return st;
    }
    r->jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) == 0;
    *out = r;
    return MB_OK;
}

void regex_close(struct regex *r)
{
    if (!r) return;
    pcre2_code_free(r->code);
    mb_free(r);
}

void regex_scratch_free(struct regex_scratch *s)
{
    pcre2_match_data_free(s->match_data);
    pcre2_match_context_free(s->match_ctx);
    pcre2_jit_stack_free(s->jit_stack);
    *s = (struct regex_scratch){ 0 };
}

static bool scratch_ready(struct regex_scratch *s)
{
    if (s->match_data) return true;
    pcre2_general_context *general = pcre2_general_context_create(re_alloc, re_free, NULL);
    if (!general) return false;
    s->match_ctx = pcre2_match_context_create(general);
    if (s->match_ctx) s->match_data = pcre2_match_data_create(1, general);
    pcre2_general_context_free(general);
    if (!s->match_data) return false;
    pcre2_set_heap_limit(s->match_ctx, HEAP_LIMIT_KIB);
    return true;
}

static int search(const struct regex *r, struct regex_scratch *s, const char *text, size_t len, size_t start)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (r->jit) {
        rc = pcre2_jit_match(r->code, subject, len, start, 0, s->match_data, s->match_ctx);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !s->jit_stack) {
            s->jit_stack = pcre2_jit_stack_create(JIT_STACK_FIRST, JIT_STACK_MAX, NULL);
            if (s->jit_stack) {
                pcre2_jit_stack_assign(s->match_ctx, NULL, s->jit_stack);
                rc = pcre2_jit_match(r->code, subject, len, start, 0, s->match_data, s->match_ctx);
            }
        }
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, subject, len, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match_data, s->match_ctx);
    return rc;
}

mb_status regex_find(const struct regex *r, struct regex_scratch *s, const char *text, size_t len, size_t start,
                     bool *found, size_t *first, size_t *end, mb_error *err)
{
    *found = false;
    if (!scratch_ready(s)) return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for a regular expression");
    uint64_t limit = MATCH_LIMIT_FIXED + (uint64_t)MATCH_LIMIT_PER_BYTE * len;
    pcre2_set_match_limit(s->match_ctx, limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit);
    int rc = search(r, s, text, len, start);
    if (rc == PCRE2_ERROR_NOMATCH) return MB_OK;
    if (rc < 0) {
        if (rc == PCRE2_ERROR_NOMEMORY) return mb_fail(err, MB_NO_MEMORY, "tokenizer: no memory for a regular expression");
        return mb_fail(err, MB_TOO_LARGE,
                       "tokenizer: a regular expression of tokenizer.json gave up at byte %zu of a text of %zu (code %d)",
                       start, len, rc);
    }
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match_data);
    *found = true;
    *end = at[1];
    *first = at[0] <= at[1] ? at[0] : at[1]; /* \K in a look-ahead can put the start behind the end */
    return MB_OK;
}

mb_status pattern_find(const struct pattern *p, struct regex_scratch *s, const char *text, size_t len, size_t start,
                       bool *found, size_t *first, size_t *end, mb_error *err)
{
    if (p->regex) return regex_find(p->regex, s, text, len, start, found, first, end, err);
    const char *at = NULL;
    if (p->literal.len == 1) at = memchr(text + start, p->literal.ptr[0], len - start);
    else at = memmem(text + start, len - start, p->literal.ptr, p->literal.len);
    *found = at != NULL;
    if (!at) return MB_OK;
    *first = (size_t)(at - text);
    *end = *first + p->literal.len;
    return MB_OK;
}

mb_status match_next(struct match_iter *it, struct regex_scratch *s, bool *found, size_t *first, size_t *end,
                     mb_error *err)
{
    for (;;) {
        *found = false;
        if (it->pos > it->len) return MB_OK;
        MB_TRY(pattern_find(it->p, s, it->text, it->len, it->pos, found, first, end, err));
        if (!*found) return MB_OK;
        if (*end == *first && it->any && it->last_end == *end) { /* empty, right behind the last match */
            if (it->pos >= it->len) it->pos = it->len + 1;
            else utf8_next(it->text, it->len, &it->pos);
            continue;
        }
        if (*first < it->last_end) *first = it->last_end;
        it->pos = *end;
        it->last_end = *end;
        it->any = true;
        return MB_OK;
    }
}
