/* deliver.c: what leaves the engine: drawn tokens, progress, ends. All callbacks of a job are made here and in
 * admit.c (on_start), on the engine thread, outside the lock.
 *
 * An end is told once, by seq_finish. A sequence that ended well gives its last pages to the tree; one that failed or
 * was cancelled gives nothing more. Pages go back in sweep(), when no row of it is being computed; on_done is the last
 * call of a job, after the last of its choices is swept. */
#include "engine/engine_int.h"

void seq_finish(struct engine *e, struct sequence *s, enum end_reason why, mb_status status, const char *text)
{
    if (s->phase == SEQ_ENDED) return;
    struct run *r = s->run;
    e->n_events++;
    if (s->phase == SEQ_ACTIVE) --*slots_of(e, s);
    if (s->phase == SEQ_PARKED) e->n_parked--;
    s->phase = SEQ_ENDED;
    canvas_forget(e, s);
    if (why != END_ERROR && why != END_CANCELLED && s->st.n_committed > 0) seq_publish(e, s);
    for (int32_t i = 0; s->i_choice == 0 && i < r->job->n_choices; i++)
        if (r->seqs[i].phase == SEQ_FORK_WAIT) r->seqs[i].phase = SEQ_READY;
    r->n_live--;
    r->job->filter.on_end(r->job->filter.ctx, s->i_choice, why, status, text);
    if (r->n_live > 0) return;
    if (why == END_CANCELLED) e->meter.s.cancelled++;
    else if (why == END_ERROR) e->meter.s.failed++;
    else e->meter.s.finished++;
}

void run_finish(struct engine *e, struct run *r, enum end_reason why, mb_status status, const char *text)
{
    for (int32_t i = 0; i < r->job->n_choices; i++) seq_finish(e, &r->seqs[i], why, status, text);
}

static void run_done(struct engine *e, struct run *r)
{
    struct job_filter f = r->job->filter;
    for (int32_t i = 0; r->seqs && i < r->job->n_choices; i++) {
        seq_list_remove(e, &r->seqs[i]);
        if (r->seqs[i].n_promised) prefix_tree_unreserve(&e->tree, r->seqs[i].n_promised);
    }
    run_free(r);
    f.on_done(f.ctx);
}

void run_refuse(struct engine *e, struct run *r, enum end_reason why, mb_status status, const char *text)
{
    const struct job_filter *f = &r->job->filter;
    for (int32_t i = 0; i < r->job->n_choices; i++) f->on_end(f->ctx, i, why, status, text);
    if (why == END_CANCELLED) e->meter.s.cancelled++;
    else e->meter.s.failed++;
    run_done(e, r);
}

static void progress(struct sequence *s, const struct row *r)
{
    const struct job_filter *f = &s->run->job->filter;
    if (!f->on_progress || s->i_choice != 0 || s->n_drawn > (r->draw == DRAW_LAST) || r->n <= 1) return;
    int32_t done = r->i_first + r->n;
    f->on_progress(f->ctx, done < s->n_prompt ? done : s->n_prompt, s->n_prompt);
}

void step_deliver(struct engine *e, struct step *st)
{
    for (int32_t i = 0; st->undelivered && i < st->n_rows; i++) {
        struct sequence *s = st->seqs[i];
        if (!s || s->phase == SEQ_ENDED) continue;
        s->undelivered = false;
        progress(s, &st->rows[i]);
        s->method->deliver(e, s, st, i);
    }
    st->undelivered = false;
    tell_told(e);
}

void tell_told(struct engine *e)
{
    for (struct sequence *s = e->first; s; s = s->next) {
        const struct job_filter *f = &s->run->job->filter;
        if (f->on_told && s->run->started) f->on_told(f->ctx);
    }
}

/* Take ended runs out of the list under the lock; returns them linked. */
static struct run *take_ended(struct engine *e)
{
    struct run *ended = NULL;
    pthread_mutex_lock(&e->lock);
    for (struct run **p = &e->running; *p;) {
        struct run *r = *p;
        if (r->n_live > 0) {
            p = &r->next;
            continue;
        }
        *p = r->next;
        r->next = ended;
        ended = r;
    }
    pthread_mutex_unlock(&e->lock);
    return ended;
}

/* Called when nothing is being computed. */
void sweep(struct engine *e)
{
    bool any = false;
    for (struct sequence *s = e->first, *next; s; s = next) {
        next = s->next;
        if (s->phase != SEQ_ENDED) continue;
        seq_release_pages(e, s);
        seq_list_remove(e, s);
        any = true;
    }
    if (!any) return;
    for (int i = 0; i < 2; i++)
        for (int32_t j = 0; e->step[i].undelivered && j < e->step[i].n_rows; j++)
            if (e->step[i].seqs[j] && e->step[i].seqs[j]->phase == SEQ_ENDED) e->step[i].seqs[j] = NULL;
    for (struct run *r = take_ended(e), *next; r; r = next) {
        next = r->next;
        run_done(e, r);
    }
}
