"""On real episodes of a real server: the merged gradient is the unmerged one; plain peft serves what was trained."""

import json
from pathlib import Path

import numpy as np
import torch
from openai import OpenAI
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from ajet_client import Episode
from ajet_core.config import Job
from ajet_merge import Call, merge
from ajet_server.samples.merge import Batch, build_batch
from ajet_server.train.attention import Backend
from ajet_server.train.forward import PackTensors
from ajet_server.train.step import accumulate
from ajet_server.train.trainer import Trainer
from ajet_server.worker.protocol import CallRow, EpisodeRow
from live_server import LiveServer, StartServer, share_of_digits, wait_for_version

_PACK_TOKENS = 96
"""Small enough that the batch needs several packs."""
_BACKENDS: tuple[Backend, ...] = ("rectangles", "segments")


def _two_turns(episode: Episode) -> float:
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        messages = [{"role": "user", "content": f"Write digits for {episode.task}."}]
        written = ""
        for temperature in (1.0, 0.8):
            answer = client.chat.completions.create(
                model=episode.model, messages=messages, max_tokens=10, temperature=temperature  # type: ignore[arg-type]
            )  # fmt: skip
            text = answer.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "More."}]
            written += text
    return share_of_digits(written)


def _train_one_step(start_server: StartServer, method: str) -> LiveServer:
    server = start_server(method=method, batch={"policy": "groups", "size": 2, "group_size": 4})
    server.wait_until_rolling()
    with server.swarm() as swarm:
        swarm.run(_two_turns, ["one", "two"], group_size=4, concurrency=8, progress=False)
        wait_for_version(swarm, 1)
    return server


def _batch(server: LiveServer) -> list[EpisodeRow]:
    """Reads the trained batch out of the ledger, from outside."""
    episodes = server.rows("SELECT id, group_id, reward FROM episodes WHERE batch_id IS NOT NULL ORDER BY group_id, id")
    calls = "SELECT id, episode_id, prompt_ids, completion_ids, logprobs, temperature, weight_version FROM calls"
    return [
        EpisodeRow(name, group, reward, [CallRow(*row) for row in server.rows(f"{calls} WHERE episode_id = ?", name)])
        for name, group, reward in episodes
    ]


def _plain_backward(model: PreTrainedModel, call: Call, temperature: float) -> None:
    """Clipped surrogate of one call, alone, by transformers' own attention."""
    ids = torch.from_numpy(np.concatenate([call.prompt_ids, call.completion_ids])).long()
    logits = model(input_ids=ids[None], use_cache=False).logits[0] / temperature
    start = call.prompt_ids.size
    logp = logits.log_softmax(-1)[start - 1 : -1].gather(1, ids[start:, None])[:, 0]
    ratio = (logp - torch.from_numpy(np.array(call.logprobs))).exp()
    advantage, weight = torch.from_numpy(np.array(call.advantage)), torch.from_numpy(np.array(call.weight))
    loss = -(weight * torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)).sum()
    loss.backward()


def _quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def test_the_gradient_of_a_merged_batch_is_the_unmerged_one(start_server: StartServer) -> None:
    server = _train_one_step(start_server, "full")
    job = Job.model_validate(server.job)
    episodes = _batch(server)
    assert len(episodes) == 8
    assert sum(len(episode.calls) for episode in episodes) == 16

    trainer = Trainer.load(job)
    batch = build_batch(episodes, job.algorithm, trainer.vocab_size)
    reference = AutoModelForCausalLM.from_pretrained(job.model.path, dtype=torch.float32, attn_implementation="eager")
    for call, temperature in zip(batch.calls, batch.temperatures, strict=True):
        _plain_backward(reference, call, float(temperature))
    alone = _gradient(reference)
    assert alone.norm() > 1e-4
    for backend in _BACKENDS:
        trainer.plain.zero_grad(set_to_none=True)
        accumulate(trainer.plain, _packs(batch, backend), job.algorithm, _quiet)
        assert (_gradient(trainer.plain) - alone).norm() / alone.norm() < 1e-5, backend


def _packs(batch: Batch, backend: Backend) -> list[PackTensors]:
    forest = merge(batch.calls)
    assert forest.num_tokens < 0.75 * sum(len(call) for call in batch.calls)
    packs = [(pack, forest.occurrences.call[pack.occ_index]) for pack in forest.packs(_PACK_TOKENS)]
    assert len(packs) > 1
    cpu = torch.device("cpu")
    return [PackTensors.of(pack, batch.temperatures[call_M], call_M, backend, 64, cpu) for pack, call_M in packs]


def _gradient(model: PreTrainedModel) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_plain_peft_loads_the_adapter_and_scores_what_the_server_serves(start_server: StartServer) -> None:
    server = _train_one_step(start_server, "lora")
    with server.swarm() as swarm, swarm.episode(task="score", kind="eval") as episode:
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            answer = client.chat.completions.create(
                model=episode.model, messages=[{"role": "user", "content": "score me"}], max_tokens=8, logprobs=True
            )
        episode.reward(0)
    ((prompt, completion, served, version),) = server.rows(
        "SELECT prompt_ids, completion_ids, logprobs, weight_version FROM calls WHERE id = ?", answer.id
    )
    assert version == 1

    adapter = server.data_dir / "checkpoints" / "step-000001" / "adapter"
    base_path = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert Path(base_path) == Path(server.job["model"]["path"])
    base = AutoModelForCausalLM.from_pretrained(base_path, dtype=torch.float32)
    ids = torch.from_numpy(np.frombuffer(prompt + completion, "<i4").astype(np.int64))
    start = len(prompt) // 4
    with torch.no_grad():
        untrained = _score(base, ids, start)
        trained = _score(PeftModel.from_pretrained(base, adapter), ids, start)
    np.testing.assert_allclose(trained, np.frombuffer(served, "<f4"), atol=1e-4)
    assert np.abs(untrained - trained).max() > 1e-3


def _score(model: torch.nn.Module, ids: torch.Tensor, start: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    logp = model(input_ids=ids[None]).logits[0].log_softmax(-1)
    scores: np.ndarray[tuple[int], np.dtype[np.float32]] = (
        logp[start - 1 : -1].gather(1, ids[start:, None])[:, 0].numpy()
    )
    return scores
