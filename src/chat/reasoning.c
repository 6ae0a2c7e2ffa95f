/* reasoning.c: see reasoning.h for the rule.
 *
 * The answer is fed byte by byte through three small machines: the tag matcher (only when tags are searched in text),
 * the line-break trimmer, and the Markdown state that tells code from prose. All three keep only counters, so the
 * result cannot depend on where the pieces were cut. Output of one call is gathered in `out` and emitted when the
 * channel changes or the call ends.
 */
#include "chat/reasoning.h"

#include <string.h>

#include "chat/reasoning_int.h"

static const struct reasoning_tags TAGS[] = {
    { .open = "<think>", .close = "</think>" },
    { .open = "[THINK]", .close = "[/THINK]" },
    { .open = "<seed:think>", .close = "</seed:think>" },
    { .open = "<thinking>", .close = "</thinking>" },
    { .open = "<|channel>", .close = "<channel|>", .name = "thought" },
    { .open = "<|channel|>", .close = "<|end|>", .channels = true },
};

const struct reasoning_tags *reasoning_tags_all(size_t *n)
{
    *n = sizeof TAGS / sizeof TAGS[0];
    return TAGS;
}

const struct reasoning_tags *reasoning_tags_pick(const char *template_source,
                                                 bool (*has_token)(void *ctx, const char *text), void *ctx, bool *named)
{
    size_t n;
    const struct reasoning_tags *t = reasoning_tags_all(&n);
    *named = true;
    for (size_t i = 0; i < n; i++)
        if (template_source && strstr(template_source, t[i].channels ? t[i].open : t[i].close)) return &t[i];
    for (size_t i = 0; i < n; i++)
        if (has_token && has_token(ctx, t[i].open) && has_token(ctx, t[i].close)) return &t[i];
    *named = false;
    return &t[0];
}

/* Offset just behind the last occurrence of tag, 0 = none. */
static size_t last_end(const char *text, size_t len, const char *tag)
{
    size_t n = strlen(tag);
    for (size_t i = len; i >= n; i--)
        if (memcmp(text + i - n, tag, n) == 0) return i;
    return 0;
}

const char *reasoning_sign(const struct reasoning_tags *tags, size_t i)
{
    return tags->channels ? channels_sign(i) : i == 0 ? tags->open : i == 1 ? tags->close : NULL;
}

enum reasoning_start reasoning_start(const struct reasoning_tags *tags, const char *text, size_t len)
{
    if (tags->channels) return channels_start(text, len);
    return last_end(text, len, tags->open) > last_end(text, len, tags->close) ? REASONING_THOUGHT : REASONING_ANSWER;
}

bool reasoning_is_closed(const struct reasoning_tags *tags, const char *text, size_t len)
{
    return !tags->channels && last_end(text, len, tags->close) > last_end(text, len, tags->open);
}

void reasoning_init(struct reasoning *r, const struct reasoning_tags *tags, bool by_text, enum reasoning_start start,
                    reasoning_emit_fn emit, void *ctx)
{
    memset(r, 0, sizeof *r);
    r->tags = tags;
    r->by_text = by_text;
    r->inside = r->fresh = r->from_prompt = start == REASONING_THOUGHT;
    r->emit = emit;
    r->ctx = ctx;
    markdown_init(&r->code);
    buf_init(&r->out, 0);
    if (tags->channels) channels_init(r, start);
}

void reasoning_free(struct reasoning *r)
{
    buf_free(&r->header);
    buf_free(&r->out);
}

mb_status reasoning_status(const struct reasoning *r)
{
    return r->out.failed;
}

void reasoning_flush(struct reasoning *r)
{
    if (r->out.failed || r->out.len == 0) return;
    r->emit(r->ctx, r->inside, r->out.data, r->out.len);
    buf_clear(&r->out);
}

static void put(struct reasoning *r, char c);

static void put_str(struct reasoning *r, const char *s, size_t len)
{
    for (size_t i = 0; i < len; i++) put(r, s[i]);
}

/* What was held back as the beginning of the name is text. */
static void end_name(struct reasoning *r)
{
    size_t n = r->n_name;
    r->in_name = false;
    r->n_name = 0;
    put_str(r, r->tags->name, n);
}

/* Does c belong to the name? */
static bool take_name(struct reasoning *r, char c)
{
    if (c != r->tags->name[r->n_name]) {
        end_name(r);
        return false;
    }
    r->in_name = r->tags->name[++r->n_name] != '\0';
    if (!r->in_name) r->n_name = 0;
    return true;
}

/* --- one byte that is text --- */
static void put(struct reasoning *r, char c)
{
    if (r->in_name && take_name(r, c)) return;
    bool newline = c == '\n' || c == '\r';
    if (r->fresh && newline) return;
    r->fresh = false;
    r->from_prompt = false;
    if (!r->inside) {
        markdown_feed(&r->code, c);
        buf_append_char(&r->out, c);
        return;
    }
    if (c == '\n') {
        r->n_newline++;
        return;
    }
    for (; r->n_newline > 0; r->n_newline--) buf_append_char(&r->out, '\n');
    buf_append_char(&r->out, c);
}

static void marker(struct reasoning *r, bool inside)
{
    if (r->in_name) end_name(r);
    r->n_newline = 0;
    reasoning_flush(r);
    r->inside = inside;
    r->in_name = inside && r->tags->name;
    r->fresh = true;
    r->from_prompt = false;
}

/* Is an opening tag a marker here? At the start of a thought that the prompt opened it is swallowed. */
static bool may_open(struct reasoning *r)
{
    return r->inside ? r->from_prompt : !r->answer_only && !markdown_in_code(&r->code);
}

static void saw_open(struct reasoning *r)
{
    if (!may_open(r)) put_str(r, r->tags->open, strlen(r->tags->open));
    else marker(r, true);
}

static void saw_close(struct reasoning *r)
{
    if (!r->inside) put_str(r, r->tags->close, strlen(r->tags->close));
    else marker(r, false);
}

void reasoning_marker(struct reasoning *r, size_t i)
{
    if (r->tags->channels) channels_marker(r, i);
    else if (i == 0) saw_open(r);
    else saw_close(r);
    reasoning_flush(r);
}

/* --- tags searched in text --- */
static bool begins(const char *tag, const char *s, size_t len)
{
    return strncmp(tag, s, len) == 0;
}

/* Which tags would be markers here. A thought that the prompt opened also takes the opening tag until text comes. */
static bool is_held(struct reasoning *r, const char **whole)
{
    const struct reasoning_tags *t = r->tags;
    *whole = NULL;
    if (r->inside && begins(t->close, r->held, r->n_held)) {
        if (t->close[r->n_held] == '\0') *whole = t->close;
        return true;
    }
    if (!begins(t->open, r->held, r->n_held)) return false;
    if (!may_open(r)) return false;
    if (t->open[r->n_held] == '\0') *whole = t->open;
    return true;
}

static void let_go(struct reasoning *r)
{
    size_t n = r->n_held;
    r->n_held = 0;
    put_str(r, r->held, n);
}

static void feed(struct reasoning *r, char c)
{
    const char *whole;
    for (;;) {
        r->held[r->n_held++] = c;
        if (is_held(r, &whole)) break;
        r->n_held--;
        if (r->n_held == 0) {
            put(r, c);
            return;
        }
        let_go(r); /* and look at c again: a tag's first byte occurs in it once */
    }
    if (!whole) return;
    r->n_held = 0;
    if (whole == r->tags->open) saw_open(r);
    else saw_close(r);
}

void reasoning_text(struct reasoning *r, const char *text, size_t len)
{
    bool channels = r->tags->channels;
    for (size_t i = 0; r->by_text && i < len; i++) {
        if (channels) channels_feed(r, text[i]);
        else feed(r, text[i]);
    }
    if (!r->by_text && channels) channels_put(r, text, len);
    else if (!r->by_text) put_str(r, text, len);
    reasoning_flush(r);
}

void reasoning_finish(struct reasoning *r)
{
    if (r->tags->channels) {
        size_t n = r->n_held;
        r->n_held = 0;
        channels_put(r, r->held, n);
    } else {
        let_go(r);
    }
    if (r->in_name) end_name(r);
    for (; r->n_newline > 0; r->n_newline--) buf_append_char(&r->out, '\n');
    reasoning_flush(r);
}
