"""Flags, variables and precedence row by row of the reference (CFG, T1): a live flag changes what one can see, a flag without
effect is accepted and changes nothing, one of a later version is refused by name, a removed one says what to do instead.
The program is $MLX_BUN."""
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
LLAMA = ROOT / "tests/golden/tiny/llama"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SAMPLED = {**HELLO, "seed": 11, "temperature": 1.2, "max_tokens": 24, "ignore_eos": True, "logprobs": True}


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("MLX_BUN_") or k == "MLX_BUN_TEST_FAULT"}
    return {**env, **more}


def run(*args, env=None, status=0):
    p = subprocess.run([MLX_BUN, *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       env=clean_env(**(env or {})), cwd=ROOT, timeout=300)
    if status is not None:
        assert p.returncode == status, (args, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
    return p


class Server:
    """mlx-bun serve on a free port; .card is what it printed, .err what it warned of, until it was ready."""

    def __init__(self, *args, model=LLAMA, env=None, port=True):
        own = ["--port", "0"] if port else []
        models = [str(model)] if model else []
        self.p = subprocess.Popen([MLX_BUN, "serve", *models, *own, *map(str, args)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=clean_env(**(env or {})), cwd=ROOT)
        self.card, self.lines = "", []
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.p.stderr), daemon=True)
        self.reader.start()
        for line in self.p.stdout:
            self.card += line
            if "-d '" in line:
                break
        found = re.search(r"url +(\S+)/v1", self.card)
        self.url = found.group(1) if found else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self.p.kill()
        self.p.stdout.close()
        self.p.wait(timeout=300)
        self.reader.join(timeout=300)

    @property
    def err(self):
        return "".join(self.lines)

    def warned(self, *texts, within=300):
        """Whether stderr has said every text: another thread reads that pipe, so it may come after the card."""
        end = time.monotonic() + within
        while not all(t in self.err for t in texts) and time.monotonic() < end:
            time.sleep(0.01)
        return all(t in self.err for t in texts)

    def get(self, path, headers=None):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers or {}), timeout=300) as f:
            return json.load(f)

    def post(self, body, path="/v1/chat/completions", headers=None):
        r = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})})
        with urllib.request.urlopen(r, timeout=120) as f:
            return json.load(f)

    def status(self, body, path="/v1/chat/completions", headers=None):
        try:
            self.post(body, path, headers)
            return 200, ""
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()


def said(answer):
    """What the program drew, ids and log-probabilities."""
    return [(t["id"], t["logprob"]) for t in answer["choices"][0]["logprobs"]["content"]]


@pytest.fixture(scope="module")
def plain():
    with Server() as s:
        yield s


@pytest.fixture(scope="module")
def base(plain):
    return said(plain.post(SAMPLED))


def variant(folder, template=None, generation=None, config=None):
    """The tiny llama with another template, generation_config.json or entries of config.json."""
    shutil.copytree(LLAMA, folder)
    for name, changes in (("generation_config.json", generation), ("config.json", config),
                          ("tokenizer_config.json", {"chat_template": template} if template else None)):
        if changes:
            path = folder / name
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


# The shape of MiniCPM5's and Qwen3.5's templates: thinking unless it is switched off, or only when it is asked for.
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
THINKS = TURNS + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
QUIET = TURNS + "{% if enable_thinking is defined and enable_thinking is true %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"


@pytest.fixture(scope="module")
def thinks(tmp_path_factory):
    return variant(tmp_path_factory.mktemp("m") / "thinks", THINKS)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    return variant(tmp_path_factory.mktemp("m") / "quiet", QUIET)


# --- rows without effect ---

@pytest.mark.parametrize("flags,warns", [
    (["--no-open"], None),                                    # T1.39
    (["--isolate"], None),                                    # T1.15, CFG-067: another process, the same bits
    (["--model-pool", "2"], "isolate"),                       # T1.16, CFG-069
    (["--ssd-cache-max", "3"], "ssd-cache"),                  # T1.11
    (["--ssd-cache-verify"], "ssd-cache"),                    # T1.12
    (["--ssd-demote-idle", "5"], "ssd-cache"),                # T1.13
    (["--generation-checkpoint", "9"], "ssd-cache"),          # T1.14
    (["--paged-kv"], None),                                   # T1.19, ENG-096
    (["--paged-kv", "--paged-kv-block-size", "64"], None),    # T1.20
    (["--num-draft-tokens", "4"], "draft-kind"),              # T1.24
    (["--ngram-max", "4", "--ngram-min", "2"], "draft-kind"),  # T1.25
    (["--mtp", "off"], None),                                 # T1.26
    (["--context-length", "12"], None),                       # T1.27: GLM only; the prompt here is longer than 12
    (["--hlg-width", "9"], None),                             # T1.34, CFG-105
    (["--hlg-shoulder", "9"], None),                          # T1.35, CFG-105
    (["--hlg-toe", "9"], None),                               # T1.36, CFG-105
    (["--hlg-pivot-offset", "9", "--hlg-sampling", "off"], None),  # T1.37, CFG-105
    (["--allow-private-media"], None),                        # T1.38
    (["--compiled-decode", "off"], None),                     # T1.43
    (["--compiled-activations", "off"], None),                # T1.44
    (["--fused-sdpa", "off"], None),                          # T1.45
    (["--fused-sdpa", "on"], None),                           # T1.45
    (["--force-wire"], None),                                 # T1.46
    (["--expert-offload"], "--expert-offload: ignored"),      # T1.47 T12.14 CFG-120: a model without experts
    (["--prefill-chunk", "3"], None),
])
def test_rows_without_effect(flags, warns, base):
    """Accepted, so that command lines of the original work; what is drawn is the same, bit for bit."""
    with Server(*flags) as s:
        assert said(s.post(SAMPLED)) == base
        assert s.warned(warns) if warns else ("warning" not in s.err), s.err


@pytest.mark.parametrize("env", [
    {"MLX_BUN_PAGED_KV": "1"}, {"MLX_BUN_COMPILED_DECODE": "0"}, {"MLX_BUN_COMPILED_GEGLU": "0", "MLX_BUN_COMPILED_SWIGLU": "0"},
    {"MLX_BUN_NO_FUSED_SDPA": "1"}, {"MLX_BUN_FORCE_WIRE": "1"}, {"MLX_BUN_ALLOW_PRIVATE_MEDIA": "1"},
    {"MLX_BUN_RD_PREFILL_CHUNK": "5"}, {"MLX_BUN_PREFILL_TAIL_SPLIT": "0"}, {"MLX_BUN_BATCH_EXTEND": "0"},
])
def test_variables_without_effect(env, base):
    """CFG-016: the variable of a row is taken where its flag is; ENG-051: where the prompt is cut changes no bit."""
    with Server(env=env) as s:
        assert said(s.post(SAMPLED)) == base and "warning" not in s.err


@pytest.mark.parametrize("flag,value,words", [
    ("--paged-kv-block-size", "100", "one of 1 2 4"), ("--draft-kind", "bogus", "two-model"), ("--hlg-width", "101", "from 0 to 100"),
    ("--context-length", "0", "from 1"), ("--num-draft-tokens", "0", "from 1"), ("--mtp", "maybe", "on or off"),
    ("--kv-quant", "3", "off 8 4 config f16 bf16 f32"), ("--thinking", "2", "true false"), ("--port", "65536", "65535"),
])
def test_values_of_rows_without_effect_are_checked(flag, value, words):
    """T1.20, T1.23, T1.34, T1.27, T1.24, T1.26, T1.18, T1.28, T1.05: a value outside the row's range ends the start."""
    assert words in run("serve", LLAMA, flag, value, status=2).stderr


# --- rows of later versions ---

@pytest.mark.parametrize("flags", [
    ["--ssd-cache", "/tmp/x", "--ssd-cache-max", "1"],     # T1.10, T1.11, ENG-054: no disk tier to wait for
    ["--draft-model", "x"], ["--draft-kind", "mtp"],       # T1.22, T1.23, ENG-097, ENG-098, ENG-099: no drafts
    ["--kv-quant", "turbo"],  # T1.18, ENG-055
])
def test_rows_of_later_versions_are_refused(flags):
    p = run("serve", LLAMA, *flags, status=2)
    assert flags[0].replace("-path", "") in p.stderr and "is not in this version" in p.stderr and p.stdout == ""


def test_cfg005_adapter_path_is_adapter():
    """CFG-005: one flag, one refusal."""
    own, plain = (run("serve", LLAMA, "--port", 0, flag, "d", status=3).stderr for flag in ("--adapter-path", "--adapter"))
    assert own == plain


@pytest.mark.parametrize("verb", ["eval"])
def test_verbs_of_later_versions(verb):
    """CFG-035 (eval): refused with the list of verbs, whatever flags stand behind."""
    p = run(verb, LLAMA, "--kv-quant", "f32", "--temp", "0", status=2)
    assert f"unknown verb '{verb}'" in p.stderr and "serve" in p.stderr


def test_rows_that_were_removed(base):
    """T1.42, T1.48, T1.49, T1.50: --l3 ends the start; the others warn, take their value and change nothing."""
    assert "--l2" in run("serve", LLAMA, "--l3", status=2).stderr
    with Server("--perf-kernel", "on", "--fused-decode", "off", "--slots", "4") as s:
        assert said(s.post(SAMPLED)) == base
        assert s.warned("--slots was renamed to --batch", "--perf-kernel was removed", "--fused-decode"), s.err
        assert s.get("/stats")["batch"]["configured"] == 8


# --- live rows ---

def test_rows_that_choose_the_model(tmp_path):
    """T1.01, T1.02, T1.03, CFG-008, CFG-029"""
    other = tmp_path / "other-name"
    other.symlink_to(LLAMA)
    for args in ([other], ["--model", other], ["--query", other], ["-q", other], [LLAMA, "--model", other], ["-q", LLAMA, other]):
        with Server(*args, model=None) as s:
            assert "other-name" in s.card, args


def test_row_host(plain):
    """T1.04, CFG-047, CFG-048: loopback unless --host says more; 0.0.0.0 is loud, and URLs name localhost."""
    port = int(plain.url.rsplit(":", 1)[1])
    with pytest.raises(OSError):  # bound to 127.0.0.1 only
        socket.create_connection(("127.0.0.2", port), timeout=5)
    with Server("--host", "127.0.0.2") as s:
        assert s.url.startswith("http://127.0.0.2:") and s.get("/health")["status"] == "ok"
    with Server("--host", "0.0.0.0") as s:
        assert s.url.startswith("http://localhost:") and s.warned("WITHOUT A KEY")
        socket.create_connection(("127.0.0.2", int(s.url.rsplit(":", 1)[1])), timeout=5).close()
    with Server("--host", "0.0.0.0", "--api-key", "k") as s:
        assert "WITHOUT A KEY" not in s.err


def test_row_port_default():
    """REG-242: T1.05, CFG-053, CFG-012: 127.0.0.1:8080, as mlx_lm.server; refused by that number where it is taken."""
    text = run("help", "serve").stdout
    assert re.search(r"--host.*\n?.*127\.0\.0\.1", text) and re.search(r"--port.*\n?.*8080", text)
    s = Server(port=False)
    try:
        if s.url:
            assert s.url == "http://127.0.0.1:8080"
        else:
            s.p.wait(timeout=300)
            s.reader.join(timeout=300)
            assert "8080" in s.err and s.p.returncode == 7
    finally:
        s.stop()


def test_row_unix(tmp_path, base):
    """T1.06, CFG-052: the API over the socket itself; host and port are ignored."""
    path = str(tmp_path / "s.sock")
    with Server("--unix", path, "--host", "203.0.113.1", "--port", "1", port=False) as s:
        assert f"socket   {path}" in s.card
        c = http.client.HTTPConnection("localhost", timeout=300)
        c.sock = socket.socket(socket.AF_UNIX)
        c.sock.connect(path)
        c.request("POST", "/v1/chat/completions", json.dumps(SAMPLED), {"content-type": "application/json"})
        assert said(json.load(c.getresponse())) == base


def test_rows_of_memory(base):
    """T1.07, T1.08, T1.09, CFG-104: decimal GB, decimal GB, GiB; shown in /stats and on the card; no bit changes. A request
    without a limit fits a small --kv-budget here: rows wait or return, they are not refused."""
    with Server("--memory-budget", "0.1", "--kv-budget", "0.004", "--prompt-cache", "0.001") as s:
        stats = s.get("/stats")
        assert stats["admission"]["memory_budget_bytes"] == 100_000_000 and "100 MB" in s.card
        assert stats["batch"]["kv_budget_bytes"] == 4_000_000
        assert 3_000_000 < stats["engine"]["pool_bytes"] <= 4_000_000
        assert stats["prompt_cache"]["max_bytes"] == int(0.001 * 2**30)
        assert said(s.post(SAMPLED)) == base
        assert s.post({**HELLO, "seed": 1})["usage"]["completion_tokens"] > 0
    with Server("--prompt-cache", "0") as s:
        assert [s.post(SAMPLED)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)] == [0, 0]
        assert s.get("/stats")["prompt_cache"]["entries"] == 0


def test_rows_of_memory_default(plain):
    """T1.07, T1.08, T1.09: nothing set, 8 GiB of prompt cache at most (or the whole pool where it is smaller)."""
    stats = plain.get("/stats")
    assert stats["admission"]["memory_budget_bytes"] is None and stats["batch"]["kv_budget_bytes"] is None
    assert min(8 * 2**30, stats["engine"]["pool_bytes"]) * 0.99 <= stats["prompt_cache"]["max_bytes"] <= 8 * 2**30


@pytest.mark.parametrize("flags,n", [([], 8), (["--batch", "3"], 3), (["--decode-concurrency", "5"], 5),
                                     (["--decode-concurrency", "5", "--batch", "2"], 2), (["--batch", "1"], 1)])
def test_row_batch(flags, n, base):
    """T1.17, CFG-007, CFG-071, CFG-073, CFG-074: the most sequences decoded together, 8 without a flag; the same bits."""
    with Server(*flags) as s:
        assert f"up to {n} requests together" in s.card and s.get("/stats")["batch"]["configured"] == n
        answer = s.post(SAMPLED)
        assert said(answer) == base
        assert answer["usage"]["lane"] == ("serial" if n == 1 else "batched")


@pytest.mark.parametrize("flags,tier,kv", [
    ([], "l1", "f16"), (["--l1"], "l1", "f16"), (["--l2"], "l2", "f16"), (["--tier", "f32"], "f32", "f32"),
    (["--l2", "--kv-quant", "bf16"], "l2", "bf16"), (["--tier", "f32", "--kv-quant", "off"], "f32", "f16"),
    (["--kv-quant", "f32"], "l1", "f32"), (["--kv-quant", "bf16", "--l1"], "l1", "bf16"),
    (["--kv-quant", "8"], "l1", "kv8"), (["--l2", "--kv-quant", "4"], "l2", "kv4"),
])
def test_rows_of_tier_and_kv(flags, tier, kv):
    """T1.40, T1.41, T1.18, CFG-031, CFG-032, CFG-076, ENG-236: the tier is a preset, --kv-quant always overrides its part."""
    with Server(*flags) as s:
        stats = s.get("/stats")
        assert stats["server"]["tier"] == tier and f"tier     {tier}, KV {stats['kv_quant']['mode']};" in s.card
        assert list(stats["kv_quant"]["layers"]) == [kv] and stats["kv_quant"]["mode"] in (kv, f"uniform-{kv}")


@pytest.mark.parametrize("value,on", [("true", 1), ("on", 1), ("1", 1), ("false", 0), ("off", 0), ("0", 0)])
def test_row_thinking(value, on, thinks, quiet):
    """T1.28, CFG-096, CFG-097, API-137: sets the template's enable_thinking; a template that does not ask is left as it is."""
    for model in (thinks, quiet):
        text = json.loads(run("show-prompt", model, "--prompt", "x", "--thinking", value, "--json").stdout)["prompt"]
        assert text.endswith("<think>\n" if on else "</think>\n\n")
    assert run("show-prompt", LLAMA, "--prompt", "x", "--thinking", value).stdout == run("show-prompt", LLAMA, "--prompt", "x").stdout


def test_rows_of_sampling():
    """T1.29, T1.30, T1.31, T1.32, CFG-022, CFG-098: defaults of the server; what the request says wins."""
    hot = {**HELLO, "ignore_eos": True, "logprobs": True, "seed": 4}
    with Server("--temp", "0", "--max-tokens", "9") as s:
        greedy = said(s.post(hot))
        assert len(greedy) == 9
        assert len(said(s.post({**hot, "max_tokens": 4}))) == 4
        assert said(s.post({**hot, "temperature": 2})) != greedy
    for flags in (["--top-k", "1"], ["--top-p", "0.000001"], ["--temperature", "0", "--temp", "2"]):
        with Server("--max-tokens", "9", *([] if "--temp" in flags else ["--temp", "2"]), *flags) as s:
            assert said(s.post(hot)) == greedy, flags
            if "--temp" not in flags or flags[0] != "--temperature":
                assert said(s.post({**hot, "top_k": 0, "top_p": 1})) != greedy, flags


# --- precedence ---

def test_cfg019_values_of_sampling_in_order(tmp_path, plain):
    """CFG-019, CFG-020, CFG-022, CFG-024, CFG-100: request, server flag, generation_config.json, 0.7; the same on both routes that
    give log-probabilities, and by the text on /v1/messages and /v1/responses."""
    base = {"ignore_eos": True, "logprobs": True, "max_tokens": 16, "seed": 21}
    routes = (("/v1/chat/completions", HELLO), ("/v1/completions", {"prompt": "hello there"}))

    def drawn(s, path, body, **more):
        got = s.post({**base, **body, **more}, path)["choices"][0]["logprobs"]
        return got["content"] if "content" in got else got

    cold = variant(tmp_path / "cold", generation={"temperature": 0.0})
    for path, body in routes:
        greedy, seven = drawn(plain, path, body, temperature=0), drawn(plain, path, body, temperature=0.7)
        three = drawn(plain, path, body, temperature=3)
        assert greedy != seven != three
        assert drawn(plain, path, body) == seven              # nothing says anything: 0.7, not 0 as mlx_lm.server
        with Server(model=cold) as s:
            assert drawn(s, path, body) == greedy             # the model's file
            assert drawn(s, path, body, temperature=3) == three
        with Server("--temp", "3", model=cold) as s:
            assert drawn(s, path, body) == three              # the flag beats the file
            assert drawn(s, path, body, temperature=0) == greedy
    with Server(model=cold) as s:
        for path, key in (("/v1/messages", "content"), ("/v1/responses", "output")):
            body = {**HELLO, "max_tokens": 16, "model": "x", "input": "hello"}
            assert json.dumps(s.post(body, path)[key][-1]["text" if key == "content" else "content"]) == \
                json.dumps(plain.post({**body, "temperature": 0}, path)[key][-1]["text" if key == "content" else "content"])


def test_cfg023_max_completion_tokens_wins(plain):
    """CFG-023: over max_tokens, in either order and direction."""
    for a, b in ((3, 7), (7, 3)):
        for body in ({"max_tokens": a, "max_completion_tokens": b}, {"max_completion_tokens": b, "max_tokens": a}):
            assert plain.post({**HELLO, "ignore_eos": True, **body})["usage"]["completion_tokens"] == b


@pytest.mark.parametrize("kwargs,effort,flag,on", [
    (None, None, None, 1), (None, None, "off", 0), (None, "high", "off", 1), (None, "none", "on", 0), (True, "none", "off", 1),
    (False, "high", "on", 0), (None, "minimal", "off", 1), (None, "low", "off", 1), (None, "medium", "off", 1),
    (True, None, "off", 1), (False, None, None, 0),
])
def test_cfg025_thinking_in_order(kwargs, effort, flag, on, thinks, plain):
    """CFG-025, CFG-026: chat_template_kwargs, then reasoning_effort (none off, every other level on), then the flag, then the model."""
    def length(text):
        return len(plain.post({"content": text}, "/tokenize")["tokens"])

    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    if kwargs is not None:
        body["chat_template_kwargs"] = {"enable_thinking": kwargs}
    if effort:
        body["reasoning_effort"] = effort
    with Server(*(["--thinking", flag] if flag else []), model=thinks) as s:
        n = s.post(body)["usage"]["prompt_tokens"]
    want = {w: json.loads(run("show-prompt", thinks, "--prompt", "x", "--thinking", w, "--json").stdout) for w in ("on", "off")}
    assert len(want["on"]["ids"]) != len(want["off"]["ids"])
    assert n == len(want["on" if on else "off"]["ids"])


def test_cfg028_no_thought_unless_asked_for(quiet):
    """CFG-028: a model whose template is MiniCPM5's answers without thinking unless thinking is requested."""
    def ending(*flags):
        return json.loads(run("show-prompt", quiet, "--prompt", "x", "--json", *flags).stdout)["prompt"][-10:]

    assert ending() == ending("--thinking", "off") == "</think>\n\n"
    assert ending("--thinking", "on").endswith("<think>\n")


def test_cfg030_adapters_in_order(plain, base):
    """CFG-030: with none mounted: "none" is the base model, every other name is refused by name (tests/http/test_adapters.py)."""
    assert said(plain.post({**SAMPLED, "adapter": "none"})) == base
    code, text = plain.status({**SAMPLED, "adapter": "mine"})
    assert code == 400 and "adapter" in text


def test_cfg014_flag_beats_variable():
    """CFG-013, CFG-014: read once at the start; the flag over the variable."""
    env = {"MLX_BUN_API_KEY": "from-env"}
    with Server(env=env) as s:
        assert s.status(HELLO)[0] == 401
        assert s.status({**HELLO, "max_tokens": 1}, headers={"authorization": "Bearer from-env"})[0] == 200
    with Server("--api-key", "from-flag", env=env) as s:
        assert s.status({**HELLO, "max_tokens": 1}, headers={"authorization": "Bearer from-env"})[0] == 401
        assert s.status({**HELLO, "max_tokens": 1}, headers={"x-api-key": "from-flag"})[0] == 200


def test_cfg101_no_cap_unless_set():
    """CFG-101, CFG-103: nothing set: to the end of the context, not 128, 512 or 1024 tokens; 512 is mlx_lm.server's. (The family
    with a default of its own: test_api047_glm_reserves.)"""
    body = {**HELLO, "ignore_eos": True, "temperature": 0}
    with Server(env={"MLX_BUN_RD_CONTEXT_LIMIT": "1300"}) as s:
        answer = s.post(body)
        assert answer["usage"]["total_tokens"] == 1300 and answer["choices"][0]["finish_reason"] == "length"
    with Server("--max-tokens", "512") as s:
        answer = s.post(body)
        assert answer["usage"]["completion_tokens"] == 512 and answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("form", [["--max-tokens", "5"], ["--max-tokens=5"]])
def test_cfg001_forms(form, plain):
    """REG-236 REG-237 CFG-001, CFG-003: two tokens, and --name=value besides; an unknown flag takes no value and does not stop the start."""
    with Server(*form, "--unknown-flag") as s:
        assert s.post({**HELLO, "ignore_eos": True})["usage"]["completion_tokens"] == 5
        assert s.warned("unknown flag --unknown-flag"), s.err
