"""What is said: a model folder without a model, the engine's one completion, and conversations of 1 kB messages."""

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MODEL = "instant"
MESSAGE_BYTES = 1000
MAX_MODEL_LEN = 131_072
_COMPLETION_WORDS = 31
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_FIRST, _THEN = "bdfgklmnprstvz", "aeiou"
_words_random = random.Random(0)
_WORDS = sorted(
    {
        "".join(
            _words_random.choice(_FIRST) + _words_random.choice(_THEN) for _ in range(_words_random.choice((1, 2, 3)))
        )
        for _ in range(4000)
    }
)


def make_text(seed: str, length: int = MESSAGE_BYTES) -> str:
    """Text of so many bytes; the same seed gives the same."""
    words = random.Random(seed).choices(_WORDS, k=length)
    return " ".join(words)[:length]


@dataclass(frozen=True)
class Completion:
    """What the engine always answers: the last id ends the turn and has no text."""

    text: str
    token_ids: list[int]
    logprobs: list[float]


def make_folder(folder: Path) -> Completion:
    """Writes a model folder that everything but an engine accepts, with the completion in `completion.json`."""
    tokenizer = _make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (end,) = tokenizer.encode("<|im_end|>").ids
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_start|>"}
    _write(folder / "tokenizer_config.json", names | {"tokenizer_class": "PreTrainedTokenizerFast"})
    _write(folder / "config.json", {"model_type": "llama", "eos_token_id": end})
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    (folder / "model.safetensors").write_bytes(b"")
    text = " ".join(random.Random("completion").choices(_WORDS, k=_COMPLETION_WORDS))
    ids = [*tokenizer.encode(text).ids, end]
    completion = Completion(text, ids, [-0.125 * (place % 8 + 1) for place in range(len(ids))])
    _write(folder / "completion.json", vars(completion))
    return completion


def read_completion(folder: Path) -> Completion:
    """The completion of a folder that `make_folder` wrote."""
    return Completion(**json.loads((folder / "completion.json").read_text()))


def _make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(_WORDS)], trainer)
    return tokenizer


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content))


NUMBER = b"00000000"
"""In place of this, a client writes which conversation it is, so that no message is said in two of them."""


def bodies(turns: int, answer: str) -> list[bytes]:
    """The requests of one conversation, each with all that was said before; every message but the answers has `NUMBER`.

    Args:
        turns: how many.
        answer: what the model answers every time.
    """
    system = {"role": "system", "content": f"Conversation {NUMBER.decode()}. {make_text('system')}"}
    messages: list[dict[str, str]] = [system]
    result: list[bytes] = []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{NUMBER.decode()} {make_text(f'turn {turn}')}"})
        body = {"model": MODEL, "messages": messages, "max_tokens": 64, "temperature": 1.0}
        result.append(json.dumps(body).encode())
        messages.append({"role": "assistant", "content": answer})
    return result
