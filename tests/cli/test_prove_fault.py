"""`mlx-bun prove` must find a changed sum order. Needs a build with fault points (make alloc-fail builds one)."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = str(ROOT / "tests/golden/tiny/llama")


def has_fault_points():
    return "fault points" in subprocess.run([MLX_BUN, "--version"], capture_output=True, text=True).stdout


@pytest.mark.skipif(not has_fault_points(), reason="a build without fault points")
def test_prove_finds_a_planted_sum_order():
    """The fault sum_order adds groups in another order when a matmul has more than one row: a prompt computed token by
    token, the rows of strangers, and the reference then disagree, and prove ends with 1."""
    p = subprocess.run([MLX_BUN, "prove", LLAMA], capture_output=True, text=True, timeout=600,
                       env={**os.environ, "MLX_BUN_TEST_FAULT": "sum_order=1"})
    lines = p.stdout.splitlines()
    assert p.returncode == 1, p.stdout + p.stderr
    assert any(line.startswith("prompt in chunks of 1 ") and line.endswith("DIFFERENT") for line in lines)
    assert any(line.startswith("with 8 strangers") and line.endswith("DIFFERENT") for line in lines)
    assert any(line.startswith("after a restart") and line.endswith("identical") for line in lines)
    good = subprocess.run([MLX_BUN, "prove", LLAMA], capture_output=True, text=True, timeout=600,
                          env={k: v for k, v in os.environ.items() if k != "MLX_BUN_TEST_FAULT"})
    assert good.returncode == 0, good.stdout
