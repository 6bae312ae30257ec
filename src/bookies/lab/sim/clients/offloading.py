"""Simulated jobs that offload ledgers, let the bookies delete them, and restore them. A ledger's story is its copy.

The jobs are killed while doing so, and repeat what they find half done. Promise:

    restored   at the end of a run every ledger that the bookies were allowed to delete can be restored

The final checks then read every restored ledger and its replicas. `Witness` checks I-29 at each deletion: the record
allows it at this moment. Source: spark 5.3.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING

from bookies.client.base import EntryBatch
from bookies.errors import BookKeeperError
from bookies.kernels import Adds, Records, digest
from bookies.lab.sim.checkers import History, Story
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.cluster import SimBookie
from bookies.model import DigestType, LedgerMetadata
from bookies.protocol.ledger.offload import (
    PARQUET,
    Offload,
    given_up,
    is_given_up,
    kept,
    offload_of,
    offloaded,
    restored,
    restoring,
)
from bookies.wire.digest import mac_key, master_key

if TYPE_CHECKING:
    from bookies.client.repair import Administration
    from bookies.lab.sim.clients.reading import Readers
    from bookies.lab.sim.clients.roles import Roles

OFFLOADER = "replicator-offloader"  # its commits are checked like those of replicators, without the labels
KEEPS = 0.2  # probability that a copy is given up, not the entries on the bookies
TRIES, PAUSE_S = 8, 2.0  # of the last restores


class Offloaders:
    """The acts of all jobs of a workload. `mean_ms`: mean pause before each act."""

    def __init__(self, roles: Roles, cluster: SimCluster, history: History, readers: Readers, mean_ms: float) -> None:
        self._roles = roles
        self._cluster = cluster
        self._history = history
        self._readers = readers
        self._mean_ms = mean_ms

    async def offload(self, client: SimClient) -> None:
        """Take a ledger to its next state: copied, given up by the bookies, restored. Called as the participant."""
        await self._roles.sleep(self._mean_ms)
        chosen = [(story, record) for story, record in self._closed() if not story.is_advanced]
        if not chosen or self._roles.is_stopping:
            return
        story, record = self._roles.random.choice(chosen[-6:])
        administration = client.client.administration(owner=client.name)
        try:
            copy = offload_of(record)
            if copy is None:
                await self._copy(client, administration, story, record)
            elif is_given_up(record):
                await self._restore(administration, story)
            elif self._roles.random.random() < KEEPS:
                await administration.change_record(story.ledger_id, lambda now: kept(now, copy.attempt))
            else:
                now_ms = client.runtime.clock.wall_ms()
                await administration.change_record(story.ledger_id, lambda now: given_up(now, copy.attempt, now_ms))
                self._history.count("ledgers given up by the bookies")
        except BookKeeperError as error:
            self._history.failed(client.name, f"offload of {story.ledger_id}", error)

    def _closed(self) -> list[tuple[Story, LedgerMetadata]]:
        """Return the closed ledgers with entries."""
        known = [(story, self._cluster.store.record(story.ledger_id)) for story in self._history.stories.values()]
        return [
            (story, record)
            for story, record in known
            if record is not None and record.is_closed and record.last_entry_id >= 0
        ]

    async def _copy(
        self, client: SimClient, administration: Administration, story: Story, record: LedgerMetadata
    ) -> None:
        """Read every entry, as the job does to check its copy, and name the copy in the record."""
        async with client.client.open(story.ledger_id, password=story.password, tier="bookies") as ledger:
            rows = await self._readers.read_all(client, story, ledger)
        copy = Offload(client.name, "file:/copies", PARQUET, rows, record.length, 0, 0, client.runtime.clock.wall_ms())
        await administration.change_record(story.ledger_id, lambda now: offloaded(now, copy))
        self._history.count("ledgers offloaded")

    async def _restore(self, administration: Administration, story: Story) -> None:
        """Write the entries to bookies again, as the job does."""
        async with administration.locked(story.ledger_id) as lock:
            record = await administration.change_record(story.ledger_id, restoring, lock=lock)
            copy = offload_of(record)
            if copy is None or not is_given_up(record):
                return
            new = await administration.with_new_bookies(record)
            await administration.write_entries(new, _batch(record, story))
            await administration.check_entries(new)
            await administration.change_record(
                story.ledger_id, lambda now: restored(now, copy.attempt, new.ensembles), lock=lock
            )
        self._history.count("ledgers restored")

    async def settle(self, client: SimClient) -> None:
        """Restore every ledger that is given up, and check that this succeeds. Called as the participant."""
        administration = client.client.administration(owner=client.name)
        for story, record in self._closed():
            for tries in range(1, TRIES + 1):
                if not is_given_up(record):
                    break
                try:
                    await self._restore(administration, story)
                    break
                except BookKeeperError as error:
                    if tries == TRIES and self._cluster.store.record(story.ledger_id) is not None:
                        text = f"ledger {story.ledger_id}, which the bookies may have deleted, cannot be restored"
                        self._history.violated("restored", f"{text}: {error}")
                    await asyncio.sleep(PAUSE_S)


def _batch(record: LedgerMetadata, story: Story) -> EntryBatch:
    """Return all entries of the ledger, from its copy."""
    bodies = [package(record, story, entry_id, entry_id - 1) for entry_id in range(record.last_entry_id + 1)]
    records, header_size = Records.of(bodies), len(bodies[0]) - len(story.payload(0))
    return EntryBatch(record.ledger_id, 0, records.data, records.starts, header_size)


# -- replicas that no client of a run has written, as another implementation's client may leave them ------------------
def plant(bookie: SimBookie, record: LedgerMetadata, story: Story, entry_id: int, last_add_confirmed: int) -> bool:
    """Let a bookie store an entry with this last add confirmed in its header. False: the bookie is down or refuses."""
    if bookie.server is None or bookie.participant is None:
        return False
    add = partial(
        bookie.server.storage.add, is_recovery=True, is_deferred_sync=False, accepted=lambda size: None, done=_ignore
    )
    records = Records.of([package(record, story, entry_id, last_add_confirmed)])
    adds = Adds.of(story.ledger_id, range(entry_id, entry_id + 1), records, last_add_confirmed)
    return not bookie.participant.call(add, adds, master_key(story.password))


def package(record: LedgerMetadata, story: Story, entry_id: int, last_add_confirmed: int) -> bytes:
    """Return an entry of the ledger as its writer would have packaged it."""
    payload = story.payload(entry_id)
    head = struct.pack(">qqqq", story.ledger_id, entry_id, last_add_confirmed, story.length_up_to(entry_id))
    digest_type = record.digest_type or DigestType.CRC32C
    return b"".join((head, digest(digest_type, mac_key(story.password), head, payload), payload))


def _ignore(part: Adds, error: BaseException | None) -> None:
    """Ignore the outcome: the checks that read the replica detect whether it was stored."""
