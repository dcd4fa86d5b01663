import json
from pathlib import Path

import pytest
from server_helpers import make_folder

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
        ("model.safetensors", None, "no \\*.safetensors"),
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
