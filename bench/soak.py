"""soak.py: a server under steady load: streams that never end, its memory, and how long tokens make people wait.

    bench/soak.py MODEL [--mlx-bun build/mlx-bun] [--device cuda] [--streams 64] [--seconds 300] [--out FILE] [--serve-flags "..."]

Every stream asks for a completion of random length behind a random prompt and, when it has ended, for the next one. Fails (exit
status 1, FILE is written all the same) when a request fails, when the server ends, or when its private memory after the run is more than 64 MB above that
after a minute. Writes FILE: first token and gaps between tokens (50, 99 of 100, most; each minute by itself), tokens a second,
private memory every ten seconds, with date and commit. Needs numpy.
"""
import argparse
import array
import datetime
import http.client
import json
import multiprocessing
import queue as queues
import random
import re
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
WORDS = "wind harbour light seven keeper rope tide letter stone north grey paper lamp engine salt bell".split()
WORKERS = 8
LIMIT_MB = 64
GRACE = 90  # seconds that the last request of a stream may take beyond the end


class Tally:
    """What one stream saw: (when, seconds) of first tokens and of gaps, tokens, errors."""

    def __init__(self):
        self.first, self.gaps, self.when_first, self.when_gap = (array.array("d") for _ in range(4))
        self.requests = self.tokens = 0
        self.errors = []


def one_request(connection, rng, tally, start):
    body = {"prompt": " ".join(rng.choices(WORDS, k=rng.randint(10, 400))), "max_tokens": rng.randint(16, 400), "stream": True,
            "temperature": rng.choice([0, 0.7, 1.0]), "seed": rng.randint(0, 1 << 30), "stream_options": {"include_usage": True}}
    t0 = last = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = connection.getresponse()
    if r.status != 200:
        raise RuntimeError(f"HTTP {r.status}: {r.read()[:200]!r}")
    n, done, usage = 0, False, None
    while line := r.readline():
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic()
        if line.startswith(b"data: [DONE]"):
            done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(json.dumps(event["error"])[:200])
        usage = event.get("usage") or usage
        if not any(c.get("text") for c in event.get("choices", ())):
            continue
        (tally.first if n == 0 else tally.gaps).append(now - (t0 if n == 0 else last))
        (tally.when_first if n == 0 else tally.when_gap).append(now - start)
        last = now
        n += 1
    if not done or not usage:
        raise RuntimeError(f"the stream broke off after {n} events")
    tally.requests += 1
    tally.tokens += usage["completion_tokens"]


def stream(port, seed, start, end, tally):
    rng = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    while time.monotonic() < end:
        try:
            one_request(connection, rng, tally, start)
        except Exception as e:  # whatever it is, it is what the run looks for
            tally.errors.append(f"{time.monotonic() - start:.1f} s: {type(e).__name__}: {e}")
            connection.close()
            if len(tally.errors) > 20:
                return


def worker(port, seeds, start, end, queue):
    tallies = [Tally() for _ in seeds]
    threads = [threading.Thread(target=stream, args=(port, s, start, end, t), daemon=True) for s, t in zip(seeds, tallies)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(max(0.0, end + GRACE - time.monotonic()))
    for s, t, tally in zip(seeds, threads, tallies):
        if t.is_alive():
            tally.errors.append(f"stream {s} has not ended")
    queue.put(tallies)


def private_mb(pid):
    """None: there is no such process any more, or it waits for its parent."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    if "Private_Clean" not in text:
        return None
    return round(sum(int(n) for n in re.findall(r"^Private_(?:Clean|Dirty|Hugetlb): +(\d+)", text, re.M)) / 1024, 1)


def get(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        c.request("GET", path)
        return c.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        c.close()


def wait_until_ready(server):
    for line in server.stdout:
        if m := re.search(r"url +http://\S+?:(\d+)/v1", line):
            break
    else:
        raise SystemExit(f"the server ended before it was ready: status {server.wait()}")
    while get(int(m[1]), "/v1/models") != 200 and server.poll() is None:
        time.sleep(0.05)
    return int(m[1])


def of(seconds, when=None):
    """Milliseconds: in all, and minute by minute."""
    ms = np.asarray(seconds) * 1e3
    if not len(ms):
        return None
    out = {"n": len(ms), "p50_ms": round(float(np.percentile(ms, 50)), 2), "p99_ms": round(float(np.percentile(ms, 99)), 2), "most_ms": round(float(ms.max()), 2)}
    if when is not None:
        minute = (np.asarray(when) // 60).astype(int)
        out["p99_ms_of_each_minute"] = [round(float(np.percentile(ms[minute == i], 99)), 2) for i in range(minute.max() + 1) if (minute == i).any()]
    return out


def load(port, pid, args):
    """Drive the streams; tallies, [seconds, private MB] and what went wrong."""
    start = time.monotonic()
    end = start + args.seconds
    queue = multiprocessing.Queue()
    n = min(WORKERS, args.streams)
    processes = [multiprocessing.Process(target=worker, args=(port, range(i, args.streams, n), start, end, queue), daemon=True) for i in range(n)]
    for p in processes:
        p.start()
    tallies, memory, wrong = [], [], []
    for at in range(10, args.seconds + 1, 10):
        time.sleep(max(0.0, start + at - time.monotonic()))
        mb = private_mb(pid)
        if mb is None:
            wrong.append(f"{at} s: the server has ended")
            break
        memory.append([at, mb])
    for _ in processes:
        try:
            tallies += queue.get(timeout=max(1.0, end + GRACE + 10 - time.monotonic()))
        except queues.Empty:
            wrong.append("a process of streams gave no result")
    for p in processes:
        p.join(5)
        if p.is_alive():
            p.kill()
            p.join()
    return tallies, memory, wrong


def stop(server):
    """Its exit status; killed when it does not end by itself."""
    server.send_signal(signal.SIGTERM)
    try:
        return server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("--mlx-bun", default=str(ROOT / "build/mlx-bun"))
    a.add_argument("--device", default="cuda")
    a.add_argument("--streams", type=int, default=64)
    a.add_argument("--seconds", type=int, default=300)
    a.add_argument("--commit", default="")
    a.add_argument("--note", default="")
    a.add_argument("--out", default=str(ROOT / "bench/results/cuda-soak-latest.json"))
    a.add_argument("--serve-flags", default="", help="more flags for serve")
    args = a.parse_args()
    commit = args.commit or subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = [args.mlx_bun, "serve", args.model, "--device", args.device, "--port", "0", "--batch", str(args.streams), *shlex.split(args.serve_flags)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        port = wait_until_ready(server)
        tallies, memory, wrong = load(port, server.pid, args)
        alive = get(port, "/health") == 200
    finally:
        status = stop(server)
    errors = wrong + [e for t in tallies for e in t.errors]
    after_minute = next((mb for at, mb in memory if at >= 60), memory[0][1] if memory else 0)
    growth = round(memory[-1][1] - after_minute, 1) if memory else 0.0
    tokens = sum(t.tokens for t in tallies)
    joined = {k: np.concatenate([np.empty(0), *(np.asarray(getattr(t, k)) for t in tallies)]) for k in ("first", "gaps", "when_first", "when_gap")}
    result = {"date": datetime.date.today().isoformat(), "commit": commit, "model": Path(args.model).name, "device": args.device,
              "streams": args.streams, "seconds": args.seconds, "requests": sum(t.requests for t in tallies), "tokens": tokens,
              "tok_s": round(tokens / args.seconds, 1), "errors": len(errors), "first_errors": errors[:5], "exit_status": status,
              "first_token": of(joined["first"], joined["when_first"]), "gap": of(joined["gaps"], joined["when_gap"]), "private_mb": memory,
              "private_mb_growth": growth, "pass": alive and not errors and growth <= LIMIT_MB and status == 0}
    if args.note:
        result["note"] = args.note
    Path(args.out).write_text(json.dumps(result) + "\n")
    print(json.dumps({k: v for k, v in result.items() if k != "private_mb"}))
    raise SystemExit(0 if result["pass"] else 1)


if __name__ == "__main__":
    main()
