"""A model that says what a client test needs: a checkpoint of the real engine whose next token depends on the last one alone
(tests/http/dialect_rig.py), so that no build with fault points is needed and the KV pages and the prefix cache are the real
ones. To a request with tools it answers with one call in Hermes markup, to the result of a call with a sentence, to a request
without tools with a title.
"""
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
import dialect_rig as dr  # noqa: E402

# What decides is whether a result came since the last answer: agents put reminders behind results.
TEMPLATE = ("{% set ns = namespace(result=false) %}{% if tools %}{{ 'tools: ' + tools | tojson + '\n' }}{% endif %}"
            "{% for m in messages %}{% if m.role == 'tool' %}{% set ns.result = true %}{% elif m.role == 'assistant' %}"
            "{% set ns.result = false %}{% endif %}{{ '<|im_start|>' + m.role + '\n' }}{{ m.content or '' }}"
            "{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' + {'name': c.function.name, 'arguments': c.function.arguments} | tojson"
            " + '\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% if ns.result %}{{ '=' }}"
            "{% elif tools %}{{ '\n' }}{% else %}{{ '#' }}{% endif %}{% endif %}")
LEAD = "I will look."
ANSWER = "The tower is 41 metres high."


def model(to, tool, arguments):
    """The directory of a checkpoint that calls `tool`. Its context holds what the largest agent sends."""
    call = json.dumps({"name": tool, "arguments": arguments})
    return dr.speaker(to, {dr.PLAIN: ["I will ", "look.", "<tool_call>", "\n" + call + "\n", "</tool_call>"],
                           dr.AFTER_TOOL: ["The tower ", "is 41 ", "metres high."], dr.NO_THINKING: ["A short title"]},
                    TEMPLATE, n_context=131072)
