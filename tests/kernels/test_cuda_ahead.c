/* test_cuda_ahead.c: steps ahead (ops/cuda/ahead.c) without a GPU: the host side of the CUDA backend over a card that is made of a few
 * functions here. It computes nothing but what tells one step from another: a key is a hash of id, index and rotary row, a draw a hash of all
 * keys that its token sees and of its job, so that a wrong id, page, index, mask, slot or order changes what is drawn. A graph is a list of
 * calls; work is done as it is enqueued, as early as a card could.
 */
#include "kernels/cuda_ahead.h"

#include <stdio.h>

#include "base/mem.h"
#include "ops/cuda/cuda_int.h"

/* --- the card --- */

struct call {
    enum { GATHER, ATTEND, SAMPLE, FETCH } kind;
    const int32_t *ids;
    struct cs_rope rope;
    struct ck_attend attend;
    struct cs_draws draws;
    void *dst;
    const void *src;
    size_t bytes;
};
struct list {
    struct call calls[64];
    int n;
};
static struct list *recording;
static struct call last;    /* the step at hand: ids, then pages */
static int leave_to_host;   /* every so many draws; 0: none */

static uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 1099511628211u; }

static uint32_t *key_at(const struct ck_attend *a, const struct cs_rope *r, int i, int index)
{
    const int32_t page = a->pages[r->table_of[i] + index / KV_PAGE_TOKENS];
    return (uint32_t *)(void *)((uint8_t *)(uintptr_t)a->pool + (size_t)page * KV_PAGE_UNIT + a->head_off) + index % KV_PAGE_TOKENS;
}

static void do_attend(const struct call *c)
{
    const struct cs_rope *r = &c->rope;
    for (int i = 0; i < r->m; i++) {
        uint64_t h = mix(mix(14695981039346656037u, (uint32_t)last.ids[i]), (uint32_t)r->index[i]);
        for (int k = 0; r->table && k < r->n_rot; k++) {
            uint32_t bits;
            memcpy(&bits, &r->table[i * r->n_rot + k], sizeof bits);
            h = mix(h, bits);
        }
        *key_at(&c->attend, r, i, r->index[i]) = (uint32_t)(h >> 20);
    }
    last.rope = c->rope;
    last.attend = c->attend;
}

static void do_sample(const struct cs_draws *d)
{
    struct cuda_draw_out *outs = d->outs + (d->slot ? *d->slot * d->slot_step : 0);
    for (int i = 0; i < d->n_draw; i++) {
        const struct cuda_draw_job *j = &d->jobs[i];
        const int tok = d->n_draw == last.rope.m ? i : last.rope.m - 1;
        uint64_t h = mix(mix(j->index, j->seed_lo), (uint64_t)(j->inv_temperature * 1000));
        for (int k = last.attend.lo[tok]; k < last.attend.hi[tok]; k++) h = mix(h, *key_at(&last.attend, &last.rope, tok, k));
        h ^= h >> 31;
        float *row = (float *)(uintptr_t)d->logits + i * d->ld;
        memset(row, 0, (size_t)d->n_vocab * sizeof *row);
        row[h % (uint32_t)d->n_vocab] = (float)(h % 1000);
        if (j->on_host) continue;
        outs[i] = (struct cuda_draw_out){ (int32_t)(h % (uint32_t)d->n_vocab), (int32_t)(h % 31), (float)(h % 1009), (float)(h % 77), CUDA_DRAW_OK };
        if (leave_to_host > 0 && h % (uint32_t)leave_to_host == 0) outs[i].state = CUDA_DRAW_HOST;
        if (d->ids) d->ids[i] = outs[i].id;
    }
}

static void execute(const struct call *c)
{
    if (c->kind == GATHER) last.ids = c->ids;
    if (c->kind == ATTEND) do_attend(c);
    if (c->kind == SAMPLE) do_sample(&c->draws);
    if (c->kind == FETCH) memcpy(c->dst, c->src, c->bytes);
}

static int enqueue(const struct call *c)
{
    if (recording && recording->n == 64) return 1;
    if (recording) recording->calls[recording->n++] = *c;
    else execute(c);
    return 0;
}

static int card_gather(const struct ck_ctx *c, const struct ck_weight *w, const int32_t *ids, int n, float scale, float *out, int64_t ld, cudaStream_t st)
{
    (void)c, (void)w, (void)n, (void)scale, (void)out, (void)ld, (void)st;
    return enqueue(&(struct call){ .kind = GATHER, .ids = ids });
}
static struct cs_rope rope_before;
static int card_rope(const struct ck_ctx *c, const struct cs_rope *r, cudaStream_t st)
{
    (void)c, (void)st;
    rope_before = *r;
    return 0;
}
static int card_rope_attend(const struct ck_ctx *c, const struct cs_rope *r, const struct ck_attend *a, cudaStream_t st)
{
    (void)c, (void)st;
    return enqueue(&(struct call){ .kind = ATTEND, .rope = *r, .attend = *a });
}
static int card_attend(const struct ck_ctx *c, const struct ck_attend *a, cudaStream_t st) { return card_rope_attend(c, &rope_before, a, st); }
static int card_sample(const struct ck_ctx *c, const struct cs_draws *a, cudaStream_t st)
{
    (void)c, (void)st;
    return enqueue(&(struct call){ .kind = SAMPLE, .draws = *a });
}
static int card_fetch(const struct ck_ctx *c, void *dst, const void *src, size_t bytes, cudaStream_t st)
{
    (void)c, (void)st;
    return enqueue(&(struct call){ .kind = FETCH, .dst = dst, .src = src, .bytes = (bytes + 15) / 16 * 16 });
}
static int graph_begin(void *stream) { (void)stream; return (recording = calloc(1, sizeof *recording)) ? 0 : 2; }
static int graph_end(void *stream, void **graph) { (void)stream; *graph = recording; recording = NULL; return 0; }
static int graph_run(void *graph, void *stream)
{
    const struct list *l = graph;
    (void)stream;
    for (int i = 0; i < l->n; i++) execute(&l->calls[i]);
    return 0;
}

/* What needs no work here. */
static const char *error_text(int code) { (void)code; return "no such luck"; }
static int device_use(int ordinal) { (void)ordinal; return 0; }
static int device_info(int ordinal, struct cuda_device_info *out) { (void)ordinal; *out = (struct cuda_device_info){ .name = "none", .major = 9, .n_sm = 8, .shared_bytes = 227 << 10 }; return 0; }
static int handle_open(void **out) { *out = malloc(1); return *out ? 0 : 2; }
static int on_stream(void *stream) { (void)stream; return 0; }
static int event_record(void *event, void *stream) { (void)event, (void)stream; return 0; }
static int alloc(void **out, size_t bytes) { *out = calloc(1, bytes + 64); return *out ? 0 : 2; }
static int copy(void *dst, const void *src, size_t bytes, void *stream) { (void)stream; memmove(dst, src, bytes); return 0; }
static int fill(void *dst, int byte, size_t bytes, void *stream) { (void)stream; memset(dst, byte, bytes); return 0; }
static int norm(const struct ck_ctx *c, const struct cs_norm *a, cudaStream_t st) { (void)c, (void)a, (void)st; return 0; }
static int glu(const struct ck_ctx *c, const struct cs_glu *a, cudaStream_t st) { (void)c, (void)a, (void)st; return 0; }
static int gather_rows(const struct ck_ctx *c, const float *in, int64_t ld_in, const int32_t *rows, int32_t n, int32_t width, float *out, int64_t ld_out, cudaStream_t st)
{
    (void)c, (void)in, (void)ld_in, (void)rows, (void)n, (void)width, (void)out, (void)ld_out, (void)st;
    return 0;
}
static size_t sample_scratch_bytes(int32_t n_vocab, int32_t n_draw) { (void)n_vocab, (void)n_draw; return 256; }
static size_t work_bytes(const struct ck_ctx *c, int m_max, int n_head, int d_max, int n_context) { (void)c, (void)m_max, (void)n_head, (void)d_max, (void)n_context; return 256; }
static size_t weight_bytes(struct ck_weight *w, int bits, int group, int force_q8, int64_t n, int64_t k)
{
    (void)bits, (void)group, (void)force_q8;
    *w = (struct ck_weight){ .n = n, .k = k };
    return 512;
}
static void weight_place(struct ck_weight *w, void *block) { w->tiles = w->row_scale = block; }
static int64_t tile_bytes(const struct ck_weight *w) { (void)w; return 512; }
static int pack(const struct ck_ctx *c, const struct ck_weight *w, int bits, int group, int dt, const void *src, const void *scales, const void *biases, int64_t row0,
                int64_t n_rows, int64_t row_step, int64_t row_off, cudaStream_t st)
{
    (void)c, (void)w, (void)bits, (void)group, (void)dt, (void)src, (void)scales, (void)biases, (void)row0, (void)n_rows, (void)row_step, (void)row_off, (void)st;
    return 0;
}
static int x_layout_for(const struct ck_ctx *c, int m) { (void)c, (void)m; return CK_X_ROWS; }
static size_t x_bytes(int m_max, int64_t k) { return (size_t)m_max * (size_t)(k + 64) * 2; }
static int norm_tokens(const struct ck_ctx *c, int64_t k) { (void)c, (void)k; return 0; }
static int linear(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    (void)c, (void)x, (void)m, (void)parts, (void)n_parts, (void)st;
    return 0;
}
static int linear_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up, const float *gate_bias,
                      const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    (void)c, (void)x, (void)m, (void)gate, (void)up, (void)gate_bias, (void)up_bias, (void)kind, (void)out, (void)st;
    return 0;
}
static size_t card_head_bytes(int kv_format, int head_dim) { (void)kv_format; return (size_t)2 * 64 * (size_t)((head_dim + 63) / 64 * 64) * 2; }
static int tokens_of_unit(int n_head, int n_head_kv) { (void)n_head, (void)n_head_kv; return 16; }

static const struct cuda_library CARD = {
    .abi = CUDA_LIBRARY_ABI, .struct_bytes = sizeof CARD, .error_text = error_text, .device_use = device_use, .device_info = device_info,
    .stream_open = handle_open, .stream_close = free, .stream_wait = on_stream, .alloc = alloc, .free = free, .alloc_host = alloc, .free_host = free,
    .copy = copy, .fill = fill, .graph_begin = graph_begin, .graph_end = graph_end, .graph_run = graph_run, .graph_free = free,
    .event_open = handle_open, .event_close = free, .event_record = event_record, .event_wait = on_stream, .norm = norm, .glu = glu, .rope = card_rope,
    .rope_attend = card_rope_attend, .fetch = card_fetch, .gather_rows = gather_rows, .sample_scratch_bytes = sample_scratch_bytes, .sample = card_sample,
    .work_bytes = work_bytes, .weight_bytes = weight_bytes, .tile_bytes = tile_bytes, .weight_place = weight_place, .pack = pack, .gather = card_gather,
    .x_layout_for = x_layout_for, .x_bytes = x_bytes, .norm_tokens = norm_tokens, .linear = linear, .linear_glu = linear_glu,
    .kv_head_bytes = card_head_bytes, .attn_small_tokens = tokens_of_unit, .attn_large_tokens = tokens_of_unit, .attend = card_attend,
};

/* --- the tests --- */

static void decode_on_card(const char *family, bool no_graphs, struct ahead_run *out)
{
    char dir[128];
    mb_error err = { 0 };
    struct model *model;
    struct device *d = mb_calloc(1, sizeof *d);
    assert_non_null(d);
    d->lib = &CARD;
    d->no_graphs = no_graphs;
    d->ctx = (struct ck_ctx){ .n_sm = 8, .major = 9 };
    assert_int_equal(d->lib->stream_open(&d->stream), 0);
    cpu_kernels_fill(&d->host, cpu_level_detect());
    if (pool_open(&d->pool, 1, &err) != MB_OK) fail_msg("%s", err.text);
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", family);
    struct model_options opt = { .ops = &ops_cuda, .device = d, .tier = TIER_L1, .kv_format = -1, .n_rows_max = 4 };
    if (model_open(&model, dir, &opt, &err) != MB_OK) fail_msg("%s: %s", dir, err.text);
    memset(out, 0, sizeof *out);
    decode_ahead(&ops_cuda, d, model, out);
    model_close(model);
    ops_cuda.device_close(d);
}

static void check(const char *family)
{
    static struct ahead_run got, want;
    decode_on_card(family, true, &want);
    assert_int_equal(want.n_ahead, 0);
    decode_on_card(family, false, &got);
    assert_true(got.n_ahead > 0);
    assert_true(got.n_pages > 0);
    ahead_compare(family, &got, &want);
}

static void test_steps_ahead_change_nothing(void **state)
{
    (void)state;
    check("llama");
    check("gemma3"); /* two kinds of pages, windows */
}

/* A draw that the device leaves to the host wants logits that the step ahead has written over. */
static void test_what_the_host_draws_comes_again(void **state)
{
    (void)state;
    leave_to_host = 7;
    check("llama");
    check("gemma3");
    leave_to_host = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_steps_ahead_change_nothing), cmocka_unit_test(test_what_the_host_draws_comes_again) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
