/* template.h: the chat template engine: the Jinja that published templates use, byte for byte as jinja2 renders it in
 * the setting of transformers (sandboxed, trim_blocks, lstrip_blocks, loopcontrols, tojson, raise_exception,
 * strftime_now, generation blocks), with origin runs: for each byte of the output, whether the template or a field of
 * a message wrote it (design.md section 6).
 *
 * A compiled template is immutable and shared by threads; a render has its own arena and limits.
 * Limits: steps, depth, output bytes, wall time is never consulted (the same input gives the same result).
 */
#ifndef CHAT_TEMPLATE_H
#define CHAT_TEMPLATE_H

#include <jansson.h>

#include "base/buf.h"
#include "base/mem.h"

struct chat_template; /* opaque */

/* Compile. MB_BAD_FORMAT with "line L, column C: ..." for a syntax error or an unknown tag or filter. */
mb_status chat_template_compile(struct chat_template **out, const char *source, size_t len, mb_error *err);
void chat_template_free(struct chat_template *t);

/* Which message and field wrote a run of bytes. i_message -1: template text (or a variable that is no message);
 * -2: tools; otherwise the index in `messages`. */
#define ORIGIN_TEMPLATE (-1)
#define ORIGIN_TOOLS (-2)
#define ORIGIN_OTHER (-3) /* another variable of the caller, e.g. chat_template_kwargs */
struct origin_run {
    size_t first, end; /* half-open byte range of the output */
    int32_t i_message;
    const char *field; /* "content", "tool_calls", "reasoning_content", "name" ...; static or arena memory */
};

struct template_limits {
    uint64_t max_steps;      /* 0 = 20 million evaluated nodes */
    int max_depth;           /* 0 = 100 nested calls */
    size_t max_output_bytes; /* 0 = 64 MB */
};

struct template_input {
    const json_t *messages;       /* array; tool call arguments already decoded to objects (B-016) */
    const json_t *tools;          /* array or NULL; an empty array counts as NULL (B-019) */
    const json_t *documents;      /* array or NULL */
    const json_t *kwargs;         /* object or NULL: chat_template_kwargs, each a variable; messages, tools or documents
                                     in it are refused (MB_INVALID) */
    bool add_generation_prompt;
    const char *bos_token, *eos_token; /* may be NULL: undefined */
    const json_t *special_tokens; /* object of further *_token variables, or NULL */
    int64_t now_unix_s;           /* what strftime_now sees, broken down as UTC: add the zone's offset for local time */
};

struct template_output {
    char *text;             /* NUL-terminated, in the arena */
    size_t len;
    struct origin_run *runs; /* cover [0, len) without gaps, in order */
    size_t n_runs;
    struct text_range { size_t first, end; } *generation; /* spans of {% generation %} blocks */
    size_t n_generation;
};

/* Render. MB_TEMPLATE: raise_exception, the text is the template's own (B-013). MB_INVALID: an error of evaluation
 * with line number (a type error, an undefined operation). MB_TOO_LARGE: a limit. MB_NO_MEMORY. Any thread. */
mb_status chat_template_render(const struct chat_template *t, struct arena *a, const struct template_input *in,
                               const struct template_limits *limits, struct template_output *out, mb_error *err);

/* The templates of a model directory: chat_template.jinja wins, then additional_chat_templates/NAME.jinja,
 * chat_template.json, then "chat_template" of tokenizer_config.json (a string, or a list of {name, template}).
 * B-022. */
struct chat_templates {
    struct chat_template *dflt;     /* NULL: the model has none */
    struct chat_template *tool_use; /* NULL unless a template of that name exists; picked when tools are sent */
    char *source_of_default;        /* the text, for show-prompt; owned */
    char *source_of_tool_use;       /* owned; NULL like tool_use */
};
mb_status chat_templates_open(struct chat_templates *out, const char *model_dir, mb_error *err);
/* The same with tokenizer_config.json read already; NULL: there is none. */
mb_status chat_templates_open_with(struct chat_templates *out, const char *model_dir, const json_t *config, mb_error *err);
void chat_templates_close(struct chat_templates *t);

#endif
