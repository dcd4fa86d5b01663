"""The HTML report: well-formed, self-contained, everything escaped, and nothing left out without a word."""

import re
from html.parser import HTMLParser

import pytest
from explain_conversations import Words
from hypothesis import given
from hypothesis import strategies as st
from merge_strategies import calls

from ajet_merge import Call, merge

VOID = {"meta"}
TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "b",
        "i",
        "u",
        "div",
        "span",
    ),
    *("table", "thead", "tbody", "tr", "th", "td", "details", "summary", "svg", "path", "text", "rect", "circle"),
}
NASTY = [
    "<script>alert(1)</script>",
    "&amp;",
    "\"' onload=x",
    "</div></details>",
    "\x00\x1b",
    "\u202e",
    " \t\n\r",
    "",
    "�",
]


class Page(HTMLParser):
    """Tags balanced, and what a browser would show and load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


class Nasty:
    """A tokenizer whose texts are HTML, control characters and worse."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def decode(self, token_ids: list[int], /) -> str:
        return "".join(self.texts[token % len(self.texts)] for token in token_ids)


def call(prompt: list[int], completion: list[int], call_id: str = "") -> Call:
    return Call(prompt, completion, [-1.0] * len(completion), call_id=call_id)


@given(calls(min_size=0), st.lists(st.text(max_size=8) | st.sampled_from(NASTY), min_size=1, max_size=4))
def test_the_page_is_well_formed(made: list[Call], texts: list[str]) -> None:
    forest = merge(made)
    for tokenizer in (None, Nasty(texts)):
        page = Page(forest.explain(tokenizer).to_html())
        assert set(page.tags) <= TAGS
        assert not {"src", "href", "onload", "srcset"} & set(page.attributes)


def test_nothing_is_loaded_or_run() -> None:
    page = merge([call([1, 2], [3]), call([1, 4], [3])]).explain(Nasty(NASTY)).to_html()
    assert not re.search(r"<script|<link|<img|@import|url\(|https?:|//", page.replace("</", ""))


def test_ids_and_texts_are_escaped() -> None:
    evil = "<b onclick=x>&"
    page = merge([call([1], [2], evil), call([1], [0], evil)]).explain(Nasty(NASTY)).to_html()
    assert evil not in page
    assert "&lt;b onclick=x&gt;&amp;" in page
    assert "alert(1)" in page
    assert "<script" not in page


def test_white_space_and_control_characters_are_shown() -> None:
    page = Page(merge([call([1, 4], [4]), call([1, 6], [5]), call([1, 7], [5])]).explain(Nasty(NASTY)).to_html())
    assert {"·", "→", "↵", "␍", "U+0000", "U+001B", "∅"} <= set(page.text)


def test_both_sides_and_what_follows() -> None:
    words = Words()
    rest = words.encode(" and so on, until all of it was said and nothing was left to be said any more")
    first = call(words.encode("It is agentic"), words.encode(" to") + rest)
    odd = [*words.encode("It is"), words.token(" agent"), words.token("ic"), *words.encode(" to"), *rest]
    shown = merge([first, call(odd, [1])]).explain(words)
    text = " ".join(Page(shown.to_html()).text)
    assert shown.departures[0].cause == "retokenization"
    for part in (
        "agentic",
        "agent",
        "retokenization",
        "1 token became 2 tokens of the same text",
        "The same again for",
    ):
        assert part in text


def test_without_a_tokenizer_ids_are_shown() -> None:
    page = Page(merge([call([71, 72], [73]), call([71, 74], [73])]).explain().to_html())
    assert {"71", "72", "74"} <= set(page.text)
    assert any("no tokenizer was given" in text for text in page.text)


def test_long_stretches_are_cut_and_say_so() -> None:
    trunk, rest = list(range(1000)), list(range(5000, 6000))
    page = Page(merge([call([*trunk, *range(2000, 2500), *rest], [1]), call([*trunk, *rest], [2])]).explain().to_html())
    text = " ".join(page.text)
    assert "988 tokens before …" in text
    assert "… 452 more" in text
    assert "… 988 more" in text


def test_departures_and_paths_that_are_not_shown_are_counted() -> None:
    made = [call([1, 2, 3], [10 + n, *range(n % 7)]) for n in range(150)] + [call([900 + n], [1]) for n in range(20)]
    page = Page(merge(made).explain().to_html())
    text = " ".join(page.text)
    assert page.tags.count("details") == 100
    assert "69 departures of lower or equal cost are not shown" in text
    assert "Of 170 paths the 100 longest are drawn" in text
    hidden = [int(number) for number in re.findall(r"(\d+) shorter paths?, \d+ tokens?$", text, re.MULTILINE)]
    assert not hidden or sum(hidden) % 70 == 0


@pytest.mark.parametrize("depth", [1, 9, 10, 79, 80, 13_000, 99_999])
def test_the_scale_has_a_few_steps(depth: int) -> None:
    page = merge([call(list(range(depth)), [])]).explain().to_html()
    assert 1 <= page.count('class="tick"') <= 9
