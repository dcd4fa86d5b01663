"""Who computes attention over packs, and how that is chosen."""

import importlib
import logging
from typing import Literal

import torch

from ajet_core.errors import ConfigError

Backend = Literal["segments", "rectangles", "dense", "flash"]
"""All compute the same.

- `flash`: flash-attn over the segments, their keys gathered. The fastest on a GPU.
- `segments`: the same with torch's own attention, segment by segment. Any device; does windows and softcapping.
- `rectangles`: causal blocks and rectangles over the pack itself, merged by log-sum-exp. No key is copied and no mask
  is made: the fastest on a CPU, the least memory anywhere.
- `dense`: one mask of tokens x tokens. A reference to compare with.
"""

MAX_DENSE = 4096
"""Tokens of the largest pack that the dense mask is made for: 16 MiB as booleans, 64 MiB as the kernel takes it."""

FLASH_FLOOR = (2, 7)
"""The flash-attn release from which causal masks are aligned at the bottom right (2.1), windows (2.3) and softcapping
with its gradient (2.6.2) included."""

_log = logging.getLogger(__name__)


def choose_backend(device: torch.device, wanted: Backend | Literal["auto"] = "auto") -> Backend:
    """Returns the backend that is wanted, or the fastest for the device, and says in the log which and why.

    Raises:
        ConfigError: the backend that is wanted cannot run here.
    """
    backend, why = (wanted, "trainer.attention asks for it") if wanted != "auto" else _fastest(device)
    problem = flash_problem(device) if backend == "flash" else None
    if problem is not None:
        raise ConfigError(f"trainer.attention: 'flash' cannot run, {problem}; use 'auto'", field="trainer.attention")
    _log.info("pack attention: %s on %s: %s", backend, device.type, why)
    return backend


def _fastest(device: torch.device) -> tuple[Backend, str]:
    if device.type == "cpu":
        return "rectangles", "it needs neither masks nor copies of keys"
    problem = flash_problem(device)
    return ("segments", problem) if problem is not None else ("flash", "a GPU and flash-attn are there")


def flash_problem(device: torch.device) -> str | None:
    """Returns why flash-attn cannot run on the device, or None."""
    if device.type != "cuda":
        return f"flash-attn has no kernel for {device.type}"
    try:
        version = importlib.import_module("flash_attn").__version__
    except ImportError:
        return "flash-attn is not installed"
    if tuple(int(part) for part in version.split(".")[:2]) < FLASH_FLOOR:
        floor = ".".join(map(str, FLASH_FLOOR))
        return f"flash-attn {version} is older than {floor}: causal masks may be aligned at the top left"
    return None
