/* fuzz_safetensors.c: one safetensors file from memory: 8 length bytes, header, data. What is accepted must cover the data
 * exactly, tensor by tensor (B-109, B-110). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_cover(const struct tensor_view *t, size_t n, uint64_t data_bytes)
{
    uint64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if ((uint64_t)(uintptr_t)t[i].data != at || t[i].size_bytes > data_bytes - at) abort();
        if (t[i].n_dim < 0 || t[i].n_dim > TENSOR_MAX_DIM || !t[i].name[0]) abort();
        at += t[i].size_bytes;
    }
    if (at != data_bytes) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint64_t len;
    struct arena a;
    struct tensor_view *t;
    size_t n;
    mb_error err = { 0 };
    if (size < 8) return 0;
    memcpy(&len, data, 8);
    if (len > size - 8) len = size - 8; /* go on with what is there: the mutations are worth more than the length */
    arena_init(&a, 1 << 24);
    mb_status st = safetensors_parse_header(&a, "fuzz", (const char *)data + 8, (size_t)len, size - 8 - len, &t, &n, &err);
    if (st == MB_OK) check_cover(t, n, size - 8 - len);
    else if (t || n || !err.text[0]) abort();
    arena_free(&a);
    return 0;
}
