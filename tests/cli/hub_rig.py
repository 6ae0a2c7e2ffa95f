"""A hub on this machine: the parts of the Hugging Face API that clients use to download (to publish: hub_push.py), with LFS files behind a redirect to a
second server ("the CDN"), and faults on demand. tests/cli/test_hub_client.py runs the real client against it."""
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hub_push import Push

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = ROOT / "tests/golden/tiny/llama"
TORTURE = os.environ.get("MLX_BUN_TORTURE") == "1"


def hashed(kind, data, head=b"", known={}):  # noqa: B006: large bodies are hashed once; they live as long as the run
    if len(data) < 1 << 20:
        return hashlib.new(kind, head + data).hexdigest()
    key = (kind, id(data))
    if key not in known:
        h = hashlib.new(kind, head)
        h.update(data)
        known[key] = (h.hexdigest(), data)
    return known[key][0]


def git_sha1(data):
    return hashed("sha1", data, b"blob %d\0" % len(data))


def sha256(data):
    return hashed("sha256", data)


def is_lfs(path):
    return path.endswith((".safetensors", ".gguf", ".bin"))


def digest_of(path, data):
    return sha256(data) if is_lfs(path) else git_sha1(data)


def repo_key(kind, name):
    return name if kind == "models" else f"{kind}/{name}"


class Repo:
    def __init__(self, private=False):
        self.commits, self.refs, self.private = {}, {}, private

    def commit(self, files, ref="main"):
        """A new commit with exactly these files; its id."""
        sha = hashlib.sha1(repr((sorted(files), [sha256(v) for v in files.values()], len(self.commits))).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[ref] = sha
        return sha

    def resolve(self, revision):
        return self.refs.get(revision, revision if revision in self.commits else None)


class Handler(Push, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def note(self):
        hub = self.server.hub
        with hub.lock:
            hub.requests.append((self.server.name, self.command, self.path, dict(self.headers)))
        return hub

    def do_GET(self):
        hub = self.note()
        try:
            if hub.down:
                return self.reply(503, b"try later")
            if self.redirected(hub):
                return None
            return self.cdn() if self.server.name == "cdn" else self.api()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # --- the API ---

    def api(self):
        url = urllib.parse.urlsplit(self.path)
        m = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?(?:/.*)?", url.path)
        if m:
            return self.info(repo_key(m[1], m[2]), m[3] or "revision", urllib.parse.unquote(m[4] or "main"))
        m = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path)
        if m:
            return self.file(m[1], urllib.parse.unquote(m[2]), urllib.parse.unquote(m[3]))
        return self.reply(404, b"no such page")

    def allowed(self, name):
        hub = self.server.hub
        if name in hub.gated and self.headers.get("Authorization") != f"Bearer {hub.gated[name]}":
            self.reply(401 if "Authorization" not in self.headers else 403, b"{}", X_Error_Code="GatedRepo")
            return False
        if hub.repos[name].private and self.headers.get("Authorization") != f"Bearer {hub.writer}":
            self.reply(404, b"{}", X_Error_Code="RepoNotFound")
            return False
        return True

    def info(self, name, kind, revision):
        hub = self.server.hub
        repo = hub.repos.get(name)
        if hub.listing is not None:
            return self.reply(200, hub.listing, Content_Type=hub.listing_type)
        if not repo:
            return self.reply(404, b"{}", X_Error_Code="RepoNotFound")
        sha = repo.resolve(revision)
        if not sha:
            return self.reply(404, b"{}", X_Error_Code="RevisionNotFound")
        if not self.allowed(name):
            return None
        files = repo.commits[sha]
        if kind == "tree":
            body = [self.tree_entry(p, v) for p, v in sorted(files.items())]
        else:
            body = {"id": name, "modelId": name, "sha": sha, "private": repo.private, "gated": "auto" if name in hub.gated else False,
                    "disabled": False, "downloads": 0, "likes": 0, "tags": [],
                    "siblings": [self.sibling(p, v) for p, v in sorted(files.items())]}
        return self.reply(200, json.dumps(body).encode(), Content_Type="application/json", X_Repo_Commit=sha)

    def sibling(self, path, data):
        s = {"rfilename": path, "size": len(data), "blobId": git_sha1(data)}
        if is_lfs(path):
            s["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
        return s

    def tree_entry(self, path, data):
        e = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
        if is_lfs(path):
            e["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
        return e

    def file(self, name, revision, path):
        hub = self.server.hub
        repo = hub.repos.get(name)
        sha = repo and repo.resolve(revision)
        if not repo or not sha:
            return self.reply(404, X_Error_Code="RevisionNotFound" if repo else "RepoNotFound")
        if not self.allowed(name):
            return None
        if path not in repo.commits[sha]:
            return self.reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=sha)
        data = repo.commits[sha][path]
        if is_lfs(path):
            digest = sha256(data)
            hub.blobs[digest] = (path, data)
            return self.reply(302, b"Found. Redirecting", Location=f"{hub.cdn_url}/cdn/{digest}?sig=x%2Fy",
                              X_Repo_Commit=sha, X_Linked_Etag=f'"{digest}"', X_Linked_Size=str(len(data)), ETag=f'"{digest[:32]}"')
        return self.send_file(path, data, X_Repo_Commit=sha, ETag=f'"{git_sha1(data)}"')

    # --- bytes ---

    def cdn(self):
        m = re.match(r"/cdn/([0-9a-f]{64})", self.path)
        hub = self.server.hub
        if not m or m[1] not in hub.blobs:
            return self.reply(404)
        path, data = hub.blobs[m[1]]
        return self.send_file(path, data, ETag=f'"{m[1][:32]}"')

    def send_file(self, path, data, **headers):
        hub = self.server.hub
        fault, left = hub.take_fault(path, self.command)
        if fault == "503":
            return self.reply(503, b"busy")
        if fault == "html":
            return self.reply(200, b"<html><body>Sign in</body></html>", Content_Type="text/html; charset=utf-8")
        if fault == "short":
            data = data[:-1]
        if fault == "flip":
            data = data[:-1] + bytes([data[-1] ^ 1])
        first = 0
        m = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if m and fault != "norange":
            first = int(m[1])
            if first >= len(data):
                return self.reply(416, Content_Range=f"bytes */{len(data)}")
        self.send_response(206 if m and fault != "norange" else 200)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        if m and fault != "norange":
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - first + (10 if fault == "length" else 0)))
        self.end_headers()
        if self.command == "HEAD":
            return None
        with hub.lock:
            hub.sending += 1
            hub.most_sending = max(hub.most_sending, hub.sending)
        try:
            return self.send_bytes(data[first:], fault, left)
        finally:
            with hub.lock:
                hub.sending -= 1

    def send_bytes(self, data, fault, arg):
        hub = self.server.hub
        if fault == "cut":
            self.wfile.write(data[:arg])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
        elif fault == "hold":  # arg bytes, then nothing until released
            self.wfile.write(data[:arg])
            self.wfile.flush()
            hub.held.set()
            hub.release.wait(600)
            self.wfile.write(data[arg:])
        elif fault == "slow":
            for i in range(0, len(data), arg):
                self.wfile.write(data[i:i + arg])
                self.wfile.flush()
                time.sleep(0.001)
        else:
            self.wfile.write(data)
        if fault == "length":
            self.close_connection = True
            self.connection.shutdown(2)


class Hub:
    """with Hub() as hub: hub.repo("org/name").commit({...}); hub.env(tmp) are the variables for a client."""

    def __init__(self):
        self.repos, self.blobs, self.requests = {}, {}, []
        self.gated = {}            # name -> token
        self.faults = {}           # path -> [(kind, argument, how often)]
        self.listing, self.listing_type = None, "application/json"
        self.down = False
        self.lock = threading.Lock()
        self.sending = self.most_sending = 0  # files on their way at once
        self.held, self.release = threading.Event(), threading.Event()
        self.servers = []
        self.writer = None         # the token that may write; see hub_push.py
        self.lfs, self.parts, self.push_faults, self.part_bytes = {}, {}, {}, 100_000
        self.uploads, self.n_uploads, self.same_upload = {}, 0, False  # in parts, by their number
        self.chunk_said = self.etag_said = None  # what the hub says of parts instead of the truth
        self.moved = {}            # old name -> new name

    def __enter__(self):
        for name in ("hub", "cdn"):
            s = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            s.hub, s.name, s.daemon_threads = self, name, True
            threading.Thread(target=s.serve_forever, args=(0.02,), daemon=True).start()
            self.servers.append(s)
        self.url, self.cdn_url = (f"http://127.0.0.1:{s.server_port}" for s in self.servers)
        return self

    def __exit__(self, *_):
        self.release.set()
        for s in self.servers:
            s.shutdown()
            s.server_close()

    def repo(self, name):
        return self.repos.setdefault(name, Repo())

    def make(self, name, private):
        self.repos[name] = Repo(private)
        self.repos[name].commit({".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})

    def fault(self, path, kind, arg=0, times=10 ** 9):
        self.faults.setdefault(path, []).append([kind, arg, times])

    def take_fault(self, path, command):
        with self.lock:
            for f in self.faults.get(path, []):
                if command == "GET" and f[2] > 0:
                    f[2] -= 1
                    return f[0], f[1]
        return None, 0

    def push_fault(self, step, what, times=1, after=0):
        self.push_faults.setdefault(step, []).append([what, times, after])

    def take_push_fault(self, step):
        with self.lock:
            for f in self.push_faults.get(step, []):
                if f[2] > 0:
                    f[2] -= 1
                elif f[1] > 0:
                    f[1] -= 1
                    return f[0]
        return None

    def puts(self):
        """Bodies that came to the storage."""
        with self.lock:
            return [p for s, c, p, _ in self.requests if c == "PUT"]

    def gets(self, server=None):
        """Paths of the GET requests so far."""
        with self.lock:
            return [p for s, c, p, _ in self.requests if c == "GET" and server in (None, s)]


def model_files():
    """A model that runs: the tiny llama, with what else a repository has."""
    files = {p.name: p.read_bytes() for p in LLAMA.iterdir() if p.is_file()}
    files["README.md"] = b"---\nlicense: apache-2.0\ntags: [test]\n---\n# tiny\n"
    files[".gitattributes"] = b"*.safetensors filter=lfs\n"
    files["pytorch_model.bin"] = b"not wanted"
    return files


def small_files(n=3, size=5000, seed=1):
    """Not a model that runs, but one that downloads: n shards with an index."""
    files = {"config.json": b'{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 16}',
             "tokenizer.json": b"{}"}
    names = [f"model-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)]
    index = {"metadata": {}, "weight_map": {f"t{i}": name for i, name in enumerate(names)}}
    for i, name in enumerate(names):
        header = json.dumps({f"t{i}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        body = bytes((seed * 7 + i + k * k) % 251 for k in range(size))
        files[name] = len(header).to_bytes(8, "little") + header + body
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    return files


class Store:
    """A cache of its own, and the program over it."""

    def __init__(self, tmp, hub=None, **env):
        self.home = Path(tmp)
        self.cache = self.home / "hf/hub"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("MLX_BUN_", "HF_", "XDG_"))}
        self.env |= {"HOME": str(self.home), "HF_HOME": str(self.home / "hf"), "MLX_BUN_CACHE": str(self.home / "own"),
                     "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9", "no_proxy": "*", **env}

    def run(self, *args, status=0, env=None, cwd=None, timeout=300):
        p = subprocess.run([MLX_BUN, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                           env={**self.env, **(env or {})}, cwd=cwd or self.home, timeout=timeout)
        if status is not None:
            assert p.returncode == status, (args, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
        return p

    def start(self, *args):
        return subprocess.Popen([MLX_BUN, *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.env, cwd=self.home)

    def json(self, *args, **kw):
        return json.loads(self.run(*args, "--json", **kw).stdout)

    def get(self, name, *args, **kw):
        return Path(self.run("get", name, *args, **kw).stdout.splitlines()[-1])

    def repo(self, name):
        return self.cache / ("models--" + name.replace("/", "--"))

    def blobs(self, name):
        return {p.name: p.stat().st_size for p in (self.repo(name) / "blobs").iterdir()}

    def partials(self, name):
        return [p for p in (self.repo(name) / "blobs").glob("*.incomplete")] if self.repo(name).exists() else []

    def has_partial(self, name, size):
        """Is there an unfinished file of so many bytes? Others may end between the list and the look."""
        def size_of(p):
            try:
                return p.stat().st_size
            except FileNotFoundError:
                return -1
        return any(size_of(p) == size for p in self.partials(name))


def header(tensors):
    at, entries = 0, {}
    for name, (dtype, shape, size) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(at)


def plant(store, name, files, ref="main"):
    """What the official client leaves behind, without it. The commit."""
    commit = sha256(repr((name, sorted(files), [sha256(v) for v in files.values()])).encode())[:40]
    repo = store.repo(name)
    for path, data in files.items():
        blob = repo / "blobs" / digest_of(path, data)
        link = repo / "snapshots" / commit / path
        for p in (blob, link):
            p.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link.symlink_to("../" * (2 + path.count("/")) + "blobs/" + blob.name)
    if ref:
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    return commit


def end(p):
    """Ends a server; what it said on its error output."""
    p.send_signal(signal.SIGTERM)
    return p.communicate(timeout=300)[1]


def check_snapshot(path, files):
    """The folder holds exactly these files, each a relative link to a blob of its hash."""
    found = {str(p.relative_to(path)): p for p in Path(path).rglob("*") if not p.is_dir()}
    assert sorted(found) == sorted(files), f"{sorted(found)}, wanted: {sorted(files)}"
    for name, data in files.items():
        p = found[name]
        assert p.read_bytes() == data, name
        target = os.readlink(p)
        assert target == "../" * (2 + name.count("/")) + "blobs/" + digest_of(name, data)
