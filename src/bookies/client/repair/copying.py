"""Writes of entries from files or another cluster to bookies, under the ledger id of this cluster.

Entries are written as a replicator writes copies (recovery adds), which no fence stops. Repeating a write does no harm,
because an entry is the same every time. The record is decisive: no client reads from these bookies before it names
them, and it names them only after every entry was written and read back. Source: client-protocol 7.2; spark 5.3, 5.4.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator

from bookies.client.base import EntryBatch
from bookies.client.base.keys import keys_of
from bookies.client.repair.ledger_access import LedgerAccess
from bookies.client.repair.replicas import CopyRefused
from bookies.client.repair.scan import scan
from bookies.errors import ReplicationFailed
from bookies.kernels import digest
from bookies.model import ENTRY_HEADER_SIZE, BookieId, LedgerMetadata
from bookies.protocol.placement import choose_ensemble
from bookies.protocol.quorums import write_set

PIECE_SIZE = 1 << 20  # bytes in flight to the bookies at a time
_ledger_id = struct.Struct(">q").pack


class LedgerCopier:
    """Writes entries of one ledger to the bookies that `record` names; the record need not be stored yet."""

    def __init__(self, access: LedgerAccess, record: LedgerMetadata) -> None:
        password = record.password if record.password is not None else b""
        self._record = record
        self._keys = keys_of(record, password, record.digest_type)
        self._replicas = access.replicas(record)

    async def write(self, batch: EntryBatch) -> None:
        """Store every replica of these entries durably. Raises the error of a bookie that refused one."""
        for piece in _pieces(batch):
            ids = piece.entry_ids
            shares: dict[BookieId, list[int]] = {}
            for entry_id in ids:
                ensemble = self._record.ensemble_at(entry_id)
                for position in write_set(entry_id, len(ensemble), self._record.write_quorum):
                    shares.setdefault(ensemble[position], []).append(entry_id)
            try:
                await self._replicas.write(list(shares.items()), ids, list(self._bodies(piece)))
            except CopyRefused as refused:
                raise refused.error from refused

    def _bodies(self, batch: EntryBatch) -> Iterator[bytes]:
        """Yield the entries as stored: header, digest, payload, with this ledger's id and key."""
        head = _ledger_id(self._record.ledger_id)
        digest_type, key = self._keys.digest_type, self._keys.mac_key
        for start, payload in zip(batch.starts, batch.payloads(), strict=False):
            header = head + batch.data[start + 12 : start + 4 + ENTRY_HEADER_SIZE]
            yield header + digest(digest_type, key, header, payload) + payload

    async def check(self) -> None:
        """Read back every replica of every entry. Raises `ReplicationFailed` if one is missing or damaged."""
        record = self._record
        held: dict[BookieId, list[int]] = {}
        for entry_id in range(record.last_entry_id + 1):
            ensemble = record.ensemble_at(entry_id)
            for position in write_set(entry_id, len(ensemble), record.write_quorum):
                held.setdefault(ensemble[position], []).append(entry_id)
        for bookie, ids in held.items():
            result = await scan(self._replicas, bookie, ids)
            if result.stopped is not None:
                raise result.stopped
            if result.bad:
                raise ReplicationFailed(
                    f"entry {result.bad[0].first} was written to {bookie} and cannot be read there: repeat it",
                    ledger_id=record.ledger_id,
                )


async def place_on_new_bookies(access: LedgerAccess, record: LedgerMetadata) -> LedgerMetadata:
    """Return the record with currently preferred bookies in all its fragments. Raises `NotEnoughBookies`."""
    await access.locate()
    quorums = record.ensemble_size, record.write_quorum, record.ack_quorum
    ensemble = choose_ensemble(access.candidates(), *quorums)
    return record.replace(ensembles=tuple((first, ensemble) for first, _ in record.ensembles))


def _pieces(batch: EntryBatch) -> Iterator[EntryBatch]:
    """Cut the batch into pieces of at most `PIECE_SIZE` bytes, or of one entry."""
    at = 0
    while at < len(batch):
        end = max(at + 1, bisect_right(batch.starts, batch.starts[at] + PIECE_SIZE) - 1)
        end = min(end, len(batch))
        yield batch.slice(batch.first_entry_id + at, batch.first_entry_id + end - 1)
        at = end
