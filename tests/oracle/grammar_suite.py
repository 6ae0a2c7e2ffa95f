#!/usr/bin/env python3
"""The JSON Schema Test Suite (draft 2020-12) against the grammar engine: which groups are enforced exactly?

A group counts as enforced when a strict compile takes its schema, every valid instance can be generated, compact as well as with spaces,
and no invalid one can in either form. Instances are written as the engine writes values: keys in any order that it offers (all orders
are tried), 1.0 as 1.

    tests/oracle/grammar_suite.py [--build build] [--cache DIR] [--verbose] [--markdown] [--answers]

--answers prints the table of what is answered to keywords that cannot be enforced (tests/golden/grammar/unsupported.json) instead.

The suite comes with the source archive of PyPI's jsonschema and is kept in --cache, never in the repository. Needs pip, a C compiler and
BUILD/libmlxbun.a (make BUILD=... MODULES="base format tokenizer grammar" BUILD/libmlxbun.a).
"""
import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VERSION = "4.26.0"


def fetch_suite(cache: pathlib.Path) -> pathlib.Path:
    root = cache / f"jsonschema-{VERSION}" / "json" / "tests" / "draft2020-12"
    if not root.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", str(cache),
                        f"jsonschema=={VERSION}"], check=True)
        with tarfile.open(cache / f"jsonschema-{VERSION}.tar.gz") as tar:
            tar.extractall(cache)
    return root


def build_tool(build: pathlib.Path, cache: pathlib.Path) -> pathlib.Path:
    tool, lib, src = cache / "grammar_tool", build / "libmlxbun.a", HERE / "grammar_tool.c"
    if tool.exists() and tool.stat().st_mtime > max(lib.stat().st_mtime, src.stat().st_mtime):
        return tool
    cache.mkdir(parents=True, exist_ok=True)
    libs = subprocess.run(["pkg-config", "--libs", "jansson", "libpcre2-8", "libutf8proc", "libxxhash"], check=True,
                          capture_output=True, text=True).stdout.split()
    flags = os.environ.get("TOOL_CFLAGS", "-O2").split()
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", *flags, f"-I{ROOT}/src", f"-I{ROOT}/include", str(src),
                    str(lib), "-o", str(tool), *libs, "-lpthread", "-lm"], check=True)
    return tool


class Tool:
    def __init__(self, tool, mode="check", *args):
        self.p = subprocess.Popen([str(tool), mode, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        self.p.stdin.write(json.dumps(request) + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline()
        if not line:
            raise RuntimeError(f"grammar_tool died on {request}")
        return json.loads(line)


FORMS = ((",", ":"), (", ", ": "))  # compact, with spaces


def spellings(value, form, limit=150):
    """The texts of a value, over all orders of keys."""
    comma, colon = form

    def variants(v):
        if isinstance(v, bool) or v is None or isinstance(v, (str, int)):
            return [json.dumps(v, ensure_ascii=False)]
        if isinstance(v, float):
            return [json.dumps(int(v)) if v == int(v) and abs(v) < 2**63 else json.dumps(v)]
        if isinstance(v, list):
            parts = itertools.product(*[variants(x) for x in v])
            return ["[" + comma.join(p) + "]" for p in itertools.islice(parts, limit)]
        pairs = [[json.dumps(k, ensure_ascii=False) + colon + t for t in variants(x)] for k, x in v.items()]
        out = []
        for order in itertools.islice(itertools.permutations(pairs), limit):
            out += ["{" + comma.join(p) + "}" for p in itertools.islice(itertools.product(*order), limit)]
        return out[:limit]
    return variants(value)


def check_group(tool, group):
    """(verdict, detail) of one group."""
    texts = [[spellings(t["data"], f) for f in FORMS] for t in group["tests"]]
    answer = tool.ask(kind="schema", text=json.dumps(group["schema"]), strict=True, inputs=[s for t in texts for f in t for s in f])
    if "error" in answer:
        if answer["error"]["code"] == 1 and not any(t["valid"] for t in group["tests"]):
            return "enforced", "no value: refused"
        return "refused", answer["error"]["text"]
    results, at, wrong = answer["results"], 0, []
    for test, t in zip(group["tests"], texts):
        for form in t:
            got = any(results[at:at + len(form)])
            at += len(form)
            if got != test["valid"]:
                wrong.append(f"{test['description']!r} {form[0][:80]} is {'reachable' if got else 'not reachable'}")
    return ("enforced", "") if not wrong else ("wrong", "; ".join(wrong))


def answers(tool):
    """A row a keyword: an example, what `strict` is told, what else is told."""
    print("| keyword | for example | `strict`, `guided_*`: 400 | else: the rest is enforced, and `Warning` |\n|---|---|---|---|")
    for row in json.loads((ROOT / "tests/golden/grammar/unsupported.json").read_text()):
        said = []
        for strict in (True, False):
            a = tool.ask(kind="schema", text=json.dumps(row["schema"]), strict=strict, inputs=[])
            if "error" in a:
                said.append(a["error"]["text"] if strict else "nothing is enforced: " + a["error"]["text"])
            else:
                said.append(", ".join(f"{k} at {path}" for k, path in a["unenforced"]))
        cells = [x.replace("|", "\\|") for x in (row["keyword"], json.dumps(row["schema"]), *said)]
        print("| `%s` | `%s` | %s | %s |" % tuple(cells))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build", type=pathlib.Path)
    p.add_argument("--cache", default=pathlib.Path.home() / ".cache" / "mlx-bun" / "json-schema-suite", type=pathlib.Path)
    p.add_argument("--verbose", action="store_true")
    p.add_argument("--markdown", action="store_true")
    p.add_argument("--answers", action="store_true")
    a = p.parse_args()
    if a.answers:
        return answers(Tool(build_tool(a.build, a.cache)))
    suite = fetch_suite(a.cache)
    tool = Tool(build_tool(a.build, a.cache))
    total = {"enforced": 0, "refused": 0, "wrong": 0}
    rows = []
    for path in sorted(suite.glob("*.json")):
        n = {"enforced": 0, "refused": 0, "wrong": 0}
        for group in json.loads(path.read_text()):
            verdict, detail = check_group(tool, group)
            n[verdict] += 1
            total[verdict] += 1
            if a.verbose and detail:
                print(f"  {path.stem}: {group['description']}: {verdict}: {detail}")
        rows.append((path.stem, n))
    print("| file | groups | enforced | refused by name | differs |\n|---|---|---|---|---|" if a.markdown else "")
    for name, n in rows + [("all", total)]:
        cells = (name, sum(n.values()), n["enforced"], n["refused"], n["wrong"])
        print("| %s | %d | %d | %d | %d |" % cells if a.markdown else "%-24s %4d groups %4d enforced %3d refused %3d wrong" % cells)
    print(f"\n{100 * total['enforced'] / sum(total.values()):.1f} % of the groups enforced exactly")


if __name__ == "__main__":
    main()
