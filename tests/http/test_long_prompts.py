"""Prompts far above the context are refused without cutting all of them into tokens; a stream's bytes are whole chunks whatever way
they took."""
import pytest

from http_rig import CHAT, RAW

MEGABYTES = 3


@pytest.mark.parametrize("text", ["word ", " ", "\u4e2d"])
def test_a_prompt_of_megabytes_is_refused_by_its_length(llama, text):
    """context_length_exceeded, with the context; the count of tokens is not worked out to its end."""
    prompt = text * (MEGABYTES * 1000000 // len(text.encode()))
    for path, body in ((RAW, {"prompt": prompt}), (CHAT, {"messages": [{"role": "user", "content": prompt}]})):
        e = llama.refused(path, {**body, "max_tokens": 1}, "more than")
        assert e["code"] == "context_length_exceeded" and "4096" in e["message"]
    llama.alive()


def read_all(llama, version):
    """A stream as bytes: (head, body)."""
    body = b'{"prompt": "hello", "max_tokens": 200, "stream": true, "ignore_eos": true, "temperature": 0}'
    with llama.connect() as s:
        s.sendall(f"POST {RAW} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                  "Connection: close\r\n\r\n".encode() + body)
        data = b""
        while got := s.recv(65536):
            data += got
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def test_a_stream_is_whole_chunks(llama):
    head, rest = read_all(llama, "1.1")
    assert b"chunked" in head.lower()
    text, n = b"", 0
    while True:
        size, _, rest = rest.partition(b"\r\n")
        size = int(size, 16)
        if size == 0:
            break
        assert rest[size:size + 2] == b"\r\n"
        text, rest, n = text + rest[:size], rest[size + 2:], n + 1
    assert rest == b"\r\n" and n > 0 and text.endswith(b"data: [DONE]\n\n")
    head, plain = read_all(llama, "1.0")
    assert b"chunked" not in head.lower() and plain.endswith(b"data: [DONE]\n\n")
    assert [e.split(b'"text"')[-1].split(b",")[0] for e in plain.split(b"\n\n")] == [e.split(b'"text"')[-1].split(b",")[0] for e in text.split(b"\n\n")]
