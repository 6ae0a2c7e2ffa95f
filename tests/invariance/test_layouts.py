"""The same checkpoint in MLX layout and in plain Hugging Face layout gives the same bits (MOD-003): experts stacked in one tensor or
stored one by one."""
import hashlib
import importlib.util
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
import http_rig as rig  # noqa: E402

MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build" / "mlx-bun"))
# What each family calls the stack, one expert, and its three matrices there.
LAYOUTS = {"qwen3_moe": ("mlp.switch_mlp", "mlp.experts.{}", "gate_proj", "up_proj", "down_proj"),
           "mixtral": ("block_sparse_moe.switch_mlp", "block_sparse_moe.experts.{}", "w1", "w3", "w2")}


def scores(model, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([(7 * i * i + 3) % 500 for i in range(70)]))
    done = subprocess.run([MLX_BUN, "perplexity", str(model), "--ids", str(ids), "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def said(model, tmp_path):
    """What a model says that has no scores, because it draws by canvases: ids of two of them, drawn and the best."""
    out = []
    for how in (("--temp", "0"), ("--seed", "7")):
        done = rig.run("generate", model, "--raw", "--prompt", "one two three " * 9, "--max-tokens", "40", "--ignore-eos", "--json", *how)
        assert done.returncode == 0, done.stderr
        out += json.loads(done.stdout)["ids"]
    assert len(out) == 80 and len(set(out)) > 10
    return {"ids": out}


def unstack(family):
    stack, one, *names = LAYOUTS[family]

    def change(tensors):
        for name in [n for n in tensors if stack in n]:
            dtype, (n_expert, *shape), data = tensors.pop(name)
            which = re.search(r"\.(gate|up|down)_proj\.", name).group(1)
            new = names[("gate", "up", "down").index(which)]
            size = len(data) // n_expert
            for e in range(n_expert):
                path = name.replace(stack, one.format(e)).replace(f"{which}_proj", new)
                tensors[path] = [dtype, shape, data[e * size:(e + 1) * size]]
    return change


@pytest.mark.parametrize("family", LAYOUTS)
def test_experts_stacked_or_listed(family, tmp_path):
    listed = rig.copy_model(tmp_path, family, tensors=unstack(family))
    want, got = scores(rig.TINY / family, tmp_path), scores(listed, tmp_path)
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(want) == drop(got)


_spec = importlib.util.spec_from_file_location("convert_source_layouts", ROOT / "tests/golden/convert/source.py")
source = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(source)
PLAIN = sorted({family for family, how, _ in source.CASES.values() if not how.get("packed") and not how.get("fp8") and not how.get("blocks")})
if rig.SANITIZED:
    PLAIN = ["qwen3_5_moe", "gemma4-moe"]


@pytest.mark.parametrize("family", PLAIN)
def test_published_and_mlx_layout(family, tmp_path):
    """MOD-003: a checkpoint as its makers publish it (experts one by one or gate and up in one, taps last, norms of weight - 1, kv_b_proj,
    names below a model that sees, gpt-oss in blocks) and the MLX layout that convert makes of it, whose tensors are mlx_lm.convert's
    (tests/golden/convert), give the same bits."""
    published = source.write(family, tmp_path / "hf", blocks=family == "gpt_oss")
    done = rig.run("convert", published, tmp_path / "mlx", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    says = said if family == "diffusion_gemma" else scores      # its logits: tests/golden/test_diffusion.c, test_both_layouts
    want, got = says(tmp_path / "mlx", tmp_path), says(published, tmp_path)
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(want) == drop(got)


def publish(tensors):
    """gpt-oss as published: rows of gate and up in turn, mxfp4 codes in blocks of 16 bytes."""
    for layer in range(2):
        stack = f"model.layers.{layer}.mlp.experts."
        for kind, (out, tail) in {"weight": ("_blocks", 16), "scales": ("_scales", 0), "bias": ("_bias", 0)}.items():
            (dtype, shape, gate), (_, _, up) = (tensors.pop(f"{stack}{n}_proj.{kind}") for n in ("gate", "up"))
            size = len(gate) // (shape[0] * shape[1])         # of a row; of one bias
            rows = b"".join(p[i:i + size] for i in range(0, len(gate), size) for p in (gate, up))
            down_dtype, down_shape, down = tensors.pop(f"{stack}down_proj.{kind}")
            for name, dt, (e, n, *k), data in (("gate_up_proj", dtype, (shape[0], 2 * shape[1], *shape[2:]), rows),
                                               ("down_proj", down_dtype, down_shape, down)):
                if tail:
                    dt, k = "U8", (k[0] * 4 // tail, tail)
                tensors[stack + name + out] = [dt, [e, n, *k], data]


FORMATS = {4: (4, 32), 8: (8, 32), 16: (8, 64)}     # words of codes a group -> bits, group: as the tiny checkpoints have them


def plain(tensors, but="-"):
    """Packed matrices in bfloat16, but for those with `but` in the name."""
    for module in [n[:-len(".scales")] for n in tensors if n.endswith(".scales") and but not in n]:
        (_, shape, codes), (_, groups, s), (_, _, b) = (tensors.pop(module + k) for k in (".weight", ".scales", ".biases"))
        bits, group = FORMATS[shape[-1] // groups[-1]]
        s, b = (struct.unpack(f"<{len(d) // 2}f", b"".join(b"\0\0" + d[i:i + 2] for i in range(0, len(d), 2))) for d in (s, b))
        codes = codes if bits == 8 else [c >> shift & 15 for c in codes for shift in (0, 4)]
        tensors[module + ".weight"] = ["BF16", [*shape[:-1], groups[-1] * group],
                                       rig.bf16(c * s[i // group] + b[i // group] for i, c in enumerate(codes))]


def plain_rest(tensors):
    """Everything but the experts in bfloat16, as published."""
    plain(tensors, but=".experts.")


def test_gpt_oss_as_published(tmp_path):
    def both(tensors):
        plain_rest(tensors)
        publish(tensors)
    mlx = rig.copy_model(tmp_path / "mlx", "gpt_oss", tensors=plain_rest,
                         config={"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}})
    published = rig.copy_model(tmp_path / "hf", "gpt_oss", tensors=both, config={
        "quantization": None, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}})
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(scores(mlx, tmp_path)) == drop(scores(published, tmp_path))


def refusal(model):
    done = rig.run("generate", model, "--prompt", "x", "--max-tokens", "1")
    assert done.returncode != 0
    return done.stderr


def test_gpt_oss_refusals_by_name(tmp_path):
    def plain(tensors):
        publish(tensors)
        name = "model.layers.0.mlp.experts.gate_up_proj"
        _, _, data = tensors.pop(name + "_blocks")
        tensors[name] = ["BF16", [len(data) // 2], data]

    def lost(tensors):
        publish(tensors)
        del tensors["model.layers.1.mlp.experts.down_proj_scales"]

    assert "take the mxfp4 checkpoint as published" in refusal(rig.copy_model(tmp_path / "a", "gpt_oss", tensors=plain))
    assert "model.layers.1.mlp.experts.down_proj_scales is missing" in refusal(rig.copy_model(tmp_path / "b", "gpt_oss", tensors=lost))
    assert "swiglu_limit" in refusal(rig.copy_model(tmp_path / "c", "gpt_oss", config={"swiglu_limit": 10.0}))


def test_nvfp4_with_a_tensor_scale_is_refused_by_name(tmp_path):
    """B-113"""
    def change(tensors):
        tensors["model.layers.0.self_attn.k_proj.global_scale"] = ["F32", [1], b"\0\0\x80?"]
    assert "model.layers.0.self_attn.k_proj.global_scale" in refusal(rig.copy_model(tmp_path, "llama-fp", tensors=change))


def test_a_missing_expert_is_named(tmp_path):
    def change(tensors):
        unstack("qwen3_moe")(tensors)
        del tensors["model.layers.2.mlp.experts.5.up_proj.weight"]
    model = rig.copy_model(tmp_path, "qwen3_moe", tensors=change)
    done = subprocess.run([MLX_BUN, "generate", str(model), "--prompt", "x", "--max-tokens", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "model.layers.2.mlp.experts.5.up_proj.weight" in done.stderr


def in_published_folder(tensors):
    """Gemma 4's own files: model.language_model. in front; gate and up of all experts in one tensor, without ".weight"."""
    for name in list(tensors):
        tensors["model.language_model." + name.removeprefix("language_model.").removeprefix("model.")] = tensors.pop(name)
    for name in [n for n in tensors if n.endswith("experts.switch_glu.gate_proj.weight")]:
        up = name.replace("gate_proj", "up_proj")
        (dtype, (n_expert, n, k), gate), (_, _, up) = tensors.pop(name), tensors.pop(up)
        size = len(gate) // n_expert
        at = name.replace("switch_glu.gate_proj.weight", "gate_up_proj")
        tensors[at] = [dtype, [n_expert, 2 * n, k], b"".join(p[e * size:(e + 1) * size] for e in range(n_expert) for p in (gate, up))]
        tensors[at.replace("gate_up_proj", "down_proj")] = tensors.pop(name.replace("gate_proj", "down_proj"))


@pytest.mark.parametrize("family", ["gemma4-kv", "gemma4-moe"])
def test_gemma4_as_published(family, tmp_path):
    """MOD-003: plain MLX names and the names of the model's own files; a tower's tensors are passed over (MOD-019)."""
    def both(tensors):
        plain(tensors)
        in_published_folder(tensors)
        tensors["model.vision_tower.std_scale"] = ["BF16", [2], bytes(4)]
    config = json.loads((rig.TINY / family / "config.json").read_text())
    wrapped = {"model_type": "gemma4", "text_config": config.get("text_config", config), "quantization": None, "vision_config": {}}
    mlx = rig.copy_model(tmp_path / "mlx", family, tensors=plain, config={"quantization": None})
    published = rig.copy_model(tmp_path / "hf", family, tensors=both, config=wrapped)
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(scores(mlx, tmp_path)) == drop(scores(published, tmp_path))


def test_gemma4_keys_of_sharing_layers_are_passed_over(tmp_path):
    """MOD-016: published files hold k_proj, v_proj, k_norm of layers that never use them."""
    def add(tensors):
        for name in [n for n in tensors if ".layers.2.self_attn.k_proj" in n or ".layers.2.self_attn.v_proj" in n]:
            tensors[name.replace(".2.", ".3.")] = [tensors[name][0], tensors[name][1], bytes(len(tensors[name][2]))]
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(scores(rig.TINY / "gemma4", tmp_path)) == drop(scores(rig.copy_model(tmp_path, "gemma4", tensors=add), tmp_path))


@pytest.mark.parametrize("family, change, text", [
    ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ("gemma4", {"final_logit_softcapping": 1e300}, "final_logit_softcapping is 1e+300"),
    ("gemma4", {"hidden_activation": "silu"}, "hidden_activation is silu"),
    ("gemma4", {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
    ("gemma4", {"vocab_size_per_layer_input": 256}, "vocab_size_per_layer_input"),
    ("gemma4-moe", {"top_k_experts": 9}, "top_k_experts"),
    ("gemma4-moe", {"moe_intermediate_size": 40}, "multiples of 16"),
    ("gemma4", {"rope_parameters": {"full_attention": {"rope_type": "default", "partial_rotary_factor": 0.5}}}, "turns a part of the head"),
])
def test_gemma4_refusals_by_name(family, change, text, tmp_path):
    assert text in refusal(rig.copy_model(tmp_path, family, config=change))


def test_gemma4_expert_tensors_are_checked(tmp_path):
    """B-113"""
    def narrow(tensors):
        plain(tensors)
        in_published_folder(tensors)
        at = "model.language_model.layers.1.experts.gate_up_proj"
        dtype, (e, n, k), data = tensors[at]
        tensors[at] = [dtype, [e, n // 2, k], data[:len(data) // 2]]
    words = refusal(rig.copy_model(tmp_path, "gemma4-moe", tensors=narrow, config={"quantization": None}))
    assert "model.language_model.layers.1.experts.gate_up_proj" in words and "wanted [8, 64, 64]" in words


def latents_as_published(tensors):
    """kv_b_proj instead of embed_q and unembed_out, experts one by one, and a layer for multi-token prediction."""
    for name in [n for n in tensors if n.endswith("embed_q.weight")]:
        dtype, (heads, rank, nope), keys = tensors.pop(name)
        _, (_, value, _), values = tensors.pop(name.replace("embed_q", "unembed_out"))
        data = b""
        for h in range(heads):
            head = keys[2 * h * rank * nope:2 * (h + 1) * rank * nope]
            data += b"".join(head[2 * (j * nope + i):2 * (j * nope + i) + 2] for i in range(nope) for j in range(rank))
            data += values[2 * h * value * rank:2 * (h + 1) * value * rank]
        tensors[name.replace("embed_q", "kv_b_proj")] = [dtype, [heads * (nope + value), rank], data]
    for name in [n for n in tensors if "mlp.switch_mlp" in n]:
        dtype, (n_expert, *shape), data = tensors.pop(name)
        size = len(data) // n_expert
        for e in range(n_expert):
            tensors[name.replace("switch_mlp", f"experts.{e}")] = [dtype, shape, data[e * size:(e + 1) * size]]
    tensors["model.layers.2.eh_proj.weight"] = ["BF16", [2, 4], bytes(16)]


@pytest.mark.parametrize("family", ["glm4_moe_lite", "glm_moe_dsa"])
def test_latents_as_published(family, tmp_path):
    """MOD-003, MOD-036"""
    def both(tensors):
        plain(tensors)
        latents_as_published(tensors)
    mlx = rig.copy_model(tmp_path / "mlx", family, tensors=plain, config={"quantization": None})
    published = rig.copy_model(tmp_path / "hf", family, tensors=both, config={"quantization": None})
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(scores(mlx, tmp_path)) == drop(scores(published, tmp_path))


@pytest.mark.parametrize("family, change, text", [
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func is softmax"),
    ("deepseek_v3", {"topk_group": 5}, "topk_group"),
    ("deepseek_v3", {"kv_lora_rank": 40}, "multiples of 16"),
    ("deepseek_v3", {"qk_rope_head_dim": None}, "qk_rope_head_dim"),
    ("glm_moe_dsa", {"index_topk_pattern": "SF"}, "layer 0 shares an indexer"),
    ("glm_moe_dsa", {"index_topk_pattern": "F"}, "index_topk_pattern"),
    ("glm_moe_dsa", {"index_topk": 0}, "index_topk"),
])
def test_latent_refusals_by_name(family, change, text, tmp_path):
    assert text in refusal(rig.copy_model(tmp_path, family, config=change))


def in_float8(tensors, keep=()):
    """Matrices of the layers in block-scaled float8, as DeepSeek, GLM and Qwen publish them; returns nothing, makes the bfloat16 twin
    with `twin`. Codes and scales come from the names."""
    for name in [n for n, t in tensors.items() if n.endswith(".weight") and ".layers." in n and t[0] == "BF16" and len(t[1]) == 2
                 and "norm" not in n and not n.endswith(("mlp.gate.weight",) + tuple(keep))]:
        rows, cols = tensors[name][1]
        n_r, n_c = -(-rows // 128), -(-cols // 128)
        raw = hashlib.shake_128(name.encode()).digest(rows * cols)
        raw = bytes(b & 0xBF if b & 127 == 127 else b for b in raw)
        kind, size = ("BF16", 2) if "q_proj" in name else ("F32", 4)       # both are published
        scale = [1e-4 * (1 + x / 200) for x in hashlib.shake_128(name[::-1].encode()).digest(n_r * n_c)]
        scale = rig.bf16(scale) if size == 2 else struct.pack(f"<{len(scale)}f", *scale)
        tensors[name] = ["F8_E4M3", [rows, cols], raw]
        tensors[name + "_scale_inv"] = [kind, [n_r, n_c], scale]


def e4m3(b):
    e, m = b >> 3 & 15, b & 7
    v = m * 2.0 ** -9 if e == 0 else (8 + m) * 2.0 ** (e - 10)
    return -v if b & 128 else v


def twin(tensors):
    """What mlx-lm's loader makes of in_float8: value times scale, rounded to bfloat16."""
    for name in [n for n, t in tensors.items() if t[0] == "F8_E4M3"]:
        _, (rows, cols), raw = tensors[name]
        kind, (_, n_c), scale = tensors.pop(name + "_scale_inv")
        if kind == "BF16":
            scale = b"".join(b"\0\0" + scale[i:i + 2] for i in range(0, len(scale), 2))
        scale = struct.unpack(f"<{len(scale) // 4}f", scale)
        values = [e4m3(raw[r * cols + c]) * scale[r // 128 * n_c + c // 128] for r in range(rows) for c in range(cols)]
        bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        tensors[name] = ["BF16", [rows, cols], struct.pack(f"<{len(bits)}H", *((u + 0x7fff + (u >> 16 & 1)) >> 16 for u in bits))]


FLOAT8 = {"quantization": None, "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}}


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "deepseek_v3"])
def test_float8_blocks(family, tmp_path):
    """MOD-003 MOD-051: a published float8 checkpoint gives the bits of the bfloat16 one that mlx-lm makes of it; experts one by one,
    kv_b_proj cut into heads and turned, blocks cut at the edge."""
    def published(tensors):
        plain_any(tensors, json.loads((rig.TINY / family / "config.json").read_text())["quantization"])
        if family == "deepseek_v3":
            latents_as_published(tensors)
        elif family == "qwen3_moe":
            unstack(family)(tensors)
        in_float8(tensors)

    def both(tensors):
        published(tensors)
        twin(tensors)
    got = rig.copy_model(tmp_path / "fp8", family, tensors=published, config=FLOAT8)
    want = rig.copy_model(tmp_path / "bf16", family, tensors=both, config={"quantization": None})
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(scores(want, tmp_path)) == drop(scores(got, tmp_path))


def plain_any(tensors, quantization):
    """Every packed matrix as bfloat16 of about its values, whatever its bits."""
    for module in [n[:-len(".scales")] for n in tensors if n.endswith(".scales")]:
        (_, shape, _), _, _ = (tensors.pop(module + k) for k in (".weight", ".scales", ".biases"))
        bits = quantization.get(module, quantization).get("bits", 4)
        shape = [*shape[:-1], shape[-1] * 32 // bits]
        n = 1
        for d in shape:
            n *= d
        raw = hashlib.shake_128(module.encode()).digest(n)
        tensors[module + ".weight"] = ["BF16", shape, rig.bf16((b - 127.5) / 127.5 / shape[-1] ** 0.5 * 2 for b in raw)]


@pytest.mark.parametrize("change, text", [
    (lambda t, n: t.pop(n + "_scale_inv"), "weight_scale_inv is missing"),
    (lambda t, n: t.update({n + "_scale_inv": ["F32", [1], bytes(4)]}), "one for each block of 128 x 128"),
    (lambda t, n: t.update({n + "_scale_inv": ["U8", t[n + "_scale_inv"][1], bytes(len(t[n + "_scale_inv"][2]) // 4)]}), "wanted floats"),
])
def test_float8_refusals_by_name(change, text, tmp_path):
    """B-113"""
    name = "model.layers.1.mlp.up_proj.weight"

    def published(tensors):
        plain_any(tensors, json.loads((rig.TINY / "qwen3" / "config.json").read_text())["quantization"])
        in_float8(tensors)
        change(tensors, name)
    words = refusal(rig.copy_model(tmp_path, "qwen3", tensors=published, config=FLOAT8))
    assert name.removesuffix(".weight") in words and text in words


def test_other_float8_is_refused_by_name(tmp_path):
    words = refusal(rig.copy_model(tmp_path, "qwen3", config={"quantization": None, "quantization_config": {"quant_method": "fp8"}}))
    assert "blocks of 128 x 128" in words
