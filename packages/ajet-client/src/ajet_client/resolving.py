"""Brings decisions to episodes whose client did not live to do so."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ajet_client.api import Api
from ajet_client.steps import Step, Steps
from ajet_core.errors import NotFoundError
from ajet_core.wire import FollowedUnion, UnionState


@dataclass
class Resolution:
    """What became of the episodes that waited for a decision.

    Attributes:
        committed: ids of unions whose episodes were finished.
        aborted: ids of unions whose episodes were aborted.
        undecided: unions without a decision yet, or of a server that was not asked. Their episodes wait on.
    """

    committed: list[str] = field(default_factory=list[str])
    aborted: list[str] = field(default_factory=list[str])
    undecided: list[FollowedUnion] = field(default_factory=list[FollowedUnion])

    def __str__(self) -> str:
        text = f"{len(self.committed)} committed, {len(self.aborted)} aborted, {len(self.undecided)} undecided"
        waits = "; ".join(f"{union.union_id} waits for {union.decider}" for union in self.undecided)
        return f"{text} ({waits})" if waits else text


def resolving(apis: Sequence[Api]) -> Steps[Resolution]:
    """Brings each server the decisions that its episodes wait for, as far as these servers made them."""
    done = Resolution()
    for number, api in enumerate(apis):
        for union in (yield Step(number, api.followed())):
            yield from _resolve(number, union, apis, done)
    return done


def _resolve(number: int, union: FollowedUnion, apis: Sequence[Api], done: Resolution) -> Steps[None]:
    for other, api in enumerate(apis):
        try:
            view = yield Step(other, api.union(union.union_id))
        except NotFoundError:
            continue
        if view.secret is not None:
            yield Step(number, apis[number].decide(union.union_id, view.secret))
            (done.committed if view.state is UnionState.COMMITTED else done.aborted).append(union.union_id)
            return
    done.undecided.append(union)
