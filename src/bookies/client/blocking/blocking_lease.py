"""`Lease` and `Election` for callers without asyncio. See `client/turns/lease.py`.

The calling thread is not interrupted when a lease is lost: ask `is_held`, or call `check`, between two steps.
"""

from __future__ import annotations

from bookies.client.blocking.delegation import Blocking, BlockingHandle, opens, runs, waits
from bookies.client.turns.lease import Election as AsyncElection
from bookies.client.turns.lease import Lease as AsyncLease


class Lease(BlockingHandle[AsyncLease]):
    """A turn that this process has. See `bookies.client.turns.lease.Lease`."""

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every earlier holder."""
        return self._inner.token

    @property
    def is_held(self) -> bool:
        """Report whether no other process can have it at this moment."""
        return self._inner.is_held

    @property
    def left_s(self) -> float:
        """Seconds until it ends unless it is renewed; below 0: it has ended."""
        return self._inner.left_s

    check = runs(AsyncLease.check)
    on_lost = runs(AsyncLease.on_lost)
    release = waits(AsyncLease.release)


class Election(Blocking[AsyncElection]):
    """An election by its name. See `bookies.client.turns.lease.Election`."""

    lead = opens(AsyncElection.lead, Lease)
    leader = waits(AsyncElection.leader)
