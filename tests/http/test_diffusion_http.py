"""DiffusionGemma over HTTP: the same endpoints, text by blocks, always the serial lane; what cannot go with it is refused by name."""
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, RAW, Server

MODEL = rig.TINY / "diffusion_gemma-4bit"
CANVAS = 32
PROMPT = "Why is the sky blue at noon and red in the evening? " * 2


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The tiny checkpoint with four rounds a canvas."""
    model = rig.copy_model(tmp_path_factory.mktemp("diffusion"), MODEL.name, generation={"max_denoising_steps": 4})
    with Server("--batch", 4, model=model) as s:
        yield s
        assert s.process.poll() is None, s.stderr()


def test_api345_same_endpoints_serial_lane(server):
    """API-345, T4.06, MOD-042: chat, completions, messages and responses answer; usage.lane is serial although --batch is 4."""
    chat = server.chat(max_tokens=40, seed=1, ignore_eos=True)
    assert chat["usage"]["lane"] == "serial" and chat["usage"]["completion_tokens"] == 40
    assert chat["choices"][0]["finish_reason"] == "length" and chat["choices"][0]["message"]["content"]
    raw = server.raw(PROMPT, max_tokens=40, seed=1, ignore_eos=True)
    assert raw["choices"][0]["text"] and raw["usage"]["lane"] == "serial"
    messages = server.ok("/v1/messages", {"model": "m", "max_tokens": 8, "messages": HELLO})
    assert messages["content"][0]["text"]
    responses = server.ok("/v1/responses", {"input": "hello", "max_output_tokens": 8})
    assert responses["output"][-1]["content"][0]["text"]
    assert server.stats()["batch"]["configured"] == 1


def test_same_request_same_bits(server):
    """The same request gives the same text: at temperature 0 without a seed, warm, streamed, beside others; another seed does not."""
    body = {"prompt": PROMPT, "max_tokens": 2 * CANVAS, "ignore_eos": True}
    first = server.ok(RAW, {**body, "temperature": 0, "seed": None})
    again = server.ok(RAW, {**body, "temperature": 0, "seed": None})
    text = first["choices"][0]["text"]
    assert again["choices"][0]["text"] == text
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == first["usage"]["prompt_tokens"] - 1
    events, _ = server.stream(RAW, {**body, "temperature": 0, "seed": None})
    assert "".join(e["choices"][0]["text"] for e in events if e["choices"]) == text
    seeds = [3, 4, 3, 4]
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda s: server.ok(RAW, {**body, "seed": s})["choices"][0]["text"], seeds))
    assert texts[0] == texts[2] and texts[1] == texts[3] and texts[0] != texts[1]


def test_choices_and_stop_strings(server):
    """Choices differ by their number; a stop string cuts inside a block."""
    body = {"prompt": PROMPT, "max_tokens": CANVAS, "seed": 5, "ignore_eos": True}
    two = server.ok(RAW, {**body, "n": 2})["choices"]
    assert two[0]["text"] != two[1]["text"]
    one = server.ok(RAW, body)["choices"][0]
    assert one["text"] == two[0]["text"]
    stop = next(c for c in one["text"][5:] if c.isascii() and c.isprintable())
    cut = server.ok(RAW, {**body, "stop": stop})["choices"][0]
    assert cut["text"] == one["text"][:one["text"].index(stop)] and cut["finish_reason"] == "stop"


@pytest.mark.parametrize("fields,name", [
    ({"logprobs": True}, "logprobs"), ({"logit_bias": {"5": 1}}, "logit_bias"), ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ({"presence_penalty": 0.5}, "presence_penalty"), ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"xtc_probability": 0.5}, "xtc_probability"), ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}], "tool_choice": "required"},
     "tool_choice"),
])
def test_mod042_refusals(server, fields, name):
    """MOD-042: what needs the token before is refused with 400 and its name, and the server goes on."""
    e = server.refused(CHAT, {"messages": HELLO, "max_tokens": 8, **fields}, name)
    assert "diffusion" in e["message"], e
    server.alive()


def test_cli(tmp_path):
    """The command line: text, ids with null for log-probabilities, scoring refused."""
    out = rig.run("generate", MODEL, "--raw", "--prompt", "hello", "--max-tokens", 5, "--json", "--ignore-eos", "--temp", 0)
    got = json.loads(out.stdout)
    assert out.returncode == 0 and len(got["ids"]) == 5 and got["logprobs"] == [None] * 5
    text = tmp_path / "text"
    text.write_text("hello there")
    out = rig.run("perplexity", MODEL, "--text", text)
    assert out.returncode != 0 and "diffusion" in out.stderr, out.stderr
