"""--device: what is chosen, and what a machine without a GPU is told. The program is $MLX_BUN."""
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = str(ROOT / "tests/golden/tiny/llama")


def run(*args):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
    return subprocess.run([MLX_BUN, *args], capture_output=True, text=True, env=env, timeout=300)


def has_gpu():
    return run("generate", "--device", "cuda", LLAMA, "-p", "a", "--max-tokens", "1").returncode == 0


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "cuda:-1", "cudax"])
def test_a_device_that_is_none(name):
    p = run("generate", "--device", name, LLAMA, "-p", "a", "--max-tokens", "1")
    assert p.returncode != 0 and p.stdout == ""
    assert name in p.stderr and "cuda" in p.stderr and "cpu" in p.stderr


@pytest.mark.parametrize("command", [["generate", LLAMA, "-p", "a"], ["prove", LLAMA], ["doctor", LLAMA], ["serve", LLAMA, "-p", "0"]])
def test_without_a_gpu_the_error_says_what_to_do(command):
    if has_gpu():
        pytest.skip("this machine has a GPU")
    p = run(*command, "--device", "cuda")
    assert p.returncode != 0 and p.stdout == ""
    assert "device cuda" in p.stderr and "--device cpu" in p.stderr


@pytest.mark.parametrize("flags,words", [
    (["--devices", "cuda:0,0,1"], "names a card twice"), (["--devices", "cuda:0,"], "cuda:N,M"),
    (["--tensor-parallel", "2"], "--device cuda"), (["--devices", "cuda:0,1", "--tensor-parallel", "4"], "names 2"),
])
def test_cards_that_do_not_agree(flags, words):
    p = run("generate", *flags, LLAMA, "-p", "a", "--max-tokens", "1")
    assert p.returncode != 0 and p.stdout == "" and words in p.stderr, p.stderr


@pytest.mark.parametrize("flags", [["--devices", "cuda:0,1"], ["--device", "cuda", "--tensor-parallel", "4"]])
def test_several_cards_without_a_gpu(flags):
    """The same remedy as for one; --devices is --device, --tensor-parallel makes its list."""
    if has_gpu():
        pytest.skip("this machine has a GPU")
    p = run("generate", *flags, LLAMA, "-p", "a", "--max-tokens", "1")
    assert p.returncode != 0 and "device cuda" in p.stderr and "--device cpu" in p.stderr


def test_two_ranks_on_one_gpu():
    """Greedy text of ranks that share a GPU is that of the GPU alone."""
    if not has_gpu():
        pytest.skip("no GPU on this machine")
    greedy = ["generate", LLAMA, "-p", "hello there", "--temp", "0", "--max-tokens", "24"]
    assert run(*greedy, "--devices", "cuda:0,0").stdout == run(*greedy, "--device", "cuda").stdout


def test_doctor_says_whether_there_is_a_gpu():
    lines = [line for line in run("doctor").stdout.splitlines() if line.startswith("gpu ")]
    assert len(lines) == 1
    assert "cuda:0" in lines[0] if has_gpu() else "none: " in lines[0] and "--device cpu" in lines[0]


def test_the_same_request_on_a_gpu():
    """Greedy text of a tiny model on the GPU is the CPU's, and prove finds the same bits on every line."""
    if not has_gpu():
        pytest.skip("no GPU on this machine")
    greedy = ["generate", LLAMA, "-p", "hello there", "--temp", "0", "--max-tokens", "24"]
    assert run(*greedy, "--device", "cuda").stdout == run(*greedy, "--device", "cpu").stdout
    p = run("prove", LLAMA, "--device", "cuda")
    assert p.returncode == 0 and "the same bits on every line" in p.stdout, p.stdout + p.stderr
