"""Trellis-coded weights (docs/trellis.md): convert writes them, the engine reads them; what does not fit is named."""
import importlib.util
import json
import pathlib
import shutil
import struct
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
import http_rig as rig  # noqa: E402

_spec = importlib.util.spec_from_file_location("convert_source_trellis", ROOT / "tests/golden/convert/source.py")
source = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(source)

# A search costs microseconds a weight: a part of the model, where every step is checked by a sanitizer.
PLAN = {"bits": 4, "group_size": 64, "mode": "trellis",
        **{f"model.layers.{i}.{m}": False for i in range(2) for m in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj")},
        "model.embed_tokens": False, "model.layers.0.mlp.down_proj": {"bits": 2, "group_size": 32, "mode": "trellis"},
        "model.layers.1.self_attn.v_proj": {"bits": 3, "group_size": 128, "mode": "trellis"},
        "model.layers.1.self_attn.k_proj": {"bits": 8, "group_size": 32}}


def convert(src, out, *args, ok=True):
    done = rig.run("convert", src, "--mlx-path", out, *args, "--json")
    assert (done.returncode == 0) == ok, done.stderr
    return json.loads(done.stdout) if ok else done.stderr


def by_plan(src, out, plan, *args):
    path = pathlib.Path(out).parent / "plan.json"
    path.write_text(json.dumps(plan))
    return convert(src, out, "--q-config", path, *args)


def scores(model, tmp_path, *args):
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([(7 * i * i + 3) % 500 for i in range(70)]))
    done = rig.run("perplexity", model, "--ids", ids, "--json", *args)
    assert done.returncode == 0, done.stderr
    return {k: v for k, v in json.loads(done.stdout).items() if k in ("mean_nll", "tokens", "nll", "perplexity")}


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    """A plain checkpoint, and the same with codes of every width."""
    at = tmp_path_factory.mktemp("trellis")
    src = source.write("llama", at / "src")
    by_plan(src, at / "out", PLAN, "-t", 2)
    return src, at / "out"


def test_same_files_on_any_number_of_threads(coded, tmp_path):
    """REG-179: the search depends on the row alone."""
    src, out = coded
    by_plan(src, tmp_path / "one", PLAN, "-t", 1)
    by_plan(src, tmp_path / "three", PLAN, "-t", 3)
    assert source.digests(out) == source.digests(tmp_path / "one") == source.digests(tmp_path / "three")
    config = json.loads((out / "config.json").read_text())["quantization"]
    assert config["model.layers.0.mlp.down_proj"] == {"bits": 2, "group_size": 32, "mode": "trellis"}
    tensors, _, _ = source.header(out / "model.safetensors")
    assert tensors["model.layers.0.mlp.down_proj.weight"]["dtype"] == "U32" and tensors["model.layers.0.mlp.down_proj.weight"]["shape"][1] == 256 * 2 // 32
    assert tensors["model.layers.0.mlp.down_proj.scales"]["shape"][1] == 256 // 32
    assert "model.layers.0.mlp.down_proj.biases" not in tensors and "model.layers.1.self_attn.k_proj.biases" in tensors


def test_runs_with_the_same_bits_on_every_level(coded, tmp_path):
    """REG-182 CFG-139: codes are expanded at load to 8-bit codes, exactly."""
    _, out = coded
    levels = ["portable", "avx2", "avx512"]
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    have = [v for v in levels if v == "portable" or (v in flags if v == "avx2" else "avx512_vnni" in flags)]
    want = scores(out, tmp_path, "--cpu-level", "portable")
    for level in have[1:]:
        assert scores(out, tmp_path, "--cpu-level", level) == want
    assert scores(out, tmp_path, "-t", 1) == scores(out, tmp_path, "-t", 3) == want
    exact = scores(coded[0], tmp_path)["mean_nll"]
    assert abs(want["mean_nll"] - exact) < 0.5


def test_a_copy_keeps_the_codes(coded, tmp_path):
    src, out = coded
    report = by_plan(out, tmp_path / "again", PLAN)
    assert report["kept"] == report["quantised"] > 0 and report["requantised"] == 0
    assert source.digests(tmp_path / "again") == source.digests(out)
    floats = {**PLAN, "mode": "affine", "model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 32}, "model.layers.1.self_attn.v_proj": False}
    report = by_plan(out, tmp_path / "other", floats)
    assert report["requantised"] > 0
    assert abs(scores(tmp_path / "other", tmp_path)["mean_nll"] - scores(out, tmp_path)["mean_nll"]) < 0.3


@pytest.mark.skipif(rig.SANITIZED, reason="a whole model is searched")
def test_nearer_than_affine_at_the_same_size(tmp_path):
    """REG-179: 4.5 bits a weight both: one scale for 32 weights, or scale and bias for 64."""
    src = rig.TINY / "llama-bf16"
    ours = convert(src, tmp_path / "t", "-q", "--mode", "trellis", "--q-group-size", 32)
    theirs = convert(src, tmp_path / "a", "-q")
    assert ours["bits_per_weight"] == theirs["bits_per_weight"] and ours["quantised"] == theirs["quantised"]
    kl = {}
    for name in "ta":
        done = rig.run("doctor", tmp_path / name, "--fidelity", "--reference", src, "--json")
        assert done.returncode == 0, done.stderr
        kl[name] = json.loads(done.stdout)["mean_kl"]
    assert kl["t"] < 0.8 * kl["a"]


def expand(tensors, module, bits):
    """Trellis codes as docs/trellis.md tells them, as 8-bit affine codes of the same values: scale * code - 128 * scale."""
    _, shape, data = tensors[module + ".weight"]
    n_in = shape[-1] * 32 // bits
    row_bytes, codes = n_in * bits // 8, bytearray()
    for at in range(0, len(data), row_bytes):
        row = int.from_bytes(data[at:at + row_bytes], "little")
        for first in range(0, n_in, 256):
            n = min(256, n_in - first)
            span = row >> bits * first & (1 << bits * n) - 1
            ring = span << 12 | span >> bits * n - 12       # the last 12 bits stand before the first
            for j in range(n):
                x = (ring >> bits * (j + 1) & 4095) * 0x2545F491 + 0x9E3779B9 & 0xFFFFFFFF
                x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
                x ^= x >> 15
                codes.append((sum(x.to_bytes(4, "little")) + 2) // 4)
    tensors[module + ".weight"] = ["U32", [*shape[:-1], n_in // 4], bytes(codes)]
    dtype, s_shape, scales = tensors[module + ".scales"]
    values = struct.unpack(f"<{len(scales) // 2}f", b"".join(b"\0\0" + scales[i:i + 2] for i in range(0, len(scales), 2)))
    tensors[module + ".biases"] = [dtype, s_shape, rig.bf16(-128 * v for v in values)]
    return {"bits": 8, "group_size": n_in // s_shape[-1]}


def test_experts(tmp_path):
    """REG-179 REG-182 CFG-139: the stacked experts of a mixture, in 2, 3 and 4 bits: the bits of the 8-bit affine codes that they are,
    in memory and with --expert-offload."""
    stack = "model.layers.0.mlp.switch_mlp."
    widths = {stack + "gate_proj": 4, stack + "up_proj": 3, stack + "down_proj": 2}
    plan = {"bits": 8, "group_size": 32, **{m: {"bits": b, "group_size": 32, "mode": "trellis"} for m, b in widths.items()}}
    by_plan(source.write("qwen3_moe", tmp_path / "src"), tmp_path / "coded", plan)
    shutil.copytree(tmp_path / "coded", tmp_path / "affine")
    tensors = rig.read_safetensors(tmp_path / "coded/model.safetensors")
    config = json.loads((tmp_path / "coded/config.json").read_text())
    for entry in ("quantization", "quantization_config"):
        config[entry].update({m: expand(dict(tensors), m, b) for m, b in widths.items()})
    for m, b in widths.items():
        expand(tensors, m, b)
    (tmp_path / "affine/config.json").write_text(json.dumps(config))
    (tmp_path / "affine/model.safetensors.index.json").unlink()
    rig.write_safetensors(tmp_path / "affine/model.safetensors", tensors)
    positions = []
    for name, flags in (("affine", []), ("coded", []), ("coded", ["--cpu-level", "portable", "-t", "3"])):
        (tmp_path / "ids.json").write_text(json.dumps([(7 * i * i + 3) % 500 for i in range(70)]))
        done = rig.run("perplexity", tmp_path / name, "--ids", tmp_path / "ids.json", "--json", *flags)
        assert done.returncode == 0, done.stderr
        positions.append(json.loads(done.stdout)["positions"])
    assert positions[0] == positions[1] == positions[2]
    with rig.Server(model=tmp_path / "coded") as s, rig.Server("--expert-offload", "--cache-dir", tmp_path, "--expert-cache", "0.00001",
                                                               model=tmp_path / "coded") as away:
        hot = {"temperature": 0.8, "seed": 3, "max_tokens": 12}
        assert s.ids("the quick brown fox", **hot) == away.ids("the quick brown fox", **hot)
        assert away.wait_idle()["expert_offload"]["misses"] > 0


@pytest.mark.parametrize("args, text", [
    (["--q-bits", 5], "must be 2, 3 or 4 for trellis codes"),
    (["--quant-predicate", "mixed_3_4"], "not of trellis codes"),
    (["--q-group-size", 48], "must be 32, 64 or 128"),
])
def test_wishes_that_are_none(args, text, tmp_path):
    assert text in convert(source.write("llama", tmp_path / "src"), tmp_path / "out", "-q", "--q-mode", "trellis", *args, ok=False)


def patched(coded, to, tensors=None, quantization=None):
    shutil.copytree(coded[1], to)
    if quantization:
        config = json.loads((to / "config.json").read_text())
        for entry in ("quantization", "quantization_config"):
            config[entry].update(quantization)
        (to / "config.json").write_text(json.dumps(config))
    if tensors:
        all_of = rig.read_safetensors(to / "model.safetensors")
        tensors(all_of)
        (to / "model.safetensors.index.json").unlink()
        rig.write_safetensors(to / "model.safetensors", all_of)
    return to


DOWN = "model.layers.0.mlp.down_proj"


def biased(t):
    t[DOWN + ".biases"] = list(t[DOWN + ".scales"])


def bytes_for_scales(t):
    dtype, shape, data = t[DOWN + ".scales"]
    t[DOWN + ".scales"] = ["U8", shape, data[::2]]


def no_scales(t):
    del t[DOWN + ".scales"]


def narrow(t):
    dtype, (n, words), data = t[DOWN + ".weight"]
    t[DOWN + ".weight"] = [dtype, [n, words // 2], data[:len(data) // 2]]


@pytest.mark.parametrize("tensors, quantization, text", [
    (biased, None, DOWN + ".biases: config.json says"), (bytes_for_scales, None, "wanted U32 codes and float scales"),
    (no_scales, None, DOWN + ".scales is missing"), (narrow, None, DOWN + ".weight holds 1-bit codes by its shape"),
    (None, {DOWN: {"bits": 3, "group_size": 32, "mode": "trellis"}}, "config.json says 3 bits"),
    (None, {DOWN: {"bits": 2, "group_size": 64, "mode": "trellis"}}, DOWN + ".scales"),
    (None, {DOWN: {"bits": 5, "group_size": 32, "mode": "trellis"}}, "mode trellis has 2, 3 or 4 bits"),
    (None, {DOWN: {"bits": 2, "group_size": 256, "mode": "trellis"}}, "groups of 32, 64 or 128, found 2 bits in groups of 256"),
])
def test_what_does_not_fit_is_named(tensors, quantization, text, coded, tmp_path):
    """B-113 REG-163"""
    model = patched(coded, tmp_path / "model", tensors, quantization)
    done = rig.run("generate", model, "--prompt", "x", "--max-tokens", 1)
    assert done.returncode != 0 and text in done.stderr, done.stderr
