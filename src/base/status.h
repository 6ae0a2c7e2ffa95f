/* status.h: how a function of this program says that it failed.
 *
 * Every function that can fail returns mb_status and takes `mb_error *err` (may be NULL) as its last argument.
 * Results go through out-parameters, which are set to zero on failure. Raise with mb_fail, pass on with MB_TRY,
 * clean up with one `goto done`. Threads: an mb_error belongs to its caller; nothing here is shared.
 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mlxbun_status.h"

/* Write code and formatted text into err (if not NULL; a longer text is cut at a character boundary) and return code.
 * err->at is set to NULL. code must not be MB_OK. */
mb_status mb_fail(mb_error *err, mb_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The same with the place at fault: `at` is a static or interned string, kept by pointer. */
mb_status mb_fail_at(mb_error *err, mb_status code, const char *at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* MB_IO with "<what> <path>: <strerror(errno)>" (MB_NOT_FOUND for ENOENT, MB_NO_MEMORY for ENOMEM). */
mb_status mb_fail_errno(mb_error *err, const char *what, const char *path);
/* Put a prefix and ": " before the text already in err; returns err->code. For adding the place on the way up. */
mb_status mb_error_prefix(mb_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define MB_TRY(call)                                  \
    do {                                              \
        mb_status mb_try_status_ = (call);            \
        if (mb_try_status_ != MB_OK) return mb_try_status_; \
    } while (0)

#define MB_TRY_GOTO(status_var, call, label)          \
    do {                                              \
        (status_var) = (call);                        \
        if ((status_var) != MB_OK) goto label;        \
    } while (0)

#endif
