"""scan, ls, rm and gc over caches made on this machine: the registry's rows and queries, what may go and what stays, processes that
are killed half way."""
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub_rig import (LLAMA, TORTURE, check_snapshot, digest_of, end, header, model_files, plant, small_files)

NAME = "org/tiny"


def tree(path):
    return {str(p.relative_to(path)): (os.readlink(p) if p.is_symlink() else p.read_bytes())
            for p in Path(path).rglob("*") if p.is_symlink() or not p.is_dir()}


def rows(store):
    db = sqlite3.connect(store.home / "own/registry.sqlite")
    db.row_factory = sqlite3.Row
    return {Path(r["path"]).name: dict(r) for r in db.execute("SELECT * FROM models")}


# --- the registry ---


def test_scan_fills_the_registry(alone):
    """REG-156 REG-177 REG-055 REG-056 REG-057 REG-058 REG-059 REG-060 REG-061 REG-062 REG-063 REG-064 REG-065 REG-066 REG-067 REG-068
    REG-069 REG-070 REG-071 REG-072 REG-064: a row a snapshot, from config.json and headers; packed weights are
    counted unpacked."""
    a = plant(alone, NAME, {**model_files(), "kv_config.json": b"{}"})
    b = plant(alone, NAME, small_files(), ref=None)
    assert alone.json("scan")["snapshots"] == 2
    r = rows(alone)
    assert set(r) == {a, b}
    config = json.loads((LLAMA / "config.json").read_text())
    m = r[a]
    assert m["path"] == str(alone.repo(NAME) / "snapshots" / a) and m["repo_id"] == NAME and m["model_type"] == "llama"
    assert (m["num_layers"], m["hidden_size"], m["vocab_size"]) == tuple(
        config[k] for k in ("num_hidden_layers", "hidden_size", "vocab_size"))
    assert (m["quant_bits"], m["quant_group_size"], m["quant_mode"]) == (4, 32, "affine")
    assert m["license"] == "apache-2.0" and m["has_kv_config"] == 1 and m["has_vision_sidecar"] == 0 and m["experts_bytes"] == 0
    d, ff, v, n = config["hidden_size"], config["intermediate_size"], config["vocab_size"], config["num_hidden_layers"]
    kv = d * config["num_key_value_heads"] // config["num_attention_heads"]
    layer = 2 * d * d + 2 * d * kv + 3 * d * ff + 2 * d
    assert m["param_count"] in (v * d + n * layer + d, 2 * v * d + n * layer + d)
    assert r[b]["size_bytes"] == 15000 and r[b]["quant_bits"] == 0 and m["scanned_at"] > 1.6e12
    (alone.repo(NAME) / "snapshots" / b).rename(alone.home / "away")
    alone.run("scan")
    assert set(rows(alone)) == {a}  # REG-059


@pytest.mark.parametrize("config, sidecar, vision, kept", [
    ({"vision_config": {"model_type": "gemma4_vision"}}, False, False, "gemma4_vision"),
    ({"vision_config": {"model_type": "gemma4_vision"}}, True, True, "gemma4_vision"),
    ({"vision_config": {"model_type": "gemma4_unified_vision"}}, False, True, "gemma4_unified_vision"),
    ({"vision_config": {"model_type": "qwen3_5_text"}}, False, False, ""), ({}, False, False, "")])
def test_vision_rule(alone, config, sidecar, vision, kept):
    """REG-243 REG-065 REG-066 REG-069 REG-070 REG-073 REG-074 REG-075 REG-076 REG-091: the sidecar, or a unified tower; never
    the key alone."""
    files = {"config.json": json.dumps({"model_type": "gemma4", **config}).encode(),
             "model.safetensors": header({"model.layers.0.mlp.experts.w": ("F32", [4], 16), "a": ("F16", [2, 3], 12)})}
    if sidecar:
        files["optiq_vision.safetensors"] = header({"v": ("BF16", [50], 100)})
    commit = plant(alone, NAME, files)
    assert [m["vision"] for m in alone.json("ls")["models"]] == [vision]
    assert len(alone.json("ls", "--vision")["models"]) == vision
    m = rows(alone)[commit]
    assert (m["size_bytes"], m["sidecar_bytes"], m["experts_bytes"], m["vision_config_type"], m["param_count"]) == (
        28, 100 if sidecar else 0, 16, kept, 10)


def test_scan_of_broken_checkpoints(alone):
    """Whatever lies in the cache, scan and ls end, and show what is whole; no pipe is waited for."""
    whole = {k: v for k, v in model_files().items() if k not in (".gitattributes", "pytorch_model.bin")}
    broken = {"nojson": ("config.json", b"{no"), "list": ("config.json", b"[]"), "type": ("config.json", b'{"model_type": 7}'),
              "deep": ("config.json", b"[" * 100_000), "noconfig": ("config.json", None), "cut": ("model.safetensors", whole["model.safetensors"][:-1]),
              "header": ("model.safetensors", b"\xff" * 64), "empty": ("model.safetensors", b""), "pipe": ("config.json", os.mkfifo),
              "pipes": ("README.md", os.mkfifo), "weights": ("model.safetensors", os.mkfifo)}
    for name, (file, data) in {"whole": ("README.md", b"# x"), **broken}.items():
        where = alone.repo("org/" + name) / "snapshots" / ("a" * 40)
        where.mkdir(parents=True)
        for k, v in whole.items():
            (where / k).write_bytes(v)
        (where / file).unlink()
        if callable(data):
            data(where / file)
        elif data is not None:
            (where / file).write_bytes(data)
        (where.parents[1] / "refs").mkdir()
        (where.parents[1] / "refs/main").write_text("a" * 40)
    (alone.cache / "models--l--ink").symlink_to("/nonexistent")
    (alone.cache / "models--f--ile").write_text("")
    alone.run("scan", timeout=60)
    assert "org/whole" in {m["repo_id"] for m in alone.json("ls", timeout=60)["models"]}
    alone.run("gc", timeout=60)
    alone.run("ls", "--all-revisions", timeout=60)
    for name in broken:
        if name not in ("pipe", "pipes"):
            p = alone.run("generate", "org/" + name, "--prompt", "x", status=None, timeout=60)
            assert p.returncode not in (0, -6, -11) and p.stderr.startswith("mlx-bun: "), (name, p.returncode, p.stderr)


def test_registry_is_derived(alone):
    """REG-057 REG-058: another version, a file that is no database, none at all: made again without asking."""
    plant(alone, NAME, small_files())
    path = alone.home / "own/registry.sqlite"
    for spoil in (lambda: sqlite3.connect(path).execute("PRAGMA user_version = 99").connection.commit(),
                  lambda: sqlite3.connect(path).executescript("DROP TABLE models; CREATE TABLE models (x)"),
                  lambda: path.write_bytes(b"not a database" * 1000), path.unlink,
                  lambda: [p.unlink() for p in path.parent.iterdir()]):
        assert [m["repo_id"] for m in alone.json("ls")["models"]] == [NAME]
        spoil()
    assert [m["repo_id"] for m in alone.json("ls")["models"]] == [NAME]


def test_queries(alone):
    """REG-078 REG-079 REG-080 REG-081 REG-082 REG-083 REG-085 REG-051 REG-052 REG-053 CFG-041 CFG-042 CFG-043: part
    of a name or of the type; one match, or the candidates."""
    plant(alone, "org/Qwen-Small", small_files(seed=1))
    plant(alone, "org/Qwen-Small", small_files(seed=2), ref="old")
    draft = small_files(seed=3)
    draft["config.json"] = b'{"model_type": "qwen3_assistant"}'
    plant(alone, "org/Qwen-Small-assistant", draft)
    plant(alone, "else/llama-x", small_files(seed=4))
    p = alone.run("get", "qwen", "--retries", "0")  # the one match; the hub is away, so the copy serves
    assert "org/Qwen-Small" in p.stderr and "cannot reach the hub" in p.stderr and "models--org--Qwen-Small/" in p.stdout
    for query, status in (("Qwen", 4), ("qwen-small", 4), ("org/Qwen-Small", 4)):
        assert "config.json" in alone.run("generate", query, "--prompt", "x", status=status).stderr
    text = alone.run("generate", "llama", "--prompt", "x", status=2).stderr
    assert "else/llama-x" in text and "org/Qwen-Small" in text and "assistant" not in text
    assert "mlx-bun ls nothing" in alone.run("generate", "nothing", "--prompt", "x", status=3).stderr


def test_canonical_snapshot(alone):
    """REG-082 REG-086 REG-087 CFG-042: refs/main; without it the one scanned last."""
    a = plant(alone, NAME, small_files(seed=1))
    b = plant(alone, NAME, small_files(seed=2), ref="other")
    assert [m["commit"] for m in alone.json("ls")["models"]] == [a]
    assert {m["commit"]: m["canonical"] for m in alone.json("ls", "--all-revisions")["models"]} == {a: True, b: False}
    (alone.repo(NAME) / "refs/main").write_text(b)
    assert [m["commit"] for m in alone.json("ls")["models"]] == [b]
    (alone.repo(NAME) / "refs/main").unlink()
    db = sqlite3.connect(alone.home / "own/registry.sqlite")
    db.execute("UPDATE models SET scanned_at = scanned_at + 100000 WHERE path LIKE ?", (f"%{a}",))
    db.commit()
    assert [m["commit"] for m in alone.json("ls")["models"]] == [a]
    db.execute("UPDATE models SET scanned_at = 5")
    db.commit()
    assert [m["commit"] for m in alone.json("ls")["models"]] == [min(a, b)]


def test_ls_filters_and_columns(alone):
    """REG-088 REG-089 REG-090 REG-091 MOD-002: every family has a forward of its own: targeted"""
    plant(alone, NAME, model_files())
    odd = small_files()
    odd["config.json"] = b'{"model_type": "mystery"}'
    plant(alone, "org/odd", odd)
    text = alone.run("ls").stdout
    assert "supported (targeted)" in text and "4 bit g32" in text and "not supported" in text
    assert [m["repo_id"] for m in alone.json("ls", "--max-size", "0.0001GB")["models"]] == ["org/odd"]
    assert [m["repo_id"] for m in alone.json("ls", "llama")["models"]] == [NAME]
    assert "--max-size" in alone.run("ls", "--max-size", "big", status=2).stderr
    assert "nothing in" in alone.run("ls", "nix").stderr


def test_b116_cache_of_another_client_with_a_shard_missing(alone):
    """B-116 B-122: without our manifest the index, config.json and dangling links say what is missing."""
    files = small_files()
    for lost in ("model-00002-of-00003.safetensors", "config.json"):
        commit = plant(alone, NAME, files)
        (alone.repo(NAME) / "snapshots" / commit / lost).unlink()
        assert f"1 file missing ({lost})" in alone.run("generate", NAME, "--prompt", "x", status=4).stderr
        assert [m["missing_files"] for m in alone.json("ls")["models"]] == [1]
        subprocess.run(["rm", "-r", alone.repo(NAME)], check=True)
    commit = plant(alone, NAME, files)
    (alone.repo(NAME) / "blobs" / digest_of("model-00003-of-00003.safetensors", files["model-00003-of-00003.safetensors"])).unlink()
    assert "incomplete" in alone.run("ls").stdout
    text = alone.run("generate", alone.repo(NAME) / "snapshots" / commit, "--prompt", "x", status=4).stderr
    assert "incomplete, 1 file missing" in text


# --- gc ---


def cache_with_garbage(store):
    """Two revisions that share blobs, the old one unnamed; a data set; a repository with a broken ref; one without
    refs; a file that
    nobody knows; what gc may free."""
    files = small_files()
    old = plant(store, NAME, files, ref=None)
    new = plant(store, NAME, {**files, "model-00001-of-00003.safetensors": b"n" * 777})
    (store.cache / "datasets--org--tiny/blobs").mkdir(parents=True)
    (store.cache / "datasets--org--tiny/blobs" / ("a" * 64)).write_bytes(b"data")
    plant(store, "org/broken", small_files(seed=3), ref=None)
    (store.repo("org/broken") / "refs").mkdir()
    (store.repo("org/broken") / "refs/main").write_text("f" * 40)
    plant(store, "org/norefs", small_files(seed=4), ref=None)
    (store.repo(NAME) / "blobs/notes.txt").write_text("mine")
    (store.repo(NAME) / "blobs" / ("e" * 64)).write_bytes(b"orphan")
    (store.cache / "README").write_text("mine")
    return old, new, len(files["model-00001-of-00003.safetensors"]) + len(b"orphan")


def test_b125_gc_frees_what_no_revision_needs(alone):
    """B-125 REG-094 REG-095 REG-096 REG-098 REG-099 REG-100 REG-101 REG-104 REG-106 REG-107: the plan is what goes,
    nothing else does, and only with --yes."""
    old, new, gain = cache_with_garbage(alone)
    alone.run("scan")
    before = tree(alone.cache)
    plan = alone.json("gc")
    for args in ([], ["--dry-run"], ["--dry-run", "--yes"], ["--force"], ["--yes", "--dry-run", "--force"]):
        p = alone.json("gc", *args)
        assert p["repos"] == plan["repos"] and p["bytes"] == gain and not p["deleted"]
        assert {k: v for k, v in tree(alone.cache).items() if not k.startswith(".locks")} == before
    mine = {r["repo_id"]: r for r in plan["repos"]}[NAME]
    assert (mine["kept"], mine["pruned"], mine["skipped"], mine["bytes"]) == (1, 1, 0, gain)
    assert {i["kind"] for i in mine["items"]} == {"snapshot", "blob"}
    size = lambda: sum(len(v) for v in tree(alone.cache).values() if isinstance(v, bytes))  # noqa: E731
    was = size()
    done = alone.json("gc", "--yes")
    assert done["deleted"] and done["repos"] == plan["repos"]
    assert was - size() == gain
    gone = set(before) - set(tree(alone.cache))
    listed = {i["path"] for r in plan["repos"] for i in r["items"]}
    assert gone == {g for g in gone if g in listed or any(g.startswith(x + "/") for x in listed)}
    assert not [g for g in gone if NAME.replace("/", "--") not in g or g.startswith("datasets")]
    assert old not in rows(alone) and new in rows(alone)  # REG-107
    assert alone.json("gc")["bytes"] == 0
    text = alone.run("gc").stdout
    assert "nothing to free" in text


def test_gc_file_loss_rail(alone):
    """REG-097 REG-102 REG-103: a snapshot with a file that no kept one has stays and is named; --force takes it."""
    files = small_files()
    old = plant(alone, NAME, {**files, "optiq_vision.safetensors": b"tower" * 10, "notes.json": b"[]"}, ref=None)
    plant(alone, NAME, files)
    p = alone.json("gc", "--yes")
    r = p["repos"][0]
    assert (r["kept"], r["pruned"], r["skipped"], r["bytes"]) == (1, 0, 1, 0)
    assert len(r["warnings"]) == 2 and "optiq_vision.safetensors" in " ".join(r["warnings"]) and "notes.json" in " ".join(r["warnings"])
    assert (alone.repo(NAME) / "snapshots" / old).exists()
    text = alone.run("gc").stdout
    assert "1 skipped" in text and "optiq_vision.safetensors" in text
    assert alone.json("gc", "--force", "--yes")["bytes"] == 52
    assert not (alone.repo(NAME) / "snapshots" / old).exists()


def test_b124_partial_downloads(hub, store):
    """B-124: a cancelled download is listed with its size, goes on if kept, and gc and rm free it; a running one is
    left alone."""
    files = small_files()
    hub.repo(NAME).commit(files)

    def cancel():
        hub.held.clear()
        hub.release.clear()
        hub.fault("model-00001-of-00003.safetensors", "hold", 1000, times=1)
        p = store.start("get", NAME, "--parallel", "1")
        assert hub.held.wait(300)
        while not store.has_partial(NAME, 1000):
            time.sleep(0.005)
        return p

    p = cancel()
    assert store.json("ls")["partial"] == [{"repo_id": NAME, "partial_bytes": 1000, "files": 1, "active": True}]
    assert "a download is running" in store.run("ls").stdout
    g = store.json("gc", "--yes")
    assert g["bytes"] == 0 and "download is in progress" in g["repos"][0]["warnings"][0]
    assert "in progress" in store.run("rm", NAME, "--yes", status=11).stderr
    p.kill()
    p.communicate()
    hub.release.set()
    assert [(x["partial_bytes"], x["active"]) for x in store.json("ls")["partial"]] == [(1000, False)]
    assert "partial" in store.run("ls").stdout
    assert [i["kind"] for r in store.json("gc")["repos"] for i in r["items"]] == ["partial"]
    check_snapshot(store.get(NAME), files)  # kept: it goes on
    assert [h["Range"] for s, _, _, h in hub.requests if s == "cdn" and "Range" in h] == ["bytes=1000-"]
    store.run("rm", NAME, "--yes")
    assert not store.repo(NAME).exists()
    p = cancel()
    p.kill()
    p.communicate()
    hub.release.set()
    assert store.json("gc", "--yes")["bytes"] == 1000 and not store.partials(NAME)
    assert not store.json("ls")["partial"]


def test_rm(alone):
    """rm takes a repository, or one revision with what only it needs; a plan first, --yes deletes."""
    files = small_files()
    a = plant(alone, NAME, files)
    b = plant(alone, NAME, {**files, "model-00001-of-00003.safetensors": b"n" * 777}, ref="v2")
    assert alone.json("rm", f"{NAME}@v2")["bytes"] == 777
    assert alone.json("rm", f"{NAME}@{b[:8]}", "--yes")["bytes"] == 777
    assert not (alone.repo(NAME) / "refs/v2").exists() and b not in rows(alone)
    check_snapshot(alone.repo(NAME) / "snapshots" / a, files)
    assert "no revision 'v2'" in alone.run("rm", f"{NAME}@v2", "--yes", status=3).stderr
    assert "not in the cache" in alone.run("rm", "org/none", "--yes", status=3).stderr
    assert alone.json("rm", NAME, "--yes")["deleted"] and not alone.repo(NAME).exists() and not rows(alone)
    assert "what?" in alone.run("rm", status=2).stderr


def test_gc_leaves_alone_what_programs_use(alone):
    """B-125: an old snapshot that a server runs from, and one whose blob another program has mapped, stay, also with
    --force."""
    files = model_files()
    old = plant(alone, NAME, files, ref=None)
    plant(alone, NAME, {**files, "model.safetensors": files["model.safetensors"][:-1] + b"x"})
    gain = len(files["model.safetensors"])
    path = alone.repo(NAME) / "snapshots" / old
    p = alone.start("serve", str(path), "--port", "0")
    for line in p.stdout:
        if "url " in line:
            break
    r = alone.json("gc", "--yes", "--force")["repos"][0]
    assert r["bytes"] == 0 and "running server" in r["warnings"][0]
    assert "in use" in alone.run("rm", NAME, "--yes", status=11).stderr
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=300)
    code = "import mmap, sys, time; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); f.close(); " \
           "print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, path / "model.safetensors"], stdout=subprocess.PIPE, text=True) as m:
        m.stdout.readline()
        r = alone.json("gc", "--yes", "--force")["repos"][0]
        assert r["bytes"] == 0 and "running program" in r["warnings"][0]
        m.kill()
    assert alone.json("gc", "--yes")["bytes"] == gain
    assert not path.exists()


def test_gc_respects_locks_of_other_clients(alone):
    """A repository in which another client holds its lock file is left alone."""
    import fcntl
    cache_with_garbage(alone)
    locks = alone.cache / ".locks/models--org--tiny"
    locks.mkdir(parents=True)
    with open(locks / ("b" * 64 + ".lock"), "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert alone.json("gc", "--yes")["bytes"] == 0
    assert alone.json("gc", "--yes")["bytes"] > 0


def test_gc_one_repository(alone):
    cache_with_garbage(alone)
    plant(alone, "org/more", small_files(seed=1), ref=None)
    plant(alone, "org/more", small_files(seed=2))
    assert {r["repo_id"] for r in alone.json("gc", "org/more")["repos"]} == {"org/more"}
    assert "not a revision" in alone.run("gc", "org/more@main", status=2).stderr


# --- packed weights ---


def packed_rows(store):
    return store.json("ls")["packed"]


def start_packed(store, name):
    """A server over the packed weights of its model: the first start writes them, this one maps them."""
    store.run("generate", name, "--packed-cache", "--prompt", "hi", "--max-tokens", "2")
    p = store.start("serve", name, "--port", "0", "--packed-cache")
    for line in p.stdout:
        if "url " in line:
            break
    return p


def test_packed_weights_are_listed_and_go_first(alone):
    """design.md section 4: files of --packed-cache are listed by ls, with their model; gc frees them before all else, exactly those
    that it lists, but none that a program has mapped and no file that is not ours."""
    plant(alone, NAME, model_files())
    plant(alone, "org/two", model_files())
    for name in (NAME, "org/two"):
        alone.run("generate", name, "--packed-cache", "--prompt", "hi", "--max-tokens", "2")
    folder = alone.home / "own/packed"
    (folder / "notes.txt").write_text("mine")
    (folder / ("a" * 16 + ".bin.tmp.999999999.0")).write_bytes(b"unfinished")  # of a writer that was killed
    (folder / ("b" * 16 + ".bin")).write_bytes(b"of a folder that is gone")
    rows = {r["path"].rsplit("/", 1)[1]: r for r in packed_rows(alone)}
    assert {r["model"] for r in rows.values()} == {NAME, "org/two", None} and len(rows) == 4
    assert all(r["bytes"] == (folder / n).stat().st_size and not r["in_use"] for n, r in rows.items())
    text = alone.run("ls").stdout
    assert text.count("packed weights") == 4 and "packed weights, unfinished" in text
    assert alone.run("ls", "two").stdout.count("packed weights") == 1
    p = start_packed(alone, NAME)
    mine = next(r for r in packed_rows(alone) if r["model"] == NAME)
    assert mine["in_use"]
    before = {x.name: x.read_bytes() for x in folder.iterdir()}
    plan = alone.json("gc", "--dry-run", "--yes")
    assert {x.name: x.read_bytes() for x in folder.iterdir()} == before
    first = plan["repos"][0]
    assert first["repo_id"] == "(packed weights)" and mine["path"] in first["warnings"][0]
    assert {i["path"] for i in first["items"]} == {r["path"] for r in rows.values()} - {mine["path"]}
    assert {i["kind"] for i in first["items"]} == {"packed", "leftover"}
    assert plan["bytes"] == sum(i["bytes"] for i in first["items"])
    done = alone.json("gc", "--yes")
    assert done["repos"] == plan["repos"] and done["bytes"] == plan["bytes"]
    assert {x.name for x in folder.iterdir()} == {"notes.txt", mine["path"].rsplit("/", 1)[1]}
    end(p)
    assert alone.json("gc", NAME)["bytes"] == 0  # one repository: what belongs to none is not looked at
    assert alone.json("gc", "--yes")["bytes"] == mine["bytes"] and packed_rows(alone) == []
    assert "can be freed" not in alone.run("gc").stdout


def test_experts_of_an_offload_are_no_weights(alone):
    """REG-161: a file of experts beside the model is not counted by scan; ls and gc find it where the variable says."""
    commit = plant(alone, NAME, {p.name: p.read_bytes() for p in (LLAMA.parent / "qwen3_moe").iterdir() if p.is_file()})
    snapshot = alone.repo(NAME) / "snapshots" / commit
    size = alone.json("ls")["models"][0]["size_bytes"]
    alone.env["MLX_BUN_EXPERT_OFFLOAD"] = str(snapshot)
    alone.run("generate", NAME, "--prompt", "hi", "--max-tokens", "2")
    (file,) = snapshot.glob("*.experts")
    (snapshot / ".mlx-bun-offload").write_bytes(b"x" * 1000)
    alone.run("scan")
    (row,) = alone.json("ls")["models"]
    assert row["size_bytes"] == size and row["complete"]
    assert [(r["path"], r["model"], r["bytes"]) for r in packed_rows(alone)] == [(str(file), NAME, file.stat().st_size)]
    assert [i["path"] for i in alone.json("gc", "--yes")["repos"][0]["items"]] == [str(file)] and not file.exists()
    assert alone.run("generate", NAME, "--prompt", "hi", "--max-tokens", "2").stdout


# --- killed half way ---


def killed(store, args, seconds):
    p = store.start(*args)
    try:
        p.wait(seconds)
    except subprocess.TimeoutExpired:
        p.kill()
    p.communicate()


def test_kill_get_at_random_moments(hub, store):
    """kill -9 at random moments of get: a blob's name always means its bytes, nothing half counts as a model, the end
    is whole."""
    files = small_files(n=3, size=120000)
    hub.repo(NAME).commit(files)
    for name in files:
        hub.fault(name, "slow", 4000)
    rng = random.Random(7)
    for _ in range(200 if TORTURE else 8):
        killed(store, ["get", NAME], rng.uniform(0.0, 0.35))
        for blob in (store.repo(NAME) / "blobs").glob("*") if store.repo(NAME).exists() else []:
            if not blob.name.endswith((".incomplete", ".lock")):
                assert any(blob.name == digest_of(k, v) and blob.read_bytes() == v for k, v in files.items())
        if (store.repo(NAME) / "refs/main").exists():
            check_snapshot(store.repo(NAME) / "snapshots" / hub.repo(NAME).refs["main"], files)
            subprocess.run(["rm", "-r", store.repo(NAME)], check=True)
    hub.faults.clear()
    check_snapshot(store.get(NAME), files)
    assert not [p for p in store.repo(NAME).rglob("*") if p.name.endswith((".lock", ".incomplete"))]


def test_kill_gc_and_scan_at_random_moments(alone):
    """kill -9 at random moments of gc, rm and registry writes: kept models stay whole, the next run frees the rest."""
    rng = random.Random(9)
    for i in range(66 if TORTURE else 3):
        old, new, _ = cache_with_garbage(alone)
        kept = {n: tree(alone.repo(n)) for n in ("org/broken", "org/norefs")}
        want = tree(alone.repo(NAME) / "snapshots" / new)
        killed(alone, ["gc", "--yes"], rng.uniform(0.0, 0.04))
        killed(alone, ["scan"], rng.uniform(0.0, 0.04))
        for name, data in want.items():
            assert (alone.repo(NAME) / "snapshots" / new / name).exists()
        alone.run("gc", "--yes")
        assert alone.json("gc")["bytes"] == 0 and not (alone.repo(NAME) / "snapshots" / old).exists()
        assert tree(alone.repo(NAME) / "snapshots" / new) == want and not list(alone.repo(NAME).glob(".mlx-bun/*trash*"))
        for n, was in kept.items():
            assert tree(alone.repo(n)) == was
        assert len(alone.json("ls", "--all-revisions")["models"]) == 3
        killed(alone, ["rm", NAME, "--yes"], rng.uniform(0.0, 0.04))
        alone.run("gc", "--yes")
        assert not list(alone.cache.glob(".mlx-bun-trash*"))
        subprocess.run(["rm", "-rf", alone.cache], check=True)
