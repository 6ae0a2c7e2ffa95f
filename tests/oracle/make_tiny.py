"""Tiny random checkpoints in MLX form under tests/golden/tiny/, built from mlx-lm's own model classes.

Each is small enough to commit and has every branch of its family on. Weights are drawn so that attention is peaked
(q.k of a few units), layers outweigh the embedding in the residual, and logits spread over at least 5 units.
"""
import argparse
import importlib
import json
import shutil

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import quantize_model, save_config, save_model
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from common import TEXT_NAMES, TINY, read_text

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a tiny test model<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The shape of Gemma's template: no system role (its text opens the first user turn), `model` for the assistant,
# strict alternation, a bos of its own.
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + (first if loop.first else '') }}{{ message['content'] | trim }}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# The split pattern of Qwen2's tokenizer.json: a fact about the family, needed for the same ids.
QWEN_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def bpe_tokenizer(vocab_size):
    """Byte-level BPE as Qwen2's: NFC, the split pattern, bytes; specials at the end of the vocabulary."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    t.post_processor = processors.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    t.train_from_iterator([read_text(n) for n in TEXT_NAMES], trainers.BpeTrainer(
        vocab_size=vocab_size - len(specials), initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False))
    assert t.get_vocab_size() == vocab_size - len(specials)
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return t


def spm_tokenizer(vocab_size):
    """SentencePiece-style BPE as Gemma's: spaces become U+2581, unknown characters fall back to bytes."""
    head = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    head += [f"<0x{b:02X}>" for b in range(256)]
    alphabet = ["\u2581", "\n"] + [chr(c) for c in range(33, 127)] + list("\u00e4\u00f6\u00fc\u00df")
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Split("\u2581", behavior="merged_with_next")
    keep = set(alphabet) | {" "}
    texts = ["".join(c for c in read_text(n) if c in keep) for n in TEXT_NAMES[:6]]
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size - len(head), initial_alphabet=alphabet, show_progress=False))
    trained = json.loads(t.to_str())["model"]
    assert len(trained["vocab"]) == vocab_size - len(head)
    by_id = sorted(trained["vocab"], key=trained["vocab"].get)
    vocab = {s: i for i, s in enumerate(head + by_id)}
    merges = [tuple(m) for m in trained["merges"]]
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True,
                             ignore_merges=False))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    t.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <bos>:1 $B:1", special_tokens=[("<bos>", vocab["<bos>"])])
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in head[:7]])
    return t


def bpe_files(out):
    tok = bpe_tokenizer(512)
    tok.save(str(out / "tokenizer.json"), pretty=False)
    ids = {s: tok.token_to_id(s) for s in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")}
    conf = {"add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>", "model_max_length": 4096, "pad_token": "<|endoftext|>", "unk_token": None,
            "added_tokens_decoder": {str(i): {"content": s, "lstrip": False, "normalized": False, "rstrip": False,
                                              "single_word": False, "special": True} for s, i in ids.items()},
            "tokenizer_class": "Qwen2Tokenizer", "chat_template": CHATML}
    (out / "tokenizer_config.json").write_text(json.dumps(conf, indent=2) + "\n")
    eos = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    return {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": eos[0]}, eos


def spm_files(out):
    tok = spm_tokenizer(512)
    tok.save(str(out / "tokenizer.json"), pretty=False)
    conf = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>",
            "pad_token": "<pad>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
            "model_max_length": 4096, "tokenizer_class": "GemmaTokenizer"}
    (out / "tokenizer_config.json").write_text(json.dumps(conf, indent=2) + "\n")
    (out / "chat_template.jinja").write_text(GEMMA)   # the newer place of a template: a file beside the config
    return {"bos_token_id": 2, "eos_token_id": [1, 6], "pad_token_id": 0}, [1, 6]


BASE = dict(hidden_act="silu", max_position_embeddings=4096, vocab_size=512, use_cache=True, initializer_range=0.02,
            transformers_version="4.51.0")

GEMMA4 = dict(hidden_size=64, hidden_activation="gelu_pytorch_tanh", intermediate_size=64, num_attention_heads=4,
              head_dim=32, global_head_dim=64, rms_norm_eps=1e-6, sliding_window=16, final_logit_softcapping=15.0,
              vocab_size_per_layer_input=512, tie_word_embeddings=True, rope_parameters=dict(
                  full_attention=dict(rope_type="proportional", rope_theta=1000000.0, partial_rotary_factor=0.25),
                  sliding_attention=dict(rope_type="default", rope_theta=10000.0)))

QWEN3_5_MOE = dict(
    BASE, model_type="qwen3_5_moe_text", hidden_size=64, num_hidden_layers=4, full_attention_interval=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=False,
    attention_bias=False, attn_output_gate=True, linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=32,
    linear_value_head_dim=32, linear_conv_kernel_dim=4, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
    shared_expert_intermediate_size=64, norm_topk_prob=True,
    rope_parameters=dict(rope_type="default", rope_theta=10000000.0, partial_rotary_factor=0.25))

LATENT = dict(hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_attention_heads=4, num_key_value_heads=4,
              n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, routed_scaling_factor=1.7, norm_topk_prob=True,
              topk_method="noaux_tc", scoring_func="sigmoid", n_group=1, topk_group=1, moe_layer_freq=1, first_k_dense_replace=1,
              qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=48, attention_bias=False)
INDEXER = dict(index_n_heads=8, index_head_dim=32, index_topk=40)
SIGMOID_ROUTERS = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")

# name -> (mlx_lm module, config, dtype of floats, global quantisation, per-module overrides, tokenizer, seed)
FAMILIES = {
    "llama": dict(
        module="llama", dtype="float16", quant=(4, 32), seed=1001, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 32, "bits": 8} if p == "model.embed_tokens" else True,
        config=dict(BASE, model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=128,
                    intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=True,
                    attention_bias=False, mlp_bias=False,
                    rope_scaling=dict(rope_type="llama3", factor=16.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                      original_max_position_embeddings=256))),
    # Queries grow four times within the golden prompt; yarn over the same original context.
    "ministral3": dict(
        module="ministral3", dtype="bfloat16", quant=(4, 32), seed=1042, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 5} if p.endswith("o_proj") else True,
        config=dict(BASE, model_type="ministral3", architectures=["Ministral3ForCausalLM"], hidden_size=64, intermediate_size=128,
                    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5,
                    sliding_window=None, tie_word_embeddings=False,
                    rope_parameters=dict(type="yarn", rope_type="yarn", rope_theta=1000000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                         mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3,
                                         original_max_position_embeddings=64))),
    "gemma3": dict(
        module="gemma3_text", dtype="bfloat16", quant=(4, 32), seed=1002, files=spm_files, norm_mean=0.0,
        override=lambda p: True,
        config=dict(BASE, model_type="gemma3_text", architectures=["Gemma3ForCausalLM"], hidden_size=128,
                    hidden_activation="gelu_pytorch_tanh", intermediate_size=128, num_hidden_layers=4,
                    num_attention_heads=4, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6,
                    rope_theta=1000000.0, rope_local_base_freq=10000.0, query_pre_attn_scalar=24,
                    sliding_window=16, sliding_window_pattern=3, attn_logit_softcapping=None,
                    final_logit_softcapping=None, rope_scaling=dict(rope_type="linear", factor=8.0))),
    "qwen2": dict(
        module="qwen2", dtype="float16", quant=(4, 64), seed=1003, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=128,
                    intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=1,
                    rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=False, use_sliding_window=False,
                    sliding_window=4096, max_window_layers=2)),
    "qwen3": dict(
        module="qwen3", dtype="bfloat16", quant=(4, 64), seed=1004, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 6} if p.endswith("down_proj") or p == "model.embed_tokens"
        else {"group_size": 32, "bits": 8} if p.endswith("v_proj") and ".1." in p else True,
        config=dict(BASE, model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
                    tie_word_embeddings=True, attention_bias=False, use_sliding_window=False, sliding_window=None,
                    max_window_layers=3)),
    "llama-bf16": dict(
        module="llama", dtype="bfloat16", quant=None, seed=1005, files=bpe_files, norm_mean=1.0,
        override=None,
        config=dict(BASE, model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=True,
                    attention_bias=False, mlp_bias=False)),
    "qwen3_moe": dict(
        module="qwen3_moe", dtype="bfloat16", quant=(4, 32), seed=1013, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 8} if p.endswith("mlp.gate") else True,
        config=dict(BASE, model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=64,
                    intermediate_size=128, moe_intermediate_size=64, num_experts=8, num_experts_per_tok=3,
                    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, rope_theta=1000000.0,
                    rope_scaling=None, tie_word_embeddings=False, attention_bias=False)),
    "mixtral": dict(
        module="mixtral", dtype="bfloat16", quant=(4, 32), seed=1012, files=bpe_files, norm_mean=1.0,
        override=lambda p: not p.endswith(".gate"),      # the router stays bfloat16
        config=dict(BASE, model_type="mixtral", architectures=["MixtralForCausalLM"], hidden_size=64,
                    intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=1000000.0,
                    rope_scaling=None, tie_word_embeddings=False)),
    # Every linear of attention, the router, and the experts have biases; experts mxfp4, the rest affine 8 bit.
    "gpt_oss": dict(
        module="gpt_oss", dtype="bfloat16", quant=(4, 32, "mxfp4"), seed=1035, files=bpe_files, norm_mean=1.0,
        override=lambda p: ".experts." in p or {"group_size": 64, "bits": 8},
        config=dict(BASE, model_type="gpt_oss", architectures=["GptOssForCausalLM"], hidden_size=64,
                    intermediate_size=64, num_local_experts=8, num_experts_per_tok=3, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-5, rope_theta=150000.0,
                    sliding_window=16, layer_types=["sliding_attention", "full_attention"], attention_bias=True,
                    tie_word_embeddings=False, swiglu_limit=7.0,
                    rope_scaling=dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0,
                                      original_max_position_embeddings=512))),
    # The fp formats side by side: nvfp4 (embedding and head too), mxfp8 and mxfp4.
    "llama-fp": dict(
        module="llama", dtype="bfloat16", quant=(4, 16, "nvfp4"), seed=1019, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 32, "bits": 8, "mode": "mxfp8"} if p.endswith(("q_proj", "down_proj"))
        else {"group_size": 32, "bits": 4, "mode": "mxfp4"} if p.endswith(("gate_proj", "o_proj")) else True,
        config=dict(BASE, model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False,
                    attention_bias=False, mlp_bias=False)),
    "granite": dict(
        module="granite", dtype="bfloat16", quant=(4, 32), seed=1014, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, model_type="granite", architectures=["GraniteForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=True,
                    attention_bias=False, mlp_bias=False, embedding_multiplier=6.0, attention_multiplier=0.3,
                    residual_multiplier=0.6, logits_scaling=0.5)),
    "minicpm": dict(
        module="minicpm", dtype="bfloat16", quant=(4, 32), seed=1015, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, model_type="minicpm", architectures=["MiniCPMForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False,
                    scale_emb=3.0, scale_depth=1.4, dim_model_base=48)),
    "olmo2": dict(
        module="olmo2", dtype="bfloat16", quant=(4, 32), seed=1016, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, model_type="olmo2", architectures=["Olmo2ForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    rms_norm_eps=1e-6, rope_theta=500000.0, rope_scaling=None, tie_word_embeddings=False,
                    attention_bias=False)),
    "olmo3": dict(
        module="olmo3", dtype="bfloat16", quant=(4, 32), seed=1017, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, model_type="olmo3", architectures=["Olmo3ForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                    rms_norm_eps=1e-6, rope_theta=500000.0, tie_word_embeddings=False, attention_bias=False,
                    sliding_window=16, rope_scaling=dict(rope_type="yarn", factor=8.0, beta_fast=32, beta_slow=1,
                                                         original_max_position_embeddings=512))),
    "smollm3": dict(
        module="smollm3", dtype="bfloat16", quant=(4, 32), seed=1006, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, model_type="smollm3", architectures=["SmolLM3ForCausalLM"], hidden_size=64,
                    intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
                    rms_norm_eps=1e-6, rope_theta=5000000.0, rope_scaling=None, tie_word_embeddings=True,
                    attention_bias=False, mlp_bias=False, no_rope_layer_interval=2, no_rope_layers=None)),
    # The activation and the window are transformers'; mlx-lm has neither.
    "starcoder2": dict(
        module="starcoder2", dtype="bfloat16", quant=(4, 32), seed=1044, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 8} if p.endswith("c_proj") and ".1." in p else True,
        config=dict(BASE, model_type="starcoder2", architectures=["Starcoder2ForCausalLM"], hidden_size=128, hidden_act="gelu_pytorch_tanh",
                    intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, norm_epsilon=1e-5,
                    rope_theta=100000.0, use_bias=True, norm_type="layer_norm", mlp_type="default", sliding_window=40,
                    attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0, tie_word_embeddings=True)),
    "phi3": dict(
        module="phi3", dtype="bfloat16", quant=(4, 32), seed=1007, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 8} if p.endswith("qkv_proj") and ".1." in p else True,
        config=dict(BASE, model_type="phi3", architectures=["Phi3ForCausalLM"], hidden_size=128,
                    intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None, partial_rotary_factor=0.75,
                    original_max_position_embeddings=4096, tie_word_embeddings=False, sliding_window=None)),
    "glm4": dict(
        module="glm4", dtype="bfloat16", quant=(4, 64), seed=1008, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, model_type="glm4", architectures=["Glm4ForCausalLM"], hidden_size=128,
                    intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                    head_dim=32, rms_norm_eps=1e-5, rope_theta=10000.0, partial_rotary_factor=0.5,
                    attention_bias=True, tie_word_embeddings=False)),
    "gemma": dict(
        module="gemma", dtype="bfloat16", quant=(4, 32), seed=1009, files=spm_files, norm_mean=0.0,
        override=lambda p: True,
        config=dict(BASE, model_type="gemma", architectures=["GemmaForCausalLM"], hidden_size=64,
                    hidden_activation="gelu_pytorch_tanh", intermediate_size=128, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6,
                    rope_theta=10000.0)),
    "gemma2": dict(
        module="gemma2", dtype="bfloat16", quant=(4, 32), seed=1010, files=spm_files, norm_mean=0.0,
        override=lambda p: True,
        config=dict(BASE, model_type="gemma2", architectures=["Gemma2ForCausalLM"], hidden_size=64,
                    hidden_activation="gelu_pytorch_tanh", intermediate_size=128, num_hidden_layers=4,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6,
                    rope_theta=10000.0, query_pre_attn_scalar=24, sliding_window=16, attn_logit_softcapping=4.0,
                    final_logit_softcapping=15.0)),
    # Gemma 4 as e2b, e4b: per-layer inputs, shared keys of both kinds, wide MLPs of the sharers, wide global heads.
    "gemma4": dict(
        module="gemma4_text", dtype="bfloat16", quant=(4, 32), seed=1018, files=spm_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 6} if p == "model.per_layer_model_projection" else True,
        config=dict(BASE, **GEMMA4, model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], num_key_value_heads=1,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                                 "full_attention"],
                    num_hidden_layers=5, num_kv_shared_layers=2, hidden_size_per_layer_input=32, attention_k_eq_v=False,
                    use_double_wide_mlp=True)),
    # As 12B, 31B: keys that are values and other KV heads in global layers, under a multimodal config.
    "gemma4-kv": dict(
        module="gemma4", dtype="bfloat16", quant=(4, 32), seed=1019, files=spm_files, norm_mean=1.0,
        override=lambda p: {"group_size": 32, "bits": 8} if p.endswith("layers.1.self_attn.k_proj") else True,
        config=dict(model_type="gemma4", architectures=["Gemma4ForConditionalGeneration"], vocab_size=512,
                    text_config=dict(BASE, **GEMMA4, model_type="gemma4_text", num_key_value_heads=2,
                                     num_global_key_value_heads=1, num_hidden_layers=3, sliding_window_pattern=2,
                                     num_kv_shared_layers=0, hidden_size_per_layer_input=0, attention_k_eq_v=True))),
    # As 26B-A4B: the same with experts beside the MLP.
    "gemma4-moe": dict(
        module="gemma4_text", dtype="bfloat16", quant=(4, 32), seed=1020, files=spm_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 8} if p.endswith("router.proj") else True,
        config=dict(BASE, **GEMMA4, model_type="gemma4_text", architectures=["Gemma4ForCausalLM"], num_key_value_heads=2,
                    num_global_key_value_heads=1, num_hidden_layers=3, sliding_window_pattern=2, num_kv_shared_layers=0,
                    hidden_size_per_layer_input=0, attention_k_eq_v=True, enable_moe_block=True, num_experts=8,
                    top_k_experts=3, moe_intermediate_size=32)),
    # Gated delta nets. The heads' share of the output (48 columns) is no whole number of groups here.
    "qwen3_5": dict(
        module="qwen3_5", dtype="bfloat16", quant=(4, 32), seed=1020, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 32, "bits": 8} if p.endswith(("embed_tokens", "in_proj_a", "in_proj_b")) else True,
        config=dict(model_type="qwen3_5", architectures=["Qwen3_5ForConditionalGeneration"], transformers_version="5.0.0",
                    text_config=dict(BASE, model_type="qwen3_5_text", hidden_size=64, intermediate_size=128,
                                     num_hidden_layers=4, full_attention_interval=2, num_attention_heads=4,
                                     num_key_value_heads=2, head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=True,
                                     attention_bias=False, attn_output_gate=True, linear_num_key_heads=2,
                                     linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=24,
                                     linear_conv_kernel_dim=4,
                                     rope_parameters=dict(type="default", rope_theta=10000000.0, partial_rotary_factor=0.25,
                                                          mrope_section=[2, 1, 1])))),
    "qwen3_5_moe": dict(
        module="qwen3_5_moe", dtype="bfloat16", quant=(4, 32), seed=1023, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 8} if p.endswith(("mlp.gate", "shared_expert_gate")) else True,
        config=dict(model_type="qwen3_5_moe", architectures=["Qwen3_5MoeForConditionalGeneration"],
                    transformers_version="5.0.0", text_config=dict(QWEN3_5_MOE))),
    # As published: one tensor for gate and up of all experts, taps in the last dimension, norms of weight - 1, and parts that a
    # text model leaves alone.
    "qwen3_5_moe-hf": dict(
        module="qwen3_5_moe", dtype="bfloat16", quant=None, seed=1022, files=bpe_files, norm_mean=1.0, override=None,
        published=True,
        config=dict(model_type="qwen3_5_moe", architectures=["Qwen3_5MoeForConditionalGeneration"],
                    transformers_version="5.0.0", tie_word_embeddings=False,
                    text_config=dict(QWEN3_5_MOE, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2,
                                     layer_types=["linear_attention", "full_attention"]))),
    "qwen3_next": dict(
        module="qwen3_next", dtype="bfloat16", quant=(4, 32), seed=1023, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 64, "bits": 8} if p.endswith(("mlp.gate", "shared_expert_gate")) else True,
        config=dict(BASE, model_type="qwen3_next", architectures=["Qwen3NextForCausalLM"], hidden_size=64,
                    intermediate_size=96, num_hidden_layers=3, full_attention_interval=3, num_attention_heads=4,
                    num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6, rope_theta=10000000.0, rope_scaling=None,
                    partial_rotary_factor=0.25, tie_word_embeddings=False, attention_bias=False, linear_num_key_heads=2,
                    linear_num_value_heads=4, linear_key_head_dim=20, linear_value_head_dim=32, linear_conv_kernel_dim=3,
                    num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=64,
                    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1])),
    # Latents. Groups of experts, yarn with both of its factors, biases; the embed_q of a head is 32 wide, the latent 48.
    "deepseek_v3": dict(
        module="deepseek_v3", dtype="bfloat16", quant=(4, 32), seed=1030, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 32, "bits": 8} if p.endswith(("embed_q", "embed_tokens"))
        else {"group_size": 16, "bits": 6} if p.endswith("unembed_out") else True,
        config=dict(BASE, **dict(LATENT, attention_bias=True, n_group=4, topk_group=2), model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], num_hidden_layers=3,
                    q_lora_rank=96, kv_lora_rank=48, rms_norm_eps=1e-6, rope_theta=10000.0,
                    rope_scaling=dict(type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=32, beta_slow=1,
                                      mscale=0.7, mscale_all_dim=1.0))),
    "glm4_moe_lite": dict(
        module="glm4_moe_lite", dtype="bfloat16", quant=(4, 32), seed=1031, files=bpe_files, norm_mean=1.0,
        override=lambda p: True,
        config=dict(BASE, **dict(LATENT, n_shared_experts=2), model_type="glm4_moe_lite", architectures=["Glm4MoeLiteForCausalLM"],
                    num_hidden_layers=2, q_lora_rank=None, kv_lora_rank=32, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
                    partial_rotary_factor=1.0, tie_word_embeddings=False)),
    # With indexers that choose 40 keys: half-split positions, and pairs.
    "deepseek_v32": dict(
        module="deepseek_v32", dtype="bfloat16", quant=(4, 32), seed=1035, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 32, "bits": 8} if "indexer" in p else True,
        config=dict(BASE, **LATENT, **INDEXER, model_type="deepseek_v32", architectures=["DeepseekV32ForCausalLM"],
                    num_hidden_layers=2, q_lora_rank=96, kv_lora_rank=32, rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None)),
    "glm_moe_dsa": dict(
        module="glm_moe_dsa", dtype="bfloat16", quant=(4, 32), seed=1227, files=bpe_files, norm_mean=1.0,
        override=lambda p: {"group_size": 32, "bits": 8} if "indexer" in p else True,
        config=dict(BASE, **LATENT, **INDEXER, model_type="glm_moe_dsa", architectures=["GlmMoeDsaForCausalLM"], num_hidden_layers=2,
                    q_lora_rank=96, kv_lora_rank=32, rms_norm_eps=1e-5, indexer_rope_interleave=True,
                    rope_parameters=dict(rope_type="default", rope_theta=1000000.0))),
}
FLOAT32 = (".A_log", ".e_score_correction_bias")     # as published
GEMMAS = ("gemma", "gemma2", "gemma3_text")


def draw_gemma4(name, shape, norm):
    """Scores are q.k of normed heads without a scale: the norms of q and k set how peaked attention is."""
    if name == "model.norm.weight":
        return 3.7 + 0.2 * norm(shape)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.65 + 0.1 * norm(shape)
    if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "router.scale")):
        return 1.0 + 0.2 * norm(shape)
    if name.endswith(("layer_scalar", "per_expert_scale")):
        return 0.8 + 0.2 * norm(shape)
    if name == "model.embed_tokens.weight":
        return 0.6 / shape[1] ** 0.5 * norm(shape)
    if name == "model.embed_tokens_per_layer.weight":
        return 0.2 * norm(shape)
    return (4.0 if name.endswith("router.proj.weight") else 1.6) / shape[-1] ** 0.5 * norm(shape)


def draw(name, shape, spec, key):
    """A random tensor for one parameter. Gains are relative to 1/sqrt(fan in)."""
    norm = lambda s: mx.random.normal(s, key=key)
    if spec["module"].startswith("gemma4"):
        return draw_gemma4(name.removeprefix("language_model."), shape, norm)
    if name == "model.norm.weight" and spec["module"] in GEMMAS:
        return 2.7 + 0.2 * norm(shape)    # 1 + w; makes up for the small embedding
    if name.endswith(".A_log"):         # from heads that forget within a token to heads that keep a thousand
        return mx.random.uniform(-5.0, 2.0, shape, key=key)
    if name.endswith(".dt_bias"):
        return -1.0 + norm(shape)
    if name.endswith(".conv1d.weight"):
        return 1.5 * norm(shape)      # q and k of mostly one sign: their product is seldom near 0
    if name.endswith("norm.weight"):
        return spec["norm_mean"] + 0.2 * norm(shape)
    if name.endswith(".bias"):
        return 0.5 * norm(shape)
    if name.endswith("model.embed_tokens.weight"):
        # Tied: the head too. std s gives logits of std s*sqrt(hidden). Gemma multiplies the input side by
        # sqrt(hidden): a small s, or each position would echo its own token.
        return (0.6 if spec["module"] in GEMMAS else 2.2) / shape[1] ** 0.5 * norm(shape)
    if name.endswith("lm_head.weight"):
        return 2.2 / shape[1] ** 0.5 * norm(shape)
    if name.endswith(".sinks"):
        return 1.0 + norm(shape)
    if spec["module"] == "gpt_oss" and name.endswith(("gate_proj.weight", "up_proj.weight")):
        return 3.0 / shape[-1] ** 0.5 * norm(shape)     # some above the clamp
    if name.endswith(".e_score_correction_bias"):
        return 0.15 * norm(shape)
    if spec["module"] in SIGMOID_ROUTERS and name.endswith(".gate.weight"):
        return 1.5 / shape[-1] ** 0.5 * norm(shape)     # of which the sigmoid does not saturate
    if name.endswith((".gate.weight", ".router.weight", ".shared_expert_gate.weight")):
        return 4.0 / shape[-1] ** 0.5 * norm(shape)     # routers that decide
    gain = 1.3 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.6
    return gain / shape[-1] ** 0.5 * norm(shape)


def as_published(params, dtype):
    """Names, shapes and norms of a Qwen3.5 checkpoint before mlx-lm has converted it, with parts that it drops."""
    out = {"mtp.fc.weight": mx.ones((4, 8), dtype), "mtp.layers.0.input_layernorm.weight": mx.zeros((64,), dtype),
           "model.visual.patch_embed.proj.weight": mx.ones((4, 3, 2, 2, 2), dtype)}
    plus_one = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight", "q_norm.weight",
                "k_norm.weight")
    for k, v in params:
        k = k.replace("language_model.model.", "model.language_model.").replace("language_model.lm_head", "lm_head")
        if k.endswith("conv1d.weight"):
            v = mx.contiguous(v.moveaxis(2, 1))
        if k.endswith(plus_one) or k == "model.language_model.norm.weight":
            v = v - 1.0
        out[k] = v
    for k in [k for k in out if k.endswith("switch_mlp.gate_proj.weight")]:
        stem = k.replace("switch_mlp.gate_proj.weight", "")
        out[stem + "experts.gate_up_proj"] = mx.concatenate([out.pop(k), out.pop(k.replace("gate_proj", "up_proj"))], axis=1)
        out[stem + "experts.down_proj"] = out.pop(k.replace("gate_proj", "down_proj"))
    return out


def build(name):
    spec = FAMILIES[name]
    out = TINY / name
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    config = dict(spec["config"])
    token_ids, eos = spec["files"](out)
    config.update(token_ids)
    config["torch_dtype"] = spec["dtype"]
    mod = importlib.import_module(f"mlx_lm.models.{spec['module']}")
    model = mod.Model(mod.ModelArgs.from_dict(config))
    params = tree_flatten(model.parameters())
    if config["model_type"] == "gemma3_text":
        model.sanitize({})        # no lm_head in the file: tied, as mlx-lm loads it
        params = tree_flatten(model.parameters())
    params = sorted(params, key=lambda kv: kv[0])
    keys = mx.random.split(mx.random.key(spec["seed"]), len(params))
    dtype = getattr(mx, spec["dtype"])
    model.update(tree_unflatten([(k, draw(k, v.shape, spec, keys[i]).astype(mx.float32 if k.endswith(FLOAT32) else dtype))
                                 for i, (k, v) in enumerate(params)]))
    mx.eval(model.parameters())
    if spec["quant"]:
        bits, group, mode = (*spec["quant"], "affine")[:3]
        model, config = quantize_model(model, config, group, bits, mode,
                                       quant_predicate=lambda p, m: spec["override"](p))
    if spec.get("published"):
        mx.save_safetensors(str(out / "model.safetensors"), as_published(tree_flatten(model.parameters()), dtype),
                            {"format": "pt"})
    else:
        save_model(out, model)
    save_config(config, out / "config.json")
    gen = {"bos_token_id": config["bos_token_id"], "eos_token_id": eos}
    (out / "generation_config.json").write_text(json.dumps(gen, indent=2) + "\n")
    size = sum(f.stat().st_size for f in out.iterdir())
    print(f"{name}: {size / 1000:.0f} kB")
    return size


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("families", nargs="*", default=list(FAMILIES))
    mx.set_default_device(mx.cpu)
    total = sum(build(n) for n in ap.parse_args().families)
    print(f"total {total / 1000:.0f} kB")
