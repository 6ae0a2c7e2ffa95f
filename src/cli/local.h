/* local.h: a server of ours on this machine, as `pi` and `harness` ask for it. */
#ifndef CLI_LOCAL_H
#define CLI_LOCAL_H

#include "cli/cli.h"

/* What /v1/models says of the served model. id is cut at its end when it is longer. */
struct local_model {
    char id[256];
    int64_t context_window;
    bool reasoning, vision;
};

/* Ask 127.0.0.1:port for its models. False: nothing answers there, or not as we do. At most a second or two. */
bool local_ask(int port, const char *api_key, struct local_model *out);

/* The text of pi's extension: provider "mlx-bun" at this port, whose model "local" is what the server serves when pi starts;
 * `baked` (NULL: a small default) is for when none answers. */
void harness_pi_text(struct buf *out, int port, const struct local_model *baked);

/* cmd_serve.c: serve with these flags until a signal; owner is what /stats says. */
mb_status serve_run(const struct flags *f, const char *positional, const char *owner, int *exit_status, mb_error *err);

#endif
