"""Shares of a batch as whole numbers, by the largest remainder (Hamilton's method)."""

from collections.abc import Mapping
from math import floor


def quotas(shares: Mapping[str, float], size: int) -> dict[str, int]:
    """Returns how many of `size` each share gets. They add up to `size`, and each is off its share by less than 1.

    Args:
        shares: by name, at least 0, adding up to 1. Of equal remainders the first named is rounded up.
        size: of the batch.
    """
    exact = {name: share * size for name, share in shares.items()}
    whole = {name: floor(value) for name, value in exact.items()}
    left = size - sum(whole.values())
    for name in sorted(exact, key=lambda name: whole[name] - exact[name])[:left]:
        whole[name] += 1
    return whole
