/* proxy.h: the server as host of engines that run in processes of their own (--isolate; API-358..373, ENG-206..221).
 *
 * The host answers what routes.c calls HOME_HOST itself and passes the rest on: one HTTP request over the engine's Unix socket for
 * each, the answer passed back as it comes. Limits, keys, origins and hostile clients are the host's: an engine's socket is for the
 * host alone. The rest of the server sees these calls; one thread (proxy.c) does everything else.
 *
 *   proxy.c            the thread: its loop, what wakes it, opening and closing
 *   proxy_transfer.c   one request on its way through an engine
 *   proxy_engines.c    the engines: starting, dying, the pool
 */
#ifndef SERVER_PROXY_H
#define SERVER_PROXY_H

#include "gen/gen.h"

struct http_exchange;
struct proxy;                      /* opaque */
struct server;
struct server_engines;
struct transfer;                   /* opaque: an exchange's part in it */

mb_status proxy_open(struct server *s, const struct server_engines *o, mb_error *err);
/* Requests that still wait for an engine are refused, new ones too. */
void proxy_stop(struct proxy *p);
/* Ends the engines (gracefully, within ten seconds) and the thread. NULL is allowed. */
void proxy_close(struct proxy *p);
/* Exit status of the default engine when it ended before it had ever served; 0: it did not. */
int proxy_start_status(struct proxy *p);
bool proxy_has_failed(struct proxy *p);   /* the default engine is not started again */

/* Is x one that an engine answers, or that has to wait until one is known? */
bool proxy_takes(struct http_exchange *x);
/* A request worker hands x over; its body is taken. */
void proxy_push(struct http_exchange *x);
/* The client's side of x has changed: gone, closed by half, room for more, or it is to be cut off. Any thread. */
void proxy_poke(struct http_exchange *x);
void proxy_forget(struct http_exchange *x); /* x is being freed */

/* What the host's handlers see in place of an engine: alive and info only. */
struct engine_client proxy_client(struct proxy *p);
/* Why /health is not ok: a static text, *code too; NULL: it is. */
const char *proxy_ill(struct proxy *p, const char **code);
/* The members of GET /engine behind "isolated", without response_store. */
void proxy_describe(struct proxy *p, struct buf *engine, struct buf *pool);

#endif
