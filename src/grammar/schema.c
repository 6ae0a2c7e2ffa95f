/* schema.c: a value that satisfies a list of schemas.
 *
 * What must hold together is gathered into a conjunction: the schemas themselves, what their $ref and allOf bring in
 * (in place), and their choices (anyOf, oneOf, if, dependent...). Each choice is decided in turn, which gives a union
 * of plain conjunctions; one such is a union over the JSON types that it allows.
 * The rule of a list of schemas is remembered by the list: a schema that is met again while it is being compiled is a
 * call of its rule, which is all that recursion needs. A schema that leads in place to itself says nothing that could
 * ever be decided: refused. Deep chains are queued, so the C stack stays small.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_int.h"

enum { MAX_BRANCHES = 1024, MAX_IN_PLACE = 400, MAX_NESTED = 24, INLINE_SIZE = 12, MAX_ONE_OF = 64 };

json_t *schema_own(struct sctx *c, json_t *made)
{
    if (!made) {
        build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
        return NULL;
    }
    if (c->n_owned == c->cap_owned) {
        size_t want = c->cap_owned ? c->cap_owned * 2 : 64;
        json_t **p = mb_realloc(c->owned, want * sizeof *p);
        if (!p) {
            json_decref(made);
            build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
            return NULL;
        }
        c->owned = p;
        c->cap_owned = want;
    }
    return c->owned[c->n_owned++] = made;
}

bool schema_is_false(const json_t *s)
{
    return json_is_false(s);
}

void schema_unenforced(struct sctx *c, const json_t *schema, const char *keyword, const char *why)
{
    build_unenforced(c->b, keyword, schema_path(c, schema), why);
}

struct dfa *schema_pattern(struct sctx *c, const json_t *schema, const char *pattern, size_t len)
{
    char *what = arena_printf(&c->b->a, "%.300s: pattern", schema_path(c, schema));
    struct dfa *d = what ? regex_dfa(c->b, pattern, len, true, FORM_JSON, what) : NULL;
    if (!d && !c->b->strict && (c->b->status == MB_UNSUPPORTED || c->b->status == MB_TOO_LARGE)) {
        c->b->status = MB_OK;
        schema_unenforced(c, schema, "pattern", c->b->err->text);
    }
    return d;
}

/* --- gathering --- */

static int types_of(const struct conj *j)
{
    int types = T_ALL;
    for (size_t i = 0; i < j->n; i++) {
        const json_t *t = json_object_get(j->nodes[i].schema, "type");
        if (t) types &= schema_types(t);
    }
    return types;
}

static bool already_there(struct sctx *c, struct conj *j, const json_t *schema, int parent)
{
    int depth = 0;
    for (int p = parent; p >= 0; p = j->nodes[p].parent, depth++) {
        if (j->nodes[p].schema != schema && depth < MAX_IN_PLACE) continue;
        build_fail(c->b, MB_INVALID, "%s: a cycle of references with no content between", schema_path(c, schema));
        return true;
    }
    for (size_t i = 0; i < j->n; i++)
        if (j->nodes[i].schema == schema) return true;
    return false;
}

static struct choice *choice_new(struct sctx *c, struct conj *j, size_t n, int parent, bool silent)
{
    struct choice *p = build_grow(c->b, j->choices, j->n_choices, &j->cap_choices, sizeof *p);
    if (!p) return NULL;
    j->choices = p;
    struct choice *x = &j->choices[j->n_choices];
    *x = (struct choice){ build_alloc(c->b, n, sizeof(json_t *)), build_alloc(c->b, n, sizeof(json_t *)), n, parent, silent, -1, false };
    if (!x->branches || !x->extra) return NULL;
    j->n_choices++;
    return x;
}

static void gather(struct sctx *c, struct conj *j, json_t *schema, int parent, bool silent);

enum { MAX_SUBSETS = 4 };

/* Where unevaluated... looks on, each set of branches that may hold together is a branch of its own. */
static void gather_subsets(struct sctx *c, struct conj *j, json_t *list, int node, bool silent)
{
    size_t n = json_array_size(list);
    struct choice *x = choice_new(c, j, ((size_t)1 << n) - 1, node, silent);
    for (size_t set = 1; x && set < (size_t)1 << n && c->b->status == MB_OK; set++) {
        json_t *all = json_array();
        for (size_t i = 0; all && i < n; i++)
            if ((set >> i & 1) && json_array_append(all, json_array_get(list, i)) != 0)
                build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
        x->branches[set - 1] = schema_own(c, json_pack("{s:o}", "allOf", all));
    }
}

static void gather_any(struct sctx *c, struct conj *j, json_t *list, int node, bool silent)
{
    if (c->has_unevaluated && json_array_size(list) <= MAX_SUBSETS) {
        gather_subsets(c, j, list, node, silent);
        return;
    }
    struct choice *x = choice_new(c, j, json_array_size(list), node, silent);
    for (size_t i = 0; x && i < x->n; i++) x->branches[i] = json_array_get(list, i);
}

/* What else must hold in branch i so that no other branch does: not of those that could. NULL: nothing. */
static json_t *others_fail(struct sctx *c, json_t *schema, json_t *list, size_t i, int types, bool *cannot)
{
    json_t *all = NULL;
    for (size_t k = 0; k < json_array_size(list) && !*cannot && c->b->status == MB_OK; k++) {
        if (k == i || schema_disjoint(c, json_array_get(list, i), json_array_get(list, k), types, 0)) continue;
        json_t *opposite = json_array_size(list) <= MAX_ONE_OF ? schema_negate(c, json_array_get(list, k)) : NULL;
        if (!opposite) {
            *cannot = true;
            break;
        }
        if (!all && !(all = schema_own(c, json_array()))) return NULL;
        if (json_array_append(all, opposite) != 0) build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
    }
    if (*cannot && c->b->status == MB_OK)
        schema_unenforced(c, schema, "oneOf", "its branches may hold at the same time and their opposites cannot be built; it is taken as anyOf");
    return all && !*cannot ? schema_own(c, json_pack("{s:O}", "allOf", all)) : NULL;
}

static void gather_one(struct sctx *c, struct conj *j, json_t *schema, json_t *list, int node, bool silent)
{
    size_t n = json_array_size(list);
    bool cannot = false;
    int types = types_of(j);
    struct choice *x = choice_new(c, j, n, node, silent);
    if (!x) return;
    json_t **branches = x->branches, **extra = x->extra; /* the list of choices does not move: nothing is gathered here */
    for (size_t i = 0; i < n; i++) {
        branches[i] = json_array_get(list, i);
        extra[i] = cannot ? NULL : others_fail(c, schema, list, i, types, &cannot);
    }
    x->silent_extra = true;
    if (cannot) memset(extra, 0, n * sizeof *extra);
}

static void gather_if(struct sctx *c, struct conj *j, json_t *schema, int node, bool silent)
{
    json_t *cond = json_object_get(schema, "if"), *yes = json_object_get(schema, "then"), *no = json_object_get(schema, "else");
    if (!yes && !no && !c->has_unevaluated) return;
    json_t *opposite = schema_negate(c, cond);
    if (!opposite) {
        if (c->b->status == MB_OK) schema_unenforced(c, schema, "if", "the opposite of its schema cannot be built");
        return;
    }
    struct choice *x = choice_new(c, j, 2, node, silent);
    if (!x) return;
    x->branches[0] = cond;
    x->extra[0] = yes;
    x->branches[1] = opposite;
    x->extra[1] = no;
    x->silent_branch = 1;
}

static void gather_not(struct sctx *c, struct conj *j, json_t *schema, json_t *inner, int node)
{
    json_t *opposite = schema_negate(c, inner);
    if (opposite) gather(c, j, opposite, node, true);
    else if (c->b->status == MB_OK) schema_unenforced(c, schema, "not", "the opposite of its schema cannot be built");
}

/* Either the key is missing, or it is there and more holds. */
static void gather_dependent(struct sctx *c, struct conj *j, json_t *map, int node, bool silent)
{
    for (void *it = json_object_iter(map); it && c->b->status == MB_OK; it = json_object_iter_next(map, it)) {
        const char *key = json_object_iter_key(it);
        size_t len = json_object_iter_key_len(it);
        json_t *more = json_object_iter_value(it), *missing = json_object(), *names = json_array();
        if (!missing || !names || json_object_setn_new(missing, key, len, json_false()) != 0 ||
            json_array_append_new(names, json_stringn(key, len)) != 0) {
            json_decref(missing);
            json_decref(names);
            build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
            return;
        }
        if (json_is_array(more) && json_array_extend(names, more) != 0) build_fail(c->b, MB_NO_MEMORY, "no memory for a schema");
        json_t *without = schema_own(c, json_pack("{s:o}", "properties", missing));
        json_t *with = schema_own(c, json_pack("{s:o}", "required", names));
        struct choice *x = without && with ? choice_new(c, j, 2, node, silent) : NULL;
        if (!x) return;
        x->branches[0] = without;
        x->branches[1] = with;
        x->extra[1] = json_is_array(more) ? NULL : more;
    }
}

static void gather_keywords(struct sctx *c, struct conj *j, json_t *s, int node, bool silent)
{
    json_t *k;
    if ((k = schema_ref_target(c, s))) gather(c, j, k, node, silent);
    if ((k = schema_dynamic_target(c, s))) gather(c, j, k, node, silent);
    k = json_object_get(s, "allOf");
    for (size_t i = 0; i < json_array_size(k); i++) gather(c, j, json_array_get(k, i), node, silent);
    if ((k = json_object_get(s, "anyOf"))) gather_any(c, j, k, node, silent);
    if ((k = json_object_get(s, "oneOf"))) gather_one(c, j, s, k, node, silent);
    if ((k = json_object_get(s, "not"))) gather_not(c, j, s, k, node);
    if (json_object_get(s, "if")) gather_if(c, j, s, node, silent);
    if ((k = json_object_get(s, "dependentRequired"))) gather_dependent(c, j, k, node, silent);
    if ((k = json_object_get(s, "dependentSchemas"))) gather_dependent(c, j, k, node, silent);
    if ((k = json_object_get(s, "dependencies"))) gather_dependent(c, j, k, node, silent);
}

static void gather(struct sctx *c, struct conj *j, json_t *schema, int parent, bool silent)
{
    if (c->b->status != MB_OK || !schema || json_is_true(schema)) return;
    if (!json_is_object(schema)) {
        j->impossible = true;
        return;
    }
    if (already_there(c, j, schema, parent)) return;
    struct node *p = build_grow(c->b, j->nodes, j->n, &j->cap, sizeof *p);
    if (!p) return;
    j->nodes = p;
    int node = (int)j->n++;
    j->nodes[node] = (struct node){ schema, parent, silent };
    gather_keywords(c, j, schema, node, silent);
}

/* --- one plain conjunction --- */

static bool all_valid(struct sctx *c, const struct conj *j, const json_t *v)
{
    for (size_t i = 0; i < j->n && c->b->status == MB_OK; i++)
        if (schema_excludes(c, j->nodes[i].schema, v)) return false;
    return c->b->status == MB_OK;
}

/* The members of an enum (or the const) that everything else allows. */
static struct expr *enumerated(struct sctx *c, const struct conj *j, json_t *list)
{
    struct expr_list l = { 0 };
    for (size_t i = 0; i < json_array_size(list) && c->b->status == MB_OK; i++)
        if (all_valid(c, j, json_array_get(list, i))) expr_list_add(c->b, &l, json_literal(c->b, json_array_get(list, i)));
    return c->b->status == MB_OK ? expr_alt_list(c->b, &l) : NULL;
}

static json_t *enum_of(struct sctx *c, const struct conj *j)
{
    json_t *best = NULL;
    for (size_t i = 0; i < j->n; i++) {
        json_t *e = json_object_get(j->nodes[i].schema, "enum"), *v = json_object_get(j->nodes[i].schema, "const");
        if (v) return schema_own(c, json_pack("[O]", v));
        if (e && (!best || json_array_size(e) < json_array_size(best))) best = e;
    }
    return best;
}

static bool is_excluded(const struct conj *j, const json_t *v)
{
    for (size_t i = 0; i < j->n; i++) {
        const json_t *list = json_object_get(j->nodes[i].schema, KEY_NOT_ENUM);
        for (size_t k = 0; k < json_array_size(list); k++)
            if (json_same(json_array_get(list, k), v)) return true;
    }
    return false;
}

static void add_constant(struct sctx *c, const struct conj *j, struct expr_list *l, const char *text, const json_t *v)
{
    if (!is_excluded(j, v)) expr_list_add(c->b, l, expr_lit(c->b, text));
}

static struct expr *plain(struct sctx *c, const struct conj *j)
{
    json_t *list = enum_of(c, j);
    if (list) return enumerated(c, j, list);
    int types = types_of(j);
    if (!j->n) return json_value_rule(c->b);
    c->at = schema_path(c, j->nodes[0].schema);
    struct expr_list l = { 0 };
    if (types & T_OBJECT) expr_list_add(c->b, &l, schema_object(c, j));
    if (types & T_ARRAY) expr_list_add(c->b, &l, schema_array(c, j));
    if (types & T_STRING) expr_list_add(c->b, &l, schema_string(c, j));
    if (types & (T_INT | T_FRACTION)) expr_list_add(c->b, &l, schema_number(c, j, types & (T_INT | T_FRACTION)));
    if (types & T_BOOL) {
        add_constant(c, j, &l, "true", json_true());
        add_constant(c, j, &l, "false", json_false());
    }
    if (types & T_NULL) add_constant(c, j, &l, "null", json_null());
    return c->b->status == MB_OK ? expr_alt_list(c->b, &l) : NULL;
}

/* Texts of an enum that everything else allows. */
static struct dfa *enumerated_names(struct sctx *c, const struct conj *j, json_t *list)
{
    struct expr_list l = { 0 };
    for (size_t i = 0; i < json_array_size(list) && c->b->status == MB_OK; i++) {
        const json_t *v = json_array_get(list, i);
        if (json_is_text(v) && all_valid(c, j, v))
            expr_list_add(c->b, &l, expr_dfa(c->b, json_text_dfa(c->b, json_string_value(v), json_string_length(v))));
    }
    struct expr *x = c->b->status == MB_OK ? expr_alt_list(c->b, &l) : NULL;
    return x ? dfa_of_expr(c->b, x, false, FORM_JSON, "propertyNames") : NULL;
}

struct dfa *schema_names_dfa(struct sctx *c, json_t **schemas, size_t n)
{
    struct conj j = { 0 };
    for (size_t i = 0; i < n; i++) gather(c, &j, schemas[i], -1, false);
    if (c->b->status != MB_OK) return NULL;
    if (j.impossible || !(types_of(&j) & T_STRING)) return dfa_of_expr(c->b, expr_nothing(c->b), false, FORM_JSON, "propertyNames");
    if (j.n_choices) {
        schema_unenforced(c, j.nodes[0].schema, "propertyNames", "names are described by anyOf, oneOf, if or not");
        return NULL;
    }
    json_t *list = enum_of(c, &j);
    return list ? enumerated_names(c, &j, list) : schema_string_dfa(c, &j);
}

/* --- choices --- */

static struct conj conj_copy(struct sctx *c, const struct conj *j, size_t n_choices)
{
    struct conj r = { .n = j->n, .cap = j->n, .n_choices = n_choices, .cap_choices = n_choices };
    r.nodes = build_alloc(c->b, j->n, sizeof *r.nodes);
    r.choices = build_alloc(c->b, n_choices, sizeof *r.choices);
    if (r.nodes && j->n) memcpy(r.nodes, j->nodes, j->n * sizeof *r.nodes);
    if (r.choices && n_choices) memcpy(r.choices, j->choices, n_choices * sizeof *r.choices);
    r.impossible = c->b->status != MB_OK;
    return r;
}

static struct expr *decide(struct sctx *c, const struct conj *j)
{
    if (c->b->status != MB_OK) return NULL;
    if (j->impossible || !types_of(j)) return expr_nothing(c->b);
    if (++c->n_branches > MAX_BRANCHES) {
        build_fail(c->b, MB_TOO_LARGE, "%s: more than %d combinations of the branches of anyOf, oneOf, if and dependent keywords",
                   j->n ? schema_path(c, j->nodes[0].schema) : "#", MAX_BRANCHES);
        return NULL;
    }
    if (!j->n_choices) return plain(c, j);
    const struct choice x = j->choices[j->n_choices - 1];
    struct expr_list l = { 0 };
    for (size_t i = 0; i < x.n && c->b->status == MB_OK; i++) {
        struct conj branch = conj_copy(c, j, j->n_choices - 1);
        gather(c, &branch, x.branches[i], x.parent, x.silent || (int)i == x.silent_branch);
        gather(c, &branch, x.extra[i], x.parent, x.silent || x.silent_extra);
        expr_list_add(c->b, &l, decide(c, &branch));
    }
    return c->b->status == MB_OK ? expr_alt_list(c->b, &l) : NULL;
}

/* --- rules by what they must satisfy --- */

static int by_pointer(const void *x, const void *y)
{
    uintptr_t a = (uintptr_t)*(json_t *const *)x, b = (uintptr_t)*(json_t *const *)y;
    return a < b ? -1 : a > b;
}

static size_t list_hash(json_t *const *list, size_t n)
{
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = (h ^ (uint64_t)(uintptr_t)list[i]) * 0x9E3779B97F4A7C15u, h ^= h >> 32;
    return (size_t)h;
}

static bool memo_rehash(struct sctx *c)
{
    size_t want = c->n_memo_hash ? c->n_memo_hash * 2 : 64;
    uint32_t *t = build_alloc(c->b, want, sizeof *t);
    if (!t) return false;
    for (size_t i = 0; i < c->n_memos; i++) {
        size_t h = list_hash(c->memos[i].schemas, c->memos[i].n);
        while (t[h & (want - 1)]) h++;
        t[h & (want - 1)] = (uint32_t)i + 1;
    }
    c->memo_hash = t;
    c->n_memo_hash = want;
    return true;
}

/* Index of the list's memo, made when missing (*fresh); SIZE_MAX after a failure. Keeps the array it is given. */
static size_t memo_get(struct sctx *c, json_t **list, size_t n, bool *fresh)
{
    *fresh = false;
    if (c->n_memos * 2 >= c->n_memo_hash && !memo_rehash(c)) return SIZE_MAX;
    size_t h = list_hash(list, n);
    for (; c->memo_hash[h & (c->n_memo_hash - 1)]; h++) {
        size_t i = c->memo_hash[h & (c->n_memo_hash - 1)] - 1;
        if (c->memos[i].n == n && !memcmp(c->memos[i].schemas, list, n * sizeof *list)) return i;
    }
    struct memo *p = build_grow(c->b, c->memos, c->n_memos, &c->cap_memos, sizeof *p);
    if (!p) return SIZE_MAX;
    c->memos = p;
    int32_t rule = build_rule_new(c->b, schema_path(c, list[0]));
    if (rule < 0) return SIZE_MAX;
    c->memos[c->n_memos] = (struct memo){ .schemas = list, .n = n, .rule = rule };
    c->memo_hash[h & (c->n_memo_hash - 1)] = (uint32_t)c->n_memos + 1;
    *fresh = true;
    return c->n_memos++;
}

static void memo_compile(struct sctx *c, size_t i)
{
    if (c->memos[i].done || c->b->status != MB_OK) return;
    c->memos[i].done = true;
    const struct memo m = c->memos[i];
    const char *at = c->at;
    size_t n_branches = c->n_branches;
    struct conj j = { 0 };
    c->n_branches = 0;
    c->depth++;
    for (size_t k = 0; k < m.n; k++) gather(c, &j, m.schemas[k], -1, false);
    struct expr *body = decide(c, &j);
    c->depth--;
    c->n_branches = n_branches;
    c->at = at;
    if (c->b->status != MB_OK || !body) return;
    c->b->rules[m.rule].body = body;
    if (body->size <= INLINE_SIZE) c->memos[i].inline_expr = body;
}

struct expr *schema_value(struct sctx *c, json_t **schemas, size_t n)
{
    json_t **list = build_alloc(c->b, n, sizeof *list);
    size_t n_list = 0;
    if (!list) return NULL;
    for (size_t i = 0; i < n; i++) {
        if (schema_is_false(schemas[i])) return expr_nothing(c->b);
        if (!json_is_true(schemas[i]) && json_object_size(schemas[i])) list[n_list++] = schemas[i];
    }
    if (!n_list) return json_value_rule(c->b);
    qsort(list, n_list, sizeof *list, by_pointer);
    n = 1;
    for (size_t i = 1; i < n_list; i++)
        if (list[i] != list[i - 1]) list[n++] = list[i];
    bool fresh;
    size_t i = memo_get(c, list, n, &fresh);
    if (i == SIZE_MAX) return NULL;
    if (fresh && c->depth < MAX_NESTED) memo_compile(c, i);
    if (c->memos[i].inline_expr) return c->memos[i].inline_expr;
    return expr_rule(c->b, c->memos[i].rule);
}

int32_t schema_compile(struct build *b, json_t *schema)
{
    struct sctx c = { .b = b, .root = schema, .at = "#" };
    int32_t rule = -1;
    if (!json_is_object(schema) && !json_is_boolean(schema)) {
        build_fail(b, MB_INVALID, "a schema must be an object, true or false");
        return -1;
    }
    if (json_is_boolean(schema) || schema_check(&c, schema, "#", "")) {
        c.depth = 0;
        struct expr *x = schema_value(&c, &schema, 1);
        for (; c.next_queued < c.n_memos && b->status == MB_OK; c.next_queued++) memo_compile(&c, c.next_queued);
        if (b->status == MB_OK && x) rule = build_rule_of(b, "schema", x);
    }
    for (size_t i = 0; i < c.n_owned; i++) json_decref(c.owned[i]);
    mb_free(c.owned);
    return b->status == MB_OK ? rule : -1;
}
