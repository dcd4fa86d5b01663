"""Steps: what to do with several servers, without doing it, so that `together` decides once for threads and asyncio."""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ajet_client.plans import Plan

T = TypeVar("T")


class Step(NamedTuple):
    """A plan, and the server to run it on."""

    server: int
    plan: Plan[Any]
    stoppable: bool = False
    """Whether it may be cut when a run is stopped."""


Steps: TypeAlias = Generator[Step, Any, T]
"""Whoever runs it sends the result of each step's plan, or throws what it raised."""
