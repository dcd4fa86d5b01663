"""Messages between the API process and its worker: msgpack over a socket pair, each decoded into its own type.

    API -> worker   Load, Generate, Cancel, Update, Sync, Shutdown
    worker -> API   Loaded, Streamed, Generated, Progress, Updated, Synced, Failed

A frame is a 4-byte big-endian length and that many bytes of msgpack. Token ids travel as little-endian int32 buffers
and log-probabilities as float32 buffers, so that no token is ever turned into a Python object on its way. Nothing is
pickled. The end of the stream means that the other side is gone.
"""

import struct
from typing import Literal

import msgspec

from ajet_server.worker.versions import Spans

MAX_FRAME = 1 << 30
"""Bytes. A longer frame is a broken stream, not a message."""

HEADER = struct.Struct(">I")


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one call samples. The same names and meanings as in the OpenAI API; `top_k` 0 is off.

    With logits z f[V], biases b f[V] and the set A of ids that may come next (all of them, without a schema), a token
    is drawn from softmax((z + b) / temperature) over A, cut by top-k and top-p; at temperature 0 it is the likeliest in
    A. Log-probabilities are those before the cut: log softmax((z + b) / temperature) over A; at temperature 0,
    log softmax(z + b) over A.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    top_logprobs: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    json_schema: str | None = None
    """JSON schema, as JSON, that the completion's text is held to; `{}` is any JSON object."""


class Load(msgspec.Struct, tag=True, frozen=True):
    """Load the job's model and, if there is one, the newest checkpoint."""

    job: bytes
    """The job as JSON."""
    checkpoints_dir: str
    """Folder of checkpoints: the newest is continued from, new ones are written into it."""


class Generate(msgspec.Struct, tag=True, frozen=True):
    request_id: str
    prompt_ids: bytes
    sampling: Sampling
    stream: bool = False
    """Whether its tokens are told as they are sampled, and not only at the end."""
    weights: int | None = None
    """The weight version that samples it; None is the one that is being trained."""
    evaluation: bool = False
    """Calls that are to be trained go first."""


class Cancel(msgspec.Struct, tag=True, frozen=True):
    request_id: str


class CallRow(msgspec.Struct, frozen=True):
    """One captured call of a batch."""

    call_id: str
    episode_id: str
    prompt_ids: bytes
    completion_ids: bytes
    logprobs: bytes
    temperature: float
    weight_version: int
    """The oldest that sampled one of its tokens."""
    reward: float | None = None
    """What this call earned by itself. Given for every call of a batch or for none."""
    advantage: float | None = None
    """Taken as it is instead of one made from rewards. Given for every call of a batch or for none."""
    version_spans: Spans = ()
    role: str | None = None
    """Which of the episode's `rewards` is its own; None where these are empty."""


class EpisodeRow(msgspec.Struct, frozen=True):
    """One episode of a batch with its calls in the order they were made."""

    episode_id: str
    group_id: str
    reward: float
    calls: list[CallRow]
    rewards: dict[str, float] = {}
    """By role; `reward` is not used then."""


class Update(msgspec.Struct, tag=True, frozen=True):
    """Do one optimizer step on a batch and checkpoint it as step `step`."""

    batch_id: str
    step: int
    episodes: list[EpisodeRow]
    keep: list[int] = []
    """Versions whose checkpoints stay, however old they are."""


class Sync(msgspec.Struct, tag=True, frozen=True):
    """Put the trainer's weights into the engine as `weight_version`, and probe both."""

    weight_version: int
    keep_calls: bool = False
    """Running calls are paused and go on with the new weights; without it there must be none."""


class Shutdown(msgspec.Struct, tag=True, frozen=True):
    """Finish what is being written, then exit."""


ToWorker = Load | Generate | Cancel | Update | Sync | Shutdown


class Loaded(msgspec.Struct, tag=True, frozen=True):
    max_model_len: int
    vocab_size: int
    device: str
    dtype: str
    attention: str
    """The attention backend that the trainer uses."""
    step: int
    """Optimizer steps in the checkpoint that was loaded; 0 without one."""
    last_batch_id: str | None
    """The batch of that step, so that a step that was checkpointed but not recorded is recognised."""
    last_report: bytes | None
    """Its `StepReport` as JSON."""


class Sampled(msgspec.Struct, frozen=True):
    """The next tokens of a call. All of a call put together are the `Generated` that follows them."""

    request_id: str
    start: int
    """Tokens of the completion before these."""
    token_ids: bytes
    logprobs: bytes
    top_logprobs: list[list[tuple[int, float]]]


class Streamed(msgspec.Struct, tag=True, frozen=True):
    """What one step of the engine sampled for all calls that are streamed.

    One message and not one per call: for 64 calls, that takes a tenth of the time on both sides.
    """

    calls: list[Sampled]


class Generated(msgspec.Struct, tag=True, frozen=True):
    request_id: str
    token_ids: bytes
    logprobs: bytes
    finish_reason: Literal["stop", "length"]
    stop: str | None
    weight_version: int
    """The oldest that sampled one of its tokens."""
    cached_tokens: int
    top_logprobs: list[list[tuple[int, float]]]
    version_spans: Spans = ()


class Progress(msgspec.Struct, tag=True, frozen=True):
    """Sign of life during load, update and sync."""

    stage: str
    done: int
    total: int


class Updated(msgspec.Struct, tag=True, frozen=True):
    """The step is checkpointed."""

    report: bytes
    """A `StepReport` as JSON."""
    checkpoint: str


class Synced(msgspec.Struct, tag=True, frozen=True):
    weight_version: int
    probe_error: float
    probe_tolerance: float
    seconds: float
    calls_continued: int = 0
    """Calls that were paused and go on with the new weights."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The message could not be served. With a `request_id` only that call failed, else the worker gives up."""

    reason: str
    request_id: str | None = None
    code: str = "engine_failed"
    """Code of an error in `ajet_core.errors`."""
    field: str | None = None
    """The field to blame, if one is."""


FromWorker = Loaded | Streamed | Generated | Progress | Updated | Synced | Failed

_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_from_worker = msgspec.msgpack.Decoder(FromWorker)


class FrameError(Exception):
    """The stream is broken."""


def take_frames(buffer: bytearray) -> list[bytes]:
    """Takes the bodies of all whole frames off the beginning of a buffer. Raises `FrameError` for one too long."""
    bodies: list[bytes] = []
    begin = 0
    while len(buffer) >= begin + HEADER.size:
        (length,) = HEADER.unpack_from(buffer, begin)
        if length > MAX_FRAME:
            raise FrameError(f"a frame of {length} bytes")
        end = begin + HEADER.size + length
        if len(buffer) < end:
            break
        bodies.append(bytes(buffer[begin + HEADER.size : end]))
        begin = end
    del buffer[:begin]
    return bodies


def frame(message: ToWorker | FromWorker) -> bytes:
    """Encodes one message with its length in front."""
    body = _encoder.encode(message)
    return HEADER.pack(len(body)) + body


def read_to_worker(body: bytes | bytearray | memoryview) -> ToWorker:
    """Decodes what the API process sent. Raises `msgspec.ValidationError` for anything else."""
    return _to_worker.decode(body)


def read_from_worker(body: bytes | bytearray | memoryview) -> FromWorker:
    """Decodes what the worker sent. Raises `msgspec.ValidationError` for anything else."""
    return _from_worker.decode(body)
