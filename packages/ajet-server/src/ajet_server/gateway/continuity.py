"""Token continuity: a call that goes on from an earlier one is given that one's exact tokens. See docs/continuity.md.

    prompt ids = the earlier call's prompt ids + its sampled ids + the template's bridge to the next turn

Only the bridge is tokenized. Text that the model saw or sampled never is a second time, unless the chat template itself
changes what an earlier call was shown and the job follows it (`history: template`): then from there on.
"""

from collections.abc import Iterable, Sequence
from threading import Lock

import numpy as np
from msgspec.structs import replace

from ajet_core.errors import RequestError
from ajet_merge import Context, Continuation, Conversations, MergeError
from ajet_merge.messages import canonical_message
from ajet_server.gateway.bridge import Added, Bridge, Seam
from ajet_server.gateway.pieces import Piece, Writer, grown, ids_before, joined, unknown
from ajet_server.gateway.prepared import Found, PastCall, Place, Prepared, Recorded
from ajet_server.gateway.request import Conversation, IntIds, Message
from ajet_server.gateway.shapes import Shape, without_loops

_TAIL = 200
_NOTHING = np.empty(0, np.int32)


class Continuity:
    """The calls of one attempt. Safe to use from several threads.

    Args:
        bridge: of the model; may be shared.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._writer = Writer(bridge.renderer)
        self._lock = Lock()
        self._conversations = Conversations()  # without ids: pieces keep those that calls share once
        self._calls: list[Recorded] = []
        self._said: set[str] = set()
        self._said_lately: list[Message] = []
        self._whole: tuple[Piece | None, IntIds] = None, _NOTHING
        """The last prompt that was made: its last piece, and all its ids."""

    def find(self, conversation: Conversation) -> Found:
        """Finds the call that a request goes on from. Takes less than a microsecond for each known message.

        Raises:
            RequestError: a message or tool cannot be compared, being nested too deep.
        """
        try:
            with self._lock:  # a call that is being recorded is found only when all of it is here
                extension = self._conversations.extends(self._compared(conversation.messages), tools=conversation.tools)
        except MergeError as error:  # nested a hundred deep, say
            field = "tools" if str(error).startswith("tools") else "messages"
            raise RequestError(str(error), field=field) from error
        known = extension.messages if extension and self._appends(extension) else 0
        return Found(conversation, extension, sum(len(message["content"]) for message in conversation.messages[known:]))

    def prepare(self, conversation: Conversation) -> Prepared:
        """Finds the ids that a request goes on from, and makes the rest of its prompt. See `find` and `make`."""
        return self.make(self.find(conversation))

    def make(self, found: Found) -> Prepared:
        """Makes the prompt of a request.

        Costs rendering and tokenizing what is new where the template is local, else rendering everything once or twice
        and tokenizing what is new or changed. Joining ids takes less than a microsecond for each turn.

        Raises:
            RequestError: the template refuses these messages, or writes nothing for them.
        """
        place = self._place(found)
        prepared = self._prepared(found, place, self._bridge.opening(found.conversation, place.tail))
        if not prepared.prompt_ids.size:
            raise RequestError("messages: the model's chat template writes nothing for them", field="messages")
        return prepared

    def record(
        self, call_id: str, prepared: Prepared, completion_ids: Sequence[int] | IntIds, response: Message
    ) -> None:
        """Lets later requests go on from a call. Call it once the call is durable.

        Args:
            call_id: its id.
            prepared: what `prepare` gave for it.
            completion_ids: i32[C], all that was sampled, the end of turn and a stop string included.
            response: the message that the completion was read as.
        """
        ids = np.asarray(completion_ids, np.int32)
        asked, extension = prepared.conversation, prepared.found.extension
        new = asked.messages[extension.messages :] if extension else asked.messages
        context = Context(tuple(self._compared(new)), response, () if extension else asked.tools)
        recorded = Recorded(
            call_id,
            prepared.place,
            len(asked.messages),
            response,
            joined(prepared.forced_ids, ids) if prepared.forced_ids.size else ids,
            int(ids[-1]) if ids.size and int(ids[-1]) in self._bridge.end_ids else None,
        )
        with self._lock:
            self._conversations.add(context, extension)
            self._calls.append(recorded)
            self._said_lately.append(response)

    def restore(self, calls: Iterable[PastCall]) -> None:
        """Records calls of the ledger, in the order in which they were made.

        Their prompts are made again to find what they share. Where that gives other ids than the ledger's (the date in
        a system message, say), the ledger's are taken.
        """
        for past in calls:
            self.record(past.call_id, self._remade(past), past.completion_ids, past.response)

    def _remade(self, past: PastCall) -> Prepared:
        forced = self._forced(past.opening)
        shapes = without_loops(self._bridge.shaper.shapes(past.conversation.messages))
        own = past.prompt_ids[: past.prompt_ids.size - forced.size]
        place, found = Place(unknown(own), None, "fresh", shapes, ""), self.find(past.conversation)
        try:
            again = self._place(found)
        except RequestError:
            again = place
        place = again if np.array_equal(self._ids_up_to(again.piece), own) else replace(place, tail=again.tail)
        return self._prepared(found, place, past.opening)

    def _prepared(self, found: Found, place: Place, opening: str) -> Prepared:
        forced = self._forced(opening)
        base = None if place.base is None else self._calls[place.base]
        return Prepared(
            prompt_ids=joined(self._ids_up_to(place.piece), forced) if opening else self._ids_up_to(place.piece),
            parent=base and base.call_id,
            how=place.how,
            messages=base.messages + 1 if base else 0,
            known_tokens=ids_before(base.place.piece) + base.said.size if base else 0,
            forced_text=opening,
            forced_ids=forced,
            tail=place.tail,
            found=found,
            place=place,
        )

    def _ids_up_to(self, piece: Piece | None) -> IntIds:
        """i32[P]. The next prompt mostly goes on from the last one, and then only the rest is put together."""
        whole, known = self._whole
        new: list[IntIds] = []
        one = piece
        while one is not None and one is not whole:
            new.append(one.ids)
            one = one.before
        ids = joined(*(() if one is None else (known,)), *reversed(new))
        self._whole = piece, ids
        return ids

    def _compared(self, messages: list[Message]) -> list[Message]:
        """The messages without the names with which frameworks sign the model's own answers."""
        return [self._unsigned(message) if "name" in message else message for message in messages]

    def _unsigned(self, message: Message) -> Message:
        if message["role"] != "assistant":
            return message
        self._said.update(map(canonical_message, self._said_lately))
        self._said_lately.clear()
        unsigned = {key: value for key, value in message.items() if key != "name"}
        return unsigned if canonical_message(unsigned) in self._said else message

    def _forced(self, opening: str) -> IntIds:
        return self._bridge.renderer.encode(opening) if opening else _NOTHING

    def _appends(self, extension: Continuation) -> bool:
        """Whether a prompt is likely to begin with that of the call: there the template follows its own text so far."""
        return not extension.response_included or self._calls[extension.call].place.how != "forked"

    def _place(self, found: Found) -> Place:
        extension = found.extension
        if extension is None:
            return self._fresh(found.conversation)
        if not extension.response_included:
            return self._calls[extension.call].place
        return self._going_on(extension.call, found.conversation)

    def _fresh(self, conversation: Conversation) -> Place:
        text = self._bridge.text(conversation)
        history = without_loops(self._bridge.shaper.shapes(conversation.messages))
        return Place(self._writer.write(None, text), None, "fresh", history, text[-_TAIL:])

    def _going_on(self, index: int, conversation: Conversation) -> Place:
        base = self._calls[index]
        answered = replace(conversation, messages=_with_thinking(conversation.messages[base.messages :], base.response))
        shapes = self._bridge.shaper.shapes(answered.messages)
        history = without_loops(shapes, base.place.history)
        seam = self._bridge.seam(base.place.history, shapes, answered)
        if seam and seam.local and (seam.appends or self._bridge.keeps):
            added = self._bridge.after_short(seam, answered)
            if added and (added.written is not None or self._bridge.keeps):
                return self._extended(index, seam, added, history)
        whole = replace(conversation, messages=self._as_recorded(index, conversation.messages))
        return self._over_all(index, seam, whole, history)

    def _over_all(self, index: int, seam: Seam | None, whole: Conversation, history: tuple[Shape, ...]) -> Place:
        """Renders everything, and goes on from what is still the same."""
        base, text = self._calls[index], self._bridge.text(whole)
        piece = base.place.piece
        shared, all_shared = self._writer.shared(text, piece) if piece else (None, True)
        bridge = None
        if seam and (self._bridge.keeps or (all_shared and not (seam.local and not seam.appends))):
            bridge = self._bridge.after_whole(seam, whole, base.messages)
        if seam and bridge is not None and text.endswith(bridge):
            start = piece.text_end if piece else 0
            return self._extended(index, seam, Added(text[start : len(text) - len(bridge)], bridge), history)
        rest = text[shared.text_end :] if shared else text
        return Place(self._writer.write(shared, rest), index, "forked", history, text[-_TAIL:])

    def _extended(self, index: int, seam: Seam, added: Added, history: tuple[Shape, ...]) -> Place:
        base = self._calls[index]
        written, bridge = added.written or "", added.bridge
        if base.end is not None and (seam.closes or self._bridge.renderer.token(base.end) == seam.end):
            written, bridge = written + seam.end, bridge.removeprefix(seam.end)
        said = grown(base.place.piece, written, base.said)
        return Place(self._writer.write(said, bridge), index, "extended", history, bridge[-_TAIL:])

    def _as_recorded(self, index: int | None, messages: list[Message]) -> list[Message]:
        """The messages with the thinking that agents leave out put back, of a call and those that it goes on from."""
        messages = list(messages)
        while index is not None:
            base = self._calls[index]
            messages[base.messages :] = _with_thinking(messages[base.messages :], base.response)
            index = base.place.base
        return messages


def _with_thinking(messages: list[Message], response: Message) -> list[Message]:
    """The first message is the response as an agent sent it back."""
    thinking = response.get("reasoning_content")
    if not thinking or messages[0].get("reasoning_content"):
        return messages
    return [{**messages[0], "reasoning_content": thinking}, *messages[1:]]
