"""What the hub of the tests does for those who publish: repositories are made, LFS objects are taken (whole, or in parts), commits of
NDJSON lines. Objects go to the second server, which stands for the storage: it wants a signature in the address and no token.

hub.writer is the token that may write, in the namespace "me" alone. hub.push_fault(step, what) makes a step fail: a status; "lost": it is
done, and nobody is told; "cut": the connection ends before the body is read; "hold": it waits until hub.release."""
import base64
import fnmatch
import hashlib
import json
import re
import urllib.parse

LFS_TYPE = "application/vnd.git-lfs+json"
LFS_FROM = 10 * 1024 * 1024


def digest_in(repo, path):
    from hub_rig import digest_of
    data = repo.commits[repo.refs["main"]].get(path)
    return None if data is None else digest_of(path, data)


class Push:
    def do_POST(self):
        self.answer(self.storage_post if self.server.name == "cdn" else self.hub_post)

    def do_PUT(self):
        self.answer(self.storage_put)

    def answer(self, way):
        hub = self.note()
        try:
            if self.redirected(hub):
                return None
            step, act = way(urllib.parse.urlsplit(self.path))
            if not step:
                self.body()
                return self.reply(404, b"no such page")
            fault = hub.take_push_fault(step)
            if fault == "cut":
                self.close_connection = True
                return self.connection.shutdown(2)
            body = self.body()
            if fault == "hold":
                hub.held.set()
                hub.release.wait(600)
            elif fault == "lost":
                self.reply = lambda *_, **__: None
                act(body)
                self.close_connection = True
                return self.connection.shutdown(2)
            elif fault:
                return self.reply(fault, json.dumps({"error": "as the test wants it"}).encode(), Content_Type="application/json")
            return act(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def redirected(self, hub):
        """A repository that was renamed: 307, as the hub does."""
        for old, new in hub.moved.items():
            if self.server.name == "hub" and f"/{old}" in self.path:
                self.body()
                self.reply(307, b"Moved", Location=self.path.replace(old, new))
                return True
        return False

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        out = b""
        while n := int(self.rfile.readline().split(b";")[0], 16):
            out += self.rfile.read(n)
            self.rfile.readline()
        self.rfile.readline()
        return out

    def json(self, status, value, **headers):
        return self.reply(status, json.dumps(value).encode(), Content_Type="application/json", **headers)

    # --- the hub ---

    def hub_post(self, url):
        from hub_rig import repo_key
        if url.path == "/api/repos/create":
            return "create", self.create
        if url.path == "/api/validate-yaml":
            return "yaml", lambda _: self.json(200, {"errors": [], "warnings": []})
        if url.path == "/lfs/verify":
            return "verify", self.verify
        m = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(preupload|commit)/([^/]+)", url.path)
        if m:
            name, revision = repo_key(m[1], m[2]), urllib.parse.unquote(m[4])
            do = self.preupload if m[3] == "preupload" else self.commit
            return m[3], lambda body: self.may_write(name, revision) and do(name, revision, body)
        m = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)\.git/info/lfs/objects/batch", url.path)
        if m:
            return "batch", lambda body: self.may_write(m[1], "main") and self.batch(body)
        return None, None

    def may_write(self, name, revision):
        hub = self.server.hub
        if "Authorization" not in self.headers:
            return self.reply(401, b'{"error": "Invalid username or password."}')
        if self.headers["Authorization"] != f"Bearer {hub.writer}" or name.removeprefix("datasets/").split("/")[0] != "me":
            return self.reply(403, b'{"error": "You don\'t have the rights to write here."}')
        if name not in hub.repos:
            return self.reply(404, b"{}", X_Error_Code="RepoNotFound")
        if revision not in hub.repos[name].refs:
            return self.reply(404, b"{}", X_Error_Code="RevisionNotFound")
        return True

    def create(self, body):
        hub, want = self.server.hub, json.loads(body)
        name = f"{want['organization']}/{want['name']}"
        key = name if want.get("type", "model") == "model" else f"{want['type']}s/{name}"
        if self.headers.get("Authorization") != f"Bearer {hub.writer}" or want["organization"] != "me":
            return self.json(403 if "Authorization" in self.headers else 401, {"error": "You cannot make that repository."})
        if key in hub.repos:
            return self.json(409, {"error": "You already created this model repo", "url": f"{hub.url}/{key}"})
        hub.make(key, want.get("private", False) or want.get("visibility") == "private")
        return self.json(200, {"url": f"{hub.url}/{key}", "name": name, "id": name})

    def preupload(self, name, revision, body):
        from hub_rig import is_lfs
        repo, want = self.server.hub.repos[name], json.loads(body)
        ignored = want.get("gitIgnore", repo.commits[repo.refs[revision]].get(".gitignore", b"").decode()).split()
        files = []
        for f in want["files"]:
            assert set(f) == {"path", "size", "sample"} and len(base64.b64decode(f["sample"])) == min(f["size"], 512)
            files.append({"path": f["path"], "uploadMode": "lfs" if is_lfs(f["path"]) or f["size"] >= LFS_FROM else "regular",
                          "shouldIgnore": any(fnmatch.fnmatch(f["path"], p) for p in ignored), "oid": digest_in(repo, f["path"])})
        return self.json(200, {"files": files, "commitOid": repo.refs[revision]})

    def batch(self, body):
        hub, want = self.server.hub, json.loads(body)
        if self.headers["Accept"] != LFS_TYPE or self.headers["Content-Type"] != LFS_TYPE:
            return self.json(406, {"message": "not LFS"})
        assert want["operation"] == "upload" and want["hash_algo"] == "sha256" and "basic" in want["transfers"], want
        objects = []
        for o in want["objects"]:
            entry = {"oid": o["oid"], "size": o["size"]}
            if o["oid"] not in hub.lfs:
                entry["actions"] = self.actions(o, "multipart" in want["transfers"])
            objects.append(entry)
        return self.reply(200, json.dumps({"transfer": "basic", "objects": objects}).encode(), Content_Type=LFS_TYPE)

    def actions(self, o, multipart):
        hub, oid = self.server.hub, o["oid"]
        verify = {"href": f"{hub.url}/lfs/verify", "header": {"X-Asked": "verify"}}
        if not multipart or o["size"] <= hub.part_bytes:
            return {"upload": {"href": f"{hub.cdn_url}/lfs/put/{oid}?sig=s", "header": {"X-Asked": "put"}}, "verify": verify}
        n = -(-o["size"] // hub.part_bytes)
        signed = f"uploadId={self.begin_upload(oid)}&sig=s"
        header = {f"{i + 1:05d}": f"{hub.cdn_url}/lfs/part/{oid}/{i + 1}?{signed}" for i in range(n)}
        return {"upload": {"href": f"{hub.cdn_url}/lfs/complete/{oid}?{signed}", "header": {**header, "chunk_size": str(hub.chunk_said or hub.part_bytes)}},
                "verify": verify}

    def begin_upload(self, oid):
        """Each question begins another upload in parts, whose parts go with no other's; unless the test says otherwise."""
        hub = self.server.hub
        with hub.lock:
            if not hub.same_upload or oid not in hub.uploads.values():
                hub.n_uploads += 1
                hub.uploads[str(hub.n_uploads)] = oid
            return max((k for k, v in hub.uploads.items() if v == oid), key=int)

    def verify(self, body):
        hub, want = self.server.hub, json.loads(body)
        if self.headers.get("Authorization") != f"Bearer {hub.writer}":
            return self.reply(401)
        good = len(hub.lfs.get(want["oid"], b"")) == want["size"]
        return self.json(200 if good else 404, {})

    def commit(self, name, revision, body):
        hub, repo = self.server.hub, self.server.hub.repos[name]
        lines = [json.loads(line) for line in body.decode().splitlines()]
        assert lines[0]["key"] == "header" and lines[0]["value"]["summary"], lines[0]
        with hub.lock:
            if lines[0]["value"].get("parentCommit", repo.refs[revision]) != repo.refs[revision]:
                return self.json(412, {"error": "A commit has happened since. Please refresh and try again."})
            files = dict(repo.commits[repo.refs[revision]])
            for line in lines[1:]:
                v = line["value"]
                if line["key"] == "file":
                    files[v["path"]] = base64.b64decode(v["content"], validate=True)
                elif line["key"] == "lfsFile" and len(hub.lfs.get(v["oid"], b"")) == v["size"] and v["algo"] == "sha256":
                    files[v["path"]] = hub.lfs[v["oid"]]
                else:
                    return self.json(400, {"error": f"what is {line['key']}?"})
            sha = repo.commit(files, revision)
        return self.json(200, {"success": True, "commitOid": sha, "commitUrl": f"{hub.url}/{name}/commit/{sha}", "hookOutput": ""})

    # --- the storage ---

    def storage_put(self, url):
        m = re.fullmatch(r"/lfs/(put|part)/([0-9a-f]{64})(?:/(\d+))?", url.path)
        if not m or not url.query.endswith("sig=s"):
            return None, None
        return m[1], lambda body: self.take_bytes(m[2], m[3], body)

    def upload_of(self, oid):
        """The upload in parts that the address names, when the storage knows it."""
        m = re.search(r"[?&]uploadId=(\d+)&", self.path)
        return m[1] if m and self.server.hub.uploads.get(m[1]) == oid else None

    def take_bytes(self, oid, part, body):
        hub = self.server.hub
        if "Authorization" in self.headers:
            return self.reply(400, b"<Error>a token has no business here</Error>")
        if part:
            upload = self.upload_of(oid)
            if not upload:
                return self.reply(404, b"<Error>NoSuchUpload</Error>")
            hub.parts[upload, int(part)] = body
            return self.reply(200, ETag=hub.etag_said or f'"{hashlib.md5(body).hexdigest()}"')
        if hashlib.sha256(body).hexdigest() != oid:
            return self.reply(400, b"<Error>BadDigest</Error>")
        hub.lfs[oid] = body
        return self.reply(200)

    def storage_post(self, url):
        m = re.fullmatch(r"/lfs/complete/([0-9a-f]{64})", url.path)
        return ("complete", lambda body: self.complete(m[1], body)) if m and url.query.endswith("sig=s") else (None, None)

    def complete(self, oid, body):
        hub, want = self.server.hub, json.loads(body)
        upload = self.upload_of(oid)
        if not upload:
            return self.reply(404, b"<Error>NoSuchUpload</Error>")
        parts = [hub.parts.get((upload, p["partNumber"]), b"") for p in want["parts"]]
        good = want["oid"] == oid and [p["partNumber"] for p in want["parts"]] == list(range(1, len(parts) + 1))
        good = good and [p["etag"] for p in want["parts"]] == [f'"{hashlib.md5(p).hexdigest()}"' for p in parts]
        if not good or hashlib.sha256(b"".join(parts)).hexdigest() != oid:
            return self.reply(400, b"<Error>InvalidPart</Error>")
        hub.lfs[oid] = b"".join(parts)
        del hub.uploads[upload]
        return self.json(200, {"success": True})
