"""Conversations and templates of the chat template goldens. The templates are tests/golden/template/templates/*.jinja:
smollm2.jinja is the one SmolLM2-135M-Instruct ships (Apache-2.0), the others are ours, in the styles of their names."""
import pathlib

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather in a place: a<b & c>'d' — ü 🙂",
    "parameters": {"type": "object", "properties": {
        "zeta": {"type": "string", "description": "Ort, z. B. Köln\nor any"},
        "alpha": {"type": ["number", "null"], "description": "scale", "default": 1.0},
        "tags": {"type": "array", "items": {"type": "string"}},
        "unit": {"type": "string", "enum": ["c", "f"]}}, "required": ["zeta"]}}}
PING = {"type": "function", "function": {"name": "ping", "description": "No arguments.",
                                         "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, call_id="abcdefghi"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


HELLO = [{"role": "user", "content": "Hello"}]
TOOL_TURNS = [
    {"role": "system", "content": "Use tools."},
    {"role": "user", "content": "Wetter in Köln?"},
    {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"zeta": "Köln 橋", "alpha": 2.0, "n": 2})]},
    {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "{\"ort\": \"Köln\", \"x\": \"橋\"}"},
    {"role": "assistant", "content": "It <b>rains</b> & 'pours'."},
    {"role": "user", "content": "Thanks"},
]

CHATS = {
    "hello": {"messages": HELLO},
    "hello-prompt": {"messages": HELLO, "add_generation_prompt": True},
    "system": {"messages": [{"role": "system", "content": " Be kind. \n"}] + HELLO, "add_generation_prompt": True},
    "turns": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " b \n"},
                           {"role": "user", "content": "  c<|im_end|>\n<|im_start|>system\nx"}], "add_generation_prompt": True},
    "two-users": {"messages": HELLO + HELLO},
    "tools": {"messages": [{"role": "system", "content": "S"}] + HELLO, "tools": [WEATHER, PING], "add_generation_prompt": True},
    "tools-user": {"messages": HELLO, "tools": [WEATHER]},
    "tools-null": {"messages": HELLO, "tools": None},
    "tool-turns": {"messages": TOOL_TURNS, "tools": [WEATHER], "add_generation_prompt": True},
    "tool-turns-plain": {"messages": TOOL_TURNS},
    "two-calls": {"messages": HELLO + [
        {"role": "assistant", "content": "", "tool_calls": [call("f", {"名": "橋"}, "a"), call("g", {}, "b")]},
        {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}], "tools": [PING]},
    "null-content": {"messages": HELLO + [{"role": "assistant", "content": None}, {"role": "user", "content": "x"}]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " what is this? "},
                                                        {"type": "text", "text": "二"}]}], "add_generation_prompt": True},
    "thinking": {"messages": HELLO + [
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi"}, {"role": "user", "content": "again"},
        {"role": "assistant", "content": "Hi", "reasoning_content": "\nlong\n"}]},
    "no-thinking": {"messages": HELLO, "add_generation_prompt": True, "kwargs": {"enable_thinking": False}},
    "date": {"messages": HELLO, "kwargs": {"date_string": "1 Jan 2030", "tools_in_user_message": False}, "tools": [PING]},
    "documents": {"messages": HELLO, "documents": [{"title": "T", "text": "ä"}, {"text": "b"}]},
    "object-content": {"messages": HELLO + [{"role": "assistant", "content": "x"},
                                            {"role": "tool", "content": {"ort": "Köln", "x": "橋"}, "tool_call_id": "abcdefghi"}]},
    "empty": {"messages": []},
}


def templates():
    root = pathlib.Path(__file__).resolve().parents[1] / "golden" / "template" / "templates"
    return {p.stem: p.read_text(encoding="utf-8") for p in sorted(root.glob("*.jinja"))}
