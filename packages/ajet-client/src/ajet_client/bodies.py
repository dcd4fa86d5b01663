"""Bodies of the control plane: made from what a user gives, and read from what a server answers."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from ajet_client.plans import Reply
from ajet_core.episode import EpisodeKind
from ajet_core.errors import AjetError, RequestError, RewardError
from ajet_core.wire import FinishEpisode

_Model = TypeVar("_Model", bound=BaseModel)


def build(model: type[_Model], **fields: object) -> _Model:
    """Makes a body. Raises `RequestError` with the field that is wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise RequestError(_sentence(error), field=field) from None


def read(model: type[_Model], reply: Reply) -> _Model:
    """Reads an answer. Raises `AjetError` if it is something else."""
    try:
        return model.model_validate_json(reply.body)
    except ValidationError as error:
        raise AjetError(
            f"the answer is no {model.__name__} ({_sentence(error)}); is this the URL of an ajet server, "
            "and of the same version?"
        ) from error


def dump(body: BaseModel) -> bytes:
    """Returns a body as it is sent."""
    return body.model_dump_json().encode()


def finish_body(reward: float, metrics: Mapping[str, float]) -> FinishEpisode:
    """Returns the report. Raises `RewardError` for metrics that cannot be sent (more than 100, an empty name)."""
    try:
        return FinishEpisode(reward=reward, metrics=dict(metrics))
    except ValidationError as error:
        raise RewardError(_sentence(error), field="metrics") from None


def kind_of(kind: str) -> EpisodeKind:
    """Returns the kind of that name. Raises `RequestError` if there is none."""
    try:
        return EpisodeKind(kind)
    except ValueError:
        raise RequestError(f"kind must be 'train' or 'eval', got {kind!r}", field="kind") from None


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    return f"{path}: {first['msg']}" if path else first["msg"]
