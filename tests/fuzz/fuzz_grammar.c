/* Grammars: the first byte says what the rest is (JSON Schema strict or not, regex, EBNF, choice); it is compiled with
 * small limits and followed for a while, drawing allowed tokens. Checks that masks and accept agree, that a mask is never
 * empty before the end, and that clones and collections change nothing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { END = 256, N_LONG = 10, N_VOCAB = 258 + N_LONG, MAX_TEXT = 3000, MAX_TOKENS = 60 };
static const char *const longer[N_LONG] = { "\"}", "\": ", "true", "ab", "{\"", "[[", "12", "\xC3\xA9\"", "\n  ", "a\"," };

/* NULL only where an allocation failed (make alloc-fail): then the next input tries again. */
static struct grammar_vocab *vocab_new(void)
{
    static char bytes[256];
    struct grammar_token t[N_VOCAB];
    int32_t end = END;
    struct grammar_vocab *v;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct grammar_token){ &bytes[i], 1, false };
    }
    t[END] = (struct grammar_token){ "</s>", 4, true };
    t[END + 1] = (struct grammar_token){ "<tool_call>", 11, true };
    for (int i = 0; i < N_LONG; i++) t[END + 2 + i] = (struct grammar_token){ longer[i], strlen(longer[i]), false };
    mb_status st = grammar_vocab_from_tokens(&v, t, N_VOCAB, &end, 1, NULL);
    if (st != MB_OK && st != MB_NO_MEMORY) abort();
    return v;
}

static uint32_t seed;
static uint32_t draw(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static bool bit(const uint32_t *bits, int32_t id)
{
    return bits[id >> 5] >> (id & 31) & 1;
}

static void check_accept(const struct grammar_state *s, int32_t id, bool allowed)
{
    struct grammar_state *copy;
    if (grammar_state_clone(&copy, s, NULL) != MB_OK) return;
    mb_status st = grammar_state_accept(copy, id, NULL);
    if ((st == MB_OK && !allowed) || (st == MB_INVALID && allowed)) abort();
    grammar_state_close(copy);
}

static void follow(struct grammar_state *s)
{
    uint32_t bits[N_VOCAB / 32 + 1];
    char forced[16];
    for (int i = 0; i < MAX_TOKENS; i++) {
        int32_t ids[N_VOCAB], n = 0;
        mb_status st = grammar_state_mask(s, bits, N_VOCAB, NULL);
        if (st == MB_NO_MEMORY || st == MB_TOO_LARGE) return;
        if (st != MB_OK) abort(); /* 256 bytes spell everything */
        for (int32_t id = 0; id < N_VOCAB; id++)
            if (bit(bits, id)) ids[n++] = id;
        if (!n || bit(bits, END) != grammar_state_is_complete(s)) abort();
        for (int k = 0; k < 4; k++) {
            int32_t id = (int32_t)draw(N_VOCAB);
            check_accept(s, id, bit(bits, id));
        }
        size_t n_forced = grammar_state_forced(s, forced, sizeof forced);
        if (n_forced && !bit(bits, (uint8_t)forced[0])) abort();
        if (n == 1 && ids[0] == END) return;
        int32_t id = ids[draw((uint32_t)n)];
        st = grammar_state_accept(s, id, NULL);
        if (st == MB_INVALID) abort();
        if (st != MB_OK || id == END) return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct grammar_vocab *v;
    static const enum grammar_kind kinds[] = { GRAMMAR_JSON_SCHEMA, GRAMMAR_JSON_SCHEMA, GRAMMAR_REGEX, GRAMMAR_EBNF, GRAMMAR_CHOICE };
    struct grammar_limits limits = { .max_machine_bytes = 400000, .max_mask_steps = 300000, .max_items = 64 };
    struct grammar *g;
    struct grammar_state *s;
    mb_error err;
    if (!v) v = vocab_new();
    if (!v || size < 1 || size > MAX_TEXT) return 0;
    int kind = (data[0] >= '0' ? data[0] - '0' : data[0]) % 5;
    struct grammar_source src = { kinds[kind], (const char *)data + 1, size - 1, kind == 0, NULL, NULL };
    if (grammar_compile_limited(&g, v, &src, &limits, &err) != MB_OK) {
        if (err.code == MB_INTERNAL || !err.text[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < size; i++) seed = seed * 31 + data[i];
    for (int k = 0; k < 3; k++) {
        if (grammar_state_open(&s, g, &err) != MB_OK) break;
        follow(s);
        grammar_state_close(s);
    }
    grammar_unref(g);
    return 0;
}
