/* errors.h: the error table. One row a status code: its name, the process exit status and the HTTP status.
 * Read by mb_fail's callers in api and cli, and by docs/errors.md. Owner: base/errors.c.
 */
#ifndef BASE_ERRORS_H
#define BASE_ERRORS_H

#include "base/status.h"

struct error_row {
    mb_status code;
    const char *name;        /* "MB_BAD_FORMAT" */
    int exit_status;         /* of the command line: 0 ok, 1 failed, 2 wrong usage, 3 not found ... */
    int http_status;         /* 400, 404, 429, 500, 503 ... */
    const char *http_type;   /* error.type of an OpenAI style body, e.g. "invalid_request_error" */
    const char *http_code;   /* error.code, or NULL */
    const char *meaning;     /* one sentence for docs/errors.md */
};

/* Row of a code; the row of MB_INTERNAL for an unknown one. Never NULL. */
const struct error_row *error_row_get(mb_status code);
/* All rows, for the documentation generator. */
const struct error_row *error_rows(size_t *n_rows);

#endif
