"""Which weight versions an eval episode may name, and whose checkpoints must stay because one does."""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ajet_core.errors import ConflictError, NotFoundError, UnavailableError
from ajet_server.datadir import checkpoint_steps


class NamedVersions:
    """The versions that open episodes name. Synchronous, so that between two awaits nothing comes in between.

    Invariant: the checkpoint of a version that is named here is not removed, so it can be loaded at any time, by
    another worker too. Version 0 is the model as loaded and needs none.

    Args:
        checkpoints: folder of the checkpoints.
        most: how many may be named at a time.
    """

    def __init__(self, checkpoints: Path, most: int) -> None:
        self._checkpoints = checkpoints
        self._most = most
        self._episodes: Counter[int] = Counter()
        self._kept: frozenset[int] | None = None
        """While an update may remove checkpoints: those that it was told to keep."""

    def take(self, version: int) -> None:
        """Notes one more episode that names a version.

        Raises:
            ConflictError: the job allows none.
            NotFoundError: it is not there.
            UnavailableError: other versions are in use, or an update may be removing its checkpoint.
        """
        if self._most == 0:
            raise ConflictError(
                "weights: this job serves no named versions (engine.eval_versions is 0); leave it out", field="weights"
            )
        there = sorted({0, *checkpoint_steps(self._checkpoints)})
        if version not in there:
            raise NotFoundError(
                f"weights: version {version} is not there; there are {', '.join(map(str, there))} (checkpoint.keep "
                "says how many of the latest are kept)",
                field="weights",
            )
        if version not in self._episodes:
            self._refuse_crowd(version)
        self.hold(version)

    def hold(self, version: int) -> None:
        """The same for an episode that is open already."""
        self._episodes[version] += 1

    def give_back(self, version: int) -> None:
        """One of its episodes was closed."""
        self._episodes[version] -= 1
        if not self._episodes[version]:
            del self._episodes[version]

    @contextmanager
    def keeping(self) -> Generator[list[int]]:
        """For as long as an update may remove checkpoints; gives the versions whose checkpoints have to stay."""
        self._kept = frozenset({0, *self._episodes})
        try:
            yield sorted(self._episodes)
        finally:
            self._kept = None

    def _refuse_crowd(self, version: int) -> None:
        if len(self._episodes) >= self._most:
            names = ", ".join(map(str, sorted(self._episodes)))
            raise UnavailableError(
                f"weights: open episodes use version {names}, and no more may be named at a time "
                f"(engine.eval_versions={self._most})",
                retry_after_s=1.0,
            )
        if self._kept is not None and version not in self._kept:
            raise UnavailableError(
                f"weights: an update is running, which may remove the checkpoint of version {version}",
                retry_after_s=1.0,
            )
