"""The same checkpoint in MLX layout and in plain Hugging Face layout gives the same bits (MOD-003): experts stacked in one tensor or
stored one by one."""
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


def plain_rest(tensors):
    """Everything but the experts in bfloat16, as published."""
    for module in [n[:-len(".scales")] for n in tensors if n.endswith(".scales") and ".experts." not in n]:
        _, (n_out, n_words), codes = tensors.pop(module + ".weight")
        s, b = (struct.unpack(f"<{len(d) // 2}f", b"".join(b"\0\0" + d[i:i + 2] for i in range(0, len(d), 2)))
                for _, _, d in (tensors.pop(module + k) for k in (".scales", ".biases")))
        tensors[module + ".weight"] = ["BF16", [n_out, 4 * n_words], rig.bf16(c * s[i // 64] + b[i // 64] for i, c in enumerate(codes))]


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
