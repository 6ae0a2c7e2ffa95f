"""Every family over HTTP: alone, in a batch whose prompts come in pieces of seven tokens, and from the prefix cache, the same ids and
log-probabilities. What there is to test is read from tests/golden/tiny, so that no family is forgotten."""
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import http_rig as rig
from http_rig import Server

NAMES = [p.name for p in sorted(rig.TINY.iterdir()) if (p / "config.json").exists()
         and json.loads((p / "config.json").read_text())["model_type"] != "diffusion_gemma"]     # its own: test_diffusion_http.py
if rig.SANITIZED:       # one of each kind of layer
    NAMES = ["gemma4", "gpt_oss", "qwen3_5_moe", "glm_moe_dsa"]
PROMPTS = ["a", "one two three " * 9, "the stone in the river " * 12, "x" * 90]
HOT = {"temperature": 0.8, "max_tokens": 10, "ignore_eos": True}


@pytest.mark.parametrize("name", NAMES)
def test_alone_batched_chunked_warm(name):
    """ENG-001 ENG-012 MOD-001 T4.02 T4.03"""
    with Server("--batch", 1, "--prompt-cache", 0, model=rig.TINY / name) as s:
        alone = [s.ids(p, seed=i, **HOT) for i, p in enumerate(PROMPTS)]
    with Server("--batch", 3, "--prefill-chunk", 7, model=rig.TINY / name) as s, ThreadPoolExecutor(len(PROMPTS)) as pool:
        for _ in range(2):      # cold, warm
            assert list(pool.map(lambda i: s.ids(PROMPTS[i], seed=i, **HOT), range(len(PROMPTS)))) == alone
        assert s.stats()["prompt_cache"]["hits"] >= len(PROMPTS) - 1
    assert len({str(a) for a in alone}) == len(PROMPTS)
