/* gen_rig.h: a gen_engine over the scripted stepper and the tiny tokenizer. Header-only, for tests of gen, api, server. */
#ifndef TESTS_UNIT_GEN_RIG_H
#define TESTS_UNIT_GEN_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"
#include "gen/gen.h"
#include "tokenizer/tokenizer.h"

#define RIG_DIR "tests/golden/tiny-tokenizer"

static bool rig_jump; /* grammar_jump of the engines that rig_init describes */

struct gen_rig {
    int32_t script[4096];
    int32_t n_script;
    struct scripted_options so;
    struct engine_options eo;
    struct gen_engine_options go;
    struct gen_model_info info;
    struct gen_engine *gen;
    struct engine_client client;
};

static inline int32_t rig_encode(const char *text, int32_t *ids, int32_t cap)
{
    struct tokenizer *t;
    struct arena a;
    struct token_list list = { 0 };
    struct encode_opts opts = { 0 };
    mb_error err = { 0 };
    arena_init(&a, 0);
    if (tokenizer_open(&t, RIG_DIR, &err) != MB_OK) fail_msg("tokenizer: %s", err.text);
    if (tokenizer_encode(t, &a, text, strlen(text), &opts, &list, &err) != MB_OK) fail_msg("encode: %s", err.text);
    assert_true((int32_t)list.n <= cap);
    memcpy(ids, list.ids, list.n * sizeof *ids);
    arena_free(&a);
    tokenizer_close(t);
    return (int32_t)list.n;
}

/* Defaults; change fields before rig_start. Pieces are encoded one by one, so that their borders are token borders. */
static inline void rig_init(struct gen_rig *r, const char *const *pieces)
{
    memset(r, 0, sizeof *r);
    for (int i = 0; pieces && pieces[i]; i++) r->n_script += rig_encode(pieces[i], r->script + r->n_script, 4096 - r->n_script);
    int32_t end;
    rig_encode("<|im_end|>", &end, 1);
    r->so = (struct scripted_options){ .n_vocab = 512, .n_context = 100000, .m_max = 2048, .n_rows_max = 16, .end_id = end };
    r->eo = (struct engine_options){ .batch = 8, .queue_max = 64, .prefill_chunk = 2048, .prefill_share = 3, .client_timeout_ms = 60000 };
    r->go = (struct gen_engine_options){ .model_dir = RIG_DIR, .max_tokens = -1, .grammar_jump = rig_jump };
    r->info = (struct gen_model_info){ .kv_mode = "bf16", .device = "scripted", .tier = "l1", .batch = 8, .n_layer_full = 1 };
}

static inline void rig_start(struct gen_rig *r)
{
    struct stepper st;
    struct engine *e;
    mb_error err = { 0 };
    r->so.script = r->script;
    r->so.n_script = r->n_script;
    if (stepper_scripted(&st, &r->so, &err) != MB_OK) fail_msg("stepper: %s", err.text);
    if (engine_open(&e, &st, &r->eo, &err) != MB_OK) fail_msg("engine: %s", err.text);
    if (gen_engine_open(&r->gen, e, &r->go, &r->info, &err) != MB_OK) fail_msg("gen_engine: %s", err.text);
    r->client = gen_engine_client(r->gen);
}

static inline void rig_stop(struct gen_rig *r)
{
    gen_engine_close(r->gen, 0);
}

/* What one request said, both channels joined. */
struct rig_answer {
    struct buf content, reasoning;
    enum gen_finish finish;
    int32_t n_prompt, n_completion, n_reasoning, n_tokens, n_ends;
    char stop[64], error[512];
    mb_status status;
    bool done;
};

static inline void rig_collect(struct gen_stream *s, struct rig_answer *a)
{
    struct gen_event ev;
    memset(a, 0, sizeof *a);
    buf_init(&a->content, 0);
    buf_init(&a->reasoning, 0);
    while (!a->done && gen_next(s, 20000, &ev)) {
        switch (ev.type) {
        case GEN_EV_START: a->n_prompt = ev.u.start.n_prompt; break;
        case GEN_EV_TEXT:
            if (ev.i_choice == 0)
                buf_append(ev.u.text.channel == GEN_REASONING ? &a->reasoning : &a->content, ev.u.text.text.ptr, ev.u.text.text.len);
            break;
        case GEN_EV_TOKEN: a->n_tokens++; break;
        case GEN_EV_END:
            a->n_ends++;
            a->finish = ev.u.end.finish;
            a->n_completion += ev.u.end.n_completion;
            a->n_reasoning += ev.u.end.n_reasoning;
            if (ev.u.end.stop) snprintf(a->stop, sizeof a->stop, "%s", ev.u.end.stop);
            break;
        case GEN_EV_ERROR:
            a->status = ev.u.error.status;
            snprintf(a->error, sizeof a->error, "%s", ev.u.error.text);
            a->done = true;
            break;
        case GEN_EV_DONE: a->done = true; break;
        default: break;
        }
    }
    buf_append(&a->content, "", 0);
    buf_append(&a->reasoning, "", 0);
    gen_close(s);
}

static inline const char *rig_content(const struct rig_answer *a) { return a->content.data ? a->content.data : ""; }
static inline const char *rig_reasoning(const struct rig_answer *a) { return a->reasoning.data ? a->reasoning.data : ""; }
static inline void rig_answer_free(struct rig_answer *a)
{
    buf_free(&a->content);
    buf_free(&a->reasoning);
}

static inline struct gen_request rig_chat(const char *messages)
{
    return (struct gen_request){ .input = GEN_MESSAGES, .messages_json = messages, .max_tokens = -1, .n_choices = 1 };
}

/* Run one request to its end. */
static inline void rig_run(struct gen_rig *r, const struct gen_request *q, struct rig_answer *a)
{
    struct gen_stream *s;
    mb_error err = { 0 };
    if (r->client.start(r->client.ctx, q, NULL, NULL, &s, &err) != MB_OK) fail_msg("start: %s", err.text);
    rig_collect(s, a);
}

static inline void rig_quiet(void *ctx, enum log_level l, const char *area, const char *text)
{
    (void)ctx; (void)l; (void)area; (void)text;
}

#endif
