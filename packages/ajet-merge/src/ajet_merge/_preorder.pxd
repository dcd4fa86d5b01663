# cython: language_level=3
"""From a trie in the order its nodes came to a node table in depth-first preorder, longest child first."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memcpy


cdef struct Node:
    int32_t offset  # of its first token in the store
    int32_t length
    int32_t depth  # tokens above it
    int32_t parent  # -1 at roots, which hold no token


cdef struct Trunk:  # what there is to lay out; only read
    const int32_t* store
    const Node* nodes
    int64_t node_count
    const int32_t* call_nodes
    int64_t call_count
    const int32_t* roots
    int64_t root_count


cdef struct Table:  # where to write it: the arrays of a `Layout`
    int32_t* tokens
    int32_t* start
    int32_t* length
    int32_t* parent
    int32_t* depth
    int32_t* end
    int32_t* call_node


cdef struct Child:  # what siblings are ordered by
    int32_t parent
    int32_t height
    int32_t token
    int32_t node


cdef inline int by_height_then_token(const void* a, const void* b) noexcept nogil:
    """Children of one parent side by side, the longest path first; siblings never share a first token."""
    cdef const Child* x = <const Child*>a
    cdef const Child* y = <const Child*>b
    if x.parent != y.parent:
        return -1 if x.parent < y.parent else 1
    if x.height != y.height:
        return -1 if x.height > y.height else 1
    return -1 if x.token < y.token else (1 if x.token > y.token else 0)


cdef inline void find_heights(const Trunk* trie, int32_t* height, int32_t* waiting, int32_t* ready) noexcept nogil:
    """Tokens from each node to its deepest leaf, leaves first: a node is ready once all its children are done."""
    cdef int64_t index, size = 0
    cdef int32_t node, above
    for index in range(trie.node_count):
        height[index] = 0
        waiting[index] = 0
    for index in range(trie.node_count):
        if trie.nodes[index].parent >= 0:
            waiting[trie.nodes[index].parent] += 1
    for index in range(trie.node_count):
        if waiting[index] == 0:
            ready[size] = <int32_t>index
            size += 1
    index = 0
    while index < size:
        node = ready[index]
        index += 1
        height[node] += trie.nodes[node].length
        above = trie.nodes[node].parent
        if above >= 0:
            height[above] = max(height[above], height[node])
            waiting[above] -= 1
            if waiting[above] == 0:
                ready[size] = above
                size += 1

cdef inline void sort_children(
    const Trunk* trie, Child* children, const int32_t* height, int32_t* first
) noexcept nogil:
    """All nodes that have a parent, sorted; `first[p]`..`first[p + 1]` are the children of p."""
    cdef int64_t index, count = 0
    cdef int32_t parent = 0
    for index in range(trie.node_count):
        if trie.nodes[index].parent >= 0:
            children[count].parent = trie.nodes[index].parent
            children[count].height = height[index]
            children[count].token = trie.store[trie.nodes[index].offset]
            children[count].node = <int32_t>index
            count += 1
    qsort(children, count, sizeof(Child), by_height_then_token)
    for index in range(count):
        while parent <= children[index].parent:
            first[parent] = <int32_t>index
            parent += 1
    while parent <= trie.node_count:
        first[parent] = <int32_t>count
        parent += 1

cdef inline void write_preorder(
    const Trunk* trie,
    const Child* children,
    const int32_t* first,
    int32_t* stack,
    int32_t* place,
    Table* out,
) noexcept nogil:
    """Fill the arrays of the layout."""
    cdef int64_t count = 0, written = 0, tree, size, index
    cdef int32_t node, child
    for tree in range(trie.root_count):
        place[trie.roots[tree]] = -1
        stack[0] = trie.roots[tree]
        size = 1
        while size > 0:
            size -= 1
            node = stack[size]
            if trie.nodes[node].parent >= 0:
                place[node] = <int32_t>count
                out.start[count] = <int32_t>written
                out.length[count] = trie.nodes[node].length
                out.parent[count] = place[trie.nodes[node].parent]
                out.depth[count] = trie.nodes[node].depth
                memcpy(
                    out.tokens + written,
                    trie.store + trie.nodes[node].offset,
                    trie.nodes[node].length * sizeof(int32_t),
                )
                written += trie.nodes[node].length
                out.end[count] = <int32_t>written
                count += 1
            for child in range(first[node + 1] - 1, first[node] - 1, -1):  # so that the first comes off first
                stack[size] = children[child].node
                size += 1
    for index in range(count - 1, -1, -1):  # children come after their parent
        if out.parent[index] >= 0:
            out.end[out.parent[index]] = max(out.end[out.parent[index]], out.end[index])
    for index in range(trie.call_count):
        out.call_node[index] = place[trie.call_nodes[index]]


cdef inline bint lay_out(const Trunk* trie, Table* out) noexcept nogil:
    """Write the layout; False if there is no memory."""
    cdef int64_t room = trie.node_count + 1
    cdef Child* children = <Child*>malloc(room * sizeof(Child))
    cdef int32_t* scratch = <int32_t*>malloc(4 * room * sizeof(int32_t))  # four arrays in one block
    if children != NULL and scratch != NULL:
        find_heights(trie, scratch, scratch + room, scratch + 2 * room)
        sort_children(trie, children, scratch, scratch + room)
        write_preorder(trie, children, scratch + room, scratch + 2 * room, scratch + 3 * room, out)
    free(children)
    free(scratch)
    return children != NULL and scratch != NULL
