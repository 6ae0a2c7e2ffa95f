/* json.h: JSON over jansson, with the rules this program needs on top.
 *
 * Reading: strict RFC 8259, UTF-8 checked, depth at most JSON_MAX_DEPTH (128), duplicate keys refused on request
 * bodies, integers beyond 64 bits kept as text (see json_is_bigint), NUL allowed in strings. Error texts hold line,
 * column and byte, never the bytes themselves.
 * Writing: into a struct buf. Numbers in the shortest form that reads back the same, as Python's repr prints them
 * (1.0 stays 1.0, 1e+16 as 1e+16); non-finite numbers are written as null. Strings: only what RFC 8259 demands is
 * escaped, everything else is literal UTF-8; invalid UTF-8 becomes U+FFFD.
 * Trees are jansson's json_t: borrowed and owned references are named as in its manual.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <jansson.h>

#include "base/buf.h"

#define JSON_MAX_DEPTH 128

enum json_read_flags {
    JSON_READ_DEFAULT = 0,
    JSON_READ_REJECT_DUPLICATES = 1, /* two equal keys in one object: MB_BAD_FORMAT that names the key's place */
    JSON_READ_ANY = 2,               /* the top value may be of any type (else object or array) */
};

/* Parse text of len bytes. *out is a new reference (json_decref), NULL on failure. MB_BAD_FORMAT, MB_NO_MEMORY. */
mb_status json_read(json_t **out, const char *text, size_t len, int flags, mb_error *err);
/* What json_read would take of memory for its tree, at most and at its peak, and the text's bytes without blanks between
 * values: for texts of strangers, whose trees can be fifty times as large as they are. Any bytes; reads them once. */
struct json_weight {
    size_t tree_bytes, text_bytes;
};
struct json_weight json_weigh(const char *text, size_t len);
/* Read and parse a whole file of at most limit_bytes. Errors name the path. */
mb_status json_read_file(json_t **out, const char *path, size_t limit_bytes, mb_error *err);
/* The same of what a user names on the command line, as file_read_any takes it. */
mb_status json_read_file_any(json_t **out, const char *path, size_t limit_bytes, mb_error *err);

/* An integer that does not fit in 64 bits: json_read keeps it as a string object tagged by us. Returns its digits or
 * NULL when v is anything else. The tag survives json_incref/copy but not json_deep_copy. */
const char *json_bigint_text(const json_t *v);
/* A string, and not such an integer: what json_is_string alone cannot tell. NULL: false. */
bool json_is_text(const json_t *v);

/* Append v in compact form: separators "," and ":" (python_spaces: ", " and ": "). indent > 0: pretty, Python's form.
 * sort_keys false keeps insertion order. ensure_ascii escapes above U+007F as \uXXXX pairs. */
struct json_write_opts {
    bool python_spaces;
    bool sort_keys;
    bool ensure_ascii;
    int indent;
};
void json_write(struct buf *b, const json_t *v, const struct json_write_opts *opts);
/* Append one quoted string / one number. */
void json_write_string(struct buf *b, const char *s, size_t len);
void json_write_double(struct buf *b, double v);
void json_write_int(struct buf *b, int64_t v);

/* Typed look-ups in an object; a missing or null key gives the default and MB_OK, another type MB_INVALID with
 * "<key> must be of type <type>" and err->at = key (key must be a static string). */
mb_status json_get_int(const json_t *obj, const char *key, int64_t dflt, int64_t *out, mb_error *err);
mb_status json_get_double(const json_t *obj, const char *key, double dflt, double *out, mb_error *err);
mb_status json_get_bool(const json_t *obj, const char *key, bool dflt, bool *out, mb_error *err);
/* Borrowed from obj; NUL inside a string is refused (MB_INVALID). */
mb_status json_get_str(const json_t *obj, const char *key, const char *dflt, const char **out, mb_error *err);

#endif
