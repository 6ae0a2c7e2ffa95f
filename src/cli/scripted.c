/* scripted.c: `serve --scripted FILE MODEL` of test builds (FAULTS=1): the server over an engine whose draws are forced, with
 * the tokenizer and templates of MODEL, so that HTTP tests decide what a model says. FILE is a JSON object:
 *
 *   {"text": "<think>a</think>b"}     tokenised without anything around it; or {"ids": [1, 2, 3]}
 *   "n_context": 8192, "batch": 8, "step_delay_ms": 0, "prefill_delay_ms_per_1k": 0      optional
 *
 * Every request draws the script from its beginning and then the end token. Empty in ordinary builds.
 */
#include "cli/cli.h"

#ifdef MB_FAULTS
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

static mb_status read_ids(const json_t *list, int32_t **ids, int32_t *n, mb_error *err)
{
    size_t size = json_array_size(list);
    *ids = mb_alloc(size * sizeof **ids + 1);
    if (!*ids) return mb_fail(err, MB_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < size; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v)) return mb_fail(err, MB_INVALID, "ids[%zu] of the script is no integer", i);
        (*ids)[i] = (int32_t)json_integer_value(v);
    }
    *n = (int32_t)size;
    return MB_OK;
}

static mb_status read_script(const json_t *o, const char *model_dir, struct mb_script *s, int32_t **ids, mb_error *err)
{
    const char *text;
    int64_t n_context, batch;
    MB_TRY(json_get_str(o, "text", NULL, &text, err));
    MB_TRY(json_get_int(o, "n_context", 0, &n_context, err));
    MB_TRY(json_get_int(o, "batch", 0, &batch, err));
    MB_TRY(json_get_int(o, "step_delay_ms", 0, &s->step_delay_ms, err));
    MB_TRY(json_get_int(o, "prefill_delay_ms_per_1k", 0, &s->prefill_delay_ms_per_1k, err));
    s->n_context = (int32_t)n_context;
    s->batch = (int32_t)batch;
    if (text) MB_TRY(mb_tokenize_dir(model_dir, text, strlen(text), false, ids, &s->n, err));
    else MB_TRY(read_ids(json_object_get(o, "ids"), ids, &s->n, err));
    s->ids = *ids;
    return MB_OK;
}

mb_status scripted_open(const char *file, const char *model_dir, const struct mb_open_extra *x, mb_engine **out, mb_error *err)
{
    json_t *o = NULL;
    struct mb_script s = { 0 };
    int32_t *ids = NULL;
    *out = NULL;
    mb_status st = json_read_file_any(&o, file, INPUT_MAX_BYTES, err);
    if (st == MB_OK) st = read_script(o, model_dir, &s, &ids, err);
    if (st == MB_OK) st = mb_engine_open_scripted(out, model_dir, &s, x, err);
    mb_free(ids);
    json_decref(o);
    return st;
}
#endif
