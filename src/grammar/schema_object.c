/* schema_object.c: an object.
 *
 * Named properties come in the order in which the schemas name them, each at most once, optional ones may be left out;
 * then come the additional ones. That is a graph: a node (i, n) stands before property i with n properties written (n
 * counts to 1 for the comma, further only when minProperties or maxProperties count).
 * The value of a property must satisfy every schema that speaks of its name: properties, patternProperties that match,
 * and additionalProperties or unevaluatedProperties of a schema that does not otherwise know it.
 * Additional keys are any text but the named ones. The tree of names is written out, and wherever the text has left it,
 * one shared rule goes on; so the tables that local.c learns are shared, too.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_int.h"

enum { MAX_PATTERNS = 4, MAX_NODES = 60000 };

struct property {
    const char *key;
    size_t len;
    bool required, forbidden;
    struct expr *pair; /* "key": value */
};
struct pattern {
    json_t *owner, *value; /* the schema whose patternProperties it is, and what it asks */
    const char *text;
    size_t len;
    struct dfa *dfa;
};
struct object {
    struct sctx *c;
    const struct conj *j;
    struct property *props;
    size_t n_props, cap_props;
    struct pattern *patterns;
    size_t n_patterns, cap_patterns;
    int64_t lo, hi; /* hi -1 none */
    struct expr *extra; /* an additional pair, EX_NOTHING none */
};

struct list {
    json_t **items;
    size_t n, cap;
};

static void list_add(struct build *b, struct list *l, json_t *s)
{
    json_t **items = build_grow(b, l->items, l->n, &l->cap, sizeof *items);
    if (!items) return;
    l->items = items;
    l->items[l->n++] = s;
}

/* --- who knows a name --- */

static bool pattern_matches(struct object *o, size_t i, const char *key, size_t len)
{
    struct buf form;
    buf_init(&form, 0);
    json_text_form(&form, key, len);
    if (form.failed != MB_OK) build_fail(o->c->b, form.failed, "no memory for a schema");
    bool r = form.failed == MB_OK && dfa_matches(o->patterns[i].dfa, form.data ? form.data : "", form.len);
    buf_free(&form);
    return r;
}

/* matched: bits of o->patterns that the name matches. */
static bool knows(struct object *o, const json_t *s, const char *key, size_t len, unsigned matched)
{
    if (key && object_get(json_object_get(s, "properties"), key, len)) return true;
    for (size_t i = 0; i < o->n_patterns; i++)
        if (o->patterns[i].owner == s && matched >> i & 1) return true;
    return false;
}

static bool is_below(const struct conj *j, int node, int ancestor)
{
    for (int p = node; p >= 0; p = j->nodes[p].parent)
        if (p == ancestor) return true;
    return false;
}

/* Has anything in place below node i evaluated the name? */
static bool evaluated(struct object *o, size_t i, const char *key, size_t len, unsigned matched)
{
    for (size_t k = 0; k < o->j->n; k++) {
        const json_t *s = o->j->nodes[k].schema;
        if (!is_below(o->j, (int)k, (int)i) || (o->j->nodes[k].silent && k != i)) continue;
        if (knows(o, s, key, len, matched) || json_object_get(s, "additionalProperties")) return true;
        if (k != i && json_object_get(s, "unevaluatedProperties")) return true;
    }
    return false;
}

/* Every schema that a value under this name must satisfy. key NULL: a name that no schema lists. */
static void schemas_for(struct object *o, const char *key, size_t len, unsigned matched, struct list *out)
{
    struct build *b = o->c->b;
    for (size_t i = 0; i < o->j->n && b->status == MB_OK; i++) {
        json_t *s = o->j->nodes[i].schema, *k;
        if (key && (k = object_get(json_object_get(s, "properties"), key, len))) list_add(b, out, k);
        for (size_t p = 0; p < o->n_patterns; p++)
            if (o->patterns[p].owner == s && matched >> p & 1) list_add(b, out, o->patterns[p].value);
        if ((k = json_object_get(s, "additionalProperties")) && !knows(o, s, key, len, matched)) list_add(b, out, k);
        if ((k = json_object_get(s, "unevaluatedProperties")) && !evaluated(o, i, key, len, matched)) list_add(b, out, k);
    }
}

/* --- names --- */

static struct property *property_of(struct object *o, const char *key, size_t len)
{
    for (size_t i = 0; i < o->n_props; i++)
        if (o->props[i].len == len && !memcmp(o->props[i].key, key, len)) return &o->props[i];
    struct property *p = build_grow(o->c->b, o->props, o->n_props, &o->cap_props, sizeof *p);
    if (!p) return NULL;
    o->props = p;
    o->props[o->n_props] = (struct property){ .key = key, .len = len };
    return &o->props[o->n_props++];
}

static void collect_names(struct object *o)
{
    for (size_t i = 0; i < o->j->n && o->c->b->status == MB_OK; i++) {
        json_t *map = json_object_get(o->j->nodes[i].schema, "properties");
        for (void *it = map ? json_object_iter(map) : NULL; it; it = json_object_iter_next(map, it))
            property_of(o, json_object_iter_key(it), json_object_iter_key_len(it));
    }
    for (size_t i = 0; i < o->j->n && o->c->b->status == MB_OK; i++) {
        const json_t *list = json_object_get(o->j->nodes[i].schema, "required");
        for (size_t k = 0; k < json_array_size(list); k++) {
            const json_t *name = json_array_get(list, k);
            struct property *p = property_of(o, json_string_value(name), json_string_length(name));
            if (p) p->required = true;
        }
    }
}

static void collect_patterns(struct object *o)
{
    struct build *b = o->c->b;
    for (size_t i = 0; i < o->j->n && b->status == MB_OK; i++) {
        json_t *s = o->j->nodes[i].schema, *map = json_object_get(s, "patternProperties");
        for (void *it = map ? json_object_iter(map) : NULL; it && b->status == MB_OK; it = json_object_iter_next(map, it)) {
            if (o->n_patterns == MAX_PATTERNS) {
                schema_unenforced(o->c, s, "patternProperties", "at most 4 patterns at one object");
                return;
            }
            const char *text = json_object_iter_key(it);
            size_t len = json_object_iter_key_len(it);
            struct dfa *d = schema_pattern(o->c, s, text, len);
            struct pattern *p = d ? build_grow(b, o->patterns, o->n_patterns, &o->cap_patterns, sizeof *p) : NULL;
            if (!p) continue;
            o->patterns = p;
            o->patterns[o->n_patterns++] = (struct pattern){ s, json_object_iter_value(it), text, len, d };
        }
    }
}

static void collect_counts(struct object *o)
{
    o->hi = -1;
    for (size_t i = 0; i < o->j->n; i++) {
        const json_t *lo = json_object_get(o->j->nodes[i].schema, "minProperties");
        const json_t *hi = json_object_get(o->j->nodes[i].schema, "maxProperties");
        if (lo && count_of(lo) > o->lo) o->lo = count_of(lo);
        if (hi && (o->hi < 0 || count_of(hi) < o->hi)) o->hi = count_of(hi);
    }
}

/* More pairs are asked for than the named ones and one other, which are all that count: not enforced, unless there can be no more. */
static void check_counts(struct object *o)
{
    int64_t most = 1;
    for (size_t i = 0; i < o->n_props; i++) most += !o->props[i].forbidden;
    if (o->extra->kind == EX_NOTHING || o->lo <= most || (o->hi >= 0 && o->hi < o->lo)) return;
    for (size_t i = 0; i < o->j->n; i++) {
        const json_t *s = o->j->nodes[i].schema, *lo = json_object_get(s, "minProperties");
        if (lo && count_of(lo) == o->lo) {
            schema_unenforced(o->c, s, "minProperties", "keys that no schema names may come twice, so that one of them counts at most");
            break;
        }
    }
    o->lo = most;
}

/* propertyNames of the conjunction, for one name. */
static bool name_allowed(struct object *o, const char *key, size_t len)
{
    for (size_t i = 0; i < o->j->n; i++) {
        json_t *names = json_object_get(o->j->nodes[i].schema, "propertyNames");
        json_t *name = names ? schema_own(o->c, json_stringn(key, len)) : NULL;
        if (name && schema_excludes(o->c, names, name)) return false;
    }
    return true;
}

static struct expr *colon(struct build *b)
{
    return expr_seq2(b, expr_lit(b, ":"), expr_opt(b, expr_lit(b, " ")));
}

static struct expr *key_text(struct build *b, const char *key, size_t len)
{
    struct buf out;
    struct expr *x = NULL;
    buf_init(&out, GRAMMAR_MAX_TEXT * 2);
    buf_append_char(&out, '"');
    json_text_form(&out, key, len);
    buf_append_char(&out, '"');
    if (out.failed != MB_OK) build_fail(b, out.failed, "a property name is too large");
    else x = expr_bytes(b, out.data, out.len);
    buf_free(&out);
    return x;
}

static void make_pair(struct object *o, struct property *p)
{
    struct build *b = o->c->b;
    struct list schemas = { 0 };
    unsigned matched = 0;
    if (!name_allowed(o, p->key, p->len)) {
        p->forbidden = true;
        return;
    }
    for (size_t i = 0; i < o->n_patterns; i++)
        if (pattern_matches(o, i, p->key, p->len)) matched |= 1u << i;
    schemas_for(o, p->key, p->len, matched, &schemas);
    struct expr *value = b->status == MB_OK ? schema_value(o->c, schemas.items, schemas.n) : NULL;
    if (!value) return;
    p->forbidden = value->kind == EX_NOTHING;
    if (!p->forbidden) p->pair = expr_seq(b, 3, key_text(b, p->key, p->len), colon(b), value);
}

/* --- additional keys --- */

struct name_tree {
    struct build *b;
    struct str *forms; /* sorted texts in FORM_JSON */
    struct expr *rest; /* any characters, then the quote */
};

/* Expressions of the tree are per character of FORM_JSON: one class each, so that the texts stay whole characters. */
static size_t unit_length(struct str s, size_t at)
{
    unsigned char c = (unsigned char)s.ptr[at];
    if (c == '\\') return s.ptr[at + 1] == 'u' ? 6 : 2;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

static uint32_t unit_value(struct str s, size_t at)
{
    const unsigned char *p = (const unsigned char *)s.ptr + at;
    if (p[0] == '\\') {
        static const char names[] = "bfnrt\"\\", values[] = "\b\f\n\r\t\"\\";
        if (p[1] != 'u') return (uint32_t)(unsigned char)values[strchr(names, p[1]) - names];
        char hex[5] = { (char)p[2], (char)p[3], (char)p[4], (char)p[5], 0 };
        return (uint32_t)strtoul(hex, NULL, 16);
    }
    if (p[0] < 0x80) return p[0];
    if (p[0] < 0xE0) return (uint32_t)(p[0] & 31) << 6 | (p[1] & 63u);
    if (p[0] < 0xF0) return (uint32_t)(p[0] & 15) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return (uint32_t)(p[0] & 7) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
}

/* The graph of keys that are none of the names: a node per distinct beginning of a name. Names are sorted, so those
 * with one beginning are neighbours; the work list holds (first name, end, bytes consumed, node). */
struct span {
    size_t first, end, at;
    uint32_t node;
};

static void tree_node(struct name_tree *t, struct graph *g, struct span x, struct span *work, size_t *n_work)
{
    struct build *b = t->b;
    struct cset others = { 0 };
    bool is_name = t->forms[x.first].len == x.at;
    size_t i = x.first + is_name;
    while (i < x.end && b->status == MB_OK) {
        size_t len = unit_length(t->forms[i], x.at), k = i;
        while (k < x.end && t->forms[k].len >= x.at + len && !memcmp(t->forms[k].ptr + x.at, t->forms[i].ptr + x.at, len)) k++;
        uint32_t child = g->n_nodes++;
        graph_edge_add(b, g, x.node, child, expr_bytes(b, t->forms[i].ptr + x.at, len));
        uint32_t cp = unit_value(t->forms[i], x.at);
        cset_add(b, &others, cp, cp);
        work[(*n_work)++] = (struct span){ i, k, x.at + len, child };
        i = k;
    }
    cset_normalize(&others);
    cset_negate(b, &others);
    if (b->status != MB_OK) return;
    graph_edge_add(b, g, x.node, 1, expr_seq2(b, expr_class(b, &others, FORM_JSON), t->rest));
    if (!is_name) graph_edge_add(b, g, x.node, 1, expr_lit(b, "\""));
}

static int by_text(const void *x, const void *y)
{
    const struct str *a = x, *b = y;
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->ptr, b->ptr, n) : 0;
    return c ? c : a->len < b->len ? -1 : a->len > b->len;
}

static struct expr *key_rest(struct build *b)
{
    struct cset all = { 0 };
    cset_add(b, &all, 0, 0x10FFFF);
    cset_normalize(&all);
    if (b->rule_key_rest < 0 && b->status == MB_OK)
        b->rule_key_rest = build_rule_of(b, "key", expr_seq2(b, expr_repeat(b, expr_class(b, &all, FORM_JSON), 0, REPEAT_INF),
                                                             expr_lit(b, "\"")));
    return expr_rule(b, b->rule_key_rest);
}

/* A quoted key that is none of the names. */
static struct expr *other_key(struct object *o)
{
    struct build *b = o->c->b;
    struct name_tree t = { b, build_alloc(b, o->n_props, sizeof(struct str)), key_rest(b) };
    size_t total = 1, n = 0, n_work = 0;
    for (size_t i = 0; i < o->n_props && t.forms; i++) {
        struct buf form;
        buf_init(&form, GRAMMAR_MAX_TEXT * 2);
        json_text_form(&form, o->props[i].key, o->props[i].len);
        const char *copy = form.failed == MB_OK ? arena_strndup(&b->a, form.data ? form.data : "", form.len) : NULL;
        if (!copy) build_fail(b, MB_NO_MEMORY, "no memory for a schema");
        else t.forms[n++] = (struct str){ copy, form.len };
        total += form.len + 1;
        buf_free(&form);
    }
    struct span *work = build_alloc(b, total, sizeof *work);
    struct graph g = { .n_nodes = 2 };
    if (!work || b->status != MB_OK) return NULL;
    qsort(t.forms, n, sizeof *t.forms, by_text);
    work[n_work++] = (struct span){ 0, n, 0, 0 };
    while (n_work && b->status == MB_OK) {
        struct span x = work[--n_work];
        tree_node(&t, &g, x, work, &n_work);
    }
    /* a rule of its own, so that the shared rule is its last call: see neighbour() in local.c */
    return expr_rule(b, build_rule_of(b, "key", expr_seq2(b, expr_lit(b, "\""), expr_graph(b, &g))));
}

/* The texts that propertyNames asks for; NULL: anything (or a failure). */
static struct dfa *names_dfa(struct object *o)
{
    struct build *b = o->c->b;
    struct list schemas = { 0 };
    for (size_t i = 0; i < o->j->n; i++) {
        json_t *k = json_object_get(o->j->nodes[i].schema, "propertyNames");
        if (k && !json_is_true(k)) list_add(b, &schemas, k);
    }
    if (!schemas.n || b->status != MB_OK) return NULL;
    return schema_names_dfa(o->c, schemas.items, schemas.n);
}

/* Keys of one class: they match exactly these patterns, none of the names, and propertyNames. */
static struct expr *class_key(struct object *o, unsigned matched, struct dfa *names)
{
    struct build *b = o->c->b;
    struct dfa *d = names ? names : json_any_string_dfa(b);
    for (size_t i = 0; i < o->n_patterns && d; i++)
        d = dfa_product(b, d, o->patterns[i].dfa, matched >> i & 1 ? DFA_AND : DFA_MINUS);
    for (size_t i = 0; i < o->n_props && d; i++)
        d = dfa_product(b, d, json_text_dfa(b, o->props[i].key, o->props[i].len), DFA_MINUS);
    struct expr *x = expr_dfa(b, d);
    return x ? expr_seq(b, 3, expr_lit(b, "\""), x, expr_lit(b, "\"")) : NULL;
}

static struct expr *extra_pair(struct object *o, unsigned matched, struct dfa *names)
{
    struct build *b = o->c->b;
    struct list schemas = { 0 };
    schemas_for(o, NULL, 0, matched, &schemas);
    struct expr *value = b->status == MB_OK ? schema_value(o->c, schemas.items, schemas.n) : NULL;
    if (!value || value->kind == EX_NOTHING) return value;
    struct expr *key;
    if (names || o->n_patterns) key = class_key(o, matched, names);
    else key = o->n_props ? other_key(o) : json_string_rule(b);
    return key ? expr_seq(b, 3, key, colon(b), value) : NULL;
}

/* One pair that no schema names, as a rule; EX_NOTHING when there can be none. */
static struct expr *make_extra(struct object *o)
{
    struct build *b = o->c->b;
    struct expr_list l = { 0 };
    struct dfa *names = names_dfa(o);
    for (unsigned matched = 0; matched < 1u << o->n_patterns && b->status == MB_OK; matched++)
        expr_list_add(b, &l, extra_pair(o, matched, names));
    struct expr *x = b->status == MB_OK ? expr_alt_list(b, &l) : NULL;
    return !x || x->kind == EX_NOTHING ? x : expr_rule(b, build_rule_of(b, "additional property", x));
}

/* --- the graph --- */

struct layout {
    uint32_t n_counts; /* n runs over 0 .. n_counts - 1, the last stands for more */
    uint32_t base;     /* node (i, n) = base + i * n_counts + n */
};

static uint32_t node_of(const struct layout *y, size_t i, uint32_t n)
{
    return y->base + (uint32_t)i * y->n_counts + (n < y->n_counts ? n : y->n_counts - 1);
}

/* Behind the named properties with n written: the end, or additional ones. They may repeat a key, so at most one of
 * them counts for minProperties. */
static void tail_edges(struct object *o, struct graph *g, const struct layout *y, uint32_t n, struct expr *comma)
{
    struct build *b = o->c->b;
    uint32_t from = node_of(y, o->n_props, n);
    struct expr *ws = json_ws(b), *close = n ? ws : expr_empty(b);
    if ((int64_t)n >= o->lo) graph_edge_add(b, g, from, 1, close);
    if (o->extra->kind == EX_NOTHING || (int64_t)n + 1 < o->lo) return;
    if (o->hi >= 0 && (int64_t)n + 1 > o->hi) return;
    uint32_t more = o->hi < 0 ? REPEAT_INF : o->hi - n - 1 > REPEAT_MAX ? REPEAT_INF : (uint32_t)(o->hi - n - 1);
    struct expr *first = n ? expr_seq2(b, comma, o->extra) : o->extra;
    graph_edge_add(b, g, from, 1, expr_seq(b, 3, first, expr_counted(b, expr_seq2(b, comma, o->extra), 0, more), ws));
}

static struct expr *body(struct object *o)
{
    struct build *b = o->c->b;
    bool counts = o->lo > 1 || o->hi >= 0;
    struct layout y = { .n_counts = counts ? (uint32_t)o->n_props + 1 : 2, .base = 2 };
    struct graph g = { 0 };
    struct expr *comma = expr_seq2(b, expr_lit(b, ","), json_ws(b));
    if ((uint64_t)(o->n_props + 1) * y.n_counts > MAX_NODES) {
        build_fail(b, MB_TOO_LARGE, "%s: minProperties and maxProperties with so many properties", o->c->at);
        return NULL;
    }
    g.n_nodes = y.base + (uint32_t)(o->n_props + 1) * y.n_counts;
    graph_edge_add(b, &g, 0, node_of(&y, 0, 0), expr_empty(b));
    for (size_t i = 0; i < o->n_props && b->status == MB_OK; i++)
        for (uint32_t n = 0; n < y.n_counts && n <= i; n++) {
            const struct property *p = &o->props[i];
            bool room = o->hi < 0 || (int64_t)n < o->hi;
            if (!p->required) graph_edge_add(b, &g, node_of(&y, i, n), node_of(&y, i + 1, n), expr_empty(b));
            if (!p->forbidden && room)
                graph_edge_add(b, &g, node_of(&y, i, n), node_of(&y, i + 1, n + 1), n ? expr_seq2(b, comma, p->pair) : p->pair);
        }
    for (uint32_t n = 0; n < y.n_counts && b->status == MB_OK; n++)
        if (n <= o->n_props) tail_edges(o, &g, &y, n, comma);
    return expr_seq(b, 4, expr_lit(b, "{"), json_ws(b), expr_graph(b, &g), expr_lit(b, "}"));
}

static bool says_something(const struct conj *j)
{
    static const char *const keys[] = { "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                                        "minProperties", "maxProperties", "unevaluatedProperties" };
    for (size_t i = 0; i < j->n; i++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (json_object_get(j->nodes[i].schema, keys[k])) return true;
    return false;
}

struct expr *schema_object(struct sctx *c, const struct conj *j)
{
    if (!says_something(j)) return json_object_rule(c->b);
    struct object o = { .c = c, .j = j };
    collect_names(&o);
    collect_patterns(&o);
    collect_counts(&o);
    for (size_t i = 0; i < o.n_props && c->b->status == MB_OK; i++) make_pair(&o, &o.props[i]);
    if (c->b->status != MB_OK) return NULL;
    for (size_t i = 0; i < o.n_props; i++)
        if (o.props[i].forbidden && o.props[i].required) return expr_nothing(c->b);
    o.extra = make_extra(&o);
    if (!o.extra) return NULL;
    check_counts(&o);
    return c->b->status == MB_OK ? body(&o) : NULL;
}
