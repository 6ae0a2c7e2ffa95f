/* generate.c: the generating routes. A worker compiles the body and starts the generation; from then on the pump thread
 * is its only consumer: it renders events into the stream's bytes or gathers the whole answer.
 *
 * A failure before the first event is a plain error reply with its status; after the stream opened it is a terminal
 * error event (API-038). A stream opens with its first event, or with the first keep-alive line while it waits. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/server_int.h"

#define HERE_BYTES 2048 /* of text that the engine's thread stops behind */

/* A Warning header (Q26), when nothing has been sent yet. Bytes that a header cannot hold are replaced. */
static void warn(struct http_exchange *x, const char *text)
{
    pthread_mutex_lock(&x->lock);
    size_t cap = sizeof x->warning, n = strlen(x->warning);
    if (!x->stream_open && !x->reply_ready && n + 16 < cap) {
        n += (size_t)snprintf(x->warning + n, cap - n, "%s199 - \"", n ? ", " : "");
        for (; *text && n + 4 < cap; text++) {
            unsigned char c = (unsigned char)*text;
            if (c == '"' || c == '\\') x->warning[n++] = '\\';
            x->warning[n++] = c < 0x20 || c > 0x7E ? '?' : (char)c;
        }
        snprintf(x->warning + n, cap - n, "\"");
    }
    pthread_mutex_unlock(&x->lock);
}

/* --- worker --- */
void handle_generate(struct http_exchange *x)
{
    struct server *s = x->s;
    struct gen_stream *gen = NULL;
    mb_error err = { 0 };
    x->trace.t_received_ns = clock_now_ns();
    mb_status st = api_request_open(&x->req, x->route->dialect, &s->api, x->body.data ? x->body.data : "", x->body.len,
                                    &err);
    if (st == MB_OK && x->req->warning.len) warn(x, x->req->warning.data);
    if (st == MB_OK) st = api_render_open(&x->render, x->req, &err);
    if (st == MB_OK) {
        x->is_stream = x->req->stream;
        x->req->gen.t_received_ns = x->trace.t_received_ns;
        x->req->gen.trace_id = x->trace_id[0] ? x->trace_id : NULL;
        st = s->client.start(s->client.ctx, &x->req->gen, pump_notify, x, &gen, &err);
    }
    if (st != MB_OK) {
        http_reply_error(x, &err);
        return;
    }
    api_request_started(x->req);
    x->t_bytes_ns = x->trace.t_queued_ns = clock_now_ns();
    pthread_mutex_lock(&x->lock);
    x->gen = gen;
    x->gen_ready = true;
    pthread_mutex_unlock(&x->lock);
    pump_wake(x);
}

/* --- pump --- */
static void open_stream(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    if (!x->stream_open && !x->reply_ready) {
        x->stream_open = true;
        x->status = 200;
        x->content_type = "text/event-stream";
        http_resume_locked(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void generate_send(struct http_exchange *x, struct buf *b, bool end)
{
    if (b->len == 0 && !end && !b->failed) return;
    open_stream(x);
    pthread_mutex_lock(&x->lock);
    if (!end && !b->failed && direct_send_locked(x, b)) {
        pthread_mutex_unlock(&x->lock);
        x->t_bytes_ns = clock_now_ns();
        buf_clear(b);
        return;
    }
    if (x->out_off > OUT_LOW_BYTES) { /* what was sent goes, or the buffer would grow as long as the client is behind */
        memmove(x->out.data, x->out.data + x->out_off, x->out.len - x->out_off);
        x->out.len -= x->out_off;
        x->out_off = 0;
    }
    if (!b->failed) buf_append(&x->out, b->data ? b->data : "", b->len);
    x->stream_end = x->stream_end || end || b->failed || x->out.failed;
    http_resume_locked(x);
    pthread_mutex_unlock(&x->lock);
    x->t_bytes_ns = clock_now_ns();
    buf_clear(b);
}

void generate_drop(struct http_exchange *x)
{
    trace_write(x);
    gen_close(x->gen);
    api_render_close(x->render);
    api_request_close(x->req);
    x->gen = NULL;
    x->render = NULL;
    x->req = NULL;
    x->finished = true;
}

static void fail(struct http_exchange *x, const mb_error *e, struct buf *b)
{
    pthread_mutex_lock(&x->lock);
    bool open = x->stream_open;
    pthread_mutex_unlock(&x->lock);
    if (open && e->code == MB_ENGINE_DEAD && x->s->opt.host_fd) {
        generate_send(x, b, false); /* the host writes the end */
    } else if (open) {
        api_render_error(x->render, e, b);
        generate_send(x, b, true);
    } else {
        http_reply_error(x, e);
    }
    generate_drop(x);
}

static void finish(struct http_exchange *x, struct buf *b)
{
    mb_error err = { 0 };
    if (x->is_stream) {
        generate_send(x, b, true);
        generate_drop(x);
    } else if (api_render_answer(x->render, b, &err) != MB_OK) {
        buf_clear(b);
        fail(x, &err, b);
    } else {
        http_reply(x, 200, "application/json", b);
        generate_drop(x);
    }
}

/* One event; false: this exchange is finished. */
static bool take(struct http_exchange *x, const struct gen_event *ev, struct buf *b)
{
    mb_error err = { 0 };
    trace_event(x, ev);
    if (ev->type == GEN_EV_ERROR) {
        err.code = ev->u.error.status;
        err.at = ev->u.error.at;
        strncpy(err.text, ev->u.error.text ? ev->u.error.text : "out of memory", sizeof err.text - 1);
        generate_send(x, b, false);
        fail(x, &err, b);
        return false;
    }
    if (ev->type == GEN_EV_WARNING) {
        warn(x, ev->u.warning.text);
        return true;
    }
    if (ev->type == GEN_EV_PROGRESS) {
        x->n_done = ev->u.progress.n_done;
        x->n_total = ev->u.progress.n_total;
        return true;
    }
    if (ev->type == GEN_EV_START) {
        body_lower(x, x->body_kept);
        x->n_done = ev->u.start.n_cached;
        x->n_total = ev->u.start.n_prompt;
    }
    if (api_render_event(x->render, ev, b, &err) != MB_OK) {
        buf_clear(b);
        fail(x, &err, b);
        return false;
    }
    if (ev->type != GEN_EV_DONE) return true;
    finish(x, b);
    return false;
}

static bool has_room(struct http_exchange *x, size_t more)
{
    pthread_mutex_lock(&x->lock);
    bool room = x->out.len - x->out_off + more < OUT_HIGH_BYTES;
    x->out_blocked = !room;
    pthread_mutex_unlock(&x->lock);
    return room;
}

static void drain(struct http_exchange *x)
{
    struct gen_event ev;
    struct buf *b = &x->s->pump_bytes;
    bool alive = true;
    buf_clear(b);
    while (alive && has_room(x, b->len) && gen_next(x->gen, 0, &ev)) alive = take(x, &ev, b);
    if (alive && x->is_stream) generate_send(x, b, false);
    if (b->cap > OUT_LOW_BYTES) buf_free(b), buf_init(b, 0);
}

/* Text of one turn, to the client. What cannot go at once stays in out, which the pump's thread lets the library send. */
static void text_here_locked(struct http_exchange *x, struct buf *b, bool *more)
{
    struct gen_event ev;
    buf_clear(b);
    while (*more && b->len < HERE_BYTES && x->late.code == MB_OK && gen_next_text(x->gen, &ev, more)) {
        trace_event(x, &ev);
        if (api_render_event(x->render, &ev, b, &x->late) != MB_OK) buf_clear(b);
    }
    if (b->len == 0) return;
    if (!direct_send_locked(x, b)) buf_append(&x->out, b->data, b->len);
    buf_clear(b); /* who has the role next may be another stream */
    x->t_bytes_ns = clock_now_ns();
}

bool generate_here(struct http_exchange *x)
{
    bool more = true;
    if (!x->is_stream || x->late.code != MB_OK || pthread_mutex_trylock(&x->lock) != 0) return false;
    if (!x->gone && !x->hung_up && !x->cut && direct_ready_locked(x)) text_here_locked(x, &x->s->pump_bytes, &more);
    bool done = !more && x->late.code == MB_OK && x->out.len == x->out_off && !x->out.failed;
    pthread_mutex_unlock(&x->lock);
    return done;
}

/* Why it must end from outside: 0 no, 1 the client has gone, 2 the server cuts it off. */
static int ended(struct http_exchange *x)
{
    pthread_mutex_lock(&x->lock);
    bool left = x->gone || x->hung_up || (x->fin && !x->is_stream);
    bool cut = x->cut;
    pthread_mutex_unlock(&x->lock);
    return left ? 1 : cut ? 2 : 0;
}

static void give_up(struct http_exchange *x, int why)
{
    struct buf b;
    mb_error err = { 0 };
    buf_init(&b, 0);
    mb_fail(&err, why == 1 ? MB_CANCELLED : MB_BUSY, "%s",
            why == 1 ? "the client closed the connection" : "the server is shutting down");
    fail(x, &err, &b);
    buf_free(&b);
}

void generate_dead(struct http_exchange *x)
{
    struct buf b;
    mb_error err = { 0 };
    if (x->finished) return;
    drain(x); /* what was drawn, or a better reason, goes first */
    if (x->finished) return;
    buf_init(&b, 0);
    mb_fail(&err, MB_ENGINE_DEAD, "the engine has stopped; the server must be restarted");
    fail(x, &err, &b);
    buf_free(&b);
}

void generate_step(struct http_exchange *x)
{
    if (x->finished) return;
    pthread_mutex_lock(&x->lock);
    bool ready = x->gen_ready;
    if (x->out.len > x->out_off || x->out.failed) http_resume_locked(x); /* of generate_here */
    pthread_mutex_unlock(&x->lock);
    if (!ready) return; /* the worker wakes us again */
    int why = ended(x);
    if (why) give_up(x, why);
    else if (x->late.code != MB_OK) fail(x, &x->late, &x->s->pump_bytes);
    else drain(x);
}

void generate_keepalive(struct http_exchange *x, int64_t now_ns)
{
    struct buf b;
    if (x->finished || !x->is_stream || !x->gen || now_ns - x->t_bytes_ns < x->s->opt.keepalive_ms * 1000000) return;
    if (!has_room(x, 0)) return;
    buf_init(&b, 0);
    api_render_ping(x->render, x->n_done, x->n_total, &b);
    generate_send(x, &b, false);
    buf_free(&b);
}

/* A FIN says that the client will not send more; a line tells whether it still reads: a closed socket answers with a
 * reset, which the watch reports (B-043 d). */
void generate_probe(struct http_exchange *x)
{
    struct buf b;
    if (x->finished || !x->is_stream || !x->gen) return;
    buf_init(&b, 0);
    sse_comment(&b, "still there?");
    generate_send(x, &b, false);
    buf_free(&b);
}
