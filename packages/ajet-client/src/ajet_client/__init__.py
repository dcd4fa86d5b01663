"""Run any agent against an ajet swarm server and report its reward.

    swarm         Swarm: one server; episodes, control, events, `run`
    async_swarm   AsyncSwarm: the same for asyncio
    teams         together, resolve: several servers as one         async_teams   for asyncio
    team_base     the episodes of several servers: finished together or not at all
    seats         opens all of them or none         resolving     brings decisions to those left behind
    servers, steps                                  what both kinds of teams share
    episode       an open episode: base URL and key for the agent, `reward`, `abort`
    roles         a role of an episode in which the model plays several
    tasks         Task, read_jsonl, repeat, shuffle
    report        EpisodeRecord, RunReport, and what a run is asked for
    runner        agents in threads           async_runner  agents in tasks
    workers       the pool of threads         attempts      the attempts at one slot of a run
    progress      the progress bar
    agents        what a run runs: a function, or one of
    agentfile     a file that may change      source        its source files: what was read, whether it changed
    isolation     a process of its own        isolated      what runs in it
    command       a program in any language   outcome       the reward as it writes it
    rewardbox     where it may post it        environment   the variables that it finds
    child         a program that runs, and how it is ended
    api           the control plane's calls   feed          the stream of events
    retry         when to try again, for how long, what to say at the end
    leases        heartbeats of open episodes
    plans         requests and pauses as data, so that sync and async share all of the above
    transport     the only file that knows HTTP
    clock         time and chance, replaceable in tests
    testing       FakeServer and FakeClock, for tests of agents without a server

Errors are those of `ajet_core.errors`. Names are loaded when they are first used: importing the package costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet_client.async_swarm import AsyncSwarm
    from ajet_client.async_teams import AsyncTeam
    from ajet_client.command import CommandAgent
    from ajet_client.episode import AsyncEpisode, Episode
    from ajet_client.report import EpisodeRecord, RunReport
    from ajet_client.roles import Role
    from ajet_client.swarm import Swarm
    from ajet_client.tasks import Task, read_jsonl, repeat, shuffle
    from ajet_client.teams import Team, resolve, together

__version__ = "0.1.0"

__all__ = [
    "AsyncEpisode",
    "AsyncSwarm",
    "AsyncTeam",
    "CommandAgent",
    "Episode",
    "EpisodeRecord",
    "Role",
    "RunReport",
    "Swarm",
    "Task",
    "Team",
    "__version__",
    "read_jsonl",
    "repeat",
    "resolve",
    "shuffle",
    "together",
]

_HOME = {
    "AsyncEpisode": "episode",
    "AsyncSwarm": "async_swarm",
    "AsyncTeam": "async_teams",
    "CommandAgent": "command",
    "Episode": "episode",
    "EpisodeRecord": "report",
    "Role": "roles",
    "RunReport": "report",
    "Swarm": "swarm",
    "Task": "tasks",
    "Team": "teams",
    "read_jsonl": "tasks",
    "repeat": "tasks",
    "resolve": "teams",
    "shuffle": "tasks",
    "together": "teams",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
