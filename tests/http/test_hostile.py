"""Hostile clients: readers and senders that stall, half-closed sockets, idle connections by the thousand, headers without end,
requests that end in two places, bodies up to the limit, floods past the queue. Beside each of them an honest client asks for the
same stream again and again. The server must keep its memory within --body-memory, answer the honest client in full with the same
text, give every descriptor back, and live. With MLX_BUN_TORTURE=1: full sizes and the default budget of 512 MB.

Builds with fault points serve the scripted engine, others the tiny checkpoint."""
import gzip
import json
import re
import resource
import select
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import http_rig as rig
from http_rig import CHAT, RAW, TORTURE, Server

BUDGET_MB = 512 if TORTURE else 16
KV_MB = 20  # pages count when they are first written, which may be during an attack
SLACK_MB = 0 if TORTURE else KV_MB + 16  # what a few requests take anyway is no small part of a small budget
# What a sanitizer adds to resident memory, by its own documentation: AddressSanitizer red zones, a shadow and 256 MB of freed blocks
# that it keeps; ThreadSanitizer a shadow and a history of accesses, 5 to 10 times in all.
FACTOR, EXTRA_MB = {None: (1, 0), "asan": (4, 256), "tsan": (10, 0)}[rig.SANITIZER]
HONEST = {"prompt": "hello", "max_tokens": 60, "ignore_eos": True, "stream": True, "temperature": 0}


def pick(small, full):
    return full if TORTURE else small


# --- the server, the honest client, the measure ---

class Honest(threading.Thread):
    """Asks for one stream after the other; `done` counts those that came whole and as the first of them."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.url, self.done, self.wrong, self.quit, self.text = f"http://127.0.0.1:{port}{RAW}", 0, None, False, None

    def run(self):
        with httpx.Client(timeout=300, trust_env=False) as c:
            while not self.quit and self.wrong is None:
                try:
                    r = c.post(self.url, json=HONEST)
                    if r.status_code == 429:  # the queues are full: it asks again, as clients do
                        time.sleep(0.05)
                        continue
                    text = rig.joined(rig.sse_events(r.text)) if r.status_code == 200 else None
                    self.text = self.text or text
                    if text is None or text != self.text:
                        self.wrong = r.text
                    self.done += 1
                except (httpx.HTTPError, AssertionError, ValueError) as e:
                    self.wrong = repr(e)

    def one_more(self, n=1):
        """Waits until n more streams have been asked for and have come."""
        want, end = self.done + n + 1, time.monotonic() + (2400 if rig.SANITIZED else 240)
        while self.done < want and self.wrong is None:
            assert time.monotonic() < end, "the honest client has stopped"
            time.sleep(0.01)
        assert self.wrong is None, self.wrong


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    where = tmp_path_factory.mktemp("hostile")
    flags = ["--kv-budget", KV_MB / 1000, "--prompt-cache", 0.004, "--body-memory", BUDGET_MB, "--client-timeout", 20]
    if rig.has_fault_points():
        script = where / "script.json"
        script.write_text(json.dumps({"ids": [40, 41, 42, 43] * 30000, "n_context": 131072, "batch": 8}))
        flags += ["--scripted", script]
        model = rig.LLAMA
    else:
        model = rig.copy_model(where, config={"max_position_embeddings": 131072})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Server(*flags, model=model) as s:
        s.honest = Honest(s.port)
        s.honest.start()
        s.honest.one_more()
        for path in (CHAT, RAW, "/tokenize"):
            s.post(path, {"messages": rig.HELLO, "prompt": "a", "text": "a", "max_tokens": 2})
        yield s
        s.honest.quit = True
        s.honest.join()
        assert s.process.poll() is None, s.stderr()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def status_kb(s, name):
    return int(re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{s.process.pid}/status").read_text())[1])


def descriptors(s):
    return len(list(Path(f"/proc/{s.process.pid}/fd").iterdir()))


@contextmanager
def under_attack(s):
    """What holds around every attack. The body closes its own sockets."""
    s.honest.one_more()
    base = descriptors(s)
    idle_kb = status_kb(s, "VmRSS")
    Path(f"/proc/{s.process.pid}/clear_refs").write_text("5")  # VmHWM begins anew
    yield
    s.honest.one_more()
    peak_kb = status_kb(s, "VmHWM")
    print(f"resident: {idle_kb} kB before, {peak_kb} kB at most")
    assert peak_kb - idle_kb <= ((BUDGET_MB + SLACK_MB) * FACTOR + EXTRA_MB) * 1024, (idle_kb, peak_kb)
    end = time.monotonic() + 300
    while descriptors(s) > base:
        assert time.monotonic() < end, (base, descriptors(s))
        time.sleep(0.02)
    assert s.process.poll() is None, s.stderr()
    s.alive()


@pytest.fixture
def attack(victim):
    with under_attack(victim):
        yield victim


@contextmanager
def closing():
    """A list of sockets that are closed at the end."""
    sockets = []
    try:
        yield sockets
    finally:
        for c in sockets:
            c.close()


def crowd(s, sockets, n, data=b""):
    for _ in range(n):
        c = s.connect()
        sockets.append(c)
        push(c, data)


def push(c, data):
    """Send what the other side takes; it may close at any point."""
    try:
        c.sendall(data)
    except (ConnectionError, socket.timeout):
        pass


def drain(c, seconds=300):
    """All that comes until the other side closes,  or the time is over."""
    data = b""
    c.settimeout(seconds)
    try:
        while more := c.recv(65536):
            data += more
    except ConnectionError:
        pass
    return data


# --- clients that stall ---

def test_slow_readers(attack):
    """Issue 5: streams and large answers that nobody reads: their rows are parked, their bytes are bounded."""
    stream = rig.request(RAW, {**HONEST, "max_tokens": 120000})
    large = rig.request("/tokenize", {"text": "a b c d " * pick(8000, 8000)})
    with closing() as sockets:
        for data in (stream, large):
            for _ in range(pick(4, 60) if data is stream else pick(40, 1000)):
                c = socket.socket()
                c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                c.connect(("127.0.0.1", attack.port))
                sockets.append(c)
                push(c, data)
        attack.honest.one_more(2)


def test_slow_senders(attack):
    """Issue 5: heads and bodies that never end, a byte at a time or nearly whole: nobody waits for them."""
    head = b"POST " + RAW.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
    nearly = b"Content-Length: 1000000\r\n\r\n" + b" " * 999999
    with closing() as sockets:
        crowd(attack, sockets, pick(30, 700), b"POST /v1/comp")
        crowd(attack, sockets, pick(30, 700), head)
        crowd(attack, sockets, pick(30, 700), head + b"Content-Length: 5000\r\n\r\n{")
        crowd(attack, sockets, pick(30, 700), head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        crowd(attack, sockets, pick(40, 900), head + nearly)
        for _ in range(3):
            for c in sockets:
                push(c, b" ")
        attack.honest.one_more(2)


def test_half_close(attack):
    """Issue 5 B-043: FIN in every part of a request: in the head, in the body, behind a whole request of either mode."""
    whole = rig.request(RAW, {"prompt": "a", "max_tokens": 3, "ignore_eos": True, "stream": True})
    for _ in range(pick(1, 20)):
        for data in (b"", b"GET /health HT", whole[:60], whole[:-5], whole[:-1] + b"\r", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", whole):
            with attack.connect() as c:
                push(c, data)
                c.shutdown(socket.SHUT_WR)
                answer = drain(c)
                if data is whole:
                    assert b"[DONE]" in answer, answer
                elif data.startswith(b"GET /health HTTP"):
                    assert answer.endswith(b'{"status": "ok"}'), answer


def test_idle_connections(attack):
    """Issue 5: thousands of connections that say nothing, above the server's own limit in the full form: a new client gets in."""
    with closing() as sockets:
        crowd(attack, sockets, pick(400, 10000))
        for _ in range(5):
            with httpx.Client(trust_env=False, timeout=60) as c:
                assert c.get(f"http://127.0.0.1:{attack.port}/health").status_code == 200
        attack.honest.one_more()


def test_slow_senders_do_not_keep_others_out():
    """Issue 5: with every place taken by a body that does not come, the oldest go and a new client is answered."""
    part = b"POST " + RAW.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with Server(under=["prlimit", "--nofile=288:288"]) as s, closing() as sockets:  # 32 places
        crowd(s, sockets, 60, part)
        with httpx.Client(trust_env=False, timeout=60) as c:
            assert c.get(f"http://127.0.0.1:{s.port}/health").status_code == 200
        begin = time.monotonic()
        while len(select.select(sockets, [], [], 0)[0]) < 28:  # ended by the server, long before their 30 seconds
            assert time.monotonic() < begin + 120
            time.sleep(0.01)


# --- headers ---

def test_header_bombs(attack):
    """Issue 5: one header without end, many headers, a request line without end, on many connections: 4xx or closed."""
    line = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    bombs = [line + b"X: " + b"a" * 300000, line + b"".join(b"X-%d: b\r\n" % i for i in range(30000)), b"GET /" + b"a" * 300000,
             line + b"a" * 300000, b"\r\n" * 50000, line + b"X: a\r\n" + b" b\r\n" * 60000, b"\x16\x03\x01\x02\x00" + b"\xff" * 5000]
    with closing() as sockets:
        for _ in range(pick(4, 400)):
            for b in bombs:
                c = attack.connect()
                sockets.append(c)
                push(c, b)
        for c in sockets[:len(bombs) - 2]:
            got = drain(c)
            assert not got or re.match(rb"HTTP/1\.[01] (4\d\d|505)", got), got[:200]
        attack.honest.one_more()


BODY = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


def chunks(body):
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


@pytest.mark.parametrize("headers,body", [
    (LENGTH + b"Transfer-Encoding: chunked\r\n", chunks(BODY)),
    (b"Transfer-Encoding: chunked\r\n" + LENGTH, chunks(BODY)),
    (b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n", chunks(BODY)),
    (LENGTH + b"Content-Length: 0\r\n", BODY),
    (LENGTH + LENGTH, BODY),
    (b"Content-Length: %d, 0\r\n" % len(BODY), BODY),
    (b"Content-Length: +%d\r\n" % len(BODY), BODY),
    (b"Content-Length: -1\r\n", BODY),
    (b"Content-Length: 0x10\r\n", BODY),
    (b"Content-Length: 18446744073709551617\r\n", BODY),
    (b"Content-Length: \r\n", BODY),
    (b"Content-Length : %d\r\n" % len(BODY), BODY),
    (b"Transfer-Encoding : chunked\r\n", chunks(BODY)),
    (b"Transfer-Encoding: xchunked\r\n", chunks(BODY)),
    (b"Transfer-Encoding: identity, chunked\r\n", chunks(BODY)),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", chunks(BODY)),
    (b"Transfer-Encoding: chunked\0x\r\n", chunks(BODY)),
    (LENGTH + b"X-A: b\0c\r\n", BODY),
    (LENGTH + b"X-A: b\0\r\nX-B: c\r\n", BODY),
    (LENGTH + b"\0X: b\r\n", BODY),
    (LENGTH + b"X A: b\r\n", BODY),
    (LENGTH + b"X\0: b\r\n", BODY),
    (LENGTH + b": b\r\n", BODY),
    (b"Transfer-Encoding: chunked\r\n", b"0x%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)),
    (b"Transfer-Encoding: chunked\r\n", b"-1\r\n%s\r\n0\r\n\r\n" % BODY),
    (b"Transfer-Encoding: chunked\r\n", b"10000000000000001\r\n%s\r\n0\r\n\r\n" % BODY),
    (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%sZZ0\r\n\r\n" % (len(BODY), BODY)),
], ids=lambda v: None)
def test_smuggling(victim, headers, body):
    """Issue 5: where two readers may see two ends of a request it is refused and the connection closed, and what stood behind it is
    never read as a request."""
    with victim.connect() as c:
        push(c, b"POST " + RAW.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n" + body + SMUGGLED)
        answer = drain(c)
    statuses = re.findall(rb"HTTP/1\.[01] (\d+) ", answer)
    assert set(statuses) <= {b"400", b"413", b"501"}, answer  # the smuggled request would be 404


@pytest.mark.parametrize("line", [b" HTTP/1.1\r\n\0Host: localhost\r\n", b" HTTP/1.1\0x\r\nHost: localhost\r\n",
                                  b" HTTP/1.1\r\n: x\r\nHost: localhost\r\n"])
def test_smuggling_in_front_of_the_first_header(victim, line):
    with victim.connect() as c:
        push(c, b"POST " + RAW.encode() + line + LENGTH + b"\r\n" + BODY + SMUGGLED)
        answer = drain(c)
    assert set(re.findall(rb"HTTP/1\.[01] (\d+) ", answer)) <= {b"400"}, answer


@pytest.mark.parametrize("host", [b"localhost\0.example.com", b"\0", b"localhost\0\0\0\0evil", b"localhost\r\n evil", b"localhost@evil",
                                  b"localhost evil"])
def test_host_with_nul(victim, host):
    """Issue 5 B-151: a Host that only begins like ours is not ours."""
    with victim.connect() as c:
        push(c, b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        answer = drain(c)
    assert re.match(rb"HTTP/1\.[01] (400|403) ", answer), answer
    with victim.connect() as c:  # as the last header
        push(c, b"GET /health HTTP/1.0\r\nHost: " + host + b"\r\n\r\n")
        answer = drain(c)
    assert re.match(rb"HTTP/1\.[01] (400|403) ", answer), answer
    victim.alive()


# --- bodies ---

def send_body(s, sockets, make, total, path=RAW, chunked=False, headers=b"", wait=True):
    """Sends make(): pieces of a body of about `total` bytes. Returns the status, 0 when the server closed the connection."""
    c = s.connect()
    sockets.append(c)
    c.settimeout(300)
    frame = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: %d\r\n" % sum(len(p) for p in make())
    try:
        c.sendall(b"POST " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + headers + frame + b"\r\n")
        for p in make():
            if select.select([c], [], [], 0)[0]:
                break  # it has said no already
            c.sendall(b"%x\r\n%s\r\n" % (len(p), p) if chunked else p)
        else:
            if chunked:
                c.sendall(b"0\r\n\r\n")
    except (ConnectionError, socket.timeout):
        pass
    if not wait:
        return None
    try:
        return rig.read_answer(c)[0]
    except (ConnectionError, OSError):
        return 0


def pieces(head, unit, tail, total, block=1 << 18):
    def make():
        yield head
        piece = unit * (block // len(unit))
        for _ in range(max(1, (total - len(head) - len(tail)) // len(piece))):
            yield piece
        yield tail
    return make


SHAPES = {
    "string": (b'{"prompt": "', b"a b c d ", b'"}'),
    "escapes": (b'{"prompt": "', b"\\u00e9", b'"}'),
    "ids": (b'{"prompt": [0', b",0", b"]}"),
    "arrays": (b'{"prompt": [[]', b",[]", b"]}"),
    "objects": (b'{"prompt": [{}', b",{}", b"]}"),
    "keys": (b'{"a":1', b',"":2', b"}"),
    "strings": (b'{"stop": [""', b',""', b"]}"),
    "big integers": (b'{"prompt": [0', b",99999999999999999999", b"]}"),
    "blanks": (b'{"prompt": "a", "max_tokens": 1', b"        ", b"}"),
    "depth": (b'{"a": ', b"[", b""),
    "messages": (b'{"messages": [{"role": "user", "content": "a"}', b',{"role": "user", "content": "a"}', b"]}"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_large_bodies(attack, shape):
    """Issue 5: bodies of 256 MB (4 MB in an ordinary run), three at once: what their trees and copies take stays in the budget,
    because it is known before they are made."""
    head, unit, tail = SHAPES[shape]
    total = pick(4, 256) << 20
    path = CHAT if shape == "messages" else RAW
    make = pieces(head, unit, tail, total - 100)
    with closing() as sockets:
        results = []
        threads = [threading.Thread(target=lambda i=i: results.append(send_body(attack, sockets, make, total, path, chunked=i == 1)))
                   for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert all(r in (0, 200, 400, 413, 503) for r in results) and any(results), results
        assert 200 not in results or shape == "blanks"


def test_middling_bodies(attack):
    """Issue 5: many bodies of a size that is no exception, of the shape that grows most, all at once."""
    make = pieces(*SHAPES["arrays"], 300000)
    with closing() as sockets:
        threads = [threading.Thread(target=send_body, args=(attack, sockets, make, 300000)) for _ in range(pick(24, 200))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        attack.honest.one_more()


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_bombs(attack, encoding):
    """Issue 5: a few kilobytes that decode to gigabytes: 413 when the limit is passed, and the memory is given back."""
    zeros = b" " * (1 << 20)
    if encoding == "gzip":
        one = gzip.compress(zeros, 9)
        bomb = one * pick(40, 2000)  # members one behind the other
    else:
        # a frame without checksum and size: one run-length block of 128 kB after the other
        bomb = b"\x28\xb5\x2f\xfd\x00\x58" + (((1 << 17) << 3 | 1 << 1).to_bytes(3, "little") + b" ") * pick(320, 16000)
        bomb += (0 << 3 | 1).to_bytes(3, "little")
    for _ in range(pick(2, 4)):
        status, _, text = attack.exchange(rig.request(RAW, bomb, headers=f"Content-Encoding: {encoding}\r\n"))
        assert status in (413, 503), (status, text[:200])


# --- floods ---

def test_flood(attack):
    """Issue 5 API-034: more requests at once than all queues hold: each is served or told 429; nobody is forgotten."""
    n = pick(250, 3000)
    with closing() as sockets:
        crowd(attack, sockets, n, rig.request(RAW, {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True}))
        statuses = [rig.read_answer(c)[0] for c in sockets]
    assert set(statuses) <= {200, 429}, set(statuses)
    assert statuses.count(200) >= 1


def test_pipelining(attack):
    """Issue 5: hundreds of requests in one write: answered in their order."""
    n = pick(200, 5000)
    with attack.connect() as c:
        threading.Thread(target=push, args=(c, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * n), daemon=True).start()
        got = b""
        while got.count(b'{"status": "ok"}') < n:
            more = c.recv(65536)
            assert more
            got += more


def test_leaving_while_a_grammar_is_made(attack):
    """Issue 5 B-043: clients that leave while their constraint is compiled: the others do not wait for what nobody reads."""
    schema = {"type": "object", "properties": {f"k{i}": {"type": "string", "pattern": f"(a|b)*a(a|b){{{i % 12}}}"} for i in range(pick(20, 60))}}
    body = rig.request(CHAT, {"messages": rig.HELLO, "max_tokens": 2, "guided_json": schema})
    with closing() as sockets:
        crowd(attack, sockets, pick(20, 100), body)
    attack.honest.one_more()
