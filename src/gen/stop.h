/* stop.h: stop strings over running text, with hold-back. What is emitted is certain not to belong to a stop string;
 * only a live beginning of one is held (B-035). The match that ends first wins, among those the one that begins first,
 * so the result does not depend on how the text was cut into pieces. Linear: one failure table a string (Knuth, Morris,
 * Pratt). */
#ifndef GEN_STOP_H
#define GEN_STOP_H

#include "base/buf.h"
#include "base/mem.h"

#define STOP_MAX_BYTES (64 * 1024) /* of all stop strings of a request */

struct stop_set {            /* immutable, shared by the choices; arena memory */
    int32_t n;
    const char **s;
    int32_t *len;
    int32_t **fail;          /* [len]: longest proper border of s[0..i] */
};

struct stop_match {          /* of one choice */
    const struct stop_set *set;
    int32_t *state;          /* [n] bytes matched; arena memory */
    struct buf held;
};

mb_status stop_set_init(struct stop_set *set, struct arena *a, const char *const *stops, int32_t n, mb_error *err);
mb_status stop_match_init(struct stop_match *m, const struct stop_set *set, struct arena *a, mb_error *err);
void stop_match_free(struct stop_match *m);
/* Feed text; what is certain is appended to out. Returns the index of the matched string (then nothing more may be
 * fed), or -1. */
int32_t stop_push(struct stop_match *m, const char *text, size_t len, struct buf *out);
/* Let go of what is held (the text ends here, or something stands between). */
void stop_flush(struct stop_match *m, struct buf *out);

#endif
