/* test_jump.c: jump-forward changes nothing that comes out: over many schemas, texts and ways to go on, the same events with
 * it and without, and fewer steps where the model says what the grammar forces. API-164, API-165, ENG-194. */
#include "model_dir.h"
#include "told.h"

/* Everything of an answer that could differ. */
struct trace { struct buf b; int32_t n_tokens; };

static void note_token(struct trace *t, const struct gen_event *ev)
{
    const struct gen_token_info *k = &ev->u.token;
    t->n_tokens++;
    buf_printf(&t->b, "%d:%d %.9g%s", (int)ev->i_choice, (int)k->id, (double)k->logprob, k->is_end ? " end" : "");
    for (int32_t i = 0; i < k->n_top; i++) buf_printf(&t->b, " %d=%.9g", (int)k->top_id[i], (double)k->top_logprob[i]);
    buf_append_char(&t->b, '\n');
}

static void note_event(struct trace *t, const struct gen_event *ev)
{
    switch (ev->type) {
    case GEN_EV_TOKEN: note_token(t, ev); break;
    case GEN_EV_TEXT:
        buf_printf(&t->b, "%d text %d ", (int)ev->i_choice, (int)ev->u.text.channel);
        buf_append(&t->b, ev->u.text.text.ptr, ev->u.text.text.len);
        buf_append_char(&t->b, '\n');
        break;
    case GEN_EV_TOOL:
        buf_printf(&t->b, "%d tool ", (int)ev->i_choice);
        buf_append(&t->b, ev->u.tool.name.ptr, ev->u.tool.name.len);
        buf_append(&t->b, ev->u.tool.arguments.ptr, ev->u.tool.arguments.len);
        buf_append_char(&t->b, '\n');
        break;
    case GEN_EV_END:
        buf_printf(&t->b, "%d end %d %d %d %s\n", (int)ev->i_choice, (int)ev->u.end.finish, (int)ev->u.end.n_completion,
                   (int)ev->u.end.n_reasoning, ev->u.end.stop ? ev->u.end.stop : "");
        break;
    case GEN_EV_ERROR: buf_printf(&t->b, "error %d %s\n", (int)ev->u.error.status, ev->u.error.text); break;
    default: break;
    }
}

/* Choices are told one after the other: how they are mixed is not part of the answer. */
static void run(struct gen_rig *r, const struct gen_request *q, struct trace *out)
{
    struct trace of[4] = { 0 };
    struct gen_stream *s;
    struct gen_event ev;
    mb_error err = { 0 };
    buf_init(&out->b, 0);
    out->n_tokens = 0;
    for (int i = 0; i < 4; i++) buf_init(&of[i].b, 0);
    if (r->client.start(r->client.ctx, q, NULL, NULL, &s, &err) != MB_OK) fail_msg("start: %s", err.text);
    do {
        assert_true(gen_next(s, 20000, &ev));
        note_event(&of[ev.i_choice & 3], &ev);
    } while (ev.type != GEN_EV_DONE && ev.type != GEN_EV_ERROR);
    gen_close(s);
    for (int i = 0; i < 4; i++) {
        buf_append(&out->b, of[i].b.data ? of[i].b.data : "", of[i].b.len);
        out->n_tokens += of[i].n_tokens;
        buf_free(&of[i].b);
    }
    buf_append_char(&out->b, '\0');
}

static const struct kv_kind KINDS[] = {
    { .type = KIND_FULL, .n_layer = 1, .page_bytes = 8192 },
    { .type = KIND_WINDOW, .window = 100, .n_layer = 1, .page_bytes = 8192 },
    { .type = KIND_STATE, .n_layer = 1, .page_bytes = 12288 },
};

/* Two engines that differ in the setting alone. */
struct pair { struct gen_rig r[2]; struct scripted_counters count[2]; };

static void pair_open(struct pair *p, const char *const *pieces, bool hash, int32_t n_kinds)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 2; i++) {
        struct gen_rig *r = &p->r[i];
        rig_init(r, pieces);
        r->so.hash_draws = hash;
        r->so.kinds = n_kinds ? KINDS : NULL;
        r->so.n_kinds = n_kinds;
        r->so.n_context = 4096;
        r->so.counters = &p->count[i];
        r->eo.pool_bytes = n_kinds ? 24 << 20 : 0;
        r->eo.prompt_cache_bytes = n_kinds ? 4 << 20 : 0;
        r->go.grammar_jump = i == 1;
        rig_start(r);
    }
}

static void pair_close(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        rig_stop(&p->r[i]);
        if (p->count[i].n_violations) fail_msg("%s", p->count[i].violation);
    }
}

static int32_t pair_same(struct pair *p, const struct gen_request *q, const char *what)
{
    struct trace t[2];
    for (int i = 0; i < 2; i++) run(&p->r[i], q, &t[i]);
    size_t at = 0;
    while (t[0].b.data[at] && t[0].b.data[at] == t[1].b.data[at]) at++;
    size_t from = at > 200 ? at - 200 : 0;
    if (t[0].b.data[at] != t[1].b.data[at])
        fail_msg("%s\n--- without\n%.400s\n--- with\n%.400s", what, t[0].b.data + from, t[1].b.data + from);
    int32_t n = t[0].n_tokens;
    buf_free(&t[0].b);
    buf_free(&t[1].b);
    return n;
}

static struct gen_request asked(enum gen_constraint_kind kind, const char *text)
{
    struct gen_request q = rig_chat(HI);
    q.constraint = (struct gen_constraint){ .kind = kind, .text = text, .field = "response_format", .strict = false };
    q.sampling.seed.given = true;
    q.max_tokens = 120;
    q.logprobs = true;
    q.n_top_logprobs = 3;
    return q;
}

/* --- schemas --- */

static const char *const SCHEMAS[] = {
    "{\"const\":\"a rather long constant text that leaves no choice at all\"}",
    "{\"enum\":[\"one hundred\",\"one thousand\",\"two\"]}",
    "{\"type\":\"object\",\"properties\":{\"temperature_celsius\":{\"type\":\"integer\"},\"city_name\":{\"enum\":[\"Oslo\",\"Osaka\"]}},"
    "\"required\":[\"temperature_celsius\",\"city_name\"],\"additionalProperties\":false}",
    "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"identifier\":{\"type\":\"boolean\"}},\"required\":"
    "[\"identifier\"],\"additionalProperties\":false},\"minItems\":2,\"maxItems\":3}",
    "{\"type\":\"object\",\"properties\":{\"gr\\u00f6\\u00dfe\":{\"const\":\"\\u65e5\\u672c \\ud83d\\ude00\"},\"n\":{\"type\":\"null\"}},"
    "\"required\":[\"gr\\u00f6\\u00dfe\"],\"additionalProperties\":false}",
    "{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"alpha\"},\"a\":{\"type\":\"string\",\"maxLength\":4}},\"required\":"
    "[\"kind\",\"a\"],\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"alphabet\"}},\"required\":"
    "[\"kind\"],\"additionalProperties\":false}]}",
    "{\"type\":\"string\",\"pattern\":\"^https://example\\\\.org/[a-c]{2}/end$\"}",
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
    "true",
};
enum { N_SCHEMAS = sizeof SCHEMAS / sizeof SCHEMAS[0] };

static const struct { enum gen_constraint_kind kind; const char *text; } OTHERS[] = {
    { CONSTRAINT_REGEX, "order-[0-9]{3}-(shipped|shipment pending), thank you" },
    { CONSTRAINT_CHOICE, "[\"yes\", \"yesterday evening\", \"no\"]" },
    { CONSTRAINT_GRAMMAR, "root ::= \"<answer>\" inner \"</answer>\"\ninner ::= \"the one and only\" | \"the other one\"\n" },
    { CONSTRAINT_JSON_OBJECT, "" },
};

/* Draws that are a hash of all before them: nearly every guess about spelling is wrong somewhere. */
static void test_any_model(void **state)
{
    static const int32_t kinds[] = { 0, 1, 2, 3 };
    int32_t n = 0;
    (void)state;
    for (size_t k = 0; k < 4; k++) {
        static struct pair p;
        pair_open(&p, NULL, true, kinds[k]);
        for (int seed = 0; seed < 3; seed++) {
            for (size_t i = 0; i < N_SCHEMAS + 4; i++) {
                struct gen_request q = i < N_SCHEMAS ? asked(CONSTRAINT_JSON_SCHEMA, SCHEMAS[i])
                                                     : asked(OTHERS[i - N_SCHEMAS].kind, OTHERS[i - N_SCHEMAS].text);
                q.sampling.seed.v = seed;
                q.n_choices = seed == 2 ? 3 : 1;
                if (seed == 1) q.thinking = GIVEN_FALSE;
                n += pair_same(&p, &q, q.constraint.text);
            }
        }
        assert_true(p.count[1].n_submits < p.count[0].n_submits);
        pair_close(&p);
    }
    assert_true(n > 1000);
}

/* A model that writes what is asked for, in the tokenizer's own tokens. */
static void test_forced_text_in_few_steps(void **state)
{
    static const char *const SAYS[] = { "{\"temperature_celsius\":17,\"city_name\":\"Osaka\"}", NULL };
    static struct pair p;
    (void)state;
    pair_open(&p, SAYS, false, 3);
    struct gen_request q = asked(CONSTRAINT_JSON_SCHEMA, SCHEMAS[2]);
    q.thinking = GIVEN_FALSE;
    int32_t n = pair_same(&p, &q, "forced text");
    if (p.count[1].n_submits * 2 > p.count[0].n_submits)
        fail_msg("%d tokens: %d steps without, %d with", (int)n, (int)p.count[0].n_submits, (int)p.count[1].n_submits);
    pair_close(&p);
}

/* --- what else decides about draws --- */

static void test_limits_cut_in_the_same_place(void **state)
{
    static const char *const SAYS[] = { "{\"temperature_celsius\":17,\"city_name\":\"Osaka\"}", NULL };
    static struct pair p;
    (void)state;
    pair_open(&p, SAYS, false, 3);
    struct gen_request q = asked(CONSTRAINT_JSON_SCHEMA, SCHEMAS[2]);
    q.thinking = GIVEN_FALSE;
    for (q.max_tokens = 0; q.max_tokens < 24; q.max_tokens++) pair_same(&p, &q, "max_tokens");
    q.max_tokens = 120;
    static const char *const stops[] = { "celsius", "_na", "\"}" };
    for (int i = 0; i < 3; i++) {
        q.stops = &stops[i];
        q.n_stops = 1;
        pair_same(&p, &q, stops[i]);
    }
    q.n_stops = 0;
    q.ignore_eos = true; /* a grammar that is done ends the answer itself */
    pair_same(&p, &q, "ignore_eos");
    q.ignore_eos = false;
    q.min_tokens = 60;
    pair_same(&p, &q, "min_tokens");
    pair_close(&p);
}

static void test_penalties_and_bias(void **state)
{
    static struct pair p;
    struct logit_bias bias[2] = { { .id = 40, .bias = 100 }, { .id = 60, .bias = -100 } };
    (void)state;
    pair_open(&p, NULL, true, 1);
    for (size_t i = 0; i < N_SCHEMAS; i++) {
        struct gen_request q = asked(CONSTRAINT_JSON_SCHEMA, SCHEMAS[i]);
        q.bias.p = bias;
        q.bias.n = 2;
        q.min_tokens = (int32_t)i * 3;
        q.sampling.repetition_penalty = (struct sampler_value){ .v = 1.3, .given = true };
        pair_same(&p, &q, SCHEMAS[i]);
    }
    pair_close(&p);
}

static void test_thinking_before_the_answer(void **state)
{
    static const char *const SAYS[] = { "<think>", "hello one two", "</think>", "\n\n",
                                        "{\"temperature_celsius\":17,\"city_name\":\"Osaka\"}", NULL };
    static struct pair p;
    (void)state;
    pair_open(&p, SAYS, false, 2);
    for (int budget = 0; budget < 6; budget++) {
        struct gen_request q = asked(CONSTRAINT_JSON_SCHEMA, SCHEMAS[2]);
        q.thinking = GIVEN_TRUE;
        q.thinking_budget = budget;
        pair_same(&p, &q, "thinking");
    }
    assert_true(p.count[1].n_submits < p.count[0].n_submits);
    pair_close(&p);
}

#define STRICT_TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather_report\",\"strict\":true,\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{\"city_name\":{\"enum\":[\"Oslo\",\"Osaka\"]}},\"required\":[\"city_name\"],\"additionalProperties\":false}}}," \
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}]"

static void test_tools(void **state)
{
    static const char *const SAYS[] = { "hello ", "<tool_call>", "\n{\"name\": \"get_weather_report\", \"arguments\": {\"city_name\": \"Osaka\"}}\n",
                                        "</tool_call>", " one", NULL };
    static const enum gen_tool_choice choices[] = { TOOLS_AUTO, TOOLS_REQUIRED, TOOLS_NAMED };
    (void)state;
    for (int hash = 0; hash < 2; hash++) {
        static struct pair p;
        pair_open(&p, hash ? NULL : SAYS, hash == 1, 2);
        for (int i = 0; i < 3; i++) {
            struct gen_request q = rig_chat(HI);
            q.tools_json = STRICT_TOOLS;
            q.tool_choice = choices[i];
            q.tool_name = i == 2 ? "get_weather_report" : NULL;
            q.parallel_tools = i == 1 ? GIVEN_FALSE : GIVEN_NONE;
            q.sampling.seed.given = true;
            q.max_tokens = 120;
            q.logprobs = true;
            pair_same(&p, &q, "tools");
            q.thinking = GIVEN_FALSE;
            pair_same(&p, &q, "tools");
        }
        if (!hash) assert_true(p.count[1].n_submits < p.count[0].n_submits);
        pair_close(&p);
    }
}

/* --- answers with headers --- */

static void test_answers_with_headers(void **state)
{
    static const char *const TOKENS[] = { "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>",
                                          NULL };
    static const char *const SAYS[] = {
        "<|channel|>analysis<|message|>hello one<|end|><|start|>assistant<|channel|>final<|message|>"
        "{\"temperature_celsius\":17,\"city_name\":\"Osaka\"}",
        "<|channel|>commentary to=functions.get_weather_report <|constrain|>json<|message|>{\"city_name\": \"Osaka\"}<|call|>", "" };
    char dir[64];
    (void)state;
    model_dir_make(dir, TOKENS,
                   "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}{# <|channel|> tools #}"
                   "{% if add_generation_prompt %}<|start|>assistant{% endif %}");
    uint64_t steps[2] = { 0 };
    for (int say = 0; say < 3; say++) {
        static struct pair p;
        memset(&p, 0, sizeof p);
        for (int i = 0; i < 2; i++) {
            struct gen_rig *r = &p.r[i];
            int32_t n_vocab;
            rig_init(r, NULL);
            r->n_script = model_dir_encode(dir, SAYS[say], r->script, 4096, &n_vocab);
            assert_true(say == 2 || r->n_script > 20);
            r->so.hash_draws = say == 2;
            r->so.counters = &p.count[i];
            r->go.model_dir = dir;
            r->go.grammar_jump = i == 1;
            rig_start(r);
        }
        for (int k = 0; k < 7; k++) {
            struct gen_request q = asked(CONSTRAINT_JSON_SCHEMA, SCHEMAS[2]);
            if (k >= 3) q.constraint.kind = CONSTRAINT_NONE;
            if (k >= 2) q.tools_json = STRICT_TOOLS;
            if (k >= 4) q.tool_choice = k == 6 ? TOOLS_NAMED : TOOLS_REQUIRED;
            q.tool_name = k == 6 ? "get_weather_report" : NULL;
            q.thinking_budget = k & 1 ? 2 : 0;
            pair_same(&p, &q, "headers");
        }
        for (int i = 0; i < 2; i++) steps[i] += say < 2 ? p.count[i].n_submits : 0;
        pair_close(&p);
    }
    model_dir_remove(dir);
    assert_true(steps[1] < steps[0]);
}

/* --- tokenizers --- */

static bool tokenizer_pair_open(struct pair *p, const char *dir, bool hash, const char *says)
{
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 2; i++) {
        struct gen_rig *r = &p->r[i];
        rig_init(r, NULL);
        r->n_script = model_dir_encode(dir, says, r->script, 4096, &r->so.n_vocab);
        if (r->n_script < 0) return false;
        r->so.end_id = r->so.n_vocab - 1;
        r->so.hash_draws = hash;
        r->so.counters = &p->count[i];
        r->go.model_dir = dir;
        r->go.grammar_jump = i == 1;
        rig_start(r);
    }
    return true;
}

/* Byte-level, with byte fallback, with every kind of white space in front, with normalisers: all of them cut texts in their own
 * way, and none of them changes what comes out. */
static void test_many_tokenizers(void **state)
{
    static const char *const DIRS[] = {
        "byte_norm", "deepseek", "deepseek_coder", "gemma3", "gpt2", "llama3", "mistral", "nfd_wsplit", "nfkd_punct", "nmt_delim",
        "o200k", "phi3", "prefix_whitespace", "qwen2", "qwen3_5", "smollm2", "split_kinds", "spm_always", "spm_first",
        "spm_legacy", "spm_never", "starcoder",
    };
    static const char SAYS[] = "{\"temperature_celsius\":17,\"city_name\":\"Osaka\"}";
    uint64_t steps[2] = { 0 };
    int n_dirs = 0;
    (void)state;
    for (size_t d = 0; d < sizeof DIRS / sizeof DIRS[0]; d++) {
        for (int hash = 0; hash < 2; hash++) {
            static struct pair p;
            char dir[128];
            snprintf(dir, sizeof dir, "tests/golden/tokenizer/%s", DIRS[d]);
            if (!tokenizer_pair_open(&p, dir, hash == 1, SAYS)) break;
            n_dirs += hash;
            for (size_t i = 0; i < N_SCHEMAS + 4; i++) {
                struct gen_request q = i < N_SCHEMAS ? asked(CONSTRAINT_JSON_SCHEMA, SCHEMAS[i])
                                                     : asked(OTHERS[i - N_SCHEMAS].kind, OTHERS[i - N_SCHEMAS].text);
                q.input = GEN_TEXT;
                q.text = STR_LIT("say");
                q.raw_split = true;
                pair_same(&p, &q, DIRS[d]);
            }
            for (int i = 0; i < 2; i++) steps[i] += p.count[i].n_submits;
            pair_close(&p);
        }
    }
    print_message("%d tokenizers, %d steps without, %d with\n", n_dirs, (int)steps[0], (int)steps[1]);
    assert_true(n_dirs >= 16);
    assert_true(steps[1] < steps[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_model),
        cmocka_unit_test(test_forced_text_in_few_steps),
        cmocka_unit_test(test_limits_cut_in_the_same_place),
        cmocka_unit_test(test_penalties_and_bias),
        cmocka_unit_test(test_thinking_before_the_answer),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_answers_with_headers),
        cmocka_unit_test(test_many_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
