/* passes.c: the list of steps to the list of passes: which neighbours share a barrier, and who begins with which weights.
 *
 *   linears in a row            one pass: they only read inputs that are complete
 *   gate and up, then the glu   one pass: a tile computes its columns of both, applies the activation and quantises
 *   rope_kv, then attend        one barrier when every row is one token (the tile of a KV head rotates its own heads)
 *   delta                       one pass: a key head of a row goes through the row's tokens alone (step_delta.c)
 *   heads                       two passes: linear inputs of each head, then the products (step_latent.c)
 *   experts                     two passes: gate, up and activation; down and the sum by weight (step_moe.c); offloaded ones go
 *                               through both in rounds, when not all of them fit the cache
 *   embed, norm, draws          no barrier for small batches: the thread that opens does them alone
 * so that a decoded token meets five barriers a layer: qkv | attend | o | gate, up | down. A pass never covers a layer
 * edge: ranges of steps begin and end there.
 *
 * Weights are dealt in contiguous shares, as weights.c packs them: each part for itself when that is even, so that a
 * thread reads what it has touched first; else all parts as one line. A thread goes through its share in tiles, in
 * order of address; what it has not begun others may take (base/threads.h).
 */
#include <string.h>

#include "base/mem.h"
#include "ops/cpu/cpu_int.h"

#define TILES_PER_THREAD 2
#define TILE_BYTES_MIN (16 << 10)  /* of weights */
#define TILE_BYTES_MAX (256 << 10)

struct builder {
    struct compiled *c;
    int32_t n_passes, n_tiles; /* so far */
    bool count_only;
    struct cpu_pass scratch;   /* while counting: nobody reads it */
};

static struct cpu_pass *add_pass(struct builder *b, const struct plan_step *s, cpu_open_fn open, cpu_tile_fn tile)
{
    struct cpu_pass *p = b->count_only ? &b->scratch : &b->c->passes[b->n_passes];
    b->n_passes++;
    *p = (struct cpu_pass){ .s = s, .n_steps = 1, .open = open, .tile = tile };
    return p;
}

/* --- who computes what of a linear pass --- */

/* One part of a linear pass. */
struct part {
    const struct plan_step *s;
    int32_t i_part;
    int64_t n_blocks, block_bytes;
};

static int parts_collect(const struct plan_step *s, int32_t n_steps, struct part *out)
{
    int n = 0;
    for (int32_t i = 0; i < n_steps; i++)
        for (int32_t j = 0; j < s[i].u.linear.n_parts; j++) {
            const struct cpu_weight *w = &((struct cpu_weight_impl *)s[i].u.linear.part[j].w->impl)->packed;
            out[n++] = (struct part){ &s[i], j, cpu_weight_blocks(w), (int64_t)w->block_bytes };
        }
    return n;
}

/* Blocks of a tile: half of a share, within bounds of bytes, though not below CPU_ROW_STREAMS where there are as many; whole units.
 * One thread alone takes whole shares. */
static int64_t tile_blocks(const struct part *parts, int n_parts, int n_threads, int64_t unit)
{
    int64_t blocks = 0, bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        blocks += parts[i].n_blocks;
        bytes += parts[i].n_blocks * parts[i].block_bytes;
    }
    if (n_threads == 1) return (blocks + unit - 1) / unit * unit;
    int64_t each = bytes / blocks, n = blocks / n_threads / TILES_PER_THREAD, streams = n < CPU_ROW_STREAMS ? n : CPU_ROW_STREAMS;
    if (n * each > TILE_BYTES_MAX) n = TILE_BYTES_MAX / each;
    if (n * each < TILE_BYTES_MIN) n = TILE_BYTES_MIN / each;
    if (n < streams) n = streams;
    if (n > CPU_ROW_STREAMS) n -= n % CPU_ROW_STREAMS;
    n = (n + unit - 1) / unit * unit;
    return n < unit ? unit : n;
}

static void add_tiles(struct builder *b, const struct part *part, int64_t blk0, int64_t blk1, int64_t step)
{
    for (int64_t at = blk0; at < blk1; at += step, b->n_tiles++)
        if (!b->count_only)
            b->c->tiles[b->n_tiles] = (struct linear_tile){ part->s, part->i_part, (int32_t)at,
                                                            (int32_t)(at + step < blk1 ? at + step : blk1) };
}

/* Is every part dealt for itself about as even as all together? */
static bool parts_even(const struct part *parts, int n_parts, int n_threads, int64_t unit)
{
    int64_t most = 0, total = 0, first, end;
    for (int t = 0; t < n_threads; t++) {
        int64_t mine = 0;
        for (int i = 0; i < n_parts; i++) {
            threads_share(parts[i].n_blocks, unit, t, n_threads, &first, &end);
            mine += end - first;
        }
        most = mine > most ? mine : most;
        total += mine;
    }
    return most * n_threads <= total + total / 16;
}

/* Share of thread t of all parts as one line of units. */
static void deal_line(struct builder *b, const struct part *parts, int n_parts, int t, int64_t unit, int64_t step)
{
    int64_t total = 0, before = 0, first, end;
    for (int i = 0; i < n_parts; i++) total += (parts[i].n_blocks + unit - 1) / unit;
    threads_share(total, 1, t, b->c->n_threads, &first, &end);
    for (int i = 0; i < n_parts; i++) {
        int64_t n = (parts[i].n_blocks + unit - 1) / unit;
        int64_t u0 = first > before ? first - before : 0, u1 = end - before < n ? end - before : n;
        before += n;
        if (u0 >= u1) continue;
        add_tiles(b, &parts[i], u0 * unit, u1 * unit < parts[i].n_blocks ? u1 * unit : parts[i].n_blocks, step);
    }
}

/* Blocks that stay together: two, or one where the thread with most would have much more. */
static int64_t share_unit(const struct part *parts, int n_parts, int n_threads)
{
    int64_t pairs = 0, blocks = 0, pairs_most, most;
    for (int i = 0; i < n_parts; i++) {
        blocks += parts[i].n_blocks;
        pairs += (parts[i].n_blocks + CPU_SHARE_BLOCKS - 1) / CPU_SHARE_BLOCKS;
    }
    pairs_most = (pairs + n_threads - 1) / n_threads * CPU_SHARE_BLOCKS;
    most = (blocks + n_threads - 1) / n_threads;
    return 8 * most <= 7 * pairs_most ? 1 : CPU_SHARE_BLOCKS;
}

/* Tiles and bounds of a linear pass. */
static void deal(struct builder *b, struct cpu_pass *p, const struct part *parts, int n_parts, int64_t unit)
{
    int n_threads = b->c->n_threads;
    int64_t step = tile_blocks(parts, n_parts, n_threads, unit), first, end;
    int32_t tile0 = b->n_tiles;
    bool even = parts_even(parts, n_parts, n_threads, unit);
    p->unit = unit;
    if (!b->count_only) {
        p->tiles = b->c->tiles + tile0;
        p->bounds = b->c->bounds + (size_t)(b->n_passes - 1) * (size_t)(n_threads + 1);
    }
    for (int t = 0; t < n_threads; t++) {
        if (!b->count_only) p->bounds[t] = b->n_tiles - tile0;
        if (!even) {
            deal_line(b, parts, n_parts, t, unit, step);
            continue;
        }
        for (int i = 0; i < n_parts; i++) {
            threads_share(parts[i].n_blocks, unit, t, n_threads, &first, &end);
            add_tiles(b, &parts[i], first, end, step);
        }
    }
    if (!b->count_only) p->bounds[n_threads] = b->n_tiles - tile0;
}

/* --- fusing --- */

/* Do the linear steps compute exactly the two inputs of this glu, each from column 0? */
static bool glu_fits(const struct plan_step *g, const struct plan_step *s, int32_t n_steps)
{
    if (g->op != STEP_GLU || g->u.glu.up_first != 0) return false;
    int32_t n_parts = 0;
    bool gate = false, up = false;
    for (int32_t i = 0; i < n_steps; i++)
        for (int32_t j = 0; j < s[i].u.linear.n_parts; j++, n_parts++) {
            buf_id out = s[i].u.linear.part[j].out;
            if (s[i].u.linear.part[j].add || s[i].u.linear.part[j].out_offset) return false;
            if (s[i].u.linear.part[j].w->n != g->u.glu.width) return false;
            gate = gate || out == g->in;
            up = up || out == g->u.glu.up;
        }
    return n_parts == 2 && gate && up;
}

/* How many linear steps from s on are one pass; *glu: with the gated MLP behind them. */
static int32_t linears_of(const struct plan_step *s, int32_t n_left, bool *glu)
{
    int32_t n = 0, n_all = 0;
    while (n < n_left && s[n].op == STEP_LINEAR && s[n].i_layer == s->i_layer &&
           n_all + s[n].u.linear.n_parts <= PLAN_MAX_PARTS)
        n_all += s[n++].u.linear.n_parts;
    *glu = n < n_left && s[n].i_layer == s->i_layer && glu_fits(&s[n], s, n);
    return n;
}

/* Columns of a tile must be whole groups of what the glu writes. */
static int64_t glu_unit(const struct compiled *c, const struct plan_step *g)
{
    int64_t unit = CPU_SHARE_BLOCKS;
    for (int i = 0; i < PLAN_MAX_OUTS && g->outs[i] >= 0; i++)
        if (c->plan->bufs[g->outs[i]].group / 16 > unit) unit = c->plan->bufs[g->outs[i]].group / 16;
    return unit;
}

/* Returns the number of steps covered. */
static int32_t add_linears(struct builder *b, const struct plan_step *s, int32_t n_left)
{
    struct part parts[PLAN_MAX_PARTS];
    bool glu;
    int32_t n = linears_of(s, n_left, &glu);
    if (b->c->plan->max_lora_rank > 0) add_pass(b, s, cpu_lora_open, cpu_lora_tile)->n_steps = n;
    int n_parts = parts_collect(s, n, parts);
    struct cpu_pass *p = add_pass(b, s, cpu_linear_open, glu ? cpu_linear_glu_tile : cpu_linear_tile);
    p->n_steps = n;
    if (!glu) {
        deal(b, p, parts, n_parts, share_unit(parts, n_parts, b->c->n_threads));
        return n;
    }
    p->partner = &s[n];
    parts[0].block_bytes += parts[1].block_bytes; /* a tile is the same blocks of both */
    deal(b, p, parts, 1, glu_unit(b->c, &s[n]));
    return n + 1;
}

/* Do the tiles of attention rotate the q heads themselves? */
static bool rope_fits(const struct plan_step *s, int32_t n_left)
{
    return n_left > 1 && s->op == STEP_ROPE_KV && s[1].op == STEP_ATTEND && s[1].i_layer == s->i_layer && s[1].in == s->out && !s[1].tap;
}

static int32_t add_rope(struct builder *b, const struct plan_step *s, int32_t n_left)
{
    struct cpu_pass *p = add_pass(b, s, cpu_rope_open, cpu_rope_tile);
    if (rope_fits(s, n_left)) p->partner = &s[1];
    return 1;
}

static int32_t add_attend(struct builder *b, const struct plan_step *s, const struct cpu_pass *before)
{
    struct cpu_pass *p = add_pass(b, s, cpu_attend_open, cpu_attend_tile);
    if (before && before->partner == s) p->partner = before->s;
    if (!cpu_attend_whole_groups(b->c, s)) add_pass(b, s, cpu_rows_open, cpu_rows_tile);
    return 1;
}

/* The pass(es) that begin at s; returns the number of steps covered, 0 for a step that is not known. */
static int32_t add_steps(struct builder *b, const struct plan_step *s, int32_t n_left)
{
    switch (s->op) {
    case STEP_EMBED: case STEP_NORM: case STEP_SIGNAL: add_pass(b, s, cpu_rows_open, cpu_rows_tile); return 1;
    case STEP_DRAWS:
        b->c->i_draws_pass = b->n_passes;
        b->c->i_draws = (int32_t)(s - b->c->plan->steps);
        add_pass(b, s, cpu_rows_open, cpu_rows_tile);
        return 1;
    case STEP_LINEAR: return add_linears(b, s, n_left);
    case STEP_ROPE_KV: return add_rope(b, s, n_left);
    case STEP_ATTEND: return add_attend(b, s, b->count_only || b->n_passes == 0 ? NULL : &b->c->passes[b->n_passes - 1]);
    case STEP_DELTA:
        add_pass(b, s, cpu_delta_open, cpu_delta_tile);
        if (!cpu_delta_whole_groups(b->c, s)) add_pass(b, s, cpu_rows_open, cpu_rows_tile);
        return 1;
    case STEP_LATENT: add_pass(b, s, cpu_rows_open, cpu_rows_tile); return 1;
    case STEP_INDEX: add_pass(b, s, cpu_index_open, cpu_index_tile); return 1;
    case STEP_HEADS:
        add_pass(b, s, cpu_rows_open, cpu_rows_tile);
        add_pass(b, s, cpu_heads_open, cpu_heads_tile);
        return 1;
    case STEP_GLU: add_pass(b, s, cpu_glu_open, cpu_glu_tile); return 1;
    case STEP_ROUTE: add_pass(b, s, cpu_route_open, cpu_route_tile); return 1;
    case STEP_EXPERTS:
        add_pass(b, s, cpu_experts_up_open, cpu_experts_up_tile);
        add_pass(b, s, cpu_experts_down_open, cpu_experts_down_tile)->again = s->host_point ? cpu_experts_again : NULL;
        return 1;
    case STEP_EXPECT: add_pass(b, s, cpu_expect_open, cpu_expect_tile); return 1;
    case STEP_SAMPLE:
        add_pass(b, s, cpu_sample_max_open, cpu_sample_max_tile);
        add_pass(b, s, cpu_sample_sum_open, cpu_sample_sum_tile);
        add_pass(b, s, cpu_sample_open, cpu_sample_tile);
        return 1;
    }
    return 0;
}

static mb_status build(struct builder *b, mb_error *err)
{
    const struct plan *p = b->c->plan;
    for (int32_t i = 0, n; i < p->n_steps; i += n) {
        n = add_steps(b, &p->steps[i], p->n_steps - i);
        if (n == 0) return mb_fail(err, MB_UNSUPPORTED, "step %d (kind %d) is not in the CPU backend", i, (int)p->steps[i].op);
    }
    return MB_OK;
}

static void keep(bool *unread, buf_id b)
{
    if (b >= 0) unread[b] = false;
}

/* Does all that attention finds go on as linear inputs? */
static bool attend_inputs_only(const struct plan *p, const struct plan_step *s)
{
    if (s->op != STEP_ATTEND || s->outs[0] < 0) return false;
    int32_t width = s->u.attend.n_head / s->u.attend.n_head_kv * s->u.attend.value_dim;
    for (int i = 0; i < PLAN_MAX_OUTS && s->outs[i] >= 0; i++)
        if (p->bufs[s->outs[i]].group > 0 && width % p->bufs[s->outs[i]].group != 0) return false;
    return true;
}

/* What step s reads or writes. fused: it is the glu of a gated MLP, or attention that rotates its q heads. */
static void keep_of(const struct plan *p, bool *unread, const struct plan_step *s, bool fused, bool rope)
{
    for (int i = 0; i < PLAN_MAX_OUTS && s->outs[i] >= 0; i++) keep(unread, s->outs[i]);
    if (!rope && !attend_inputs_only(p, s)) keep(unread, s->out);
    if (!fused || s->tap) keep(unread, s->in);
    if (s->op == STEP_GLU && !fused) keep(unread, s->u.glu.up);
    if (s->op == STEP_NORM && s->post_add) keep(unread, s->add_to);
}

/* Gate and up of fused passes, q heads that tiles of attention rotate, and what these find: a step of another kind names buffers of its
 * own in its union. */
void cpu_passes_unread(const struct plan *p, bool unread[PLAN_MAX_BUFS])
{
    memset(unread, 0, PLAN_MAX_BUFS * sizeof *unread);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0, n; i < p->n_steps; i += n) {
            const struct plan_step *s = &p->steps[i];
            bool glu = false;
            int32_t n_linears = s->op == STEP_LINEAR ? linears_of(s, p->n_steps - i, &glu) : 0;
            n = n_linears > 0 ? n_linears + glu : 1;
            bool rope = rope_fits(s, p->n_steps - i), roped = i > 0 && rope_fits(s - 1, p->n_steps - i + 1);
            if (pass == 0 && glu) unread[s[n_linears].in] = unread[s[n_linears].u.glu.up] = true;
            if (pass == 0 && (rope || attend_inputs_only(p, s))) unread[s->out] = true;
            for (int32_t k = 0; pass == 1 && k < n; k++) {
                keep_of(p, unread, &s[k], roped || (glu && k == n_linears), rope);
                for (int32_t j = 0; s[k].op == STEP_LINEAR && !glu && j < s[k].u.linear.n_parts; j++) keep(unread, s[k].u.linear.part[j].out);
            }
        }
}

mb_status cpu_passes_build(struct compiled *c, mb_error *err)
{
    struct builder count = { .c = c, .count_only = true }, fill = { .c = c };
    MB_TRY(build(&count, err));
    c->n_passes = count.n_passes;
    c->passes = mb_calloc((size_t)count.n_passes, sizeof *c->passes);
    c->tiles = mb_calloc((size_t)count.n_tiles + 1, sizeof *c->tiles);
    c->bounds = mb_calloc((size_t)count.n_passes * (size_t)(c->n_threads + 1), sizeof *c->bounds);
    if (!c->passes || !c->tiles || !c->bounds) return mb_fail(err, MB_NO_MEMORY, "out of memory for the passes of the plan");
    c->i_draws_pass = c->n_passes;
    c->i_draws = c->i_final_norm = c->plan->n_steps;
    MB_TRY(build(&fill, err));
    for (int32_t i = c->plan->n_steps - 1; i > c->i_draws; i--)
        if (c->plan->steps[i].op == STEP_NORM) c->i_final_norm = i;
    return MB_OK;
}

void cpu_passes_free(struct compiled *c)
{
    mb_free(c->passes);
    mb_free(c->tiles);
    mb_free(c->bounds);
}
