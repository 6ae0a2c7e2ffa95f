"""bench.py: this program against llama.cpp on the same machine, in alternation: `make bench`, `make bench QUICK=1`.

Writes bench/results/<date>-<cpu>.json and latest.json: machine, levels, date, limits, peer, and rows [{name, unit, ours, peer,
ratio, bar, pass}] for the lines of the project's speed goals (bench_goals.py); beside each row the barrier time of two threads, the read
bandwidth and the integer peak of that minute, since placement of threads and neighbours change every figure, and with decode and prefill
the share of them. Figures are medians of ROUNDS alternating runs; the peer runs the better of its formats of the same bits (Q4_0, Q4_1).
Bars are for machines with VNNI: elsewhere bar is null and pass true. A row that misses its bar is `pass: false`; the program exits
non-zero only when it could not measure, and removes latest.json first. A goal that could not be measured does not end the others.

Usage: bench.py BUILD MODEL_DIR FILE.gguf PEER_PYTHON. Environment: QUICK (the first goals), ROUNDS; BENCH_RESUME (keep the rows of the
goals that today's file has whole, of the same commit and rounds, and measure the rest; any: of other commits too, goal_commits tells) and
BENCH_AGAIN (but for these goals); BENCH_THREADS (1,2: numbers of threads, the last
of which the rows with one number run on), BENCH_BATCHES (2,4,8), BENCH_ONLY (short,prefill,...: these goals alone; latest.json then stays away),
BENCH_SHRINK (N: prompts and answers a Nth as long, to try the program; latest.json stays away too), BENCH_NAME (of the results' file, behind the date),
BENCH_NOTE (what else is to be known of them); BENCH_GEMMA_DIR and BENCH_GEMMA_GGUF (a Gemma-3-270M and its GGUF file, measured when
both are given).
"""
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from bench_goals import QUICK, ROUNDS, SHRINK, Goals
from bench_tools import HERE, NotMeasured, commit

RESULTS = HERE / "results"
FIRST = ["short", "prefill", "depth", "batched"]
ALL = FIRST + ["depth_32k", "large", "start", "tokenizer", "server_path", "grammar_mask", "memory", "order", "gemma", "mixtures",
               "grammar", "jump", "download", "fit", "crowded"]


class Results:
    def __init__(self, goals):
        self.goals, self.failed, self.seconds, self.commits = goals, {}, {}, {}
        self.date = datetime.date.today().isoformat()
        cpu = re.sub(r"[^a-z0-9]+", "-", goals.about["machine"].lower()).strip("-")[:40]
        self.path = RESULTS / f"{self.date}-{os.environ.get('BENCH_NAME') or cpu}.json"
        self.commit = commit()

    def resume(self):
        """Goals that an earlier run has whole: their rows are kept."""
        try:
            old = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return
        same = {"rounds": ROUNDS, "quick": QUICK, "shrink": SHRINK, "machine": self.goals.about["machine"]}
        if os.environ["BENCH_RESUME"] != "any":
            same["commit"] = self.commit
        if any(old.get(key) != value for key, value in same.items()):
            print(f"{self.path.name} is of another commit, machine or number of rounds: all is measured again")
            return
        drop = (os.environ.get("BENCH_AGAIN") or "").split(",")
        self.seconds = {name: s for name, s in old.get("goal_seconds", {}).items() if name not in drop}
        self.commits = {name: old.get("goal_commits", {}).get(name, old["commit"]) for name in self.seconds}
        self.goals.rows = [r for r in old["rows"] if r.get("goal") in self.seconds]
        self.goals.skipped = [s for s in old.get("skipped", []) if s["goal"] in self.seconds]

    def write(self, latest):
        g = self.goals
        result = {**g.about, "date": self.date, "commit": self.commit, "peer": f"llama-cpp-python 0.3.36, {g.format() or 'Q4_0 or Q4_1'}",
                  "rounds": ROUNDS, "quick": QUICK, "shrink": SHRINK, "goal_seconds": self.seconds, "goal_commits": self.commits,
                  "skipped": g.skipped, "failed": self.failed}
        if os.environ.get("BENCH_NOTE"):
            result["note"] = os.environ["BENCH_NOTE"]
        text = json.dumps({**result, "rows": g.rows}, indent=1) + "\n"
        self.path.write_text(text)
        if latest:
            (RESULTS / "latest.json").write_text(text)

    def measure(self, name):
        begin, n_rows = time.perf_counter(), len(self.goals.rows)
        self.goals.goal = name
        try:
            getattr(self.goals, name)()
            self.seconds[name] = round(time.perf_counter() - begin)
            self.commits[name] = self.commit
        except (NotMeasured, OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as e:
            del self.goals.rows[n_rows:]
            self.failed[name] = f"{type(e).__name__}: {e}"
            print(f"{name}: COULD NOT BE MEASURED: {self.failed[name]}", flush=True)
        self.write(latest=False)  # what is measured stays when the rest is cut off

    def tell(self):
        rows, missed = self.goals.rows, [r["name"] for r in self.goals.rows if not r["pass"]]
        took = ", ".join(f"{name} {s} s" for name, s in self.seconds.items())
        print(f"{len(rows)} rows, {len(missed)} below their bar" + "".join("\n  " + m for m in missed) + f"\n{took}")


def main():
    build, model_dir, gguf, peer = sys.argv[1:5]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").unlink(missing_ok=True)
    only = os.environ.get("BENCH_ONLY")
    names = only.split(",") if only else FIRST if QUICK else ALL
    unknown = [n for n in names if n not in ALL]
    if unknown:
        raise SystemExit(f"bench: BENCH_ONLY: there is no {unknown[0]}; there are {', '.join(ALL)}")
    with tempfile.TemporaryDirectory() as tmp:
        results = Results(Goals(build, model_dir, gguf, peer, tmp))
        if os.environ.get("BENCH_RESUME"):
            results.resume()
        for name in names:
            if name not in results.seconds:
                results.measure(name)
        results.write(latest=not only and SHRINK == 1 and not results.failed)
        results.tell()
    if results.failed:
        raise SystemExit("bench: could not measure " + ", ".join(results.failed))


main()
