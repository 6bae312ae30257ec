"""A ledger is sealed, its bookies are emptied and return under their ids, and its idle writer goes on (issue 4812 of
Apache's): the same on every metadata store, with real processes.
"""

from __future__ import annotations

import asyncio
import pathlib
import shutil
import time
from collections.abc import Sequence

import pytest
from tests.live.command import bk as bk_command

import bookies
from bookies.admin.cluster import LocalCluster
from bookies.client.transport.pool import BookiePool
from bookies.config import ClientConfig
from bookies.errors import BookieUnreachable, BookKeeperError, LedgerFenced, NotEnoughBookies
from bookies.kernels import pack_add_frames
from bookies.metadata.uri import connect
from bookies.model import BookieId, DigestType
from bookies.runtime import aio
from bookies.wire.digest import mac_key, master_key
from bookies.wire.v2 import add_head

BEFORE = 10  # entries
PATIENCE_S = 60.0


def empty_all(cluster: LocalCluster, folder: pathlib.Path, uri: str) -> None:
    """By hand: processes killed, cookies deleted by force, directories removed, processes started again."""
    names = [bookie.id for bookie in cluster.bookies]
    for name in names:
        cluster.kill(name)
    deadline = time.monotonic() + PATIENCE_S
    for name in names:
        while (done := bk_command("cookie", "delete", name, "--force", metadata=uri)).status:
            assert "regist" in done.err, done.err  # its lease has not ended
            assert time.monotonic() < deadline
        for part in ("journal", "ledgers"):
            shutil.rmtree(folder / name / part)
    cluster.start()


class Outcome:
    """What the bookie answers to adds."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[BookKeeperError | None] = asyncio.get_running_loop().create_future()

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        self.answer.set_result(None)

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        self.answer.set_result(error)


async def answers_of(uri: str, ledger_id: int, names: Sequence[BookieId]) -> list[BookKeeperError | None]:
    """What bookies answer to an add of a writer that checks no record, like Apache's."""
    driver = connect(uri, aio.runtime(), may_create=False)
    await driver.open()

    async def resolve(bookie: BookieId) -> tuple[str, int]:
        deadline = time.monotonic() + PATIENCE_S
        while (info := await driver.bookie_info(bookie)) is None:  # its lease ended on a busy machine
            if time.monotonic() > deadline:
                raise BookieUnreachable("it is not registered", bookie=bookie)
            await asyncio.sleep(0.1)
        address = info.rpc_address()
        assert address is not None
        return address

    patience_ms = int(PATIENCE_S * 1000)
    config = ClientConfig(connect_timeout_ms=patience_ms, add_timeout_ms=patience_ms)
    pool = BookiePool(aio.runtime(), config, resolve)
    answers = []
    for bookie in names:
        head, payloads = add_head(master_key(b""), is_recovery=False, is_high_priority=False), [b"lost"]
        given = (head, ledger_id, BEFORE, BEFORE - 1, 0, payloads, DigestType.CRC32C, mac_key(b""))
        outcome = Outcome()
        pool.send_adds(bookie, ledger_id, range(BEFORE, BEFORE + 1), pack_add_frames(*given)[0], outcome)
        answers.append(await outcome.answer)
    await pool.close()
    await driver.close()
    return answers


def append_elsewhere(client: bookies.blocking.Client) -> None:
    """Append to a new ledger on the emptied bookies."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fresh = client.create(ensemble=3, write_quorum=3, ack_quorum=3)
            assert fresh.append(b"new") == 0
            return
        except NotEnoughBookies:
            assert time.monotonic() < deadline


def stale_writer_is_refused(folder: pathlib.Path, uri: str | None = None) -> None:
    """`uri`: of a store in which there is no cluster yet; None: the cluster's own."""
    with LocalCluster(folder / "bk-data", 3, lease_ms=2000, metadata_uri=uri) as cluster:
        where = cluster.metadata_uri
        with bookies.blocking.connect(where) as client, bookies.blocking.connect(where) as other:
            writer = client.create(ensemble=3, write_quorum=3, ack_quorum=2)
            for number in range(BEFORE):
                assert writer.append(b"%d" % number) == number
            with other.recover(writer.ledger_id) as reader:
                assert reader.last_add_confirmed == BEFORE - 1
            empty_all(cluster, folder / "bk-data", where)
            for _ in range(2):  # also after the bookies were restarted
                answers = aio.run(answers_of(where, writer.ledger_id, writer.metadata.last_ensemble))
                assert [type(answer) for answer in answers] == [LedgerFenced] * 3, answers
                for bookie in cluster.bookies:
                    cluster.kill(bookie.id)
                cluster.start()
            append_elsewhere(client)  # the client knows where the bookies are now, and is connected to them
            with pytest.raises(LedgerFenced):
                writer.append(b"lost")
            assert other.metadata(writer.ledger_id).last_entry_id == BEFORE - 1
