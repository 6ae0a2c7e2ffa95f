/* schema_ref.c: where a reference leads.
 *
 * Only inside the document: a URI that no $id of it has is never fetched; the keyword cannot be enforced, so a strict compile
 * refuses it and another leaves it out and says so. A place that does not exist is a mistake (MB_INVALID). A pointer may lead to
 * a place that no keyword makes a schema; what it finds is then checked as one.
 */
#include <string.h>

#include "grammar/schema_int.h"

static bool has_scheme(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
    return n > 1 && s[n] == ':';
}

/* base and ref as RFC 3986 joins them, without removing dot segments beyond a leading "./". A trailing "#" goes. */
const char *uri_resolve(struct build *b, const char *base, const char *ref)
{
    size_t n_base = strcspn(base, "#");
    const char *joined;
    if (!strncmp(ref, "./", 2)) ref += 2;
    if (has_scheme(ref)) {
        joined = arena_strdup(&b->a, ref);
    } else if (ref[0] == '#' || !ref[0]) {
        joined = arena_printf(&b->a, "%.*s%s", (int)n_base, base, ref);
    } else {
        const char *authority = strstr(base, "://"), *path = authority ? strchr(authority + 3, '/') : NULL;
        size_t keep = 0;
        if (authority && ref[0] == '/') keep = path ? (size_t)(path - base) : n_base;
        else for (size_t i = authority ? (size_t)(authority + 3 - base) : 0; i < n_base; i++) if (base[i] == '/') keep = i + 1;
        joined = arena_printf(&b->a, "%.*s%s", (int)keep, base, ref);
    }
    if (!joined) {
        build_fail(b, MB_NO_MEMORY, "no memory for a schema");
        return NULL;
    }
    size_t len = strlen(joined);
    if (len && joined[len - 1] == '#') return arena_strndup(&b->a, joined, len - 1);
    return joined;
}

static json_t *find_name(struct sctx *c, const char *uri, size_t len)
{
    for (size_t i = 0; i < c->n_names; i++)
        if (strlen(c->names[i].uri) == len && !memcmp(c->names[i].uri, uri, len)) return c->names[i].schema;
    return NULL;
}

static int hex_value(char c)
{
    const char *hex = "0123456789abcdef", *p = c ? strchr(hex, c | 0x20) : NULL;
    return p ? (int)(p - hex) : -1;
}

/* One segment of a pointer, %XX and ~0 ~1 resolved. Returns its length. */
static size_t read_segment(const char **p, char *out, size_t cap)
{
    size_t n = 0;
    while (**p && **p != '/') {
        char ch = *(*p)++;
        if (ch == '%' && hex_value((*p)[0]) >= 0 && hex_value((*p)[1]) >= 0) {
            ch = (char)(hex_value((*p)[0]) << 4 | hex_value((*p)[1]));
            *p += 2;
        }
        if (ch == '~' && (**p == '0' || **p == '1')) ch = *(*p)++ == '0' ? '~' : '/';
        if (n < cap) out[n] = ch;
        n++;
    }
    return n;
}

static json_t *array_at(json_t *a, const char *s, size_t len)
{
    size_t v = 0;
    if (!len || len > 9 || (len > 1 && s[0] == '0')) return NULL;
    for (size_t i = 0; i < len; i++) {
        if (s[i] < '0' || s[i] > '9') return NULL;
        v = v * 10 + (size_t)(s[i] - '0');
    }
    return json_array_get(a, v);
}

static json_t *follow_pointer(json_t *at, const char *pointer)
{
    char name[2048];
    while (at && *pointer == '/') {
        pointer++;
        size_t n = read_segment(&pointer, name, sizeof name);
        if (n > sizeof name) return NULL;
        at = json_is_object(at) ? json_object_getn(at, name, n) : json_is_array(at) ? array_at(at, name, n) : NULL;
    }
    return *pointer ? NULL : at;
}

static json_t *no_target(struct sctx *c, json_t *from, const char *keyword)
{
    build_fail(c->b, MB_INVALID, "%s: %s has no target in this schema", schema_path(c, from), keyword);
    return NULL;
}

/* What the reference would say is not known: no value is excluded by it. */
static json_t *not_followed(struct sctx *c, const json_t *from, const char *keyword, const char *why)
{
    schema_unenforced(c, from, keyword, why);
    c->undecided = true;
    return NULL;
}

static json_t *resolve(struct sctx *c, json_t *from, const char *keyword, const char *ref)
{
    const struct place *p = schema_place(c, from);
    const char *full = uri_resolve(c->b, p ? p->base : "", ref);
    if (!full) return NULL;
    size_t n = strcspn(full, "#");
    json_t *resource = n ? find_name(c, full, n) : c->root;
    if (!resource)
        return not_followed(c, from, keyword, "it leads out of this schema; remote schemas are not fetched: put it into $defs");
    const char *fragment = full[n] ? full + n + 1 : "";
    json_t *target = resource;
    if (fragment[0] == '/') target = follow_pointer(resource, fragment);
    else if (fragment[0]) target = find_name(c, full, strlen(full));
    if (!target || !(json_is_object(target) || json_is_boolean(target))) return no_target(c, from, keyword);
    if (json_is_object(target) && !schema_place(c, target)) {
        const char *path = arena_printf(&c->b->a, "#%.300s", fragment);
        const struct place *r = schema_place(c, resource);
        int depth = c->depth;
        c->depth = 0;
        if (!path || !schema_check(c, target, path, r ? r->base : "")) return no_target(c, from, keyword);
        c->depth = depth;
    }
    return target;
}

json_t *schema_ref_target(struct sctx *c, json_t *schema)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    return ref ? resolve(c, schema, "$ref", ref) : NULL;
}

/* $dynamicRef is $ref as long as there is nothing to choose from. */
json_t *schema_dynamic_target(struct sctx *c, json_t *schema)
{
    const char *ref = json_string_value(json_object_get(schema, "$dynamicRef"));
    if (!ref) return NULL;
    const char *name = strchr(ref, '#');
    int same = 0;
    for (size_t i = 0; name && i < c->n_names; i++) {
        const char *have = strchr(c->names[i].uri, '#');
        same += c->names[i].dynamic && have && !strcmp(have, name);
    }
    if (same > 1) return not_followed(c, schema, "$dynamicRef", "several schemas have its $dynamicAnchor");
    return resolve(c, schema, "$dynamicRef", ref);
}
