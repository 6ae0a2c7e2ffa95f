/* weights_experts.c: a layer's experts to records of the experts' file: an expert's gate, up and down one behind the other, packed as
 * any weight. All compute threads pack, one record at a time: a record is all the memory that this takes. When the file is there
 * already, nothing of the checkpoint is read. */
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"
#include "ops/cpu/cpu_int.h"

#define PART_ALIGN ((size_t)64)

struct layout {
    struct cpu_weight w[3];    /* of all experts of the layer */
    size_t off[3], record_bytes;
    int64_t n_blocks[3];       /* of one expert */
};

static size_t round_up(size_t v, size_t to)
{
    return (v + to - 1) / to * to;
}

static mb_status lay_out(const struct weight_source src[3], int32_t n, struct layout *l, mb_error *err)
{
    size_t at = 0;
    for (int p = 0; p < 3; p++) {
        MB_TRY(cpu_source_plan(&src[p], &l->w[p], err));
        if (src[p].n % (16 * (int64_t)n) != 0)
            return mb_fail(err, MB_UNSUPPORTED, "tensor %s: experts of %lld rows stay in memory only in multiples of 16; leave "
                           "--expert-offload out", src[p].name, (long long)(src[p].n / n));
        l->n_blocks[p] = src[p].n / n / 16;
        l->off[p] = at;
        at += round_up((size_t)l->n_blocks[p] * l->w[p].block_bytes, PART_ALIGN);
    }
    l->record_bytes = round_up(at, EXPERT_ALIGN);
    return MB_OK;
}

static uint64_t form_of(const struct layout *l, const char *name)
{
    uint64_t h = XXH3_64bits(name, strlen(name));
    for (int p = 0; p < 3; p++) {
        const struct cpu_weight *w = &l->w[p];
        int64_t form[7] = { w->type, w->dt, w->g, w->n, w->k, (int64_t)w->block_bytes, (int64_t)l->off[p] };
        h = XXH3_64bits_withSeed(form, sizeof form, h);
    }
    return h;
}

mb_status cpu_expert_bytes(struct device *d, const struct weight_source src[3], int32_t n, size_t *bytes, mb_error *err)
{
    struct layout l;
    (void)d;
    MB_TRY(lay_out(src, n, &l, err));
    *bytes = l.record_bytes;
    return MB_OK;
}

/* One record. */
struct record_job {
    const struct weight_source *src;
    const struct layout *l;
    int32_t i;
    uint8_t *dst;
};

static void record_share(void *ctx, int i_thread, int n_threads)
{
    const struct record_job *j = ctx;
    for (int p = 0; p < 3; p++) {
        int64_t first, end, base = j->i * j->l->n_blocks[p];
        threads_share(j->l->n_blocks[p], 1, i_thread, n_threads, &first, &end);
        uint8_t *to = j->dst + j->l->off[p] + (size_t)first * j->l->w[p].block_bytes;
        cpu_source_pack(&j->src[p], &j->l->w[p], base + first, base + end, to);
    }
}

static mb_status write_records(struct device *d, const struct weight_source src[3], const struct layout *l, int32_t n, mb_error *err)
{
    struct record_job j = { .src = src, .l = l };
    mb_status st = MB_OK;
    j.dst = mb_alloc_aligned(EXPERT_ALIGN, l->record_bytes);
    if (!j.dst) return mb_fail(err, MB_NO_MEMORY, "out of memory for an expert of %zu bytes", l->record_bytes);
    memset(j.dst, 0, l->record_bytes); /* what lies between parts is written too */
    for (j.i = 0; j.i < n && st == MB_OK; j.i++) {
        pool_run(d->pool, record_share, &j);
        st = expert_file_write(experts_file(d->experts), j.dst, err);
    }
    mb_free(j.dst);
    return st;
}

static void free_three(struct cpu_weight_impl *impl[3])
{
    for (int p = 0; p < 3; p++) mb_free(impl[p]);
}

mb_status cpu_pack_experts(struct device *d, const struct weight_source src[3], int32_t n, struct weight *const out[3], mb_error *err)
{
    struct layout l;
    struct cpu_weight_impl *impl[3] = { NULL, NULL, NULL };
    int32_t i_group, i_first;
    struct expert_file *f = experts_file(d->experts);
    MB_TRY(lay_out(src, n, &l, err));
    MB_TRY(expert_file_group(f, src[0].name, form_of(&l, src[0].name), n, l.record_bytes, &i_group, &i_first, err));
    if (!expert_file_is_made(f)) MB_TRY(write_records(d, src, &l, n, err));
    for (int p = 0; p < 3; p++) {
        impl[p] = mb_calloc(1, sizeof *impl[p]);
        if (!impl[p]) {
            free_three(impl);
            return mb_fail(err, MB_NO_MEMORY, "out of memory");
        }
        *impl[p] = (struct cpu_weight_impl){ .packed = l.w[p], .offloaded = true, .i_group = i_group, .expert_off = l.off[p] };
    }
    for (int p = 0; p < 3; p++) out[p]->impl = impl[p];
    return MB_OK;
}

mb_status cpu_experts_reserve(struct device *d, size_t bytes, mb_error *err)
{
    return d->experts ? experts_reserve(d->experts, bytes, err) : MB_OK;
}

void cpu_experts_stats(struct device *d, struct ops_expert_stats *out)
{
    memset(out, 0, sizeof *out);
    if (d->experts) experts_stats(d->experts, out);
}
