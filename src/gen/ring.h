/* ring.h: the queue of events between the engine's filter and the consumer of one stream. Bounded; no lock of its own
 * (stream.c holds the stream's). Text is copied into slots that keep their memory, so a running stream allocates
 * nothing. */
#ifndef GEN_RING_H
#define GEN_RING_H

#include "gen/gen.h"

struct ring_slot {
    struct gen_event ev;
    char *text;       /* owned; u.text, u.tool, u.warning, u.error and u.end point into it when popped */
    size_t cap;
};

struct gen_ring {
    struct ring_slot *slots; /* owned */
    int32_t cap, limit;      /* grows by doubling to limit */
    int32_t head, n;
    struct ring_slot popped; /* what the last pop handed out */
};

mb_status ring_init(struct gen_ring *r, int32_t cap, int32_t limit, mb_error *err);
void ring_free(struct gen_ring *r);
/* Append ev with a copy of text[0..len). MB_TOO_LARGE when full, MB_NO_MEMORY. */
mb_status ring_push(struct gen_ring *r, const struct gen_event *ev, const char *text, size_t len);
/* Take the oldest; its pointers stay valid until the next pop. False when empty. */
bool ring_pop(struct gen_ring *r, struct gen_event *out);
void ring_clear(struct gen_ring *r);

#endif
