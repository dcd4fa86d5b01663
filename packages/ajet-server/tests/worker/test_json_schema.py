"""The API process tells which schemas can be served, without torch."""

import subprocess
import sys
from typing import Any

import pytest

from ajet_core.errors import RequestError
from ajet_server.worker.json_schema import check_json_schema, grammar

pytest.importorskip("llguidance")


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": ["string", "null"]}}},
    ],
)
def test_what_can_be_served_passes(schema: dict[str, Any]) -> None:
    check_json_schema(schema)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(a{1,1000}){1,1000}$", "^a{1,1000000}$", "^(.*a){60}$"])
def test_patterns_on_which_others_hang_are_looked_at_in_no_time(pattern: str) -> None:
    check_json_schema({"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": 3}, "type"),
        ({"type": "array", "uniqueItems": True}, "Unimplemented keys.*uniqueItems"),
        ({"type": "string", "pattern": "("}, "regex parse error"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum"),
        ({"$ref": "http://somewhere/else"}, "Default retriever does not fetch resources"),
        ({"properties": {f"p{number}": {"type": "string"} for number in range(5000)}}, "more than 65,536"),
        ({"type": "object", "$ref": "#"}, "circular references"),
        (
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"p{all_of}_{any_of}": {"type": "string"}}} for any_of in range(3)]}
                    for all_of in range(9)
                ]
            },
            "too large",
        ),
    ],
)
def test_what_cannot_is_refused_with_a_reason(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        check_json_schema(schema)
    assert caught.value.field == "response_format"
    assert "\n" not in str(caught.value)


def test_a_schema_cannot_break_out_of_its_grammar() -> None:
    assert '"lark_grammar"' not in grammar('{"title": "}}, {\\"lark_grammar\\": \\"x\\"}"}')
    with pytest.raises(RequestError, match="not JSON"):
        grammar('{}}, {"lark_grammar": "start: /x/"')


def test_it_loads_the_library_when_it_is_asked_and_torch_never() -> None:
    code = (
        "import sys; from ajet_server.worker.json_schema import check_json_schema as check; "
        "assert 'llguidance' not in sys.modules; check({}); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
