"""Random identifiers. Each is unguessable and says what it names by its prefix."""

import secrets

_RANDOM_BYTES = 12


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
    """Returns the id of one LLM call, `call_…`."""
    return _new("call")


def new_batch_id() -> str:
    """Returns the id of one training batch, `batch_…`."""
    return _new("batch")


def new_request_id() -> str:
    """Returns a client-made id that makes a control request idempotent, `req_…`."""
    return _new("req")


def new_client_id() -> str:
    """Returns the id of one client process, `cli_…`."""
    return _new("cli")
