/* device.c: the CPU as a device: its threads, its kernel table, and the page pool (one reservation of address space whose
 * pages become memory when they are first written).
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mem.h"
#include "ops/cpu/cpu_int.h"

static mb_status choose_level(const char *name, enum cpu_level *out, mb_error *err)
{
    enum cpu_level best = cpu_level_detect();
    *out = best;
    if (!name) return MB_OK;
    if (!cpu_level_parse(name, out))
        return mb_fail_at(err, MB_INVALID, "cpu-level", "cpu level %.32s is unknown; use portable, avx2, avx512 or amx", name);
    if (*out > best)
        return mb_fail_at(err, MB_UNSUPPORTED, "cpu-level", "this machine's CPU has no %s; its best level is %s", name,
                          cpu_level_name(best));
    return MB_OK;
}

mb_status cpu_device_open(struct device **out, const struct device_options *opt, mb_error *err)
{
    enum cpu_level level;
    *out = NULL;
    MB_TRY(choose_level(opt->cpu_level, &level, err));
    struct device *d = mb_calloc(1, sizeof *d);
    if (!d) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    cpu_kernels_fill(&d->kernels, level);
    int n = opt->n_threads > 0 ? opt->n_threads : threads_default_count();
    mb_status st = pool_open(&d->pool, n, err);
    if (st != MB_OK) {
        mb_free(d);
        return st;
    }
    if (opt->experts_path) {
        st = experts_open(&d->experts, opt->experts_path, opt->experts_key, err);
        if (st != MB_OK) {
            cpu_device_close(d);
            return st;
        }
    }
    if (opt->packed_path) d->cache = packed_open(opt->packed_path, opt->packed_key);
    snprintf(d->describe, sizeof d->describe, "cpu %s, %d thread%s", d->kernels.level, n, n == 1 ? "" : "s");
    *out = d;
    return MB_OK;
}

void cpu_device_close(struct device *d)
{
    if (!d) return;
    pool_close(d->pool);
    huge_unmap(d->kv, d->kv_bytes);
    cpu_chunks_free(d);
    packed_close(d->cache);
    experts_close(d->experts);
    mb_free(d);
}

const char *cpu_device_describe(const struct device *d) { return d->describe; }
const char *cpu_device_class(const struct device *d) { (void)d; return "cpu"; } /* all levels: the same bits */

void cpu_kv_sizes(struct device *d, struct kv_kind *k)
{
    (void)d;
    bool state = k->type == KIND_STATE;
    k->head_bytes = state ? ((size_t)k->state_floats * sizeof(float) + 63) / 64 * 64
                    : k->type == KIND_LATENT ? kv_latent_bytes((enum kv_format)k->format, k->head_dim)
                                             : kv_head_bytes((enum kv_format)k->format, k->head_dim);
    size_t bytes = k->head_bytes * (size_t)(state ? 1 : k->n_head_kv) * (size_t)k->n_layer;
    k->page_bytes = (bytes + KV_PAGE_UNIT - 1) / KV_PAGE_UNIT * KV_PAGE_UNIT;
}

mb_status cpu_pool_reserve(struct device *d, size_t bytes, mb_error *err)
{
    huge_unmap(d->kv, d->kv_bytes);
    d->kv = NULL;
    d->kv_bytes = 0;
    if (bytes == 0) return MB_OK;
    void *p = huge_map(bytes, true);
    if (!p) return mb_fail(err, MB_NO_MEMORY, "cannot reserve a KV pool of %zu bytes", bytes);
    d->kv = p;
    d->kv_bytes = bytes;
    return MB_OK;
}

void cpu_page_copy(struct device *d, const struct kv_kind *k, int32_t dst_page, int32_t src_page)
{
    memcpy(d->kv + (size_t)dst_page * KV_PAGE_UNIT, d->kv + (size_t)src_page * KV_PAGE_UNIT, k->page_bytes);
}

void cpu_pool_release(struct device *d, size_t off, size_t bytes)
{
    if (d->kv && off + bytes <= d->kv_bytes) madvise(d->kv + off, bytes, MADV_DONTNEED);
}

void cpu_page_read(struct device *d, const struct kv_kind *k, int32_t page, void *dst)
{
    memcpy(dst, d->kv + (size_t)page * KV_PAGE_UNIT, k->page_bytes);
}

void cpu_page_write(struct device *d, const struct kv_kind *k, int32_t page, const void *src)
{
    memcpy(d->kv + (size_t)page * KV_PAGE_UNIT, src, k->page_bytes);
}
