"""Text -> ids: by fastokens, ten times as fast, where it does the same as tokenizers; else by tokenizers itself."""

import logging
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from threading import Lock

import fastokens
import numpy as np
from tokenizers import AddedToken, Tokenizer

from ajet_server.gateway.request import IntIds

log = logging.getLogger(__name__)

_WRITTEN = (
    "The quick brown Fox doesn't jump; THEY'LL say 'I've', WE'D and it's 's 'S 'll.",
    "def f(x: int) -> dict[str, float]:\n    return {'a': x ** 2, 'b': 1e-5}  # 3.14159\r\n\tprint(f'{x!r:>9}')\n\n\n",
    '{"name": "search", "arguments": {"q": "caf\\u00e9", "n": [1, 22, 333, 4444, 55555, 1234567890]}}',
    "https://example.org/a/b_c-d?e=f&g=%20#h  user@example.org  C:\\Users\\x  $19.99  50%  #tag  @name",
    "<think>\nhm</think>\n\n<tool_call>\n{}\n</tool_call> <| x |> </s> [INST] ==== ---- ____ .... !!!? ,,, `~^*+",
    "camelCase HTTPServer2go IPv6 x86_64 naïve façade ÀÉÎÕÜ straße ΑΒΓ αβγ ПРИВЕТ привет ǅ ﬁ ½ Ⅷ ² ٣ ९",
    "你好,世界。こんにちは カタカナ ﾊﾝｶｸ 안녕하세요 한글 สวัสดีครับ नमस्ते مرحبا שלום ગુજરાતી",
    "e\u0301 é a\u0328\u0301 Å Å ﷽ ‰ … “quoted” ‘single’ – — 𝒳 𝔘 👨\u200d👩\u200d👧 🏳️\u200d🌈 👍🏽 🇩🇪🇫🇷 ☃\ufe0f \ufeff",
    "a b  c   d    e     f\tg\t\th\ni\n\nj\n\n\nk \n l\r\nm\r\n\r\nn \u00a0 o\u2003p",
    "p\u3000q\u2028r\u0085s\u200bt \x00\x07\x1b\x7f",
    "".join(character * count for character in " \n\ta0.-='" for count in (1, 2, 3, 4, 7, 16, 40)),
)
_OTHERWISE = ("\u017f", "\u180e")
"""Where fastokens takes texts apart in another way: no long s ends a word as `'s` does, no vowel separator is space."""
_STEP = 23
"""Of all characters below U+30000, which is nearly all that are in use, so many apart are tried."""
_TOKENS = 2048
"""Of the vocabulary, so many are tried."""
_ADDED = 64
"""So many of the first and of the last added tokens are tried."""
_OVERLAPS = 2048
"""So many pairs of added tokens that overlap are tried."""

_MOST_LAST = 2
_last: dict[bytes, fastokens.Tokenizer | None] = {}
"""By the digest of the tokenizer."""
_lock = Lock()


class Encoder:
    """Texts to ids as a tokenizer gives them, without what its post-processor adds. Safe to use from several threads.

    fastokens takes the place of the tokenizer only if it gives the same ids for some hundred texts that were chosen to
    find differences: all scripts, white space, numbers, code, tokens of the vocabulary, added tokens and parts of them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast = _proven(tokenizer)

    @property
    def is_fast(self) -> bool:
        """Whether fastokens is used."""
        return self._fast is not None

    def __call__(self, texts: Sequence[str]) -> list[IntIds]:
        """Returns i32[n] for each text, read-only. No text may hold half a character."""
        fast = self._fast
        if fast is None:
            return _ids(self._tokenizer, texts)
        return [self._ids_of(fast, text) for text in texts]

    def _ids_of(self, fast: fastokens.Tokenizer, text: str) -> IntIds:
        if not _is_otherwise(text):
            try:
                return _fast_ids(fast, text)
            except ValueError as error:  # its regular expressions have limits; nobody has met them yet
                log.warning("fastokens gave up on a text, which tokenizers will do: %s", error)
        return _ids(self._tokenizer, [text])[0]


def _is_otherwise(text: str) -> bool:
    return any(character in text for character in _OTHERWISE)


def _fast_ids(fast: fastokens.Tokenizer, text: str) -> IntIds:
    # One text at a time: several are shared out among threads, which costs more than any text that is short.
    return np.frombuffer(fast.encode_batch_flat([text])[0], "<i4").astype(np.int32, copy=False)


def _ids(tokenizer: Tokenizer, texts: Sequence[str]) -> list[IntIds]:
    # Unlike `encode`, it does not find out which characters each token stands for.
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    made = [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
    for ids in made:
        ids.flags.writeable = False
    return made


def _proven(tokenizer: Tokenizer) -> fastokens.Tokenizer | None:
    """Returns what may take the place of a tokenizer. The last ones are kept: each takes some megabytes."""
    text = tokenizer.to_str()
    key = sha256(text.encode()).digest()
    with _lock:
        if key not in _last:
            if len(_last) == _MOST_LAST:
                del _last[next(iter(_last))]
            _last[key] = _prove(tokenizer, text)
        return _last[key]


def _prove(tokenizer: Tokenizer, text: str) -> fastokens.Tokenizer | None:
    added = list(tokenizer.get_added_tokens_decoder().values())
    if _depend_on_order(added):
        log.info("prompts are tokenized by tokenizers: which of its added tokens are found depends on its order")
        return None
    try:
        fast = fastokens.Tokenizer.from_json_str(text)
    except ValueError as error:
        log.info("prompts are tokenized by tokenizers, as fastokens does not take this tokenizer: %s", error)
        return None
    texts = [text for text in _texts(tokenizer) if not _is_otherwise(text)]
    try:
        other = _first_other(fast, tokenizer, texts)
    except Exception as error:  # noqa: BLE001 - tokenizers has no class for them: a character that has no token, say
        log.warning("prompts are tokenized by tokenizers, as not every text could be tried: %s", error)
        return None
    if other is not None:
        log.warning("prompts are tokenized by tokenizers, as fastokens has other ids for %r", other)
        return None
    return fast


def _first_other(fast: fastokens.Tokenizer, tokenizer: Tokenizer, texts: Sequence[str]) -> str | None:
    pairs = zip(texts, _ids(tokenizer, texts), strict=True)
    return next((text for text, ids in pairs if not np.array_equal(_fast_ids(fast, text), ids)), None)


def _depend_on_order(tokens: Sequence[AddedToken]) -> bool:
    """Whether it may matter that tokenizers looks for those first that are to be found in a text as it is.

    The others are looked for in what is left, once that is normalized. fastokens looks for all at once. It is the same
    unless tokens of both kinds may reach into each other, or into what is next to them.
    """
    kinds = {kind: [token for token in tokens if token.normalized is kind] for kind in (False, True)}
    if not all(kinds.values()):
        return False
    if any(token.single_word or token.lstrip or token.rstrip for token in tokens):
        return True
    first, then = ([token.content for token in of_kind] for of_kind in kinds.values())
    within = any(one in other or other in one for one in first for other in then)
    return within or any(_overlapping(first, then)) or any(_overlapping(then, first))


def _texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts that tokenizers may well take apart in different ways."""
    yield ""
    yield from _WRITTEN
    characters = [chr(code) for code in range(0x20, 0x30000, _STEP) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(characters), 24):
        yield "".join(characters[start : start + 24])
        yield " ".join(characters[start : start + 24])
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    ids = list(range(0, size, max(1, size // _TOKENS)))
    for start in range(0, len(ids), 16):
        yield tokenizer.decode(ids[start : start + 16], skip_special_tokens=False)
    added = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    for text in {*added[:_ADDED], *added[-_ADDED:]}:
        yield f"{text}a {text} B{text}{text}\n{text[:-1]} {text[1:]}\t{text}"
    for token, start, other in islice(_overlapping(added, added), _OVERLAPS):
        yield f"x{token[:start]}{other}y {token[:start]}{other}"


def _overlapping(tokens: Sequence[str], others: Sequence[str]) -> Iterator[tuple[str, int, str]]:
    """Tokens of which the end, from a place on, is the beginning of another."""
    begins: dict[str, list[str]] = {}
    for other in others:
        for end in range(1, len(other)):
            begins.setdefault(other[:end], []).append(other)
    for token in tokens:
        for start in range(1, len(token)):
            for other in begins.get(token[start:], ()):
                yield token, start, other
