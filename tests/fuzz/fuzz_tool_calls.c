/* fuzz_tool_calls.c: text through the tool-call scanner of a family, once whole and once cut into pieces: the same text and
 * calls come out (B-052), and arguments that are not cut off are always an object. First byte: family and how the text
 * ends; second and third: where to cut; the rest is the text. */
#include <stdlib.h>
#include <string.h>

#include "chat/tools/tools.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char TOOLS[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"e\":{\"enum\":[\"a\",\"b\"]},"
    "\"r\":{\"$ref\":\"#/properties/r\"},\"o\":{\"type\":[\"object\",\"null\"]}}}},{\"name\":\"g\"}]";
static const char *const FAMILIES[] = { "hermes", "qwen-xml", "minicpm", "gemma", "glm", "llama", "llama4", "mistral", "lfm2", "any" };

static void on_text(void *ctx, const char *text, size_t len)
{
    if (len == 0) abort();
    buf_append(ctx, text, len);
}

static void on_call(void *ctx, const struct tool_call *c)
{
    json_t *v = NULL;
    mb_error err = { 0 };
    if (!c->partial && json_read(&v, c->arguments.ptr, c->arguments.len, 0, &err) != MB_OK && err.code != MB_NO_MEMORY) abort();
    if (v && !json_is_object(v)) abort();
    json_decref(v);
    buf_append(ctx, c->partial ? "\1" : "\2", 1);
    buf_append(ctx, c->name.ptr, c->name.len);
    buf_append(ctx, "\3", 1);
    buf_append(ctx, c->arguments.ptr, c->arguments.len);
}

/* False: memory failed (only in runs with failing allocations). */
static bool run(const struct tool_set *set, const struct tool_family *f, const char *text, size_t len, unsigned cuts, bool cut,
                struct buf *out)
{
    struct tool_scan s;
    size_t from = 0;
    buf_init(out, 0);
    tool_scan_init(&s, f, set, (struct tool_sink){ out, on_text, on_call });
    for (size_t i = 1; i <= len; i++) {
        if (i < len && !(cuts >> (i % 16) & 1)) continue;
        tool_scan_text(&s, text + from, i - from);
        from = i;
    }
    tool_scan_finish(&s, cut);
    bool ok = tool_scan_status(&s) == MB_OK && !out->failed;
    tool_scan_free(&s);
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tool_set set;
    struct buf a, b;
    if (size < 4 || tool_set_open(&set, TOOLS, NULL) != MB_OK) return 0;
    const struct tool_family *f = tool_family_named(FAMILIES[data[0] % (sizeof FAMILIES / sizeof FAMILIES[0])]);
    const char *text = (const char *)data + 3;
    bool cut = data[0] & 0x80;
    bool ok = run(&set, f, text, size - 3, 0, cut, &a);
    ok = run(&set, f, text, size - 3, data[1] | (unsigned)data[2] << 8, cut, &b) && ok;
#ifndef MB_FAULTS /* a failing allocation may turn a call into text in one of the two */
    if (ok && (a.len != b.len || (a.len && memcmp(a.data, b.data, a.len) != 0))) abort();
#endif
    buf_free(&a);
    buf_free(&b);
    tool_set_close(&set);
    return 0;
}
