"""Formats are found in templates of real models, and in small ones where no installed package has them."""

import re
from pathlib import Path
from typing import Any

import pytest
import trl
from reader_helpers import tokenizer_of

from ajet_core.config import GatewayConfig
from ajet_core.errors import RequestError
from ajet_server.gateway.output.detect import RenderText, Traits, find_traits
from ajet_server.gateway.output.format import OutputFormat
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Conversation, NamedTool
from ajet_server.models.folder import ModelFolder

_FOLDER = Path(trl.__file__).parent / "chat_templates"
_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
_LOOP = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
_CALLS = "{% for c in m.tool_calls or [] %}"
_END = "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_NAME, _JSON = "{{ c.function.name }}", "{{ c.function.arguments | tojson }}"
SMALL = {
    "mistral": "[TOOL_CALLS] [{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{{ ', ' if not loop.last }}"
    "{% endfor %}]{% for c in [] %}",
    "mistral_args": f"{_CALLS}[TOOL_CALLS]{_NAME}[ARGS]{_JSON}",
    "deepseek_v3": f"<｜tool▁calls▁begin｜>{_CALLS}<｜tool▁call▁begin｜>function<｜tool▁sep｜>{_NAME}\n```json\n"
    "{{ '' + c.function.arguments }}\n```<｜tool▁call▁end｜>",
    "deepseek_v31": f"<｜tool▁calls▁begin｜>{_CALLS}<｜tool▁call▁begin｜>{_NAME}<｜tool▁sep｜>"
    "{{ '' + c.function.arguments }}<｜tool▁call▁end｜>",
    "phi4": f"{_CALLS}<|tool_call|>{{{{ c.function | tojson }}}}<|/tool_call|>",
    "none": f"{_CALLS}<call name={_NAME}>{_JSON}</call>",
}


def small(syntax: str) -> str:
    return _TOOLS + _LOOP + SMALL[syntax] + _END


def render_of(tmp_path: Path, source: str) -> RenderText:
    file = tmp_path / "tokenizer.json"
    tokenizer_of("micro").save(str(file))
    names = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    folder = ModelFolder(
        tmp_path, config={}, tokenizer_file=file, tokenizer_config=names, chat_template=source, eos_ids=(0,)
    )
    return ChatRenderer(folder).render


def traits(tmp_path: Path, source: str) -> Traits:
    return find_traits(render_of(tmp_path, source), lambda _: False)


@pytest.mark.parametrize(
    ("file", "shows_tools", "syntax", "reasoning"),
    [
        ("qwen2_5", True, "hermes", "none"),
        ("qwen3", True, "hermes", "think"),
        ("qwen3_instruct_2507", True, "hermes", "none"),
        ("qwen3_5_think", True, "qwen3_coder", "think"),
        ("llama3_1", True, "llama3", "none"),
        ("llama3_2", True, "llama3", "none"),
        ("llama3", False, "none", "none"),
        ("phi3", False, "none", "none"),
        ("deepseek_r1_distill", False, "none", "think"),
    ],
)
def test_templates_of_real_models(tmp_path: Path, file: str, shows_tools: bool, syntax: str, reasoning: str) -> None:
    found = traits(tmp_path, (_FOLDER / f"{file}.jinja").read_text("utf-8"))
    assert (found.shows_tools, found.syntax.name, found.reasoning.name) == (shows_tools, syntax, reasoning)
    assert found.takes_system


def test_a_template_without_a_system_message(tmp_path: Path) -> None:
    assert not traits(tmp_path, (_FOLDER / "gemma.jinja").read_text("utf-8")).takes_system


@pytest.mark.parametrize("syntax", SMALL)
def test_each_syntax(tmp_path: Path, syntax: str) -> None:
    found = traits(tmp_path, small(syntax))
    assert (found.shows_tools, found.syntax.name) == (True, syntax)
    assert found.arguments_as_text == syntax.startswith("deepseek")


def test_tags_that_are_only_spoken_of_are_none(tmp_path: Path) -> None:
    source = "Never write <tool_call> or <think> here. " + small("mistral_args")
    found = traits(tmp_path, source)
    assert (found.syntax.name, found.reasoning.name) == ("mistral_args", "none")


def test_magistrals_thinking(tmp_path: Path) -> None:
    source = (
        _LOOP.replace("{{ m.content }}", "[THINK]{{ m.reasoning_content }}[/THINK]{{ m.content }}") + "{% endfor %}"
    )
    assert traits(tmp_path, source).reasoning.name == "mistral"


def test_thinking_may_be_known_from_the_vocabulary(tmp_path: Path) -> None:
    render = render_of(tmp_path, _LOOP + "{% endfor %}")
    assert find_traits(render, lambda text: text in ("[THINK]", "[/THINK]")).reasoning.name == "mistral"
    assert find_traits(render, lambda text: text == "[THINK]").reasoning.name == "none"


PLAIN = _LOOP + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "1 + 1?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "call_1"},
    {"role": "tool", "content": "3", "tool_call_id": "call_1"},
]


def output_format(tmp_path: Path, source: str, **config: Any) -> OutputFormat:
    return OutputFormat(GatewayConfig(**config), render_of(tmp_path, source), tokenizer_of("micro"), [0])


def test_tools_are_told_where_the_template_knows_none(tmp_path: Path) -> None:
    found = output_format(tmp_path, PLAIN)
    assert found.name == "hermes"
    messages, tools = found.messages_for_template(Conversation(TALK, (TOOL,)))
    assert tools is None
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert (
        '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}' in messages[0]["content"]
    )
    call = '<tool_call>\n{"name": "add", "arguments": {"a":  1}}\n</tool_call>'
    assert messages[2] == {"role": "assistant", "content": f"{call}\n{call}"}
    assert messages[3]["content"] == "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"


def test_the_agents_system_message_comes_first(tmp_path: Path) -> None:
    talk = Conversation([{"role": "system", "content": "Be kind."}, *TALK], (TOOL,))
    messages, _ = output_format(tmp_path, PLAIN).messages_for_template(talk)
    assert messages[0]["content"].startswith("Be kind.\n\n# Tools")


def test_tools_are_told_to_the_first_user_where_there_is_no_system(tmp_path: Path) -> None:
    found = output_format(tmp_path, (_FOLDER / "gemma.jinja").read_text("utf-8"))
    messages, _ = found.messages_for_template(Conversation(TALK, (TOOL,)))
    assert messages[0]["role"] == "user"
    assert re.fullmatch(r"# Tools.*1 \+ 1\?", messages[0]["content"], re.DOTALL)


def test_without_tools_nothing_is_told(tmp_path: Path) -> None:
    messages, tools = output_format(tmp_path, PLAIN).messages_for_template(Conversation(TALK[:1]))
    assert (messages, tools) == (TALK[:1], None)


def test_templates_get_dicts_unless_they_want_text(tmp_path: Path) -> None:
    messages, tools = output_format(tmp_path, small("phi4")).messages_for_template(Conversation(TALK, (TOOL,)))
    assert messages[1]["tool_calls"][0] == CALL | {"function": {"name": "add", "arguments": {"a": 1}}}
    assert (messages[2:], tools) == (TALK[2:], [TOOL])
    assert TALK[1]["tool_calls"] == [CALL, CALL]
    as_text, _ = output_format(tmp_path, small("deepseek_v3")).messages_for_template(Conversation(TALK, (TOOL,)))
    assert as_text == TALK


def test_arguments_that_are_no_object_stay_text(tmp_path: Path) -> None:
    broken = CALL | {"function": {"name": "add", "arguments": "[1"}}
    talk = Conversation([TALK[0], TALK[1] | {"tool_calls": [broken]}], (TOOL,))
    messages, _ = output_format(tmp_path, small("phi4")).messages_for_template(talk)
    assert messages[1]["tool_calls"] == [broken]


@pytest.mark.parametrize(
    ("source", "config", "why"),
    [
        (PLAIN, {"tool_format": "none"}, "tools: cannot be used here, since gateway.tool_format is 'none'"),
        (small("phi4"), {"tool_format": "none"}, "gateway.tool_format is 'none'"),
        (small("none"), {}, "unknown how this model's chat template writes calls; set gateway.tool_format"),
    ],
)
def test_requests_with_tools_may_be_refused(tmp_path: Path, source: str, config: dict[str, Any], why: str) -> None:
    found = output_format(tmp_path, source, **config)
    assert found.messages_for_template(Conversation(TALK[:1])) == (TALK[:1], None)
    with pytest.raises(RequestError, match=re.escape(why)) as refused:
        found.messages_for_template(Conversation(TALK, (TOOL,)))
    assert refused.value.field == "tools"


def test_an_unknown_syntax_may_be_named(tmp_path: Path) -> None:
    found = output_format(tmp_path, small("none"), tool_format="phi4", reasoning_format="mistral")
    assert (found.name, found.reasoning.name) == ("phi4", "mistral")


def test_what_cannot_be_explained_cannot_be_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="knows no tools; use 'auto' or 'hermes'") as refused:
        output_format(tmp_path, PLAIN, tool_format="phi4")
    assert getattr(refused.value, "field", None) == "gateway.tool_format"


def test_openings(tmp_path: Path) -> None:
    found = output_format(tmp_path, PLAIN, reasoning_format="think")
    talk = Conversation(TALK[:1], (TOOL,))
    assert found.opening(talk) == ""
    assert found.opening(Conversation(talk.messages, talk.tools, "none")) == ""
    assert found.opening(Conversation(talk.messages, talk.tools, "required")) == "<tool_call>\n"
    named = Conversation(talk.messages, talk.tools, NamedTool("add"))
    assert found.opening(named) == '<tool_call>\n{"name": "add", "arguments": '
    assert found.opening(named, "<think>\n") == '\n</think>\n\n<tool_call>\n{"name": "add", "arguments": '


@pytest.mark.parametrize(
    ("tail", "open_"),
    [("assistant\n<think>\n", True), ("<think>\n\n</think>\n\n", False), ("<think> so", False), ("", False)],
)
def test_whether_the_prompt_is_thinking(tmp_path: Path, tail: str, open_: bool) -> None:
    assert output_format(tmp_path, PLAIN, reasoning_format="think").thinking_open(tail) == open_
    assert not output_format(tmp_path, PLAIN, reasoning_format="none").thinking_open(tail)


@pytest.mark.parametrize(
    ("talk", "calls"),
    [
        (Conversation(TALK[:1], (TOOL,)), 1),
        (Conversation(TALK[:1], (TOOL,), "none"), 0),
        (Conversation(TALK[:1]), 0),
    ],
)
def test_calls_are_read_where_they_may_be_made(tmp_path: Path, talk: Conversation, calls: int) -> None:
    found = output_format(tmp_path, PLAIN)
    reader = found.reader(talk, opening="", thinking=False, stops=(), new_id=lambda: "call_9")
    written = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    reader.push(tokenizer_of("micro").encode(written).ids)
    _, summary = reader.finish("stop", None)
    assert [call.id for call in summary.tool_calls] == ["call_9"] * calls
    assert summary.text == ("" if calls else written)


def test_a_plain_completion_is_text(tmp_path: Path) -> None:
    reader = output_format(tmp_path, PLAIN, reasoning_format="think").plain_reader(("#",))
    reader.push(tokenizer_of("micro").encode("<think>a</think># b").ids)
    assert reader.finish("stop", "#")[1].text == "<think>a</think>"
