/* doctor.h: the two halves of `mlx-bun doctor`. */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include "cli/cli.h"

/* Measure the tiers of the model in `path` against exact arithmetic; *exit_status = 1 when a bar is missed. */
mb_status doctor_fidelity(const struct flags *f, const char *path, int *exit_status, mb_error *err);

#endif
