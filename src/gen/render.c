/* render.c: messages -> prompt text with origin runs -> ids. history.c has made the messages fit the template; the template
 * variables are put together (API-067, API-132), what users wrote is marked so that it cannot become a control token (B-008),
 * and the ends of messages are kept as places worth a snapshot. */
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "gen/gen_int.h"

/* --- template variables --- */
static mb_status make_kwargs(const struct gen_renderer *t, const struct gen_request *r, json_t **out, mb_error *err)
{
    const char *text = r->template_kwargs_json;
    enum given_bool thinking = r->thinking != GIVEN_NONE ? r->thinking : t->thinking;
    *out = NULL;
    if (text) MB_TRY(json_read(out, text, strlen(text), 0, err));
    else *out = json_object();
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return mb_fail_at(err, MB_INVALID, "chat_template_kwargs", "chat_template_kwargs must be of type dict");
    }
    if (thinking == GIVEN_NONE) return MB_OK;
    return json_object_set_new(*out, "enable_thinking", json_boolean(thinking == GIVEN_TRUE)) == 0
               ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for template variables");
}

static bool wants_continue(const struct gen_request *r, const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return r->continue_final == GIVEN_TRUE && role && strcmp(role, "assistant") == 0;
}

/* Continuing: the prompt ends where the last message's own text ends. */
static mb_status cut_after_last(struct template_output *t, int32_t i_last, mb_error *err)
{
    for (size_t i = t->n_runs; i > 0; i--) {
        if (t->runs[i - 1].i_message != i_last) continue;
        t->len = t->runs[i - 1].end;
        t->text[t->len] = '\0';
        t->n_runs = i;
        return MB_OK;
    }
    return mb_fail_at(err, MB_INVALID, "messages",
                      "the chat template does not print the last assistant message, so it cannot be continued");
}

/* --- ids --- */
static size_t content_spans(const struct gen_prompt *p, struct text_span *spans)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        const struct origin_run *run = &p->runs[i];
        if (run->i_message == ORIGIN_TEMPLATE || run->first == run->end) continue;
        if (n > 0 && spans[n - 1].end == run->first) spans[n - 1].end = run->end;
        else spans[n++] = (struct text_span){ run->first, run->end };
    }
    return n;
}

static void find_marks(struct gen_prompt *p, const size_t *ends)
{
    int32_t k = 0;
    for (size_t i = 0; i < p->n_runs; i++) {
        const struct origin_run *run = &p->runs[i];
        bool last_of_message = run->i_message >= 0 || run->i_message == ORIGIN_TOOLS;
        for (size_t j = i + 1; j < p->n_runs && last_of_message; j++) {
            if (p->runs[j].i_message == ORIGIN_TEMPLATE) continue;
            last_of_message = p->runs[j].i_message != run->i_message;
            break;
        }
        if (!last_of_message) continue;
        while (k < p->n_ids && ends[k] <= run->end) k++;
        if (k > 0 && k < p->n_ids && (p->n_marks == 0 || p->marks[p->n_marks - 1] < k)) p->marks[p->n_marks++] = k;
    }
}

/* A prompt far above the context is refused before all of it is cut into tokens; one a little above it is counted. */
static size_t token_ceiling(int32_t n_context)
{
    return n_context > 0 ? 2 * (size_t)n_context + 1024 : 0;
}

static mb_status tokenise(const struct gen_renderer *t, struct arena *a, struct gen_prompt *p, bool add_special,
                          int32_t n_context, mb_error *err)
{
    struct text_span *spans = arena_alloc_array(a, p->n_runs + 1, sizeof *spans);
    p->marks = arena_alloc_array(a, p->n_runs + 1, sizeof *p->marks);
    if (!spans || !p->marks) return mb_fail(err, MB_NO_MEMORY, "no memory for the prompt");
    struct encode_opts opts = { .add_special_tokens = add_special, .want_ends = p->n_runs > 0, .content = spans };
    opts.n_content = content_spans(p, spans);
    opts.max_tokens = token_ceiling(n_context);
    struct token_list list = { 0 };
    mb_status st = tokenizer_encode(t->tok, a, p->text, p->len, &opts, &list, err);
    if (st != MB_OK && list.over_limit)
        return mb_fail_at(err, MB_CONTEXT_LENGTH, "messages", "the prompt has more than %zu tokens, this model's context is %d "
                          "tokens; shorten the prompt", opts.max_tokens, (int)n_context);
    MB_TRY(st);
    if (list.n > INT32_MAX / 2) return mb_fail(err, MB_TOO_LARGE, "the prompt has %zu tokens", list.n);
    p->ids = list.ids;
    p->n_ids = (int32_t)list.n;
    if (list.ends) find_marks(p, list.ends);
    return MB_OK;
}

static mb_status render_text(const struct gen_renderer *t, const struct gen_request *r, json_t *messages, json_t *tools,
                             json_t *kwargs, struct arena *a, struct gen_prompt *p, mb_error *err)
{
    bool with_tools = json_array_size(tools) > 0;
    const struct chat_template *tmpl = with_tools && t->templates.tool_use ? t->templates.tool_use : t->templates.dflt;
    if (!tmpl)
        return mb_fail(err, MB_INVALID, "this model has no chat template (chat_template.jinja or chat_template in "
                                        "tokenizer_config.json); /v1/completions takes raw text");
    bool cont = wants_continue(r, messages);
    struct template_input in = { .messages = messages, .tools = with_tools ? tools : NULL, .kwargs = kwargs,
                                 .add_generation_prompt = !cont, .bos_token = tokenizer_bos_text(t->tok),
                                 .eos_token = tokenizer_eos_text(t->tok), .special_tokens = t->special_tokens,
                                 .now_unix_s = clock_unix_s() };
    struct template_output out = { 0 };
    MB_TRY(chat_template_render(tmpl, a, &in, NULL, &out, err));
    if (cont) MB_TRY(cut_after_last(&out, (int32_t)json_array_size(messages) - 1, err));
    p->text = out.text;
    p->len = out.len;
    p->runs = out.runs;
    p->n_runs = out.n_runs;
    /* Only what stands behind the last message can open a thought; a continued message may hold one itself. */
    size_t from = 0;
    for (size_t i = 0; i < p->n_runs && !cont; i++)
        if (p->runs[i].i_message >= 0) from = p->runs[i].end;
    p->start = reasoning_start(t->tags, p->text + from, p->len - from);
    p->closes_reasoning = reasoning_is_closed(t->tags, p->text + from, p->len - from);
    return MB_OK;
}

mb_status render_trial(const struct gen_renderer *t, json_t *messages, bool ask, struct arena *a, struct str *out, mb_error *err)
{
    const struct chat_template *tmpl = t->templates.tool_use ? t->templates.tool_use : t->templates.dflt;
    struct template_output text = { 0 };
    json_t *kwargs = json_object();
    mb_status st = tmpl && kwargs ? history_prepare(t, messages, NULL, NOTE_SYSTEM, err)
                                  : mb_fail(err, tmpl ? MB_NO_MEMORY : MB_INVALID, "no template or no memory for one");
    struct template_input in = { .messages = messages, .kwargs = kwargs, .add_generation_prompt = ask, .bos_token = tokenizer_bos_text(t->tok),
                                 .eos_token = tokenizer_eos_text(t->tok), .special_tokens = t->special_tokens,
                                 .now_unix_s = clock_unix_s() };
    if (st == MB_OK) st = chat_template_render(tmpl, a, &in, NULL, &text, err);
    json_decref(kwargs);
    *out = (struct str){ text.text, text.len };
    return st;
}

static mb_status render_messages(const struct gen_renderer *t, const struct gen_request *r, const char *note,
                                 enum note_place place, int32_t n_context, struct arena *a, struct gen_prompt *out,
                                 mb_error *err)
{
    json_t *messages = NULL, *tools = NULL, *kwargs = NULL;
    mb_status st;
    MB_TRY_GOTO(st, json_read(&messages, r->messages_json, strlen(r->messages_json), 0, err), done);
    MB_TRY_GOTO(st, history_prepare(t, messages, note, place, err), done);
    if (calls_wanted(r)) MB_TRY_GOTO(st, json_read(&tools, r->tools_json, strlen(r->tools_json), 0, err), done);
    MB_TRY_GOTO(st, make_kwargs(t, r, &kwargs, err), done);
    MB_TRY_GOTO(st, render_text(t, r, messages, tools, kwargs, a, out, err), done);
    /* The template writes bos itself; the tokenizer's own frame is for raw text. */
    st = tokenise(t, a, out, false, n_context, err);
done:
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
    return st;
}

/* A note goes into the system text; a template that refuses one (it raises) gets it before the first user text. */
static mb_status render_chat(const struct gen_renderer *t, const struct gen_request *r, const char *note, int32_t n_context,
                             struct arena *a, struct gen_prompt *out, mb_error *err)
{
    bool has_note = note && *note;
    mb_error why = { 0 };
    mb_status st = render_messages(t, r, has_note ? note : NULL, NOTE_SYSTEM, n_context, a, out, &why);
    if (st == MB_TEMPLATE && has_note) {
        memset(out, 0, sizeof *out);
        return render_messages(t, r, note, NOTE_USER, n_context, a, out, err);
    }
    if (st != MB_OK && err) *err = why;
    return st;
}

mb_status render_limited(const struct gen_renderer *t, const struct gen_request *r, const char *note, int32_t n_context,
                         struct arena *a, struct gen_prompt *out, mb_error *err)
{
    memset(out, 0, sizeof *out);
    mb_status st = MB_OK;
    if (r->input == GEN_MESSAGES) {
        st = render_chat(t, r, note, n_context, a, out, err);
    } else if (r->input == GEN_TEXT) {
        out->text = arena_strndup(a, r->text.ptr, r->text.len);
        out->len = r->text.len;
        if (!out->text) st = mb_fail(err, MB_NO_MEMORY, "no memory for the prompt");
        else st = tokenise(t, a, out, true, n_context, err);
    } else {
        out->ids = arena_alloc_array(a, (size_t)r->n_ids + 1, sizeof *out->ids);
        if (!out->ids) st = mb_fail(err, MB_NO_MEMORY, "no memory for the prompt");
        else memcpy(out->ids, r->ids, (size_t)r->n_ids * sizeof *out->ids);
        out->n_ids = r->n_ids;
    }
    if (st == MB_OK && out->n_ids == 0) {
        int32_t bos = tokenizer_bos_id(t->tok) >= 0 ? tokenizer_bos_id(t->tok) : tokenizer_eos_id(t->tok);
        st = r->input == GEN_TEXT && bos < 0
                 ? mb_fail_at(err, MB_INVALID, "prompt", "the prompt is empty")
                 : bos < 0 ? mb_fail_at(err, MB_INVALID, "messages", "the prompt is empty") : MB_OK;
        if (st == MB_OK) { /* an empty prompt begins a text */
            out->ids = arena_alloc_array(a, 1, sizeof *out->ids);
            if (!out->ids) st = mb_fail(err, MB_NO_MEMORY, "no memory for the prompt");
            else out->ids[0] = bos, out->n_ids = 1;
        }
    }
    if (st != MB_OK) memset(out, 0, sizeof *out);
    return st;
}

mb_status gen_renderer_render(const struct gen_renderer *t, const struct gen_request *r, struct arena *a,
                              struct gen_prompt *out, mb_error *err)
{
    return render_limited(t, r, NULL, 0, a, out, err);
}

mb_status gen_render(struct gen_engine *g, const struct gen_request *r, struct arena *a, struct gen_prompt *out,
                     mb_error *err)
{
    struct tool_set tools = { 0 };
    struct constraint_plan plan = { 0 };
    mb_status st = calls_wanted(r) ? tool_set_open(&tools, r->tools_json, err) : MB_OK;
    if (st == MB_OK) st = constrain_plan(g, NULL, r, &tools, &plan, err);
    if (st == MB_OK) st = render_limited(g->text, r, plan.note.data, 0, a, out, err);
    if (st != MB_OK) memset(out, 0, sizeof *out);
    constrain_free(&plan);
    tool_set_close(&tools);
    return st;
}
