"""--expert-offload through the server: the same answers as with the experts in memory, memory for those in use only, its counters, and
a disk that fails under a running server or at its start."""
import json
import math
import os
import re

import pytest

import http_rig as rig
from http_rig import RAW, TINY, Server

MOE = TINY / "qwen3_moe"
PROMPTS = ["hello", "the quick brown fox jumps over", "a b c d e f g h i j k l m n o p"]


def answers(s):
    return [s.ids(p, max_tokens=12, temperature=0) for p in PROMPTS]


def offloaded(cache, *flags, model=MOE, **kw):
    return Server("--expert-offload", "--cache-dir", cache, *flags, model=model, **kw)


def the_file(cache):
    (file,) = (cache / "packed").glob("*.experts")
    return file


def metric(s, name):
    return float(re.search(rf"(?m)^mlx_bun_{name} (\S+)$", s.get("/metrics").text)[1])


def test_same_answers_and_counters(tmp_path):
    """CFG-120 CFG-143 ENG-227 T10.18 T2.13: the first start makes the file, a later one finds it, also by the variable; /stats and
    /metrics count."""
    with Server(model=MOE) as s:
        want = answers(s)
        assert s.stats()["expert_offload"] is None
    with offloaded(tmp_path, "--expert-cache", "0.00001") as s:
        assert answers(s) == want
        x = s.wait_idle()["expert_offload"]
        assert x["slots"] == 1 and x["misses"] > 0 and x["errors"] == 0 and x["read_bytes"] >= x["cache_bytes"] > 0
        assert x["hit_rate"] == pytest.approx(x["hits"] / (x["hits"] + x["misses"]))
        assert metric(s, "expert_misses_total") == x["misses"] and metric(s, "expert_cache_bytes") == x["cache_bytes"]
    made = the_file(tmp_path).stat()
    assert x["file_bytes"] == made.st_size
    with Server("--tier", "l2", model=MOE, env={"MLX_BUN_EXPERT_OFFLOAD": str(tmp_path / "packed")}) as s:
        answers(s)
        x = s.stats()["expert_offload"]
        assert x["hits"] > x["misses"] > 0 and s.stats()["admission"]["weights_bytes"] > x["cache_bytes"] > 0
    assert the_file(tmp_path).stat().st_ino == made.st_ino
    with offloaded(tmp_path, "--packed-cache") as first, offloaded(tmp_path, "--packed-cache") as second:
        assert answers(first) == answers(second) == want
    assert len(list((tmp_path / "packed").iterdir())) == 2


def test_ignored_without_experts(tmp_path):
    """CFG-120 T12.14: a model without experts loads as ever, one line says so, nothing is made."""
    with Server() as s:
        want = answers(s)
    with offloaded(tmp_path, model=rig.LLAMA) as s:
        assert answers(s) == want and "--expert-offload: ignored" in s.stderr() and s.stats()["expert_offload"] is None
    assert not list(tmp_path.rglob("*.experts"))


def test_a_file_cut_short_fails_requests_and_no_more(tmp_path):
    """ENG-227: the disk gives less than was written: 500 with the file and the expert, the process lives on, and with the file whole again
    the answers are what they were."""
    with offloaded(tmp_path, "--expert-cache", "0.00001") as s:
        want = answers(s)
        file = the_file(tmp_path)
        whole = file.read_bytes()
        os.truncate(file, 4096)
        for _ in range(2):
            r = s.post(RAW, {"prompt": PROMPTS[1], "max_tokens": 4})
            assert r.status_code == 500 and "ends inside" in r.text and file.name in r.text and "expert" in r.json()["error"]["message"]
        with open(file, "r+b") as f:
            f.write(whole)
        assert answers(s) == want and s.stats()["expert_offload"]["errors"] >= 2 and s.stats()["engine"]["alive"]


# --- fault points ---

faults = pytest.mark.skipif(not rig.has_fault_points(), reason="a build without fault points")


@faults
def test_read_error(tmp_path):
    """ENG-227: EIO from the disk fails the request with its text; the next one is read again."""
    with offloaded(tmp_path, "--expert-cache", "0.00001") as s:
        want = answers(s)
    with offloaded(tmp_path, "--expert-cache", "0.00001", env={"MLX_BUN_TEST_FAULT": "expert_read=30"}) as s:
        r = s.post(RAW, {"prompt": PROMPTS[2], "max_tokens": 40})
        assert r.status_code == 500 and "Input/output error" in r.text and "expert" in r.json()["error"]["message"]
        assert answers(s) == want and s.stats()["expert_offload"]["errors"] == 1


@faults
def test_disk_full_at_the_start(tmp_path):
    """ENG-227: no room for the file: the start fails and says what to do, no part of the file stays; with room it is made."""
    for n in ("1", "5", "12"):
        env = {"MLX_BUN_TEST_FAULT": f"disk_full={n}"}
        p = rig.run("generate", MOE, "--prompt", "hello", "--max-tokens", "2", "--expert-offload", "--cache-dir", tmp_path, **env)
        assert p.returncode != 0 and "no room for the experts' file" in p.stderr, (n, p.stderr)
        assert not list((tmp_path / "packed").iterdir())
    p = rig.run("generate", MOE, "--prompt", "hello", "--max-tokens", "2", "--expert-offload", "--cache-dir", tmp_path)
    assert p.returncode == 0 and the_file(tmp_path)


# --- memory ---

def widened(where, n_expert=128, width=2048):
    """qwen3_moe with so many experts, so wide: 2 layers of them, some 60 MB, the rest as it was."""
    draw = rig.random.Random(1)

    def widen(tensors):
        for name, (dtype, old, data) in tensors.items():
            shape = list(old)
            if ".switch_mlp." in name:
                axis = 2 if "down_proj" in name else 1
                shape[0], shape[axis] = n_expert, old[axis] * width // 64
            elif ".mlp.gate." in name:
                shape[0] = n_expert
            times = math.prod(shape) // math.prod(old)
            if times > 1:
                tensors[name] = [dtype, shape, draw.randbytes(len(data) * times) if dtype == "U32" else data * times]

    return rig.copy_model(where, "qwen3_moe", config={"num_experts": n_expert, "moe_intermediate_size": width}, tensors=widen)


# Of each kind of mixture: what stands before the stacks, the router; keys of number and width, and the width now.
KINDS = {"gpt_oss": (".mlp.experts.", ".mlp.router.", "num_local_experts", "intermediate_size", 64),
         "qwen3_5_moe": (".switch_mlp.", ".mlp.gate.", "num_experts", "moe_intermediate_size", 32),
         "gemma4-moe": (".switch_glu.", ".router.p", "num_experts", "moe_intermediate_size", 32),
         "deepseek_v3": (".switch_mlp.", ".mlp.gate.", "n_routed_experts", "moe_intermediate_size", 32)}


def enlarged(where, family, n_expert=128, width=2560):
    """The checkpoint with so many experts, so wide, some 100 MB; where the expert for all is as wide as one of them, that too."""
    stack, router, key_n, key_width, old_width = KINDS[family]
    draw, times = rig.random.Random(1), width // old_width

    def enlarge(tensors):
        for name, (dtype, old, data) in tensors.items():
            shape = list(old)
            wide, narrow = ".shared_experts." in name, "down_proj" in name
            if stack in name or router in name:
                shape[0] = n_expert
            if stack in name and not (narrow and len(old) == 2):
                shape[2 if narrow else 1] *= times
            if wide:
                shape[1 if narrow else 0] *= times
            more = math.prod(shape) // math.prod(old)
            if more > 1:
                tensors[name] = [dtype, shape, draw.randbytes(len(data) * more) if dtype == "U32" else data * more]

    config = json.loads((TINY / family / "config.json").read_text())
    (config.get("text_config") or config).update({key_n: n_expert, key_width: width})
    return rig.copy_model(where, family, config=config, tensors=enlarge)


def anonymous_bytes(s):
    return rig.anonymous_bytes(s.process.pid)


@pytest.mark.skipif(rig.SANITIZED, reason="a sanitizer's own memory")
def test_private_memory(tmp_path):
    """ENG-227 ENG-269: private memory is that of a resident model, less all experts, plus the cache; admission counts it so."""
    model = widened(tmp_path)
    flags = ("--threads", "2", "--memory-budget", "0.4", "--kv-budget", "0.01", "--batch", "1")
    with Server(*flags, model=model) as s:
        want, resident, weights = answers(s), anonymous_bytes(s), s.stats()["admission"]["weights_bytes"]
    with offloaded(tmp_path, "--expert-cache", "0.004", *flags, model=model) as s:
        assert answers(s) == want
        x, mine = s.stats()["expert_offload"], anonymous_bytes(s)
        assert x["file_bytes"] > 50e6 and x["cache_bytes"] <= 4e6 < x["read_bytes"]
        shared = s.stats()["admission"]["weights_bytes"] - x["cache_bytes"]
        # huge pages or small ones, as the system has them: what is touched of scratch and KV pages differs by some
        assert mine <= resident - (weights - shared) + x["cache_bytes"] + 30e6 < resident - 15e6
        assert s.stats()["admission"]["weights_bytes"] < 6e6
    # more than may be used, but for the offload
    p = rig.run("generate", model, "--prompt", "hello", "--max-tokens", "2", "--cache-dir", tmp_path, "--memory-budget", "0.06")
    assert p.returncode != 0 and "MB may be used" in p.stderr
    p = rig.run("generate", model, "--prompt", "hello", "--max-tokens", "2", "--cache-dir", tmp_path, "--memory-budget", "0.06", "--expert-offload")
    assert p.returncode == 0, p.stderr
    d = json.loads(rig.run("doctor", model, "--json", "--memory-budget", "0.06", "--expert-offload", "--cache-dir", tmp_path).stdout)["model"]
    assert d["expert_bytes"] > 50e6 and d["weight_bytes"] + d["scratch_bytes"] + d["expert_cache_bytes"] + d["pool_bytes"] <= 60e6
    fit = rig.run("fit", model, "--json", "--memory-budget", "0.06", "--expert-offload", "--cache-dir", tmp_path, "--ctx", "64")
    view = json.loads(fit.stdout)
    assert view["report"]["fits"] and view["report"]["predicted_decode_tps"] is None and view["expert_bytes"] == d["expert_bytes"]
    assert view["report"]["weights_bytes"] == d["weight_bytes"] + d["expert_cache_bytes"]
    assert rig.run("fit", model, "--json", "--memory-budget", "0.06", "--cache-dir", tmp_path, "--ctx", "64").returncode == 1


@pytest.mark.skipif(rig.SANITIZED, reason="a sanitizer's own memory")
@pytest.mark.parametrize("family", KINDS)
def test_private_memory_of_every_kind(family, tmp_path):
    """ENG-227: mxfp4 with biases, experts beside delta nets, beside a dense MLP, over latents with an expert for all: the same answers,
    private memory that of the shared part and the cache."""
    model = enlarged(tmp_path, family)
    flags = ("--threads", "2", "--kv-budget", "0.01", "--batch", "1")
    with Server(*flags, model=model) as s:
        want, resident, weights = answers(s), anonymous_bytes(s), s.stats()["admission"]["weights_bytes"]
    with offloaded(tmp_path, "--expert-cache", "0.004", *flags, model=model) as s:
        assert answers(s) == want
        x, mine, admitted = s.stats()["expert_offload"], anonymous_bytes(s), s.stats()["admission"]["weights_bytes"]
    shared = admitted - x["cache_bytes"]
    assert x["file_bytes"] > 60e6 and x["cache_bytes"] <= 4e6 < x["read_bytes"] and shared < weights - 55e6
    assert mine <= resident - (weights - shared) + x["cache_bytes"] + 30e6 < resident - 15e6    # 30e6: as above
