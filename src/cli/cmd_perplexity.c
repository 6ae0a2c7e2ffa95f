/* cmd_perplexity.c: teacher-forced log-probabilities of given ids: one score request, one event a position. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "cli/cli.h"

struct score {
    struct buf positions; /* JSON */
    int64_t n;
    double sum_nll;
    bool json;
};

static void on_score(struct score *s, const struct gen_event *ev)
{
    s->n++;
    s->sum_nll -= (double)ev->u.score.target_logprob;
    if (!s->json) return;
    struct buf *b = &s->positions;
    buf_printf(b, "%s{\"index\":%d,\"target\":%d,\"logprob\":", b->len ? "," : "", (int)ev->u.score.index,
               (int)ev->u.score.target);
    json_write_double(b, (double)ev->u.score.target_logprob);
    buf_printf(b, ",\"argmax\":%d,\"argmax_logprob\":", (int)ev->u.score.argmax);
    json_write_double(b, (double)ev->u.score.argmax_logprob);
    buf_append_char(b, '}');
}

static mb_status consume(struct gen_stream *s, struct score *out, struct progress *bar, mb_error *err)
{
    struct gen_event ev;
    for (;;) {
        if (!gen_next(s, -1, &ev)) return mb_fail(err, MB_INTERNAL, "the stream gave no event");
        if (ev.type == GEN_EV_SCORE) on_score(out, &ev);
        if (ev.type == GEN_EV_PROGRESS && ev.u.progress.n_total)
            progress_set(bar, (double)ev.u.progress.n_done / ev.u.progress.n_total);
        if (ev.type == GEN_EV_ERROR)
            return mb_fail_at(err, ev.u.error.status, ev.u.error.at, "%s", ev.u.error.text ? ev.u.error.text : "failed");
        if (ev.type == GEN_EV_DONE) return MB_OK;
    }
}

static mb_status print_result(struct score *s, mb_error *err)
{
    double mean = s->sum_nll / (double)s->n;
    if (!s->json) {
        printf("perplexity %.6f\nmean nll   %.6f nats over %lld positions\n", exp(mean), mean, (long long)s->n);
        return MB_OK;
    }
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, "{\"perplexity\":");
    json_write_double(&b, exp(mean));
    buf_append_str(&b, ",\"mean_nll\":");
    json_write_double(&b, mean);
    buf_printf(&b, ",\"n\":%lld,\"positions\":[", (long long)s->n);
    buf_append(&b, s->positions.data, s->positions.len);
    buf_append_str(&b, "]}\n");
    mb_status st = s->positions.failed ? mb_fail(err, MB_NO_MEMORY, "out of memory for the positions")
                                       : buf_status(&b, "the result", err);
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    return st;
}

static mb_status score(mb_engine *e, const struct flags *f, const int32_t *ids, int32_t n, mb_error *err)
{
    struct engine_client c = mb_engine_client(e);
    struct gen_request r = { .input = GEN_IDS, .ids = ids, .n_ids = n, .score = true, .max_tokens = -1, .n_choices = 1,
                             .raw_split = true };
    struct gen_stream *stream = NULL;
    struct score s = { .json = f->json.b };
    struct progress bar;
    if (n < 2) return mb_fail(err, MB_INVALID, "at least two ids are needed: each is scored given those before it, found %d", n);
    buf_init(&s.positions, 0);
    progress_begin(&bar, "scoring", f->quiet.b);
    mb_status st = c.start(c.ctx, &r, NULL, NULL, &stream, err);
    if (st == MB_OK) st = consume(stream, &s, &bar, err);
    progress_end(&bar);
    gen_close(stream);
    if (st == MB_OK && s.n == 0) st = mb_fail(err, MB_INTERNAL, "no position was scored");
    if (st == MB_OK) st = print_result(&s, err);
    buf_free(&s.positions);
    return st;
}

/* --ids, or --text through the model's tokenizer. *ids is released with mb_free. */
static mb_status read_ids(mb_engine *e, const struct flags *f, const struct buf *text, int32_t **ids, int32_t *n, mb_error *err)
{
    if (f->ids.given) return input_parse_ids(text->data, text->len, f->ids.s, ids, n, err);
    return mb_tokenize(e, text->data, text->len, true, ids, n, err);
}

mb_status cmd_perplexity(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    struct buf text;
    mb_engine *e = NULL;
    int32_t *ids = NULL, n = 0;
    (void)exit_status;
    if (f->ids.given == f->text.given) return mb_fail(err, MB_INVALID, "give either --ids FILE or --text FILE");
    buf_init(&text, 0);
    mb_status st = input_read(&text, f->ids.given ? f->ids.s : f->text.s, INPUT_MAX_BYTES, err);
    if (st == MB_OK) st = model_open_flags(f, n_pos > 0 ? pos[0] : NULL, &e, NULL, err);
    if (st == MB_OK) st = read_ids(e, f, &text, &ids, &n, err);
    if (st == MB_OK) st = score(e, f, ids, n, err);
    mb_free(ids);
    mb_engine_close(e);
    buf_free(&text);
    return st;
}
