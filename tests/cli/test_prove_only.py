"""`mlx-bun prove --only TEXT --tokens N`: some of its lines, so long as asked for."""
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = str(ROOT / "tests/golden/tiny/llama")


def prove(*flags):
    return subprocess.run([MLX_BUN, "prove", LLAMA, *flags], capture_output=True, text=True, timeout=300)


def test_only_some_lines():
    """Lines whose names hold the text, of so many tokens; all equal."""
    p = prove("--only", "chunks of 7", "--tokens", "20", "--json")
    assert p.returncode == 0, p.stderr
    report = json.loads(p.stdout)
    assert [line["line"] for line in report["lines"]] == ["prompt in chunks of 7"]
    assert report["lines"][0]["tokens"] == 20 and report["identical"] is True


def test_only_skipped_lines_are_no_proof():
    """A machine without these instructions: the line is skipped, and nothing was shown."""
    p = prove("--only", "level amx", "--tokens", "3")
    if p.returncode == 0:
        assert p.stdout.endswith(": 1 line identical, 0 skipped\n") and " 4 tokens " in p.stdout  # rounded up
    else:
        assert "nothing was compared" in p.stderr and "not on this machine" in p.stderr and "identical" not in p.stdout


def test_the_end_counts_and_a_cut_is_told():
    p = prove("--only", "chunks of 512", "--tokens", "3")
    assert p.returncode == 0 and p.stdout.endswith(": 1 line identical, 0 skipped\n") and " 4 tokens " in p.stdout and not p.stderr
    p = prove("--only", "moonlight", "--tokens", "1000000")
    assert "leaves room for" in p.stderr


def test_a_text_that_no_line_has():
    """Nothing compared is no proof: an error that says so."""
    p = prove("--only", "moonlight", "--tokens", "4")
    assert p.returncode != 0 and "moonlight" in p.stderr and "identical" not in p.stdout
