"""Roles: parts that one model plays in one episode, each with calls and a reward of its own.

An agent names the role of a call by its key, which every SDK can set: `<api_key>.<role>`.
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated

from pydantic import Field

from ajet_core.errors import ConflictError, RequestError, RewardError

MAX_ROLES = 64
"""In one episode."""
_PATTERN = r"[A-Za-z0-9_-]{1,64}"
_ROLE = re.compile(_PATTERN)

RoleName = Annotated[str, Field(pattern=f"^{_PATTERN}$")]
"""1 to 64 letters, digits, `_` and `-`."""


def key_of_role(api_key: str, role: str) -> str:
    """Returns the key for the calls of a role. Raises `RequestError` if it cannot be a role's name."""
    return f"{api_key}.{_checked(role, 'role')}"


def split_key(key: str) -> tuple[str, str | None]:
    """Returns (`api_key`, role) of an agent's key; the role is None if it names none.

    Raises:
        RequestError: what follows the dot cannot be a role's name.
    """
    api_key, dot, role = key.partition(".")
    return (api_key, _checked(role, "api_key")) if dot else (key, None)


def _checked(role: str, field: str) -> str:
    if _ROLE.fullmatch(role) is None:
        raise RequestError(
            f"{field}: {role[:80]!r} is no name of a role; use 1 to 64 letters, digits, '_' and '-'", field=field
        )
    return role


def refuse_role(episode_id: str, known: Collection[str | None], role: str | None) -> None:
    """Raises if an episode takes no call of a role, because of the roles that its earlier calls named.

    Args:
        episode_id: whose.
        known: the roles of its calls; None for one that named none.
        role: of the next call.

    Raises:
        RequestError: its calls name roles and this one does not, or the other way round; or it has too many.
    """
    if role in known or not known:
        return
    if role is None or None in known:
        raise RequestError(
            f"api_key: some calls of episode {episode_id} name a role and some do not; name one in all, by the key "
            "'<api_key>.<role>', or in none",
            field="api_key",
        )
    if len(known) >= MAX_ROLES:
        raise RequestError(
            f"api_key: episode {episode_id} has {MAX_ROLES} roles, the most there may be; {role!r} is one more",
            field="api_key",
        )


def refuse_rewards(episode_id: str, known: Collection[str | None], rewards: Mapping[str, float]) -> None:
    """Raises unless there is a reward for exactly the roles that made calls, and none by role without roles.

    Args:
        episode_id: whose.
        known: the roles of its calls; None for one that named none.
        rewards: by role.

    Raises:
        RewardError: a role has no reward, or a reward has no role.
        ConflictError: some of the calls named a role and some did not.
    """
    roles = {role for role in known if role is not None}
    if roles and None in known:
        raise ConflictError(
            f"episode {episode_id} cannot be finished: some of its calls named a role and some did not; abort it"
        )
    if missing := sorted(roles - rewards.keys()):
        raise RewardError(
            f"rewards: episode {episode_id} has calls of the role {missing[0]!r} and no reward for it; its roles: "
            f"{', '.join(sorted(roles))}",
            field=f"rewards.{missing[0]}",
        )
    if unknown := sorted(rewards.keys() - roles):
        made = f"its roles: {', '.join(sorted(roles))}" if roles else "its calls named no role"
        raise RewardError(
            f"rewards: no call of episode {episode_id} was of the role {unknown[0]!r}; {made}",
            field=f"rewards.{unknown[0]}",
        )
