"""The `retention` section: what the ledger keeps of episodes that are over."""

from typing import Annotated

from pydantic import Field

from ajet_core.config_section import Positive, Section


class RetentionConfig(Section):
    """How long the ledger keeps what calls hold: token ids, log-probabilities, messages.

    Rewards, sizes, versions and reports stay for ever. Kept in any case: whatever is open, waits or is being trained,
    and the batches of the latest `checkpoint.keep` steps.
    """

    trained_episodes: Positive | None = None
    """Calls are kept of so many of the latest trained episodes (whole batches). By default of all."""
    days: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Calls are kept for so many days after their episode was closed, be it trained, lost, evaluated or set aside. By
    default for ever."""


def retention_contradiction(retention: RetentionConfig, keep: int, batch_episodes: int) -> tuple[bool, str]:
    """Whether `trained_episodes` promises to keep less than is kept anyway, and the words that say so.

    Args:
        retention: the section.
        keep: `checkpoint.keep`.
        batch_episodes: how many episodes a batch takes.
    """
    bound, least = retention.trained_episodes, keep * batch_episodes
    return (
        bound is not None and bound < least,
        f"retention.trained_episodes: {bound} cannot be kept to, since the {batch_episodes} episodes of each of the "
        f"latest checkpoint.keep={keep} steps stay; use at least {least}",
    )
