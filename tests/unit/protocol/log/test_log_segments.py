"""How long lists are stored: whatever happens to a list, what is stored is the list, and the head stays small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bookies.errors import MetadataCorrupt
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position, log_segments
from bookies.protocol.log.log_model import (
    FORMAT_SEGMENTED,
    Extent,
    LedgerEnd,
    Segment,
    Written,
    appended,
    emptied,
    ended,
    parse_manifest,
    rolled,
    taken_over,
    truncated,
)
from bookies.protocol.log.log_segments import joined, parse_segment, stored

NEW = Manifest("t", 1, 3, 3, 2, DigestType.CRC32C)


class Store:
    """Records by name. A swap that names a segment needs it to be there."""

    def __init__(self) -> None:
        self.segments: dict[str, bytes] = {}
        self.head = b""
        self.now = NEW
        self.count = 0
        self.save(NEW)

    def save(self, changed: Manifest) -> None:
        layout = stored("orders", changed)
        assert not set(layout.new) & set(layout.dropped)
        self.segments.update({name: content for name, (content, _) in layout.new.items()})
        for name in layout.dropped:
            del self.segments[name]
        self.head = layout.head
        self.now = self.load()
        assert self.now == layout.manifest
        assert replace(self.now, segments=()) == replace(changed, segments=())
        assert set(self.segments) == {segment.name for segment in self.now.segments}

    def load(self) -> Manifest:
        head = parse_manifest("orders", self.head)
        return joined(head, {name: parse_segment(name, content) for name, content in self.segments.items()})

    def commit(self, count: int, *, is_replacing: bool = False) -> None:
        written = [Written(self.count + number, 4, 50) for number in range(count)]
        self.count += count
        ends = {each: LedgerEnd(2, 10) for each in self.now.open_ledgers}
        self.save(appended(self.now, written, ends, "app:1", is_replacing=is_replacing))

    def lead(self) -> None:
        self.count += 2
        ends = {each: LedgerEnd(2, 10) for each in self.now.open_ledgers}
        changed = taken_over(self.now, self.now, self.count - 2, ends)
        assert changed is not None
        self.save(changed)
        changed = rolled(self.now, self.now.epoch, self.count - 2, self.count - 1, {})
        assert changed is not None
        self.save(changed)
        self.save(ended(self.now, {self.count - 2: LedgerEnd(2, 10)}) or self.now)

    def truncate(self, share: int) -> None:
        extents = [each for each in self.now.extents if each.last is not None]
        if extents:
            extent = extents[len(extents) * share // 10]
            changed = truncated(self.now, Position(extent.ledger_id, 2), {}, 9)
            self.save(changed or self.now)


STEPS = st.lists(st.tuples(st.sampled_from(["commit", "lead", "truncate", "replace"]), st.integers(0, 9)), max_size=30)


@given(STEPS)
def test_what_is_stored_is_the_list(steps: list[tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_segments, "HEAD_EXTENTS_MAX", 6)
        patch.setattr(log_segments, "HEAD_EXTENTS_KEPT", 3)
        patch.setattr(log_segments, "SEGMENT_EXTENTS_MAX", 8)
        store = Store()
        for kind, number in steps:
            if kind == "commit":
                store.commit(number * 2)
            elif kind == "lead":
                store.lead()
            elif kind == "truncate":
                store.truncate(number)
            elif number == 0:
                store.commit(number, is_replacing=True)
            head = parse_manifest("orders", store.head)
            assert len(head.extents) <= 6
            assert all(segment.extent_count <= 8 + 6 for segment in head.segments)
            assert len(head.segments) <= len(store.now.extents) // 4 + 2
        last = emptied(store.now)
        assert last is not None
        store.save(last)
        assert store.segments == {}


def test_thirty_thousand_ledgers_have_a_small_head() -> None:
    layout = stored("orders", NEW)
    contents: dict[str, bytes] = {}
    for count in range(0, 30_000, 1000):
        written = [Written(1_000_000 + count + number, 4, 50) for number in range(1000)]
        layout = stored("orders", appended(layout.manifest, written, {}, "an application:1234"))
        contents.update({name: content for name, (content, _) in layout.new.items()})
    assert len(layout.manifest.extents) == 30_000
    assert len(layout.manifest.segments) < 12
    assert len(layout.head) < 64 << 10
    assert max(map(len, contents.values())) < 1 << 20


def test_a_short_list_is_stored_as_ever() -> None:
    store = Store()
    store.commit(log_segments.HEAD_EXTENTS_MAX)
    assert store.now.segments == ()
    assert b'"format":1' in store.head
    store.commit(1)
    [segment] = store.now.segments
    assert b'"format":%d' % FORMAT_SEGMENTED in store.head
    kept = log_segments.HEAD_EXTENTS_KEPT
    assert segment.extent_count == log_segments.HEAD_EXTENTS_MAX + 1 - kept
    assert segment.rows == 5 * segment.extent_count
    assert segment.name.startswith("log-segments/orders/0-256-")


def test_a_list_that_is_shortened_and_grows_at_once() -> None:
    """What is left of the last segment has no record of its own yet when the head gives up extents."""
    store = Store()
    store.commit(log_segments.HEAD_EXTENTS_MAX + 1)
    shortened = truncated(store.now, Position(store.now.extents[10].ledger_id, 2), {}, 9)
    assert shortened is not None
    written = [Written(store.count + number, 4, 50) for number in range(log_segments.HEAD_EXTENTS_MAX)]
    store.save(appended(shortened, written, {}, "app:2"))
    assert len(store.now.segments) == 1
    assert len(store.segments) == 1


def test_damage_is_said() -> None:
    with pytest.raises(MetadataCorrupt, match="segment s of a log cannot be read"):
        parse_segment("s", b"[]")
    head = replace(NEW, segments=(Segment("s", 0, 3, 2, 0, 0, 0),))
    with pytest.raises(MetadataCorrupt, match="does not match the log's record"):
        joined(head, {"s": (Extent(0, 1, 0, 1),)})
