"""One client's session with etcd: a lease that registrations are attached to, kept alive while the client lives.

When the lease has ended, the owner is notified once, and the next registration begins another lease. A server that does
not answer does not end the lease: renewals are repeated until etcd reports whether the lease exists.
Source: metadata 6.1 and 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookies.errors import MetadataError
from bookies.metadata.etcd.etcd_port import Etcd
from bookies.runtime.tasks import Tasks

_KEEPS_COUNT = 3  # renewals per lease time
_RETRY_S = 0.5  # after a renewal without an answer
_END_S = 1.0  # longest wait for the end of the lease


class Session:
    """The lease of one client. `lost`: called once per lost lease."""

    def __init__(self, etcd: Etcd, lease_ms: int, lost: Callable[[], None]) -> None:
        self._etcd = etcd
        self.ttl_s = max(1, -(-lease_ms // 1000))
        self._lost = lost
        self.lease: int | None = None
        self._beginning = asyncio.Lock()

    async def begin(self, tasks: Tasks) -> int:
        """Return the current lease; grant one if there is none."""
        async with self._beginning:
            if self.lease is None:
                lease, self.ttl_s = await self._etcd.grant_lease(self.ttl_s)
                self.lease = lease
                tasks.start(self._keep(lease), "lease of etcd")
            return self.lease

    async def _keep(self, lease: int) -> None:
        interval_s = self.ttl_s / _KEEPS_COUNT
        while self.lease == lease:
            await asyncio.sleep(interval_s)
            try:
                is_alive = await self._etcd.keep_lease(lease)
            except MetadataError:
                interval_s = min(_RETRY_S, interval_s)
                continue
            interval_s = self.ttl_s / _KEEPS_COUNT
            if not is_alive:
                self.lose(lease)

    def lose(self, lease: int) -> None:
        """Handle the end of a lease, once."""
        if self.lease == lease:
            self.lease = None
            self._lost()

    async def end(self) -> None:
        """End the lease, and with it the registrations. A lease that cannot be ended expires."""
        lease, self.lease = self.lease, None
        if lease is not None:
            try:
                async with asyncio.timeout(_END_S):
                    await self._etcd.revoke_lease(lease)
            except (MetadataError, TimeoutError):
                pass  # It expires.
