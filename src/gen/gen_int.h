/* gen_int.h: what the files of this folder share.
 *
 * A gen_stream is born in gen_start (stream.c) on the consumer's thread, prepared by a worker (workers.c, prepare.c),
 * handed to the engine, fed by the filter (deliver.c) on the engine thread, read by its consumer (gen_next). It is
 * counted: the consumer holds one reference (until gen_close), the producer one (worker, then engine, until on_done).
 * The lock order is: gen_engine.lock, then gen_stream.lock. `notify` is called under the stream's lock, so that after
 * gen_close it is never called again; it must only note that there is something to read.
 */
#ifndef GEN_GEN_INT_H
#define GEN_GEN_INT_H

#include <pthread.h>

#include "base/mem.h"
#include "chat/reasoning.h"
#include "chat/template.h"
#include "gen/gen.h"
#include "gen/ring.h"
#include "gen/stop.h"
#include "tokenizer/tokenizer.h"

#define GEN_MAX_CHOICES 128
#define GEN_MAX_WORKERS 8

struct gen_renderer {
    struct tokenizer *tok;             /* owned */
    struct chat_templates templates;   /* owned */
    json_t *special_tokens;            /* owned: "pad_token" ... for templates; NULL */
    const struct reasoning_tags *tags;
    bool tags_named;                   /* the model knows them; else the default pair */
    int32_t open_id, close_id;         /* marker tokens, -1: tags are searched in the text */
    enum given_bool thinking;          /* for requests that do not say */
};

struct gen_engine {
    struct engine *engine;             /* owned */
    struct gen_renderer *text;         /* owned */
    struct gen_engine_options opt;     /* its strings are NULL here; see info */
    struct gen_model_info info;        /* strings in `arena` */
    struct sampler_values model;       /* generation_config.json */
    int32_t *end_ids, n_end_ids;       /* union of all sources (B-034); arena */
    int32_t *xtc_exempt, n_xtc_exempt; /* end ids and newline tokens; arena */
    struct arena arena;

    pthread_mutex_t lock;              /* guards the queue below */
    pthread_cond_t work;
    struct gen_stream *first, *last;   /* waiting for preparation */
    int32_t n_waiting;
    bool closing;
    int n_workers;
    pthread_t workers[GEN_MAX_WORKERS];
};

/* Filter state of one choice; engine thread only. */
struct gen_choice {
    struct gen_stream *s;
    int32_t index;
    struct detok detok;
    struct reasoning split;
    struct stop_match stop;
    struct buf text, piece;            /* decoded text of one token; certain content */
    int32_t n_drawn, n_reasoning;
    int32_t i_stop;                    /* matched stop string, -1 */
    bool failed;                       /* an event could not be queued */
};

struct gen_stream {
    struct gen_engine *g;              /* borrowed; not touched once producer_done */
    pthread_mutex_t lock;
    pthread_cond_t ready;
    int n_refs;
    gen_notify_fn notify;
    void *notify_ctx;

    struct gen_ring ring;
    int32_t ring_soft;                 /* events above which rows are parked */
    struct { bool set; int32_t n_done, n_total; } progress; /* latest only */
    bool cancelled, closed, terminal;  /* terminal: ERROR or DONE has been queued */
    bool parked, submitted, producer_done;
    uint64_t job_id;

    struct gen_stream *next, *prev;    /* in the preparation queue */
    bool queued;

    struct gen_request req;            /* deep copy in arena */
    struct arena arena;                /* request-long data: copy, prompt, stop tables */
    struct engine_job job;
    struct stop_set stops;
    struct gen_choice *choices;
    int32_t n_choices_made;            /* initialised so far, for freeing */
    bool failed;                       /* an error was delivered */
};

/* stream.c */
mb_status stream_start(void *ctx, const struct gen_request *r, gen_notify_fn notify, void *notify_ctx,
                       struct gen_stream **out, mb_error *err);
void stream_push(struct gen_stream *s, const struct gen_event *ev, const char *text, size_t len, bool *failed);
void stream_progress(struct gen_stream *s, int32_t n_done, int32_t n_total);
void stream_error(struct gen_stream *s, mb_status status, const char *text, const char *at);
/* The producer is done: DONE unless an error went before, and its reference goes. */
void stream_producer_done(struct gen_stream *s);
void stream_unref(struct gen_stream *s);

/* workers.c */
mb_status workers_open(struct gen_engine *g, mb_error *err);
void workers_close(struct gen_engine *g);
mb_status workers_enqueue(struct gen_engine *g, struct gen_stream *s, mb_error *err);
/* Take s out if it still waits; true: the caller now owns the producer's reference. */
bool workers_dequeue(struct gen_engine *g, struct gen_stream *s);

/* prepare.c */
mb_status prepare_job(struct gen_engine *g, struct gen_stream *s, mb_error *err);
size_t prepare_arena_limit(const struct gen_request *r);
mb_status request_copy(struct gen_request *dst, const struct gen_request *src, struct arena *a, mb_error *err);

/* defaults.c: what the model directory says */
mb_status defaults_read(struct gen_engine *g, const char *dir, mb_error *err);
/* An object of a JSON file of the model directory; NULL when there is no such file. */
mb_status defaults_read_json(json_t **out, const char *dir, const char *name, mb_error *err);

/* deliver.c */
mb_status deliver_init(struct gen_engine *g, struct gen_stream *s, bool opens_reasoning, mb_error *err);
void deliver_free(struct gen_stream *s);
struct job_filter deliver_filter(struct gen_stream *s);

#endif
