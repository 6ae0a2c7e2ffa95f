/* download.c: a get that a person watches: one line of progress on a terminal, plain lines elsewhere, a row among the downloads
 * of all processes, and an orderly end at SIGINT and SIGTERM (partials stay, locks go). */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/store.h"

#define RATE_SAMPLES 64
#define RATE_WINDOW_NS 5000000000 /* REG-145 */
#define REDRAW_NS 100000000
#define LINE_NS 5000000000
#define RECORD_NS 1000000000
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
    int64_t t_draw_ns, t_record_ns;
    struct { int64_t t_ns; uint64_t bytes; } samples[RATE_SAMPLES];
    int n_samples;
    struct registry *registry; /* NULL: downloads are not recorded */
    struct download_row row;
};

/* --- the rate over the last seconds --- */

static int64_t rate_of(struct watch *w, int64_t now, uint64_t bytes)
{
    if (w->n_samples == RATE_SAMPLES || (w->n_samples > 1 && now - w->samples[1].t_ns > RATE_WINDOW_NS)) {
        memmove(w->samples, w->samples + 1, sizeof w->samples[0] * (size_t)(w->n_samples - 1));
        w->n_samples--;
    }
    if (w->n_samples == 0 || now - w->samples[w->n_samples - 1].t_ns > RATE_WINDOW_NS / RATE_SAMPLES) {
        w->samples[w->n_samples].t_ns = now;
        w->samples[w->n_samples++].bytes = bytes;
    }
    double s = (double)(now - w->samples[0].t_ns) / 1e9;
    return s > 0.05 ? (int64_t)((double)(bytes - w->samples[0].bytes) / s) : 0;
}

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

static void record(struct watch *w, const struct fetch_progress *p, int64_t now, int64_t rate)
{
    if (!w->registry || now - w->t_record_ns < RECORD_NS) return;
    w->t_record_ns = now;
    struct download_row *d = &w->row;
    snprintf(d->current_file, sizeof d->current_file, "%.255s", p->current ? p->current : "");
    d->received_bytes = (int64_t)p->done_bytes;
    d->total_bytes = (int64_t)p->total_bytes;
    d->files_done = (int64_t)p->files_done;
    d->files_total = (int64_t)p->files_total;
    d->bytes_per_sec = rate;
    registry_download_update(w->registry, d, NULL);
}

static bool on_progress(void *ctx, const struct fetch_progress *p)
{
    struct watch *w = ctx;
    int64_t now = clock_now_ns(), rate = rate_of(w, now, p->received_bytes);
    show(w, p, now, rate);
    record(w, p, now, rate);
    return !interrupted;
}

/* --- one download --- */

static void record_end(struct watch *w, mb_status st, const struct get_result *r, const mb_error *err)
{
    struct download_row *d = &w->row;
    if (!w->registry) return;
    strcpy(d->state, st == MB_OK ? "done" : "error");
    d->current_file[0] = '\0';
    d->finished_at = clock_unix_s();
    d->received_bytes = (int64_t)r->numbers.done_bytes;
    d->total_bytes = (int64_t)r->numbers.total_bytes;
    d->files_done = (int64_t)r->numbers.files_done;
    d->files_total = (int64_t)r->numbers.files_total;
    d->bytes_per_sec = 0;
    if (st != MB_OK) snprintf(d->error, sizeof d->error, "%.255s", err->text);
    registry_download_update(w->registry, d, NULL);
}

static void record_begin(struct watch *w, const struct store *s)
{
    if (registry_open(&w->registry, s->registry_path, NULL) != MB_OK) return; /* downloads work without */
    strcpy(w->row.state, "active");
    if (registry_download_begin(w->registry, w->repo, &w->row.id, NULL) == MB_OK) return;
    registry_close(w->registry);
    w->registry = NULL;
}

mb_status download_model(const struct flags *f, const struct store *s, const char *repo, const char *revision,
                         const json_t *locked, struct get_result *r, mb_error *err)
{
    struct watch w = { .repo = repo, .quiet = f->quiet.b, .is_tty = isatty(STDERR_FILENO) == 1, .t_draw_ns = clock_now_ns() };
    struct get_opts o = { .net = s->net, .root = s->root, .offline = s->offline, .all_files = f->all.b, .verify = f->verify.b,
                          .locked = locked, .parallel = (int)f->parallel.i, .progress = on_progress, .ctx = &w };
    struct sigaction sa, was_int, was_term;
    memset(&sa, 0, sizeof sa);
    sa.sa_handler = on_signal;
    interrupted = 0;
    sigaction(SIGINT, &sa, &was_int);
    sigaction(SIGTERM, &sa, &was_term);
    if (!s->offline) record_begin(&w, s);
    mb_status st = get_model(&o, repo, revision, r, err);
    if (w.shown) fprintf(stderr, "\r\033[K");
    record_end(&w, st, r, err);
    if (st == MB_OK && w.registry) registry_scan(w.registry, s->root, false, NULL, NULL, NULL);
    registry_close(w.registry);
    sigaction(SIGINT, &was_int, NULL);
    sigaction(SIGTERM, &was_term, NULL);
    return st;
}
