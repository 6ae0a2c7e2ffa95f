/* kernels_gemm.cu: products of many tokens on sm_90a with wgmma.
 *
 * A block makes 128 rows x NTOK tokens at a time: a producer warpgroup fills a ring with two k tiles of 8 row tiles and of the linear
 * input a stage; two consumer warpgroups of 64 rows dequantise their codes into registers (the A operand) and multiply. While one
 * waits or dequantises, the other's instructions keep the tensor cores busy. Leaves and k steps as in kernels_linear.cu: same bits.
 * Gated form: warpgroup 0 has gate rows, warpgroup 1 the same rows of up; sums meet in shared memory.
 */
#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/kernels_int.h"

struct gemm_args {
    struct ck_out part[CK_MAX_PARTS]; /* unit0: in blocks of 128 rows (gated: 64) */
    int n_parts, n_blocks, n_tok_blocks, n_ktile, m;
    struct ck_x x, out;
    int glu;
};

template <int FMT, int NS, int NTOK> struct gemm {
    enum {
        tile = ck_tile_size<FMT, NS>(),
        w_bytes = 16 * tile,          /* 8 row tiles x 2 k tiles */
        x_bytes = 2 * 64 * NTOK * 2,
        slot = w_bytes + x_bytes,
        swap = 2 * 64 * (NTOK / 2) * 4, /* gated: half the sums of each warpgroup */
        stage_x = 64 * NTOK * 2,      /* gated: the output tile */
        depth = (220 * 1024 - swap - stage_x) / slot > 5 ? 5 : (220 * 1024 - swap - stage_x) / slot,
        bytes = depth * slot + swap + stage_x + 256
    };
};

#if __CUDA_ARCH_FEAT_SM90_ALL
static __device__ __forceinline__ void wg_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wg_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void wg_wait(void) { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

/* B: K-major without swizzle, [k half][token][8]. */
static __device__ __forceinline__ uint64_t b_desc(uint32_t addr, int ntok)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(uint32_t)(ntok) << 16 | (uint64_t)(128 >> 4) << 32; /* LBO 16 ntok, SBO 128 */
}

#define F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16R(d, i) F4(d, i), F4(d, i + 4), F4(d, i + 8), F4(d, i + 12)

template <int NTOK> struct wg;
template <> struct wg<128> {
    static __device__ __forceinline__ void mma(float (&d)[64], const uint32_t a[4], uint64_t desc, int keep)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                     "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                     "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                     "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                     : F16R(d, 0), F16R(d, 16), F16R(d, 32), F16R(d, 48)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(keep));
    }
};
#endif

/* Tile number -> row block (slow) and token block (fast: a wave shares weights and most of x stays in the cache). */
template <int FMT, int NS, int NTOK, bool GLU>
static __global__ void __launch_bounds__(384, 1) gemm_kernel(const __grid_constant__ struct gemm_args a)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    using G = gemm<FMT, NS, NTOK>;
    constexpr int tile = G::tile, D = G::depth;
    extern __shared__ __align__(1024) uint8_t smem[];
    float *swap = (float *)(smem + D * G::slot);
    __half *out_tile = (__half *)(smem + D * G::slot + G::swap);
    const uint32_t full = ck_smem(smem + D * G::slot + G::swap + G::stage_x), empty = full + 8 * D;
    const int group = (int)threadIdx.x >> 7, n_tiles = a.n_blocks * a.n_tok_blocks, n_stage = (a.n_ktile + 1) / 2;

    if (threadIdx.x == 0)
        for (int i = 0; i < D; i++) {
            ck_mbar_init(full + 8 * i, 1);
            ck_mbar_init(empty + 8 * i, 2);
        }
    ck_mbar_init_done();
    __syncthreads();
    ck_pdl_launch();

    auto part_of = [&](int block) {
        int p = 0;
        while (!GLU && p + 1 < a.n_parts && block >= a.part[p + 1].unit0) p++;
        return p;
    };
    if (group == 2) { /* producer: one thread */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x != 256) return;
        int slot = 0;
        uint32_t phase = 1;
        bool waited = false;
        for (int t = (int)blockIdx.x; t < n_tiles; t += (int)gridDim.x) {
            int block = t / a.n_tok_blocks, tb = t % a.n_tok_blocks, p = part_of(block);
            const uint8_t *src[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const struct ck_out &o = a.part[GLU ? i >> 2 : p];
                int rt = GLU ? block * 4 + (i & 3) : (block - o.unit0) * 8 + i;
                src[i] = o.tiles + (int64_t)(rt * 16 < o.n ? rt : 0) * a.n_ktile * tile;
            }
            const uint8_t *x = (const uint8_t *)a.x.v + (int64_t)tb * a.n_ktile * 16384;
            for (int s = 0; s < n_stage; s++) {
                int n = 2 * s + 1 < a.n_ktile ? 2 : 1;
                uint32_t bar = full + 8 * (uint32_t)slot, dst = ck_smem(smem) + (uint32_t)slot * G::slot;
                ck_mbar_wait(empty + 8 * (uint32_t)slot, phase);
                ck_mbar_expect(bar, (uint32_t)(n * (8 * tile + 64 * NTOK * 2)));
#pragma unroll
                for (int i = 0; i < 8; i++) ck_bulk_plain(dst + (uint32_t)(i * 2 * tile), src[i] + (int64_t)s * 2 * tile, (uint32_t)(n * tile), bar);
                if (!waited) {
                    ck_pdl_wait();
                    waited = true;
                }
                ck_bulk_plain(dst + G::w_bytes, x + (int64_t)s * 32768, (uint32_t)(n * 16384), bar);
                if (++slot == D) {
                    slot = 0;
                    phase ^= 1;
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    ck_pdl_wait(); /* residuals and outputs are read and written below */
    const int lane = (int)threadIdx.x & 31, warp = ((int)threadIdx.x >> 5) & 3;
    int slot = 0;
    uint32_t phase = 0;
    for (int t = (int)blockIdx.x; t < n_tiles; t += (int)gridDim.x) {
        float acc[NTOK / 2], total[NTOK / 2];
        bool first = true;
        int held = -1; /* slot whose last products are still under way */
        for (int leaf = 0; leaf < CK_LEAVES; leaf++) {
            int s0 = ck_leaf_first(a.n_ktile, leaf) / 2, s1 = (ck_leaf_first(a.n_ktile, leaf + 1) + 1) / 2;
            if (s0 == s1) continue;
            for (int s = s0; s < s1; s++) {
                uint32_t f[2][16];
                ck_mbar_wait(full + 8 * (uint32_t)slot, phase);
                const uint8_t *w = smem + slot * G::slot + (group * 4 + warp) * 2 * tile;
                uint32_t xs = ck_smem(smem) + (uint32_t)slot * G::slot + G::w_bytes;
                bool two = 2 * s + 1 < a.n_ktile;
                ck_lane_tile<FMT, NS> c;
                c.load(w, lane);
#pragma unroll
                for (int j = 0; j < 4; j++) c.frag(f[0] + 4 * j, j, lane);
                wg_fence();
#pragma unroll
                for (int j = 0; j < 4; j++) wg<NTOK>::mma(acc, f[0] + 4 * j, b_desc(xs + (uint32_t)(j * 2 * NTOK * 16), NTOK), s != s0 || j != 0);
                wg_commit();
                if (held >= 0) {
                    wg_wait<1>();
                    if ((threadIdx.x & 127) == 0) ck_mbar_arrive(empty + 8 * (uint32_t)held);
                }
                if (two) {
                    c.load(w + tile, lane);
#pragma unroll
                    for (int j = 0; j < 4; j++) c.frag(f[1] + 4 * j, j, lane);
                    wg_fence();
#pragma unroll
                    for (int j = 0; j < 4; j++) wg<NTOK>::mma(acc, f[1] + 4 * j, b_desc(xs + (uint32_t)((8 + j * 2) * NTOK * 16), NTOK), 1);
                    wg_commit();
                }
                held = slot;
                if (two) wg_wait<1>(); /* the first half's registers are free again */
                if (++slot == D) {
                    slot = 0;
                    phase ^= 1;
                }
            }
            wg_wait<0>();
            if ((threadIdx.x & 127) == 0) ck_mbar_arrive(empty + 8 * (uint32_t)held);
            held = -1;
#pragma unroll
            for (int i = 0; i < NTOK / 2; i++) total[i] = first ? acc[i] : __fadd_rn(total[i], acc[i]);
            first = false;
        }
        int block = t / a.n_tok_blocks, tok0 = t % a.n_tok_blocks * NTOK;
        if (!GLU) {
            const struct ck_out &o = a.part[part_of(block)];
            int row = (block - o.unit0) * 128 + group * 64 + warp * 16 + (lane >> 2);
            const struct ck_row rows[2] = { ck_row_load(o, a.x.mul, row), ck_row_load(o, a.x.mul, row + 8) };
            float *y = o.y + row + (int64_t)(tok0 + (lane & 3) * 2) * o.ld_y;
            const int n_left = a.m - tok0 - (lane & 3) * 2;
            const bool in[2] = { row < o.n, row + 8 < o.n };
#pragma unroll
            for (int i0 = 0; i0 < NTOK / 2; i0 += 16) {
                float old[16];
                if (o.add)
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        int k = i0 + i, n = (k >> 2) * 8 + (k & 1);
                        old[i] = in[(k >> 1) & 1] && n < n_left ? y[(int64_t)n * o.ld_y + ((k >> 1) & 1) * 8] : 0.0f;
                    }
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    int k = i0 + i, n = (k >> 2) * 8 + (k & 1);
                    float v = ck_out_value(o, rows[(k >> 1) & 1], total[k]);
                    if (in[(k >> 1) & 1] && n < n_left) y[(int64_t)n * o.ld_y + ((k >> 1) & 1) * 8] = o.add ? __fadd_rn(old[i], v) : v;
                }
            }
        } else {
            constexpr int H = NTOK / 4; /* sums of half the tokens */
            float *mine = swap + group * 64 * (NTOK / 2), *theirs = swap + (1 - group) * 64 * (NTOK / 2);
            int tid = (int)threadIdx.x & 127;
#pragma unroll
            for (int i = 0; i < H; i++) mine[i * 128 + tid] = group ? total[i] : total[H + i];
            asm volatile("bar.sync 1, 256;" ::: "memory");
            int row = warp * 16 + (lane >> 2);
            const float inv = __fdiv_rn(1.0f, a.out.mul);
            const struct ck_row rg[2] = { ck_row_load(a.part[0], a.x.mul, block * 64 + row), ck_row_load(a.part[0], a.x.mul, block * 64 + row + 8) };
            const struct ck_row ru[2] = { ck_row_load(a.part[1], a.x.mul, block * 64 + row), ck_row_load(a.part[1], a.x.mul, block * 64 + row + 8) };
#pragma unroll
            for (int i = 0; i < H; i++) {
                float other = theirs[i * 128 + tid], own = group ? total[H + i] : total[i];
                int k = (group ? H : 0) + i, r = row + ((k >> 1) & 1) * 8, n = (k >> 2) * 8 + (lane & 3) * 2 + (k & 1);
                float v = ck_glu_value(a.part[0], a.part[1], a.glu, inv, rg[(i >> 1) & 1], ru[(i >> 1) & 1], block * 64 + r, group ? other : own,
                                       group ? own : other);
                int j = ((r >> 5) & 1) * 2 + ((r >> 2) & 1), t4 = (r >> 3) & 3, h = (r >> 1) & 1;
                out_tile[((j * 2 + h) * NTOK + n) * 8 + 2 * t4 + (r & 1)] = __float2half_rn(v);
            }
            asm volatile("bar.sync 1, 256;" ::: "memory");
            /* 64 k x NTOK tokens of the next linear input, 16 bytes a thread */
            uint8_t *dst = (uint8_t *)a.out.v + ((int64_t)(tok0 >> 7) * (a.out.k_pad >> 6) + block) * 16384;
            for (int i = (int)threadIdx.x; i < 8 * NTOK; i += 256) {
                int n = i % NTOK;
                if (tok0 + n < a.m) *(uint4 *)(dst + (i / NTOK * 128 + (tok0 & 127) + n) * 16) = ((const uint4 *)out_tile)[i];
            }
        }
    }
#endif
}

/* --- launch --- */

template <int FMT, int NS, bool GLU> static int launch(const struct ck_ctx *c, struct gemm_args a, cudaStream_t st)
{
    a.n_tok_blocks = (a.m + 127) / 128;
    int n = a.n_blocks * a.n_tok_blocks < c->n_sm ? a.n_blocks * a.n_tok_blocks : c->n_sm;
    return ck_launch(c, gemm_kernel<FMT, NS, 128, GLU>, dim3((unsigned)n), 384, gemm<FMT, NS, 128>::bytes, st, a);
}
template <bool GLU> static int launch_format(const struct ck_ctx *c, int format, int ns, const struct gemm_args &a, cudaStream_t st)
{
    (void)ns;
    if (format == CK_F16) return launch<CK_F16, 1, GLU>(c, a, st);
#ifndef CK_FEW
    if (format == CK_Q4 && ns == 2) return launch<CK_Q4, 2, GLU>(c, a, st);
    if (format == CK_Q8)
        return ns == 1 ? launch<CK_Q8, 1, GLU>(c, a, st) : ns == 2 ? launch<CK_Q8, 2, GLU>(c, a, st) : launch<CK_Q8, 4, GLU>(c, a, st);
#endif
    return launch<CK_Q4, 1, GLU>(c, a, st);
}

static struct gemm_args args_of(const struct ck_x *x, int m)
{
    struct gemm_args a = {};
    a.x = *x;
    a.m = m;
    a.n_ktile = (int)(x->k_pad / 64);
    return a;
}

extern "C" int ck_gemm(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    struct gemm_args a = args_of(x, m);
    a.n_parts = n_parts;
    for (int i = 0; i < n_parts; i++) {
        ck_fill_out(&a.part[i], parts[i].w, &parts[i]);
        a.part[i].unit0 = a.n_blocks;
        a.n_blocks += (int)((parts[i].w->n + 127) / 128);
    }
    return launch_format<false>(c, parts[0].w->format, parts[0].w->n_scale, a, st);
}

extern "C" int ck_gemm_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                           const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    struct gemm_args a = args_of(x, m);
    struct ck_part g = {}, u = {};
    g.bias = gate_bias;
    u.bias = up_bias;
    ck_fill_out(&a.part[0], gate, &g);
    ck_fill_out(&a.part[1], up, &u);
    a.n_parts = 2;
    a.out = *out;
    a.glu = kind;
    a.n_blocks = (int)(out->k_pad / 64);
    return launch_format<true>(c, gate->format, gate->n_scale, a, st);
}
