"""Options by which a command finds the server that it talks to, and is let in."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from ajet_cli.spawn import read_token, read_url
from ajet_client import Swarm
from ajet_core.errors import ConfigError

FILE = click.Path(path_type=Path, dir_okay=False)

data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".ajet"),
    show_default=True,
    envvar="AJET_DATA_DIR",
    help="Folder of the ledger, the checkpoints and the keys.",
)
_TRUST = (
    click.option(
        "--ca", "ca_file", type=FILE, envvar="AJET_CA", help="Authorities that may vouch for an HTTPS server (PEM)."
    ),
    click.option(
        "--client-cert",
        type=(FILE, FILE),
        default=None,
        metavar="CERT KEY",
        help="Certificate and key to show to a server that was started with --tls-client-ca (PEM).",
    ),
)
_OPTIONS = (
    data_dir_option,
    click.option("--url", default=None, help="The server's URL; by default the one in the data folder."),
    click.option(
        "--token", default=None, envvar="AJET_TOKEN", help="Admin token; by default the one in the data folder, if any."
    ),
    *_TRUST,
)


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the server is, and what it is shown."""

    url: str
    token: str | None
    ca_file: Path | None
    client_cert: tuple[Path, Path] | None

    def swarm(self, timeout: float = 60.0) -> Swarm:
        """Returns a client of it."""
        return Swarm(self.url, token=self.token, timeout=timeout, ca_file=self.ca_file, client_cert=self.client_cert)


def trust_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `ca_file` and `client_cert`, for a server that is named otherwise than by `connects`."""
    for option in reversed(_TRUST):
        command = option(command)
    return command


def connects(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options, and a `Connection` as its first argument."""

    @wraps(command)
    def connected(
        data_dir: Path,
        url: str | None,
        token: str | None,
        ca_file: Path | None,
        client_cert: tuple[Path, Path] | None,
        **others: Any,
    ) -> None:
        found = url or _url_of(data_dir)
        command(Connection(found, token or read_token(data_dir), ca_file, client_cert), **others)

    for option in reversed(_OPTIONS):
        connected = option(connected)
    return connected


def _url_of(data_dir: Path) -> str:
    found = read_url(data_dir)
    if found is None:
        raise ConfigError(f"no server runs in {data_dir}; give its --url, or its --data-dir", field="url")
    return found
