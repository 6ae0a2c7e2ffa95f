/* kernels_dev.cuh: device code that several CUDA files share: where an element of a linear input or a page lies, the tensor-core
 * instruction, codes to f16, programmatic dependent launch. The header for callers is kernels.h.
 */
#ifndef OPS_CUDA_KERNELS_DEV_CUH
#define OPS_CUDA_KERNELS_DEV_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/kernels.h"

/* Offset in f16 elements of (token, kk) in a linear input. For even kk the next element lies beside it: write pairs. */
static __device__ __forceinline__ size_t ck_x_off(int layout, int64_t k_pad, int token, int kk)
{
    if (layout == CK_X_ROWS) return (size_t)token * (size_t)k_pad + (size_t)kk;
    int g = kk >> 6, j = ((kk >> 5) & 1) * 2 + ((kk >> 2) & 1), t = (kk >> 3) & 3, h = (kk >> 1) & 1, e = kk & 1;
    size_t tile = (size_t)(token >> 7) * (size_t)(k_pad >> 6) + (size_t)g;
    return ((tile * 8 + (size_t)(j * 2 + h)) * 128 + (size_t)(token & 127)) * 8 + (size_t)(2 * t + e);
}

/* Offsets in elements of (key, dim) in the K half and in the V half of a head's area; elem: bytes of an element. K rows are keys,
 * V rows are dims; 16-byte chunk c of row r lies at c ^ 4 for odd r. */
static __device__ __forceinline__ int ck_k_off(int key, int dim, int d_pad, int elem)
{
    int per = 16 / elem;
    return key * d_pad + (((dim / per) ^ ((key & 1) << 2)) * per) + dim % per;
}
static __device__ __forceinline__ int ck_v_off(int key, int dim, int elem)
{
    int per = 16 / elem;
    return dim * 64 + (((key / per) ^ ((dim & 1) << 2)) * per) + key % per;
}

static __device__ __forceinline__ void ck_pdl_wait(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void ck_pdl_launch(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* --- bulk copies and barriers in shared memory (sm_90) --- */

static __device__ __forceinline__ uint32_t ck_smem(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void ck_mbar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
static __device__ __forceinline__ void ck_mbar_init_done(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
static __device__ __forceinline__ void ck_mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
static __device__ __forceinline__ void ck_mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void ck_mbar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra W;\nD:\n}" ::"r"(bar), "r"(parity) : "memory");
}
static __device__ __forceinline__ bool ck_mbar_test(uint32_t bar, uint32_t parity)
{
    uint32_t over;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(over) : "r"(bar), "r"(parity) : "memory");
    return over != 0;
}
static __device__ __forceinline__ uint64_t ck_policy_first(void) /* weights pass through the cache once */
{
    uint64_t p;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
    return p;
}
static __device__ __forceinline__ void ck_bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}
/* Blocks of a cluster meet, blocks that have ended count as arrived. */
/* In two halves; begun: without a word about memory, that the block is there. What was written before arrive is seen behind wait. */
static __device__ __forceinline__ void ck_cluster_begun(void) { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
static __device__ __forceinline__ void ck_cluster_arrive(void) { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
static __device__ __forceinline__ void ck_cluster_wait(void) { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
/* The same place in the shared memory of another block of the cluster. */
static __device__ __forceinline__ float *ck_cluster_at(float *mine, int rank)
{
    uint64_t r;
    asm("mapa.u64 %0, %1, %2;" : "=l"(r) : "l"(mine), "r"(rank));
    return (float *)r;
}
static __device__ __forceinline__ void ck_bulk_plain(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
}
#endif

/* d[4] += a (16 x 16, row) * b (16 x 8, col). A pure function of its operands: not volatile, so that chains interleave. */
static __device__ __forceinline__ void ck_mma_f16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void ck_mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* --- tiles -> A fragments --- */

/* Element order of a 64-k tile. k-step j, thread t of four, half h, pair element e hold k = 32 (j/2) + 8 t + 4 (j%2) + 2 h + e:
 * so a thread's part of x for two steps is one 16-byte run. Rows: r = lane / 4 and r + 8.
 *   Q4   lane's 16 bytes, word j: nibble p of the low half (e = 0) and of the high half (e = 1); p = 2 h + (row half)
 *   Q8   lane's 32 bytes, words [j][row half]: bytes [h][e]
 *   F16  [j][lane][4] words p = 2 h + row half
 * Q8 lies [2][lane][16 bytes] (j / 2 outside), F16 [4][lane][16 bytes]: a lane reads 16 bytes at a time. */

template <int FMT> struct ck_tile;
template <> struct ck_tile<CK_Q4> { enum { codes = 512, words = 4 }; };
template <> struct ck_tile<CK_Q8> { enum { codes = 1024, words = 8 }; };
template <> struct ck_tile<CK_F16> { enum { codes = 2048, words = 16 }; };
template <int FMT, int NS> static __host__ __device__ constexpr int ck_tile_size(void)
{
    return ck_tile<FMT>::codes + (FMT == CK_F16 ? 0 : NS * 64);
}

/* launch(ck_form<FMT, NS>()) for a weight's form: the forms that there are kernels for. */
template <int FMT, int NS> struct ck_form { enum { format = FMT, n_scale = NS }; };
template <typename F> static int ck_launch_form(int format, int ns, F launch)
{
    if (format == CK_F16) return launch(ck_form<CK_F16, 1>());
#ifndef CK_FEW /* a quick build for work on these kernels has two forms only */
    if (format == CK_Q4 && ns == 2) return launch(ck_form<CK_Q4, 2>());
    if (format == CK_Q8) return ns == 1 ? launch(ck_form<CK_Q8, 1>()) : ns == 2 ? launch(ck_form<CK_Q8, 2>()) : launch(ck_form<CK_Q8, 4>());
#endif
    if (format != CK_Q4 || ns > 1) return (int)cudaErrorInvalidValue; /* not in this build */
    return launch(ck_form<CK_Q4, 1>());
}

static __device__ __forceinline__ uint32_t ck_lop_or(uint32_t w, uint32_t mask, uint32_t magic) /* (w & mask) | magic */
{
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(w), "r"(mask), "r"(magic));
    return r;
}
static __device__ __forceinline__ uint32_t ck_h2u(__half2 h) { return *reinterpret_cast<uint32_t *>(&h); }
static __device__ __forceinline__ __half2 ck_u2h(uint32_t u) { return *reinterpret_cast<__half2 *>(&u); }

/* s * q + b for both halves, one rounding; sb: scale low, bias high. */
static __device__ __forceinline__ uint32_t ck_scale(uint32_t q, uint32_t sb)
{
    __half2 p = ck_u2h(sb);
    return ck_h2u(__hfma2(ck_u2h(q), __low2half2(p), __high2half2(p)));
}

/* Q4 tiles hold scales over 2^-24 for rows r, over 2^-20 for rows r + 8: a nibble alone in the low bits of an f16 is the code times
 * 2^-24, in the bits above times 2^-20 (denormals, which cost nothing here), so that masking is all that codes need. */
#define CK_Q4_SCALE(row) ((row) & 8 ? 1048576.0f : 16777216.0f)
/* Four registers of one k-step from a Q4 word; sb0 of row r, sb1 of row r + 8. */
static __device__ __forceinline__ void ck_frag_q4(uint32_t a[4], uint32_t w, uint32_t sb0, uint32_t sb1)
{
    uint32_t v = w >> 8;
    a[0] = ck_scale(w & 0x000f000fu, sb0);
    a[1] = ck_scale(w & 0x00f000f0u, sb1);
    a[2] = ck_scale(v & 0x000f000fu, sb0);
    a[3] = ck_scale(v & 0x00f000f0u, sb1);
}
static __device__ __forceinline__ void ck_frag_q8(uint32_t a[4], uint32_t w0, uint32_t w1, uint32_t sb0, uint32_t sb1)
{
    const __half2 one = __float2half2_rn(1024.0f);
    a[0] = ck_scale(ck_h2u(__hsub2(ck_u2h(__byte_perm(w0, 0x64646464u, 0x4140)), one)), sb0);
    a[1] = ck_scale(ck_h2u(__hsub2(ck_u2h(__byte_perm(w1, 0x64646464u, 0x4140)), one)), sb1);
    a[2] = ck_scale(ck_h2u(__hsub2(ck_u2h(__byte_perm(w0, 0x64646464u, 0x4342)), one)), sb0);
    a[3] = ck_scale(ck_h2u(__hsub2(ck_u2h(__byte_perm(w1, 0x64646464u, 0x4342)), one)), sb1);
}

/* A lane's codes of a tile, and its scales: w[words], sb[ns][2]. tile: shared or global. */
template <int FMT, int NS> struct ck_lane_tile {
    uint32_t w[ck_tile<FMT>::words];
    uint2 sb[NS];
    __device__ __forceinline__ void load(const uint8_t *tile, int lane)
    {
#pragma unroll
        for (int i = 0; i < ck_tile<FMT>::words / 4; i++)
            *reinterpret_cast<uint4 *>(&w[4 * i]) = *reinterpret_cast<const uint4 *>(tile + i * 512 + lane * 16);
        if (FMT != CK_F16)
#pragma unroll
            for (int i = 0; i < NS; i++)
                sb[i] = *reinterpret_cast<const uint2 *>(tile + ck_tile<FMT>::codes + i * 64 + (lane >> 2) * 8);
    }
#if __CUDA_ARCH__ >= 900
    /* The same from an address of shared memory. */
    __device__ __forceinline__ void load_shared(uint32_t tile, int lane)
    {
#pragma unroll
        for (int i = 0; i < ck_tile<FMT>::words / 4; i++)
            asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                         : "=r"(w[4 * i]), "=r"(w[4 * i + 1]), "=r"(w[4 * i + 2]), "=r"(w[4 * i + 3])
                         : "r"(tile + (uint32_t)(i * 512 + lane * 16)) : "memory");
        if (FMT != CK_F16)
#pragma unroll
            for (int i = 0; i < NS; i++)
                asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
                             : "=r"(sb[i].x), "=r"(sb[i].y) : "r"(tile + (uint32_t)(ck_tile<FMT>::codes + i * 64 + (lane >> 2) * 8)) : "memory");
    }
#endif
    /* Fragment of k-step j. Scale i covers k [i * 64 / NS, ...): of a step, t decides when there are 4 (16 k: two threads). */
    __device__ __forceinline__ void frag(uint32_t a[4], int j, int lane) const
    {
        if (FMT == CK_F16) {
#pragma unroll
            for (int p = 0; p < 4; p++) a[p] = w[4 * j + p];
            return;
        }
        uint2 s = NS == 1 ? sb[0] : NS == 2 ? sb[(j >> 1) % NS] : (lane & 2) ? sb[((j >> 1) * 2 + 1) % NS] : sb[((j >> 1) * 2) % NS];
        if (FMT == CK_Q4) ck_frag_q4(a, w[j % ck_tile<FMT>::words], s.x, s.y);
        else ck_frag_q8(a, w[(2 * j) % ck_tile<FMT>::words], w[(2 * j + 1) % ck_tile<FMT>::words], s.x, s.y);
    }
};

/* Leaf i: k tiles [first(i), first(i + 1)), whole pairs of tiles. A function of k alone. */
#define CK_LEAVES 8
static __host__ __device__ __forceinline__ int ck_leaf_first(int n_tiles, int i)
{
    int first = (n_tiles + 1) / 2 * i / CK_LEAVES * 2;
    return first < n_tiles ? first : n_tiles;
}

/* What becomes of a product: the same line of operations for every kernel. */
struct ck_out {
    float *y;
    int64_t ld_y;
    const float *bias, *row_scale;
    const uint8_t *tiles;
    float scale, softcap;
    int n, add;
    int unit0;     /* first of this part's 16-row tiles in the launch */
};
static __device__ __forceinline__ float ck_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
static __device__ __forceinline__ float ck_tanh(float x) /* 1 - 2 / (1 + e^2x), odd */
{
    float a = fabsf(x), e = ck_exp2(__fmul_rn(a, 2.0f * 1.44269504088896341f));
    float t = __fsub_rn(1.0f, __fdiv_rn(2.0f, __fadd_rn(1.0f, e)));
    t = a < 0.02f ? __fmul_rn(a, __fmaf_rn(__fmul_rn(a, a), -0.333333333f, 1.0f)) : t;
    return copysignf(t, x);
}
/* What a row brings to its outputs, loaded once: outputs might alias it as far as the compiler knows. */
struct ck_row { float factor, bias; };
static __device__ __forceinline__ struct ck_row ck_row_load(const struct ck_out &o, float mul, int row)
{
    struct ck_row r = { 0.0f, 0.0f };
    if (row >= o.n) return r;
    r.factor = __fmul_rn(mul, o.row_scale[row]);
    if (o.bias) r.bias = o.bias[row];
    return r;
}
static __device__ __forceinline__ float ck_out_linear(const struct ck_out &o, struct ck_row r, float sum)
{
    float v = __fmul_rn(sum, r.factor);
    if (o.bias) v = __fadd_rn(v, r.bias);
    if (o.scale != 0.0f) v = __fmul_rn(v, o.scale);
    return v;
}
static __device__ __forceinline__ float ck_out_cap(const struct ck_out &o, float v) { return __fmul_rn(o.softcap, ck_tanh(__fdiv_rn(v, o.softcap))); }
static __device__ __forceinline__ float ck_out_value(const struct ck_out &o, struct ck_row r, float sum)
{
    float v = ck_out_linear(o, r, sum);
    return o.softcap != 0.0f ? ck_out_cap(o, v) : v;
}
/* Gate and up products -> activation, as plan.h's glu_kind. */
static __device__ __forceinline__ float ck_glu(int kind, float g, float u)
{
    const float log2e = 1.44269504088896341f;
    if (kind == 0) return __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, ck_exp2(__fmul_rn(g, -log2e)))), u);
    if (kind == 1) { /* 0.5 (1 + tanh z) = 1 / (1 + e^-2z): nothing cancels */
        float z = __fmul_rn(0.7978845608028654f, __fmaf_rn(0.044715f, __fmul_rn(__fmul_rn(g, g), g), g));
        return __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, ck_exp2(__fmul_rn(z, -2.0f * log2e)))), u);
    }
    g = fminf(g, 7.0f);
    u = fminf(fmaxf(u, -7.0f), 7.0f);
    return __fmul_rn(__fadd_rn(u, 1.0f), __fdiv_rn(g, __fadd_rn(1.0f, ck_exp2(__fmul_rn(g, -1.702f * log2e)))));
}

/* Stored value of a gated output; rows [n, k_pad of out) become zeros: they have no weights. inv: 1 / out.mul. */
static __device__ __forceinline__ float ck_glu_value(const struct ck_out &gate, const struct ck_out &up, int kind, float inv, struct ck_row rg, struct ck_row ru,
                                                     int row, float g, float u)
{
    if (row >= gate.n) return 0.0f;
    g = __fmul_rn(g, rg.factor);
    u = __fmul_rn(u, ru.factor);
    if (gate.bias) g = __fadd_rn(g, rg.bias);
    if (up.bias) u = __fadd_rn(u, ru.bias);
    return __fmul_rn(ck_glu(kind, g, u), inv);
}
static __host__ __forceinline__ void ck_fill_out(struct ck_out *o, const struct ck_weight *w, const struct ck_part *p)
{
    struct ck_out v = { p->y, p->ld_y, p->bias, w->row_scale, (const uint8_t *)w->tiles, p->scale, p->softcap, (int)w->n, p->add, 0 };
    *o = v;
}

/* How a kernel is launched; shared_percent: how much of a multiprocessor's memory is to be shared memory, the rest is cache; 0: the driver's choice. */
struct ck_shape {
    dim3 grid;
    unsigned cluster; /* blocks along x */
    int threads;
    size_t smem;
    unsigned shared_percent;
};
/* For so many blocks, with what each takes besides. */
static inline unsigned ck_shared_percent(int blocks, size_t smem)
{
    size_t percent = (smem + 1280) * (size_t)blocks * 100 / (228 * 1024) + 1;
    return percent < 100 ? (unsigned)percent : 100u;
}

/* With or without the programmatic attribute. */
template <typename... P, typename... A>
static int ck_launch_shape(const struct ck_ctx *c, void (*kernel)(P...), struct ck_shape s, cudaStream_t st, A... args)
{
    cudaLaunchConfig_t cfg = {};
    cudaLaunchAttribute attr[3];
    cfg.gridDim = s.grid;
    cfg.blockDim = dim3((unsigned)s.threads);
    cfg.dynamicSmemBytes = s.smem;
    cfg.stream = st;
    cfg.attrs = attr;
    if (c->pdl && c->major >= 9) {
        attr[cfg.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[cfg.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (s.cluster > 1) {
        attr[cfg.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[cfg.numAttrs].val.clusterDim.x = s.cluster;
        attr[cfg.numAttrs].val.clusterDim.y = 1;
        attr[cfg.numAttrs++].val.clusterDim.z = 1;
    }
    if (s.shared_percent > 0) {
        attr[cfg.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
        attr[cfg.numAttrs++].val.sharedMemCarveout = s.shared_percent;
    }
    if (s.smem > 48 * 1024) {
        cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)s.smem);
        if (e != cudaSuccess) return (int)e;
    }
    return (int)cudaLaunchKernelEx(&cfg, kernel, P(args)...);
}
/* In clusters of so many blocks along x. */
template <typename... P, typename... A>
static int ck_launch_cluster(const struct ck_ctx *c, void (*kernel)(P...), dim3 grid, unsigned cluster, int threads, size_t smem, cudaStream_t st, A... args)
{
    return ck_launch_shape(c, kernel, ck_shape{ grid, cluster, threads, smem, 0u }, st, args...);
}
template <typename... P, typename... A>
static int ck_launch(const struct ck_ctx *c, void (*kernel)(P...), dim3 grid, int threads, size_t smem, cudaStream_t st, A... args)
{
    return ck_launch_cluster(c, kernel, grid, 1u, threads, smem, st, args...);
}

#endif
