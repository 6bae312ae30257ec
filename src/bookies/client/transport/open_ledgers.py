"""Proof that a writer's ledger was open when a connection existed already, before adds are sent on it.

A new connection may lead to a bookie that was emptied and has lost the fence of the ledger. So the adds of a writer go
out on a connection only if the ledger's record was OPEN after the connection was established (I-33). Connections are
numbered as they are established. A writer has the number of connections that existed when the last request to the
metadata store began that found its ledger open, and sends on these at once: one comparison. On any other connection its
adds wait for a read of the record. Writers that wait at the same time share reads.

Apache's bookies delete the fence of a ledger that was deleted, or moved to other bookies. So a writer that was idle for
`IDLE_S`, perhaps because the machine slept, needs a new proof on every connection. If the store does not answer within
`IDLE_READ_S`, its adds go out on the connections that its last proof covers: without the store, writers go on.

Recovery does not ask: its adds are to be stored in spite of fences.

Source: client-protocol 2.21.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.errors import BookKeeperError, LocalProtocolError, MetadataError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.ending import Record, end_of
from bookies.protocol.pacing import Backoff
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

READS_AT_ONCE = 64  # by a client whose loop is busy: each read waits for some of its iterations
RETRY_S, RETRY_S_MAX = 0.02, 1.0  # pauses after failed reads
IDLE_S = 30.0  # far less than the period of Apache's collection
IDLE_READ_S = 1.0
NOT_ESTABLISHED = 1 << 62  # number of a connection that is not established yet


class Holder(Protocol):
    """A connection that holds adds back. `number`: see the module."""

    number: int

    def holds(self, proof: OpenProof) -> bool:
        """Report whether adds still wait; they may have timed out."""

    def release(self, proof: OpenProof) -> None:
        """Send the adds, in order."""

    def refuse(self, proof: OpenProof, error: BookKeeperError, last: int) -> None:
        """Send the adds up to entry `last`, which the ended ledger contains, and fail the others; none was sent."""


class OpenProof:
    """One writer's proof: the ledger was open when the first `point` connections existed.

    `last_point`: of the proof before a pause of the writer.
    """

    __slots__ = ("_ledgers", "_now_s", "_used_s", "last_point", "point", "record")

    def __init__(self, ledgers: OpenLedgers, record: MetadataLoop, point: int) -> None:
        self._ledgers = ledgers
        self._now_s = ledgers.now_s
        self._used_s = self._now_s()
        self.record = record
        self.point = self.last_point = point

    def covers(self, number: int) -> bool:
        """Report whether adds may be sent on this connection now; they are sent or held then."""
        now_s = self._now_s()
        if now_s - self._used_s > IDLE_S:
            self.last_point, self.point = max(self.point, self.last_point), -1
        self._used_s = now_s
        return number <= self.point

    @property
    def ledger_id(self) -> int:
        return self.record.current.metadata.ledger_id

    def demand(self, holder: Holder) -> None:
        """Begin to read the record. `holder`: an established connection that has begun to hold adds."""
        self._ledgers.demand(self, holder)


class AddOptions(NamedTuple):
    """Options of adds. `is_deferred_sync`: the bookie may answer before they are durable; only v3 can express it.

    `proof`: the writer's; adds are held until the ledger was found open after the connection was established, and since
    a pause of the writer. None in a recovery, which may add to a ledger that has ended.

    `trace`: of a single add, the identity that the bookie is to know; only v3 can express it.
    """

    proof: OpenProof | None = None
    is_deferred_sync: bool = False
    trace: str = ""


NO_OPTIONS = AddOptions()


class OpenLedgers:
    """The reads that the writers of one client share. `connection_count`: returns the number of the last connection."""

    def __init__(self, runtime: Runtime, driver: MetadataDriver, connection_count: Callable[[], int]) -> None:
        self.now_s = runtime.clock.with_sleep
        self._runtime = runtime
        self._driver = driver
        self._connection_count = connection_count
        self._holders: dict[OpenProof, list[Holder]] = {}
        self._due: dict[OpenProof, None] = {}
        self._reads = 0  # in progress
        self._is_stopped = False
        self._tasks = Tasks(self._died)

    def proof(self, record: MetadataLoop, point: int) -> OpenProof:
        return OpenProof(self, record, point)

    def demand(self, proof: OpenProof, holder: Holder) -> None:
        """See `OpenProof.demand`."""
        self._holders.setdefault(proof, []).append(holder)
        self._due[proof] = None
        if len(self._due) == 1:
            asyncio.get_running_loop().call_soon(self._start)

    async def stop(self) -> None:
        """End all reads; held adds stay where they are. Idempotent."""
        self._is_stopped = True
        await self._tasks.stop()

    def _start(self) -> None:
        while self._due and self._reads < READS_AT_ONCE and not self._is_stopped:
            proofs = list(self._due)[:READ_AT_ONCE]
            for proof in proofs:
                del self._due[proof]
            self._reads += 1
            self._tasks.start(self._read(proofs), "check that ledgers are open")

    async def _read(self, proofs: Sequence[OpenProof]) -> None:
        """Read the records, again after failures, while connections hold adds for them."""
        backoff = Backoff(RETRY_S, RETRY_S_MAX, self._runtime.random.uniform)
        while proofs := [proof for proof in proofs if self._is_wanted(proof)]:
            point = self._connection_count()
            try:
                known = [proof.record.current for proof in proofs]
                async with asyncio.timeout(IDLE_READ_S if any(proof.point < 0 for proof in proofs) else None):
                    records = await self._driver.current_ledgers([proof.ledger_id for proof in proofs], known)
            except (MetadataError, TimeoutError):
                for proof in proofs:
                    self._holders[proof] = self._release(proof, proof.last_point)
                await asyncio.sleep(backoff.next_s())
                continue
            except BookKeeperError as error:  # The client closes.
                for proof in proofs:
                    self._end(proof, error)
                break
            for proof, versioned in zip(proofs, records, strict=True):
                self._decide(proof, point, versioned.metadata if isinstance(versioned, Versioned) else versioned)
            break
        self._reads -= 1
        self._start()

    def _is_wanted(self, proof: OpenProof) -> bool:
        holders = [holder for holder in self._holders.pop(proof, ()) if holder.holds(proof)]
        if holders:
            self._holders[proof] = holders
        return bool(holders)

    def _decide(self, proof: OpenProof, point: int, record: Record) -> None:
        if (error := end_of(proof.ledger_id, record)) is not None:
            # Entries up to the end are in the ledger. Its own writer may have sealed it before all replicas had them.
            last = record.last_entry_id if isinstance(record, LedgerMetadata) and record.is_closed else -1
            self._end(proof, error, last)
            return
        for holder in self._release(proof, point):  # Their connections were established after the read had begun.
            self.demand(proof, holder)

    def _release(self, proof: OpenProof, point: int) -> list[Holder]:
        """Extend the proof, and release those whom it covers; return the others, who still wait."""
        proof.point = max(proof.point, point)
        holders = self._holders.pop(proof, [])
        for holder in holders:
            if holder.number <= proof.point:
                holder.release(proof)
        return [holder for holder in holders if holder.number > proof.point]

    def _end(self, proof: OpenProof, error: BookKeeperError, last: int = -1) -> None:
        for holder in self._holders.pop(proof, ()):
            holder.refuse(proof, error, last)

    def _died(self, cause: BaseException) -> None:
        """Fail all held adds: a read failed unexpectedly, a programming error."""
        self._is_stopped = True
        for proof in list(self._holders):
            error = LocalProtocolError(f"the check that the ledger is open has failed: {cause!r}")
            error.__cause__ = cause
            self._end(proof, error)
