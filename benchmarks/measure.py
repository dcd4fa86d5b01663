"""What the benchmarks share: the machine's own speed, measured in the same run, and the model they run on."""

import json
import platform
import time
from pathlib import Path
from typing import Any

import platformdirs
import torch

from ajet_server.demo.smollm import smollm_folder

_ROWS, _INNER, _OUTER = 256, 1536, 1536
_REPEATS = 40


def matmul_gflops() -> float:
    """Best of several rates of fp32 matrix products of a small model's shape, GFLOP/s: the physical limit here."""
    a, b = torch.randn(_ROWS, _INNER), torch.randn(_INNER, _OUTER)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(_REPEATS):
            torch.mm(a, b)
        best = max(best, 2 * _ROWS * _INNER * _OUTER * _REPEATS / (time.perf_counter() - started) / 1e9)
    return best


def demo_model() -> Path:
    """The quickstart's model, converted on first use."""
    return smollm_folder(Path(platformdirs.user_cache_dir("ajet")), print)


def machine() -> dict[str, Any]:
    """What a reader needs to place the figures."""
    return {"threads": torch.get_num_threads(), "torch": torch.__version__, "processor": platform.machine()}


def finish(result: dict[str, Any], text: str, *, as_json: bool) -> None:
    """Prints the table, and the JSON line last."""
    print(text)
    if as_json:
        print(json.dumps(result))
