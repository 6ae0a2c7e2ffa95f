"""fidelity_page.py FILE: lines of "model<TAB>json of doctor --fidelity" to docs/fidelity.md on standard output."""
import json
import sys

print("""# Fidelity

How far each tier is from exact arithmetic, measured by `make fidelity` (`mlx-bun doctor --fidelity MODEL` for any model): mean
KL(f32 || tier) in nats a position, its 99th percentile, and how often the most likely token agrees, over 4,096 positions of English,
code, German and Japanese (`tests/golden/fidelity/texts`). The reference is our own float32 tier, which is within 1e-5 of the largest
logit of a float64 forward (`tests/golden/test_logits.c`). "KV" is the format of keys and values: the family's 16-bit type, or float32.
The figures are the same on every CPU level: the bits are.

| model | tier | KV | mean KL | bar | p99 | top-1 | bar met |
|---|---|---|---|---|---|---|---|""")
for line in open(sys.argv[1], encoding="utf-8"):
    name, text = line.rstrip("\n").split("\t", 1)
    report = json.loads(text)
    for t in report["tiers"]:
        print(f"| {name} | {t['tier']} | {t['kv']} | {t['mean_kl']:.2g} | {t['bar_mean_kl']:.0e} | {t['p99_kl']:.2g} | "
              f"{t['top1_percent']:.2f} % | {'yes' if t['met'] else '**no**'} |")
