/* test_gguf.c: GGUF headers that lie, files cut at every byte, and what the import refuses by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/filemap.h"
#include "convert/convert.h"
#include "format/gguf.h"

/* --- a GGUF under construction --- */

static void put(struct buf *b, const void *p, size_t len) { buf_append(b, p, len); }
static void put32(struct buf *b, uint32_t v) { put(b, &v, 4); }
static void put64(struct buf *b, uint64_t v) { put(b, &v, 8); }

static void put_str(struct buf *b, const char *s)
{
    put64(b, strlen(s));
    put(b, s, strlen(s));
}

static void head(struct buf *b, uint64_t n_tensors, uint64_t n_values)
{
    buf_init(b, 0);
    put(b, "GGUF", 4);
    put32(b, 3);
    put64(b, n_tensors);
    put64(b, n_values);
}

static void put_u32_value(struct buf *b, const char *key, uint32_t v)
{
    put_str(b, key);
    put32(b, GGUF_U32);
    put32(b, v);
}

static void put_str_value(struct buf *b, const char *key, const char *v)
{
    put_str(b, key);
    put32(b, GGUF_STRING);
    put_str(b, v);
}

static void put_tensor(struct buf *b, const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t off)
{
    put_str(b, name);
    put32(b, 2);
    put64(b, ne0);
    put64(b, ne1);
    put32(b, type);
    put64(b, off);
}

static void pad(struct buf *b, size_t extra)
{
    while (b->len % 32) buf_append_char(b, 0);
    while (extra--) buf_append_char(b, 0);
}

static void refuse(struct buf *b, mb_status code, const char *text)
{
    struct gguf *g = (struct gguf *)b;
    mb_error err = { 0 };
    uint8_t *exact = malloc(b->len ? b->len : 1); /* so that a sanitizer sees one byte too far */
    memcpy(exact, b->data, b->len);
    mb_status st = gguf_parse(&g, exact, b->len, "t.gguf", &err);
    if (st != code || !strstr(err.text, text)) print_message("wanted '%s': %d %s\n", text, st, err.text);
    assert_int_equal(st, code);
    assert_null(g);
    assert_non_null(strstr(err.text, text));
    assert_non_null(strstr(err.text, "t.gguf"));
    free(exact);
    buf_free(b);
}

/* Two tensors, three values. */
static void sample(struct buf *b)
{
    head(b, 2, 4);
    put_u32_value(b, "general.alignment", 32);
    put_str_value(b, "general.architecture", "llama");
    put_str(b, "list");
    put32(b, GGUF_ARRAY);
    put32(b, GGUF_STRING);
    put64(b, 2);
    put_str(b, "one");
    put_str(b, "");
    put_str(b, "f");
    put32(b, GGUF_F32);
    float f = 0.5f;
    put(b, &f, 4);
    put_tensor(b, "b", GGUF_T_Q4_0, 64, 2, 32);
    put_tensor(b, "a", GGUF_T_F32, 2, 1, 0);
    pad(b, 32 + 72);
}

static void test_reads_a_good_file(void **state)
{
    (void)state;
    struct buf b;
    struct gguf *g;
    mb_error err = { 0 };
    int64_t n;
    double f;
    struct str s;
    sample(&b);
    assert_int_equal(gguf_parse(&g, (uint8_t *)b.data, b.len, "t.gguf", &err), MB_OK);
    assert_int_equal(gguf_n_values(g), 4);
    assert_int_equal(gguf_n_tensors(g), 2);
    assert_int_equal(gguf_get_int(g, "general.alignment", 0, &n, &err), MB_OK);
    assert_int_equal(n, 32);
    assert_int_equal(gguf_get_int(g, "absent", -5, &n, &err), MB_OK);
    assert_int_equal(n, -5);
    assert_int_equal(gguf_get_int(g, "f", 0, &n, &err), MB_BAD_FORMAT);
    assert_int_equal(gguf_get_float(g, "f", 0, &f, &err), MB_OK);
    assert_true(f == 0.5);
    assert_int_equal(gguf_get_string(g, "general.architecture", &s, &err), MB_OK);
    assert_true(str_eq(s, STR_LIT("llama")));
    const struct gguf_value *list = gguf_find(g, "list");
    size_t off = 0;
    assert_true(gguf_item_next(list, &off, &s) && str_eq(s, STR_LIT("one")));
    assert_true(gguf_item_next(list, &off, &s) && s.len == 0);
    assert_false(gguf_item_next(list, &off, &s));
    const struct gguf_tensor *t = gguf_tensor_find(g, "b");
    assert_int_equal(t->size_bytes, 72);
    assert_ptr_equal(t->data, b.data + b.len - 72);
    assert_null(gguf_tensor_find(g, "c"));
    assert_string_equal(gguf_tensor_at(g, 1)->name, "a");
    gguf_close(g);
    buf_free(&b);
}

static void test_cut_at_every_byte(void **state)
{
    (void)state;
    struct buf b;
    sample(&b);
    for (size_t len = 0; len < b.len; len++) {
        struct gguf *g;
        mb_error err = { 0 };
        uint8_t *exact = malloc(len ? len : 1);
        memcpy(exact, b.data, len);
        assert_int_equal(gguf_parse(&g, exact, len, "t.gguf", &err), MB_BAD_FORMAT);
        assert_null(g);
        assert_true(len < 4 || strstr(err.text, "incomplete") || strstr(err.text, "in a file of"));
        free(exact);
    }
    buf_free(&b);
}

static void test_headers_that_lie(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    put(&b, "GGML\3\0\0\0", 8);
    refuse(&b, MB_BAD_FORMAT, "not a GGUF file");
    buf_init(&b, 0);
    put(&b, "GGUF\0\0\0\3", 8);
    refuse(&b, MB_UNSUPPORTED, "big-endian");
    buf_init(&b, 0);
    put(&b, "GGUF\1\0\0\0", 8);
    refuse(&b, MB_UNSUPPORTED, "version 1");
    head(&b, 0, UINT64_MAX);
    refuse(&b, MB_BAD_FORMAT, "metadata entries");
    head(&b, (uint64_t)1 << 40, 0);
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "tensors in a file");
}

static void test_values_that_lie(void **state)
{
    (void)state;
    struct buf b;
    head(&b, 0, 1);
    put64(&b, UINT64_MAX - 3); /* key length */
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "a key");
    head(&b, 0, 1);
    put_str(&b, "");
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "must have 1 to");
    head(&b, 0, 1);
    put_str(&b, "k");
    put32(&b, 13);
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "unknown value type 13");
    head(&b, 0, 1);
    put_str(&b, "k");
    put32(&b, GGUF_ARRAY);
    put32(&b, GGUF_U64);
    put64(&b, (uint64_t)1 << 61); /* times 8 is 2^64 */
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "an array");
    head(&b, 0, 1);
    put_str(&b, "k");
    put32(&b, GGUF_ARRAY);
    put32(&b, GGUF_ARRAY);
    put64(&b, 1);
    pad(&b, 64);
    refuse(&b, MB_UNSUPPORTED, "array of arrays");
    head(&b, 0, 2);
    put_u32_value(&b, "k", 1);
    put_u32_value(&b, "k", 1);
    refuse(&b, MB_BAD_FORMAT, "the key k stands there twice");
    head(&b, 0, 1);
    put_u32_value(&b, "general.alignment", 24);
    refuse(&b, MB_BAD_FORMAT, "power of two");
    head(&b, 0, 1);
    put_u32_value(&b, "split.count", 3);
    refuse(&b, MB_UNSUPPORTED, "one of 3 parts");
}

static void one_tensor(uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t off, mb_status code, const char *text)
{
    struct buf b;
    head(&b, 1, 0);
    put_tensor(&b, "w", type, ne0, ne1, off);
    pad(&b, 64);
    refuse(&b, code, text);
}

static void test_tensors_that_lie(void **state)
{
    (void)state;
    struct buf b;
    one_tensor(GGUF_T_F32, (uint64_t)1 << 33, (uint64_t)1 << 33, 0, MB_BAD_FORMAT, "w: its shape is too large");
    one_tensor(GGUF_T_F32, UINT64_MAX, 1, 0, MB_BAD_FORMAT, "w: negative size");
    one_tensor(GGUF_T_F32, 16, 1, UINT64_MAX - 31, MB_BAD_FORMAT, "w: negative offset");
    one_tensor(GGUF_T_F32, 16, 1, (uint64_t)1 << 62, MB_BAD_FORMAT, "incomplete");
    one_tensor(GGUF_T_F32, 16, 1, 4, MB_BAD_FORMAT, "not aligned to 32");
    one_tensor(GGUF_T_F32, 16, 2, 0, MB_BAD_FORMAT, "incomplete: have");
    one_tensor(GGUF_T_Q4_0, 33, 1, 0, MB_BAD_FORMAT, "no multiple of the 32");
    one_tensor(GGUF_T_Q6_K, 128, 1, 0, MB_BAD_FORMAT, "no multiple of the 256");
    one_tensor(99, 32, 1, 0, MB_UNSUPPORTED, "unknown type number 99");
    head(&b, 1, 0);
    put_str(&b, "w");
    put32(&b, 5);
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "5 dimensions");
    head(&b, 2, 0);
    put_tensor(&b, "v", GGUF_T_F32, 16, 1, 0);
    put_tensor(&b, "w", GGUF_T_F32, 8, 1, 32);
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "v and w overlap");
    head(&b, 2, 0);
    put_tensor(&b, "w", GGUF_T_F32, 8, 1, 0);
    put_tensor(&b, "w", GGUF_T_F32, 8, 1, 32);
    pad(&b, 64);
    refuse(&b, MB_BAD_FORMAT, "the tensor w stands there twice");
}

/* --- the import's refusals --- */

static void refuse_import(struct buf *b, mb_status code, const char *text)
{
    char path[] = "/tmp/mb-gguf-XXXXXX", out[64];
    int fd = mkstemp(path);
    mb_error err = { 0 };
    assert_true(fd >= 0);
    assert_int_equal(write(fd, b->data, b->len), (ssize_t)b->len);
    close(fd);
    snprintf(out, sizeof out, "%s.d", path);
    mb_status st = convert_gguf(path, out, NULL, &err);
    if (st != code || !strstr(err.text, text)) print_message("wanted '%s': %d %s\n", text, st, err.text);
    assert_int_equal(st, code);
    assert_non_null(strstr(err.text, text));
    assert_false(dir_exists(out));
    unlink(path);
    buf_free(b);
}

static void sizes(struct buf *b, const char *arch)
{
    static const struct {
        const char *rest;
        uint32_t v;
    } rows[] = { { "block_count", 1 }, { "embedding_length", 32 }, { "feed_forward_length", 32 }, { "context_length", 64 },
                 { "attention.head_count", 2 } };
    char key[64];
    put_str_value(b, "general.architecture", arch);
    for (size_t i = 0; i < 5; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, rows[i].rest);
        put_u32_value(b, key, rows[i].v);
    }
}

static void test_import_refuses_by_name(void **state)
{
    (void)state;
    struct buf b;
    head(&b, 0, 0);
    refuse_import(&b, MB_BAD_FORMAT, "general.architecture is missing");
    head(&b, 0, 1);
    put_str_value(&b, "general.architecture", "mamba");
    refuse_import(&b, MB_UNSUPPORTED, "architecture mamba");
    head(&b, 0, 1);
    put_str_value(&b, "general.architecture", "llama");
    refuse_import(&b, MB_BAD_FORMAT, "llama.block_count is missing");
    head(&b, 0, 7);
    sizes(&b, "llama");
    put_u32_value(&b, "llama.expert_count", 8);
    refuse_import(&b, MB_UNSUPPORTED, "mixture of 8 experts");
    head(&b, 0, 6);
    sizes(&b, "llama");
    refuse_import(&b, MB_BAD_FORMAT, "token_embd.weight is missing");
    head(&b, 1, 6);
    sizes(&b, "llama");
    put_tensor(&b, "token_embd.weight", 23 /* IQ4_XS */, 256, 1, 0);
    pad(&b, 136);
    refuse_import(&b, MB_UNSUPPORTED, "token_embd.weight is of type IQ4_XS");
    head(&b, 2, 6);
    sizes(&b, "qwen2");
    put_tensor(&b, "token_embd.weight", GGUF_T_F32, 32, 1, 0);
    put_tensor(&b, "blk.0.ssm_in.weight", GGUF_T_F32, 32, 1, 128);
    pad(&b, 256);
    refuse_import(&b, MB_UNSUPPORTED, "blk.0.ssm_in.weight has no place");
    head(&b, 2, 6);
    sizes(&b, "llama");
    put_tensor(&b, "token_embd.weight", GGUF_T_F32, 32, 1, 0);
    put_tensor(&b, "blk.0.attn_q.weight", GGUF_T_F32, 32, 1, 128);
    pad(&b, 256);
    refuse_import(&b, MB_BAD_FORMAT, "blk.0.attn_q.weight has 1 rows, 2 heads of 16");
    head(&b, 1, 6);
    sizes(&b, "llama");
    put_tensor(&b, "token_embd.weight", GGUF_T_F32, 32, 1, 0);
    pad(&b, 128);
    refuse_import(&b, MB_BAD_FORMAT, "no vocabulary");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_a_good_file), cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(test_headers_that_lie),  cmocka_unit_test(test_values_that_lie),
        cmocka_unit_test(test_tensors_that_lie),  cmocka_unit_test(test_import_refuses_by_name),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
