/* cuda_kernels_data.cu: random data and packed weights for bench/cuda_kernels, made on the card. */
#include "cuda_kernels.cuh"

static __global__ void fill_u32(uint32_t *p, size_t n, uint64_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) p[i] = hash(i + seed * 0x9e3779b97f4a7c15ull);
}
static __global__ void fill_f32(float *p, size_t n, uint64_t seed, float scale, float offset, int wild)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = noise(i, seed) * scale * (wild && i % 61 == 7 ? 50.0f : 1.0f) + offset;
}
static __global__ void to_type(const float *in, void *out, size_t n, int dt)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        if (dt == CK_DT_F32) ((float *)out)[i] = in[i];
        else if (dt == CK_DT_F16) ((__half *)out)[i] = __float2half_rn(in[i]);
        else ((__nv_bfloat16 *)out)[i] = __float2bfloat16_rn(in[i]);
    }
}
void fill_words(uint32_t *p, size_t n, uint64_t seed) { fill_u32<<<4096, 256, 0, st>>>(p, n, seed); }
float *floats(size_t n, uint64_t seed, float scale, float offset, int wild)
{
    float *p = dev<float>(n);
    fill_f32<<<1024, 256, 0, st>>>(p, n, seed, scale, offset, wild);
    return p;
}
void *typed(const float *in, size_t n, int dt)
{
    void *p = dev<float>(n);
    to_type<<<1024, 256, 0, st>>>(in, p, n, dt);
    return p;
}

static __global__ void tiny_rows(float *scales, float *biases, int64_t n, int64_t groups)
{
    for (int64_t i = threadIdx.x; i < 2 * groups; i += blockDim.x) {
        int64_t at = (i < groups ? 17 : n - 1) * groups + i % groups;
        bool none = i % groups % 3 == 2;
        scales[at] = none ? 0.0f : 1e-35f;
        biases[at] = none ? 0.0f : -8e-35f;
    }
}
struct weight_set make_weight(int bits, int group, int dt, int64_t n, int64_t k, uint64_t seed, bool force_q8, bool tiny)
{
    struct weight_set s = {};
    size_t bytes = ck_weight_bytes(&s.w, bits, group, force_q8, n, k);
    s.bits = bits;
    s.group = group;
    s.dt = dt;
    s.block = dev<uint8_t>(bytes);
    CU(cudaMemsetAsync(s.block, 0xff, bytes, st));
    ck_weight_place(&s.w, s.block);
    if (bits == 0) {
        s.plain = floats((size_t)(n * k), seed, 0.05f, 0, 1);
        s.src = typed(s.plain, (size_t)(n * k), dt);
    } else {
        size_t words = (size_t)(n * k * bits / 32), groups = (size_t)(n * k / group);
        s.src = s.codes = dev<uint32_t>(words);
        fill_u32<<<1024, 256, 0, st>>>(s.codes, words, seed);
        float *a = floats(groups, seed + 1, 0.01f, 0.0f, 1), *b = floats(groups, seed + 2, 0.05f, 0.0f, 1);
        if (tiny) tiny_rows<<<1, 256, 0, st>>>(a, b, n, k / group);
        s.scales = typed(a, groups, dt);
        s.biases = typed(b, groups, dt);
        CU(cudaStreamSynchronize(st));
        cudaFree(a);
        cudaFree(b);
    }
    CU(ck_pack(&ctx, &s.w, bits, group, dt, s.src, s.scales, s.biases, 0, n, 1, 0, st));
    CU(cudaStreamSynchronize(st));
    return s;
}
void drop(struct weight_set *s)
{
    CU(cudaStreamSynchronize(st));
    cudaFree(s->src);
    cudaFree(s->plain);
    cudaFree(s->scales);
    cudaFree(s->biases);
    cudaFree(s->block);
}

struct ck_x x_make(int m, int64_t k)
{
    struct ck_x x = {};
    x.v = dev<uint8_t>(ck_x_bytes(m, k));
    x.k = k;
    x.k_pad = (k + 63) / 64 * 64;
    x.mul = 1.0f;
    CU(cudaMemsetAsync(x.v, 0xff, ck_x_bytes(m, k), st));
    return x;
}
