/* weights.c: checkpoint matrices to packed weights. All compute threads pack; each touches first the blocks it will later
 * begin with (the same share as the matmul's, passes.c), so that memory lies near its reader.
 */
#include <string.h>

#include "base/mem.h"
#include "format/trellis.h"
#include "ops/cpu/cpu_int.h"

static struct pack_source to_pack_source(const struct weight_source *s)
{
    return (struct pack_source){ .spec = s->spec, .dt = s->dt, .n = s->n, .k = s->k, .w = s->w, .scales = s->scales,
                                 .biases = s->biases, .turned = s->turned, .row_step = s->row_step, .block_dt = s->block_dt,
                                 .row0 = s->row0 };
}

mb_status cpu_source_plan(const struct weight_source *src, struct cpu_weight *w, mb_error *err)
{
    struct pack_source p = to_pack_source(src);
    mb_status st = cpu_pack_plan(&p, w, err);
    return st == MB_OK ? st : mb_error_prefix(err, "tensor %s", src->name ? src->name : "?");
}

mb_status cpu_pack_bytes(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err)
{
    (void)d;
    struct cpu_weight w;
    MB_TRY(cpu_source_plan(src, &w, err));
    *bytes = src->gather_only ? 0 : cpu_weight_bytes(&w);
    return MB_OK;
}

mb_status cpu_weight_class(struct device *d, const struct weight_source *src, enum ops_class *out, mb_error *err)
{
    static const enum ops_class classes[] = { [CPU_W_Q4] = OPS_CLASS_Q4, [CPU_W_Q8] = OPS_CLASS_Q8, [CPU_W_F] = OPS_CLASS_F };
    (void)d;
    struct cpu_weight w;
    MB_TRY(cpu_source_plan(src, &w, err));
    *out = classes[w.type];
    return MB_OK;
}

/* --- chunks: the weights of a model side by side, so that small matrices share huge pages and a thread's stream goes on
 * from one to the next. Large ones get a chunk of their own. --- */

#define CHUNK_BYTES ((size_t)32 << 20)
#define CHUNK_ALIGN ((size_t)64)

static struct weight_chunk *chunk_open(struct device *d, size_t size_bytes)
{
    struct weight_chunk *c = mb_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->size_bytes = size_bytes;
    c->data = huge_map(size_bytes, false);
    if (!c->data) {
        mb_free(c);
        return NULL;
    }
    c->next = d->chunks;
    d->chunks = c;
    return c;
}

static void chunk_close(struct device *d, struct weight_chunk *c)
{
    for (struct weight_chunk **at = &d->chunks; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    huge_unmap(c->data, c->size_bytes);
    mb_free(c);
}

void cpu_chunks_free(struct device *d)
{
    while (d->chunks) chunk_close(d, d->chunks);
}

/* Room for a weight; *chunk counts it. NULL: no memory. */
static uint8_t *chunk_take(struct device *d, size_t size_bytes, struct weight_chunk **chunk)
{
    struct weight_chunk *c = d->chunks;
    size_t whole = (size_bytes + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
    while (c && c->size_bytes - c->used_bytes < whole) c = c->next;
    if (!c) c = chunk_open(d, whole > CHUNK_BYTES / 4 ? whole : CHUNK_BYTES);
    if (!c) return NULL;
    uint8_t *p = c->data + c->used_bytes;
    c->used_bytes += whole;
    c->n_weights++;
    *chunk = c;
    return p;
}

static void chunk_give(struct device *d, struct weight_chunk *c)
{
    if (--c->n_weights == 0) chunk_close(d, c);
}

/* --- packing --- */

struct pack_job {
    const struct weight_source *src;
    struct cpu_weight *w;
    uint8_t *dst;
};

/* Blocks [first, end) of a matrix whose slices lie apart; a slice is whole blocks. */
static void pack_slices(const struct weight_source *whole, const struct cpu_weight *w, int64_t first, int64_t end, uint8_t *dst)
{
    int64_t each = w->n / whole->n_slices / 16;
    struct pack_source src = to_pack_source(whole);
    src.n = 16 * each;
    for (int64_t at = first, stop; at < end; at = stop) {
        int64_t i = at / each;
        const struct weight_slice *s = &whole->slices[i];
        src.w = s->w;
        src.scales = s->scales;
        src.biases = s->biases;
        src.row0 = s->row0;
        stop = (i + 1) * each < end ? (i + 1) * each : end;
        cpu_pack_blocks(&src, at - i * each, stop - i * each, dst + (size_t)(at - first) * w->block_bytes);
    }
}

void cpu_source_pack(const struct weight_source *src, const struct cpu_weight *w, int64_t first, int64_t end, uint8_t *dst)
{
    if (first >= end) return;
    if (src->n_slices > 0) {
        pack_slices(src, w, first, end, dst);
        return;
    }
    struct pack_source one = to_pack_source(src);
    cpu_pack_blocks(&one, first, end, dst);
}

static void pack_share(void *ctx, int i_thread, int n_threads)
{
    struct pack_job *j = ctx;
    int64_t first, end;
    threads_share(cpu_weight_blocks(j->w), CPU_SHARE_BLOCKS, i_thread, n_threads, &first, &end);
    cpu_source_pack(j->src, j->w, first, end, j->dst + (size_t)first * j->w->block_bytes);
}

mb_status cpu_weight_pack(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err)
{
    struct cpu_weight_impl *w = mb_calloc(1, sizeof *w);
    if (!w) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    struct pack_job j = { .src = src, .w = &w->packed };
    struct pack_source p = to_pack_source(src);
    mb_status st = cpu_pack_plan(&p, &w->packed, err);
    w->source = *src;
    w->mapped = src->gather_only;
    bool cached = st == MB_OK && !w->mapped && d->cache && src->name && packed_find(d->cache, src->name, &w->packed);
    if (st == MB_OK && !w->mapped && !cached) {
        j.dst = chunk_take(d, cpu_weight_bytes(&w->packed), &w->chunk);
        w->packed.data = j.dst;
        if (j.dst) pool_run(d->pool, pack_share, &j);
        if (j.dst && d->cache && src->name) packed_note(d->cache, src->name, &w->packed);
        if (!j.dst) st = mb_fail(err, MB_NO_MEMORY, "out of memory for %s (%zu bytes packed)", src->name, cpu_weight_bytes(&w->packed));
    }
    if (st != MB_OK) {
        mb_free(w);
        return st;
    }
    out->impl = w;
    return MB_OK;
}

void cpu_weight_free(struct device *d, struct weight *w)
{
    struct cpu_weight_impl *impl = w->impl;
    if (!impl) return;
    if (impl->chunk) chunk_give(d, impl->chunk);
    mb_free(impl);
    w->impl = NULL;
}

int32_t cpu_act_group(const struct device *d, const struct weight *w, int32_t source_group)
{
    (void)d;
    (void)w;
    return source_group; /* integer kernels sum inside the weight's own group; 0: float weights take floats */
}

/* Row i straight from the checkpoint: the same values as from the packed form. */
static void mapped_row(const struct weight_source *s, int64_t i, float *out)
{
    struct pack_source fp = to_pack_source(s);
    int64_t words = quant_row_words(&s->spec, s->k);
    switch (s->spec.mode) {
    case QUANT_NONE:
        for (int64_t j = 0; j < s->k; j++) out[j] = dtype_float_at(s->w, s->dt, i * s->k + j);
        break;
    case QUANT_AFFINE: {
        size_t first = (size_t)(i * (s->k / s->spec.group_size)) * (size_t)dtype_get(s->dt)->size_bytes;
        quant_affine_dequantise(&s->spec, (const uint32_t *)s->w + i * words, (const uint8_t *)s->scales + first,
                                (const uint8_t *)s->biases + first, s->dt, 1, s->k, out);
        break;
    }
    case QUANT_TRELLIS: {
        size_t first = (size_t)(i * (s->k / s->spec.group_size)) * (size_t)dtype_get(s->dt)->size_bytes;
        trellis_dequantise(&s->spec, (const uint32_t *)s->w + i * words, (const uint8_t *)s->scales + first, s->dt, 1, s->k, out);
        break;
    }
    default:
        for (int64_t j = 0; j < s->k; j++) out[j] = cpu_fp_value(&fp, i, j);
    }
}

void cpu_weight_row(struct device *d, const struct weight *w, int64_t i, float *out)
{
    const struct cpu_weight_impl *impl = w->impl;
    if (impl->mapped) mapped_row(&impl->source, i, out);
    else d->kernels.gather_row(&impl->packed, i, out);
}
