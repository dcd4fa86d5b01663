"""What `continuity` finds and remembers: prompts, and calls."""

from typing import Literal

import msgspec

from ajet_merge import Continuation
from ajet_server.gateway.pieces import Piece
from ajet_server.gateway.request import Conversation, IntIds, Message
from ajet_server.gateway.shapes import Shape

How = Literal["fresh", "extended", "forked"]


class Place(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where a prompt stands among the calls of its attempt; for `Continuity` only.

    Attributes:
        piece: its last piece; None if it is empty.
        base: index of the call that it goes on from.
        how: in which way.
        history: shapes of its messages, without loops.
        tail: the last of its text.
    """

    piece: Piece | None
    base: int | None
    how: How
    history: tuple[Shape, ...]
    tail: str


class Found(msgspec.Struct, frozen=True, eq=False):
    """What a request goes on from.

    Attributes:
        conversation: what was asked.
        extension: the call and how many messages it stands for; None if there is no such call.
        new: about how many characters of text have to be rendered and tokenized, those of known messages included
            where the template makes that necessary.
    """

    conversation: Conversation
    extension: Continuation | None
    new: int


class Prepared(msgspec.Struct, frozen=True, eq=False):
    """A prompt, ready for the engine.

    Attributes:
        prompt_ids: i32[P], `forced_ids` included.
        parent: id of the call that the messages go on from.
        how: `extended`: the prompt begins with the parent's prompt and completion. `forked`: the template changed what
            the parent was shown; they share what comes before. `fresh`: there is no parent. A request for the same
            messages as an earlier call has the prompt, the parent and the way of that call.
        messages: how many of the messages the parent stands for, its response included; 0 without one.
        known_tokens: how many ids the parent's prompt and completion have; an extended prompt begins with them.
        forced_text: text that begins the answer.
        forced_ids: i32[F], its ids, the last of the prompt's.
        tail: up to 200 characters that the prompt ends with, before `forced_text`.
        found: what was asked, and what it goes on from.
        place: see there.
    """

    prompt_ids: IntIds
    parent: str | None
    how: How
    messages: int
    known_tokens: int
    forced_text: str
    forced_ids: IntIds
    tail: str
    found: Found
    place: Place

    @property
    def conversation(self) -> Conversation:
        """What was asked."""
        return self.found.conversation


class PastCall(msgspec.Struct, frozen=True):
    """A recorded call, as `Continuity.restore` needs it.

    Attributes:
        call_id: its id.
        conversation: what was asked.
        opening: text that the answer was made to begin with.
        prompt_ids: i32[P], all of them.
        completion_ids: i32[C].
        response: the message that the completion was read as.
    """

    call_id: str
    conversation: Conversation
    opening: str
    prompt_ids: IntIds
    completion_ids: IntIds
    response: Message


class Recorded(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A call: its prompt, and what it said, in which ids (forced ones included) and with which end of turn."""

    call_id: str
    place: Place
    messages: int
    response: Message
    said: IntIds
    end: int | None
