/* serve_isolated.h: serve --isolate: the host's half. */
#ifndef CLI_SERVE_ISOLATED_H
#define CLI_SERVE_ISOLATED_H

#include "cli/cli.h"
#include "server/server.h"

/* What the host needs besides server_options; static storage is fine, one a process. */
struct isolation {
    const struct flags *f;
    char exe[64], dir[92];              /* dir: with room for the name of a socket in the 108 bytes of its address */
    char text[65536];                  /* of args */
    const char *args[FLAG_ROWS_MAX + 8 * FLAG_LIST_MAX];
    struct server_engines engines;
};

/* Flags of the engines (CFG-068) and a folder for their sockets (ENG-207). Sets opt->engines. MB_INVALID: flags that exclude
 * each other; MB_IO, MB_TOO_LARGE. */
mb_status isolation_open(struct isolation *i, const struct flags *f, const char *path, struct server_options *opt, mb_error *err);
void isolation_close(struct isolation *i); /* removes the folder */

/* The engine's half: what the host would have removed, when the host has gone (server_host_gone). */
void engine_remove_folder(const char *socket);

#endif
