"""Contract 8: an engine that does not serve the trainer's weights is found by the probe."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from trainer_reference import micro_job, mixed_batch, quiet, reference_model

from ajet_core.errors import EngineFailedError
from ajet_server.engines.base import IntIds, Logprobs
from ajet_server.sync.canary import PROBE_TOKENS, probe, probe_ids
from ajet_server.sync.publish import publish
from ajet_server.train.trainer import Trainer


class CachingEngine:
    """What `publish` needs of an engine: it decodes through a key/value cache, with faults on demand."""

    def __init__(self, folder: Path) -> None:
        self.model = reference_model(folder)
        self.weight_version = 0
        self.fault = ""
        self._prefixes: dict[bytes, object] = {}

    def load_weights(self, weights: Iterable[tuple[str, object]], weight_version: int) -> None:
        state = self.model.state_dict()
        for name, tensor in weights:
            assert isinstance(tensor, torch.Tensor)
            if self.fault == "adapter scale":  # twice the change of each weight
                state[name].copy_(tensor * 2 - state[name])
            elif self.fault != "not loaded" and not (self.fault == "one layer missing" and "layers.2" in name):
                state[name].copy_(tensor)
        if self.fault != "stale cache":
            self._prefixes.clear()
        if self.fault != "version":
            self.weight_version = weight_version

    @torch.no_grad()
    def score(self, token_ids: IntIds) -> Logprobs:
        from transformers import DynamicCache

        ids, half = torch.from_numpy(token_ids).long()[None], len(token_ids) // 2
        if token_ids.tobytes() not in self._prefixes:
            cache = DynamicCache(config=self.model.config)
            logits = self.model(input_ids=ids[:, :half], cache=cache, use_cache=True).logits
            self._prefixes[token_ids.tobytes()] = cache, logits
        cache, logits = self._prefixes[token_ids.tobytes()]
        steps = range(half, len(token_ids) - 1)
        new = [self.model(input_ids=ids[:, at : at + 1], cache=cache, use_cache=True).logits for at in steps]
        cache.crop(half + 1 - len(token_ids))
        logprobs = torch.cat([logits, *new], 1)[0].log_softmax(-1)
        if self.fault == "nan":
            logprobs[3] = torch.nan
        return logprobs.gather(1, ids[0, 1:, None])[:, 0].numpy()


@pytest.fixture(params=["lora", "full"])
def pair(request: pytest.FixtureRequest, model_folder: Path) -> tuple[Trainer, CachingEngine]:
    trainer, engine = Trainer.load(micro_job(model_folder, request.param)), CachingEngine(model_folder)
    engine.score(probe_ids(trainer.vocab_size))
    trainer.update("b", 1, mixed_batch(), quiet)
    return trainer, engine


def test_a_good_sync_passes(pair: tuple[Trainer, CachingEngine]) -> None:
    trainer, engine = pair
    ids = probe_ids(trainer.vocab_size)
    before, _ = probe(engine, trainer, ids, torch.float32)
    done = publish(engine, trainer, 1, ids)
    assert done.probe_error < 1e-4 < done.probe_tolerance < before
    assert done.weight_version == engine.weight_version == 1
    trainer.update("b2", 2, mixed_batch(2), quiet)
    assert publish(engine, trainer, 2, ids).probe_error < 1e-4


@pytest.mark.parametrize("fault", ["not loaded", "one layer missing", "stale cache", "adapter scale", "nan", "version"])
def test_a_bad_sync_is_refused(pair: tuple[Trainer, CachingEngine], fault: str) -> None:
    trainer, engine = pair
    engine.fault = fault
    ids = probe_ids(trainer.vocab_size)
    words = "serves weight version 0" if fault == "version" else r"differ by .* nats"
    with pytest.raises(EngineFailedError, match=words):
        publish(engine, trainer, 1, ids)


def test_probe_ids() -> None:
    assert probe_ids(50).tolist() == probe_ids(50).tolist()
    assert probe_ids(50).dtype == np.int32
    assert probe_ids(50).size == PROBE_TOKENS
    assert probe_ids(50).max() < 50
    call = np.arange(100, dtype=np.int32)
    assert probe_ids(50, call).tolist() == list(range(100 - PROBE_TOKENS, 100))
    assert probe_ids(50, call[:5]).tolist() == [0, 1, 2, 3, 4]
    assert probe_ids(50, call[:1]).size == PROBE_TOKENS
