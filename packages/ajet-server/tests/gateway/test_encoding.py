"""Whatever library tokenizes, the ids are those of tokenizers."""

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import fastokens
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ajet_server.gateway import encoding
from ajet_server.gateway.encoding import Encoder

# As Llama 3 and Qwen 2.5 write it; they differ in how many digits go together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_TEXTS = [*encoding._WRITTEN, "".join(chr(code) for code in range(0x20, 0x3000, 7))]
_ADDED = [
    AddedToken("<|im_start|>", special=True),
    AddedToken("<|im_end|>", special=True, lstrip=True),
    AddedToken("<think>", normalized=False),
    AddedToken("tool", single_word=True, normalized=False),
]


def _bytes(model: models.BPE, split: Any, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return _trained(tokenizer, pre_tokenizers.ByteLevel.alphabet())


def _trained(tokenizer: Tokenizer, alphabet: list[str]) -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_TEXTS * 2, trainer)
    tokenizer.add_tokens(_ADDED)
    return tokenizer


def _gpt2() -> Tokenizer:
    return _bytes(models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False))


def _llama3() -> Tokenizer:
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    split = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return _bytes(models.BPE(ignore_merges=True), split)


def _qwen() -> Tokenizer:
    words = pre_tokenizers.Split(Regex(_WORDS.replace("{1,3}", "")), "isolated")
    split = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return _bytes(models.BPE(), split, normalizers.NFC())


def _gemma() -> Tokenizer:
    """Spaces become marks, words are not split, and what has no token is written in bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_tokens(_ADDED)
    return tokenizer


def _unigram() -> Tokenizer:
    """Of a kind that fastokens does not know."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=3000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(_TEXTS, trainer)
    tokenizer.add_tokens(_ADDED)
    return tokenizer


_KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _gpt2, "llama3": _llama3, "qwen": _qwen, "gemma": _gemma, "unigram": _unigram,
}  # fmt: skip


@pytest.fixture(scope="module", params=_KINDS)
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, Encoder]:
    tokenizer = _KINDS[request.param]()
    encoder = Encoder(tokenizer)
    assert encoder.is_fast == (request.param != "unigram")
    return tokenizer, encoder


_parts = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    st.text(" \t\r\n\u00a0\u3000", max_size=6),
    st.text("0123456789", max_size=12),
    st.sampled_from([token.content for token in _ADDED] + ["<|im_", "'s", "'LL", "e\u0301", "\ufb01", "a" * 50]),
    st.sampled_from(["'\u017f", "\u017f", " \u180e", "\u180e"]),
)


@given(st.lists(_parts, max_size=12).map("".join))
@example("")
@example("tool <|im_end|> tooltool <think><think>")
@example("it'\u017f 's'\u017f")
@example("a \u180e \u180eb")
def test_ids_are_those_of_tokenizers(pair: tuple[Tokenizer, Encoder], text: str) -> None:
    tokenizer, encode = pair
    (ids,) = encode([text])
    assert ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    assert ids.dtype == np.int32
    assert not ids.flags.writeable


def test_texts_keep_their_order(pair: tuple[Tokenizer, Encoder]) -> None:
    tokenizer, encode = pair
    texts = ["one", "", "two three", "<think>"]
    assert [ids.tolist() for ids in encode(texts)] == [tokenizer.encode(text).ids for text in texts]
    assert encode([]) == []


@pytest.mark.parametrize(("normalized", "is_fast"), [(True, False), (False, True)])
def test_added_tokens_that_overlap(normalized: bool, is_fast: bool) -> None:
    tokenizer = _gpt2()
    tokenizer.add_tokens([AddedToken("[a|]", normalized=normalized), AddedToken("|]b", normalized=False)])
    encode = Encoder(tokenizer)
    assert encode.is_fast is is_fast
    assert encode(["x[a|]b"])[0].tolist() == tokenizer.encode("x[a|]b").ids


def _deepseek() -> Tokenizer:
    """Of a split that fastokens leaves to a library of regular expressions."""
    words = pre_tokenizers.Split(Regex(r"[^\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|\s+(?!\S)|\s+"), "isolated")
    split = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    return _bytes(models.BPE(), split)


def test_a_character_that_is_space_to_tokenizers_alone() -> None:
    tokenizer = _deepseek()
    encode = Encoder(tokenizer)
    assert encode.is_fast
    texts = ["a  \u180eb", "a  b"]
    assert [ids.tolist() for ids in encode(texts)] == [tokenizer.encode(text).ids for text in texts]


@pytest.mark.parametrize("unknown", [None, "<unk>"], ids=["left out", "without a token"])
def test_characters_without_a_token(unknown: str | None) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encode = Encoder(tokenizer)
    assert not encode.is_fast
    assert encode(["ab"])[0].tolist() == [0, 1]


def test_a_tokenizer_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_last", {})
    made = [Encoder(make())._fast for make in (_gpt2, _qwen, _gpt2, _unigram, _gpt2)]
    assert made[0] is made[2]
    assert made[4] is not made[0], "it was one of the last two"
    assert len(encoding._last) == 2


class _Other:
    """fastokens, had it a mistake with what is not ASCII, or a limit."""

    limit = sys.maxsize

    def __init__(self, real: fastokens.Tokenizer) -> None:
        self._real = real

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        if len(texts[0]) > self.limit:
            raise ValueError("match limit exceeded")
        return self._real.encode_batch_flat([text.encode("ascii", "ignore").decode() for text in texts])


class _Limited(_Other):
    limit = 100_000

    def encode_batch_flat(self, texts: list[str]) -> tuple[bytes, bytes]:
        super().encode_batch_flat(texts)
        return self._real.encode_batch_flat(texts)


@pytest.fixture
def replaced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokenizer]:
    class Replaced:
        @staticmethod
        def from_json_str(text: str) -> _Other:
            made: _Other = request.param(fastokens.Tokenizer.from_json_str(text))
            return made

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "fastokens", Replaced)
        patch.setattr(encoding, "_last", {})
        patch.setattr(Replaced, "Tokenizer", Replaced, raising=False)
        yield _gpt2()


@pytest.mark.parametrize("replaced", [_Other], indirect=True, ids=["other"])
def test_other_ids_are_found_out(replaced: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    encode = Encoder(replaced)
    assert not encode.is_fast
    assert "fastokens has other ids for" in caplog.text
    assert encode(["né"])[0].tolist() == replaced.encode("né").ids


@pytest.mark.parametrize("replaced", [_Limited], indirect=True, ids=["limited"])
def test_a_text_that_fastokens_gives_up_on(replaced: Tokenizer, caplog: pytest.LogCaptureFixture) -> None:
    encode = Encoder(replaced)
    assert encode.is_fast
    with caplog.at_level(logging.WARNING):
        assert encode(["a b" * 50_000])[0].tolist() == replaced.encode("a b" * 50_000).ids
    assert "match limit exceeded" in caplog.text
