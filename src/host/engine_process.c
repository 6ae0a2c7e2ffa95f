/* engine_process.c: see engine_process.h. Between fork and execve only calls that are safe in a child of a program with threads. */
#include "host/engine_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"

#define SECOND_NS 1000000000LL
#define ROLLING_NS (60 * SECOND_NS)
#define SHORT_LIFE_NS (10 * SECOND_NS)
#define WAIT_MS 5000

extern char **environ;

static void close_from(int first)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0) return;
#endif
    struct rlimit r;
    int n = getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < 65536 ? (int)r.rlim_cur : 65536;
    for (int fd = first; fd < n; fd++) close(fd);
}

static void run_child(const char *exe, const char *const *argv, int fd, pid_t parent)
{
    sigset_t none;
    int null = open("/dev/null", O_RDONLY);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(0); /* it died before it could be watched */
    setpgid(0, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (fd == ENGINE_HOST_FD) fcntl(fd, F_SETFD, 0);
    else dup2(fd, ENGINE_HOST_FD);
    close_from(ENGINE_HOST_FD + 1);
    execve(exe, (char *const *)(uintptr_t)argv, environ);
    _exit(127);
}

mb_status engine_process_start(struct engine_process *p, const char *exe, const char *const *argv, mb_error *err)
{
    int pair[2];
    pid_t self = getpid();
    *p = (struct engine_process){ .host_fd = -1 };
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return mb_fail_errno(err, "cannot make a socket for", "an engine");
    pid_t pid = fork();
    if (pid == 0) run_child(exe, argv, pair[1], self);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return mb_fail_errno(err, "cannot start", "an engine's process");
    }
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    *p = (struct engine_process){ pid, pair[0] };
    return MB_OK;
}

bool engine_process_reap(struct engine_process *p, int *status)
{
    if (!p->pid || waitpid(p->pid, status, WNOHANG) != p->pid) return false;
    if (p->host_fd >= 0) close(p->host_fd);
    *p = (struct engine_process){ .host_fd = -1 };
    return true;
}

bool engine_host_gone(int host_fd)
{
    struct pollfd p = { .fd = host_fd };
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR));
}

int64_t restarts_next(struct restarts *r, int64_t started_ns, int64_t died_ns)
{
    int n = 0;
    for (int i = 0; i < RESTARTS_MAX && i < r->n; i++) n += r->at_ns[i] > died_ns - ROLLING_NS;
    if (n == RESTARTS_MAX) return -1;
    int64_t wait = died_ns - started_ns < SHORT_LIFE_NS ? fault_value("engine_wait", WAIT_MS) * 1000000 : 0;
    r->at_ns[r->n++ % RESTARTS_MAX] = died_ns + wait;
    return died_ns + wait;
}
