"""Copies of ledgers: from bookies to files, and from elsewhere to bookies.

A ledger that is written to bookies is open until every replica was read back. Then it is closed, read once more, and
compared. A task that stops leaves it open, and the next one continues: writing the same entries again does no harm.
Source: spark 5.3, 5.4.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from bookies.client.read.offloaded import content_of
from bookies.errors import ReplicationFailed, VersionConflict
from bookies.protocol.ledger.ledger import closed
from bookies.protocol.ledger.offload import Content
from bookies.spark.base import runtime

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.client import Client
    from bookies.model import LedgerMetadata
    from bookies.spark.jobs.shared.common import Tools
    from bookies.spark.write.tier import Part


async def written_files(tools: Tools, ledger_id: int, first: int, last: int, directory: str) -> list[Part]:
    """Write entries first..last to files, read them back, and return them. Raises `LedgerNotFound`, `ReadFailed`."""
    from bookies.spark.write import tier

    if last < first:
        return []
    files = runtime.worker().files()
    reader = await tools.administration.open(ledger_id)
    writer = await files.run(tier.PartsWriter, directory)
    try:
        async with reader:
            async for batch in reader.read_batches(first, last):
                await files.run(writer.append, batch)
                await tools.spent(reader.metadata.ensemble_at(batch.first_entry_id), batch.size)
        parts: list[Part] = await files.run(writer.finish)
    except BaseException:
        writer.discard()
        raise
    for part in parts:
        await files.run(tier.check_part, directory, ledger_id, part)
    return parts


async def written_ledger(
    tools: Tools, target: Client, record: LedgerMetadata, copy: LedgerMetadata, batches: AsyncGenerator[EntryBatch]
) -> Content:
    """Write missing entries, close the ledger, and compare it with the source. Raises `ReplicationFailed`.

    `record`: of the source; `copy`: in the target; `batches`: all entries of the source.
    """
    administration = target.administration()
    content = Content()
    if not copy.is_closed:
        writable = {bookie.id for bookie in await target.bookies() if bookie.mode == "writable"}
        if not writable.issuperset(copy.last_ensemble):  # One became unavailable since an earlier attempt.
            fresh = await administration.with_new_bookies(copy)
            copy = await administration.change_record(copy.ledger_id, lambda current: _with_bookies_of(current, fresh))
    async with contextlib.aclosing(batches):
        async for batch in batches:
            content = content.joined(content_of(batch))
            if not copy.is_closed:
                await administration.write_entries(copy, batch)
                # The prefix is needed because bookies of both clusters may have the same names.
                written = [f"target {bookie}" for bookie in copy.last_ensemble]
                await tools.spent(written, batch.size * copy.write_quorum)
    if (content.rows, content.size) != (record.last_entry_id + 1, record.length):
        raise ReplicationFailed(
            "the source's entries or bytes differ from its record: scrub the ledger", ledger_id=record.ledger_id
        )
    if not copy.is_closed:
        end = closed(copy, record.last_entry_id, record.length)
        await administration.check_entries(end)
        copy = await administration.change_record(copy.ledger_id, lambda current: _closed(current, copy, end))
    back = Content()
    async with await administration.open(copy.ledger_id) as reader:
        async for batch in reader.read_batches():
            back = back.joined(content_of(batch))
    if back != content:
        raise ReplicationFailed(
            f"ledger {copy.ledger_id} of the target has {back.rows:,} entries of {back.size:,} bytes, the source "
            f"{content.rows:,} of {content.size:,}: delete it there, and migrate with --map-ids or restore with --skip",
            ledger_id=record.ledger_id,
        )
    return content


def _with_bookies_of(current: LedgerMetadata, fresh: LedgerMetadata) -> LedgerMetadata | None:
    """Return the open record with the bookies of `fresh`."""
    if current.is_closed or current.ensembles == fresh.ensembles:
        return None
    return current.replace(ensembles=fresh.ensembles)


def _closed(current: LedgerMetadata, copy: LedgerMetadata, end: LedgerMetadata) -> LedgerMetadata | None:
    """Return the record with its end. Raises `VersionConflict` if another attempt has chosen other bookies."""
    if current.is_closed:
        return None
    if current.ensembles != copy.ensembles:
        raise VersionConflict(
            "another run is copying it: repeat this one when that has ended", ledger_id=copy.ledger_id
        )
    return end
