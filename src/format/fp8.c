/* fp8.c: see fp8.h. */
#include "format/fp8.h"

mb_status fp8_scales_find(const struct checkpoint *c, const char *module, const struct tensor_view *w, const struct tensor_view **out,
                          mb_error *err)
{
    const struct tensor_view *s = *out = checkpoint_findf(c, "%s.weight_scale_inv", module);
    if (w->n_dim != 2)
        return mb_fail(err, MB_BAD_FORMAT, "tensor %s is F8_E4M3 with %d dims; block scales belong to a matrix", w->name, w->n_dim);
    if (!s) return mb_fail(err, MB_NOT_FOUND, "tensor %s is F8_E4M3, but %s.weight_scale_inv is missing", w->name, module);
    int64_t rows = fp8_blocks(w->shape[0]), cols = fp8_blocks(w->shape[1]);
    bool is_float = s->dtype == DT_F32 || s->dtype == DT_BF16 || s->dtype == DT_F16;
    if (is_float && s->n_dim == 2 && s->shape[0] == rows && s->shape[1] == cols) return MB_OK;
    return mb_fail(err, MB_BAD_FORMAT, "tensor %s: found %d dims, the last %lld (%s); wanted floats [%lld, %lld], one for each block of 128 x 128 "
                   "of %s", s->name, s->n_dim, (long long)(s->n_dim > 0 ? s->shape[s->n_dim - 1] : 0), dtype_get(s->dtype)->name,
                   (long long)rows, (long long)cols, w->name);
}

float fp8_value(const uint8_t *row, const void *scales, enum dtype dt, int64_t r, int64_t i, int64_t n_in)
{
    float scale = dtype_float_at(scales, dt, r / FP8_BLOCK * fp8_blocks(n_in) + i / FP8_BLOCK);
    return bf16_to_f32(f32_to_bf16(e4m3_to_f32(row[i]) * scale));
}
