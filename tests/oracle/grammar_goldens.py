#!/usr/bin/env python3
"""tests/golden/grammar/cases.jsonl: random schemas with texts that jsonschema calls valid (drawn under the masks) and mutations of them that
it calls invalid. Needs what grammar_walks.py needs.

    tests/oracle/grammar_goldens.py [--build build] [--cache DIR] OUT
"""
import argparse
import json
import pathlib
import random

from jsonschema import Draft202012Validator, FormatChecker

from grammar_suite import Tool, build_tool
from grammar_walks import schema, scalar


def mutate(r, v):
    """The same value with one small change somewhere."""
    if isinstance(v, dict) and v and r.random() < 0.8:
        k = r.choice(list(v))
        out = dict(v)
        if r.random() < 0.4:
            del out[k]
        else:
            out[k] = mutate(r, v[k])
        return out
    if isinstance(v, list) and v and r.random() < 0.8:
        i = r.randrange(len(v))
        return v[:i] + ([] if r.random() < 0.4 else [mutate(r, v[i])]) + v[i + 1:]
    if isinstance(v, str) and r.random() < 0.7:
        return r.choice([v + "x", v[:-1], v + "é", "7", ""])
    if isinstance(v, (int, float)) and not isinstance(v, bool) and r.random() < 0.7:
        return r.choice([v + 1, -v, v * 1000, 0])
    return r.choice([None, True, 0, "", [], {}, "q"])


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", default="build", type=pathlib.Path)
    p.add_argument("--cache", default=pathlib.Path.home() / ".cache" / "mlx-bun" / "json-schema-suite", type=pathlib.Path)
    p.add_argument("--schemas", default=220, type=int)
    p.add_argument("out", type=pathlib.Path)
    a = p.parse_args()
    tool = Tool(build_tool(a.build, a.cache), "walk")
    lines = []
    for i in range(a.schemas):
        r = random.Random(77000 + i)
        s = {"$defs": {"d": {"type": "object", "properties": {"v": scalar(r), "kid": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d"}]}},
                             "required": ["v"], "additionalProperties": False}}, **schema(r, 3)}
        if "#/$defs/d" not in json.dumps({k: v for k, v in s.items() if k != "$defs"}):
            del s["$defs"]
        text = json.dumps(s, ensure_ascii=False)
        out = tool.ask(kind="schema", text=text, strict=True, seed=i, n=6, max_tokens=120)
        texts = sorted({t for t in out.get("texts", []) if len(t) < 300}, key=len)[:4]
        if not texts:
            continue
        validator = Draft202012Validator(s, format_checker=FormatChecker())
        assert all(validator.is_valid(json.loads(t)) for t in texts), text
        invalid = set()
        for _ in range(40):
            v = mutate(r, json.loads(r.choice(texts)))
            if not validator.is_valid(v) and len(invalid) < 4:
                invalid.add(json.dumps(v, ensure_ascii=False, separators=(",", ":")))
        lines.append(json.dumps({"schema": text, "valid": texts, "invalid": sorted(invalid)}, ensure_ascii=False))
    a.out.write_text("\n".join(lines) + "\n")
    print(len(lines), "cases,", a.out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
