"""Growing pauses between the attempts at something that fails."""

from __future__ import annotations

from collections.abc import Callable

DOUBLINGS_MAX = 30  # beyond any limit, and the power stays small


def doubled(first_s: float, most_s: float, failures: int) -> float:
    """Return the pause after `failures` more failures than the first, seconds: doubled each time, up to `most_s`."""
    return min(most_s, first_s * 2.0 ** min(failures, DOUBLINGS_MAX))


class Backoff:
    """Pauses of `first_s` seconds, doubled after each failure up to `most_s`.

    jitter(a, b): a random number between a and b; then a pause is between half of its length and all of it.
    """

    def __init__(self, first_s: float, most_s: float, jitter: Callable[[float, float], float] | None = None) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._jitter = jitter
        self._failures = 0

    @property
    def longest_s(self) -> float:
        """Return the length of the next pause, without jitter."""
        return doubled(self._first_s, self._most_s, self._failures)

    def next_s(self) -> float:
        """Count a failure; return the seconds to pause before the next attempt."""
        longest_s = self.longest_s
        self._failures += 1
        return longest_s if self._jitter is None else self._jitter(longest_s / 2, longest_s)

    def reset(self) -> None:
        """Begin with the first pause again: an attempt has succeeded."""
        self._failures = 0
