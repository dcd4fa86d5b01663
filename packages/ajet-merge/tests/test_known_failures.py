"""Failures seen in other merging code. Each test names what went wrong there, and checks what is right."""

from dataclasses import replace

import numpy as np
import pytest

from ajet_merge import Call, CallError, Tracker, episode_mean, merge

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
    (row,) = forest.timelines()
    assert row.tokens.tolist() == [1, 2, 3, 4, 99, 5, 6]
    assert row.mask.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert row.logprobs[row.mask == 1].all()  # no trained token has the logprob 0 of a token nobody sampled


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
    """A turn of 61 tokens, rendered otherwise later, once cost 28,404 tokens of loss."""
    sampled = np.arange(28_404, dtype=np.int32) + 10
    long_turn = Call([1, 2], sampled, -np.ones(28_404, np.float32))
    short_turn = call([1, 2, *sampled.tolist(), 3], list(range(100, 161)))
    rendered_otherwise = [*sampled.tolist(), 3, *range(100, 130), 7, *range(131, 161), 3]
    goes_on = call([1, 2, *rendered_otherwise], [5] * 11)
    forest = merge([long_turn, short_turn, goes_on])
    assert len(forest.occurrences) == 28_404 + 61 + 11
    assert (forest.occurrences.weight == 1).all()
    assert sum(int(row.mask.sum()) for row in forest.timelines()) == 28_404 + 61 + 11


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


def test_the_loss_is_divided_by_episodes_and_not_by_rows() -> None:
    made = [call([1], [2, 3], episode_id="a"), *[call([1], [n, 3, 4], episode_id="b") for n in range(10, 14)]]
    weighed = [replace(c, weight=w) for c, w in zip(made, episode_mean(made), strict=True)]
    rows = merge(weighed).timelines()
    assert len(rows) == 5
    assert np.isclose(sum(row.weight.sum() for row in rows), 1)  # not 5, and not 1 for each row


def test_statistics_over_rows_are_those_over_episodes() -> None:
    """A mean reward over rows counts an episode of six rows six times; a weighted one counts each episode once."""
    rewards = {"short": 1.0, "long": 0.0}
    made = [call([1], [2, 3], episode_id="short", advantage=rewards["short"])]
    made += [call([9], [n, 7], episode_id="long", advantage=rewards["long"]) for n in range(10, 16)]
    weighed = [replace(c, weight=w) for c, w in zip(made, episode_mean(made), strict=True)]
    rows = merge(weighed).timelines()
    mean = sum((row.weight * row.advantage).sum() for row in rows)
    variance = sum((row.weight * (row.advantage - mean) ** 2).sum() for row in rows)
    assert np.isclose(mean, np.mean(list(rewards.values())))
    assert np.isclose(variance, np.var(list(rewards.values())))
    assert not np.isclose(mean, np.mean([row.advantage[-1] for row in rows]))


@pytest.mark.parametrize(
    ("logprobs", "problem"),
    [([-1.0, -3.0], "has 2 values for 3 completion tokens"), ([-1.0, None, -3.0], r"\[1\] = None")],
)
def test_a_sampler_step_without_logprob_is_refused_and_shifts_nothing(logprobs: list[float], problem: str) -> None:
    with pytest.raises(CallError, match=rf"call 'turn 2': logprobs ?{problem}") as caught:
        Call([1], [2, 3, 4], logprobs, call_id="turn 2")
    assert (caught.value.call_id, caught.value.field) == ("turn 2", "logprobs")


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
    """8 rollouts of 8 turns became 64 samples of 1.83M tokens."""
    trunk = np.arange(50_000, dtype=np.int32)
    ends = range(7_000, 50_001, 6_142)
    prompts = [np.append(trunk[:end], np.int32(60_000 + rollout)) for end in ends for rollout in range(8)]
    forest = merge([Call(prompt, [7, 8], [-1, -2]) for prompt in prompts])
    assert len(forest.calls) == 64
    assert forest.stats.tokens_unmerged > 1_800_000
    assert forest.num_tokens == ends[-1] + 64 * 3


def test_interleaved_agents_get_one_row_each() -> None:
    a1, b1 = call([1], [2]), call([5], [6])
    a2, b2 = call([1, 2, 3], [4]), call([5, 6, 7], [8])
    assert [row.calls for row in merge([a1, b1, a2, b2]).timelines()] == [(0, 2), (1, 3)]


def test_case_2_a_prefix_in_other_tokens_forks_and_loses_no_sampled_token() -> None:
    turns = [call([1, 2], [3, 30, 31, 4]), call([1, 2, 3, 32, 4, 5], [6, 7])]
    forest = merge(turns)
    assert len(forest.occurrences) == 4 + 2
    assert sorted(forest.occurrences.logprob.tolist()) == [-4, -3, -2, -2, -1, -1]
    assert [(found.call, found.shared) for found in forest.explain().departures] == [(1, 3)]  # told and counted


def test_case_3_a_new_line_lost_between_answer_and_tool_result_is_kept_where_it_was() -> None:
    new_line, answer, tool_result = 198, [3, 4], [5, 6]
    full, lost = call([1, *answer, new_line, *tool_result], [7]), call([1, *answer, *tool_result], [8])
    forest = merge([full, lost])
    assert [forest.tokens[forest.path(n)].tolist() for n in (0, 1)] == [
        [1, 3, 4, 198, 5, 6, 7],
        [1, 3, 4, 5, 6, 8],
    ]
    assert [(found.call, found.shared) for found in forest.explain().departures] == [(1, 3)]


def test_case_4_stripped_reasoning_forks_and_what_was_sampled_is_trained_where_it_was() -> None:
    reasoning, answer = [40, 41, 42], [3, 4]
    thought, stripped = call([1, 2], [*reasoning, *answer]), call([1, 2, *answer, 5], [6])
    kept = call([1, 2, *reasoning, *answer, 5], [6])
    follows, keeps = merge([thought, stripped]), merge([thought, kept])
    assert (follows.num_tokens, keeps.num_tokens) == (2 + 5 + 4, 2 + 5 + 2)
    for forest in (follows, keeps):
        trained = forest.tokens[forest.occurrences.token].tolist()
        assert trained == [*reasoning, *answer, 6]
    assert [len(forest.timelines()) for forest in (follows, keeps)] == [2, 1]


def test_case_8_rows_and_packs_hold_no_token_that_no_call_has() -> None:
    made = [call([1, 2], [3]), call([1, 2, 3, 4], [5, 6, 7]), call([8], [9])]
    forest = merge(made)
    whole = [[*c.prompt_ids.tolist(), *c.completion_ids.tolist()] for c in made]
    assert [row.tokens.tolist() for row in forest.timelines()] == [whole[1], whole[2]]  # not padded to one length
    packs = forest.packs(16, ranks=4)
    assert sorted(t for pack in packs if not pack.is_dummy for t in pack.tokens.tolist()) == list(range(1, 10))
    assert sum(int((pack.weight > 0).sum()) for pack in packs) == len(forest.occurrences)


def test_case_21_sampled_ids_are_never_made_anew_from_text() -> None:
    """The ids 220, 17 came back from a re-render as 1001: the same text, another sequence."""
    sampled, rendered_again = call([1], [220, 17]), call([1, 1001, 5], [6])
    forest = merge([sampled, rendered_again])
    assert forest.tokens[forest.occurrences.token].tolist() == [220, 17, 6]
    assert [row.tokens.tolist() for row in forest.timelines()] == [[1, 1001, 5, 6], [1, 220, 17]]


def test_case_23_fewer_samples_than_ranks_give_dummies_of_weight_zero_that_are_counted() -> None:
    packs = merge([call([1], [2])]).packs(8, ranks=4)
    assert [pack.rank for pack in packs] == [0, 1, 2, 3]
    assert sum(pack.is_dummy for pack in packs) == 3
    assert sum(pack.weight.sum() for pack in packs) == 1
    assert all(pack.num_tokens and len(pack.occ_token) for pack in packs)  # every rank has something to run
