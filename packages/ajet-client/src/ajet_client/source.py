"""Source files of an agent: what was read, whether it changed, and how it is loaded anew.

What a file imports from its own folder is loaded with it and watched with it. Bytecode is left aside: its check knows
whole seconds and sizes only, and would take a quick edit for the old file.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeAlias

from ajet_core.errors import RequestError

Stamp: TypeAlias = "tuple[int, int, int] | None"
"""Time of change (ns), size, number on the disk. None: no such file."""
Sources: TypeAlias = "Mapping[str, Stamp]"
"""Every file that was read, as it was just before."""

DEFAULT_NAME = "agent"
_OURS = (__file__, "<frozen importlib")


class BrokenAgentError(Exception):
    """The agent's code cannot be loaded as it is.

    Attributes:
        sources: the files whose change is worth another try.
    """

    def __init__(self, message: str, sources: Sources) -> None:
        super().__init__(message)
        self.sources = sources


def stamp(path: str | Path) -> Stamp:
    """Returns what tells a file's versions apart."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def changed(sources: Sources) -> bool:
    """Returns whether any of the files is not what it was."""
    return any(stamp(path) != seen for path, seen in sources.items())


@dataclass(frozen=True, slots=True)
class Place:
    """Where a function is: in a file, or in a module that can be imported (and is then not watched)."""

    file: str | None
    module: str | None
    name: str

    def __str__(self) -> str:
        return f"{self.file or self.module}:{self.name}"

    def sources(self) -> Sources:
        """Returns the file as it is now."""
        return {} if self.file is None else {self.file: stamp(self.file)}


def parse_place(text: str) -> Place:
    """Reads `file.py:function`; without a name it is `agent`. Raises `RequestError` if there is no such file."""
    path, colon, name = text.rpartition(":")
    if not colon or name.endswith(".py"):
        path, name = text, DEFAULT_NAME
    if not path.endswith(".py") or not name.isidentifier():
        raise RequestError(f"agent must be 'file.py:function', got {text!r}", field="agent")
    if not Path(path).is_file():
        raise RequestError(f"agent: there is no file {path!r}", field="agent")
    return Place(str(Path(path).resolve()), None, name)


def place_of(function: Callable[..., object]) -> Place:
    """Returns where another process finds a function. Raises `RequestError` for one without a name in a module."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not isinstance(module, str) or not name.isidentifier():
        raise RequestError(
            "agent: isolation='process' needs a function at the top level of a module, or 'file.py:function'; "
            f"got {function!r}",
            field="agent",
        )
    if module != "__main__":
        return Place(None, module, name)
    main = getattr(sys.modules["__main__"], "__file__", None)
    if main is None:
        raise RequestError("agent: what was typed in is in no file that a process could load", field="agent")
    return Place(str(Path(main).resolve()), None, name)


class SourceFile:
    """Loads a function from a file, with what the file imports from its own folder.

    Those modules are in `sys.modules` under their own names, as for a script, until the next `load` or `close`.

    Attributes:
        sources: what the last `load` read.
    """

    def __init__(self, place: Place) -> None:
        if place.file is None:
            raise TypeError(f"{place} is no file")
        self._file, self._name = place.file, place.name
        self._folder = _Folder(str(Path(place.file).parent))

    @property
    def sources(self) -> Sources:
        """Every file that the last `load` read."""
        return self._folder.sources

    def load(self) -> Callable[..., object]:
        """Runs the file as a module and returns its function. Raises `BrokenAgentError`."""
        self._folder.forget()
        self._folder.sources[self._file] = stamp(self._file)
        if self._folder not in sys.meta_path:
            sys.meta_path.insert(_before_path_finder(), self._folder)
        try:
            return self._function(self._run())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - told to who can mend it
            # It may lack a module that is still to be written, so a new name in the folder counts as well.
            folder = str(Path(self._file).parent)
            raise BrokenAgentError(_explain(self._file, error), {**self.sources, folder: stamp(folder)}) from None

    def close(self) -> None:
        """Forgets the modules."""
        self._folder.forget()
        if self._folder in sys.meta_path:
            sys.meta_path.remove(self._folder)

    def _run(self) -> ModuleType:
        name = f"_ajet_agent_{Path(self._file).stem}"
        spec = importlib.util.spec_from_file_location(name, self._file, loader=self._folder.loader(name, self._file))
        if spec is None or spec.loader is None:
            raise ImportError(f"{self._file} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and type hints look themselves up there
        spec.loader.exec_module(module)
        return module

    def _function(self, module: ModuleType) -> Callable[..., object]:
        function = getattr(module, self._name, None)
        if not callable(function):
            raise AttributeError(f"it has no function {self._name!r}")
        return function


class _Folder(importlib.abc.MetaPathFinder):
    """Finds the modules of one folder, before those that are installed: as Python does for a script."""

    def __init__(self, folder: str) -> None:
        self.sources: dict[str, Stamp] = {}
        self._folder = folder
        self._names: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Finds a module of the folder, or one in a package of it."""
        if path is not None and fullname.rpartition(".")[0] not in self._names:
            return None
        for place in (self._folder,) if path is None else path:
            found = importlib.machinery.FileFinder(place, (self.loader, [".py"])).find_spec(fullname)  # pyright: ignore[reportArgumentType]
            if found is not None and found.loader is not None:
                self._names.add(fullname)
                return found
        return None

    def loader(self, name: str, path: str) -> "_Loader":
        """Returns what loads a file and notes it."""
        return _Loader(name, path, self.sources)

    def forget(self) -> None:
        """Lets the next import load everything anew."""
        for name in self._names:
            sys.modules.pop(name, None)
        self._names.clear()
        self.sources = {}


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, sources: dict[str, Stamp]) -> None:
        super().__init__(name, path)
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        self._sources[path] = stamp(path)  # before it is read: a change in between is seen as one
        code: Any = self.source_to_code(self.get_data(path), path)
        return code


def _before_path_finder() -> int:
    finders = sys.meta_path
    return finders.index(importlib.machinery.PathFinder) if importlib.machinery.PathFinder in finders else len(finders)


def _explain(file: str, error: BaseException) -> str:
    """Returns the traceback, without the frames that loaded the file."""
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if not frame.filename.startswith(_OURS)]
    )
    return f"{file} cannot be loaded:\n{''.join(told.format()).rstrip()}"
