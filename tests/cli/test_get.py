"""mlx-bun get against a hub on this machine (hub_rig.py): layout, checks, resumption, locks, access, names, models.lock."""
import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hub_rig import (LLAMA, MLX_BUN, Store, check_snapshot, digest_of, git_sha1, model_files, sha256, small_files)

NAME = "org/tiny"
UNWANTED = (".gitattributes", "pytorch_model.bin")


def wanted(files):
    return {k: v for k, v in files.items() if k not in UNWANTED}


def wait_for(what, seconds=300):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


# --- layout ---


def test_get_layout(hub, store):
    """REG-001 REG-006 REG-007 REG-008 REG-009 REG-010 REG-011 REG-012 REG-014 REG-018 REG-022 REG-030: the standard
    cache, links relative, also from a sub-folder."""
    files = {**model_files(), "extra/deep/more.json": b"{}"}
    commit = hub.repo(NAME).commit(files)
    path = store.get(NAME)
    assert path == store.repo(NAME) / "snapshots" / commit
    check_snapshot(path, wanted(files))
    assert (store.repo(NAME) / "refs/main").read_text() == commit
    assert store.blobs(NAME) == {digest_of(k, v): len(v) for k, v in wanted(files).items()}
    assert not [p for p in store.repo(NAME).rglob("*") if p.name.endswith((".lock", ".incomplete"))]  # REG-044
    p = store.run("get", NAME, "--all")
    check_snapshot(p.stdout.strip(), files)


def test_get_nothing_changed_fetches_nothing(hub, store):
    """REG-029: one request, for the listing."""
    hub.repo(NAME).commit(model_files())
    store.get(NAME)
    hub.requests.clear()
    p = store.run("get", NAME)
    assert "up to date" in p.stderr and len(hub.requests) == 1
    assert store.json("get", NAME)["received_bytes"] == 0


def test_get_update_keeps_the_old_snapshot(hub, store):
    """REG-012 REG-028: the new commit gets a folder of its own, the old one stays, gc's gain is said."""
    files = model_files()
    old = hub.repo(NAME).commit(files)
    first = store.get(NAME)
    new = hub.repo(NAME).commit({**files, "README.md": b"---\nlicense: mit\n---\n"})
    hub.requests.clear()
    p = store.run("get", NAME)
    assert old[:12] in p.stderr and new[:12] in p.stderr and "mlx-bun gc would free" in p.stderr
    assert len(hub.requests) == 2  # the listing and one file
    check_snapshot(first, wanted(files))
    assert (store.repo(NAME) / "refs/main").read_text() == new
    assert store.json("get", f"{NAME}@{old}")["commit"] == old


def test_get_revisions(hub, store):
    """REG-014 REG-030: --revision and @rev; a commit writes no ref; refs/pr/1 is a path below refs/."""
    repo = hub.repo(NAME)
    a = repo.commit(small_files(seed=1), ref="v1")
    b = repo.commit(small_files(seed=2), ref="refs/pr/1")
    repo.commit(small_files(seed=3))
    assert store.get(NAME, "--revision", "v1").name == a
    assert store.get(f"{NAME}@refs/pr/1").name == b
    assert (store.repo(NAME) / "refs/v1").read_text() == a and (store.repo(NAME) / "refs/refs/pr/1").read_text() == b
    assert store.get(f"{NAME}@{repo.refs['main']}").name == repo.refs["main"]
    assert not (store.repo(NAME) / "refs/main").exists()
    assert "no such revision" in store.run("get", f"{NAME}@nix", status=3).stderr


def test_get_by_address(hub, store):
    """What a browser shows of the hub in use, or of the public one, names a model; of another host it does not."""
    repo = hub.repo("org/small")
    commit = repo.commit(small_files())
    repo.commit(small_files(seed=2), "dev")
    assert store.get(f"{hub.url}/org/small").name == commit
    assert store.get(f"{hub.url}/org/small/tree/dev/").name == repo.refs["dev"]
    assert store.get("https://huggingface.co/org/small").name == commit
    assert store.get(f"{hub.url}/org/small", env={"HF_ENDPOINT": f"{hub.url}/"}).name == commit
    for bad in (f"{hub.url}/org/small/blob/main/config.json", "https://example.org/org/small", f"{hub.url}/../x/y", f"{hub.url}/{'a' * 5000}/b",
                f"{hub.url}/", "", f"{hub.url}/org/small/tree/../../x"):
        hub.requests.clear()
        store.run("get", bad, status=2)
        assert not hub.requests


def test_get_by_query(hub, store):
    """REG-015 REG-016 REG-084: part of a name fetches that repository's newest commit; an unknown one points to ls."""
    hub.repo(NAME).commit(small_files())
    store.get(NAME)
    new = hub.repo(NAME).commit(small_files(seed=9))
    assert store.get("tin").name == new
    assert "mlx-bun ls nix" in store.run("get", "nix", status=3).stderr
    assert store.run("download", NAME).stdout.strip().endswith(new)  # REG-017 REG-241


def test_get_only_gguf_or_nothing(hub, store):
    hub.repo("org/gguf").commit({"a.gguf": b"GGUF", "README.md": b""})
    assert "mlx-bun convert" in store.run("get", "org/gguf", status=5).stderr
    hub.repo("org/text").commit({"README.md": b""})
    assert "no *.safetensors" in store.run("get", "org/text", status=5).stderr
    assert len(list(store.get("org/gguf", "--all").iterdir())) == 2


def test_get_many_files_at_once(hub, store):
    """Several files at once, the same content once, an empty file without a request."""
    files = small_files(n=9, size=200000)
    files["copy.safetensors"] = files["model-00001-of-00009.safetensors"]
    files["empty.txt"] = b""
    hub.repo(NAME).commit(files)
    check_snapshot(store.get(NAME, "--parallel", "7"), files)
    assert len(hub.gets("cdn")) == 9
    assert not [p for p in hub.gets() if "empty" in p]


def test_one_after_another(hub, store):
    """REG-019: --parallel 1 asks for a file when the one before it is there; otherwise several are on their way at once."""
    files = small_files(n=4, size=300000)
    hub.repo(NAME).commit(files)
    for name in files:
        hub.fault(name, "slow", 20000)
    check_snapshot(store.get(NAME, "--parallel", "1"), files)
    assert hub.most_sending == 1
    hub.repo("org/held").commit(small_files(n=4, seed=3))
    for i in range(4):
        hub.fault(f"model-{i + 1:05d}-of-00004.safetensors", "hold", 1000)
        hub.faults[f"model-{i + 1:05d}-of-00004.safetensors"].reverse()
    p = store.start("get", "org/held", "--parallel", "4")
    wait_for(lambda: hub.sending == 4 or p.poll() is not None)
    hub.release.set()
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0 and hub.most_sending == 4, err


# --- settings ---


def test_b119_relative_and_moved_caches(hub, tmp_path):
    """B-119 REG-003 REG-004 REG-005 CFG-046: a relative HF_HOME works from every folder, HF_HUB_CACHE wins, mv keeps
    links whole."""
    files = small_files()
    hub.repo(NAME).commit(files)
    s = Store(tmp_path, hub, HF_HOME="./c")
    path = s.get(NAME)
    assert path.is_absolute() and path.is_relative_to(tmp_path / "c/hub")
    check_snapshot(path, files)
    (tmp_path / "elsewhere").mkdir()
    other = s.run("get", NAME, cwd=tmp_path / "elsewhere").stdout.strip()
    assert Path(other).is_relative_to(tmp_path / "elsewhere/c/hub")
    own = s.run("get", NAME, env={"HF_HUB_CACHE": str(tmp_path / "d")}).stdout.strip()
    assert Path(own).is_relative_to(tmp_path / "d")
    os.rename(tmp_path / "d", tmp_path / "moved")
    hub.requests.clear()
    moved = s.run("get", NAME, env={"HF_HUB_CACHE": str(tmp_path / "moved"), "HF_HUB_OFFLINE": "1"}).stdout.strip()
    check_snapshot(moved, files)
    assert not hub.requests


def test_token_order_and_other_hosts(hub, store):
    """REG-023 REG-024 REG-025 REG-246: HF_TOKEN, then the login's file; the hub's host alone sees it."""
    hub.gated[NAME] = "hf_file"
    hub.repo(NAME).commit(small_files())
    (store.home / "hf").mkdir()
    (store.home / "hf/token").write_text("hf_file\n")
    store.run("get", NAME, env={"HF_TOKEN": "hf_other"}, status=2)
    store.get(NAME)
    seen = {(s, h.get("Authorization")) for s, _, _, h in hub.requests}
    assert seen == {("hub", "Bearer hf_other"), ("hub", "Bearer hf_file"), ("cdn", None)}


def test_gated_and_missing(hub, store):
    """REG-026: what to do stands in the text."""
    hub.gated[NAME] = "hf_x"
    hub.repo(NAME).commit(small_files())
    text = store.run("get", NAME, status=2).stderr
    assert "gated" in text and f"{hub.url}/{NAME}" in text and "HF_TOKEN" in text and "no token is set" in text
    assert "may not read" in store.run("get", NAME, status=2, env={"HF_TOKEN": "wrong"}).stderr
    assert "no such model" in store.run("get", "org/none", status=3).stderr
    assert not store.repo("org/none").exists()


def test_endpoint_must_be_a_url(store):
    """REG-027"""
    assert "HF_ENDPOINT" in store.run("get", NAME, status=2, env={"HF_ENDPOINT": "hub.example"}).stderr


# --- nobody is asked ---


def test_b121_no_request_when_pinned_or_offline(hub, store):
    """B-121: a commit that is there whole, and HF_HUB_OFFLINE, ask nobody; neither do the verbs that use a model."""
    commit = hub.repo(NAME).commit(model_files())
    path = store.get(NAME)
    hub.requests.clear()
    assert store.get(f"{NAME}@{commit}") == path
    assert store.run("get", NAME, env={"HF_HUB_OFFLINE": "1"}).stdout.strip() == str(path)
    for arg in (NAME, f"{NAME}@{commit}", f"{NAME}@main", "tiny", str(path), str(store.repo(NAME))):
        assert store.run("generate", arg, "--prompt", "hi", "--max-tokens", "2", "--temp", "0").stdout
    assert not hub.requests
    assert "mlx-bun get org/none" in store.run("generate", "org/none", "--prompt", "x", status=3).stderr
    assert "is not in the cache" in store.run("get", "org/none", env={"HF_HUB_OFFLINE": "1"}, status=3).stderr


def test_hub_away_uses_a_whole_copy(hub, store):
    hub.repo(NAME).commit(small_files())
    path = store.get(NAME)
    hub.down = True
    p = store.run("get", NAME, "--retries", "0")
    assert p.stdout.strip() == str(path) and "503" not in p.stdout and "using the copy in the cache" in p.stderr
    assert store.json("get", NAME, "--retries", "0")["hub_error"]
    assert "try again later" in store.run("get", "org/none", "--retries", "0", status=7).stderr


# --- interrupted ---


def interrupt(hub, store, files, sig=signal.SIGKILL):
    """A get that is ended while its second shard stands still at 1,000 bytes."""
    hub.repo(NAME).commit(files)
    hub.fault("model-00002-of-00003.safetensors", "hold", 1000, times=1)
    p = store.start("get", NAME, "--parallel", "1")
    assert hub.held.wait(300)
    wait_for(lambda: store.has_partial(NAME, 1000))
    p.send_signal(sig)
    out = p.communicate(timeout=300)
    hub.release.set()
    return p.returncode, *out


def test_b116_interrupted_download_is_never_a_model(hub, store):
    """B-116 REG-020 REG-036 REG-037 REG-040: killed after 1 of 3 shards; with the hub away nothing half is used; with
    it, only the
    rest is fetched."""
    files = small_files()
    assert interrupt(hub, store, files)[0] == -signal.SIGKILL
    snapshot = next((store.repo(NAME) / "snapshots").iterdir())
    for env in ({}, {"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        hub.down = True
        for arg in (NAME, "tiny", str(snapshot), str(store.repo(NAME))):
            p = store.run("generate", arg, "--prompt", "x", env=env, status=None)
            assert p.returncode in (3, 4) and ("incomplete" in p.stderr or arg != NAME), (arg, p.stderr)
        p = store.run("get", NAME, "--retries", "0", env=env, status=None)
        assert p.returncode in (4, 7) and "incomplete, 4 files missing" in p.stderr, p.stderr
        assert not p.stdout
    hub.down = False
    hub.requests.clear()
    check_snapshot(store.get(NAME), files)
    ranges = [h["Range"] for s, _, _, h in hub.requests if s == "cdn" and "Range" in h]
    assert ranges == ["bytes=1000-"] and len(hub.gets("cdn")) == 2


def test_interrupted_by_a_signal(hub, store):
    """REG-044: SIGINT ends in order: partial kept, no lock, the download is listed as an error."""
    files = small_files()
    code, out, err = interrupt(hub, store, files, signal.SIGINT)
    assert code == 12 and "cancelled" in err and not out
    assert len(store.partials(NAME)) == 1 and not list((store.repo(NAME) / "blobs").glob("*.lock"))
    check_snapshot(store.get(NAME), files)


@pytest.mark.parametrize("kind", ["norange", "flip"])
def test_resume_faults(hub, store, kind):
    """REG-021 REG-032 REG-035: a server without ranges sends all and is believed; a partial with a wrong beginning is
    found out."""
    files = small_files()
    interrupt(hub, store, files)
    if kind == "norange":
        hub.fault("model-00002-of-00003.safetensors", "norange")
        check_snapshot(store.get(NAME), files)
        return
    partial = store.partials(NAME)[0]
    partial.write_bytes(b"x" + partial.read_bytes()[1:])
    assert "sha256" in store.run("get", NAME, status=4).stderr
    assert not partial.exists()  # another file's may be there: it was under way when this one failed
    check_snapshot(store.get(NAME), files)


def test_resume_of_a_partial_that_is_whole_or_too_long(hub, store):
    files = small_files()
    interrupt(hub, store, files)
    partial = store.partials(NAME)[0]
    data = files["model-00002-of-00003.safetensors"]
    partial.write_bytes(data)  # all there, only the name was not given yet
    hub.requests.clear()
    check_snapshot(store.get(NAME), files)
    assert len(hub.gets("cdn")) == 1
    blob = store.repo(NAME) / "blobs" / sha256(data)
    blob.unlink()
    blob.with_name(blob.name + ".incomplete").write_bytes(data + b"more")
    check_snapshot(store.get(NAME), files)


def test_broken_connections_and_503_are_tried_again(hub, store):
    """Retries go on where the connection broke; --retries 0 keeps the partial and says how much came."""
    files = small_files(size=50000)
    hub.repo(NAME).commit(files)
    hub.fault("model-00001-of-00003.safetensors", "cut", 700, times=1)
    hub.fault("model-00002-of-00003.safetensors", "503", times=1)
    hub.fault("config.json", "503", times=1)
    check_snapshot(store.get(NAME), files)
    assert [h["Range"] for s, _, _, h in hub.requests if s == "cdn" and "Range" in h] == ["bytes=700-"]
    hub.repo("org/cut").commit(files)
    hub.fault("model-00003-of-00003.safetensors", "cut", 900, times=1)
    text = store.run("get", "org/cut", "--retries", "0", status=7).stderr
    assert "sent 900 of" in text
    cut = digest_of("model-00003-of-00003.safetensors", files["model-00003-of-00003.safetensors"])
    sizes = {p.name.split(".")[0]: p.stat().st_size for p in store.partials("org/cut")}
    assert sizes[cut] == 900  # another file's may be there: it was under way when this one failed


@pytest.mark.parametrize("kind, text", [("short", "sent 5"), ("flip", "the sha256 is"), ("html", "HTML page"),
                                        ("length", "announces"), ])
@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json"])
def test_b118_wrong_files_are_refused(hub, store, kind, text, name):
    """B-118 REG-031 REG-033 REG-034 REG-035: one byte short, one bit wrong, an HTML page with 200, a wrong
    Content-Length."""
    files = small_files()
    hub.repo(NAME).commit(files)
    hub.fault(name, kind, times=1)
    if name == "config.json":
        text = {"short": f"sent {len(files[name]) - 1} of {len(files[name])}", "flip": "the git sha1 is"}.get(kind, text)
    p = store.run("get", NAME, status=None)
    assert p.returncode in (4, 7) and text in p.stderr and name in p.stderr, p.stderr
    assert digest_of(name, files[name]) not in store.blobs(NAME)
    assert not (store.repo(NAME) / "refs").exists()
    if kind == "flip":
        assert not [x for x in store.partials(NAME) if x.name.startswith(digest_of(name, files[name]))]
    check_snapshot(store.get(NAME), files)


def test_verify_finds_a_rotten_blob(hub, store):
    files = small_files()
    hub.repo(NAME).commit(files)
    path = store.get(NAME)
    blob = (path / "model-00001-of-00003.safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    store.get(NAME)
    assert blob.read_bytes() == data  # sizes agree: without --verify nobody reads it
    store.get(NAME, "--verify")
    check_snapshot(path, files)


def test_space_is_looked_at_first(hub, store):
    """Not enough room is said before a byte is fetched."""
    hub.listing = json.dumps({"sha": "a" * 40, "siblings": [{"rfilename": "model.safetensors", "size": 1 << 43,
                              "lfs": {"sha256": "b" * 64, "size": 1 << 43}}]}).encode()
    text = store.run("get", NAME, status=8).stderr
    assert "8796.09 GB" in text and "mlx-bun gc" in text
    assert len(hub.requests) == 1


# --- locks ---


def lock_of(store, name, data):
    path = store.repo(NAME) / "blobs" / (digest_of(name, data) + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


@pytest.mark.parametrize("kind", ["live", "dead", "old", "reused", "empty"])
def test_locks(hub, store, kind):
    """REG-038 REG-039 REG-040 REG-041 REG-042 REG-044: pid and time; a live one fails at once, one of a dead process
    or an hour old is taken over."""
    files = small_files()
    hub.repo(NAME).commit(files)
    path = lock_of(store, "model-00001-of-00003.safetensors", files["model-00001-of-00003.safetensors"])
    gone = subprocess.Popen(["true"])
    gone.wait()
    text = {"live": f"{os.getpid()} {int(time.time())}", "dead": f"{gone.pid} {int(time.time())}",
            "old": f"{os.getpid()} 1", "reused": f"{os.getpid()} {int(time.time())} 12345", "empty": ""}[kind]
    path.write_text(text)
    if kind in ("old", "empty"):
        os.utime(path, (time.time() - 3700,) * 2)
    if kind == "live":
        text = store.run("get", NAME, status=11).stderr
        assert "another download" in text and "is in progress" in text
        assert path.read_text().startswith(str(os.getpid()))
        return
    check_snapshot(store.get(NAME), files)
    assert not path.exists()


def test_two_downloads_at_once(hub, store):
    """REG-042 REG-043: the second one fails at once and harms nothing."""
    files = small_files()
    hub.repo(NAME).commit(files)
    hub.fault("model-00001-of-00003.safetensors", "hold", 1000, times=1)
    p = store.start("get", NAME)
    assert hub.held.wait(300)
    assert "is in progress" in store.run("get", NAME, status=11).stderr
    hub.release.set()
    out, err = p.communicate(timeout=300)
    assert p.returncode == 0, err
    check_snapshot(out.strip(), files)


# --- names ---


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../../b", "..%2fx/y", "C:\\x/y", "a/b\\c", "org/..", "org/na..me", "-x/y",
                                  "org/x@../../refs", "org/x@a//b", "org/x@.hidden", "org/x/y", "/tmp/x", "org/" + "x" * 100])
def test_b155_model_names(hub, store, name):
    """B-155: what is not a name is refused before anything is opened or asked."""
    assert store.run("get", "--", name, status=None).returncode in (2, 3)
    assert store.run("get", name, status=None).returncode in (2, 3)
    assert store.run("rm", name, "--yes", status=None).returncode in (2, 3)
    assert not hub.requests and not store.cache.exists()


BAD_FILES = ["../../x.json", "a/../../b.json", "/etc/x.json", "a\\b.json", "a\u0000b.json", "", ".", "..", "a//b.json", "./a.json",
             "a/./b.json", "x\n.json", "d/" * 40 + "x.json", "y" * 300 + ".json"]


@pytest.mark.parametrize("bad", BAD_FILES)
def test_b155_hub_listing(hub, store, bad):
    """B-155: one name that leaves the snapshot refuses the whole listing."""
    ok = {"rfilename": "model.safetensors", "size": 3, "blobId": git_sha1(b"abc"), "lfs": {"sha256": sha256(b"abc"), "size": 3}}
    hub.listing = json.dumps({"sha": "a" * 40, "siblings": [ok, {"rfilename": bad, "size": 1, "blobId": git_sha1(b"x")}]}).encode()
    text = store.run("get", NAME, status=4).stderr
    assert "listing" in text
    assert not store.cache.exists() or not list(store.cache.rglob("*.json"))


@pytest.mark.parametrize("change, text", [({"sha": "sha256:../x"}, "commit"), ({"sha": None}, "commit"),
                                          ({"siblings": {}}, "no list"), ({"siblings": [{"rfilename": "a.json"}]}, "size"),
                                          ({"siblings": [{"rfilename": "a.json", "size": 1, "blobId": "sha256:../x"}]}, "identity"),
                                          ({"siblings": [{"rfilename": "a.json", "size": -1, "blobId": "a" * 40}]}, "size"),
                                          ({"siblings": [{"rfilename": "a.json", "size": 1, "blobId": "a" * 40}] * 2}, "twice"),
                                          ({"siblings": [{"rfilename": "a", "size": 1, "blobId": "a" * 40},
                                                         {"rfilename": "a/b", "size": 1, "blobId": "a" * 40}]}, "folder")])
def test_b155_digests_and_doubles(hub, store, change, text):
    """B-155: identities are hexadecimal digits and nothing else; a file is no folder."""
    hub.listing = json.dumps({"sha": "a" * 40, "siblings": [], **change}).encode()
    assert text in store.run("get", NAME, status=4).stderr


def test_b155_a_link_in_the_snapshot_is_not_followed(hub, store):
    """B-155: a folder of the snapshot that is a link to elsewhere gets no file."""
    files = {**small_files(), "sub/more.json": b"{}"}
    commit = hub.repo(NAME).commit(files)
    snapshot = store.repo(NAME) / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (store.home / "elsewhere").mkdir()
    (snapshot / "sub").symlink_to(store.home / "elsewhere")
    assert "is a link" in store.run("get", NAME, status=4).stderr
    assert not list((store.home / "elsewhere").iterdir())


@pytest.mark.parametrize("body, kind, text", [(b"<html>login</html>", "text/html", "HTML page"), (b"{", "application/json", "not JSON"),
                                              (b"[]", "application/json", "list"), (b"", "application/json", "not JSON")])
def test_listing_that_is_none(hub, store, body, kind, text):
    hub.listing, hub.listing_type = body, kind
    assert text in store.run("get", NAME, status=4).stderr


# --- models.lock ---


def test_models_lock(hub, store):
    """--lock writes repository, commit and hashes; --locked gets exactly these, also when the branch has moved."""
    files = small_files()
    commit = hub.repo(NAME).commit(files)
    hub.repo("org/other").commit(small_files(seed=5))
    store.get(NAME, "--lock")
    store.get("org/other", "--lock")
    lock = json.loads((store.home / "models.lock").read_text())
    assert [(m["repo"], m["revision"]) for m in lock["models"]] == [("org/other", "main"), (NAME, "main")]
    mine = lock["models"][1]
    assert mine["commit"] == commit
    assert {f["path"]: (f["size"], f["digest"]) for f in mine["files"]} == {
        k: (len(v), digest_of(k, v)) for k, v in files.items()}
    hub.repo(NAME).commit(small_files(seed=7))
    there = Store(store.home / "there", hub)
    there.home.mkdir()
    (there.home / "models.lock").write_bytes((store.home / "models.lock").read_bytes())
    p = there.run("get", "--locked")
    assert [Path(x).name for x in p.stdout.split()] == [m["commit"] for m in lock["models"]]
    check_snapshot(p.stdout.split()[1], files)
    hub.requests.clear()
    there.run("get", NAME, "--locked")
    assert not hub.requests  # pinned and whole
    mine["files"][0]["digest"] = "0" * 40
    (there.home / "bad.lock").write_text(json.dumps(lock))
    assert "models.lock" in there.run("get", NAME, "--locked", "--lock-file", "bad.lock", status=4).stderr
    assert "no entry" in there.run("get", "org/none", "--locked", status=3).stderr
    assert "--lock" in there.run("get", "--locked", "--lock-file", "none.lock", status=3).stderr


# --- what a person sees ---


def test_json_answer(hub, store):
    commit = hub.repo(NAME).commit(small_files())
    a = store.json("get", NAME)
    assert a["repo"] == NAME and a["commit"] == commit and a["path"].endswith(commit) and not a["from_cache"]
    assert a["files"] == 6 and a["bytes"] == a["received_bytes"] > 15000 and a["previous"] is None


def test_progress_on_a_terminal(hub, store):
    """A bar on a terminal that is wiped at the end; nothing of it elsewhere, nothing at all with --quiet."""
    files = small_files(n=3, size=3000000)
    hub.repo(NAME).commit(files)
    for name in files:
        hub.fault(name, "slow", 20000)
    a, b = pty.openpty()
    p = subprocess.Popen([MLX_BUN, "get", NAME], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=b, env=store.env)
    os.close(b)
    seen = b""
    while p.poll() is None or select.select([a], [], [], 0)[0]:
        if select.select([a], [], [], 0.05)[0]:
            try:
                seen += os.read(a, 4096)
            except OSError:
                break
    assert p.wait() == 0
    assert b"\r\x1b[K[" in seen and b"/5 files" not in seen and b"/6 files" in seen and b"%" in seen
    hub.faults.clear()
    quiet = store.run("get", NAME, "--quiet")
    assert not quiet.stderr and quiet.stdout.strip()


def test_downloads_are_recorded(hub, store):
    """REG-142 REG-143 REG-144 REG-145 REG-146: done and failed ones, the last five."""
    import sqlite3
    hub.repo(NAME).commit(small_files())
    store.get(NAME)
    for _ in range(5):
        store.run("get", "org/none", status=3)
    rows = sqlite3.connect(store.home / "own/registry.sqlite").execute(
        "SELECT repo_id, state, error FROM downloads ORDER BY id").fetchall()
    assert [r[:2] for r in rows] == [("org/none", "error")] * 5 and "no such model" in rows[0][2]
    store.get(NAME, "--verify")
    row = sqlite3.connect(store.home / "own/registry.sqlite").execute(
        "SELECT repo_id, state, files_done, files_total, finished_at FROM downloads ORDER BY id DESC").fetchone()
    assert row[:4] == (NAME, "done", 6, 6) and row[4] > 0


def test_get_says_what_it_wants(store):
    """REG-235"""
    assert "OWNER/NAME" in store.run("get", status=2).stderr
    assert "--locked" in store.run("help", "get").stdout and "--parallel" in store.run("get", "--help").stdout
    assert LLAMA.exists()
