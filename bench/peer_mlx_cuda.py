"""peer_mlx_cuda.py: mlx-lm on its CUDA backend, with the shapes of bench_cuda.py and random weights, 4 bit in groups of 64.

    peer_mlx_cuda.py [--shape 8b] [--batches 1,8,32] [--contexts 512,8192]

Prints JSON as peer_torch.py does: rows of {form, context, batch, decode_tok_s} and {form, batch, prompt, prefill_tok_s}, and `best`, the same rows. A step is
launched before the host has read the one before it, as mlx_lm.generate does. Needs mlx[cuda13] (or cuda12) and mlx-lm.
"""
import argparse
import json
import sys
import time
from importlib.metadata import PackageNotFoundError, version

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

from bench_cuda import GROUP, SHAPES

PROMPT, TOKENS = 512, 64


def make(shape):
    d, ff, heads, kv, head, layers, vocab = shape
    model = llama.Model(llama.ModelArgs(model_type="llama", hidden_size=d, num_hidden_layers=layers, intermediate_size=ff, num_attention_heads=heads,
                                        num_key_value_heads=kv, head_dim=head, rms_norm_eps=1e-5, vocab_size=vocab, rope_theta=500000.0,
                                        tie_word_embeddings=False))
    model.set_dtype(mx.bfloat16)
    nn.quantize(model, GROUP, 4)
    mx.eval(model.parameters())
    return model


def feed(model, batch, n, cache):
    """A prompt of n tokens for each row, in pieces of 2,048; the ids that it draws."""
    ids = mx.random.randint(0, 1000, (batch, n))
    for i in range(0, n, 2048):
        last = mx.argmax(model(ids[:, i:i + 2048], cache=cache)[:, -1], axis=-1)
        mx.eval(last)
    return last


def prefill(model, batch):
    best = 1e9
    for _ in range(3):
        begin = time.perf_counter()
        feed(model, batch, PROMPT, make_prompt_cache(model))
        best = min(best, time.perf_counter() - begin)
    return batch * PROMPT / best


def decode(model, batch, context):
    cache = make_prompt_cache(model)
    last = feed(model, batch, context, cache)
    best = 1e9
    for _ in range(2):
        begin = time.perf_counter()
        for _ in range(TOKENS):
            then = mx.argmax(model(last[:, None], cache=cache)[:, -1], axis=-1)
            mx.async_eval(then)
            mx.eval(last)
            last = then
        mx.eval(last)
        best = min(best, time.perf_counter() - begin)
    return batch * TOKENS / best


def name():
    try:
        return f"mlx {mx.__version__}, mlx-lm {version('mlx-lm')}"
    except PackageNotFoundError:
        return f"mlx {mx.__version__}"


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--shape", default="8b")
    a.add_argument("--batches", default="1,8,32")
    a.add_argument("--contexts", default="512,8192")
    args = a.parse_args()
    if not mx.cuda.is_available():
        raise SystemExit("peer_mlx_cuda: this mlx has no CUDA")
    model, rows = make(SHAPES[args.shape]), []
    batches, contexts = ([int(v) for v in text.split(",")] for text in (args.batches, args.contexts))
    for batch in batches:
        jobs = [("prefill_tok_s", {"prompt": PROMPT}, lambda: prefill(model, batch))]
        jobs += [("decode_tok_s", {"context": c}, lambda c=c: decode(model, batch, c)) for c in contexts]
        for key, at, job in jobs:
            rows.append({"form": "4 bit", "batch": batch, **at, key: round(job(), 1)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps({"peer": name(), "shape": args.shape, "rows": rows, "best": rows}))


if __name__ == "__main__":
    main()
