#!/usr/bin/env python3
"""Random schemas, random walks over the tokens that the masks allow: every finished text must validate under jsonschema.

    tests/oracle/grammar_walks.py [--build build] [--cache DIR] [--schemas 1000] [--walks 20] [--seed 1] [--tokenizer DIR]

Needs `pip install jsonschema==4.26.0` and what grammar_suite.py needs. Prints what was walked and the first failures; exit status 1 when
there was one.
"""
import argparse
import json
import pathlib
import random
import sys

from jsonschema import Draft202012Validator, FormatChecker

from grammar_suite import Tool, build_tool

NAMES = ["a", "b", "name", "naam", "first name", "größe", "n_1", "名前", "x\ny", "", "na"]
TEXTS = ["", "a", "ab", "größe", "käfer", "开关", "🦊", "a\"b", "\\", "line\nend"]
PATTERNS = ["^(k-)?\\d{3,}$", "^[a-z]{1,20}$", "b", "^a|z$", "^[^x]*$", "^\\w+@\\w+$", "é$", "^[A-F0-9]{2}(-[A-F0-9]{2}){0,3}$"]
FORMATS = ["date", "ipv4", "ipv6", "uuid", "email", "date-time", "duration", "hostname"]


def count_pair(r, lo, hi, most):
    a, b = sorted((r.randint(0, most), r.randint(0, most)))
    return {k: v for k, v in ((lo, a), (hi, b)) if r.random() < 0.6}


def scalar(r):
    kind = r.randrange(8)
    if kind == 0:
        return {"type": "string", **count_pair(r, "minLength", "maxLength", 12)}
    if kind == 1:
        return {"type": "string", "pattern": r.choice(PATTERNS)}
    if kind == 2:
        return {"type": "string", "format": r.choice(FORMATS)}
    if kind == 3:
        lo, hi = sorted((r.randint(-200, 200), r.randint(-200, 2000)))
        return {"type": "integer", **{k: v for k, v in (("minimum", lo), ("maximum", hi)) if r.random() < 0.7},
                **({"multipleOf": r.randint(1, 12)} if hi - lo > 12 and r.random() < 0.3 else {})}
    if kind == 4:
        lo, hi = sorted((r.randint(-40, 40) / 8, r.randint(-40, 80) / 8))
        keys = r.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
        hi += 0.5
        return {"type": "number", **{k: v for k, v in zip(keys, (lo, hi)) if r.random() < 0.7}}
    if kind == 5:
        return {"enum": r.sample([*TEXTS, 1, 2.5, None, True, -7, {"k": [1]}, []], r.randint(1, 5))}
    if kind == 6:
        return {"const": r.choice([*TEXTS, 9007199254740993, 0.1, False])}
    return {"type": r.choice(["boolean", "null", "string", "integer", "number", ["string", "null"]])}


def array(r, depth):
    s = {"type": "array"}
    if r.random() < 0.3:
        s["prefixItems"] = [schema(r, depth - 1) for _ in range(r.randint(1, 3))]
    if r.random() < 0.8:
        s["items"] = schema(r, depth - 1)
    if r.random() < 0.6:
        s.update(count_pair(r, "minItems", "maxItems", 5))
    elif "prefixItems" not in s and r.random() < 0.3:
        s.update({"contains": scalar(r), "minContains": r.randint(1, 3)})
    return s


def obj(r, depth):
    names = r.sample(NAMES, r.randint(0, 4))
    s = {"type": "object", "properties": {n: schema(r, depth - 1) for n in names},
         "required": [n for n in names if r.random() < 0.5]}
    if r.random() < 0.6:
        s["additionalProperties"] = r.choice([False, False, scalar(r)])
    if r.random() < 0.15:
        s["patternProperties"] = {r.choice(["^n", "_\\d$", "e"]): scalar(r)}
    if r.random() < 0.15:
        s["minProperties"] = r.randint(0, len(names))
    if r.random() < 0.15:
        s["maxProperties"] = r.randint(len(s["required"]), 6)
    if len(names) > 1 and r.random() < 0.15:
        s["dependentRequired"] = {names[0]: [names[1]]}
    return s


def schema(r, depth):
    roll = r.random()
    if depth <= 0 or roll < 0.35:
        return scalar(r)
    if roll < 0.5:
        return array(r, depth)
    if roll < 0.75:
        return obj(r, depth)
    if roll < 0.82:
        return {"anyOf": [schema(r, depth - 1) for _ in range(r.randint(1, 3))]}
    if roll < 0.87:
        return {"oneOf": [schema(r, depth - 1) for _ in range(r.randint(2, 3))]}
    if roll < 0.91:
        return {"allOf": [obj(r, depth - 1), obj(r, depth - 1)]}
    if roll < 0.94:
        return {**scalar(r), "not": scalar(r)}
    if roll < 0.97:
        return {"if": scalar(r), "then": scalar(r), "else": schema(r, depth - 1)}
    return {"$ref": "#/$defs/d"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build", type=pathlib.Path)
    p.add_argument("--cache", default=pathlib.Path.home() / ".cache" / "mlx-bun" / "json-schema-suite", type=pathlib.Path)
    p.add_argument("--schemas", default=1000, type=int)
    p.add_argument("--walks", default=20, type=int)
    p.add_argument("--seed", default=1, type=int)
    p.add_argument("--tokenizer")
    a = p.parse_args()
    tool = Tool(build_tool(a.build, a.cache), "walk", *([a.tokenizer] if a.tokenizer else []))
    checker = FormatChecker()
    n_ok = n_cut = n_bad = n_refused = n_empty = 0
    for i in range(a.schemas):
        r = random.Random(a.seed * 1000003 + i)
        s = {"$defs": {"d": {"type": "object", "properties": {"v": scalar(r), "kid": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}},
                             "required": ["v"], "additionalProperties": False}}, **schema(r, 3)}
        text = json.dumps(s, ensure_ascii=False)
        out = tool.ask(kind="schema", text=text, strict=True, seed=i, n=a.walks, max_tokens=300)
        if "error" in out:
            n_empty += "no finite text" in out["error"]["text"]
            n_refused += "no finite text" not in out["error"]["text"]
            if out["error"]["code"] not in (1, 4, 7):
                print("odd error", out["error"], text)
            continue
        n_cut += out["cut"]
        validator = Draft202012Validator(s, format_checker=checker)
        for t in out["texts"]:
            try:
                error = next(validator.iter_errors(json.loads(t)), None)
            except ValueError as e:
                error = e
            n_ok += error is None
            if error is not None:
                n_bad += 1
                if n_bad <= 10:
                    print("INVALID", t[:300], "\n  under", text[:600], "\n  ", str(error).splitlines()[0][:200])
    print(f"{a.schemas} schemas (seed {a.seed}): {n_ok} texts valid, {n_bad} invalid, {n_cut} walks cut off; "
          f"{n_refused} schemas refused by name, {n_empty} that no value satisfies")
    sys.exit(n_bad > 0)


if __name__ == "__main__":
    main()
