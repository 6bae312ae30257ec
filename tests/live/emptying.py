"""A bookie is drained, the command is killed in the middle and called again: the same on every metadata store."""

from __future__ import annotations

import pathlib
import time

from tests.live.command import Done, started
from tests.live.command import bk as bk_command

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.metadata.uri import connect
from bookies.model import BookieId
from bookies.protocol.repair.fragments import is_named
from bookies.runtime import aio

LEDGERS, ENTRIES, SIZE = 60, 20, 1024
RATE = 250_000  # bytes a second: some four seconds
PATIENCE_S = 60.0


async def fill(uri: str) -> list[int]:
    ids = []
    async with bookies.connect(uri) as client:
        for _ in range(LEDGERS):
            async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
                await ledger.append_many([bytes(SIZE)] * ENTRIES)
            ids.append(ledger.ledger_id)
    return ids


async def look(uri: str, ids: list[int], bookie: str) -> tuple[list[int], list[int]]:
    """Ledgers that are on the bookie; ledgers that are locked or marked."""
    driver = connect(uri, aio.runtime(), may_create=False)
    await driver.open()
    try:
        records = [(await driver.read_ledger(ledger)).metadata for ledger in ids]
        held = [record.ledger_id for record in records if is_named(record, BookieId(bookie))]
        marked = [each async for page in driver.recovery.marked_ids() for each in page]
        return held, [*await driver.recovery.locks(), *marked]
    finally:
        await driver.close()


def drain_killed_and_resumed(folder: pathlib.Path, uri: str) -> None:
    """`uri`: of a store in which there is no cluster yet."""

    def done(*words: object, status: int = 0) -> Done:
        done = bk_command(*words, metadata=uri)
        assert done.status == status, (done.out, done.err)
        return done

    with LocalCluster(folder / "bk-data", 4, lease_ms=2000, metadata_uri=uri) as cluster:
        ids = aio.run(fill(uri))
        victim = cluster.bookies[0].id
        before, _ = aio.run(look(uri, ids, victim))
        left = before
        with started("bookie", "drain", victim, "--rate", RATE, "--metadata", uri) as process:
            deadline = time.monotonic() + PATIENCE_S
            while len(left) > len(before) - 5:
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline, "nothing is moved"
                left, _ = aio.run(look(uri, ids, victim))
        assert left, "it was over before it was killed"
        assert victim in done("bookie", "drain").out
        plan = done("bookie", "drain", victim, "--dry-run", "--json").json()
        assert 0 < plan["ledgers"] <= len(left)
        # A lock of the one that was killed goes with its session; what goes on waits for that.
        result = done("bookie", "drain", victim, "--wait", "--json").json()
        assert result["empty"], result
        assert result["entries_copied"] <= len(left) * ENTRIES
        held, busy = aio.run(look(uri, ids, victim))
        assert (held, busy) == ([], [])
        assert done("ledger", "verify").status == 0
        assert "stop it first" in done("bookie", "drain", victim, "--remove", status=1).err
        cluster.kill(victim)
        deadline = time.monotonic() + PATIENCE_S
        while bk_command("bookie", "drain", victim, "--remove", metadata=uri).status:
            assert time.monotonic() < deadline, "the registration of a killed bookie has not ended"
        assert victim not in done("bookie", "list").out
