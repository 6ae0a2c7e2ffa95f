"""fidelity.py: how exact and how fast the tiers and the peers are, side by side, on the same weights.

The peers are llama.cpp on the GGUF file that the checkpoint was imported from (the same codes, scales and offsets) and, where its Python
is given, mlx-lm on the CPU on the checkpoint itself. Reference: our float32 tier with float32 keys and values. KL(reference || each) in
nats over the ids of tests/golden/fidelity/smollm2.json; speed in ROUNDS alternating runs (median), prompts of 512 tokens, 64 tokens
decoded, one thread (mlx-lm: as many as it takes). Prints one JSON object for tools/fidelity_page.py.

Usage: fidelity.py BUILD MODEL_DIR FILE.gguf PEER_PYTHON [MLX_PYTHON]     the peer's Python needs numpy
"""
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROUNDS = int(os.environ.get("ROUNDS") or 3)
COMPARE = """
import json, sys, numpy as np
vocab, n = int(sys.argv[1]), int(sys.argv[2])
a, b = (np.memmap(f, dtype=np.float32, mode="r").reshape(-1, vocab) for f in sys.argv[3:5])
assert a.shape == b.shape == (n, vocab), (a.shape, b.shape)
kl, same = [], 0
for at in range(0, n, 256):
    p, q = (x[at:at + 256].astype(np.float64) for x in (a, b))
    same += int((p.argmax(1) == q.argmax(1)).sum())
    p, q = (x - x.max(1, keepdims=True) for x in (p, q))
    p, q = (x - np.log(np.exp(x).sum(1, keepdims=True)) for x in (p, q))
    kl.extend((np.exp(p) * (p - q)).sum(1))
print(json.dumps({"mean_kl": float(np.mean(kl)), "p99_kl": float(np.quantile(kl, 0.99)), "top1_percent": 100 * same / n}))
"""


def run(*args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"fidelity: {args[0]} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def rate(*args):
    return json.loads(run(*args).strip().splitlines()[-1])


def main():
    build, model, gguf, python = sys.argv[1:5]
    mlx = sys.argv[5] if len(sys.argv) > 5 else None
    sides = {  # name: (command that writes logits, command that prints rates)
        "mlx-bun, l1": ([f"{build}/bench_logits", model, "l1", 2], [f"{build}/bench_cpu", model, "l1", 1, 512, 64]),
        "mlx-bun, l2": ([f"{build}/bench_logits", model, "l2", 2], [f"{build}/bench_cpu", model, "l2", 1, 512, 64]),
        "llama.cpp, Q4_1": ([python, HERE / "peer_llama.py", "--logits", gguf, 2], [python, HERE / "peer_llama.py", gguf, 1, 512, 64]),
    }
    if mlx:
        sides["mlx-lm, CPU"] = ([mlx, HERE / "peer_mlx.py", "--logits", model], [mlx, HERE / "peer_mlx.py", model, 512, 64])
    golden = json.loads((HERE.parent / "tests/golden/fidelity/smollm2.json").read_text())
    rows, speed = [], {name: [] for name in sides}
    with tempfile.TemporaryDirectory() as tmp:
        ids, exact, other = (Path(tmp) / n for n in ("ids", "exact", "other"))
        ids.write_text("".join(" ".join(map(str, s["ids"])) + "\n" for s in golden["sequences"]))
        n = sum(len(s["ids"]) for s in golden["sequences"])
        vocab = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        run(f"{build}/bench_logits", model, "f32", 2, ids, exact)
        for name, (logits, _) in sides.items():
            run(*logits, ids, other)
            rows.append({"name": name, **json.loads(run(python, "-c", COMPARE, vocab, n, exact, other))})
            other.unlink()
    for _ in range(ROUNDS):
        for name, (_, rates) in sides.items():
            speed[name].append(rate(*rates))
    for row in rows:
        row.update({k: statistics.median(r[k] for r in speed[row["name"]]) for k in ("prefill_tok_s", "decode_tok_s")})
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    print(json.dumps({"model": Path(model).name, "machine": cpu[1] if cpu else "unknown", "date": str(datetime.date.today()),
                      "load": round(os.getloadavg()[0], 1), "rounds": ROUNDS, "rows": rows}))


main()
