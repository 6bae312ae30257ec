"""Weights of bookies in a choice by their free space. Source: metadata 9.6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bookies.model import BookieId


def weights_of(bookies: Sequence[BookieId], free: Mapping[BookieId, int], multiple_max: float) -> dict[BookieId, float]:
    """Return the chance of each bookie relative to the best one's, above 0 and at most 1. Empty: all are the same.

    free: reported free bytes; a bookie without a report, or with 0, counts as the one with the fewest.
    multiple_max: no bookie counts as more than this multiple of the median; 0: no limit.
    """
    known = {bookie: space for bookie in bookies if (space := free.get(bookie, 0)) > 0}
    if not known:
        return {}
    least = min(known.values())
    spaces = {bookie: float(known.get(bookie, least)) for bookie in bookies}
    limit = multiple_max * median(spaces.values()) if multiple_max > 0 else float("inf")
    most = min(max(spaces.values()), limit)
    return {bookie: min(space, most) / most for bookie, space in spaces.items()}
