"""hostile.py: what an honest client feels while others attack: the gaps between the tokens of its streams, alone and beside each
attack of tests/http/test_hostile.py at full size (slow readers and senders, half-closed sockets, thousands of idle connections,
header bombs, bodies of 256 MB, compressed bombs, floods).

The honest client is a process of its own, so that it does not wait for the attackers' interpreter; server, attackers and client share
the machine's cores all the same. Prints for each attack the p99 gap alone (measured right before), the p99 gap beside it and their
ratio; the bar is 2. Attacks that ask for tokens share the batch with the honest stream: a step then holds their rows too.

Usage: hostile.py BUILD MODEL [ATTACK ...] [--seconds 6] [--json]
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ATTACKS = [("slow readers", "test_slow_readers", ()), ("slow senders", "test_slow_senders", ()), ("half close", "test_half_close", ()),
           ("idle connections", "test_idle_connections", ()), ("header bombs", "test_header_bombs", ()),
           ("256 MB of text", "test_large_bodies", ("string",)), ("256 MB of numbers", "test_large_bodies", ("ids",)),
           ("256 MB of objects", "test_large_bodies", ("objects",)), ("middling bodies", "test_middling_bodies", ()),
           ("gzip bombs", "test_bombs", ("gzip",)), ("zstd bombs", "test_bombs", ("zstd",)), ("flood", "test_flood", ()),
           ("pipelining", "test_pipelining", ()), ("grammars left alone", "test_leaving_while_a_grammar_is_made", ())]


def honest(port, out):
    """One stream after the other; a line `end-of-gap seconds gap` for each gap between two events that carry text."""
    import httpx
    body = {"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True, "stream": True, "temperature": 0}
    with open(out, "w", buffering=1) as f, httpx.Client(timeout=600, trust_env=False) as c:
        while True:
            with c.stream("POST", f"http://127.0.0.1:{port}/v1/completions", json=body) as r:
                last = None
                for line in r.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now = time.monotonic()
                    if last is not None:
                        f.write(f"{now} {now - last}\n")
                    last = now
            if r.status_code == 429:
                time.sleep(0.05)


def p99(out, begin, end):
    gaps = sorted(g for t, g in (map(float, line.split()) for line in Path(out).read_text().splitlines() if line.count(".") == 2)
                  if begin <= t <= end)
    return (gaps[len(gaps) - 1 - len(gaps) // 100], len(gaps)) if gaps else (float("nan"), 0)


class Waiter:
    """Stands where the tests have their own honest client: it only lets time pass."""

    def one_more(self, n=1):
        time.sleep(n)


def measure(server, tests, name, function, args, out, seconds):
    time.sleep(1)
    begin = time.monotonic()
    time.sleep(seconds)
    middle = time.monotonic()
    while True:  # at least as long as the quiet part: gaps are then comparable in number
        getattr(tests, function)(server, *args)
        end = time.monotonic()
        if end - middle >= seconds:
            break
    (alone, n), (beside, m) = p99(out, begin, middle), p99(out, middle, end)
    return {"attack": name, "p99_alone_ms": round(alone * 1e3, 2), "p99_beside_ms": round(beside * 1e3, 2), "ratio": round(beside / alone, 2),
            "gaps": [n, m], "seconds": round(end - middle, 1)}


def main():
    if sys.argv[1:2] == ["--honest"]:
        return honest(sys.argv[2], sys.argv[3])
    ap = argparse.ArgumentParser()
    ap.add_argument("build")
    ap.add_argument("model")
    ap.add_argument("attacks", nargs="*")
    ap.add_argument("--seconds", type=float, default=6)
    ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    os.environ.update(MLX_BUN=str(Path(a.build).resolve() / "mlx-bun"), MLX_BUN_TORTURE="1")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # both sides hold thousands of connections
    sys.path.insert(0, str(ROOT / "tests/http"))
    import http_rig
    import test_hostile as tests
    with tempfile.TemporaryDirectory() as tmp, http_rig.Server("--client-timeout", 20, model=a.model) as server:
        out = Path(tmp) / "gaps"
        client = subprocess.Popen([sys.executable, __file__, "--honest", str(server.port), str(out)])
        server.honest = Waiter()
        try:
            time.sleep(3)
            for name, function, args in ATTACKS:
                if a.attacks and name not in a.attacks:
                    continue
                row = measure(server, tests, name, function, args, out, a.seconds)
                print(json.dumps(row) if a.json else f"{row['attack']:22} alone {row['p99_alone_ms']:8.2f} ms   beside "
                      f"{row['p99_beside_ms']:8.2f} ms   ratio {row['ratio']:5.2f}   ({row['seconds']} s, {row['gaps'][1]} gaps)", flush=True)
        finally:
            client.kill()
            client.wait()


main()
