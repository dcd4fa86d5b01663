import pytest

from ajet_core.events import EngineState
from ajet_core.status import PoolView
from ajet_core.wire import FollowedUnion
from ajet_server.observe.why import why


@pytest.mark.parametrize(
    ("state", "ready", "count", "said"),
    [
        ("rolling", False, 0, "nothing trains: 0 of 4 groups complete; no open episode"),
        ("rolling", False, 3, "nothing trains: 0 of 4 groups complete; 3 open episodes"),
        ("rolling", True, 3, "a batch is complete; the update is about to begin"),
        ("draining", True, 1, "a batch is complete; the update waits for 1 open episode to finish"),
        ("updating", True, 0, "it trains: the cause"),
        ("syncing", False, 0, "nothing trains: the engine is syncing (the cause)"),
        ("failed", False, 0, "nothing trains: the engine is failed (the cause)"),
    ],
)
def test_one_sentence(state: str, ready: bool, count: int, said: str) -> None:
    pool = PoolView(
        open_episodes=count,
        finished_episodes=0,
        stale_episodes=0,
        groups_complete=0,
        groups_open=0,
        ready=ready,
        waiting_for="0 of 4 groups complete",
    )
    assert why(EngineState(state), "the cause", pool) == said


def test_what_is_in_doubt_is_said() -> None:
    unions = [
        FollowedUnion(union_id=name, decider="http://a", episode_ids=["ep_1"], prepared_at=0)
        for name in ("un_1", "un_2")
    ]
    pool = PoolView(
        open_episodes=2,
        finished_episodes=0,
        stale_episodes=0,
        groups_complete=0,
        groups_open=0,
        ready=False,
        waiting_for="0 of 4 groups complete",
        in_doubt=unions,
    )
    said = why(EngineState.ROLLING, "the cause", pool)
    assert "; in doubt: 2 open episodes of union un_1 and 1 more, which http://a decides" in said
    assert "ajet episodes resolve" in said
