"""Tiny DiffusionGemma checkpoints under tests/golden/tiny/ and goldens under tests/golden/diffusion/, from transformers' own
class in float32.

Logits and entropies are those of the same classes in float64. `diffusion_gemma` is as transformers saves it, without the vision tower; `diffusion_gemma-4bit` as mlx-vlm converts it (experts and
self-conditioning 4 bit, the rest 8 bit), whose oracle runs over the dequantised weights. The oracle's code draws with torch's own
random numbers; here its two draws are replaced by the Philox noise of docs/numerics.md section 5 and nothing else is touched, so
that the ids of whole generations can be compared. Temperature 0 takes the best id instead of drawing; the canvas is noise still.
"""
import json
import shutil

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma import generation_diffusion_gemma as dg

from common import GOLDEN, TINY, read_text, versions, write_json
from make_tiny import spm_files

OUT = GOLDEN / "diffusion"
CANVAS, VOCAB, N_PROMPT = 32, 512, 75
TEXT = dict(
    model_type="diffusion_gemma_text", hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, num_global_key_value_heads=1, head_dim=32, global_head_dim=64, rms_norm_eps=1e-6, sliding_window=16,
    final_logit_softcapping=15.0, vocab_size=VOCAB, max_position_embeddings=4096, num_experts=8, top_k_experts=3,
    moe_intermediate_size=32, layer_types=["sliding_attention", "full_attention"] * 2, tie_word_embeddings=True,
    use_bidirectional_attention="vision")
VISION = dict(model_type="gemma4_vision", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
              num_key_value_heads=1, head_dim=16)

# Sampler settings: the first takes its time, the second is content early, the third is the family's own but for its 48 rounds.
SCHEDULES = {
    "patient": dict(max_denoising_steps=6, t_min=0.2, t_max=0.9, entropy_bound=2.0, stability_threshold=1, confidence_threshold=0.005),
    "content": dict(max_denoising_steps=12, t_min=0.05, t_max=0.4, entropy_bound=8.0, stability_threshold=2, confidence_threshold=0.9),
    "own": dict(max_denoising_steps=12, t_min=0.4, t_max=0.8, entropy_bound=0.1, stability_threshold=1, confidence_threshold=0.005),
}


# --- noise ---

def philox(ctr, key):
    """Philox4x32-10 over arrays: ctr [..., 4] and key [2] of uint32."""
    c = [ctr[..., i].astype(np.uint64) for i in range(4)]
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k0, p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k1, p0 & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack(c, -1)


class Noise:
    """What replaces torch's draws in one call of generate."""

    def __init__(self, seed, first, greedy, n_rounds):
        self.key = (seed & 0xFFFFFFFF, seed >> 32)
        self.first, self.greedy, self.n_rounds = first, greedy, n_rounds
        self.block, self.round, self.rounds = -1, 0, []

    def index(self):
        return self.first + self.block * CANVAS + np.arange(CANVAS)

    def canvas(self):
        ctr = np.zeros((CANVAS, 4), np.uint64)
        ctr[:, 1], ctr[:, 2], ctr[:, 3] = self.index(), 3 << 24, self.round
        ids = (philox(ctr, self.key)[:, 0] * np.uint64(VOCAB)) >> np.uint64(32)
        return torch.tensor(ids.astype(np.int64))[None]

    def new_block(self):
        self.block, self.round = self.block + 1, 0
        self.rounds.append(0)
        return self.canvas()

    def draw(self, probs, num_samples):
        self.round += 1
        self.rounds[-1] = self.round
        if self.greedy:
            return probs.argmax(-1, keepdim=True)
        v = np.arange(VOCAB, dtype=np.uint64)
        ctr = np.zeros((CANVAS, VOCAB, 4), np.uint64)
        ctr[..., 0], ctr[..., 1], ctr[..., 3] = v // np.uint64(4), self.index()[:, None], self.round
        w = np.take_along_axis(philox(ctr, self.key), (v % np.uint64(4)).astype(np.int64)[None, :, None].repeat(CANVAS, 0), -1)[..., 0]
        u = ((w >> np.uint64(9)).astype(np.float64) + 0.5) * 2.0 ** -23
        return (probs.double().log() + torch.tensor(-np.log(-np.log(u)))).argmax(-1, keepdim=True)


def generate(model, ids, n_new, seed, greedy, schedule, eos):
    s = dict(schedule)
    config = dg.DiffusionGemmaGenerationConfig(
        max_new_tokens=n_new, sampler_config=dg.EntropyBoundSamplerConfig(entropy_bound=s.pop("entropy_bound")),
        eos_token_id=eos, pad_token_id=0, **s)
    noise = Noise(seed, len(ids), greedy, schedule["max_denoising_steps"])

    class Sampler(dg.EntropyBoundSampler):
        def initialize_canvas(self, batch_size, device):
            return noise.new_block()

        def renoise_canvas(self, accepted_canvas, cur_step):
            return torch.where(self.accepted_token_mask, accepted_canvas, noise.canvas())

    model._prepare_sampler = lambda c: Sampler(c.sampler_config, CANVAS, VOCAB, c.max_denoising_steps)
    own = torch.multinomial
    torch.multinomial = noise.draw
    try:
        out = model.generate(torch.tensor([ids]), generation_config=config)
    finally:
        torch.multinomial = own
    return out.sequences[0, len(ids):].tolist(), noise.rounds


# --- checkpoints ---

def draw(name, shape, rng):
    """As make_tiny.draw_gemma4: peaked attention, logits that spread; but layers that add little and a weak signal, so that a
    canvas can come to rest and a rounding error does not grow from round to round."""
    n = rng.standard_normal(shape)
    if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
        return 0.5 + 0.05 * n
    if name.endswith("self_conditioning.down_proj.weight"):
        return 0.1 / shape[-1] ** 0.5 * n
    if name.endswith("decoder.norm.weight"):
        return 3.7 + 0.2 * n
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.65 + 0.1 * n
    if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "router.scale")):
        return 1.0 + 0.2 * n
    if name.endswith(("layer_scalar", "per_expert_scale")):
        return 0.8 + 0.2 * n
    if name.endswith("embed_tokens.weight"):
        return 0.6 / shape[1] ** 0.5 * n
    return (4.0 if name.endswith("router.proj.weight") else 1.6) / shape[-1] ** 0.5 * n


def is_text(name):
    return "vision" not in name and (not name.startswith("model.encoder.") or name.endswith("layer_scalar"))


def quantise(name, w):
    """What the MLX layout holds of a matrix, and the float32 values that it stands for; None: kept as it is."""
    stem = name.removesuffix(".weight")
    if w.ndim < 2:
        return None
    four = ".experts." in name or "self_conditioning" in name
    group, bits = (32, 4) if four else (64, 8)
    q = mx.quantize(mx.array(w).astype(mx.bfloat16), group, bits)
    entry = None if four else {"group_size": group, "bits": bits}
    return stem, dict(zip(("weight", "scales", "biases"), q)), mx.dequantize(
        *[q[0]] + [a.astype(mx.float32) for a in q[1:]], group_size=group, bits=bits), entry


def build(name, quantised, n_layer, seed):
    out = TINY / name
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    token_ids, eos = spm_files(out)
    config = DiffusionGemmaConfig(text_config=dict(TEXT, num_hidden_layers=n_layer, layer_types=TEXT["layer_types"][:n_layer], pad_token_id=0, bos_token_id=2, eos_token_id=eos), vision_config=VISION,
                                  canvas_length=CANVAS)
    model = DiffusionGemmaForBlockDiffusion(config).float().eval()
    rng = np.random.default_rng(seed)
    state, stored, entries = model.state_dict(), {}, {}
    for key in sorted(k for k in state if is_text(k) and k != "lm_head.weight"):
        w = torch.tensor(draw(key, tuple(state[key].shape), rng)).to(torch.bfloat16)
        q = quantise(key, w.float().numpy()) if quantised else None
        if q:
            stem, parts, plain, entry = q
            stored.update({f"{stem}.{k}": v for k, v in parts.items()})
            if entry:
                entries[stem] = entry
            state[key].copy_(torch.tensor(np.array(plain)))
        else:
            stored[key] = w if not quantised else mx.array(w.float().numpy()).astype(mx.bfloat16)
            state[key].copy_(w.float())
    d = json.loads(config.to_json_string())
    if quantised:                       # as mlx-vlm writes it: keys of the published config, and what is packed how
        text = d["text_config"]
        text.pop("per_layer_config")
        text.update(global_head_dim=64, num_global_key_value_heads=1)
        d["quantization"] = d["quantization_config"] = dict(group_size=32, bits=4, mode="affine", **entries)
        mx.save_safetensors(str(out / "model.safetensors"), stored, {"format": "mlx"})
    else:
        save_file(stored, out / "model.safetensors", {"format": "pt"})
        (out / "model.safetensors").chmod(0o644)
    d.pop("transformers_version", None)
    (out / "config.json").write_text(json.dumps(d, indent=2, sort_keys=True) + "\n")
    own = dict(SCHEDULES["own"], max_denoising_steps=48, eos_token_id=eos, bos_token_id=2, pad_token_id=0)
    own["sampler_config"] = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": own.pop("entropy_bound")}
    (out / "generation_config.json").write_text(json.dumps(own, indent=2, sort_keys=True) + "\n")
    return model, eos


# --- goldens ---

class Float64:
    """Within: the modelling code's float32 is float64."""

    class Torch:
        float = float32 = torch.float64

        def __getattr__(self, name):
            return getattr(torch, name)

    def __enter__(self):
        from transformers import modeling_rope_utils
        from transformers.models.diffusion_gemma import modeling_diffusion_gemma
        self.modules, self.own = (modeling_rope_utils, modeling_diffusion_gemma), torch.Tensor.float
        for m in self.modules:
            m.torch = self.Torch()
        torch.Tensor.float = torch.Tensor.double

    def __exit__(self, *_):
        for m in self.modules:
            m.torch = torch
        torch.Tensor.float = self.own


def as_float64(model):
    with Float64():
        out = DiffusionGemmaForBlockDiffusion(model.config).double().eval()
    out.set_experts_implementation("eager")     # the grouped one has no float64
    out.load_state_dict(model.state_dict())
    return out


@torch.no_grad()
def passes(model, ids, temperature):
    """Three rounds over a canvas: without a signal, with that of the first round, and of the second. Logits, entropies, and the
    expected embeddings that the next round sees."""
    from transformers.cache_utils import DynamicCache
    cache = DynamicCache(config=model.config.text_config)
    model.model.encoder(input_ids=torch.tensor([ids]), cache=cache, attention_mask=model.model.encoder.create_masks_for_generate(
        config=model.config, inputs_embeds=torch.empty(1, len(ids), 0), attention_mask=None, cache=cache,
        position_ids=torch.arange(len(ids))[None]))
    canvas = torch.tensor([[(i * 37 + 11) % VOCAB for i in range(CANVAS)]])
    signal, logits, entropy, expect = None, [], [], []
    embed = model.model.decoder.embed_tokens
    for _ in range(3):
        x = model(decoder_input_ids=canvas, cache=cache, self_conditioning_logits=signal).logits
        signal = x / temperature
        logits.append(x[0].numpy())
        entropy.append(torch.distributions.Categorical(logits=signal).entropy()[0].numpy())
        expect.append((torch.softmax(signal[0], -1) @ embed.weight * embed.embed_scale).numpy())
    return canvas[0].tolist(), *(np.stack(a).astype(np.float32) for a in (logits, entropy, expect))


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mx.set_default_device(mx.cpu)
    from tokenizers import Tokenizer
    OUT.mkdir(parents=True, exist_ok=True)
    for name, quantised, n_layer, seed in (("diffusion_gemma", False, 2, 1051), ("diffusion_gemma-4bit", True, 4, 1052)):
        model, eos = build(name, quantised, n_layer, seed)
        tok = Tokenizer.from_file(str(TINY / name / "tokenizer.json"))
        ids = [2] + tok.encode(read_text("en-1"), add_special_tokens=False).ids[:N_PROMPT - 1]
        f32 = passes(model, ids, 0.6)[1]
        exact = as_float64(model)
        with Float64():
            canvas, logits, entropy, expect = passes(exact, ids, 0.6)
        error = np.abs(f32 - logits).max()
        np.concatenate([logits.ravel(), expect.ravel()]).tofile(OUT / f"{name}.f32")
        runs = []
        for label, s in SCHEDULES.items():
            for greedy in (True, False):
                if label == "own" and greedy:
                    continue
                n_new = CANVAS if label == "own" else 3 * CANVAS
                got, rounds = generate(model, ids, n_new, 7 + len(runs), greedy, s, None)
                runs.append({"schedule": label, "seed": 7 + len(runs), "greedy": greedy, "eos": -1, "n_new": n_new,
                             "rounds": rounds, "ids": got})
        first = next(r for r in runs if r["schedule"] == "patient" and r["greedy"])
        end = first["ids"][CANVAS + 9]   # an id of the second block, seen as the end
        got, rounds = generate(model, ids, 3 * CANVAS, first["seed"], True, SCHEDULES["patient"], [end])
        runs.append({"schedule": "patient", "seed": first["seed"], "greedy": True, "eos": end, "n_new": 3 * CANVAS,
                     "rounds": rounds, "ids": got})
        write_json(OUT / f"{name}.json", {
            "checkpoint": f"tests/golden/tiny/{name}", "oracle": versions("transformers", "torch", "mlx", "numpy"), "n_vocab": VOCAB,
            "prompt": ids, "canvas": canvas, "temperature": 0.6, "d_model": TEXT["hidden_size"], "values_file": f"{name}.f32",
            "entropy": [[round(float(v), 6) for v in row] for row in entropy], "schedules": SCHEDULES, "runs": runs})
        print(name, "max logit", np.abs(logits).max(), "float32 is off by", error, "entropy", entropy.mean(-1), [(r["schedule"], r["greedy"], r["rounds"]) for r in runs])
        print(" ", [len(set(r["ids"])) for r in runs], [r["ids"].count(first["ids"][0]) for r in runs])


if __name__ == "__main__":
    main()
