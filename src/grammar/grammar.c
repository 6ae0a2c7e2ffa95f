/* grammar.c: compiling a source, the cache of compiled grammars, counting.
 *
 * Counts and the cache are under the vocabulary's lock, a grammar's machine under its own; the order is grammar, then
 * vocabulary. The cache holds a reference to each of its grammars and each grammar one to the vocabulary: the owner's
 * grammar_vocab_close empties the cache first, so nothing keeps itself alive.
 */
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "grammar/grammar_int.h"

enum { CACHE_MAX = 64 };
#define CACHE_MAX_BYTES ((size_t)384 << 20)

static const struct grammar_limits default_limits = { (size_t)48 << 20, 20000000, 2048 };

/* --- vocabulary: the end --- */

static void vocab_free(struct grammar_vocab *v)
{
    for (size_t i = 0; i < v->n_locals; i++) local_free(v->locals[i]); /* no machine is left: all counts are one */
    for (size_t i = 0; i < v->n_counted; i++) counted_free(v->counted[i]);
    pthread_mutex_destroy(&v->lock);
    mb_free(v->locals);
    mb_free(v->cached);
    mb_free(v->end_ids);
    mb_free(v->nodes);
    mb_free(v->same);
    mb_free(v->bytes);
    mb_free(v->offs);
    mb_free(v->added);
    mb_free(v);
}

static void vocab_unref(struct grammar_vocab *v)
{
    pthread_mutex_lock(&v->lock);
    bool last = --v->n_refs == 0;
    pthread_mutex_unlock(&v->lock);
    if (last) vocab_free(v);
}

void grammar_vocab_close(struct grammar_vocab *v)
{
    if (!v) return;
    pthread_mutex_lock(&v->lock);
    struct grammar **cached = v->cached;
    size_t n = v->n_cached;
    v->cached = NULL;
    v->n_cached = 0;
    pthread_mutex_unlock(&v->lock);
    for (size_t i = 0; i < n; i++) grammar_unref(cached[i]);
    mb_free(cached);
    vocab_unref(v);
}

/* --- counting --- */

struct grammar *grammar_ref(struct grammar *g)
{
    pthread_mutex_lock(&g->vocab->lock);
    g->n_refs++;
    pthread_mutex_unlock(&g->vocab->lock);
    return g;
}

static void grammar_free(struct grammar *g)
{
    struct grammar_vocab *v = g->vocab;
    machine_free(&g->machine);
    program_free(&g->program);
    arena_free(&g->strings);
    pthread_mutex_destroy(&g->lock);
    mb_free(g->text);
    mb_free(g);
    vocab_unref(v);
}

void grammar_unref(struct grammar *g)
{
    if (!g) return;
    pthread_mutex_lock(&g->vocab->lock);
    bool last = --g->n_refs == 0;
    pthread_mutex_unlock(&g->vocab->lock);
    if (last) grammar_free(g);
}

/* --- compiling --- */

static int32_t compile_schema_text(struct build *b, const char *text, size_t len, json_t **tree)
{
    mb_error why;
    if (json_read(tree, text, len, JSON_READ_ANY | JSON_READ_REJECT_DUPLICATES, &why) != MB_OK) {
        build_fail(b, why.code == MB_NO_MEMORY ? MB_NO_MEMORY : MB_INVALID, "the schema is not JSON: %s", why.text);
        return -1;
    }
    return schema_compile(b, *tree);
}

static int32_t compile_regex(struct build *b, const char *text, size_t len)
{
    struct expr *x = regex_rule(b, text, len, false, FORM_RAW, "the regular expression");
    return x ? build_rule_of(b, "regular expression", x) : -1;
}

/* The start rule; *tree must live until the build is linked. */
static int32_t compile_source(struct build *b, const struct grammar_source *src, json_t **tree)
{
    switch (src->kind) {
    case GRAMMAR_JSON_OBJECT:
        json_object_rule(b);
        return b->rule_json_object;
    case GRAMMAR_JSON_SCHEMA: return compile_schema_text(b, src->text, src->len, tree);
    case GRAMMAR_REGEX: return compile_regex(b, src->text, src->len);
    case GRAMMAR_EBNF: return ebnf_compile(b, src->text, src->len);
    case GRAMMAR_CHOICE: return choice_compile(b, src->text, src->len, "the choice");
    }
    build_fail(b, MB_INVALID, "an unknown kind of grammar");
    return -1;
}

static mb_status keep_unenforced(struct grammar *g, const struct build *b)
{
    arena_init(&g->strings, 0);
    g->unenforced = arena_alloc_array(&g->strings, b->unenforced.n ? b->unenforced.n : 1, sizeof *g->unenforced);
    if (!g->unenforced) return MB_NO_MEMORY;
    for (size_t i = 0; i < b->unenforced.n; i++) {
        const struct grammar_unenforced *u = &b->unenforced.items[i];
        g->unenforced[i] = (struct grammar_unenforced){ arena_strdup(&g->strings, u->keyword),
                                                        arena_strdup(&g->strings, u->path), arena_strdup(&g->strings, u->why) };
    }
    g->n_unenforced = b->unenforced.n;
    return g->strings.failed ? MB_NO_MEMORY : MB_OK;
}

/* The parts of a new grammar beside its program. */
static mb_status fill(struct grammar *g, const struct grammar_source *src, const struct build *b,
                      const struct grammar_limits *limits)
{
    g->kind = src->kind;
    g->strict = src->strict;
    g->len = src->kind == GRAMMAR_JSON_OBJECT ? 0 : src->len;
    g->text = mb_strndup(g->len ? src->text : "", g->len);
    mb_status st = keep_unenforced(g, b);
    if (!g->text) st = MB_NO_MEMORY;
    if (st == MB_OK) st = machine_init(&g->machine, &g->program, g->vocab, limits);
    return st;
}

static struct grammar *grammar_new(struct grammar_vocab *v)
{
    struct grammar *g = mb_calloc(1, sizeof *g);
    if (!g) return NULL;
    if (pthread_mutex_init(&g->lock, NULL) != 0) {
        mb_free(g);
        return NULL;
    }
    g->n_refs = 1;
    g->vocab = vocab_ref(v);
    return g;
}

static mb_status check_source(const struct grammar_source *src, mb_error *err)
{
    if (src->kind == GRAMMAR_JSON_OBJECT) return MB_OK;
    if (!src->text) return mb_fail(err, MB_INVALID, "the grammar has no text");
    if (src->len > GRAMMAR_MAX_TEXT)
        return mb_fail(err, MB_TOO_LARGE, "the grammar has %zu bytes, at most %zu are taken", src->len, GRAMMAR_MAX_TEXT);
    if (!utf8_valid(src->text, src->len)) return mb_fail(err, MB_INVALID, "the grammar is not valid UTF-8");
    return MB_OK;
}

static mb_status compile(struct grammar **out, struct grammar_vocab *v, const struct grammar_source *src,
                         const struct grammar_limits *limits, mb_error *err)
{
    mb_error own;
    if (!err) err = &own;
    MB_TRY(check_source(src, err));
    int64_t t0 = clock_now_ns();
    struct build b;
    json_t *tree = NULL;
    struct grammar *g = grammar_new(v);
    if (!g) return mb_fail(err, MB_NO_MEMORY, "no memory for a grammar");
    build_init(&b, v, src->strict, err);
    b.stopped = src->stopped;
    b.ctx = src->ctx;
    int32_t root = compile_source(&b, src, &tree);
    mb_status st = b.status;
    if (st == MB_OK) st = program_link(&g->program, &b, root, err);
    if (st == MB_OK && (st = fill(g, src, &b, limits)) != MB_OK) mb_fail(err, st, "no memory for a grammar");
    build_free(&b);
    json_decref(tree);
    if (st != MB_OK) {
        grammar_unref(g);
        return st;
    }
    g->compile_ns = (uint64_t)(clock_now_ns() - t0);
    *out = g;
    return MB_OK;
}

static struct grammar_limits with_defaults(const struct grammar_limits *l)
{
    struct grammar_limits r = l ? *l : default_limits;
    if (!r.max_machine_bytes) r.max_machine_bytes = default_limits.max_machine_bytes;
    if (!r.max_mask_steps) r.max_mask_steps = default_limits.max_mask_steps;
    if (!r.max_items) r.max_items = default_limits.max_items;
    return r;
}

mb_status grammar_compile_limited(struct grammar **out, struct grammar_vocab *v, const struct grammar_source *src,
                                  const struct grammar_limits *limits, mb_error *err)
{
    *out = NULL;
    struct grammar_limits l = with_defaults(limits);
    return compile(out, v, src, &l, err);
}

/* --- the cache --- */

static bool same_source(const struct grammar *g, const struct grammar_source *src)
{
    size_t len = src->kind == GRAMMAR_JSON_OBJECT ? 0 : src->len;
    return g->kind == src->kind && g->strict == src->strict && g->len == len && (!len || !memcmp(g->text, src->text, len));
}

static struct grammar *cache_find(struct grammar_vocab *v, const struct grammar_source *src)
{
    struct grammar *g = NULL;
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->n_cached; i++) {
        if (!same_source(v->cached[i], src)) continue;
        g = v->cached[i];
        memmove(v->cached + 1, v->cached, i * sizeof *v->cached);
        v->cached[0] = g;
        g->n_refs++;
        atomic_store(&g->from_cache, true);
        break;
    }
    pthread_mutex_unlock(&v->lock);
    return g;
}

static size_t cache_bytes(const struct grammar_vocab *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n_cached; i++) n += v->cached[i]->program.bytes + v->cached[i]->len + atomic_load(&v->cached[i]->held);
    return n;
}

/* Without memory the grammar is simply not remembered. The oldest make room. */
static void cache_add(struct grammar_vocab *v, struct grammar *g)
{
    struct grammar *dropped[CACHE_MAX];
    size_t n_dropped = 0;
    pthread_mutex_lock(&v->lock);
    if (!v->cached) v->cached = mb_calloc(CACHE_MAX, sizeof *v->cached);
    if (v->cached) {
        while (v->n_cached == CACHE_MAX || (v->n_cached && cache_bytes(v) > CACHE_MAX_BYTES))
            dropped[n_dropped++] = v->cached[--v->n_cached];
        memmove(v->cached + 1, v->cached, v->n_cached * sizeof *v->cached);
        v->cached[0] = g;
        v->n_cached++;
        g->n_refs++;
    }
    pthread_mutex_unlock(&v->lock);
    for (size_t i = 0; i < n_dropped; i++) grammar_unref(dropped[i]);
}

/* --- learning ahead --- */

/* Walks that a compile may spend on tables: some tens of milliseconds over a vocabulary of 128k. */
#define LEARN_MAX_STEPS ((size_t)2 << 20)

/* Tables of the places that let much through are learnt where a grammar is compiled: else the first draw there would wait
 * for them. What is not learnt for lack of room or of time is learnt then. Returns the machine's status. */
static mb_status learn(struct grammar *g, const struct grammar_source *src, size_t max_steps)
{
    struct machine *m = &g->machine;
    size_t spent = 0;
    pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < g->program.n_states && m->status == MB_OK && spent < max_steps; i++) {
        const struct pstate *x = &g->program.states[i];
        if (!x->wide || (src->stopped && src->stopped(src->ctx))) continue;
        machine_begin(m);
        local_get(m, i);
        spent += m->limits.max_mask_steps - m->steps;
    }
    for (uint32_t i = 0; i < g->program.n_rules && m->status == MB_OK && spent < max_steps; i++) {
        if (!g->program.rules[i].is_repeat) continue;
        machine_begin(m);
        counted_get(m, g->program.rules[i].body_rule);
        spent += m->limits.max_mask_steps - m->steps;
    }
    mb_status st = m->status;
    m->status = MB_OK;
    atomic_store(&g->held, m->bytes + m->mask_bytes + m->local_bytes);
    pthread_mutex_unlock(&g->lock);
    return st;
}

mb_status grammar_compile(struct grammar **out, struct grammar_vocab *v, const struct grammar_source *src, mb_error *err)
{
    *out = cache_find(v, src);
    if (*out) return MB_OK;
    MB_TRY(grammar_compile_limited(out, v, src, NULL, err));
    learn(*out, src, LEARN_MAX_STEPS);
    cache_add(v, *out);
    return MB_OK;
}

mb_status grammar_vocab_warm(struct grammar_vocab *v, mb_error *err)
{
    /* free values, keys beside names, and counted strings */
    static const char schema[] = "{\"properties\":{\"a\":true},\"additionalProperties\":{\"maxLength\":1000000}}";
    struct grammar_source src = { GRAMMAR_JSON_SCHEMA, schema, sizeof schema - 1, false, NULL, NULL };
    struct grammar *g;
    MB_TRY(grammar_compile_limited(&g, v, &src, NULL, err));
    mb_status st = learn(g, &src, SIZE_MAX);
    grammar_unref(g);
    return st == MB_OK ? MB_OK : mb_fail(err, st, "no memory for the vocabulary of grammars");
}

/* --- questions --- */

size_t grammar_n_unenforced(const struct grammar *g)
{
    return g->n_unenforced;
}

const struct grammar_unenforced *grammar_unenforced_get(const struct grammar *g, size_t i)
{
    return i < g->n_unenforced ? &g->unenforced[i] : NULL;
}

void grammar_stats_get(const struct grammar *g, struct grammar_stats *out)
{
    struct grammar *w = (struct grammar *)g; /* only its lock */
    pthread_mutex_lock(&w->lock);
    const struct machine *m = &g->machine;
    *out = (struct grammar_stats){ .from_cache = atomic_load(&w->from_cache), .compile_ns = g->compile_ns,
        .n_rules = g->program.n_rules, .n_states = g->program.n_states,
        .n_edges = (size_t)g->program.n_edges + g->program.n_syms, .n_configs = m->n_configs, .n_masks = m->n_masks,
        .bytes_held = g->program.bytes + m->bytes + m->mask_bytes + m->local_bytes,
        .mask_hits = m->hits, .mask_misses = m->misses, .n_collections = m->collections };
    pthread_mutex_unlock(&w->lock);
}
