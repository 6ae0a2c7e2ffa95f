/* tmpl_rt.h: the state of one render, and what its files offer each other.
 *
 * Errors: the first one is kept in the state (`status`, `err`); everything after it returns TV_UNDEF at once, so
 * callers check `r->status` only where they loop. Steps, depth and bytes are counted here: render_step, render_enter,
 * and the ceilings of tsb_* and of the scratch arena.
 */
#ifndef CHAT_TEMPLATE_TMPL_RT_H
#define CHAT_TEMPLATE_TMPL_RT_H

#include "chat/template/tmpl_ast.h"
#include "chat/template/tmpl_text.h"

/* A string under construction, with its runs. */
struct tsb {
    struct render *r;
    char *data;
    size_t len, cap;
    struct trun *runs;
    size_t n_runs, cap_runs;
};

struct tbind { int name; struct tv v; };
struct tscope {
    struct tscope *parent;
    struct tv *by_name; /* the root scope: one slot a name id */
    struct tbind *b;
    int n, cap;
};

struct origin { int32_t i_message; const char *field; };
enum flow { FLOW_NORMAL, FLOW_BREAK, FLOW_CONTINUE };

struct render {
    const struct chat_template *t;
    const struct template_input *in;
    struct arena *a;       /* scratch */
    mb_status status;
    mb_error *err;
    int line;              /* of the node at work */
    uint64_t steps, max_steps;
    int depth, max_depth;  /* nested calls */
    int nest;              /* nested C calls of the evaluator */
    size_t max_bytes;      /* of one string, and of the output */
    struct origin *origins;
    uint32_t n_origins, cap_origins;
    struct tscope root, *scope;
    struct tsb *out;
    struct tsb *main_out;
    uint64_t n_closures;   /* macros made so far: they keep the scopes they were made in */
    enum flow flow;
    const struct node *ctx_node;
    struct text_range *gen;
    size_t n_gen, cap_gen;
};

#define ORG_TEMPLATE 0u
#define ORG_TOOLS 1u
#define ORG_OTHER 2u
#define RENDER_MAX_NEST 1200

/* render.c */
struct tv render_fail(struct render *r, mb_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
#define render_type_error(r, ...) render_fail(r, MB_INVALID, __VA_ARGS__)
bool render_step(struct render *r, uint64_t n); /* false: the render has failed */
bool render_enter(struct render *r);            /* one more nested C call; false (and not entered) at the cap */
static inline void render_leave(struct render *r) { r->nest--; }
void *render_alloc(struct render *r, size_t n, size_t size);
uint32_t render_origin(struct render *r, int32_t i_message, const char *field);

/* strval.c: strings */
void tsb_init(struct tsb *b, struct render *r);
bool tsb_add(struct tsb *b, const char *p, size_t len, uint32_t org);
bool tsb_add_cp(struct tsb *b, uint32_t cp, uint32_t org);
bool tsb_lit(struct tsb *b, const char *s);
/* Bytes [first, end) of a string value, with their runs. */
bool tsb_add_range(struct tsb *b, struct tv s, size_t first, size_t end);
bool tsb_add_str(struct tsb *b, struct tv s);
struct tv tsb_take(struct tsb *b);
struct tv tv_str(struct render *r, const char *p, size_t len, uint32_t org); /* borrows p */
struct tv tv_str_copy(struct render *r, const char *p, size_t len, uint32_t org);
struct tv tv_str_slice(struct render *r, struct tv s, size_t first, size_t end); /* bytes */
uint32_t tv_str_origin_at(struct tv s, size_t at);
size_t tv_str_byte(struct tv s, size_t i_char); /* byte offset of a character index */
bool tv_str_is(struct tv v, const char *lit);
struct tv tv_str_repeat(struct render *r, struct tv s, int64_t times);
/* First occurrence of needle in s[first, end) bytes, or SIZE_MAX. */
size_t tv_str_find(struct tv s, struct tv needle, size_t first, size_t end);
size_t tv_str_rfind(struct tv s, struct tv needle, size_t first, size_t end);
struct tv tv_str_replace(struct render *r, struct tv s, struct tv old, struct tv by, int64_t count);
struct tv tv_str_strip(struct render *r, struct tv s, struct tv chars, bool left, bool right);
struct tv tv_str_map(struct render *r, struct tv s, int (*map)(uint32_t, uint32_t[3])); /* upper, lower ... */
struct tv tv_str_lower(struct render *r, struct tv s);
struct tv tv_str_capitalize(struct render *r, struct tv s);

/* value.c: construction, looks, iteration */
static inline struct tv tv_none(void) { return (struct tv){ .type = TV_NONE }; }
static inline struct tv tv_bool(bool b) { return (struct tv){ .type = TV_BOOL, .u.b = b }; }
static inline struct tv tv_int(int64_t i) { return (struct tv){ .type = TV_INT, .u.i = i }; }
static inline struct tv tv_float(double f) { return (struct tv){ .type = TV_FLOAT, .u.f = f }; }
static inline struct tv tv_undef(const char *hint) { return (struct tv){ .type = TV_UNDEF, .u.hint = hint }; }
static inline struct tv tv_absent(void) { return (struct tv){ .type = TV_ABSENT }; }
static inline bool tv_is_str(struct tv v) { return v.type == TV_STR; }
static inline bool tv_is_int(struct tv v) { return v.type == TV_INT || v.type == TV_BOOL; }
static inline bool tv_is_number(struct tv v) { return tv_is_int(v) || v.type == TV_FLOAT || v.type == TV_BIG; }
static inline int64_t tv_as_int(struct tv v) { return v.type == TV_BOOL ? v.u.b : v.u.i; }
static inline bool tv_is_seq(struct tv v) { return v.type == TV_LIST || v.type == TV_TUPLE; }
struct tv tv_of_json(struct render *r, const json_t *j, uint32_t org);
struct tv tv_list_new(struct render *r, enum tv_type type, size_t n, uint32_t org);
struct tv tv_pair(struct render *r, struct tv a, struct tv b);
struct tlist *tv_items(struct render *r, struct tv v); /* of LIST or TUPLE, unfolded; never NULL */
struct tdict *tv_dict(struct render *r, struct tv v);  /* of DICT or NS, unfolded; never NULL */
struct tv tv_dict_new(struct render *r, uint32_t org);
void tv_dict_set(struct render *r, struct tv d, struct tv key, struct tv val);
bool tv_dict_get(struct render *r, struct tv d, struct tv key, struct tv *out);
bool tv_dict_get_str(struct render *r, struct tv d, const char *key, size_t len, struct tv *out);
bool tv_hashable(struct tv v);
bool tv_truth(struct render *r, struct tv v);
const char *tv_type_name(struct tv v);
bool tv_len(struct render *r, struct tv v, size_t *out); /* false: it has no length */
/* The elements, as Python's list(v) gives them; an iterator is consumed. Fails with a type error. Never NULL. */
struct tlist *tv_iter(struct render *r, struct tv v);
bool tv_is_iterable(struct tv v);
int64_t tv_range_len(const struct trange *g);
struct tv tv_iter_of(struct render *r, struct tlist *l, uint32_t org);
struct tv tv_getattr(struct render *r, struct tv obj, struct str name);
struct tv tv_getitem(struct render *r, struct tv obj, struct tv key);
struct tv tv_slice(struct render *r, struct tv obj, struct tv start, struct tv stop, struct tv step);

/* compare.c */
bool tv_eq(struct render *r, struct tv a, struct tv b);
bool tv_same(struct tv a, struct tv b); /* is */
/* op: T_LT, T_LE, T_GT, T_GE. Type error where Python has no order. */
bool tv_order(struct render *r, int op, struct tv a, struct tv b);
bool tv_contains(struct render *r, struct tv container, struct tv item);
void tv_sort(struct render *r, struct tv *keys, struct tv *vals, size_t n, bool reverse);

/* ops.c */
struct tv tv_binary(struct render *r, int op, struct tv a, struct tv b);
struct tv tv_negate(struct render *r, struct tv a, bool neg);
struct tv tv_int_parse(struct render *r, const char *s, size_t len, int base, bool *ok);
bool tv_float_parse(const char *s, size_t len, double *out);

/* repr.c */
struct tv tv_to_str(struct render *r, struct tv v);
void tv_write_str(struct tsb *b, struct tv v);
void tv_write_repr(struct tsb *b, struct tv v);
void float_repr(double v, char out[40]);

/* format.c: printf style and str.format */
struct tv format_percent(struct render *r, struct tv fmt, struct tv args);
struct func_call;
struct tv format_braces(struct render *r, struct tv fmt, const struct func_call *c, struct tv mapping);
struct tv format_value(struct render *r, struct tv v, struct str spec);

/* json_out.c */
struct tv tojson_value(struct render *r, struct tv v, bool ascii, struct tv indent, struct tv separators, bool sort);

/* strftime.c */
struct tv strftime_value(struct render *r, struct tv fmt, int64_t unix_s);

/* ---- calls ---- */
#define CALL_MAX_ARGS 8
struct func_call {
    struct tv *args;      /* positional */
    size_t n_args;
    struct str *kw_names;
    struct tv *kw;
    size_t n_kw;
};
/* One row a callable. The signature lists parameters, "*" before what must be given: "*old *new count"; a leading "/"
 * refuses keywords; NULL takes the call as it is (`raw`). Parameters not given are TV_ABSENT. */
struct func_row {
    const char *name;
    const char *sig;
    struct tv (*fn)(struct render *r, struct tv self, struct tv *arg);
    struct tv (*raw)(struct render *r, struct tv self, const struct func_call *c);
};
struct filter_row { struct func_row f; };
struct test_row { struct func_row f; };
struct tv func_call_row(struct render *r, const struct func_row *f, struct tv self, const struct func_call *c);
struct tv tv_call(struct render *r, struct tv callee, const struct func_call *c);
struct tv macro_call(struct render *r, struct tmacro *m, const struct func_call *c);
struct tv loop_call(struct render *r, struct tloop *l, const struct func_call *c);

/* tables */
const struct filter_row *filter_find(struct str name);
const struct test_row *test_find(struct str name);
const struct func_row *method_find(struct tv obj, struct str name);
const struct func_row *global_find(struct str name);
extern const struct func_row str_methods[];
extern const struct filter_row filters_text[], filters_seq[]; /* end with a row without a name */
/* Argument helpers: an absent argument gives the default; a wrong type fails. */
int64_t arg_int(struct render *r, struct tv v, int64_t dflt);
bool arg_bool(struct render *r, struct tv v, bool dflt);
struct tv arg_str(struct render *r, struct tv v, const char *what); /* must be a string */

/* eval.c, exec.c */
struct tv eval(struct render *r, const struct node *n);
struct tv eval_filter(struct render *r, const struct node *n, struct tv value);
struct tv eval_call_with(struct render *r, const struct node *n, const struct tv *caller);
void exec_body(struct render *r, struct node *const *list, int n);
struct tscope *scope_push(struct render *r, struct tscope *parent, const struct hidden_names *hidden);
void scope_set(struct render *r, struct tscope *s, int name, struct tv v);
struct tv scope_get(struct render *r, int name);
/* Run the loop node over items in the current output. */
void exec_for(struct render *r, const struct node *n, struct tv iterable, uint32_t depth0);
/* Does the loop have an element at index i? Asks the filter for more elements where needed. */
bool loop_has(struct render *r, struct tloop *l, size_t i);

#endif
