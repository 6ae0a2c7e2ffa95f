/* kernels_linear.cu: products with mma.sync: the path for few tokens everywhere, and for any number where wgmma is missing.
 *
 * A block owns RT tiles of 16 rows at a time and takes 8 leaves of k at once, one a warp; leaf sums meet in shared memory and are added
 * in order. Tokens are columns, 8 an instruction, NT instructions a block.
 */
#include "ops/cuda/kernels_dev.cuh"

#define WARPS CK_LEAVES

struct linear_args {
    struct ck_out part[CK_MAX_PARTS];
    int n_parts, n_units, n_ktile, m;
    struct ck_x x;
    struct ck_x out;   /* gated: where act(gate) * up goes */
    int glu;           /* -1: plain; part[0] is gate, part[1] up */
};

static __device__ __forceinline__ int part_of(const struct linear_args &a, int unit)
{
    int p = 0;
    while (p + 1 < a.n_parts && unit >= a.part[p + 1].unit0) p++;
    return p;
}

template <int FMT, int NS, int NT, int RT>
static __global__ void __launch_bounds__(WARPS * 32) linear_kernel(const __grid_constant__ struct linear_args a)
{
    constexpr int tile_bytes = ck_tile_size<FMT, NS>();
    __shared__ float4 red[WARPS][RT][NT][32];
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, t = lane & 3;
    const int token0 = (int)blockIdx.y * NT * 8;
    const int first = ck_leaf_first(a.n_ktile, warp), last = ck_leaf_first(a.n_ktile, warp + 1);
    ck_pdl_launch();
    ck_pdl_wait();
    for (int unit = (int)blockIdx.x; unit < a.n_units; unit += (int)gridDim.x) {
        const uint8_t *tiles[RT];
        int p = RT == 2 ? 0 : part_of(a, unit), row_tile = unit - a.part[p].unit0;
#pragma unroll
        for (int r = 0; r < RT; r++) { /* units beyond n pad a gated output: any rows will do */
            int tr = row_tile * 16 < a.part[p + r].n ? row_tile : 0;
            tiles[r] = a.part[p + r].tiles + (int64_t)tr * a.n_ktile * tile_bytes;
        }
        float acc[RT][NT][4] = {};
        for (int g = first; g < last; g++) {
            ck_lane_tile<FMT, NS> w[RT];
            uint4 x[NT][2];
#pragma unroll
            for (int r = 0; r < RT; r++) w[r].load(tiles[r] + (int64_t)g * tile_bytes, lane);
#pragma unroll
            for (int q = 0; q < NT; q++) {
                int token = token0 + q * 8 + (lane >> 2);
                const uint4 *src = (const uint4 *)((const __half *)a.x.v + (int64_t)token * a.x.k_pad + g * 64 + t * 8);
                x[q][0] = token < a.m ? src[0] : make_uint4(0, 0, 0, 0);
                x[q][1] = token < a.m ? src[4] : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int r = 0; r < RT; r++) {
                    uint32_t f[4];
                    w[r].frag(f, j, lane);
#pragma unroll
                    for (int q = 0; q < NT; q++) {
                        uint4 v = x[q][j >> 1];
                        ck_mma_f16(acc[r][q], f, j & 1 ? v.z : v.x, j & 1 ? v.w : v.y);
                    }
                }
        }
#pragma unroll
        for (int r = 0; r < RT; r++)
#pragma unroll
            for (int q = 0; q < NT; q++) red[warp][r][q][lane] = make_float4(acc[r][q][0], acc[r][q][1], acc[r][q][2], acc[r][q][3]);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < NT * 32; i += WARPS * 32) {
            int q = i >> 5, l = i & 31;
            float4 s[RT];
#pragma unroll
            for (int r = 0; r < RT; r++) {
                s[r] = red[0][r][q][l];
#pragma unroll
                for (int k = 1; k < WARPS; k++) {
                    float4 v = red[k][r][q][l];
                    s[r].x = __fadd_rn(s[r].x, v.x);
                    s[r].y = __fadd_rn(s[r].y, v.y);
                    s[r].z = __fadd_rn(s[r].z, v.z);
                    s[r].w = __fadd_rn(s[r].w, v.w);
                }
            }
            int row = row_tile * 16 + (l >> 2), token = token0 + q * 8 + (l & 3) * 2;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int rr = row + (e >> 1) * 8, tk = token + (e & 1);
                float v = e == 0 ? s[0].x : e == 1 ? s[0].y : e == 2 ? s[0].z : s[0].w;
                if (tk >= a.m) continue;
                if (RT == 1) {
                    if (rr < a.part[p].n) ck_out_store(a.part[p], a.x.mul, rr, tk, v);
                } else {
                    float u = e == 0 ? s[RT - 1].x : e == 1 ? s[RT - 1].y : e == 2 ? s[RT - 1].z : s[RT - 1].w;
                    ck_glu_store(a.part[0], a.part[RT - 1], a.out, a.glu, a.x.mul, rr, tk, v, u);
                }
            }
        }
        __syncthreads();
    }
}

/* --- launch --- */

template <int FMT, int NS, int NT, int RT> static int launch(const struct ck_ctx *c, const struct linear_args &a, cudaStream_t st)
{
    int blocks = a.n_units < c->n_sm * 4 ? a.n_units : c->n_sm * 4;
    return ck_launch(c, linear_kernel<FMT, NS, NT, RT>, dim3((unsigned)blocks, (unsigned)((a.m + NT * 8 - 1) / (NT * 8))), WARPS * 32, 0, st, a);
}
template <int FMT, int NS, int RT> static int launch_nt(const struct ck_ctx *c, const struct linear_args &a, cudaStream_t st)
{
    return a.m <= 8 ? launch<FMT, NS, 1, RT>(c, a, st) : a.m <= 16 ? launch<FMT, NS, 2, RT>(c, a, st) : launch<FMT, NS, 4, RT>(c, a, st);
}
template <int RT> static int launch_format(const struct ck_ctx *c, int format, int ns, const struct linear_args &a, cudaStream_t st)
{
    if (format == CK_F16) return launch_nt<CK_F16, 1, RT>(c, a, st);
    if (format == CK_Q4) return ns == 1 ? launch_nt<CK_Q4, 1, RT>(c, a, st) : launch_nt<CK_Q4, 2, RT>(c, a, st);
    return ns == 1 ? launch_nt<CK_Q8, 1, RT>(c, a, st) : ns == 2 ? launch_nt<CK_Q8, 2, RT>(c, a, st) : launch_nt<CK_Q8, 4, RT>(c, a, st);
}

static void fill_part(struct ck_out *o, const struct ck_weight *w, float *y, int64_t ld_y, const float *bias, float scale, float softcap, int add)
{
    struct ck_out v = { y, ld_y, bias, w->row_scale, (const uint8_t *)w->tiles, scale, softcap, (int)w->n, add, 0 };
    *o = v;
}

static int run_parts(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    const struct ck_weight *w0 = parts[0].w;
    struct linear_args a = {};
    a.x = *x;
    a.m = m;
    a.n_parts = n_parts;
    a.n_ktile = (int)(x->k_pad / 64);
    a.glu = -1;
    for (int i = 0; i < n_parts; i++) {
        fill_part(&a.part[i], parts[i].w, parts[i].y, parts[i].ld_y, parts[i].bias, parts[i].scale, parts[i].softcap, parts[i].add);
        a.part[i].unit0 = a.n_units;
        a.n_units += (int)((parts[i].w->n + 15) / 16);
    }
    return launch_format<1>(c, w0->format, w0->n_scale, a, st);
}

extern "C" int ck_linear(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_part *parts, int n_parts, cudaStream_t st)
{
    if (m <= 0 || n_parts <= 0 || n_parts > CK_MAX_PARTS || x->layout != ck_x_layout_for(c, m)) return (int)cudaErrorInvalidValue;
    for (int i = 0, n; i < n_parts; i += n) { /* neighbours of one form share a launch */
        for (n = 1; i + n < n_parts; n++)
            if (parts[i + n].w->format != parts[i].w->format || parts[i + n].w->n_scale != parts[i].w->n_scale) break;
        for (int j = i; j < i + n; j++)
            if (parts[j].w->k != x->k) return (int)cudaErrorInvalidValue;
        int e = run_parts(c, x, m, parts + i, n, st);
        if (e) return e;
    }
    return 0;
}

extern "C" int ck_linear_glu(const struct ck_ctx *c, const struct ck_x *x, int m, const struct ck_weight *gate, const struct ck_weight *up,
                             const float *gate_bias, const float *up_bias, int kind, const struct ck_x *out, cudaStream_t st)
{
    if (m <= 0 || gate->k != x->k || up->k != x->k || gate->n != up->n || out->k != gate->n || gate->format != up->format ||
        gate->n_scale != up->n_scale || kind < 0 || kind > 2 || x->layout != ck_x_layout_for(c, m) || out->layout != x->layout)
        return (int)cudaErrorInvalidValue;
    struct linear_args a = {};
    a.x = *x;
    a.out = *out;
    a.m = m;
    a.n_parts = 2;
    a.n_ktile = (int)(x->k_pad / 64);
    a.n_units = (int)(out->k_pad / 16); /* rows beyond n make zeros up to k_pad */
    a.glu = kind;
    fill_part(&a.part[0], gate, NULL, 0, gate_bias, 0, 0, 0);
    fill_part(&a.part[1], up, NULL, 0, up_bias, 0, 0, 0);
    return launch_format<2>(c, gate->format, gate->n_scale, a, st);
}
