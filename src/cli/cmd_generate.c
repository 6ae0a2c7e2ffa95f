/* cmd_generate.c: one request through the waist, its text to the terminal as it comes, or one JSON object at the end. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/batch.h"

/* What a run leaves: kept for --json. */
struct output {
    struct buf text, reasoning, ids, logprobs;
    int32_t n_prompt, n_cached, n_completion;
    const char *finish;
    int64_t t_first_ns, t_last_ns;
    bool json, is_tty, in_reasoning;
};

static void output_init(struct output *o, bool json)
{
    memset(o, 0, sizeof *o);
    buf_init(&o->text, 0);
    buf_init(&o->reasoning, 0);
    buf_init(&o->ids, 0);
    buf_init(&o->logprobs, 0);
    o->json = json;
    o->is_tty = isatty(STDERR_FILENO) == 1;
    o->finish = "stop";
}

static void output_free(struct output *o)
{
    buf_free(&o->text);
    buf_free(&o->reasoning);
    buf_free(&o->ids);
    buf_free(&o->logprobs);
}

/* --- the request --- */
struct input {
    struct buf text;
    int32_t *ids;
    struct gen_request r;
};

static void input_free(struct input *in)
{
    buf_free(&in->text);
    mb_free(in->ids);
}

static mb_status read_ids(const struct flags *f, struct input *in, mb_error *err)
{
    const char *s = f->prompt_ids.s;
    if (f->prompt.given || f->messages.given || f->system.given)
        return mb_fail(err, MB_INVALID, "--prompt-ids is the whole prompt: leave out --prompt, --messages and --system");
    if (s[0] == '@') MB_TRY(input_read(&in->text, s + 1, INPUT_MAX_BYTES, err));
    else buf_append_str(&in->text, s);
    buf_append(&in->text, "", 0);
    MB_TRY(buf_status(&in->text, "--prompt-ids", err));
    in->r.input = GEN_IDS;
    in->r.raw_split = true;
    MB_TRY(input_parse_ids(in->text.data, in->text.len, "--prompt-ids", &in->ids, &in->r.n_ids, err));
    in->r.ids = in->ids;
    return MB_OK;
}

static mb_status read_prompt(const struct flags *f, struct input *in, mb_error *err)
{
    if (f->prompt_ids.given) return read_ids(f, in, err);
    if (!f->raw.b) {
        in->r.input = GEN_MESSAGES;
        MB_TRY(input_messages(f, &in->text, err));
        in->r.messages_json = in->text.data;
        return MB_OK;
    }
    if (f->messages.given || f->system.given)
        return mb_fail(err, MB_INVALID, "--raw takes a --prompt without --messages and --system: they need the chat template");
    MB_TRY(input_prompt(f, &in->text, err));
    in->r.input = GEN_TEXT;
    in->r.raw_split = true;
    in->r.text = (struct str){ in->text.data, in->text.len };
    return MB_OK;
}

static struct sampler_value sampled(const struct flag_value *v)
{
    return (struct sampler_value){ .v = v->d, .given = v->given };
}

static mb_status set_request(const struct flags *f, struct input *in, mb_error *err)
{
    struct gen_request *r = &in->r;
    struct sampler_values *s = &r->sampling;
    MB_TRY(read_prompt(f, in, err));
    s->temperature = sampled(&f->temperature);
    s->top_p = sampled(&f->top_p);
    s->top_k = sampled(&f->top_k);
    s->min_p = sampled(&f->min_p);
    s->xtc_probability = sampled(&f->xtc_probability);
    s->xtc_threshold = sampled(&f->xtc_threshold);
    s->repetition_penalty = sampled(&f->repetition_penalty);
    s->repetition_context_size = sampled(&f->repetition_context_size);
    s->presence_penalty = sampled(&f->presence_penalty);
    s->presence_context_size = sampled(&f->presence_context_size);
    s->frequency_penalty = sampled(&f->frequency_penalty);
    s->frequency_context_size = sampled(&f->frequency_context_size);
    s->seed = sampled(&f->seed);
    s->seed.exact = (uint64_t)f->seed.i;
    r->max_tokens = f->max_tokens.given ? f->max_tokens.i : -1;
    r->min_tokens = (int32_t)f->min_tokens.i;
    r->ignore_eos = f->ignore_eos.b;
    r->stops = f->stop.list;
    r->n_stops = f->stop.n_list;
    r->n_choices = 1;
    r->tokens = f->json.b;
    r->thinking = !f->thinking.given ? GIVEN_NONE : f->thinking.b ? GIVEN_TRUE : GIVEN_FALSE;
    r->t_received_ns = clock_now_ns();
    for (int32_t i = 0; i < r->n_stops; i++)
        if (!r->stops[i][0]) return mb_fail(err, MB_INVALID, "--stop must not be empty");
    return MB_OK;
}

/* --- events --- */
static void print_reasoning(struct output *o, struct str text)
{
    if (!o->in_reasoning && o->is_tty) fputs("\033[2m", stderr);
    o->in_reasoning = true;
    fwrite(text.ptr, 1, text.len, stderr);
    fflush(stderr);
}

static void end_reasoning(struct output *o)
{
    if (!o->in_reasoning) return;
    fputs(o->is_tty ? "\033[0m\n" : "\n", stderr);
    o->in_reasoning = false;
}

static void on_text(struct output *o, const struct gen_event *ev)
{
    bool is_reasoning = ev->u.text.channel == GEN_REASONING;
    struct str text = ev->u.text.text;
    if (o->json) {
        buf_append(is_reasoning ? &o->reasoning : &o->text, text.ptr, text.len);
    } else if (is_reasoning) {
        print_reasoning(o, text);
    } else {
        end_reasoning(o);
        fwrite(text.ptr, 1, text.len, stdout);
        fflush(stdout);
    }
}

static void on_token(struct output *o, const struct gen_token_info *t)
{
    if (o->ids.len) buf_append_char(&o->ids, ','), buf_append_char(&o->logprobs, ',');
    json_write_int(&o->ids, t->id);
    if (isnan(t->logprob)) buf_append_str(&o->logprobs, "null"); /* a model that has none */
    else json_write_double(&o->logprobs, (double)t->logprob); /* shortest text of the double: the float32 reads back the same */
}

static mb_status on_event(struct output *o, const struct gen_event *ev, mb_error *err)
{
    static const char *const finishes[] = { "stop", "length", "tool_calls", "cancelled" };
    switch (ev->type) {
    case GEN_EV_START:
        o->n_prompt = ev->u.start.n_prompt;
        o->n_cached = ev->u.start.n_cached;
        break;
    case GEN_EV_TEXT:
        if (!o->t_first_ns) o->t_first_ns = clock_now_ns();
        on_text(o, ev);
        break;
    case GEN_EV_TOKEN: on_token(o, &ev->u.token); break;
    case GEN_EV_END:
        o->finish = finishes[ev->u.end.finish];
        o->n_completion = ev->u.end.n_completion;
        o->t_last_ns = clock_now_ns();
        break;
    case GEN_EV_ERROR: return mb_fail_at(err, ev->u.error.status, ev->u.error.at, "%s", ev->u.error.text ? ev->u.error.text : "failed");
    default: break;
    }
    return MB_OK;
}

static mb_status consume(struct gen_stream *s, struct output *o, mb_error *err)
{
    struct gen_event ev;
    do {
        if (!gen_next(s, -1, &ev)) return mb_fail(err, MB_INTERNAL, "the stream gave no event");
        MB_TRY(on_event(o, &ev, err));
        if (ferror(stdout)) return MB_OK; /* nobody reads any more; main.c reports what must be reported */
    } while (ev.type != GEN_EV_DONE);
    return MB_OK;
}

/* --- the end --- */
static mb_status print_json(struct output *o, mb_error *err)
{
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, "{\"text\":");
    json_write_string(&b, o->text.data ? o->text.data : "", o->text.len);
    if (o->reasoning.len) {
        buf_append_str(&b, ",\"reasoning\":");
        json_write_string(&b, o->reasoning.data, o->reasoning.len);
    }
    buf_printf(&b, ",\"ids\":[%s],\"logprobs\":[%s],\"finish_reason\":\"%s\",\"usage\":{\"prompt_tokens\":%d,"
               "\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n",
               o->ids.len ? o->ids.data : "", o->logprobs.len ? o->logprobs.data : "", o->finish, (int)o->n_prompt,
               (int)o->n_completion, (int)(o->n_prompt + o->n_completion), (int)o->n_cached);
    mb_status st = o->text.failed || o->ids.failed || o->logprobs.failed || o->reasoning.failed
                       ? mb_fail(err, MB_NO_MEMORY, "out of memory for the answer") : buf_status(&b, "the answer", err);
    if (st == MB_OK) fwrite(b.data, 1, b.len, stdout);
    buf_free(&b);
    return st;
}

static void print_summary(const struct output *o, const struct flags *f, int64_t t_begin_ns)
{
    if (!o->is_tty || f->quiet.b) return;
    double first_s = o->t_first_ns ? (double)(o->t_first_ns - t_begin_ns) * 1e-9 : 0;
    double rest_s = (double)(o->t_last_ns - o->t_first_ns) * 1e-9;
    fprintf(stderr, "\n%d prompt tokens, first text after %.2f s; %d tokens, %.1f tokens/s (%s)\n", (int)o->n_prompt, first_s,
            (int)o->n_completion, rest_s > 0 && o->n_completion > 1 ? (o->n_completion - 1) / rest_s : 0, o->finish);
}

static mb_status run(mb_engine *e, const struct flags *f, struct input *in, struct output *o, mb_error *err)
{
    struct engine_client c = mb_engine_client(e);
    struct gen_stream *s = NULL;
    if (in->r.input == GEN_MESSAGES && !c.info(c.ctx)->has_template)
        return mb_fail(err, MB_INVALID, "this model has no chat template: use --raw to continue a text");
    MB_TRY(c.start(c.ctx, &in->r, NULL, NULL, &s, err));
    mb_status st = consume(s, o, err);
    gen_close(s);
    end_reasoning(o);
    if (st != MB_OK) return st;
    if (o->json) return print_json(o, err);
    fputc('\n', stdout);
    print_summary(o, f, in->r.t_received_ns);
    return MB_OK;
}

mb_status cmd_generate(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    struct input in = { 0 };
    struct output o;
    mb_engine *e = NULL;
    if (f->batch_file.given) return batch_generate(f, n_pos > 0 ? pos[0] : NULL, exit_status, err);
    buf_init(&in.text, 0);
    output_init(&o, f->json.b);
    mb_status st = set_request(f, &in, err);
    if (st == MB_OK) st = model_open_flags(f, n_pos > 0 ? pos[0] : NULL, &e, NULL, err);
    if (st == MB_OK) {
        in.r.t_received_ns = clock_now_ns();
        st = run(e, f, &in, &o, err);
    }
    mb_engine_close(e);
    input_free(&in);
    output_free(&o);
    return st;
}
