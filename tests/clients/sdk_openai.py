"""openai (Python): sdk_openai.py URL CHOICE. One streamed tool round trip and a second turn; CHOICE is the first tool_choice.
Prints what it saw as one JSON object."""
import json
import sys

import openai

TOOL = {"type": "function", "function": {"name": "read_note", "description": "Reads a note", "parameters": {
    "type": "object", "properties": {"path": {"type": "string", "enum": ["note.txt"]}}, "required": ["path"],
    "additionalProperties": False}}}


def turn(client, messages, choice):
    """(text, calls, cached tokens) of one stream."""
    text, calls, cached = "", {}, None
    for c in client.chat.completions.create(model="local", messages=messages, tools=[TOOL], tool_choice=choice, stream=True,
                                            max_tokens=60, temperature=0, stream_options={"include_usage": True}):
        if c.usage:
            cached = c.usage.prompt_tokens_details.cached_tokens
        for d in (x.delta for x in c.choices):
            text += d.content or ""
            for t in d.tool_calls or []:
                call = calls.setdefault(t.index, {"id": "", "name": "", "arguments": ""})
                call["id"] += t.id or ""
                call["name"] += t.function.name or ""
                call["arguments"] += t.function.arguments or ""
    return text, list(calls.values()), cached


client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="any", max_retries=0, timeout=300)
messages = [{"role": "user", "content": "What does the note say? " + "Read it slowly. " * 40}]
text, calls, first = turn(client, messages, sys.argv[2])
messages.append({"role": "assistant", "content": text, "tool_calls": [
    {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]})
messages += [{"role": "tool", "tool_call_id": c["id"], "content": "The tower: 41 metres."} for c in calls]
answer, _, second = turn(client, messages, "auto")
messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "And again?"}]
_, _, third = turn(client, messages, sys.argv[2])
print(json.dumps({"calls": [[c["name"], json.loads(c["arguments"])] for c in calls], "answer": answer, "cached": [first, second, third]}))
