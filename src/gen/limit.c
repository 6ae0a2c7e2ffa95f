/* limit.c: what may be drawn next: the grammar's mask while the answer is written, nothing while the model thinks, the closing
 * marker once the thinking budget is used up. Advances on delivered tokens only, so a sequence that lost its place and comes
 * back stands where it stood.
 *
 * Where answers are messages with headers (chat/channels.c) a frame goes before: a grammar of all tokens, thoughts and headers
 * too, up to the header of the answer. The grammar of the answer sees it as clients do: no thought, no marker, no line break that belongs to a marker. A token drawn
 * without a mask (the one that closes a thought may carry text behind the tag) is checked by its bytes. */
#include <string.h>

#include "base/json.h"
#include "gen/gen_int.h"

size_t limit_mask_words(const struct gen_stream *s)
{
    return ((size_t)engine_info(s->g->engine)->n_vocab + 31) / 32;
}

bool limit_wanted(const struct gen_stream *s)
{
    return s->plan.grammar || s->plan.frame || s->plan.call || s->req.thinking_budget > 0;
}

/* Where answers have headers the frame begins with the first token, or the prompt has written some of it. */
static mb_status open_frame(struct gen_choice *c, enum reasoning_start start, mb_error *err)
{
    static const char *const thought[] = { "<|channel|>", "analysis", "<|message|>" };
    const struct gen_stream *s = c->s;
    struct choice_limit *l = &c->limit;
    if (!s->plan.frame) return MB_OK;
    if (start == REASONING_ANSWER && (s->plan.grammar || !s->plan.forced)) return MB_OK;
    if (start == REASONING_ANSWER)
        return mb_fail_at(err, MB_INVALID, "tool_choice", "the answer has begun as text, so a call cannot be asked for");
    MB_TRY(grammar_state_open(&l->frame, s->plan.frame, err));
    for (size_t i = 0; start == REASONING_THOUGHT && i < 3; i++) {
        int32_t id = tokenizer_id(s->g->text->tok, thought[i], strlen(thought[i]));
        if (i == 1) MB_TRY(grammar_state_accept_bytes(l->frame, thought[i], strlen(thought[i]), err));
        else MB_TRY(grammar_state_accept(l->frame, id, err));
    }
    return MB_OK;
}

/* A message that is continued is the beginning of the answer: the grammar stands behind it. */
static mb_status accept_beginning(struct gen_choice *c, mb_error *err)
{
    const struct gen_request *r = &c->s->req;
    json_t *messages = NULL;
    mb_error why = { 0 };
    if (r->continue_final != GIVEN_TRUE || r->input != GEN_MESSAGES) return MB_OK;
    MB_TRY(json_read(&messages, r->messages_json, strlen(r->messages_json), 0, err));
    const json_t *text = json_object_get(json_array_get(messages, json_array_size(messages) - 1), "content");
    mb_status st = MB_OK;
    if (json_is_text(text) && json_string_length(text))
        st = grammar_state_accept_bytes(c->limit.state, json_string_value(text), json_string_length(text), &why);
    json_decref(messages);
    if (st == MB_INVALID)
        return mb_fail_at(err, MB_INVALID, "continue_final_message",
                          "the message to be continued is not the beginning of an answer that the constraint allows");
    if (st != MB_OK && err) *err = why;
    return st;
}

mb_status limit_init(struct gen_choice *c, enum reasoning_start start, bool may_open, mb_error *err)
{
    struct gen_stream *s = c->s;
    if (!limit_wanted(s)) return MB_OK;
    c->limit.mask = arena_alloc_array(&s->arena, limit_mask_words(s), sizeof *c->limit.mask);
    if (!c->limit.mask) return mb_fail(err, MB_NO_MEMORY, "no memory for a token mask");
    c->limit.may_open = may_open && start == REASONING_ANSWER && !s->g->text->tags->channels;
    MB_TRY(open_frame(c, start, err));
    if (!s->plan.grammar) return MB_OK;
    c->split.answer_only = c->split.by_text; /* only a marker token can stand outside of what the grammar allows */
    MB_TRY(grammar_state_open(&c->limit.state, s->plan.grammar, err));
    return accept_beginning(c, err);
}

void limit_free(struct gen_choice *c)
{
    grammar_state_close(c->limit.state);
    grammar_state_close(c->limit.frame);
    grammar_state_close(c->limit.call);
}

static void allow(struct gen_choice *c, int32_t id)
{
    if (id >= 0 && id < engine_info(c->s->g->engine)->n_vocab) c->limit.mask[id >> 5] |= 1u << (id & 31);
}

static bool is_in(const int32_t *ids, int32_t n, int32_t id)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The budget is used up, or the closing tag has begun to be forced. */
static bool must_close(const struct gen_choice *c)
{
    const struct gen_request *r = &c->s->req;
    return c->split.inside && r->thinking_budget > 0 && c->s->g->n_close_ids > 0 && c->n_reasoning >= r->thinking_budget;
}

struct grammar_state *limit_ruling(const struct gen_choice *c)
{
    const struct choice_limit *l = &c->limit;
    if (l->frame) return l->frame;
    return c->split.inside ? NULL : l->state ? l->state : l->call;
}

const uint32_t *limit_next_mask(void *ctx, int32_t i_choice)
{
    struct gen_stream *s = ctx;
    struct gen_choice *c = &s->choices[i_choice];
    struct choice_limit *l = &c->limit;
    size_t bytes = limit_mask_words(s) * sizeof *l->mask;
    if (must_close(c)) {
        memset(l->mask, 0, bytes);
        allow(c, s->g->close_ids[l->n_forced % s->g->n_close_ids]);
        return l->mask;
    }
    struct grammar_state *state = limit_ruling(c);
    if (!state) return NULL;
    if (grammar_state_mask(state, l->mask, engine_info(s->g->engine)->n_vocab, &l->err) != MB_OK)
        memset(l->mask, 0, bytes); /* nothing can be drawn; on_token and on_end tell l->err */
    if (l->frame || !l->state) return l->mask;
    if (l->may_open) allow(c, s->g->text->open_id);
    for (int32_t i = 0; l->fresh && i < s->g->n_break_ids; i++) allow(c, s->g->break_ids[i]);
    return l->mask;
}

void limit_before(struct gen_choice *c)
{
    struct choice_limit *l = &c->limit;
    if (must_close(c)) l->n_forced++;
    l->spilled = l->state && !l->frame && c->split.inside;
}

void limit_content(struct gen_choice *c, const char *text, size_t len)
{
    struct choice_limit *l = &c->limit;
    if (l->state && l->spilled && !l->err.code) grammar_state_accept_bytes(l->state, text, len, &l->err);
}

/* A call of a strict tool has begun: its grammar takes over behind what is written already. The model may write its calls in
 * a form that the grammar does not have; then this one is left alone. */
static void call_begin(struct gen_choice *c, const char *sign, struct str since)
{
    struct choice_limit *l = &c->limit;
    const struct tokenizer *t = c->s->g->text->tok;
    int32_t id = tokenizer_id(t, sign, strlen(sign));
    mb_error no = { 0 };
    if (grammar_state_open(&l->call, c->s->plan.call, &l->err) != MB_OK) return;
    mb_status st = id >= 0 && tokenizer_is_added(t, id) ? grammar_state_accept(l->call, id, &no)
                                                        : grammar_state_accept_bytes(l->call, sign, strlen(sign), &no);
    if (st == MB_OK && since.len) st = grammar_state_accept_bytes(l->call, since.ptr, since.len, &no);
    if (st == MB_OK) return;
    grammar_state_close(l->call);
    l->call = NULL;
    l->call_lost = true;
}

static void follow_call(struct gen_choice *c, int32_t id)
{
    struct choice_limit *l = &c->limit;
    const char *sign;
    struct str since;
    if (!tool_scan_block(&c->tools, &sign, &since)) {
        grammar_state_close(l->call);
        l->call = NULL;
        l->call_lost = false;
    } else if (l->call) {
        if (!l->err.code) grammar_state_accept(l->call, id, &l->err);
    } else if (!l->call_lost) {
        call_begin(c, sign, since);
    }
}

/* No end token may be drawn here, so a grammar that is done ends the answer by itself. */
static bool must_end(const struct gen_choice *c, struct grammar_state *g)
{
    const struct gen_stream *s = c->s;
    bool no_end = s->req.ignore_eos || s->g->n_end_ids == 0 || c->n_drawn < s->req.min_tokens;
    return no_end && grammar_state_must_end(g);
}

/* The frame ends where the header of the answer does, and the answer's own grammar begins there. */
static void follow_frame(struct gen_choice *c, int32_t id)
{
    struct choice_limit *l = &c->limit;
    if (l->err.code || grammar_state_accept(l->frame, id, &l->err) != MB_OK) return;
    if (l->state && c->split.final) {
        grammar_state_close(l->frame);
        l->frame = NULL;
    } else {
        l->ended = must_end(c, l->frame);
    }
}

void limit_after(struct gen_choice *c, int32_t id)
{
    struct choice_limit *l = &c->limit;
    const struct gen_stream *s = c->s;
    bool was_fresh = l->fresh;
    if (l->frame) {
        follow_frame(c, id);
        return;
    }
    if (!l->state && c->s->plan.call) follow_call(c, id);
    if (!l->state) return;
    l->fresh = false;
    if (l->spilled) {
        l->spilled = false;
        l->fresh = !c->split.inside && c->split.fresh;
        return;
    }
    bool opened = l->may_open && id == s->g->text->open_id;
    l->may_open = false;
    if (opened || c->split.inside) return;
    if (was_fresh && is_in(s->g->break_ids, s->g->n_break_ids, id)) return;
    if (l->err.code || grammar_state_accept(l->state, id, &l->err) != MB_OK) return;
    l->ended = must_end(c, l->state);
}
