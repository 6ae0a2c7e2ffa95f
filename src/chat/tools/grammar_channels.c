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
