/* cuda_kernels_attend.cu: checks of attention: against float64, and the same bits alone, batched, in chunks, as decode and as prefill, with and
 * without the rotation of keys.
 */
#include "cuda_kernels.cuh"

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

void check_attention(void)
{
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
