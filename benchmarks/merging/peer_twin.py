"""Our own readable twin in Python, on the same int32 calls; the benchmark sets `AJET_MERGE_PURE=1`."""

from cases import Captured
from serve import Merger, answers, serve

from ajet_merge import Call, Forest, backend, merge


def prepare(calls: list[Captured]) -> list[Call]:
    return [Call(call.prompt, call.completion, call.logprobs) for call in calls]


def count(forest: Forest) -> tuple[int, int]:
    return len(forest.timelines()), forest.num_tokens


if backend != "python":
    raise RuntimeError("this is the compiled core; set AJET_MERGE_PURE=1")
serve({"twin": Merger(prepare, merge, count)}, answers())
