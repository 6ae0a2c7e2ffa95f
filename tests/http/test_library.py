"""Models on disk over HTTP: /library, /downloads (list, start, cancel), and the models that /v1/models lists behind the served one."""
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
import http_rig as rig  # noqa: E402
from hub_fixtures import hub, store  # noqa: E402, F401
from hub_rig import Hub, Store, check_snapshot, model_files, small_files  # noqa: E402

NAME = "org/tiny"


class Serving:
    """mlx-bun serve over a cache of its own."""

    def __init__(self, store, *args):
        self.p = store.start("serve", *args, "--port", "0")
        for line in self.p.stdout:
            found = re.search(r"url +(http://\S+)/v1", line)
            if found:
                break
        else:
            raise RuntimeError(self.p.stderr.read())
        self.http = rig.Client(base_url=found[1], timeout=300)

    def __enter__(self):
        return self.http

    def __exit__(self, *_):
        self.http.close()
        self.p.terminate()
        try:
            self.p.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            self.p.kill()
            raise


def wait_for(what, seconds=300):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_library_and_models(hub, store):
    """REG-247 API-264 API-285 API-286 API-287 REG-132 REG-133 REG-134 REG-137 REG-138 REG-139 REG-140: a row a model, served
    first; the others behind it."""
    hub.repo(NAME).commit(model_files())
    hub.repo("org/more").commit(model_files())
    odd = small_files()
    odd["config.json"] = b'{"model_type": "mystery"}'
    hub.repo("org/odd").commit(odd)
    for name in (NAME, "org/more", "org/odd"):
        store.get(name)
    hub.requests.clear()
    with Serving(store, NAME) as http:
        models = {m["repo_id"]: m for m in http.get("/library").json()["models"]}
        assert set(models) == {NAME, "org/more", "org/odd"}
        assert set(models[NAME]) >= {"repo_id", "model_type", "size_bytes", "quant_bits", "vision", "supported", "serving", "assessment"}
        assert [(m["serving"], m["supported"]) for m in (models[NAME], models["org/more"], models["org/odd"])] == [
            (True, True), (False, True), (False, False)]
        assert models[NAME]["quant_bits"] == 4 and models[NAME]["vision"] is False and models["org/odd"]["assessment"] is None
        a = models["org/more"]["assessment"]
        assert a["fits"] is True and a["max_safe_context"] > 0
        data = http.get("/v1/models").json()["data"]
        assert [m["id"] for m in data] == [NAME, "org/more"] and data[1]["object"] == "model" and data[1]["owned_by"] == "org"
        assert [m["id"] for m in http.get("/v1/models/org%2Fmore").json()["data"]] == ["org/more"]
        assert [m["id"] for m in http.get(f"/v1/models/{NAME}").json()["data"]] == [NAME]
        assert http.get("/v1/models/org/odd").json()["data"] == []
        store.run("rm", "org/more", "--yes")
        assert len(http.get("/library").json()["models"]) == 3  # REG-135 API-288: 30 seconds old at most
        assert "in use" in store.run("rm", NAME, "--yes", status=11).stderr
    assert not hub.requests  # B-121


def test_downloads(hub, store):
    """REG-248 API-289 API-290 API-291 API-293 REG-142 REG-143 REG-144 REG-145 REG-146 REG-136: those of the command line and
    of the server; the library follows."""
    hub.repo(NAME).commit(model_files())
    store.get(NAME)
    files = small_files()
    hub.repo("org/new").commit(files)
    hub.fault("model-00002-of-00003.safetensors", "hold", 1000, times=1)
    with Serving(store, NAME) as http:
        d = http.get("/downloads").json()["downloads"]
        assert [(x["repo_id"], x["state"]) for x in d] == [(NAME, "done")]
        assert set(d[0]) == {"repo_id", "state", "current_file", "received_bytes", "total_bytes", "files_done", "files_total",
                             "bytes_per_sec", "started_at", "finished_at"}
        assert d[0]["current_file"] is None and d[0]["files_done"] == d[0]["files_total"] == 7 and d[0]["finished_at"] > 1.6e9
        http.get("/library")
        r = http.post("/downloads", json={"repo_id": "org/new"})
        assert r.status_code == 202 and r.json() == {"repo_id": "org/new", "revision": "main", "state": "active"}
        assert hub.held.wait(300)
        now = http.get("/downloads").json()["downloads"][0]
        assert now["repo_id"] == "org/new" and now["state"] == "active" and now["finished_at"] is None
        assert http.post("/downloads", json={"repo_id": "org/new"}).status_code == 429
        assert "in progress" in store.run("get", "org/new", status=11).stderr  # REG-043
        hub.release.set()
        wait_for(lambda: "org/new" in [x["repo_id"] for x in http.get("/downloads").json()["downloads"] if x["state"] == "done"])
        wait_for(lambda: "org/new" in [m["repo_id"] for m in http.get("/library").json()["models"]])
        check_snapshot(store.repo("org/new") / "snapshots" / hub.repo("org/new").refs["main"], files)
        http.post("/downloads", json={"repo_id": "org/none"})
        wait_for(lambda: "no such model" in str(http.get("/downloads").json()["downloads"][0].get("error")))


def test_cancel_a_download(hub, store):
    """API-293: cancelled, it ends within moments, its partial stays, the next get goes on."""
    hub.repo(NAME).commit(model_files())
    store.get(NAME)
    files = small_files()
    hub.repo("org/new").commit(files)
    hub.fault("model-00002-of-00003.safetensors", "hold", 1000, times=1)
    with Serving(store, NAME) as http:
        http.post("/downloads", json={"repo_id": "org/new"})
        assert hub.held.wait(300)
        wait_for(lambda: store.has_partial("org/new", 1000))
        http.post("/downloads", json={"repo_id": "org/waiting"})
        assert http.post("/downloads/cancel", json={"repo_id": "org/waiting"}).json()["state"] == "cancelled"
        assert http.post("/downloads/cancel", json={"repo_id": "org/new"}).status_code == 200
        wait_for(lambda: "cancelled" in str(http.get("/downloads").json()["downloads"][0].get("error")))
        wait_for(lambda: http.post("/downloads/cancel", json={"repo_id": "org/new"}).status_code == 404)
    hub.release.set()
    check_snapshot(store.get("org/new"), files)


@pytest.mark.parametrize("body", [{}, [], {"repo_id": 5}, {"repo_id": "../../x"}, {"repo_id": "a/../../b"}, {"repo_id": "a/b\u0000"},
                                  {"repo_id": "/tmp/x"}, {"repo_id": "org/x", "revision": "../x"}])
def test_b155_download_names(store, hub, body, serving):
    """B-155: names, never paths."""
    r = serving.post("/downloads", json=body)
    assert r.status_code == 400 and "error" in r.json()


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    with Hub() as h:
        h.repo(NAME).commit(model_files())
        s = Store(tmp_path_factory.mktemp("library"), h)
        s.get(NAME)
        with Serving(s, NAME, "--api-key", "secret") as http:
            http.headers["Authorization"] = "Bearer secret"
            yield http


def test_library_needs_the_key(serving):
    for path in ("/library", "/downloads"):
        assert httpx.get(str(serving.base_url) + path, trust_env=False).status_code == 401
        assert serving.get(path).status_code == 200
    r = serving.post("/downloads", json={"repo_id": "a/b"}, headers={"Origin": "https://evil.example"})
    assert r.status_code == 403
