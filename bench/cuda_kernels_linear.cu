/* cuda_kernels_linear.cu: checks of the products: against float64 within the bound of kernels.h, and the same bits for every batch width and path,
 * for parts of one launch, gated, and with the norm that they take themselves.
 */
#include "cuda_kernels.cuh"

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

void check_products(bool few)
{
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

void check_gated(void)
{
    for (int kind = 0; kind < 3; kind++) check_glu(4, kind, kind == 1 ? 208 : 1024, 1024);
    check_glu(0, 0, 328, 576);
    check_glu(4, 0, 6144, 256);
    check_glu(4, 0, 2048, 2048);
    check_glu(4, 1, 5000, 1088);
    check_glu(4, 0, 12288, 256);
    check_glu(0, 1, 1544, 2112);
}
