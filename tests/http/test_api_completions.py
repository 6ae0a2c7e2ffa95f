"""spec/api.md section 14: raw text in, raw text out."""
import re

import pytest

import http_rig as rig
from http_rig import RAW, Server


def test_api206_prompt(llama):
    """API-206: a string; ids, arrays, numbers and nothing are refused."""
    for bad in ([1, 2, 3], ["a"], 3, {}, True, 10**30):
        llama.refused(RAW, {"prompt": bad}, "prompt must be of type str")
    llama.refused(RAW, {"max_tokens": 1}, "prompt")
    llama.refused(RAW, {"prompt": None}, "prompt")


def test_api207_no_template(llama):
    """API-207: the prompt is its own tokens; the tokenizer adds bos where its files say so (gemma3), control tokens in the
    text are control tokens."""
    for text in ("hello", "a b\nc", "<|im_start|>user\n", "ü 🙂"):
        ids = llama.ok("/tokenize", {"text": text})["tokens"]
        assert llama.raw(text)["usage"]["prompt_tokens"] == len(ids)
    assert llama.ok("/tokenize", {"text": "<|im_start|>"})["tokens"] == [510]
    with Server(model=rig.TINY / "gemma3") as s:
        with_bos = s.ok("/tokenize", {"text": "hello"})["tokens"]
        bare = s.ok("/tokenize", {"text": "hello", "add_special_tokens": False})["tokens"]
        assert with_bos == [2, *bare] and s.raw("hello")["usage"]["prompt_tokens"] == len(with_bos)


def test_api209_stream_and_stop(says):
    """API-209 API-218 API-219: the same text in both modes; chunks are text_completion with choices[0].text; the last one
    has finish_reason and usage, with and without include_usage; stops act on decoded text."""
    s = says(b"A", b"E", b"N", b"D", b" ", b"O", b"F", b"x", b" the")
    for fields, want in (({}, "AEND OFx the"), ({"stop": "END OF"}, "A"), ({"stop": ["zz", "Fx"]}, "AEND O")):
        whole = s.raw("a\n", max_tokens=50, **fields)["choices"][0]
        assert (whole["text"], whole["finish_reason"]) == (want, "stop")
        for options in ({}, {"stream_options": {"include_usage": True}}):
            events, _ = s.stream(RAW, {"prompt": "a\n", **fields, **options})
            if options:
                assert events[-1]["choices"] == [] and events.pop()["usage"]
            assert rig.joined(events) == want and all(e["object"] == "text_completion" for e in events)
            assert events[-1]["choices"][0]["finish_reason"] == "stop" and events[-1]["usage"]["completion_tokens"] > 0
            assert all(e["choices"][0]["finish_reason"] is None and "usage" not in e for e in events[:-1])
    for off in (False, None):
        assert s.raw("a\n", stream=off)["object"] == "text_completion"


@pytest.mark.parametrize("fields", [
    {"temperature": 2}, {"top_p": 0.3}, {"top_k": 2}, {"min_p": 0.5}, {"xtc_probability": 1, "xtc_threshold": 0.01},
    {"logit_bias": {"40": 100}}, {"repetition_penalty": 3}, {"presence_penalty": 20}, {"frequency_penalty": 20}, {"seed": 12}])
def test_api210_every_field_acts(llama, fields):
    """API-210: each field of section 3 changes what is drawn here too."""
    base = {"temperature": 1.2, "seed": 11, "max_tokens": 32, "ignore_eos": True}
    assert llama.ids(**{**base, **fields}) != llama.ids(**base)
    llama.refused(RAW, {"prompt": "a", "adapter": "x"}, "adapter")


def test_api212_logprobs_is_a_bool(llama):
    """API-212 API-121: OpenAI's legacy integer is refused, the legacy form does not exist."""
    for legacy in (0, 1, 5):
        llama.refused(RAW, {"prompt": "a", "logprobs": legacy}, "logprobs must be of type bool")
    block = llama.raw(logprobs=True)["choices"][0]["logprobs"]
    assert set(block) == {"content"}


def test_suffix_is_refused(llama):
    """A text to be filled in would come out as one that goes on: refused by name, unless there is nothing behind it."""
    llama.refused(RAW, {"prompt": "a", "suffix": "b"}, "suffix is not supported")
    assert llama.raw(temperature=0, suffix="")["choices"] == llama.raw(temperature=0, suffix=None)["choices"] == llama.raw(temperature=0)["choices"]


def test_api213_no_echo(llama):
    """API-213: the prompt never comes back."""
    assert llama.raw(temperature=0, echo=True)["choices"] == llama.raw(temperature=0)["choices"]


def test_api214_cache_as_for_chat(llama):
    """API-214: a prefix made by chat serves a raw request and the other way round; what does not fit is refused alike."""
    text = "<|im_start|>system\nabc def<|im_end|>\n<|im_start|>user\n1 2 3 4 5 6 7<|im_end|>\n<|im_start|>assistant\n"
    messages = [{"role": "system", "content": "abc def"}, {"role": "user", "content": "1 2 3 4 5 6 7"}]
    n = llama.chat(messages=messages)["usage"]["prompt_tokens"]
    u = llama.raw(text)["usage"]
    assert u["prompt_tokens"] == n and u["prompt_tokens_details"]["cached_tokens"] == n - 1
    for path, body in ((RAW, {"prompt": "a " * 5000}), (rig.CHAT, {"messages": [{"role": "user", "content": "a " * 5000}]})):
        assert llama.refused(path, body, "4096")["code"] == "context_length_exceeded"


def test_api215_answer(llama):
    """API-215 API-216 API-217"""
    a = llama.raw(max_tokens=5, ignore_eos=True)
    assert re.fullmatch(r"cmpl-\w+", a["id"]) and a["object"] == "text_completion" and a["model"] == "llama"
    assert isinstance(a["created"], int)
    assert len(a["choices"]) == 1 and set(a["choices"][0]) == {"index", "text", "finish_reason"}
    assert a["choices"][0]["index"] == 0 and a["choices"][0]["finish_reason"] == "length"
    assert a["usage"]["completion_tokens"] == 5
    assert llama.raw(max_tokens=5)["usage"]["prompt_tokens_details"]["cached_tokens"] == a["usage"]["prompt_tokens"] - 1
