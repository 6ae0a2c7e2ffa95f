"""spec/api.md sections 3 to 8: fields of a chat request, where values come from, both forms of the answer, logprobs, stops.
What a model says is decided with `says` (a chain of tokens); what sampling does is read from logprobs of the tiny llama."""
import json
import math
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, LLAMA, RAW, Server

SAMPLED = {"temperature": 1.3, "max_tokens": 24, "ignore_eos": True}
FREE = {"max_tokens": 24, "ignore_eos": True}
THINK_TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
                  "{% if tools %}{{ 'tools: ' + tools | tojson + '\n' }}{% endif %}{{ extra | default('') }}"
                  "{{ '<|im_start|>assistant\n' }}"
                  "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\n' }}{% else %}{{ '<think>\n\n</think>\n\n' }}{% endif %}")


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A model whose template has tools, a variable `extra` and a thinking switch; its own temperature is 1.6."""
    model = rig.copy_model(tmp_path_factory.mktemp("thinker"), tokenizer={"chat_template": THINK_TEMPLATE},
                           generation={"temperature": 1.6})
    with Server(model=model) as s:
        yield s


def first_top(s, prompt="hello", **fields):
    """{id: logprob} of the 11 best candidates of the first token."""
    r = s.raw(prompt, **{"max_tokens": 1, "top_logprobs": 11, "temperature": 0, **fields})
    return {t["id"]: t["logprob"] for t in r["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}


def tokens(s, text):
    return s.ok("/tokenize", {"text": text, "add_special_tokens": False})["tokens"]


# --- section 3 ---

def test_api040_roles(llama):
    """API-040: every role, and `developer` as system (Q19); another role is refused by its place."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"n\": 2}"}}
    base = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    model = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
    history = [*base, {"role": "assistant", "tool_calls": [call], "content": ""}, {"role": "tool", "tool_call_id": "c", "content": "7"}]
    assert llama.text(messages=history, **model) != llama.text(messages=base, **model)
    assert llama.text(messages=[{"role": "developer", "content": "s"}, base[1]], **model) == llama.text(messages=base, **model)
    llama.refused(CHAT, {"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}]}, "messages[1].role")


def test_b020_null_content(tmp_path):
    """B-020: with a template as models ship it (`if message.content`), null, absent and "" are the same prompt."""
    template = ("{% for m in messages %}<{{ m['role'] }}>{% if m['content'] %}{{ m['content'] }}{% endif %}"
                "{% for c in m['tool_calls'] or [] %}[{{ c['function']['name'] }} {{ c['function']['arguments'] | tojson }}]{% endfor %}"
                "{% endfor %}\n")
    with Server(model=rig.copy_model(tmp_path, tokenizer={"chat_template": template})) as s:
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"n\": 2}"}}
        texts = set()
        for content in ({"content": None}, {}, {"content": ""}):
            m = [HELLO[0], {"role": "assistant", "tool_calls": [call], **content}, {"role": "tool", "tool_call_id": "c", "content": "7"}]
            r = s.chat(messages=m, temperature=0, **FREE)
            texts.add((r["choices"][0]["message"]["content"], r["usage"]["prompt_tokens"]))
        assert len(texts) == 1


def test_api042_stream_field(llama):
    """API-042: absent, null and false give JSON, true gives a stream, anything else is refused."""
    for off in ({}, {"stream": False}, {"stream": None}):
        assert llama.chat(**off)["object"] == "chat.completion"
    r = llama.post(CHAT, {"messages": HELLO, "max_tokens": 2, "stream": True})
    assert r.headers["content-type"].startswith("text/event-stream") and r.headers["cache-control"] == "no-cache"
    for bad in ("true", 1, []):
        llama.refused(CHAT, {"messages": HELLO, "stream": bad}, "stream must be of type bool")


@pytest.fixture(scope="module")
def short():
    """The tiny llama with its context lowered to 300 tokens."""
    with Server(env={"MLX_BUN_RD_CONTEXT_LIMIT": "300"}) as s:
        yield s


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_api043_max_tokens(short, path):
    """API-043 API-044 API-318 B-032: the cap counts drawn tokens; max_completion_tokens wins; null is absent; 0, negative and
    other types are 400 by name; a huge value is cut to the context."""
    base = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    base = {**base, "ignore_eos": True, "temperature": 0}

    def count(**f):
        return short.ok(path, {**base, **f})["usage"]["completion_tokens"]

    assert count(max_tokens=5) == 5 and count(max_completion_tokens=6) == 6
    assert count(max_tokens=9, max_completion_tokens=3) == 3 and count(max_tokens=3, max_completion_tokens=9) == 9
    assert count(max_tokens=4, max_completion_tokens=None) == 4
    for name in ("max_tokens", "max_completion_tokens"):
        for bad, text in ((0, "at least 1"), (-1, "at least 1"), ("12", "of type int"), (2.5, "of type int"), (True, "of type int")):
            short.refused(path, {**base, name: bad}, f"{name} must be {text}")
    for huge in (1e9, 10**25):
        r = short.ok(path, {**base, "max_tokens": huge})
        assert r["usage"]["total_tokens"] == 300 and r["choices"][0]["finish_reason"] == "length"


def test_api045_no_cap(short, says):
    """API-045 API-208: without a cap an answer ends at its end token, at a stop, or with the context."""
    s = says(b"A", b"B", b"C", b"D")
    r = s.ok(CHAT, {"messages": HELLO})
    assert (r["choices"][0]["message"]["content"], r["choices"][0]["finish_reason"]) == ("ABCD", "stop")
    assert s.ok(CHAT, {"messages": HELLO, "stop": "C"})["choices"][0]["message"]["content"] == "AB"
    for path, body in ((CHAT, {"messages": HELLO}), (RAW, {"prompt": "hello"})):
        assert short.ok(path, {**body, "ignore_eos": True})["usage"]["total_tokens"] == 300


def test_api046_max_tokens_flag():
    """API-046 API-082 API-086 CFG-122: --max-tokens is the omitted cap, 1 to 1e7; mlx_lm.server's policy can be had by flags."""
    with Server("--temp", 0, "--top-p", 0, "--top-k", 0, "--max-tokens", 512, "--batch", 1) as s:
        r = s.ok(CHAT, {"messages": HELLO, "ignore_eos": True, "logprobs": True})
        assert r["usage"]["completion_tokens"] == 512 and r["usage"]["lane"] == "serial"
        assert s.ok(CHAT, {"messages": HELLO, "ignore_eos": True})["choices"][0]["message"] == r["choices"][0]["message"]
        assert s.chat(max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3
    for flag, bad in (("--max-tokens", "0"), ("--max-tokens", "10000001"), ("--temperature", "5.1"), ("--temp", "-1"),
                      ("--top-p", "1.5"), ("--top-k", "1000001"), ("--thinking", "maybe")):
        p = rig.run("serve", LLAMA, "--port", 0, flag, bad)
        assert p.returncode == 2 and (flag.lstrip("-") in p.stderr or "temperature" in p.stderr), (flag, p.stderr)


def test_api047_glm_reserves(tmp_path):
    """API-047 API-284 API-322 API-335 API-346 CFG-057 CFG-094 CFG-102 MOD-038 MOD-039 REG-131 API-260: GLM-5.2 has --context-length tokens (4,096), of which an answer takes 128
    unless somebody says another number; what does not fit is refused before anything is loaded. No draft is read: its lane is
    that of any model."""
    glm = rig.TINY / "glm_moe_dsa"
    with Server("--context-length", 200, model=glm) as s:
        a = s.ok(RAW, {"prompt": "hello", "ignore_eos": True})
        assert a["usage"]["completion_tokens"] == 128 and a["usage"]["lane"] == "batched"
        assert s.ok(RAW, {"prompt": "hello", "ignore_eos": True, "max_tokens": 9})["usage"]["completion_tokens"] == 9
        assert s.stats()["glm52"] == {"context_length": 200}
        e = s.post("/v1/embeddings", {"input": "hello"})
        assert e.status_code == 400 and e.json()["error"]["type"] == "invalid_request_error"
        e = s.post(RAW, {"prompt": "a b c d e f g h " * 100, "max_tokens": 1})
        assert e.status_code == 400 and e.json()["error"]["code"] == "context_length_exceeded"
    for flags, text in ((("--context-length", 128), "does not fit a context of 128"),
                        (("--context-length", 200, "--max-tokens", 200), "does not fit a context of 200"),
                        (("--context-length", 100000, "--kv-budget", 0.001, "--max-tokens", 5), "there is memory for")):
        p = rig.run("serve", glm, "--port", 0, *flags)
        assert p.returncode not in (0, -11, -6) and text in p.stderr, p.stderr
    with Server("--context-length", 200) as s:
        assert "glm52" not in s.stats()
        assert s.ok(RAW, {"prompt": "hello", "ignore_eos": True, "max_tokens": 300})["usage"]["completion_tokens"] == 300


def test_api048_greedy(llama):
    """API-048: temperature 0 draws the best token every time, whatever the seed."""
    a = llama.raw(temperature=0, top_logprobs=1, max_tokens=24, ignore_eos=True)["choices"][0]["logprobs"]["content"]
    b = llama.ids(temperature=0, seed=5, **FREE)
    assert [(e["id"], e["logprob"]) for e in a] == b


def test_api049_top_p_and_top_k(llama):
    """API-049 API-050 API-052: 0 is off (the same draws as without), the tightest value is greedy, and no drawn token is
    outside of the set."""
    plain = llama.ids(seed=1, **SAMPLED)
    for off in ({"top_p": 0}, {"top_p": 1}, {"top_k": 0}, {"min_p": 0}):
        assert llama.ids(seed=1, **SAMPLED, **off) == plain, off
    greedy = [t for t, _ in llama.ids(temperature=0, **FREE)]
    for tight in ({"top_p": 1e-9}, {"top_k": 1}, {"min_p": 1}):
        assert [t for t, _ in llama.ids(seed=1, **SAMPLED, **tight)] == greedy, tight
    best = sorted(first_top(llama).items(), key=lambda x: -x[1])
    drawn = {llama.ids(seed=i, temperature=5, max_tokens=1, top_k=3)[0][0] for i in range(40)}
    assert drawn <= {t for t, _ in best[:3]} and len(drawn) > 1
    limit = (math.exp(best[1][1]) + math.exp(best[2][1])) / 2 / math.exp(best[0][1])
    drawn = {llama.ids(seed=i, temperature=5, max_tokens=1, min_p=limit)[0][0] for i in range(40)}
    assert drawn == {t for t, _ in best[:2]}
    for bad in ({"top_p": 1.1}, {"top_k": -1}, {"min_p": -0.1}, {"top_k": 1.5}, {"temperature": -0.1}):
        llama.refused(RAW, {"prompt": "a", **bad}, f"{next(iter(bad))} must be")


def test_api051_seed(llama):
    """API-051 API-347: the same seed repeats, another differs, without one the draws differ from request to request."""
    assert llama.ids(seed=9, **SAMPLED) == llama.ids(seed=9, **SAMPLED) != llama.ids(seed=10, **SAMPLED)
    assert llama.ids(**SAMPLED) == llama.ids(**SAMPLED)  # the rig's seed
    assert len({tuple(llama.ids(seed=None, **SAMPLED)) for _ in range(4)}) == 4
    with ThreadPoolExecutor(4) as pool:
        together = [pool.submit(llama.ids, seed=None, **SAMPLED) for _ in range(4)]
        assert len({tuple(f.result()) for f in together}) == 4


def test_api053_xtc(llama):
    """API-053 API-054: with probability 1 all tokens above the threshold but the least likely of them go; with 0 and by
    default none does; end tokens and line breaks stay."""
    best = sorted(first_top(llama).items(), key=lambda x: -x[1])
    limit = (math.exp(best[1][1]) + math.exp(best[2][1])) / 2
    cold = {"temperature": 1e-6, "max_tokens": 1, "seed": 1}
    assert llama.ids(xtc_probability=1, xtc_threshold=limit, **cold)[0][0] == best[1][0]
    for off in ({}, {"xtc_probability": 0, "xtc_threshold": limit}):
        assert llama.ids(**cold, **off)[0][0] == best[0][0]
    some = {llama.ids(xtc_probability=0.5, xtc_threshold=limit, **{**cold, "seed": i})[0][0] for i in range(30)}
    assert some == {best[0][0], best[1][0]}
    vocab = rig.vocabulary()
    for above, exempt in ((b"B", False), (b"\n", True), (b"<|im_end|>", True)):
        x, y = vocab[above], vocab[b"A"]
        top = first_top(llama, logit_bias={x: 1000, y: 1000})
        bias = {x: 1000 + top[y] - top[x] + 0.5, y: 1000}  # x a little above y, both above the threshold
        drawn = llama.ids(logit_bias=bias, xtc_probability=1, xtc_threshold=0.2, **cold)[0][0]
        assert drawn == (x if exempt else y), above


def test_api055_logit_bias(llama):
    """API-055 B-026: the number is added to that token's logit: a banned token never comes, alone or among others, +100
    forces one, the shift is exact; bad keys, an id past the vocabulary are 400."""
    greedy = llama.ids(temperature=0, **FREE)
    banned = greedy[0][0]
    with ThreadPoolExecutor(8) as pool:
        runs = [pool.submit(llama.ids, temperature=0 if i % 2 else 1.5, seed=i, logit_bias={banned: -100}, **FREE) for i in range(8)]
        for f in runs:
            assert banned not in [t for t, _ in f.result()]
    assert {t for t, _ in llama.ids(seed=1, logit_bias={"40": 100}, **SAMPLED)} == {40}
    a, b = first_top(llama, logit_bias={"40": 500, "41": 500}), first_top(llama, logit_bias={"40": 501, "41": 500})
    assert abs((b[40] - b[41]) - (a[40] - a[41]) - 1) < 1e-3
    llama.refused(RAW, {"prompt": "a", "logit_bias": {"x1": 1}}, "logit_bias must be a dict of int to float")
    llama.refused(RAW, {"prompt": "a", "logit_bias": {"512": 1}}, "vocabulary")
    assert llama.ids(temperature=0, logit_bias={}, **FREE) == greedy


def gap(s, prompt, **fields):
    """How far Q is above @, both lifted out of the others."""
    q, at = rig.vocabulary()[b"Q"], rig.vocabulary()[b"@"]
    top = first_top(s, prompt, logit_bias={q: 1000, at: 1000}, **fields)
    return top[q] - top[at]


@pytest.mark.parametrize("kind, value, once", [("presence", 3, 3), ("frequency", 3, 3), ("repetition", 1.002, 2)])
def test_api056_penalties_and_windows(llama, kind, value, once):
    """API-056 API-057 API-058 API-059 API-060 API-061: presence once for a token in the window, frequency for each time,
    repetition divides a positive logit; 20 last tokens by default, 0 the whole history; off by default."""
    near, far, twice = "Q" + "z!" * 5, "Q" + "z!" * 15, "Q!Q" + "z!" * 4
    field, window = f"{kind}_penalty", f"{kind}_context_size"
    assert len(tokens(llama, far)) == 31
    for prompt, fields, want in ((near, {}, 1), (far, {}, 0), (far, {window: 0}, 1), (far, {window: 31}, 1), (far, {window: 30}, 0),
                                 (near, {window: 5}, 0), (twice, {}, 2 if kind == "frequency" else 1)):
        change = gap(llama, prompt) - gap(llama, prompt, **{field: value}, **fields)
        assert abs(change - want * once) < 0.1, (prompt, fields, change)
    llama.refused(RAW, {"prompt": "a", field: "x"}, field)


def test_api056_models_own_default(tmp_path, llama):
    """API-056: a repetition_penalty of generation_config.json holds for requests that do not say."""
    with Server(model=rig.copy_model(tmp_path, generation={"repetition_penalty": 1.7})) as s:
        own, said = s.ids(temperature=0, **FREE), llama.ids(temperature=0, repetition_penalty=1.7, **FREE)
        assert own == said != llama.ids(temperature=0, **FREE)
        assert s.ids(temperature=0, repetition_penalty=1, **FREE) == llama.ids(temperature=0, **FREE)


def test_api065_tools(thinker):
    """API-065 API-066: tools reach the template; tool_choice "none" takes them away, "auto" is the default; what cannot be
    enforced, and what is no tool, is refused."""
    tool = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}

    def n_prompt(**f):
        return thinker.chat(**f)["usage"]["prompt_tokens"]

    none = n_prompt()
    assert n_prompt(tools=[tool]) == n_prompt(tools=[tool], tool_choice="auto") > none + 20
    assert n_prompt(tools=[tool], tool_choice="none") == n_prompt(tools=[]) == n_prompt(tools=None) == none
    for bad in ({"tools": {}}, {"tools": [{"type": "function"}]}, {"tools": [{"type": "x", "function": {"name": "a"}}]}):
        thinker.refused(CHAT, {"messages": HELLO, **bad}, "tools")
    for bad in ("sometimes", 3, {"type": "function"}, {"type": "function", "function": {"name": "other"}}):
        thinker.refused(CHAT, {"messages": HELLO, "tools": [tool], "tool_choice": bad}, "tool_choice")


def test_api065_allowed_tools(thinker):
    """API-065: tool_choice allowed_tools: the other tools are not there, for the prompt or for a forced call."""
    tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
             for n in ("aa", "bb", "cc")]
    body = {"messages": HELLO, "tools": tools, "max_tokens": 120, "parallel_tool_calls": False}

    def some(mode, *names):
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}}

    for name in ("aa", "cc"):
        m = thinker.ok(CHAT, {**body, "tool_choice": some("required", name)})["choices"][0]["message"]
        assert [c["function"]["name"] for c in m["tool_calls"]] == [name]
    def length(**f):
        return thinker.ok(CHAT, {**body, "max_tokens": 1, **f})["usage"]["prompt_tokens"]

    assert length(tool_choice=some("auto", "aa", "bb")) == length(tools=tools[:2])
    for names in (["zz"], ["aa", "zz"]):
        thinker.refused(CHAT, {**body, "tool_choice": some("auto", *names)}, "tool_choice allows zz, which is none of the tools")
    thinker.refused(CHAT, {**body, "tool_choice": some("never", "aa")}, "tool_choice must be")
    thinker.refused(CHAT, {**body, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.allowed_tools.tools")


def test_older_form_of_tools(llama):
    """What asks for calls in a form that no answer has is refused by name; what asks for none is not."""
    f = {"name": "f", "parameters": {"type": "object"}}
    llama.refused(CHAT, {"messages": HELLO, "functions": [f]}, "functions is not supported; send them as tools")
    llama.refused(CHAT, {"messages": HELLO, "function_call": {"name": "f"}}, "function_call is not supported; send tool_choice")
    llama.refused(CHAT, {"messages": HELLO, "functions": {"f": f}}, "functions must be of type list")
    said = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    llama.refused(CHAT, {"messages": [*HELLO, said, *HELLO]}, "messages[1].function_call is not supported; send tool_calls")
    llama.chat(messages=[*HELLO, {"role": "assistant", "content": "a", "function_call": None}, *HELLO])
    llama.chat(functions=[], function_call="auto")
    llama.chat(functions=None, function_call=None)


def test_refusal_in_a_history(llama):
    """A refusal of another model is text of its turn, as in a message of parts."""
    def length(part):
        return llama.chat(messages=[*HELLO, {"role": "assistant", "content": [part]}, *HELLO], max_tokens=1)["usage"]["prompt_tokens"]

    assert length({"type": "refusal", "refusal": "I will not"}) == length({"type": "text", "text": "I will not"})
    flat = [*HELLO, {"role": "assistant", "content": None, "refusal": "I will not"}, *HELLO]
    assert llama.chat(messages=flat, max_tokens=1)["usage"]["prompt_tokens"] == length({"type": "text", "text": "I will not"})
    llama.refused(CHAT, {"messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]}, "content[0].refusal must be of type str")


def test_api067_template_kwargs(thinker):
    """API-067 API-068 API-069 API-133 API-134: the object reaches the template; enable_thinking and reasoning_effort choose the turn."""
    def r(**f):
        a = thinker.chat(temperature=0, **f)
        return a["usage"]["prompt_tokens"], a["choices"][0]["message"]

    base = r()
    assert r(chat_template_kwargs={"extra": "@@@@@"})[0] == base[0] + 5
    on, off = r(chat_template_kwargs={"enable_thinking": True}), r(chat_template_kwargs={"enable_thinking": False})
    assert off == base and on[0] < off[0] and on[1]["content"] == "" and on[1]["reasoning_content"]
    assert r(reasoning_effort="none") == off
    for level in ("minimal", "low", "medium", "high"):
        assert r(reasoning_effort=level) == on
    assert r(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}) == off
    thinker.refused(CHAT, {"messages": HELLO, "reasoning_effort": "max"}, "reasoning_effort")
    thinker.refused(CHAT, {"messages": HELLO, "chat_template_kwargs": []}, "chat_template_kwargs")
    thinker.refused(CHAT, {"messages": HELLO, "chat_template_kwargs": {"enable_thinking": "yes"}}, "enable_thinking")


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_api070_wrong_constraints_are_refused(llama, path):
    """API-070 API-211: a constraint that is wrong is a 400 that names its field, in both modes."""
    base = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    for field, value in (("response_format", {"type": "xml"}), ("guided_grammar", "root ::= other"), ("guided_regex", "(a"),
                         ("guided_choice", []), ("structured_outputs", {"regex": "[z-a]"}), ("guided_json", {"type": "strng"}),
                         ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": []}}})):
        for stream in (False, True):
            e = llama.refused(path, {**base, field: value, "stream": stream}, field)
            assert e["param"] == field
    assert llama.ok(path, {**base, "max_tokens": 1, "response_format": {"type": "text"}})


# --- section 4 ---

def test_api080_precedence(tmp_path, llama):
    """API-080 API-081 API-084 API-087 CFG-123: request, then flag, then generation_config.json, then fallback, each hiding the next;
    an explicit 0 is a value. A request without sampling fields (what a browser page sends) gets the lower tiers."""
    model = rig.copy_model(tmp_path, generation={"temperature": 0.0, "top_k": 3, "top_p": 0.5})
    hot = {"seed": 2, **FREE}

    def want(**f):
        return llama.ids(path=CHAT, **hot, **{"top_k": 3, "top_p": 0.5, **f})

    with Server(model=model) as s:
        assert s.ids(path=CHAT, **hot) == want(temperature=0)
        assert s.ids(path=CHAT, temperature=2, **hot) == want(temperature=2)
        assert s.ids(path=CHAT, temperature=2, top_p=0, top_k=0, **hot) == want(temperature=2, top_p=0, top_k=0)
    with Server("--temperature", 2, "--top-k", 0, "--top-p", 0.9, "--max-tokens", 5, model=model) as s:
        assert s.ids(path=CHAT, **hot) == want(temperature=2, top_k=0, top_p=0.9)
        assert s.ids(path=CHAT, temperature=0, **hot) == want(temperature=0)
        assert s.ids(path=CHAT, top_k=2, **hot) == want(temperature=2, top_k=2, top_p=0.9)
        assert s.ok(CHAT, {"messages": HELLO, "ignore_eos": True})["usage"]["completion_tokens"] == 5
        assert s.ids(path=CHAT, temperature=3, top_p=0, min_p=0.01, xtc_probability=1, xtc_threshold=0.02, logit_bias={"40": 5},
                     repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2, repetition_context_size=5,
                     presence_context_size=6, frequency_context_size=7, **hot) == \
            llama.ids(path=CHAT, temperature=3, top_p=0, top_k=0, min_p=0.01, xtc_probability=1, xtc_threshold=0.02,
                      logit_bias={"40": 5}, repetition_penalty=1.1, presence_penalty=0.3, frequency_penalty=0.2,
                      repetition_context_size=5, presence_context_size=6, frequency_context_size=7, **hot)


def test_api083_fallback(llama):
    """API-083: temperature 0.7, top-p and top-k off."""
    assert llama.ids(seed=3, **FREE) == llama.ids(seed=3, temperature=0.7, top_p=0, top_k=0, **FREE)


def test_api085_turn_without_thinking(thinker):
    """API-085 API-138: a model's own 1.6 holds for thinking turns; other turns use 0.7; an explicit temperature is kept in both."""
    think = {"chat_template_kwargs": {"enable_thinking": True}}
    one = {"path": CHAT, "seed": 4, **FREE}
    assert thinker.ids(**one) == thinker.ids(temperature=0.7, **one) != thinker.ids(temperature=1.6, **one)
    assert thinker.ids(**one, **think) == thinker.ids(temperature=1.6, **one, **think) != thinker.ids(temperature=0.7, **one, **think)


# --- section 5 ---

def test_api088_json_answer(llama):
    """API-088 API-089 API-090 API-091 API-092 API-093 API-098 API-099 API-100"""
    before = int(time.time())
    a, b = llama.chat(ignore_eos=True), llama.chat(ignore_eos=True)
    assert re.fullmatch(r"chatcmpl-\w+", a["id"]) and a["id"] != b["id"]
    assert a["object"] == "chat.completion" and a["model"] == "llama"
    assert isinstance(a["created"], int) and before <= a["created"] <= time.time() + 1
    assert len(a["choices"]) == 1 and a["choices"][0]["index"] == 0
    m = a["choices"][0]["message"]
    assert m["role"] == "assistant" and isinstance(m["content"], str)
    assert "logprobs" not in a["choices"][0] and "tool_calls" not in m
    u = b["usage"]
    assert all(type(u[k]) is int for k in ("prompt_tokens", "completion_tokens", "total_tokens"))
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] and u["completion_tokens"] == 8
    assert u["prompt_tokens_details"]["cached_tokens"] == u["prompt_tokens"] - 1  # the second time all but the last token
    assert "logprobs" in llama.chat(logprobs=True)["choices"][0]


def test_api094_text_is_text(says):
    """API-094 API-095 API-108: tool-call markup is not parsed in this version: it stays in content, in both modes; content
    is a string, also when nothing was said."""
    markup = [b"{", b"n", b"a", b"m", b"e", b":", b"f", b"}"]
    s = says(*markup)
    tool = {"type": "function", "function": {"name": "f"}}
    r = s.chat(max_tokens=50, tools=[tool])
    assert r["choices"][0]["message"] == {"role": "assistant", "content": "{name:f}"}
    events, text = s.stream(CHAT, {"messages": HELLO, "tools": [tool]})
    assert rig.joined(events) == "{name:f}" and "tool_calls" not in text
    assert s.chat(stop="{")["choices"][0]["message"]["content"] == ""


def test_api096_finish_reasons(says):
    """API-096 API-097 API-129: end token and stop match give stop, the cap gives length; the end token is not text."""
    s = says(b"A", b"B", b"C", b"D")
    for fields, want in (({"max_tokens": 50}, ("ABCD", "stop")), ({"max_tokens": 50, "stop": "C"}, ("AB", "stop")),
                         ({"max_tokens": 2}, ("AB", "length")), ({"max_tokens": 4}, ("ABCD", "length")), ({"max_tokens": 5}, ("ABCD", "stop"))):
        c = s.chat(**fields)["choices"][0]
        assert (c["message"]["content"], c["finish_reason"]) == want
        events, _ = s.stream(CHAT, {"messages": HELLO, **fields})
        assert (rig.joined(events), events[-1]["choices"][0]["finish_reason"]) == want


# --- section 6 ---

def test_api101_stream(llama):
    """API-101 API-102 API-103 API-104 API-105 API-109 API-110: the form of every event, their order, usage on the last chunk
    without asking, no logprobs, [DONE] without quotes, and the same text as the JSON answer."""
    fields = {"messages": HELLO, "max_tokens": 30, "ignore_eos": True, "seed": 5, "temperature": 1.2, "logprobs": True, "top_logprobs": 3}
    events, text = llama.stream(CHAT, fields)  # sse_events checks the lines and [DONE]
    assert "logprobs" not in text and text.endswith("\n\ndata: [DONE]\n\n")
    assert all(e["object"] == "chat.completion.chunk" and e["id"] == events[0]["id"] and e["model"] == "llama" for e in events)
    choices = [e["choices"][0] for e in events]
    assert choices[0]["delta"]["role"] == "assistant" and all("role" not in c["delta"] for c in choices[1:])
    assert all("content" in c["delta"] and c["finish_reason"] is None for c in choices[1:-1])
    assert choices[-1]["delta"] == {} and choices[-1]["finish_reason"] == "length"
    assert all("usage" not in e for e in events[:-1]) and events[-1]["usage"]["completion_tokens"] == 30
    assert rig.joined(events) == llama.ok(CHAT, fields)["choices"][0]["message"]["content"]
    events, _ = llama.stream(CHAT, {**fields, "stream_options": {"include_usage": True}})  # Q11
    assert events[-1]["choices"] == [] and events[-1]["usage"] == events[-2]["usage"]


def test_api106_whole_characters(says):
    """API-106: four tokens of one character come as one piece; one that never ends becomes U+FFFD at the end."""
    s = says(b"A", b"\xf0", b"\x9f", b"\x99", b"\x82", b"B", b"\xc3")
    events, _ = s.stream(CHAT, {"messages": HELLO})
    pieces = [e["choices"][0]["delta"].get("content") for e in events[1:-1]]
    assert "".join(pieces) == "A\U0001f642B\ufffd" and any("\U0001f642" in p for p in pieces)
    for n, want in ((2, "A\ufffd"), (4, "A\ufffd"), (5, "A\U0001f642")):
        assert rig.joined(s.stream(CHAT, {"messages": HELLO, "max_tokens": n})[0]) == want == s.text(max_tokens=n)


def test_api107_stop_text_is_held(says):
    """API-107 API-126 API-127 API-128 API-130: a stop over several tokens fires once, no part of it is sent; a beginning
    that comes to nothing is sent after all; one string and an array are alike."""
    s = says(b"A", b"E", b"N", b"D", b" ", b"O", b"F", b"x", b" the")
    for stop, want in (("END OF", "A"), ("ND O", "AE"), ("END OX", "AEND OFx the"), ("the", "AEND OFx "), ("F", "AEND O"), ("AEND", "")):
        for form in (stop, [stop], ["zzz", stop, "ENDE", "yyy"]):
            c = s.chat(stop=form, max_tokens=50)["choices"][0]
            assert (c["message"]["content"], c["finish_reason"]) == (want, "stop")
            events, text = s.stream(CHAT, {"messages": HELLO, "stop": form})
            assert rig.joined(events) == want
            for e in events[:-1]:
                assert want.startswith(e["choices"][0]["delta"]["content"]) or e["choices"][0]["delta"]["content"] in want


# --- section 7 ---

def block(s, path=RAW, **fields):
    base = {"messages": HELLO} if path == CHAT else {"prompt": "hello"}
    return s.ok(path, {**base, "max_tokens": 8, "temperature": 0, **fields})["choices"][0].get("logprobs")


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_api112_forms(llama, path):
    """API-062 API-063 API-112 API-113 API-114 API-115 API-116 API-117 API-118 API-119 API-121 API-122 API-123: the plain
    form, the top-k form for k = 1 and 11, which fields give which, pieces as in the vocabulary."""
    vocabulary = {v: k for k, v in json.loads((LLAMA / "tokenizer.json").read_text())["model"]["vocab"].items()}
    plain = block(llama, path, logprobs=True)
    assert list(plain) == ["content"] and len(plain["content"]) == 8
    assert all(set(e) == {"id", "logprob"} and type(e["id"]) is int and e["logprob"] <= 0 for e in plain["content"])
    for k in (1, 5, 11):
        for both in ({"logprobs": True}, {"logprobs": False}, {}):
            b = block(llama, path, top_logprobs=k, **both)["content"]
            for e in b:
                assert set(e) == {"id", "token", "logprob", "top_logprobs"} and len(e["top_logprobs"]) == k
                assert all(set(t) == {"id", "token", "logprob"} for t in e["top_logprobs"])
                assert {x: e[x] for x in ("id", "token", "logprob")} == e["top_logprobs"][0]
                values = [t["logprob"] for t in e["top_logprobs"]]
                assert values == sorted(values, reverse=True)
                assert all(t["token"] == vocabulary.get(t["id"], t["token"]) for t in e["top_logprobs"])
    assert any("\u0120" in t["token"] or ord(t["token"][0]) > 127 for e in b for t in e["top_logprobs"])  # raw pieces
    assert block(llama, path) is None and block(llama, path, logprobs=False) is None
    assert block(llama, path, top_logprobs=-1) is None and block(llama, path, top_logprobs=0) is None
    assert block(llama, path, top_logprobs=0, logprobs=True) == plain == block(llama, path, top_logprobs=-1, logprobs=True)


def test_api116_head_is_the_best_candidate(llama):
    """API-116: with a hot draw the entry's own id is the best candidate's, not the drawn one's."""
    hot = {"temperature": 5, "seed": 3, "ignore_eos": True}
    drawn = [e["id"] for e in block(llama, logprobs=True, **hot)["content"]]
    top = block(llama, top_logprobs=2, **hot)["content"]
    assert any(t["id"] != d for t, d in zip(top, drawn)) and all(t["id"] == t["top_logprobs"][0]["id"] for t in top)


def test_api112_every_token_has_an_entry(says, thinker):
    """API-112: the end token, tokens cut off by a stop, and reasoning are counted like the others."""
    s = says(b"A", b"B", b"C", b"D")
    vocab = rig.vocabulary()
    ids = [e["id"] for e in s.chat(logprobs=True, max_tokens=50)["choices"][0]["logprobs"]["content"]]
    assert ids == [vocab[x] for x in (b"A", b"B", b"C", b"D", b"<|im_end|>")]
    r = s.chat(logprobs=True, max_tokens=50, stop="BC")
    assert len(r["choices"][0]["logprobs"]["content"]) == r["usage"]["completion_tokens"] == 3
    r = thinker.chat(logprobs=True, reasoning_effort="high", ignore_eos=True)
    assert r["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(r["choices"][0]["logprobs"]["content"]) == 8


def test_api120_what_the_values_are(llama):
    """API-120: log-softmax over the whole vocabulary, after bias and penalties, before temperature and truncation."""
    base = first_top(llama)
    for later in ({"temperature": 3}, {"temperature": 2, "top_p": 0.1}, {"temperature": 2, "top_k": 2},
                  {"temperature": 2, "min_p": 0.9}, {"temperature": 2, "xtc_probability": 1, "xtc_threshold": 0.01}):
        assert first_top(llama, **later) == base, later
    two = first_top(llama, logit_bias={"40": 100, "41": 100})
    assert abs(math.exp(two[40]) + math.exp(two[41]) - 1) < 1e-4
    assert first_top(llama, "Q@@@", presence_penalty=2) != first_top(llama, "Q@@@")
    assert sum(math.exp(v) for v in base.values()) <= 1 + 1e-5


def test_api124_logprobs_change_nothing(llama):
    """API-124 API-125: the same tokens with and without, alone and among others; usage.lane says batched."""
    plain = llama.raw(seed=6, **SAMPLED)["choices"][0]["text"]
    for f in ({"logprobs": True}, {"top_logprobs": 11}):
        r = llama.raw(seed=6, **SAMPLED, **f)
        assert r["choices"][0]["text"] == plain and r["usage"]["lane"] == "batched"
    alone = llama.ids(seed=6, **SAMPLED)
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(llama.raw, seed=i, top_logprobs=i + 1, **SAMPLED) for i in range(6)]
        mine = [pool.submit(llama.ids, seed=6, **SAMPLED) for _ in range(3)]
        assert all(f.result() == alone for f in mine) and all(f.result() for f in others)


# --- section 8 ---

def test_api064_stop_shapes(llama):
    """API-064 B-037: one string, an array, null, an empty array, five strings; an empty string, numbers are refused."""
    whole = llama.text(temperature=0, **FREE)
    for none in (None, [], "\x01never", ["\x01a", "\x01b", "\x01c", "\x01d", "\x01e"]):
        assert llama.text(temperature=0, stop=none, **FREE) == whole
    part = whole[5:8]
    for stop in (part, [part], ["\x01a", part]):
        assert llama.text(temperature=0, stop=stop, **FREE) == whole[:whole.index(part)]
    for bad in ("", [""], 3, [3], {}, ["a", None], True):
        llama.refused(CHAT, {"messages": HELLO, "stop": bad}, "stop")


def test_api131_stops_in_a_batch(llama):
    """API-131 API-348: eight requests with stops of their own together give what each gives alone."""
    whole = llama.text(temperature=0, max_tokens=60, ignore_eos=True)
    stops = [whole[i:i + 2] for i in range(4, 36, 4)]
    alone = [llama.text(temperature=0, max_tokens=60, ignore_eos=True, stop=x) for x in stops]
    with ThreadPoolExecutor(8) as pool:
        together = [f.result() for f in [pool.submit(llama.text, temperature=0, max_tokens=60, ignore_eos=True, stop=x) for x in stops]]
    assert together == alone == [whole[:whole.index(x)] for x in stops]
