/* check.c: what every backend asks of a row before it runs it. */
#include "ops/plan.h"

mb_status plan_check_row(const struct plan *p, const struct row *r, int32_t m_so_far, mb_error *err)
{
    if (r->n <= 0 || m_so_far + r->n > p->m_max)
        return mb_fail(err, MB_INTERNAL, "a batch of %d tokens was submitted, the plan holds %d", m_so_far + r->n, p->m_max);
    if (p->canvas != (r->canvas != NULL) || (r->canvas && (r->draw != DRAW_ALL || r->commit != COMMIT_NEVER)))
        return mb_fail(err, MB_INTERNAL, "a canvas and an ordinary row go through plans of their own");
    if (r->rope_axes == 3)
        return mb_fail(err, MB_UNSUPPORTED, "three-axis positions are not in this version");
    if (r->i_first < 0 || r->i_first + r->n > p->n_context)
        return mb_fail(err, MB_CONTEXT_LENGTH, "index %d is beyond the context of %d", r->i_first + r->n, p->n_context);
    for (int32_t j = 0; j < r->n; j++)
        if (r->ids[j] < 0 || r->ids[j] >= p->n_vocab)
            return mb_fail(err, MB_INVALID, "token id %d is outside the vocabulary of %d", r->ids[j], p->n_vocab);
    return MB_OK;
}
