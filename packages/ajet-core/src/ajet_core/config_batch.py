"""The `batch` section: when an update happens, and on which episodes."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ajet_core.condition import Condition, Range, names, never_or_always
from ajet_core.condition_grammar import MAX_LENGTH, ConditionError, parse
from ajet_core.config_section import Positive, Section
from ajet_core.quotas import quotas

PolicyName = Literal["groups", "episodes", "informative_groups", "any_client", "all_clients"]
_BY_AGREEMENT = ("any_client", "all_clients")
_DEFAULT_SIZE = 4
_SUM_SLACK = 1e-6
Name = Annotated[str, Field(min_length=1, max_length=200)]


class BatchConfig(Section):
    """When an update happens, and on which episodes."""

    policy: PolicyName = "groups"
    """`episodes`: when `size` train episodes are finished. `groups`: when `size` groups are complete.
    `informative_groups`: when `size` complete groups have rewards that differ; the others are set aside. `any_client`,
    `all_clients`: when one client, or every client at work, has said that it is ready; takes the complete groups."""
    size: Positive | None = None
    """How many groups (or episodes) an update waits for, and takes at most; no more are handed out at a time. Default
    4, with `any_client` and `all_clients` no bound."""
    group_size: Positive = 8
    """Rollouts of one task that are compared with each other."""
    min_reward_spread: Annotated[float, Field(gt=0)] | None = None
    """A group is informative when its rewards spread by more than this. Default 1e-6. Only where informative groups are
    counted: with policy `informative_groups`, or when `when` names them."""
    max_staleness: Annotated[int, Field(ge=0)] = 1
    """Episodes whose oldest token is more than this many weight versions old are set aside instead of trained."""
    max_pool_episodes: Positive = 4096
    """Finished episodes that may wait. At the bound no more episodes are handed out; none is thrown away."""
    when: Annotated[str, Field(max_length=MAX_LENGTH)] | None = None
    """When an update happens, as a condition in place of the policy's own, which still says what is taken:
    `groups >= 4 or waited > 10m`. Names: episodes, groups, informative_groups, staleness, waited, clients,
    ready_clients, any_client, all_clients."""

    sources: Annotated[dict[Name, Annotated[float, Field(gt=0, le=1)]], Field(min_length=1)] | None = None
    """Shares of an update by source, adding up to 1: `{math: 0.5, tools: 0.5}`. Every update takes exactly these shares
    of its groups (episodes, with policy `episodes`), rounded by the largest remainder, and a source that is under way
    with its own gets no more train episodes. Train episodes then have to name one of these sources. Not with
    `any_client`, `all_clients` or `when`, which may update before the shares are there."""

    @property
    def quotas(self) -> dict[str, int]:
        """Groups (episodes) of an update by source; empty without `sources`."""
        return quotas(self.sources, self.bound) if self.sources and self.bound else {}

    @property
    def bound(self) -> int | None:
        """`size` or its default: the most groups (episodes) of an update; None without a bound."""
        return _bound(self.policy, self.size)

    @property
    def reward_spread(self) -> float:
        """`min_reward_spread` or its default."""
        return 1e-6 if self.min_reward_spread is None else self.min_reward_spread

    @property
    def condition(self) -> Condition:
        """`when`, or the policy's own condition."""
        own = self.policy if self.policy in _BY_AGREEMENT else f"{self.policy} >= {self.bound}"
        return parse(own if self.when is None else self.when)

    @property
    def asks_clients(self) -> bool:
        """True when an update may depend on what clients say (`POST /api/ready`)."""
        return bool(names(self.condition) & {"clients", "ready_clients", "any_client", "all_clients"})

    @property
    def counts_informative(self) -> bool:
        """True when informative groups matter."""
        return self.policy == "informative_groups" or "informative_groups" in names(self.condition)

    @field_validator("when")
    @classmethod
    def _refuse_nonsense(cls, when: str | None, info: ValidationInfo) -> str | None:
        others = info.data
        if when is None or not {"policy", "size", "group_size", "max_staleness"} <= others.keys():
            return when
        try:
            condition = parse(when)
        except ConditionError as error:
            raise _refusal(str(error)) from None
        policy = others["policy"]
        if policy in _BY_AGREEMENT and policy not in names(condition):
            raise _refusal(
                f"does not name {policy}, so policy '{policy}' has no effect; name it, or use policy 'groups'"
            )
        if (constant := never_or_always(condition, _ranges(others))) is not None:
            raise _refusal(f"{constant} in this job; batch.size, group_size and max_staleness decide that")
        return when

    @field_validator("sources")
    @classmethod
    def _refuse_shares(cls, sources: dict[str, float] | None, info: ValidationInfo) -> dict[str, float] | None:
        others = info.data
        if sources is None or not {"policy", "size", "when"} <= others.keys():
            return sources
        policy, size = others["policy"], _bound(others["policy"], others["size"])
        if policy in _BY_AGREEMENT or others["when"] is not None or size is None:
            reason = f"policy '{policy}'" if policy in _BY_AGREEMENT else "batch.when"
            raise _refusal(f"has no exact shares with {reason}, which may update before they are there; remove one")
        if abs(sum(sources.values()) - 1) > _SUM_SLACK:
            raise _refusal(f"adds up to {sum(sources.values()):g}, not to 1")
        empty = [name for name, count in quotas(sources, size).items() if not count]
        if empty:
            raise _refusal(f"leaves nothing of batch.size={size} for {empty[0]!r}; use a larger size or share")
        return sources


def _bound(policy: str, size: int | None) -> int | None:
    return _DEFAULT_SIZE if size is None and policy not in _BY_AGREEMENT else size


def _refusal(wanted: str) -> PydanticCustomError:
    return PydanticCustomError("condition", "{wanted}", {"wanted": wanted})


def _ranges(batch: Mapping[str, Any]) -> dict[str, Range]:
    """What each name can be while no more is handed out than the next batch wants."""
    policy, group_size = batch["policy"], batch["group_size"]
    most: float = _bound(policy, batch["size"]) or inf
    if policy == "episodes":
        episodes, groups = most, most // group_size
    else:
        episodes, groups = most * group_size, most
    return {
        "episodes": (0, episodes),
        # Uninformative groups are set aside and replaced, and counted all the same.
        "groups": (0, inf if policy == "informative_groups" else groups),
        "informative_groups": (0, groups if group_size > 1 else 0),
        "staleness": (0, batch["max_staleness"]),
        "waited": (0, inf),
        "clients": (0, inf),
        "ready_clients": (0, inf),
        "any_client": (0, 1),
        "all_clients": (0, 1),
    }
