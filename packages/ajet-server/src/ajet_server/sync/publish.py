"""Puts the trainer's weights into the engine, and proves that they serve."""

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ajet_core.errors import EngineFailedError
from ajet_server.sync.canary import probe

if TYPE_CHECKING:
    from ajet_server.engines.base import Engine
    from ajet_server.train.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Published:
    """A sync that passed its probe.

    Attributes:
        weight_version: what the engine samples from now.
        probe_error: largest difference in log-probability on the probe, nats.
        probe_tolerance: what it may be.
        seconds: how long both took.
    """

    weight_version: int
    probe_error: float
    probe_tolerance: float
    seconds: float


def publish(engine: "Engine", trainer: "Trainer", weight_version: int, ids: npt.NDArray[np.int32]) -> Published:
    """Loads the trainer's weights into the engine as `weight_version` and proves it, before anything is sampled.

    Two proofs: every weight in the engine is bit for bit what the trainer publishes, however small the step was; and
    both score `ids` the same (`probe`). Weights are made a second time for the comparison, so none is kept meanwhile.

    Raises:
        EngineFailedError: the engine refuses the weights, has another version or other weights afterwards, finds keys
            of old weights in its cache, or scores otherwise than the trainer. It must not serve then.
    """
    started = perf_counter()
    engine.load_weights(trainer.weight_shapes(), trainer.weights(), weight_version)
    if engine.weight_version != weight_version:
        raise EngineFailedError(
            f"the engine serves weight version {engine.weight_version} after a sync of {weight_version}"
        )
    wrong = engine.differing(trainer.weights())
    if wrong is not None:
        raise EngineFailedError(
            f"weight version {weight_version} does not serve: the engine's {wrong!r} is not what the trainer published"
        )
    error, tolerance = probe(engine, trainer, ids, trainer.dtype)
    if not error <= tolerance:
        raise EngineFailedError(
            f"weight version {weight_version} does not serve: engine and trainer differ by {error:.3g} nats on "
            f"{ids.size} tokens, at most {tolerance:g} is rounding"
        )
    return Published(weight_version, error, tolerance, perf_counter() - started)
