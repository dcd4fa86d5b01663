# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""One pass over what a call is made of, compiled. `_scan_py.py` is its readable twin, with the same answers."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint32_t

import numpy as np

cdef extern from "Python.h":
    PyObject* borrowed "PyList_GetItem"(object values, Py_ssize_t index) except NULL
    long long as_long_long_and_overflow "PyLong_AsLongLongAndOverflow"(PyObject* value, int* overflow) except? -1
    bint is_int "PyLong_CheckExact"(PyObject* value)


cdef enum:
    EXPONENT = 0x7F800000  # all of these bits are set in infinities and NaNs, and in no other float32
    LANES = 16  # so many numbers at a time: independent of each other, which is what makes the pass as fast as memory


def first_negative(ids):
    """Index of the first negative number of i32[n]; -1 if there is none."""
    cdef Py_buffer view
    cdef const int32_t* values
    cdef int64_t count, index = 0, lane, found = -1
    cdef int32_t seen[LANES]  # the sign bits of all, or-ed
    cdef int32_t any_seen = 0
    PyObject_GetBuffer(ids, &view, PyBUF_SIMPLE)
    values = <const int32_t*>view.buf
    count = view.len // <Py_ssize_t>sizeof(int32_t)
    with nogil:
        for lane in range(LANES):
            seen[lane] = 0
        while index + LANES <= count:
            for lane in range(LANES):
                seen[lane] |= values[index + lane]
            index += LANES
        for lane in range(LANES):
            any_seen |= seen[lane]
        while index < count:
            any_seen |= values[index]
            index += 1
        if any_seen < 0:
            for index in range(count):
                if values[index] < 0:
                    found = index
                    break
    PyBuffer_Release(&view)
    return found


def first_not_finite(numbers):
    """Index of the first NaN or infinity of f32[n]; -1 if there is none."""
    cdef Py_buffer view
    cdef const uint32_t* bits
    cdef int64_t count, index, found = -1
    cdef uint32_t seen = 0
    PyObject_GetBuffer(numbers, &view, PyBUF_SIMPLE)
    bits = <const uint32_t*>view.buf
    count = view.len // <Py_ssize_t>sizeof(uint32_t)
    with nogil:
        for index in range(count):
            seen |= (bits[index] & EXPONENT) == EXPONENT
        if seen:
            for index in range(count):
                if (bits[index] & EXPONENT) == EXPONENT:
                    found = index
                    break
    PyBuffer_Release(&view)
    return found


def packed_ids(list values):
    """A list of ints in 0..2**31-1 as i32[n]; None if anything else is in it."""
    cdef Py_ssize_t count = len(values), index
    cdef Py_buffer view
    cdef int32_t* packed
    cdef PyObject* item
    cdef long long number
    cdef int overflow = 0
    cdef bint good = True
    ids = np.empty(count, np.int32)
    PyObject_GetBuffer(ids, &view, PyBUF_WRITABLE)
    packed = <int32_t*>view.buf
    try:
        for index in range(count):  # nothing here runs Python code, so the list cannot change meanwhile
            item = borrowed(values, index)
            good = is_int(item)
            if good:
                number = as_long_long_and_overflow(item, &overflow)
                good = overflow == 0 and 0 <= number <= INT32_MAX
            if not good:
                break
            packed[index] = <int32_t>number
    finally:
        PyBuffer_Release(&view)
    return ids if good else None
