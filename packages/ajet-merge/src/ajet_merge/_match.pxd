# cython: language_level=3
"""Token sequences, and how many leading tokens two of them share."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcmp, memcpy


cdef enum:  # tokens compared by one memcmp: pages while all is equal, then the page that is not, line by line
    PAGE = 2048
    LINE = 32


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


cdef inline int32_t token_at(const Sequence* seq, int64_t at) noexcept nogil:
    return seq.prompt[at] if at < seq.prompt_length else seq.completion[at - seq.prompt_length]
