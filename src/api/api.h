/* api.h: dialects: a JSON body becomes a gen_request, gen_events become JSON or SSE bytes. Nothing here knows HTTP.
 *
 * A dialect is a row: compile, a renderer (begin, event, answer, error, ping) and the form of its error bodies.
 *
 *   openai_*.c     chat completions and completions; openai_common.c holds the fields that every dialect takes
 *   anthropic*.c   Anthropic messages, count_tokens
 *   responses*.c   OpenAI Responses, over host/response_store.h
 *   peek.c         a body's member and a stream's end for who does not read them
 *   request.c      life of a request and its renderer; conversation.c: history of the last two; errors.c; models.c
 *
 * Threads: a request and its renderer belong to one thread at a time.
 */
#ifndef API_API_H
#define API_API_H

#include "base/json.h"
#include "gen/gen.h"

#define API_MAX_CHOICES 128
#define API_MAX_TOP_LOGPROBS 11   /* API-063 */

struct api_request;
struct response_store;

/* What compiling and answering may need besides the body; borrowed, outlives the request. */
struct api_env {
    const struct engine_client *client;
    struct response_store *store;     /* NULL: nothing is stored */
    bool keep_billing_header;         /* B-079: let the line reach the model */
};

/* gen_events -> bytes. `ctx` is what open made. */
struct api_renderer {
    mb_status (*open)(void **ctx, const struct api_request *r, const struct engine_client *client, mb_error *err);
    void (*close)(void *ctx);        /* NULL is allowed */
    mb_status (*event)(void *ctx, const struct gen_event *ev, struct buf *out, mb_error *err);
    mb_status (*answer)(void *ctx, struct buf *out, mb_error *err);
    void (*error)(void *ctx, const mb_error *e, struct buf *out);
    void (*ping)(void *ctx, struct buf *out); /* a line for a silent stream; NULL, or nothing appended: a comment */
};

struct api_dialect {
    const char *name;
    const char *id_prefix;        /* "chatcmpl-" */
    const char *object, *chunk_object; /* openai_render.c: "object" of an answer, of a chunk */
    bool is_chat;                 /* openai_render.c: message/delta, not text */
    /* Check body (owned by r, may be changed) and fill r. MB_INVALID and MB_UNSUPPORTED with err->at = the field. */
    mb_status (*compile)(struct api_request *r, json_t *body, mb_error *err);
    void (*release)(struct api_request *r); /* free r->priv; NULL: there is none */
    const struct api_renderer *renderer;
    /* An error body. type, code, param may be NULL. NULL: the OpenAI form. */
    void (*error_body)(struct buf *out, int http_status, const char *type, const char *code, const char *param,
                       const char *message);
};
extern const struct api_dialect api_openai_chat, api_openai_completions, api_anthropic, api_responses;

/* A compiled request. Everything that gen points to lives in it. */
struct api_request {
    const struct api_dialect *dialect;
    const struct api_env *env;
    struct gen_request gen;
    struct arena arena;
    json_t *body;                 /* owned */
    struct buf messages, tools, kwargs, constraint; /* JSON texts (constraint: of its kind) */
    struct buf warning;           /* what compile left out, for a Warning header; empty: nothing */
    bool stream, include_usage;
    bool want_logprobs;           /* the block is wanted (API-113, API-123) */
    int32_t n_top;                /* 0: the short form */
    void *priv;                   /* of the dialect; lives until api_request_close */
};

/* Parse and compile a body. On failure *out is NULL. MB_BAD_FORMAT for broken JSON, else what compile says. */
mb_status api_request_open(struct api_request **out, const struct api_dialect *d, const struct api_env *env,
                           const char *body, size_t len, mb_error *err);
void api_request_close(struct api_request *r);
/* Free body and texts once generation has started (gen_start copied them); what rendering needs stays. */
void api_request_started(struct api_request *r);

/* --- answers --- */
struct api_render; /* opaque */
/* r must outlive the renderer. */
mb_status api_render_open(struct api_render **out, const struct api_request *r, mb_error *err);
void api_render_close(struct api_render *w);
/* Take one event. A stream appends its SSE bytes to out; else the answer is gathered. GEN_EV_ERROR must go to
 * api_render_error or to an error reply instead. MB_NO_MEMORY, MB_CANCELLED (a choice was cut off from outside). */
mb_status api_render_event(struct api_render *w, const struct gen_event *ev, struct buf *out, mb_error *err);
/* The whole JSON answer, after GEN_EV_DONE. */
mb_status api_render_answer(struct api_render *w, struct buf *out, mb_error *err);
/* A failure after the stream opened: a terminal error event (Q14). */
void api_render_error(struct api_render *w, const mb_error *e, struct buf *out);
/* A line for a stream that has been silent (B-044): the dialect's own, or a comment with the progress of prefill. */
void api_render_ping(struct api_render *w, int32_t n_done, int32_t n_total, struct buf *out);

/* --- errors --- */
/* The error body of a dialect (NULL: the OpenAI form, {"error": {"message", "type", "param", "code"}}); type NULL: by
 * the HTTP status. */
void api_error_body(struct buf *out, const struct api_dialect *d, int http_status, const char *type, const char *code,
                    const char *param, const char *message);
/* The same from an mb_error; returns the HTTP status. */
int api_error_body_of(struct buf *out, const struct api_dialect *d, const mb_error *e);

/* --- for who passes bodies and streams on without reading them (peek.c) --- */
/* A string member of the object that body begins, by a walk over its bytes. false: there is none, or it is longer than cap - 1. */
bool api_peek_string(const char *body, size_t len, const char *name, char *out, size_t cap);
/* The last event of a stream of this dialect (NULL: OpenAI) that cannot go on. n_events: how many events its client has had. */
void api_stream_broken(struct buf *out, const struct api_dialect *d, int64_t n_events, int http_status, const char *code, const char *message);

/* --- the small ones --- */
/* A body that must be a JSON object. json_decref; NULL on failure. */
mb_status api_body_read(json_t **out, const char *body, size_t len, mb_error *err);
void api_models_body(struct buf *out, const struct engine_client *client, const char *only_id); /* API-261..265 */
mb_status api_tokenize(struct buf *out, const struct engine_client *client, const char *body, size_t len, mb_error *err);
mb_status api_detokenize(struct buf *out, const struct engine_client *client, const char *body, size_t len,
                         mb_error *err);

/* --- adapters (section 23); problems: one line each of what does not fit --- */
void api_adapters_list(struct buf *out, const struct engine_client *client);
void api_adapters_available(struct buf *out, const struct engine_client *client);
mb_status api_adapter_mount(struct buf *out, struct buf *problems, const struct engine_client *client, const char *body,
                            size_t len, mb_error *err);
mb_status api_adapter_unmount(struct buf *out, const struct engine_client *client, const char *id, mb_error *err);

/* --- embeddings (section 18): compile a body, then run it on a thread that may wait --- */
struct api_embed; /* opaque */
mb_status api_embed_open(struct api_embed **out, const char *body, size_t len, mb_error *err);
void api_embed_close(struct api_embed *e); /* NULL is allowed */
/* gone: see gen_embed_request. The whole answer goes to out. */
mb_status api_embed_run(struct api_embed *e, const struct engine_client *client, bool (*gone)(void *ctx), void *gone_ctx,
                        struct buf *out, mb_error *err);
/* POST /v1/messages/count_tokens: {"input_tokens": N} of the body that /v1/messages would take (Q33). */
mb_status api_anthropic_count(struct buf *out, const struct api_env *env, const char *body, size_t len, mb_error *err);
/* GET and DELETE /v1/responses/{id}, GET /v1/responses/{id}/input_items (path: what follows "/v1/responses/").
 * MB_NOT_FOUND for an id that is unknown or too old. */
struct api_page { const char *order, *after, *limit; }; /* query values of the list, NULL: not given */
mb_status api_responses_get(struct buf *out, const struct api_env *env, const char *path, const struct api_page *page,
                            mb_error *err);
mb_status api_responses_delete(struct buf *out, const struct api_env *env, const char *id, mb_error *err);

#endif
