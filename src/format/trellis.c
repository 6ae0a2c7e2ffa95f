/* trellis.c: reading of trellis-coded rows, see trellis.h. Nothing is checked here: shapes and types are where a module is bound
 * (model/bind_source.c, convert/ckpt_plan.c). */
#include "format/trellis.h"

/* K bits at bit `at` of a row; bytes behind the row are not touched. */
static uint32_t bits_at(const uint8_t *row, int bits, int64_t at)
{
    int shift = (int)(at & 7);
    uint32_t v = row[at >> 3];
    if (shift + bits > 8) v |= (uint32_t)row[(at >> 3) + 1] << 8;
    return v >> shift & ((1u << bits) - 1);
}

/* Weights [first, end) of the span that begins at weight `span` and holds n_span. */
static void span_codes(const uint8_t *row, int bits, int64_t span, int64_t n_span, int64_t first, int64_t end, uint8_t *out)
{
    const int top = TRELLIS_STATE_BITS - bits;
    uint32_t state = 0;
    for (int64_t i = first - top / bits; i < first; i++) /* what stands before it, around the ring */
        state = state >> bits | bits_at(row, bits, bits * (span + (i < 0 ? i + n_span : i))) << top;
    for (int64_t i = first; i < end; i++) {
        state = state >> bits | bits_at(row, bits, bits * (span + i)) << top;
        *out++ = trellis_code(state);
    }
}

void trellis_codes(const void *row, int bits, int64_t n_in, int64_t first, int64_t n, uint8_t *out)
{
    for (int64_t at = first, stop; at < first + n; out += stop - at, at = stop) {
        int64_t span = at / TRELLIS_SPAN * TRELLIS_SPAN, n_span = n_in - span < TRELLIS_SPAN ? n_in - span : TRELLIS_SPAN;
        stop = span + n_span < first + n ? span + n_span : first + n;
        span_codes(row, bits, span, n_span, at - span, stop - span, out);
    }
}

void trellis_dequantise(const struct quant_spec *s, const void *w, const void *scales, enum dtype dt, int64_t n_rows, int64_t n_in,
                        float *out)
{
    int64_t n_groups = n_in / s->group_size;
    size_t row_bytes = 4 * (size_t)quant_row_words(s, n_in);
    uint8_t code[128];
    for (int64_t r = 0; r < n_rows; r++)
        for (int64_t g = 0; g < n_groups; g++) {
            float scale = dtype_float_at(scales, dt, r * n_groups + g);
            trellis_codes((const uint8_t *)w + (size_t)r * row_bytes, s->bits, n_in, g * s->group_size, s->group_size, code);
            for (int i = 0; i < s->group_size; i++) *out++ = trellis_value(code[i], scale);
        }
}
