"""Keys and values of running calls: one slot for each, so that a whole batch is one view of one tensor.

Why not pages: attention on a CPU has no paged kernel, so pages would be gathered into a copy at every layer of every
step. The price is memory: every slot is as long as the longest running call, rounded up to a power of two.
"""

from collections.abc import Sequence

from torch import Tensor

Span = Sequence[Tensor]
"""Keys and values of consecutive tokens of one sequence: for each layer f[H_kv, n, D] keys, then the values."""

_FIRST_SLOTS = 4
_FIRST_LENGTH = 128


class SlotStore:
    """Per layer keys f[S, H_kv, C, D] and values f[S, H_kv, C, D_v], grown by doubling, made at a layer's first use.

    Invariant: what was never written is 0, never garbage. Attention masks those places, but 0 x NaN would be NaN.
    """

    def __init__(self, max_slots: int, max_length: int) -> None:
        self._limits = (max_slots, max_length)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.slots = 0
        """S."""
        self.length = 0
        """C, tokens per slot."""

    def reserve(self, slots: int, length: int) -> None:
        """Makes room for `slots` slots of `length` tokens, keeping what is stored."""
        grown = (
            _grow(self.slots, slots, _FIRST_SLOTS, self._limits[0]),
            _grow(self.length, length, _FIRST_LENGTH, self._limits[1]),
        )
        if grown == (self.slots, self.length):
            return
        self.slots, self.length = grown
        # Layer by layer, so that only one layer is ever held twice.
        for index, (keys, values) in self._layers.items():
            self._layers[index] = (self._enlarged(keys), self._enlarged(values))

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a layer's keys and values; `key` and `value`, f[1, H_kv, T, D], say what to make if it is new."""
        found = self._layers.get(index)
        if found is None:
            found = self._layers[index] = (self._empty(key[0]), self._empty(value[0]))
        return found

    def read(self, slot: int, start: int, stop: int) -> Span:
        """Copies the tokens `start` to `stop` of a slot."""
        return [tensor[slot, :, start:stop].clone() for tensor in self._tensors()]

    def write(self, slot: int, start: int, span: Span) -> None:
        """Puts what `read` gave into a slot."""
        for tensor, part in zip(self._tensors(), span, strict=True):
            tensor[slot, :, start : start + part.shape[1]] = part

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` tokens of a slot over another slot's."""
        if length:
            for tensor in self._tensors():
                tensor[target, :, :length] = tensor[source, :, :length]

    def clear(self) -> None:
        """Forgets everything and gives the memory back."""
        self._layers.clear()
        self.slots = self.length = 0

    def _tensors(self) -> list[Tensor]:
        return [tensor for index in sorted(self._layers) for tensor in self._layers[index]]

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.slots, like.shape[0], self.length, like.shape[-1])

    def _enlarged(self, old: Tensor) -> Tensor:
        new = self._empty(old[0])
        new[: old.shape[0], :, : old.shape[2]] = old
        return new


def _grow(present: int, wanted: int, first: int, limit: int) -> int:
    """Returns the smallest doubling of `first` that holds `wanted`, at most `limit`, never less than `present`."""
    if wanted > limit:
        raise ValueError(f"{wanted} exceeds the limit of {limit}")
    size = max(present, min(first, limit))
    while size < wanted:
        size = min(2 * size, limit)
    return size
