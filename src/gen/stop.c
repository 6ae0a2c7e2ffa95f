/* stop.c: see stop.h. */
#include "gen/stop.h"

#include <string.h>

static void fail_table(const char *s, int32_t len, int32_t *fail)
{
    fail[0] = 0;
    for (int32_t i = 1, k = 0; i < len; i++) {
        while (k > 0 && s[i] != s[k]) k = fail[k - 1];
        if (s[i] == s[k]) k++;
        fail[i] = k;
    }
}

mb_status stop_set_init(struct stop_set *set, struct arena *a, const char *const *stops, int32_t n, mb_error *err)
{
    memset(set, 0, sizeof *set);
    if (n == 0) return MB_OK;
    size_t total = 0;
    set->s = arena_alloc_array(a, (size_t)n, sizeof *set->s);
    set->len = arena_alloc_array(a, (size_t)n, sizeof *set->len);
    set->fail = arena_alloc_array(a, (size_t)n, sizeof *set->fail);
    if (a->failed) return mb_fail(err, MB_NO_MEMORY, "no memory for %d stop strings", (int)n);
    for (int32_t i = 0; i < n; i++) {
        size_t len = strlen(stops[i]);
        total += len;
        if (len == 0) return mb_fail_at(err, MB_INVALID, "stop", "stop must not hold an empty string");
        if (total > STOP_MAX_BYTES)
            return mb_fail_at(err, MB_INVALID, "stop", "stop strings must be at most %d bytes together", STOP_MAX_BYTES);
        set->s[i] = arena_strndup(a, stops[i], len);
        set->len[i] = (int32_t)len;
        set->fail[i] = arena_alloc_array(a, len, sizeof **set->fail);
        if (a->failed) return mb_fail(err, MB_NO_MEMORY, "no memory for stop strings");
        fail_table(set->s[i], set->len[i], set->fail[i]);
    }
    set->n = n;
    return MB_OK;
}

mb_status stop_match_init(struct stop_match *m, const struct stop_set *set, struct arena *a, mb_error *err)
{
    memset(m, 0, sizeof *m);
    m->set = set;
    buf_init(&m->held, 0);
    m->state = arena_alloc_array(a, (size_t)set->n + 1, sizeof *m->state);
    return m->state ? MB_OK : mb_fail(err, MB_NO_MEMORY, "no memory for stop strings");
}

void stop_match_free(struct stop_match *m)
{
    buf_free(&m->held);
}

static int32_t advance(const struct stop_set *set, int32_t i, int32_t k, char c)
{
    const char *s = set->s[i];
    while (k > 0 && s[k] != c) k = set->fail[i][k - 1];
    return s[k] == c ? k + 1 : 0;
}

/* Feed one byte: the longest string that ends here (-1: none), and how much must be held. */
static int32_t step(struct stop_match *m, char c, int32_t *hold)
{
    int32_t hit = -1;
    *hold = 0;
    for (int32_t i = 0; i < m->set->n; i++) {
        int32_t k = m->state[i] = advance(m->set, i, m->state[i], c);
        if (k > *hold) *hold = k;
        if (k == m->set->len[i] && (hit < 0 || k > m->set->len[hit])) hit = i;
    }
    return hit;
}

static void release(struct stop_match *m, size_t keep, struct buf *out)
{
    size_t n = m->held.len - keep;
    if (n == 0) return;
    buf_append(out, m->held.data, n);
    memmove(m->held.data, m->held.data + n, keep);
    m->held.len = keep;
}

int32_t stop_push(struct stop_match *m, const char *text, size_t len, struct buf *out)
{
    if (m->set->n == 0) {
        buf_append(out, text, len);
        return -1;
    }
    int32_t hold = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t hit = step(m, text[i], &hold);
        buf_append_char(&m->held, text[i]);
        if (m->held.failed) {
            out->failed = m->held.failed;
            return -1;
        }
        if (hit < 0) continue;
        m->held.len -= (size_t)m->set->len[hit];
        release(m, 0, out);
        return hit;
    }
    if (m->held.len > (size_t)hold) release(m, (size_t)hold, out);
    return -1;
}

void stop_flush(struct stop_match *m, struct buf *out)
{
    if (m->set->n == 0) return;
    if (m->held.len > 0) release(m, 0, out);
    memset(m->state, 0, (size_t)m->set->n * sizeof *m->state);
}
