"""LoRA adapters for the tiny checkpoints and logits with them: tests/golden/adapters/.

The folders are written in the forms that mlx-lm, PEFT and the trainer write. The logits come from the float64 forward of
ref64.py with y + scale * (x A) B added to each adapted linear, computed here from the arrays that were drawn, not from the
folders; where mlx-lm can load a folder it must agree.
"""
import json
import shutil
import struct

import numpy as np

from common import GOLDEN, TINY, load_mlx_f32, mlx_logits, versions, write_json
from make_logits import prompt_ids
from ref64 import Gemma4, Ref64

OUT = GOLDEN / "adapters"
N_PROMPT = 90
POSITIONS = [0, 1, 20, 63, 64, 89]
ALL = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
       "mlp.down_proj"]


class WithLora:
    """adapters: a list of {module: (A [k][r], B [r][n], scale)}."""

    def __init__(self, path, adapters):
        super().__init__(path)
        self.adapters = adapters

    def linear(self, x, module):
        y = super().linear(x, module)
        for a in self.adapters:
            if module in a:
                A, B, scale = a[module]
                y = y + scale * ((x @ A.astype(np.float64)) @ B.astype(np.float64))
        return y


class RefLora(WithLora, Ref64):
    pass


class RefLora4(WithLora, Gemma4):
    pass


def write_safetensors(path, tensors):
    """Little-endian float16 or float32 arrays in name order; the container by hand, so that the bytes are the same everywhere."""
    head, data = {}, b""
    for name in sorted(tensors):
        a = np.ascontiguousarray(tensors[name])
        raw = a.tobytes()
        head[name] = {"dtype": {"float16": "F16", "float32": "F32"}[a.dtype.name], "shape": list(a.shape),
                      "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def draw(ref, seed, names, rank, dtype="float16", scale=1.0):
    """{module: (A, B, scale)}; rank and scale may be functions of the module name."""
    rng, out = np.random.default_rng(seed), {}
    for name in names:
        n, k = ref.weight(name).shape
        r = rank(name) if callable(rank) else rank
        A = (rng.standard_normal((k, r)) / np.sqrt(k)).astype(dtype)
        s = scale(name, r) if callable(scale) else scale
        B = (0.7 * rng.standard_normal((r, n)) / np.sqrt(r) / s).astype(dtype)
        out[name] = (A, B, s)
    return out


def layer_names(ref, keys=ALL, first=0):
    return [f"model.layers.{i}.{k}" for i in range(first, ref.c["num_hidden_layers"]) for k in keys]


def folder(name):
    path = OUT / name
    if path.exists():
        shutil.rmtree(path)
    path.mkdir(parents=True)
    return path


def write_config(path, name, obj):
    (path / name).write_text(json.dumps(obj, indent=2) + "\n")


def mlx_tensors(a):
    return {f"{m}.lora_{h}": t for m, (A, B, _) in a.items() for h, t in (("a", A), ("b", B))}


def write_mlx(name, a, rank, scale, n_layers, keys=None):
    path = folder(name)
    write_safetensors(path / "adapters.safetensors", mlx_tensors(a))
    params = {"rank": rank, "scale": scale, "dropout": 0.0}
    if keys:
        params["keys"] = keys
    write_config(path, "adapter_config.json", {"fine_tune_type": "lora", "num_layers": n_layers, "lora_parameters": params,
                                               "model": "tiny"})


def write_peft(name, a, dtype="float16", **config):
    path = folder(name)
    tensors = {}
    for m, (A, B, _) in a.items():
        tensors[f"base_model.model.{m}.lora_A.weight"] = np.ascontiguousarray(A.T)
        tensors[f"base_model.model.{m}.lora_B.weight"] = np.ascontiguousarray(B.T)
    write_safetensors(path / "adapter_model.safetensors", tensors)
    base = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "tiny", "bias": "none",
            "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "lora_dropout": 0.0,
            "modules_to_save": None, "use_dora": False, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}}
    write_config(path, "adapter_config.json", {**base, **config})


def write_optiq(name, a, rank, scale):
    path = folder(name)
    write_safetensors(path / "adapters.safetensors", mlx_tensors(a))
    write_config(path, "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "tiny", "r": rank,
                                               "lora_alpha": rank * scale, "lora_dropout": 0.0, "use_rslora": False})
    write_config(path, "optiq_lora_config.json", {"rank": rank, "scale": scale, "source_model": "tiny",
                                                  "applied_ranks": {m: A.shape[1] for m, (A, _, _) in a.items()}})


def mlx_logits_with(checkpoint, name, ids):
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.tuner.utils import load_adapters
    model = load_adapters(load_mlx_f32(checkpoint)[0], str(OUT / name))
    model.update(tree_map(lambda t: t.astype(mx.float32) if mx.issubdtype(t.dtype, mx.floating) else t, model.parameters()))
    return mlx_logits(model, ids)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    cases, refs = [], {n: Ref64(TINY / n) for n in ("llama", "gemma3", "qwen2", "qwen3", "phi3", "gemma4")}

    def case(label, model, folders, arrays, mlx=None):
        ids = prompt_ids(TINY / model)[:N_PROMPT]
        lg = (RefLora4 if model == "gemma4" else RefLora)(TINY / model, arrays).logits(ids)
        base = refs[model].logits(ids)
        moved = np.abs(lg - base).max()
        assert moved > 0.5 and np.isfinite(lg).all(), (label, moved)
        if mlx:
            diff = np.abs(mlx_logits_with(TINY / model, mlx, ids) - lg).max()
            assert diff < 2e-4, (label, diff)
            print(f"{label}: mlx-lm differs by {diff:.1e}, the adapter moves logits by {moved:.2f}")
        lg[POSITIONS].astype("<f4").tofile(OUT / f"{label}.f32")
        cases.append({"label": label, "checkpoint": f"tests/golden/tiny/{model}",
                      "adapters": [f"tests/golden/adapters/{f}" for f in folders], "ref64_file": f"{label}.f32"})

    ref = refs["llama"]
    a = draw(ref, 1, layer_names(ref), 4, scale=2.0)
    write_mlx("llama-a", a, 4, 2.0, -1)
    write_peft("llama-a-peft", a, r=4, lora_alpha=8, target_modules=[k.split(".")[1] for k in ALL])
    case("llama-a", "llama", ["llama-a"], [a], mlx="llama-a")
    case("llama-a-peft", "llama", ["llama-a-peft"], [a])

    b = draw(ref, 2, layer_names(ref, ALL[:3], first=1), 8, scale=0.5)
    write_mlx("llama-b", b, 8, 0.5, 1, keys=ALL[:3])
    case("llama-b", "llama", ["llama-b"], [b], mlx="llama-b")
    case("llama-a+b", "llama", ["llama-a", "llama-b"], [a, b])

    half = {m: (A, B, 1.0) for m, (A, B, _) in a.items()}
    write_mlx("llama-a-half", half, 4, 1.0, -1)
    case("llama-a-half", "llama", ["llama-a-half"], [half], mlx="llama-a-half")

    # PEFT's patterns: ranks and alphas by module, rank-stabilised scale.
    rank = lambda m: 6 if m.endswith("down_proj") else 2 if ".0.self_attn.q_proj" in m else 4
    alpha = lambda m: 9.0 if m.endswith("up_proj") else 6.0
    c = draw(ref, 3, layer_names(ref), rank, "float32", scale=lambda m, r: alpha(m) / np.sqrt(r))
    write_peft("llama-patterns", c, r=4, lora_alpha=6, use_rslora=True, target_modules=r".*\.(self_attn|mlp)\.[a-z]+_proj",
               rank_pattern={"down_proj": 6, r"^model\.layers\.0\.self_attn\.q_proj": 2}, alpha_pattern={"mlp.up_proj": 9})
    case("llama-patterns", "llama", ["llama-patterns"], [c])

    # The trainer's folder: ranks by module, one scale.
    d = draw(ref, 4, layer_names(ref), lambda m: 3 if "mlp" in m else 5, scale=1.5)
    write_optiq("llama-optiq", d, 4, 1.5)
    case("llama-optiq", "llama", ["llama-optiq"], [d])

    # Biases below the adapters, and a head of its own.
    ref = refs["qwen2"]
    e = draw(ref, 5, layer_names(ref, ALL[:4]) + ["lm_head"], 4, scale=1.0)
    write_peft("qwen2-head", e, r=4, lora_alpha=4, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "lm_head"])
    case("qwen2-head", "qwen2", ["qwen2-head"], [e])

    for name in ("gemma3", "qwen3"):
        ref = refs[name]
        f = draw(ref, 6, layer_names(ref), 4, scale=2.0)
        write_mlx(name, f, 4, 2.0, ref.c["num_hidden_layers"])
        case(name, name, [name], [f], mlx=name)

    # Fused matrices: one B over the rows of all parts.
    ref = refs["phi3"]
    g = draw(ref, 7, layer_names(ref, ["self_attn.qkv_proj", "mlp.gate_up_proj"]), 4, scale=2.0)
    write_mlx("phi3", g, 4, 2.0, ref.c["num_hidden_layers"])
    write_peft("phi3-peft", g, r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj"])
    case("phi3", "phi3", ["phi3"], [g], mlx="phi3")
    case("phi3-peft", "phi3", ["phi3-peft"], [g])

    # Layers of other widths, without keys of their own, with per-layer inputs; and what makes those.
    ref = refs["gemma4"]
    own = ref.c["num_hidden_layers"] - ref.c["num_kv_shared_layers"]
    names = [n for n in layer_names(ref, ALL + ["per_layer_input_gate", "per_layer_projection"])
             if int(n.split(".")[2]) < own or "k_proj" not in n and "v_proj" not in n]
    h = draw(ref, 8, names, 4, scale=2.0)
    write_mlx("gemma4", h, 4, 2.0, ref.c["num_hidden_layers"])
    case("gemma4", "gemma4", ["gemma4"], [h], mlx="gemma4")
    i = draw(ref, 9, ["model.per_layer_model_projection"], 4, scale=2.0)
    write_peft("gemma4-peft", i, r=4, lora_alpha=8, target_modules=["per_layer_model_projection"])
    case("gemma4-peft", "gemma4", ["gemma4-peft"], [i])

    write_json(OUT / "cases.json", {"oracle": versions("mlx", "mlx-lm", "numpy"), "n_prompt": N_PROMPT,
                                    "positions": POSITIONS,
                                    "prompts": [{"checkpoint": f"tests/golden/tiny/{n}",
                                                 "ids": [int(i) for i in prompt_ids(TINY / n)[:N_PROMPT]]} for n in refs],
                                    "cases": cases})


if __name__ == "__main__":
    main()
