import subprocess
import sys
import textwrap

import pytest

import ajet_client


def test_the_exported_names() -> None:
    assert sorted(ajet_client.__all__) == [
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
    assert all(getattr(ajet_client, name) is not None for name in ajet_client.__all__)
    assert dir(ajet_client) == sorted(ajet_client.__all__)


def test_other_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="no attribute 'swarms'"):
        ajet_client.swarms  # type: ignore[attr-defined]  # noqa: B018


def python(script: str) -> str:
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(script)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_use_loads_nothing_of_the_server() -> None:
    script = """
        import sys
        from ajet_client import Swarm
        from ajet_client.testing import FakeServer
        server = FakeServer()
        Swarm(server.url, transport=server.transport()).run(lambda episode: 1.0, range(3))
        assert server.rewards == [1.0] * 3
        heavy = ("torch", "fastapi", "starlette", "numpy", "transformers", "ajet_server", "ajet_merge")
        print([name for name in heavy if name in sys.modules])
    """
    assert python(script) == "[]\n"


def test_import_loads_what_it_needs_and_no_more() -> None:
    script = """
        import sys
        import ajet_client
        assert not [name for name in sys.modules if name.startswith(("pydantic", "ajet_core"))]
        ajet_client.Swarm
        print([name for name in ("httpx2", "rich", "asyncio", "ajet_core.wire") if name in sys.modules])
    """
    assert python(script) == "[]\n"
