import json
from pathlib import Path

import pytest
from folder_helpers import make_folder

from ajet_core.errors import ConfigError
from ajet_server.models.folder import open_model_folder


def test_a_folder(tmp_path: Path) -> None:
    folder = open_model_folder(make_folder(tmp_path))
    assert folder.eos_ids == (1,)
    assert folder.max_position_embeddings is None
    assert "im_start" in folder.chat_template


@pytest.mark.parametrize("path", ["/no/such/folder", "", "~nobody_here/x", "a\0b", "x" * 5000, "/etc/passwd"])
def test_what_is_no_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        open_model_folder(path)
    assert caught.value.field == "model.path"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "holds no config.json"),
        ("config.json", b"{", "is not JSON"),
        ("config.json", b"[]", "must hold a JSON object"),
        ("config.json", b"\xff", "cannot be read"),
        ("config.json", b"[" * 100_000, "is not JSON"),
        ("config.json", b"{}", "names no eos_token_id"),
        ("tokenizer.json", None, "holds no tokenizer.json"),
        ("tokenizer_config.json", None, "holds no tokenizer_config.json"),
        ("model.safetensors", None, "neither model.safetensors nor model.safetensors.index.json"),
        ("chat_template.jinja", None, "has no chat template"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
    ],
)
def test_what_is_missing_or_broken(tmp_path: Path, file: str, content: bytes | None, message: str) -> None:
    folder = make_folder(tmp_path)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        open_model_folder(folder)
    assert caught.value.field == "model.path"


def test_where_the_template_and_the_end_may_stand(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    found = open_model_folder(folder)
    assert (found.chat_template, found.eos_ids) == ("x", (7, 9))


def test_weights_in_several_files_are_all_there(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    with pytest.raises(ConfigError, match="neither"):
        open_model_folder(folder)
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ConfigError, match=r"holds no model-00002-of-00002\.safetensors"):
        open_model_folder(folder)
    (folder / shards["b"]).touch()
    open_model_folder(folder)
    index.write_text("{}")
    with pytest.raises(ConfigError, match="has no weight_map"):
        open_model_folder(folder)


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/elsewhere.safetensors", "in/it.safetensors", ".."])
def test_weights_outside_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ConfigError, match="not in the folder"):
        open_model_folder(folder)


@pytest.mark.parametrize("mark", ["adapter_config.json", "adapter_model.safetensors"])
def test_an_adapter_is_no_model(tmp_path: Path, mark: str) -> None:
    folder = make_folder(tmp_path)
    (folder / mark).write_text("{}")
    with pytest.raises(ConfigError, match="holds an adapter, not a model"):
        open_model_folder(folder)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="pickles, which are never read"):
        open_model_folder(folder)
