"""Completions that are held to a JSON schema satisfy it, and nothing else changes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_helpers import MakeEngine, drain, random_ids, request
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ajet_core.errors import RequestError
from ajet_server.engines.base import Completion, Outcome
from ajet_server.engines.constraint import Constraint, Constraints
from ajet_server.engines.torch_engine import TorchEngine

pytest.importorskip("llguidance")

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"enum": ["Ü", "b\n"]},
            "n": {"type": "integer", "maximum": 99},
            "ok": {"type": "boolean"},
        },
        "required": ["name", "n", "ok"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def tokenizer(gqa_folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(gqa_folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def constraints(tokenizer: Tokenizer) -> Constraints:
    return Constraints(tokenizer, 512, [1])


def read(tokenizer: Tokenizer, completion: Completion) -> Any:
    """The JSON of a completion, without the token that ends it."""
    ids = completion.token_ids.tolist()
    return json.loads(tokenizer.decode(ids[:-1] if ids[-1] == 1 else ids, skip_special_tokens=False))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1.5])
def test_completions_satisfy_their_schema_and_end_with_it(
    engine: TorchEngine, tokenizer: Tokenizer, temperature: float
) -> None:
    asked = [
        request(str(at), random_ids(at, 9), 100, temperature=temperature, seed=at, json_schema=SCHEMA)
        for at in range(8)
    ]
    for completion in drain(engine, asked).values():
        if completion.finish_reason == "length":  # blanks are allowed, and greedy may like them without end
            assert len(completion.token_ids) == 100
            continue
        found = read(tokenizer, completion)
        assert list(found) == ["name", "n", "ok"]
        assert found["name"] in ("Ü", "b\n")
        assert found["n"] <= 99
        assert found["ok"] in (True, False)
        assert (completion.finish_reason, completion.stop) == ("stop", None)


def test_an_empty_schema_is_any_object(engine: TorchEngine, tokenizer: Tokenizer) -> None:
    closing = ((tokenizer.token_to_id("}"), 6.0), (tokenizer.token_to_id('"'), 6.0))
    asked = [
        request(str(at), random_ids(at, 9), 300, temperature=1.0, seed=at, json_schema="{}", logit_bias=closing)
        for at in range(8)
    ]
    ended = [item for item in drain(engine, asked).values() if item.finish_reason == "stop"]
    assert ended
    assert all(isinstance(read(tokenizer, item), dict) for item in ended)


def test_a_completion_that_is_cut_off_says_so(engine: TorchEngine) -> None:
    completion = drain(engine, [request("a", random_ids(1, 5), 3, json_schema=SCHEMA)])["a"]
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 3)


def test_a_text_that_may_end_ends_with_the_end_token(
    engine: TorchEngine, tokenizer: Tokenizer, constraints: Constraints
) -> None:
    schema = '{"type": "integer"}'
    before = constraints.start(schema)
    assert not before.allowed[1]
    before.take(tokenizer.token_to_id("3"))
    assert before.allowed[1]
    assert not before.complete
    asked = request("a", random_ids(1, 5), 20, json_schema=schema, logit_bias=((1, 100.0),))
    completion = drain(engine, [asked])["a"]
    assert (completion.finish_reason, int(completion.token_ids[-1])) == ("stop", 1)
    assert isinstance(read(tokenizer, completion), int)


def test_rows_with_and_without_a_schema_give_what_they_give_alone(engine: TorchEngine) -> None:
    def ask(at: int) -> Any:
        schema = {"json_schema": SCHEMA} if at % 2 else {}
        return request(str(at), random_ids(at // 4, 40), 20, temperature=0.9, seed=at, **schema)

    together = drain(engine, map(ask, range(8)))
    for at in range(8):
        alone = drain(engine, [ask(at)])[str(at)]
        assert together[str(at)].token_ids.tolist() == alone.token_ids.tolist()
        np.testing.assert_allclose(together[str(at)].logprobs, alone.logprobs, atol=1e-5)


def test_logprobs_are_of_what_the_schema_leaves(
    gqa_folder: Path, make_engine: MakeEngine, constraints: Constraints
) -> None:
    engine, prompt, bias = make_engine(gqa_folder), random_ids(4, 11), ((5, 1.0), (40, 2.0))
    asked = request("a", prompt, 30, temperature=0.7, seed=5, json_schema="{}", logit_bias=bias, top_logprobs=4)
    completion = drain(engine, [asked])["a"]
    plain: PreTrainedModel = type(engine._model).from_pretrained(gqa_folder)
    whole = torch.from_numpy(np.concatenate([prompt, completion.token_ids])).long()
    with torch.no_grad():
        logits = plain(whole[None]).logits[0, len(prompt) - 1 : -1]
    logits[:, [5, 40]] += torch.tensor([1.0, 2.0])
    constraint = constraints.start("{}")
    for at, token in enumerate(completion.token_ids.tolist()):
        allowed = torch.from_numpy(constraint.allowed.copy())
        expected = (logits[at].masked_fill(~allowed, -torch.inf) / 0.7).log_softmax(-1)
        assert abs(expected[token] - completion.logprobs[at]) < 1e-4
        assert len(completion.top_logprobs[at]) == min(4, int(allowed.sum()))
        assert all(abs(expected[other] - value) < 1e-4 for other, value in completion.top_logprobs[at])
        constraint.take(token)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"type": "nothing"}', "Invalid type: nothing"),
        ("no JSON", "it is not JSON"),
        ("[]", "must be an object"),
        ('{"enum": []}', "Unsatisfiable"),
        ('{"not": {"type": "string"}}', "Unimplemented keys"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused(shared_engine: TorchEngine, schema: str, why: str) -> None:
    with pytest.raises(RequestError, match=why) as caught:
        shared_engine.submit(request("a", random_ids(1, 5), json_schema=schema))
    assert caught.value.field == "response_format"
    assert not shared_engine.has_work


def test_a_tokenizer_that_cannot_be_followed_is_named(tokenizer: Tokenizer) -> None:
    class Strange:
        def get_vocab_size(self) -> int:
            return 3

        def id_to_token(self, token: int) -> None:
            return None

        def to_str(self) -> str:
            return "{}"

    with pytest.raises(RequestError, match="this model's tokenizer cannot be held to a schema"):
        Constraints(Strange(), 3, [1]).start("{}")


def test_a_model_may_have_more_logits_than_tokens(tokenizer: Tokenizer) -> None:
    constraint = Constraints(tokenizer, 700, [0, 1, 699]).start('{"type": "integer"}')
    assert constraint.allowed.shape == (700,)
    assert not constraint.allowed[512:].any()
    constraint.take(tokenizer.token_to_id("3"))
    assert constraint.allowed[[0, 1]].all()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas become too complex at the third token."""
    whole, taken = Constraint.take, list[int]()

    def take(self: Constraint, token: int) -> None:
        taken.append(token)
        if len(taken) == 3:
            raise RequestError("response_format: too complex", field="response_format")
        whole(self, token)

    monkeypatch.setattr(Constraint, "take", take)


@pytest.mark.usefixtures("failing")
def test_a_schema_that_becomes_too_complex_fails_its_call_alone(engine: TorchEngine) -> None:
    for at in range(3):
        schema = {"json_schema": SCHEMA} if at == 1 else {}
        engine.submit(request(str(at), random_ids(at, 9), 6, **schema))
    outcomes: list[Outcome] = []
    while engine.has_work:
        outcomes.append(engine.step())
    refusals = [refusal for outcome in outcomes for refusal in outcome.refusals]
    assert [(refusal.request_id, refusal.error.field) for refusal in refusals] == [("1", "response_format")]
    assert {item.request_id for outcome in outcomes for item in outcome.completions} == {"0", "2"}


def test_an_id_that_is_not_allowed_is_an_error(constraints: Constraints) -> None:
    constraint = constraints.start("{}")
    with pytest.raises(RequestError, match="doesn't satisfy the grammar"):
        constraint.take(int(np.flatnonzero(~constraint.allowed)[-1]))
