"""The job: everything that decides what a server trains and how, as one model.

Each field's docstring is its documentation: `ajet job init` writes them as comments, `ajet job validate` names the
field that is wrong. A field never holds an import path, and unknown fields are errors, so a typing mistake cannot
pass in silence.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ajet_core.config_algorithm import AlgorithmConfig
from ajet_core.config_batch import BatchConfig
from ajet_core.config_gateway import GatewayConfig
from ajet_core.config_retention import RetentionConfig, retention_contradiction
from ajet_core.config_section import Fraction, Positive, Seconds
from ajet_core.config_section import Section as _Section

__all__ = [
    "AlgorithmConfig",
    "BatchConfig",
    "CheckpointConfig",
    "EngineConfig",
    "GatewayConfig",
    "Job",
    "LimitsConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RetentionConfig",
    "TrainerConfig",
]


class ModelConfig(_Section):
    """The model that is served and trained."""

    path: Annotated[str, Field(min_length=1)]
    """Folder of a Hugging Face causal language model: config.json, safetensors, tokenizer.json, a chat template."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the weights. `auto`: float32 on a CPU (bfloat16 is slow there), bfloat16 on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs. `auto`: the first GPU if there is one."""
    served_name: Annotated[str, Field(min_length=1)] | None = None
    """The name that agents send as `model`. By default the folder's name."""


class LoraConfig(_Section):
    """A low-rank adapter (Hu et al. 2021, arXiv 2106.09685), made by peft."""

    rank: Annotated[int, Field(gt=0, le=512)] = 16
    """Rank of the update of each weight matrix."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The update is scaled by alpha / rank."""
    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """Which linear layers get an adapter: all except the output layer, or a list of module names (`q_proj`, ...)."""


class OptimizerConfig(_Section):
    """AdamW (Loshchilov and Hutter 2017, arXiv 1711.05101)."""

    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """At its highest. By default 1e-4 with `method: lora` and 1e-5 with `full`; small models learn faster with more
    (5e-4 suits a 135M model with LoRA)."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps over which the rate rises to its highest."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up. `linear` and `cosine` fall over `decay_steps`, and then stay."""
    decay_steps: Positive | None = None
    """Optimizer steps that the fall takes. Needed with `linear` and `cosine`, and only there."""
    final_rate_fraction: Annotated[float, Field(ge=0, le=1)] | None = None
    """With `linear` and `cosine` only: where the fall ends, as a part of the highest rate. Default 0."""
    beta1: Fraction = 0.9
    """Decay of the mean of the gradient."""
    beta2: Fraction = 0.999
    """Decay of the mean of its square."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the denominator."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """The gradient is scaled down to this norm when it is longer."""

    @property
    def rate_floor(self) -> float:
        """`final_rate_fraction` or its default."""
        return 0.0 if self.final_rate_fraction is None else self.final_rate_fraction


class LimitsConfig(_Section):
    """Bounds in time and size. Every wait of the server has one of them as its deadline."""

    max_open_episodes: Positive = 256
    """More are refused with 503 until some close."""
    lease_s: Seconds = 120.0
    """Silence after which an open episode expires. Calls and heartbeats renew it."""
    max_episode_s: Seconds = 3600.0
    """An episode expires this long after it was opened, or after the server was started again, however lively it is."""
    max_episode_calls: Positive | None = None
    """Calls that an episode may make. More are refused with 403, which no SDK tries again. By default no bound."""
    max_episode_tokens: Positive | None = None
    """Tokens that an episode may sample in all its calls. What is left bounds the next call, as its `max_tokens` does;
    when nothing is, calls are refused with 403. By default no bound."""
    drain_timeout_s: Seconds = 120.0
    """How long open episodes may go on when a batch is complete, before the update begins without them. With
    `engine.during_update: finish`, how long running calls may go on before the weights change."""
    request_timeout_s: Seconds = 300.0
    """How long an agent's call may take, waiting included; then it gets a retryable 503."""
    update_silence_s: Seconds = 300.0
    """A worker that reports no progress for this long is taken for hung and restarted."""
    boot_timeout_s: Seconds = 600.0
    """How long a worker may take to load the model."""
    max_worker_restarts: Annotated[int, Field(ge=0)] = 3
    """Restarts without a finished update in between before the server fails with the last reason."""
    max_completion_tokens: Positive = 1024
    """Upper bound, and default, of a call's `max_tokens`."""


class EngineConfig(_Section):
    """The embedded engine that generates tokens."""

    name: Literal["torch"] = "torch"
    """`torch`: continuous batching over a transformers model, inside the worker process."""
    max_batch_size: Positive = 32
    """Calls that generate at the same time; more wait for a slot."""
    max_model_len: Positive | None = None
    """Prompt + completion, in tokens. By default what the model's configuration says."""
    prefill_chunk: Positive = 1024
    """Prompt tokens computed in one step, so that a long prompt does not stop those who are generating."""
    prefix_cache_tokens: Annotated[int, Field(ge=0)] = 16_384
    """Tokens whose keys and values are kept for later calls with the same beginning; 0 keeps none."""
    eval_versions: Annotated[int, Field(ge=0)] = 1
    """Weight versions that eval episodes may name at a time, each held beside the live one: with `method: lora` an
    adapter, with `full` a second model. Each has slots and cached keys of its own. 0 refuses them."""
    during_update: Literal["drain", "finish", "continue"] = "drain"
    """What calls and episodes do while an update computes. `drain`: open ones may finish first, then nothing runs.
    `finish`: episodes are handed out and calls go on with the old weights; those that run when the weights change end
    on the old ones first. `continue`: as `finish`, but those are paused and go on with the new weights; each token's
    version is recorded. The last two need `batch.max_staleness` of at least 1."""


class TrainerConfig(_Section):
    """How an update is computed."""

    pack_tokens: Positive = 4096
    """Forest tokens in one forward and backward pass. Less memory, the same gradient. No call may be longer, so train
    episodes get at most this much context."""
    logprob_chunk: Positive = 256
    """Rows of logits held at once, times the vocabulary."""
    attention: Literal["auto", "segments", "rectangles", "dense", "flash"] = "auto"
    """Who computes attention over packs. `auto`: `rectangles` on a CPU; on a GPU `flash` (flash-attn) where it is
    installed, else `segments`. `dense` is for checks: at most 4096 tokens a pack. All give the same result."""
    sharing: Literal["auto", "forest", "rows", "calls"] = "auto"
    """How much of a forward pass calls share; the gradient is the same. `forest`: every common prefix, once. `rows`:
    calls that continue each other, one linear row a pass. `calls`: nothing. `auto`: the most that the model's layers
    can share exactly. The others are for comparisons."""
    mini_batches: Positive = 1
    """Parts of a batch, whole groups each, with an optimizer step for each part."""
    epochs: Positive = 1
    """How often a batch is gone through. With more than one step a batch the ratios leave 1, and clipping matters."""
    rollback_after: Positive = 3
    """After so many updates in a row that were skipped, because a loss or gradient was not finite, weights and
    optimizer of the checkpoint before the last update that was taken are put back. That one must still be there:
    `checkpoint.keep` at least 2."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""


class CheckpointConfig(_Section):
    """What is kept on disk. A checkpoint is written after every update, before the update counts."""

    keep: Annotated[int, Field(ge=1)] = 2
    """How many of the latest checkpoints are kept."""


class Job(_Section):
    """A training job."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "job"
    """Letters, digits, dot, dash and underscore."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds adapter initialisation and every sampling that brings no seed of its own."""
    model: ModelConfig
    method: Literal["lora", "full"] = "lora"
    """`lora` trains an adapter beside frozen weights; `full` trains every weight."""
    lora: LoraConfig | None = None
    """Only with `method: lora`; its defaults apply when it is left out."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    batch: BatchConfig = BatchConfig()
    limits: LimitsConfig = LimitsConfig()
    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    trainer: TrainerConfig = TrainerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    retention: RetentionConfig = RetentionConfig()

    @property
    def learning_rate(self) -> float:
        """`optimizer.learning_rate` or its default."""
        default = 1e-4 if self.method == "lora" else 1e-5
        return default if self.optimizer.learning_rate is None else self.optimizer.learning_rate

    @property
    def adapter(self) -> LoraConfig | None:
        """The adapter to train; None with `method: full`."""
        return (self.lora or LoraConfig()) if self.method == "lora" else None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        for wrong, message in self._contradictions():
            if wrong:
                raise ValueError(message)
        return self

    def _contradictions(self) -> list[tuple[bool, str]]:
        batch = self.batch
        grouped = batch.policy != "episodes"
        pool_needed = (batch.bound or 1) * (batch.group_size if grouped else 1)
        overlong = self.algorithm.overlong
        optimizer, steps = self.optimizer, self.trainer.mini_batches * self.trainer.epochs
        decays = optimizer.schedule != "constant"
        max_len, longest = self.engine.max_model_len, self.limits.max_completion_tokens
        return [
            retention_contradiction(self.retention, self.checkpoint.keep, pool_needed),
            (self.method == "full" and self.lora is not None, "lora: is set, but method is 'full'; remove one"),
            (
                self.engine.during_update != "drain" and batch.max_staleness < 1,
                f"engine.during_update: '{self.engine.during_update}' samples with weights that are one version old "
                f"when they are trained, but batch.max_staleness is {batch.max_staleness}; use 'drain', or at least 1",
            ),
            (
                decays and optimizer.decay_steps is None,
                f"optimizer.decay_steps: is needed with schedule '{optimizer.schedule}'; "
                "give the number of optimizer steps that the fall takes",
            ),
            *(
                (
                    not decays and value is not None,
                    f"optimizer.{name}: has no effect with schedule 'constant'; remove it or use 'linear' or 'cosine'",
                )
                for name, value in (
                    ("decay_steps", optimizer.decay_steps),
                    ("final_rate_fraction", optimizer.final_rate_fraction),
                )
            ),
            (
                batch.bound is not None and self.trainer.mini_batches > batch.bound,
                f"trainer.mini_batches: {self.trainer.mini_batches} parts of a batch of {batch.bound} cannot each hold "
                f"a whole one; use at most batch.size",
            ),
            (
                self.algorithm.old_logprobs == "recomputed" and self.algorithm.off_policy is None and steps == 1,
                "algorithm.old_logprobs: with one optimizer step a batch 'recomputed' makes every ratio 1, so clipping "
                "has no effect; use 'rollout', or more trainer.epochs or trainer.mini_batches",
            ),
            (
                batch.min_reward_spread is not None and not batch.counts_informative,
                f"batch.min_reward_spread: has no effect with policy '{batch.policy}'; "
                "remove it or use 'informative_groups'",
            ),
            (
                batch.group_size < 2 and self.algorithm.baseline not in {"batch_mean", "value"},
                f"batch.group_size: {batch.group_size} leaves nothing to compare with, so every advantage would be 0; "
                "use at least 2",
            ),
            (
                batch.group_size < 2 and batch.policy == "informative_groups",
                f"batch.policy: 'informative_groups' would wait for ever, since the rewards of a group of "
                f"{batch.group_size} never differ; use 'groups' or 'episodes', or a larger group_size",
            ),
            (
                batch.max_pool_episodes < pool_needed,
                f"batch.max_pool_episodes: {batch.max_pool_episodes} can never hold one batch of {pool_needed} "
                f"episodes; use at least {pool_needed}",
            ),
            (
                max_len is not None and longest >= max_len,
                f"limits.max_completion_tokens: {longest} leaves no room for a prompt in "
                f"engine.max_model_len={max_len}; use less",
            ),
            (
                overlong is not None and overlong.max_tokens - overlong.buffer >= longest,
                f"algorithm.overlong: has no effect, since no completion is longer than "
                f"limits.max_completion_tokens={longest}; use less max_tokens",
            ),
        ]
