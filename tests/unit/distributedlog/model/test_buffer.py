"""The writer's buffer: what shares an entry, what is due, what is put back. Source: distributedlog 4.4, 4.5."""

from __future__ import annotations

from collections.abc import Sequence

from tests.fakes.dlog_entries import Row, body_of_rows, control, end_of_stream

from bookies.distributedlog.formats.entries import TXID_MAX
from bookies.distributedlog.model.buffer import Batch, RecordBuffer, needs_control
from bookies.kernels import SlotAppend


def buffer_of(entry_size: int, sizes: Sequence[int] = ()) -> RecordBuffer[list[int]]:
    """A buffer with records of such sizes, whose transaction ids count from 0."""
    buffer: RecordBuffer[list[int]] = RecordBuffer(SlotAppend, entry_size, -1, list)
    for txid, size in enumerate(sizes):
        buffer.add(bytes(size), txid)
    return buffer


def body(*txids: int, size: int = 80) -> bytes:
    return body_of_rows([Row(txid, 0, bytes(size)) for txid in txids])


def test_records_share_an_entry_up_to_its_size() -> None:
    buffer = buffer_of(300, [80] * 7)
    assert (len(buffer), buffer.size) == (3, 700)
    taken = [buffer.take() for _ in range(3)]
    assert taken == [
        Batch([], body(0, 1, 2), 3, 0, 2), Batch([], body(3, 4, 5), 3, 3, 5), Batch([], body(6), 1, 6, 6)
    ]  # fmt: skip
    assert [batch.last_slot for batch in taken] == [2, 2, 0]
    append = buffer.add(bytes(1000), 9)
    batch = buffer.take()
    assert (batch.tag is append.entry, append.slot, batch.body) == (True, 0, body(9, size=1000))
    assert (len(buffer), buffer.size) == (0, 0)


def test_a_record_set_takes_slots_of_its_records() -> None:
    buffer = buffer_of(300, [80])
    append = buffer.add(b"set", 1, 4, 5)
    assert append.slot == 5
    batch = buffer.take()
    assert (batch.count, batch.last_slot) == (6, 5)
    assert batch.body == body_of_rows([Row(0, 0, bytes(80)), Row(1, 4, b"set", 5)])


def test_records_that_do_not_count_stay_alone() -> None:
    buffer = buffer_of(1000, [80])
    tag = buffer.add_end()
    assert (len(buffer), buffer.size) == (2, 100 + 31)
    assert buffer.take().body == body(0)
    end = buffer.take()
    assert (end.tag is tag, end.body, end.count) == (True, body_of_rows([end_of_stream()]), 0)
    assert (end.last_txid, end.last_slot, end.is_control) == (TXID_MAX, 0, False)
    batch = buffer.control(7)
    assert (batch.body, batch.count, batch.last_slot, batch.is_control) == (body_of_rows([control(7)]), 0, 0, True)
    assert buffer.control(TXID_MAX).is_control  # after the end of the stream
    assert len(buffer) == 0


def test_what_is_due() -> None:
    buffer = buffer_of(300)
    assert not buffer.is_due(0, waited=True)
    buffer.add(bytes(80), 1)
    assert buffer.first_txid == 1
    assert buffer.is_due(0, waited=False)
    assert not buffer.is_due(1, waited=False)
    assert buffer.is_due(1, waited=True)
    buffer.add(bytes(260), 2)
    assert buffer.is_due(5, waited=False)
    assert buffer.first_txid == 1
    assert buffer.take().first_txid == 1
    assert not buffer.is_due(1, waited=False)
    buffer.take()
    buffer.add(bytes(400), 3)  # Alone it fills an entry.
    assert buffer.is_due(1, waited=False)


def test_what_is_put_back_goes_first() -> None:
    buffer = buffer_of(300, [80] * 8)
    first, second = buffer.take(), buffer.take()
    buffer.put_back([first, second])
    assert (len(buffer), buffer.size) == (3, 800)
    assert [batch.first_txid for batch in buffer.clear()] == [0, 3, 6]
    assert not buffer.is_due(0, waited=True)
    assert (len(buffer), buffer.size) == (0, 0)


def test_a_control_record_is_needed_after_the_last_one() -> None:
    assert needs_control(True, 0, 0)
    assert not needs_control(False, 0, 0)
    assert not needs_control(True, 1, 0)
    assert not needs_control(True, 0, 1)
