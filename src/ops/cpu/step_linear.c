/* step_linear.c: linear groups. The work is cut into tiles: blocks of 16 outputs of one part (passes.c says which thread
 * begins with which), times a chunk of the rows when there are many. A tile is the product and then its epilogue. Order
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
};

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

static void run_store(const struct part_run *p, int64_t blk0, int64_t blk1)
{
    float *y = p->out + 16 * blk0;
    p->matmul(p->w, blk0, blk1, &p->act, p->row0, p->m, y, p->ld_out);
    finish_tile(p, y, p->ld_out, 16 * blk0, cols_of(p, blk0, blk1));
}

static void run_add(const struct part_run *p, int64_t blk0, int64_t blk1, float *tmp)
{
    const struct cpu_kernels *k = &p->c->dev->kernels;
    int64_t step = CPU_LINEAR_TMP_FLOATS / 16 / p->m; /* m <= CPU_LINEAR_ROWS */
    for (int64_t b = blk0; b < blk1; b += step) {
        int64_t e = b + step < blk1 ? b + step : blk1, n_cols = cols_of(p, b, e), ld = 16 * (e - b);
        p->matmul(p->w, b, e, &p->act, p->row0, p->m, tmp, ld);
        finish_tile(p, tmp, ld, 16 * b, n_cols);
        for (int64_t i = 0; i < p->m; i++) k->add(p->out + i * p->ld_out + 16 * b, tmp + i * ld, n_cols);
    }
}

static void run_part(struct compiled *c, const struct cpu_pass *pass, const struct plan_step *s, int32_t i_part, int64_t blk0,
                     int64_t blk1, int64_t row0, int64_t m, int i_thread)
{
    int32_t i_u = i_part;
    for (const struct plan_step *before = pass->s; before < s; before++) i_u += before->u.linear.n_parts;
    const struct cpu_weight *w = &((struct cpu_weight_impl *)s->u.linear.part[i_part].w->impl)->packed;
    buf_id out = s->u.linear.part[i_part].out;
    struct part_run p = {
        .c = c, .s = s, .i_part = i_part, .i_u = i_u, .w = w,
        .matmul = cpu_matmul_choose(&c->dev->kernels, w->type, c->form[s->in]),
        .act = { .form = c->form[s->in], .g = c->plan->bufs[s->in].group, .k = w->k, .row_bytes = c->row_bytes[s->in],
                 .data = c->bufs[s->in] },
        .row0 = row0, .m = m,
        .ld_out = (int64_t)(c->row_bytes[out] / sizeof(float)),
        .out = cpu_row_f32(c, out, row0) + s->u.linear.part[i_part].out_offset,
    };
    if (s->u.linear.part[i_part].add) run_add(&p, blk0, blk1, (float *)c->thread_scratch[i_thread]);
    else run_store(&p, blk0, blk1);
}

/* Rows go in chunks when there are many, or when there are too few tiles of weights to keep all threads busy. */
int64_t cpu_linear_open(struct compiled *c, const struct cpu_pass *p, int i_thread, const int32_t **bounds)
{
    (void)i_thread;
    int n_threads = c->n_threads;
    int64_t m = cpu_rows_of(c, p->s->in), n_tiles = p->bounds[n_threads];
    c->n_chunks = (m + CPU_LINEAR_ROWS - 1) / CPU_LINEAR_ROWS;
    while (n_tiles * c->n_chunks < 4 * n_threads && m / (2 * c->n_chunks) >= 48) c->n_chunks *= 2;
    c->chunk_rows = ((m + c->n_chunks - 1) / c->n_chunks + 15) / 16 * 16;
    if (c->n_chunks == 1) {
        *bounds = p->bounds;
        return n_tiles;
    }
    int32_t *scaled = c->bounds + (size_t)c->n_passes * (size_t)(n_threads + 1);
    for (int t = 0; t <= n_threads; t++) scaled[t] = (int32_t)(p->bounds[t] * c->n_chunks);
    *bounds = scaled;
    return n_tiles * c->n_chunks;
}

/* Rows of tile i_tile, and its weights. False: rounding left no row for the last chunk. */
static bool tile_get(const struct compiled *c, const struct cpu_pass *p, int64_t i_tile, const struct linear_tile **t,
                     int64_t *row0, int64_t *m)
{
    int64_t rows = cpu_rows_of(c, p->s->in);
    *t = &p->tiles[i_tile / c->n_chunks];
    *row0 = i_tile % c->n_chunks * c->chunk_rows;
    *m = rows - *row0 < c->chunk_rows ? rows - *row0 : c->chunk_rows;
    return *m > 0;
}

void cpu_linear_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct linear_tile *t;
    int64_t row0, m;
    if (tile_get(c, p, i_tile, &t, &row0, &m)) run_part(c, p, t->s, t->i_part, t->blk0, t->blk1, row0, m, i_thread);
}

void cpu_linear_glu_tile(struct compiled *c, const struct cpu_pass *p, int64_t i_tile, int i_thread)
{
    const struct linear_tile *t;
    int64_t row0, m, width = p->partner->u.glu.width;
    if (!tile_get(c, p, i_tile, &t, &row0, &m)) return;
    for (int32_t i = 0; i < p->n_steps; i++)
        for (int32_t j = 0; j < p->s[i].u.linear.n_parts; j++)
            run_part(c, p, &p->s[i], j, t->blk0, t->blk1, row0, m, i_thread);
    int64_t col1 = 16 * t->blk1 < width ? 16 * t->blk1 : width;
    for (int64_t i = row0; i < row0 + m; i++)
        cpu_glu_columns(c, p->partner, i, 16 * t->blk0, col1, (float *)c->thread_scratch[i_thread]);
}
