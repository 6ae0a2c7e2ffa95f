/* quant_config.c: the "quantization" entry of config.json: how each module is packed.
 *
 * The entry mixes the global numbers (group_size, bits, mode) with one key a module that differs: an object with its
 * own numbers, `false` for a module left in floats, `true` for the global numbers. The same module is written with
 * different prefixes by different tools, so both the stored keys and every question lose them first (B-113).
 * Foreign schemes under "quantization_config" are refused by name. Whether the packed shapes agree with the answer is
 * checked where the tensors are bound (model/bind_source.c).
 */
#include "format/quant.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/fp8.h"
#include "format/trellis.h"

#define MAX_OVERRIDES 1000000

struct override_entry {
    char *path; /* without prefix; owned */
    struct quant_spec spec;
};

struct quant_config {
    struct quant_spec global;
    struct override_entry *overrides; /* sorted by path */
    size_t n_overrides;
};

/* --- modes: name, what is assumed when the numbers are missing, what is allowed --- */

struct mode_row {
    const char *name;
    enum quant_mode mode;
    int default_bits, default_group;
    bool fixed; /* the scheme has no other bits and group */
};

static const struct mode_row mode_rows[] = {
    { "affine", QUANT_AFFINE, 4, 64, false }, { "mxfp4", QUANT_MXFP4, 4, 32, true },
    { "mxfp8", QUANT_MXFP8, 8, 32, true },    { "nvfp4", QUANT_NVFP4, 4, 16, true },
    { "trellis", QUANT_TRELLIS, 4, 64, false },
};

static const struct mode_row *mode_find(const char *name)
{
    for (size_t i = 0; i < sizeof mode_rows / sizeof mode_rows[0]; i++)
        if (strcmp(mode_rows[i].name, name) == 0) return &mode_rows[i];
    return NULL;
}

static const struct mode_row *mode_of(enum quant_mode mode)
{
    for (size_t i = 0; i < sizeof mode_rows / sizeof mode_rows[0]; i++)
        if (mode_rows[i].mode == mode) return &mode_rows[i];
    return &mode_rows[0];
}

const char *quant_mode_name(enum quant_mode mode)
{
    return mode == QUANT_NONE ? "none" : mode_of(mode)->name;
}

/* --- foreign schemes --- */

struct foreign_row {
    const char *method; /* quantization_config.quant_method */
    const char *text;
};

static const struct foreign_row foreign_rows[] = {
    { "awq", "AWQ" },
    { "gptq", "GPTQ" },
    { "bitsandbytes", "bitsandbytes" },
    { "fp8", "fp8 in another form than blocks of 128 x 128" },
    { "fbgemm_fp8", "fbgemm fp8" },
    { "compressed-tensors", "compressed-tensors" },
    { "aqlm", "AQLM" },
    { "quip", "QuIP#" },
    { "eetq", "EETQ" },
    { "hqq", "HQQ" },
    { "higgs", "HIGGS" },
    { "torchao", "torchao" },
    { "quanto", "quanto" },
    { "vptq", "VPTQ" },
    { "spqr", "SpQR" },
    { "modelopt", "ModelOpt" },
};

/* The one scheme of others that is read: gpt-oss as published. The modules it names stay plain: they have no scales. */
static const char published_mxfp4[] = "mxfp4";

/* Nor have those of block-scaled float8 any entry: what a module is shows by its type (format/fp8.h). */
static bool is_block_fp8(const json_t *entry)
{
    const json_t *block = json_object_get(entry, "weight_block_size");
    const char *method = json_string_value(json_object_get(entry, "quant_method"));
    if (!method || strcmp(method, "fp8") != 0 || json_array_size(block) != 2) return false;
    return json_integer_value(json_array_get(block, 0)) == FP8_BLOCK && json_integer_value(json_array_get(block, 1)) == FP8_BLOCK;
}

static mb_status refuse_foreign(const char *method, mb_error *err)
{
    for (size_t i = 0; i < sizeof foreign_rows / sizeof foreign_rows[0]; i++)
        if (strcmp(foreign_rows[i].method, method) == 0)
            return mb_fail_at(err, MB_UNSUPPORTED, "quantization_config",
                              "config.json: the weights are packed with %s, which is not read; take an MLX conversion "
                              "of this model, or convert its 16-bit weights with `mlx-bun convert MODEL -q`",
                              foreign_rows[i].text);
    return mb_fail_at(err, MB_UNSUPPORTED, "quantization_config",
                      "config.json: quantization_config.quant_method names an unknown scheme; take an MLX conversion of "
                      "this model, or convert its 16-bit weights with `mlx-bun convert MODEL -q`");
}

/* --- reading one spec --- */

static bool is_one_of(int v, const int *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

/* Where is a key for error texts: "quantization" or "quantization.<module>". */
static mb_status spec_check(const struct quant_spec *s, const char *where, mb_error *err)
{
    static const int bits_ok[] = { 2, 3, 4, 5, 6, 8 }, groups_ok[] = { 32, 64, 128 };
    const struct mode_row *row = mode_of(s->mode);
    if (row->fixed && (s->bits != row->default_bits || s->group_size != row->default_group))
        return mb_fail_at(err, MB_BAD_FORMAT, "quantization",
                          "config.json: %s: mode %s has %d bits and groups of %d, found %d bits and groups of %d", where,
                          row->name, row->default_bits, row->default_group, s->bits, s->group_size);
    if (s->mode == QUANT_AFFINE && !is_one_of(s->bits, bits_ok, 6))
        return mb_fail_at(err, MB_BAD_FORMAT, "quantization",
                          "config.json: %s: bits is %d, must be 2, 3, 4, 5, 6 or 8", where, s->bits);
    if (s->mode == QUANT_AFFINE && !is_one_of(s->group_size, groups_ok, 3))
        return mb_fail_at(err, MB_BAD_FORMAT, "quantization",
                          "config.json: %s: group_size is %d, must be 32, 64 or 128", where, s->group_size);
    if (s->mode == QUANT_TRELLIS && !trellis_spec_known(s->bits, s->group_size))
        return mb_fail_at(err, MB_BAD_FORMAT, "quantization",
                          "config.json: %s: mode trellis has 2, 3 or 4 bits in groups of 32, 64 or 128, found %d bits in groups of %d",
                          where, s->bits, s->group_size);
    return MB_OK;
}

static mb_status read_number(const json_t *obj, const char *key, int dflt, const char *where, int *out, mb_error *err)
{
    const json_t *v = json_object_get(obj, key);
    *out = dflt;
    if (!v || json_is_null(v)) return MB_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1024)
        return mb_fail_at(err, MB_BAD_FORMAT, "quantization",
                          "config.json: %s: %s must be a whole number between 0 and 1024", where, key);
    *out = (int)json_integer_value(v);
    return MB_OK;
}

/* An override inherits nothing from the global numbers: mlx hands it to the module as it stands, and what it leaves out
 * has the mode's default (affine, 4 bits, groups of 64). */
static mb_status spec_read(const json_t *obj, const char *where, struct quant_spec *out, mb_error *err)
{
    const json_t *mode = json_object_get(obj, "mode");
    const struct mode_row *row = &mode_rows[0];
    if (mode && !json_is_null(mode)) {
        if (!json_is_string(mode))
            return mb_fail_at(err, MB_BAD_FORMAT, "quantization", "config.json: %s: mode must be a string", where);
        row = mode_find(json_string_value(mode));
        if (!row)
            return mb_fail_at(err, MB_UNSUPPORTED, "quantization",
                              "config.json: %s: unknown quantization mode; known are affine, mxfp4, mxfp8, nvfp4 and "
                              "trellis", where);
    }
    out->mode = row->mode;
    MB_TRY(read_number(obj, "bits", row->default_bits, where, &out->bits, err));
    MB_TRY(read_number(obj, "group_size", row->default_group, where, &out->group_size, err));
    return spec_check(out, where, err);
}

/* --- paths --- */

const char *quant_path_strip(const char *path)
{
    static const char *const prefixes[] = { "model.", "language_model." };
    for (int again = 0; again < 4; again++) {
        const char *before = path;
        for (size_t i = 0; i < 2; i++)
            if (strncmp(path, prefixes[i], strlen(prefixes[i])) == 0) path += strlen(prefixes[i]);
        if (path == before) break;
    }
    return path;
}

static int override_compare(const void *a, const void *b)
{
    return strcmp(((const struct override_entry *)a)->path, ((const struct override_entry *)b)->path);
}

static bool spec_equal(struct quant_spec a, struct quant_spec b)
{
    return a.mode == b.mode && a.bits == b.bits && a.group_size == b.group_size;
}

/* Two keys that name the same module must agree. */
static mb_status overrides_sort(struct quant_config *q, mb_error *err)
{
    if (q->n_overrides == 0) return MB_OK;
    qsort(q->overrides, q->n_overrides, sizeof q->overrides[0], override_compare);
    for (size_t i = 1; i < q->n_overrides; i++)
        if (strcmp(q->overrides[i - 1].path, q->overrides[i].path) == 0 &&
            !spec_equal(q->overrides[i - 1].spec, q->overrides[i].spec))
            return mb_fail_at(err, MB_BAD_FORMAT, "quantization",
                              "config.json: quantization has two different entries for the module %.200s",
                              q->overrides[i].path);
    return MB_OK;
}

static mb_status override_add(struct quant_config *q, const char *key, const json_t *value, mb_error *err)
{
    struct quant_spec spec = { QUANT_NONE, 0, 0 };
    char where[256];
    snprintf(where, sizeof where, "quantization.%.200s", key);
    if (json_is_object(value)) MB_TRY(spec_read(value, where, &spec, err));
    if (json_is_true(value)) spec = q->global;
    char *path = mb_strdup(quant_path_strip(key));
    if (!path) return mb_fail(err, MB_NO_MEMORY, "config.json: no memory for the quantization overrides");
    q->overrides[q->n_overrides++] = (struct override_entry){ path, spec };
    return MB_OK;
}

static mb_status overrides_read(struct quant_config *q, const json_t *entry, mb_error *err)
{
    size_t n = json_object_size(entry);
    if (n > MAX_OVERRIDES)
        return mb_fail(err, MB_TOO_LARGE, "config.json: quantization has %zu entries, at most %d", n, MAX_OVERRIDES);
    q->overrides = mb_calloc(n + 1, sizeof q->overrides[0]);
    if (!q->overrides) return mb_fail(err, MB_NO_MEMORY, "config.json: no memory for the quantization overrides");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)entry, key, value) {
        if (json_is_object(value) || json_is_boolean(value)) MB_TRY(override_add(q, key, value, err));
    }
    return overrides_sort(q, err);
}

/* --- entry points --- */

/* The entry itself, NULL when the model is plain. */
static mb_status entry_find(const json_t *config, const json_t **entry, mb_error *err)
{
    *entry = json_object_get(config, "quantization");
    if (!*entry || json_is_null(*entry)) *entry = json_object_get(config, "quantization_config");
    if (!*entry || json_is_null(*entry)) {
        *entry = NULL;
        return MB_OK;
    }
    if (!json_is_object(*entry))
        return mb_fail_at(err, MB_BAD_FORMAT, "quantization", "config.json: quantization must be an object");
    const json_t *method = json_object_get(*entry, "quant_method");
    if (method && !json_is_null(method)) {
        if (!json_is_string(method))
            return mb_fail_at(err, MB_BAD_FORMAT, "quantization_config",
                              "config.json: quantization_config.quant_method must be a string");
        if (strcmp(json_string_value(method), published_mxfp4) != 0 && !is_block_fp8(*entry)) return refuse_foreign(json_string_value(method), err);
    }
    return MB_OK;
}

mb_status quant_config_read(struct quant_config **out, const json_t *config, mb_error *err)
{
    *out = NULL;
    const json_t *entry;
    MB_TRY(entry_find(config, &entry, err));
    struct quant_config *q = mb_calloc(1, sizeof *q);
    if (!q) return mb_fail(err, MB_NO_MEMORY, "config.json: no memory for the quantization entry");
    mb_status st = MB_OK;
    if (entry) {
        bool foreign = json_is_string(json_object_get(entry, "quant_method")); /* null says nothing */
        bool has_global = json_object_get(entry, "bits") || json_object_get(entry, "group_size") ||
                          json_object_get(entry, "mode");
        if (is_block_fp8(entry)) q->global = (struct quant_spec){ QUANT_NONE, 0, 0 };
        else if (foreign) q->global = (struct quant_spec){ QUANT_MXFP4, 4, 32 };
        else if (has_global) MB_TRY_GOTO(st, spec_read(entry, "quantization", &q->global, err), done);
        if (!foreign) MB_TRY_GOTO(st, overrides_read(q, entry, err), done);
    }
    *out = q;
    q = NULL;
done:
    quant_config_free(q);
    return st;
}

void quant_config_free(struct quant_config *q)
{
    if (!q) return;
    for (size_t i = 0; i < q->n_overrides; i++) mb_free(q->overrides[i].path);
    mb_free(q->overrides);
    mb_free(q);
}

struct quant_spec quant_config_get(const struct quant_config *q, const char *module_path)
{
    const char *path = quant_path_strip(module_path);
    size_t first = 0, end = q->n_overrides;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        int order = strcmp(path, q->overrides[middle].path);
        if (order == 0) return q->overrides[middle].spec;
        if (order < 0) end = middle;
        else first = middle + 1;
    }
    return q->global;
}
