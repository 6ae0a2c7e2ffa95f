/* fuzz_reasoning.c: text through the reasoning splitter and the stop matcher, once whole and once cut into pieces: the
 * result must be the same (B-035, B-143). First byte: whether the prompt opened a thought (1) and which tags (the rest);
 * second and third: where to cut; then a stop string up to a zero byte; the rest is the text. */
#include <stdlib.h>
#include <string.h>

#include "chat/reasoning.h"
#include "gen/stop.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct out {
    struct buf text[2];
    struct buf piece;
    struct stop_match *stop;
    int32_t hit;
};

static void on_split(void *ctx, bool is_reasoning, const char *text, size_t len)
{
    struct out *o = ctx;
    if (len == 0) abort();
    if (o->hit >= 0) return;
    if (is_reasoning) {
        stop_flush(o->stop, &o->text[0]);
        buf_append(&o->text[1], text, len);
        return;
    }
    o->hit = stop_push(o->stop, text, len, &o->text[0]);
}

/* False: memory failed (only in runs with failing allocations), and the result says nothing. */
static bool run(const char *stop, const char *text, size_t len, unsigned cuts, unsigned options, struct out *o)
{
    struct arena a;
    struct stop_set set;
    struct stop_match m;
    struct reasoning r;
    size_t n_tags, from = 0;
    memset(o, 0, sizeof *o);
    o->hit = -1;
    arena_init(&a, 0);
    if (stop_set_init(&set, &a, &stop, stop[0] ? 1 : 0, NULL) != MB_OK || stop_match_init(&m, &set, &a, NULL) != MB_OK) {
        arena_free(&a);
        return false;
    }
    o->stop = &m;
    const struct reasoning_tags *tags = reasoning_tags_all(&n_tags);
    tags += (options >> 1) % n_tags;
    enum reasoning_start start = options & 1 ? REASONING_THOUGHT : tags->channels ? REASONING_HEADER : REASONING_ANSWER;
    reasoning_init(&r, tags, true, start, on_split, o);
    for (size_t i = 1; i <= len; i++) {
        if (i < len && !(cuts >> (i % 16) & 1)) continue;
        reasoning_text(&r, text + from, i - from);
        from = i;
    }
    reasoning_finish(&r);
    if (o->hit < 0) stop_flush(&m, &o->text[0]);
    bool ok = reasoning_status(&r) == MB_OK && !m.held.failed && !o->text[0].failed && !o->text[1].failed;
    reasoning_free(&r);
    stop_match_free(&m);
    arena_free(&a);
    return ok;
}

static bool same(const struct buf *x, const struct buf *y)
{
    return x->len == y->len && (x->len == 0 || memcmp(x->data, y->data, x->len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct out a, b;
    char stop[64];
    if (size < 4) return 0;
    unsigned cuts = data[1] | (unsigned)data[2] << 8;
    size_t n = strnlen((const char *)data + 3, size - 3 < sizeof stop - 1 ? size - 3 : sizeof stop - 1);
    memcpy(stop, data + 3, n);
    stop[n] = '\0';
    const char *text = (const char *)data + 3 + n;
    bool ok = run(stop, text, size - 3 - n, 0, data[0], &a);
    ok = run(stop, text, size - 3 - n, cuts, data[0], &b) && ok;
    if (!ok) { /* nothing to compare */
    } else if (a.hit != b.hit || !same(&a.text[0], &b.text[0]) || !same(&a.text[1], &b.text[1])) abort();
    for (int i = 0; i < 2; i++) buf_free(&a.text[i]), buf_free(&b.text[i]);
    return 0;
}
