"""Administrative open: any ledger, with the password in its record. Source: client-protocol 7.1."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct

from bookies.client.base.keys import keys_of
from bookies.client.read import LedgerReader
from bookies.client.repair.recovery import RecoveryParts, recover_ledger
from bookies.client.repair.replicas import LedgerReplicas
from bookies.client.transport import BookiePool, BookieWatcher
from bookies.config import ClientConfig
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, DigestType, LedgerMetadata
from bookies.protocol.placement.candidates import Candidates
from bookies.runtime.ports import Runtime


class LedgerAccess(Struct, frozen=True):
    """Access of an administration to any ledger.

    `password`, `digest_type`: used only for ledgers whose record has none.
    """

    runtime: Runtime
    config: ClientConfig
    pool: BookiePool
    driver: MetadataDriver
    watcher: BookieWatcher
    password: bytes = b""
    digest_type: DigestType = DigestType.CRC32

    def candidates(self) -> Candidates:
        """Return the writable bookies in order of preference."""
        return self.watcher.candidates()

    def avoided(self) -> Mapping[BookieId, str]:
        """Return the bookies that must get no copies, because operators have announced a drain or a maintenance."""
        return self.watcher.avoided()

    def leaving(self) -> Collection[BookieId]:
        """Return those of them that are to be emptied, so that no record may begin to name them."""
        return self.watcher.leaving()

    async def locate(self) -> None:
        """Learn the bookies' locations and what operators have announced, before any are chosen."""
        await self.watcher.locate()

    async def read(self, ledger_id: int) -> Versioned:
        """Return the ledger's record. Raises `LedgerNotFound`."""
        return await self.driver.read_ledger(ledger_id)

    async def reader(self, versioned: Versioned) -> LedgerReader:
        """Open the ledger without recovery. Raises as `LedgerReader.begin`."""
        record = versioned.metadata
        keys = keys_of(record, self._password_of(record), self.digest_type)
        return await LedgerReader.begin(self.pool, self.driver, self.config, keys, versioned)

    async def last_add_confirmed(self, versioned: Versioned) -> int:
        """Return the last entry of a sealed ledger, else the last add confirmed from its bookies.

        Raises as `LedgerReader.begin`.
        """
        if versioned.metadata.is_closed:
            return versioned.metadata.last_entry_id
        reader = await self.reader(versioned)
        try:
            return reader.last_add_confirmed
        finally:
            await reader.close()

    async def sealed(self, ledger_id: int) -> Versioned:
        """Return the record, after a recovery unless it was closed before. Raises as `recover_ledger`."""
        record = (await self.read(ledger_id)).metadata
        await self.locate()
        pool = self.pool
        parts = RecoveryParts(
            self.runtime, self.config, pool, self.driver, self.candidates, pool.counts.recoveries, pool.health.read_rank
        )
        return await recover_ledger(parts, ledger_id, password=self._password_of(record), digest_type=self.digest_type)

    def replicas(self, record: LedgerMetadata) -> LedgerReplicas:
        password = self._password_of(record)
        return LedgerReplicas(self.pool, keys_of(record, password, self.digest_type), password)

    def _password_of(self, record: LedgerMetadata) -> bytes:
        return self.password if record.password is None else record.password
