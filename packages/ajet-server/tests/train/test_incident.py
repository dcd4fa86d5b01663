"""What is kept of a skipped update, and the way back to older weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_reference import micro_job, mixed_batch, quiet

from ajet_core.errors import StorageError
from ajet_merge import merge, read_calls
from ajet_server.train.checkpoint import prune, rollback_target
from ajet_server.train.incident import culprit, write_incident
from ajet_server.train.trainer import Trainer

METHODS = pytest.mark.parametrize("method", ["lora", "full"])


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


@METHODS
def test_rolling_back_takes_weights_and_moments_and_goes_on_as_from_there(
    model_folder: Path, tmp_path: Path, method: str
) -> None:
    trainer = Trainer.load(micro_job(model_folder, method))
    folder = trainer.save(tmp_path, trainer.update("b1", 1, mixed_batch(1), quiet))
    good = weights(trainer)
    trainer.save(tmp_path, trainer.update("b2", 2, mixed_batch(2), quiet))
    assert not same(good, weights(trainer))
    assert rollback_target(tmp_path) == folder
    report = trainer.roll_back(folder)
    assert (report.rolled_back_to, report.step, trainer.step) == (1, 2, 2)
    assert same(good, weights(trainer))
    straight = Trainer.load(micro_job(model_folder, method), folder)
    for one in (trainer, straight):
        one.update("b3", 3, mixed_batch(3), quiet)
    assert same(weights(straight), weights(trainer))


def test_without_an_older_checkpoint_there_is_no_way_back(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder))
    trainer.save(tmp_path, trainer.update("b1", 1, mixed_batch(1), quiet))
    assert rollback_target(tmp_path) is None


def test_skipped_steps_do_not_push_out_the_checkpoint_to_go_back_to(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder))
    folders: list[Path] = []
    for step, skipped in enumerate([False, False, False, True, True, True], start=1):
        report = trainer.update(f"b{step}", step, mixed_batch(step), quiet)
        folders.append(trainer.save(tmp_path, report.model_copy(update={"optimizer_steps": int(not skipped)})))
        prune(tmp_path, 2)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["step-000002", "step-000003", "step-000006"]
    assert rollback_target(tmp_path) == folders[1]


def test_what_a_rollback_turned_away_from_is_never_gone_back_to(model_folder: Path, tmp_path: Path) -> None:
    """Updates as (steps taken, rolled back to), and the step that a rollback after them would go to."""
    trainer = Trainer.load(micro_job(model_folder))
    report = trainer.update("b", 1, mixed_batch(1), quiet)
    history: list[tuple[int, int | None, int | None]] = [
        (1, None, None),
        (1, None, 1),
        (1, None, 2),
        (0, None, 2),
        (0, 2, 1),  # holds the weights of 2; step 3 is suspected
        (0, None, 1),
        (1, None, 5),  # one step from those of 2; not 3
        (1, 5, 1),  # a part of its steps was taken before
        (0, 1, None),  # nothing older is left: the worker gives up instead of going round for ever
    ]
    for step, (taken, back, target) in enumerate(history, start=1):
        figures = {"step": step, "optimizer_steps": taken, "rolled_back_to": back}
        trainer.save(tmp_path, report.model_copy(update=figures))
        prune(tmp_path, 3)
        found = rollback_target(tmp_path)
        assert (found and found.name) == (target and f"step-{target:06d}"), step


def test_a_broken_model_is_told_by_the_calls_it_cannot_score(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder, "full"))
    with torch.no_grad():
        next(trainer.plain.parameters()).fill_(torch.nan)
    report = trainer.update("b1", 1, mixed_batch(1), quiet)
    assert report.skipped
    assert trainer.skip_reason is not None
    assert trainer.skip_reason.startswith("the log-probabilities of calls '")
    assert " and " in trainer.skip_reason
    folder = write_incident(tmp_path / "incidents", report, trainer.skip_reason, trainer.last_calls)
    assert write_incident(tmp_path / "incidents", report, trainer.skip_reason, trainer.last_calls) == folder
    written: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert written["reason"] == trainer.skip_reason
    assert written["report"]["batch_id"] == "b1"
    again = read_calls(folder / "calls.jsonl.gz")
    assert merge(again).occurrences.advantage.tobytes() == merge(trainer.last_calls).occurrences.advantage.tobytes()


def test_nothing_to_blame_is_said_so(model_folder: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder))
    reason = "log-probabilities and ratios are finite, but the loss or the gradient is not"
    assert culprit(trainer.plain, [], [], None) == reason


def test_a_folder_that_cannot_be_written_is_named(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder))
    report = trainer.update("b1", 1, mixed_batch(1), quiet)
    (tmp_path / "incidents").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write the incident"):
        write_incident(tmp_path / "incidents", report, "x", trainer.last_calls)
