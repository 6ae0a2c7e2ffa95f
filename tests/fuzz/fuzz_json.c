/* fuzz_json.c: reading any bytes as JSON. What is read must be written as text that reads back to an equal tree. */
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const json_t *v, const struct json_write_opts *opts)
{
    struct buf b;
    buf_init(&b, 0);
    json_write(&b, v, opts);
    json_t *again = NULL;
    mb_error err;
    if (buf_status(&b, "json", &err) == MB_OK) {
        mb_status status = json_read(&again, b.data, b.len, JSON_READ_ANY, &err);
        if (status != MB_OK && status != MB_NO_MEMORY) abort();
        if (status == MB_OK && !json_equal(v, again)) abort();
    }
    json_decref(again);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    json_t *v;
    mb_error err;
    int flags = data[0] & (JSON_READ_REJECT_DUPLICATES | JSON_READ_ANY);
    if (json_read(&v, (const char *)data + 1, size - 1, flags, &err) != MB_OK) return 0;
    check_round_trip(v, NULL);
    check_round_trip(v, &(struct json_write_opts){ .python_spaces = true, .ensure_ascii = true, .indent = 2 });
    json_decref(v);
    return 0;
}
