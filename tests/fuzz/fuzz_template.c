/* Chat templates: compile any bytes as a template and render it against a fixed conversation with small limits.
 * Checks that nothing crashes, that limits hold, and that the origin runs cover the output without gaps. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "chat/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char messages_text[] =
    "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\" h\\u00e9<|im_end|> \\u6a4b\\n\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"abc\",\"type\":\"function\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"zeta\":1.5,\"a\":[1,true,null,\"x\\\"y'z\"],\"big\":123456789012345678901}}}]},"
    "{\"role\":\"tool\",\"content\":{\"k\":\"v\"}},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"t\"}]}]";
static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"p\":{\"a\":1}}}}]";
static const char kwargs_text[] = "{\"n\":7,\"f\":2.5,\"l\":[3,1,2],\"d\":{\"b\":1,\"a\":2},\"s\":\"Hello World\"}";

/* NULL only where an allocation failed (make alloc-fail): then the next input tries again. */
static json_t *parse(const char *text)
{
    json_t *j = NULL;
    mb_status st = json_read(&j, text, strlen(text), 0, NULL);
    if (st != MB_OK && st != MB_NO_MEMORY) abort();
    return j;
}

static void check_runs(const struct template_output *out, size_t max_bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < out->n_runs; i++) {
        if (out->runs[i].first != at || out->runs[i].end <= at || !out->runs[i].field) abort();
        at = out->runs[i].end;
    }
    if (at != out->len || out->len > max_bytes || out->text[out->len]) abort();
    for (size_t i = 0; i < out->n_generation; i++)
        if (out->generation[i].first > out->generation[i].end || out->generation[i].end > out->len) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *messages, *tools, *kwargs;
    if (!messages) messages = parse(messages_text);
    if (!tools) tools = parse(tools_text);
    if (!kwargs) kwargs = parse(kwargs_text);
    if (!messages || !tools || !kwargs) return 0;
    struct chat_template *t;
    struct template_output out;
    struct arena a;
    mb_error err;
    struct template_limits limits = { .max_steps = 20000, .max_depth = 20, .max_output_bytes = 1 << 16 };
    struct template_input in = { .messages = messages, .tools = tools, .kwargs = kwargs, .add_generation_prompt = true,
                                 .bos_token = "<s>", .eos_token = "</s>", .now_unix_s = 1721997296 };
    if (chat_template_compile(&t, (const char *)data, size, &err) != MB_OK) return 0;
    arena_init(&a, 1 << 24);
    if (chat_template_render(t, &a, &in, &limits, &out, &err) == MB_OK) check_runs(&out, limits.max_output_bytes);
    arena_free(&a);
    chat_template_free(t);
    return 0;
}
