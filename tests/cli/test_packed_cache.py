"""--packed-cache: the next start maps the packed weights; the same bits; a damaged file or a changed model is packed again."""
import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))


def generate(model, cache, *flags):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_")}
    p = subprocess.run([MLX_BUN, "generate", model, "--json", "--prompt", "hello", "--temp", "0", "--max-tokens", "12", "--cache-dir", cache, *flags],
                       capture_output=True, text=True, env=env, timeout=120)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout), p.stderr


def test_packed_cache_same_bits_and_never_believed_blindly(tmp_path):
    model, cache = tmp_path / "model", tmp_path / "cache"
    shutil.copytree(ROOT / "tests/golden/tiny/llama", model)
    want, _ = generate(model, cache)
    assert not (cache / "packed").exists()
    first, _ = generate(model, cache, "--packed-cache")
    (file,) = (cache / "packed").iterdir()
    made, good = file.stat().st_ino, file.read_bytes()
    second, err = generate(model, cache, "--packed-cache", "--threads", "1")
    assert want == first == second and not err and file.stat().st_ino == made
    for at in (9, 20, 60, len(good) // 2, len(good) - 3):  # version, key, table, weights
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1:])
        assert generate(model, cache, "--packed-cache")[0] == want
        assert file.read_bytes() == good  # written anew
    file.write_bytes(good[:len(good) // 3])
    assert generate(model, cache, "--packed-cache")[0] == want
    os.utime(next(model.glob("*.safetensors")))  # another file, as far as anybody can tell
    assert generate(model, cache, "--packed-cache")[0] == want
    assert file.read_bytes() != good  # its key
