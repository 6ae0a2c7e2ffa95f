"""Writes tests/golden/template/cases.json: what jinja2, set up by transformers, makes of each template.

    python3 -m venv V && V/bin/pip install transformers==4.57.1 jinja2==3.1.6
    V/bin/python tests/oracle/template_goldens.py

Prints the versions it used. The clock of strftime_now is fixed (NOW, UTC). A case that fails holds "error": the kind
"raise" (raise_exception, with its message), "compile" or "render"; the texts of other errors are jinja2's own and are
not compared.
"""
import datetime
import json
import pathlib

import jinja2
import transformers
from transformers.utils import chat_template_utils as utils

import template_cases
import template_chats

NOW = 1721997296  # Fri 26 Jul 2024 12:34:56 UTC
OUT = pathlib.Path(__file__).resolve().parents[1] / "golden" / "template"


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


utils.datetime = FixedDatetime


def outcome(source, call):
    try:
        compiled = utils._compile_jinja_template(source)
    except Exception as e:
        return {"error": "compile", "line": getattr(e, "lineno", 0) or 0}
    try:
        return {"expect": call(compiled)}
    except jinja2.exceptions.TemplateError as e:
        if type(e) is jinja2.exceptions.TemplateError:
            return {"error": "raise", "message": e.message or ""}
        return {"error": "render"}
    except Exception:
        return {"error": "render"}


def small_cases():
    for name, source in template_cases.cases():
        row = {"name": name, "template": source}
        row.update(outcome(source, lambda t: t.render(
            messages=[], tools=None, documents=None, add_generation_prompt=False, **template_cases.VARS)))
        # Memory addresses and wording of objects differ from run to run: such output is no golden.
        if " at 0x" in row.get("expect", "") or "<function" in row.get("expect", "") or "<class" in row.get("expect", ""):
            continue
        yield row


def chat_cases():
    for t_name, source in template_chats.templates().items():
        for c_name, chat in template_chats.CHATS.items():
            row = {"template": t_name, "chat": c_name}
            kwargs = dict(template_chats.TOKENS, **chat.get("kwargs", {}))

            def call(compiled):
                return utils.render_jinja_template(
                    [chat["messages"]], tools=chat.get("tools"), documents=chat.get("documents"), chat_template=source,
                    add_generation_prompt=chat.get("add_generation_prompt", False), **kwargs)[0][0]

            row.update(outcome(source, call))
            yield row


def main():
    doc = {
        "now": NOW,
        "vars": template_cases.VARS,
        "cases": list(small_cases()),
        "tokens": template_chats.TOKENS,
        "chats": template_chats.CHATS,
        "renders": list(chat_cases()),
    }
    with open(OUT / "cases.json", "w", encoding="utf-8") as f:
        f.write("{\n")
        for i, (k, v) in enumerate(doc.items()):
            f.write(json.dumps(k) + ": ")
            if isinstance(v, list):
                f.write("[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in v) + "\n]")
            elif isinstance(v, dict):
                f.write("{\n" + ",\n".join(json.dumps(a) + ": " + json.dumps(b, ensure_ascii=False) for a, b in v.items()) + "\n}")
            else:
                f.write(json.dumps(v, ensure_ascii=False))
            f.write(",\n" if i + 1 < len(doc) else "\n")
        f.write("}\n")
    print("jinja2", jinja2.__version__, "transformers", transformers.__version__)
    print(len(doc["cases"]), "cases,", len(doc["renders"]), "renders,",
          sum("error" in c for c in doc["cases"] + doc["renders"]), "of them errors")


main()
