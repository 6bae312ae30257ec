"""Rates at which clients read from one bookie, in all and from the ledgers that are read most. Without IO.

Counting needs no clock: a report ends a window if it has lasted long enough, and its rates are averages over the last
complete window. Of more than `LEDGERS_MAX` ledgers in a window, those that were read least are forgotten. Reports of a
bookie, and what its peers understand of them, are in the response to GET_BOOKIE_INFO.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from msgspec import Struct, field

LEDGERS_MAX = 1_000  # ledgers counted in a window
REPORTED_MAX = 32  # ledgers of a report
WINDOW_S = 60.0  # shortest window

_PAIR = struct.Struct(">qq")


class ReadLoad(Struct, frozen=True):
    """Bytes per second that clients read from a bookie.

    `ledgers`: of the ledgers that are read most, by id. `owed_entries`: those that the bookie has lost and must hold.
    """

    rate: int = 0
    ledgers: Mapping[int, int] = field(default_factory=dict)
    owed_entries: int = 0

    def pack_ledgers(self) -> bytes:
        """Return the ledgers' rates as in the response."""
        return b"".join(_PAIR.pack(ledger_id, rate) for ledger_id, rate in self.ledgers.items())


def parse_load(rate: int, ledgers: bytes, owed_entries: int = 0) -> ReadLoad:
    """Return the load that a bookie reports. Rates below 0 and an incomplete pair count as none."""
    whole = ledgers[: len(ledgers) // _PAIR.size * _PAIR.size]
    pairs = {ledger_id: rate for ledger_id, rate in _PAIR.iter_unpack(whole) if rate > 0}
    return ReadLoad(max(0, rate), pairs, max(0, owed_entries))


class ReadRates:
    """Counts of the bytes that clients read from one bookie. `now`: seconds of a monotonic clock."""

    def __init__(self, now: float) -> None:
        self._counts: dict[int, int] = {}
        self._size = 0
        self._began = now
        self._last = ReadLoad()

    def count(self, ledger_id: int, size: int) -> None:
        """Count the bytes of one answer."""
        counts = self._counts
        self._size += size
        counts[ledger_id] = counts.get(ledger_id, 0) + size
        if len(counts) > LEDGERS_MAX:
            self._counts = dict(self._most(LEDGERS_MAX // 2))

    def report(self, now: float) -> ReadLoad:
        """Return the rates of the last complete window; the present one is complete after `WINDOW_S`."""
        lasted_s = now - self._began
        if lasted_s >= WINDOW_S:
            ledgers = {ledger_id: round(size / lasted_s) for ledger_id, size in self._most(REPORTED_MAX)}
            self._last = ReadLoad(round(self._size / lasted_s), ledgers)
            self._counts, self._size, self._began = {}, 0, now
        return self._last

    def _most(self, count: int) -> list[tuple[int, int]]:
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:count]
