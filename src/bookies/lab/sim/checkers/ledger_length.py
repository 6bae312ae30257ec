"""Whose fault an inexact length is: a recovery may publish one only when it could not read the ledger's last entry.

What it has written back it knows. Otherwise the length stands in the header of the last entry, which it has to ask for;
only when nobody shows it, what an answer to its fencing said will do. That is excused when no answer to such a read has
reached the client in time, and when it asked nobody because it had no connection to anybody who has the entry.

Source: client-protocol 4.8 (D-10).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from bookies.lab.sim.checkers.ack_counting import GIVEN_UP_S
from bookies.lab.sim.world.network import SimTransport
from bookies.model import LedgerMetadata
from bookies.protocol.quorums import write_set

Where = tuple[str, int, int]  # client, ledger, entry


class LedgerLengthChecker:
    """What clients of a run that recover ledgers have learned of last entries."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lines: dict[str, list[tuple[SimTransport, str]]] = {}  # client -> its connections, and to whom
        self._asked: dict[Where, dict[str, float]] = {}  # reads that fence nothing: bookie -> when it was asked last
        self._shown: dict[Where, None] = {}
        self._written_back: dict[tuple[str, int], int] = {}  # client, ledger -> the highest entry
        self.closers: dict[int, str] = {}  # ledger -> client
        self.unexcused: dict[int, str] = {}  # ledger -> why whoever closed it must have known the length

    def joined(self, near: SimTransport, bookie: str) -> None:
        """A client has a connection."""
        self._lines.setdefault(near.host, []).append((near, bookie))

    def asked(self, client: str, bookie: str, ledger_id: int, entry_id: int, *, is_prompt: bool) -> None:
        """A recovery reads an entry without fencing.

        `is_prompt`: the connection was there when the client asked. Otherwise it may have waited for it nearly until it
        gave up.
        """
        since_s = self._now_s() if is_prompt else -math.inf
        self._asked.setdefault((client, ledger_id, entry_id), {})[bookie] = since_s

    def is_awaited(self, client: str, bookie: str, ledger_id: int, entry_id: int) -> bool:
        """Whether an answer about the entry is of interest."""
        return bookie in self._asked.get((client, ledger_id, entry_id), ())

    def shown(self, client: str, bookie: str, ledger_id: int, entry_id: int) -> None:
        """The bookie's answer, with the entry, has reached the client."""
        where = client, ledger_id, entry_id
        if self._now_s() - self._asked[where][bookie] < GIVEN_UP_S:
            self._shown[where] = None

    def wrote_back(self, client: str, ledger_id: int, entry_id: int) -> None:
        """A recovery sends an entry to a bookie."""
        self._written_back[client, ledger_id] = max(entry_id, self._written_back.get((client, ledger_id), -1))

    def closed(self, client: str, record: LedgerMetadata) -> None:
        """The client has closed the ledger, this very moment."""
        ledger_id, entry_id = record.ledger_id, record.last_entry_id
        where = client, ledger_id, entry_id
        self.closers[ledger_id] = client
        ensemble = record.ensemble_at(entry_id)
        members = [ensemble[each] for each in write_set(entry_id, record.ensemble_size, record.write_quorum)]
        if self._written_back.get((client, ledger_id), -1) == entry_id:
            self.unexcused[ledger_id] = f"{client} had written it back"
        elif where in self._shown:
            self.unexcused[ledger_id] = f"{client} was shown it"
        elif where not in self._asked:
            able = [bookie for line, bookie in self._lines.get(client, ()) if not line.is_closing()]
            if able := [each for each in members if each in able]:
                self.unexcused[ledger_id] = f"{client} never asked for it, though it was connected to {', '.join(able)}"
