"""What only a build with fault points can show: exact counts of steps after a client has left, slow prefill, a dead engine
thread. Skipped in ordinary builds (make alloc-fail makes one with fault points)."""
import re
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

import http_rig as rig
from http_rig import RAW, TORTURE, Server

def test_b043_decode_within_two_steps(scripted):
    """B-043 API-014: with slow steps the count is exact: at most two steps after the FIN, or for a stream after the write
    that follows it."""
    s = scripted({"ids": [5] * 2000}, env={"MLX_BUN_TEST_FAULT": "step_delay=150"})
    for stream, spare in ((False, 2), (True, 3)):
        before = rig.leave_after(s, {"prompt": "hello", "max_tokens": 1000, "stream": stream}, 0.8)
        now = s.wait_idle()["engine"]
        assert now["steps"] - before <= spare and now["pages_held_bytes"] == 0


@pytest.mark.skipif(not rig.has_fault_points(), reason="a build without fault points")
@pytest.mark.parametrize("stream", [False, True])
def test_b043_prefill_within_two_steps(long_model, stream):
    """B-043 API-014: the same in the middle of a prompt of many slow chunks."""
    with Server("--prefill-chunk", 64, model=long_model, env={"MLX_BUN_TEST_FAULT": "prefill_delay=100"}) as s:
        before = rig.leave_after(s, {"prompt": "@!" * 2000, "max_tokens": 5, "stream": stream}, 0.6)
        now = s.wait_idle()["engine"]
        assert now["steps"] - before <= 2 and now["tokens_prefilled"] < 2000
        assert now["pages_held_bytes"] == 0 and now["cancelled"] == 1


def test_b044_slow_prefill(scripted):
    """B-044: prefill of 8 s and more (40 s with MLX_BUN_TORTURE=1): keep-alive lines with progress, which the SDK ignores."""
    s = scripted({"text": "hello world", "prefill_delay_ms_per_1k": 40000 if TORTURE else 7000})
    prompt = "a b c d e f g h " * 130
    text = s.post(RAW, {"prompt": prompt, "stream": True}).text
    lines = re.findall(r"(?m)^: .*$", text)
    assert len(lines) >= 2 and text.startswith(":")
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="x", max_retries=0, timeout=120)
    got = "".join(p.choices[0].text for p in client.completions.create(model="x", prompt=prompt + "z", stream=True))
    assert got == "hello world"


def test_b106_engine_thread_dies(scripted):
    """B-106: the engine thread ends in the middle of work: running and waiting clients get an error, /health says no, later requests are refused, the process can be ended."""
    s = scripted({"ids": [5] * 2000, "step_delay_ms": 20, "batch": 2}, env={"MLX_BUN_TEST_FAULT": "engine_death=30"})
    with ThreadPoolExecutor(5) as pool:
        runs = [pool.submit(s.post, RAW, {"prompt": f"{i}", "max_tokens": 1000, "stream": i == 0}) for i in range(5)]
        answers = [f.result() for f in runs]
    begin = time.monotonic()
    while s.get("/health").status_code == 200:
        assert time.monotonic() < begin + 120
    for a in answers:
        assert "error" in a.text and a.status_code in (200, 500, 503) and (a.status_code != 200 or "data: " in a.text)
    late = s.post(RAW, {"prompt": "a"})
    assert late.status_code in (500, 503) and late.json()["error"]["message"]
    assert s.stats()["engine"]["alive"] is False
