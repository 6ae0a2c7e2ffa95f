"""Results of calls in templates that want them in the message that made the calls, as Gemma 4's do."""
import json
import shutil
import subprocess
from pathlib import Path

from hub_rig import MLX_BUN as PROGRAM

TINY = Path(__file__).resolve().parents[2] / "tests/golden/tiny"
TEMPLATE = """{% for m in messages %}[{{ m.role }}]{% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments.x }}){% endfor %}\
{% for r in m.tool_responses %}<{{ r.name }}{% if r.response is mapping %}{% for k, v in r.response | dictsort %} {{ k }}={{ v }}{% endfor %}\
{% else %} "{{ r.response }}"{% endif %}>{% endfor %}{{ m.content or '' }}{% endfor %}"""


def call(i, name, x):
    return {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps({"x": x})}}


def result(i, content):
    return {"role": "tool", "tool_call_id": f"c{i}", "content": content}


def prompt(tmp_path, messages, template=TEMPLATE):
    model = tmp_path / "m"
    shutil.rmtree(model, ignore_errors=True)
    shutil.copytree(TINY / "gemma4", model)
    (model / "chat_template.jinja").write_text(template)
    file = tmp_path / "messages.json"
    file.write_text(json.dumps(messages))
    p = subprocess.run([PROGRAM, "show-prompt", model, "--messages", file, "--json"], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)["prompt"]


HI = {"role": "user", "content": "hi"}


def test_results_move_to_their_calls(tmp_path):
    """API-149, MOD-023: by id, whatever their order; objects as objects, other text as text; what follows stays."""
    made = {"role": "assistant", "content": None, "tool_calls": [call(1, "f", 1), call(2, "g", 2)]}
    assert prompt(tmp_path, [HI, made, result(2, '{"b": 2, "a": "x"}'), result(1, "[1, 2]"), {"role": "assistant", "content": "done"}]) == \
        '[user]hi[assistant](f 1)(g 2)<g a=x b=2><f "[1, 2]">[assistant]done'
    assert prompt(tmp_path, [HI, made, result(1, ""), result(2, "7"), made, result(1, "8")]) == \
        '[user]hi[assistant](f 1)(g 2)<f ""><g "7">[assistant](f 1)(g 2)<f "8">'


def test_text_beside_calls_keeps_its_place(tmp_path):
    """API-149: it was said before the calls, and nothing of it is lost."""
    made = {"role": "assistant", "content": "I look", "tool_calls": [call(1, "f", 1)]}
    assert prompt(tmp_path, [HI, made, result(1, "7")]) == '[user]hi[assistant]I look[assistant](f 1)<f "7">'
    assert prompt(tmp_path, [HI, made]) == "[user]hi[assistant](f 1)I look"    # no result yet: nothing moves


def test_templates_that_know_the_role_get_it(tmp_path):
    """API-149: a template that looks for the role itself sees the messages as they came."""
    made = {"role": "assistant", "content": "I look", "tool_calls": [call(1, "f", 1)]}
    own = TEMPLATE + "{% for m in messages if m.role == 'tool' %}!{{ m.content }}{% endfor %}"
    assert prompt(tmp_path, [HI, made, result(1, "7")], own) == "[user]hi[assistant](f 1)I look[tool]7!7"
