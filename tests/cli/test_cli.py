"""The command line over tiny checkpoints: what goes in, what comes out, with which exit status. The program is $MLX_BUN."""
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
import http_rig as rig  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = str(ROOT / "tests/golden/tiny/llama")
GREEDY = ["--temp", "0", "--max-tokens", "16"]


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_") or k == "MLX_BUN_TEST_FAULT"}
    return {**env, **more}


def run(*args, stdin="", env=None, status=0):
    p = subprocess.run([MLX_BUN, *map(str, args)], input=stdin, capture_output=True, text=True, env=clean_env(**(env or {})),
                       cwd=ROOT, timeout=300)
    if status is not None:
        assert p.returncode == status, (args, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
    return p


def generate(*args, **kw):
    return json.loads(run("generate", LLAMA, "--json", *args, **kw).stdout)


# --- generate ---


def test_generate_json_twice_equal():
    a = generate("--prompt", "hello", *GREEDY)
    assert a == generate("--prompt", "hello", *GREEDY)
    assert len(a["ids"]) == len(a["logprobs"]) == a["usage"]["completion_tokens"] <= 16
    assert a["finish_reason"] in ("stop", "length")
    assert a["usage"]["total_tokens"] == a["usage"]["prompt_tokens"] + a["usage"]["completion_tokens"]
    assert all(p <= 0 for p in a["logprobs"])


def test_generate_logprobs_read_back_as_float32():
    import struct
    for p in generate("--prompt", "hello", *GREEDY)["logprobs"]:
        assert struct.unpack("f", struct.pack("f", p))[0] == p


def test_generate_seeded_sampling_repeats_and_differs_by_seed():
    sampled = ["--prompt", "hello", "--temperature", "1.5", "--max-tokens", "24", "--ignore-eos"]
    a, b, c = (generate(*sampled, "--seed", s) for s in (1, 1, 2))
    assert a == b
    assert a["ids"] != c["ids"]


@pytest.mark.parametrize("flags", [["--batch", "1"], ["--prefill-chunk", "7"], ["--threads", "1"], ["--cpu-level", "portable"],
                                   ["--prompt-cache", "0"], ["--kv-budget", "0.001"], ["--memory-budget", "0.2"]])
def test_generate_same_bits_whatever_the_machinery(flags):
    """CFG-071, CFG-072, CFG-033, CFG-060: scheduling flags change no bit."""
    prompt = ["--prompt", "the same text " * 10, *GREEDY]
    assert generate(*prompt, *flags) == generate(*prompt)


def test_generate_text_equals_json_text():
    a = generate("--prompt", "hello", *GREEDY)
    assert run("generate", LLAMA, "--prompt", "hello", *GREEDY).stdout == a["text"] + "\n"
    assert run("gen", LLAMA, "--prompt", "hello", *GREEDY).stdout == a["text"] + "\n"


def test_generate_prompt_ids(tmp_path):
    a = generate("--prompt-ids", "1,2,3", *GREEDY)
    assert a["usage"]["prompt_tokens"] == 3
    (tmp_path / "ids.json").write_text("[1, 2,\n 3]\n")
    assert generate("--prompt-ids", f"@{tmp_path}/ids.json", *GREEDY) == a
    for bad in ("", "1,,2", "1,x", "[1,2", "-1", "99999999999999"):
        assert run("generate", LLAMA, "--prompt-ids", bad, status=None).returncode in (2, 4), bad
    p = run("generate", LLAMA, "--prompt-ids", "1,512", status=2)
    assert "512" in p.stderr and "vocabulary" in p.stderr


def test_b010_prompt_is_literal():
    """B-010: backslash-n is two characters; a newline comes from the shell, a file or standard input."""
    literal = json.loads(run("show-prompt", LLAMA, "--prompt", r"a\nb", "--json").stdout)
    newline = json.loads(run("show-prompt", LLAMA, "--prompt", "a\nb", "--json").stdout)
    assert r"a\nb" in literal["prompt"] and "a\nb" in newline["prompt"] and literal["ids"] != newline["ids"]
    assert json.loads(run("show-prompt", LLAMA, "--json", stdin="a\nb").stdout) == newline
    assert json.loads(run("show-prompt", LLAMA, "--json", "--prompt", "-", stdin="a\nb").stdout) == newline


def test_generate_raw_does_without_the_template():
    a = generate("--prompt", "hello", *GREEDY)
    b = generate("--prompt", "hello", "--raw", *GREEDY)
    assert b["usage"]["prompt_tokens"] < a["usage"]["prompt_tokens"]
    assert "template" in run("generate", LLAMA, "--raw", "--system", "x", "--prompt", "y", status=2).stderr


def test_generate_stop_and_max_tokens():
    a = generate("--prompt", "hello", *GREEDY, "--ignore-eos")
    assert a["finish_reason"] == "length" and len(a["ids"]) == 16
    stop = next(c for c in a["text"][2:] if c.isalpha())
    b = generate("--prompt", "hello", *GREEDY, "--stop", stop)
    assert b["finish_reason"] == "stop" and stop not in b["text"] and a["text"].startswith(b["text"])


@pytest.mark.parametrize("tier", [["--l1"], ["--l2"], ["--tier", "f32"], ["--kv-quant", "f32"], ["--kv-quant", "bf16"]])
def test_generate_tiers(tier):
    """T1.40 T1.41 CFG-109: l1 is the default, l2 and f32 are others."""
    a = generate("--prompt", "hello", *GREEDY)
    b = generate("--prompt", "hello", *GREEDY, *tier)
    assert (a["logprobs"] == b["logprobs"]) == (tier == ["--l1"])
    assert abs(a["logprobs"][0] - b["logprobs"][0]) < 0.5


def test_generate_messages(tmp_path):
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hello"}]
    (tmp_path / "m.json").write_text(json.dumps(messages))
    a = generate("--messages", tmp_path / "m.json", *GREEDY)
    assert a == generate("--system", "S", "--prompt", "hello", *GREEDY)
    assert a == generate("--messages", "-", *GREEDY, stdin=json.dumps(messages))
    run("generate", LLAMA, "--messages", tmp_path / "m.json", "--prompt", "x", status=2)
    run("generate", LLAMA, "--messages", "-", stdin="{", status=4)


# --- flags ---


def test_cfg001_both_forms():
    """CFG-001, design: --name value and --name=value."""
    assert generate("--prompt=hello", "--temp=0", "--max-tokens=16") == generate("--prompt", "hello", *GREEDY)
    assert generate("--prompt=--json", *GREEDY)["usage"]["prompt_tokens"] > 3


def test_cfg002_value_flag_without_value_takes_default():
    """REG-236 CFG-002"""
    p = run("generate", LLAMA, "--prompt", "hello", *GREEDY, "--top-k")
    assert "--top-k has no value" in p.stderr
    p = run("generate", LLAMA, "--prompt", "hello", "--temp", "0", "--max-tokens", "2", "--top-p", "--raw")
    assert "--top-p has no value" in p.stderr


def test_cfg003_unknown_flag_one_warning_with_nearest_name():
    """REG-237 CFG-003: the run goes on."""
    p = run("generate", LLAMA, "--prompt", "hello", "--max-tokns", "--temp", "0", "--max-tokens", "2")
    assert p.stderr.count("warning") == 1 and "--max-tokns" in p.stderr and "--max-tokens?" in p.stderr
    p = run("generate", LLAMA, "--prompt", "hello", "--qqqqqqq", "7", "--temp", "0", "--max-tokens", "2")
    assert "unknown flag --qqqqqqq" in p.stderr and "did you mean" not in p.stderr


def test_cfg004_ignored_flags_take_their_value():
    """CFG-004, T1.48, T1.49, T1.50: the value is not taken for the model."""
    flags = ["--kv-group-size", "32", "--quantized-kv-start", "5", "--perf-kernel", "on", "--fused-decode", "off", "--slots", "4"]
    p = run("generate", *flags, LLAMA, "--prompt", "hello", *GREEDY, "--json")
    assert json.loads(p.stdout) == generate("--prompt", "hello", *GREEDY)
    assert "--slots was renamed to --batch" in p.stderr and "--perf-kernel was removed" in p.stderr


def test_cfg006_temperature_beats_temp():
    """CFG-006, CFG-007: the flag's own name wins over the alias, whatever the order."""
    want = generate("--prompt", "hello", *GREEDY)
    base = ["--prompt", "hello", "--max-tokens", "16", "--seed", "3"]
    assert generate(*base, "--temperature", "0", "--temp", "2") == want
    assert generate(*base, "--temp", "2", "--temperature", "0") == want
    assert generate(*base, "--temp", "2") != want
    assert generate("--prompt", "hello", *GREEDY, "--batch", "2", "--decode-concurrency", "5") == want


@pytest.mark.parametrize("flags,words", [
    (["--temp", "5.1"], "from 0 to 5"), (["--top-p", "-0.1"], "from 0 to 1"), (["--top-k", "1.5"], "integer"),
    (["--max-tokens", "0"], "from 1 to 10000000"), (["--max-tokens", "12x"], "12x"), (["--batch", "0"], "from 1"),
    (["--temp", "nan"], "number"), (["--temp", "0x1"], "number"), (["--tier", "l9"], "l1 l2 f32"), (["--l1", "--l2"], "exclude"),
    (["--l2", "--tier", "f32"], "exclude"), (["--compiled-decode", "maybe"], "on or off"), (["--cpu-level", "sse"], "portable"),
    (["--thinking", "perhaps"], "true false on off 1 0"),
])
def test_cfg098_values_out_of_range_are_named(flags, words):
    """CFG-098, T1.29 to T1.32, CFG-012: exit status 2, the text names flag, range and value."""
    p = run("generate", LLAMA, "--prompt", "x", *flags, status=2)
    assert p.stderr.startswith("mlx-bun: ") and words in p.stderr and p.stdout == ""


@pytest.mark.parametrize("flags", [["--ssd-cache", "/tmp/x"],
                                   ["--draft-model", "x"], ["--draft-kind", "ngram"], ["--kv-quant", "turbo:k8v3"]])
def test_t1_not_in_this_version(flags):
    """T1.10, T1.18, T1.21, T1.22, T1.23: refused by name, exit 2."""
    assert "not in this version" in run("serve", LLAMA, *flags, status=2).stderr


def test_t1_42_l3_points_to_l2():
    """T1.42, CFG-112"""
    p = run("serve", LLAMA, "--l3", status=2)
    assert "--l2" in p.stderr and "Lab" in p.stderr


def test_cfg062_flags_that_need_another_warn():
    """CFG-062, CFG-070, CFG-092: ignored with a warning; the run goes on to the next mistake."""
    p = run("serve", "/nonexistent", "--port", "0", "--ssd-cache-max", "3", "--ssd-cache-verify", "--model-pool", "2",
            "--ngram-max", "2", "--generation-checkpoint", "9", status=3)
    for name, needs in (("ssd-cache-max", "ssd-cache"), ("model-pool", "isolate"), ("ngram-max", "draft-kind"),
                        ("ssd-cache-verify", "ssd-cache"), ("generation-checkpoint", "ssd-cache")):
        assert f"--{name} does nothing without --{needs}" in p.stderr


def test_cfg015_boolean_variables_are_0_and_1_only():
    """CFG-013 to CFG-016: read once; a flag beats the variable; other values of a boolean count as unset."""
    p = run("generate", LLAMA, "--prompt", "x", *GREEDY, env={"MLX_BUN_GRAMMAR_JUMP": "yes", "MLX_BUN_PAGED_KV": "true"})
    assert "warning" not in p.stderr
    env = {"MLX_BUN_CPU": "nonsense"}
    p = run("generate", LLAMA, "--prompt", "x", *GREEDY, env=env)
    assert "MLX_BUN_CPU" in p.stderr and "ignored" in p.stderr
    level = json.loads(run("doctor", "--json").stdout)["cpu_levels"]
    assert level[0] == "portable"
    text = run("doctor", LLAMA, env={"MLX_BUN_CPU": "portable"}).stdout
    assert "device    cpu portable" in text
    text = run("doctor", LLAMA, "--cpu-level", level[-1], env={"MLX_BUN_CPU": "portable"}).stdout
    assert f"device    cpu {level[-1]}" in text


def test_cfg165_context_limit_lowers_only():
    """CFG-165, API-324, T2.38"""
    lowered = run("doctor", LLAMA, "--json", env={"MLX_BUN_RD_CONTEXT_LIMIT": "100"})
    assert json.loads(lowered.stdout)["model"]["n_context"] == 100
    same = run("doctor", LLAMA, "--json", env={"MLX_BUN_RD_CONTEXT_LIMIT": "100000"})
    assert json.loads(same.stdout)["model"]["n_context"] == 4096


def test_flag_of_another_verb_is_ignored_with_its_value():
    p = run("generate", "--port", "9999", LLAMA, "--prompt", "hello", *GREEDY)
    assert "--port does not concern generate" in p.stderr


def test_cfg029_model_flag_beats_positional_beats_query():
    """CFG-029, CFG-008, T1.01 to T1.03"""
    run("generate", "/nonexistent", "--model", LLAMA, "--prompt", "x", *GREEDY)
    run("generate", LLAMA, "--query", "/nonexistent", "--prompt", "x", *GREEDY)
    run("generate", "-q", LLAMA, "--prompt", "x", *GREEDY)
    run("generate", LLAMA, "--model", "/nonexistent", "--prompt", "x", *GREEDY, status=3)


def test_cfg040_hub_cache_folder(tmp_path):
    """CFG-039, CFG-040: the revision that refs/main names."""
    repo = tmp_path / "models--org--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "snapshots").mkdir()
    (repo / "refs/main").write_text("abc123")
    (repo / "snapshots/abc123").symlink_to(LLAMA)
    assert json.loads(run("generate", repo, "--json", "--prompt", "hello", *GREEDY).stdout) == generate("--prompt", "hello", *GREEDY)


def test_model_not_found_says_what_was_tried(tmp_path):
    """CFG-041 MOD-053: a name that nothing in the cache matches, with what to do; a folder without config.json is no model."""
    p = run("generate", "some-model", "--prompt", "x", status=3)
    assert "'some-model'" in p.stderr and "mlx-bun ls" in p.stderr and "mlx-bun get" in p.stderr
    assert "without config.json" in run("generate", tmp_path, "--prompt", "x", status=3).stderr
    gguf = ROOT / "tests/golden/gguf/llama.gguf"
    assert "convert" in run("generate", gguf, "--prompt", "x", status=3).stderr
    assert "no model" in run("generate", "--prompt", "x", status=2).stderr


# --- the other verbs ---


def test_show_prompt_origin():
    p = json.loads(run("show-prompt", LLAMA, "--system", "S", "--prompt", "hi <|im_end|>", "--origin", "--json").stdout)
    parts = p["origin"]
    assert "".join(part["text"] for part in parts) == p["prompt"]
    assert {"origin": "messages[1].content", "text": "hi <|im_end|>"}.items() <= next(
        part for part in parts if part["text"].startswith("hi")).items()
    # B-008: what a user types never becomes the control token 511.
    plain = json.loads(run("show-prompt", LLAMA, "--system", "S", "--prompt", "hi", "--json").stdout)
    assert p["ids"].count(511) == plain["ids"].count(511)
    text = run("show-prompt", LLAMA, "--prompt", "hi", "--origin").stdout
    assert re.search(r'messages\[0\]\.content +"hi"', text) and re.search(r"\d+ ids: ", text)


def test_show_prompt_opens_no_weights(tmp_path):
    """The same prompt from a folder whose weights are missing, broken or of a family that is not in this version: tokenizer and
    templates are all it opens, so the size of the model does not matter."""
    args = ("--system", "S", "--prompt", "hi", "--origin", "--json")
    want = run("show-prompt", LLAMA, *args).stdout
    model = tmp_path / "m"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((Path(LLAMA) / name).read_bytes())
    assert run("show-prompt", model, *args).stdout == want
    (model / "model.safetensors").write_bytes(b"no weights")
    assert run("show-prompt", model, *args).stdout == want
    (model / "config.json").write_text('{"model_type": "glm_moe_dsa"}')
    assert run("show-prompt", model, *args).stdout == want
    assert run("generate", model, "--prompt", "x", status=None).returncode != 0
    (model / "tokenizer.json").unlink()
    assert "tokenizer.json" in run("show-prompt", model, "--prompt", "x", status=None).stderr


def test_perplexity_json_agrees_with_itself(tmp_path):
    ids = [3, 14, 15, 92, 65, 35, 89, 79]
    (tmp_path / "a.json").write_text(json.dumps(ids))
    (tmp_path / "b.txt").write_text(" ".join(map(str, ids)))
    a = json.loads(run("perplexity", LLAMA, "--ids", tmp_path / "a.json", "--json").stdout)
    assert a == json.loads(run("perplexity", LLAMA, "--ids", tmp_path / "b.txt", "--json").stdout)
    assert [p["index"] for p in a["positions"]] == list(range(1, len(ids)))
    assert [p["target"] for p in a["positions"]] == ids[1:]
    mean = -sum(p["logprob"] for p in a["positions"]) / a["n"]
    assert math.isclose(a["mean_nll"], mean, rel_tol=1e-12) and math.isclose(a["perplexity"], math.exp(mean), rel_tol=1e-12)
    assert all(p["argmax_logprob"] >= p["logprob"] for p in a["positions"])
    text = run("perplexity", LLAMA, "--ids", tmp_path / "a.json").stdout
    assert f"{a['perplexity']:.6f}" in text


def test_perplexity_scores_what_generate_drew(tmp_path):
    """Teacher forcing gives the bits of decoding."""
    drawn = generate("--prompt-ids", "5,6,7", *GREEDY, "--ignore-eos")
    ids = [5, 6, 7] + drawn["ids"]
    scored = json.loads(run("perplexity", LLAMA, "--ids", "-", "--json", stdin=json.dumps(ids)).stdout)
    assert [p["logprob"] for p in scored["positions"]][2:] == drawn["logprobs"]


def test_perplexity_arguments():
    run("perplexity", LLAMA, status=2)
    run("perplexity", LLAMA, "--ids", "-", stdin="7", status=2)
    assert "perplexity" in run("perplexity", LLAMA, "--text", "-", stdin="some text").stdout


def test_doctor():
    d = json.loads(run("doctor", LLAMA, "--json").stdout)
    assert d["version"] == run("--version").stdout.split()[1]
    m = d["model"]
    assert m["pool_bytes"] == m["usable_bytes"] - m["weight_bytes"] - m["scratch_bytes"]
    plan = run("doctor", "--plan", LLAMA, "--cpu-level", "portable").stdout
    assert "embed" in plan and "attend" in plan and "[portable]" in plan
    run("doctor", "--plan", status=2)


def test_doctor_fidelity_arguments(tmp_path):
    assert "--texts" in run("doctor", "--fidelity", LLAMA, "--texts", tmp_path / "none", status=3).stderr
    assert ".txt" in run("doctor", "--fidelity", LLAMA, "--texts", tmp_path, status=3).stderr
    (tmp_path / "a.txt").write_text("too short")
    assert "longer texts" in run("doctor", "--fidelity", LLAMA, "--texts", tmp_path, status=2).stderr


def test_doctor_fidelity_of_a_tiny_model(tmp_path):
    p = run("doctor", "--fidelity", LLAMA, "--json", status=None)
    d = json.loads(p.stdout)
    assert [t["positions"] for t in d["tiers"]] == [4096] * 3
    assert p.returncode == (0 if d["met"] else 1)
    l1_f32, l1, l2 = d["tiers"]
    assert l1_f32["met"] and l1["met"] and l1_f32["mean_kl"] <= l1["mean_kl"] < l2["mean_kl"]


def test_prove_quick():
    p = run("prove", LLAMA)
    lines = [line for line in p.stdout.splitlines() if " tokens " in line]
    assert len(lines) >= 13 and all(re.search(r"(identical|skipped: .+)$", line) for line in lines)
    for axis in ("alone", "with 1 stranger", "with 8 strangers", "chunks of 1 ", "chunks of 7 ", "chunks of 64 ", "chunks of 512 ",
                 "warm prefix", "preempted", "1 thread ", "cpu level portable", "after a restart"):
        assert any(axis in line and line.endswith("identical") for line in lines), axis
    assert len({line.split()[-2] for line in lines if line.split()[-3] == "tokens" and " 200 " in line}) == 1


def test_convert(tmp_path):
    gguf = ROOT / "tests/golden/gguf/llama.gguf"
    out = tmp_path / "out"
    report = json.loads(run("convert", gguf, out, "--json").stdout)
    assert report["arch"] == "llama" and report["tensors"] == report["plain"] + report["exact"] + report["rounded"]
    assert (out / "config.json").exists()
    assert 0 <= (out / "model.safetensors").stat().st_size - report["size_bytes"] < 10000  # the header
    assert "tensors" in run("convert", gguf, tmp_path / "out2").stdout
    run("convert", gguf, out, status=2)  # in use
    run("convert", gguf, status=2)
    run("convert", tmp_path / "none.gguf", tmp_path / "x", status=3)
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0")
    run("convert", tmp_path / "bad.gguf", tmp_path / "x", status=4)
    assert not (tmp_path / "x").exists()


def test_get_arguments():
    run("get", status=2)
    p = run("get", "some/model", status=7, env={"HF_ENDPOINT": "http://127.0.0.1:1"})
    assert "cannot reach the hub" in p.stderr and "127.0.0.1:1" in p.stderr


def test_version_and_help():
    assert re.fullmatch(r"mlx-bun \d+\.\d+\.\d+( .*)?\n", run("--version").stdout)
    top = run("help").stdout
    assert top == run("--help").stdout
    assert "--port must be" in run("--port", "many", status=2).stderr  # REG-045: without a verb it is serve
    for verb in ("serve", "generate", "convert", "get", "show-prompt", "doctor", "prove", "perplexity", "help"):
        assert verb in top
        assert run("help", verb).stdout == run(verb, "--help").stdout
    assert "unknown verb" in run("frobnicate", status=2).stderr
    run("help", "frobnicate", status=3)


@pytest.mark.parametrize("verb", ["awq", "dwq", "gptq", "dynamic_quant"])
def test_reg213_learned_quantisation(verb):
    """REG-213"""
    p = run(verb, "--model", "x", status=2)
    assert "not implemented" in p.stderr and "--target-bpw" in p.stderr and not p.stdout


def test_cfg011_help_lists_every_flag_of_the_reference():
    """CFG-011, CFG-012: help and docs/flags.md come from one table; defaults are the table's."""
    docs = (ROOT / "docs/flags.md").read_text()
    text = run("help", "serve").stdout
    for row in docs.split("## Variables")[0].splitlines():
        cells = [c.strip() for c in row.replace(r"\|", "/").split("|")]
        if len(cells) < 9 or not cells[1].startswith("`--"):
            continue
        name = cells[1].split("`")[1]
        on_serve = cells[5] == "all" or "serve" in cells[5].split(", ")
        if on_serve and not cells[6].startswith("removed"):
            assert re.search(rf"{name}\b", text), name


def test_t1_every_row_of_both_tables_is_documented():
    """T1.01 to T1.50, T2.01 to T2.38"""
    docs = (ROOT / "docs/flags.md").read_text()
    for table, n in (("T1", 50), ("T2", 38)):
        for i in range(1, n + 1):
            assert re.search(rf"\b{table}\.{i:02}\b", docs), f"{table}.{i:02}"


def test_every_family_has_goldens():
    """docs/families.md is of the table and of the goldens as they are; a family without any of them, and a golden without figures, fail
    `make docs`."""
    table = run("help", "--docs-families").stdout
    page = subprocess.run([ROOT / "tools/families_page.py"], input=table, capture_output=True, text=True)
    assert page.returncode == 0, page.stderr
    assert page.stdout == (ROOT / "docs/families.md").read_text(), "docs/families.md: run make docs"
    page = subprocess.run([ROOT / "tools/families_page.py"], input=table + "| nowhere | `nowhere` | new |\n", capture_output=True, text=True)
    assert page.returncode == 1
    for what in ("no checkpoint in tests/golden/tiny", "no golden in tests/golden/logits", "no uniform case in tests/golden/convert",
                 "no case with bits by layer", "no plain source in tests/golden/convert"):
        assert f"nowhere: {what}" in page.stderr, page.stderr
    assert subprocess.run([ROOT / "tools/families_page.py"], input="", capture_output=True).returncode == 1


@pytest.mark.parametrize("page,flag", [("flags.md", "--docs"), ("errors.md", "--docs-errors"), ("routes.md", "--docs-routes")])
def test_generated_documents_are_current(page, flag):
    assert run("help", flag).stdout == (ROOT / "docs" / page).read_text(), f"docs/{page}: run make docs"


def test_output_errors():
    with open("/dev/full", "w") as full:
        p = subprocess.run([MLX_BUN, "help", "serve"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert p.returncode == 7 and "standard output" in p.stderr
    p = subprocess.run(f"'{MLX_BUN}' help --docs | head -c 10; exit ${{PIPESTATUS[0]}}", shell=True, executable="/bin/bash",
                       capture_output=True, text=True)
    assert p.stderr == ""


def test_example_program(tmp_path):
    """examples/generate.c: the public header alone is enough."""
    library = Path(MLX_BUN).parent / "libmlxbun.a"
    libs = subprocess.run(["make", "-s", "--no-print-directory", "-f", "Makefile", "-f", "-", "print-libs"], cwd=ROOT, text=True,
                          input="print-libs:\n\t@echo $(PKG_LIBS)\n", capture_output=True).stdout.split()
    subprocess.run(["cc", "-std=c17", "-Wall", "-Wextra", "-Werror", "-Iinclude", "examples/generate.c", str(library), *libs,
                    "-o", str(tmp_path / "generate")], cwd=ROOT, check=True)
    p = subprocess.run([tmp_path / "generate", LLAMA, 'say "hi"\n'], capture_output=True, text=True, cwd=ROOT)
    assert p.returncode == 0 and re.search(r"\(\d+ tokens, (stop|length)\)$", p.stdout.strip()), p.stdout + p.stderr
    p = subprocess.run([tmp_path / "generate", "/nonexistent", "x"], capture_output=True, text=True)
    assert p.returncode == 1 and "MB_NOT_FOUND" in p.stderr


# --- serve ---


class Server:
    def __init__(self, *args, env=None):
        self.p = subprocess.Popen([MLX_BUN, "serve", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env=clean_env(**(env or {})), cwd=ROOT)
        self.card = ""
        for line in self.p.stdout:
            self.card += line
            if "curl" in line or "-d '" in line:
                if "-d '" in line:
                    break

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.kill()
        self.p.communicate()

    def stop(self, sig=signal.SIGTERM):
        self.p.send_signal(sig)
        self.p.communicate(timeout=300)
        return self.p.returncode


def post(port, path, body):
    r = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(r, timeout=300) as f:
        return json.load(f)


def test_serve_card_answers_and_stops():
    """T1.04, T1.05, CFG-012, CFG-107: the card says what is true; the curl of the card works; SIGTERM ends with 0."""
    port = rig.free_port()
    with Server(LLAMA, "--port", port, "--no-open", "--temp", "0", "--max-tokens", "8") as s:
        assert f"http://127.0.0.1:{port}/v1" in s.card and "llama" in s.card and "l1" in s.card
        curl = re.search(r"curl .*", s.card, re.S).group(0)
        p = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=300)
        answer = json.loads(p.stdout)
        assert answer["usage"]["completion_tokens"] <= 8
        # CFG-098, CFG-099: the server's defaults, and the same text as `generate`.
        assert answer["choices"][0]["message"]["content"] == run(
            "generate", LLAMA, "--prompt", "Hello!", "--temp", "0", "--max-tokens", "8").stdout[:-1]
        assert s.stop() == 0


def test_cfg049_port_in_use_is_refused_before_loading():
    """CFG-049"""
    port = rig.free_port()
    with Server(LLAMA, "--port", port) as s:
        begin = time.monotonic()
        p = run("serve", "/nonexistent/never/read", "--port", port, status=7)
        assert f":{port}/v1" in p.stderr and time.monotonic() - begin < 30
        assert s.stop(signal.SIGINT) == 0


def test_cfg050_unix_socket(tmp_path):
    """CFG-050, CFG-051, T1.06: a stale socket is removed."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with Server(LLAMA, "--unix", path) as s:
        with socket.socket(socket.AF_UNIX) as c:
            c.connect(str(path))
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            c.settimeout(20)
            assert c.recv(4096).startswith(b"HTTP/1.1 200")
        assert s.stop() == 0


def test_serve_wrong_address():
    p = run("serve", LLAMA, "--host", "not an address", "--port", rig.free_port(), status=None)
    assert p.returncode in (2, 3, 7) and p.stderr.startswith("mlx-bun: host not an address")
