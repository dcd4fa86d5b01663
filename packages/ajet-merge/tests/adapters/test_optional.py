"""Adapters say what to install."""

import sys

import pytest
from adapter_cases import agent_forest

from ajet_merge import MergeError
from ajet_merge.adapters import datasets, slime, tinker, trl, verl


@pytest.mark.parametrize(
    ("adapter", "missing", "said"),
    [
        (lambda forest: verl.to_dataproto(forest, pad_token_id=0), "torch", "pip install torch"),
        (lambda forest: trl.to_grpo_batch(forest, pad_token_id=0), "torch", "pip install torch"),
        (slime.to_samples, "slime", "THUDM/slime"),
        (tinker.to_datums, "tinker", "pip install tinker"),
        (datasets.to_dataset, "datasets", "pip install datasets"),
    ],
)
def test_a_missing_package_is_named(adapter, missing: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MergeError, match=f"this adapter needs {missing}.*{said}"):
        adapter(agent_forest())
