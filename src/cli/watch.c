/* watch.c: see store.h. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/store.h"

#define REDRAW_NS 100000000
#define LINE_NS 5000000000
#define BAR_CELLS 24

/* The one thing a signal handler can reach. */
static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
    (void)sig;
    interrupted = 1;
}

void watch_begin(struct watch *w, const char *what, bool quiet)
{
    struct sigaction sa;
    *w = (struct watch){ .what = what, .quiet = quiet, .is_tty = isatty(STDERR_FILENO) == 1, .t_draw_ns = clock_now_ns() };
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    interrupted = 0;
    sigaction(SIGINT, &sa, &w->was_int);
    sigaction(SIGTERM, &sa, &w->was_term);
}

void watch_end(struct watch *w)
{
    if (w->shown) fprintf(stderr, "\r\033[K");
    sigaction(SIGINT, &w->was_int, NULL);
    sigaction(SIGTERM, &w->was_term, NULL);
}

static void draw(struct watch *w, const char *label, const struct fetch_progress *p, int64_t rate)
{
    char bar[BAR_CELLS + 1], a[32], b[32], c[32], text[200];
    double part = p->total_bytes ? (double)p->done_bytes / (double)p->total_bytes : 0;
    int full = (int)(part * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++) bar[i] = i < full ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    int n = snprintf(text, sizeof text, "%s%s[%s] %3d %%  %s of %s  %zu/%zu files  %s/s", label, *label ? " " : "", bar, (int)(part * 100),
                     model_size_text(p->done_bytes, a), model_size_text(p->total_bytes, b), p->files_done, p->files_total,
                     model_size_text((uint64_t)(rate > 0 ? rate : 0), c));
    if (rate > 0 && n < 160)
        snprintf(text + n, sizeof text - (size_t)n, "  %lld s left", (long long)((int64_t)(p->total_bytes - p->done_bytes) / rate));
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    w->shown = true;
}

static void say_line(const struct watch *w, const char *label, const struct fetch_progress *p, int64_t rate)
{
    char a[32], b[32], c[32];
    fprintf(stderr, "%s: %s%s%s of %s, %zu of %zu files, %s/s\n", w->what, label, *label ? " " : "", model_size_text(p->done_bytes, a),
            model_size_text(p->total_bytes, b), p->files_done, p->files_total, model_size_text((uint64_t)(rate > 0 ? rate : 0), c));
}

bool watch_show(struct watch *w, const char *label, const struct fetch_progress *p, int64_t bytes_per_sec)
{
    int64_t now = clock_now_ns();
    if (w->quiet || p->total_bytes == 0 || now - w->t_draw_ns < (w->is_tty ? REDRAW_NS : LINE_NS)) return !interrupted;
    w->t_draw_ns = now;
    if (w->is_tty) draw(w, label, p, bytes_per_sec);
    else say_line(w, label, p, bytes_per_sec);
    return !interrupted;
}
