/* ring.c: see ring.h. A slot's text buffer goes to the consumer with its event (swapped with the buffer of the event
 * before), so that the consumer reads it without a lock and without a copy. Buffers above RING_TEXT_KEEP are given
 * back, or a burst of long texts would stay allocated in every slot. */
#include "gen/ring.h"

#include <string.h>

#define RING_TEXT_KEEP 1024

mb_status ring_init(struct gen_ring *r, int32_t cap, int32_t limit, mb_error *err)
{
    memset(r, 0, sizeof *r);
    r->slots = mb_calloc((size_t)cap, sizeof *r->slots);
    if (!r->slots) return mb_fail(err, MB_NO_MEMORY, "no memory for a ring of %d events", (int)cap);
    r->cap = cap;
    r->limit = limit < cap ? cap : limit;
    return MB_OK;
}

void ring_free(struct gen_ring *r)
{
    for (int32_t i = 0; i < r->cap; i++) mb_free(r->slots[i].text);
    mb_free(r->slots);
    mb_free(r->popped.text);
    memset(r, 0, sizeof *r);
}

static mb_status grow(struct gen_ring *r)
{
    if (r->cap >= r->limit) return MB_TOO_LARGE;
    int32_t cap = r->cap > r->limit / 2 ? r->limit : r->cap * 2;
    struct ring_slot *s = mb_calloc((size_t)cap, sizeof *s);
    if (!s) return MB_NO_MEMORY;
    for (int32_t i = 0; i < r->cap; i++) s[i] = r->slots[(r->head + i) % r->cap]; /* spare buffers move along */
    mb_free(r->slots);
    r->slots = s;
    r->cap = cap;
    r->head = 0;
    return MB_OK;
}

static mb_status slot_text(struct ring_slot *s, const char *text, size_t len)
{
    if (s->cap < len + 1 || (s->cap > RING_TEXT_KEEP && len < RING_TEXT_KEEP)) {
        size_t cap = len + 1 < 32 ? 32 : len + 1;
        mb_free(s->text);
        s->cap = 0;
        s->text = mb_alloc(cap);
        if (!s->text) return MB_NO_MEMORY;
        s->cap = cap;
    }
    memcpy(s->text, text, len);
    s->text[len] = '\0';
    return MB_OK;
}

mb_status ring_push(struct gen_ring *r, const struct gen_event *ev, const char *text, size_t len)
{
    if (r->n == r->cap) MB_TRY(grow(r));
    struct ring_slot *s = &r->slots[(r->head + r->n) % r->cap];
    if (text) MB_TRY(slot_text(s, text, len));
    s->ev = *ev;
    r->n++;
    return MB_OK;
}

bool ring_pop(struct gen_ring *r, struct gen_event *out)
{
    if (r->n == 0) return false;
    struct ring_slot *s = &r->slots[r->head];
    struct ring_slot old = r->popped;
    r->popped = *s;
    s->text = old.text;
    s->cap = old.cap;
    r->head = (r->head + 1) % r->cap;
    r->n--;
    *out = r->popped.ev;
    if (out->type == GEN_EV_TEXT) out->u.text.text.ptr = r->popped.text;
    if (out->type == GEN_EV_TOOL) { /* the three stand one behind the other */
        out->u.tool.id.ptr = r->popped.text;
        out->u.tool.name.ptr = r->popped.text + out->u.tool.id.len;
        out->u.tool.arguments.ptr = out->u.tool.name.ptr + out->u.tool.name.len;
    }
    if (out->type == GEN_EV_WARNING) out->u.warning.text = r->popped.text;
    if (out->type == GEN_EV_ERROR) out->u.error.text = r->popped.text;
    if (out->type == GEN_EV_END && out->u.end.stop) out->u.end.stop = r->popped.text;
    return true;
}

void ring_clear(struct gen_ring *r)
{
    r->head = r->n = 0;
}
