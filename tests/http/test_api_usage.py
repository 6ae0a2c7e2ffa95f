"""spec/api.md sections 25 and 26: usage, and what loads, batches, caches and restarts may not change."""
import json
import time
from concurrent.futures import ThreadPoolExecutor

import http_rig as rig
from http_rig import CHAT, HELLO, LLAMA, RAW, Server

HOT = {"temperature": 1.1, "max_tokens": 24, "ignore_eos": True}
FEATURES = [{"repetition_penalty": 1.3}, {"presence_penalty": 1}, {"frequency_penalty": 1}, {"min_p": 0.02},
            {"xtc_probability": 0.5, "xtc_threshold": 0.02}, {"logit_bias": {"40": 4}}, {"top_logprobs": 3}, {"stop": ["\x01"]},
            {"top_p": 0.9}, {"top_k": 20}, {"temperature": 0}, {"n": 2}]


def together(s, jobs):
    with ThreadPoolExecutor(len(jobs)) as pool:
        return [f.result() for f in [pool.submit(job) for job in jobs]]


# --- section 25 ---

def test_api329_cached_tokens():
    """API-329 API-330 API-332 API-333: 0 at first, then the reused prefix, never the last token; speculation is absent without
    drafts, fill while it is switched off (test_fill.py has the rest)."""
    with Server() as s:
        first = s.raw("a b c d e f g h i j")["usage"]
        assert first["prompt_tokens_details"] == {"cached_tokens": 0}
        longer = s.raw("a b c d e f g h i j k l m")["usage"]
        same = s.raw("a b c d e f g h i j")["usage"]
        other = s.raw("z y x w v u")["usage"]
        assert longer["prompt_tokens_details"]["cached_tokens"] == first["prompt_tokens"]
        assert same["prompt_tokens_details"]["cached_tokens"] == same["prompt_tokens"] - 1
        assert other["prompt_tokens_details"]["cached_tokens"] == 0
        assert not {"cached_tokens", "speculation", "fill"} & set(same)
    for flags in (["--draft-model", "x"], ["--draft-kind", "ngram"]):
        p = rig.run("serve", LLAMA, "--port", 0, *flags)
        assert p.returncode == 2 and flags[0] in p.stderr


def test_api331_lane(llama):
    """API-331: on every turn, both endpoints, both modes; serial with --batch 1, else batched."""
    assert llama.chat()["usage"]["lane"] == llama.raw()["usage"]["lane"] == "batched"
    assert llama.stream(CHAT, {"messages": HELLO, "max_tokens": 2})[0][-1]["usage"]["lane"] == "batched"
    with Server("--batch", 1) as s:
        assert s.chat()["usage"]["lane"] == s.raw()["usage"]["lane"] == "serial"


def test_api334_messages(llama):
    """API-334: the messages protocol counts in its own words."""
    r = llama.post("/v1/messages", {"model": "x", "max_tokens": 4, "messages": HELLO})
    assert r.status_code == 200 and r.json()["usage"]["output_tokens"] <= 4 and r.json()["usage"]["input_tokens"] > 0


def test_api336_paged_kv(llama):
    """API-336: KV is always paged, so --paged-kv takes nothing away: the same bits, and prefixes are reused."""
    with Server("--paged-kv", "--paged-kv-block-size", 64) as s:
        assert s.ids(seed=1, **HOT) == llama.ids(seed=1, **HOT)
        s.raw("p q r s t")
        assert s.raw("p q r s t")["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


# --- section 26 ---

def test_api338_batch_width(long_model):
    """API-338: of twelve requests eight decode together by default and one with --batch 1; the others wait, and are served
    when those leave."""
    for flags, width in (((), 8), (("--batch", 1), 1)):
        with Server(*flags, model=long_model) as s:
            clients = [s.connect() for _ in range(12)]
            for i, c in enumerate(clients):
                c.sendall(rig.request(RAW, {"prompt": f"number {i}", "max_tokens": 100000, "ignore_eos": True}))
            end = time.monotonic() + 300
            while True:
                b = s.stats()["batch"]
                assert b["active_rows"] <= width and time.monotonic() < end, b
                if (b["active_rows"], b["pending_rows"]) == (width, 12 - width):
                    break
            last = s.connect()
            last.sendall(rig.request(RAW, {"prompt": "last", "max_tokens": 3, "ignore_eos": True}))
            while s.stats()["batch"]["pending_rows"] != 13 - width:
                assert time.monotonic() < end
            for c in clients:
                c.close()
            status, _, body = rig.read_answer(last)
            assert status == 200 and json.loads(body)["usage"]["completion_tokens"] == 3
            last.close()


def test_api339_same_bits_whatever_the_width(llama):
    """API-339 API-341 API-343 API-344: one request alone, among strangers, under --batch 1, 3 and 8: ids and logprobs equal;
    here the composition of the batch never shows, which is more than is promised."""
    want = [llama.ids(path=p, seed=5, **HOT) for p in (CHAT, RAW)]
    for n in (1, 3):
        with Server("--batch", n) as s:
            assert [s.ids(path=p, seed=5, **HOT) for p in (CHAT, RAW)] == want
            got = together(s, [lambda i=i: s.ids(seed=5 if i % 3 == 0 else i, **HOT) for i in range(9)])
            assert got[0] == got[3] == got[6] == want[1]
    got = together(llama, [lambda i=i: llama.ids(path=(CHAT, RAW)[i % 2], seed=5, **HOT) for i in range(8)])
    assert got == want * 4


def test_api340_rows_equal_the_oracle():
    """API-340: eight rows in one batch, each greedy over the oracle's 300-token prompt: mlx-lm's tokens and logprobs within
    the bound of exact arithmetic."""
    golden = json.loads((rig.ROOT / "tests/golden/logits/llama.json").read_text())
    with Server("--tier", "f32") as s:
        prompt = s.ok("/detokenize", {"tokens": golden["prompt"]})
        prompt = prompt.get("text", prompt.get("prompt"))
        ids = s.ok("/tokenize", {"text": prompt, "add_special_tokens": False})["tokens"]
        assert ids == golden["prompt"]
        jobs = [lambda: s.ids(prompt, temperature=0, max_tokens=16, ignore_eos=True)] * 8
        for got in together(s, jobs):
            n = next((i for i, g in enumerate(golden["greedy"][:16]) if g["id"] >= 509), 16)
            assert n > 4 and [t for t, _ in got[:n]] == [g["id"] for g in golden["greedy"][:n]]
            assert all(abs(p - g["logprob"]) < 2e-4 for (_, p), g in zip(got[:n], golden["greedy"]))


def test_api342_own_streams(llama):
    """API-342 API-347: requests with seeds keep their own random stream in a batch; those without differ."""
    alone = [llama.ids(seed=i, **HOT) for i in range(8)]
    assert together(llama, [lambda i=i: llama.ids(seed=i, **HOT) for i in range(8)]) == alone
    assert len({str(x) for x in alone}) == 8
    assert len({str(x) for x in together(llama, [lambda: llama.ids(seed=None, **HOT)] * 6)}) == 6


def test_api348_features_in_a_batch(llama):
    """API-348: every feature beside all the others gives what it gives alone."""
    def job(f):
        return llama.raw(seed=3, **{**HOT, **f})["choices"]

    alone = [job(f) for f in FEATURES]
    assert together(llama, [lambda f=f: job(f) for f in FEATURES]) == alone
    assert len({str(c) for c in alone}) >= 8  # they do differ from each other


def test_api349_joining_reuses(long_model):
    """API-349: a request that joins while another decodes reuses the longest cached prefix and says so."""
    with Server(model=long_model) as s:
        n = s.raw("a b c d e f g h i j k l")["usage"]["prompt_tokens"]
        c = s.connect()
        c.sendall(rig.request(RAW, {"prompt": "other", "ignore_eos": True, "max_tokens": 100000}))
        while s.stats()["batch"]["active_rows"] == 0:
            time.sleep(0.005)
        u = s.raw("a b c d e f g h i j k l m n")["usage"]
        while s.stats()["batch"]["active_rows"] > 1:  # the one that has its answer leaves; the other decodes on
            time.sleep(0.005)
        assert s.stats()["batch"]["active_rows"] == 1
        assert u["prompt_tokens_details"]["cached_tokens"] == n and u["lane"] == "batched"
        c.close()


def test_api350_drafts_are_refused():
    """API-350: drafts are not in this version; each switch is refused by name before anything is served."""
    for flags in (["--draft-model", "x"], *(["--draft-kind", k] for k in ("two-model", "assistant", "mtp", "ngram", "dspark", "deepspec"))):
        p = rig.run("serve", LLAMA, "--port", 0, *flags)
        assert p.returncode == 2 and flags[0] in p.stderr


def test_api351_prompt_cache_off(llama):
    """API-351: --prompt-cache 0: nothing is ever reused, the answers are the same."""
    with Server("--prompt-cache", 0) as s:
        for _ in range(3):
            assert s.raw("a b c d e f g h")["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert s.ids(seed=2, **HOT) == llama.ids(seed=2, **HOT)
        c = s.wait_idle()["prompt_cache"]
        assert c["bytes"] == c["entries"] == c["hits"] == c["max_bytes"] == 0


def test_api352_ssd_cache_is_refused(tmp_path):
    """API-352 API-353 API-354 API-355 API-283: the disk tier is not in this version: --ssd-cache is refused;
    --generation-checkpoint without it is ignored with a warning, and a request repeated after a restart is computed anew
    from its beginning, whole and equal."""
    p = rig.run("serve", LLAMA, "--port", 0, "--ssd-cache", tmp_path)
    assert p.returncode == 2 and "--ssd-cache" in p.stderr
    answers = []
    for _ in range(2):
        with Server("--generation-checkpoint", 5) as s:
            assert "--generation-checkpoint" in s.stderr() and "ssd_cache" not in s.stats()
            r = s.raw("a b c", seed=1, logprobs=True, **HOT)
            answers.append(r["choices"])
            assert r["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and r["usage"]["completion_tokens"] == 24
    assert answers[0] == answers[1]


def test_api337_trace(long_model):
    """API-337: MLX_BUN_P2R_TRACE=1 writes a JSON line a generation to stderr, named by the header, for both endpoints and
    modes, also when the client leaves; without the variable none is written."""
    for env in ({"MLX_BUN_P2R_TRACE": "1"}, {}):
        with Server(env=env, model=long_model) as s:
            for i, (path, body) in enumerate(((CHAT, {"messages": HELLO}), (RAW, {"prompt": "a"}), (RAW, {"prompt": "b", "stream": True}))):
                s.post(path, {**body, "max_tokens": 5, "ignore_eos": True}, headers={"x-mlx-bun-trace-id": f"t{i}\u00e9".encode()})
            s.raw(max_tokens=1)
            c = s.connect()
            c.sendall(rig.request(RAW, {"prompt": "c", "ignore_eos": True, "max_tokens": 100000}, headers="x-mlx-bun-trace-id: left\r\n"))
            while s.stats()["batch"]["active_rows"] == 0:
                time.sleep(0.002)
            c.close()
            s.wait_idle()
            end = time.monotonic() + 300
            while env and s.stderr().count('"trace_id"') < 5:
                assert time.monotonic() < end, s.stderr()
                time.sleep(0.01)
        lines = [json.loads(x) for x in s.stderr().splitlines() if x.startswith("{")]
        if not env:
            assert lines == []
            continue
        assert [x["trace_id"][:2] for x in lines[:3]] == ["t0", "t1", "t2"] and lines[3]["trace_id"].startswith("req_")
        assert [x["path"] for x in lines] == [CHAT, RAW, RAW, RAW, RAW] and [x["stream"] for x in lines] == [False, False, True, False, False]
        assert all(x["outcome"] == "finished" and x["completion_tokens"] == 5 for x in lines[:3])
        assert lines[4]["trace_id"] == "left" and lines[4]["outcome"] == "cancelled"
        for x in lines[:3]:
            assert x["total_ms"] >= x["token_zero_ms"] >= x["prefill_ms"] >= 0 and x["admission_ms"] >= 0 and x["queue_ms"] >= 0
