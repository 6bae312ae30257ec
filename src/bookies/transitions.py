"""State machines as tables: the state that follows a state and an event."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

S = TypeVar("S", bound=enum.Enum)
E = TypeVar("E", bound=enum.Enum)


def following(transitions: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """Return the state that follows. Raises AssertionError if the table lacks the pair: a mistake of the caller."""
    if (state, event) not in transitions:
        raise AssertionError(f"{type(event).__name__}.{event.name} is impossible in state {state.name}")
    return transitions[state, event]
