/* channels.c: the splitter's other form: answers that are messages of their own, each with a header (gpt-oss writes so).
 *
 *   <|start|>assistant<|channel|>analysis<|message|>a thought<|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
 *   <|start|>assistant<|channel|>final<|message|>the answer<|return|>
 *
 * A header is never text. Its channel says what the body is: "analysis" is thought, all others are answer; a body addressed to
 * functions.NAME is a call, in whatever channel, and comes out as content in one form that the tool scanner knows:
 * <|channel|>commentary to=functions.NAME<|message|>{...}<|call|>. Signs end what they find open, so a message whose end is
 * missing ends where the next begins. Two messages of one kind are set apart by an empty line. */
#include <string.h>

#include "chat/reasoning.h"
#include "chat/reasoning_int.h"

#define MAX_HEADER_BYTES 1024
#define ADDRESSEE "functions."

static const char *const SIGNS[N_CHANNEL_SIGNS] = {
    [SIGN_START] = "<|start|>", [SIGN_CHANNEL] = "<|channel|>", [SIGN_CONSTRAIN] = "<|constrain|>", [SIGN_MESSAGE] = "<|message|>",
    [SIGN_END] = "<|end|>",     [SIGN_CALL] = "<|call|>",       [SIGN_RETURN] = "<|return|>",
};

const char *channels_sign(size_t i)
{
    return i < N_CHANNEL_SIGNS ? SIGNS[i] : NULL;
}

/* --- headers --- */
static struct str word_behind(const char *text, size_t len, const char *mark)
{
    size_t n = strlen(mark);
    for (size_t i = 0; i + n <= len; i++) {
        if (memcmp(text + i, mark, n) != 0) continue;
        size_t from = i + n, end = from;
        while (end < len && text[end] != ' ' && text[end] != '\n' && text[end] != '<') end++;
        return (struct str){ text + from, end - from };
    }
    return (struct str){ NULL, 0 };
}

/* The channel's name; a header that begins behind its sign (the prompt wrote that) has the name first. */
static struct str channel_of(const char *header, size_t len)
{
    struct str name = word_behind(header, len, SIGNS[SIGN_CHANNEL]);
    return name.ptr ? name : word_behind(header, len, "");
}

static bool is_thought(const char *header, size_t len)
{
    return str_eq(channel_of(header, len), STR_LIT("analysis"));
}

/* Last sign in text, *at its offset; -1: none. */
static int last_sign(const char *text, size_t len, size_t *at)
{
    for (size_t i = len; i > 0; i--)
        for (int k = 0; k < N_CHANNEL_SIGNS; k++) {
            size_t n = strlen(SIGNS[k]);
            if (n > len - (i - 1) || memcmp(text + i - 1, SIGNS[k], n) != 0) continue;
            *at = i - 1;
            return k;
        }
    return -1;
}

enum reasoning_start channels_start(const char *text, size_t len)
{
    size_t at = 0, from = 0;
    int sign = last_sign(text, len, &at);
    if (sign < 0) return REASONING_ANSWER;
    if (sign != SIGN_MESSAGE) return REASONING_HEADER;
    for (size_t i = 0; i < at; i++) /* its header begins at the last channel's name */
        if (at - i >= strlen(SIGNS[SIGN_CHANNEL]) && memcmp(text + i, SIGNS[SIGN_CHANNEL], strlen(SIGNS[SIGN_CHANNEL])) == 0) from = i;
    return is_thought(text + from, at - from) ? REASONING_THOUGHT : REASONING_ANSWER;
}

/* --- bodies --- */
static void enter(struct reasoning *r, enum channel_part part)
{
    bool inside = part == PART_THOUGHT;
    if (inside != r->inside) reasoning_flush(r);
    r->inside = inside;
    r->part = part;
    r->apart = (part == PART_THOUGHT || part == PART_ANSWER) && r->said[inside];
}

static void end_message(struct reasoning *r)
{
    if (r->part == PART_CALL) buf_append_str(&r->out, SIGNS[SIGN_CALL]);
    r->final = false;
    enter(r, PART_HEADER);
    buf_clear(&r->header);
}

static void begin_body(struct reasoning *r)
{
    const char *h = r->header.data ? r->header.data : "";
    size_t len = r->header.len;
    struct str to = word_behind(h, len, "to=" ADDRESSEE);
    r->final = str_eq(channel_of(h, len), STR_LIT("final"));
    if (r->header.failed == MB_NO_MEMORY) r->out.failed = MB_NO_MEMORY;
    if (to.len) {
        enter(r, PART_CALL);
        buf_append_str(&r->out, "<|channel|>commentary to=" ADDRESSEE);
        buf_append(&r->out, to.ptr, to.len);
        buf_append_str(&r->out, SIGNS[SIGN_MESSAGE]);
    } else {
        enter(r, is_thought(h, len) ? PART_THOUGHT : PART_ANSWER);
    }
    buf_clear(&r->header);
}

void channels_init(struct reasoning *r, enum reasoning_start start)
{
    buf_init(&r->header, MAX_HEADER_BYTES);
    r->part = start == REASONING_THOUGHT ? PART_THOUGHT : start == REASONING_ANSWER ? PART_ANSWER : PART_HEADER;
    r->final = start == REASONING_ANSWER;
}

void channels_marker(struct reasoning *r, size_t i)
{
    if (i == SIGN_MESSAGE && r->part == PART_HEADER) {
        begin_body(r);
        return;
    }
    if (r->part != PART_HEADER || i == SIGN_START || i >= SIGN_END) end_message(r);
    if (i == SIGN_CHANNEL || i == SIGN_CONSTRAIN) buf_append_str(&r->header, SIGNS[i]);
}

void channels_put(struct reasoning *r, const char *text, size_t len)
{
    if (len == 0) return;
    if (r->part == PART_HEADER) {
        buf_append(&r->header, text, len);
        return;
    }
    if (r->apart) buf_append(&r->out, "\n\n", 2);
    r->apart = false;
    if (r->part != PART_CALL) r->said[r->inside] = true;
    buf_append(&r->out, text, len);
}

/* --- signs searched in text --- */
/* Which sign the held bytes are; N_CHANNEL_SIGNS: they may become one; -1: they cannot. */
static int match(const struct reasoning *r)
{
    for (int k = 0; k < N_CHANNEL_SIGNS; k++)
        if (strncmp(SIGNS[k], r->held, r->n_held) == 0) return SIGNS[k][r->n_held] == '\0' ? k : N_CHANNEL_SIGNS;
    return -1;
}

void channels_feed(struct reasoning *r, char c)
{
    int k;
    r->held[r->n_held++] = c;
    while ((k = match(r)) < 0) { /* a sign's first byte occurs in it once: what was held before c is text */
        size_t n = r->n_held > 1 ? r->n_held - 1 : 1;
        channels_put(r, r->held, n);
        r->n_held -= n;
        if (r->n_held == 0) return;
        r->held[0] = c;
    }
    if (k == N_CHANNEL_SIGNS) return;
    r->n_held = 0;
    channels_marker(r, (size_t)k);
}
