"""Requests of different kinds at the same time, with the tiny llama checkpoint: each answer is what it is alone."""
from concurrent.futures import ThreadPoolExecutor

import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, Server

THINKS = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
          "{% if tools %}{{ '<tool_call>' + tools | tojson + '\n' }}{% endif %}{{ '<|im_start|>assistant\n' }}"
          "{% if enable_thinking %}{{ '<think>\n' }}{% endif %}")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {"n": {"type": "integer", "maximum": most}}, "required": ["n"], "additionalProperties": False}}}
    for name, most in (("look", 9), ("go", 99999))]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = rig.copy_model(tmp_path_factory.mktemp("together"), tokenizer={"chat_template": THINKS})
    with Server("--batch", 4, model=model) as s:
        yield s


def check(server, kinds):
    """Each body alone, then all at once: equal choices. Returns the choices."""
    bodies = [{"messages": HELLO, "temperature": 1, "seed": i, "max_tokens": 80, **kind} for i, kind in enumerate(kinds)]
    alone = [server.ok(CHAT, b)["choices"] for b in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = [r["choices"] for r in pool.map(lambda b: server.ok(CHAT, b), bodies)]
    for choices in alone + together:
        for call in choices[0]["message"].get("tool_calls") or []:
            call.pop("id")  # its own each time
    assert together == alone
    return [c[0] for c in alone]


def test_api139_thinking_and_not(server):
    """API-139"""
    got = check(server, [{"reasoning_effort": "high" if i % 2 else "none", "ignore_eos": True} for i in range(6)])
    assert [bool(c["message"].get("reasoning_content")) for c in got] == [False, True] * 3


def test_api152_tools(server):
    """API-152: each row has a parser of its own."""
    named = [{"type": "function", "function": {"name": t["function"]["name"]}} for t in TOOLS]
    got = check(server, [{"tools": TOOLS, "tool_choice": named[i % 2]} for i in range(4)] + [{}, {"tools": TOOLS[:1], "tool_choice": "required"}])
    calls = [[c["function"]["name"] for c in choice["message"].get("tool_calls") or []] for choice in got]
    assert calls == [["look"], ["go"], ["look"], ["go"], [], ["look"]]


def test_api162_constrained(server):
    """API-162: constrained requests, each with a grammar of its own, beside free ones."""
    grammars = [{"structured_outputs": {"regex": r}} for r in ("[ab]{20}", "[0-9]{7}x", "(yes|no){3}")]
    got = check(server, grammars + [{"response_format": {"type": "json_object"}}, {}, {}])
    texts = [c["message"]["content"] for c in got]
    assert set(texts[0]) <= set("ab") and len(texts[0]) == 20 and texts[1].endswith("x") and len(texts[1]) == 8
    assert set(texts[2].replace("yes", "y").replace("no", "n")) <= set("yn")
