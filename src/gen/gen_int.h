/* gen_int.h: what the files of this folder share.
 *
 * A gen_stream is born in gen_start (stream.c) on the consumer's thread, prepared by a worker (workers.c, prepare.c),
 * handed to the engine, fed by the filter (deliver.c) on the engine thread, read by its consumer (gen_next). It is
 * counted: the consumer holds one reference (until gen_close), the producer one (worker, then engine, until on_done).
 * The lock order is: gen_engine.lock, then gen_stream.lock. `notify` is called without the stream's lock;
 * gen_close waits for calls that run, so that after it there are none. It must only note that there is something to read.
 */
#ifndef GEN_GEN_INT_H
#define GEN_GEN_INT_H

#include <pthread.h>

#include "base/mem.h"
#include "chat/reasoning.h"
#include "chat/template.h"
#include "chat/tools/tools.h"
#include "gen/gen.h"
#include "grammar/grammar.h"
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
    int32_t open_id, close_id;         /* marker tokens of a thought, -1: tags are searched in the text */
    int32_t sign_ids[REASONING_MAX_SIGNS], n_sign_ids; /* all marker tokens, by their numbers; 0: searched in the text */
    const struct tool_family *family;  /* how this model writes tool calls */
    enum given_bool thinking;          /* for requests that do not say */
};

struct gen_engine {
    struct engine *engine;             /* owned */
    struct gen_renderer *text;         /* owned */
    struct gen_engine_options opt;     /* its strings are NULL here; see info */
    struct gen_model_info info;        /* strings in `arena` */
    struct sampler_values model;       /* generation_config.json */
    const char *default_adapter, *adapter_root; /* "" = none; arena */
    int32_t *end_ids, n_end_ids;       /* union of all sources (B-034); arena */
    int32_t *xtc_exempt, n_xtc_exempt; /* end ids and newline tokens; arena */
    int32_t *close_ids, n_close_ids;   /* what closes a thought by force: its marker, or the tag's tokens; arena */
    int32_t *break_ids, n_break_ids;   /* line breaks that are one token; arena */
    pthread_mutex_t grammar_lock;      /* guards the next one while it is made */
    struct grammar_vocab *vocab;       /* owned; made by the first request that is constrained */
    struct arena arena;

    pthread_mutex_t lock;              /* guards the queue below */
    pthread_cond_t work;
    struct gen_stream *first, *last;   /* waiting for preparation */
    int32_t n_waiting;
    bool closing;
    int n_workers;
    pthread_t workers[GEN_MAX_WORKERS];
};

/* What keeps the draws of a choice inside a grammar and a thinking budget (limit.c); engine thread only. */
struct choice_limit {
    struct grammar_state *state;       /* NULL: free. Stands where the answer does, thoughts apart */
    struct grammar_state *frame;       /* where headers are drawn too; NULL once the answer has begun, or there are none */
    struct grammar_state *call;        /* inside a call of strict tools; NULL outside */
    bool call_lost;                    /* this call began in a form that the grammar does not have */
    uint32_t *mask;                    /* [n_mask words] of the next draw; arena */
    bool may_open;                     /* the first draw may open a thought */
    bool fresh;                        /* a thought has just closed: one line break may follow, which is no answer */
    bool spilled;                      /* this token was drawn without a mask; what it adds to the answer is checked */
    bool ended;                        /* the grammar is done and no end token may be drawn */
    int32_t n_forced;                  /* ids of the closing tag that were forced so far */
    mb_error err;                      /* why there is no mask, or a token was not in the language */
};

/* Where each run of `k` ids of the conversation was met before (echo.c). */
struct echo_index {
    int32_t k, n;                      /* runs that end at or before n are in it */
    int32_t max;                       /* ids that it may hold; 0: there is none */
    int32_t *before;                   /* [cap] by the end of a run: the one before it in its bucket; owned */
    int32_t cap;
    int32_t *last;                     /* [n_buckets] the end of the newest run, 0: none; owned */
    uint32_t n_buckets;                /* a power of two */
};

/* How the model's template writes calls of the request's tools (fill_forms.c); arena. */
enum fill_where { FILL_SIGN, FILL_BARE, FILL_HEADER }; /* a call begins with a sign, with the answer, with a message's header */
struct fill_form {
    const int32_t *ids;                /* of a call, from its beginning on, as far as nothing the model may say changes them */
    int32_t n;
    int32_t n_free;                    /* so many of them may begin something else: nothing is put in before one more */
    bool call;                         /* false: what else may stand there */
};
struct fill_end {                      /* a call where one value is all there is to say */
    struct str open, close;            /* text of the block between sign and value, and behind the value */
    size_t n_head;                     /* of open: the header as the splitter tells it, which is not how it was drawn */
    size_t n_sure;                     /* of close: what ends the value; 0 with json */
    bool json;                         /* a JSON value, which says itself where it ends */
};
struct fill_plan {
    const char *sign;                  /* opening sign, "" where there is none, NULL: nothing is put in */
    enum fill_where where;
    bool at_start;                     /* FILL_HEADER: the prompt ends where a header goes on */
    struct fill_form *forms;
    struct fill_end *ends;
    size_t n_forms, n_ends;
};

/* What a choice thinks that comes next (ahead.c); engine thread only. */
struct choice_ahead {
    bool copied;                       /* the last guess was an echo */
    int32_t call_at;                   /* place of the first id of the call that is written, below 0: none that is filled (fill.c) */
    int n_calls;                       /* calls that were whole then */
    bool in_body;                      /* FILL_HEADER: behind the header of a call */
    struct echo_index echo;
    struct gen_fill_counts fill;
    int32_t ids[ENGINE_AHEAD_MAX];     /* the last guess, of the places [at, at + n) of the sequence */
    int32_t at, n, n_right;            /* n_right: of them have come true so far */
    int32_t width;                     /* most to guess next time */
    struct grammar_state *scratch;     /* runs ahead of the limit's state of that grammar */
    const struct grammar *scratch_of;  /* compared, never followed */
    uint32_t *masks;                   /* [n_masks][n_words] of the draws behind guesses; arena */
    int32_t n_masks;                   /* 0: grammars are not jumped */
};

/* Filter state of one choice; engine thread only. */
struct gen_choice {
    struct gen_stream *s;
    int32_t index;
    struct detok detok;
    struct reasoning split;
    struct stop_match stop;
    struct tool_scan tools;            /* used when the request has tools */
    struct buf text, piece;            /* decoded text of one token; certain content */
    int32_t n_drawn, n_reasoning, n_calls;
    bool calls_done;                   /* parallel_tools is false and there was a call: nothing more comes out */
    struct choice_limit limit;
    struct choice_ahead ahead;
    int32_t i_stop;                    /* matched stop string, -1 */
    bool failed;                       /* an event could not be queued */
};

/* What a request's constraint and tool choice come to (constrain.c). */
struct constraint_plan {
    struct grammar *grammar;           /* a reference; NULL: nothing is enforced */
    struct grammar *frame;             /* a reference; of the headers around the answer, from the first token on; NULL: none */
    struct grammar *call;              /* a reference; of one call, for strict tools that may be called; NULL */
    bool forced;                       /* the frame leaves no other answer than a call */
    struct buf note;                   /* what the prompt is told instead; empty: nothing */
    struct buf warning;                /* why; empty: all is as asked */
};

struct gen_stream {
    struct gen_engine *g;              /* borrowed; not touched once producer_done */
    pthread_mutex_t lock;
    pthread_cond_t ready, told;        /* something to read; n_telling is 0 */
    int n_refs, n_telling;             /* n_telling: calls of notify that run */
    gen_notify_fn notify;
    void *notify_ctx;

    struct gen_ring ring;
    int32_t ring_soft;                 /* events above which rows are parked */
    struct { bool set; int32_t n_done, n_total; } progress; /* latest only */
    bool cancelled, closed, terminal;  /* terminal: ERROR or DONE has been queued */
    bool parked, submitted, producer_done;
    bool holding, due;                 /* a step's tokens come; notify is due when they are all there. Engine thread only */
    uint64_t job_id;

    struct gen_stream *next, *prev;    /* in the preparation queue */
    bool queued;

    struct gen_request req;            /* deep copy in arena */
    struct arena arena;                /* request-long data: copy, prompt, stop tables */
    struct engine_job job;
    struct adapter_pin pin;            /* of the job's adapters: from gen_start until the producer is done */
    struct stop_set stops;
    struct tool_set tools;             /* n 0: nothing is converted (API-151) */
    struct constraint_plan plan;
    struct fill_plan fill;
    struct gen_choice *choices;
    int32_t n_choices_made;            /* initialised so far, for freeing */
    bool failed;                       /* an error was delivered */
};

/* adapters.c: hold the adapters of a spec (NULL: the default); MB_INVALID names what is not mounted */
mb_status adapters_pin(struct gen_engine *g, const char *spec, struct adapter_pin *out, mb_error *err);
mb_status client_adapter_mount(void *ctx, const char *id, const char *path, struct engine_adapter_entry *out,
                               struct buf *problems, mb_error *err);
mb_status client_adapter_unmount(void *ctx, const char *id, mb_error *err);
int32_t client_adapter_list(void *ctx, struct engine_adapter_entry *out, int32_t cap);
int32_t client_adapter_available(void *ctx, struct engine_adapter_entry *out, int32_t cap); /* adapters_available.c */

/* embed.c */
mb_status client_embed(void *ctx, const struct gen_embed_request *r, struct gen_embeddings *out, mb_error *err);

/* stream.c */
mb_status stream_start(void *ctx, const struct gen_request *r, gen_notify_fn notify, void *notify_ctx,
                       struct gen_stream **out, mb_error *err);
void stream_push(struct gen_stream *s, const struct gen_event *ev, const char *text, size_t len, bool *failed);
/* Engine thread: what is pushed from here on is told to the consumer at stream_told, in one. */
void stream_hold(struct gen_stream *s);
void stream_told(struct gen_stream *s);
void stream_progress(struct gen_stream *s, int32_t n_done, int32_t n_total);
void stream_error(struct gen_stream *s, mb_status status, const char *text, const char *at);
/* The producer is done: DONE unless an error went before, and its reference goes. */
void stream_producer_done(struct gen_stream *s);
void stream_unref(struct gen_stream *s);
bool stream_is_cancelled(struct gen_stream *s);

/* workers.c */
mb_status workers_open(struct gen_engine *g, mb_error *err);
void workers_close(struct gen_engine *g);
mb_status workers_enqueue(struct gen_engine *g, struct gen_stream *s, mb_error *err);
/* Take s out if it still waits; true: the caller now owns the producer's reference. */
bool workers_dequeue(struct gen_engine *g, struct gen_stream *s);

/* render.c: gen_render with a ceiling of tokens: above it MB_CONTEXT_LENGTH, told before the whole text is cut. 0: none. */
mb_status render_limited(const struct gen_renderer *t, const struct gen_request *r, const char *note, int32_t n_context,
                         struct arena *a, struct gen_prompt *out, mb_error *err);

/* history.c: makes messages fit the template. The note (NULL: none) goes where `place` says */
enum note_place { NOTE_SYSTEM, NOTE_USER };
mb_status history_prepare(const struct gen_renderer *t, json_t *messages, const char *note, enum note_place place, mb_error *err);

/* history.c: does the template that serves tools print them, and calls of them? */
bool render_knows_tools(const struct gen_renderer *t);
bool render_knows_calls(const struct gen_renderer *t);
/* render.c: the text of messages as they would stand in a history (ask: with an answer to follow), without tools. Arena memory. */
mb_status render_trial(const struct gen_renderer *t, json_t *messages, bool ask, struct arena *a, struct str *out, mb_error *err);

/* prepare.c */
mb_status prepare_job(struct gen_engine *g, struct gen_stream *s, mb_error *err);
size_t prepare_arena_limit(const struct gen_request *r);
mb_status request_copy(struct gen_request *dst, const struct gen_request *src, struct arena *a, mb_error *err);

/* diffusion.c: models that write by canvases. After params and constraints: MB_INVALID names what cannot go with them */
bool diffusion_is(const struct gen_engine *g);
void diffusion_params(const struct gen_engine *g, struct gen_stream *s);
mb_status diffusion_check(const struct gen_stream *s, mb_error *err);

/* defaults.c: what the model directory says */
mb_status defaults_read(struct gen_engine *g, const char *dir, mb_error *err);
/* An object of a JSON file of the model directory; NULL when there is no such file. */
mb_status defaults_read_json(json_t **out, const char *dir, const char *name, mb_error *err);

/* calls.c: between the reasoning split and the stop strings */
struct tool_sink calls_sink(struct gen_choice *c);
bool calls_wanted(const struct gen_request *r);

/* constrain.c: on a worker. s: whose cancelling ends a compile; NULL: nobody's */
mb_status constrain_plan(struct gen_engine *g, struct gen_stream *s, const struct gen_request *r, const struct tool_set *tools,
                         struct constraint_plan *out, mb_error *err);
void constrain_free(struct constraint_plan *p);

/* limit.c: on the engine thread; limit_init on a worker */
mb_status limit_init(struct gen_choice *c, enum reasoning_start start, bool may_open, mb_error *err);
void limit_free(struct gen_choice *c);
bool limit_wanted(const struct gen_stream *s);
const uint32_t *limit_next_mask(void *ctx, int32_t i_choice);
size_t limit_mask_words(const struct gen_stream *s);
/* The state whose masks alone decide about the next draws as long as answer is drawn; NULL: none. */
struct grammar_state *limit_ruling(const struct gen_choice *c);
/* A token is about to be fed; then it was; between them, what it added to the answer. */
void limit_before(struct gen_choice *c);
void limit_content(struct gen_choice *c, const char *text, size_t len);
void limit_after(struct gen_choice *c, int32_t id);

/* ahead.c: on the engine thread; ahead_init on a worker */
mb_status ahead_init(struct gen_choice *c, mb_error *err);
void ahead_free(struct gen_choice *c);
bool ahead_wanted(const struct gen_stream *s);
void ahead_ask(void *ctx, int32_t i_choice, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out);
void ahead_guessed(void *ctx, int32_t i_choice, int32_t n);
/* A token has been told. */
void ahead_follow(struct gen_choice *c, int32_t id);

/* fill_forms.c: on a worker */
mb_status fill_prepare(struct gen_stream *s, const struct gen_prompt *prompt, mb_error *err);
/* fill.c: on the engine thread; fill_begin on a worker */
bool fill_wanted(const struct gen_stream *s);
void fill_begin(struct gen_choice *c);
void fill_follow(struct gen_choice *c);
bool fill_put(struct gen_choice *c, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out);

/* echo.c: echo_init on a worker, with the prompt */
mb_status echo_init(struct echo_index *x, const struct gen_fill_options *o, const int32_t *ids, int32_t n_ids, int32_t n_choices,
                    mb_error *err);
void echo_free(struct echo_index *x);
void echo_guess(struct echo_index *x, const struct gen_fill_options *o, const int32_t *ids, int32_t n_ids, int32_t n_max,
                struct job_ahead *out);

/* jump.c */
void jump_guess(struct gen_choice *c, const int32_t *ids, int32_t n_ids, int32_t n_max, struct job_ahead *out);

/* deliver.c */
void deliver_content(struct gen_choice *c, const char *text, size_t len); /* to the stop strings */
void deliver_stop_flush(struct gen_choice *c);
mb_status deliver_init(struct gen_engine *g, struct gen_stream *s, const struct gen_prompt *p, bool thinks, mb_error *err);
void deliver_free(struct gen_stream *s);
struct job_filter deliver_filter(struct gen_stream *s);

#endif
