/* state.c: one text under a grammar. A state is a configuration of its grammar's machine and a few flags; the machine
 * knows all states, because a collection of its tables renumbers configurations. */
#include <string.h>

#include "grammar/grammar_int.h"

static void update(struct grammar_state *s)
{
    s->complete = s->g->machine.configs[s->config].flags & CF_COMPLETE;
}

static void list_add(struct grammar *g, struct grammar_state *s)
{
    s->next = g->states;
    s->prev = NULL;
    if (g->states) g->states->prev = s;
    g->states = s;
}

/* Under the lock, before a job: keep the tables below half of the ceiling (masks have the other half). */
static mb_status make_room(struct grammar *g)
{
    struct machine *m = &g->machine;
    size_t limit = m->limits.max_machine_bytes / 2, n = 0;
    if (m->bytes <= limit) return MB_OK;
    for (struct grammar_state *s = g->states; s; s = s->next) n++;
    uint32_t **roots = mb_alloc((n ? n : 1) * sizeof *roots);
    if (!roots) return MB_NO_MEMORY;
    n = 0;
    for (struct grammar_state *s = g->states; s; s = s->next) roots[n++] = &s->config;
    mb_status st = machine_collect(m, roots, n);
    mb_free(roots);
    return st != MB_OK ? st : m->bytes > limit ? MB_TOO_LARGE : MB_OK;
}

static mb_status job_begin(struct grammar *g)
{
    pthread_mutex_lock(&g->lock);
    mb_status st = make_room(g);
    machine_begin(&g->machine);
    g->machine.status = st;
    return st;
}

static mb_status job_end(struct grammar *g, mb_error *err)
{
    const struct machine *m = &g->machine;
    mb_status st = m->status;
    bool steps = m->steps == 0;
    atomic_store(&g->held, m->bytes + m->mask_bytes + m->local_bytes);
    pthread_mutex_unlock(&g->lock);
    if (st == MB_OK) return MB_OK;
    if (st == MB_NO_MEMORY) return mb_fail(err, st, "no memory for following the grammar");
    if (steps)
        return mb_fail(err, MB_TOO_LARGE, "the grammar takes more than %zu steps for one token: it is too ambiguous",
                       m->limits.max_mask_steps);
    return mb_fail(err, MB_TOO_LARGE, "following the grammar takes more than %zu bytes", m->limits.max_machine_bytes);
}

mb_status grammar_state_open(struct grammar_state **out, struct grammar *g, mb_error *err)
{
    *out = NULL;
    struct grammar_state *s = mb_calloc(1, sizeof *s);
    if (!s) return mb_fail(err, MB_NO_MEMORY, "no memory for a grammar's state");
    if (job_begin(g) == MB_OK) s->config = machine_start(&g->machine);
    if (g->machine.status == MB_OK) {
        s->g = g;
        update(s);
        list_add(g, s);
    }
    mb_status st = job_end(g, err);
    if (st != MB_OK) {
        mb_free(s);
        return st;
    }
    grammar_ref(g);
    *out = s;
    return MB_OK;
}

mb_status grammar_state_clone(struct grammar_state **out, const struct grammar_state *src, mb_error *err)
{
    *out = NULL;
    struct grammar_state *s = mb_alloc(sizeof *s);
    if (!s) return mb_fail(err, MB_NO_MEMORY, "no memory for a grammar's state");
    pthread_mutex_lock(&src->g->lock);
    *s = *src;
    list_add(s->g, s);
    pthread_mutex_unlock(&s->g->lock);
    grammar_ref(s->g);
    *out = s;
    return MB_OK;
}

void grammar_state_assign(struct grammar_state *dst, const struct grammar_state *src)
{
    pthread_mutex_lock(&dst->g->lock);
    dst->config = src->config;
    dst->finished = src->finished;
    dst->complete = src->complete;
    pthread_mutex_unlock(&dst->g->lock);
}

void grammar_state_close(struct grammar_state *s)
{
    if (!s) return;
    struct grammar *g = s->g;
    pthread_mutex_lock(&g->lock);
    if (s->prev) s->prev->next = s->next;
    else g->states = s->next;
    if (s->next) s->next->prev = s->prev;
    pthread_mutex_unlock(&g->lock);
    mb_free(s);
    grammar_unref(g);
}

/* --- masks --- */

static bool has_overflowed(struct grammar *g)
{
    pthread_mutex_lock(&g->lock); /* another state may be in a job */
    bool r = g->machine.overflowed;
    pthread_mutex_unlock(&g->lock);
    return r;
}

static mb_status too_ambiguous(const struct grammar *g, mb_error *err)
{
    return mb_fail(err, MB_TOO_LARGE, "the grammar is too ambiguous: more than %zu parses go on at one place",
                   g->machine.limits.max_items);
}

static void put_ends(const struct grammar_vocab *v, uint32_t *bits, int32_t n_bits)
{
    for (int32_t i = 0; i < v->n_end; i++)
        if (v->end_ids[i] >= 0 && v->end_ids[i] < n_bits) bits[v->end_ids[i] >> 5] |= 1u << (v->end_ids[i] & 31);
}

static bool any_bit(const uint32_t *bits, size_t n_words)
{
    for (size_t i = 0; i < n_words; i++)
        if (bits[i]) return true;
    return false;
}

mb_status grammar_state_mask(struct grammar_state *s, uint32_t *bits, int32_t n_bits, mb_error *err)
{
    struct grammar *g = s->g;
    const struct grammar_vocab *v = g->vocab;
    size_t n_own = ((size_t)v->n_vocab + 31) / 32, n_words = n_bits > 0 ? ((size_t)n_bits + 31) / 32 : 0;
    memset(bits, 0, n_words * sizeof *bits);
    if (!s->finished) {
        struct machine *m = &g->machine;
        if (job_begin(g) == MB_OK) mask_get(m, s->config, m->out, n_own);
        if (m->status == MB_OK) memcpy(bits, m->out, (n_words < n_own ? n_words : n_own) * sizeof *bits);
        MB_TRY(job_end(g, err));
    }
    if (n_words && n_bits & 31) bits[n_words - 1] &= (1u << (n_bits & 31)) - 1;
    if (s->complete) put_ends(v, bits, n_bits);
    else if (!any_bit(bits, n_words) && has_overflowed(g))
        return too_ambiguous(g, err);
    else if (!any_bit(bits, n_words))
        return mb_fail(err, MB_UNSUPPORTED, "no token of this model spells what the grammar asks for next");
    return MB_OK;
}

/* --- moving on --- */

static bool is_end(const struct grammar_vocab *v, int32_t id)
{
    for (int32_t i = 0; i < v->n_end; i++)
        if (v->end_ids[i] == id) return true;
    return false;
}

/* DEAD: not allowed (or a failure in the machine's status). */
static uint32_t after_bytes(struct machine *m, uint32_t config, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len && config != CONFIG_DEAD; i++) config = machine_next(m, config, bytes[i]);
    return config;
}

static mb_status refused(const struct grammar_state *s, mb_error *err, int32_t id)
{
    if (has_overflowed(s->g)) return too_ambiguous(s->g, err);
    return mb_fail(err, MB_INVALID, "the token %d is not allowed by the grammar here", id);
}

mb_status grammar_state_accept(struct grammar_state *s, int32_t id, mb_error *err)
{
    struct grammar *g = s->g;
    const struct grammar_vocab *v = g->vocab;
    if (is_end(v, id)) {
        if (!s->complete) return refused(s, err, id);
        s->finished = true;
        return MB_OK;
    }
    if (s->finished || id < 0 || id >= v->n_vocab) return refused(s, err, id);
    uint32_t to = CONFIG_DEAD;
    if (job_begin(g) == MB_OK) {
        if (v->added[id]) to = machine_token(&g->machine, s->config, id);
        else to = after_bytes(&g->machine, s->config, v->bytes + v->offs[id], v->offs[id + 1] - v->offs[id]);
    }
    if (g->machine.status == MB_OK && to != CONFIG_DEAD) {
        s->config = to;
        update(s);
    }
    MB_TRY(job_end(g, err));
    return to == CONFIG_DEAD ? refused(s, err, id) : MB_OK;
}

mb_status grammar_state_accept_bytes(struct grammar_state *s, const char *bytes, size_t len, mb_error *err)
{
    struct grammar *g = s->g;
    uint32_t to = CONFIG_DEAD;
    if (!len) return MB_OK;
    if (job_begin(g) == MB_OK && !s->finished) to = after_bytes(&g->machine, s->config, (const uint8_t *)bytes, len);
    if (g->machine.status == MB_OK && to != CONFIG_DEAD) {
        s->config = to;
        update(s);
    }
    MB_TRY(job_end(g, err));
    return to == CONFIG_DEAD ? mb_fail(err, MB_INVALID, "the grammar does not allow this text here") : MB_OK;
}

bool grammar_state_is_complete(const struct grammar_state *s)
{
    return s->complete;
}

bool grammar_state_must_end(struct grammar_state *s)
{
    if (s->finished) return true;
    pthread_mutex_lock(&s->g->lock);
    bool r = s->complete && s->g->machine.configs[s->config].n_items == 0;
    pthread_mutex_unlock(&s->g->lock);
    return r;
}

size_t grammar_state_forced(struct grammar_state *s, char *out, size_t cap)
{
    struct machine *m = &s->g->machine;
    size_t n = 0;
    if (s->finished) return 0;
    if (job_begin(s->g) == MB_OK) {
        for (uint32_t at = s->config; n < cap && at != CONFIG_DEAD && !(m->configs[at].flags & (CF_COMPLETE | CF_TOKENS));) {
            int only = machine_only(m, at);
            if (only < 0) break;
            at = machine_next(m, at, (uint8_t)only);
            if (m->status == MB_OK && at != CONFIG_DEAD) out[n++] = (char)only;
        }
    }
    return job_end(s->g, NULL) == MB_OK ? n : 0;
}
