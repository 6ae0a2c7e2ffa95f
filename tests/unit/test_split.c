/* test_split.c: the splitter of reasoning and the search for stop strings by themselves, in every split of the text (through the engine:
 * test_deliver.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/buf.h"
#include "chat/reasoning.h"
#include "gen/stop.h"

/* --- the splitter alone --- */
struct split_out { char text[2][256]; };

static void on_split(void *ctx, bool is_reasoning, const char *text, size_t len)
{
    struct split_out *o = ctx;
    strncat(o->text[is_reasoning], text, len);
}

static void split(const struct reasoning_tags *tags, const char *text, bool inside, unsigned cuts, struct split_out *out)
{
    size_t n = strlen(text), from = 0;
    struct reasoning r;
    memset(out, 0, sizeof *out);
    reasoning_init(&r, tags, true, inside, on_split, out);
    for (size_t i = 1; i <= n; i++) {
        if (i < n && !(cuts >> (i % 31) & 1)) continue;
        reasoning_text(&r, text + from, i - from);
        from = i;
    }
    reasoning_finish(&r);
    assert_int_equal(reasoning_status(&r), MB_OK);
    reasoning_free(&r);
}

static void check_tags(const struct reasoning_tags *tags, const char *text, bool inside, const char *reasoning, const char *content)
{
    struct split_out o;
    size_t n = strlen(text);
    for (unsigned k = 0; k < 2000; k++) {
        unsigned cuts = k == 0 ? 0 : k == 1 ? ~0u : k < n + 2 && k < 32 ? 1u << (k - 1) : (unsigned)rand();
        split(tags, text, inside, cuts, &o);
        if (strcmp(o.text[1], reasoning) != 0 || strcmp(o.text[0], content) != 0)
            fail_msg("\"%s\" cuts %x: reasoning \"%s\" content \"%s\"", text, cuts, o.text[1], o.text[0]);
    }
}

static void check_split(const char *text, bool inside, const char *reasoning, const char *content)
{
    size_t n;
    check_tags(reasoning_tags_all(&n), text, inside, reasoning, content);
}

static bool knows_channel(void *ctx, const char *text)
{
    (void)ctx;
    return strcmp(text, "<|channel>") == 0 || strcmp(text, "<channel|>") == 0;
}

/* Gemma 4's channel: its name goes with the opening tag, whole or not at all. */
static void test_b143_named_channel(void **state)
{
    (void)state;
    bool named;
    const struct reasoning_tags *t = reasoning_tags_pick("{{ '<|turn>' }}", knows_channel, NULL, &named);
    assert_true(named);
    assert_string_equal(t->close, "<channel|>");
    check_tags(t, "<|channel>thought\nwhy\n<channel|>so", false, "why", "so");
    check_tags(t, "<|channel>thought\n<channel|>so", false, "", "so");
    check_tags(t, "<|channel>thoughts<channel|>so", false, "s", "so");
    check_tags(t, "<|channel>thorough<channel|>so", false, "thorough", "so");
    check_tags(t, "<|channel>tho<channel|>so", false, "tho", "so");
    check_tags(t, "<|channel>thou", false, "thou", "");
    check_tags(t, "thought a<channel|>b", true, "thought a", "b");       /* the prompt opened, name and all */
    check_tags(t, "<|channel>thought\na<channel|>b<|channel>thought c<channel|>", true, "a c", "b");
    check_tags(t, "<channel|>a `<|channel>thought`", false, "", "<channel|>a `<|channel>thought`");
    assert_true(reasoning_is_closed(t, "<|channel>thought\n<channel|>", 28));
}

/* B-143, B-142 */
static void test_b143_reasoning_rule(void **state)
{
    (void)state;
    check_split("<think>a</think>b", false, "a", "b");
    check_split("a</think>b<think>c</think>d", true, "ac", "bd");       /* the prompt opened */
    check_split("a</think>b<think>c</think>d", false, "c", "a</think>bd"); /* it did not: a lone closing tag is text */
    check_split("<think>a</think>b", true, "a", "b");                   /* repeated opening tag */
    check_split("<think>\none\n</think>\n\ntwo", false, "one", "two");
    check_split("\none\n\ntwo\n</think>x", true, "one\n\ntwo", "x");
    check_split("use `<think>` here", false, "", "use `<think>` here");
    check_split("```\n<think>\n```\nx<think>y", false, "y", "```\n<think>\n```\nx");
    check_split("a < b <thin <think", false, "", "a < b <thin <think");
    check_split("one two", true, "one two", "");
    check_split("one two\n", true, "one two\n", "");
    check_split("<<think>>x</think></think>", false, ">x", "<</think>");
    check_split("a <think> b", true, "a <think> b", "");
    check_split("<think</think>a", true, "<think", "a");
    check_split("</thi</think>a", true, "</thi", "a");
    check_split("", true, "", "");
}

/* --- stop strings alone --- */
static void check_stop(const char *const *stops, int n, const char *text, const char *want, int hit)
{
    size_t len = strlen(text);
    for (unsigned k = 0; k < 500; k++) {
        struct arena a;
        struct stop_set set;
        struct stop_match m;
        struct buf out;
        int32_t got = -1;
        size_t from = 0;
        unsigned cuts = k == 0 ? 0 : k == 1 ? ~0u : (unsigned)rand();
        arena_init(&a, 0);
        buf_init(&out, 0);
        assert_int_equal(stop_set_init(&set, &a, stops, n, NULL), MB_OK);
        assert_int_equal(stop_match_init(&m, &set, &a, NULL), MB_OK);
        for (size_t i = 1; i <= len && got < 0; i++) {
            if (i < len && !(cuts >> (i % 31) & 1)) continue;
            got = stop_push(&m, text + from, i - from, &out);
            from = i;
        }
        if (got < 0) stop_flush(&m, &out);
        buf_append(&out, "", 0);
        if (got != hit || strcmp(out.data ? out.data : "", want) != 0)
            fail_msg("\"%s\" cuts %x: \"%s\", hit %d", text, cuts, out.data ? out.data : "", (int)got);
        stop_match_free(&m);
        buf_free(&out);
        arena_free(&a);
    }
}

/* B-035 */
static void test_b035_stop_every_split(void **state)
{
    (void)state;
    check_stop((const char *[]){ "END OF" }, 1, "the END OF it", "the ", 0);
    check_stop((const char *[]){ "END OF" }, 1, "the ENDING", "the ENDING", -1);
    check_stop((const char *[]){ "aab" }, 1, "aaaab", "aa", 0);
    check_stop((const char *[]){ "abc", "bc", "c" }, 3, "xabc", "x", 0);   /* end together: the longest */
    check_stop((const char *[]){ "abcd", "bc" }, 2, "xabcd", "xa", 1);     /* ends first */
    check_stop((const char *[]){ "\n\n" }, 1, "a\nb\n\nc", "a\nb", 0);
    check_stop((const char *[]){ "\xF0\x9F\x99\x82" }, 1, "hi \xF0\x9F\x99\x82!", "hi ", 0);
    check_stop((const char *[]){ "abab" }, 1, "aababab", "a", 0);
    check_stop((const char *[]){ "zz" }, 1, "zaz", "zaz", -1);
}

static void test_stop_set_refusals(void **state)
{
    (void)state;
    struct arena a;
    struct stop_set set;
    mb_error err = { 0 };
    arena_init(&a, 0);
    assert_int_equal(stop_set_init(&set, &a, (const char *[]){ "" }, 1, &err), MB_INVALID);
    char *big = malloc(STOP_MAX_BYTES + 2);
    memset(big, 'x', STOP_MAX_BYTES + 1);
    big[STOP_MAX_BYTES + 1] = '\0';
    assert_int_equal(stop_set_init(&set, &a, (const char *const *)&big, 1, &err), MB_INVALID);
    free(big);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b143_named_channel),
        cmocka_unit_test(test_b143_reasoning_rule),
        cmocka_unit_test(test_b035_stop_every_split),
        cmocka_unit_test(test_stop_set_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
