/* mixed.h: what the verbs that make checkpoints (convert, fuse) share, and what `convert --target-bpw` chooses. */
#ifndef CLI_MIXED_H
#define CLI_MIXED_H

#include <jansson.h>

#include "cli/cli.h"

/* Measure the model in src_dir on --calibration-mix and choose bits and group of each module. *plan and *note (what was measured:
 * optiq_metadata.json) are new references. */
mb_status mixed_choose(const struct flags *f, const char *src_dir, json_t **plan, json_t **note, mb_error *err);

/* cmd_convert.c: one JSON object on a line of standard output; takes o (NULL: there was no memory for it). */
mb_status print_object(json_t *o, mb_error *err);
/* cmd_convert.c: the folder that a source argument names; a repository that is not in the cache is fetched. */
mb_status convert_find_source(const struct flags *f, const char *arg, char path[MODEL_PATH_MAX], mb_error *err);

#endif
