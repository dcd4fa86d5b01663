"""What the peers' scripts share; they run in environments that have nothing but the peer."""

import argparse
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TextIO


def read_arguments() -> tuple[TextIO, argparse.Namespace]:
    """A channel to the benchmark, and what it asks for; from now on, what packages print goes to stderr."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", required=True, help="URL of the engine")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--folder", required=True, help="the model's folder")
    parser.add_argument("--clients", type=int, required=True)
    arguments = parser.parse_args()
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return channel, arguments


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ready(channel: TextIO, servers: Mapping[str, tuple[int, Sequence[tuple[str, str]]]]) -> None:
    """Tells where each server listens, now or in a while, with a path and a key for each client."""
    print(json.dumps(servers), file=channel)
