/* defaults.c: what a model directory says about generating: sampling defaults (API-080, tier 3), the union of end ids
 * (B-034: config.json, generation_config.json, tokenizer), the ids XTC spares. A value out of its row's bounds is reported
 * once and not used: a model's file must not be able to keep the server from starting. */
#include <math.h>
#include <string.h>

#include "base/filemap.h"
#include "base/json.h"
#include "base/log.h"
#include "gen/gen_int.h"

#define CONFIG_MAX_BYTES ((size_t)16 << 20)

mb_status defaults_read_json(json_t **out, const char *dir, const char *name, mb_error *err)
{
    char path[4096];
    *out = NULL;
    MB_TRY(path_join(path, sizeof path, dir, name, err));
    if (!path_exists(path)) return MB_OK;
    MB_TRY(json_read_file(out, path, CONFIG_MAX_BYTES, err));
    if (json_is_object(*out)) return MB_OK;
    json_decref(*out);
    *out = NULL;
    return mb_fail(err, MB_BAD_FORMAT, "%s: expected an object", path);
}

static void read_sampling(struct gen_engine *g, const json_t *gc)
{
    static const char *const names[] = { "temperature", "top_p", "top_k", "min_p", "repetition_penalty" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const json_t *v = json_object_get(gc, names[i]);
        const struct sampler_row *row = sampler_row_find(names[i]);
        mb_error e = { 0 };
        if (!json_is_number(v) || !row) continue;
        double d = json_number_value(v);
        bool is_int = json_is_integer(v) || d == floor(d);
        if (sampler_row_check(row, d, is_int, &e) != MB_OK) {
            LOGW("gen", "generation_config.json: %s; ignored", e.text);
            continue;
        }
        *sampler_value_at(&g->model, row) = (struct sampler_value){ .v = d, .given = true };
    }
}

/* --- end ids --- */
struct id_set { int32_t ids[64]; int32_t n; };

static void add_id(struct id_set *s, int64_t id)
{
    if (id < 0 || id > INT32_MAX) return;
    for (int32_t i = 0; i < s->n; i++)
        if (s->ids[i] == (int32_t)id) return;
    if (s->n < (int32_t)(sizeof s->ids / sizeof s->ids[0])) s->ids[s->n++] = (int32_t)id;
}

static void add_ids_of(struct id_set *s, const json_t *v)
{
    if (json_is_integer(v)) add_id(s, json_integer_value(v));
    if (!json_is_array(v)) return;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        if (json_is_integer(x)) add_id(s, json_integer_value(x));
    }
}

static mb_status keep_ids(struct gen_engine *g, const struct id_set *s, int32_t **ids, int32_t *n, mb_error *err)
{
    *ids = arena_alloc_array(&g->arena, (size_t)s->n + 1, sizeof **ids);
    if (!*ids) return mb_fail(err, MB_NO_MEMORY, "no memory for the model's defaults");
    memcpy(*ids, s->ids, (size_t)s->n * sizeof **ids);
    *n = s->n;
    return MB_OK;
}

static mb_status add_newlines(struct gen_engine *g, struct id_set *s, mb_error *err)
{
    static const char *const texts[] = { "\n", "\n\n" };
    for (size_t i = 0; i < 2; i++) {
        struct arena a;
        struct token_list list = { 0 };
        struct encode_opts opts = { 0 };
        arena_init(&a, 1 << 20);
        mb_status st = tokenizer_encode(g->text->tok, &a, texts[i], strlen(texts[i]), &opts, &list, err);
        if (st == MB_OK && list.n == 1) add_id(s, list.ids[0]);
        arena_free(&a);
        MB_TRY(st);
    }
    return MB_OK;
}

/* Messages with headers: an answer ends with one of two signs, whether the files name them or not. */
static void add_channel_ends(const struct gen_engine *g, struct id_set *s)
{
    static const char *const ends[] = { "<|return|>", "<|call|>" };
    if (!g->text->tags->channels || g->text->n_sign_ids == 0) return;
    for (size_t i = 0; i < 2; i++) add_id(s, tokenizer_id(g->text->tok, ends[i], strlen(ends[i])));
}

/* What closes a thought: the marker token, or the tag as ordinary tokens. */
static mb_status keep_close_ids(struct gen_engine *g, mb_error *err)
{
    struct token_list list = { .ids = &g->text->close_id, .n = 1 };
    struct encode_opts opts = { 0 };
    if (g->text->close_id < 0)
        MB_TRY(tokenizer_encode(g->text->tok, &g->arena, g->text->tags->close, strlen(g->text->tags->close), &opts, &list, err));
    g->close_ids = arena_alloc_array(&g->arena, list.n + 1, sizeof *g->close_ids);
    if (!g->close_ids) return mb_fail(err, MB_NO_MEMORY, "no memory for the model's defaults");
    memcpy(g->close_ids, list.ids, list.n * sizeof *list.ids);
    g->n_close_ids = (int32_t)list.n;
    return MB_OK;
}

mb_status defaults_read(struct gen_engine *g, const char *dir, mb_error *err)
{
    json_t *config = NULL, *gc = NULL;
    struct id_set ends = { .n = 0 }, breaks = { .n = 0 };
    mb_status st;
    MB_TRY_GOTO(st, defaults_read_json(&config, dir, "config.json", err), done);
    MB_TRY_GOTO(st, defaults_read_json(&gc, dir, "generation_config.json", err), done);
    if (!diffusion_is(g)) read_sampling(g, gc); /* its file has a schedule of its own (model/arch_diffusion.c) */
    add_ids_of(&ends, json_object_get(config, "eos_token_id"));
    add_ids_of(&ends, json_object_get(json_object_get(config, "text_config"), "eos_token_id"));
    add_ids_of(&ends, json_object_get(gc, "eos_token_id"));
    add_id(&ends, tokenizer_eos_id(g->text->tok));
    add_channel_ends(g, &ends);
    MB_TRY_GOTO(st, keep_ids(g, &ends, &g->end_ids, &g->n_end_ids, err), done);
    MB_TRY_GOTO(st, add_newlines(g, &ends, err), done);
    MB_TRY_GOTO(st, keep_ids(g, &ends, &g->xtc_exempt, &g->n_xtc_exempt, err), done);
    MB_TRY_GOTO(st, add_newlines(g, &breaks, err), done);
    MB_TRY_GOTO(st, keep_ids(g, &breaks, &g->break_ids, &g->n_break_ids, err), done);
    st = keep_close_ids(g, err);
done:
    json_decref(config);
    json_decref(gc);
    return st;
}
