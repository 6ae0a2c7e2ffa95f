/* parse_expr.c: expressions, with the precedence of jinja2's parser:
 * a if b else c  <  or  <  and  <  not  <  comparisons and in  <  + -  <  ~  <  * / // %  <  **  <  unary + -
 * <  . [] ()  and, after a value, filters and tests. Note what follows from it: -2**2 is 4, 2**3**2 is 64.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "chat/template/tmpl_ast.h"
#include "chat/template/tmpl_text.h"

static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_filter);
static struct node *parse_primary(struct parser *p, bool with_namespace);

static struct node *binary(struct parser *p, enum node_kind kind, const struct token *op, struct node *a,
                           struct node *b)
{
    struct node *n = parser_node(p, kind, op);
    n->op = (uint8_t)op->type;
    n->a = a;
    n->b = b;
    node_depth_set(p, n);
    return n;
}

struct node *parse_expression(struct parser *p, bool with_cond)
{
    if (!parser_enter(p)) return parser_node(p, N_CONST, parser_cur(p));
    const struct token *at = parser_cur(p);
    struct node *value = parse_or(p);
    while (with_cond && parser_skip_name(p, "if")) {
        struct node *n = parser_node(p, N_COND, at);
        n->a = value;
        n->b = parse_or(p);
        if (parser_skip_name(p, "else")) n->c = parse_expression(p, true);
        node_depth_set(p, n);
        value = n;
    }
    p->nesting--;
    return value;
}

static struct node *parse_pow(struct parser *p)
{
    struct node *left = parse_unary(p, true);
    while (parser_cur(p)->type == T_POW) {
        const struct token *op = parser_next(p);
        left = binary(p, N_BINARY, op, left, parse_unary(p, true));
    }
    return left;
}

static struct node *parse_product(struct parser *p)
{
    struct node *left = parse_pow(p);
    for (;;) {
        enum token_type t = parser_cur(p)->type;
        if (t != T_MUL && t != T_DIV && t != T_FLOORDIV && t != T_MOD) return left;
        const struct token *op = parser_next(p);
        left = binary(p, N_BINARY, op, left, parse_pow(p));
    }
}

static struct node *parse_concat(struct parser *p)
{
    const struct token *at = parser_cur(p);
    struct node *first = parse_product(p);
    if (parser_cur(p)->type != T_TILDE) return first;
    struct node *n = parser_node(p, N_CONCAT, at);
    int cap = 0;
    parser_push(p, &n->list, &n->n, &cap, first);
    while (parser_skip(p, T_TILDE)) parser_push(p, &n->list, &n->n, &cap, parse_product(p));
    node_depth_set(p, n);
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    struct node *left = parse_concat(p);
    while (parser_cur(p)->type == T_ADD || parser_cur(p)->type == T_SUB) {
        const struct token *op = parser_next(p);
        left = binary(p, N_BINARY, op, left, parse_concat(p));
    }
    return left;
}

/* The comparison operator at the current place (consumed), or -1. */
static int take_compare_op(struct parser *p)
{
    const struct token *t = parser_cur(p);
    if (t->type >= T_EQ && t->type <= T_GE) { parser_next(p); return (int)t->type; }
    if (parser_skip_name(p, "in")) return OP_IN;
    if (parser_is_name(t, "not") && parser_is_name(parser_look(p), "in")) {
        parser_next(p);
        parser_next(p);
        return OP_NOT_IN;
    }
    return -1;
}

static struct node *parse_compare(struct parser *p)
{
    const struct token *at = parser_cur(p);
    struct node *first = parse_sum(p);
    struct node *n = NULL;
    int cap = 0;
    for (;;) {
        const struct token *op_at = parser_cur(p);
        int op = take_compare_op(p);
        if (op < 0 || p->failed) break;
        if (!n) {
            n = parser_node(p, N_COMPARE, at);
            n->a = first;
        }
        struct node *operand = parser_node(p, N_OPERAND, op_at);
        operand->op = (uint8_t)op;
        operand->a = parse_sum(p);
        node_depth_set(p, operand);
        parser_push(p, &n->list, &n->n, &cap, operand);
    }
    if (!n) return first;
    node_depth_set(p, n);
    return n;
}

static struct node *parse_not(struct parser *p)
{
    if (!parser_is_name(parser_cur(p), "not")) return parse_compare(p);
    struct node *n = parser_node(p, N_NOT, parser_next(p));
    if (!parser_enter(p)) return n;
    n->a = parse_not(p);
    p->nesting--;
    node_depth_set(p, n);
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *left = parse_not(p);
    while (parser_is_name(parser_cur(p), "and")) {
        const struct token *op = parser_next(p);
        left = binary(p, N_AND, op, left, parse_not(p));
    }
    return left;
}

static struct node *parse_or(struct parser *p)
{
    struct node *left = parse_and(p);
    while (parser_is_name(parser_cur(p), "or")) {
        const struct token *op = parser_next(p);
        left = binary(p, N_OR, op, left, parse_and(p));
    }
    return left;
}

/* ---- calls, filters, tests ---- */

static void push_keyword(struct parser *p, struct call_args *args, int *cap, struct keyword_arg kw)
{
    if (p->failed) return;
    if (args->n_kw == *cap) {
        int grown_cap = *cap ? *cap * 2 : 4;
        struct keyword_arg *grown = arena_alloc_array(p->a, (size_t)grown_cap, sizeof *grown);
        if (!grown) { parser_fail(p, parser_cur(p), "no memory"); return; }
        if (args->n_kw) memcpy(grown, args->kw, (size_t)args->n_kw * sizeof *grown);
        args->kw = grown;
        *cap = grown_cap;
    }
    args->kw[args->n_kw++] = kw;
}

static struct call_args *parse_args(struct parser *p)
{
    static struct call_args none;
    struct call_args *args = arena_alloc(p->a, sizeof *args);
    if (!args) { parser_fail(p, parser_cur(p), "no memory"); return &none; }
    if (parser_cur(p)->type != T_LPAREN) return args;
    const struct token *at = parser_next(p);
    int cap = 0, kw_cap = 0;
    bool ok = true, need_comma = false;
    while (!p->failed && parser_cur(p)->type != T_RPAREN) {
        if (need_comma) {
            parser_expect(p, T_COMMA);
            if (parser_cur(p)->type == T_RPAREN) break;
        }
        need_comma = true;
        if (parser_skip(p, T_MUL)) {
            ok = ok && !args->star && !args->dstar;
            args->star = parse_expression(p, true);
        } else if (parser_skip(p, T_POW)) {
            ok = ok && !args->dstar;
            args->dstar = parse_expression(p, true);
        } else if (parser_cur(p)->type == T_NAME && parser_look(p)->type == T_ASSIGN) {
            ok = ok && !args->dstar;
            struct str name = parser_next(p)->text;
            parser_next(p);
            push_keyword(p, args, &kw_cap, (struct keyword_arg){ name, parse_expression(p, true) });
        } else {
            ok = ok && !args->star && !args->dstar && !args->n_kw;
            parser_push(p, &args->pos, &args->n_pos, &cap, parse_expression(p, true));
        }
    }
    parser_expect(p, T_RPAREN);
    if (!ok) parser_fail(p, at, "invalid syntax for function call expression");
    return args;
}

/* a.b.c as one name. */
static struct str parse_dotted(struct parser *p)
{
    struct str name = parser_expect(p, T_NAME)->text;
    while (!p->failed && parser_skip(p, T_DOT)) {
        struct str more = parser_expect(p, T_NAME)->text;
        char *joined = arena_printf(p->a, "%.*s.%.*s", (int)name.len, name.ptr, (int)more.len, more.ptr);
        if (!joined) { parser_fail(p, parser_cur(p), "no memory"); break; }
        name = str_of(joined);
    }
    return name;
}

struct node *parse_filters(struct parser *p, struct node *value, bool start_inline)
{
    while (!p->failed && (start_inline || parser_cur(p)->type == T_PIPE)) {
        if (!start_inline) parser_next(p);
        start_inline = false;
        struct node *n = parser_node(p, N_FILTER, parser_cur(p));
        n->s = parse_dotted(p);
        n->a = value;
        n->args = parse_args(p);
        node_depth_set(p, n);
        value = n;
    }
    return value;
}

static struct node *parse_postfix(struct parser *p, struct node *n);

static bool starts_test_argument(const struct token *t)
{
    switch (t->type) {
    case T_STRING: case T_INT: case T_FLOAT: case T_LPAREN: case T_LBRACKET: case T_LBRACE:
        return true;
    case T_NAME:
        return !parser_is_name(t, "else") && !parser_is_name(t, "or") && !parser_is_name(t, "and");
    default:
        return false;
    }
}

static struct node *parse_test(struct parser *p, struct node *value)
{
    const struct token *at = parser_next(p);
    bool negated = parser_skip_name(p, "not");
    struct node *n = parser_node(p, N_TEST, at);
    n->s = parse_dotted(p);
    n->a = value;
    if (!p->failed && parser_cur(p)->type != T_LPAREN && starts_test_argument(parser_cur(p))) {
        static struct call_args none;
        int cap = 0;
        if (parser_is_name(parser_cur(p), "is")) parser_fail(p, parser_cur(p), "You cannot chain multiple tests with is");
        n->args = arena_alloc(p->a, sizeof *n->args);
        if (!n->args) { parser_fail(p, at, "no memory"); n->args = &none; return n; }
        parser_push(p, &n->args->pos, &n->args->n_pos, &cap, parse_postfix(p, parse_primary(p, false)));
    } else {
        n->args = parse_args(p);
    }
    node_depth_set(p, n);
    if (!negated) return n;
    struct node *not = parser_node(p, N_NOT, at);
    not->a = n;
    node_depth_set(p, not);
    return not;
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = parser_node(p, N_CALL, parser_cur(p));
    n->a = callee;
    n->args = parse_args(p);
    node_depth_set(p, n);
    return n;
}

/* ---- subscripts ---- */

static bool ends_subscript(const struct parser *p)
{
    enum token_type t = parser_cur(p)->type;
    return t == T_RBRACKET || t == T_COMMA;
}

static struct node *parse_subscribed(struct parser *p)
{
    const struct token *at = parser_cur(p);
    struct node *first = NULL;
    if (parser_cur(p)->type != T_COLON) {
        first = parse_expression(p, true);
        if (parser_cur(p)->type != T_COLON) return first;
    }
    parser_next(p);
    struct node *n = parser_node(p, N_SLICE, at);
    n->a = first;
    if (parser_cur(p)->type != T_COLON && !ends_subscript(p)) n->b = parse_expression(p, true);
    if (parser_skip(p, T_COLON) && !ends_subscript(p)) n->c = parse_expression(p, true);
    node_depth_set(p, n);
    return n;
}

static struct node *number_node(struct parser *p, const struct token *t);

static struct node *parse_subscript(struct parser *p, struct node *value)
{
    const struct token *at = parser_next(p);
    if (at->type == T_DOT) {
        const struct token *attr = parser_next(p);
        struct node *n = parser_node(p, attr->type == T_NAME ? N_GETATTR : N_GETITEM, at);
        n->a = value;
        if (attr->type == T_NAME) n->s = attr->text;
        else if (attr->type == T_INT) n->b = number_node(p, attr);
        else parser_fail(p, attr, "expected name or number");
        node_depth_set(p, n);
        return n;
    }
    struct node *n = parser_node(p, N_GETITEM, at), *tuple = parser_node(p, N_TUPLE, at);
    int cap = 0;
    n->a = value;
    while (!p->failed && parser_cur(p)->type != T_RBRACKET) {
        if (tuple->n) parser_expect(p, T_COMMA);
        parser_push(p, &tuple->list, &tuple->n, &cap, parse_subscribed(p));
    }
    parser_expect(p, T_RBRACKET);
    if (p->failed) return n;
    for (int i = 0; tuple->n > 1 && i < tuple->n; i++)
        if (tuple->list[i]->kind == N_SLICE) parser_fail(p, at, "a slice must stand alone in its brackets");
    n->b = tuple->n == 1 ? tuple->list[0] : tuple;
    node_depth_set(p, n->b);
    node_depth_set(p, n);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        enum token_type t = parser_cur(p)->type;
        if (t == T_DOT || t == T_LBRACKET) n = parse_subscript(p, n);
        else if (t == T_LPAREN) n = parse_call(p, n);
        else return n;
    }
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    const struct token *at = parser_cur(p);
    struct node *n;
    if (at->type == T_SUB || at->type == T_ADD) {
        parser_next(p);
        n = parser_node(p, at->type == T_SUB ? N_NEG : N_POS, at);
        if (!parser_enter(p)) return n;
        n->a = parse_unary(p, false);
        p->nesting--;
        node_depth_set(p, n);
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n);
    while (with_filter && !p->failed) {
        if (parser_cur(p)->type == T_PIPE) n = parse_filters(p, n, false);
        else if (parser_is_name(parser_cur(p), "is")) n = parse_test(p, n);
        else if (parser_cur(p)->type == T_LPAREN) n = parse_call(p, n);
        else break;
    }
    return n;
}

/* ---- primaries ---- */

static struct node *number_node(struct parser *p, const struct token *t)
{
    struct node *n = parser_node(p, N_CONST, t);
    char *digits = arena_strndup(p->a, t->text.ptr, t->text.len);
    if (!digits) { parser_fail(p, t, "no memory"); return n; }
    if (t->type == T_FLOAT) {
        n->val.type = TV_FLOAT;
        n->val.u.f = strtod(digits, NULL);
        return n;
    }
    char kind = digits[0] == '0' ? (char)(digits[1] | 32) : 0;
    int base = kind == 'b' ? 2 : kind == 'o' ? 8 : kind == 'x' ? 16 : 10;
    errno = 0;
    n->val.u.i = strtoll(digits + (base == 10 ? 0 : 2), NULL, base);
    n->val.type = TV_INT;
    if (errno != ERANGE) return n;
    if (base != 10) parser_fail(p, t, "an integer beyond 64 bits must be written in decimal");
    n->val.type = TV_BIG;
    n->val.u.big = digits;
    return n;
}

static struct node *string_node(struct parser *p)
{
    const struct token *t = parser_cur(p);
    struct node *n = parser_node(p, N_CONST, t);
    size_t len = 0, first = p->i, at = 0;
    for (; parser_cur(p)->type == T_STRING; parser_next(p)) len += parser_cur(p)->text.len;
    if (p->failed) return n;
    struct tstr *s = arena_alloc(p->a, sizeof *s);
    char *text = arena_alloc(p->a, len + 1);
    if (!s || !text) { parser_fail(p, t, "no memory"); return n; }
    for (size_t i = first; i < p->i; i++) {
        memcpy(text + at, p->tok[i].text.ptr, p->tok[i].text.len);
        at += p->tok[i].text.len;
    }
    s->ptr = text;
    s->len = len;
    s->n_chars = text_count_chars(text, len);
    n->val.type = TV_STR;
    n->val.u.s = s;
    return n;
}

static struct node *parse_name(struct parser *p, bool with_namespace)
{
    const struct token *t = parser_next(p);
    struct node *n = parser_node(p, N_CONST, t);
    if (parser_is_name(t, "true") || parser_is_name(t, "True")) {
        n->val.type = TV_BOOL;
        n->val.u.b = true;
    } else if (parser_is_name(t, "false") || parser_is_name(t, "False")) {
        n->val.type = TV_BOOL;
    } else if (parser_is_name(t, "none") || parser_is_name(t, "None")) {
        n->val.type = TV_NONE;
    } else {
        n->kind = N_NAME;
        n->name = parser_name_id(p, t->text);
        if (with_namespace && parser_skip(p, T_DOT)) {
            n->kind = N_NSREF;
            n->s = parser_expect(p, T_NAME)->text;
        }
    }
    return n;
}

static struct node *parse_list(struct parser *p)
{
    struct node *n = parser_node(p, N_LIST, parser_next(p));
    int cap = 0;
    while (!p->failed && parser_cur(p)->type != T_RBRACKET) {
        if (n->n) parser_expect(p, T_COMMA);
        if (parser_cur(p)->type == T_RBRACKET) break;
        parser_push(p, &n->list, &n->n, &cap, parse_expression(p, true));
    }
    parser_expect(p, T_RBRACKET);
    node_depth_set(p, n);
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = parser_node(p, N_DICT, parser_next(p));
    int cap = 0;
    while (!p->failed && parser_cur(p)->type != T_RBRACE) {
        if (n->n) parser_expect(p, T_COMMA);
        if (parser_cur(p)->type == T_RBRACE) break;
        parser_push(p, &n->list, &n->n, &cap, parse_expression(p, true));
        parser_expect(p, T_COLON);
        parser_push(p, &n->list, &n->n, &cap, parse_expression(p, true));
    }
    parser_expect(p, T_RBRACE);
    node_depth_set(p, n);
    return n;
}

static struct node *parse_primary(struct parser *p, bool with_namespace)
{
    const struct token *t = parser_cur(p);
    char buf[64];
    switch (t->type) {
    case T_NAME: return parse_name(p, with_namespace);
    case T_STRING: return string_node(p);
    case T_INT: case T_FLOAT: parser_next(p); return number_node(p, t);
    case T_LBRACKET: return parse_list(p);
    case T_LBRACE: return parse_dict(p);
    case T_LPAREN: {
        parser_next(p);
        struct node *n = parse_tuple(p, true, NULL, true);
        parser_expect(p, T_RPAREN);
        return n;
    }
    default:
        parser_fail(p, t, "unexpected '%s'", token_describe(t, buf));
        return parser_node(p, N_CONST, t);
    }
}

/* ---- tuples and targets ---- */

static bool ends_tuple(const struct parser *p, const char *end_name)
{
    const struct token *t = parser_cur(p);
    if (t->type == T_VAR_END || t->type == T_BLOCK_END || t->type == T_RPAREN || t->type == T_EOF) return true;
    return end_name && parser_is_name(t, end_name);
}

/* Kinds of element: 0 expression, 1 expression without a condition, 2 target, 3 target that may be ns.attr. */
static struct node *parse_elements(struct parser *p, int kind, const char *end_name, bool in_parens)
{
    const struct token *at = parser_cur(p);
    struct node *n = parser_node(p, N_TUPLE, at);
    int cap = 0;
    bool is_tuple = false;
    if (!parser_enter(p)) return n;
    for (;;) {
        if (n->n) parser_expect(p, T_COMMA);
        if (p->failed || ends_tuple(p, end_name)) break;
        parser_push(p, &n->list, &n->n, &cap,
                    kind >= 2 ? parse_primary(p, kind == 3) : parse_expression(p, kind == 0));
        if (parser_cur(p)->type != T_COMMA) break;
        is_tuple = true;
    }
    p->nesting--;
    if (p->failed) return n;
    char buf[64];
    if (!is_tuple && n->n) return n->list[0];
    if (!is_tuple && !in_parens)
        parser_fail(p, parser_cur(p), "Expected an expression, got '%s'", token_describe(parser_cur(p), buf));
    node_depth_set(p, n);
    return n;
}

struct node *parse_tuple(struct parser *p, bool with_cond, const char *end_name, bool in_parens)
{
    return parse_elements(p, with_cond ? 0 : 1, end_name, in_parens);
}

static void check_target(struct parser *p, const struct node *n)
{
    if (p->failed || n->kind == N_NAME || n->kind == N_NSREF) return;
    if (n->kind != N_TUPLE) {
        parser_fail(p, &(struct token){ .line = n->line, .col = n->col }, "can't assign to this expression");
        return;
    }
    for (int i = 0; i < n->n; i++) check_target(p, n->list[i]);
}

struct node *parse_target(struct parser *p, const char *end_name, bool with_namespace)
{
    struct node *n = parse_elements(p, with_namespace ? 3 : 2, end_name, false);
    check_target(p, n);
    return n;
}
