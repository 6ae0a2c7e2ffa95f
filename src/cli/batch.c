/* batch.c: `generate --batch-file`: the requests of a file through the waist, as many at a time as the engine takes, the answers to
 * a file as they come. A line is compiled and rendered by the dialect of its path, so that it may say whatever a request over HTTP
 * may, and is refused with the same words. What is wrong with a line is its answer; only a full disk or a dead engine ends the run.
 *
 * Threads: the caller's alone touches lanes; streams call notify from theirs when they have something.
 */
#include "cli/batch.h"

#include <pthread.h>
#include <string.h>

#include "api/api.h"
#include "base/clock.h"
#include "base/errors.h"
#include "base/mem.h"

#define ANSWER_MAX ((size_t)1 << 30)

static const struct { const char *url; const struct api_dialect *dialect; } urls[] = {
    { "/v1/chat/completions", &api_openai_chat },
    { "/v1/completions", &api_openai_completions },
    { "/v1/messages", &api_anthropic },
    { "/v1/responses", &api_responses },
};

/* Flags that are defaults of every line, as the members of a body that they fill. */
static const struct { const char *member; size_t off; bool is_int; } defaults[] = {
    { "seed", offsetof(struct flags, seed), true },
    { "min_p", offsetof(struct flags, min_p), false },
    { "xtc_probability", offsetof(struct flags, xtc_probability), false },
    { "xtc_threshold", offsetof(struct flags, xtc_threshold), false },
    { "repetition_penalty", offsetof(struct flags, repetition_penalty), false },
    { "repetition_context_size", offsetof(struct flags, repetition_context_size), true },
    { "presence_penalty", offsetof(struct flags, presence_penalty), false },
    { "frequency_penalty", offsetof(struct flags, frequency_penalty), false },
    { "min_tokens", offsetof(struct flags, min_tokens), true },
};

/* A request that runs. */
struct lane {
    struct batch *batch;
    char id[300];
    bool used, openai, failed;
    struct api_request *req;
    struct api_render *render;
    struct gen_stream *stream;
    mb_error why;                /* failed */
    int32_t n_completion;
    size_t off, number;          /* of its line */
    bool again;                  /* the engine had no place for it: to begin once more, when another has ended */
};

struct batch {
    const struct flags *f;
    struct batch_files files;
    struct engine_client client;
    struct api_env env;
    struct lane *lanes;
    int32_t n_lanes, n_running;
    int32_t n_most;              /* lanes at work at once: fewer than n_lanes once the engine was full */
    size_t off, number;          /* of the next line */
    bool at_end;
    size_t n_answered, n_failed;
    int64_t n_tokens, t_begin_ns;
    struct progress bar;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool has_news;               /* under lock */
};

static void on_news(void *ctx)
{
    struct batch *b = ctx;
    pthread_mutex_lock(&b->lock);
    b->has_news = true;
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

static void wait_for_news(struct batch *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->has_news) pthread_cond_wait(&b->wake, &b->lock);
    b->has_news = false;
    pthread_mutex_unlock(&b->lock);
}

/* --- answers --- */

/* {"id": ID, "response": {"status_code": N, "body": BODY}, ...: the rest is the caller's. */
static void begin_answer(struct buf *out, const char *id, bool openai, int status, const struct buf *body)
{
    buf_printf(out, "{\"%s\": %s, \"response\": {\"status_code\": %d, \"body\": ", openai ? "custom_id" : "id", id, status);
    buf_append(out, body->data ? body->data : "null", body->data ? body->len : 4);
    buf_append_str(out, "}, \"error\": ");
}

static mb_status write_failure(struct batch *b, const char *id, bool openai, const struct api_dialect *d, const mb_error *e, mb_error *err)
{
    struct buf body, line;
    buf_init(&body, 0);
    buf_init(&line, 0);
    int status = api_error_body_of(&body, d, e);
    begin_answer(&line, id, openai, status, &body);
    buf_append_str(&line, "{\"code\": ");
    json_write_string(&line, mb_status_name(e->code), strlen(mb_status_name(e->code)));
    buf_append_str(&line, ", \"message\": ");
    json_write_string(&line, e->text, strlen(e->text));
    buf_append_str(&line, "}}\n");
    mb_status st = buf_status(&body, "an answer", err);
    if (st == MB_OK) st = batch_write(&b->files, &line, err);
    buf_free(&body);
    buf_free(&line);
    b->n_failed++;
    return st;
}

/* The text of the first choice, for lines of our own form. */
static void put_text(struct buf *line, const struct buf *body)
{
    json_t *v = NULL;
    if (json_read(&v, body->data, body->len, JSON_READ_DEFAULT, NULL) != MB_OK) return;
    const json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
    const json_t *text = json_object_get(choice, "text");
    if (!text) text = json_object_get(json_object_get(choice, "message"), "content");
    if (json_is_text(text)) {
        buf_append_str(line, ", \"text\": ");
        json_write_string(line, json_string_value(text), json_string_length(text));
    }
    json_decref(v);
}

static mb_status write_answer(struct batch *b, struct lane *l, mb_error *err)
{
    struct buf body, line;
    buf_init(&body, ANSWER_MAX);
    buf_init(&line, ANSWER_MAX);
    mb_status st = api_render_answer(l->render, &body, &l->why);
    if (st == MB_OK) st = buf_status(&body, "an answer", &l->why);
    if (st != MB_OK) {
        st = write_failure(b, l->id, l->openai, l->req->dialect, &l->why, err);
    } else {
        begin_answer(&line, l->id, l->openai, 200, &body);
        buf_append_str(&line, "null");
        if (!l->openai) put_text(&line, &body);
        buf_append_str(&line, "}\n");
        st = batch_write(&b->files, &line, err);
        b->n_answered++;
        b->n_tokens += l->n_completion;
    }
    buf_free(&body);
    buf_free(&line);
    return st;
}

/* --- a line to a request --- */

/* {"prompt": "text"} to the messages of a chat, with --system in front. */
static mb_status chat_of_prompt(const struct flags *f, json_t *body, mb_error *err)
{
    json_t *prompt = json_object_get(body, "prompt");
    if (!json_is_text(prompt)) return mb_fail_at(err, MB_INVALID, "prompt", "prompt must be a text");
    json_t *user = json_pack("{s:s, s:O}", "role", "user", "content", prompt);
    json_t *list = json_array();
    bool ok = user && list;
    if (ok && f->system.given) {
        json_t *system = json_pack("{s:s, s:s}", "role", "system", "content", f->system.s);
        ok = system && json_array_append_new(list, system) == 0;
    }
    ok = ok && json_array_append(list, user) == 0 && json_object_set(body, "messages", list) == 0 && json_object_del(body, "prompt") == 0;
    json_decref(user);
    json_decref(list);
    return ok ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for a request");
}

static mb_status set_defaults(const struct flags *f, json_t *body, mb_error *err)
{
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        const struct flag_value *v = (const struct flag_value *)(const void *)((const char *)f + defaults[i].off);
        if (!v->given || json_object_get(body, defaults[i].member)) continue;
        if (json_object_set_new(body, defaults[i].member, defaults[i].is_int ? json_integer(v->i) : json_real(v->d)) != 0)
            return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    }
    if (f->ignore_eos.b && !json_object_get(body, "ignore_eos") && json_object_set_new(body, "ignore_eos", json_true()) != 0)
        return mb_fail(err, MB_NO_MEMORY, "no memory for a request");
    json_object_del(body, "stream"); /* an answer is one line */
    json_object_del(body, "stream_options");
    return MB_OK;
}

/* What of l->value is the body, and by which dialect. The body is borrowed from the value. */
static mb_status find_body(struct batch *b, struct batch_line *l, json_t **body, const struct api_dialect **d, mb_error *err)
{
    if (l->openai) {
        const char *url = json_string_value(json_object_get(l->value, "url"));
        *body = json_object_get(l->value, "body");
        if (!json_is_object(*body)) return mb_fail_at(err, MB_INVALID, "body", "a line with a custom_id has a body, which is an object");
        for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
            if (strcmp(url ? url : urls[0].url, urls[i].url) != 0) continue;
            *d = urls[i].dialect;
            return MB_OK;
        }
        return mb_fail_at(err, MB_INVALID, "url", "url %.60s is not answered here; use /v1/chat/completions, /v1/completions, "
                          "/v1/messages or /v1/responses", url);
    }
    *body = l->value;
    json_object_del(*body, "id");
    bool chat = json_object_get(*body, "messages") || !b->f->raw.b;
    *d = chat ? &api_openai_chat : &api_openai_completions;
    if (!chat || json_object_get(*body, "messages")) return MB_OK;
    if (!json_object_get(*body, "prompt")) return mb_fail_at(err, MB_INVALID, "prompt", "a line needs messages or a prompt");
    return chat_of_prompt(b->f, *body, err);
}

static mb_status open_request(struct batch *b, struct batch_line *line, struct lane *l, const struct api_dialect **d, mb_error *err)
{
    struct buf text;
    json_t *body = NULL;
    *d = NULL;
    if (!line->value) {
        *err = line->why;
        return err->code;
    }
    MB_TRY(find_body(b, line, &body, d, err));
    MB_TRY(set_defaults(b->f, body, err));
    buf_init(&text, 2 * BATCH_LINE_MAX);
    json_write(&text, body, &(struct json_write_opts){ 0 });
    mb_status st = buf_status(&text, "a request", err);
    if (st == MB_OK) st = api_request_open(&l->req, *d, &b->env, text.data, text.len, err);
    buf_free(&text);
    if (st == MB_OK) st = api_render_open(&l->render, l->req, err);
    return st;
}

static void lane_close(struct batch *b, struct lane *l)
{
    if (l->stream) gen_close(l->stream);
    api_render_close(l->render);
    api_request_close(l->req);
    b->n_running -= l->used;
    memset(l, 0, sizeof *l);
}

/* Begin the line in a free lane; *begun false: it has its answer already, or must wait (then *later). */
static mb_status begin(struct batch *b, struct batch_line *line, struct lane *l, bool *later, mb_error *err)
{
    const struct api_dialect *d;
    mb_error why = { .text = "" };
    *later = false;
    *l = (struct lane){ .batch = b, .openai = line->openai };
    memcpy(l->id, line->id, sizeof l->id);
    mb_status st = open_request(b, line, l, &d, &why);
    if (st == MB_OK) {
        l->req->gen.t_received_ns = clock_now_ns();
        st = b->client.start(b->client.ctx, &l->req->gen, on_news, b, &l->stream, &why);
    }
    if (st == MB_OK) {
        api_request_started(l->req);
        l->used = true;
        b->n_running++;
        return MB_OK;
    }
    lane_close(b, l);
    *later = st == MB_BUSY && b->n_running > 0;
    if (*later) return MB_OK;
    if (st == MB_ENGINE_DEAD) return mb_fail(err, st, "%s", why.text);
    return write_failure(b, line->id, line->openai, d, &why, err);
}

/* --- running --- */

static void show_progress(struct batch *b)
{
    size_t todo = b->files.n_lines - b->files.n_done;
    progress_set(&b->bar, todo ? (double)(b->n_answered + b->n_failed) / (double)todo : 1);
}

/* One line into a free lane: the one that it had, else the next of the file. *used false: no line is left, or it must wait. */
static mb_status fill_lane(struct batch *b, struct lane *l, bool *used, mb_error *err)
{
    struct batch_line line;
    size_t off = l->again ? l->off : b->off, number = l->again ? l->number : b->number, from = off, above = number;
    bool again = l->again, later = false;
    *used = false;
    if (!batch_line_next(&b->files, &off, &number, &line)) {
        b->at_end = true;
        return MB_OK;
    }
    mb_status st = !again && batch_is_done(&b->files, &line) ? MB_OK : begin(b, &line, l, &later, err);
    batch_line_free(&line);
    MB_TRY(st);
    l->off = from;
    l->number = above;
    l->again = later && again;
    if (later) return MB_OK;
    if (!again) {
        b->off = off;
        b->number = number;
    }
    show_progress(b);
    *used = true;
    return MB_OK;
}

/* Lines into lanes, until all of these are busy or no line is left. */
static mb_status fill_lanes(struct batch *b, mb_error *err)
{
    for (int32_t i = 0; i < b->n_lanes; i++) {
        bool used = true;
        while (used && !b->lanes[i].used && b->n_running < b->n_most && (b->lanes[i].again || !b->at_end))
            MB_TRY(fill_lane(b, &b->lanes[i], &used, err));
    }
    return MB_OK;
}

static void take_event(struct lane *l, const struct gen_event *ev)
{
    struct buf none;
    if (ev->type == GEN_EV_END) l->n_completion += ev->u.end.n_completion;
    if (ev->type == GEN_EV_ERROR) {
        mb_fail_at(&l->why, ev->u.error.status, ev->u.error.at, "%s", ev->u.error.text ? ev->u.error.text : "failed");
        l->failed = true;
    }
    if (l->failed) return;
    buf_init(&none, ANSWER_MAX);
    if (api_render_event(l->render, ev, &none, &l->why) != MB_OK) {
        l->failed = true;
        gen_cancel(l->stream);
    }
    buf_free(&none);
}

/* The engine's queue was full: fewer at once from now on, and this line when one of the others has ended. */
static void wait_for_place(struct batch *b, struct lane *l)
{
    size_t off = l->off, number = l->number;
    lane_close(b, l);
    l->off = off;
    l->number = number;
    l->again = true;
    b->n_most = b->n_running;
}

/* Everything that a lane has; its answer when that is all. */
static mb_status drain(struct batch *b, struct lane *l, mb_error *err)
{
    struct gen_event ev;
    while (l->used && gen_next(l->stream, 0, &ev)) {
        take_event(l, &ev);
        if (ev.type != GEN_EV_DONE && ev.type != GEN_EV_ERROR) continue;
        if (l->failed && l->why.code == MB_BUSY && b->n_running > 1) {
            wait_for_place(b, l);
            return MB_OK;
        }
        mb_status st = l->failed ? write_failure(b, l->id, l->openai, l->req->dialect, &l->why, err) : write_answer(b, l, err);
        bool dead = l->failed && l->why.code == MB_ENGINE_DEAD;
        if (st == MB_OK && dead) st = mb_fail(err, MB_ENGINE_DEAD, "%s", l->why.text);
        lane_close(b, l);
        show_progress(b);
        return st;
    }
    return MB_OK;
}

static mb_status run_all(struct batch *b, mb_error *err)
{
    for (;;) {
        MB_TRY(fill_lanes(b, err));
        if (b->n_running == 0) return MB_OK;
        wait_for_news(b);
        for (int32_t i = 0; i < b->n_lanes; i++) MB_TRY(drain(b, &b->lanes[i], err));
    }
}

/* --- the verb --- */

static void print_summary(const struct batch *b)
{
    double s = (double)(clock_now_ns() - b->t_begin_ns) * 1e-9;
    if (b->f->quiet.b) return;
    fprintf(stderr, "%zu lines: %zu done before, %zu answered, %zu failed; %lld tokens, %.1f tokens/s%s\n", b->files.n_lines,
            b->files.n_done, b->n_answered, b->n_failed, (long long)b->n_tokens, s > 0 ? (double)b->n_tokens / s : 0,
            b->files.repaired ? "; a torn last line of the output was cut off" : "");
}

static mb_status run_with(struct batch *b, mb_engine *e, mb_error *err)
{
    b->client = mb_engine_client(e);
    b->env = (struct api_env){ .client = &b->client };
    b->n_lanes = b->client.info(b->client.ctx)->batch;
    if (b->n_lanes < 1) b->n_lanes = 1;
    b->n_most = b->n_lanes;
    b->lanes = mb_calloc((size_t)b->n_lanes, sizeof *b->lanes);
    if (!b->lanes) return mb_fail(err, MB_NO_MEMORY, "no memory for %d requests", (int)b->n_lanes);
    b->t_begin_ns = clock_now_ns();
    progress_begin(&b->bar, "answering", b->f->quiet.b);
    mb_status st = run_all(b, err);
    progress_end(&b->bar);
    for (int32_t i = 0; i < b->n_lanes; i++) lane_close(b, &b->lanes[i]);
    mb_free(b->lanes);
    return st;
}

static mb_status check_flags(const struct flags *f, mb_error *err)
{
    static const char wants[] = "it has its prompts in the file";
    if (!f->output.given) return mb_fail_at(err, MB_INVALID, "output", "--batch-file needs --output FILE for the answers");
    if (f->prompt.given || f->prompt_ids.given || f->messages.given)
        return mb_fail(err, MB_INVALID, "--batch-file takes no --prompt, --prompt-ids or --messages: %s", wants);
    if (f->stop.given) return mb_fail(err, MB_INVALID, "--batch-file takes no --stop: give a line \"stop\"");
    return MB_OK;
}

mb_status batch_generate(const struct flags *f, const char *positional, int *exit_status, mb_error *err)
{
    struct batch b = { .f = f, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER };
    mb_engine *e = NULL;
    MB_TRY(check_flags(f, err));
    mb_status st = batch_files_open(&b.files, f->batch_file.s, f->output.s, err);
    bool work = st == MB_OK && b.files.n_done < b.files.n_lines;
    b.t_begin_ns = clock_now_ns();
    if (work) st = model_open_flags(f, positional, &e, NULL, err);
    if (work && st == MB_OK) st = run_with(&b, e, err);
    mb_engine_close(e); /* no stream calls notify any more */
    if (st == MB_OK || b.n_answered + b.n_failed > 0) print_summary(&b);
    if (b.n_failed > 0) *exit_status = 1;
    batch_files_close(&b.files);
    return st;
}
