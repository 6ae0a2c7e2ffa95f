/* response_wire.c: see response_wire.h. */
#include "host/response_wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/mem.h"

enum { READ_BYTES = 64 << 10 };

/* Bytes of all texts; false: above the ceiling. */
static bool sum_of(const struct wire_head *h, size_t *sum)
{
    *sum = 0;
    for (int i = 0; i < WIRE_N_TEXTS; i++) {
        if (h->len[i] > WIRE_MAX_BYTES) return false;
        *sum += (size_t)h->len[i];
    }
    return *sum <= WIRE_MAX_BYTES;
}

/* --- the engine's side --- */
static mb_status gone(mb_error *err)
{
    return mb_fail(err, MB_IO, "the process that keeps the responses has gone");
}

static mb_status send_all(int fd, const void *data, size_t len, mb_error *err)
{
    for (const char *p = data; len > 0;) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return gone(err);
        p += n;
        len -= (size_t)n;
    }
    return MB_OK;
}

static mb_status recv_all(int fd, void *data, size_t len, mb_error *err)
{
    for (char *p = data; len > 0;) {
        ssize_t n = recv(fd, p, len, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return gone(err);
        p += n;
        len -= (size_t)n;
    }
    return MB_OK;
}

static mb_status send_message(int fd, struct wire_head *h, const struct str texts[WIRE_N_TEXTS], mb_error *err)
{
    size_t sum;
    for (int i = 0; i < WIRE_N_TEXTS; i++) h->len[i] = texts[i].len;
    if (!sum_of(h, &sum))
        return mb_fail(err, MB_TOO_LARGE, "the response and its input are larger than the store, which holds %zu bytes", RESPONSE_STORE_MAX_BYTES);
    MB_TRY(send_all(fd, h, sizeof *h, err));
    for (int i = 0; i < WIRE_N_TEXTS; i++) MB_TRY(send_all(fd, texts[i].ptr, texts[i].len, err));
    return MB_OK;
}

mb_status wire_ask(int fd, struct wire_head *h, const struct str texts[WIRE_N_TEXTS], struct wire_head *answer,
                   struct buf *const parts[RESPONSE_N_PARTS], mb_error *err)
{
    size_t sum;
    MB_TRY(send_message(fd, h, texts, err));
    MB_TRY(recv_all(fd, answer, sizeof *answer, err));
    if (answer->op != h->op || !sum_of(answer, &sum)) return gone(err);
    char *all = mb_alloc(sum + 1);
    mb_status st = MB_OK;
    if (!all) { /* the bytes must be taken all the same, or the next question would be answered with them */
        char piece[4096];
        for (size_t left = sum, n; left > 0; left -= n) {
            n = left < sizeof piece ? left : sizeof piece;
            MB_TRY(recv_all(fd, piece, n, err));
        }
        return mb_fail(err, MB_NO_MEMORY, "no memory for a stored response");
    }
    st = recv_all(fd, all, sum, err);
    const char *p = all;
    for (int i = 0; st == MB_OK && i < WIRE_N_TEXTS; p += answer->len[i], i++) {
        if (i == 0 && answer->status != MB_OK)
            st = mb_fail(err, (mb_status)answer->status, "%.*s", (int)(answer->len[0] < 400 ? answer->len[0] : 400), p);
        if (i == 0 || !parts || !parts[i - 1]) continue;
        buf_append(parts[i - 1], p, (size_t)answer->len[i]);
        st = buf_status(parts[i - 1], "stored response", err);
    }
    mb_free(all);
    return st;
}

mb_status wire_ready(int fd, const char *id, struct str entry, mb_error *err)
{
    struct wire_head h = { .op = WIRE_READY };
    const struct str texts[WIRE_N_TEXTS] = { str_of(id), entry };
    return send_message(fd, &h, texts, err);
}

/* --- the host's side --- */
void wire_host_open(struct wire_host *w, int fd)
{
    *w = (struct wire_host){ .fd = fd };
    buf_init(&w->in, sizeof(struct wire_head) + WIRE_MAX_BYTES + READ_BYTES);
    buf_init(&w->out, 0);
}

void wire_host_close(struct wire_host *w)
{
    buf_free(&w->in);
    buf_free(&w->out);
}

bool wire_host_is_full(const struct wire_host *w)
{
    return w->out.len > w->sent;
}

/* false: the other end has gone. */
static bool flush(struct wire_host *w)
{
    while (w->sent < w->out.len) {
        ssize_t n = send(w->fd, w->out.data + w->sent, w->out.len - w->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        w->sent += (size_t)n;
    }
    buf_free(&w->out); /* it may have been large */
    buf_init(&w->out, 0);
    w->sent = 0;
    return true;
}

static mb_status do_put(struct response_store *store, const char *id, const struct str texts[WIRE_N_TEXTS], mb_error *err)
{
    return response_store_put(store, id, texts + 1, err);
}

static mb_status do_get(struct response_store *store, const char *id, uint32_t wanted, struct buf part[RESPONSE_N_PARTS], mb_error *err)
{
    struct buf *list[RESPONSE_N_PARTS] = { NULL };
    for (int i = 0; i < RESPONSE_N_PARTS; i++)
        if (wanted >> i & 1) list[i] = &part[i];
    return response_store_get(store, id, list, err);
}

static bool answer(struct wire_host *w, struct response_store *store, const struct wire_head *h, const struct str texts[WIRE_N_TEXTS])
{
    struct wire_head a = { .op = h->op };
    struct buf part[RESPONSE_N_PARTS];
    mb_error err = { .text = "" };
    char *id = mb_strndup(texts[0].ptr, texts[0].len);
    for (int i = 0; i < RESPONSE_N_PARTS; i++) buf_init(&part[i], 0);
    mb_status st = id ? MB_OK : mb_fail(&err, MB_NO_MEMORY, "no memory for a stored response");
    if (st == MB_OK && h->op == WIRE_PUT) st = do_put(store, id, texts, &err);
    else if (st == MB_OK && h->op == WIRE_GET) st = do_get(store, id, h->wanted, part, &err);
    else if (st == MB_OK && h->op == WIRE_DELETE) a.found = response_store_delete(store, id);
    else if (st == MB_OK) response_store_stats(store, &a.stats);
    a.status = st;
    struct str why = st == MB_OK ? (struct str){ "", 0 } : str_of(err.text);
    a.len[0] = why.len;
    for (int i = 0; st == MB_OK && i < RESPONSE_N_PARTS; i++) a.len[i + 1] = part[i].len;
    buf_append(&w->out, &a, sizeof a);
    buf_append(&w->out, why.ptr, why.len);
    for (int i = 0; st == MB_OK && i < RESPONSE_N_PARTS; i++) buf_append(&w->out, part[i].data ? part[i].data : "", part[i].len);
    for (int i = 0; i < RESPONSE_N_PARTS; i++) buf_free(&part[i]);
    mb_free(id);
    return !w->out.failed;
}

/* Every whole message that is there; false: one that is none. */
static bool take_messages(struct wire_host *w, struct response_store *store, wire_ready_fn ready, void *ctx)
{
    size_t off = 0, sum;
    struct wire_head h;
    bool ok = true;
    while (ok && w->in.len - off >= sizeof h) {
        memcpy(&h, w->in.data + off, sizeof h);
        if (!sum_of(&h, &sum) || h.op < WIRE_READY || h.op > WIRE_STATS) return false;
        if (w->in.len - off - sizeof h < sum) break;
        struct str texts[WIRE_N_TEXTS];
        const char *p = w->in.data + off + sizeof h;
        for (int i = 0; i < WIRE_N_TEXTS; p += h.len[i], i++) texts[i] = (struct str){ p, (size_t)h.len[i] };
        if (h.op == WIRE_READY) ready(ctx, texts[0], texts[1]);
        else ok = answer(w, store, &h, texts);
        off += sizeof h + sum;
    }
    if (off == w->in.len) {
        size_t limit = w->in.limit_bytes;
        buf_free(&w->in);
        buf_init(&w->in, limit);
    } else if (off > 0) {
        memmove(w->in.data, w->in.data + off, w->in.len - off);
        w->in.len -= off;
    }
    return ok;
}

bool wire_host_step(struct wire_host *w, struct response_store *store, wire_ready_fn ready, void *ctx)
{
    if (!flush(w)) return false;
    while (!wire_host_is_full(w)) {
        if (!buf_reserve(&w->in, READ_BYTES)) return false;
        ssize_t n = recv(w->fd, w->in.data + w->in.len, READ_BYTES, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0) return false;
        w->in.len += (size_t)n;
        if (!take_messages(w, store, ready, ctx) || !flush(w)) return false;
    }
    return true;
}
