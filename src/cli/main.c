/* main.c: one verb, its flags, its status. Prints errors and turns them into exit statuses by the error table; a command
 * line that cannot be understood is always 2. */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/errors.h"
#include "base/log.h"
#include "cli/cli.h"

#define EXIT_USAGE 2
#ifdef MB_FAULTS
#define FAULTS_TEXT " (fault points)"
#else
#define FAULTS_TEXT ""
#endif

void cli_warn(const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "mlx-bun: warning: %s\n", text);
}

/* Has the reader of standard output gone away? */
static bool is_pipe_broken(void)
{
    struct pollfd p = { .fd = STDOUT_FILENO };
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

mb_status cli_flush(mb_error *err)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return MB_OK;
    if (is_pipe_broken()) { /* as every program in a pipe: quietly */
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    return mb_fail(err, MB_IO, "cannot write to standard output: is the disk full?");
}

static void set_log(const struct flags *f, unsigned command)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    enum log_level level = command == CMD_SERVE && !f->quiet.b ? LOG_INFO : LOG_WARN;
    for (int i = 0; f->log_level.given && i < 4; i++)
        if (strcmp(f->log_level.s, names[i]) == 0) level = (enum log_level)i;
    log_set_level(level);
}

static int fail(const mb_error *err, int exit_status)
{
    fprintf(stderr, "mlx-bun: %s\n", err->text);
    return exit_status;
}

/* first: index of the argument behind the verb. */
static int run_verb(const struct verb *v, int argc, char **argv, int first)
{
    static struct flags flags; /* large; lives as long as the process */
    const char *pos[8] = { NULL };
    int n_pos, exit_status = 0;
    mb_error err = { 0 };
    if (flags_parse(&flags, v->bit, argc, argv, first, pos, v->n_positional, &n_pos, &err) != MB_OK) return fail(&err, EXIT_USAGE);
    set_log(&flags, v->bit);
    mb_status st = MB_OK;
    if (flags.help.b) help_print_verb(v);
    else st = v->run(&flags, pos, n_pos, &exit_status, &err);
    if (st == MB_OK) st = cli_flush(&err);
    if (st != MB_OK) return fail(&err, error_row_get(st)->exit_status);
    return exit_status;
}

static int usage(void)
{
    mb_error err;
    help_print_verb(NULL);
    return cli_flush(&err) == MB_OK ? 0 : 1;
}

/* The reference program's verbs for learned quantisation are no part of this one (REG-213). */
static bool is_learned_quantisation(const char *name)
{
    static const char *const names[] = { "awq", "dwq", "gptq", "dynamic_quant", "dynamic-quant" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static int unknown_verb(const char *name)
{
    size_t n;
    const struct verb *verbs = cli_verbs(&n);
    if (is_learned_quantisation(name)) {
        fprintf(stderr, "mlx-bun: %s is not implemented: quantisation that learns is no part of this program; mlx-bun convert --target-bpw "
                "chooses bits by measured sensitivity\n", name);
        return EXIT_USAGE;
    }
    fprintf(stderr, "mlx-bun: unknown verb '%.40s'; the verbs are:", name);
    for (size_t i = 0; i < n; i++) fprintf(stderr, " %s", verbs[i].name);
    fprintf(stderr, " (mlx-bun help)\n");
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is a failed write, not a death */
    if (argc < 2) return run_verb(cli_verb_find("serve"), argc, argv, 1); /* REG-045 */
    const char *name = argv[1];
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0 || strcmp(name, "version") == 0) {
        mb_error err;
        printf("mlx-bun %s%s\n", mb_version(), FAULTS_TEXT);
        return cli_flush(&err) == MB_OK ? 0 : fail(&err, 7);
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) return usage();
    const struct verb *v = cli_verb_find(name);
    if (!v && name[0] == '-') return run_verb(cli_verb_find("serve"), argc, argv, 1);
    if (!v) return unknown_verb(name);
    return run_verb(v, argc, argv, 2);
}
