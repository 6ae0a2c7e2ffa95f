/* test_config.c: a config.json with values of wrong types or out of range is refused as a malformed file that names the
 * key (MB_BAD_FORMAT), and what would be computed wrongly in silence is refused by name. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "model/spec.h"

/* A small llama with one more pair, which wins over an earlier one of the same key. */
static mb_status parse_with(const char *pair, const char *generation, mb_error *err)
{
    char text[640];
    json_t *config, *gen = NULL;
    struct model_spec spec;
    int n = snprintf(text, sizeof text, "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,\"vocab_size\":32,"
                     "\"intermediate_size\":64,\"num_attention_heads\":2%s%s}", pair[0] ? "," : "", pair);
    assert_int_equal(json_read(&config, text, (size_t)n, 0, err), MB_OK);
    if (generation) assert_int_equal(json_read(&gen, generation, strlen(generation), 0, err), MB_OK);
    mb_status st = model_config_parse(&spec, config, gen, err);
    if (st == MB_OK) model_spec_free(&spec);
    json_decref(config);
    json_decref(gen);
    return st;
}

static void test_wrong_values_are_refused(void **state)
{
    static const struct { const char *pair; mb_status st; const char *word; } rows[] = {
        { "\"hidden_size\":\"64\"", MB_BAD_FORMAT, "config.json: hidden_size must be of type integer" },
        { "\"hidden_size\":1000000000000000000000000000000", MB_BAD_FORMAT, "config.json: hidden_size" },
        { "\"attention_bias\":1", MB_BAD_FORMAT, "config.json: attention_bias must be of type boolean" },
        { "\"rope_theta\":[]", MB_BAD_FORMAT, "config.json: rope_theta must be of type number" },
        { "\"model_type\":3", MB_BAD_FORMAT, "config.json: model_type must be of type string" },
        { "\"model_type\":1000000000000000000000000000000", MB_BAD_FORMAT, "config.json: model_type must be of type string" },
        { "\"rms_norm_eps\":-1", MB_BAD_FORMAT, "rms_norm_eps" }, { "\"rms_norm_eps\":1e300", MB_BAD_FORMAT, "rms_norm_eps" },
        { "\"rope_scaling\":\"linear\"", MB_BAD_FORMAT, "rope_scaling must be an object" },
        { "\"rope_scaling\":[]", MB_BAD_FORMAT, "rope_scaling must be an object" },
        { "\"rope_scaling\":{\"rope_type\":3}", MB_BAD_FORMAT, "must be a string" },
        { "\"eos_token_id\":\"2\"", MB_BAD_FORMAT, "config.json: eos_token_id" },
        { "\"eos_token_id\":[1,[2]]", MB_BAD_FORMAT, "config.json: eos_token_id" },
        { "\"hidden_act\":\"gelu\"", MB_UNSUPPORTED, "hidden_act is gelu" }, { "\"hidden_act\":3", MB_UNSUPPORTED, "hidden_act" },
    };
    mb_error err;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memset(&err, 0, sizeof err);
        mb_status st = parse_with(rows[i].pair, NULL, &err);
        if (st != rows[i].st || err.code != st || !strstr(err.text, rows[i].word))
            fail_msg("%s: status %d, %s", rows[i].pair, (int)st, err.text);
    }
    assert_int_equal(parse_with("", "{\"eos_token_id\":true}", &err), MB_BAD_FORMAT);
    assert_non_null(strstr(err.text, "generation_config.json: eos_token_id"));
}

static void test_usual_values_are_taken(void **state)
{
    static const char *const fine[] = { "", "\"eos_token_id\":null", "\"eos_token_id\":[1,2,-1,99]", "\"rope_scaling\":null",
        "\"hidden_act\":\"silu\"", "\"hidden_act\":null", "\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", "\"rms_norm_eps\":1e-5" };
    mb_error err;
    (void)state;
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        if (parse_with(fine[i], "{\"eos_token_id\":[1]}", &err) != MB_OK) fail_msg("%s: %s", fine[i], err.text);
}

static void parse_text(const char *text, struct model_spec *spec)
{
    json_t *config;
    mb_error err = { 0 };
    assert_int_equal(json_read(&config, text, strlen(text), 0, &err), MB_OK);
    if (model_config_parse(spec, config, NULL, &err) != MB_OK) fail_msg("%s", err.text);
    json_decref(config);
}

/* Gemma 4 e4b (MOD-010, MOD-014, MOD-015, MOD-016, MOD-017): which layers see all, whose keys each one reads, what is kept. */
static void test_gemma4_e4b(void **state)
{
    struct model_spec s;
    int n_sliding = 0, n_full = 0;
    (void)state;
    parse_text("{\"model_type\":\"gemma4\",\"vision_config\":{},\"audio_config\":{},\"text_config\":{\"model_type\":\"gemma4_text\","
               "\"hidden_size\":2560,\"num_hidden_layers\":42,\"intermediate_size\":10240,\"num_attention_heads\":8,"
               "\"num_key_value_heads\":2,\"head_dim\":256,\"global_head_dim\":512,\"sliding_window\":1024,"
               "\"sliding_window_pattern\":6,\"num_kv_shared_layers\":18,\"use_double_wide_mlp\":false}}", &s);
    assert_int_equal(s.n_vocab, 262144);
    assert_int_equal(s.d_per_layer, 256);
    for (int i = 0; i < 42; i++) {
        const struct layer_spec *l = &s.layers[i];
        bool full = i % 6 == 5;
        assert_int_equal(l->window, full ? 0 : 1024);
        assert_int_equal(l->head_dim, full ? 512 : 256);
        assert_int_equal(l->attn == ATTN_SHARED_KV, i >= 24);
        assert_int_equal(l->i_kv_donor, i < 24 ? -1 : full ? 23 : 22);
        assert_int_equal(l->d_ff, 10240);
        if (i >= 24) *(full ? &n_full : &n_sliding) += 1;
        if (i >= 24) assert_int_equal(l->i_in_kind, s.layers[l->i_kv_donor].i_in_kind);
    }
    assert_int_equal(n_sliding, 15);
    assert_int_equal(n_full, 3);
    assert_int_equal(s.n_kinds, 2); /* pages for the layers that have keys alone */
    assert_int_equal(s.kinds[s.layers[22].i_kind].n_layer, 20);
    assert_int_equal(s.kinds[s.layers[23].i_kind].n_layer, 4);
    assert_int_equal(s.ropes[s.layers[5].i_rope].n_turning, 128); /* a quarter of 512 */
    model_spec_free(&s);
}

/* The 12B says nothing of per-layer inputs and shared keys, for it has none. */
static void test_gemma4_unified(void **state)
{
    struct model_spec s;
    (void)state;
    parse_text("{\"model_type\":\"gemma4_unified\",\"vision_config\":{\"model_type\":\"gemma4_unified_vision\"},\"text_config\":{"
               "\"hidden_size\":3840,\"num_hidden_layers\":48,\"intermediate_size\":15360,\"num_attention_heads\":16,"
               "\"num_key_value_heads\":8,\"num_global_key_value_heads\":1,\"attention_k_eq_v\":true,\"vocab_size\":262144}}", &s);
    assert_int_equal(s.d_per_layer, 0);
    assert_int_equal(s.layers[0].window, 1024);
    assert_int_equal(s.layers[0].n_head_kv, 8);
    assert_int_equal(s.layers[47].attn, ATTN_FULL);
    assert_int_equal(s.layers[47].n_head_kv, 1);
    assert_true(s.layers[47].v_is_k && !s.layers[0].v_is_k);
    model_spec_free(&s);
}

/* MOD-005: MiniCPM5 1B is a llama, whatever it calls itself; without the numbers of older MiniCPMs nothing is scaled. */
static void test_minicpm5_1b(void **state)
{
    struct model_spec s;
    (void)state;
    parse_text("{\"model_type\":\"minicpm5\",\"hidden_size\":1536,\"num_hidden_layers\":24,\"intermediate_size\":4608,"
               "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"head_dim\":128,\"vocab_size\":130560,\"rms_norm_eps\":1e-6,"
               "\"max_position_embeddings\":131072,\"rope_theta\":5000000,\"tie_word_embeddings\":false}", &s);
    assert_int_equal(s.d_model, 1536);
    assert_int_equal(s.n_vocab, 130560);
    assert_int_equal(s.glu, GLU_SILU);
    assert_false(s.tied_head || s.post_norms || s.layer_norm || s.mlp_in);
    assert_true(s.embed_scale == 1 && s.residual_scale == 0 && s.logit_scale == 0);
    for (int i = 0; i < s.n_layer; i++) assert_true(s.layers[i].attn == ATTN_FULL && s.layers[i].mlp == MLP_GATED);
    model_spec_free(&s);
}

/* REG-239: StarCoder2 3B, and what it would compute wrongly in silence. */
static void test_starcoder2(void **state)
{
    static const struct { const char *pair, *word; } bad[] = {
        { "\"hidden_act\":\"gelu\"", "hidden_act is gelu" }, { "\"norm_type\":\"rms\"", "norm_type is rms" },
        { "\"mlp_type\":\"gated\"", "mlp_type is gated" }, { "\"norm_epsilon\":-1", "norm_epsilon" },
    };
    struct model_spec s;
    mb_error err;
    (void)state;
    parse_text("{\"model_type\":\"starcoder2\",\"hidden_size\":3072,\"num_hidden_layers\":30,\"intermediate_size\":12288,"
               "\"num_attention_heads\":24,\"num_key_value_heads\":2,\"vocab_size\":49152,\"norm_epsilon\":1e-5,\"sliding_window\":4096,"
               "\"hidden_act\":\"gelu_pytorch_tanh\",\"max_position_embeddings\":16384,\"rope_theta\":999999.4420358813,\"use_bias\":true}", &s);
    assert_true(s.tied_head && s.layer_norm && s.mlp_in && s.mlp_bias && s.attn_bias_o);
    assert_true(s.norm_eps == 1e-5f && s.layers[29].window == 4096);
    model_spec_free(&s);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char pair[128];
        snprintf(pair, sizeof pair, "\"model_type\":\"starcoder2\",%s", bad[i].pair);
        assert_int_not_equal(parse_with(pair, NULL, &err), MB_OK);
        if (!strstr(err.text, bad[i].word)) fail_msg("%s: %s", bad[i].pair, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_values_are_refused),
        cmocka_unit_test(test_usual_values_are_taken),
        cmocka_unit_test(test_gemma4_e4b),
        cmocka_unit_test(test_gemma4_unified),
        cmocka_unit_test(test_minicpm5_1b),
        cmocka_unit_test(test_starcoder2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
