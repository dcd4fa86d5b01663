"""Why nothing trains: one sentence for people."""

from ajet_core.events import EngineState
from ajet_core.status import PoolView


def why(state: EngineState, cause: str, pool: PoolView) -> str:
    """Returns what trains now, or why nothing does, and which episodes are in doubt.

    Args:
        state: of the engine.
        cause: why it is in this state.
        pool: what waits to be trained.
    """
    return _state(state, cause, pool) + _doubts(pool)


def _state(state: EngineState, cause: str, pool: PoolView) -> str:
    match state:
        case EngineState.ROLLING:
            return _rolling(pool)
        case EngineState.DRAINING:
            return f"a batch is complete; the update waits for {_episodes(pool.open_episodes)} to finish"
        case EngineState.UPDATING:
            return f"it trains: {cause}"
        case _:
            return f"nothing trains: the engine is {state} ({cause})"


def _rolling(pool: PoolView) -> str:
    if pool.ready:
        return "a batch is complete; the update is about to begin"
    return f"nothing trains: {pool.waiting_for}; {_episodes(pool.open_episodes)}"


def _episodes(count: int) -> str:
    return {0: "no open episode", 1: "1 open episode"}.get(count, f"{count} open episodes")


def _doubts(pool: PoolView) -> str:
    if not pool.in_doubt:
        return ""
    first, count = pool.in_doubt[0], sum(len(union.episode_ids) for union in pool.in_doubt)
    more = f" and {len(pool.in_doubt) - 1} more" if len(pool.in_doubt) > 1 else ""
    return (
        f"; in doubt: {_episodes(count)} of union {first.union_id}{more}, which {first.decider} decides "
        "(`ajet episodes resolve` with the URLs of both servers)"
    )
