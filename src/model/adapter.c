/* adapter.c: tensors of an adapter folder to struct lora_module, one a linear of the plan. First every tensor is looked at
 * (adapter_scan), and everything that does not fit is written down; only a folder without a single problem is converted, so
 * that mounting is all or nothing. Both forms end as A [r][k] and scale * B as [r][n] in float32: the same adapter in MLX
 * and in PEFT form gives the same bytes and the same content hash.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "model/adapter_int.h"
#include "model/model_int.h"

enum { NAME_MAX_BYTES = 512 };

/* A linear that may be adapted. */
struct target {
    const char *path;        /* below the model's prefix: "layers.0.self_attn.q_proj" */
    const struct weight *w;
    int64_t first, n_file;   /* rows of a fused matrix that are w's; n_file: of the whole, w->n where it is not fused */
    int32_t i_layer;         /* -1: the head */
    const struct tensor_view *a, *b;
    char module[NAME_MAX_BYTES]; /* whole name, as the tensors spell it */
    int32_t rank;
    double scale;
};

struct scan {
    const struct model *m;
    const struct adapter_config *config;
    int32_t max_rank;
    struct target *targets;  /* arena */
    int32_t n_targets;
    struct arena arena;
    struct buf *problems;    /* NULL: not wanted */
    int32_t n_problems;
    char first[320];         /* the first one, for the error text */
};

static void problem(struct scan *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void problem(struct scan *s, const char *fmt, ...)
{
    char line[640];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (s->n_problems++ == 0) snprintf(s->first, sizeof s->first, "%.300s", line);
    if (s->problems && s->n_problems <= ADAPTER_MAX_PROBLEMS) buf_printf(s->problems, "%s\n", line);
}

/* --- the model's linears --- */

static mb_status add_target(void *ctx, const struct bind_request *r, struct weight *w, mb_error *err)
{
    struct scan *s = ctx;
    int i_layer = -1;
    /* no step adds to a table or to experts */
    if (strcmp(r->path, "embed_tokens") == 0 || strcmp(r->path, "embed_tokens_per_layer") == 0 || r->n_stack > 0) return MB_OK;
    if (s->n_targets == s->m->n_modules) return mb_fail(err, MB_INTERNAL, "the model has more modules than it counted");
    struct target *t = &s->targets[s->n_targets++];
    t->path = arena_strdup(&s->arena, r->path);
    if (sscanf(r->path, "layers.%d.", &i_layer) == 1) t->i_layer = i_layer;
    else t->i_layer = -1;
    t->w = w;
    t->first = r->first;
    t->n_file = r->n_file ? r->n_file : w->n;
    return t->path ? MB_OK : mb_fail(err, MB_NO_MEMORY, "out of memory");
}

static mb_status scan_open(struct scan *s, const struct model *m, const struct adapter_config *config, struct buf *problems,
                           mb_error *err)
{
    memset(s, 0, sizeof *s);
    arena_init(&s->arena, (size_t)64 << 20);
    s->m = m;
    s->config = config;
    s->problems = problems;
    s->max_rank = m->plan.max_lora_rank;
    s->targets = arena_alloc_array(&s->arena, (size_t)m->n_modules + 1, sizeof *s->targets);
    if (!s->targets) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    /* bind_visit names each weight; this visitor writes none of them. */
    return bind_visit((struct model *)(uintptr_t)m, add_target, s, err);
}

/* --- names --- */

enum half { HALF_NONE = 0, HALF_A, HALF_B };

static bool cut_suffix(char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    if (m >= n || strcmp(name + n - m, suffix) != 0) return false;
    name[n - m] = '\0';
    return true;
}

/* Whole module name and half of a tensor name; HALF_NONE: not the name of an adapter's tensor. */
static enum half split_name(enum adapter_form form, const char *tensor, char module[NAME_MAX_BYTES])
{
    static const char *const mlx[2][3] = { { ".lora_a" }, { ".lora_b" } };
    static const char *const peft[2][3] = { { ".lora_A.weight", ".lora_A.default.weight" },
                                            { ".lora_B.weight", ".lora_B.default.weight" } };
    if (strlen(tensor) >= NAME_MAX_BYTES) return HALF_NONE;
    strcpy(module, tensor);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 2; i++) {
            const char *suffix = form == ADAPTER_MLX ? mlx[h][i] : peft[h][i];
            if (!suffix || !cut_suffix(module, suffix)) continue;
            static const char lead[] = "base_model.model.";
            if (strncmp(module, lead, sizeof lead - 1) == 0) memmove(module, module + sizeof lead - 1, strlen(module) - sizeof lead + 2);
            return h == 0 ? HALF_A : HALF_B;
        }
    return HALF_NONE;
}

/* The part of a whole name that bind_visit knows; NULL: none of the known prefixes stands before it. */
static const char *path_of(const struct model_spec *spec, const char *module)
{
    static const char *const outside[] = { "lm_head", "embed_tokens", "embed_tokens_per_layer", "per_layer_model_projection" };
    const char *const prefixes[] = { spec->prefix, "model.language_model.", "language_model.model.", "language_model.",
                                     "model.", "" };
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t n = strlen(prefixes[i]);
        const char *rest = module + n;
        if (strncmp(module, prefixes[i], n) != 0) continue;
        if (strncmp(rest, "layers.", 7) == 0) return rest;
        for (size_t j = 0; j < sizeof outside / sizeof outside[0]; j++)
            if (strcmp(rest, outside[j]) == 0) return rest;
    }
    return NULL;
}

/* The first target of this path at or after `from`; the parts of a fused matrix share one. */
static struct target *target_find(struct scan *s, const char *path, int32_t from)
{
    for (int32_t i = from; path && i < s->n_targets; i++)
        if (strcmp(s->targets[i].path, path) == 0) return &s->targets[i];
    return NULL;
}

static const char *not_a_tensor(const char *name)
{
    size_t n = strlen(name);
    if (strstr(name, "lora_magnitude_vector") || (n > 2 && strcmp(name + n - 2, ".m") == 0))
        return "DoRA magnitudes: only plain LoRA is served";
    if (strstr(name, "lora_embedding_")) return "an adapted embedding: only linear layers can be adapted";
    return "not the name of a LoRA tensor";
}

static void say_no_module(struct scan *s, const char *tensor, const char *path)
{
    int i_layer;
    if (path && strncmp(path, "embed_tokens", 12) == 0) problem(s, "%.300s: embeddings cannot be adapted", tensor);
    else if (path && strcmp(path, "lm_head") == 0)
        problem(s, "%.300s: the head of this model is tied to its embedding and cannot be adapted", tensor);
    else if (path && sscanf(path, "layers.%d.", &i_layer) == 1 && i_layer >= s->m->spec.n_layer)
        problem(s, "%.300s: layer %d, the model has %d layers", tensor, i_layer, (int)s->m->spec.n_layer);
    else problem(s, "%.300s: the model has no such linear that can be adapted", tensor);
}

/* --- tensors --- */

static mb_status take_tensor(struct scan *s, const struct tensor_view *t, mb_error *err)
{
    char module[NAME_MAX_BYTES];
    enum half half = split_name(s->config->form, t->name, module);
    bool covers;
    if (half == HALF_NONE) {
        problem(s, "%.300s: %s", t->name, not_a_tensor(t->name));
        return MB_OK;
    }
    const char *path = path_of(&s->m->spec, module);
    struct target *to = target_find(s, path, 0);
    if (!to) {
        say_no_module(s, t->name, path);
        return MB_OK;
    }
    MB_TRY(adapter_config_covers(s->config, module, to->i_layer, s->m->spec.n_layer, &covers, err));
    const struct tensor_view **slot = half == HALF_A ? &to->a : &to->b;
    if (!covers) problem(s, "%.300s: adapter_config.json does not list this module", t->name);
    else if (*slot) problem(s, "%.300s: a second tensor for the same half of %.200s", t->name, to->path);
    else if (t->n_dim != 2) problem(s, "%.300s: found %d dimensions, wanted 2", t->name, t->n_dim);
    else if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        problem(s, "%.300s: found %s, wanted F32, F16 or BF16", t->name, dtype_get(t->dtype)->name);
    else
        for (; to; to = target_find(s, path, (int32_t)(to - s->targets) + 1)) {
            *(half == HALF_A ? &to->a : &to->b) = t;
            strcpy(to->module, module);
        }
    return MB_OK;
}

/* A is [k][r] in MLX form and [r][k] in PEFT's; B the other way round. */
static int64_t rank_of(const struct scan *s, const struct tensor_view *t, bool is_a)
{
    return t->shape[(s->config->form == ADAPTER_MLX) == is_a ? 1 : 0];
}

static int64_t width_of(const struct scan *s, const struct tensor_view *t, bool is_a)
{
    return t->shape[(s->config->form == ADAPTER_MLX) == is_a ? 0 : 1];
}

static void check_width(struct scan *s, const struct tensor_view *t, bool is_a, int64_t want)
{
    if (width_of(s, t, is_a) == want) return;
    problem(s, "%.300s: found [%lld, %lld], its %s must be %lld wide", t->name, (long long)t->shape[0], (long long)t->shape[1],
            is_a ? "input" : "output", (long long)want);
}

static mb_status check_pair(struct scan *s, struct target *t, mb_error *err)
{
    int32_t wanted = 0;
    if (!t->a && !t->b) return MB_OK;
    if (!t->a || !t->b) {
        problem(s, "%.300s: the other half (%s) is missing", (t->a ? t->a : t->b)->name, t->a ? "B" : "A");
        return MB_OK;
    }
    check_width(s, t->a, true, t->w->k);
    check_width(s, t->b, false, t->n_file);
    int64_t rank = rank_of(s, t->a, true);
    if (rank != rank_of(s, t->b, false)) {
        problem(s, "%.200s: A has rank %lld, B has rank %lld", t->module, (long long)rank, (long long)rank_of(s, t->b, false));
        return MB_OK;
    }
    MB_TRY(adapter_config_rank(s->config, t->module, &wanted, err));
    if (rank < 1) problem(s, "%.200s: rank 0", t->module);
    else if (wanted > 0 && rank != wanted)
        problem(s, "%.200s: found rank %lld, adapter_config.json says %d", t->module, (long long)rank, (int)wanted);
    else if (rank > s->max_rank)
        problem(s, "%.200s: rank %lld, at most %d is taken (--max-lora-rank)", t->module, (long long)rank, (int)s->max_rank);
    t->rank = rank > INT32_MAX ? INT32_MAX : (int32_t)rank;
    return adapter_config_scale(s->config, t->module, t->rank, &t->scale, err);
}

static mb_status adapter_scan(struct scan *s, const struct checkpoint *file, const char *dir, mb_error *err)
{
    int32_t n_found = 0;
    for (size_t i = 0; i < checkpoint_n_tensors(file); i++) MB_TRY(take_tensor(s, checkpoint_at(file, i), err));
    for (int32_t i = 0; i < s->n_targets; i++) {
        MB_TRY(check_pair(s, &s->targets[i], err));
        n_found += s->targets[i].a && s->targets[i].b;
    }
    if (n_found == 0 && s->n_problems == 0) problem(s, "%.200s holds no LoRA tensor", s->config->file);
    if (s->n_problems == 0) return MB_OK;
    if (s->problems && s->n_problems > ADAPTER_MAX_PROBLEMS)
        buf_printf(s->problems, "... and %d more\n", (int)(s->n_problems - ADAPTER_MAX_PROBLEMS));
    const char *slash = strrchr(dir, '/');
    return mb_fail_at(err, MB_BAD_FORMAT, "path", "adapter %.60s does not fit this model: %d problem%s; %s",
                      slash && slash[1] ? slash + 1 : dir, (int)s->n_problems, s->n_problems == 1 ? "" : "s, the first", s->first);
}

/* --- conversion --- */

/* What adapter_load hands out: the handle first, then everything it points to in one block. */
struct adapter {
    struct adapter_handle handle;
    char *id;
    struct lora_module *modules;
    float *floats;
};

/* rows x cols of t, or of its transpose, from column `first` of all its cols_file on, times scale. False: a NaN or an infinity. */
static bool convert(const struct tensor_view *t, bool transpose, float scale, int64_t rows, int64_t first, int64_t cols,
                    int64_t cols_file, float *out)
{
    bool finite = true;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float v = dtype_float_at(t->data, t->dtype, transpose ? (first + c) * rows + r : r * cols_file + first + c) * scale;
            finite = finite && isfinite(v);
            out[r * cols + c] = v;
        }
    return finite;
}

static size_t padded(int64_t n)
{
    return (size_t)(n + 15) / 16 * 16;
}

static size_t floats_needed(const struct scan *s)
{
    size_t n = 0;
    for (int32_t i = 0; i < s->n_targets; i++) {
        const struct target *t = &s->targets[i];
        if (t->a) n += padded(t->rank * t->w->k) + padded(t->rank * t->w->n);
    }
    return n;
}

static struct adapter *adapter_alloc(const char *id, int32_t n_modules, size_t n_floats)
{
    struct adapter *a = mb_calloc(1, sizeof *a);
    if (!a) return NULL;
    a->id = mb_strdup(id);
    a->modules = mb_calloc((size_t)n_modules, sizeof *a->modules);
    a->floats = mb_alloc_aligned(64, n_floats * sizeof *a->floats + 64);
    a->handle = (struct adapter_handle){ .id = a->id, .modules = a->modules };
    if (a->id && a->modules && a->floats) return a;
    adapter_free(&a->handle);
    return NULL;
}

void adapter_free(struct adapter_handle *h)
{
    if (!h) return;
    struct adapter *a = (struct adapter *)(void *)h;
    mb_free(a->id);
    mb_free(a->modules);
    mb_free(a->floats);
    mb_free(a);
}

static void hash_module(XXH64_state_t *h, int32_t i_module, const struct lora_module *m, const struct weight *w)
{
    int32_t head[2] = { i_module, m->rank };
    XXH64_update(h, head, sizeof head);
    XXH64_update(h, m->a, (size_t)m->rank * (size_t)w->k * sizeof(float));
    XXH64_update(h, m->b, (size_t)m->rank * (size_t)w->n * sizeof(float));
}

static mb_status fill(const struct scan *s, struct adapter *a, XXH64_state_t *hash, mb_error *err)
{
    bool mlx = s->config->form == ADAPTER_MLX;
    float *at = a->floats;
    XXH64_reset(hash, 0);
    for (int32_t i = 0; i < s->n_targets; i++) {
        const struct target *t = &s->targets[i];
        if (!t->a) continue;
        struct lora_module *m = &a->modules[t->w->i_module];
        float *fa = at, *fb = fa + padded(t->rank * t->w->k);
        at = fb + padded(t->rank * t->w->n);
        bool ok = convert(t->a, mlx, 1.0f, t->rank, 0, t->w->k, t->w->k, fa);
        if (!convert(t->b, !mlx, (float)t->scale, t->rank, t->first, t->w->n, t->n_file, fb) || !ok)
            return mb_fail_at(err, MB_BAD_FORMAT, "path", "%.200s: the adapter holds a NaN or an infinity", t->module);
        *m = (struct lora_module){ .a = fa, .b = fb, .rank = t->rank };
        if (t->rank > a->handle.max_rank) a->handle.max_rank = t->rank;
        hash_module(hash, t->w->i_module, m, t->w);
    }
    a->handle.content_hash = XXH64_digest(hash);
    return MB_OK;
}

static mb_status adapter_make(struct adapter_handle **out, const struct scan *s, const char *id, mb_error *err)
{
    struct adapter *a = adapter_alloc(id, s->m->n_modules, floats_needed(s));
    XXH64_state_t *hash = XXH64_createState();
    mb_status st = a && hash ? fill(s, a, hash, err) : mb_fail(err, MB_NO_MEMORY, "no memory for adapter %.64s", id);
    XXH64_freeState(hash);
    if (st == MB_OK) *out = &a->handle;
    else if (a) adapter_free(&a->handle);
    return st;
}

static void set_info(struct adapter_info *info, const struct scan *s, const struct checkpoint *file)
{
    const struct adapter_config *c = s->config;
    memset(info, 0, sizeof *info);
    for (int32_t i = 0; i < s->n_targets; i++) {
        const struct target *t = &s->targets[i];
        if (!t->a) continue;
        if (info->n_modules++ == 0) info->scale = t->scale;
        if (t->rank > info->rank) info->rank = t->rank;
    }
    if (c->has_scale && !c->rslora) info->scale = c->scale;
    info->size_bytes = checkpoint_total_bytes(file);
    info->memory_bytes = floats_needed(s) * sizeof(float);
    strcpy(info->form, c->form == ADAPTER_MLX ? "mlx" : "peft");
    strcpy(info->base, c->base);
}

mb_status adapter_load(struct adapter_handle **out, struct adapter_info *info, const struct model *m, const char *id,
                       const char *dir, struct buf *problems, mb_error *err)
{
    struct adapter_config config;
    struct checkpoint *file = NULL;
    struct scan s;
    *out = NULL;
    memset(info, 0, sizeof *info);
    MB_TRY(adapter_config_read(&config, dir, err));
    mb_status st = scan_open(&s, m, &config, problems, err);
    if (st == MB_OK) st = checkpoint_open_file(&file, dir, config.file, err);
    if (st == MB_OK) st = adapter_scan(&s, file, dir, err);
    if (st == MB_OK) st = adapter_make(out, &s, id, err);
    if (st == MB_OK) set_info(info, &s, file);
    checkpoint_close(file);
    arena_free(&s.arena);
    adapter_config_free(&config);
    return st;
}

mb_status adapter_peek(struct adapter_info *info, const char *dir, mb_error *err)
{
    struct adapter_config c;
    struct checkpoint *file = NULL;
    char module[NAME_MAX_BYTES];
    memset(info, 0, sizeof *info);
    MB_TRY(adapter_config_read(&c, dir, err));
    mb_status st = checkpoint_open_file(&file, dir, c.file, err);
    for (size_t i = 0; st == MB_OK && i < checkpoint_n_tensors(file); i++) {
        const struct tensor_view *t = checkpoint_at(file, i);
        if (split_name(c.form, t->name, module) != HALF_A || t->n_dim != 2) continue;
        int64_t rank = t->shape[c.form == ADAPTER_MLX ? 1 : 0];
        if (rank < 1 || rank > 1 << 20) continue;
        if (info->n_modules++ == 0) st = adapter_config_scale(&c, module, (int32_t)rank, &info->scale, err);
        if (rank > info->rank) info->rank = (int32_t)rank;
    }
    if (st == MB_OK) info->size_bytes = checkpoint_total_bytes(file);
    strcpy(info->form, c.form == ADAPTER_MLX ? "mlx" : "peft");
    strcpy(info->base, c.base);
    checkpoint_close(file);
    adapter_config_free(&c);
    return st;
}
