"""Plain checkpoints in Hugging Face layout, made out of nothing: the shapes and config of a folder of tests/golden/tiny, weights from a
hash of each tensor's name. The oracle's script and the test make the same bytes, so that no source needs to be stored.

    write(family, folder, dtype="BF16", shards=1)
"""
import array
import hashlib
import json
import pathlib
import shutil
import struct

TINY = pathlib.Path(__file__).resolve().parent.parent / "tiny"
SIZE = {"F32": 4, "F16": 2, "BF16": 2}
NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def header(path):
    """Names to (dtype, shape), and where the data begin."""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + n]), raw, 8 + n


def shapes(family):
    """The tensors of the model before it was quantised: name -> shape."""
    h, _, _ = header(TINY / family / "model.safetensors")
    h.pop("__metadata__", None)
    quant = json.loads((TINY / family / "config.json").read_text()).get("quantization", {})
    out = {}
    for name, t in h.items():
        module = name.rsplit(".", 1)[0]
        if name.endswith((".scales", ".biases")) and module + ".weight" in h and h[module + ".weight"]["dtype"] == "U32":
            continue
        shape = list(t["shape"])
        if t["dtype"] == "U32":
            bits = quant.get(module, quant).get("bits", quant["bits"])
            shape[-1] = shape[-1] * 32 // bits
        out[name] = shape
    return out


PARTS = {"mixtral": {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}}


def unstacked(family, name, shape):
    """Experts one by one, as they are published."""
    if ".switch_mlp." not in name:
        return {name: shape}
    head, tail = name.split(".switch_mlp.")
    part = tail.split(".")[0]
    part = PARTS.get(family, {}).get(part, part)
    return {f"{head}.experts.{i}.{part}.weight": shape[1:] for i in range(shape[0])}


def published_gemma4(family, names, config):
    """Gemma 4's own names: gate and up of all experts in one tensor; the rest under a model that sees, keys of layers that
    share those of others among it."""
    for name in [n for n in names if n.endswith("switch_glu.gate_proj.weight")]:
        n_expert, n, k = names.pop(name)
        names.pop(name.replace("gate_proj", "up_proj"))
        head = name.removesuffix("switch_glu.gate_proj.weight")
        names[head + "gate_up_proj"] = [n_expert, 2 * n, k]
        names[head + "down_proj"] = names.pop(name.replace("gate_proj", "down_proj"))
    if family != "gemma4":
        return names, config
    for name in [n for n in names if ".layers.2.self_attn.k_" in n or ".layers.2.self_attn.v_" in n]:
        names[name.replace(".2.", ".3.")] = names[name]
    names = {"model.language_model." + n.removeprefix("model."): s for n, s in names.items()}
    names.update({"model.vision_tower.patch.weight": [2, 8], "model.embed_vision.proj.weight": [2, 8]})
    outer = {"model_type": "gemma4", "vocab_size": config["vocab_size"], "text_config": config}
    return names, {**outer, **({"torch_dtype": config["torch_dtype"]} if "torch_dtype" in config else {})}


HYBRID = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
LESS_ONE = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "language_model.norm.weight", "q_norm.weight",
            "k_norm.weight")


def published_hybrid(family, names):
    """Taps of convolutions last; Qwen3.5 under a model that sees, gate and up of all its experts in one tensor, a head for several
    tokens beside it. Norms hold weight - 1 (LESS_ONE)."""
    out = {}
    for name, shape in names.items():
        if name.endswith("conv1d.weight"):
            shape = [shape[0], shape[2], shape[1]]
        out[name.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")] = shape
    if family == "qwen3_next":
        return out
    for name in [n for n in out if n.endswith("switch_mlp.gate_proj.weight")]:
        n_expert, n, k = out.pop(name)
        out.pop(name.replace("gate_proj", "up_proj"))
        head = name.removesuffix("switch_mlp.gate_proj.weight")
        out[head + "experts.gate_up_proj"] = [n_expert, 2 * n, k]
        out[head + "experts.down_proj"] = out.pop(name.replace("gate_proj", "down_proj"))
    out.update({"model.visual.patch_embed.proj.weight": [2, 8], "mtp.fc.weight": [4, 8]})
    return out


LATENT = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")


def published_latent(names):
    """kv_b_proj instead of embed_q and unembed_out, and a layer for multi-token prediction."""
    for name in [n for n in names if n.endswith("embed_q.weight")]:
        heads, rank, nope = names.pop(name)
        _, value, _ = names.pop(name.replace("embed_q", "unembed_out"))
        names[name.replace("embed_q", "kv_b_proj")] = [heads * (nope + value), rank]


def float8(name, shape):
    """Block-scaled float8 as published: every code but NaN, a scale for 128 x 128."""
    rows, cols = shape
    raw = bytes(b & 0xFE if b & 127 == 127 else b for b in hashlib.shake_128(name.encode()).digest(rows * cols))
    scale = [-(-rows // 128), -(-cols // 128)]
    values = [1e-4 + x / 5e9 for x in struct.unpack(f"<{scale[0] * scale[1]}H", hashlib.shake_128((name + " scale").encode()).digest(2 * scale[0] * scale[1]))]
    return {name: ("F8_E4M3", shape, raw), name + "_scale_inv": ("F32", scale, pack(values, "F32"))}


def floats(name, shape):
    n = 1
    for d in shape:
        n *= d
    raw = array.array("h", hashlib.shake_128(name.encode()).digest(2 * n))
    spread = 1 + raw[0] % 4
    v = [x / 32768 / (10 * spread) for x in raw]
    if len(shape) == 1:
        return [1 + x for x in v]
    cols = shape[-1]
    if n // cols > 6:  # rows that reach the corners of the arithmetic
        v[0:cols] = [0.0] * cols
        v[cols : 2 * cols] = [0.5] * cols
        v[2 * cols : 3 * cols] = [abs(x) for x in v[2 * cols : 3 * cols]]
        v[3 * cols : 4 * cols] = [-abs(x) for x in v[3 * cols : 4 * cols]]
        v[4 * cols : 5 * cols] = [x * 1e-6 for x in v[4 * cols : 5 * cols]]
        v[5 * cols : 6 * cols] = [round(x * 40) / 4 for x in v[5 * cols : 6 * cols]]
    return v


def pack(v, dtype):
    if dtype == "F16":
        return struct.pack(f"<{len(v)}e", *v)
    raw = struct.pack(f"<{len(v)}f", *v)
    if dtype == "F32":
        return raw
    out = bytearray(2 * len(v))
    out[0::2], out[1::2] = raw[2::4], raw[3::4]
    return bytes(out)


def save(path, tensors):
    """tensors: name -> (dtype, shape, bytes)."""
    at, h, data = 0, {}, []
    for name, (dtype, shape, raw) in tensors.items():
        h[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data.append(raw)
    text = json.dumps(h).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


# mode -> bits, group, least and greatest byte of a scale
PACKED = {"mxfp4": (4, 32, 108, 124), "mxfp8": (8, 32, 108, 119), "nvfp4": (4, 16, 0x00, 0x38)}


def codes(name, shape, mode):
    """A module in MLX's form of mxfp4, mxfp8 or nvfp4: every code but NaN, scales of a wide range."""
    bits, group, low, high = PACKED[mode]
    n = 1
    for d in shape:
        n *= d
    raw = hashlib.shake_128(name.encode()).digest(n * bits // 8)
    if mode == "mxfp8":
        raw = bytes(b & 0xFE if b & 127 == 127 else b for b in raw)
    scales = hashlib.shake_128((name + " scales").encode()).digest(n // group)
    module = name.removesuffix(".weight")
    return {name: ("U32", shape[:-1] + [shape[-1] * bits // 32], raw),
            module + ".scales": ("U8", shape[:-1] + [shape[-1] // group], bytes(low + b % (high - low + 1) for b in scales))}


def in_blocks(names):
    """gpt-oss as published: mxfp4 codes in blocks of 16 bytes, rows of gate and up in turn; their biases likewise. The tensors."""
    out = {}
    for name in [n for n in names if n.endswith("experts.gate_proj.weight")]:
        head = name.removesuffix("gate_proj.weight")
        n_expert, n, k = names[name]
        for part, rows in (("gate_up_proj", 2 * n), ("down_proj", names[head + "down_proj.weight"][1])):
            k = k if part == "gate_up_proj" else names[head + "down_proj.weight"][2]
            raw = codes(head + part + ".weight", [n_expert, rows, k], "mxfp4")
            out[head + part + "_blocks"] = ("U8", [n_expert, rows, k // 32, 16], raw[head + part + ".weight"][2])
            out[head + part + "_scales"] = raw[head + part + ".scales"]
            out[head + part + "_bias"] = ("BF16", [n_expert, rows], pack(floats(head + part + "_bias", [n_expert, rows]), "BF16"))
        for part in ("gate", "up", "down"):
            del names[f"{head}{part}_proj.weight"], names[f"{head}{part}_proj.bias"]
    return out


def write(family, folder, dtype="BF16", shards=1, torch_dtype="same", packed=None, fp8=False, blocks=False):
    """torch_dtype: what config.json says; "same": dtype; None: nothing. packed: in MLX's layout, all matrices in that mode. blocks:
    experts as gpt-oss is published."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    config = json.loads((TINY / family / "config.json").read_text())
    config.pop("quantization", None)
    config.pop("quantization_config", None)
    config.pop("torch_dtype", None)
    if torch_dtype:
        config["torch_dtype"] = NAMES[dtype] if torch_dtype == "same" else torch_dtype
    for f in TINY.joinpath(family).iterdir():
        if f.suffix in (".json", ".jinja") and f.name not in ("config.json", "model.safetensors.index.json"):
            shutil.copy(f, folder)
    names = {}
    for name, shape in shapes(family).items():
        listed = not packed and not family.startswith("qwen3_5")
        names.update(unstacked(family, name, shape) if listed else {name: shape})
    if packed:
        bits, group = PACKED[packed][:2]
        config["quantization"] = {"mode": packed, "bits": bits, "group_size": group}
    elif config.get("tie_word_embeddings") and "lm_head.weight" not in names and \
            not family.startswith(("gemma", "olmo", "minicpm", "diffusion", "starcoder")):
        names["lm_head.weight"] = names["model.embed_tokens.weight"]  # a duplicate that tied checkpoints often carry
    if family in LATENT:
        published_latent(names)
    if family == "diffusion_gemma":     # the tower, and what the text shares with the canvas
        names.update({"model.encoder.vision_tower.patch.weight": [2, 8], "model.encoder.embed_vision.embedding_projection.weight": [2, 8],
                      "model.encoder.language_model.layers.0.mlp.up_proj.weight": [2, 8]})
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    tensors = {}
    if blocks:
        tensors = in_blocks(names)
        config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    if family in HYBRID:
        names = published_hybrid(family, names)
    if family.startswith("gemma4"):
        names, config = published_gemma4(family, names, config)
    for n, s in names.items():
        if packed and len(s) > 1 and n.endswith(".weight"):
            tensors.update(codes(n, s, packed))
        elif fp8 and ".layers." in n and len(s) == 2 and not n.endswith("mlp.gate.weight"):
            tensors.update(float8(n, s))
        elif n.endswith(".e_score_correction_bias") or (n.endswith(".A_log") and family != "qwen3_next"):    # README.md
            tensors[n] = ("F32", s, pack(floats(n, s), "F32"))
        elif family in HYBRID and n.endswith(LESS_ONE):
            tensors[n] = (dtype, s, pack([v - 1 for v in floats(n, s)], dtype))
        else:
            tensors[n] = (dtype, s, pack(floats(n, s), dtype))
    if family == "llama" and not packed:
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", [16], pack(floats("inv", [16]), "F32"))
    keys = list(tensors)
    if shards == 1:
        save(folder / "model.safetensors", tensors)
    else:
        weight_map = {}
        for i in range(shards):
            file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
            part = keys[i::shards]
            save(folder / file, {k: tensors[k] for k in part})
            weight_map.update({k: file for k in part})
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def digests(folder):
    """Every tensor of a checkpoint: name -> "DTYPE shape hash"."""
    out = {}
    for file in sorted(pathlib.Path(folder).glob("*.safetensors")):
        h, raw, base = header(file)
        for name, t in h.items():
            if name == "__metadata__":
                continue
            a, b = t["data_offsets"]
            out[name] = f"{t['dtype']} {'x'.join(map(str, t['shape']))} {hashlib.sha256(raw[base + a : base + b]).hexdigest()[:16]}"
    return dict(sorted(out.items()))


# name -> (family, how the source is written, arguments of mlx_lm.convert). A packed source is given to it with dequantize first, unless
# nothing is quantised; blocks too where "floats_first" is said: else it leaves them as they are. plan: modules that differ (--q-config).
CASES = {
    "llama-default": ("llama", {"shards": 3}, {"quantize": True}),
    "llama-2bit-g32": ("llama", {}, {"quantize": True, "q_bits": 2, "q_group_size": 32}),
    "llama-3bit-g128-f16": ("llama", {"dtype": "F16"}, {"quantize": True, "q_bits": 3, "q_group_size": 128}),
    "llama-5bit-g64-f32": ("llama", {"dtype": "F32"}, {"quantize": True, "q_bits": 5, "q_group_size": 64}),
    "llama-6bit-g32": ("llama", {"dtype": "F32", "torch_dtype": "bfloat16"}, {"quantize": True, "q_bits": 6, "q_group_size": 32}),
    "llama-8bit-g64-to-f16": ("llama", {}, {"quantize": True, "q_bits": 8, "dtype": "float16"}),
    "llama-float16": ("llama", {}, {"dtype": "float16"}),
    "llama-mixed_3_6": ("llama", {}, {"quantize": True, "quant_predicate": "mixed_3_6", "q_group_size": 64}),
    "llama-bf16-indivisible": ("llama-bf16", {}, {"quantize": True, "q_group_size": 128}),
    "qwen3": ("qwen3", {}, {"quantize": True, "q_group_size": 32}),
    "qwen2": ("qwen2", {"dtype": "F16"}, {"quantize": True}),
    "starcoder2": ("starcoder2", {}, {"quantize": True, "q_group_size": 32}),
    "starcoder2-by-layer": ("starcoder2", {"dtype": "F16"}, {"quantize": True, "q_group_size": 64, "plan": {      # no recipe: it has no down_proj
        "model.layers.0.mlp.c_proj": {"bits": 6, "group_size": 64}, "model.embed_tokens": {"bits": 8, "group_size": 32},
        "model.layers.1.self_attn.v_proj": {"bits": 3, "group_size": 128}}}),
    "phi3": ("phi3", {}, {"quantize": True, "q_bits": 8, "q_group_size": 32}),
    "gemma3": ("gemma3", {}, {"quantize": True, "q_group_size": 32}),
    "granite": ("granite", {}, {"quantize": True, "q_group_size": 32}),
    "qwen3_moe": ("qwen3_moe", {}, {"quantize": True, "q_group_size": 32}),
    "mixtral": ("mixtral", {"shards": 2}, {"quantize": True, "q_group_size": 32}),
    "gemma4": ("gemma4", {}, {"quantize": True, "q_group_size": 32}),
    "llama-from-mxfp4": ("llama", {"packed": "mxfp4"}, {"quantize": True, "q_group_size": 32}),
    "llama-from-mxfp8-f16": ("llama", {"packed": "mxfp8", "dtype": "F16"}, {"quantize": True, "q_bits": 8, "q_group_size": 64}),
    "llama-from-nvfp4-f32": ("llama", {"packed": "nvfp4", "dtype": "F32", "torch_dtype": None}, {"quantize": True, "q_bits": 6, "q_group_size": 32}),
    "qwen3_moe-from-nvfp4": ("qwen3_moe", {"packed": "nvfp4", "shards": 2}, {"quantize": True, "q_bits": 5, "q_group_size": 64, "dtype": "float16"}),
    "gpt_oss-from-mxfp4": ("gpt_oss", {"packed": "mxfp4"}, {"quantize": True, "q_group_size": 32}),
    "gpt_oss-kept": ("gpt_oss", {"packed": "mxfp4"}, {"dtype": "float16"}),
    "gpt_oss": ("gpt_oss", {}, {"quantize": True, "q_group_size": 32}),
    "gpt_oss-published": ("gpt_oss", {"blocks": True}, {"dtype": "bfloat16"}),
    "gpt_oss-published-f16": ("gpt_oss", {"blocks": True, "shards": 3}, {"dtype": "float16"}),
    "gpt_oss-published-8bit": ("gpt_oss", {"blocks": True}, {"quantize": True, "q_bits": 8, "q_group_size": 32}),
    "gpt_oss-published-mixed_4_6": ("gpt_oss", {"blocks": True}, {"quantize": True, "quant_predicate": "mixed_4_6", "q_group_size": 32}),
    "gpt_oss-published-affine": ("gpt_oss", {"blocks": True}, {"quantize": True, "q_group_size": 32, "floats_first": True,
                                                               "plan": {f"model.layers.{i}.mlp.router": {"bits": 8, "group_size": 64} for i in (0, 1)}}),
    "diffusion_gemma": ("diffusion_gemma", {}, {"quantize": True, "q_group_size": 32}),
    "diffusion_gemma-f16": ("diffusion_gemma", {"shards": 2}, {"dtype": "float16"}),
    "diffusion_gemma-by-layer": ("diffusion_gemma", {}, {"quantize": True, "q_group_size": 32, "plan": {
        "model.decoder.layers.1.experts.down_proj": {"bits": 6, "group_size": 32}, "model.decoder.embed_tokens": {"bits": 8, "group_size": 64},
        "model.decoder.layers.0.experts.gate_up_proj": {"bits": 3, "group_size": 64}}}),
    "gemma4-moe": ("gemma4-moe", {"shards": 2}, {"quantize": True, "q_group_size": 32}),
    "deepseek_v3": ("deepseek_v3", {}, {"quantize": True, "q_group_size": 32}),
    "deepseek_v32": ("deepseek_v32", {"shards": 2}, {"quantize": True, "q_bits": 8, "q_group_size": 32}),
    "glm4_moe_lite": ("glm4_moe_lite", {}, {"quantize": True, "q_group_size": 32}),
    "glm_moe_dsa": ("glm_moe_dsa", {}, {"quantize": True, "q_group_size": 32}),
    "ministral3": ("ministral3", {}, {"quantize": True, "q_group_size": 32}),
    "minicpm": ("minicpm", {}, {"quantize": True, "q_group_size": 32}),
    "olmo2": ("olmo2", {}, {"quantize": True, "q_group_size": 32}),
    "olmo3": ("olmo3", {}, {"quantize": True, "q_group_size": 32}),
    "smollm3": ("smollm3", {}, {"quantize": True, "q_group_size": 32}),
    "glm4": ("glm4", {}, {"quantize": True, "q_group_size": 32}),
    "gemma": ("gemma", {}, {"quantize": True, "q_group_size": 32}),
    "gemma2": ("gemma2", {}, {"quantize": True, "q_group_size": 32}),
    "qwen3_5": ("qwen3_5", {}, {"quantize": True, "q_group_size": 32}),
    "qwen3_5-f16": ("qwen3_5", {}, {"dtype": "float16"}),
    "qwen3_5_moe": ("qwen3_5_moe", {"shards": 2}, {"quantize": True, "q_group_size": 32}),
    "qwen3_next": ("qwen3_next", {}, {"quantize": True, "q_group_size": 32}),
    "deepseek_v3-fp8": ("deepseek_v3", {"fp8": True}, {"quantize": True, "q_bits": 8, "q_group_size": 32}),
    "deepseek_v3-fp8-bf16": ("deepseek_v3", {"fp8": True}, {"dtype": "bfloat16"}),
    "deepseek_v32-fp8": ("deepseek_v32", {"fp8": True, "shards": 2}, {"quantize": True, "q_group_size": 32}),
}
# Every family with bits by layer too: the recipe gives the head, v and down of some layers more.
for _family in {f for f, how, args in CASES.values() if args.get("quantize") and f not in ("diffusion_gemma", "starcoder2") and not how.get("packed") and not how.get("fp8") and not how.get("blocks")}:
    CASES.setdefault(_family + "-mixed_4_6", (_family, {}, {"quantize": True, "quant_predicate": "mixed_4_6", "q_group_size": 32}))
CASES = dict(sorted(CASES.items()))
