"""bench.py: this program against llama.cpp on the same machine, in alternation: `make bench`, `make bench QUICK=1`.

Writes bench/results/<date>-<cpu>.json and latest.json: machine, levels, date, limits, peer, and rows [{name, unit, ours, peer,
ratio, bar, pass}] for the lines of the project's speed goals; beside each row the two-thread barrier time and the read bandwidth of that
minute, since placement of threads and neighbours change every figure. Figures are medians of ROUNDS alternating runs; the peer runs the
better of its formats of the same bits (Q4_0, Q4_1). Bars are for machines with VNNI: elsewhere bar is null and pass true. A row
that misses its bar is `pass: false`; the program exits non-zero only when it could not measure, and removes latest.json first.

Usage: bench.py BUILD MODEL_DIR FILE.gguf PEER_PYTHON. Environment: QUICK, ROUNDS; BENCH_THREADS (1,2: numbers of threads, the last
of which the rows with one number run on), BENCH_BATCHES (2,4,8), BENCH_ONLY (short,prefill,...: these goals alone; latest.json
then stays away), BENCH_NAME (of the results' file, behind the date), BENCH_NOTE (what else is to be known of them); BENCH_GEMMA_DIR and
BENCH_GEMMA_GGUF (a Gemma-3-270M and its GGUF file, measured when both are given).
"""
import concurrent.futures
import datetime
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "results"
QUICK = os.environ.get("QUICK", "") not in ("", "0")
ROUNDS = int(os.environ.get("ROUNDS") or (3 if QUICK else 5))


def run(*args, timeout=1800):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        raise SystemExit(f"bench: {args[0]} failed: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def machine():
    text = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"flags\s*:\s*(.*)", text).group(1).split())
    levels = ["portable"] + [n for n, f in (("avx2", "avx2"), ("avx-vnni", "avx_vnni"), ("avx512", "avx512_vnni"), ("amx", "amx_int8")) if f in flags]
    name = re.search(r"model name\s*:\s*(.*)", text)
    memory = int(re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text()).group(1)) * 1024
    return {"machine": name.group(1).strip() if name else "unknown", "levels": levels,
            "limits": {"cores": len(os.sched_getaffinity(0)), "memory_bytes": memory, "load": os.getloadavg()[0]}}


class Bench:
    def __init__(self, build, model_dir, gguf, peer, tmp):
        self.build, self.model_dir, self.peer_python, self.tmp = Path(build), model_dir, peer, Path(tmp)
        self.gguf = gguf
        self.about = machine()
        self.cores = self.about["limits"]["cores"]
        wanted = os.environ.get("BENCH_THREADS") or "1,2"
        self.threads = [n for n in map(int, wanted.split(",")) if n <= self.cores]
        self.bars = {"avx512", "avx-vnni"} & set(self.about["levels"])
        self.rows = []
        self.minute = {}

    # --- rows ---

    def look(self):
        """The machine of this minute."""
        self.minute = {f"read_gb_s_{n}": run(self.build / "bench_text", "machine", n)["read_gb_s"] for n in self.threads}
        self.minute["barrier_us"] = run(self.build / "bench_text", "machine", self.threads[-1])["barrier_us"]

    def row(self, name, unit, ours, peer=None, ratio=None, bar=None, lower=False, bar_of_ours=False, anywhere=False, **more):
        """bar: of the ratio, or of ours where there is none or bar_of_ours (lower: it may not be above the bar); anywhere: on every machine."""
        bar = bar if self.bars or anywhere else None
        measured = ours if ratio is None or bar_of_ours else ratio
        ok = bar is None or (measured <= bar if lower else measured >= bar)
        row = {"name": name, "unit": unit, "ours": round(ours, 2), "peer": None if peer is None else round(peer, 2),
               "ratio": None if ratio is None else round(ratio, 3), "bar": bar, "pass": ok, **more, "minute": self.minute}
        self.rows.append(row)
        text = f"{name:44} ours {row['ours']:9.2f} {unit:10}"
        text += "" if peer is None else f" peer {row['peer']:9.2f}"
        text += "" if ratio is None else f"  ratio {row['ratio']:.2f}"
        print(text + ("" if bar is None else f"  bar {bar} {'ok' if ok else 'MISSED'}"), flush=True)

    # --- runs ---

    def ours(self, tier, threads, n_prompt, n_decode, model=None):
        return run(self.build / "bench_cpu", model or self.model_dir, tier, threads, n_prompt, n_decode)

    def peer(self, gguf, threads, n_prompt, n_decode, batch=1, flash="best"):
        return run(self.peer_python, HERE / "peer_llama.py", gguf, threads, n_prompt, n_decode, batch, flash)

    def best_format(self):
        """The faster of llama.cpp's formats of these bits, by decode on one thread."""
        q4_0 = self.tmp / "q4_0.gguf"
        subprocess.run([self.peer_python, HERE / "peer_llama.py", "--requantise", "q4_0", self.gguf, q4_0], check=True)
        speed = {f: self.peer(f, 1, 64, 48)["decode_tok_s"] for f in (q4_0, self.gguf)}
        best = max(speed, key=speed.get)
        self.format = "Q4_0" if best == q4_0 else "Q4_1"
        return best

    def pairs(self, gguf, threads, n_prompt, n_decode, rounds, tiers=("l1", "l2"), model=None, flash="best"):
        """Alternating runs: {tier: [ours]}, [peer]."""
        ours, peer = {t: [] for t in tiers}, []
        self.look()
        for _ in range(rounds):
            for tier in tiers:
                ours[tier].append(self.ours(tier, threads, n_prompt, n_decode, model))
            peer.append(self.peer(gguf, threads, n_prompt, n_decode, 1, flash))
        return ours, peer

    def compare(self, name, key, ours, peer, bars, threads, **more):
        for tier, runs in ours.items():
            a, b = statistics.median(r[key] for r in runs), statistics.median(p[key] for p in peer)
            ratio = statistics.median(r[key] / p[key] for r, p in zip(runs, peer))
            extra = {"barriers_per_token": runs[-1]["barriers_per_token"],
                     "barrier_us_per_token": statistics.median(r["barrier_us_per_token"] for r in runs)} if key == "decode_tok_s" else {}
            self.row(f"{name}, {tier}, {threads} thread{'s' if threads > 1 else ''}", "tokens/s", a, b, ratio, bars.get(tier), **extra, **more)

    # --- the goals, in their order ---

    def short(self, gguf, label="", model=None):
        for n in self.threads:
            ours, peer = self.pairs(gguf, n, 512, 64, ROUNDS, model=model)
            bars = {"l1": 1.6, "l2": 1.7} if n == 1 else {"l1": 1.8, "l2": 1.8}
            self.compare("decode" + label, "decode_tok_s", ours, peer, bars, n)
            self.compare("prefill 512" + label, "prefill_tok_s", ours, peer, {"l1": 1.5, "l2": 2.3}, n)

    def prefill(self, gguf):
        n = self.threads[-1]
        ours, peer = self.pairs(gguf, n, 64, 8, ROUNDS)
        self.compare("prefill 64", "prefill_tok_s", ours, peer, {}, n)
        ours, peer = self.pairs(gguf, n, 4096, 32, 1 if QUICK else ROUNDS, flash="1")
        self.compare("prefill 4,096", "prefill_tok_s", ours, peer, {"l1": 2.0, "l2": 2.4}, n)

    def depth(self, gguf):
        n = self.threads[-1]
        for depth, bar, label in ((2048, 2.5, "2k"), (8000, 3.0, "8k")):
            ours, peer = self.pairs(gguf, n, depth, 64, 1 if QUICK else max(3, ROUNDS // 2), flash="1")
            self.compare(f"decode at {label}", "decode_tok_s", ours, peer, {"l1": bar, "l2": bar}, n)

    def batched(self, gguf):
        n = self.threads[-1]
        single, bars = {}, {"l1": 3.5}
        for batch in map(int, os.environ.get("BENCH_BATCHES", "8" if QUICK else "2,4,8").split(",")):
            self.look()
            for tier in ("l1", "l2"):
                got, alone = self.batch_row(f"batch {batch}, {tier}, {n} threads", self.model_dir, gguf, tier, n, batch, 64, ROUNDS,
                                            bars.get(tier) if batch == 8 else None)
                single.setdefault(tier, []).extend(alone)
                if batch == 8 and tier == "l2":
                    eight = got
        one = statistics.median(single["l2"])
        self.row(f"batch 8 against our batch 1, l2, {n} threads", "tokens/s", eight, one, eight / one, 4.0)

    def batch_row(self, name, model, gguf, tier, threads, batch, n_tokens, rounds, bar):
        """Requests decoded together, each behind as many tokens of its own; returns our rate and those of one alone."""
        ours, peer, single = [], [], []
        for _ in range(rounds):
            got = run(self.build / "mlx-bun", "benchmark", model, "--json", "--tier", tier, "--threads", threads, "--batch", batch,
                      "--prompt-tokens", n_tokens, "--tokens", n_tokens, "--repeat", 1)["rows"]
            single.append(got[0]["decode_tok_s"])
            ours.append(got[1]["decode_tok_s"])
            peer.append(self.peer(gguf, threads, n_tokens, n_tokens, batch)["decode_tok_s"])
        self.row(name, "tokens/s", statistics.median(ours), statistics.median(peer), statistics.median(x / y for x, y in zip(ours, peer)), bar)
        return statistics.median(ours), single

    def mixtures(self):
        """About 1B weights a token, of Qwen3's and Qwen3.5's layers."""
        n = self.threads[-1]
        for shape, label in (("qwen3-moe", "Qwen3-MoE-shaped"), ("qwen3.5-moe", "Qwen3.5-shaped")):
            folder, gguf = self.tmp / shape, self.tmp / f"{shape}.gguf"
            run_plain(sys.executable, HERE / "synth.py", shape, folder, gguf)
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(Path(self.model_dir) / name, folder)
            ours, peer = self.pairs(gguf, n, 512, 32, max(1, ROUNDS // 2), model=folder)
            self.compare(f"decode, {label}", "decode_tok_s", ours, peer, {"l1": 1.2, "l2": 1.2}, n)
            self.compare(f"prefill 512, {label}", "prefill_tok_s", ours, peer, {"l1": 1.2, "l2": 1.2}, n)
            for tier in ("l1", "l2"):
                self.batch_row(f"batch 8, {label}, {tier}, {n} threads", folder, gguf, tier, n, 8, 32, max(1, ROUNDS // 2), 1.2)
            gguf.unlink()
            (folder / "model.safetensors").unlink()

    def large(self):
        for size in ("1b", "8b"):
            folder, gguf = self.tmp / size, self.tmp / f"{size}.gguf"
            run_plain(sys.executable, HERE / "synth.py", size, folder, gguf)
            n_bytes = (folder / "model.safetensors").stat().st_size
            for n in self.threads:
                ours, peer = self.pairs(gguf, n, 32, 16, max(1, ROUNDS // 2), model=folder)
                self.compare(f"decode, {size.upper()}-shaped layers", "decode_tok_s", ours, peer, {"l1": 1.6, "l2": 1.7} if n == 1 else {"l1": 1.8, "l2": 1.8}, n)
                for tier, runs in ours.items():
                    rate = statistics.median(r["decode_tok_s"] for r in runs) * n_bytes / 1e9
                    read = self.minute[f"read_gb_s_{n}"]
                    self.row(f"share of read bandwidth, {size.upper()}-shaped, {tier}, {n} threads", "GB/s", rate, read, rate / read, 0.75)
            gguf.unlink()
            (folder / "model.safetensors").unlink()

    def gemma(self):
        model, gguf = os.environ.get("BENCH_GEMMA_DIR"), os.environ.get("BENCH_GEMMA_GGUF")
        if not model or not gguf:
            return
        self.short(gguf, ", Gemma-3-270M", model)
        n = self.threads[-1]
        ours, peer = self.pairs(gguf, n, 32000, 32, 1, tiers=("l1",), model=model, flash="1")
        self.compare("decode at 32k, Gemma-3-270M", "decode_tok_s", ours, peer, {"l1": 3.5}, n)
        self.tokenizer(model, gguf, "Gemma", 10)

    def start(self):
        times = []
        self.look()
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            server = subprocess.Popen([self.build / "mlx-bun", "serve", self.model_dir, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for line in server.stdout:
                if "is ready" in line:
                    times.append(time.perf_counter() - begin)
                    break
            server.send_signal(signal.SIGINT)
            server.wait(30)
        if not times:
            raise SystemExit("bench: serve did not become ready")
        self.row("start to ready, 135M", "s", statistics.median(times), bar=0.3, lower=True)

    def tokenizer(self, model, gguf, label, bar):
        text, code = self.tmp / "text.txt", self.tmp / "code.txt"
        text.write_bytes(corpus(("docs/**/*.md", "*.md"), ("/usr/share/common-licenses/*", "/usr/share/doc/*/copyright")))
        code.write_bytes(corpus(("src/**/*.[ch]", "tests/**/*.[ch]", "tests/**/*.py"), ()))
        self.look()
        got = run(self.build / "bench_text", "tokenizer", model, self.tmp / "cache", text, code)
        peer = run(self.peer_python, HERE / "peer_llama.py", "--tokenizer", gguf, text, code)["mb_s"]
        for i, what in enumerate(("text", "code")):
            self.row(f"tokenizer, {label}, {what}", "MB/s", got["mb_s"][i], peer[i], got["mb_s"][i] / peer[i], bar, bar_of_ours=True)
        self.row(f"tokenizer load from its cache, {label}", "ms", got["load_ms"], bar=10, lower=True, parse_ms=got["parse_ms"])

    def server_path(self):
        self.look()
        got = run(self.build / "bench_text", "server", self.model_dir)
        us = got.pop("cpu_us_per_token")
        self.row("server path, CPU a streamed token", "us", us, bar=20, lower=True, **got)

    def serve(self, model, *flags, **env):
        """A server and the address of its API."""
        server = subprocess.Popen([self.build / "mlx-bun", "serve", model, "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, env={**os.environ, **env})
        return server, next(line.split()[1] for line in server.stdout if line.strip().startswith("url"))

    def grammar(self):
        """Eight requests at once to a 1B-shaped model, with an answer held to a schema and without."""
        folder = self.tmp / "1b-text"
        run_plain(sys.executable, HERE / "synth.py", "1b-text", folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(Path(self.model_dir) / name, folder)
        item = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
                "required": ["name", "n"], "additionalProperties": False}
        held = {"response_format": {"type": "json_schema", "json_schema": {
            "name": "list", "strict": True, "schema": {"type": "array", "items": item, "minItems": 1000}}}}
        server, url = self.serve(folder, "--batch", 8)
        try:
            self.look()
            rates = {"on": [], "off": []}
            for i in range(ROUNDS + 1):
                for how, more in (("off", {"ignore_eos": True}), ("on", held)):
                    rate = together(url, 8, {"messages": [{"role": "user", "content": "A list."}], "max_tokens": 64, "seed": i, **more})
                    if i > 0:  # the first of each warms caches
                        rates[how].append(rate)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
        on, off = statistics.median(rates["on"]), statistics.median(rates["off"])
        ratio = statistics.median(a / b for a, b in zip(rates["on"], rates["off"]))
        self.row("batch 8 with a JSON schema against without, 1B-shaped", "tokens/s", on, off, ratio, 0.97)
        (folder / "model.safetensors").unlink()

    def jump(self):
        """One request at a time with a schema of long fixed parts, jump-forward on and off: the same answers."""
        schema = {"type": "object", "additionalProperties": False, "properties": {
            "customer_full_name": {"type": "string", "maxLength": 20}, "payment_confirmed": {"type": "boolean"},
            "preferred_contact_method": {"enum": ["email address", "telephone call", "postal letter"]},
            "terms": {"const": "The buyer accepts the general terms and conditions of sale and delivery."},
            "order_total_in_cents": {"type": "integer", "minimum": 0, "maximum": 99999}}}
        schema["required"] = list(schema["properties"])
        body = {"messages": [{"role": "user", "content": "Write an order of Jane Doe as JSON: " + json.dumps(schema)}], "max_tokens": 300,
                "temperature": 0, "response_format": {"type": "json_schema", "json_schema": {"name": "order", "strict": True, "schema": schema}}}
        servers = [self.serve(self.model_dir), self.serve(self.model_dir, MLX_BUN_GRAMMAR_JUMP="1")]
        try:
            self.look()
            off, on = [], []
            for i in range(ROUNDS + 1):
                for (_, url), rates in zip(servers, (off, on)):
                    rate = together(url, 1, {**body, "seed": i})
                    if i > 0:  # the first of each warms caches
                        rates.append(rate)
        finally:
            for server, _ in servers:
                server.send_signal(signal.SIGINT)
                server.wait(30)
        ratio = statistics.median(a / b for a, b in zip(on, off))
        self.row("a schema with long fixed parts, jump-forward on against off", "tokens/s", statistics.median(on), statistics.median(off),
                 ratio, 1.1)

    def memory(self):
        server, url = self.serve(self.model_dir)
        try:
            body = json.dumps({"prompt": "Once upon a time", "max_tokens": 64})
            run("curl", "-s", url + "/completions", "-H", "content-type: application/json", "-d", body)
            stats = run("curl", "-s", url.replace("/v1", "") + "/stats")
            rollup = Path(f"/proc/{server.pid}/smaps_rollup").read_text()
            private = sum(int(v) for v in re.findall(r"Private_(?:Clean|Dirty):\s+(\d+) kB", rollup)) / 1024
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
        weights = (Path(self.model_dir) / "model.safetensors").stat().st_size / 2**20
        kv = find(stats, "pages_held_bytes", "kv_bytes", "held_bytes") / 2**20
        allowed = 1.1 * weights + 64 + kv
        self.row("private memory against 1.1 x weights + 64 MiB + KV", "MiB", private, allowed, private / allowed, 1.0, lower=True)

    def order(self):
        """What the fixed order costs in each matmul (at most 5 %), and the share of the integer peak where many rows are at work."""
        self.look()
        for r in run(self.build / "bench_order", 0.3)["rows"]:
            label = f"{r['level']} {r['name']}"
            self.row(f"cost of the order, {label}", "us", r["us"], r["free_us"], r["us"] / r["free_us"], 1.05, lower=True)
            kind = re.search(r"g(\d+) (l1|l2|f32) .* m (\d+)$", r["name"])
            if kind and int(kind[3]) >= 128 and kind[2] != "f32":
                group, tier = int(kind[1]), kind[2]
                bar = {("l2", 32): 0.64, ("l2", 64): 0.75, ("l1", 32): 0.38, ("l1", 64): 0.42}.get((tier, group))
                self.row(f"share of the integer peak, {label}", "share", r["share"], bar=bar)

    def download(self):
        """Hashed and checked beside curl, which only writes; the bar where the processor has SHA instructions and a second core."""
        r = run(sys.executable, HERE / "get.py", self.build, "--rounds", ROUNDS, "--json")
        bar = 0.9 if r["sha_instructions"] and r["cores"] > 1 else None
        self.row(f"get of {r['mb']} MB against curl", "MB/s", r["mb"] / r["wall_s"]["mlx-bun"], r["mb"] / r["wall_s"]["curl"], r["ratio"], bar,
                 anywhere=True, processor_s=r["processor_s"])

    def fit(self):
        """What fit says beside what is taken and reached."""
        for m in run(sys.executable, HERE / "fit.py", self.build, self.model_dir, "--json"):
            for s in m["sizes"]:
                self.row(f"fit: memory of {s['context']} tokens against taken", "MB", s["expected_bytes"] / 1e6, s["bytes"] / 1e6, s["ratio"])
            self.row("fit: largest error of bytes", "of 1", max(abs(s["ratio"] - 1) for s in m["sizes"]), bar=0.1, lower=True, anywhere=True)
            self.row("fit: tokens a second against reached", "tokens/s", m["predicted_tok_s"], m["tok_s"], m["tok_s_ratio"])
            self.row("fit: error of tokens a second", "of 1", abs(m["tok_s_ratio"] - 1), bar=0.25, lower=True, anywhere=True)

    def crowded(self, gguf):
        n = self.threads[-1]
        quiet = self.ours("l1", n, 64, 64)["decode_tok_s"]
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            ours, peer = self.pairs(gguf, n, 64, 64, max(3, ROUNDS // 2), tiers=("l1",))
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        busy = statistics.median(r["decode_tok_s"] for r in ours["l1"])
        self.row("decode beside two busy loops against quiet, l1", "tokens/s", busy, quiet, busy / quiet, 0.4)
        self.compare("decode beside two busy loops", "decode_tok_s", ours, peer, {"l1": 1.0}, n)


def run_plain(*args):
    if subprocess.run([str(a) for a in args]).returncode != 0:
        raise SystemExit(f"bench: {args[1]} failed")


def together(url, n, body):
    """Tokens a second of n equal requests at once, but for their seeds."""
    def one(i):
        request = urllib.request.Request(url + "/chat/completions", json.dumps({**body, "seed": body["seed"] * n + i}).encode())
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)["usage"]["completion_tokens"]

    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        n_tokens = sum(pool.map(one, range(n)))
    return n_tokens / (time.perf_counter() - begin)


def corpus(inside, outside):
    names = [p for pattern in inside for p in sorted(ROOT.glob(pattern))]
    names += [p for pattern in outside for p in sorted(Path("/").glob(pattern.lstrip("/")))]
    data = b"".join(p.read_bytes() for p in names if p.is_file())[:8 << 20]
    return data.decode("utf-8", "replace").encode()


def find(tree, *keys):
    """The first of these keys anywhere in a tree; 0 when there is none."""
    if isinstance(tree, dict):
        for key in keys:
            if isinstance(tree.get(key), (int, float)):
                return tree[key]
        return next((v for v in (find(t, *keys) for t in tree.values()) if v), 0)
    return 0


def write(bench, latest):
    date = datetime.date.today().isoformat()
    result = {**bench.about, "date": date, "peer": f"llama-cpp-python 0.3.36, {bench.format}", "rounds": ROUNDS, "quick": QUICK}
    if os.environ.get("BENCH_NOTE"):
        result["note"] = os.environ["BENCH_NOTE"]
    text = json.dumps({**result, "rows": bench.rows}, indent=1) + "\n"
    short = os.environ.get("BENCH_NAME") or re.sub(r"[^a-z0-9]+", "-", bench.about["machine"].lower()).strip("-")[:40]
    (RESULTS / f"{date}-{short}.json").write_text(text)
    if latest:
        (RESULTS / "latest.json").write_text(text)


def tell(bench):
    missed = [r["name"] for r in bench.rows if not r["pass"]]
    print(f"{len(bench.rows)} rows, {len(missed)} below their bar" + "".join("\n  " + m for m in missed))


def main():
    build, model_dir, gguf, peer = sys.argv[1:5]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as tmp:
        bench = Bench(build, model_dir, gguf, peer, tmp)
        best = bench.best_format()
        goals = {
            "short": lambda: bench.short(best), "prefill": lambda: bench.prefill(best), "depth": lambda: bench.depth(best),
            "batched": lambda: bench.batched(best), "large": bench.large, "mixtures": bench.mixtures, "gemma": bench.gemma,
            "start": bench.start, "tokenizer": lambda: bench.tokenizer(model_dir, gguf, "SmolLM2", 40), "server_path": bench.server_path,
            "grammar": bench.grammar, "jump": bench.jump, "memory": bench.memory, "order": bench.order, "download": bench.download, "fit": bench.fit,
            "crowded": lambda: bench.crowded(best)}
        only = os.environ.get("BENCH_ONLY")
        names = only.split(",") if only else list(goals)[:4] if QUICK else list(goals)
        for name in names:
            goals[name]()
            write(bench, latest=False)  # what is measured stays when the rest is cut off
        write(bench, latest=not only)
        tell(bench)


main()
