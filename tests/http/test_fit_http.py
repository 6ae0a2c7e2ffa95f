"""GET /fit: what the served model takes, here and elsewhere, with the numbers of `mlx-bun fit` and of the ready card."""
import json
import math
import re
import shutil

import pytest

from http_rig import LLAMA, RAW, TINY, Server, run

def card(s):
    """All of the ready card: the constructor reads only to the address."""
    while "curl" not in s.card:
        s.card += s.process.stdout.readline()
    return s.card


MOE = TINY / "qwen3_moe"
TOP = ["machine", "context_tokens", "typical_context_tokens", "typical_decode_tps", "measured_decode_tps", "measured_at", "report",
       "sku_matrix_ctx", "sku_matrix"]
REPORT = ["fits", "weights_bytes", "kv_bytes", "transient_bytes", "total_bytes", "usable_bytes", "max_safe_context", "predicted_decode_tps"]


def flags(where):
    return ["--cache-dir", where, "--memory-budget", "1", "--threads", "1"]


@pytest.mark.parametrize("model", [LLAMA, MOE])
def test_fit_route_card_and_command_agree(tmp_path, model):
    """API-294 API-295 API-296 API-297 API-299 API-300 API-301 REG-123 REG-124 REG-125 REG-126 REG-128 ENG-260 ENG-262: exactly these
    fields; the route, the command line and the ready card have one plan and one prediction."""
    told = json.loads(run("fit", model, *flags(tmp_path), "--json", "--skus").stdout)
    with Server(*flags(tmp_path), model=model) as s:
        got = s.get("/fit").json()
        assert list(got) == TOP and list(got["report"]) == REPORT and list(got["machine"]) == ["chip", "ram_bytes", "bandwidth_gbs"]
        for key in TOP:
            assert got[key] == told[key], key
        admission = s.stats()["admission"]
        assert got["context_tokens"] == got["report"]["max_safe_context"] == admission["max_safe_context"]
        assert got["report"]["weights_bytes"] == admission["weights_bytes"]
        assert got["typical_context_tokens"] == min(8192, got["context_tokens"])
        assert got["sku_matrix_ctx"] == 32768 and len(got["sku_matrix"]) >= 8
        assert all(list(k) == ["sku", "ram_gb", "fits", "max_context", "decode_tps"] for k in got["sku_matrix"])
        assert f"about {got['typical_decode_tps']:.3g} tokens/s" in card(s)


def test_fit_measures_when_asked_and_keeps_what_was_served(tmp_path):
    """API-298 REG-127 ENG-261: nothing is known at the first start; a rate that requests reached alone is shown, kept at the end, and
    found by the next start and by the command line."""
    with Server(*flags(tmp_path)) as s:
        assert "tokens/s" not in card(s)
        got = s.get("/fit").json()
        assert got["report"]["predicted_decode_tps"] > 0 and got["measured_decode_tps"] is None and got["measured_at"] is None
        s.ok(RAW, {"prompt": "hello", "max_tokens": 100, "ignore_eos": True})
        s.wait_idle()
        now = s.get("/fit").json()
        assert now["measured_decode_tps"] > 0 and now["measured_at"] > 1.6e12
    told = json.loads(run("fit", LLAMA, *flags(tmp_path), "--json").stdout)
    assert told["measured_decode_tps"] == now["measured_decode_tps"]
    with Server(*flags(tmp_path)) as s:
        assert "measured" in card(s)
        assert s.get("/fit").json()["measured_decode_tps"] == now["measured_decode_tps"]


def test_fit_needs_the_key(tmp_path):
    with Server(*flags(tmp_path), "--api-key", "k") as s:
        assert s.get("/fit").status_code == 401
        assert s.get("/fit", headers={"authorization": "Bearer k"}).status_code == 200
        assert s.post("/fit", {}).status_code in (401, 405)


def heavy_model(where):
    """Weights of 300 MB (a hole: zeros), and little else: many thin layers, one small KV head, a small vocabulary."""
    c = json.loads((LLAMA / "config.json").read_text())
    c = {k: v for k, v in c.items() if not k.startswith("quantization")} | {
        "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 160, "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 16,
        "torch_dtype": "bfloat16"}
    shapes = {"model.embed_tokens": (512, 256), "model.norm": (256,)}
    for i in range(160):
        rows = {"self_attn.q_proj": (256, 256), "self_attn.k_proj": (16, 256), "self_attn.v_proj": (16, 256), "self_attn.o_proj": (256, 256),
                "mlp.gate_proj": (1024, 256), "mlp.up_proj": (1024, 256), "mlp.down_proj": (256, 1024), "input_layernorm": (256,),
                "post_attention_layernorm": (256,)}
        shapes |= {f"model.layers.{i}.{k}": v for k, v in rows.items()}
    tensors, at = {}, 0
    for name, shape in shapes.items():
        n = 2 * math.prod(shape)
        tensors[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    shutil.copytree(LLAMA, where, ignore=shutil.ignore_patterns("*.safetensors*"))
    (where / "config.json").write_text(json.dumps(c))
    header = json.dumps(tensors).encode()
    with open(where / "model.safetensors", "wb") as f:
        f.write(len(header).to_bytes(8, "little") + header)
        f.truncate(8 + len(header) + at)
    return where


def test_weights_near_the_ceiling(tmp_path):
    """ENG-134 REG-130: weights above 80 % of what may be used: one warning at the start with the command that allows more; that command
    is quiet."""
    model, small = heavy_model(tmp_path / "heavy"), ["--threads", "1", "--batch", "1", "--prefill-chunk", "16", "--cache-dir", tmp_path]
    fit = json.loads(run("fit", model, *small, "--ctx", "512", "--json", "--memory-budget", "10").stdout)["report"]
    budget = fit["weights_bytes"] / 0.82 / 1e9
    assert fit["total_bytes"] < budget * 1e9
    with Server(*small, "--memory-budget", budget, model=model) as s:
        warning = [line for line in s.stderr().splitlines() if "which leaves little for KV pages" in line]
        assert len(warning) == 1 and "82 % of the memory that may be used" in warning[0]
        command = re.search(rf"mlx-bun serve {re.escape(str(model))} --memory-budget (\S+)", warning[0])
    with Server(*small, "--memory-budget", command[1], model=model) as s:
        assert "KV pages" not in s.stderr()
