"""The trainer: episodes in, a step and its report out; checkpoints; scores and weights for the engine."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
import torch
from peft import PeftModel

from ajet_core.config import Job
from ajet_core.events import StepReport
from ajet_merge import Call
from ajet_server.models.load import resolve_device, resolve_dtype
from ajet_server.models.supported import Level, refuse_untrainable
from ajet_server.samples.merge import build_batch
from ajet_server.train import state
from ajet_server.train.attention import Backend, choose_backend
from ajet_server.train.checkpoint import (
    FileEntry,
    Manifest,
    Settings,
    check_settings,
    read_manifest,
    write_checkpoint,
)
from ajet_server.train.incident import culprit
from ajet_server.train.linear import use_own_attention
from ajet_server.train.loading import checkpoint_activations, choose_level, load_plain
from ajet_server.train.lora import add_adapter, merged_weights, weight_shapes
from ajet_server.train.losses.stats import no_stats
from ajet_server.train.minibatch import mini_batches
from ajet_server.train.report import (
    finite,
    length_figures,
    merge_figures,
    reward_figures,
    staleness_figures,
    warn_if_nothing_is_learned,
)
from ajet_server.train.schedule import set_rate
from ajet_server.train.scoring import Models, Scored, score, scored
from ajet_server.train.step import Progress, StepFigures, accumulate, apply_step, figures, make_optimizer
from ajet_server.train.support import hidden_width, verify_exact, vocab_size
from ajet_server.train.value import ValueHead
from ajet_server.worker.protocol import EpisodeRow

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger(__name__)


class Trainer:
    """Trains one model by one job. Single-threaded.

    Attributes:
        step: optimizer steps so far, those of the checkpoint included.
        last_batch_id: the batch of the last of them; None before the first.
        last_report: its report.
        last_calls: its calls, with advantages and weights.
        skip_reason: what was not finite in it; None when all was.
        attention: the attention backend in use.
    """

    def __init__(
        self,
        job: Job,
        model: "PreTrainedModel | PeftModel",
        dtype: torch.dtype,
        attention: Backend,
        level: Level = "forest",
    ) -> None:
        """Use `load`. `dtype` is the number format the job asks for; the weights' own may be wider."""
        self.job = job
        self.model = model
        self.attention: Backend = attention
        self.step = 0
        self.last_batch_id: str | None = None
        self.last_report: StepReport | None = None
        self.last_calls: list[Call] = []
        self.skip_reason: str | None = None
        self._level: Level = level
        self._dtype = dtype
        self._reference: PreTrainedModel | None = None
        self._head: ValueHead | None = None
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        trained, value = list(self._parameters.values()), job.algorithm.value
        if value is not None:
            self._head = ValueHead(hidden_width(self.plain), self.device)
            self._parameters |= self._head.named_parameters("value_head")
        head_rate = 0.0 if value is None else value.learning_rate
        self._optimizer = make_optimizer(trained, job.optimizer, job.learning_rate, self._head, head_rate)

    @classmethod
    def load(cls, job: Job, checkpoint: Path | None = None) -> "Trainer":
        """Loads the job's model, or the checkpoint that continues it.

        Raises:
            ConfigError: the model cannot be trained over packs, or the checkpoint is of another model or adapter.
            StorageError: the checkpoint is incomplete or corrupted; nothing was loaded.
        """
        manifest = None
        if checkpoint is not None:
            manifest = read_manifest(checkpoint)
            check_settings(checkpoint, manifest, Settings.of(job))
        device = resolve_device(job.model)
        dtype, backend = resolve_dtype(job.model, device), choose_backend(device, job.trainer.attention)
        plain = load_plain(job, checkpoint, dtype)
        refuse_untrainable(plain)
        level = choose_level(job, plain)
        verify_exact(plain, backend, level)
        model = plain if job.adapter is None else add_adapter(plain, job.adapter, job.seed)
        trainer = cls(job, model, dtype, backend, level)
        if job.trainer.activation_checkpointing:
            checkpoint_activations(plain)
        if checkpoint is not None and manifest is not None:
            trainer._restore(checkpoint, manifest)
        if job.algorithm.kl is not None and job.adapter is None:  # an adapter is switched off instead
            trainer._reference = load_plain(job, None, dtype).requires_grad_(False)
            if level != "forest":
                use_own_attention(trainer._reference)
        return trainer

    @property
    def plain(self) -> "PreTrainedModel":
        """The causal language model itself, with adapters in its layers or without."""
        return cast("PreTrainedModel", self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.plain.device

    @property
    def dtype(self) -> torch.dtype:
        """The number format the model computes in."""
        return self._dtype

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return vocab_size(self.plain)

    def update(self, batch_id: str, step: int, episodes: Sequence[EpisodeRow], progress: Progress) -> StepReport:
        """Does the optimizer steps of a batch: `trainer.epochs` times `trainer.mini_batches`.

        A loss or gradient that is not finite skips its step: the report says so, and that step changes nothing.

        Raises:
            RequestError: a row of the batch is not usable; names it. Nothing was changed.
            ConfigError: a call is longer than `trainer.pack_tokens`. Nothing was changed.
        """
        started = perf_counter()
        progress("merge", 0, 1)
        batch = build_batch(episodes, self.job.algorithm, self.vocab_size)
        minis = mini_batches(batch, self.job, self.attention, self._level, self.device)
        packed = perf_counter()
        ready = scored(batch, minis, self.job, self._models, progress)
        warn_if_nothing_is_learned(batch_id, ready.batch, self.job.algorithm.baseline)
        known = perf_counter()
        done, rate = self._steps(ready, progress)
        seconds = {"merge": packed - started, "score": known - packed, "update": perf_counter() - known}
        in_a_row = self._skipped_in_row + 1 if done.skipped else 0
        if done.skipped:
            _log.error("batch %s: step %d skipped: %s", batch_id, step, self.skip_reason)
        self.step, self.last_batch_id = step, batch_id
        self.last_report = StepReport(
            step=step,
            batch_id=batch_id,
            weight_version=step,
            episodes=len(episodes),
            groups=batch.groups,
            learning_rate=rate,
            skipped_in_row=in_a_row,
            seconds=seconds,
            **merge_figures(minis),
            **length_figures(batch.calls),
            **reward_figures(ready.batch),
            **staleness_figures(episodes, step - 1),
            **asdict(ready.critic),
            **finite(done),
        )
        return self.last_report

    def _steps(self, ready: Scored, progress: Progress) -> tuple[StepFigures, float]:
        """The optimizer steps of a batch; what they did together, and the last learning rate."""
        calls, config, models = ready.batch.calls, self.job.optimizer, self._models
        self.skip_reason, self.last_calls = None, calls
        stats, norms, skipped, rate = no_stats(self.device), list[float](), 0, 0.0
        # A part that trains no token is no step: its checkpoint is not one to go back to.
        for mini in [mini for mini in ready.minis if mini.packs] * self.job.trainer.epochs:
            rate = set_rate(self._optimizer, config)
            of_step = accumulate(models.plain, mini.packs, self.job.algorithm, progress, models.autocast, models.head)
            norm, was_skipped = apply_step(self._optimizer, of_step, config.max_grad_norm)
            if was_skipped:
                self.skip_reason = culprit(models.plain, mini.packs, calls, models.autocast, models.head)
            stats, skipped = stats + of_step, skipped + was_skipped
            norms.append(norm)
        return figures(stats, norms, skipped), rate

    @property
    def _models(self) -> Models:
        reference = None if self.job.algorithm.kl is None else self._reference or self.model
        return Models(self.plain, reference, self._head, self._autocast)

    def score(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Log-probabilities f32[T - 1] of token_ids[1:] at temperature 1, computed the way an update computes them."""
        return score(self.plain, token_ids, self.attention, self.job.trainer.logprob_chunk, self._autocast)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields (name in the plain model's `state_dict`, tensor) of every weight that training changes.

        Each is made when it is asked for, and the same again each time until the next update.
        """
        # A map and not a generator: between two weights it holds neither.
        return map(self._published, merged_weights(self.model))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns name and shape of all that `weights` yields, without computing any of it."""
        return weight_shapes(self.model)

    def _published(self, weight: tuple[str, torch.Tensor]) -> tuple[str, torch.Tensor]:
        return weight[0], weight[1].to(self._dtype)

    def save(self, directory: Path, report: StepReport) -> Path:
        """Writes the checkpoint of `report`'s step into `directory` and returns its folder.

        The report that is stored, and that `last_report` is afterwards, has the seconds of stage `checkpoint` as well.

        Raises:
            DiskFullError: the disk has no room.
            StorageError: the disk refuses, or the step has a checkpoint already.
        """
        started = perf_counter()

        def write(folder: Path) -> None:
            with state.os_errors():
                state.save_weights(self.model, Path(self.job.model.path).expanduser(), folder)
                if self._head is not None:
                    state.save_value(self._head, folder)
                state.save_optimizer(self._optimizer, self._parameters, folder)
                state.save_rng(folder)

        def manifest(files: dict[str, FileEntry]) -> Manifest:
            seconds = report.seconds | {"checkpoint": perf_counter() - started}
            self.last_report = report.model_copy(update={"seconds": seconds})
            return Manifest.of(self.job, self.last_report, files)

        return write_checkpoint(directory, report.step, write, manifest)

    def roll_back(self, folder: Path) -> StepReport:
        """Takes weights and optimizer of an older checkpoint; steps go on being counted from here.

        Returns:
            The last report, with `rolled_back_to`.

        Raises:
            StorageError: the checkpoint is incomplete or corrupted; nothing was changed.
        """
        manifest = read_manifest(folder)
        check_settings(folder, manifest, Settings.of(self.job))
        if isinstance(self.model, PeftModel):
            state.load_adapter(self.model, folder)
        else:
            state.load_model(self.model, folder)
        self._load_training(folder)
        if self.last_report is None:
            raise ValueError("there was no update that could be rolled back")
        self.last_report = self.last_report.model_copy(update={"rolled_back_to": manifest.step, "skipped_in_row": 0})
        return self.last_report

    @property
    def _skipped_in_row(self) -> int:
        return 0 if self.last_report is None else self.last_report.skipped_in_row

    def _restore(self, folder: Path, manifest: Manifest) -> None:
        if isinstance(self.model, PeftModel):
            state.load_adapter(self.model, folder)
        self._load_training(folder)
        state.load_rng(folder)
        self.step, self.last_batch_id = manifest.step, manifest.batch_id
        self.last_report = StepReport.model_validate(manifest.report)

    def _load_training(self, folder: Path) -> None:
        """What only training needs: the critic's head and the optimizer."""
        if self._head is not None:
            state.load_value(self._head, folder)
        state.load_optimizer(self._optimizer, self._parameters, folder)

    @property
    def _autocast(self) -> torch.dtype | None:
        return self._dtype if self.job.method == "full" and self._dtype != torch.float32 else None
