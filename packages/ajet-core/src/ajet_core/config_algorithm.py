"""The `algorithm` section: how rewards become a loss. A name presets its parts, and each part can be set by itself.

    part               grpo          dr_grpo       rloo           reinforce_pp  dapo        gspo          cispo
    baseline           group_mean    group_mean    leave_one_out  batch_mean    group_mean  group_mean    group_mean
    advantage_scale    std           none          none           batch_std     std         std           std
    ratio_level        token         token         token          token         token       sequence      token
    clipping           ratio         ratio         ratio          ratio         ratio       ratio         weight
    clip_low           0.2           0.2           0.2            0.2           0.2         0.0003        no bound
    clip_high          0.2           0.2           0.2            0.2           0.28        0.0004        4
    loss_weight        episode_mean  fixed_length  fixed_length   episode_mean  token_mean  episode_mean  token_mean
    loss_length                      1024          1

    ppo is grpo with baseline value and advantage_scale batch_std.
    kl, off_policy, overlong: none; entropy_coef: 0; old_logprobs: rollout (recomputed with off_policy);
    value: its defaults with baseline value, else none

The parts meet in `ajet_server.train.losses.policy` (loss) and `ajet_server.samples` (advantages and weights).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from ajet_core.config_section import Positive, Section

AlgorithmName = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "ppo", "dapo", "gspo", "cispo"]
RewardBaseline = Literal["group_mean", "leave_one_out", "batch_mean"]
Baseline = Literal[RewardBaseline, "value"]
AdvantageScale = Literal["std", "batch_std", "none"]
LossWeight = Literal["episode_mean", "sequence_mean", "group_mean", "token_mean", "fixed_length"]
KlEstimator = Literal["k1", "k2", "k3"]

_GRPO: dict[str, Any] = {
    "baseline": "group_mean",
    "advantage_scale": "std",
    "ratio_level": "token",
    "clipping": "ratio",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "loss_weight": "episode_mean",
    "loss_length": 1024,
    "old_logprobs": "rollout",
}
_FIXED = {"advantage_scale": "none", "loss_weight": "fixed_length"}
_CISPO = {"clipping": "weight", "clip_low": None, "clip_high": 4.0, "loss_weight": "token_mean"}
_PRESETS: dict[str, dict[str, Any]] = {
    "grpo": _GRPO,
    "dr_grpo": _GRPO | _FIXED,
    "rloo": _GRPO | _FIXED | {"baseline": "leave_one_out", "loss_length": 1},
    "reinforce_pp": _GRPO | {"baseline": "batch_mean", "advantage_scale": "batch_std"},
    "ppo": _GRPO | {"baseline": "value", "advantage_scale": "batch_std"},
    "dapo": _GRPO | {"clip_high": 0.28, "loss_weight": "token_mean"},
    "gspo": _GRPO | {"ratio_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": _GRPO | _CISPO,
}


def _preset(part: str) -> Any:
    """A field whose default the preset decides; having no default of its own, a job template leaves it open."""
    return Field(default_factory=lambda: _GRPO[part])


class KlConfig(Section):
    """A penalty for leaving the reference model: the one that training began with."""

    coef: Annotated[float, Field(gt=0, le=10)] = 0.04
    """What one nat costs."""
    estimator: KlEstimator = "k3"
    """With r = reference / model: `k1` is -log r, `k2` is (log r)^2 / 2, `k3` is r - 1 - log r (J. Schulman 2020,
    http://joschu.net/blog/kl-approx.html)."""
    place: Literal["loss", "reward"] = "loss"
    """`loss`: added to the loss, token by token (GRPO). `reward`: taken off the reward, before there is an advantage:
    the sum over an episode's tokens (RLOO), and with baseline `value` token by token (PPO). REINFORCE++ takes off only
    what a token and later ones cost; the whole sum has the same expected gradient, and varies more."""


class OffPolicyConfig(Section):
    """Corrects for the difference between the engine that sampled and the model that the update starts from.

    The policy's loss of each token is multiplied by its importance weight, model / engine before the update.
    """

    kind: Literal["truncate", "mask"] = "truncate"
    """`truncate`: weights above `high` count as `high` (IMPALA, arXiv 1802.01561). `mask`: where the weight is
    outside of `low` to `high` nothing is learned (IcePop, arXiv 2510.18855)."""
    level: Literal["token", "sequence"] = "token"
    """The weight of a token by itself, or the product over its call."""
    high: Annotated[float, Field(ge=1)] = 2.0
    """Upper bound of the weight."""
    low: Annotated[float, Field(gt=0, le=1)] | None = None
    """With `mask` only: lower bound of the weight. By default there is none."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.low is not None and self.kind != "mask":
            raise _refusal([(("low",), self.low, f"has no effect with kind '{self.kind}'; remove it or use 'mask'")])
        return self


class OverlongConfig(Section):
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), by the longest completion of an episode."""

    max_tokens: Positive
    """A completion of this many tokens or more costs 1 of the reward."""
    buffer: Positive
    """The cost grows linearly over this many tokens before `max_tokens`."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.buffer > self.max_tokens:
            wanted = f"is more than max_tokens={self.max_tokens}; use at most that"
            raise _refusal([(("buffer",), self.buffer, wanted)])
        return self


class ValueConfig(Section):
    """The critic: a linear head on the model's last hidden states that learns what an episode will still earn.

    Its advantages are generalized advantage estimates (arXiv 1506.02438) over the sampled tokens of an episode, in
    order and across its calls. A call's reward stands at its last token, the episode's at the last of all.
    """

    coef: Annotated[float, Field(gt=0, le=10)] = 0.1
    """Weight of the value loss beside the policy's."""
    clip: Annotated[float, Field(gt=0)] | None = 0.2
    """How far a value may move in one update before it has no gradient (PPO's code, arXiv 2005.12729), in units of the
    reward. Matters with more than one optimizer step a batch. null is no bound."""
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Gamma: what a reward is worth one token earlier."""
    trace: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda: 1 trusts rewards alone (no bias), 0 the next token's value alone (least variance)."""
    learning_rate: Annotated[float, Field(gt=0, le=10)] = 0.1
    """Of the head, at its highest; it follows the optimizer's schedule. About what one step changes a value by, in
    units of the reward, whatever the model's width."""
    trunk: Literal["shared", "frozen"] = "shared"
    """`shared`: the value loss trains the model too. `frozen`: the head alone."""


class AlgorithmConfig(Section):
    """How rewards become a loss."""

    name: AlgorithmName = "grpo"
    """Presets the fields below: `grpo` (arXiv 2402.03300), `dr_grpo` (2503.20783), `rloo` (2402.14740), `reinforce_pp`
    (REINFORCE++, 2501.03262; its baseline variant is `baseline: group_mean`), `dapo` (2503.14476), `gspo` (2507.18071),
    `cispo` (2506.13585), `ppo` (1707.06347, with a critic)."""
    baseline: Baseline = _preset("baseline")
    """What a reward is compared with: `group_mean`, the mean of its group; `leave_one_out`, the mean of the others in
    its group; `batch_mean`, the mean of the whole batch; `value`, what a critic expected at each token (GAE)."""
    advantage_scale: AdvantageScale = _preset("advantage_scale")
    """`std` divides what is left by the standard deviation of the group's rewards; `batch_std` by that of the whole
    batch (with baseline `value` its tokens' mean is taken off first); `none` does not."""
    ratio_level: Literal["token", "sequence"] = _preset("ratio_level")
    """The ratio of each token, or the geometric mean over its call (GSPO); tokens with advantages of their own keep
    them (GSPO-token)."""
    clipping: Literal["ratio", "weight", "none"] = _preset("clipping")
    """`ratio`: PPO's smaller one of clipped and plain, so that clipped tokens have no gradient. `weight`: the clipped
    ratio is a constant weight of the log-probability, so that every token has a gradient (CISPO). `none`: the plain
    ratio."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = _preset("clip_low")
    """The ratio is clipped from below at 1 - clip_low."""
    clip_high: Annotated[float, Field(gt=0, le=10)] | None = _preset("clip_high")
    """The ratio is clipped from above at 1 + clip_high."""
    loss_weight: LossWeight = _preset("loss_weight")
    """`episode_mean`: every episode weighs the same, and every token the same within it; `sequence_mean`: so for calls;
    `group_mean`: so for groups. `token_mean`: every token of the batch weighs the same. `fixed_length`: the sum over
    an episode's tokens is divided by `loss_length`. Fixed over the whole batch before anything is merged."""
    loss_length: Positive | None = Field(default_factory=lambda: None)
    """With `fixed_length` only: the divisor, in tokens. It scales the loss and changes nothing else."""
    kl: KlConfig | None = None
    """A penalty for leaving the reference model. By default there is none, and no reference model."""
    entropy_coef: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The loss is lowered by this times the entropy, in nats, weighted like the loss."""
    old_logprobs: Literal["rollout", "recomputed"] = _preset("old_logprobs")
    """Denominator of the ratio: what the engine recorded, or what the model gave before the update."""
    off_policy: OffPolicyConfig | None = None
    """Correction by importance weights. With it `old_logprobs` is `recomputed`."""
    overlong: OverlongConfig | None = None
    """A price on completions that are nearly too long."""
    value: ValueConfig | None = None
    """The critic. There with baseline `value` and only there."""

    @model_validator(mode="wrap")
    @classmethod
    def _fill_from_preset(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """What the preset decides does not count as set, so that a later change of the name is not held back by it."""
        if not isinstance(data, Mapping):
            return handler(data)
        given = {name: value for name, value in data.items() if value is not None}
        algorithm = handler(_defaults(given) | given)
        algorithm.model_fields_set.intersection_update(given)
        return algorithm

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        found = list(self._contradictions())
        if found:
            raise _refusal(found)
        return self

    def _contradictions(self) -> Iterator[tuple[tuple[str, ...], object, str]]:
        if self.clipping == "none":
            for name, bound in (("clip_low", self.clip_low), ("clip_high", self.clip_high)):
                if bound is not None:
                    yield (name,), bound, "has no effect with clipping 'none'; remove it"
        if self.loss_length is not None and self.loss_weight != "fixed_length":
            wanted = f"has no effect with loss_weight '{self.loss_weight}'; remove it or use 'fixed_length'"
            yield ("loss_length",), self.loss_length, wanted
        if self.baseline in {"batch_mean", "value"} and self.advantage_scale == "std":
            wanted = f"the group's deviation does not fit baseline '{self.baseline}'; use 'batch_std' or 'none'"
            yield ("advantage_scale",), "std", wanted
        if self.value is not None and self.baseline != "value":
            wanted = f"has no effect with baseline '{self.baseline}'; remove it or use 'value'"
            yield ("value",), self.value.model_dump(exclude_unset=True), wanted
        if self.off_policy is not None and self.old_logprobs == "rollout":
            wanted = "off_policy has no effect when the ratio corrects for the engine already; use 'recomputed'"
            yield ("old_logprobs",), "rollout", wanted
        if self.kl is not None and (self.kl.place, self.kl.estimator) == ("loss", "k1"):
            wanted = "in the loss, the expected gradient of k1 is zero; use 'k2' or 'k3', or place 'reward'"
            yield ("kl", "estimator"), "k1", wanted


def _defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """The preset's parts, without those that what was given leaves without effect."""
    name = given.get("name", "grpo")
    preset = _PRESETS.get(name, _GRPO) if isinstance(name, str) else _GRPO
    parts: dict[str, Any] = {**preset, **given}
    without_effect: set[str] = set()
    if parts["clipping"] == "none":
        without_effect |= {"clip_low", "clip_high"}
    if parts["loss_weight"] != "fixed_length":
        without_effect |= {"loss_length"}
    filled = {part: value for part, value in preset.items() if part not in without_effect}
    filled |= dict.fromkeys(without_effect)
    if parts["baseline"] == "value":
        filled["value"] = ValueConfig()
    return filled | ({"old_logprobs": "recomputed"} if "off_policy" in given else {})


def _refusal(found: list[tuple[tuple[str, ...], object, str]]) -> ValidationError:
    """An error that blames the fields themselves and not the section they are in."""
    details = [
        InitErrorDetails(
            type=PydanticCustomError("contradiction", "{wanted}", {"wanted": wanted}), loc=loc, input=value
        )
        for loc, value, wanted in found
    ]
    return ValidationError.from_exception_data("algorithm", details)
