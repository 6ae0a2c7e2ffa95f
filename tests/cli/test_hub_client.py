"""The real huggingface_hub client over the same hub and the same cache: it downloads from our test hub, reads the cache that
mlx-bun wrote, and mlx-bun reads the cache that it wrote; it publishes there as mlx-bun does. The interpreter is $MLX_BUN_HF_PYTHON, else this one; without the client
the tests are skipped."""
import json
import os
import subprocess
import sys
import time

import pytest

from hub_rig import check_snapshot, model_files, sha256, small_files

PYTHON = os.environ.get("MLX_BUN_HF_PYTHON", sys.executable)
HAS_CLIENT = subprocess.run([PYTHON, "-c", "import huggingface_hub"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not HAS_CLIENT, reason="huggingface_hub is not installed (MLX_BUN_HF_PYTHON names a Python that has it)")
NAME = "org/tiny"
UNWANTED = (".gitattributes", "pytorch_model.bin")


def client(store, code, status=0, **env):
    p = subprocess.run([PYTHON, "-c", "import json, sys, huggingface_hub as hf\n" + code], capture_output=True, text=True, timeout=300,
                       env={**store.env, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                            **env})
    assert p.returncode == status, p.stderr[-3000:]
    return p.stdout.strip()


def test_client_downloads_from_the_test_hub(hub, store):
    """The hub of our tests behaves as the real client expects: so the tests mean something."""
    files = model_files()
    hub.repo(NAME).commit(files)
    path = client(store, f"print(hf.snapshot_download({NAME!r}))")
    check_snapshot(path, files)
    hub.gated["org/closed"] = "hf_x"
    hub.repo("org/closed").commit(files)
    assert "Gated" in client(store, "try:\n hf.snapshot_download('org/closed')\nexcept Exception as e: print(type(e).__name__)")
    assert client(store, "print(hf.snapshot_download('org/closed'))", HF_TOKEN="hf_x")


def test_client_reads_our_cache(hub, store):
    """REG-001 REG-013: the client finds what mlx-bun wrote, whole, and downloads nothing."""
    files = {**model_files(), "sub/x.json": b"{}"}
    commit = hub.repo(NAME).commit(files)
    ours = store.get(NAME, "--all")
    hub.requests.clear()
    path = client(store, f"print(hf.snapshot_download({NAME!r}))", HF_HUB_OFFLINE="1")
    assert path == str(ours) and not hub.requests
    assert client(store, f"print(hf.try_to_load_from_cache({NAME!r}, 'sub/x.json'))") == str(ours / "sub/x.json")
    client(store, f"print(hf.snapshot_download({NAME!r}))")
    assert not hub.gets("cdn") and not [p for p in hub.gets() if "/resolve/" in p]
    scan = json.loads(client(store, """
i = hf.scan_cache_dir()
print(json.dumps({"warnings": [str(w) for w in i.warnings], "repos": [[r.repo_id, r.repo_type, r.nb_files,
      sorted(v.commit_hash for v in r.revisions)] for r in i.repos]}))"""))
    assert scan == {"warnings": [], "repos": [[NAME, "model", len(files), [commit]]]}


def test_b122_cache_of_the_client(hub, store):
    """B-122 REG-013: two revisions, .no_exist entries, a data set: listed as owner/name@rev, nothing is fetched or stored twice."""
    one = model_files()
    repo = hub.repo(NAME)
    a = repo.commit({k: v for k, v in one.items() if k not in UNWANTED})
    client(store, f"print(hf.snapshot_download({NAME!r}))")
    b = repo.commit({**{k: v for k, v in one.items() if k not in UNWANTED}, "README.md": b"new\n"})
    client(store, f"print(hf.snapshot_download({NAME!r}))")
    client(store, f"try:\n hf.hf_hub_download({NAME!r}, 'absent.json')\nexcept Exception as e: print(type(e).__name__)")
    assert list(store.repo(NAME).glob(".no_exist/*/absent.json"))
    (store.cache / "datasets--org--tiny/snapshots" / a).mkdir(parents=True)
    blobs = store.blobs(NAME)
    hub.requests.clear()
    rows = store.json("ls", "--all-revisions")["models"]
    assert {(r["repo_id"], r["commit"], r["canonical"], r["complete"]) for r in rows} == {(NAME, a, False, True), (NAME, b, True, True)}
    text = store.run("ls", "--all-revisions").stdout
    assert f"* {NAME}@{b[:12]}" in text and f"  {NAME}@{a[:12]}" in text and len(text.splitlines()) == 2
    assert store.run("generate", NAME, "--prompt", "hi", "--max-tokens", "2").stdout
    assert not hub.requests
    assert store.get(NAME).name == b and len(hub.requests) == 1 and store.blobs(NAME) == blobs


def test_client_and_mlx_bun_continue_each_other(hub, store):
    """A revision that mlx-bun began is finished by the client, and the reverse."""
    files = small_files()
    hub.repo(NAME).commit(files)
    hub.fault("model-00002-of-00003.safetensors", "cut", 1000, times=1)
    store.run("get", NAME, "--retries", "0", "--parallel", "1", status=7)
    hub.requests.clear()
    check_snapshot(client(store, f"print(hf.snapshot_download({NAME!r}))"), files)
    assert len(hub.gets("cdn")) == 2
    assert store.get(NAME)
    hub.repo("org/two").commit(files)
    client(store, "hf.hf_hub_download('org/two', 'model-00001-of-00003.safetensors')")
    hub.requests.clear()
    assert "incomplete" in store.run("generate", "org/two", "--prompt", "x", status=4).stderr
    check_snapshot(store.get("org/two"), files)
    assert len(hub.gets("cdn")) == 2


def test_gc_agrees_with_the_client(hub, store):
    """REG-099 REG-100 REG-106: what gc leaves is what the client's own cache report calls whole."""
    one = model_files()
    repo = hub.repo(NAME)
    a = repo.commit(one)
    client(store, f"print(hf.snapshot_download({NAME!r}))")
    b = repo.commit({**one, "model.safetensors": one["model.safetensors"][:-1] + b"x"})
    client(store, f"print(hf.snapshot_download({NAME!r}))")
    hub.repo("org/other").commit(small_files())
    client(store, "hf.hf_hub_download('org/other', 'config.json', revision='main')")
    plan = store.json("gc")
    done = store.json("gc", "--yes")
    assert plan["bytes"] == done["bytes"] == len(one["model.safetensors"]) and plan["repos"] == done["repos"]
    scan = json.loads(client(store, """
i = hf.scan_cache_dir()
print(json.dumps({"warnings": [str(w) for w in i.warnings], "revisions": sorted(v.commit_hash for r in i.repos for v in r.revisions
      if r.repo_id == 'org/tiny'), "n": len(i.repos)}))"""))
    assert scan == {"warnings": [], "revisions": [b], "n": 2} and a != b


def contents(folder):
    """Every file and link below a folder, locks aside: path to (bytes, or where it points)."""
    return {str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.stat().st_size for p in sorted(folder.rglob("*"))
            if (p.is_symlink() or p.is_file()) and ".locks/" not in str(p)}


def test_b125_gc_while_everything_goes_on(hub, store):
    """Issue 7, B-125: a cache of the real client: shared blobs, two revisions, a data set, a space and a model that is not ours to
    judge, a server that runs from an old revision, a download under way: gc frees exactly what --dry-run listed, byte for byte, and
    what the others need stays whole."""
    one = {k: v for k, v in model_files().items() if k not in UNWANTED}
    fetch = "for n, t in TODO: hf.snapshot_download(n, repo_type=t)"
    repo = hub.repo(NAME)
    old = repo.commit(one)
    hub.repo("org/served").commit(one)
    served_old = hub.repos["org/served"].refs["main"]
    hub.repo("datasets/org/data").commit({"train.jsonl": b"{}\n"})
    todo = [(NAME, "model"), ("org/served", "model"), ("org/data", "dataset")]
    client(store, fetch.replace("TODO", repr(todo)))
    weights = {**one, "model.safetensors": one["model.safetensors"][:-1] + b"x"}  # the rest is shared
    new = repo.commit(weights)
    hub.repos["org/served"].commit(weights)
    client(store, fetch.replace("TODO", repr(todo[:2])))
    foreign = store.repo("org/foreign")  # of a program that names no refs
    (foreign / "blobs").mkdir(parents=True)
    (foreign / "blobs" / ("c" * 64)).write_bytes(b"foreign")
    (store.cache / "spaces--org--app/blobs").mkdir(parents=True)
    (store.cache / "spaces--org--app/blobs" / ("d" * 64)).write_bytes(b"space")
    (store.repo(NAME) / "blobs" / ("e" * 64)).write_bytes(b"orphan")
    hub.repo("org/coming").commit(small_files())
    hub.fault("model-00002-of-00003.safetensors", "hold", 1000, times=1)
    server = store.start("serve", str(store.repo("org/served") / "snapshots" / served_old), "--port", "0")
    assert any("url " in line for line in server.stdout)
    download = store.start("get", "org/coming", "--parallel", "1")
    assert hub.held.wait(300)
    while not store.has_partial("org/coming", 1000):
        time.sleep(0.005)
    before = contents(store.cache)
    plan = store.json("gc", "--dry-run", "--yes")
    assert contents(store.cache) == before and not plan["deleted"]
    done = store.json("gc", "--yes")
    assert done["repos"] == plan["repos"] and done["bytes"] == plan["bytes"] == len(one["model.safetensors"]) + len(b"orphan")
    after = contents(store.cache)
    gone = set(before) - set(after)
    listed = [i["path"] for r in plan["repos"] for i in r["items"]]
    assert {k: v for k, v in before.items() if k not in gone} == after
    assert all(any(g == x or g.startswith(x + "/") for x in listed) for g in gone)
    assert all(any(g == x or g.startswith(x + "/") for g in gone) for x in listed)
    assert sum(v for k, v in before.items() if k in gone and isinstance(v, int)) == plan["bytes"]
    said = {r["repo_id"]: " ".join(r["warnings"]) for r in plan["repos"]}
    assert "running server" in said["org/served"] and "download is in progress" in said["org/coming"]
    hub.release.set()
    out, err = download.communicate(timeout=300)
    assert download.returncode == 0, err
    check_snapshot(out.strip(), small_files())
    server.terminate()
    server.communicate(timeout=300)
    for name, commit, files in ((NAME, new, weights), ("org/served", served_old, one)):
        check_snapshot(store.repo(name) / "snapshots" / commit, files)
    hub.requests.clear()
    client(store, fetch.replace("TODO", repr(todo)), HF_HUB_OFFLINE="1")
    scan = json.loads(client(store, """
i = hf.scan_cache_dir()
print(json.dumps(sorted([r.repo_type, r.repo_id, sorted(v.commit_hash for v in r.revisions)] for r in i.repos)))"""))
    assert ["model", NAME, [new]] in scan and [r[:2] for r in scan if r[1] == "org/data"] == [["dataset", "org/data"]]
    assert not hub.requests and old != new
    assert store.json("gc", "--yes")["bytes"] == len(one["model.safetensors"])  # the server has gone


def test_client_publishes_as_we_do(hub, store, tmp_path):
    """REG-227 REG-231: what the client publishes is up to date for mlx-bun, and the reverse: the same files have the same hashes, by
    LFS in parts and whole and in the commit. So the hub of our tests takes what the real hub's client sends."""
    hub.writer, files = "hf_w", {**model_files(), "sub/x.json": b"{}", "empty.txt": b""}
    hub.part_bytes = 50_000
    folder = tmp_path / "folder"
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    push = """
api = hf.HfApi()
api.create_repo(NAME, private=True, exist_ok=True)
print(json.dumps({"commit": api.upload_folder(repo_id=NAME, folder_path=FOLDER).oid}))"""
    theirs, ours = "me/theirs", "me/ours"
    for name in (theirs, ours):
        if name == ours:
            store.run("upload", folder, "--upload-repo", name, "--private", env={"HF_TOKEN": "hf_w"})
        said = json.loads(client(store, push.replace("NAME", repr(name)).replace("FOLDER", repr(str(folder))), HF_TOKEN="hf_w").splitlines()[-1])
        assert said["commit"] == hub.repos[name].refs["main"] and len(hub.repos[name].commits) == 2, name
        assert hub.repos[name].private
        if name == theirs:
            assert sha256(files["model.safetensors"]) in hub.lfs and any("/lfs/part/" in p for p in hub.puts())
            hub.requests.clear()
            again = store.json("upload", folder, "--upload-repo", name, env={"HF_TOKEN": "hf_w"})
            assert again["up_to_date"] and again["commit"] == said["commit"] and not hub.puts()
            hub.lfs.clear()
    assert {k: v for k, v in hub.repos[ours].commits[hub.repos[ours].refs["main"]].items()} == files
    path = store.run("get", ours, "--all", env={"HF_TOKEN": "hf_w"}).stdout.strip()
    check_snapshot(path, files)
