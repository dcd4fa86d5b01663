"""Prompts equal those of transformers, id for id, for any template."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pytest
from folder_helpers import make_folder
from hypothesis import given
from hypothesis import strategies as st
from template_helpers import FAMILIES, make_family, put_for, result, said, user
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ajet_core.errors import ConfigError, RequestError
from ajet_server.demo.micro import make_micro_model
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Conversation, IntIds, Message, Tool
from ajet_server.models.folder import open_model_folder

TEMPLATES = {
    "alternating": """
{{ bos_token }}{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {{ message['role'] }}: {{ message['content'] | trim }}{{ eos_token }}
{% endfor %}
{% if add_generation_prompt %}assistant:{% endif %}""",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}{{ {'b': 1, 'a': 'é<'} | "
    "tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}{% endfor %}",
    "loops": "{% for m in messages %}{% if loop.index > 3 %}{% break %}{% endif %}{% if m.role == 'system' %}"
    "{% continue %}{% endif %}{{ m.role }}={{ m.content }};{% endfor %}",
    "optional": "{% if tools is not none %}tools{% endif %}{% if documents %}documents{% endif %}"
    "{% if tools is defined %}defined{% endif %}{{ unk_token }}{{ mask_token }}"
    "{% if sep_token is defined %}sep{% endif %}{{ bos_token }}{{ messages[0].content }}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}\n{% endif %}{% endfor %}",
    "namespace": "{% set ns = namespace(last='') %}{% for m in messages %}{% set ns.last = m.content %}{% endfor %}"
    "{{ ns.last }}{% macro shout(x) %}{{ x | upper }}!{% endmacro %}{{ shout(messages[0].role) }}",
    "day": "{{ strftime_now('%d %b %Y') }} {{ messages[-1].content[:3] }}",
}
message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool"]),
        "content": st.one_of(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
            st.sampled_from(["<|im_start|>system\n", "<|im_end|>", " <|im_end|>\n", "\u200b", "a\r\nb", "{{ 1 }}"]),
        ),
    },
    optional={"name": st.just("bob")},
)
conversations = st.lists(message, min_size=1, max_size=5)


@pytest.fixture(scope="module", params=["micro", *TEMPLATES])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ChatRenderer, Any]:
    """Ours and theirs, over one folder."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "micro":
        make_micro_model(folder)
    else:
        make_folder(folder, TEMPLATES[request.param])
    return ChatRenderer(open_model_folder(folder)), AutoTokenizer.from_pretrained(folder)


def _prompt_ids(renderer: ChatRenderer, messages: list[Message], tools: list[Tool] | None = None) -> IntIds:
    return renderer.encode(renderer.render(messages, tools))


@given(conversation=conversations)
def test_the_ids_are_those_of_transformers(
    pair: tuple[ChatRenderer, PreTrainedTokenizerFast], conversation: list[dict[str, Any]]
) -> None:
    ours, theirs = pair
    before = datetime.now().date()
    try:
        expected = theirs.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    except jinja2.TemplateError as error:
        expected = str(error)
    if isinstance(expected, str):
        with pytest.raises(RequestError, match=f"refuses them: {re.escape(expected)}"):
            _prompt_ids(ours, conversation)
    else:
        assert _prompt_ids(ours, conversation).tolist() == expected or before != datetime.now().date()


@pytest.mark.parametrize("name", FAMILIES)
def test_tools_and_thinking_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder, family = make_family(name, tmp_path), FAMILIES[name]
    tool = {
        "type": "function",
        "function": {"name": "look", "description": "Looks. é", "parameters": {"type": "object"}},
    }
    turns = [user("a <|im_end|> 日"), said("", '{"q": ["é", 1]}'), result("x"), said("b", thinking="hm"), user("c")]
    plain = [user("a <|im_end|> 日"), said("b", thinking="hm"), user("c"), said(""), user("")]
    tools = [tool] if family.calls else None
    messages, _ = put_for(family)(Conversation(turns if family.calls else plain))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    expected = theirs.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=False)
    assert _prompt_ids(ChatRenderer(folder), messages, tools).tolist() == expected


@given(st.lists(st.integers(0, 250), max_size=30))
def test_the_text_is_that_of_transformers(pair: tuple[ChatRenderer, PreTrainedTokenizerFast], ids: list[int]) -> None:
    ours, theirs = pair
    assert ours.text_with_special(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
    assert [ours.token(item) for item in ids] == [theirs.decode([item]) for item in ids]


def test_nothing_is_cut_off_or_filled_up(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(folder / "tokenizer.json"))
    conversation = [{"role": "user", "content": "x " * 100}]
    found = _prompt_ids(ChatRenderer(open_model_folder(folder)), conversation).tolist()
    theirs = AutoTokenizer.from_pretrained(folder)
    assert found == theirs.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    assert len(found) > 64


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[5]['content'] }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ range(10 ** 9) }}",
        "{{ messages[0].__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['jinja2'] }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{{ self._TemplateReference__context.environment.__class__ }}",
        "{% include 'config.json' %}",
        "{% import '/etc/passwd' as x %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_a_template_that_stumbles_is_a_refusal(tmp_path: Path, template: str) -> None:
    renderer = ChatRenderer(open_model_folder(make_folder(tmp_path, template)))
    with pytest.raises(RequestError, match="refuses them"):
        _prompt_ids(renderer, [{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    "template", ["{{ '{0.__class__}'.format(messages) }}", "{{ messages|map(attribute='__class__')|join }}"]
)
def test_a_template_does_not_see_python_through_filters(tmp_path: Path, template: str) -> None:
    renderer = ChatRenderer(open_model_folder(make_folder(tmp_path, template)))
    assert renderer.render([{"role": "user", "content": "hello"}]) == ""


@pytest.mark.parametrize("text", ["{{ 7 * 7 }}", "{% for x in y %}", "{# gone #}", "{{ messages }}", "{%- raw %}"])
def test_what_is_said_is_no_template(tmp_path: Path, text: str) -> None:
    renderer = ChatRenderer(open_model_folder(make_folder(tmp_path)))
    assert text in renderer.render([{"role": "user", "content": text}])


@given(parts=st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "a b", "\n", "é", "<|im_", "😀 "]), max_size=8))
def test_the_second_cut_begins_at_the_last_anchor(
    pair: tuple[ChatRenderer, PreTrainedTokenizerFast], parts: list[str]
) -> None:
    renderer, text = pair[0], "".join(parts)
    for after in ("", *renderer.anchors):
        cuts = renderer.cut(text, after)
        last = max((text.rfind(anchor) for anchor in renderer.anchors), default=-1)
        assert [cut.text for cut in cuts] == ([text[:last], text[last:]] if last > 0 else [text])
        found = [int(item) for cut in cuts for item in cut.ids]
        assert found == renderer.encode(after + text).tolist()[bool(after) :]
        assert [renderer.encode(cut.text).tolist() for cut in cuts[1:]] == [cut.ids.tolist() for cut in cuts[1:]]


@pytest.mark.parametrize(("normalized", "is_one"), [(True, False), (False, True)])
def test_a_token_whose_end_another_takes_is_no_anchor(tmp_path: Path, normalized: bool, is_one: bool) -> None:
    folder = make_folder(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("[a|]", normalized=normalized), AddedToken("|]b", normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    renderer = ChatRenderer(open_model_folder(folder))
    assert ("[a|]" in renderer.anchors) is is_one
    assert (tokenizer.token_to_id("[a|]") in renderer.encode("x[a|]b")) is is_one


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    renderer = ChatRenderer(open_model_folder(make_folder(tmp_path)))
    with pytest.raises(RequestError, match=r"holds \\ud83d, half"):
        _prompt_ids(renderer, [{"role": "user", "content": "cut off \ud83d"}])


@pytest.mark.parametrize("template", ["{% for %}", "{% import os %}", "{{ x | no_such_filter }}"])
def test_a_template_that_is_none(tmp_path: Path, template: str) -> None:
    with pytest.raises(ConfigError, match="not valid Jinja"):
        ChatRenderer(open_model_folder(make_folder(tmp_path, template)))


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer"):
        ChatRenderer(open_model_folder(folder))
