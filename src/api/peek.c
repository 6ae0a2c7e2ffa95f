/* peek.c: what has to be known of a request's body or of a stream by somebody who does not read them: the member by which a body is
 * passed on to an engine, and the last event of a stream whose renderer has died with its process (--isolate). */
#include <string.h>

#include "api/api_int.h"

/* --- a member of an object, without a tree --- */
struct scan { const char *p, *end; };

static void blanks(struct scan *s)
{
    while (s->p < s->end && strchr(" \t\r\n", *s->p) && *s->p) s->p++;
}

/* Past a string; *text: with its quotes. */
static bool string(struct scan *s, struct str *text)
{
    const char *first = s->p;
    if (s->p == s->end || *s->p != '"') return false;
    for (s->p++; s->p < s->end && *s->p != '"'; s->p++)
        if (*s->p == '\\' && s->p + 1 < s->end) s->p++;
    if (s->p >= s->end) return false;
    s->p++;
    *text = (struct str){ first, (size_t)(s->p - first) };
    return true;
}

/* To the ',' or '}' behind a value. */
static bool skip_value(struct scan *s)
{
    struct str text;
    for (int depth = 0; s->p < s->end;) {
        char c = *s->p;
        if (depth == 0 && (c == ',' || c == '}')) return true;
        if (c == '"') {
            if (!string(s, &text)) return false;
            continue;
        }
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (depth < 0) return false;
        s->p++;
    }
    return false;
}

/* What a quoted string says; false: it is none, or it does not fit. */
static bool unquote(struct str text, char *out, size_t cap)
{
    json_t *v = NULL;
    mb_error err;
    size_t n = text.len - 2;
    if (!memchr(text.ptr, '\\', text.len)) {
        if (n >= cap || memchr(text.ptr, '\0', text.len)) return false;
        memcpy(out, text.ptr + 1, n);
        out[n] = '\0';
        return true;
    }
    bool ok = text.len < 8 * cap && json_read(&v, text.ptr, text.len, JSON_READ_ANY, &err) == MB_OK && json_is_string(v) &&
              json_string_length(v) < cap && strlen(json_string_value(v)) == json_string_length(v);
    if (ok) strcpy(out, json_string_value(v));
    json_decref(v);
    return ok;
}

bool api_peek_string(const char *body, size_t len, const char *name, char *out, size_t cap)
{
    struct scan s = { body, body + len };
    struct str key, value;
    char said[64];
    blanks(&s);
    if (s.p == s.end || *s.p++ != '{') return false;
    for (;;) {
        blanks(&s);
        if (!string(&s, &key)) return false;
        blanks(&s);
        if (s.p == s.end || *s.p++ != ':') return false;
        blanks(&s);
        if (unquote(key, said, sizeof said) && strcmp(said, name) == 0) return string(&s, &value) && unquote(value, out, cap);
        if (!skip_value(&s) || *s.p++ != ',') return false;
    }
}

/* --- the end of a stream that cannot go on --- */
void api_stream_broken(struct buf *out, const struct api_dialect *d, int64_t n_events, int http_status, const char *code, const char *message)
{
    if (d == &api_responses) {
        buf_append_str(out, "event: error\ndata: {\"type\": \"error\", \"code\": ");
        json_write_string(out, code, strlen(code));
        buf_append_str(out, ", \"message\": ");
        json_write_string(out, message, strlen(message));
        buf_printf(out, ", \"param\": null, \"sequence_number\": %lld}\n\n", (long long)n_events);
        return;
    }
    buf_append_str(out, d == &api_anthropic ? "event: error\ndata: " : "data: ");
    api_error_body(out, d, http_status, http_status == 502 ? code : NULL, code, NULL, message);
    buf_append_str(out, d == &api_anthropic ? "\n\n" : "\n\ndata: [DONE]\n\n");
}
