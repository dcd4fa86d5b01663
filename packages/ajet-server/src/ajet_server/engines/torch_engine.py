"""The embedded engine: continuous batching over a transformers model, on a CPU or one GPU.

Why not transformers' own continuous batching: it has one seed for a whole batch, reports log-probabilities only after
the processors, and nothing in it binds cached keys to the weights that computed them.
"""

from collections.abc import Iterable
from typing import Any, Self, cast

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from ajet_core.config import EngineConfig, Job
from ajet_core.errors import ConfigError, EngineFailedError, RequestError
from ajet_server.engines.attention import ATTENTION, StepPlan
from ajet_server.engines.base import Completion, GenerationRequest, IntIds, Logprobs
from ajet_server.engines.calls import Call, new_call
from ajet_server.engines.kv_slots import SlotStore
from ajet_server.engines.linear import use_onednn
from ajet_server.engines.packing import Step, pack
from ajet_server.engines.request_checks import check_request
from ajet_server.engines.sampler import Draw, sample
from ajet_server.engines.scheduler import Scheduler
from ajet_server.engines.stop import find_stop
from ajet_server.engines.supported import refuse_unsupported
from ajet_server.models.folder import ModelFolder, open_model_folder
from ajet_server.models.load import load_causal_lm
from ajet_server.worker.protocol import Sampling


class TorchEngine:
    """An `Engine`. One step is one forward pass over the new tokens of all calls, packed without padding.

    Attributes:
        computed_tokens: tokens that went through the model since the start; reused prompt tokens do not count.
    """

    def __init__(self, model: PreTrainedModel, folder: ModelFolder, config: EngineConfig, *, seed: int) -> None:
        """Takes over a model, which must be the engine's alone: its weights change at `load_weights` only.

        Raises:
            ConfigError: the model computes something that the engine does not, or its longest sequence is not known.
        """
        self._max_model_len = _max_model_len(folder, config)
        refuse_unsupported(model, self._max_model_len)
        model.set_attn_implementation(ATTENTION)
        self._model = model.eval().requires_grad_(False)
        use_onednn(model)
        self._device = model.device
        self._vocab_size = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
        self._tokenizer = Tokenizer.from_file(str(folder.tokenizer_file))
        self._eos_ids = frozenset(folder.eos_ids)
        self._scheduler = Scheduler(
            config.max_batch_size, self._max_model_len, config.prefill_chunk, config.prefix_cache_tokens
        )
        self._seed = seed
        self._serial = 0
        self._weight_version = 0
        self.computed_tokens = 0
        # What only shows in a forward pass is refused here too, not at the first request.
        self.score(np.zeros(2, np.int32))

    @classmethod
    def load(cls, job: Job) -> Self:
        """Loads a job's model and makes its engine."""
        folder = open_model_folder(job.model.path)
        return cls(load_causal_lm(job.model, ATTENTION), folder, job.engine, seed=job.seed)

    @property
    def weight_version(self) -> int:
        """The version that is being sampled from."""
        return self._weight_version

    @property
    def max_model_len(self) -> int:
        """Prompt + completion, in tokens."""
        return self._max_model_len

    @property
    def vocab_size(self) -> int:
        """Ids are 0 to this, exclusive."""
        return self._vocab_size

    @property
    def has_work(self) -> bool:
        """True while a call is running or waiting."""
        return bool(self._scheduler.running or self._scheduler.waiting)

    @property
    def running(self) -> int:
        """Calls that hold a slot."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return self._scheduler.waiting

    def submit(self, request: GenerationRequest) -> None:
        """Queues a call; it joins the running batch at the next step that has a free slot.

        Raises:
            RequestError: the request is out of bounds, or its id is in use.
        """
        check_request(request, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        if self._scheduler.find(request.request_id) is not None:
            raise RequestError(f"request_id: {request.request_id!r} is already running", field="request_id")
        self._scheduler.add(new_call(request, self._seed, self._serial))
        self._serial += 1

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """Drops a call and frees its slot. Returns False if it is not here (finished already, say)."""
        call = self._scheduler.find(request_id)
        if call is None:
            return False
        self._scheduler.remove(call)
        return True

    @torch.inference_mode()
    def step(self) -> list[Completion]:
        """Runs one forward pass over all running calls.

        Returns the calls that this step finished.

        Raises:
            EngineFailedError: the logits are not finite. The engine is of no use after that.
        """
        step = self._scheduler.next_step()
        if not step.tokens:
            return []
        calls, places = step.sampling()
        logits_SV = self._forward(pack(step, self._scheduler.store, self._device), places)
        self._scheduler.finish(step)
        self.computed_tokens += step.tokens
        draws = sample(logits_SV, calls) if calls else []
        return self._take(calls, draws)

    @torch.inference_mode()
    def score(self, token_ids: IntIds) -> Logprobs:
        """Log-probabilities f32[T - 1] of token_ids[1:] at temperature 1.

        The way generation computes them: prefill of the first half, then one token at a time through the slots. Its
        slot is one of its own, so it neither sees nor disturbs what is running.
        """
        sampling = Sampling(max_tokens=1, temperature=0.0)
        call = new_call(GenerationRequest("score", token_ids[:-1], sampling), 0, 0)
        check_request(call.request, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        store = SlotStore(1, self._max_model_len)
        store.reserve(1, call.known)
        call.slot = 0
        half = (call.known + 1) // 2
        rows = [self._score_step(Step([], [(call, half)]), store)]
        rows += [self._score_step(Step([call], []), store) for _ in range(call.known - half)]
        logprobs_TV = torch.cat(rows).log_softmax(-1)
        targets_T = torch.from_numpy(token_ids[1:]).to(self._device, torch.int64)
        return logprobs_TV.gather(1, targets_T[:, None])[:, 0].cpu().numpy()

    def load_weights(self, weights: Iterable[tuple[str, object]], weight_version: int) -> None:
        """Takes new weights and forgets every cached key and value. All are checked before one is changed.

        Args:
            weights: (name in the model's `state_dict`, tensor) pairs; together they cover every parameter that changed.
            weight_version: the version that `weights` are.

        Raises:
            EngineFailedError: a name is unknown, a shape differs, or calls are still running.
        """
        if self.running:
            raise EngineFailedError(
                f"weights of version {weight_version} arrived while {self.running} calls were running; drain first"
            )
        present: dict[str, Tensor] = self._model.state_dict()
        pairs = [_matched(present, name, tensor) for name, tensor in weights]
        with torch.no_grad():
            for target, tensor in pairs:
                target.copy_(tensor)
        self._scheduler.forget()
        self._weight_version = weight_version

    def _forward(self, plan: StepPlan, places: list[int]) -> Tensor:
        """Returns the logits f32[S, V] at some places of a pass. The head is not computed anywhere else."""
        kept = torch.tensor(places, dtype=torch.int64, device=self._device)
        forward: Any = self._model
        output = forward(
            input_ids=plan.input_ids,
            position_ids=plan.position_ids,
            use_cache=False,
            logits_to_keep=kept,
            ajet_step=plan,
        )
        return output.logits[0].float()

    def _score_step(self, step: Step, store: SlotStore) -> Tensor:
        logits_TV = self._forward(pack(step, store, self._device), list(range(step.tokens)))
        step.advance()
        return logits_TV

    def _take(self, calls: list[Call], draws: list[Draw]) -> list[Completion]:
        """Hands the sampled tokens to their calls; takes out and returns those that are complete."""
        done: list[tuple[Call, Completion]] = []
        for call, draw in zip(calls, draws, strict=True):
            call.append(draw)
            completion = self._completion(call, draw.token)
            if completion is not None:
                done.append((call, completion))
        # From the last slot down, so that calls that end together leave no holes to fill.
        for call, _ in sorted(done, key=lambda pair: -pair[0].slot):
            self._scheduler.remove(call)
        return [completion for _, completion in done]

    def _completion(self, call: Call, token: int) -> Completion | None:
        """Returns what a call sampled if its last token ended it."""
        if token in self._eos_ids:
            return call.complete("stop", None, self._weight_version)
        stop = find_stop(self._tokenizer, call.sampling.stop, call.completion)
        if stop is not None:
            return call.complete("stop", stop, self._weight_version)
        if call.known == len(call.tokens):
            return call.complete("length", None, self._weight_version)
        return None


def _max_model_len(folder: ModelFolder, config: EngineConfig) -> int:
    trained = folder.max_position_embeddings
    wanted = config.max_model_len or trained
    if wanted is None:
        raise ConfigError(
            "engine.max_model_len: is not set, and the model's config.json has no max_position_embeddings; set it",
            field="engine.max_model_len",
        )
    if trained is not None and wanted > trained:
        raise ConfigError(
            f"engine.max_model_len: {wanted} is more than the {trained} positions the model knows; use at most that",
            field="engine.max_model_len",
        )
    return wanted


def _matched(present: dict[str, Tensor], name: str, tensor: object) -> tuple[Tensor, Tensor]:
    """Returns the engine's own tensor of that name, and the new one."""
    target = present.get(name)
    if target is None:
        raise EngineFailedError(f"weights: the engine's model has no tensor {name!r}; nothing was changed")
    if not isinstance(tensor, Tensor) or tensor.shape != target.shape:
        shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise EngineFailedError(
            f"weights: {name!r} is {shape}, but the engine's model has {tuple(target.shape)}; nothing was changed"
        )
    return target, tensor
