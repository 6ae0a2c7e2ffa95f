/* mixed.h: what `convert --target-bpw` chooses. */
#ifndef CLI_MIXED_H
#define CLI_MIXED_H

#include <jansson.h>

#include "cli/cli.h"

/* Measure the model in src_dir on --calibration-mix and choose bits and group of each module. *plan and *note (what was measured:
 * optiq_metadata.json) are new references. */
mb_status mixed_choose(const struct flags *f, const char *src_dir, json_t **plan, json_t **note, mb_error *err);

#endif
