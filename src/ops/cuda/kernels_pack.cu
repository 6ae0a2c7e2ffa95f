/* kernels_pack.cu: weights into tiles (kernels_dev.cuh has the order), rows out of tiles, float rows into linear inputs, sizes.
 * None of it is in the decode path but the gather, which reads a row of a tied table.
 */
#include <string.h>

#include "ops/cuda/kernels_dev.cuh"

extern "C" const char *ck_error_text(int error) { return cudaGetErrorString((cudaError_t)error); }

extern "C" int ck_ctx_init(struct ck_ctx *c, int device)
{
    memset(c, 0, sizeof *c);
    c->device = device;
    cudaError_t e = cudaDeviceGetAttribute(&c->n_sm, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&c->major, cudaDevAttrComputeCapabilityMajor, device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&c->minor, cudaDevAttrComputeCapabilityMinor, device);
    c->wgmma = c->major == 9 && c->minor == 0;
    return (int)e;
}

extern "C" int ck_leaves(int64_t k) { (void)k; return CK_LEAVES; }

/* --- sizes --- */

static int64_t up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

extern "C" int64_t ck_tile_bytes(const struct ck_weight *w)
{
    return w->format == CK_F16 ? 2048 : (w->format == CK_Q4 ? 512 : 1024) + 64 * w->n_scale;
}

extern "C" size_t ck_weight_bytes(struct ck_weight *w, int bits, int group, int force_q8, int64_t n, int64_t k)
{
    w->n = n;
    w->k = k;
    w->tiles = NULL;
    w->row_scale = NULL;
    w->n_scale = 0;
    if (n <= 0 || k <= 0 || n > INT32_MAX / 2 || k > INT32_MAX / 2) return 0;
    if (bits == 0) {
        w->format = CK_F16;
    } else if (bits >= 2 && bits <= 8 && bits != 7 && k % group == 0) {
        w->format = bits <= 4 && !force_q8 ? CK_Q4 : CK_Q8;
        w->n_scale = group == 64 || group == 128 ? 1 : group == 32 ? 2 : group == 16 && w->format == CK_Q8 ? 4 : 0;
        if (w->n_scale == 0) return 0;
    } else {
        return 0;
    }
    return (size_t)(up(n, 16) / 16 * (up(k, 64) / 64) * ck_tile_bytes(w) + up(n, 16) * 4);
}

extern "C" void ck_weight_place(struct ck_weight *w, void *block)
{
    w->tiles = block;
    w->row_scale = (float *)((uint8_t *)block + up(w->n, 16) / 16 * (up(w->k, 64) / 64) * ck_tile_bytes(w));
}

extern "C" int ck_x_layout_for(const struct ck_ctx *c, int m) { return c->wgmma && m > CK_X_ROWS_MAX ? CK_X_TILES : CK_X_ROWS; }
extern "C" size_t ck_x_bytes(int m_max, int64_t k) { return (size_t)(up(m_max, 128) * up(k, 64) * 2); }

/* --- pack --- */

struct pack_args {
    uint8_t *tiles;
    float *row_scale;
    const void *src, *scales, *biases;
    int64_t n_rows, k, row_step, row_off;
    int bits, group, dt, format, n_scale, n_ktile;
    int64_t tile_bytes, row0;
};

static __device__ __forceinline__ float elem(const void *p, int dt, int64_t i)
{
    if (dt == CK_DT_F32) return ((const float *)p)[i];
    if (dt == CK_DT_F16) return __half2float(((const __half *)p)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
}

/* Code kk of a source row; codes of 3, 5 and 6 bits may cross words. */
static __device__ __forceinline__ uint32_t code(const uint32_t *row, int bits, int64_t kk)
{
    int64_t bit = kk * bits;
    uint32_t v = row[bit >> 5] >> (bit & 31);
    if ((bit & 31) + bits > 32) v |= row[(bit >> 5) + 1] << (32 - (bit & 31));
    return v & ((1u << bits) - 1u);
}

/* 2^e with the row's largest bound in [2^top, 2^(top + 1)) after division; 1 where that makes no sense. Q4: -6, so that scales over 2^-24
 * (kernels_dev.cuh) stay below 2^16: values are then to 2^-19 of the row's largest, or to 11 bits where that is less. Else 13. e is at least `least`. */
static __device__ float row_power(float most, int top, int least)
{
    if (!(most > 0.0f) || most > 3.0e38f) return 1.0f;
    int e = ilogbf(most) - top;
    e = e < least ? least : e > 120 ? 120 : e;
    return ldexpf(1.0f, e);
}

static __device__ __forceinline__ __half over(float v, float inv) { return __float2half_rn(__fmul_rn(v, inv)); }

/* Where (row in tile, kk in tile) lies: lane, step j, p = 2 h + row half, e. */
struct place { int lane, j, p, e; };
static __device__ __forceinline__ struct place place_of(int row, int kk)
{
    struct place q;
    q.j = ((kk >> 5) & 1) * 2 + ((kk >> 2) & 1);
    q.lane = (row & 7) * 4 + ((kk >> 3) & 3);
    q.p = ((kk >> 1) & 1) * 2 + (row >> 3);
    q.e = kk & 1;
    return q;
}
static __device__ __forceinline__ int byte_q8(struct place q) /* of a tile */
{
    return (q.j >> 1) * 512 + q.lane * 16 + (q.j & 1) * 8 + (q.p & 1) * 4 + (q.p >> 1) * 2 + q.e;
}
static __device__ __forceinline__ int half_f16(struct place q) { return q.j * 256 + q.lane * 8 + q.p * 2 + q.e; }

/* A block packs a tile row: 16 rows. 256 threads. */
static __global__ void pack_kernel(struct pack_args a)
{
    __shared__ float power[16];
    __shared__ unsigned most[16];
    int64_t tile_row = blockIdx.x;
    int t = (int)threadIdx.x;
    if (t < 16) most[t] = 0;
    __syncthreads();
    for (int r = 0; r < 16; r++) {
        int64_t row = tile_row * 16 + r, s = row * a.row_step + a.row_off;
        float m = 0;
        if (row < a.n_rows && a.bits == 0)
            for (int64_t i = t; i < a.k; i += 256) m = fmaxf(m, fabsf(elem(a.src, a.dt, s * a.k + i)));
        if (row < a.n_rows && a.bits != 0)
            for (int64_t i = t; i < a.k / a.group; i += 256) {
                float sc = elem(a.scales, a.dt, s * (a.k / a.group) + i), b = elem(a.biases, a.dt, s * (a.k / a.group) + i);
                float top = fabsf(sc) * (float)((a.format == CK_Q4 ? 16 : 1 << a.bits) - 1);
                m = fmaxf(m, fmaxf(fabsf(b), top));
            }
        atomicMax(&most[r], __float_as_uint(m));
    }
    __syncthreads();
    if (t < 16) {
        /* Q4: CK_Q4_SCALE over the power is at most 2^127 */
        power[t] = a.format == CK_Q4 ? row_power(__uint_as_float(most[t]), -6, t & 8 ? -107 : -103) : row_power(__uint_as_float(most[t]), 13, -120);
        a.row_scale[a.row0 + tile_row * 16 + t] = power[t];
    }
    __syncthreads();
    uint8_t *out_row = a.tiles + (a.row0 / 16 + tile_row) * a.n_ktile * a.tile_bytes;
    for (int64_t u = t; u < (int64_t)a.n_ktile * 16 * 8; u += 256) { /* 8 k of a row */
        int r = (int)(u % 16), oct = (int)(u / 16 % 8);
        int64_t g = u / 128, row = tile_row * 16 + r, s = row * a.row_step + a.row_off;
        uint8_t *tile = out_row + g * a.tile_bytes;
        float inv = 1.0f / power[r];
        uint32_t nib[2] = { 0, 0 }; /* Q4: steps j and j + 1 of one lane; the row's two p of each */
        for (int i = 0; i < 8; i++) {
            int kk = oct * 8 + i;
            int64_t k = g * 64 + kk;
            bool in = row < a.n_rows && k < a.k;
            struct place q = place_of(r, kk);
            if (a.format == CK_F16)
                ((__half *)tile)[half_f16(q)] = in ? over(elem(a.src, a.dt, s * a.k + k), inv) : __half(0.0f);
            else {
                uint32_t c = in ? code((const uint32_t *)a.src + s * (a.k * a.bits / 32), a.bits, k) : 0;
                if (a.format == CK_Q8) tile[byte_q8(q)] = (uint8_t)c;
                else nib[q.j & 1] |= c << (4 * q.p + 16 * q.e);
            }
        }
        if (a.format == CK_Q4) { /* rows r and r + 8 share a word; the tile was zeroed */
            struct place q = place_of(r, oct * 8);
            atomicOr((unsigned *)(tile + q.lane * 16 + q.j * 4), nib[0]);
            atomicOr((unsigned *)(tile + q.lane * 16 + q.j * 4 + 4), nib[1]);
        }
    }
    if (a.format == CK_F16) return;
    int codes = a.format == CK_Q4 ? 512 : 1024;
    for (int64_t u = t; u < (int64_t)a.n_ktile * 16 * a.n_scale; u += 256) {
        int r = (int)(u % 16), i = (int)(u / 16 % a.n_scale);
        int64_t g = u / 16 / a.n_scale, k = g * 64 + i * (64 / a.n_scale), row = tile_row * 16 + r, s = row * a.row_step + a.row_off;
        bool in = row < a.n_rows && k < a.k;
        float inv = 1.0f / power[r];
        __half *sb = (__half *)(out_row + g * a.tile_bytes + codes + i * 64 + (r & 7) * 8 + (r >> 3) * 4);
        int64_t at = in ? s * (a.k / a.group) + k / a.group : 0;
        float scale_inv = a.format == CK_Q4 ? inv * CK_Q4_SCALE(r) : inv;
        sb[0] = in ? over(elem(a.scales, a.dt, at), scale_inv) : __half(0.0f);
        sb[1] = in ? over(elem(a.biases, a.dt, at), inv) : __half(0.0f);
    }
}

extern "C" int ck_pack(const struct ck_ctx *c, const struct ck_weight *w, int bits, int group, int dt, const void *src, const void *scales,
                       const void *biases, int64_t row0, int64_t n_rows, int64_t row_step, int64_t row_off, cudaStream_t st)
{
    (void)c;
    bool last = row0 + n_rows == w->n;
    if (row0 % 16 != 0 || n_rows <= 0 || row0 + n_rows > w->n || (!last && n_rows % 16 != 0) || (bits == 0) != (w->format == CK_F16))
        return (int)cudaErrorInvalidValue;
    struct pack_args a = { (uint8_t *)w->tiles, w->row_scale, src, scales, biases, n_rows, w->k, row_step, row_off, bits, group, dt,
                           w->format, w->n_scale, (int)(up(w->k, 64) / 64), ck_tile_bytes(w), row0 };
    int64_t tile_rows = (n_rows + 15) / 16;
    cudaError_t e = cudaMemsetAsync(a.tiles + row0 / 16 * a.n_ktile * a.tile_bytes, 0, (size_t)(tile_rows * a.n_ktile * a.tile_bytes), st);
    if (e != cudaSuccess) return (int)e;
    pack_kernel<<<(unsigned)tile_rows, 256, 0, st>>>(a);
    return (int)cudaGetLastError();
}

/* --- gather --- */

static __global__ void gather_kernel(struct ck_weight w, int n_ktile, int64_t tile_bytes, const int32_t *ids, float scale, float *out, int64_t ld_out)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int64_t id = ids[blockIdx.x];
    bool in = id >= 0 && id < w.n;
    float *y = out + (int64_t)blockIdx.x * ld_out;
    float power = in ? w.row_scale[id] : 0.0f;
    for (int k = (int)(blockIdx.y * blockDim.x + threadIdx.x); k < w.k; k += (int)(gridDim.y * blockDim.x)) {
        float v = 0;
        if (in) {
            const uint8_t *tile = (const uint8_t *)w.tiles + ((id >> 4) * n_ktile + (k >> 6)) * tile_bytes;
            struct place q = place_of((int)(id & 15), k & 63);
            if (w.format == CK_F16) v = __half2float(((const __half *)tile)[half_f16(q)]);
            else {
                int codes = w.format == CK_Q4 ? 512 : 1024, i = (k & 63) * w.n_scale / 64;
                uint32_t c = w.format == CK_Q8 ? tile[byte_q8(q)]
                                               : *(const uint32_t *)(tile + q.lane * 16 + q.j * 4) >> (4 * q.p + 16 * q.e) & 15u;
                const __half *sb = (const __half *)(tile + codes + i * 64 + (id & 7) * 8 + ((id >> 3) & 1) * 4);
                float s = w.format == CK_Q4 ? __half2float(sb[0]) / CK_Q4_SCALE(id) : __half2float(sb[0]);
                v = __fmaf_rn((float)c, s, __half2float(sb[1]));
            }
            v = __fmul_rn(__fmul_rn(v, power), scale);
        }
        y[k] = v;
    }
}

extern "C" int ck_gather(const struct ck_ctx *c, const struct ck_weight *w, const int32_t *ids, int n_ids, float scale, float *out,
                         int64_t ld_out, cudaStream_t st)
{
    if (n_ids <= 0) return 0;
    return ck_launch(c, gather_kernel, dim3((unsigned)n_ids, (unsigned)((w->k + 1023) / 1024)), 256, 0, st, *w, (int)(up(w->k, 64) / 64),
                     ck_tile_bytes(w), ids, scale, out, ld_out);
}

/* --- linear inputs --- */

static __global__ void x_write_kernel(const float *in, int64_t ld_in, struct ck_x x, float inv)
{
    ck_pdl_launch();
    ck_pdl_wait();
    int token = (int)blockIdx.x;
    for (int k = 2 * (int)(blockIdx.y * blockDim.x + threadIdx.x); k < x.k_pad; k += 2 * (int)(gridDim.y * blockDim.x)) {
        float a = k < x.k ? in[token * ld_in + k] : 0.0f, b = k + 1 < x.k ? in[token * ld_in + k + 1] : 0.0f;
        *(__half2 *)((__half *)x.v + ck_x_off(x.layout, x.k_pad, token, k)) = __floats2half2_rn(__fmul_rn(a, inv), __fmul_rn(b, inv));
    }
}

extern "C" int ck_x_write(const struct ck_ctx *c, const float *in, int64_t ld_in, int m, const struct ck_x *x, cudaStream_t st)
{
    return ck_launch(c, x_write_kernel, dim3((unsigned)m, (unsigned)((x->k_pad + 2047) / 2048)), 256, 0, st, in, ld_in, *x, 1.0f / x->mul);
}
