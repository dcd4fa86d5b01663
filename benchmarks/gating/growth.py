"""What grows: the cost of a call with its conversation, and memory with open episodes."""

from collections.abc import Mapping
from pathlib import Path
from statistics import median

from .load import Script, Target, close_all, connect_all, run
from .ours import Ours
from .texts import bodies

TURNS = (1, 8, 32, 128)
_AT_ONCE, _WARM_UP_EPISODES = 50, 200
_LIMIT_S = 180.0


def turn_ms(targets: Mapping[str, Target], answer: str, conversations: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a call at some turns of a conversation, median over several, by the name of the target.

    Args:
        targets: with `conversations + 1` clients each; the first conversation warms up.
        answer: what the engine says every time.
        conversations: how many.
    """
    script = Script(bodies(max(TURNS), answer), answer.encode())
    taken: dict[str, list[list[int]]] = {name: [] for name in targets}
    for place in range(conversations + 1):
        for name, target in targets.items():
            taken[name].append(_converse(target, [place], script))
    return {
        str(turn): {name: median(times[turn - 1] for times in taken[name][1:]) / 1e6 for name in targets}
        for turn in TURNS
    }


def bytes_per_open_episode(folder: Path, script: Script, episodes: int) -> float:
    """How much the API process grows with each open episode that has made four calls.

    Others are opened before, so that what every server needs once does not count.
    """
    with Ours(folder) as server:
        _fill(server, script, _WARM_UP_EPISODES)
        before = server.resident_bytes()
        _fill(server, script, episodes)
        return (server.resident_bytes() - before) / episodes


def _fill(server: Ours, script: Script, episodes: int) -> None:
    target = server.open(episodes)
    for first in range(0, episodes, _AT_ONCE):
        _converse(target, range(first, min(first + _AT_ONCE, episodes)), script)


def _converse(target: Target, places: range | list[int], script: Script) -> list[int]:
    """One conversation of each of these clients; returns the latencies of its calls in ns."""
    clients = connect_all(target, places, script)
    calls = len(script.bodies)
    try:
        return run(target, clients, script.answer, lambda client: client.sent < calls, _LIMIT_S).latencies
    finally:
        close_all(clients)
