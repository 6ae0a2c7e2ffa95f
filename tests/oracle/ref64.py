"""A float64 forward pass in numpy for the checkpoints of tests/golden/tiny, in MLX form.

Independent of mlx: reads safetensors by itself, dequantises affine codes exactly, sums in float64. It says how far
mlx-lm's float32 sums are from the truth, and it is the plainest statement of what each family computes.

    python tests/oracle/ref64.py DIR         # compares with mlx-lm on the 300-token prompt
"""
import json
import sys
from pathlib import Path

import numpy as np


def read_safetensors(path):
    raw = Path(path).read_bytes()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        lo, hi = t["data_offsets"]
        b = raw[8 + n + lo:8 + n + hi]
        if t["dtype"] == "BF16":
            a = (np.frombuffer(b, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(b, {"F16": "<f2", "F32": "<f4", "U32": "<u4", "U8": "u1"}[t["dtype"]])
        out[name] = a.reshape(t["shape"])
    return out


def unpack_codes(words, bits):
    """[rows][n*bits/32] u32 -> [rows][n] codes. The stream is little-endian: code i has bits [i*bits, (i+1)*bits)."""
    rows = words.shape[0]
    flat = np.unpackbits(np.ascontiguousarray(words.astype("<u4")).view(np.uint8).reshape(rows, -1),
                         axis=1, bitorder="little")
    flat = flat.reshape(rows, -1, bits).astype(np.uint32)
    return (flat << np.arange(bits, dtype=np.uint32)).sum(-1)


def dequantise_affine(words, scales, biases, bits, group):
    q = unpack_codes(words, bits).astype(np.float64)
    s = np.repeat(scales.astype(np.float64), group, axis=1)
    b = np.repeat(biases.astype(np.float64), group, axis=1)
    return q * s + b


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(v):
    """Sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity."""
    v = v.astype(np.int64)
    e, m = (v >> 3) & 15, v & 7
    return np.where(v & 128, -1.0, 1.0) * np.where(e == 0, m * 2.0 ** -9, (8 + m) * 2.0 ** (e - 10.0))


def dequantise_fp(words, scales, mode, group):
    q = unpack_codes(words, 8 if mode == "mxfp8" else 4)
    s = e4m3(scales) if mode == "nvfp4" else 2.0 ** (scales.astype(np.float64) - 127)
    return (e4m3(q) if mode == "mxfp8" else FP4[q]) * np.repeat(s, group, axis=1)


def round_bf16(x):
    u = np.array([x], np.float32).view(np.uint32)
    return float(((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)[0])


def rope_divisors(dims, theta, scaling, max_pos, positions):
    """The divisors f[i], or f[position][i]: angle = position / f; and the factor on the rotated vector (yarn, longrope)."""
    f = theta ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    kind = (scaling or {}).get("rope_type") or (scaling or {}).get("type") or "default"
    if kind == "default":
        return f, 1.0
    s = scaling
    if kind == "linear":
        return f * s["factor"], 1.0
    if kind == "dynamic":    # a row for each position: the base for a sequence that ends there
        n = np.maximum(positions + 1, max_pos)[:, None]
        base = theta * (s["factor"] * n / max_pos - (s["factor"] - 1)) ** (dims / (dims - 2))
        return base ** (np.arange(0, dims, 2, dtype=np.float64) / dims), 1.0
    if kind == "longrope":   # fixed at load: long factors when the context is above the original
        old = s["original_max_position_embeddings"]
        ratio = max_pos / old
        m = s.get("attention_factor") or (1.0 if ratio <= 1 else np.sqrt(1 + np.log(ratio) / np.log(old)))
        return f * np.array(s["long_factor"] if ratio > 1 else s["short_factor"], np.float64), m
    if kind == "llama3":
        old, lo, hi = s["original_max_position_embeddings"], s["low_freq_factor"], s["high_freq_factor"]
        wave = 2 * np.pi * f
        smooth = (old / wave - lo) / (hi - lo)
        mid = f / ((1 - smooth) / s["factor"] + smooth)
        return np.where(wave > old / lo, f * s["factor"], np.where(wave > old / hi, mid, f)), 1.0
    if kind == "yarn":
        old = s["original_max_position_embeddings"]

        def dim_of(rotations):
            return dims * np.log(old / (rotations * 2 * np.pi)) / (2 * np.log(theta))

        down, up = (np.floor, np.ceil) if s.get("truncate", True) else (float, float)
        lo = max(down(dim_of(s.get("beta_fast", 32))), 0)
        hi = min(up(dim_of(s.get("beta_slow", 1))), dims - 1)
        keep = 1 - np.clip((np.arange(dims // 2) - lo) / (hi - lo if hi != lo else 0.001), 0, 1)
        inter = s["factor"] * f

        def mscale(m):
            return 1.0 if s["factor"] <= 1 else 0.1 * m * np.log(s["factor"]) + 1.0

        m = mscale(s.get("mscale", 1)) / mscale(s.get("mscale_all_dim", 0))
        return inter * f / (inter * keep + f * (1 - keep)), m
    raise ValueError(f"rope type {kind}")


GEMMA = ("gemma", "gemma2", "gemma3_text")
# Names of a layer's norms: before attention, after it, before the MLP, after it.
PRE_NORMS = ("input_layernorm", None, "post_attention_layernorm", None)
GEMMA_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
OLMO_NORMS = (None, "post_attention_layernorm", None, "post_feedforward_layernorm")
NORMS = {"gemma4_text": GEMMA_NORMS, "olmo2": OLMO_NORMS, "olmo3": OLMO_NORMS, "gemma2": GEMMA_NORMS, "gemma3_text": GEMMA_NORMS,
         "glm4": ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")}


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def capped(x, cap):
    return cap * np.tanh(x / cap) if cap else x


LATENT = ("deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa")


class Ref64:
    def __new__(cls, path, config_overrides=None):
        model_type = json.loads((Path(path) / "config.json").read_text())["model_type"]
        if cls is Ref64:
            cls = Gemma4 if model_type.startswith("gemma4") else Latent if model_type in LATENT else cls
        return object.__new__(cls)

    def __init__(self, path, config_overrides=None):
        path = Path(path)
        self.c = json.loads((path / "config.json").read_text())
        self.c.update(config_overrides or {})
        self.w = {}
        for f in sorted(path.glob("*.safetensors")):
            self.w.update(read_safetensors(f))
        if "text_config" in self.c and not self.c["model_type"].startswith("qwen3_5"):     # multimodal: the text model lies one level deeper
            self.c = dict(self.c["text_config"], vocab_size=self.c["vocab_size"], quantization=self.c["quantization"])
            cut = "language_model."
            self.w = {k.removeprefix(cut): v for k, v in self.w.items()}
            self.c["quantization"] = {k.removeprefix(cut): v for k, v in self.c["quantization"].items()}
        self.family = self.c["model_type"]
        if self.family.startswith(("qwen3_5", "qwen3_next")):
            self.read_hybrid()
        if self.family == "ministral3":
            self.c["rope_scaling"] = self.c["rope_parameters"]
            self.c["rope_theta"] = self.c["rope_parameters"]["rope_theta"]
        self.cache = {}

    def read_hybrid(self):
        """Qwen3.5, Qwen3-Next: the text model's config on top, names below "model.", a published layout as MLX has it."""
        self.c.update(self.c.get("text_config", {}))
        r = self.c.get("rope_parameters") or {}
        self.c.update({k: r[k] for k in ("rope_theta", "partial_rotary_factor") if k in r})

        def plain(k):
            return k.replace("model.language_model.", "model.").removeprefix("language_model.")

        self.w = {plain(k): v for k, v in self.w.items()}
        if "quantization" in self.c:
            self.c["quantization"] = {plain(k): v for k, v in self.c["quantization"].items()}
        published = any(k.endswith("conv1d.weight") and v.shape[-1] != 1 for k, v in self.w.items())
        for k in list(self.w):
            if published and k.endswith(("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")):
                self.w[k] = self.w[k].astype(np.float64) + 1
            if k.endswith("experts.gate_up_proj"):
                stem, w = k.replace("experts.gate_up_proj", "switch_mlp."), self.w[k]
                half = w.shape[1] // 2
                self.w[stem + "gate_proj.weight"], self.w[stem + "up_proj.weight"] = w[:, :half], w[:, half:]
                self.w[stem + "down_proj.weight"] = self.w[k.replace("gate_up_proj", "down_proj")]

    def delta_net(self, x, i):
        """One token after the other, the whole in float64."""
        c, p, n = self.c, f"model.layers.{i}.linear_attn.", len(x)
        nk, nv, dk, dv = (c[f"linear_{k}"] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        r = nv // nk
        if p + "in_proj_qkvz.weight" in self.w:
            y, ba = self.linear(x, p + "in_proj_qkvz").reshape(n, nk, -1), self.linear(x, p + "in_proj_ba").reshape(n, nk, -1)
            q, k, v, z = np.split(y, [dk, 2 * dk, 2 * dk + r * dv], -1)
            qkv = np.concatenate([t.reshape(n, -1) for t in (q, k, v)], -1)
            b, a = ba[..., :r].reshape(n, nv), ba[..., r:].reshape(n, nv)
        else:
            qkv, z, b, a = (self.linear(x, p + f"in_proj_{t}") for t in ("qkv", "z", "b", "a"))
        z = z.reshape(n, nv, dv)
        w = self.w[p + "conv1d.weight"].astype(np.float64).reshape(qkv.shape[1], -1)
        taps = w.shape[1]
        padded = np.concatenate([np.zeros((taps - 1, qkv.shape[1])), qkv])
        y = sum(padded[j:j + n] * w[:, j] for j in range(taps))
        y = y / (1 + np.exp(-y))
        q, k, v = np.split(y, [nk * dk, 2 * nk * dk], -1)
        q, k, v = q.reshape(n, nk, dk), k.reshape(n, nk, dk), v.reshape(n, nv, dv)
        q, k = (t / np.sqrt((t * t).sum(-1, keepdims=True) + 1e-6) for t in (q, k))
        q, k = np.repeat(q, r, 1) * dk ** -0.5, np.repeat(k, r, 1)
        decay = np.exp(self.w[p + "A_log"].astype(np.float64))
        g = np.exp(-decay * np.logaddexp(0, a + self.w[p + "dt_bias"].astype(np.float64)))
        beta = 1 / (1 + np.exp(-b))
        state, out = np.zeros((nv, dk, dv)), np.zeros((n, nv, dv))
        for t in range(n):
            state = state * g[t][:, None, None]
            d = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
            state = state + k[t][:, :, None] * d[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        out = out / np.sqrt((out * out).mean(-1, keepdims=True) + c["rms_norm_eps"])
        out = out * self.w[p + "norm.weight"].astype(np.float64) * (z / (1 + np.exp(-z)))
        return self.linear(out.reshape(n, -1), p + "out_proj")

    def weight(self, module):
        if module in self.cache:
            return self.cache[module]
        w = self.w[module + ".weight"]
        if module + ".scales" in self.w:
            spec = self.c["quantization"].get(module) or self.c["quantization"]
            parts = [w, self.w[module + ".scales"], self.w.get(module + ".biases")]
            rows = [a.reshape(-1, a.shape[-1]) for a in parts if a is not None]     # experts are stacked in a third dim
            if spec.get("mode", "affine") == "affine":
                y = dequantise_affine(*rows, spec["bits"], spec["group_size"])
            else:
                y = dequantise_fp(*rows, spec["mode"], spec["group_size"])
            w = y.reshape(*w.shape[:-1], -1)
        self.cache[module] = w = w.astype(np.float64)
        return w

    def linear(self, x, module):
        y = x @ self.weight(module).T
        b = self.w.get(module + ".bias")
        return y if b is None else y + b.astype(np.float64)

    def norm(self, x, module):
        w = self.w[module + ".weight"].astype(np.float64)
        if self.family in GEMMA:
            w = w + 1.0
        if self.family == "starcoder2":     # layer norm
            x = x - x.mean(-1, keepdims=True)
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["norm_epsilon"]) * w + self.w[module + ".bias"].astype(np.float64)
        return self.unit(x) * w

    def unit(self, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"])

    def attention(self, x, i, cos, sin, window):
        c, p = self.c, f"model.layers.{i}.self_attn."
        if p + "q_proj.weight" not in self.w and p + "qkv_proj.weight" not in self.w:
            return self.delta_net(x, i)
        n, d = x.shape[0], self.head_dim()
        n_head, n_kv = c["num_attention_heads"], c["num_key_value_heads"]
        if p + "qkv_proj.weight" in self.w:
            qkv = self.linear(x, p + "qkv_proj")
            q, k, v = np.split(qkv, [n_head * d, (n_head + n_kv) * d], -1)
        else:
            q, k, v = (self.linear(x, p + f"{t}_proj") for t in "qkv")
        gate = None
        if q.shape[-1] == 2 * n_head * d:      # of each head q, then a gate of the output
            q, gate = (t.reshape(n, -1) for t in np.split(q.reshape(n, n_head, 2 * d), 2, -1))
        whole = self.family in ("olmo2", "olmo3")
        if whole:
            q, k = self.norm(q, p + "q_norm"), self.norm(k, p + "k_norm")
        q, k, v = q.reshape(n, n_head, d), k.reshape(n, n_kv, d), v.reshape(n, n_kv, d)
        if p + "q_norm.weight" in self.w and not whole:
            q, k = self.norm(q, p + "q_norm"), self.norm(k, p + "k_norm")

        def rotate(t):   # halves: element j pairs with j + r/2, or with its neighbour; r dims of the head
            r = 2 * cos.shape[-1]
            pairs = (np.s_[..., 0:r:2], np.s_[..., 1:r:2]) if c.get("rope_traditional", self.family == "glm4") else \
                (np.s_[..., :r // 2], np.s_[..., r // 2:r])
            out = t.copy()
            a, b = t[pairs[0]], t[pairs[1]]
            out[pairs[0]], out[pairs[1]] = a * cos - b * sin, b * cos + a * sin
            return out

        if cos is not None:
            q, k = rotate(q), rotate(k)
        if self.family == "ministral3":      # queries grow with the whole original contexts before them
            r = c["rope_parameters"]
            q = q * (1 + r["llama_4_scaling_beta"] * np.log(1 + np.arange(n) // r["original_max_position_embeddings"]))[:, None, None]
        k, v = np.repeat(k, n_head // n_kv, 1), np.repeat(v, n_head // n_kv, 1)
        scale = c.get("query_pre_attn_scalar", d) ** -0.5 if self.family != "gemma" else d ** -0.5
        scale = c.get("attention_multiplier", scale)
        q, k, v = (t.swapaxes(0, 1) for t in (q, k, v))
        s = q @ k.swapaxes(1, 2) * scale
        if self.family == "gemma2":
            s = capped(s, c["attn_logit_softcapping"])
        at, key = np.arange(n)[:, None], np.arange(n)[None]
        see = key <= at
        if window:
            see &= at - key < window
        s = np.where(see, s, -np.inf)
        if p + "sinks" in self.w:      # one more logit of each head, whose value is 0
            sink = np.broadcast_to(self.w[p + "sinks"].astype(np.float64)[:, None, None], (n_head, n, 1))
            s = np.concatenate([s, sink], -1)
        s = np.exp(s - s.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        s = s[..., :n]
        y = (s @ v).swapaxes(0, 1).reshape(n, -1)
        return self.linear(y if gate is None else y / (1 + np.exp(-gate)), p + "o_proj")

    def experts(self, x, i):
        c, oss = self.c, self.family == "gpt_oss"
        mixtral = self.family in ("mixtral", "gpt_oss")     # softmax over the chosen
        p = f"model.layers.{i}." + ("block_sparse_moe." if self.family == "mixtral" else "mlp.")
        stack = p + ("experts." if oss else "switch_mlp.")
        g = self.linear(x, p + ("router" if oss else "gate"))
        if not mixtral:
            g = np.exp(g - g.max(-1, keepdims=True))
            g /= g.sum(-1, keepdims=True)
        chosen = np.argsort(-g, axis=-1, kind="stable")[:, :c["num_experts_per_tok"]]
        gaps = -np.diff(-np.sort(-(g if mixtral else np.log(g)), -1))      # of the router, in logits
        self.margin = min(getattr(self, "margin", np.inf), gaps[:, c["num_experts_per_tok"] - 1].min())
        w = np.take_along_axis(g, chosen, -1)
        if mixtral:
            w = np.exp(w - w.max(-1, keepdims=True))
        if mixtral or c["norm_topk_prob"]:
            w /= w.sum(-1, keepdims=True)
        gate, up, down = (self.weight(stack + f"{n}_proj") for n in ("gate", "up", "down"))
        zero = np.zeros((gate.shape[0], 1))
        b_gate, b_up, b_down = (self.w.get(stack + f"{n}_proj.bias", zero).astype(np.float64) for n in ("gate", "up", "down"))
        y = np.zeros_like(x)
        for row in range(len(x)):
            for e, we in zip(chosen[row], w[row]):
                a, b = gate[e] @ x[row] + b_gate[e], up[e] @ x[row] + b_up[e]
                if oss:
                    self.clamped = getattr(self, "clamped", 0) + (a > 7).sum() + (np.abs(b) > 7).sum()
                    a, b = np.minimum(a, 7), np.clip(b, -7, 7)
                    h = a / (1 + np.exp(-1.702 * a)) * (b + 1)
                else:
                    h = a / (1 + np.exp(-a)) * b
                y[row] += we * (down[e] @ h + b_down[e])
        if p + "shared_expert_gate.weight" in self.w:
            a, b = (self.linear(x, p + f"shared_expert.{t}_proj") for t in ("gate", "up"))
            shared = self.linear(a / (1 + np.exp(-a)) * b, p + "shared_expert.down_proj")
            y = y + shared / (1 + np.exp(-self.linear(x, p + "shared_expert_gate")))
        return y

    def mlp(self, x, i):
        p = f"model.layers.{i}.mlp."
        if p + "gate.weight" in self.w or self.family in ("mixtral", "gpt_oss"):
            return self.experts(x, i)
        if p + "c_fc.weight" in self.w:
            return self.linear(gelu(self.linear(x, p + "c_fc")), p + "c_proj")
        if p + "gate_up_proj.weight" in self.w:
            g, u = np.split(self.linear(x, p + "gate_up_proj"), 2, -1)
        else:
            g, u = self.linear(x, p + "gate_proj"), self.linear(x, p + "up_proj")
        if self.family in GEMMA:
            g = gelu(g)
        else:
            g = g / (1 + np.exp(-g))
        return self.linear(g * u, p + "down_proj")

    def head_dim(self):
        return self.c.get("head_dim") or self.c["hidden_size"] // self.c["num_attention_heads"]

    def angles(self, n, theta, scaling):
        at = np.arange(n)
        f, m = rope_divisors(int(self.head_dim() * self.c.get("partial_rotary_factor", 1)), theta, scaling, self.c["max_position_embeddings"], at)
        a = at[:, None] / f
        return m * np.cos(a)[:, None], m * np.sin(a)[:, None]

    def layers(self, n):
        """Of each layer: cosines, sines (None: no positions) and window (None: all)."""
        c = self.c
        scaling = dict(c["rope_scaling"]) if c.get("rope_scaling") else None
        if scaling and "original_max_position_embeddings" in c:
            scaling.setdefault("original_max_position_embeddings", c["original_max_position_embeddings"])
        full = self.angles(n, c["rope_theta"], scaling)
        for i in range(c["num_hidden_layers"]):
            if self.family == "gemma3_text" and (i + 1) % c["sliding_window_pattern"] != 0:
                yield *self.angles(n, c["rope_local_base_freq"], None), c["sliding_window"]
            elif self.family == "olmo3" and (i + 1) % 4 != 0:
                yield *self.angles(n, c["rope_theta"], None), c["sliding_window"]
            elif self.family == "gemma2":
                yield *full, c["sliding_window"] if i % 2 == 0 else None
            elif self.family == "smollm3" and (i + 1) % c["no_rope_layer_interval"] == 0:
                yield None, None, None
            elif self.family == "gpt_oss":
                yield *full, c["sliding_window"] if c["layer_types"][i] == "sliding_attention" else None
            else:
                yield *full, c.get("sliding_window") if self.family in ("phi3", "starcoder2") else None

    def logits(self, ids):
        c, n = self.c, len(ids)
        h = self.weight("model.embed_tokens")[ids]
        if self.family in GEMMA:        # rounded to bfloat16, as mlx-lm does in Gemma 3
            h = h * round_bf16(c["hidden_size"] ** 0.5)
        h = h * c.get("embedding_multiplier", c.get("scale_emb", 1.0))
        depth = c.get("residual_multiplier", c.get("scale_depth", c["num_hidden_layers"] ** 0.5) / c["num_hidden_layers"] ** 0.5)
        pre_attn, post_attn, pre_mlp, post_mlp = NORMS.get(self.family, PRE_NORMS)
        for i, (cos, sin, window) in enumerate(self.layers(n)):
            p = f"model.layers.{i}."
            r = self.attention(self.norm(h, p + pre_attn) if pre_attn else h, i, cos, sin, window) * depth
            h = h + (self.norm(r, p + post_attn) if post_attn else r)
            r = self.mlp(self.norm(h, p + pre_mlp) if pre_mlp else h, i) * depth
            h = h + (self.norm(r, p + post_mlp) if post_mlp else r)
        y = self.linear(self.norm(h, "model.norm"), "lm_head" if "lm_head.weight" in self.w else "model.embed_tokens")
        y = y / c.get("logits_scaling", c["hidden_size"] / c["dim_model_base"] if "dim_model_base" in c else 1.0)
        return capped(y, c["final_logit_softcapping"]) if self.family == "gemma2" else y


class Gemma4(Ref64):
    def rotate(self, x, full):
        """Pairs over the whole head; proportional: those of the first `turning` dims turn."""
        d = x.shape[-1]
        p = self.c["rope_parameters"]["full_attention" if full else "sliding_attention"]
        turning = int(d * p.get("partial_rotary_factor", 1)) if p["rope_type"] == "proportional" else d
        f = 1 / (p.get("factor", 1) * p["rope_theta"] ** (np.arange(0, d, 2, dtype=np.float64) / d))
        a = np.arange(len(x))[:, None, None] * np.where(np.arange(0, d, 2) < turning, f, 0)
        x0, x1 = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate([x0 * np.cos(a) - x1 * np.sin(a), x1 * np.cos(a) + x0 * np.sin(a)], -1)

    def attend(self, x, i, full, kv):
        c, p, n = self.c, f"model.layers.{i}.self_attn.", len(x)
        n_head, d = c["num_attention_heads"], c["global_head_dim"] if full else c["head_dim"]
        q = self.rotate(self.norm(self.linear(x, p + "q_proj").reshape(n, n_head, d), p + "q_norm"), full)
        if kv is None:
            k = self.linear(x, p + "k_proj").reshape(n, -1, d)
            v = k if c["attention_k_eq_v"] and full else self.linear(x, p + "v_proj").reshape(n, -1, d)
            kv = self.rotate(self.norm(k, p + "k_norm"), full), self.unit(v)
        k, v = (np.repeat(t, n_head // t.shape[1], 1).swapaxes(0, 1) for t in kv)
        s = q.swapaxes(0, 1) @ k.swapaxes(1, 2)
        at, key = np.arange(n)[:, None], np.arange(n)[None]
        see = (key <= at) & (full | (at - key < c["sliding_window"]))
        o = (softmax(np.where(see, s, -np.inf)) @ v).swapaxes(0, 1).reshape(n, -1)
        return self.linear(o, p + "o_proj"), kv

    def experts(self, x, i):
        p, k = f"model.layers.{i}.", self.c["top_k_experts"]
        r = self.unit(x) * self.w[p + "router.scale"].astype(np.float64) * self.c["hidden_size"] ** -0.5
        g = self.linear(r, p + "router.proj")
        chosen = np.argsort(-g, axis=-1, kind="stable")[:, :k]
        gaps = -np.diff(-np.sort(-g, -1))
        self.margin = min(getattr(self, "margin", np.inf), gaps[:, k - 1].min())
        w = softmax(np.take_along_axis(g, chosen, -1)) * self.w[p + "router.per_expert_scale"].astype(np.float64)[chosen]
        gate, up, down = (self.weight(p + f"experts.switch_glu.{n}_proj") for n in ("gate", "up", "down"))
        x = self.norm(x, p + "pre_feedforward_layernorm_2")
        y = np.zeros_like(x)
        for row in range(len(x)):
            for e, we in zip(chosen[row], w[row]):
                y[row] += we * (down[e] @ (gelu(gate[e] @ x[row]) * (up[e] @ x[row])))
        return self.norm(y, p + "post_feedforward_layernorm_2")

    def full_layers(self):
        c = self.c
        if c.get("layer_types"):
            return [t == "full_attention" for t in c["layer_types"]]
        return [(i + 1) % c["sliding_window_pattern"] == 0 for i in range(c["num_hidden_layers"])]

    def layer_inputs(self, ids, h):
        c, n = self.c, len(ids)
        d = c["hidden_size_per_layer_input"]
        table = self.weight("model.embed_tokens_per_layer")[ids] * d ** 0.5
        p = self.linear(h, "model.per_layer_model_projection") * c["hidden_size"] ** -0.5
        p = self.norm(p.reshape(n, -1, d), "model.per_layer_projection_norm")
        return (p + table.reshape(n, -1, d)) * 0.5 ** 0.5

    def logits(self, ids):
        c, sees_all = self.c, self.full_layers()
        h = self.weight("model.embed_tokens")[ids] * round_bf16(c["hidden_size"] ** 0.5)
        given = self.layer_inputs(ids, h) if c["hidden_size_per_layer_input"] else None
        last = {}
        for i, full in enumerate(sees_all):
            p = f"model.layers.{i}."
            shared = i >= len(sees_all) - c["num_kv_shared_layers"]
            r, kv = self.attend(self.norm(h, p + "input_layernorm"), i, full, last[full] if shared else None)
            if not shared:
                last[full] = kv
            h = h + self.norm(r, p + "post_attention_layernorm")
            x = self.norm(h, p + "pre_feedforward_layernorm")
            r = self.linear(gelu(self.linear(x, p + "mlp.gate_proj")) * self.linear(x, p + "mlp.up_proj"), p + "mlp.down_proj")
            if c.get("enable_moe_block"):
                r = self.norm(r, p + "post_feedforward_layernorm_1") + self.experts(h, i)
            h = h + self.norm(r, p + "post_feedforward_layernorm")
            if given is not None:
                r = gelu(self.linear(h, p + "per_layer_input_gate")) * given[:, i]
                h = h + self.norm(self.linear(r, p + "per_layer_projection"), p + "post_per_layer_input_norm")
            h = h * self.w[p + "layer_scalar"].astype(np.float64)
        return capped(self.linear(self.norm(h, "model.norm"), "model.embed_tokens"), c["final_logit_softcapping"])


class Latent(Ref64):
    """Attention over latents, with keys and values expanded for every head; names as MLX has them."""

    def unit(self, x, eps=None):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + (self.c["rms_norm_eps"] if eps is None else eps))

    def low_norm(self, x, module):
        return self.unit(x, 1e-6) * self.w[module + ".weight"].astype(np.float64)

    def rope_of(self):
        return self.c.get("rope_scaling") or self.c.get("rope_parameters") or {}

    def rotate(self, x, interleaved):
        """x: [n][heads][dims], of which the first qk_rope_head_dim turn."""
        c, r, s = self.c, self.c["qk_rope_head_dim"], self.rope_of()
        theta = s.get("rope_theta", c.get("rope_theta"))
        f, m = rope_divisors(r, theta, s, c["max_position_embeddings"], np.arange(len(x)))
        a = (np.arange(len(x))[:, None] / f)[:, None]
        at = (np.s_[..., 0:r:2], np.s_[..., 1:r:2]) if interleaved else (np.s_[..., :r // 2], np.s_[..., r // 2:r])
        out = x.copy()
        p, q = x[at[0]] * m, x[at[1]] * m
        out[at[0]], out[at[1]] = p * np.cos(a) - q * np.sin(a), q * np.cos(a) + p * np.sin(a)
        return out

    def choose(self, x, low, i, see):
        """The keys that each query sees: the best index_topk of those before it."""
        c, p, n = self.c, f"model.layers.{i}.self_attn.indexer.", len(x)
        turned = c.get("indexer_rope_interleave", self.family == "glm_moe_dsa")
        q = self.rotate(self.linear(low, p + "wq_b").reshape(n, c["index_n_heads"], -1), turned)
        k = x @ self.weight(p + "wk").T
        k = (k - k.mean(-1, keepdims=True)) / np.sqrt(k.var(-1, keepdims=True) + 1e-6)
        k = k * self.w[p + "k_norm.weight"].astype(np.float64) + self.w[p + "k_norm.bias"].astype(np.float64)
        k = self.rotate(k[:, None], turned)[:, 0]
        s = np.maximum(np.einsum("nhd,kd->nhk", q, k), 0)
        s = np.einsum("nhk,nh->nk", s, self.linear(x, p + "weights_proj"))
        s = np.where(see, s, -np.inf)
        out, top = see.copy(), c["index_topk"]
        for row in range(top, n):
            best = np.argsort(-s[row], kind="stable")
            out[row] = False
            out[row, best[:top]] = True
            gap = (s[row, best[top - 1]] - s[row, best[top]]) / np.abs(s[row, :row + 1]).max()
            self.index_margin = min(getattr(self, "index_margin", np.inf), gap)
        return out

    def shares(self, i):
        pattern = self.c.get("index_topk_pattern")
        return bool(pattern) and pattern[i] == "S"

    def attention(self, x, i, cos, sin, window):
        c, p, n = self.c, f"model.layers.{i}.self_attn.", len(x)
        heads, nope, rope, rank, dv = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank",
                                                      "v_head_dim"))
        low = None
        if c.get("q_lora_rank"):
            low = self.low_norm(self.linear(x, p + "q_a_proj"), p + "q_a_layernorm")
        q = (self.linear(x, p + "q_proj") if low is None else self.linear(low, p + "q_b_proj")).reshape(n, heads, nope + rope)
        kv = self.linear(x, p + "kv_a_proj_with_mqa")
        latent = self.low_norm(kv[:, :rank], p + "kv_a_layernorm")
        k_rope = self.rotate(kv[:, None, rank:], True)[:, 0]
        q_rope = self.rotate(np.ascontiguousarray(q[..., nope:]), True)
        k = np.einsum("kl,hln->hkn", latent, self.weight(p + "embed_q"))
        v = np.einsum("kl,hdl->hkd", latent, self.weight(p + "unembed_out"))
        scale = (nope + rope) ** -0.5
        s = self.rope_of()
        if s.get("mscale_all_dim") and s.get("factor", 1) > 1:
            scale *= (0.1 * s["mscale_all_dim"] * np.log(s["factor"]) + 1) ** 2
        score = (np.einsum("qhn,hkn->hqk", q[..., :nope], k) + np.einsum("qhr,kr->hqk", q_rope, k_rope)) * scale
        see = np.arange(n)[None] <= np.arange(n)[:, None]
        if "index_topk" in c and not self.shares(i):
            self.seen = self.choose(x, low, i, see)
        if "index_topk" in c:
            see = self.seen
        a = softmax(np.where(see, score, -np.inf))
        return self.linear(np.einsum("hqk,hkd->qhd", a, v).reshape(n, heads * dv), p + "o_proj")

    def experts(self, x, i):
        c, p = self.c, f"model.layers.{i}.mlp."
        k, groups = c["num_experts_per_tok"], c["n_group"]
        g = 1 / (1 + np.exp(-self.linear(x, p + "gate")))
        by = g + self.w[p + "gate.e_score_correction_bias"].astype(np.float64)
        gaps = [np.inf]
        if groups > 1:
            each = by.reshape(len(x), groups, -1)
            value = np.sort(each, -1)[..., -2:].sum(-1)
            rank = np.argsort(-value, -1, kind="stable")
            srt = -np.sort(-value, -1)
            gaps.append((srt[:, c["topk_group"] - 1] - srt[:, c["topk_group"]]).min())
            out = np.zeros_like(value, bool)
            np.put_along_axis(out, rank[:, c["topk_group"]:], True, -1)
            by = np.where(out[..., None], -np.inf, each).reshape(by.shape)
        chosen = np.argsort(-by, -1, kind="stable")[:, :k]
        srt = -np.sort(-by, -1)
        gaps.append((srt[:, k - 1] - srt[:, k]).min())
        self.margin = min([getattr(self, "margin", np.inf), *gaps])
        w = np.take_along_axis(g, chosen, -1)
        if c["norm_topk_prob"] and k > 1:
            w = w / w.sum(-1, keepdims=True)
        w = w * c["routed_scaling_factor"]
        gate, up, down = (self.weight(p + f"switch_mlp.{t}_proj") for t in ("gate", "up", "down"))
        y = np.zeros_like(x)
        for e in range(c["n_routed_experts"]):
            row, slot = np.nonzero(chosen == e)
            a = x[row] @ gate[e].T
            y[row] += w[row, slot][:, None] * ((a / (1 + np.exp(-a)) * (x[row] @ up[e].T)) @ down[e].T)
        if c.get("n_shared_experts"):
            a, b = (self.linear(x, p + f"shared_experts.{t}_proj") for t in ("gate", "up"))
            y = y + self.linear(a / (1 + np.exp(-a)) * b, p + "shared_experts.down_proj")
        return y

    def logits(self, ids):
        h = self.weight("model.embed_tokens")[ids]
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = h + self.attention(self.norm(h, p + "input_layernorm"), i, None, None, 0)
            h = h + self.mlp(self.norm(h, p + "post_attention_layernorm"), i)
        return self.linear(self.norm(h, "model.norm"), "lm_head")


if __name__ == "__main__":
    from common import load_mlx_f32, log_softmax, mlx_logits
    from make_logits import prompt_ids

    for d in sys.argv[1:]:
        ids = prompt_ids(d)
        ref, mlx = Ref64(d).logits(ids), mlx_logits(load_mlx_f32(d)[0], ids).astype(np.float64)
        lp, lq = log_softmax(ref), log_softmax(mlx)
        kl = (np.exp(lp) * (lp - lq)).sum(-1)
        spread = ref.max(-1) - ref.min(-1)
        top = np.sort(ref, -1)
        ent = -(np.exp(lp) * lp).sum(-1)
        print(f"{d}: max |diff| {np.abs(ref - mlx).max():.2e}  mean KL {kl.mean():.1e}  max KL {kl.max():.1e}  "
              f"spread min {spread.min():.2f} mean {spread.mean():.2f}  "
              f"gap min {(top[:, -1] - top[:, -2]).min():.1e} "
              f"entropy {ent.mean():.2f} argmax differ {(ref.argmax(-1) != mlx.argmax(-1)).sum()} "
              f"distinct argmax {len(set(ref.argmax(-1)))} echoes input {(ref.argmax(-1) == ids).mean():.2f}")
