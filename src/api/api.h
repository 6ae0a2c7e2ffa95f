/* api.h: dialects: a JSON body becomes a gen_request, gen_events become JSON or SSE bytes. Nothing here knows HTTP.
 *
 * openai_chat.c and openai_completions.c are the dialects; openai_common.c holds the fields that both take (sampling,
 * stop, logprobs, and the refusals of what this version cannot do); openai_render.c writes answers; errors.c error
 * bodies; models.c the small JSON answers about the model.
 * Threads: a request and its renderer belong to one thread at a time.
 */
#ifndef API_API_H
#define API_API_H

#include "base/json.h"
#include "gen/gen.h"

#define API_MAX_CHOICES 128
#define API_MAX_TOP_LOGPROBS 11   /* API-063 */

struct api_request;

struct api_dialect {
    const char *name;
    const char *id_prefix;        /* "chatcmpl-" */
    const char *object, *chunk_object;
    bool is_chat;                 /* message/delta, not text */
    /* Check body (owned by r, may be changed) and fill r. MB_INVALID and MB_UNSUPPORTED with err->at = the field. */
    mb_status (*compile)(struct api_request *r, json_t *body, mb_error *err);
};
extern const struct api_dialect api_openai_chat, api_openai_completions;

/* A compiled request. Everything that gen points to lives in it. */
struct api_request {
    const struct api_dialect *dialect;
    struct gen_request gen;
    struct arena arena;
    json_t *body;                 /* owned */
    struct buf messages, tools, kwargs; /* JSON texts */
    bool stream, include_usage;
    bool want_logprobs;           /* the block is wanted (API-113, API-123) */
    int32_t n_top;                /* 0: the short form */
};

/* Parse and compile a body. On failure *out is NULL. MB_BAD_FORMAT for broken JSON, else what compile says. */
mb_status api_request_open(struct api_request **out, const struct api_dialect *d, const char *body, size_t len,
                           mb_error *err);
void api_request_close(struct api_request *r);
/* Free body and texts once generation has started (gen_start copied them); the options for rendering stay. */
void api_request_started(struct api_request *r);

/* --- answers --- */
struct api_render; /* opaque */
mb_status api_render_open(struct api_render **out, const struct api_request *r, const struct engine_client *client,
                          mb_error *err);
void api_render_close(struct api_render *w);
/* Take one event. A stream appends its SSE bytes to out; else the answer is gathered. GEN_EV_ERROR must go to
 * api_render_error or to an error reply instead. MB_NO_MEMORY, MB_CANCELLED (a choice was cut off from outside). */
mb_status api_render_event(struct api_render *w, const struct gen_event *ev, struct buf *out, mb_error *err);
/* The whole JSON answer, after GEN_EV_DONE. */
mb_status api_render_answer(struct api_render *w, struct buf *out, mb_error *err);
/* A failure after the stream opened: a terminal error event (Q14). */
void api_render_error(struct api_render *w, const mb_error *e, struct buf *out);

/* --- errors --- */
/* {"error": {"message", "type", "param", "code"}} of a status; http_status overrides type for 401, 403, 404, 405. */
void api_error_body(struct buf *out, int http_status, const char *type, const char *code, const char *param,
                    const char *message);
/* The same from an mb_error; returns the HTTP status. */
int api_error_body_of(struct buf *out, const mb_error *e);

/* --- the small ones --- */
void api_models_body(struct buf *out, const struct engine_client *client, const char *only_id); /* API-261..265 */
mb_status api_tokenize(struct buf *out, const struct engine_client *client, const char *body, size_t len, mb_error *err);
mb_status api_detokenize(struct buf *out, const struct engine_client *client, const char *body, size_t len,
                         mb_error *err);

#endif
