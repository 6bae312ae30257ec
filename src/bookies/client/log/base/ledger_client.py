"""The part of a client that a log needs: ledgers created, opened, recovered, deleted and listed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from bookies.client.base import Opening
from bookies.client.read import LedgerReader
from bookies.client.write import LedgerWriter
from bookies.config import ClientConfig
from bookies.errors import MetadataCorrupt
from bookies.model import DigestType, LedgerMetadata


class LedgerClient(Protocol):
    """The part of `Client` that logs and transactions use. `Client` documents the methods."""

    @property
    def config(self) -> ClientConfig:
        """Return the client's settings."""

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        labels: Mapping[str, str | bytes] | None = None,
    ) -> Opening[LedgerWriter]:
        """Create a ledger and return its writer."""

    def open(self, ledger_id: int, *, password: bytes = b"") -> Opening[LedgerReader]:
        """Open a ledger for reading and tailing."""

    def recover(self, ledger_id: int, *, password: bytes = b"") -> Opening[LedgerReader]:
        """Fence a ledger, find its last entry, seal it, and open it for reading."""

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger."""

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return a ledger's record. Raises `LedgerNotFound`."""

    async def is_sealed(self, ledger_id: int) -> bool:
        """Report whether a ledger has ended. Raises `LedgerNotFound`."""

    def ledgers(
        self, label: tuple[str, str | bytes] | None = None, *, unreadable: list[MetadataCorrupt] | None = None
    ) -> AsyncIterator[LedgerMetadata]:
        """Iterate over the records of all ledgers, by ascending id; with `label`, of those that carry it."""
