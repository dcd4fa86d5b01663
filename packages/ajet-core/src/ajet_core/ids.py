"""Identifiers. Each says what it names by its prefix, and all but those of calls are unguessable."""

import hashlib
import secrets
import time
from itertools import count

_RANDOM_BYTES = 12
_NUMBER_BITS = 44
_numbers = count(secrets.randbits(_NUMBER_BITS))


def _new(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(_RANDOM_BYTES)}"


def new_episode_id() -> str:
    """Returns the id of one episode, `ep_` and 24 hexadecimal digits."""
    return _new("ep")


def new_attempt_id() -> str:
    """Returns the id of one attempt at an episode, `att_…`; a refilled slot is a new attempt."""
    return _new("att")


def new_group_id() -> str:
    """Returns the id of one group: the rollouts of one task that are compared with each other, `grp_…`."""
    return _new("grp")


def new_call_id() -> str:
    """Returns the id of one LLM call, `call_…`.

    It begins with the time, in microseconds since the epoch, so that those of new calls are next to each other in an
    index, and need not be unguessable: it opens nothing.
    """
    number = next(_numbers) % (1 << _NUMBER_BITS)
    return f"call_{time.time_ns() // 1000:013x}{number:011x}"


def new_batch_id() -> str:
    """Returns the id of one training batch, `batch_…`."""
    return _new("batch")


def new_union_id() -> str:
    """Returns the id of one union: episodes that are finished together or not at all, `un_…`."""
    return _new("un")


def new_secret() -> str:
    """Returns a secret that proves a decision: 64 hexadecimal digits."""
    return secrets.token_hex(32)


def digest_secret(secret: str) -> str:
    """Returns the SHA-256 of a secret, hexadecimal: who knows it believes whoever brings the secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def new_request_id() -> str:
    """Returns a client-made id that makes a control request idempotent, `req_…`."""
    return _new("req")


def new_client_id() -> str:
    """Returns the id of one client process, `cli_…`."""
    return _new("cli")
