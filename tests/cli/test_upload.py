"""mlx-bun upload against a hub on this machine (hub_push.py): the way there and back, what is not sent twice, refusals, interruptions,
and that nothing half is ever published."""
import json
import os
import pty
import select
import signal
import subprocess

import pytest

from hub_rig import LLAMA, MLX_BUN, Hub, Store, check_snapshot, is_lfs, model_files, sha256, small_files

NAME = "me/tiny"
TOKEN = "hf_writer"


@pytest.fixture
def hub():
    with Hub() as h:
        h.writer = TOKEN
        yield h


@pytest.fixture
def store(tmp_path, hub):
    return Store(tmp_path, hub, HF_TOKEN=TOKEN)


def folder(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


@pytest.fixture
def model(tmp_path):
    """Three shards, one of them larger than the hub takes in one piece, a sub-folder and an empty file."""
    files = {**small_files(n=3, size=5000), "extra/deep/more.json": b'{"a": 1}', "empty.txt": b"", "README.md": b"# ours\n"}
    files["model-00002-of-00003.safetensors"] = shard("t1", 250_001)
    return folder(tmp_path / "model", files), files


def shard(name, size):
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(i * 31 % 251 for i in range(size))


def head(hub, name=NAME):
    """The files of the newest commit, without the one that every repository begins with."""
    repo = hub.repos[name]
    return {k: v for k, v in repo.commits[repo.refs["main"]].items() if k != ".gitattributes"}


def commits(hub, name=NAME):
    return len(hub.repos[name].commits) - 1


def up(store, path, *args, **kw):
    return store.run("upload", "--path", path, "--upload-repo", NAME, *args, **kw)


# --- there and back ---


def test_upload_and_get(hub, store, model):
    """REG-225 REG-226 REG-227 REG-228 REG-231 REG-234: the repository is made, LFS files go whole or in parts to the storage, in the
    order of their names, the rest in the commit; what get brings back has the same hashes."""
    path, files = model
    p = up(store, path)
    assert p.stdout.splitlines() == [f"{hub.url}/{NAME}"] and "(new)" in p.stderr
    assert head(hub) == files and not hub.repos[NAME].private
    back = store.get(NAME, "--all")
    check_snapshot(back, {**files, ".gitattributes": (back / ".gitattributes").read_bytes()})
    steps = [p.split("?")[0] for _, c, p, _ in hub.requests if c in ("POST", "PUT")]
    small = [sha256(files[f"model-0000{i}-of-00003.safetensors"]) for i in (1, 3)]
    large = sha256(files["model-00002-of-00003.safetensors"])
    batch, verify = f"/{NAME}.git/info/lfs/objects/batch", "/lfs/verify"
    assert steps == ["/api/repos/create", f"/api/models/{NAME}/preupload/main", batch, batch, f"/lfs/put/{small[0]}", verify,
                     batch, *(f"/lfs/part/{large}/{i}" for i in (1, 2, 3)), f"/lfs/complete/{large}", verify,
                     batch, f"/lfs/put/{small[1]}", verify, f"/api/models/{NAME}/commit/main"]
    asked = [h.get("X-Asked") for _, _, p, h in hub.requests if p.startswith(("/lfs/put", "/lfs/verify"))]
    assert asked == ["put", "verify", "verify", "put", "verify"]  # what LFS says of an address goes there


def test_nothing_is_sent_twice(hub, store, model):
    """The same again is up to date; what changed is sent alone; content that the hub has under another name is not sent at all."""
    path, files = model
    first = json.loads(up(store, path, "--json").stdout)
    assert first["created"] and not first["up_to_date"] and first["sent_bytes"] == sum(len(v) for k, v in files.items() if is_lfs(k))
    again = json.loads(up(store, path, "--json").stdout)
    assert again["up_to_date"] and again["commit"] == first["commit"] and again["unchanged_files"] == len(files) and commits(hub) == 1
    (path / "README.md").write_bytes(b"# another\n")
    (path / "copy.safetensors").write_bytes(files["model-00002-of-00003.safetensors"])
    hub.requests.clear()
    third = json.loads(up(store, path, "--json").stdout)
    assert third["present_lfs_files"] == 1 and third["sent_bytes"] == 0 and not hub.puts() and third["commit"] != first["commit"]
    assert head(hub) == {**files, "README.md": b"# another\n", "copy.safetensors": files["model-00002-of-00003.safetensors"]}
    (path / "README.md").unlink()
    assert json.loads(up(store, path, "--json").stdout)["other_files"] == 2  # it stays there, as does .gitattributes


def test_same_content_twice_goes_once(hub, store, model):
    path, files = model
    (path / "copy.safetensors").write_bytes(files["model-00001-of-00003.safetensors"])
    up(store, path)
    assert len(hub.puts()) == 2 + 3  # two small ones, one in three parts
    assert head(hub)["copy.safetensors"] == files["model-00001-of-00003.safetensors"]


def test_the_clients_ways(hub, store, tmp_path):
    """REG-233: an adapter, a data set, a model of the cache (links into blobs), a folder as an argument."""
    adapter = {"adapter_config.json": b"{}", "adapters.safetensors": shard("a", 100)}
    up(store, folder(tmp_path / "adapter", adapter))
    assert head(hub) == adapter
    texts = {"train.jsonl": b'{"text": "a"}\n', ".cache/huggingface/x": b"not this", "data.parquet": b"PAR1"}
    p = store.run("upload", folder(tmp_path / "texts", texts), "--upload-repo", "me/texts", "--repo-type", "dataset")
    assert p.stdout.strip() == f"{hub.url}/datasets/me/texts"
    assert head(hub, "datasets/me/texts") == {k: v for k, v in texts.items() if not k.startswith(".cache")}
    hub.repo("org/tiny").commit(model_files())
    cached = store.get("org/tiny")
    store.run("upload", cached, "--upload-repo", "me/copy")
    assert head(hub, "me/copy") == {p.name: p.read_bytes() for p in cached.iterdir()}


def test_branch_message_and_gitignore(hub, store, model):
    """A branch that is there; the hub's .gitignore keeps files out."""
    path, files = model
    hub.make(NAME, False)
    hub.repos[NAME].commit({".gitignore": b"*.md\n"}, "dev")
    p = up(store, path, "--revision", "dev", "--commit-message", "ours, at last")
    repo = hub.repos[NAME]
    assert set(repo.commits[repo.refs["dev"]]) == set(files) - {"README.md"} | {".gitignore"} and "1 files are kept out" in p.stderr
    assert commits(hub) == 2 and head(hub) == {}
    assert "no such branch" in up(store, path, "--revision", "nix", status=3).stderr


def test_a_repository_that_moved(hub, store, model):
    """307 means the same request elsewhere, body and all; the token goes along, for it is the same host."""
    path, files = model
    hub.make("me/new", False)
    hub.moved = {NAME: "me/new"}
    up(store, path)
    assert head(hub, "me/new") == files and NAME not in hub.repos


def test_private(hub, store, model):
    """REG-226: --private makes it so, and nothing is sent to a repository that is public."""
    path, files = model
    up(store, path, "--private")
    assert hub.repos[NAME].private and head(hub) == files
    hub.make("me/open", False)
    hub.requests.clear()
    assert "public" in store.run("upload", path, "--upload-repo", "me/open", "--private", status=2).stderr
    assert len(hub.requests) == 1 and commits(hub, "me/open") == 0


# --- who may ---


def test_token_order_and_other_hosts(hub, store, model):
    """REG-229 REG-230 REG-246: ~/.mlx-bun/hf.json, then HF_TOKEN, then the login's file; the storage never sees one."""
    path, _ = model
    no_env = {"HF_TOKEN": ""}
    text = up(store, path, status=2, env=no_env).stderr
    assert "token" in text and f"{hub.url}/settings/tokens" in text and not hub.requests
    folder(store.home, {"hf/token": b"hf_login\n"})
    up(store, path, status=2, env=no_env)
    up(store, path, status=2, env={"HF_TOKEN": "hf_env"})
    folder(store.home, {".mlx-bun/hf.json": json.dumps({"token": TOKEN}).encode()})
    up(store, path, env={"HF_TOKEN": "hf_env"})
    seen = list(dict.fromkeys((s, h.get("Authorization")) for s, _, _, h in hub.requests))
    assert seen == [("hub", "Bearer hf_login"), ("hub", "Bearer hf_env"), ("hub", f"Bearer {TOKEN}"), ("cdn", None)]
    hub.requests.clear()
    store.run("get", NAME, env={"HF_TOKEN": "hf_env"})  # the other order
    assert {h.get("Authorization") for s, _, _, h in hub.requests if s == "hub"} == {"Bearer hf_env"}
    (store.home / ".mlx-bun/hf.json").write_text("[]")
    assert "hf.json" in up(store, path, status=4).stderr


def test_refusals(hub, store, model):
    """401, 403, 404 and what the hub says of them; names that cannot be one; nothing is sent."""
    path, _ = model
    assert "permission to write" in up(store, path, status=2, env={"HF_TOKEN": "hf_reader"}).stderr
    p = store.run("upload", path, "--upload-repo", "other/tiny", status=2)
    assert "(403)" in p.stderr and "You cannot make that repository" in p.stderr
    for name in ("tiny", "../x/y", "me/a b", "me/--x"):
        assert "owner/name" in store.run("upload", path, "--upload-repo", name, status=2).stderr
    assert "there is no such folder" in up(store, path / "nix", status=3).stderr
    assert "--upload-repo" in store.run("upload", path, status=2).stderr
    assert "HF_HUB_OFFLINE" in up(store, path, status=2, env={"HF_HUB_OFFLINE": "1"}).stderr
    assert not hub.puts() and not hub.repos
    assert "--private" in store.run("help", "upload").stdout and "--upload-repo" in store.run("upload", "--help").stdout  # REG-235


@pytest.mark.parametrize("step, status, code, word", [
    ("preupload", 401, 2, "does not accept the token"), ("preupload", 403, 2, "permission to write"), ("batch", 403, 2, "permission"),
    ("put", 413, 8, "refuses"), ("commit", 409, 11, "somebody else"), ("commit", 412, 11, "somebody else"), ("commit", 413, 8, "too large"),
    ("verify", 404, 3, "checking"), ("create", 500, 7, "fails (500)"), ("complete", 500, 7, "(500)"), ("put", 403, 7, "(403)"),
    ("commit", 503, 7, "fails (503)"), ("batch", 429, 7, "fewer requests"), ("commit", 400, 2, "as the test wants it"),
])
def test_failures_are_told(hub, store, model, step, status, code, word):
    """Each step, refused for good: an exit status of its kind, a text that says what to do, no commit; then the same command works."""
    path, files = model
    hub.push_fault(step, status, 99)
    p = up(store, path, "--retries", "0", status=None)
    assert p.returncode == code and word in p.stderr and not p.stdout, (p.returncode, p.stderr)
    assert NAME not in hub.repos or commits(hub) == 0
    hub.push_faults.clear()
    up(store, path)
    assert head(hub) == files and commits(hub) == 1


def test_failures_that_pass_are_tried_again(hub, store, model):
    """5xx and broken connections at every step."""
    path, files = model
    for i, step in enumerate(("create", "preupload", "batch", "put", "part", "complete", "verify", "commit")):
        hub.push_fault(step, (503, "cut")[i % 2])
    hub.push_fault("commit", 500)
    up(store, path)
    assert head(hub) == files and commits(hub) == 1


def test_a_signature_that_is_too_old(hub, store, model):
    """The storage refuses an address: another is asked for."""
    path, files = model
    hub.push_fault("put", 403)
    hub.push_fault("part", 403)
    p = json.loads(up(store, path, "--retries", "0", "--json").stdout)
    assert head(hub) == files and p["sent_bytes"] == sum(len(v) for k, v in files.items() if is_lfs(k))


@pytest.mark.parametrize("then", ["found", "moved"])
def test_a_commit_whose_answer_is_lost(hub, store, model, then):
    """The commit was made and nobody heard of it: it is found, not made again; unless somebody else committed then."""
    path, files = model
    hub.push_fault("commit", "lost" if then == "found" else 503)
    if then == "found":
        p = json.loads(up(store, path, "--json").stdout)
        assert p["commit"] == hub.repos[NAME].refs["main"] and commits(hub) == 1 and head(hub) == files
        return
    hub.make(NAME, False)
    hub.push_fault("commit", "hold")
    p = store.start("upload", path, "--upload-repo", NAME)
    assert hub.held.wait(300)
    hub.repos[NAME].commit({"other": b"x"})
    hub.release.set()
    assert p.communicate(timeout=300)[1].count("somebody else changed the repository") == 1 and p.returncode == 11
    assert head(hub) == {"other": b"x"}


# --- interruptions ---


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(hub, store, model, sig):
    """In the middle of the second shard: no commit; the same command sends what is missing and nothing else."""
    path, files = model
    hub.push_fault("part", "hold")
    p = store.start("upload", path, "--upload-repo", NAME)
    assert hub.held.wait(300)
    p.send_signal(sig)
    out, err = p.communicate(timeout=300)
    hub.release.set()
    assert not out and (sig == signal.SIGKILL or (p.returncode == 12 and "cancelled" in err))
    assert commits(hub) == 0 and sha256(files["model-00001-of-00003.safetensors"]) in hub.lfs
    hub.requests.clear()
    up(store, path)
    assert head(hub) == files and not [p for p in hub.puts() if sha256(files["model-00001-of-00003.safetensors"]) in p]
    assert sorted(p.name for p in path.iterdir()) == sorted({n.split("/")[0] for n in files})  # nothing was left in the folder


def parts_sent(hub):
    return [int(p.split("?")[0].rsplit("/", 1)[1]) for p in hub.puts() if "/lfs/part/" in p]


def begin_and_kill(hub, store, path, sig):
    """Two parts of three have arrived."""
    hub.push_fault("part", "hold", after=2)
    p = store.start("upload", path, "--upload-repo", NAME)
    assert hub.held.wait(300)
    p.send_signal(sig)
    p.communicate(timeout=300)
    hub.release.set()
    hub.requests.clear()


def notes(store):
    return list((store.home / "own/uploads").iterdir())


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_parts_that_arrived_are_not_sent_again(hub, store, model, sig):
    """The storage has two parts of three; a new question to the hub would begin another upload. The third goes alone, and what was
    noted for it, for this user's eyes only, is gone behind it."""
    path, files = model
    begin_and_kill(hub, store, path, sig)
    assert len(notes(store)) == 1 and notes(store)[0].stat().st_mode & 0o777 == 0o600
    got = json.loads(up(store, path, "--json").stdout)
    assert head(hub) == files and parts_sent(hub) == [3] and not notes(store)
    large = files["model-00002-of-00003.safetensors"]
    assert got["resumed_bytes"] == 200_000
    assert got["sent_bytes"] == len(large) - 200_000 + len(files["model-00003-of-00003.safetensors"])


@pytest.mark.parametrize("what", ["given up", "too old", "torn", "another's", "not ours", "no json", "a link", "not complete"])
def test_parts_that_cannot_be_gone_on_with(hub, store, model, what, tmp_path):
    """The storage has given the upload up, refuses the old addresses, lost a part; the note is damaged, of another repository or not a
    file of ours: begun anew, or with what is good of it, and the result is the same."""
    path, files = model
    begin_and_kill(hub, store, path, signal.SIGKILL)
    note, = notes(store)
    lines = note.read_bytes().splitlines(keepends=True)
    assert [json.loads(x).get("partNumber") for x in lines] == [None, 1, 2]
    wanted = [1, 2, 3]
    if what == "given up":
        hub.uploads.clear()
    elif what == "too old":
        hub.push_fault("part", 403)
        wanted = [3, 1, 2, 3]
    elif what == "torn":
        note.write_bytes(b"".join(lines)[:-7])
        wanted = [2, 3]
    elif what == "another's":
        note.write_bytes(lines[0].replace(b"/me/tiny", b"/me/else") + lines[1] + lines[2])
    elif what == "not ours":
        note.write_bytes(lines[0].replace(b'"100000"', b'"0"') + lines[1] + lines[2])
    elif what == "no json":
        note.write_bytes(b"\xff\n" + lines[1])
    elif what == "a link":
        note.rename(tmp_path / "elsewhere")
        note.symlink_to(tmp_path / "elsewhere")
    else:
        hub.parts = {k: v for k, v in hub.parts.items() if k[1] != 1}
        wanted = [3, 1, 2, 3]
    if what == "given up":
        wanted = [3, 1, 2, 3]
    up(store, path)
    assert head(hub) == files and parts_sent(hub) == wanted
    assert what == "a link" or not notes(store)


@pytest.mark.parametrize("code", [503, 429, 403])
def test_a_completion_that_fails(hub, store, model, code):
    """The request that puts the parts together fails in a way that may pass: all parts have arrived, and the same command sends none."""
    path, files = model
    hub.same_upload = True
    hub.push_fault("complete", code, 99)
    p = up(store, path, "--retries", "0", status=None)
    assert p.returncode != 0 and parts_sent(hub) == [1, 2, 3] and len(notes(store)) == 1
    hub.push_faults.clear()
    hub.requests.clear()
    got = json.loads(up(store, path, "--json").stdout)
    assert head(hub) == files and not parts_sent(hub) and not notes(store)
    assert got["resumed_bytes"] == len(files["model-00002-of-00003.safetensors"])


def test_parts_of_another_size(hub, store, model):
    """The same upload whose parts are cut otherwise now: what has arrived is of no use. A size that cannot be is refused."""
    path, files = model
    hub.same_upload = True
    hub.push_fault("complete", 403, 99)
    up(store, path, "--retries", "0", status=None)
    hub.push_faults.clear()
    hub.requests.clear()
    hub.push_fault("complete", 403)  # the noted addresses: the hub is asked again
    hub.part_bytes = 150_000
    up(store, path)
    assert head(hub) == files and parts_sent(hub) == [1, 2]


@pytest.mark.parametrize("say,text", [({"chunk_said": 2**62}, "parts of a size that cannot be"), ({"etag_said": "\xff\xfe"}, "a name that is no text")])
def test_parts_that_make_no_sense(hub, store, model, say, text):
    path, _ = model
    vars(hub).update(say)
    assert text in up(store, path, status=4).stderr


def test_old_notes_are_swept(hub, store, model):
    path, _ = model
    folder(store.home, {"own/uploads/old.parts": b"", "own/uploads/new.parts": b"", "own/uploads/other": b""})
    for name in ("old.parts", "other"):
        os.utime(store.home / "own/uploads" / name, (1, 1))
    up(store, path)
    assert sorted(p.name for p in notes(store)) == ["new.parts", "other"]


def test_a_signature_that_ends_between_parts(hub, store, model):
    """New addresses of the same upload: what has arrived stays."""
    path, files = model
    hub.same_upload = True
    hub.push_fault("part", 403, after=1)
    got = json.loads(up(store, path, "--json").stdout)
    assert head(hub) == files and parts_sent(hub) == [1, 2, 2, 3] and got["resumed_bytes"] == 0
    assert got["sent_bytes"] == sum(len(v) for k, v in files.items() if is_lfs(k))


@pytest.mark.parametrize("victim", ["README.md", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"])
def test_a_folder_that_changes(hub, store, model, victim):
    """A file that was hashed, sent, or is on its way becomes another: no commit."""
    path, files = model
    hub.push_fault("part", "hold")
    p = store.start("upload", path, "--upload-repo", NAME)
    assert hub.held.wait(300)
    (path / victim).write_bytes(files[victim] + b"\n")
    hub.release.set()
    out, err = p.communicate(timeout=300)
    assert p.returncode == 7 and not out and victim in err and "changed while it was published" in err
    assert commits(hub) == 0


def test_progress_in_a_terminal(hub, store, model):
    """A bar while bytes are on their way; plain lines would come every five seconds."""
    path, files = model
    hub.push_fault("part", "hold")
    master, slave = pty.openpty()
    p = subprocess.Popen([MLX_BUN, "upload", str(path), "--upload-repo", NAME], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=slave, env=store.env)
    os.close(slave)
    seen = b""
    while b"sending [" not in seen:
        assert select.select([master], [], [], 300)[0], seen
        seen += os.read(master, 65536)
    hub.release.set()
    assert p.wait(timeout=300) == 0
    os.close(master)
    assert b"of 260 KB" in seen and b"/3 files" in seen and head(hub) == files


# --- half models ---


def half_models():
    whole = small_files(n=2)
    first = "model-00001-of-00002.safetensors"
    return {
        "a shard is missing": ({k: v for k, v in whole.items() if k != first}, first),
        "a shard is cut": ({**whole, first: whole[first][:-1]}, first),
        "no weights": ({"config.json": b"{}"}, "half a model"),
        "no adapter": ({"adapter_config.json": b"{}"}, "half a model"),
        "no model": ({"README.md": b"x"}, "--repo-type dataset"),
        "a download": ({**whole, "x.incomplete": b""}, "not whole"),
        "a conversion": ({**whole, ".mlx-bun-part": b""}, "not whole"),
    }


@pytest.mark.parametrize("kind", half_models())
def test_half_a_model_is_refused(hub, store, tmp_path, kind):
    files, word = half_models()[kind]
    p = up(store, folder(tmp_path / "half", files), status=4)
    assert word in p.stderr and not hub.requests and not hub.repos


def test_half_a_model_of_the_cache_is_refused(hub, store):
    hub.repo("org/tiny").commit(small_files())
    hub.fault("model-00002-of-00003.safetensors", "cut", 1000)
    store.run("get", "org/tiny", "--retries", "0", status=7)
    snapshot = next((store.repo("org/tiny") / "snapshots").iterdir())
    hub.requests.clear()
    assert "incomplete" in up(store, snapshot, status=4).stderr and not hub.requests


def test_what_cannot_be_published(hub, store, model, tmp_path):
    """A link into nothing, a link to a folder, a name that is no name."""
    path, _ = model
    for name, target in (("dangling", "nowhere"), ("folder", str(tmp_path))):
        (path / name).symlink_to(target)
        assert name in up(store, path, status=None).stderr
        (path / name).unlink()
    (path / "a\\b").write_bytes(b"x")
    assert "cannot be published" in up(store, path, status=4).stderr
    assert not hub.requests and not hub.repos


# --- convert ---


def test_convert_and_publish(hub, store, tmp_path):
    """REG-194 REG-198: what convert made is published; a name or a token that cannot work is told before the work; when the hub fails
    the folder is there nevertheless."""
    args = ("convert", LLAMA, "-q", "--q-group-size", "32", "--upload-repo", NAME, "--private", "--mlx-path")
    assert "token" in store.run(*args, "none", env={"HF_TOKEN": ""}, status=2).stderr and not (tmp_path / "none").exists()
    report = store.json(*args, "out")
    out = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert head(hub) == out and report["upload"]["commit"] == hub.repos[NAME].refs["main"] and hub.repos[NAME].private
    hub.push_fault("commit", 403, 99)
    p = store.run("convert", LLAMA, "-q", "--q-group-size", "64", "--upload-repo", NAME, "--mlx-path", "again", status=2)
    assert "again is made but not published" in p.stderr and "mlx-bun upload again" in p.stderr and (tmp_path / "again/config.json").exists()
    hub.push_faults.clear()
    store.run("upload", "again", "--upload-repo", NAME)
    assert head(hub)["config.json"] == (tmp_path / "again/config.json").read_bytes()
