"""fuse: a LoRA adapter into a checkpoint (REG-217..223). What is fused says what the mounted adapter says."""
import importlib.util
import json
import os
import struct
import subprocess

import pytest

from hub_rig import MLX_BUN, ROOT

ADAPTERS = ROOT / "tests/golden/adapters"
TINY = ROOT / "tests/golden/tiny"
_spec = importlib.util.spec_from_file_location("convert_source", ROOT / "tests/golden/convert/source.py")
source = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(source)


def run(*args, ok=True, **kw):
    p = subprocess.run([MLX_BUN, *map(str, args)], capture_output=True, text=True, timeout=120,
                       env={**os.environ, "MLX_BUN_CACHE": "/dev/null/none"}, **kw)
    if ok:
        assert p.returncode == 0, p.stderr
    return p


def generated(model, *extra):
    ids = ",".join(str(7 * i % 400 + 3) for i in range(30))
    p = run("generate", model, "--prompt-ids", ids, "--temp", 0, "--ignore-eos", "--max-tokens", 12, "--tier", "f32", "--json", *extra)
    return json.loads(p.stdout)


@pytest.mark.parametrize("family,adapter", [("llama", "llama-a"), ("llama", "llama-a-peft"), ("llama", "llama-patterns"),
                                            ("llama", "llama-optiq"), ("qwen3", "qwen3"), ("gemma3", "gemma3"), ("phi3", "phi3"), ("phi3", "phi3-peft")])
def test_plain_base(family, adapter, tmp_path):
    """REG-217 REG-218 REG-219 REG-221 REG-223: W + scale B A, each module with its own scale (rsLoRA too), in floats: the tokens and
    log-probabilities of the mounted adapter; every other tensor keeps its bytes."""
    base = source.write(family, tmp_path / "base", dtype="F32")
    out = tmp_path / "out"
    report = json.loads(run("fuse", base, "--adapter-path", ADAPTERS / adapter, "--save-path", out, "--json").stdout)
    want, got, plain = generated(base, "--adapter", ADAPTERS / adapter), generated(out), generated(base)
    assert got["ids"] == want["ids"]
    assert max(abs(a - b) for a, b in zip(got["logprobs"], want["logprobs"])) < 2e-3
    assert plain["logprobs"] != want["logprobs"]
    before, after = source.digests(base), source.digests(out)
    changed = [k for k in after if after[k] != before[k]]
    assert len(changed) == report["fused"] > 0 and all(k.endswith("proj.weight") for k in changed)
    assert sorted(p.name for p in out.glob("tokenizer*")) == sorted(p.name for p in base.glob("tokenizer*"))


def tensor(folder, name):
    h, raw, base = source.header(folder / "model.safetensors")
    a, b = h[name]["data_offsets"]
    return h[name]["shape"], raw[base + a : base + b]


def halves(folder, name):
    shape, raw = tensor(folder, name)
    return shape, struct.unpack(f"<{len(raw) // 2}e", raw)


def dequantised(folder, module, group):
    """Rows of a 4-bit module and the scale of each weight's group (float16 scales)."""
    shape, raw = tensor(folder, module + ".weight")
    words = struct.unpack(f"<{len(raw) // 4}I", raw)
    _, scales = halves(folder, module + ".scales")
    _, biases = halves(folder, module + ".biases")
    codes = [w >> 4 * k & 15 for w in words for k in range(8)]
    return [scales[i // group] * c + biases[i // group] for i, c in enumerate(codes)], scales


def test_quantised_base(tmp_path):
    """REG-219 REG-220 REG-221: each module keeps its bits and group; the new weights lie on their group's grid, within a step; modules
    without an update keep their bytes."""
    base, out = TINY / "llama", tmp_path / "out"
    run("fuse", base, "--adapter", ADAPTERS / "llama-a", "--save-path", out)
    before, after = source.digests(base), source.digests(out)
    assert list(before) == list(after)
    config = [json.loads((d / "config.json").read_text())["quantization"] for d in (base, out)]
    for m in (n[:-7] for n in after if n.endswith(".scales")):
        assert config[0].get(m, config[0])["bits"] == config[1].get(m, config[1])["bits"], m
        assert config[0].get(m, config[0])["group_size"] == config[1].get(m, config[1])["group_size"], m
    h, raw, at = source.header(ADAPTERS / "llama-a/adapters.safetensors")
    touched = sorted({n.rsplit(".", 1)[0] for n in h if n != "__metadata__"})
    for name, digest in after.items():
        module = name.rsplit(".", 1)[0]
        assert digest.split()[:2] == before[name].split()[:2]
        assert (digest == before[name]) == (module not in touched) or name.endswith(".biases"), name
    scale = json.loads((ADAPTERS / "llama-a/adapter_config.json").read_text())["lora_parameters"]["scale"]

    def floats(name):
        a, b = h[name]["data_offsets"]
        return h[name]["shape"], struct.unpack(f"<{(b - a) // 2}e", raw[at + a : at + b])

    module = next(m for m in touched if m.endswith("q_proj"))
    (k, rank), a = floats(module + ".lora_a")
    (_, n), b = floats(module + ".lora_b")
    old, _ = dequantised(base, module, 32)
    new, scales = dequantised(out, module, 32)
    moved = far = 0
    for o in range(n):
        for i in range(k):
            want = old[o * k + i] + scale * sum(a[i * rank + j] * b[j * n + o] for j in range(rank))
            step = abs(scales[(o * k + i) // 32])
            off = abs(new[o * k + i] - want)
            assert off < 1.01 * step + 2e-3 * abs(want), (o, i)  # the far end of a group may lie beyond its last code
            far += off > 0.51 * step + 2e-3 * abs(want)
            moved += new[o * k + i] != old[o * k + i]
    assert moved > n * k // 4 and far < n * k // 20
    assert len(generated(out)["ids"]) == 12


def test_not_offered_and_refused(tmp_path):
    """REG-222 REG-235 B-137: what is not offered exits 1 and says so; an adapter that does not fit is refused; nothing is written."""
    base, good = TINY / "llama", ADAPTERS / "llama-a"
    for flag in (["--dequantize"], ["--export-gguf"], ["--upload-repo", "a/b"]):
        p = run("fuse", base, "--adapter", good, *flag, ok=False, cwd=tmp_path)
        assert p.returncode == 1 and flag[0] in p.stderr
    p = run("fuse", base, "--adapter", ADAPTERS / "gemma3", ok=False, cwd=tmp_path)
    assert p.returncode == 4 and "does not fit" in p.stderr
    assert run("fuse", base, ok=False, cwd=tmp_path).returncode == 2
    assert not list(tmp_path.iterdir())
    run("fuse", base, "--adapter", good, cwd=tmp_path)  # the default folder
    assert (tmp_path / "fused_model/config.json").exists()
    p = run("fuse", base, "--adapter", good, ok=False, cwd=tmp_path)
    assert p.returncode == 2 and "exists already" in p.stderr
    for args in (("help", "fuse"), ("fuse", "--help"), ("help", "convert")):
        assert "--adapter" in run(*args).stdout or args[1] == "convert"
