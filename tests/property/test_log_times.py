"""Whatever leaders note and lose, and however points are thinned: no entry of a time is before its position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import Extent
from bookies.protocol.log.log_times import (
    Point,
    bracket,
    ended_ms,
    known_points,
    merged,
    ordered,
    pack_times,
    parse_times,
    placed,
    thinned,
)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["append", "append", "note", "note", "roll", "save", "crash", "commit", "back", "truncate", "late", "ahead"]
        ),
        st.integers(0, 50),
    ),
    max_size=60,
)


class History:
    """A log as it grows: the time of each entry, the points of the present leader, and those that are stored."""

    def __init__(self) -> None:
        self.now = self.highest = 1000
        self.manifest = Manifest("t", 1000, 3, 3, 2, DigestType.CRC32C)
        self.extents = [Extent(0, 7)]
        self.times: list[tuple[Position, int]] = []  # of entries, by the clock
        self.last = Position(7, 0)
        self.noted = [Point(self.last, 1000)]
        self.stored = b""
        self.has_stepped = False  # Times have fallen.
        self.old: Point | None = None  # where a leader was when another one took the lead
        self.count = 1  # extents so far

    def act(self, step: str, size: int) -> None:
        self.now += size
        self.highest = max(self.highest, self.now)
        last = self.extents[-1]
        end = sum(position.ledger_id == last.ledger_id for position, _ in self.times)
        if step == "append":
            self.times.append((Position(last.ledger_id, end), self.now))
            if self.now < self.highest:  # The point that tells it must not be lost.
                self.note(Position(last.ledger_id, end + 1))
                self.act("save", 0)
        elif step == "note":
            self.note(Position(last.ledger_id, end))
        elif step in ("roll", "crash"):
            if step == "crash":
                self.noted.clear()
                self.old = Point(Position(last.ledger_id, end), self.now)
            self.close(end)
            self.open_ledger()
        elif step == "commit":
            self.close(end)
            number, self.count = self.count, self.count + 1
            self.extents.append(Extent(number, 100 - number, 0, size, size + 1, 1, "a:1", self.now))
            self.times += [(Position(100 - number, entry), self.now) for entry in range(size + 1)]
            self.open_ledger()
        elif step == "save":
            now = self.list()
            known = parse_times("x", "t", self.stored) if self.stored else []
            points = merged(now, [*known, *self.noted])
            self.stored = pack_times("t", points if self.has_stepped else thinned(points, 8))
            self.noted.clear()
        elif step == "back":
            self.note(Position(last.ledger_id, end))
            self.has_stepped = True  # A point that is lost or omitted could be the only one with the higher time.
            self.act("save", 0)
            self.now -= 10 * size
        elif step == "ahead":
            self.now += 10 * size
            self.act("append", 0)
            self.act("back", size)
        elif step == "late":
            if self.old is not None:
                self.has_stepped = True
                self.noted.append(Point(self.old.position, max(self.old.ms, self.now)))
                self.act("save", 0)
        elif len(self.extents) > 2:
            del self.extents[0]

    def note(self, position: Position) -> None:
        """Note a position once, as the leader does."""
        if position != self.last:
            self.last = position
            self.noted.append(Point(position, self.now))

    def open_ledger(self) -> None:
        number, self.count = self.count, self.count + 1
        self.extents.append(Extent(number, 100 - number))
        self.note(Position(100 - number, 0))

    def close(self, end: int) -> None:
        last = self.extents[-1]
        self.extents[-1] = Extent(last.seq, last.ledger_id, 0, end - 1, end, 1)

    def list(self) -> Manifest:
        return Manifest("t", 1000, 3, 3, 2, DigestType.CRC32C, extents=tuple(self.extents), next_seq=999)


@given(STEPS, st.integers(0, 3000))
def test_no_entry_of_a_time_is_before_its_position(steps: list[tuple[str, int]], after: int) -> None:
    history = History()
    for step, size in [*steps, ("note", 0), ("save", 0)]:
        history.act(step, size)
    now = history.list()
    order = {extent.ledger_id: index for index, extent in enumerate(now.extents)}
    points = ordered(now, [*parse_times("x", "t", history.stored), *known_points(now)])
    low, high, _ = bracket(points, 1000 + after)
    start = placed(now, Position(now.extents[0].ledger_id, 0) if low is None else low.position)
    for at, confirmed_ms in history.times:
        if at.ledger_id not in order:
            continue
        key = order[at.ledger_id], at.entry_id
        if confirmed_ms >= 1000 + after:
            assert key >= (order[start.ledger_id], start.entry_id)
        if high is not None:
            end = placed(now, high.position)
            if key >= (order[end.ledger_id], end.entry_id):
                assert confirmed_ms >= 1000 + after
    for seq, ended in ended_ms(now, points).items():
        [extent] = [extent for extent in now.extents if extent.seq == seq]
        assert all(ms <= ended for at, ms in history.times if at.ledger_id == extent.ledger_id)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), min_size=150, max_size=400),
    st.lists(st.tuples(st.integers(1, 399), st.integers(-500, 500)), max_size=4),
)
def test_thinned_points_tell_less_and_nothing_wrong(
    steps: list[tuple[int, int]], changes: list[tuple[int, int]]
) -> None:
    ms = 1000
    points: list[Point] = []
    changed = dict(changes)
    for number, (passed, count) in enumerate(steps):
        ms += passed + changed.get(number, 0)
        points.append(Point(Position(7, count + (points[-1].position.entry_id if points else 0)), ms))
    left = thinned(points, 100)
    assert len(left) <= 100
    assert left[-50:] == points[-50:]
    for time_ms in range(0, 5000, 31):
        (low, high, _), (full_low, full_high, _) = bracket(left, time_ms), bracket(points, time_ms)
        assert low is None or (full_low is not None and low.position <= full_low.position)
        assert high is None or (full_high is not None and high.position >= full_high.position)
