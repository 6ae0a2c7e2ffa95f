"""A card that fails under a model split over several. Needs fault points and MLX_BUN_TEST_DEVICES=cuda:0,1 (docs/cuda.md)."""
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import http_rig as rig
from http_rig import RAW

DEVICES = os.environ.get("MLX_BUN_TEST_DEVICES", "")


@pytest.mark.skipif(not DEVICES or not rig.has_fault_points(), reason="needs several GPUs and a build with fault points")
@pytest.mark.parametrize("how", ["", "/nccl", "/steps", "/nccl/steps"])
def test_b106_a_rank_dies(how):
    """B-106: a kernel of one rank reads where nothing is, in the middle of work, with captured graphs and without: running requests end with an
    error that names the device, /health says no, later requests are refused, and the program ends with a status that is not 0."""
    s = rig.Server("--device", DEVICES + how, "--kv-budget", "0.2", env={"MLX_BUN_TEST_FAULT": "rank_death=60"})
    try:
        with ThreadPoolExecutor(4) as pool:
            runs = [pool.submit(s.post, RAW, {"prompt": f"{i}", "max_tokens": 1000, "ignore_eos": True, "stream": i < 2}) for i in range(4)]
            answers = [f.result(100) for f in runs]
        begin = time.monotonic()
        while s.get("/health").status_code == 200:
            assert time.monotonic() < begin + 60
            time.sleep(0.05)
        for a in answers:
            assert "error" in a.text and "cuda:" in a.text, a.text[-300:]
            assert a.status_code in (500, 503) or (a.status_code == 200 and "data: " in a.text)
        late = s.post(RAW, {"prompt": "a"})
        assert late.status_code in (500, 503) and late.json()["error"]["message"]
    finally:
        code = s.stop()
    assert code > 0, s.stderr()
