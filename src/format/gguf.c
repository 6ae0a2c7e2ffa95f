/* gguf.c: parsing of GGUF, see gguf.h. One cursor walks the file once: header, key-value pairs, tensor list; every step
 * asks the cursor for bytes and the cursor knows the end. Names are copied into an arena (they need a NUL), values and
 * data stay views. Big-endian machines are not among ours; multi-byte numbers are copied with memcpy.
 */
#include "format/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define MAX_VALUES 65536u
#define MAX_TENSORS 1000000u
#define MAX_KEY_BYTES 65535u
#define MAX_TENSOR_NAME 1024u
#define DEFAULT_ALIGNMENT 32u

struct gguf {
    struct arena arena;
    struct filemap map; /* fd -1 when the bytes are the caller's */
    const uint8_t *base;
    const char *name;
    struct gguf_value *values;    /* arena */
    size_t n_values;
    struct gguf_tensor *tensors;  /* arena, in the file's order */
    size_t n_tensors;
    const struct gguf_value **values_by_key;     /* arena, sorted */
    const struct gguf_tensor **tensors_by_name;  /* arena, sorted */
};

/* --- tensor types --- */

static const struct gguf_type_row type_rows[] = {
    { GGUF_T_F32, "F32", 1, 4 },      { GGUF_T_F16, "F16", 1, 2 },      { GGUF_T_Q4_0, "Q4_0", 32, 18 },
    { GGUF_T_Q4_1, "Q4_1", 32, 20 },  { GGUF_T_Q5_0, "Q5_0", 32, 22 },  { GGUF_T_Q5_1, "Q5_1", 32, 24 },
    { GGUF_T_Q8_0, "Q8_0", 32, 34 },  { 9, "Q8_1", 32, 36 },            { 10, "Q2_K", 256, 84 },
    { 11, "Q3_K", 256, 110 },         { GGUF_T_Q4_K, "Q4_K", 256, 144 }, { GGUF_T_Q5_K, "Q5_K", 256, 176 },
    { GGUF_T_Q6_K, "Q6_K", 256, 210 }, { 15, "Q8_K", 256, 292 },        { 16, "IQ2_XXS", 256, 66 },
    { 17, "IQ2_XS", 256, 74 },        { 18, "IQ3_XXS", 256, 98 },       { 19, "IQ1_S", 256, 50 },
    { 20, "IQ4_NL", 32, 18 },         { 21, "IQ3_S", 256, 110 },        { 22, "IQ2_S", 256, 82 },
    { 23, "IQ4_XS", 256, 136 },       { 24, "I8", 1, 1 },               { 25, "I16", 1, 2 },
    { 26, "I32", 1, 4 },              { 27, "I64", 1, 8 },              { 28, "F64", 1, 8 },
    { 29, "IQ1_M", 256, 56 },         { GGUF_T_BF16, "BF16", 1, 2 },    { 34, "TQ1_0", 256, 54 },
    { 35, "TQ2_0", 256, 66 },         { 39, "MXFP4", 32, 17 },          { 40, "NVFP4", 64, 36 },
};

const struct gguf_type_row *gguf_type_get(uint32_t type)
{
    for (size_t i = 0; i < sizeof type_rows / sizeof type_rows[0]; i++)
        if ((uint32_t)type_rows[i].type == type) return &type_rows[i];
    return NULL;
}

/* --- the cursor --- */

struct cursor {
    const uint8_t *data;
    size_t size, at;
    const char *name; /* of the file */
    mb_error *err;
};

static mb_status cut_short(struct cursor *c, const char *what, uint64_t wanted)
{
    return mb_fail(c->err, MB_BAD_FORMAT, "%s: incomplete: %s at byte %zu needs %llu bytes, the file has %zu", c->name,
                   what, c->at, (unsigned long long)wanted, c->size - c->at);
}

static mb_status take(struct cursor *c, const char *what, uint64_t len, const uint8_t **out)
{
    *out = c->data + c->at;
    if (len > c->size - c->at) return cut_short(c, what, len);
    c->at += (size_t)len;
    return MB_OK;
}

static mb_status take_u32(struct cursor *c, const char *what, uint32_t *out)
{
    const uint8_t *p;
    *out = 0;
    MB_TRY(take(c, what, sizeof *out, &p));
    memcpy(out, p, sizeof *out);
    return MB_OK;
}

static mb_status take_u64(struct cursor *c, const char *what, uint64_t *out)
{
    const uint8_t *p;
    *out = 0;
    MB_TRY(take(c, what, sizeof *out, &p));
    memcpy(out, p, sizeof *out);
    return MB_OK;
}

/* A length-prefixed string as a view. */
static mb_status take_string(struct cursor *c, const char *what, struct str *out)
{
    uint64_t len;
    const uint8_t *p;
    *out = (struct str){ NULL, 0 };
    MB_TRY(take_u64(c, what, &len));
    MB_TRY(take(c, what, len, &p));
    *out = (struct str){ (const char *)p, (size_t)len };
    return MB_OK;
}

/* A key or tensor name: copied, short, without NUL. */
static mb_status take_name(struct cursor *c, struct gguf *g, const char *what, size_t limit, const char **out)
{
    struct str s;
    size_t at = c->at;
    *out = NULL;
    MB_TRY(take_string(c, what, &s));
    if (s.len == 0 || s.len > limit || memchr(s.ptr, 0, s.len))
        return mb_fail(c->err, MB_BAD_FORMAT, "%s: %s at byte %zu must have 1 to %zu bytes, none of them NUL", c->name,
                       what, at, limit);
    *out = arena_strndup(&g->arena, s.ptr, s.len);
    return *out ? MB_OK : mb_fail(c->err, MB_NO_MEMORY, "%s: no memory for the tensor list", c->name);
}

/* --- values --- */

static size_t item_size(enum gguf_value_type t)
{
    static const uint8_t sizes[GGUF_VALUE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    return sizes[t];
}

static mb_status take_type(struct cursor *c, enum gguf_value_type *out)
{
    uint32_t type;
    size_t at = c->at;
    MB_TRY(take_u32(c, "a value type", &type));
    if (type >= GGUF_VALUE_COUNT)
        return mb_fail(c->err, MB_BAD_FORMAT, "%s: unknown value type %u at byte %zu", c->name, type, at);
    *out = (enum gguf_value_type)type;
    return MB_OK;
}

static mb_status take_items(struct cursor *c, struct gguf_value *v)
{
    size_t first = c->at, each = item_size(v->item);
    const uint8_t *p;
    struct str s;
    if (v->item == GGUF_STRING) {
        for (uint64_t i = 0; i < v->n_items; i++) MB_TRY(take_string(c, "a string", &s));
    } else {
        if (v->n_items > (c->size - c->at) / each) return cut_short(c, "an array", v->n_items);
        MB_TRY(take(c, "a value", v->n_items * each, &p));
    }
    v->data = c->data + first;
    v->size_bytes = c->at - first;
    return MB_OK;
}

static mb_status take_value(struct cursor *c, struct gguf *g, struct gguf_value *v)
{
    MB_TRY(take_name(c, g, "a key", MAX_KEY_BYTES, &v->key));
    MB_TRY(take_type(c, &v->type));
    v->item = v->type;
    v->n_items = 1;
    if (v->type == GGUF_ARRAY) {
        MB_TRY(take_type(c, &v->item));
        MB_TRY(take_u64(c, "an array length", &v->n_items));
        if (v->item == GGUF_ARRAY)
            return mb_fail(c->err, MB_UNSUPPORTED, "%s: the key %.200s is an array of arrays", c->name, v->key);
    }
    return take_items(c, v);
}

/* --- tensors --- */

/* Elements and bytes of a tensor whose ne and type are set. */
static mb_status tensor_size(struct cursor *c, struct gguf_tensor *t)
{
    uint64_t n = 1;
    for (int i = 0; i < GGUF_MAX_DIM; i++)
        if (__builtin_mul_overflow(n, (uint64_t)t->ne[i], &n) || n > INT64_MAX / 8)
            return mb_fail(c->err, MB_BAD_FORMAT, "%s: tensor %s: its shape is too large", c->name, t->name);
    if (t->ne[0] % t->type->block_elements)
        return mb_fail(c->err, MB_BAD_FORMAT, "%s: tensor %s: rows of %lld are no multiple of the %d weights of a %s block",
                       c->name, t->name, (long long)t->ne[0], t->type->block_elements, t->type->name);
    t->size_bytes = (size_t)(n / (uint64_t)t->type->block_elements * (uint64_t)t->type->block_bytes);
    return MB_OK;
}

/* Until the file is mapped, t->data is the offset in the data part, as a number. */
static mb_status take_tensor(struct cursor *c, struct gguf *g, struct gguf_tensor *t)
{
    uint32_t n_dim, type;
    uint64_t ne, off;
    MB_TRY(take_name(c, g, "a tensor name", MAX_TENSOR_NAME, &t->name));
    MB_TRY(take_u32(c, "a tensor", &n_dim));
    if (n_dim > GGUF_MAX_DIM)
        return mb_fail(c->err, MB_BAD_FORMAT, "%s: tensor %s has %u dimensions, at most 4", c->name, t->name, n_dim);
    t->n_dim = (int)n_dim;
    for (int i = 0; i < GGUF_MAX_DIM; i++) t->ne[i] = 1;
    for (uint32_t i = 0; i < n_dim; i++) {
        MB_TRY(take_u64(c, "a tensor", &ne));
        if (ne > INT64_MAX) return mb_fail(c->err, MB_BAD_FORMAT, "%s: tensor %s: negative size", c->name, t->name);
        t->ne[i] = (int64_t)ne;
    }
    MB_TRY(take_u32(c, "a tensor", &type));
    t->type = gguf_type_get(type);
    if (!t->type)
        return mb_fail(c->err, MB_UNSUPPORTED, "%s: tensor %s has the unknown type number %u; take a Q4_K_M, Q8_0 or F16 "
                       "file of this model", c->name, t->name, type);
    MB_TRY(take_u64(c, "a tensor", &off));
    if (off > INT64_MAX) return mb_fail(c->err, MB_BAD_FORMAT, "%s: tensor %s: negative offset", c->name, t->name);
    t->data = (const uint8_t *)(uintptr_t)off;
    return tensor_size(c, t);
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a, *y = *(const struct gguf_tensor *const *)b;
    if (x->data != y->data) return (uintptr_t)x->data < (uintptr_t)y->data ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

static int by_tensor_name(const void *a, const void *b)
{
    return strcmp((*(const struct gguf_tensor *const *)a)->name, (*(const struct gguf_tensor *const *)b)->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const struct gguf_value *const *)a)->key, (*(const struct gguf_value *const *)b)->key);
}

/* tensors_by_name is sorted by offset here, by name later. */
static mb_status check_tensor_places(struct cursor *c, struct gguf *g, uint64_t alignment)
{
    uint64_t data_bytes = c->size - c->at, at = 0;
    const struct gguf_tensor **list = g->tensors_by_name;
    qsort(list, g->n_tensors, sizeof *list, by_offset);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = list[i];
        uint64_t first = (uint64_t)(uintptr_t)t->data;
        if (first % alignment)
            return mb_fail(c->err, MB_BAD_FORMAT, "%s: tensor %s at offset %llu is not aligned to %llu", c->name, t->name,
                           (unsigned long long)first, (unsigned long long)alignment);
        if (first < at)
            return mb_fail(c->err, MB_BAD_FORMAT, "%s: tensors %s and %s overlap", c->name, list[i - 1]->name, t->name);
        if (t->size_bytes > data_bytes || first > data_bytes - t->size_bytes) {
            const struct gguf_tensor *last = list[g->n_tensors - 1];
            return mb_fail(c->err, MB_BAD_FORMAT,
                           "%s: incomplete: have %zu of at least %llu bytes (tensor %s ends behind the file); fetch the "
                           "file again", c->name, c->size,
                           (unsigned long long)(uintptr_t)last->data + last->size_bytes + c->at, t->name);
        }
        at = first + t->size_bytes;
    }
    return MB_OK;
}

/* --- the whole file --- */

static mb_status take_header(struct cursor *c, struct gguf *g, uint64_t *n_values, uint64_t *n_tensors)
{
    const uint8_t *magic;
    uint32_t version;
    MB_TRY(take(c, "the header", 4, &magic));
    if (memcmp(magic, "GGUF", 4) != 0)
        return mb_fail(c->err, MB_BAD_FORMAT, "%s is not a GGUF file: it does not begin with \"GGUF\"", c->name);
    MB_TRY(take_u32(c, "the header", &version));
    if ((version & 0xffff) == 0 && version != 0)
        return mb_fail(c->err, MB_UNSUPPORTED, "%s is a big-endian GGUF file; take the little-endian one", c->name);
    if (version != 2 && version != 3)
        return mb_fail(c->err, MB_UNSUPPORTED, "%s: GGUF version %u; versions 2 and 3 are read: take a newer file of this "
                       "model", c->name, version);
    MB_TRY(take_u64(c, "the header", n_tensors));
    MB_TRY(take_u64(c, "the header", n_values));
    /* The least a pair (8 + 1 + 4 + 1) and a tensor (8 + 1 + 4 + 4 + 8) can take. */
    if (*n_values > MAX_VALUES || *n_values > (c->size - c->at) / 14)
        return mb_fail(c->err, MB_BAD_FORMAT, "%s: %llu metadata entries in a file of %zu bytes (at most %u)", c->name,
                       (unsigned long long)*n_values, c->size, MAX_VALUES);
    if (*n_tensors > MAX_TENSORS || *n_tensors > (c->size - c->at) / 25)
        return mb_fail(c->err, MB_BAD_FORMAT, "%s: %llu tensors in a file of %zu bytes (at most %u)", c->name,
                       (unsigned long long)*n_tensors, c->size, MAX_TENSORS);
    return MB_OK;
}

static mb_status values_sort(struct cursor *c, struct gguf *g)
{
    for (size_t i = 0; i < g->n_values; i++) g->values_by_key[i] = &g->values[i];
    qsort(g->values_by_key, g->n_values, sizeof *g->values_by_key, by_key);
    for (size_t i = 1; i < g->n_values; i++)
        if (by_key(&g->values_by_key[i - 1], &g->values_by_key[i]) == 0)
            return mb_fail(c->err, MB_BAD_FORMAT, "%s: the key %.200s stands there twice", c->name,
                           g->values_by_key[i]->key);
    return MB_OK;
}

static mb_status tensors_sort(struct cursor *c, struct gguf *g)
{
    qsort(g->tensors_by_name, g->n_tensors, sizeof *g->tensors_by_name, by_tensor_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_tensor_name(&g->tensors_by_name[i - 1], &g->tensors_by_name[i]) == 0)
            return mb_fail(c->err, MB_BAD_FORMAT, "%s: the tensor %.200s stands there twice", c->name,
                           g->tensors_by_name[i]->name);
    return MB_OK;
}

static mb_status check_not_split(struct cursor *c, const struct gguf *g)
{
    int64_t n;
    MB_TRY(gguf_get_int(g, "split.count", 1, &n, c->err));
    if (n > 1)
        return mb_fail(c->err, MB_UNSUPPORTED, "%s is one of %lld parts; join them first (gguf-split --merge)", c->name,
                       (long long)n);
    return MB_OK;
}

static mb_status data_begin(struct cursor *c, const struct gguf *g, uint64_t *alignment)
{
    int64_t a;
    MB_TRY(gguf_get_int(g, "general.alignment", DEFAULT_ALIGNMENT, &a, c->err));
    if (a < 1 || a > 65536 || (a & (a - 1)))
        return mb_fail(c->err, MB_BAD_FORMAT, "%s: general.alignment is %lld, must be a power of two up to 65,536", c->name,
                       (long long)a);
    *alignment = (uint64_t)a;
    uint64_t pad = (*alignment - c->at % *alignment) % *alignment;
    if (g->n_tensors == 0 && pad > c->size - c->at) pad = c->size - c->at;
    const uint8_t *skipped;
    return take(c, "the padding before the data", pad, &skipped);
}

static mb_status read_all(struct gguf *g, struct cursor *c)
{
    uint64_t n_values = 0, n_tensors = 0, alignment = 1;
    MB_TRY(take_header(c, g, &n_values, &n_tensors));
    g->values = arena_alloc_array(&g->arena, (size_t)n_values + 1, sizeof *g->values);
    g->values_by_key = arena_alloc_array(&g->arena, (size_t)n_values + 1, sizeof *g->values_by_key);
    g->tensors = arena_alloc_array(&g->arena, (size_t)n_tensors + 1, sizeof *g->tensors);
    g->tensors_by_name = arena_alloc_array(&g->arena, (size_t)n_tensors + 1, sizeof *g->tensors_by_name);
    if (g->arena.failed) return mb_fail(c->err, MB_NO_MEMORY, "%s: no memory for the tensor list", c->name);
    for (; g->n_values < n_values; g->n_values++) MB_TRY(take_value(c, g, &g->values[g->n_values]));
    MB_TRY(values_sort(c, g));
    MB_TRY(check_not_split(c, g));
    for (; g->n_tensors < n_tensors; g->n_tensors++) {
        g->tensors_by_name[g->n_tensors] = &g->tensors[g->n_tensors];
        MB_TRY(take_tensor(c, g, &g->tensors[g->n_tensors]));
    }
    MB_TRY(data_begin(c, g, &alignment));
    MB_TRY(check_tensor_places(c, g, alignment));
    for (size_t i = 0; i < g->n_tensors; i++) g->tensors[i].data = c->data + c->at + (uintptr_t)g->tensors[i].data;
    return tensors_sort(c, g);
}

static struct gguf *gguf_new(const char *name, size_t size_bytes)
{
    struct gguf *g = mb_calloc(1, sizeof *g);
    if (!g) return NULL;
    g->map.fd = -1;
    arena_init(&g->arena, size_bytes < (size_t)1 << 28 ? ((size_t)1 << 20) + 16 * size_bytes : (size_t)4 << 30);
    g->name = arena_strdup(&g->arena, name);
    if (!g->name) {
        gguf_close(g);
        return NULL;
    }
    return g;
}

mb_status gguf_parse(struct gguf **out, const uint8_t *data, size_t size_bytes, const char *name, mb_error *err)
{
    *out = NULL;
    struct gguf *g = gguf_new(name, size_bytes);
    if (!g) return mb_fail(err, MB_NO_MEMORY, "%.400s: no memory", name);
    g->base = data;
    struct cursor c = { data, size_bytes, 0, g->name, err };
    mb_status st = read_all(g, &c);
    if (st == MB_OK) *out = g;
    else gguf_close(g);
    return st;
}

mb_status gguf_open(struct gguf **out, const char *path, mb_error *err)
{
    struct filemap map;
    *out = NULL;
    MB_TRY(filemap_open(&map, path, err));
    mb_status st = gguf_parse(out, map.data, map.size_bytes, path, err);
    if (st == MB_OK) (*out)->map = map;
    else filemap_close(&map);
    return st;
}

void gguf_close(struct gguf *g)
{
    if (!g) return;
    if (g->map.fd >= 0) filemap_close(&g->map);
    arena_free(&g->arena);
    mb_free(g);
}

/* --- look-ups --- */

size_t gguf_n_values(const struct gguf *g)
{
    return g->n_values;
}

const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i)
{
    return &g->values[i];
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_value probe = { .key = key };
    const struct gguf_value *p = &probe, **found;
    found = bsearch(&p, g->values_by_key, g->n_values, sizeof *g->values_by_key, by_key);
    return found ? *found : NULL;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_tensor probe = { .name = name };
    const struct gguf_tensor *p = &probe, **found;
    found = bsearch(&p, g->tensors_by_name, g->n_tensors, sizeof *g->tensors_by_name, by_tensor_name);
    return found ? *found : NULL;
}

void gguf_drop(const struct gguf *g, const struct gguf_tensor *t, size_t off, size_t len)
{
    if (g->map.fd >= 0) filemap_drop(&g->map, (size_t)(t->data - g->base) + off, len);
}
