"""anthropic (Python): sdk_anthropic.py URL CHOICE. One streamed tool round trip and a second turn; CHOICE (auto, required) is
the first tool_choice. Prints what it saw as one JSON object."""
import json
import sys

import anthropic

TOOL = {"name": "read_note", "description": "Reads a note", "input_schema": {
    "type": "object", "properties": {"path": {"type": "string", "enum": ["note.txt"]}}, "required": ["path"],
    "additionalProperties": False}}
CHOICE = {"type": "any" if sys.argv[2] == "required" else "auto"}


def turn(client, messages, choice):
    with client.messages.stream(model="claude-local", max_tokens=60, messages=messages, tools=[TOOL], tool_choice=choice,
                                extra_body={"temperature": 0}) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


def text_of(m):
    return "".join(b.text for b in m.content if b.type == "text")


client = anthropic.Anthropic(base_url=sys.argv[1], api_key="any", max_retries=0, timeout=300)
messages = [{"role": "user", "content": "What does the note say? " + "Read it slowly. " * 40}]
first = turn(client, messages, CHOICE)
calls = [b for b in first.content if b.type == "tool_use"]
messages += [{"role": "assistant", "content": first.content},
             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": c.id, "content": "The tower: 41 metres."} for c in calls]}]
second = turn(client, messages, {"type": "auto"})
messages += [{"role": "assistant", "content": second.content}, {"role": "user", "content": "And again?"}]
third = turn(client, messages, CHOICE)
print(json.dumps({"calls": [[c.name, c.input] for c in calls], "answer": text_of(second),
                  "cached": [m.usage.cache_read_input_tokens for m in (first, second, third)]}))
