"""What a model folder must hold, checked before any process is started. Never imports torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet_core.config import EngineConfig
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
    _refuse_adapter(folder)
    config = _read_json(folder / "config.json")
    _require_weights(folder)
    tokenizer_config = _read_json(folder / "tokenizer_config.json")
    return ModelFolder(
        path=folder,
        config=config,
        tokenizer_file=_require(folder / "tokenizer.json", "save a fast tokenizer with it"),
        tokenizer_config=tokenizer_config,
        chat_template=_chat_template(folder, tokenizer_config),
        eos_ids=_eos_ids(folder, config),
    )


def max_model_len(folder: ModelFolder, engine: EngineConfig) -> int:
    """Returns the longest sequence, prompt and completion, that is served and trained, in tokens.

    Raises:
        ConfigError: nobody says what it is, or the job wants more than the model knows.
    """
    trained = folder.max_position_embeddings
    wanted = engine.max_model_len or trained
    if wanted is None:
        raise ConfigError(
            "engine.max_model_len: is not set, and the model's config.json has no max_position_embeddings; set it",
            field="engine.max_model_len",
        )
    if trained is not None and wanted > trained:
        raise ConfigError(
            f"engine.max_model_len: {wanted} is more than the {trained} positions the model knows; use at most that",
            field="engine.max_model_len",
        )
    return wanted


def _refuse_adapter(folder: Path) -> None:
    """An adapter names its base model, wherever that is, and transformers would load that."""
    if (folder / "adapter_config.json").is_file() or (folder / "adapter_model.safetensors").is_file():
        raise ConfigError(
            f"{_FIELD}: {folder} holds an adapter, not a model; give the folder of a whole model, which the adapter "
            "has been merged into",
            field=_FIELD,
        )


def _require_weights(folder: Path) -> None:
    """Requires what transformers loads from safetensors: one file, or an index and all the files that it names."""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        return
    if not index.is_file():
        raise ConfigError(
            f"{_FIELD}: {folder} holds neither model.safetensors nor {index.name}; save the model with safetensors "
            "(other weight files are pickles, which are never read)",
            field=_FIELD,
        )
    shards = _read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ConfigError(f"{_FIELD}: {index} has no weight_map; save the model again", field=_FIELD)
    for name in sorted({str(item) for item in shards.values()}):
        if Path(name).name != name or name == "..":
            raise ConfigError(f"{_FIELD}: {index} names {name!r}, which is not in the folder", field=_FIELD)
        _require(folder / name, f"{index.name} names it; copy the model folder again")


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
