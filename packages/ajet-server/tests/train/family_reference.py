"""Micro models of the families that are trained, and the gradient of each call alone by transformers' own attention.

Nothing here goes through the trainer's head, losses or steps: what is compared is the pass over a pack, and no more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn import functional

from ajet_merge import Call, Pack, sequence_mean
from ajet_server.train.attention import ATTENTION, Backend, PackLayout

VOCAB = 64
WINDOW = 6
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
_GEMMA: dict[str, Any] = {"query_pre_attn_scalar": 20, "final_logit_softcapping": None, "sliding_window": WINDOW}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": WINDOW}),
    "gemma": ("Gemma", {"num_key_value_heads": 1}),
    "gemma2": ("Gemma2", _GEMMA | {"attn_logit_softcapping": 1.5}),
    "gemma3": ("Gemma3", _GEMMA | {"layer_types": ["sliding_attention", "full_attention"]}),
}


def make(family: str, dtype: torch.dtype, lora: bool = False, checkpointing: bool = False) -> nn.Module:
    """A model with random weights. An adapter's B is random too, so that its A has a gradient."""
    kind, config = FAMILIES[family]
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}{'Text' * (kind == 'Gemma3')}Config")(**_SMALL | config)
    model = getattr(transformers, f"{kind}ForCausalLM")(settings).to(dtype).eval()
    if checkpointing:
        model.activation_checkpointing_enable()
        model.train()  # what the layers look at; nothing in them is random
    if lora:
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
    return model.to(dtype)


def plain(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny operations on busy cores: threads that wait for each other take a hundred times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextmanager
def precisely(dtype: torch.dtype) -> Iterator[None]:
    """What is float64 stays so: transformers' norms and eager attention go through float32 whatever they are given."""
    to, narrow, softmax = torch.Tensor.to, torch.Tensor.float, functional.softmax

    def double(x: torch.Tensor) -> bool:
        return x.dtype == dtype == torch.float64

    def kept_to(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return x if double(x) and torch.float32 in args else to(x, *args, **kwargs)

    def kept_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return softmax(x, dim=dim, dtype=None if double(x) else dtype)

    with (
        patch.object(torch.Tensor, "to", kept_to),
        patch.object(torch.Tensor, "float", lambda x: x if double(x) else narrow(x)),
        patch.object(functional, "softmax", kept_softmax),
    ):
        yield


def batch(seed: int = 0) -> list[Call]:
    """Duplicates, drift, stripped thinking, turns, masks; advantages differ by call, and weights are sequence means."""
    rng = np.random.default_rng(seed)

    def ids(count: int) -> np.ndarray[Any, Any]:
        return rng.integers(1, VOCAB, count).astype(np.int32)

    calls: list[Call] = []

    def call(*parts: np.ndarray[Any, Any], mask: Any = None) -> None:
        completion = parts[-1]
        old = rng.normal(-np.log(VOCAB), 0.6, completion.size)
        calls.append(Call(np.concatenate(parts[:-1]), completion, old, mask=mask, advantage=float(rng.normal())))

    prompt, other = ids(11), ids(5)
    twin, thought, answer, bridge = ids(6), ids(5), ids(4), ids(3)
    for _ in range(3):
        call(prompt, twin)  # duplicates with advantages of their own
    call(prompt, twin[:3])
    call(prompt, twin, bridge, ids(7))  # a turn that continues them
    call(prompt, twin[:-1], ids(1), bridge, ids(5))  # its context drifted in one token
    call(prompt, thought, answer)
    call(prompt, answer, bridge, ids(6))  # thinking was stripped from the history
    call(prompt[:7], ids(4), mask=[0, 1, 0, 1])
    call(other, ids(9), mask=[1, 1, 0, 0, 1, 1, 1, 0, 1])
    call(other, ids(1))
    weights = sequence_mean(calls)
    return [replace(call, weight=weight_C) for call, weight_C in zip(calls, weights, strict=True)]


def _loss(logp_M: torch.Tensor, old: Any, advantage: Any, weight: Any) -> torch.Tensor:
    """PPO's clipped surrogate with bounds 0.8 and 1.2."""
    old_M, advantage_M, weight_M = (torch.from_numpy(np.array(x)).to(logp_M.dtype) for x in (old, advantage, weight))
    ratio_M = (logp_M - old_M).exp()
    return -(weight_M * torch.minimum(ratio_M * advantage_M, ratio_M.clamp(0.8, 1.2) * advantage_M)).sum()


def alone(model: Any, calls: list[Call]) -> dict[str, torch.Tensor]:
    """The gradient, one backward pass for each call, by transformers' eager attention and its own masks."""
    plain(model).set_attn_implementation("eager")
    model.zero_grad(set_to_none=True)
    with precisely(model.dtype):
        for call in calls:
            ids_T = torch.from_numpy(np.concatenate([call.prompt_ids, call.completion_ids])).long()
            logp_TV = plain(model)(input_ids=ids_T[None], use_cache=False).logits[0].log_softmax(-1)
            start = call.prompt_ids.size
            logp_C = logp_TV[start - 1 : -1].gather(1, ids_T[start:, None])[:, 0]
            _loss(logp_C, call.logprobs, call.advantage, call.weight * call.mask).backward()
    return gradients(model)


def merged(model: Any, packs: list[Pack], backend: Backend, attention: str = ATTENTION) -> dict[str, torch.Tensor]:
    """The gradient, one backward pass for each pack."""
    plain(model).set_attn_implementation(attention)
    model.zero_grad(set_to_none=True)
    with precisely(model.dtype):
        for pack in packs:
            _loss(occurrences(model, pack, backend), pack.logprob, pack.advantage, pack.weight).backward()
    return gradients(model)


def occurrences(model: Any, pack: Pack, backend: Backend) -> torch.Tensor:
    """Log-probabilities [M] over a pack."""
    hidden_TD = (
        plain(model)
        .base_model(
            input_ids=torch.from_numpy(pack.tokens.copy()).long()[None],
            position_ids=torch.from_numpy(pack.pos.copy()).long()[None],
            use_cache=False,
            pack_layout=PackLayout.of(pack, backend, torch.device("cpu")),
        )
        .last_hidden_state[0]
    )
    logits_MV = plain(model).get_output_embeddings()(hidden_TD[torch.from_numpy(pack.occ_predictor.copy()).long()])
    return logits_MV.log_softmax(-1).gather(1, torch.from_numpy(pack.occ_target.copy()).long()[:, None])[:, 0]


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Norm of the difference over the norm of the whole gradient."""
    assert found.keys() == wanted.keys()
    off = torch.stack([(found[name] - wanted[name]).norm() for name in wanted]).norm()
    return float(off / torch.stack([grad.norm() for grad in wanted.values()]).norm())
