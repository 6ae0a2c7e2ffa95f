/* expr.c: expressions, and the build that holds them and the rules.
 *
 * Expressions are small immutable nodes in the build's arena; the makers simplify as they go (nothing in a sequence is
 * nothing, empty alternatives fold), so that what a schema leaves impossible vanishes by itself.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_int.h"

/* --- the build --- */

#define WORK_BETWEEN_QUESTIONS ((size_t)1 << 16) /* a millisecond or less */

void build_spend(struct build *b, size_t work, const char *what)
{
    b->work += work;
    if (b->work > BUILD_MAX_TOTAL_WORK)
        build_fail(b, MB_TOO_LARGE, "the grammar takes too long to compile%s%s%s", what ? " (at " : "", what ? what : "", what ? ")" : "");
    if (!b->stopped || b->work - b->work_asked < WORK_BETWEEN_QUESTIONS) return;
    b->work_asked = b->work;
    if (b->stopped(b->ctx)) build_fail(b, MB_CANCELLED, "the grammar is not wanted any more");
}

mb_status build_init(struct build *b, struct grammar_vocab *v, bool strict, mb_error *err)
{
    memset(b, 0, sizeof *b);
    arena_init(&b->a, BUILD_MAX_BYTES);
    b->vocab = v;
    b->strict = strict;
    b->err = err;
    b->counters = true;
    b->rule_json_string = b->rule_json_char = b->rule_json_number = b->rule_json_integer = -1;
    b->rule_json_value = b->rule_json_object = b->rule_json_indent = b->rule_key_rest = -1;
    return MB_OK;
}

void build_free(struct build *b)
{
    arena_free(&b->a);
}

mb_status build_fail(struct build *b, mb_status code, const char *fmt, ...)
{
    if (b->status != MB_OK) return b->status;
    char text[sizeof b->err->text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    b->status = code;
    return mb_fail(b->err, code, "%s", text);
}

static mb_status no_room(struct build *b)
{
    if (b->a.used_bytes > BUILD_MAX_BYTES / 2)
        return build_fail(b, MB_TOO_LARGE, "the grammar needs more than %d MiB to compile", (int)(BUILD_MAX_BYTES >> 20));
    return build_fail(b, MB_NO_MEMORY, "no memory for compiling a grammar");
}

void *build_alloc(struct build *b, size_t n, size_t size)
{
    if (b->status != MB_OK) return NULL;
    void *p = arena_alloc_array(&b->a, n ? n : 1, size);
    if (!p) no_room(b);
    return p;
}

void *build_grow(struct build *b, void *items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return items;
    size_t want = *cap ? *cap * 2 : 8;
    void *p = build_alloc(b, want, size);
    if (!p) return NULL;
    if (n) memcpy(p, items, n * size);
    *cap = want;
    return p;
}

int32_t build_rule_new(struct build *b, const char *name)
{
    if (b->n_rules >= BUILD_MAX_RULES) {
        build_fail(b, MB_TOO_LARGE, "the grammar needs more than %d rules", BUILD_MAX_RULES);
        return -1;
    }
    struct build_rule *r = build_grow(b, b->rules, b->n_rules, &b->cap_rules, sizeof *r);
    if (!r) return -1;
    b->rules = r;
    b->rules[b->n_rules] = (struct build_rule){ .name = name };
    return (int32_t)b->n_rules++;
}

int32_t build_rule_of(struct build *b, const char *name, struct expr *body)
{
    int32_t i = build_rule_new(b, name);
    if (i >= 0) b->rules[i].body = body;
    return i;
}

void build_unenforced(struct build *b, const char *keyword, const char *path, const char *why)
{
    if (b->strict) {
        build_fail(b, MB_UNSUPPORTED, "%s: %s cannot be enforced: %s", path, keyword, why);
        return;
    }
    struct unenforced_list *l = &b->unenforced;
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->items[i].keyword, keyword) && !strcmp(l->items[i].path, path)) return;
    struct grammar_unenforced *items = build_grow(b, l->items, l->n, &l->cap, sizeof *items);
    if (!items) return;
    l->items = items;
    struct grammar_unenforced u = { arena_strdup(&b->a, keyword), arena_strdup(&b->a, path), arena_strdup(&b->a, why) };
    if (!u.keyword || !u.path || !u.why) no_room(b);
    else l->items[l->n++] = u;
}

/* --- expressions --- */

static struct expr *expr_new(struct build *b, enum expr_kind kind)
{
    struct expr *x = build_alloc(b, 1, sizeof *x);
    if (x) x->kind = kind;
    return x;
}

struct expr *expr_nothing(struct build *b)
{
    return expr_new(b, EX_NOTHING);
}

struct expr *expr_empty(struct build *b)
{
    return expr_new(b, EX_EMPTY);
}

struct expr *expr_bytes(struct build *b, const char *s, size_t len)
{
    if (!len) return expr_empty(b);
    struct expr *x = expr_new(b, EX_BYTES);
    if (!x) return NULL;
    char *copy = build_alloc(b, len, 1);
    if (!copy) return NULL;
    memcpy(copy, s, len);
    x->bytes = copy;
    x->len = len;
    x->size = len < UINT32_MAX / 2 ? (uint32_t)len : UINT32_MAX / 2;
    return x;
}

struct expr *expr_lit(struct build *b, const char *s)
{
    return expr_bytes(b, s, strlen(s));
}

struct expr *expr_class(struct build *b, const struct cset *set, enum text_form form)
{
    if (!set->n) return expr_nothing(b);
    struct expr *x = expr_new(b, EX_CLASS);
    if (!x) return NULL;
    x->set = *set;
    x->form = form;
    x->size = 2 + (set->n < 1000 ? (uint32_t)set->n / 4 : 250);
    return x;
}

static uint32_t add_sizes(uint32_t x, uint32_t y)
{
    return x > UINT32_MAX / 2 - (y < UINT32_MAX / 2 ? y : UINT32_MAX / 2 - 1) ? UINT32_MAX / 2 : x + y;
}

void expr_list_add(struct build *b, struct expr_list *l, struct expr *x)
{
    if (!x) return;
    struct expr **items = build_grow(b, l->items, l->n, &l->cap, sizeof *items);
    if (!items) return;
    l->items = items;
    l->items[l->n++] = x;
}

static struct expr *of_list(struct build *b, enum expr_kind kind, const struct expr_list *l)
{
    if (l->n == 1) return l->items[0];
    struct expr *x = expr_new(b, kind);
    if (!x) return NULL;
    x->items = l->items;
    x->len = l->n;
    for (size_t i = 0; i < l->n; i++) x->size = add_sizes(x->size, l->items[i]->size);
    return x;
}

struct expr *expr_seq_list(struct build *b, const struct expr_list *l)
{
    struct expr_list kept = { 0 };
    for (size_t i = 0; i < l->n; i++) {
        if (l->items[i]->kind == EX_NOTHING) return l->items[i];
        if (l->items[i]->kind != EX_EMPTY) expr_list_add(b, &kept, l->items[i]);
    }
    if (b->status != MB_OK) return NULL;
    return kept.n ? of_list(b, EX_SEQ, &kept) : expr_empty(b);
}

/* --- many texts at once --- */

enum { MANY_TEXTS = 16 };

static bool all_texts(const struct expr_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->items[i]->kind != EX_BYTES) return false;
    return l->n > MANY_TEXTS;
}

static int by_bytes(const void *x, const void *y)
{
    const struct expr *a = *(struct expr *const *)x, *b = *(struct expr *const *)y;
    int c = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);
    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

/* The states below the texts [first, end), which agree in their first `at` bytes. Breadth first, with the spans as the
 * queue: a state's edges then lie together. */
struct text_group {
    size_t first, end, at;
};

static void tree_state(struct dfa *d, struct expr *const *texts, struct text_group *spans, uint32_t i)
{
    struct text_group x = spans[i];
    struct dfa_state *s = &d->states[i];
    *s = (struct dfa_state){ .edge0 = d->n_edges };
    while (x.first < x.end && texts[x.first]->len == x.at) s->accept = true, x.first++;
    while (x.first < x.end) {
        uint8_t byte = (uint8_t)texts[x.first]->bytes[x.at];
        size_t k = x.first;
        while (k < x.end && (uint8_t)texts[k]->bytes[x.at] == byte) k++;
        spans[d->n_states] = (struct text_group){ x.first, k, x.at + 1 };
        d->edges[d->n_edges++] = (struct dfa_edge){ byte, byte, d->n_states++ };
        x.first = k;
    }
    s->n_edges = d->n_edges - s->edge0;
}

/* An enum of thousands is a tree of bytes at once; the general way would look at all of them at every step. */
static struct expr *texts_expr(struct build *b, const struct expr_list *l)
{
    size_t total = 1;
    for (size_t i = 0; i < l->n; i++) total += l->items[i]->len;
    struct expr **texts = build_alloc(b, l->n, sizeof *texts);
    struct text_group *spans = build_alloc(b, total, sizeof *spans);
    struct dfa d = { .states = build_alloc(b, total, sizeof *d.states), .edges = build_alloc(b, total, sizeof *d.edges), .n_states = 1 };
    if (b->status != MB_OK) return NULL;
    memcpy(texts, l->items, l->n * sizeof *texts);
    qsort(texts, l->n, sizeof *texts, by_bytes);
    spans[0] = (struct text_group){ 0, l->n, 0 };
    for (uint32_t i = 0; i < d.n_states; i++) tree_state(&d, texts, spans, i);
    return expr_dfa(b, dfa_trim(b, &d, NULL));
}

struct expr *expr_alt_list(struct build *b, const struct expr_list *l)
{
    struct expr_list kept = { 0 };
    for (size_t i = 0; i < l->n; i++)
        if (l->items[i]->kind != EX_NOTHING) expr_list_add(b, &kept, l->items[i]);
    if (b->status != MB_OK) return NULL;
    if (all_texts(&kept)) return texts_expr(b, &kept);
    return kept.n ? of_list(b, EX_ALT, &kept) : expr_nothing(b);
}

struct expr *expr_seq2(struct build *b, struct expr *x, struct expr *y)
{
    struct expr_list l = { 0 };
    expr_list_add(b, &l, x);
    expr_list_add(b, &l, y);
    return b->status == MB_OK ? expr_seq_list(b, &l) : NULL;
}

struct expr *expr_seq(struct build *b, int n, ...)
{
    struct expr_list l = { 0 };
    va_list ap;
    va_start(ap, n);
    for (int i = 0; i < n; i++) expr_list_add(b, &l, va_arg(ap, struct expr *));
    va_end(ap);
    return b->status == MB_OK ? expr_seq_list(b, &l) : NULL;
}

struct expr *expr_alt2(struct build *b, struct expr *x, struct expr *y)
{
    struct expr_list l = { 0 };
    expr_list_add(b, &l, x);
    expr_list_add(b, &l, y);
    return b->status == MB_OK ? expr_alt_list(b, &l) : NULL;
}

/* x repeated is written out while it takes fewer states than this. */
enum { REPEAT_WRITTEN_OUT = 300 };

/* A rule that calls x and counts. */
static struct expr *repeat_rule(struct build *b, struct expr *x, uint32_t lo, uint32_t hi)
{
    int32_t body = x->kind == EX_RULE ? x->id : build_rule_of(b, NULL, x);
    int32_t rule = build_rule_new(b, NULL);
    if (rule < 0 || body < 0) return NULL;
    b->rules[rule].is_repeat = true;
    b->rules[rule].body_rule = body;
    b->rules[rule].lo = lo;
    b->rules[rule].hi = hi;
    return expr_rule(b, rule);
}

struct expr *expr_repeat(struct build *b, struct expr *x, uint32_t lo, uint32_t hi)
{
    if (!x) return NULL;
    if (x->kind == EX_NOTHING) return lo ? x : expr_empty(b);
    if (x->kind == EX_EMPTY || hi == 0) return expr_empty(b);
    if (lo == 1 && hi == 1) return x;
    uint32_t times = hi == REPEAT_INF ? lo + 1 : hi;
    uint64_t size = (uint64_t)times * (x->size + 1);
    if (b->counters && times > 3 && size > REPEAT_WRITTEN_OUT) return repeat_rule(b, x, lo, hi);
    struct expr *r = expr_new(b, EX_REPEAT);
    struct expr **items = build_alloc(b, 1, sizeof *items);
    if (!r || !items) return NULL;
    items[0] = x;
    r->items = items;
    r->lo = lo;
    r->hi = hi;
    r->size = size < UINT32_MAX / 2 ? (uint32_t)size : UINT32_MAX / 2;
    return r;
}

struct expr *expr_counted(struct build *b, struct expr *x, uint32_t lo, uint32_t hi)
{
    bool small = hi != REPEAT_INF ? hi <= 3 : lo <= 1;
    if (!x || small || x->kind == EX_NOTHING || x->kind == EX_EMPTY) return expr_repeat(b, x, lo, hi);
    return repeat_rule(b, x, lo, hi);
}

struct expr *expr_opt(struct build *b, struct expr *x)
{
    return expr_repeat(b, x, 0, 1);
}

static struct expr *with_id(struct build *b, enum expr_kind kind, int32_t id)
{
    if (id < 0) return NULL;
    struct expr *x = expr_new(b, kind);
    if (!x) return NULL;
    x->id = id;
    x->size = 1;
    return x;
}

struct expr *expr_rule(struct build *b, int32_t rule)
{
    return with_id(b, EX_RULE, rule);
}

struct expr *expr_token(struct build *b, int32_t id)
{
    return with_id(b, EX_TOKEN, id);
}

struct expr *expr_dfa(struct build *b, const struct dfa *d)
{
    if (!d) return NULL;
    if (dfa_is_empty(d)) return expr_nothing(b);
    struct expr *x = expr_new(b, EX_DFA);
    if (!x) return NULL;
    x->dfa = d;
    x->size = d->n_states;
    return x;
}

struct expr *expr_mark(struct build *b, enum expr_kind bol_or_eol)
{
    return expr_new(b, bol_or_eol);
}

void graph_edge_add(struct build *b, struct graph *g, uint32_t from, uint32_t to, struct expr *label)
{
    if (!label || label->kind == EX_NOTHING) return;
    struct graph_edge *edges = build_grow(b, g->edges, g->n_edges, &g->cap_edges, sizeof *edges);
    if (!edges) return;
    g->edges = edges;
    g->edges[g->n_edges++] = (struct graph_edge){ from, to, label };
    g->size = add_sizes(g->size, label->size);
}

struct expr *expr_graph(struct build *b, const struct graph *g)
{
    struct expr *x = expr_new(b, EX_GRAPH);
    struct graph *copy = build_alloc(b, 1, sizeof *copy);
    if (!x || !copy) return NULL;
    *copy = *g;
    x->graph = copy;
    x->size = add_sizes(g->size, g->n_nodes);
    return x;
}
