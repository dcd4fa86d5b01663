"""How many episodes a run opens for each task, as the server's job compares them."""

import logging

from ajet_client.api import POLL_S, Api
from ajet_client.plans import Pause, Plan
from ajet_client.tasks import all_distinct
from ajet_core.config import Job
from ajet_core.episode import EpisodeKind
from ajet_core.errors import NotFoundError, RequestError, UnavailableError

logger = logging.getLogger("ajet_client")


def sizing(api: Api, kind: str, asked: int | None, tasks: object, patience_s: float, *, roles: int = 1) -> Plan[int]:
    """Returns how many episodes a run opens for each task.

    Groups that the server's job could never train are refused: they would fill its pool, and nothing would happen.

    Args:
        api: of the server.
        kind: `train` or `eval`. Any size will do for `eval`.
        asked: what the user wants; None: what the job trains, and 1 for `eval`.
        tasks: what the run is about. Looked at only if it is a list or the like.
        patience_s: how long to wait for the job, seconds.
        roles: groups of this server that a task has, one a role.

    Raises:
        RequestError: `asked` is less than 1; or the job trains groups of another size; or its updates take no
            multiple of `roles`; or `asked` is 1, and no two tasks are equal, so that no group could be made of
            them.
        UnavailableError: the server could not be reached, or has no job, until the deadline.
    """
    if asked is not None and asked < 1:
        raise RequestError(f"group_size must be at least 1, got {asked}", field="group_size")
    if kind != EpisodeKind.TRAIN:
        return asked or 1
    batch = (yield from _await_job(api, patience_s)).batch
    if batch.bound is not None and batch.bound % roles:
        raise RequestError(
            f"batch.size: an update takes {batch.bound} groups (or episodes), but a team has {roles} of this "
            "server at a time, so it would never be complete; use a multiple",
            field="batch.size",
        )
    if batch.policy == "episodes":
        return asked or 1
    if asked is None:
        return batch.group_size
    if asked not in {1, batch.group_size}:
        raise RequestError(
            f"group_size: {asked}, but the server trains groups of {batch.group_size} (its job's "
            "batch.group_size); leave group_size out, or use 1 to let the server make groups of equal tasks",
            field="group_size",
        )
    if asked == 1 and all_distinct(tasks):
        raise RequestError(
            f"group_size: 1 lets the server make groups of {batch.group_size} equal tasks (batch.policy and "
            "batch.group_size of its job), but no two of these tasks are equal, so no group would be complete; "
            f"leave group_size out to run each task {batch.group_size} times. If other clients bring the same "
            "tasks, pass an iterator, iter(tasks), which is not checked",
            field="group_size",
        )
    return asked


def _await_job(api: Api, patience_s: float) -> Plan[Job]:
    """Reads the job, and waits for it if the server has none yet."""
    end, told = api.clock.now() + patience_s, False
    while True:
        left_s = max(0.0, end - api.clock.now())
        try:
            return (yield from api.job(left_s))
        except NotFoundError as error:
            if left_s <= 0:
                raise UnavailableError(
                    f"gave up after {patience_s:.0f} s waiting for a job: {error.message}"
                ) from error
            if not told:
                told = True
                logger.warning("waiting for a job, up to %.0f s more: %s", left_s, error.message)
            yield Pause(min(POLL_S, left_s))
