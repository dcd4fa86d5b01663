"""What must be true of the data folder after all kills, read from outside.

missing     every acknowledged call and finish is in the ledger, with its text and its reward, once
verify      the rest: each episode in at most one batch, each step once, versions only rise, `ajet ledger check`
retrain     the weights: trained anew, each batch of the ledger once and in order, they come out the same
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from ajet_core.config import Job
from ajet_core.events import StepReport
from ajet_server.audit import audit
from ajet_server.capture.ledger import peek
from ajet_server.capture.records import batch_episodes
from ajet_server.datadir import checkpoint_name
from ajet_server.train.checkpoint import read_manifest
from ajet_server.train.trainer import Trainer

_WAIT_S = 30.0
_RANDOM = "rng.safetensors"
"""The one file of a checkpoint that may differ: an engine beside the trainer draws random numbers too."""


@dataclass(frozen=True, slots=True)
class Journal:
    """What the client was told.

    Attributes:
        finishes: reward by episode.
        calls: by id of the answer: the episode, and the text.
        retried: calls that were answered only after the SDK had tried again.
    """

    finishes: dict[str, float]
    calls: dict[str, tuple[str, str]]
    retried: int

    @classmethod
    def read(cls, file: Path) -> Self:
        """Reads the complete lines of a journal: one that the writer was killed in was not finished."""
        text = file.read_text("utf-8") if file.exists() else ""
        entries = [json.loads(line) for line in text.split("\n")[:-1]]
        calls = [(entry["episode"], call) for entry in entries for call in entry["calls"]]
        return cls(
            {entry["episode"]: entry["reward"] for entry in entries},
            {call["id"]: (episode, call["text"]) for episode, call in calls},
            sum(1 for _, call in calls if call["retries"]),
        )


def missing(data: Path, journal: Journal) -> tuple[list[str], list[str]]:
    """Returns the acknowledged episodes that are not in the ledger as they were acknowledged, and faults of calls."""
    with closing(_open(data)) as db:
        finished = dict(db.execute("SELECT id, reward FROM episodes WHERE status = 'finished'").fetchall())
        rows = db.execute("SELECT answer_id, episode_id, response FROM calls").fetchall()
    lost = [episode for episode, reward in journal.finishes.items() if finished.get(episode) != reward]
    held = {answer: (episode, json.loads(response).get("content") or "") for answer, episode, response in rows}
    faults = [
        f"call {answer} is not in the ledger as it was answered"
        for answer, told in journal.calls.items()
        if held.get(answer) != told
    ]
    many = Counter(episode for _, episode, _ in rows)
    told = Counter(episode for episode, _ in journal.calls.values())
    faults += [
        f"episode {episode} has {many[episode]} calls, its agent was answered {count}"
        for episode, count in told.items()
        if many[episode] != count
    ]
    return lost, faults


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found at the end.

    Attributes:
        acknowledged: finishes that the client was told of.
        found: of these in the ledger, with their reward.
        trained_once: finished episodes in a batch that is done.
        trained_twice: episodes that more than one step was done with, and steps that were done twice.
        waiting: finished train episodes that no batch has taken yet.
        set_aside: finished train episodes that none will take: their groups lost a client, and grew too old.
        updates: steps done.
        redone: times that a step which was cut off was done again.
        retried_calls: calls that were answered after the SDK had tried again.
        versions_monotonic: weight versions never fall, in the calls of an episode and in the events.
        problems: everything that is wrong, in words.
    """

    acknowledged: int
    found: int
    trained_once: int
    trained_twice: int
    waiting: int
    set_aside: int
    updates: int
    redone: int
    retried_calls: int
    versions_monotonic: bool
    problems: list[str]

    @property
    def lost(self) -> int:
        """Acknowledged and not found."""
        return self.acknowledged - self.found


def verify(data: Path, journal: Journal) -> Verdict:
    """Looks at everything, on a server that has ended."""
    lost, problems = missing(data, journal)
    problems = [f"episode {episode} was acknowledged and is lost" for episode in lost] + problems
    with closing(_open(data)) as db:
        twice, falls = list(_twice(db)), list(_falls(db))
        done, trained, waiting, set_aside = db.execute(_COUNTS).fetchone()
        redone = db.execute(_REDONE).fetchone()[0]
        checkpoints = list(_strange_checkpoints(db, data))
    problems += twice + falls + checkpoints + [str(problem) for problem in audit(data).problems]
    return Verdict(
        acknowledged=len(journal.finishes),
        found=len(journal.finishes) - len(lost),
        trained_once=trained,
        trained_twice=len(twice),
        waiting=waiting,
        set_aside=set_aside,
        updates=done,
        redone=redone,
        retried_calls=journal.retried,
        versions_monotonic=not falls,
        problems=problems,
    )


_COUNTS = """
    SELECT (SELECT count(*) FROM batches WHERE status = 'done'),
        (SELECT count(*) FROM episodes e JOIN batches b ON b.id = e.batch_id WHERE b.status = 'done'),
        (SELECT count(*) FROM episodes
            WHERE status = 'finished' AND kind = 'train' AND batch_id IS NULL AND stale = 0),
        (SELECT count(*) FROM episodes WHERE stale = 1)
"""
_REDONE = """
    SELECT count(*) FROM events WHERE type = 'state_changed' AND json_extract(data, '$.cause') LIKE '%again%'
"""


def _twice(db: sqlite3.Connection) -> Iterator[str]:
    """Steps that follow each other once, in the table and in what was told; batches that count their own episodes."""
    steps = [row[0] for row in db.execute("SELECT step FROM batches WHERE status = 'done' ORDER BY step")]
    if steps != list(range(1, len(steps) + 1)):
        yield f"the steps that are done are {steps}"
    told = db.execute("SELECT json_extract(data, '$.report.step') FROM events WHERE type = 'step_finished' ORDER BY id")
    for step, count in Counter(row[0] for row in told).items():
        if count > 1:
            yield f"step {step} was told to be done {count} times"
    query = """SELECT b.step, json_extract(b.report, '$.episodes'), count(e.id) FROM batches b
        LEFT JOIN episodes e ON e.batch_id = b.id WHERE b.status = 'done' GROUP BY b.id"""
    for step, trained, bound in db.execute(query):
        if trained != bound:
            yield f"step {step} was done with {trained} episodes, {bound} are bound to it"


def _falls(db: sqlite3.Connection) -> Iterator[str]:
    """Where a weight version is lower than the one before it."""
    calls = db.execute("SELECT episode_id, weight_version FROM calls ORDER BY episode_id, seq").fetchall()
    for (episode, before), (following, after) in pairwise(calls):
        if episode == following and after < before:
            yield f"episode {episode}: a call of version {after} after one of {before}"
    query = """SELECT type, json_extract(data, '$.weight_version') FROM events
        WHERE type IN ('state_changed', 'weights_synced') ORDER BY id"""
    versions = [version for _, version in db.execute(query)]
    for before, after in pairwise(versions):
        if after < before:
            yield f"the events go from version {before} to {after}"


def _strange_checkpoints(db: sqlite3.Connection, data: Path) -> Iterator[str]:
    """Kept checkpoints whose batch is not the step's, or whose optimizer has taken other steps than it counts."""
    batches = dict(db.execute("SELECT step, id FROM batches").fetchall())
    for folder in sorted((data / "checkpoints").glob("step-*")):
        manifest = read_manifest(folder)
        if batches.get(manifest.step) != manifest.batch_id:
            yield f"{folder.name} is of batch {manifest.batch_id}, the ledger says {batches.get(manifest.step)}"
        taken = set(json.loads((folder / "optimizer.json").read_text())["steps"].values())
        if taken != {float(manifest.step)}:
            yield f"{folder.name}: its optimizer has taken {taken} steps"


@dataclass(frozen=True, slots=True)
class Retrained:
    """How far the killed run is from one that trained each batch once.

    Attributes:
        weight_difference: the largest of a weight. Had a batch been trained twice, left out or trained in part, it
            would be as large as a step.
        identical: weights, both moments of the optimizer and its count of steps are the same files, byte for byte. The
            moments tell also of a batch whose rewards were all equal, which moves no weight.
    """

    weight_difference: float
    identical: bool


def retrain(data: Path, job: Job, updates: int, on_step: Callable[[], object]) -> Retrained:
    """Trains the model anew, without a server, each batch of the ledger once and in order, and compares."""
    ledger = data / "ledger.sqlite"
    batches = peek(ledger, lambda db: db.execute("SELECT id FROM batches ORDER BY step").fetchall())
    trainer = Trainer.load(job)
    for step, (batch_id,) in enumerate(batches[:updates], 1):
        episodes = peek(ledger, lambda db, name=batch_id: batch_episodes(db, name))
        report = trainer.update(batch_id, step, episodes, _no_progress)
        on_step()
        if step == updates:
            return _compared(trainer, report, data / "checkpoints" / checkpoint_name(updates))
    raise ValueError(f"the ledger has {len(batches)} batches, not {updates}")


def _compared(trainer: Trainer, report: StepReport, left: Path) -> Retrained:
    with TemporaryDirectory() as folder:
        ours, theirs = read_manifest(trainer.save(Path(folder), report)).files, read_manifest(left).files
    kept = dict(Trainer.load(trainer.job, left).weights())
    difference = max(float((tensor - kept[name]).abs().max()) for name, tensor in trainer.weights())
    same = {name for name in ours.keys() | theirs.keys() if ours.get(name) == theirs.get(name)}
    return Retrained(difference, ours.keys() | theirs.keys() == same | {_RANDOM})


def _no_progress(stage: str, done: int, total: int) -> None:
    """Nobody watches."""


def curve(data: Path, updates: int) -> list[float]:
    """Returns the mean reward of each of the first batches."""
    query = "SELECT json_extract(report, '$.reward_mean') FROM batches WHERE step <= ? ORDER BY step"
    with closing(_open(data)) as db:
        return [row[0] for row in db.execute(query, (updates,))]


def _open(data: Path) -> sqlite3.Connection:
    """The ledger, which cannot be changed through it."""
    file: Any = (data / "ledger.sqlite").absolute().as_uri()
    return sqlite3.connect(f"{file}?mode=ro", uri=True, timeout=_WAIT_S)
