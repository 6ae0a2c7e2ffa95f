/* status.c: fills mb_error records. The text is formatted aside first, so that an argument may point into err->text.
 * Nothing here allocates: it must work when memory is gone. */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Length of text after cutting a UTF-8 character that the end of the buffer split. */
static size_t cut_at_character(const char *text, size_t len)
{
    size_t n_tail = 0;
    while (n_tail < len && n_tail < 3 && ((unsigned char)text[len - 1 - n_tail] & 0xC0) == 0x80) n_tail++;
    if (n_tail == len) return len;
    unsigned char lead = (unsigned char)text[len - 1 - n_tail];
    size_t want = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    return want == n_tail ? len : len - 1 - n_tail;
}

static void format_text(char *out, size_t cap, const char *fmt, va_list ap)
{
    int n = vsnprintf(out, cap, fmt, ap);
    if (n < 0) out[0] = 0;
    else if ((size_t)n >= cap) out[cut_at_character(out, cap - 1)] = 0;
}

static mb_status fail_va(mb_error *err, mb_status code, const char *at, const char *fmt, va_list ap)
{
    if (!err) return code;
    char text[sizeof err->text];
    format_text(text, sizeof text, fmt, ap);
    memcpy(err->text, text, sizeof text);
    err->code = code;
    err->at = at;
    return code;
}

mb_status mb_fail(mb_error *err, mb_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_va(err, code, NULL, fmt, ap);
    va_end(ap);
    return code;
}

mb_status mb_fail_at(mb_error *err, mb_status code, const char *at, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_va(err, code, at, fmt, ap);
    va_end(ap);
    return code;
}

mb_status mb_fail_errno(mb_error *err, const char *what, const char *path)
{
    int number = errno;
    mb_status code = number == ENOENT ? MB_NOT_FOUND : number == ENOMEM ? MB_NO_MEMORY : MB_IO;
    char reason[128];
    /* GNU form: returns the text, which may or may not be in `reason`. */
    const char *text = strerror_r(number, reason, sizeof reason);
    return mb_fail(err, code, "%s %s: %s", what, path ? path : "", text);
}

mb_status mb_error_prefix(mb_error *err, const char *fmt, ...)
{
    if (!err) return MB_INTERNAL;
    char prefix[sizeof err->text], old[sizeof err->text];
    va_list ap;
    va_start(ap, fmt);
    format_text(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    memcpy(old, err->text, sizeof old);
    return mb_fail_at(err, err->code, err->at, "%s: %s", prefix, old);
}
