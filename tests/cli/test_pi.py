"""`mlx-bun pi` and `mlx-bun harness pi` with a stand-in for pi (tests/clients runs the real one): a program of that name on
PATH that asks the server it was given and writes down what it saw."""
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
import http_rig as rig  # noqa: E402

STAND_IN = """#!{python}
import json, os, re, sys, urllib.request
a = sys.argv[1:]
text = open(a[a.index("--extension") + 1]).read()
url = re.search('"(http://127.0.0.1:[0-9]+)/v1"', text)[1]
get = lambda path: json.load(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(url + path))
out = {{"args": a, "models": get("/v1/models"), "stats": get("/stats"), "text": text}}
json.dump(out, open({seen!r}, "w"))
sys.exit(3)
"""


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pi").write_text(STAND_IN.format(python=sys.executable, seen=str(tmp_path / "seen.json")))
    (folder / "pi").chmod(0o755)
    return tmp_path


def run(home, *args, path=True):
    env = rig.clean_env(HOME=str(home), PATH=f"{home / 'bin'}:{os.environ['PATH']}" if path else "/nonexistent")
    env.pop("XDG_CACHE_HOME", None)
    return subprocess.run([rig.PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=120, env=env)


def test_cfg196_pi_starts_a_server_of_its_own(home):
    """CFG-009 CFG-018 CFG-196 API-268 APP-023: serve's flags shape it, pi gets the provider and its own arguments, its exit
    status is ours, the server ends with it."""
    port = rig.free_port()
    p = run(home, "pi", "-q", rig.LLAMA, "--port", port, "--batch", "3", "--", "-p", "hello")
    assert p.returncode == 3, p.stderr
    seen = json.loads((home / "seen.json").read_text())
    assert seen["args"][2:] == ["--provider", "mlx-bun", "--model", "local", "-p", "hello"]
    assert seen["models"]["data"][0]["id"] == "llama" and seen["stats"]["server"]["owner"] == "pi-session"
    assert f"starting a server on port {port}" in p.stderr
    with socket.socket() as s:
        assert s.connect_ex(("127.0.0.1", port)) != 0
    assert not (home / ".pi").exists()


def test_api433_pi_uses_a_server_that_runs(home, llama_server):
    """API-433 CFG-010: flags but --port are named and ignored; the server stays."""
    p = run(home, "pi", "--port", llama_server.port, "--batch", "2", "--temp", "0.5", "--", "-p", "x")
    assert p.returncode == 3, p.stderr
    assert json.loads((home / "seen.json").read_text())["stats"]["server"]["owner"] == "serve"
    ignored = [line for line in p.stderr.splitlines() if "is ignored" in line]
    assert len(ignored) == 2 and "--batch" in p.stderr and "--temp" in p.stderr
    llama_server.alive()


@pytest.fixture(scope="module")
def llama_server():
    with rig.Server() as s:
        yield s


def test_pi_says_why_it_cannot(home):
    p = run(home, "pi", "-q", rig.LLAMA, path=False)
    assert p.returncode != 0 and "npm install -g @mariozechner/pi-coding-agent" in p.stderr
    p = run(home, "pi", "-q", home / "nothing", "--port", rig.free_port())
    assert p.returncode != 0 and "pi-server.log" in p.stderr
    assert "nothing" in (home / ".cache/mlx-bun/pi-server.log").read_text()


def test_cfg197_harness_writes_and_removes(home, llama_server):
    """API-430 API-431 CFG-197 CFG-198: one file; what the server says now is baked in for when it is down."""
    file = home / ".pi/agent/extensions/mlx-bun-provider.ts"
    p = run(home, "harness", "pi", "--port", llama_server.port)
    assert p.returncode == 0 and "pi --provider mlx-bun" in p.stdout, p.stderr
    text = file.read_text()
    assert f"http://127.0.0.1:{llama_server.port}/v1" in text and 'id: "llama", context_window: 4096' in text
    assert 'registerProvider("mlx-bun"' in text and '"/models"' in text
    assert run(home, "harness", "pi", "--port", rig.free_port()).returncode == 0 and 'id: "local"' in file.read_text()
    assert run(home, "harness", "pi", "--remove").returncode == 0 and not file.exists()
    assert "nothing to remove" in run(home, "harness", "pi", "--remove").stdout
    file.write_text("// somebody's\n")
    assert run(home, "harness", "pi", "--remove").returncode != 0 and file.exists()
    assert run(home, "harness", "vi").returncode == 2 and run(home, "harness").returncode == 2
