"""What the checks of a log say about histories that are right, and about such that are wrong in one way each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from bookies.lab.sim.checkers.log_history import Ack, ListCommit, LogCheck, LogHistory, Reading, Truncation
from bookies.lab.sim.world.sim_metadata import Commit
from bookies.model import BookieId, DigestType, LedgerMetadata
from bookies.protocol.ledger.ledger import closed, new_ledger
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import Extent

ENDS = {5: 2, 6: -1, 7: 1}  # ledger -> its last entry; 9 is open
LEDGERS = (*ENDS, 9)


class Records:
    """As much of the store as the checks look at."""

    def __init__(self) -> None:
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
