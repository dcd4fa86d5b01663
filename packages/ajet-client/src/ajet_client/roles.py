"""A role of an episode, as the agent's code that plays it sees it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Role:
    """What an LLM client needs to make calls in one role of an episode. Made by `Episode.role`.

    Attributes:
        name: of the role.
        base_url: as the episode's.
        api_key: the episode's with the role's name.
        model: as the episode's.
    """

    name: str
    base_url: str
    api_key: str = field(repr=False)
    model: str
