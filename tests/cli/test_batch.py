"""`generate --batch-file`: a file of requests to a file of answers, which can be continued. The program is $MLX_BUN."""
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = str(ROOT / "tests/golden/tiny/llama")
GREEDY = ["--temp", "0", "--max-tokens", "6", "--ignore-eos", "--threads", "1"]


def clean_env():
    return {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_") or k == "MLX_BUN_TEST_FAULT"}


def run(*args, stdin="", status=0):
    p = subprocess.run([MLX_BUN, *map(str, args)], input=stdin, capture_output=True, text=True, env=clean_env(), cwd=ROOT, timeout=300)
    if status is not None:
        assert p.returncode == status, (args, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
    return p


class Batch:
    def __init__(self, where):
        self.source, self.out = where / "in.jsonl", where / "out.jsonl"

    def write(self, *lines):
        self.source.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))

    def run(self, *args, status=0, **kw):
        return run("generate", LLAMA, "--batch-file", self.source, "--output", self.out, *GREEDY, *args, status=status, **kw)

    def answers(self):
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def by_id(self):
        got = {a.get("id", a.get("custom_id")): a for a in self.answers()}
        assert len(got) == len(self.answers())
        return got


@pytest.fixture
def batch(tmp_path):
    return Batch(tmp_path)


def test_answers_are_those_of_single_requests(batch):
    """Every line is answered as `generate` answers it alone, whatever runs beside it."""
    words = ["hello", "two words", "ünïcode ✓", "a\nb", "x" * 200]
    batch.write(*({"id": i, "prompt": w} for i, w in enumerate(words)))
    p = batch.run("--batch", "3")
    assert p.stdout == "" and "5 answered, 0 failed" in p.stderr
    for i, w in enumerate(words):
        alone = json.loads(run("generate", LLAMA, "--prompt", w, "--json", *GREEDY).stdout)
        got = batch.by_id()[i]
        assert list(got) == ["id", "response", "error", "text"]
        assert got["text"] == alone["text"] and got["error"] is None and got["response"]["status_code"] == 200
        assert got["response"]["body"]["usage"]["completion_tokens"] == 6
        assert got["response"]["body"]["object"] == "chat.completion"


def test_lines_say_what_requests_say(batch):
    """Messages, raw texts, sampling, choices, tools, constraints: the fields of a request body; flags are what a line leaves out."""
    batch.write({"id": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]},
                {"id": "n", "prompt": "hello", "n": 2, "max_tokens": 2},
                {"id": "j", "prompt": "hello", "max_tokens": 40, "guided_regex": "[ab]{3}", "ignore_eos": False},
                {"id": "s", "prompt": "hello", "temperature": 1.5, "stream": True},
                {"prompt": "no id"})
    batch.run("--seed", "7", "--system", "be brief")
    got = batch.by_id()
    assert len(got["n"]["response"]["body"]["choices"]) == 2
    assert len(got["j"]["text"]) == 3 and set(got["j"]["text"]) <= {"a", "b"}
    alone = json.loads(run("generate", LLAMA, "--prompt", "hello", "--system", "be brief", "--json", *GREEDY[2:], "--temp", "1.5", "--seed",
                           "7").stdout)
    assert got["s"]["text"] == alone["text"]
    assert got["line 5"]["error"] is None
    raw = batch.source.with_name("raw.jsonl")
    raw.write_text(json.dumps({"id": 1, "prompt": "Once"}) + "\n")
    out = raw.with_name("raw-out.jsonl")
    run("generate", LLAMA, "--batch-file", raw, "--output", out, "--raw", *GREEDY)
    alone = json.loads(run("generate", LLAMA, "--raw", "--prompt", "Once", "--json", *GREEDY).stdout)
    got = json.loads(out.read_text())
    assert got["text"] == alone["text"] and got["response"]["body"]["object"] == "text_completion"


def test_lines_of_openai_batch_files(batch):
    def line(name, url, body):
        return {"custom_id": name, "method": "POST", "url": url, "body": body}
    batch.write(line("a", "/v1/chat/completions", {"model": "x", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}),
                line("b", "/v1/completions", {"prompt": "Once", "max_tokens": 3}),
                line("c", "/v1/embeddings", {"input": "x"}),
                line("d", "/v1/chat/completions", None),
                line("e", "/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}))
    batch.run(status=1)
    got = batch.by_id()
    assert list(got["a"]) == ["custom_id", "response", "error"]
    assert got["a"]["response"]["body"]["choices"][0]["message"]["content"]
    assert got["b"]["response"]["body"]["object"] == "text_completion" and got["e"]["response"]["body"]["type"] == "message"
    assert got["c"]["response"]["status_code"] == 400 and "/v1/embeddings" in got["c"]["error"]["message"]
    assert "body" in got["d"]["error"]["message"]


def test_errors_of_a_line_do_not_end_the_run(batch):
    batch.write({"id": 1, "prompt": "hello"}, "{broken", {"id": 2, "prompt": "x" * 400000}, {"id": 3, "temperature": "hot", "prompt": "a"},
                "[1, 2]", {"id": 4}, {"id": {"no": "id"}, "prompt": "a"}, "", {"id": 5, "prompt": "hello"})
    p = batch.run(status=1)
    got = batch.by_id()
    assert got[1]["error"] is None and got[5]["text"] == got[1]["text"] and "8 lines" in p.stderr and "6 failed" in p.stderr
    for key, part in (("line 2", ""), (2, "context"), (3, "temperature"), ("line 5", "object"), (4, "prompt"), ("line 7", "id")):
        assert got[key]["response"]["status_code"] == 400 and part in got[key]["error"]["message"], key
        assert got[key]["response"]["body"]["error"]["message"] == got[key]["error"]["message"]


def test_a_run_goes_on_where_it_ended(batch):
    """Ids that have an answer are skipped, and nothing is loaded when all have; half a line at the end is cut off and answered again;
    answers that failed on our side are tried again."""
    lines = [{"id": f"q{i}", "prompt": f"hello {i}"} for i in range(6)]
    batch.write(*lines)
    batch.run()
    whole = batch.out.read_bytes()
    assert "6 done before, 0 answered" in batch.run().stderr and batch.out.read_bytes() == whole
    rows = whole.splitlines(keepends=True)
    kept = rows[0] + rows[1] + rows[2]
    for torn in (rows[3][:len(rows[3]) // 2], rows[3][:-1], b"\0" * 100, b"{"):
        batch.out.write_bytes(kept + torn)
        p = batch.run()
        assert "3 done before, 3 answered" in p.stderr and "cut off" in p.stderr
        assert batch.out.read_bytes().startswith(kept)
        assert batch.by_id().keys() == {f"q{i}" for i in range(6)}
        assert sorted(a["text"] for a in batch.answers()) == sorted(json.loads(r)["text"] for r in rows)
    failed = {"id": "q5", "response": {"status_code": 429, "body": {}}, "error": {"code": "x", "message": "y"}}
    refused = {"id": "q4", "response": {"status_code": 400, "body": {}}, "error": {"code": "x", "message": "y"}}
    batch.out.write_bytes(b"".join(rows[:4]) + json.dumps(failed).encode() + b"\n" + json.dumps(refused).encode() + b"\n")
    done = {json.loads(r)["id"] for r in rows[:4]}
    assert f"{len(done | {'q4'})} done before" in batch.run().stderr
    batch.write(*lines, {"id": "new", "prompt": "one more"})
    assert "1 answered" in batch.run().stderr


def test_what_is_refused(batch):
    batch.write({"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"})
    assert "line 2" in batch.run(status=2).stderr
    batch.write({"id": 1, "prompt": "a"})
    batch.out.write_text("no answer\n" + json.dumps({"id": 1, "response": {"status_code": 200}}) + "\n")
    before = batch.out.read_bytes()
    assert "line 1" in batch.run(status=4).stderr and batch.out.read_bytes() == before
    for foreign in (b"my notes\n", b"my notes", b'{"id": 1}\n', b'{"model_type": "llama"}', batch.out.read_bytes()[10:] + b"x\n"):
        batch.out.write_bytes(foreign)  # what is no answer is never cut off
        assert "is no answer" in batch.run(status=4).stderr and batch.out.read_bytes() == foreign
    batch.out.unlink(missing_ok=True)
    source = batch.source.read_bytes()
    assert "one file" in run("generate", LLAMA, "--batch-file", batch.source, "--output", batch.source, status=2).stderr
    assert batch.source.read_bytes() == source
    assert "--output" in run("generate", LLAMA, "--batch-file", batch.source, status=2).stderr
    assert "--prompt" in run("generate", LLAMA, "--batch-file", batch.source, "--output", batch.out, "--prompt", "x", status=2).stderr
    assert run("generate", LLAMA, "--batch-file", batch.source.with_name("none"), "--output", batch.out, status=3).stderr
    batch.out.unlink(missing_ok=True)
    with open(batch.out, "w") as f:
        import fcntl
        fcntl.flock(f, fcntl.LOCK_EX)
        assert "another process" in batch.run(status=11).stderr


def test_more_choices_than_the_queue_takes(batch):
    """Lines for which the engine has no place are asked again, not answered as refused."""
    batch.write(*({"id": i, "prompt": f"say {i}", "max_tokens": 2, "n": 8} for i in range(24)))
    batch.run("--batch", "24")
    assert batch.by_id().keys() == set(range(24))
    assert all(a["response"]["status_code"] == 200 for a in batch.answers())


def test_standard_input_and_empty_files(batch):
    p = run("generate", LLAMA, "--batch-file", "-", "--output", batch.out, *GREEDY, stdin=json.dumps({"id": 1, "prompt": "hello"}))
    assert "1 answered" in p.stderr and batch.by_id()[1]["text"]
    batch.source.write_text("")
    batch.out.unlink(missing_ok=True)
    assert "0 lines" in batch.run().stderr and batch.out.read_bytes() == b""
    assert run("generate", LLAMA, "--output", batch.out, "--prompt", "hello", *GREEDY).stderr.count("--output") == 1  # ignored, said so


def test_killed_at_any_time(batch):
    """A run that is killed leaves whole answers and at most one torn line; the next one finishes the file."""
    n = 40
    batch.write(*({"id": i, "prompt": f"say {i}", "max_tokens": 30} for i in range(n)))
    p = subprocess.Popen([MLX_BUN, "generate", LLAMA, "--batch-file", str(batch.source), "--output", str(batch.out), *GREEDY, "--batch", "2"],
                         env=clean_env(), cwd=ROOT, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while (not batch.out.exists() or batch.out.read_bytes().count(b"\n") < 3) and p.poll() is None:
        assert time.monotonic() < end
    p.send_signal(signal.SIGKILL)
    p.wait()
    before = batch.out.read_bytes()
    batch.run()
    assert batch.by_id().keys() == set(range(n))
    assert batch.out.read_bytes().startswith(before[:before.rfind(b"\n") + 1])
