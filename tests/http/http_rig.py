"""What the HTTP tests share: a server of its own process, raw sockets, SSE, and checkpoints made for one purpose.

Checkpoints: `copy_model` copies a tiny checkpoint and patches its files; `chain_model` makes one whose next token depends
on the last token alone, so that a test decides what the model says (no fault points needed)."""
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
TINY = ROOT / "tests/golden/tiny"
LLAMA = TINY / "llama"
TORTURE = os.environ.get("MLX_BUN_TORTURE") == "1"
HELLO = [{"role": "user", "content": "hello"}]
CHAT, RAW = "/v1/chat/completions", "/v1/completions"
DRAWS = (CHAT, RAW, "/v1/messages", "/v1/responses")
SEED = int(os.environ.get("MLX_BUN_TEST_SEED") or "1", 0)  # of requests that name none; another one shows which tests hang on a draw


def clean_env(**more):
    """Without what the caller's shell has set for the program, and without the models on this machine."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}, "HF_HUB_CACHE": "/dev/null/none", **more}


def sanitizer():
    data = Path(PROGRAM).read_bytes() if Path(PROGRAM).exists() else b""
    return "asan" if b"__asan_init" in data else "tsan" if b"__tsan_init" in data else None


SANITIZER = sanitizer()
SANITIZED = SANITIZER is not None


def anonymous_bytes(pid):
    """Memory of its own that a process holds, counted page by page (RssAnon of /proc/PID/status is a counter that lags behind)."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError as e:
        pytest.skip(f"this system does not count it: {e}")
    return 1024 * int(re.search(r"(?m)^Anonymous:\s+(\d+) kB", text)[1])


def has_fault_points():
    return "fault points" in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout


def free_port():
    """Below those that the system gives to connections and to whoever asks for any: none is taken between this and its use.
    Where it gives nearly all of them, one that it gives."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(max(first // 2, 1024), first) if first > 2048 else 0
        with socket.socket() as s:
            try:
                s.bind(("", port))
                return s.getsockname()[1]
            except OSError:
                pass


def run(*args, **env):
    return subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=120, env=clean_env(**env))


# --- what is drawn ---

def seeded(path, body, seed=SEED):
    """The body as it is sent: one that names no seed gets this one, so that a test sees the same draws every time. With
    "seed": None it goes without."""
    if path not in DRAWS or not isinstance(body, dict) or seed is None:
        return body
    return {k: v for k, v in {"seed": seed, **body}.items() if (k, v) != ("seed", None)}


class Client(httpx.Client):
    """With seeds in what is given as json=; content= is sent as it is."""

    def __init__(self, *args, seed=SEED, **kw):
        super().__init__(*args, trust_env=False, **kw)
        self.seed = seed

    def build_request(self, method, url, *, json=None, **kw):
        return super().build_request(method, url, json=seeded(url, json, self.seed), **kw)


# --- a server ---

class Server:
    """`mlx-bun serve MODEL --port 0 FLAGS...`, ready when the constructor returns. Use with `with`, or stop() it."""

    def __init__(self, *flags, model=LLAMA, env=None, under=(), seed=SEED):
        """under: a command in front, such as prlimit. seed: of requests that name none."""
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*under, PROGRAM, "serve", str(model), "--port", "0", *map(str, flags)],
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True, env=clean_env(**(env or {})))
        self.card = ""
        for line in self.process.stdout:
            self.card += line
            found = re.search(r"url +http://(\S+):(\d+)/v1", line)
            if found:
                self.port = int(found[2])
                break
        else:
            self.process.wait(300)
            raise RuntimeError("the server ended before it was ready: " + self.stderr())
        self.http = Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120, seed=seed)
        end = time.monotonic() + 300
        while True:  # API-017: ready when the models are listed
            try:
                if self.http.get("/v1/models").status_code in (200, 401):
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < end
            time.sleep(0.01)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stderr(self):
        """Read without moving the place in the file, which is the server's too: it goes on writing there."""
        fd = self.errors.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def stop(self, sig=signal.SIGTERM, wait=40):
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self.process.stdout.close()
        report = re.search(r"\w+Sanitizer: |runtime error: ", self.stderr()) if SANITIZED else None
        assert not report, self.stderr()[report.start() - 100 if report.start() > 100 else 0:][:8000]
        return code

    def get(self, path, **kw):
        return self.http.get(path, **kw)

    def post(self, path, body, **kw):
        return self.http.post(path, json=body, **kw)

    def ok(self, path, body):
        r = self.post(path, body)
        assert r.status_code == 200, (r.status_code, r.text)
        return r.json()

    def chat(self, **fields):
        return self.ok(CHAT, {"messages": HELLO, "max_tokens": 8, **fields})

    def text(self, **fields):
        """The content of a chat answer."""
        return self.chat(**fields)["choices"][0]["message"]["content"]

    def raw(self, prompt="hello", **fields):
        return self.ok(RAW, {"prompt": prompt, "max_tokens": 8, **fields})

    def ids(self, prompt="hello", path=RAW, **fields):
        """(token id, logprob) of each drawn token."""
        body = {"prompt": prompt} if path == RAW else {"messages": HELLO}
        r = self.ok(path, {**body, "max_tokens": 8, "logprobs": True, **fields})
        return [(e["id"], e["logprob"]) for e in r["choices"][0]["logprobs"]["content"]]

    def refused(self, path, body, part, status=400):
        r = self.post(path, body)
        assert r.status_code == status, (body, r.status_code, r.text[:300])
        assert part in r.json()["error"]["message"], r.text
        return r.json()["error"]

    def stream(self, path, body):
        """(events as JSON, whole text) of a stream."""
        r = self.post(path, {**body, "stream": True})
        assert r.status_code == 200, r.text
        return sse_events(r.text), r.text

    def stats(self):
        return self.get("/stats").json()

    def alive(self):
        assert self.get("/health").text == '{"status": "ok"}'
        self.raw(max_tokens=1)

    def wait_idle(self, seconds=120):
        end = time.monotonic() + seconds
        while True:
            s = self.stats()
            if s["batch"]["active_rows"] == 0 and s["batch"]["pending_rows"] == 0:
                return s
            assert time.monotonic() < end, s
            time.sleep(0.01)

    def private_kb(self):
        return sum(int(n) for n in re.findall(r"^Private_\w+: +(\d+)", Path(f"/proc/{self.process.pid}/smaps_rollup").read_text(), re.M))

    def peak_kb(self):
        return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1])

    # --- raw sockets ---
    def connect(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def exchange(self, data):
        """(status, headers in lower case, body): the answer to raw bytes; the server must not need more than these."""
        with self.connect() as s:
            s.sendall(data)
            return read_answer(s)


def request(path, body, method="POST", headers=""):
    data = body if isinstance(body, bytes) else json.dumps(seeded(path, body)).encode()
    return (f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(data)}\r\n\r\n").encode() + data


def read_head(s):
    data = b""
    while b"\r\n\r\n" not in data:
        more = s.recv(65536)
        if not more:
            raise ConnectionError(f"closed after {data!r}")
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode("latin1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), headers, rest


def read_answer(s):
    status, headers, body = read_head(s)
    if status == 100:
        return 100, headers, body
    while len(body) < int(headers.get("content-length", 0)):
        body += s.recv(65536)
    return status, headers, body


def leave_after(s, body, seconds):
    """Send a raw completion, wait, leave. Returns the steps that the engine had made when the client was gone: told behind
    the FIN, so that a test process that has to wait for its turn sees no step too many."""
    c = s.connect()
    c.sendall(request(RAW, body))
    time.sleep(seconds)
    c.close()
    return s.stats()["engine"]["steps"]


# --- server-sent events ---

def sse_events(text):
    """The JSON events; the form of every line and the [DONE] at the end are checked."""
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    blocks = [b for b in text.split("\n\n") if b and not b.startswith(":")]
    assert all(b.startswith("data: ") and "\n" not in b for b in blocks)
    assert [b for b in blocks if b == "data: [DONE]"] == blocks[-1:]
    return [json.loads(b[6:]) for b in blocks[:-1]]


def joined(events, key="content"):
    out = ""
    for e in events:
        for c in e["choices"]:
            out += (c["delta"].get(key) or "") if "delta" in c else c["text"] if key == "content" else ""
    return out


# --- checkpoints ---

def read_safetensors(path):
    """{name: [dtype, shape, bytes]}"""
    data = Path(path).read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    return {k: [v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]] for k, v in header.items()}


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "mlx"}}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t[2] for t in tensors.values()))


def patch_json(path, changes):
    v = json.loads(path.read_text())
    v.update(changes)
    path.write_text(json.dumps(v))


def copy_model(to, base="llama", config=None, generation=None, tokenizer=None, tensors=None):
    """A copy of tests/golden/tiny/<base> below `to`; JSON files updated, tensors(dict) may change the weights in place."""
    to = Path(to) / base
    shutil.copytree(TINY / base, to)
    for name, changes in (("config", config), ("generation_config", generation), ("tokenizer_config", tokenizer)):
        if changes:
            patch_json(to / f"{name}.json", changes)
    if tensors:
        all_of = read_safetensors(to / "model.safetensors")
        tensors(all_of)
        (to / "model.safetensors.index.json").unlink()
        write_safetensors(to / "model.safetensors", all_of)
    return to


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def half(values):
    return struct.pack(f"<{len(values)}e", *values)


def vocabulary():
    """{text of a token: id} of the byte-level tokenizer of the tiny checkpoints, byte tokens as one latin-1 character."""
    t = json.loads((LLAMA / "tokenizer.json").read_text())
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in printable}
    byte_of.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
    ids = {bytes(byte_of[c] for c in k): i for k, i in t["model"]["vocab"].items()}
    ids.update({a["content"].encode(): a["id"] for a in t["added_tokens"]})
    return ids


def chain_model(to, pieces, config=None, generation=None, tokenizer=None):
    """A plain bf16 checkpoint that says `pieces` (bytes of single tokens, each used once) after a chat turn or after any
    prompt that ends in a line break, then <|im_end|>. Attention and MLP are zero: the hidden state is the last token's
    row, and the head's row of a token is the sum of the rows of those that it follows."""
    n_vocab, n, rng, vocab = 512, 64, random.Random(7), vocabulary()
    code = [[rng.choice((-1.0, 1.0)) for _ in range(n)] for _ in range(n_vocab)]
    script = [vocab[b"\n"], *(vocab[p] for p in pieces), vocab[b"<|im_end|>"]]
    assert len(set(script)) == len(script), "a token occurs twice"
    head = [[0.0] * n for _ in range(n_vocab)]
    for a, b in zip(script, script[1:]):
        head[b] = [x + 4 * y for x, y in zip(head[b], code[a])]

    def fill(tensors):
        for name, t in tensors.items():
            if not name.endswith("norm.weight"):
                t[2] = bytes(len(t[2]))
            else:
                t[2] = bf16([1.0] * n)
        tensors["model.embed_tokens.weight"][2] = bf16([x for row in code for x in row])
        tensors["lm_head.weight"] = ["BF16", [n_vocab, n], bf16([x for row in head for x in row])]

    return copy_model(to, "llama-bf16", {"tie_word_embeddings": False, **(config or {})}, generation, tokenizer, fill)
