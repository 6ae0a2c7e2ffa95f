/* server.h: the HTTP server over an engine_client: open, run, stop.
 *
 *   server_open    binds, starts its threads and answers at once
 *   server_run     waits until server_request_stop, then shuts down gracefully (API-015) and returns
 *   server_close   releases; stops first when still running
 *
 * Threads: one of libmicrohttpd (epoll; reads and writes bytes), one pump (events -> bytes, socket watch, deadlines),
 * a few request workers (parse bodies), all at lower priority.
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "gen/gen.h"

struct server; /* opaque */
struct library;

/* Engines in processes of their own (--isolate, proxy.h). Strings are copied. */
struct server_engines {
    const char *exe;               /* this program */
    const char *const *args;       /* of every engine, behind "serve"; --model, --unix and --host-fd are added */
    int32_t n_args;
    const char *path;              /* the default model's folder */
    const char *dir;               /* an own folder for their sockets */
    int32_t pool;                  /* --model-pool: most resident engines; 0: every request goes to the default one */
    /* An engine serves (ENG-208); first: the default one, for the first time. Called by the proxy's thread. NULL: nobody asks */
    void (*ready)(void *ctx, const struct server *s, const char *id, int pid, bool first);
    void *ready_ctx;
};

struct server_options {            /* zero = default; strings are copied */
    const char *host;              /* NULL = "127.0.0.1" */
    int port;                      /* 0 = any free one, see server_port */
    const char *unix_path;         /* serve on this socket instead of TCP (API-003) */
    const char *api_key;           /* NULL = none asked for */
    const char *const *allow_hosts; /* names accepted in Host besides loopback; "*" = any */
    int32_t n_allow_hosts;
    const char *const *allow_origins; /* "https://x.test"; "*" = any */
    int32_t n_allow_origins;
    size_t body_limit_bytes;       /* of one body, decoded; 0 = 256 MB (Q63) */
    size_t body_memory_bytes;      /* of all bodies, what is made of them, and unread answers; 0 = 512 MB, then 503 */
    int32_t n_workers;             /* request workers; 0 = 2 */
    int32_t worker_queue;          /* parsed at most so many waiting requests; 0 = 64, then 429 */
    int32_t max_connections;       /* 0 = 4096, bounded by RLIMIT_NOFILE, which is raised to it */
    int64_t shutdown_timeout_ms;   /* 0 = 120000 (MLX_BUN_SHUTDOWN_TIMEOUT_MS) */
    int64_t keepalive_ms;          /* silence after which a stream gets a comment line; 0 = 3000 */
    int64_t idle_timeout_ms;       /* from one request to the complete headers of the next; 0 = 60000 */
    const char *owner;             /* /stats server.owner; NULL = "serve" */
    uint64_t memory_budget_bytes;  /* /stats admission.memory_budget_bytes; 0 = null */
    uint64_t kv_budget_bytes;      /* /stats batch.kv_budget_bytes; 0 = null */
    bool keep_billing_header;      /* do not drop the billing line of Anthropic clients (B-079) */
    mb_status (*fit)(void *ctx, struct buf *out, mb_error *err); /* GET /fit: the object, from any thread; NULL = 404 */
    void *fit_ctx;
    struct library *library;       /* models on disk, hub/library.h; borrowed; NULL = none */
    const struct server_engines *engines; /* NULL: the engine is the client of server_open */
    int host_fd;                   /* this server is such an engine: the socket to its host; 0: it is not */
    bool trace;                    /* one JSON line a generation on stderr (MLX_BUN_P2R_TRACE, API-337) */
};

/* client is copied; its ctx must live until server_close; NULL with opt->engines. MB_INVALID (host), MB_IO (bind), MB_NO_MEMORY. */
mb_status server_open(struct server **out, const struct engine_client *client, const struct server_options *opt,
                      mb_error *err);
int server_port(const struct server *s);
void server_run(struct server *s);
/* With opt->engines, after server_run: the exit status with which the default engine refused to start, 0 when it did not; *failed: it died
 * too often. */
int server_engine_status(struct server *s, bool *failed);
/* Has the host of such an engine gone (host_fd's other end)? */
bool server_host_gone(int host_fd);
/* Async-signal-safe. The first call lets active requests finish, a second one cuts them off. */
void server_request_stop(struct server *s);
void server_close(struct server *s);

#endif
