/* inuse.h: which files are mapped or open in running programs, by /proc: ours and anybody's that we may look at. */
#ifndef HUB_INUSE_H
#define HUB_INUSE_H

#include <jansson.h>

#include "base/status.h"

/* A set (object) of digests of blobs below root that some process maps or holds open; NULL: no memory. json_decref. */
json_t *inuse_blobs(const char *root);
/* The same of the names of files in a folder, not below it. */
json_t *inuse_files(const char *dir);

#endif
