/* test_tokenizer_cache.c: a tokenizer from its image is the one that was parsed; changed files, damaged images and unusable
 * folders mean parsing; an image that passes its checksum by malice leads no reader astray. Also the ceiling of tokens. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

#include "base/filemap.h"
#include "tokenizer/tokenizer.h"

#define GOLDEN "tests/golden/tokenizer/"
#define CHECKED_FROM 40 /* image.c: the checksum is the eight bytes before */

static char root[64];

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/mlx-bun-tok-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void copy_file(const char *from, const char *to)
{
    struct buf b;
    mb_error err;
    buf_init(&b, 0);
    if (file_read(&b, from, 1 << 24, &err) != MB_OK || file_write_atomic(to, b.data, b.len, &err) != MB_OK) fail_msg("%s", err.text);
    buf_free(&b);
}

/* A model directory of our own with the tokenizer of a golden family. */
static void make_dir(char dir[256], const char *name, const char *family)
{
    char from[256], to[300];
    snprintf(dir, 256, "%s/%s", root, name);
    mkdir(dir, 0755);
    snprintf(from, sizeof from, GOLDEN "%s/tokenizer.json", family);
    snprintf(to, sizeof to, "%s/tokenizer.json", dir);
    copy_file(from, to);
}

static struct tokenizer *open_cached(const char *dir, const char *cache)
{
    struct tokenizer *t;
    mb_error err;
    if (tokenizer_open_cached(&t, dir, cache, &err) != MB_OK) fail_msg("%s", err.text);
    return t;
}

/* Path of the one image; false: none. */
static bool find_image(const char *cache, char path[600])
{
    char folder[256];
    bool found = false;
    snprintf(folder, sizeof folder, "%s/tokenizer", cache);
    DIR *d = opendir(folder);
    if (!d) return false;
    for (struct dirent *e; (e = readdir(d));)
        if (strstr(e->d_name, ".bin")) {
            snprintf(path, 600, "%s/%s", folder, e->d_name);
            found = true;
        }
    closedir(d);
    return found;
}

static const char sample[] = "<s>Hello <|im_start|>user\n  it's 1234 \xC3\xA9\xE4\xB8\xAD\xE6\x96\x87 words, words!\r\n\tif (x) { return; }</s> \xF0\x9F\x99\x82";

static void check_same(const struct tokenizer *a, const struct tokenizer *b)
{
    struct arena mem;
    struct token_list x, y;
    struct encode_opts o = { .add_special_tokens = true, .want_ends = true };
    mb_error err;
    arena_init(&mem, 0);
    assert_int_equal(tokenizer_encode(a, &mem, sample, sizeof sample - 1, &o, &x, &err), MB_OK);
    assert_int_equal(tokenizer_encode(b, &mem, sample, sizeof sample - 1, &o, &y, &err), MB_OK);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.ids, y.ids, x.n * sizeof *x.ids);
    assert_memory_equal(x.ends, y.ends, x.n * sizeof *x.ends);
    arena_free(&mem);
    assert_int_equal(tokenizer_n_vocab(a), tokenizer_n_vocab(b));
    assert_int_equal(tokenizer_bos_id(a), tokenizer_bos_id(b));
    assert_string_equal(tokenizer_eos_text(a), tokenizer_eos_text(b));
    for (int32_t id = 0; id < tokenizer_n_vocab(a); id++) {
        size_t n = 0, m = 0;
        const char *p = tokenizer_piece(a, id, &n), *q = tokenizer_piece(b, id, &m);
        assert_int_equal(tokenizer_is_special(a, id), tokenizer_is_special(b, id));
        assert_int_equal(!p, !q);
        assert_int_equal(n, m);
        if (!p) continue;
        assert_memory_equal(p, q, n);
        assert_int_equal(tokenizer_id(a, p, n), tokenizer_id(b, q, m));
        struct buf s, t;
        buf_init(&s, 0);
        buf_init(&t, 0);
        tokenizer_token_bytes(a, id, false, &s);
        tokenizer_token_bytes(b, id, false, &t);
        assert_int_equal(s.len, t.len);
        if (s.len) assert_memory_equal(s.data, t.data, s.len);
        buf_free(&s);
        buf_free(&t);
    }
}

static void test_every_family_comes_back_from_its_image(void **state)
{
    DIR *d = opendir(GOLDEN);
    char cache[128], path[600];
    (void)state;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char dir[256];
        if (strchr(e->d_name, '.')) continue;
        make_dir(dir, e->d_name, e->d_name);
        snprintf(cache, sizeof cache, "%s/c-%.60s", root, e->d_name);
        struct tokenizer *parsed = open_cached(dir, NULL), *first = open_cached(dir, cache);
        assert_true(find_image(cache, path));
        struct stat before, after;
        assert_int_equal(stat(path, &before), 0);
        struct tokenizer *mapped = open_cached(dir, cache);
        assert_int_equal(stat(path, &after), 0);
        assert_int_equal(before.st_ino, after.st_ino); /* it was not written again */
        check_same(parsed, first);
        check_same(parsed, mapped);
        tokenizer_close(parsed);
        tokenizer_close(first);
        tokenizer_close(mapped);
    }
    closedir(d);
}

static void test_changed_files_are_parsed_again(void **state)
{
    char dir[256], cache[128], path[600], to[300];
    struct stat before, after;
    (void)state;
    make_dir(dir, "changing", "smollm2");
    snprintf(cache, sizeof cache, "%s/c-changing", root);
    tokenizer_close(open_cached(dir, cache));
    assert_true(find_image(cache, path));
    assert_int_equal(stat(path, &before), 0);
    snprintf(to, sizeof to, "%s/tokenizer.json", dir);
    copy_file(GOLDEN "qwen2/tokenizer.json", to);
    struct tokenizer *t = open_cached(dir, cache), *want = open_cached(GOLDEN "qwen2", NULL);
    check_same(want, t);
    assert_int_equal(stat(path, &after), 0);
    assert_int_not_equal(before.st_ino, after.st_ino);
    tokenizer_close(t);
    snprintf(to, sizeof to, "%s/tokenizer_config.json", dir); /* a file that was not there counts too */
    assert_int_equal(file_write_atomic(to, "{\"eos_token\":\"<|im_end|>\"}", 26, NULL), MB_OK);
    t = open_cached(dir, cache);
    assert_string_equal(tokenizer_eos_text(t), "<|im_end|>");
    tokenizer_close(t);
    tokenizer_close(want);
}

static void test_unusable_cache_folders_do_no_harm(void **state)
{
    char file[128];
    (void)state;
    snprintf(file, sizeof file, "%s/a-file", root);
    assert_int_equal(file_write_atomic(file, "x", 1, NULL), MB_OK);
    struct tokenizer *want = open_cached(GOLDEN "smollm2", NULL), *a = open_cached(GOLDEN "smollm2", file), *b = open_cached(GOLDEN "smollm2", "");
    check_same(want, a);
    check_same(want, b);
    tokenizer_close(want);
    tokenizer_close(a);
    tokenizer_close(b);
    struct tokenizer *t;
    mb_error err;
    assert_int_equal(tokenizer_open_cached(&t, "/nowhere/at/all", root, &err), MB_NOT_FOUND);
    assert_null(t);
}

/* At most sixteen images: the folder does not grow without end. */
static void test_old_images_go(void **state)
{
    char dir[256], cache[128], folder[256];
    size_t n = 0;
    (void)state;
    snprintf(cache, sizeof cache, "%s/c-many", root);
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof name, "many-%d", i);
        make_dir(dir, name, "byte_norm");
        tokenizer_close(open_cached(dir, cache));
    }
    snprintf(folder, sizeof folder, "%s/tokenizer", cache);
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, 16);
}

/* As image.c: the hash of each 64 KiB, seeded with that of those before. */
static uint64_t checksum_of(const char *data, size_t n)
{
    uint64_t h = 0;
    for (size_t first = CHECKED_FROM, end; first < n; first = end) {
        end = (first / 65536 + 1) * 65536;
        if (end > n) end = n;
        h = XXH3_64bits_withSeed(data + first, end - first, h);
    }
    return h;
}

/* Flip bytes; with `fix` the checksum is made right again, so that the checks behind it are what stands. */
static void damage(const char *path, const struct buf *good, uint32_t *seed, bool fix)
{
    char *copy = malloc(good->len);
    memcpy(copy, good->data, good->len);
    *seed = *seed * 1664525u + 1013904223u;
    size_t n = 1 + (*seed >> 24) % 6;
    for (size_t i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        size_t span = *seed & 1 ? 640 : good->len - CHECKED_FROM; /* the head and the scalars more often */
        copy[CHECKED_FROM + ((uint64_t)*seed * 2654435761u >> 7) % (span < good->len - CHECKED_FROM ? span : good->len - CHECKED_FROM)] ^= (char)(*seed >> 16 | 1);
    }
    if (fix) {
        uint64_t sum = checksum_of(copy, good->len);
        memcpy(copy + CHECKED_FROM - 8, &sum, 8);
    }
    size_t len = !fix && n == 3 ? good->len / 2 : good->len;
    assert_int_equal(file_write_replace(path, copy, len, NULL), MB_OK);
    free(copy);
}

static void use(const struct tokenizer *t)
{
    struct arena mem;
    struct token_list l;
    struct encode_opts o = { .add_special_tokens = true, .want_ends = true };
    struct buf text;
    arena_init(&mem, 1 << 22);
    buf_init(&text, 1 << 20);
    if (tokenizer_encode(t, &mem, sample, sizeof sample - 1, &o, &l, NULL) == MB_OK) tokenizer_decode(t, l.ids, l.n, false, &text, NULL);
    for (int32_t id = -1; id < tokenizer_n_vocab(t) + 1; id += 7) {
        size_t n;
        const char *p = tokenizer_piece(t, id, &n);
        if (p) tokenizer_id(t, p, n);
    }
    buf_free(&text);
    arena_free(&mem);
}

static void damaged_images(const char *family, int n_rounds)
{
    char dir[256], cache[128], path[600];
    struct buf good;
    uint32_t seed = 7;
    mb_error err;
    make_dir(dir, "damaged", family);
    snprintf(cache, sizeof cache, "%s/c-damaged-%s", root, family);
    tokenizer_close(open_cached(dir, cache));
    assert_true(find_image(cache, path));
    buf_init(&good, 0);
    assert_int_equal(file_read(&good, path, 1 << 26, &err), MB_OK);
    struct tokenizer *want = open_cached(dir, NULL);
    for (int i = 0; i < n_rounds; i++) {
        damage(path, &good, &seed, i % 4 != 0);
        struct tokenizer *t = open_cached(dir, cache);
        if (i % 4 == 0) check_same(want, t); /* the checksum is wrong: parsed */
        else use(t);
        tokenizer_close(t);
    }
    tokenizer_close(want);
    buf_free(&good);
}

static void test_damaged_images_are_not_believed(void **state)
{
    (void)state;
    damaged_images("smollm2", 300);
    damaged_images("spm_first", 300);
    damaged_images("unigram_t5", 300);
    damaged_images("wordpiece_bert", 300);
}

/* --- the ceiling of tokens --- */

static mb_status encode_up_to(const struct tokenizer *t, const char *text, size_t len, size_t most, struct token_list *l, mb_error *err)
{
    struct arena mem;
    struct encode_opts o = { .max_tokens = most };
    arena_init(&mem, 0);
    mb_status st = tokenizer_encode(t, &mem, text, len, &o, l, err);
    arena_free(&mem);
    return st;
}

static void test_a_text_of_too_many_tokens_is_refused_early(void **state)
{
    static const char *const families[] = { "smollm2", "qwen2", "gemma3", "spm_first", "bert_cased", "nmt_delim", "unigram_xlmr", "unigram_bytes",
                                            "wordpiece_bert", "wordlevel" };
    size_t len = 1 << 20;
    char *text = malloc(len);
    (void)state;
    for (size_t i = 0; i < len; i++) text[i] = "ab cde, 12 \n"[i % 12];
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        char dir[128];
        struct token_list l;
        mb_error err;
        snprintf(dir, sizeof dir, GOLDEN "%s", families[i]);
        struct tokenizer *t = open_cached(dir, NULL);
        assert_int_equal(encode_up_to(t, text, len, 100, &l, &err), MB_TOO_LARGE);
        assert_true(l.over_limit);
        assert_non_null(strstr(err.text, "more than 100 tokens"));
        assert_int_equal(encode_up_to(t, text, 1200, 0, &l, &err), MB_OK);
        size_t n = l.n;
        assert_int_equal(encode_up_to(t, text, 1200, n, &l, &err), MB_OK); /* exactly as many are allowed */
        assert_false(l.over_limit);
        assert_int_equal(l.n, n);
        assert_int_equal(encode_up_to(t, text, 1200, n - 1, &l, &err), MB_TOO_LARGE);
        assert_true(l.over_limit);
        tokenizer_close(t);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_family_comes_back_from_its_image),
        cmocka_unit_test(test_changed_files_are_parsed_again),
        cmocka_unit_test(test_unusable_cache_folders_do_no_harm),
        cmocka_unit_test(test_old_images_go),
        cmocka_unit_test(test_damaged_images_are_not_believed),
        cmocka_unit_test(test_a_text_of_too_many_tokens_is_refused_early),
    };
    return cmocka_run_group_tests(tests, make_root, drop_root);
}
