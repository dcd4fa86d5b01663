"""A whole update with everything on, once more in plain transformers and arithmetic: what comes out is the same."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from ppo_reference import alone, head_of, pair_of, plain, ppo_job, randomize, value
from trainer_reference import VOCAB, mixed_batch, quiet, relative_error

from ajet_merge import Call
from ajet_server.samples.merge import build_batch
from ajet_server.worker.protocol import EpisodeRow

COEF, DISCOUNT, TRACE, HIGH, RATE, HEAD_RATE = 0.3, 0.97, 0.9, 1.3, 1e-2, 0.05
ALGORITHM: dict[str, Any] = {
    "kl": {"coef": COEF, "estimator": "k1", "place": "reward"},
    "off_policy": {"kind": "truncate", "high": HIGH},
    "loss_weight": "token_mean",
}
VALUE = {"coef": 0.7, "clip": 0.05, "discount": DISCOUNT, "trace": TRACE, "learning_rate": HEAD_RATE}


def rewarded(seed: int) -> list[EpisodeRow]:
    """Every call has a reward of its own, beside its episode's."""
    rng = np.random.default_rng(seed)
    return [
        structs.replace(e, calls=[structs.replace(c, reward=float(rng.normal())) for c in e.calls])
        for e in mixed_batch(seed)
    ]


def credited(
    episodes: Sequence[EpisodeRow], kl: Sequence[np.ndarray[Any, Any]], values: Sequence[np.ndarray[Any, Any]]
) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
    """(whitened advantages, returns) of the tokens of each call, backwards through each episode."""
    advantages, returns, at = [np.zeros(len(k)) for k in kl], [np.zeros(len(k)) for k in kl], 0
    for episode in episodes:
        after, running, first = 0.0, 0.0, True
        for index in reversed(range(len(episode.calls))):
            for t in reversed(range(len(kl[at + index]))):
                last = t == len(kl[at + index]) - 1
                earned = (episode.calls[index].reward or 0.0) * last + episode.reward * first - COEF * kl[at + index][t]
                now = values[at + index][t]
                running = earned + DISCOUNT * after - now + DISCOUNT * TRACE * running
                advantages[at + index][t], returns[at + index][t] = running, running + now
                after, first = now, False
        at += len(episode.calls)
    every = np.concatenate(advantages)
    return [(a - every.mean()) / every.std() for a in advantages], returns


def test_is_that_of_every_call_alone(model_folder: Path) -> None:
    """Critic, penalty and call rewards in the credit; importance weights; two mini-batches, two epochs; LoRA."""
    job = ppo_job(
        model_folder,
        value=VALUE,
        algorithm=ALGORITHM,
        optimizer={"learning_rate": RATE, "weight_decay": 0.1, "warmup_steps": 3},
        batch={"size": 2, "group_size": 6},
        trainer={"mini_batches": 2, "epochs": 2, "pack_tokens": 40},
    )
    pair, episodes = pair_of(model_folder, job, double=True), rewarded(3)
    trainer, model, head = pair.trainer, pair.reference, head_of(pair.trainer)
    randomize(head, 5, 1.0)
    batch = build_batch(episodes, job.algorithm, VOCAB)
    calls, temperatures = batch.calls, batch.temperatures.tolist()
    weight_D, bias = (p.detach().clone().requires_grad_() for p in head.parameters())

    def told(call: int) -> tuple[torch.Tensor, torch.Tensor]:
        logp_C, hidden_CD = alone(model, calls[call], temperatures[call], head)
        return logp_C, torch.stack([value(hidden_D, weight_D, bias) for hidden_D in hidden_CD])

    with torch.no_grad():
        old, values = zip(*(told(call) for call in range(len(calls))), strict=True)
        with model.disable_adapter():  # pyright: ignore[reportCallIssue]
            reference = [told(call)[0] for call in range(len(calls))]
    kl = [call.logprobs - logp_C.numpy() for call, logp_C in zip(calls, reference, strict=True)]
    advantages, returns = credited(episodes, kl, [v.numpy() for v in values])
    adapter = [p for p in model.parameters() if p.requires_grad]
    groups = [{"params": adapter, "lr": RATE}, {"params": [weight_D, bias], "lr": HEAD_RATE, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.1)
    losses: list[float] = []
    for step in range(4):
        mine = [c for c in range(len(calls)) if calls[c].group_id == "ab"[step % 2]]
        loss = _loss(calls, mine, [told(c) for c in mine], old, values, advantages, returns)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*adapter, weight_D, bias], 1.0)
        for group, rate in zip(optimizer.param_groups, (RATE, HEAD_RATE), strict=True):
            group["lr"] = rate * min((step + 1) / 3, 1)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    report = trainer.update("b", 1, episodes, quiet)
    assert (report.optimizer_steps, report.skipped) == (4, False)
    assert min(report.clip_fraction, report.value_clip_fraction, report.importance_cut) > 0.01
    assert report.loss == pytest.approx(np.mean(losses), rel=1e-4)
    error, before = np.concatenate(returns) - np.concatenate([v.numpy() for v in values]), np.concatenate(returns)
    assert report.explained_variance == pytest.approx(1 - error.var() / before.var(), rel=1e-5)
    assert report.return_mean == pytest.approx(before.mean(), rel=1e-5)
    ours, theirs = dict(plain(trainer.model).named_parameters()), dict(plain(model).named_parameters())
    moved = {name: p.detach() for name, p in theirs.items() if "lora" in name}
    assert relative_error({name: ours[name].detach() for name in moved}, moved) < 1e-5
    wanted = {"weight": weight_D.detach(), "bias": bias.detach()}
    assert relative_error(head.state_dict(), wanted) < 1e-5


def _loss(
    calls: Sequence[Call],
    mine: Sequence[int],
    told: Sequence[tuple[torch.Tensor, torch.Tensor]],
    old: Sequence[torch.Tensor],
    values: Sequence[torch.Tensor],
    advantages: Sequence[np.ndarray[Any, Any]],
    returns: Sequence[np.ndarray[Any, Any]],
) -> torch.Tensor:
    """Of one mini-batch, token by token."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for c, (logp_C, value_C) in zip(mine, told, strict=True):
        for t in range(len(logp_C)):
            importance = min(float((old[c][t] - float(calls[c].logprobs[t])).exp()), HIGH)
            ratio, advantage = (logp_C[t] - old[c][t]).exp(), float(advantages[c][t])
            policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            near = value_C[t].clamp(values[c][t] - 0.05, values[c][t] + 0.05)
            critic = torch.max((value_C[t] - returns[c][t]) ** 2, (near - returns[c][t]) ** 2) / 2
            total = total + importance * policy + 0.7 * critic
            count += 1
    return total / count
