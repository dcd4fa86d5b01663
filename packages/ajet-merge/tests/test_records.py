"""Calls in files: what is written is read back bit for bit, and what cannot be right is refused with its place."""

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import merge_strategies as some
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet_merge import Call, MergeError, merge
from ajet_merge.messages import Context
from ajet_merge.records import Record, read_calls, read_records, write_calls, write_records, write_timelines
from ajet_merge.records.delta import find_extended
from ajet_merge.records.jsonl import decimals

SUFFIXES = [".jsonl", ".jsonl.gz", ".parquet"]
ARRAYS = ("prompt_ids", "completion_ids", "logprobs", "mask", "advantage", "weight")
NAMES = ("call_id", "attempt_id", "episode_id", "group_id", "compat_key", "context_exact")
LINE = {"call_id": "a", "prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.5]}


@pytest.fixture(params=SUFFIXES, scope="session")
def suffix(request: pytest.FixtureRequest) -> str:
    if request.param == ".parquet":
        pytest.importorskip("pyarrow")
    return request.param


def bits(call: Call) -> list[Any]:
    return [getattr(call, name).tobytes() for name in ARRAYS] + [getattr(call, name) for name in NAMES]


def written(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.none() | st.text(max_size=4)}),
    max_size=3,
)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    made: list[Record] = []
    for call in draw(some.calls()):
        context = None
        if draw(st.booleans()):
            said = draw(messages)
            ends = sorted(draw(st.integers(0, call.prompt_ids.size)) for _ in said)
            context = Context(
                tuple(said),
                response=draw(st.none() | st.just({"role": "assistant", "content": "é\ud800"})),
                tools=draw(st.sampled_from([(), ({"type": "function", "function": {"name": "f"}},)])),
                message_ends=draw(st.sampled_from([None, np.array(ends, np.int32)])),
            )
        made.append(Record(call, context))
    return made


@settings(max_examples=25)
@given(made=records(), delta=st.booleans())
def test_what_is_written_is_read_back_bit_for_bit(made: list[Record], delta: bool, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"calls{suffix}"
        write_records(path, iter(made), delta=delta)
        again = read_records(path)
        assert [file.name for file in Path(folder).iterdir()] == [path.name]
    assert [bits(record.call) for record in again] == [bits(record.call) for record in made]
    for one, other in zip(again, made, strict=True):
        assert (one.context is None) == (other.context is None)
        if one.context and other.context:
            for name in ("messages", "response", "tools"):
                assert getattr(one.context, name) == getattr(other.context, name)
            ends, others = one.context.message_ends, other.context.message_ends
            assert (None if ends is None else ends.tolist()) == (None if others is None else others.tolist())


def test_every_field_survives(tmp_path: Path, suffix: str) -> None:
    call = Call(
        [2**31 - 1], [0, 1], np.array([-0.1, -1e-45], np.float32), [0, 1], [-0.0, 2.5], [0.25, 3e38],
        "c", "a", "e", "g", "k", context_exact=False,
    )  # fmt: skip
    write_calls(tmp_path / f"x{suffix}", [call])
    assert bits(read_calls(tmp_path / f"x{suffix}")[0]) == bits(call)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_decimals_are_short_and_exact(values: list[float]) -> None:
    numbers = np.array(values, np.float32)
    assert np.array(json.loads(json.dumps(decimals(numbers))), np.float32).tobytes() == numbers.tobytes()


def test_decimals_are_those_a_person_would_write() -> None:
    assert decimals(np.array([-0.1, 3.0, 1e-10], np.float32)) == [-0.1, 3.0, 1e-10]


def test_defaults_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_calls(path, [Call([1], [2, 3], [-1, -2]), Call([1], [2, 3], [-1, -2], advantage=0.5, weight=[1, 2])])
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {"prompt_ids": [1], "completion_ids": [2, 3], "logprobs": [-1.0, -2.0]}
    assert (second["advantage"], second["weight"]) == (0.5, [1.0, 2.0])


def test_equal_calls_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_calls(tmp_path / name, [Call([1], [2], [-1])])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_absent_and_null_mean_the_default(tmp_path: Path) -> None:
    nulls = dict.fromkeys(("mask", "advantage", "weight", "episode_id", "context_exact", "messages", "extends"))
    path = written(tmp_path / "x.jsonl", LINE | nulls, {"prompt_ids": [1], "completion_ids": []})
    one, other = read_records(path)
    assert bits(one.call) == bits(Call([1, 2], [3], [-0.5], call_id="a"))
    assert one.context is None
    assert len(other.call.logprobs) == 0


def test_progress_ends_at_one(tmp_path: Path, suffix: str) -> None:
    seen: list[float] = []
    write_calls(tmp_path / f"x{suffix}", [Call([1], [2], [-1])] * 5)
    read_records(tmp_path / f"x{suffix}", on_progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1


# The delta form


def conversation() -> list[Call]:
    calls: list[Call] = []
    tokens = list(range(100))
    for turn in range(5):
        calls.append(Call(tokens, [1000 + turn] * 3, [-1, -2, -3]))
        tokens = [*tokens, *[1000 + turn] * 3, 2000 + turn]
    return calls


def test_delta_leaves_out_what_an_earlier_call_holds(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write_calls(path, conversation(), delta=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line.get("extends"), line.get("shared"), len(line["prompt_ids"])) for line in lines] == [
        (None, None, 100),
        *((turn - 1, 99 + 4 * turn, 1) for turn in range(1, 5)),
    ]


def test_delta_keeps_a_completion_that_was_sampled_twice(tmp_path: Path, suffix: str) -> None:
    twice = [Call([1, 2], [3, 4], [-1, -2]), Call([1, 2], [3, 4], [-3, -4]), Call([1, 2, 3], [], [])]
    write_calls(tmp_path / f"x{suffix}", twice, delta=True)
    assert list(map(bits, read_calls(tmp_path / f"x{suffix}"))) == list(map(bits, twice))


@given(some.calls())
def test_the_call_extended_shares_as_much_as_any_earlier_one(calls: list[Call]) -> None:
    def common(call: Call, other: Call) -> int:
        pairs = zip(call.prompt_ids.tolist(), some.sequence(other), strict=False)
        same = [a == b for a, b in pairs] + [False]
        return same.index(False) if call.compat_key == other.compat_key else 0

    for index, found in enumerate(find_extended(calls)):
        most = max((common(calls[index], other) for other in calls[:index]), default=0)
        assert (found[1] if found else 0) == most
        assert found is None or common(calls[index], calls[found[0]]) == most


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"extends": 1, "shared": 1}, r"extends = 1: must be the index of an earlier call, 0\.\.0"),
        ({"extends": -1, "shared": 1}, "extends = -1"),
        ({"extends": True, "shared": 1}, "extends = true"),
        ({"extends": 0}, "shared = null"),
        ({"shared": 3}, "extends = null"),
        ({"extends": 0, "shared": 4}, r"shared = 4: must be a number of tokens of call 0, 1\.\.3"),
        ({"extends": 0, "shared": 0}, "shared = 0"),
        ({"extends": 0, "shared": 3, "prompt_ids": [5, -1]}, r"prompt_ids\[1\] = -1"),
    ],
)
def test_a_delta_that_leads_nowhere_is_refused(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", LINE, LINE | {"call_id": "b"} | more)
    with pytest.raises(MergeError, match=rf"x\.jsonl, line 2: call 'b': {message}"):
        read_calls(path)


def test_the_first_call_extends_none(tmp_path: Path) -> None:
    with pytest.raises(MergeError, match="extends = 0: the first call extends none"):
        read_calls(written(tmp_path / "x.jsonl", LINE | {"extends": 0, "shared": 1}))


# What is refused

BAD_LINES = [
    ("{", "no JSON"),
    ("", "is empty: give one JSON object"),
    ("[1]", r"is \[1\]: give one JSON object"),
    ("null", "is null: give one JSON object"),
    ('{"call_id": "a", "call_id": "b"}', "key 'call_id' stands twice"),
    ('{"logprobs": [NaN]}', "NaN is not a number that JSON has"),
    ('{"logprobs": [-Infinity]}', "-Infinity is not a number that JSON has"),
    ("[" * 100_000, "no JSON"),
    ('{"prompt_ids": [' + "9" * 5000 + "]}", "no JSON"),
    (LINE | {"promt": 1}, "call 'a': promt is no key of a call"),
    ({"completion_ids": [], "call_id": "a"}, "call 'a': prompt_ids is missing"),
    ({"prompt_ids": [1], "call_id": "a"}, "call 'a': completion_ids is missing"),
    (LINE | {"logprobs": None}, "call 'a': logprobs is missing: give one number for each of the 1"),
    (LINE | {"logprobs": [-1, -2]}, "call 'a': logprobs has 2 values for 1 completion tokens"),
    (LINE | {"logprobs": -1}, "call 'a': logprobs = -1: must be a list of numbers"),
    (LINE | {"logprobs": [True]}, r"call 'a': logprobs\[0\] = true: must be a list of numbers"),
    (LINE | {"logprobs": ["-1"]}, r"call 'a': logprobs\[0\] = \"-1\""),
    (LINE | {"logprobs": [1e39]}, "call 'a': logprobs"),
    ('{"prompt_ids": [1], "completion_ids": [2], "logprobs": [1e999]}', r"logprobs\[0\] = inf"),
    (LINE | {"prompt_ids": [1, True]}, r"call 'a': prompt_ids\[1\] = true: must be a list of integer"),
    (LINE | {"prompt_ids": [1, 2.0]}, r"call 'a': prompt_ids\[1\] = 2.0"),
    (LINE | {"prompt_ids": "12"}, "call 'a': prompt_ids = \"12\": must be a list of integer"),
    (LINE | {"prompt_ids": [[1], [2, 3]]}, r"call 'a': prompt_ids\[0\] = \[1\]"),
    (LINE | {"prompt_ids": [1, 2**31]}, r"call 'a': prompt_ids\[1\] = 2147483648"),
    (LINE | {"prompt_ids": [], "completion_ids": []}, "call 'a': prompt_ids and completion_ids are both empty"),
    (LINE | {"mask": [2]}, r"call 'a': mask\[0\] = 2"),
    (LINE | {"advantage": "high"}, "call 'a': advantage = \"high\": must be a list of numbers, or one number"),
    (LINE | {"weight": -1}, "call 'a': weight"),
    (LINE | {"episode_id": 5}, "call 'a': episode_id = 5: must be a string"),
    (LINE | {"context_exact": 1}, "call 'a': context_exact = 1"),
    (LINE | {"tools": []}, "call 'a': messages is missing, though tools is there"),
    (LINE | {"messages": "hello"}, "messages = 'hello'"),
    (LINE | {"messages": [{"content": "no role"}]}, r"messages\[0\].role"),
    (
        LINE | {"messages": [{"role": "user"}], "message_ends": [3]},
        r"call 'a': message_ends\[0\] = 3: must be at most .* 2$",
    ),
    (LINE | {"messages": [{"role": "user"}], "message_ends": [[1], [2, 3]]}, r"message_ends\[0\] = \[1\]"),
]


@pytest.mark.parametrize(("line", "message"), BAD_LINES, ids=[message for _, message in BAD_LINES])
def test_a_bad_line_is_refused_with_its_place(line: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(MergeError, match=message) as refused:
        read_calls(written(tmp_path / "x.jsonl", LINE, line))
    assert str(refused.value).startswith(f"{tmp_path / 'x.jsonl'}, line 2")
    assert len(str(refused.value)) < 500


def test_bytes_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"call_id": "\xff"}\n')
    with pytest.raises(MergeError, match="line 1 is no JSON: 'utf-8' codec"):
        read_calls(tmp_path / "x.jsonl")


def test_own_keys_are_ignored_when_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", LINE | {"model": "m", "usage": {"total_tokens": 3}}, LINE)
    assert len(read_calls(path, ignore=["model", "usage"])) == 2
    with pytest.raises(MergeError, match=r"usage is no key of a call .* ignore=\['usage'\] leaves it out"):
        read_calls(path, ignore=["model"])
    with pytest.raises(MergeError, match=r"\['mask'\]: these keys have a meaning here and cannot be ignored"):
        read_calls(path, ignore=["mask"])
    with pytest.raises(MergeError, match="give a list of keys"):
        read_calls(path, ignore="model")


@pytest.mark.parametrize("name", ["x.json", "x", "x.parquet.gz", "x.gz"])
def test_other_suffixes_are_refused(name: str, tmp_path: Path) -> None:
    for attempt in (lambda: read_calls(tmp_path / name), lambda: write_calls(tmp_path / name, [Call([1], [], [])])):
        with pytest.raises(MergeError, match=r"the suffix must be \.jsonl, \.jsonl\.gz or \.parquet"):
            attempt()


def test_no_such_file_directories_and_no_calls(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    with pytest.raises(MergeError, match=r"x\.(jsonl|parquet).* cannot be read: .*[Nn]o such file"):
        read_calls(path)
    with pytest.raises(MergeError, match="there is nothing to write"):
        write_calls(path, [])
    assert list(tmp_path.iterdir()) == []
    path.mkdir()
    with pytest.raises(MergeError, match=r"x\.(jsonl|parquet).* cannot be read: .*directory"):
        read_calls(path)
    with pytest.raises(MergeError, match=r"cannot be written: .*directory"):
        write_calls(path, [Call([1], [], [])])
    with pytest.raises(MergeError, match="cannot be written: No such file"):
        write_calls(tmp_path / "nowhere" / f"x{suffix}", [Call([1], [], [])])
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_holds_no_calls(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    with pytest.raises(MergeError, match="holds no calls"):
        read_calls(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    "content", [b"plain", gzip.compress(b'{"prompt_ids":[1]}\n' * 99)[:-9], b"\x1f\x8b\x08junk" * 9]
)
def test_damaged_gzip_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    with pytest.raises(MergeError, match=r"x\.jsonl\.gz"):
        read_calls(tmp_path / "x.jsonl.gz")


def test_a_truncated_gzip_names_the_last_good_line(tmp_path: Path) -> None:
    lines = b"".join(json.dumps(LINE | {"prompt_ids": [n]}).encode() + b"\n" for n in range(20_000))
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines)[:-100])
    with pytest.raises(MergeError, match=r"damaged after line 1\d{4}: Compressed file ended"):
        read_calls(tmp_path / "x.jsonl.gz")


@pytest.mark.parametrize("value", [float("nan"), b"bytes", {1, 2}])
def test_contexts_that_are_no_json_are_refused(value: Any, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    write_calls(path, [Call([9], [], [])])
    good = Record(Call([1], [], []))
    bad = Record(Call([1], [], []), Context(({"role": "user", "content": value},)))
    with pytest.raises(MergeError, match=r"record 1: messages cannot be written as JSON"):
        write_records(path, [good, bad])
    assert read_calls(path)[0].prompt_ids.tolist() == [9]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_the_users_own_beside_the_path_is_left_alone(tmp_path: Path, suffix: str) -> None:
    own = tmp_path / f"x{suffix}.partial"
    own.write_text("mine")
    write_calls(tmp_path / f"x{suffix}", [Call([1], [], [])])
    assert own.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path, suffix: str) -> None:
    path, both = tmp_path / f"x{suffix}", Barrier(2, timeout=60)

    def write(token: int) -> None:
        def records() -> Iterator[Record]:
            for _ in range(3):
                both.wait()  # both files are open, and every line of one is written between lines of the other
                yield Record(Call([token] * 5000, [], []))

        write_records(path, records())

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, [1, 22]))
    tokens = {int(token) for call in read_calls(path) for token in call.prompt_ids}
    assert len(tokens) == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    write_calls(tmp_path / "x.jsonl", [Call([1], [], [])])
    (tmp_path / "plain").touch()
    assert (tmp_path / "x.jsonl").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_all_is_on_the_disk_before_the_file_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sizes, sync = tmp_path / "x.jsonl", [], os.fsync

    def synced(descriptor: int) -> None:
        assert not path.exists()
        sizes.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    write_calls(path, [Call([1], [], [])])
    assert sizes == [path.stat().st_size]


@pytest.mark.parametrize("delta", [False, True])
def test_calls_and_records_are_not_taken_for_each_other(delta: bool, tmp_path: Path, suffix: str) -> None:
    call = Call([1], [], [])
    records, calls = [Record(call), call], [call, Record(call)]
    with pytest.raises(MergeError, match=r"x\..*: record 1 is a Call: give a Record, .* or use write_calls"):
        write_records(tmp_path / f"x{suffix}", records, delta=delta)  # type: ignore[list-item]
    with pytest.raises(MergeError, match=r"x\..*: call 1 is a Record: give a Call, or use write_records"):
        write_calls(tmp_path / f"x{suffix}", calls, delta=delta)  # type: ignore[list-item]
    assert list(tmp_path.iterdir()) == []


# Parquet as others write it


@pytest.fixture
def pa() -> Any:
    return pytest.importorskip("pyarrow")


def parquet(path: Path, pa: Any, **columns: Any) -> Path:
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(columns), path)
    return path


def test_int32_and_float32_columns_are_not_copied(tmp_path: Path, pa: Any) -> None:
    path = tmp_path / "x.parquet"
    write_calls(path, [Call([1, 2], [3], [-1]), Call([4], [5, 6], [-2, -3])])
    first, second = read_calls(path)

    def address(array: Any) -> int:
        return array.__array_interface__["data"][0]

    for name, items in (("prompt_ids", 2), ("completion_ids", 1), ("logprobs", 1)):
        assert address(getattr(second, name)) == address(getattr(first, name)) + 4 * items
        assert not getattr(first, name).flags.writeable


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint16"])
@pytest.mark.parametrize("make", ["list_", "large_list"])
def test_other_integers_and_large_lists_are_taken(kind: str, make: str, tmp_path: Path, pa: Any) -> None:
    lists = getattr(pa, make)(getattr(pa, kind)())
    path = parquet(
        tmp_path / "x.parquet",
        pa,
        prompt_ids=pa.array([[1, 2], [3]], lists),
        completion_ids=pa.array([[4], []], lists),
        logprobs=pa.array([[-0.1], None], pa.list_(pa.float64())),
        mask=pa.array([[False], None], pa.list_(pa.bool_())),
        advantage=[0.5, None],
    )
    one, other = read_calls(path)
    assert bits(one) == bits(Call([1, 2], [4], [-0.1], [0], advantage=0.5))
    assert bits(other) == bits(Call([3], [], []))


def test_empty_lists_without_a_type_are_taken(tmp_path: Path, pa: Any) -> None:
    path = parquet(tmp_path / "x.parquet", pa, prompt_ids=[[1]], completion_ids=[[]], mask=[None])
    assert bits(read_calls(path)[0]) == bits(Call([1], [], []))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"prompt_ids": [[1, None]]}, r"row 0: call '': prompt_ids\[1\] = null: must be a list of integer token ids"),
        ({"completion_ids": [[None]]}, r"row 0: call '': completion_ids\[0\] = null: must be a list of integer"),
        ({"prompt_ids": [None]}, "row 0: call '': prompt_ids is missing"),
        ({"prompt_ids": [["a"]]}, "column prompt_ids has type list<.*: string>: a list of numbers is right"),
        ({"prompt_ids": ["a"]}, 'prompt_ids = "a": must be a list of integer token ids'),
        ({"prompt_ids": [[1.5]]}, "row 0: call '': prompt_ids"),
        ({"prompt_ids": [[-1]]}, r"row 0: call '': prompt_ids\[0\] = -1"),
        ({"prompt_ids": [[2**40]]}, r"row 0: call '': prompt_ids\[0\] = 1099511627776"),
        ({"completion_ids": [[1]], "logprobs": [[float("nan")]]}, r"row 0: call '': logprobs\[0\] = nan"),
        ({"messages": ["[{]"]}, "row 0: messages is no JSON"),
        ({"messages": [["hello"]]}, r"row 0: messages\[0\] = 'hello': a message must be a mapping"),
        ({"messages": [[None, {"role": "user"}]]}, r"row 0: messages\[0\] = None: a message must be a mapping"),
        ({"messages": [{"role": ["user"], "content": ["hi"]}]}, "row 0: messages = .*: must be a list of messages"),
        ({"response": [{"role": "assistant"}]}, "row 0: call '': messages is missing, though response is there"),
        ({"episode_id": [1.5]}, r"row 0: call '': episode_id = 1\.5: must be a string"),
        ({"group_id": [2.0**53]}, "row 0: call '': group_id = 9007199254740992.0: must be a string"),
        ({"compat_key": [True]}, "row 0: call '': compat_key = True: must be a string"),
        ({"extends": [0.5], "shared": [1.0]}, r"row 0: call '': extends = 0\.5"),
        ({"model": ["m"]}, "column model is no key of a call"),
        ({"usage.total": [3]}, "column usage.total is no key of a call"),
    ],
)
def test_bad_columns_are_refused(columns: dict[str, Any], message: str, tmp_path: Path, pa: Any) -> None:
    path = parquet(tmp_path / "x.parquet", pa, **({"prompt_ids": [[1]], "completion_ids": [[]]} | columns))
    with pytest.raises(MergeError, match=message):
        read_calls(path)


def test_ignored_columns_may_be_of_any_type(tmp_path: Path, pa: Any) -> None:
    path = parquet(
        tmp_path / "x.parquet", pa, prompt_ids=[[1]], completion_ids=[[]], **{"my.own": [[{"role": "user"}]]}
    )
    assert len(read_calls(path, ignore=["my.own"])) == 1


def test_a_missing_number_names_the_row_of_the_file_the_call_and_the_position(tmp_path: Path, pa: Any) -> None:
    rows = 7
    table = pa.table(
        {
            "prompt_ids": [[1]] * rows,
            "completion_ids": [[2, 3]] * rows,
            "logprobs": [[-1.0, -2.0]] * 5 + [[-1.0, None], [None, None]],
            "call_id": [f"c{index}" for index in range(rows)],
        }
    )
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "x.parquet", row_group_size=2)
    with pytest.raises(MergeError) as refused:
        read_calls(tmp_path / "x.parquet")
    place = f"{tmp_path / 'x.parquet'}, row 5: call 'c5': logprobs[1] = null"
    assert str(refused.value) == f"{place}: must be a list of numbers"


def test_a_null_list_may_hide_null_numbers(tmp_path: Path, pa: Any) -> None:
    ids = pa.ListArray.from_arrays([0, 2, 3], pa.array([7, None, 1]), mask=pa.array([True, False]))
    table = pa.table({"prompt_ids": [[1], [2]], "completion_ids": [[], [3]], "logprobs": [[], [-1.0]], "mask": ids})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "x.parquet")
    assert [call.mask.tolist() for call in read_calls(tmp_path / "x.parquet")] == [[], [1]]


def test_integer_names_are_their_decimals(tmp_path: Path, pa: Any) -> None:
    path = parquet(
        tmp_path / "x.parquet",
        pa,
        prompt_ids=[[1], [2]],
        completion_ids=[[], []],
        call_id=[2**60 + 1, 0],
        attempt_id=pa.array([3, None], pa.uint16()),
        episode_id=[7.0, None],
        group_id=pa.array([float("nan"), -2.0]),
    )
    names = [(call.call_id, call.attempt_id, call.episode_id, call.group_id) for call in read_calls(path)]
    assert names == [("1152921504606846977", "3", "7", ""), ("0", "", "", "-2")]


def test_floats_of_the_delta_form_are_taken_in_json_lines_too(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", LINE, LINE | {"prompt_ids": [9], "extends": 0.0, "shared": 3.0})
    assert read_calls(path)[1].prompt_ids.tolist() == [1, 2, 3, 9]


CHAT = Context(
    (
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"path": "x"}}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"depth": 3}}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    ),
    response={"role": "assistant", "content": "done"},
    tools=(
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"path": {"type": "string"}}}}},
        {"type": "function", "function": {"name": "g", "parameters": {"properties": {"depth": {"type": "integer"}}}}},
    ),
)
TOLD = {"messages": list(CHAT.messages), "response": CHAT.response, "tools": list(CHAT.tools)}


def same_context(context: Context | None) -> bool:
    found = context and (context.messages, context.response, context.tools)
    return found == (CHAT.messages, CHAT.response, CHAT.tools)


def test_structs_are_messages_without_the_nulls_that_arrow_fills_in(tmp_path: Path, pa: Any) -> None:
    columns = {key: [value, None] for key, value in TOLD.items()}
    path = parquet(tmp_path / "x.parquet", pa, prompt_ids=[[1], [2]], completion_ids=[[], []], **columns)
    one, other = read_records(path)
    assert same_context(one.context)
    assert other.context is None


def test_large_lists_of_structs_and_maps(tmp_path: Path, pa: Any) -> None:
    said = pa.large_list(pa.struct({"role": pa.string(), "meta": pa.map_(pa.string(), pa.int64())}))

    def path(meta: Any) -> Path:
        messages = pa.array([[{"role": "user", "meta": meta}]], said)
        return parquet(tmp_path / "x.parquet", pa, prompt_ids=[[1]], completion_ids=[[]], messages=messages)

    context = read_records(path(None))[0].context
    assert context
    assert context.messages == ({"role": "user"},)
    with pytest.raises(MergeError, match=r"row 0: messages\[0\]\.meta has type map<.*>: structs are right, or .* JSON"):
        read_records(path([("a", 1)]))


def test_json_inside_of_structs_is_parsed(tmp_path: Path, pa: Any) -> None:
    if not hasattr(pa, "json_"):
        pytest.skip("this pyarrow has no type for JSON")

    def path(content: str) -> Path:
        contents = pa.ExtensionArray.from_storage(pa.json_(), pa.array([content]))
        said = pa.StructArray.from_arrays([pa.array(["user"]), contents], ["role", "content"])
        messages = pa.ListArray.from_arrays([0, 1], said)
        return parquet(tmp_path / "x.parquet", pa, prompt_ids=[[1]], completion_ids=[[]], messages=messages)

    context = read_records(path('[{"type":"text","text":"q"}]'))[0].context
    assert context
    assert context.messages == ({"role": "user", "content": [{"type": "text", "text": "q"}]},)
    with pytest.raises(MergeError, match=r"row 0: messages\[0\]\.content is no JSON"):
        read_records(path("{"))


def test_what_pandas_writes(tmp_path: Path, pa: Any) -> None:
    pandas = pytest.importorskip("pandas")
    line = LINE | {"episode_id": 5, "advantage": 0.5} | TOLD
    frame = pandas.DataFrame([line, LINE | {"call_id": "b", "logprobs": np.array([-2.0])}])
    frame.to_parquet(tmp_path / "x.parquet")
    one, other = read_records(tmp_path / "x.parquet")
    assert bits(one.call) == bits(Call([1, 2], [3], [-0.5], advantage=0.5, call_id="a", episode_id="5"))
    assert bits(other.call) == bits(Call([1, 2], [3], [-2.0], call_id="b"))
    assert same_context(one.context)
    assert other.context is None


def test_a_nan_of_pandas_is_a_missing_number(tmp_path: Path, pa: Any) -> None:
    pandas = pytest.importorskip("pandas")
    lines = [LINE, LINE | {"call_id": "b", "completion_ids": [3, 4], "logprobs": [-1.0, float("nan")]}]
    pandas.DataFrame(lines).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(
        MergeError, match=r"x\.parquet, row 1: call 'b': logprobs\[1\] = null: must be a list of numbers"
    ):
        read_calls(tmp_path / "x.parquet")


def test_the_delta_form_survives_pandas(tmp_path: Path, pa: Any) -> None:
    pandas = pytest.importorskip("pandas")
    write_calls(tmp_path / "x.parquet", conversation(), delta=True)
    frame = pandas.read_parquet(tmp_path / "x.parquet")
    assert frame["extends"].dtype == np.float64
    frame.to_parquet(tmp_path / "y.parquet")
    assert list(map(bits, read_calls(tmp_path / "y.parquet"))) == list(map(bits, conversation()))
    table = pa.Table.from_pandas(frame).drop_columns(["extends", "shared"])
    for name in ("extends", "shared"):
        table = table.append_column(name, pa.array(frame[name].to_numpy(), from_pandas=False))
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "nan.parquet")
    assert list(map(bits, read_calls(tmp_path / "nan.parquet"))) == list(map(bits, conversation()))


@pytest.mark.parametrize("mixed", [False, True])
def test_what_datasets_writes(mixed: bool, tmp_path: Path, pa: Any) -> None:
    datasets = pytest.importorskip("datasets")
    content: Any = [{"type": "text", "text": "q"}] if mixed else "q"
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": content}]
    made = datasets.Dataset.from_list(
        [LINE | {"messages": messages}], **({"on_mixed_types": "use_json"} if mixed else {})
    )
    made.to_parquet(str(tmp_path / "x.parquet"))
    record = read_records(tmp_path / "x.parquet")[0]
    assert bits(record.call) == bits(Call([1, 2], [3], [-0.5], call_id="a"))
    assert record.context
    assert list(record.context.messages) == messages


def test_a_column_that_stands_twice_is_refused(tmp_path: Path, pa: Any) -> None:
    table = pa.Table.from_arrays([pa.array([[1]]), pa.array([[2]])], names=["prompt_ids", "prompt_ids"])
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "x.parquet")
    with pytest.raises(MergeError, match="column prompt_ids stands there twice"):
        read_calls(tmp_path / "x.parquet")


@pytest.mark.parametrize("keep", [0, 3, -20])
def test_damaged_parquet_is_refused(keep: int, tmp_path: Path, pa: Any) -> None:
    path = tmp_path / "x.parquet"
    write_calls(path, [Call([1], [2], [-1])])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(MergeError, match=r"x\.parquet"):
        read_calls(path)


def test_several_row_groups(tmp_path: Path, pa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ajet_merge.records.parquet.ROW_GROUP_NUMBERS", 300)
    write_calls(tmp_path / "x.parquet", conversation())
    assert pytest.importorskip("pyarrow.parquet").ParquetFile(tmp_path / "x.parquet").num_row_groups == 2
    assert list(map(bits, read_calls(tmp_path / "x.parquet"))) == list(map(bits, conversation()))


def test_a_name_that_is_no_unicode_needs_json(tmp_path: Path, pa: Any) -> None:
    call = Call([1], [], [], call_id="\ud800")
    with pytest.raises(MergeError, match=r"record 0: call_id = .* is no Unicode text"):
        write_calls(tmp_path / "x.parquet", [call])
    write_calls(tmp_path / "x.jsonl", [call])
    assert read_calls(tmp_path / "x.jsonl")[0].call_id == call.call_id


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    for attempt in (read_calls, lambda path: write_calls(path, [Call([1], [], [])])):
        with pytest.raises(MergeError, match=r"pip install ajet-merge\[parquet\]"):
            attempt(tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


# Linear rows


def test_timelines_are_written_for_a_trainer(tmp_path: Path, suffix: str) -> None:
    rows = merge(conversation()).timelines()
    path = tmp_path / f"rows{suffix}"
    write_timelines(path, rows)
    if suffix == ".parquet":
        found = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    else:
        content = gzip.decompress(path.read_bytes()) if suffix == ".jsonl.gz" else path.read_bytes()
        found = [json.loads(line) for line in content.splitlines()]
    assert [row["tokens"] for row in found] == [row.tokens.tolist() for row in rows]
    for name in ("mask", "logprobs", "advantage", "weight"):
        assert found[0][name] == getattr(rows[0], name).tolist()
    assert (found[0]["calls"], found[0]["context_exact"]) == ([0, 1, 2, 3, 4], True)
