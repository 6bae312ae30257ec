"""The checks of `bk chaos` find what they are for: each broken promise by itself, in histories made by hand."""

from __future__ import annotations

import asyncio
import json
import pathlib
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from bookies.client.client import Client
from bookies.errors import LedgerFenced, RecoveryFailed
from bookies.lab.chaos.chaos_checker import SLACK_S, Checker, LastCheck, Story
from bookies.lab.chaos.chaos_history import History, HistoryReader, payload_of
from bookies.model import BookieId, DigestType, LedgerMetadata
from bookies.protocol.ledger.ledger import closed, new_ledger

LEDGER = 7


def begin(number: int, t: float, bound_s: float = 10.0) -> dict[str, Any]:
    return {"e": "begin", "op": number, "kind": "append", "bound_s": bound_s, "t": t}


def end(number: int, t: float, seconds: float, outcome: str = "ok") -> dict[str, Any]:
    return {"e": "end", "op": number, "kind": "append", "outcome": outcome, "s": seconds, "t": t}


def record(last: int, length: int) -> LedgerMetadata:
    bookies = tuple(map(BookieId, ("b1", "b2", "b3")))
    return closed(new_ledger(LEDGER, bookies, 3, 2, digest_type=DigestType.CRC32C, password=b""), last, length)


def compare(story: Story, last: int, count: int | None = None) -> list[str]:
    """What the last check says of a ledger that ends at `last` and of which `count` entries can be read."""
    checker = Checker()
    checker.stories[LEDGER] = story
    LastCheck(checker, ("chaos", "1"))._compare(record(last, 100), last + 1 if count is None else count, 100)
    return [violation.partition(":")[0] for violation in checker.violations]


def test_a_good_history_has_no_violation() -> None:
    checker = Checker()
    facts = [
        begin(1, 100.0),
        {"e": "started", "ledger": LEDGER, "last": 9},
        {"e": "acked", "ledger": LEDGER, "first": 0, "last": 9},
        end(1, 101.0, 1.0),
        {"e": "seen", "ledger": LEDGER, "last": 4},
        {"e": "end_of", "ledger": LEDGER, "last": 9, "length": 100},
    ]
    checker.take("writer1.1", facts)
    checker.ended(LEDGER, "the last check", 9, 100)
    assert checker.overdue() == []
    assert checker.violations == []
    assert compare(checker.stories[LEDGER], 9) == []
    assert checker.counts["entries acknowledged"] == 10
    assert checker.outcomes["append"] == {"ok": 1}


@pytest.mark.parametrize(
    ("story", "last", "count", "promises"),
    [
        (Story(started=9, acked=5), 4, None, ["none lost"]),
        (Story(started=9, acked=5), 5, 5, ["none lost"]),
        (Story(started=9, acked=2, seen=4), 3, None, ["none vanished"]),
        (Story(started=3), 4, None, ["none invented"]),
        (Story(), -1, None, []),
    ],
)
def test_what_the_ledger_holds_is_compared_with_what_was_seen(
    story: Story, last: int, count: int | None, promises: list[str]
) -> None:
    assert compare(story, last, count) == promises


@pytest.mark.parametrize("other", [(8, 100), (9, 101)])
def test_two_ends_are_found(other: tuple[int, int]) -> None:
    checker = Checker()
    checker.ended(LEDGER, "writer1.1", 9, 100)
    checker.ended(LEDGER, "recoverer1.1", *other)
    (violation,) = checker.violations
    assert violation.startswith("one end: ")
    assert "writer1.1" in violation
    assert "recoverer1.1" in violation


class Undecided:
    """A client whose only ledger cannot be recovered."""

    async def ledgers(self, *, label: tuple[str, str]) -> AsyncIterator[LedgerMetadata]:
        yield new_ledger(
            LEDGER, tuple(map(BookieId, ("b1", "a1", "a2"))), 3, 2, digest_type=DigestType.CRC32C, password=b""
        )

    def recover(self, ledger_id: int, *, timeout: float) -> Any:
        raise RecoveryFailed("the end could not be decided", ledger_id=ledger_id)


@pytest.mark.parametrize(("gone", "is_lost"), [({"a1", "a2"}, False), ({"a1"}, True), ({"a1", "a3"}, True)])
def test_only_an_ack_quorum_of_apaches_bookies_that_are_gone_excuses_an_undecided_end(
    gone: set[str], is_lost: bool
) -> None:
    checker = Checker()
    asyncio.run(LastCheck(checker, ("chaos", "1")).run(cast(Client, Undecided()), frozenset(gone)))
    assert [violation.partition(":")[0] for violation in checker.violations] == ["none lost"] * is_lost
    assert checker.counts["ledgers without Apache's bookies"] == (not is_lost)


def test_an_operation_that_took_too_long_is_found() -> None:
    checker = Checker()
    checker.take("reader1.1", [begin(1, 100.0), end(1, 116.0, 16.0, "TimeoutError")])
    assert len(checker.violations) == 1
    assert checker.violations[0].startswith("in time: reader1.1: append took 16.0 s")


def test_an_operation_that_never_ends_is_found_once_and_not_when_its_process_was_killed() -> None:
    checker = Checker()
    checker.take("reader1.1", [begin(1, time.monotonic() - 10.0 - SLACK_S - 1)])
    checker.take("reader2.1", [begin(1, time.monotonic() - 10.0 - SLACK_S - 1)])
    checker.killed("reader2.1")
    assert checker.overdue() == ["reader1.1"]
    assert checker.overdue() == []
    assert len(checker.violations) == 1


def test_the_time_during_which_a_process_is_stopped_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    checker = Checker()
    checker.take("writer1.1", [begin(1, 100.0), begin(2, 100.0)])
    now = 105.0
    checker.stopped("writer1.1")
    now = 200.0
    assert checker.overdue() == []
    checker.continued("writer1.1")
    checker.take("writer1.1", [end(1, 205.0, 105.0)])
    assert checker.violations == []
    now = 106.0 + 95.0 + SLACK_S + 10.0
    assert checker.overdue() == ["writer1.1"]


def test_histories_are_read_while_they_grow_and_torn_lines_wait(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "history"
    reader = HistoryReader(str(path))
    assert list(reader.read_new()) == []
    with path.open("ab") as file:
        file.write(b'{"e": "seen", "ledger": 1, "la')
        file.flush()
        assert list(reader.read_new()) == []
        file.write(b'st": 4}\n{"e"')
        file.flush()
        assert list(reader.read_new()) == [{"e": "seen", "ledger": 1, "last": 4}]
    reader.close()


def test_what_a_client_attempts_is_written_down_with_its_outcome(tmp_path: pathlib.Path) -> None:
    history = History(str(tmp_path / "history"))

    async def work(error: BaseException | None) -> int:
        if error is not None:
            raise error
        return 5

    async def main() -> list[int | None]:
        errors = (None, LedgerFenced("away"), TimeoutError(), KeyError("surprise"))
        return [await history.attempt("append", 1.0, work(error)) for error in errors]

    assert asyncio.run(main()) == [5, None, None, None]
    facts = [json.loads(line) for line in (tmp_path / "history").read_text().splitlines()]
    assert [fact["outcome"] for fact in facts if fact["e"] == "end"] == [
        "ok",
        "LedgerFenced",
        "TimeoutError",
        "undocumented",
    ]
    checker = Checker()
    checker.take("writer1.1", facts)
    (violation,) = checker.violations
    assert violation.startswith("documented: writer1.1: append raised an error that it must not raise")
    assert "KeyError: 'surprise'" in violation


def test_the_content_of_an_entry_follows_from_its_ledger_and_id() -> None:
    sizes = [len(payload_of(1, number)) for number in range(3000)]
    assert min(sizes) == 0
    assert max(sizes) >= 100_000
    assert payload_of(1, 2) != payload_of(2, 1)
    assert payload_of(1, 2).startswith(b"1.2 ")
