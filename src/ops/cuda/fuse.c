/* fuse.c: which neighbours of the plan run as one launch. The kernels see to it that a fused launch has the bits of the single ones,
 * so that it is a matter of speed alone; what they can take is asked of the library.
 */
#include "ops/cuda/cuda_int.h"

static bool reads(const struct plan_step *s, buf_id b)
{
    return s->in == b || (s->op == STEP_EXPERTS && s->u.experts.hidden == b) || (s->op == STEP_HEADS && s->u.heads.hidden == b);
}

static bool writes(const struct plan_step *s, buf_id b)
{
    for (int i = 0; i < PLAN_MAX_OUTS && s->outs[i] >= 0; i++)
        if (s->outs[i] == b) return true;
    return false;
}

/* Does nobody from s on read what is in b now? */
static bool is_dead(const struct compiled *c, const struct plan_step *s, buf_id b)
{
    for (; s < c->plan->steps + c->plan->n_steps; s++) {
        if (reads(s, b)) return false;
        if (writes(s, b)) return true;
    }
    return true;
}

static bool is_output(const struct plan_step *linear, buf_id b)
{
    for (int i = 0; i < linear->u.linear.n_parts; i++)
        if (linear->u.linear.part[i].out == b) return true;
    return false;
}

/* An RMS norm that only becomes the linear input of the products behind it, for so few tokens that every block of theirs may take it
 * for itself. */
bool cuda_norm_fuses(const struct compiled *c, const struct plan_step *s, const struct plan_step *linear)
{
    return !c->batch.lora && linear->op == STEP_LINEAR && !s->u.norm.bias && s->outs[0] >= 0 && linear->in == s->outs[0] && s->outs[1] < 0 && s->out < 0 && !s->post_add &&
           s->u.norm.n_pieces <= 1 && cuda_rows_of(c, s->in) <= c->dev->lib->norm_tokens(&c->ctx, c->plan->bufs[s->in].width) &&
           !is_output(linear, s->in) && is_dead(c, linear + 1, s->outs[0]);
}

/* Gate, up and their activation: nobody but the glu reads the two products, and nothing comes between. */
bool cuda_glu_fuses(const struct compiled *c, const struct plan_step *s, const struct plan_step *glu)
{
    if (c->batch.lora || s->u.linear.n_parts != 2 || glu->op != STEP_GLU || glu->out >= 0 || glu->outs[0] < 0 || glu->u.glu.up_first != 0)
        return false;
    const struct ck_weight *w[2];
    for (int j = 0; j < 2; j++) {
        w[j] = &((const struct cuda_weight *)s->u.linear.part[j].w->impl)->w;
        if (s->u.linear.part[j].scale != 0 || s->u.linear.part[j].softcap != 0 || s->u.linear.part[j].add ||
            s->u.linear.part[j].out_offset != 0 || w[j]->n != glu->u.glu.width)
            return false;
    }
    return s->u.linear.part[0].out == glu->in && s->u.linear.part[1].out == glu->u.glu.up && w[0]->format == w[1]->format &&
           w[0]->n_scale == w[1]->n_scale && w[0]->k == w[1]->k;
}

/* Rows that draw, taken for the norm behind them: where every token draws, in its order, the norm reads them where they lie. */
bool cuda_draws_fuse(const struct compiled *c, const struct plan_step *s, const struct plan_step *norm)
{
    return c->batch.has_jobs && norm->op == STEP_NORM && norm->in == s->out && is_dead(c, norm + 1, s->out);
}

/* Rotation and attention: single tokens, and the layer reads the pages that it writes. Nobody else reads the rotated queries. Those
 * that grow with their position go by themselves. */
bool cuda_rope_fuses(const struct compiled *c, const struct plan_step *s, const struct plan_step *attend)
{
    return c->batch.m == c->batch.n_rows && attend->op == STEP_ATTEND && attend->in == s->out && s->u.rope_kv.k >= 0 && !s->u.rope_kv.q_steps &&
           attend->u.attend.i_kind == s->u.rope_kv.i_kind && attend->u.attend.i_in_kind == s->u.rope_kv.i_in_kind;
}
