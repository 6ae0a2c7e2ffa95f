/* latent_dev.cuh: where an element of a page of latents lies, and how it is read and written. */
#ifndef OPS_CUDA_LATENT_DEV_CUH
#define OPS_CUDA_LATENT_DEV_CUH

#include "ops/cuda/kernels_dev.cuh"
#include "ops/cuda/latent.h"

static __host__ __device__ __forceinline__ int cl_ld(int rows) { return (rows + 63) / 64 * 64; }
static __host__ __device__ __forceinline__ int cl_elem(int format) { return format == CK_KV_F32 ? 4 : 2; }

/* Element `dim` of a key, in elements from the beginning of the key's row: 16-byte chunk c of key j lies at c ^ (j % 8), so that the same chunk of eight keys
 * in a row comes from all banks of shared memory. */
static __device__ __forceinline__ int cl_off(int key, int dim, int elem)
{
    int per = 16 / elem;
    return ((dim / per) ^ (key & 7)) * per + dim % per;
}
/* The row of key `index` of token i's sequence. */
static __device__ __forceinline__ uint8_t *cl_key(const struct cl_pages &p, int token, int index)
{
    int64_t page = p.pages[p.table_of[token] + index / 64];
    return (uint8_t *)p.pool + page * 4096 + p.area_off + (int64_t)(index & 63) * cl_ld(p.rows) * cl_elem(p.format);
}
static __device__ __forceinline__ float cl_get(const uint8_t *row, int format, int key, int dim)
{
    int at = cl_off(key, dim, cl_elem(format));
    if (format == CK_KV_F32) return ((const float *)row)[at];
    if (format == CK_KV_F16) return __half2float(((const __half *)row)[at]);
    return __bfloat162float(((const __nv_bfloat16 *)row)[at]);
}
static __device__ __forceinline__ void cl_put(uint8_t *row, int format, int key, int dim, float v)
{
    int at = cl_off(key, dim, cl_elem(format));
    if (format == CK_KV_F32) ((float *)row)[at] = v;
    else if (format == CK_KV_F16) ((__half *)row)[at] = __float2half_rn(v);
    else ((__nv_bfloat16 *)row)[at] = __float2bfloat16_rn(v);
}

#endif
