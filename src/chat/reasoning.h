/* reasoning.h: splits what a model writes into thoughts and answer. One splitter for streams and whole answers.
 *
 * The rule (B-142, B-143):
 *   1. Markers are a pair of tags, "<think>" and "</think>" unless the model names another pair of the table. Where the
 *      vocabulary has both as tokens, only those token ids are markers and the same characters spelled by ordinary
 *      tokens are text; otherwise the text is searched, and a beginning of a tag is held back until it is decided.
 *   2. The answer starts inside a thought when the prompt left a tag open; a repeated opening tag at its very start is
 *      swallowed. An opening tag in the answer opens another thought, except inside a Markdown code span or fence,
 *      where it is text. A closing tag ends a thought; without an open one it is text. Nothing else is ever dropped,
 *      but for rule 3.
 *   3. Line breaks that touch a marker belong to the marker: after either tag, and before a closing one. So does the name of
 *      a channel right behind its opening tag; another text there is part of the thought.
 *   4. A model whose answers are messages with headers (a row with `channels`) has markers of its own and another machine:
 *      channels.c says which message is what.
 * What comes out does not depend on how the text was cut into pieces.
 *
 * Lifetime: a splitter belongs to one choice of one request; threads: one at a time. Memory: none but what it holds.
 */
#ifndef CHAT_REASONING_H
#define CHAT_REASONING_H

#include "base/buf.h"
#include "chat/markdown.h"

struct reasoning_tags {
    const char *open, *close;
    const char *name; /* text right behind the opening tag that belongs to it ("thought" of Gemma 4's channel), or NULL */
    bool channels;    /* messages with headers: `open` is the sign that tells such a model, `close` what ends a thought */
};
#define REASONING_MAX_SIGNS 8

/* The table; the first row is the default. The first byte of a tag occurs in it once (the matcher relies on it). */
const struct reasoning_tags *reasoning_tags_all(size_t *n);
/* The pair whose closing tag the template's source names (may be NULL) or whose two tags `has_token` knows. *named is
 * false when neither does and the default pair is returned. */
const struct reasoning_tags *reasoning_tags_pick(const char *template_source,
                                                 bool (*has_token)(void *ctx, const char *text), void *ctx, bool *named);
/* The i-th marker: of a pair the opening and the closing tag; NULL when there are no more. */
const char *reasoning_sign(const struct reasoning_tags *tags, size_t i);
/* Where the answer begins when the prompt ends with this text. */
enum reasoning_start { REASONING_ANSWER, REASONING_THOUGHT, REASONING_HEADER };
enum reasoning_start reasoning_start(const struct reasoning_tags *tags, const char *text, size_t len);
/* Does the text hold a closing tag after the last opening one, or one alone? (an empty thought that says "do not") */
bool reasoning_is_closed(const struct reasoning_tags *tags, const char *text, size_t len);

typedef void (*reasoning_emit_fn)(void *ctx, bool is_reasoning, const char *text, size_t len);

enum channel_part { PART_HEADER, PART_THOUGHT, PART_ANSWER, PART_CALL };

struct reasoning {
    const struct reasoning_tags *tags;
    reasoning_emit_fn emit;
    void *ctx;
    bool by_text;         /* search tags in the text */
    bool inside;          /* in a thought */
    bool fresh;           /* nothing of this thought or answer has come out since its marker: line breaks are dropped */
    bool from_prompt;     /* in the thought that the prompt opened, nothing seen yet */
    bool in_name;         /* right behind an opening tag that has a name: n_name bytes of it were seen and held back */
    size_t n_name;
    bool answer_only;     /* may be set after init: an opening tag in the answer is text (a grammar says what the answer is) */
    char held[16];        /* beginning of a tag, held back; no tag of the table is longer */
    size_t n_held;
    size_t n_newline;     /* line breaks held back at the end of a thought */
    struct markdown code; /* Markdown state of the answer */
    struct buf out;       /* what this call emits; one channel */

    /* channels.c */
    enum channel_part part;
    bool final;           /* in the message that is the answer proper */
    bool said[2], apart;  /* answer, thought: text has come out; this message's text is set apart from it */
    struct buf header;    /* of the message that begins */
};

void reasoning_init(struct reasoning *r, const struct reasoning_tags *tags, bool by_text, enum reasoning_start start,
                    reasoning_emit_fn emit, void *ctx);
void reasoning_free(struct reasoning *r);
/* Text of ordinary tokens. */
void reasoning_text(struct reasoning *r, const char *text, size_t len);
/* A marker token, by its number (reasoning_sign). */
void reasoning_marker(struct reasoning *r, size_t i);
/* The end: what is held back comes out. */
void reasoning_finish(struct reasoning *r);
/* MB_OK, or MB_NO_MEMORY when text was lost for lack of memory. */
mb_status reasoning_status(const struct reasoning *r);

#endif
