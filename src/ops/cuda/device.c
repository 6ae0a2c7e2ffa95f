/* device.c: a GPU as a device: the library, the card, the one stream, the host threads that pack weights and draw what the
 * device does not, and the page pool: one allocation on the card, whose pages have the ids that engine/kv.c gives them.
 * Work on the stream is in order, so page copies need no wait of their own; what comes back to the host waits.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ops/cuda/cuda_int.h"

#define HOST_THREADS_MAX 16

mb_status cuda_check(const struct device *d, int code, const char *what, mb_error *err)
{
    if (code == 0) return MB_OK;
    return mb_fail_at(err, code == CUDA_CODE_NO_MEMORY ? MB_NO_MEMORY : MB_DEVICE, "device", "%s: %s: %s", d->describe, what,
                      d->lib->error_text(code));
}

#define HOPPER_SHARED_BYTES (227 << 10)

/* Which card, and why not. */
static mb_status choose_card(struct device *d, int ordinal, mb_error *err)
{
    int count = 0, code = d->lib->device_count(&count);
    if (code == CUDA_CODE_DRIVER_OLD)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "device cuda: the NVIDIA driver is missing or older than CUDA 13 wants (%s); "
                          "install driver 580 or later, or use --device cpu", d->lib->error_text(code));
    if (code == CUDA_CODE_NO_DEVICE || (code == 0 && count == 0))
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "device cuda: no NVIDIA GPU is visible on this machine; use --device cpu");
    if (code != 0)
        return mb_fail_at(err, MB_DEVICE, "device", "device cuda: %s; use --device cpu", d->lib->error_text(code));
    if (ordinal >= count)
        return mb_fail_at(err, MB_INVALID, "device", "device cuda:%d was asked for, this machine has %d (cuda:0 to cuda:%d)", ordinal,
                          count, count - 1);
    d->ordinal = ordinal;
    code = d->lib->device_use(ordinal);
    if (code == 0) code = d->lib->device_info(ordinal, &d->info);
    if (code != 0)
        return mb_fail_at(err, MB_DEVICE, "device", "device cuda:%d cannot be used: %s", ordinal, d->lib->error_text(code));
    if (d->info.major < 8)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "device cuda:%d (%s) has compute capability %d.%d, 8.0 or later is needed; use "
                          "--device cpu", ordinal, d->info.name, d->info.major, d->info.minor);
    if (d->info.major >= 9 && d->info.shared_bytes < HOPPER_SHARED_BYTES)
        return mb_fail_at(err, MB_UNSUPPORTED, "device", "device cuda:%d (%s, compute capability %d.%d) lets a block have %zu KB of shared memory, the "
                          "kernels for 9.0 and later want %d; use --device cpu", ordinal, d->info.name, d->info.major, d->info.minor,
                          d->info.shared_bytes >> 10, HOPPER_SHARED_BYTES >> 10);
    snprintf(d->describe, sizeof d->describe, "cuda:%d %s, %zu GB", ordinal, d->info.name, d->info.total_bytes / 1000000000);
    snprintf(d->class_name, sizeof d->class_name, "cuda-sm%d%d-" CUDA_NUMBERS, d->info.major, d->info.minor);
    return MB_OK;
}

static mb_status open_parts(struct device *d, const struct device_options *opt, mb_error *err)
{
    int n = opt->n_threads > 0 ? opt->n_threads : threads_default_count();
    MB_TRY(cuda_library_get(&d->lib, err));
    MB_TRY(choose_card(d, opt->ordinal, err));
    MB_TRY(cuda_check(d, d->lib->stream_open(&d->stream), "a stream", err));
    MB_TRY(cuda_check(d, d->lib->ctx_init(&d->ctx, d->ordinal), "the card's properties", err));
    cpu_kernels_fill(&d->host, cpu_level_detect());
    return pool_open(&d->pool, n < HOST_THREADS_MAX ? n : HOST_THREADS_MAX, err);
}

mb_status cuda_device_open(struct device **out, const struct device_options *opt, mb_error *err)
{
    *out = NULL;
    struct device *d = mb_calloc(1, sizeof *d);
    if (!d) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    snprintf(d->describe, sizeof d->describe, "cuda");
    d->no_graphs = opt->no_graphs;
    mb_status st = open_parts(d, opt, err);
    if (st != MB_OK) {
        cuda_device_close(d);
        return st;
    }
    *out = d;
    return MB_OK;
}

void cuda_device_close(struct device *d)
{
    if (!d) return;
    if (d->stream) {
        d->lib->device_use(d->ordinal);
        d->lib->stream_wait(d->stream);
    }
    cuda_adapters_free(d);
    cuda_chunks_free(d);
    if (d->kv) d->lib->free(d->kv);
    if (d->stream && !d->stream_is_lent) d->lib->stream_close(d->stream);
    if (d->pool) pool_close(d->pool);
    mb_free(d);
}

const char *cuda_device_describe(const struct device *d) { return d->describe; }
const char *cuda_device_class(const struct device *d) { return d->class_name; }

size_t cuda_memory_free(struct device *d)
{
    struct cuda_device_info now;
    d->lib->device_use(d->ordinal);
    return d->lib->device_info(d->ordinal, &now) == 0 ? now.free_bytes : 0;
}

/* --- pages --- */

void cuda_kv_sizes(struct device *d, struct kv_kind *k)
{
    bool state = k->type == KIND_STATE;
    k->head_bytes = state ? ((size_t)k->state_floats * sizeof(float) + 63) / 64 * 64
                    : k->type == KIND_LATENT ? d->lib->latent_page_bytes(k->format, k->head_dim)
                                             : d->lib->kv_head_bytes(k->format, k->head_dim);
    size_t bytes = k->head_bytes * (size_t)(state ? 1 : k->n_head_kv) * (size_t)k->n_layer;
    k->page_bytes = (bytes + KV_PAGE_UNIT - 1) / KV_PAGE_UNIT * KV_PAGE_UNIT;
}

mb_status cuda_pool_reserve(struct device *d, size_t bytes, mb_error *err)
{
    d->lib->device_use(d->ordinal);
    if (d->kv) {
        d->lib->stream_wait(d->stream);
        d->lib->free(d->kv);
    }
    d->kv = NULL;
    d->kv_bytes = 0;
    d->kv_generation++;
    if (bytes == 0) return MB_OK;
    void *p;
    int code = d->lib->alloc(&p, bytes);
    if (code != 0)
        return mb_fail_at(err, MB_NO_MEMORY, "device", "%s: a KV pool of %zu MB does not fit, %zu MB are free: lower --kv-budget or "
                          "--memory-budget", d->describe, bytes >> 20, cuda_memory_free(d) >> 20);
    d->kv = p;
    d->kv_bytes = bytes;
    return cuda_check(d, d->lib->fill(p, 0, bytes, d->stream), "clearing the KV pool", err);
}

static uint8_t *page_at(const struct device *d, int32_t page)
{
    return d->kv + (size_t)page * KV_PAGE_UNIT;
}

void cuda_page_copy(struct device *d, const struct kv_kind *k, int32_t dst_page, int32_t src_page)
{
    d->lib->device_use(d->ordinal);
    d->kv_writes++;
    int code = d->lib->copy(page_at(d, dst_page), page_at(d, src_page), k->page_bytes, d->stream);
    if (code != 0) d->failed = code; /* the next submit says so */
}

/* The pool is one allocation: nothing goes back before the device closes. */
void cuda_pool_release(struct device *d, size_t off, size_t bytes)
{
    (void)d;
    (void)off;
    (void)bytes;
}

void cuda_page_read(struct device *d, const struct kv_kind *k, int32_t page, void *dst)
{
    d->lib->device_use(d->ordinal);
    int code = d->lib->copy(dst, page_at(d, page), k->page_bytes, d->stream);
    if (code == 0) code = d->lib->stream_wait(d->stream);
    if (code != 0) d->failed = code;
}

void cuda_page_write(struct device *d, const struct kv_kind *k, int32_t page, const void *src)
{
    d->lib->device_use(d->ordinal);
    d->kv_writes++;
    int code = d->lib->copy(page_at(d, page), src, k->page_bytes, d->stream);
    if (code == 0) code = d->lib->stream_wait(d->stream);
    if (code != 0) d->failed = code;
}
