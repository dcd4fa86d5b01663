"""What is kept of an update that went wrong, so that it can be looked at and done again elsewhere.

incidents/step-000012/
    report.json        the `StepReport`, and what was not finite
    calls.jsonl.gz     the calls of the batch with their advantages and weights, as `ajet_merge.read_calls` reads them
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ajet_core.errors import StorageError
from ajet_core.events import StepReport
from ajet_merge import Call, MergeError, write_calls
from ajet_server.train.forward import PackTensors, hidden_logprobs, hidden_states
from ajet_server.train.value import ValueHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAMED = 8
"""So many calls are named; the rest is counted."""


@torch.no_grad()
def culprit(
    plain: "PreTrainedModel",
    packs: Sequence[PackTensors],
    calls: Sequence[Call],
    autocast: torch.dtype | None,
    head: ValueHead | None = None,
) -> str:
    """One sentence on what was not finite: log-probabilities, ratios or values of calls, else the gradient alone.

    Args:
        plain: the causal language model, with the weights that the step was computed with.
        packs: of the mini-batch; `call_M` counts `calls`.
        calls: of the batch.
        autocast: number format of the matrix products when it is not that of the weights.
        head: the critic's, if there is one.
    """
    logprobs, ratios, values = set[int](), set[int](), set[int]()
    for pack in packs:
        hidden_TD = hidden_states(plain, pack, autocast)
        logprobs_M, _ = hidden_logprobs(plain, hidden_TD, pack, autocast)
        logprobs.update(pack.call_M[~torch.isfinite(logprobs_M)].tolist())
        ratio_M = (logprobs_M - (pack.rollout_M if pack.old_M is None else pack.old_M)).exp()
        ratios.update(pack.call_M[pack.exact_M & ~torch.isfinite(ratio_M)].tolist())
        if head is not None:
            values.update(pack.call_M[~torch.isfinite(head(hidden_TD, pack.head))].tolist())
    for what, found in (("log-probabilities", logprobs), ("ratios", ratios), ("values", values)):
        if found:
            return f"the {what} of {_named(found, calls)} are not finite"
    return "log-probabilities and ratios are finite, but the loss or the gradient is not"


def _named(indices: set[int], calls: Sequence[Call]) -> str:
    names = ", ".join(repr(calls[index].call_id) for index in sorted(indices)[:_NAMED])
    more = f" and {len(indices) - _NAMED} more" if len(indices) > _NAMED else ""
    return f"calls {names}{more}"


def write_incident(directory: Path, report: StepReport, reason: str, calls: Sequence[Call]) -> Path:
    """Writes what is known of a step into `directory` and returns its folder. The same step is written over.

    Raises:
        StorageError: the disk refuses.
    """
    folder = directory / f"step-{report.step:06d}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_calls(folder / "calls.jsonl.gz", calls)
        content = {"reason": reason, "report": report.model_dump(mode="json")}
        (folder / "report.json").write_text(json.dumps(content, indent=1), "utf-8")
    except (OSError, MergeError) as error:
        raise StorageError(f"cannot write the incident {folder}: {error}") from error
    return folder
