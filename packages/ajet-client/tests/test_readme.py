import re
from pathlib import Path
from typing import Any

from ajet_client import Swarm
from ajet_client.testing import FakeServer
from ajet_core.config import Job, ModelConfig

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, Any] = {}
    swarms: list[Swarm] = []  # the examples leave theirs to the end of the process
    with FakeServer(reply=lambda messages: "42").serve() as server:
        server.job = Job(model=ModelConfig(path="m"))
        for block in blocks:
            exec(block.replace("http://127.0.0.1:8700", server.url), names)
            swarms.append(names["swarm"])
        for swarm in swarms:
            swarm.close()
    assert len(server.rewards) == 1 + 1 + 4 * 8 + 8
    assert set(server.rewards) == {1.0}
    assert server.episodes[0].metrics == {"length": 2.0}
    first, second = server.episodes[1].calls
    assert second["messages"][0] == first["messages"][0]
    assert (second["messages"][1]["role"], second["messages"][1]["content"]) == ("assistant", "42")
