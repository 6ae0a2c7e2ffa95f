/* constrain.c: a request's constraint and tool choice -> one grammar, or words in the prompt and a warning (design.md
 * section 6: never unconstrained in silence). Runs on a preparation worker; the vocabulary keeps compiled grammars, so an
 * agent that sends the same tools again pays once (B-059).
 *
 *   tool_choice required or named          the calls
 *   a constraint, no tools                 the constraint as it is
 *   a constraint and tools to choose from  either of the two
 *   strict tools to choose from            a second grammar, of one call, from its opening sign on (limit.c)
 *   where answers have headers             a frame around either, from the first token on, and the constraint as it is
 *
 * A constraint that is wrong is an error. One that cannot be enforced is one under `strict`; else what can be is, and the
 * prompt and the warning name the rest. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "gen/gen_int.h"

#define SLOW_COMPILE_NS 20000000

void constrain_free(struct constraint_plan *p)
{
    grammar_unref(p->grammar);
    grammar_unref(p->frame);
    grammar_unref(p->call);
    buf_free(&p->note);
    buf_free(&p->warning);
    memset(p, 0, sizeof *p);
}

static bool is_forced(const struct gen_request *r)
{
    return r->tool_choice == TOOLS_REQUIRED || r->tool_choice == TOOLS_NAMED;
}

static void warn(struct constraint_plan *p, const char *what, const char *why)
{
    buf_append_str(&p->warning, p->warning.len ? "; " : "");
    buf_append_str(&p->warning, what);
    buf_append_str(&p->warning, why);
}

/* --- words in the place of a grammar --- */
static const char *note_of(enum gen_constraint_kind kind)
{
    switch (kind) {
    case CONSTRAINT_JSON_OBJECT: return "Answer with one JSON object and nothing else.";
    case CONSTRAINT_JSON_SCHEMA: return "Answer with one JSON value and nothing else. It must satisfy this JSON Schema:\n";
    case CONSTRAINT_REGEX: return "The whole answer must match this regular expression:\n";
    case CONSTRAINT_GRAMMAR: return "The whole answer must be a text of this grammar:\n";
    case CONSTRAINT_CHOICE: return "Answer with exactly one of the texts of this list and nothing else:\n";
    default: return "";
    }
}

static void note(struct constraint_plan *p, const struct gen_constraint *c)
{
    if (c->kind == CONSTRAINT_NONE) return;
    buf_append_str(&p->note, p->note.len ? "\n\n" : "");
    buf_append_str(&p->note, note_of(c->kind));
    if (c->kind != CONSTRAINT_JSON_OBJECT) buf_append_str(&p->note, c->text);
}

static void degrade(struct constraint_plan *p, const struct gen_request *r, const char *why)
{
    if (is_forced(r)) warn(p, "tool_choice not enforced: ", why);
    else warn(p, "structured output not enforced: ", why);
    if (!is_forced(r)) note(p, &r->constraint);
}

/* --- sources --- */
static const enum grammar_kind KIND[] = {
    [CONSTRAINT_JSON_OBJECT] = GRAMMAR_JSON_OBJECT, [CONSTRAINT_JSON_SCHEMA] = GRAMMAR_JSON_SCHEMA,
    [CONSTRAINT_REGEX] = GRAMMAR_REGEX, [CONSTRAINT_GRAMMAR] = GRAMMAR_EBNF, [CONSTRAINT_CHOICE] = GRAMMAR_CHOICE,
};

static bool renderer_has_token(void *ctx, const char *text)
{
    const struct gen_renderer *t = ctx;
    int32_t id = tokenizer_id(t->tok, text, strlen(text));
    return id >= 0 && tokenizer_is_added(t->tok, id);
}

/* The constraint as an item of EBNF. */
static mb_status write_answer(struct buf *b, const struct gen_constraint *c, mb_error *err)
{
    switch (c->kind) {
    case CONSTRAINT_JSON_OBJECT: buf_append_str(b, "%json {\"type\":\"object\"}"); break;
    case CONSTRAINT_JSON_SCHEMA: buf_printf(b, "%%json %s", c->text); break;
    case CONSTRAINT_CHOICE: buf_printf(b, "%%choice %s", c->text); break;
    case CONSTRAINT_REGEX:
        buf_append_str(b, "%regex /");
        for (const char *p = c->text; *p; p++) {
            if (*p == '\\' && p[1]) buf_append_char(b, *p++);
            else if (*p == '/') buf_append_char(b, '\\');
            buf_append_char(b, *p);
        }
        buf_append_char(b, '/');
        break;
    default:
        return mb_fail_at(err, MB_INVALID, c->field,
                          "a grammar and tools that may be called cannot be combined; tool_choice \"none\" or \"required\" can");
    }
    return MB_OK;
}

static mb_status write_source(const struct gen_engine *g, const struct gen_request *r, const struct tool_set *tools,
                              struct buf *b, mb_error *err)
{
    struct tool_grammar_options o = { .only = r->tool_choice == TOOLS_NAMED ? r->tool_name : NULL,
                                      .parallel = r->parallel_tools != GIVEN_FALSE, .has_token = renderer_has_token,
                                      .ctx = g->text };
    bool one = !is_forced(r) && r->constraint.kind == CONSTRAINT_NONE;
    if (tool_family_has_frame(g->text->family)) {
        tool_grammar_frame(b, is_forced(r) ? FRAME_NO_FINAL : one ? FRAME_FREE : FRAME_ANSWER, tools->n > 0);
        if (tools->n) tool_grammar_write(b, g->text->family, tools, &o);
        return buf_status(b, "grammar", err);
    }
    buf_append_str(b, one ? "root ::= call" : "root ::= calls");
    if (!is_forced(r) && !one) {
        buf_append_str(b, " | ");
        MB_TRY(write_answer(b, &r->constraint, err));
    }
    buf_append_char(b, '\n');
    tool_grammar_write(b, g->text->family, tools, &o);
    return buf_status(b, "grammar", err);
}

/* --- compiling --- */
static mb_status vocab_get(struct gen_engine *g, struct grammar_vocab **out, mb_error *err)
{
    mb_status st = MB_OK;
    pthread_mutex_lock(&g->grammar_lock);
    if (!g->vocab) st = grammar_vocab_open(&g->vocab, g->text->tok, g->end_ids, g->n_end_ids, err);
    *out = g->vocab;
    pthread_mutex_unlock(&g->grammar_lock);
    return st;
}

static bool is_stopped(void *ctx)
{
    return stream_is_cancelled(ctx);
}

static mb_status compile(struct gen_engine *g, struct gen_stream *s, enum grammar_kind kind, const char *text, bool strict,
                         struct grammar **out, mb_error *err)
{
    struct grammar_vocab *v;
    int64_t t = clock_now_ns();
    struct grammar_source src = { .kind = kind, .text = text ? text : "", .len = text ? strlen(text) : 0, .strict = strict,
                                  .stopped = s ? is_stopped : NULL, .ctx = s };
    *out = NULL;
    MB_TRY(vocab_get(g, &v, err));
    MB_TRY(grammar_compile(out, v, &src, err));
    t = clock_now_ns() - t;
    if (t > SLOW_COMPILE_NS && kind == GRAMMAR_JSON_OBJECT) LOGI("gen", "the grammar of any JSON object took %.1f ms to compile", (double)t / 1e6);
    else if (t > SLOW_COMPILE_NS) LOGI("gen", "a grammar of %zu bytes took %.1f ms to compile", src.len, (double)t / 1e6);
    return MB_OK;
}

static mb_status at_field(mb_error *err, const struct gen_constraint *c)
{
    if (err && !err->at) err->at = c->field;
    return err && c->field ? mb_error_prefix(err, "%s", c->field) : err ? err->code : MB_INVALID;
}

/* The constraint alone, under its own strictness: what is wrong with it is said in its own words. */
static mb_status compile_answer(struct gen_engine *g, struct gen_stream *s, const struct gen_constraint *c, struct grammar **out, mb_error *err)
{
    mb_error why = { 0 };
    mb_status st = compile(g, s, KIND[c->kind], c->text, c->strict, out, &why);
    if (st != MB_OK) {
        if (err) *err = why;
        if (st != MB_NO_MEMORY) at_field(err, c);
    }
    return st;
}

/* The schema of one tool alone; what is wrong with it is said under its place in the request. */
static mb_status check_tool(struct gen_engine *g, struct gen_stream *s, const struct tool_set *tools, size_t i, bool strict, mb_error *err)
{
    const struct tool *t = &tools->tools[i];
    struct json_write_opts opts = { 0 };
    struct grammar *gr = NULL;
    struct tool_gap gap;
    struct buf b;
    buf_init(&b, 0);
    json_write(&b, t->parameters, &opts);
    mb_status st = buf_status(&b, "tools", err);
    if (st == MB_OK) st = compile(g, s, GRAMMAR_JSON_SCHEMA, b.data, strict, &gr, err);
    if (st == MB_OK && strict && tool_grammar_gap(g->text->family, t, grammar_keyword_limits, &gap))
        st = mb_fail(err, MB_UNSUPPORTED, "%s: %.60s cannot be enforced: the calls of this model do not write that value as JSON",
                     gap.path, gap.keyword);
    if (st != MB_OK && err && st != MB_NO_MEMORY) {
        err->at = "tools";
        mb_error_prefix(err, "tools[%zu].function.parameters", i);
    }
    grammar_unref(gr);
    buf_free(&b);
    return st;
}

/* A strict tool whose schema cannot be enforced, as such or in this model's markup, is refused by name, called or not. */
static mb_status check_strict_tools(struct gen_engine *g, struct gen_stream *s, const struct tool_set *tools, mb_error *err)
{
    for (size_t i = 0; i < tools->n; i++)
        if (tools->tools[i].strict && tools->tools[i].parameters) MB_TRY(check_tool(g, s, tools, i, true, err));
    return MB_OK;
}

/* The grammar of all calls does not say whose schema is wrong, and where arguments stand one by one it does not hold all of one:
 * `err` then becomes what is said of the first that is wrong as such. */
static bool name_wrong_tool(struct gen_engine *g, struct gen_stream *s, const struct gen_request *r, const struct tool_set *tools, mb_error *err)
{
    for (size_t i = 0; i < tools->n; i++) {
        const struct tool *t = &tools->tools[i];
        mb_error why = { 0 };
        if (!t->parameters || (r->tool_choice == TOOLS_NAMED && strcmp(t->name, r->tool_name) != 0)) continue;
        if (check_tool(g, s, tools, i, false, &why) != MB_INVALID) continue;
        if (err) *err = why;
        return true;
    }
    return false;
}

/* What a compile that went on without it left out. */
static void name_unenforced(struct constraint_plan *p, const struct grammar *g, const struct gen_request *r)
{
    size_t n = grammar_n_unenforced(g);
    for (size_t i = 0; i < n && i < 8; i++) {
        const struct grammar_unenforced *u = grammar_unenforced_get(g, i);
        char text[320];
        snprintf(text, sizeof text, "%.60s at %.200s", u->keyword, u->path);
        warn(p, "structured output not enforced: ", text);
    }
    if (n > 0 && !is_forced(r)) note(p, &r->constraint);
}

static mb_status combine(struct gen_engine *g, struct gen_stream *s, const struct gen_request *r, const struct tool_set *tools, struct grammar **out,
                         mb_error *err)
{
    struct buf b;
    buf_init(&b, 0);
    mb_status st = write_source(g, r, tools, &b, err);
    if (st == MB_OK) st = compile(g, s, GRAMMAR_EBNF, b.data, false, out, err);
    bool look = st == MB_INVALID || (st == MB_OK && tool_family_spreads_arguments(g->text->family));
    if (look && name_wrong_tool(g, s, r, tools, err) && st == MB_OK) {
        grammar_unref(*out);
        *out = NULL;
        st = MB_INVALID;
    }
    buf_free(&b);
    return st;
}

/* The markers of headers must be tokens: a header in plain text could not be told from the answer it is about. */
static mb_status make_frame(struct gen_engine *g, struct gen_stream *s, const struct gen_request *r, const struct tool_set *tools,
                            struct constraint_plan *p, mb_error *err)
{
    if (g->text->n_sign_ids == 0)
        return mb_fail(err, MB_UNSUPPORTED, "the vocabulary of this model lacks the tokens that its template writes");
    p->forced = is_forced(r);
    return combine(g, s, r, tools, &p->frame, err);
}

static mb_status check_choice(const struct gen_request *r, const struct tool_set *tools, mb_error *err)
{
    if (!is_forced(r)) return MB_OK;
    if (tools->n == 0)
        return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice asks for a call and there are no tools");
    if (r->tool_choice == TOOLS_NAMED && !(r->tool_name && tool_set_find(tools, r->tool_name, strlen(r->tool_name))))
        return mb_fail_at(err, MB_INVALID, "tool_choice", "tool_choice names \"%.100s\", which is not among the tools",
                          r->tool_name ? r->tool_name : "");
    return MB_OK;
}

static mb_status make_grammar(struct gen_engine *g, struct gen_stream *s, const struct gen_request *r, const struct tool_set *tools,
                              struct constraint_plan *p, mb_error *err)
{
    mb_error why = { 0 };
    bool alone = tools->n == 0 && !is_forced(r);
    mb_status st = is_forced(r) ? MB_OK : compile_answer(g, s, &r->constraint, &p->grammar, &why);
    if (st == MB_OK && tool_family_has_frame(g->text->family)) {
        st = make_frame(g, s, r, tools, p, &why);
    } else if (st == MB_OK && !alone) {
        grammar_unref(p->grammar);
        p->grammar = NULL;
        st = combine(g, s, r, tools, &p->grammar, &why);
    }
    if (st == MB_OK) {
        name_unenforced(p, p->grammar ? p->grammar : p->frame, r);
        return MB_OK;
    }
    grammar_unref(p->grammar);
    p->grammar = NULL;
    if ((st == MB_UNSUPPORTED || st == MB_TOO_LARGE) && (is_forced(r) || !r->constraint.strict)) {
        degrade(p, r, why.text);
        return MB_OK;
    }
    if (err) *err = why;
    return st;
}

/* Calls that the model chooses to make follow their schemas when a tool says strict. */
static mb_status make_call_grammar(struct gen_engine *g, struct gen_stream *s, const struct gen_request *r, const struct tool_set *tools,
                                   struct constraint_plan *p, mb_error *err)
{
    mb_error why = { 0 };
    bool strict = false;
    for (size_t i = 0; i < tools->n; i++) strict = strict || tools->tools[i].strict;
    if (!strict) return MB_OK;
    bool framed = tool_family_has_frame(g->text->family);
    mb_status st = framed ? make_frame(g, s, r, tools, p, &why) : combine(g, s, r, tools, &p->call, &why);
    if (st == MB_UNSUPPORTED || st == MB_TOO_LARGE) {
        warn(p, "strict tools not enforced: ", why.text);
        return MB_OK;
    }
    if (st != MB_OK && err) *err = why;
    return st;
}

mb_status constrain_plan(struct gen_engine *g, struct gen_stream *s, const struct gen_request *r, const struct tool_set *tools,
                         struct constraint_plan *out, mb_error *err)
{
    mb_status st;
    memset(out, 0, sizeof *out);
    MB_TRY(check_choice(r, tools, err));
    if (tools->n && !render_knows_tools(g->text)) {
        tool_prompt_write(&out->note, tools);
        warn(out, "tools: ", "the chat template of this model prints none; they were described in the system message");
    }
    if (!is_forced(r) && r->constraint.kind == CONSTRAINT_NONE) {
        st = g->opt.no_grammar ? MB_OK : check_strict_tools(g, s, tools, err);
        if (st == MB_OK && !g->opt.no_grammar) st = make_call_grammar(g, s, r, tools, out, err);
    } else if (g->opt.no_grammar) {
        degrade(out, r, "grammars are switched off (MLX_BUN_GRAMMAR=0)");
        st = MB_OK;
    } else {
        st = check_strict_tools(g, s, tools, err);
        if (st == MB_OK) st = make_grammar(g, s, r, tools, out, err);
    }
    if (st == MB_OK) st = buf_status(&out->note, "prompt", err);
    if (st == MB_OK) st = buf_status(&out->warning, "warning", err);
    if (st != MB_OK) constrain_free(out);
    return st;
}
