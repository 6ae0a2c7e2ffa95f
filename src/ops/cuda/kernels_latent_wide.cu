/* kernels_latent_wide.cu: attention over latents of 512 and 64 with wgmma: 64 heads of a token a block, two warpgroups. Keys lie in shared memory as slabs of
 * 64 dims, [64 keys][64 dims] in the 128-byte pattern of the instruction, so that a slab is an operand of scores as it is and of values turned.
 * Of each tile a warpgroup has the scores of 32 keys, then, with the p of all 64, 256 columns of values. The numbers are those of
 * kernels_latent.cu: the same instructions' order, the same sums.
 */
#include "ops/cuda/kernels_latent.cuh"
#include "ops/cuda/kernels_wgmma.cuh"

#define ROWS 64
#define D 576
#define SLABS (D / 64)
#define SLAB_BYTES (64 * 128)
#define K_BYTES (SLABS * SLAB_BYTES)
#define Q_AT 0
#define K_AT K_BYTES               /* two tiles */
#define P_AT (3 * K_BYTES)
#define TOPS_AT (P_AT + SLAB_BYTES) /* [2][ROWS] floats: of a warpgroup's keys the largest score, the sum of p */
#define BYTES (TOPS_AT + 4 * ROWS * 4)

#if __CUDA_ARCH_FEAT_SM90_ALL
/* An operand in slabs: rows of 128 bytes, chunk c of row r at c ^ (r % 8). Its 64 dims along k, or (turned) along n, the next 64 a slab further. */
static __device__ __forceinline__ uint64_t slab_desc(uint32_t at)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(SLAB_BYTES >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* d += A (64 rows x 16) * B (16 x 32 keys), both along k. */
static __device__ __forceinline__ void mma_scores(float (&d)[16], uint64_t a, uint64_t b, int keep)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;\n}"
                 : WG_F16(d, 0) : "l"(a), "l"(b), "r"(keep));
}

/* d += A (64 rows x 16 keys) * B (16 keys x 256 columns), B turned. */
static __device__ __forceinline__ void mma_values(float (&d)[128], uint64_t a, uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
                 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
                 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,"
                 "%124,%125,%126,%127}, %128, %129, 1, 1, 1, 0, 1;"
                 : WG_F16(d, 0), WG_F16(d, 16), WG_F16(d, 32), WG_F16(d, 48), WG_F16(d, 64), WG_F16(d, 80), WG_F16(d, 96), WG_F16(d, 112)
                 : "l"(a), "l"(b));
}

/* Behind a wait: results are read from here on. */
static __device__ __forceinline__ void settled(float (&d)[16]) { asm volatile("" : WG_F16(d, 0)::"memory"); }
static __device__ __forceinline__ void settled(float (&d)[128])
{
    asm volatile("" : WG_F16(d, 0), WG_F16(d, 16), WG_F16(d, 32), WG_F16(d, 48), WG_F16(d, 64), WG_F16(d, 80), WG_F16(d, 96), WG_F16(d, 112)::"memory");
}

/* What was written to shared memory by this thread is seen by the tensor cores of whoever waits with it. */
static __device__ __forceinline__ void seen_by_mma(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* Where a thread finds its part of a tile: four threads a key. */
struct place { const uint8_t *from; int turn; bool there; };
static __device__ __forceinline__ struct place place_of(const struct cl_attend &a, const struct seen &s, int token, int tile)
{
    const int row = (int)threadIdx.x >> 2, j = tile * CL_TILE + row, index = key_index(s, j < s.n ? j : 0);
    return { cl_key(a.p, token, index), (index ^ row) & 7, j < s.n };
}

/* A tile to slabs at k_at. Keys that are not there are zeros. */
static __device__ __forceinline__ void bring_slabs(const struct place &p, uint32_t k_at)
{
    const uint32_t to = k_at + (threadIdx.x >> 2) * 128;
#pragma unroll
    for (int i = 0; i < D / 8 / 4; i++) {
        const int c = 4 * i + ((int)threadIdx.x & 3);
        cl_copy16(to + (uint32_t)(c >> 3) * SLAB_BYTES + (uint32_t)(((c & 7) ^ p.turn) << 4), p.from + c * 16, p.there);
    }
}

static __device__ __forceinline__ void bring_rows(const struct cl_attend &a, int token, int head0, uint8_t *q)
{
    const float *from = a.q + (int64_t)token * a.ld_q + (int64_t)head0 * D;
#pragma unroll 9
    for (int j = 0; j < ROWS * D / 4 / CL_THREADS; j++) {
        const int i = j * CL_THREADS + (int)threadIdx.x, row = i / (D / 4), dim = i % (D / 4) * 4;
        const float4 v = head0 + row < a.n_head ? *(const float4 *)(from + row * D + dim) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        __half2 *to = (__half2 *)(q + (dim >> 6) * SLAB_BYTES + row * 128 + ((((dim >> 3) & 7) ^ (row & 7)) << 4) + (dim & 7) * 2);
        to[0] = __floats2half2_rn(v.x, v.y);
        to[1] = __floats2half2_rn(v.z, v.w);
    }
}

/* A thread's two rows of 64. */
struct wide_rows { float m[2], l[2]; struct merged all[2]; };

#define AT_ONCE 8 /* pairs of `out` on their way at a time */

/* The end of a split; o's columns are 256 w on. */
static __device__ __forceinline__ void leave_rows(const struct cl_attend &a, const float (&o)[128], struct wide_rows &r, int token, int head0, int split, bool alone, bool last)
{
    const int t = (int)threadIdx.x, lane = t & 31, col0 = t / 128 * 256 + 2 * (lane & 3);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int head = head0 + t % 128 / 32 * 16 + (lane >> 2) + 8 * h;
        if (head >= a.n_head) continue;
        if (alone) {
            float2 *at = (float2 *)(part_o(a) + part_at(a, token, head, split) * a.d_value + col0);
#pragma unroll
            for (int b = 0; b < 32; b++) at[4 * b] = make_float2(o[4 * b + 2 * h], o[4 * b + 2 * h + 1]);
            if (t < 128 && (lane & 3) == 0) *(float2 *)(part_ml(a) + part_at(a, token, head, split) * 2) = make_float2(r.m[h], r.l[h]);
            continue;
        }
        merge_next(r.all[h], r.m[h], r.l[h]);
        const float by = !last ? 1.0f : r.all[h].l == 0.0f ? 0.0f : __fdiv_rn(1.0f, r.all[h].l), old_by = r.all[h].old_by, new_by = r.all[h].new_by;
        float2 *at = (float2 *)(a.out + (int64_t)token * a.ld_out + (int64_t)head * a.d_value + col0);
#pragma unroll
        for (int b0 = 0; b0 < 32; b0 += AT_ONCE) {
            float2 old[AT_ONCE];
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++) old[b] = split == 0 ? make_float2(0.0f, 0.0f) : __ldcg(at + 4 * (b0 + b));
#pragma unroll
            for (int b = 0; b < AT_ONCE; b++) {
                const float x = o[4 * (b0 + b) + 2 * h], y = o[4 * (b0 + b) + 2 * h + 1];
                at[4 * (b0 + b)] = make_float2(__fmul_rn(__fmaf_rn(x, new_by, __fmul_rn(old[b].x, old_by)), by), __fmul_rn(__fmaf_rn(y, new_by, __fmul_rn(old[b].y, old_by)), by));
            }
        }
    }
}

/* Scores of the warpgroup's 32 keys to p in shared memory, for both rows of the thread; al: what the rows' earlier sums are worth now. */
static __device__ __forceinline__ void weigh_rows(float (&s)[16], int n_left, struct wide_rows &r, float (&al)[2], uint8_t *smem)
{
    const int t = (int)threadIdx.x, lane = t & 31, w = t / 128, row0 = t % 128 / 32 * 16 + (lane >> 2), key0 = 32 * w + 2 * (lane & 3);
    float *tops = (float *)(smem + TOPS_AT), *sums = tops + 2 * ROWS;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = -INFINITY;
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (key0 + i / 2 * 8 + i % 2 < n_left) top = fmaxf(top, s[i / 2 * 4 + 2 * h + i % 2]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if ((lane & 3) == 0) tops[w * ROWS + row0 + 8 * h] = top;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = row0 + 8 * h;
        const float top = fmaxf(r.m[h], fmaxf(tops[row], tops[ROWS + row]));
        float sum = 0.0f;
        al[h] = ck_exp2(__fsub_rn(r.m[h], top));
        r.m[h] = top;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            float p[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[e] = key0 + 8 * b + e < n_left ? ck_exp2(__fsub_rn(s[4 * b + 2 * h + e], top)) : 0.0f;
                sum = __fadd_rn(sum, p[e]);
            }
            *(__half2 *)(smem + P_AT + row * 128 + (((4 * w + b) ^ (row & 7)) << 4) + (lane & 3) * 4) = __floats2half2_rn(p[0], p[1]);
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        if ((lane & 3) == 0) sums[w * ROWS + row] = sum;
    }
    seen_by_mma();
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) r.l[h] = __fmaf_rn(r.l[h], al[h], __fadd_rn(sums[row0 + 8 * h], sums[ROWS + row0 + 8 * h]));
}
#endif

/* alone: block z is a split; else the block takes all of them. */
static __global__ void __launch_bounds__(CL_THREADS, 1) wide_kernel(const __grid_constant__ struct cl_attend a, int alone)
{
#if __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    ck_pdl_launch();
    ck_pdl_wait();
    uint8_t *smem = raw + ((1024u - (ck_smem(raw) & 1023u)) & 1023u);
    const int token = (int)blockIdx.x, head0 = (int)blockIdx.y * ROWS, w = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    const struct seen s = seen_by(a, token);
    const int tile0 = alone ? (int)blockIdx.z * CL_TILES : 0, all = (s.n + CL_TILE - 1) / CL_TILE, end = alone ? min(all, tile0 + CL_TILES) : all;
    if (tile0 >= all) return;
    const uint32_t base = ck_smem(smem);
    const uint64_t q = slab_desc(base + Q_AT), p = slab_desc(base + P_AT);
    struct wide_rows r;
#pragma unroll
    for (int h = 0; h < 2; h++) r.all[h] = { -INFINITY, 0.0f, 0.0f, 0.0f };
    bring_slabs(place_of(a, s, token, tile0), base + K_AT);
    struct place next = place_of(a, s, token, tile0 + 1 < end ? tile0 + 1 : tile0);
    bring_rows(a, token, head0, smem + Q_AT);
    for (int tile = tile0; tile < end;) {
        const int split = tile / CL_TILES, split_end = min(end, (split + 1) * CL_TILES);
        float o[128];
#pragma unroll
        for (int i = 0; i < 128; i++) o[i] = 0.0f;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r.m[h] = -INFINITY;
            r.l[h] = 0.0f;
        }
        for (; tile < split_end; tile++) {
            const uint32_t odd = (uint32_t)((tile - tile0) & 1), k_at = base + K_AT + odd * K_BYTES;
            const uint64_t keys = slab_desc(k_at + (uint32_t)w * 32 * 128), values = slab_desc(k_at + (uint32_t)w * 4 * SLAB_BYTES);
            float x[16], al[2];
            cl_copies_end();
            seen_by_mma();
            __syncthreads(); /* the tile is there, and nobody reads the other one any more */
            wg_fence();
#pragma unroll
            for (int step = 0; step < D / 16; step++) {
                const uint64_t at = (uint64_t)((step / 4 * SLAB_BYTES + step % 4 * 32) >> 4);
                mma_scores(x, q + at, keys + at, step > 0);
            }
            wg_commit();
            if (tile + 1 < end) bring_slabs(next, base + K_AT + (odd ^ 1) * K_BYTES);
            next = place_of(a, s, token, tile + 2 < end ? tile + 2 : tile);
            wg_wait<0>();
            settled(x);
            weigh_rows(x, s.n - tile * CL_TILE, r, al, smem);
#pragma unroll
            for (int i = 0; i < 128; i++) o[i] = __fmul_rn(o[i], al[i / 2 % 2]);
            wg_fence();
#pragma unroll
            for (int step = 0; step < CL_TILE / 16; step++) mma_values(o, p + (uint64_t)(step * 32 >> 4), values + (uint64_t)(step * 2048 >> 4));
            wg_commit();
            wg_wait<0>();
            settled(o);
        }
        leave_rows(a, o, r, token, head0, split, alone != 0, split_end == end);
    }
#endif
}

extern "C" int cl_attend_wide(const struct ck_ctx *c, const struct cl_attend *a, int alone, cudaStream_t st)
{
    return ck_launch(c, wide_kernel, dim3((unsigned)a->m, (unsigned)((a->n_head + ROWS - 1) / ROWS), alone ? (unsigned)a->n_split : 1u), CL_THREADS, (size_t)BYTES + 1024, st, *a,
                     alone);
}
