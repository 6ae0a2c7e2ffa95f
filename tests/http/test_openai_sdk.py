"""The real `openai` client against a tiny random checkpoint: chat and completions in both modes, models, errors, many at
once, shutdown. What comes out is noise; that both modes, all loads and a restart give the same noise is the point."""
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("MLX_BUN", str(ROOT / "build" / "mlx-bun"))
MODEL = ROOT / "tests" / "golden" / "tiny" / "qwen3"


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen([PROGRAM, "serve", str(MODEL), "--port", "0", *flags], stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            found = re.search(r"url\s+(http://\S+)/v1", line)
            if found:
                self.url = found[1]
                return
        raise RuntimeError("the server ended before it was ready")

    def client(self, **kw):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="any", max_retries=0, timeout=60, **kw)

    def stop(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        code = self.process.wait(300)
        self.process.stdout.close()
        return code


@pytest.fixture(scope="module")
def server():
    s = Server()
    yield s
    s.stop()


MESSAGES = [{"role": "user", "content": "hello"}]


def chat(client, **kw):
    return client.chat.completions.create(model="gpt-4", messages=MESSAGES, **{"max_tokens": 12, "seed": 7, **kw})


def test_api426_chat(server):
    r = chat(server.client())
    assert r.id.startswith("chatcmpl-") and r.object == "chat.completion"
    assert r.model == "qwen3"
    assert r.choices[0].finish_reason in ("stop", "length")
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.usage.prompt_tokens_details.cached_tokens >= 0


def test_api110_stream_joins_to_the_answer(server):
    whole = chat(server.client(), temperature=0.8)
    parts = list(chat(server.client(), temperature=0.8, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
    assert text == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_api206_completions(server):
    c = server.client()
    whole = c.completions.create(model="x", prompt="hello", max_tokens=8, temperature=0)
    assert whole.id.startswith("cmpl-")
    text = "".join(p.choices[0].text for p in c.completions.create(model="x", prompt="hello", max_tokens=8, temperature=0, stream=True))
    assert text == whole.choices[0].text


def test_several_choices_differ_and_repeat(server):
    a = chat(server.client(), n=3, temperature=1.5)
    b = chat(server.client(), n=3, temperature=1.5)
    assert [c.index for c in a.choices] == [0, 1, 2]
    assert [c.message.content for c in a.choices] == [c.message.content for c in b.choices]
    assert len({c.message.content for c in a.choices}) > 1


def test_api017_models(server):
    models = server.client().models.list()
    assert models.data[0].id == "qwen3"
    assert models.data[0].owned_by


@pytest.mark.parametrize("bad", [{"max_tokens": 0}, {"temperature": -1}, {"stop": [""]}, {"logit_bias": {"x1": 1}},
                                 {"response_format": {"type": "xml"}}])
def test_errors_are_bad_requests(server, bad):
    with pytest.raises(openai.BadRequestError) as e:
        chat(server.client(), **bad)
    assert list(bad)[0] in e.value.message


def test_not_found(server):
    with pytest.raises(openai.NotFoundError):
        server.client().responses.retrieve("resp_none")


def test_b031_same_answer_under_load(server):
    alone = chat(server.client(), temperature=0.8).choices[0].message.content
    with ThreadPoolExecutor(12) as pool:
        c = server.client()
        others = [pool.submit(chat, c, seed=100 + i, temperature=1.0, max_tokens=20) for i in range(20)]
        mine = [pool.submit(chat, c, temperature=0.8) for _ in range(6)]
        assert {f.result().choices[0].message.content for f in mine} == {alone}
        for f in others:
            f.result()


def test_b043_a_closed_stream_stops_the_work(server):
    with chat(server.client(), stream=True, max_tokens=4000, extra_body={"ignore_eos": True}) as s:
        next(iter(s))
    end = time.monotonic() + 120
    while True:
        stats = httpx.get(server.url + "/stats").json()
        if stats["batch"]["active_rows"] == 0 and stats["batch"]["pending_rows"] == 0:
            break
        assert time.monotonic() < end
        time.sleep(0.02)
    assert stats["engine"]["cancelled"] >= 1


def test_api015_and_api016_stop_and_restart():
    first = Server()
    text = chat(first.client()).choices[0].message.content
    assert first.stop(signal.SIGTERM) == 0
    second = Server()
    assert chat(second.client()).choices[0].message.content == text
    second.stop(signal.SIGKILL)
    third = Server()
    assert chat(third.client()).choices[0].message.content == text
    third.stop()


def test_api_key():
    s = Server("--api-key", "secret")
    with pytest.raises(openai.AuthenticationError):
        chat(s.client())
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="secret", max_retries=0)
    assert chat(c).choices
    assert httpx.get(s.url + "/health").text == '{"status": "ok"}'
    s.stop()
