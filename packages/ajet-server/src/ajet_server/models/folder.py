"""What a model folder must hold, checked before any process is started. Never imports torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.errors import ConfigError

_FIELD = "model.path"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A Hugging Face model folder that has what a server needs.

    Attributes:
        path: absolute.
        config: the parsed config.json.
        chat_template: Jinja source.
        eos_ids: ids that end a completion, from generation_config.json, else config.json.
    """

    path: Path
    config: dict[str, Any]
    tokenizer_file: Path
    tokenizer_config: dict[str, Any]
    chat_template: str
    eos_ids: tuple[int, ...]

    @property
    def max_position_embeddings(self) -> int | None:
        """Longest sequence by the model's own configuration, in tokens."""
        value = self.config.get("max_position_embeddings")
        return value if isinstance(value, int) else None


def open_model_folder(path: str | Path) -> ModelFolder:
    """Checks and describes a model folder.

    Raises:
        ConfigError: the folder or one of its parts is missing or unreadable; names which and what would be right.
    """
    try:
        folder = Path(path).expanduser().resolve()
        is_folder = folder.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # no such user, too long, a NUL in it
        raise ConfigError(f"{_FIELD}: {str(path)!r} is not a path: {error}", field=_FIELD) from error
    if not is_folder:
        raise ConfigError(f"{_FIELD}: {str(path)!r} is not a folder; give a Hugging Face model folder", field=_FIELD)
    config = _read_json(folder / "config.json")
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{_FIELD}: {folder} holds no *.safetensors file; save the model with safetensors", field=_FIELD
        )
    tokenizer_config = _read_json(folder / "tokenizer_config.json")
    return ModelFolder(
        path=folder,
        config=config,
        tokenizer_file=_require(folder / "tokenizer.json", "save a fast tokenizer with it"),
        tokenizer_config=tokenizer_config,
        chat_template=_chat_template(folder, tokenizer_config),
        eos_ids=_eos_ids(folder, config),
    )


def _require(file: Path, remedy: str) -> Path:
    if not file.is_file():
        raise ConfigError(f"{_FIELD}: {file.parent} holds no {file.name}; {remedy}", field=_FIELD)
    return file


def _read_json(file: Path) -> dict[str, Any]:
    _require(file, "it is not a complete Hugging Face model folder")
    text = _read_text(file)
    try:
        data: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{_FIELD}: {file} is not JSON: {error}", field=_FIELD) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{_FIELD}: {file} must hold a JSON object", field=_FIELD)
    return data


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{_FIELD}: {file} cannot be read: {error}", field=_FIELD) from error


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read_text(file)
    template = tokenizer_config.get("chat_template")
    if isinstance(template, str):
        return template
    raise ConfigError(
        f"{_FIELD}: {folder} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
        "use an instruction-tuned model or add a template",
        field=_FIELD,
    )


def _eos_ids(folder: Path, config: dict[str, Any]) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    value = _read_json(generation).get("eos_token_id") if generation.is_file() else None
    if value is None:
        value = config.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    found = tuple(item for item in ids if isinstance(item, int) and item >= 0)
    if not found:
        raise ConfigError(f"{_FIELD}: {folder} names no eos_token_id; completions would never end", field=_FIELD)
    return found
