"""What no file of ours does: evaluate, unpickle, fetch, start a shell, or import what it is told to."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

_PACKAGES = Path(__file__).parents[2]
SOURCES = sorted(_PACKAGES.glob("*/src/**/*.py"))

_EVALUATING = {"eval", "exec", "compile", "__import__", "execfile"}
_PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
_FETCHING = {"httpx", "httpx2", "requests", "aiohttp", "urllib3", "urllib.request", "http.client", "ftplib", "smtplib"}
_SHELLS = {"os.system", "os.popen", "os.execv", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn"}
_UNSAFE = {"torch.load", "torch.hub.load", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "pandas.read_pickle"}
_IMPORTERS = {
    "ajet-cli/src/ajet_cli/main.py",
    "ajet-client/src/ajet_client/__init__.py",
    "ajet-client/src/ajet_client/isolated.py",
    "ajet-merge/src/ajet_merge/_backend.py",
    "ajet-merge/src/ajet_merge/adapters/_optional.py",
}
"""They import by names that our own files have; `isolated`, in an agent's process, what its user asked for."""


def _trees() -> Iterator[tuple[str, ast.AST]]:
    for file in SOURCES:
        yield file.relative_to(_PACKAGES).as_posix(), ast.parse(file.read_text("utf-8"))


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    """File, dotted name of what is called, and the call."""
    for name, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield name, ast.unparse(node.func), node


def _given(call: ast.Call) -> list[str]:
    return [ast.unparse(value) for value in (*call.args, *(keyword.value for keyword in call.keywords))]


def _imports() -> Iterator[tuple[str, str]]:
    for name, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                yield name, node.module
                yield from ((name, f"{node.module}.{alias.name}") for alias in node.names)


def test_there_is_something_to_look_at() -> None:
    assert {file.relative_to(_PACKAGES).parts[0] for file in SOURCES} >= {
        *("ajet-core", "ajet-merge", "ajet-client", "ajet-server", "ajet-cli")
    }


def test_nothing_is_evaluated() -> None:
    assert [(file, called) for file, called, _ in _calls() if called in _EVALUATING] == []


def test_nothing_is_unpickled() -> None:
    assert [(file, module) for file, module in _imports() if module.split(".")[0] in _PICKLING] == []
    unsafe = [(file, called) for file, called, call in _calls() if called in _UNSAFE and "_Loader" not in _given(call)]
    assert unsafe == []
    keywords = [
        (file, called)
        for file, called, call in _calls()
        for keyword in call.keywords
        if keyword.arg in ("allow_pickle", "weights_only", "trust_remote_code")
        and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is (keyword.arg == "weights_only"))
    ]
    assert keywords == []


def test_yaml_is_read_by_safe_loaders() -> None:
    """The only loader of ours is a safe one."""
    loaders = [
        (file, ast.unparse(base))
        for file, tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if "Loader" in ast.unparse(base) and "importlib" not in ast.unparse(base)
    ]
    assert loaders == [("ajet-cli/src/ajet_cli/jobfile.py", "yaml.SafeLoader")]


def test_no_shell_is_started() -> None:
    assert [(file, called) for file, called, _ in _calls() if called in _SHELLS] == []
    assert [
        (file, called) for file, called, call in _calls() for keyword in call.keywords if keyword.arg == "shell"
    ] == []


def test_the_server_fetches_nothing() -> None:
    """It has no HTTP client: no address in a request, a job or a data set can make it connect anywhere."""
    found = [
        (file, module)
        for file, module in _imports()
        if file.startswith("ajet-server/")
        and any(module == name or module.startswith(f"{name}.") for name in _FETCHING)
    ]
    assert found == []
    connecting = ("create_connection", "urlopen", "urlretrieve", "hf_hub_download", "snapshot_download")
    assert [
        (file, called)
        for file, called, _ in _calls()
        if file.startswith("ajet-server/") and called.rpartition(".")[2] in connecting
    ] == []


def test_models_are_loaded_from_the_disk_alone() -> None:
    loading = [call for _, called, call in _calls() if called.endswith(".from_pretrained")]
    assert loading
    for call in loading:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert given.get("local_files_only") == "True", ast.unparse(call)


def test_modules_are_imported_by_their_names() -> None:
    told = {
        file
        for file, called, call in _calls()
        if called.rpartition(".")[2] == "import_module" and not isinstance(call.args[0], ast.Constant)
    }
    assert told <= _IMPORTERS


@pytest.mark.parametrize("text", ["eval('1')", "import pickle", "yaml.load(x)", "f(shell=True)", "import httpx2"])
def test_the_search_finds(monkeypatch: pytest.MonkeyPatch, text: str, tmp_path: Path) -> None:
    """Each of the tests above can fail."""
    file = tmp_path / "ajet-server" / "src" / "bad.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    monkeypatch.setitem(globals(), "_PACKAGES", tmp_path)
    monkeypatch.setitem(globals(), "SOURCES", [file])
    failed = 0
    for test in (
        test_nothing_is_evaluated,
        test_nothing_is_unpickled,
        test_no_shell_is_started,
        test_the_server_fetches_nothing,
    ):
        try:
            test()
        except AssertionError:
            failed += 1
    assert failed == 1
