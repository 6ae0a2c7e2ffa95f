"""spec/api.md sections 19 to 21: /v1/models, /health, /stats."""
import json
import time
from concurrent.futures import ThreadPoolExecutor

import http_rig as rig
from http_rig import LLAMA, RAW, Server


def test_api261_models(llama):
    """API-261 API-262 API-263 API-264: the list form; the served model first with its extras; this version has no registry
    of models, so nothing comes after it."""
    v = llama.get("/v1/models").json()
    assert v["object"] == "list" and len(v["data"]) == 1
    m = v["data"][0]
    assert m["id"] == "llama" and m["object"] == "model" and m["owned_by"]
    assert isinstance(m["created"], int) and abs(m["created"] - time.time()) < 86400
    assert m["context_window"] == 4096 and m["reasoning"] is False and m["vision"] is False


def test_api263_extras_follow_the_model(tmp_path):
    """API-263: the context of the model, lowered by the variable; a template that thinks."""
    model = rig.copy_model(tmp_path, config={"max_position_embeddings": 999}, tokenizer={
        "chat_template": "{{ messages[0]['content'] }}{% if enable_thinking %}<think>\n{% else %}<think></think>{% endif %}"})
    with Server(model=model) as s:
        m = s.get("/v1/models").json()["data"][0]
        assert m["context_window"] == 999 and m["reasoning"] is True
    with Server(model=model, env={"MLX_BUN_RD_CONTEXT_LIMIT": "77"}) as s:
        assert s.get("/v1/models").json()["data"][0]["context_window"] == 77


def test_api265_one_model(llama, tmp_path):
    """REG-141 API-265 API-266 B-155: the list form filtered to the id, raw or encoded, ids with a slash; unknown ids, paths among
    them, give an empty list and open nothing. The id is what an answer names."""
    assert llama.get("/v1/models/llama").json() == llama.get("/v1/models").json()
    assert llama.chat(model="llama")["model"] == llama.get("/v1/models").json()["data"][0]["id"]
    for name in ("nope", "..%2f..%2fetc%2fpasswd", "%2ftmp", "org/x", "C:%5Cx", "llama/x", "LLAMA"):
        r = llama.get("/v1/models/" + name)
        assert r.status_code == 200 and r.json() == {"object": "list", "data": []}, name
    assert llama.get("/v1/models/a%00b").status_code == 400
    assert llama.exchange(b"GET /v1/models/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n")[0] in (200, 400, 404)
    repo = tmp_path / "models--org--m"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text("r1")
    rig.copy_model(tmp_path, "llama").rename(tmp_path / "snap")
    (repo / "snapshots").mkdir()
    (tmp_path / "snap").rename(repo / "snapshots/r1")
    with Server(model=repo) as s:
        for path in ("/v1/models/org/m", "/v1/models/org%2Fm"):
            assert [m["id"] for m in s.get(path).json()["data"]] == ["org/m"]


def test_api267_health(llama):
    """API-267: these bytes."""
    r = llama.get("/health")
    assert r.status_code == 200 and r.content == b'{"status": "ok"}'


def test_api268_stats(llama):
    """API-268 API-269 API-270 API-271 API-272 API-274 API-275 API-276 API-278 API-279 API-281 API-283 API-284: every key of
    the defaults; what belongs to parts that are not in this version is absent."""
    s = llama.wait_idle()
    assert s["server"]["owner"] == "serve" and s["server"]["model"] == "llama"
    assert abs(s["server"]["started_at"] - time.time()) < 86400
    c = s["prompt_cache"]
    assert {"entries", "bytes", "max_bytes", "hits", "misses"} <= set(c) and c["max_bytes"] == 8 << 30
    assert s["response_store"] == {"entries": 0, "bytes": 0, "max_bytes": 33554432, "ttl_ms": 3600000}
    assert s["kv_quant"]["mode"] in ("bf16", "f16")  # the family's 16-bit type
    assert s["kv_quant"]["layers"] == {s["kv_quant"]["mode"]: 2}
    assert s["kv_quant"]["attention"] == {"global": 2, "sliding_window": 0}
    a = s["admission"]
    assert a["memory_budget_bytes"] is None and a["weights_bytes"] > 0 and a["usable_bytes"] > a["weights_bytes"]
    b = s["batch"]
    assert b["configured"] == 8 and b["batched"] is True and b["mode"] == "batch" and b["kv_budget_bytes"] is None
    assert b["active_rows"] == b["pending_rows"] == 0 and b["kv_bytes"] == 0
    assert "ssd_cache" not in s and "glm52" not in s


def test_api269_cache_counters():
    """API-269: entries, bytes, hits and misses move with requests."""
    with Server() as s:
        assert s.stats()["prompt_cache"]["hits"] == 0
        s.raw("a b c d e f g h")
        one = s.wait_idle()["prompt_cache"]
        s.raw("a b c d e f g h")
        two = s.wait_idle()["prompt_cache"]
        assert one["entries"] >= 1 and one["bytes"] > 0 and one["misses"] >= 1
        assert two["hits"] == one["hits"] + 1 and two["misses"] == one["misses"]


def test_api273_kv_modes():
    """API-273 API-274 ENG-142 B-115: the mode follows --kv-quant; formats that are not in this version are refused by name; a model
    with windows counts them (API-272), and its windowed layers have codes like the others; what stays as it is is said at start."""
    for fmt in ("bf16", "f16", "f32"):
        with Server("--kv-quant", fmt) as s:
            assert s.stats()["kv_quant"]["mode"] == fmt
    for fmt in ("turbo:4,4", "turbo"):
        p = rig.run("serve", LLAMA, "--port", 0, "--kv-quant", fmt)
        assert p.returncode == 2 and "kv-quant" in p.stderr, fmt
    for model, fmt, want in (("gemma3", "8", {"kv8": 4}), ("qwen3_5", "4", {"kv4": 2, "f32": 2}), ("granite", "8", {"f16": 2}),
                             ("deepseek_v3", "8", {"f16": 3})):
        with Server("--kv-quant", fmt, model=rig.TINY / model) as s:
            got = s.stats()["kv_quant"]
            assert got["mode"] == f"uniform-kv{fmt}" and got["layers"] == want, model
            assert "of 32 dims" in s.stderr() or "latents stay f16" in s.stderr()
            assert s.raw("a b c d", ignore_eos=True)["choices"][0]["text"]


def test_cfg077_kv_config(tmp_path):
    """CFG-077 CFG-111 API-273 ENG-138 T5.01: kv_config.json, layer by layer, is what `config` and --l2 take; the same bits warm, cold and
    among strangers; without the file `config` is refused by name."""
    model = rig.copy_model(tmp_path, "gemma4")
    p = rig.run("serve", model, "--port", 0, "--kv-quant", "config")
    assert p.returncode != 0 and "kv_config.json" in p.stderr
    layers = json.loads((model / "config.json").read_text())["layer_types"]
    rows = [{"layer_idx": i, "bits": 4 if i % 2 else 8, "group_size": 32 if kind == "sliding_attention" else 64} for i, kind in enumerate(layers)]
    (model / "kv_config.json").write_text(json.dumps(rows[:2]))
    with Server("--kv-quant", "config", model=model) as s:
        got = s.stats()["kv_quant"]
        assert got["mode"] == "mixed (kv_config.json)" and {"kv8", "kv4"} <= set(got["layers"]) and sum(got["layers"].values()) == len(layers)
        first, again = (s.raw("a b c d e f g h", max_tokens=12, seed=3, temperature=1)["choices"][0]["text"] for _ in range(2))
        with ThreadPoolExecutor(4) as pool:
            many = list(pool.map(lambda i: s.raw("a b c d e f g h" + " i" * i, max_tokens=12, seed=3, temperature=1)["choices"][0]["text"], range(4)))
        assert first == again == many[0]
    with Server("--l2", model=model) as s:
        assert s.stats()["kv_quant"]["mode"] == "mixed (kv_config.json)"
    with Server("--l2", "--kv-quant", "off", model=model) as s:
        assert s.stats()["kv_quant"]["mode"] == "f16"
    with Server(model=rig.TINY / "gemma3") as s:
        assert s.stats()["kv_quant"]["attention"] == {"global": 1, "sliding_window": 3}


def test_api275_budgets(long_model):
    """REG-119 REG-120 REG-244 API-275 API-276 API-277: an explicit budget is shown; max_safe_context is what fits the pool and limits nothing that
    fits; without a budget a prompt of the whole context is taken."""
    with Server("--memory-budget", 0.1, "--kv-budget", 0.004, model=long_model) as s:
        a = s.stats()
        assert a["admission"]["memory_budget_bytes"] == 100000000 and a["batch"]["kv_budget_bytes"] == 4000000
        limit = a["admission"]["max_safe_context"]
        assert 1000 < limit < 131072
        s.ok(RAW, {"prompt": "a b c d e f g h " * ((limit - 200) // 16), "max_tokens": 1})
        e = s.post(RAW, {"prompt": "a b c d e f g h " * (limit // 8 + 10), "max_tokens": 1})
        assert e.status_code == 400 and e.json()["error"]["code"] == "context_over_budget"
    with Server(env={"MLX_BUN_RD_CONTEXT_LIMIT": "900"}) as s:
        assert s.stats()["admission"]["max_safe_context"] == 900
        assert s.raw("@!" * 449, max_tokens=2, ignore_eos=True)["usage"]["total_tokens"] == 900


def test_api280_batch_modes():
    """API-280 API-281: off for --batch 1, batch otherwise; there is no cache layout that cannot batch, so never serial."""
    for n, mode in ((1, "off"), (2, "batch"), (5, "batch")):
        with Server("--batch", n) as s:
            b = s.stats()["batch"]
            assert b["configured"] == n and b["mode"] == mode and b["batched"] is (mode == "batch")


def test_api282_active_rows(long_model):
    """API-282 API-278: rows that live, rows that wait, all that came, bytes of their pages."""
    with Server("--batch", 2, model=long_model) as s:
        clients = [s.connect() for _ in range(3)]
        for c in clients:
            c.sendall(rig.request(RAW, {"prompt": "hello", "ignore_eos": True, "max_tokens": 100000}))
        end = time.monotonic() + 300
        while (b := s.stats()["batch"])["active_rows"] != 2 or b["pending_rows"] != 1 or b["kv_bytes"] == 0:
            assert time.monotonic() < end, b
            time.sleep(0.01)
        assert b["submitted_rows"] == 3
        for c in clients:
            c.close()
        assert s.wait_idle()["batch"]["kv_bytes"] == 0


def test_metrics_agree(llama):
    """API-268: the same counters as Prometheus text."""
    llama.wait_idle()
    text = llama.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    e = llama.stats()["engine"]
    assert float(values["mlx_bun_up"]) == 1
    assert float(values["mlx_bun_requests_finished_total"]) == e["finished"]
    assert float(values["mlx_bun_tokens_decoded_total"]) == e["tokens_decoded"]
