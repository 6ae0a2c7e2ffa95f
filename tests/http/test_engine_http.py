"""What the engine promises and only HTTP shows (ENG 2.1, 2.6 to 2.9): lanes, batching without a trace in the bits, queues,
cancellation, seeds, penalties, log-probabilities, stop texts, the prompt cache. The model is a tiny random checkpoint: what
it says is noise; that it always says the same is the point."""
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
TINY = ROOT / "tests/golden/tiny"
CHAT, RAW = "/v1/chat/completions", "/v1/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
FIXED = {**HELLO, "seed": 5, "temperature": 1.3, "max_tokens": 24, "ignore_eos": True, "logprobs": True}


class Server:
    """mlx-bun serve on a free port, ready when constructed."""

    def __init__(self, *flags, model=TINY / "llama", env=None):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
        self.errors = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([MLX_BUN, "serve", str(model), "--port", "0", *map(str, flags)], stdout=subprocess.PIPE,
                                  stderr=self.errors, text=True, env={**clean, **(env or {})})
        self.card = ""
        for line in self.p.stdout:
            self.card += line
            if "-d '" in line:
                break
        found = re.search(r"url +(http://127.0.0.1:(\d+))/v1", self.card)
        assert found, self.read_errors()
        self.url, self.port = found[1], int(found[2])

    def read_errors(self):
        self.errors.seek(0)
        return self.errors.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.wait(timeout=300)
        self.p.stdout.close()
        self.errors.close()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as f:
            return json.load(f)

    def raw(self, body, path=CHAT):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(r, timeout=300) as f:
                return f.status, f.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()

    def post(self, body, path=CHAT):
        code, text = self.raw(body, path)
        assert code == 200, (code, text)
        return json.loads(text)

    def refuses(self, body, words, path=CHAT):
        code, text = self.raw(body, path)
        assert code == 400 and words in json.loads(text)["error"]["message"], (code, text)

    def open(self, body, path=CHAT):
        """A request whose answer nobody reads yet."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        data = json.dumps(body).encode()
        s.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
        return s

    def wait(self, what, seconds=120):
        """Until what(stats) holds; the stats."""
        end = time.monotonic() + seconds
        while True:
            stats = self.get("/stats")
            if what(stats):
                return stats
            assert time.monotonic() < end, stats
            time.sleep(0.02)


def drawn(answer):
    """[(id, log-probability)] of choice 0."""
    return [(t["id"], t["logprob"]) for t in answer["choices"][0]["logprobs"]["content"]]


def text_of(answer):
    return answer["choices"][0]["message"]["content"]


def chunks(text):
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [json.loads(e) for e in events[:-1]]


def streamed(text):
    return [c["choices"][0]["delta"].get("content") or "" for c in chunks(text) if c["choices"]]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def variant(folder, of="llama", **patches):
    """A copy of a tiny checkpoint with entries of its JSON files changed: config={...}, tokenizer_config={...}."""
    shutil.copytree(TINY / of, folder)
    for name, changes in patches.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s


@pytest.fixture(scope="module")
def serial():
    with Server("--batch", "1", "--prompt-cache", "0") as s:
        yield s


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """A context so long that a request without a limit runs for many seconds."""
    return variant(tmp_path_factory.mktemp("long") / "llama", config={"max_position_embeddings": 1 << 20})


FOREVER = {**HELLO, "ignore_eos": True, "stream": True, "temperature": 0}
WHOLE = {**FOREVER, "stream": False}  # never parked: nothing of it waits for its client


# --- 2.1 execution model ---

SHAPES = [
    FIXED,
    {**FIXED, "temperature": 0, "max_tokens": 60},
    {**FIXED, "messages": [{"role": "user", "content": "a longer prompt " * 40}], "top_p": 0.9, "top_k": 40},
    {**FIXED, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4, "seed": 6},
    {**FIXED, "min_p": 0.02, "xtc_probability": 0.6, "xtc_threshold": 0.05, "logit_bias": {"40": 3, "41": -100}, "seed": 7},
    {**FIXED, "stop": ["qqqq", "zzzz"], "top_logprobs": 3, "seed": 8},
    {**FIXED, "messages": [{"role": "system", "content": "s"}, *HELLO["messages"]], "max_tokens": 90, "seed": 9},
]


@pytest.fixture(scope="module")
def alone(serial):
    """Each shape by itself on a server that runs one generation at a time and keeps no prefix."""
    answers = [serial.post(shape) for shape in SHAPES]
    assert all(a["usage"]["lane"] == "serial" for a in answers)
    return [drawn(a) for a in answers]


def test_eng010_alone_on_the_scheduler(server, alone):
    """ENG-007, ENG-008, ENG-010, ENG-013: no option of a request changes where it runs; alone it has the serial bits."""
    for shape, want in zip(SHAPES, alone):
        answer = server.post(shape)
        assert drawn(answer) == want and answer["usage"]["lane"] == "batched"


@pytest.mark.parametrize("gap_ms", [0, 1, 7])
def test_eng011_crowds_leave_no_trace(server, alone, gap_ms):
    """ENG-003, ENG-004, ENG-005, ENG-009, ENG-011, ENG-015, ENG-016, ENG-071: rows that share steps have the bits of their solo runs,
    whenever they arrive; lane and seed say the same under load."""
    def one(i):
        time.sleep(i * gap_ms / 1000)
        return server.post(SHAPES[i % len(SHAPES)])

    with ThreadPoolExecutor(21) as pool:
        answers = list(pool.map(one, range(21)))
    for i, answer in enumerate(answers):
        assert drawn(answer) == alone[i % len(SHAPES)]
        assert answer["usage"]["lane"] == "batched"


def test_eng003_rows_share_steps(long_model):
    """ENG-003, ENG-009: a second request makes a batch: both run at once. With --batch 1 one runs, the other waits (ENG-012)."""
    for batch, active, pending in (("8", 2, 0), ("1", 1, 1)):
        with Server("--batch", batch, model=long_model) as s:
            pair = [s.open(WHOLE), s.open(WHOLE)]
            s.wait(lambda st: (st["batch"]["active_rows"], st["batch"]["pending_rows"]) == (active, pending))
            for c in pair:
                c.close()


def test_eng012_batch_1_under_load(serial, alone):
    """ENG-012: one generation at a time, output independent of other traffic."""
    with ThreadPoolExecutor(14) as pool:
        for i, answer in enumerate(pool.map(serial.post, SHAPES * 2)):
            assert drawn(answer) == alone[i % len(SHAPES)] and answer["usage"]["lane"] == "serial"


@pytest.mark.parametrize("family", ["llama", "llama-bf16", "qwen2", "qwen3", "gemma3"])
def test_eng001_families_need_no_flag(family):
    """ENG-001, ENG-017, ENG-052, ENG-056: one path for every family, chosen by the checkpoint alone; a prompt of more than four
    tokens, in pieces of four or whole, gives the same bits; the lane is reported on both routes."""
    seen = []
    for flags in ([], ["--prefill-chunk", "4"], ["--batch", "1"]):
        with Server(*flags, model=TINY / family) as s:
            answer = s.post(FIXED)
            lane = "serial" if "--batch" in flags else "batched"
            assert answer["usage"]["lane"] == lane
            assert s.post({"prompt": "abc", "max_tokens": 1}, RAW)["usage"]["lane"] == lane
            seen.append(drawn(answer))
    assert seen[0] == seen[1] == seen[2] and len(seen[0]) == 24


@pytest.mark.parametrize("family", ["gemma3", "gemma4", "gemma4-kv", "gemma4-moe"])
def test_eng036_windows_wrap_and_rows_join_late(family):
    """ENG-036, T4.02, MOD-011, MOD-016, MOD-017: prompts and answers longer than the window, six at a time in three rows and pieces of
    seven, each joining as another ends; then again over what the prompt cache has: the bits of each alone."""
    bodies = [{**FIXED, "messages": [{"role": "user", "content": "one two three four five " * (2 + 3 * i)}], "seed": i,
               "max_tokens": 20 + 7 * i} for i in range(6)]
    with Server("--batch", "1", model=TINY / family) as s:
        alone = [drawn(s.post(b)) for b in bodies]
    with Server("--batch", "3", "--prefill-chunk", "7", model=TINY / family) as s:
        for warm in (False, True):
            with ThreadPoolExecutor(6) as pool:
                answers = list(pool.map(s.post, bodies))
            assert [drawn(a) for a in answers] == alone
            cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
            assert not warm or min(cached) > 16
    assert len({str(a) for a in alone}) == 6


def test_eng018_rows_go_to_their_own_stream(server):
    """ENG-018: streams that run together carry each its own text."""
    bodies = [{**FIXED, "seed": 100 + i, "max_tokens": 10 + 5 * i} for i in range(8)]
    want = [text_of(server.post(b)) for b in bodies]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda b: server.raw({**b, "stream": True})[1], bodies))
    assert ["".join(streamed(g)) for g in got] == want and len(set(want)) == 8


# --- 2.6 queues, limits, cancellation ---

def status_of(sock, seconds):
    sock.settimeout(seconds)
    try:
        return int(sock.recv(16).split()[1])
    except (TimeoutError, socket.timeout):
        return None


def test_eng043_queues_hold_64(long_model):
    """ENG-043: one runs, 64 wait at the engine and 64 for preparation at most; the rest is 429 before a stream opens. When the
    clients leave, the places are free again (ENG-046)."""
    with Server("--batch", "1", model=long_model) as s:
        first = s.open(FOREVER)
        assert status_of(first, 60) == 200
        crowd = [s.open({**FOREVER, "stream": i % 2 == 0}) for i in range(200)]
        stats = s.wait(lambda st: st["http"]["status_4xx"] >= 200 - 1 - 2 * 64)
        # One whose client does not read is parked and leaves the slot: the place in it and the 64 that wait are what is bounded.
        assert stats["batch"]["active_rows"] + stats["batch"]["pending_rows"] <= 1 + 64
        codes, end = [None] * len(crowd), time.monotonic() + 120
        while codes.count(429) < 200 - 1 - 2 * 64:
            assert time.monotonic() < end, codes
            codes = [code or status_of(c, 0.01) for code, c in zip(codes, crowd)]
        assert codes.count(429) <= 200 - 64
        assert set(codes) <= {429, 200, None}
        for c in [first, *crowd]:
            c.close()
        s.wait(lambda st: st["batch"]["active_rows"] == 0 and st["batch"]["pending_rows"] == 0)
        assert s.post({**HELLO, "max_tokens": 2})["usage"]["completion_tokens"] >= 1


def test_eng047_waiting_client_leaves(long_model):
    """ENG-046, ENG-047: one that waits is gone from the queue at once, the running one goes on."""
    with Server("--batch", "1", model=long_model) as s:
        running = s.open(WHOLE)
        s.wait(lambda st: st["batch"]["active_rows"] == 1)
        waiting = [s.open({**FOREVER, "stream": stream}) for stream in (True, False)]
        s.wait(lambda st: st["batch"]["pending_rows"] == 2)
        for c in waiting:
            c.close()
        stats = s.wait(lambda st: st["batch"]["pending_rows"] == 0)
        assert stats["batch"]["active_rows"] == 1
        running.close()


def test_eng048_running_client_leaves(long_model):
    """ENG-048: a running generation ends within steps of its client's leaving, in decode and in prefill."""
    with Server("--prefill-chunk", "16", model=long_model) as s:
        for body in (FOREVER, {**FOREVER, "messages": [{"role": "user", "content": "word and word " * 20000}]}):
            before = s.get("/stats")["engine"]["cancelled"]
            c = s.open(body)
            s.wait(lambda st: st["batch"]["active_rows"] == 1)
            c.close()
            stats = s.wait(lambda st: st["batch"]["active_rows"] == 0)
            assert stats["engine"]["cancelled"] == before + 1 and stats["engine"]["pages_held_bytes"] == 0


def test_eng044_what_needs_preparation_later(server):
    """ENG-044, ENG-045, ENG-049: media are not in this version, an adapter must be mounted, a grammar must be right: refused by
    name before anything is queued."""
    before = server.get("/stats")["batch"]["submitted_rows"]
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    server.refuses({"messages": [{"role": "user", "content": [part]}]}, "image_url")
    server.refuses({**HELLO, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "strng"}}}}, "response_format")
    server.refuses({**HELLO, "guided_regex": "(a"}, "guided_regex")
    server.refuses({**HELLO, "adapter": "a"}, "adapter")
    assert server.raw({"id": "x", "path": "/nonexistent"}, "/v1/adapters")[0] == 400
    assert server.get("/stats")["batch"]["submitted_rows"] == before


# --- 2.7 prefill ---

def test_eng053_rows_outgrow_the_pool(server):
    """ENG-053, ENG-092, API-320: nothing is checked or refused while rows grow: four that do not fit together all reach their length, with
    the bits that they have in a large pool."""
    bodies = [{**FIXED, "seed": i, "max_tokens": 700, "messages": [{"role": "user", "content": f"{i} begins"}]} for i in range(4)]
    want = [drawn(server.post(b)) for b in bodies]
    with Server("--kv-budget", "0.001", "--prompt-cache", "0.0001") as s:
        with ThreadPoolExecutor(4) as pool:
            got = list(pool.map(s.post, bodies))
        assert [drawn(g) for g in got] == want
        stats = s.get("/stats")["engine"]
        assert stats["preempted"] > 0 and stats["failed"] == 0


# --- 2.8 sampling ---

@pytest.mark.parametrize("field,value", [
    ("temperature", 0.2), ("top_p", 0.3), ("top_k", 2), ("seed", 77), ("min_p", 0.5), ("logit_bias", {"40": 100}),
    ("repetition_penalty", 3.0), ("presence_penalty", 9.0), ("frequency_penalty", 9.0), ("max_tokens", 5),
    ("max_completion_tokens", 5),
])
def test_cfg021_fields_of_a_request(server, field, value):
    """CFG-021, ENG-064, ENG-065: each field of a request changes what is drawn, on chat and on raw completions."""
    assert drawn(server.post({**FIXED, field: value})) != drawn(server.post(FIXED))
    raw = {k: v for k, v in FIXED.items() if k != "messages"}
    a, b = (server.post({**raw, "prompt": "hello", **more}, RAW)["choices"][0] for more in ({}, {field: value}))
    assert a != b


def test_cfg021_fields_that_need_another(server):
    """CFG-021, ENG-063, ENG-066 to ENG-068, ENG-069: XTC and the windows act with their partner only; penalties are off by default."""
    plain = drawn(server.post(FIXED))
    xtc = {**FIXED, "xtc_probability": 1, "xtc_threshold": 0.01}
    assert drawn(server.post(xtc)) != plain
    assert drawn(server.post({**xtc, "xtc_probability": 0})) == plain
    off = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "min_p": 0, "top_p": 0, "top_k": 0}
    assert drawn(server.post({**FIXED, **off})) == plain
    for name, value in (("repetition", 1.7), ("presence", 2.5), ("frequency", 1.5)):
        body = {**FIXED, f"{name}_penalty": value, "max_tokens": 60, "temperature": 0}
        size = f"{name}_context_size"
        by_size = {n: drawn(server.post({**body, size: n})) for n in (1, 20, 0)}
        assert by_size[20] == drawn(server.post(body))  # 20 is the default
        assert by_size[1] != by_size[20] != by_size[0] != by_size[1]
        assert drawn(server.post({**FIXED, size: 3})) == plain


def test_cfg021_fields_of_the_template(tmp_path):
    """CFG-021: thinking, effort and tools reach the template; adapter takes "none"."""
    template = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% for t in tools or [] %}"
                "{{ t.function.name }} {% endfor %}<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>{% endif %}")
    with Server(model=variant(tmp_path / "m", tokenizer_config={"chat_template": template})) as s:
        def n(**more):
            return s.post({**HELLO, "max_tokens": 1, **more})["usage"]["prompt_tokens"]

        assert n(adapter="none") == n() == n(reasoning_effort="high") == n(chat_template_kwargs={"enable_thinking": True})
        assert n(reasoning_effort="none") == n(chat_template_kwargs={"enable_thinking": False}) > n()
        assert n(tools=[{"type": "function", "function": {"name": "look_up_the_weather", "parameters": {}}}]) > n()


def test_eng060_temperature_0_is_greedy(server):
    """ENG-060, ENG-076: with temperature 0 each token is the first of its top list, whatever the seed."""
    a = server.post({**FIXED, "temperature": 0, "top_logprobs": 5, "seed": 1})
    assert drawn(a) == drawn(server.post({**FIXED, "temperature": 0, "seed": 2}))
    for t in a["choices"][0]["logprobs"]["content"]:
        top = [e["logprob"] for e in t["top_logprobs"]]
        assert len(top) == 5 and top == sorted(top, reverse=True) and top[0] == t["logprob"] and t["top_logprobs"][0]["id"] == t["id"]


def test_eng070_seeds(server):
    """ENG-070, ENG-071: a seed repeats, another differs, none given comes from the time and differs each time."""
    assert drawn(server.post(FIXED)) == drawn(server.post(FIXED)) != drawn(server.post({**FIXED, "seed": 6}))
    free = {k: v for k, v in FIXED.items() if k != "seed"}
    assert len({str(drawn(server.post(free))) for _ in range(4)}) == 4


def test_eng064_logit_bias(server):
    """ENG-064, ENG-065: 100 forces a token, -100 forbids it, fractions count; bad maps are named."""
    assert {i for i, _ in drawn(server.post({**FIXED, "logit_bias": {"77": 200}}))} == {77}
    first = drawn(server.post({**FIXED, "temperature": 0}))[0][0]
    assert drawn(server.post({**FIXED, "temperature": 0, "logit_bias": {str(first): -100}}))[0][0] != first
    for bad in ({"a": 1}, {"1": "b"}, [1], {"1.5": 1}):
        for path, body in ((CHAT, HELLO), (RAW, {"prompt": "x"})):
            server.refuses({**body, "logit_bias": bad}, "logit_bias must be a dict of int to float", path)
    assert server.raw({**HELLO, "max_tokens": 1, "logit_bias": ["ignored there"]}, "/v1/messages")[0] == 200


@pytest.mark.parametrize("fields,words", [
    ({"logprobs": 1}, "logprobs must be of type bool"), ({"logprobs": "true"}, "logprobs must be of type bool"),
    ({"top_logprobs": "3"}, "top_logprobs must be of type int"), ({"top_logprobs": True}, "top_logprobs must be of type int"),
    ({"top_logprobs": 1.5}, "top_logprobs must be of type int"), ({"top_logprobs": -2}, "at least 0"), ({"top_logprobs": 12}, "at most 11"),
])
def test_eng073_types_of_logprobs(server, fields, words):
    """ENG-073, ENG-074: on chat and on raw completions."""
    server.refuses({**HELLO, **fields}, words)
    server.refuses({"prompt": "x", **fields}, words, RAW)


def test_eng075_logprobs(server):
    """ENG-074, ENG-075, ENG-076: taken after the processors and before the samplers; -1 and 0 mean no list; a list wins over
    logprobs alone."""
    body = {**FIXED, "temperature": 0}
    want = drawn(server.post(body))
    assert drawn(server.post({**body, "top_k": 1})) == want         # a sampler does not show in them
    assert drawn(server.post({**body, "logit_bias": {str(want[0][0]): 1}}))[0][1] > want[0][1]  # a processor does
    none = {k: v for k, v in body.items() if k != "logprobs"}
    for top in (-1, 0):
        assert server.post({**none, "top_logprobs": top})["choices"][0].get("logprobs") is None
    assert len(server.post({**none, "top_logprobs": 11})["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 11
    both = server.post({**body, "top_logprobs": 2})["choices"][0]["logprobs"]["content"]
    assert all(len(t["top_logprobs"]) == 2 for t in both)


def test_eng077_streams_carry_no_logprobs(server):
    """ENG-077"""
    code, text = server.raw({**FIXED, "top_logprobs": 2, "stream": True})
    assert code == 200 and "logprob" not in text and "".join(streamed(text)) == text_of(server.post(FIXED))


def test_eng078_stop(server):
    """ENG-002, ENG-078, ENG-079: every stop text that occurs, cut through tokens too, ends the answer before itself; streams never
    show a part of it; the token that completed it is the last one counted."""
    body = {**FIXED, "max_tokens": 40, "temperature": 0.8, "seed": 3}
    full_answer = server.post(body)
    full = text_of(full_answer)
    assert full_answer["choices"][0]["finish_reason"] == "length"
    n_checked = 0
    for at in range(2, len(full) - 4, 3):
        stop = full[at:at + 4]
        if "\ufffd" in stop or not stop.strip() or full.find(stop) < 2:
            continue
        want = full[:full.find(stop)]
        answer = server.post({**body, "stop": stop})
        assert text_of(answer) == want and answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] <= 40
        code, text = server.raw({**body, "stop": ["never seen", stop], "stream": True})
        assert code == 200 and "".join(streamed(text)) == want
        assert [c["choices"][0]["finish_reason"] for c in chunks(text) if c["choices"]][-1] == "stop"
        n_checked += 1
    assert n_checked > 5
    assert text_of(server.post({**body, "stop": ["never", "ever", "seen", "here"]})) == full
    # Held back, then given out: the beginning of a stop text that does not come.
    assert "".join(streamed(server.raw({**body, "stop": full[-3:] + "#", "stream": True})[1])) == full


def test_eng084_extras_on_other_routes(server):
    """ENG-084: /v1/messages and /v1/responses take the extra fields and check them."""
    for path in ("/v1/messages", "/v1/responses"):
        body = {**HELLO, "input": "x", "model": "m", "max_tokens": 1, "max_output_tokens": 1}
        assert server.raw({**body, "repetition_penalty": 1.1, "min_p": 0.1}, path)[0] == 200
        assert server.raw({**body, "repetition_penalty": "much"}, path)[0] == 400


def test_eng085_raw_completions(server):
    """ENG-085: the prompt is tokenised as it stands, without a template; strings only; no cap of its own."""
    prompt = "hello <|im_end|> world"
    n = len(server.post({"content": prompt}, "/tokenize")["tokens"])
    answer = server.post({"prompt": prompt, "max_tokens": 1}, RAW)
    assert answer["usage"]["prompt_tokens"] == n
    for bad in ([1, 2], ["a", "b"], 3, {}):
        server.refuses({"prompt": bad}, "prompt", RAW)
    assert server.post({"prompt": "x", "ignore_eos": True, "temperature": 0}, RAW)["usage"]["total_tokens"] == 4096


# --- 2.9 prompt cache ---

LONG = "The same long beginning of a prompt, said once more. " * 20


def say(text, **more):
    return {**FIXED, "messages": [{"role": "user", "content": text}], **more}


def test_eng087_longest_prefix_is_reused(server):
    """ENG-087, ENG-088, ENG-090, ENG-101: the prefix is counted in usage on both routes and in /stats; only the suffix is computed; the
    donor stays whole; the bits are those of a cold run."""
    with Server() as s:
        cold = s.post(say(LONG + "A"))
        assert cached(cold) == 0
        n = cold["usage"]["prompt_tokens"]
        before = s.get("/stats")
        warm = s.post(say(LONG + "B"))
        after = s.get("/stats")
        assert n - 20 < cached(warm) < n
        prefilled = after["engine"]["tokens_prefilled"] - before["engine"]["tokens_prefilled"]
        assert prefilled <= warm["usage"]["prompt_tokens"] - cached(warm) + 1
        assert after["prompt_cache"]["hits"] == before["prompt_cache"]["hits"] + 1
        assert drawn(warm) == drawn(server.post(say(LONG + "B")))
        again = s.post(say(LONG + "A"))
        assert cached(again) == n - 1 and drawn(again) == drawn(cold)
        s.post({"prompt": LONG, "max_tokens": 1}, RAW)
        assert cached(s.post({"prompt": LONG + "C", "max_tokens": 1}, RAW)) > 0
        cache = s.get("/stats")["prompt_cache"]
        assert {"entries", "bytes", "max_bytes", "hits", "misses"} <= set(cache)
        assert cache["entries"] > 0 and 0 < cache["bytes"] <= cache["max_bytes"] and cache["misses"] >= 1


def test_eng086_capped_lru():
    """ENG-086, ENG-092: bytes stay under the cap whatever comes; the oldest goes first; a prompt larger than the cap still runs."""
    with Server("--prompt-cache", "0.0005") as s:
        cap = s.get("/stats")["prompt_cache"]["max_bytes"]
        assert cap == int(0.0005 * 2**30)
        for i in range(12):
            s.post(say(f"{i} " + LONG, max_tokens=1))
            assert s.get("/stats")["prompt_cache"]["bytes"] <= cap
        assert cached(s.post(say("11 " + LONG, max_tokens=1))) > 100
        assert cached(s.post(say("0 " + LONG, max_tokens=1))) < 50
        big = s.post(say(LONG * 5, max_tokens=3))
        assert big["usage"]["prompt_tokens"] * 512 > cap and big["usage"]["completion_tokens"] == 3
        assert s.get("/stats")["prompt_cache"]["bytes"] <= cap
    with Server("--prompt-cache", "0") as s:
        assert [cached(s.post(say(LONG))) for _ in range(3)] == [0, 0, 0]
        assert s.get("/stats")["prompt_cache"]["bytes"] == 0


def test_eng090_joining_rows_hit(long_model, alone):
    """ENG-089, ENG-090, ENG-091: one that joins a running batch takes the prefix too; rows that ran together leave theirs behind."""
    with Server(model=long_model) as s:
        s.post(say(LONG + "first", max_tokens=2))
        running = s.open(WHOLE)
        s.wait(lambda st: st["batch"]["active_rows"] == 1)
        joined = s.post(say(LONG + "second", max_tokens=8))
        assert cached(joined) > 100
        assert cached(s.post(say(LONG + "second", max_tokens=8))) == joined["usage"]["prompt_tokens"] - 1
        s.wait(lambda st: st["batch"]["active_rows"] == 1)
        running.close()


def test_eng100_turns_reuse_prefixes(server):
    """ENG-091, ENG-100: each turn of a tool loop finds everything up to its own new messages, with no client action."""
    messages = [{"role": "system", "content": "You call tools. " * 10}, {"role": "user", "content": "weather in Rome?"}]
    known = 0
    for turn in range(4):
        answer = server.post({**FIXED, "messages": messages, "max_tokens": 12})
        if turn:
            assert cached(answer) >= known - 2
        known = answer["usage"]["prompt_tokens"]
        messages += [{"role": "assistant", "content": "call weather(Rome)"}, {"role": "tool", "content": f"{turn} degrees"}]


def test_eng095_other_policies_start_fresh():
    """ENG-095: what a request asks of the sampler is no part of the key; the KV format is (another server here: another identity),
    and its bits differ."""
    with Server("--kv-quant", "f32") as a, Server("--kv-quant", "bf16") as b:
        x, y = a.post(say(LONG)), b.post(say(LONG))
        assert cached(x) == cached(y) == 0 and drawn(x) != drawn(y)
        assert cached(a.post(say(LONG, temperature=0, seed=1))) == x["usage"]["prompt_tokens"] - 1
