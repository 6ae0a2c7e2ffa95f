"""peer_mlx.py: mlx-lm on the CPU, on one MLX checkpoint.

    peer_mlx.py DIR N_PROMPT N_DECODE         {"prefill_tok_s", "decode_tok_s"}, greedy, as many threads as it likes
    peer_mlx.py --logits DIR IDS OUT          float32 [n][vocab] for each sequence of ids, a line of IDS each
"""
import json
import sys
import time

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model
from pathlib import Path


def write_logits(model, ids_file, out_file):
    with open(ids_file) as lines, open(out_file, "wb") as out:
        for line in lines:
            logits = model(mx.array([list(map(int, line.split()))]))[0].astype(mx.float32)
            out.write(np.array(logits).tobytes())


def rates(model, n_prompt, n_decode):
    cache = make_prompt_cache(model)
    begin = time.perf_counter()
    last = mx.argmax(model(mx.array([[(i * 37 + 11) % 1000 for i in range(n_prompt)]]), cache=cache)[:, -1], axis=-1)
    mx.eval(last)
    middle = time.perf_counter()
    for _ in range(n_decode):
        last = mx.argmax(model(last[None], cache=cache)[:, -1], axis=-1)
        mx.eval(last)
    return n_prompt / (middle - begin), n_decode / (time.perf_counter() - middle)


def main():
    mx.set_default_device(mx.cpu)
    logits = sys.argv[1] == "--logits"
    model, _ = load_model(Path(sys.argv[2 if logits else 1]))
    if logits:
        return write_logits(model, sys.argv[3], sys.argv[4])
    prefill, decode = rates(model, int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"prefill_tok_s": round(prefill, 1), "decode_tok_s": round(decode, 1)}))


main()
