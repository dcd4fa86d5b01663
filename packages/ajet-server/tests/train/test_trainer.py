import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from peft import PeftModel
from trainer_reference import (
    VOCAB,
    Rows,
    call_logprobs,
    gradients,
    micro_job,
    mixed_batch,
    quiet,
    reference_backward,
    reference_model,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from ajet_core.errors import ConfigError, RequestError, StorageError
from ajet_core.events import StepReport
from ajet_server.samples.merge import build_batch
from ajet_server.train.checkpoint import latest_checkpoint
from ajet_server.train.trainer import Trainer

METHODS = pytest.mark.parametrize("method", ["lora", "full"])
IDS = np.random.default_rng(5).integers(0, VOCAB, 40).astype(np.int32)


def parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@METHODS
def test_the_report_is_true(model_folder: Path, method: str) -> None:
    job = micro_job(model_folder, method, trainer={"pack_tokens": 40, "logprob_chunk": 5})
    trainer, episodes = Trainer.load(job), mixed_batch(3)
    stages: list[tuple[str, int, int]] = []
    report = trainer.update("batch", 1, episodes, lambda *event: stages.append(event))
    batch = build_batch(episodes, job.algorithm, VOCAB)
    reference = reference_model(model_folder)
    wanted = reference_backward(reference, batch.calls, batch.temperatures.tolist(), job.algorithm)
    if method == "full":
        wanted["grad_norm"] = float(torch.stack([g.norm() for g in gradients(reference).values()]).norm())
    rewards = [episode.reward for episode in episodes]
    wanted |= {
        "step": 1,
        "weight_version": 1,
        "episodes": len(episodes),
        "groups": 2,
        "calls": sum(len(episode.calls) for episode in episodes),
        "reward_mean": np.mean(rewards),
        "reward_std": np.std(rewards),
        "reward_min": 0.0,
        "reward_max": 1.0,
        "advantage_abs_mean": np.abs(batch.advantages).mean(),
        "tokens_unmerged": sum(len(call) for call in batch.calls),
        "completion_tokens_mean": np.mean([call.completion_ids.size for call in batch.calls]),
        "completion_tokens_max": 7,
        "call_tokens_max": 14 + 5 + 4 + 7,
        "learning_rate": 1e-3,
        "skipped": False,
    }
    assert {name: getattr(report, name) for name in wanted} == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert report.tokens_unmerged > report.tokens_linear
    assert report.tokens_unmerged > report.tokens_forest > 0
    assert report.packs > 1
    assert stages[0] == ("merge", 0, 1)
    assert stages[1:] == [("update", done, report.packs) for done in range(report.packs + 1)]
    assert set(report.seconds) == {"merge", "score", "update"}
    assert StepReport.model_validate_json(report.model_dump_json()) == report
    assert (trainer.step, trainer.last_batch_id, trainer.last_report) == (1, "batch", report)


@METHODS
def test_resume_is_bit_equal(model_folder: Path, tmp_path: Path, method: str) -> None:
    job = micro_job(model_folder, method)
    straight, stopped = Trainer.load(job), Trainer.load(job)
    assert same(parameters(straight), parameters(stopped))
    straight.update("b1", 1, mixed_batch(1), quiet)
    report = stopped.update("b1", 1, mixed_batch(1), quiet)
    folder = stopped.save(tmp_path, report)
    torch.manual_seed(99)
    resumed = Trainer.load(job, folder)
    assert (resumed.step, resumed.last_batch_id, resumed.last_report) == (1, "b1", stopped.last_report)
    assert resumed.last_report is not None
    assert set(resumed.last_report.seconds) == {"merge", "score", "update", "checkpoint"}
    for trainer in (straight, resumed):
        trainer.update("b2", 2, mixed_batch(2), quiet)
    assert same(parameters(straight), parameters(resumed))
    assert not same(parameters(straight), parameters(stopped))
    assert np.array_equal(straight.score(IDS), resumed.score(IDS))


def test_a_plain_peft_loads_the_adapter(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder, optimizer={"learning_rate": 0.01}))
    folder = trainer.save(tmp_path, trainer.update("b", 1, mixed_batch(), quiet))
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    before = alone(plain)
    adapted = PeftModel.from_pretrained(plain, str(folder / "adapter")).eval()
    assert alone(adapted) == pytest.approx(trainer.score(IDS), abs=1e-5)
    assert np.abs(alone(adapted) - before).max() > 1e-2
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(model_folder)
    assert "lm_head" not in json.dumps(config["target_modules"])


def test_a_plain_transformers_loads_the_full_model(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder, "full"))
    folder = trainer.save(tmp_path, trainer.update("b", 1, mixed_batch(), quiet)) / "model"
    assert alone(AutoModelForCausalLM.from_pretrained(folder)) == pytest.approx(trainer.score(IDS), abs=1e-5)
    assert AutoTokenizer.from_pretrained(folder).chat_template


def alone(model: Any) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(IDS).long()[None]).logits[0]
    return logits.log_softmax(-1)[torch.arange(len(IDS) - 1), torch.from_numpy(IDS[1:]).long()].numpy()


@METHODS
def test_weights_are_those_of_the_plain_model(model_folder: Path, method: str) -> None:
    trainer = Trainer.load(micro_job(model_folder, method))
    trainer.update("b", 1, mixed_batch(), quiet)
    before = parameters(trainer)
    plain = reference_model(model_folder)
    state = plain.state_dict()
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    arrived: dict[str, tuple[int, ...]] = {}
    for name, tensor in trainer.weights():
        state[name].copy_(tensor)
        alive.add(tensor)
        assert len(alive) == 1
        arrived[name] = tuple(tensor.shape)
        del tensor
    assert arrived == trainer.weight_shapes()
    assert alone(plain) == pytest.approx(trainer.score(IDS), abs=1e-5)
    assert same(before, parameters(trainer))


def test_merging_needs_no_recomputation_to_be_on_policy(model_folder: Path) -> None:
    """Old and new log-probabilities of the same layout have a ratio of 1."""
    trainer, rows = Trainer.load(micro_job(model_folder)), Rows(2)
    prompt = rows.ids(9)
    for reward in (0.0, 1.0):
        rows.episode("g", reward, (prompt, rows.ids(5), 1.0))
    episodes = rows.episodes
    for index, episode in enumerate(episodes):
        completion = np.frombuffer(episode.calls[0].completion_ids, np.int32)
        scores = trainer.score(np.concatenate([prompt, completion]))[len(prompt) - 1 :]
        call = msgspec.structs.replace(episode.calls[0], logprobs=scores.tobytes())
        episodes[index] = msgspec.structs.replace(episode, calls=[call])
    report = trainer.update("b", 1, episodes, quiet)
    assert report.ratio_min == pytest.approx(1, abs=1e-5)
    assert report.ratio_max == pytest.approx(1, abs=1e-5)
    assert report.approx_kl == pytest.approx(0, abs=1e-9)
    assert report.clip_fraction == 0


@METHODS
def test_a_step_that_is_not_finite_changes_nothing(model_folder: Path, method: str, caplog: Any) -> None:
    trainer = Trainer.load(micro_job(model_folder, method))
    trainer.update("b1", 1, mixed_batch(1), quiet)
    before, optimizer = parameters(trainer), json.dumps(trainer._optimizer.state_dict()["state"], default=str)
    episodes = mixed_batch(2)
    call = episodes[0].calls[0]  # its reward is the worst of its group: nothing clips its ratio, which overflows
    impossible = np.full(len(call.logprobs) // 4, -1e30, np.float32).tobytes()
    calls = [msgspec.structs.replace(call, logprobs=impossible), *episodes[0].calls[1:]]
    episodes[0] = msgspec.structs.replace(episodes[0], calls=calls)
    report = trainer.update("b2", 2, episodes, quiet)
    assert report.skipped
    assert (report.skipped_in_row, report.optimizer_steps) == (1, 0)
    assert trainer.skip_reason == f"the ratios of calls {call.call_id!r} are not finite"
    assert "b2" in caplog.text
    assert call.call_id in caplog.text
    assert StepReport.model_validate_json(report.model_dump_json()) == report
    assert same(before, parameters(trainer))
    assert json.dumps(trainer._optimizer.state_dict()["state"], default=str) == optimizer
    third = trainer.update("b3", 3, mixed_batch(3), quiet)
    assert not third.skipped
    assert third.skipped_in_row == 0
    assert np.isfinite(trainer.score(IDS)).all()


def test_a_batch_that_trains_no_token_is_no_crash(model_folder: Path) -> None:
    trainer, rows = Trainer.load(micro_job(model_folder)), Rows()
    rows.episode("g", 0.0)
    rows.episode("g", 1.0, (rows.ids(3), [], 1.0))
    before = parameters(trainer)
    report = trainer.update("b", 1, rows.episodes, quiet)
    assert (report.packs, report.loss, report.grad_norm, report.skipped) == (0, 0.0, 0.0, False)
    assert same(before, parameters(trainer))


@pytest.mark.parametrize("rewards", [(0.5, 0.5), (0.0, 1.0)])
def test_a_batch_that_teaches_nothing_is_told(model_folder: Path, caplog: Any, rewards: tuple[float, float]) -> None:
    trainer, rows = Trainer.load(micro_job(model_folder)), Rows()
    for reward in rewards:
        rows.episode("g", reward, (rows.ids(9), rows.ids(5), 1.0))
    rows.episode("alone", 1.0, (rows.ids(9), rows.ids(5), 1.0))
    before = parameters(trainer)
    report = trainer.update("b", 1, rows.episodes, quiet)
    equal = rewards[0] == rewards[1]
    assert ("batch b: nothing is learned from it. 3 of its 3 episodes have advantage 0" in caplog.text) == equal
    assert (report.advantage_abs_mean == 0) == (report.grad_norm == 0) == same(before, parameters(trainer)) == equal


def test_a_bad_batch_changes_nothing(model_folder: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder, trainer={"pack_tokens": 20}))
    before = parameters(trainer)
    with pytest.raises(ConfigError, match=r"trainer\.pack_tokens: 20"):
        trainer.update("b", 1, mixed_batch(), quiet)
    episodes = mixed_batch()
    with pytest.raises(RequestError, match="more than once"):
        trainer.update("b", 1, [*episodes, episodes[0]], quiet)
    assert same(before, parameters(trainer))
    assert trainer.step == 0


def test_activation_checkpointing_gives_the_same_step(model_folder: Path) -> None:
    results: list[dict[str, torch.Tensor]] = []
    for checkpointing in (False, True):
        trainer = Trainer.load(micro_job(model_folder, trainer={"activation_checkpointing": checkpointing}))
        calls: list[object] = []
        layer = trainer.plain.get_submodule("model.layers.0.mlp")
        layer.register_forward_pre_hook(lambda *args, seen=calls: seen.append(1))
        trainer.update("b", 1, mixed_batch(), quiet)
        results.append(parameters(trainer))
        assert len(calls) == (2 if checkpointing else 1)
    assert same(*results)


def test_full_training_in_bfloat16_keeps_small_updates(model_folder: Path) -> None:
    fields: Any = {"path": str(model_folder), "device": "cpu", "dtype": "bfloat16"}
    job = micro_job(model_folder, "full", model=fields, optimizer={"learning_rate": 1e-6})
    trainer = Trainer.load(job)
    before = trainer.score(IDS)
    parts = parameters(trainer)
    trainer.update("b", 1, mixed_batch(), quiet)
    changed = [not torch.equal(tensor, parts[name]) for name, tensor in parameters(trainer).items()]
    assert np.mean(changed) > 0.9
    assert {tensor.dtype for _, tensor in trainer.weights()} == {torch.bfloat16}
    wide = reference_model(model_folder)
    assert before == pytest.approx(alone(wide), abs=0.1)


def test_the_adapter_is_seeded(model_folder: Path) -> None:
    state = torch.get_rng_state()
    first, again = (Trainer.load(micro_job(model_folder, seed=4)) for _ in range(2))
    other = Trainer.load(micro_job(model_folder, seed=5))
    assert same(parameters(first), parameters(again))
    assert not same(parameters(first), parameters(other))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("targets", [["no_such_layer"], ["lm_head"]])
def test_targets_that_cannot_be(model_folder: Path, targets: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"lora\.targets"):
        Trainer.load(micro_job(model_folder, lora={"targets": targets}))


def test_score_is_the_models(model_folder: Path) -> None:
    trainer, model = Trainer.load(micro_job(model_folder)), reference_model(model_folder)
    assert trainer.score(IDS) == pytest.approx(alone(model), abs=1e-5)
    assert trainer.score(IDS).dtype == np.float32
    assert trainer.score(IDS[:2]).shape == (1,)
    from ajet_merge import Call

    wanted, _ = call_logprobs(model, Call(IDS[:1], IDS[1:], np.zeros(39)), 1.0)
    assert trainer.score(IDS) == pytest.approx(wanted.detach().numpy(), abs=1e-5)


def test_damage_to_any_file_is_found_before_loading(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = micro_job(model_folder)
    trainer = Trainer.load(job)
    folder = trainer.save(tmp_path, trainer.update("b", 1, mixed_batch(), quiet))
    assert latest_checkpoint(tmp_path) == folder
    monkeypatch.setattr("ajet_server.train.loading.load_causal_lm", _must_not_load)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 6
    for file in files:
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(StorageError, match=file.name):
            Trainer.load(job, folder)
        file.write_bytes(data)


def _must_not_load(*args: object) -> None:
    raise AssertionError("the model was touched")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda folder: micro_job(folder, lora={"rank": 8}), "lora"),
        (lambda folder: micro_job(folder, "full"), "method"),
        (lambda folder: micro_job(folder / ".." / folder.name), "model.path"),
    ],
)
def test_a_foreign_checkpoint(model_folder: Path, tmp_path: Path, change: Callable[[Path], Any], field: str) -> None:
    trainer = Trainer.load(micro_job(model_folder))
    folder = trainer.save(tmp_path, trainer.update("b", 1, mixed_batch(), quiet))
    with pytest.raises(ConfigError, match="checkpoint") as caught:
        Trainer.load(change(model_folder), folder)
    assert caught.value.field == field


def test_nothing_is_pickled(model_folder: Path, tmp_path: Path) -> None:
    trainer = Trainer.load(micro_job(model_folder))
    folder = trainer.save(tmp_path, trainer.update("b", 1, mixed_batch(), quiet))
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} <= {".json", ".safetensors", ".md"}
