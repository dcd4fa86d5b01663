from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ajet_core.config import AlgorithmConfig, Job
from ajet_core.config_algorithm import AlgorithmName, KlConfig, OffPolicyConfig, ValueConfig
from ajet_core.config_errors import config_error
from ajet_core.errors import ConfigError

PRESETS = list(get_args(AlgorithmName))


def _refused(algorithm: Any, **sections: Any) -> ConfigError:
    with pytest.raises(ValidationError) as refused:
        Job.model_validate({"model": {"path": "m"}, "algorithm": algorithm, **sections})
    return config_error(refused.value)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("grpo", ("group_mean", "std", "token", "ratio", 0.2, 0.2, "episode_mean", None)),
        ("dr_grpo", ("group_mean", "none", "token", "ratio", 0.2, 0.2, "fixed_length", 1024)),
        ("rloo", ("leave_one_out", "none", "token", "ratio", 0.2, 0.2, "fixed_length", 1)),
        ("reinforce_pp", ("batch_mean", "batch_std", "token", "ratio", 0.2, 0.2, "episode_mean", None)),
        ("dapo", ("group_mean", "std", "token", "ratio", 0.2, 0.28, "token_mean", None)),
        ("gspo", ("group_mean", "std", "sequence", "ratio", 3e-4, 4e-4, "episode_mean", None)),
        ("cispo", ("group_mean", "std", "token", "weight", None, 4.0, "token_mean", None)),
        ("ppo", ("value", "batch_std", "token", "ratio", 0.2, 0.2, "episode_mean", None)),
    ],
)
def test_what_a_name_presets(name: str, parts: tuple[Any, ...]) -> None:
    found = AlgorithmConfig.model_validate({"name": name})
    assert parts == (
        found.baseline,
        found.advantage_scale,
        found.ratio_level,
        found.clipping,
        found.clip_low,
        found.clip_high,
        found.loss_weight,
        found.loss_length,
    )
    assert (found.kl, found.off_policy, found.overlong, found.entropy_coef) == (None, None, None, 0)
    assert found.old_logprobs == "rollout"
    assert found.value == (ValueConfig() if name == "ppo" else None)


def test_the_default_is_grpo() -> None:
    assert AlgorithmConfig() == AlgorithmConfig(name="grpo")


def test_a_part_can_be_set_by_itself() -> None:
    found = AlgorithmConfig.model_validate({"name": "reinforce_pp", "baseline": "group_mean", "clip_high": 0.3})
    assert (found.baseline, found.advantage_scale, found.clip_low, found.clip_high) == (
        "group_mean",
        "batch_std",
        0.2,
        0.3,
    )


def test_what_was_left_empty_is_left_to_the_preset() -> None:
    assert AlgorithmConfig.model_validate({"name": "dapo", "clip_high": None, "kl": None}).clip_high == 0.28


def test_without_clipping_there_are_no_bounds() -> None:
    found = AlgorithmConfig(clipping="none")
    assert (found.clip_low, found.clip_high) == (None, None)


@pytest.mark.parametrize("off_policy", [{}, OffPolicyConfig()])
def test_importance_weights_need_the_model_before_the_update(off_policy: Any) -> None:
    assert AlgorithmConfig(off_policy=off_policy).old_logprobs == "recomputed"


def test_another_name_over_a_stored_job_changes_its_parts() -> None:
    """What a preset decided is not kept as if somebody had wanted it."""
    stored = AlgorithmConfig.model_validate({"name": "dapo", "clip_low": 0.1, "loss_length": None})
    kept = stored.model_dump(exclude_unset=True)
    assert kept == {"name": "dapo", "clip_low": 0.1}
    assert AlgorithmConfig(**(kept | {"name": "gspo"})).clip_high == 4e-4


@given(
    st.sampled_from(PRESETS),
    st.fixed_dictionaries(
        {},
        optional={
            "clipping": st.sampled_from(["ratio", "weight", "none"]),
            "loss_weight": st.sampled_from(["token_mean", "fixed_length"]),
            "advantage_scale": st.sampled_from(["none", "batch_std"]),
            "kl": st.fixed_dictionaries({}, optional={"place": st.just("reward"), "coef": st.just(0.1)}),
            "off_policy": st.just({"kind": "mask", "low": 0.5}),
        },
    ),
)
def test_every_combination_reads_back_from_json(name: str, parts: dict[str, Any]) -> None:
    job = Job.model_validate({"model": {"path": "m"}, "algorithm": {"name": name, **parts}})
    assert Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("algorithm", "field", "said"),
    [
        ({"name": "ppo", "advantage_scale": "std"}, "advantage_scale", "does not fit baseline 'value'"),
        ({"baseline": "value"}, "advantage_scale", "got 'std'; the group's deviation does not fit baseline 'value'"),
        ({"value": {"trace": 0.5}}, "value", "got {'trace': 0.5}; has no effect with baseline 'group_mean'; remove"),
        ({"name": "ppo", "baseline": "batch_mean", "value": {}}, "value", "has no effect with baseline 'batch_mean'"),
        ({"name": "ppo", "value": {"discount": 0}}, "value.discount", "got 0; input should be greater than 0"),
        ({"name": "ppo", "value": {"trace": 1.1}}, "value.trace", "less than or equal to 1"),
        ({"name": "ppo", "value": {"trunk": "mine"}}, "value.trunk", "input should be 'shared' or 'frozen'"),
        ({"clipping": "none", "clip_low": 0.1}, "clip_low", "got 0.1; has no effect with clipping 'none'"),
        ({"clipping": "none", "clip_high": 0.1}, "clip_high", "got 0.1; has no effect with clipping 'none'"),
        ({"loss_length": 4}, "loss_length", "got 4; has no effect with loss_weight 'episode_mean'"),
        ({"name": "reinforce_pp", "advantage_scale": "std"}, "advantage_scale", "got 'std'"),
        ({"off_policy": {}, "old_logprobs": "rollout"}, "old_logprobs", "use 'recomputed'"),
        ({"off_policy": {"low": 0.3}}, "off_policy.low", "got 0.3; has no effect with kind 'truncate'"),
        ({"kl": {"estimator": "k1"}}, "kl.estimator", "the expected gradient of k1 is zero"),
        ({"overlong": {"max_tokens": 3, "buffer": 9}}, "overlong.buffer", "got 9; is more than max_tokens=3"),
        ({"overlong": {"max_tokens": 3}}, "overlong.buffer", "required"),
        ({"overlong": {"max_tokens": 9999, "buffer": 9}}, "overlong", "no completion is longer than"),
        ({"name": ["grpo"]}, "name", "input should be 'grpo'"),
        ({"clip_low": 1.0}, "clip_low", "got 1.0; input should be less than 1"),
        ({"clip_hgh": 1.0}, "clip_hgh", "did you mean clip_high?"),
    ],
)
def test_what_cannot_be_blames_its_field(algorithm: dict[str, Any], field: str, said: str) -> None:
    error = _refused(algorithm)
    assert error.field == f"algorithm.{field}"
    assert said in error.message
    assert len(error.message.splitlines()) == 1


def test_a_section_must_be_one() -> None:
    assert "input should be a valid dictionary" in _refused(3).message


def test_all_contradictions_are_named_at_once() -> None:
    said = _refused({"clipping": "none", "clip_low": 0.1, "clip_high": 0.1, "loss_length": 3}).message
    assert len(said.splitlines()) == 3


def test_one_rollout_of_a_task_can_be_compared_with_the_batch() -> None:
    sections = {"model": {"path": "m"}, "batch": {"group_size": 1}}
    assert Job.model_validate({**sections, "algorithm": {"name": "reinforce_pp"}}).batch.group_size == 1
    assert "leaves nothing to compare" in _refused({"name": "rloo"}, batch={"group_size": 1}).message


def test_with_a_critic_a_rollout_needs_no_other() -> None:
    sections = {"model": {"path": "m"}, "batch": {"group_size": 1}}
    assert Job.model_validate({**sections, "algorithm": {"name": "ppo"}}).batch.group_size == 1
    alone = {"group_size": 1, "policy": "informative_groups"}
    assert "'informative_groups' would wait for ever" in _refused({"name": "ppo"}, batch=alone).message


def test_the_critic_comes_with_its_baseline_and_goes_with_it() -> None:
    ours = AlgorithmConfig.model_validate({"name": "ppo", "value": {"clip": None, "trunk": "frozen"}})
    assert ours.value == ValueConfig(clip=None, trunk="frozen")
    stored = ours.model_dump(exclude_unset=True)
    assert stored == {"name": "ppo", "value": {"clip": None, "trunk": "frozen"}}
    assert AlgorithmConfig.model_validate(stored) == ours
    assert AlgorithmConfig.model_validate({"name": "dapo", "baseline": "value", "advantage_scale": "none"}).value
    assert AlgorithmConfig.model_validate({"name": "ppo", "baseline": "batch_mean"}).value is None
    plain = AlgorithmConfig.model_validate({"name": "ppo"})
    assert plain.model_dump(exclude_unset=True) == {"name": "ppo"}
    assert AlgorithmConfig.model_validate({"name": "ppo", "value": None}) == plain


def test_a_section_given_as_an_object_is_taken_as_it_is() -> None:
    kl = KlConfig(coef=0.1, place="reward")
    assert AlgorithmConfig(name="rloo", kl=kl).kl is kl
