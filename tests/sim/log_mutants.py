"""The mutants of transactions and cursors of logs, for `mutant_table.py`. Random runs of `transactions` find them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookies.client.log import cursor_store, transaction
from bookies.client.log.cursor_store import LogCursors
from bookies.client.log.transaction_writer import PartWriter
from bookies.errors import VersionConflict
from bookies.metadata.interface.driver import RecordWrite
from bookies.protocol.log import transaction as decisions

Patch = pytest.MonkeyPatch


def commit_without_checking_ledgers(patch: Patch) -> None:
    original = transaction._Commit._checked_ledgers

    async def checked_ledgers(self, logs):  # type: ignore[no-untyped-def]
        await original(self, logs)
        return []

    patch.setattr(transaction._Commit, "_checked_ledgers", checked_ledgers)


def delete_without_checking_the_list(patch: Patch) -> None:
    async def delete_at(driver, log, version, ledgers):  # type: ignore[no-untyped-def]
        for ledger_id in ledgers:
            await driver.delete_ledger(ledger_id)

    patch.setattr(transaction, "_delete_at", delete_at)


def append_again(patch: Patch) -> None:
    patch.setattr(decisions, "_knows", lambda manifest, txn, written: False)


def leave_out_a_ledger(patch: Patch) -> None:
    original = PartWriter.finish

    async def finish(self):  # type: ignore[no-untyped-def]
        written = await original(self)
        return written[1:] or written

    patch.setattr(PartWriter, "finish", finish)


def truncate_past_cursors(patch: Patch) -> None:
    patch.setattr(cursor_store, "passed", lambda *_: [])


def move_other_cursors_back(patch: Patch) -> None:
    """What was made of the cursors that were read first is written, whatever they are by now."""

    async def change(self, change):  # type: ignore[no-untyped-def]
        manifest = await self._records.refresh()
        cursors, version = await self.read()
        if (changed := change(cursors, manifest)) is None:
            return
        data = cursor_store.pack_cursors(manifest.token, changed)
        while True:
            try:
                await self._driver.transact([RecordWrite(self._record, data, version)])
                return
            except VersionConflict:
                _, version = await self._driver.read_record(self._record)

    patch.setattr(LogCursors, "_change", change)


LOGS: list[tuple[str, tuple[str, ...], Callable[[Patch], None], str]] = [
    (what, (), apply, "transactions")
    for what, apply in (
        ("a commit does not check the versions of its ledgers", commit_without_checking_ledgers),
        ("an abort does not check the version of the list", delete_without_checking_the_list),
        ("a transaction that was committed is appended again", append_again),
        ("a commit leaves out a ledger", leave_out_a_ledger),
        ("a truncation does not respect cursors", truncate_past_cursors),
        ("moving a cursor moves others back", move_other_cursors_back),
    )
]
