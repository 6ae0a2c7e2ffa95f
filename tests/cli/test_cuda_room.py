"""A model that a GPU's memory cannot hold is refused before it is read. Needs a GPU (docs/cuda.md)."""
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = ROOT / "tests/golden/tiny/llama"
D, FF, HEADS, KV, HEAD, VOCAB = 8192, 28672, 64, 8, 128, 32000


def gpu_gigabytes():
    """Of the first card; 0: there is none that this build can use."""
    p = subprocess.run([MLX_BUN, "doctor", "--device", "cuda", str(LLAMA)], capture_output=True, text=True)
    named = [line for line in (p.stdout + p.stderr).splitlines() if "cuda:0 " in line and " GB" in line] if p.returncode == 0 else []
    return int(named[0].split(" GB")[0].split()[-1]) if named else 0


def shapes(n_layer):
    yield "model.embed_tokens.weight", [VOCAB, D]
    for i in range(n_layer):
        m = f"model.layers.{i}"
        yield f"{m}.input_layernorm.weight", [D]
        yield f"{m}.post_attention_layernorm.weight", [D]
        for name, n, k in (("self_attn.q", HEADS * HEAD, D), ("self_attn.k", KV * HEAD, D), ("self_attn.v", KV * HEAD, D), ("self_attn.o", D, HEADS * HEAD),
                           ("mlp.gate", FF, D), ("mlp.up", FF, D), ("mlp.down", D, FF)):
            yield f"{m}.{name}_proj.weight", [n, k]
    yield "model.norm.weight", [D]
    yield "lm_head.weight", [VOCAB, D]


def write_sparse(folder, n_layer):
    """bfloat16 zeros of which nothing is written: the file takes no room."""
    config = json.loads((LLAMA / "config.json").read_text())
    for key in [k for k in config if k.startswith("quantization")]:
        del config[key]
    config.update(hidden_size=D, intermediate_size=FF, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HEAD, vocab_size=VOCAB,
                  num_hidden_layers=n_layer, tie_word_embeddings=False)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((LLAMA / name).read_bytes())
    header, at = {}, 0
    for name, dims in shapes(n_layer):
        size = 2 * dims[0] * (dims[1] if len(dims) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": dims, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)


def test_a_model_larger_than_the_card(tmp_path):
    """The text names both sizes and the remedies, at once and not when the card is full."""
    gigabytes = gpu_gigabytes()
    if gigabytes == 0:
        pytest.skip("no GPU")
    write_sparse(tmp_path, gigabytes // 2 + 8)  # a layer takes 1.7 GB
    begin = time.monotonic()
    p = subprocess.run([MLX_BUN, "generate", str(tmp_path), "--device", "cuda", "--prompt", "x", "--max-tokens", "1"], capture_output=True, text=True)
    assert p.returncode != 0 and "--devices cuda:0,1" in p.stderr and "GB are free" in p.stderr, p.stderr
    assert "loading: 5 %" not in p.stderr
    print(f"refused after {time.monotonic() - begin:.1f} s")
