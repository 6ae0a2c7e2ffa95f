/* cmd_pi.c: `pi`: the terminal client pi on a server (CFG-009, CFG-010, CFG-196, API-433). A server that already answers on the
 * port is used as it is; else one is started with the flags of `serve` in a process of its own, which ends with pi (and with
 * us, whatever ends us). pi is a program of its own (npm); it gets the provider as an extension, nothing is installed. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/errors.h"
#include "base/filemap.h"
#include "cli/local.h"

#define MAX_ARGS 8
struct session {
    const struct flags *f;
    char log[MODEL_PATH_MAX], extension[MODEL_PATH_MAX];
    struct local_model model;
    pid_t server; /* 0: not ours */
};

/* Every flag that was given and shapes a server, by name (CFG-010). */
static void warn_ignored(const struct flags *f)
{
    size_t n;
    const struct flag_row *rows = flag_rows(&n);
    for (size_t i = 0; i < n; i++) {
        const struct flag_value *v = flag_value_at((struct flags *)(uintptr_t)f, &rows[i]);
        if (!rows[i].name || !(rows[i].commands & CMD_SERVE) || !v->given || v->from_env) continue;
        if (v == &f->port || v == &f->api_key || v == &f->quiet || v == &f->log_level || v == &f->cache_dir) continue;
        cli_warn("--%s is ignored: the server on port %d runs already", rows[i].name, (int)f->port.i);
    }
}

static bool is_on_path(const char *path, const char *program)
{
    char file[MODEL_PATH_MAX];
    while (path && *path) {
        size_t len = strcspn(path, ":");
        int n = snprintf(file, sizeof file, "%.*s/%s", (int)len, path, program);
        if (n > 0 && (size_t)n < sizeof file && access(file, X_OK) == 0) return true;
        path += len + (path[len] == ':');
    }
    return false;
}

/* --- the server --- */
static void run_server(const struct session *s, pid_t parent)
{
    mb_error err = { 0 };
    int fd = open(s->log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    setpgid(0, 0); /* Ctrl-C is pi's */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(0);
    if (fd >= 0) {
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
    }
    int exit_status = 0;
    mb_status st = serve_run(s->f, NULL, "pi-session", &exit_status, &err);
    if (st != MB_OK) fprintf(stderr, "mlx-bun: %s\n", err.text);
    fflush(NULL);
    _exit(st == MB_OK ? exit_status : error_row_get(st)->exit_status);
}

static mb_status start_server(struct session *s, mb_error *err)
{
    int status;
    pid_t self = getpid();
    fflush(NULL);
    s->server = fork();
    if (s->server < 0) {
        s->server = 0;
        return mb_fail(err, MB_IO, "cannot start a server: %s", strerror(errno));
    }
    if (s->server == 0) run_server(s, self);
    fprintf(stderr, "starting a server on port %d (log: %s)\n", (int)s->f->port.i, s->log);
    while (!local_ask((int)s->f->port.i, s->f->api_key.given ? s->f->api_key.s : NULL, &s->model)) {
        if (waitpid(s->server, &status, WNOHANG) == s->server) {
            s->server = 0;
            return mb_fail(err, MB_IO, "the server ended before it was ready; the reason is at the end of %s", s->log);
        }
        usleep(100000);
    }
    return MB_OK;
}

static void stop_server(struct session *s)
{
    if (!s->server) return;
    kill(s->server, SIGTERM);
    waitpid(s->server, NULL, 0);
}

/* --- pi --- */
static mb_status write_extension(struct session *s, mb_error *err)
{
    struct buf text;
    buf_init(&text, INPUT_MAX_BYTES);
    harness_pi_text(&text, (int)s->f->port.i, &s->model);
    mb_status st = buf_status(&text, "the extension", err);
    if (st == MB_OK) st = file_write_replace(s->extension, text.data, text.len, err);
    buf_free(&text);
    return st;
}

static mb_status run_pi(struct session *s, const char *const *args, int n_args, int *exit_status, mb_error *err)
{
    const char *argv[MAX_ARGS + 8] = { "pi", "--extension", s->extension, "--provider", "mlx-bun", "--model", "local" };
    int n = 7, status = 0;
    for (int i = 0; i < n_args; i++) argv[n++] = args[i];
    pid_t pid = fork();
    if (pid < 0) return mb_fail(err, MB_IO, "cannot start pi: %s", strerror(errno));
    if (pid == 0) {
        signal(SIGPIPE, SIG_DFL);
        if (s->f->api_key.given) setenv("MLX_BUN_API_KEY", s->f->api_key.s, 1);
        execvp("pi", (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    signal(SIGINT, SIG_IGN); /* pi has the terminal */
    signal(SIGQUIT, SIG_IGN);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    *exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return MB_OK;
}

mb_status cmd_pi(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    static struct session s; /* large */
    char cache[MODEL_PATH_MAX];
    s.f = f;
    if (!is_on_path(f->path.s, "pi"))
        return mb_fail(err, MB_NOT_FOUND, "pi is not installed: npm install -g @mariozechner/pi-coding-agent");
    if (f->port.i == 0 || f->unix_path.given)
        return mb_fail(err, MB_INVALID, "mlx-bun pi needs a TCP port that pi can be told: --port N, not 0 and not --unix");
    MB_TRY(model_cache_dir(f, cache, sizeof cache, err));
    MB_TRY(dir_make(cache, err));
    MB_TRY(path_join(s.log, sizeof s.log, cache, "pi-server.log", err));
    MB_TRY(path_join(s.extension, sizeof s.extension, cache, "pi-provider.ts", err));
    mb_status st = MB_OK;
    if (local_ask((int)f->port.i, f->api_key.given ? f->api_key.s : NULL, &s.model)) warn_ignored(f);
    else st = start_server(&s, err);
    if (st == MB_OK) st = write_extension(&s, err);
    if (st == MB_OK) st = run_pi(&s, pos, n_pos, exit_status, err);
    stop_server(&s);
    return st;
}
