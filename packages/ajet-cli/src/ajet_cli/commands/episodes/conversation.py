"""`ajet episodes show`: one episode, call by call."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_cli.commands.datafolder import age
from ajet_cli.commands.episodes.listing import versions
from ajet_cli.commands.merge import drawing, explanation
from ajet_cli.output import printable

if TYPE_CHECKING:
    from ajet_merge import Explanation
    from ajet_server.capture.browse import EpisodeLine
    from ajet_server.capture.calls import WholeCall

_SHOWN_CHARACTERS = 400
_JSON_FIELDS = ("messages", "tools", "response", "sampling", "labels")
_SIZES = ("prompt_ids", "completion_ids", "logprobs", "request_digest")
_DROPPED = "what its calls held was dropped {} ago (retention)"


def explain(line: "EpisodeLine", calls: "Sequence[WholeCall]", data_dir: Path, tokenizer: Path | None) -> "Explanation":
    """Says why paths part; with the tokenizer of the job's model where no other is given and that one is there."""
    from ajet_server.capture.export import record_of

    where = tokenizer or _tokenizer_of_job(data_dir)
    return explanation.explain(
        [record_of(call, line) for call in calls], explanation.open_tokenizer(where) if where else None
    )


def _tokenizer_of_job(data_dir: Path) -> Path | None:
    from ajet_server.datadir import stored_job

    job = stored_job(data_dir)
    file = Path(job.model.path) / "tokenizer.json" if job else None
    return file if file and file.is_file() else None


def collect(line: "EpisodeLine", calls: "Sequence[WholeCall]", found: "Explanation | None") -> dict[str, Any]:
    """Returns the object of the `--json` line. `messages` of a call are those beyond its parent's and the answer."""
    return {
        "episode": asdict(line),
        "forest": _forest(line, calls) if calls else None,
        "calls": [_call(call) for call in calls],
        "departures": found.as_dicts() if found else None,
    }


def _forest(line: "EpisodeLine", calls: "Sequence[WholeCall]") -> dict[str, Any]:
    from ajet_merge import merge
    from ajet_server.capture.export import record_of

    return asdict(merge([record_of(call, line).call for call in calls]).stats)


def _call(call: "WholeCall") -> dict[str, Any]:
    record = call.record
    import msgspec  # comes with the server

    values = {name: value for name, value in msgspec.structs.asdict(record).items() if name not in _SIZES}
    parsed = {name: json.loads(values[name]) for name in _JSON_FIELDS}
    parsed["version_spans"] = json.loads(values["version_spans"] or "null")
    sizes = {"new_prompt_tokens": len(record.prompt_ids) // 4, "completion_tokens": len(record.completion_ids) // 4}
    return values | parsed | sizes | {"logprobs": _logprobs(record.logprobs)}


def _logprobs(data: bytes) -> dict[str, float] | None:
    """Mean and least, in nats; None if nothing was sampled."""
    import numpy as np

    logprobs = np.frombuffer(data, "<f4").astype(np.float64)
    return {"mean": float(logprobs.mean()), "min": float(logprobs.min())} if logprobs.size else None


def describe(found: dict[str, Any], explained: "Explanation | None", *, full: bool) -> str:
    """Returns the same for a person."""
    calls: list[dict[str, Any]] = found["calls"]
    numbers = {call["id"]: number for number, call in enumerate(calls)}
    talk = [_describe_call(call, numbers, full=full) for call in calls]
    why = f"\n{explanation.describe(explained, None)}" if explained else None
    return drawing.lines(_head(found["episode"]), _tokens(found), *talk, why)


def _head(line: dict[str, Any]) -> str:
    reward = "" if line["reward"] is None else f", reward {line['reward']:g}{_by_role(line['rewards'])}"
    reason = f": {line['reason']}" if line["reason"] else ""
    metrics = "".join(f"   {name} {value:g}" for name, value in line["metrics"].items())
    source = f"   source {line['source']}" if line["source"] else ""
    closed = f", closed {age(line['closed_at'])} ago" if line["closed_at"] is not None else ""
    batch = f"   batch {line['batch_id']} (step {line['step']})" if line["batch_id"] else ""
    return printable(
        f"episode {line['episode_id']}   {line['kind']}, {line['status']}{reason}{reward}{metrics}\n"
        f"task {line['task_id']}{source}   group {line['group_id']}   client {line['client_id']}\n"
        f"opened {age(line['opened_at'])} ago{closed}{batch}{'   set aside' if line['stale'] else ''}"
    )


def _by_role(rewards: dict[str, float]) -> str:
    return f" ({', '.join(f'{role} {reward:g}' for role, reward in rewards.items())})" if rewards else ""


def _tokens(found: dict[str, Any]) -> str:
    line, forest = found["episode"], found["forest"]
    text = (
        f"{drawing.counted(line['calls'], 'call')}, {line['prompt_tokens']:,} tokens in prompts, "
        f"{line['completion_tokens']:,} sampled, weights {versions(line) or '-'}"
    )
    if forest:
        merged, unmerged = forest["tokens_forest"], forest["tokens_unmerged"]
        text += f"\nforest of {merged:,} tokens for {unmerged:,} unmerged ({unmerged / merged:.1f}x)"
    if line["dropped_at"] is not None:
        text += f"\n{_DROPPED.format(age(line['dropped_at']))}"
    return text


def _describe_call(call: dict[str, Any], numbers: dict[str, int], *, full: bool) -> str:
    parent = "" if call["parent_id"] is None else f", goes on from #{numbers[call['parent_id']]}"
    role = "" if call["role"] is None else f" as {call['role']}"
    logprobs = call["logprobs"]
    likely = f", perplexity {math.exp(-logprobs['mean']):.2f}, least {logprobs['min']:.2f}" if logprobs else ""
    head = (
        f"\n#{numbers[call['id']]} {call['id']}{role}{parent}: {call['prompt_tokens']:,} tokens in "
        f"({call['new_prompt_tokens']:,} new), {call['completion_tokens']:,} sampled ({call['finish_reason']}), "
        f"weights {_weights(call)}{likely}"
    )
    said = [*call["messages"], {"role": "assistant"} | call["response"]]
    shown = [_message(message, full=full) for message in said]
    raw = [] if call["messages"] or call["parent_id"] else ["  (a raw prompt)"]
    return "\n".join([head, *raw, *shown])


def _weights(call: dict[str, Any]) -> str:
    """`3`, or `3, from token 17 on 4`."""
    later = (call["version_spans"] or [])[1:]
    return ", ".join([str(call["weight_version"]), *(f"from token {start} on {version}" for start, version in later)])


def _message(message: dict[str, Any], *, full: bool) -> str:
    parts = [_text(message.get("content"))]
    if thinking := message.get("reasoning_content"):
        parts.insert(0, f"(thinks) {_text(thinking)}")
    parts += [f"(calls) {json.dumps(call.get('function', call))}" for call in message.get("tool_calls") or []]
    text = printable(" ".join(part for part in parts if part))
    if not full and len(text) > _SHOWN_CHARACTERS:
        text = f"{text[:_SHOWN_CHARACTERS]}... ({len(text) - _SHOWN_CHARACTERS:,} characters more, with --full)"
    return f"  {message['role']:<10} " + text.replace("\n", "\n             ")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "" if content is None else json.dumps(content)
