"""One GRPO update on two-turn episodes (4 tasks x 8 rollouts): merged, and with nothing shared, in one run.

Both go through the same trainer, model, loss and packer; "unshared" gives each call a `compat_key` of its own, so that
calls are packed together without padding but share no token. The floor is four times the weights' products for each
computed token (forward, and the gradient of the activations; LoRA's frozen weights need none of their own), at the
machine's own rate of matrix products.
"""

import argparse
import re
import time
from dataclasses import replace
from typing import Any

import numpy as np

from ajet_core.config import Job
from ajet_merge import Call, merge
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.train.forward import PackTensors
from ajet_server.train.step import accumulate
from ajet_server.train.trainer import Trainer
from ajet_server.worker.protocol import CallRow, EpisodeRow
from measure import demo_model, finish, machine, matmul_gflops

_SKIPPED = re.compile("lora|embed_tokens|lm_head")
"""Weights without a product for each token: the output layer is only used where a token is trained."""
_ROUNDS = 3
TASKS, ROLLOUTS, PROMPT, NEW, BRIDGE = 4, 8, 120, 12, 15


def episodes(vocabulary: int) -> list[EpisodeRow]:
    """Returns append-only episodes of two calls; every rollout samples tokens of its own."""
    rng = np.random.default_rng(0)
    rows: list[EpisodeRow] = []
    for task in range(TASKS):
        prompt = rng.integers(0, vocabulary, PROMPT)
        for rollout in range(ROLLOUTS):
            name = f"{task}.{rollout}"
            first, bridge, second = (rng.integers(0, vocabulary, count) for count in (NEW, BRIDGE, NEW))
            turns = [(prompt, first), (np.concatenate([prompt, first, bridge]), second)]
            calls = [
                CallRow(f"{name}.{index}", name, _buffer(prompt_ids), _buffer(sampled), _logprobs(), 1.0, 0)
                for index, (prompt_ids, sampled) in enumerate(turns)
            ]
            rows.append(EpisodeRow(name, str(task), float(rng.random()), calls))
    return rows


def _buffer(ids: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    return ids.astype("<i4").tobytes()


def _logprobs() -> bytes:
    return np.full(NEW, -10.8, "<f4").tobytes()


def seconds_of(trainer: Trainer, batch: Batch, calls: list[Call]) -> tuple[float, int]:
    """Returns (seconds, tokens computed) of merging, packing, and one forward and backward pass."""
    started = time.perf_counter()
    forest = merge(calls)
    temperatures = batch.temperatures[forest.occurrences.call]
    packs = [
        PackTensors.of(pack, temperatures[pack.occ_index], trainer.attention, 256, trainer.device)
        for pack in forest.packs(trainer.job.trainer.pack_tokens)
    ]
    accumulate(trainer.plain, packs, trainer.job.algorithm, _quiet, None)
    seconds = time.perf_counter() - started
    trainer.model.zero_grad()
    return seconds, sum(int(pack.tokens_T.numel()) for pack in packs)


def _quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trainer = Trainer.load(Job.model_validate({"model": {"path": str(demo_model()), "device": "cpu"}}))
    batch = build_batch(episodes(trainer.vocab_size), trainer.job.algorithm, trainer.vocab_size)
    unshared = [replace(call, compat_key=call.call_id) for call in batch.calls]
    seconds_of(trainer, batch, batch.calls)  # warm up
    rate = matmul_gflops()
    # In turns, so that both meet the same machine; the best of each.
    rounds = [(seconds_of(trainer, batch, batch.calls), seconds_of(trainer, batch, unshared)) for _ in range(_ROUNDS)]
    (merged_s, merged_tokens), (unshared_s, unshared_tokens) = (min(times) for times in zip(*rounds, strict=True))
    weights = sum(p.numel() for name, p in trainer.plain.named_parameters() if not _SKIPPED.search(name))
    floor_s = 4 * weights * merged_tokens / rate / 1e9
    result = {
        "machine": machine() | {"matmul_gflops": rate},
        "merged": {"seconds": merged_s, "tokens": merged_tokens},
        "unshared": {"seconds": unshared_s, "tokens": unshared_tokens},
        "speedup": unshared_s / merged_s,
        "token_ratio": unshared_tokens / merged_tokens,
        "floor_s": floor_s,
    }
    text = (
        f"merged   {merged_s:6.2f} s  {merged_tokens:6d} tokens\n"
        f"unshared {unshared_s:6.2f} s  {unshared_tokens:6d} tokens   {unshared_s / merged_s:.1f}x the time, "
        f"{unshared_tokens / merged_tokens:.1f}x the tokens\n"
        f"floor    {floor_s:6.2f} s  of the merged update, at {rate:.0f} GFLOP/s"
    )
    finish(result, text, as_json=arguments.json)


if __name__ == "__main__":
    main()
