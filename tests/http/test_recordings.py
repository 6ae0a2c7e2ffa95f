"""What real clients sent (tests/http/recordings, made by `tools/clients --scripted --record tests/http/recordings`), sent again:
the question, the same with a tool's result behind it, the next turn. Strings were replaced when they were recorded:
"~N:SEED" is filler of N characters, here at most 100 (as long as it was with MLX_BUN_TORTURE=1)."""
import json
import random
import re
import sys

import pytest

import dialect_rig as dr
import http_rig as rig

sys.path.insert(0, str(rig.ROOT / "tests/clients"))
import script  # noqa: E402

FILES = sorted((rig.ROOT / "tests/http/recordings").glob("*.json"))
LONGEST = 10**9 if rig.TORTURE else 100
SYLLABLES = ["ba", "ko", "ri", "tu", "men", "sol", "va", "pe", "lin", "dor"]


def filler(n, seed):
    rng, out = random.Random(seed), ""
    while len(out) < n:
        out += "".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) + " "
    return out[:n]


def expand(v):
    if isinstance(v, dict):
        return {k: expand(x) for k, x in v.items()}
    if isinstance(v, list):
        return [expand(x) for x in v]
    mark = re.fullmatch(r"~(\d+):([0-9a-f]{8})", v) if isinstance(v, str) else None
    return filler(min(int(mark[1]), LONGEST), mark[2]) if mark else v


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with rig.Server(model=script.model(tmp_path_factory.mktemp("script"), "read", {"path": "note.txt"})) as s:
        yield s


def chat_usage(text):
    events = rig.sse_events(text)
    assert all(e["object"] == "chat.completion.chunk" for e in events)
    ends = [c["finish_reason"] for e in events for c in e["choices"] if c["finish_reason"]]
    assert ends in (["stop"], ["tool_calls"])
    calls = [t for e in events for c in e["choices"] for t in c["delta"].get("tool_calls") or []]
    assert bool(calls) == (ends == ["tool_calls"]) and (not calls or json.loads("".join(t["function"]["arguments"] for t in calls)))
    return events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]


def messages_usage(text):
    events = dr.events(text)
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    depth = 0
    for e in events:
        depth += {"content_block_start": 1, "content_block_stop": -1}.get(e["type"], 0)
        assert depth in (0, 1) and (depth == 1 or e["type"] != "content_block_delta")
    return events[0]["message"]["usage"]["cache_read_input_tokens"]


def responses_usage(text):
    events = dr.events(text)
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created" and events[-1]["type"] == "response.completed"
    assert [e["type"] for e in events].count("response.output_item.added") == len(events[-1]["response"]["output"])
    return events[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"]


USAGE = {"/v1/chat/completions": chat_usage, "/v1/messages": messages_usage, "/v1/responses": responses_usage}


def test_recordings_are_there():
    """Of every client that `make clients` runs: a question, the result of a tool, a second turn."""
    import drivers
    assert {f.stem for f in FILES} == {row[0] for row in drivers.CLIENTS}
    for f in FILES:
        assert len(json.loads(f.read_text())["requests"]) == 3, f


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_b059_api428_what_a_client_sent(server, file):
    """B-059 API-426 API-427 API-428 API-429 API-432 B-142: 200, the event grammar, and all but the first turn of a
    conversation find their beginning in the cache; the first one does when it is sent again."""
    requests = json.loads(file.read_text())["requests"]
    for i, r in enumerate([requests[0], *requests]):
        body = expand(r["body"])
        previous = body.pop("previous_response_id", None)  # its id was another server's
        answer = server.http.post(r["path"], json=body, headers=r["headers"])
        assert answer.status_code == 200, answer.text[:500]
        assert answer.headers["content-type"].startswith("text/event-stream")
        cached = USAGE[r["path"].split("?")[0]](answer.text)
        assert i == 0 or previous or cached > 0
