"""The tree of errors.

    AjetError
    ├── ConfigError            400  a job that cannot be: the field, its value, what would be right
    ├── RequestError           400  a request that cannot be served as it is
    │   ├── RewardError        400  a reward that is no finite number
    │   └── PromptTooLongError 400  prompt and completion do not fit the model
    ├── KeyRefusedError        401  no, wrong or missing key
    ├── ForbiddenError         403  a valid key used for what it does not allow
    │   └── BudgetError        403  the episode has used up its calls or tokens
    ├── NotFoundError          404  no such episode, model or route
    ├── ConflictError          409  the state does not allow it
    ├── EpisodeClosedError     410  the episode is finished, aborted or expired
    ├── UnavailableError       503  not now; `retry_after_s` says when to try again
    ├── StorageError           500  the data folder cannot be used; nothing was written
    │   └── DiskFullError      503  the disk has no room; nothing was written, and it goes on once there is some
    └── EngineFailedError      500  the worker failed for the reason given

Every error carries a machine-readable `code`, the HTTP `status` it travels with and, where one field is to
blame, that field. `to_wire` and `from_wire` carry it across HTTP without losing its class.
"""

from typing import Any, ClassVar


class AjetError(Exception):
    """The root. `str(error)` is a sentence for a person.

    Attributes:
        message: what is wrong, with the value, and what would be right.
        field: dotted name of the field to blame, if one is.
        retry_after_s: seconds after which a retry makes sense; None if a retry cannot help.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, *, field: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class ConfigError(AjetError):
    """A job that contradicts itself or names what does not exist."""

    code = "invalid_config"
    status = 400


class RequestError(AjetError):
    """A request that cannot be served as it is."""

    code = "invalid_request"
    status = 400


class RewardError(RequestError):
    """A reward that is not a finite number."""

    code = "invalid_reward"


class PromptTooLongError(RequestError):
    """Prompt and completion together exceed what the model or the job allows."""

    code = "context_length_exceeded"


class KeyRefusedError(AjetError):
    """The key is missing, unknown or of the wrong kind."""

    code = "invalid_api_key"
    status = 401


class ForbiddenError(AjetError):
    """The key is valid but does not allow this."""

    code = "forbidden"
    status = 403


class BudgetError(ForbiddenError):
    """The episode has used up what it may.

    403 and not 429: SDKs retry a 429, and no retry makes an episode's budget grow.
    """

    code = "episode_budget_exceeded"


class NotFoundError(AjetError):
    """There is no such thing."""

    code = "not_found"
    status = 404


class ConflictError(AjetError):
    """The present state does not allow this."""

    code = "conflict"
    status = 409


class EpisodeClosedError(AjetError):
    """The episode is finished, aborted or expired; its key is worth nothing any more.

    410 and not 409: the OpenAI SDK retries a 409, and no retry opens a closed episode again.
    """

    code = "episode_closed"
    status = 410


class UnavailableError(AjetError):
    """Not now. A retry after `retry_after_s` makes sense."""

    code = "unavailable"
    status = 503


class StorageError(AjetError):
    """The data folder cannot be used: locked by another server, corrupted, or of another job."""

    code = "storage"
    status = 500


class DiskFullError(StorageError):
    """The disk has no room. Nothing was written. `retry_after_s` says when to try again.

    503 and not 507: clients and SDKs of all kinds try again after a 503.
    """

    code = "disk_full"
    status = 503


class EngineFailedError(AjetError):
    """The worker process failed; the message says why."""

    code = "engine_failed"
    status = 500


def _tree(root: type[AjetError]) -> dict[str, type[AjetError]]:
    """Code -> class. A subclass elsewhere that keeps its parent's code is the parent on the wire."""
    found: dict[str, type[AjetError]] = {}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found | {root.code: root}


def to_wire(error: AjetError) -> dict[str, Any]:
    """Returns the JSON body of an error response: `{"error": {code, message, field, retry_after_s}}`."""
    return {
        "error": {
            "code": error.code,
            "message": error.message,
            "field": error.field,
            "retry_after_s": error.retry_after_s,
        }
    }


def from_wire(status: int, body: object) -> AjetError:
    """Rebuilds the error that a response carries; an unknown body becomes a plain `AjetError` that quotes it."""
    inner = body.get("error") if isinstance(body, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("message"), str):
        return AjetError(f"HTTP {status}: {str(body)[:300]}")
    kind = _tree(AjetError).get(str(inner.get("code")), AjetError)
    field, retry = inner.get("field"), inner.get("retry_after_s")
    return kind(
        inner["message"],
        field=field if isinstance(field, str) else None,
        retry_after_s=float(retry) if isinstance(retry, int | float) else None,
    )
