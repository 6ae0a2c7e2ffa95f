/* weights.c: checkpoint matrices to packed weights on the card. The file's bytes are sent in pieces of whole tile rows and a
 * kernel packs each piece (kernels.h has the layout); what the kernel does not know, the fp formats, becomes bfloat16 on the
 * host first, exactly, and what the file has turned (attention over latents) becomes floats. One packed copy serves products and rows of a table.
 */
#include <string.h>

#include "base/mem.h"
#include "ops/cuda/cuda_int.h"

#define PACK_BYTES ((size_t)64 << 20)  /* a piece on the device */
#define CHUNK_BYTES ((size_t)64 << 20)
#define CHUNK_ALIGN ((size_t)256)
#define TILE_ROWS 16

/* --- chunks: small matrices share an allocation, large ones have their own --- */

struct cuda_chunk {
    struct cuda_chunk *next;
    uint8_t *data;
    size_t size_bytes, used_bytes;
    int n_weights;
};

static size_t round_up(size_t v)
{
    return (v + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
}

static struct cuda_chunk *chunk_open(struct device *d, size_t size_bytes)
{
    struct cuda_chunk *c = mb_calloc(1, sizeof *c);
    if (!c) return NULL;
    if (d->lib->alloc((void **)&c->data, size_bytes) != 0) {
        mb_free(c);
        return NULL;
    }
    c->size_bytes = size_bytes;
    c->next = d->chunks;
    d->chunks = c;
    return c;
}

static void chunk_close(struct device *d, struct cuda_chunk *c)
{
    for (struct cuda_chunk **at = &d->chunks; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    d->lib->free(c->data);
    mb_free(c);
}

void cuda_chunks_free(struct device *d)
{
    while (d->chunks) chunk_close(d, d->chunks);
    cuda_pack_area_free(d);
}

/* Room for a weight. NULL: none left. */
static uint8_t *chunk_take(struct device *d, size_t bytes, struct cuda_chunk **chunk)
{
    struct cuda_chunk *c = d->chunks;
    size_t whole = round_up(bytes);
    while (c && c->size_bytes - c->used_bytes < whole) c = c->next;
    if (!c) c = chunk_open(d, whole > CHUNK_BYTES / 4 ? whole : CHUNK_BYTES);
    if (!c) return NULL;
    uint8_t *p = c->data + c->used_bytes;
    c->used_bytes += whole;
    c->n_weights++;
    *chunk = c;
    return p;
}

/* --- what a matrix becomes --- */

static bool is_fp_format(const struct weight_source *s)
{
    return s->spec.mode == QUANT_MXFP4 || s->spec.mode == QUANT_MXFP8 || s->spec.mode == QUANT_NVFP4 || s->dt == DT_F8_E4M3;
}

static struct pack_source to_pack_source(const struct weight_source *s)
{
    return (struct pack_source){ .spec = s->spec, .dt = s->dt, .n = s->n, .k = s->k, .w = s->w, .scales = s->scales,
                                 .biases = s->biases, .turned = s->turned, .row_step = s->row_step, .block_dt = s->block_dt, .row0 = s->row0 };
}

/* Fills w and *bytes. The CPU's check of shapes and schemes comes first: same texts. */
static mb_status plan_weight(struct device *d, const struct weight_source *src, struct ck_weight *w, size_t *bytes, mb_error *err)
{
    struct cpu_weight as_cpu;
    struct pack_source p = to_pack_source(src);
    const char *name = src->name ? src->name : "?";
    bool plain = src->spec.mode != QUANT_AFFINE || src->turned;
    if (cpu_pack_plan(&p, &as_cpu, err) != MB_OK) return mb_error_prefix(err, "tensor %s", name);
    if (src->spec.mode == QUANT_TRELLIS)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "tensor %s: trellis-coded weights do not run on a GPU in this version; use "
                          "--device cpu", name);
    d->lib->device_use(d->ordinal);
    *bytes = d->lib->weight_bytes(w, plain ? 0 : src->spec.bits, plain ? 64 : src->spec.group_size, src->spec.group_size == 16 && !src->turned,
                                  src->n, src->k);
    if (*bytes == 0)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "tensor %s: a matrix of %lld x %lld with %d bits in groups of %d does not run on a "
                          "GPU in this version; use --device cpu", name, (long long)src->n, (long long)src->k, src->spec.bits,
                          src->spec.group_size);
    return MB_OK;
}

mb_status cuda_pack_bytes(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err)
{
    struct ck_weight w;
    MB_TRY(plan_weight(d, src, &w, bytes, err));
    *bytes = round_up(*bytes);
    return MB_OK;
}

mb_status cuda_weight_class(struct device *d, const struct weight_source *src, enum ops_class *out, mb_error *err)
{
    static const enum ops_class classes[CK_FORMATS] = { [CK_Q4] = OPS_CLASS_Q4, [CK_Q8] = OPS_CLASS_Q8, [CK_F16] = OPS_CLASS_F };
    struct ck_weight w;
    size_t bytes;
    MB_TRY(plan_weight(d, src, &w, &bytes, err));
    *out = classes[w.format];
    return MB_OK;
}

/* --- packing --- */

struct piece_plan {
    size_t row_bytes, scale_bytes; /* of a source row; 0 scales: floats */
    int bits, group, dt;
};

static struct piece_plan plan_pieces(const struct weight_source *s)
{
    size_t e = s->dt == DT_F32 ? 4 : 2;
    if (s->turned) return (struct piece_plan){ .row_bytes = (size_t)s->k * 4, .dt = CK_DT_F32, .group = 64 };
    if (is_fp_format(s)) return (struct piece_plan){ .row_bytes = (size_t)s->k * 2, .dt = CK_DT_BF16, .group = 64 };
    int dt = s->dt == DT_F32 ? CK_DT_F32 : s->dt == DT_F16 ? CK_DT_F16 : CK_DT_BF16;
    if (s->spec.mode == QUANT_NONE) return (struct piece_plan){ .row_bytes = (size_t)s->k * e, .dt = dt, .group = 64 };
    return (struct piece_plan){ .row_bytes = (size_t)s->k * (size_t)s->spec.bits / 8,
                                .scale_bytes = (size_t)(s->k / s->spec.group_size) * e, .bits = s->spec.bits,
                                .group = s->spec.group_size, .dt = dt };
}

/* Rows of the matrix made by the host, all threads: fp formats as bfloat16, what the file has turned as floats. */
struct host_job {
    struct pack_source src;
    enum dtype dt;              /* turned: of the CPU's packed blocks */
    int64_t row0, n_rows;
    uint8_t *out;               /* NULL: the card reads the file's bytes */
    uint8_t *blocks;            /* turned: one of 16 rows a thread */
};

static void fp_share(void *ctx, int i_thread, int n_threads)
{
    const struct host_job *j = ctx;
    int64_t first, end, step = j->src.row_step > 0 ? j->src.row_step : 1;
    threads_share(j->n_rows, 1, i_thread, n_threads, &first, &end);
    for (int64_t r = first; r < end; r++) cpu_fp_row(&j->src, (j->row0 + r) * step, (uint16_t *)(void *)j->out + r * j->src.k);
}

/* The CPU turns 16 rows at a time, into [k][16]. */
static void turned_share(void *ctx, int i_thread, int n_threads)
{
    const struct host_job *j = ctx;
    int64_t first, end, k = j->src.k;
    uint8_t *block = j->blocks + (size_t)i_thread * (size_t)k * TILE_ROWS * sizeof(float);
    threads_share(j->n_rows, TILE_ROWS, i_thread, n_threads, &first, &end);
    for (int64_t r = first; r < end; r += TILE_ROWS) {
        int64_t at = (j->row0 + r) / TILE_ROWS;
        cpu_pack_blocks(&j->src, at, at + 1, block);
        for (int64_t i = 0; i < TILE_ROWS && r + i < end; i++)
            for (int64_t c = 0; c < k; c++) ((float *)(void *)j->out)[(r + i) * k + c] = dtype_float_at(block, j->dt, c * TILE_ROWS + i);
    }
}

/* Room for `rows` of them, where the host makes any. */
static mb_status host_job_open(struct host_job *j, const struct device *d, const struct weight_source *s, const struct piece_plan *p, int64_t rows,
                               mb_error *err)
{
    struct cpu_weight as_cpu;
    size_t bytes = (size_t)rows * p->row_bytes, blocks = s->turned ? (size_t)pool_n_threads(d->pool) * (size_t)s->k * TILE_ROWS * sizeof(float) : 0;
    *j = (struct host_job){ .src = to_pack_source(s) };
    if (!is_fp_format(s) && !s->turned) return MB_OK;
    MB_TRY(cpu_pack_plan(&j->src, &as_cpu, err));
    j->dt = as_cpu.dt;
    j->out = mb_alloc(bytes + blocks);
    j->blocks = j->out ? j->out + bytes : NULL;
    return j->out ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory for %s", s->name);
}

/* Rows [row0, row0 + n) of the source, which are rows at .. of the weight, through the area: codes, then scales, then biases. */
static int pack_piece(struct device *d, const struct weight_source *s, const struct piece_plan *p, const struct ck_weight *w,
                      const uint8_t *converted, int64_t row0, int64_t n, int64_t at)
{
    const struct cuda_library *lib = d->lib;
    int64_t step = converted ? 1 : s->row_step > 0 ? s->row_step : 1;
    size_t first = converted ? 0 : (size_t)(row0 * step), span = (size_t)((n - 1) * step + 1);
    uint8_t *codes = d->pack_area, *scales = codes + round_up(span * p->row_bytes), *biases = scales + round_up(span * p->scale_bytes);
    const uint8_t *from = converted ? converted : (const uint8_t *)s->w + first * p->row_bytes;
    int code = lib->copy(codes, from, span * p->row_bytes, d->stream);
    if (code == 0 && p->scale_bytes)
        code = lib->copy(scales, (const uint8_t *)s->scales + first * p->scale_bytes, span * p->scale_bytes, d->stream);
    if (code == 0 && p->scale_bytes)
        code = lib->copy(biases, (const uint8_t *)s->biases + first * p->scale_bytes, span * p->scale_bytes, d->stream);
    if (code == 0)
        code = lib->pack(&d->ctx, w, p->bits, p->group, p->dt, codes, p->scale_bytes ? scales : NULL, p->scale_bytes ? biases : NULL, at, n,
                         step, 0, d->stream);
    return code != 0 ? code : lib->stream_wait(d->stream);
}

/* All rows of s, a matrix or a slice of one, to rows first .. of the weight. */
static mb_status pack_rows(struct device *d, const struct weight_source *s, const struct ck_weight *w, int64_t first, mb_error *err)
{
    struct piece_plan p = plan_pieces(s);
    int64_t step = s->row_step > 0 && !is_fp_format(s) ? s->row_step : 1;
    int64_t rows = (int64_t)((PACK_BYTES - 4096) / ((p.row_bytes + 2 * p.scale_bytes) * (size_t)step)) / TILE_ROWS * TILE_ROWS;
    struct host_job j;
    if (rows < TILE_ROWS) return mb_fail(err, MB_UNSUPPORTED, "tensor %s: rows of %lld values are too long for a GPU", s->name, (long long)s->k);
    if (rows > s->n) rows = (s->n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    if (!d->pack_area) MB_TRY(cuda_check(d, d->lib->alloc(&d->pack_area, PACK_BYTES), "memory for packing", err));
    mb_status st = host_job_open(&j, d, s, &p, rows, err);
    for (int64_t at = 0; st == MB_OK && at < s->n; at += rows) {
        int64_t n = s->n - at < rows ? s->n - at : rows;
        j.row0 = at;
        j.n_rows = n;
        if (j.out) pool_run(d->pool, s->turned ? turned_share : fp_share, &j);
        st = cuda_check(d, pack_piece(d, s, &p, w, j.out, at, n, first + at), s->name, err);
    }
    mb_free(j.out);
    return st;
}

static mb_status pack_all(struct device *d, const struct weight_source *s, const struct ck_weight *w, mb_error *err)
{
    if (s->n_slices == 0) return pack_rows(d, s, w, 0, err);
    for (int32_t i = 0; i < s->n_slices; i++) {
        struct weight_source slice = *s;
        slice.n = s->n / s->n_slices;
        slice.w = s->slices[i].w;
        slice.scales = s->slices[i].scales;
        slice.biases = s->slices[i].biases;
        slice.row0 = s->slices[i].row0;
        MB_TRY(pack_rows(d, &slice, w, i * slice.n, err));
    }
    return MB_OK;
}

mb_status cuda_weight_pack(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err)
{
    size_t bytes;
    struct cuda_weight *w = mb_calloc(1, sizeof *w);
    if (!w) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    mb_status st = plan_weight(d, src, &w->w, &bytes, err);
    uint8_t *block = st == MB_OK ? chunk_take(d, bytes, &w->chunk) : NULL;
    if (st == MB_OK && !block)
        st = mb_fail_at(err, MB_NO_MEMORY, "device", "%s: no memory for %s (%zu MB; %zu MB are free)", d->describe,
                        src->name ? src->name : "a weight", bytes >> 20, cuda_memory_free(d) >> 20);
    if (st == MB_OK) {
        d->lib->weight_place(&w->w, block);
        st = pack_all(d, src, &w->w, err);
    }
    out->impl = w;
    if (st != MB_OK) cuda_weight_free(d, out);
    return st;
}

void cuda_weight_free(struct device *d, struct weight *w)
{
    struct cuda_weight *impl = w->impl;
    if (!impl) return;
    d->lib->device_use(d->ordinal);
    if (impl->chunk && --impl->chunk->n_weights == 0) chunk_close(d, impl->chunk);
    mb_free(impl);
    w->impl = NULL;
}

void cuda_pack_area_free(struct device *d)
{
    if (d->pack_area) d->lib->free(d->pack_area);
    d->pack_area = NULL;
}

int32_t cuda_act_group(const struct device *d, const struct weight *w, int32_t source_group)
{
    (void)d;
    (void)w;
    (void)source_group;
    return 0; /* one form of linear input for all weights */
}

void cuda_weight_row(struct device *d, const struct weight *w, int64_t i, float *out)
{
    const struct cuda_weight *impl = w->impl;
    int32_t id = (int32_t)i;
    uint8_t *area = NULL;
    size_t bytes = (size_t)w->k * sizeof(float);
    d->lib->device_use(d->ordinal);
    memset(out, 0, bytes);
    int code = d->lib->alloc((void **)&area, 256 + bytes);
    if (code == 0) code = d->lib->copy(area, &id, sizeof id, d->stream);
    if (code == 0)
        code = d->lib->gather(&d->ctx, &impl->w, (int32_t *)(void *)area, 1, 1.0f, (float *)(void *)(area + 256), w->k, d->stream);
    if (code == 0) code = d->lib->copy(out, area + 256, bytes, d->stream);
    if (code == 0) code = d->lib->stream_wait(d->stream);
    if (code != 0) d->failed = code;
    if (area) d->lib->free(area);
}
