/* download.c: a get that a person watches: one line of progress on a terminal, plain lines elsewhere, a row among the downloads
 * of all processes, and an orderly end at SIGINT and SIGTERM (partials stay, locks go). */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/store.h"
#include "hub/downloads.h"

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

struct watch {
    const char *repo;
    bool quiet, is_tty, shown;
    int64_t t_draw_ns;
    struct download_log log;
};

/* --- showing --- */

static void draw(struct watch *w, const struct fetch_progress *p, int64_t rate)
{
    char bar[BAR_CELLS + 1], a[32], b[32], c[32], text[160];
    double part = p->total_bytes ? (double)p->done_bytes / (double)p->total_bytes : 0;
    int full = (int)(part * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++) bar[i] = i < full ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    int n = snprintf(text, sizeof text, "[%s] %3d %%  %s of %s  %zu/%zu files  %s/s", bar, (int)(part * 100),
                     model_size_text(p->done_bytes, a), model_size_text(p->total_bytes, b), p->files_done, p->files_total,
                     model_size_text((uint64_t)(rate > 0 ? rate : 0), c));
    if (rate > 0 && n < 140)
        snprintf(text + n, sizeof text - (size_t)n, "  %lld s left", (long long)((int64_t)(p->total_bytes - p->done_bytes) / rate));
    fprintf(stderr, "\r\033[K%s", text);
    fflush(stderr);
    w->shown = true;
}

static void say_line(const struct watch *w, const struct fetch_progress *p, int64_t rate)
{
    char a[32], b[32], c[32];
    fprintf(stderr, "%s: %s of %s, %zu of %zu files, %s/s\n", w->repo, model_size_text(p->done_bytes, a),
            model_size_text(p->total_bytes, b), p->files_done, p->files_total, model_size_text((uint64_t)(rate > 0 ? rate : 0), c));
}

static void show(struct watch *w, const struct fetch_progress *p, int64_t now, int64_t rate)
{
    if (w->quiet || p->total_bytes == 0 || now - w->t_draw_ns < (w->is_tty ? REDRAW_NS : LINE_NS)) return;
    w->t_draw_ns = now;
    if (w->is_tty) draw(w, p, rate);
    else say_line(w, p, rate);
}

static bool on_progress(void *ctx, const struct fetch_progress *p)
{
    struct watch *w = ctx;
    show(w, p, clock_now_ns(), download_log_progress(&w->log, p));
    return !interrupted;
}

/* --- one download --- */

mb_status download_model(const struct flags *f, const struct store *s, const char *repo, const char *revision,
                         const json_t *locked, struct get_result *r, mb_error *err)
{
    static struct watch w; /* large */
    w = (struct watch){ .repo = repo, .quiet = f->quiet.b, .is_tty = isatty(STDERR_FILENO) == 1, .t_draw_ns = clock_now_ns() };
    struct get_opts o = { .net = s->net, .root = s->root, .offline = s->offline, .all_files = f->all.b, .verify = f->verify.b,
                          .locked = locked, .parallel = (int)f->parallel.i, .progress = on_progress, .ctx = &w };
    struct sigaction sa, was_int, was_term;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    interrupted = 0;
    sigaction(SIGINT, &sa, &was_int);
    sigaction(SIGTERM, &sa, &was_term);
    if (!s->offline) download_log_begin(&w.log, s->registry_path, repo);
    mb_status st = get_model(&o, repo, revision, r, err);
    if (w.shown) fprintf(stderr, "\r\033[K");
    download_log_end(&w.log, st, &r->numbers, s->root, err);
    sigaction(SIGINT, &was_int, NULL);
    sigaction(SIGTERM, &was_term, NULL);
    return st;
}
