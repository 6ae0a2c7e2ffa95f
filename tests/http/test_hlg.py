"""HLG sampling over HTTP and the command line (API-071 to API-077, T1.33 to T1.37, CFG-034, CFG-105, ENG-080 to ENG-083). The
curve's arithmetic is proved in tests/kernels/test_sample.c; here: who turns it on, with which numbers, and when not."""
import json

import pytest

import http_rig as rig
from http_rig import CHAT, HELLO, LLAMA, RAW, Server

DRAW = {"seed": 5, "temperature": 1.3, "max_tokens": 32, "ignore_eos": True}
KEYS = ("width", "shoulder", "toe", "pivot_offset")
DEFAULTS = {"width": 4, "shoulder": 4, "toe": 6, "pivot_offset": 6}
# The tiny model's logits lie close together: numbers that reach them.
NEAR = {"enabled": True, "width": 0.2, "shoulder": 0.3, "toe": 0.4, "pivot_offset": 1.5}
NEAR_FLAGS = ["--hlg-width", 0.2, "--hlg-shoulder", 0.3, "--hlg-toe", 0.4, "--hlg-pivot-offset", 1.5]
OTHER = {"width": 1.5, "shoulder": 0, "toe": 0, "pivot_offset": 0.2}


@pytest.fixture(scope="module")
def flagged():
    """NEAR by flags, the curve off."""
    with Server(*NEAR_FLAGS) as s:
        yield s


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_api071_same_seed_other_draws(llama, path):
    """API-071, API-072, API-077, ENG-080, ENG-082: on, other tokens come of the same seed, the same ones each time; off,
    null, {} and absent are one."""
    plain, on = llama.ids(path=path, **DRAW), llama.ids(path=path, hlg=NEAR, **DRAW)
    assert [i for i, _ in on] != [i for i, _ in plain]
    assert llama.ids(path=path, hlg=NEAR, **DRAW) == on
    for off in (None, {}, {"enabled": False}, {"enabled": None}, {**NEAR, "enabled": False}, DEFAULTS, {"unknown": 1}):
        assert llama.ids(path=path, hlg=off, **DRAW) == plain, off


def test_api077_gain_is_the_temperature(llama):
    """API-077, ENG-080: log-probabilities are the model's own, curve or not; a curve without a middle and without roll-off
    (width, shoulder and toe 0) makes all tokens alike, so that draws leave the ones the model prefers."""
    plain, flat = (llama.ids(**{**DRAW, "max_tokens": 200, "temperature": 0.3}, hlg=h)
                   for h in (None, {"enabled": True, "width": 0, "shoulder": 0, "toe": 0}))
    assert sum(p for _, p in flat) < sum(p for _, p in plain) - 10
    first = {i: p for i, p in (llama.ids(**{**DRAW, "max_tokens": 1, "seed": s})[0] for s in range(40))}
    shared = [(p, first[i]) for i, p in (llama.ids(**{**DRAW, "max_tokens": 1, "seed": s}, hlg=NEAR)[0] for s in range(40)) if i in first]
    assert shared and all(a == b for a, b in shared)


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_q62_greedy_ignores_it(llama, path):
    """API-077, Q62: temperature 0 takes the best token, curve or not."""
    greedy = {**DRAW, "temperature": 0}
    assert llama.ids(path=path, hlg=NEAR, **greedy) == llama.ids(path=path, **greedy)


@pytest.mark.parametrize("key", KEYS)
def test_api073_defaults(llama, key):
    """API-073, API-074, API-075, API-076, ENG-081: a key left out or null is its default; each key changes the draws."""
    base = {**NEAR, key: DEFAULTS[key]}
    without = {k: v for k, v in NEAR.items() if k != key}
    want = llama.ids(hlg=base, **DRAW)
    assert llama.ids(hlg=without, **DRAW) == llama.ids(hlg={**without, key: None}, **DRAW) == want
    seeds = range(12)
    assert any(llama.ids(hlg={**NEAR, key: OTHER[key]}, **{**DRAW, "seed": s}) != llama.ids(hlg=NEAR, **{**DRAW, "seed": s}) for s in seeds)


@pytest.mark.parametrize("path", [CHAT, RAW])
def test_q6_wrong_values(llama, path):
    """API-071 to API-076, Q6: wrong types and ranges are 400 by the key's full name, enabled or not, JSON or stream."""
    base = {"messages": HELLO} if path == CHAT else {"prompt": "a"}
    rows = [(3, "hlg must be of type dict", "hlg"), ([], "hlg must be of type dict", "hlg"), (True, "hlg must be of type dict", "hlg"),
            ({"enabled": 1}, "hlg.enabled must be of type bool", "hlg.enabled"),
            ({"enabled": "on"}, "hlg.enabled must be of type bool", "hlg.enabled")]
    for key in KEYS:
        name = f"hlg.{key}"
        rows += [({key: "4"}, f"{name} must be of type float", name), ({key: True}, f"{name} must be of type float", name),
                 ({key: -0.01}, f"{name} must be at least 0", name), ({key: 101}, f"{name} must be at most 100", name),
                 ({key: 10**30}, f"{name} must be at most 100", name), ({"enabled": True, key: 1e300}, f"{name} must be at most 100", name)]
    for value, text, param in rows:
        e = llama.refused(path, {**base, "hlg": value, "stream": len(text) % 2 == 0}, text)
        assert e["param"] == param and e["message"] == text
    for value in (0, 0.0, 100, 100.0):
        assert llama.ok(path, {**base, "max_tokens": 2, "hlg": {"enabled": True, **{k: value for k in KEYS}}})


def test_cfg034_merged_key_by_key(llama, flagged):
    """CFG-034, CFG-105, API-071, T1.34, T1.35, T1.36, T1.37: the numbers' flags alone change nothing; a request that turns the
    curve on takes from them what it does not say."""
    assert flagged.ids(**DRAW) == llama.ids(**DRAW)
    assert flagged.ids(hlg={"enabled": True}, **DRAW) == llama.ids(hlg=NEAR, **DRAW)
    for key in KEYS:
        own = {"enabled": True, key: OTHER[key]}
        assert flagged.ids(hlg=own, **DRAW) == llama.ids(hlg={**NEAR, **own}, **DRAW)


def test_t1_33_server_default(llama):
    """T1.33, CFG-034, API-072: --hlg-sampling on is the default of requests; {"enabled": false} turns it off."""
    with Server("--hlg-sampling", "on", *NEAR_FLAGS) as s:
        want = llama.ids(hlg=NEAR, **DRAW)
        assert s.ids(**DRAW) == s.ids(hlg={}, **DRAW) == s.ids(hlg={"width": None}, **DRAW) == want
        assert s.ids(hlg={"enabled": False}, **DRAW) == llama.ids(**DRAW)
        assert s.ids(hlg={"toe": 2}, **DRAW) == llama.ids(hlg={**NEAR, "toe": 2}, **DRAW)
        assert s.ids(**{**DRAW, "temperature": 0}) == llama.ids(**{**DRAW, "temperature": 0})


def test_eng083_the_crowd_leaves_no_trace(llama):
    """ENG-083, Q62: what a request with the curve draws does not depend on what runs beside it."""
    from concurrent.futures import ThreadPoolExecutor
    want = [llama.ids(hlg=NEAR, **{**DRAW, "seed": s}) for s in range(6)]
    with ThreadPoolExecutor(6) as pool:
        got = list(pool.map(lambda s: llama.ids(hlg=NEAR, **{**DRAW, "seed": s}), range(6)))
    assert got == want


def test_t1_34_generate():
    """T1.33 to T1.37, CFG-105: the flags of `generate`."""
    def ids(*flags, temperature=1.3):
        p = rig.run("generate", LLAMA, "--raw", "--prompt", "hello", "--json", "--seed", 5, "--temperature", temperature,
                    "--max-tokens", 32, "--ignore-eos", *flags)
        assert p.returncode == 0 and "warning" not in p.stderr, p.stderr
        return json.loads(p.stdout)["ids"]

    plain, on = ids(), ids("--hlg-sampling", "on", *NEAR_FLAGS)
    assert on != plain
    assert ids(*NEAR_FLAGS) == ids("--hlg-sampling", "off", *NEAR_FLAGS) == plain
    assert ids("--hlg-sampling", "on", *NEAR_FLAGS, temperature=0) == ids(temperature=0)
    assert ids("--hlg-sampling", "on", *NEAR_FLAGS) == on


@pytest.mark.parametrize("name", ["hlg-width", "hlg-shoulder", "hlg-toe", "hlg-pivot-offset"])
def test_t1_34_ranges(name):
    """T1.34, T1.35, T1.36, T1.37: 0 to 100; T1.33: on or off."""
    for value in ("101", "-1", "wide"):
        p = rig.run("serve", LLAMA, "--port", 0, f"--{name}", value)
        assert p.returncode == 2 and name in p.stderr
    p = rig.run("serve", LLAMA, "--port", 0, "--hlg-sampling", "maybe")
    assert p.returncode == 2 and "on or off" in p.stderr
