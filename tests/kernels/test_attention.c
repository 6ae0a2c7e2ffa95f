/* test_attention.c: pages and attention. Portable against softmax in float64; every level against portable, bit for bit;
 * rows cut into units of any size; windows and chunk edges; NaN in every key that a row must not see. */
#include "kernels/kt.h"

static struct cpu_kernels plain, level[CPU_LEVEL_COUNT];
static int n_level;

static int setup(void **state)
{
    (void)state;
    cpu_fill_portable(&plain);
    n_level = kt_levels(level);
    return 0;
}

static void test_pages(void **state)
{
    (void)state;
    static const int dims[] = { 64, 128, 80, 96, 32, 256, 16, 112, 512 };
    for (int c = 0; c < 108; c++) {
        enum kv_format f = (enum kv_format)(c % 3);
        int64_t d = dims[c / 3 % 9];
        size_t size = kv_head_bytes(f, d);
        struct kt_buf want = kt_alloc(size);
        float k[512], v[512], k2[512], v2[512];
        memset(want.p, 0, size);
        for (int key = 0; key < 64; key += 1 + kt_below(5)) {
            for (int64_t i = 0; i < d; i++) {
                k[i] = kt_value();
                v[i] = c & 8 ? ldexpf(kt_unit(), -kt_below(40) + 17) : kt_value();
            }
            if (c % 5 == 0) v[kt_below((int)d)] = NAN;
            plain.kv_write(f, d, key, k, v, want.p);
            plain.kv_read(f, d, key, want.p, k2, v2);
            for (int64_t i = 0; i < d; i++) {
                float e = f == KV_F32 ? k[i] : f == KV_BF16 ? bf16_to_f32(f32_to_bf16(k[i])) : f16_to_f32(f32_to_f16(k[i]));
                kt_expect_same(&e, &k2[i], 1, "page key");
                e = f == KV_F32 ? v[i] : f == KV_BF16 ? bf16_to_f32(f32_to_bf16(v[i])) : f16_to_f32(f32_to_f16(v[i]));
                kt_expect_same(&e, &v2[i], 1, "page value");
            }
            for (int l = 0; l < n_level; l++) {
                struct kt_buf got = kt_alloc(size);
                memcpy(got.p, want.p, size);
                level[l].kv_write(f, d, key, v, k, got.p); /* something else first */
                level[l].kv_write(f, d, key, k, v, got.p);
                level[l].kv_read(f, d, key, got.p, k2, v2);
                if (c % 5 != 0 && memcmp(want.p, got.p, size) != 0) fail_msg("%s: page bytes f %d d %d", level[l].level, f, (int)d);
                kt_expect_same(&k[0], f == KV_F32 ? &k2[0] : &k[0], 1, "read");
                kt_free(&got);
            }
        }
        kt_free(&want);
    }
}

/* Sixteen tokens together are what they are one by one, and nothing beside them is touched. */
static void test_pages_of_16(void **state)
{
    (void)state;
    static const int dims[] = { 64, 128, 80, 96, 32, 256, 16, 112, 40 };
    int n_done = 0;
    for (int c = 0; c < 108; c++) {
        enum kv_format f = (enum kv_format)(c % 3);
        int64_t d = dims[c / 3 % 9], ld = d + kt_below(5);
        int first = 16 * kt_below(4);
        size_t size = kv_head_bytes(f, d);
        struct kt_buf want = kt_alloc(size), k = kt_alloc((size_t)(16 * ld) * 4), v = kt_alloc((size_t)(16 * ld) * 4);
        for (int64_t i = 0; i < 16 * ld; i++) {
            ((float *)k.p)[i] = kt_value();
            ((float *)v.p)[i] = c % 5 == 0 && kt_below(50) == 0 ? NAN : ldexpf(kt_unit(), -kt_below(40) + 17);
        }
        memset(want.p, 0x5a, size);
        for (int i = 0; i < 16; i++) plain.kv_write(f, d, first + i, (float *)k.p + i * ld, (float *)v.p + i * ld, want.p);
        for (int l = 0; l < n_level; l++) {
            if (!level[l].kv_write_16) continue;
            struct kt_buf got = kt_alloc(size);
            memset(got.p, 0x5a, size);
            n_done++;
            level[l].kv_write_16(f, d, first, (float *)k.p, ld, (float *)v.p, ld, got.p);
            if (c % 5 != 0 && memcmp(want.p, got.p, size) != 0) fail_msg("%s: 16 tokens f %d d %d", level[l].level, f, (int)d);
            for (int i = 0; i < 16; i++) {
                float a[2][256], b[2][256];
                plain.kv_read(f, d, first + i, want.p, a[0], a[1]);
                plain.kv_read(f, d, first + i, got.p, b[0], b[1]);
                kt_expect_same(a[0], b[0], (size_t)d, "key of 16");
                kt_expect_same(a[1], b[1], (size_t)d, "value of 16");
            }
            kt_free(&got);
        }
        kt_free(&want);
        kt_free(&k);
        kt_free(&v);
    }
    if (n_done == 0) skip(); /* no level of this machine has a way of its own */
}

/* T1.18, CFG-076: codes. An element is at most half a step from what was written, and a step is what the group's range says, but for
 * the rounding of scale and offset to bfloat16; every level writes the same bytes, and none of another token's. */
static void test_code_pages(void **state)
{
    (void)state;
    static const int dims[] = { 64, 128, 96, 32, 256, 512, 160 };
    for (int c = 0; c < 84; c++) {
        enum kv_format f = c & 1 ? KV_Q4 : KV_Q8;
        int64_t d = dims[c / 2 % 7];
        int group = kv_code_group(d);
        size_t size = kv_head_bytes(f, d);
        struct kt_buf want = kt_alloc(size), got = kt_alloc(size);
        float x[2][512], y[2][512], top = f == KV_Q8 ? 255.0f : 15.0f;
        memset(want.p, 0x5a, size);
        memcpy(got.p, want.p, size);
        for (int key = 0; key < 64; key += 1 + kt_below(5)) {
            for (int w = 0; w < 2; w++)
                for (int64_t i = 0; i < d; i++)
                    x[w][i] = c % 7 == 3 ? 1.5f : c % 7 == 4 ? 0.0f : c % 7 == 5 ? 300.0f + kt_value() : ldexpf(kt_value(), -kt_below(c % 7 == 6 ? 140 : 6));
            bool bad = c % 9 == 8;
            if (bad) x[key & 1][kt_below((int)d)] = key & 2 ? NAN : INFINITY;
            plain.kv_write(f, d, key, x[0], x[1], want.p);
            plain.kv_read(f, d, key, want.p, y[0], y[1]);
            for (int w = 0; w < 2; w++)
                for (int64_t g = 0; g < d; g += group) {
                    float lo = INFINITY, hi = -INFINITY, sum = 0.0f;
                    for (int64_t i = g; i < g + group; i++) {
                        lo = fminf(lo, x[w][i]);
                        hi = fmaxf(hi, x[w][i]);
                        sum += x[w][i] - x[w][i];
                    }
                    double step = 1.01 * ((double)hi - (double)lo + fabs((double)lo) / 128) / (double)top + 1e-29;
                    for (int64_t i = g; i < g + group; i++) {
                        if (sum != sum && y[w][i] == y[w][i]) fail_msg("a group with a value that is not finite must be NaN");
                        if (sum == sum && !(fabs((double)(x[w][i] - y[w][i])) <= step / 2 + 1e-6 * fabs((double)x[w][i]))) fail_msg("f %d d %d: %g became %g, step %g", f, (int)d, (double)x[w][i], (double)y[w][i], step);
                    }
                }
            for (int l = 0; l < n_level; l++) {
                memcpy(got.p, want.p, size);
                level[l].kv_write(f, d, key, x[1], x[0], got.p); /* something else first */
                level[l].kv_write(f, d, key, x[0], x[1], got.p);
                if (memcmp(want.p, got.p, size) != 0) fail_msg("%s: page bytes f %d d %d", level[l].level, f, (int)d);
            }
        }
        kt_free(&want);
        kt_free(&got);
    }
    for (int f = KV_Q8; f <= KV_Q4; f++) { /* a byte that two tokens share would be lost between two threads */
        size_t size = kv_head_bytes((enum kv_format)f, 96);
        struct kt_buf a = kt_alloc(size), b = kt_alloc(size);
        uint8_t *owner = calloc(size, 1);
        float x[96];
        for (int key = 0; key < 64; key++) {
            memset(a.p, 0, size);
            memset(b.p, 0xff, size);
            for (int i = 0; i < 96; i++) x[i] = kt_value();
            plain.kv_write((enum kv_format)f, 96, key, x, x, a.p);
            plain.kv_write((enum kv_format)f, 96, key, x, x, b.p);
            for (size_t i = 0; i < size; i++) owner[i] += a.p[i] != 0 || b.p[i] != 0xff;
        }
        for (size_t i = 0; i < size; i++)
            if (owner[i] > 1) fail_msg("byte %zu belongs to %d tokens", i, owner[i]);
        free(owner);
        kt_free(&a);
        kt_free(&b);
    }
}

/* A sequence of keys in pages, and queries. */
struct seq {
    enum kv_format f;
    int64_t d;
    int n_key, n_row;
    struct kt_buf pages, q;
    float *k, *v; /* as stored, float32 */
    int32_t *lo, *hi; /* absolute visible ranges */
    float softcap;
};

#define MAX_SPLITS 4
#define MAX_AHEAD 512

static void expect_nan_rest(struct seq *s)
{
    size_t area = kv_head_bytes(s->f, s->d);
    memset(s->pages.p, 0xff, area * 8 * MAX_SPLITS); /* every unwritten key is a NaN */
}

static struct seq seq_make(enum kv_format f, int64_t d, int n_key, int n_row, int window, float softcap)
{
    struct seq s = { .f = f, .d = d, .n_key = n_key, .n_row = n_row, .softcap = softcap };
    size_t area = kv_head_bytes(f, d);
    s.pages = kt_alloc(area * 8 * MAX_SPLITS);
    s.q = kt_alloc((size_t)(n_row * d) * 4);
    s.k = malloc((size_t)(n_key * d) * 4);
    s.v = malloc((size_t)(n_key * d) * 4);
    s.lo = malloc((size_t)n_row * 4);
    s.hi = malloc((size_t)n_row * 4);
    expect_nan_rest(&s);
    for (int i = 0; i < n_key; i++) {
        float k[512], v[512];
        for (int64_t j = 0; j < d; j++) {
            k[j] = kt_value();
            v[j] = kt_value();
        }
        plain.kv_write(f, d, i % 64, k, v, s.pages.p + (size_t)(i / 64) * area);
        plain.kv_read(f, d, i % 64, s.pages.p + (size_t)(i / 64) * area, s.k + i * d, s.v + i * d);
    }
    float c = (float)((softcap > 0.0f ? 1.0 : 1.4426950408889634) / sqrt((double)d));
    for (int64_t i = 0; i < n_row * d; i++) ((float *)s.q.p)[i] = kt_value() * 2.0f * c;
    for (int r = 0; r < n_row; r++) {
        int at = n_key - 1 - (n_row - 1 - r) / 3; /* three query heads a token, causal */
        if (at < 0) at = 0;
        s.hi[r] = at + 1;
        s.lo[r] = window > 0 && at + 1 > window ? at + 1 - window : 0;
    }
    return s;
}

static void seq_free(struct seq *s)
{
    kt_free(&s->pages);
    kt_free(&s->q);
    free(s->k);
    free(s->v);
    free(s->lo);
    free(s->hi);
}

/* One row in four sees other keys than its neighbours do, or none. */
static void ranges_ragged(struct seq *s)
{
    for (int r = 0; r < s->n_row; r++) {
        if (kt_below(4) != 0) continue;
        s->lo[r] = kt_below(s->n_key);
        s->hi[r] = s->lo[r] + kt_below(s->n_key - s->lo[r] + 1);
    }
}

/* Hints change nothing, whatever they are. */
static void hints_draw(struct attn_unit *u, const struct seq *s, struct attn_lines ahead[MAX_AHEAD])
{
    size_t area = kv_head_bytes(s->f, s->d);
    if (kt_below(2) == 0) u->page_after = s->pages.p + (size_t)kt_below(8 * MAX_SPLITS) * area;
    u->ahead = ahead;
    u->n_ahead = kt_below(2) == 0 ? kt_below(MAX_AHEAD + 1) : 0;
    for (int i = 0; i < u->n_ahead; i++)
        ahead[i] = (struct attn_lines){ s->pages.p + (size_t)kt_below((int)s->pages.size), 64 * (size_t)(1 + kt_below(2)), 1 + kt_below(200) };
}

/* Rows [r0, r1) on one level through all splits; out [r1 - r0][d]. Rows of o with and without room between them. */
static void seq_attend(const struct cpu_kernels *t, const struct seq *s, int r0, int r1, float *out)
{
    int n = r1 - r0;
    int64_t d = s->d, ld_o = d + kt_below(2) * kt_below(9);
    size_t area = kv_head_bytes(s->f, d);
    float *M = malloc((size_t)n * 4), *L = calloc((size_t)n, 4), *O = calloc((size_t)(n * d), 4);
    for (int r = 0; r < n; r++) M[r] = -INFINITY;
    for (int sp = 0; sp < MAX_SPLITS; sp++) {
        struct kt_buf m = kt_alloc((size_t)n * 4), ls = kt_alloc((size_t)n * 4), o = kt_alloc((size_t)(n * ld_o) * 4),
                      scratch = kt_alloc(attn_scratch_bytes(n, d, 0));
        memset(scratch.p, 0xff, scratch.size); /* NaN */
        int32_t *lo = malloc((size_t)n * 4), *hi = malloc((size_t)n * 4);
        struct attn_lines ahead[MAX_AHEAD];
        struct attn_unit u = { .d = d, .n_rows = n, .q = (float *)s->q.p + r0 * d, .ld_q = d, .format = s->f, .vis_lo = lo,
                               .vis_hi = hi, .softcap = s->softcap, .m = (float *)m.p, .ls = (float *)ls.p, .o = (float *)o.p,
                               .ld_o = ld_o, .scratch = scratch.p };
        bool used[8] = { false };
        for (int r = 0; r < n; r++) {
            int a = s->lo[r0 + r] - 512 * sp, b = s->hi[r0 + r] - 512 * sp;
            lo[r] = a < 0 ? 0 : a;
            hi[r] = b > 512 ? 512 : b;
            for (int p = lo[r] / 64; p < 8 && p * 64 < hi[r]; p++) used[p] = used[p] || lo[r] < hi[r];
        }
        for (int p = 0; p < 8; p++) u.page[p] = used[p] ? s->pages.p + (size_t)(8 * sp + p) * area : NULL;
        hints_draw(&u, s, ahead);
        t->attend_unit(&u);
        for (int r = 0; r < n; r++) {
            t->attend_merge(d, u.m[r], u.ls[r], u.o + r * ld_o, &M[r], &L[r], O + r * d);
            for (int64_t j = (r * ld_o + d) * 4; j < (r + 1) * ld_o * 4; j++)
                if (o.p[j] != KT_FILL) fail_msg("%s: wrote between rows of o", t->level);
        }
        kt_free(&m);
        kt_free(&ls);
        kt_free(&o);
        kt_free(&scratch);
        free(lo);
        free(hi);
    }
    for (int r = 0; r < n; r++) t->attend_finish(d, L[r], O + r * d, out + r * d);
    free(M);
    free(L);
    free(O);
}

/* softmax(q k) v in float64 (q carries log2 e, or the scale alone under a soft cap). */
static double naive_output(const struct seq *s, int r, int64_t dim)
{
    double score[512 * MAX_SPLITS], top = -INFINITY, sum = 0, out = 0;
    for (int j = s->lo[r]; j < s->hi[r]; j++) {
        double a = 0;
        for (int64_t i = 0; i < s->d; i++) a += (double)((float *)s->q.p)[r * s->d + i] * (double)s->k[j * s->d + i];
        if (s->softcap > 0.0f) a = (double)s->softcap * tanh(a / (double)s->softcap) * 1.4426950408889634;
        score[j] = a;
        if (a > top) top = a;
    }
    for (int j = s->lo[r]; j < s->hi[r]; j++) {
        double p = exp2(score[j] - top);
        sum += p;
        out += p * (double)s->v[j * s->d + dim];
    }
    return sum > 0 ? out / sum : 0.0;
}

static void check(enum kv_format f, int64_t d, int n_key, int n_row, int window, float softcap)
{
    struct seq s = seq_make(f, d, n_key, n_row, window, softcap);
    if (n_row > 2 && kt_below(2) == 0) ranges_ragged(&s);
    int n_cut = n_row > 50 ? 60 : 14;
    float *want = malloc((size_t)(n_row * d) * 4), *got = malloc((size_t)(n_row * d) * 4);
    char what[160];
    seq_attend(&plain, &s, 0, n_row, want);
    for (int r = 0; r < n_row; r += 1 + n_row / 6)
        for (int64_t i = 0; i < d; i += 1 + d / 7) {
            double v = naive_output(&s, r, i);
            if (!(fabs(v - (double)want[r * d + i]) < 1e-4 * (1.0 + fabs(v)))) fail_msg("portable row %d dim %d: want %g got %g", r, (int)i, v, (double)want[r * d + i]);
        }
    for (int l = 0; l < n_level; l++) {
        snprintf(what, sizeof what, "%s f %d d %d keys %d rows %d window %d cap %g", level[l].level, f, (int)d, n_key, n_row,
                 window, (double)softcap);
        seq_attend(&level[l], &s, 0, n_row, got);
        kt_expect_same(want, got, (size_t)(n_row * d), what);
        for (int r = 0; r < n_row;) { /* any cut of the rows: same bits */
            int n = 1 + kt_below(n_row - r < n_cut ? n_row - r : n_cut);
            seq_attend(&level[l], &s, r, r + n, got);
            kt_expect_same(want + r * d, got, (size_t)(n * d), what);
            r += n;
        }
    }
    free(want);
    free(got);
    seq_free(&s);
}

static void test_attention_levels(void **state)
{
    (void)state;
    static const int dims[] = { 64, 128, 256, 80, 96, 32, 512 };
    static const int keys[] = { 1, 63, 64, 65, 200, 511, 512, 513, 700, 1100, 2000 };
    for (int c = 0; c < 77; c++)
        check((enum kv_format)(c % 3), dims[c % 7], keys[c % 11], 1 + kt_below(c % 4 == 0 ? 50 : 9),
              c % 5 == 1 ? 100 : c % 5 == 3 ? 1 + kt_below(700) : 0, c % 7 == 2 ? 20.0f : 0.0f);
}

/* As many rows as a chunk of a prompt brings, and values that are not finite where some of them look. */
static void test_attention_many(void **state)
{
    (void)state;
    static const int dims[] = { 64, 128, 80, 256 }, keys[] = { 513, 64, 700, 1100, 200 };
    for (int c = 0; c < 12; c++)
        check((enum kv_format)(c % 3), dims[c % 4], keys[c % 5], 51 + kt_below(c % 4 == 0 ? 160 : 30),
              c % 3 == 1 ? 1 + kt_below(100) : 0, c % 7 == 2 ? 20.0f : 0.0f);
    for (int c = 0; c < 6; c++) {
        struct seq s = seq_make((enum kv_format)(c % 3), 64, 300, 90, c & 1 ? 20 : 0, 0.0f);
        if (c > 3) ranges_ragged(&s);
        float k[64], v[64], want[90 * 64], got[90 * 64];
        int bad = s.n_key - 10;
        for (int i = 0; i < 64; i++) k[i] = v[i] = 0.5f;
        v[3] = c & 2 ? NAN : INFINITY;
        plain.kv_write(s.f, 64, bad % 64, k, v, s.pages.p + (size_t)(bad / 64) * kv_head_bytes(s.f, 64));
        seq_attend(&plain, &s, 0, s.n_row, want);
        for (int l = 0; l < n_level; l++) {
            seq_attend(&level[l], &s, 0, s.n_row, got);
            kt_expect_same(want, got, 90 * 64, level[l].level);
        }
        seq_free(&s);
    }
}

static void test_code_levels(void **state)
{
    (void)state;
    static const int dims[] = { 64, 128, 96, 32, 256, 512 };
    static const int keys[] = { 1, 63, 64, 65, 200, 511, 513, 700, 1100 };
    for (int c = 0; c < 54; c++)
        check(c & 1 ? KV_Q4 : KV_Q8, dims[c / 2 % 6], keys[c % 9], 1 + kt_below(c % 4 == 0 ? 50 : 9),
              c % 5 == 1 ? 100 : c % 5 == 3 ? 1 + kt_below(700) : 0, c % 7 == 2 ? 20.0f : 0.0f);
}

/* A visible NaN key makes exactly the rows that see it NaN, on every level. */
static void test_attention_nan_key(void **state)
{
    (void)state;
    for (int c = 0; c < 2 * KV_FORMAT_COUNT; c++) {
        struct seq s = seq_make((enum kv_format)(c % KV_FORMAT_COUNT), 64, 300, 24, c & 1 ? 40 : 0, 0.0f);
        int bad = s.n_key - 3;
        float k[64], v[64], out[24 * 64];
        for (int i = 0; i < 64; i++) k[i] = v[i] = 0.5f;
        k[7] = NAN;
        plain.kv_write(s.f, 64, bad % 64, k, v, s.pages.p + (size_t)(bad / 64) * kv_head_bytes(s.f, 64));
        for (int l = 0; l < n_level; l++) {
            seq_attend(&level[l], &s, 0, s.n_row, out);
            for (int r = 0; r < s.n_row; r++) {
                bool sees = s.lo[r] <= bad && bad < s.hi[r];
                for (int i = 0; i < 64; i++)
                    if ((out[r * 64 + i] != out[r * 64 + i]) != sees) fail_msg("%s: row %d sees %d", level[l].level, r, sees);
            }
        }
        seq_free(&s);
    }
}

static void bench_one(enum kv_format f, int64_t d, int n_row, const char *name)
{
    struct seq s = seq_make(f, d, 512, n_row, 0, 0.0f);
    for (int l = 0; l < n_level; l++) {
        struct kt_buf m = kt_alloc((size_t)n_row * 4), ls = kt_alloc((size_t)n_row * 4), o = kt_alloc((size_t)(n_row * d) * 4),
                      scratch = kt_alloc(attn_scratch_bytes(n_row, d, 0));
        int32_t lo[64] = { 0 }, hi[64];
        for (int r = 0; r < n_row; r++) hi[r] = 512;
        struct attn_unit u = { .d = d, .n_rows = n_row, .q = (float *)s.q.p, .ld_q = d, .format = f, .vis_lo = lo, .vis_hi = hi,
                               .m = (float *)m.p, .ls = (float *)ls.p, .o = (float *)o.p, .ld_o = d, .scratch = scratch.p };
        for (int p = 0; p < 8; p++) u.page[p] = s.pages.p + (size_t)p * kv_head_bytes(f, d);
        double t;
        KT_TIME(t, level[l].attend_unit(&u));
        printf("%-9s attend %s d %3lld rows %2d: %7.1f GFLOP/s, %6.1f GB/s of keys and values\n", level[l].level, name, (long long)d,
               n_row, 4e-9 * (double)(d * 512 * n_row) / t, 8e-9 * (double)kv_head_bytes(f, d) / t);
        kt_free(&m);
        kt_free(&ls);
        kt_free(&o);
        kt_free(&scratch);
    }
    seq_free(&s);
}

int main(int argc, char **argv)
{
    kt_seed();
    if (kt_bench_asked(argc, argv)) {
        setup(NULL);
        bench_one(KV_BF16, 64, 1, "bf16");
        bench_one(KV_BF16, 64, 3, "bf16");
        bench_one(KV_BF16, 64, 48, "bf16");
        bench_one(KV_F16, 128, 4, "f16 ");
        bench_one(KV_BF16, 128, 48, "bf16");
        bench_one(KV_F32, 64, 48, "f32 ");
        for (int i = 0; i < 5; i++) {
            static const int shapes[5][2] = { { 64, 1 }, { 64, 3 }, { 64, 48 }, { 128, 4 }, { 128, 48 } };
            bench_one(KV_F16, shapes[i][0], shapes[i][1], "f16 ");
            bench_one(KV_Q8, shapes[i][0], shapes[i][1], "8   ");
            bench_one(KV_Q4, shapes[i][0], shapes[i][1], "4   ");
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_pages_of_16),
        cmocka_unit_test(test_code_pages),
        cmocka_unit_test(test_attention_levels),
        cmocka_unit_test(test_attention_many),
        cmocka_unit_test(test_code_levels),
        cmocka_unit_test(test_attention_nan_key),
    };
    return cmocka_run_group_tests_name("attention", tests, setup, NULL);
}
