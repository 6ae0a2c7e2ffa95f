"""serve without a model's name: the largest of the cache that fits, or a first start that fetches one."""
import json
import re
import signal
import time
import urllib.request

import pytest

from hub_rig import Store, check_snapshot, end, header, model_files, plant, small_files

STARTER, E4B = "mlx-community/MiniCPM5-1B-OptiQ-4bit", "mlx-community/gemma-4-e4b-it-OptiQ-4bit"
UNWANTED = (".gitattributes", "pytorch_model.bin")


def serve_card(store, *args):
    p = store.start("serve", "--port", "0", *args)
    card = ""
    for line in p.stdout:
        card += line
        if "url " in line:
            card += p.stdout.readline() + p.stdout.readline()
            break
    p.send_signal(signal.SIGTERM)
    out, err = p.communicate(timeout=300)
    return card, err


def test_serve_picks_the_largest_that_fits(alone):
    """REG-046 CFG-037: the largest whole model of a known family; e4b before all when it is there (and can be run)."""
    plant(alone, "org/small", model_files())
    broken = model_files()
    commit = plant(alone, "org/larger-but-half", {**broken, "more.json": b"{}"})
    (alone.repo("org/larger-but-half") / "snapshots" / commit / "model.safetensors").unlink()
    odd = small_files(size=400000)
    odd["config.json"] = b'{"model_type": "mystery"}'
    plant(alone, "org/largest-but-unknown", odd)
    card, err = serve_card(alone)
    assert "serving org/small from the cache" in err and "models--org--small" in card
    plant(alone, "org/larger", {**model_files(), "model-2.safetensors": header({"more": ("F32", [300000], 1200000)})})
    assert alone.json("ls", "org/larger")["models"][0]["size_bytes"] > 1200000
    assert "serving org/larger from the cache" in serve_card(alone)[1]
    plant(alone, E4B, model_files())
    card, err = serve_card(alone)
    assert f"serving {E4B} from the cache" in err and "gemma-4-e4b" in card


def downloads(http):
    """What is said of each repository; the newest is the first of the list."""
    rows = json.loads(urllib.request.urlopen(http + "/downloads").read())["downloads"]
    return {d["repo_id"]: d["state"] for d in reversed(rows)}


def serving(store, *args):
    """A server without a model's name: the process, its address, the model's folder."""
    p = store.start(*args)
    card = ""
    for line in p.stdout:
        card += line
        if line.startswith("  model "):
            card += p.stdout.readline()
            break
    assert "model" in card, p.stderr.read()
    return p, re.search(r"url +(http://\S+)/v1", card)[1], card


def test_first_start(hub, store):
    """REG-045 REG-047 REG-048 REG-049 CFG-038: nothing in the cache: the hub's starter is fetched and served, the better one comes
    in the background, over a start that ended in between, and is what the next one serves. No verb is serve."""
    hub.repo(STARTER).commit(model_files())
    files = {**model_files(), "notes.json": b"[]"}
    hub.repo(E4B).commit(files)
    hub.fault("notes.json", "hold", 1, times=1)
    p, http, card = serving(store, "--port", "0", "--memory-budget", "20")
    assert "MiniCPM5-1B-OptiQ-4bit" in card
    assert hub.held.wait(300)
    assert downloads(http)[E4B] == "active" and downloads(http)[STARTER] == "done"
    assert E4B in end(p)  # it says so
    assert not (store.repo(E4B) / "refs/main").exists()
    hub.release.set()
    p, http, card = serving(store, "serve", "--port", "0", "--memory-budget", "20")
    assert "MiniCPM5-1B-OptiQ-4bit" in card
    deadline = time.monotonic() + 300
    while downloads(http)[E4B] != "done":  # what the first start says of it is there until this one begins
        assert time.monotonic() < deadline
        time.sleep(0.02)
    end(p)
    check_snapshot(store.repo(E4B) / "snapshots" / hub.repo(E4B).refs["main"], {k: v for k, v in files.items() if k not in UNWANTED})
    hub.requests.clear()
    p, http, card = serving(store, "--port", "0")
    assert "gemma-4-e4b" in card
    end(p)
    assert not hub.requests


@pytest.mark.parametrize("args, env", [(["--no-download"], {}), ([], {"HF_HUB_OFFLINE": "1"})])
def test_first_start_fetches_nothing(hub, tmp_path, args, env):
    """CFG-038: --no-download and the offline switch: no request to the hub; our own starter, if anything."""
    s = Store(tmp_path, hub, PATH="/nowhere", **env)  # no python3, so no pip that could fetch it
    hub.repo(STARTER).commit(model_files())
    p = s.start("serve", "--port", "0", *args)
    _, err = p.communicate(timeout=300)
    assert p.returncode != 0 and "SmolLM2" in err and not hub.requests


def test_first_start_brings_nothing_that_does_not_fit(hub, store):
    """REG-047: a model larger than the memory that may be used is not fetched; nor one beside a starter that was there already."""
    hub.repo(STARTER).commit(model_files())
    hub.repo(E4B).commit(model_files())
    for memory in ("3", "20"):  # the second start finds the starter in the cache
        p, http, card = serving(store, "serve", "--port", "0", "--memory-budget", memory)
        assert "MiniCPM5" in card and set(downloads(http)) == {STARTER}
        assert E4B not in end(p)
