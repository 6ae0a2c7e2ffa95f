/* test_grammar.c: the grammar engine over regular expressions, EBNF and choices: languages enumerated, masks against
 * accept, named tokens, clones, jump-forward, limits, the cache. JSON Schema: test_grammar_schema.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "grammar_rig.h"

static struct grammar_vocab *vocab;

static struct grammar *compiled(enum grammar_kind kind, const char *text)
{
    struct grammar *g = NULL;
    rig_err.text[0] = 0;
    mb_status st = rig_compile(&g, vocab, kind, text, true);
    if (st != MB_OK) print_message("%s: %s\n", text, rig_err.text);
    assert_int_equal(st, MB_OK);
    return g;
}

static void check_text(enum grammar_kind kind, const char *source, const char *text, int want)
{
    struct grammar *g = compiled(kind, source);
    int got = rig_matches(g, text);
    if (got != want) print_message("%s with '%s': %d, wanted %d\n", source, text, got, want);
    assert_int_equal(got, want);
    grammar_unref(g);
}

static void check_language(enum grammar_kind kind, const char *source, const char *want)
{
    struct grammar *g = compiled(kind, source);
    char *got = rig_enumerate(g, 2000, 200);
    assert_string_equal(got, want);
    free(got);
    grammar_unref(g);
}

static void check_refused(enum grammar_kind kind, const char *source, mb_status want, const char *part)
{
    struct grammar *g = NULL;
    mb_status st = rig_compile(&g, vocab, kind, source, true);
    if (st != want || !strstr(rig_err.text, part)) print_message("%s: %d %s\n", source, (int)st, rig_err.text);
    assert_int_equal(st, want);
    assert_null(g);
    assert_non_null(strstr(rig_err.text, part));
}

/* B-062: the classes and anchors that clients write (API-156) */
static void test_b062_regex(void **state)
{
    (void)state;
    static const struct { const char *re, *text; int want; } cases[] = {
        { "^(k-)?\\d{6,}$", "k-123456", 1 }, { "^(k-)?\\d{6,}$", "1234567890", 1 }, { "^(k-)?\\d{6,}$", "12345", 0 },
        { "^(k-)?\\d{6,}$", "k-12345x", 0 }, { "\\w+", "aZ_9", 1 }, { "\\w", "-", 0 }, { "\\s", "\t", 1 },
        { "\\s", "\xC2\xA0", 1 }, { "\\S+", "a\xC3\xA9", 1 }, { "\\S", " ", 0 }, { "\\D", "x", 1 }, { "\\D", "5", 0 },
        { "[^\\d]", "\xE6\x97\xA5", 1 }, { "[^\\d]", "7", 0 }, { "\\u00e9", "\xC3\xA9", 1 }, { "\\u{1F98A}", "\xF0\x9F\xA6\x8A", 1 },
        { "\\ud83e\\udd8a", "\xF0\x9F\xA6\x8A", 1 }, { ".", "\n", 0 }, { ".", "\xF0\x9F\xA6\x8A", 1 }, { "\\x41\\.", "A.", 1 },
        { "[a-c\\-]+", "a-c", 1 }, { "[]", "a", 0 == 1 }, { "a|b|", "", 1 }, { "(?:ab)*?c", "ababc", 1 }, { "a{2}", "aa", 1 },
        { "a{,2}", "a{,2}", 1 }, { "(?<n>x)y", "xy", 1 }, { "\\p{Lu}\\p{Ll}*", "\xC3\x89t\xC3\xA9", 1 }, { "\\P{L}", "1", 1 },
        { "(?i)straSSe", "STRASSE", 1 }, { "\\cJ", "\n", 1 }, { "^$", "", 1 }, { "(^a|b)c$", "ac", 1 }, { "[\\b]", "\b", 1 },
        { "a^b", "ab", 0 == 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g = NULL;
        mb_status st = rig_compile(&g, vocab, GRAMMAR_REGEX, cases[i].re, true);
        if (st == MB_INVALID && strstr(rig_err.text, "no finite text")) continue; /* [] and a^b */
        assert_int_equal(st, MB_OK);
        grammar_unref(g);
        check_text(GRAMMAR_REGEX, cases[i].re, cases[i].text, cases[i].want);
    }
}

static void test_b062_regex_refused(void **state)
{
    (void)state;
    check_refused(GRAMMAR_REGEX, "a(?=b)", MB_UNSUPPORTED, "look-ahead");
    check_refused(GRAMMAR_REGEX, "(?!b)", MB_UNSUPPORTED, "look-ahead");
    check_refused(GRAMMAR_REGEX, "(?<=b)a", MB_UNSUPPORTED, "look-behind");
    check_refused(GRAMMAR_REGEX, "(a)\\1", MB_UNSUPPORTED, "back-reference");
    check_refused(GRAMMAR_REGEX, "\\bx", MB_UNSUPPORTED, "word boundary");
    check_refused(GRAMMAR_REGEX, "a++", MB_UNSUPPORTED, "possessive");
    check_refused(GRAMMAR_REGEX, "([a-z", MB_INVALID, "not closed"); /* B-061 */
    check_refused(GRAMMAR_REGEX, "(a", MB_INVALID, "not closed");
    check_refused(GRAMMAR_REGEX, "a)", MB_INVALID, "closing parenthesis");
    check_refused(GRAMMAR_REGEX, "*a", MB_INVALID, "nothing to repeat");
    check_refused(GRAMMAR_REGEX, "[z-a]", MB_INVALID, "out of order");
    check_refused(GRAMMAR_REGEX, "a{3,1}", MB_INVALID, "below its beginning");
    check_refused(GRAMMAR_REGEX, "\\q", MB_INVALID, "unknown escape");
    check_refused(GRAMMAR_REGEX, "\xFF", MB_INVALID, "UTF-8");
    check_refused(GRAMMAR_REGEX, "((a{1,900}){1,900}){1,900}", MB_TOO_LARGE, "states");
}

/* API-155: rules, recursion, repetition, classes; left recursion is rewritten */
static void test_ebnf_languages(void **state)
{
    (void)state;
    check_language(GRAMMAR_EBNF, "root ::= (\"a\" | 'b') [0-2]? # comment\n", "a\na0\na1\na2\nb\nb0\nb1\nb2");
    check_language(GRAMMAR_EBNF, "root ::= x{2,3}\nx ::= \"a\" |\n \"b\"", "aa\naaa\naab\nab\naba\nabb\nba\nbaa\nbab\nbb\nbba\nbbb");
    check_language(GRAMMAR_EBNF, "root ::= \"\\x41\\u00e9\\n\"", "A\xC3\xA9\n");
    check_language(GRAMMAR_EBNF, "root ::= %choice [\"x\", \"yz\"] \"!\"", "x!\nyz!");
    check_language(GRAMMAR_EBNF, "root ::= %regex /a\\/[bc]/", "a/b\na/c");
    check_text(GRAMMAR_EBNF, "root ::= \"(\" root \")\" root | \"\"", "(()())()", 1);
    check_text(GRAMMAR_EBNF, "root ::= \"(\" root \")\" root | \"\"", "(()", 0);
    check_text(GRAMMAR_EBNF, "root ::= root \"+\" t | t\nt ::= [0-9]+", "1+22+3", 1);
    check_text(GRAMMAR_EBNF, "root ::= %until \"</x>\" \".\"", "a<</x</x>.", 1);
    check_text(GRAMMAR_EBNF, "root ::= %until \"</x>\" \".\"", "</x></x>.", 0);
    check_text(GRAMMAR_EBNF, "root ::= \"a\"{3,} \"b\"", "aaaab", 1);
    check_text(GRAMMAR_EBNF, "root ::= p\np ::= \"a\" p \"a\" | \"b\" p \"b\" | [ab]?", "abbabba", 1);
    check_text(GRAMMAR_EBNF, "root ::= \"f\" %json {\"type\":\"integer\"} \";\"", "f-12;", 1);
    check_text(GRAMMAR_EBNF, "root ::= %json true", "[1,{\"a\":null}]", 1);
}

static void test_ebnf_refused(void **state)
{
    (void)state;
    check_refused(GRAMMAR_EBNF, "root ::= x", MB_INVALID, "no rule x");
    check_refused(GRAMMAR_EBNF, "start ::= \"a\"", MB_INVALID, "no rule root");
    check_refused(GRAMMAR_EBNF, "", MB_INVALID, "root");
    check_refused(GRAMMAR_EBNF, "root ::= \"a\n", MB_INVALID, "line 1");
    check_refused(GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"", MB_INVALID, "line 2");
    check_refused(GRAMMAR_EBNF, "root ::= (\"a\"", MB_INVALID, "not closed");
    check_refused(GRAMMAR_EBNF, "root ::= \"a\" root", MB_INVALID, "no finite text");
    check_refused(GRAMMAR_EBNF, "root ::= a \"x\" | \"y\"\na ::= root \"z\"", MB_UNSUPPORTED, "left recursion");
    check_refused(GRAMMAR_EBNF, "root ::= %json {\"type\":\"strng\"}", MB_INVALID, "type must be");
    check_refused(GRAMMAR_EBNF, "root ::= %frob", MB_INVALID, "json, regex, token");
}

/* API-157 */
static void test_choice(void **state)
{
    (void)state;
    check_language(GRAMMAR_CHOICE, "[\"yes\",\"no\",\"yes!\",\"\\u00e9\"]", "no\nyes\nyes!\n\xC3\xA9");
    struct buf many; /* more than are taken one by one */
    buf_init(&many, 0);
    buf_append_str(&many, "[\"a\"");
    for (int i = 0; i < 40; i++) buf_printf(&many, ",\"%c%c\"", 'a' + i % 4, 'a' + i / 4);
    buf_append_str(&many, "]");
    check_text(GRAMMAR_CHOICE, many.data, "a", 1);
    check_text(GRAMMAR_CHOICE, many.data, "dj", 1);
    check_text(GRAMMAR_CHOICE, many.data, "b", 0);
    check_text(GRAMMAR_CHOICE, many.data, "dk", 0);
    buf_free(&many);
    check_text(GRAMMAR_REGEX, "[a-c]{1,50000}", "abc", 1);
    check_refused(GRAMMAR_CHOICE, "[]", MB_INVALID, "at least one");
    check_refused(GRAMMAR_CHOICE, "[1]", MB_INVALID, "item 0");
    check_refused(GRAMMAR_CHOICE, "\"a\"", MB_INVALID, "list");
    check_refused(GRAMMAR_CHOICE, "[", MB_INVALID, "JSON");
}

/* Added tokens come only where they are named; the end only where the text may end. */
static void test_named_tokens(void **state)
{
    (void)state;
    struct grammar *g = compiled(GRAMMAR_EBNF, "root ::= %token \"<tool_call>\" [^x]* %token \"</tool_call>\"");
    struct grammar_state *s;
    uint32_t bits[RIG_N / 32 + 1];
    char forced[8];
    assert_int_equal(grammar_state_open(&s, g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_forced(s, forced, sizeof forced), 0);
    assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
    for (int32_t i = 0; i < RIG_N; i++) assert_int_equal(bits[i >> 5] >> (i & 31) & 1, i == RIG_CALL);
    assert_int_equal(grammar_state_accept(s, '<', &rig_err), MB_INVALID);
    assert_int_equal(grammar_state_accept(s, RIG_CALL, &rig_err), MB_OK);
    assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
    assert_false(bits[RIG_CALL >> 5] >> (RIG_CALL & 31) & 1);
    assert_false(bits[RIG_END >> 5] >> (RIG_END & 31) & 1);
    assert_true(bits[RIG_CALL_END >> 5] >> (RIG_CALL_END & 31) & 1);
    assert_true(bits['<' >> 5] >> ('<' & 31) & 1);
    assert_int_equal(grammar_state_accept(s, RIG_CALL_END, &rig_err), MB_OK);
    assert_true(grammar_state_is_complete(s));
    assert_true(grammar_state_must_end(s));
    assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
    for (int32_t i = 0; i < RIG_N; i++) assert_int_equal(bits[i >> 5] >> (i & 31) & 1, i == RIG_END);
    assert_int_equal(grammar_state_accept(s, RIG_END, &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept(s, 'a', &rig_err), MB_INVALID);
    grammar_state_close(s);
    grammar_unref(g);
    /* without such a token: its bytes */
    check_text(GRAMMAR_EBNF, "root ::= %token \"<other>\"", "<other>", 1);
}

/* Masks of longer tokens are those that accept takes, at every place of a text, whatever way the mask was computed. */
static void check_masks(struct grammar *g, const char *text)
{
    struct grammar_state *s, *t;
    uint32_t bits[RIG_N / 32 + 1];
    assert_int_equal(grammar_state_open(&s, g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_open(&t, g, &rig_err), MB_OK);
    for (const char *p = text;; p++) {
        assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
        for (int32_t id = 0; id < RIG_N; id++) {
            grammar_state_assign(t, s);
            bool allowed = bits[id >> 5] >> (id & 31) & 1, taken = grammar_state_accept(t, id, NULL) == MB_OK;
            if (allowed != taken) print_message("token %d behind %zu bytes of %s\n", (int)id, (size_t)(p - text), text);
            assert_int_equal(allowed, taken);
            if (id < 256 || id < RIG_FIRST_LONG || !taken) continue;
            size_t len; /* and a long token is its bytes */
            const char *bytes = rig_token(id, &len);
            grammar_state_assign(t, s);
            assert_int_equal(grammar_state_accept_bytes(t, bytes, len, &rig_err), MB_OK);
        }
        if (!*p) break;
        assert_int_equal(grammar_state_accept(s, (unsigned char)*p, &rig_err), MB_OK);
    }
    assert_true(grammar_state_is_complete(s));
    grammar_state_close(s);
    grammar_state_close(t);
}

static void test_masks_agree_with_accept(void **state)
{
    (void)state;
    static const struct { enum grammar_kind kind; const char *source, *text; } cases[] = {
        { GRAMMAR_JSON_OBJECT, "", "{\"na\": [[12, true], \"ab\xC3\xA9\"], \"b\":{}}" },
        { GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":4},\"na\":{\"type\":"
          "\"string\",\"minLength\":300},\"ab\":true}}", "{\"name\": \"ab\xC3\xA9z\", \"ab\":12, \"nam\":[[]], \"zz\": \"ab\"}" },
        { GRAMMAR_REGEX, "([a-z]+ ){2}\\d{1,3}[\\w-]{0,40}", "ab abc 12zz-zz" },
        { GRAMMAR_EBNF, "root ::= (\"ab\" | \"abc\" | \"a\" root)+ %until \"zz\"", "abcaab12zz" },
    };
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            struct grammar *g = compiled(cases[i].kind, cases[i].source);
            check_masks(g, cases[i].text);
            grammar_unref(g);
        }
}

/* API-164: what must come next */
static void test_forced(void **state)
{
    (void)state;
    struct grammar *g = compiled(GRAMMAR_EBNF, "root ::= \"begin \" [xy] \" end\"");
    struct grammar_state *s;
    char out[32];
    assert_int_equal(grammar_state_open(&s, g, &rig_err), MB_OK);
    size_t n = grammar_state_forced(s, out, sizeof out);
    assert_int_equal(n, 6);
    assert_memory_equal(out, "begin ", 6);
    assert_int_equal(grammar_state_forced(s, out, 3), 3);
    assert_int_equal(grammar_state_accept_bytes(s, "begin ", 6, &rig_err), MB_OK);
    assert_int_equal(grammar_state_forced(s, out, sizeof out), 0);
    assert_int_equal(grammar_state_accept_bytes(s, "z", 1, &rig_err), MB_INVALID);
    assert_int_equal(grammar_state_accept_bytes(s, "x en", 4, &rig_err), MB_OK);
    assert_int_equal(grammar_state_forced(s, out, sizeof out), 1);
    assert_int_equal(grammar_state_accept(s, 'd', &rig_err), MB_OK);
    assert_int_equal(grammar_state_forced(s, out, sizeof out), 0);
    grammar_state_close(s);
    grammar_unref(g);
}

/* B-071: states of one grammar are independent; B-059: the second compile comes from the cache */
static void test_b071_states_and_cache(void **state)
{
    (void)state;
    const char *text = "root ::= \"a\" [b-d]* \"e\"";
    struct grammar *g = compiled(GRAMMAR_EBNF, text), *again = compiled(GRAMMAR_EBNF, text);
    struct grammar_state *s[3];
    struct grammar_stats st;
    assert_ptr_equal(g, again);
    grammar_stats_get(g, &st);
    assert_true(st.from_cache);
    grammar_unref(again);
    for (int i = 0; i < 2; i++) assert_int_equal(grammar_state_open(&s[i], g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept(s[0], 'a', &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept(s[0], 'b', &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept(s[1], 'b', &rig_err), MB_INVALID);
    assert_int_equal(grammar_state_clone(&s[2], s[0], &rig_err), MB_OK);
    grammar_unref(g); /* states hold it */
    assert_int_equal(grammar_state_accept(s[2], 'e', &rig_err), MB_OK);
    assert_true(grammar_state_is_complete(s[2]));
    assert_false(grammar_state_is_complete(s[0]));
    grammar_state_close(s[1]);
    assert_int_equal(grammar_state_accept(s[0], 'd', &rig_err), MB_OK);
    grammar_state_close(s[0]);
    grammar_state_close(s[2]);
}

/* A small ceiling: tables are collected while texts run on, and nothing changes for them. */
static void test_collection(void **state)
{
    (void)state;
    static const char text[] = "root ::= \"[\" (root (\",\" root)*)? \"]\" | [a-z]+";
    struct grammar_source src = { GRAMMAR_EBNF, text, sizeof text - 1, true, NULL, NULL };
    struct grammar_limits limits = { .max_machine_bytes = 300000 };
    struct grammar *g;
    struct grammar_state *s, *other;
    struct grammar_stats st;
    uint32_t bits[RIG_N / 32 + 1];
    assert_int_equal(grammar_compile_limited(&g, vocab, &src, &limits, &rig_err), MB_OK);
    assert_int_equal(grammar_state_open(&s, g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_open(&other, g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_accept_bytes(other, "[[a", 3, &rig_err), MB_OK);
    for (int i = 0; i < 1500; i++) {
        assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_OK);
        assert_int_equal(grammar_state_accept(s, '[', &rig_err), MB_OK);
    }
    for (int i = 0; i < 1500; i++) assert_int_equal(grammar_state_accept(s, ']', &rig_err), MB_OK);
    assert_true(grammar_state_must_end(s));
    assert_int_equal(grammar_state_accept_bytes(other, "b,cd]]", 6, &rig_err), MB_OK);
    assert_true(grammar_state_must_end(other));
    grammar_stats_get(g, &st);
    assert_true(st.n_collections > 0);
    assert_true(st.bytes_held < 900000);
    grammar_state_close(s);
    grammar_state_close(other);
    grammar_unref(g);
}

static void test_limits(void **state)
{
    (void)state;
    static const char text[] = "root ::= x*\nx ::= [a-z] x | [a-z] x [a-z] | [a-z]";
    struct grammar_source src = { GRAMMAR_EBNF, text, sizeof text - 1, true, NULL, NULL };
    struct grammar_limits steps = { .max_mask_steps = 50 };
    struct grammar *g;
    struct grammar_state *s;
    uint32_t bits[RIG_N / 32 + 1];
    assert_int_equal(grammar_compile_limited(&g, vocab, &src, &steps, &rig_err), MB_OK);
    assert_int_equal(grammar_state_open(&s, g, &rig_err), MB_OK);
    assert_int_equal(grammar_state_mask(s, bits, RIG_N, &rig_err), MB_TOO_LARGE);
    assert_non_null(strstr(rig_err.text, "steps"));
    grammar_state_close(s);
    grammar_unref(g);
}

static bool stop_after(void *ctx)
{
    return --*(int *)ctx < 0;
}

/* B-043: a compile that nobody waits for ends soon, leaves nothing behind, and the same text compiles later. */
static void test_b043_stopped_compile(void **state)
{
    (void)state;
    static const char text[] = "(a|b)*a(a|b){13}";
    int asked = 0, enough = 1000000;
    struct grammar_source src = { GRAMMAR_REGEX, text, sizeof text - 1, true, stop_after, &enough };
    struct grammar *g;
    assert_int_equal(grammar_compile(&g, vocab, &src, &rig_err), MB_OK);
    int n_questions = 1000000 - enough;
    assert_true(n_questions > 3); /* it is asked while it works, not only at the end */
    grammar_unref(g);
    static const char other[] = "(a|b)*a(a|b){13}c";
    src = (struct grammar_source){ GRAMMAR_REGEX, other, sizeof other - 1, true, stop_after, &asked };
    assert_int_equal(grammar_compile(&g, vocab, &src, &rig_err), MB_CANCELLED);
    assert_null(g);
    assert_int_equal(asked, -1); /* and not once more */
    src.stopped = NULL;
    assert_int_equal(grammar_compile(&g, vocab, &src, &rig_err), MB_OK);
    grammar_unref(g);
}

static int set_up(void **state)
{
    (void)state;
    vocab = rig_vocab();
    return vocab ? 0 : 1;
}

static int tear_down(void **state)
{
    (void)state;
    grammar_vocab_close(vocab);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b062_regex), cmocka_unit_test(test_b062_regex_refused), cmocka_unit_test(test_ebnf_languages),
        cmocka_unit_test(test_ebnf_refused), cmocka_unit_test(test_choice), cmocka_unit_test(test_named_tokens),
        cmocka_unit_test(test_masks_agree_with_accept), cmocka_unit_test(test_forced),
        cmocka_unit_test(test_b071_states_and_cache), cmocka_unit_test(test_collection), cmocka_unit_test(test_limits), cmocka_unit_test(test_b043_stopped_compile),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
