"""An independent reference: plain transformers, one forward and backward pass per call, nothing shared.

And the batches to compare on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM

from ajet_core.config import AlgorithmConfig, Job
from ajet_merge import Call, Pack, merge
from ajet_server.worker.protocol import CallRow, EpisodeRow

VOCAB = 512


def quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def micro_job(folder: Path, method: str = "lora", **sections: Any) -> Job:
    """A job on the micro model, with a learning rate that moves it."""
    fields: dict[str, Any] = {
        "model": {"path": str(folder), "device": "cpu"},
        "method": method,
        "optimizer": {"learning_rate": 1e-3},
    }
    return Job.model_validate(fields | sections)


@dataclass
class Rows:
    """Builds episodes. Recorded log-probabilities are near a random model's, so that some ratios are clipped."""

    seed: int = 0
    episodes: list[EpisodeRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def ids(self, count: int) -> np.ndarray:
        return self.rng.integers(0, VOCAB, count).astype(np.int32)

    def episode(self, group: str, reward: float, *calls: tuple[Sequence[int], Sequence[int], float]) -> None:
        """Adds an episode of (prompt ids, completion ids, temperature) calls."""
        name = f"e{len(self.episodes)}"
        rows = [
            CallRow(
                call_id=f"{name}.{index}",
                episode_id=name,
                prompt_ids=np.asarray(prompt, np.int32).tobytes(),
                completion_ids=np.asarray(completion, np.int32).tobytes(),
                logprobs=self.rng.normal(-6.2, 0.4, len(completion)).clip(max=0).astype(np.float32).tobytes(),
                temperature=temperature,
                weight_version=0,
            )
            for index, (prompt, completion, temperature) in enumerate(calls)
        ]
        self.episodes.append(EpisodeRow(name, group, reward, rows))


def mixed_batch(seed: int = 0) -> list[EpisodeRow]:
    """Shared prompts, forks, a drifted second turn, duplicates, different temperatures, an episode without calls."""
    rows = Rows(seed)
    for group in ("a", "b"):
        prompt = rows.ids(14)
        twin = rows.ids(6)
        for reward in (0.0, 1.0, 0.25):
            first, bridge, second = rows.ids(5), rows.ids(4), rows.ids(7)
            rows.episode(group, reward, (prompt, first, 1.0), (np.concatenate([prompt, first, bridge]), second, 1.0))
        rows.episode(group, 0.5, (prompt, twin, 0.7))
        rows.episode(group, 0.9, (prompt, twin, 1.3), (prompt, twin[:3], 0.7))
        drifted = np.concatenate([prompt[:-1], rows.ids(2), twin])
        rows.episode(group, 0.1, (prompt, twin, 1.0), (drifted, rows.ids(5), 1.0))
    rows.episode("b", 0.3)
    return rows.episodes


def reference_model(folder: Path, double: bool = False) -> nn.Module:
    """The plain model with transformers' own attention."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
    return to_double(model) if double else model


def to_double(model: nn.Module) -> nn.Module:
    """Makes a model float64 throughout. transformers' norm always goes through float32, so torch's takes its place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "LlamaRMSNorm":
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon)
                norm.weight = child.weight
                norm.weight.requires_grad_(child.weight.requires_grad)
                setattr(parent, name, norm)
    return model.double()


def call_logprobs(model: nn.Module, call: Call, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities [C], entropies [C]) of one call, alone."""
    ids_T = torch.from_numpy(np.concatenate([call.prompt_ids, call.completion_ids])).long()
    logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0]
    # The recorded temperature is a float32.
    logp_TV = (logits_TV / float(np.float32(temperature))).log_softmax(-1)
    start = call.prompt_ids.size
    logp_CV = logp_TV[start - 1 : -1]
    logp_C = logp_CV.gather(1, ids_T[start:, None])[:, 0]
    return logp_C, -(logp_CV.exp() * logp_CV).sum(1)


def reference_backward(
    model: nn.Module, calls: Sequence[Call], temperatures: Sequence[float], algorithm: AlgorithmConfig
) -> dict[str, float]:
    """Backward pass per call, written from the formula token by token. Returns the figures of a report."""
    terms: list[tuple[float, float, float, bool]] = []
    total = 0.0
    for call, temperature in zip(calls, temperatures, strict=True):
        if not call.completion_ids.size:
            continue
        logp_C, entropy_C = call_logprobs(model, call, temperature)
        loss = logp_C.new_zeros(())
        for t in range(len(logp_C)):
            old, advantage, weight = float(call.logprobs[t]), float(call.advantage[t]), float(call.weight[t])
            ratio = torch.exp(logp_C[t] - old)
            clipped = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
            loss = loss - weight * torch.min(ratio * advantage, clipped * advantage)
            terms.append(
                (
                    ratio.item(),
                    ratio.item() - 1 - (logp_C[t].item() - old),
                    entropy_C[t].item(),
                    (clipped * advantage < ratio * advantage).item(),
                )
            )
        loss.backward()
        total += loss.item()
    ratios, k3, entropies, clips = zip(*terms, strict=True)
    return {
        "loss": total,
        "clip_fraction": float(np.mean(clips)),
        "approx_kl": float(np.mean(k3)),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "entropy": float(np.mean(entropies)),
    }


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Largest norm of a difference over the norm of the whole gradient."""
    assert found.keys() == wanted.keys()
    assert wanted
    whole = torch.stack([g.norm() for g in wanted.values()]).norm()
    worst = max(float((found[name] - wanted[name]).norm()) for name in wanted)
    return worst / float(whole) if worst else 0.0  # when all is clipped there is no gradient to be relative to


def forked_pack(seed: int = 0) -> Pack:
    """A pack of many short segments."""
    rng = np.random.default_rng(seed)
    calls = [Call(rng.integers(0, 2, 5), rng.integers(0, 2, 6), np.zeros(6)) for _ in range(12)]
    (pack,) = merge(calls).packs(budget=4096)
    assert pack.num_segments > 8
    return pack


def dense(pack: Pack, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention over a pack by its whole mask."""
    index = torch.arange(pack.num_tokens)
    end = torch.from_numpy(pack.subtree_end.copy())
    mask = (index[None, :] <= index[:, None]) & (index[:, None] < end[None, :])
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True, scale=0.3).transpose(1, 2)
