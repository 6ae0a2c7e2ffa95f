"""convert: checkpoints in Hugging Face layout to MLX (REG-192..201), against mlx_lm.convert bit for bit (tests/golden/convert)."""
import importlib.util
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import pytest

from hub_rig import MLX_BUN as PROGRAM
from hub_rig import TORTURE

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/golden/convert"
_spec = importlib.util.spec_from_file_location("convert_source", GOLDEN / "source.py")
source = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(source)
golden = json.loads((GOLDEN / "golden.json").read_text())


def run(*args, ok=True, env=None, **kw):
    p = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=120,
                       env={**os.environ, "MLX_BUN_CACHE": "/dev/null/none", **(env or {})}, **kw)
    if ok:
        assert p.returncode == 0, p.stderr
    return p


def flags_of(args):
    names = {"q_bits": "--q-bits", "q_group_size": "--q-group-size", "dtype": "--dtype", "quant_predicate": "--quant-predicate"}
    out = ["-q"] if args.get("quantize") else []
    for key, flag in names.items():
        if key in args:
            out += [flag, str(args[key])]
    return out


def spec_of(quantization, module):
    """(bits, group, mode) that a loader gives a quantised module."""
    q = quantization.get(module, quantization)
    return q.get("bits", 4), q.get("group_size", 64), q.get("mode", "affine")


def header_of(folder):
    data = (folder / "model.safetensors").read_bytes()
    return json.loads(data[8:8 + int.from_bytes(data[:8], "little")])


def nll(model, tmp_path):
    (tmp_path / "ids.json").write_text(json.dumps([(7 * i * i + 3) % 500 for i in range(70)]))
    return json.loads(run("perplexity", model, "--ids", tmp_path / "ids.json", "--json").stdout)["mean_nll"]


def test_hybrid_as_published(tmp_path):
    """MOD-026: a published Qwen3.5 with experts: decays keep float32, router and shared gate get 8 bits, heads for several tokens and
    the tower are left out; what comes out loads and says about the same."""
    src, out = ROOT / "tests/golden/tiny/qwen3_5_moe-hf", tmp_path / "out"
    run("convert", src, "--mlx-path", out, "-q", "--q-bits", "8", "--q-group-size", "32")
    tensors = header_of(out)
    assert not [n for n in tensors if "mtp." in n or "visual" in n]
    heads = {n: v for n, v in source.digests(src).items() if n.startswith("mtp.")}
    assert heads and source.digests(out / "mtp") == heads
    assert json.loads((out / "mtp/config.json").read_text()) == json.loads((src / "config.json").read_text())
    layer = "language_model.model.layers.0."
    assert tensors[layer + "linear_attn.A_log"]["dtype"] == "F32"
    assert tensors[layer + "linear_attn.in_proj_qkv.weight"]["dtype"] == "U32"
    q = json.loads((out / "config.json").read_text())["quantization"]
    assert spec_of(q, layer + "mlp.gate") == spec_of(q, layer + "mlp.shared_expert_gate") == (8, 64, "affine")
    assert abs(nll(out, tmp_path) - nll(src, tmp_path)) < 0.05


def test_layers_for_several_tokens(tmp_path):
    """REG-160: layers behind the last one go into mtp/ with their bytes, float8 as bfloat16; the model itself is as without
    them. A conversion that died with such a folder is taken over."""
    bare = source.write("glm4_moe_lite", tmp_path / "bare")
    h, raw, base = source.header(bare / "model.safetensors")
    h.pop("__metadata__", None)
    tensors = {n: (t["dtype"], t["shape"], raw[base + t["data_offsets"][0]:base + t["data_offsets"][1]]) for n, t in h.items()}
    shutil.copytree(bare, tmp_path / "src")
    n = json.loads((bare / "config.json").read_text())["num_hidden_layers"]
    plain = {f"model.layers.{n}.{m}": ("BF16", s, source.pack(source.floats(m, s), "BF16"))
             for m, s in (("eh_proj.weight", [8, 16]), ("enorm.weight", [8]), ("mlp.experts.0.up_proj.weight", [4, 8]))}
    coded = source.float8(f"model.layers.{n}.self_attn.o_proj.weight", [130, 140])
    source.save(tmp_path / "src/model.safetensors", {**tensors, **plain, **coded})
    (tmp_path / "out.part/mtp").mkdir(parents=True)
    (tmp_path / "out.part/mtp/model.safetensors").write_text("half")
    (tmp_path / "out.part/.mlx-bun-part").write_text("")
    report = json.loads(run("convert", tmp_path / "src", "--mlx-path", tmp_path / "out", "-q", "--q-group-size", 32, "--json").stdout)
    run("convert", bare, "--mlx-path", tmp_path / "without", "-q", "--q-group-size", 32)
    assert report["mtp"] == 4 and report["dropped"] == 0
    assert source.digests(tmp_path / "out") == source.digests(tmp_path / "without")
    assert not (tmp_path / "without/mtp").exists() and not (tmp_path / "out.part").exists()
    got, _, _ = source.header(tmp_path / "out/mtp/model.safetensors")
    kept = source.digests(tmp_path / "out/mtp")
    (tmp_path / "want").mkdir()
    source.save(tmp_path / "want/model.safetensors", plain)
    assert {k: kept[k] for k in plain} == source.digests(tmp_path / "want")
    assert got[f"model.layers.{n}.self_attn.o_proj.weight"]["dtype"] == "BF16" and len(kept) == 4
    assert nll(tmp_path / "out", tmp_path) == nll(tmp_path / "without", tmp_path)


@pytest.mark.parametrize("name", source.CASES)
def test_equal_to_the_oracle(name, tmp_path):
    """REG-192 REG-194 REG-199 REG-200 REG-201: every tensor of mlx_lm.convert's output, bit for bit, and bits and groups as there. From a
    packed source (mxfp4, mxfp8, nvfp4): as it converts what it dequantised. gpt-oss as published keeps its experts as they are, as
    there, but where a plan says otherwise."""
    family, how, args = source.CASES[name]
    src = source.write(family, tmp_path / "src", **how)
    out = tmp_path / "out"
    flags = flags_of(args)
    if "plan" in args:
        (tmp_path / "plan.json").write_text(json.dumps({"bits": 4, "group_size": args["q_group_size"], **args["plan"]}))
        flags = ["--q-config", str(tmp_path / "plan.json")]
    report = json.loads(run("convert", src, "--mlx-path", out, *flags, "--json").stdout)
    want = golden[name]
    assert source.digests(out) == want["tensors"]
    config = json.loads((out / "config.json").read_text())
    modules = [n[: -len(".scales")] for n in want["tensors"] if n.endswith(".scales")]
    assert report["quantised"] == len(modules)
    experts = [m for m in modules if how.get("blocks") and ".experts." in m]
    whole = how.get("packed") and args.get("quantize")
    assert report["requantised"] == (len(modules) if whole else len(experts) if args.get("floats_first") else 0)
    assert report["kept"] >= (0 if args.get("floats_first") else len(experts))
    assert ("quantization" in config) == bool(modules)
    for m in modules:
        assert spec_of(config["quantization"], m) == spec_of(want["quantization"], m), m
    if modules:
        assert config["quantization"] == config["quantization_config"]
        assert how.get("blocks") or config["quantization"]["mode"] == want["quantization"]["mode"]


def test_folder_is_whole(tmp_path):
    """REG-149 REG-151 REG-152 REG-153 REG-154 REG-155 REG-200: shards, index, texts; the same names and bits for every size of a shard and number of threads."""
    src = source.write("llama", tmp_path / "src")
    (src / "LICENSE").write_text("free")
    (src / "pytorch_model.bin.index.json").write_text("{}")
    (src / ".secret.json").write_text("{}")
    one, many = tmp_path / "one", tmp_path / "many"
    run("convert", src, one, "-q", "-t", 1)
    run("convert", src, many, "-q", "-t", 3, "--max-shard-size", "0.00004")
    assert sorted(p.name for p in one.iterdir()) == ["LICENSE", "config.json", "generation_config.json", "model.safetensors",
                                                     "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"]
    assert (one / "tokenizer.json").read_bytes() == (src / "tokenizer.json").read_bytes()
    assert source.digests(one) == source.digests(many)
    index = json.loads((many / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files == sorted(p.name for p in many.glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert list(index["weight_map"]) == sorted(source.digests(many))
    total = 0
    for f in files:
        h, raw, base = source.header(many / f)
        assert h.pop("__metadata__") == {"format": "mlx"}
        total += len(raw) - base
        for name in h:
            assert index["weight_map"][name] == f
        assert len(raw) - base <= 40000 or len({n.rsplit(".", 1)[0] for n in h}) == 1
    assert index["metadata"]["total_size"] == total
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("bits, per_weight", [(4, 4.5), (8, 8.5)])
def test_uniform_bits_per_weight(bits, per_weight, tmp_path):
    """REG-193 REG-209: -q alone is 4 bits in groups of 64; a weight takes its code and its share of a scale and a bias."""
    src, out = source.write("llama", tmp_path / "src"), tmp_path / "out"
    run("convert", src, out, "-q", *([] if bits == 4 else ["--q-bits", bits]))
    q = json.loads((out / "config.json").read_text())["quantization"]
    assert (q["bits"], q["group_size"]) == (bits, 64)
    h = header_of(out)
    modules = [n[: -len(".scales")] for n in h if n.endswith(".scales")]
    size = {n: h[n]["data_offsets"][1] - h[n]["data_offsets"][0] for n in h if n != "__metadata__"}
    n_weights = sum(h[m + ".weight"]["shape"][0] * h[m + ".weight"]["shape"][1] * 32 // bits for m in modules)
    assert modules and 8 * sum(size[m + s] for m in modules for s in (".weight", ".scales", ".biases")) / n_weights == per_weight


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_moe", "mixtral", "phi3", "granite", "gemma4", "gemma4-moe"])
def test_output_runs(family, tmp_path):
    """REG-153 REG-200: what was written is a model of this program, and says what its source says with 8 bits, roughly (random weights forgive little)."""
    src = source.write(family, tmp_path / "src", dtype="F32")
    out = tmp_path / "out"
    run("convert", src, out, "-q", "--q-bits", 8, "--q-group-size", 32)
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([3 * i % 400 + 5 for i in range(40)]))
    a, b = (json.loads(run("perplexity", d, "--ids", ids, "--tier", "f32", "--json").stdout) for d in (src, out))
    assert abs(a["mean_nll"] - b["mean_nll"]) < 0.1 * a["mean_nll"]


def test_module_by_module(tmp_path):
    """REG-164 REG-166 B-113: --q-config: bits and groups per module, false, prefixes; a key without a module is refused."""
    src = source.write("llama", tmp_path / "src")
    plan = {"bits": 4, "group_size": 64, "model.layers.0.mlp.up_proj": {"bits": 6, "group_size": 128},
            "language_model.model.layers.1.mlp.up_proj": {"bits": 8, "group_size": 32}, "model.layers.1.self_attn.q_proj": False}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    run("convert", src, tmp_path / "a", "--q-config", file)
    got = source.digests(tmp_path / "a")
    assert got["model.layers.0.mlp.up_proj.weight"].split()[1].endswith(f"x{128 * 6 // 32}")
    assert got["model.layers.0.mlp.up_proj.scales"].split()[1].endswith("x1")
    assert got["model.layers.1.mlp.up_proj.scales"].split()[1].endswith("x4")
    assert got["model.layers.1.self_attn.q_proj.weight"].startswith("BF16")
    assert "model.layers.1.self_attn.q_proj.scales" not in got
    run("perplexity", tmp_path / "a", "--text", ROOT / "tests/golden/fidelity/texts/en-1.txt")
    # the config.json that was written is a plan itself
    run("convert", src, tmp_path / "b", "--q-config", tmp_path / "a/config.json")
    b = source.digests(tmp_path / "b")
    assert {k: v for k, v in b.items() if ".layers.1.self_attn.q_proj" not in k} == \
           {k: v for k, v in got.items() if ".layers.1.self_attn.q_proj" not in k}
    file.write_text(json.dumps({**plan, "model.layers.7.mlp.up_proj": {"bits": 8}}))
    p = run("convert", src, tmp_path / "c", "--q-config", file, ok=False)
    assert p.returncode == 2 and "model.layers.7.mlp.up_proj" in p.stderr and not (tmp_path / "c").exists()


def test_quantised_source(tmp_path):
    """REG-192: the same bits are kept byte for byte, others are made anew and said so."""
    src = source.write("llama", tmp_path / "src")
    run("convert", src, tmp_path / "four", "-q", "--q-bits", 4, "--q-group-size", 32)
    same = json.loads(run("convert", tmp_path / "four", tmp_path / "same", "-q", "--q-bits", 4, "--q-group-size", 32, "--json").stdout)
    assert same["kept"] == same["quantised"] > 0 and same["requantised"] == 0
    assert source.digests(tmp_path / "same") == source.digests(tmp_path / "four")
    p = run("convert", tmp_path / "four", tmp_path / "two", "-q", "--q-bits", 2, "--q-group-size", 64)
    assert "quantised otherwise before" in p.stdout
    assert all(v.split()[1].endswith(f"x{128 * 2 // 32}") for k, v in source.digests(tmp_path / "two").items()
               if k.endswith("q_proj.weight"))
    run("perplexity", tmp_path / "two", "--text", ROOT / "tests/golden/fidelity/texts/en-1.txt")


def test_source_of_floating_point_codes(tmp_path):
    """REG-192: mxfp4 as a source: what is to stay as it is keeps its bytes, floats are its values, and what does not fit is refused."""
    src = source.write("llama", tmp_path / "src", packed="mxfp4")
    have = source.digests(src)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"bits": 8, "group_size": 32, "model.layers.0.mlp.up_proj": {"mode": "mxfp4", "bits": 4, "group_size": 32},
                                "model.layers.1.mlp.up_proj": False}))
    report = json.loads(run("convert", src, tmp_path / "out", "--q-config", plan, "--json").stdout)
    got = source.digests(tmp_path / "out")
    kept = "model.layers.0.mlp.up_proj"
    assert got[kept + ".weight"] == have[kept + ".weight"] and got[kept + ".scales"] == have[kept + ".scales"] and kept + ".biases" not in got
    assert report["kept"] == 1 and report["requantised"] == report["quantised"] - 1
    assert got["model.layers.1.mlp.up_proj.weight"].startswith("BF16") and "model.layers.1.mlp.up_proj.scales" not in got
    assert json.loads((tmp_path / "out/config.json").read_text())["quantization"][kept]["mode"] == "mxfp4"
    assert abs(nll(tmp_path / "out", tmp_path) - nll(src, tmp_path)) < 0.1
    plan.write_text(json.dumps({"bits": 4, "group_size": 64, "model.layers.0.mlp.up_proj": {"mode": "nvfp4", "bits": 4, "group_size": 16}}))
    p = run("convert", src, tmp_path / "no", "--q-config", plan, ok=False)
    assert p.returncode != 0 and "nvfp4; affine and trellis codes are written" in p.stderr and not (tmp_path / "no").exists()
    config = json.loads((src / "config.json").read_text())
    (src / "config.json").write_text(json.dumps({**config, "quantization": {"mode": "mxfp8", "bits": 8, "group_size": 32}}))
    p = run("convert", src, tmp_path / "no", "-q", ok=False)
    assert p.returncode != 0 and "mxfp8" in p.stderr and not (tmp_path / "no").exists()


def test_published_blocks_that_do_not_fit(tmp_path):
    """REG-192: experts of gpt-oss in blocks: a tensor that is missing, of another shape, or in floats is named; nothing is written."""
    src = source.write("gpt_oss", tmp_path / "src", blocks=True)
    h, raw, base = source.header(src / "model.safetensors")
    whole = {n: (t["dtype"], t["shape"], raw[base + t["data_offsets"][0]:base + t["data_offsets"][1]]) for n, t in h.items()}
    head = "model.layers.1.mlp.experts."
    bad = {"down_proj_scales": ("U8", [8, 64, 1], bytes(512)), "gate_up_proj_blocks": ("U8", [8, 128, 1, 16], bytes(16384)),
           "gate_up_proj_bias": ("F32", [8, 127], bytes(8 * 127 * 4)), "gate_up_proj": ("BF16", [8, 64, 128], bytes(131072)),
           "down_proj_blocks": None}
    for name, tensor in bad.items():
        tensors = {n: t for n, t in whole.items() if n != head + name}
        source.save(src / "model.safetensors", {**tensors, **({head + name: tensor} if tensor else {})})
        p = run("convert", src, tmp_path / "no", "-q", ok=False)
        about = name.replace("_scales", "_blocks") if tensor else name
        assert p.returncode != 0 and head + about in p.stderr and not (tmp_path / "no").exists(), p.stderr
    source.save(src / "model.safetensors", {n: t for n, t in whole.items() if n != head + "down_proj_scales"})
    p = run("convert", src, tmp_path / "no", "-q", ok=False)
    assert p.returncode != 0 and head + "down_proj_scales is missing" in p.stderr


def test_codes_that_are_no_numbers(tmp_path):
    """REG-192: an element of mxfp8 that is NaN is refused by tensor and row."""
    src = source.write("llama", tmp_path / "src", packed="mxfp8")
    file = src / "model.safetensors"
    h, raw, base = source.header(file)
    at = base + h["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0]
    columns = h["model.layers.1.mlp.up_proj.weight"]["shape"][1] * 4
    file.write_bytes(raw[:at + 5 * columns] + b"\x7f" + raw[at + 5 * columns + 1:])
    p = run("convert", src, tmp_path / "no", "-q", ok=False)
    assert p.returncode != 0 and "model.layers.1.mlp.up_proj.weight: row 5" in p.stderr and not (tmp_path / "no").exists()


def test_wishes_are_said(tmp_path):
    """REG-195 REG-199 REG-240: what is not offered says so, with the status of a bad command line; nothing is written."""
    src = source.write("llama-bf16", tmp_path / "src")
    for args, text in ((["convert", src, "out"], "-q quantises"), (["convert", src, "out", "--q-bits", "4"], "go with -q"),
                       (["convert", src, "out", "-q", "--dequantize"], "not offered"),
                       (["convert", src, "out", "-q", "--q-bits", "7"], "must be 2, 3, 4, 5, 6 or 8"),
                       (["convert", src, "out", "-q", "--q-group-size", "48"], "must be 32, 64 or 128"),
                       (["convert", src, "out", "-q", "--upload-repo", "no-slash"], "owner/name"),
                       (["convert"], "convert what?"), (["convert", src, "out", "more", "-q"], "")):
        p = run(*args, ok=False, cwd=tmp_path)
        assert p.returncode == 2 and text in p.stderr, (args, p.stderr)
    config = json.loads((src / "config.json").read_text())
    (src / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    p = run("convert", src, "out", "-q", ok=False, cwd=tmp_path)
    assert p.returncode != 0 and "mamba" in p.stderr
    (src / "config.json").write_text(json.dumps(config))
    assert [x.name for x in tmp_path.iterdir()] == ["src"]
    run("convert", src, "-q", cwd=tmp_path)  # the default folder
    assert (tmp_path / "mlx_model/config.json").exists()
    p = run("convert", src, "-q", ok=False, cwd=tmp_path)
    assert p.returncode == 2 and "mlx_model exists already" in p.stderr
    (tmp_path / "here").mkdir()
    for target, cwd in ((".", tmp_path / "here"), ("here/.", tmp_path)):
        p = run("convert", src, "-q", "--mlx-path", target, ok=False, cwd=cwd)
        assert p.returncode == 2 and "cannot be replaced" in p.stderr
    (src / "tokenizer_config.json").unlink(missing_ok=True)
    (src / "tokenizer_config.json").symlink_to("../blobs/gone")
    p = run("convert", src, "-q", "--mlx-path", "here", ok=False, cwd=tmp_path)
    assert p.returncode != 0 and "tokenizer_config.json" in p.stderr and not list((tmp_path / "here").iterdir())


def test_numbers_that_are_none(tmp_path):
    """A weight that is not finite, or too large for the type, is refused by tensor and row; nothing is left behind."""
    src = source.write("llama-bf16", tmp_path / "src", dtype="F32", torch_dtype=None)
    file = src / "model.safetensors"
    h, raw, base = source.header(file)
    at = base + h["model.layers.1.mlp.up_proj.weight"]["data_offsets"][0] + 3 * 64 * 4
    for value, args in ((b"\0\0\xc0\x7f", ["-q"]), (b"\0\0\x80\xff", ["-q"]), (b"\0\0\x80\x7e", ["--dtype", "float16"]),
                        (b"\0\0\x80\x7e", ["-q", "--dtype", "float16"])):
        file.write_bytes(raw[:at] + value + raw[at + 4 :])
        p = run("convert", src, tmp_path / "out", *args, ok=False)
        assert p.returncode != 0 and "model.layers.1.mlp.up_proj.weight" in p.stderr and "row 3" in p.stderr, p.stderr
        assert [x.name for x in tmp_path.iterdir()] == ["src"]


def test_killed_and_again(tmp_path):
    """A killed conversion leaves nothing that loads as a model; the next one finishes. A folder of somebody else's is not touched."""
    src = source.write("llama", tmp_path / "src")
    part = tmp_path / "out.part"
    run("convert", src, tmp_path / "want", "-q")
    kills = 0
    for _ in range(5):
        p = subprocess.Popen([PROGRAM, "convert", src, tmp_path / "out", "-q"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while not part.exists() and p.poll() is None and time.monotonic() < deadline:
            pass
        if p.poll() is None:
            p.send_signal(signal.SIGKILL)
        p.wait()
        if not (tmp_path / "out").exists():
            kills += 1
            if not (part / "config.json").exists():  # what comes last: with it the folder is whole
                assert run("perplexity", part, "--text", src / "config.json", ok=False).returncode != 0
        else:
            shutil.rmtree(tmp_path / "out")
    run("convert", src, tmp_path / "out", "-q")
    assert kills > 0
    assert source.digests(tmp_path / "out") == source.digests(tmp_path / "want") and not part.exists()
    (tmp_path / "other.part").mkdir()
    (tmp_path / "other.part/precious").write_text("x")
    p = run("convert", src, tmp_path / "other", "-q", ok=False)
    assert p.returncode == 2 and "not of this program" in p.stderr and (tmp_path / "other.part/precious").exists()


def test_killed_at_random_moments(tmp_path):
    """Issue 7: kill -9 at random moments of convert, from its start to its end: a folder of the wanted name is whole, what is beside it
    never loads as a model before it is whole, the next run finishes and leaves no rest."""
    src, out, part = source.write("llama", tmp_path / "src"), tmp_path / "out", tmp_path / "out.part"
    begin = time.monotonic()
    run("convert", src, tmp_path / "want", "-q")
    takes, want, rng = time.monotonic() - begin, source.digests(tmp_path / "want"), random.Random(11)
    for i in range(200 if TORTURE else 8):
        p = subprocess.Popen([PROGRAM, "convert", src, out, "-q"], stdout=subprocess.DEVNULL)
        try:
            p.wait(rng.uniform(0, 1.2 * takes))
        except subprocess.TimeoutExpired:
            p.kill()
        p.wait()
        if out.exists():
            assert source.digests(out) == want and {f.name for f in out.iterdir()} == {f.name for f in (tmp_path / "want").iterdir()}
            shutil.rmtree(out)
        elif part.exists() and not (part / "config.json").exists():
            assert run("fit", part, ok=False).returncode != 0
        if i % 10 == 9:
            run("convert", src, out, "-q")
            assert source.digests(out) == want and not part.exists()
            shutil.rmtree(out)
    run("convert", src, out, "-q")
    assert source.digests(out) == want and sorted(f.name for f in tmp_path.iterdir()) == ["out", "src", "want"]


def corpus(tmp_path):
    """One text, and the same as JSON lines."""
    text = (ROOT / "docs/tour.md").read_text()[:3000]
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": text[:1500]}) + "\n\n" + json.dumps({"text": text[1500:]}) + "\n")
    return tmp_path / "text.txt", tmp_path / "text.jsonl"


def kl(model, reference):
    return json.loads(run("doctor", model, "--fidelity", "--reference", reference, "--json").stdout)["mean_kl"]


def test_mixed_precision(tmp_path):
    """REG-158 REG-196 REG-202 REG-203 REG-204 REG-207 REG-208 REG-212 CFG-172: at most the bits that were asked for, sensitive modules get more, the
    plan is the same twice and with any number of threads, figures are kept; less is lost than by uniform 4 bits of as many bytes."""
    src = source.write("llama", tmp_path / "src", dtype="F16")
    text, lines = corpus(tmp_path)
    args = ["convert", src, "--target-bpw", "5.1", "--n-calibration", 2, "--json"]
    report = json.loads(run(*args, tmp_path / "mixed", "--calibration-mix", text).stdout)
    assert report["bits_per_weight"] <= 5.1 and report["quantised"] > 0
    note = json.loads((tmp_path / "mixed/optiq_metadata.json").read_text())
    assert len(note["per_layer_kl"]) == report["quantised"] and all(v >= 0 for v in note["per_layer_kl"].values())
    assert max(note["per_layer_kl"].values()) > 3 * min(note["per_layer_kl"].values())
    q = json.loads((tmp_path / "mixed/config.json").read_text())["quantization"]
    modules = list(note["per_layer_kl"])
    assert len({spec_of(q, m) for m in modules}) > 1
    run(*args, tmp_path / "again", "--calibration-mix", text, "-t", 2)
    assert source.digests(tmp_path / "again") == source.digests(tmp_path / "mixed")
    assert (tmp_path / "again/optiq_metadata.json").read_bytes() == (tmp_path / "mixed/optiq_metadata.json").read_bytes()
    run(*args, tmp_path / "lines", env={"MLX_BUN_CALIBRATION_JSONL": str(lines)})
    assert json.loads((tmp_path / "lines/config.json").read_text())["quantization"]
    uniform = json.loads(run("convert", src, tmp_path / "uniform", "-q", "--q-bits", 4, "--q-group-size", 32, "--json").stdout)
    target = ["convert", src, "--target-bpw", f"{uniform['bits_per_weight']:.6f}", "--calibration-mix", text, "--n-calibration", 2]
    run(*target, tmp_path / "as-many")
    size = sum(p.stat().st_size for p in (tmp_path / "as-many").glob("*.safetensors"))
    assert size <= sum(p.stat().st_size for p in (tmp_path / "uniform").glob("*.safetensors")) + 64
    assert kl(tmp_path / "as-many", src) < kl(tmp_path / "uniform", src)


def test_mixed_precision_without_a_corpus(tmp_path):
    """REG-208 REG-245: without a file the texts of the program are measured on: the plan is the same twice, and another than that of
    other texts may be; a text of one's own still decides when it is named."""
    src = source.write("llama", tmp_path / "src", dtype="F16")
    args = ["convert", src, "--target-bpw", "5.1", "--n-calibration", 2]
    clean = {"MLX_BUN_CALIBRATION_JSONL": ""}
    for out in ("one", "two"):
        run(*args, tmp_path / out, env=clean)
    assert source.digests(tmp_path / "one") == source.digests(tmp_path / "two")
    figures = [json.loads((tmp_path / out / "optiq_metadata.json").read_text())["per_layer_kl"] for out in ("one", "two")]
    assert figures[0] == figures[1] and max(figures[0].values()) > 0
    run(*args, tmp_path / "own", "--calibration-mix", corpus(tmp_path)[0])
    own = json.loads((tmp_path / "own/optiq_metadata.json").read_text())["per_layer_kl"]
    assert set(own) == set(figures[0]) and own != figures[0]


def test_mixed_precision_needs_a_loss(tmp_path):
    """REG-205: a probe that costs nothing anywhere (weights of zeros here) says nothing about any module: refused, not guessed."""
    src = source.write("llama-bf16", tmp_path / "src")
    for path in src.glob("*.safetensors"):
        data = path.read_bytes()
        head = 8 + int.from_bytes(data[:8], "little")
        path.write_bytes(data[:head] + bytes(len(data) - head))
    p = run("convert", src, tmp_path / "out", "--target-bpw", "5.5", "--n-calibration", 1, ok=False)
    assert p.returncode == 2 and "show no loss" in p.stderr and not (tmp_path / "out").exists()


def test_mixed_precision_of_experts(tmp_path):
    """REG-202: experts one by one are not measured, which says what to do; stacked, each layer's experts are one module."""
    src = source.write("qwen3_moe", tmp_path / "src")
    text, _ = corpus(tmp_path)
    args = ["--target-bpw", "5.5", "--calibration-mix", text, "--n-calibration", "1"]
    p = run("convert", src, tmp_path / "out", *args, ok=False)
    assert p.returncode == 5 and "--dtype first" in p.stderr and not (tmp_path / "out").exists()
    run("convert", src, tmp_path / "stacked", "--dtype", "bfloat16")
    run("convert", tmp_path / "stacked", tmp_path / "out", *args)
    figures = json.loads((tmp_path / "out/optiq_metadata.json").read_text())["per_layer_kl"]
    assert any(".switch_mlp.down_proj" in k for k in figures)


def test_mixed_precision_of_recurrent_layers(tmp_path):
    """REG-202 REG-240: what cannot be measured is said at once, not left in a wrong width."""
    text, _ = corpus(tmp_path)
    p = run("convert", ROOT / "tests/golden/tiny/qwen3_5", tmp_path / "out", "--target-bpw", "7", "--calibration-mix", text,
            "--n-calibration", "1", ok=False)
    assert p.returncode == 5 and "recurrent layers" in p.stderr and not (tmp_path / "out").exists()


def test_mixed_precision_refusals(tmp_path):
    """REG-196 REG-197 REG-208: what is missing, or cannot be, is said, and nothing is written."""
    src = source.write("llama-bf16", tmp_path / "src")
    text, _ = corpus(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"prompt": "b"}\n')
    for args, said in ((["--target-bpw", "5", "--n-calibration", "500"], "the bundled calibration text"),
                       (["--target-bpw", "5", "--calibration-mix", text, "--q-bits", "4"], "chooses the bits"),
                       (["--target-bpw", "5", "--calibration-mix", text, "--candidate-bits", "4,7"], "4,7"),
                       (["--target-bpw", "5", "--calibration-mix", text, "--n-calibration", "500"], "name more text"),
                       (["--target-bpw", "5", "--calibration-mix", tmp_path / "bad.jsonl"], "line 2"),
                       (["--target-bpw", "2.5", "--calibration-mix", text, "--n-calibration", "1"], "larger --target-bpw"),
                       (["--target-bpw", "5", "--calibration-mix", tmp_path / "none.txt"], "none.txt")):
        p = run("convert", src, tmp_path / "out", *args, ok=False)
        assert p.returncode != 0 and said in p.stderr, (args, p.stderr)
    assert not (tmp_path / "out").exists()
