"""A stream says what the completion says, and biases shift both."""

from dataclasses import replace

import numpy as np
import torch
from engine_helpers import drain, random_ids, request
from transformers import PreTrainedModel

from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.worker.protocol import Sampled


def test_biases_shift_what_is_sampled_and_its_logprobs(engine: TorchEngine, plain_model: PreTrainedModel) -> None:
    prompt, biases = random_ids(12, 9), ((5, 3.0), (77, 4.0))
    asked = [request(str(at), prompt, 8, temperature=0.8, seed=at, logit_bias=biases * at) for at in range(3)]
    for completion in drain(engine, asked).values():
        assert completion.cached_tokens == (0 if completion.request_id == "0" else 9)
        shift = torch.zeros(512)
        shift[[5, 77]] = torch.tensor([3.0, 4.0]) * int(completion.request_id)
        whole = np.concatenate([prompt, completion.token_ids])
        with torch.no_grad():
            logits = plain_model(torch.from_numpy(whole)[None].long()).logits[0, len(prompt) - 1 : -1]
        expected = ((logits + shift) / 0.8).log_softmax(-1)[range(8), completion.token_ids]
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5)


def test_a_stream_is_the_completion(engine: TorchEngine) -> None:
    streamed = {str(at): at % 3 > 0 for at in range(8)}
    asked = [
        replace(
            request(name, random_ids(int(name) // 2, 30), 3 + int(name), temperature=1.0, top_logprobs=int(name) % 2),
            stream=stream,
        )
        for name, stream in streamed.items()
    ]
    for item in asked:
        engine.submit(item)
    told: dict[str, list[Sampled]] = {}
    done = {}
    while engine.has_work:
        outcome = engine.step()
        for sampled in outcome.sampled:
            assert sampled.request_id not in done
            told.setdefault(sampled.request_id, []).append(sampled)
        done |= {item.request_id: item for item in outcome.completions}
    assert told.keys() == {name for name, stream in streamed.items() if stream}
    for name, parts in told.items():
        assert [part.start for part in parts] == list(range(len(done[name].token_ids)))
        assert b"".join(part.token_ids for part in parts) == done[name].token_ids.tobytes()
        assert b"".join(part.logprobs for part in parts) == done[name].logprobs.tobytes()
        assert [top for part in parts for top in part.top_logprobs] == done[name].top_logprobs
