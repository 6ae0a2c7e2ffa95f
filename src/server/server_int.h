/* server_int.h: what the files of this folder share: the server and one request on its way (http_exchange).
 *
 * An exchange is counted: libmicrohttpd's side holds one reference (until its request is completed), a worker, the
 * ready list and the pump one each while they hold it. The way of a request:
 *
 *   http.c   headers: early checks (auth.c, limits.c) -> body -> route
 *   inline   small routes answer on the HTTP thread (handlers.c, stats.c)
 *   worker   parses, starts the generation (workers.c, generate.c); the connection is suspended meanwhile
 *   pump     gen_next -> bytes in `out`, or the whole `reply`; resumes the connection (pump.c, generate.c)
 *
 * Locks, in order: server.pump_role, then exchange.lock, then server.lock, then server.ready_lock. `notify` of a gen_stream waits for
 * ready_lock alone, and only tries the others, so the engine thread never waits for HTTP.
 */
#ifndef SERVER_SERVER_INT_H
#define SERVER_SERVER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "api/api.h"
#include "base/mem.h"
#include "host/response_store.h"
#include "server/proxy.h"
#include "server/routes.h"
#include "server/server.h"

#define CONN_POOL_BYTES ((size_t)64 << 10)    /* what a connection may take for its headers */
#define BODY_SMALL_BYTES ((size_t)64 << 10)   /* bodies up to here may take the reserve of body_memory (limits.c) */
#define BODY_UNWANTED_BYTES ((size_t)1 << 20) /* of a body that the route does not want */
#define OUT_HIGH_BYTES ((size_t)64 << 10)     /* unsent bytes of a stream above which its events wait */
#define OUT_LOW_BYTES ((size_t)16 << 10)

enum conn_phase { CONN_IDLE = 0, CONN_BODY, CONN_BUSY };

struct conn {                      /* one TCP or unix connection; guarded by server.lock */
    int fd;
    enum conn_phase phase;
    int64_t since_ns;
    int64_t limit_ns;              /* of this phase, 0 = none */
    bool loopback;                 /* the peer is on this machine */
    bool cut;                      /* shutdown() was called */
    struct conn *next, *prev;
};

enum query_name { QUERY_ORDER = 0, QUERY_AFTER, QUERY_LIMIT, QUERY_N }; /* of lists (http.c) */

struct trace {                     /* phases of a generation, clock_now_ns; 0 = not reached */
    int64_t t_received_ns, t_queued_ns, t_admitted_ns, t_first_ns;
    int32_t n_prompt, n_cached, n_completion;
    bool failed, done;
};

struct http_exchange {
    struct server *s;
    atomic_int refs;
    pthread_mutex_t lock;
    void *mhd;                     /* struct MHD_Connection *, http.c only; NULL once completed */
    struct conn *conn;
    int fd;
    bool watched, unwatched;       /* in the pump's epoll; taken out, the pump has yet to drop its reference */

    /* the request, written by the HTTP thread before dispatch */
    const struct route_row *route;
    const struct api_dialect *dialect; /* of the path, also without a route: the form of errors */
    char *rest;                    /* decoded rest of the path, owned; NULL */
    char *query[QUERY_N];          /* values of the query that routes with a rest may want, owned; NULL */
    char request_id[72];
    char trace_id[64];             /* x-mlx-bun-trace-id (API-337) */
    char *cors_origin;             /* allowed Origin to echo, owned; NULL */
    bool foreign_origin;
    char encoding[8];              /* "", "gzip", "zstd" */
    struct buf body;
    size_t body_counted;           /* bytes booked in server.body_memory, for the body and what is made of it; server.lock */
    size_t body_kept;              /* of them, those that a generation holds to its end; written before it starts */
    size_t reply_counted;          /* the same for an answer that waits for its reader; server.lock */
    size_t n_discarded;
    bool discard, settled, dispatched, answered;
    bool close;              /* where this request ends is in doubt: nothing after it on this connection */

    /* the answer; guarded by lock */
    bool suspended, reply_ready, stream_open, stream_end, gone, hung_up, fin, cut;
    int status;
    const char *content_type;      /* static */
    char extra_name[32], extra_value[160]; /* one more header: Allow, Retry-After ... */
    char warning[768];             /* value of a Warning header; "" = none */
    bool preflight;                /* the answer to an OPTIONS with Access-Control-Request-Method */
    char *preflight_headers;       /* owned: Access-Control-Request-Headers */
    struct buf reply;
    struct buf out;                /* stream bytes, sent up to out_off */
    size_t out_off;
    bool out_blocked;              /* the pump waits for room */
    bool chunked;                  /* HTTP/1.1: a stream's bytes go in chunks */
    bool out_flowed;               /* the library has sent the head and some of the stream */
    bool no_delay;                 /* direct.c has set TCP_NODELAY */
    bool queued_known;             /* the socket holds at most queued_most bytes that the client has not acknowledged */
    size_t queued_most;

    /* generation; req by the worker until gen_ready, then all by the pump */
    struct api_request *req;
    struct api_render *render;
    struct gen_stream *gen;
    bool gen_ready;                /* guarded by lock */
    bool is_stream;
    bool in_pump;                  /* in the pump's list (holds a reference) */
    bool finished;
    mb_error late;                 /* why generate_here could not render; the pump's thread ends it */
    int64_t t_bytes_ns;            /* last bytes put into out */
    int32_t n_done, n_total;       /* prefill, for the keep-alive line */
    struct trace trace;            /* worker until gen_ready, then the pump */
    struct http_exchange *pump_next;
    struct transfer *transfer;     /* its way through an engine of its own process (proxy.h); owned; set under lock */

    struct http_exchange *ready_next; /* guarded by ready_lock */
    bool ready;
    struct http_exchange *work_next;  /* guarded by work_lock */
    struct http_exchange *all_next, *all_prev; /* guarded by server.lock */
};

struct server {
    struct engine_client client;
    struct response_store *store;  /* owned; of /v1/responses */
    struct api_env api;            /* client and store, for the dialects */
    struct server_options opt;     /* strings in arena */
    struct arena arena;
    void *daemon;                  /* struct MHD_Daemon * */
    int listen_fd, port;
    bool bound_loopback, bound_unix;
    int64_t started_unix_s;

    pthread_mutex_t lock;          /* conns, all, counters */
    struct conn *conns;            /* newest first */
    int32_t n_conns, max_conns;
    struct http_exchange *all;
    int32_t n_active;              /* exchanges */
    size_t body_memory;            /* booked by exchanges (limits.c) */
    uint64_t n_requests, n_status[6]; /* by hundreds */
    bool stopping;                 /* no new requests */
    bool draining;                 /* POST /admin/drain has asked for the end */
    bool cutting;                  /* running ones are cut off */

    pthread_mutex_t ready_lock;
    struct http_exchange *ready_first, *ready_last;
    bool pump_asleep;              /* in epoll_wait, or about to be: it has to be woken; guarded by ready_lock */
    int wake_fd, epoll_fd, stop_fd;
    pthread_mutex_t pump_role;     /* its holder is "the pump" below and in http_exchange */
    struct http_exchange *pump_list; /* the pump's */
    int32_t n_pump;                /* in it */
    struct buf pump_bytes;         /* the pump's: what one turn of a stream renders */
    pthread_t pump_thread;
    bool pump_started, pump_quit;

    pthread_mutex_t work_lock;
    pthread_cond_t work_cond;
    struct http_exchange *work_first, *work_last;
    int32_t n_work;
    bool work_quit;
    pthread_t workers[8];
    int n_workers;
    struct embed_worker *embed;    /* owned; embeddings.c */
    struct proxy *proxy;           /* owned; NULL: the engine is the client's */
};

/* direct.c: under x's lock: may a chunk go straight to the socket now? And b, as one: false: not now; it has to go through out */
bool direct_ready_locked(struct http_exchange *x);
bool direct_send_locked(struct http_exchange *x, const struct buf *b);

/* exchange.c: life and answers; any thread */
struct http_exchange *exchange_new(struct server *s);
void exchange_ref(struct http_exchange *x);
void exchange_unref(struct http_exchange *x);
/* The whole answer; body is taken. Ignored when an answer exists already. */
void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body);
void http_reply_error(struct http_exchange *x, const mb_error *e);
/* 200 with the body, or the error; body is taken in either case. */
void http_reply_json(struct http_exchange *x, mb_status st, struct buf *body, const mb_error *e);
void http_reply_status(struct http_exchange *x, int status, const char *code, const char *param, const char *message);
void exchange_count(struct server *s, int status);

/* http.c */
mb_status http_start(struct server *s, mb_error *err);
void http_quiesce(struct server *s);
void http_stop(struct server *s);
/* x->lock held: let libmicrohttpd go on with a suspended connection. */
void http_resume_locked(struct http_exchange *x);

/* listen.c */
mb_status listen_open(struct server *s, mb_error *err);
void listen_close(struct server *s);

/* framing.c: headers, one after the other in the order in which they came; then what is wrong with them, NULL: nothing.
 * end: behind the empty line; NULL: not known, which is wrong when there are headers. */
struct header_census {
    int n_hosts, n_lengths, n_encodings;
    bool malformed;                /* a name that is none, or bytes that are in no name and no value */
    const char *end;               /* behind the value that was seen last */
};
void census_add(struct header_census *c, const char *key, size_t key_len, const char *value, size_t value_len);
const char *census_fault(const struct header_census *c, const char *end, const char *version);

/* auth.c: early checks; false: an error answer has been set */
bool host_check(struct http_exchange *x, const char *host, int n_hosts);
bool origin_check(struct http_exchange *x, const char *origin, const char *host);
bool key_check(struct http_exchange *x, const char *authorization, const char *x_api_key);
bool host_is_loopback(const char *host, size_t len);

/* limits.c; false: an error has been set */
size_t body_limit(const struct http_exchange *x);            /* of this route */
bool body_book(struct http_exchange *x, size_t total_bytes);
bool body_decode(struct http_exchange *x);                   /* content-encoding */
bool body_weigh(struct http_exchange *x);                    /* book what working on the body will take */
void body_lower(struct http_exchange *x, size_t total_bytes); /* book no more than this */
bool reply_book(struct http_exchange *x, size_t total_bytes); /* false: no room, and no error set */
void memory_release(struct http_exchange *x);                /* all that x has booked */
int32_t limits_connections(int32_t wanted, int32_t each);    /* each: descriptors that a connection may take */

/* conns.c: the table of connections; any thread */
struct conn *conn_add(struct server *s, int fd, bool loopback);
void conn_remove(struct server *s, struct conn *c);
void conn_set(struct server *s, struct conn *c, enum conn_phase phase, int64_t limit_ms);
void conns_tick(struct server *s);          /* deadlines */
void conns_close_idle(struct server *s);

/* pump.c */
mb_status pump_start(struct server *s, mb_error *err);
void pump_stop(struct server *s);
void pump_wake(struct http_exchange *x);    /* x has something to do */
void pump_notify(void *x);                  /* gen_notify_fn */
bool pump_watch(struct http_exchange *x);   /* HTTP thread, when x becomes pending */
bool pump_unwatch(struct http_exchange *x); /* HTTP thread, when x is completed; was it watched? */

/* embeddings.c: its queue and thread; closing waits for the request that runs */
mb_status embed_open(struct server *s, mb_error *err);
void embed_close(struct server *s);

/* workers.c */
mb_status work_start(struct server *s, mb_error *err);
void work_stop(struct server *s);
bool work_push(struct http_exchange *x);    /* takes a reference; false: full */

/* generate.c */
void generate_step(struct http_exchange *x);    /* pump thread */
bool generate_here(struct http_exchange *x);    /* the pump on the engine's thread; false: something is left to the pump's thread */
void generate_keepalive(struct http_exchange *x, int64_t now_ns);
void generate_probe(struct http_exchange *x);   /* the client sent FIN */
void generate_dead(struct http_exchange *x);    /* the engine has stopped: end with an error */
void generate_drop(struct http_exchange *x);    /* pump thread: release everything */
/* Bytes of a stream, which is opened by the first of them; b is emptied. Any one thread a stream. */
void generate_send(struct http_exchange *x, struct buf *b, bool end);

/* trace.c */
void trace_event(struct http_exchange *x, const struct gen_event *ev);
void trace_write(struct http_exchange *x);      /* the record, when asked for */

/* handlers */
void handle_generate(struct http_exchange *x);   /* of the route's dialect */
void handle_count_tokens(struct http_exchange *x);
void handle_response(struct http_exchange *x);
void handle_response_delete(struct http_exchange *x);
void handle_health(struct http_exchange *x);
void handle_models(struct http_exchange *x);
void handle_model(struct http_exchange *x);
void handle_stats(struct http_exchange *x);
void handle_metrics(struct http_exchange *x);
void handle_tokenize(struct http_exchange *x);
void handle_detokenize(struct http_exchange *x);
void handle_adapters(struct http_exchange *x);
void handle_adapters_available(struct http_exchange *x);
void handle_adapter_mount(struct http_exchange *x);
void handle_adapter_unmount(struct http_exchange *x);
void handle_embeddings(struct http_exchange *x);
void handle_library(struct http_exchange *x);
void handle_fit(struct http_exchange *x);
void handle_downloads(struct http_exchange *x);
void handle_download_start(struct http_exchange *x);
void handle_download_cancel(struct http_exchange *x);
void handle_root(struct http_exchange *x);
void handle_engine(struct http_exchange *x);
void handle_ws_chat(struct http_exchange *x);
void handle_drain(struct http_exchange *x);
/* stats.c: {"entries", "bytes", "max_bytes", "ttl_ms"} */
void stats_put_store(struct buf *b, struct server *s);
/* library.c: put the other servable models (or only_id) behind those of a /v1/models body (API-264). */
void library_append_models(struct http_exchange *x, const char *only_id, struct buf *list);

/* sse.c */
void sse_comment(struct buf *out, const char *text);

#endif
