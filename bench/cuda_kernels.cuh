/* cuda_kernels.cuh: what the files of bench/cuda_kernels share: the card, what failed, memory, random data and weights made on the card, time.
 */
#ifndef BENCH_CUDA_KERNELS_CUH
#define BENCH_CUDA_KERNELS_CUH

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/kernels_int.h"
#include "ops/cuda/steps.h"

#define CU(call)                                                                                        \
    do {                                                                                                \
        int e_ = (int)(call);                                                                           \
        if (e_) {                                                                                       \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, ck_error_text(e_));                    \
            fflush(stdout);                                                                             \
            exit(2);                                                                                    \
        }                                                                                               \
    } while (0)

extern struct ck_ctx ctx;
extern cudaStream_t st;

/* cuda_kernels.cu: prints a line, counts what failed. */
void verdict(bool ok, const char *what);
/* Says how many values differ. */
bool same_bits(const std::vector<float> &a, const std::vector<float> &b, const char *what);

/* What is asked for on the command line. few: only the forms that a build of the kernels with -DCK_FEW has. */
void check_products(bool few);
void check_gated(void);
void check_attention(void);
void roofline(void); /* before the speeds, which are told beside it */
void speed_linear(int bits, int group);
void speed_attend(void);

/* --- memory --- */

template <typename T> static T *dev(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T) + 256));
    return (T *)p;
}
template <typename T> static std::vector<T> host(const T *p, size_t n)
{
    std::vector<T> v(n);
    CU(cudaMemcpyAsync(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, st));
    CU(cudaStreamSynchronize(st));
    return v;
}
template <typename T> static T *upload(const std::vector<T> &v)
{
    T *p = dev<T>(v.size());
    CU(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

/* --- random data and weights (cuda_kernels_data.cu) --- */

static __device__ __forceinline__ uint32_t hash(uint64_t i)
{
    i = (i ^ (i >> 30)) * 0xbf58476d1ce4e5b9ull;
    i = (i ^ (i >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(i >> 16);
}
/* About normal, times scale, plus offset; every 61st fifty times as large when wild. */
static __device__ __forceinline__ float noise(uint64_t i, uint64_t seed)
{
    uint64_t k = i * 4 + seed * 0x9e3779b97f4a7c15ull;
    float s = 0;
    for (int j = 0; j < 4; j++) s += (float)(hash(k + (uint64_t)j) >> 8) * (1.0f / 16777216.0f) - 0.5f;
    return s * 1.7f;
}
void fill_words(uint32_t *p, size_t n, uint64_t seed);
/* wild: every 61st is fifty times as large. */
float *floats(size_t n, uint64_t seed, float scale, float offset, int wild = 0);
void *typed(const float *in, size_t n, int dt);

/* A weight with its source. */
struct weight_set {
    struct ck_weight w;
    uint32_t *codes;
    float *plain;      /* bits 0 */
    void *src, *scales, *biases, *block;
    int bits, group, dt;
};
/* tiny: rows 17 and n - 1 become as small as they can be packed, some groups 0. */
struct weight_set make_weight(int bits, int group, int dt, int64_t n, int64_t k, uint64_t seed, bool force_q8 = false, bool tiny = false);
void drop(struct weight_set *s);
/* Room for a linear input of m tokens; it holds NaN: padding that is read shows. */
struct ck_x x_make(int m, int64_t k);

/* --- time --- */

/* Median seconds of a call, by events. */
template <typename F> static double timed(F f, int reps, int inner = 1)
{
    cudaEvent_t a, b;
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    std::vector<float> t;
    f();
    CU(cudaStreamSynchronize(st));
    for (int i = 0; i < reps; i++) {
        CU(cudaEventRecord(a, st));
        for (int j = 0; j < inner; j++) f();
        CU(cudaEventRecord(b, st));
        CU(cudaEventSynchronize(b));
        float ms;
        CU(cudaEventElapsedTime(&ms, a, b));
        t.push_back(ms / (float)inner);
    }
    for (size_t i = 0; i < t.size(); i++)
        for (size_t j = i + 1; j < t.size(); j++)
            if (t[j] < t[i]) std::swap(t[i], t[j]);
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    return t[t.size() / 2] * 1e-3;
}
template <typename F> static cudaGraphExec_t capture(F f)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    f();
    CU(cudaStreamEndCapture(st, &g));
    CU(cudaGraphInstantiate(&e, g, 0));
    CU(cudaGraphDestroy(g));
    return e;
}
template <typename F> static double graph_time(F f, int reps = 15)
{
    cudaGraphExec_t e = capture(f);
    double t = timed([&] { CU(cudaGraphLaunch(e, st)); }, reps);
    CU(cudaGraphExecDestroy(e));
    return t;
}

#endif
