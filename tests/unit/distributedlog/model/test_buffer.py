"""The writer's buffer: what shares an entry, what is due, what is put back. Source: distributedlog 4.4, 4.5."""

from __future__ import annotations

from bookies.distributedlog.formats.entries import NewRecord, control_record, end_of_stream_record
from bookies.distributedlog.model.buffer import RecordBuffer, needs_control


def record(number: int, size: int = 80) -> NewRecord:
    return NewRecord(number, 0, bytes(size))


def test_records_share_an_entry_up_to_its_size() -> None:
    buffer: RecordBuffer[int] = RecordBuffer(300)
    for number in range(7):
        buffer.add(record(number), number)
    assert [[tag for _, tag in buffer.take()] for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6]]
    buffer.add(record(9, 1000), 9)
    assert [tag for _, tag in buffer.take()] == [9]
    assert len(buffer) == 0


def test_records_that_do_not_count_stay_alone() -> None:
    buffer: RecordBuffer[str] = RecordBuffer(1000)
    for tag, item in (("a", record(1)), ("c", control_record(1)), ("b", record(2)), ("e", end_of_stream_record())):
        buffer.add(item, tag)
    assert [[tag for _, tag in buffer.take()] for _ in range(4)] == [["a"], ["c"], ["b"], ["e"]]


def test_what_is_due() -> None:
    buffer: RecordBuffer[int] = RecordBuffer(300)
    assert not buffer.is_due(0, waited=True)
    buffer.add(record(1), 1)
    assert buffer.first == record(1)
    assert buffer.is_due(0, waited=False)
    assert not buffer.is_due(1, waited=False)
    assert buffer.is_due(1, waited=True)
    buffer.add(record(2, 260), 2)
    assert buffer.is_due(5, waited=False)


def test_what_is_put_back_goes_first() -> None:
    buffer: RecordBuffer[int] = RecordBuffer(300)
    for number in range(4):
        buffer.add(record(number), number)
    buffer.put_back(buffer.take())
    assert [tag for _, tag in buffer.clear()] == [0, 1, 2, 3]
    assert not buffer.is_due(0, waited=True)


def test_a_control_record_is_needed_after_the_last_one() -> None:
    assert needs_control(True, 0, 0)
    assert not needs_control(False, 0, 0)
    assert not needs_control(True, 1, 0)
    assert not needs_control(True, 0, 1)
