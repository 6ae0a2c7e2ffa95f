/* scripted_open.h: a gen_engine over the scripted stepper, from a file, for tests of the whole program. Builds with
 * FAULTS=1 only (base/fault.h); there is no flag for it. */
#ifndef GEN_SCRIPTED_OPEN_H
#define GEN_SCRIPTED_OPEN_H

#include "gen/gen.h"

#ifdef MB_FAULTS
/* script_path: a JSON object. "pieces": array of texts, each encoded on its own with the tokenizer of opt->model_dir, so
 * that borders of pieces are borders of tokens; an integer among them is a token id. Optional numbers: "step_delay_ms",
 * "prefill_delay_ms_per_1k", "n_context" (100000), "batch" (8), "queue_max" (64), "repeat" (the pieces, so many times).
 * Every request draws this script from its beginning. MB_NOT_FOUND, MB_BAD_FORMAT, MB_INVALID. */
mb_status gen_engine_open_scripted(struct gen_engine **out, const char *script_path, const struct gen_engine_options *opt,
                                   mb_error *err);
#endif

#endif
