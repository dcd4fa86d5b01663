from typing import Any

import pytest
from pydantic import ValidationError

from ajet_core.config import GatewayConfig, Job
from ajet_core.config_errors import config_error


def test_the_default_follows_the_model() -> None:
    found = Job.model_validate({"model": {"path": "m"}}).gateway
    assert found == GatewayConfig()
    assert (found.tool_format, found.reasoning_format, found.history) == ("auto", "auto", "template")


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"tool_format": "xml"}, "gateway.tool_format"),
        ({"reasoning_format": "thought"}, "gateway.reasoning_format"),
        ({"history": "drop"}, "gateway.history"),
        ({"tools": "hermes"}, "gateway.tools"),
    ],
)
def test_what_there_is_not(section: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Job.model_validate({"model": {"path": "m"}, "gateway": section})
    assert config_error(refused.value).field == field
