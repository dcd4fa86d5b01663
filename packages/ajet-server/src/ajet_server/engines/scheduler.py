"""Decides who computes what in the next step, and where everybody's keys and values come from.

First come, first served, but training before evaluations, which never hold more than half of the slots: a flood of
them cannot keep a call that is to be trained waiting. A prompt's beginning that a running or a finished call has
computed is copied; one that an earlier call is about to compute is waited for. So the prompt that the calls of a group
share is computed once.

A call that was paused comes in again with what it has sampled as a part of what it has to compute.
"""

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from ajet_core.config import EngineConfig
from ajet_server.engines.base import IntIds
from ajet_server.engines.calls import Call
from ajet_server.engines.kv_slots import SlotStore, Span
from ajet_server.engines.packing import Step
from ajet_server.engines.prefix_cache import PrefixCache, common_prefix

_WORTH_WAITING = 16
"""Tokens. To wait for another call's prompt costs at least a step; a shorter beginning is faster to compute again."""

_AHEAD = 128
"""Tokens of room made for a call before it needs them; to make room moves all that is stored."""


class Scheduler:
    """The calls that wait and the calls that hold a slot.

    Invariants: the call in slot i is `_slots[i]`, without holes. Slots 0.._rows-1 hold the decoding calls (exactly one
    token left to compute), so that they are one view of the store; the calls in the other slots are in `_prefilling`,
    in the order of their arrival.

    Attributes:
        store: where running calls have their keys and values.
        weight_version: of the weights that compute now. Changes only while nobody is running, after `forget`.
    """

    def __init__(self, config: EngineConfig, max_model_len: int, weight_version: int) -> None:
        self.store = SlotStore(config.max_batch_size, max_model_len)
        self.weight_version = weight_version
        self._cache = PrefixCache(config.prefix_cache_tokens)
        self._max_batch_size = config.max_batch_size
        self._max_evaluations = max(config.max_batch_size // 2, 1)
        self._prefill_chunk = config.prefill_chunk
        self._waiting: deque[Call] = deque()
        self._slots: list[Call] = []
        self._rows = 0
        self._prefilling: list[Call] = []

    @property
    def running(self) -> int:
        """Calls that hold a slot."""
        return len(self._slots)

    @property
    def waiting(self) -> int:
        """Calls that wait for a slot."""
        return len(self._waiting)

    def find(self, request_id: str) -> Call | None:
        """Returns the call of that name, if it is here."""
        return next((call for call in (*self._slots, *self._waiting) if call.request_id == request_id), None)

    def add(self, call: Call) -> None:
        """Queues a call."""
        self._waiting.append(call)

    def remove(self, call: Call) -> None:
        """Takes a call out, waiting or running, and keeps its keys and values for others."""
        if call.slot < 0:
            self._waiting.remove(call)
            return
        slot = call.slot
        done = call.tokens[: call.computed]
        self._cache.insert(done, self.weight_version, lambda start, stop: self.store.read(slot, start, stop))
        self._free(call)

    def pause(self) -> int:
        """Takes every running call out of its slot, to the front of those that wait, and returns how many there were.

        Their keys and values are not kept: they are of weights that are about to change.
        """
        for call in reversed(self._slots):
            call.pause()
            self._waiting.appendleft(call)
        paused = len(self._slots)
        self._slots, self._rows, self._prefilling = [], 0, []
        return paused

    @contextmanager
    def alone(self, call: Call) -> Generator[None]:
        """Has `call` here and nobody else, and removes it at the end. Only for when nobody is running."""
        waiting, self._waiting = self._waiting, deque([call])
        try:
            yield
            self.remove(call)
        finally:
            self._waiting = waiting

    def forget(self) -> None:
        """Drops every key and value. Only for when nobody is running."""
        self._cache.clear()
        self.store.clear()

    def next_step(self) -> Step:
        """Admits calls and says what to compute."""
        self._admit()
        chunks: list[tuple[Call, int]] = []
        riders: list[tuple[Call, Call]] = []
        budget = self._prefill_chunk
        for call in tuple(self._prefilling):
            leader = _leader(call, chunks)
            if leader is not None:
                riders.append((call, leader))
            elif not self._ready(call):
                continue
            elif call.uncomputed == 1:
                self._promote(call)
            elif budget:
                count = min(budget, call.uncomputed)
                chunks.append((call, count))
                budget -= count
        return Step(self._slots[: self._rows], chunks, riders)

    def finish(self, step: Step) -> None:
        """Notes that a step has been computed."""
        step.advance()
        for call, leader in step.riders:
            self.store.copy(leader.slot, call.slot, leader.computed)
            call.begin(leader.computed)

    def _admit(self) -> None:
        while len(self._slots) < self._max_batch_size and (call := self._next()) is not None:
            self._waiting.remove(call)
            call.slot = len(self._slots)
            self._slots.append(call)
            self._prefilling.append(call)
        ahead = (min(call.known + _AHEAD, len(call.tokens)) for call in self._slots)
        self.store.reserve(len(self._slots), max(ahead, default=0))

    def _next(self) -> Call | None:
        """Returns who gets the next slot: the first to be trained, else the first evaluation if there is room."""
        to_train = next((call for call in self._waiting if not call.request.evaluation), None)
        if to_train is not None or not self._waiting:
            return to_train
        running = sum(call.request.evaluation for call in self._slots)
        return self._waiting[0] if running < self._max_evaluations else None

    def _ready(self, call: Call) -> bool:
        """Returns whether the call may compute; the first time, copies the beginning that others have computed.

        The last token is computed in any case: its logits are what the next one is sampled from.
        """
        if call.started:
            return True
        wanted = call.ids[:-1]
        source, shared = self._closest_running(wanted)
        kept, pieces = self._cache.match(wanted, self.weight_version)
        promised = self._promised(wanted)
        if promised >= _WORTH_WAITING and promised > max(shared, kept):
            return False
        if shared >= kept and source is not None:
            self.store.copy(source.slot, call.slot, shared)
            kept = shared
        else:
            self._write(call, pieces)
        call.begin(kept)
        return True

    def _write(self, call: Call, pieces: list[Span]) -> None:
        at = 0
        for span in pieces:
            self.store.write(call.slot, at, span)
            at += span[0].shape[1]

    def _closest_running(self, wanted: IntIds) -> tuple[Call | None, int]:
        """Returns the running call that has computed most of a beginning, and how much of it."""
        best, length = None, 0
        for call in self._slots:
            shared = common_prefix(wanted, call.tokens[: call.computed])
            if shared > length:
                best, length = call, shared
        return best, length

    def _promised(self, wanted: IntIds) -> int:
        """Returns how much of a beginning some call is going to compute."""
        return max((common_prefix(wanted, call.ids) for call in self._prefilling if call.started), default=0)

    def _promote(self, call: Call) -> None:
        """Moves a call to the end of the decoding rows."""
        self._prefilling.remove(call)
        other = self._slots[self._rows]
        if other is not call:
            self._swap(call, other)
        self._rows += 1

    def _swap(self, left: Call, right: Call) -> None:
        saved = self.store.read(left.slot, 0, left.computed)
        self.store.copy(right.slot, left.slot, right.computed)
        self.store.write(right.slot, 0, saved)
        left.slot, right.slot = right.slot, left.slot
        self._slots[left.slot], self._slots[right.slot] = left, right

    def _free(self, call: Call) -> None:
        """Closes the hole that a call leaves: the last decoding row moves into it, and the last call into that."""
        hole = call.slot
        if hole < self._rows:
            self._rows -= 1
            self._move(self._rows, hole)
            hole = self._rows
        else:
            self._prefilling.remove(call)
        self._move(len(self._slots) - 1, hole)
        self._slots.pop()

    def _move(self, source: int, target: int) -> None:
        if source != target:
            call = self._slots[source]
            self.store.copy(source, target, call.computed)
            self._slots[target] = call
            call.slot = target


def _leader(call: Call, chunks: list[tuple[Call, int]]) -> Call | None:
    """Returns the call whose ids are the same and are computed to their end in this step, if `call` has none itself."""
    if call.started:
        return None
    ending = (other for other, count in chunks if count == other.uncomputed)
    return next((other for other in ending if np.array_equal(other.ids, call.ids)), None)
