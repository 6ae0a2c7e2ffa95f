/* gguf.h: a GGUF file as metadata and bounds-checked tensor views.
 *
 * Versions 2 and 3, little endian. Everything is checked while opening: every length against the file, counts against
 * ceilings, names for duplicates, each tensor's bytes against the data part (no overlap, "incomplete: have X of Y
 * bytes"). Values and tensors are views into the map, valid until gguf_close. Threads: any, once open.
 * Source: the GGUF description and block layouts of ggml (facts only); tests/oracle/ checks against the gguf package.
 */
#ifndef FORMAT_GGUF_H
#define FORMAT_GGUF_H

#include "base/filemap.h"
#include "base/status.h"

#define GGUF_MAX_DIM 4

enum gguf_value_type {
    GGUF_U8 = 0, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
    GGUF_U64, GGUF_I64, GGUF_F64, GGUF_VALUE_COUNT
};

/* Numbers are those of the file. */
enum gguf_tensor_type {
    GGUF_T_F32 = 0, GGUF_T_F16 = 1, GGUF_T_Q4_0 = 2, GGUF_T_Q4_1 = 3, GGUF_T_Q5_0 = 6, GGUF_T_Q5_1 = 7, GGUF_T_Q8_0 = 8,
    GGUF_T_Q4_K = 12, GGUF_T_Q5_K = 13, GGUF_T_Q6_K = 14, GGUF_T_BF16 = 30
};

struct gguf_type_row {
    int type;
    const char *name;      /* "Q4_K" */
    int block_elements;    /* weights of one block */
    int block_bytes;       /* 0: known by name only; the reader refuses the file with MB_UNSUPPORTED */
};
/* Row of a tensor type; NULL for a number nobody knows. */
const struct gguf_type_row *gguf_type_get(uint32_t type);

struct gguf_value {
    const char *key;            /* NUL-terminated, owned by the gguf */
    enum gguf_value_type type;
    enum gguf_value_type item;  /* of an array's elements */
    uint64_t n_items;           /* 1, or an array's length */
    const uint8_t *data;        /* the (first) item in the file, unaligned */
    size_t size_bytes;          /* of all items */
};

struct gguf_tensor {
    const char *name;           /* NUL-terminated, owned by the gguf */
    const struct gguf_type_row *type;
    int n_dim;
    int64_t ne[GGUF_MAX_DIM];   /* innermost first; 1 beyond n_dim */
    const uint8_t *data;
    size_t size_bytes;
};

struct gguf; /* opaque */

/* Map and check a file. MB_NOT_FOUND, MB_IO, MB_BAD_FORMAT (file and byte), MB_UNSUPPORTED (version, byte order,
 * tensor type, one part of a split file; with the remedy), MB_NO_MEMORY. */
mb_status gguf_open(struct gguf **out, const char *path, mb_error *err);
/* The same over bytes that outlive the gguf; name is for error texts. What the fuzzer drives. */
mb_status gguf_parse(struct gguf **out, const uint8_t *data, size_t size_bytes, const char *name, mb_error *err);
void gguf_close(struct gguf *g);

size_t gguf_n_values(const struct gguf *g);
const struct gguf_value *gguf_value_at(const struct gguf *g, size_t i);
const struct gguf_value *gguf_find(const struct gguf *g, const char *key); /* NULL when absent */

/* Typed look-ups: an absent key gives the default, another type MB_BAD_FORMAT naming the key. Integers of any width
 * are one type; so are floats (f32 keeps its value). */
mb_status gguf_get_int(const struct gguf *g, const char *key, int64_t dflt, int64_t *out, mb_error *err);
mb_status gguf_get_float(const struct gguf *g, const char *key, double dflt, double *out, mb_error *err);
mb_status gguf_get_bool(const struct gguf *g, const char *key, bool dflt, bool *out, mb_error *err);
/* A view without NUL; ptr NULL when absent. */
mb_status gguf_get_string(const struct gguf *g, const char *key, struct str *out, mb_error *err);

/* Items of an array. gguf_item_int and _float need i < n_items and an item type of that kind (0 otherwise). */
int64_t gguf_item_int(const struct gguf_value *v, uint64_t i);
double gguf_item_float(const struct gguf_value *v, uint64_t i);
/* Walk a string array: *off starts at 0; false behind the last one. */
bool gguf_item_next(const struct gguf_value *v, size_t *off, struct str *out);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i); /* in the file's order */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL when absent */
/* The tensor's bytes [off, off + len) will not be read again. */
void gguf_drop(const struct gguf *g, const struct gguf_tensor *t, size_t off, size_t len);

#endif
