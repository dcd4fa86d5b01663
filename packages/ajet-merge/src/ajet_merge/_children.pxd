# cython: language_level=3
"""A hash table from (node, first token) to the child that begins with it: open addressing, nothing is ever removed."""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free


cdef struct Slot:
    uint64_t key  # (node << 32 | token) + 1; 0 is a free slot
    int32_t child


cdef struct Children:  # all zero is an empty table, without room
    Slot* slots
    int64_t count
    int64_t room  # a power of two, at most half used


cdef inline uint64_t mixed(uint64_t key) noexcept nogil:
    """The finalizer of splitmix64 (Steele et al., 2014): all bits of the key reach all bits of the hash."""
    key = (key ^ (key >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    key = (key ^ (key >> 27)) * <uint64_t>0x94D049BB133111EB
    return key ^ (key >> 31)


cdef inline uint64_t key_of(int32_t node, int32_t token) noexcept nogil:
    return ((<uint64_t>node << 32) | <uint64_t>(<unsigned int>token)) + 1


cdef inline Slot* slot_of(const Children* table, uint64_t key) noexcept nogil:
    """The slot with this key, or the free one where it would go."""
    cdef uint64_t mask = <uint64_t>table.room - 1
    cdef uint64_t at = mixed(key) & mask
    while table.slots[at].key != 0 and table.slots[at].key != key:
        at = (at + 1) & mask
    return &table.slots[at]


cdef inline int32_t find_child(const Children* table, int32_t node, int32_t token) noexcept nogil:
    """The child of `node` that begins with `token`; -1 if there is none."""
    cdef const Slot* slot = slot_of(table, key_of(node, token))
    return slot.child if slot.key != 0 else -1


cdef inline void set_child(Children* table, int32_t node, int32_t token, int32_t child) noexcept nogil:
    """Add or replace a child. There must be room."""
    cdef uint64_t key = key_of(node, token)
    cdef Slot* slot = slot_of(table, key)
    if slot.key == 0:
        slot.key = key
        table.count += 1
    slot.child = child


cdef inline bint reserve_children(Children* table, int64_t more) noexcept nogil:
    """Make room for `more` children; False if there is no memory, and then nothing has changed."""
    cdef Children grown
    cdef int64_t index
    if 2 * (table.count + more) <= table.room:
        return True
    grown.count = table.count
    grown.room = max(256, 2 * table.room)
    while 2 * (grown.count + more) > grown.room:
        grown.room *= 2
    grown.slots = <Slot*>calloc(grown.room, sizeof(Slot))
    if grown.slots == NULL:
        return False
    for index in range(table.room):
        if table.slots[index].key != 0:
            slot_of(&grown, table.slots[index].key)[0] = table.slots[index]
    free(table.slots)
    table[0] = grown
    return True
