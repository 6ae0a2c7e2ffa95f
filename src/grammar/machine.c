/* machine.c: a program run over bytes.
 *
 * Where a parse stands is a configuration: a sorted set of items (state, stack). Stacks are lists of cells, made once
 * and shared (equal stacks have equal numbers), so equal places have equal configurations, whatever text led there:
 * what is learnt at one (the configuration behind each byte, its mask) is found again. Both tables grow while text is
 * generated; when they pass the ceiling, machine_collect keeps what the running states need and forgets the rest.
 *
 * A counting rule (maxLength 5000) is one cell that holds the number of iterations begun. Counts that cannot make a
 * difference within one token are equal in cell.abs, the stack under which masks are remembered.
 *
 * Closing a configuration (calls, returns, counts) works on a list with a hash beside it and ends at limits.max_items:
 * a place with more parallel parses is dead, in masks and in accept alike.
 * Threads: under the grammar's lock.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_int.h"

#define ITEMS_LIMIT ((size_t)1 << 40) /* the arena's own ceiling is the machine's */

static void fail(struct machine *m, mb_status code)
{
    if (m->status == MB_OK) m->status = code;
}

bool machine_spend(struct machine *m, size_t steps)
{
    if (m->steps < steps) {
        m->steps = 0;
        fail(m, MB_TOO_LARGE);
        return false;
    }
    m->steps -= steps;
    return true;
}

static bool grow(struct machine *m, void **v, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap) return true;
    uint32_t want = *cap ? *cap * 2 : 256;
    void *p = want > *cap ? mb_realloc(*v, (size_t)want * size) : NULL;
    if (!p) {
        fail(m, MB_NO_MEMORY);
        return false;
    }
    m->bytes += (size_t)(want - *cap) * size;
    *v = p;
    *cap = want;
    return true;
}

/* --- cells --- */

static uint32_t mix(uint32_t a, uint32_t b, uint32_t c)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u ^ ((uint64_t)c * 0xD6E8FEB86659FD93u);
    return (uint32_t)(h >> 32 ^ h);
}

static bool cells_rehash(struct machine *m)
{
    uint32_t want = m->cell_buckets ? m->cell_buckets * 2 : 512;
    uint32_t *t = mb_alloc(want * sizeof *t);
    if (!t) {
        fail(m, MB_NO_MEMORY);
        return false;
    }
    memset(t, 0xFF, want * sizeof *t);
    for (uint32_t i = 2; i < m->n_cells; i++) {
        struct cell *c = &m->cells[i];
        uint32_t h = mix(c->ret, c->parent, c->count) & (want - 1);
        c->next = t[h];
        t[h] = i;
    }
    m->bytes += (want - m->cell_buckets) * sizeof *t;
    mb_free(m->cell_hash);
    m->cell_hash = t;
    m->cell_buckets = want;
    return true;
}

static uint32_t cell_get(struct machine *m, uint32_t ret, uint32_t parent, uint32_t count);

/* The count that stands for all that cannot be told apart within one token. */
static uint32_t abs_count(const struct machine *m, const struct prule *r, uint32_t count)
{
    uint32_t reach = m->v->max_len + 2; /* one token begins at most so many iterations */
    if (count < r->lo) return r->lo - count > reach ? 0 : count;
    return r->hi == REPEAT_INF || r->hi - count > reach ? r->lo : count;
}

static uint32_t cell_new(struct machine *m, uint32_t ret, uint32_t parent, uint32_t count)
{
    uint32_t abs_parent = m->cells[parent].abs, abs_n = count, abs;
    if (ret & CELL_COUNT) abs_n = abs_count(m, &m->p->rules[ret & ~CELL_COUNT], count);
    bool own = abs_parent == parent && abs_n == count;
    abs = own ? 0 : cell_get(m, ret, abs_parent, abs_n); /* its own abs is itself: one level deep */
    if (m->n_cells >= m->cell_buckets && !cells_rehash(m)) return CELL_EMPTY;
    if (m->status != MB_OK || !grow(m, (void **)&m->cells, m->n_cells, &m->cap_cells, sizeof *m->cells)) return CELL_EMPTY;
    uint32_t i = m->n_cells++, h = mix(ret, parent, count) & (m->cell_buckets - 1);
    m->cells[i] = (struct cell){ ret, parent, count, own ? i : abs, m->cell_hash[h] };
    m->cell_hash[h] = i;
    return i;
}

/* The cell (ret, count) on top of parent. CELL_EMPTY after a failure (m->status). */
static uint32_t cell_get(struct machine *m, uint32_t ret, uint32_t parent, uint32_t count)
{
    for (uint32_t i = m->cell_hash[mix(ret, parent, count) & (m->cell_buckets - 1)]; i != UINT32_MAX; i = m->cells[i].next)
        if (m->cells[i].ret == ret && m->cells[i].parent == parent && m->cells[i].count == count) return i;
    return cell_new(m, ret, parent, count);
}

/* --- closing --- */

static void work_begin(struct machine *m)
{
    m->n_work = 0;
    m->work_full = false;
    if (++m->work_stamp == 0) {
        memset(m->work_tag, 0, m->work_hash_size * sizeof *m->work_tag);
        m->work_stamp = 1;
    }
}

static void work_add(struct machine *m, uint32_t state, uint32_t stack)
{
    uint32_t mask = m->work_hash_size - 1, h = mix(state, stack, 7) & mask;
    for (; m->work_tag[h] == m->work_stamp; h = (h + 1) & mask) {
        struct item *x = &m->work[m->work_hash[h]];
        if (x->state == state && x->stack == stack) return;
    }
    if (m->n_work >= m->limits.max_items) {
        m->work_full = m->overflowed = true; /* the place is dead */
        return;
    }
    m->work_tag[h] = m->work_stamp;
    m->work_hash[h] = m->n_work;
    m->work[m->n_work++] = (struct item){ state, stack };
}

static void call(struct machine *m, uint32_t rule, uint32_t ret, uint32_t stack);

/* A counting rule stands behind `count` iterations, on top of `stack`. Items of this kind are not kept: they turn into
 * the next iteration and, when enough were made, into the return. Marked by a state above CELL_COUNT in the work list. */
static void count_item(struct machine *m, uint32_t rule, uint32_t count, uint32_t stack)
{
    const struct prule *r = &m->p->rules[rule];
    if (r->hi == REPEAT_INF && count > r->lo) count = r->lo;
    uint32_t cell = cell_get(m, rule | CELL_COUNT, stack, count);
    if (m->status == MB_OK) work_add(m, rule | CELL_COUNT, cell);
}

static void return_to(struct machine *m, uint32_t stack, uint32_t *flags)
{
    if (stack == CELL_EMPTY) {
        *flags |= CF_COMPLETE;
        return;
    }
    if (stack == CELL_LOCAL) {
        *flags |= CF_EXITS;
        return;
    }
    struct cell c = m->cells[stack];
    if (c.ret & CELL_COUNT) count_item(m, c.ret & ~CELL_COUNT, c.count + 1, c.parent);
    else work_add(m, c.ret, c.parent);
}

static void call(struct machine *m, uint32_t rule, uint32_t ret, uint32_t stack)
{
    uint32_t top = m->p->states[ret].only_accept ? stack : cell_get(m, ret, stack, 0);
    if (m->status != MB_OK) return;
    if (m->p->rules[rule].is_repeat) count_item(m, rule, 0, top);
    else work_add(m, m->p->rules[rule].start, top);
}

static void expand_count(struct machine *m, struct item x, uint32_t *flags)
{
    const struct cell c = m->cells[x.stack];
    const struct prule *r = &m->p->rules[x.state & ~CELL_COUNT];
    if (c.count >= r->lo) return_to(m, c.parent, flags);
    if (c.count >= r->hi || m->work_full) return;
    if (m->p->rules[r->body_rule].is_repeat) count_item(m, r->body_rule, 0, x.stack);
    else work_add(m, m->p->rules[r->body_rule].start, x.stack);
}

static int by_item(const void *x, const void *y)
{
    const struct item *a = x, *b = y;
    if (a->state != b->state) return a->state < b->state ? -1 : 1;
    return a->stack < b->stack ? -1 : a->stack > b->stack;
}

/* Close the work list and keep the items that wait for input. Returns the flags. */
static uint32_t work_close(struct machine *m)
{
    uint32_t flags = 0, kept = 0;
    for (uint32_t i = 0; i < m->n_work && !m->work_full && m->status == MB_OK; i++) {
        struct item x = m->work[i];
        if (x.state & CELL_COUNT) {
            expand_count(m, x, &flags);
            continue;
        }
        const struct pstate *s = &m->p->states[x.state];
        if (s->accept) return_to(m, x.stack, &flags);
        for (uint32_t k = 0; k < s->n_syms && !m->work_full && m->status == MB_OK; k++) {
            const struct dfa_sym *y = &m->p->syms[s->sym0 + k];
            if (!y->is_token) call(m, (uint32_t)y->id, y->to, x.stack);
        }
    }
    if (m->work_full || m->status != MB_OK) {
        m->n_work = 0;
        return 0;
    }
    for (uint32_t i = 0; i < m->n_work; i++) {
        if (m->work[i].state & CELL_COUNT) continue;
        const struct pstate *s = &m->p->states[m->work[i].state];
        if (!s->n_edges && !s->has_tokens) continue;
        if (s->has_tokens) flags |= CF_TOKENS;
        m->work[kept++] = m->work[i];
    }
    m->n_work = kept;
    if (kept > 1) qsort(m->work, kept, sizeof *m->work, by_item);
    return flags;
}

/* --- configurations --- */

static uint32_t items_hash(const struct item *items, uint32_t n, uint32_t flags)
{
    uint32_t h = flags * 0x9E3779B9u + n;
    for (uint32_t i = 0; i < n; i++) h = mix(items[i].state, items[i].stack, h);
    return h;
}

static bool configs_rehash(struct machine *m)
{
    uint32_t want = m->config_buckets ? m->config_buckets * 2 : 256;
    uint32_t *t = mb_alloc(want * sizeof *t);
    if (!t) {
        fail(m, MB_NO_MEMORY);
        return false;
    }
    memset(t, 0xFF, want * sizeof *t);
    for (uint32_t i = 1; i < m->n_configs; i++) {
        uint32_t h = m->configs[i].hash & (want - 1);
        m->configs[i].hash_next = t[h];
        t[h] = i;
    }
    m->bytes += (want - m->config_buckets) * sizeof *t;
    mb_free(m->config_hash);
    m->config_hash = t;
    m->config_buckets = want;
    return true;
}

/* The configuration of these sorted items. CONFIG_DEAD when there is nothing, or after a failure. */
static uint32_t config_get(struct machine *m, const struct item *items, uint32_t n, uint32_t flags)
{
    if (m->status != MB_OK || (!n && !flags)) return CONFIG_DEAD;
    uint32_t hash = items_hash(items, n, flags);
    for (uint32_t i = m->config_hash[hash & (m->config_buckets - 1)]; i != UINT32_MAX; i = m->configs[i].hash_next) {
        const struct config *c = &m->configs[i];
        if (c->hash == hash && c->n_items == n && c->flags == flags && (!n || !memcmp(c->items, items, n * sizeof *items))) return i;
    }
    if (m->n_configs >= m->config_buckets && !configs_rehash(m)) return CONFIG_DEAD;
    if (!grow(m, (void **)&m->configs, m->n_configs, &m->cap_configs, sizeof *m->configs)) return CONFIG_DEAD;
    struct item *copy = arena_alloc_array(&m->items, n ? n : 1, sizeof *copy);
    if (!copy) {
        fail(m, MB_NO_MEMORY);
        return CONFIG_DEAD;
    }
    if (n) memcpy(copy, items, n * sizeof *items);
    m->bytes += n * sizeof *items;
    uint32_t h = hash & (m->config_buckets - 1);
    m->configs[m->n_configs] = (struct config){ .items = copy, .n_items = n, .flags = flags, .hash = hash, .only = -2,
                                                .hash_next = m->config_hash[h], .abs = CONFIG_UNKNOWN };
    m->config_hash[h] = m->n_configs;
    return m->n_configs++;
}

static uint32_t close_and_get(struct machine *m)
{
    uint32_t flags = work_close(m);
    return config_get(m, m->work, m->n_work, flags);
}

uint32_t machine_start(struct machine *m)
{
    const struct prule *r = &m->p->rules[m->p->root];
    work_begin(m);
    if (r->is_repeat) count_item(m, m->p->root, 0, CELL_EMPTY);
    else work_add(m, r->start, CELL_EMPTY);
    return close_and_get(m);
}

uint32_t machine_item(struct machine *m, struct item x)
{
    /* not closed: its calls and its end belong to the items that stand beside it in a closed configuration */
    return config_get(m, &x, 1, 0);
}

uint32_t machine_pop(struct machine *m, uint32_t stack)
{
    uint32_t flags = 0;
    work_begin(m);
    return_to(m, stack, &flags);
    flags |= work_close(m);
    return config_get(m, m->work, m->n_work, flags);
}

uint32_t machine_subset(struct machine *m, uint32_t config, bool wide)
{
    uint32_t n = 0, n_all = m->configs[config].n_items;
    for (uint32_t i = 0; i < n_all; i++) {
        struct item x = m->configs[config].items[i];
        if (m->p->states[x.state].wide == wide) m->work[n++] = x;
    }
    if (n == n_all) return config;
    return config_get(m, m->work, n, 0);
}

static uint32_t state_next(const struct program *p, uint32_t state, uint8_t byte)
{
    const struct pstate *s = &p->states[state];
    uint32_t lo = 0, hi = s->n_edges;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        const struct dfa_edge *e = &p->edges[s->edge0 + mid];
        if (byte < e->lo) hi = mid;
        else if (byte > e->hi) lo = mid + 1;
        else return e->to;
    }
    return UINT32_MAX;
}

static uint32_t step(struct machine *m, uint32_t config, uint8_t byte)
{
    struct config c = m->configs[config];
    if (!machine_spend(m, 4 + c.n_items)) return CONFIG_DEAD;
    work_begin(m);
    for (uint32_t i = 0; i < c.n_items && !m->work_full; i++) {
        uint32_t to = state_next(m->p, c.items[i].state, byte);
        if (to != UINT32_MAX) work_add(m, to, c.items[i].stack);
    }
    if (!m->n_work) return CONFIG_DEAD;
    uint32_t flags = work_close(m);
    machine_spend(m, m->n_work);
    return config_get(m, m->work, m->n_work, flags);
}

int machine_only(struct machine *m, uint32_t config)
{
    struct config *c = &m->configs[config];
    if (c->only != -2) return c->only;
    int only = -1;
    for (uint32_t i = 0; i < c->n_items; i++) {
        const struct pstate *s = &m->p->states[c->items[i].state];
        for (uint32_t k = 0; k < s->n_edges; k++) {
            const struct dfa_edge *e = &m->p->edges[s->edge0 + k];
            if (e->lo != e->hi || (only >= 0 && only != e->lo)) return c->only = -1;
            only = e->lo;
        }
    }
    c->only_next = CONFIG_UNKNOWN;
    return c->only = only;
}

uint32_t machine_next(struct machine *m, uint32_t config, uint8_t byte)
{
    int only = machine_only(m, config);
    struct config *c = &m->configs[config];
    if (only >= 0) {
        if (byte != only) return CONFIG_DEAD;
        if (c->only_next != CONFIG_UNKNOWN) return c->only_next;
        uint32_t to = step(m, config, byte);
        if (m->status == MB_OK) m->configs[config].only_next = to;
        return to;
    }
    if (!c->n_items) return CONFIG_DEAD;
    if (!c->next) {
        uint32_t *next = mb_alloc(256 * sizeof *next);
        if (!next) {
            fail(m, MB_NO_MEMORY);
            return CONFIG_DEAD;
        }
        memset(next, 0xFF, 256 * sizeof *next);
        c->next = next;
        m->bytes += 256 * sizeof *next;
    }
    if (c->next[byte] != CONFIG_UNKNOWN) return c->next[byte];
    uint32_t to = step(m, config, byte);
    if (m->status == MB_OK) m->configs[config].next[byte] = to;
    return to;
}

uint8_t machine_self(struct machine *m, uint32_t config)
{
    if (m->configs[config].self_known) return m->configs[config].self;
    uint8_t away = 0;
    for (int b = 0; b < 256 && m->status == MB_OK; b++)
        if (!(away & byte_class((uint8_t)b)) && machine_next(m, config, (uint8_t)b) != config) away |= byte_class((uint8_t)b);
    if (m->status != MB_OK) return 0;
    m->configs[config].self_known = true;
    return m->configs[config].self = (uint8_t)~away;
}

uint32_t machine_token(struct machine *m, uint32_t config, int32_t id)
{
    struct config c = m->configs[config];
    work_begin(m);
    for (uint32_t i = 0; i < c.n_items && !m->work_full; i++) {
        const struct pstate *s = &m->p->states[c.items[i].state];
        for (uint32_t k = 0; k < s->n_syms && s->has_tokens; k++) {
            const struct dfa_sym *y = &m->p->syms[s->sym0 + k];
            if (y->is_token && y->id == id) work_add(m, y->to, c.items[i].stack);
        }
    }
    return m->n_work ? close_and_get(m) : CONFIG_DEAD;
}

uint32_t machine_abs(struct machine *m, uint32_t config)
{
    struct config c = m->configs[config];
    if (c.abs != CONFIG_UNKNOWN) return c.abs;
    uint32_t n = 0, abs = config;
    bool same = true;
    for (uint32_t i = 0; i < c.n_items; i++) {
        uint32_t stack = m->cells[c.items[i].stack].abs;
        same &= stack == c.items[i].stack;
        m->work[i] = (struct item){ c.items[i].state, stack };
    }
    if (!same) {
        qsort(m->work, c.n_items, sizeof *m->work, by_item);
        for (uint32_t i = 0; i < c.n_items; i++)
            if (!n || by_item(&m->work[n - 1], &m->work[i])) m->work[n++] = m->work[i];
        abs = config_get(m, m->work, n, c.flags);
        if (m->status == MB_OK) m->configs[abs].abs = abs;
    }
    if (m->status == MB_OK) m->configs[config].abs = abs;
    return abs;
}

/* --- life --- */

void machine_begin(struct machine *m)
{
    m->steps = m->limits.max_mask_steps;
    m->status = MB_OK;
}

/* Tables with nothing but the two bottoms and the dead configuration. */
static mb_status tables_init(struct machine *m)
{
    m->status = MB_OK;
    arena_init(&m->items, ITEMS_LIMIT);
    if (!cells_rehash(m) || !configs_rehash(m)) return m->status;
    if (!grow(m, (void **)&m->cells, 2, &m->cap_cells, sizeof *m->cells)) return m->status;
    if (!grow(m, (void **)&m->configs, 1, &m->cap_configs, sizeof *m->configs)) return m->status;
    m->cells[CELL_EMPTY] = (struct cell){ .abs = CELL_EMPTY, .next = UINT32_MAX };
    m->cells[CELL_LOCAL] = (struct cell){ .abs = CELL_LOCAL, .next = UINT32_MAX };
    m->n_cells = 2;
    m->configs[CONFIG_DEAD] = (struct config){ .only = -1, .abs = CONFIG_DEAD };
    m->n_configs = 1;
    return MB_OK;
}

static void tables_free(struct machine *m)
{
    for (uint32_t i = 0; i < m->n_configs; i++) mb_free(m->configs[i].next);
    mb_free(m->cells);
    mb_free(m->cell_hash);
    mb_free(m->configs);
    mb_free(m->config_hash);
    arena_free(&m->items);
    m->cells = NULL;
    m->configs = NULL;
    m->cell_hash = m->config_hash = NULL;
    m->n_cells = m->cap_cells = m->cell_buckets = 0;
    m->n_configs = m->cap_configs = m->config_buckets = 0;
}

mb_status machine_init(struct machine *m, const struct program *p, struct grammar_vocab *v,
                       const struct grammar_limits *limits)
{
    memset(m, 0, sizeof *m);
    m->p = p;
    m->v = v;
    m->limits = *limits;
    m->work_hash_size = 64;
    while (m->work_hash_size < 2 * limits->max_items) m->work_hash_size *= 2;
    m->work = mb_alloc((limits->max_items + 1) * sizeof *m->work);
    m->work_hash = mb_alloc(m->work_hash_size * sizeof *m->work_hash);
    m->work_tag = mb_calloc(m->work_hash_size, sizeof *m->work_tag);
    m->bits = mb_alloc(((size_t)v->n_vocab / 32 + 1) * sizeof *m->bits);
    m->out = mb_alloc(((size_t)v->n_vocab / 32 + 1) * sizeof *m->out);
    m->depth_config = mb_alloc(2 * ((size_t)v->max_len + 2) * sizeof *m->depth_config);
    if (!m->work || !m->work_hash || !m->work_tag || !m->bits || !m->out || !m->depth_config) return MB_NO_MEMORY;
    machine_begin(m);
    return tables_init(m);
}

void machine_free(struct machine *m)
{
    mask_drop_all(m);
    mb_free(m->masks);
    local_drop_all(m);
    mb_free(m->locals);
    counted_drop_all(m);
    tables_free(m);
    mb_free(m->work);
    mb_free(m->work_hash);
    mb_free(m->work_tag);
    mb_free(m->bits);
    mb_free(m->out);
    mb_free(m->depth_config);
    mb_free(m->frontier.nodes);
}

/* --- collection --- */

/* The old stack in the new tables: its cells are remade from the bottom up. */
static uint32_t stack_copy(struct machine *m, const struct machine *old, uint32_t stack, struct buf *path)
{
    buf_clear(path);
    for (uint32_t s = stack; s > CELL_LOCAL; s = old->cells[s].parent) buf_append(path, &s, sizeof s);
    if (path->failed != MB_OK) {
        fail(m, MB_NO_MEMORY);
        return CELL_EMPTY;
    }
    uint32_t at = CELL_EMPTY;
    for (size_t i = path->len / sizeof at; i-- > 0 && m->status == MB_OK;) {
        uint32_t s;
        memcpy(&s, path->data + i * sizeof s, sizeof s);
        at = cell_get(m, old->cells[s].ret, at, old->cells[s].count);
    }
    return at;
}

static uint32_t config_copy(struct machine *m, const struct machine *old, uint32_t config, struct buf *path)
{
    const struct config *c = &old->configs[config];
    if (config == CONFIG_DEAD) return CONFIG_DEAD;
    for (uint32_t i = 0; i < c->n_items && m->status == MB_OK; i++)
        m->work[i] = (struct item){ c->items[i].state, stack_copy(m, old, c->items[i].stack, path) };
    if (c->n_items > 1) qsort(m->work, c->n_items, sizeof *m->work, by_item);
    return config_get(m, m->work, c->n_items, c->flags);
}

/* All new numbers are made before any root changes: after a failure everything is as before. */
mb_status machine_collect(struct machine *m, uint32_t **roots, size_t n_roots)
{
    struct machine old = *m;
    struct buf path;
    uint32_t *to = mb_alloc((n_roots ? n_roots : 1) * sizeof *to);
    if (!to) return MB_NO_MEMORY;
    buf_init(&path, 0);
    m->cells = NULL;
    m->configs = NULL;
    m->cell_hash = m->config_hash = NULL;
    m->n_cells = m->cap_cells = m->cell_buckets = m->n_configs = m->cap_configs = m->config_buckets = 0;
    m->bytes = 0;
    mb_status st = tables_init(m);
    for (size_t i = 0; i < n_roots && st == MB_OK; i++) {
        to[i] = config_copy(m, &old, *roots[i], &path);
        st = m->status;
    }
    if (st == MB_OK) {
        for (size_t i = 0; i < n_roots; i++) *roots[i] = to[i];
        mask_drop_all(m); /* they belong to old numbers */
        m->collections++;
        tables_free(&old);
    } else {
        tables_free(m);
        uint64_t stamp = m->work_stamp;
        *m = old;
        m->work_stamp = (uint32_t)stamp;
    }
    mb_free(to);
    buf_free(&path);
    return st;
}
