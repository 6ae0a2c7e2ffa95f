/* step_moe.c: mixtures of experts: the router's choice, then the chosen experts' gated MLPs in two passes.
 *
 *   route         logits of a token -> top_k experts (ids rising) and their weights
 *   experts, up   a tile is some columns of one expert for all its tokens: gate, up, activation, linear input of down
 *   experts, down a tile is some outputs for a chunk of tokens, over all experts in rising id: acc = acc + w * (down(x) + bias),
 *                 acc = +0 at first, then the residual (or the branch) gets acc
 * No barrier an expert, and no expert's order depends on the batch: a token's bits are a function of its own row
 * (docs/numerics.md). The opener of a pass sorts the batch's slots by expert.
 *
 * Offloaded experts (step.host_point) are asked for by whoever opens the up pass, in the order in which they are summed. When the
 * cache cannot hold them all, both passes run once for each round of experts, and the sums wait in moe.acc: the same additions in
 * the same order. A thread begins with experts that are there already and waits for the others when it comes to them.
 */
#include <math.h>
#include <string.h>

#include "ops/cpu/cpu_int.h"
#include "ops/mathfn.h"

#define ROUTE_TILE 16
#define GATHER_ROWS 64           /* rows of an expert that a tile works on at a time */
#define CHUNK_ROWS 128           /* tokens of a chunk of the down pass */
#define MAX_BLOCKS 8             /* blocks of 16 outputs of a tile at most */
#define TILE_BYTES (64 << 10)    /* of weights, where there are tiles enough for all threads, and few rows */
#define MANY_ROWS 16             /* of an expert: from here on bringing rows together costs more than a tile's weights */

/* --- route --- */

/* Is expert a before b, a the higher id? Ties go to the lower id; a NaN is behind all numbers. */
static bool better(const float *x, int32_t a, int32_t b)
{
    return x[a] > x[b] || (isnan(x[b]) && !isnan(x[a]));
}

/* The best top_k of n, ids rising. One pass, over a list that is kept with the best first. */
static void pick(const float *x, int32_t n, int32_t top_k, float *ids)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t t = i < top_k ? i : top_k; /* where i goes; the list has that many */
        if (t == top_k && !better(x, i, (int32_t)ids[--t])) continue;
        for (; t > 0 && better(x, i, (int32_t)ids[t - 1]); t--) ids[t] = ids[t - 1];
        ids[t] = (float)i;
    }
    for (int32_t j = 1; j < top_k; j++) {
        float id = ids[j];
        int32_t t = j;
        for (; t > 0 && ids[t - 1] > id; t--) ids[t] = ids[t - 1];
        ids[t] = id;
    }
}

/* x becomes exp(x - max) / sum, all in index order. */
static void softmax(float *x, int32_t n)
{
    float max = x[0], sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > max) max = x[i];
    for (int32_t i = 0; i < n; i++) sum += x[i] = mb_exp(x[i] - max);
    for (int32_t i = 0; i < n; i++) x[i] = x[i] / sum;
}

/* y: the values of group g's two best experts, summed. */
static float group_value(const float *y, int32_t first, int32_t n)
{
    float best = -INFINITY, second = -INFINITY;
    for (int32_t i = first; i < first + n; i++) {
        if (y[i] > best) {
            second = best;
            best = y[i];
        } else if (y[i] > second) {
            second = y[i];
        }
    }
    return n > 1 ? best + second : best;
}

/* x becomes its sigmoid, y what is chosen by: with the bias, and -infinity where an expert's group is not among the best. */
static void sigmoid_choice(const struct plan_step *s, float *x, float *y, float *tmp)
{
    int32_t n = s->u.route.n_expert, n_group = s->u.route.n_group, each = n / n_group;
    for (int32_t i = 0; i < n; i++) {
        x[i] = 1.0f / (1.0f + mb_exp(-x[i]));
        y[i] = s->u.route.choice_bias ? x[i] + s->u.route.choice_bias[i] : x[i];
    }
    if (n_group == 1) return;
    float *value = tmp, *used = tmp + n_group;
    for (int32_t g = 0; g < n_group; g++) value[g] = group_value(y, g * each, each);
    pick(value, n_group, s->u.route.n_group_used, used);
    for (int32_t g = 0, j = 0; g < n_group; g++) {
        if (j < s->u.route.n_group_used && (int32_t)used[j] == g) {
            j++;
            continue;
        }
        for (int32_t i = g * each; i < (g + 1) * each; i++) y[i] = -INFINITY;
    }
}

/* tmp: [n_expert] and twice the groups. */
static void route_row(struct compiled *c, const struct plan_step *s, int64_t i, float *tmp)
{
    float *x = cpu_row_f32(c, s->in, i), *ids = cpu_row_f32(c, s->out, i);
    int32_t n = s->u.route.n_expert, top_k = s->u.route.top_k;
    bool sigmoid = s->u.route.kind == ROUTE_SIGMOID;
    float *w = ids + top_k, sum = sigmoid ? 1e-20f : 0;
    if (s->u.route.kind == ROUTE_SOFTMAX_ALL) softmax(x, n);
    if (sigmoid) sigmoid_choice(s, x, tmp, tmp + n);
    pick(sigmoid ? tmp : x, n, top_k, ids);
    for (int32_t j = 0; j < top_k; j++) w[j] = x[(int32_t)ids[j]];
    if (s->u.route.kind == ROUTE_SOFTMAX_CHOSEN) softmax(w, top_k);
    for (int32_t j = 0; s->u.route.normalise && j < top_k; j++) sum += w[j];
    for (int32_t j = 0; s->u.route.normalise && j < top_k; j++) w[j] = w[j] / sum;
    for (int32_t j = 0; sigmoid && j < top_k; j++) w[j] = w[j] * s->u.route.scale;
    for (int32_t j = 0; s->u.route.expert_scale && j < top_k; j++) w[j] = w[j] * s->u.route.expert_scale[(int32_t)ids[j]];
}

int64_t cpu_route_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)bounds;
    int64_t m = c->batch.m;
    if (c->n_threads > 1 && m > ROUTE_TILE) return (m + ROUTE_TILE - 1) / ROUTE_TILE;
    for (int64_t i = 0; i < m; i++) route_row(c, p->s, i, (float *)c->thread_scratch[i_thread]);
    return 0;
}

void cpu_route_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    int64_t end = (i_tile + 1) * ROUTE_TILE < c->batch.m ? (i_tile + 1) * ROUTE_TILE : c->batch.m;
    for (int64_t i = i_tile * ROUTE_TILE; i < end; i++) route_row(c, p->s, i, (float *)c->thread_scratch[i_thread]);
}

/* --- lists of the batch --- */

static int32_t expert_of(const struct compiled *c, const struct plan_step *s, int32_t slot)
{
    int32_t top_k = s->u.experts.top_k;
    return (int32_t)cpu_row_f32(c, s->u.experts.route, slot / top_k)[slot % top_k];
}

static void sort_slots(struct compiled *c, const struct plan_step *s)
{
    struct cpu_moe *moe = &c->moe;
    int32_t n = c->batch.m * s->u.experts.top_k, n_expert = s->u.experts.n_expert;
    memset(moe->first, 0, ((size_t)n_expert + 1) * sizeof *moe->first);
    for (int32_t i = 0; i < n; i++) moe->first[expert_of(c, s, i) + 1]++;
    moe->n_active = 0;
    for (int32_t e = 0; e < n_expert; e++) {
        if (moe->first[e + 1] > 0) moe->active[moe->n_active++] = e;
        moe->first[e + 1] += moe->first[e];
    }
    for (int32_t i = n - 1; i >= 0; i--) moe->slot[--moe->first[expert_of(c, s, i) + 1]] = i;
    for (int32_t e = 0; e < n_expert; e++) moe->first[e] = moe->first[e + 1]; /* each end had moved to its beginning */
    moe->first[n_expert] = n;
}

/* The matrix of expert active[i], n rows of the stack. False: it could not be read, the step has failed. */
static bool expert_weight(const struct compiled *c, const struct weight *stack, int32_t i, int64_t n, struct cpu_weight *w)
{
    const struct cpu_weight_impl *impl = stack->impl;
    *w = impl->packed;
    w->n = n;
    if (!impl->offloaded) {
        w->data += (size_t)c->moe.active[i] * (size_t)(n / 16) * w->block_bytes;
        return true;
    }
    const uint8_t *record = experts_wait(c->dev->experts, c->moe.at[i]);
    w->data = record ? record + impl->expert_off : NULL;
    return record != NULL;
}

/* Rows `slot[0..n)` (divided by `per`) of a linear input, one after the other: the input itself where they already lie so,
 * else a copy at `to`. */
static struct cpu_act gather(const struct compiled *c, buf_id b, const int32_t *slot, int32_t n, int32_t per, int64_t k,
                             uint8_t *to)
{
    struct cpu_act a = { .form = c->form[b], .g = c->plan->bufs[b].group, .k = k, .row_bytes = c->row_bytes[b] };
    const uint8_t *from = c->bufs[b];
    bool together = true;
    for (int32_t i = 1; i < n; i++) together = together && slot[i] / per == slot[0] / per + i;
    a.data = together ? from + (size_t)(slot[0] / per) * a.row_bytes : to;
    for (int32_t i = 0; i < n && !together; i++)
        memcpy(to + (size_t)i * a.row_bytes, from + (size_t)(slot[i] / per) * a.row_bytes, a.row_bytes);
    return a;
}

/* Blocks of a tile: whole units, as many as TILE_BYTES hold (of many rows: as there may be), fewer where threads would stand idle. */
static int64_t tile_blocks(const struct compiled *c, const struct plan_step *s, const struct weight *w, int64_t n_blocks,
                           int64_t n_others, int64_t unit)
{
    int64_t n = TILE_BYTES / (int64_t)((const struct cpu_weight_impl *)w->impl)->packed.block_bytes;
    bool many = (int64_t)c->batch.m * s->u.experts.top_k >= (int64_t)c->moe.n_active * MANY_ROWS;
    n = n > MAX_BLOCKS || many ? MAX_BLOCKS : n;
    while (n > unit && (n_blocks + n - 1) / n * n_others < 4 * c->n_threads) n /= 2;
    return (n < unit ? unit : n) / unit * unit;
}

/* --- gate, up, activation --- */

static int64_t up_unit(const struct compiled *c, const struct plan_step *s)
{
    int64_t g = c->plan->bufs[s->u.experts.hidden].group;
    return g > 16 ? g / 16 : 1;
}

/* --- rounds of offloaded experts --- */

/* Ask for experts as far as there are slots. Half of them are the round, the others are read meanwhile; all, when the layer's fit. */
static void round_begin(struct compiled *c, const struct plan_step *s)
{
    struct cpu_moe *moe = &c->moe;
    struct experts *x = c->dev->experts;
    int32_t i_group = ((const struct cpu_weight_impl *)s->u.experts.gate->impl)->i_group, n = 0;
    if (moe->round0 == 0) experts_begin(x);
    for (; moe->n_asked < moe->n_active; moe->n_asked++)
        if ((moe->at[moe->n_asked] = experts_ask(x, i_group, moe->active[moe->n_asked])) < 0) break;
    int32_t left = moe->n_asked - moe->round0;
    moe->round1 = moe->n_asked == moe->n_active ? moe->n_active : moe->round0 + (left + 1) / 2;
    int32_t behind = moe->round1 - moe->round0; /* each is asked once: a read may end at any moment */
    for (int32_t i = moe->round0; i < moe->round1; i++) moe->order[experts_is_ready(x, moe->at[i]) ? n++ : --behind] = i;
}

bool cpu_experts_again(struct compiled *c, const struct cpu_pass *p)
{
    struct cpu_moe *moe = &c->moe;
    (void)p;
    for (int32_t i = moe->round0; i < moe->round1; i++) experts_release(c->dev->experts, moe->at[i]);
    moe->round0 = moe->round1;
    if (moe->round0 < moe->n_active) return true;
    moe->round0 = moe->round1 = moe->n_asked = 0;
    return false;
}

/* Tiles of offloaded experts: a thread's share is some of the columns of every expert of the round, those that are there first. */
static int64_t round_tiles(const struct compiled *c, int64_t tiles)
{
    return c->n_threads * (c->moe.round1 - c->moe.round0) * ((tiles + c->n_threads - 1) / c->n_threads);
}

/* *i: of active[]; returns the tile of its columns, which may be behind the last. */
static int64_t round_tile_at(const struct compiled *c, int64_t tiles, int64_t i_tile, int32_t *i)
{
    int64_t each = (tiles + c->n_threads - 1) / c->n_threads, n = c->moe.round1 - c->moe.round0;
    *i = c->moe.order[i_tile / each % n];
    return i_tile / (each * n) * each + i_tile % each;
}

int64_t cpu_experts_up_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    const struct plan_step *s = p->s;
    int64_t n_blocks = s->u.experts.width / 16, n;
    if (c->moe.round0 == 0) sort_slots(c, s);
    if (s->host_point) round_begin(c, s);
    else c->moe.round1 = c->moe.n_active;
    n = c->moe.round1 - c->moe.round0;
    c->moe.tile_blocks = tile_blocks(c, s, s->u.experts.gate, n_blocks, n, up_unit(c, s));
    int64_t tiles = (n_blocks + c->moe.tile_blocks - 1) / c->moe.tile_blocks;
    return s->host_point ? round_tiles(c, tiles) : n * tiles;
}

/* Columns [col0, col1) of the linear input of down, row `slot`. */
static void write_hidden(const struct compiled *c, const struct plan_step *s, int32_t slot, const float *y, int64_t col0,
                         int64_t col1)
{
    buf_id b = s->u.experts.hidden;
    const struct plan_buf *buf = &c->plan->bufs[b];
    uint8_t *row = c->bufs[b] + (size_t)slot * c->row_bytes[b];
    if (c->form[b] == ACT_F32)
        memcpy((float *)row + col0, y + col0, (size_t)(col1 - col0) * sizeof *y);
    else
        c->dev->kernels.quantise_groups(c->form[b], buf->group, buf->width, col0 / buf->group, col1 / buf->group, y, row);
}

void cpu_experts_up_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct plan_step *s = p->s;
    const struct cpu_kernels *k = &c->dev->kernels;
    int64_t width = s->u.experts.width, tiles = (width / 16 + c->moe.tile_blocks - 1) / c->moe.tile_blocks;
    int32_t i_active = (int32_t)(i_tile / tiles);
    int64_t at_tile = s->host_point ? round_tile_at(c, tiles, i_tile, &i_active) : i_tile % tiles;
    int32_t e = c->moe.active[i_active];
    int64_t blk0 = at_tile * c->moe.tile_blocks, blk1 = blk0 + c->moe.tile_blocks;
    if (blk1 > width / 16) blk1 = width / 16;
    int64_t col0 = 16 * blk0, col1 = 16 * blk1, ld = col1 - col0;
    struct cpu_weight gate, up;
    if (blk0 >= blk1 || !expert_weight(c, s->u.experts.gate, i_active, width, &gate)) return;
    if (!expert_weight(c, s->u.experts.up, i_active, width, &up)) return;
    float *y_gate = (float *)c->thread_scratch[i_thread], *y_up = y_gate + GATHER_ROWS * MAX_BLOCKS * 16;
    float *y = y_up + GATHER_ROWS * MAX_BLOCKS * 16;
    uint8_t *rows = (uint8_t *)(y + (width + 15) / 16 * 16);
    for (int32_t at = c->moe.first[e], n; at < c->moe.first[e + 1]; at += n) {
        n = c->moe.first[e + 1] - at < GATHER_ROWS ? c->moe.first[e + 1] - at : GATHER_ROWS;
        struct cpu_act x = gather(c, s->in, c->moe.slot + at, n, s->u.experts.top_k, gate.k, rows);
        cpu_matmul_choose(k, gate.type, x.form)(&gate, blk0, blk1, &x, 0, n, y_gate, ld);
        cpu_matmul_choose(k, up.type, x.form)(&up, blk0, blk1, &x, 0, n, y_up, ld);
        for (int32_t i = 0; i < n; i++) {
            if (s->u.experts.gate_bias) k->add(y_gate + i * ld, s->u.experts.gate_bias + e * width + col0, ld);
            if (s->u.experts.up_bias) k->add(y_up + i * ld, s->u.experts.up_bias + e * width + col0, ld);
            cpu_glu(k, s->u.experts.kind, y_gate + i * ld, y_up + i * ld, ld, y + col0);
            write_hidden(c, s, c->moe.slot[at + i], y, col0, col1);
        }
    }
}

/* --- down, and the sum --- */

int64_t cpu_experts_down_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    (void)bounds;
    int64_t n_blocks = p->s->u.experts.gate->k / 16; /* d_model */
    c->moe.n_row_chunks = (c->batch.m + CHUNK_ROWS - 1) / CHUNK_ROWS;
    c->moe.tile_blocks = tile_blocks(c, p->s, p->s->u.experts.down, n_blocks, c->moe.n_row_chunks, 1);
    return c->moe.n_row_chunks * ((n_blocks + c->moe.tile_blocks - 1) / c->moe.tile_blocks);
}

/* First of the expert's slots that belongs to token `row` or a later one. */
static int32_t slot_at(const struct compiled *c, const struct plan_step *s, int32_t e, int64_t row)
{
    int32_t lo = c->moe.first[e], hi = c->moe.first[e + 1];
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (c->moe.slot[mid] / s->u.experts.top_k < row) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

/* Slots [at, end) of expert active[i_active], tokens of one chunk: acc of their rows (ld_acc apart) gets w * down. */
static void down_add(const struct compiled *c, const struct plan_step *s, int32_t i_active, int32_t at, int32_t end, int64_t row0,
                     int64_t blk0, int64_t blk1, float *acc, int64_t ld_acc, float *tmp, uint8_t *rows)
{
    const struct cpu_kernels *k = &c->dev->kernels;
    int32_t top_k = s->u.experts.top_k, e = c->moe.active[i_active];
    int64_t ld = 16 * (blk1 - blk0), n_out = s->u.experts.gate->k;
    struct cpu_weight w;
    if (at == end || !expert_weight(c, s->u.experts.down, i_active, n_out, &w)) return;
    const float *bias = s->u.experts.down_bias ? s->u.experts.down_bias + e * n_out + 16 * blk0 : NULL;
    for (int32_t n; at < end; at += n) {
        n = end - at < GATHER_ROWS ? end - at : GATHER_ROWS;
        struct cpu_act x = gather(c, s->u.experts.hidden, c->moe.slot + at, n, 1, w.k, rows);
        cpu_matmul_choose(k, w.type, x.form)(&w, blk0, blk1, &x, 0, n, tmp, ld);
        for (int32_t i = 0; i < n; i++) {
            int32_t slot = c->moe.slot[at + i];
            if (bias) k->add(tmp + i * ld, bias, ld);
            k->scale(tmp + i * ld, ld, cpu_row_f32(c, s->u.experts.route, slot / top_k)[top_k + slot % top_k]);
            k->add(acc + (slot / top_k - row0) * ld_acc, tmp + i * ld, ld);
        }
    }
}

/* The expert for all: acc of row i gets its output, times its gate where it has one. */
static void shared_add(const struct compiled *c, const struct plan_step *s, int64_t i, int64_t col0, int64_t n, float *acc, float *tmp)
{
    if (s->u.experts.shared_gate < 0) {
        c->dev->kernels.add(acc, cpu_row_f32(c, s->u.experts.shared, i) + col0, n);
        return;
    }
    float gate = 1.0f / (1.0f + mb_exp(-cpu_row_f32(c, s->u.experts.shared_gate, i)[0]));
    memcpy(tmp, cpu_row_f32(c, s->u.experts.shared, i) + col0, (size_t)n * sizeof *tmp);
    c->dev->kernels.scale(tmp, n, gate);
    c->dev->kernels.add(acc, tmp, n);
}

void cpu_experts_down_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct plan_step *s = p->s;
    int64_t n_blocks = s->u.experts.gate->k / 16, tiles = (n_blocks + c->moe.tile_blocks - 1) / c->moe.tile_blocks;
    int64_t row0 = i_tile / tiles * CHUNK_ROWS, row1 = row0 + CHUNK_ROWS < c->batch.m ? row0 + CHUNK_ROWS : c->batch.m;
    int64_t blk0 = i_tile % tiles * c->moe.tile_blocks, blk1 = blk0 + c->moe.tile_blocks;
    if (blk1 > n_blocks) blk1 = n_blocks;
    int64_t ld = 16 * (blk1 - blk0);
    float *acc = (float *)c->thread_scratch[i_thread], *tmp = acc + CHUNK_ROWS * MAX_BLOCKS * 16;
    uint8_t *rows = (uint8_t *)(tmp + GATHER_ROWS * MAX_BLOCKS * 16);
    bool first = c->moe.round0 == 0, last = c->moe.round1 == c->moe.n_active;
    int64_t ld_acc = first && last ? ld : n_blocks * 16;
    if (!first || !last) acc = c->moe.acc + row0 * ld_acc + 16 * blk0; /* there is another round */
    for (int64_t i = row0; i < row1 && first; i++) memset(acc + (i - row0) * ld_acc, 0, (size_t)ld * sizeof *acc);
    for (int32_t a = c->moe.round0; a < c->moe.round1; a++) {
        int32_t e = c->moe.active[a];
        down_add(c, s, a, slot_at(c, s, e, row0), slot_at(c, s, e, row1), row0, blk0, blk1, acc, ld_acc, tmp, rows);
    }
    for (int64_t i = row0; i < row1 && last; i++) {
        if (s->u.experts.shared >= 0) shared_add(c, s, i, 16 * blk0, ld, acc + (i - row0) * ld_acc, tmp);
        float *y = cpu_row_f32(c, s->add_to >= 0 ? s->add_to : s->out, i) + 16 * blk0;
        if (s->add_to >= 0) c->dev->kernels.add(y, acc + (i - row0) * ld_acc, ld);
        else memcpy(y, acc + (i - row0) * ld_acc, (size_t)ld * sizeof *y);
    }
}

static size_t rows_bytes(const struct plan *p, buf_id b)
{
    enum act_form widest = p->tier == TIER_L1 ? ACT_Q16 : ACT_Q8;
    size_t floats = act_row_bytes(ACT_F32, p->bufs[b].width, 0);
    size_t codes = p->bufs[b].group > 0 ? act_row_bytes(widest, p->bufs[b].width, p->bufs[b].group) : 0;
    return GATHER_ROWS * (floats > codes ? floats : codes);
}

size_t cpu_experts_scratch_bytes(const struct plan *p, const struct plan_step *s)
{
    size_t tile = MAX_BLOCKS * 16 * sizeof(float), width = (size_t)(s->u.experts.width + 15) / 16 * 16 * sizeof(float);
    size_t up = 2 * GATHER_ROWS * tile + width + rows_bytes(p, s->in);
    size_t down = (CHUNK_ROWS + GATHER_ROWS) * tile + rows_bytes(p, s->u.experts.hidden);
    return (up > down ? up : down) + 64;
}
