/* tools_int.h: what the files of this folder share: rows of the table, the body parsers, typed values. */
#ifndef CHAT_TOOLS_TOOLS_INT_H
#define CHAT_TOOLS_TOOLS_INT_H

#include "chat/tools/tools.h"

#define TOOL_MAX_CALLS 64      /* in one block */
#define TOOL_MAX_DEPTH 64      /* nested values of Gemma's and Python's forms */

enum tool_parse {
    PARSE_OK = 0, /* the body is one or more whole calls */
    PARSE_MORE,   /* it may become that */
    PARSE_BAD     /* it cannot */
};

struct tool_calls {
    int n;
    struct { struct buf name, arguments; } call[TOOL_MAX_CALLS];
};
void tool_calls_free(struct tool_calls *c);
/* Append one call; arguments (borrowed, an object) are fitted to the schema and written. PARSE_BAD: too many. */
enum tool_parse tool_calls_add(struct tool_calls *c, const struct tool_set *set, const char *name, size_t len,
                               json_t *arguments);

/* --- markups --- */
enum tool_end {
    END_TAG,      /* at `close`, when the body is whole there; a `close` inside a string does not count */
    END_BRACKETS  /* where JSON's brackets are level again and the body is whole */
};
struct tool_markup {
    const char *open;     /* not empty */
    const char *close;    /* END_TAG */
    enum tool_end end;
    bool open_is_body;    /* the opening sign is the beginning of what `parse` reads */
    bool in_code;         /* the sign is a token of its own kind, never prose: it counts in Markdown code too */
    bool at_start;        /* counts only before any text of the answer, and only for listed tools */
    /* closed: a closing sign follows the body (or the answer has ended there). */
    enum tool_parse (*parse)(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
    /* A body that was cut off: its name and the beginning of its arguments. NULL: cannot say. */
    bool (*partial)(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
};

/* How a family writes one call when a grammar makes it (grammar.c). */
enum tool_style { STYLE_HERMES, STYLE_QWEN_XML, STYLE_GLM, STYLE_ATTR_XML, STYLE_GEMMA, STYLE_MISTRAL_LIST, STYLE_MISTRAL_ARGS,
                  STYLE_LLAMA, STYLE_PYTHON, STYLE_CHANNELS };

struct tool_family {
    const char *name;
    const char *sign;      /* in the template's text; also a token when `token` */
    const char *sign_too;  /* and this, or NULL */
    bool token;            /* the sign as an added token is enough */
    const struct tool_markup *markups[TOOL_MAX_MARKUPS];
    enum tool_style style;
};

/* The types whose values a style writes in a form of its own, argument by argument; 0: all arguments are one JSON object. */
unsigned tool_style_own_types(enum tool_style style);
/* How a grammar writes an argument: JSON of its schema; a string out of *list (new; else NULL); a value of its types, whatever
 * else the schema says. */
enum argument_form { ARGUMENT_JSON, ARGUMENT_CHOICE, ARGUMENT_TYPED };
enum argument_form argument_form(const struct tool_family *f, const struct tool *t, const json_t *schema, json_t **list);

/* grammar_channels.c: a tool's rule up to its arguments' JSON, and the rules that all calls share */
void tool_channels_rule(struct buf *out, const char *name, size_t i);
void tool_channels_common(struct buf *out);

/* --- body parsers --- */
enum tool_parse parse_tool_call_tag(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_json_calls(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_llama_json(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_llama_tag(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_mistral(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_channels(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_qwen_xml(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_glm(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_function_attr(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_invoke(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_gemma(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_python(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
enum tool_parse parse_python_listed(const struct tool_set *set, struct str body, bool closed, struct tool_calls *out);
bool partial_tool_call_tag(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
bool partial_json(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
bool partial_mistral(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
bool partial_channels(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
bool partial_qwen_xml(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
bool partial_function_attr(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
bool partial_invoke(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);
bool partial_glm(const struct tool_set *set, struct str body, struct buf *name, struct buf *arguments);

/* --- text helpers (text.c) --- */
size_t skip_space(struct str s, size_t i);
struct str str_sub(struct str s, size_t from, size_t to);
struct str str_trim(struct str s);
/* Does `word` stand at i? PARSE_MORE: s ends within it. */
enum tool_parse word_at(struct str s, size_t i, const char *word);
/* First place of `word` at or behind i; s.len when there is none. */
size_t find_word(struct str s, size_t i, const char *word);
bool is_name_char(char c);
size_t name_end(struct str s, size_t i);
/* One JSON value at *i; moved behind it. A number at the end of s is PARSE_MORE. */
enum tool_parse json_skip(struct str s, size_t *i);
/* A borrowed part of s as a tree; NULL when it is no JSON. */
json_t *json_part(struct str s);

/* --- typed values (values.c) --- */
enum { TYPE_STRING = 1, TYPE_INTEGER = 2, TYPE_NUMBER = 4, TYPE_BOOLEAN = 8, TYPE_NULL = 16, TYPE_OBJECT = 32, TYPE_ARRAY = 64,
       TYPE_ANY = 127 };
/* Types that a schema (of the document root, for $ref) allows. */
unsigned argument_types(const json_t *schema, const json_t *root);
/* What a local $ref refers to; NULL: nothing, or another document. */
const json_t *argument_ref(const json_t *root, const char *ref);
/* The schema that has the values of an argument: behind a $ref when it lists none itself. */
const json_t *argument_target(const json_t *schema, const json_t *root);
/* Schema of argument `key` of a tool: NULL when nothing is said about it. */
const json_t *argument_schema(const struct tool *t, const char *key);
/* Raw text of an argument as a new value. */
json_t *value_from_text(const struct tool *t, const char *key, struct str text);
/* Is an argument a string whatever its text looks like? */
bool value_is_string(const struct tool *t, const char *key);
/* The value itself (a new reference), or what the schema makes of it. */
json_t *value_fit(const struct tool *t, const char *key, json_t *v);

#endif
