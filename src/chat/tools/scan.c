/* scan.c: the scanner: text in, text and calls out. Outside a block each opening sign of the family is matched byte by byte
 * (signs are short, so a mismatch falls back by trying shorter prefixes); what may begin one is held back, with the white
 * space before it. Inside, bytes are held until the block may be whole; then, and whenever it has doubled, its parser is
 * asked. All decisions fall at a byte, never at the end of a piece, so pieces do not matter. */
#include <string.h>

#include "chat/tools/tools_int.h"

enum { MAX_TRIES = 256, FIRST_CHECK = 8, MAX_HELD_SPACE = 1024 };

void tool_scan_init(struct tool_scan *s, const struct tool_family *f, const struct tool_set *set, struct tool_sink sink)
{
    memset(s, 0, sizeof *s);
    s->family = f;
    s->set = set;
    s->sink = sink;
    s->i_markup = -1;
    markdown_init(&s->code);
    buf_init(&s->held, 0);
    buf_init(&s->out, 0);
}

void tool_scan_free(struct tool_scan *s)
{
    buf_free(&s->held);
    buf_free(&s->out);
}

mb_status tool_scan_status(const struct tool_scan *s)
{
    return s->failed ? s->failed : s->held.failed ? s->held.failed : s->out.failed;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void flush(struct tool_scan *s)
{
    if (s->out.failed) s->failed = s->out.failed; /* buf_clear forgets it */
    else if (s->out.len) s->sink.text(s->sink.ctx, s->out.data, s->out.len);
    buf_clear(&s->out);
}

/* The first n held bytes are text. White space right behind a call goes with it (rule 3). */
static void let_go(struct tool_scan *s, size_t n)
{
    size_t from = 0;
    while (s->after_call && from < n && is_space(s->held.data[from])) from++;
    if (from < n) {
        s->after_call = false;
        buf_append(&s->out, s->held.data + from, n - from);
    }
    for (size_t i = from; i < n && !s->said; i++) s->said = !is_space(s->held.data[i]);
    memmove(s->held.data, s->held.data + n, s->held.len - n + 1);
    s->held.len -= n;
}

/* --- outside --- */
static bool may_open(struct tool_scan *s, const struct tool_markup *m, size_t n_before)
{
    if (markdown_in_code(&s->code) && !m->in_code) return false;
    if (!m->at_start) return true;
    if (s->said && !s->after_call) return false;
    for (size_t i = 0; i < n_before; i++)
        if (!is_space(s->held.data[i]) && !(s->after_call && s->held.data[i] == ';')) return false;
    return true;
}

/* How much of `sign` the held text ends with, at most k + 1 bytes. */
static int suffix_match(const struct tool_scan *s, const char *sign, int k)
{
    for (k++; k > 0; k--)
        if ((size_t)k <= s->held.len && memcmp(s->held.data + s->held.len - (size_t)k, sign, (size_t)k) == 0) return k;
    return 0;
}

static void enter(struct tool_scan *s, int i, size_t len)
{
    s->i_markup = i;
    s->i_block = s->held.len - len;
    s->i_body = s->family->markups[i]->open_is_body ? s->i_block : s->held.len;
    s->next_check = FIRST_CHECK;
    s->close_at = s->n_tries = 0;
    memset(&s->brackets, 0, sizeof s->brackets);
    memset(s->open_at, 0, sizeof s->open_at);
}

static void brackets_feed(struct tool_scan *s, char c);

static void outside(struct tool_scan *s, char c)
{
    size_t keep = 0;
    markdown_feed(&s->code, c);
    for (int i = 0; i < TOOL_MAX_MARKUPS && s->family->markups[i]; i++) {
        const struct tool_markup *m = s->family->markups[i];
        int n = s->open_at[i] = suffix_match(s, m->open, s->open_at[i]);
        if (n && !may_open(s, m, s->held.len - (size_t)n)) n = s->open_at[i] = 0;
        if (n && m->open[n] == '\0') {
            enter(s, i, (size_t)n);
            for (size_t k = s->i_body; k < s->held.len && m->end == END_BRACKETS; k++) brackets_feed(s, s->held.data[k]);
            return;
        }
        if ((size_t)n > keep) keep = (size_t)n;
    }
    size_t n = s->held.len - keep, space = 0;
    while (space < n && space < MAX_HELD_SPACE &&
           (is_space(s->held.data[n - 1 - space]) || (s->after_call && s->held.data[n - 1 - space] == ';'))) space++;
    if (n > space || space == MAX_HELD_SPACE) let_go(s, space == MAX_HELD_SPACE ? n : n - space);
}

/* --- inside --- */
static struct str body_of(const struct tool_scan *s, size_t n_close)
{
    return (struct str){ s->held.data + s->i_body, s->held.len - s->i_body - n_close };
}

static void as_text(struct tool_scan *s)
{
    for (size_t i = s->i_block; i < s->held.len; i++) markdown_feed(&s->code, s->held.data[i]);
    s->i_markup = -1;
    let_go(s, s->held.len);
}

static void emit(struct tool_scan *s, const struct buf *name, const struct buf *arguments, bool partial)
{
    if (name->failed || arguments->failed) {
        s->failed = MB_NO_MEMORY;
        return;
    }
    struct tool_call c = { .name = { name->data, name->len }, .partial = partial };
    c.arguments = (struct str){ arguments->data ? arguments->data : "", arguments->len };
    s->sink.call(s->sink.ctx, &c);
    s->n_calls++;
}

/* White space before the block goes with it; a separator of calls too. */
static void drop_block(struct tool_scan *s)
{
    size_t n = s->i_block;
    while (n > 0 && (is_space(s->held.data[n - 1]) || (s->after_call && s->held.data[n - 1] == ';'))) n--;
    s->i_markup = -1;
    s->held.len = n;
    if (n) let_go(s, n);
    flush(s);
    buf_clear(&s->held);
    buf_append(&s->held, "", 0);
    s->after_call = true;
}

/* Ask the parser. keep: only a refusal counts. Returns what it said. */
static enum tool_parse try_block(struct tool_scan *s, size_t n_close, bool closed, bool keep)
{
    const struct tool_markup *m = s->family->markups[s->i_markup];
    struct tool_calls calls = { .n = 0 };
    struct str body = body_of(s, m->open_is_body ? 0 : n_close);
    enum tool_parse p = m->parse(s->set, body, closed, &calls);
    if (p == PARSE_BAD) {
        as_text(s);
    } else if (p == PARSE_OK && !keep) {
        drop_block(s);
        for (int i = 0; i < calls.n; i++) emit(s, &calls.call[i].name, &calls.call[i].arguments, false);
    }
    tool_calls_free(&calls);
    return p;
}

static void brackets_feed(struct tool_scan *s, char c)
{
    if (s->brackets.quote) {
        if (s->brackets.escaped) s->brackets.escaped = false;
        else if (c == '\\') s->brackets.escaped = true;
        else if (c == s->brackets.quote) s->brackets.quote = 0;
        return;
    }
    if (c == '"' || c == '\'') s->brackets.quote = c;
    if (c == '{' || c == '[' || c == '(') s->brackets.depth++;
    if (c == '}' || c == ']' || c == ')') s->brackets.depth--;
}

static bool may_be_whole(struct tool_scan *s, const struct tool_markup *m, char c, size_t *n_close)
{
    *n_close = 0;
    if (m->end == END_BRACKETS) {
        brackets_feed(s, c);
        return s->brackets.depth == 0 && !s->brackets.quote && (c == '}' || c == ']' || c == ')');
    }
    s->close_at = suffix_match(s, m->close, s->close_at);
    if (m->close[s->close_at] != '\0') return false;
    *n_close = (size_t)s->close_at;
    s->close_at = 0;
    return true;
}

static void inside(struct tool_scan *s, char c)
{
    const struct tool_markup *m = s->family->markups[s->i_markup];
    size_t n_close;
    if (may_be_whole(s, m, c, &n_close)) {
        if (try_block(s, n_close, true, false) == PARSE_MORE && ++s->n_tries == MAX_TRIES) as_text(s);
        return;
    }
    size_t len = s->held.len - s->i_body;
    if (len > TOOL_MAX_BLOCK_BYTES) {
        as_text(s);
    } else if (len >= s->next_check) {
        s->next_check = len * 2;
        try_block(s, (size_t)s->close_at, false, true); /* what may be the closing sign is not the body's */
    }
}

/* --- from outside --- */
void tool_scan_text(struct tool_scan *s, const char *text, size_t len)
{
    for (size_t i = 0; i < len && tool_scan_status(s) == MB_OK; i++) {
        buf_append_char(&s->held, text[i]);
        if (s->held.failed) break;
        if (s->i_markup < 0) outside(s, text[i]);
        else inside(s, text[i]);
    }
    flush(s);
}

bool tool_scan_block(const struct tool_scan *s, const char **sign, struct str *since)
{
    if (s->i_markup < 0 || s->family->markups[s->i_markup]->at_start) return false;
    *sign = s->family->markups[s->i_markup]->open;
    size_t from = s->i_block + strlen(*sign);
    *since = (struct str){ s->held.data + from, s->held.len - from };
    return true;
}

bool tool_scan_bare(const struct tool_scan *s, struct str *text)
{
    if (s->i_markup < 0 || !s->family->markups[s->i_markup]->at_start) return false;
    *text = (struct str){ s->held.data + s->i_block, s->held.len - s->i_block };
    return true;
}

static bool emit_partial(struct tool_scan *s)
{
    const struct tool_markup *m = s->family->markups[s->i_markup];
    struct buf name, arguments;
    struct str body = body_of(s, 0);
    buf_init(&name, 0);
    buf_init(&arguments, 0);
    bool ok = m->partial && m->partial(s->set, body, &name, &arguments) && name.len && !name.failed && !arguments.failed;
    if (ok && m->at_start) ok = tool_set_find(s->set, name.data, name.len) != NULL;
    if (ok) {
        drop_block(s);
        emit(s, &name, &arguments, true);
    }
    buf_free(&name);
    buf_free(&arguments);
    return ok;
}

void tool_scan_finish(struct tool_scan *s, bool cut)
{
    if (tool_scan_status(s) != MB_OK) return;
    if (s->i_markup >= 0 && try_block(s, 0, true, false) == PARSE_MORE && !(cut && emit_partial(s))) as_text(s);
    if (s->held.len) let_go(s, s->held.len);
    memset(s->open_at, 0, sizeof s->open_at);
    flush(s);
}
