/* kernels.h: every kernel of the CPU backend, one contract for all levels (portable, avx2, avx512, amx).
 *
 * The table is filled by select.c: portable first, then each level the machine has overwrites what it has; nothing is
 * NULL in the end but what says here that it may be. All levels are equal bit for bit (docs/numerics.md); tests/kernels
 * compares each with portable. A kernel never tests a CPU flag, allocates nothing, and is a pure function of its
 * operands. Threads: the caller cuts the work (blocks of 16 outputs, rows, units); how it is cut has no effect on bits.
 *
 * Weights. "Packed": 16 output rows interleaved; block b holds rows 16b .. 16b+15 (tail rows are zero).
 *   Affine 4 bit: per group of g along k: g/8 vectors of 16 u32: lane r of vector i is the MLX word i of row r, unchanged
 *   (element 8i+j in bits 4j..4j+3); then the scale area. Affine 8 bit: g/4 vectors of 16 u32: lane r of vector 2i holds
 *   the codes of k = 8i + {0,2,4,6}, of vector 2i+1 those of k = 8i + {1,3,5,7} (lowest byte first): the byte order in
 *   which activations are written. 2, 3, 5, 6 bit, mxfp4, nvfp4, trellis unpack to the 8-bit block at load: same sums.
 *   Scale area by scale type: BF16 16 u32 (b << 16 | s); F16 16 u16 s then 16 u16 b; F32 16 f32 s then 16 f32 b.
 *   Float weights (F32, F16, BF16): [k][16] elements in the file's type.
 *
 * Linear inputs ("act"), one row after the other, row_bytes apart (act_row_bytes), 64-byte aligned:
 *   ACT_F32:  k floats.
 *   ACT_Q8 :  per group: g int8 codes in byte order 0,2,4,6,1,3,5,7 of each 8; after all groups: k/g pairs (a, xs) f32.
 *   ACT_Q16:  per group: g int8 "hi" codes, g int8 "lo" codes, same byte order; then k/g pairs (a, xs) f32.
 * Quantising one group of g values v (NaN-free):
 *   amax = max |v|.  Q8: inv = 127/amax, a = amax*(1/127).  Q16: inv = 32512/amax, a = amax*(1/32512).
 *   x = rne(v*inv) (one product, then round to nearest even; |x| <= 127 resp. 32512)
 *   Q16: lo = (int8)(x & 255) as a signed byte, hi = (x - lo) / 256.  xs = a * (float)(sum of x in the group, int32).
 *   amax < 1e-30: a = 0, all codes 0, xs = 0.  A NaN or infinity in the group: a = NaN, all codes 0, xs = NaN.
 *   1/127 and 1/32512 are the float32 constants nearest to those values.
 */
#ifndef OPS_CPU_KERNELS_H
#define OPS_CPU_KERNELS_H

#include "base/status.h"
#include "format/quant.h"
#include "ops/row.h"

enum act_form { ACT_F32 = 0, ACT_Q8, ACT_Q16 };

/* Bytes of one row of a linear input of width k (g ignored for ACT_F32): a multiple of 64, never a multiple of 4096. */
size_t act_row_bytes(enum act_form form, int64_t k, int g);

enum cpu_wtype {
    CPU_W_Q4,  /* affine, 4-bit codes */
    CPU_W_Q8,  /* affine, 8-bit codes (also 2, 3, 5, 6 bit and the fp4 formats, unpacked) */
    CPU_W_F    /* float elements of type `dt` */
};

/* A packed weight matrix W [n][k]. The bytes are owned by the model. */
struct cpu_weight {
    enum cpu_wtype type;
    enum dtype dt;         /* Q4, Q8: type of scale and bias; F: type of the elements (F32, F16, BF16) */
    int g;                 /* group along k: 16, 32, 64, 128; 0 for F */
    int64_t n, k;          /* k % g == 0; k % 8 == 0 */
    size_t block_bytes;    /* one block of 16 rows */
    const uint8_t *data;   /* 64-byte aligned, ceil(n/16) * block_bytes */
};
/* Sizes of a packed weight; the same numbers admission uses. */
size_t cpu_weight_block_bytes(enum cpu_wtype type, enum dtype dt, int g, int64_t k);
/* Blocks that a kernel of one row likes to get at once, or a multiple: it reads so many side by side (AVX-512: half as many), each the first
 * of a run of blocks. */
#define CPU_ROW_STREAMS 4
static inline int64_t cpu_row_run(int64_t n_blocks) { return n_blocks / CPU_ROW_STREAMS; }
static inline int64_t cpu_weight_blocks(const struct cpu_weight *w)
{
    return (w->n + 15) / 16;
}
static inline size_t cpu_weight_bytes(const struct cpu_weight *w)
{
    return (size_t)cpu_weight_blocks(w) * w->block_bytes;
}

/* Room of one thread in which a kernel keeps inputs in the form that it wants, from one call to the next for the same rows. */
#define CPU_LAID_BYTES 27648
struct cpu_laid {
    _Alignas(64) uint8_t bytes[CPU_LAID_BYTES];
    bool is_laid;          /* set by the kernel; the caller takes it back when data, row0 or m are others */
};

/* A batch of linear inputs. */
struct cpu_act {
    enum act_form form;
    int g;
    int64_t k;
    size_t row_bytes;
    const uint8_t *data;
    const uint8_t *w_end, *w_next; /* a hint of what to prefetch: where the weights of this call end, and where the thread goes on; NULL:
                                      not known */
    size_t next_step;                 /* from one run of blocks to the next there (cpu_row_run), bytes */
    struct cpu_laid *laid;            /* NULL: none */
};

/* matmul: y[i][o] = sum over k of x[i][k] * W[o][k],  i in [row0, row0+m), o in [16*blk0, min(16*blk1, n)).
 *   y     f32, element (i, o) at y[(i - row0) * ld_y + (o - 16*blk0)]; overwritten; nothing else is touched.
 * Numbers, quantised input and weight, groups G in rising order, acc = +0:
 *   isum = sum of code * x (exact int32; ACT_Q16: 256 * sum(hi) + sum(lo), wrapping never happens for g <= 128)
 *   acc = fma(s * a, (float)isum, acc);  acc = fma(b, xs, acc)            s, b: scale and bias of (o, G) as float
 * Numbers, ACT_F32: w = fma((float)code, s, b) for affine, the element for float weights;
 *   acc = fma(w, x[k], acc), k rising from 0, one chain, acc = +0.
 * (CPU_W_F always takes ACT_F32.)
 * Invariance: row i of y depends on row i of x alone. Source: mlx.core.quantize; golden: tests/golden/quant_affine. */
typedef void (*cpu_matmul_fn)(const struct cpu_weight *w, int64_t blk0, int64_t blk1, const struct cpu_act *x,
                              int64_t row0, int64_t m, float *y, int64_t ld_y);

/* Attention: key pages. One page = 64 keys of one kind; inside it the area of one layer and KV head is
 *   K: [d][64 keys], then V: [ceil(d/64)][64 keys][64 dims] (the tail of the last V block is zero).
 *   KV_F32: floats. KV_F16: halves, natural order. KV_BF16: inside each 32 values, value i sits in the low half and
 *   value 16 + i in the high half of dword i.
 *   KV_Q8, KV_Q4: codes, then bf16 scales s and offsets b: an element is code * s + b (section 4d). G = kv_code_group(d) dims share them.
 *     K codes: Q8 [d][64 keys] bytes; Q4 [d/2][64 keys] bytes, dim 2i in the low half, 2i + 1 in the high one.
 *     K scales: [d/G] blocks of 64 s, 64 b, one a key.
 *     V codes: rows of 64 dims as above, [ceil(d/64)][64 keys]; Q8 64 bytes; Q4 32: dim i low, 32 + i high. The tail is zero.
 *     V scales: as K's.
 *     No byte belongs to two tokens: they may be written at the same time.
 * Latents (KIND_LATENT): the area of a layer is keys alone, [rows][64 keys]: the compressed latent, the rotated part, then what
 *   an indexer has; the latent is also the value. */
#define ATTN_SPLIT 512  /* S: keys of a split, anchored at index 0 */
#define ATTN_TILE 64    /* T */
#define ATTN_LANES 16   /* L */
#define ATTN_FEW_ROWS 16 /* a unit of more rows than this is a prompt's: keys and values become floats first (attention_many.h), for
                            which its scratch has room; up to it, bringing the pages is what takes time */
size_t kv_head_bytes(enum kv_format f, int64_t d); /* K and V of one layer and KV head in one page */
size_t kv_latent_bytes(enum kv_format f, int64_t n_rows); /* latents of one layer in one page */

/* Places in an area of codes, in bytes. */
#define KV_SCALES_BYTES 256 /* of one group: 64 s, 64 b */
struct kv_code_places {
    size_t row;                       /* bytes of 64 codes */
    size_t k_scales, v_codes, v_scales;
    int group, n_groups;
};
static inline struct kv_code_places kv_code_places(enum kv_format f, int64_t d)
{
    struct kv_code_places p = { .row = f == KV_Q8 ? 64 : 32, .group = kv_code_group(d) };
    p.n_groups = p.group ? (int)(d / p.group) : 0;
    p.k_scales = (size_t)d * p.row;
    p.v_codes = p.k_scales + (size_t)p.n_groups * KV_SCALES_BYTES;
    p.v_scales = p.v_codes + (size_t)((d + 63) / 64 * 64) * p.row;
    return p;
}

/* n lines of memory, step bytes apart. */
struct attn_lines {
    const uint8_t *at;
    size_t step;
    int n;
};

/* One unit of attention: R query rows of one KV head against one split. */
struct attn_unit {
    int64_t d;
    int64_t d_latent;             /* 0: values lie behind the keys, d wide. Else pages hold latents, and a key's value is its
                                     first d_latent elements */
    int n_rows;                   /* any number >= 1 */
    const float *q;               /* [n_rows][d], already times c = (float)(log2(e) * scale); ld_q floats apart */
    int64_t ld_q;
    const uint8_t *page[ATTN_SPLIT / KV_PAGE_TOKENS]; /* K of this layer and head in each page of the split; NULL where
                                     no row sees a key */
    const uint8_t *page_after;    /* where the next unit will begin: a hint to prefetch; NULL: not known */
    bool asked;                   /* the unit before had this one's first page for its page_after, or in `ahead` */
    const struct attn_lines *ahead; /* [n_ahead] what will be read after this unit, another such hint */
    int n_ahead;
    enum kv_format format;
    const int32_t *vis_lo, *vis_hi; /* [n_rows] visible keys, relative to the split's first key, half-open, lo >= 0, hi <= 512;
                                     lo >= hi: the row sees nothing here, and lo may pass 512, hi be below 0 */
    float softcap;                /* 0 = none: s = cap * tanh(s / cap) before log2(e); c is then (float)scale */
    float *m, *ls;                /* [n_rows] out: maximum (-inf: none) and sum */
    float *o;                     /* [n_rows][ld_o] out, as wide as a value, unnormalised, + 0.0f applied */
    int64_t ld_o;
    void *scratch;                /* attn_scratch_bytes(n_rows, d, d_latent), 64-byte aligned */
};
size_t attn_scratch_bytes(int n_rows, int64_t d, int64_t d_latent);

/* What an indexer thinks of the keys of one split, for one query:
 *   s_h[j] = dot of q[h] and key j, one fma chain over d from +0;  out[j] = fma(w[h], s_h[j] > 0 ? s_h[j] : 0, out[j]), h rising
 *   from +0. */
struct index_unit {
    int64_t d;
    int n_head;
    const float *q;               /* [n_head][d] */
    const float *w;               /* [n_head] */
    const uint8_t *page[ATTN_SPLIT / KV_PAGE_TOKENS]; /* the indexer's rows of each page: [d][64 keys] */
    enum kv_format format;
    int n_keys;                   /* of the split, 1 .. ATTN_SPLIT; pages behind them are not read */
    float *out;                   /* [ATTN_SPLIT]; what belongs to no key means nothing */
    void *scratch;                /* index_scratch_bytes(), 64-byte aligned */
};
size_t index_scratch_bytes(void);

/* The delta rule of one value head on n_tok tokens in order; column v of the state never meets another:
 *   chains c = 0..3 from +0: m_c = fma(s[k][v] * g, key[k], m_c), k = c, c + 4, ..; d = (x[v] - ((m0 + m1) + (m2 + m3))) * beta
 *   s[k][v] = fma(key[k], d, s[k][v] * g); o_c = fma(s[k][v], query[k], o_c) likewise; o[v] = (o0 + o1) + (o2 + o3) */
struct delta_run {
    int64_t dim_k, dim_v, n_tok;
    float *s;                     /* [dim_k][dim_v] the state, in and out */
    const float *q, *k, *v;       /* [n_tok] rows, ld_in floats apart */
    int64_t ld_in;
    const float *g, *beta;        /* [n_tok] */
    float *o;                     /* [n_tok][dim_v], ld_o floats apart; overwritten */
    int64_t ld_o;
};

struct cpu_kernels {
    const char *level; /* name of the highest level in the table */

    /* Linear inputs: rows [0, n_rows) of x (f32, ld_x apart) to form at `out` (row_bytes apart). k % g == 0. */
    void (*quantise_rows)(enum act_form form, int g, int64_t k, int64_t n_rows, const float *x, int64_t ld_x,
                          uint8_t *out, size_t row_bytes);
    /* Groups [grp0, grp1) of one row only (a thread that owns a slice of k). */
    void (*quantise_groups)(enum act_form form, int g, int64_t k, int64_t grp0, int64_t grp1, const float *x,
                            uint8_t *out_row);

    cpu_matmul_fn matmul_q4_q8, matmul_q4_q16, matmul_q8_q8, matmul_q8_q16;
    cpu_matmul_fn matmul_q4_f32, matmul_q8_f32, matmul_f_f32;

    /* Dequantise row `id` of a packed weight to f32: fma((float)code, s, b) or the element. For tied embeddings. */
    void (*gather_row)(const struct cpu_weight *w, int64_t id, float *out);

    /* y[j] = (x[j] * r) * w[j], r = 1 / sqrtf(ss * (1/n) + eps), ss in 16 lanes: lane j % 16 takes x[j]^2 by fma in
     * index order, lanes fold as in attention (8, 4, then (0+2)+(1+3)). w may be NULL (all ones). x may equal y. */
    void (*rmsnorm)(const float *x, const float *w, int64_t n, float eps, float *y);
    /* Rotate pairs of one head: half-split pairs (i, i + n_rot/2) (interleaved: (2i, 2i+1)); cs: [n_rot/2] cosines then
     * [n_rot/2] sines. out0 = fma(x0, c, -(x1 * s)), out1 = fma(x1, c, x0 * s). Elements above n_rot are kept. */
    void (*rope)(float *x, int64_t n_rot, bool interleaved, const float *cs);
    void (*scale)(float *x, int64_t n, float c);                    /* x *= c */
    void (*add)(float *y, const float *x, int64_t n);               /* y += x */
    void (*silu_mul)(const float *gate, const float *up, int64_t n, float *y);      /* mb_silu(gate) * up */
    void (*gelu_tanh_mul)(const float *gate, const float *up, int64_t n, float *y); /* mb_gelu_tanh(gate) * up */
    void (*swiglu_clamped)(const float *gate, const float *up, int64_t n, float *y); /* mb_swiglu_clamped(gate, up) */
    void (*softcap)(float *x, int64_t n, float cap);                /* cap * mb_tanh(x / cap), x / cap a division */

    void (*sigmoid_mul)(const float *gate, const float *x, int64_t n, float *y);    /* x / (1 + mb_exp(-gate)) */

    /* Gated delta net (docs/numerics.md section 4a). y may not overlap its operands in either.
     * delta_conv: y[i] = mb_silu((c0 + c1) + (c2 + c3)): tap j, the oldest first, is added to chain j % 4 by
     * fma(w[j * ld_w + i], x[j][i], c), chains from +0; x[j] NULL: the tap lies before the sequence and is left out. */
    void (*delta_conv)(const float *const *x, int32_t n_tap, const float *w, int64_t ld_w, int64_t n, float *y);
    void (*delta_rule)(const struct delta_run *r);

    /* LoRA (docs/numerics.md section 2). lora_project: u[r] = sum over k of a[r][k] * x[k], r < n_rows, rows of a ld_a
     * apart: 16 lanes, element j goes to lane j % 16 by fma(a, x, lane) in index order, lanes fold as in rmsnorm.
     * lora_add: y[o] = y[o] + acc(o), acc = fma(b[r][o], u[r], acc), r rising from 0, acc = +0; rows of b ld_b apart. */
    void (*lora_project)(const float *a, int64_t ld_a, int32_t n_rows, const float *x, int64_t k, float *u);
    void (*lora_add)(const float *b, int64_t ld_b, int32_t rank, const float *u, int64_t n, float *y);

    /* Write K and V of one token (d floats each) into slot `i_key` (0..63) of a page area, rounded to nearest even; as codes by
     * section 4d. */
    void (*kv_write)(enum kv_format f, int64_t d, int i_key, const float *k, const float *v, uint8_t *area);
    /* The same of 16 tokens, slots i_key .. i_key + 15, i_key % 16 == 0, rows ld_k and ld_v floats apart; no codes. NULL: one by
     * one is as fast. */
    void (*kv_write_16)(enum kv_format f, int64_t d, int i_key, const float *k, int64_t ld_k, const float *v, int64_t ld_v, uint8_t *area);
    /* Write n values of one token as the column `i_key` of a latent area, rounded to nearest even. */
    void (*latent_write)(enum kv_format f, int64_t n, int i_key, const float *x, uint8_t *area);
    /* Read back (tests, tools). */
    void (*kv_read)(enum kv_format f, int64_t d, int i_key, const uint8_t *area, float *k, float *v);

    void (*attend_unit)(const struct attn_unit *u);
    /* Merge one split's (m, ls, o) of one row into (M, Lt, O[d]); ls == 0 changes nothing. Start: (-inf, 0, 0). */
    void (*attend_merge)(int64_t d, float m, float ls, const float *o, float *M, float *Lt, float *O);
    /* out[d] = O[d] * inv, inv = 1/Lt, 0 when Lt == 0. out may be O. */
    void (*attend_finish)(int64_t d, float Lt, const float *O, float *out);
    void (*index_scores)(const struct index_unit *u);

    /* Vocabulary. Blocks of 1024 ids, 16 lanes inside a block (lane = id % 16), block sums added in block order.
     * vocab_max: max and argmax (lowest id at ties) of x[n]; *finite false if a NaN or +inf is met (the
     * other two then mean nothing); -inf is allowed.
     * vocab_sumexp: sum of mb_exp(x[i] - max), in that order. n need not be a multiple of anything. */
    void (*vocab_max)(const float *x, int64_t n, float *max, int64_t *argmax, bool *finite);
    float (*vocab_sumexp)(const float *x, int64_t n, float max);
    /* Gumbel-max over all ids with x[i] > -inf: argmax of x[i] * inv_temp + g(i), g(i) = -mb_log(-mb_log(u)),
     * u = ((w >> 9) + 0.5f) * 2^-23 (exact, below 1), w = word i % 4 of philox(counter {i / 4, index,
     * choice | purpose << 24, round}, key = seed); ties: lowest id. Returns the id, -1 when none survives. */
    int64_t (*vocab_gumbel)(const float *x, int64_t n, float inv_temp, const struct noise_key *key, uint32_t index,
                            enum noise_purpose purpose);
};

/* CPU levels, lowest first. */
enum cpu_level { CPU_PORTABLE = 0, CPU_AVX2, CPU_AVX512, CPU_AMX, CPU_LEVEL_COUNT };
const char *cpu_level_name(enum cpu_level l);
bool cpu_level_parse(const char *name, enum cpu_level *out);
/* The highest level this machine can run (cpuid, xgetbv, AMX permission asked from the OS once). */
enum cpu_level cpu_level_detect(void);
/* Fill t up to `level` (which must be <= cpu_level_detect()). */
void cpu_kernels_fill(struct cpu_kernels *t, enum cpu_level level);

/* Each level's part of the table (portable fills everything). */
void cpu_fill_portable(struct cpu_kernels *t);
void cpu_fill_avx2(struct cpu_kernels *t);
void cpu_fill_avx_vnni(struct cpu_kernels *t); /* matmuls of avx2 where the CPU has AVX-VNNI */
void cpu_fill_avx512(struct cpu_kernels *t);
void cpu_fill_amx(struct cpu_kernels *t);

/* Draw one token from logits x[n] (overwritten as scratch) with the whole chain of ops/sample.h. Written once over the
 * vocabulary kernels above (ops/cpu/sample.c); scratch: cpu_sample_scratch_bytes(n), 64-byte aligned. */
void cpu_sample(const struct cpu_kernels *t, float *x, int64_t n, const struct sample_pos *pos, void *scratch,
                struct draw *out);
size_t cpu_sample_scratch_bytes(int64_t n_vocab);

/* Packing (ops/cpu/pack.c): file layout to packed layout, rows [blk0*16, ...) of one matrix; dst is block blk0.
 * codes: the file's u32 words [n][words]; scales/biases [n][k/g]. For CPU_W_F: elements [n][k]. Any thread. */
struct pack_source {
    struct quant_spec spec;   /* QUANT_NONE for float weights */
    enum dtype dt;            /* of scales and biases, or of the elements */
    int64_t n, k;
    const void *w, *scales, *biases;
    bool turned;              /* the file has [k][n], quantised along n; n is whole groups */
    int64_t row_step;         /* row o of the matrix is row o * row_step of the file; 0 = 1 */
    enum dtype block_dt;      /* as struct weight_source has them */
    int64_t row0;
};
void cpu_pack_blocks(const struct pack_source *src, int64_t blk0, int64_t blk1, uint8_t *dst);
/* One element of a matrix in an fp format (mxfp4, mxfp8, nvfp4, block-scaled float8), exact: what the packed form yields too. */
float cpu_fp_value(const struct pack_source *src, int64_t row, int64_t k);
/* A row of it as bfloat16, [k]: the same values, rounded where that type ends; row counts as the file's. */
void cpu_fp_row(const struct pack_source *src, int64_t row, uint16_t *out);
/* What src becomes: fills type, dt, g, n, k, block_bytes. MB_UNSUPPORTED names the scheme. */
mb_status cpu_pack_plan(const struct pack_source *src, struct cpu_weight *out, mb_error *err);

#endif
