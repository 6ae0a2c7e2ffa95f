"""kv_quant.py: what mlx-lm's quantised cache costs, on the same weights and ids as `mlx-bun doctor --fidelity`.

Weights as float32 matrices, dequantised (a CPU computes bfloat16 with 16-bit sums, which is no reference), so that the cache is all that differs: KL(float32
cache || quantised cache) in nats a position, over the first N sequences of tests/golden/fidelity/smollm2.json, in chunks of 64 tokens (a
token's own chunk is read from the cache as well). Group 64, start 0: what --kv-bits means there. Prints one JSON object; its figures stand
in docs/fidelity.md.

Usage: kv_quant.py MODEL_DIR [N]      in the oracle's environment (tests/oracle/README.md); seen with mlx 0.32.4, mlx-lm 0.32.2
"""
import json
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map, tree_unflatten
from mlx_lm.models.cache import KVCache, QuantizedKVCache
from mlx_lm.utils import load_model

CHUNK = 64


def logits_of(model, ids, cache):
    out = []
    for at in range(0, len(ids), CHUNK):
        out.append(np.array(model(mx.array([ids[at:at + CHUNK]]), cache=cache)[0].astype(mx.float32)))
    return np.concatenate(out).astype(np.float64)


def floats(model):
    """Every parameter as float32, quantised layers as plain ones."""
    model.update(tree_map(lambda a: a.astype(mx.float32) if mx.issubdtype(a.dtype, mx.floating) else a, model.parameters()))
    plain = []
    for name, m in model.named_modules():
        if isinstance(m, (nn.QuantizedLinear, nn.QuantizedEmbedding)):
            w = mx.dequantize(m.weight, m.scales, m.biases, m.group_size, m.bits)
            n = nn.Linear(w.shape[1], w.shape[0], bias="bias" in m) if isinstance(m, nn.QuantizedLinear) else nn.Embedding(*w.shape)
            n.weight = w
            if "bias" in m:
                n.bias = m.bias
            plain.append((name, n))
    model.update_modules(tree_unflatten(plain))


def log_softmax(x):
    x = x - x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def main():
    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(sys.argv[1]))
    floats(model)
    golden = json.loads((Path(__file__).resolve().parent.parent / "golden/fidelity/smollm2.json").read_text())
    sequences = [s["ids"] for s in golden["sequences"]][:int(sys.argv[2]) if len(sys.argv) > 2 else None]
    kl, same, n = {8: [], 4: []}, {8: 0, 4: 0}, 0
    for ids in sequences:
        p = log_softmax(logits_of(model, ids, [KVCache() for _ in model.layers]))
        n += len(ids)
        for bits in kl:
            q = log_softmax(logits_of(model, ids, [QuantizedKVCache(group_size=64, bits=bits) for _ in model.layers]))
            kl[bits].extend((np.exp(p) * (p - q)).sum(1))
            same[bits] += int((p.argmax(1) == q.argmax(1)).sum())
        print(f"{n} positions", file=sys.stderr, flush=True)
    print(json.dumps({"positions": n, **{f"{bits} bit": {"mean_kl": float(np.mean(kl[bits])), "p99_kl": float(np.quantile(kl[bits], 0.99)),
                                                          "top1_percent": 100 * same[bits] / n} for bits in kl}}))


main()
