/* kernels_attend_small.cu: attention of few tokens, drafts and mixed batches: a block takes one split of a tile of 16 query rows, a
 * warp a tile of keys, then a quarter of the dims; whoever finishes the last split merges all.
 */
#include "ops/cuda/kernels_attend.cuh"

template <int DP, bool BF> static __global__ void __launch_bounds__(128) small_kernel(const __grid_constant__ struct attend_args g)
{
    constexpr int NB = DP / 32; /* blocks of 8 dims of a warp */
    __shared__ uint4 qs[(BF ? 2 : 1) * DP * 2];
    __shared__ struct split_area<BF> area;
    __shared__ int last;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, split = (int)blockIdx.x;
    const int kvh = (int)blockIdx.y / g.row_tiles, row0 = (int)blockIdx.y % g.row_tiles * 16;
    ck_pdl_launch();
    ck_pdl_wait();
    const struct ck_attn_unit u = g.units[blockIdx.z];
    const int n_rows = u.n_tok * g.group;
    if (row0 >= n_rows) return;
    int lo[2], hi[2], lo_min, hi_max;
    ranges(g, u, row0, n_rows, lane, lo, hi, &lo_min, &hi_max);
    const int split0 = lo_min / CK_ATTN_SPLIT, split1 = (hi_max + CK_ATTN_SPLIT - 1) / CK_ATTN_SPLIT;
    if (split < split0 || split >= split1) return;

    const int key0 = split * CK_ATTN_SPLIT;
    const int64_t head = g.a.head_off + (int64_t)kvh * 2 * 64 * DP * 2;
    auto page = [&](int w) {
        return (const uint16_t *)((const uint8_t *)g.a.pool + (int64_t)g.a.pages[u.i_table * g.a.ld_pages + (key0 >> 6) + w] * 4096 + head);
    };
    q_frags<DP, BF>(qs, g, u, kvh, row0, n_rows, lane, warp, 4);
    __syncthreads();
    float o[NB][4] = {}, m[2], l[2] = { 0, 0 };
    split_product<DP, BF>(o, m, l, area, qs, g.a.softcap, key0, lo, hi, lo_min, hi_max, page, [&](int w) { return page(w) + 64 * DP; }, [] {});
    if (split1 - split0 == 1) {
        store_single<NB>(g, u, kvh, row0, n_rows, o, m, l, warp * (DP / 4), warp == 3, lane);
        return;
    }
    merge_last<DP, NB>(g, u, kvh, row0, n_rows, split, split0, split1, o, m, l, warp, lane, 128, &last);
}

/* --- launch --- */

template <int DP, bool BF> static int small_launch(const struct ck_ctx *c, struct attend_args g, const struct ck_attn_unit *units, int n, int max_tok, cudaStream_t st)
{
    int room = ck_attend_room(c, &g, DP, max_tok, n), e = 0;
    if (room <= 0) return (int)cudaErrorInvalidValue;
    for (int i = 0; i < n && e == 0; i += room) {
        g.units = units + i;
        int now = n - i < room ? n - i : room;
        e = ck_launch(c, small_kernel<DP, BF>, dim3((unsigned)g.n_split, (unsigned)(g.a.n_head_kv * g.row_tiles), (unsigned)now), 128, 0, st, g);
    }
    return e;
}

extern "C" int ck_attend_small(const struct ck_ctx *c, const struct attend_args *g, int d_pad, const struct ck_attn_unit *units, int n, int max_tok,
                               cudaStream_t st)
{
    if (g->a.kv_format == CK_KV_BF16)
        return d_pad == 64 ? small_launch<64, true>(c, *g, units, n, max_tok, st) : small_launch<128, true>(c, *g, units, n, max_tok, st);
    return d_pad == 64    ? small_launch<64, false>(c, *g, units, n, max_tok, st)
           : d_pad == 128 ? small_launch<128, false>(c, *g, units, n, max_tok, st)
           : d_pad == 256 ? small_launch<256, false>(c, *g, units, n, max_tok, st)
                          : small_launch<512, false>(c, *g, units, n, max_tok, st);
}
