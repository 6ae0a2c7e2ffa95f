"""cos and sin of transformers' rope for each scaling type: tests/golden/rope/rope.json (B-112)."""
import numpy as np
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from common import GOLDEN, versions, write_json

POSITIONS = [0, 1, 1000, 8192, 60000]
SHORT16 = [round(1.0 + 0.05 * i, 2) for i in range(16)]
LONG16 = [round(1.0 + 0.35 * i * i, 2) for i in range(16)]
BASE = dict(hidden_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_hidden_layers=1,
            intermediate_size=64, vocab_size=64, max_position_embeddings=131072, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)

# name -> keys of config.json that differ from BASE
CASES = {
    "default": dict(rope_scaling=None),
    "default-theta-1e6-dim-64": dict(rope_theta=1000000.0, head_dim=64, rope_scaling=None),
    "default-by-name": dict(rope_scaling=dict(rope_type="default")),
    "nested-parameters": dict(rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
    "linear": dict(rope_scaling=dict(rope_type="linear", factor=8.0)),
    "linear-type-key": dict(rope_scaling=dict(type="linear", factor=2.5)),
    "llama3": dict(rope_theta=500000.0, head_dim=64, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "llama3-factor-32": dict(rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "llama3-nested": dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "llama3-tiny": dict(rope_scaling=dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                          original_max_position_embeddings=256)),
    "yarn": dict(rope_scaling=YARN),
    "yarn-type-key": dict(rope_scaling={**{k: v for k, v in YARN.items() if k != "rope_type"}, "type": "yarn"}),
    "yarn-mscale": dict(rope_scaling=dict(YARN, factor=40.0, original_max_position_embeddings=4096, mscale=0.707,
                                          mscale_all_dim=1.0, beta_fast=32, beta_slow=1)),
    "yarn-mscale-equal": dict(rope_scaling=dict(YARN, factor=40.0, original_max_position_embeddings=4096, mscale=1.0,
                                                mscale_all_dim=1.0)),
    "yarn-mscale-alone": dict(rope_scaling=dict(YARN, mscale=0.707)),
    "yarn-attention-factor": dict(rope_scaling=dict(YARN, attention_factor=1.25)),
    "yarn-attention-factor-and-mscale": dict(rope_scaling=dict(YARN, attention_factor=0.9, mscale=0.707,
                                                               mscale_all_dim=1.0)),
    "yarn-betas": dict(rope_scaling=dict(YARN, beta_fast=16, beta_slow=2)),
    "yarn-no-truncate": dict(head_dim=64, rope_theta=150000.0, rope_scaling=dict(
        YARN, factor=32.0, original_max_position_embeddings=4096, truncate=False)),
    "dynamic": dict(max_position_embeddings=8192, rope_scaling=dict(rope_type="dynamic", factor=2.0)),
    "longrope-long": dict(max_position_embeddings=131072, original_max_position_embeddings=4096, rope_scaling=dict(
        rope_type="longrope", short_factor=SHORT16, long_factor=LONG16)),
    "longrope-long-original-inside": dict(max_position_embeddings=131072, rope_scaling=dict(
        rope_type="longrope", short_factor=SHORT16, long_factor=LONG16, original_max_position_embeddings=4096)),
    "longrope-short": dict(max_position_embeddings=4096, original_max_position_embeddings=4096, rope_scaling=dict(
        rope_type="longrope", short_factor=SHORT16, long_factor=LONG16)),
    "longrope-attention-factor": dict(max_position_embeddings=131072, original_max_position_embeddings=4096,
                                      rope_scaling=dict(rope_type="longrope", short_factor=SHORT16,
                                                        long_factor=LONG16, attention_factor=1.5)),
    # Gemma 4's: pairs over the whole head, of which a share turns.
    "proportional": dict(head_dim=64, rope_parameters=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25)),
    "proportional-factor": dict(head_dim=64, rope_parameters=dict(rope_type="proportional", rope_theta=10000.0, partial_rotary_factor=0.5,
                                                                  factor=8.0)),
}


def table(config, pos, fresh):
    """(inverse frequencies, factor) as transformers has them when the sequence has just reached pos. `fresh`: one call
    for each position, so that a table that depends on the length (dynamic, longrope) is a function of pos alone."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        rope = LlamaRotaryEmbedding(config)
        return rope.inv_freq.numpy(), float(rope.attention_scaling)
    inv, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=fresh)
    return inv.numpy(), float(factor)


def one(name, keys):
    conf = {**BASE, **keys}
    if "rope_parameters" in keys:
        conf.pop("rope_theta")
    kwargs = {k: v for k, v in conf.items() if v is not None}
    config = LlamaConfig(**{k: (dict(v) if isinstance(v, dict) else v) for k, v in kwargs.items()})
    if "original_max_position_embeddings" in keys:
        config.original_max_position_embeddings = keys["original_max_position_embeddings"]
    kind = config.rope_parameters["rope_type"]
    rows = []
    for p in POSITIONS:
        # dynamic: the length is p + 1. longrope: long factors at every position when the context is above the original
        # (a long enough sequence in transformers' terms), short ones else.
        n = p + 1 if kind == "dynamic" else conf["max_position_embeddings"]
        inv, factor = table(config, p, n)
        a = p * inv.astype(np.float64)
        rows.append({"position": p, "inv_freq": [float(f"{v:.8e}") for v in inv] if p == 0 or kind == "dynamic" else None,
                     "cos": [round(float(v), 8) for v in np.cos(a) * factor],
                     "sin": [round(float(v), 8) for v in np.sin(a) * factor]})
        if rows[-1]["inv_freq"] is None:
            del rows[-1]["inv_freq"]
    # the whole module, in transformers' own float32, where its table does not depend on the length
    if kind not in ("dynamic", "longrope"):
        rope = LlamaRotaryEmbedding(config)
        cos, sin = rope(torch.zeros(1, 1, 1), torch.tensor([POSITIONS]))
        h = len(rows[0]["cos"])
        for r, p in enumerate(POSITIONS):
            err = np.abs(cos[0, r, :h].numpy() - np.array(rows[r]["cos"])).max()
            assert err < 1e-6 + 6e-8 * p, (name, p, err)
    return {"name": name, "config": conf, "kind": kind, "factor_on_cos_sin": factor, "rows": rows}


def main():
    cases = [one(n, k) for n, k in CASES.items()]
    write_json(GOLDEN / "rope" / "rope.json", {
        "oracle": versions("transformers", "torch", "numpy"), "positions": POSITIONS, "cases": cases})
    print(len(cases), "cases", {c["name"]: round(c["factor_on_cos_sin"], 4) for c in cases})


if __name__ == "__main__":
    main()
