"""fidelity_page.py TIERS PEERS: lines of "model<TAB>json of doctor --fidelity" and the object of bench/fidelity.py to docs/fidelity.md on
standard output."""
import json
import sys
from pathlib import Path

print("""# Fidelity

How far each tier is from exact arithmetic, measured by `make fidelity` (`mlx-bun doctor --fidelity MODEL` for any model): mean
KL(f32 || tier) in nats a position, its 99th percentile, and how often the most likely token agrees, over 4,096 positions of English,
code, German and Japanese (`tests/golden/fidelity/texts`). The reference is our own float32 tier, which is within 1e-5 of the largest
logit of a float64 forward (`tests/golden/test_logits.c`). "KV" is the format of keys and values: the family's 16-bit type, float32, or codes (`--kv-quant 8`, `4`).
The figures are the same on every CPU level: the bits are.

| model | tier | KV | mean KL | bar | p99 | top-1 | bar met |
|---|---|---|---|---|---|---|---|""")
for line in open(sys.argv[1], encoding="utf-8"):
    name, text = line.rstrip("\n").split("\t", 1)
    report = json.loads(text)
    for t in report["tiers"]:
        print(f"| {name} | {t['tier']} | {t['kv']} | {t['mean_kl']:.2g} | {t['bar_mean_kl']:.0e} | {t['p99_kl']:.2g} | "
              f"{t['top1_percent']:.2f} % | {'yes' if t['met'] else '**no**'} |")
oracle = json.loads((Path(__file__).resolve().parent.parent / "tests/golden/fidelity/kv_oracle.json").read_text())
print(f"""
mlx-lm's quantised cache (group 64, start 0; float32 arithmetic, so that the cache is all that differs; tests/oracle/kv_quant.py,
{oracle['positions']} positions of SmolLM2-135M-Instruct on the same texts): {'; '.join(
    f"{bits} mean KL {oracle[bits]['mean_kl']:.2g}, p99 {oracle[bits]['p99_kl']:.2g}, top-1 {oracle[bits]['top1_percent']:.2f} %"
    for bits in ('8 bit', '4 bit'))}.""")
peers = json.load(open(sys.argv[2], encoding="utf-8"))
print(f"""
## Beside the peers

The same weights and ids ({peers['model']}), error and speed of the same day ({peers['date']}, {peers['machine']}, load {peers['load']};
medians of {peers['rounds']} alternating runs, one thread). llama.cpp runs the GGUF file whose codes the checkpoint has, in its default
arithmetic (8-bit activations, f16 keys and values). With `MLX=1` mlx-lm on the CPU stands beside them, with as many threads as it takes.

| | mean KL to float32 | p99 | top-1 | prefill 512, tokens/s | decode, tokens/s |
|---|---|---|---|---|---|""")
for r in peers["rows"]:
    print(f"| {r['name']} | {r['mean_kl']:.2g} | {r['p99_kl']:.2g} | {r['top1_percent']:.2f} % | {r['prefill_tok_s']:.0f} | {r['decode_tok_s']:.0f} |")
