"""One GRPO batch (4 prompts x 8 rollouts) by the embedded engine and by `transformers.generate`, in one run.

The floor is what the engine has to compute, each distinct prompt token and each sampled token once through the weights,
at the machine's own rate of matrix products, measured in the same run.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ajet_core.config import EngineConfig, Job
from ajet_server.engines.base import GenerationRequest
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.worker.protocol import Sampling
from measure import demo_model, finish, machine, matmul_gflops

_ROUNDS = 3
GROUPS, GROUP_SIZE, PROMPT, NEW = 4, 8, 120, 12


def prompts(vocabulary: int) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
    """Returns one prompt a rollout; those of a group are equal, and half of every prompt is the same for all."""
    rng = np.random.default_rng(0)
    common = rng.integers(10, vocabulary, PROMPT // 2)
    own = [rng.integers(10, vocabulary, PROMPT - PROMPT // 2) for _ in range(GROUPS)]
    return [np.concatenate([common, own[group]]).astype(np.int32) for group in range(GROUPS) for _ in range(GROUP_SIZE)]


def run_engine(job: Job) -> tuple[float, int, int]:
    """Returns (seconds, tokens sampled, tokens computed)."""
    engine = TorchEngine.load(job)
    sampling = Sampling(max_tokens=NEW)
    started = time.perf_counter()
    for index, prompt in enumerate(prompts(engine.vocab_size)):
        engine.submit(GenerationRequest(str(index), prompt, sampling))
    sampled = 0
    while engine.has_work:
        sampled += sum(len(completion.token_ids) for completion in engine.step().completions)
    return time.perf_counter() - started, sampled, engine.computed_tokens


def run_transformers(job: Job) -> tuple[float, int]:
    """Returns (seconds, tokens sampled) of one padded batch; no prompt here needs padding."""
    model: Any = AutoModelForCausalLM.from_pretrained(job.model.path, dtype=torch.float32)
    ids = torch.from_numpy(np.stack(prompts(model.config.vocab_size))).long()
    started = time.perf_counter()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=True, max_new_tokens=NEW, top_k=0)
    return time.perf_counter() - started, int(out[:, PROMPT:].numel())


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    job = Job.model_validate(
        {"model": {"path": str(demo_model()), "device": "cpu"}, "engine": EngineConfig(max_batch_size=32)}
    )
    rate = matmul_gflops()
    # In turns, so that both meet the same machine; the best of each.
    rounds = [(run_engine(job), run_transformers(job)) for _ in range(_ROUNDS)]
    (ours_s, ours_tokens, computed), (theirs_s, theirs_tokens) = (min(times) for times in zip(*rounds, strict=True))
    weights = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(job.model.path).parameters())
    floor_s = 2 * weights * computed / rate / 1e9
    result = {
        "machine": machine() | {"matmul_gflops": rate},
        "ours": {"seconds": ours_s, "tokens": ours_tokens, "tokens_computed": computed},
        "transformers_generate": {"seconds": theirs_s, "tokens": theirs_tokens},
        "floor_s": floor_s,
    }
    text = (
        f"engine       {ours_s:6.2f} s  {ours_tokens / ours_s:6.0f} tokens/s  ({computed} tokens computed)\n"
        f"transformers {theirs_s:6.2f} s  {theirs_tokens / theirs_s:6.0f} tokens/s\n"
        f"floor        {floor_s:6.2f} s  at {rate:.0f} GFLOP/s"
    )
    finish(result, text, as_json=arguments.json)


if __name__ == "__main__":
    main()
