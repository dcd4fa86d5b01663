# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The trie, compiled. `_forest_py.py` is its readable twin: same results to the last bit.

Nodes are (offset, length) slices of one flat int32 store, which gets each distinct token once. A call is first compared
with the path of the call before it (the finger), whose slices often lie side by side in the store, then goes on from
the token where they part. Children are found by a hash of (node, first token), one table for the whole trie.

Safety: the caller's buffers are only read while `add` runs. Everything kept is in this object's own memory. A buffer
that another thread changes meanwhile can give a wrong trie, but no access out of bounds.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, int32_t, int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ._children cimport Children, find_child, reserve_children, set_child
from ._growth cimport grow
from ._match cimport Sequence, common_with, compare_neighbours, token_at
from ._preorder cimport Node, Table, Trunk, lay_out

import numpy as np

from ._layout import Layout


cdef enum:
    OK = 0
    NO_MEMORY = -1
    TOO_MANY_TOKENS = -2


cdef class Trie:
    """See `TrieBackend` in `_layout`."""

    cdef int32_t* store
    cdef int64_t store_size, store_room
    cdef Node* nodes
    cdef int64_t node_count, node_room
    cdef Children children
    cdef int32_t* finger  # the nodes on the path of the call before, its root first
    cdef int64_t finger_size, finger_room
    cdef int32_t* call_nodes
    cdef int64_t call_count, call_room
    cdef list roots
    cdef bint busy  # a thread is in here
    cdef bint broken  # an add failed half-way, so there may be tokens that no call has

    def __cinit__(self):
        self.roots = []

    def __dealloc__(self):
        free(self.store)
        free(self.nodes)
        free(self.children.slots)
        free(self.finger)
        free(self.call_nodes)

    def new_root(self):
        """A new tree that shares nothing with others; returns its number."""
        self._begin()
        try:
            self._check(self._reserve_nodes(1))
            self.roots.append(self._new_node(0, 0, 0, -1))
        finally:
            self.busy = False
        return len(self.roots) - 1

    def add(self, list prompts, list completions, list roots):
        """Insert the calls in order; returns how many leading tokens of each were there already."""
        cdef Py_ssize_t count = len(roots), held = 0, index
        cdef Py_buffer* views = NULL
        cdef Sequence* sequences = NULL
        cdef int32_t* root_nodes = NULL
        cdef int32_t* scratch = NULL
        cdef int64_t* shared = NULL
        cdef int64_t longest = 0
        cdef int status = OK
        if len(prompts) != count or len(completions) != count:
            raise ValueError("prompts, completions and roots differ in length")
        self._begin()
        try:
            views = <Py_buffer*>malloc((2 * count + 1) * sizeof(Py_buffer))
            sequences = <Sequence*>malloc((count + 1) * sizeof(Sequence))
            root_nodes = <int32_t*>malloc((count + 1) * sizeof(int32_t))
            scratch = <int32_t*>malloc((count + 1) * sizeof(int32_t))
            shared = <int64_t*>malloc((count + 1) * sizeof(int64_t))
            if views == NULL or sequences == NULL or root_nodes == NULL or scratch == NULL or shared == NULL:
                raise MemoryError
            for index in range(count):
                root_nodes[index] = self.roots[roots[index]]
                PyObject_GetBuffer(prompts[index], &views[held], PyBUF_SIMPLE)
                held += 1
                PyObject_GetBuffer(completions[index], &views[held], PyBUF_SIMPLE)
                held += 1
                sequences[index].prompt = <const int32_t*>views[held - 2].buf
                sequences[index].prompt_length = views[held - 2].len // <Py_ssize_t>sizeof(int32_t)
                sequences[index].completion = <const int32_t*>views[held - 1].buf
                sequences[index].length = (
                    sequences[index].prompt_length + views[held - 1].len // <Py_ssize_t>sizeof(int32_t)
                )
                longest = max(longest, sequences[index].length)
            with nogil:
                compare_neighbours(sequences, root_nodes, count, scratch, shared)
                # The forest gets at least as many tokens as its longest call: a chain then grows without a copy.
                status = self._reserve_store(longest - self.store_size)
                for index in range(count if status == OK else 0):
                    status = self._add_one(&sequences[index], root_nodes[index], &shared[index])
                    if status != OK:
                        break
            self.broken = status != OK
            self._check(status)
            return [shared[index] for index in range(count)]
        finally:
            for index in range(held):
                PyBuffer_Release(&views[index])
            free(views)
            free(sequences)
            free(root_nodes)
            free(scratch)
            free(shared)
            self.busy = False

    cdef int _add_one(self, const Sequence* seq, int32_t root, int64_t* shared) noexcept nogil:
        """Insert one call. Room is made before anything is changed, so a failure leaves a valid trie behind.

        Args:
            shared: in: tokens shared with the call before, -1 if not known; out: tokens that were there already.
        """
        cdef int64_t at = 0
        cdef int32_t node
        cdef int status
        if self._reserve_nodes(2) != OK or self._reserve_calls() != OK:
            return NO_MEMORY
        if self.finger_size == 0 or self.finger[0] != root:
            self.finger[0] = root
            self.finger_size = 1
        else:
            at = shared[0] if shared[0] >= 0 else self._compare_finger(seq)
            self._cut_finger(at)
        status = self._reserve_store(seq.length - at)
        if status != OK:
            return status
        node = self.finger[self.finger_size - 1]
        if at < self.nodes[node].depth + self.nodes[node].length:
            node = self._split(node, at - self.nodes[node].depth)
            self.finger[self.finger_size - 1] = node
        else:
            node = self._descend(seq, &at, node)
        shared[0] = at
        if at < seq.length:
            node = self._new_leaf(seq, at, node)
            self._push(node)
        self.call_nodes[self.call_count] = node
        self.call_count += 1
        return OK

    cdef int64_t _compare_finger(self, const Sequence* seq) noexcept nogil:
        """How many tokens the sequence shares with the finger's path."""
        cdef int64_t at = 0, index = 1, run, got
        cdef int32_t offset
        while index < self.finger_size and at < seq.length:
            offset = self.nodes[self.finger[index]].offset
            run = 0
            # Nodes side by side in the store, as in a growing conversation, are compared as one run.
            while index < self.finger_size and self.nodes[self.finger[index]].offset == offset + run:
                run += self.nodes[self.finger[index]].length
                index += 1
            got = common_with(seq, at, self.store + offset, run)
            at += got
            if got < run:
                break
        return at

    cdef void _cut_finger(self, int64_t at) noexcept nogil:
        """Keep the nodes that begin above depth `at`: a search by depth."""
        cdef int64_t low = 1, high = self.finger_size, middle
        while low < high:
            middle = (low + high) // 2
            if self.nodes[self.finger[middle]].depth < at:
                low = middle + 1
            else:
                high = middle
        self.finger_size = low

    cdef int32_t _descend(self, const Sequence* seq, int64_t* at, int32_t node) noexcept nogil:
        """From the end of `node` on, walk down as far as the trie has the sequence; returns the node it ends with.

        A split ends the walk: what follows it differs from all there is, so one call makes at most two nodes.
        """
        cdef int32_t child
        cdef int64_t got
        while at[0] < seq.length:
            child = find_child(&self.children, node, token_at(seq, at[0]))
            if child < 0:
                break
            got = common_with(seq, at[0], self.store + self.nodes[child].offset, self.nodes[child].length)
            if got == 0:
                break  # only if the buffer changed meanwhile
            at[0] += got
            if got < self.nodes[child].length:
                node = self._split(child, got)
                self._push(node)
                break
            node = child
            self._push(node)
        return node

    cdef int32_t _split(self, int32_t lower, int64_t keep) noexcept nogil:
        """Put a new node with the first `keep` tokens above `lower`. `lower` stays the end of the calls it ends."""
        cdef Node* node = &self.nodes[lower]
        cdef int32_t upper = self._new_node(node.offset, <int32_t>keep, node.depth, node.parent)
        set_child(&self.children, node.parent, self.store[node.offset], upper)
        node.offset += <int32_t>keep
        node.length -= <int32_t>keep
        node.depth += <int32_t>keep
        node.parent = upper
        set_child(&self.children, upper, self.store[node.offset], lower)
        return upper

    cdef int32_t _new_leaf(self, const Sequence* seq, int64_t at, int32_t parent) noexcept nogil:
        """Copy the rest of the sequence into the store, as a leaf below `parent`."""
        cdef int32_t offset = <int32_t>self.store_size
        cdef int64_t part = seq.prompt_length - at
        if part > 0:
            memcpy(self.store + self.store_size, seq.prompt + at, part * sizeof(int32_t))
            self.store_size += part
            at += part
        part = seq.length - at
        if part > 0:
            memcpy(self.store + self.store_size, seq.completion + (at - seq.prompt_length), part * sizeof(int32_t))
            self.store_size += part
        cdef int32_t leaf = self._new_node(
            offset,
            <int32_t>(self.store_size - offset),
            self.nodes[parent].depth + self.nodes[parent].length,
            parent,
        )
        set_child(&self.children, parent, self.store[offset], leaf)
        return leaf

    cdef int32_t _new_node(self, int32_t offset, int32_t length, int32_t depth, int32_t parent) noexcept nogil:
        cdef Node* node = &self.nodes[self.node_count]
        node.offset = offset
        node.length = length
        node.depth = depth
        node.parent = parent
        self.node_count += 1
        return <int32_t>(self.node_count - 1)

    cdef void _push(self, int32_t node) noexcept nogil:
        self.finger[self.finger_size] = node  # a path has fewer nodes than the trie, so there is room
        self.finger_size += 1

    cdef int _reserve_nodes(self, int64_t more) noexcept nogil:
        """Room for `more` nodes, for the finger to hold all nodes, and for two children for each new node."""
        cdef int64_t needed = self.node_count + more
        if needed > INT32_MAX:
            return NO_MEMORY
        if not grow(<void**>&self.nodes, &self.node_room, needed, sizeof(Node)):
            return NO_MEMORY
        if not grow(<void**>&self.finger, &self.finger_room, needed, sizeof(int32_t)):
            return NO_MEMORY
        return OK if reserve_children(&self.children, 2 * more) else NO_MEMORY

    cdef int _reserve_store(self, int64_t more) noexcept nogil:
        cdef int64_t needed = self.store_size + more
        if needed > INT32_MAX:
            return TOO_MANY_TOKENS
        return OK if grow(<void**>&self.store, &self.store_room, needed, sizeof(int32_t)) else NO_MEMORY

    cdef int _reserve_calls(self) noexcept nogil:
        cdef int64_t needed = self.call_count + 1
        return OK if grow(<void**>&self.call_nodes, &self.call_room, needed, sizeof(int32_t)) else NO_MEMORY

    def layout(self, list roots):
        """The trie so far as a `Layout`, its trees in the given order."""
        cdef int64_t count = self.node_count - len(self.roots), index
        cdef int32_t* root_nodes = NULL
        cdef int32_t* columns
        cdef int64_t root_count = len(roots)
        cdef Py_buffer views[3]
        cdef int held = 0
        cdef Trunk trunk
        cdef Table table
        cdef bint done
        self._begin()
        try:
            if sorted(roots) != list(range(len(self.roots))):
                raise ValueError("layout needs each root exactly once")
            tokens = np.empty(self.store_size, np.int32)
            nodes = np.empty((5, count), np.int32)
            call_node = np.empty(self.call_count, np.int32)
            for array in (tokens, nodes, call_node):
                PyObject_GetBuffer(array, &views[held], PyBUF_WRITABLE)
                held += 1
            root_nodes = <int32_t*>malloc((root_count + 1) * sizeof(int32_t))
            if root_nodes == NULL:
                raise MemoryError
            for index in range(root_count):
                root_nodes[index] = self.roots[roots[index]]
            trunk = Trunk(
                self.store, self.nodes, self.node_count, self.call_nodes, self.call_count, root_nodes, root_count
            )
            columns = <int32_t*>views[1].buf
            table = Table(
                <int32_t*>views[0].buf,
                columns,
                columns + count,
                columns + 2 * count,
                columns + 3 * count,
                columns + 4 * count,
                <int32_t*>views[2].buf,
            )
            with nogil:
                done = lay_out(&trunk, &table)
            if not done:
                raise MemoryError
            return Layout(tokens, *nodes, call_node)
        finally:
            for index in range(held):
                PyBuffer_Release(&views[index])
            free(root_nodes)
            self.busy = False

    cdef int _begin(self) except -1:
        """While the GIL is released another thread may come in; it must not touch half-changed memory."""
        if self.busy:
            raise RuntimeError("this trie is in use by another thread")
        if self.broken:
            raise RuntimeError("this trie is incomplete, because adding to it failed before; start a new one")
        self.busy = True
        return 0

    cdef int _check(self, int status) except -1:
        if status == NO_MEMORY:
            raise MemoryError
        if status == TOO_MANY_TOKENS:
            raise OverflowError("more than 2**31 - 1 distinct tokens in one forest")
        return 0
