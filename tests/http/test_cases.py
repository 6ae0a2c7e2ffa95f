"""Rows of docs/cases (B-nnn) that need a served model: broken weights, equal bits on every path, transport, limits, memory,
loading, names. Each ends with a server that still serves."""
import json
import math
import os
import random
import re
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, RAW, TORTURE, Server

HOT = {"seed": 7, "temperature": 0.8, "max_tokens": 24, "ignore_eos": True}
NAN, INF = b"\x00\x7e", b"\x00\x7c"  # float16


def set_row(tensors, name, i, value):
    """Every element of row i becomes `value` (bytes of one element)."""
    dtype, shape, data = tensors[name]
    n = len(data) // shape[0] if len(shape) > 1 else len(value)
    tensors[name][2] = data[:i * n] + value * (n // len(value)) + data[(i + 1) * n:]


# --- numbers that are none ---

@pytest.mark.parametrize("tensor, value", [("model.norm.weight", NAN), ("model.layers.1.input_layernorm.weight", INF)])
def test_b028_non_finite_weights(tmp_path, tensor, value):
    """B-028: a NaN in the last norm, an infinity in a middle layer: an error that says so in both modes and on both
    endpoints, never a text with status 200; nothing is kept in the cache."""
    with Server(model=rig.copy_model(tmp_path, tensors=lambda t: set_row(t, tensor, 5, value))) as s:
        for path, body in ((CHAT, {"messages": HELLO}), (RAW, {"prompt": "a b c"})):
            for f in ({}, {"temperature": 0}, {"n": 2}, {"logprobs": True}):
                s.refused(path, {**body, "max_tokens": 4, **f}, "non-finite logits", 500)
            r = s.post(path, {**body, "max_tokens": 4, "stream": True})
            if r.status_code == 200:  # the stream had opened: its role chunk, then the error
                events = rig.sse_events(r.text)
                assert "non-finite logits" in events[-1]["error"]["message"] and rig.joined(events[:-1]) == ""
            else:
                assert r.status_code == 500 and "non-finite logits" in r.json()["error"]["message"]
        st = s.wait_idle()
        assert st["prompt_cache"]["entries"] == 0 and st["engine"]["pages_held_bytes"] == 0 and st["engine"]["failed"] >= 6
        assert s.get("/health").status_code == 200


def test_b028_healthy_neighbours(tmp_path):
    """B-028: one row of the embedding is not a number: requests that hold that token fail, those beside them in the batch
    have the bits of a solo run, and a prefix that failed is not reused."""
    poison = rig.vocabulary()[b"@"]
    model = rig.copy_model(tmp_path, "qwen2", tensors=lambda t: set_row(t, "model.embed_tokens.scales", poison, NAN))
    with Server(model=model) as s:
        def healthy(i):
            return s.ids(f"number {i}", **{**HOT, "max_tokens": 40, "logit_bias": {str(poison): -100}})

        def poisoned(i):
            r = s.post(RAW, {"prompt": f"number {i} @", "max_tokens": 40, "ignore_eos": True})
            return r.status_code, "non-finite logits" in r.text

        alone = [healthy(i) for i in range(4)]
        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                bad = [pool.submit(poisoned, i) for i in range(4)]
                good = [pool.submit(healthy, i) for i in range(4)]
                assert [f.result() for f in good] == alone
                assert {f.result() for f in bad} == {(500, True)}
        assert [healthy(i) for i in range(4)] == alone


@pytest.mark.parametrize("family", ["gemma3", "gemma4-moe", "qwen3_5"])
def test_b029_large_norms_in_f16(family, tmp_path):
    """B-029: a model in f16 with norm weights near 250: finite, and near the float32 tier; a Gemma with windows, one with experts and
    shared keys, a hybrid whose delta nets read what such norms give."""
    def change(tensors):
        for name, t in tensors.items():
            if t[0] != "BF16":
                continue
            values = [struct.unpack("<f", b"\0\0" + t[2][i:i + 2])[0] for i in range(0, len(t[2]), 2)]
            if name.endswith("layernorm.weight"):
                values = [249 + math.sin(i) for i in range(len(values))]
            t[0], t[2] = "F16", rig.half(values)

    model = rig.copy_model(tmp_path, family, config={"torch_dtype": "float16"}, tensors=change)
    tops = []
    for flags in ((), ("--tier", "f32")):
        with Server(*flags, model=model) as s:
            e = s.raw("hello world", max_tokens=1, temperature=0, top_logprobs=11)["choices"][0]["logprobs"]["content"][0]
            assert all(math.isfinite(t["logprob"]) for t in e["top_logprobs"])
            tops.append({t["id"]: t["logprob"] for t in e["top_logprobs"]})
            assert s.raw(max_tokens=40, ignore_eos=True)["usage"]["completion_tokens"] == 40
    both = set(tops[0]) & set(tops[1])
    assert len(both) >= 9 and all(abs(tops[0][i] - tops[1][i]) < 0.05 for i in both)


# --- the same bits ---

@pytest.mark.parametrize("temperature", [0.8, 0])
def test_b031_same_bits_on_every_path(temperature):
    """B-031: one request 20 times alone, among 7 strangers, after a cache hit, after a restart, with other chunk sizes: the
    same ids and the same bits of every logprob."""
    ask = {"path": CHAT, **HOT, "temperature": temperature, "messages": [{"role": "user", "content": "one two three " * 30}]}
    seen = []
    for flags in ((), (), ("--prefill-chunk", 7), ("--prefill-chunk", 64, "--prompt-cache", 0)):
        with Server(*flags) as s:
            n_alone = 20 if not seen else 3
            seen += [s.ids(**ask) for _ in range(n_alone)]  # the first cold, the others after a hit
            with ThreadPoolExecutor(8) as pool:
                others = [pool.submit(s.ids, f"stranger {i}", seed=i, temperature=1.2, max_tokens=60, ignore_eos=True) for i in range(7)]
                seen += [f.result() for f in [pool.submit(s.ids, **ask) for _ in range(2)]]
                assert all(f.result() for f in others)
    assert all(x == seen[0] for x in seen)


@pytest.mark.parametrize("text", ["!", "\u00fc"])
def test_b094_page_edges(text):
    """B-094: prompts of N-1, N, N+1 and 2N tokens for a page of N = 64, cold and warm, and after a longer one; with an edge
    inside a character of two tokens too: bit-identical."""
    with Server("--prompt-cache", 0) as cold, Server() as warm:
        unit = cold.ok("/tokenize", {"text": text * 8 + "x"})["count"] - 1
        step = unit / 8
        for n in (63, 64, 65, 127, 128, 129):
            prompt = "x" * (n % 2) + text * int((n - n % 2) / step)
            want = cold.ids(prompt, **HOT)
            got = [warm.ids(prompt, **HOT), warm.ids(prompt, **HOT)]
            warm.raw(prompt + text + "abc")
            got.append(warm.ids(prompt, **HOT))
            assert got == [want] * 3, n
        assert warm.stats()["prompt_cache"]["hits"] >= 6


# --- ends and bytes ---

def test_b034_every_end_token(tmp_path):
    """B-034: ends named by config.json, generation_config.json and the tokenizer, each stops alone and in a batch, none is
    printed; ignore_eos goes on past all of them."""
    model = rig.copy_model(tmp_path, "llama-bf16", config={"eos_token_id": 1}, generation={"eos_token_id": [1, 7]},
                           tokenizer={"eos_token": "*"})
    assert rig.vocabulary()[b"*"] == 9
    with Server(model=model) as s:
        def forced(i, **f):
            c = s.raw("hello", logit_bias={str(i): 1000}, **f)["choices"][0]
            return c["text"], c["finish_reason"]

        for i in (1, 7, 9):
            assert forced(i) == ("", "stop")
            assert forced(i, ignore_eos=True)[1] == "length"
        assert forced(8) == (")" * 8, "length")
        with ThreadPoolExecutor(8) as pool:
            got = [f.result() for f in [pool.submit(forced, (1, 7, 9, 8)[k % 4]) for k in range(8)]]
        assert got == [("", "stop"), ("", "stop"), ("", "stop"), (")" * 8, "length")] * 2
        assert s.chat(logit_bias={"9": 1000})["choices"][0]["message"]["content"] == ""


def test_b041_junk_bytes(llama):
    """B-041: 500 tokens at temperature 5 of a byte-level model: valid UTF-8 and JSON in both modes, the same text."""
    for seed in range(2):
        body = {"prompt": "\u00ff\u0001", "temperature": 5, "seed": seed, "max_tokens": 500, "ignore_eos": True}
        r = llama.post(RAW, body)
        text = json.loads(r.content.decode("utf-8"))["choices"][0]["text"]
        assert "\ufffd" in text
        assert rig.joined(llama.stream(RAW, body)[0]) == text
    llama.alive()


# --- HTTP ---

def test_b044_lines_while_waiting(long_model):
    """B-044: a stream that has to wait gets a comment line within seconds, alone between events; the real SDK does not
    mind it (test_faults.py)."""
    with Server("--batch", 1, model=long_model) as s:
        before, second = [s.connect() for _ in range(3)], s.connect()
        for c in before:  # three: one whose answer is not fetched fast enough is parked, and leaves its slot to the next
            c.sendall(rig.request(RAW, {"prompt": "a", "ignore_eos": True, "max_tokens": 120000}))
        while s.stats()["batch"]["active_rows"] == 0 or s.stats()["batch"]["submitted_rows"] < 3:
            time.sleep(0.01)
        second.sendall(rig.request(RAW, {"prompt": "b", "ignore_eos": True, "max_tokens": 5, "stream": True}))
        second.settimeout(120)
        status, headers, data = rig.read_head(second)
        while b"\n\n" not in data:
            data += second.recv(1000)
        assert status == 200 and re.search(rb"(?:^|\n): [^\n]*\n\n", data), data
        for c in before:
            c.close()
        while b"[DONE]" not in data:
            data += second.recv(65536)
        second.close()
        assert b'"completion_tokens": 5' in data


def test_b046_chunked_bodies(llama):
    """B-046: one-byte chunks, chunk extensions, trailers: the answer of a plain body."""
    body = json.dumps({"prompt": "hello", "max_tokens": 5, "temperature": 0}).encode()
    head = f"POST {RAW} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    want = json.loads(llama.exchange(rig.request(RAW, body))[2])["choices"]
    for chunk, extension, trailer in ((1, b"", b""), (7, b";a=b;c", b"X-Trailer: 1\r\nY: 2\r\n"), (4096, b"", b"Z: z\r\n")):
        data = b"".join(b"%x%s\r\n%s\r\n" % (len(body[i:i + chunk]), extension, body[i:i + chunk]) for i in range(0, len(body), chunk))
        status, _, got = llama.exchange(head + data + b"0\r\n" + trailer + b"\r\n")
        assert status == 200 and json.loads(got)["choices"] == want, (chunk, extension)
    llama.alive()


def test_b047_expect():
    """B-047: 100 at once, then the answer; a wrong key, an unknown path and a body that is too large are answered without
    100 and without the body."""
    with Server("--api-key", "secret") as s:
        body = json.dumps({"prompt": "hello", "max_tokens": 1, "pad": "x" * 3_000_000}).encode()

        def head(path=RAW, key="secret", n=len(body)):
            return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nExpect: 100-continue\r\n"
                    f"Content-Length: {n}\r\n\r\n").encode()

        with s.connect() as c:
            c.settimeout(120)
            c.sendall(head())
            assert rig.read_head(c)[0] == 100
            c.sendall(body)
            assert rig.read_answer(c)[0] == 200
        for h, want in ((head(key="wrong"), 401), (head("/nope"), 404), (head(n=300 << 20), 413)):
            with s.connect() as c:
                c.settimeout(120)
                c.sendall(h)
                assert rig.read_answer(c)[0] == want
        assert s.post(RAW, {"prompt": "a", "max_tokens": 1}, headers={"x-api-key": "secret"}).status_code == 200


def test_b049_bad_json(llama):
    """B-049: 400 that says where; no depth, no duplicate key, no trailing text brings it down."""
    for body in (b'{:"a":1}', b"", b"[" * 100_000, b'{"a":' * 100_000, b'{"prompt":"a","prompt":"b"}', b'{"prompt":"a"} tail', b"null",
                 b'{"prompt":"a","stream":"true"}', b'{"prompt":"a","max_tokens":1e999}', b'{"prompt":"a\n"}', b'{"prompt":"\\ud800"}',
                 b'{"prompt":"a","temperature":NaN}', b'"' + b"x" * 100_000):
        for path in (RAW, CHAT):
            status, _, text = llama.exchange(rig.request(path, body))
            assert status == 400 and json.loads(text)["error"]["message"], body[:40]
    message = json.loads(llama.exchange(rig.request(RAW, b'{"prompt": "a",\n "b": }'))[2])["error"]["message"]
    assert re.search(r"\d", message)
    llama.alive()


def test_b050_not_utf8(llama):
    """B-050: raw bytes, overlong forms, surrogates in UTF-8, UTF-16 with BOM: 400 in plain ASCII or valid UTF-8."""
    for bad in (b'{"prompt":"caf\xe9"}', b'{"prompt":"\xc0\x80"}', b'{"prompt":"\xed\xa0\xbd\xed\xb8\x80"}', b'{"prompt":"\xf8\x88\x80\x80\x80"}',
                b'{"caf\xe9":1}', '{"prompt":"a"}'.encode("utf-16")):
        status, _, text = llama.exchange(rig.request(RAW, bad))
        assert status == 400 and b"\xe9" not in text, bad
        assert json.loads(text.decode("utf-8"))["error"]["message"]
    llama.alive()


# --- loads ---

def test_b103_order_and_cancelled_waiters(long_model):
    """B-103: under --batch 1 waiting clients are served in their order; those that leave are passed over. (The full queue:
    test_api034_queue_full.)"""
    with Server("--batch", 1, model=long_model) as s:
        blocker = s.connect()
        blocker.sendall(rig.request(RAW, {"prompt": "a", "ignore_eos": True, "max_tokens": 120000}))
        while s.stats()["batch"]["active_rows"] == 0:
            time.sleep(0.005)
        waiting = []
        for i in range(20):
            c = s.connect()
            c.sendall(rig.request(RAW, {"prompt": f"{i}", "max_tokens": 40, "ignore_eos": True, "seed": i}))
            while s.stats()["batch"]["pending_rows"] != i + 1:
                time.sleep(0.002)
            waiting.append(c)
        for i in range(0, 20, 2):
            waiting[i].close()
        while s.stats()["batch"]["pending_rows"] != 10:
            time.sleep(0.005)
        blocker.close()
        order, left = [], dict(enumerate(waiting[1::2]))
        created = {}
        for i, c in left.items():
            status, _, body = rig.read_answer(c)
            assert status == 200
            created[i] = json.loads(body)["usage"]["completion_tokens"]
            order.append(i)
            c.close()
        st = s.wait_idle()["engine"]
        assert order == sorted(order) and st["cancelled"] == 11 and st["finished"] == 10 and st["rejected"] == 0


@pytest.mark.skipif(not TORTURE, reason="compares times: MLX_BUN_TORTURE=1")
def test_b100_long_prompt_beside_a_stream(long_model):
    """B-100: while a prompt of 20,000 tokens is computed, a running stream keeps a pace (generous bounds: the share of a
    step that prefill may take is a quarter of a second at most)."""
    with Server(model=long_model) as s:
        def gaps(n):
            times = []
            with s.http.stream("POST", RAW, json={"prompt": "a", "max_tokens": n, "ignore_eos": True, "stream": True}) as r:
                for line in r.iter_lines():
                    if line.startswith("data: {"):
                        times.append(time.monotonic())
            return [b - a for a, b in zip(times, times[1:])]

        normal = sorted(gaps(400))[200]
        with ThreadPoolExecutor(2) as pool:
            stream = pool.submit(gaps, 3000)
            time.sleep(0.3)
            r = httpx.post(f"http://127.0.0.1:{s.port}{RAW}", json=rig.seeded(RAW, {"prompt": "@!" * 10000, "max_tokens": 1}), timeout=300, trust_env=False)
            assert r.status_code == 200
            longest = max(stream.result())
        print(f"normal gap {normal * 1e3:.2f} ms, longest {longest * 1e3:.1f} ms")
        assert longest < max(20 * normal, 0.6)


@pytest.mark.skipif(not TORTURE, reason="compares times: MLX_BUN_TORTURE=1")
def test_b101_several_are_not_slower(llama):
    """B-101: 2, 3, 4 and 8 at once give together at least three quarters of what one gives (bound for a busy machine)."""
    def rate(n):
        begin = time.monotonic()
        with ThreadPoolExecutor(n) as pool:
            for f in [pool.submit(llama.raw, f"n {i}", max_tokens=1000, ignore_eos=True) for i in range(n)]:
                f.result()
        return n * 1000 / (time.monotonic() - begin)

    one = max(rate(1) for _ in range(3))
    rates = {n: max(rate(n) for _ in range(2)) for n in (2, 3, 4, 8)}
    print(f"tokens/s alone {one:.0f}, together {({n: round(r) for n, r in rates.items()})}")
    assert all(r > 0.75 * one for r in rates.values()), (one, rates)


# --- memory ---

@pytest.mark.skipif(rig.SANITIZED, reason="a sanitizer's memory grows by itself")
def test_b098_memory_stays_flat():
    """B-098: different prompts, streamed and not, a tenth of the clients leave: private memory after 10,000 requests is within
    4 MB of that after 2,000 (a tenth of both in an ordinary run), the cap of the cache holds, nothing is left held."""
    total = 10_000 if TORTURE else 1_000
    rng = random.Random(1)
    words = ["alpha", "beta", "gamma", "delta", "one", "two", "three"]
    with Server("--prompt-cache", 0.004, "--kv-budget", 0.03) as s:
        cap = s.stats()["prompt_cache"]["max_bytes"]

        def one(i):
            body = {"prompt": " ".join(rng.choice(words) for _ in range(rng.randrange(2, 60))) + str(i), "max_tokens": 4,
                    "stream": i % 2 == 0}
            if i % 10 == 3:
                c = s.connect()
                c.sendall(rig.request(RAW, {**body, "max_tokens": 400, "ignore_eos": True}))
                time.sleep(0.002)
                c.close()
                return
            assert s.post(RAW, body).status_code == 200

        figures = []
        with ThreadPoolExecutor(4) as pool:
            for upto in (total // 5, total):
                done = 0 if not figures else total // 5
                for f in [pool.submit(one, i) for i in range(done, upto)]:
                    f.result()
                st = s.wait_idle()
                assert st["prompt_cache"]["bytes"] <= cap and st["engine"]["pages_held_bytes"] == 0
                figures.append(s.private_kb())
        print(f"private memory: {figures[0]} kB after {total // 5}, {figures[1]} kB after {total} requests")
        assert figures[1] - figures[0] < 4096, figures
        s.alive()


def megabytes(card, name):
    value, unit = re.search(rf"{name} ([\d.]+) (\w+)", card).groups()
    return float(value) * {"bytes": 1e-6, "KB": 1e-3, "MB": 1, "GB": 1e3}[unit]


@pytest.mark.skipif(rig.SANITIZED, reason="a sanitizer's memory is not the program's")
def test_b107_peak_of_prefill(long_model):
    """B-107: a prompt of 16,000 tokens (a quarter in an ordinary run) in chunks of 512: the peak stays within what the card says, and 10 %, and what the
    program and the text of the request take (12 MB)."""
    with Server("--prefill-chunk", 512, "--kv-budget", 0.02, model=long_model) as s:
        for line in s.process.stdout:
            s.card += line
            if "context" in line:
                break
        said = sum(megabytes(s.card, name) for name in ("weights", "scratch", "KV pool"))
        before = s.private_kb() / 1e3
        n = 16000 if TORTURE else 4000
        assert s.raw("@!" * (n // 2), max_tokens=1)["usage"]["prompt_tokens"] == n
        files = int(re.search(r"RssFile:\s+(\d+)", open(f"/proc/{s.process.pid}/status").read())[1])
        peak = (s.peak_kb() - files) / 1e3
        print(f"said {said:.1f} MB, private before {before:.1f} MB, peak {peak:.1f} MB")
        assert peak < 1.1 * said + 12
        s.alive()


# --- loading ---

def edit_header(path, change, cut=0):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    text = change(data[8:8 + n].decode()).encode()
    body = data[8 + n:]
    path.write_bytes(struct.pack("<Q", len(text)) + text + (body[:-cut] if cut else body))


def swap(name, f):
    def change(text):
        h = json.loads(text)
        f(h[name]["data_offsets"])
        return json.dumps(h)
    return change


def overlap(o):
    o[0], o[1] = 0, o[1] - o[0]


def twice(text):
    first = json.dumps("model.norm.weight")
    h = json.loads(text)
    return text[:text.rindex("}")] + f", {first}: {json.dumps(h['model.norm.weight'])}}}"


def test_b110_broken_files(tmp_path):
    """B-110: overlap, hole, a name twice, a missing last byte, an index that names a shard that is not there, a tensor in
    another shard than it says: refused, saying what is wrong, by the command line too (B-110 over the CLI)."""
    name = "model.layers.1.mlp.up_proj.weight"

    def hole(path):
        edit_header(path, lambda text: json.dumps({k: ({**v, "data_offsets": [o + 8 for o in v["data_offsets"]]} if k != "__metadata__" else v)
                                                   for k, v in json.loads(text).items()}))
        path.write_bytes(path.read_bytes() + b"\0" * 8)

    def index(change):
        def do(path):
            file = path.parent / "model.safetensors.index.json"
            v = json.loads(file.read_text())
            change(v["weight_map"])
            file.write_text(json.dumps(v))
        return do

    def wrong_shard(path):
        tensors = rig.read_safetensors(path)
        rig.write_safetensors(path.parent / "b.safetensors", {"x": tensors.pop("model.norm.weight")})
        rig.write_safetensors(path, tensors)
        index(lambda m: m.update({"model.norm.weight": "b.safetensors"}))(path)

    cases = (("overlap", lambda p: edit_header(p, swap(name, overlap)), "overlap"), ("hole", hole, "hole|gap|belong"),
             ("twice", lambda p: edit_header(p, twice), "duplicate|twice"), ("cut", lambda p: edit_header(p, lambda t: t, 1), r"\d+ of \d+|incomplete"),
             ("missing", index(lambda m: m.update({name: "model-00002.safetensors"})), "model-00002.safetensors"),
             ("wrong", wrong_shard, "model.norm.weight"))
    for label, change, words in cases:
        model = rig.copy_model(tmp_path / label)
        change(model / "model.safetensors")
        p = rig.run("generate", model, "--prompt", "a", "--max-tokens", 1)
        assert p.returncode not in (0, -6, -11) and re.search(words, p.stderr), (label, p.returncode, p.stderr)


def dequantised(tensors, module, bits, group):
    """Drops module.weight/scales/biases for a plain bf16 weight of the same values."""
    shape, packed = tensors[module + ".weight"][1], tensors[module + ".weight"][2]

    def floats(t):
        return [struct.unpack("<f", b"\0\0" + t[2][i:i + 2])[0] for i in range(0, len(t[2]), 2)]

    scales, biases = floats(tensors.pop(module + ".scales")), floats(tensors.pop(module + ".biases"))
    words = struct.unpack(f"<{len(packed) // 4}I", packed)
    per_word, n_in = 32 // bits, shape[1] * 32 // bits
    values = []
    for i in range(shape[0] * n_in):
        q = words[i // per_word] >> (bits * (i % per_word)) & ((1 << bits) - 1)
        values.append(scales[i // group] * q + biases[i // group])
    tensors[module + ".weight"] = ["BF16", [shape[0], n_in], rig.bf16(values)]


def test_b113_overrides_by_layer(tmp_path):
    """B-113: per-layer bits and groups under the path names that exporters write, and a layer that is not quantised: all load
    and say the same; a width that the packed shape contradicts is refused with the tensor and both widths."""
    config = json.loads((rig.TINY / "qwen3/config.json").read_text())
    own = config["quantization"]
    plain = json.loads(rig.run("generate", rig.TINY / "qwen3", "--prompt", "hello", "--temp", 0, "--max-tokens", 16, "--json").stdout)
    for label, prefix in (("a", "model.language_model."), ("b", "language_model.model.")):
        q = {k.replace("model.", prefix, 1) if isinstance(v, dict) else k: v for k, v in own.items()}
        model = rig.copy_model(tmp_path / label, "qwen3", config={"quantization": q, "quantization_config": q})
        p = rig.run("generate", model, "--prompt", "hello", "--temp", 0, "--max-tokens", 16, "--json")
        assert p.returncode == 0, (prefix, p.stderr)
        assert json.loads(p.stdout)["ids"] == plain["ids"]
    module = "model.layers.0.self_attn.q_proj"
    q = {**own, module: False}
    model = rig.copy_model(tmp_path / "false", "qwen3", config={"quantization": q, "quantization_config": q},
                           tensors=lambda t: dequantised(t, module, 4, 64))
    p = rig.run("generate", model, "--prompt", "hello", "--temp", 0, "--max-tokens", 4, "--json")
    assert p.returncode == 0, p.stderr
    got = json.loads(p.stdout)
    assert got["ids"][0] == plain["ids"][0] and abs(got["logprobs"][0] - plain["logprobs"][0]) < 0.1
    q = {**own, "model.layers.0.mlp.up_proj": {"group_size": 64, "bits": 6}}
    p = rig.run("generate", rig.copy_model(tmp_path / "wrong", "qwen3", config={"quantization": q, "quantization_config": q}), "--prompt", "a")
    assert p.returncode not in (0, -6, -11)
    assert "layers.0.mlp.up_proj" in p.stderr and re.search(r"\b6\b", p.stderr) and re.search(r"\b4\b", p.stderr), p.stderr


# --- names and doors ---

def test_b151_hosts(llama):
    """B-151 B-152: on loopback without a key only loopback names are answered, on every method and path; the refusal names
    the host and the flag; --allow-host opens more."""
    def ask(s, host, method="GET", path="/v1/models"):
        line = b"" if host is None else b"Host: " + host.encode() + b"\r\n"
        return s.exchange(f"{method} {path} HTTP/1.1\r\n".encode() + line + b"Content-Length: 0\r\n\r\n")

    for host in ("evil.test:8080", ":8080", "", None, "localhost.evil.test", "127.0.0.1.evil.test", "x.tunnel.test", "0.0.0.0"):
        for method, path in (("GET", "/v1/models"), ("GET", "/health"), ("GET", "/stats"), ("POST", RAW), ("GET", "/"), ("OPTIONS", RAW), ("GET", "/no")):
            assert ask(llama, host, method, path)[0] in (400, 403), (host, path)
    for host in ("[::1]:8080", "127.0.0.1", "LOCALHOST", "localhost:1", "127.0.0.1:99"):
        assert ask(llama, host)[0] == 200, host
    message = json.loads(ask(llama, "x.tunnel.test")[2])["error"]["message"]
    assert "x.tunnel.test" in message and "--allow-host" in message
    with Server("--allow-host", "x.tunnel.test", "--allow-host", "*.ok.test") as s:
        assert [ask(s, h)[0] for h in ("x.tunnel.test", "x.tunnel.test:443", "a.ok.test", "y.tunnel.test", "localhost")] == [200, 200, 200, 403, 200]


def test_b154_preflight():
    """B-154: OPTIONS needs no key and echoes the headers that SDKs ask for; the call itself needs the key; a foreign page gets
    no permission and may not write."""
    wanted = "authorization, x-stainless-os, anthropic-version, x-api-key"
    with Server("--api-key", "secret", "--allow-origin", "https://app.test") as s:
        for origin in ("http://localhost:3000", "http://127.0.0.1:5173", "https://app.test"):
            r = s.http.options(RAW, headers={"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted})
            assert r.status_code == 204 and r.headers["access-control-allow-origin"] == origin
            assert r.headers["access-control-allow-headers"] == wanted and "POST" in r.headers["access-control-allow-methods"]
            body = {"prompt": "a", "max_tokens": 1}
            assert s.post(RAW, body, headers={"Origin": origin}).status_code == 401
            r = s.post(RAW, body, headers={"Origin": origin, "x-api-key": "secret"})
            assert r.status_code == 200 and r.headers["access-control-allow-origin"] == origin
        r = s.http.options(RAW, headers={"Origin": "https://evil.test", "Access-Control-Request-Method": "POST"})
        assert r.status_code == 403 and "access-control-allow-origin" not in r.headers
        r = s.post(RAW, body, headers={"Origin": "https://evil.test", "x-api-key": "secret"})
        assert r.status_code == 403 and "access-control-allow-origin" not in r.headers


def test_b155_names_are_never_paths(llama, tmp_path):
    """B-155: whatever `model` and `adapter` name, nothing of that name is opened: a FIFO that would block whoever opens it
    stands at the path."""
    fifo = tmp_path / "config.json"
    os.mkfifo(fifo)
    for name in ("../../etc/passwd", "a/../../b", "..%2fx", "C:\\x", "a\0b", "/tmp/x", str(tmp_path), str(fifo)):
        r = llama.post(RAW, {"prompt": "a", "max_tokens": 1, "model": name})
        assert r.status_code in (200, 400) and (r.status_code == 400 or r.json()["model"] == "llama")
        assert llama.post(RAW, {"prompt": "a", "max_tokens": 1, "adapter": name}).status_code == 400
        assert llama.post(CHAT, {"messages": HELLO, "adapters": name}).status_code == 400
    llama.alive()


def test_b158_window_is_the_models(tmp_path):
    """B-158: a model that says 8192 takes a prompt of 5000 tokens whole, without any option; the card names the window; what
    does not fit is 400 with both counts and is never cut."""
    with Server(model=rig.copy_model(tmp_path, config={"max_position_embeddings": 8192})) as s:
        assert "8192 tokens" in next(line for line in s.process.stdout if " context " in line)
        assert s.raw("@!" * 2500, max_tokens=1)["usage"]["prompt_tokens"] == 5000
        assert s.get("/v1/models").json()["data"][0]["context_window"] == 8192
        e = s.refused(RAW, {"prompt": "@!" * 4100, "max_tokens": 1}, "8192")
        assert e["code"] == "context_length_exceeded" and "8200" in e["message"]
        s.refused(CHAT, {"messages": [{"role": "user", "content": "@!" * 4100}]}, "8192")
        s.alive()
