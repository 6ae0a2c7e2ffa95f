/* vocab.c (portable): reductions and the draw over one row of logits. Sums run in blocks of 1024 ids, 16 lanes by id
 * inside a block; maxima are exact in any order, ties go to the lowest id. */
#include "ops/cpu/portable/portable_int.h"

static void vocab_max_portable(const float *x, int64_t n, float *max, int64_t *argmax, bool *finite)
{
    float best = -INFINITY;
    int64_t at = 0;
    bool ok = true;
    for (int64_t i = 0; i < n; i++) {
        ok = ok && x[i] < INFINITY;
        if (x[i] > best) {
            best = x[i];
            at = i;
        }
    }
    *max = n > 0 ? x[at] : best;
    *argmax = at;
    *finite = ok;
}

static float vocab_sumexp_portable(const float *x, int64_t n, float max)
{
    float total = 0.0f;
    for (int64_t b = 0; b < n; b += 1024) {
        float lane[16] = { 0 };
        int64_t end = n - b < 1024 ? n : b + 1024;
        for (int64_t i = b; i < end; i++) lane[i % 16] = lane[i % 16] + mb_exp(x[i] - max);
        total = total + lanes_sum(lane);
    }
    return total;
}

static float gumbel(uint32_t word)
{
    float u = ((float)(word >> 9) + 0.5f) * 0x1p-23f;
    return -mb_log(-mb_log(u));
}

static int64_t vocab_gumbel_portable(const float *x, int64_t n, float inv_temp, const struct noise_key *key,
                                     uint32_t index, enum noise_purpose purpose)
{
    uint32_t k[2] = { (uint32_t)key->seed, (uint32_t)(key->seed >> 32) };
    float best = -INFINITY;
    int64_t at = -1;
    for (int64_t i = 0; i < n; i += 4) {
        int64_t end = n - i < 4 ? n : i + 4;
        bool any = false;
        for (int64_t j = i; j < end; j++) any = any || x[j] > -INFINITY;
        if (!any) continue;
        uint32_t ctr[4] = { (uint32_t)(i / 4), index, key->i_choice | (uint32_t)purpose << 24, key->round }, w[4];
        mb_philox4x32(ctr, k, w);
        for (int64_t j = i; j < end; j++) {
            if (!(x[j] > -INFINITY)) continue;
            float v = x[j] * inv_temp + gumbel(w[j - i]);
            if (at < 0 || v > best) {
                best = v;
                at = j;
            }
        }
    }
    return at;
}

void PORTABLE(portable_fill_vocab)(struct cpu_kernels *t)
{
    t->vocab_max = vocab_max_portable;
    t->vocab_sumexp = vocab_sumexp_portable;
    t->vocab_gumbel = vocab_gumbel_portable;
}
