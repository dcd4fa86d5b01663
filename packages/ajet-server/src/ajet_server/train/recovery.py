"""What becomes of an update that was skipped, since something in it was not finite."""

import logging
from pathlib import Path

from ajet_core.errors import EngineFailedError
from ajet_core.events import StepReport
from ajet_server.train.checkpoint import rollback_target
from ajet_server.train.incident import write_incident
from ajet_server.train.trainer import Trainer

_log = logging.getLogger(__name__)


def after_skip(trainer: Trainer, report: StepReport, reason: str, checkpoints: Path) -> StepReport:
    """Keeps what is known, and goes back to older weights when nothing but skipping happens any more.

    Args:
        trainer: has just skipped an update.
        report: of that update.
        reason: what was not finite.
        checkpoints: folder of checkpoints; incidents are written beside it.

    Returns:
        The report, after a rollback with `rolled_back_to`.

    Raises:
        EngineFailedError: there is nothing to go back to.
        StorageError: the disk refuses the incident, or an older checkpoint is not whole.
    """
    folder = write_incident(checkpoints.parent / "incidents", report, reason, trainer.last_calls)
    _log.error("step %d was skipped: %s; its batch is in %s", report.step, reason, folder)
    if report.skipped_in_row < trainer.job.trainer.rollback_after:
        return report
    target = rollback_target(checkpoints)
    if target is None:
        raise EngineFailedError(
            f"{report.skipped_in_row} updates in a row were skipped ({reason}), and there is no older checkpoint "
            f"to go back to; the batches are in {folder.parent}"
        )
    _log.error("%d updates in a row were skipped; going back to the weights of %s", report.skipped_in_row, target.name)
    return trainer.roll_back(target)
