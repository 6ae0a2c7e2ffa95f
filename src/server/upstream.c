/* upstream.c: see upstream.h. */
#include "server/upstream.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LINE_MAX_BYTES = 4096 };

void upstream_init(struct upstream *u)
{
    *u = (struct upstream){ .state = UP_HEAD };
    buf_init(&u->head, UPSTREAM_HEAD_MAX);
    buf_init(&u->line, LINE_MAX_BYTES);
}

void upstream_free(struct upstream *u)
{
    buf_free(&u->head);
    buf_free(&u->line);
}

bool upstream_has_head(const struct upstream *u)
{
    return u->state != UP_HEAD && u->status != 0;
}

bool upstream_header(const struct upstream *u, const char *name, char *out, size_t cap)
{
    size_t n = strlen(name);
    out[0] = '\0';
    if (!upstream_has_head(u)) return false;
    for (const char *line = strstr(u->head.data, "\r\n"); line && line[2] != '\r' && line[2]; line = strstr(line + 2, "\r\n")) {
        const char *key = line + 2, *v = key + n;
        if (strncasecmp(key, name, n) != 0 || *v != ':') continue;
        v += 1 + strspn(v + 1, " \t");
        size_t len = strcspn(v, "\r");
        if (len >= cap) len = cap - 1;
        memcpy(out, v, len);
        out[len] = '\0';
        return true;
    }
    return false;
}

/* The head is whole: what follows? */
static void begin_body(struct upstream *u)
{
    char v[64], *end;
    const char *h = u->head.data;
    int status = strncmp(h, "HTTP/1.1 ", 9) == 0 && strspn(h + 9, "0123456789") == 3 ? atoi(h + 9) : 0;
    u->state = UP_BROKEN;
    if (status < 200 || status > 599 || strlen(h) != u->head.len) return;
    u->status = status;
    if (upstream_header(u, "Transfer-Encoding", v, sizeof v)) {
        if (strcasecmp(v, "chunked") == 0) u->state = UP_CHUNK_SIZE;
        return;
    }
    if (!upstream_header(u, "Content-Length", v, sizeof v) || strspn(v, "0123456789") != strlen(v) || !v[0]) return;
    u->left = strtoull(v, &end, 10);
    u->state = u->left ? UP_LENGTH : UP_DONE;
}

/* Bytes of the head that are taken from data. */
static size_t feed_head(struct upstream *u, const char *data, size_t len)
{
    size_t before = u->head.len, from = before > 3 ? before - 3 : 0, room = UPSTREAM_HEAD_MAX - before;
    buf_append(&u->head, data, len < room ? len : room); /* the body may come with it */
    char *end = u->head.failed ? NULL : memmem(u->head.data + from, u->head.len - from, "\r\n\r\n", 4);
    if (u->head.failed || (!end && len >= room)) {
        u->state = UP_BROKEN;
        return len;
    }
    if (!end) return len;
    size_t used = (size_t)(end - u->head.data) + 4;
    u->head.len = used;
    u->head.data[used] = '\0';
    begin_body(u);
    return used - before;
}

/* A line of the frame of chunks; true: it is whole, without its end, in u->line. */
static bool feed_line(struct upstream *u, const char *data, size_t len, size_t *used)
{
    const char *nl = memchr(data, '\n', len);
    *used = nl ? (size_t)(nl - data) + 1 : len;
    buf_append(&u->line, data, *used);
    if (u->line.failed) u->state = UP_BROKEN;
    if (!nl || u->line.failed) return false;
    if (u->line.len < 2 || u->line.data[u->line.len - 2] != '\r') {
        u->state = UP_BROKEN;
        return false;
    }
    u->line.data[u->line.len -= 2] = '\0';
    return true;
}

static void take_line(struct upstream *u)
{
    const char *s = u->line.data;
    size_t digits = strspn(s, "0123456789abcdefABCDEF");
    if (u->state == UP_CHUNK_END) {
        u->state = u->line.len == 0 ? UP_CHUNK_SIZE : UP_BROKEN;
    } else if (u->state == UP_TRAILER) {
        if (u->line.len == 0) u->state = UP_DONE;
    } else if (digits == 0 || digits > 15 || (s[digits] && s[digits] != ';')) {
        u->state = UP_BROKEN;
    } else {
        u->left = strtoull(s, NULL, 16);
        u->state = u->left ? UP_CHUNK : UP_TRAILER;
    }
    buf_clear(&u->line);
}

void upstream_feed(struct upstream *u, const char *data, size_t len, struct buf *body)
{
    size_t used;
    while (len > 0 && u->state != UP_DONE && u->state != UP_BROKEN) {
        if (u->state == UP_HEAD) {
            used = feed_head(u, data, len);
        } else if (u->state == UP_LENGTH || u->state == UP_CHUNK) {
            used = u->left < len ? (size_t)u->left : len;
            buf_append(body, data, used);
            u->left -= used;
            if (u->left == 0) u->state = u->state == UP_LENGTH ? UP_DONE : UP_CHUNK_END;
        } else if (feed_line(u, data, len, &used)) {
            take_line(u);
        }
        data += used;
        len -= used;
    }
}
