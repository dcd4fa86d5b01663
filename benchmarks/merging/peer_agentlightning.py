# /// script
# requires-python = ">=3.11"
# dependencies = ["agentlightning==0.3.0", "verl==0.9.1", "torch==2.13.0", "numpy"]
# [tool.uv]
# exclude-newer = "2026-11-28T00:00:00Z"
# exclude-dependencies = [
#     "litellm", "agentops", "gpustat", "graphviz", "gunicorn", "aiologic", "portpicker", "uvicorn-worker", "openai",
#     "wandb", "tensorboard", "pylatexenc", "pybind11", "accelerate", "datasets", "peft", "setproctitle", "fastapi",
#     "uvicorn", "opentelemetry-exporter-otlp", "torchdata",
# ]
# ///
# pyright: reportMissingImports=false
"""agent-lightning: `AgentModeDaemon.get_train_data_batch` with its trajectory-level aggregation.

It yields linear rows: the last row grows while the next call begins with it, else a new row is begun; and then the
padded batch for verl, which is part of the same function and so of the time. Limits are set so that nothing is cut off.

The function is the package's own. Its module also imports the package's proxy and server, which the function never
touches and which take ten seconds to load; empty stand-ins take their place.
"""

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from cases import Captured
from serve import Merger, answers, by_episode, serve

channel = answers()


def _bare_package(name: str, locations: list[str]) -> ModuleType:
    """A package whose modules can be imported without running its `__init__`."""
    package = ModuleType(name)
    package.__path__ = locations
    sys.modules[name] = package
    return package


def _stand_in(name: str, *attributes: str) -> None:
    module = ModuleType(name)
    for attribute in attributes:
        setattr(module, attribute, object)
    sys.modules[name] = module


_spec = find_spec("agentlightning")
if _spec is None or _spec.submodule_search_locations is None:
    raise ImportError("agentlightning is not installed; run this file with `uv run --script`")
_folder = next(iter(_spec.submodule_search_locations))
_root: Any = _bare_package("agentlightning", [_folder])
_bare_package("agentlightning.verl", [f"{_folder}/verl"])
_stand_in("agentlightning.llm_proxy", "LLMProxy", "ModelConfig")
_stand_in("agentlightning.adapter", "TraceAdapter")
_stand_in("agentlightning.adapter.triplet", "TracerTraceToTriplet", "TraceToTripletBase")
_stand_in("agentlightning.store", "LightningStore")
_stand_in("agentlightning.store.base", "LightningStore")

import torch  # noqa: E402
from agentlightning import types  # noqa: E402

_root.LLM, _root.NamedResources, _root.RolloutLegacy = types.LLM, types.NamedResources, types.RolloutLegacy
_root.AgentLightningServer = object

from agentlightning.verl.daemon import AgentModeDaemon  # noqa: E402


def _triplet(call: Captured) -> Any:
    prompt, response = {"token_ids": call.prompt.tolist()}, {"token_ids": call.completion.tolist()}
    return types.Triplet(prompt=prompt, response=response)


def _row_shapes(episode: list[Captured]) -> list[tuple[int, int]]:
    """(length of the first prompt, length of the rest) of each row it will make: the limits that cut nothing off."""
    shapes: list[tuple[int, int]] = []
    row: list[int] = []
    for call in episode:
        sequence = [*call.prompt.tolist(), *call.completion.tolist()]
        extends = bool(row) and sequence[: len(row)] == row
        first = shapes.pop()[0] if extends else call.prompt.size
        shapes.append((first, len(sequence) - first))
        row = sequence
    return shapes


def prepare(calls: list[Captured]) -> Any:
    episodes = by_episode(calls)
    daemon = AgentModeDaemon.__new__(AgentModeDaemon)  # its __init__ starts servers
    daemon.is_train, daemon.tokenizer, daemon.pad_token_id, daemon._use_mrope = True, None, 0, False
    daemon.reward_fillna_value, daemon.trace_aggregator = 0.0, {"level": "trajectory"}
    daemon._total_tasks_queued = len(episodes)
    daemon._task_id_to_original_sample = {str(key): {"data_id": str(key)} for key in episodes}
    daemon._completed_rollouts_v0 = {
        str(key): types.RolloutLegacy(rollout_id=str(key), final_reward=1.0, triplets=[_triplet(c) for c in episode])
        for key, episode in episodes.items()
    }
    shapes = [shape for episode in episodes.values() for shape in _row_shapes(episode)]
    return daemon, max(first for first, _ in shapes), max(rest for _, rest in shapes)


def merge(given: Any) -> Any:
    daemon, max_prompt, max_response = given
    return daemon.get_train_data_batch(max_prompt, max_response, torch.device("cpu"), global_steps=0)[0]


def count(data: Any) -> tuple[int, int]:
    mask = data.batch["attention_mask"]
    return mask.shape[0], int(mask.sum())


serve({"agentlightning": Merger(prepare, merge, count)}, channel)
