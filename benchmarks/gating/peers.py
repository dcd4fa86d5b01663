"""The engine's process and those of the other gateways, each with its packages in an environment of its own."""

import json
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import Child, ChildError, find_python, script_command

from .load import LoadError, Script, Target, run_for
from .texts import MODEL

_HERE = Path(__file__).parent
_START_S = 900.0  # the first start downloads the packages
_LISTEN_S, _ANSWER_S = 120.0, 30.0

PEERS = {"litellm": None, "verifiers": None, "agentlightning": "3.12"}
"""By name: the Python version that it needs, None where this one will do."""


@contextmanager
def start_engine(folder: Path) -> Generator[Target]:
    """The engine over HTTP."""
    child = Child([sys.executable, str(_HERE / "engine.py"), str(folder)])
    try:
        yield Target("bare", int(child.answer(_ANSWER_S)), [("/v1/chat/completions", "none")])
    finally:
        child.stop()


class Peers:
    """All started together, so that they load their packages before anything is measured; use as a context manager.

    Attributes:
        targets: the gateways that answer, by name; a peer may run several.
        skipped: why the others do not.
    """

    def __init__(self, names: Sequence[str], engine: Target, folder: Path, clients: int) -> None:
        self.targets: dict[str, Target] = {}
        self.skipped: dict[str, str] = {}
        self._children: dict[str, Child] = {}
        arguments = ["--engine", f"http://127.0.0.1:{engine.port}", "--model", MODEL, "--folder", str(folder)]
        for name in names:
            try:
                self._children[name] = Child([*_command(name), *arguments, "--clients", str(clients)])
            except ChildError as error:
                self.skipped[name] = str(error)

    def __enter__(self) -> "Peers":
        return self

    def __exit__(self, *_: Any) -> None:
        for child in self._children.values():
            child.stop()

    def wait_ready(self, script: Script) -> None:
        """Until every gateway has answered a call, or failed to."""
        for name, child in self._children.items():
            try:
                servers = json.loads(child.answer(_START_S))
                targets = [Target(server, port, clients) for server, (port, clients) in servers.items()]
                for target in targets:
                    _wait_for_answer(child, target, script)
                self.targets |= {target.name: target for target in targets}
            except (ChildError, LoadError) as error:
                self.skipped[name] = str(error)


def _command(name: str) -> list[str]:
    version = PEERS[name]
    return script_command(_HERE / f"peer_{name}.py", find_python(version) if version else sys.executable)


def _wait_for_answer(child: Child, target: Target, script: Script) -> None:
    deadline = time.monotonic() + _LISTEN_S
    while True:
        try:
            run_for(target, 1, script, 0.0, _ANSWER_S)
        except ConnectionError as error:  # it does not listen yet, or no longer
            child.check_alive()
            if time.monotonic() > deadline:
                raise LoadError(f"it did not listen within {_LISTEN_S:.0f} s") from error
            time.sleep(0.1)
        else:
            return
