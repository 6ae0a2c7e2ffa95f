"""synth.py: checkpoints with the shapes of larger models and made-up weights, once as an MLX directory (4 bit, groups of 64 as
models of these sizes are published, bfloat16 scales: 4.5 bits a weight) and once as a GGUF file (Q4_0, 4.5 bits, or Q4_1, 5 bits), so
that both programs read as many bytes as they would for real. SmolLM2's shape has groups of 32, as it is published.

    synth.py SHAPE DIR [FILE.gguf [q4_0|q4_1]]

A full 1B would do, an 8B is cut to N layers: bandwidth a byte is the same. The mixtures (qwen3-moe, qwen3.5-moe) have layers as
published, with a quarter or less of the experts and of the layers: about 1B weights a token. *-text and the mixtures have room for the
ids of SmolLM2's tokenizer, which the caller puts beside them. Nothing is random but the bytes; standard library only.
"""
import json
import math
import os
import struct
import sys
from pathlib import Path

class Model:
    """Tensors by their names in both forms. Matrices [.., n, k] are quantised; floats are (MLX name, GGUF name, MLX dims, GGUF dims,
    value), not quantised; value None: noise about 0."""

    def __init__(self, config, arch, meta, vocab, d, norm=1.0, group=64):
        self.config, self.arch, self.meta, self.group, self.matrices, self.floats = config, arch, meta, group, [], []
        self.matrix(self.outer("embed_tokens"), "token_embd", vocab, d)
        if not config.get("tie_word_embeddings"):
            self.matrix(self.outer("lm_head"), "output", vocab, d)
        self.vector(self.outer("norm"), "output_norm", d, norm)

    def outer(self, name):
        lead = "language_model." if self.arch == "qwen35moe" else ""
        return lead + (name if name == "lm_head" else "model." + name)

    def matrix(self, mlx, gguf, *dims):
        self.matrices.append((mlx, gguf, dims))

    def vector(self, mlx, gguf, n, value=1.0, suffix=".weight", gguf_suffix=".weight"):
        self.floats.append((mlx + suffix, gguf + gguf_suffix, [n], [n], value))

    def attention(self, m, g, d, heads, kv, size, gated=False):
        self.matrix(f"{m}.self_attn.q_proj", f"{g}.attn_q", heads * size * (2 if gated else 1), d)
        self.matrix(f"{m}.self_attn.k_proj", f"{g}.attn_k", kv * size, d)
        self.matrix(f"{m}.self_attn.v_proj", f"{g}.attn_v", kv * size, d)
        self.matrix(f"{m}.self_attn.o_proj", f"{g}.attn_output", d, heads * size)

    def qk_norms(self, m, g, size):
        self.vector(f"{m}.self_attn.q_norm", f"{g}.attn_q_norm", size)
        self.vector(f"{m}.self_attn.k_norm", f"{g}.attn_k_norm", size)

    def gated(self, m, g, d, ff, tail="", stack=()):
        self.matrix(f"{m}.gate_proj", f"{g}.ffn_gate{tail}", *stack, ff, d)
        self.matrix(f"{m}.up_proj", f"{g}.ffn_up{tail}", *stack, ff, d)
        self.matrix(f"{m}.down_proj", f"{g}.ffn_down{tail}", *stack, d, ff)

    def experts(self, m, g, d, ff, n):
        self.floats.append((f"{m}.mlp.gate.weight", f"{g}.ffn_gate_inp.weight", [n, d], [d, n], None))
        self.gated(f"{m}.mlp.switch_mlp", g, d, ff, "_exps", (n,))


def common(d, layers, heads, kv, size, vocab):
    config = {"hidden_size": d, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": size,
              "vocab_size": vocab, "max_position_embeddings": 40960, "rms_norm_eps": 1e-5, "hidden_act": "silu",
              "tie_word_embeddings": False}
    meta = {"context_length": 40960, "embedding_length": d, "block_count": layers, "attention.head_count": heads,
            "attention.head_count_kv": kv, "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": vocab}
    return config, meta


def llama(d, ff, heads, kv, size, layers, vocab, group=64):
    config, meta = common(d, layers, heads, kv, size, vocab)
    config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "intermediate_size": ff, "rope_theta": 10000.0}
    meta |= {"feed_forward_length": ff, "rope.dimension_count": size, "rope.freq_base": 10000.0}
    model = Model(config, "llama", meta, vocab, d, group=group)
    for i in range(layers):
        m, g = f"model.layers.{i}", f"blk.{i}"
        model.attention(m, g, d, heads, kv, size)
        model.gated(f"{m}.mlp", g, d, ff)
        model.vector(f"{m}.input_layernorm", f"{g}.attn_norm", d)
        model.vector(f"{m}.post_attention_layernorm", f"{g}.ffn_norm", d)
    return model


def gemma3(d=640, ff=2048, heads=4, kv=1, size=256, layers=18, vocab=262144, window=512, every=6):
    """Gemma-3-270M: a model of 32k tokens whose prompt a CPU computes in bearable time, since five layers of six see 512 tokens."""
    config, meta = common(d, layers, heads, kv, size, vocab)
    config |= {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "intermediate_size": ff, "rope_theta": 1e6,
               "rope_local_base_freq": 10000.0, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": size, "rms_norm_eps": 1e-6,
               "tie_word_embeddings": True, "sliding_window": window, "sliding_window_pattern": every, "max_position_embeddings": 40960,
               "layer_types": ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(layers)]}
    meta |= {"feed_forward_length": ff, "rope.freq_base": 1e6, "attention.key_length": size, "attention.value_length": size,
             "attention.sliding_window": window, "context_length": 40960}
    model = Model(config, "gemma3", meta, vocab, d, 0.0)  # norms add 1
    for i in range(layers):
        m, g = f"model.layers.{i}", f"blk.{i}"
        model.attention(m, g, d, heads, kv, size)
        model.gated(f"{m}.mlp", g, d, ff)
        for mlx, gguf, n in (("self_attn.q_norm", "attn_q_norm", size), ("self_attn.k_norm", "attn_k_norm", size),
                             ("input_layernorm", "attn_norm", d), ("post_attention_layernorm", "post_attention_norm", d),
                             ("pre_feedforward_layernorm", "ffn_norm", d), ("post_feedforward_layernorm", "post_ffw_norm", d)):
            model.vector(f"{m}.{mlx}", f"{g}.{gguf}", n, 0.0)
    return model


def qwen3_moe(layers=16, n_expert=32, d=2048, ff=768, heads=32, kv=4, size=128, top_k=8, vocab=49152):
    """Layers of Qwen3-30B-A3B, which has 48, and 128 experts."""
    config, meta = common(d, layers, heads, kv, size, vocab)
    config |= {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "intermediate_size": 6144, "rope_theta": 1e6,
               "num_experts": n_expert, "num_experts_per_tok": top_k, "moe_intermediate_size": ff, "norm_topk_prob": True,
               "decoder_sparse_step": 1, "mlp_only_layers": []}
    meta |= {"feed_forward_length": 6144, "rope.freq_base": 1e6, "expert_count": n_expert, "expert_used_count": top_k,
             "expert_feed_forward_length": ff, "attention.key_length": size, "attention.value_length": size}
    model = Model(config, "qwen3moe", meta, vocab, d)
    for i in range(layers):
        m, g = f"model.layers.{i}", f"blk.{i}"
        model.attention(m, g, d, heads, kv, size)
        model.qk_norms(m, g, size)
        model.experts(m, g, d, ff, n_expert)
        model.vector(f"{m}.input_layernorm", f"{g}.attn_norm", d)
        model.vector(f"{m}.post_attention_layernorm", f"{g}.ffn_norm", d)
    return model


def qwen3_5_moe(layers=16, n_expert=32, d=2048, ff=512, heads=16, kv=2, size=256, top_k=8, vocab=49152, keys=16, values=32, dim=128):
    """Layers of Qwen3.5-35B-A3B, which has 40, and 256 experts; three of four are gated delta nets."""
    text, meta = common(d, layers, heads, kv, size, vocab)
    text |= {"model_type": "qwen3_5_moe_text", "full_attention_interval": 4, "attn_output_gate": True, "linear_num_key_heads": keys,
             "linear_num_value_heads": values, "linear_key_head_dim": dim, "linear_value_head_dim": dim, "linear_conv_kernel_dim": 4,
             "num_experts": n_expert, "num_experts_per_tok": top_k, "moe_intermediate_size": ff, "shared_expert_intermediate_size": ff,
             "norm_topk_prob": True, "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "type": "default"}}
    config = {"model_type": "qwen3_5_moe", "architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": text}
    meta |= {"rope.freq_base": 1e7, "rope.dimension_count": size // 4, "rope.dimension_sections": [11, 11, 10, 0],
             "expert_count": n_expert, "expert_used_count": top_k, "expert_feed_forward_length": ff,
             "expert_shared_feed_forward_length": ff, "attention.key_length": size, "attention.value_length": size,
             "ssm.conv_kernel": 4, "ssm.state_size": dim, "ssm.group_count": keys, "ssm.time_step_rank": values,
             "ssm.inner_size": values * dim, "full_attention_interval": 4}
    model = Model(config, "qwen35moe", meta, vocab, d)
    for i in range(layers):
        m, g = f"language_model.model.layers.{i}", f"blk.{i}"
        if i % 4 == 3:
            model.attention(m, g, d, heads, kv, size, gated=True)
            model.qk_norms(m, g, size)
        else:
            delta_net(model, f"{m}.linear_attn", g, d, keys, values, dim)
        model.experts(m, g, d, ff, n_expert)
        model.floats.append((f"{m}.mlp.shared_expert_gate.weight", f"{g}.ffn_gate_inp_shexp.weight", [1, d], [d], None))
        model.gated(f"{m}.mlp.shared_expert", g, d, ff, "_shexp")
        model.vector(f"{m}.input_layernorm", f"{g}.attn_norm", d)
        model.vector(f"{m}.post_attention_layernorm", f"{g}.post_attention_norm", d)
    return model


def delta_net(model, m, g, d, keys, values, dim):
    n = (2 * keys + values) * dim
    model.matrix(f"{m}.in_proj_qkv", f"{g}.attn_qkv", n, d)
    model.matrix(f"{m}.in_proj_z", f"{g}.attn_gate", values * dim, d)
    model.matrix(f"{m}.in_proj_b", f"{g}.ssm_beta", values, d)
    model.matrix(f"{m}.in_proj_a", f"{g}.ssm_alpha", values, d)
    model.matrix(f"{m}.out_proj", f"{g}.ssm_out", d, values * dim)
    model.floats.append((f"{m}.conv1d.weight", f"{g}.ssm_conv1d.weight", [n, 4, 1], [4, n], 0.25))
    model.vector(m, g, values, -2.0, ".dt_bias", ".ssm_dt.bias")
    model.vector(m, g, values, 0.0, ".A_log", ".ssm_a")
    model.vector(f"{m}.norm", f"{g}.ssm_norm", dim)


# hidden, intermediate, heads, key heads, head size, layers, vocabulary
SHAPES = {"1b": lambda: llama(2048, 8192, 32, 8, 64, 16, 32000), "8b": lambda: llama(4096, 14336, 32, 8, 128, 6, 32000),
          "8b-whole": lambda: llama(4096, 14336, 32, 8, 128, 32, 32000), "gemma3-270m": gemma3,
          "135m-text": lambda: llama(576, 1536, 9, 3, 64, 30, 49152, group=32),  # SmolLM2-135M
          "1b-text": lambda: llama(2048, 8192, 32, 8, 64, 16, 49152), "qwen3-moe": qwen3_moe, "qwen3.5-moe": qwen3_5_moe}


def bf16(x):
    return struct.pack("<f", x)[2:]


def noise(n):
    """Bytes whose nibbles are spread evenly; the same block over and over is as good as any for a bandwidth."""
    block = os.urandom(1 << 20)
    return (block * (n // len(block) + 1))[:n]


def small_noise(n):
    """Floats about 0, as evenly spread: the same for both programs is not needed, only that routers choose all experts."""
    block = [int.from_bytes(os.urandom(2), "little") / 65536 * 0.06 - 0.03 for _ in range(4099)]
    return (block * (n // len(block) + 1))[:n]


def write_mlx(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    config = {**model.config, "bos_token_id": 1, "eos_token_id": 2, "quantization": {"group_size": model.group, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    header, at, parts = {}, 0, []

    def add(name, dtype, dims, data):
        nonlocal at
        size = math.prod(dims) * (4 if dtype == "U32" else 2)
        header[name] = {"dtype": dtype, "shape": list(dims), "data_offsets": [at, at + size]}
        parts.append((size, data))
        at += size

    for name, _, (*outer, k) in model.matrices:
        add(name + ".weight", "U32", [*outer, k // 8], noise)
        add(name + ".scales", "BF16", [*outer, k // model.group], bf16(0.002))
        add(name + ".biases", "BF16", [*outer, k // model.group], bf16(-0.015))
    for name, _, dims, _, value in model.floats:
        add(name, "BF16", dims, bf16(value) if value is not None else lambda n: b"".join(bf16(x) for x in small_noise(n // 2)))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for size, data in parts:
            f.write(data(size) if callable(data) else data * (size // 2))


def gguf_string(s):
    return struct.pack("<Q", len(s)) + s.encode()


def gguf_value(v):
    if isinstance(v, str):
        return struct.pack("<I", 8) + gguf_string(v)
    if isinstance(v, list):
        return struct.pack(f"<IIQ{len(v)}i", 9, 5, len(v), *v)
    return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)


def write_gguf(model, path, kind):
    tensors = [(g + ".weight", list(reversed(dims))) for _, g, dims in model.matrices]
    small = [(g, dims, value) for _, g, _, dims, value in model.floats]
    meta = {"general.architecture": model.arch, **{f"{model.arch}.{k}": v for k, v in model.meta.items()},
            "tokenizer.ggml.model": "no_vocab", "general.file_type": 2 if kind == "q4_0" else 3}
    scale, minimum = struct.pack("<e", 0.002), struct.pack("<e", -0.015)
    head_bytes = scale if kind == "q4_0" else scale + minimum
    block = len(head_bytes) + 16
    out = [b"GGUF" + struct.pack("<IQQ", 3, len(tensors) + len(small), len(meta))]
    out += [gguf_string(k) + gguf_value(v) for k, v in meta.items()]
    at, sizes = 0, [math.prod(dims) // 32 * block for _, dims in tensors]
    listed = [(name, dims, 2 if kind == "q4_0" else 3, size) for (name, dims), size in zip(tensors, sizes)]
    listed += [(name, dims, 0, 4 * math.prod(dims)) for name, dims, _ in small]
    for name, dims, type_id, size in listed:
        out.append(gguf_string(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", type_id, at))
        at += -(-size // 32) * 32
    text = b"".join(out)
    piece = b"".join(head_bytes + os.urandom(16) for _ in range(32768))
    with open(path, "wb") as f:
        f.write(text + b"\0" * (-len(text) % 32))
        for left in sizes:
            pad = -left % 32
            while left > 0:
                f.write(piece[:left])
                left -= len(piece)
            f.write(b"\0" * pad)
        for name, dims, value in small:
            n = math.prod(dims)
            value = -1.0 if name.endswith("ssm_a") else value  # there it is -exp(A_log)
            value = 1.0 if model.arch == "gemma3" else value   # there the 1 is added already
            data = struct.pack(f"<{n}f", *small_noise(n)) if value is None else struct.pack("<f", value) * n
            f.write(data + b"\0" * (-len(data) % 32))


def main():
    model = SHAPES[sys.argv[1]]()
    kind = sys.argv[4] if len(sys.argv) > 4 else "q4_0"
    write_mlx(model, Path(sys.argv[2]))
    if len(sys.argv) > 3:
        write_gguf(model, sys.argv[3], kind)


main()
