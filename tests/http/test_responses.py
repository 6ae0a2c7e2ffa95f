"""spec/api.md sections 16 and 17 with the official `openai` client: items, events, tools, the store. The model says what
dialect_rig.weather_model wrote down."""
import json
from typing import Literal, get_args

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

import dialect_rig as dr
from http_rig import CHAT, Server

RESPONSES = "/v1/responses"
ASK = "How is the weather in Rome and Oslo?"
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "code": {"type": "string"}}, "required": ["city"]}}
TOOL = {"type": "function", **FUNCTION}
KINDS = {get_args(c.model_fields["type"].annotation)[0]: pydantic.TypeAdapter(c) for c in get_args(get_args(ResponseStreamEvent)[0])}
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(model=dr.weather_model(tmp_path_factory.mktemp("weather"))) as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="any", max_retries=0, timeout=60)


def respond(s, input=ASK, **fields):
    return s.ok(RESPONSES, {"input": input, "max_output_tokens": 100, **fields})


def n_prompt(s, **fields):
    return respond(s, **{"max_output_tokens": 1, **fields})["usage"]["input_tokens"]


def chat_prompt(s, *messages, **fields):
    return s.ok(CHAT, {"messages": list(messages), "max_tokens": 1, **fields})["usage"]["prompt_tokens"]


def stream(s, **fields):
    r = s.post(RESPONSES, {"input": ASK, "stream": True, **fields})
    assert r.status_code == 200, r.text
    ev = dr.events(r.text)
    assert [e["sequence_number"] for e in ev] == list(range(len(ev)))
    return ev


# --- the answer ---

def test_api242_answer(client, server):
    """API-237 API-242 Q40: ids, items in order, usage; what the request said is repeated."""
    r = client.responses.create(model="gpt-x", input=ASK, tools=[TOOL], instructions="Be brief.", metadata={"a": "b"},
                                temperature=0.5, max_output_tokens=100)
    assert r.id.startswith("resp_") and r.object == "response" and r.status == "completed" and r.model == "llama-bf16"
    assert [i.type for i in r.output] == ["reasoning", "message", "function_call", "function_call"]
    assert r.output[0].content[0].text == dr.THOUGHT and r.output[0].summary == []
    assert r.output_text == dr.LEAD and r.output[1].role == "assistant" and r.output[1].status == "completed"
    assert [(c.name, json.loads(c.arguments)) for c in r.output[2:]] == [("get_weather", dr.ROME), ("get_weather", dr.OSLO)]
    assert len({i.id for i in r.output}) == 4 and len({c.call_id for c in r.output[2:]}) == 2
    assert r.instructions == "Be brief." and r.metadata == {"a": "b"} and r.temperature == 0.5 and r.max_output_tokens == 100
    assert r.error is None and r.incomplete_details is None and r.parallel_tool_calls is True and r.tools[0].name == "get_weather"
    assert r.usage.output_tokens == 12 and r.usage.total_tokens == r.usage.input_tokens + 12
    assert r.usage.output_tokens_details.reasoning_tokens > 0 and r.usage.input_tokens_details.cached_tokens >= 0
    Response.model_validate(server.get(f"{RESPONSES}/{r.id}").json(), strict=False)


def test_b083_every_event_validates(server):
    """B-083 API-243 API-244: each event is one that the typed client knows, with indexes, item ids and sequence numbers."""
    ev = stream(server, tools=[TOOL])
    for e in ev:
        KINDS[e["type"]].validate_python(e)
    kinds = [e["type"] for e in ev]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert ev[0]["response"]["status"] == "in_progress" and ev[0]["response"]["output"] == [] and ev[0]["response"]["created_at"] > 0
    added = [e for e in ev if e["type"] == "response.output_item.added"]
    done = [e for e in ev if e["type"] == "response.output_item.done"]
    assert [e["output_index"] for e in added] == [e["output_index"] for e in done] == [0, 1, 2, 3]
    assert [e["item"]["id"] for e in added] == [e["item"]["id"] for e in done]
    assert [e["item"] for e in done] == ev[-1]["response"]["output"]
    for e in ev:
        if "item_id" in e:
            assert e["item_id"] == added[e["output_index"]]["item"]["id"]
    def one(i):
        return [e["type"].removeprefix("response.") for e in ev if e.get("output_index") == i]
    assert one(0) == ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done",
                      "content_part.done", "output_item.done"]
    assert one(1) == ["output_item.added", "content_part.added", *["output_text.delta"] * one(1).count("output_text.delta"),
                      "output_text.done", "content_part.done", "output_item.done"]
    assert one(2) == ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    for i, kind in ((0, "reasoning_text"), (1, "output_text")):
        pieces = "".join(e["delta"] for e in ev if e["type"] == f"response.{kind}.delta")
        assert pieces == [e["text"] for e in ev if e["type"] == f"response.{kind}.done"][0] == (dr.THOUGHT, dr.LEAD)[i]


def test_b083_sdk_stream_is_the_answer(client):
    """B-083 API-426: the client's own accumulator ends with what the answer without a stream says."""
    whole = client.responses.create(model="x", input=ASK, tools=[TOOL])
    with client.responses.stream(model="x", input=ASK, tools=[TOOL]) as s:
        kinds = [e.type for e in s]
        final = s.get_final_response()
    assert [i.type for i in final.output] == [i.type for i in whole.output]
    assert final.output_text == whole.output_text and final.output[2].arguments == whole.output[2].arguments
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and "response.output_text.delta" in kinds


def test_reasoning_summary_and_sealed_text(server):
    """reasoning.summary puts the thought into the summary; include reasoning.encrypted_content gives what a client that
    stores nothing here sends back, and that is the same prompt as the thought itself."""
    plain = respond(server)["output"][0]
    ev = stream(server, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"], store=False)
    for e in ev:
        KINDS[e["type"]].validate_python(e)
    item = ev[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": dr.THOUGHT}] and item["encrypted_content"]
    kinds = [e["type"] for e in ev if e.get("output_index") == 0]
    assert kinds[1] == "response.reasoning_summary_part.added" and "response.reasoning_summary_text.delta" in kinds
    def n(it):
        return n_prompt(server, input=[{"role": "user", "content": ASK}, it, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": item["encrypted_content"]}
    foreign = {**sealed, "encrypted_content": "gAAAAA"}
    assert n(sealed) == n(plain) == n({**item, "encrypted_content": None}) > n(foreign)


def test_b086_incomplete(client, server):
    """B-086 Q39: cut by max_output_tokens: incomplete with the reason, in both modes; so is the item."""
    r = client.responses.create(model="x", input=ASK, max_output_tokens=3)
    assert r.status == "incomplete" and r.incomplete_details.reason == "max_output_tokens" and r.output[0].status == "incomplete"
    ev = stream(server, max_output_tokens=5)
    assert ev[-1]["type"] == "response.incomplete" and ev[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert ev[-1]["response"]["output"][-1]["status"] == "incomplete" and ev[-1]["response"]["usage"]["output_tokens"] == 5


# --- the request ---

def test_api238_one_system_message(server):
    """API-238: instructions, system and developer items make one message at the head, wherever they stand."""
    want = chat_prompt(server, {"role": "system", "content": "One.\n\nTwo.\n\nThree."}, {"role": "user", "content": "hi"})
    items = [{"role": "developer", "content": "Two."}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
             {"role": "system", "content": [{"type": "input_text", "text": "Three."}]}]
    assert n_prompt(server, instructions="One.", input=items) == want


def test_api237_items_are_the_chat_history(server):
    """API-237: items of calls and outputs are the same prompt as the messages of a chat."""
    args = json.dumps({"city": "Rome"})
    items = [{"role": "user", "content": ASK}, {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": args},
             {"type": "function_call_output", "call_id": "c", "output": "21"}]
    chat = [{"role": "user", "content": ASK},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": args}}]},
            {"role": "tool", "tool_call_id": "c", "content": "21"}]
    n = chat_prompt(server, *chat, tools=[{"type": "function", "function": FUNCTION}])
    assert n_prompt(server, input=items, tools=[TOOL]) == n
    items[2]["output"] = [{"type": "input_text", "text": "21"}]
    assert n_prompt(server, input=items, tools=[TOOL]) == n
    for bad, part in (([], "input"), (None, "input"), (5, "input"), ([1], "input[0]"), ([{"type": "zzz"}], "unknown type"),
                      ([{"role": "robot", "content": "a"}], "role"), ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input_image"),
                      ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}], "arguments"),
                      ([{"type": "function_call_output", "output": "x"}], "call_id")):
        server.refused(RESPONSES, {"input": bad}, part)


def test_api241_fields(server):
    """API-239 API-241 API-011 ENG-084: sampling fields are checked by name; wrong types are refused; null is absent."""
    for name, bad in (("temperature", -1), ("top_p", 2), ("top_k", -1), ("min_p", 2), ("xtc_probability", 2), ("repetition_penalty", "x"),
                      ("presence_penalty", "x"), ("frequency_penalty", "x"), ("repetition_context_size", -1), ("logit_bias", {"x": 1}),
                      ("max_output_tokens", 0), ("max_output_tokens", "5"), ("stream", 1), ("store", 1), ("tools", 1), ("include", 1),
                      ("metadata", 1), ("instructions", 1), ("reasoning", 1), ("text", 1), ("background", True), ("conversation", "c"),
                      ("previous_response_id", 1), ("parallel_tool_calls", 1)):
        server.refused(RESPONSES, {"input": "a", name: bad}, name)
        respond(server, **{"max_output_tokens": 1, name: None})
    server.refused(RESPONSES, {"input": "a", "reasoning": {"effort": "x"}}, "reasoning.effort")
    respond(server, zzz=1, prompt_cache_key="k", client_metadata={}, max_output_tokens=10**9)


def test_reasoning_effort(server):
    """Q38 API-132: effort is the switch."""
    def kinds(**f):
        return [i["type"] for i in respond(server, **f)["output"]]
    assert kinds(reasoning={"effort": "none"}) == ["message"] and kinds(reasoning={"effort": "high"})[0] == "reasoning"
    assert kinds(reasoning={"effort": "high"}, **QUIET) == ["message"]


def test_b085_tools(server):
    """B-085 API-240: built-in types are left out, functions of namespaces are not lost and come back with both names."""
    n = n_prompt(server, tools=[TOOL])
    assert n_prompt(server, tools=[{"type": "web_search"}, TOOL, {"type": "local_shell"}]) == n > n_prompt(server, tools=[{"type": "web_search"}])
    left_out = server.post(RESPONSES, {"input": "x", "max_output_tokens": 1, "tools": [{"type": "web_search"}, TOOL]})
    assert "web_search" in left_out.headers["warning"]
    space = {"type": "namespace", "name": "mcp__maps", "description": "d", "tools": [{"type": "function", "name": "find"}, {"type": "custom", "name": "x"}]}
    flat = {"type": "function", "name": "mcp__maps__find"}
    assert n_prompt(server, tools=[TOOL, space]) == n_prompt(server, tools=[TOOL, flat])
    call = {"type": "function_call", "call_id": "c", "name": "find", "namespace": "mcp__maps", "arguments": "{}"}
    def history(c):
        return [{"role": "user", "content": "a"}, c, {"type": "function_call_output", "call_id": "c", "output": "b"}]
    assert n_prompt(server, input=history(call)) == n_prompt(server, input=history({**call, "name": "mcp__maps__find", "namespace": None}))
    for bad, part in (([1], "tools[0]"), ([{"type": "function"}], "tools[0].name"), ([{**TOOL, "parameters": 1}], "parameters"),
                      ([{"type": "namespace", "tools": []}], "tools[0].name")):
        server.refused(RESPONSES, {"input": "a", "tools": bad}, part)


def test_a_call_of_a_namespace(tmp_path):
    """The model calls it by its joined name; the item has namespace and name."""
    said = ["<tool_call>", '{"name": "mcp__maps__find", "arguments": {"q": "x"}}', "</tool_call>"]
    with Server(model=dr.speaker(tmp_path, {dr.PLAIN: said})) as s:
        tools = [{"type": "namespace", "name": "mcp__maps", "tools": [{"type": "function", "name": "find"}]}]
        ev = stream(s, tools=tools)
        item = ev[-1]["response"]["output"][0]
        assert (item["namespace"], item["name"], json.loads(item["arguments"])) == ("mcp__maps", "find", {"q": "x"})


def test_tool_choice(server):
    """Forms of tool_choice: none hides the tools, allowed_tools the others; unknown names and hosted tools are refused."""
    other = {**TOOL, "name": "other"}
    assert n_prompt(server, tools=[TOOL], tool_choice="none") == n_prompt(server)
    only = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"}]}
    assert n_prompt(server, tools=[other, TOOL], tool_choice=only) == n_prompt(server, tools=[TOOL], tool_choice="auto")
    for bad in ("maybe", {}, {"type": "web_search"}, {"type": "function", "name": "nope"}, {"type": "function"}, {"type": "allowed_tools"}):
        server.refused(RESPONSES, {"input": "a", "tools": [TOOL], "tool_choice": bad}, "tool_choice")
    server.refused(RESPONSES, {"input": "a", "tool_choice": "required"}, "tool_choice")
    only["tools"].append({"type": "function", "name": "zz"})
    server.refused(RESPONSES, {"input": "a", "tools": [other, TOOL], "tool_choice": only}, "tool_choice allows zz, which is none of the tools")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "pick"}])
def test_q20_forced_tool_choice(server, choice):
    """Q20: required and a named function are enforced."""
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"], "additionalProperties": False}
    r = respond(server, tools=[{"type": "function", "name": "pick", "parameters": schema}], tool_choice=choice, max_output_tokens=300,
                parallel_tool_calls=False, reasoning={"effort": "none"})
    assert [(i["type"], i["name"], json.loads(i["arguments"])) for i in r["output"]] == [("function_call", "pick", {"city": "Rome"})]


def test_q27_text_format(client):
    """Q27 API-153: text.format is enforced, behind the thought; the client's typed helper reads it."""
    class City(pydantic.BaseModel):
        city: Literal["Rome"]
        ok: bool
    r = client.responses.parse(model="x", input=ASK, text_format=City)
    assert r.output[0].type == "reasoning" and r.output_parsed.city == "Rome"
    r = client.responses.create(model="x", input=ASK, text={"format": {"type": "json_object"}}, extra_body=QUIET, max_output_tokens=200)
    assert r.output_text.lstrip().startswith("{")


def test_parallel_tool_calls(server):
    """Q21: one call at most."""
    r = respond(server, tools=[TOOL], parallel_tool_calls=False)
    assert [i["type"] for i in r["output"]] == ["reasoning", "message", "function_call"] and r["parallel_tool_calls"] is False


def test_api429_what_codex_sends(server):
    """API-429 B-083 B-085: the shape of two turns of Codex (values of our own): a developer item, namespace and hosted tools,
    nothing stored, reasoning sent back sealed; the second turn finds the first prompt in the cache."""
    def body(*more):
        return {"model": "m", "instructions": "You are an agent. " * 20, "stream": True, "store": False, "tool_choice": "auto",
                "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "k", "client_metadata": {"a": "b"},
                "tools": [TOOL, {"type": "namespace", "name": "multi", "description": "d", "tools": [{"type": "function", "name": "wait", "strict": False,
                          "parameters": {"type": "object", "properties": {}}}]}, {"type": "web_search", "external_web_access": True}],
                "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules. " * 40}]},
                          {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>"}]},
                          {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASK}]}, *more]}
    headers = {"authorization": "Bearer x", "accept-encoding": "zstd,gzip"}
    def send(b):
        r = server.post(RESPONSES, b, headers=headers)
        assert r.status_code == 200, r.text
        return dr.events(r.text)[-1]["response"]
    first = send(body())
    replay = []
    for item in first["output"]:
        item = {k: v for k, v in item.items() if k not in ("id", "status")}
        if item["type"] == "reasoning":
            item = {**item, "content": None}
            assert item["summary"][0]["text"] == dr.THOUGHT and item["encrypted_content"]
        replay.append(item)
        if item["type"] == "function_call":
            replay.append({"type": "function_call_output", "call_id": item["call_id"], "output": "21"})
    second = send(body(*replay))
    assert second["status"] == "completed" and second["output"][-1]["content"][0]["text"] == "It is 21 degrees there."
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= 0.9 * first["usage"]["input_tokens"]


# --- the store ---

def test_api245_previous_response(client, server):
    """API-245 API-150: a tool round trip that sends only what is new; the prefix is found in the cache."""
    first = client.responses.create(model="x", input=ASK, tools=[TOOL])
    outputs = [{"type": "function_call_output", "call_id": i.call_id, "output": "21"} for i in first.output if i.type == "function_call"]
    second = client.responses.create(model="x", previous_response_id=first.id, input=outputs, tools=[TOOL])
    assert second.output_text == "It is 21 degrees there." and second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens > 0
    whole = [{"role": "user", "content": ASK}, *[i.model_dump(exclude_none=True) for i in first.output], *outputs]
    resent = client.responses.create(model="x", input=whole, tools=[TOOL])
    assert resent.usage.input_tokens == second.usage.input_tokens
    third = respond(server, "and now?", previous_response_id=second.id, tools=[TOOL], **QUIET)
    assert third["output"][0]["content"][0]["text"] == "Right away, sir." and third["usage"]["input_tokens"] > second.usage.input_tokens


def test_api246_instructions_carry_forward(server):
    """API-246: the earlier instructions hold until the request has its own."""
    first = respond(server, instructions="Be brief and kind.", **QUIET)
    again = respond(server, "b", previous_response_id=first["id"], **QUIET)
    assert again["instructions"] == "Be brief and kind."
    other = respond(server, "b", previous_response_id=again["id"], instructions="No.", **QUIET)
    assert other["instructions"] == "No." and other["usage"]["input_tokens"] > 0
    third = respond(server, "c", previous_response_id=again["id"], **QUIET)
    assert third["instructions"] == "Be brief and kind."


def test_api247_unknown_id(client, server):
    """API-247 API-032 B-085: an unknown id is a 404, never a conversation without its history."""
    with pytest.raises(openai.NotFoundError) as e:
        client.responses.create(model="x", input="a", previous_response_id="resp_nope")
    assert e.value.body["param"] == "previous_response_id"
    server.refused(RESPONSES, {"input": "a", "previous_response_id": respond(server)["id"] + "\0"}, "must not hold a NUL")
    unstored = respond(server, store=False)
    server.refused(RESPONSES, {"input": "a", "previous_response_id": unstored["id"]}, "no response", 404)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unstored["id"])


def test_too_long_input_is_named(server):
    """A prompt beyond the context is a 400 about the field that the client sent, streamed or not."""
    for stream in (False, True):
        e = server.refused(RESPONSES, {"input": "a " * 5000, "stream": stream}, "context is 4096")
        assert e["code"] == "context_length_exceeded" and e["param"] == "input"


def test_q38_get_and_delete(client, server):
    """Q38: a stored response is what was answered; its input items; deleted it is gone."""
    made = client.responses.create(model="x", input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], instructions="i")
    got = client.responses.retrieve(made.id)
    assert got == made
    items = list(client.responses.input_items.list(made.id, order="asc", limit=1))
    assert [i.content[0].text for i in items] == ["a", "b"] and len({i.id for i in items}) == 2
    assert [i.content[0].text for i in client.responses.input_items.list(made.id)] == ["b", "a"]
    assert server.get(f"{RESPONSES}/{made.id}/zzz").status_code == 404
    assert server.get(f"{RESPONSES}/{made.id}/input_items?limit=0").status_code == 400
    r = server.http.delete(f"{RESPONSES}/{made.id}")
    assert r.status_code == 200 and r.json() == {"id": made.id, "object": "response", "deleted": True}
    assert server.get(f"{RESPONSES}/{made.id}").status_code == 404 and server.http.delete(f"{RESPONSES}/{made.id}").status_code == 404


def test_item_reference(server):
    """An item of a stored response can be named instead of sent."""
    first = respond(server)
    sent = [{"role": "user", "content": ASK}, *first["output"][:2], {"role": "user", "content": "more"}]
    named = [sent[0], *[{"type": "item_reference", "id": i["id"]} for i in first["output"][:2]], sent[-1]]
    assert n_prompt(server, input=named) == n_prompt(server, input=sent)
    server.refused(RESPONSES, {"input": [{"type": "item_reference", "id": "msg_nope_0"}]}, "msg_nope", 404)


def test_api249_stats(server):
    """API-249 API-271: the store in /stats."""
    before = server.stats()["response_store"]
    respond(server)
    after = server.stats()["response_store"]
    assert after["entries"] == before["entries"] + 1 and after["bytes"] > before["bytes"]
    assert after["max_bytes"] == 33554432 and after["ttl_ms"] == 3600000
    respond(server, store=False)
    assert server.stats()["response_store"] == after


def test_b083_golden_stream(tmp_path):
    """B-083: the grammar byte for byte."""
    with Server(model=dr.weather_model(tmp_path)) as s:
        dr.golden("responses.sse", s.post(RESPONSES, {"input": ASK, "tools": [TOOL], "stream": True}).text)
