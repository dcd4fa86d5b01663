"""Chat templates of known models over small tokenizers: those that TRL carries, and ours of the same behaviour."""

import copy
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from folder_helpers import make_folder
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ajet_server.gateway.bridge import Bridge, Put
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Conversation, Message, Tool
from ajet_server.models.folder import ModelFolder, open_model_folder

_OURS = Path(__file__).parent / "gateway" / "templates"
_SPECIAL = re.compile(r"<\|[A-Za-z_0-9]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|\[/?[A-Z_]+\]")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


@dataclass(frozen=True, slots=True)
class Family:
    """What a template can do.

    Attributes:
        end: the tokens that end a completion, the usual one first.
        calls: most parallel tool calls; 0: it knows no tools.
        text_arguments: tool arguments are given to it as JSON text.
        system: it takes a system message.
        spaces: its special tokens take spaces and newlines from the right.
    """

    end: tuple[str, ...]
    calls: int = 0
    text_arguments: bool = False
    system: bool = True
    spaces: bool = False


FAMILIES = {
    "chatml": Family(("<|im_end|>",)),
    "smollm2": Family(("<|im_end|>",)),
    "llama3": Family(("<|eot_id|>",)),
    "llama3_1": Family(("<|eot_id|>", "<|eom_id|>"), calls=1),
    "llama3_2": Family(("<|eot_id|>",), calls=1),
    "qwen2_5": Family(("<|im_end|>",), calls=3),
    "qwen3": Family(("<|im_end|>",), calls=3),
    "qwen3_5_think": Family(("<|im_end|>",), calls=3),
    "mistral_v3": Family(("</s>",), calls=3),
    "mistral_v7": Family(("</s>",), calls=3),
    "gemma2": Family(("<end_of_turn>",), system=False),
    "gemma3": Family(("<end_of_turn>",)),
    "phi3": Family(("<|end|>",), spaces=True),
    "phi4": Family(("<|im_end|>",)),
    "deepseekv3": Family(("<｜end▁of▁sentence｜>",), calls=3, text_arguments=True),
    "deepseek_r1_distill": Family(("<｜end▁of▁sentence｜>",)),
    "glm4moe": Family(("<|user|>", "<|observation|>", "<|endoftext|>"), calls=3),
}
TOKENIZERS = ("bytes", "words", "legacy")


def source(name: str) -> str:
    """The template of a family."""
    ours = _OURS / f"{name}.jinja"
    if ours.is_file():
        return ours.read_text()
    package = find_spec("trl")
    assert package is not None
    assert package.origin is not None
    return (Path(package.origin).parent / "chat_templates" / f"{name}.jinja").read_text()


def make_family(name: str, folder: Path, tokenizer: str = "bytes") -> ModelFolder:
    """Writes and opens a model folder of a family."""
    family, template = FAMILIES[name], source(name)
    make_folder(folder, template)
    made = make_tokenizer(tokenizer)
    found = dict.fromkeys(["<bos>", *family.end, *_SPECIAL.findall(template)])
    made.add_special_tokens([AddedToken(text, special=True, rstrip=family.spaces) for text in found])
    made.add_tokens([AddedToken(text, normalized=False) for text in _TAGS])
    made.save(str(folder / "tokenizer.json"))
    ends = [made.token_to_id(text) for text in family.end]
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": ends}))
    names = {"bos_token": "<bos>", "eos_token": family.end[0], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return open_model_folder(folder)


def make_tokenizer(kind: str) -> Tokenizer:
    """A tokenizer of one of three kinds: GPT-2's bytes, words marked at the beginning only, or at every beginning."""
    alphabet, settings = [], dict[str, Any]()
    tokenizer = Tokenizer(models.BPE(**({} if kind == "bytes" else {"byte_fallback": True, "unk_token": "<unk>"})))
    if kind == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "words":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    if kind != "bytes":
        settings = {"special_tokens": ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]}
    corpus = ["system user assistant hello world a\n\nb \n c  d", 'model tool {"x": 1}\n', "ab abc aab\n\n"] * 5
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False, **settings)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def put_for(family: Family) -> Put:
    """How conversations are put to a family's template."""

    def put(conversation: Conversation) -> tuple[Sequence[Message], Sequence[Tool] | None]:
        messages = copy.deepcopy(conversation.messages)
        for message in messages:
            for call in message.get("tool_calls") or []:
                if not family.text_arguments:
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return messages, list(conversation.tools) or None

    return put


def make_bridge(name: str, folder: Path, *, tokenizer: str = "bytes", history: Any = "template") -> Bridge:
    """The bridge of a family."""
    made = make_family(name, folder, tokenizer)
    return Bridge(ChatRenderer(made), made.eos_ids, put_for(FAMILIES[name]), lambda *_: "", history)


def user(content: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": content}


def said(content: str, *calls: str, thinking: str = "") -> Message:
    """An assistant's message; each call is given by its arguments."""
    message: Message = {"role": "assistant", "content": content}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {"id": f"call{index:05}", "type": "function", "function": {"name": "look", "arguments": arguments}}
            for index, arguments in enumerate(calls)
        ]
    return message


def result(content: str, index: int = 0) -> Message:
    """A tool's message."""
    return {"role": "tool", "content": content, "tool_call_id": f"call{index:05}"}
