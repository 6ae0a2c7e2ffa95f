/* grammar_channels.c: the frame of an answer that is messages with headers (chat/channels.c), as grammar rules. There a grammar
 * has to cover the headers too: a model that may write any header may leave the constraint behind with the first one. */
#include "chat/tools/tools_int.h"

#define CHANNEL " %token \"<|channel|>\""
#define MESSAGE " %token \"<|message|>\""

bool tool_family_has_frame(const struct tool_family *f)
{
    return f->style == STYLE_CHANNELS;
}

void tool_grammar_frame(struct buf *out, enum tool_frame_final final, bool calls)
{
    bool free_text = final == FRAME_FREE;
    buf_append_str(out, "root ::= (tool-part %token \"<|start|>\" \"assistant\")* (");
    if (final != FRAME_NO_FINAL) buf_append_str(out, " tool-final");
    if (final != FRAME_NO_FINAL && calls) buf_append_str(out, " |");
    if (calls) buf_append_str(out, " calls");
    /* what is not thought may go before a call, but not around a constraint */
    buf_append_str(out, " )\ntool-part ::=" CHANNEL);
    buf_append_str(out, final == FRAME_ANSWER ? " \"analysis\"" : " (\"analysis\" | \"commentary\")");
    buf_append_str(out, MESSAGE " .* %token \"<|end|>\"\ntool-final ::=" CHANNEL " \"final\"" MESSAGE);
    buf_append_str(out, free_text ? " .*\n" : "\n");
}

/* The addressee stands before the channel or behind it, and the content's type may be left out: all are forms the model knows. */
void tool_channels_rule(struct buf *out, const char *name, size_t i)
{
    struct buf to;
    buf_init(&to, 0);
    buf_printf(&to, " to=functions.%s", name);
    if (to.failed) {
        out->failed = to.failed;
    } else {
        buf_append_str(out, CHANNEL " \"commentary\" ");
        tool_grammar_literal(out, to.data, to.len);
        buf_printf(out, " tool-type tool-%zu-arguments | ", i);
        tool_grammar_literal(out, to.data, to.len);
        buf_append_str(out, CHANNEL " \"commentary\"");
        buf_printf(out, " tool-type tool-%zu-arguments\ntool-%zu-arguments ::=", i, i);
    }
    buf_free(&to);
}

void tool_channels_common(struct buf *out)
{
    buf_append_str(out, "tool-type ::= (\" json\" | \" \" %token \"<|constrain|>\" \"json\")?" MESSAGE "\ncall ::= tool-any\ncalls ::= call\n");
}

/* --- the same for what is put in (gen/fill.c) --- */

bool tool_frame_head(struct buf *out, size_t i, const char *name)
{
    static const char *const types[] = { "", " json", " <|constrain|>json" };
    enum { N_TYPES = sizeof types / sizeof types[0] };
    if (i >= 2 * N_TYPES) return false;
    if (i < N_TYPES) buf_printf(out, " to=functions.%s<|channel|>commentary", name);
    else buf_printf(out, "<|channel|>commentary to=functions.%s", name);
    buf_printf(out, "%s<|message|>", types[i % N_TYPES]);
    return true;
}

const char *tool_frame_other_head(size_t i)
{
    static const char *const heads[] = { "<|channel|>analysis", "<|channel|>final", "<|channel|>commentary<|message|>" };
    return i < sizeof heads / sizeof heads[0] ? heads[i] : NULL;
}

void tool_frame_told(struct buf *out, const char *name)
{
    buf_printf(out, "commentary to=functions.%s<|message|>", name);
}
