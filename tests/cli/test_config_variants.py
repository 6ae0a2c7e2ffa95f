"""config.json as published checkpoints of these families write it: older and newer keys for the same thing give the same bits, what would
be computed otherwise is refused by name. Names of keys: transformers 4 and 5, mlx-lm."""
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
import http_rig as rig  # noqa: E402

IDS = [(7 * i * i + 3) % 500 for i in range(90)]


def config_of(family):
    return json.loads((rig.TINY / family / "config.json").read_text())


def scores(model, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(IDS))
    done = rig.run("perplexity", model, "--ids", ids, "--json")
    assert done.returncode == 0, done.stderr
    return {k: v for k, v in json.loads(done.stdout).items() if k != "model"}


def variant(tmp_path, family, change, tensors=None):
    """A copy whose config.json is change(config)."""
    model = rig.copy_model(tmp_path, family, tensors=tensors)
    config = config_of(family)
    (model / "config.json").write_text(json.dumps(change(config) or config))
    return model


def without(c, *keys):
    return {k: c.pop(k) for k in keys if k in c}


def rope_in_one(c):
    """transformers 5: everything about positions in one object."""
    c["rope_parameters"] = {**c.pop("rope_scaling"), "rope_theta": c.pop("rope_theta")}


def rope_by_layer(c):
    """transformers 5, where layers differ."""
    window = {"rope_type": "default", "rope_theta": c.pop("rope_local_base_freq", c["rope_theta"])}
    c["rope_parameters"] = {"full_attention": {**c.pop("rope_scaling"), "rope_theta": c.pop("rope_theta")}, "sliding_attention": window}
    every = c.pop("sliding_window_pattern", 4)
    c["layer_types"] = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(c["num_hidden_layers"])]
    c["rope_scaling"] = None


def old_type_key(c):
    c["rope_scaling"]["type"] = c["rope_scaling"].pop("rope_type")


def both_type_keys(c):
    c["rope_scaling"]["type"] = c["rope_scaling"]["rope_type"]


def below_text_config(c):
    """A text model below one that sees."""
    quant = without(c, "quantization", "quantization_config")
    return {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": c, "vision_config": {}, **quant}


def unnested(c):
    text = c.pop("text_config")
    return {**c, **text, "model_type": "qwen3_5_text"}


def windows_that_are_not_used(c):
    c.update(use_sliding_window=False, sliding_window=16, max_window_layers=1, layer_types=["full_attention"] * c["num_hidden_layers"])


def windows_that_are_null(c):
    c.pop("layer_types", None)
    c.update(use_sliding_window=True, sliding_window=None, max_window_layers=0)


def heads_unsaid(c):
    assert c["head_dim"] * c["num_attention_heads"] == c["hidden_size"]
    c["head_dim"] = None


def one_quantisation_key(c):
    del c["quantization"]


def other_quantisation_key(c):
    del c["quantization_config"]
    c["quantization"]["quant_method"] = None


def overrides_under(prefix):
    """The keys of modules as another exporter writes them."""
    def change(c):
        for entry in ("quantization", "quantization_config"):
            bare = {k.removeprefix("language_model.").removeprefix("model."): v for k, v in c[entry].items()}
            c[entry] = {prefix + k if isinstance(v, (dict, bool)) and k != "lm_head" else k: v for k, v in bare.items()}
    return change


def many_ends(c):
    c["eos_token_id"] = [c["eos_token_id"], 3]


def with_nulls(c):
    c.update(rope_scaling=None, sliding_window=None, layer_types=None, quantization_config=None, attention_bias=None, no_rope_layers=None)


@pytest.mark.parametrize("family, change", [
    ("llama", rope_in_one), ("llama", old_type_key), ("llama", both_type_keys), ("llama", heads_unsaid), ("llama", one_quantisation_key),
    ("llama", many_ends), ("gemma3", rope_by_layer), ("gemma3", one_quantisation_key), ("olmo3", rope_by_layer), ("olmo3", rope_in_one),
    ("qwen2", windows_that_are_not_used), ("qwen3", windows_that_are_not_used), ("qwen2", windows_that_are_null),
    ("qwen3", windows_that_are_null), ("qwen3", one_quantisation_key),
    ("qwen3", other_quantisation_key), ("qwen3", with_nulls), ("smollm3", with_nulls),
    ("qwen3_5", unnested),
])
def test_the_same_in_other_words(family, change, tmp_path):
    """B-112 B-113 MOD-051 MOD-003"""
    assert scores(variant(tmp_path, family, change), tmp_path) == scores(rig.TINY / family, tmp_path)


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model.", "model."])
@pytest.mark.parametrize("family", ["llama-fp", "gpt_oss", "qwen3_moe", "qwen3_5", "gemma4-moe", "deepseek_v3"])
def test_overrides_in_every_mode(family, prefix, tmp_path):
    """B-113: widths, groups and modes by layer (affine of 4, 5, 6, 8 bits, nvfp4, mxfp8, mxfp4), full, windowed, recurrent layers, latents and
    experts: under whatever path an exporter gives."""
    assert scores(variant(tmp_path, family, overrides_under(prefix)), tmp_path) == scores(rig.TINY / family, tmp_path)


@pytest.mark.parametrize("family, module, spec, texts", [
    ("llama-fp", "model.layers.0.self_attn.q_proj", {"bits": 4, "group_size": 32, "mode": "mxfp4"}, ["q_proj.weight holds 8-bit codes", "4 bits"]),
    ("llama-fp", "model.layers.0.mlp.gate_proj", {"bits": 4, "group_size": 16, "mode": "nvfp4"}, ["gate_proj.scales"]),
    ("llama-fp", "model.layers.1.mlp.gate_proj", {"bits": 4, "group_size": 64, "mode": "affine"}, ["gate_proj.weight is U32 with scales of type U8"]),
    ("gpt_oss", "model.layers.1.mlp.experts.up_proj", {"bits": 8, "group_size": 32, "mode": "mxfp8"}, ["experts.up_proj.weight holds 4-bit codes", "8 bits"]),
    ("qwen3_5", "language_model.model.layers.0.linear_attn.in_proj_a", {"bits": 4, "group_size": 32}, ["in_proj_a.weight holds 8-bit codes", "4 bits"]),
    ("qwen3_5", "language_model.model.layers.0.linear_attn.in_proj_z", False, ["in_proj_z.weight holds packed codes"]),
    ("gemma3", "model.layers.1.self_attn.k_proj", {"bits": 6, "group_size": 32}, ["k_proj.weight holds 4-bit codes", "6 bits"]),
    ("qwen3_moe", "model.layers.0.mlp.switch_mlp.up_proj", {"bits": 5, "group_size": 32}, ["switch_mlp.up_proj.weight holds 4-bit codes", "5 bits"]),
])
def test_a_width_that_the_shape_contradicts(family, module, spec, texts, tmp_path):
    """B-113: the tensor is named, with both widths."""
    def change(c):
        for entry in ("quantization", "quantization_config"):
            c[entry][module] = spec
    done = rig.run("generate", variant(tmp_path, family, change), "--prompt", "x", "--max-tokens", "1")
    assert done.returncode != 0 and all(t in done.stderr for t in texts), done.stderr


def test_gemma3_below_a_model_that_sees(tmp_path):
    """MOD-003"""
    def inner(tensors):
        for name in list(tensors):
            tensors["language_model." + name] = tensors.pop(name)
        tensors["vision_tower.vision_model.post_layernorm.weight"] = ["BF16", [2], bytes(4)]
    got = variant(tmp_path, "gemma3", below_text_config, inner)
    assert scores(got, tmp_path) == scores(rig.TINY / "gemma3", tmp_path)


def test_ministral3_below_a_model_that_sees(tmp_path):
    """MOD-003: names and config of the published model; in text_config the head's tie is said by nobody."""
    def inner(tensors):
        for name in list(tensors):
            tensors["language_model." + name] = tensors.pop(name)
        tensors["vision_tower.ln_pre.weight"] = ["BF16", [2], bytes(4)]
        tensors["multi_modal_projector.norm.weight"] = ["BF16", [2], bytes(4)]

    def outer(c):
        quant = without(c, "quantization", "quantization_config", "tie_word_embeddings")
        return {"model_type": "mistral3", "text_config": c, **quant}
    got = variant(tmp_path, "ministral3", outer, inner)
    assert scores(got, tmp_path) == scores(rig.TINY / "ministral3", tmp_path)


def test_mistral_small_below_a_model_that_sees(tmp_path):
    """MOD-003: mistral3 over a plain Mistral."""
    def outer(c):
        quant = without(c, "quantization", "quantization_config")
        return {"model_type": "mistral3", "text_config": {**c, "model_type": "mistral"}, **quant}
    assert scores(variant(tmp_path, "llama", outer), tmp_path) == scores(rig.TINY / "llama", tmp_path)


def test_windows_of_qwen_and_ministral(tmp_path):
    """Windows that a config switches on: layers from max_window_layers on, as layer_types says them; all layers of a Ministral."""
    def by_number(c):
        c.update(use_sliding_window=True, sliding_window=16, max_window_layers=1)

    def by_name(c):
        c.update(sliding_window=16, layer_types=["full_attention"] + ["sliding_attention"] * (c["num_hidden_layers"] - 1))
    for family in ("qwen2", "qwen3"):
        got, want = (scores(variant(tmp_path / f"{family}-{f.__name__}", family, f), tmp_path) for f in (by_number, by_name))
        assert got == want != scores(rig.TINY / family, tmp_path)

    def everywhere(c):
        c.update(model_type="ministral", sliding_window=16)

    def everywhere_by_name(c):
        c.update(sliding_window=16, layer_types=["sliding_attention"] * c["num_hidden_layers"])
    got, want = (scores(variant(tmp_path / f.__name__, "llama", f), tmp_path) for f in (everywhere, everywhere_by_name))
    assert got == want != scores(rig.TINY / "llama", tmp_path)


def test_a_head_of_its_own(tmp_path):
    """A config that says nothing of the head, where the family's default is a tied one: a head in the file is used, and without one the
    embedding."""
    def silent(c):
        del c["tie_word_embeddings"]
    assert scores(variant(tmp_path / "own", "qwen2", silent), tmp_path) == scores(rig.TINY / "qwen2", tmp_path)
    assert scores(variant(tmp_path / "tied", "llama", silent), tmp_path) == scores(rig.TINY / "llama", tmp_path)


@pytest.mark.parametrize("family, change, text", [
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is set (EmbeddingGemma)"),
    ("llama", {"rope_scaling": None, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters differ by kind of layer"),
    ("llama", {"rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 1, 2]}}, "rope scaling type mrope is not known"),
    ("llama", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling.factor is missing"),
    ("qwen3", {"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "layer_types[1] is chunked_attention"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types must list 3 layers"),
    ("qwen3", {"layer_types": ["sliding_attention"] * 3, "sliding_window": None}, "sliding_window is missing"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act is gelu"),
    ("llama", {"eos_token_id": ["</s>"]}, "eos_token_id must be a token id or a list of them"),
    ("ministral3", {"rope_parameters": None}, "rope_parameters is missing"),
    ("ministral3", {"rope_parameters": {"llama_4_scaling_beta": -1}}, "llama_4_scaling_beta is -1"),
    ("ministral3", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "original_max_position_embeddings is missing"),
    ("ministral3", {"model_type": "mistral3", "text_config": {"model_type": "mistral4"}}, "text_config.model_type mistral4"),
    ("llama", {"quantization": None, "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}, "blocks of 128 x 128"),
    ("llama", {"quantization": None, "quantization_config": {"quant_method": "compressed-tensors"}}, "packed with compressed-tensors"),
    ("llama", {"model_type": "cohere2"}, "model_type cohere2 is not supported"),
])
def test_what_would_be_wrong_is_refused(family, change, text, tmp_path):
    """B-112 B-113"""
    done = rig.run("generate", rig.copy_model(tmp_path, family, config=change), "--prompt", "x", "--max-tokens", "1")
    assert done.returncode != 0 and text in done.stderr, done.stderr
