/* mlxbun_status.h: the status codes and the error record that every function of mlx-bun uses.
 *
 * Included by mlxbun.h (public) and by base/status.h (inside). It knows nothing else, so that both sides agree on
 * one enum. The table behind the codes (name, exit status, HTTP status) is src/base/errors.c.
 */
#ifndef MLXBUN_STATUS_H
#define MLXBUN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Values are part of the ABI: new ones are added at the end. */
typedef enum mb_status {
    MB_OK = 0,
    MB_INVALID = 1,           /* an argument or request field is wrong; the text names it */
    MB_NOT_FOUND = 2,         /* a file, model, adapter, flag or route does not exist */
    MB_BAD_FORMAT = 3,        /* a file or body is malformed; the text names file and byte or field */
    MB_UNSUPPORTED = 4,       /* well formed, but this version cannot do it; the text says what it can do instead */
    MB_NO_MEMORY = 5,         /* an allocation or a reservation failed; nothing was changed */
    MB_IO = 6,                /* the operating system refused; the text holds path and strerror */
    MB_TOO_LARGE = 7,         /* a documented ceiling would be passed; the text names the ceiling */
    MB_CONTEXT_LENGTH = 8,    /* prompt longer than the model's context */
    MB_CONTEXT_OVER_BUDGET = 9, /* prompt + 1 token do not fit the empty KV pool */
    MB_BUSY = 10,             /* a queue is full; try again later */
    MB_CANCELLED = 11,        /* the caller cancelled, or went away */
    MB_NON_FINITE = 12,       /* the model produced a NaN or an infinity where a number was due */
    MB_DEVICE = 13,           /* the compute device failed */
    MB_ENGINE_DEAD = 14,      /* the engine thread has ended; the process should be restarted */
    MB_TEMPLATE = 15,         /* the chat template raised an exception; the text is the template's own */
    MB_INTERNAL = 16          /* our own mistake; please report it */
} mb_status;

/* Filled by the function that fails, on the caller's stack; the caller never frees anything.
 * text: UTF-8, says what was found, what was wanted, where, and what to do; never echoes raw input bytes.
 * at:   a static string that names the field or file part at fault (for example "messages[2].content"), or NULL. */
typedef struct mb_error {
    mb_status code;
    char text[512];
    const char *at;
} mb_error;

#ifdef __cplusplus
}
#endif
#endif
