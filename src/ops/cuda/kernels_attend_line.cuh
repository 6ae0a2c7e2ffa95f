/* kernels_attend_line.cuh: how a batch's attention is dealt out to the blocks of kernels_attend_stream.cu: the splits of all rows and KV heads
 * lie in one line, a block takes a stretch of it, even in tiles, and brings keys, then values of split after split into a ring of its own.
 */
#ifndef OPS_CUDA_KERNELS_ATTEND_LINE_CUH
#define OPS_CUDA_KERNELS_ATTEND_LINE_CUH

#include "ops/cuda/kernels_attend.cuh"
#include "ops/cuda/steps.h"

#define LINE_ROWS_MAX 32 /* tokens of a launch */
#define LINE_ONCE_MAX 16384 /* of a launch of more tiles than these none gives way in the second-level cache */

/* Numbers of a launch's tokens: keys, the tiles that they lie in, and where those of a row begin in the line of all. Behind the last row: no tiles. */
struct line_rows {
    int lo[LINE_ROWS_MAX], hi[LINE_ROWS_MAX], index[LINE_ROWS_MAX], table[LINE_ROWS_MAX];
    int tile0[LINE_ROWS_MAX + 1], tile_end[LINE_ROWS_MAX + 1], first[LINE_ROWS_MAX + 1];
};

/* How far the warps that multiply have come, for the one that brings. */
template <int WARPS> struct line_progress {
    unsigned done[WARPS]; /* half tiles that a warp no longer needs */
    unsigned begun;       /* the first queries are there */
#if __CUDA_ARCH__ >= 900
    static __device__ __forceinline__ void tell(unsigned *what, unsigned v) { asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(ck_smem(what)), "r"(v) : "memory"); }
    static __device__ __forceinline__ unsigned look(const unsigned *what)
    {
        unsigned v;
        asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(ck_smem(what)) : "memory");
        return v;
    }
    /* Has every warp done with more than n? By a whole warp. */
    __device__ __forceinline__ bool behind(unsigned n, int lane) const { return __all_sync(~0u, lane >= WARPS || (int)(look(&done[lane % WARPS]) - n) > 0); }
#endif
};

#if __CUDA_ARCH__ >= 900
/* By one warp. */
static __device__ __forceinline__ void rows_load(struct line_rows &r, const struct attend_args &g, const struct cs_rope &p, int tok0, int n_tok, int lane)
{
    static_assert(LINE_ROWS_MAX == 32, "a row a lane");
    const int tok = tok0 + lane;
    const bool in = lane < n_tok;
    const int lo = in ? g.a.lo[tok] : 0, hi = in ? g.a.hi[tok] : 0;
    r.lo[lane] = lo;
    r.hi[lane] = hi;
    r.index[lane] = in ? p.index[tok] : 0;
    r.table[lane] = in ? p.table_of[tok] : 0;
    r.tile0[lane] = lo >> 6;
    r.tile_end[lane] = (hi + 63) >> 6;
    int sum = (((hi + 63) >> 6) - (lo >> 6)) * g.a.n_head_kv;
    for (int step = 1; step < 32; step *= 2) {
        int before = __shfl_up_sync(~0u, sum, step);
        if (lane >= step) sum += before;
    }
    r.first[lane + 1] = sum;
    if (lane == 0) r.first[0] = r.tile0[LINE_ROWS_MAX] = r.tile_end[LINE_ROWS_MAX] = 0;
}

/* A split in the line; start: the place of its first tile. */
struct line_at { int row, kvh, split, start; };

/* A block's stretch: the splits whose middle lies in it. */
struct line_stretch {
    const struct line_rows &r;
    int n_tok, n_kv, x; /* x: a tile where it begins */
    unsigned blocks;
    unsigned long long low, high; /* of a middle, in half tiles times blocks */
    __device__ __forceinline__ line_stretch(const struct line_rows &rows, int tok, int kv, unsigned block)
        : r(rows), n_tok(tok), n_kv(kv), blocks(gridDim.x), low(2ull * (unsigned)rows.first[tok] * block), high(low + 2ull * (unsigned)rows.first[tok])
    {
        const unsigned all = (unsigned)rows.first[tok]; /* all * block / blocks, in 32 bits */
        x = (int)(all / blocks * block + all % blocks * block / blocks);
    }
    __device__ __forceinline__ unsigned long long middle(int start, int tiles) const { return (unsigned long long)(unsigned)(2 * start + tiles) * blocks; }
    /* A split's tiles: what the row's token sees of four. */
    __device__ __forceinline__ int first(const struct line_at &at) const { return max(r.tile0[at.row], 4 * at.split); }
    __device__ __forceinline__ int tiles(const struct line_at &at) const { return min(r.tile_end[at.row], 4 * at.split + 4) - first(at); }
    __device__ __forceinline__ bool has(const struct line_at &at) const { return at.row < n_tok && middle(at.start, tiles(at)) < high; }
    __device__ __forceinline__ void next(struct line_at &at) const
    {
        at.start += tiles(at);
        at.split++;
        if (4 * at.split < r.tile_end[at.row]) return;
        at.kvh++;
        if (at.kvh == n_kv) {
            at.kvh = 0;
            at.row++;
        }
        at.split = r.tile0[at.row] >> 2;
    }
    __device__ __forceinline__ struct line_at begin(void) const
    {
        struct line_at at = { 0, 0, 0, 0 };
        for (int step = LINE_ROWS_MAX / 2; step > 0; step /= 2)
            if (at.row + step < n_tok && r.first[at.row + step] <= x) at.row += step;
        const int tile0 = r.tile0[at.row], n = r.tile_end[at.row] - tile0, in = x - r.first[at.row];
        at.kvh = in / n;
        at.split = (tile0 + in - at.kvh * n) >> 2;
        at.start = r.first[at.row] + at.kvh * n + first(at) - tile0;
        while (at.row < n_tok && middle(at.start, tiles(at)) < low) next(at);
        return at;
    }
};

/* What a lane of the warp that brings knows of the place of the ring that is its: the half tile that it brings there next. */
template <int DP, int SLOTS> struct line_feed {
    static constexpr int TILE = 64 * DP * 2;
    struct line_at at;
    int item, page; /* keys of a split's tiles, then values */
    int64_t off;
    bool more;
    __device__ __forceinline__ void look(const struct attend_args &g, const struct line_stretch &line)
    {
        while ((more = line.has(at)) && item >= 2 * line.tiles(at)) {
            item -= 2 * line.tiles(at);
            line.next(at);
        }
        if (!more) return;
        const int n = line.tiles(at), half = item >= n;
        page = g.a.pages[line.r.table[at.row] + line.first(at) + item - (half ? n : 0)];
        off = (int64_t)(2 * at.kvh + half) * TILE;
    }
    __device__ __forceinline__ const uint8_t *from(const struct attend_args &g) const { return (const uint8_t *)g.a.pool + g.a.head_off + off + (int64_t)page * 4096; }
    /* once: it is first to leave the second-level cache, so that what every layer reads (numbers of rows, of pages, this code) stays there. */
    __device__ __forceinline__ void bring(const struct attend_args &g, uint32_t ring, uint32_t full, bool once, int lane) const
    {
        if (!more) return;
        const uint32_t bar = full + 8u * (uint32_t)lane;
        ck_mbar_expect(bar, TILE);
        if (once) ck_bulk(ring + (uint32_t)(lane * TILE), from(g), TILE, bar, ck_policy_first());
        else ck_bulk_plain(ring + (uint32_t)(lane * TILE), from(g), TILE, bar);
    }
    /* Half tile i of a stretch to the second-level cache. */
    __device__ __forceinline__ void fetch(const struct attend_args &g, const struct line_stretch &line, int i)
    {
        at = line.begin();
        item = i;
        look(g, line);
        if (more) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from(g)), "r"(TILE) : "memory");
    }
    __device__ __forceinline__ void step(const struct attend_args &g, const struct line_stretch &line)
    {
        if (!more) return;
        item += SLOTS;
        look(g, line);
    }
    /* The warp that brings, to the end of the stretch: half tile after half tile, `window` of them under way at a time, before the first queries
     * `slow`: what others read meanwhile (queries, counters, other blocks' merges) waits in memory behind what has been asked for. */
    template <int WARPS>
    __device__ __forceinline__ void run(const struct attend_args &g, const struct line_stretch &line, uint32_t ring, uint32_t full,
                                        const struct line_progress<WARPS> &progress, unsigned slow, unsigned window, int lane)
    {
        constexpr int CHUNK = 4; /* pages are looked up for so many at a time */
        static_assert(SLOTS % CHUNK == 0, "places of a chunk lie side by side");
        const bool once = DP > 64 && line.r.first[line.n_tok] <= LINE_ONCE_MAX; /* slower for heads of 64 and for very much (docs/cuda.md) */
        int late = SLOTS - (int)window, s0 = 0; /* the place of what came `window` before; the chunk's first */
        uint32_t late_phase = 1;
        unsigned i = 0;
        at = line.begin();
        item = lane;
        more = false;
        if (lane < SLOTS) look(g, line);
        for (;;) {
#pragma unroll 1
            for (int k = 0; k < CHUNK; k++, i++) {
                if (!__shfl_sync(~0u, (int)more, s0 + k)) return;
                if (i >= slow && i < SLOTS)
                    while (!progress.look(&progress.begun) && !ck_mbar_test(full + 8u * (i - slow), 0)) {}
                if (i >= window) ck_mbar_wait(full + 8u * (uint32_t)late, late_phase);
                if (++late == SLOTS) late = 0, late_phase ^= 1;
                if (i >= SLOTS)
                    while (!progress.behind(i - SLOTS, lane)) {}
                if (lane == s0 + k) bring(g, ring, full, once, lane);
            }
            if (lane >= s0 && lane < s0 + CHUNK) step(g, line);
            __syncwarp();
            s0 = s0 + CHUNK == SLOTS ? 0 : s0 + CHUNK;
        }
    }
};
#endif

#endif
