/* bench_isolated.h: benchmark's "never-lagging interface" (ENG-267): one request through serve --isolate, as a client sees it, and how
 * long the host takes for an answer of its own while the engine works. */
#ifndef CLI_BENCH_ISOLATED_H
#define CLI_BENCH_ISOLATED_H

#include "cli/cli.h"

struct isolated_figures {
    double first_s;          /* to the first piece of text over HTTP */
    double decode_tok_s;     /* from there to the end */
    int32_t n_prompt;        /* tokens that the server made of the prompt's text */
    double host_ms, host_ms_max; /* GET /health while it generates: median, longest */
};

struct isolated_bench; /* opaque */

/* A host with an engine of these flags, at a free port of this machine; waits until the engine is ready. MB_IO, MB_ENGINE_DEAD ... */
mb_status isolated_bench_open(struct isolated_bench **out, const struct flags *f, const char *path, mb_error *err);
void isolated_bench_close(struct isolated_bench *b); /* NULL is allowed */
/* One request: n_tokens after a prompt, the text of these ids. */
mb_status isolated_bench_run(struct isolated_bench *b, const int32_t *ids, int32_t n_ids, int32_t n_tokens, struct isolated_figures *out,
                             mb_error *err);

#endif
