"""Why nothing trains: one sentence for people."""

from ajet_core.events import EngineState
from ajet_core.wire import PoolView


def why(state: EngineState, cause: str, pool: PoolView) -> str:
    """Returns what trains now, or why nothing does.

    Args:
        state: of the engine.
        cause: why it is in this state.
        pool: what waits to be trained.
    """
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
