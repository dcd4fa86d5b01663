# cython: language_level=3
"""Token sequences, and how many leading tokens two of them share."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcmp, memcpy


cdef enum:  # tokens compared by one memcmp: pages while all is equal, then the page that is not, line by line
    PAGE = 2048
    LINE = 32
    FEW = 1 << 20  # 4 MB, which the last-level cache of any server has for one process


cdef struct Sequence:  # prompt and completion, read as one
    const int32_t* prompt
    const int32_t* completion
    int64_t prompt_length
    int64_t length


cdef inline int64_t common_prefix(const int32_t* a, const int32_t* b, int64_t count) noexcept nogil:
    """How many leading tokens are equal: by pages, by lines, by eight bytes, then by token."""
    cdef int64_t at = 0
    cdef uint64_t left, right
    while count - at >= PAGE and memcmp(a + at, b + at, PAGE * sizeof(int32_t)) == 0:
        at += PAGE
    if count - at < PAGE and memcmp(a + at, b + at, (count - at) * sizeof(int32_t)) == 0:
        return count  # as when a call goes on where the one before ended
    while count - at >= LINE and memcmp(a + at, b + at, LINE * sizeof(int32_t)) == 0:
        at += LINE
    while count - at >= 2:
        memcpy(&left, a + at, 8)  # a plain load, but without alignment rules
        memcpy(&right, b + at, 8)
        if left != right:
            break
        at += 2
    while at < count and a[at] == b[at]:
        at += 1
    return at


cdef inline int64_t common_with(const Sequence* seq, int64_t at, const int32_t* run, int64_t count) noexcept nogil:
    """How many tokens of `run` the sequence has from position `at` on."""
    cdef int64_t done = 0, part
    if count > seq.length - at:
        count = seq.length - at
    if at < seq.prompt_length:
        part = min(count, seq.prompt_length - at)
        done = common_prefix(seq.prompt + at, run, part)
        if done < part:
            return done
    if done < count:
        done += common_prefix(seq.completion + (at + done - seq.prompt_length), run + done, count - done)
    return done


cdef inline int64_t run_from(const Sequence* seq, int64_t at, const int32_t** run) noexcept nogil:
    """Points `run` at the token at `at`; returns how many tokens lie side by side from there on."""
    if at < seq.prompt_length:
        run[0] = seq.prompt + at
        return seq.prompt_length - at
    run[0] = seq.completion + (at - seq.prompt_length)
    return seq.length - at


cdef inline int64_t common_between(const Sequence* a, const Sequence* b, int64_t at, int64_t end) noexcept nogil:
    """The first position in `at`..`end` at which two sequences differ; `end` if there is none."""
    cdef const int32_t* left
    cdef const int32_t* right
    cdef int64_t count, got
    while at < end:
        count = min(end - at, run_from(a, at, &left), run_from(b, at, &right))
        got = common_prefix(left, right, count)
        at += got
        if got < count:
            break
    return at


cdef inline void compare_neighbours(
    const Sequence* seqs, const int32_t* roots, int64_t count, int32_t* waiting, int64_t* shared
) noexcept nogil:
    """For each sequence how many tokens it shares with the one before, if both have the same root; else -1.

    Page by page over all sequences, not sequence by sequence: while a page of one is compared with the next one's, it
    is still in the fastest cache, so each token comes from the slower one once. Of more than `FEW` tokens nothing is
    said: they come from memory, which gives them faster in one long stream.

    Args:
        waiting: scratch for `count` numbers.
    """
    cdef int64_t index, at = 0, left = 0, kept, end, got, tokens = 0
    for index in range(count):
        tokens += seqs[index].length
    for index in range(count):
        shared[index] = -1
        if tokens <= FEW and index > 0 and roots[index] == roots[index - 1]:
            waiting[left] = <int32_t>index
            left += 1
    while left > 0:
        kept = 0
        for index in range(left):
            end = min(seqs[waiting[index]].length, seqs[waiting[index] - 1].length)
            got = common_between(&seqs[waiting[index] - 1], &seqs[waiting[index]], at, min(end, at + PAGE))
            if got == at + PAGE:
                waiting[kept] = waiting[index]
                kept += 1
            else:
                shared[waiting[index]] = got
        left = kept
        at += PAGE


cdef inline int32_t token_at(const Sequence* seq, int64_t at) noexcept nogil:
    return seq.prompt[at] if at < seq.prompt_length else seq.completion[at - seq.prompt_length]
