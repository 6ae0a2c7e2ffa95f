"""Logits of the tiny checkpoints: tests/golden/logits/.

For each family a 300-token prompt, its logits from mlx-lm with all float tensors in float32 (the exact-arithmetic
oracle), how far they are from a float64 forward, and 64 greedy tokens, each with the gap to the runner-up.
"""
import json
import sys
from pathlib import Path

import numpy as np

from common import GOLDEN, TINY, hf_logits, load_hf_f32, load_mlx_f32, log_softmax, mlx_logits, read_text, top_n, versions, write_json
from ref64 import LATENT, Ref64

N_PROMPT, N_GREEDY, N_FULL, TOP = 300, 64, 24, 5
FAMILIES = ["llama", "gemma3", "qwen2", "qwen3", "llama-bf16", "qwen3_moe", "mixtral", "ministral3", "gpt_oss", "llama-fp", "granite", "minicpm", "olmo2", "olmo3", "smollm3", "starcoder2", "phi3", "glm4", "gemma", "gemma2",
            "gemma4", "gemma4-kv", "gemma4-moe", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe-hf", "qwen3_next", "deepseek_v3", "glm4_moe_lite",
            "deepseek_v32", "glm_moe_dsa"]
TRANSFORMERS = ("starcoder2",)         # mlx-lm has GELU by erf and no window
NO_WINDOW = {"sliding_window": 4096}   # mlx-lm leaves out the windows of Gemma 2 and Phi-3: compared where none cuts


def prompt_ids(path):
    """300 tokens of English, code, German and Japanese; gemma3 begins with its bos."""
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(str(Path(path) / "tokenizer.json"))
    ids = []
    for name, n in (("en-1", 110), ("code-2", 80), ("de-2", 60), ("ja-2", 50)):
        ids += tok.encode(read_text(name)[:400], add_special_tokens=(not ids)).ids[:n]
    return ids[:N_PROMPT]


def full_positions(n):
    """24 positions: the first eight, around the window edges of gemma3, page edges, and the end."""
    return [0, 1, 2, 3, 7, 14, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 200, 255, 256, 257, n - 1]


def sums(lg64, n=2):
    """For each position n sums over the vocabulary, each logit with a sign at random (sign_of in tests/golden/test_logits.c)."""
    i = np.arange(lg64.shape[1], dtype=np.uint64)[:, None]
    h = ((i + 1) * 2654435761 + np.arange(n, dtype=np.uint64)[None] * 0x9E3779B9) & 0xFFFFFFFF
    h = ((h ^ (h >> np.uint64(15))) * np.uint64(0x85EBCA6B)) & 0xFFFFFFFF
    signs = np.where(h >> np.uint64(31), -1.0, 1.0)
    return [[round(float(v), 6) for v in row] for row in lg64.astype(np.float64) @ signs]


def add_sums():
    """The sums alone, into goldens that are there: the float64 forward needs no oracle."""
    for file in sorted((GOLDEN / "logits").glob("*.json")):
        out = json.loads(file.read_text())
        if "sums" in out:
            continue
        ref = Ref64(out["checkpoint"], out.get("config_overrides"))
        lg64 = ref.logits(out["prompt"])
        stored = np.fromfile(GOLDEN / "logits" / out["ref64_file"], "<f4").reshape(-1, out["n_vocab"])
        assert np.array_equal(lg64[out["logits_positions"]].astype("<f4"), stored), file.name
        out["sums"] = sums(lg64)
        write_json(file, out)
        print(file.name, flush=True)


def greedy(model, ref, ids):
    """64 tokens by argmax, each from a whole fresh pass; the gap is in logits. mlx-lm chooses; the float64 forward
    of the whole sequence then says whether it agrees. Without a model the float64 forward chooses."""
    seq, out = list(ids), []
    cache = None
    logits = hf_logits if ref.family in TRANSFORMERS else mlx_logits
    if model and ref.family.startswith(("qwen3_5", "qwen3_next", *LATENT)):
        from mlx_lm.models.cache import make_prompt_cache
        cache = make_prompt_cache(model)
    for _ in range(N_GREEDY):
        if cache:        # recurrent layers, latents: a whole pass for each token takes minutes
            lg = mlx_logits(model, seq if len(seq) == len(ids) else seq[-1:], cache)[-1]
        else:
            lg = logits(model, seq)[-1] if model else ref.logits(seq)[-1]
        a, b = top_n(lg, 2)
        out.append({"id": int(a), "logprob": round(float(log_softmax(lg)[a]), 6), "second": int(b),
                    "gap": round(float(lg[a] - lg[b]), 6)})
        seq.append(int(a))
    ref_lg = ref.logits(seq[:-1])[len(ids) - 1:]
    agree = [int(x) == o["id"] for x, o in zip(ref_lg.argmax(-1), out)]
    if "index_topk" not in ref.c:
        assert all(agree)
    for o, same in zip(out, agree):     # an indexer may choose otherwise where two keys are nearly alike: not to be compared
        o["gap"] = o["gap"] if same else 0.0
    assert sum(agree) > 48
    return out


def make(name, config_overrides=None, label=None, mlx=True):
    """mlx=False: types whose table depends on the prompt's length in mlx-lm; the float64 forward alone, by our rule
    (a table is a function of position)."""
    path, label = TINY / name, label or name
    ids = prompt_ids(path)
    assert len(ids) == N_PROMPT
    ref = Ref64(path, config_overrides)
    lg64 = ref.logits(ids)
    # An indexer's choice between two keys is a step: float32 must not be able to take the other (its scores are off by some 1e-6).
    assert getattr(ref, "index_margin", 1) > 1e-5, f"indexer margin {ref.index_margin:.1e}: draw {name} with another seed"
    hf = ref.family in TRANSFORMERS
    model = load_hf_f32(ref) if hf else load_mlx_f32(path, config_overrides)[0] if mlx else None
    lg = hf_logits(model, ids) if hf else mlx_logits(model, ids) if mlx else lg64
    lp, lp64 = log_softmax(lg), log_softmax(lg64)
    at = full_positions(len(ids)) if label == name else [0, 1, 33, 65, 100, 200, 257, 299]
    out_dir = GOLDEN / "logits"
    out_dir.mkdir(parents=True, exist_ok=True)
    lg64[at].astype("<f4").tofile(out_dir / f"{label}.ref64.f32")
    top, srt = top_n(lg, TOP), np.sort(lg64, -1)
    out = {"checkpoint": f"tests/golden/tiny/{name}"}
    if config_overrides:
        out["config_overrides"] = config_overrides
    out["oracle"] = versions("transformers", "torch", "numpy") if hf else versions("mlx", "mlx-lm", "numpy") if mlx else versions("numpy")
    out.update({"n_prompt": len(ids), "n_vocab": lg.shape[1], "logits_positions": at,
                "ref64_file": f"{label}.ref64.f32"})
    if mlx:
        lg[at].astype("<f4").tofile(out_dir / f"{label}.f32")
        out["logits_file"] = f"{label}.f32"
        out["oracle_error"] = {
            "max_abs_logit_f32_f64": float(f"{np.abs(lg - lg64).max():.3e}"),
            "max_kl_f64_f32": float(f"{(np.exp(lp64) * (lp64 - lp)).sum(-1).max():.3e}")}
    out.update({"spread_min": round(float((lg.max(-1) - lg.min(-1)).min()), 3),
                "gap_min": float(f"{(srt[:, -1] - srt[:, -2]).min():.3e}"), "prompt": [int(i) for i in ids],
                "top5": [[[int(t), round(float(lp[i, t]), 5)] for t in top[i]] for i in range(len(ids))],
                "sums": sums(lg64)})
    out["greedy"] = greedy(model, ref, ids)
    write_json(out_dir / f"{label}.json", out)
    print(label, "max|f32-f64|", f"{np.abs(lg - lg64).max():.2e}", "router margin", getattr(ref, "margin", None), "indexer margin",
          getattr(ref, "index_margin", None))


def main():
    if sys.argv[1:] == ["--sums"]:
        return add_sums()
    chosen = sys.argv[1:] or FAMILIES
    for name in chosen:
        make(name, NO_WINDOW if name == "gemma2" else None, name, mlx=name != "gemma")   # mlx-lm: GELU by erf
    if "gemma2" in chosen:
        make("gemma2", None, "gemma2-window", mlx=False)
    if "gpt_oss" in chosen:      # as published: the range of yarn is not rounded; mlx-lm rounds it all the same
        scaling = json.loads((TINY / "gpt_oss" / "config.json").read_text())["rope_scaling"]
        make("gpt_oss", {"rope_scaling": dict(scaling, truncate=False)}, "gpt_oss-truncate", mlx=False)
    if "glm_moe_dsa" in chosen:  # layers that share an indexer: not in mlx-lm
        make("glm_moe_dsa", {"index_topk_pattern": "FS"}, "glm_moe_dsa-shared", mlx=False)
    if "phi3" in chosen:
        make("phi3", {"sliding_window": 40}, "phi3-window", mlx=False)
    if sys.argv[1:]:
        return
    # Variants of rope over the llama weights: same file, config.json's rope_scaling replaced.
    yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
    make("llama", {"rope_scaling": yarn, "max_position_embeddings": 256}, "llama-yarn")
    make("llama", {"rope_scaling": dict(yarn, mscale=0.8, mscale_all_dim=0.4, beta_fast=16, beta_slow=2),
                   "max_position_embeddings": 256}, "llama-yarn-mscale")
    make("llama", {"rope_scaling": dict(rope_type="linear", factor=4.0)}, "llama-linear")
    make("llama", {"rope_scaling": dict(type="linear", factor=2.5)}, "llama-linear-type-key")
    make("llama", {"rope_scaling": None}, "llama-default")
    make("llama", {"rope_scaling": dict(rope_type="dynamic", factor=4.0), "max_position_embeddings": 128},
         "llama-dynamic", mlx=False)
    make("llama", {"rope_scaling": dict(
        rope_type="longrope", original_max_position_embeddings=128, short_factor=[1.0 + 0.05 * i for i in range(16)],
        long_factor=[1.0 + 0.25 * i * i for i in range(16)])}, "llama-longrope", mlx=False)


if __name__ == "__main__":
    main()
