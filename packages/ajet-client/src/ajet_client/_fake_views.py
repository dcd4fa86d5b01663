"""The larger answers of `ajet_client.testing.FakeServer`."""

from typing import Any

from ajet_core.events import EngineState
from ajet_core.ids import new_call_id
from ajet_core.status import PoolView, StatusView

CAUSE = "a fake server"


def pool_view(open_episodes: int, clients_ready: list[str]) -> PoolView:
    """A pool of which no batch is ever made."""
    return PoolView(
        open_episodes=open_episodes,
        finished_episodes=0,
        stale_episodes=0,
        groups_complete=0,
        groups_open=0,
        ready=False,
        waiting_for="nothing: this server does not train",
        clients_ready=clients_ready,
    )


def status_view(state: EngineState, pool: PoolView) -> StatusView:
    """One look at the server."""
    return StatusView(
        name="fake",
        state=state,
        cause=CAUSE,
        why="nothing trains: this is a fake server",
        model="fake",
        weight_version=0,
        step=0,
        pool=pool,
        last_step=None,
        worker_pid=None,
        worker_restarts=0,
        requests_running=0,
        requests_waiting=0,
        uptime_s=0.0,
        data_dir="",
    )


def completion(text: str) -> dict[str, Any]:
    """A whole answer of Chat Completions."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": new_call_id(), "object": "chat.completion", "created": 0, "model": "fake"}
    return {**head, "choices": [choice], "usage": usage}
