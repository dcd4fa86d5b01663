"""A trainer's tensors to files and back: weights or adapter, critic, optimizer, random numbers. Nothing is pickled."""

import json
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ajet_core.errors import StorageError

ADAPTER = "adapter"
MODEL = "model"
_VALUE = "value.safetensors"
_OPTIMIZER_TENSORS = "optimizer.safetensors"
_OPTIMIZER_NUMBERS = "optimizer.json"
_RNG = "rng.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


_OS_ERROR = re.compile(r"\(os error (\d+)\)")


@contextmanager
def os_errors() -> Generator[None]:
    """What the operating system refuses is an `OSError` in here, also where safetensors puts it into words only."""
    try:
        yield
    except SafetensorError as error:
        number = _OS_ERROR.search(str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error


def save_weights(model: torch.nn.Module, source: Path, folder: Path) -> None:
    """Writes `adapter/`, which peft loads, or `model/`, which transformers loads with its tokenizer.

    Args:
        model: a `PeftModel`, or a plain model that is trained in full.
        source: the model folder that training started from; its tokenizer goes with a full model.
        folder: where to.
    """
    if isinstance(model, PeftModel):
        model.save_pretrained(str(folder / ADAPTER), safe_serialization=True)
        return
    cast(Any, model).save_pretrained(folder / MODEL)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / MODEL / name)


def load_adapter(model: PeftModel, folder: Path) -> None:
    """Puts a saved adapter's weights into the adapter of `model`.

    Raises:
        StorageError: its tensors are not those of this adapter.
    """
    file = folder / ADAPTER / "adapter_model.safetensors"
    saved = load_file(file)
    wanted = get_peft_model_state_dict(model)
    if {name: tensor.shape for name, tensor in saved.items()} != {n: t.shape for n, t in wanted.items()}:
        raise StorageError(f"{file} does not hold the tensors of this adapter")
    set_peft_model_state_dict(model, saved)


def load_model(model: torch.nn.Module, folder: Path) -> None:
    """Puts saved weights into `model`, a plain one that is trained in full.

    Raises:
        StorageError: they are not the weights of this model.
    """
    saved: dict[str, torch.Tensor] = {}
    for file in sorted((folder / MODEL).glob("*.safetensors")):
        saved |= load_file(file)
    parameters = dict(model.named_parameters())  # tied ones once, under the name that is saved
    if not parameters.keys() <= saved.keys() or any(saved[name].shape != p.shape for name, p in parameters.items()):
        raise StorageError(f"{folder / MODEL} does not hold the weights of this model")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])


def save_value(head: torch.nn.Module, folder: Path) -> None:
    """Writes the critic's head."""
    save_file(head.state_dict(), folder / _VALUE)


def load_value(head: torch.nn.Module, folder: Path) -> None:
    """Restores what `save_value` wrote.

    Raises:
        StorageError: it is not the head of this model.
    """
    saved, wanted = load_file(folder / _VALUE), head.state_dict()
    if {name: tensor.shape for name, tensor in saved.items()} != {n: t.shape for n, t in wanted.items()}:
        raise StorageError(f"{folder / _VALUE} does not hold the value head of this model")
    head.load_state_dict(saved)


def save_optimizer(optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter], folder: Path) -> None:
    """Writes both moments of each trained parameter by its name, and how many steps each has taken."""
    tensors: dict[str, torch.Tensor] = {}
    steps: dict[str, float] = {}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter)
        if state:
            steps[name] = float(state["step"])
            tensors |= {f"{moment}.{name}": state[moment].contiguous() for moment in _MOMENTS}
    save_file(tensors, folder / _OPTIMIZER_TENSORS)
    (folder / _OPTIMIZER_NUMBERS).write_text(json.dumps({"steps": steps}, indent=1), "utf-8")


def load_optimizer(optimizer: torch.optim.Optimizer, parameters: dict[str, torch.nn.Parameter], folder: Path) -> None:
    """Restores what `save_optimizer` wrote. Settings such as the learning rate stay those of `optimizer`.

    Raises:
        StorageError: the moments are not those of these parameters.
    """
    tensors = load_file(folder / _OPTIMIZER_TENSORS)
    steps: dict[str, float] = json.loads((folder / _OPTIMIZER_NUMBERS).read_text("utf-8"))["steps"]
    wanted = {f"{moment}.{name}": parameters[name].shape for name in steps if name in parameters for moment in _MOMENTS}
    if steps.keys() - parameters.keys() or {name: tensor.shape for name, tensor in tensors.items()} != wanted:
        raise StorageError(
            f"{folder / _OPTIMIZER_TENSORS} does not hold the moments of this model's trained parameters"
        )
    optimizer.state.clear()
    for name, count in steps.items():
        parameter = parameters[name]
        moments = {moment: tensors[f"{moment}.{name}"].to(parameter) for moment in _MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(count, device=parameter.device), **moments}


def save_rng(folder: Path) -> None:
    """Writes the state of torch's random numbers, the GPU's too when one is in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    save_file(states, folder / _RNG)


def load_rng(folder: Path) -> None:
    """Restores what `save_rng` wrote, as far as the device is there."""
    states = load_file(folder / _RNG)
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
