"""Paths, checkpoint loading in float32, and small writers shared by the generators.

Every generator is run from the root of the repository: `python tests/oracle/<name>.py`.
"""
import json
import platform
from importlib import metadata
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
TINY = GOLDEN / "tiny"
TEXTS = GOLDEN / "fidelity" / "texts"
TEXT_NAMES = ["en-1", "en-2", "code-1", "code-2", "de-1", "de-2", "ja-1", "ja-2"]


def read_text(name):
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


def versions(*names):
    out = {n: metadata.version(n) for n in names}
    out["python"] = platform.python_version()
    return out


def write_json(path, obj, width=None):
    """One line for each top-level key, and for each element of a top-level list of objects, so that reviews can
    read a difference; short everywhere else."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def short(v):
        return json.dumps(v, ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    lines = []
    for k, v in obj.items():
        if isinstance(v, list) and v and isinstance(v[0], (dict, list)):
            lines.append(f" {json.dumps(k)}: [\n" + ",\n".join("  " + short(e) for e in v) + "\n ]")
        else:
            lines.append(f" {json.dumps(k)}: {short(v)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def load_mlx_f32(path, config_overrides=None):
    """The mlx-lm model of a checkpoint with every tensor that is not packed codes cast to float32: exact
    dequantised weights, float32 sums. 16-bit runs on x86 sum in 16 bits and are no reference."""
    import mlx.core as mx
    from mlx.utils import tree_map
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, config = load_model(Path(path), lazy=False, model_config=config_overrides or {})
    model.update(tree_map(
        lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters()))
    mx.eval(model.parameters())
    return model, config


def mlx_logits(model, ids, cache=None):
    """Logits at all positions, one pass over the whole prompt; without a cache unless one is given."""
    import mlx.core as mx
    out = model(mx.array([ids]), cache=cache)[0]
    mx.eval(out)
    return np.array(out.astype(mx.float32))


def load_hf_f32(ref):
    """transformers' own class in float32 over the weights of a Ref64, for families that mlx-lm computes otherwise."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    config = {k: v for k, v in ref.c.items() if not k.startswith("quantization") and k != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(ref.c["model_type"], **config), attn_implementation="eager").float().eval()
    names = {n for n, _ in model.named_parameters()}
    value = {n: ref.weight(n.removesuffix(".weight")) if n.endswith(".weight") else ref.w[n] for n in names}
    model.load_state_dict({n: torch.tensor(np.asarray(v, np.float32)) for n, v in value.items()}, strict=False)
    return model


def hf_logits(model, ids):
    import torch
    with torch.no_grad():
        return model(torch.tensor([list(map(int, ids))])).logits[0].numpy()


def log_softmax(x):
    x = x.astype(np.float64)
    m = x.max(-1, keepdims=True)
    return x - m - np.log(np.exp(x - m).sum(-1, keepdims=True))


def top_n(logprobs, n):
    """Ids of the n largest, best first; equal values go to the lower id."""
    return np.argsort(-logprobs, axis=-1, kind="stable")[..., :n]
