"""The embedded engine: continuous batching over a transformers model, on a CPU or one GPU.

Why not transformers' own continuous batching: it has one seed for a whole batch, reports log-probabilities only after
the processors, and nothing in it binds cached keys to the weights that computed them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from ajet_core.config import EngineConfig, Job
from ajet_core.errors import ConfigError, EngineFailedError, RequestError
from ajet_server.engines.attention import ATTENTION, StepPlan
from ajet_server.engines.base import GenerationRequest, IntIds, Outcome, Refusal, Scored
from ajet_server.engines.calls import Call, new_call
from ajet_server.engines.constraint import Constraints
from ajet_server.engines.ending import Ending
from ajet_server.engines.lanes import Lane, Lanes, prepared
from ajet_server.engines.packing import pack
from ajet_server.engines.request_checks import check_request
from ajet_server.engines.sampler import Draw, sample
from ajet_server.engines.scheduler import Scheduler
from ajet_server.engines.weights import check_shapes, copy_into, holds
from ajet_server.models.folder import ModelFolder, max_model_len, open_model_folder
from ajet_server.models.load import load_causal_lm
from ajet_server.models.supported import refuse_unsupported
from ajet_server.worker.protocol import Sampling


class TorchEngine:
    """An `Engine`. One step is one forward pass over the new tokens of all calls, packed without padding.

    Attributes:
        computed_tokens: prompt and sampled tokens that went through the model since the start. What was reused, and
            what `score` computed, does not count.
        sampled_tokens: tokens that calls sampled since the start.
    """

    def __init__(self, model: PreTrainedModel, folder: ModelFolder, config: EngineConfig, *, seed: int) -> None:
        """Takes over a model, which must be the engine's alone: its weights change at `load_weights` only.

        Raises:
            ConfigError: the model computes something that the engine does not, or its longest sequence is not known.
        """
        self._max_model_len = max_model_len(folder, config)
        refuse_unsupported(model, self._max_model_len)
        self._model = prepared(model)
        self._device = model.device
        self._vocab_size = cast(nn.Embedding, model.get_input_embeddings()).num_embeddings
        tokenizer = Tokenizer.from_file(str(folder.tokenizer_file))
        self._ending = Ending(tokenizer, frozenset(folder.eos_ids))
        self._constraints = Constraints(tokenizer, self._vocab_size, folder.eos_ids)
        self._new_scheduler = partial(Scheduler, config, self._max_model_len)
        self._scheduler = self._new_scheduler(0)
        self._lanes = Lanes(Lane(model, self._scheduler), config.eval_versions)
        self._seed = seed
        self._selects_logits = "logits_to_keep" in inspect.signature(type(model).forward).parameters
        self.computed_tokens = 0
        self.sampled_tokens = 0
        # What only shows in a forward pass is refused here too, not at the first request.
        self.score(np.zeros(3, np.int32), 2)
        self._scheduler.forget()

    @classmethod
    def load(cls, job: Job) -> Self:
        """Loads a job's model and makes its engine."""
        folder = open_model_folder(job.model.path)
        return cls(load_causal_lm(job.model, ATTENTION), folder, job.engine, seed=job.seed)

    @property
    def weight_version(self) -> int:
        """The version that is being sampled from, unless a call names another."""
        return self._scheduler.weight_version

    @property
    def named_versions(self) -> list[int]:
        """The versions that are held beside it."""
        return self._lanes.named

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
        return any(lane.busy for lane in self._lanes.all)

    @property
    def running(self) -> int:
        """Calls that hold a slot."""
        return sum(lane.scheduler.running for lane in self._lanes.all)

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return sum(lane.scheduler.waiting for lane in self._lanes.all)

    def hold(self, version: int, make: Callable[[PreTrainedModel], PreTrainedModel]) -> None:
        """Has a version beside the live one, for calls that name it; new live weights do not touch it.

        Args:
            version: of the weights.
            make: given the live model, makes that of the version; called only if it is not held already. What both
                share must not change with the live weights.

        Raises:
            UnavailableError: there is no room while calls run on the versions that are held.
        """
        self._lanes.hold(version, lambda: Lane(prepared(make(self._model)), self._new_scheduler(version)))

    def submit(self, request: GenerationRequest) -> None:
        """Queues a call; it joins the running batch at the next step that has a free slot.

        A version that it names must be held (`hold`).

        Raises:
            RequestError: the request is out of bounds, its id is in use, or its schema cannot be served.
        """
        check_request(request, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        if self._lanes.find(request.request_id) is not None:
            raise RequestError(f"request_id: {request.request_id!r} is already running", field="request_id")
        schema = request.sampling.json_schema
        constraint = None if schema is None else self._constraints.start(schema)
        self._lanes.of(request.weights).scheduler.add(new_call(request, self._seed, constraint))

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        """Drops a call and frees its slot. Returns False if it is not here (finished already, say)."""
        found = self._lanes.find(request_id)
        if found is None:
            return False
        lane, call = found
        lane.scheduler.remove(call)
        return True

    def pause(self) -> int:
        """Takes running calls out of their slots, so that weights may change, and returns how many there were.

        They go on at the next step: what they sampled stays as it is, their keys and values are computed again with
        the weights that serve then, and those sample the rest. Calls that name a version stay: theirs does not change.
        """
        return self._scheduler.pause()

    @torch.inference_mode()
    def step(self) -> Outcome:
        """Runs one forward pass over all running calls of one weight version.

        Raises:
            EngineFailedError: the logits are not finite. The engine is of no use after that.
        """
        lane = self._lanes.turn()
        step = lane.scheduler.next_step()
        if not step.tokens:
            return Outcome()
        calls, places = step.sampling()
        logits_SV = self._forward(lane.model, pack(step, lane.scheduler.store, self._device), places)
        lane.scheduler.finish(step)
        self.computed_tokens += step.tokens
        draws = sample(logits_SV, calls) if calls else []
        self.sampled_tokens += len(draws)
        return self._take(lane.scheduler, calls, draws)

    @torch.inference_mode()
    def score(self, token_ids: IntIds, start: int) -> Scored:
        """Log-probabilities of token_ids[start:] at temperature 1, as a call would have that sampled them.

        It is a call, with the prompt token_ids[:start], whose tokens are given instead of sampled: it takes the way
        through scheduler, prefix cache and slots that every call takes, and leaves its keys and values in the prefix
        cache. So the same again is scored from cached keys. Calls that wait go on waiting.

        Raises:
            RequestError: the tokens are out of bounds.
            EngineFailedError: calls are running, or the prefix cache has keys of other weights.
        """
        if running := self._scheduler.running:
            raise EngineFailedError(f"score: {running} calls are running; drain first")
        sampling = Sampling(max_tokens=len(token_ids) - start, temperature=0.0)
        call = new_call(GenerationRequest("score", token_ids[:start], sampling), self._seed)
        check_request(call.request, vocab_size=self._vocab_size, max_model_len=self._max_model_len)
        rows: list[Tensor] = []
        with self._scheduler.alone(call):
            while call.known < len(token_ids):
                step = self._scheduler.next_step()
                calls, places = step.sampling()
                rows.append(self._forward(self._model, pack(step, self._scheduler.store, self._device), places))
                self._scheduler.finish(step)
                if calls:
                    call.append(Draw(int(token_ids[call.known]), 0.0, []), self.weight_version)
        logprobs_CV = torch.cat(rows).log_softmax(-1)
        targets_C = torch.from_numpy(token_ids[start:]).to(self._device, torch.int64)
        return Scored(logprobs_CV.gather(1, targets_C[:, None])[:, 0].cpu().numpy(), call.cached)

    def load_weights(
        self, shapes: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, object]], weight_version: int
    ) -> None:
        """Takes new weights, one after the other, and forgets every cached key and value.

        Args:
            shapes: of all weights that come, by their name in the model's `state_dict`; together they are every
                parameter that changed. They are checked before anything is changed.
            weights: (name, tensor) pairs, each tensor needed only until the next is asked for.
            weight_version: the version that `weights` are.

        Raises:
            EngineFailedError: calls are running, or a name or shape is wrong: nothing was changed. Or what came is not
                what was announced: the weights are half loaded, and the engine is of no use after that.
        """
        if running := self._scheduler.running:
            raise EngineFailedError(
                f"weights of version {weight_version} arrived while {running} calls were running; drain first"
            )
        present: dict[str, Tensor] = self._model.state_dict()
        check_shapes(present, shapes)
        self._scheduler.forget()
        missing = set(shapes)
        with torch.no_grad():
            for name, tensor in weights:
                copy_into(present, name, tensor, missing)
                del tensor  # or it would live on while the next one is made
        if missing:
            raise EngineFailedError(f"weights: {min(missing)!r} was announced but did not come; others are loaded")
        self._scheduler.weight_version = weight_version

    @torch.inference_mode()
    def differing(self, weights: Iterable[tuple[str, object]]) -> str | None:
        """Returns the name of the first weight that the engine does not hold, bit for bit; None if it holds them all.

        Args:
            weights: (name in the model's `state_dict`, tensor) pairs; compared in the engine's number format.
        """
        present: dict[str, Tensor] = self._model.state_dict()
        for name, tensor in weights:
            if not holds(present.get(name), tensor):
                return name
            del tensor  # or it would live on while the next one is made
        return None

    def _forward(self, model: PreTrainedModel, plan: StepPlan, places: list[int]) -> Tensor:
        """Returns the logits f32[S, V] at some places of a pass.

        The head is not computed anywhere else, unless the model does not know `logits_to_keep`.
        """
        kept = torch.tensor(places, dtype=torch.int64, device=self._device)
        forward: Any = model
        options = {"logits_to_keep": kept} if self._selects_logits else {}
        output = forward(
            input_ids=plan.input_ids, position_ids=plan.position_ids, use_cache=False, ajet_step=plan, **options
        )
        logits_SV: Tensor = output.logits[0] if self._selects_logits else output.logits[0][kept]
        if len(logits_SV) != len(places):
            raise ConfigError(
                f"model.path: {type(model).__name__} gives {len(logits_SV)} rows of logits where {len(places)} "
                "were asked for; the torch engine cannot run this model",
                field="model.path",
            )
        return logits_SV.float()

    def _take(self, scheduler: Scheduler, calls: list[Call], draws: list[Draw]) -> Outcome:
        """Hands the sampled tokens to their calls, and takes out those that end."""
        outcome, ended = Outcome(), list[Call]()
        for call, draw in zip(calls, draws, strict=True):
            call.append(draw, scheduler.weight_version)
            try:
                completion = self._ending.of(call, draw.token)
            except RequestError as error:
                outcome.refusals.append(Refusal(call.request_id, error))
                ended.append(call)
                continue
            if call.request.stream:
                outcome.sampled.append(call.newest())
            if completion is not None:
                outcome.completions.append(completion)
                ended.append(call)
        # From the last slot down, so that calls that end together leave no holes to fill.
        for call in sorted(ended, key=lambda call: -call.slot):
            scheduler.remove(call)
        return outcome
