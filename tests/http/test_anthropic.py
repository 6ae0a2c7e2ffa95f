"""spec/api.md section 15 with the official `anthropic` client: blocks, events, tools, thinking, counts, errors. The model
says what dialect_rig.weather_model wrote down."""
import json

import anthropic
import pytest

import dialect_rig as dr
import http_rig as rig
from http_rig import Server

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "How is the weather in Rome and Oslo?"}]
TOOL = {"name": "get_weather", "description": "Weather of a city", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}, "code": {"type": "string"}}, "required": ["city"]}}
ASK = {"model": "claude-x", "max_tokens": 200, "messages": HELLO, "tools": [TOOL]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(model=dr.weather_model(tmp_path_factory.mktemp("weather"))) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="any", max_retries=0, timeout=60)


def refused(s, body, part, path=MESSAGES, status=400):
    r = s.post(path, {"max_tokens": 8, "messages": HELLO, **body})
    assert r.status_code == status, (body, r.status_code, r.text[:300])
    v = r.json()
    assert v["type"] == "error" and set(v) == {"type", "error"} and set(v["error"]) == {"type", "message"}
    assert v["error"]["type"] in ("invalid_request_error", "api_error") and part in v["error"]["message"], r.text
    return v


def tokens(s, **body):
    return s.ok(COUNT, {"messages": HELLO, **body})["input_tokens"]


# --- the answer ---

def test_api230_answer(client):
    """API-220 API-230 API-231 API-225 B-080: blocks in order, a signature, stop_reason, usage."""
    m = client.messages.create(**ASK)
    assert m.id.startswith("msg_") and m.type == "message" and m.role == "assistant" and m.model == "llama-bf16"
    assert [b.type for b in m.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert m.content[0].thinking == dr.THOUGHT and m.content[0].signature
    assert m.content[1].text == dr.LEAD
    assert [(b.name, b.input) for b in m.content[2:]] == [("get_weather", dr.ROME), ("get_weather", dr.OSLO)]
    assert m.content[2].id != m.content[3].id
    assert m.stop_reason == "tool_use" and m.stop_sequence is None
    assert m.usage.output_tokens == 12 and m.usage.input_tokens > 0 and m.usage.cache_read_input_tokens >= 0


def test_b076_stream_grammar(server):
    """B-076 B-077 API-232 API-233 API-234: one start and stop a block, indexes from 0, the signature before a thought
    stops, tool input from {} and its pieces join to the call."""
    r = server.post(MESSAGES + "?beta=true", {**ASK, "stream": True})
    assert r.headers["content-type"] == "text/event-stream"
    ev = dr.events(r.text)
    assert [e["type"] for e in ev[:2]] == ["message_start", "ping"]
    start = ev[0]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["input_tokens"] > 0
    assert [e["type"] for e in ev[-2:]] == ["message_delta", "message_stop"]
    assert ev[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None} and ev[-2]["usage"]["output_tokens"] == 12
    blocks, current = [], None
    for e in ev[2:-2]:
        if e["type"] == "content_block_start":
            assert current is None and e["index"] == len(blocks)
            current = {"block": e["content_block"], "deltas": []}
            blocks.append(current)
        else:
            assert current is not None and e["index"] == len(blocks) - 1
            if e["type"] == "content_block_delta":
                current["deltas"].append(e["delta"])
            else:
                assert e["type"] == "content_block_stop"
                current = None
    assert current is None
    kinds = [b["block"]["type"] for b in blocks]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[0]["deltas"][-1]["type"] == "signature_delta" and blocks[0]["block"]["thinking"] == ""
    assert [d["type"] for d in blocks[0]["deltas"][:-1]] == ["thinking_delta"] * (len(blocks[0]["deltas"]) - 1)
    assert all(d["type"] == "text_delta" for d in blocks[1]["deltas"])
    for b, want in zip(blocks[2:], (dr.ROME, dr.OSLO)):
        assert b["block"]["input"] == {} and b["block"]["name"] == "get_weather"
        assert all(d["type"] == "input_json_delta" for d in b["deltas"])
        assert json.loads("".join(d["partial_json"] for d in b["deltas"])) == want


def test_b076_sdk_rebuilds_the_message(client):
    """B-076 API-427: what the official client puts together from the stream is the answer without one."""
    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        kinds = [e.type for e in stream]
        rebuilt = stream.get_final_message()
    plain = [{k: v for k, v in b.model_dump().items() if k != "parsed_output"} for b in rebuilt.content]
    assert plain == [b.model_dump() for b in whole.content] and rebuilt.stop_reason == whole.stop_reason
    assert rebuilt.usage.output_tokens == whole.usage.output_tokens
    assert {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"} <= set(kinds)


def test_api223_tool_round_trip(client):
    """API-223 API-150 B-142: thoughts with signatures and calls go back; the next turn reuses the prefix."""
    first = client.messages.create(**ASK)
    results = [{"type": "tool_result", "tool_use_id": b.id, "content": c} for b, c in
               zip(first.content[2:], ("21", [{"type": "text", "text": "3"}]))]
    history = [*HELLO, {"role": "assistant", "content": [b.model_dump() for b in first.content]}, {"role": "user", "content": results}]
    second = client.messages.create(**{**ASK, "messages": history})
    assert [b.text for b in second.content] == ["It is 21 degrees there."] and second.stop_reason == "end_turn"
    assert second.usage.cache_read_input_tokens > 0
    with client.messages.stream(**{**ASK, "messages": history}) as stream:
        assert "".join(stream.text_stream) == "It is 21 degrees there."


def test_b145_thinking_eats_the_budget(client):
    """B-145 API-229: cut while it thinks: max_tokens, the thought is returned, usage is true."""
    m = client.messages.create(**{**ASK, "max_tokens": 3})
    assert m.stop_reason == "max_tokens" and [b.type for b in m.content] == ["thinking"] and m.usage.output_tokens == 3


def test_api227_stop_sequences(client, server):
    """API-227: the matched string is named and not in the text."""
    body = {**ASK, "tools": [], "thinking": {"type": "disabled"}, "stop_sequences": ["nope", "away"]}
    m = client.messages.create(**body)
    assert m.content[0].text == "Right " and m.stop_reason == "stop_sequence" and m.stop_sequence == "away"
    ev = dr.events(server.post(MESSAGES, {**body, "stream": True}).text)
    assert ev[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "away"}
    refused(server, {"stop_sequences": [""]}, "stop_sequences")


# --- the request ---

def test_api221_system_forms(server):
    """API-221 API-222: a string, blocks, and an entry of role system before the first answer are the same prompt."""
    want = tokens(server, system="Be brief.\n\nBe kind.")
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be kind."}]
    assert tokens(server, system=blocks) == want
    assert tokens(server, messages=[{"role": "system", "content": blocks}, *HELLO]) == want
    assert tokens(server, system="Be brief.", messages=[{"role": "system", "content": "Be kind."}, *HELLO]) == want
    assert tokens(server, system="Be brief.", messages=[*HELLO, {"role": "system", "content": "Be kind."}]) == want
    assert tokens(server, messages=[{"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"]}]}]) == tokens(server)


def test_system_entry_between_turns_keeps_the_prefix(server):
    """A later system entry stays where it is: what stood before it is found in the cache."""
    text = "One two three four five six seven eight nine ten. " * 20
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}, *HELLO]}
    server.ok(MESSAGES, body)
    more = [*body["messages"][:2], {"role": "system", "content": "The clock says noon."}, *HELLO]
    assert server.ok(MESSAGES, {**body, "messages": more})["usage"]["cache_read_input_tokens"] > 100


def test_b079_billing_header(server):
    """B-079: the line that changes from call to call does not reach the model, so the fixed part is found again."""
    fixed = "The quick brown fox jumps over the lazy dog. " * 60
    def ask(code, s=server):
        line = f"x-anthropic-billing-header: cc_version=9.9.9; cch={code};"
        return s.ok(MESSAGES, {"max_tokens": 1, "messages": HELLO, "system": [
            {"type": "text", "text": line}, {"type": "text", "text": fixed}]})["usage"]
    first, second = ask("a1b2c"), ask("d4e5f")
    total = first["input_tokens"] + first["cache_read_input_tokens"]
    assert second["cache_read_input_tokens"] > 0.8 * total
    assert total == tokens(server, system=fixed) == tokens(server, system="x-anthropic-billing-header: cch=1;\n" + fixed)


@pytest.mark.parametrize("body", [
    {}, {"system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"tools": [TOOL]},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"thinking": {"type": "disabled"}},
    {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"},
                                                            {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}]},
                  {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "21"}]}]}])
def test_b080_count_tokens(server, client, body):
    """B-080 Q33: count_tokens says what messages then has as its prompt."""
    body = {"messages": HELLO, **body}
    n = client.messages.count_tokens(model="x", **body).input_tokens
    u = server.ok(MESSAGES, {"max_tokens": 2, **body})["usage"]
    assert n == u["input_tokens"] + u["cache_read_input_tokens"] > 0


def test_b080_count_tokens_refuses_what_messages_refuses(server):
    for bad, part in (({"messages": []}, "messages"), ({"tools": 1}, "tools")):
        refused(server, bad, part)
        refused(server, bad, part, path=COUNT)


def test_b082_blocks(server):
    """B-082 API-224: images and unknown blocks are refused by place on a text-only model, wherever they are."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    def user(*blocks):
        return {"messages": [{"role": "user", "content": list(blocks)}]}
    text = {"type": "text", "text": "look"}
    refused(server, user(text, image), "messages[0].content[1]")
    refused(server, user({"type": "image", "source": {"type": "url", "url": "http://x.test/a.png"}}), "image")
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text, image]}
    refused(server, user(result), "image")
    refused(server, user(text, {"type": "zzz"}), "unknown type")
    refused(server, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text must be of type str")
    refused(server, {"messages": [{"role": "robot", "content": "a"}]}, "role")
    refused(server, {"messages": [{"role": "user", "content": None}]}, "content")
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "look"}}
    assert tokens(server, **user(document)) == tokens(server, **user(text))


def test_b082_unknown_fields(tmp_path):
    """B-082: unknown optional fields are ignored and named in the debug log."""
    with Server("--log-level", "debug", model=dr.weather_model(tmp_path)) as s:
        s.ok(MESSAGES, {**ASK, "context_management": {"edits": []}, "zzz": 1, "metadata": {"user_id": "u"}})
        rig_errors = s.stderr()
        assert "context_management" in rig_errors and "zzz" in rig_errors and "metadata" not in rig_errors


def test_redacted_thinking_and_replayed_thinking(server):
    """Q18: redacted thinking is taken and says nothing; a thought goes to the template, whatever its signature says."""
    def history(*blocks):
        return [*HELLO, {"role": "assistant", "content": [*blocks, {"type": "text", "text": "ok"}]}, *HELLO]
    plain = tokens(server, messages=history())
    assert tokens(server, messages=history({"type": "redacted_thinking", "data": "xxx"})) == plain
    assert tokens(server, messages=history({"type": "thinking", "thinking": "hmm hmm", "signature": "forged"})) > plain


def test_tool_results(server):
    """API-223: results are tool messages with their text; an error is marked; text beside them is a turn of the user."""
    use = [{"type": "tool_use", "id": "t", "name": "get_weather", "input": {"city": "Rome"}}]
    def n(*blocks):
        return tokens(server, messages=[*HELLO, {"role": "assistant", "content": use}, {"role": "user", "content": list(blocks)}])
    def result(**more):
        return {"type": "tool_result", "tool_use_id": "t", **more}
    assert n(result(content="abc")) == n(result(content=[{"type": "text", "text": "abc"}]))
    assert n(result(content="abc", is_error=True)) == n(result(content="Error: abc")) == n(result(content="Error: abc", is_error=True))
    assert n(result()) < n(result(content="abc")) < n(result(content="abc"), {"type": "text", "text": "and now?"})
    refused(server, {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_use_id")


def test_api226_server_tools(server):
    """API-225 API-226: tools that the vendor runs are dropped; the others are what the template gets."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    assert tokens(server, tools=[search]) == tokens(server) < tokens(server, tools=[TOOL])
    assert tokens(server, tools=[search, TOOL]) == tokens(server, tools=[{**TOOL, "type": "custom"}]) == tokens(server, tools=[TOOL])
    refused(server, {"tools": [{"input_schema": {}}]}, "tools[0].name")
    refused(server, {"tools": [{"name": "a", "input_schema": []}]}, "input_schema")


def test_tool_choice(server):
    """Q34: none hides the tools; wrong choices are refused."""
    assert tokens(server, tools=[TOOL], tool_choice={"type": "none"}) == tokens(server)
    assert tokens(server, tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": True}) == tokens(server, tools=[TOOL])
    for bad in ("auto", {}, {"type": "maybe"}, {"type": "tool", "name": "other"}, {"type": "tool"}, {"type": "auto", "disable_parallel_tool_use": 1}):
        refused(server, {"tools": [TOOL], "tool_choice": bad}, "tool_choice" if bad != {"type": "auto", "disable_parallel_tool_use": 1} else "disable")
    refused(server, {"tool_choice": {"type": "any"}}, "tool_choice")


PICK = {"name": "pick", "input_schema": {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"],
                                        "additionalProperties": False}}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "pick"}])
@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
def test_q34_forced_tool_choice(client, choice, thinking):
    """Q34 Q20: any and a named tool are enforced, after the thought when there is one."""
    tools = [PICK] if choice["type"] == "any" else [TOOL, PICK]
    m = client.messages.create(**{**ASK, "max_tokens": 300, "tools": tools, "thinking": {"type": thinking, "budget_tokens": 1024}
                                  if thinking == "enabled" else {"type": thinking}}, tool_choice={**choice, "disable_parallel_tool_use": True})
    assert [b.type for b in m.content] == (["thinking"] if thinking == "enabled" else []) + ["tool_use"]
    assert m.content[-1].name == "pick" and m.content[-1].input == {"city": "Rome"} and m.stop_reason == "tool_use"


@pytest.mark.parametrize("field", ["output_config", "output_format", "response_format"])
def test_q27_structured_output(server, field):
    """Q27 API-153: a schema is enforced, however the client spells it; a wrong one is refused."""
    form = {"type": "json_schema", "schema": PICK["input_schema"]}
    body = {**ASK, "tools": [], "thinking": {"type": "disabled"}}
    m = server.ok(MESSAGES, {**body, field: {"format": form} if field == "output_config" else form})
    assert json.loads(m["content"][0]["text"]) == {"city": "Rome"} and m["stop_reason"] == "end_turn"
    bad = {"type": "json_schema", "schema": {"type": "nothing"}}
    assert server.post(MESSAGES, {**body, field: {"format": bad} if field == "output_config" else bad}).status_code == 400


def test_thinking_budget(client):
    """budget_tokens closes the thought; the answer follows."""
    m = client.messages.create(**{**ASK, "tools": [], "thinking": {"type": "enabled", "budget_tokens": 2}})
    assert m.content[0].type == "thinking" and len(m.content[0].thinking) < len(dr.THOUGHT) and m.content[1].text.startswith(dr.LEAD)


def test_disable_parallel_tool_use(client):
    m = client.messages.create(**ASK, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [b.type for b in m.content] == ["thinking", "text", "tool_use"] and m.stop_reason == "tool_use"


def test_thinking_switch(client, server):
    """Q34 API-132: enabled and disabled are the switch; adaptive and nothing leave it to the model; chat_template_kwargs
    is the explicit word."""
    def text(**f):
        return client.messages.create(**{**ASK, "tools": [], **f}).content[-1].text
    assert text(thinking={"type": "disabled"}) == "Right away, sir."
    assert text(thinking={"type": "enabled", "budget_tokens": 2000}).startswith(dr.LEAD)
    assert text(thinking={"type": "adaptive"}) == text()
    assert text(thinking={"type": "enabled"}, extra_body={"chat_template_kwargs": {"enable_thinking": False}}) == "Right away, sir."
    for bad in ({"type": "maybe"}, {}, 1, {"type": "enabled", "budget_tokens": "x"}, {"type": "enabled", "budget_tokens": 0}):
        refused(server, {"thinking": bad}, "thinking")


def test_api228_extra_fields(server):
    """API-228 API-229 API-011 ENG-084: sampling fields are checked and used; logit_bias is none of this protocol."""
    for name, bad in (("temperature", -1), ("top_p", 2), ("top_k", -1), ("min_p", 2), ("xtc_probability", 2), ("xtc_threshold", 0.7),
                      ("repetition_penalty", "x"), ("presence_penalty", "x"), ("frequency_penalty", "x"), ("presence_context_size", -1),
                      ("repetition_context_size", "x"), ("frequency_context_size", -1)):
        refused(server, {name: bad}, name)
        assert server.post(MESSAGES, {"max_tokens": 1, "messages": HELLO, name: None}).status_code == 200
    server.ok(MESSAGES, {"max_tokens": 1, "messages": HELLO, "logit_bias": {"x": "y"}})


def test_b032_max_tokens(server):
    """B-032 Q31: missing is the unset rule, 0 warms the cache up, huge is clamped, the rest is refused by name."""
    text = "warm warm water " * 40
    body = {"messages": [{"role": "user", "content": text}]}
    v = server.ok(MESSAGES, {**body, "max_tokens": 0})
    assert v["content"] == [] and v["stop_reason"] == "max_tokens" and v["usage"]["output_tokens"] == 0
    assert server.ok(MESSAGES, {**body, "max_tokens": 4})["usage"]["cache_read_input_tokens"] > 100
    ev = dr.events(server.post(MESSAGES, {**body, "max_tokens": 0, "stream": True}).text)
    assert [e["type"] for e in ev] == ["message_start", "ping", "message_delta", "message_stop"]
    for n in (10**9, 64000, None):
        assert server.ok(MESSAGES, {**ASK, "max_tokens": n})["stop_reason"] == "tool_use"
    assert server.ok(MESSAGES, {k: v for k, v in ASK.items() if k != "max_tokens"})["stop_reason"] == "tool_use"
    for bad in (-1, "12", 2.5, True):
        refused(server, {"max_tokens": bad}, "max_tokens")


def test_prefill(server):
    """A last message of the assistant is continued."""
    with_prefill = server.ok(MESSAGES, {"max_tokens": 1, "messages": [*HELLO, {"role": "assistant", "content": "So"}]})
    u = with_prefill["usage"]
    assert u["input_tokens"] + u["cache_read_input_tokens"] == tokens(server, messages=[*HELLO, {"role": "assistant", "content": "So"}])


def test_api428_what_claude_code_sends(server):
    """API-428 B-079: the shape of a first and a second turn of Claude Code (values of our own): the call comes, the second
    turn finds the whole first prompt in the cache though its billing line is another one."""
    cache = {"cache_control": {"type": "ephemeral"}}
    def body(code, *more):
        return {"model": "claude-opus-4-8", "max_tokens": 64000, "stream": True, "thinking": {"type": "adaptive"},
                "metadata": {"user_id": "{}"}, "output_config": {"effort": "high"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                "system": [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={code};"},
                           {"type": "text", "text": "You are an agent.", **cache}, {"type": "text", "text": "\nBe useful. " * 40, **cache}],
                "tools": [TOOL, {"name": "Read", "description": "d", "input_schema": {
                    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": False,
                    "properties": {"path": {"type": "string", "minLength": 1}, "n": {"anyOf": [{"const": 1}, {"type": "integer", "exclusiveMinimum": 2}]}}}}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>\ndate\n</system-reminder>\n"},
                                                          {"type": "text", "text": "say hi"}]},
                             {"role": "system", "content": "Agents: none."}, *more]}
    headers = {"anthropic-beta": "x,y", "anthropic-version": "2023-06-01", "x-api-key": "k", "accept-encoding": "gzip, deflate, br, zstd"}
    def send(b):
        r = server.post(MESSAGES + "?beta=true", b, headers=headers)
        assert r.status_code == 200 and "content-encoding" not in r.headers
        return dr.events(r.text)
    assert server.http.head("/").status_code == 200
    ev = send(body("aa"))
    calls = [e["content_block"] for e in ev if e["type"] == "content_block_start" and e["content_block"]["type"] == "tool_use"]
    assert [c["name"] for c in calls] == ["get_weather"] * 2 and ev[-2]["delta"]["stop_reason"] == "tool_use"
    answer = {"role": "assistant", "content": [{"type": "text", "text": dr.LEAD}, {**calls[0], "input": dr.ROME}]}
    result = {"role": "user", "content": [{"tool_use_id": calls[0]["id"], "type": "tool_result", "content": "21", "is_error": False, **cache}]}
    second = send(body("bb", answer, result))
    usage = second[0]["message"]["usage"]
    assert usage["cache_read_input_tokens"] >= 0.9 * ev[0]["message"]["usage"]["input_tokens"]
    assert second[-2]["delta"]["stop_reason"] == "end_turn"


# --- errors ---

def test_api236_errors(server, client):
    """API-236 Q36: every error about these paths has the protocol's form, those of the server itself too."""
    refused(server, {"messages": []}, "messages must not be empty")
    for path, method, status in (("/v1/messages/zzz", "POST", 404), ("/v1/messages", "GET", 405)):
        r = server.http.request(method, path)
        assert r.status_code == status and r.json()["type"] == "error" and r.json()["error"]["message"]
    r = server.http.post(MESSAGES, content=b"{", headers={"content-type": "application/json"})
    assert r.status_code == 400 and r.json()["type"] == "error"
    r = server.http.post(MESSAGES, content=b"", headers={"content-encoding": "br"})
    assert r.status_code == 400 or r.json()["type"] == "error"
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(model="x", max_tokens=-5, messages=HELLO)
    assert e.value.body["error"]["type"] == "invalid_request_error"
    status, _, body = server.exchange(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\nExpect: 100-continue\r\n\r\n")
    assert status == 413 and json.loads(body)["type"] == "error"


def test_api236_a_prompt_that_is_too_long(tmp_path):
    """Clients compact when they read these words."""
    model = dr.weather_model(tmp_path)
    rig.patch_json(model / "config.json", {"max_position_embeddings": 64})
    with Server(model=model) as s:
        refused(s, {"messages": [{"role": "user", "content": "a b c d e f g " * 40}]}, "prompt is too long")


def test_api236_key(tmp_path):
    with Server("--api-key", "secret", model=dr.weather_model(tmp_path)) as s:
        r = s.post(MESSAGES, ASK)
        assert r.status_code == 401 and r.json()["type"] == "error" and r.json()["error"]["type"] == "invalid_request_error"
        c = anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key="secret", max_retries=0)
        assert c.messages.create(**ASK).stop_reason == "tool_use"
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.port}", api_key="other", max_retries=0).messages.create(**ASK)


def test_b076_golden_stream(tmp_path):
    """B-076: the grammar byte for byte."""
    with Server(model=dr.weather_model(tmp_path)) as s:
        dr.golden("anthropic.sse", s.post(MESSAGES, {**ASK, "stream": True}).text)


def test_b058_a_call_that_is_cut_off(tmp_path):
    """B-058: cut by max_tokens in the middle of the arguments: no finished call, what there was as produced, in both dialects."""
    said = ["<tool_call>\n", '{"name": "get_weather", "arguments": {"city"', ': "Ro', 'me"}}', "\n</tool_call>"]
    with Server(model=dr.speaker(tmp_path, {dr.PLAIN: said})) as s:
        m = s.ok(MESSAGES, {**ASK, "max_tokens": 3})
        assert m["stop_reason"] == "max_tokens" and [(b["type"], b["input"]) for b in m["content"]] == [("tool_use", '{"city": "Ro')]
        ev = dr.events(s.post(MESSAGES, {**ASK, "max_tokens": 3, "stream": True}).text)
        assert "".join(e["delta"]["partial_json"] for e in ev if e["type"] == "content_block_delta") == '{"city": "Ro'
        assert ev[-2]["delta"]["stop_reason"] == "max_tokens"
        r = s.ok("/v1/responses", {"input": "x", "tools": [{"type": "function", "name": "get_weather"}], "max_output_tokens": 3})
        assert r["status"] == "incomplete" and [(i["status"], i["arguments"]) for i in r["output"]] == [("incomplete", '{"city": "Ro')]
        assert s.ok(MESSAGES, {**ASK, "max_tokens": 30})["content"][0]["input"] == {"city": "Rome"}
