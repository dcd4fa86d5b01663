"""Stop strings, and what may become one."""

from collections.abc import Sequence


def unfinished(text: str, literals: Sequence[str]) -> int:
    """Returns how many characters at the end of `text` may be the beginning of a literal; whole ones do not count."""
    if not literals:
        return 0
    longest = max(map(len, literals)) - 1
    firsts = {literal[0] for literal in literals}
    for at in range(max(len(text) - longest, 0), len(text)):
        if text[at] in firsts:
            tail = text[at:]
            if any(len(literal) > len(tail) and literal.startswith(tail) for literal in literals):
                return len(tail)
    return 0


class StopFilter:
    """Lets text through up to the first stop string, and holds back what may become one.

    Special tokens are part of what is searched, as the engine does, but never let through.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[tuple[str, bool]] = []
        self.found = False

    def push(self, text: str, *, shown: bool = True) -> str:
        """Takes more text, and returns what is certain to be before any stop string, without what is not shown."""
        if not self._stops:
            return text if shown else ""
        if self.found:
            return ""
        self._held.append((text, shown))
        held = "".join(part for part, _ in self._held)
        at = min((held.find(stop) for stop in self._stops if stop in held), default=None)
        self.found = at is not None
        return self._release(len(held) - unfinished(held, self._stops) if at is None else at)

    def finish(self) -> str:
        """Returns what was held back, if no stop string was found."""
        return "" if self.found else self._release(sum(len(part) for part, _ in self._held))

    def _release(self, size: int) -> str:
        released: list[str] = []
        kept: list[tuple[str, bool]] = []
        for part, shown in self._held:
            cut = min(size, len(part))
            size -= cut
            if shown:
                released.append(part[:cut])
            if cut < len(part):
                kept.append((part[cut:], shown))
        self._held = kept
        return "".join(released)
