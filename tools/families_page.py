#!/usr/bin/env python3
"""families_page.py: docs/families.md from the table of families on standard input (`mlx-bun help --docs-families`) and what the tests
compare each with: figures of tests/golden/families.json (tests/golden/test_logits.c measures and checks them), the rows of
tests/invariance/bits.json and tests/golden/convert. Exit 1, with the names, when a family lacks any of it.
"""
import importlib.util
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY = ROOT / "tests/golden/tiny"
FIGURES = ("f32", "f32_sums", "l1_f32", "l1", "l2", "tokens")
NO_TOKENS = ("llama-dynamic", "llama-longrope")             # goldens of logits alone, as tests/golden/test_logits.c has it
LOGITS = {"diffusion_gemma": "tests/golden/diffusion"}      # whole rounds over canvases, not logits of a prompt


def convert_cases():
    spec = importlib.util.spec_from_file_location("convert_source_page", ROOT / "tests/golden/convert/source.py")
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    return source.CASES


def families(text):
    """Rows of the table: (name, its types, the row's text)."""
    rows = re.findall(r"^\| ([a-z0-9_]+) \| (`.*?`) \| (.*) \|$", text, re.M)
    return [(name, re.findall(r"`([a-z0-9_]+)`", types), note) for name, types, note in rows]


def checkpoints(types):
    """Folders of tests/golden/tiny of these model types."""
    return [p.name for p in sorted(TINY.iterdir()) if (p / "config.json").exists()
            and json.loads((p / "config.json").read_text())["model_type"] in types]


def goldens(names):
    """Labels of tests/golden/logits over these checkpoints, by checkpoint."""
    out = {n: [] for n in names}
    for file in sorted((ROOT / "tests/golden/logits").glob("*.json")):
        name = Path(json.loads(file.read_text())["checkpoint"]).name
        if name in out:
            out[name].append(file.stem)
    return out


class Page:
    def __init__(self, rows):
        self.rows, self.lacks = rows, []
        self.measured = json.loads((ROOT / "tests/golden/families.json").read_text())
        self.bits = json.loads((ROOT / "tests/invariance/bits.json").read_text())["rows"]
        self.cases, self.converted = convert_cases(), json.loads((ROOT / "tests/golden/convert/golden.json").read_text())

    def need(self, ok, family, what):
        if not ok:
            self.lacks.append(f"{family}: {what}")
        return ok

    def logits(self, family, names):
        """Lines of the table of figures."""
        lines, labels = [], goldens(names)
        if family in LOGITS:
            self.need(any((ROOT / LOGITS[family]).glob("*.json")), family, f"no golden in {LOGITS[family]}")
            return [f"| {family} | | whole rounds over canvases: {LOGITS[family]} | | | | |"]
        self.need(any(labels.values()), family, "no golden in tests/golden/logits")
        for label in [v for n in names for v in labels[n]]:
            m = self.measured.get(label, {})
            absent = [k for k in FIGURES if k not in m and not (k == "tokens" and label in NO_TOKENS)]
            if self.need(not absent, family, f"tests/golden/families.json has no {', '.join(absent)} of {label}"):
                lines.append(f"| {family} | {label} | {m['f32']:.1e} | {m['f32_sums']:.1e} | {m['l1']:.1e} | {m['l2']:.1e} | "
                             f"{int(m['tokens']) if 'tokens' in m else ''} |")
        return lines

    def convert(self, family, names):
        cases = {c: args for c, (source, how, args) in self.cases.items() if source in names and c in self.converted}
        whole = [c for c, args in cases.items() if args.get("quantize") and not args.keys() & {"quant_predicate", "plan"}]
        mixed = [c for c, args in cases.items() if args.keys() & {"quant_predicate", "plan"}]
        self.need(whole, family, "no uniform case in tests/golden/convert")
        self.need(mixed, family, "no case with bits by layer in tests/golden/convert")
        return f"{len(cases)} cases"

    def layouts(self, family, names):
        plain = any(source in names and not how.get("packed") and not how.get("fp8") for source, how, _ in self.cases.values())
        self.need(plain, family, "no plain source in tests/golden/convert: test_published_and_mlx_layout has nothing to compare")
        return "yes"

    def print(self, out):
        figures, rest = [], []
        for family, types, _ in self.rows:
            names = checkpoints(types)
            self.need(names, family, "no checkpoint in tests/golden/tiny")
            missing = [n for n in names if not any(k.startswith(n + " ") for k in self.bits)]
            self.need(not missing, family, "tests/invariance/bits.json has no " + ", ".join(missing))
            figures += self.logits(family, names)
            rest.append(f"| {family} | {self.convert(family, names)} | {self.layouts(family, names)} | {', '.join(names)} |")
        print(HEAD, file=out)
        for family, types, note in self.rows:
            print(f"| {family} | {', '.join(f'`{t}`' for t in types)} | {note} |", file=out)
        print(FIGURES_HEAD + "\n".join(figures), file=out)
        print(REST_HEAD + "\n".join(rest), file=out)


HEAD = """# Families

Written by `make docs`: the table of src/model/arch.c and what the tests compare each family with. A family that lacks any of the
comparisons below makes `make docs` and the tests fail. How one is added: [add-a-family.md](add-a-family.md).

All run batched (but the last, which tests/golden/diffusion holds to its oracle), chunked, with the prefix cache, with LoRA adapters
(but on experts); mixtures also with `--expert-offload`.

| family | model_type | note |
|---|---|---|"""
FIGURES_HEAD = """
## Against the oracle

Tiny random checkpoints from the oracle's own classes with every branch on (`tests/golden/tiny`), a prompt of 300 tokens. Measured and
checked by `tests/golden/test_logits.c` on every CPU level, whose bits are the same.

- **f32**: the largest difference of a logit from a float64 forward, as a share of the largest logit, at the stored positions; bar 1e-5.
- **sums**: the same of two sums of all 512 logits with signs at random, at all 300 positions; bar 2.3e-4 (22.7 times as much, sqrt(512)).
- **l1**, **l2**: mean KL in nats with the default keys and values; bars 1e-4 and 5e-2 (0.3 where an indexer chooses keys).
- **tokens**: of 64 greedy tokens, teacher-forced, those where the oracle's gap exceeds 0.01; all are equal.

| family | golden | f32 | sums | l1 | l2 | tokens |
|---|---|---|---|---|---|---|
"""
REST_HEAD = """
## In every form

- **convert**: every tensor of `mlx-bun convert` equals that of mlx_lm.convert (mlx-vlm's classes for DiffusionGemma) bit for bit, uniform
  and with bits by layer (`tests/golden/convert`, `tests/cli/test_convert.py`).
- **layouts**: the plain Hugging Face layout and the MLX layout of the same weights give the same bits
  (`tests/invariance/test_layouts.py`, test_published_and_mlx_layout).
- **the same bits** on every CPU level, in chunks of every size, with 1 and N threads (`tests/invariance/bits.json`), and over HTTP alone,
  batched, in chunks and from the prefix cache (`tests/http/test_families.py`): the checkpoints named.

| family | convert | layouts | the same bits |
|---|---|---|---|
"""


def main():
    page = Page(families(sys.stdin.read()))
    if not page.rows:
        sys.exit("families_page.py: no table of families on standard input")
    page.print(sys.stdout)
    if page.lacks:
        sys.exit("families_page.py: " + "; ".join(page.lacks))


if __name__ == "__main__":
    main()
