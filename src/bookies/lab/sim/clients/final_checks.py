"""Final checks, after the healing: every ledger is recovered, read back, and its replicas are checked on every bookie.

These are the promises, including those that `History` checks at once and `check_commits` in the committed records:

    I-1    no acknowledged entry is lost: the end is not before it, and it can be read
    I-2    every entry up to the end is on at least an ack quorum of the bookies that the record lists for it
    I-3    acknowledgements come in the order of the entries; I-23: and none after a failure or a close
    I-4    all ends agree: of every recovery, of the writer's seal, of the record
    I-5    no entry is acknowledged beyond the end
    I-7    every committed record is a legal step from the one before (which includes I-10 and I-11)
    I-12   no read returns an entry beyond the end; I-14: and none did before the end was known
    I-15   every replica and every answer to a read is the written entry, with the right length
    I-17   a handle's LAC never decreases
    I-19   every operation ends after the healing; L-2, L-3: so do recoveries and tails
    I-26   a recovery's end is not before any entry acknowledged before the recovery

Source: client-protocol 8.2.
"""

from __future__ import annotations

import asyncio

from bookies.client.transport import BookiePool
from bookies.errors import BookKeeperError, DataUnknown, DigestMismatch, LedgerUnknownToBookie
from bookies.kernels import Records, scan_records
from bookies.lab.sim.checkers import History, Story
from bookies.lab.sim.checkers.linearizability import disorder
from bookies.lab.sim.clients.offloading import OFFLOADER
from bookies.lab.sim.clients.reading import Readers
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.cluster import resolve
from bookies.lab.sim.world.sim_metadata import Commit, write_set_of
from bookies.model import BookieId, LedgerMetadata, fragments_of
from bookies.protocol.ledger.ledger import Author, illegality, malformation
from bookies.wire.digest import mac_key, verify_entry

RECOVERY_TRIES = 8
RECOVERY_PAUSE_S = 2.0  # between tries: a bookie may need its disk_check_interval_ms to detect free space


def check_commits(cluster: SimCluster, history: History) -> None:
    """Check I-7: every committed record follows legally from the one before. An author's name contains its role."""
    for ledger_id, commits in cluster.store.commits.items():
        for index, commit in enumerate(commits):
            if index > 0 and commit.before is None and commit.after is not None:
                history.violated("I-7", f"ledger {ledger_id}: {commit.author} creates it again after its deletion")
            if problem := _illegal(commit):
                history.violated("I-7", f"ledger {ledger_id}: {commit.author} commits {commit.after!r}: {problem}")
        closed = [commit.after for commit in commits if commit.after is not None and commit.after.is_closed]
        for record in closed[1:]:
            if (record.last_entry_id, record.length) != (closed[0].last_entry_id, closed[0].length):
                history.violated("I-4", f"ledger {ledger_id}: the end moved from {closed[0]!r} to {record!r}")


def check_order(history: History) -> None:
    """Check that one order of operations explains all observations of each ledger that the workload wrote."""
    for story in history.stories.values():
        if not story.seen.begun:
            continue
        for problem in disorder(story.seen):
            history.violated("order", f"ledger {story.ledger_id}: {problem}")


def _illegal(commit: Commit) -> str:
    if commit.after is None:
        return ""
    if commit.before is None:
        return malformation(commit.after)
    if commit.author.startswith(OFFLOADER):  # It changes labels as well.
        before, after = (record.replace(custom_metadata={}) for record in (commit.before, commit.after))
        return illegality(before, after, Author.REPLICATOR)
    if commit.author.startswith("writer"):
        return illegality(commit.before, commit.after, Author.WRITER)
    problem = illegality(commit.before, commit.after, Author.RECOVERY)
    if problem and commit.author.startswith("replicator"):  # it recovers ledgers before it replaces bookies
        return illegality(commit.before, commit.after, Author.REPLICATOR)
    # These recover old ledgers, and write new ones.
    if problem and commit.author.startswith(("leader", "last", "job", "roller")):
        return illegality(commit.before, commit.after, Author.WRITER)
    return problem


async def check_ledgers(cluster: SimCluster, history: History, readers: Readers) -> None:
    """Recover and read every ledger with a new client, and check every replica."""
    client = cluster.new_client("checker", {})
    await client.participant.create_task(_check_ledgers(cluster, client, history, readers), name="checker")


async def recover_ledgers(
    cluster: SimCluster, client: SimClient, history: History, *, skips_sealed: bool = False
) -> None:
    """Recover every ledger, so that it is sealed. Called as the participant."""
    for story in list(history.stories.values()):
        record = cluster.store.record(story.ledger_id)
        if record is not None and not (skips_sealed and record.is_closed):
            await _recover(client, history, story)


async def _check_ledgers(cluster: SimCluster, client: SimClient, history: History, readers: Readers) -> None:
    await cluster.open_client(client)
    for story in list(history.stories.values()):
        if cluster.store.record(story.ledger_id) is None:
            continue  # deleted
        try:
            if (metadata := await _recover(client, history, story)) is not None:
                await _read_back(client, history, readers, story, metadata)
                await _check_replicas(client, history, story, metadata, cluster)
        except BookKeeperError as error:
            history.violated("I-1", f"ledger {story.ledger_id}: reading it back: {type(error).__name__}: {error}")


async def _recover(client: SimClient, history: History, story: Story) -> LedgerMetadata | None:
    """Return the record of the closed ledger; None if recovery does not succeed, which is a violation of L-2."""
    last_error: BookKeeperError | None = None
    for _ in range(RECOVERY_TRIES):
        story.recoveries[client.name] = story.recoveries.get(client.name, 0) + 1
        try:
            ledger = await client.client.recover(story.ledger_id, password=story.password)
        except BookKeeperError as error:
            last_error = error
            await asyncio.sleep(RECOVERY_PAUSE_S)
            continue
        metadata = ledger.metadata
        history.ended(story, client.name, metadata.last_entry_id, metadata.length)
        await ledger.close()
        return metadata
    history.violated("L-2", f"ledger {story.ledger_id} cannot be recovered: {type(last_error).__name__}: {last_error}")
    return None


async def _read_back(
    client: SimClient, history: History, readers: Readers, story: Story, metadata: LedgerMetadata
) -> None:
    async with client.client.open(story.ledger_id, password=story.password) as ledger:
        count = await readers.read_all(client, story, ledger)
    if count != metadata.last_entry_id + 1:
        history.violated("I-1", f"ledger {story.ledger_id}: {count} entries read of {metadata.last_entry_id + 1}")
    _check_length(history, story, metadata)


def _check_length(history: History, story: Story, metadata: LedgerMetadata) -> None:
    """Check I-15: only a recovery that writes no entry back and cannot read the last one may publish another length."""
    exact = story.length_up_to(metadata.last_entry_id)
    if metadata.length == exact:
        return
    history.count("inexact lengths")
    if history.tap is None:
        return
    lengths = history.tap.lengths
    closer, reason = lengths.closers.get(story.ledger_id, ""), lengths.unexcused.get(story.ledger_id)
    text = f"ledger {story.ledger_id} is closed with length {metadata.length}, not {exact}"
    if closer == story.writer:
        history.violated("I-15", f"{text}, by its writer")
    elif reason and not story.is_advanced and story.recoveries.get(closer) == 1:
        history.violated("I-15", f"{text}: of the last entry, {reason}")


async def _check_replicas(
    client: SimClient, history: History, story: Story, metadata: LedgerMetadata, cluster: SimCluster
) -> None:
    """Check I-2 and I-15 on every listed bookie that is not lost. Replicas on rotten bookies may be damaged, and a
    bookie that has lost a disk lists entries there that no record places on it."""
    pool, rotten = BookiePool(client.runtime, client.client.config, resolve), cluster.rotten
    lossy = {*rotten, *(cluster.witness.lost_disks if cluster.witness is not None else ())}
    held = {
        bookie: set[int]()
        if bookie not in cluster.bookies or cluster.bookies[bookie].is_gone
        else await _held(pool, history, story, metadata, bookie, bookie in lossy)
        for bookie in metadata.bookies
    }
    await pool.close()
    for first, last, ensemble in fragments_of(metadata, metadata.last_entry_id):
        for entry_id in range(first, last + 1):
            members = write_set_of(metadata, entry_id)
            copies = [bookie for bookie in members if entry_id in held[bookie]]
            hits = sum(bookie in rotten for bookie in members)
            if len(copies) < metadata.ack_quorum - hits:
                history.violated(
                    "I-2",
                    f"entry {entry_id} of ledger {story.ledger_id} is on {copies or 'no bookie'}, of the ensemble "
                    f"{', '.join(ensemble)}; the ack quorum is {metadata.ack_quorum}",
                )


async def _held(
    pool: BookiePool, history: History, story: Story, metadata: LedgerMetadata, bookie: BookieId, is_rotten: bool
) -> set[int]:
    """Return the entries of which the bookie has a valid replica, and check that each is the written entry.

    A replica with a wrong digest does not count: a replica torn by a power failure was never acknowledged. A rotten
    bookie may be unable to read some replicas.
    """
    assert metadata.digest_type is not None
    key = mac_key(story.password)
    valid: set[int] = set()
    try:
        runs = await pool.list_entries(bookie, story.ledger_id)
    except LedgerUnknownToBookie:
        return valid  # `_check_replicas` counts the copies, so it detects a missing ledger.
    except DataUnknown:
        # The bookie had deleted the ledger, which a restore brought back. It serves what it has.
        runs, is_rotten = [range(metadata.last_entry_id + 1)], True
    for run in runs:
        at = run.start
        while at < run.stop:
            try:
                data = await pool.read_batch(bookie, story.ledger_id, at, run.stop - at, 1 << 20)
            except BookKeeperError:
                if not is_rotten:
                    raise
                at += 1
                continue
            records = Records(data, scan_records(data, 0, len(data), len(data))[0])
            for index in range(len(records)):
                body = records.body(index)
                try:
                    header = verify_entry(metadata.digest_type, key, body, story.ledger_id, at)
                except DigestMismatch:
                    at += 1
                    continue
                payload = bytes(body[header.payload_offset :])
                is_exact = story.is_advanced or header.length == story.length_up_to(at)
                if payload != story.payload(at) or not is_exact:
                    history.violated("I-15", f"entry {at} of ledger {story.ledger_id} on {bookie} is not what was sent")
                valid.add(at)
                at += 1
    return valid
