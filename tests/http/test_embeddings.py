"""spec/api.md section 18: POST /v1/embeddings on the tiny qwen3 checkpoint, against transformers (tests/golden/embeddings)."""
import base64
import json
import math
import struct
import threading

import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, RAW, ROOT, Server

EMBED = "/v1/embeddings"
GOLDEN = json.loads((ROOT / "tests/golden/embeddings/qwen3.json").read_text())
END = GOLDEN["end_id"]


def embedding_model(to, **config):
    """The checkpoint as Qwen3-Embedding is published: its name, its post-processor."""
    path = rig.copy_model(to, "qwen3", config=config or None)
    path = path.rename(path.parent / "tiny-qwen3-embedding")
    t = json.loads((path / "tokenizer.json").read_text())
    t["post_processor"] = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
                           {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}},
                                    {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
                           "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}}}
    (path / "tokenizer.json").write_text(json.dumps(t))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server("--tier", "f32", "--threads", "2", model=embedding_model(tmp_path_factory.mktemp("embed"))) as s:
        yield s


@pytest.fixture(scope="module")
def qwen3():
    """Plain Qwen3: embeds and generates."""
    with Server("--batch", "1", model=rig.TINY / "qwen3") as s:
        yield s


def vectors(s, inputs, **fields):
    return [d["embedding"] for d in s.ok(EMBED, {"input": inputs, **fields})["data"]]


def far(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def test_b088_equal_to_transformers(server):
    """B-088 API-256 MOD-044: ids of 1 to 2,048 tokens and texts: transformers' float32 within 1e-5, unit length."""
    rows = [r for r in GOLDEN["rows"] if "text" not in r]
    assert [len(r["ids"]) for r in rows] == [1, 2, 511, 512, 513, 2047, 2048]
    got = vectors(server, [r["ids"] for r in rows])
    for r, v in zip(rows, got, strict=True):
        assert far(v, r["embedding"]) < 1e-5, len(r["ids"])
        assert abs(math.hypot(*v) - 1) < 1e-6


def test_api253_texts_and_instruction(server):
    """API-253 API-254 API-255 API-257 API-258 MOD-045: strings end with the model's end token; an instruction goes before."""
    rows = [r for r in GOLDEN["rows"] if "text" in r and "instruction" not in r]
    body = server.ok(EMBED, {"input": [r["text"] for r in rows], "model": "whatever"})
    assert body["object"] == "list" and body["model"] == "tiny-qwen3-embedding"
    assert body["usage"] == {"prompt_tokens": sum(len(r["ids"]) for r in rows), "total_tokens": sum(len(r["ids"]) for r in rows)}
    for i, (r, d) in enumerate(zip(rows, body["data"], strict=True)):
        assert d["object"] == "embedding" and d["index"] == i and far(d["embedding"], r["embedding"]) < 1e-5
    one = server.ok(EMBED, {"input": rows[0]["text"]})
    assert len(one["data"]) == 1 and one["data"][0] == body["data"][0]
    asked = next(r for r in GOLDEN["rows"] if "instruction" in r)
    assert far(vectors(server, asked["text"], instruction=asked["instruction"])[0], asked["embedding"]) < 1e-5
    assert vectors(server, rows[0]["text"], instruction="")[0] == one["data"][0]["embedding"]


def test_q42_base64_and_token_arrays(server):
    """Q42: base64 of little-endian float32; ids alone or in lists, mixed with strings."""
    ids = GOLDEN["rows"][2]["ids"][:9]
    number = vectors(server, ids)[0]
    text = server.ok(EMBED, {"input": ids, "encoding_format": "base64"})["data"][0]["embedding"]
    assert list(struct.unpack("<64f", base64.b64decode(text, validate=True))) == [struct.unpack("<f", struct.pack("<f", x))[0] for x in number]
    mixed = vectors(server, ["hello", ids, "hello"])
    assert mixed[1] == number and mixed[0] == mixed[2] == vectors(server, "hello", encoding_format="float")[0]


def test_b091_dimensions(server):
    """B-091: the first so many, then unit length; 0 and more than the size are refused."""
    whole = vectors(server, "hello")[0]
    for n in (1, 8, 63, 64):
        part = vectors(server, "hello", dimensions=n)[0]
        scale = math.hypot(*whole[:n])
        assert len(part) == n and abs(math.hypot(*part) - 1) < 1e-6 and far(part, [x / scale for x in whole[:n]]) < 1e-6
    for bad in (0, -1, 65, 10**6, 2**70):
        server.refused(EMBED, {"input": "a", "dimensions": bad}, "dimensions must be at")
    for bad in (1.5, "8", True):
        server.refused(EMBED, {"input": "a", "dimensions": bad}, "dimensions")


def test_b089_too_long(tmp_path):
    """B-089: at limit + 1 the item is named; cut only when asked, in front of the end token, and the usage shows it; the limit is
    the one that /v1/models shows."""
    with Server("--tier", "f32", model=embedding_model(tmp_path), env={"MLX_BUN_RD_CONTEXT_LIMIT": "100"}) as s:
        assert s.get("/v1/models").json()["data"][0]["context_window"] == 100
        ids = GOLDEN["rows"][2]["ids"]
        assert len(vectors(s, ids[:100])) == 1
        for truncate in ({}, {"truncate": False}, {"truncate": None}):
            e = s.refused(EMBED, {"input": [[1], [2], ids[:101], [3], [4]], **truncate}, "input[2] has 101 tokens")
            assert e["code"] == "context_length_exceeded" and "100" in e["message"]
        body = s.ok(EMBED, {"input": [[1], ids[:130], [3]], "truncate": True})
        assert body["usage"] == {"prompt_tokens": 102, "total_tokens": 102, "truncated_tokens": 30}
        assert body["data"][1]["embedding"] == vectors(s, ids[:100])[0]
        text = "one two three " * 60
        whole = s.ok("/tokenize", {"text": text})["tokens"]
        assert whole[-1] == END and len(whole) > 100
        s.refused(EMBED, {"input": text}, f"input[0] has {len(whole)} tokens")
        assert vectors(s, text, truncate=True)[0] == vectors(s, whole[:99] + [END])[0]
        s.refused(EMBED, {"input": "a", "truncate": "yes"}, "truncate must be of type bool")


def test_over_budget_is_named(tmp_path):
    """An input that the KV memory can never hold is refused by the name that the client knows."""
    with Server("--kv-budget", 0.004, model=embedding_model(tmp_path, max_position_embeddings=131072)) as s:
        e = s.refused(EMBED, {"input": [[1], [2] * 60000]}, "KV memory")
        assert e["code"] == "context_over_budget" and e["param"] == "input"


@pytest.mark.parametrize("body, part", [
    ({}, "input is required"), ({"input": None}, "input is required"), ({"input": []}, "must not be empty"),
    ({"input": 3}, "input must be"), ({"input": {}}, "input must be"), ({"input": [["a"]]}, "input[0]"),
    ({"input": ["a", 3]}, "input[1]"), ({"input": [1, "a"]}, "input[0]"), ({"input": ["a", []]}, "input[1] is empty"),
    ({"input": [[1], [512]]}, "input[1] holds token 512"), ({"input": [-1]}, "input[0]"), ({"input": [2**70]}, "input"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"), ({"input": "a", "instruction": 3}, "instruction"),
    ({"input": ["a"] * 2049}, "at most 2048"), ([], "object"), ({"input": "a", "adapter": "x"}, "not mounted"),
    ({"input": "a", "adapters": "x"}, "not mounted"), ({"input": "a", "adapter": "x\0"}, "must not hold a NUL")])
def test_bad_bodies(server, body, part):
    """API-253, Q42: each mistake is named."""
    server.refused(EMBED, body, part)


def test_empty_text(server, qwen3):
    """Q42: an empty string is the end token alone; a tokenizer that adds none leaves nothing to embed."""
    assert vectors(server, "")[0] == vectors(server, [END])[0]
    qwen3.refused(EMBED, {"input": ["a", ""]}, "input[1] is empty")


def test_api252_other_models(llama):
    """API-252 MOD-043 T12.25: 400 invalid_request_error."""
    e = llama.refused(EMBED, {"input": "a"}, "makes no embeddings")
    assert e["type"] == "invalid_request_error"


def test_q72_generation_on_an_embedding_model(server):
    """Q72: the other way round."""
    for path, body in ((CHAT, {"messages": HELLO}), (RAW, {"prompt": "a"})):
        assert server.refused(path, body, "/v1/embeddings")["type"] == "invalid_request_error"


def test_api251_plain_qwen3(qwen3):
    """API-251: plain Qwen3 does both; its tokenizer puts nothing behind a text."""
    assert qwen3.raw("a")["choices"]
    ids = qwen3.ok("/tokenize", {"text": "hello world"})["tokens"]
    assert ids[-1] != END and vectors(qwen3, "hello world") == vectors(qwen3, ids)


def test_api259_beside_a_full_batch(qwen3):
    """API-259 MOD-046: with the only slot taken and others waiting, embeddings are answered, with the same bits."""
    want = vectors(qwen3, ["a b c", "d e f"])
    stream = qwen3.http.stream("POST", RAW, json={"prompt": "a", "max_tokens": 3900, "ignore_eos": True, "stream": True})
    with stream as r:
        lines = r.iter_lines()
        next(lines)
        assert vectors(qwen3, ["a b c", "d e f"]) == want
        batch = qwen3.stats()["batch"]
        assert batch["active_rows"] + batch["parked_rows"] == 1  # parked: nobody has read it all this while


def test_order_and_company(server):
    """The vector of an input does not depend on its neighbours or its place; many clients at once."""
    texts = [f"text number {i} " * (1 + i % 7) for i in range(40)]
    alone = [vectors(server, t)[0] for t in texts[:8]]
    together = vectors(server, texts)
    assert together[:8] == alone and vectors(server, texts[::-1])[::-1] == together
    got = {}
    threads = [threading.Thread(target=lambda i=i: got.update({i: vectors(server, texts[i])[0]})) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [got[i] for i in range(8)] == alone


def test_tiers_agree(server, qwen3):
    """The default tier stays near float32: cosine above 0.999."""
    ids = [r["ids"] for r in GOLDEN["rows"][:5]]
    for a, b in zip(vectors(server, ids), vectors(qwen3, ids), strict=True):
        assert sum(x * y for x, y in zip(a, b)) > 0.999


def test_embeddings_take_an_adapter(tmp_path):
    """A fine-tuned embedding model: the default adapter and one by name count here too."""
    a = str(ROOT / "tests/golden/adapters/qwen3")
    with Server("--adapter", a, model=rig.TINY / "qwen3") as s:
        assert vectors(s, "hello") == vectors(s, "hello", adapter="qwen3") != vectors(s, "hello", adapter="none")


def test_embed_on_the_command_line(tmp_path):
    """CFG-204: the same vectors without a server; lines of a file in order; what makes no embeddings is refused."""
    model = embedding_model(tmp_path)
    rows = [r for r in GOLDEN["rows"] if "text" in r and "instruction" not in r]
    (tmp_path / "texts").write_text("\n".join(r["text"] for r in rows) + "\n")
    p = rig.run("embed", model, "--text", tmp_path / "texts", "--tier", "f32")
    got = [json.loads(line) for line in p.stdout.splitlines()]
    assert [g["index"] for g in got] == list(range(len(rows))), p.stderr
    assert all(far(g["embedding"], r["embedding"]) < 1e-5 for g, r in zip(got, rows, strict=True))
    asked = next(r for r in GOLDEN["rows"] if "instruction" in r)
    p = rig.run("embed", model, "--prompt", asked["text"], "--instruction", asked["instruction"], "--dimensions", "8")
    v = json.loads(p.stdout)["embedding"]
    assert len(v) == 8 and abs(math.hypot(*v) - 1) < 1e-6
    assert rig.run("embed", rig.LLAMA, "--prompt", "a").returncode == 2
    assert "either" in rig.run("embed", model).stderr
