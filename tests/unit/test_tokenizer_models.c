/* test_tokenizer_models.c: Unigram, WordPiece and WordLevel beyond what their goldens show: refusals, scores read as the
 * oracle reads them, doubled pieces, maps of characters that lie, time that grows with the text alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "mini_tokenizer.h"

#ifdef __SANITIZE_ADDRESS__
#define TIME_LIMIT 40.0
#else
#define TIME_LIMIT 2.0 /* seconds of CPU time for a megabyte; a quadratic way would take hours */
#endif
#define MODEL(type, rest) "{\"model\":{\"type\":\"" type "\"," rest "}}"

static struct tokenizer *parse(const char *json, mb_status want, const char *says)
{
    mb_error err = { 0 };
    struct tokenizer *t = NULL;
    mb_status st = tokenizer_parse(&t, json, strlen(json), NULL, 0, &err);
    if (st != want) fail_msg("%s: status %d, wanted %d: %s", json, st, want, st == MB_OK ? "" : err.text);
    if (says && !strstr(err.text, says)) fail_msg("\"%s\" does not say \"%s\"", err.text, says);
    if (want != MB_OK) assert_null(t);
    return t;
}

static void check(const struct tokenizer *t, const char *text, size_t n, const int32_t *ids, const size_t *ends)
{
    struct arena a;
    struct token_list l;
    struct encode_opts o = { .want_ends = ends != NULL };
    mb_error err;
    arena_init(&a, 0);
    if (tokenizer_encode(t, &a, text, strlen(text), &o, &l, &err) != MB_OK) fail_msg("%s: %s", text, err.text);
    assert_int_equal(l.n, n);
    assert_memory_equal(l.ids, ids, n * sizeof *ids);
    if (ends) assert_memory_equal(l.ends, ends, n * sizeof *ends);
    arena_free(&a);
}
#define CHECK(t, text, ...) check(t, text, sizeof((int32_t[]){ __VA_ARGS__ }) / 4, (int32_t[]){ __VA_ARGS__ }, NULL)

static void refuses(const struct tokenizer *t, const char *text, const char *says)
{
    struct arena a;
    struct token_list l;
    mb_error err;
    arena_init(&a, 0);
    assert_int_equal(tokenizer_encode(t, &a, text, strlen(text), NULL, &l, &err), MB_INVALID);
    if (!strstr(err.text, says)) fail_msg("\"%s\" does not say \"%s\"", err.text, says);
    arena_free(&a);
}

static void test_malformed_models_are_refused(void **state)
{
    static const char *const bad[][2] = {
        { MODEL("Unigram", "\"vocab\":{\"a\":0}"), "an array" }, { MODEL("Unigram", "\"unk_id\":0"), "vocab is missing" },
        { MODEL("Unigram", "\"vocab\":[[\"a\"]]"), "score" }, { MODEL("Unigram", "\"vocab\":[[]]"), "a piece and its score" },
        { MODEL("Unigram", "\"vocab\":[[\"a\",-1,2]]"), "only a piece" }, { MODEL("Unigram", "\"vocab\":[[\"a\",\"b\"]]"), "score" },
        { MODEL("Unigram", "\"vocab\":[[\"a\",-]]"), "score" }, { MODEL("Unigram", "\"vocab\":[[\"a\",01]]"), "score" },
        { MODEL("Unigram", "\"vocab\":[[\"a\",1.]]"), "digit" }, { MODEL("Unigram", "\"vocab\":[[\"a\",1e]]"), "exponent" },
        { MODEL("Unigram", "\"vocab\":[[\"a\",1e999]]"), "range" }, { MODEL("Unigram", "\"vocab\":[\"a\"]"), "an array" },
        { MODEL("Unigram", "\"unk_id\":1,\"vocab\":[[\"a\",-1]]"), "unk_id" }, { MODEL("Unigram", "\"unk_id\":-1,\"vocab\":[[\"a\",-1]]"), "unk_id" },
        { MODEL("Unigram", "\"unk_id\":0,\"vocab\":[]"), "unk_id" }, { MODEL("Unigram", "\"byte_fallback\":3,\"vocab\":[[\"a\",-1]]"), "byte_fallback" },
        { MODEL("WordPiece", "\"vocab\":[[\"a\",-1]]"), "an object" }, { MODEL("WordPiece", "\"unk_token\":\"a\""), "vocab is missing" },
        { MODEL("WordPiece", "\"vocab\":{\"a\":0},\"max_input_chars_per_word\":-1"), "max_input_chars_per_word" },
        { MODEL("WordPiece", "\"vocab\":{\"a\":0},\"unk_token\":4"), "unk_token" },
        { MODEL("WordLevel", "\"vocab\":{\"a\":\"b\"}"), "token id" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) parse(bad[i][0], MB_BAD_FORMAT, bad[i][1]);
    parse(MODEL("Odd", "\"vocab\":{}"), MB_UNSUPPORTED, "Odd");
}

static void test_a_piece_beyond_the_ceiling_is_refused(void **state)
{
    struct buf b;
    (void)state;
    for (int i = 0; i < 2; i++) {
        buf_init(&b, 0);
        buf_append_str(&b, i ? "{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"" : "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"");
        for (int k = 0; k < 5000; k++) buf_append_char(&b, 'a');
        buf_append_str(&b, i ? "\",-1]]}}" : "\":0}}}");
        parse(b.data, MB_TOO_LARGE, "5000 bytes");
        buf_free(&b);
    }
}

/* Files without a type: told apart by their keys. */
static void test_models_without_a_type(void **state)
{
    (void)state;
    struct tokenizer *t = parse("{\"model\":{\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1]]}}", MB_OK, NULL);
    CHECK(t, "ab", 1, 0);
    tokenizer_close(t);
    t = parse("{\"model\":{\"max_input_chars_per_word\":9,\"vocab\":{\"[UNK]\":0,\"a\":1,\"##b\":2}}}", MB_OK, NULL);
    CHECK(t, "ab", 1, 2);
    tokenizer_close(t);
    t = parse("{\"model\":{\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1}}}", MB_OK, NULL);
    CHECK(t, "ab", 0);
    tokenizer_close(t);
}

static void test_text_without_any_piece_is_refused(void **state)
{
    (void)state;
    struct tokenizer *t = parse(MODEL("Unigram", "\"vocab\":[[\"a\",-1],[\"ab\",-2]]"), MB_OK, NULL);
    CHECK(t, "aab", 0, 1);
    refuses(t, "abc", "unk_id");
    tokenizer_close(t);
    t = parse(MODEL("Unigram", "\"vocab\":[]"), MB_OK, NULL);
    refuses(t, "a", "unk_id");
    tokenizer_close(t);
    t = parse(MODEL("WordPiece", "\"vocab\":{\"a\":0,\"##a\":1}"), MB_OK, NULL);
    CHECK(t, "aa", 0, 1);
    refuses(t, "ab", "[UNK]");
    tokenizer_close(t);
    t = parse(MODEL("WordLevel", "\"unk_token\":\"none\",\"vocab\":{\"a\":0}"), MB_OK, NULL);
    CHECK(t, "a", 0);
    refuses(t, "b", "none");
    tokenizer_close(t);
}

/* The oracle's JSON reader rounds these two scores to the same double, so the first way to the end stays; read as the
 * nearest doubles they would differ, and [1, 2] would win. */
static void test_scores_are_rounded_as_the_oracle_does(void **state)
{
    (void)state;
    struct tokenizer *t = parse(MODEL("Unigram", "\"vocab\":[[\"ab\",-0.9179550430877189],[\"a\",-0.9179550430877188],[\"b\",0.0]]"), MB_OK, NULL);
    CHECK(t, "ab", 0);
    tokenizer_close(t);
    t = parse(MODEL("Unigram", "\"vocab\":[[\"ab\",-1.5e1],[\"a\",-0.5E+1],[\"b\",-9999999999999999999999e-21],[\"c\",1e-400]]"), MB_OK, NULL);
    CHECK(t, "ab", 0); /* -15 against -5 and -10 less a little: the same double, so the first stays */
    CHECK(t, "c", 3);
    tokenizer_close(t);
}

static void test_doubled_pieces_keep_their_texts(void **state)
{
    size_t n;
    (void)state;
    struct tokenizer *t = parse(MODEL("Unigram", "\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-1],[\"a\",-3]]"), MB_OK, NULL);
    CHECK(t, "ab", 3, 2);
    assert_string_equal(tokenizer_piece(t, 1, &n), "a");
    assert_string_equal(tokenizer_piece(t, 3, &n), "a");
    assert_int_equal(tokenizer_id(t, "a", 1), 3);
    assert_int_equal(tokenizer_n_vocab(t), 4);
    tokenizer_close(t);
}

static void test_ends_of_unknown_text(void **state)
{
    (void)state;
    struct tokenizer *t = parse(MODEL("Unigram", "\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1]]"), MB_OK, NULL);
    check(t, "a\xC3\xA9xa", 3, (int32_t[]){ 1, 0, 1 }, (size_t[]){ 1, 4, 5 });
    tokenizer_close(t);
    t = parse(MODEL("Unigram", "\"unk_id\":0,\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"<0xC3>\",-9],[\"<0xA9>\",-9]]"), MB_OK, NULL);
    check(t, "a\xC3\xA9\xC3\xA9", 5, (int32_t[]){ 1, 2, 3, 2, 3 }, (size_t[]){ 1, 2, 3, 4, 5 });
    check(t, "\xC3\xA9x", 1, (int32_t[]){ 0 }, (size_t[]){ 3 }); /* one byte without a token: all of it is unknown */
    tokenizer_close(t);
}

/* --- maps of characters --- */

static struct tokenizer *with_map(const char *base64, mb_status want, const char *says)
{
    char json[512];
    snprintf(json, sizeof json, "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":%s},\"model\":{\"type\":\"Unigram\","
             "\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-1],[\"c\",-1]]}}", base64);
    return parse(json, want, says);
}

static void test_maps_that_lie_are_refused_or_do_nothing(void **state)
{
    static const char *const bad[][2] = {
        { "null", "precompiled_charsmap" }, { "7", "precompiled_charsmap" }, { "\"\"", "cut off" }, { "\"AAAA\"", "cut off" },
        { "\"AAAA=\"", "base64" }, { "\"A*AA\"", "base64" }, { "\"=AAA\"", "base64" }, { "\"====\"", "base64" }, { "\"/////w==\"", "cut off" },
        { "\"BAAAAAE=\"", "cut off" }, { "\"AAAAAP8=\"", "UTF-8" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) with_map(bad[i][0], MB_BAD_FORMAT, bad[i][1]);
    struct tokenizer *t = with_map("\"AAAAAA==\"", MB_OK, NULL); /* an empty one */
    CHECK(t, "abc", 1, 2, 3);
    tokenizer_close(t);
    t = with_map("\"BAAAAP///38=\"", MB_OK, NULL); /* one unit, whose children would be far outside */
    CHECK(t, "abc", 1, 2, 3);
    tokenizer_close(t);
}

/* --- time --- */

static void encode_megabyte(const struct tokenizer *t, const char *unit)
{
    size_t n_unit = strlen(unit), n = (1 << 20) / n_unit * n_unit;
    char *text = malloc(n);
    struct arena a;
    struct token_list l;
    mb_error err;
    for (size_t i = 0; i < n; i += n_unit) memcpy(text + i, unit, n_unit);
    arena_init(&a, 0);
    clock_t t0 = clock();
    if (tokenizer_encode(t, &a, text, n, NULL, &l, &err) != MB_OK) fail_msg("%s", err.text);
    double seconds = (double)(clock() - t0) / CLOCKS_PER_SEC;
    assert_true(l.n > 0);
    if (seconds > TIME_LIMIT) fail_msg("a megabyte of \"%s\" took %.1f s", unit, seconds);
    arena_free(&a);
    free(text);
}

/* B-001: one word of a megabyte, with a vocabulary that has a piece of every length up to 60. */
static void test_b001_one_word_of_a_megabyte(void **state)
{
    struct buf u, w;
    char run[64] = "";
    (void)state;
    buf_init(&u, 0);
    buf_init(&w, 0);
    buf_append_str(&u, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"ab\",-2]");
    buf_append_str(&w, "{\"model\":{\"type\":\"WordPiece\",\"max_input_chars_per_word\":1000000000,\"vocab\":{\"[UNK]\":0,\"##ab\":1,\"ab\":2");
    for (int i = 0; i < 60; i++) {
        run[i] = 'a';
        buf_printf(&u, ",[\"%s\",-%d.25]", run, 3 + i);
        buf_printf(&w, ",\"##%s\":%d,\"%s\":%d", run, 3 + 2 * i, run, 4 + 2 * i);
    }
    buf_append_str(&u, "]}}");
    buf_append_str(&w, "}}}");
    struct tokenizer *t[2] = { parse(u.data, MB_OK, NULL), parse(w.data, MB_OK, NULL) };
    for (int i = 0; i < 2; i++) {
        encode_megabyte(t[i], "a");
        encode_megabyte(t[i], "ab");
        encode_megabyte(t[i], "a\xCC\x81");
        encode_megabyte(t[i], "\xE4\xB8\xAD");
        tokenizer_close(t[i]);
    }
    buf_free(&u);
    buf_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed_models_are_refused),
        cmocka_unit_test(test_a_piece_beyond_the_ceiling_is_refused),
        cmocka_unit_test(test_models_without_a_type),
        cmocka_unit_test(test_text_without_any_piece_is_refused),
        cmocka_unit_test(test_scores_are_rounded_as_the_oracle_does),
        cmocka_unit_test(test_doubled_pieces_keep_their_texts),
        cmocka_unit_test(test_ends_of_unknown_text),
        cmocka_unit_test(test_maps_that_lie_are_refused_or_do_nothing),
        cmocka_unit_test(test_b001_one_word_of_a_megabyte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
