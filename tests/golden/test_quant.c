/* test_quant.c: weights as mlx.core.quantize writes them (tests/golden/quant_affine): the float32 reference, and the packed
 * form read back on every CPU level, for each mode, width, group and scale type. */
#include "kernels/kt.h"

#include "base/filemap.h"
#include "base/json.h"
#include "format/quantise.h"
#include "format/quant.h"

#define FOLDER "tests/golden/quant_affine/"

static json_t *golden;
static struct filemap blobs;
static struct cpu_kernels level[CPU_LEVEL_COUNT];
static int n_level;

static int setup(void **state)
{
    mb_error err;
    n_level = kt_levels(level);
    if (json_read_file(&golden, FOLDER "quant.json", 1 << 20, &err) != MB_OK) return -1;
    return filemap_open(&blobs, FOLDER "quant.bin", &err) == MB_OK ? 0 : -1;
}

static int teardown(void **state)
{
    json_decref(golden);
    filemap_close(&blobs);
    return 0;
}

static const json_t *field(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    if (!v) fail_msg("quant.json: no %s", name);
    return v;
}

static const void *blob_at(const json_t *c, const char *name)
{
    const json_t *b = field(c, name);
    size_t off = (size_t)json_integer_value(field(b, "off")), size = (size_t)json_integer_value(field(b, "size_bytes"));
    assert_true(off % 16 == 0 && off + size <= blobs.size_bytes);
    return blobs.data + off;
}

static enum quant_mode mode_of(const char *name)
{
    if (strcmp(name, "affine") == 0) return QUANT_AFFINE;
    if (strcmp(name, "mxfp4") == 0) return QUANT_MXFP4;
    if (strcmp(name, "mxfp8") == 0) return QUANT_MXFP8;
    assert_string_equal(name, "nvfp4");
    return QUANT_NVFP4;
}

struct problem {
    struct pack_source src;
    const float *want; /* [n][k] */
    char name[64];
};

static struct problem problem_of(const json_t *c)
{
    struct problem p = { 0 };
    const char *mode = json_string_value(field(c, "mode")), *input = json_string_value(field(c, "input"));
    int bits = (int)json_integer_value(field(c, "bits")), g = (int)json_integer_value(field(c, "group_size"));
    p.src.spec = (struct quant_spec){ mode_of(mode), bits, g };
    p.src.dt = DT_U8;
    if (p.src.spec.mode == QUANT_AFFINE) {
        assert_true(dtype_parse(input, strlen(input), &p.src.dt));
        p.src.biases = blob_at(c, "biases");
    }
    p.src.n = json_integer_value(field(golden, "n_rows"));
    p.src.k = json_integer_value(field(golden, "n_in"));
    p.src.w = blob_at(c, "codes");
    p.src.scales = blob_at(c, "scales");
    p.want = blob_at(c, "dequantised");
    snprintf(p.name, sizeof p.name, "%s %d bits g %d %s", mode, bits, g, input);
    return p;
}

static float value_of(enum dtype dt, const void *p, int64_t i)
{
    if (dt == DT_F32) return ((const float *)p)[i];
    uint16_t h = ((const uint16_t *)p)[i];
    return dt == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Ours rounds once (fma), the oracle's numpy twice: 1 ulp of the larger term. The fp modes are exact. */
static float tolerance(const struct problem *p, int64_t i)
{
    const struct quant_spec *s = &p->src.spec;
    if (s->mode != QUANT_AFFINE) return 0.0f;
    int64_t r = i / p->src.k, k = i % p->src.k, gr = r * (p->src.k / s->group_size) + k / s->group_size;
    const uint32_t *row = (const uint32_t *)p->src.w + r * quant_row_words(s, p->src.k);
    float term = fabsf(value_of(p->src.dt, p->src.scales, gr) * (float)quant_code_get(row, s->bits, k));
    float bias = fabsf(value_of(p->src.dt, p->src.biases, gr));
    return 0x1p-23f * (term > bias ? term : bias);
}

static void expect_near(const struct problem *p, const float *got, int64_t first, int64_t n, const char *how)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - p->want[first + i]) <= tolerance(p, first + i)))
            fail_msg("%s, %s: element %d: want %.9g, got %.9g", p->name, how, (int)(first + i), (double)p->want[first + i], (double)got[i]);
}

static void check_packed(const struct problem *p, const struct cpu_kernels *t)
{
    struct cpu_weight w;
    mb_error err;
    int64_t blocks = (p->src.n + 15) / 16;
    assert_int_equal(cpu_pack_plan(&p->src, &w, &err), MB_OK);
    struct kt_buf packed = kt_alloc((size_t)blocks * w.block_bytes), row = kt_alloc((size_t)p->src.k * 4);
    cpu_pack_blocks(&p->src, 0, blocks, packed.p);
    w.data = packed.p;
    for (int64_t r = 0; r < p->src.n; r++) {
        t->gather_row(&w, r, (float *)row.p);
        expect_near(p, (float *)row.p, r * p->src.k, p->src.k, t->level);
    }
    kt_free(&packed);
    kt_free(&row);
}

/* ENG-014: every composition is measured against its own oracle; here mlx.core.quantize, all modes, widths and groups. */
/* REG-169 REG-170 */
static void test_quant_equals_mlx(void **state)
{
    const json_t *cases = field(golden, "cases");
    int n_mode[QUANT_TRELLIS + 1] = { 0 };
    for (size_t i = 0; i < json_array_size(cases); i++) {
        struct problem p = problem_of(json_array_get(cases, i));
        size_t n = (size_t)(p.src.n * p.src.k);
        n_mode[p.src.spec.mode]++;
        float *out = malloc(n * sizeof *out);
        assert_non_null(out);
        if (quant_is_fp(&p.src.spec)) quant_fp_dequantise(&p.src.spec, p.src.w, p.src.scales, p.src.n, p.src.k, out);
        else quant_affine_dequantise(&p.src.spec, p.src.w, p.src.scales, p.src.biases, p.src.dt, p.src.n, p.src.k, out);
        expect_near(&p, out, 0, (int64_t)n, "float32 reference");
        free(out);
        for (int l = 0; l < n_level; l++) check_packed(&p, &level[l]);
    }
    assert_int_equal(n_mode[QUANT_AFFINE], 24);
    assert_true(n_mode[QUANT_MXFP4] && n_mode[QUANT_NVFP4] && n_mode[QUANT_MXFP8]);
}

/* One affine case: each row out of the matrix that was quantised, at addresses of any kind. */
static void quantise_case(const json_t *c, const struct problem *p)
{
    const struct quant_spec *s = &p->src.spec;
    int64_t k = p->src.k;
    size_t size = (size_t)dtype_get(p->src.dt)->size_bytes, n_codes = 4 * (size_t)quant_row_words(s, k);
    size_t n_scale = size * (size_t)(k / s->group_size);
    const json_t *in = field(field(golden, "inputs"), json_string_value(field(c, "input")));
    const uint8_t *input = blobs.data + json_integer_value(field(in, "off"));
    float *row = malloc(sizeof(float) * (size_t)k);
    uint8_t *codes = malloc(n_codes + 1), *scales = malloc(n_scale + 1), *biases = malloc(n_scale + 1);
    for (size_t r = 0; r < (size_t)p->src.n; r++) {
        for (int64_t j = 0; j < k; j++) row[j] = dtype_float_at(input, p->src.dt, (int64_t)r * k + j);
        assert_true(quantise_row(s, row, k, p->src.dt, codes + 1, scales + 1, biases + 1));
        assert_memory_equal(codes + 1, (const uint8_t *)p->src.w + r * n_codes, n_codes);
        assert_memory_equal(scales + 1, (const uint8_t *)p->src.scales + r * n_scale, n_scale);
        assert_memory_equal(biases + 1, (const uint8_t *)p->src.biases + r * n_scale, n_scale);
    }
    for (int i = 0; i < 2; i++) {
        row[k - 1] = i ? __builtin_nanf("") : -__builtin_inff();
        assert_false(quantise_row(s, row, k, p->src.dt, codes + 1, scales + 1, biases + 1));
    }
    free(row);
    free(codes);
    free(scales);
    free(biases);
}

/* REG-172 REG-173 REG-174: codes, scales and biases of mlx.core.quantize, bit for bit. */
static void test_quantise_rows(void **state)
{
    size_t i, n_affine = 0;
    json_t *c;
    json_array_foreach((json_t *)field(golden, "cases"), i, c)
    {
        struct problem p = problem_of(c);
        if (p.src.spec.mode != QUANT_AFFINE) continue;
        quantise_case(c, &p);
        n_affine++;
    }
    assert_int_equal(n_affine, 24);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quant_equals_mlx),
        cmocka_unit_test(test_quantise_rows),
    };
    kt_seed();
    return cmocka_run_group_tests(tests, setup, teardown);
}
