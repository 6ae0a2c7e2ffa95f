/* gguf_import_write.c: the planned tensors, one after the other, from the mapped source into model.safetensors. A chunk of
 * rows is split into groups, packed into three buffers (codes, scales, biases) and written to the three places; source
 * pages are dropped behind it. Memory: the buffers, about 1 MB (more only when one row is longer).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "convert/gguf_import_int.h"
#include "format/safetensors_write.h"

#define CHUNK_BYTES ((size_t)512 << 10)
#define MAX_BLOCK_GROUPS 8

struct sink {
    struct import *im;
    struct safetensors_writer *w;
    const struct convert_opts *opts;
    uint64_t done_bytes, total_bytes;
    mb_error *err;
};

/* One item on its way. Buffers hold n_chunk rows. */
struct piece {
    const struct import_item *it;
    const struct import_scheme *scheme; /* NULL: plain */
    size_t src_row_bytes, weight_row_bytes, scale_row_bytes, scale_bytes;
    int64_t n_chunk;
    uint8_t *weight, *scales, *biases; /* owned */
    double worst_error, worst_share;
};

/* Row r of the output stands at this row of the source. Inside a head the source has (j, half) interleaved. */
static int64_t source_row(const struct import_item *it, int64_t r)
{
    if (it->rows == ROWS_AS_IS) return r;
    int64_t head = r / it->head_dim, inside = r % it->head_dim, half = it->head_dim / 2;
    return head * it->head_dim + 2 * (inside % half) + inside / half;
}

static void float_put(uint8_t *to, enum dtype dt, float f)
{
    uint16_t h = f32_to_f16(f);
    if (dt == DT_F32) memcpy(to, &f, sizeof f);
    else memcpy(to, &h, sizeof h);
}

static mb_status refuse_number(struct sink *s, const struct piece *p, int64_t row)
{
    return mb_fail(s->err, MB_BAD_FORMAT, "%s: tensor %s: a scale of row %lld is not a finite number", s->im->path,
                   p->it->src->name, (long long)row);
}

static mb_status row_split(struct sink *s, struct piece *p, int64_t src_row, int64_t at)
{
    const struct gguf_tensor *t = p->it->src;
    const uint8_t *block = t->data + (size_t)src_row * p->src_row_bytes;
    uint8_t *weight = p->weight + (size_t)at * p->weight_row_bytes;
    uint8_t *scale = p->scales + (size_t)at * p->scale_row_bytes, *bias = p->biases + (size_t)at * p->scale_row_bytes;
    struct import_group groups[MAX_BLOCK_GROUPS];
    memset(groups, 0, sizeof groups);
    for (int64_t i = 0; i < p->it->n_in; i += t->type->block_elements, block += t->type->block_bytes) {
        p->scheme->split(block, groups);
        for (int g = 0; g < t->type->block_elements / IMPORT_GROUP; g++) {
            if (!isfinite(groups[g].scale) || !isfinite(groups[g].bias)) return refuse_number(s, p, src_row);
            import_pack(groups[g].code, p->scheme->bits, weight);
            float_put(scale, p->it->scale_dtype, groups[g].scale);
            float_put(bias, p->it->scale_dtype, groups[g].bias);
            weight += 4 * p->scheme->bits;
            scale += p->scale_bytes;
            bias += p->scale_bytes;
            if (groups[g].error <= 0) continue;
            p->worst_error = fmax(p->worst_error, groups[g].error);
            p->worst_share = fmax(p->worst_share, (double)groups[g].error / groups[g].amax);
        }
    }
    return MB_OK;
}

/* Gemma stores 1 + w. Where the source's numbers came from bfloat16 norms, w is that bfloat16 number: take it if adding 1
 * gives the source's bits again, so that the rounding of the sum is undone too. */
static float norm_minus_one(float stored)
{
    float w = stored - 1.0f, near = bf16_to_f32(f32_to_bf16(w));
    return near + 1.0f == stored ? near : w;
}

static void row_copy(struct piece *p, int64_t src_row, int64_t at)
{
    const uint8_t *from = p->it->src->data + (size_t)src_row * p->src_row_bytes;
    uint8_t *to = p->weight + (size_t)at * p->weight_row_bytes;
    memcpy(to, from, p->src_row_bytes);
    if (!p->it->minus_one) return;
    for (size_t i = 0; i < p->src_row_bytes; i += sizeof(float)) {
        float f;
        memcpy(&f, to + i, sizeof f);
        f = norm_minus_one(f);
        memcpy(to + i, &f, sizeof f);
    }
}

static mb_status chunk_write(struct sink *s, const struct piece *p, int64_t first, int64_t n)
{
    size_t i = p->it->i_out;
    MB_TRY(safetensors_writer_put(s->w, i, (size_t)first * p->weight_row_bytes, p->weight,
                                  (size_t)n * p->weight_row_bytes, s->err));
    if (!p->scheme) return MB_OK;
    MB_TRY(safetensors_writer_put(s->w, i + 1, (size_t)first * p->scale_row_bytes, p->scales,
                                  (size_t)n * p->scale_row_bytes, s->err));
    return safetensors_writer_put(s->w, i + 2, (size_t)first * p->scale_row_bytes, p->biases,
                                  (size_t)n * p->scale_row_bytes, s->err);
}

static mb_status progress(struct sink *s, size_t bytes)
{
    s->done_bytes += bytes;
    if (!s->opts->progress || s->opts->progress(s->opts->progress_ctx, s->done_bytes, s->total_bytes)) return MB_OK;
    return mb_fail(s->err, MB_CANCELLED, "%s: the import was cancelled", s->im->path);
}

/* A chunk of a permuted tensor is whole heads, so that the source rows behind it are done with. */
static mb_status rows_stream(struct sink *s, struct piece *p)
{
    for (int64_t first = 0; first < p->it->n_rows; first += p->n_chunk) {
        int64_t n = p->it->n_rows - first < p->n_chunk ? p->it->n_rows - first : p->n_chunk;
        for (int64_t k = 0; k < n; k++) {
            int64_t src_row = source_row(p->it, first + k);
            if (p->scheme) MB_TRY(row_split(s, p, src_row, k));
            else row_copy(p, src_row, k);
        }
        MB_TRY(chunk_write(s, p, first, n));
        gguf_drop(s->im->g, p->it->src, (size_t)first * p->src_row_bytes, (size_t)n * p->src_row_bytes);
        MB_TRY(progress(s, (size_t)n * p->src_row_bytes));
    }
    return MB_OK;
}

static void piece_size(struct piece *p, const struct import_item *it)
{
    *p = (struct piece){ .it = it, .scheme = it->bits ? import_scheme_get(it->src->type->type) : NULL };
    p->src_row_bytes = it->src->size_bytes / (size_t)it->n_rows;
    p->weight_row_bytes = p->scheme ? (size_t)(it->n_in / 32 * it->bits * 4) : p->src_row_bytes;
    p->scale_bytes = (size_t)dtype_get(it->scale_dtype)->size_bytes;
    p->scale_row_bytes = p->scheme ? (size_t)(it->n_in / IMPORT_GROUP) * p->scale_bytes : 0;
    int64_t unit = it->rows == ROWS_UNPERMUTE ? it->head_dim : 1;
    int64_t fit = (int64_t)(CHUNK_BYTES / p->weight_row_bytes) / unit * unit;
    p->n_chunk = fit > unit ? fit : unit;
    if (p->n_chunk > it->n_rows) p->n_chunk = it->n_rows;
}

static void report_add(struct import *im, const struct piece *p)
{
    struct convert_report *r = &im->report;
    if (!p->scheme) r->n_plain++;
    else if (p->worst_error > 0) r->n_rounded++;
    else r->n_exact++;
    if (p->scheme && p->it->scale_dtype == DT_F32) r->n_f32_scales++;
    if (p->worst_error > r->worst_error) {
        r->worst_error = p->worst_error;
        tensor_safe_name(r->worst_tensor, sizeof r->worst_tensor, im->out[p->it->i_out].name);
    }
    r->worst_error_share = fmax(r->worst_error_share, p->worst_share);
}

static mb_status item_write(struct sink *s, const struct import_item *it)
{
    struct piece p;
    piece_size(&p, it);
    p.weight = mb_alloc((size_t)p.n_chunk * p.weight_row_bytes);
    p.scales = mb_alloc((size_t)p.n_chunk * p.scale_row_bytes);
    p.biases = mb_alloc((size_t)p.n_chunk * p.scale_row_bytes);
    mb_status st = p.weight && p.scales && p.biases
                       ? rows_stream(s, &p)
                       : mb_fail(s->err, MB_NO_MEMORY, "%s: no memory for a chunk of tensor %s", s->im->path, it->src->name);
    mb_free(p.weight);
    mb_free(p.scales);
    mb_free(p.biases);
    if (st == MB_OK) report_add(s->im, &p);
    return st;
}

static mb_status items_write(struct sink *s, mb_error *err)
{
    for (size_t i = 0; i < s->im->n_items; i++) MB_TRY(item_write(s, &s->im->items[i]));
    return MB_OK;
}

mb_status import_write(struct import *im, const char *path, const struct convert_opts *opts, mb_error *err)
{
    struct sink s = { .im = im, .opts = opts, .err = err };
    json_t *metadata = json_pack("{s:s}", "format", "mlx");
    if (!metadata) return mb_fail(err, MB_NO_MEMORY, "%s: no memory", im->path);
    mb_status st = safetensors_writer_open(&s.w, path, im->out, im->n_out, metadata, err);
    json_decref(metadata);
    MB_TRY(st);
    for (size_t i = 0; i < im->n_items; i++) s.total_bytes += im->items[i].src->size_bytes;
    st = items_write(&s, err);
    if (st == MB_OK) return safetensors_writer_finish(s.w, err);
    safetensors_writer_abort(s.w);
    return st;
}
