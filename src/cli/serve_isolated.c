/* serve_isolated.c: see serve_isolated.h. */
#include "cli/serve_isolated.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- flags of the engines --- */
struct list { struct isolation *i; size_t used; int32_t n; bool full; };

static void add(struct list *l, const char *name, const char *value)
{
    struct isolation *i = l->i;
    size_t left = sizeof i->text - l->used;
    int n = snprintf(i->text + l->used, left, "--%s=%s", name, value);
    if (n < 0 || (size_t)n >= left || l->n + 8 >= (int32_t)(sizeof i->args / sizeof i->args[0])) {
        l->full = true;
        return;
    }
    i->args[l->n++] = i->text + l->used;
    l->used += (size_t)n + 1;
}

/* Every flag that was given, but those of the host; what comes from the environment the engines inherit (CFG-017). */
static mb_status set_args(struct isolation *i, const struct flags *f, mb_error *err)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    struct list l = { .i = i };
    for (size_t k = 0; k < n; k++) {
        const struct flag_value *v = flag_value_at((struct flags *)(uintptr_t)f, &rows[k]);
        bool passed = rows[k].name && (rows[k].commands & CMD_SERVE) && v->given && !v->from_env && rows[k].isolate == ISOLATE_BOTH;
        if (!passed) continue;
        for (int32_t j = 0; rows[k].type == FLAG_LIST && j < v->n_list; j++) add(&l, rows[k].name, v->list[j]);
        if (rows[k].type != FLAG_LIST) add(&l, rows[k].name, v->s);
    }
    i->engines.args = i->args;
    i->engines.n_args = l.n;
    return l.full ? mb_fail(err, MB_TOO_LARGE, "--isolate: the flags are too long to pass on") : MB_OK;
}

/* --- the folder of their sockets --- */
static mb_status make_dir(struct isolation *i, mb_error *err)
{
    const char *tmp = i->f->tmpdir.given && i->f->tmpdir.s[0] == '/' ? i->f->tmpdir.s : "/tmp";
    int n = snprintf(i->dir, sizeof i->dir, "%s/mlx-bun-%d-XXXXXX", tmp, (int)getpid());
    if (n < 0 || (size_t)n >= sizeof i->dir)
        return mb_fail(err, MB_INVALID, "--isolate: TMPDIR has %zu bytes, which leaves no room for the name of a Unix socket; set another",
                       strlen(tmp));
    if (!mkdtemp(i->dir)) { /* for its owner alone */
        mb_status st = mb_fail_errno(err, "cannot make a folder for the engine's socket:", i->dir);
        i->dir[0] = '\0';
        return st;
    }
    return MB_OK;
}

mb_status isolation_open(struct isolation *i, const struct flags *f, const char *path, struct server_options *opt, mb_error *err)
{
    *i = (struct isolation){ .f = f };
    signal(SIGCHLD, SIG_DFL); /* inherited as ignored, the end of an engine would never be told */
    if (f->unix_path.given)
        return mb_fail(err, MB_INVALID, "--unix and --isolate exclude each other: with --isolate the socket is between this process and the "
                       "engine's; clients come over TCP");
    MB_TRY(set_args(i, f, err));
    MB_TRY(make_dir(i, err));
    strcpy(i->exe, "/proc/self/exe");
    i->engines.exe = i->exe;
    i->engines.path = path;
    i->engines.dir = i->dir;
    i->engines.pool = !f->model_pool.given ? 0 : f->model_pool.i < 1 ? 1 : f->model_pool.i > 1024 ? 1024 : (int32_t)f->model_pool.i; /* CFG-069 */
    if (i->engines.pool > 1 && !f->memory_budget.given)
        cli_warn("--model-pool %d without --memory-budget: every engine takes its share of what is free when it starts, so that together "
                 "they may take more than there is", (int)i->engines.pool);
    opt->engines = &i->engines;
    return MB_OK;
}

void isolation_close(struct isolation *i)
{
    if (i->dir[0] && rmdir(i->dir) != 0) cli_warn("%s is left behind", i->dir);
    i->dir[0] = '\0';
}

/* --- the engine's half --- */
void engine_remove_folder(const char *socket)
{
    char dir[128];
    const char *slash = strrchr(socket, '/');
    if (!slash || (size_t)(slash - socket) >= sizeof dir) return;
    memcpy(dir, socket, (size_t)(slash - socket));
    dir[slash - socket] = '\0';
    if (strstr(dir, "/mlx-bun-")) rmdir(dir); /* the last of several succeeds */
}
