"""Hybrid models (gated delta nets beside attention) over HTTP: the prefix cache keeps copies of the recurrent state, so a second turn
hits it; what comes out is what a server without a cache says, bit for bit."""
import json
import random
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

import http_rig as rig
from http_rig import CHAT, RAW, TORTURE, Server

HOT = {"seed": 7, "temperature": 0.8, "max_tokens": 24, "ignore_eos": True}
SYSTEM = {"role": "system", "content": "You are terse. " * 6}


def drawn(answer):
    return [(e["id"], e["logprob"]) for e in answer["choices"][0]["logprobs"]["content"]]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def talk(server, n_turns, system=SYSTEM):
    """A chat of n turns; of each: (what was drawn, prompt tokens, of them cached)."""
    messages, out = [system], []
    for turn in range(n_turns):
        messages = messages + [{"role": "user", "content": f"Question {turn}: why is the sky blue at noon?"}]
        a = server.ok(CHAT, {"messages": messages, "logprobs": True, "temperature": 0, "max_tokens": 20})
        out.append((drawn(a), a["usage"]["prompt_tokens"], cached(a)))
        messages = messages + [{"role": "assistant", "content": a["choices"][0]["message"]["content"]}]
    return out


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next"])
def test_b094_turns_of_a_chat(family):
    """B-094, MOD-026, MOD-028: turns of a chat reuse the state kept at the end of the turn before, or at least at the end of its
    prompt; another chat with the same system message the state kept behind that; ids and log-probabilities are the cold ones."""
    with Server("--prompt-cache", 0, model=rig.TINY / family) as cold, Server(model=rig.TINY / family) as warm:
        want, got = talk(cold, 4), talk(warm, 4)
        assert [t[0] for t in got] == [t[0] for t in want]
        assert all(t[2] == 0 for t in want) and got[0][2] == 0
        for before, now in zip(got, got[1:]):
            assert now[2] >= before[1] - 1, got
        again = talk(warm, 4)
        assert [t[0] for t in again] == [t[0] for t in want]
        assert all(t[2] == t[1] - 1 for t in again), again
        other = {"messages": [SYSTEM, {"role": "user", "content": "Something else."}], "logprobs": True, **HOT}
        a, b = warm.ok(CHAT, other), cold.ok(CHAT, other)
        assert drawn(a) == drawn(b) and cached(a) >= 64
        st = warm.wait_idle()
        assert st["engine"]["pages_held_bytes"] == 0 and st["prompt_cache"]["hits"] >= 8


def test_b094_lengths_around_a_page():
    """B-094: prompts of a page of 64 tokens less one, of a page, of one more and of two, cold, warm and behind a longer one."""
    text = "abc "
    with Server("--prompt-cache", 0, model=rig.TINY / "qwen3_5_moe") as cold, Server(model=rig.TINY / "qwen3_5_moe") as warm:
        unit = (cold.ok("/tokenize", {"text": text * 8 + "x"})["count"] - 1) / 8
        for n in (63, 64, 65, 127, 128, 129):
            prompt = "x" * (n % 2) + text * int((n - n % 2) / unit)
            want = cold.ids(prompt, **HOT)
            got = [warm.ids(prompt, **HOT), warm.ids(prompt, **HOT)]
            warm.raw(prompt + text + "xyz")
            got.append(warm.ids(prompt, **HOT))
            assert got == [want] * 3, n
        assert warm.stats()["prompt_cache"]["hits"] >= 6


def test_batched_and_preempted():
    """MOD-027 T4.03 CFG-154 T2.26: eight at once, in memory for about two: rows wait, lose their pages, come back; each has the bits
    of a solo run, whatever MLX_BUN_BATCH_SSM says."""
    model = rig.TINY / "qwen3_next"
    prompts = [f"{i} " + "the quick brown fox " * (3 + 4 * i) for i in range(8)]
    hot = {**HOT, "max_tokens": 100}
    with Server(model=model) as s:
        want = [s.ids(p, **hot) for p in prompts]
    few = ("--kv-budget", 0.0004, "--batch", 8)
    with Server(*few, model=model, env={"MLX_BUN_BATCH_SSM": "0"}) as s, ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda p: s.ids(p, **hot), prompts)) == want
        assert s.wait_idle()["engine"]["pages_held_bytes"] == 0


def test_default_repetition_penalty(tmp_path):
    """MOD-031, ENG-020: a penalty that the checkpoint ships is applied, alone and in a batch alike."""
    model = rig.copy_model(tmp_path, "qwen3_5", generation={"repetition_penalty": 1.6})
    prompts = [f"{i} one two one two" for i in range(4)]
    with Server(model=model) as s, Server(model=rig.TINY / "qwen3_5") as plain, ThreadPoolExecutor(4) as pool:
        want = [s.ids(p, **HOT) for p in prompts]
        assert want != [plain.ids(p, **HOT) for p in prompts]
        assert list(pool.map(lambda p: s.ids(p, **HOT), prompts)) == want
        off = {**HOT, "repetition_penalty": 1.0}
        assert [s.ids(p, **off) for p in prompts] == [plain.ids(p, **off) for p in prompts]


@pytest.mark.parametrize("kv", ["off", "8", "4", "f32"])
def test_kv_formats(kv):
    """MOD-029, ENG-141: a KV format is that of the attention layers; states stay float32, in every format warm as cold."""
    with Server("--kv-quant", kv, model=rig.TINY / "qwen3_5") as s, Server("--kv-quant", kv, "--prompt-cache", 0, model=rig.TINY / "qwen3_5") as cold:
        prompt = "a stone in the river " * 8
        want = cold.ids(prompt, **HOT)
        assert [s.ids(prompt, **HOT), s.ids(prompt, **HOT)] == [want, want]


def make_adapter(folder, modules, rank=4, seed=5):
    """A LoRA folder in MLX form over modules {name: (n_out, n_in)}."""
    rng, tensors = random.Random(seed), {}
    for name, (n_out, n_in) in modules.items():
        for half, shape in (("lora_a", (n_in, rank)), ("lora_b", (rank, n_out))):
            values = [rng.uniform(-0.3, 0.3) for _ in range(shape[0] * shape[1])]
            tensors[f"{name}.{half}"] = ["F32", list(shape), struct.pack(f"<{len(values)}f", *values)]
    folder.mkdir()
    rig.write_safetensors(folder / "adapters.safetensors", tensors)
    (folder / "adapter_config.json").write_text(json.dumps({
        "fine_tune_type": "lora", "num_layers": -1, "lora_parameters": {"rank": rank, "scale": 2.0, "dropout": 0.0}}))
    return folder


def test_adapters_on_recurrent_layers(tmp_path):
    """LoRA on the projections of delta nets and gated attention: other text than without, the same alone, beside others, warm."""
    layer = "language_model.model.layers."
    adapter = make_adapter(tmp_path / "lora", {
        layer + "0.linear_attn.in_proj_qkv": (224, 64), layer + "0.linear_attn.in_proj_a": (4, 64),
        layer + "2.linear_attn.out_proj": (64, 96), layer + "1.self_attn.q_proj": (256, 64), layer + "3.self_attn.o_proj": (64, 128)})
    with Server(model=rig.TINY / "qwen3_5") as s, ThreadPoolExecutor(6) as pool:
        s.ok("/v1/adapters", {"id": "lora", "path": str(adapter)})

        def ask(i):
            f = {"adapter": "lora"} if i % 2 else {}
            return s.ids(f"question {i // 2 % 2} " * 12, **HOT, **f)

        alone = [ask(i) for i in range(4)]
        assert alone[0] != alone[1] and alone[2] != alone[3]
        assert list(pool.map(ask, range(12))) == alone * 3


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_b098_states_count_against_the_cap(family):
    """B-098: copies of states are bytes of the cache, pages of windowed layers too: its cap holds however many prompts come, and a chat
    still hits."""
    rng = random.Random(3)
    words = ["alpha", "beta", "gamma", "delta", "one", "two", "three"]
    with Server("--prompt-cache", 0.001, "--kv-budget", 0.01, model=rig.TINY / family) as s:
        cap = s.stats()["prompt_cache"]["max_bytes"]
        for i in range(1000 if TORTURE else 60):
            s.raw(" ".join(rng.choice(words) for _ in range(rng.randrange(2, 60))) + str(i), max_tokens=4)
            assert s.stats()["prompt_cache"]["bytes"] <= cap
        turns = talk(s, 5)
        assert all(now[2] >= before[1] - 64 for before, now in zip(turns, turns[1:])), turns
        st = s.wait_idle()
        assert st["prompt_cache"]["bytes"] <= cap and st["engine"]["pages_held_bytes"] == 0
        assert s.ok(RAW, {"prompt": "hello", "max_tokens": 1})["usage"]["completion_tokens"] == 1
