"""Servers that the tests of a module of this folder share, one of each kind for a file, ended behind it."""
import json

import pytest

import http_rig as rig


@pytest.fixture(scope="session")
def llama():
    """The tiny llama checkpoint with default flags."""
    with rig.Server() as s:
        yield s
        assert s.process.poll() is None, s.stderr()


@pytest.fixture(scope="session")
def says(tmp_path_factory):
    """says(*pieces): a running server whose model says just these tokens; servers are kept, at most four."""
    kept = {}

    def get(*pieces, flags=()):
        key = (pieces, flags)
        if key not in kept:
            if len(kept) == 4:
                kept.pop(next(iter(kept))).stop()
            kept[key] = rig.Server(*flags, model=rig.chain_model(tmp_path_factory.mktemp("says"), pieces))
        return kept[key]

    yield get
    for s in kept.values():
        s.stop()


@pytest.fixture
def scripted(tmp_path):
    """scripted(script, *flags, env={}): a server over the scripted engine (src/cli/scripted.c); needs fault points."""
    if not rig.has_fault_points():
        pytest.skip("a build without fault points")
    running = []

    def start(script, *flags, env=None):
        file = tmp_path / f"script{len(running)}.json"
        file.write_text(json.dumps(script))
        running.append(rig.Server("--scripted", file, *flags, env=env))
        return running[-1]

    yield start
    for s in running:
        s.stop()


@pytest.fixture(scope="session")
def long_model(tmp_path_factory):
    """The tiny llama checkpoint with a context of a million: work that lasts."""
    return rig.copy_model(tmp_path_factory.mktemp("long"), config={"max_position_embeddings": 1 << 20})
