"""Logits never exist for more rows than `trainer.logprob_chunk` at once, whatever an update needs them for."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from trainer_reference import VOCAB, micro_job, mixed_batch, quiet

from ajet_server.train.trainer import Trainer

CHUNK = 5
ALGORITHMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all that reads logits": {
        "kl": {"place": "loss"},
        "off_policy": {"high": 2.0},
        "entropy_coef": 0.1,
    },
}


class RowsOfLogits(TorchDispatchMode):
    """Sees what every operation makes, in the backward pass too: `most` is the largest number of rows of logits."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._layer = {width, VOCAB}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and VOCAB in tensor.shape and set(tensor.shape) != self._layer:
                self.most = max(self.most, prod(tensor.shape) // VOCAB)
        return result


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("method", ["lora", "full"])
def test_an_update_holds_a_chunk_of_logits(model_folder: Path, method: str, algorithm: dict[str, Any]) -> None:
    trainer = Trainer.load(micro_job(model_folder, method, algorithm=algorithm, trainer={"logprob_chunk": CHUNK}))
    with RowsOfLogits(trainer.plain.config.hidden_size) as rows:
        report = trainer.update("b", 1, mixed_batch(), quiet)
    assert report.packs == 1
    assert report.tokens_forest > 10 * CHUNK
    assert rows.most == CHUNK
