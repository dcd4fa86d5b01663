"""The critic: its head, exact gradients with its loss, and what it is asked before an update."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_reference import (
    CPU,
    METHODS,
    alone,
    by_call,
    head_of,
    pair_of,
    ppo_job,
    randomize,
    reference_backward,
    value,
)
from trainer_reference import (
    VOCAB,
    gradients,
    mixed_batch,
    quiet,
    relative_error,
)

from ajet_server.samples.credit import with_critic
from ajet_server.samples.merge import build_batch
from ajet_server.train.head import HeadPlan
from ajet_server.train.minibatch import mini_batches
from ajet_server.train.scoring import Models, scored
from ajet_server.train.step import accumulate
from ajet_server.train.trainer import Trainer
from ajet_server.train.value import ValueHead


def plan_of(predictors: Sequence[int], temperatures: Sequence[float]) -> HeadPlan:
    ids = np.array(predictors, np.int32)
    return HeadPlan.of(ids, ids, np.array(temperatures, np.float32), 4, CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_are_the_formula_in_the_order_they_were_asked_in(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head, hidden = ValueHead(16, CPU), 3 * torch.randn(7, 16).to(dtype)
    if dtype == torch.float64:
        head.double()
    randomize(head, 1, 1.0)
    predictors = [5, 0, 5, 3, 0, 6]
    found = head(hidden, plan_of(predictors, [1.0, 1.0, 0.5, 1.0, 1.0, 1.0]))
    weight, bias = (parameter.detach().double() for parameter in head.parameters())
    wanted = [value(state, weight, bias).item() for state in hidden.double()[predictors]]
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert found.tolist() == pytest.approx(wanted, abs=1e-5)
    assert found[0].item() == pytest.approx(found[2].item(), abs=1e-6)


@pytest.mark.parametrize("width", [8, 512, 8192])
@pytest.mark.parametrize("scale", [0.01, 100.0])
def test_the_first_step_moves_a_value_by_one_to_two_learning_rates_in_any_model(width: int, scale: float) -> None:
    torch.manual_seed(width)
    head, hidden = ValueHead(width, CPU), scale * torch.randn(1, width)
    plan = plan_of([0], [1.0])
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1, weight_decay=0.0)
    assert head(hidden, plan).item() == 0
    (head(hidden, plan).sum() - 3).square().backward()
    optimizer.step()
    assert 0.1 < head(hidden, plan).item() <= 0.2 + 1e-6


@pytest.mark.parametrize("double", [False, True], ids=["fp32", "fp64"])
@pytest.mark.parametrize("backend", ["segments", "rectangles"])
@pytest.mark.parametrize("trunk", ["shared", "frozen"])
@METHODS
def test_the_gradient_of_a_merged_batch_is_that_of_every_call_alone(
    model_folder: Path, method: str, trunk: str, backend: Any, double: bool
) -> None:
    job = ppo_job(model_folder, method, {"trunk": trunk, "coef": 2.0}, trainer={"pack_tokens": 34, "logprob_chunk": 5})
    assert job.algorithm.value is not None
    pair = pair_of(model_folder, job, double)
    trainer, head = pair.trainer, head_of(pair.trainer)
    randomize(head, 2, 3.0)
    batch = build_batch(mixed_batch(), job.algorithm, VOCAB)
    temperatures = batch.temperatures.tolist()
    minis = mini_batches(batch, job, backend, "forest", CPU)
    ready = scored(batch, minis, job, Models(trainer.plain, None, head, None), quiet)
    old: list[torch.Tensor] = []
    with torch.no_grad():
        for call, temperature in zip(batch.calls, temperatures, strict=True):
            _, hidden_CD = alone(pair.reference, call, temperature, head)
            old.append(torch.stack([value(hidden_D, head.weight, head.bias) for hidden_D in hidden_CD]))
    values_S = torch.cat(old).double().numpy()
    wanted, returns_S, _ = with_critic(batch, values_S, np.zeros_like(values_S), job.algorithm.value, whiten=True)
    returns = np.split(returns_S, batch.token_starts[1:])
    tolerance = 1e-12 if double else 1e-5
    for pack in ready.packs:  # the same numbers, but for the rounding to 32 bits
        assert pack.return_M is not None
        here = zip(pack.call_M.tolist(), pack.tokens_in_batch.tolist(), strict=True)
        spots = [(call, token - int(batch.token_starts[call])) for call, token in here]
        assert pack.return_M.tolist() == pytest.approx([returns[c][t] for c, t in spots], abs=1e-5)
        assert pack.advantage_M.tolist() == pytest.approx([wanted.calls[c].advantage[t] for c, t in spots], abs=1e-4)
    randomize(head, 4, 1.5)  # as after a step, so that some values are clipped
    pair.zero_grad()
    own_returns = by_call(ready)
    loss, head_gradient = reference_backward(
        pair.reference, ready.batch.calls, temperatures, own_returns, old, head, job.algorithm.value
    )
    stats = accumulate(trainer.plain, ready.packs, job.algorithm, quiet, None, head)
    assert len(ready.packs) > 4
    assert 0 < int(stats.value_clipped) < int(stats.count)
    assert float(stats.loss) == pytest.approx(loss, rel=10 * tolerance)
    assert float(stats.loss) == pytest.approx(float(stats.policy_loss) + 2 * float(stats.value_loss), rel=1e-5)
    assert relative_error(gradients(trainer.model), gradients(pair.reference)) < tolerance
    assert relative_error(gradients(head), head_gradient) < tolerance


@pytest.mark.parametrize("sharing", ["rows", "calls"])
def test_linear_rows_give_the_same_step(model_folder: Path, sharing: str) -> None:
    reports = [
        Trainer.load(ppo_job(model_folder, trainer={"sharing": how})).update("b", 1, mixed_batch(), quiet)
        for how in ("forest", sharing)
    ]
    names = ("loss", "grad_norm", "value_loss", "return_mean", "advantage_abs_mean")
    ours, theirs = ([getattr(report, name) for name in names] for report in reports)
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_a_penalty_in_the_reward_is_paid_token_by_token(model_folder: Path) -> None:
    kl = {"coef": 0.5, "estimator": "k1", "place": "reward"}
    job = ppo_job(model_folder, value={"trace": 1.0}, algorithm={"kl": kl, "advantage_scale": "none"})
    trainer, episodes = Trainer.load(job), mixed_batch()
    batch = build_batch(episodes, job.algorithm, VOCAB)
    minis = mini_batches(batch, job, "segments", "forest", CPU)
    ready = scored(batch, minis, job, Models(trainer.plain, trainer.model, head_of(trainer), None), quiet)
    kl_of: dict[tuple[int, int], float] = {}
    for pack in ready.packs:
        assert pack.reference_M is not None
        spots = zip(pack.call_M.tolist(), pack.tokens_in_batch.tolist(), strict=True)
        kls = (pack.rollout_M - pack.reference_M).tolist()
        kl_of |= {(call, token - int(batch.token_starts[call])): x for (call, token), x in zip(spots, kls, strict=True)}
    at = 0
    for episode in episodes:
        to_go, calls = episode.reward, range(at, at + len(episode.calls))
        for call in reversed(calls):
            for t in reversed(range(batch.calls[call].completion_ids.size)):
                to_go -= 0.5 * kl_of[call, t]
                assert ready.batch.calls[call].advantage[t] == pytest.approx(to_go, abs=1e-4)
        at += len(episode.calls)


def test_advantages_do_not_depend_on_the_mini_batches(model_folder: Path) -> None:
    found: list[dict[int, float]] = []
    for parts in (1, 2):
        job = ppo_job(model_folder, batch={"size": 2, "group_size": 1}, trainer={"mini_batches": parts})
        head = head_of(Trainer.load(job))
        randomize(head, 0, 1.0)
        batch = build_batch(mixed_batch(), job.algorithm, VOCAB)
        minis = mini_batches(batch, job, "segments", "forest", CPU)
        assert len(minis) == parts
        ready = scored(batch, minis, job, Models(Trainer.load(job).plain, None, head, None), quiet)
        pairs = [(pack.tokens_in_batch.tolist(), pack.advantage_M.tolist()) for pack in ready.packs]
        found.append({token: x for tokens, xs in pairs for token, x in zip(tokens, xs, strict=True)})
    assert found[0] == pytest.approx(found[1], abs=1e-5)


def test_the_model_runs_once_before_the_update_for_values_and_old_log_probabilities(model_folder: Path) -> None:
    for old_logprobs, heads in (("rollout", 0), ("recomputed", 1)):
        job = ppo_job(model_folder, algorithm={"old_logprobs": old_logprobs}, trainer={"epochs": 2})
        trainer = Trainer.load(job)
        batch = build_batch(mixed_batch(), job.algorithm, VOCAB)
        minis = mini_batches(batch, job, "segments", "forest", CPU)
        runs: list[int] = []
        handle = trainer.plain.base_model.register_forward_pre_hook(lambda *args, seen=runs: seen.append(1))
        ready = scored(batch, minis, job, Models(trainer.plain, None, head_of(trainer), None), quiet)
        handle.remove()
        assert len(runs) == len(ready.packs)
        assert all((pack.old_M is not None) == heads for pack in ready.packs)
        assert all(pack.old_value_M is not None for pack in ready.packs)
