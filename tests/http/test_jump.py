"""Jump-forward with real forward passes: the same ids and log-probabilities with it and without, for each kind of state."""
from concurrent.futures import ThreadPoolExecutor

import pytest

from http_rig import CHAT, HELLO, RAW, TINY, Server

JUMP = {"MLX_BUN_GRAMMAR_JUMP": "1"}
MODELS = ("llama", "gemma3", "qwen3_next")  # all keys, windows of keys, recurrent states
FORCED = {"type": "object", "properties": {
    "temperature_celsius": {"type": "integer"}, "city_name": {"enum": ["Oslo", "Osaka"]},
    "remarks": {"const": "there is nothing more to be said about this"}},
    "required": ["temperature_celsius", "city_name", "remarks"], "additionalProperties": False}
KINDS = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": FORCED}}},
    {"structured_outputs": {"regex": "order-[0-9]{3}-(shipped|shipment pending), thank you"}},
    {"structured_outputs": {"choice": ["yes", "yesterday evening", "no"]}},
    {"structured_outputs": {"grammar": 'root ::= "<answer>" ("one and only" | "other") "</answer>"'}},
]
WAYS = [{"temperature": 0}, {"temperature": 1, "seed": 3}, {"temperature": 1.5, "seed": 4, "repetition_penalty": 1.3, "top_k": 40},
        {"temperature": 1, "seed": 5, "frequency_penalty": 0.5, "min_tokens": 30}]


def bodies():
    return [{"prompt": "The weather:", "max_tokens": 90, "logprobs": True, "top_logprobs": 3, **kind, **way} for kind in KINDS for way in WAYS]


def answers(server):
    """Of each request alone, and of all at once."""
    alone = [server.ok(RAW, b)["choices"] for b in bodies()]
    with ThreadPoolExecutor(8) as pool:
        together = [r["choices"] for r in pool.map(lambda b: server.ok(RAW, b), bodies())]
    return alone, together


@pytest.mark.parametrize("model", MODELS)
def test_api164_same_ids_and_bits(model):
    """API-164, API-165, ENG-194, CFG-147, T2.17, T7.05, T10.23, T3.16: alone, in a batch, from the cache; with penalties and
    log-probabilities."""
    with Server("--batch", 4, model=TINY / model) as s:
        plain = answers(s)
        assert s.get("/stats").json()["engine"]["tokens_guessed"] == 0
    with Server("--batch", 4, model=TINY / model, env=JUMP) as s:
        jumped = answers(s)
        stats = s.get("/stats").json()["engine"]
    assert plain[0] == plain[1]
    assert jumped[0] == plain[0] and jumped[1] == plain[1]
    assert stats["tokens_guessed"] > stats["tokens_guessed_right"] > 0


def test_api164_streams_tell_the_same():
    """API-164: every chunk of a stream, and a limit in the middle of forced text."""
    body = {"messages": HELLO, "temperature": 1, "seed": 9, **KINDS[0]}

    def told(server, n):
        events, _ = server.stream(CHAT, {**body, "max_tokens": n})
        return [e["choices"] for e in events if e.get("choices")]

    with Server() as plain, Server(env=JUMP) as jumps:
        for n in (1, 2, 3, 5, 8, 13, 90):
            assert told(jumps, n) == told(plain, n)
