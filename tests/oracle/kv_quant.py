"""kv_quant.py: what mlx-lm's quantised cache costs, on the same weights and ids as `mlx-bun doctor --fidelity`.

The checkpoint's weights as float32, the forward pass of transformers (a CPU computes mlx-lm's bfloat16 with 16-bit sums, which is no
reference, and its products over codes for hours), so that the cache is all that differs: keys and values go through mx.quantize and
mx.dequantize, group 64, as QuantizedKVCache does from index 0 on. KL(float32 cache || quantised cache) in nats a position, over the first
N sequences of tests/golden/fidelity/smollm2.json. Prints one JSON object: tests/golden/fidelity/kv_oracle.json, for docs/fidelity.md.

Usage: kv_quant.py MODEL_DIR N      llama family; in the oracle's environment (README.md); seen with mlx 0.32.4 and its transformers
"""
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

GOLDEN = Path(__file__).resolve().parent.parent / "golden/fidelity/smollm2.json"


def load(folder):
    config = json.loads((folder / "config.json").read_text())
    quant, tensors, state = config.get("quantization", {}), mx.load(str(folder / "model.safetensors")), {}
    for name, value in tensors.items():
        base = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if value.dtype == mx.uint32:
            own = quant.get(base) if isinstance(quant.get(base), dict) else quant
            value = mx.dequantize(value, *(tensors[f"{base}.{x}"].astype(mx.float32) for x in ("scales", "biases")), own["group_size"], own["bits"])
        state[name] = torch.from_numpy(np.array(value.astype(mx.float32)))
    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if not k.startswith("quantization")})).float().eval()
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


class CodedCache(DynamicCache):
    bits = 8

    def update(self, keys, values, *args, **kwargs):
        back = []
        for x in (keys, values):
            codes = mx.quantize(mx.array(x.numpy()), group_size=64, bits=self.bits)
            back.append(torch.from_numpy(np.array(mx.dequantize(*codes, group_size=64, bits=self.bits))))
        return super().update(*back, *args, **kwargs)


def log_softmax(model, ids, cache):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0].double(), -1)


def main():
    mx.set_default_device(mx.cpu)
    model = load(Path(sys.argv[1]))
    sequences = [s["ids"] for s in json.loads(GOLDEN.read_text())["sequences"]][:int(sys.argv[2])]
    kl, same, n = {8: [], 4: []}, {8: 0, 4: 0}, 0
    for ids in sequences:
        p = log_softmax(model, ids, DynamicCache())
        n += len(ids)
        for bits in kl:
            cache = CodedCache()
            cache.bits = bits
            q = log_softmax(model, ids, cache)
            kl[bits] += (p.exp() * (p - q)).sum(-1).tolist()
            same[bits] += int((p.argmax(-1) == q.argmax(-1)).sum())
        print(n, {bits: float(np.mean(kl[bits])) for bits in kl}, file=sys.stderr, flush=True)
    print(json.dumps({"positions": n, **{f"{bits} bit": {"mean_kl": float(np.mean(kl[bits])), "p99_kl": float(np.quantile(kl[bits], 0.99)),
                                                          "top1_percent": 100 * same[bits] / n} for bits in kl}}))


main()
