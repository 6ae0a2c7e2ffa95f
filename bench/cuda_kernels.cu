/* cuda_kernels.cu: the CUDA kernels by themselves: each against a plain float64 reference within the bound of kernels.h, bits
 * equal for every batch width and path, then speed beside the read bandwidth and the tensor peak of the same run.
 *
 *   cuda_kernels [check | check-linear | check-glu | check-attend] [attend] [linear] [linear8] [linear16]
 *                                                none: all. Exit 1 when a check fails, 2 on a CUDA error.
 *   few: only the forms that a build of the kernels with -DCK_FEW has.
 * Build: nvcc -std=c++17 -O3 --fmad=false -Isrc -gencode=arch=compute_90a,code=sm_90a -o build/cuda_kernels
 *        bench/cuda_kernels.cu src/ops/cuda/kernels_*.cu src/ops/cuda/steps_ro*.cu
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/kernels_int.h"
#include "ops/cuda/steps.h"

#define CU(call)                                                                                        \
    do {                                                                                                \
        int e_ = (int)(call);                                                                           \
        if (e_) {                                                                                       \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, ck_error_text(e_));                    \
            fflush(stdout);                                                                             \
            exit(2);                                                                                    \
        }                                                                                               \
    } while (0)

static int n_failed;
static struct ck_ctx ctx;
static cudaStream_t st;

static void verdict(bool ok, const char *what)
{
    if (!ok) n_failed++;
    printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    fflush(stdout);
}

template <typename T> static T *dev(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T) + 256));
    return (T *)p;
}
template <typename T> static std::vector<T> host(const T *p, size_t n)
{
    std::vector<T> v(n);
    CU(cudaMemcpyAsync(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, st));
    CU(cudaStreamSynchronize(st));
    return v;
}
template <typename T> static T *upload(const std::vector<T> &v)
{
    T *p = dev<T>(v.size());
    CU(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* --- random data, made on the device --- */

static __device__ __forceinline__ uint32_t hash(uint64_t i)
{
    i = (i ^ (i >> 30)) * 0xbf58476d1ce4e5b9ull;
    i = (i ^ (i >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(i >> 16);
}
static __global__ void fill_u32(uint32_t *p, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = hash(i + seed * 0x9e3779b97f4a7c15ull);
}
/* About normal, times scale, plus offset; every 61st fifty times as large when wild. */
static __device__ __forceinline__ float noise(uint64_t i, uint64_t seed)
{
    uint64_t k = i * 4 + seed * 0x9e3779b97f4a7c15ull;
    float s = 0;
    for (int j = 0; j < 4; j++) s += (float)(hash(k + (uint64_t)j) >> 8) * (1.0f / 16777216.0f) - 0.5f;
    return s * 1.7f;
}
static __global__ void fill_f32(float *p, size_t n, uint64_t seed, float scale, float offset, int wild)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = noise(i, seed) * scale * (wild && i % 61 == 7 ? 50.0f : 1.0f) + offset;
}
static __global__ void to_type(const float *in, void *out, size_t n, int dt)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        if (dt == CK_DT_F32) ((float *)out)[i] = in[i];
        else if (dt == CK_DT_F16) ((__half *)out)[i] = __float2half_rn(in[i]);
        else ((__nv_bfloat16 *)out)[i] = __float2bfloat16_rn(in[i]);
    }
}
static float *floats(size_t n, uint64_t seed, float scale, float offset, int wild = 0)
{
    float *p = dev<float>(n);
    fill_f32<<<1024, 256, 0, st>>>(p, n, seed, scale, offset, wild);
    return p;
}
static void *typed(const float *in, size_t n, int dt)
{
    void *p = dev<float>(n);
    to_type<<<1024, 256, 0, st>>>(in, p, n, dt);
    return p;
}

/* --- a weight with its source --- */

struct weight_set {
    struct ck_weight w;
    uint32_t *codes;
    float *plain;      /* bits 0 */
    void *src, *scales, *biases, *block;
    int bits, group, dt;
};
/* Rows 17 and n - 1 become as small as they can be packed, some groups 0. */
static __global__ void tiny_rows(float *scales, float *biases, int64_t n, int64_t groups)
{
    for (int64_t i = threadIdx.x; i < 2 * groups; i += blockDim.x) {
        int64_t at = (i < groups ? 17 : n - 1) * groups + i % groups;
        bool none = i % groups % 3 == 2;
        scales[at] = none ? 0.0f : 1e-35f;
        biases[at] = none ? 0.0f : -8e-35f;
    }
}
static struct weight_set make_weight(int bits, int group, int dt, int64_t n, int64_t k, uint64_t seed, bool force_q8 = false, bool tiny = false)
{
    struct weight_set s = {};
    size_t bytes = ck_weight_bytes(&s.w, bits, group, force_q8, n, k);
    s.bits = bits;
    s.group = group;
    s.dt = dt;
    s.block = dev<uint8_t>(bytes);
    CU(cudaMemsetAsync(s.block, 0xff, bytes, st));
    ck_weight_place(&s.w, s.block);
    if (bits == 0) {
        s.plain = floats((size_t)(n * k), seed, 0.05f, 0, 1);
        s.src = typed(s.plain, (size_t)(n * k), dt);
    } else {
        size_t words = (size_t)(n * k * bits / 32), groups = (size_t)(n * k / group);
        s.src = s.codes = dev<uint32_t>(words);
        fill_u32<<<1024, 256, 0, st>>>(s.codes, words, seed);
        float *a = floats(groups, seed + 1, 0.01f, 0.0f, 1), *b = floats(groups, seed + 2, 0.05f, 0.0f, 1);
        if (tiny) tiny_rows<<<1, 256, 0, st>>>(a, b, n, k / group);
        s.scales = typed(a, groups, dt);
        s.biases = typed(b, groups, dt);
        CU(cudaStreamSynchronize(st));
        cudaFree(a);
        cudaFree(b);
    }
    CU(ck_pack(&ctx, &s.w, bits, group, dt, s.src, s.scales, s.biases, 0, n, 1, 0, st));
    CU(cudaStreamSynchronize(st));
    return s;
}
static void drop(struct weight_set *s)
{
    CU(cudaStreamSynchronize(st));
    cudaFree(s->src);
    cudaFree(s->plain);
    cudaFree(s->scales);
    cudaFree(s->biases);
    cudaFree(s->block);
}

static __device__ double elem_at(const void *p, int dt, int64_t i)
{
    return dt == CK_DT_F32 ? ((const float *)p)[i] : dt == CK_DT_F16 ? __half2float(((const __half *)p)[i]) : __bfloat162float(((const __nv_bfloat16 *)p)[i]);
}
/* y[token][row] and the sum of |w x|, float64, from the source. */
static __global__ void reference(struct weight_set s, const float *x, int64_t ld_x, int m, double *y, double *mag)
{
    int64_t row = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, k = s.w.k;
    int tok = (int)blockIdx.y;
    if (row >= s.w.n || tok >= m) return;
    double sum = 0, abs_sum = 0;
    for (int64_t i = 0; i < k; i++) {
        double w, wide = 0; /* f32 scales are rounded to f16: an error of their parts, which may cancel in w */
        if (s.bits == 0) w = elem_at(s.src, s.dt, row * k + i);
        else {
            int64_t bit = i * s.bits;
            const uint32_t *r = (const uint32_t *)s.src + row * (k * s.bits / 32);
            uint64_t v = r[bit >> 5];
            if ((bit & 31) + s.bits > 32) v |= (uint64_t)r[(bit >> 5) + 1] << 32;
            double sq = elem_at(s.scales, s.dt, row * (k / s.group) + i / s.group) * (double)((v >> (bit & 31)) & ((1u << s.bits) - 1));
            double b = elem_at(s.biases, s.dt, row * (k / s.group) + i / s.group);
            w = sq + b;
            if (s.dt == CK_DT_F32) wide = fabs(sq) + fabs(b);
        }
        sum += w * (double)x[tok * ld_x + i];
        abs_sum += (wide > 0 ? wide : fabs(w)) * fabs((double)x[tok * ld_x + i]);
    }
    y[(int64_t)tok * s.w.n + row] = sum;
    mag[(int64_t)tok * s.w.n + row] = abs_sum;
}

static struct ck_x x_make(int m, int64_t k)
{
    struct ck_x x = {};
    x.v = dev<uint8_t>(ck_x_bytes(m, k));
    x.k = k;
    x.k_pad = (k + 63) / 64 * 64;
    x.mul = 1.0f;
    CU(cudaMemsetAsync(x.v, 0xff, ck_x_bytes(m, k), st)); /* NaN: padding that is read shows */
    return x;
}

/* All of m tokens in steps of `step`, with or without wgmma, outputs into y [m][n]. */
static void run_steps(struct weight_set *s, const float *x, int m, int step, int wgmma, float *y, const float *bias)
{
    struct ck_ctx c = ctx;
    c.wgmma = wgmma && ctx.wgmma;
    struct ck_x in = x_make(step, s->w.k);
    for (int t = 0; t < m; t += step) {
        int now = m - t < step ? m - t : step;
        in.layout = ck_x_layout_for(&c, now);
        CU(ck_x_write(&c, x + (int64_t)t * s->w.k, s->w.k, now, &in, st));
        struct ck_part p = { &s->w, y + (int64_t)t * s->w.n, s->w.n, bias, 0, 0, 0 };
        CU(ck_linear(&c, &in, now, &p, 1, st));
    }
    CU(cudaStreamSynchronize(st));
    cudaFree(in.v);
}

static bool same_bits(const std::vector<float> &a, const std::vector<float> &b, const char *what)
{
    size_t bad = 0;
    for (size_t i = 0; i < a.size(); i++) bad += memcmp(&a[i], &b[i], 4) != 0;
    if (bad) printf("     %s: %zu of %zu values differ\n", what, bad, a.size());
    return bad == 0;
}

static void check_linear(int bits, int group, int dt, int64_t n, int64_t k)
{
    const int m = 200;
    static const char *dts[] = { "f32", "f16", "bf16" };
    char what[200];
    struct weight_set s = make_weight(bits, group, dt, n, k, (uint64_t)(bits * 1000 + group + n), false, true);
    float *x = floats((size_t)(m * k), 77, 1.0f, 0, 1), *y = dev<float>((size_t)(m * n)), *bias = floats((size_t)n, 5, 1.0f, 0);
    double *ref = dev<double>((size_t)(m * n)), *mag = dev<double>((size_t)(m * n));
    reference<<<dim3((unsigned)((n + 127) / 128), m), 128, 0, st>>>(s, x, k, m, ref, mag);
    std::vector<double> r = host(ref, (size_t)(m * n)), g = host(mag, (size_t)(m * n));
    std::vector<float> hb = host(bias, (size_t)n);
    CU(cudaMemsetAsync(y, 0xff, (size_t)(m * n) * 4, st));
    run_steps(&s, x, m, 1, 0, y, bias);
    std::vector<float> base = host(y, (size_t)(m * n));
    double worst = 0, bound = ldexp(1, -10) + ldexp(sqrt((double)k), -20), err2 = 0, ref2 = 0;
    for (size_t i = 0; i < r.size(); i++) {
        double e = fabs((double)base[i] - (r[i] + hb[i % (size_t)n])), rel = e / (g[i] + 1e-6 * fabs(hb[i % (size_t)n]) + 1e-30);
        if (!(rel <= worst)) worst = rel == rel ? rel : INFINITY;
        err2 += e * e;
        ref2 += r[i] * r[i];
    }
    snprintf(what, sizeof what, "linear %d bit g%d %s %lldx%lld: worst %.2e of sum |wx| (bound %.2e), relative error of all %.2e", bits, group, dts[dt], (long long)n,
             (long long)k, worst, bound, sqrt(err2 / ref2));
    verdict(worst <= bound, what);
    bool ok = true;
    static const struct { int step, wg; } runs[] = { { 3, 0 }, { 8, 0 }, { 13, 0 }, { 16, 0 }, { 32, 0 }, { 200, 0 }, { 17, 1 }, { 32, 1 }, { 33, 1 }, { 40, 1 }, { 64, 1 }, { 65, 1 }, { 100, 1 }, { 128, 1 }, { 200, 1 } };
    for (auto &q : runs) {
        CU(cudaMemsetAsync(y, 0xff, (size_t)(m * n) * 4, st));
        run_steps(&s, x, m, q.step, q.wg, y, bias);
        snprintf(what, sizeof what, "steps of %d, %s", q.step, q.wg ? "wgmma" : "mma.sync");
        ok &= same_bits(base, host(y, (size_t)(m * n)), what);
    }
    snprintf(what, sizeof what, "linear %d bit g%d %s %lldx%lld: same bits in steps of 1, 3, 8, 13, 16, 32, 200 (mma.sync), 17, 32, 33, 40, 64, 65, 100, 128, 200 (wgmma)", bits, group,
             dts[dt], (long long)n, (long long)k);
    verdict(ok, what);
    /* rows as the gather sees them, against the source */
    std::vector<int32_t> ids = { 0, 1, (int32_t)n - 1, 17 };
    int32_t *d_ids = upload(ids);
    float *rows = dev<float>(4 * (size_t)k);
    CU(ck_gather(&ctx, &s.w, d_ids, 4, 1.0f, rows, k, st));
    std::vector<float> got = host(rows, 4 * (size_t)k);
    /* the reference times unit vectors is too slow: check by one product */
    std::vector<float> hx = host(x, (size_t)k);
    bool rows_ok = true;
    for (int i = 0; i < 4; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) sum += (double)got[(size_t)(i * k + j)] * hx[(size_t)j];
        rows_ok &= fabs(sum - r[(size_t)ids[(size_t)i]]) <= (dt == CK_DT_F32 ? 1e-3 : 1e-6) * g[(size_t)ids[(size_t)i]];
    }
    snprintf(what, sizeof what, "gather %d bit g%d %s", bits, group, dts[dt]);
    verdict(rows_ok, what);
    cudaFree(x); cudaFree(y); cudaFree(bias); cudaFree(ref); cudaFree(mag); cudaFree(d_ids); cudaFree(rows);
    drop(&s);
}

/* Parts of one launch against each by itself, and what was in y is kept where a part adds. */
static void check_parts(int64_t k, const std::vector<int64_t> &n)
{
    const int parts = (int)n.size();
    struct weight_set s[CK_MAX_PARTS];
    struct ck_part p[CK_MAX_PARTS] = {};
    int64_t width = 0;
    for (int i = 0; i < parts; i++, width += n[(size_t)i - 1]) s[i] = make_weight(4, 64, CK_DT_BF16, n[(size_t)i], k, (uint64_t)(21 + i));
    float *x = floats((size_t)(64 * k), 51, 1.0f, 0), *before = floats((size_t)(64 * width), 52, 1.0f, 0), *y = dev<float>((size_t)(64 * width));
    struct ck_x in = x_make(64, k);
    bool ok = true;
    char what[160];
    for (int m : { 1, 8, 16, 20, 32, 33, 64 }) {
        std::vector<float> got[2];
        in.layout = ck_x_layout_for(&ctx, m);
        CU(ck_x_write(&ctx, x, k, m, &in, st));
        for (int one = 0; one < 2; one++) {
            CU(cudaMemcpyAsync(y, before, (size_t)(64 * width) * 4, cudaMemcpyDeviceToDevice, st));
            int64_t col = 0;
            for (int i = 0; i < parts; i++, col += n[(size_t)i - 1]) p[i] = { &s[i].w, y + col, width, NULL, i == 1 ? 0.5f : 0.0f, 0, i == 0 };
            for (int i = 0; i < parts && !one; i++) CU(ck_linear(&ctx, &in, m, &p[i], 1, st));
            if (one) CU(ck_linear(&ctx, &in, m, p, parts, st));
            got[one] = host(y, (size_t)(64 * width));
        }
        snprintf(what, sizeof what, "%d tokens", m);
        ok &= same_bits(got[0], got[1], what);
    }
    snprintf(what, sizeof what, "linear %d parts of %lld to %lld rows over %lld: one launch has the bits of single ones", parts, (long long)n[0], (long long)n.back(), (long long)k);
    verdict(ok, what);
    cudaFree(x); cudaFree(before); cudaFree(y); cudaFree(in.v);
    for (int i = 0; i < parts; i++) drop(&s[i]);
}

static double glu_ref(int kind, double g, double u)
{
    if (kind == 0) return g / (1 + exp(-g)) * u;
    if (kind == 1) return 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g))) * u;
    g = g > 7 ? 7 : g;
    u = u > 7 ? 7 : u < -7 ? -7 : u;
    return (u + 1) * g / (1 + exp(-1.702 * g));
}

static __global__ void x_read(struct ck_x x, int m, float *out)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < m * x.k_pad; i += (int64_t)gridDim.x * blockDim.x)
        out[i] = __half2float(((const __half *)x.v)[ck_x_off(x.layout, x.k_pad, (int)(i / x.k_pad), (int)(i % x.k_pad))]) * x.mul;
}

static void check_glu(int bits, int kind, int64_t n, int64_t k)
{
    const int m = 150;
    struct weight_set a = make_weight(bits, 64, CK_DT_BF16, n, k, 5), b = make_weight(bits, 64, CK_DT_BF16, n, k, 9);
    float *x = floats((size_t)(m * k), 3, 0.3f, 0), *yg = dev<float>((size_t)(m * n)), *yu = dev<float>((size_t)(m * n)), *bias = floats((size_t)n, 8, 0.5f, 0);
    run_steps(&a, x, m, 8, 0, yg, bias);
    run_steps(&b, x, m, 8, 0, yu, NULL);
    std::vector<float> g = host(yg, (size_t)(m * n)), u = host(yu, (size_t)(m * n)), base;
    bool ok = true, near = true;
    char what[120];
    for (int step : { 1, 8, 16, 17, 32, 40, 70, 150 }) {
        struct ck_x in = x_make(step, k), out = x_make(step, n);
        out.mul = 16;
        std::vector<float> all;
        float *read = dev<float>((size_t)(step * out.k_pad));
        for (int t = 0; t < m; t += step) {
            int now = m - t < step ? m - t : step;
            in.layout = out.layout = ck_x_layout_for(&ctx, now);
            CU(ck_x_write(&ctx, x + (int64_t)t * k, k, now, &in, st));
            CU(ck_linear_glu(&ctx, &in, now, &a.w, &b.w, bias, NULL, kind, &out, st));
            x_read<<<256, 256, 0, st>>>(out, now, read);
            std::vector<float> v = host(read, (size_t)(now * out.k_pad));
            all.insert(all.end(), v.begin(), v.end());
        }
        snprintf(what, sizeof what, "steps of %d", step);
        if (base.empty()) base = all;
        else ok &= same_bits(base, all, what);
        for (int t = 0; t < m; t++)
            for (int64_t j = 0; j < out.k_pad; j++) {
                double want = j < n ? glu_ref(kind, g[(size_t)(t * n + j)], u[(size_t)(t * n + j)]) : 0, got = all[(size_t)(t * out.k_pad + j)];
                if (!(fabs(got - want) <= 6e-4 * fabs(want) + 1e-6)) near = false;
            }
        cudaFree(in.v); cudaFree(out.v); cudaFree(read);
    }
    snprintf(what, sizeof what, "gated %d bit kind %d %lldx%lld within 6e-4 of act(gate) * up, zeros behind", bits, kind, (long long)n, (long long)k);
    verdict(near, what);
    snprintf(what, sizeof what, "gated %d bit kind %d: same bits in steps of 1, 8, 16, 17, 32, 40, 70, 150", bits, kind);
    verdict(ok, what);
    cudaFree(x); cudaFree(yg); cudaFree(yu); cudaFree(bias);
    drop(&a); drop(&b);
}

/* Norms that products take themselves against a norm of its own. */
static void check_norm(int64_t k, int identity)
{
    struct weight_set s = make_weight(4, 64, CK_DT_BF16, 80, k, 6);
    int most = ck_norm_tokens(&ctx, k);
    float *rows = floats((size_t)(8 * k), 13, 2.0f, 0.1f, 1), *weight = floats((size_t)k, 14, 0.3f, 1.0f), *y = dev<float>(8 * 80);
    bool ok = true;
    char what[100];
    for (int m = 1; m <= most; m++) {
        std::vector<float> got[2];
        for (int fused = 0; fused < 2; fused++) {
            struct ck_x x = x_make(m, k);
            x.layout = ck_x_layout_for(&ctx, m);
            struct cs_norm a = {};
            a.in = rows; a.ld_in = k; a.m = m; a.width = (int)k; a.n_pieces = 1; a.weight = weight; a.eps = 1e-5f; a.identity = identity; a.x = &x;
            if (!fused) CU(cs_norm(&ctx, &a, st));
            struct ck_x in = x;
            if (fused) { in.norm_in = rows; in.ld_norm = k; in.norm_weight = weight; in.norm_eps = 1e-5f; in.norm_identity = identity; }
            struct ck_part p = { &s.w, y, 80, NULL, 0, 0, 0 };
            CU(cudaMemsetAsync(y, 0xff, 8 * 80 * 4, st));
            CU(ck_linear(&ctx, &in, m, &p, 1, st));
            got[fused] = host(y, (size_t)(m * 80));
            cudaFree(x.v);
        }
        snprintf(what, sizeof what, "%d tokens", m);
        ok &= same_bits(got[0], got[1], what);
    }
    snprintf(what, sizeof what, "norm of %lld%s inside the products: same bits, 1 to %d tokens", (long long)k, identity ? " (identity)" : "", most);
    verdict(ok, what);
    cudaFree(rows); cudaFree(weight); cudaFree(y);
    drop(&s);
}

/* --- attention --- */

struct attn_case {
    const char *name;
    int n_head, n_head_kv, d, fmt, window;
    float softcap;
    bool sinks;
    int n_ctx; /* tokens of the sequence */
};
static __global__ void fill_pages(uint8_t *pool, int n_pages, int64_t page_units, int64_t head_bytes, int n_head_kv, int d, int fmt, int n_ctx, const float *k, const float *v)
{
    int d_pad = (d + 63) / 64 * 64, elem = fmt == CK_KV_F32 ? 4 : 2;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)n_pages * 64 * n_head_kv * d_pad; i += (int64_t)gridDim.x * blockDim.x) {
        int dim = (int)(i % d_pad), h = (int)(i / d_pad % n_head_kv);
        int64_t key = i / d_pad / n_head_kv;
        uint8_t *at = pool + key / 64 * page_units * 4096 + h * head_bytes;
        bool in = dim < d && key < n_ctx;
        float kv = in ? k[(key * n_head_kv + h) * d + dim] : key < n_ctx ? 0.0f : NAN, vv = in ? v[(key * n_head_kv + h) * d + dim] : NAN; /* unwritten: NaN */
        int ko = ck_k_off((int)(key & 63), dim, d_pad, elem), vo = ck_v_off((int)(key & 63), dim, elem);
        uint8_t *vp = at + head_bytes / 2;
        if (fmt == CK_KV_F32) { ((float *)at)[ko] = kv; ((float *)vp)[vo] = vv; }
        else if (fmt == CK_KV_F16) { ((__half *)at)[ko] = __float2half_rn(kv); ((__half *)vp)[vo] = __float2half_rn(vv); }
        else { ((__nv_bfloat16 *)at)[ko] = __float2bfloat16_rn(kv); ((__nv_bfloat16 *)vp)[vo] = __float2bfloat16_rn(vv); }
    }
}
static __device__ double rounded(float v, int fmt)
{
    return fmt == CK_KV_F32 ? v : fmt == CK_KV_F16 ? __half2float(__float2half_rn(v)) : __bfloat162float(__float2bfloat16_rn(v));
}
static __global__ void attn_reference(struct attn_case c, const float *q, const float *k, const float *v, const int32_t *lo, const int32_t *hi, const float *sinks, double *scratch,
                                      double *out)
{
    int tok = (int)blockIdx.x, h = (int)blockIdx.y, kvh = h / (c.n_head / c.n_head_kv), d = c.d;
    double *s = scratch + ((int64_t)tok * c.n_head + h) * c.n_ctx;
    __shared__ double most, sum;
    for (int j = lo[tok] + (int)threadIdx.x; j < hi[tok]; j += (int)blockDim.x) {
        double a = 0;
        for (int i = 0; i < d; i++) a += (double)q[((int64_t)tok * c.n_head + h) * d + i] * rounded(k[((int64_t)j * c.n_head_kv + kvh) * d + i], c.fmt);
        if (c.softcap != 0) a = c.softcap * tanh(a / c.softcap) * 1.4426950408889634;
        s[j] = a;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        most = sinks ? sinks[h] : -INFINITY;
        for (int j = lo[tok]; j < hi[tok]; j++) most = fmax(most, s[j]);
        sum = sinks ? exp2(sinks[h] - most) : 0;
        for (int j = lo[tok]; j < hi[tok]; j++) sum += exp2(s[j] - most);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x) {
        double a = 0;
        for (int j = lo[tok]; j < hi[tok]; j++) a += exp2(s[j] - most) * rounded(v[((int64_t)j * c.n_head_kv + kvh) * d + i], c.fmt);
        out[((int64_t)tok * c.n_head + h) * d + i] = a / sum;
    }
}

/* The last n_q tokens of a sequence of c.n_ctx, in rows of `step`, as small or large units, with a stranger beside when asked. */
static std::vector<float> attn_run(const struct attn_case &c, struct ck_attend a, const float *q, int n_q, int step, bool small, bool stranger, const int32_t *lo, const int32_t *hi, float *out)
{
    std::vector<struct ck_attn_unit> units;
    CU(cudaMemsetAsync(out, 0xff, (size_t)(n_q * c.n_head * c.d) * 4, st));
    int per = small ? ck_attn_small_tokens(c.n_head, c.n_head_kv) : ck_attn_large_tokens(c.n_head, c.n_head_kv);
    if (per > step) per = step;
    for (int t = 0; t < n_q; t += per) units.push_back({ t, n_q - t < per ? n_q - t : per, 0, 0 });
    a.q = q;
    a.lo = lo;
    a.hi = hi;
    a.out = out;
    struct ck_attn_unit *u = upload(units);
    int at = 0, batch = stranger ? (int)units.size() : 1;
    for (; at < (int)units.size(); at += batch) {
        int now = (int)units.size() - at < batch ? (int)units.size() - at : batch;
        if (small) { a.small_units = u + at; a.n_small = now; }
        else { a.large_units = u + at; a.n_large = now; }
        a.n_split = (c.n_ctx + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT + 1;
        CU(ck_attend(&ctx, &a, st));
    }
    std::vector<float> v = host(out, (size_t)(n_q * c.n_head * c.d));
    cudaFree(u);
    return v;
}

static void check_attend(const struct attn_case &c)
{
    const int n_q = c.n_ctx < 150 ? c.n_ctx : 150, first = c.n_ctx - n_q;
    size_t kv = (size_t)c.n_ctx * (size_t)c.n_head_kv * (size_t)c.d, qn = (size_t)n_q * (size_t)c.n_head * (size_t)c.d;
    float *k = floats(kv, 31, 1.0f, 0), *v = floats(kv, 32, 1.0f, 0.1f), *q = floats(qn, 33, 3.0f / sqrtf((float)c.d), 0), *sinks = floats((size_t)c.n_head, 34, 3.0f, 0), *out = dev<float>(qn);
    size_t head_bytes = ck_kv_head_bytes(c.fmt, c.d);
    int n_pages = (c.n_ctx + 63) / 64;
    int64_t page_units = (int64_t)((head_bytes * (size_t)c.n_head_kv + 4095) / 4096);
    uint8_t *pool = dev<uint8_t>((size_t)(n_pages * page_units) * 4096);
    fill_pages<<<1024, 256, 0, st>>>(pool, n_pages, page_units, (int64_t)head_bytes, c.n_head_kv, c.d, c.fmt, c.n_ctx, k, v);
    std::vector<int32_t> ids, lo, hi;
    for (int i = 0; i < n_pages; i++) ids.push_back((int32_t)(i * page_units));
    for (int i = 0; i < n_q; i++) {
        int at = first + i;
        lo.push_back(c.window && at + 1 > c.window ? at + 1 - c.window : 0);
        hi.push_back(at + 1);
    }
    if (n_q > 40) hi[20] = hi[21] = hi[22] = first + 40; /* a two-way span */
    int32_t *d_ids = upload(ids), *d_lo = upload(lo), *d_hi = upload(hi);
    double *ref = dev<double>(qn), *scratch = dev<double>((size_t)n_q * (size_t)c.n_head * (size_t)c.n_ctx);
    attn_reference<<<dim3((unsigned)n_q, (unsigned)c.n_head), 128, 0, st>>>(c, q, k, v, d_lo, d_hi, c.sinks ? sinks : NULL, scratch, ref);
    std::vector<double> want = host(ref, qn);
    struct ck_attend a = {};
    a.ld_q = a.ld_out = c.n_head * c.d;
    a.q_step = c.d;
    a.pool = pool;
    a.pages = d_ids;
    a.ld_pages = n_pages;
    a.kv_format = c.fmt;
    a.n_head = c.n_head;
    a.n_head_kv = c.n_head_kv;
    a.head_dim = c.d;
    a.softcap = c.softcap;
    a.sinks = c.sinks ? sinks : NULL;
    std::vector<float> base = attn_run(c, a, q, n_q, 1, true, true, d_lo, d_hi, out);
    double worst = 0;
    for (size_t i = 0; i < qn; i++) {
        double e = fabs((double)base[i] - want[i]);
        if (!(e <= worst)) worst = e;
    }
    char what[200];
    snprintf(what, sizeof what, "attend %s (%d/%d heads of %d, format %d, window %d, %d keys): worst error %.2e (bound 2e-3)", c.name, c.n_head, c.n_head_kv, c.d, c.fmt, c.window, c.n_ctx, worst);
    verdict(worst <= 2e-3, what);
    bool ok = same_bits(base, attn_run(c, a, q, n_q, 1, true, false, d_lo, d_hi, out), "small, alone");
    ok &= same_bits(base, attn_run(c, a, q, n_q, 4, true, true, d_lo, d_hi, out), "small, several tokens");
    ok &= same_bits(base, attn_run(c, a, q, n_q, 1000, false, true, d_lo, d_hi, out), "large");
    ok &= same_bits(base, attn_run(c, a, q, n_q, 7, false, false, d_lo, d_hi, out), "large, rows of 7");
    snprintf(what, sizeof what, "attend %s: same bits alone, batched, in chunks, as decode and as prefill", c.name);
    verdict(ok, what);
    cudaFree(k); cudaFree(v); cudaFree(q); cudaFree(sinks); cudaFree(out); cudaFree(pool); cudaFree(d_ids); cudaFree(d_lo); cudaFree(d_hi); cudaFree(ref); cudaFree(scratch);
}

/* Single tokens, each at the end of a sequence of its own: cs_rope_attend, and the form for many keys, against the two launches that
 * they stand for. Outputs, linear input and every page have the same bits. */
static void check_decode(const struct attn_case &c, bool norms)
{
    const int R = 64, n_page = (c.n_ctx + 63) / 64, width = c.n_head * c.d, kv_width = c.n_head_kv * c.d;
    const size_t head = ck_kv_head_bytes(c.fmt, c.d), page = (head * (size_t)c.n_head_kv + 4095) / 4096 * 4096, pool_bytes = page * (size_t)(R * n_page);
    float *noise = floats(pool_bytes / 2, 41, 1.0f, 0);
    uint8_t *pool = (uint8_t *)typed(noise, pool_bytes / 2, c.fmt == CK_KV_BF16 ? CK_DT_BF16 : CK_DT_F16), *mine[2] = { dev<uint8_t>(pool_bytes), dev<uint8_t>(pool_bytes) };
    const int n_way = c.n_head / c.n_head_kv <= 8 ? 3 : 2;
    float *q = floats((size_t)(R * width), 42, 3.0f / sqrtf((float)c.d), 0), *k = floats((size_t)(R * kv_width), 43, 1.0f, 0), *v = floats((size_t)(R * kv_width), 44, 1.0f, 0.1f);
    float *table = floats((size_t)(R * c.d), 45, 0.5f, 0), *weight = floats((size_t)c.d, 46, 0.2f, 1.0f), *sinks = floats((size_t)c.n_head, 47, 3.0f, 0);
    float *rotated = dev<float>((size_t)(R * width)), *out = dev<float>((size_t)(R * width));
    std::vector<int32_t> ids, lo, hi, index, first;
    std::vector<struct ck_attn_unit> units;
    uint32_t seed = 7;
    for (int i = 0; i < R; i++) {
        seed = seed * 1664525u + 1013904223u;
        int n = i == 0 ? c.n_ctx : i == 1 ? 1 : i == 2 ? CK_ATTN_SPLIT : 1 + (int)((seed >> 8) % (uint32_t)c.n_ctx);
        lo.push_back(c.window && n > c.window ? n - c.window : 0);
        hi.push_back(n);
        index.push_back(n - 1);
        first.push_back(i * n_page);
        units.push_back({ i, 1, i * n_page, 0 });
        for (int j = 0; j < n_page; j++) ids.push_back((int32_t)((size_t)(j * R + i) * (page / 4096)));
    }
    int32_t *d_ids = upload(ids), *d_lo = upload(lo), *d_hi = upload(hi), *d_index = upload(index), *d_first = upload(first);
    struct ck_attn_unit *d_units = upload(units);
    bool ok = true;
    for (int m : { 1, 3, 8, 33, 64 }) {
        std::vector<float> got[2];
        std::vector<uint16_t> bits[2], pages[2];
        for (int form = 0; form < n_way; form++) {
            const int way = form > 0;
            CU(cudaMemcpyAsync(mine[way], pool, pool_bytes, cudaMemcpyDeviceToDevice, st));
            CU(cudaMemsetAsync(out, 0xff, (size_t)(R * width) * 4, st));
            struct ck_x x = x_make(m, width);
            x.layout = ck_x_layout_for(&ctx, m);
            struct cs_rope r = {};
            r.q = q; r.k = k; r.v = v; r.ld_q = width; r.ld_k = r.ld_v = kv_width; r.q_step = c.d; r.out = rotated; r.ld_out = width; r.m = m;
            r.n_head = c.n_head; r.n_head_kv = c.n_head_kv; r.head_dim = c.d; r.q_scale = 0.7f; r.norm_eps = 1e-5f;
            if (norms) { r.q_norm = r.k_norm = weight; r.v_norm = 1; }
            r.table = table; r.n_rot = c.d; r.pool = mine[way]; r.pages = d_ids; r.table_of = d_first; r.index = d_index; r.kv_format = c.fmt;
            struct ck_attend a = {};
            a.q = rotated; a.ld_q = width; a.q_step = c.d; a.out = out; a.ld_out = width; a.x = &x; a.lo = d_lo; a.hi = d_hi; a.pool = mine[way]; a.pages = d_ids;
            a.ld_pages = 1; a.kv_format = c.fmt; a.n_head = c.n_head; a.n_head_kv = c.n_head_kv; a.head_dim = c.d; a.softcap = c.softcap;
            a.sinks = c.sinks ? sinks : NULL; a.small_units = d_units; a.n_small = m; a.n_split = (c.n_ctx + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
            if (form == 0) { CU(cs_rope(&ctx, &r, st)); CU(ck_attend(&ctx, &a, st)); }
            else if (form == 1) CU(cs_rope_attend(&ctx, &r, &a, st));
            else CU(ck_attend_stream(&ctx, &r, &a, st));
            got[way] = host(out, (size_t)(m * width));
            bits[way] = host((uint16_t *)x.v, (size_t)m * (size_t)x.k_pad);
            pages[way] = host((uint16_t *)mine[way], pool_bytes / 2);
            cudaFree(x.v);
            size_t at = 0;
            while (way == 1 && at < got[0].size() && memcmp(&got[0][at], &got[1][at], 4) == 0) at++;
            if (way == 1 && at < got[0].size())
                printf("     form %d, batch %d: row %zu (keys %d to %d), column %zu\n", form, m, at / (size_t)width, lo[at / (size_t)width], hi[at / (size_t)width], at % (size_t)width);
            ok &= way == 0 || (at == got[0].size() && bits[0] == bits[1] && pages[0] == pages[1]);
        }
    }
    char what[200];
    snprintf(what, sizeof what, "decode %s (%d/%d heads of %d, format %d, window %d, norms %d): one launch has the bits of two", c.name, c.n_head, c.n_head_kv, c.d, c.fmt, c.window, norms);
    verdict(ok, what);
    void *all[] = { noise, pool, mine[0], mine[1], q, k, v, table, weight, sinks, rotated, out, d_ids, d_lo, d_hi, d_index, d_first, d_units };
    for (void *p : all) cudaFree(p);
}

/* --- roofline --- */

static __global__ void read_kernel(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t s = 0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = __ldcs(p + i + (size_t)j * step);
#pragma unroll
        for (int j = 0; j < 8; j++) s ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += step) s ^= p[i].x;
    if (s == 0x12345678) *out = s;
}
static __global__ void __launch_bounds__(256) tensor_kernel(int n, float *out)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ __align__(128) __half b[128 * 64];
    for (int i = (int)threadIdx.x; i < 128 * 64; i += 256) b[i] = __float2half_rn(noise((uint64_t)i, 1));
    ck_mbar_init_done();
    __syncthreads();
    float d[64] = {};
    uint32_t a[4];
    for (int i = 0; i < 4; i++) a[i] = ck_h2u(__floats2half2_rn(noise(threadIdx.x * 8ull + (uint64_t)i, 2), noise(threadIdx.x * 8ull + (uint64_t)i, 3)));
    uint32_t at = ck_smem(b);
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
    for (int i = 0; i < n; i++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint64_t desc = (uint64_t)(((at + (uint32_t)j * 4096) & 0x3ffff) >> 4) | (uint64_t)128 << 16 | (uint64_t)8 << 32;
            asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                         "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                         "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                         "{%64,%65,%66,%67}, %68, 1, 1, 1, 0;"
                         : D16(0), D16(16), D16(32), D16(48)
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));
        }
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    float s = 0;
    for (int i = 0; i < 64; i++) s += d[i];
    out[blockIdx.x * 256 + threadIdx.x] = s;
#endif
}

static double peak_gbs, peak_tf;

/* Median seconds of a call, by events. */
template <typename F> static double timed(F f, int reps, int inner = 1)
{
    cudaEvent_t a, b;
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    std::vector<float> t;
    f();
    CU(cudaStreamSynchronize(st));
    for (int i = 0; i < reps; i++) {
        CU(cudaEventRecord(a, st));
        for (int j = 0; j < inner; j++) f();
        CU(cudaEventRecord(b, st));
        CU(cudaEventSynchronize(b));
        float ms;
        CU(cudaEventElapsedTime(&ms, a, b));
        t.push_back(ms / (float)inner);
    }
    for (size_t i = 0; i < t.size(); i++)
        for (size_t j = i + 1; j < t.size(); j++)
            if (t[j] < t[i]) std::swap(t[i], t[j]);
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return t[t.size() / 2] * 1e-3;
}
template <typename F> static cudaGraphExec_t capture(F f)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    f();
    CU(cudaStreamEndCapture(st, &g));
    CU(cudaGraphInstantiate(&e, g, 0));
    CU(cudaGraphDestroy(g));
    return e;
}
template <typename F> static double graph_time(F f, int reps = 15)
{
    cudaGraphExec_t e = capture(f);
    double t = timed([&] { CU(cudaGraphLaunch(e, st)); }, reps);
    CU(cudaGraphExecDestroy(e));
    return t;
}

static void roofline(void)
{
    size_t n = (size_t)4 << 30;
    uint4 *p = dev<uint4>(n / 16);
    uint32_t *out = dev<uint32_t>(1);
    fill_u32<<<4096, 256, 0, st>>>((uint32_t *)p, n / 4, 1);
    double best = 1e9;
    for (int blocks : { ctx.n_sm * 4, ctx.n_sm * 8, ctx.n_sm * 16 }) {
        double t = timed([&] { read_kernel<<<(unsigned)blocks, 256, 0, st>>>(p, n / 16, out); }, 7);
        best = t < best ? t : best;
    }
    peak_gbs = (double)n / best * 1e-9;
    cudaFree(p);
    float *o = dev<float>((size_t)ctx.n_sm * 4 * 256);
    double t = timed([&] { tensor_kernel<<<(unsigned)ctx.n_sm * 2, 256, 0, st>>>(4000, o); }, 7);
    peak_tf = (double)ctx.n_sm * 2 * 2 * 4000 * 4 * 64 * 128 * 16 * 2 / t * 1e-12;
    CU(cudaGetLastError());
    printf("read bandwidth %.0f GB/s, tensor peak (wgmma f16) %.0f TFLOP/s\n", peak_gbs, peak_tf);
    cudaFree(o);
    cudaFree(out);
}

/* --- speed of the products: Llama-3.1-8B shapes, 32 layers of weights of their own --- */

#define LAYERS 32
struct shape { const char *name; int64_t n, k; int parts; int64_t part_n[3]; bool glu; };
static const struct shape shapes[] = {
    { "qkv", 6144, 4096, 3, { 4096, 1024, 1024 }, false }, { "o", 4096, 4096, 1, { 4096, 0, 0 }, false }, { "gate_up", 28672, 4096, 2, { 14336, 14336, 0 }, true },
    { "down", 4096, 14336, 1, { 4096, 0, 0 }, false },     { "head", 128256, 4096, 1, { 128256, 0, 0 }, false },
};
struct layer_set { struct ck_weight w[5][3]; };

static void speed_linear(int bits, int group)
{
    static struct layer_set layers[LAYERS];
    size_t bytes_layer = 0, bytes_head = 0;
    std::vector<void *> blocks;
    for (int s = 0; s < 5; s++)
        for (int p = 0; p < shapes[s].parts; p++) {
            struct weight_set one = make_weight(bits, group, CK_DT_BF16, shapes[s].part_n[p], shapes[s].k, (uint64_t)(s * 10 + p));
            size_t bytes = ck_weight_bytes(&one.w, bits, group, 0, one.w.n, one.w.k);
            ck_weight_place(&one.w, one.block);
            (s == 4 ? bytes_head : bytes_layer) += bytes;
            for (int l = 0; l < (s == 4 ? 1 : LAYERS); l++) {
                void *b = dev<uint8_t>(bytes);
                blocks.push_back(b);
                CU(cudaMemcpyAsync(b, one.block, bytes, cudaMemcpyDeviceToDevice, st));
                layers[l].w[s][p] = one.w;
                ck_weight_place(&layers[l].w[s][p], b);
            }
            drop(&one);
        }
    printf("\n%d bit g%d: %.1f MB a layer, head %.1f MB, all %.3f GB; floor %.3f ms a step\n", bits, group, (double)bytes_layer * 1e-6, (double)bytes_head * 1e-6,
           (double)(bytes_layer * LAYERS + bytes_head) * 1e-9, (double)(bytes_layer * LAYERS + bytes_head) / peak_gbs * 1e-6);
    const int m_max = 2048;
    float *x = floats((size_t)m_max * 14336, 4, 1.0f, 0), *y = dev<float>((size_t)m_max * 28672), *logits = dev<float>((size_t)64 * 128256);
    printf("%6s", "M");
    for (auto &s : shapes) printf(" %20s", s.name);
    printf(" %28s\n", "step us (tok/s), PDL | none");
    for (int m : { 1, 2, 4, 8, 16, 32, 64, 128, 512, 2048 }) {
        struct ck_x in[2] = { x_make(m, 4096), x_make(m, 14336) };
        for (auto &i : in) {
            i.layout = ck_x_layout_for(&ctx, m);
            CU(ck_x_write(&ctx, x, i.k, m, &i, st));
        }
        struct ck_ctx c = ctx;
        auto op = [&](int s, int l) {
            const struct shape &h = shapes[s];
            const struct ck_weight *w = layers[l].w[s];
            struct ck_x *a = &in[h.k == 4096 ? 0 : 1];
            if (h.glu) {
                CU(ck_linear_glu(&c, a, m, &w[0], &w[1], NULL, NULL, 0, &in[1], st));
                return;
            }
            struct ck_part p[3] = {};
            int64_t col = 0;
            for (int i = 0; i < h.parts; i++, col += h.part_n[i - 1]) {
                p[i].w = &w[i];
                p[i].y = (s == 4 ? logits : y) + col;
                p[i].ld_y = h.n;
            }
            CU(ck_linear(&c, a, m < 64 || s != 4 ? m : 64, p, h.parts, st));
        };
        printf("%6d", m);
        c.pdl = 1;
        for (int s = 0; s < 5; s++) {
            if (s == 4 && m > 64) { printf(" %20s", "-"); continue; }
            int n = s == 4 ? 1 : LAYERS;
            double t = graph_time([&] { for (int l = 0; l < n; l++) op(s, l); }) / n;
            double b = s == 4 ? (double)bytes_head : (double)shapes[s].n * (double)shapes[s].k * (double)bytes_layer / ((6144.0 + 4096 + 28672) * 4096 + 4096.0 * 14336);
            if (m <= 64) printf(" %7.1f (%4.0f GB/s)", t * 1e6, b / t * 1e-9);
            else printf(" %7.1f (%4.0f TF/s)", t * 1e6, 2.0 * m * (double)shapes[s].n * (double)shapes[s].k / t * 1e-12);
            fflush(stdout);
        }
        double t[2];
        for (int pdl = 1; pdl >= 0; pdl--) {
            c.pdl = pdl;
            t[pdl] = graph_time([&] {
                for (int l = 0; l < LAYERS; l++)
                    for (int s = 0; s < 4; s++) op(s, l);
                if (m <= 64) op(4, 0);
            }, 9);
        }
        printf(" %9.0f (%6.0f) | %7.0f (%6.0f)\n", t[1] * 1e6, m / t[1], t[0] * 1e6, m / t[0]);
        fflush(stdout);
        cudaFree(in[0].v);
        cudaFree(in[1].v);
    }
    CU(cudaStreamSynchronize(st));
    for (void *b : blocks) cudaFree(b);
    cudaFree(x);
    cudaFree(y);
    cudaFree(logits);
}

/* --- speed of attention: 32 heads, 8 of KV, 128 wide, f16; 8 layers of pages --- */

static void speed_attend(void)
{
    const int H = 32, HK = 8, D = 128, NL = 8;
    const size_t head = ck_kv_head_bytes(CK_KV_F16, D);
    printf("\nattention, %d heads, %d of KV, %d wide, f16: decode us a layer (GB/s of KV)\n", H, HK, D);
    for (int batch : { 1, 8, 32 })
        for (int n_ctx : { 512, 2048, 8192, 32768 }) {
            int n_page = (n_ctx + 63) / 64, n_all = n_page * batch;
            size_t pool_bytes = (size_t)n_all * (size_t)NL * HK * head;
            if (pool_bytes > (size_t)40 << 30) continue;
            uint8_t *pool = dev<uint8_t>(pool_bytes);
            CU(cudaMemsetAsync(pool, 0x2c, pool_bytes, st));
            std::vector<int32_t> ids, lo, hi;
            std::vector<struct ck_attn_unit> u;
            for (int b = 0; b < batch; b++) {
                for (int i = 0; i < n_page; i++) ids.push_back((int32_t)((size_t)(i * batch + b) * NL * HK * head / 4096));
                lo.push_back(0);
                hi.push_back(n_ctx);
                u.push_back({ b, 1, b, 0 });
            }
            int32_t *di = upload(ids), *dl = upload(lo), *dh = upload(hi);
            struct ck_attn_unit *du = upload(u);
            float *q = floats((size_t)batch * H * D, 1, 0.3f, 0);
            struct ck_x x = x_make(batch, H * D);
            struct ck_attend a = {};
            a.q = q; a.ld_q = H * D; a.q_step = D; a.x = &x; a.lo = dl; a.hi = dh; a.pool = pool; a.pages = di; a.ld_pages = n_page;
            a.kv_format = CK_KV_F16; a.n_head = H; a.n_head_kv = HK; a.head_dim = D;
            a.small_units = du; a.n_small = batch; a.n_split = (n_ctx + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
            struct ck_ctx c = ctx;
            c.pdl = 1;
            double t = graph_time([&] {
                for (int l = 0; l < NL; l++) {
                    a.head_off = (int64_t)l * HK * (int64_t)head;
                    CU(ck_attend(&c, &a, st));
                }
            }) / NL;
            double bytes = (double)batch * n_ctx * HK * D * 4;
            printf("  batch %3d, %6d keys: %8.1f us (%5.0f GB/s, %3.0f %%)\n", batch, n_ctx, t * 1e6, bytes / t * 1e-9, bytes / t * 1e-9 / peak_gbs * 100);
            fflush(stdout);
            cudaFree(pool); cudaFree(di); cudaFree(dl); cudaFree(dh); cudaFree(du); cudaFree(q); cudaFree(x.v);
        }
    printf("prefill of n tokens from 0, causal: us a layer (TFLOP/s, half the square counted)\n");
    for (int n : { 512, 2048, 8192 }) {
        int n_page = (n + 63) / 64, per = ck_attn_large_tokens(H, HK);
        uint8_t *pool = dev<uint8_t>((size_t)n_page * HK * head);
        CU(cudaMemsetAsync(pool, 0x2c, (size_t)n_page * HK * head, st));
        std::vector<int32_t> ids, lo, hi;
        std::vector<struct ck_attn_unit> u;
        for (int i = 0; i < n_page; i++) ids.push_back((int32_t)((size_t)i * HK * head / 4096));
        for (int i = 0; i < n; i++) { lo.push_back(0); hi.push_back(i + 1); }
        for (int i = 0; i < n; i += per) u.push_back({ i, n - i < per ? n - i : per, 0, 0 });
        int32_t *di = upload(ids), *dl = upload(lo), *dh = upload(hi);
        struct ck_attn_unit *du = upload(u);
        float *q = floats((size_t)n * H * D, 1, 0.3f, 0);
        struct ck_x x = x_make(n, H * D);
        x.layout = ck_x_layout_for(&ctx, n);
        struct ck_attend a = {};
        a.q = q; a.ld_q = H * D; a.q_step = D; a.x = &x; a.lo = dl; a.hi = dh; a.pool = pool; a.pages = di; a.ld_pages = n_page;
        a.kv_format = CK_KV_F16; a.n_head = H; a.n_head_kv = HK; a.head_dim = D; a.large_units = du; a.n_large = (int)u.size();
        double t = timed([&] { CU(ck_attend(&ctx, &a, st)); }, 9);
        printf("  %6d: %8.1f us (%4.0f TFLOP/s)\n", n, t * 1e6, 2.0 * n * n * H * D / t * 1e-12);
        fflush(stdout);
        cudaFree(pool); cudaFree(di); cudaFree(dl); cudaFree(dh); cudaFree(du); cudaFree(q); cudaFree(x.v);
    }
}

int main(int argc, char **argv)
{
    bool all = argc < 2, few = false;
    auto want = [&](const char *s) {
        for (int i = 1; i < argc; i++)
            if (!strcmp(argv[i], s)) return true;
        return all;
    };
    for (int i = 1; i < argc; i++) few |= !strcmp(argv[i], "few");
    CU(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    CU(ck_ctx_init(&ctx, 0));
    ctx.work_bytes = ck_work_bytes(&ctx, 4096, 64, 512, 131072);
    ctx.work = dev<uint8_t>(ctx.work_bytes);
    CU(cudaMemset(ctx.work, 0, ctx.work_bytes));
    printf("sm_%d%d, %d SMs, wgmma %d\n", ctx.major, ctx.minor, ctx.n_sm, ctx.wgmma);
    if (want("check") || want("check-linear")) {
        check_linear(4, 64, CK_DT_BF16, 272, 1024);
        check_linear(4, 64, CK_DT_F16, 264, 576);
        check_linear(4, 128, CK_DT_BF16, 128, 4096);
        check_linear(0, 0, CK_DT_BF16, 264, 1120);
        check_linear(0, 0, CK_DT_F32, 136, 14336);
        check_linear(4, 64, CK_DT_BF16, 48, 64);
        check_linear(4, 64, CK_DT_BF16, 4264, 576); /* several row tiles a unit */
        check_linear(4, 64, CK_DT_BF16, 12288, 128);
        check_linear(0, 0, CK_DT_BF16, 8536, 192);
        check_linear(4, 64, CK_DT_BF16, 4264, 2048);
        check_linear(4, 64, CK_DT_BF16, 3000, 4160);
        check_linear(0, 0, CK_DT_F32, 3080, 2176);
        check_linear(4, 64, CK_DT_BF16, 5992, 1088);   /* clusters of four */
        check_linear(4, 64, CK_DT_BF16, 40008, 576);   /* blocks of several units */
        check_linear(4, 64, CK_DT_BF16, 100008, 64);
        check_parts(1024, { 272, 72, 72 });
        check_parts(2048, { 4096, 1024, 1000 });
        check_parts(576, { 24008, 1000 });
        for (int k : { 64, 576, 960, 1024, 2048, 4096, 5120 }) check_norm(k, 0);
        check_norm(576, 1);
        if (!few) {
            check_linear(4, 32, CK_DT_F16, 264, 96);
            check_linear(4, 32, CK_DT_F32, 264, 2048);
            check_linear(8, 64, CK_DT_BF16, 264, 2048);
            check_linear(8, 32, CK_DT_F16, 272, 1056);
            check_linear(8, 16, CK_DT_BF16, 272, 1040);
            check_linear(2, 64, CK_DT_BF16, 264, 1024);
            check_linear(3, 64, CK_DT_BF16, 264, 1024);
            check_linear(5, 64, CK_DT_BF16, 264, 1024);
            check_linear(6, 64, CK_DT_BF16, 264, 1024);
            check_glu(8, 0, 200, 1024);
        }
    }
    if (want("check") || want("check-glu")) {
        for (int kind = 0; kind < 3; kind++) check_glu(4, kind, kind == 1 ? 208 : 1024, 1024);
        check_glu(0, 0, 328, 576);
        check_glu(4, 0, 6144, 256);
        check_glu(4, 0, 2048, 2048);
        check_glu(4, 1, 5000, 1088);
        check_glu(4, 0, 12288, 256);
        check_glu(0, 1, 1544, 2112);
    }
    if (want("check") || want("check-attend")) {
        static const struct attn_case cases[] = {
            { "llama", 32, 8, 128, CK_KV_F16, 0, 0, false, 1500 },   { "llama short", 32, 8, 128, CK_KV_F16, 0, 0, false, 200 },
            { "smollm", 9, 3, 64, CK_KV_F16, 0, 0, false, 700 },     { "gemma", 4, 1, 256, CK_KV_F16, 512, 0, false, 1300 },
            { "gemma2", 8, 4, 256, CK_KV_F16, 0, 50.0f, false, 600 }, { "sinks", 64, 8, 64, CK_KV_F16, 128, 0, true, 900 },
            { "bf16", 14, 2, 64, CK_KV_BF16, 0, 0, false, 900 },     { "bf16 128", 16, 2, 128, CK_KV_BF16, 0, 0, false, 900 },
            { "f32", 4, 2, 64, CK_KV_F32, 100, 0, false, 400 },      { "wide", 4, 2, 512, CK_KV_F16, 0, 0, false, 600 },
            { "mqa", 32, 1, 128, CK_KV_F16, 0, 0, false, 600 },      { "odd", 4, 2, 80, CK_KV_F16, 0, 0, false, 600 },
            { "odd bf16", 4, 2, 96, CK_KV_BF16, 0, 0, false, 300 },  { "plain", 4, 2, 160, CK_KV_F16, 0, 0, false, 300 },
        };
        for (auto &c : cases) check_attend(c);
        static const struct attn_case single[] = {
            { "llama", 32, 8, 128, CK_KV_F16, 0, 0, false, 700 },   { "smollm", 9, 3, 64, CK_KV_F16, 0, 0, false, 900 },
            { "sinks", 64, 8, 64, CK_KV_F16, 128, 0, true, 900 },   { "bf16", 14, 2, 64, CK_KV_BF16, 0, 30.0f, false, 900 },
            { "bf16 128", 16, 2, 128, CK_KV_BF16, 300, 0, false, 900 }, { "mqa", 40, 1, 128, CK_KV_F16, 0, 0, false, 2500 },
            { "odd", 4, 2, 80, CK_KV_F16, 0, 0, false, 600 },
        };
        for (auto &c : single) {
            check_decode(c, false);
            check_decode(c, true);
        }
    }
    if (want("linear") || want("linear8") || want("linear16") || want("attend")) roofline();
    if (want("attend")) speed_attend();
    if (want("linear")) speed_linear(4, 64);
    if (want("linear8")) speed_linear(8, 64);
    if (want("linear16")) speed_linear(0, 64);
    printf("%s: %d failed\n", n_failed ? "FAILED" : "all checks passed", n_failed);
    return n_failed != 0;
}
