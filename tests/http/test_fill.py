"""Token fast-forwarding with real forward passes: echoes change nothing, usage says what was put in and guessed."""
import json

import pytest

from http_rig import CHAT, HELLO, RAW, TINY, Server, copy_model

ECHO = {"MLX_BUN_FILL": "echo", "MLX_BUN_FILL_K": "2"}
CALLS = ("{% for m in messages %}{{ m.role }}\n{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>\n"
         "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n"
         "{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}assistant\n{% endif %}")
PING = [{"type": "function", "function": {"name": "ping_the_server", "parameters": {"type": "object"}}}]
PROMPTS = ["one two three one two three one two", "a b c d a b c d a b c", "hello"]


def bodies():
    return [{"prompt": p, "temperature": 0, "max_tokens": n, "ignore_eos": True} for p in PROMPTS for n in (1, 2, 40, 200)]


@pytest.mark.parametrize("model", ["llama", "gemma3", "qwen3_next"])
def test_api169_echo_changes_nothing(model):
    """API-169, API-167, ENG-204, T7.04, T10.24: all keys, windows of keys, recurrent states."""
    with Server(model=TINY / model) as s:
        plain = [s.ok(RAW, b) for b in bodies()]
    assert not any("fill" in a["usage"] for a in plain)
    with Server(model=TINY / model, env=ECHO, seed=None) as s:  # API-171: nothing is put in where a seed is given
        echoed = [s.ok(RAW, b) for b in bodies()]
    assert [a["choices"] for a in echoed] == [a["choices"] for a in plain]
    fill = [a["usage"].pop("fill") for a in echoed]
    assert [a["usage"] for a in echoed] == [a["usage"] for a in plain]
    assert all(f["tokens"] == f["accepted"] <= f["proposed"] and f["spans"] <= f["accepted"] for f in fill)
    assert sum(f["proposed"] for f in fill) > 0
    if model != "qwen3_next":  # its tiny checkpoint repeats nothing; what is taken back are its states
        assert sum(f["accepted"] for f in fill) > 0


def test_api180_usage_in_every_dialect():
    """API-180, API-333, API-171, ENG-205: zeros where a request is refused; streams, messages and responses too."""
    zeros = {"spans": 0, "tokens": 0, "proposed": 0, "accepted": 0}
    with Server(env=ECHO, seed=None) as s:
        assert s.chat(seed=1)["usage"]["fill"] == zeros
        assert s.chat(logprobs=True)["usage"]["fill"] == zeros
        assert s.chat(response_format={"type": "json_object"})["usage"]["fill"] == zeros
        assert set(s.chat()["usage"]["fill"]) == set(zeros)
        events, _ = s.stream(CHAT, {"messages": HELLO, "max_tokens": 4, "stream_options": {"include_usage": True}})
        assert set(events[-1]["usage"]["fill"]) == set(zeros)
        assert set(s.ok("/v1/messages", {"messages": HELLO, "max_tokens": 4})["usage"]["fill"]) == set(zeros)
        assert set(s.ok("/v1/responses", {"input": "hello", "max_output_tokens": 4})["usage"]["fill"]) == set(zeros)


def test_api168_the_frame_of_a_call(tmp_path):
    """API-168, API-170, API-172, API-176: the sign is forced by a bias, the rest of the frame is put in."""
    model = copy_model(tmp_path, tokenizer={"chat_template": CALLS})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_text((model / name).read_text().replace("<|im_start|>", "<tool_call>"))
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    sign = next(t for t in added if t["content"] == "<tool_call>")
    body = {"messages": HELLO, "tools": PING, "temperature": 0, "max_tokens": 60, "logit_bias": {str(sign["id"]): 100}}
    with Server("--batch", 4, model=model, env={"MLX_BUN_FILL": "strict"}, seed=None) as s:
        got = s.ok(CHAT, body)
        assert "<tool_call>\n{\"name\": \"ping_the_server\", \"arguments\": {" in got["choices"][0]["message"]["content"]
        assert got["usage"]["fill"]["tokens"] > 10 and got["usage"]["fill"]["proposed"] == 0
        assert got["usage"]["completion_tokens"] == 60
        assert s.stats()["engine"]["tokens_put_in"] >= got["usage"]["fill"]["tokens"]
        many = [{**PING[0], "function": {**PING[0]["function"], "name": f"ping_{i}"}} for i in range(33)]
        assert s.ok(CHAT, {**body, "tools": many})["usage"]["fill"]["tokens"] == 0
    with Server(model=model) as s:
        assert "ping_the_server" not in s.ok(CHAT, body)["choices"][0]["message"]["content"]


def test_cfg148_values_of_the_variable():
    """CFG-148, T2.18: another value is ignored with a warning."""
    with Server(env={"MLX_BUN_FILL": "always"}) as s:
        assert "fill" not in s.chat()["usage"]
        assert "MLX_BUN_FILL" in s.stderr() and "ignored" in s.stderr()
