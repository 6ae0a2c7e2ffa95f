"""Goldens of the GGUF import: tests/golden/gguf/.

    python tests/oracle/make_gguf.py

For each architecture a tiny GGUF (random tensors, every type that is imported), and beside it what must come out: every
tensor as float32 under its new name (expected/<case>/expected.safetensors, dequantised by the gguf package), the merges
that transformers derives from the scores, and the keys of config.json that do not follow from the sizes. No shape is that
of a working model but those of q and k, whose rows are reordered.
"""
import json
import struct
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants
from transformers.tokenization_utils_sentencepiece import generate_merges

OUT = Path(__file__).resolve().parent.parent / "golden" / "gguf"
N_EMBD, N_HEAD, N_KV, HEAD = 256, 2, 1, 8
K_TYPES = {T.Q4_K: (144, (0, 2)), T.Q5_K: (176, (0, 2)), T.Q6_K: (210, (208,))}
TYPES32 = (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0)
NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
         "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj", "post_attention_norm": "post_attention_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"}


def k_blocks(rng, type_, n_rows):
    """Random bytes are valid blocks once the half-precision scales are finite and small."""
    size, halves = K_TYPES[type_]
    b = rng.integers(0, 256, (n_rows, N_EMBD // 256 * size), dtype=np.uint8)
    for at in halves:
        h = (rng.uniform(-1, 1, n_rows) * 0.01).astype(np.float16)
        b[:, at:at + 2] = h.view(np.uint8).reshape(n_rows, 2)
    return b


def encode(rng, type_, shape, scale=1.0):
    x = (rng.standard_normal(shape) * scale).astype(np.float32)
    if type_ == T.F32:
        return x
    if type_ == T.F16:
        return x.astype(np.float16)
    if type_ in K_TYPES:
        return k_blocks(rng, type_, shape[0])
    return quants.quantize(x, type_)


def q6_k_exact(n_rows):
    """Scales 2 and 3 over small codes: 256 steps of a common divisor reach from end to end, so 8 bits are exact."""
    b = np.zeros((n_rows, 210), np.uint8)
    b[:, :128] = np.arange(128, dtype=np.uint8) * 37
    b[:, 128:192] = 0xA5
    b[:, 192:208] = np.where(np.arange(16) % 2, 4, 2)
    b[:, 208:210] = np.frombuffer(np.float16(0.0123).tobytes(), np.uint8)
    return b


def unpermute(x, n_head):
    return x.reshape(n_head, x.shape[0] // n_head // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def new_name(arch, name):
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    stem, suffix = name.rsplit(".", 1)
    if stem in top:
        return f"{top[stem]}.{suffix}"
    _, layer, part = stem.split(".")
    if part == "ffn_norm":
        part = "pre_feedforward_layernorm" if arch == "gemma3" else "post_attention_layernorm"
    return f"model.layers.{layer}.{NAMES.get(part, part)}.{suffix}"


def write_safetensors(path, tensors):
    head, blob = {}, b""
    for name, x in tensors.items():
        data = np.ascontiguousarray(x, np.float32).tobytes()
        head[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def metadata(w, arch, n_layer, n_vocab):
    w.add_context_length(131072 if arch == "llama" else 2048)
    w.add_embedding_length(N_EMBD)
    w.add_block_count(n_layer)
    w.add_feed_forward_length(512)
    w.add_head_count(N_HEAD)
    w.add_head_count_kv(N_KV)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(500000.0 if arch == "llama" else 1e6)
    if arch == "gemma3":
        w.add_sliding_window(512)


def llama3_factors(base=500000.0, factor=32.0, low=1.0, high=4.0, original=8192.0):
    out = []
    for i in range(HEAD // 2):
        wavelength = 2 * np.pi * base ** (2 * i / HEAD)
        if wavelength < original / high:
            out.append(1.0)
        elif wavelength > original / low:
            out.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def tokens_bpe(w):
    """The bytes a to e, space, digits; three merges; two special tokens, one plain added token, one filler."""
    pieces = list("abcde") + ["\u0120"] + list("0123456789") + ["ab", "\u0120c", "abc", "<|im_start|>", "<|im_end|>",
                                                             "<tool>", "[PAD22]"]
    types = [1] * 19 + [3, 3, 4, 5]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(pieces)
    w.add_token_types(types)
    w.add_token_merges(["a b", "\u0120 c", "ab c"])
    w.add_bos_token_id(19)
    w.add_eos_token_id(20)
    w.add_pad_token_id(20)
    w.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    return pieces


def tokens_spm(w):
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n\n"]
    types = [3, 3, 3, 2, 3, 3, 4]
    pieces += [f"<0x{i:02X}>" for i in (10, 13, 32, 255)]  # the import asks for no more
    types += [6] * 4
    words = ["\u2581", "a", "b", "\u00e9", "ab", "\u2581a", "ba", "aba", "abab", "\u2581ab", "\u00e9a", "a\u00e9a", "bab"]
    scores = [-1000.0] * 7 + [0.0] * 4 + [-50.0, -51.0, -52.0, -53.0, -1.0, -2.0, -2.0, -4.0, -5.0, -3.0, -6.0, -7.0, -5.0]
    pieces += words
    types += [1] * len(words)
    w.add_tokenizer_model("llama")
    w.add_tokenizer_pre("default")
    w.add_token_list(pieces)
    w.add_token_scores(scores)
    w.add_token_types(types)
    w.add_bos_token_id(2)
    w.add_eos_token_id(1)
    w.add_unk_token_id(3)
    w.add_pad_token_id(0)
    w.add_add_bos_token(True)
    w.add_add_space_prefix(False)
    vocab = {p: i for i, p in enumerate(pieces)}
    return pieces, generate_merges(vocab, {p: float(np.float32(s)) for p, s in zip(pieces, scores)})


def make(arch, seed, layers, extra):
    """layers: one dict part -> type for each layer."""
    rng = np.random.default_rng(seed)
    path = OUT / f"{arch}.gguf"
    w = gguf.GGUFWriter(path, arch)
    merges = None
    if arch == "gemma3":
        pieces, merges = tokens_spm(w)
    else:
        pieces = tokens_bpe(w)
    metadata(w, arch, len(layers), len(pieces))
    tensors = {"token_embd.weight": (T.Q8_0, encode(rng, T.Q8_0, (len(pieces), N_EMBD))),
               "output_norm.weight": (T.F32, encode(rng, T.F32, (N_EMBD,), 0.3) + np.float32(1))}
    for i, parts in enumerate(layers):
        for part, type_ in parts.items():
            rows = {"attn_q": N_HEAD * HEAD, "attn_k": N_KV * HEAD}.get(part, 2)
            if part.endswith("norm"):
                data = encode(rng, T.F32, (N_EMBD,), 0.3) + np.float32(1)
                if arch == "gemma3" and part == "attn_norm":  # as bfloat16 norms give it: w + 1 in float32
                    w16 = quants.quantize(encode(rng, T.F32, (N_EMBD,), 0.3), T.BF16)
                    data = quants.dequantize(w16, T.BF16) + np.float32(1)
                tensors[f"blk.{i}.{part}.weight"] = (T.F32, data)
            elif type_ == "exact":
                tensors[f"blk.{i}.{part}.weight"] = (T.Q6_K, q6_k_exact(rows))
            elif type_ == "bias":
                stem = part.split(":")[0]
                rows = {"attn_q": N_HEAD * HEAD, "attn_k": N_KV * HEAD}.get(stem, 2)
                tensors[f"blk.{i}.{stem}.bias"] = (T.F32, encode(rng, T.F32, (rows,)))
            elif type_ == "huge":  # 128 times the scale is beyond float16
                tensors[f"blk.{i}.{part}.weight"] = (T.Q8_0, encode(rng, T.Q8_0, (rows, N_EMBD), 60000.0))
            else:
                tensors[f"blk.{i}.{part}.weight"] = (type_, encode(rng, type_, (rows, N_EMBD)))
    for name, (type_, data) in extra.items():
        tensors[name] = (type_, data)
    expected = {}
    for name, (type_, data) in tensors.items():
        w.add_tensor(name, data, raw_dtype=type_)
        if name == "rope_freqs.weight":
            continue
        ref = quants.dequantize(data, type_) if type_ not in (T.F32, T.F16) else data.astype(np.float32)
        if arch == "llama" and ".attn_q." in name:
            ref = unpermute(ref, N_HEAD)
        if arch == "llama" and ".attn_k." in name:
            ref = unpermute(ref, N_KV)
        expected[new_name(arch, name)] = ref
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    folder = OUT / "expected" / arch
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "expected.safetensors", expected)
    if merges:
        (folder / "merges.json").write_text(json.dumps([list(m) for m in merges], ensure_ascii=False) + "\n")


def main():
    make("llama", 7001, [
        {"attn_norm": T.F32, "attn_q": T.Q4_0, "attn_k": T.Q4_1, "attn_v": T.Q5_0, "attn_output": T.Q5_1, "ffn_gate": T.Q8_0,
         "ffn_up": T.Q4_K, "ffn_down": T.Q5_K, "ffn_norm": T.F32, "attn_q:bias": "bias", "attn_k:bias": "bias"},
        {"attn_norm": T.F32, "attn_q": T.Q4_K, "attn_k": T.Q8_0, "attn_v": T.Q6_K, "attn_output": "exact",
         "ffn_gate": T.BF16, "ffn_up": "huge", "ffn_down": T.F16, "ffn_norm": T.F32}],
         {"rope_freqs.weight": (T.F32, llama3_factors())})
    rng = np.random.default_rng(7004)
    make("qwen2", 7002, [{"attn_q": T.F16, "attn_k": T.F32, "attn_v": T.BF16, "attn_q:bias": "bias", "attn_k:bias": "bias",
                          "attn_v:bias": "bias"}], {"output.weight": (T.Q5_1, encode(rng, T.Q5_1, (23, N_EMBD)))})
    make("gemma3", 7003, [{"attn_norm": T.F32, "post_attention_norm": T.F32, "ffn_norm": T.F32, "post_ffw_norm": T.F32,
                           "attn_q": T.Q5_0, "attn_k": T.Q5_0, "attn_q_norm": T.F32, "ffn_down": T.Q6_K}] +
         [{"attn_norm": T.F32}] * 5, {})


if __name__ == "__main__":
    main()
