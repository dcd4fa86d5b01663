"""Contract 8: an engine that does not serve the trainer's weights never serves, whatever went wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft.tuners.lora import LoraLayer
from trainer_reference import micro_job, mixed_batch, quiet

from ajet_core.errors import EngineFailedError
from ajet_server.engines.base import GenerationRequest, IntIds
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.sync.canary import PROBE_TOKENS, probe, probe_ids
from ajet_server.sync.publish import publish
from ajet_server.train.trainer import Trainer
from ajet_server.worker.protocol import Sampling

Pair = tuple[Trainer, TorchEngine]
IDS = probe_ids(512)


def make_pair(folder: Path, method: str, learning_rate: float, dtype: str = "float32") -> Pair:
    """A trainer one step ahead of an engine that has generated already."""
    model = {"path": str(folder), "device": "cpu", "dtype": dtype}
    job = micro_job(folder, method, model=model, optimizer={"learning_rate": learning_rate})
    trainer, engine = Trainer.load(job), TorchEngine.load(job)
    generate(engine, IDS)
    trainer.update("b", 1, mixed_batch(), quiet)
    return trainer, engine


def generate(engine: TorchEngine, prompt: IntIds) -> None:
    engine.submit(GenerationRequest("a", prompt, Sampling(max_tokens=4, temperature=0.0)))
    while engine.has_work:
        engine.step()


@pytest.fixture(params=["lora", "full"])
def pair(request: pytest.FixtureRequest, model_folder: Path) -> Pair:
    return make_pair(model_folder, request.param, 1e-3)


@pytest.fixture(params=["lora", "full"])
def small_step(request: pytest.FixtureRequest, model_folder: Path) -> Pair:
    """A step as small as those of a job by default."""
    return make_pair(model_folder, request.param, 1e-5)


def test_a_good_sync_passes(pair: Pair) -> None:
    trainer, engine = pair
    before, _ = probe(engine, trainer, IDS, torch.float32)
    done = publish(engine, trainer, 1, IDS)
    assert done.probe_error < 1e-4 < done.probe_tolerance < before
    assert done.weight_version == engine.weight_version == 1
    trainer.update("b2", 2, mixed_batch(2), quiet)
    assert publish(engine, trainer, 2, IDS).probe_error < 1e-4
    generate(engine, IDS)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_in_bfloat16_what_the_probe_cannot_see_is_compared(model_folder: Path, method: str) -> None:
    trainer, engine = make_pair(model_folder, method, 1e-3, "bfloat16")
    error, tolerance = probe(engine, trainer, IDS, torch.bfloat16)
    assert error < tolerance or method == "full"
    assert publish(engine, trainer, 1, IDS).probe_error < tolerance
    trainer.update("b2", 2, mixed_batch(2), quiet)
    only(engine, lambda name: False)
    with pytest.raises(EngineFailedError, match="is not what the trainer published"):
        publish(engine, trainer, 2, IDS)


def test_the_probe_goes_through_the_prefix_cache(small_step: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine = small_step
    cached: list[int] = []
    score = engine.score

    def watched(token_ids: IntIds, start: int) -> Any:
        scored = score(token_ids, start)
        cached.append(scored.cached_tokens)
        return scored

    monkeypatch.setattr(engine, "score", watched)
    publish(engine, trainer, 1, IDS)
    assert cached == [0, PROBE_TOKENS - 5]


def only(engine: TorchEngine, wanted: Callable[[str], bool]) -> None:
    """Makes the engine drop the weights that are not wanted."""
    load = engine.load_weights

    def faulty(shapes: Any, weights: Any, version: int) -> None:
        names = {name: shape for name, shape in shapes.items() if wanted(name)}
        load(names, ((name, tensor) for name, tensor in weights if name in names), version)

    engine.load_weights = faulty


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("learning_rate", [1e-5, 1e-7])
def test_weights_that_were_not_loaded_are_found_after_the_smallest_step(
    model_folder: Path, method: str, learning_rate: float
) -> None:
    trainer, engine = make_pair(model_folder, method, learning_rate)
    if learning_rate == 1e-7:
        error, tolerance = probe(engine, trainer, IDS, torch.float32)
        assert error < tolerance  # the probe alone would let it pass
    only(engine, lambda name: False)
    with pytest.raises(EngineFailedError, match=r"the engine's 'model\..*weight' is not what the trainer published"):
        publish(engine, trainer, 1, IDS)


def test_a_layer_that_was_not_loaded_is_named(small_step: Pair) -> None:
    trainer, engine = small_step
    only(engine, lambda name: "layers.2" not in name)
    with pytest.raises(EngineFailedError, match=r"'model\.layers\.2\."):
        publish(engine, trainer, 1, IDS)


def test_a_weight_that_was_loaded_wrongly_is_named(small_step: Pair) -> None:
    trainer, engine = small_step
    load, name = engine.load_weights, "model.layers.3.self_attn.v_proj.weight"

    def faulty(shapes: Any, weights: Any, version: int) -> None:
        load(shapes, weights, version)
        weight = engine._model.state_dict()[name]
        weight[1, 2] = torch.nextafter(weight[1, 2], torch.tensor(9.0))

    engine.load_weights = faulty
    with pytest.raises(EngineFailedError, match=name):
        publish(engine, trainer, 1, IDS)


def test_what_the_trainer_announces_must_come(small_step: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine = small_step
    monkeypatch.setattr(trainer, "weights", lambda: iter(()))
    with pytest.raises(EngineFailedError, match="was announced but did not come"):
        publish(engine, trainer, 1, IDS)


def test_an_adapter_merged_at_the_wrong_scale_is_found_by_the_probe(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine holds exactly what was published; what was published is not what is trained."""
    trainer, engine = make_pair(model_folder, "lora", 1e-3)
    layers: list[Any] = [module for module in trainer.model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        right = layer.get_delta_weight
        monkeypatch.setattr(layer, "get_delta_weight", lambda name, right=right: 2 * right(name))
    with pytest.raises(EngineFailedError, match=r"differ by .* nats"):
        publish(engine, trainer, 1, IDS)


@pytest.mark.parametrize("lr", [1e-5, 1e-3])
def test_a_stale_prefix_cache_is_found(model_folder: Path, lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine = make_pair(model_folder, "lora", lr)
    monkeypatch.setattr(engine._scheduler, "forget", lambda: None)
    with pytest.raises(EngineFailedError, match="keys of weight version 0, but version 1 is serving"):
        publish(engine, trainer, 1, IDS)


def test_a_stale_prefix_cache_with_the_right_version_on_it_is_found_by_the_probe(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, engine = pair

    def relabel() -> None:
        pending = [engine._scheduler._cache._root]
        while pending:
            node = pending.pop()
            node.version = 1
            pending += node.children.values()

    monkeypatch.setattr(engine._scheduler, "forget", relabel)
    with pytest.raises(EngineFailedError, match=r"differ by .* nats"):
        publish(engine, trainer, 1, IDS)


def test_scores_that_are_not_finite_are_no_match(small_step: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine = small_step
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda *given: forward(*given) * torch.nan)
    with pytest.raises(EngineFailedError, match="differ by inf nats"):
        publish(engine, trainer, 1, IDS)


def test_an_engine_of_another_version_is_refused(small_step: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engine = small_step
    load = engine.load_weights
    monkeypatch.setattr(engine, "load_weights", lambda shapes, weights, version: load(shapes, weights, 0))
    with pytest.raises(EngineFailedError, match="serves weight version 0"):
        publish(engine, trainer, 1, IDS)


@pytest.mark.parametrize("length", [2, 3, 6])
def test_short_probes(small_step: Pair, length: int) -> None:
    trainer, engine = small_step
    assert publish(engine, trainer, 1, IDS[:length]).probe_error < 1e-4


def test_probe_ids() -> None:
    assert probe_ids(50).tolist() == probe_ids(50).tolist()
    assert probe_ids(50).dtype == np.int32
    assert probe_ids(50).size == PROBE_TOKENS
    assert probe_ids(50).max() < 50
    call = np.arange(100, dtype=np.int32)
    assert probe_ids(50, call).tolist() == list(range(100 - PROBE_TOKENS, 100))
    assert probe_ids(50, call[:5]).tolist() == [0, 1, 2, 3, 4]
    assert probe_ids(50, call[:1]).size == PROBE_TOKENS
