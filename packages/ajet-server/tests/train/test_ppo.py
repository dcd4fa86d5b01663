"""Updates with a critic: rates, broken models, what outlives a process, and that it learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from ppo_reference import METHODS, head_of, parameters, ppo_job, randomize, same
from trainer_reference import Rows, micro_job, mixed_batch, quiet

from ajet_core.errors import ConfigError
from ajet_server.train.trainer import Trainer


@METHODS
def test_the_head_has_a_rate_of_its_own_on_the_same_schedule_and_no_decay(model_folder: Path, method: str) -> None:
    optimizer = {"learning_rate": 1e-3, "warmup_steps": 4, "weight_decay": 0.1}
    trainer = Trainer.load(ppo_job(model_folder, method, {"learning_rate": 0.5}, optimizer=optimizer))
    report = trainer.update("b", 1, mixed_batch(), quiet)
    assert report.learning_rate == pytest.approx(1e-3 / 4)
    model, head = trainer._optimizer.param_groups
    assert (model["lr"], head["lr"]) == pytest.approx((1e-3 / 4, 0.5 / 4))
    assert (model["weight_decay"], head["weight_decay"]) == (0.1, 0)
    assert head_of(trainer).bias.item() == pytest.approx(0.5 / 4, rel=1e-3)  # Adam's first step


def test_a_frozen_trunk_learns_nothing_from_the_value_loss(model_folder: Path) -> None:
    found: list[dict[str, torch.Tensor]] = []
    for coef, trunk in ((0.1, "frozen"), (10.0, "frozen"), (10.0, "shared")):
        job = ppo_job(model_folder, value={"coef": coef, "trunk": trunk}, optimizer={"max_grad_norm": 1e6})
        trainer = Trainer.load(job)
        randomize(head_of(trainer), 0, 1.0)
        trainer.update("b", 1, mixed_batch(), quiet)
        found.append({name: tensor for name, tensor in parameters(trainer).items() if "lora_B" in name})
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_the_engine_never_sees_the_head(model_folder: Path) -> None:
    plain_job = micro_job(model_folder)
    trainer, other = Trainer.load(ppo_job(model_folder)), Trainer.load(plain_job)
    trainer.update("b", 1, mixed_batch(), quiet)
    assert {name for name, _ in trainer.weights()} == {name for name, _ in other.weights()}
    assert trainer.weight_shapes() == other.weight_shapes()


def test_without_a_critic_its_figures_are_zero(model_folder: Path) -> None:
    report = Trainer.load(micro_job(model_folder)).update("b", 1, mixed_batch(), quiet)
    assert (report.value_loss, report.value_clip_fraction) == (0, 0)
    assert (report.explained_variance, report.return_mean) == (0, 0)


def test_a_model_or_a_head_that_is_broken_is_told(model_folder: Path) -> None:
    trainer = Trainer.load(ppo_job(model_folder, "full"))
    with torch.no_grad():
        head_of(trainer).weight.fill_(torch.nan)
    report = trainer.update("b1", 1, mixed_batch(1), quiet)
    assert (report.skipped, report.optimizer_steps) == (True, 0)
    assert (trainer.skip_reason or "").startswith("the values of calls 'e0.0', ")
    with torch.no_grad():
        next(trainer.plain.parameters()).fill_(torch.nan)
    assert trainer.update("b2", 2, mixed_batch(2), quiet).skipped
    assert (trainer.skip_reason or "").startswith("the log-probabilities of calls '")


def test_a_batch_that_trains_no_token_is_no_crash(model_folder: Path) -> None:
    trainer, rows = Trainer.load(ppo_job(model_folder)), Rows()
    rows.episode("g", 0.0)
    rows.episode("g", 1.0, (rows.ids(3), [], 1.0))
    before = parameters(trainer)
    report = trainer.update("b", 1, rows.episodes, quiet)
    assert (report.packs, report.loss, report.explained_variance, report.skipped) == (0, 0.0, 0.0, False)
    assert same(before, parameters(trainer))


def test_a_batch_in_which_all_tokens_did_equally_well_is_told(model_folder: Path, caplog: Any) -> None:
    trainer, rows = Trainer.load(ppo_job(model_folder)), Rows()
    for _ in range(2):
        rows.episode("g", 1.0, (rows.ids(9), rows.ids(1), 1.0))
    trainer.update("b", 1, rows.episodes, quiet)
    assert "the policy learns nothing from it. 2 of its 2 episodes have advantage 0, because no token" in caplog.text
    assert head_of(trainer).bias.item() > 0  # the critic does learn


@METHODS
def test_resume_is_bit_equal(model_folder: Path, tmp_path: Path, method: str) -> None:
    optimizer = {
        "learning_rate": 1e-3,
        "warmup_steps": 3,
        "schedule": "cosine",
        "decay_steps": 9,
        "final_rate_fraction": 0.1,
    }
    kl = {"coef": 0.1, "estimator": "k1", "place": "reward"}
    trainer = {"mini_batches": 2, "epochs": 2}
    job = ppo_job(model_folder, method, algorithm={"kl": kl}, optimizer=optimizer, trainer=trainer)
    straight, stopped = Trainer.load(job), Trainer.load(job)
    straight.update("b1", 1, mixed_batch(1), quiet)
    report = stopped.update("b1", 1, mixed_batch(1), quiet)
    assert report.optimizer_steps == 4
    assert report.value_loss > 0
    folder = stopped.save(tmp_path, report)
    assert {path.name for path in folder.iterdir()} >= {"value.safetensors", "optimizer.safetensors"}
    torch.manual_seed(99)
    resumed = Trainer.load(job, folder)
    assert same(parameters(stopped), parameters(resumed))
    assert resumed.last_report == stopped.last_report
    reports = [one.update("b2", 2, mixed_batch(2), quiet) for one in (straight, resumed)]
    assert same(parameters(straight), parameters(resumed))
    assert not same(parameters(straight), parameters(stopped))
    assert reports[0].model_copy(update={"seconds": {}}) == reports[1].model_copy(update={"seconds": {}})


def test_rolling_back_takes_the_head_too(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(ppo_job(model_folder))
    folder = trainer.save(tmp_path, trainer.update("b1", 1, mixed_batch(1), quiet))
    good = parameters(trainer)
    trainer.update("b2", 2, mixed_batch(2), quiet)
    assert not same(good, parameters(trainer))
    trainer.roll_back(folder)
    assert same(good, parameters(trainer))


@pytest.mark.parametrize(("first", "second"), [("ppo", "grpo"), ("grpo", "ppo")])
def test_a_checkpoint_with_and_without_a_critic(model_folder: Path, tmp_path: Path, first: str, second: str) -> None:
    trainer = Trainer.load(micro_job(model_folder, algorithm={"name": first}))
    folder = trainer.save(tmp_path, trainer.update("b", 1, mixed_batch(), quiet))
    with pytest.raises(ConfigError, match=r"algorithm\.name: .*value head \(critic\)") as caught:
        Trainer.load(micro_job(model_folder, algorithm={"name": second}), folder)
    assert caught.value.field == "algorithm.name"


def played(trainer: Trainer, rows: Rows, prompts: list[np.ndarray[Any, Any]], good: int, bad: int) -> list[Any]:
    """Episodes of three tokens, as if sampled now: each prompt is worth something, and the good second token 1 more."""
    episodes: list[Any] = []
    for prompt, worth in zip(prompts, (1.0, -1.0), strict=True):
        for token in (good, bad):
            for _ in range(3):
                first, last = rows.ids(2)
                rows.episodes.clear()
                rows.episode("g", worth + (token == good), (prompt, [first, token, last], 1.0))
                ids = np.concatenate([prompt, np.array([first, token, last], np.int32)])
                name, call = f"e{len(episodes)}", rows.episodes[0].calls[0]
                logprobs = trainer.score(ids)[prompt.size - 1 :].tobytes()
                call = structs.replace(call, call_id=name, episode_id=name, logprobs=logprobs)
                episodes.append(structs.replace(rows.episodes[0], episode_id=name, calls=[call]))
    return episodes


@pytest.mark.parametrize("trunk", ["shared", "frozen"])
def test_the_critic_and_the_policy_learn(model_folder: Path, trunk: str) -> None:
    job = ppo_job(
        model_folder, value={"trunk": trunk}, optimizer={"learning_rate": 5e-3}, batch={"size": 2, "group_size": 6}
    )
    trainer, rows = Trainer.load(job), Rows(3)
    prompts, (good, bad) = [rows.ids(6), rows.ids(6)], (17, 18)
    probe = [np.concatenate([prompt, rows.ids(1), [good]]).astype(np.int32) for prompt in prompts]

    def chance() -> float:
        return float(np.mean([trainer.score(ids)[-1] for ids in probe]))

    before, known = chance(), list[float]()
    for step in range(1, 31):
        report = trainer.update(f"b{step}", step, played(trainer, rows, prompts, good, bad), quiet)
        known.append(report.explained_variance)
    assert known[0] == pytest.approx(0, abs=1e-6)  # a new critic says 0
    assert np.mean(known[-5:]) > 0.5
    assert chance() > before + 1


def test_full_training_in_bfloat16_has_values_in_float32(model_folder: Path) -> None:
    model = {"path": str(model_folder), "device": "cpu", "dtype": "bfloat16"}
    trainer = Trainer.load(ppo_job(model_folder, "full", model=model, trainer={"activation_checkpointing": True}))
    first, second = (trainer.update(f"b{step}", step, mixed_batch(1), quiet) for step in (1, 2))
    assert (first.explained_variance, second.skipped) == (pytest.approx(0, abs=1e-6), False)
    assert second.value_loss < first.value_loss
    assert {parameter.dtype for parameter in head_of(trainer).parameters()} == {torch.float32}
