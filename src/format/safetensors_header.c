/* safetensors_header.c: the JSON header of one safetensors file, checked in full before any data are looked at.
 *
 * A header is an object name -> {dtype, shape, data_offsets}, with "__metadata__" aside. Accepted is only a header
 * whose tensors cover the data exactly once, in some order, without holes: every other one is refused by the name of
 * the tensor (B-109, B-110). Nothing here reads the file; checkpoint.c does and passes the number of data bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "format/safetensors_write.h"

#define MAX_NAME_BYTES 1024
#define NAME_TEXT 128 /* of a name in an error text */

/* One header being read: what the error texts need. */
struct header_reader {
    struct arena *arena;
    const char *file_name;
    uint64_t data_bytes;
    mb_error *err;
    char name[NAME_TEXT]; /* of the tensor at hand */
};

const char *tensor_safe_name(char *out, size_t cap, const char *name)
{
    size_t i = 0;
    for (; name[i] && i + 1 < cap; i++) out[i] = (unsigned char)name[i] < 32 || name[i] == 127 ? '?' : name[i];
    while (i > 0 && name[i] && ((unsigned char)name[i] & 0xc0) == 0x80) i--; /* not through a character */
    out[i] = 0;
    return out;
}

mb_status tensor_span(enum dtype t, const int64_t *shape, int n_dim, uint64_t *bytes, mb_error *err)
{
    uint64_t n = (uint64_t)dtype_get(t)->size_bytes;
    *bytes = 0;
    for (int i = 0; i < n_dim; i++)
        if (shape[i] == 0) return MB_OK;
    for (int i = 0; i < n_dim; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(n, (uint64_t)shape[i], &n) || n > INT64_MAX)
            return mb_fail(err, MB_TOO_LARGE, "the shape times the size of its type does not fit in 63 bits");
    *bytes = n;
    return MB_OK;
}

static mb_status refuse(struct header_reader *h, const char *what)
{
    return mb_fail(h->err, MB_BAD_FORMAT, "%s: tensor %s: %s", h->file_name, h->name, what);
}

static mb_status read_dtype(struct header_reader *h, const json_t *info, enum dtype *out)
{
    const json_t *v = json_object_get(info, "dtype");
    char text[32];
    if (!json_is_string(v)) return refuse(h, "dtype must be a string");
    if (dtype_parse(json_string_value(v), json_string_length(v), out)) return MB_OK;
    return mb_fail(h->err, MB_UNSUPPORTED, "%s: tensor %s has the unknown dtype %s", h->file_name, h->name,
                   tensor_safe_name(text, sizeof text, json_string_value(v)));
}

static mb_status read_shape(struct header_reader *h, const json_t *info, struct tensor_view *t)
{
    const json_t *v = json_object_get(info, "shape");
    if (!json_is_array(v)) return refuse(h, "shape must be a list of whole numbers");
    if (json_array_size(v) > TENSOR_MAX_DIM)
        return mb_fail(h->err, MB_UNSUPPORTED, "%s: tensor %s has %zu dimensions, at most %d", h->file_name, h->name,
                       json_array_size(v), TENSOR_MAX_DIM);
    t->n_dim = (int)json_array_size(v);
    for (int i = 0; i < t->n_dim; i++) {
        const json_t *d = json_array_get(v, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return refuse(h, "shape must be a list of whole numbers, none negative");
        t->shape[i] = json_integer_value(d);
    }
    return MB_OK;
}

static mb_status read_offsets(struct header_reader *h, const json_t *info, uint64_t *first, uint64_t *end)
{
    const json_t *v = json_object_get(info, "data_offsets");
    if (!json_is_array(v) || json_array_size(v) != 2) return refuse(h, "data_offsets must be a list of two numbers");
    const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    if (!json_is_integer(a) || !json_is_integer(b)) return refuse(h, "data_offsets must be whole numbers below 2^63");
    if (json_integer_value(a) < 0 || json_integer_value(b) < 0) return refuse(h, "data_offsets are negative");
    if (json_integer_value(a) > json_integer_value(b)) return refuse(h, "data_offsets are reversed");
    *first = (uint64_t)json_integer_value(a);
    *end = (uint64_t)json_integer_value(b);
    return MB_OK;
}

/* Until the file is mapped, t->data holds the first byte as a number: the offset inside the data part. */
static mb_status read_tensor(struct header_reader *h, const char *name, const json_t *info, struct tensor_view *t)
{
    uint64_t first = 0, end = 0, span = 0;
    tensor_safe_name(h->name, sizeof h->name, name);
    if (name[0] == 0) return mb_fail(h->err, MB_BAD_FORMAT, "%s: a tensor has an empty name", h->file_name);
    if (strlen(name) > MAX_NAME_BYTES) return refuse(h, "the name is longer than 1024 bytes");
    if (!json_is_object(info)) return refuse(h, "its entry must be an object with dtype, shape and data_offsets");
    MB_TRY(read_dtype(h, info, &t->dtype));
    MB_TRY(read_shape(h, info, t));
    MB_TRY(read_offsets(h, info, &first, &end));
    if (tensor_span(t->dtype, t->shape, t->n_dim, &span, NULL) != MB_OK)
        return refuse(h, "its shape times the size of its dtype does not fit in 63 bits");
    if (span != end - first)
        return mb_fail(h->err, MB_BAD_FORMAT, "%s: tensor %s: shape and dtype give %llu bytes, data_offsets %llu",
                       h->file_name, h->name, (unsigned long long)span, (unsigned long long)(end - first));
    t->name = arena_strdup(h->arena, name);
    if (!t->name) return mb_fail(h->err, MB_NO_MEMORY, "%s: no memory for the header", h->file_name);
    t->data = (const uint8_t *)(uintptr_t)first;
    t->size_bytes = (size_t)span;
    return MB_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct tensor_view *x = a, *y = b;
    uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;
    if (p != q) return p < q ? -1 : 1;
    return x->size_bytes < y->size_bytes ? -1 : x->size_bytes > y->size_bytes;
}

/* Sorted by offset, the tensors must lie end to end from 0 to data_bytes. */
static mb_status check_cover(struct header_reader *h, struct tensor_view *t, size_t n)
{
    uint64_t at = 0;
    qsort(t, n, sizeof *t, by_offset);
    for (size_t i = 0; i < n; i++) {
        uint64_t first = (uint64_t)(uintptr_t)t[i].data, end = first + t[i].size_bytes;
        tensor_safe_name(h->name, sizeof h->name, t[i].name);
        if (first < at) {
            char before[NAME_TEXT];
            return mb_fail(h->err, MB_BAD_FORMAT, "%s: tensors %s and %s overlap at byte %llu of the data",
                           h->file_name, tensor_safe_name(before, sizeof before, t[i - 1].name), h->name,
                           (unsigned long long)first);
        }
        if (first > at)
            return mb_fail(h->err, MB_BAD_FORMAT, "%s: a hole of %llu bytes stands before tensor %s", h->file_name,
                           (unsigned long long)(first - at), h->name);
        if (end > h->data_bytes) {
            /* The last one ends furthest when the file is whole but for its tail. */
            uint64_t wanted = (uint64_t)(uintptr_t)t[n - 1].data + t[n - 1].size_bytes;
            return mb_fail(h->err, MB_BAD_FORMAT,
                           "%s: incomplete: have %llu of %llu bytes of tensor data (tensor %s ends behind the file); "
                           "fetch the file again", h->file_name, (unsigned long long)h->data_bytes,
                           (unsigned long long)wanted, h->name);
        }
        at = end;
    }
    if (at != h->data_bytes)
        return mb_fail(h->err, MB_BAD_FORMAT, "%s: %llu bytes stand behind the last tensor", h->file_name,
                       (unsigned long long)(h->data_bytes - at));
    return MB_OK;
}

static mb_status check_metadata(struct header_reader *h, const json_t *m)
{
    const char *key;
    json_t *v;
    if (!json_is_object(m)) return mb_fail(h->err, MB_BAD_FORMAT, "%s: __metadata__ must be an object", h->file_name);
    json_object_foreach((json_t *)(uintptr_t)m, key, v)
        if (!json_is_string(v))
            return mb_fail(h->err, MB_BAD_FORMAT, "%s: __metadata__ must hold strings only", h->file_name);
    return MB_OK;
}

static mb_status read_tensors(struct header_reader *h, json_t *root, struct tensor_view **out, size_t *n_out)
{
    const char *name;
    json_t *info;
    size_t n = 0;
    struct tensor_view *t = arena_alloc_array(h->arena, json_object_size(root) + 1, sizeof *t);
    if (!t) return mb_fail(h->err, MB_NO_MEMORY, "%s: no memory for the header", h->file_name);
    json_object_foreach(root, name, info) {
        if (strcmp(name, "__metadata__") == 0) MB_TRY(check_metadata(h, info));
        else MB_TRY(read_tensor(h, name, info, &t[n++]));
    }
    MB_TRY(check_cover(h, t, n));
    *out = t;
    *n_out = n;
    return MB_OK;
}

mb_status safetensors_parse_header(struct arena *a, const char *file_name, const char *json, size_t len,
                                   uint64_t data_bytes, struct tensor_view **out, size_t *n_out, mb_error *err)
{
    struct header_reader h = { .arena = a, .file_name = file_name, .data_bytes = data_bytes, .err = err };
    json_t *root = NULL;
    *out = NULL;
    *n_out = 0;
    if (len == 0 || json[0] != '{')
        return mb_fail(err, MB_BAD_FORMAT, "%s: the header is not a JSON object", file_name);
    mb_status st = json_read(&root, json, len, JSON_READ_REJECT_DUPLICATES, err);
    if (st != MB_OK) {
        mb_error_prefix(err, "%s: safetensors header", file_name);
        return st;
    }
    st = json_is_object(root) ? read_tensors(&h, root, out, n_out)
                              : mb_fail(err, MB_BAD_FORMAT, "%s: the header is not a JSON object", file_name);
    json_decref(root);
    return st;
}
