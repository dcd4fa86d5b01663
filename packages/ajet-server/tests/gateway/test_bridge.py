"""Which templates are local and which rewrite, found by rendering them; and where text may be cut."""

from pathlib import Path

import pytest
from folder_helpers import make_folder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from template_helpers import FAMILIES, TOKENIZERS, make_bridge, make_family, make_tokenizer, result, said, user
from tokenizers import AddedToken, Tokenizer

from ajet_server.gateway.bridge import Bridge, Seam, _after_text
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Conversation, Message, Tool
from ajet_server.gateway.shapes import without_loops
from ajet_server.models.folder import open_model_folder

TOOL: Tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}


def seam(bridge: Bridge, before: list[Message], answered: list[Message], tools: tuple[Tool, ...] = ()) -> Seam:
    shapes = bridge.shaper.shapes
    found = bridge.seam(without_loops(shapes(before)), shapes(answered), Conversation(answered, tools))
    assert found is not None
    return found


REWRITE_ALWAYS = {"qwen3_5_think", "deepseekv3", "deepseek_r1_distill"}
"""They open the thinking in the prompt, and write earlier turns without."""


@pytest.mark.parametrize("name", FAMILIES)
def test_plain_talk(name: str, tmp_path: Path) -> None:
    bridge = make_bridge(name, tmp_path)
    before = [user("a"), said("b"), user("c"), said("d"), user("e")]
    found = seam(bridge, before, [said("f"), user("g")])
    assert found.local
    assert found.appends == (name not in REWRITE_ALWAYS)
    assert found.end == FAMILIES[name].end[0]
    assert found.closes == (name != "glm4moe")


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.calls])
def test_a_tool_loop(name: str, tmp_path: Path) -> None:
    bridge = make_bridge(name, tmp_path)
    before = [user("a"), said("", "{}"), result("b"), said("", "{}"), result("c")]
    found = seam(bridge, before, [said("", '{"x": 1}'), result("d")], (TOOL,))
    assert found.local
    assert found.appends == (name != "deepseekv3")


@pytest.mark.parametrize(
    ("name", "loop", "talk"),
    [("qwen3", True, False), ("glm4moe", True, False), ("qwen2_5", False, False), ("llama3_1", False, False)],
)
def test_thinking(name: str, loop: bool, talk: bool, tmp_path: Path) -> None:
    """Some keep it while tools are called; then a user's message comes."""
    bridge = make_bridge(name, tmp_path)
    thought = said("", "{}", thinking="hm")
    assert seam(bridge, [user("a"), thought, result("b")], [thought, result("c")], (TOOL,)).appends == loop
    assert seam(bridge, [user("a"), thought, result("b")], [said("b"), user("c")], (TOOL,)).appends == (not loop)
    assert seam(bridge, [user("a")], [said("b", thinking="hm"), user("c")]).appends == talk


@pytest.mark.parametrize("name", ["mistral_v3", "mistral_v7"])
def test_tools_that_follow_the_last_user(name: str, tmp_path: Path) -> None:
    bridge = make_bridge(name, tmp_path)
    assert not seam(bridge, [user("a")], [said("b"), user("c")], (TOOL,)).appends
    assert seam(bridge, [user("a")], [said("b"), user("c")]).appends


def test_a_template_that_counts_is_not_local(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ loop.index }}:{{ m.role }}:{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ messages|length }}:assistant:{% endif %}"
    )
    folder = open_model_folder(make_folder(tmp_path, template))
    bridge = Bridge(ChatRenderer(folder), folder.eos_ids, lambda asked: (asked.messages, None), lambda *_: "")
    found = seam(bridge, [user("a"), said("b"), user("c")], [said("d"), user("e")])
    assert not found.local
    assert found.end == "<|im_end|>"


def test_a_template_that_leaves_responses_out_has_no_seam(tmp_path: Path) -> None:
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}"
    folder = open_model_folder(make_folder(tmp_path, template))
    bridge = Bridge(ChatRenderer(folder), folder.eos_ids, lambda asked: (asked.messages, None), lambda *_: "")
    before, answered = [user("a")], [said("b"), user("c")]
    shapes = bridge.shaper.shapes
    assert bridge.seam(shapes(before), shapes(answered), Conversation(answered)) is None


def test_an_end_of_turn_that_a_user_types_is_not_taken_for_one(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    folder = open_model_folder(make_folder(tmp_path, template))
    bridge = Bridge(ChatRenderer(folder), folder.eos_ids, lambda asked: (asked.messages, None), lambda *_: "")
    answered = Conversation([said("b"), user("<|im_end|> c")])
    found = seam(bridge, [user("a")], answered.messages)
    added = bridge.after_short(found, answered)
    assert found.end == ""
    assert added is not None
    assert added.bridge == "\nuser: <|im_end|> c\nassistant:"


pieces = st.one_of(
    st.text(st.sampled_from(["a", "b", " ", "\n", "é", "日", "<", "|", ">"]), max_size=5),
    st.sampled_from(["<|im_start|>", "<|im_end|>", "<tool_call>", "<bos>", "<|end|>", "<|user|>"]),
)


@pytest.fixture(scope="module")
def bridges(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bridge]:
    return {name: make_bridge(name, tmp_path_factory.mktemp(name)) for name in FAMILIES}


@pytest.mark.parametrize("name", FAMILIES)
@settings(deadline=None, max_examples=50)
@given(st.lists(pieces, max_size=4).map("".join), st.lists(pieces, max_size=4).map("".join))
@example(" f ", "g")
@example("f<|im_end|>\n", "f<|im_end|>\n")
def test_a_bridge_is_the_same_without_marks(bridges: dict[str, Bridge], name: str, response: str, next_: str) -> None:
    bridge, answered = bridges[name], Conversation([said(response), user(next_)])
    found = seam(bridge, [user("a"), said("b"), user("c")], answered.messages)
    talk = Conversation([*found.short, *answered.messages])
    unmarked = _after_text(found, bridge.text(talk), answered.messages[0])
    assert unmarked in (None, bridge.after_whole(found, talk, len(found.short)))
    if name == "chatml" and response:
        assert unmarked is not None


@pytest.mark.parametrize("name", ["chatml", "phi3"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(deadline=None, max_examples=20)
@given(texts=st.lists(pieces, max_size=8))
def test_cuts_at_anchors_change_no_ids(
    renderers: dict[tuple[str, str], ChatRenderer], name: str, tokenizer: str, texts: list[str]
) -> None:
    renderer = renderers[name, tokenizer]
    text = "".join(texts)
    whole = renderer.encode(text).tolist()
    cuts = renderer.cut(text)
    assert "".join(cut.text for cut in cuts) == text
    assert [item for cut in cuts for item in cut.ids.tolist()] == whole
    for start in range(1, len(text)):
        if renderer.begins_with_anchor(text, start) and not inside(renderer, text, start):
            assert renderer.encode(text[:start]).tolist() + renderer.encode(text[start:]).tolist() == whole
    for anchor, token_id in renderer.anchors.items():
        after = renderer.cut(text, anchor)
        assert [token_id, *(item for cut in after for item in cut.ids.tolist())] == renderer.encode(
            anchor + text
        ).tolist()


def inside(renderer: ChatRenderer, text: str, start: int) -> bool:
    return any(text.startswith(anchor, start - back) for anchor in renderer.anchors for back in range(1, len(anchor)))


@pytest.fixture(scope="module")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], ChatRenderer]:
    return {
        (name, kind): ChatRenderer(make_family(name, tmp_path_factory.mktemp(name), kind))
        for name in ("chatml", "phi3")
        for kind in TOKENIZERS
    }


@pytest.mark.parametrize(
    ("tokens", "anchors"),
    [
        ([AddedToken("<a>")], {"<a>"}),
        ([AddedToken("<a>", lstrip=True), AddedToken("<b>", rstrip=True)], {"<b>"}),
        ([AddedToken("<a>", single_word=True), AddedToken("<b>")], set[str]()),
        ([AddedToken("<a>"), AddedToken("<a><b>")], {"<a><b>"}),
        ([AddedToken("x<"), AddedToken("<a>")], {"x<"}),
        ([AddedToken("ab"), AddedToken("ba")], set[str]()),
        ([AddedToken("<a>", normalized=True)], {"<a>"}),
    ],
)
def test_which_tokens_are_anchors(tmp_path: Path, tokens: list[AddedToken], anchors: set[str]) -> None:
    assert anchors_of(tmp_path, make_tokenizer("bytes"), tokens) == anchors


def test_a_token_that_is_sought_in_normalized_text_is_no_anchor(tmp_path: Path) -> None:
    tokens = [AddedToken("<a>", normalized=True), AddedToken("<b>", normalized=False)]
    assert anchors_of(tmp_path, make_tokenizer("legacy"), tokens) - {"<unk>"} == {"<b>"}


def anchors_of(folder: Path, tokenizer: Tokenizer, tokens: list[AddedToken]) -> set[str]:
    make_folder(folder)
    tokenizer.add_tokens(tokens)
    tokenizer.save(str(folder / "tokenizer.json"))
    anchors = ChatRenderer(open_model_folder(folder)).anchors
    return {text for text in anchors if not text.startswith("<0x")}
