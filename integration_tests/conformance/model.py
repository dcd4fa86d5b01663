"""SmolLM2-135M, taught to call a tool: as it comes it is too weak to write the JSON of a call.

It is trained on sums of other numbers than the agents ask for, a few updates in all. What it then says is sampled.
"""

import hashlib
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import platformdirs
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ajet_server.demo.smollm import smollm_folder
from ajet_server.gateway.output.generic import as_plain_messages
from ajet_server.gateway.request import Conversation, Message

_UPDATES = 4
_ANSWERS = (
    "The answer is {}.",
    "That makes {}!",
    "It is {} in all.\n\nAnything else?",
    "{}",
    "  Sure: {}",
    "Sum = {}. ",
)
"""In several words, so that what is sampled depends on the seed and on all that was said before, to the last space."""
_LEARNING_RATE = 1e-4
_TURN, _END = "<|im_start|>assistant\n", "<|im_end|>"


def adder_folder(task: dict[str, Any]) -> Path:
    """Returns the folder of the trained model, which is made on first use and kept in the user's cache.

    Args:
        task: `agents/task.json`: the system prompt and the tool.
    """
    cache = Path(platformdirs.user_cache_dir("ajet"))
    made_from = hashlib.sha256(Path(__file__).read_bytes() + json.dumps(task).encode()).hexdigest()
    target = cache / "conformance" / made_from[:16]
    if not (target / "config.json").is_file():
        source = smollm_folder(cache, print)
        shutil.rmtree(target.parent, ignore_errors=True)  # what other versions of this file made
        target.parent.mkdir(parents=True)
        work = Path(tempfile.mkdtemp(dir=target.parent))
        _train(source, work, task)
        work.rename(target)
    return target


def _train(source: Path, folder: Path, task: dict[str, Any]) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=True)
    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, local_files_only=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.95))
    rng = random.Random(0)
    for _ in range(_UPDATES):
        text: str = tokenizer.apply_chat_template(_dialogue(rng, task), tokenize=False)
        optimizer.zero_grad()
        _loss(model, *_labelled(tokenizer, text)).backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _dialogue(rng: random.Random, task: dict[str, Any]) -> list[Message]:
    """Two sums, as the chat template gets them: of tools, which it does not know, it is told in words."""
    messages: list[Message] = [{"role": "system", "content": task["system"]}]
    for _ in range(2):
        a, b = rng.randint(10, 40), rng.randint(10, 40)
        function = {"name": task["tool"]["name"], "arguments": f'{{"a": {a}, "b": {b}}}'}
        messages += [
            {"role": "user", "content": f"What is {a} + {b}?"},
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": str(a + b)},
            {"role": "assistant", "content": rng.choice(_ANSWERS).format(a + b)},
        ]
    tools = ({"type": "function", "function": task["tool"]},)
    return as_plain_messages(Conversation(messages, tools), takes_system=True)


def _labelled(tokenizer: Any, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids i64[N], and bool[N]: the tokens that the assistant says, with those that end its turns."""
    ids: list[int] = []
    said: list[bool] = []
    for number, part in enumerate(text.split(_TURN)):
        answer, end, after = part.partition(_END) if number else ("", "", part)
        for piece, is_said in ((_TURN if number else "", False), (answer + end, True), (after, False)):
            new: list[int] = tokenizer(piece).input_ids if piece else []
            ids += new
            said += [is_said] * len(new)
    return torch.tensor(ids), torch.tensor(said)


def _loss(model: Any, ids_N: torch.Tensor, said_N: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of what is said. Only its logits are computed: the vocabulary is most of the model."""
    said_at = said_N.nonzero()[:, 0]
    hidden = model.model(ids_N[None]).last_hidden_state[0, said_at - 1]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden), ids_N[said_at])
