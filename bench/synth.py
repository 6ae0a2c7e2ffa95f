"""synth.py: checkpoints with the shapes of larger models and made-up weights, once as an MLX directory (4 bit, groups of 32,
bfloat16 scales) and once as a GGUF file (Q4_0 or Q4_1), so that both programs read as many bytes as they would for real.

    synth.py 1b|8b|1b-text DIR [FILE.gguf [q4_0|q4_1]]

1b-text has room for the ids of SmolLM2's tokenizer, which the caller puts beside it. A full 1B would do, an 8B is cut to N layers: bandwidth a byte is the same. Nothing is random but the bytes; standard library only.
"""
import json
import os
import struct
import sys
from pathlib import Path

# hidden, intermediate, heads, key heads, head size, layers, vocabulary
SHAPES = {"1b": (2048, 8192, 32, 8, 64, 16, 32000), "8b": (4096, 14336, 32, 8, 128, 6, 32000),
          "1b-text": (2048, 8192, 32, 8, 64, 16, 49152)}
GROUP = 32


def matrices(shape):
    d, ff, heads, kv, head, layers, vocab = shape
    names = [("embed", "model.embed_tokens", "token_embd", vocab, d), ("head", "lm_head", "output", vocab, d)]
    for i in range(layers):
        m, g = f"model.layers.{i}", f"blk.{i}"
        names += [("w", f"{m}.self_attn.q_proj", f"{g}.attn_q", heads * head, d), ("w", f"{m}.self_attn.k_proj", f"{g}.attn_k", kv * head, d),
                  ("w", f"{m}.self_attn.v_proj", f"{g}.attn_v", kv * head, d), ("w", f"{m}.self_attn.o_proj", f"{g}.attn_output", d, heads * head),
                  ("w", f"{m}.mlp.gate_proj", f"{g}.ffn_gate", ff, d), ("w", f"{m}.mlp.up_proj", f"{g}.ffn_up", ff, d),
                  ("w", f"{m}.mlp.down_proj", f"{g}.ffn_down", d, ff)]
    return names


def norms(shape):
    d, layers = shape[0], shape[5]
    names = [("model.norm", "output_norm")]
    for i in range(layers):
        names += [(f"model.layers.{i}.input_layernorm", f"blk.{i}.attn_norm"),
                  (f"model.layers.{i}.post_attention_layernorm", f"blk.{i}.ffn_norm")]
    return [(m, g, d) for m, g in names]


def bf16(x):
    return struct.pack("<f", x)[2:]


def noise(n):
    """Bytes whose nibbles are spread evenly; the same block over and over is as good as any for a bandwidth."""
    block = os.urandom(1 << 20)
    return (block * (n // len(block) + 1))[:n]


def write_mlx(shape, folder):
    d, ff, heads, kv, head, layers, vocab = shape
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": d, "intermediate_size": ff,
              "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head,
              "vocab_size": vocab, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
              "quantization": {"group_size": GROUP, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    header, at, parts = {}, 0, []
    for _, name, _, n, k in matrices(shape):
        for suffix, dtype, dims, size in ((".weight", "U32", [n, k // 8], n * k // 2), (".scales", "BF16", [n, k // GROUP], n * k // GROUP * 2),
                                          (".biases", "BF16", [n, k // GROUP], n * k // GROUP * 2)):
            header[name + suffix] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + size]}
            parts.append((suffix, size))
            at += size
    for name, _, n in norms(shape):
        header[name + ".weight"] = {"dtype": "BF16", "shape": [n], "data_offsets": [at, at + 2 * n]}
        parts.append(("norm", 2 * n))
        at += 2 * n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    fill = {".scales": bf16(0.002), ".biases": bf16(-0.015), "norm": bf16(1.0)}
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for kind, size in parts:
            f.write(noise(size) if kind == ".weight" else fill[kind] * (size // 2))


def gguf_string(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf_value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + gguf_string(v)
    return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)


def write_gguf(shape, path, kind):
    d, ff, heads, kv, head, layers, vocab = shape
    tensors = [(g + ".weight", [k, n]) for _, _, g, n, k in matrices(shape)]
    small = [(g + ".weight", [n]) for _, g, n in norms(shape)]
    meta = {"general.architecture": "llama", "llama.context_length": 8192, "llama.embedding_length": d, "llama.block_count": layers,
            "llama.feed_forward_length": ff, "llama.attention.head_count": heads, "llama.attention.head_count_kv": kv,
            "llama.rope.dimension_count": head, "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": vocab,
            "llama.rope.freq_base": 10000.0, "tokenizer.ggml.model": "no_vocab", "general.file_type": 2 if kind == "q4_0" else 3}
    scale, minimum = struct.pack("<e", 0.002), struct.pack("<e", -0.015)
    head_bytes = scale if kind == "q4_0" else scale + minimum
    block = len(head_bytes) + 16
    out = [b"GGUF" + struct.pack("<IQQ", 3, len(tensors) + len(small), len(meta))]
    out += [gguf_string(k) + gguf_value(v) for k, v in meta.items()]
    at = 0
    for names, type_id, size_of in ((tensors, 2 if kind == "q4_0" else 3, lambda s: s[0] * s[1] // 32 * block), (small, 0, lambda s: 4 * s[0])):
        for name, dims in names:
            out.append(gguf_string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", type_id, at))
            at += -(-size_of(dims) // 32) * 32
    text = b"".join(out)
    piece = b"".join(head_bytes + os.urandom(16) for _ in range(32768))
    with open(path, "wb") as f:
        f.write(text + b"\0" * (-len(text) % 32))
        for _, dims in tensors:
            left = dims[0] * dims[1] // 32 * block
            while left > 0:
                f.write(piece[:left])
                left -= len(piece)
        for _, dims in small:
            f.write(struct.pack("<f", 1.0) * dims[0])


def main():
    shape = SHAPES[sys.argv[1]]
    kind = sys.argv[4] if len(sys.argv) > 4 else "q4_0"
    write_mlx(shape, Path(sys.argv[2]))
    if len(sys.argv) > 3:
        write_gguf(shape, sys.argv[3], kind)


main()
