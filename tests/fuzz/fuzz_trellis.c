/* fuzz_trellis.c: trellis-coded rows out of any bytes: the reader touches nothing but the row, and a piece of a row is what the whole
 * row has there. First four bytes: bits, group, groups in a row, where the piece begins. */
#include <stdlib.h>
#include <string.h>

#include "format/trellis.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_row(const uint8_t *row, int bits, int64_t n, int64_t first)
{
    uint8_t *all = malloc((size_t)n), *some = malloc((size_t)n);
    if (!all || !some) abort();
    trellis_codes(row, bits, n, 0, n, all);
    trellis_codes(row, bits, n, first, n - first, some);
    if (memcmp(some, all + first, (size_t)(n - first)) != 0) abort();
    free(all);
    free(some);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4) return 0;
    int bits = 2 + data[0] % 3, group = 32 << data[1] % 3;
    int64_t n = (int64_t)group * (1 + data[2] % 8), first = (int64_t)data[3] % n;
    size_t row_bytes = (size_t)(n * bits / 8);
    const struct quant_spec s = { QUANT_TRELLIS, bits, group };
    float scales[8] = { 0 }, *out = malloc((size_t)n * sizeof *out);
    uint8_t *row = malloc(row_bytes); /* exactly: a sanitizer sees a byte too far */
    if (!out || !row || quant_row_words(&s, n) * 4 != (int64_t)row_bytes) abort();
    memset(row, 0, row_bytes);
    memcpy(row, data + 4, size - 4 < row_bytes ? size - 4 : row_bytes);
    for (int i = 0; i < 8; i++) scales[i] = (float)(i - 3);
    read_row(row, bits, n, first);
    trellis_dequantise(&s, row, scales, DT_F32, 1, n, out);
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(out[i]) <= 128 * fabsf(scales[i / group]))) abort();
    free(out);
    free(row);
    return 0;
}
