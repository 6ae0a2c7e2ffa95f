/* routes.h: the route table: what the server answers, as data. Read by the dispatcher, docs/routes.md and tests/http.
 * A new endpoint is a row here and a handler in api/ or host/.
 */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "base/status.h"

enum route_home { HOME_HOST = 0, HOME_ENGINE };       /* who answers under --isolate */
enum route_queue { QUEUE_NONE = 0, QUEUE_GENERATE, QUEUE_PREPARE };
enum route_cors { CORS_NONE = 0, CORS_API };          /* design.md section 6 */
enum route_auth { AUTH_OPEN = 0, AUTH_KEY, AUTH_MANAGE }; /* AUTH_KEY: --api-key when set; AUTH_MANAGE: loopback or key */

struct api_dialect;                                    /* api/api.h */
struct http_exchange;                                  /* server/http.h: one request being answered */

struct route_row {
    const char *method;          /* "GET" "POST" "DELETE" "OPTIONS"... HEAD follows GET */
    const char *path;            /* exact, or ending in slash-star: the rest of the path is the id, percent-decoded */
    const char *alias;           /* second path ("/chat/completions") or NULL */
    enum route_home home;
    bool wants_model;            /* a host's route that names the served model: waits until that is known */
    bool looks_only;             /* of the engine; starts none that is not resident, and is no use of it */
    bool by_model;               /* routed by the body's `model` under --model-pool */
    const struct api_dialect *dialect; /* form of requests, answers and errors; NULL: errors in the OpenAI form */
    void (*handle)(struct http_exchange *x);
    bool streams;                /* may answer SSE */
    enum route_queue queue;
    size_t body_limit_bytes;     /* 0 = no body */
    int32_t deadline_s;          /* to receive headers and body */
    enum route_cors cors;
    enum route_auth auth;
    bool socket_only;            /* unix socket only (API-357) */
    const char *spec;            /* "API-267" */
    const char *help;
};

const struct route_row *route_rows(size_t *n);
/* Find a row: *allowed receives a comma list of methods when the path is known but the method is not (405).
 * rest: for slash-star paths, the undecoded rest. NULL: 404 (or 405 when *allowed is not empty). */
const struct route_row *route_find(const char *method, const char *path, const char **rest, char allowed[64]);
/* The dialect whose form errors about this path take, whether or not it has a row; NULL: the OpenAI form. */
const struct api_dialect *route_dialect(const char *path);

#endif
