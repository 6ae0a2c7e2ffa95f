/* test_tokenizer_scan.c: the hand-written scanners (scanner.c) cut every text as their regular expressions do, the streaming
 * pre-tokeniser as the one with lists (the goldens), and they stay linear on texts made to hurt (B-001). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "tokenizer/tokenizer_int.h"

#define SEED 20251129u
#ifdef __SANITIZE_ADDRESS__
#define N_TEXTS 300
#define CP_STEP 64
#define TIME_LIMIT 20.0
#else
#define N_TEXTS 3000
#define CP_STEP 8
#define TIME_LIMIT 1.0
#endif

static uint32_t rng = SEED;

static uint32_t roll(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)rng * n >> 32);
}

/* Cut text by the expression and by hand. */
static void compare(size_t i_pattern, const struct regex *regex, struct regex_scratch *scratch, const char *text, size_t len)
{
    const char *pattern = scanner_pattern(i_pattern);
    const struct scanner *r = scanner_find(pattern, strlen(pattern));
    struct pattern p = { .regex = (struct regex *)(uintptr_t)regex };
    struct match_iter it = { .p = &p, .text = text, .len = len };
    size_t at = 0, first, end;
    bool found;
    mb_error err;
    assert_non_null(r);
    for (;;) {
        assert_int_equal(match_next(&it, scratch, &found, &first, &end, &err), MB_OK);
        if (!found) break;
        size_t got = scanner_next(r, text, len, at);
        if (first != at || got != end) {
            printf("pattern %zu, byte %zu: the expression cuts at %zu, the scanner at %zu of\n", i_pattern, at, end, got);
            for (size_t k = 0; k < len; k++) printf("%02x ", (unsigned char)text[k]);
            fail_msg("the cuts differ (seed %u)", SEED);
        }
        at = end;
    }
    assert_int_equal(at, len);
}

static struct regex *open_regex(size_t i)
{
    struct regex *r;
    mb_error err;
    const char *pattern = scanner_pattern(i);
    if (regex_open(&r, pattern, strlen(pattern), &err) != MB_OK) fail_msg("pattern %zu: %s", i, err.text);
    return r;
}

static void test_scanners_equal_their_expressions(void **state)
{
    static const char *const parts[] = {
        "a", "b", "Z", "Q", "\xC3\xA9", "\xD0\x96", "\xD0\xB6", "\xC7\x85", "\xCA\xB0", "\xE4\xB8\xAD", "\xE3\x83\xBC", "\xCC\x81",
        "\xE0\xA4\x83", "1", "7", "\xC2\xB2", "\xC2\xBD", "\xD9\xA3", " ", " ", "  ", "\t", "\n", "\r", "\r\n", "\xC2\xA0",
        "\xE3\x80\x80", "\xE2\x80\xA8", "\xC2\x85", "\x0b", "\x1c", "\x7f", "'", "'s", "'S", "'\xC5\xBF", "'ll", "'RE", "'vE", "'d", "'x",
        "\xC5\xBF", "/", "//", ".", "!?", "_", "\xE2\x82\xAC", "\xF0\x9F\x99\x82", "\xE2\x80\x8D", "the", " word", "ABC", "abcDEF",
    };
    (void)state;
    for (size_t i = 0; scanner_pattern(i); i++) {
        struct regex *regex = open_regex(i);
        struct regex_scratch scratch = { 0 };
        for (size_t k = 0; k < N_TEXTS; k++) {
            char text[256];
            size_t len = 0;
            for (uint32_t n = 1 + roll(20); n > 0; n--) {
                const char *part = parts[roll(sizeof parts / sizeof parts[0])];
                memcpy(text + len, part, strlen(part));
                len += strlen(part);
            }
            if (roll(16) == 0) text[roll((uint32_t)len)] &= 0x7F; /* also NUL and what becomes of a torn character */
            if (utf8_valid(text, len)) compare(i, regex, &scratch, text, len);
        }
        regex_scratch_free(&scratch);
        regex_close(regex);
    }
}

/* Characters that one of the two libraries does not know yet are left out: unicode.c says why. */
static bool both_know(const struct regex *unassigned, struct regex_scratch *scratch, uint32_t cp)
{
    char s[4];
    bool found;
    size_t first, end, n = (size_t)utf8_encode(cp, s);
    mb_error err;
    if (utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_CN) return false;
    assert_int_equal(regex_find(unassigned, scratch, s, n, 0, &found, &first, &end, &err), MB_OK);
    return !found;
}

static void test_scanners_know_the_classes_of_all_characters(void **state)
{
    struct regex *unassigned;
    struct regex_scratch scratch = { 0 };
    mb_error err;
    (void)state;
    assert_int_equal(regex_open(&unassigned, "\\p{Cn}", 6, &err), MB_OK);
    for (size_t i = 0; scanner_pattern(i); i++) {
        struct regex *regex = open_regex(i);
        for (uint32_t cp = 0; cp < 0x110000; cp += cp < 0x3400 || (cp >= 0xA000 && cp < 0xAC00) ? 1 : cp < 0x20000 ? CP_STEP : 977) {
            if ((cp >= 0xD800 && cp < 0xE000) || !both_know(unassigned, &scratch, cp)) continue;
            char text[24] = "a";
            size_t n = 1;
            n += (size_t)utf8_encode(cp, text + n);
            memcpy(text + n, "b  ", 3);
            n += 3;
            n += (size_t)utf8_encode(cp, text + n);
            n += (size_t)utf8_encode(cp, text + n);
            text[n++] = '1';
            compare(i, regex, &scratch, text, n);
        }
        regex_close(regex);
    }
    regex_scratch_free(&scratch);
    regex_close(unassigned);
}

/* B-001: a megabyte of what makes a scanner look far ahead. */
static void test_b001_scanners_are_linear(void **state)
{
    static const char *const units[] = { " ", "\n ", "A", "\xCC\x81" "AAAAAAAA", "\xCC\x81", "'", "/", "1", " a", "A\xCC\x81" "A", "\t\r" };
    size_t len = 1 << 20;
    char *text = malloc(len + 16);
    (void)state;
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t n = 0, unit = strlen(units[u]);
        while (n + unit <= len) {
            memcpy(text + n, units[u], unit);
            n += unit;
        }
        for (size_t i = 0; scanner_pattern(i); i++) {
            const struct scanner *r = scanner_find(scanner_pattern(i), strlen(scanner_pattern(i)));
            clock_t t0 = clock();
            for (size_t at = 0, end; at < n; at = end) {
                end = scanner_next(r, text, n, at);
                assert_true(end > at && end <= n);
            }
            if ((double)(clock() - t0) / CLOCKS_PER_SEC > TIME_LIMIT) fail_msg("pattern %zu, unit %zu: too slow", i, u);
        }
    }
    free(text);
}

/* --- the tables of known words and the cuts between characters that no merge joins change no result --- */

static void encode_random(const struct tokenizer *t, struct arena *a, uint32_t seed, struct token_list *out)
{
    char text[600];
    size_t len = 0;
    mb_error err;
    struct encode_opts o = { .want_ends = true };
    rng = seed;
    while (len < 400) { /* pieces of the vocabulary, and what stands between them in texts */
        static const char *const between[] = { " ", "", "", "\n", ", ", "\xE2\x96\x81", "\xC3\xA9", "\x01", "_", "9", "<0x41>", "\xF0\x9F\x99\x82" };
        const char *gap = between[roll(sizeof between / sizeof between[0])];
        size_t n = 0;
        const char *piece = tokenizer_piece(t, (int32_t)roll((uint32_t)tokenizer_n_vocab(t)), &n);
        if (piece && n < 40) memcpy(text + len, piece, n), len += n;
        memcpy(text + len, gap, strlen(gap));
        len += strlen(gap);
    }
    assert_int_equal(tokenizer_encode(t, a, text, len, &o, out, &err), MB_OK);
}

static void test_tables_and_cuts_change_nothing(void **state)
{
    static const char *const families[] = { "gemma3", "mistral", "phi3", "spm_always", "spm_never", "smollm2", "llama3", "qwen2", "bert_suffix", "split_kinds" };
    (void)state;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        char dir[96];
        struct tokenizer *t;
        mb_error err;
        snprintf(dir, sizeof dir, "tests/golden/tokenizer/%s", families[f]);
        if (tokenizer_open(&t, dir, &err) != MB_OK) fail_msg("%s", err.text);
        struct word_table words = t->bpe.words;
        bool cuts = t->bpe.cuts;
        for (uint32_t i = 0; i < N_TEXTS / 10; i++) {
            struct arena a;
            struct token_list fast, plain;
            arena_init(&a, 0);
            encode_random(t, &a, SEED + i, &fast);
            t->bpe.words.n = 0;
            t->bpe.cuts = false;
            encode_random(t, &a, SEED + i, &plain);
            t->bpe.words = words;
            t->bpe.cuts = cuts;
            if (fast.n != plain.n || memcmp(fast.ids, plain.ids, fast.n * sizeof *fast.ids) != 0 ||
                memcmp(fast.ends, plain.ends, fast.n * sizeof *fast.ends) != 0)
                fail_msg("%s, text %u: the tables change the tokens", families[f], (unsigned)i);
            arena_free(&a);
        }
        tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_and_cuts_change_nothing),
        cmocka_unit_test(test_scanners_equal_their_expressions),
        cmocka_unit_test(test_scanners_know_the_classes_of_all_characters),
        cmocka_unit_test(test_b001_scanners_are_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
