"""Prompts as chains of pieces. Calls that share the beginning of a prompt share its pieces, in memory too."""

from hashlib import blake2b

import msgspec
import numpy as np

from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import IntIds


class Piece(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Some text of a prompt, the ids that stand for it, and the piece before it.

    Many are kept as long as their episode, and none refers to itself, so the garbage collector need not look at them.

    Attributes:
        before: None where the prompt begins.
        ids: i32[n]. Of a response: as sampled, whatever the template makes of it.
        text_end: characters of the template's text up to the end of this piece.
        ids_end: ids up to there.
        digest: of this piece's text. b"" fits no text.
    """

    before: "Piece | None"
    ids: IntIds
    text_end: int
    ids_end: int
    digest: bytes

    def chain(self) -> list["Piece"]:
        """All pieces up to this one, in order."""
        pieces: list[Piece] = []
        piece: Piece | None = self
        while piece is not None:
            pieces.append(piece)
            piece = piece.before
        pieces.reverse()
        return pieces


def end_of(piece: Piece | None) -> int:
    """Characters of text up to the end of a piece; 0 for none."""
    return piece.text_end if piece else 0


def ids_before(piece: Piece | None) -> int:
    """Ids up to the end of a piece; 0 for none."""
    return piece.ids_end if piece else 0


def grown(piece: Piece | None, text: str, ids: IntIds) -> Piece:
    """Adds a piece whose ids are known."""
    return Piece(piece, ids, end_of(piece) + len(text), ids_before(piece) + ids.size, _digest(text))


def unknown(ids: IntIds) -> Piece:
    """A prompt whose text is not known. It can be gone on from, and shares nothing with others."""
    return Piece(None, ids, 0, ids.size, b"")


class Writer:
    """Tokenizes what is new of a prompt, and only that."""

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self._texts = {token_id: text for text, token_id in renderer.anchors.items()}
        takes_no_spaces = (text for text in renderer.anchors if renderer.encode(f"{text} ").size > 1)
        self._any = next(takes_no_spaces, "")

    def write(self, piece: Piece | None, text: str) -> Piece | None:
        """Adds text, cut before its last special token, so that a later prompt may share the first part only."""
        if not text:
            return piece
        for cut in self._renderer.cut(text, self._after(piece, text)):
            piece = grown(piece, cut.text, cut.ids)
        return piece

    def shared(self, text: str, piece: Piece) -> tuple[Piece | None, bool]:
        """Finds how far a prompt begins as a piece and those before it do.

        Returns:
            The last piece that is shared and next to which text may be cut, and whether all of them are shared.
        """
        kept, last, chain = None, None, piece.chain()
        for one in chain:
            if _digest(text[end_of(one.before) : one.text_end]) != one.digest or one.text_end > len(text):
                return kept, False
            last = one
            if self._may_cut(one, text):
                kept = one
        return kept, last is piece

    def _may_cut(self, piece: Piece, text: str) -> bool:
        return self._anchor(piece) != "" or self._renderer.begins_with_anchor(text, piece.text_end)

    def _anchor(self, piece: Piece) -> str:
        """The special token that the ids of a piece end with; "" if with none."""
        return self._texts.get(int(piece.ids[-1]), "") if piece.ids.size else ""

    def _after(self, piece: Piece | None, text: str) -> str:
        """The special token to tokenize a text after. Any will do where the text follows one that is no anchor."""
        if piece is None or self._renderer.begins_with_anchor(text, 0):
            return ""
        return self._anchor(piece) or self._any


def _digest(text: str) -> bytes:
    # Halves of characters are refused when they are tokenized; a comparison may meet them before.
    return blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()


def joined(*ids: IntIds) -> IntIds:
    """Puts ids together: i32[sum]."""
    if len(ids) == 1:
        return ids[0]
    return np.concatenate(ids) if ids else np.empty(0, np.int32)
