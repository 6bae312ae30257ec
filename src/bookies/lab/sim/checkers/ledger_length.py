"""Checker of inexact lengths: a recovery may publish one only if it could not read the ledger's last entry.

A recovery knows the length of an entry that it has written back. Otherwise the length is in the header of the last
entry, which the recovery must read. Only if no bookie returns this entry, the recovery may use the length from an
answer to its fencing. An inexact length is excused if no answer to such a read has reached the client in time, or if
the client sent no such read because it was connected to no bookie with the entry.

Source: client-protocol 4.8 (D-10).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bookies.lab.sim.checkers.ack_counting import GIVEN_UP_S
from bookies.lab.sim.world.network import SimTransport
from bookies.lab.sim.world.sim_metadata import write_set_of
from bookies.model import LedgerMetadata

Key = tuple[str, int, int]  # client, ledger, entry


class LedgerLengthChecker:
    """Record of what a run's recovering clients have learned about last entries, and their excuses."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lines: dict[str, list[tuple[SimTransport, str]]] = {}  # client -> its connections, each with the bookie
        self._asked: dict[Key, dict[str, float]] = {}  # reads without fencing: bookie -> time of the last request
        self._shown: dict[Key, None] = {}
        self._written_back: dict[tuple[str, int], int] = {}  # client, ledger -> the highest entry
        self.closers: dict[int, str] = {}  # ledger -> client
        self.unexcused: dict[int, str] = {}  # ledger -> why the client that closed it must have known the length

    def joined(self, near: SimTransport, bookie: str) -> None:
        """Record a client's new connection to a bookie."""
        self._lines.setdefault(near.host, []).append((near, bookie))

    def asked(self, client: str, bookie: str, ledger_id: int, entry_id: int, *, is_prompt: bool) -> None:
        """Record that a recovery reads an entry without fencing.

        `is_prompt`: the connection was open when the client sent the request. Otherwise the request may have waited for
        the connection nearly until its time-out.
        """
        since_s = self._now_s() if is_prompt else -math.inf
        self._asked.setdefault((client, ledger_id, entry_id), {})[bookie] = since_s

    def is_awaited(self, client: str, bookie: str, ledger_id: int, entry_id: int) -> bool:
        """Report whether the client has asked the bookie for the entry without fencing."""
        return bookie in self._asked.get((client, ledger_id, entry_id), ())

    def shown(self, client: str, bookie: str, ledger_id: int, entry_id: int) -> None:
        """Record that the bookie's answer with the entry has reached the client."""
        key = client, ledger_id, entry_id
        if self._now_s() - self._asked[key][bookie] < GIVEN_UP_S:
            self._shown[key] = None

    def wrote_back(self, client: str, ledger_id: int, entry_id: int) -> None:
        """Record that a recovery writes an entry back to a bookie."""
        self._written_back[client, ledger_id] = max(entry_id, self._written_back.get((client, ledger_id), -1))

    def closed(self, client: str, record: LedgerMetadata) -> None:
        """Record that the client closes the ledger at this moment, and whether an inexact length is excused."""
        ledger_id, entry_id = record.ledger_id, record.last_entry_id
        key = client, ledger_id, entry_id
        self.closers[ledger_id] = client
        if self._written_back.get((client, ledger_id), -1) == entry_id:
            self.unexcused[ledger_id] = f"{client} had written it back"
        elif key in self._shown:
            self.unexcused[ledger_id] = f"{client} was shown it"
        elif key not in self._asked:
            able = [bookie for line, bookie in self._lines.get(client, ()) if not line.is_closing()]
            if able := [bookie for bookie in write_set_of(record, entry_id) if bookie in able]:
                self.unexcused[ledger_id] = f"{client} never asked for it, though it was connected to {', '.join(able)}"
