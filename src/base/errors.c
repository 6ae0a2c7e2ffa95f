/* errors.c: the error table. One row a status code, in the order of the enum, so that a code is its index. */
#include "base/errors.h"

#define INVALID_REQUEST "invalid_request_error"

static const struct error_row rows[] = {
    { MB_OK, "MB_OK", 0, 200, NULL, NULL, "Success." },
    { MB_INVALID, "MB_INVALID", 2, 400, INVALID_REQUEST, NULL,
      "An argument or a request field is wrong; the text names it." },
    { MB_NOT_FOUND, "MB_NOT_FOUND", 3, 404, INVALID_REQUEST, "not_found",
      "A file, model, adapter, flag or route does not exist." },
    { MB_BAD_FORMAT, "MB_BAD_FORMAT", 4, 400, INVALID_REQUEST, NULL,
      "A file or a body is malformed; the text names the file and the byte or field." },
    { MB_UNSUPPORTED, "MB_UNSUPPORTED", 5, 400, INVALID_REQUEST, "unsupported",
      "Well formed, but this version cannot do it; the text says what it can do instead." },
    { MB_NO_MEMORY, "MB_NO_MEMORY", 6, 503, "server_error", "no_memory",
      "An allocation or a reservation failed; nothing was changed." },
    { MB_IO, "MB_IO", 7, 500, "server_error", "io_error",
      "The operating system refused; the text holds the path and its reason." },
    { MB_TOO_LARGE, "MB_TOO_LARGE", 8, 413, INVALID_REQUEST, "too_large",
      "A documented ceiling would be passed; the text names it." },
    { MB_CONTEXT_LENGTH, "MB_CONTEXT_LENGTH", 9, 400, INVALID_REQUEST, "context_length_exceeded",
      "The prompt is longer than the model's context." },
    { MB_CONTEXT_OVER_BUDGET, "MB_CONTEXT_OVER_BUDGET", 10, 400, "memory_admission", "context_over_budget",
      "The prompt and one token do not fit the empty KV pool." },
    { MB_BUSY, "MB_BUSY", 11, 429, "rate_limit_error", "queue_full",
      "A queue is full; try again later." },
    { MB_CANCELLED, "MB_CANCELLED", 12, 499, INVALID_REQUEST, "cancelled",
      "The caller cancelled, or went away." },
    { MB_NON_FINITE, "MB_NON_FINITE", 13, 500, "server_error", "non_finite",
      "The model produced a NaN or an infinity where a number was due." },
    { MB_DEVICE, "MB_DEVICE", 14, 500, "server_error", "device_failed",
      "The compute device failed." },
    { MB_ENGINE_DEAD, "MB_ENGINE_DEAD", 15, 503, "server_error", "engine_dead",
      "The engine thread has ended; restart the process." },
    { MB_TEMPLATE, "MB_TEMPLATE", 16, 400, INVALID_REQUEST, "template_error",
      "The chat template raised an exception; the text is the template's own." },
    { MB_INTERNAL, "MB_INTERNAL", 1, 500, "server_error", "internal_error",
      "A mistake of this program; please report it." },
};

_Static_assert(sizeof rows / sizeof rows[0] == MB_INTERNAL + 1, "one row a code");

const struct error_row *error_row_get(mb_status code)
{
    if ((int)code < 0 || (int)code > MB_INTERNAL) return &rows[MB_INTERNAL];
    return &rows[code];
}

const struct error_row *error_rows(size_t *n_rows)
{
    *n_rows = sizeof rows / sizeof rows[0];
    return rows;
}
