"""`mlx-bun fit`: memory and speed of a model that is not loaded. The program is $MLX_BUN."""
import json
import os
import re
import shutil
import sqlite3
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
import http_rig as rig  # noqa: E402

MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
TINY = ROOT / "tests/golden/tiny"
LLAMA = TINY / "llama"
STEPS_BYTES = 32 << 20  # huge pages and arenas come and go whole
REPORT = ["fits", "weights_bytes", "kv_bytes", "transient_bytes", "total_bytes", "usable_bytes", "max_safe_context", "predicted_decode_tps"]
LARGE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
         "rope_theta": 500000.0, "tie_word_embeddings": False, "hidden_act": "silu", "eos_token_id": 1, "bos_token_id": 0}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of our own, in which the machine is measured once for all of these tests."""
    return tmp_path_factory.mktemp("cache")


def run(cache, *args, status=0, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
    p = subprocess.run([MLX_BUN, *map(str, args), "--cache-dir", cache], capture_output=True, text=True, cwd=ROOT, timeout=300,
                       env={**clean, "HF_HUB_CACHE": "/dev/null/none", **env})
    assert p.returncode == status, (args, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
    return p


def fit(cache, *args, status=0, **env):
    return json.loads(run(cache, "fit", *args, "--json", status=status, **env).stdout)


def large_model(where):
    """A model of 141 GB whose weight file is a header over a hole: whoever read it would notice."""
    tensors, at = {}, 0

    def add(name, *shape):
        nonlocal at
        n = 2
        for d in shape:
            n *= d
        tensors[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n

    c = LARGE
    d, kv = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"] * c["num_key_value_heads"]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        for name, n, k in (("self_attn.q_proj", d, d), ("self_attn.k_proj", kv, d), ("self_attn.v_proj", kv, d), ("self_attn.o_proj", d, d),
                           ("mlp.gate_proj", c["intermediate_size"], d), ("mlp.up_proj", c["intermediate_size"], d),
                           ("mlp.down_proj", d, c["intermediate_size"])):
            add(p + name + ".weight", n, k)
        add(p + "input_layernorm.weight", d)
        add(p + "post_attention_layernorm.weight", d)
    add("model.embed_tokens.weight", c["vocab_size"], d)
    add("model.norm.weight", d)
    add("lm_head.weight", c["vocab_size"], d)
    where.mkdir()
    (where / "config.json").write_text(json.dumps(c))
    header = json.dumps(tensors).encode()
    with open(where / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + at)
    return at


def test_fit_report(cache):
    """REG-249 REG-110 REG-113 REG-123 REG-124 REG-125 ENG-259 ENG-260 ENG-264: every field, and the sum."""
    got = fit(cache, LLAMA, "--ctx", "100", "--memory-budget", "1")
    r = got["report"]
    assert list(r) == REPORT
    assert r["fits"] is True and r["usable_bytes"] == 10**9 and got["report_context"] == 100
    assert r["total_bytes"] == r["weights_bytes"] + r["kv_bytes"] + r["transient_bytes"]
    assert r["predicted_decode_tps"] > 0 and got["predicted_prefill_tps"] > 0
    assert got["machine"]["bandwidth_gbs"] > 0 and got["machine"]["ram_bytes"] > 2**20 and got["machine"]["chip"]
    assert got["context_tokens"] == r["max_safe_context"] == got["model_context"]
    assert got["typical_context_tokens"] == min(8192, got["context_tokens"]) and got["typical_decode_tps"] > 0
    assert got["measured_decode_tps"] is None and got["measured_at"] is None
    assert got["sku_matrix_ctx"] == 32768 and got["sku_matrix"] == []


@pytest.mark.skipif(rig.SANITIZED, reason="a sanitizer's own memory is larger than the model's")
def test_fit_says_what_a_request_takes(cache):
    """REG-113: what memory a server has taken behind a request of N tokens grows with N as fit says, but for what threads, the allocator
    and huge pages take in steps. (Of real models the whole is within 10 %: bench/fit.py; these are smaller than the program.)"""
    args = ["--threads", "1", "--cache-dir", str(cache)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
    for model in (LLAMA, TINY / "gemma3"):
        p = subprocess.Popen([MLX_BUN, "serve", str(model), "--port", "0", "--no-open", *args], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, env=env, cwd=ROOT)
        try:
            url = next(m[1] for line in p.stdout if (m := re.search(r"url +(http://\S+)/v1", line)))
            seen = []
            for words in (4, 200):
                text = json.dumps({"prompt": "a b " * words, "max_tokens": 2, "ignore_eos": True}).encode()
                request = urllib.request.Request(url + "/v1/completions", text, {"content-type": "application/json"})
                n = json.loads(urllib.request.urlopen(request, timeout=300).read())["usage"]["total_tokens"]
                seen.append((n, rig.anonymous_bytes(p.pid)))
        finally:
            p.terminate()
            p.wait()
            p.stdout.close()
        said = [fit(cache, model, "--threads", "1", "--ctx", n) for n, _ in seen]
        for s in said:
            assert s["expected_bytes"] == s["report"]["total_bytes"] + s["kept_bytes"] <= s["report"]["usable_bytes"]
            assert s["scratch_bytes"] == said[0]["scratch_bytes"] > s["report"]["transient_bytes"]
        grown, predicted = seen[1][1] - seen[0][1], said[1]["expected_bytes"] - said[0]["expected_bytes"]
        assert seen[1][0] > seen[0][0] + 100 and abs(grown - predicted) < predicted / 2 + STEPS_BYTES, (model, seen, predicted)


def test_fit_is_the_same_twice(cache):
    """REG-112"""
    args = (LLAMA, "--memory-budget", "1", "--skus")
    assert fit(cache, *args) == fit(cache, *args)


def test_fit_without_reading_weights(cache, tmp_path):
    """REG-114 REG-118 B-158: 141 GB of holes are sized from the header, in little memory; what does not fit says so and exits 1."""
    n = large_model(tmp_path / "large")
    got = fit(cache, tmp_path / "large", "--memory-budget", "100", "--skus", status=1)
    r = got["report"]
    embedding = 128256 * 8192 * 2  # gathered: stays in the file
    assert abs(r["weights_bytes"] - (n - embedding)) < 0.01 * n
    assert r["fits"] is False and r["max_safe_context"] == 0 and got["context_tokens"] == 0 and got["typical_decode_tps"] is None
    fits = {s["sku"]: s for s in got["sku_matrix"]}
    assert any(s["fits"] for s in fits.values()) and not all(s["fits"] for s in fits.values())
    for s in fits.values():
        assert list(s) == ["sku", "ram_gb", "fits", "max_context", "decode_tps"]
        assert s["fits"] == (s["max_context"] >= 32768) and (s["decode_tps"] is None) == (not s["fits"])
    larger = fit(cache, tmp_path / "large", "--memory-budget", "145")["report"]
    assert larger["fits"] and 0 < larger["max_safe_context"] < 131072
    assert larger["total_bytes"] <= larger["usable_bytes"]
    full = fit(cache, tmp_path / "large", "--memory-budget", "200", "--ctx", "131072")["report"]
    assert full["fits"] and full["kv_bytes"] == 131072 * 80 * 2 * 8 * 128 * 2
    wide = fit(cache, tmp_path / "large", "--memory-budget", "250", "--ctx", "131072", "--kv-quant", "f32")["report"]
    assert wide["kv_bytes"] == 2 * full["kv_bytes"] and wide["predicted_decode_tps"] > 0
    short = fit(cache, tmp_path / "large", "--memory-budget", "200", "--ctx", "1024")["report"]
    assert short["predicted_decode_tps"] > full["predicted_decode_tps"]  # of the same measurement: keys are read, too
    for bits in (8, 4):  # two scales of 16 bit a group of 64; what is read is less
        r = fit(cache, tmp_path / "large", "--memory-budget", "200", "--ctx", "131072", "--kv-quant", str(bits))["report"]
        assert r["kv_bytes"] == 131072 * 80 * 2 * 8 * 128 * (bits + 32 / 64) / 8 and r["fits"]
    text = run(cache, "fit", tmp_path / "large", "--memory-budget", "100", status=1).stdout
    assert "does not fit" in text and "none" in text


def test_fit_windows(cache):
    """REG-115: KV grows by full layers alone behind the window."""
    config = json.loads((TINY / "gemma3/config.json").read_text())
    window = config.get("sliding_window") or config["text_config"]["sliding_window"]
    at = [fit(cache, TINY / "gemma3", "--ctx", n)["report"]["kv_bytes"] for n in (64, 128, window + 256, window + 320, window + 384)]
    first, later = at[1] - at[0], at[4] - at[3]
    assert first > later > 0 and at[3] - at[2] == later


def test_fit_of_a_mixture(cache):
    """REG-077 REG-116 REG-128 ENG-262: of experts those count that a token goes to: more of them are slower, not larger."""
    def with_top_k(k):
        where = cache / f"moe{k}"
        if not where.exists():
            shutil.copytree(TINY / "qwen3_moe", where)
            c = json.loads((where / "config.json").read_text())
            c["num_experts_per_tok"] = k
            (where / "config.json").write_text(json.dumps(c))
        return fit(cache, where, "--memory-budget", "1", "--ctx", "64")["report"]
    few, many = with_top_k(1), with_top_k(4)
    assert few["weights_bytes"] == many["weights_bytes"]
    assert few["predicted_decode_tps"] > many["predicted_decode_tps"]


def test_fit_finds_models_in_the_cache(cache, tmp_path):
    """REG-110: by name or part of one, not loaded, whole or not at all."""
    repo = tmp_path / "hub/models--org--small"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(LLAMA, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text(commit)
    env = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    by_path = fit(cache, LLAMA, "--memory-budget", "1")["report"]
    for name in ("org/small", "small", f"org/small@{commit}", repo):
        assert fit(cache, name, "--memory-budget", "1", **env)["report"] == by_path
    assert fit(cache, "-q", "small", "--memory-budget", "1", **env)["report"] == by_path
    assert "no model" in run(cache, "fit", "nothing-like-it", status=3, **env).stderr


def test_fit_refuses_what_it_cannot_read(cache, tmp_path):
    assert "model_type" in run(cache, "fit", broken(tmp_path / "a", model_type="mystery"), status=5).stderr
    assert "name one" in run(cache, "fit", status=2).stderr
    assert run(cache, "fit", LLAMA, "--ctx", "0", status=2).stderr
    where = broken(tmp_path / "b")
    (where / "model.safetensors").write_bytes(b"\xff" * 100)
    assert "model.safetensors" in run(cache, "fit", where, status=4).stderr


def broken(where, **config):
    shutil.copytree(LLAMA, where)
    c = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps({**c, **config}))
    return where


def test_fit_above_the_models_context(cache):
    p = run(cache, "fit", LLAMA, "--ctx", "1000000", "--json")
    got = json.loads(p.stdout)
    assert got["report_context"] == got["model_context"] and "1000000" in p.stderr


def test_fit_text(cache):
    out = run(cache, "fit", LLAMA, "--skus").stdout
    for part in ("machine", "memory", "context", "speed", "GB/s", "H200", "DDR5", "fits"):
        assert part in out
    assert re.search(r"reads [\d.]+ GB/s \(measured \d{4}-\d\d-\d\d\)", out)


def test_the_machine_is_measured_once(tmp_path):
    """REG-112 REG-117: kept, found again, measured anew when asked to, or when what is kept is old or not readable."""
    def rates():
        with sqlite3.connect(tmp_path / "registry.sqlite") as db:
            return db.execute("SELECT name, speeds, at_ms FROM machine_speeds").fetchall()

    def change(sql):
        with sqlite3.connect(tmp_path / "registry.sqlite") as db:
            db.execute(sql)
    first = fit(tmp_path, LLAMA, "--threads", "1")
    kept = rates()
    assert len(kept) == 1 and json.loads(kept[0][1])["read_bytes_s"][0] * 1e-9 == first["machine"]["bandwidth_gbs"]
    assert fit(tmp_path, LLAMA, "--threads", "1")["machine"] == first["machine"] and rates() == kept
    fit(tmp_path, LLAMA, "--threads", "2")
    assert len(rates()) == 2  # another number of threads is another machine
    for sql in ("UPDATE machine_speeds SET at_ms = 1000", "UPDATE machine_speeds SET speeds = '{\"n_threads\": 1}'",
                "UPDATE machine_speeds SET speeds = 'no json'", "DROP TABLE machine_speeds"):
        change(sql)
        assert fit(tmp_path, LLAMA, "--threads", "1")["machine"]["bandwidth_gbs"] > 0
        row = [r for r in rates() if "1 thread" in r[0]]
        assert row[0][2] > 1000 and json.loads(row[0][1])["n_threads"] == 1
    before = rates()
    fit(tmp_path, LLAMA, "--threads", "1", "--measure")
    assert rates() != before


def test_fit_where_nothing_can_be_kept(tmp_path):
    """A folder that cannot be made: measured all the same, with a warning."""
    (tmp_path / "file").write_text("")
    p = run(tmp_path / "file/below", "fit", LLAMA, "--json")
    assert json.loads(p.stdout)["report"]["predicted_decode_tps"] > 0 and "not kept" in p.stderr


def test_measured_rates_are_preferred(tmp_path):
    """REG-127 REG-129 ENG-261: what a benchmark reached is kept beside the prediction and shown, for this tier and these files."""
    fit(tmp_path, LLAMA, "--threads", "1")
    where = tmp_path / "model"
    shutil.copytree(LLAMA, where)
    bench = run(tmp_path, "benchmark", where, "--prompt-tokens", "24", "--tokens", "6", "--repeat", "1", "--threads", "1", "--json").stdout
    rate = json.loads(bench)["rows"][0]["decode_tok_s"]
    got = fit(tmp_path, where, "--threads", "1")
    assert got["measured_decode_tps"] == rate and abs(got["measured_at"] / 1000 - os.stat(tmp_path / "registry.sqlite").st_mtime) < 3600
    assert "measured" in run(tmp_path, "fit", where, "--threads", "1").stdout
    with sqlite3.connect(tmp_path / "registry.sqlite") as db:
        assert db.execute("SELECT predicted_per_s > 0 FROM decode_rates").fetchall() == [(1,)]
    assert fit(tmp_path, where, "--threads", "1", "--l2")["measured_decode_tps"] is None
    os.utime(where / "model.safetensors", (1, 1))  # other files: another model
    assert fit(tmp_path, where, "--threads", "1")["measured_decode_tps"] is None
