/* tmpl_ast.h: what the lexer, the parser and the scope pass of the chat template engine hand to each other.
 *
 * A compiled template is one arena: tokens, nodes, constants, names. Nothing in it changes after compilation, so
 * threads share it. Nodes are one struct for all kinds; the comment at each kind says which fields it uses.
 */
#ifndef CHAT_TEMPLATE_TMPL_AST_H
#define CHAT_TEMPLATE_TMPL_AST_H

#include "chat/template/tmpl_value.h"

#define TMPL_MAX_SOURCE_BYTES (4u << 20)
#define TMPL_MAX_NESTING 150  /* brackets, tags and prefix operators inside one another */
#define TMPL_MAX_TREE_DEPTH 600 /* depth of an expression tree, long chains of operators included */
#define TMPL_MAX_NAMES 4096   /* different variable names in one template */

enum token_type {
    T_EOF, T_DATA, T_VAR_BEGIN, T_VAR_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INT, T_FLOAT,
    T_ADD, T_SUB, T_MUL, T_DIV, T_FLOORDIV, T_MOD, T_POW, T_TILDE, T_EQ, T_NE, T_LT, T_LE, T_GT, T_GE, T_ASSIGN,
    T_DOT, T_COMMA, T_COLON, T_PIPE, T_SEMICOLON, T_LPAREN, T_RPAREN, T_LBRACKET, T_RBRACKET, T_LBRACE, T_RBRACE,
};

struct token {
    enum token_type type;
    int line, col;   /* from 1; columns count characters */
    struct str text; /* data, name, decoded string, digits without '_' */
};

enum node_kind {
    /* expressions */
    N_CONST,    /* val */
    N_NAME,     /* name */
    N_NSREF,    /* name, s: only as a target of set */
    N_TUPLE,    /* list */
    N_LIST,     /* list */
    N_DICT,     /* list: key, value, key, value ... */
    N_NEG, N_POS, N_NOT, /* a */
    N_BINARY,   /* op (token type), a, b */
    N_AND, N_OR, /* a, b */
    N_CONCAT,   /* list */
    N_COMPARE,  /* a, list of N_OPERAND */
    N_OPERAND,  /* op: a comparison token type, or OP_IN, OP_NOT_IN; a */
    N_COND,     /* a if b else c (c may be NULL) */
    N_GETATTR,  /* a, s */
    N_GETITEM,  /* a, b */
    N_SLICE,    /* a, b, c, each may be NULL; only as b of N_GETITEM */
    N_CALL,     /* a, args */
    N_FILTER,   /* a (NULL inside a filter block), s, args, filter */
    N_TEST,     /* a, s, args, test */
    /* statements */
    N_DATA,     /* val: a string */
    N_PRINT,    /* a */
    N_IF,       /* a; list; list2 holds the else part (an elif is an N_IF there) */
    N_FOR,      /* a in b if c; list; list2 is the else part; flag: recursive */
    N_SET,      /* a = b */
    N_SET_BLOCK, /* a; b: filter chain or NULL; list */
    N_MACRO,    /* name, sig, list */
    N_CALL_BLOCK, /* a: N_CALL, sig, list */
    N_FILTER_BLOCK, /* a: filter chain, list */
    N_WITH,     /* targets in sig->params order: list of N_SET; list2 is the body */
    N_BLOCK,    /* s, list; flag: scoped */
    N_GENERATION, /* list */
    N_BREAK, N_CONTINUE,
};
enum { OP_IN = 100, OP_NOT_IN = 101 };

struct keyword_arg { struct str name; struct node *value; };
struct call_args {
    struct node **pos;
    int n_pos;
    struct keyword_arg *kw;
    int n_kw;
    struct node *star, *dstar;
};

struct signature {
    int *params;           /* name ids */
    struct node **defaults; /* NULL where there is none */
    int n_params;
    bool uses_caller, uses_kwargs, uses_varargs; /* the body reads these names without a parameter of that name */
    int id_caller, id_kwargs, id_varargs;
};

/* Names that a scope stores before it reads them: they hide an outer variable from the start (resolve.c). */
struct hidden_names { int *ids; int n; };

struct filter_row;
struct test_row;

struct node {
    uint8_t kind;
    uint8_t op;
    bool flag;
    uint16_t depth;
    int line, col;
    int name;
    struct str s;
    struct node *a, *b, *c;
    struct node **list;
    int n;
    struct node **list2;
    int n2;
    struct call_args *args;
    struct signature *sig;
    const struct filter_row *filter;
    const struct test_row *test;
    struct hidden_names hidden, hidden2; /* of the scope of list, of list2 */
    struct tv val;
};

struct chat_template {
    struct arena mem;
    struct node **body;
    int n_body;
    struct str *names; /* by name id */
    int n_names;
    const char **hints; /* "'x' is undefined", by name id */
    int id_loop;       /* name id of "loop" */
    struct hidden_names hidden;
};

/* lexer.c: normalise line ends, cut the source into tokens. The array ends with T_EOF. */
mb_status tmpl_lex(struct arena *a, const char *source, size_t len, struct token **out, size_t *n_out, mb_error *err);
/* "line L, column C: ..." with MB_BAD_FORMAT. */
mb_status tmpl_fail_at(mb_error *err, int line, int col, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* parser.c, parse_expr.c */
struct parser {
    struct chat_template *t;
    struct arena *a;
    const struct token *tok;
    size_t i, n;
    int nesting;
    int names_cap;
    bool failed;
    mb_status status;
    mb_error *err;
    struct str open_tags[TMPL_MAX_NESTING + 2];
    int n_open;
    struct node dummy; /* handed out after a failure; never evaluated */
};
mb_status tmpl_parse(struct chat_template *t, const struct token *tok, size_t n, mb_error *err);
const struct token *parser_cur(const struct parser *p);
const struct token *parser_look(const struct parser *p);
const struct token *parser_next(struct parser *p); /* the token passed */
bool parser_is_name(const struct token *t, const char *name);
bool parser_skip_name(struct parser *p, const char *name);
bool parser_skip(struct parser *p, enum token_type type);
const struct token *parser_expect(struct parser *p, enum token_type type);
void parser_fail(struct parser *p, const struct token *at, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool parser_enter(struct parser *p);
struct node *parser_node(struct parser *p, enum node_kind kind, const struct token *at);
void parser_push(struct parser *p, struct node ***list, int *n, int *cap, struct node *item);
int parser_name_id(struct parser *p, struct str name);
void node_depth_set(struct parser *p, struct node *n);
const char *token_describe(const struct token *t, char buf[64]);

struct node *parse_expression(struct parser *p, bool with_cond);
/* end_name: an extra name that ends the tuple, or NULL. */
struct node *parse_tuple(struct parser *p, bool with_cond, const char *end_name, bool in_parens);
struct node *parse_target(struct parser *p, const char *end_name, bool with_namespace);
struct node *parse_filters(struct parser *p, struct node *value, bool start_inline);

/* resolve.c: scopes and the tables of filters and tests. MB_BAD_FORMAT for an unknown filter or test. */
mb_status tmpl_resolve(struct chat_template *t, mb_error *err);

#endif
