/* parser.c: tokens to statements, after jinja2's parser with the extensions loopcontrols and generation.
 *
 * The first error is remembered (`failed`); from then on the current token is T_EOF, so that every loop ends, and the
 * half-built tree is thrown away by the caller. Nesting is capped (TMPL_MAX_NESTING), so recursion is too.
 * What jinja2 can do and this engine refuses by name: include, import, from, extends, autoescape.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "chat/template/tmpl_ast.h"

const struct token *parser_cur(const struct parser *p) { return &p->tok[p->failed ? p->n - 1 : p->i]; }

const struct token *parser_look(const struct parser *p)
{
    return &p->tok[p->failed || p->i + 1 >= p->n ? p->n - 1 : p->i + 1];
}

const struct token *parser_next(struct parser *p)
{
    const struct token *t = parser_cur(p);
    if (!p->failed && p->i + 1 < p->n) p->i++;
    return t;
}

bool parser_is_name(const struct token *t, const char *name)
{
    return t->type == T_NAME && str_eq(t->text, str_of(name));
}

bool parser_skip_name(struct parser *p, const char *name)
{
    if (!parser_is_name(parser_cur(p), name)) return false;
    parser_next(p);
    return true;
}

bool parser_skip(struct parser *p, enum token_type type)
{
    if (parser_cur(p)->type != type) return false;
    parser_next(p);
    return true;
}

void parser_fail(struct parser *p, const struct token *at, const char *fmt, ...)
{
    if (p->failed) return;
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->failed = true;
    p->status = tmpl_fail_at(p->err, at->line, at->col, "%s", text);
}

static void fail_memory(struct parser *p)
{
    if (p->failed) return;
    p->failed = true;
    p->status = mb_fail(p->err, MB_NO_MEMORY, "chat template: no memory to compile it");
}

static const char *const token_names[] = {
    "end of template", "template data", "begin of print statement", "end of print statement",
    "begin of statement block", "end of statement block", "name", "string", "integer", "float",
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "=", ".", ",", ":", "|", ";",
    "(", ")", "[", "]", "{", "}",
};

const char *token_describe(const struct token *t, char buf[64])
{
    if (t->type == T_NAME) snprintf(buf, 64, "%.*s", (int)(t->text.len < 40 ? t->text.len : 40), t->text.ptr);
    else snprintf(buf, 64, "%s", token_names[t->type]);
    return buf;
}

const struct token *parser_expect(struct parser *p, enum token_type type)
{
    const struct token *t = parser_cur(p);
    char buf[64];
    if (t->type != type) parser_fail(p, t, "expected token '%s', got '%s'", token_names[type], token_describe(t, buf));
    return parser_next(p);
}

bool parser_enter(struct parser *p)
{
    if (p->nesting >= TMPL_MAX_NESTING) {
        parser_fail(p, parser_cur(p), "nested more than %d levels deep", TMPL_MAX_NESTING);
        return false;
    }
    p->nesting++;
    return true;
}

struct node *parser_node(struct parser *p, enum node_kind kind, const struct token *at)
{
    struct node *n = p->failed ? NULL : arena_alloc(p->a, sizeof *n);
    if (!n) {
        fail_memory(p);
        memset(&p->dummy, 0, sizeof p->dummy);
        return &p->dummy;
    }
    n->kind = (uint8_t)kind;
    n->line = at->line;
    n->col = at->col;
    return n;
}

void parser_push(struct parser *p, struct node ***list, int *n, int *cap, struct node *item)
{
    if (p->failed) return;
    if (*n == *cap) {
        int grown_cap = *cap ? *cap * 2 : 4;
        struct node **grown = arena_alloc_array(p->a, (size_t)grown_cap, sizeof *grown);
        if (!grown) { fail_memory(p); return; }
        if (*n) memcpy(grown, *list, (size_t)*n * sizeof *grown);
        *list = grown;
        *cap = grown_cap;
    }
    (*list)[(*n)++] = item;
}

int parser_name_id(struct parser *p, struct str name)
{
    struct chat_template *t = p->t;
    for (int i = 0; i < t->n_names; i++)
        if (str_eq(t->names[i], name)) return i;
    if (p->failed) return 0;
    if (t->n_names == TMPL_MAX_NAMES) {
        parser_fail(p, parser_cur(p), "more than %d different names", TMPL_MAX_NAMES);
        return 0;
    }
    if (t->n_names == p->names_cap) {
        int cap = p->names_cap ? p->names_cap * 2 : 32;
        struct str *grown = arena_alloc_array(p->a, (size_t)cap, sizeof *grown);
        if (!grown) { fail_memory(p); return 0; }
        if (t->n_names) memcpy(grown, t->names, (size_t)t->n_names * sizeof *grown);
        t->names = grown;
        p->names_cap = cap;
    }
    t->names[t->n_names] = name;
    return t->n_names++;
}

static void depth_max(uint16_t *depth, const struct node *n)
{
    if (n && n->depth + 1 > *depth) *depth = (uint16_t)(n->depth + 1);
}

/* Call when the children of n are in place; refuses trees that recursion could not walk. */
void node_depth_set(struct parser *p, struct node *n)
{
    if (p->failed) return;
    uint16_t d = 0;
    depth_max(&d, n->a);
    depth_max(&d, n->b);
    depth_max(&d, n->c);
    for (int i = 0; i < n->n; i++) depth_max(&d, n->list[i]);
    for (int i = 0; i < n->n2; i++) depth_max(&d, n->list2[i]);
    for (int i = 0; n->args && i < n->args->n_pos; i++) depth_max(&d, n->args->pos[i]);
    for (int i = 0; n->args && i < n->args->n_kw; i++) depth_max(&d, n->args->kw[i].value);
    for (int i = 0; n->sig && i < n->sig->n_params; i++) depth_max(&d, n->sig->defaults[i]);
    n->depth = d;
    if (d > TMPL_MAX_TREE_DEPTH)
        parser_fail(p, &(struct token){ .line = n->line, .col = n->col }, "an expression or tag nested too deeply");
}

/* ---- statements ---- */

typedef const char *const *end_names; /* NULL-terminated */

static void parse_body(struct parser *p, end_names ends, struct node ***list, int *n);

/* The body of a tag up to one of `ends`; the end's name token is current afterwards. */
static void parse_statements(struct parser *p, end_names ends, struct node ***list, int *n)
{
    parser_skip(p, T_COLON);
    parser_expect(p, T_BLOCK_END);
    parse_body(p, ends, list, n);
    if (parser_cur(p)->type != T_EOF || p->failed) return;
    struct str tag = p->n_open ? p->open_tags[p->n_open - 1] : STR_LIT("");
    parser_fail(p, parser_cur(p), "unexpected end of template; looking for '%s' to close '%.*s'", ends[0],
                (int)(tag.len < 40 ? tag.len : 40), tag.ptr);
}

static void parse_statements_drop(struct parser *p, const char *end, struct node ***list, int *n)
{
    const char *const ends[] = { end, NULL };
    parse_statements(p, ends, list, n);
    parser_next(p);
}

static struct node *parse_set(struct parser *p, const struct token *at)
{
    struct node *target = parse_target(p, NULL, true);
    struct node *n;
    if (parser_skip(p, T_ASSIGN)) {
        n = parser_node(p, N_SET, at);
        n->a = target;
        n->b = parse_tuple(p, true, NULL, false);
        return n;
    }
    n = parser_node(p, N_SET_BLOCK, at);
    n->a = target;
    n->b = parse_filters(p, NULL, false);
    parse_statements_drop(p, "endset", &n->list, &n->n);
    return n;
}

static struct node *parse_for(struct parser *p, const struct token *at)
{
    static const char *const ends[] = { "endfor", "else", NULL };
    struct node *n = parser_node(p, N_FOR, at);
    n->a = parse_target(p, "in", false);
    if (!parser_skip_name(p, "in")) parser_fail(p, parser_cur(p), "expected token 'in' of a for loop");
    n->b = parse_tuple(p, false, "recursive", false);
    if (parser_skip_name(p, "if")) n->c = parse_expression(p, true);
    n->flag = parser_skip_name(p, "recursive");
    parse_statements(p, ends, &n->list, &n->n);
    if (parser_is_name(parser_next(p), "else")) parse_statements_drop(p, "endfor", &n->list2, &n->n2);
    return n;
}

static struct node *parse_if(struct parser *p, const struct token *at)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct node *first = parser_node(p, N_IF, at), *n = first;
    for (;;) {
        n->a = parse_tuple(p, false, NULL, false);
        parse_statements(p, ends, &n->list, &n->n);
        const struct token *t = parser_next(p);
        if (p->failed) return first;
        if (parser_is_name(t, "elif")) {
            /* A chain of elifs is a chain of nodes in list2; the evaluator walks it in a loop. */
            struct node *elif = parser_node(p, N_IF, t);
            int cap = 0;
            elif->flag = true;
            parser_push(p, &n->list2, &n->n2, &cap, elif);
            n = elif;
            continue;
        }
        if (parser_is_name(t, "else")) parse_statements_drop(p, "endif", &n->list2, &n->n2);
        return first;
    }
}

static void sig_push(struct parser *p, struct signature *sig, int *cap, int id, struct node *dflt)
{
    if (p->failed) return;
    if (sig->n_params == *cap) {
        int grown_cap = *cap ? *cap * 2 : 4;
        int *ids = arena_alloc_array(p->a, (size_t)grown_cap, sizeof *ids);
        struct node **d = arena_alloc_array(p->a, (size_t)grown_cap, sizeof *d);
        if (!ids || !d) { fail_memory(p); return; }
        if (sig->n_params) {
            memcpy(ids, sig->params, (size_t)sig->n_params * sizeof *ids);
            memcpy(d, sig->defaults, (size_t)sig->n_params * sizeof *d);
        }
        sig->params = ids;
        sig->defaults = d;
        *cap = grown_cap;
    }
    sig->params[sig->n_params] = id;
    sig->defaults[sig->n_params++] = dflt;
}

static struct signature *parse_signature(struct parser *p, bool in_parens)
{
    struct signature *sig = arena_alloc(p->a, sizeof *sig);
    static struct signature dummy;
    if (!sig) { fail_memory(p); return &dummy; }
    sig->id_caller = parser_name_id(p, STR_LIT("caller"));
    sig->id_kwargs = parser_name_id(p, STR_LIT("kwargs"));
    sig->id_varargs = parser_name_id(p, STR_LIT("varargs"));
    if (!in_parens) return sig;
    int cap = 0;
    bool has_default = false;
    parser_expect(p, T_LPAREN);
    while (!p->failed && parser_cur(p)->type != T_RPAREN) {
        if (sig->n_params) parser_expect(p, T_COMMA);
        const struct token *t = parser_expect(p, T_NAME);
        if (p->failed) break;
        int id = parser_name_id(p, t->text);
        struct node *dflt = NULL;
        if (parser_skip(p, T_ASSIGN)) { dflt = parse_expression(p, true); has_default = true; }
        else if (has_default) parser_fail(p, t, "non-default argument follows default argument");
        for (int i = 0; i < sig->n_params; i++)
            if (sig->params[i] == id) parser_fail(p, t, "a parameter of this name exists already");
        sig_push(p, sig, &cap, id, dflt);
    }
    parser_expect(p, T_RPAREN);
    return sig;
}

static struct node *parse_macro(struct parser *p, const struct token *at)
{
    struct node *n = parser_node(p, N_MACRO, at);
    const struct token *t = parser_expect(p, T_NAME);
    if (p->failed) return n;
    n->name = parser_name_id(p, t->text);
    n->s = t->text;
    n->sig = parse_signature(p, true);
    parse_statements_drop(p, "endmacro", &n->list, &n->n);
    return n;
}

static struct node *parse_call_block(struct parser *p, const struct token *at)
{
    struct node *n = parser_node(p, N_CALL_BLOCK, at);
    n->sig = parse_signature(p, parser_cur(p)->type == T_LPAREN);
    n->a = parse_expression(p, true);
    if (!p->failed && n->a->kind != N_CALL) parser_fail(p, at, "expected call");
    parse_statements_drop(p, "endcall", &n->list, &n->n);
    return n;
}

static struct node *parse_with(struct parser *p, const struct token *at)
{
    struct node *n = parser_node(p, N_WITH, at);
    int cap = 0;
    while (!p->failed && parser_cur(p)->type != T_BLOCK_END) {
        if (n->n) parser_expect(p, T_COMMA);
        struct node *set = parser_node(p, N_SET, parser_cur(p));
        set->a = parse_target(p, NULL, false);
        parser_expect(p, T_ASSIGN);
        set->b = parse_expression(p, true);
        parser_push(p, &n->list, &n->n, &cap, set);
    }
    parse_statements_drop(p, "endwith", &n->list2, &n->n2);
    return n;
}

static struct node *parse_block(struct parser *p, const struct token *at)
{
    struct node *n = parser_node(p, N_BLOCK, at);
    n->s = parser_expect(p, T_NAME)->text;
    n->flag = parser_skip_name(p, "scoped");
    parser_skip_name(p, "required");
    parse_statements_drop(p, "endblock", &n->list, &n->n);
    if (parser_cur(p)->type == T_NAME && str_eq(parser_cur(p)->text, n->s)) parser_next(p);
    return n;
}

static struct node *parse_simple_body(struct parser *p, enum node_kind kind, const char *end, const struct token *at)
{
    struct node *n = parser_node(p, kind, at);
    if (kind == N_FILTER_BLOCK) n->a = parse_filters(p, NULL, true);
    parse_statements_drop(p, end, &n->list, &n->n);
    return n;
}

/* {% print a, b %} */
static struct node *parse_print(struct parser *p, const struct token *at)
{
    struct node *n = parser_node(p, N_WITH, at);
    int cap = 0;
    while (!p->failed && parser_cur(p)->type != T_BLOCK_END) {
        if (n->n2) parser_expect(p, T_COMMA);
        struct node *out = parser_node(p, N_PRINT, parser_cur(p));
        out->a = parse_expression(p, true);
        parser_push(p, &n->list2, &n->n2, &cap, out);
    }
    return n;
}

static struct node *parse_unknown(struct parser *p, const struct token *t)
{
    static const char *const refused[] = { "include", "import", "from", "extends", "autoescape", NULL };
    int len = (int)(t->text.len < 40 ? t->text.len : 40);
    for (int i = 0; refused[i]; i++)
        if (parser_is_name(t, refused[i]))
            parser_fail(p, t, "the tag '%s' is not supported: a chat template is one file", refused[i]);
    if (p->n_open)
        parser_fail(p, t, "unknown tag '%.*s'; the innermost tag to close is '%.*s'", len, t->text.ptr,
                    (int)(p->open_tags[p->n_open - 1].len < 40 ? p->open_tags[p->n_open - 1].len : 40),
                    p->open_tags[p->n_open - 1].ptr);
    parser_fail(p, t, "unknown tag '%.*s'", len, t->text.ptr);
    return parser_node(p, N_DATA, t);
}

static struct node *parse_tag(struct parser *p, const struct token *t)
{
    if (parser_is_name(t, "set")) return parse_set(p, t);
    if (parser_is_name(t, "for")) return parse_for(p, t);
    if (parser_is_name(t, "if")) return parse_if(p, t);
    if (parser_is_name(t, "macro")) return parse_macro(p, t);
    if (parser_is_name(t, "call")) return parse_call_block(p, t);
    if (parser_is_name(t, "filter")) return parse_simple_body(p, N_FILTER_BLOCK, "endfilter", t);
    if (parser_is_name(t, "generation")) return parse_simple_body(p, N_GENERATION, "endgeneration", t);
    if (parser_is_name(t, "with")) return parse_with(p, t);
    if (parser_is_name(t, "block")) return parse_block(p, t);
    if (parser_is_name(t, "print")) return parse_print(p, t);
    if (parser_is_name(t, "break")) return parser_node(p, N_BREAK, t);
    if (parser_is_name(t, "continue")) return parser_node(p, N_CONTINUE, t);
    return NULL;
}

static struct node *parse_statement(struct parser *p)
{
    const struct token *t = parser_cur(p);
    if (t->type != T_NAME) parser_fail(p, t, "tag name expected");
    if (p->failed || !parser_enter(p)) return parser_node(p, N_DATA, t);
    p->open_tags[p->n_open++] = t->text;
    parser_next(p);
    struct node *n = parse_tag(p, t);
    p->n_open--;
    p->nesting--;
    if (!n) return parse_unknown(p, t);
    if (n->kind != N_IF) node_depth_set(p, n);
    return n;
}

static bool is_end(const struct token *t, end_names ends)
{
    for (int i = 0; ends && ends[i]; i++)
        if (parser_is_name(t, ends[i])) return true;
    return false;
}

static void parse_body(struct parser *p, end_names ends, struct node ***list, int *n)
{
    int cap = 0;
    while (!p->failed && parser_cur(p)->type != T_EOF) {
        const struct token *t = parser_next(p);
        if (t->type == T_DATA) {
            struct node *data = parser_node(p, N_DATA, t);
            data->s = t->text;
            parser_push(p, list, n, &cap, data);
        } else if (t->type == T_VAR_BEGIN) {
            struct node *print = parser_node(p, N_PRINT, t);
            print->a = parse_tuple(p, true, NULL, false);
            parser_expect(p, T_VAR_END);
            parser_push(p, list, n, &cap, print);
        } else {
            if (is_end(parser_cur(p), ends)) return;
            struct node *tag = parse_statement(p);
            parser_expect(p, T_BLOCK_END);
            parser_push(p, list, n, &cap, tag);
        }
    }
}

mb_status tmpl_parse(struct chat_template *t, const struct token *tok, size_t n, mb_error *err)
{
    struct parser *p = arena_alloc(&t->mem, sizeof *p);
    if (!p) return mb_fail(err, MB_NO_MEMORY, "chat template: no memory to compile it");
    p->t = t;
    p->a = &t->mem;
    p->tok = tok;
    p->n = n;
    p->err = err;
    t->id_loop = parser_name_id(p, STR_LIT("loop"));
    parse_body(p, NULL, &t->body, &t->n_body);
    return p->failed ? p->status : MB_OK;
}
