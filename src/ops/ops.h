/* ops.h: a backend. One row a device class family: "cpu" here, "cuda" in libmlxbun-cuda.so.
 *
 * Life: open a device -> pack weights -> compile a plan -> reserve the page pool -> submit / collect until close.
 * submit and collect are called by one thread (the engine's). A synchronous backend computes in submit; an
 * asynchronous one keeps one step in flight (async = true) and collect waits for it.
 * Memory: weights belong to the device and live until close; the pool is one reservation; the step loop allocates
 * nothing. Errors are statuses; a failed submit leaves every sequence as it was.
 */
#ifndef OPS_OPS_H
#define OPS_OPS_H

#include "ops/plan.h"

struct device;    /* backend's */
struct compiled;  /* backend's */

#define OPS_RANKS_MAX 8

struct device_options {
    int n_threads;          /* cpu: 0 = physical cores this process may use */
    const char *cpu_level;  /* cpu: NULL = highest */
    int ordinal;            /* cuda device; of several ranks the first one's */
    int n_ranks;            /* several devices or loopback ranks; 0, 1: one */
    int cards[OPS_RANKS_MAX]; /* cuda, several ranks: the device of each; the same everywhere: loopback */
    bool nccl;              /* cuda, several ranks: exchange through NCCL also where cards reach each other's memory */
    bool no_graphs;         /* cuda: every step is launched by itself (the same bits, slower) */
    const char *packed_path; /* cpu: packed weights are kept in this file for the next start; NULL: nowhere */
    uint64_t packed_key;    /* what they come from: another key, another file */
    const char *experts_path; /* cpu: experts stay in this file, made when it is not there; NULL: in memory */
    uint64_t experts_key;   /* as packed_key */
};

/* A weight as it lies in the checkpoint; the pointers need to live only during pack. */
struct weight_slice { const void *w, *scales, *biases; int64_t row0; };

struct weight_source {
    struct quant_spec spec;  /* QUANT_NONE: plain float matrix */
    enum dtype dt;           /* of scales and biases, or of the elements: F32, F16, BF16; F8_E4M3 with block scales (format/fp8.h), which
                                are packed as bfloat16 */
    enum dtype block_dt;     /* F8_E4M3: of its block scales, which `scales` points to, those of the file's whole matrix */
    int64_t row0;            /* F8_E4M3: the row of the file's matrix at which w begins; of a slice its own */
    int64_t n, k;            /* outputs, inputs */
    const void *w, *scales, *biases; /* scales, biases NULL for QUANT_NONE (biases also for mx and nv formats) */
    const struct weight_slice *slices; /* rows that do not lie together (experts stored one by one): slice i holds rows
                                          [i * n / n_slices, (i + 1) * n / n_slices), a multiple of 16; then w is NULL */
    int32_t n_slices;        /* 0: one piece */
    bool turned;             /* slices only: element (o, i) of a slice is element (i, o) in the file: its row i, quantised along o;
                                quantised ones are packed as the floats that they stand for */
    int64_t row_step;        /* row o is row o * row_step of the file (two matrices whose rows take turns); 0 = 1 */
    int32_t i_module;
    int32_t split;           /* as struct weight has it */
    const char *name;
    bool gather_only;        /* only rows are read (an untied embedding): a backend may keep using the mapped source,
                                which the caller then keeps open as long as the weight */
};

struct compile_options {
    int32_t n_rows_max;      /* rows of a batch (= --batch) */
    bool graphs;             /* capture where the backend can */
};

struct ops_step_stats {      /* of the last collected step */
    uint64_t n_barriers, barrier_ns, step_ns;
    bool ahead;              /* a GPU had begun it before the draws of the step before it were read */
};

/* Experts that stay in a file (docs/decisions/0007-expert-offload.md); counts since the device was opened. */
struct ops_expert_stats {
    int32_t n_slots;         /* experts that fit the cache; 0: none stay in a file */
    uint64_t cache_bytes, file_bytes;
    uint64_t n_hits, n_misses;      /* experts a layer asked for: in memory already, or not */
    uint64_t read_bytes, n_errors;
    uint64_t wait_ns;        /* of compute threads, for reads; all threads together */
    bool direct;             /* reads go past the page cache */
};

/* What a device does, measured (probe): what predictions of speed are made of. Best of many short runs, so that other work
 * on the machine counts little. A rate of 0 was not measured. */
enum ops_class { OPS_CLASS_Q4 = 0, OPS_CLASS_Q8, OPS_CLASS_F, OPS_CLASSES }; /* forms of packed weights with a speed of their own */
enum { OPS_TIERS = 3 };                            /* of enum fidelity_tier */
#define OPS_NEAR_BYTES ((size_t)96 << 20)
struct ops_rates {
    double read_bytes_s;                           /* plain read of memory by all threads: the bandwidth */
    double weight_bytes_s[OPS_CLASSES][OPS_TIERS]; /* packed bytes from memory in products with one row */
    double near_bytes_s[OPS_CLASSES][OPS_TIERS];   /* the same of OPS_NEAR_BYTES read again and again, of which caches hold what they can */
    double far_bytes;                              /* what weight_bytes_s went through */
    double macs_s[OPS_CLASSES][OPS_TIERS];         /* multiply-adds in products with many rows */
    double kv_bytes_s[KV_FORMAT_COUNT];            /* pages from memory in attention of one token */
    double attn_macs_s[KV_FORMAT_COUNT];           /* multiply-adds in attention of many tokens */
    double region_s;                               /* a region of a step besides its work: barrier, imbalance, begin of a stream */
    double value_s[OPS_TIERS];                     /* one thread: one value through a norm into a linear input */
    double vocab_s;                                /* one thread: one logit through maximum, sum and draw */
    int32_t n_threads;
};

struct ops {
    const char *name;         /* "cpu", "cuda" */
    bool async;
    bool early;               /* may begin a step before the draws of the one ahead are read: rows are to have the page of the token
                                 behind their next one, where a page is free now. The prefix tree gives up none for a guess: once it
                                 has filled the pool, no step in which a row begins a page is begun early */
    bool kv_codes;            /* has pages of KV_Q8 and KV_Q4 */
    bool scratch_as_used;     /* scratch becomes memory where a step first writes; else all of it is taken at compile */

    mb_status (*device_open)(struct device **out, const struct device_options *opt, mb_error *err);
    void (*device_close)(struct device *d);
    /* One line for people and logs: "cpu avx2, 2 threads". Owned by the device. */
    const char *(*device_describe)(const struct device *d);
    /* Numerics identity: part of every cache key; equal for all CPU levels. */
    const char *(*device_class)(const struct device *d);
    /* Bytes of the device's own memory that are free now; NULL: it uses the system's. */
    size_t (*memory_free)(struct device *d);

    /* Bytes a packed weight will take; MB_UNSUPPORTED names scheme and remedy. */
    mb_status (*pack_bytes)(struct device *d, const struct weight_source *src, size_t *bytes, mb_error *err);
    /* Pack (all compute threads). out->impl is owned by the device until device_close or weight_free. */
    mb_status (*pack)(struct device *d, const struct weight_source *src, struct weight *out, mb_error *err);
    /* Experts of a layer, n of them, where the device keeps experts in a file: gate, up, down, each one below the other. Nothing of
     * them stays in memory. MB_IO (the disk), MB_UNSUPPORTED. NULL: this backend cannot. */
    mb_status (*pack_experts)(struct device *d, const struct weight_source src[3], int32_t n, struct weight *const out[3],
                              mb_error *err);
    /* Bytes that one of them takes in the file, and in the cache. */
    mb_status (*expert_bytes)(struct device *d, const struct weight_source src[3], int32_t n, size_t *bytes, mb_error *err);
    /* Memory for experts that were read, between steps and before the first: whole experts, at least one. */
    mb_status (*experts_reserve)(struct device *d, size_t bytes, mb_error *err);
    void (*experts_stats)(struct device *d, struct ops_expert_stats *out);
    void (*weight_free)(struct device *d, struct weight *w);
    /* Group in which a linear that reads w wants its input quantised; 0 = it takes floats (float weights, TIER_F32 is
     * decided by the plan). source_group: the group of the checkpoint's scheme. */
    int32_t (*act_group)(const struct device *d, const struct weight *w, int32_t source_group);
    /* Dequantise row i of a packed weight (tests, embeddings for tools). */
    void (*weight_row)(struct device *d, const struct weight *w, int64_t i, float *out);

    /* KV: sizes of a kind (fills head_bytes and page_bytes), then one pool for all kinds. */
    void (*kv_sizes)(struct device *d, struct kv_kind *k);
    /* Reserve address space for `bytes`; pages are touched as they are first written. */
    mb_status (*pool_reserve)(struct device *d, size_t bytes, mb_error *err);
    /* Page -> place: engine/kv.c gives every page an id; its byte offset in the pool is id * KV_PAGE_UNIT. */
    void (*page_copy)(struct device *d, const struct kv_kind *k, int32_t dst_page, int32_t src_page);
    /* Give the memory behind [offset, offset + bytes) back to the system (whole chunks only). */
    void (*pool_release)(struct device *d, size_t off, size_t bytes);
    /* Copy a page out / in (SSD tier, tests). */
    void (*page_read)(struct device *d, const struct kv_kind *k, int32_t page, void *dst);
    void (*page_write)(struct device *d, const struct kv_kind *k, int32_t page, const void *src);

    /* Compile the whole plan; scratch for m_max tokens is allocated here, once. */
    mb_status (*compile)(struct device *d, const struct plan *p, const struct compile_options *opt,
                         struct compiled **out, mb_error *err);
    void (*compiled_free)(struct compiled *c);
    /* Scratch bytes that compile will take: the same function computes both. */
    size_t (*scratch_bytes)(struct device *d, const struct plan *p, const struct compile_options *opt);
    /* Run all steps over a batch of rows; results[i].draws must be set. sum of n <= plan.m_max. */
    mb_status (*submit)(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                        mb_error *err);
    mb_status (*collect)(struct compiled *c, mb_error *err);
    /* Run steps [first, last) only, between layer edges; boundary buffers stay where they are. */
    mb_status (*run_range)(struct compiled *c, const struct row *rows, int32_t n_rows, struct row_result *results,
                           int32_t first, int32_t last, mb_error *err);
    /* A float buffer after the last run, rows *row_bytes apart (tests, segmented backward, pipelines); NULL for a linear
     * input, whose form is the backend's. */
    float *(*buffer)(struct compiled *c, buf_id b, size_t *row_bytes);
    void (*stats)(struct compiled *c, struct ops_step_stats *out);
    /* Measure for about `seconds`; takes about 64 MB, or twice the last cache, for that time. Nothing else may run on the
     * device. MB_NO_MEMORY. */
    mb_status (*probe)(struct device *d, double seconds, struct ops_rates *out, mb_error *err);
    /* The class of a weight once it is packed; MB_UNSUPPORTED as pack_bytes. */
    mb_status (*weight_class)(struct device *d, const struct weight_source *src, enum ops_class *out, mb_error *err);
    /* One line per compiled step ("linear q4g32 x3 -> q k v [avx2]") for `doctor --plan`. */
    void (*describe_step)(struct compiled *c, int32_t i_step, char *text, size_t cap);

    /* Cotangents of boundary buffers back through steps [first, last); NULL: no training on this backend. */
    mb_status (*backward)(struct compiled *c, const struct row *rows, int32_t n_rows, int32_t first, int32_t last,
                          mb_error *err);
};

/* Page ids count units of KV_PAGE_UNIT bytes in the pool, so that kinds with pages of different size share it: the byte
 * offset of a page is id * KV_PAGE_UNIT whatever its kind. */
#define KV_PAGE_UNIT 4096

extern const struct ops ops_cpu, ops_cuda, ops_cuda_ranks;
/* The CUDA backends load libmlxbun-cuda.so when a device is opened.
 * "cpu", "cuda" (the first card), "cuda:1", "cuda:0,1" (a rank on each of these), "cuda:0,0" (two ranks on one card),
 * "cuda:0,1/nccl", "cuda:0/steps": the backend, and its cards to opt->ordinal, n_ranks, cards. NULL: the first backend. MB_UNSUPPORTED names what is known; MB_INVALID. */
mb_status ops_parse(const char *text, const struct ops **out, struct device_options *opt, mb_error *err);

#endif
