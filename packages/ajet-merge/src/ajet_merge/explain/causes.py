"""The cause of a break, from the best evidence there is."""

from ajet_merge.messages import Context

from .align import Run
from .by_messages import by_messages
from .by_text import by_text
from .decoder import Decoder
from .departure import SAME_CONTENT
from .sides import Finding, Sides, count


def find_cause(sides: Sides, decoder: Decoder | None, ours: Context | None, theirs: Context | None) -> Finding:
    """The cause: read from messages where both calls have them, from text where there is a tokenizer, or from ids.

    Messages cannot tell in which tokens the same text was written, so text goes first where it shows that nothing but
    the writing differs. Else messages go first, because text is only what a template left of them.
    """
    if not sides.prompt.size:
        return _sampled_again(sides)
    text = by_text(sides, decoder) if decoder else None
    messages = by_messages(sides, ours, theirs) if ours and theirs else None
    vague = messages is None or messages.cause == "rendered_differently"
    if messages and text and (messages.cause == text.cause):
        return messages._replace(again=text.again)
    if text and text.cause in SAME_CONTENT:
        return text
    return messages if messages and not vague else text or messages or by_ids(sides)


def _sampled_again(sides: Sides) -> Finding:
    attempts = [(call.episode_id, call.attempt_id) for call in (sides.call, sides.earlier)]
    if attempts[0] == attempts[1]:
        return Finding("retry", "ids", "the prompt is shared whole, and sampled again")
    return Finding("sibling", "ids", "the prompt is shared whole, and sampled in another attempt")


def by_ids(sides: Sides) -> Finding:
    """What token ids tell by themselves: whether, where and how the two are the same again."""
    if not sides.runs and not sides.shared:
        return Finding("nothing_shared", "ids", "the two have nothing in common")
    if not sides.runs:
        return Finding("context_changed", "ids", "the two are not the same again")
    run: Run = sides.runs[0]
    if not run.new:
        return Finding("context_removed", "ids", f"{count(run.gone, 'token')} gone, and then the same again")
    if not run.gone:
        return Finding("context_inserted", "ids", f"{count(run.new, 'token')} inserted, and then the same again")
    detail = f"{count(run.gone, 'token')} replaced by {run.new:,}, and then the same again"
    return Finding("context_changed", "ids", detail)
