"""What the tests of the Anthropic and Responses dialects share: a model that thinks, talks and calls tools as written, and
readers of their event streams."""
import json
import os
import random
import re

import http_rig as rig

PLAIN, AFTER_TOOL, NO_THINKING = b"\n", b"=", b"#"  # the last token of a generation prompt, by kind of turn
TEMPLATE = ("{% if tools %}{{ 'tools: ' + tools | tojson + '\n' }}{% endif %}"
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
            "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content or '' }}"
            "{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson"
            " + '\n</tool_call>' }}{% endfor %}{% if not loop.last or add_generation_prompt %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% if messages[-1].role == 'tool' %}{{ '=' }}"
            "{% elif enable_thinking is defined and not enable_thinking %}{{ '#' }}{% else %}{{ '\n' }}{% endif %}{% endif %}")


def speaker(to, scripts, template=TEMPLATE, n_context=4096):
    """A checkpoint that says scripts[token] (a list of pieces, each a token of its own) after a prompt that ends in that
    token, then <|im_end|>. A piece may occur once over all scripts."""
    n, rng, vocab = 64, random.Random(7), rig.vocabulary()
    pieces = [p for script in scripts.values() for p in script]
    assert len(set(pieces)) == len(pieces), "a piece occurs twice"
    ids = {p: 512 + i for i, p in enumerate(pieces)}
    n_vocab = 512 + len(pieces)
    code = [[rng.choice((-1.0, 1.0)) for _ in range(n)] for _ in range(n_vocab)]
    head = [[0.0] * n for _ in range(n_vocab)]
    for start, script in scripts.items():
        chain = [vocab[start], *(ids[p] for p in script), vocab[b"<|im_end|>"]]
        for a, b in zip(chain, chain[1:]):
            head[b] = [x + 4 * y for x, y in zip(head[b], code[a])]

    def fill(tensors):
        for name, t in tensors.items():
            t[2] = rig.bf16([1.0] * n) if name.endswith("norm.weight") else bytes(len(t[2]))
        tensors["model.embed_tokens.weight"][1:] = [[n_vocab, n], rig.bf16([x for row in code for x in row])]
        tensors["lm_head.weight"] = ["BF16", [n_vocab, n], rig.bf16([x for row in head for x in row])]

    config = {"tie_word_embeddings": False, "vocab_size": n_vocab, "max_position_embeddings": n_context}
    model = rig.copy_model(to, "llama-bf16", config, None, {"chat_template": template}, fill)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["added_tokens"] += [{"id": i, "content": p, "single_word": False, "lstrip": False, "rstrip": False,
                                   "normalized": False, "special": False} for p, i in ids.items()]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    return model


def call(name, arguments):
    return ["<tool_call>", "\n" + json.dumps({"name": name, "arguments": arguments}) + "\n", "</tool_call>"]


THOUGHT, LEAD = "Rome first; then Oslo. ", "I will look both up."
ROME, OSLO = {"city": "Rome", "code": "a\n\"b\"\\"}, {"city": "Oslo"}


def weather_model(to):
    """Thinks, talks and calls get_weather twice; after results it answers; told not to think it only answers."""
    rome = "\n" + json.dumps({"name": "get_weather", "arguments": ROME}) + "\n"
    oslo = "\n" + json.dumps({"name": "get_weather", "arguments": OSLO}) + "\n</tool_call>"
    first = ["<think>", "Rome first; ", "then Oslo. ", "</think>", "I will ", "look both up.",
             "<tool_call>", rome, "</tool_call>", "\n<tool_call>", oslo]
    return speaker(to, {PLAIN: first, AFTER_TOOL: ["It is ", "21 degrees ", "there."], NO_THINKING: ["Right ", "away, ", "sir."]})


def events(text):
    """The events of a stream; names, sequence of lines and borders are checked. Comments are left out."""
    assert text.endswith("\n\n"), text[-200:]
    out = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        v = json.loads(data[6:])
        assert v["type"] == name[7:]
        out.append(v)
    return out


def golden(name, text):
    """Compare a stream with tests/golden/sse/<name>: random ids become their kind, times 0. MLX_BUN_WRITE_GOLDENS=1 writes it."""
    for pattern, by in ((r"(msg|rs|fc|resp|chatcmpl)_[0-9a-f]{28}", r"\1_ID"), (r'"call_[0-9a-z]{20,}"', '"call_ID"'), (r'("created_at": )\d+', r"\g<1>0"),
                        (r'("signature": )"[0-9a-f]{32}"', r'\1"DIGEST"')):
        text = re.sub(pattern, by, text)
    path = rig.ROOT / "tests/golden/sse" / name
    if os.environ.get("MLX_BUN_WRITE_GOLDENS") == "1":
        path.write_text(text)
    assert text == path.read_text()
