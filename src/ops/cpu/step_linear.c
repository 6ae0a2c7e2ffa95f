/* step_linear.c: linear groups. The work is cut into tiles: blocks of 16 outputs of one part (passes.c says which thread
 * begins with which). Many rows: a grid of runs of blocks by chunks of rows, chunks outermost, so that a thread works on few rows
 * against many outputs: the inputs, which other cores have just written, come across once, and not once for each thread. A tile
 * is the product and then its epilogue; of a gated MLP gate and up stay in the thread's scratch. Order
 * of an output: product, bias, adapters, scale, soft cap, then the sum into the residual. With adapters in the batch a pass goes
 * before that computes their u (step_lora.c).
 */
#include "ops/cpu/cpu_int.h"

cpu_matmul_fn cpu_matmul_choose(const struct cpu_kernels *k, enum cpu_wtype type, enum act_form form)
{
    const cpu_matmul_fn table[3][3] = {
        [CPU_W_Q4] = { [ACT_F32] = k->matmul_q4_f32, [ACT_Q8] = k->matmul_q4_q8, [ACT_Q16] = k->matmul_q4_q16 },
        [CPU_W_Q8] = { [ACT_F32] = k->matmul_q8_f32, [ACT_Q8] = k->matmul_q8_q8, [ACT_Q16] = k->matmul_q8_q16 },
        [CPU_W_F] = { [ACT_F32] = k->matmul_f_f32 },
    };
    return table[type][form];
}

/* Weights, and how far apart a kernel of one row will read them (cpu_row_run). data NULL: not known. */
struct weights_at {
    const uint8_t *data;
    size_t step;
};

/* One part on rows [row0, row0 + m). */
struct part_run {
    struct compiled *c;
    const struct plan_step *s;
    int32_t i_part, i_u; /* of the step, of the pass */
    const struct cpu_weight *w;
    cpu_matmul_fn matmul;
    struct cpu_act act;
    int64_t row0, m, ld_out;
    float *out; /* column 0 of this part, row row0 */
    int64_t blk1;           /* where the tile's blocks of this part end */
    struct weights_at next; /* where the thread goes on then */
};

static struct weights_at blocks_at(const struct cpu_weight *w, int64_t blk0, int64_t blk1)
{
    return (struct weights_at){ w->data + (size_t)blk0 * w->block_bytes, (size_t)cpu_row_run(blk1 - blk0) * w->block_bytes };
}

/* Epilogue of a tile: columns [col0, col0 + n_cols) of the part, its first at y. */
static void finish_tile(const struct part_run *p, float *y, int64_t ld, int64_t col0, int64_t n_cols)
{
    const struct cpu_kernels *k = &p->c->dev->kernels;
    const float *bias = p->s->u.linear.part[p->i_part].bias;
    float softcap = p->s->u.linear.part[p->i_part].softcap, scale = p->s->u.linear.part[p->i_part].scale;
    for (int64_t i = 0; bias && i < p->m; i++) k->add(y + i * ld, bias + col0, n_cols);
    if (cpu_lora_on(p->c)) cpu_lora_add(p->c, p->s, p->i_part, p->i_u, p->row0, p->m, y, ld, col0, n_cols);
    for (int64_t i = 0; scale != 0 && i < p->m; i++) k->scale(y + i * ld, n_cols, scale);
    for (int64_t i = 0; softcap > 0 && i < p->m; i++) k->softcap(y + i * ld, n_cols, softcap);
}

static int64_t cols_of(const struct part_run *p, int64_t blk0, int64_t blk1)
{
    int64_t end = 16 * blk1 < p->w->n ? 16 * blk1 : p->w->n;
    return end - 16 * blk0;
}

static void run_store(const struct part_run *p, int64_t blk0, int64_t blk1, float *y, int64_t ld)
{
    struct cpu_act x = p->act;
    if (p->next.data) {
        struct weights_at next = blk1 == p->blk1 ? p->next : blocks_at(p->w, blk1, 2 * blk1 - blk0);
        x.w_end = p->w->data + (size_t)blk1 * p->w->block_bytes;
        x.w_next = next.data;
        x.next_step = next.step;
    }
    p->matmul(p->w, blk0, blk1, &x, p->row0, p->m, y, ld);
    finish_tile(p, y, ld, 16 * blk0, cols_of(p, blk0, blk1));
}

static void run_add(const struct part_run *p, int64_t blk0, int64_t blk1, float *tmp)
{
    const struct cpu_kernels *k = &p->c->dev->kernels;
    int64_t step = CPU_LINEAR_TMP_FLOATS / 16 / p->m; /* m <= CPU_LINEAR_ROWS */
    for (int64_t b = blk0; b < blk1; b += step) {
        int64_t e = b + step < blk1 ? b + step : blk1, n_cols = cols_of(p, b, e), ld = 16 * (e - b);
        run_store(p, b, e, tmp, ld);
        for (int64_t i = 0; i < p->m; i++) k->add(p->out + i * p->ld_out + 16 * b, tmp + i * ld, n_cols);
    }
}

/* The thread's room for inputs as a kernel wants them, which many tiles of a pass share: of small batches, where laying them out counts. */
static struct cpu_laid *laid_get(struct compiled *c, int i_thread, const uint8_t *data, int64_t row0, int64_t m)
{
    struct cpu_laid_of *l = &c->laid[i_thread];
    if (l->i_opened == c->i_linear && l->data == data && l->row0 == row0 && l->m == m) return &l->laid;
    l->i_opened = c->i_linear;
    l->data = data;
    l->row0 = row0;
    l->m = m;
    l->laid.is_laid = false;
    return &l->laid;
}

static struct part_run part_get(struct compiled *c, const struct cpu_pass *pass, const struct plan_step *s, int32_t i_part, int64_t row0,
                                int64_t m, int i_thread)
{
    int32_t i_u = i_part;
    for (const struct plan_step *before = pass->s; before < s; before++) i_u += before->u.linear.n_parts;
    const struct cpu_weight *w = &((struct cpu_weight_impl *)s->u.linear.part[i_part].w->impl)->packed;
    buf_id out = s->u.linear.part[i_part].out;
    return (struct part_run){
        .c = c, .s = s, .i_part = i_part, .i_u = i_u, .w = w,
        .matmul = cpu_matmul_choose(&c->dev->kernels, w->type, c->form[s->in]),
        .act = { .form = c->form[s->in], .g = c->plan->bufs[s->in].group, .k = w->k, .row_bytes = c->row_bytes[s->in],
                 .data = c->bufs[s->in], .laid = laid_get(c, i_thread, c->bufs[s->in], row0, m) },
        .row0 = row0, .m = m,
        .ld_out = (int64_t)(c->row_bytes[out] / sizeof(float)),
        .out = c->bufs[out] ? cpu_row_f32(c, out, row0) + s->u.linear.part[i_part].out_offset : NULL,
    };
}

/* --- who does what --- */

/* Rows from which on the grid is used; below, tiles are the blocks that a thread has packed, all rows at once. */
#define GRID_MIN_ROWS 48
/* Blocks of a run at most: so many that bringing the inputs to a kernel's form is shared, so few that gate and up stay in L2. Halved
 * until every thread has some tiles. */
#define GRID_BLOCKS 12
#define GRID_TILES_A_THREAD 3

static int64_t blocks_of(const struct plan_step *s, int32_t i_part)
{
    return cpu_weight_blocks(&((struct cpu_weight_impl *)s->u.linear.part[i_part].w->impl)->packed);
}

static int64_t runs_of(int64_t n_blocks, int64_t run)
{
    return (n_blocks + run - 1) / run;
}

/* Runs of all parts of the pass; parts of a gated MLP are one. */
static int64_t count_runs(const struct cpu_pass *p, int64_t run)
{
    int64_t n = 0;
    for (int32_t i = 0; i < p->n_steps; i++)
        for (int32_t j = 0; j < p->s[i].u.linear.n_parts; j++) {
            if (p->partner && n > 0) return n;
            n += runs_of(blocks_of(&p->s[i], j), run);
        }
    return n;
}

static int64_t grid_open(struct compiled *c, const struct cpu_pass *p, int64_t m)
{
    int64_t each = (m + c->n_threads - 1) / c->n_threads, least = m >= 256 ? 64 : 32, run = GRID_BLOCKS / p->unit * p->unit;
    c->chunk_rows = ((each > least ? each : least) + 15) / 16 * 16;
    int64_t n_chunks = (m + c->chunk_rows - 1) / c->chunk_rows;
    while (run > p->unit && count_runs(p, run) * n_chunks < GRID_TILES_A_THREAD * c->n_threads) run = run / 2 / p->unit * p->unit;
    c->run_blocks = run > p->unit ? run : p->unit;
    return count_runs(p, c->run_blocks) * n_chunks;
}

int64_t cpu_linear_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    int64_t m = cpu_rows_of(c, p->s->in);
    c->run_blocks = 0;
    c->i_linear++;
    if (m >= GRID_MIN_ROWS) return grid_open(c, p, m);
    *bounds = p->bounds;
    return p->bounds[c->n_threads];
}

/* Tile i_tile: its weights and its rows [*row0, *row0 + *m). */
static struct linear_tile tile_get(const struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int64_t *row0, int64_t *m)
{
    int64_t rows = cpu_rows_of(c, p->s->in), run = c->run_blocks;
    *row0 = 0;
    *m = rows;
    if (run == 0) return p->tiles[i_tile];
    int64_t n_runs = count_runs(p, run), at = i_tile % n_runs;
    *row0 = i_tile / n_runs * c->chunk_rows;
    *m = rows - *row0 < c->chunk_rows ? rows - *row0 : c->chunk_rows;
    for (const struct plan_step *s = p->s;; s++)
        for (int32_t j = 0; j < s->u.linear.n_parts; j++) {
            int64_t n = blocks_of(s, j);
            if (at < runs_of(n, run))
                return (struct linear_tile){ s, j, (int32_t)(at * run), (int32_t)(at * run + run < n ? at * run + run : n) };
            at -= runs_of(n, run);
        }
}

static const struct cpu_weight *packed_of(const struct linear_tile *t)
{
    return &((struct cpu_weight_impl *)t->s->u.linear.part[t->i_part].w->impl)->packed;
}

/* Where the thread goes on reading weights behind tile i_tile: at its next tile, else in the next linear pass, behind the last one in the
 * first of the step to come. What a kernel asks for ahead of itself would else be another thread's, and a pass begin with waiting. */
static struct weights_at weights_after(const struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    if (c->run_blocks > 0) return (struct weights_at){ 0 };
    const struct linear_tile *t = &p->tiles[i_tile + 1];
    if (i_tile + 1 >= p->bounds[i_thread + 1]) {
        const struct cpu_pass *end = c->passes + c->n_passes, *q = p;
        do q = q + 1 < end ? q + 1 : c->passes;
        while (!q->tiles);
        t = &q->tiles[q->bounds[i_thread]];
        if (q->bounds[i_thread] == q->bounds[i_thread + 1]) return (struct weights_at){ 0 };
    }
    return blocks_at(packed_of(t), t->blk0, t->blk1);
}

void cpu_linear_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    int64_t row0, m;
    struct linear_tile t = tile_get(c, p, i_tile, &row0, &m);
    struct weights_at next = weights_after(c, p, i_tile, i_thread);
    for (int64_t i = 0; i < m; i += CPU_LINEAR_ROWS) {
        struct part_run r = part_get(c, p, t.s, t.i_part, row0 + i, m - i < CPU_LINEAR_ROWS ? m - i : CPU_LINEAR_ROWS, i_thread);
        r.blk1 = t.blk1;
        r.next = next;
        if (t.s->u.linear.part[t.i_part].add) run_add(&r, t.blk0, t.blk1, (float *)c->thread_scratch[i_thread]);
        else run_store(&r, t.blk0, t.blk1, r.out + 16 * t.blk0, r.ld_out);
    }
}

/* Rows [row0, row0 + m) of both parts, then of their glu. next: see weights_after. */
static void glu_rows(struct compiled *c, const struct cpu_pass *p, int64_t blk0, int64_t blk1, int64_t row0, int64_t m, struct weights_at next,
                     int i_thread)
{
    float *scratch = (float *)c->thread_scratch[i_thread];
    int64_t ld = 16 * (blk1 - blk0), width = p->partner->u.glu.width;
    float *gate = scratch, *up = gate + CPU_LINEAR_TMP_FLOATS / 2, *y = gate + CPU_LINEAR_TMP_FLOATS;
    struct part_run r[2];
    int n = 0;
    for (int32_t i = 0; i < p->n_steps; i++)
        for (int32_t j = 0; j < p->s[i].u.linear.n_parts; j++) r[n++] = part_get(c, p, &p->s[i], j, row0, m, i_thread);
    r[0].blk1 = r[1].blk1 = blk1;
    if (next.data) r[0].next = blocks_at(r[1].w, blk0, blk1);
    r[1].next = next;
    for (int i = 0; i < 2; i++) run_store(&r[i], blk0, blk1, r[i].s->u.linear.part[r[i].i_part].out == p->partner->in ? gate : up, ld);
    int64_t col0 = 16 * blk0, col1 = 16 * blk1 < width ? 16 * blk1 : width;
    for (int64_t i = 0; i < m; i++) cpu_glu_columns(c, p->partner, row0 + i, col0, col1, gate + i * ld, up + i * ld, y);
}

void cpu_linear_glu_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    int64_t row0, m;
    struct linear_tile t = tile_get(c, p, i_tile, &row0, &m);
    int64_t rows = m < CPU_LINEAR_ROWS ? m : CPU_LINEAR_ROWS, step = CPU_LINEAR_TMP_FLOATS / 32 / rows / p->unit * p->unit;
    struct weights_at next = weights_after(c, p, i_tile, i_thread);
    for (int64_t i = 0; i < m; i += rows)
        for (int64_t b = t.blk0; b < t.blk1; b += step)
            glu_rows(c, p, b, b + step < t.blk1 ? b + step : t.blk1, row0 + i, m - i < rows ? m - i : rows, next, i_thread);
}
