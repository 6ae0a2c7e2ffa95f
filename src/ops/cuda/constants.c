/* constants.c: vectors that the plan holds on the host (norms, biases, sinks) in one block on the device. */
#include "base/mem.h"
#include "ops/cuda/cuda_int.h"

struct vector {
    const float *host;
    int64_t n;
};

/* The vectors of a step, in the order of enum cuda_constant. */
static void vectors_of(const struct compiled *c, const struct plan_step *s, struct vector out[CUDA_CONSTANTS])
{
    for (int i = 0; i < CUDA_CONSTANTS; i++) out[i] = (struct vector){ NULL, 0 };
    if (s->op == STEP_NORM && !s->u.norm.identity) {
        int32_t pieces = s->u.norm.n_pieces > 1 ? s->u.norm.n_pieces : 1;
        out[CONST_NORM] = (struct vector){ s->u.norm.weight, c->plan->bufs[s->in].width / pieces };
        out[CONST_NORM_BIAS] = (struct vector){ s->u.norm.bias, c->plan->bufs[s->in].width / pieces };
    } else if (s->op == STEP_ROPE_KV) {
        out[CONST_Q_NORM] = (struct vector){ s->u.rope_kv.q_norm, s->u.rope_kv.head_dim };
        out[CONST_K_NORM] = (struct vector){ s->u.rope_kv.k_norm, s->u.rope_kv.head_dim };
    } else if (s->op == STEP_ATTEND) {
        out[CONST_SINKS] = (struct vector){ s->u.attend.sinks, s->u.attend.n_head };
    } else if (s->op == STEP_ROUTE) {
        out[CONST_SCALES] = (struct vector){ s->u.route.expert_scale, s->u.route.n_expert };
        out[CONST_CHOICE_BIAS] = (struct vector){ s->u.route.choice_bias, s->u.route.n_expert };
    } else if (s->op == STEP_LATENT) {
        out[CONST_LATENT_NORM] = (struct vector){ s->u.latent.norm, s->u.latent.d_latent };
        out[CONST_INDEX_NORM] = (struct vector){ s->u.latent.index_key >= 0 ? s->u.latent.index_norm : NULL, s->u.latent.d_index };
        out[CONST_INDEX_BIAS] = (struct vector){ s->u.latent.index_key >= 0 ? s->u.latent.index_norm_bias : NULL, s->u.latent.d_index };
    } else if (s->op == STEP_EXPERTS) {
        int64_t n = s->u.experts.n_expert, d = s->u.experts.gate->k;
        out[CONST_GATE_BIAS] = (struct vector){ s->u.experts.gate_bias, n * s->u.experts.width };
        out[CONST_UP_BIAS] = (struct vector){ s->u.experts.up_bias, n * s->u.experts.width };
        out[CONST_DOWN_BIAS] = (struct vector){ s->u.experts.down_bias, n * d };
    } else if (s->op == STEP_DELTA) {
        int64_t n_channels = 2 * (int64_t)s->u.delta.n_head_k * s->u.delta.dim_k + (int64_t)s->u.delta.n_head_v * s->u.delta.dim_v;
        out[CONST_CONV] = (struct vector){ s->u.delta.conv, s->u.delta.n_conv * n_channels };
        out[CONST_DECAY] = (struct vector){ s->u.delta.decay, s->u.delta.n_head_v };
        out[CONST_DT_BIAS] = (struct vector){ s->u.delta.dt_bias, s->u.delta.n_head_v };
        out[CONST_DELTA_NORM] = (struct vector){ s->u.delta.norm, s->u.delta.dim_v };
    } else if (s->op == STEP_LINEAR) {
        for (int j = 0; j < s->u.linear.n_parts; j++)
            out[CONST_BIAS + j] = (struct vector){ s->u.linear.part[j].bias, s->u.linear.part[j].w->n };
    }
}

static size_t bytes_of(const struct vector *v)
{
    return v->host ? ((size_t)v->n * sizeof(float) + 255) / 256 * 256 : 0;
}

size_t cuda_constants_bytes(const struct compiled *c)
{
    size_t bytes = 0;
    struct vector v[CUDA_CONSTANTS];
    for (int32_t i = 0; i < c->plan->n_steps; i++) {
        vectors_of(c, &c->plan->steps[i], v);
        for (int j = 0; j < CUDA_CONSTANTS; j++) bytes += bytes_of(&v[j]);
    }
    return bytes;
}

mb_status cuda_constants_upload(struct compiled *c, uint8_t *block, mb_error *err)
{
    const struct cuda_library *lib = c->dev->lib;
    struct vector v[CUDA_CONSTANTS];
    c->constants = mb_calloc((size_t)c->plan->n_steps * CUDA_CONSTANTS, sizeof *c->constants);
    if (!c->constants) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < c->plan->n_steps; i++) {
        vectors_of(c, &c->plan->steps[i], v);
        for (int j = 0; j < CUDA_CONSTANTS; j++) {
            if (!v[j].host) continue;
            MB_TRY(cuda_check(c->dev, lib->copy(block, v[j].host, (size_t)v[j].n * sizeof(float), c->dev->stream), "norms and biases", err));
            c->constants[i * CUDA_CONSTANTS + j] = (float *)(void *)block;
            block += bytes_of(&v[j]);
        }
    }
    return cuda_check(c->dev, lib->stream_wait(c->dev->stream), "norms and biases", err);
}
