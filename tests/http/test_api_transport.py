"""spec/api.md sections 1 and 2 over real processes: where the server listens, whom it answers, what it does when clients
leave or signals come, and every error of the list."""
import http.client
import json
import resource
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time

import httpx
import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, LLAMA, RAW, Server


# --- section 1 ---

def test_api001_default_address(tmp_path):
    """API-001: without flags 127.0.0.1:8080; when that port is taken the refusal names it."""
    p = subprocess.Popen([rig.PROGRAM, "serve", str(LLAMA)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=rig.clean_env())
    line = next((x for x in p.stdout if " url " in x), None)
    if line is None:
        assert "localhost:8080" in p.stderr.read() and p.wait(120) != 0
        return
    assert "http://127.0.0.1:8080/v1" in line
    assert httpx.get("http://127.0.0.1:8080/v1/models").status_code == 200
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", 8080), timeout=5)
    p.send_signal(signal.SIGTERM)
    assert p.wait(120) == 0


def test_api002_host_and_port():
    """API-002: --host 0.0.0.0 answers at every address of the machine, --port is taken; loopback alone does neither."""
    port = rig.free_port()
    with Server("--host", "0.0.0.0", "--port", port) as s:
        assert s.port == port
        assert httpx.get(f"http://127.0.0.2:{port}/v1/models").status_code == 200
        assert "WITHOUT A KEY" in s.stderr()
    with Server() as s:
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.2", s.port), timeout=5)


def own_address():
    """An address of this machine that is not loopback; asking the kernel for a way sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return s.getsockname()[0]


def test_b157_management_is_for_this_machine(tmp_path):
    """B-157: open to the network without a key, the start warns and only peers on this machine may mount, fetch or delete; no
    field of a request fetches anything."""
    address = own_address()
    if not address or address.startswith("127."):
        pytest.skip("this machine has no address but loopback")
    manage = [("POST", "/v1/adapters", {"id": "x", "path": str(tmp_path)}), ("DELETE", "/v1/adapters/x", None),
              ("GET", "/v1/adapters/available", None), ("POST", "/downloads", {"repo_id": "org/x"}),
              ("POST", "/downloads/cancel", {"repo_id": "org/x"})]
    env = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path), "MLX_BUN_CACHE": str(tmp_path)}
    with Server("--host", "0.0.0.0", env=env) as s:
        assert "WITHOUT A KEY" in s.stderr()
        far, near = f"http://{address}:{s.port}", f"http://127.0.0.1:{s.port}"
        for method, path, body in manage:
            r = httpx.request(method, far + path, json=body, trust_env=False)
            assert r.status_code == 403 and "this machine" in r.json()["error"]["message"], (path, r.text)
            assert httpx.request(method, near + path, json=body, trust_env=False).status_code not in (401, 403)
        assert httpx.get(far + "/v1/models", trust_env=False).status_code == 200
        for model in ("org/y", "https://127.0.0.1:9/org/y", "org/y@main"):
            r = httpx.post(far + CHAT, json=rig.seeded(CHAT, {"model": model, "messages": HELLO, "max_tokens": 1}), timeout=60, trust_env=False)
            assert r.status_code == 200
        assert "org/y" not in s.get("/downloads").text
    with Server("--host", "0.0.0.0", "--api-key", "k") as s:
        for method, path, body in manage:
            assert httpx.request(method, f"http://{address}:{s.port}{path}", json=body, trust_env=False).status_code == 401


def test_api003_unix_socket(tmp_path):
    """API-003: --unix in place of TCP, over a stale socket file; host and port are ignored."""
    path, port = tmp_path / "sock", rig.free_port()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    p = subprocess.Popen([rig.PROGRAM, "serve", str(LLAMA), "--unix", str(path), "--port", str(port), "--host", "0.0.0.0"],
                         stdout=subprocess.PIPE, text=True, env=rig.clean_env())
    assert any("socket" in line and str(path) in line for line in p.stdout)
    with rig.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost") as c:
        assert c.get("/v1/models").json()["data"][0]["id"] == "llama"
        assert c.post(RAW, json={"prompt": "a", "max_tokens": 2}).status_code == 200
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    p.send_signal(signal.SIGTERM)
    assert p.wait(120) == 0


def test_api004_one_model(llama):
    """API-004 API-036 API-037: a plain server has one model, and no /ws/chat; test_isolate.py has those with engines of their own."""
    assert len(llama.get("/v1/models").json()["data"]) == 1
    r = llama.get("/ws/chat", headers={"Upgrade": "websocket", "Connection": "Upgrade"})
    assert r.status_code == 404 and "message" in r.json()["error"]


def test_api005_model_field_is_ignored(llama):
    """API-005 API-079: on every generating endpoint, whatever it names."""
    for model in ("gpt-4", "", "../../etc/passwd", "org/name", None):
        assert llama.chat(model=model)["model"] == "llama"
        assert llama.raw(model=model)["model"] == "llama"


def test_api006_hub_cache_id(tmp_path):
    """API-006: a hub cache folder is shown as org/name, in /v1/models and in answers."""
    repo = tmp_path / "hub" / "models--some-org--tiny-one"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc123")
    shutil.copytree(LLAMA, repo / "snapshots" / "abc123")
    for model in (repo, repo / "snapshots" / "abc123"):
        with Server(model=model) as s:
            assert s.get("/v1/models").json()["data"][0]["id"] == "some-org/tiny-one"
            assert s.chat()["model"] == "some-org/tiny-one"


def test_api007_unknown_fields(llama):
    """API-007: ignored, whatever their type."""
    extra = {"foo": 1, "user": "u", "metadata": {"a": [1, {}]}, "service_tier": None, "é": "x"}
    assert llama.text(temperature=0, **extra) == llama.text(temperature=0)


def test_api008_bad_json(llama):
    """API-008 API-019: 400 on both endpoints."""
    for path in (CHAT, RAW):
        for body in (b"", b"{", b"[]", b'{"messages": [}', b'{"a": 1} x', b"nul", b"{'a': 1}"):
            status, _, text = llama.exchange(rig.request(path, body))
            assert status == 400 and json.loads(text)["error"]["message"], body


def test_api009_any_content_type(llama):
    """API-009: JSON is taken whatever the Content-Type, also without one."""
    body = {"prompt": "hello", "max_tokens": 2}
    for header in ("", "Content-Type: application/x-www-form-urlencoded\r\n", "Content-Type: text/plain; charset=latin1\r\n"):
        assert llama.exchange(rig.request(RAW, body, headers=header))[0] == 200, header


def test_api010_no_credential(llama):
    """API-010: any key in either header, and none."""
    for headers in ({}, {"Authorization": "Bearer x"}, {"x-api-key": "sk-anything"}, {"Authorization": "Basic zzz"}):
        assert llama.post(RAW, {"prompt": "a", "max_tokens": 1}, headers=headers).status_code == 200


def test_api011_one_generation_stage(llama):
    """API-011: the fields of quality mean the same on every protocol: a chat and the raw text of its template agree."""
    prompt = "<|im_start|>system\nYou are a tiny test model<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    for fields in ({"temperature": 0}, {"seed": 3, "temperature": 1.3, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
                   {"seed": 4, "temperature": 1, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
                   {"seed": 5, "temperature": 1, "xtc_probability": 1, "xtc_threshold": 0.05, "logit_bias": {"40": 3}}):
        fields = {**fields, "max_tokens": 24, "ignore_eos": True}
        assert llama.ids(path=CHAT, **fields) == llama.ids(prompt, **fields)


def test_api012_nothing_after_the_decision(says):
    """API-012: where the stop matched, generation ended: no later token was computed, counted or sent."""
    s = says(b"A", b"B", b"C", b"D", b"E", b"F", b"G", b"H")
    before = s.wait_idle()["engine"]["tokens_decoded"]
    r = s.chat(stop="CD", max_tokens=100)
    assert r["choices"][0]["message"]["content"] == "AB" and r["usage"]["completion_tokens"] == 4
    decoded = s.wait_idle()["engine"]["tokens_decoded"] - before
    assert decoded <= 4  # the first token of an answer is drawn by the prefill


@pytest.mark.parametrize("stream", [False, True])
def test_api013_leaving_the_queue(long_model, stream):
    """API-013 B-043: one request runs under --batch 1, one waits and leaves: it is gone while the other still runs, and what
    it had reserved is free."""
    with Server("--batch", 1, model=long_model) as s:
        body = {"prompt": "hello", "ignore_eos": True, "max_tokens": 120000}
        first = s.connect()
        first.sendall(rig.request(RAW, {**body, "stream": False}))
        while s.stats()["batch"]["active_rows"] == 0:
            time.sleep(0.005)
        c = s.connect()
        c.sendall(rig.request(RAW, {**body, "stream": stream}))
        while s.stats()["batch"]["pending_rows"] != 1:
            time.sleep(0.005)
        c.close()
        end = time.monotonic() + 120
        while (now := s.stats())["batch"]["pending_rows"] != 0 or now["engine"]["cancelled"] != 1:
            assert time.monotonic() < end, now
            time.sleep(0.005)
        assert now["batch"]["active_rows"] == 1 and now["batch"]["submitted_rows"] == 2
        first.close()
        assert s.wait_idle()["engine"]["pages_held_bytes"] == 0


def send_until_seen(s, c, data):
    """Returns when the server has begun with the request."""
    n = s.stats()["http"]["requests"]
    c.sendall(data)
    end = time.monotonic() + 60
    while s.stats()["http"]["requests"] == (n := n + 1):  # the questions count too
        assert time.monotonic() < end


@pytest.mark.parametrize("flags", [(), ("--isolate",)])
def test_api013_reset_before_a_worker(flags):
    """API-013 B-043: clients reset their connections (RST, where a close sends FIN) while their requests wait for a thread that
    parses bodies: connections, descriptors and memory are back, and the server can be stopped."""
    large = rig.request(CHAT, {"messages": [{"role": "user", "content": "x"}] * 100000, "max_tokens": 1})
    small = [(CHAT, {"messages": HELLO}), (RAW, {"prompt": "hello", "stream": True}), ("/tokenize", {"text": "x"})]
    with Server(*flags) as s:
        held = [s.connect() for _ in range(4)]  # two keep the threads busy, two wait
        for c in held:
            send_until_seen(s, c, large)
        for path, body in small:
            c = s.connect()
            send_until_seen(s, c, rig.request(path, body))  # else the reset may come first
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            c.close()
        for c in held:
            rig.read_answer(c)
            c.close()
        end = time.monotonic() + 20
        while (now := s.stats()["http"])["active"] > 1 or now["body_bytes"] > 0:  # this question is the one
            assert time.monotonic() < end, now
            time.sleep(0.02)
        s.alive()
        assert s.stop() == 0


@pytest.mark.parametrize("stream", [False, True])
def test_api014_leaving_prefill_and_decode(long_model, stream):
    """API-014 B-043: work ends at the next boundary of chunks or steps, all pages are back, and it counts as cancelled. The
    steps after the FIN are few against those of a run to the end."""
    with Server("--prefill-chunk", 256, model=long_model) as s:
        prompt = "a b c d e f g h i j k l m n o p " * 4000
        before = rig.leave_after(s, {"prompt": prompt, "max_tokens": 100, "stream": stream}, 0.3)
        now = s.wait_idle()["engine"]
        assert now["cancelled"] == 1 and now["pages_held_bytes"] == 0
        assert now["tokens_prefilled"] < 60000 and now["steps"] - before < 40
        before = rig.leave_after(s, {"prompt": "hello", "ignore_eos": True, "max_tokens": 120000, "stream": stream}, 0.3)
        now = s.wait_idle()["engine"]
        assert now["cancelled"] == 2 and now["pages_held_bytes"] == 0
        assert now["tokens_decoded"] < 60000


def test_b043_half_closed_stream_goes_on(llama):
    """B-043 d: a client that sends FIN while its stream runs and still reads gets all of it."""
    with llama.connect() as c:
        c.sendall(rig.request(RAW, {"prompt": "hello", "max_tokens": 1500, "ignore_eos": True, "stream": True}))
        _, _, data = rig.read_head(c)
        c.shutdown(socket.SHUT_WR)
        while b"[DONE]" not in data:
            more = c.recv(65536)
            assert more, data[-300:]
            data += more
    assert b'"completion_tokens": 1500' in data


def test_api015_signals(long_model):
    """API-015: after SIGTERM a running request finishes and new ones are refused; MLX_BUN_SHUTDOWN_TIMEOUT_MS bounds it."""
    s = Server(model=long_model)
    answer = []
    body = {"prompt": "hello", "ignore_eos": True, "max_tokens": 2000}
    t = threading.Thread(target=lambda: answer.append(httpx.post(f"http://127.0.0.1:{s.port}{RAW}", json=rig.seeded(RAW, body), timeout=60, trust_env=False)))
    t.start()
    while t.is_alive() and s.stats()["batch"]["active_rows"] == 0:
        time.sleep(0.005)
    assert s.stop(signal.SIGTERM) == 0
    t.join()
    assert answer[0].status_code == 200 and answer[0].json()["usage"]["completion_tokens"] == 2000
    s = Server(model=long_model, env={"MLX_BUN_SHUTDOWN_TIMEOUT_MS": "200"})
    c = s.connect()
    c.sendall(rig.request(RAW, {**body, "max_tokens": 120000, "stream": True}))
    rig.read_head(c)
    rest = []

    def read():  # all the while: into a socket that is full no error can be written
        while more := c.recv(65536):
            rest.append(more)

    t = threading.Thread(target=read)
    t.start()
    assert s.stop(signal.SIGINT) == 0
    t.join()
    c.close()
    assert b'"error"' in b"".join(rest) and b"[DONE]" in b"".join(rest)


def test_api016_restart_after_sigkill(tmp_path):
    """API-016 API-017: killed while it works, the server comes up again at the same port and gives the same answer."""
    port = rig.free_port()
    s = Server("--port", port)
    text = s.text(temperature=0)
    c = s.connect()
    c.sendall(rig.request(RAW, {"prompt": "a", "ignore_eos": True, "stream": True}))
    rig.read_head(c)
    assert s.stop(signal.SIGKILL) == -signal.SIGKILL
    c.close()
    with Server("--port", port) as again:
        assert again.port == port and again.text(temperature=0) == text


# --- section 2 ---

def test_api018_error_bodies(llama):
    """API-018: message always, whatever went wrong; unknown paths and methods too (Q1)."""
    answers = [llama.get("/nope"), llama.get(CHAT), llama.post("/v1/models", {}), llama.post(CHAT, {}), llama.post(RAW, {"prompt": 3}),
               llama.post("/v1/embeddings", {"input": "a"}), llama.http.request("DELETE", "/health")]
    assert [a.status_code for a in answers] == [404, 405, 405, 400, 400, 400, 405]
    for a in answers:
        e = a.json()["error"]
        assert isinstance(e["message"], str) and e["message"] and isinstance(e["type"], str)


def test_api020_empty_messages(llama):
    """API-020 API-040: empty, absent and not an array."""
    llama.refused(CHAT, {"messages": []}, "messages must not be empty")
    llama.refused(CHAT, {}, "messages")
    llama.refused(CHAT, {"messages": "hello"}, "messages")


def test_api021_unknown_adapter(llama):
    """API-021 API-078: an adapter that is not mounted, alone or in a stack, on both endpoints; "none" is the base model. API-033:
    unmounting it gives 404. A flag that names no folder ends the start."""
    for name in ("style", "a+b", "../x"):
        llama.refused(CHAT, {"messages": HELLO, "adapter": name}, "adapter")
        llama.refused(RAW, {"prompt": "a", "adapter": name}, "adapter")
    llama.refused(RAW, {"prompt": "a", "adapter": 3}, "adapter must be of type str")
    assert llama.text(adapter="none", temperature=0) == llama.text(temperature=0)
    p = rig.run("serve", LLAMA, "--port", 0, "--adapter", "x")
    assert p.returncode == 3 and "not a folder" in p.stderr
    assert llama.http.delete("/v1/adapters/style").status_code == 404


def test_api022_image_part(llama):
    """API-022 API-031 API-041 API-181 MOD-048: no tower, no media parts, wherever the URL points; text parts are text."""
    for part in ({"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
                 {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                 {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                 {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}):
        e = llama.refused(CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]}, part["type"])
        assert "messages[0].content[1]" in e["message"]
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    assert llama.text(messages=[{"role": "user", "content": parts}], temperature=0) == llama.text(temperature=0)


def test_api023_prompt_cannot_be_built(tmp_path):
    """API-023 B-013: the template raises: 400 with its own message, nothing is generated, the next request is served."""
    with Server(model=rig.TINY / "gemma3") as s:
        two = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
        for stream in (False, True):
            s.refused(CHAT, {"messages": two, "stream": stream}, "Conversation roles must alternate")
        assert s.stats()["engine"]["steps"] == 0 and s.stats()["batch"]["submitted_rows"] == 0
        s.alive()
    model = rig.copy_model(tmp_path, tokenizer={"chat_template": None})
    with Server(model=model) as s:
        s.refused(CHAT, {"messages": HELLO}, "no chat template")
        s.alive()


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_api024_texts_of_section_2(llama, path):
    """API-024 API-025 API-026 API-027 API-028 API-029: the quoted texts, on every endpoint that takes the field."""
    base = {"messages": HELLO, "max_tokens": 1} if path == CHAT else {"prompt": "hello", "max_tokens": 1}
    for bad in ({"x": 1}, {"1.5": 1}, {"1": "2"}, {"1": None}, {"1": True}, [], "a", {"-1": 1}):
        llama.refused(path, {**base, "logit_bias": bad}, "logit_bias must be a dict of int to float")
    for bad in (1, 0, "true", []):
        llama.refused(path, {**base, "logprobs": bad}, "logprobs must be of type bool")
    for bad in ("1", 1.5, True, []):
        llama.refused(path, {**base, "top_logprobs": bad}, "top_logprobs must be of type int")
    for bad in (-2, -100, -10**30):
        llama.refused(path, {**base, "top_logprobs": bad}, "top_logprobs must be at least 0")
    for bad in (12, 20, 10**30):
        llama.refused(path, {**base, "top_logprobs": bad}, "top_logprobs must be at most 11")
    assert "logprobs" not in llama.ok(path, {**base, "top_logprobs": -1})["choices"][0]


def test_api030_over_budget(long_model):
    """REG-121 API-030 API-320: a prompt above the whole pool is refused with type and code, at once, in both modes; a small one runs."""
    with Server("--kv-budget", 0.004, model=long_model) as s:
        prompt = "a b c d e f g h i j k l m n o p " * 2000
        for stream in (False, True):
            e = s.refused(RAW, {"prompt": prompt, "stream": stream}, "")
            assert e["type"] == "memory_admission" and e["code"] == "context_over_budget"
        assert s.stats()["batch"]["kv_budget_bytes"] == 4000000
        s.alive()


def test_api032_unknown_response(llama):
    """API-032: 404, never an answer that forgets the earlier turns."""
    r = llama.post("/v1/responses", {"input": "a", "previous_response_id": "resp_1"})
    assert r.status_code == 404 and "resp_1" in r.json()["error"]["message"]


def test_api034_queue_full(long_model):
    """API-034 API-326 B-103: 429 with Retry-After once the queue is full; the others run or wait; who leaves makes room."""
    body = {"prompt": "hello", "ignore_eos": True, "max_tokens": 1000000}
    with Server("--batch", 2, model=long_model) as s:
        clients = []

        def crowd(n):
            """n more clients; the stats once all are counted and two of them run."""
            for _ in range(n):
                clients.append(s.connect())
                clients[-1].sendall(rig.request(RAW, body))
            end = time.monotonic() + 240
            while True:
                st = s.stats()
                n_counted = st["http"]["status_4xx"] + st["batch"]["pending_rows"] + st["batch"]["active_rows"]
                if n_counted == len(clients) and st["batch"]["active_rows"] == 2:
                    return st
                assert time.monotonic() < end, st
                time.sleep(0.02)

        st = crowd(110)
        n_refused = -1
        while st["http"]["status_4xx"] != n_refused + 1:  # the two that run may have left room behind them
            n_refused = st["http"]["status_4xx"]
            st = crowd(1)
        assert st["batch"]["pending_rows"] <= 64
        late = s.post(RAW, body)
        assert late.status_code == 429 and int(late.headers["retry-after"]) >= 1 and late.json()["error"]["type"] == "rate_limit_error"
        for c in clients:
            c.close()
        s.wait_idle()
        s.alive()


def test_api038_failure_after_the_stream_opened(tmp_path):
    """API-038 API-111: what was said is kept, then one error event, then [DONE]; status 200 stands (Q14). The JSON mode
    gets the status. The row of token C is not a number, so the logits behind it are not."""
    model = rig.chain_model(tmp_path, [b"A", b"B", b"C", b"D"])
    tensors = rig.read_safetensors(model / "model.safetensors")
    t, at = tensors["model.embed_tokens.weight"], rig.vocabulary()[b"C"] * 128
    t[2] = t[2][:at] + b"\xc0\x7f" + t[2][at + 2:]
    rig.write_safetensors(model / "model.safetensors", tensors)
    with Server(model=model) as s:
        events, _ = s.stream(CHAT, {"messages": HELLO})
        assert rig.joined(events[:-1]) in ("ABC", "AB")  # C itself is drawn; whether its text is out is a matter of timing
        assert "non-finite" in events[-1]["error"]["message"] and "choices" not in events[-1]
        assert s.post(CHAT, {"messages": HELLO}).status_code == 500
        s.ok(CHAT, {"messages": HELLO, "max_tokens": 2})
        s.alive()


@pytest.mark.skipif(rig.SANITIZED, reason="a sanitizer ends where an address space does")
def test_api039_allocation_failure(llama):
    """API-039: with no address space left a large request gets the ordinary error; the server goes on."""
    pid = llama.process.pid
    size = int(open(f"/proc/{pid}/statm").read().split()[0]) * resource.getpagesize()
    old = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (size + (4 << 20), old[1]))
    try:
        r = llama.post(RAW, {"prompt": "a b " * 8_000_000, "max_tokens": 1})
        assert r.status_code in (500, 503) and r.json()["error"]["message"]
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, old)
    llama.alive()


def test_keep_alive_connection(llama):
    """API-017: many requests over one connection, errors between them."""
    c = http.client.HTTPConnection("127.0.0.1", llama.port, timeout=30)
    for i in range(30):
        c.request("POST", RAW, json.dumps({"prompt": "a", "max_tokens": 1} if i % 3 else {"prompt": 1}))
        r = c.getresponse()
        r.read()
        assert r.status == (200 if i % 3 else 400)
    c.close()
