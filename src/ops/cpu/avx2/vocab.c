/* vocab.c (avx2): reductions and the Gumbel draw over one row of logits. */
#include "ops/cpu/avx2/mathv.h"
#include "ops/mathfn.h"
#include "ops/cpu/vocab_max.h"

#define GUMBEL_MAX 16.7f /* above every g(i): u < 1 in steps of 2^-23 */

FORCED float hmax(__m256 v)
{
    __m128 u = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    u = _mm_max_ps(u, _mm_movehl_ps(u, u));
    return _mm_cvtss_f32(_mm_max_ss(u, _mm_movehdup_ps(u)));
}

static float block_max(const float *x, int64_t n, bool *bad)
{
    const __m256 inf = V8(__builtin_inff());
    __m256 m0 = V8(-__builtin_inff()), m1 = m0, b = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 v0 = _mm256_loadu_ps(x + i), v1 = _mm256_loadu_ps(x + i + 8);
        b = _mm256_or_ps(b, _mm256_or_ps(_mm256_cmp_ps(v0, inf, _CMP_NLT_UQ), _mm256_cmp_ps(v1, inf, _CMP_NLT_UQ)));
        m0 = _mm256_max_ps(v0, m0); /* a NaN keeps the old maximum */
        m1 = _mm256_max_ps(v1, m1);
    }
    float m = hmax(_mm256_max_ps(m0, m1));
    if (_mm256_movemask_ps(b)) *bad = true;
    for (; i < n; i++) {
        if (!(x[i] < __builtin_inff())) *bad = true;
        if (x[i] > m) m = x[i];
    }
    return m;
}

static int64_t find_equal(const float *x, int64_t at, int64_t n, float v)
{
    for (; at + 8 <= n; at += 8) {
        int same = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + at), V8(v), _CMP_EQ_OQ));
        if (same) return at + __builtin_ctz((unsigned)same);
    }
    while (at < n && !(x[at] == v)) at++;
    return at;
}

static float vocab_sumexp_avx2(const float *x, int64_t n, float max)
{
    float total = 0.0f;
    __m256 mv = V8(max);
    for (int64_t b = 0; b < n; b += VOCAB_BLOCK) {
        int64_t end = n - b < VOCAB_BLOCK ? n : b + VOCAB_BLOCK, i = b;
        __m256 l0 = _mm256_setzero_ps(), l1 = l0;
        for (; i + 16 <= end; i += 16) {
            l0 = _mm256_add_ps(l0, exp_v(_mm256_sub_ps(_mm256_loadu_ps(x + i), mv)));
            l1 = _mm256_add_ps(l1, exp_v(_mm256_sub_ps(_mm256_loadu_ps(x + i + 8), mv)));
        }
        if (i < end) { /* -inf adds +0 */
            float t[16];
            for (int j = 0; j < 16; j++) t[j] = i + j < end ? x[i + j] : -__builtin_inff();
            l0 = _mm256_add_ps(l0, exp_v(_mm256_sub_ps(_mm256_loadu_ps(t), mv)));
            l1 = _mm256_add_ps(l1, exp_v(_mm256_sub_ps(_mm256_loadu_ps(t + 8), mv)));
        }
        total = total + lanes_sum(l0, l1);
    }
    return total;
}

/* 32 x 32 -> 64 bits on eight lanes: low and high words. */
FORCED void mul_wide(__m256i a, uint32_t c, __m256i *lo, __m256i *hi)
{
    __m256i cv = _mm256_set1_epi32((int)c);
    __m256i even = _mm256_mul_epu32(a, cv), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), cv);
    *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

struct draw_key {
    uint32_t c1, c2, c3, k0, k1;
};

/* Words of eight counters c0 .. c0+7, in id order: out[v] holds ids 8v .. 8v+7 of the 32. */
FORCED void philox32(const struct draw_key *key, uint32_t c0, __m256i out[4])
{
    __m256i a = _mm256_add_epi32(_mm256_set1_epi32((int)c0), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i b = _mm256_set1_epi32((int)key->c1), c = _mm256_set1_epi32((int)key->c2), d = _mm256_set1_epi32((int)key->c3);
    uint32_t k0 = key->k0, k1 = key->k1;
    for (int i = 0; i < 10; i++) {
        __m256i al, ah, cl, ch;
        mul_wide(a, 0xD2511F53u, &al, &ah);
        mul_wide(c, 0xCD9E8D57u, &cl, &ch);
        a = _mm256_xor_si256(_mm256_xor_si256(ch, b), _mm256_set1_epi32((int)k0));
        c = _mm256_xor_si256(_mm256_xor_si256(ah, d), _mm256_set1_epi32((int)k1));
        b = cl;
        d = al;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    __m256i t0 = _mm256_unpacklo_epi32(a, b), t1 = _mm256_unpackhi_epi32(a, b);
    __m256i t2 = _mm256_unpacklo_epi32(c, d), t3 = _mm256_unpackhi_epi32(c, d);
    __m256i q0 = _mm256_unpacklo_epi64(t0, t2), q1 = _mm256_unpackhi_epi64(t0, t2); /* counters 0|4, 1|5 */
    __m256i q2 = _mm256_unpacklo_epi64(t1, t3), q3 = _mm256_unpackhi_epi64(t1, t3); /* 2|6, 3|7 */
    out[0] = _mm256_permute2x128_si256(q0, q1, 0x20);
    out[1] = _mm256_permute2x128_si256(q2, q3, 0x20);
    out[2] = _mm256_permute2x128_si256(q0, q1, 0x31);
    out[3] = _mm256_permute2x128_si256(q2, q3, 0x31);
}

FORCED __m256 neg(__m256 v)
{
    return _mm256_xor_ps(v, V8(-0.0f));
}

FORCED __m256 gumbel_v(__m256i word)
{
    __m256 u = _mm256_cvtepi32_ps(_mm256_srli_epi32(word, 9));
    u = _mm256_mul_ps(_mm256_add_ps(u, V8(0.5f)), V8(0x1p-23f));
    return neg(log_normal_v(neg(log_normal_v(u))));
}

static int64_t vocab_gumbel_avx2(const float *x, int64_t n, float inv_temp, const struct noise_key *key, uint32_t index,
                                 enum noise_purpose purpose)
{
    const struct draw_key dk = { index, key->i_choice | (uint32_t)purpose << 24, key->round, (uint32_t)key->seed,
                                 (uint32_t)(key->seed >> 32) };
    float best = -__builtin_inff();
    int64_t at = -1;
    for (int64_t i = 0; i < n; i += 32) {
        float part[32], val[32];
        const float *p = x + i;
        if (n - i < 32) {
            for (int j = 0; j < 32; j++) part[j] = i + j < n ? p[j] : -__builtin_inff();
            p = part;
        }
        __m256 v[4];
        for (int j = 0; j < 4; j++) v[j] = _mm256_loadu_ps(p + 8 * j);
        float top = hmax(_mm256_max_ps(_mm256_max_ps(v[0], v[1]), _mm256_max_ps(v[2], v[3])));
        if (!(top > -__builtin_inff()) || (at >= 0 && top * inv_temp + GUMBEL_MAX < best)) continue;
        __m256i w[4];
        philox32(&dk, (uint32_t)(i / 4), w);
        int any = 0;
        for (int j = 0; j < 4; j++) {
            __m256 r = _mm256_add_ps(_mm256_mul_ps(v[j], V8(inv_temp)), gumbel_v(w[j]));
            _mm256_storeu_ps(val + 8 * j, r);
            any |= _mm256_movemask_ps(_mm256_cmp_ps(r, V8(best), _CMP_GT_OQ));
        }
        if (!any && at >= 0) continue;
        for (int j = 0; j < 32; j++)
            if (p[j] > -__builtin_inff() && (at < 0 || val[j] > best)) {
                best = val[j];
                at = i + j;
            }
    }
    return at;
}

void avx2_fill_vocab(struct cpu_kernels *t)
{
    t->vocab_max = vocab_max;
    t->vocab_sumexp = vocab_sumexp_avx2;
    t->vocab_gumbel = vocab_gumbel_avx2;
}
