/* grammar.c: a family's markup as grammar rules, so that tool_choice "required" and named ones are certain (B-055). JSON
 * arguments are the tool's schema; arguments written as text or as literals of another language follow the property list:
 * required ones always, others or not, in the schema's order; strings are free text up to their closing sign, or one of an
 * enum; everything else is JSON of its schema. What that leaves open of a schema: gap.c. */
#include <string.h>

#include "base/mem.h"
#include "chat/tools/tools_int.h"

struct writer {
    struct buf *out;
    const struct tool_family *f;
    const struct tool_grammar_options *o;
};

/* --- notation --- */
void tool_grammar_literal(struct buf *out, const char *text, size_t len)
{
    buf_append_char(out, '"');
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\') buf_printf(out, "\\%c", c);
        else if (c == '\n') buf_append_str(out, "\\n");
        else if (c < 0x20 || c == 0x7F) buf_printf(out, "\\x%02X", c);
        else buf_append_char(out, (char)c);
    }
    buf_append_char(out, '"');
}

static void lit(struct writer *w, const char *text)
{
    buf_append_char(w->out, ' ');
    tool_grammar_literal(w->out, text, strlen(text));
}

static void sign(struct writer *w, const char *text)
{
    buf_append_str(w->out, " %token");
    lit(w, text);
}

/* Free text and the sign that ends it. A token never matches text, so text before one needs no search. */
static void text_until(struct writer *w, const char *end, const char *token)
{
    if (token && w->o->has_token(w->o->ctx, token)) {
        buf_append_str(w->out, " .*");
        sign(w, token);
        return;
    }
    buf_append_str(w->out, " %until");
    lit(w, end);
}

static void json_name(struct writer *w, const char *before, const char *name, const char *behind)
{
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, before);
    json_write_string(&b, name, strlen(name));
    buf_append_str(&b, behind);
    if (b.failed) w->out->failed = b.failed;
    else lit(w, b.data);
    buf_free(&b);
}

static bool has_reference(const json_t *v)
{
    const char *key;
    json_t *member;
    json_object_foreach((json_t *)v, key, member)
        if (strcmp(key, "$ref") == 0 || strcmp(key, "$dynamicRef") == 0 || has_reference(member)) return true;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (has_reference(json_array_get(v, i))) return true;
    return false;
}

/* {"$ref": "tool:#/properties/KEY", "$defs": {"tool": ROOT with "$id": "tool:"}}: what the argument's schema refers to by its
 * place in the whole schema is still found there. A new object or NULL. */
static json_t *through_root(const json_t *root, const char *key)
{
    const char *id = json_string_value(json_object_get(root, "$id"));
    struct buf b;
    buf_init(&b, 0);
    buf_printf(&b, "%s#/properties/", id ? id : "tool:");
    for (const char *p = key; *p; p++) {
        if (*p == '~' || *p == '/') buf_append_str(&b, *p == '~' ? "~0" : "~1");
        else if (*p == '%') buf_append_str(&b, "%25");
        else buf_append_char(&b, *p);
    }
    json_t *whole = json_copy((json_t *)root), *out = NULL;
    bool ok = whole && !b.failed && (id || json_object_set_new(whole, "$id", json_string("tool:")) == 0);
    if (ok) out = json_pack("{s:s, s:{s:O}}", "$ref", b.data, "$defs", "tool", whole);
    json_decref(whole);
    buf_free(&b);
    return out;
}

static void json_item(struct writer *w, json_t *schema /* taken; NULL: no memory */)
{
    struct json_write_opts opts = { 0 };
    if (!schema) w->out->failed = MB_NO_MEMORY;
    buf_append_str(w->out, " %json ");
    if (!w->out->failed) json_write(w->out, schema, &opts);
    json_decref(schema);
}

/* %json of all arguments. */
static void json_arguments(struct writer *w, const struct tool *t)
{
    json_t *s = t->parameters ? json_copy((json_t *)t->parameters) : json_object();
    if (s && !json_object_get(s, "type") && json_object_set_new(s, "type", json_string("object")) != 0) w->out->failed = MB_NO_MEMORY;
    json_item(w, s);
}

/* %json of one argument. */
static void json_argument(struct writer *w, const struct tool *t, const char *key, const json_t *schema)
{
    if (has_reference(schema)) json_item(w, through_root(t->parameters, key));
    else json_item(w, json_is_object(schema) ? json_incref((json_t *)schema) : json_object());
}

/* --- arguments as JSON --- */
static void json_call(struct writer *w, const struct tool *t, const char *key)
{
    struct buf b;
    buf_init(&b, 0);
    buf_printf(&b, ", \"%s\": ", key);
    json_name(w, "{\"name\": ", t->name, b.data ? b.data : "");
    buf_free(&b);
    json_arguments(w, t);
    lit(w, "}");
}

/* --- arguments one by one --- */
static bool is_required(const json_t *parameters, const char *key)
{
    const json_t *list = json_object_get(parameters, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *k = json_string_value(json_array_get(list, i));
        if (k && strcmp(k, key) == 0) return true;
    }
    return false;
}

/* Strings that alone are allowed; a new array or NULL. */
static json_t *string_choices(const json_t *schema)
{
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    json_t *out = json_array();
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_text(json_array_get(list, i))) json_array_append(out, json_array_get(list, i));
    if (json_is_text(one)) json_array_append(out, (json_t *)one);
    if (json_array_size(out)) return out;
    json_decref(out);
    return NULL;
}

unsigned tool_style_own_types(enum tool_style style)
{
    switch (style) {
    case STYLE_QWEN_XML:
    case STYLE_ATTR_XML:
    case STYLE_GLM: return TYPE_STRING;
    case STYLE_GEMMA: return TYPE_STRING | TYPE_OBJECT | TYPE_ARRAY;
    case STYLE_PYTHON: return TYPE_ANY & ~(unsigned)(TYPE_INTEGER | TYPE_NUMBER);
    default: return 0;
    }
}

enum argument_form argument_form(const struct tool_family *f, const struct tool *t, const json_t *schema, json_t **list)
{
    unsigned types = argument_types(schema, t->parameters);
    *list = types == TYPE_STRING ? string_choices(argument_target(schema, t->parameters)) : NULL;
    return *list ? ARGUMENT_CHOICE : types & tool_style_own_types(f->style) ? ARGUMENT_TYPED : ARGUMENT_JSON;
}

static void choices(struct writer *w, const json_t *list, const char *quote)
{
    buf_append_str(w->out, " (");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        struct buf b;
        buf_init(&b, 0);
        if (quote && *quote == '"') json_write_string(&b, json_string_value(v), json_string_length(v));
        else buf_append(&b, json_string_value(v), json_string_length(v));
        buf_append_str(w->out, i ? " | " : " ");
        if (b.failed) w->out->failed = b.failed;
        else tool_grammar_literal(w->out, b.data ? b.data : "", b.len);
        buf_free(&b);
    }
    buf_append_str(w->out, " )");
}

/* Text between tags, with the closing one. */
static void tag_value(struct writer *w, const struct tool *t, const char *key, const json_t *schema, const char *end, const char *token)
{
    json_t *list;
    enum argument_form form = argument_form(w->f, t, schema, &list);
    if (form == ARGUMENT_TYPED) {
        text_until(w, end, token);
        return;
    }
    if (form == ARGUMENT_CHOICE) choices(w, list, NULL);
    else json_argument(w, t, key, schema);
    json_decref(list);
    if (token && w->o->has_token(w->o->ctx, token)) sign(w, token);
    else lit(w, end);
}

/* A value of one of these types as Gemma and Python write it: a type is a rule or literals. */
static void typed_value(struct writer *w, unsigned types)
{
    static const struct { unsigned type; const char *gemma, *python; } rows[] = {
        { TYPE_STRING, "tool-string", "tool-string" },  { TYPE_NUMBER, "tool-number", "tool-number" },
        { TYPE_INTEGER, "tool-integer", "tool-integer" }, { TYPE_BOOLEAN, "\"true\" | \"false\"", "\"True\" | \"False\"" },
        { TYPE_NULL, "\"null\"", "\"None\"" },          { TYPE_OBJECT, "tool-object", "tool-object" },
        { TYPE_ARRAY, "tool-list", "tool-list" },
    };
    const char *between = " (";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!(types & rows[i].type) || (rows[i].type == TYPE_INTEGER && types & TYPE_NUMBER)) continue;
        buf_printf(w->out, "%s %s", between, w->f->style == STYLE_GEMMA ? rows[i].gemma : rows[i].python);
        between = " |";
    }
    buf_append_str(w->out, " )");
}

static void literal_value(struct writer *w, const struct tool *t, const char *key, const json_t *schema)
{
    bool gemma = w->f->style == STYLE_GEMMA;
    json_t *list;
    switch (argument_form(w->f, t, schema, &list)) {
    case ARGUMENT_CHOICE:
        if (gemma) sign(w, "<|\"|>");
        choices(w, list, gemma ? NULL : "\"");
        if (gemma) sign(w, "<|\"|>");
        break;
    case ARGUMENT_TYPED: typed_value(w, argument_types(schema, t->parameters)); break;
    case ARGUMENT_JSON: json_argument(w, t, key, schema); break;
    }
    json_decref(list);
}

static void quoted_key(struct writer *w, const char *before, const char *key, const char *behind)
{
    struct buf b;
    buf_init(&b, 0);
    buf_append_str(&b, before);
    buf_append_str(&b, key);
    buf_append_str(&b, behind);
    if (b.failed) w->out->failed = b.failed;
    else lit(w, b.data);
    buf_free(&b);
}

static void argument(struct writer *w, const struct tool *t, const char *key, const json_t *schema)
{
    switch (w->f->style) {
    case STYLE_QWEN_XML:
        quoted_key(w, "<parameter=", key, ">\n");
        tag_value(w, t, key, schema, "\n</parameter>\n", NULL);
        break;
    case STYLE_ATTR_XML:
        quoted_key(w, "<param name=\"", key, "\">");
        tag_value(w, t, key, schema, "</param>", "</param>");
        break;
    case STYLE_GLM:
        sign(w, "<arg_key>");
        lit(w, key);
        sign(w, "</arg_key>");
        lit(w, "\n");
        sign(w, "<arg_value>");
        tag_value(w, t, key, schema, "</arg_value>", "</arg_value>");
        lit(w, "\n");
        break;
    case STYLE_GEMMA:
        quoted_key(w, "", key, ":");
        literal_value(w, t, key, schema);
        break;
    default:
        quoted_key(w, "", key, "=");
        literal_value(w, t, key, schema);
        break;
    }
}

/* tool-I-aK: arguments from the K-th on, none written yet; tool-I-bK: behind another. Without a separator both are one. */
static void arguments(struct writer *w, const struct tool *t, size_t i_tool, const char *separator)
{
    const json_t *properties = json_object_get(t->parameters, "properties"), *schema;
    const char *key;
    size_t k = 0;
    json_object_foreach((json_t *)properties, key, schema) {
        for (int behind = 0; behind < (separator ? 2 : 1); behind++) {
            buf_printf(w->out, "tool-%zu-%c%zu ::=", i_tool, "ab"[behind], k);
            if (behind) lit(w, separator);
            argument(w, t, key, schema);
            buf_printf(w->out, " tool-%zu-%c%zu", i_tool, separator ? 'b' : 'a', k + 1);
            if (!is_required(t->parameters, key)) buf_printf(w->out, " | tool-%zu-%c%zu", i_tool, "ab"[behind], k + 1);
            buf_append_char(w->out, '\n');
        }
        k++;
    }
    buf_printf(w->out, "tool-%zu-a%zu ::= \"\"\n", i_tool, k);
    if (separator) buf_printf(w->out, "tool-%zu-b%zu ::= \"\"\n", i_tool, k);
}

/* --- one tool --- */
static void tool_rule(struct writer *w, const struct tool *t, size_t i)
{
    static const char *const between[] = { [STYLE_GEMMA] = ",", [STYLE_PYTHON] = ", " };
    enum tool_style style = w->f->style;
    const char *separator = style == STYLE_GEMMA || style == STYLE_PYTHON ? between[style] : NULL;
    bool by_argument = tool_style_own_types(style) != 0;
    buf_printf(w->out, "tool-%zu ::=", i);
    switch (style) {
    case STYLE_QWEN_XML: quoted_key(w, "<function=", t->name, ">\n"); break;
    case STYLE_ATTR_XML: quoted_key(w, "<function name=\"", t->name, "\">"); break;
    case STYLE_GLM: quoted_key(w, "", t->name, "\n"); break;
    case STYLE_GEMMA: quoted_key(w, "call:", t->name, "{"); break;
    case STYLE_PYTHON: quoted_key(w, "", t->name, "("); break;
    case STYLE_CHANNELS:
        tool_channels_rule(w->out, t->name, i);
        json_arguments(w, t);
        break;
    case STYLE_MISTRAL_ARGS:
        lit(w, t->name);
        sign(w, "[ARGS]");
        json_arguments(w, t);
        break;
    default:
        json_call(w, t, style == STYLE_LLAMA ? "parameters" : "arguments");
        break;
    }
    if (by_argument) {
        static const char *const ends[] = { [STYLE_QWEN_XML] = "</function>", [STYLE_ATTR_XML] = "</function>", [STYLE_GLM] = "",
                                            [STYLE_GEMMA] = "}", [STYLE_PYTHON] = ")" };
        buf_printf(w->out, " tool-%zu-a0", i);
        if (*ends[style]) lit(w, ends[style]);
    }
    buf_append_char(w->out, '\n');
    if (by_argument) arguments(w, t, i, separator);
}

/* --- values of the two languages --- */
static void value_rules(struct writer *w)
{
    if (w->f->style != STYLE_GEMMA && w->f->style != STYLE_PYTHON) return;
    buf_append_str(w->out, /* digits as far as a double tells them apart */
        "tool-integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,14})\n"
        "tool-number ::= tool-integer (\".\" [0-9]{1,15})?\n"
        "tool-value ::=");
    typed_value(w, TYPE_ANY);
    buf_append_str(w->out, w->f->style == STYLE_GEMMA ?
        "\ntool-string ::= %token \"<|\\\"|>\" .* %token \"<|\\\"|>\"\n"
        "tool-pair ::= [A-Za-z0-9_.-]+ \":\" tool-value\n"
        "tool-object ::= \"{\" (tool-pair (\",\" tool-pair)*)? \"}\"\n"
        "tool-list ::= \"[\" (tool-value (\",\" tool-value)*)? \"]\"\n" :
        "\ntool-string ::= \"\\\"\" ([^\"\\\\\\n\\r] | \"\\\\\" [nrt\"\\\\])* \"\\\"\"\n"
        "tool-pair ::= tool-string \": \" tool-value\n"
        "tool-object ::= \"{\" (tool-pair (\", \" tool-pair)*)? \"}\"\n"
        "tool-list ::= \"[\" (tool-value (\", \" tool-value)*)? \"]\"\n");
}

/* --- the frame --- */
static void call_rules(struct writer *w)
{
    const struct tool_markup *m = w->f->markups[0];
    switch (w->f->style) {
    case STYLE_MISTRAL_LIST:
        buf_append_str(w->out, "call ::= %token \"[TOOL_CALLS]\" \" \"? \"[\" tool-any");
        if (w->o->parallel) buf_append_str(w->out, " (\", \" tool-any)*");
        buf_append_str(w->out, " \"]\"\ncalls ::= call\n");
        return;
    case STYLE_MISTRAL_ARGS:
        buf_append_str(w->out, "call ::= %token \"[TOOL_CALLS]\" tool-any\n");
        buf_append_str(w->out, w->o->parallel ? "calls ::= call+\n" : "calls ::= call\n");
        return;
    case STYLE_CHANNELS: /* one call: its end ends the answer */
        tool_channels_common(w->out);
        return;
    case STYLE_LLAMA: /* one call: what its template can print */
        buf_append_str(w->out, "call ::= tool-any\ncalls ::= call\n");
        return;
    case STYLE_PYTHON:
        buf_append_str(w->out, "call ::=");
        sign(w, m->open);
        buf_append_str(w->out, w->o->parallel ? " \"[\" tool-any (\", \" tool-any)* \"]\"" : " \"[\" tool-any \"]\"");
        sign(w, m->close);
        buf_append_str(w->out, "\ncalls ::= call\n");
        return;
    default:
        break;
    }
    bool hermes = w->f->style == STYLE_HERMES, lines = hermes || w->f->style == STYLE_QWEN_XML;
    buf_append_str(w->out, "call ::=");
    if (hermes || !m->open_is_body) sign(w, hermes ? "<tool_call>" : m->open);
    buf_append_str(w->out, lines ? " \"\\n\" tool-any \"\\n\"" : " tool-any");
    if (hermes || !m->open_is_body) sign(w, hermes ? "</tool_call>" : m->close);
    buf_append_char(w->out, '\n');
    bool same_line = w->f->style == STYLE_GEMMA;
    if (w->o->parallel) buf_append_str(w->out, same_line ? "calls ::= call+\n" : "calls ::= call (\"\\n\" call)*\n");
    else buf_append_str(w->out, "calls ::= call\n");
}

void tool_grammar_write(struct buf *out, const struct tool_family *f, const struct tool_set *set,
                        const struct tool_grammar_options *o)
{
    struct writer w = { .out = out, .f = f, .o = o };
    bool first = true;
    call_rules(&w);
    buf_append_str(out, "tool-any ::=");
    for (size_t i = 0; i < set->n; i++) {
        if (o->only && strcmp(o->only, set->tools[i].name) != 0) continue;
        buf_printf(out, "%s tool-%zu", first ? "" : " |", i);
        first = false;
    }
    buf_append_char(out, '\n');
    for (size_t i = 0; i < set->n; i++)
        if (!o->only || strcmp(o->only, set->tools[i].name) == 0) tool_rule(&w, &set->tools[i], i);
    value_rules(&w);
}
