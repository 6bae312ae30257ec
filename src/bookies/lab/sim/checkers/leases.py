"""Checker of leases: locks, elections and consumers, of which one process at a time has each.

    lease   when a process gets a lease, no earlier holder counts itself as its holder any more, also one that is
            suspended or dead, and its token is larger than that of every earlier holder

Source: `protocol/log/lease.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from bookies.client.turns.lease import Lease


class LeaseChecker:
    """Checker of the leases of a run, by their names. `report(promise, text)` receives broken promises."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._holders: dict[str, list[tuple[str, Lease]]] = {}  # name -> processes and their leases, in order

    def acquired(self, name: str, process: str, lease: Lease) -> None:
        """Check a lease at the moment at which a process has got it."""
        holders = self._holders.setdefault(name, [])
        for other, earlier in holders:
            if earlier.is_held:
                self._report("lease", f"{process} has {name}, and so has {other}")
            if earlier.token >= lease.token:
                self._report("lease", f"{process} has {name} with token {lease.token}; {other} had {earlier.token}")
        holders.append((process, lease))
