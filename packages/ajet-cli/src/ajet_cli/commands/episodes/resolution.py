"""`ajet episodes resolve`."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from ajet_cli.commands.connection import Connection
from ajet_client import resolve


def collect(servers: Sequence[Connection]) -> dict[str, Any]:
    """Brings the decisions to each other, and returns the object of the `--json` line."""
    with ExitStack() as stack:
        done = resolve(*(stack.enter_context(server.swarm(timeout=10.0)) for server in servers))
    undecided = [union.model_dump(mode="json") for union in done.undecided]
    return {"committed": done.committed, "aborted": done.aborted, "undecided": undecided}


def describe(found: dict[str, Any]) -> str:
    """Returns the same for a person."""
    lines = [
        f"committed  {len(found['committed'])} {' '.join(found['committed'])}".rstrip(),
        f"aborted    {len(found['aborted'])} {' '.join(found['aborted'])}".rstrip(),
        f"undecided  {len(found['undecided'])}",
    ]
    waits = [
        f"  {union['union_id']}: {', '.join(union['episode_ids'])} wait for {union['decider']}"
        for union in found["undecided"]
    ]
    return "\n".join(lines + waits)
