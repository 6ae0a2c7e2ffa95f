/* kernels_wgmma.cuh: what the sm_90a products share: the warpgroup's instruction, and 16 rows of packed weights as its A operand. */
#ifndef OPS_CUDA_KERNELS_WGMMA_CUH
#define OPS_CUDA_KERNELS_WGMMA_CUH

#include "ops/cuda/kernels_dev.cuh"

#if __CUDA_ARCH_FEAT_SM90_ALL
static __device__ __forceinline__ void wg_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wg_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void wg_wait(void) { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

/* B: K-major without swizzle, [k half][token][8]. */
static __device__ __forceinline__ uint64_t b_desc(uint32_t addr, int ntok)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(uint32_t)(ntok) << 16 | (uint64_t)(128 >> 4) << 32; /* LBO 16 ntok, SBO 128 */
}

#define WG_F4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WG_F16(d, i) WG_F4(d, i), WG_F4(d, i + 4), WG_F4(d, i + 8), WG_F4(d, i + 12)

/* d += a (64 rows x 16 k, registers) * B (16 k x 128, 64 or 32 tokens); keep 0: d = a * B. */
static __device__ __forceinline__ void wg_mma(float (&d)[64], const uint32_t a[4], uint64_t desc, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                 : WG_F16(d, 0), WG_F16(d, 16), WG_F16(d, 32), WG_F16(d, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(keep));
}
static __device__ __forceinline__ void wg_mma(float (&d)[32], const uint32_t a[4], uint64_t desc, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : WG_F16(d, 0), WG_F16(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(keep));
}
static __device__ __forceinline__ void wg_mma(float (&d)[16], const uint32_t a[4], uint64_t desc, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
                 : WG_F16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(keep));
}
#endif

/* A warp's 16 rows of a k tile. Plain: a row tile. Gated: rows r are 8 rows of a gate tile, rows r + 8 the same 8 of the up tile that lies
 * `up` bytes behind it, so that a thread holds both sums of an output; half: which 8 of the tiles' 16. */
template <int FMT, int NS, bool GLU> struct wg_rows {
    ck_lane_tile<FMT, NS> c;
    __device__ __forceinline__ void load(const uint8_t *tile, int up, int half, int lane)
    {
        (void)up;
        (void)half;
        c.load(tile, lane);
    }
    __device__ __forceinline__ void frag(uint32_t a[4], int j, int half, int lane) const
    {
        (void)half;
        c.frag(a, j, lane);
    }
};
template <int FMT, int NS> struct wg_rows<FMT, NS, true> {
    enum { words = FMT == CK_F16 ? 8 : 4 };
    uint32_t w[2][words], s[2][NS]; /* of gate, of up */
    __device__ __forceinline__ void load(const uint8_t *tile, int up, int half, int lane)
    {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint8_t *t = tile + p * up + lane * 16;
            if (FMT == CK_Q4)
                *reinterpret_cast<uint4 *>(w[p]) = *reinterpret_cast<const uint4 *>(t);
            else
#pragma unroll
                for (int i = 0; i < words; i++) /* Q8: step i; F16: step i / 2, k half i % 2 */
                    w[p][i] = *reinterpret_cast<const uint32_t *>(t + (i >> 1) * 512 + (i & 1) * 8 + half * 4);
            if (FMT != CK_F16)
#pragma unroll
                for (int i = 0; i < NS; i++)
                    s[p][i] = *reinterpret_cast<const uint32_t *>(tile + p * up + ck_tile<FMT>::codes + i * 64 + (lane >> 2) * 8 + half * 4);
        }
    }
    __device__ __forceinline__ void frag(uint32_t a[4], int j, int half, int lane) const
    {
#pragma unroll
        for (int p = 0; p < 2; p++) {
            if (FMT == CK_F16) {
                a[p] = w[p][(2 * j) % words];
                a[p + 2] = w[p][(2 * j + 1) % words];
                continue;
            }
            const uint32_t v = w[p][j % words];
            const uint32_t sb = NS == 1 ? s[p][0] : NS == 2 ? s[p][(j >> 1) % NS] : (lane & 2) ? s[p][((j >> 1) * 2 + 1) % NS] : s[p][((j >> 1) * 2) % NS];
            if (FMT == CK_Q4) {
                const uint32_t mask = half ? 0x00f000f0u : 0x000f000fu;
                a[p] = ck_scale(v & mask, sb);
                a[p + 2] = ck_scale((v >> 8) & mask, sb);
            } else {
                const __half2 one = __float2half2_rn(1024.0f);
                a[p] = ck_scale(ck_h2u(__hsub2(ck_u2h(__byte_perm(v, 0x64646464u, 0x4140)), one)), sb);
                a[p + 2] = ck_scale(ck_h2u(__hsub2(ck_u2h(__byte_perm(v, 0x64646464u, 0x4342)), one)), sb);
            }
        }
    }
};

#endif
