/* test_safetensors.c: headers that lie, files that are cut, shards that do not fit (B-109, B-110), and the writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/filemap.h"
#include "base/mem.h"
#include "format/safetensors_write.h"

static char root[] = "/tmp/mb-safetensors-XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

/* A new empty folder. */
static const char *folder(void)
{
    static char dir[64];
    static int n;
    snprintf(dir, sizeof dir, "%s/%d", root, n++);
    assert_int_equal(mkdir(dir, 0755), 0);
    return dir;
}

static void put_file(const char *dir, const char *name, const void *data, size_t len)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/* Length bytes, header text, data bytes. */
static void put_safetensors(const char *dir, const char *name, uint64_t header_len, const char *header, size_t data_bytes)
{
    size_t len = strlen(header);
    char *all = calloc(1, 8 + len + data_bytes + 1);
    assert_non_null(all);
    memcpy(all, &header_len, 8);
    memcpy(all + 8, header, len);
    for (size_t i = 0; i < data_bytes; i++) all[8 + len + i] = (char)i;
    put_file(dir, name, all, 8 + len + data_bytes);
    free(all);
}

static mb_status open_status(const char *dir, mb_error *err)
{
    struct checkpoint *c = (struct checkpoint *)err;
    mb_status st = checkpoint_open(&c, dir, err);
    if (st == MB_OK) checkpoint_close(c);
    else assert_null(c);
    return st;
}

/* The header over data_bytes of data must be refused with a text that holds `text`. */
static void refuse(const char *header, size_t data_bytes, mb_status code, const char *text)
{
    const char *dir = folder();
    mb_error err = { 0 };
    put_safetensors(dir, "model.safetensors", strlen(header), header, data_bytes);
    mb_status st = open_status(dir, &err);
    if (st != code || !strstr(err.text, text)) print_message("%s\n  -> %d %s\n", header, st, err.text);
    assert_int_equal(st, code);
    assert_non_null(strstr(err.text, text));
}

#define ONE(fields) "{\"a.weight\":{" fields "}}"

static void test_b109_header_length(void **state) /* B-109 */
{
    (void)state;
    static const char header[] = ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]");
    uint64_t file_bytes = 8 + sizeof header - 1 + 8;
    const uint64_t lengths[] = { 0, 1, 7, (uint64_t)1 << 63, UINT64_MAX, file_bytes - 8 + 1, file_bytes, 200000000 };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const char *dir = folder();
        mb_error err = { 0 };
        put_safetensors(dir, "model.safetensors", lengths[i], header, 8);
        assert_int_equal(open_status(dir, &err), MB_BAD_FORMAT);
        assert_non_null(strstr(err.text, "model.safetensors"));
    }
    const char *dir = folder();
    mb_error err = { 0 };
    put_safetensors(dir, "model.safetensors", sizeof header - 1, header, 8);
    assert_int_equal(open_status(dir, &err), MB_OK);
    put_file(dir, "model.safetensors", "abc", 3);
    assert_int_equal(open_status(dir, &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "incomplete: have 3"));
}

static void test_b109_offsets(void **state) /* B-109 */
{
    (void)state;
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), 8, MB_BAD_FORMAT, "a.weight: data_offsets are neg");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), 8, MB_BAD_FORMAT, "a.weight: data_offsets are rev");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]"), 8, MB_BAD_FORMAT, "a.weight: data_offsets must be a");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]"), 8, MB_BAD_FORMAT, "list of two");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0.0,8.0]"), 8, MB_BAD_FORMAT, "whole numbers");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,99999999999999999999]"), 8, MB_BAD_FORMAT, "whole numbers");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]"), 8, MB_BAD_FORMAT, "incomplete: have 8 of 16 bytes");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[9223372036854775799,9223372036854775807]"), 8, MB_BAD_FORMAT,
           "a.weight");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2]"), 8, MB_BAD_FORMAT, "a.weight: data_offsets");
}

static void test_b109_shape_and_dtype(void **state) /* B-109 */
{
    (void)state;
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), 8, MB_BAD_FORMAT, "give 12 bytes, data_offsets 8");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[8589934592,8589934592],\"data_offsets\":[0,8]"), 8, MB_BAD_FORMAT, "63 bits");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, MB_BAD_FORMAT, "none negative");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, MB_BAD_FORMAT, "whole numbers");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, MB_BAD_FORMAT, "a.weight: shape");
    refuse(ONE("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), 8, MB_UNSUPPORTED, "9 dimensions");
    refuse(ONE("\"dtype\":\"F4_E2\",\"shape\":[16],\"data_offsets\":[0,8]"), 8, MB_UNSUPPORTED, "dtype F4_E2");
    refuse(ONE("\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]"), 8, MB_BAD_FORMAT, "dtype must be a string");
    refuse("{\"a.weight\":5}", 8, MB_BAD_FORMAT, "a.weight: its entry must be an object");
    refuse("[1,2]", 8, MB_BAD_FORMAT, "not a JSON object");
    refuse("{\"a\":", 8, MB_BAD_FORMAT, "model.safetensors");
    refuse("{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, MB_BAD_FORMAT, "model.safetensors");
    refuse("{\"\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, MB_BAD_FORMAT, "empty name");
    refuse("{\"__metadata__\":{\"a\":1}}", 0, MB_BAD_FORMAT, "__metadata__");
}

#define T(name, n, a, b) "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[" #a "," #b "]}"

static void test_b110_cover(void **state) /* B-110 */
{
    (void)state;
    refuse("{" T("a", 8, 0, 8) "," T("b", 8, 4, 12) "}", 12, MB_BAD_FORMAT, "a and b overlap at byte 4");
    refuse("{" T("a", 8, 0, 8) "," T("b", 8, 0, 8) "}", 8, MB_BAD_FORMAT, "overlap");
    refuse("{" T("a", 8, 0, 8) "," T("b", 8, 16, 24) "}", 24, MB_BAD_FORMAT, "a hole of 8 bytes stands before tensor b");
    refuse("{" T("a", 8, 8, 16) "}", 16, MB_BAD_FORMAT, "a hole of 8 bytes stands before tensor a");
    refuse("{" T("a", 8, 0, 8) "}", 9, MB_BAD_FORMAT, "1 bytes stand behind the last tensor");
    refuse("{" T("a", 8, 0, 8) "," T("a", 8, 8, 16) "}", 16, MB_BAD_FORMAT, "model.safetensors");
    refuse("{" T("a", 8, 0, 8) "," T("b", 8, 8, 16) "}", 15, MB_BAD_FORMAT, "incomplete: have 15 of 16 bytes");
}

static void put_index(const char *dir, const char *map)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":%s}", map);
    put_file(dir, "model.safetensors.index.json", text, strlen(text));
}

static void refuse_index(const char *map, const char *text)
{
    const char *dir = folder();
    mb_error err = { 0 };
    put_safetensors(dir, "m-1.safetensors", strlen("{" T("a", 8, 0, 8) "}"), "{" T("a", 8, 0, 8) "}", 8);
    put_safetensors(dir, "m-2.safetensors", strlen("{" T("b", 8, 0, 8) "}"), "{" T("b", 8, 0, 8) "}", 8);
    put_index(dir, map);
    mb_status st = open_status(dir, &err);
    if (st != MB_BAD_FORMAT || !strstr(err.text, text)) print_message("%s -> %d %s\n", map, st, err.text);
    assert_int_equal(st, MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, text));
}

static void test_b110_shards(void **state) /* B-110 */
{
    (void)state;
    refuse_index("{\"a\":\"m-1.safetensors\",\"b\":\"m-3.safetensors\"}", "shard m-3.safetensors is missing");
    refuse_index("{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}", "wrong shard");
    refuse_index("{\"a\":\"m-1.safetensors\",\"c\":\"m-2.safetensors\"}", "tensor c of the index is missing");
    refuse_index("{\"a\":\"../m-1.safetensors\"}", "same folder");
    refuse_index("{\"a\":5}", "same folder");
    refuse_index("{}", "weight_map is empty");
    refuse_index("5", "weight_map must be an object");
}

static void test_b110_two_files_one_name(void **state) /* B-110 */
{
    (void)state;
    const char *dir = folder();
    mb_error err = { 0 };
    put_safetensors(dir, "x.safetensors", strlen("{" T("a", 8, 0, 8) "}"), "{" T("a", 8, 0, 8) "}", 8);
    put_safetensors(dir, "y.safetensors", strlen("{" T("a", 8, 0, 8) "}"), "{" T("a", 8, 0, 8) "}", 8);
    assert_int_equal(open_status(dir, &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "stands in two files, x.safetensors and y.safetensors"));
}

static void test_shards_open(void **state)
{
    (void)state;
    const char *dir = folder();
    mb_error err = { 0 };
    struct checkpoint *c;
    put_safetensors(dir, "m-1.safetensors", strlen("{" T("a", 8, 0, 8) "}"), "{" T("a", 8, 0, 8) "}", 8);
    put_safetensors(dir, "m-2.safetensors", strlen("{" T("b", 3, 5, 8) "," T("c", 5, 0, 5) "}"),
                    "{" T("b", 3, 5, 8) "," T("c", 5, 0, 5) "}", 8);
    put_index(dir, "{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-2.safetensors\"}");
    assert_int_equal(checkpoint_open(&c, dir, &err), MB_OK);
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_int_equal(checkpoint_total_bytes(c), 16);
    assert_string_equal(checkpoint_at(c, 1)->name, "c"); /* by offset */
    const struct tensor_view *b = checkpoint_findf(c, "%c", 'b');
    assert_non_null(b);
    assert_int_equal(b->size_bytes, 3);
    assert_int_equal(b->data[0], 5);
    checkpoint_drop(c, b);
    assert_int_equal(b->data[2], 7);
    assert_null(checkpoint_find(c, "d"));
    checkpoint_close(c);
}

static void test_nothing_there(void **state)
{
    (void)state;
    mb_error err = { 0 };
    assert_int_equal(open_status(folder(), &err), MB_NOT_FOUND);
    assert_non_null(strstr(err.text, "no weights"));
    assert_int_equal(open_status("/no/such/folder", &err), MB_NOT_FOUND);
}

/* REG-150 REG-152 */
static void test_write_and_read_back(void **state)
{
    (void)state;
    const char *dir = folder();
    char path[128];
    float f[6] = { 1, -2, 3, 4, 5, 6 };
    uint16_t h[3] = { 1, 2, 3 };
    struct tensor_view t[3] = {
        { .name = "odd \"name\"", .dtype = DT_F16, .n_dim = 1, .shape = { 3 }, .data = (uint8_t *)h, .size_bytes = 6 },
        { .name = "m", .dtype = DT_F32, .n_dim = 2, .shape = { 2, 3 }, .data = (uint8_t *)f, .size_bytes = 24 },
        { .name = "none", .dtype = DT_U32, .n_dim = 2, .shape = { 0, 7 }, .data = NULL, .size_bytes = 0 },
    };
    mb_error err = { 0 };
    json_t *metadata = json_pack("{s:s}", "format", "mlx");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(safetensors_write(path, t, 3, metadata, &err), MB_OK);
    json_decref(metadata);
    struct checkpoint *c;
    assert_int_equal(checkpoint_open(&c, dir, &err), MB_OK);
    assert_int_equal(checkpoint_n_tensors(c), 3);
    const struct tensor_view *m = checkpoint_find(c, "m");
    assert_int_equal(m->n_dim, 2);
    assert_int_equal(m->shape[1], 3);
    assert_memory_equal(m->data, f, sizeof f);
    assert_memory_equal(checkpoint_find(c, "odd \"name\"")->data, h, sizeof h);
    checkpoint_close(c);
}

static void test_writer_refuses_and_leaves_nothing(void **state)
{
    (void)state;
    const char *dir = folder();
    char path[128];
    struct tensor_view t = { .name = "m", .dtype = DT_F32, .n_dim = 1, .shape = { 4 } };
    struct safetensors_writer *w;
    mb_error err = { 0 };
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(safetensors_writer_open(&w, path, &t, 1, NULL, &err), MB_OK);
    assert_int_equal(safetensors_writer_put(w, 0, 12, "12345", 5, &err), MB_INVALID);
    assert_int_equal(safetensors_writer_put(w, 1, 0, "1", 1, &err), MB_INVALID);
    assert_int_equal(safetensors_writer_put(w, 0, SIZE_MAX, "1", 1, &err), MB_INVALID);
    safetensors_writer_abort(w);
    assert_false(file_exists(path));
    assert_int_equal(rmdir(dir), 0); /* empty */
    snprintf(path, sizeof path, "%s/no/folder.safetensors", dir);
    assert_int_equal(safetensors_writer_open(&w, path, &t, 1, NULL, &err), MB_NOT_FOUND);
    assert_null(w);
    t.shape[0] = (int64_t)1 << 62;
    assert_int_equal(safetensors_writer_open(&w, path, &t, 1, NULL, &err), MB_TOO_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_b109_header_length),      cmocka_unit_test(test_b109_offsets),
        cmocka_unit_test(test_b109_shape_and_dtype),    cmocka_unit_test(test_b110_cover),
        cmocka_unit_test(test_b110_shards),             cmocka_unit_test(test_b110_two_files_one_name),
        cmocka_unit_test(test_shards_open),             cmocka_unit_test(test_nothing_there),
        cmocka_unit_test(test_write_and_read_back),     cmocka_unit_test(test_writer_refuses_and_leaves_nothing),
    };
    return cmocka_run_group_tests_name("safetensors", tests, setup, teardown);
}
