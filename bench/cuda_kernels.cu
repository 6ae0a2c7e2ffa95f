/* cuda_kernels.cu: the CUDA kernels by themselves: each against a plain float64 reference within the bound of kernels.h, bits
 * equal for every batch width and path, then speed beside the read bandwidth and the tensor peak of the same run.
 *
 *   cuda_kernels [check | check-linear | check-glu | check-attend] [attend] [linear] [linear8] [linear16]
 *                                                none: all. Exit 1 when a check fails, 2 on a CUDA error.
 *   few: only the forms that a build of the kernels with -DCK_FEW has.
 * Build: nvcc -std=c++17 -O3 --fmad=false -Isrc -gencode=arch=compute_90a,code=sm_90a -o build/cuda_kernels
 *        bench/cuda_kernels*.cu src/ops/cuda/kernels_*.cu src/ops/cuda/steps_ro*.cu
 */
#include "cuda_kernels.cuh"

struct ck_ctx ctx;
cudaStream_t st;
static int n_failed;

void verdict(bool ok, const char *what)
{
    if (!ok) n_failed++;
    printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    fflush(stdout);
}

bool same_bits(const std::vector<float> &a, const std::vector<float> &b, const char *what)
{
    size_t bad = 0;
    for (size_t i = 0; i < a.size(); i++) bad += memcmp(&a[i], &b[i], 4) != 0;
    if (bad) printf("     %s: %zu of %zu values differ\n", what, bad, a.size());
    return bad == 0;
}

int main(int argc, char **argv)
{
    bool all = argc < 2, few = false;
    auto want = [&](const char *s) {
        for (int i = 1; i < argc; i++)
            if (!strcmp(argv[i], s)) return true;
        return all;
    };
    for (int i = 1; i < argc; i++) few |= !strcmp(argv[i], "few");
    CU(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    CU(ck_ctx_init(&ctx, 0));
    ctx.work_bytes = ck_work_bytes(&ctx, 4096, 64, 512, 131072);
    ctx.work = dev<uint8_t>(ctx.work_bytes);
    CU(cudaMemset(ctx.work, 0, ctx.work_bytes));
    printf("sm_%d%d, %d SMs, wgmma %d\n", ctx.major, ctx.minor, ctx.n_sm, ctx.wgmma);
    if (want("check") || want("check-linear")) check_products(few);
    if (want("check") || want("check-glu")) check_gated();
    if (want("check") || want("check-attend")) check_attention();
    if (want("linear") || want("linear8") || want("linear16") || want("attend")) roofline();
    if (want("attend")) speed_attend();
    if (want("linear")) speed_linear(4, 64);
    if (want("linear8")) speed_linear(8, 64);
    if (want("linear16")) speed_linear(0, 64);
    printf("%s: %d failed\n", n_failed ? "FAILED" : "all checks passed", n_failed);
    return n_failed != 0;
}
