/* trace.c: MLX_BUN_P2R_TRACE=1: one JSON line a generation on stderr, from the request's arrival to its last event
 * (API-337, CFG-175, CFG-176). Times are those at which the server sees a phase end, in milliseconds:
 *
 *   queue_ms     body parsed, handed to the engine         prefill_ms     admitted to the first piece of text
 *   admission_ms from there to its place in the batch      token_zero_ms  arrival to the first piece of text
 *                                                          total_ms       arrival to the end
 * A phase that was not reached is null. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "server/server_int.h"

void trace_event(struct http_exchange *x, const struct gen_event *ev)
{
    struct trace *t = &x->trace;
    if (!x->s->opt.trace) return;
    if (ev->type == GEN_EV_START) {
        t->t_admitted_ns = clock_now_ns();
        t->n_prompt = ev->u.start.n_prompt;
        t->n_cached = ev->u.start.n_cached;
    }
    if ((ev->type == GEN_EV_TEXT || ev->type == GEN_EV_TOKEN) && t->t_first_ns == 0) t->t_first_ns = clock_now_ns();
    if (ev->type == GEN_EV_END) t->n_completion += ev->u.end.n_completion;
    if (ev->type == GEN_EV_ERROR) t->failed = true;
    if (ev->type == GEN_EV_DONE) t->done = true;
}

static void put_ms(struct buf *b, const char *name, int64_t from_ns, int64_t to_ns)
{
    if (from_ns && to_ns) buf_printf(b, ", \"%s\": %.3f", name, (double)(to_ns - from_ns) / 1e6);
    else buf_printf(b, ", \"%s\": null", name);
}

static void put_id(struct buf *b, const char *id)
{
    char text[sizeof ((struct http_exchange *)0)->request_id];
    size_t n = 0;
    for (; id[n] && n + 1 < sizeof text; n++) text[n] = id[n] >= ' ' && id[n] < 127 ? id[n] : '?';
    json_write_string(b, text, n);
}

void trace_write(struct http_exchange *x)
{
    const struct trace *t = &x->trace;
    struct buf b;
    if (!x->s->opt.trace || !x->gen) return;
    buf_init(&b, 0);
    buf_append_str(&b, "{\"trace_id\": ");
    put_id(&b, x->trace_id[0] ? x->trace_id : x->request_id);
    buf_printf(&b, ", \"path\": \"%s\", \"stream\": %s, \"outcome\": \"%s\", \"prompt_tokens\": %d, \"cached_tokens\": %d, "
                   "\"completion_tokens\": %d", x->route->path, x->is_stream ? "true" : "false",
               t->failed ? "failed" : t->done ? "finished" : "cancelled", (int)t->n_prompt, (int)t->n_cached, (int)t->n_completion);
    put_ms(&b, "queue_ms", t->t_received_ns, t->t_queued_ns);
    put_ms(&b, "admission_ms", t->t_queued_ns, t->t_admitted_ns);
    put_ms(&b, "prefill_ms", t->t_admitted_ns, t->t_first_ns);
    put_ms(&b, "token_zero_ms", t->t_received_ns, t->t_first_ns);
    put_ms(&b, "total_ms", t->t_received_ns, clock_now_ns());
    buf_append_str(&b, "}\n");
    if (!b.failed) fwrite(b.data, 1, b.len, stderr); /* one write: stderr is not buffered */
    buf_free(&b);
}
