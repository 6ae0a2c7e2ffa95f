/* test_tokenizer.c: every family of tests/golden/tokenizer/ against the oracle's ids and texts.
 *
 * Checks per case: ids; ids with the whole text marked as content (the oracle's encode_special_tokens); decode with
 * and without special tokens; the streaming detokeniser gives the same text, whole characters only; `ends` never
 * fall, and end with the text. Where the oracle's decode differs on purpose (decode.c), the case is skipped by rule:
 * invalid UTF-8 under byte fallback (B-040), added tokens of the byte-level alphabet (B-004).
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

#define ROOT "tests/golden/tokenizer"
#ifdef __SANITIZE_ADDRESS__
#define TIME_LIMIT 20.0
#else
#define TIME_LIMIT 1.0 /* seconds of CPU time for one run; 600 KB at most */
#endif

static int n_bad;

static void report(const char *family, const char *what, size_t i, const char *text, size_t len)
{
    if (n_bad++ > 40) return;
    printf("%s: %s: case %zu: ", family, what, i);
    for (size_t k = 0; k < len && k < 80; k++) printf((unsigned char)text[k] < 32 ? "\\x%02x" : "%c", (unsigned char)text[k]);
    printf("\n");
}

static void print_ids(const char *name, const int32_t *ids, size_t n)
{
    if (n_bad > 40) return;
    printf("   %s:", name);
    for (size_t i = 0; i < n && i < 40; i++) printf(" %d", ids[i]);
    printf("\n");
}

static int32_t *ids_of(const json_t *list, size_t *n)
{
    *n = json_array_size(list);
    int32_t *ids = malloc((*n + 1) * sizeof *ids);
    for (size_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

static void check_ids(const struct tokenizer *t, const char *family, size_t i, const json_t *c, bool literal)
{
    const json_t *text = json_object_get(c, "text");
    const char *s = json_string_value(text);
    size_t len = json_string_length(text), n;
    int32_t *want = ids_of(json_object_get(c, literal ? "literal" : "ids"), &n);
    struct text_span whole = { 0, len };
    struct encode_opts o = { .add_special_tokens = !literal && json_is_true(json_object_get(c, "special")),
                             .content = literal ? &whole : NULL, .n_content = literal ? 1 : 0 };
    for (int want_ends = 0; want_ends < 2; want_ends++) {
        struct arena a;
        struct token_list got;
        mb_error err;
        arena_init(&a, 0);
        o.want_ends = want_ends != 0;
        mb_status st = tokenizer_encode(t, &a, s, len, &o, &got, &err);
        if (st != MB_OK) {
            printf("%s\n", err.text);
            report(family, "encode failed", i, s, len);
        } else if (got.n != n || memcmp(got.ids, want, n * sizeof *want) != 0) {
            report(family, literal ? "literal ids differ" : "ids differ", i, s, len);
            print_ids("want", want, n);
            print_ids("got ", got.ids, got.n);
        } else if (want_ends) {
            bool rising = true;
            for (size_t k = 0; k < n; k++) rising &= got.ends[k] <= len && (k == 0 || got.ends[k] >= got.ends[k - 1]);
            if (!rising) report(family, "ends are out of order", i, s, len);
        }
        arena_free(&a);
    }
    free(want);
}

static void stream(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip, struct buf *out, bool *whole)
{
    struct detok d;
    detok_init(&d, t, skip);
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, ids[i], out);
        *whole &= utf8_valid(out->data ? out->data : "", out->len);
    }
    detok_finish(&d, out);
    detok_free(&d);
}

static void check_decode(const struct tokenizer *t, const char *family, size_t i, const json_t *c, bool skip)
{
    size_t n;
    int32_t *ids = ids_of(json_object_get(c, "ids"), &n);
    const json_t *want = json_object_get(c, skip ? "decoded_plain" : "decoded");
    struct buf all, streamed;
    bool whole = true;
    buf_init(&all, 0);
    buf_init(&streamed, 0);
    assert_int_equal(tokenizer_decode(t, ids, n, skip, &all, NULL), MB_OK);
    stream(t, ids, n, skip, &streamed, &whole);
    struct str a = { all.data ? all.data : "", all.len }, b = { streamed.data ? streamed.data : "", streamed.len };
    struct str w = { json_string_value(want), json_string_length(want) };
    if (!str_eq(a, w) && !json_object_get(c, "differs")) {
        report(family, "decode differs, want", i, w.ptr, w.len);
        report(family, "                 got", i, a.ptr, a.len);
    }
    if (!str_eq(a, b)) report(family, "streamed text differs", i, b.ptr, b.len);
    if (!whole || !utf8_valid(a.ptr, a.len)) report(family, "half a character came out", i, a.ptr, a.len);
    buf_free(&all);
    buf_free(&streamed);
    free(ids);
}

/* B-001: a run of 200,000 and more bytes gives the oracle's ids, in time that grows with its length. */
static void check_long_run(const struct tokenizer *t, const char *family, const json_t *c)
{
    const char *unit = json_string_value(json_object_get(c, "unit"));
    size_t len = strlen(unit), count = (size_t)json_integer_value(json_object_get(c, "count"));
    char *text = malloc(len * count), hash[32];
    for (size_t i = 0; i < count; i++) memcpy(text + i * len, unit, len);
    struct arena a;
    struct token_list l;
    uint64_t h = 14695981039346656037u;
    mb_error err;
    arena_init(&a, 0);
    clock_t t0 = clock();
    if (tokenizer_encode(t, &a, text, len * count, NULL, &l, &err) != MB_OK) fail_msg("%s: %s", family, err.text);
    double seconds = (double)(clock() - t0) / CLOCKS_PER_SEC;
    for (size_t i = 0; i < l.n; i++) h = (h ^ (uint32_t)l.ids[i]) * 1099511628211u;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)h);
    if (l.n != (size_t)json_integer_value(json_object_get(c, "n_ids")) ||
        strcmp(hash, json_string_value(json_object_get(c, "hash"))) != 0)
        report(family, "B-001: ids of a long run differ", count, unit, len);
    if (seconds > TIME_LIMIT) report(family, "B-001: a long run took too long", count, unit, len);
    arena_free(&a);
    free(text);
}

static void check_family(const char *family)
{
    char path[512];
    mb_error err;
    struct tokenizer *t = NULL;
    json_t *root = NULL, *c;
    size_t i;
    snprintf(path, sizeof path, ROOT "/%s", family);
    if (tokenizer_open(&t, path, &err) != MB_OK) {
        printf("%s: %s\n", family, err.text);
        n_bad++;
        return;
    }
    snprintf(path, sizeof path, ROOT "/%s/cases.json", family);
    assert_int_equal(json_read_file(&root, path, 64 << 20, &err), MB_OK);
    int before = n_bad;
    json_array_foreach(json_object_get(root, "cases"), i, c) {
        check_ids(t, family, i, c, false);
        if (json_object_get(c, "literal")) check_ids(t, family, i, c, true);
        check_decode(t, family, i, c, false);
        check_decode(t, family, i, c, true);
    }
    json_array_foreach(json_object_get(root, "decode"), i, c) {
        check_decode(t, family, i, c, false);
        check_decode(t, family, i, c, true);
    }
    json_array_foreach(json_object_get(root, "long_runs"), i, c) check_long_run(t, family, c);
    printf("%s: %zu cases, %d bad\n", family, json_array_size(json_object_get(root, "cases")), n_bad - before);
    json_decref(root);
    tokenizer_close(t);
}

static void test_families_equal_the_oracle(void **state)
{
    (void)state;
    DIR *d = opendir(ROOT);
    size_t n = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (strchr(e->d_name, '.')) continue;
        check_family(e->d_name);
        n++;
    }
    closedir(d);
    assert_true(n >= 8);
    assert_int_equal(n_bad, 0);
}

/* --- the rows of the case list, by their own texts --- */

/* Each text is among the family's cases, and its ids are the oracle's. */
static void check_texts(const char *family, const char *const *texts, size_t n_texts)
{
    char path[512];
    mb_error err;
    struct tokenizer *t = NULL;
    json_t *root = NULL, *c;
    int before = n_bad;
    snprintf(path, sizeof path, ROOT "/%s", family);
    if (tokenizer_open(&t, path, &err) != MB_OK) fail_msg("%s: %s", family, err.text);
    snprintf(path, sizeof path, ROOT "/%s/cases.json", family);
    assert_int_equal(json_read_file(&root, path, 64 << 20, &err), MB_OK);
    for (size_t k = 0; k < n_texts; k++) {
        size_t i, n_found = 0;
        json_array_foreach(json_object_get(root, "cases"), i, c) {
            if (strcmp(json_string_value(json_object_get(c, "text")), texts[k]) != 0) continue;
            check_ids(t, family, i, c, false);
            n_found++;
        }
        if (n_found == 0) fail_msg("%s has no case \"%s\"", family, texts[k]);
    }
    json_decref(root);
    tokenizer_close(t);
    assert_int_equal(n_bad, before);
}

/* B-002: split patterns with \p{M} in the class keep combining marks with their letters. */
static void test_b002_combining_marks(void **state)
{
    static const char *const texts[] = { "\u0927\u0928\u094d\u092f\u0935\u093e\u0926", "\u0995\u09b2\u09ae", "e\u0301", "\u0301" };
    check_texts("o200k", texts, 4);
    check_texts("qwen3_5", texts, 4);
}

/* B-005: the word behind a special token, in each prepend scheme and the legacy form. */
static void test_b005_prefix_space(void **state)
{
    static const char *const families[] = { "spm_first", "spm_always", "spm_never", "spm_legacy" };
    static const char *const texts[] = { "<s>Go", "<s> Go", "</s>  Go", " Go", "Go" };
    for (size_t i = 0; i < 4; i++) check_texts(families[i], texts, 5);
}

/* B-007: composed and decomposed accents, by the pattern and normaliser of each file. */
static void test_b007_accents(void **state)
{
    static const char *const families[] = { "gpt2", "llama3", "qwen2", "qwen3_5", "o200k", "smollm2", "starcoder", "deepseek",
                                            "gemma3", "mistral", "phi3", "spm_first", "nfd_wsplit", "nfkd_punct" };
    static const char *const texts[] = { "Cr\u00e8me br\u00fbl\u00e9e \u2116 42 \u2014 \u00bd \U0001f642",
                                         "Cre\u0300me bru\u0302le\u0301e \u2116 42 \u2014 \u00bd \U0001f642" };
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) check_texts(families[i], texts, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_equal_the_oracle),
        cmocka_unit_test(test_b002_combining_marks),
        cmocka_unit_test(test_b005_prefix_space),
        cmocka_unit_test(test_b007_accents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
