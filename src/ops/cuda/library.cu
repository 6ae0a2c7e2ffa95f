/* library.cu: the table of libmlxbun-cuda.so (library.h), over the CUDA runtime. */
#include <stdio.h>
#include <string.h>

#include "ops/cuda/library.h"

static const char *error_text(int code)
{
    cudaGetLastError(); /* it has been told: the next call must not meet it again */
    return cudaGetErrorString((cudaError_t)code);
}

static int device_count(int *count)
{
    *count = 0;
    return (int)cudaGetDeviceCount(count);
}

static int device_use(int ordinal)
{
    return (int)cudaSetDevice(ordinal);
}

static int device_info(int ordinal, struct cuda_device_info *out)
{
    cudaDeviceProp p;
    memset(out, 0, sizeof *out);
    cudaError_t e = cudaGetDeviceProperties(&p, ordinal);
    if (e != cudaSuccess) return (int)e;
    snprintf(out->name, sizeof out->name, "%.63s", p.name);
    out->major = p.major;
    out->minor = p.minor;
    out->n_sm = p.multiProcessorCount;
    out->shared_bytes = p.sharedMemPerBlockOptin;
    return (int)cudaMemGetInfo(&out->free_bytes, &out->total_bytes);
}

static int stream_open(void **out)
{
    return (int)cudaStreamCreateWithFlags((cudaStream_t *)out, cudaStreamNonBlocking);
}

static void stream_close(void *stream)
{
    cudaStreamDestroy((cudaStream_t)stream);
}

static int stream_wait(void *stream)
{
    return (int)cudaStreamSynchronize((cudaStream_t)stream);
}

static int stream_poll(void *stream, int *done)
{
    cudaError_t e = cudaStreamQuery((cudaStream_t)stream);
    *done = e != cudaErrorNotReady;
    if (e != cudaErrorNotReady) return (int)e;
    cudaGetLastError(); /* not being done is no fault */
    return 0;
}

static int alloc(void **out, size_t bytes)
{
    *out = NULL;
    cudaError_t e = cudaMalloc(out, bytes);
    if (e != cudaSuccess) cudaGetLastError(); /* an allocation that fails is no fault of later calls */
    return (int)e;
}

static void free_device(void *p)
{
    cudaFree(p);
}

static int alloc_host(void **out, size_t bytes)
{
    *out = NULL;
    cudaError_t e = cudaMallocHost(out, bytes);
    if (e != cudaSuccess) cudaGetLastError();
    return (int)e;
}

static void free_host(void *p)
{
    cudaFreeHost(p);
}

/* A card that reaches another one's memory once may do so for good. */
static int peer_open(int ordinal, int other, int *can)
{
    *can = 0;
    cudaError_t e = cudaDeviceCanAccessPeer(can, ordinal, other);
    if (e != cudaSuccess || !*can) return (int)e;
    e = cudaSetDevice(ordinal);
    if (e == cudaSuccess) e = cudaDeviceEnablePeerAccess(other, 0);
    if (e != cudaErrorPeerAccessAlreadyEnabled) return (int)e;
    cudaGetLastError();
    return 0;
}

static int copy(void *dst, const void *src, size_t bytes, void *stream)
{
    return (int)cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, (cudaStream_t)stream);
}

static int fill(void *dst, int byte, size_t bytes, void *stream)
{
    return (int)cudaMemsetAsync(dst, byte, bytes, (cudaStream_t)stream);
}

static int graph_begin(void *stream)
{
    return (int)cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal);
}

static int graph_end(void *stream, void **graph)
{
    cudaGraph_t g = NULL;
    *graph = NULL;
    cudaError_t e = cudaStreamEndCapture((cudaStream_t)stream, &g);
    if (e != cudaSuccess) return (int)e;
    /* Another rank's stream may still be recording: what is not allowed meanwhile concerns that stream alone. */
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    e = cudaGraphInstantiate((cudaGraphExec_t *)graph, g, 0);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaGraphDestroy(g);
    return (int)e;
}

static int graph_run(void *graph, void *stream)
{
    return (int)cudaGraphLaunch((cudaGraphExec_t)graph, (cudaStream_t)stream);
}

static void graph_free(void *graph)
{
    cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

static int event_open(void **out)
{
    return (int)cudaEventCreateWithFlags((cudaEvent_t *)out, cudaEventDisableTiming);
}

static void event_close(void *event)
{
    cudaEventDestroy((cudaEvent_t)event);
}

static int event_record(void *event, void *stream)
{
    return (int)cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
}

static int event_wait(void *event)
{
    return (int)cudaEventSynchronize((cudaEvent_t)event);
}

static struct cuda_library table()
{
    struct cuda_library t;
    memset(&t, 0, sizeof t);
    t.abi = CUDA_LIBRARY_ABI;
    t.struct_bytes = (uint32_t)sizeof t;
    t.error_text = error_text;
    t.device_count = device_count;
    t.device_use = device_use;
    t.device_info = device_info;
    t.stream_open = stream_open;
    t.stream_close = stream_close;
    t.stream_wait = stream_wait;
    t.stream_poll = stream_poll;
    t.alloc = alloc;
    t.free = free_device;
    t.alloc_host = alloc_host;
    t.free_host = free_host;
    t.peer_open = peer_open;
    t.copy = copy;
    t.fill = fill;
    t.graph_begin = graph_begin;
    t.graph_end = graph_end;
    t.graph_run = graph_run;
    t.graph_free = graph_free;
    t.event_open = event_open;
    t.event_close = event_close;
    t.event_record = event_record;
    t.event_wait = event_wait;
    t.norm = cs_norm;
    t.glu = cs_glu;
    t.gate = cs_gate;
    t.rope = cs_rope;
    t.rope_attend = cs_rope_attend;
    t.fetch = cs_fetch;
    t.gather_rows = cs_gather_rows;
    t.lora_apply = cs_lora_apply;
    t.linear_finish = cs_linear_finish;
    t.delta = cs_delta;
    t.route = cs_route;
    t.gather_pieces = cs_gather_pieces;
    t.experts_sum = cs_experts_sum;
    t.meet = cs_meet;
    t.join = cs_join;
    t.join_input = cs_join_input;
    t.trade = cs_trade;
    t.trade_norm = cs_trade_norm;
    t.trade_end = cs_trade_end;
    t.sample_scratch_bytes = cs_sample_scratch_bytes;
    t.sample = cs_sample;
    t.ctx_init = ck_ctx_init;
    t.work_bytes = ck_work_bytes;
    t.weight_bytes = ck_weight_bytes;
    t.tile_bytes = ck_tile_bytes;
    t.weight_place = ck_weight_place;
    t.pack = ck_pack;
    t.gather = ck_gather;
    t.x_layout_for = ck_x_layout_for;
    t.x_bytes = ck_x_bytes;
    t.x_write = ck_x_write;
    t.norm_tokens = ck_norm_tokens;
    t.linear = ck_linear;
    t.linear_glu = ck_linear_glu;
    t.experts_most = ck_experts_most;
    t.experts_pieces = ck_experts_pieces;
    t.experts_rows = ck_experts_rows;
    t.experts_glu = ck_experts_glu;
    t.experts_down = ck_experts_down;
    t.experts_down_sum = ck_experts_down_sum;
    t.kv_head_bytes = ck_kv_head_bytes;
    t.attn_small_tokens = ck_attn_small_tokens;
    t.attn_large_tokens = ck_attn_large_tokens;
    t.attend = ck_attend;
    t.latent_page_bytes = cl_page_bytes;
    t.latent_work_bytes = cl_attend_work_bytes;
    t.heads = cl_heads;
    t.latent = cl_latent;
    t.latent_attend = cl_attend;
    t.index = cl_index;
    t.index_work_bytes = cl_index_work_bytes;
    return t;
}

extern "C" __attribute__((visibility("default"))) const struct cuda_library *mlxbun_cuda_library(void)
{
    static const struct cuda_library t = table();
    return &t;
}
