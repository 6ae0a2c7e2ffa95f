/* input.c: what verbs read: files, pipes and standard input, lists of token ids, messages. Text of --prompt is taken literally,
 * byte for byte (B-010): there are no escapes, a shell's $'a\nb' or a file gives a newline. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"

static mb_status read_stdin(struct buf *b, size_t limit_bytes, mb_error *err)
{
    char block[65536];
    for (;;) {
        ssize_t n = read(STDIN_FILENO, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return mb_fail_errno(err, "cannot read", "standard input");
        if (n == 0) break;
        if (b->len + (size_t)n > limit_bytes)
            return mb_fail(err, MB_TOO_LARGE, "standard input is larger than %zu MB", limit_bytes >> 20);
        buf_append(b, block, (size_t)n);
    }
    buf_append(b, "", 0);
    return buf_status(b, "standard input", err);
}

mb_status input_read(struct buf *b, const char *path, size_t limit_bytes, mb_error *err)
{
    if (strcmp(path, "-") == 0) {
        if (isatty(STDIN_FILENO)) fprintf(stderr, "reading standard input, end with Ctrl-D\n");
        return read_stdin(b, limit_bytes, err);
    }
    MB_TRY(file_read_any(b, path, limit_bytes, err));
    buf_append(b, "", 0);
    return buf_status(b, path, err);
}

/* --- token ids --- */
struct id_list {
    int32_t *ids;
    size_t n, cap;
};

static mb_status add_id(struct id_list *l, long long id, const char *what, mb_error *err)
{
    if (id < 0 || id > INT32_MAX)
        return mb_fail(err, MB_INVALID, "%s: id number %zu is %lld; ids are from 0 to %d", what, l->n + 1, id, INT32_MAX);
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        int32_t *more = mb_realloc(l->ids, cap * sizeof *more);
        if (!more) return mb_fail(err, MB_NO_MEMORY, "out of memory for %zu ids", cap);
        l->ids = more;
        l->cap = cap;
    }
    l->ids[l->n++] = (int32_t)id;
    return MB_OK;
}

/* One text form for both: a JSON array of integers is numbers between commas inside brackets. */
static mb_status parse_list(struct id_list *l, const char *text, size_t len, const char *what, mb_error *err)
{
    static const char space[] = " \t\r\n";
    size_t i = strspn(text, space), end = len;
    while (end > i && strchr(space, text[end - 1])) end--;
    bool bracket = i < end && text[i] == '[';
    if (bracket && (end - i < 2 || text[end - 1] != ']'))
        return mb_fail(err, MB_BAD_FORMAT, "%s: the array has no closing ]", what);
    if (bracket) i++, end--;
    while (i < end) {
        i += strspn(text + i, space);
        if (i >= end) break;
        char *stop;
        errno = 0;
        long long id = strtoll(text + i, &stop, 10);
        size_t at = (size_t)(stop - text);
        if (at == i || errno == ERANGE || at > end)
            return mb_fail(err, MB_BAD_FORMAT, "%s: byte %zu is no token id; wanted integers between commas or white space",
                           what, i);
        MB_TRY(add_id(l, id, what, err));
        i = at + strspn(stop, space);
        if (i < end && text[i] == ',') i++;
        else if (i < end && i == at)
            return mb_fail(err, MB_BAD_FORMAT, "%s: byte %zu: wanted a comma or white space behind an id", what, i);
    }
    return MB_OK;
}

mb_status input_parse_ids(const char *text, size_t len, const char *what, int32_t **ids, int32_t *n, mb_error *err)
{
    struct id_list l = { 0 };
    *ids = NULL;
    *n = 0;
    mb_status st = memchr(text, '\0', len) ? mb_fail(err, MB_BAD_FORMAT, "%s holds a NUL byte", what)
                                           : parse_list(&l, text, len, what, err);
    if (st == MB_OK && l.n == 0) st = mb_fail(err, MB_INVALID, "%s holds no token ids", what);
    if (st == MB_OK && l.n > INT32_MAX / 2) st = mb_fail(err, MB_TOO_LARGE, "%s holds %zu ids", what, l.n);
    if (st != MB_OK) {
        mb_free(l.ids);
        return st;
    }
    *ids = l.ids;
    *n = (int32_t)l.n;
    return MB_OK;
}

/* --- prompts --- */
mb_status input_prompt(const struct flags *f, struct buf *b, mb_error *err)
{
    bool from_stdin = !f->prompt.given || strcmp(f->prompt.s, "-") == 0;
    if (from_stdin) MB_TRY(input_read(b, "-", INPUT_MAX_BYTES, err));
    else buf_append_str(b, f->prompt.s);
    buf_append(b, "", 0);
    MB_TRY(buf_status(b, "the prompt", err));
    if (!utf8_valid(b->data, b->len))
        return mb_fail(err, MB_BAD_FORMAT, "the prompt is not UTF-8 (byte %zu)", utf8_valid_prefix(b->data, b->len, NULL));
    return MB_OK;
}

static void append_message(struct buf *b, const char *role, const char *text, size_t len)
{
    buf_printf(b, "{\"role\":\"%s\",\"content\":", role);
    json_write_string(b, text, len);
    buf_append_char(b, '}');
}

mb_status input_messages(const struct flags *f, struct buf *b, mb_error *err)
{
    if (f->messages.given) {
        if (f->prompt.given || f->system.given)
            return mb_fail(err, MB_INVALID, "--messages takes the place of --prompt and --system: give one or the other");
        return input_read(b, f->messages.s, INPUT_MAX_BYTES, err);
    }
    struct buf prompt;
    buf_init(&prompt, 0);
    mb_status st = input_prompt(f, &prompt, err);
    if (st == MB_OK) {
        buf_append_char(b, '[');
        if (f->system.given) {
            append_message(b, "system", f->system.s, strlen(f->system.s));
            buf_append_char(b, ',');
        }
        append_message(b, "user", prompt.data, prompt.len);
        buf_append_char(b, ']');
        st = buf_status(b, "the messages", err);
    }
    buf_free(&prompt);
    return st;
}
