/* test_diffusion.c: DiffusionGemma's rounds over a canvas against transformers (tests/golden/diffusion) and against themselves (whole generations:
 * test_diffusion_engine.c).
 *   f32 tier: logits within 1e-5 of max |logit| of the oracle's in float64 at every position, without and with what the round before
 *     expects; so is what they expect, and the entropies are near
 *   the same bits with every level, 1 to 3 threads, prompts in chunks, other pages (bits.json)
 *   values of the configuration that are no schedule or canvas are refused by name
 */
#include "golden/diffusion_rig.h"

#include <math.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/filemap.h"
#include "convert/convert.h"
#include "engine/open.h"
#include "format/safetensors.h"
#include "levels.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_PATHS 1
#else
#define N_PATHS 3
#endif

/* --- rounds, straight through the stepper --- */

struct path { const char *level; int n_threads; int32_t chunk, page_step; };

struct rounds {
    float *logits, *expect, entropy[ROUNDS][MAX_CANVAS]; /* [ROUNDS][n_canvas][n_vocab], [ROUNDS][n_canvas][d_model] */
    int32_t ids[ROUNDS][MAX_CANVAS];
    size_t n_logits, n_expect;
};

/* Pages of one sequence in an order of their own; the pool is theirs alone. */
static void pages_deal(struct stepper *st, const struct stepper_info *info, int32_t n_tokens, int32_t step, struct seq_state *seq,
                       int32_t *tables)
{
    int32_t n_page = (n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    size_t off = 0;
    mb_error err = { 0 };
    memset(seq, 0, sizeof *seq);
    for (int32_t k = 0; k < info->n_kinds; k++) {
        seq->kind[k] = (struct kv_table){ tables + k * n_page, n_page, n_page };
        for (int32_t i = 0; i < n_page; i++, off += (info->kinds[k].page_bytes + KV_PAGE_UNIT - 1) / KV_PAGE_UNIT * KV_PAGE_UNIT)
            seq->kind[k].page[(i * step + 1) % n_page] = (int32_t)(off / KV_PAGE_UNIT);
    }
    if (st->pool_reserve(st->ctx, off, &err) != MB_OK) fail_msg("%s", err.text);
}

static void run_row(struct stepper *st, const struct row *r, struct draw *draws)
{
    struct row_result result = { .draws = draws };
    mb_error err = { 0 };
    if (st->submit(st->ctx, r, 1, &result, &err) != MB_OK || st->collect(st->ctx, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(result.status, MB_OK);
}

/* guided: each round sees what the oracle's round before expects, not what ours does. */
static void run_rounds(const struct golden *g, enum fidelity_tier tier, const struct path *p, bool guided, struct rounds *out)
{
    struct device *dev;
    struct model *model;
    struct stepper st;
    struct seq_state seq;
    struct draw draws[MAX_CANVAS];
    struct sample_pos pos[MAX_CANVAS];
    int32_t tables[KV_MAX_KINDS * 8];
    mb_error err = { 0 };
    struct device_options dopt = { .n_threads = p->n_threads, .cpu_level = p->level, .n_ranks = 1 };
    if (ops_cpu.device_open(&dev, &dopt, &err) != MB_OK) fail_msg("%s", err.text);
    struct model_options mopt = { .ops = &ops_cpu, .device = dev, .tier = tier, .kv_format = KV_OF_TIER, .n_rows_max = 1 };
    if (model_open(&model, g->dir, &mopt, &err) != MB_OK) fail_msg("%s", err.text);
    assert_int_equal(stepper_from_model(&st, model, &err), MB_OK);
    const struct stepper_info *info = st.info(st.ctx);
    pages_deal(&st, info, g->n_prompt + g->n_canvas, p->page_step, &seq, tables);
    for (int32_t i = 0; i < g->n_prompt; i += p->chunk) {
        struct row r = { .seq = &seq, .i_first = i, .n = g->n_prompt - i < p->chunk ? g->n_prompt - i : p->chunk,
                         .ids = g->prompt + i, .rope_axes = 1 };
        run_row(&st, &r, NULL);
        seq.n_committed = seq.i_state = i + r.n;
    }
    out->n_logits = (size_t)g->n_canvas * (size_t)g->n_vocab;
    out->n_expect = (size_t)g->n_canvas * (size_t)info->d_model;
    out->logits = calloc(ROUNDS * out->n_logits, sizeof(float));
    out->expect = calloc(ROUNDS * out->n_expect, sizeof(float));
    for (int32_t k = 0; k < ROUNDS; k++) {
        struct sample_params sp = { .temperature = g->temperature, .no_logprobs = true, .n_vocab_live = g->n_vocab,
                                    .noise = { .seed = 5, .round = (uint32_t)k + 1 } };
        const float *signal = guided ? g->expect : out->expect;
        struct canvas_pass pass = { g->temperature, k > 0 ? signal + (size_t)(k - 1) * out->n_expect : NULL,
                                    out->expect + (size_t)k * out->n_expect, out->entropy[k] };
        for (int32_t i = 0; i < g->n_canvas; i++)
            pos[i] = (struct sample_pos){ .params = &sp, .history = g->prompt, .n_history = g->n_prompt, .index = g->n_prompt + i,
                                          .target = -1 };
        struct row r = { .seq = &seq, .i_first = g->n_prompt, .n = g->n_canvas, .ids = g->canvas, .rope_axes = 1, .draw = DRAW_ALL,
                         .draws = pos, .logits_out = out->logits + (size_t)k * out->n_logits, .commit = COMMIT_NEVER,
                         .canvas = &pass };
        run_row(&st, &r, draws);
        for (int32_t i = 0; i < g->n_canvas; i++) out->ids[k][i] = draws[i].id;
    }
    st.close(st.ctx);
}

static void rounds_free(struct rounds *r)
{
    free(r->logits);
    free(r->expect);
}

static void assert_near(const char *what, const float *want, const float *got, size_t n)
{
    float most = 0, off = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(want[i]));
        off = fmaxf(off, fabsf(want[i] - got[i]));
    }
    if (!(off <= 1e-5f * most)) fail_msg("%s: a value is off by %g, the largest is %g", what, (double)off, (double)most);
}

/* MOD-041 */
static void test_rounds_equal_oracle(void **state)
{
    for (size_t m = 0; m < 2; m++)
        for (const char **level = levels_of_machine(); *level; level++) {
            struct golden g;
            struct rounds got;
            struct path path = { *level, 2, 64, 1 };
            golden_open(&g, checkpoints[m]);
            json_t *entropy = must_get(g.root, "entropy");
            run_rounds(&g, TIER_F32, &path, true, &got);
            assert_near("logits", g.logits, got.logits, ROUNDS * got.n_logits);
            assert_near("expected embeddings", g.expect, got.expect, ROUNDS * got.n_expect);
            for (size_t k = 0; k < ROUNDS; k++)
                for (size_t i = 0; i < (size_t)g.n_canvas; i++) {
                    double h = json_number_value(json_array_get(json_array_get(entropy, k), i));
                    if (!(fabs(h - (double)got.entropy[k][i]) <= 1e-4))
                        fail_msg("%s on %s: round %zu, position %zu: entropy %g, wanted %g", checkpoints[m], *level, k, i,
                                 (double)got.entropy[k][i], h);
                }
            rounds_free(&got);
            golden_close(&g);
        }
}

static uint64_t digest(const struct golden *g, enum fidelity_tier tier, const struct path *p)
{
    struct rounds r;
    run_rounds(g, tier, p, false, &r);
    XXH64_hash_t h = XXH64(r.logits, ROUNDS * r.n_logits * sizeof(float), 0);
    h = XXH64(r.expect, ROUNDS * r.n_expect * sizeof(float), h);
    for (int32_t k = 0; k < ROUNDS; k++) {
        h = XXH64(r.entropy[k], (size_t)g->n_canvas * sizeof(float), h);
        h = XXH64(r.ids[k], (size_t)g->n_canvas * sizeof(int32_t), h);
    }
    rounds_free(&r);
    return h;
}

/* Every level, thread count, chunk and order of pages gives the digest that is written down. A change is a new numerics version
 * (docs/numerics.md); MLX_BUN_BITS_WRITE=1 writes them. */
static void test_rounds_bits(void **state)
{
    static const char *const tiers[] = { [TIER_L1] = "l1", [TIER_L2] = "l2", [TIER_F32] = "f32" };
    char key[64], text[24];
    json_t *bits = NULL;
    mb_error err = { 0 };
    bool writes = getenv("MLX_BUN_BITS_WRITE") != NULL;
    if (writes) bits = json_object();
    else if (json_read_file(&bits, GOLDEN "/bits.json", 1 << 20, &err) != MB_OK) fail_msg("%s", err.text);
    for (size_t m = 0; m < 2; m++) {
        struct golden g;
        golden_open(&g, checkpoints[m]);
        for (int tier = 0; tier < 3; tier++) {
            struct path alone = { "portable", 1, MAX_PROMPT, 1 };
            uint64_t want = digest(&g, (enum fidelity_tier)tier, &alone);
            for (const char **level = levels_of_machine(); *level; level++) {
                const struct path paths[] = { { *level, 3, 7, 1 }, { *level, 1, 1, 1 }, { *level, 2, 64, 1 } };
                for (int i = 0; i < N_PATHS; i++)
                    if (digest(&g, (enum fidelity_tier)tier, &paths[i]) != want)
                        fail_msg("%s %s: %s with %d threads and chunks of %d has other bits than portable", checkpoints[m], tiers[tier],
                                 *level, paths[i].n_threads, (int)paths[i].chunk);
            }
            snprintf(key, sizeof key, "%s %s", checkpoints[m], tiers[tier]);
            snprintf(text, sizeof text, "%016llx", (unsigned long long)want);
            if (writes) json_object_set_new(bits, key, json_string(text));
            else if (!json_object_get(bits, key)) fail_msg("%s is not in " GOLDEN "/bits.json", key);
            else assert_string_equal(text, json_string_value(json_object_get(bits, key)));
        }
        golden_close(&g);
    }
    if (writes) {
        struct json_write_opts opts = { .indent = 1, .sort_keys = true, .python_spaces = true };
        struct buf b;
        buf_init(&b, 0);
        json_write(&b, bits, &opts);
        buf_append_char(&b, '\n');
        assert_int_equal(file_write_atomic(GOLDEN "/bits.json", b.data, b.len, &err), MB_OK);
        buf_free(&b);
    }
    json_decref(bits);
}

/* MOD-003: as transformers saves it and as mlx-vlm keeps it (gate and up of all experts one module), which convert makes: the same
 * bits in logits, expected embeddings, entropies and ids. */
static void test_both_layouts(void **state)
{
    static const char *const files[] = { "config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json",
                                         "tokenizer.json", "tokenizer_config.json", "chat_template.jinja" };
    struct checkpoint_opts opts = { .dtype = "bfloat16", .n_threads = 2 };
    struct path path = { "portable", 2, 64, 1 };
    char dir[128], file[256];
    struct checkpoint *made;
    struct golden g;
    mb_error err = { 0 };
    golden_open(&g, "diffusion_gemma");
    snprintf(dir, sizeof dir, "%s/mlxbun-layout-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(dir));
    if (convert_checkpoint(g.dir, dir, &opts, &err) != MB_OK) fail_msg("%s", err.text);
    if (checkpoint_open(&made, dir, &err) != MB_OK) fail_msg("%s", err.text);
    assert_non_null(checkpoint_find(made, "model.decoder.layers.0.experts.gate_up_proj.weight"));
    assert_null(checkpoint_find(made, "model.decoder.layers.0.experts.gate_up_proj"));
    checkpoint_close(made);
    for (int tier = 0; tier < 3; tier++) {
        uint64_t want = digest(&g, (enum fidelity_tier)tier, &path);
        struct golden mlx = g;
        snprintf(mlx.dir, sizeof mlx.dir, "%s", dir);
        if (digest(&mlx, (enum fidelity_tier)tier, &path) != want) fail_msg("tier %d: the MLX layout has other bits", tier);
    }
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(file, sizeof file, "%s/%s", dir, files[i]);
        assert_int_equal(unlink(file), 0);
    }
    assert_int_equal(rmdir(dir), 0);
    golden_close(&g);
}

/* A key of config.json, of its text_config or of generation_config.json with another value (JSON text; "-": taken out) is refused
 * by name, or read. */
static void test_config_values(void **state)
{
    static const struct { const char *where, *key, *value, *says; } cases[] = {
        { "config", "text_config", "-", "text_config is missing" }, { "config", "text_config", "[1]", "text_config is missing" },
        { "config", "tie_word_embeddings", "false", "tie_word_embeddings is false" },
        { "config", "canvas_length", "0", "canvas_length is 0" }, { "config", "canvas_length", "4096", "canvas_length is 4096" },
        { "config", "canvas_length", "null", NULL }, { "text", "num_experts", "-", "text_config.num_experts is missing" },
        { "text", "head_dim", "null", "text_config.head_dim is missing" }, { "text", "hidden_size", "\"a\"", "hidden_size" },
        { "text", "layer_types", "[1, 2]", "layer_types[0] is no string" }, { "text", "layer_types", "[]", "must list 2 layers" },
        { "text", "layer_types", "-", NULL }, { "text", "layer_types", "[\"full_attention\", \"sliding_attention\"]", "per_layer_config" },
        { "text", "per_layer_config", "3", "must be an object" }, { "text", "per_layer_config", "{\"0\": {}}", "per_layer_config.0" },
        { "text", "per_layer_config", "{\"x\": {}}", "per_layer_config.x" }, { "text", "per_layer_config", "{\"1\": 4}", "per_layer_config.1" },
        { "text", "per_layer_config", "{\"1\": {\"head_dim\": 33}}", "must be even" }, { "text", "per_layer_config", "null", NULL },
        { "text", "use_bidirectional_attention", "\"all\"", "use_bidirectional_attention" },
        { "generation", "max_denoising_steps", "0", "max_denoising_steps must be" },
        { "generation", "max_denoising_steps", "1.5", "whole numbers" }, { "generation", "max_denoising_steps", "null", NULL },
        { "generation", "t_max", "0.1", "t_max 0.1 must be above" }, { "generation", "t_min", "\"a\"", "t_min must be" },
        { "generation", "confidence_threshold", "0", "above the lower bound" }, { "generation", "stability_threshold", "100", "stability" },
        { "generation", "sampler_config", "{\"_cls_name\": \"Other\"}", "sampler_config is Other" },
        { "generation", "sampler_config", "{\"_cls_name\": 3}", "no string" }, { "generation", "sampler_config", "7", NULL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *config = NULL, *generation = NULL;
        struct model_spec spec;
        mb_error err = { 0 };
        assert_int_equal(json_read_file(&config, "tests/golden/tiny/diffusion_gemma/config.json", 1 << 20, &err), MB_OK);
        assert_int_equal(json_read_file(&generation, "tests/golden/tiny/diffusion_gemma/generation_config.json", 1 << 20, &err), MB_OK);
        json_t *o = strcmp(cases[i].where, "config") == 0 ? config
                    : strcmp(cases[i].where, "text") == 0 ? json_object_get(config, "text_config") : generation;
        if (strcmp(cases[i].value, "-") == 0) json_object_del(o, cases[i].key);
        else json_object_set_new(o, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        mb_status st = model_config_parse(&spec, config, generation, &err);
        if (cases[i].says ? st == MB_OK || !strstr(err.text, cases[i].says) : st != MB_OK)
            fail_msg("%s.%s = %s: \"%s\", wanted \"%s\"", cases[i].where, cases[i].key, cases[i].value, st == MB_OK ? "read" : err.text,
                     cases[i].says ? cases[i].says : "read");
        if (st == MB_OK) {
            assert_in_range(spec.canvas.n, 1, 256);
            assert_in_range(spec.canvas.n_rounds, 1, 48);
            model_spec_free(&spec);
        }
        json_decref(config);
        json_decref(generation);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds_equal_oracle),
        cmocka_unit_test(test_rounds_bits),
        cmocka_unit_test(test_both_layouts),
        cmocka_unit_test(test_config_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
