"""The same checkpoint in MLX layout and in plain Hugging Face layout gives the same bits (MOD-003): experts stacked in one tensor or
stored one by one."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
import http_rig as rig  # noqa: E402

MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build" / "mlx-bun"))
# What each family calls the stack, one expert, and its three matrices there.
LAYOUTS = {"qwen3_moe": ("mlp.switch_mlp", "mlp.experts.{}", "gate_proj", "up_proj", "down_proj"),
           "mixtral": ("block_sparse_moe.switch_mlp", "block_sparse_moe.experts.{}", "w1", "w3", "w2")}


def scores(model, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps([(7 * i * i + 3) % 500 for i in range(70)]))
    done = subprocess.run([MLX_BUN, "perplexity", str(model), "--ids", str(ids), "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def unstack(family):
    stack, one, *names = LAYOUTS[family]

    def change(tensors):
        for name in [n for n in tensors if stack in n]:
            dtype, (n_expert, *shape), data = tensors.pop(name)
            which = re.search(r"\.(gate|up|down)_proj\.", name).group(1)
            new = names[("gate", "up", "down").index(which)]
            size = len(data) // n_expert
            for e in range(n_expert):
                path = name.replace(stack, one.format(e)).replace(f"{which}_proj", new)
                tensors[path] = [dtype, shape, data[e * size:(e + 1) * size]]
    return change


@pytest.mark.parametrize("family", LAYOUTS)
def test_experts_stacked_or_listed(family, tmp_path):
    listed = rig.copy_model(tmp_path, family, tensors=unstack(family))
    want, got = scores(rig.TINY / family, tmp_path), scores(listed, tmp_path)
    drop = lambda v: {k: x for k, x in v.items() if k != "model"}  # noqa: E731
    assert drop(want) == drop(got)


def test_a_missing_expert_is_named(tmp_path):
    def change(tensors):
        unstack("qwen3_moe")(tensors)
        del tensors["model.layers.2.mlp.experts.5.up_proj.weight"]
    model = rig.copy_model(tmp_path, "qwen3_moe", tensors=change)
    done = subprocess.run([MLX_BUN, "generate", str(model), "--prompt", "x", "--max-tokens", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "model.layers.2.mlp.experts.5.up_proj.weight" in done.stderr
