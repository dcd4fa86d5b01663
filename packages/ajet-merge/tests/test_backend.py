"""The choice of the trie, and what only the compiled one could get wrong."""

import gc
import os
import shutil
import subprocess
import sys
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from merge_strategies import calls

import ajet_merge
from ajet_merge import Call, Forest, Tracker, _forest, _forest_py, merge


@given(calls())
def test_both_tries_give_the_same_layout(made: list[Call]) -> None:
    layouts = []
    for module in (_forest, _forest_py):
        trie = module.Trie()
        roots = [trie.new_root() for _ in range(2)]
        prompts, completions = [call.prompt_ids for call in made], [call.completion_ids for call in made]
        shared = trie.add(prompts, completions, [roots[bool(call.compat_key)] for call in made])
        layouts.append((shared, *[(array.dtype, array.tolist()) for array in trie.layout(roots[::-1])]))
    assert layouts[0] == layouts[1]


def run(code: str, **environment: str) -> str:
    env = {key: value for key, value in os.environ.items() if key != "AJET_MERGE_PURE"}
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], env=env | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_compiled_core_is_the_default() -> None:
    assert run("import ajet_merge; print(ajet_merge.backend)").split() == ["cython"]


def test_the_twin_can_be_asked_for_without_a_warning() -> None:
    assert run("import ajet_merge; print(ajet_merge.backend)", AJET_MERGE_PURE="1").split() == ["python"]


def test_a_missing_extension_is_told_once_and_loudly(tmp_path: Path) -> None:
    package = Path(ajet_merge.__file__).parent
    shutil.copytree(package, tmp_path / "ajet_merge", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ajet_merge; print(ajet_merge.backend)"
    said = run(code)
    assert said.splitlines()[0] == "python"
    assert said.count("RuntimeWarning: ajet_merge: the compiled extensions are not installed") == 1


def random_sequence(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.integers(0, 50_000, size).astype(np.int32)


def chain(turns: int, step: int) -> list[Call]:
    sequence = random_sequence(np.random.default_rng(turns), turns * step + 1)
    ends = range(1, turns * step + 2, step)
    return [Call(sequence[:a], sequence[a:b], np.zeros(step, np.float32)) for a, b in pairwise(ends)]


def siblings(count: int) -> list[Call]:
    rng = np.random.default_rng(count)
    trunk = random_sequence(rng, 300)
    return [Call(trunk, [60_000 + n, *random_sequence(rng, 19)], np.zeros(20, np.float32)) for n in range(count)]


def test_a_chain_of_three_hundred_turns_is_one_row() -> None:
    made = chain(300, 40)
    forest = merge(made)
    assert forest.num_tokens == 300 * 40 + 1
    assert len(forest.timelines()) == 1
    assert np.array_equal(forest.path(299), np.arange(300 * 40 + 1))
    assert len(forest.occurrences) == 300 * 40


@pytest.mark.parametrize("sizes", [(1000, 3000), (5000, 2)])
def test_long_common_prefixes_are_found_to_the_token(sizes: tuple[int, int]) -> None:
    """Across the blocks in which tokens are compared, and across the border of prompt and completion."""
    whole = random_sequence(np.random.default_rng(1), sum(sizes))
    for fork in (0, 1, 999, 1000, 1023, 1024, 1025, 2047, 2048, sum(sizes) - 1):
        other = whole.copy()
        other[fork] += 1
        for parts in (sizes, sizes[::-1]):
            tracker = Tracker()
            tracker.add(Call(whole[: sizes[0]], whole[sizes[0] :], np.zeros(sizes[1], np.float32)))
            second = Call(other[: parts[0]], other[parts[0] :], np.zeros(parts[1], np.float32))
            assert tracker.add(second) == fork
            assert np.array_equal(tracker.forest().tokens[tracker.forest().path(1)], other)


def test_a_thousand_siblings() -> None:
    made = siblings(1024)
    forest = merge(made)
    assert forest.num_tokens == 300 + 20 * 1024
    packs = forest.packs(4096, ranks=4)
    assert sum(len(pack.occ_index) for pack in packs if not pack.is_dummy) == 20 * 1024
    assert len(forest.timelines()) == 1024


def test_a_path_of_one_token_nodes_is_as_deep_as_it_gets() -> None:
    made = [Call([1] * n, [2], [-1]) for n in range(1, 1500)]
    forest = merge(made)
    assert forest.num_tokens == 1499 * 2
    assert len(forest.timelines()) == 1499
    assert len(forest.packs(4000)) == 1


def test_a_failed_add_leaves_the_tracker_usable() -> None:
    tracker = Tracker()
    tracker.add(Call([1, 2], [3], [-1]))
    with pytest.raises(ajet_merge.MergeError):
        tracker.add_all([Call([1, 2], [4], [-1]), None])  # type: ignore[list-item]
    tracker.add(Call([1, 2], [5], [-1]))
    assert tracker.forest().tokens.tolist() == [1, 2, 3, 5]


def test_a_buffer_written_after_adding_is_not_seen() -> None:
    ids = np.array([1, 2, 3], np.int32)
    tracker = Tracker()
    tracker.add(Call(ids, [4], [-1]))
    ids[:] = 9
    assert tracker.add(Call([1, 2, 3, 4], [5], [-1])) == 4
    assert tracker.forest().tokens.tolist() == [1, 2, 3, 4, 5]


def test_merging_again_and_again_keeps_no_memory(backend: str) -> None:
    made = siblings(64)
    merge(made).packs(4096)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            merge(made).packs(4096)
        gc.collect()  # the twin's nodes refer to each other
        assert tracemalloc.get_traced_memory()[0] - before < 50_000
    finally:
        tracemalloc.stop()


def test_the_compiled_trie_frees_its_memory() -> None:
    """In a process of its own, because the high-water mark of memory never comes down."""
    code = """
import resource
import numpy as np
from ajet_merge import Call, merge
call = Call(np.arange(500_000, dtype=np.int32), [1], [-1.0])
merge([call])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(100):
    merge([call])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    assert int(run(code)) < 60_000  # KiB; a leak would be 200,000


def test_the_compiled_trie_checks_its_own_arguments() -> None:
    trie = _forest.Trie()
    trie.new_root()
    one = np.array([1], np.int32)
    with pytest.raises(ValueError, match="differ in length"):
        trie.add([one], [], [0])
    with pytest.raises(IndexError):
        trie.add([one], [one], [3])
    with pytest.raises(ValueError, match="each root exactly once"):
        trie.layout([0, 0])
    with pytest.raises((BufferError, ValueError)):
        trie.add([np.zeros((4, 4), np.int32)[:, 1]], [one], [0])  # not contiguous
    assert isinstance(Forest([], trie.layout([0])), Forest)


def test_exported_names() -> None:
    assert sorted(ajet_merge.__all__) == ajet_merge.__all__
    assert all(getattr(ajet_merge, name) is not None for name in ajet_merge.__all__)


@pytest.mark.parametrize("seed", range(4))
def test_calls_that_part_around_the_pages_of_the_comparison(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trunk = random_sequence(rng, 5000)
    made: list[Call] = []
    for at in rng.permutation([2046, 2047, 2048, 2049, 2050, 4095, 4096, 4097, 4999]).tolist():
        other = np.concatenate([trunk[:at], 60_000 + rng.integers(0, 3, 40).astype(np.int32)])
        for sequence in (trunk[: at + 1], other, other[: at + 20]):
            split = int(rng.choice([0, 1, at - 1, at, len(sequence) - 1]))
            made.append(Call(sequence[:split], sequence[split:], np.zeros(len(sequence) - split, np.float32)))
    together, one_by_one = merge(made), Tracker()
    for call in made:
        one_by_one.add(call)
    twin = _forest_py.Trie()
    twin.new_root()
    twin.add([call.prompt_ids for call in made], [call.completion_ids for call in made], [0] * len(made))
    for layout in (one_by_one.forest().layout, twin.layout([0])):
        assert all(np.array_equal(a, b) for a, b in zip(together.layout, layout, strict=True))
