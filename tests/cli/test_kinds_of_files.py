"""Files of a model or adapter folder that are no files: a pipe that nobody writes to, a device, a directory, a socket. The program
ends at once, names the file, what it found and what it wanted. What a user names as input may be a pipe."""
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "http"))
import http_rig as rig  # noqa: E402

ADAPTER = ROOT / "tests/golden/adapters/llama-a"
KINDS = {"named pipe": os.mkfifo, "directory": os.mkdir, "device": lambda p: p.symlink_to("/dev/zero"), "socket": lambda p: bound(p)}
FILES = ["config.json", "generation_config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
         "tokenizer_config.json", "chat_template.jinja", "chat_template.json"]


def bound(path):
    before = os.getcwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path.name)
    os.chdir(before)


def spoil(path, kind):
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FILES)
def test_model_folder(tmp_path, name, kind):
    model = rig.copy_model(tmp_path)
    if name == "chat_template.json":
        (model / "chat_template.jinja").unlink(missing_ok=True)
    spoil(model / name, kind)
    done = rig.run("generate", model, "--prompt", "x", "--temp", "0", "--max-tokens", "1")
    assert done.returncode == 7 and done.stdout == "", done
    assert f"{name}: is a {kind}, wanted a regular file" in done.stderr, done.stderr


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["adapters.safetensors", "adapter_config.json"])
def test_adapter_folder(tmp_path, name, kind):
    adapter = tmp_path / "a"
    shutil.copytree(ADAPTER, adapter)
    spoil(adapter / name, kind)
    done = rig.run("generate", rig.TINY / "llama", "--adapter", adapter, "--prompt", "x", "--temp", "0", "--max-tokens", "1")
    assert done.returncode == 7 and f"{name}: is a {kind}, wanted a regular file" in done.stderr, done.stderr


def piped(data, *args):
    """The command with a pipe of these bytes in the place of "{}"."""
    r, w = os.pipe()
    os.write(w, data)
    os.close(w)
    done = subprocess.run([str(rig.PROGRAM), *[str(a).replace("{}", f"/dev/fd/{r}") for a in args]], pass_fds=[r], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)
    os.close(r)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inputs_may_be_pipes(tmp_path):
    messages = json.dumps([{"role": "user", "content": "ab"}]).encode()
    file = tmp_path / "m.json"
    file.write_bytes(messages)
    model = rig.TINY / "llama"
    assert piped(messages, "show-prompt", model, "--messages", "{}") == rig.run("show-prompt", model, "--messages", file).stdout
    lines = b'{"id": 1, "prompt": "a"}\n'
    piped(lines, "generate", model, "--batch-file", "{}", "--output", tmp_path / "out.jsonl", "--temp", "0", "--max-tokens", "2")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1
