/* weights.c: checkpoint matrices to packed weights. All compute threads pack; each touches first the blocks it will later
 * begin with (the same share as the matmul's, passes.c), so that memory lies near its reader.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "ops/cpu/cpu_int.h"

static struct pack_source to_pack_source(const struct weight_source *s)
{
    return (struct pack_source){ .spec = s->spec, .dt = s->dt, .n = s->n, .k = s->k, .w = s->w, .scales = s->scales,
                                 .biases = s->biases };
}

static size_t packed_bytes(const struct cpu_weight *w)
{
    return (size_t)((w->n + 15) / 16) * w->block_bytes;
}

mb_status cpu_pack_bytes(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err)
{
    (void)d;
    struct cpu_weight w;
    struct pack_source p = to_pack_source(src);
    mb_status st = cpu_pack_plan(&p, &w, err);
    if (st != MB_OK) return mb_error_prefix(err, "tensor %s", src->name ? src->name : "?");
    *bytes = src->gather_only ? 0 : packed_bytes(&w);
    return MB_OK;
}

/* Fresh memory of the system. From HUGE_MIN on it begins at a huge page and asks for them: fewer faults while packing, fewer
 * entries of the translation cache while reading. NULL: no memory. Release with munmap of the same size. */
#define HUGE_BYTES ((size_t)2 << 20)
#define HUGE_MIN (2 * HUGE_BYTES)

static uint8_t *map_bytes(size_t size_bytes)
{
    size_t extra = size_bytes >= HUGE_MIN ? HUGE_BYTES : 0, page = 4096, whole = (size_bytes + page - 1) / page * page;
    uint8_t *p = mmap(NULL, whole + extra, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!extra) return p;
    size_t head = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
    if (head > 0) munmap(p, head);
    if (extra > head) munmap(p + head + whole, extra - head);
    madvise(p + head, whole, MADV_HUGEPAGE);
    return p + head;
}

struct pack_job {
    struct pack_source src;
    struct cpu_weight *w;
    uint8_t *dst;
};

static void pack_share(void *ctx, int i_thread, int n_threads)
{
    struct pack_job *j = ctx;
    int64_t first, end;
    threads_share((j->w->n + 15) / 16, CPU_SHARE_BLOCKS, i_thread, n_threads, &first, &end);
    if (first < end) cpu_pack_blocks(&j->src, first, end, j->dst + (size_t)first * j->w->block_bytes);
}

mb_status cpu_weight_pack(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err)
{
    struct cpu_weight_impl *w = mb_calloc(1, sizeof *w);
    if (!w) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    struct pack_job j = { .src = to_pack_source(src), .w = &w->packed };
    mb_status st = cpu_pack_plan(&j.src, &w->packed, err);
    w->source = *src;
    w->mapped = src->gather_only;
    if (st == MB_OK && !w->mapped) {
        w->size_bytes = packed_bytes(&w->packed);
        uint8_t *p = map_bytes(w->size_bytes);
        if (!p) {
            w->size_bytes = 0;
            st = mb_fail(err, MB_NO_MEMORY, "out of memory for %s (%zu bytes packed)", src->name, packed_bytes(&w->packed));
        } else {
            j.dst = p;
            w->packed.data = p;
            pool_run(d->pool, pack_share, &j);
        }
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
    (void)d;
    struct cpu_weight_impl *impl = w->impl;
    if (!impl) return;
    if (impl->size_bytes) munmap((void *)impl->packed.data, impl->size_bytes);
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
    if (s->spec.mode == QUANT_AFFINE) {
        int64_t words = quant_row_words(&s->spec, s->k), groups = s->k / s->spec.group_size;
        size_t e = (size_t)dtype_get(s->dt)->size_bytes;
        quant_affine_dequantise(&s->spec, (const uint32_t *)s->w + i * words,
                                (const uint8_t *)s->scales + (size_t)(i * groups) * e,
                                (const uint8_t *)s->biases + (size_t)(i * groups) * e, s->dt, 1, s->k, out);
        return;
    }
    const uint8_t *p = (const uint8_t *)s->w + (size_t)(i * s->k) * (size_t)dtype_get(s->dt)->size_bytes;
    for (int64_t j = 0; j < s->k; j++) {
        uint16_t h;
        if (s->dt == DT_F32) { memcpy(&out[j], p + 4 * j, 4); continue; }
        memcpy(&h, p + 2 * j, 2);
        out[j] = s->dt == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
}

void cpu_weight_row(struct device *d, const struct weight *w, int64_t i, float *out)
{
    const struct cpu_weight_impl *impl = w->impl;
    if (impl->mapped) mapped_row(&impl->source, i, out);
    else d->kernels.gather_row(&impl->packed, i, out);
}
