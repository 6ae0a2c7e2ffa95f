"""bench_cuda.py: tokens per second on a GPU, with random checkpoints of real shapes made on the spot.

    bench/bench_cuda.py [--mlx-bun build/mlx-bun] [--device cuda] [--shapes 1b,8b] [--batches 1,8,32] [--peers torch,mlx] [--out FILE]

Prints a table (prompt and generation rates, the part of the device's read bandwidth that decoding one request uses, against the
bars of docs/cuda.md) and writes FILE, by default bench/results/cuda-latest.json. Bandwidth is measured in the same run when
torch is there. Peers run beside it where this Python has them (peer_torch.py, peer_mlx_cuda.py): each row has `peer`, their rates, and
`ratio`, ours over the best of them; null without. Needs numpy. The weights are random: speed does not depend on them, text does.
"""
import argparse
import datetime
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
# hidden, intermediate, heads, key heads, head size, layers, vocabulary; mixtures: experts, chosen experts
SHAPES = {"135m": (576, 1536, 9, 3, 64, 30, 49152), "1b": (2048, 8192, 32, 8, 64, 16, 128256), "8b": (4096, 14336, 32, 8, 128, 32, 128256),
          "70b": (8192, 28672, 64, 8, 128, 80, 128256),
          "30b-a3b": (2048, 768, 32, 4, 128, 48, 151936, 128, 8), "30b-a3b-8": (2048, 768, 32, 4, 128, 8, 151936, 128, 8)}  # -8: layers
GROUP = 64
PEERS = {"torch": "peer_torch.py", "mlx": "peer_mlx_cuda.py"}
BARS = {("8b", 1): 600, ("8b", 8): 4000, ("8b", 32): 10000, ("8b", "prefill"): 30000, ("135m", 1): 1500}


def mxfp4_matrix(n, k, rng):
    """Codes of any value, exponents around 0.6 / sqrt(k) over the codes' spread of 2.9."""
    exponent = 127 + round(float(np.log2(0.6 / np.sqrt(k) / 2.9)))
    return rng.integers(0, 2**32, n * k // 8, np.uint32).tobytes(), rng.integers(exponent - 1, exponent + 2, (n, k // 32)).astype(np.uint8).tobytes()


def tensors(shape, rng, mode="affine"):
    """(name, dtype, dims, bytes); all matrices of one size share their bytes."""
    d, ff, heads, kv, head, layers, vocab, *moe = shape
    made = {}

    def matrix(name, n, k, stack=()):
        if mode == "mxfp4":
            if (n, k) not in made:
                made[n, k] = mxfp4_matrix(n, k, rng)
            yield f"{name}.weight", "U32", [n, k // 8], made[n, k][0]
            yield f"{name}.scales", "U8", [n, k // 32], made[n, k][1]
            return
        if (*stack, n, k) not in made:
            scale = np.full((*stack, n, k // GROUP), 0.6 / np.sqrt(k) / 4.6, np.float32)
            scale *= rng.uniform(0.5, 1.5, scale.shape).astype(np.float32)
            half = [(v.view(np.uint32) >> 16).astype(np.uint16).tobytes() for v in (scale, -7.5 * scale)]
            made[*stack, n, k] = (rng.integers(0, 2**32, math.prod(stack) * n * k // 8, np.uint32).tobytes(), *half)
        w, s, b = made[*stack, n, k]
        yield f"{name}.weight", "U32", [*stack, n, k // 8], w
        yield f"{name}.scales", "BF16", [*stack, n, k // GROUP], s
        yield f"{name}.biases", "BF16", [*stack, n, k // GROUP], b

    def norm(name, n=d):
        yield f"{name}.weight", "BF16", [n], np.full(n, 0x3F80, np.uint16).tobytes()

    def experts(name):
        router = rng.normal(0, 1 / np.sqrt(d), (moe[0], d)).astype(np.float32)  # its own in every layer: who goes where differs
        yield f"{name}.gate.weight", "BF16", [moe[0], d], (router.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        for part, n, k in (("gate", ff, d), ("up", ff, d), ("down", d, ff)):
            yield from matrix(f"{name}.switch_mlp.{part}_proj", n, k, (moe[0],))

    yield from matrix("model.embed_tokens", vocab, d)
    for i in range(layers):
        m = f"model.layers.{i}"
        yield from norm(f"{m}.input_layernorm")
        for part, n, k in (("q", heads * head, d), ("k", kv * head, d), ("v", kv * head, d), ("o", d, heads * head)):
            yield from matrix(f"{m}.self_attn.{part}_proj", n, k)
        yield from norm(f"{m}.post_attention_layernorm")
        if moe:
            for part in "qk":
                yield from norm(f"{m}.self_attn.{part}_norm", head)
            yield from experts(f"{m}.mlp")
            continue
        for part, n, k in (("gate", ff, d), ("up", ff, d), ("down", d, ff)):
            yield from matrix(f"{m}.mlp.{part}_proj", n, k)
    yield from norm("model.norm")
    yield from matrix("lm_head", vocab, d)


def write_checkpoint(shape, folder, mode="affine"):
    """4-bit weights, affine or mxfp4. Returns the bytes that a decoded token reads: everything but the embedding, and of experts the chosen."""
    d, ff, heads, kv, head, layers, vocab, *moe = shape
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": d, "intermediate_size": ff, "head_dim": head,
              "num_attention_heads": heads, "num_key_value_heads": kv, "num_hidden_layers": layers, "vocab_size": vocab,
              "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 16384, "tie_word_embeddings": False,
              "bos_token_id": 1, "eos_token_id": 2, "quantization": {"group_size": GROUP if mode == "affine" else 32, "bits": 4, "mode": mode}}
    if moe:
        config |= {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": moe[0], "num_experts_per_tok": moe[1],
                   "moe_intermediate_size": ff, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "tests/golden/tiny/llama" / name, folder)
    all_tensors = list(tensors(shape, np.random.default_rng(7), mode))
    header, at, read = {}, 0, 0
    for name, dtype, dims, data in all_tensors:
        header[name] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + len(data)]}
        at += len(data)
        read += 0 if "embed" in name else len(data) * moe[1] // moe[0] if "switch_mlp" in name else len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for *_, data in all_tensors:
            f.write(data)
    return read


def read_bandwidth():
    """Bytes a second of a long sum over device memory; None without torch."""
    try:
        import torch
        x = torch.ones(1 << 30, device="cuda")
        x.sum()
        best = 1e9
        for _ in range(10):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            x.sum()
            b.record()
            torch.cuda.synchronize()
            best = min(best, a.elapsed_time(b) / 1e3)
        return x.numel() * 4 / best
    except Exception:
        return None


def run(args, folder, batch, prompt):
    command = [args.mlx_bun, "benchmark", str(folder), "--device", args.device, "--prompt-tokens", str(prompt), "--tokens", str(args.tokens),
               "--repeat", "2", "--batch", str(batch), "--context-limit", "4096", "--json"]
    p = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
    if p.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{p.stderr}")
    return json.loads(p.stdout)


def peers_of(args, shape):
    """{name of the peer: its best rows}; one that is not here, or fails, is missing."""
    found = {}
    if len(SHAPES[shape]) > 7:
        return found  # the peers' scripts have no mixtures
    for name in (n for n in args.peers.split(",") if n):
        command = [sys.executable, str(ROOT / "bench" / PEERS[name]), "--shape", shape, "--batches", args.batches, "--contexts", "512"]
        try:
            p = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=args.timeout)
        except subprocess.TimeoutExpired:
            p = None
        if not p or p.returncode != 0:
            print(f"{PEERS[name]}: no rates for {shape}", file=sys.stderr)
            continue
        got = json.loads(p.stdout)
        found[got["peer"]] = got["best"]
    return found


def compare(row, peers):
    """Sets row's peer: for each rate what the peers have for its batch, with the form that was best; and ratio: ours over the best of them."""
    row["peer"] = row["ratio"] = None
    for name, rows in peers.items():
        for theirs in (r for r in rows if r["batch"] == row["batch"]):
            key = "decode_tok_s" if "decode_tok_s" in theirs else "prefill_tok_s"
            if key not in row:
                continue
            row["peer"] = row["peer"] or {}
            form = theirs["form"] + (", compiled" if theirs.get("compiled") else "")
            row["peer"].setdefault(key, {})[name] = {"rate": theirs[key], "form": form}
    if row["peer"]:
        row["ratio"] = {key: round(row[key] / max(p["rate"] for p in by.values()), 2) for key, by in row["peer"].items()}


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--mlx-bun", default=str(ROOT / "build/mlx-bun"))
    a.add_argument("--device", default="cuda")
    a.add_argument("--shapes", default="1b,8b")
    a.add_argument("--batches", default="1,8,32")
    a.add_argument("--peers", default="torch,mlx", help="none: --peers ''")
    a.add_argument("--tokens", type=int, default=128)
    a.add_argument("--timeout", type=int, default=300)
    a.add_argument("--commit", default="")
    a.add_argument("--out", default=str(ROOT / "bench/results/cuda-latest.json"))
    args = a.parse_args()
    commit = args.commit or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    bandwidth = read_bandwidth()
    result = {"date": datetime.date.today().isoformat(), "commit": commit, "read_bytes_s": bandwidth, "rows": []}
    for name in args.shapes.split(","):
        peers = peers_of(args, name)
        with tempfile.TemporaryDirectory() as d:
            read = write_checkpoint(SHAPES[name], Path(d))
            for batch in (int(b) for b in args.batches.split(",")):
                got = run(args, d, batch, 512)
                result["device"] = got["device"]
                row = got["rows"][-1]
                row.update(shape=name, batch=batch, weight_bytes=read)
                if bandwidth and batch == 1:
                    row["of_read_bandwidth"] = round(row["decode_tok_s"] * read / bandwidth, 3)
                for key, rate in ((batch, "decode_tok_s"), ("prefill" if batch == 1 else None, "prefill_tok_s")):
                    if (name, key) in BARS and rate in row:
                        row[f"bar_{rate}"] = BARS[name, key]
                        row[f"pass_{rate}"] = row[rate] >= BARS[name, key]
                compare(row, peers)
                result["rows"].append(row)
                print(name, "batch", batch, json.dumps(row), flush=True)
                Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
