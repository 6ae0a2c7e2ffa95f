/* turns.h: how a compute thread shares its core with other programs without holding the others of its pool up.
 *
 * The system ends a thread's turn at a timer tick (1 to 10 ms apart), wherever the thread is then: in the middle of a tile,
 * which the others cannot have done without it, so that they soon wait for as long as it is away. Ticks are multiples of
 * their period on the monotonic clock. So where a core is shared a thread offers it shortly before each tick, when it holds
 * nothing: if its turn was about to end, another program goes on, and the threads that run do all the work that there is;
 * if nobody else wants the core, or it is still the thread's by right, that costs a microsecond.
 * Which turns are offered, and when, has no effect on what is computed. Linux 6.12 and later; elsewhere nothing is offered. */
#ifndef BASE_TURNS_H
#define BASE_TURNS_H

#include "base/status.h"

/* Ask for short turns on the processor for the calling thread, of the same share of time: who shares its core with another program is
 * back sooner, so that others wait for less at a barrier. false: the system knows nothing of turns. */
bool turns_take_short(void);

/* Of one thread. Begin with zeros. */
struct turn {
    int64_t end_ns;  /* when the core is offered next */
    int64_t tick_ns; /* the tick behind that */
};

/* Is it time to offer the core? */
bool turn_is_over(struct turn *t);
/* Offer it; the caller holds nothing that others wait for. */
void turn_offer(struct turn *t);

#endif
