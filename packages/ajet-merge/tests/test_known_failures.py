"""Failures seen in other merging code. Each test names what went wrong there, and checks what is right."""

import numpy as np

from ajet_merge import Call, Tracker, episode_mean, merge

FALLING = -np.arange(1, 100, dtype=np.float32)


def call(prompt: list[int], completion: list[int], **more: object) -> Call:
    return Call(prompt, completion, FALLING[: len(completion)], **more)  # type: ignore[arg-type]


def test_empty_texts_with_different_tool_calls_stay_two_leaves() -> None:
    forest = merge([call([1, 2], [90, 7, 91]), call([1, 2], [90, 8, 91])])
    assert forest.num_tokens == 2 + 1 + 2 + 2
    assert len(forest.occurrences) == 6
    assert [row.tokens.tolist() for row in forest.timelines()] == [[1, 2, 90, 7, 91], [1, 2, 90, 8, 91]]


def test_an_end_token_the_template_added_stays_masked() -> None:
    stopped_by_length, goes_on = call([1, 2], [3, 4]), call([1, 2, 3, 4, 99, 5], [6])
    forest = merge([stopped_by_length, goes_on])
    added = forest.path(1)[4]
    assert forest.tokens[added] == 99
    assert added not in forest.occurrences.token
    assert len(forest.occurrences) == 3


def test_a_longer_call_recorded_before_the_shorter_gives_one_row() -> None:
    forest = merge([call([1, 2, 3, 4], [5]), call([1, 2], [3])])
    assert [row.calls for row in forest.timelines()] == [(0, 1)]


def test_the_longest_path_is_found_over_all_earlier_calls() -> None:
    tracker = Tracker()
    main = [1, 2, 3]
    shared: list[int] = []
    for turn in range(4):  # a sub-agent speaks between the turns of the main one
        shared.append(tracker.add(call(main, [10 + turn])))
        tracker.add(call([7, 7, turn], [8]))
        main += [10 + turn, 20 + turn]
    assert shared == [0, 4, 6, 8]
    assert max(map(len, tracker.forest().calls)) == 10
    assert len(tracker.forest().timelines()) == 1 + 4


def test_one_text_in_two_tokenizations_forks_at_the_first_different_token() -> None:
    sampled, rendered_again = call([1], [5, 2009, 64, 6]), call([1, 5, 90633, 6], [7])
    forest = merge([sampled, rendered_again])
    by_token = dict(zip(forest.tokens[forest.occurrences.token].tolist(), forest.occurrences.logprob, strict=True))
    assert by_token == {5: -1, 2009: -2, 64: -3, 6: -4, 7: -1}
    fork = forest.path(0)[2], forest.path(1)[2]
    assert forest.parent[fork[0]] == forest.parent[fork[1]] == forest.path(0)[1]


def test_a_render_that_differs_zeroes_no_loss() -> None:
    turns = [call([1, 2], list(range(10, 60))), call([1, 2, *range(10, 59), 61], [7] * 11)]
    forest = merge(turns)
    assert len(forest.occurrences) == 50 + 11
    assert (forest.occurrences.weight == 1).all()


def test_a_completion_that_many_branches_share_is_one_occurrence() -> None:
    first = call([1, 2], [3, 4])
    branches = [call([1, 2, 3, 4, 50 + n], [6]) for n in range(5)]
    forest = merge([first, *branches])
    trained = forest.occurrences.token.tolist()
    assert trained.count(forest.path(0)[2]) == 1
    assert len(trained) == 2 + 5
    assert sum(len(row.occurrences) for row in forest.timelines()) == 7
    assert sum(len(pack.occ_index) for pack in forest.packs(7)) == 7


def test_an_episode_cut_into_many_rows_weighs_as_much_as_another() -> None:
    one_row = [call([1], [2, 3], episode_id="short")]
    many_rows = [call([9], [n, n + 1, n + 2], episode_id="long") for n in range(10, 16)]
    weights = episode_mean(one_row + many_rows)
    assert np.isclose(weights[0].sum(), 0.5)
    assert np.isclose(sum(w.sum() for w in weights[1:]), 0.5)


def test_inputs_are_unmodified() -> None:
    prompt, completion, logprobs, mask = [1, 2], [3, 4], [-1.0, -2.0], [1, 0]
    arrays = np.array(prompt, "i4"), np.array(completion, "i4"), np.array(logprobs, "f4"), np.array(mask, "u1")
    copies = [array.copy() for array in arrays]
    forest = merge([Call(prompt, completion, logprobs, mask), Call(*arrays), call([1, 2, 3, 4, 5], [6])])
    forest.packs(6, ranks=2)
    forest.timelines()
    assert (prompt, completion, logprobs, mask) == ([1, 2], [3, 4], [-1.0, -2.0], [1, 0])
    for array, copy in zip(arrays, copies, strict=True):
        assert array.flags.writeable
        assert array.tobytes() == copy.tobytes()


def test_forks_below_forks_are_a_tree() -> None:
    rest = {name: [30 + n] for n, name in enumerate("0123")}
    made = [call([1], [branch, *rest[name]]) for branch, names in ((10, "01"), (20, "23")) for name in names]
    forest = merge(made)
    sees = (np.arange(7)[:, None] <= np.arange(7)) & (np.arange(7) < forest.subtree_end[:, None])
    assert forest.tokens.tolist() == [1, 10, 30, 31, 20, 32, 33]
    assert [np.flatnonzero(sees[:, q]).tolist() for q in range(7)] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 3],
        [0, 4],
        [0, 4, 5],
        [0, 4, 6],
    ]


def test_no_loss_leaks_across_packed_boundaries() -> None:
    made = [call([n, n + 1], [n + 2], call_id=str(n)) for n in range(10, 50, 10)]
    (pack,) = merge(made).packs(100)
    assert pack.seg_attach.tolist() == [-1] * 4
    for predictor, target in zip(pack.occ_predictor, pack.occ_target, strict=True):
        assert pack.tokens[predictor] == target - 1  # of its own sequence, never of the one before


def test_many_rollouts_of_many_turns_stay_near_the_trunk() -> None:
    trunk = list(range(1000))
    made = [call([*trunk[: 100 + 90 * turn], 5000 + rollout], [7, 8]) for turn in range(8) for rollout in range(8)]
    forest = merge(made)
    assert forest.stats.tokens_unmerged > 26_000
    assert forest.num_tokens == (100 + 90 * 7) + 64 * 3


def test_interleaved_agents_get_one_row_each() -> None:
    a1, b1 = call([1], [2]), call([5], [6])
    a2, b2 = call([1, 2, 3], [4]), call([5, 6, 7], [8])
    assert [row.calls for row in merge([a1, b1, a2, b2]).timelines()] == [(0, 2), (1, 3)]
