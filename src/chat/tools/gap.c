/* gap.c: what the grammar of a markup (grammar.c) leaves open of a tool's schema, so that a strict tool is refused by keyword
 * and path instead of half enforced (design.md section 6). Markups whose arguments are JSON leave nothing open. The others
 * hold the list of arguments with the required ones, all of an argument that is written as JSON, a list of strings, and
 * the types of the rest. */
#include <stdio.h>
#include <string.h>

#include "chat/tools/tools_int.h"

#define MAX_DEPTH 16    /* of schemas in schemas; one that refers to itself ends here */
#define MAX_VISITS 1000 /* of one tool; behind that nothing more is entered */

struct gap_walk {
    const json_t *root;
    const json_t *listed; /* the schema whose list of strings is held, or NULL */
    bool (*limits)(const char *keyword, const json_t *value);
    struct tool_gap *out;
    size_t len;           /* of out->path */
    int n_visits;
};

static bool found(struct gap_walk *w, const char *keyword)
{
    w->out->keyword = keyword;
    return true;
}

/* A step of the pointer; the length to go back to. */
static size_t enter(struct gap_walk *w, const char *name)
{
    size_t before = w->len, size = sizeof w->out->path;
    if (w->len + 1 < size) w->out->path[w->len++] = '/';
    for (; *name && w->len + 2 < size; name++) {
        if (*name == '~' || *name == '/') w->out->path[w->len++] = '~';
        w->out->path[w->len++] = (char)(*name == '~' ? '0' : *name == '/' ? '1' : *name);
    }
    w->out->path[w->len] = '\0';
    return before;
}

static void leave(struct gap_walk *w, size_t before)
{
    w->len = before;
    w->out->path[before] = '\0';
}

static bool gap_at(struct gap_walk *w, const json_t *schema, int depth);

static bool too_deep(const struct gap_walk *w, int depth)
{
    return depth == MAX_DEPTH || w->n_visits > MAX_VISITS;
}

/* Branches add nothing but types; only one of a oneOf may hold, so theirs must not meet. */
static bool gap_in_branches(struct gap_walk *w, const char *keyword, const json_t *list, int depth)
{
    unsigned met = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *branch = json_array_get(list, i);
        unsigned types = argument_types(branch, w->root);
        char index[24];
        if (strcmp(keyword, "oneOf") == 0 && types & met) return found(w, keyword);
        met |= types;
        snprintf(index, sizeof index, "%zu", i);
        size_t outer = enter(w, keyword), inner = enter(w, index);
        if (gap_at(w, branch, depth + 1)) return true;
        leave(w, inner);
        leave(w, outer);
    }
    return false;
}

static bool is_branches(const char *key)
{
    return strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 || strcmp(key, "allOf") == 0;
}

/* Is this keyword the list of strings itself? With both of them it is not. */
static bool is_listed(const struct gap_walk *w, const json_t *schema, const char *key)
{
    if (schema != w->listed) return false;
    return strcmp(key, "enum") == 0 ? !json_object_get(schema, "const") : strcmp(key, "const") == 0 && !json_object_get(schema, "enum");
}

/* Of a value that has no more than the types of its schema, or is one of the listed strings. */
static bool gap_at(struct gap_walk *w, const json_t *schema, int depth)
{
    const char *key;
    json_t *v;
    w->n_visits++;
    if (json_is_false(schema)) return found(w, "false");
    json_object_foreach((json_t *)schema, key, v) {
        if (strcmp(key, "type") == 0 || is_listed(w, schema, key)) continue;
        if (strcmp(key, "$ref") == 0) {
            const char *ref = json_string_value(v);
            const json_t *target = ref ? argument_ref(w->root, ref) : NULL;
            if (!target || too_deep(w, depth)) return found(w, key);
            const struct tool_gap here = *w->out;
            size_t before = w->len;
            w->len = (size_t)snprintf(w->out->path, sizeof w->out->path, "%.250s", ref);
            if (gap_at(w, target, depth + 1)) return true;
            *w->out = here;
            w->len = before;
        } else if (is_branches(key)) {
            if (too_deep(w, depth)) return found(w, key);
            if (gap_in_branches(w, key, v, depth)) return true;
        } else if (w->limits(key, v)) {
            return found(w, key);
        }
    }
    return false;
}

/* Of the arguments as a whole: those of `properties` are written and no others. */
static bool gap_of_list(struct gap_walk *w)
{
    static const char *const held[] = { "type", "properties", "additionalProperties", "unevaluatedProperties" };
    const json_t *properties = json_object_get(w->root, "properties");
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)w->root, key, v) {
        bool is_held = false;
        for (size_t i = 0; i < sizeof held / sizeof held[0]; i++) is_held |= strcmp(key, held[i]) == 0;
        if (strcmp(key, "required") == 0) {
            is_held = true;
            for (size_t i = 0; i < json_array_size(v); i++) {
                const char *name = json_string_value(json_array_get(v, i));
                is_held &= name && json_object_get(properties, name);
            }
        }
        if (!is_held && w->limits(key, v)) return found(w, key);
    }
    return false;
}

bool tool_family_spreads_arguments(const struct tool_family *f)
{
    return tool_style_own_types(f->style) != 0;
}

bool tool_grammar_gap(const struct tool_family *f, const struct tool *t, bool (*limits)(const char *keyword, const json_t *value),
                      struct tool_gap *out)
{
    struct gap_walk w = { .root = t->parameters, .limits = limits, .out = out, .len = 1 };
    const char *key;
    json_t *schema;
    *out = (struct tool_gap){ .path = "#" };
    if (!tool_family_spreads_arguments(f)) return false;
    if (gap_of_list(&w)) return true;
    json_object_foreach(json_object_get(t->parameters, "properties"), key, schema) {
        json_t *list;
        enum argument_form form = argument_form(f, t, schema, &list);
        json_decref(list);
        if (form == ARGUMENT_JSON) continue;
        w.listed = form == ARGUMENT_CHOICE ? argument_target(schema, t->parameters) : NULL;
        size_t outer = enter(&w, "properties"), inner = enter(&w, key);
        if (gap_at(&w, schema, 0)) return true;
        leave(&w, inner);
        leave(&w, outer);
    }
    return false;
}
