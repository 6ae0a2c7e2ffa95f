"""fit.py: how true is `mlx-bun fit`? For each model: the bytes that it expects beside those that a server takes (private memory behind one
request of so many tokens: weights, scratch, pages of keys and values), and the tokens per second that it predicts beside those that
`benchmark` reaches, both measured in alternation. The bars: bytes within 10 % at every length, tokens per second within 25 %.

Usage: fit.py BUILD DIR ... [--rounds 3] [--ctx 256,1000,1825,5000] [--flags "--l2 --threads 1"] [--json]
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

BARS = {"bytes": 0.10, "tokens_per_s": 0.25}


def run(build, cache, *args):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
    p = subprocess.run([str(Path(build) / "mlx-bun"), *map(str, args), "--cache-dir", cache], capture_output=True, text=True, env=env)
    if p.returncode != 0:
        raise SystemExit(f"fit.py: {args[0]} failed: {p.stderr[-400:]}")
    return p.stdout


def private_bytes(pid):
    """What the process takes of memory that is its own."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", text)[1])


def taken(build, cache, model, n_context, flags):
    """(private bytes behind a request of about n_context tokens, its tokens)"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
    p = subprocess.Popen([str(Path(build) / "mlx-bun"), "serve", model, "--port", "0", "--cache-dir", cache, "--no-open", *flags], text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
    try:
        url = next(m[1] for line in p.stdout if (m := re.search(r"url +(http://\S+)/v1", line)))
        text = json.dumps({"prompt": "a b c d e f g h " * max(n_context // 8, 1), "max_tokens": 8, "ignore_eos": True}).encode()
        request = urllib.request.Request(url + "/v1/completions", text, {"content-type": "application/json"})
        usage = json.loads(urllib.request.urlopen(request, timeout=600).read())["usage"]
        return private_bytes(p.pid), usage["total_tokens"]
    finally:
        p.terminate()
        p.wait()


def measure(build, model, rounds, contexts, flags):
    speeds, sizes = [], []
    with tempfile.TemporaryDirectory() as cache:
        for n_context in contexts:
            reached, n = taken(build, cache, model, n_context, flags)
            said = json.loads(run(build, cache, "fit", model, "--ctx", n, "--json", *flags))["expected_bytes"]
            sizes.append({"context": n, "expected_bytes": said, "bytes": reached, "ratio": round(said / reached, 3)})
        for _ in range(rounds):
            report = json.loads(run(build, cache, "fit", model, "--ctx", 128, "--measure", "--json", *flags))["report"]
            row = json.loads(run(build, cache, "benchmark", model, "--prompt-tokens", 96, "--tokens", 64, "--repeat", 1, "--json", *flags))["rows"][0]
            speeds.append((report["predicted_decode_tps"], row["decode_tok_s"]))
    result = {"model": str(model), "flags": flags, "sizes": sizes, "load": round(os.getloadavg()[0], 2)}
    if speeds:
        predicted, reached = (statistics.median(x) for x in zip(*speeds))
        result |= {"predicted_tok_s": round(predicted, 1), "tok_s": round(reached, 1), "tok_s_ratio": round(predicted / reached, 3)}
    return result


def is_true(row):
    return all(abs(s["ratio"] - 1) <= BARS["bytes"] for s in row["sizes"]) and abs(row.get("tok_s_ratio", 1) - 1) <= BARS["tokens_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build")
    p.add_argument("models", nargs="+")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--ctx", default="256,1000,1825,5000")
    p.add_argument("--flags", default="")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    rows = [measure(a.build, m, a.rounds, [int(n) for n in a.ctx.split(",") if n], a.flags.split()) for m in a.models]
    if a.json:
        print(json.dumps(rows))
        return 0
    for r in rows:
        print(f"{r['model']} {' '.join(r['flags'])} (load {r['load']})")
        for s in r["sizes"]:
            print(f"  {s['context']} tokens: {s['expected_bytes'] / 1e6:.0f} MB expected, {s['bytes'] / 1e6:.0f} MB taken ({s['ratio']})")
        if "tok_s" in r:
            print(f"  {r['predicted_tok_s']} tok/s predicted, {r['tok_s']} reached ({r['tok_s_ratio']})")
    return 0 if all(is_true(r) for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
