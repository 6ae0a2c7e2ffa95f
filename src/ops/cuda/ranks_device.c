/* ranks_device.c: several ranks as one device: opening them, what each has of a matrix, pages with the same ids on all of them, and
 * the end: a rank that fails ends the group, since its plans cannot go on without it.
 */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ops/cuda/ranks_int.h"

/* --- open and close --- */

/* Ranks of one card: everything in order on the first one's stream. */
static void share_stream(struct rank_group *g)
{
    for (int r = 1; r < g->n; r++) {
        g->rank[r]->lib->stream_close(g->rank[r]->stream);
        g->rank[r]->stream = g->rank[0]->stream;
        g->rank[r]->stream_is_lent = true;
    }
}

/* All bits must come from one class of device. */
static mb_status check_classes(const struct rank_group *g, mb_error *err)
{
    for (int r = 1; r < g->n; r++)
        if (strcmp(g->rank[r]->class_name, g->rank[0]->class_name) != 0)
            return mb_fail_at(err, MB_UNSUPPORTED, "device", "cuda:%d is %s, cuda:%d is %s: ranks must be cards of one kind, so that they "
                              "compute the same bits; name cards of one kind", g->rank[0]->ordinal, g->rank[0]->class_name,
                              g->rank[r]->ordinal, g->rank[r]->class_name);
    return MB_OK;
}

static void describe(struct rank_group *g)
{
    char list[4 * OPS_RANKS_MAX + 8] = "";
    for (int r = 0; r < g->n; r++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", r ? "," : "", g->rank[r]->ordinal % 1000);
    snprintf(g->describe, sizeof g->describe, "cuda:%s %.32s, %zu GB each, %d ranks (%s)", list, g->rank[0]->info.name,
             g->rank[0]->info.total_bytes / 1000000000, g->n, g->comm.ops->name);
}

/* Cards that do not reach each other's memory exchange through NCCL. */
static mb_status open_comm(struct rank_group *g, mb_error *err)
{
    mb_error why = { 0 };
    if (g->comm.ops != &comm_peer) return g->comm.ops->open(&g->comm, err);
    mb_status st = comm_peer.open(&g->comm, &why);
    if (st == MB_UNSUPPORTED) {
        g->comm.ops = &comm_nccl;
        return comm_nccl.open(&g->comm, err);
    }
    if (st != MB_OK && err) *err = why;
    return st;
}

static mb_status open_parts(struct rank_group *g, const struct device_options *opt, mb_error *err)
{
    g->shared_card = opt->cards[0] == opt->cards[1];
    g->comm = (struct comm){ .ops = g->shared_card ? &comm_loopback : opt->nccl ? &comm_nccl : &comm_peer, .rank = g->rank, .group = g };
    for (int r = 0; r < opt->n_ranks; r++) {
        struct device_options one = *opt;
        one.ordinal = opt->cards[r];
        one.n_ranks = 1;
        MB_TRY(cuda_device_open(&g->rank[r], &one, err));
        g->comm.n = g->n = r + 1;
    }
    MB_TRY(check_classes(g, err));
    if (g->shared_card) share_stream(g);
    MB_TRY(open_comm(g, err));
    describe(g);
    return MB_OK;
}

mb_status ranks_device_open(struct device **out, const struct device_options *opt, mb_error *err)
{
    *out = NULL;
    if (opt->n_ranks < 2 || opt->n_ranks > OPS_RANKS_MAX)
        return mb_fail_at(err, MB_INVALID, "device", "%d ranks were asked for, from 2 to %d can be", opt->n_ranks, OPS_RANKS_MAX);
    struct rank_group *g = mb_calloc(1, sizeof *g);
    if (!g) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    mb_status st = open_parts(g, opt, err);
    if (st != MB_OK) {
        ranks_device_close((struct device *)(void *)g);
        return st;
    }
    *out = (struct device *)(void *)g;
    return MB_OK;
}

void ranks_device_close(struct device *d)
{
    struct rank_group *g = ranks_group(d);
    if (!g || g->stuck) return;
    if (g->n == g->comm.n && g->n > 0) g->comm.ops->close(&g->comm);
    for (int r = g->n - 1; r >= 0; r--) cuda_device_close(g->rank[r]); /* the first one's stream is lent to the others */
    mb_free(g);
}

const char *ranks_device_describe(const struct device *d) { return ((const struct rank_group *)(const void *)d)->describe; }
const char *ranks_device_class(const struct device *d) { return ((const struct rank_group *)(const void *)d)->rank[0]->class_name; }

/* Of the fullest card, for one rank: as all sizes here are. */
size_t ranks_memory_free(struct device *d)
{
    struct rank_group *g = ranks_group(d);
    size_t least = SIZE_MAX;
    for (int r = 0; r < g->n; r++) {
        size_t now = cuda_memory_free(g->rank[r]);
        if (now < least) least = now;
    }
    return g->shared_card ? least / (size_t)g->n : least;
}

/* --- failure --- */

mb_status ranks_end(struct rank_group *g, mb_status st)
{
    if (st != MB_OK && !g->dead && !g->recording) {
        g->dead = true;
        g->stuck = !g->comm.ops->abort(&g->comm);
    }
    return st;
}

mb_status ranks_check(struct rank_group *g, int r, int code, const char *what, mb_error *err)
{
    if (code == 0) return MB_OK;
    if (r >= 0) return ranks_end(g, cuda_check(g->rank[r], code, what, err));
    return ranks_end(g, mb_fail_at(err, MB_DEVICE, "device", "%s: %s between the ranks: %s", g->describe, what,
                                   g->comm.ops->error_text(&g->comm, code)));
}

/* Polled, not waited for: a rank whose peer has failed would wait for ever. */
mb_status ranks_wait(struct rank_group *g, const char *what, mb_error *err)
{
    for (int r = 0, done = 0; r < g->n; r += done) {
        if (g->rank[r]->stream_is_lent) {
            done = 1;
            continue;
        }
        g->rank[r]->lib->device_use(g->rank[r]->ordinal);
        MB_TRY(ranks_check(g, r, g->rank[r]->lib->stream_poll(g->rank[r]->stream, &done), what, err));
        for (int q = r + 1; !done && q < g->n; q++) { /* the one that failed may not be the one that is waited for */
            int other;
            MB_TRY(ranks_check(g, q, g->rank[q]->lib->stream_poll(g->rank[q]->stream, &other), what, err));
        }
        if (!done) MB_TRY(ranks_check(g, -1, g->comm.ops->failed(&g->comm), what, err));
    }
    return MB_OK;
}

/* --- weights --- */

static size_t row_bytes_of(const struct weight_source *s)
{
    size_t e = s->dt == DT_F32 ? 4 : s->dt == DT_F8_E4M3 ? 1 : 2;
    return s->spec.mode == QUANT_NONE ? (size_t)s->k * e : (size_t)quant_row_words(&s->spec, s->k) * 4;
}

static size_t scale_bytes_of(const struct weight_source *s)
{
    if (s->spec.mode == QUANT_NONE) return 0;
    return (size_t)(s->k / s->spec.group_size) * (quant_is_fp(&s->spec) ? 1 : s->dt == DT_F32 ? 4 : 2);
}

static const void *beyond(const void *p, size_t bytes)
{
    return p ? (const uint8_t *)p + bytes : NULL;
}

/* What rank r gets of a matrix: rows that lie together. */
static struct weight_source source_of(const struct rank_group *g, const struct weight_source *s, int r)
{
    int64_t first = 0, end = s->n;
    struct weight_source out = *s;
    if (s->split != SPLIT_WHOLE) rank_rows(s->n, s->split, g->n, r, &first, &end);
    size_t rows = (size_t)(first * (s->row_step > 0 ? s->row_step : 1));
    out.n = end - first;
    out.w = beyond(s->w, rows * row_bytes_of(s));
    out.row0 += (int64_t)rows; /* block scales are those of the whole matrix */
    out.scales = beyond(s->scales, rows * scale_bytes_of(s));
    out.biases = beyond(s->biases, rows * scale_bytes_of(s));
    return out;
}

static mb_status check_source(const struct rank_group *g, const struct weight_source *s, mb_error *err)
{
    if (s->split != SPLIT_NEVER && s->n_slices == 0) return MB_OK;
    return mb_fail_at(err, MB_UNSUPPORTED, "device", "tensor %s: experts, gated delta nets and attention over latents are not split over %d "
                      "ranks in this version; use one GPU (--device cuda) or --device cpu", s->name ? s->name : "?", g->n);
}

mb_status ranks_pack_bytes(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err)
{
    struct rank_group *g = ranks_group(d);
    *bytes = 0;
    MB_TRY(check_source(g, src, err));
    for (int r = 0; r < g->n; r++) {
        struct weight_source s = source_of(g, src, r);
        size_t one = 0;
        if (s.n > 0) MB_TRY(cuda_pack_bytes(g->rank[r], &s, &one, err));
        if (one > *bytes) *bytes = one;
    }
    return MB_OK;
}

mb_status ranks_weight_class(struct device *d, const struct weight_source *src, enum ops_class *out, mb_error *err)
{
    return cuda_weight_class(ranks_group(d)->rank[0], src, out, err);
}

mb_status ranks_weight_pack(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err)
{
    struct rank_group *g = ranks_group(d);
    MB_TRY(check_source(g, src, err));
    struct rank_weight *w = mb_calloc(1, sizeof *w);
    mb_status st = w ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory");
    out->impl = w;
    for (int r = 0; r < g->n && st == MB_OK; r++) {
        struct weight_source s = source_of(g, src, r);
        w->part[r] = *out;
        w->part[r].impl = NULL;
        w->part[r].n = s.n;
        if (s.n > 0) st = cuda_weight_pack(g->rank[r], &s, &w->part[r], err);
    }
    if (st != MB_OK) ranks_weight_free(d, out);
    return st;
}

void ranks_weight_free(struct device *d, struct weight *w)
{
    struct rank_group *g = ranks_group(d);
    struct rank_weight *held = w->impl;
    if (!held || g->stuck) return;
    for (int r = 0; r < g->n; r++) cuda_weight_free(g->rank[r], &held->part[r]);
    mb_free(held);
    w->impl = NULL;
}

int32_t ranks_act_group(const struct device *d, const struct weight *w, int32_t source_group)
{
    return cuda_act_group(((const struct rank_group *)(const void *)d)->rank[0], w, source_group);
}

void ranks_weight_row(struct device *d, const struct weight *w, int64_t i, float *out)
{
    struct rank_group *g = ranks_group(d);
    const struct rank_weight *held = w->impl;
    for (int r = 0; r < g->n; r++) {
        int64_t first = 0, end = w->n;
        if (w->split != SPLIT_WHOLE) rank_rows(w->n, w->split, g->n, r, &first, &end);
        if (i < first || i >= end) continue;
        cuda_weight_row(g->rank[r], &held->part[r], i - first, out);
        return;
    }
}

/* --- pages: a page has the same id on every rank and there holds the rank's heads --- */

void ranks_kv_sizes(struct device *d, struct kv_kind *k)
{
    struct rank_group *g = ranks_group(d);
    size_t most = KV_PAGE_UNIT;
    for (int r = 0; r < g->n; r++) {
        int64_t first, end;
        struct kv_kind mine = *k;
        rank_share(k->n_head_kv, g->n, r, &first, &end);
        mine.n_head_kv = (int32_t)(end - first);
        cuda_kv_sizes(g->rank[r], &mine);
        k->head_bytes = mine.head_bytes;
        if (mine.page_bytes > most) most = mine.page_bytes;
    }
    k->page_bytes = most;
}

mb_status ranks_pool_reserve(struct device *d, size_t bytes, mb_error *err)
{
    struct rank_group *g = ranks_group(d);
    for (int r = 0; r < g->n; r++) MB_TRY(cuda_pool_reserve(g->rank[r], bytes, err));
    return MB_OK;
}

void ranks_page_copy(struct device *d, const struct kv_kind *k, int32_t dst_page, int32_t src_page)
{
    struct rank_group *g = ranks_group(d);
    for (int r = 0; r < g->n; r++) cuda_page_copy(g->rank[r], k, dst_page, src_page);
}

void ranks_pool_release(struct device *d, size_t off, size_t bytes)
{
    (void)d;
    (void)off;
    (void)bytes;
}

void ranks_page_read(struct device *d, const struct kv_kind *k, int32_t page, void *dst)
{
    memset(dst, 0, k->page_bytes);
    (void)page;
    ranks_group(d)->asked_for_page = true;
}

void ranks_page_write(struct device *d, const struct kv_kind *k, int32_t page, const void *src)
{
    (void)k;
    (void)page;
    (void)src;
    ranks_group(d)->asked_for_page = true;
}

mb_status ranks_probe(struct device *d, double seconds, struct ops_rates *out, mb_error *err)
{
    return cuda_probe(ranks_group(d)->rank[0], seconds, out, err);
}
