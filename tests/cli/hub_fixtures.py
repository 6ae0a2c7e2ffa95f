"""Fixtures: the hub on this machine (hub_rig.py) and caches beside it."""
import pytest

from hub_rig import Hub, Store


@pytest.fixture
def hub():
    with Hub() as h:
        yield h


@pytest.fixture
def store(tmp_path, hub):
    return Store(tmp_path, hub)


@pytest.fixture
def alone(tmp_path):
    """A cache without a hub."""
    return Store(tmp_path)
