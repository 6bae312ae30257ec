"""Numbers of examples of Hypothesis. `BK_EXAMPLES` sets that of an ordinary property, and scales the others."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 100  # examples of an ordinary property, to which the counts in the tests relate


def scaled(count: int, **more: Any) -> settings:
    """Return the settings of a property that needs `count` examples where an ordinary one needs `USUAL`."""
    return settings(max_examples=max(10, count * settings.default.max_examples // USUAL), **more)
