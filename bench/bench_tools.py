"""bench_tools.py: what bench.py measures with: programs that print JSON, sessions, servers, the machine, and what a checkpoint weighs."""
import concurrent.futures
import json
import os
import re
import signal
import struct
import subprocess
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


class NotMeasured(Exception):
    """A program failed or said something else than it should."""


def run(*args, timeout=1800):
    """The last line that a program prints, as JSON."""
    return json.loads(text_of(*args, timeout=timeout).strip().splitlines()[-1])


def text_of(*args, timeout=1800):
    done = subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=timeout)
    if done.returncode != 0:
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else "failed"
        raise NotMeasured(f"{args[0]} {how}: {done.stderr.strip()[-400:] or 'it said nothing'}")
    return done.stdout


class Session:
    """A program that has computed a prompt and decodes behind it as often as it is asked to: a long prompt costs its time once."""

    def __init__(self, *args):
        self.name = args[0]
        self.process = subprocess.Popen([str(a) for a in args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.first = self.line()

    def line(self):
        text = self.process.stdout.readline()
        if not text:
            raise NotMeasured(f"{self.name} failed: {self.process.stderr.read().strip()[-400:]}")
        return json.loads(text)

    def decode(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return self.line()

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.stderr.close()
        self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.process.kill()
        self.close()


class Server:
    """`mlx-bun serve` that is ready, which it says before its address; url is its API's."""

    def __init__(self, build, model, *flags, **env):
        self.process = subprocess.Popen([build / "mlx-bun", "serve", model, "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, env={**os.environ, **env})
        self.url = next((line.split()[1] for line in self.process.stdout if line.strip().startswith("url")), None)
        if self.url is None:
            raise NotMeasured("serve did not become ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        self.process.stdout.close()


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


def machine():
    text = Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"flags\s*:\s*(.*)", text).group(1).split())
    known = (("avx2", "avx2"), ("avx-vnni", "avx_vnni"), ("avx512", "avx512_vnni"), ("amx", "amx_int8"))
    name = re.search(r"model name\s*:\s*(.*)", text)
    return {"machine": name.group(1).strip() if name else "unknown", "levels": ["portable"] + [n for n, f in known if f in flags],
            "limits": {"cores": len(os.sched_getaffinity(0)), "memory_bytes": memory("MemTotal"), "load": os.getloadavg()[0]}}


def memory(what):
    return int(re.search(rf"{what}:\s*(\d+)", Path("/proc/meminfo").read_text()).group(1)) * 1024


def commit():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


class Weights:
    """What a step of a dense checkpoint reads, and multiplies a token; None where not all weights are used for each token."""

    def __init__(self, folder):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        quantization = self.config.get("quantization") or {}
        self.dense = not any("expert" in k for k in (self.config.get("text_config") or self.config))
        self.n_bytes = self.n_linear = 0
        tensors = {}
        for path in Path(folder).glob("*.safetensors"):
            with open(path, "rb") as f:
                tensors |= json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        tensors.pop("__metadata__", None)
        own_head = any("lm_head." in name for name in tensors)
        for name, t in tensors.items():
            embeds = "embed_tokens." in name
            if not (embeds and own_head):  # of such a table one row is read
                self.n_bytes += t["data_offsets"][1] - t["data_offsets"][0]
            if name.endswith(".scales") and not embeds and "lm_head." not in name:
                group = quantization.get(name.removesuffix(".scales"))
                group = group["group_size"] if isinstance(group, dict) else quantization["group_size"]
                self.n_linear += t["shape"][0] * t["shape"][1] * group

    def step_bytes(self, context=0):
        """Of weights, and of keys and values in 16 bits of so many tokens."""
        c = self.config
        if not self.dense:
            return None
        size = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        kinds = c.get("layer_types") or ["full_attention"] * c["num_hidden_layers"]
        seen = sum(min(context, c["sliding_window"]) if kind == "sliding_attention" else context for kind in kinds)
        return self.n_bytes + seen * 2 * 2 * size * c.get("num_key_value_heads", c["num_attention_heads"])
