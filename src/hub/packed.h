/* packed.h: what lies in the folder of packed weights: files of --packed-cache ("<key>.bin", "<key>-shared.bin") and of
 * --expert-offload ("<key>.experts"), each as large as the weights that it was made of, and what writers who were killed left behind.
 * All of it is derived and may go at any time; a program that has a file open or mapped keeps it until it ends. The key is that of
 * engine_packed_key. */
#ifndef HUB_PACKED_H
#define HUB_PACKED_H

#include <limits.h>
#include <stdint.h>

#include "base/status.h"

#define PACKED_KEY_LEN 16

struct packed_file {
    char path[PATH_MAX];         /* absolute */
    char key[PACKED_KEY_LEN + 1];
    uint64_t bytes;
    bool in_use;                 /* open or mapped, or being written */
    bool is_leftover;            /* of a writer */
};

typedef mb_status (*packed_fn)(void *ctx, const struct packed_file *p, mb_error *err);
/* Each file of the folder, sorted by name; other files are passed over. A folder that is not there holds none. */
mb_status packed_each(const char *dir, packed_fn fn, void *ctx, mb_error *err);

#endif
