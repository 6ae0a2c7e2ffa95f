"""A full disk in the middle of a download. Needs a build with fault points (make alloc-fail)."""
import subprocess

import pytest

from hub_rig import MLX_BUN, Hub, Store, check_snapshot, small_files

NAME = "org/tiny"
HAS_FAULTS = "fault points" in subprocess.run([MLX_BUN, "--version"], capture_output=True, text=True).stdout
pytestmark = pytest.mark.skipif(not HAS_FAULTS, reason="needs a build with fault points")


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 13])
def test_full_disk(tmp_path, k):
    """ENOSPC at the k-th write: the text says so, nothing half counts, and the same command finishes once there is room."""
    files = small_files(n=3, size=60000)
    with Hub() as hub:
        hub.repo(NAME).commit(files)
        store = Store(tmp_path, hub)
        p = store.run("get", NAME, status=None, env={"MLX_BUN_TEST_FAULT": f"disk_full={k}"})
        if p.returncode != 0:
            assert p.returncode == 7 and ("disk is full" in p.stderr or "No space left" in p.stderr), p.stderr
            assert not (store.repo(NAME) / "refs/main").exists()
        check_snapshot(store.get(NAME), files)
