"""`ajet merge explain`: where paths part."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet_cli.commands.merge import drawing
from ajet_core.errors import ConfigError

if TYPE_CHECKING:
    from ajet_merge import Explanation
    from ajet_merge.records import Record


class FileTokenizer:
    """A `tokenizer.json` as ajet-merge wants a tokenizer: special tokens are shown."""

    def __init__(self, file: Path, tokenizer: Any) -> None:
        self._file = file
        self._tokenizer = tokenizer

    def decode(self, token_ids: list[int], /) -> str:
        """Returns the text of the tokens.

        Raises:
            ConfigError: a token is not one of this tokenizer, which would leave it out without a word.
        """
        for token in set(token_ids):
            if self._tokenizer.id_to_token(token) is None:
                raise ConfigError(f"{self._file} has no token {token}: give the tokenizer of the model that was called")
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def open_tokenizer(path: Path) -> FileTokenizer:
    """Opens a `tokenizer.json`, or that in a folder.

    Raises:
        ConfigError: the package tokenizers is not installed, or the file is missing or no tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise ConfigError(f"--tokenizer needs the package tokenizers ({error}): pip install tokenizers") from error
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{file} is no file: give a tokenizer.json, or a folder with one")
    try:
        return FileTokenizer(file, Tokenizer.from_str(file.read_text(encoding="utf-8")))
    except Exception as error:  # the package raises nothing more special
        raise ConfigError(f"{file} cannot be read as a tokenizer: {error}") from error


def explain(records: "Sequence[Record]", tokenizer: FileTokenizer | None) -> "Explanation":
    """Finds the departures; by messages where the file has them."""
    from ajet_merge import merge

    contexts = [record.context for record in records]
    forest = merge([record.call for record in records])
    return forest.explain(tokenizer, contexts if any(contexts) else None)


def write_html(explanation: "Explanation", file: Path) -> None:
    """Writes the report as a web page.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        file.write_text(explanation.to_html(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error


def summary(explanation: "Explanation", html: Path | None) -> dict[str, Any]:
    """Returns the object of the `--json` line."""
    return {
        "departures": explanation.as_dicts(),
        "cost": explanation.cost,
        "html": str(html) if html else None,
    }


def describe(explanation: "Explanation", html: Path | None) -> str:
    """Returns the report for a person."""
    return drawing.lines(drawing.wrapped(str(explanation)), drawing.wrote(str(html) if html else None))
