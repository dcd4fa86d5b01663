"""The words that swarm servers and swarm clients share.

    ids       random identifiers, one prefix per kind
    episode   kinds, states and views of an episode
    reward    what a client may report, and why a NaN may not
    config    the job: one model, a docstring under each field
    wire      bodies of the control plane (`/api`)
    status    what a server says about itself there
    events    what a server tells those who watch it
    errors    the tree of errors, each with a code and an HTTP status

This package depends on pydantic alone and knows neither HTTP nor torch.
"""

from ajet_core.episode import EpisodeKind, EpisodeStatus
from ajet_core.errors import AjetError
from ajet_core.reward import validate_reward

__version__ = "0.1.0"

__all__ = ["AjetError", "EpisodeKind", "EpisodeStatus", "__version__", "validate_reward"]
