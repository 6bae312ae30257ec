"""When the end of what a query reads was where: for the time by which the query is behind. Pure, no Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from bookies.spark.base.offsets import At, Key

SIGHTINGS_MAX = 512

Positions = Mapping[Key, At]


class HeadTimes:
    """Ends of logs and ledgers, and when a query saw them there. Times: seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._sightings: deque[tuple[float, Positions]] = deque()

    def note(self, now_s: float, heads: Positions) -> None:
        """Note the present ends."""
        if self._sightings and self._sightings[-1][1] == heads:
            return
        if len(self._sightings) >= SIGHTINGS_MAX:
            # Every second one goes, so an answer may be too small, by the time to the next one.
            self._sightings = deque(list(self._sightings)[::2])
        self._sightings.append((now_s, heads))

    def behind_s(self, now_s: float, reached: Positions) -> float:
        """Return how long ago the end was first seen past a position; 0.0: the query has read everything.

        What was there before the first sighting counts from that one on. Logs that are gone, and ends that a log of
        the same name does not have, do not count.
        """
        while self._sightings and _is_within(self._sightings[0][1], reached, self._sightings[-1][1]):
            self._sightings.popleft()
        return max(0.0, now_s - self._sightings[0][0]) if self._sightings else 0.0


def _is_within(heads: Positions, reached: Positions, present: Positions) -> bool:
    return all(key in reached and min(at, present[key]) <= reached[key] for key, at in heads.items() if key in present)
