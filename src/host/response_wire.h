/* response_wire.h: the responses of an engine that runs in a process of its own (--isolate) are kept by its host, so that they
 * outlive it (API-250). A pair of connected sockets joins the two; the engine asks, the host answers, one question at a time.
 *
 *   engine   response_store_open_at(fd): a store like any other, whose calls ask and wait       (wire_ask)
 *   host     a wire_host an engine, driven by whoever watches its socket, over the real store   (wire_host_step)
 *
 * The first message of an engine is READY: it serves, and this is what it serves. A message is a wire_head and the bytes of its
 * texts; both ends are the same program on the same machine, so numbers are as they lie. Nothing that the engine sends is
 * trusted beyond its place: lengths have a ceiling, unknown questions end the talk.
 */
#ifndef HOST_RESPONSE_WIRE_H
#define HOST_RESPONSE_WIRE_H

#include "host/response_store.h"

enum wire_op { WIRE_READY = 1, WIRE_PUT, WIRE_GET, WIRE_DELETE, WIRE_STATS };

#define WIRE_N_TEXTS (1 + RESPONSE_N_PARTS) /* id, or the text of an error; then the parts */
#define WIRE_MAX_BYTES (RESPONSE_STORE_MAX_BYTES + ((size_t)1 << 20)) /* all texts of a message */

struct wire_head {
    uint32_t op;
    int32_t status;              /* answers: mb_status */
    uint32_t wanted;             /* WIRE_GET: bit i for part i */
    uint32_t found;              /* WIRE_DELETE: there was one */
    struct response_store_stats stats;
    uint64_t len[WIRE_N_TEXTS];
};

/* --- the engine's side; blocks; the caller sees to it that one thread asks at a time --- */
/* texts: what goes with h (its lengths are set here); parts: where to append the answer's parts, each may be NULL; answer: its
 * head. MB_IO: the host is gone; MB_TOO_LARGE; MB_NO_MEMORY; else what the host says. */
mb_status wire_ask(int fd, struct wire_head *h, const struct str texts[WIRE_N_TEXTS], struct wire_head *answer,
                   struct buf *const parts[RESPONSE_N_PARTS], mb_error *err);
/* The first message: the model's id, and its entry of /v1/models. No answer. */
mb_status wire_ready(int fd, const char *id, struct str entry, mb_error *err);

/* --- the host's side; never blocks --- */
struct wire_host {
    int fd;                      /* non-blocking, borrowed */
    struct buf in, out;
    size_t sent;                 /* of out */
};
typedef void (*wire_ready_fn)(void *ctx, struct str id, struct str entry);

void wire_host_open(struct wire_host *w, int fd);
void wire_host_close(struct wire_host *w);
/* Read, answer and write what is possible now. false: the other end has gone, or it does not keep to the rules. */
bool wire_host_step(struct wire_host *w, struct response_store *store, wire_ready_fn ready, void *ctx);
/* Does it wait until the socket takes more? */
bool wire_host_is_full(const struct wire_host *w);

#endif
