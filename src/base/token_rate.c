/* token_rate.c: the arithmetic of token_rate.h. */
#include "base/token_rate.h"

/* A time in which all generate: from the last one's first token to the first one's last. */
struct window { int64_t from_ns, to_ns; };

static struct window window_of(const struct token_times *r, int32_t n, int64_t t0_ns, int64_t *last_ns)
{
    struct window w = { t0_ns, INT64_MAX };
    *last_ns = t0_ns;
    for (int32_t i = 0; i < n; i++) {
        if (r[i].n == 0) continue;
        int64_t end = r[i].t_ns[r[i].n - 1];
        if (r[i].t_ns[0] > w.from_ns) w.from_ns = r[i].t_ns[0];
        if (end < w.to_ns) w.to_ns = end;
        if (end > *last_ns) *last_ns = end;
    }
    return w;
}

/* All tokens that came after from_ns, up to to_ns, over that time. */
static double rate_between(const struct token_times *r, int32_t n, int64_t from_ns, int64_t to_ns)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < r[i].n; j++) sum += r[i].t_ns[j] > from_ns && r[i].t_ns[j] <= to_ns;
    return to_ns > from_ns ? (double)sum / ((double)(to_ns - from_ns) * 1e-9) : 0;
}

/* Each by its own clock, from its first token in the window to its last: a step's tokens come one after the other, and the window ends with
 * the first of a step's, so that what came until then would lack the others of that step, all of whose time is counted. Steps are weighed by
 * their time: tokens that come in one burst weigh as little as they took. 0: one of them got fewer than two tokens in it. */
static double rate_each(const struct token_times *r, int32_t n, struct window w)
{
    int64_t steps = 0, spent_ns = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t a = 0, b = r[i].n - 1;
        while (a <= b && r[i].t_ns[a] < w.from_ns) a++;
        while (b >= a && r[i].t_ns[b] > w.to_ns) b--;
        if (b <= a) return 0;
        steps += b - a;
        spent_ns += r[i].t_ns[b] - r[i].t_ns[a];
    }
    return spent_ns > 0 ? (double)n * (double)steps / ((double)spent_ns * 1e-9) : 0;
}

/* Generation is counted while all requests generate: before, prompts are read beside it; behind, the batch is smaller. Where there is no such
 * time, or too little of it, from the last one's first token to the end. */
void token_rates_of(const struct token_times *requests, int32_t n, int64_t t0_ns, struct token_rates *out)
{
    int64_t last_ns;
    struct window w = window_of(requests, n, t0_ns, &last_ns);
    out->first_s = (double)(w.from_ns - t0_ns) * 1e-9;
    out->decode_tok_s = rate_each(requests, n, w);
    if (out->decode_tok_s == 0) out->decode_tok_s = rate_between(requests, n, w.from_ns, last_ns);
}
