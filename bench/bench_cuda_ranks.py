"""bench_cuda_ranks.py: decode and prefill of large shapes on one GPU and on several, with the exchanges' share of a step.

    bench/bench_cuda_ranks.py [--tool build/cuda_ranks] [--devices cuda:0 cuda:0,1] [--shapes 8b,70b] [--out FILE]

Random 4-bit checkpoints of real shapes are made on the spot (bench_cuda.py's). bench/cuda_ranks.c measures; the digest of its logits
must be the same on all devices. Writes FILE, by default bench/results/cuda-x2-latest.json. `make build/cuda_ranks` builds the tool.
Needs numpy; several cards need NCCL (docs/cuda.md).
"""
import argparse
import datetime
import json
import subprocess
import tempfile
from pathlib import Path

from bench_cuda import ROOT, SHAPES, write_checkpoint

BARS = {("70b", "b1_tok_s"): 1.5, ("70b", "prefill_tok_s"): 1.7}  # two cards over one


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--tool", default=str(ROOT / "build/cuda_ranks"))
    a.add_argument("--devices", nargs="+", default=["cuda:0", "cuda:0,1", "cuda:0,1/nccl"])
    a.add_argument("--shapes", default="8b,70b")
    a.add_argument("--commit", default="")
    a.add_argument("--timeout", type=int, default=300)
    a.add_argument("--out", default=str(ROOT / "bench/results/cuda-x2-latest.json"))
    args = a.parse_args()
    commit = args.commit or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    result = {"date": datetime.date.today().isoformat(), "commit": commit, "rows": []}
    for name in args.shapes.split(","):
        with tempfile.TemporaryDirectory() as d:
            write_checkpoint(SHAPES[name], Path(d))
            rows = []
            for device in args.devices:
                p = subprocess.run([args.tool, d, device], capture_output=True, text=True, timeout=args.timeout)
                if p.returncode != 0:
                    print(name, device, "failed:", p.stderr, flush=True)
                    continue
                row = {"shape": name, "devices": device, **json.loads(p.stdout)}
                if rows:
                    row["same_bits"] = row["digest"] == rows[0]["digest"]
                    for key in [k for k in row if k.endswith("tok_s")]:
                        row[f"{key}_ratio"] = round(row[key] / rows[0][key], 3)
                        if (name, key) in BARS and device == "cuda:0,1":
                            row[f"{key}_pass"] = row[f"{key}_ratio"] >= BARS[name, key]
                rows.append(row)
                print(json.dumps(row), flush=True)
            result["rows"] += rows
            Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
