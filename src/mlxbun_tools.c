/* mlxbun_tools.c: small openings into the layers below for the verbs that look inside (doctor, prove, show-prompt), so that
 * src/cli knows mlxbun_int.h alone. No state; any thread. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "chat/template.h"
#include "mlxbun_int.h"
#include "ops/ops.h"
#include "tokenizer/tokenizer.h"

static mb_status view_of(const struct gen_prompt *p, struct arena *a, struct prompt_view *out, mb_error *err)
{
    out->parts = arena_alloc_array(a, p->n_runs + 1, sizeof *out->parts);
    if (!out->parts) return mb_fail(err, MB_NO_MEMORY, "out of memory for the prompt");
    for (size_t i = 0; i < p->n_runs; i++) {
        const char *field = p->runs[i].field ? arena_strdup(a, p->runs[i].field) : NULL; /* may belong to the template */
        out->parts[i] = (struct prompt_part){ p->runs[i].first, p->runs[i].end, p->runs[i].i_message, field };
    }
    out->n_parts = p->n_runs;
    out->text = p->text ? p->text : "";
    out->len = p->len;
    out->ids = p->ids;
    out->n_ids = p->n_ids;
    return a->failed ? mb_fail(err, MB_NO_MEMORY, "out of memory for the prompt") : MB_OK;
}

mb_status mb_prompt_view(const char *model_dir, const char *cache_dir, const struct gen_request *r, struct arena *a,
                         struct prompt_view *out, mb_error *err)
{
    struct gen_renderer *t;
    struct gen_prompt p;
    memset(out, 0, sizeof *out);
    MB_TRY(gen_renderer_open(&t, model_dir, cache_dir, GIVEN_NONE, err));
    mb_status st = gen_renderer_render(t, r, a, &p, err);
    if (st == MB_OK) st = view_of(&p, a, out, err);
    gen_renderer_close(t);
    return st;
}

mb_status mb_device_text(const char *cpu_level, char out[96], mb_error *err)
{
    struct device_options opt = { .cpu_level = cpu_level, .n_ranks = 1 };
    struct device *dev;
    out[0] = '\0';
    MB_TRY(ops_cpu.device_open(&dev, &opt, err));
    snprintf(out, 96, "%s", ops_cpu.device_describe(dev));
    ops_cpu.device_close(dev);
    return MB_OK;
}

void mb_gpu_text(char out[MB_GPU_TEXT])
{
    struct device_options opt = { .n_ranks = 1 };
    struct device *dev;
    mb_error err = { 0 };
    if (ops_cuda.device_open(&dev, &opt, &err) != MB_OK) {
        snprintf(out, MB_GPU_TEXT, "none: %s", err.text);
        return;
    }
    snprintf(out, MB_GPU_TEXT, "%s", ops_cuda.device_describe(dev));
    ops_cuda.device_close(dev);
}

mb_status mb_tokenize_dir(const char *model_dir, const char *text, size_t len, bool special, int32_t **ids, int32_t *n,
                          mb_error *err)
{
    struct tokenizer *tok;
    struct token_list list;
    struct encode_opts opt = { .add_special_tokens = special };
    struct arena a;
    *ids = NULL;
    *n = 0;
    MB_TRY(tokenizer_open(&tok, model_dir, err));
    arena_init(&a, 0);
    mb_status st = tokenizer_encode(tok, &a, text, len, &opt, &list, err);
    if (st == MB_OK) {
        *ids = mb_alloc((list.n + 1) * sizeof **ids);
        if (!*ids) st = mb_fail(err, MB_NO_MEMORY, "out of memory for %zu ids", list.n);
    }
    if (st == MB_OK) {
        if (list.n) memcpy(*ids, list.ids, list.n * sizeof **ids);
        *n = (int32_t)list.n;
    }
    arena_free(&a);
    tokenizer_close(tok);
    return st;
}

bool mb_family(size_t i, const char **name, const char *const **types, const char **note)
{
    size_t n;
    const struct arch_row *rows = arch_rows(&n);
    if (i >= n) return false;
    *name = rows[i].name;
    *types = rows[i].model_types;
    *note = rows[i].note;
    return true;
}

bool mb_family_known(const char *model_type)
{
    return arch_find(model_type) != NULL;
}

bool mb_model_assess(const char *path, const struct ops_rates *rates, bool *fits, int64_t *max_context, double *decode_tps)
{
    struct engine_load load;
    struct fit_model m;
    struct fit_report r;
    mb_error err;
    *fits = false;
    *max_context = 0;
    *decode_tps = 0;
    if (mb_options_to_load(path, NULL, &load, &err) != MB_OK || fit_model_read(&m, &load, &err) != MB_OK) return false;
    int32_t safe = m.info.max_context_in_pool;
    fit_report_make(&r, &m, rates, safe < FIT_TYPICAL_CONTEXT ? safe : FIT_TYPICAL_CONTEXT);
    *fits = r.max_safe_context > 0;
    *max_context = r.max_safe_context;
    *decode_tps = *fits ? r.decode_tps : 0;
    return true;
}

void mb_packed_key(const char *dir, char out[17])
{
    if (engine_packed_key(dir, out, NULL) != MB_OK) out[0] = '\0';
}

size_t mb_memory_available(void)
{
    return engine_memory_available();
}
