/* fit.h: the answer of `mlx-bun fit`, of GET /fit, of the ready card and of /library: one model on this machine, from its config
 * and headers, the measured speed of the machine, and the decode rate that was measured of this very model, if any.
 *
 * Measurements are kept in the registry's file: of the machine for a month (or until processor, level, threads or version change),
 * of a model until its files change, then too for a month.
 */
#ifndef CLI_FIT_H
#define CLI_FIT_H

#include "cli/store.h"
#include "hub/measures.h"

enum fit_measure {
    FIT_KNOWN,  /* what is kept, if it is fresh; never measure */
    FIT_WANTED, /* measure when nothing fresh is kept (0.7 s, all threads) */
    FIT_ANEW    /* measure */
};

/* This machine. */
struct fit_here {
    char chip[96], device[96];
    uint64_t ram_bytes;
    struct ops_rates rates;       /* read_bytes_s 0: not known */
    int64_t measured_at_ms;
};

struct fit_view {
    const char *path;             /* borrowed */
    struct fit_model model;
    struct fit_here here;
    struct fit_report report;     /* at the context asked for */
    int32_t context_tokens;       /* largest that is admitted; 0: it does not fit */
    int32_t typical_context;
    double typical_tps;           /* 0: not known */
    struct decode_measure measured; /* tokens_per_s 0: never, or not fresh */
};

/* Rates of the device that `load` names. What cannot be kept is measured all the same, with a warning. */
mb_status fit_here_get(const struct store *s, const struct engine_load *load, enum fit_measure how, struct fit_here *out, mb_error *err);
/* n_context <= 0: as much as is safe. s NULL: nothing is kept, nothing known. */
mb_status fit_view_make(const struct store *s, const struct engine_load *load, const char *path, int32_t n_context,
                        enum fit_measure how, struct fit_view *out, mb_error *err);
/* The same from what is known of the machine. */
mb_status fit_view_of(const struct store *s, const struct engine_load *load, const char *path, int32_t n_context,
                      const struct fit_here *here, struct fit_view *out, mb_error *err);
/* Keep the decode rate of one request alone, with what fit says beside it (REG-129). */
mb_status fit_decode_keep(const struct store *s, const struct engine_load *load, const char *path, double tokens_per_s,
                          int32_t n_context, mb_error *err);
/* The object of GET /fit (API-294..301). with_skus: the table too, else an empty one; more: text of further members, each with a
 * comma behind it, or "". */
void fit_view_json(const struct fit_view *v, bool with_skus, const char *more, struct buf *out);

/* --- serve_fit.c: what serve knows of the model it runs --- */
struct serve_fit; /* opaque */
/* Strings of load and the engine are borrowed until serve_fit_close, which keeps the rate that was measured. NULL: it
 * cannot be had, which a warning says. */
struct serve_fit *serve_fit_open(const struct flags *f, const char *path, mb_engine *e);
void serve_fit_close(struct serve_fit *s);
mb_status serve_fit_json(void *serve_fit, struct buf *out, mb_error *err);
/* The line of the ready card; "" when nothing is known. */
void serve_fit_line(struct serve_fit *s, char out[128]);
/* What is known of the machine without measuring; NULL: nothing. */
const struct ops_rates *serve_fit_rates(struct serve_fit *s);

mb_status cmd_fit(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err);

#endif
