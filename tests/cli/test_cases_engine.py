"""Rows of the case list that need a whole program and a checkpoint made for them: memory of a long prompt, windows that are not
cut, activations beyond float16, overrides of the quantisation. The program is $MLX_BUN."""
import json
import math
import os
import re
import shutil
import struct
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
TINY = ROOT / "tests/golden/tiny"


def clean_env():
    return {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}


def run(*args, stdin="", status=0):
    p = subprocess.run([MLX_BUN, *map(str, args)], input=stdin, capture_output=True, text=True, env=clean_env(), timeout=300)
    assert p.returncode == status, (args, p.returncode, p.stdout[-1000:], p.stderr[-2000:])
    return p


def variant(folder, of="llama", config=None, tensors=None):
    """A copy of a tiny checkpoint with entries of config.json changed and tensors mapped by tensors(name, dtype, bytes)."""
    shutil.copytree(TINY / of, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    if tensors:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        n = struct.unpack("<Q", data[:8])[0]
        header, body, out = json.loads(data[8:8 + n]), data[8 + n:], b""
        for name in sorted(k for k in header if k != "__metadata__"):
            begin, end = header[name]["data_offsets"]
            header[name]["dtype"], new = tensors(name, header[name]["dtype"], body[begin:end])
            header[name]["data_offsets"] = [len(out), len(out) + len(new)]
            out += new
        head = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(head)) + head + out)
    return folder


class Server:
    def __init__(self, model, *flags):
        self.p = subprocess.Popen([MLX_BUN, "serve", str(model), "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                  text=True, env=clean_env())
        self.card = ""
        for line in self.p.stdout:
            self.card += line
            if "-d '" in line:
                break
        self.url = re.search(r"url +(\S+)/v1", self.card)[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.wait(timeout=300)
        self.p.stdout.close()

    def post(self, body, path="/v1/completions"):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(r, timeout=300) as f:
                return f.status, json.load(f)
        except urllib.error.HTTPError as e:
            return e.code, json.load(e)

    def peak_bytes(self):
        """Private memory at its highest: the high-water mark without the pages of mapped files."""
        text = Path(f"/proc/{self.p.pid}/status").read_text()
        value = {k: int(re.search(rf"{k}:\s+(\d+) kB", text)[1]) * 1024 for k in ("VmHWM", "RssFile", "RssShmem")}
        return value["VmHWM"] - value["RssFile"] - value["RssShmem"]

    def estimate_bytes(self):
        """What the card says the program will use."""
        unit = {"KB": 1e3, "MB": 1e6, "GB": 1e9}
        number = re.search(r"memory +([\d.]+) (\w+):", self.card)
        return float(number[1]) * unit[number[2]]


def test_b107_peak_of_a_long_prompt(tmp_path):
    """B-107: 16,000 tokens in chunks of 512 stay within the printed estimate and 10 % (a matrix of scores alone would be more)."""
    model = variant(tmp_path / "m", config={"max_position_embeddings": 32768})
    with Server(model, "--memory-budget", "0.036", "--prefill-chunk", "512", "--prompt-cache", "0") as s:
        code, answer = s.post({"prompt": "word and " * 4000, "max_tokens": 2, "temperature": 0})
        assert code == 200 and answer["usage"]["prompt_tokens"] >= 16000
        peak, estimate = s.peak_bytes(), s.estimate_bytes()
        assert 35.9e6 < estimate < 36.1e6 and 12e6 < peak <= 1.1 * estimate, (peak, estimate)


def test_eng057_transient_grows_with_the_chunk(tmp_path):
    """ENG-057: a smaller --prefill-chunk needs less memory for the same prompt; both stay within the estimate."""
    peaks = []
    for chunk in (64, 2048):
        with Server(TINY / "llama", "--memory-budget", "0.03", "--prefill-chunk", chunk) as s:
            assert s.post({"prompt": "word and " * 900, "max_tokens": 2})[0] == 200
            peaks.append(s.peak_bytes())
            assert peaks[-1] <= 1.1 * s.estimate_bytes()
    assert peaks[0] + 2e6 < peaks[1]


def test_b158_window_from_the_model(tmp_path):
    """B-158: no option set: the model's 8192 tokens, printed; 5000 are all read, more than the window is 400 with the counts."""
    with Server(variant(tmp_path / "m", config={"max_position_embeddings": 8192})) as s:
        assert "context  8192 tokens; one request can use 8192" in s.card
        code, answer = s.post({"prompt": "word and " * 1250, "max_tokens": 1})
        assert code == 200 and answer["usage"]["prompt_tokens"] == 5001
        code, answer = s.post({"prompt": "word and " * 2500, "max_tokens": 1})
        assert code == 400 and answer["error"]["code"] == "context_length_exceeded"
        assert "10001" in answer["error"]["message"] and "8192" in answer["error"]["message"]
    with Server(variant(tmp_path / "small", config={"max_position_embeddings": 8192}), "--memory-budget", "0.023", "--threads", "2") as s:
        fits = int(re.search(r"one request can use (\d+)", s.card)[1])
        assert 64 <= fits < 5000                              # bounded by memory, and printed
        code, answer = s.post({"prompt": "word and " * 1250, "max_tokens": 1})
        assert code == 400 and answer["error"]["code"] == "context_over_budget"


def bf16_to_f16(data):
    values = [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    return struct.pack(f"<{len(values)}e", *values)


def test_b029_activations_beyond_f16(tmp_path):
    """B-029: a Gemma stored in float16 with norm weights of 250: finite, and near the float32 reference."""
    def loud(name, dtype, data):
        if dtype != "BF16":
            return dtype, data
        if "layernorm" in name or name == "model.norm.weight":
            return "F16", struct.pack("<e", 250.0) * (len(data) // 2)
        return "F16", bf16_to_f16(data)

    model = variant(tmp_path / "m", of="gemma3", tensors=loud, config={"torch_dtype": "float16"})
    ids = [(37 * i * i + 11 * i) % 500 + 7 for i in range(120)]
    logprobs = {}
    for name, flags in {"f32": ["--tier", "f32"], "l1": [], "l1 f32": ["--kv-quant", "f32"]}.items():
        p = json.loads(run("perplexity", model, "--ids", "-", "--json", *flags, stdin=json.dumps(ids)).stdout)["positions"]
        logprobs[name] = [(t["logprob"], t["argmax_logprob"]) for t in p]
        assert all(math.isfinite(v) for pair in logprobs[name] for v in pair)
    largest = max(abs(v) for pair in logprobs["f32"] for v in pair)
    assert largest > 100  # as loud as meant
    for name, share in (("l1", 3e-3), ("l1 f32", 5e-4)):
        error = max(abs(a - b) for got, want in zip(logprobs[name], logprobs["f32"]) for a, b in zip(got, want))
        assert error <= share * largest, (name, error, largest)
