/* downloads.c: see downloads.h. */
#include "hub/downloads.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

#define WINDOW_NS 5000000000
#define WRITE_NS 1000000000

void download_log_begin(struct download_log *l, const char *registry_path, const char *repo)
{
    memset(l, 0, sizeof *l);
    strcpy(l->row.state, "active");
    if (registry_open(&l->registry, registry_path, NULL) != MB_OK) return;
    if (registry_download_begin(l->registry, repo, &l->row.id, NULL) == MB_OK) return;
    registry_close(l->registry);
    l->registry = NULL;
}

int64_t download_rate_add(struct download_log *l, int64_t now, uint64_t bytes)
{
    if (l->n_samples == RATE_SAMPLES || (l->n_samples > 1 && now - l->samples[1].t_ns > WINDOW_NS)) {
        memmove(l->samples, l->samples + 1, sizeof l->samples[0] * (size_t)(l->n_samples - 1));
        l->n_samples--;
    }
    if (l->n_samples == 0 || now - l->samples[l->n_samples - 1].t_ns > WINDOW_NS / RATE_SAMPLES) {
        l->samples[l->n_samples].t_ns = now;
        l->samples[l->n_samples++].bytes = bytes;
    }
    double s = (double)(now - l->samples[0].t_ns) / 1e9;
    return s > 0.05 ? (int64_t)((double)(bytes - l->samples[0].bytes) / s) : 0;
}

static void take_numbers(struct download_row *d, const struct fetch_progress *p)
{
    snprintf(d->current_file, sizeof d->current_file, "%.255s", p->current ? p->current : "");
    d->received_bytes = (int64_t)p->done_bytes;
    d->total_bytes = (int64_t)p->total_bytes;
    d->files_done = (int64_t)p->files_done;
    d->files_total = (int64_t)p->files_total;
}

int64_t download_log_progress(struct download_log *l, const struct fetch_progress *p)
{
    int64_t now = clock_now_ns(), rate = download_rate_add(l, now, p->received_bytes);
    if (!l->registry || now - l->t_written_ns < WRITE_NS) return rate;
    l->t_written_ns = now;
    take_numbers(&l->row, p);
    l->row.bytes_per_sec = rate;
    registry_download_update(l->registry, &l->row, NULL);
    return rate;
}

void download_log_end(struct download_log *l, mb_status st, const struct fetch_progress *p, const char *root, const mb_error *err)
{
    struct download_row *d = &l->row;
    if (!l->registry) return;
    strcpy(d->state, st == MB_OK ? "done" : "error");
    take_numbers(d, p);
    d->current_file[0] = '\0';
    d->bytes_per_sec = 0;
    d->finished_at = clock_unix_s();
    if (st != MB_OK) snprintf(d->error, sizeof d->error, "%.255s", err->text);
    registry_download_update(l->registry, d, NULL);
    if (st == MB_OK) registry_scan(l->registry, root, false, NULL, NULL, NULL);
    registry_close(l->registry);
    l->registry = NULL;
}
