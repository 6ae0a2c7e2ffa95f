"""serve --isolate and --model-pool: the engine in a process of its own (API-358 to API-373, ENG-206 to ENG-221).

Engines are told by GET /engine and by their "engine ready" lines; they are killed by SIGKILL. Faults that tests set (base/fault.h) make
the wait of five seconds before a restart short."""
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, LLAMA, RAW, Server

FAST = {"MLX_BUN_TEST_FAULT": "engine_wait=50"}
COMMIT = "0123456789012345678901234567890123456789"
needs_faults = pytest.mark.skipif(not rig.has_fault_points(), reason="a build without fault points")


def wait_for(what, seconds=300):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def engine(s):
    return s.get("/engine").json()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def port_of(pid):
    """Where a process listens that has not said so yet."""
    inodes = {m[1] for fd in Path(f"/proc/{pid}/fd").iterdir() if (m := re.match(r"socket:\[(\d+)\]", os.readlink(fd)))}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return next(int(f[1].split(":")[1], 16) for f in lines if f[3] == "0A" and f[9] in inodes)


def sockets(path):
    """How many there are of a Unix socket: the listener, connections that wait to be accepted, those that are served."""
    return sum(line.endswith(path) for line in Path("/proc/net/unix").read_text().splitlines())


def reap(process):
    process.kill()
    process.communicate()


def kill_engine(s):
    pid = engine(s)["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


def same(a, b):
    """Bodies without what differs from call to call."""
    def strip(text):
        text = re.sub(r'"(id|item_id)": "(chatcmpl|cmpl|msg|resp|call|toolu|rs|fc)[-_][^"]*"', r'"\1": "X"', text)
        return re.sub(r'"(created|created_at|completed_at)": \d+', r'"\1": 0', text)
    assert strip(a.text) == strip(b.text)
    assert a.status_code == b.status_code
    assert a.headers.get("content-type") == b.headers.get("content-type")


@pytest.fixture(scope="module")
def iso():
    with Server("--isolate", env=FAST) as s:
        yield s


# --- the same answers ---

def test_same_bytes():
    """API-358 API-364 CFG-067: every route answers the same bytes through the host as without it, errors and streams too."""
    bodies = [
        (CHAT, {"messages": HELLO, "max_tokens": 6, "seed": 3, "temperature": 0.8, "logprobs": True}),
        (CHAT, {"messages": HELLO, "max_tokens": 6, "stream": True}),
        (CHAT, {"messages": HELLO, "max_tokens": -1}), (CHAT, {"messages": 7}), (CHAT, b"{broken"), (CHAT, b"\xff\xfe"),
        (RAW, {"prompt": "hello", "max_tokens": 5, "n": 2, "seed": 1}), (RAW, {"prompt": "hello", "max_tokens": 5, "stream": True}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 5}), ("/v1/messages", {"messages": HELLO, "max_tokens": 5, "stream": True}),
        ("/v1/messages", {"messages": 1}), ("/v1/messages/count_tokens", {"messages": HELLO}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 5, "store": False}),
        ("/v1/responses", {"input": "hello", "previous_response_id": "resp_none"}),
        ("/v1/embeddings", {"input": "hello"}), ("/tokenize", {"text": "hello w"}), ("/detokenize", {"tokens": [5, 6]}), ("/detokenize", {"tokens": [-5]}),
        ("/v1/adapters", {"id": "x", "path": "/none"}), ("/nothing", {}),
    ]
    with Server("--isolate") as iso, Server() as llama:
        for path, body in bodies:
            kw = {"content": body} if isinstance(body, bytes) else {"json": {"temperature": 0, **body}}
            same(*(s.http.post(path, **kw) for s in (iso, llama)))
        for path in ("/v1/models", "/v1/models/llama", "/v1/models/none", "/health", "/v1/adapters", "/", "/nothing", "/v1/responses/x", CHAT):
            same(iso.get(path), llama.get(path))
            assert iso.http.head(path).headers.get("content-length") == llama.http.head(path).headers.get("content-length")
        same(*(s.http.delete("/v1/adapters/a%2fb%20%C3%A9") for s in (iso, llama)))
        assert sorted(iso.stats()) == sorted(llama.stats()) and "mlx_bun_up 1" in iso.get("/metrics").text
        assert sorted(iso.get("/fit").json()) == sorted(llama.get("/fit").json())


def test_headers(iso):
    """API-364: hop-by-hop headers end at the host, ids and warnings go through; checks of Host, Origin and bodies are the host's."""
    r = iso.post(CHAT, {"messages": HELLO, "max_tokens": 1}, headers={"x-request-id": "my-id", "Connection": "keep-alive, X-Foo", "X-Foo": "1", "TE": "trailers"})
    assert r.status_code == 200 and r.headers["x-request-id"] == "my-id" and "x-foo" not in r.headers
    r = iso.post("/v1/responses", {"input": "a", "max_output_tokens": 1, "tools": [{"type": "web_search"}]})
    assert r.headers["warning"].startswith("199")
    assert iso.get("/stats", headers={"Host": "evil.test"}).status_code == 403
    assert iso.post(CHAT, {"messages": HELLO}, headers={"Origin": "https://evil.test"}).status_code == 403
    ok = iso.post(CHAT, {"messages": HELLO, "max_tokens": 1}, headers={"Origin": "http://localhost:3000"})
    assert ok.headers["access-control-allow-origin"] == "http://localhost:3000"
    import gzip
    body = gzip.compress(json.dumps({"messages": HELLO, "max_tokens": 1}).encode())
    assert iso.http.post(CHAT, content=body, headers={"Content-Encoding": "gzip"}).status_code == 200
    assert iso.http.post(CHAT, content=body[:20], headers={"Content-Encoding": "gzip"}).status_code == 400


def test_large_body_and_keep_alive(iso):
    """API-364: a body of 16 MB goes through whole, on a connection that goes on; many requests share one connection."""
    large = "x" * (16 << 20)
    with iso.connect() as c:
        for body, want in (({"text": "a"}, 200), ({"unknown": large, "text": "hello"}, 200), ({"tokens": [5]}, 400), ({"text": "b"}, 200)):
            c.sendall(rig.request("/tokenize", body))
            status, headers, rest = rig.read_answer(c)
            assert status == want and json.loads(rest)
    wait_for(lambda: iso.stats()["http"]["body_bytes"] == 0)


# --- GET /engine, processes, sockets ---

def test_engine_route(iso, llama):
    """API-360 API-361 API-363 ENG-207 ENG-208 ENG-211 ENG-212 API-037 T12.23: what the host says of its engine; its socket is for its owner alone."""
    e = engine(iso)
    assert e["isolated"] is True and e["restarts"] == 0 and is_alive(e["pid"]) and "pool" not in e
    assert e["response_store"]["max_bytes"] == 32 << 20
    assert f"engine ready pid {e['pid']}" in iso.stderr()
    path = Path(e["socket"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert str(iso.process.pid) in path.parent.name
    assert engine(llama) == {"isolated": False, "pid": llama.process.pid, "restarts": 0, "socket": None, "response_store": engine(llama)["response_store"]}
    r = iso.get("/ws/chat")
    assert r.status_code == 501 and "without" in r.json()["error"]["message"]
    assert llama.get("/ws/chat").status_code == 404
    for s in (iso, llama):
        assert s.post("/admin/drain", {}).status_code == 404  # API-357, ENG-220: on a Unix socket only


def test_arguments_of_the_engine(tmp_path):
    """CFG-017 CFG-044 CFG-068 CFG-108: the engine gets the model's path and every flag but the host's, and the whole environment; the key stays out of its way."""
    with Server("--isolate", "--no-open", "--host", "127.0.0.1", "--batch", "3", "--temp", "0", "--thinking", "false", "--allow-host", "a.test",
                "--allow-host", "b.test", "--api-key", "k", env={"MLX_BUN_P2R_TRACE": "1", "SOME_THING": "x"}) as s:
        auth = {"headers": {"Authorization": "Bearer k"}}
        pid = s.get("/engine", **auth).json()["pid"]
        args = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1:-1]
        names = [a.split("=")[0] for a in args]
        assert {"--batch=3", "--allow-host=a.test", "--allow-host=b.test", f"--model={LLAMA}"} <= set(args)
        assert not {"--isolate", "--port", "--host", "--model-pool", "--no-open"} & set(names) and "--unix" in names
        assert b"SOME_THING=x\0" in Path(f"/proc/{pid}/environ").read_bytes()
        assert s.post(CHAT, {"messages": HELLO, "max_tokens": 1}).status_code == 401
        assert s.post(CHAT, {"messages": HELLO, "max_tokens": 1}, **auth).status_code == 200
        assert s.get("/stats", **auth).json()["batch"]["configured"] == 3
        wait_for(lambda: '"trace_id"' in s.stderr())
        fds = [os.readlink(f"/proc/{pid}/fd/{n}") for n in (0, 3)]
        assert fds[0] == "/dev/null" and fds[1].startswith("socket:")


def test_refusals():
    """CFG-052 CFG-069 CFG-070 API-373 T12.13: flags that do not go together; a model that cannot be loaded ends the program as without --isolate."""
    p = rig.run("serve", LLAMA, "--port", 0, "--isolate", "--unix", "/tmp/x.sock")
    assert p.returncode == 2 and "--unix and --isolate" in p.stderr
    p = rig.run("serve", LLAMA, "--port", 0, "--isolate", "--memory-budget", "0.001")
    q = rig.run("serve", LLAMA, "--port", 0, "--memory-budget", "0.001")
    assert p.returncode == q.returncode != 0 and q.stderr.strip().splitlines()[-1] in p.stderr
    with Server("--model-pool", "2") as s:
        assert "--model-pool does nothing without --isolate" in s.stderr() and engine(s)["isolated"] is False


def test_nothing_is_left(tmp_path):
    """ENG-207: the host's end is the engine's, by a signal, and by force; no socket is left."""
    for sig in (signal.SIGTERM, signal.SIGKILL):
        s = Server("--isolate", env={"TMPDIR": str(tmp_path)})
        pid = engine(s)["pid"]
        assert len(list(tmp_path.glob("mlx-bun-*/engine-0.sock"))) == 1
        assert s.stop(sig) == (0 if sig == signal.SIGTERM else -9)
        wait_for(lambda: not is_alive(pid))
        assert not list(tmp_path.iterdir())


# --- death ---

@needs_faults
def test_death_in_a_stream(scripted):
    """API-365 API-035 ENG-213 ENG-215: every request in flight ends: with 502, or its stream with an error event in its dialect's form; whole events only. Then all goes on."""
    s = scripted({"ids": [5] * 3000, "step_delay_ms": 5, "batch": 8}, "--isolate", env=FAST)
    paths = [(CHAT, {"messages": HELLO}), ("/v1/messages", {"messages": HELLO}), ("/v1/responses", {"input": "a"})]
    begun = threading.Barrier(len(paths) + 1)

    def stream(path, body):
        with s.http.stream("POST", path, json={**body, "stream": True}) as r:
            text, n = "", 0
            for piece in r.iter_text():
                text += piece
                n += 1
                if n == 3:
                    begun.wait(300)
            return text

    with ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(stream, *p) for p in paths]
        plain = [pool.submit(s.post, p, {**b, "max_tokens": 2900}) for p, b in ((CHAT, {"messages": HELLO}), ("/v1/messages", {"messages": HELLO}))]
        begun.wait(300)
        wait_for(lambda: s.stats()["batch"]["active_rows"] == 5)
        old = kill_engine(s)
        chat, message, response = (f.result() for f in streams)
        answers = [f.result() for f in plain]
    for a in answers:
        assert a.status_code == 502 and a.json()["error"]["type"] == "engine_unavailable", a.text
    assert rig.sse_events(chat)[-1]["error"]["type"] == "engine_unavailable"
    events = [json.loads(e.split("data: ", 1)[1]) for e in message.strip().split("\n\n") if not e.startswith(":")]
    assert events[-1]["error"]["type"] == "engine_unavailable" and message.split("\n\n")[-2].startswith("event: error\n")
    events = [json.loads(e.split("data: ", 1)[1]) for e in response.strip().split("\n\n") if not e.startswith(":")]
    assert [e["sequence_number"] for e in events] == list(range(len(events))) and events[-1]["code"] == "engine_unavailable"
    assert s.chat()["usage"]["completion_tokens"] == 8  # waits for the new one
    e = engine(s)
    assert e["restarts"] == 1 and e["pid"] != old
    assert "died by signal 9" in s.stderr()


@needs_faults
def test_reads_are_tried_again(scripted):
    """API-365 ENG-215: a GET that an engine dies over is answered by the next one; a POST is not sent twice. The host's own routes answer all the while (API-358, ENG-206, ENG-209)."""
    s = scripted({"ids": [5] * 3000, "step_delay_ms": 2}, "--isolate", env={"MLX_BUN_TEST_FAULT": "engine_wait=3000"})
    now = engine(s)
    pid, before = now["pid"], sockets(now["socket"])
    os.kill(pid, signal.SIGSTOP)  # requests reach its socket, and nothing answers
    with ThreadPoolExecutor(4) as pool:
        get, head = pool.submit(s.get, "/v1/adapters"), pool.submit(s.http.head, "/v1/adapters")
        post = pool.submit(s.post, "/tokenize", {"text": "a"})
        wait_for(lambda: sockets(now["socket"]) >= before + 3)
        os.kill(pid, signal.SIGKILL)
        assert post.result().status_code == 502
        wait_for(lambda: s.get("/health").status_code == 503)
        assert s.get("/health").json()["error"]["code"] == "engine_unavailable"
        assert s.get("/v1/models").json()["data"][0]["id"] == "llama" and s.get("/v1/responses/none").status_code == 404
        assert s.get("/downloads").status_code == 200 and s.get("/library").status_code == 200 and engine(s)["pid"] is None
        assert get.result().status_code == 200 and head.result().status_code == 200
    s.alive()


@needs_faults
def test_crash_loop():
    """API-367 ENG-213 ENG-214: three restarts within a minute, then it stays away: 502, /health says so, the exit status too. A request that came before waits, and is refused then."""
    s = subprocess.Popen([rig.PROGRAM, "serve", str(LLAMA), "--port", "0", "--isolate"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=rig.clean_env(MLX_BUN_TEST_FAULT="engine_crash=1;engine_wait=20"))
    try:
        err = ""
        for line in s.stderr:
            err += line
            if "not started again" in line:
                break
        assert len(re.findall("died by signal 9", err)) == 4 and len(re.findall("loading, pid", err)) == 4
        port = port_of(s.pid)
        c = rig.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
        r = c.post(CHAT, json={"messages": HELLO})
        assert r.status_code == 502 and r.json()["error"]["type"] == "engine_unavailable"
        r = c.get("/health")
        assert r.status_code == 503 and "restarted" in r.json()["error"]["message"]
        assert c.get("/library").status_code == 200
        s.send_signal(signal.SIGTERM)
        assert s.wait(60) == 15
    finally:
        reap(s)


@needs_faults
def test_engine_thread_dies(scripted):
    """B-106 API-365: an engine whose thread has ended ends its process; who waits gets 502, the next request an answer."""
    s = scripted({"ids": [5] * 2000, "step_delay_ms": 2}, "--isolate", env={"MLX_BUN_TEST_FAULT": "engine_death=40;engine_wait=20"})
    r = s.post(RAW, {"prompt": "a", "max_tokens": 1000})
    assert r.status_code == 502, r.text
    assert s.raw(max_tokens=5)["usage"]["completion_tokens"] == 5 and engine(s)["restarts"] == 1


def test_responses_outlive_the_engine(iso):
    """API-250 ENG-209: stored responses are the host's: they are there while no engine is, and the next one goes on from them; deleted is deleted."""
    a = iso.ok("/v1/responses", {"input": "hello", "max_output_tokens": 3, "instructions": "be brief", "temperature": 0})
    assert len(a["output"]) == 1  # one draw in eight thousand ends at once and says nothing
    streamed = iso.post("/v1/responses", {"input": "b", "max_output_tokens": 2, "previous_response_id": a["id"], "stream": True}).text
    b = re.search(r'"id": "(resp_[0-9a-f]+)"', streamed)[1]
    assert iso.get(f"/v1/responses/{b}").json()["previous_response_id"] == a["id"]  # stored before the last event was sent
    assert engine(iso)["response_store"] == iso.stats()["response_store"] and engine(iso)["response_store"]["entries"] >= 2
    items = iso.get(f"/v1/responses/{b}/input_items?order=asc&limit=2").json()
    assert len(items["data"]) == 2 and items["has_more"]
    before = engine(iso)
    os.kill(before["pid"], signal.SIGKILL)
    assert iso.get(f"/v1/responses/{a['id']}").json() == a
    wait_for(lambda: engine(iso)["pid"] != before["pid"])  # what is sent before the host has seen it is answered 502
    c = iso.ok("/v1/responses", {"input": "c", "max_output_tokens": 2, "previous_response_id": b})
    assert c["instructions"] == "be brief" and c["usage"]["input_tokens"] > a["usage"]["input_tokens"]
    assert iso.http.delete(f"/v1/responses/{b}").json()["deleted"] is True
    assert iso.post("/v1/responses", {"input": "c", "previous_response_id": b}).status_code == 404
    assert engine(iso)["restarts"] == before["restarts"] + 1


# --- clients ---

@needs_faults
@pytest.mark.parametrize("stream", [False, True])
def test_client_abort(scripted, stream):
    """API-364 API-366 ENG-210 ENG-216 T12.22: a client that leaves ends the work in the engine; its answer is 499."""
    s = scripted({"ids": [5] * 4000, "step_delay_ms": 20}, "--isolate")
    with s.connect() as c:
        c.sendall(rig.request(RAW, {"prompt": "a", "max_tokens": 3900, "stream": stream}))
        wait_for(lambda: s.stats()["batch"]["active_rows"] == 1)
    now = s.wait_idle()
    assert now["engine"]["cancelled"] == 1 and now["engine"]["tokens_decoded"] < 3000
    with s.connect() as c:  # closed by half: it still reads
        c.sendall(rig.request(RAW, {"prompt": "a", "max_tokens": 200, "stream": stream}))
        wait_for(lambda: s.stats()["batch"]["active_rows"] == 1)
        c.shutdown(socket.SHUT_WR)
        status, _, rest = rig.read_head(c)
        assert status == (200 if stream else 499)
        if stream:
            while b"[DONE]" not in rest:
                rest += c.recv(65536)
            assert rest.count(b"data: ") >= 200


@needs_faults
def test_slow_reader(scripted):
    """API-364: a client that does not read holds the engine's row up, not the host's memory; it gets every byte once it reads."""
    s = scripted({"ids": [5] * 12000, "n_context": 14000}, "--isolate")
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.port))
        c.settimeout(300)
        c.sendall(rig.request(CHAT, {"messages": HELLO, "max_tokens": 11900, "stream": True, "logprobs": True}))
        wait_for(lambda: s.stats()["batch"]["parked_rows"] == 1)
        held = rig.anonymous_bytes(s.process.pid)
        drawn = s.stats()["engine"]["tokens_decoded"]
        assert drawn < 11000
        assert s.chat()["usage"]["completion_tokens"] == 8
        assert rig.anonymous_bytes(s.process.pid) - held < 8 << 20
        rest = b""
        while b"[DONE]" not in rest[-200:]:
            more = c.recv(1 << 20)
            assert more
            rest += more
        assert len(re.findall(rb'"content": "', rest)) >= 11900


def test_many_streams(iso):
    """API-364: many streams at once, each whole."""
    def one(i):
        text = iso.http.post(RAW, json={"prompt": f"a {i % 7}", "max_tokens": 20, "stream": True, "temperature": 0}).text
        return rig.joined(rig.sse_events(text))
    with ThreadPoolExecutor(24) as pool:
        got = list(pool.map(one, range(70)))
    assert all(got[i] == got[i % 7] for i in range(70))


# --- beginning and ending ---

@needs_faults
def test_requests_before_ready(tmp_path):
    """API-359 ENG-208: what comes while the engine loads waits for it; /health and /engine answer at once, and a client that gives up is let go."""
    script = tmp_path / "s.json"
    script.write_text(json.dumps({"text": "hello"}))
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    s = subprocess.Popen([rig.PROGRAM, "serve", str(LLAMA), "--port", "0", "--isolate", "--scripted", str(hold)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=rig.clean_env())
    try:
        line = s.stderr.readline()
        assert "loading, pid" in line
        port = port_of(s.pid)
        c = rig.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(c.post, CHAT, json={"messages": HELLO}), pool.submit(c.get, "/v1/models"), pool.submit(c.get, "/stats")]
            r = c.get("/health")
            assert r.status_code == 503 and r.json()["error"]["code"] == "engine_loading"
            assert c.get("/engine").json()["isolated"] is True
            with socket.create_connection(("127.0.0.1", port)) as gone:
                gone.sendall(rig.request(RAW, {"prompt": "a", "max_tokens": 100}))
                time.sleep(0.1)
            assert not any(w.done() for w in waiting)
            with open(hold, "w") as f:
                f.write(script.read_text())
            chat, models, stats = (w.result() for w in waiting)
        assert chat.json()["choices"][0]["message"]["content"] == "hello"
        assert models.json()["data"][0]["id"] == "llama"
        assert c.get("/stats").json()["engine"]["finished"] == 1
        s.send_signal(signal.SIGTERM)
        assert s.wait(60) == 0
    finally:
        reap(s)


@needs_faults
def test_graceful_stop(scripted):
    """API-015: the first signal lets running requests finish, the second ends them with an error; new ones are refused."""
    s = scripted({"ids": [5] * 300, "step_delay_ms": 20}, "--isolate")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(s.post, RAW, {"prompt": "a", "max_tokens": 200})
        wait_for(lambda: s.stats()["batch"]["active_rows"] == 1)
        s.process.send_signal(signal.SIGTERM)
        assert run.result().json()["usage"]["completion_tokens"] == 200
    assert s.process.wait(60) == 0
    s = scripted({"ids": [5] * 3000, "step_delay_ms": 20}, "--isolate")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(s.post, RAW, {"prompt": "a", "max_tokens": 2900, "stream": True})
        wait_for(lambda: s.stats()["batch"]["active_rows"] == 1)
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        s.process.send_signal(signal.SIGINT)  # not the same again: two of one kind may arrive as one
        events = rig.sse_events(run.result().text)
    assert "shutting down" in events[-1]["error"]["message"] and s.process.wait(60) == 0


def test_drain(tmp_path):
    """API-357 ENG-219 ENG-220: on a Unix socket: running requests finish, the process ends."""
    path = tmp_path / "s.sock"
    p = subprocess.Popen([rig.PROGRAM, "serve", str(LLAMA), "--unix", str(path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=rig.clean_env())
    try:
        next(line for line in p.stdout if "curl" in line)
        c = rig.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://localhost", timeout=300)
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(c.post, RAW, json={"prompt": "a", "max_tokens": 300, "ignore_eos": True})
            wait_for(lambda: run.done() or c.get("/stats").json()["batch"]["active_rows"] == 1)
            assert c.post("/admin/drain", json={}).json() == {"status": "draining"}
            assert run.result().json()["usage"]["completion_tokens"] == 300
        assert p.wait(120) == 0 and not path.exists()
    finally:
        p.kill()
        p.wait()
        p.stdout.close()


# --- the pool ---

def hub_cache(root, **models):
    """A hub cache with copies of the tiny llama under these names."""
    for name, base in models.items():
        repo = root / f"models--org--{name}"
        (repo / "refs").mkdir(parents=True)
        (repo / "refs" / "main").write_text(COMMIT)
        shutil.copytree(rig.TINY / base, repo / "snapshots" / COMMIT)
    return {"HF_HUB_CACHE": str(root), "MLX_BUN_CACHE": str(root.parent / "own")}


def resident(s):
    return sorted(engine(s)["pool"]["resident"])


def model_of(s, path=CHAT, **body):
    return s.ok(path, {"messages": HELLO, "max_tokens": 2, **body})["model"]


def test_pool(tmp_path):
    """API-004 API-368 API-369 API-370 API-371 API-360 API-361 API-362 ENG-211 ENG-217 ENG-218 ENG-219: exact ids of /v1/models have engines of their own, all else is the default's; the one unused for longest makes room."""
    env = hub_cache(tmp_path / "hub", one="llama", two="llama-bf16", three="llama")
    with Server("--isolate", "--model-pool", "2", model=tmp_path / "hub" / "models--org--one", env=env) as s:
        assert "without --memory-budget" in s.stderr() and "at most 2" in "".join(s.process.stdout.readline() for _ in range(3))
        assert engine(s)["pool"] == {"resident": ["org/one"], "default": "org/one"}
        assert {m["id"] for m in s.get("/v1/models").json()["data"]} == {"org/one", "org/two", "org/three"}
        for name in (None, "", "gpt-4", "org/tw", "two", "org/two ", "ORG/TWO", "org/one"):
            assert model_of(s, model=name) == "org/one"
        assert resident(s) == ["org/one"]
        assert model_of(s, model="org/two") == "org/two" and resident(s) == ["org/one", "org/two"]
        for path, body in ((RAW, {"prompt": "a"}), ("/v1/messages", {}), ("/v1/responses", {"input": "a", "max_output_tokens": 1})):
            assert model_of(s, path, model="org/two", **body) == "org/two"
        assert "org/two makes no" in s.post("/v1/embeddings", {"input": "a", "model": "org/two"}).text
        one = engine(s)["pid"]
        model_of(s)
        model_of(s, model="org/two")  # one is the oldest now
        assert model_of(s, model="org/three") == "org/three"
        wait_for(lambda: resident(s) == ["org/three", "org/two"])
        wait_for(lambda: not is_alive(one) and engine(s)["pid"] is None)  # told when it has been reaped, a moment behind its end
        e = engine(s)
        assert e["pid"] is None and e["restarts"] is None and e["socket"] is None and e["pool"]["default"] == "org/one"
        # looking loads nothing
        assert s.get("/health").status_code == 200 and s.get("/v1/models").json()["data"][0]["id"] == "org/one"
        for path in ("/stats", "/metrics"):
            assert s.get(path).status_code == 503 and s.get(path).json()["error"]["code"] == "engine_not_resident"
        assert resident(s) == ["org/three", "org/two"]
        assert model_of(s) == "org/one" and engine(s)["restarts"] == 0
        wait_for(lambda: resident(s) == ["org/one", "org/three"])


@needs_faults
def test_pool_of_one_while_streaming(tmp_path):
    """API-370 ENG-218: the old model finishes what it streams while the new one loads and answers; it is loaded again when it is asked for."""
    env = hub_cache(tmp_path / "hub", one="llama", two="llama")
    script = tmp_path / "s.json"
    script.write_text(json.dumps({"ids": [5] * 400, "step_delay_ms": 5}))
    with Server("--isolate", "--model-pool", "0", "--scripted", script, model=tmp_path / "hub" / "models--org--one", env=env) as s:
        begun = threading.Event()

        def stream():
            with s.http.stream("POST", RAW, json={"prompt": "a", "max_tokens": 390, "stream": True}) as r:
                text = ""
                for piece in r.iter_text():
                    text += piece
                    begun.set()
                return rig.sse_events(text)

        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(stream)
            assert begun.wait(300)
            assert s.ok(RAW, {"prompt": "a", "max_tokens": 3, "model": "org/two"})["model"] == "org/two"
            again = pool.submit(s.ok, RAW, {"prompt": "b", "max_tokens": 3})
            assert running.result()[-1]["usage"]["completion_tokens"] == 390
            assert again.result()["model"] == "org/one"


def test_concurrent_switches(tmp_path):
    """API-372 ENG-221: many clients ask for three models in a pool of one: cold starts one after the other, and each is answered by the model it named."""
    names = ["org/one", "org/two", "org/three"]
    env = hub_cache(tmp_path / "hub", one="llama", two="llama", three="llama")
    with Server("--isolate", "--model-pool", "1", model=tmp_path / "hub" / "models--org--one", env=env) as s:
        with ThreadPoolExecutor(9) as pool:
            jobs = [pool.submit(model_of, s, model=names[i % 3]) for i in range(18)]
            assert [j.result() for j in jobs] == [names[i % 3] for i in range(18)]
        wait_for(lambda: len(resident(s)) == 1)


@needs_faults
def test_pool_model_that_fails(tmp_path):
    """API-362 API-367: a model that cannot be loaded is a 502 for who asks for it, and nobody else's matter."""
    env = hub_cache(tmp_path / "hub", one="llama", two="llama")
    weights = next((tmp_path / "hub" / "models--org--two" / "snapshots" / COMMIT).glob("*.safetensors"))
    with Server("--isolate", "--model-pool", "2", model=tmp_path / "hub" / "models--org--one", env=env) as s:
        assert model_of(s, model="org/none") == "org/one"
        s.get("/v1/models")
        data = bytearray(weights.read_bytes())
        data[:8] = b"\xff" * 8  # the same size, so that it still counts as whole
        weights.write_bytes(data)
        for _ in range(2):
            r = s.post(CHAT, {"messages": HELLO, "model": "org/two"})
            assert r.status_code == 502 and "could not be started" in r.json()["error"]["message"]
        assert model_of(s) == "org/one" and s.get("/health").status_code == 200
