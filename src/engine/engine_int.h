/* engine_int.h: what the engine's own files share.
 *
 * run       one submitted job: queue entry, then owner of its sequences. Freed after on_done.
 * sequence  one choice of a run: ids, page tables, sampler state; the source of rows.
 * step      one batch: rows, drawing positions, draws; two of them, so that an asynchronous stepper computes one while
 *           the other is delivered.
 * Locking: `lock` guards the queue, the list of runs, flags of runs that other threads set, and published stats. The
 * engine thread never holds it in a callback or in a step. Everything else belongs to the engine thread.
 */
#ifndef ENGINE_ENGINE_INT_H
#define ENGINE_ENGINE_INT_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/prefix_tree.h"

enum { ENGINE_MAX_CHOICES = 1024, ENGINE_RATE_SECONDS = 8 };

enum seq_phase {
    SEQ_FORK_WAIT = 0, /* waits for the first choice's prefill */
    SEQ_READY,         /* wants a slot: new, forked, preempted or unparked */
    SEQ_ACTIVE,        /* has a slot */
    SEQ_PARKED,        /* its consumer is slow; first to lose its pages */
    SEQ_ENDED
};

struct run;
struct method;

struct seq_snap { int32_t index; int32_t page[KV_MAX_KINDS]; }; /* recurrent states not yet published */

struct sequence {
    struct seq_state st;
    struct run *run;
    const struct method *method;
    int32_t i_choice;
    enum seq_phase phase;
    struct sequence *prev, *next;  /* engine's list of sequences, oldest first */
    bool listed;

    int32_t *ids;                  /* prompt, then drawn ids; owned; capacity fixed */
    int32_t n_ids, n_prompt, n_drawn, max_drawn;
    bool context_bound;            /* max_drawn comes from the window, not from the request */
    struct sample_params params;
    int32_t n_put;                 /* the last so many ids were put in (job_ahead.sure) and not told yet */
    int32_t spare[KV_MAX_KINDS];   /* copies of states while guesses are computed, -1: none */
    struct embed_span *embeds;     /* [job->n_embeds] row-relative, of the row in flight */

    int32_t kept[KV_MAX_KINDS];    /* first table entry not yet dropped */
    bool clean;                    /* a finite draw has shown that its keys may be shared */
    int32_t n_published;
    struct seq_snap *snaps;        /* [cap_snaps] */
    int32_t n_snaps, cap_snaps;
    int32_t n_promised;            /* tokens promised by the tree */
    int32_t n_scored;              /* JOB_SCORE: positions below were told; a preempted row computes them again, silently */

    bool in_flight;                /* a row of the step being computed is its */
    bool undelivered;              /* a drawn id waits for the filter */
    struct {                       /* JOB_DIFFUSE: the finished canvas that is being told */
        int32_t first, n, n_told;  /* ids[first .. first + n); n 0: none */
        enum end_reason end;       /* how the sequence ends behind it */
    } block;
    enum end_reason end;           /* known already, told at delivery */
    mb_status end_status;
    const char *end_text;          /* static */
    uint32_t unpark_seen;
    int64_t t_parked_ns, t_last_token_ns;
};

struct run {
    uint64_t id;
    const struct engine_job *job;
    struct run *next;              /* queue or list of running runs */
    bool cancelled;                /* lock */
    bool counted;                  /* lock: counts against queue_max */
    uint32_t n_unpark;             /* lock */

    bool started;                  /* has left the queue: the engine thread's */
    uint64_t key;                  /* root of its cache */
    struct sequence *seqs;         /* [n_choices], made at admission */
    int32_t n_live;                /* choices that have not ended */
    struct run *awaits;            /* prefix being prefilled by that run; compared, never followed */
    uint64_t awaits_id;
};

struct adapter_table {
    pthread_mutex_t lock;
    struct engine_adapter *list[ENGINE_MAX_ADAPTERS]; /* in order of mounting */
    int32_t n;
};

struct step {
    struct row *rows;              /* [batch + ENGINE_EMBED_ROWS] */
    struct row_result *results;
    struct sequence **seqs;        /* NULL: ended before delivery */
    int32_t *i_draw;               /* first draw of a row */
    int32_t *n_guess, *n_new;      /* of a row: ids that are guesses; draws that became tokens, or failed */
    struct sample_pos *pos;        /* [n_draw_max] */
    struct draw *draws;
    int32_t n_rows, n_draws, n_tokens, n_prefill, n_guesses; /* n_prefill: without n_guesses */
    int32_t n_beside;              /* of n_rows: rows beside the batch, which draw nothing */
    int32_t n_canvas;              /* of n_tokens: of a canvas, neither prefill nor drawn yet */
    bool undelivered;
};

struct rate { int64_t second[ENGINE_RATE_SECONDS]; uint64_t n[ENGINE_RATE_SECONDS]; };

struct meter {
    struct engine_stats s;         /* counters; gauges are filled when published */
    double decode_ns, prefill_ns_per_token; /* moving means, 0 = not measured */
    struct rate decode_rate, prefill_rate;
    double ttft_ns_sum, itl_ns_sum;
    uint64_t n_ttft, n_itl;
    double alone_ns_sum, alone_index_sum; /* of s.n_alone steps */
};

struct engine {
    struct stepper st;
    const struct stepper_info *info;
    struct engine_options opt;
    int32_t n_draw_max;
    bool has_state, has_window;    /* kinds present */
    struct kv_pool kv;
    struct prefix_tree tree;
    struct adapter_table adapters;

    pthread_mutex_t lock;
    pthread_cond_t wake, cleared;
    pthread_t thread;
    bool thread_started;
    /* under lock */
    struct run *queue, **queue_tail, *running;
    int32_t n_waiting, n_embed_waiting;
    uint64_t next_id;
    bool dirty;                    /* something for the engine thread to look at */
    bool stopping, dead;
    int64_t t_stop_ns;             /* with stopping: when the drain ends */
    uint64_t n_clear_wanted, n_clear_done;
    struct engine_stats published;
    int64_t t_heartbeat_ns;
    bool idle;

    /* engine thread */
    struct sequence *first, *last;
    int32_t n_active, n_parked;    /* n_active: slots of the batch that are taken */
    int32_t n_embed_active;        /* rows beside it */
    struct job_ahead ahead;        /* scratch of planning */
    struct canvas *canvas;         /* of the sequence that is at one; NULL: the model has none */
    struct step step[2];
    int i_step;                    /* the one planned next */
    uint32_t turn;                 /* round robin of prefill */
    bool stalled;                  /* the last turn changed nothing though rows wait */
    uint64_t n_events;             /* starts, slots given, preemptions, ends */
    struct meter meter;
};

/* A method: how a sequence turns into rows and what becomes of the results. method.c holds the table. */
struct method {
    const char *name;
    bool beside;                                    /* takes rows beside the batch and its queue (ENGINE_EMBED_ROWS) */
    bool waits;                                     /* no row while a result of its has not been told */
    int32_t (*feed_end)(const struct sequence *s);  /* indices that must be computed */
    /* Add this sequence's next row of at most `budget` tokens; false when it has none now. */
    bool (*next_row)(struct engine *e, struct sequence *s, struct step *st, int32_t budget);
    /* The row was committed: look at its draws. */
    void (*take)(struct engine *e, struct sequence *s, struct step *st, int32_t i_row);
    /* Tell the filter. */
    void (*deliver)(struct engine *e, struct sequence *s, struct step *st, int32_t i_row);
    /* Tokens of a row that cannot be cut and must come next; 0: none. NULL: never. */
    int32_t (*whole)(const struct engine *e, const struct sequence *s);
};
/* method.c: what methods share. A row of the sequence's next ids up to `end`; a drawing position behind n_history ids. */
struct row *row_add(struct engine *e, struct sequence *s, struct step *st, int32_t end);
struct sample_pos *draw_add(struct sequence *s, struct step *st, int32_t n_history);
/* A row of the prompt that draws nothing; how far it goes, n_committed: there are no pages now. */
int32_t prompt_row_end(struct engine *e, struct sequence *s, int32_t stop, int32_t budget);
bool is_end_id(const struct engine_job *job, int32_t id);
bool is_drawn(const struct engine *e, const struct draw *d);
void no_draw(struct sequence *s, const struct draw *d);
/* The first draw is finite: siblings start, keys may be shared. */
void seq_is_clean(struct engine *e, struct sequence *s);
/* Its consumer is slow. */
void seq_park(struct engine *e, struct sequence *s);
void unpark_look(struct engine *e, struct sequence *s);
const struct method *method_get(enum job_method m);
/* Which counter of taken slots a sequence is in while it is active; which counter of waiting jobs a run (lock). */
int32_t *slots_of(struct engine *e, const struct sequence *s);
int32_t *waiting_of(struct engine *e, const struct run *r);

/* method_diffusion.c: the canvas of an engine; its rows. canvas_forget: s is at none any more. */
mb_status canvas_open(struct engine *e, mb_error *err);
void canvas_close(struct engine *e);
void canvas_forget(struct engine *e, const struct sequence *s);
int32_t canvas_tokens(const struct engine *e); /* 0: the model has none */
int32_t diffusion_feed_end(const struct sequence *s);
bool diffusion_next_row(struct engine *e, struct sequence *s, struct step *st, int32_t budget);
void diffusion_take(struct engine *e, struct sequence *s, struct step *st, int32_t i_row);
void diffusion_deliver(struct engine *e, struct sequence *s, struct step *st, int32_t i_row);
int32_t diffusion_whole(const struct engine *e, const struct sequence *s);

/* adapter.c */
mb_status adapters_open(struct engine *e, mb_error *err);
void adapters_close(struct engine *e);

/* sequence.c */
mb_status run_make_sequences(struct engine *e, struct run *r, mb_error *err);
void run_free(struct run *r);
struct symbol_view seq_symbols(const struct sequence *s);
void seq_list_insert(struct engine *e, struct sequence *s);
void seq_list_remove(struct engine *e, struct sequence *s);
bool seq_has_pages(const struct engine *e, const struct sequence *s);
void seq_release_pages(struct engine *e, struct sequence *s);
/* Pages for indices up to `end`; *covered: how far they reach. True when all of it. */
bool seq_grow(struct engine *e, struct sequence *s, int32_t end, int32_t *covered);
/* For a stepper that begins steps early: the page of the token behind the next one of s, if one is free now; the tree gives up none. */
void seq_grow_early(struct engine *e, struct sequence *s);
/* Copy the recurrent states to where a row of guesses can be taken back; false: no free memory. Back, or let go of. */
bool seq_state_save(struct engine *e, struct sequence *s);
void seq_state_restore(struct engine *e, struct sequence *s);
void seq_state_forget(struct engine *e, struct sequence *s);
/* Take pages of the longest cached prefix; returns its length. */
int32_t seq_adopt(struct engine *e, struct sequence *s);
void seq_fork(struct engine *e, const struct sequence *from, struct sequence *to);
enum { SNAPS_BY_COUNT = 20 }; /* states kept at 1, 2, 4 .. pages of a prompt, at most */
void seq_snapshot(struct engine *e, struct sequence *s);
/* The first of 64, 128, 256 .. above n. */
int32_t next_page_count(int32_t n);
void seq_publish(struct engine *e, struct sequence *s);
void seq_drop_left(struct engine *e, struct sequence *s);
/* Start of the two-way span that index i lies inside of; i itself when it may end a row. */
int32_t span_start(const struct engine_job *job, int32_t i);
/* First index a query at index i of a window kind sees. */
int32_t window_first(const struct kv_kind *k, int32_t i);

/* admit.c */
mb_status job_check(struct engine *e, const struct engine_job *job, mb_error *err);
uint64_t job_cache_key(const struct engine *e, const struct engine_job *job);
void admit(struct engine *e);
void seq_preempt(struct engine *e, struct sequence *s);

/* deliver.c */
void seq_finish(struct engine *e, struct sequence *s, enum end_reason why, mb_status status, const char *text);
void run_finish(struct engine *e, struct run *r, enum end_reason why, mb_status status, const char *text);
/* A run that never started: callbacks, then gone. */
void run_refuse(struct engine *e, struct run *r, enum end_reason why, mb_status status, const char *text);
void step_deliver(struct engine *e, struct step *st);
void tell_told(struct engine *e); /* what was told may go on to whom it is for */
void sweep(struct engine *e);

/* plan.c */
void plan_step(struct engine *e, struct step *st);
int32_t chunk_end(const struct engine *e, const struct sequence *s, int32_t end, int32_t n_max);

/* scheduler.c */
void *engine_main(void *arg);

/* stats.c */
void stats_step(struct engine *e, const struct step *st, int64_t ns);
void stats_guesses(struct engine *e, int32_t n, int32_t n_kept);
void stats_token(struct engine *e, struct sequence *s);
void stats_block(struct engine *e, int32_t n); /* a canvas is finished: so many tokens of it count */
void stats_publish(struct engine *e);

#endif
