/* Answers that are messages with headers (gpt-oss): the splitter alone in every split, and thoughts, calls, constraints and history
 * through the waist, over a tokenizer that has the seven signs as tokens and a small template of that form. */
#include "told.h"
#include "server_rig.h"
#undef HI /* told.h's is meant */

#include <unistd.h>

#include "base/filemap.h"
#include "chat/reasoning.h"
#include "chat/tools/tools.h"

#define S "<|start|>assistant"
#define THOUGHT(text) "<|channel|>analysis<|message|>" text "<|end|>"
#define FINAL "<|channel|>final<|message|>"
#define TO_GET "<|channel|>commentary to=functions.get <|constrain|>json<|message|>"

/* --- the splitter alone, signs searched in the text --- */
struct split_out { char text[2][512]; };

static void on_split(void *ctx, bool is_reasoning, const char *text, size_t len)
{
    struct split_out *o = ctx;
    strncat(o->text[is_reasoning], text, len);
}

static const struct reasoning_tags *channels(void)
{
    size_t n;
    const struct reasoning_tags *t = reasoning_tags_all(&n);
    while (!t->channels) t++;
    return t;
}

static void check_split(const char *text, enum reasoning_start start, const char *reasoning, const char *content)
{
    size_t n = strlen(text);
    for (size_t first = 0; first <= n; first++) {
        for (size_t second = first; second <= n; second += second == first ? 1 : 7) {
            struct split_out o = { 0 };
            struct reasoning r;
            reasoning_init(&r, channels(), true, start, on_split, &o);
            reasoning_text(&r, text, first);
            reasoning_text(&r, text + first, second - first);
            for (size_t i = second; i < n; i++) reasoning_text(&r, text + i, 1);
            reasoning_finish(&r);
            assert_int_equal(reasoning_status(&r), MB_OK);
            reasoning_free(&r);
            if (strcmp(o.text[1], reasoning) != 0 || strcmp(o.text[0], content) != 0)
                fail_msg("\"%s\" cut at %zu and %zu: reasoning \"%s\" content \"%s\"", text, first, second, o.text[1], o.text[0]);
        }
    }
}

/* B-142 B-143 */
static void test_b143_channels_every_split(void **state)
{
    (void)state;
    const enum reasoning_start h = REASONING_HEADER;
    check_split(THOUGHT("a < b <| c") S FINAL "d", h, "a < b <| c", "d");
    check_split(THOUGHT("a") S THOUGHT("b") S FINAL "c<|return|>", h, "a\n\nb", "c");
    check_split("<|channel|>commentary<|message|>first<|end|>" S FINAL "then", h, "", "first\n\nthen");
    check_split(THOUGHT("a") S TO_GET "{\"x\": 1}<|call|>", h, "a", "<|channel|>commentary to=functions.get<|message|>{\"x\": 1}<|call|>");
    check_split(" to=functions.get<|channel|>commentary json<|message|>{}<|call|>", h, "",
                "<|channel|>commentary to=functions.get<|message|>{}<|call|>");
    check_split("<|channel|>analysis to=functions.a.b code<|message|>{}", h, "", "<|channel|>commentary to=functions.a.b<|message|>{}");
    check_split("<|channel|>analysis to=browser.search<|message|>x<|call|>" S FINAL "y", h, "x", "y");
    check_split("analysis<|message|>a<|end|>" S "<|message|>b", h, "a", "b"); /* the prompt wrote the sign; a header without channel */
    check_split("<|channel|>analysis<|message|>a<|channel|>final<|message|>b", h, "a", "b"); /* ends that are missing */
    check_split("<|channel|>final<|message|>a<|start|>assistant<|channel|>analysis<|message|>b", h, "b", "a");
    check_split(THOUGHT("") S FINAL, h, "", "");
    check_split("<|channel|>analy", h, "", ""); /* cut off in a header: no text */
    check_split("a<|end|>" S FINAL "b", REASONING_THOUGHT, "a", "b");
    check_split("a <|mess", REASONING_ANSWER, "", "a <|mess");
    check_split("a\n\n", REASONING_ANSWER, "", "a\n\n");
}

/* B-142: where the prompt stops */
static void test_b142_start_of_an_answer(void **state)
{
    (void)state;
    static const struct { const char *text; enum reasoning_start start; } rows[] = {
        { "<|end|><|start|>assistant", REASONING_HEADER },
        { "<|start|>assistant<|channel|>", REASONING_HEADER },
        { "<|start|>assistant<|channel|>analysis<|message|>", REASONING_THOUGHT },
        { "<|start|>assistant<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>", REASONING_ANSWER },
        { "<|start|>assistant<|channel|>final<|message|>The analysis", REASONING_ANSWER },
        { "no sign", REASONING_ANSWER },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(reasoning_start(channels(), rows[i].text, strlen(rows[i].text)), rows[i].start);
    bool named;
    assert_ptr_equal(reasoning_tags_pick("{{ '<|start|>assistant<|channel|>final<|message|>' }}<|end|>", NULL, NULL, &named), channels());
    assert_string_equal(tool_family_name(tool_family_pick("<|channel|>commentary<|message|>", NULL, NULL)), "channels");
    assert_false(reasoning_tags_pick("<|user|>x<|end|>", NULL, NULL, &named)->channels); /* Phi ends its turns so */
}

/* --- a model directory --- */
static char dir[64];
static int32_t n_vocab;
enum { ID_START = 306 };

static const char TEMPLATE[] =
    "{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% if message.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}{% endif %}"
    "{% if message.tool_calls %}{% set c = message.tool_calls[0].function %}"
    "{{ '<|start|>assistant to=functions.' + c.name + '<|channel|>commentary json<|message|>' + (c.arguments | tojson) + '<|call|>' }}"
    "{% else %}{{ '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' }}{% endif %}"
    "{% elif message.role == 'tool' %}{{ '<|start|>functions.get to=assistant<|channel|>commentary<|message|>' + message.content + '<|end|>' }}"
    "{% else %}{{ '<|start|>' + message.role + '<|message|>' + message.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if tools %}{{ '<|start|>developer<|message|>' + (tools | tojson) + '<|end|>' }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}";

static json_t *read_json(const char *name)
{
    char path[128];
    json_t *v;
    snprintf(path, sizeof path, RIG_DIR "/%s", name);
    assert_int_equal(json_read_file(&v, path, 1 << 20, NULL), MB_OK);
    return v;
}

static void write_json(const char *name, json_t *v)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(json_dump_file(v, path, 0), 0);
    json_decref(v);
}

static int make_dir(void **state)
{
    static const char *const signs[] = { "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>" };
    (void)state;
    strcpy(dir, "/tmp/mlx-bun-channels-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    json_t *t = read_json("tokenizer.json"), *c = read_json("tokenizer_config.json");
    json_t *added = json_object_get(t, "added_tokens");
    for (int i = 0; i < 7; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", ID_START + i, "content", signs[i], "single_word", 0,
                                               "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    json_object_set_new(c, "chat_template", json_string(TEMPLATE));
    write_json("tokenizer.json", t);
    write_json("tokenizer_config.json", c);
    write_json("config.json", json_pack("{s:s, s:i, s:i}", "model_type", "gpt_oss", "eos_token_id", 302, "vocab_size", ID_START + 7));
    n_vocab = ID_START + 7;
    return 0;
}

static int remove_dir(void **state)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "config.json" };
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    return rmdir(dir);
}

/* --- through the waist --- */
static int32_t encode(const char *text, int32_t *ids, int32_t cap)
{
    struct tokenizer *t;
    struct arena a;
    struct token_list list = { 0 };
    struct encode_opts opts = { 0 };
    arena_init(&a, 0);
    assert_int_equal(tokenizer_open(&t, dir, NULL), MB_OK);
    assert_int_equal(tokenizer_encode(t, &a, text, strlen(text), &opts, &list, NULL), MB_OK);
    assert_true((int32_t)list.n <= cap);
    memcpy(ids, list.ids, list.n * sizeof *ids);
    arena_free(&a);
    tokenizer_close(t);
    return (int32_t)list.n;
}

static void start(struct gen_rig *r, const char *text)
{
    rig_init(r, NULL);
    r->n_script = text ? encode(text, r->script, 4096) : 0;
    r->go.model_dir = dir;
    r->so.n_vocab = n_vocab;
    rig_start(r);
}

/* What a model that wants to say `text` is told to have said. */
static void check(const char *text, struct gen_request q, const char *want, enum gen_finish finish)
{
    struct gen_rig r;
    struct told t;
    start(&r, text);
    ask(&r, &q, &t);
    if (t.status) fail_msg("%s", t.error);
    if (strcmp(t.all.data, want) != 0) fail_msg("\"%s\" gives \"%s\", wanted \"%s\"", text, t.all.data, want);
    assert_int_equal(t.finish, finish);
    told_free(&t);
    rig_stop(&r);
}

/* API-095 API-145 API-148 */
static void test_thoughts_and_calls(void **state)
{
    (void)state;
    check(THOUGHT("why") S FINAL "so<|return|>", rig_chat(HI), "{why}so", GEN_FINISH_STOP);
    check(THOUGHT("why") S TO_GET "{\"city\": \"Oslo\", \"n\": \"3\"}<|call|>", with_tools(), "{why}|get {\"city\":\"Oslo\",\"n\":3}",
          GEN_FINISH_TOOL_CALLS);
    check("<|channel|>commentary<|message|>I look. ```<|end|>" S " to=functions.ping<|channel|>commentary json<|message|>{}<|call|>",
          with_tools(), "I look. ```|ping {}", GEN_FINISH_TOOL_CALLS);
    check(S TO_GET "{\"city\": 1}<|end|>" S FINAL "so", with_tools(), "|get {\"city\":\"1\"}so", GEN_FINISH_TOOL_CALLS);
    check("<|channel|>commentary to=functions.get<|message|>no json<|call|>", with_tools(),
          "<|channel|>commentary to=functions.get<|message|>no json", GEN_FINISH_STOP);
    struct gen_request q = with_tools();
    q.max_tokens = encode("<|channel|>commentary to=functions.get<|message|>{\"city\": \"", (int32_t[256]){ 0 }, 256);
    check("<|channel|>commentary to=functions.get<|message|>{\"city\": \"Oslo\"}", q, "|!get {\"city\": \"", GEN_FINISH_LENGTH);
}

/* B-055 API-151: a call is certain, whatever the model wants to say; its schema holds */
static void test_b055_forced_calls(void **state)
{
    (void)state;
    struct gen_request q = with_tools();
    q.tool_choice = TOOLS_REQUIRED;
    check(THOUGHT("why") S TO_GET "{\"city\":\"Oslo\"}<|call|>", q, "{why}|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
    for (int hash = 0; hash < 12; hash++) {
        struct gen_rig r;
        struct told t;
        rig_init(&r, NULL);
        r.go.model_dir = dir;
        r.so.n_vocab = n_vocab;
        r.so.hash_draws = true;
        rig_start(&r);
        q.sampling.seed = (struct sampler_value){ .given = true, .v = hash };
        q.tool_choice = hash % 2 ? TOOLS_NAMED : TOOLS_REQUIRED;
        q.tool_name = "ping";
        q.max_tokens = 4000;
        ask(&r, &q, &t);
        if (t.status) fail_msg("%s", t.error);
        assert_true(t.finish == GEN_FINISH_LENGTH || t.finish == GEN_FINISH_TOOL_CALLS);
        if (t.finish == GEN_FINISH_TOOL_CALLS) assert_int_equal(t.n_calls, 1);
        if (t.finish == GEN_FINISH_TOOL_CALLS && hash % 2) assert_non_null(memmem(t.all.data, t.all.len, "|ping {", 7));
        told_free(&t);
        rig_stop(&r);
    }
}

/* API-160 API-161: the constraint holds for the answer, thoughts stay free, headers lead nowhere else */
static void test_constraints(void **state)
{
    (void)state;
    struct gen_request q = rig_chat(HI);
    q.constraint.kind = CONSTRAINT_CHOICE;
    q.constraint.text = "[\"yes\", \"no\"]";
    q.constraint.field = "guided_choice";
    q.constraint.strict = true;
    check(THOUGHT("yes, no or perhaps") S FINAL "no<|return|>", q, "{yes, no or perhaps}no", GEN_FINISH_STOP);
    check(FINAL "yes<|return|>", q, "yes", GEN_FINISH_STOP);
    for (int plain = 0; plain < 3; plain++) { /* what it wants to say is not allowed: text without header, an early end, a preamble */
        static const char *const texts[] = { "perhaps", "<|return|>", "<|channel|>commentary<|message|>perhaps" };
        struct gen_rig r;
        struct told t;
        start(&r, texts[plain]);
        q.max_tokens = 400;
        ask(&r, &q, &t);
        if (t.status) fail_msg("%s", t.error);
        const char *answer = strrchr(t.all.data, '}') ? strrchr(t.all.data, '}') + 1 : t.all.data;
        if (t.finish == GEN_FINISH_STOP) assert_true(strcmp(answer, "yes") == 0 || strcmp(answer, "no") == 0);
        else assert_true(t.all.len == 0 || t.all.data[0] == '{');
        told_free(&t);
        rig_stop(&r);
    }
    q = rig_chat(HI);
    q.constraint.kind = CONSTRAINT_GRAMMAR;
    q.constraint.text = "root ::= call \"!\"\ncall ::= [a-c]+";
    q.constraint.strict = true;
    check(THOUGHT("x") S FINAL "abc!<|return|>", q, "{x}abc!", GEN_FINISH_STOP);
    q = with_tools(); /* either of the two */
    q.constraint.kind = CONSTRAINT_CHOICE;
    q.constraint.text = "[\"yes\"]";
    q.constraint.strict = true;
    check(FINAL "yes<|return|>", q, "yes", GEN_FINISH_STOP);
    check(TO_GET "{\"city\":\"Oslo\"}<|call|>", q, "|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
}

#define STRICT_TOOLS "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,\"parameters\":{\"type\":\"object\",\"properties\":" \
                     "{\"city\":{\"enum\":[\"Oslo\"]}},\"required\":[\"city\"],\"additionalProperties\":false}}}]"

/* strict: text is free, calls follow the schema from their headers on */
static void test_strict_tools(void **state)
{
    (void)state;
    struct gen_request q = rig_chat(HI);
    q.tools_json = STRICT_TOOLS;
    check(THOUGHT("a") S FINAL "free text<|return|>", q, "{a}free text", GEN_FINISH_STOP);
    check(THOUGHT("a") S TO_GET "{\"city\":\"Oslo\"}<|call|>", q, "{a}|get {\"city\":\"Oslo\"}", GEN_FINISH_TOOL_CALLS);
    struct gen_rig r;
    struct told t;
    start(&r, TO_GET "{\"town\":\"Bergen\"}<|call|>");
    ask(&r, &q, &t);
    assert_string_equal(t.all.data, "|get {\"city\":\"Oslo\"}");
    told_free(&t);
    rig_stop(&r);
}

/* The thought is closed when its budget is used up, also where a frame watches */
static void test_budget(void **state)
{
    (void)state;
    for (int framed = 0; framed < 2; framed++) {
        struct gen_request q = rig_chat(HI);
        struct gen_rig r;
        struct told t;
        int32_t ids[64], n = encode("<|channel|>analysis<|message|>the the", ids, 64);
        q.thinking_budget = encode("the the", ids, 64) + 1; /* the sign that opens it counts */
        if (framed) {
            q.constraint.kind = CONSTRAINT_CHOICE;
            q.constraint.text = "[\"yes\"]";
        }
        rig_init(&r, NULL);
        r.go.model_dir = dir;
        r.so.n_vocab = n_vocab;
        r.n_script = encode("<|channel|>analysis<|message|>the the", r.script, 4096);
        assert_int_equal(r.n_script, n);
        r.script[r.n_script++] = ids[0]; /* where the end is forced */
        r.n_script += encode(S FINAL "yes<|return|>", r.script + r.n_script, 64);
        rig_start(&r);
        ask(&r, &q, &t);
        if (t.status) fail_msg("%s", t.error);
        assert_string_equal(t.all.data, "{the the}yes");
        told_free(&t);
        rig_stop(&r);
    }
}

/* B-143: a second turn gives the template its thoughts under the name that it reads */
static void test_history(void **state)
{
    (void)state;
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"why\",\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\","
        "\"function\":{\"name\":\"get\",\"arguments\":\"{\\\"city\\\": \\\"Oslo\\\"}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"content\":\"rain\"}]";
    struct gen_renderer *t;
    struct gen_request q = with_tools();
    struct gen_prompt p;
    struct arena a;
    mb_error err = { 0 };
    q.messages_json = messages;
    q.tools_json = NULL;
    arena_init(&a, 0);
    if (gen_renderer_open(&t, dir, NULL, GIVEN_NONE, &err) != MB_OK) fail_msg("%s", err.text);
    if (gen_renderer_render(t, &q, &a, &p, &err) != MB_OK) fail_msg("%s", err.text);
    assert_string_equal(p.text, "<|start|>user<|message|>a<|end|>" S THOUGHT("why")
                                S " to=functions.get<|channel|>commentary json<|message|>{\"city\": \"Oslo\"}<|call|>"
                                "<|start|>functions.get to=assistant<|channel|>commentary<|message|>rain<|end|>" S);
    assert_int_equal(p.start, REASONING_HEADER);
    assert_int_equal(p.ids[p.n_ids - 1] < ID_START, 1);
    gen_renderer_close(t);
    arena_free(&a);
}

/* A last message that is continued is the answer itself */
static void test_continued_answer(void **state)
{
    (void)state;
    struct gen_request q = rig_chat("[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"y\"}]");
    q.continue_final = GIVEN_TRUE;
    check("es<|return|>", q, "es", GEN_FINISH_STOP);
    q.constraint.kind = CONSTRAINT_CHOICE;
    q.constraint.text = "[\"yes\", \"no\"]";
    check("es<|return|>", q, "es", GEN_FINISH_STOP);
    q.constraint.kind = CONSTRAINT_NONE;
    q.tools_json = TOOLS;
    q.tool_choice = TOOLS_REQUIRED;
    struct gen_rig r;
    struct told t;
    start(&r, "es");
    ask(&r, &q, &t);
    assert_int_equal(t.status, MB_INVALID);
    told_free(&t);
    rig_stop(&r);
}

/* --- as the three protocols show it --- */
#define FN "\"name\":\"get\",\"description\":\"\","
#define PARAMETERS "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}"

static const struct { const char *path, *body, *want[4]; } DIALECTS[] = {
    { "/v1/chat/completions",
      "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":\"function\",\"function\":{" FN "\"parameters\":" PARAMETERS "}}]",
      { "reasoning_content\": \"the\"", "\"name\": \"get\"", "{\\\"city\\\":\\\"Oslo\\\"}", "finish_reason\": \"tool_calls\"" } },
    { "/v1/messages",
      "\"max_tokens\":500,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{" FN "\"input_schema\":" PARAMETERS "}]",
      { "thinking\": \"the\"", "\"type\": \"tool_use\"", "city", "stop_reason\": \"tool_use\"" } },
    { "/v1/responses", "\"input\":\"hi\",\"tools\":[{\"type\":\"function\"," FN "\"parameters\":" PARAMETERS "}]",
      { "\"the\"", "\"type\": \"function_call\"", "{\\\"city\\\":\\\"Oslo\\\"}", "\"completed\"" } },
};

/* API-145 API-148: thoughts and calls of this format reach every client, and no header does */
static void test_every_dialect(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof DIALECTS / sizeof DIALECTS[0]; i++) {
        for (int stream = 0; stream < 2; stream++) {
            struct server_rig r;
            struct answer a;
            char body[1024];
            memset(&r, 0, sizeof r);
            rig_init(&r.gen, NULL);
            r.gen.n_script = encode(THOUGHT("the") S TO_GET "{\"city\":\"Oslo\"}<|call|>", r.gen.script, 4096);
            r.gen.go.model_dir = dir;
            r.gen.so.n_vocab = n_vocab;
            srig_start(&r);
            snprintf(body, sizeof body, "{%s,\"stream\":%s}", DIALECTS[i].body, stream ? "true" : "false");
            http_post_n(&r, DIALECTS[i].path, "", body, strlen(body), &a);
            if (a.status != 200) fail_msg("%s: %d %s", DIALECTS[i].path, a.status, a.body);
            for (int k = 0; k < 4; k++)
                if (!strstr(a.body, DIALECTS[i].want[k])) fail_msg("%s has no %s in %s", DIALECTS[i].path, DIALECTS[i].want[k], a.body);
            assert_null(strstr(a.body, "<|"));
            assert_null(strstr(a.body, "analysis"));
            answer_free(&a);
            srig_close(&r);
        }
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    log_set_sink(rig_quiet, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b143_channels_every_split), cmocka_unit_test(test_b142_start_of_an_answer),
        cmocka_unit_test(test_thoughts_and_calls),        cmocka_unit_test(test_b055_forced_calls),
        cmocka_unit_test(test_constraints),               cmocka_unit_test(test_strict_tools),
        cmocka_unit_test(test_budget),                    cmocka_unit_test(test_history),
        cmocka_unit_test(test_continued_answer),          cmocka_unit_test(test_every_dialect),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
