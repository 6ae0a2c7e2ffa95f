"""spec/api.md section 23: adapters over HTTP, on the tiny llama checkpoint with the folders of tests/golden/adapters."""
import json
import shutil
import threading

import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, RAW, ROOT, Server

FOLDERS = ROOT / "tests/golden/adapters"
A, B, HALF, OTHER = (str(FOLDERS / n) for n in ("llama-a", "llama-b", "llama-a-half", "llama-patterns"))
PROMPT = "The quick brown fox jumps over the lazy dog and runs away. " * 4


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "2") as s:
        for name, path in (("a", A), ("b", B)):
            assert s.post("/v1/adapters", {"id": name, "path": path}).status_code == 200
        yield s


def drawn(s, adapter=None, **more):
    fields = {} if adapter is None else {"adapter": adapter}
    return s.ids(PROMPT, temperature=0, max_tokens=6, ignore_eos=True, **fields, **more)


def ids_of(s):
    return [a["id"] for a in s.get("/v1/adapters").json()["adapters"]]


def test_api302_list_and_mount(server):
    """API-302 API-303 API-305 API-306: the entry is the reply and the list's; a remount replaces; unmounting; 404."""
    r = server.post("/v1/adapters", {"id": "new", "path": A})
    assert r.status_code == 200
    assert r.json() == {"id": "new", "path": A, "rank": 4, "scale": 2.0, "mounted_layers": 14, "size_bytes": r.json()["size_bytes"]}
    assert r.json()["size_bytes"] > 30000
    assert r.json() in server.get("/v1/adapters").json()["adapters"]
    r = server.post("/v1/adapters", {"id": "new", "path": OTHER})
    assert r.json()["rank"] == 6 and ids_of(server).count("new") == 1
    assert server.http.delete("/v1/adapters/new").status_code == 200
    assert "new" not in ids_of(server)
    r = server.http.delete("/v1/adapters/new")
    assert r.status_code == 404 and "new" not in r.json()["error"].get("param", "")
    # API-009 API-434: whatever the content type says
    r = server.http.post("/v1/adapters", content=json.dumps({"id": "plain", "path": B}), headers={"content-type": "text/plain"})
    assert r.status_code == 200 and server.http.delete("/v1/adapters/plain").status_code == 200


def test_api307_selection(server):
    """API-307 API-308 API-309 API-311 Q51 Q52: one, a stack in its order, none; duplicates and unknown names are refused."""
    base, a, b, ab, ba = (drawn(server, x) for x in (None, "a", "b", "a+b", "b+a"))
    assert drawn(server, "none") == base
    assert len({str(x) for x in (base, a, b, ab)}) == 4
    assert [i for i, _ in ab] == [i for i, _ in ba] or ab != ba  # order counts in the last bits at most
    r = server.ok(RAW, {"prompt": PROMPT, "adapters": "a", "temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": True})
    assert [(e["id"], e["logprob"]) for e in r["choices"][0]["logprobs"]["content"]] == a
    for bad in ("x", "a+x", "a+a", "a+", "+a", "", "none+a", "a+none", "A", "a b", "a+b+c+d+e", "a" * 5000):
        for path, body in ((RAW, {"prompt": "a"}), (CHAT, {"messages": HELLO})):
            assert server.refused(path, {**body, "adapter": bad}, "adapter")["param"] == "adapter"
    server.refused(RAW, {"prompt": "a", "adapter": 3}, "must be of type str")
    assert "mounted: a, b" in server.refused(RAW, {"prompt": "a", "adapter": "x"}, "x")["message"]


def test_b155_names_are_never_paths(server, tmp_path):
    """B-155: ids of requests are names; ids that could be paths or stacks cannot be mounted."""
    bad = ["../../etc/passwd", "a/../../b", "..%2fx", "C:\\x", "a\0b", "/tmp/x", A, "..", "."]
    for name in bad:
        server.refused(RAW, {"prompt": "a", "adapter": name}, "adapter")
        server.refused("/v1/adapters", {"id": name, "path": A}, "id")
    for name in ("a+b", "none", "", "a b", "x" * 200):
        server.refused("/v1/adapters", {"id": name, "path": A}, "id")
    for path in ("..%2Fx", "..%2F..%2Fetc%2Fpasswd", "%00"):
        assert server.http.delete(f"/v1/adapters/{path}").status_code in (400, 404)
    assert ids_of(server) == ["a", "b"]


def test_b137_mismatches_are_all_named(server, tmp_path):
    """B-137 API-305 ENG-184: an adapter of another model: 400 with every mismatch, and nothing is mounted."""
    for folder in ("gemma3", "qwen3", "qwen2-head"):
        e = server.refused("/v1/adapters", {"id": "bad", "path": str(FOLDERS / folder)}, "does not fit")
        assert e["message"].count("\n") >= 4 and "lora_" in e["message"]
    for body, part in (({"id": "bad"}, "path is required"), ({"path": A}, "id is required"), ({"id": "bad", "path": 3}, "type str"),
                       ({"id": "bad", "path": str(tmp_path)}, "no adapter"), ({"id": "bad", "path": "/nonexistent"}, "not a folder"),
                       ([], "object")):
        server.refused("/v1/adapters", body, part)
    shutil.copytree(A, tmp_path / "cut")
    whole = (tmp_path / "cut/adapters.safetensors").read_bytes()
    (tmp_path / "cut/adapters.safetensors").write_bytes(whole[:-100])
    server.refused("/v1/adapters", {"id": "bad", "path": str(tmp_path / "cut")}, "adapters.safetensors")
    assert ids_of(server) == ["a", "b"]


def test_b092_cache_by_content(tmp_path):
    """B-092 API-313 API-314: A, B, none, A at half scale, then A replaced on disk under its name: each as on a server of its
    own; the second time each hits its own prefix."""
    place = tmp_path / "x"

    def put(s, folder):
        shutil.rmtree(place, ignore_errors=True)
        if folder:
            shutil.copytree(folder, place)
            assert s.post("/v1/adapters", {"id": "x", "path": str(place)}).status_code == 200
        return "x" if folder else "none"

    rounds = (A, B, None, HALF, OTHER)
    with Server("--prompt-cache", "0") as cold:
        want = [drawn(cold, put(cold, f)) for f in rounds]
    assert len({str(w) for w in want}) == 5
    with Server() as warm:
        for again in (0, 1):
            for folder, w in zip(rounds, want):
                name = put(warm, folder)
                r = warm.ok(RAW, {"prompt": PROMPT, "temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": True,
                                  "adapter": name})
                cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert [(e["id"], e["logprob"]) for e in r["choices"][0]["logprobs"]["content"]] == w
                assert (cached > 0) == bool(again), (folder, cached)


def test_api304_mixed_together(server):
    """API-304 API-315 ENG-185: many requests with different adapters at once, while one is mounted and unmounted over and
    over: each answers as alone."""
    want = {name: drawn(server, name) for name in ("none", "a", "b", "a+b")}
    errors, stop = [], threading.Event()

    def churn():
        with rig.Client(base_url=str(server.http.base_url), timeout=60) as c:
            while not stop.is_set():
                for path in (A, HALF):
                    if c.post("/v1/adapters", json={"id": "spare", "path": path}).status_code != 200:
                        errors.append("mount")
                c.delete("/v1/adapters/spare")

    def ask(name):
        with rig.Client(base_url=str(server.http.base_url), timeout=60) as c:
            for _ in range(4):
                r = c.post(RAW, json={"prompt": PROMPT, "adapter": name, "temperature": 0, "max_tokens": 6, "ignore_eos": True,
                                      "logprobs": True}).json()
                if [(e["id"], e["logprob"]) for e in r["choices"][0]["logprobs"]["content"]] != want[name]:
                    errors.append(name)

    threads = [threading.Thread(target=ask, args=(n,)) for n in want for _ in range(2)]
    churner = threading.Thread(target=churn)
    churner.start()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    churner.join()
    assert not errors and "a" in ids_of(server)


def test_api310_default_adapter(tmp_path):
    """API-310 API-311 CFG-005 CFG-030 CFG-082: --adapter mounts under the folder's name and is the default; "none" beats it; after it
    was unmounted requests without a name get the base model, a new one under its name is the default again."""
    with Server() as s:
        base = drawn(s)
        s.post("/v1/adapters", {"id": "x", "path": A})
        a = drawn(s, "x")
    with Server("--adapter-path", A + "/") as s:
        assert ids_of(s) == ["llama-a"]
        assert drawn(s) == a == drawn(s, "llama-a") and drawn(s, "none") == base
        assert s.http.delete("/v1/adapters/llama-a").status_code == 200
        assert drawn(s) == base
        s.refused(RAW, {"prompt": "a", "adapter": "llama-a"}, "not mounted")
        assert s.post("/v1/adapters", {"id": "llama-a", "path": A}).status_code == 200
        assert drawn(s) == a
    with Server("--adapter", f"mine={A}") as s:
        assert ids_of(s) == ["mine"] and drawn(s) == a


@pytest.mark.parametrize("flags, part", [
    (["--adapter", "/nonexistent"], "not a folder"), (["--adapter", str(FOLDERS / "gemma3")], "does not fit"),
    (["--adapter", A, "--max-lora-rank", "2"], "--max-lora-rank"), (["--adapter", f"a+b={A}"], "id must be"),
    (["--adapter", f"none={A}"], "id must be")])
def test_api312_bad_adapter_fails_the_start(flags, part):
    """API-312 CFG-083 T12.04: the base model is never served silently."""
    with pytest.raises(RuntimeError) as e:
        Server(*flags)
    assert part in str(e.value)


def test_generate_takes_an_adapter():
    """CFG-082 on the command line's generate."""
    out = [rig.run("generate", rig.LLAMA, "--raw", "--prompt", "hello there", "--temp", "0", "--max-tokens", "8", *f).stdout
           for f in ((), ("--adapter", A), ("--adapter", A))]
    assert out[1] == out[2] != out[0]


def test_management_is_for_the_operator():
    """design.md section 6: with a key, mounting needs it; foreign pages may neither read nor write."""
    with Server("--api-key", "sesame") as s:
        key = {"authorization": "Bearer sesame"}
        assert s.get("/v1/adapters").status_code == 401
        assert s.get("/v1/adapters", headers=key).status_code == 200
        foreign = {"origin": "https://evil.example"}
        r = s.http.post("/v1/adapters", json={"id": "a", "path": A}, headers={**foreign, **key})
        assert r.status_code == 403
        r = s.http.get("/v1/adapters", headers={**foreign, **key})
        assert "access-control-allow-origin" not in r.headers
        assert s.http.delete("/v1/adapters/a", headers=foreign).status_code == 403


def test_trn310_available(tmp_path):
    """TRN-310 TRN-311: folders beside the model and in its adapters/, with what they say of their base."""
    model = rig.copy_model(tmp_path)
    shutil.copytree(A, model / "adapters/one")
    shutil.copytree(OTHER, tmp_path / "two")
    config = json.loads((tmp_path / "two/adapter_config.json").read_text())
    (tmp_path / "two/adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "llama"}))
    (tmp_path / "junk").mkdir()
    cache = tmp_path / "cache"
    shutil.copytree(B, cache / "mlx-bun-finetunes/three")
    with Server("--cache-dir", str(cache), model=model) as s:
        found = {a["id"]: a for a in s.get("/v1/adapters/available").json()["adapters"]}
        assert set(found) == {"one", "two", "three"}
        assert found["one"] == {"id": "one", "path": str(model / "adapters/one"), "source_repo": "tiny", "rank": 4, "scale": 2.0,
                                "compatible": False}
        assert found["two"]["compatible"] is True and found["two"]["rank"] == 6
        for a in found.values():
            assert s.post("/v1/adapters", {"id": a["id"], "path": a["path"]}).status_code == 200
