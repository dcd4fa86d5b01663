# cython: language_level=3
"""Blocks of memory that grow by doubling."""

from libc.stdint cimport int64_t
from libc.stdlib cimport realloc


cdef enum:
    LEAST = 64


cdef inline bint grow(void** block, int64_t* room, int64_t needed, size_t item_size) noexcept nogil:
    """Make room for `needed` items; False if there is no memory, and then nothing has changed."""
    cdef int64_t wanted
    cdef void* grown
    if needed <= room[0]:
        return True
    wanted = max(LEAST, 2 * room[0], needed)
    grown = realloc(block[0], wanted * item_size)
    if grown == NULL:
        return False
    block[0] = grown
    room[0] = wanted
    return True
