import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ajet_core.config import Job
from ajet_core.config_errors import config_error, section_at

_MODEL = {"path": "m"}


def _refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        Job.model_validate(data)
    return config_error(refused.value).message


def test_a_model_path_is_enough() -> None:
    job = Job.model_validate({"model": _MODEL})
    assert (job.method, job.batch.policy, job.engine.name) == ("lora", "groups", "torch")
    assert job.adapter is not None
    assert job.adapter.rank == 16


def test_full_training_has_no_adapter() -> None:
    assert Job.model_validate({"model": _MODEL, "method": "full"}).adapter is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "model: required, but not given"),
        ({"optimizer": {"learning_rat": 1}}, "optimizer.learning_rat: unknown field; did you mean learning_rate?"),
        ({"optimzer": {}}, "optimzer: unknown field; did you mean optimizer?"),
        ({"batch": {"zzz": 1}}, "batch.zzz: unknown field; known here: policy, size"),
        ({"batch": {"size": 0}}, "batch.size: got 0; input should be greater than 0"),
        ({"optimizer": {"learning_rate": float("nan")}}, "optimizer.learning_rate: got nan"),
        ({"algorithm": {"name": "ppo2"}}, "algorithm.name: got 'ppo2'; input should be 'grpo'"),
        ({"trainer": None}, "trainer: got None"),
        (
            {"trainer": {"mini_batches": 5}},
            "trainer.mini_batches: 5 parts of a batch of 4 cannot each hold a whole one",
        ),
        ({"optimizer": {"schedule": "cosine"}}, "optimizer.decay_steps: is needed with schedule 'cosine'"),
        ({"optimizer": {"decay_steps": 9}}, "optimizer.decay_steps: has no effect with schedule 'constant'"),
        ({"optimizer": {"final_rate_fraction": 0.1}}, "optimizer.final_rate_fraction: has no effect with schedule"),
        ({"algorithm": {"old_logprobs": "recomputed"}}, "algorithm.old_logprobs: with one optimizer step a batch"),
        ({"method": "full", "lora": {}}, "lora: is set, but method is 'full'; remove one"),
        ({"batch": {"min_reward_spread": 0.1}}, "batch.min_reward_spread: has no effect with policy 'groups'"),
        ({"batch": {"group_size": 1}}, "batch.group_size: 1 leaves nothing to compare"),
        ({"batch": {"max_pool_episodes": 8}}, "batch.max_pool_episodes: 8 can never hold one batch of 32"),
        (
            {"engine": {"during_update": "finish"}, "batch": {"max_staleness": 0}},
            "engine.during_update: 'finish' samples with weights that are one version old",
        ),
        (
            {"engine": {"during_update": "continue"}, "batch": {"max_staleness": 0}},
            "but batch.max_staleness is 0; use 'drain', or at least 1",
        ),
        ({"engine": {"max_model_len": 100}}, "limits.max_completion_tokens: 1024 leaves no room"),
    ],
)
def test_what_cannot_be_is_named(data: dict[str, Any], said: str) -> None:
    full = data if not data else {"model": _MODEL, **data}
    assert said in _refusal(full)


def test_every_mistake_gets_a_line_and_the_first_is_the_field() -> None:
    with pytest.raises(ValidationError) as refused:
        Job.model_validate({"batch": {"size": 0}, "seed": -1})
    error = config_error(refused.value)
    assert len(error.message.splitlines()) == 3
    assert error.field == "seed"


def _sections(
    section: type[BaseModel] = Job, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], type[BaseModel]]]:
    found = [(path, section)]
    for name in section.model_fields:
        child = section_at((*path, name))
        if child is not None:
            found += _sections(child, (*path, name))
    return found


def test_every_field_has_a_docstring() -> None:
    for path, section in _sections():
        assert inspect.getdoc(section), path
        for name, field in section.model_fields.items():
            is_section = section_at((*path, name)) is not None
            assert field.description or is_section, f"{'.'.join((*path, name))} has no docstring"


def test_no_field_is_an_import_path() -> None:
    for path, section in _sections():
        for name in section.model_fields:
            assert not name.endswith(("_class", "_module", "_factory", "_fn")), (*path, name)


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=5), max_size=4))
def test_any_mapping_is_a_job_or_a_sentence(data: dict[str, Any]) -> None:
    try:
        Job.model_validate({"model": _MODEL, **data})
    except ValidationError as error:
        said = config_error(error).message
    else:
        return
    assert said


def test_a_job_survives_json() -> None:
    job = Job.model_validate({"model": _MODEL, "lora": {"rank": 4, "targets": ["q_proj"]}})
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    "data",
    [
        {"optimizer": {"max_grad_norm": float("inf")}},
        {"optimizer": {"eps": float("inf")}},
        {"lora": {"alpha": float("inf")}},
        {"limits": {"lease_s": float("inf")}},
        {"lora": {"targets": []}},
        {"model": {"path": "m", "served_name": ""}},
    ],
)
def test_what_json_could_not_keep_or_nobody_could_use_is_refused(data: dict[str, Any]) -> None:
    assert "got" in _refusal({"model": _MODEL, **data})


def test_the_learning_rate_follows_the_method() -> None:
    assert Job.model_validate({"model": _MODEL}).learning_rate == 1e-4
    assert Job.model_validate({"model": _MODEL, "method": "full"}).learning_rate == 1e-5
    assert Job.model_validate({"model": _MODEL, "optimizer": {"learning_rate": 5e-4}}).learning_rate == 5e-4


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"sources": {"a": 0.5, "b": 0.4}}, "adds up to 0.9, not to 1"),
        ({"sources": {"a": 0.05, "b": 0.95}}, "leaves nothing of batch.size=4 for 'a'"),
        ({"policy": "any_client", "size": 4, "sources": {"a": 1.0}}, "no exact shares with policy 'any_client'"),
        ({"sources": {"a": 1.0}, "when": "groups >= 4 or waited > 1m"}, "no exact shares with batch.when"),
        ({"sources": {}}, "at least 1"),
        ({"sources": {"a": 1.0, "b": 0.0}}, "greater than 0"),
    ],
)
def test_shares_that_cannot_be_are_refused(batch: dict[str, Any], said: str) -> None:
    assert said in _refusal({"model": {"path": "m"}, "batch": batch})


def test_shares_of_a_batch() -> None:
    batch = Job.model_validate({"model": {"path": "m"}, "batch": {"size": 5, "sources": {"a": 0.5, "b": 0.5}}}).batch
    assert batch.quotas == {"a": 3, "b": 2}
    assert Job.model_validate({"model": {"path": "m"}}).batch.quotas == {}
