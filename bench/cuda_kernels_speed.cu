/* cuda_kernels_speed.cu: how fast products and attention are, beside what memory and the tensor cores give in the same run. */
#include "cuda_kernels.cuh"

static double peak_gbs, peak_tf;

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

void roofline(void)
{
    size_t n = (size_t)4 << 30;
    uint4 *p = dev<uint4>(n / 16);
    uint32_t *out = dev<uint32_t>(1);
    fill_words((uint32_t *)p, n / 4, 1);
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

void speed_linear(int bits, int group)
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

void speed_attend(void)
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
