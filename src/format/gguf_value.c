/* gguf_value.c: metadata values of a GGUF file as C numbers and strings. Bounds were checked when the file was opened;
 * what is left here is the width of a number and the type a caller wants.
 */
#include <string.h>

#include "format/gguf.h"

static bool is_int(enum gguf_value_type t)
{
    return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

static mb_status wrong_type(const struct gguf_value *v, const char *wanted, mb_error *err)
{
    return mb_fail(err, MB_BAD_FORMAT, "the metadata key %.200s must be %s", v->key, wanted);
}

int64_t gguf_item_int(const struct gguf_value *v, uint64_t i)
{
    uint8_t u8;
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    int64_t i64;
    switch (v->item) {
    case GGUF_U8: case GGUF_BOOL: memcpy(&u8, v->data + i, 1); return u8;
    case GGUF_I8: memcpy(&i8, v->data + i, 1); return i8;
    case GGUF_U16: memcpy(&u16, v->data + 2 * i, 2); return u16;
    case GGUF_I16: memcpy(&i16, v->data + 2 * i, 2); return i16;
    case GGUF_U32: memcpy(&u32, v->data + 4 * i, 4); return u32;
    case GGUF_I32: memcpy(&i32, v->data + 4 * i, 4); return i32;
    case GGUF_U64: case GGUF_I64: memcpy(&i64, v->data + 8 * i, 8); return i64;
    default: return 0;
    }
}

double gguf_item_float(const struct gguf_value *v, uint64_t i)
{
    float f;
    double d;
    if (v->item == GGUF_F32) {
        memcpy(&f, v->data + 4 * i, 4);
        return f;
    }
    if (v->item != GGUF_F64) return 0;
    memcpy(&d, v->data + 8 * i, 8);
    return d;
}

bool gguf_item_next(const struct gguf_value *v, size_t *off, struct str *out)
{
    uint64_t len;
    *out = (struct str){ NULL, 0 };
    if (v->item != GGUF_STRING || *off >= v->size_bytes) return false;
    memcpy(&len, v->data + *off, sizeof len);
    *out = (struct str){ (const char *)v->data + *off + sizeof len, (size_t)len };
    *off += sizeof len + (size_t)len;
    return true;
}

mb_status gguf_get_int(const struct gguf *g, const char *key, int64_t dflt, int64_t *out, mb_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    *out = dflt;
    if (!v) return MB_OK;
    if (v->type == GGUF_ARRAY || !is_int(v->type)) return wrong_type(v, "a whole number", err);
    *out = gguf_item_int(v, 0);
    if (v->type == GGUF_U64 && *out < 0) return wrong_type(v, "a whole number below 2^63", err);
    return MB_OK;
}

mb_status gguf_get_float(const struct gguf *g, const char *key, double dflt, double *out, mb_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    *out = dflt;
    if (!v) return MB_OK;
    if (v->type != GGUF_F32 && v->type != GGUF_F64) return wrong_type(v, "a float", err);
    *out = gguf_item_float(v, 0);
    return MB_OK;
}

mb_status gguf_get_bool(const struct gguf *g, const char *key, bool dflt, bool *out, mb_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    *out = dflt;
    if (!v) return MB_OK;
    if (v->type != GGUF_BOOL) return wrong_type(v, "a boolean", err);
    *out = gguf_item_int(v, 0) != 0;
    return MB_OK;
}

mb_status gguf_get_string(const struct gguf *g, const char *key, struct str *out, mb_error *err)
{
    const struct gguf_value *v = gguf_find(g, key);
    size_t off = 0;
    *out = (struct str){ NULL, 0 };
    if (!v) return MB_OK;
    if (v->type != GGUF_STRING) return wrong_type(v, "a string", err);
    gguf_item_next(v, &off, out);
    return MB_OK;
}
