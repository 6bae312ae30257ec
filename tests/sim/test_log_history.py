"""The checks of a log, for histories that are right, and for such that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from bookies.client.log.log_writer import NO_ENTRY
from bookies.encoding.envelope import pack_record
from bookies.lab.sim.checkers.leases import LeaseChecker
from bookies.lab.sim.checkers.log_appends import check_conditions, check_numbers, record_for, value_in
from bookies.lab.sim.checkers.log_consumers import check_cursors, check_sessions
from bookies.lab.sim.checkers.log_history import (
    Ack,
    Conditional,
    ListCommit,
    LogCheck,
    LogHistory,
    Numbered,
    Reading,
    Seek,
    Session,
    Truncation,
)
from bookies.lab.sim.checkers.log_times import Removal, TimeCheck
from bookies.lab.sim.world.cluster import WALL_START_MS
from bookies.lab.sim.world.sim_metadata import Commit, CommitOf
from bookies.model import BookieId, DigestType, LedgerMetadata
from bookies.protocol.ledger.ledger import closed, new_ledger
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor, pack_cursors
from bookies.protocol.log.log_model import Extent
from bookies.protocol.log.retention import LogRemoval

ENDS = {5: 2, 6: -1, 7: 1}  # ledger -> its last entry; 9 is open
LEDGERS = (*ENDS, 9)


class Records:
    """As much of the store as the checks look at."""

    def __init__(self) -> None:
        self.record_commits: dict[str, list[CommitOf[bytes]]] = {}
        self.commits: dict[int, list[Commit]] = {}
        for at_s, ledger_id in enumerate(LEDGERS):
            first = new_ledger(ledger_id, (BookieId("b1"),), 1, 1, digest_type=DigestType.CRC32C, password=b"")
            self.commits[ledger_id] = [Commit(at_s, "A", None, first)]
            if ledger_id in ENDS:
                last = closed(first, ENDS[ledger_id], 10 if ENDS[ledger_id] >= 0 else 0)
                self.commits[ledger_id].append(Commit(at_s + 0.9, "A", first, last))

    def record(self, ledger_id: int) -> LedgerMetadata | None:
        return self.commits[ledger_id][-1].after if ledger_id in self.commits else None


def lists() -> list[ListCommit]:
    """A leader that lists one ledger after the other."""
    made = [Manifest("token", 0, 1, 1, 1, DigestType.CRC32C)]
    for seq, ledger_id in enumerate(LEDGERS):
        ended = tuple(replace(each, last=ENDS[each.ledger_id]) for each in made[-1].extents)
        extents = (*ended, Extent(seq, ledger_id))
        made.append(replace(made[-1], extents=extents, next_seq=seq + 1, epoch=1))
    return [ListCommit(float(at_s), "A", manifest) for at_s, manifest in enumerate(made)]


def history() -> LogHistory:
    """Seven entries, of which all but the last were acknowledged."""
    positions = [Position(5, 0), Position(5, 1), Position(5, 2), Position(7, 0), Position(7, 1), Position(9, 0)]
    found = [(position, b"%d" % number) for number, position in enumerate(positions)]
    right = LogHistory(final=[*found, (Position(9, 1), b"6")])
    right.attempt("A", [payload for _, payload in right.final])
    right.acks = [Ack(10.0, "A", position, payload) for position, payload in found]
    right.readings = [Reading(1.0, None, found[:4]), Reading(2.0, Position(5, 2), found[2:]), Reading(3.0)]
    return right


def problems(seen: LogHistory, commits: list[ListCommit] | None = None) -> list[str]:
    found: list[str] = []
    check = LogCheck(seen, commits or lists(), cast(Any, Records()), lambda promise, text: found.append(promise))
    check.run()
    return found


def test_a_right_history_has_no_problems() -> None:
    assert problems(history()) == []


def test_what_was_truncated_may_be_missing() -> None:
    seen = history()
    seen.truncations = [Truncation(Position(5, 2), 20.0)]
    del seen.final[:2]
    assert problems(seen) == []


def lost(seen: LogHistory) -> None:
    del seen.final[5:]


def hole(seen: LogHistory) -> None:
    del seen.readings[0].entries[1]


def skipped_end(seen: LogHistory) -> None:
    del seen.readings[1].entries[2]  # the last of its ledger


def twice(seen: LogHistory) -> None:
    seen.final[-1] = (Position(9, 1), b"5")


def two_truths(seen: LogHistory) -> None:
    seen.readings[0].entries[3] = (Position(7, 0), b"6")


def elsewhere(seen: LogHistory) -> None:
    seen.acks[3] = replace(seen.acks[3], position=Position(7, 1))


def never_appended(seen: LogHistory) -> None:
    seen.final.append((Position(9, 2), b"whose?"))


def wrong_start(seen: LogHistory) -> None:
    seen.readings[1].start = Position(5, 1)


def gone_for_no_reason(seen: LogHistory) -> None:
    del seen.final[0]


def too_much_gone(seen: LogHistory) -> None:
    seen.truncations = [Truncation(Position(5, 1), 20.0)]
    del seen.final[:2]


def comes_back(seen: LogHistory) -> None:
    seen.truncations = [Truncation(Position(5, 1), 0.5)]


def unlisted(seen: LogHistory) -> None:
    seen.final.append((Position(77, 0), b"6"))


@pytest.mark.parametrize(
    "mistake",
    [
        *(lost, hole, skipped_end, twice, two_truths, elsewhere, never_appended, wrong_start),
        *(gone_for_no_reason, too_much_gone, comes_back, unlisted),
    ],
)
def test_each_mistake_is_noticed(mistake: Callable[[LogHistory], None]) -> None:
    seen = history()
    mistake(seen)
    assert "I-20" in problems(seen)


def test_order_and_failures() -> None:
    seen = history()
    seen.attempted[b"1"], seen.attempted[b"2"] = seen.attempted[b"2"], seen.attempted[b"1"]
    assert "order" in problems(seen)
    seen = history()
    seen.outcomes = {cast(Any, "writer"): [(3, False), (4, True)]}
    assert problems(seen) == ["I-3"]


def test_leaders() -> None:
    seen, commits = history(), lists()
    manifest = commits[-1].manifest
    assert manifest is not None
    over = replace(manifest.extents[-1], last=0)
    after = replace(manifest, extents=(*manifest.extents[:-1], over, Extent(4, 11)), next_seq=5, epoch=2)
    assert problems(seen, [*commits, ListCommit(11.0, "B", after)]) == ["I-20"]  # 11 does not exist
    seen.acks.append(Ack(12.0, "A", Position(9, 1), b"6"))
    assert "I-22" in problems(seen, [*commits, ListCommit(11.0, "B", after)])
    seen = history()
    seen.acks[0] = replace(seen.acks[0], process="C")
    assert problems(seen) == ["I-22"]


def test_lists() -> None:
    commits = lists()
    assert "I-21" in problems(history(), [*commits[:2], *commits[3:]])


# -- records, numbers, conditions --------------------------------------------------------------------------------------


def broken(seen: LogHistory, run: Callable[[LogCheck], None], commits: list[ListCommit] | None = None) -> set[str]:
    found: set[str] = set()
    run(LogCheck(seen, commits or lists(), cast(Any, Records()), lambda promise, text: found.add(promise)))
    return found


@pytest.mark.parametrize("value", [b"%d" % number for number in range(20)])
def test_a_record_has_to_come_back_as_it_was(value: bytes) -> None:
    right = record_for(value)
    assert value_in(pack_record(right)) == (value, "")
    assert value_in(pack_record(right._replace(key=b"another")))[1]
    assert value_in(pack_record(right._replace(headers=[("source", b"?")])))[1]
    assert value_in(b"?")[1]


def numbered_history() -> LogHistory:
    seen = history()
    names = {b"%d" % number: b"p1#%d" % number for number in range(7)}
    seen.final = [(position, names[payload]) for position, payload in seen.final]
    seen.readings = [Reading(1.0, None, seen.final[:4])]
    seen.numbered = [Numbered("A", [b"p1#2", b"p1#3"], Position(7, 0)), Numbered("B", [b"p1#3"], NO_ENTRY)]
    return seen


def test_numbers() -> None:
    assert not broken(numbered_history(), check_numbers)
    for number in (3, 6):
        seen = numbered_history()
        del seen.final[number - 1]
        assert broken(seen, check_numbers) == {"numbers"}
    seen = numbered_history()
    seen.numbered.append(Numbered("A", [b"p1#3"], Position(7, 1)))
    assert broken(seen, check_numbers) == {"numbers"}
    seen.numbered = [Numbered("A", [b"p1#9"], Position(9, 9))]
    assert broken(seen, check_numbers) == {"numbers"}
    seen.truncations = [Truncation(Position(9, 9))]
    assert not broken(seen, check_numbers)


@pytest.mark.parametrize(
    ("append", "is_right"),
    [
        (Conditional(11.0, "A", b"3", Position(5, 2), position=Position(7, 0)), True),
        (Conditional(11.0, "A", b"3", Position(5, 1), position=Position(7, 0)), False),
        (Conditional(11.0, "A", b"0", NO_ENTRY, position=Position(5, 0)), True),
        (Conditional(11.0, "A", b"3", NO_ENTRY, position=Position(7, 0)), False),
        (Conditional(11.0, "A", b"x", Position(5, 1), refused=Position(9, 0)), True),
        (Conditional(11.0, "A", b"x", Position(9, 0), refused=Position(7, 1)), False),
        (Conditional(11.0, "A", b"x", Position(9, 0), refused=Position(7, 1), is_stale=True), True),
        (Conditional(1.0, "A", b"x", Position(5, 1), refused=Position(7, 1)), True),
        (Conditional(11.0, "A", b"4", Position(5, 1), refused=Position(9, 1)), False),
        (Conditional(11.0, "A", b"x", Position(5, 1)), True),
    ],
)
def test_conditions(append: Conditional, is_right: bool) -> None:
    seen = history()
    seen.conditionals = [append]
    assert broken(seen, check_conditions) == (set() if is_right else {"condition"})


# -- times and retention ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_s", "is_end", "position", "is_right"),
    [
        (12.0, False, Position(7, 0), True),
        (12.0, False, Position(7, 1), False),  # entry 3 was appended from 13 on
        (12.0, True, Position(7, 1), True),
        (14.0, True, Position(5, 2), False),
        (14.0, True, Position(7, 1), True),
    ],
)
def test_times(time_s: float, is_end: bool, position: Position, is_right: bool) -> None:
    seen = history()
    seen.begun_s = {b"%d" % number: 10.0 + number for number in range(7)}
    seen.acks = [replace(ack, at_s=10.5 + number) for number, ack in enumerate(seen.acks)]
    seen.seeks = [Seek(20.0, WALL_START_MS + time_s * 1000, is_end, False, position, 20.0)]
    assert broken(seen, lambda check: TimeCheck(check, [], (0, 0)).check_seeks()) == (set() if is_right else {"time"})
    if not is_right and not is_end:
        assert not broken(seen, lambda check: TimeCheck(check, [], (-5_000, 0)).check_seeks())


@pytest.mark.parametrize(
    ("limits", "reasons", "is_right"),
    [
        ({"rows": 2}, ("rows",), True),
        ({"rows": 3}, ("rows",), False),
        ({"size": 10}, ("size",), True),
        ({"size": 11}, ("size",), False),
        ({"age_ms": 5_000}, ("age",), True),
        ({"age_ms": 9_000}, ("age",), False),
        ({"rows": 2}, ("age",), False),
    ],
)
def test_retention(limits: dict[str, int], reasons: tuple[str, ...], is_right: bool) -> None:
    """The first ledger goes at 10, two ledgers with two entries and one that is open stay."""
    seen, commits = history(), lists()
    seen.begun_s = dict.fromkeys(seen.attempted, 2.0)
    manifest = commits[-1].manifest
    assert manifest is not None
    commits[-1] = ListCommit(4.0, "A", replace(manifest, retention=limits))
    commits.append(ListCommit(10.0, "R", replace(manifest, extents=manifest.extents[1:], deleting=(5,))))
    row = LogRemoval(0, Position(6, 0), reasons, (5,), 3, 10)
    times = [Removal(10.0, "R", row)]
    found = broken(seen, lambda check: TimeCheck(check, times, (0, 0)).check_retention(), commits)
    assert found == (set() if is_right else {"retention"})


# -- consumers and leases --------------------------------------------------------------------------------------------


def moves(*places: tuple[str, Position, int]) -> Callable[[LogCheck], None]:
    """The cursor is moved by these processes, at 1, 2, ..., with these tokens."""

    def run(check: LogCheck) -> None:
        check.store.record_commits["cursors/x"] = [
            CommitOf(1.0 + number, process, None, pack_cursors("token", {"c": Cursor("c", position, 0, token)}))
            for number, (process, position, token) in enumerate(places)
        ]
        check_sessions(check, "x")
        check_cursors(check, "x", TimeCheck(check, [], (0, 0)))

    return run


def session(process: str, token: int, handled: Position, began_s: float = 0.0) -> Session:
    return Session("c", process, token, Reading(began_s), [(0.5, handled)])


FIRST, THIRD, NEXT = Position(5, 0), Position(5, 2), Position(7, 0)


@pytest.mark.parametrize(
    ("places", "is_right"),
    [
        ([("f1", FIRST, 1), ("f1", THIRD, 1)], True),
        ([("f1", FIRST, 1), ("f1", NEXT, 1)], False),  # THIRD was not handled
        ([("f1", FIRST, 1), ("f1", THIRD, 1), ("f1", FIRST, 1)], False),
        ([("f1", FIRST, 1), ("f2", FIRST, 2), ("f2", NEXT, 2)], True),
        ([("f1", FIRST, 1), ("f2", FIRST, 2), ("f1", THIRD, 1)], False),  # an old token
        ([("f1", FIRST, 1), ("someone", THIRD, 1)], False),
    ],
)
def test_consumers(places: list[tuple[str, Position, int]], is_right: bool) -> None:
    seen = history()
    seen.sessions = [session("f1", 1, THIRD), session("f2", 2, NEXT)]
    assert bool(broken(seen, moves(*places))) is not is_right


def test_what_was_committed_is_not_delivered_again() -> None:
    seen = history()
    seen.sessions = [session("f1", 1, THIRD), session("f2", 2, THIRD, 3.0)]
    seen.sessions[1].reading.entries = seen.final[1:3]
    assert not broken(seen, moves())
    seen.sessions[0].committed = [(2.0, THIRD)]
    assert broken(seen, moves()) == {"consumer"}


class HeldLease:
    def __init__(self, token: int, is_held: bool) -> None:
        self.token = token
        self.is_held = is_held


@pytest.mark.parametrize(("token", "is_held", "is_right"), [(1, False, True), (1, True, False), (2, False, False)])
def test_leases(token: int, is_held: bool, is_right: bool) -> None:
    found: list[str] = []
    checker = LeaseChecker(lambda promise, text: found.append(promise))
    checker.acquired("lock", "A", cast(Any, HeldLease(token, is_held)))
    checker.acquired("another", "B", cast(Any, HeldLease(1, True)))
    checker.acquired("lock", "B", cast(Any, HeldLease(2, True)))
    assert found == ([] if is_right else ["lease"])
