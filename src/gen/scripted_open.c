/* scripted_open.c: see scripted_open.h. The script lives as long as the process: the stepper borrows it. */
#include "gen/scripted_open.h"

#ifdef MB_FAULTS

#include <string.h>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

#define SCRIPT_MAX_IDS 1000000

struct script { int32_t *ids; int32_t n; };

static mb_status add(struct script *s, const int32_t *ids, size_t n, mb_error *err)
{
    if (s->n + n > SCRIPT_MAX_IDS) return mb_fail(err, MB_TOO_LARGE, "the script is longer than %d tokens", SCRIPT_MAX_IDS);
    memcpy(s->ids + s->n, ids, n * sizeof *ids);
    s->n += (int32_t)n;
    return MB_OK;
}

static mb_status add_piece(struct script *s, const struct tokenizer *t, const json_t *piece, mb_error *err)
{
    struct arena a;
    struct token_list list = { 0 };
    struct encode_opts opts = { 0 };
    int32_t id = (int32_t)json_integer_value(piece);
    if (json_is_integer(piece)) return add(s, &id, 1, err);
    if (!json_is_string(piece)) return mb_fail(err, MB_BAD_FORMAT, "pieces must be texts or token ids");
    arena_init(&a, 1 << 24);
    mb_status st = tokenizer_encode(t, &a, json_string_value(piece), json_string_length(piece), &opts, &list, err);
    if (st == MB_OK) st = add(s, list.ids, list.n, err);
    arena_free(&a);
    return st;
}

static mb_status read_script(struct script *s, const json_t *v, const struct tokenizer *t, mb_error *err)
{
    const json_t *pieces = json_object_get(v, "pieces");
    int64_t repeat = 1;
    MB_TRY(json_get_int(v, "repeat", 1, &repeat, err));
    s->ids = mb_alloc((size_t)SCRIPT_MAX_IDS * sizeof *s->ids);
    if (!s->ids) return mb_fail(err, MB_NO_MEMORY, "no memory for the script");
    for (int64_t k = 0; k < repeat; k++)
        for (size_t i = 0; i < json_array_size(pieces); i++) MB_TRY(add_piece(s, t, json_array_get(pieces, i), err));
    return MB_OK;
}

static mb_status open_engine(struct engine **out, const json_t *v, const struct script *s, const struct tokenizer *t,
                             mb_error *err)
{
    int64_t step = 0, prefill = 0, n_context = 100000, batch = 8, queue = 64;
    MB_TRY(json_get_int(v, "step_delay_ms", 0, &step, err));
    MB_TRY(json_get_int(v, "prefill_delay_ms_per_1k", 0, &prefill, err));
    MB_TRY(json_get_int(v, "n_context", n_context, &n_context, err));
    MB_TRY(json_get_int(v, "batch", batch, &batch, err));
    MB_TRY(json_get_int(v, "queue_max", queue, &queue, err));
    struct scripted_options so = { .n_vocab = tokenizer_n_vocab(t), .n_context = (int32_t)n_context, .m_max = 2048,
                                   .n_rows_max = (int32_t)batch, .script = s->ids, .n_script = s->n,
                                   .end_id = tokenizer_eos_id(t), .step_delay_ms = step, .prefill_delay_ms_per_1k = prefill };
    struct engine_options eo = { .batch = (int32_t)batch, .queue_max = (int32_t)queue, .prefill_chunk = 2048,
                                 .prefill_share = 3, .client_timeout_ms = 60000 };
    struct stepper st;
    MB_TRY(stepper_scripted(&st, &so, err));
    return engine_open(out, &st, &eo, err);
}

mb_status gen_engine_open_scripted(struct gen_engine **out, const char *script_path, const struct gen_engine_options *opt,
                                   mb_error *err)
{
    json_t *v = NULL;
    struct tokenizer *t = NULL;
    struct engine *e = NULL;
    struct script s = { 0 };
    struct gen_model_info info = { .kv_mode = "bf16", .device = "scripted", .tier = "l1", .batch = 8 };
    mb_status st;
    *out = NULL;
    MB_TRY_GOTO(st, json_read_file(&v, script_path, 1 << 24, err), done);
    MB_TRY_GOTO(st, tokenizer_open(&t, opt->model_dir, err), done);
    MB_TRY_GOTO(st, read_script(&s, v, t, err), done);
    MB_TRY_GOTO(st, open_engine(&e, v, &s, t, err), done);
    st = gen_engine_open(out, e, opt, &info, err);
done:
    if (st != MB_OK) mb_free(s.ids);
    json_decref(v);
    tokenizer_close(t);
    return st;
}

#else
typedef int gen_scripted_open_unused; /* a translation unit must not be empty */
#endif
