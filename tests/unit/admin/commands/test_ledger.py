"""`bk ledger read --bookie` on a bookie that lost track of its entries: it is asked for those that belong there."""

from __future__ import annotations

import argparse
import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from bookies.admin.commands.ledger import _read_from
from bookies.client.base import EntryBatch
from bookies.errors import BookieUnreachable, BookKeeperError, DataUnknown, EntryNotFound
from bookies.kernels import Records
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.repair.fragments import fragments_to_check

BOOKIES = tuple(map(BookieId, ("a", "b", "c")))
STRIPED = LedgerMetadata(7, 3, 2, 2, ((0, BOOKIES),), LedgerState.CLOSED, 5, 60)


class Damaged:
    """An administration whose bookies cannot list entries, and lack entry 4. `error`: of a listing."""

    def __init__(self, error: BookKeeperError) -> None:
        self._error = error
        self.access = SimpleNamespace(replicas=lambda record: self)

    async def record(self, ledger_id: int) -> Any:
        return SimpleNamespace(metadata=replace(STRIPED, ledger_id=ledger_id))

    async def list_entries(self, bookie: BookieId, ledger_id: int) -> list[range]:
        raise self._error

    async def fragments_of(self, ledger: Any) -> Any:
        return fragments_to_check(ledger.metadata, 5)

    async def read_batch(self, bookie: BookieId, ids: range) -> EntryBatch:
        if ids.start == 4:
            raise EntryNotFound(ledger_id=7, entry_id=4)
        records = Records.of([b"%d" % ids.start])
        return EntryBatch(7, ids.start, records.data, records.starts, 0)


def read(error: BookKeeperError, bookie: str, **options: Any) -> int:
    given = {"ledger": 7, "bookie": bookie, "first": 0, "last": None, "raw": False, "json": True, **options}
    client: Any = SimpleNamespace(administration=lambda: Damaged(error))
    return asyncio.run(_read_from(client, argparse.Namespace(**given)))


def test_entries_that_belong_on_a_bookie_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    unknown = DataUnknown("after damage it is not known which entries were here")
    assert read(unknown, "a") == 0  # entries 0, 2, 3, 5
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        f'{{"entry": {entry_id}' for entry_id in (0, 2, 3, 5)
    ]
    assert read(unknown, "b", first=3) == 1  # entries 0, 1, 3, 4
    printed = capsys.readouterr()
    assert printed.out.startswith('{"entry": 3,')
    assert "entry 4: " in printed.err
    assert read(unknown, "a", first=6) == 1
    assert "no entry of ledger 7 in this range; it should have 0 to 0, 2 to 3, 5 to 5" in capsys.readouterr().err
    assert read(unknown, "x") == 1
    printed = capsys.readouterr()
    assert (printed.out, "it should have none" in printed.err) == ("", True)


def test_a_bookie_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(BookieUnreachable):
        read(BookieUnreachable("no answer"), "a")
