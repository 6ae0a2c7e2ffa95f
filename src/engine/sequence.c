/* sequence.c: one choice of one job: its ids, its page tables, and where its pages come from and go to.
 *
 * Tables and ids get their full size when the sequence is made; a step allocates nothing. A page a sequence writes to
 * is its own: full pages are shared by count, the partial last page is copied when a sequence forks or takes over a
 * cached prefix. The tree may know a page that is still being filled: its node names only the symbols that were there.
 * Pages of window kinds are kept until the sequence has published (or cannot), so that the tree gets whole prefixes;
 * when the pool is short they go earlier. */
#include <string.h>

#include "engine/engine_int.h"

int32_t window_first(const struct kv_kind *k, int32_t i)
{
    return i - k->window + 1 > 0 ? i - k->window + 1 : 0;
}

int32_t span_start(const struct engine_job *job, int32_t i)
{
    for (int32_t k = 0; k < job->n_two_way; k++)
        if (job->two_way[k].first < i && i < job->two_way[k].end) return job->two_way[k].first;
    return i;
}

struct symbol_view seq_symbols(const struct sequence *s)
{
    return (struct symbol_view){ s->run->job->symbols, s->n_prompt, s->ids };
}

/* --- making and freeing --- */

static mb_status seq_make(struct engine *e, struct sequence *s, struct run *r, int32_t i_choice, mb_error *err)
{
    const struct engine_job *job = r->job;
    int32_t room = e->info->n_context - job->n_ids, canvas = job->method == JOB_DIFFUSE ? canvas_tokens(e) : 1;
    bool draws = job->method == JOB_GENERATE || job->method == JOB_DIFFUSE;
    room -= room % canvas; /* whole canvases only */
    s->run = r;
    s->i_choice = i_choice;
    s->method = method_get(job->method);
    s->n_prompt = s->n_ids = job->n_ids;
    s->context_bound = job->max_tokens < 0 || job->max_tokens > room;
    s->max_drawn = !draws ? 0 : s->context_bound ? room : job->max_tokens;
    s->params = job->params;
    s->params.noise.i_choice = (uint32_t)i_choice;
    for (int32_t k = 0; k < KV_MAX_KINDS; k++) s->spare[k] = -1;
    s->cap_snaps = e->has_state ? job->n_marks + 1 + SNAPS_BY_COUNT : 0;
    int32_t cap = job->n_ids + (s->max_drawn + canvas - 1) / canvas * canvas, n_page = cap / KV_PAGE_TOKENS + 1;
    s->ids = mb_alloc((size_t)cap * sizeof *s->ids);
    s->embeds = mb_calloc((size_t)job->n_embeds + 1, sizeof *s->embeds);
    s->snaps = mb_calloc((size_t)s->cap_snaps + 1, sizeof *s->snaps);
    int32_t *tables = mb_alloc((size_t)n_page * (size_t)(e->kv.n_kinds + 1) * sizeof *tables);
    s->st.kind[0].page = tables; /* owner of the block, also when there is no kind */
    if (!s->ids || !s->embeds || !s->snaps || !tables || !prefix_tree_reserve(&e->tree, cap))
        return mb_fail(err, MB_NO_MEMORY, "no memory for a sequence of %d tokens", (int)cap);
    s->n_promised = cap;
    memcpy(s->ids, job->ids, (size_t)job->n_ids * sizeof *s->ids);
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        struct kv_table *t = &s->st.kind[k];
        t->page = tables + (size_t)k * (size_t)n_page;
        t->cap = e->kv.kinds[k].type == KIND_STATE ? 1 : n_page;
        for (int32_t j = 0; j < n_page; j++) t->page[j] = -1;
    }
    return MB_OK;
}

mb_status run_make_sequences(struct engine *e, struct run *r, mb_error *err)
{
    int32_t n = r->job->n_choices;
    r->seqs = mb_calloc((size_t)n, sizeof *r->seqs);
    if (!r->seqs) return mb_fail(err, MB_NO_MEMORY, "no memory for %d sequences", (int)n);
    mb_status rc = MB_OK;
    for (int32_t i = 0; i < n && rc == MB_OK; i++) rc = seq_make(e, &r->seqs[i], r, i, err);
    if (rc == MB_OK) {
        r->n_live = n;
        for (int32_t i = 0; i < n; i++) seq_list_insert(e, &r->seqs[i]);
        return MB_OK;
    }
    for (int32_t i = 0; i < n; i++)
        if (r->seqs[i].n_promised) prefix_tree_unreserve(&e->tree, r->seqs[i].n_promised);
    return rc;
}

void run_free(struct run *r)
{
    for (int32_t i = 0; r->seqs && i < r->job->n_choices; i++) {
        mb_free(r->seqs[i].ids);
        mb_free(r->seqs[i].embeds);
        mb_free(r->seqs[i].snaps);
        mb_free(r->seqs[i].st.kind[0].page);
    }
    mb_free(r->seqs);
    mb_free(r);
}

/* Runs start in order of arrival except those that waited for another's prefix: find the place by number. */
void seq_list_insert(struct engine *e, struct sequence *s)
{
    struct sequence *after = e->last;
    while (after && after->run->id > s->run->id) after = after->prev;
    s->prev = after;
    s->next = after ? after->next : e->first;
    if (s->prev) s->prev->next = s;
    else e->first = s;
    if (s->next) s->next->prev = s;
    else e->last = s;
    s->listed = true;
}

void seq_list_remove(struct engine *e, struct sequence *s)
{
    if (!s->listed) return;
    if (s->prev) s->prev->next = s->next;
    else e->first = s->next;
    if (s->next) s->next->prev = s->prev;
    else e->last = s->prev;
    s->listed = false;
}

/* --- pages --- */

bool seq_has_pages(const struct engine *e, const struct sequence *s)
{
    for (int32_t k = 0; k < e->kv.n_kinds; k++)
        if (s->st.kind[k].n_page > 0) return true;
    return s->n_snaps > 0;
}

static void snaps_drop(struct engine *e, struct sequence *s)
{
    for (int32_t i = 0; i < s->n_snaps; i++)
        for (int32_t k = 0; k < e->kv.n_kinds; k++)
            if (s->snaps[i].page[k] >= 0) kv_page_unref(&e->kv, k, s->snaps[i].page[k]);
    s->n_snaps = 0;
}

void seq_release_pages(struct engine *e, struct sequence *s)
{
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        struct kv_table *t = &s->st.kind[k];
        for (int32_t j = s->kept[k]; j < t->n_page; j++) {
            if (t->page[j] >= 0) kv_page_unref(&e->kv, k, t->page[j]);
            t->page[j] = -1;
        }
        t->n_page = 0;
        s->kept[k] = 0;
    }
    snaps_drop(e, s);
    seq_state_forget(e, s);
    s->st.n_committed = s->st.i_state = s->st.n_replay = 0;
    s->n_published = 0;
}

/* Drop pages of window kinds that no query at or behind n_committed sees. */
static void drop_left(struct engine *e, struct sequence *s)
{
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        if (e->kv.kinds[k].type != KIND_WINDOW) continue;
        struct kv_table *t = &s->st.kind[k];
        int32_t keep = window_first(&e->kv.kinds[k], s->st.n_committed) / KV_PAGE_TOKENS;
        for (; s->kept[k] < keep && s->kept[k] < t->n_page; s->kept[k]++) {
            int32_t *page = &t->page[s->kept[k]];
            if (*page >= 0) kv_page_unref(&e->kv, k, *page);
            *page = -1;
        }
    }
}

static bool may_publish(const struct engine *e, const struct sequence *s)
{
    return e->tree.cap_bytes > 0 && !s->run->job->no_cache;
}

void seq_drop_left(struct engine *e, struct sequence *s)
{
    /* Before its first draw the pages wait for the tree, and for siblings that fork from it. */
    if (!e->has_window || (!s->clean && (may_publish(e, s) || s->run->job->n_choices > 1))) return;
    drop_left(e, s);
}

static int32_t page_alloc(struct engine *e, int32_t i_kind)
{
    int32_t id = kv_page_alloc(&e->kv, i_kind);
    if (id >= 0) return id;
    int64_t need[KV_MAX_KINDS] = { 0 };
    need[i_kind] = 1;
    if (!prefix_tree_reclaim(&e->tree, need, false)) {
        for (struct sequence *s = e->first; e->has_window && s; s = s->next)
            if (!s->in_flight) drop_left(e, s);
        if (!prefix_tree_reclaim(&e->tree, need, true)) return -1;
    }
    return kv_page_alloc(&e->kv, i_kind);
}

/* A page that a row needs is worth more than copies of states which nobody has asked for yet. */
static int32_t page_alloc_for_row(struct engine *e, int32_t i_kind)
{
    int32_t id = page_alloc(e, i_kind);
    if (id >= 0 || !e->has_state) return id;
    for (struct sequence *s = e->first; s; s = s->next) snaps_drop(e, s);
    return page_alloc(e, i_kind);
}

static bool kind_grow(struct engine *e, struct sequence *s, int32_t k, int32_t n_page)
{
    struct kv_table *t = &s->st.kind[k];
    if (e->kv.kinds[k].type == KIND_STATE) n_page = 1;
    while (t->n_page < n_page) {
        int32_t id = page_alloc_for_row(e, k);
        if (id < 0) return false;
        t->page[t->n_page++] = id;
    }
    return true;
}

bool seq_grow(struct engine *e, struct sequence *s, int32_t end, int32_t *covered)
{
    *covered = end;
    if (e->kv.n_kinds == 0) return true;
    for (int32_t j = s->st.n_committed / KV_PAGE_TOKENS; j * KV_PAGE_TOKENS < end; j++) {
        bool ok = true;
        for (int32_t k = 0; k < e->kv.n_kinds && ok; k++) ok = kind_grow(e, s, k, j + 1);
        if (ok) continue;
        *covered = j * KV_PAGE_TOKENS > s->st.n_committed ? j * KV_PAGE_TOKENS : s->st.n_committed;
        return false;
    }
    return true;
}

void seq_grow_early(struct engine *e, struct sequence *s)
{
    int32_t next = s->st.n_committed + 1, j = next / KV_PAGE_TOKENS;
    if (next % KV_PAGE_TOKENS != 0 || next >= s->n_promised) return;
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        struct kv_table *t = &s->st.kind[k];
        if (e->kv.kinds[k].type == KIND_STATE || t->n_page != j) continue;
        int32_t id = kv_page_alloc(&e->kv, k);
        if (id < 0) return;
        t->page[t->n_page++] = id;
    }
}

/* --- states that may be taken back --- */

bool seq_state_save(struct engine *e, struct sequence *s)
{
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        if (e->kv.kinds[k].type != KIND_STATE) continue;
        if (s->spare[k] < 0) s->spare[k] = kv_page_alloc(&e->kv, k);
        if (s->spare[k] < 0) {
            seq_state_forget(e, s);
            return false;
        }
        e->st.page_copy(e->st.ctx, k, s->spare[k], s->st.kind[k].page[0]);
    }
    return true;
}

void seq_state_forget(struct engine *e, struct sequence *s)
{
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        if (s->spare[k] >= 0) kv_page_unref(&e->kv, k, s->spare[k]);
        s->spare[k] = -1;
    }
}

void seq_state_restore(struct engine *e, struct sequence *s)
{
    for (int32_t k = 0; k < e->kv.n_kinds; k++)
        if (s->spare[k] >= 0) e->st.page_copy(e->st.ctx, k, s->st.kind[k].page[0], s->spare[k]);
    seq_state_forget(e, s);
}

/* --- taking over pages of others --- */

/* Give `to` pages for indices [0, n): `page(src, k, j)` names them. Full ones are shared, the partial one is copied.
 * All sources are held while copies are made, so that making room cannot drop them. */
typedef int32_t (*page_source)(const void *src, int32_t k, int32_t j);

static bool pages_share(struct engine *e, struct sequence *to, int32_t n, page_source page, const void *src)
{
    int32_t n_page = (n + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    bool partial = n % KV_PAGE_TOKENS != 0, ok = true;
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        struct kv_table *t = &to->st.kind[k];
        bool window = e->kv.kinds[k].type == KIND_WINDOW;
        if (e->kv.kinds[k].type == KIND_STATE) n_page = 1;
        else n_page = (n + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
        to->kept[k] = window ? window_first(&e->kv.kinds[k], n) / KV_PAGE_TOKENS : 0;
        for (int32_t j = to->kept[k]; j < n_page; j++) {
            t->page[j] = page(src, k, j);
            ok = ok && t->page[j] >= 0;
            if (t->page[j] >= 0) kv_page_ref(&e->kv, k, t->page[j]);
        }
        t->n_page = n_page;
        if (to->kept[k] > n_page) to->kept[k] = n_page;
    }
    for (int32_t k = 0; k < e->kv.n_kinds && ok; k++) {
        struct kv_table *t = &to->st.kind[k];
        bool state = e->kv.kinds[k].type == KIND_STATE;
        int32_t j = t->n_page - 1;
        if ((!partial && !state) || j < to->kept[k]) continue;
        int32_t own = page_alloc(e, k);
        ok = own >= 0;
        if (!ok) break;
        e->st.page_copy(e->st.ctx, k, own, t->page[j]);
        kv_page_unref(&e->kv, k, t->page[j]);
        t->page[j] = own;
    }
    if (!ok) {
        seq_release_pages(e, to);
        return false;
    }
    to->st.n_committed = to->st.i_state = n;
    return true;
}

static int32_t page_of_hit(const void *src, int32_t k, int32_t j)
{
    const struct tree_hit *h = src;
    for (int i = 0; h->state && i < h->state->n_snaps; i++)
        if (h->state->snap[i].i_kind == k && h->state->snap[i].off == (h->n - 1) % KV_PAGE_TOKENS + 1)
            return h->state->snap[i].page;
    return h->path[j]->page[k];
}

int32_t seq_adopt(struct engine *e, struct sequence *s)
{
    const struct engine_job *job = s->run->job;
    if (!may_publish(e, s)) return 0;
    struct symbol_view v = seq_symbols(s);
    struct tree_hit hit;
    int32_t n_max = s->n_ids - 1;
    if (job->method == JOB_SCORE && job->n_score_from < n_max) n_max = job->n_score_from;
    prefix_tree_find(&e->tree, s->run->key, &v, n_max, job->two_way, job->n_two_way, &hit);
    if (hit.n == 0) return 0;
    prefix_tree_touch(&e->tree, &hit);
    if (!pages_share(e, s, hit.n, page_of_hit, &hit)) return 0;
    s->n_published = hit.n;
    return hit.n;
}

struct fork_source { const struct engine *e; const struct sequence *s; int32_t n; };

static int32_t page_of_fork(const void *src, int32_t k, int32_t j)
{
    const struct fork_source *f = src;
    if (f->e->kv.kinds[k].type != KIND_STATE) return f->s->st.kind[k].page[j];
    for (int32_t i = 0; i < f->s->n_snaps; i++)
        if (f->s->snaps[i].index == f->n) return f->s->snaps[i].page[k];
    return -1;
}

/* The sibling starts at the last prompt token: it draws from the same logits with its own noise. When a page or a
 * state is missing it starts with nothing and is prefilled: same bits. */
void seq_fork(struct engine *e, const struct sequence *from, struct sequence *to)
{
    struct fork_source src = { e, from, span_start(from->run->job, from->n_prompt - 1) };
    if (src.n > 0 && e->kv.n_kinds > 0) pages_share(e, to, src.n, page_of_fork, &src);
}

/* --- giving pages to others --- */

/* Prompt end - 1, and the ends of messages. */
static bool wants_snapshot(const struct sequence *s, int32_t n)
{
    const struct engine_job *job = s->run->job;
    if (n == s->n_prompt - 1 && n > 0) return true;
    for (int32_t i = 0; i < job->n_marks; i++)
        if (job->marks[i] == n) return n < s->n_prompt;
    return false;
}

/* 1, 2, 4, 8 .. pages, inside the prompt: what other prompts may share though nobody said where they part. */
static bool is_page_count(const struct sequence *s, int32_t n)
{
    int32_t j = n / KV_PAGE_TOKENS;
    return n > 0 && n < s->n_prompt && n % KV_PAGE_TOKENS == 0 && (j & (j - 1)) == 0;
}

int32_t next_page_count(int32_t n)
{
    int32_t at = KV_PAGE_TOKENS;
    while (at <= n && at <= INT32_MAX / 2) at *= 2;
    return at;
}

void seq_snapshot(struct engine *e, struct sequence *s)
{
    int32_t n = s->st.n_committed;
    if (!e->has_state || s->n_snaps == s->cap_snaps || s->st.i_state != n) return;
    bool wanted = wants_snapshot(s, n);
    if (!wanted && !is_page_count(s, n)) return;
    if (!may_publish(e, s) && s->run->job->n_choices == 1) return;
    if (s->clean) return; /* the prompt's states are with the tree already */
    struct seq_snap *snap = &s->snaps[s->n_snaps];
    bool ok = true;
    snap->index = n;
    for (int32_t k = 0; k < e->kv.n_kinds; k++) {
        snap->page[k] = -1;
        if (e->kv.kinds[k].type != KIND_STATE || !ok) continue;
        snap->page[k] = wanted ? page_alloc(e, k) : kv_page_alloc(&e->kv, k); /* at page counts from free memory only */
        ok = snap->page[k] >= 0;
        if (ok) e->st.page_copy(e->st.ctx, k, snap->page[k], s->st.kind[k].page[0]);
    }
    s->n_snaps++;
    if (ok) return;
    s->n_snaps--; /* no room: only this snapshot is lost */
    for (int32_t k = 0; k < e->kv.n_kinds; k++)
        if (snap->page[k] >= 0) kv_page_unref(&e->kv, k, snap->page[k]);
}

void seq_publish(struct engine *e, struct sequence *s)
{
    if (!may_publish(e, s) || !s->clean) return;
    struct symbol_view v = seq_symbols(s);
    prefix_tree_publish(&e->tree, s->run->key, &v, s->st.n_committed, &s->st);
    s->n_published = s->st.n_committed;
    for (int32_t i = 0; i < s->n_snaps; i++)
        for (int32_t k = 0; k < e->kv.n_kinds; k++)
            if (s->snaps[i].page[k] >= 0)
                prefix_tree_add_state(&e->tree, s->run->key, &v, s->snaps[i].index, k, s->snaps[i].page[k]);
    snaps_drop(e, s);
    if (s->phase != SEQ_ENDED || s->in_flight || s->st.i_state == 0) return;
    /* Generation end: the live state itself becomes a snapshot. */
    for (int32_t k = 0; k < e->kv.n_kinds; k++)
        if (e->kv.kinds[k].type == KIND_STATE && s->st.kind[k].n_page > 0)
            prefix_tree_add_state(&e->tree, s->run->key, &v, s->st.i_state, k, s->st.kind[k].page[0]);
}
