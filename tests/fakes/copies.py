"""Copies of a state that takes long to reach."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def copies_of(original: T) -> Callable[[], T]:
    """Return a function that makes objects in the state that `original` has now."""
    image = pickle.dumps(original)
    return lambda: pickle.loads(image)  # type: ignore[no-any-return]
