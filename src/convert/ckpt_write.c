/* ckpt_write.c: the planned tensors, one after the other, from the mapped source into the shards. A chunk of rows is read into
 * floats, rounded, quantised and packed by all threads, each its own rows; then written. Source pages are dropped behind it.
 * Memory: about CHUNK_BYTES of output and one row of floats a thread, and for trellis codes the search's work space.
 */
#include <stdio.h>
#include <string.h>

#include "base/threads.h"
#include "convert/ckpt_int.h"
#include "format/fp8.h"
#include "format/quantise.h"
#include "format/safetensors_write.h"
#include "format/trellis.h"

#define CHUNK_BYTES ((int64_t)4 << 20)
#define TRELLIS_CHUNK_BYTES ((int64_t)256 << 10) /* seconds of work, not minutes, between two reports of progress */

struct sink {
    struct conv *c;
    struct safetensors_writer *w;
    struct pool *pool;
    uint64_t done_bytes, total_bytes;
    mb_error *err;
};

/* One item on its way: the chunk's buffers and where it stands. */
struct piece {
    const struct conv_item *it;
    size_t weight_row_bytes, scale_row_bytes;
    int64_t rows_a_source;
    int64_t first, n;             /* rows of the chunk */
    uint8_t *weight, *scales, *biases; /* owned */
    float *row;                   /* [n_threads][n_in], owned */
    struct trellis_search **search; /* [n_threads], owned; NULL: not written as trellis codes */
    int64_t bad_row;              /* a row with numbers that are not finite, -1: none; written by any thread */
};

static mb_status progress(struct sink *s, uint64_t bytes)
{
    s->done_bytes += bytes;
    if (!s->c->opts->progress || s->c->opts->progress(s->c->opts->progress_ctx, s->done_bytes, s->total_bytes)) return MB_OK;
    return mb_fail(s->err, MB_CANCELLED, "%s: the conversion was cancelled", s->c->src_dir);
}

static uint64_t companion_bytes(const struct conv_item *it)
{
    return (it->scales ? it->scales->size_bytes : 0) + (it->biases ? it->biases->size_bytes : 0);
}

/* --- bytes as they are --- */

static mb_status copy_tensor(struct sink *s, size_t i_out, size_t off, const struct tensor_view *t)
{
    for (size_t at = 0; at < t->size_bytes; at += (size_t)CHUNK_BYTES) {
        size_t n = t->size_bytes - at < (size_t)CHUNK_BYTES ? t->size_bytes - at : (size_t)CHUNK_BYTES;
        MB_TRY(safetensors_writer_put(s->w, i_out, off + at, t->data + at, n, s->err));
        MB_TRY(progress(s, n));
    }
    checkpoint_drop(s->c->ckpt, t);
    return MB_OK;
}

/* Where row r of an item is in its source. */
static int64_t row_at(const struct conv_item *it, int64_t r)
{
    return it->n_turns > 1 ? r * it->n_turns + it->i_turn : r;
}

/* A source of an item that is done with: all of it, whichever rows were of interest. */
static void source_drop(struct conv *c, const struct conv_item *it, const struct tensor_view *t)
{
    struct tensor_view all = *t;
    if (it->n_turns > 1) all.size_bytes *= (size_t)it->n_turns;
    checkpoint_drop(c->ckpt, &all);
}

/* Every n_turns-th row. */
static mb_status copy_turn(struct sink *s, const struct conv_item *it, size_t i_out, const struct tensor_view *t)
{
    size_t row = t->size_bytes / (size_t)it->n_rows;
    int64_t n_chunk = CHUNK_BYTES / (int64_t)(row + 1) + 1;
    n_chunk = n_chunk > it->n_rows ? it->n_rows : n_chunk;
    uint8_t *rows = mb_alloc((size_t)n_chunk * row);
    mb_status st = rows ? MB_OK : mb_fail(s->err, MB_NO_MEMORY, "%s: no memory for a piece of %s", s->c->src_dir, it->name);
    for (int64_t first = 0; st == MB_OK && first < it->n_rows; first += n_chunk) {
        int64_t n = it->n_rows - first < n_chunk ? it->n_rows - first : n_chunk;
        for (int64_t r = 0; r < n; r++) memcpy(rows + (size_t)r * row, t->data + (size_t)row_at(it, first + r) * row, row);
        st = safetensors_writer_put(s->w, i_out, (size_t)first * row, rows, (size_t)n * row, s->err);
        if (st == MB_OK) st = progress(s, (uint64_t)n * row);
    }
    mb_free(rows);
    source_drop(s->c, it, t);
    return st;
}

static mb_status copy_item(struct sink *s, const struct conv_item *it)
{
    if (it->n_turns > 1) {
        MB_TRY(copy_turn(s, it, it->i_out, it->src[0]));
        return it->scales ? copy_turn(s, it, it->i_out + 1, it->scales) : MB_OK;
    }
    for (size_t i = 0, off = 0; i < it->n_src; off += it->src[i++]->size_bytes)
        MB_TRY(copy_tensor(s, it->i_out, off, it->src[i]));
    if (it->to.mode == QUANT_NONE) return MB_OK;
    MB_TRY(copy_tensor(s, it->i_out + 1, 0, it->scales));
    return it->biases ? copy_tensor(s, it->i_out + 2, 0, it->biases) : MB_OK;
}

/* --- through floats --- */

/* Element i of row r of source k, in floats. */
static float plain_at(const struct conv_item *it, int64_t k, int64_t r, int64_t i)
{
    const struct tensor_view *t = it->src[k];
    int64_t width = t->shape[t->n_dim - 1];
    if (it->block_scales) return fp8_value(t->data + r * width, it->block_scales[k]->data, it->block_scales[k]->dtype, r, i, width);
    return dtype_float_at(t->data, t->dtype, r * width + i);
}

/* Row r of a part of kv_b_proj. */
static void head_row_read(const struct conv_item *it, int64_t r, float *out)
{
    int64_t each = it->n_rows / it->n_head, first = r / each * it->head_rows + it->head_first, at = r % each;
    for (int64_t i = 0; i < it->n_in; i++) out[i] = it->turned ? plain_at(it, 0, first + i, at) : plain_at(it, 0, first + at, i);
}

void conv_row_read(const struct conv_item *it, int64_t r, float *out)
{
    if (it->n_head > 0) {
        head_row_read(it, r, out);
        return;
    }
    int64_t rows_a_source = it->n_rows / (int64_t)it->n_src;
    const struct tensor_view *t = it->src[r / rows_a_source];
    int64_t in_source = row_at(it, r % rows_a_source);
    if (it->block_scales) {
        for (int64_t i = 0; i < it->n_in; i++) out[i] = plain_at(it, r / rows_a_source, in_source, i);
        return;
    }
    if (it->from.mode == QUANT_NONE) {
        size_t row_bytes = t->size_bytes / (size_t)rows_a_source;
        const uint8_t *from = t->data + (size_t)in_source * row_bytes;
        for (int64_t i = 0; i < it->n_in; i++) out[i] = dtype_float_at(from, t->dtype, i);
        for (int64_t i = 0; it->plus_one && i < it->n_in; i++) out[i] += 1.0f;
        if (it->plus_one) floats_round(out, it->n_in, t->dtype);
        return;
    }
    int64_t n_groups = it->n_in / it->from.group_size;
    if (quant_is_fp(&it->from)) {
        const uint8_t *codes = t->data + (size_t)(in_source * quant_row_words(&it->from, it->n_in)) * 4;
        quant_fp_dequantise(&it->from, (const void *)codes, it->scales->data + in_source * n_groups, 1, it->n_in, out);
        floats_round(out, it->n_in, DT_BF16); /* the same but for the least of the subnormal ones, as in the oracle */
        return;
    }
    size_t scale_bytes = (size_t)(r * n_groups * dtype_get(it->scales->dtype)->size_bytes);
    const void *words = t->data + (size_t)(r * quant_row_words(&it->from, it->n_in)) * 4; /* read byte by byte: any address */
    if (it->from.mode == QUANT_TRELLIS) {
        trellis_dequantise(&it->from, words, it->scales->data + scale_bytes, it->scales->dtype, 1, it->n_in, out);
        return;
    }
    quant_affine_dequantise(&it->from, words, it->scales->data + scale_bytes, it->biases->data + scale_bytes, it->scales->dtype,
                            1, it->n_in, out);
}

/* Sums in order of the rank, in float32. */
static void row_update(const struct conv_item *it, int64_t r, float *row)
{
    for (size_t d = 0; d < it->n_deltas; d++) {
        const struct conv_delta *u = &it->deltas[d];
        if (r < u->first || r >= u->first + u->n) continue;
        for (int32_t j = 0; j < u->rank; j++) {
            float b = u->b[(int64_t)j * u->n + r - u->first];
            const float *a = u->a + (int64_t)j * u->k;
            for (int64_t i = 0; i < u->k; i++) row[i] += b * a[i];
        }
    }
}

static bool row_make(struct piece *p, int64_t k, float *row, struct trellis_search *search)
{
    const struct conv_item *it = p->it;
    uint8_t *weight = p->weight + (size_t)k * p->weight_row_bytes;
    conv_row_read(it, p->first + k, row);
    row_update(it, p->first + k, row);
    if (it->to.mode == QUANT_NONE) return floats_put(row, it->n_in, it->dtype, weight);
    floats_round(row, it->n_in, it->dtype);
    uint8_t *scales = p->scales + (size_t)k * p->scale_row_bytes;
    if (it->to.mode == QUANT_TRELLIS) return trellis_quantise_row(search, &it->to, row, it->n_in, it->dtype, weight, scales);
    return quantise_row(&it->to, row, it->n_in, it->dtype, weight, scales, p->biases + (size_t)k * p->scale_row_bytes);
}

static void chunk_share(void *ctx, int i_thread, int n_threads)
{
    struct piece *p = ctx;
    int64_t first, end;
    threads_share(p->n, 1, i_thread, n_threads, &first, &end);
    for (int64_t k = first; k < end; k++)
        if (!row_make(p, k, p->row + (int64_t)i_thread * p->it->n_in, p->search ? p->search[i_thread] : NULL))
            __atomic_store_n(&p->bad_row, p->first + k, __ATOMIC_RELAXED);
}

static mb_status chunk_write(struct sink *s, const struct piece *p)
{
    const struct conv_item *it = p->it;
    size_t n = (size_t)p->n, first = (size_t)p->first;
    MB_TRY(safetensors_writer_put(s->w, it->i_out, first * p->weight_row_bytes, p->weight, n * p->weight_row_bytes, s->err));
    if (it->to.mode == QUANT_NONE) return MB_OK;
    MB_TRY(safetensors_writer_put(s->w, it->i_out + 1, first * p->scale_row_bytes, p->scales, n * p->scale_row_bytes, s->err));
    if (!quant_has_biases(&it->to)) return MB_OK;
    return safetensors_writer_put(s->w, it->i_out + 2, first * p->scale_row_bytes, p->biases, n * p->scale_row_bytes, s->err);
}

static mb_status refuse_number(struct sink *s, const struct piece *p)
{
    return mb_fail(s->err, MB_INVALID, "%s: tensor %s: row %lld holds NaN, infinity, or a number too large for %s", s->c->src_dir,
                   p->it->name, (long long)p->bad_row, dtype_get(p->it->dtype)->name);
}

/* Sources that are done with. */
static void drop_sources(struct sink *s, const struct piece *p)
{
    int64_t first = p->first / p->rows_a_source, end = (p->first + p->n) / p->rows_a_source;
    for (int64_t i = first; i < end; i++) source_drop(s->c, p->it, p->it->src[i]);
}

static mb_status rows_stream(struct sink *s, struct piece *p, int64_t n_chunk)
{
    const struct conv_item *it = p->it;
    uint64_t row_bytes = it->src[0]->size_bytes / (uint64_t)p->rows_a_source;
    for (p->first = 0; p->first < it->n_rows; p->first += n_chunk) {
        p->n = it->n_rows - p->first < n_chunk ? it->n_rows - p->first : n_chunk;
        pool_run(s->pool, chunk_share, p);
        if (p->bad_row >= 0) return refuse_number(s, p);
        MB_TRY(chunk_write(s, p));
        drop_sources(s, p);
        MB_TRY(progress(s, (uint64_t)p->n * row_bytes));
    }
    if (it->from.mode == QUANT_NONE) return MB_OK;
    return progress(s, companion_bytes(it));
}

static bool searches_open(struct sink *s, struct piece *p)
{
    int n = pool_n_threads(s->pool);
    bool ok = (p->search = mb_calloc((size_t)n, sizeof *p->search)) != NULL;
    for (int i = 0; ok && i < n; i++) ok = (p->search[i] = trellis_search_open(p->it->to.bits)) != NULL;
    return ok;
}

static void searches_close(struct sink *s, struct piece *p)
{
    for (int i = 0; p->search && i < pool_n_threads(s->pool); i++) trellis_search_close(p->search[i]);
    mb_free(p->search);
}

static mb_status piece_run(struct sink *s, const struct conv_item *it)
{
    struct piece p = { .it = it, .bad_row = -1, .rows_a_source = it->n_rows / (int64_t)it->n_src };
    bool packed = it->to.mode != QUANT_NONE;
    size_t float_bytes = (size_t)dtype_get(it->dtype)->size_bytes;
    p.weight_row_bytes = packed ? (size_t)quant_row_words(&it->to, it->n_in) * 4 : (size_t)it->n_in * float_bytes;
    p.scale_row_bytes = packed ? (size_t)(it->n_in / it->to.group_size) * float_bytes : 0;
    int64_t n_chunk = (it->to.mode == QUANT_TRELLIS ? TRELLIS_CHUNK_BYTES : CHUNK_BYTES) / (int64_t)(p.weight_row_bytes + 1) + 1;
    n_chunk = n_chunk > it->n_rows ? it->n_rows : n_chunk;
    p.weight = mb_alloc((size_t)n_chunk * p.weight_row_bytes);
    p.scales = mb_alloc((size_t)n_chunk * p.scale_row_bytes);
    p.biases = mb_alloc((size_t)n_chunk * p.scale_row_bytes);
    p.row = mb_alloc((size_t)pool_n_threads(s->pool) * (size_t)it->n_in * sizeof *p.row);
    bool ok = p.weight && p.scales && p.biases && p.row && (it->to.mode != QUANT_TRELLIS || searches_open(s, &p));
    mb_status st = ok ? rows_stream(s, &p, n_chunk)
                      : mb_fail(s->err, MB_NO_MEMORY, "%s: no memory for a piece of %s", s->c->src_dir, it->name);
    mb_free(p.weight);
    mb_free(p.scales);
    mb_free(p.biases);
    mb_free(p.row);
    searches_close(s, &p);
    return st;
}

/* The same codes, scales in another type. */
static mb_status recast_scales(struct sink *s, const struct conv_item *it, size_t i_out, const struct tensor_view *t)
{
    int64_t cols = it->n_in / it->from.group_size;
    const struct conv_item part = { .name = it->name, .src = &t, .n_src = 1, .dtype = it->dtype, .n_rows = it->n_rows,
                                    .n_in = cols, .i_out = i_out };
    return piece_run(s, &part);
}

static mb_status item_write(struct sink *s, const struct conv_item *it)
{
    bool same_codes = it->n_deltas == 0 && it->to.mode != QUANT_NONE && it->from.mode == it->to.mode && it->from.bits == it->to.bits &&
                      it->from.group_size == it->to.group_size;
    if (it->n_rows * it->n_in == 0) return MB_OK;
    if (it->as_is) return copy_item(s, it);
    if (!same_codes) return piece_run(s, it);
    MB_TRY(copy_tensor(s, it->i_out, 0, it->src[0]));
    MB_TRY(recast_scales(s, it, it->i_out + 1, it->scales));
    if (!it->biases) return MB_OK;
    return recast_scales(s, it, it->i_out + 2, it->biases);
}

/* One file: tensors out[0 .. n_out) of items[0 .. n_items). */
static mb_status file_fill(struct sink *s, const char *path, const struct tensor_view *out, size_t n_out, const struct conv_item *items,
                           size_t n_items)
{
    json_t *metadata = json_pack("{s:s}", "format", "mlx");
    if (!metadata) return mb_fail(s->err, MB_NO_MEMORY, "no memory for the header of a shard");
    mb_status st = safetensors_writer_open(&s->w, path, out, n_out, metadata, s->err);
    json_decref(metadata);
    if (st != MB_OK) return st;
    for (size_t i = 0; st == MB_OK && i < n_items; i++) st = item_write(s, &items[i]);
    if (st == MB_OK) return safetensors_writer_finish(s->w, s->err);
    safetensors_writer_abort(s->w);
    return st;
}

static mb_status shard_write(struct sink *s, const struct out_folder *o, size_t i_shard, size_t *i_item)
{
    struct conv *c = s->c;
    char name[64], path[PATH_MAX];
    size_t first = *i_item, from = c->shard_first[i_shard];
    while (*i_item < c->n_items && c->items[*i_item].i_shard == i_shard) ++*i_item;
    conv_shard_name(c, i_shard, name);
    MB_TRY(path_join(path, sizeof path, o->part, name, s->err));
    return file_fill(s, path, c->out + from, c->shard_first[i_shard + 1] - from, c->items + first, *i_item - first);
}

static mb_status mtp_write(struct sink *s, const struct out_folder *o)
{
    char path[PATH_MAX];
    if (s->c->n_mtp == 0) return MB_OK;
    MB_TRY(path_join(path, sizeof path, o->part, OUT_FOLDER_MTP "/model.safetensors", s->err));
    return file_fill(s, path, s->c->mtp_out, s->c->n_mtp, s->c->mtp, s->c->n_mtp);
}

mb_status conv_write(struct conv *c, const struct out_folder *o, mb_error *err)
{
    struct sink s = { .c = c, .err = err };
    size_t i_item = 0;
    for (size_t i = 0; i < c->n_items; i++) {
        const struct conv_item *it = &c->items[i];
        for (size_t k = 0; k < it->n_src; k++) s.total_bytes += it->src[k]->size_bytes;
        s.total_bytes += companion_bytes(it);
    }
    for (size_t i = 0; i < c->n_mtp; i++) s.total_bytes += c->mtp[i].src[0]->size_bytes;
    MB_TRY(pool_open(&s.pool, c->opts->n_threads > 0 ? c->opts->n_threads : threads_default_count(), err));
    mb_status st = MB_OK;
    for (size_t i = 0; st == MB_OK && i < c->n_shards; i++) st = shard_write(&s, o, i, &i_item);
    if (st == MB_OK) st = mtp_write(&s, o);
    pool_close(s.pool);
    return st;
}
