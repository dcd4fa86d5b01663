"""Segments are tokenized once, and what is kept of them is bounded."""

from pathlib import Path

import pytest
from folder_helpers import make_folder
from tokenizers import Tokenizer

from ajet_server.gateway import segments
from ajet_server.gateway.encoding import Encoder
from ajet_server.gateway.request import IntIds
from ajet_server.gateway.segments import Segments

ANCHORS = {"<|im_start|>": 0, "<|im_end|>": 1}


class Counted:
    """An encoder that remembers what it was asked for."""

    def __init__(self, encode: Encoder) -> None:
        self._encode = encode
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> list[IntIds]:
        self.asked += texts
        return self._encode(texts)


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    return Counted(Encoder(Tokenizer.from_file(str(make_folder(tmp_path) / "tokenizer.json"))))


def test_texts_are_split_before_anchors() -> None:
    split = Segments(lambda texts: [], ANCHORS).split
    assert split("a<|im_end|>\n<|im_start|>b") == ["a", "<|im_end|>\n", "<|im_start|>b"]
    assert split("<|im_start|><|im_start|>") == ["<|im_start|>", "<|im_start|>"]
    assert split("") == [""]


def test_what_was_tokenized_is_not_again(counted: Counted) -> None:
    made = Segments(counted, ANCHORS)
    first = made.ids(["<|im_start|>one", "<|im_start|>two"])
    second = made.ids(["<|im_start|>two", "<|im_start|>three", "<|im_start|>one"])
    assert counted.asked == ["<|im_start|>one", "<|im_start|>two", "<|im_start|>three"]
    assert (second[0].tolist(), second[2].tolist()) == (first[1].tolist(), first[0].tolist())


def test_what_is_not_asked_for_is_let_go(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MOST_KEPT", 6 * segments.EACH)
    made = Segments(counted, ANCHORS)
    for number in range(8):
        made.ids(["often", f"{number}" * 10])
    made.ids(["0" * 10])
    assert counted.asked.count("often") == 1
    assert counted.asked.count("0" * 10) == 2
