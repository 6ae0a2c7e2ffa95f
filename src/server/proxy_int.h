/* proxy_int.h: what the files of the proxy share. Everything here belongs to the proxy's thread but what is marked otherwise.
 *
 * A transfer is an exchange's part: it lives as long as the exchange, which frees it. While the thread works on it, it holds a
 * reference to the exchange. The thread drops that at the end of a turn of its loop (`done`), so that no event of the same turn names
 * freed memory.
 */
#ifndef SERVER_PROXY_INT_H
#define SERVER_PROXY_INT_H

#include "host/engine_process.h"
#include "host/response_wire.h"
#include "server/proxy.h"
#include "server/server_int.h"
#include "server/upstream.h"

#define PROXY_ENGINES_MAX 64      /* models that were asked for, resident or not */
#define PROXY_COLD_MAX 8          /* engines that may wait to be started */
#define PROXY_WAITING_MAX 1024    /* requests that may wait for an engine */
#define PROXY_READY_NS (900 * 1000000000LL) /* API-359: so long they wait, and so long an engine may load */
#define PROXY_ID_MAX 512
#define PROXY_GIVEN_UP "the engine died too often and is not started again; the server must be restarted"

enum loop_kind { LOOP_WAKE = 0, LOOP_TRANSFER, LOOP_ENGINE }; /* first member of what epoll names */

enum engine_state {
    ENGINE_ABSENT = 0,   /* no process; one is started when it is asked for */
    ENGINE_QUEUED,       /* to be started, not before t_start_at_ns */
    ENGINE_STARTING,     /* its process loads the model */
    ENGINE_READY,
    ENGINE_DRAINING,     /* evicted: gets no more requests, may finish those it has */
    ENGINE_STOPPING,     /* told to end */
    ENGINE_FAILED        /* died too often; not started again */
};

struct engine {
    enum loop_kind kind;
    int i;                         /* place in the table; 0: the default */
    char *id, *path;               /* owned; id of the default: NULL until it has said it. Read by others under proxy.lock */
    char socket[108];
    enum engine_state state;       /* written under proxy.lock */
    struct engine_process process; /* pid: the same */
    struct restarts restarts;      /* n: the same */
    struct wire_host wire;
    bool wire_is_open, wire_waits; /* wire_waits: epoll looks for room as well */
    bool hung;                     /* its socket to us has closed: it is about to be gone */
    bool has_served;               /* in some life */
    bool is_cut;                   /* told to end what it does at once */
    uint64_t life;                 /* counts its deaths */
    int64_t t_started_ns, t_start_at_ns, t_used_ns;
    int64_t t_kill_ns;             /* when to end it by force; 0: not */
    uint64_t turn;                 /* QUEUED: who came first */
    int32_t n_waiting, n_running, n_pinned;
};

enum transfer_state { TRANSFER_NEW = 0, TRANSFER_WAITING, TRANSFER_RUNNING, TRANSFER_LOST, TRANSFER_DONE };

struct transfer {
    enum loop_kind kind;
    struct http_exchange *x;       /* whose part it is */
    char *id, *path;               /* owned: the model of another engine; NULL: the default */
    struct buf ask, body;          /* the request: head, body */
    size_t n_sent;
    enum transfer_state state;
    struct engine *engine;
    uint64_t life;                 /* of the engine, when it was sent */
    int fd;                        /* -1: none */
    uint32_t events;               /* that epoll looks for */
    bool local;                    /* only waits until the engine is known; the host answers */
    bool again;                    /* may be sent a second time (GET, HEAD) */
    bool is_pinned;                /* waited for the engine to start: it stays until this is answered */
    bool half_closed, fin_sent, blocked, is_stream, torn;
    struct upstream up;
    struct buf in;                 /* of the answer's body: what is not passed on yet */
    char content_type[128];
    int64_t n_events;              /* of the stream, passed on */
    int64_t t_limit_ns;            /* WAITING, LOST: until then */
    struct transfer *prev, *next;  /* all, oldest first */
    struct transfer *done_next;
    bool poked;                    /* guarded by proxy.lock, as the next is */
    struct transfer *poke_next;
};

struct proxy {
    struct server *s;
    struct arena arena;            /* options */
    const char *exe, *dir, *default_path;
    const char *const *args;
    int32_t n_args, pool;
    void (*on_ready)(void *ctx, const struct server *s, const char *id, int pid, bool first);
    void *on_ready_ctx;

    pthread_t thread;
    bool started;
    int epoll_fd, wake_fd;
    enum loop_kind wake_kind;

    pthread_mutex_t lock;          /* after exchange.lock; never held while another is taken */
    struct transfer *poke_first, *poke_last;
    bool quit, stopping;           /* lock */
    bool known;                    /* info is filled; lock */
    struct gen_model_info info;    /* of the default model; does not change once known */
    int start_status;              /* lock */

    struct engine *engines[PROXY_ENGINES_MAX];
    int32_t n_engines;             /* lock for who is not the thread */
    uint64_t n_turns;
    int32_t n_waiting;
    struct transfer *first, *last, *done;
    bool ending;                   /* what the thread has seen of quit and stopping: nothing is started any more */
    bool hurry;                    /* something has to be looked at again soon */
};

/* proxy_transfer.c */
void transfer_poke(struct proxy *p, struct transfer *t);
void transfer_io(struct proxy *p, struct transfer *t, uint32_t events);
void transfer_tick(struct proxy *p, struct transfer *t, int64_t now_ns);
/* The engine that it waits for is ready: pass it on, if possible now. */
void transfer_send(struct proxy *p, struct transfer *t);
void transfer_stop(struct proxy *p, struct transfer *t);  /* the server stops: 503 */
/* The engine will not come: 502. */
void transfer_refuse(struct proxy *p, struct transfer *t, const char *why);

/* proxy_engines.c */
struct engine *engine_find(struct proxy *p, const char *id, const char *path); /* made when it is new; NULL: too many */
/* Somebody waits for e: it is put in the queue when there is no process. false: it cannot be had; *code and *why say why. */
bool engine_want(struct proxy *p, struct engine *e, int *http_status, const char **code, const char **why);
void engine_io(struct proxy *p, struct engine *e);
void engines_tick(struct proxy *p, int64_t now_ns);
/* What engines have to do in the next turn: start the next, evict, hand out what waits. */
void engines_balance(struct proxy *p);
void engine_cut(struct engine *e);
/* All must end; true: all have. */
bool engines_end(struct proxy *p, bool by_force);
int engines_wait_ms(const struct proxy *p, int64_t now_ns); /* until the next start or kill */
void engines_free(struct proxy *p);

#endif
