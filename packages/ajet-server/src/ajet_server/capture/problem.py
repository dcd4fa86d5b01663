"""One thing that is wrong with a ledger or its checkpoints."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong.

    Attributes:
        kind: of what it is wrong with.
        id: which one: of the episode, the call, the batch or the checkpoint.
        message: a sentence whose subject that is.
    """

    kind: Literal["file", "episode", "call", "batch", "checkpoint"]
    id: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id} {self.message}"
