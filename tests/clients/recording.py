"""What a client sent, kept under tests/http/recordings/ without anybody's prose: structure, field names, roles, tool names and
what schemas are made of stay; every other string becomes "~N:SEED", which tests/http/test_recordings.py expands to filler of N
characters. The same string always becomes the same filler, so that what was a common prefix stays one."""
import json
import re
import zlib
from pathlib import Path

# Values of these keys are words of the protocol; elsewhere only what is one short word.
WORDS = {"type", "role", "name", "format", "$schema", "pattern", "effort", "summary", "tool_choice", "verbosity", "ttl", "status"}
PLAIN = re.compile(r"[A-Za-z0-9_.,:/$-]{1,24}\Z")
PROSE = {"text", "content", "description", "title", "output", "instructions", "system", "thinking", "user_id", "id", "call_id",
         "tool_call_id", "tool_use_id", "signature", "encrypted_content", "prompt_cache_key"}


def filler_mark(text):
    return f"~{len(text)}:{zlib.crc32(text.encode()):08x}"


def scrub(v, key=None, in_enum=False):
    if isinstance(v, dict):
        if key == "client_metadata" or key == "metadata":
            return {k: filler_mark(str(x)) for k, x in v.items()}
        return {k: scrub(x, k) for k, x in v.items()}
    if isinstance(v, list):
        return [scrub(x, key) for x in v]
    if not isinstance(v, str) or not v:
        return v
    if key == "arguments":  # a call's arguments: JSON in a string
        return json.dumps({k: "x" for k in json.loads(v)})
    if key in WORDS and len(v) <= 80 or (key not in PROSE and PLAIN.match(v)):
        return v
    return filler_mark(v)


def write(folder, name, exchanges, _work):
    """At most three requests: the question, the one with the result of the tool, the second turn."""
    requests = []
    for x in exchanges[:3]:
        headers = {k: v for k, v in x.headers.items() if k in ("accept", "content-type", "anthropic-version", "accept-encoding")}
        requests.append({"path": x.path, "headers": headers, "body": scrub(json.loads(x.data))})
    if requests:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.json").write_text(json.dumps({"client": name, "requests": requests}, indent=0) + "\n")
