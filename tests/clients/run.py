"""run.py [--only NAME,...] [--record FOLDER] [--results FILE]: real clients against a server each, through a proxy that keeps
what passes; prints a line a client and "N passed, N failed". $MLX_BUN is the program. Called by tools/clients, which has
installed the clients.

A client passes when its own output is right (drivers.py) and the traffic is: every request got 200, an answer was a stream with
a call of the tool, the result of the call came back, and both the request behind it and the second turn's first one found
their beginning in the prefix cache."""
import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "http")]
import drivers  # noqa: E402
import http_rig as rig  # noqa: E402
import script  # noqa: E402
from proxy import Proxy  # noqa: E402

STARTER = Path.home() / ".cache/mlx-bun/starter/SmolLM2-135M-Instruct"
PATHS = ("/v1/messages", "/v1/responses", "/v1/chat/completions")


def generations(exchanges):
    """What asked for tokens and offered tools (agents also ask for titles)."""
    return [x for x in exchanges if x.path.split("?")[0] in PATHS and x.method == "POST" and json.loads(x.data).get("tools")]


def cached_tokens(x):
    """The last usage of a stream; None: there is none."""
    found = None
    for line in x.text.splitlines():
        if not line.startswith("data: {"):
            continue
        e = json.loads(line[6:])
        u = e.get("usage") or (e.get("response") or {}).get("usage") or (e.get("message") or {}).get("usage") or {}
        d = u.get("prompt_tokens_details") or u.get("input_tokens_details") or {}
        n = u.get("cache_read_input_tokens", d.get("cached_tokens"))
        found = n if n is not None else found
    return found


def check_traffic(exchanges, tool):
    """What the proxy saw, in numbers; raises AssertionError with the reason."""
    bad = [(x.method, x.path, x.status, x.text[:300]) for x in exchanges if x.method == "POST" and x.status != 200]
    assert not bad, bad
    asked = generations(exchanges)
    assert len(asked) >= 3, [x.path for x in exchanges]
    assert all(json.loads(x.data).get("stream") for x in asked)
    assert f'"{tool}"' in asked[0].text, asked[0].text[:500]
    results = [x for x in asked if drivers.NOTE.encode() in x.data]
    assert results, "no request holds the tool's result"
    cached = [cached_tokens(x) for x in asked]
    assert all(n for n in cached[1:]), cached
    return {"requests": len(exchanges), "body_bytes": [len(x.data) for x in asked], "cached_tokens": cached}


def one(row, model, choice, folder, record=None):
    name, package, tool, arguments, driver, _ = row
    flags = ("--batch", "4")
    with rig.Server(*flags, model=model) as s, Proxy(s.port) as p:
        r = drivers.Run(folder, p.port)
        try:
            saw = driver(r, choice)
            seen = check_traffic(p.exchanges, tool)
        except Exception as e:
            traffic = "\n".join(f"    {x.method} {x.path} {x.status} {len(x.data)} -> {x.text[-300:]!r}" for x in p.exchanges[-6:])
            raise RuntimeError(f"{e}\n{traffic}\n{s.stderr()[-800:]}") from e
        finally:
            if record and choice == "auto":
                import recording
                recording.write(record, name, generations(p.exchanges), folder)
        return {**seen, **({"calls": saw["calls"]} if saw else {})}


def arguments_in(arguments, folder):
    return {k: v.replace("@", str(folder / "work")) for k, v in arguments.items()}


def version_of(package, name):
    if name.endswith("-python"):
        from importlib.metadata import version
        return version(package)
    return json.loads((drivers.NODE / package / "package.json").read_text())["version"]


def attempt(row, kind, record):
    name, package = row[:2]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="clients-") as tmp:
        folder = Path(tmp)
        out = {"client": name, "package": f"{package} {version_of(package, name)}", "model": kind}
        try:
            if kind == "scripted":
                (folder / "model").mkdir()
                model, choice = script.model(folder / "model", row[2], arguments_in(row[3], folder)), "auto"
            else:
                model, choice = STARTER, "required"
            out |= {"passed": True, **one(row, model, choice, folder, record)}
        except Exception as e:
            out |= {"passed": False, "error": str(e)}
    out["seconds"] = round(time.monotonic() - begin, 1)
    return out


def say(o):
    what = f"cached {o['cached_tokens']}" if o["passed"] else o["error"]
    print(f"{'ok  ' if o['passed'] else 'FAIL'} {o['client']:17} {o['package']:40} {o['model']:8} {o['seconds']:5} s  {what}", flush=True)


def write_results(file, rows):
    """Rows of clients that did not run this time stay as they are in the file."""
    if Path(file).exists():
        ran = {(r["client"], r["model"]) for r in rows}
        rows = [r for r in json.loads(Path(file).read_text())["clients"] if (r["client"], r["model"]) not in ran] + rows
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=HERE).stdout.strip()
    Path(file).write_text(json.dumps({"date": datetime.date.today().isoformat(), "commit": git, "machine": platform.machine(),
                                      "passed": sum(r["passed"] for r in rows), "failed": sum(not r["passed"] for r in rows),
                                      "clients": rows}, indent=1) + "\n")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--only", default="")
    a.add_argument("--record")
    a.add_argument("--results")
    a.add_argument("--scripted", action="store_true", help="without the runs against the starter model")
    args = a.parse_args()
    rows, only = [], [n for n in args.only.split(",") if n]
    starter = STARTER.is_dir() and not args.scripted
    for kind in ("scripted", "SmolLM2") if starter else ("scripted",):
        for row in drivers.CLIENTS:
            if (only and row[0] not in only) or (kind == "SmolLM2" and not row[5]):
                continue
            rows.append(attempt(row, kind, args.record))
            say(rows[-1])
    if args.results:
        write_results(args.results, rows)
    failed = sum(not r["passed"] for r in rows)
    print(f"{len(rows) - failed} passed, {failed} failed")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    os.environ.setdefault("MLX_BUN", str(rig.ROOT / "build/mlx-bun"))
    sys.exit(main())
