"""bench_goals.py: the goals of design's table for CPUs, each a method that measures its rows. bench.py calls them."""
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bench_tools import HERE, ROOT, NotMeasured, Server, Session, Weights, machine, memory, run, text_of, together

median = statistics.median
QUICK = os.environ.get("QUICK", "") not in ("", "0")
ROUNDS = int(os.environ.get("ROUNDS") or (3 if QUICK else 5))
FEW = max(1, ROUNDS - 2) if QUICK else ROUNDS  # of what takes long
SHRINK = int(os.environ.get("BENCH_SHRINK") or 1)
DEPTHS = {"2k": 2048, "8k": 8000, "32k": 32000}


def short_of(n_tokens):
    return max(4, n_tokens // SHRINK)


class Goals:
    def __init__(self, build, model_dir, gguf, peer, tmp):
        self.build, self.model_dir, self.gguf, self.peer_python, self.tmp = Path(build), Path(model_dir), gguf, peer, Path(tmp)
        self.about = machine()
        self.cores = self.about["limits"]["cores"]
        self.threads = [n for n in map(int, (os.environ.get("BENCH_THREADS") or "1,2").split(",")) if n <= self.cores]
        self.bars = {"avx512", "avx-vnni"} & set(self.about["levels"])
        self.rows, self.skipped, self.minute, self.formats = [], [], {}, None
        self.goal = None
        self.gemma_dir, self.gemma_gguf = os.environ.get("BENCH_GEMMA_DIR"), os.environ.get("BENCH_GEMMA_GGUF")

    # --- rows ---

    def look(self):
        """The machine of this minute: read bandwidth, the barrier of two threads, the integer peak of one."""
        seen = {n: run(self.build / "bench_machine", n) for n in self.threads}
        self.minute = {f"read_gb_s_{n}": m["read_gb_s"] for n, m in seen.items()}
        if self.cores > 1:
            self.minute["barrier_us"] = (seen.get(2) or run(self.build / "bench_machine", 2))["barrier_us"]
        if {"avx2", "avx512", "amx"} & set(self.about["levels"]):
            self.minute["int_gops"] = run(self.build / "bench_order", "peak")["int_gops"]

    @staticmethod
    def on(threads):
        return f"{threads} thread{'s' if threads > 1 else ''}"

    def row(self, name, unit, ours, peer=None, ratio=None, bar=None, lower=False, bar_of_ours=False, anywhere=False, **more):
        """bar: of the ratio, or of ours where there is none or bar_of_ours (lower: it may not be above the bar); anywhere: on every machine."""
        bar = bar if self.bars or anywhere else None
        measured = ours if ratio is None or bar_of_ours else ratio
        ok = bar is None or (measured <= bar if lower else measured >= bar)
        self.rows.append({"name": name, "unit": unit, "ours": round(ours, 2), "peer": None if peer is None else round(peer, 2),
                          "ratio": None if ratio is None else round(ratio, 3), "bar": bar, "pass": ok, "goal": self.goal,
                          **{k: v for k, v in more.items() if v is not None}, "minute": self.minute})
        text = f"{name:52} ours {ours:9.2f} {unit:9}"
        text += "" if peer is None else f" peer {peer:9.2f}"
        text += "" if ratio is None else f"  ratio {ratio:.2f}"
        text += "" if bar is None else f"  bar {bar} {'ok' if ok else 'MISSED'}"
        shares = [f"{100 * more[key]:.0f} % of {what}" for key, what in (("of_bandwidth", "bandwidth"), ("of_integer_peak", "integer peak"))
                  if more.get(key) is not None]
        beside = [f"barrier {self.minute['barrier_us']:.1f} us"] if "barrier_us" in self.minute else []
        beside += [f"{v:.1f} GB/s on {k.rsplit('_', 1)[1]}" for k, v in self.minute.items() if k.startswith("read_gb_s")]
        print(text + "  [" + "; ".join(shares + beside) + "]", flush=True)

    def skip(self, what, why):
        self.skipped.append({"goal": self.goal, "what": what, "why": why})
        print(f"{what}: not measured here: {why}", flush=True)

    # --- runs ---

    def ours(self, tier, threads, n_prompt, n_decode, model=None):
        return run(self.build / "bench_cpu", model or self.model_dir, tier, threads, short_of(n_prompt), short_of(n_decode))

    def peer(self, gguf, threads, n_prompt, n_decode, batch=1, flash="best"):
        return run(self.peer_python, HERE / "peer_llama.py", gguf, threads, short_of(n_prompt), short_of(n_decode), batch, flash)

    def best(self):
        """The faster of llama.cpp's formats of these bits, by decode on one thread."""
        if self.formats is None:
            q4_0 = self.tmp / "q4_0.gguf"
            text_of(self.peer_python, HERE / "peer_llama.py", "--requantise", "q4_0", self.gguf, q4_0)
            speed = {f: self.peer(f, 1, 64, 48)["decode_tok_s"] for f in (q4_0, self.gguf)}
            self.formats = max(speed, key=speed.get)
        return self.formats

    def format(self):
        return None if self.formats is None else "Q4_1" if self.formats == self.gguf else "Q4_0"

    def synth(self, shape, gguf=True):
        """(folder, GGUF file) of a made-up model; the caller drops them."""
        folder, file = self.tmp / shape, self.tmp / f"{shape}.gguf"
        text_of(sys.executable, HERE / "synth.py", shape, folder, *([file] if gguf else []))
        return folder, file

    def drop(self, folder, file=None):
        shutil.rmtree(folder, ignore_errors=True)
        if file:
            file.unlink(missing_ok=True)

    def with_text(self, folder):
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (self.model_dir / name).exists():
                shutil.copy(self.model_dir / name, folder)

    def pairs(self, gguf, threads, n_prompt, n_decode, rounds, tiers=("l1", "l2"), model=None, flash="best"):
        """Alternating runs: {tier: [ours]}, [peer]."""
        ours, peer = {t: [] for t in tiers}, []
        self.look()
        for _ in range(rounds):
            for tier in tiers:
                ours[tier].append(self.ours(tier, threads, n_prompt, n_decode, model))
            peer.append(self.peer(gguf, threads, n_prompt, n_decode, 1, flash))
        return ours, peer

    def behind(self, gguf, threads, n_prompt, n_decode, rounds, tiers=("l1", "l2"), model=None):
        """As pairs, the prompt computed once on each side: only what is decoded behind it alternates. llama.cpp's flash attention is on or off,
        by what decodes faster behind 2,048 tokens."""
        speed = {f: self.peer(gguf, threads, min(n_prompt, 2048), 16, 1, f)["decode_tok_s"] for f in ("0", "1")}
        n_prompt, n_decode = short_of(n_prompt), short_of(n_decode)
        with ExitStack() as stack:
            ours = {t: stack.enter_context(Session(self.build / "bench_cpu", model or self.model_dir, t, threads, n_prompt, "session")) for t in tiers}
            peer = stack.enter_context(Session(self.peer_python, HERE / "peer_llama.py", gguf, threads, n_prompt, "session", 1, max(speed, key=speed.get)))
            self.look()
            got, theirs = {t: [] for t in tiers}, []
            for _ in range(rounds):
                for t in tiers:
                    got[t].append({**ours[t].first, **ours[t].decode(n_decode)})
                theirs.append({**peer.first, **peer.decode(n_decode)})
        return got, theirs

    def compare(self, name, key, ours, peer, bars, threads, weights=None, context=0):
        for tier, runs in ours.items():
            a, b = median(r[key] for r in runs), median(p[key] for p in peer)
            ratio = median(r[key] / p[key] for r, p in zip(runs, peer))
            more = {}
            if key == "decode_tok_s":
                more = {"barriers_per_token": runs[-1]["barriers_per_token"], "barrier_us_per_token": median(r["barrier_us_per_token"] for r in runs),
                        "of_bandwidth": self.of_bandwidth(weights, a, threads, context)}
            elif weights and weights.dense and "int_gops" in self.minute:
                more = {"of_integer_peak": round(2 * weights.n_linear * a / (self.minute["int_gops"] * 1e9 * threads), 3)}
            self.row(f"{name}, {tier}, {self.on(threads)}", "tokens/s", a, b, ratio, bars.get(tier), **more)

    def of_bandwidth(self, weights, steps_per_s, threads, context=0):
        n = weights.step_bytes(context) if weights else None
        return None if n is None else round(n * steps_per_s / 1e9 / self.minute[f"read_gb_s_{threads}"], 3)

    # --- the goals, in their order ---

    def short(self, gguf=None, label="", model=None):
        weights = Weights(model or self.model_dir)
        for n in self.threads:
            ours, peer = self.pairs(gguf or self.best(), n, 512, 64, ROUNDS, model=model)
            bars = {"l1": 1.6, "l2": 1.7} if n == 1 else {"l1": 1.8, "l2": 1.8}
            self.compare("decode" + label, "decode_tok_s", ours, peer, bars, n, weights, 512)
            self.compare("prefill 512" + label, "prefill_tok_s", ours, peer, {"l1": 1.5, "l2": 2.3}, n, weights)

    def prefill(self):
        n, weights = self.threads[-1], Weights(self.model_dir)
        if not QUICK:
            ours, peer = self.pairs(self.best(), n, 64, 8, ROUNDS)
            self.compare("prefill 64", "prefill_tok_s", ours, peer, {}, n, weights)
        ours, peer = self.pairs(self.best(), n, 4096, 8, 1 if QUICK else ROUNDS, flash="1")
        self.compare("prefill 4,096", "prefill_tok_s", ours, peer, {"l1": 2.0, "l2": 2.4}, n, weights)

    def depth(self):
        n, weights = self.threads[-1], Weights(self.model_dir)
        for label, bar in (("2k", 2.5), ("8k", 3.0)):
            ours, peer = self.behind(self.best(), n, DEPTHS[label], 32, ROUNDS)
            self.compare(f"decode at {label}", "decode_tok_s", ours, peer, {"l1": bar, "l2": bar}, n, weights, short_of(DEPTHS[label]))

    def depth_32k(self):
        folder, gguf = self.synth("gemma3-270m")
        ours, peer = self.behind(gguf, self.threads[-1], DEPTHS["32k"], 32, ROUNDS, model=folder)
        self.compare("decode at 32k, Gemma-3-270M-shaped", "decode_tok_s", ours, peer, {"l1": 3.5, "l2": 3.5}, self.threads[-1],
                     Weights(folder), short_of(DEPTHS["32k"]))
        self.drop(folder, gguf)

    def batched(self):
        n = self.threads[-1]
        single, bars = {}, {"l1": 3.5}
        for batch in map(int, os.environ.get("BENCH_BATCHES", "8" if QUICK else "2,4,8").split(",")):
            self.look()
            for tier in ("l1", "l2"):
                got, alone = self.batch_row(f"batch {batch}, {tier}, {self.on(n)}", self.model_dir, self.best(), tier, n, batch, 64, ROUNDS,
                                            bars.get(tier) if batch == 8 else None)
                single.setdefault(tier, []).extend(alone)
                if batch == 8 and tier == "l2":
                    one = median(single["l2"])
                    self.row(f"batch 8 against our batch 1, l2, {self.on(n)}", "tokens/s", got, one, got / one, 4.0)

    def batch_row(self, name, model, gguf, tier, threads, batch, n_tokens, rounds, bar):
        """Requests decoded together, each behind as many tokens of its own; returns our rate and those of one alone."""
        ours, peer, single = [], [], []
        for _ in range(rounds):
            got = run(self.build / "mlx-bun", "benchmark", model, "--json", "--tier", tier, "--threads", threads, "--batch", batch,
                      "--prompt-tokens", short_of(n_tokens), "--tokens", short_of(n_tokens), "--repeat", 1)["rows"]
            single.append(got[0]["decode_tok_s"])
            ours.append(got[1]["decode_tok_s"])
            peer.append(self.peer(gguf, threads, n_tokens, n_tokens, batch)["decode_tok_s"])
        self.row(name, "tokens/s", median(ours), median(peer), median(x / y for x, y in zip(ours, peer)), bar,
                 of_bandwidth=self.of_bandwidth(Weights(model), median(ours) / batch, threads))
        return median(ours), single

    def large(self):
        for size in ("1b", "8b"):
            folder, gguf = self.synth(size)
            weights = Weights(folder)
            for n in self.threads:
                ours, peer = self.pairs(gguf, n, 32, 16, FEW, model=folder)
                bars = {"l1": 1.6, "l2": 1.7} if n == 1 else {"l1": 1.8, "l2": 1.8}
                self.compare(f"decode, {size.upper()}-shaped layers", "decode_tok_s", ours, peer, bars, n, weights)
                for tier, runs in ours.items():
                    rate, read = median(r["decode_tok_s"] for r in runs) * weights.step_bytes() / 1e9, self.minute[f"read_gb_s_{n}"]
                    self.row(f"share of read bandwidth, {size.upper()}-shaped, {tier}, {self.on(n)}", "GB/s", rate, read, rate / read, 0.75)
            self.drop(folder, gguf)

    def mixtures(self):
        """About 1B weights a token, of Qwen3's and Qwen3.5's layers."""
        n = self.threads[-1]
        for shape, label in (("qwen3-moe", "Qwen3-MoE-shaped"), ("qwen3.5-moe", "Qwen3.5-shaped")):
            folder, gguf = self.synth(shape)
            self.with_text(folder)
            ours, peer = self.pairs(gguf, n, 512, 32, max(1, ROUNDS // 2), model=folder)
            self.compare(f"decode, {label}", "decode_tok_s", ours, peer, {"l1": 1.2, "l2": 1.2}, n)
            self.compare(f"prefill 512, {label}", "prefill_tok_s", ours, peer, {"l1": 1.2, "l2": 1.2}, n)
            for tier in ("l1", "l2"):
                name = f"batch 8, {label}, {tier}, {self.on(n)}"
                try:
                    self.batch_row(name, folder, gguf, tier, n, 8, 32, max(1, ROUNDS // 2), 1.2)
                except NotMeasured as e:  # llama.cpp ends in a fault with some of these on some processors
                    self.skip(name, str(e))
            self.drop(folder, gguf)

    def gemma(self):
        if not self.gemma_dir or not self.gemma_gguf:
            self.skip("Gemma-3-270M", "BENCH_GEMMA_DIR and BENCH_GEMMA_GGUF name no files (GEMMA=1 fetches them, under their own terms)")
            return
        self.short(self.gemma_gguf, ", Gemma-3-270M", self.gemma_dir)
        self.tokenizer_of(self.gemma_dir, self.gemma_gguf, "Gemma", 10)

    def start(self):
        self.look()
        self.start_row("135M", self.model_dir, 0.3)
        need = 14 << 30
        if QUICK or SHRINK > 1 or memory("MemAvailable") < need or shutil.disk_usage(self.tmp).free < need:
            self.skip("start to ready, 8B", "it takes 14 GiB of memory and of disk")
            return
        folder, _ = self.synth("8b-whole", gguf=False)
        self.with_text(folder)
        self.start_row("8B with the packed cache", folder, 2.0, "--packed-cache", "--cache-dir", self.tmp / "8b-cache", "--context-length", 4096)
        self.drop(folder)
        self.drop(self.tmp / "8b-cache")

    def start_row(self, label, model, bar, *flags):
        times = []
        for i in range(ROUNDS + 1):  # the first fills caches
            begin = time.perf_counter()
            with Server(self.build, model, *flags):
                times.append(time.perf_counter() - begin)
        self.row(f"start to ready, {label}", "s", median(times[1:]), bar=bar, lower=True, first_s=round(times[0], 2))

    def tokenizer(self):
        self.tokenizer_of(self.model_dir, self.gguf, "SmolLM2", 40)

    def tokenizer_of(self, model, gguf, label, bar):
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
        folder, _ = self.synth("8b", gguf=False)  # six layers of 32: the whole step is longer still
        rate = self.ours("l1", self.threads[-1], 32, 8, folder)["decode_tok_s"]
        self.drop(folder)
        self.row("server path against a step of six 8B-shaped layers", "us", us, 1e6 / rate, us * rate / 1e6, 0.01, lower=True)

    def grammar_mask(self):
        """CPU time of masks: of a second request's, as a served grammar's are, but for the first, which is of the very first."""
        self.look()
        model, n = (self.gemma_dir, 131072) if self.gemma_dir else (self.model_dir, 49152)
        text = text_of(self.build / "grammar_tool", "bench", model, n)
        cold = re.search(r"all cold: \d+ masks  mean ([\d.]+) us  p99 ([\d.]+) us", text)
        first = max(float(x) for x in re.findall(r" cold .* first +([\d.]+) us", text))
        self.row(f"grammar mask, mean, {n} ids", "us", float(cold[1]), bar=60, lower=True)
        self.row(f"grammar mask, p99, {n} ids", "us", float(cold[2]), bar=600, lower=True)
        self.row(f"grammar mask, first, {n} ids", "us", first, bar=2000, lower=True)

    def grammar(self):
        """Eight requests at once to a 1B-shaped model, with an answer held to a schema and without."""
        folder, _ = self.synth("1b-text", gguf=False)
        self.with_text(folder)
        item = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
                "required": ["name", "n"], "additionalProperties": False}
        held = {"response_format": {"type": "json_schema", "json_schema": {
            "name": "list", "strict": True, "schema": {"type": "array", "items": item, "minItems": 1000}}}}
        rates = {"on": [], "off": []}
        with Server(self.build, folder, "--batch", 8) as server:
            self.look()
            for i in range(FEW + 1):
                for how, more in (("off", {"ignore_eos": True}), ("on", held)):
                    rate = together(server.url, 8, {"messages": [{"role": "user", "content": "A list."}], "max_tokens": 64, "seed": i, **more})
                    if i > 0:  # the first of each warms caches
                        rates[how].append(rate)
        ratio = median(a / b for a, b in zip(rates["on"], rates["off"]))
        self.row("batch 8 with a JSON schema against without, 1B-shaped", "tokens/s", median(rates["on"]), median(rates["off"]), ratio, 0.97)
        self.drop(folder)

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
        off, on = [], []
        with Server(self.build, self.model_dir) as plain, Server(self.build, self.model_dir, MLX_BUN_GRAMMAR_JUMP="1") as jumps:
            self.look()
            for i in range(ROUNDS + 1):
                for server, rates in ((plain, off), (jumps, on)):
                    rate = together(server.url, 1, {**body, "seed": i})
                    if i > 0:  # the first of each warms caches
                        rates.append(rate)
        ratio = median(a / b for a, b in zip(on, off))
        self.row("a schema with long fixed parts, jump-forward on against off", "tokens/s", median(on), median(off), ratio, 1.1)

    def memory(self):
        self.look()
        with Server(self.build, self.model_dir) as server:
            body = json.dumps({"prompt": "Once upon a time", "max_tokens": 64})
            run("curl", "-s", server.url + "/completions", "-H", "content-type: application/json", "-d", body)
            stats = run("curl", "-s", server.url.replace("/v1", "") + "/stats")
            rollup = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text()
            private = sum(int(v) for v in re.findall(r"Private_(?:Clean|Dirty):\s+(\d+) kB", rollup)) / 1024
        weights = (self.model_dir / "model.safetensors").stat().st_size / 2**20
        allowed = 1.1 * weights + 64 + find(stats, "pages_held_bytes", "kv_bytes", "held_bytes") / 2**20
        self.row("private memory against 1.1 x weights + 64 MiB + KV", "MiB", private, allowed, private / allowed, 1.0, lower=True)

    def order(self):
        """What the fixed order costs in each matmul (at most 5 %), and the share of the integer peak (of vectors, also beside tiles) where
        many rows are at work, with a bar for the level that this machine runs."""
        self.look()
        for r in run(self.build / "bench_order", 0.3)["rows"]:
            label = f"{r['level']} {r['name']}"
            self.row(f"cost of the order, {label}", "us", r["us"], r["free_us"], r["us"] / r["free_us"], 1.05, lower=True)
            kind = re.search(r"g(\d+) (l1|l2|f32) .* m (\d+)$", r["name"])
            if kind and int(kind[3]) >= 128 and kind[2] != "f32":
                group, tier = int(kind[1]), kind[2]
                bars = {("l2", 32): 0.64, ("l2", 64): 0.75, ("l1", 32): 0.38, ("l1", 64): 0.42} if r["level"] == self.about["levels"][-1] else {}
                self.row(f"share of the integer peak, {label}", "share", r["share"], bar=bars.get((tier, group)),
                         of_tile_peak=r["tile_share"] or None)

    def download(self):
        """Hashed and checked beside curl, which only writes; the bar where the processor has SHA instructions and a second core."""
        self.look()
        r = run(sys.executable, HERE / "get.py", self.build, "--rounds", ROUNDS, "--json")
        bar = 0.9 if r["sha_instructions"] and r["cores"] > 1 else None
        self.row(f"get of {r['mb']} MB against curl", "MB/s", r["mb"] / r["wall_s"]["mlx-bun"], r["mb"] / r["wall_s"]["curl"], r["ratio"], bar,
                 anywhere=True, processor_s=r["processor_s"])

    def fit(self):
        """What fit says beside what is taken and reached."""
        self.look()
        for m in run(sys.executable, HERE / "fit.py", self.build, self.model_dir, "--json"):
            for s in m["sizes"]:
                self.row(f"fit: memory of {s['context']} tokens against taken", "MB", s["expected_bytes"] / 1e6, s["bytes"] / 1e6, s["ratio"])
            self.row("fit: largest error of bytes", "of 1", max(abs(s["ratio"] - 1) for s in m["sizes"]), bar=0.1, lower=True, anywhere=True)
            self.row("fit: tokens a second against reached", "tokens/s", m["predicted_tok_s"], m["tok_s"], m["tok_s_ratio"])
            self.row("fit: error of tokens a second", "of 1", abs(m["tok_s_ratio"] - 1), bar=0.25, lower=True, anywhere=True)

    def crowded(self):
        n = self.threads[-1]
        quiet = self.ours("l1", n, 64, 64)["decode_tok_s"]
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            ours, peer = self.pairs(self.best(), n, 64, 64, FEW, tiers=("l1",))
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        busy = median(r["decode_tok_s"] for r in ours["l1"])
        self.row("decode beside two busy loops against quiet, l1", "tokens/s", busy, quiet, busy / quiet, 0.4)
        self.compare("decode beside two busy loops", "decode_tok_s", ours, peer, {"l1": 1.0}, n)


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
