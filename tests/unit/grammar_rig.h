/* grammar_rig.h: what the grammar tests share: a vocabulary of the 256 bytes (id = byte), an end id, two added tokens and
 * a few longer tokens; "is this text in the language?", "what exactly is the language?". */
#ifndef GRAMMAR_RIG_H
#define GRAMMAR_RIG_H

#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

enum { RIG_END = 256, RIG_CALL, RIG_CALL_END, RIG_FIRST_LONG };
static const char *const rig_long[] = { "\"}", "\": ", "true", "ab", "abc", "{\"", "[[", "12", "\xC3\xA9\"", "  ", "\n\n", "na", "\",", "zz\"" };
enum { RIG_N_LONG = sizeof rig_long / sizeof *rig_long, RIG_N = RIG_FIRST_LONG + RIG_N_LONG };

static mb_error rig_err;

static inline struct grammar_vocab *rig_vocab(void)
{
    static char bytes[256];
    struct grammar_token t[RIG_N];
    int32_t end = RIG_END;
    struct grammar_vocab *v = NULL;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct grammar_token){ &bytes[i], 1, false };
    }
    t[RIG_END] = (struct grammar_token){ "</s>", 4, true };
    t[RIG_CALL] = (struct grammar_token){ "<tool_call>", 11, true };
    t[RIG_CALL_END] = (struct grammar_token){ "</tool_call>", 12, true };
    for (int i = 0; i < RIG_N_LONG; i++) t[RIG_FIRST_LONG + i] = (struct grammar_token){ rig_long[i], strlen(rig_long[i]), false };
    grammar_vocab_from_tokens(&v, t, RIG_N, &end, 1, &rig_err);
    return v;
}

static inline const char *rig_token(int32_t id, size_t *len)
{
    static char one;
    *len = 1;
    if (id < 256) {
        one = (char)id;
        return &one;
    }
    *len = strlen(rig_long[id - RIG_FIRST_LONG]);
    return rig_long[id - RIG_FIRST_LONG];
}

static inline mb_status rig_compile(struct grammar **g, struct grammar_vocab *v, enum grammar_kind kind, const char *text, bool strict)
{
    struct grammar_source src = { kind, text, strlen(text), strict, NULL, NULL };
    return grammar_compile(g, v, &src, &rig_err);
}

/* Byte by byte; before each step the mask must say the same as accept does, and a clone must agree. -1: it did not. */
static inline int rig_matches(struct grammar *g, const char *text)
{
    struct grammar_state *s, *copy;
    uint32_t bits[RIG_N / 32 + 1];
    int ok = 1;
    if (grammar_state_open(&s, g, &rig_err) != MB_OK) return -1;
    for (const char *p = text; *p && ok == 1; p++) {
        int32_t c = (unsigned char)*p;
        if (grammar_state_mask(s, bits, RIG_N, &rig_err) != MB_OK) ok = -1;
        bool allowed = bits[c >> 5] >> (c & 31) & 1;
        if (ok == 1 && grammar_state_clone(&copy, s, &rig_err) == MB_OK) {
            if ((grammar_state_accept(copy, c, NULL) == MB_OK) != allowed) ok = -1;
            grammar_state_close(copy);
        }
        if (ok == 1 && (grammar_state_accept(s, c, &rig_err) == MB_OK) != allowed) ok = -1;
        if (ok == 1 && !allowed) ok = 0;
    }
    if (ok == 1) ok = grammar_state_is_complete(s);
    grammar_state_close(s);
    return ok;
}

/* All texts of the language, each once, joined with '\n' in the order of bytes; "..." at the end when there are more than
 * the limits. Walks over single bytes. Owned by the caller (free). */
struct rig_list {
    char *text;
    size_t len, n, max;
    bool more;
};

static inline void rig_walk(struct grammar_state *s, char *path, size_t depth, size_t max_depth, struct rig_list *l)
{
    uint32_t bits[RIG_N / 32 + 1];
    if (grammar_state_is_complete(s)) {
        if (l->n == l->max) {
            l->more = true;
            return;
        }
        l->text = realloc(l->text, l->len + depth + 2);
        memcpy(l->text + l->len, path, depth);
        l->len += depth;
        l->text[l->len++] = '\n';
        l->text[l->len] = 0;
        l->n++;
    }
    if (grammar_state_mask(s, bits, RIG_N, &rig_err) != MB_OK) return;
    for (int32_t c = 0; c < 256 && !l->more; c++) {
        struct grammar_state *next;
        if (!(bits[c >> 5] >> (c & 31) & 1)) continue;
        if (depth == max_depth) {
            l->more = true;
            return;
        }
        if (grammar_state_clone(&next, s, &rig_err) != MB_OK) return;
        path[depth] = (char)c;
        if (grammar_state_accept(next, c, &rig_err) == MB_OK) rig_walk(next, path, depth + 1, max_depth, l);
        grammar_state_close(next);
    }
}

static inline char *rig_enumerate(struct grammar *g, size_t max, size_t max_depth)
{
    struct grammar_state *s;
    struct rig_list l = { calloc(1, 1), 0, 0, max, false };
    char path[256];
    if (grammar_state_open(&s, g, &rig_err) != MB_OK) return l.text;
    rig_walk(s, path, 0, max_depth < sizeof path ? max_depth : sizeof path - 1, &l);
    grammar_state_close(s);
    if (l.more) {
        l.text = realloc(l.text, l.len + 4);
        memcpy(l.text + l.len, "...", 4);
    } else if (l.len) {
        l.text[l.len - 1] = 0;
    }
    return l.text;
}

#endif
