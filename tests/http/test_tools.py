"""Tools, tool choice and structured output over HTTP with the OpenAI SDK: forced answers of every family's markup, and SmolLM2
where it is in the cache."""
import json
import os
import random
from pathlib import Path

import openai
import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, RAW

WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
TOOLS = [WEATHER, PING]
TURN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{% for c in m.tool_calls or [] %}" \
       "{{ '<tool_call>' + c.function.name + (c.function.arguments | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}" \
       "{% if tools %}{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
FAMILIES = {  # what a template holds, and the same call in that markup
    "hermes": ("<tool_call>", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'),
    "qwen": ("<tool_call><function=", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n"
             "</parameter>\n</function>\n</tool_call>"),
    "minicpm": ('<function name="', '<function name="weather"><param name="city">Oslo</param><param name="days">2</param></function>'),
    "gemma": ("<|tool_call>", '<|tool_call>call:weather{city:<|"|>Oslo<|"|>,days:2}<tool_call|>'),
    "glm": ("<tool_call><arg_key>", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n"
            "<arg_value>2</arg_value>\n</tool_call>"),
    "llama": ("<|python_tag|>", '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo", "days": 2}}'),
    "mistral": ("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}]'),
    "python": ("<|tool_call_start|>", '<|tool_call_start|>[weather(city="Oslo", days=2)]<|tool_call_end|>'),
}


@pytest.fixture
def forced(tmp_path):
    """forced(text, sign): a server whose model says `text`, with a template that names `sign`."""
    if not rig.has_fault_points():
        pytest.skip("a build without fault points")
    running = []

    def start(text, sign="<tool_call>", template=TURN, env=None, **script):
        at = tmp_path / f"m{len(running)}"
        at.mkdir()
        model = rig.copy_model(at, tokenizer={"chat_template": template + "{# " + sign + " #}"})
        file = at / "script.json"
        file.write_text(json.dumps({"text": text, **script}))
        running.append(rig.Server("--scripted", file, model=model, env=env))
        return running[-1]

    yield start
    for s in running:
        s.stop()


def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x", max_retries=0)


def ask(server, **kw):
    return client(server).chat.completions.create(**{"model": "x", "messages": HELLO, "tools": TOOLS, **kw})


def joined(stream):
    """A stream as (content, calls, finish)."""
    content, calls, finish = "", {}, None
    for chunk in stream:
        for c in chunk.choices:
            content += c.delta.content or ""
            for t in c.delta.tool_calls or []:
                call = calls.setdefault(t.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += t.id or ""
                call["name"] += t.function.name or ""
                call["arguments"] += t.function.arguments or ""
            finish = c.finish_reason or finish
    return content, [calls[i] for i in sorted(calls)], finish


@pytest.mark.parametrize("family", FAMILIES)
def test_api140_every_family(forced, family):
    """API-094 API-095 API-096 API-108 API-140 API-145 API-148: each markup gives the same wire form, whole and streamed."""
    sign, markup = FAMILIES[family]
    s = forced("Let me see.\n" + markup, sign)
    whole = ask(s).choices[0]
    (call,) = whole.message.tool_calls
    assert whole.message.content == "Let me see." and whole.finish_reason == "tool_calls"
    assert call.type == "function" and call.id.startswith("call_") and call.function.name == "weather"
    assert call.function.arguments == '{"city":"Oslo","days":2}'
    content, calls, finish = joined(ask(s, stream=True))
    assert (content, finish) == ("Let me see.", "tool_calls")
    assert calls == [{"id": call.id, "name": "weather", "arguments": call.function.arguments}]


def test_api151_none_and_api094_empty_content(forced):
    """API-094 API-151 B-055: only a call: content is ""; with tool_choice none nothing is converted."""
    markup = FAMILIES["hermes"][1]
    s = forced(markup)
    assert ask(s).choices[0].message.content == ""
    assert ask(s, tool_choice="none").choices[0].message.content == markup
    assert ask(s, tools=openai.NOT_GIVEN).choices[0].message.tool_calls is None


def test_b053_unknown_markup_is_content(forced):
    """B-053 API-147: what does not parse is the content, never empty, never an error; whole and streamed the same."""
    for text in ('<tool_call>{"name": "weather", "arguments": {"city": </tool_call>', "[weather(city='x')]", "<tool_call>oh"):
        s = forced(text)
        assert ask(s).choices[0].message.content == text
        assert joined(ask(s, stream=True)) == (text, [], "stop")


def test_b058_cut_off(forced):
    """B-058: the limit falls into a call: length, and the arguments as produced."""
    s = forced(FAMILIES["hermes"][1])
    whole = ask(s, max_tokens=50).choices[0]
    got = joined(ask(s, max_tokens=50, stream=True))
    assert whole.finish_reason == got[2] == "length"
    (call,) = whole.message.tool_calls
    assert call.function.arguments == got[1][0]["arguments"]
    assert '{"city": "Oslo", "days": 2}'.startswith(call.function.arguments) and not call.function.arguments.endswith("}")


def test_api149_round_trip(forced):
    """API-149 API-150 B-020: call, result, answer; null, absent and "" content are the same prompt."""
    s = forced(FAMILIES["hermes"][1])
    first = ask(s).choices[0].message
    usage = []
    for content in (None, "", "absent"):
        assistant = {"role": "assistant", "content": content, "tool_calls": [c.model_dump() for c in first.tool_calls]}
        if content == "absent":
            del assistant["content"]
        messages = [*HELLO, assistant, {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "7"}]
        usage.append(ask(s, messages=messages).usage.prompt_tokens)
    assert len(set(usage)) == 1


def test_b016_arguments_must_be_an_object(forced):
    """B-016"""
    s = forced("a")
    bad = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": "[1]"}}]}
    with pytest.raises(openai.BadRequestError, match=r"messages\[1\].tool_calls\[0\]"):
        ask(s, messages=[*HELLO, bad])


def test_q21_parallel_tool_calls(forced):
    """Q21: false keeps the first call only, and nothing more is drawn."""
    s = forced("\n".join([FAMILIES["hermes"][1]] * 3))
    assert len(ask(s).choices[0].message.tool_calls) == 3
    r = ask(s, parallel_tool_calls=False)
    assert len(r.choices[0].message.tool_calls) == 1 and r.choices[0].finish_reason == "tool_calls"
    assert r.usage.completion_tokens < ask(s).usage.completion_tokens / 2
    several = ask(s, n=2)
    assert [len(c.message.tool_calls) for c in several.choices] == [3, 3]
    ids = [t.id for c in several.choices for t in c.message.tool_calls]
    assert len(set(ids)) == 6


@pytest.mark.parametrize("family", ["hermes", "qwen", "minicpm", "glm", "llama", "mistral", "python"])
def test_b055_named_tool_is_certain(forced, family):
    """B-055: the model says something else; the grammar leaves it no way but the call."""
    s = forced("I would rather talk.", FAMILIES[family][0])
    for choice in ({"type": "function", "function": {"name": "ping"}}, "required"):
        r = ask(s, tool_choice=choice, tools=[PING], parallel_tool_calls=False, max_tokens=400).choices[0]
        assert r.message.tool_calls[0].function.name == "ping" and r.finish_reason == "tool_calls", r
        assert r.message.content == "" and r.message.tool_calls[0].function.arguments == "{}"
    with pytest.raises(openai.BadRequestError, match="other"):
        ask(s, tool_choice={"type": "function", "function": {"name": "other"}})
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        ask(s, tool_choice="required", tools=[])


# --- structured output ---

SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
          "required": ["kind", "n"], "additionalProperties": False}
LOOSE = {"type": "object", "properties": {"t": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3}},
         "required": ["t"], "additionalProperties": False}


def fmt(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **({"strict": strict} if strict is not None else {})}}


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_api154_fields(forced, path):
    """API-153 API-154 API-155 API-156 API-157 API-158 Q25: each field is enforced, on chat and on completions, whole and streamed."""
    s = forced("hello there")
    base = {"messages": HELLO} if path == CHAT else {"prompt": "a"}

    def text(**f):
        c = s.ok(path, {**base, "max_tokens": 100, **f})["choices"][0]
        assert c["finish_reason"] == "stop"
        said = c["message"]["content"] if path == CHAT else c["text"]
        events = [json.loads(e[6:]) for e in s.post(path, {**base, "max_tokens": 100, "stream": True, **f}).text.split("\n\n")
                  if e.startswith("data: {")]
        parts = "".join((c["delta"].get("content") or "") if path == CHAT else c["text"] for e in events for c in e["choices"])
        assert parts == said
        return said

    for f in ({"response_format": fmt(SCHEMA)}, {"response_format": fmt(SCHEMA, None)}, {"guided_json": SCHEMA},
              {"guided_json": json.dumps(SCHEMA)}, {"structured_outputs": {"json": SCHEMA}},
              {"response_format": {"type": "json_object", "schema": SCHEMA}}):
        v = json.loads(text(**f))
        assert set(v) == {"kind", "n"} and v["kind"] in ("cat", "dog") and 0 <= v["n"] <= 9
    for f in ({"guided_choice": ["yes", "no way"]}, {"structured_outputs": {"choice": ["yes", "no way"]}}):
        assert text(**f) in ("yes", "no way")
    for f in ({"guided_regex": r"\d{2}-(a|b)"}, {"structured_outputs": {"regex": r"\d{2}-(a|b)"}}):
        assert text(**f)[2:] in ("-a", "-b")
    for f in ({"guided_grammar": 'root ::= "<" ("a" | "b") ">"'}, {"structured_outputs": {"grammar": 'root ::= "<" ("a" | "b") ">"'}}):
        assert text(**f) in ("<a>", "<b>")


def test_design_unenforceable(forced):
    """design.md section 6: strict is a 400 by keyword and path; not strict: the answer, a Warning header and the schema in the
    prompt. Whole and streamed."""
    s = forced('{"t": [1]}')
    body = {"messages": HELLO, "max_tokens": 60}
    for stream in (False, True):
        r = s.post(CHAT, {**body, "response_format": fmt(LOOSE), "stream": stream})
        assert r.status_code == 400 and "uniqueItems" in r.text and "#/properties/t" in r.text and r.json()["error"]["param"] == "response_format"
        r = s.post(CHAT, {**body, "response_format": fmt(LOOSE, False), "stream": stream})
        assert r.status_code == 200 and r.headers["warning"].startswith('199 - "structured output not enforced: uniqueItems at #/properties/t')
    noted = s.ok(CHAT, {**body, "response_format": fmt(LOOSE, False)})["usage"]["prompt_tokens"]
    assert noted > s.ok(CHAT, body)["usage"]["prompt_tokens"] + 30
    r = s.post(RAW, {"prompt": "a", "max_tokens": 60, "response_format": fmt(LOOSE, False)})
    assert r.status_code == 200 and "uniqueItems" in r.headers["warning"]
    assert "warning" not in s.post(CHAT, {**body, "response_format": fmt(SCHEMA)}).headers


def test_b064_remote_references(forced):
    """B-064, design.md section 6: a reference that leads out of the schema is never fetched: 400 by keyword and path under strict;
    else the rest is enforced, Warning names keyword and path, and the prompt holds the schema. A reference to nothing: always 400."""
    remote = {"type": "object", "properties": {"t": {"$ref": "http://127.0.0.1:1/s.json"}, "n": {"type": "integer"}},
              "required": ["t", "n"], "additionalProperties": False}
    missing = {**remote, "properties": {"t": {"$ref": "#/$defs/none"}, "n": {}}}
    s = forced('{"t": [1], "n": 5}')
    body = {"messages": HELLO, "max_tokens": 60}
    tool = {"type": "function", "function": {"name": "f", "parameters": remote}}
    for stream in (False, True):
        for f in ({"response_format": fmt(remote)}, {"guided_json": remote}):
            r = s.post(CHAT, {**body, **f, "stream": stream})
            assert r.status_code == 400 and "#/properties/t: $ref cannot be enforced" in r.text and r.json()["error"]["param"] == list(f)[0]
        r = s.post(CHAT, {**body, "tools": [{**tool, "function": {**tool["function"], "strict": True}}], "stream": stream})
        assert r.status_code == 400 and "tools[0].function.parameters: #/properties/t: $ref" in r.text
        r = s.post(CHAT, {**body, "response_format": fmt(missing, False), "stream": stream})
        assert r.status_code == 400 and "#/properties/t: $ref has no target" in r.text
        r = s.post(CHAT, {**body, "response_format": fmt(remote, False), "stream": stream})
        assert r.status_code == 200 and r.headers["warning"] == '199 - "structured output not enforced: $ref at #/properties/t"', r.headers
    r = s.ok(CHAT, {**body, "response_format": fmt(remote, False)})
    assert json.loads(r["choices"][0]["message"]["content"]) == {"t": [1], "n": 5}
    assert r["usage"]["prompt_tokens"] > s.ok(CHAT, body)["usage"]["prompt_tokens"] + 30
    r = s.post(CHAT, {**body, "tools": [tool]})
    assert r.status_code == 200 and "warning" not in r.headers  # nothing is promised of a call that is not forced
    assert forced('{"t": 1, "n": "x"}').ok(CHAT, {**body, "response_format": fmt(remote, False)})["choices"][0]["message"]["content"] != '{"t": 1, "n": "x"}'


@pytest.mark.parametrize("family", FAMILIES)
def test_design_unenforceable_strict_tool(forced, family):
    """design.md section 6: a strict tool with a keyword that the markup cannot hold is a 400 by keyword and path; JSON holds it."""
    s = forced("hello", FAMILIES[family][0])
    f = {"name": "f", "parameters": {"type": "object", "properties": {"p": {"type": "string", "pattern": "^x"}}, "required": ["p"],
                                     "additionalProperties": False}}
    body = {"messages": HELLO, "max_tokens": 20}
    for choice in ("auto", "required"):
        r = s.post(CHAT, {**body, "tools": [{"type": "function", "function": {**f, "strict": True}}], "tool_choice": choice})
        if family in ("hermes", "llama", "mistral"):
            assert r.status_code == 200, r.text
        else:
            assert r.status_code == 400 and r.json()["error"]["param"] == "tools", r.text
            assert "tools[0].function.parameters: #/properties/p: pattern" in r.text
    assert s.post(CHAT, {**body, "tools": [{"type": "function", "function": f}]}).status_code == 200


WRONG_SCHEMAS = [({"type": "strng"}, "#: type must be one of"), ({"type": "object", "properties": {"a": {"enum": []}}}, "#/properties/a: enum"),
                 ({"type": "object", "properties": {"a": {"$ref": "#/nope"}}}, "#/properties/a: $ref has no target"),
                 ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}, "#/properties/a: a cycle"),
                 ({"type": "object", "properties": {"a": {"type": "string", "pattern": "([a-z"}}, "required": ["a"]}, "#/properties/a: pattern")]


@pytest.mark.parametrize("family", FAMILIES)
def test_b061_whose_schema_is_wrong(forced, family):
    """B-061 B-055: where calls are forced and one of several tools has a wrong schema, the 400 names the tool, not the schema's own
    path alone. One that a named choice leaves out is not looked at."""
    s = forced("hello", FAMILIES[family][0])
    def tool(name, schema):
        return {"type": "function", "function": {"name": name, "parameters": schema}}
    for schema, part in WRONG_SCHEMAS:
        tools = [tool("good", {"type": "object", "properties": {}}), tool("bad", schema)]
        for choice in ("required", {"type": "function", "function": {"name": "bad"}}):
            r = s.post(CHAT, {"messages": HELLO, "max_tokens": 20, "tools": tools, "tool_choice": choice})
            assert r.status_code == 400 and f"tools[1].function.parameters: {part}" in r.json()["error"]["message"], r.text
            assert r.json()["error"]["param"] == "tools"
        only = {"type": "function", "function": {"name": "good"}}
        assert s.post(CHAT, {"messages": HELLO, "max_tokens": 20, "tools": tools, "tool_choice": only}).status_code == 200
    s.alive()


def test_api159_switched_off(forced):
    """API-159 CFG-145: MLX_BUN_GRAMMAR=0: words in the prompt and a header on chat, the header alone on completions."""
    s = forced("hello there", env={"MLX_BUN_GRAMMAR": "0"})
    plain = s.ok(CHAT, {"messages": HELLO})["usage"]["prompt_tokens"]
    r = s.post(CHAT, {"messages": HELLO, "response_format": fmt(SCHEMA)})
    assert r.json()["choices"][0]["message"]["content"] == "hello there" and "not enforced" in r.headers["warning"]
    assert r.json()["usage"]["prompt_tokens"] > plain + 30
    raw = s.post(RAW, {"prompt": "a", "guided_regex": "b"})
    assert raw.json()["choices"][0]["text"] == "hello there" and "not enforced" in raw.headers["warning"]
    assert raw.json()["usage"]["prompt_tokens"] == s.ok(RAW, {"prompt": "a"})["usage"]["prompt_tokens"]


def test_constraint_and_tools(forced):
    """A schema and tools: the answer is either; a schema after thinking."""
    s = forced(FAMILIES["hermes"][1])
    assert ask(s, response_format=fmt(SCHEMA)).choices[0].message.tool_calls[0].function.name == "weather"
    s = forced('{"kind": "dog", "n": 3}')
    c = ask(s, response_format=fmt(SCHEMA)).choices[0]
    assert json.loads(c.message.content) == {"kind": "dog", "n": 3} and c.message.tool_calls is None


def test_template_without_tools(forced):
    """A template that prints no tools: they are described in the system message, with a Warning header."""
    template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}"
    s = forced(FAMILIES["hermes"][1], sign="", template=template)
    r = s.post(CHAT, {"messages": HELLO, "tools": TOOLS})
    assert "tools" in r.headers["warning"] and r.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "weather"
    call = r.json()["choices"][0]["message"]
    r = s.post(CHAT, {"messages": [*HELLO, call, {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "7"}], "tools": TOOLS})
    assert r.status_code == 200


FILLED = {  # how a template writes a call, and one of a tool with a sole argument
    "hermes": ('<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>',
               '<tool_call>\n{"name": "look_up_city", "arguments": {"city": "Oslo"}}\n</tool_call>'),
    "qwen": ("<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}"
             "</function>\n</tool_call>",
             "<tool_call>\n<function=look_up_city>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"),
    "llama": ('{# <|python_tag|> #}{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
              '{"name": "look_up_city", "parameters": {"city": "Oslo"}}'),
    "mistral": ("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", '[TOOL_CALLS]look_up_city[ARGS]{"city": "Oslo"}'),
    "python": ('<|tool_call_start|>[{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}="{{ v }}"{% endfor %})]<|tool_call_end|>',
               '<|tool_call_start|>[look_up_city(city="Oslo")]<|tool_call_end|>'),
}


@pytest.mark.parametrize("family", FILLED)
def test_api168_fill_of_every_markup(forced, family):
    """API-168 API-173 API-180: what the template leaves no choice about is put in, in each markup; whole and streamed the call is the
    same as without."""
    call, text = FILLED[family]
    template = TURN.replace("{{ '<tool_call>' + c.function.name + (c.function.arguments | tojson) }}", "{% set f = c.function %}" + call)
    city = {"type": "function", "function": {"name": "look_up_city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}}}
    answers = []
    for env in (None, {"MLX_BUN_FILL": "strict"}):
        s = forced(text, sign="", template=template, env=env)
        r = s.ok(CHAT, {"messages": HELLO, "tools": [city, PING], "seed": None})  # API-171: nothing is put in where one is given
        (made,) = r["choices"][0]["message"]["tool_calls"]
        _, calls, finish = joined(ask(s, tools=[city, PING], stream=True))
        assert [(c["name"], c["arguments"]) for c in calls] == [(made["function"]["name"], made["function"]["arguments"])]
        assert finish == r["choices"][0]["finish_reason"] == "tool_calls"
        answers.append((made["function"], r["usage"]["completion_tokens"]))
        assert r["usage"].get("fill", {"tokens": 0})["tokens"] >= (12 if env else 0)
    assert answers[0] == answers[1] and json.loads(answers[0][0]["arguments"]) == {"city": "Oslo"}


def test_b055_references_by_place(tmp_path):
    """B-055 B-064: an argument that refers to another by its place in the schema; a markup that writes arguments one by one."""
    point = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    move = {"name": "move", "parameters": {"type": "object", "properties": {"from": point, "to": {"$ref": "#/properties/from"}}, "required": ["from", "to"]}}
    model = rig.copy_model(tmp_path, tokenizer={"chat_template": TURN + "{# " + FAMILIES["qwen"][0] + " #}"})
    with rig.Server(model=model) as s:
        r = s.chat(tools=[{"type": "function", "function": move}], tool_choice="required", parallel_tool_calls=False, max_tokens=400)
    (call,) = r["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert list(arguments) == ["from", "to"] and all(v["x"] in (1, 2) for v in arguments.values())


def test_b143_a_tag_in_a_constrained_answer_is_text(llama):
    """B-143 B-055: where a grammar says what the answer is, a tag in it opens no thought, whose text nothing would constrain."""
    for text in ("a<think>b", "<think>b</think>c"):
        m = llama.chat(guided_choice=[text], max_tokens=40)["choices"][0]["message"]
        assert m["content"] == text and "reasoning_content" not in m


# --- a real model ---

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlx-bun" / "starter"
SMOL = next((p.parent for p in sorted(CACHE.glob("**/config.json"))), None) if CACHE.exists() else None


@pytest.mark.skipif(SMOL is None, reason="the starter model is not in the cache: build/mlx-bun get --starter")
def test_b071_smollm2_constrained_and_plain():
    """B-071 B-055 B-056: SmolLM2, hot sampling: every constrained answer validates, plain ones between them stay free."""
    with rig.Server(model=SMOL) as s:
        c = client(s)
        rng = random.Random(3)
        for seed in range(3):
            kw = {"model": "x", "messages": [{"role": "user", "content": "Describe a pet."}], "max_tokens": 60, "temperature": 1.3, "seed": rng.randrange(1 << 30)}
            v = json.loads(c.chat.completions.create(**kw, response_format=fmt(SCHEMA)).choices[0].message.content)
            assert v["kind"] in ("cat", "dog") and 0 <= v["n"] <= 9
            assert c.chat.completions.create(**kw).choices[0].message.content
            forced_call = c.chat.completions.create(**{**kw, "max_tokens": 200}, tools=[PING], tool_choice="required", parallel_tool_calls=False)
            assert forced_call.choices[0].message.tool_calls[0].function.name == "ping"
