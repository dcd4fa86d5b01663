"""Datasets: types, round trip through Parquet, tensors, and the loss recomputed from the columns."""

from pathlib import Path

import numpy as np
import pytest
from adapter_cases import agent_forest, inexact_forest, logprob, plain_loss, ppo

from ajet_merge import Forest, MergeError, merge
from ajet_merge.adapters.datasets import to_dataset

datasets = pytest.importorskip("datasets", reason="datasets is not installed")


def test_parquet_gives_back_what_was_written(tmp_path: Path) -> None:
    made = to_dataset(agent_forest())
    made.to_parquet(str(tmp_path / "rows.parquet"))
    back = datasets.Dataset.from_parquet(str(tmp_path / "rows.parquet"), cache_dir=str(tmp_path / "cache"))
    assert back.features == made.features
    assert back.to_dict() == made.to_dict()


def loss_of(forest: Forest) -> float:
    total = 0.0
    for row in to_dataset(forest).with_format("numpy"):
        ids, mask = row["input_ids"].tolist(), row["loss_mask"].astype(bool)
        new = np.array([logprob(ids[: i + 1]) for i in range(len(ids))])
        total += float((row["weights"] * ppo(new, row["logprobs"], row["advantages"]))[mask].sum())
    return total


def test_the_loss_of_the_rows_is_the_sum_over_the_calls() -> None:
    forest = agent_forest()
    assert loss_of(forest) == pytest.approx(plain_loss(forest, ppo), rel=1e-6)


def test_torch_gets_tensors_of_the_right_types() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    made = to_dataset(agent_forest())
    made.set_format("torch")
    row = made[0]
    assert row["input_ids"].dtype == torch.int64
    assert row["advantages"].dtype == torch.float32
    assert row["input_ids"].shape == row["loss_mask"].shape == row["logprobs"].shape == row["weights"].shape


def test_columns_name_the_calls_and_their_contexts() -> None:
    made = to_dataset(inexact_forest())
    assert sorted(call for row in made["call_ids"] for call in row) == [f"call-{n}" for n in range(6)]
    assert [
        exact for calls, exact in zip(made["call_ids"], made["context_exact"], strict=True) if "call-1" in calls
    ] == [False]
    assert sorted({episode for row in made["episode_ids"] for episode in row}) == ["a", "b", "c"]


def test_no_rows_are_an_empty_table_of_the_same_types() -> None:
    made = to_dataset(merge([]))
    assert len(made) == 0
    assert made.features == to_dataset(agent_forest()).features


def test_a_row_too_long_is_refused() -> None:
    with pytest.raises(MergeError, match="11 tokens do not fit max_length=10"):
        to_dataset(agent_forest(), max_length=10)
