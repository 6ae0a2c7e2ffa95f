"""bench_cuda_ranks.py: decode and prefill of large shapes on one GPU and on several, with the exchanges' share of a step.

    bench/bench_cuda_ranks.py [--tool build/cuda_ranks] [--devices cuda:0 cuda:0,1 cuda:0,1+meet] [--shapes 8b,70b] [--tmp DIR] [--out FILE]
    bench/bench_cuda_ranks.py --shapes larger          a model that no single card holds: refused by one, the same bits on two
    bench/bench_cuda_ranks.py --make SHAPE DIR         only make the checkpoint

Random 4-bit checkpoints of real shapes are made on the spot (bench_cuda.py's), in DIR (44 GB for the largest). bench/cuda_ranks.c
measures; the digest of its logits must be the same on all devices. `+meet` behind a device: without pushes (ranks_trade.c). Ratios are
over `cuda:0`, where it is the first device. `larger` is the 70B shape with 88 layers in mxfp4, which a card
holds as 16-bit floats: 155 GB. Adds its rows to FILE, by default bench/results/cuda-x2-latest.json, in place of those of the same
shape. `make build/cuda_ranks` builds the tool. Needs numpy; NCCL for devices that name it (docs/cuda.md).
"""
import argparse
import datetime
import json
import subprocess
import tempfile
from pathlib import Path

from bench_cuda import ROOT, SHAPES, write_checkpoint

BARS = {("70b", "b1_tok_s"): 1.5, ("70b", "prefill_tok_s"): 1.7}  # two cards over one
LARGER = (*SHAPES["70b"][:5], 88, SHAPES["70b"][6])


def make(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    write_checkpoint(LARGER if name == "larger" else SHAPES[name], folder, "mxfp4" if name == "larger" else "affine")


def measure(args, name, folder):
    rows = []
    for device in args.devices:
        command = [args.tool, folder, device.removesuffix("+meet")] + ["meet"] * device.endswith("+meet")
        p = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout)
        if p.returncode != 0:
            print(name, device, "failed:", p.stderr, flush=True)
            continue
        row = {"shape": name, "devices": device, "date": args.date, "commit": args.commit, **json.loads(p.stdout)}
        if rows:
            row["same_bits"] = row["digest"] == rows[0]["digest"]
        if rows and (rows[0]["devices"] == "cuda:0" or name == "larger"):  # no card holds the larger: over the first that ran
            for key in [k for k in row if k.endswith("tok_s")]:
                row[f"{key}_ratio"] = round(row[key] / rows[0][key], 3)
                if (name, key) in BARS and device == "cuda:0,1":
                    row[f"{key}_pass"] = row[f"{key}_ratio"] >= BARS[name, key]
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def refused(args, folder):
    """What one card says of a model that is larger than its memory."""
    p = subprocess.run([args.mlx_bun, "generate", folder, "--device", "cuda:0", "--prompt", "x", "--max-tokens", "1"], capture_output=True, text=True,
                       timeout=args.timeout)
    row = {"shape": "larger", "devices": "cuda:0", "date": args.date, "commit": args.commit, "exit_status": p.returncode, "refused": p.stderr.strip()[-600:]}
    print(json.dumps(row), flush=True)
    return row


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--tool", default=str(ROOT / "build/cuda_ranks"))
    a.add_argument("--mlx-bun", default=str(ROOT / "build/mlx-bun"))
    a.add_argument("--devices", nargs="+")
    a.add_argument("--shapes", default="8b,70b")
    a.add_argument("--make", nargs=2)
    a.add_argument("--made", help="a folder with checkpoints that --make has left there, by shape")
    a.add_argument("--tmp")
    a.add_argument("--commit", default="")
    a.add_argument("--timeout", type=int, default=300)
    a.add_argument("--out", default=str(ROOT / "bench/results/cuda-x2-latest.json"))
    args = a.parse_args()
    if args.make:
        return make(args.make[0], Path(args.make[1]))
    args.date = datetime.date.today().isoformat()
    args.commit = args.commit or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    asked = args.devices
    out = Path(args.out)
    result = json.loads(out.read_text()) if out.exists() else {"rows": []}
    for name in args.shapes.split(","):
        args.devices = asked or ["cuda:0"] * (name != "larger") + ["cuda:0,1", "cuda:0,1/nccl"] + ["cuda:0,1+meet"] * (name != "larger")
        with tempfile.TemporaryDirectory(dir=args.tmp) as d:
            folder = Path(args.made) / name if args.made else Path(d)
            if not args.made:
                make(name, folder)
            rows = ([refused(args, folder)] if name == "larger" else []) + measure(args, name, folder)
        result.update(date=args.date, commit=args.commit, rows=[r for r in result["rows"] if r["shape"] != name] + rows)
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
