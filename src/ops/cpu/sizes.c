/* sizes.c: byte counts of the CPU backend's buffers. Admission, allocation and kernels all ask here. */
#include "ops/cpu/kernels.h"

static size_t round_up(size_t v, size_t to)
{
    return (v + to - 1) / to * to;
}

size_t act_row_bytes(enum act_form form, int64_t k, int g)
{
    size_t n = (size_t)k, bytes;
    if (form == ACT_F32)
        bytes = 4 * n;
    else
        bytes = (form == ACT_Q16 ? 2 * n : n) + n / (size_t)g * 8;
    bytes = round_up(bytes, 64);
    return bytes % 4096 == 0 ? bytes + 64 : bytes; /* rows a page apart would share cache sets */
}

size_t kv_head_bytes(enum kv_format f, int64_t d)
{
    if (kv_is_codes(f)) {
        struct kv_code_places p = kv_code_places(f, d);
        return p.v_scales + (size_t)p.n_groups * KV_SCALES_BYTES;
    }
    size_t rows = (size_t)d + round_up((size_t)d, 64);
    return rows * 64 * (f == KV_F32 ? 4 : 2);
}

size_t kv_latent_bytes(enum kv_format f, int64_t n_rows)
{
    return (size_t)n_rows * 64 * (f == KV_F32 ? 4 : 2);
}

/* Per row: o padded to 64 floats, a tile of scores, the lanes, eight scalars; for codes a sum of q and lanes for each group.
 * Rows are rounded up to whole vectors. With latents a tile of values; else, where rows are many, a tile of keys and values as
 * floats. */
size_t attn_scratch_bytes(int n_rows, int64_t d, int64_t d_latent)
{
    size_t rows = round_up((size_t)n_rows, 16), values = ATTN_TILE * round_up((size_t)d_latent, 64) * sizeof(float);
    if (d_latent == 0 && n_rows > ATTN_FEW_ROWS) values = ATTN_TILE * ((size_t)d + round_up((size_t)d, 64)) * sizeof(float);
    int group = d_latent > 0 ? 0 : kv_code_group(d);
    size_t codes = group ? (size_t)(d / group) * (1 + ATTN_LANES) : 0;
    return rows * (round_up((size_t)d, 64) + ATTN_TILE + ATTN_LANES + 8 + codes) * sizeof(float) + values + 256;
}

/* A tile of scores of as many heads as go together. */
size_t index_scratch_bytes(void)
{
    return 8 * ATTN_TILE * sizeof(float) + 256;
}

static size_t dtype_bytes(enum dtype dt)
{
    return dt == DT_F32 ? 4 : 2;
}

size_t cpu_weight_block_bytes(enum cpu_wtype type, enum dtype dt, int g, int64_t k)
{
    if (type == CPU_W_F) return round_up((size_t)k * 16 * dtype_bytes(dt), 64);
    size_t codes = (size_t)g * (type == CPU_W_Q4 ? 8 : 16);
    return (size_t)(k / g) * (codes + 32 * dtype_bytes(dt));
}
