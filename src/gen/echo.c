/* echo.c: what is said again (MLX_BUN_FILL=echo): when the last `anchor` ids were met before, what followed them then is
 * guessed, as far as all of the nearest places agree (API-169, API-178, API-179). Guesses are drawn like any token, so an echo
 * that is none changes nothing.
 *
 * The index has one chain a bucket, newest first, through the ends of runs; nothing is copied, the engine's ids are read.
 * It grows with the sequence until its ceiling and then stays as it is. */
#include <string.h>

#include "gen/gen_int.h"

enum { ECHO_MAX_CANDIDATES = 256, BUCKETS_LEAST = 1024, BUCKETS_MOST = 1 << 17 };
#define ECHO_MAX_IDS (1 << 20) /* of all choices of a request */

static uint32_t bucket_of(const struct echo_index *x, const int32_t *run)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < x->k; i++) h = (h ^ (uint32_t)run[i]) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 40) & (x->n_buckets - 1);
}

static bool grow(struct echo_index *x, int32_t n)
{
    if (n < x->cap) return true;
    int32_t want = n < x->max / 2 ? 2 * n : x->max;
    int32_t *p = n < want ? mb_realloc(x->before, (size_t)want * sizeof *p) : NULL;
    if (!p) {
        x->max = x->n; /* no more of it */
        return false;
    }
    x->before = p;
    x->cap = want;
    return true;
}

/* Runs that end at or before n. */
static void extend(struct echo_index *x, const int32_t *ids, int32_t n)
{
    for (int32_t end = x->n + 1; end <= n && end < x->max && grow(x, end); end++) {
        x->n = end;
        if (end < x->k) continue;
        uint32_t b = bucket_of(x, ids + end - x->k);
        x->before[end] = x->last[b];
        x->last[b] = end;
    }
}

mb_status echo_init(struct echo_index *x, const struct gen_fill_options *o, const int32_t *ids, int32_t n_ids, int32_t n_choices,
                    mb_error *err)
{
    int64_t max = o->index_max < ECHO_MAX_IDS / n_choices ? o->index_max : ECHO_MAX_IDS / n_choices;
    x->max = (int32_t)max;
    x->k = o->anchor < max ? (int32_t)o->anchor : (int32_t)max;
    x->n_buckets = BUCKETS_LEAST;
    while (x->n_buckets < BUCKETS_MOST && x->n_buckets < 2 * (uint32_t)(n_ids < x->max ? n_ids : x->max)) x->n_buckets *= 2;
    x->last = mb_calloc(x->n_buckets, sizeof *x->last);
    if (!x->last) return mb_fail(err, MB_NO_MEMORY, "no memory for the index of what was said");
    extend(x, ids, n_ids - 1); /* a run has something behind it */
    return MB_OK;
}

void echo_free(struct echo_index *x)
{
    mb_free(x->before);
    mb_free(x->last);
}

/* Ends of the nearest earlier runs that are the last k ids. */
static int32_t find(const struct echo_index *x, const int32_t *ids, int32_t n_ids, int64_t n_looked, int32_t *ends)
{
    const int32_t *run = ids + n_ids - x->k;
    int32_t n = 0;
    for (int32_t end = x->last[bucket_of(x, run)]; end > 0 && n_looked-- > 0 && n < ECHO_MAX_CANDIDATES; end = x->before[end])
        if (memcmp(ids + end - x->k, run, (size_t)x->k * sizeof *run) == 0) ends[n++] = end;
    return n;
}

void echo_guess(struct echo_index *x, const struct gen_fill_options *o, const int32_t *ids, int32_t n_ids, int32_t n_max,
                struct job_ahead *out)
{
    int32_t ends[ECHO_MAX_CANDIDATES];
    if (x->max == 0 || n_ids < x->k) return;
    extend(x, ids, n_ids - 1);
    int32_t n = find(x, ids, n_ids, o->candidates, ends);
    if (n_max > o->max_span) n_max = (int32_t)o->max_span;
    while (n > 0 && out->n < n_max && ends[0] + out->n < n_ids) {
        int32_t id = ids[ends[0] + out->n];
        for (int32_t i = 1; i < n; i++)
            if (ids[ends[i] + out->n] != id) return; /* farther ones have more behind them */
        out->masks[out->n] = NULL;
        out->ids[out->n++] = id;
    }
}
