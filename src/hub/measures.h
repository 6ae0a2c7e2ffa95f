/* measures.h: what was measured on this machine, kept in the registry's file: its speed, and the decode rate of each model that
 * was served or benchmarked here. They outlive a registry that is made anew: nothing on disk could tell them again.
 * A row is as its writer left it; whether it is still fresh is the reader's question. Threads: as the registry.
 */
#ifndef HUB_MEASURES_H
#define HUB_MEASURES_H

#include "base/buf.h"
#include "hub/registry.h"

#define MEASURES_ROWS_MAX 4096 /* decode rates kept, the newest */

/* The speed of a device: any text of at most 64 KB under a name ("AMD EPYC, cpu avx2, 2 threads"). MB_NOT_FOUND: no such row. */
mb_status measures_machine_put(struct registry *r, const char *name, const char *text, size_t len, int64_t at_ms, mb_error *err);
mb_status measures_machine_get(struct registry *r, const char *name, struct buf *text, int64_t *at_ms, mb_error *err);

struct decode_measure {
    double tokens_per_s;          /* one request alone */
    double predicted_per_s;       /* what fit said at that context; 0: nothing (REG-129) */
    int32_t n_context;            /* about where it was measured */
    int64_t at_ms;                /* unix */
};
/* snapshot: the model's folder with what its files are; way: tier, KV format, device. MB_NOT_FOUND: never measured so. */
mb_status measures_decode_put(struct registry *r, const char *snapshot, const char *way, const struct decode_measure *m, mb_error *err);
mb_status measures_decode_get(struct registry *r, const char *snapshot, const char *way, struct decode_measure *out, mb_error *err);

#endif
