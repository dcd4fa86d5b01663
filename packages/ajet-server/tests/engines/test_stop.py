"""Stop strings are found wherever tokens are cut."""

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from ajet_server.engines.stop import find_stop


@pytest.fixture(scope="module")
def tokenizer(gqa_folder: Path) -> Tokenizer:
    """A byte-level tokenizer."""
    return Tokenizer.from_file(str(gqa_folder / "tokenizer.json"))


def first_found(tokenizer: Tokenizer, stops: tuple[str, ...], token_ids: list[int]) -> tuple[int, str | None]:
    """Returns after how many tokens a stop string is found, and which."""
    for end in range(1, len(token_ids) + 1):
        stop = find_stop(tokenizer, stops, np.array(token_ids[:end], np.int32))
        if stop is not None:
            return end, stop
    return len(token_ids), None


@pytest.mark.parametrize("stop", ["RESULT:", "T: 42", "é", "日本", "\n\n", "<|im_end|>"])
def test_a_stop_string_is_found_at_the_token_that_completes_it(tokenizer: Tokenizer, stop: str) -> None:
    token_ids = tokenizer.encode("CALC: 12 + 30 = é\n\n日本 RESULT: 42 The answer is 42.<|im_end|>").ids
    end, found = first_found(tokenizer, ("nowhere", stop), token_ids)
    assert found == stop
    assert stop in tokenizer.decode(token_ids[:end], skip_special_tokens=False)
    assert stop not in tokenizer.decode(token_ids[: end - 1], skip_special_tokens=False)


def test_of_two_stop_strings_in_one_token_the_first_in_the_text_counts(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(" RESULT").ids
    assert len(token_ids) == 1
    assert first_found(tokenizer, ("UL", "ES"), token_ids) == (1, "ES")


def test_bytes_that_are_no_text_do_not_hide_a_stop_string(tokenizer: Tokenizer) -> None:
    half = tokenizer.encode("日").ids[:1]
    assert first_found(tokenizer, ("is",), half * 3 + tokenizer.encode(" is").ids)[1] == "is"


def test_without_stop_strings_nothing_is_found(tokenizer: Tokenizer) -> None:
    assert find_stop(tokenizer, (), np.array([1, 2], np.int32)) is None
