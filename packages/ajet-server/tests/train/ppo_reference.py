"""PPO once more, in plain transformers, one call after the other and token by token; and jobs with a critic."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trainer_reference import (
    micro_job,
    reference_model,
    to_double,
)

from ajet_core.config import Job, LoraConfig
from ajet_core.config_algorithm import ValueConfig
from ajet_merge import Call
from ajet_server.train.lora import add_adapter
from ajet_server.train.scoring import Scored
from ajet_server.train.trainer import Trainer
from ajet_server.train.value import ValueHead

CPU = torch.device("cpu")
METHODS = pytest.mark.parametrize("method", ["lora", "full"])


def ppo_job(folder: Path, method: str = "lora", value: dict[str, Any] | None = None, **sections: Any) -> Job:
    algorithm = {"name": "ppo", "value": value or {}} | sections.pop("algorithm", {})
    return micro_job(folder, method, algorithm=algorithm, **sections)


def head_of(trainer: Trainer) -> ValueHead:
    assert trainer._head is not None
    return trainer._head


def parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    every = trainer.model.state_dict() | {f"head.{n}": t for n, t in head_of(trainer).state_dict().items()}
    return {name: tensor.detach().clone() for name, tensor in every.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def randomize(head: ValueHead, seed: int, scale: float) -> None:
    """Moves all numbers of the head."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


@dataclass
class Pair:
    """A trainer and the plain reference with equal weights, both critics with equal heads."""

    trainer: Trainer
    reference: nn.Module

    def zero_grad(self) -> None:
        for module in (self.trainer.model, self.reference, head_of(self.trainer)):
            module.zero_grad(set_to_none=True)


def pair_of(folder: Path, job: Job, double: bool) -> Pair:
    trainer, reference = Trainer.load(job), reference_model(folder)
    if job.method == "lora":
        reference = add_adapter(reference, LoraConfig(), seed=0)
        torch.manual_seed(1)
        ours = dict(trainer.model.named_parameters())
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(ours[name].normal_(std=0.02))
    if double:
        to_double(trainer.plain)
        to_double(plain(reference))
        head_of(trainer).double()
    return Pair(trainer, reference)


def plain(model: nn.Module) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]


def alone(model: nn.Module, call: Call, temperature: float, head: ValueHead) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities [C], hidden states [C, D] before each sampled token) of one call by itself."""
    ids_T = torch.from_numpy(np.concatenate([call.prompt_ids, call.completion_ids])).long()
    hidden_TD = plain(model).model(input_ids=ids_T[None], use_cache=False).last_hidden_state[0]
    start = call.prompt_ids.size
    logp_TV = (plain(model).lm_head(hidden_TD) / float(np.float32(temperature))).log_softmax(-1)
    return logp_TV[start - 1 : -1].gather(1, ids_T[start:, None])[:, 0], hidden_TD[start - 1 : -1]


def value(hidden_D: torch.Tensor, weight_D: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return (weight_D * hidden_D / (hidden_D.square().mean() + 1e-6).sqrt()).sum() / len(hidden_D) + bias


def reference_backward(
    model: nn.Module,
    calls: Sequence[Call],
    temperatures: Sequence[float],
    returns: Sequence[np.ndarray[Any, Any]],
    old: Sequence[torch.Tensor],
    head: ValueHead,
    config: ValueConfig,
) -> tuple[float, dict[str, torch.Tensor]]:
    """Call by call and token by token. Returns the loss and the gradient of the head."""
    weight_D, bias = (p.detach().clone().requires_grad_() for p in head.parameters())
    total = 0.0
    for call, temperature, returns_C, old_C in zip(calls, temperatures, returns, old, strict=True):
        logp_C, hidden_CD = alone(model, call, temperature, head)
        loss = logp_C.new_zeros(())
        for t in range(len(logp_C)):
            ratio = torch.exp(logp_C[t] - float(call.logprobs[t]))
            advantage, wanted, before = float(call.advantage[t]), float(returns_C[t]), old_C[t]
            term = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            now = value(hidden_CD[t].detach() if config.trunk == "frozen" else hidden_CD[t], weight_D, bias)
            near = now.clamp(before - 0.2, before + 0.2)
            worse = torch.max((now - wanted) ** 2, (near - wanted) ** 2)
            loss = loss + float(call.weight[t]) * (term + config.coef * worse / 2)
        loss.backward()
        total += loss.item()
    assert weight_D.grad is not None
    assert bias.grad is not None
    return total, {"weight": weight_D.grad, "bias": bias.grad}


def by_call(ready: Scored) -> list[np.ndarray[Any, Any]]:
    """The returns of the packs, call by call."""
    starts = ready.batch.token_starts
    returns_S = np.zeros(ready.batch.token_calls.size)
    for pack in ready.packs:
        assert pack.return_M is not None
        returns_S[pack.tokens_in_batch.numpy()] = pack.return_M.numpy()
    return np.split(returns_S, starts[1:])
