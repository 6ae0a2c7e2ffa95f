"""`mlx-bun benchmark`, and the cache of the tokenizer beside it: what they print, what they leave behind. The program is $MLX_BUN."""
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = str(ROOT / "tests/golden/tiny/llama")
SMALL = ["--prompt-tokens", "24", "--tokens", "6", "--repeat", "2", "--threads", "1"]


def run(*args, status=0, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
    p = subprocess.run([MLX_BUN, *map(str, args)], capture_output=True, text=True, env={**clean, **env}, cwd=ROOT, timeout=300)
    assert p.returncode == status, (args, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
    return p


def benchmark(*args, **env):
    return json.loads(run("benchmark", LLAMA, *SMALL, "--json", *args, **env).stdout)


def check_row(row, rounds):
    assert row["prompt_tokens"] == 24 and row["tokens"] == 6
    assert row["prefill_tok_s"] > 0 and row["decode_tok_s"] > 0 and row["first_token_s"] > 0
    if rounds == 1:  # of several, each is a median of its own
        assert abs(row["prefill_tok_s"] * row["first_token_s"] / (24 * row["requests"]) - 1) < 1e-6


def test_benchmark_alone_and_together():
    got = benchmark("--batch", "3", "--l2")
    assert got["rounds"] == 2 and got["device"].startswith("cpu")
    assert [(r["tier"], r["requests"]) for r in got["rows"]] == [("l2", 1), ("l2", 3)]
    for row in got["rows"]:
        check_row(row, 2)


def test_cfg126_reference_prefill_is_accepted():
    """CFG-126"""
    assert len(benchmark("--reference-prefill", "unsplit")["rows"]) == 1
    assert "split" in run("benchmark", LLAMA, "--reference-prefill", "sometimes", status=2).stderr


def test_cfg206_features_measures_every_cell():
    """CFG-206"""
    rows = benchmark("--run", "features", "--batch", "2", "--repeat", "1")["rows"]
    cells = {(r["tier"], r["kv"], r["requests"]) for r in rows}
    assert len(cells) == len(rows) == 3 * 5 * 2
    for row in rows:
        check_row(row, 1)


def test_eng265_recipes():
    """ENG-265 ENG-266 ENG-267 ENG-268 ENG-269 CFG-122: one user, four clients, one through serve --isolate, both arithmetics, memory for no more than one request, and
    mlx_lm.server's policy: one at a time, 512 tokens where the command says no number. What is not run is named, with the reason."""
    got = benchmark("--run", "recipes", "--repeat", "1")
    rows = got["rows"]
    assert {r["kv"] for r in rows if r["recipe"] == "tight memory"} == {"off", "8", "4"}
    why = {r["kv"]: r["why"] for r in got["not_run"] if "kv" in r}
    assert set(why) == {"config", "turbo"} and "kv_config.json" in why["config"] and "turbo is not in this version" in why["turbo"]
    rows = [r for r in rows if r["kv"] in ("off", "f16", "bf16", "f32")]
    assert [(r["recipe"], r["tier"], r["requests"]) for r in rows] == [
        ("single user", "l1", 1), ("several clients", "l1", 1), ("several clients", "l1", 4), ("never-lagging interface", "l1", 1), ("mlx-lm's arithmetic", "l1", 1),
        ("optiq's arithmetic", "l2", 1), ("tight memory", "l1", 1), ("mlx_lm.server's policy", "l1", 1)]
    host = next(r for r in rows if r["recipe"] == "never-lagging interface")
    assert 0 < host["host_ms"] <= host["host_ms_max"] and host["decode_tok_s"] > 0 and 0 < host["prompt_tokens"]
    for row in rows:
        if row is not host:
            check_row(row, 1)
    args = ["--run", "recipes", "--repeat", "1", "--prompt-tokens", "8", "--threads", "1"]
    rows = [r for r in json.loads(run("benchmark", LLAMA, *args, "--json").stdout)["rows"] if r["kv"] == "off"]
    assert [r["tokens"] for r in rows] == [rows[0]["tokens"]] * 7 + [512] and rows[0]["tokens"] != 512
    text = run("benchmark", LLAMA, *args, "--tokens", "4").stdout
    assert "mlx_lm.server's policy" in text and "never-lagging interface (over HTTP; the host answers in" in text


def test_recipes_that_do_not_fit_are_named():
    """A recipe that this machine or this model's context cannot hold is listed with the reason, the others are measured; when nothing
    was, the verb fails."""
    args = ["--run", "recipes", "--repeat", "1", "--prompt-tokens", "8", "--threads", "1"]
    c = json.loads((Path(LLAMA) / "config.json").read_text())["max_position_embeddings"]
    got = json.loads(run("benchmark", LLAMA, *args, "--prompt-tokens", c - 300, "--json").stdout)
    assert "mlx_lm.server's policy" in [r["recipe"] for r in got["not_run"]] and "single user" in [r["recipe"] for r in got["rows"]]
    assert "--prompt-tokens" in run("benchmark", LLAMA, *args, "--prompt-tokens", c + 1, status=2).stderr


def test_benchmark_prints_a_table():
    out = run("benchmark", LLAMA, *SMALL).stdout
    assert "tok/s" in out and "median of 2" in out


def test_benchmark_longer_than_the_context_is_refused():
    err = run("benchmark", LLAMA, "--prompt-tokens", "1000000", "--tokens", "6", status=2).stderr
    assert "--prompt-tokens 1000000" in err


def test_the_tokenizer_is_kept_in_the_cache(tmp_path):
    """The second start maps what the first one made; a damaged file changes nothing."""
    prompt = ["show-prompt", LLAMA, "--prompt", "Hello there, 123", "--cache-dir", tmp_path]
    first = run(*prompt).stdout
    images = list((tmp_path / "tokenizer").iterdir())
    assert len(images) == 1 and images[0].suffix == ".bin"
    made = images[0].stat().st_mtime_ns
    assert run(*prompt).stdout == first
    assert images[0].stat().st_mtime_ns == made
    data = bytearray(images[0].read_bytes())
    data[len(data) // 2] ^= 0x55
    images[0].write_bytes(data)
    assert run(*prompt).stdout == first
    assert run("show-prompt", LLAMA, "--prompt", "Hello there, 123", HOME=str(tmp_path / "home"), XDG_CACHE_HOME="").stdout == first
