/* tools.h: tool calls in what a model writes. One scanner for streams and whole answers, one table row a markup.
 *
 * The rule (API-140 to API-151, B-052, B-053, B-058):
 *   1. Which markups are looked for is a property of the model's family, picked from its template and tokens. A family
 *      that is not known has every markup with an opening sign of its own; forms without one (bare JSON, a Python list)
 *      belong to the families that use them and must name a listed tool.
 *   2. Text before a markup streams on; from the opening sign on everything is held until the call is whole. What then
 *      does not parse comes out as the text it is, and so does a sign inside a Markdown code span or fence.
 *   3. White space that touches a call belongs to the call.
 *   4. The schema of the called tool decides the JSON type of each argument; arguments leave as compact JSON.
 *   5. The end closes a call that only lacks its closing sign. An answer cut off by a limit inside a call gives what there
 *      is of the arguments, marked partial, when the name is known; no bracket is invented. Otherwise it is text.
 * What comes out does not depend on how the text was cut into pieces: it is fed byte by byte.
 *
 * Lifetime: a scanner belongs to one choice; a tool_set to one request, read-only once open. Threads: one at a time each.
 */
#ifndef CHAT_TOOLS_TOOLS_H
#define CHAT_TOOLS_TOOLS_H

#include "base/json.h"
#include "chat/markdown.h"

/* --- the tools of a request --- */
struct tool { const char *name; const json_t *parameters; bool strict; }; /* parameters NULL: any object */
struct tool_set {
    json_t *root;        /* owned */
    struct tool *tools;  /* owned */
    size_t n;
};
/* From the text of an array of {"type": "function", "function": {...}}, or the inner objects alone. */
mb_status tool_set_open(struct tool_set *out, const char *json, mb_error *err);
void tool_set_close(struct tool_set *s);
const struct tool *tool_set_find(const struct tool_set *s, const char *name, size_t len);

/* --- families --- */
struct tool_family; /* a row of families.c */
/* By the template's text (may be NULL), then by added tokens. Never NULL: the last row is the general one. */
const struct tool_family *tool_family_pick(const char *template_source, bool (*has_token)(void *ctx, const char *text),
                                           void *ctx);
const struct tool_family *tool_family_named(const char *name); /* NULL: unknown */
const char *tool_family_name(const struct tool_family *f);
/* Does it write calls as a bare object, too, which has no sign? */
bool tool_family_has_bare(const struct tool_family *f);
/* The i-th opening sign that makes a call by itself, wherever it stands; NULL when there are no more. */
const char *tool_family_sign(const struct tool_family *f, size_t i);

/* --- the scanner --- */
struct tool_call {
    struct str name, arguments; /* valid during the callback */
    bool partial;               /* cut off: arguments are as produced, not whole JSON */
};
struct tool_sink {
    void *ctx;
    void (*text)(void *ctx, const char *text, size_t len);
    void (*call)(void *ctx, const struct tool_call *call);
};

#define TOOL_MAX_MARKUPS 12
#define TOOL_MAX_BLOCK_BYTES ((size_t)8 << 20) /* a longer block is text */

struct tool_scan {
    const struct tool_family *family;
    const struct tool_set *set;
    struct tool_sink sink;
    struct markdown code;        /* Markdown state of the text so far */
    struct buf held, out;        /* not yet decided; text of this call of tool_scan_text */
    int open_at[TOOL_MAX_MARKUPS]; /* bytes matched of each opening sign */
    int i_markup;                /* inside a block of it, -1 outside */
    size_t i_block, i_body;      /* in held: the opening sign, the body */
    size_t next_check;           /* body length at which it is looked at again */
    int close_at, n_tries;
    struct { int depth; char quote; bool escaped; } brackets;
    bool said;                   /* text has come out */
    bool after_call;             /* nothing but white space since a call */
    int n_calls;
    mb_status failed;
};

void tool_scan_init(struct tool_scan *s, const struct tool_family *f, const struct tool_set *set, struct tool_sink sink);
void tool_scan_free(struct tool_scan *s);
void tool_scan_text(struct tool_scan *s, const char *text, size_t len);
/* The end (or a thought cuts in: more may come). cut: by a token limit, else the model ended by itself. */
void tool_scan_finish(struct tool_scan *s, bool cut);
/* Is the text inside a block that its sign alone makes one? The sign, and what has come since (until the next call). */
bool tool_scan_block(const struct tool_scan *s, const char **sign, struct str *since);
/* The same for a block without a sign (a bare object that may be a call): its text. */
bool tool_scan_bare(const struct tool_scan *s, struct str *text);
/* Where the JSON value at *at ends (moved there); false: not yet, or it is none. */
bool tool_value_end(struct str text, size_t *at);
/* MB_OK, or MB_NO_MEMORY when something was lost for lack of memory. */
mb_status tool_scan_status(const struct tool_scan *s);

/* --- the grammar of calls --- */
struct tool_grammar_options {
    const char *only;     /* this tool alone; NULL: any of the set */
    bool parallel;        /* more than one call may follow */
    bool (*has_token)(void *ctx, const char *text);
    void *ctx;
};
/* Append EBNF rules (grammar/grammar.h) to out: "calls" is one call or more in the family's markup, "call" is one, with the
 * opening sign; their other names begin with "tool-". out->failed tells a lack of memory. */
void tool_grammar_write(struct buf *out, const struct tool_family *f, const struct tool_set *set,
                        const struct tool_grammar_options *o);
/* Is every answer of the family framed by headers? Then a grammar begins with the first token drawn, and with this rule "root":
 * thoughts, then the header of the answer (with free text behind it, or to be followed by another grammar) or a call. */
bool tool_family_has_frame(const struct tool_family *f);
/* The i-th way to write the header of a call behind "<|start|>assistant", up to the arguments; false: there is no more. */
bool tool_frame_head(struct buf *out, size_t i, const char *name);
/* The i-th beginning of a header that no call has; NULL: there is no more. */
const char *tool_frame_other_head(size_t i);
/* What the scanner reads of such a header behind its opening sign (chat/channels.c). */
void tool_frame_told(struct buf *out, const char *name);
enum tool_frame_final { FRAME_NO_FINAL, FRAME_ANSWER, FRAME_FREE };
void tool_grammar_frame(struct buf *out, enum tool_frame_final final, bool calls);
/* Does the markup write arguments one by one, not as one JSON object? */
bool tool_family_spreads_arguments(const struct tool_family *f);
/* What those rules leave open of a tool's schema: the first keyword that limits a value and is not held.
 * limits: does a keyword with this value limit anything? false: nothing is left open. */
struct tool_gap { const char *keyword; char path[256]; }; /* owned by the schema; the pointer of what holds it */
bool tool_grammar_gap(const struct tool_family *f, const struct tool *t, bool (*limits)(const char *keyword, const json_t *value),
                      struct tool_gap *out);
/* A literal of that notation with its quotes; bytes of any value. */
void tool_grammar_literal(struct buf *out, const char *text, size_t len);

/* --- for templates that print no tools --- */
/* What to tell the model about the set in their place (a system text). */
void tool_prompt_write(struct buf *out, const struct tool_set *set);
/* One call as the general family's markup, for the history. */
void tool_prompt_call(struct buf *out, const char *name, const json_t *arguments);

#endif
