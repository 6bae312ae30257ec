"""The mutants of logs for `mutant_table.py`: transactions, cursors, retention, times, consumers, leases, repetition.

Random runs of the named profiles find them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookies.client.log import LogWriter, record_writer, retaining, transaction
from bookies.client.log.base import cursor_store, seeking
from bookies.client.log.base.cursor_store import LogCursors
from bookies.client.log.consumers.consumer import Progress
from bookies.client.log.sequenced import SequencedWriter
from bookies.client.log.transaction_writer import PartWriter
from bookies.client.write import LedgerWriter
from bookies.errors import VersionConflict
from bookies.metadata.interface.driver import RecordWrite
from bookies.protocol.log import log_times, retention
from bookies.protocol.log import transaction as decisions
from bookies.protocol.log.lease import Candidate, LeaseQueue
from bookies.protocol.log.log_model import Address

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


# -- retention and times ---------------------------------------------------------------------------------------------
def count_every_cursor_as_stale(patch: Patch) -> None:
    patch.setattr(retention, "_is_stale", lambda cursor, manifest, needed, *_: cursor.name in needed)


def remove_one_ledger_too_many(patch: Patch) -> None:
    original = retention._surplus
    patch.setattr(
        retention,
        "_surplus",
        lambda closed, amounts, limit: min(len(closed), original(closed, amounts, limit) + (limit is not None)),
    )


def measure_age_from_the_beginning(patch: Patch) -> None:
    patch.setattr(retaining, "ended_ms", log_times.begun_ms)


def begin_at_the_point_after_a_time(patch: Patch) -> None:
    original = seeking.bracket

    def bracket(points, time_ms):  # type: ignore[no-untyped-def]
        low, high, has_others = original(points, time_ms)
        return high or low, high, has_others

    patch.setattr(seeking, "bracket", bracket)


def end_at_the_point_before_a_time(patch: Patch) -> None:
    original = seeking.bracket

    def bracket(points, time_ms):  # type: ignore[no-untyped-def]
        low, _, has_others = original(points, time_ms)
        return low, low, has_others

    patch.setattr(seeking, "bracket", bracket)


def lose_keys(patch: Patch) -> None:
    original = record_writer.record_of
    patch.setattr(record_writer, "record_of", lambda *given: original(*given)._replace(key=None))


# -- consumers and leases --------------------------------------------------------------------------------------------
def accept_any_token(patch: Patch) -> None:
    patch.setattr(cursor_store, "check_token", lambda *_, **__: None)


def commit_what_is_being_handled(patch: Patch) -> None:
    def handled(self):  # type: ignore[no-untyped-def]
        return self._start if self._given is None else self._given[1]

    patch.setattr(Progress, "handled", property(handled))


def begin_behind_the_cursor(patch: Patch) -> None:
    original = LogCursors.claim

    async def claim(self, name, token, start):  # type: ignore[no-untyped-def]
        at = await original(self, name, token, start)
        return at if at is None or not at.entry_id else Address(*at.position.next)

    patch.setattr(LogCursors, "claim", claim)


def remove_holders_too_early(patch: Patch) -> None:
    due_s = Candidate._dead_s
    patch.setattr(Candidate, "_dead_s", lambda self, other: due_s(self, other) - other.ttl_ms / 1500)


def hold_for_longer_than_the_ttl(patch: Patch) -> None:
    original = Candidate.held_until_s.fget
    assert original is not None
    patch.setattr(Candidate, "held_until_s", property(lambda self: original(self) and original(self) + self._ttl_s))


def begin_again_with_the_first_token(patch: Patch) -> None:
    original = LeaseQueue.without

    def without(self, ids):  # type: ignore[no-untyped-def]
        left = original(self, ids)
        return left if left.participants else LeaseQueue()

    patch.setattr(LeaseQueue, "without", without)


# -- safe repetition -------------------------------------------------------------------------------------------------
def read_no_numbers(patch: Patch) -> None:
    async def read(self, start):  # type: ignore[no-untyped-def]
        pass

    patch.setattr(SequencedWriter, "_read", read)


def go_on_after_an_unknown_outcome(patch: Patch) -> None:
    original = SequencedWriter._send

    async def send(self, *given):  # type: ignore[no-untyped-def]
        try:
            await original(self, *given)
        finally:
            self._unknown = None

    patch.setattr(SequencedWriter, "_send", send)


def compare_with_what_is_confirmed(patch: Patch) -> None:
    patch.setattr(LedgerWriter, "last_pushed", lambda self: self.last_add_confirmed)


def refuse_without_a_check_of_the_lead(patch: Patch) -> None:
    async def check_lead(self):  # type: ignore[no-untyped-def]
        pass

    patch.setattr(LogWriter, "_check_lead", check_lead)


LOGS: list[tuple[str, tuple[str, ...], Callable[[Patch], None], str]] = [
    (what, (), apply, profile)
    for what, apply, profile in (
        ("a commit does not check the versions of its ledgers", commit_without_checking_ledgers, "transactions"),
        ("an abort does not check the version of the list", delete_without_checking_the_list, "transactions"),
        ("a transaction that was committed is appended again", append_again, "transactions"),
        ("a commit leaves out a ledger", leave_out_a_ledger, "transactions"),
        ("a truncation does not respect cursors", truncate_past_cursors, "transactions"),
        ("moving a cursor moves others back", move_other_cursors_back, "transactions"),
        ("retention counts every cursor as stale", count_every_cursor_as_stale, "retention"),
        ("retention removes a ledger too many", remove_one_ledger_too_many, "retention"),
        ("retention measures age from the beginning of a ledger", measure_age_from_the_beginning, "retention"),
        ("the position of a time is the point after it", begin_at_the_point_after_a_time, "retention"),
        ("the end of a time is the point before it", end_at_the_point_before_a_time, "retention"),
        ("a record loses its key", lose_keys, "numbers"),
        ("a consumer commits with any token", accept_any_token, "turns"),
        ("a consumer commits the entry that is being handled", commit_what_is_being_handled, "turns"),
        ("a consumer begins behind its cursor", begin_behind_the_cursor, "turns"),
        ("a holder is removed too early", remove_holders_too_early, "turns"),
        ("a holder counts on more than its ttl", hold_for_longer_than_the_ttl, "turns"),
        ("tokens begin again when no process has a lease", begin_again_with_the_first_token, "turns"),
        ("a leader does not read the numbers in the log", read_no_numbers, "numbers"),
        ("numbered appends go on after an unknown outcome", go_on_after_an_unknown_outcome, "numbers"),
        ("an append is compared with the last confirmed entry", compare_with_what_is_confirmed, "numbers"),
        ("a replaced leader refuses conditional appends", refuse_without_a_check_of_the_lead, "numbers"),
    )
]
