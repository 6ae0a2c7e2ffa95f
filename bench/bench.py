"""bench.py: this program against llama.cpp on the same machine, in alternation: `make bench`.

The starter (4-bit g32 from its Q4_1 file) against the same weights requantised to Q4_0, llama.cpp's best format of these bits, on 1 and
2 threads. Each figure is the median of ROUNDS alternating runs. Prints a table and writes bench/results/<date>-<cpu>.json and
latest.json: {machine, levels, date, rows: [{name, unit, ours, peer, ratio}]}. Usage: bench.py MODEL_DIR FILE.gguf PEER_PYTHON BENCH_CPU
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

ROUNDS = int(os.environ.get("ROUNDS", "5"))
N_PROMPT, N_DECODE = 512, 64
HERE = Path(__file__).resolve().parent


def run(*args):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{args[0]} failed: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def cpu_name():
    text = Path("/proc/cpuinfo").read_text()
    found = re.search(r"model name\s*:\s*(.*)", text)
    flags = re.search(r"flags\s*:\s*(.*)", text).group(1).split()
    levels = ["portable"] + [n for n, f in (("avx2", "avx2"), ("avx512", "avx512_vnni"), ("amx", "amx_int8")) if f in flags]
    return (found.group(1).strip() if found else "unknown"), levels


def measure(model_dir, gguf, peer_python, bench_cpu, threads, tier):
    ours, peer = [], []
    for _ in range(ROUNDS):
        ours.append(run(bench_cpu, model_dir, tier, threads, N_PROMPT, N_DECODE))
        peer.append(run(peer_python, HERE / "peer_llama.py", gguf, threads, N_PROMPT, N_DECODE))
    rows = []
    for what, key in (("prefill 512", "prefill_tok_s"), ("decode", "decode_tok_s")):
        a, b = statistics.median(o[key] for o in ours), statistics.median(p[key] for p in peer)
        ratio = statistics.median(o[key] / p[key] for o, p in zip(ours, peer))
        rows.append({"name": f"{what}, {tier}, {threads} thread{'s' if threads > 1 else ''}", "unit": "tokens/s", "ours": round(a, 1),
                     "peer": round(b, 1), "ratio": round(ratio, 2)})
    rows[-1]["barrier_us_per_token"] = round(statistics.median(o["barrier_us_per_token"] for o in ours), 1)
    return rows


def main():
    model_dir, gguf, peer_python, bench_cpu = sys.argv[1:5]
    name, levels = cpu_name()
    with tempfile.TemporaryDirectory() as tmp:
        q4_0 = Path(tmp) / "q4_0.gguf"
        subprocess.run([peer_python, HERE / "peer_llama.py", "--q4_0", gguf, q4_0], check=True)
        rows = []
        for threads in (1, 2):
            for tier in ("l1", "l2"):
                for row in measure(model_dir, q4_0, peer_python, bench_cpu, threads, tier):
                    rows.append(row)
                    print(f"{row['name']:28} ours {row['ours']:8.1f}  llama.cpp {row['peer']:8.1f}  ratio {row['ratio']:.2f}", flush=True)
    date = datetime.date.today().isoformat()
    result = {"machine": name, "levels": levels, "date": date, "peer": "llama-cpp-python 0.3.36, Q4_0", "rounds": ROUNDS, "rows": rows}
    text = json.dumps(result, indent=1) + "\n"
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    (results / f"{date}-{short}.json").write_text(text)
    (results / "latest.json").write_text(text)


main()
