"""Calls to make, and what transformers says about them."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from transformers import PreTrainedModel

from ajet_server.engines.base import Completion, GenerationRequest, IntIds
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.worker.protocol import Sampling

MakeEngine = Callable[..., TorchEngine]


def ids(*numbers: int) -> IntIds:
    """Token ids."""
    return np.array(numbers, np.int32)


def random_ids(seed: int, length: int) -> IntIds:
    """Token ids that are no special token."""
    return np.random.default_rng(seed).integers(2, 512, length).astype(np.int32)


def request(name: str, prompt: IntIds, max_tokens: int = 8, **sampling: object) -> GenerationRequest:
    """A call; greedy unless told otherwise."""
    return GenerationRequest(name, prompt, Sampling(**{"max_tokens": max_tokens, "temperature": 0.0} | sampling))


def drain(engine: TorchEngine, requests: Iterable[GenerationRequest] = ()) -> dict[str, Completion]:
    """Submits calls and steps until nothing is left."""
    for item in requests:
        engine.submit(item)
    done: dict[str, Completion] = {}
    while engine.has_work:
        done |= {completion.request_id: completion for completion in engine.step().completions}
    return done


def greedy(model: PreTrainedModel, prompt: IntIds, max_tokens: int) -> list[int]:
    """What transformers itself generates greedily."""
    inputs = torch.from_numpy(prompt)[None].long()
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def log_softmax(model: PreTrainedModel, token_ids: IntIds, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities f32[T, V] of a plain forward pass."""
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids)[None].long()).logits[0]
    return (logits / temperature).log_softmax(-1)


def load(engine: TorchEngine, weights: Mapping[str, torch.Tensor], version: int) -> None:
    """Loads weights as they are announced."""
    engine.load_weights({name: tuple(tensor.shape) for name, tensor in weights.items()}, weights.items(), version)
