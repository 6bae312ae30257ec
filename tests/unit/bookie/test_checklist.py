"""The quirk checklist of wire-protocol 8, row by row: what an implementation is most likely to get wrong.

What a bookie has to do is tried here, in bytes; rows about clients name their test elsewhere as `Checklist row N`.
"""

from __future__ import annotations

import hashlib
import pathlib
import re

import pytest
from tests.fakes.adds import add_request

from bookies.errors import Status
from bookies.kernels import Records
from bookies.lab.sim.world.disk import Loss
from bookies.model import DigestType
from bookies.wire import digest, v3
from bookies.wire.availability import pack_availability
from bookies.wire.client import ResponseDecoder
from bookies.wire.messages import (
    AddResponses,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
)

from .conftest import KEY, SIZE_MAX, RawClient, World, adds, package

OTHER_KEY = digest.master_key(b"other")
TESTS = pathlib.Path(__file__).parent.parent.parent


def v2_frame(opcode: int, body: bytes, *, version: int = 2, flags: int = 0) -> bytes:
    payload = bytes([version, opcode]) + flags.to_bytes(2, "big") + body
    return len(payload).to_bytes(4, "big") + payload


def v3_frame(operation: int, message: bytes = b"", txn_id: int = 5) -> bytes:
    """Header with version 3, the operation and a transaction id below 128; then the given fields."""
    payload = bytes([0x0A, 6, 0x08, 3, 0x10, operation, 0x18, txn_id]) + message
    return len(payload).to_bytes(4, "big") + payload


def ids(ledger_id: int, entry_id: int) -> bytes:
    return ledger_id.to_bytes(8, "big", signed=True) + entry_id.to_bytes(8, "big", signed=True)


async def open_client(world: World) -> RawClient:
    return await world.connect(await world.start())


async def exchange(client: RawClient, frame: bytes) -> bytes:
    client.transport.write(frame)
    return await client.frame()


# -- frames and versions ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("excess", [0, 1])
def test_row_1_the_limit_counts_the_prefix(world: World, excess: int) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        size = SIZE_MAX - 4 - 24 + excess  # of the entry
        entry = package(1, 0, bytes(size - 36))
        frame = v2_frame(1, KEY + entry)
        assert len(frame) == SIZE_MAX + excess
        client.transport.write(frame)
        if excess:
            await client.closed()
            assert not client.frames
        else:
            assert (await client.response()).status is Status.OK

    world.run(body)


def test_row_2_once_v2_always_v2(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        assert await exchange(client, v3_frame(10, bytes([0xD2, 0x06, 0x02, 0x08, 1])))
        assert (await exchange(client, v2_frame(2, ids(1, 0))))[4:6] == b"\x02\x02"
        client.transport.write(v3_frame(10, bytes([0xD2, 0x06, 0x02, 0x08, 1])))
        await client.closed()
        assert not client.frames

    world.run(body)


def test_row_3_numbers_differ_between_the_versions(world: World) -> None:
    """A read is 2 in v2 and 1 in v3; a ledger that there is not is 1 in v2 and 402 in v3."""

    async def body(world: World) -> None:
        server = await world.start()
        old, new = await world.connect(server), await world.connect(server)
        assert await exchange(old, v2_frame(2, ids(7, 0))) == v2_frame(2, (1).to_bytes(4, "big") + ids(7, 0))
        # readRequest is field 100; readResponse too: status, ledgerId, entryId.
        answer = await exchange(new, v3_frame(1, bytes([0xA2, 0x06, 4, 0x08, 7, 0x10, 0])))
        assert answer[4:].startswith(bytes([0x0A, 6, 0x08, 3, 0x10, 1, 0x18, 5, 0x10, 0x92, 0x03]))

    world.run(body)


@pytest.mark.parametrize("opcode", [4, 5, 6])
def test_row_4_numbers_without_an_encoding_close(world: World, opcode: int) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        client.transport.write(v2_frame(opcode, ids(1, 0) + KEY))
        await client.closed()
        assert not client.frames

    world.run(body)


def test_row_5_an_add_is_key_and_entry(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        entry = package(9, 4, b"payload")
        assert await exchange(client, v2_frame(1, KEY + entry)) == v2_frame(1, bytes(4) + ids(9, 4))
        assert await exchange(client, v2_frame(2, ids(9, 4))) == v2_frame(2, bytes(4) + ids(9, 4) + entry)

    world.run(body)


def test_row_6_ids_and_version_come_back_as_asked(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        entry = package(9, 4, b"payload")
        await exchange(client, v2_frame(1, KEY + entry, version=1))
        for version in (1, 2):
            answer = await exchange(client, v2_frame(2, ids(9, -1), version=version))
            assert answer == v2_frame(2, bytes(4) + ids(9, -1) + entry, version=version)
        # Version 0 is the opcode alone, in the lowest byte.
        answer = await exchange(client, b"\0\0\0\x14" + b"\0\0\0\x02" + ids(9, -1))
        assert answer[4:] == b"\0\0\0\x02" + bytes(4) + ids(9, -1) + entry

    world.run(body)


def test_rows_7_and_21_auth_is_answered_without_a_status_or_ids(world: World) -> None:
    """Nobody asked for it: not an error, and v2 always gets version 2."""

    async def body(world: World) -> None:
        server = await world.start()
        old, new = await world.connect(server), await world.connect(server)
        message = bytes([0x0A, 4]) + b"sasl" + bytes([0x12, 1]) + b"x"
        disabled = bytes([0x0A, 18]) + b"AuthDisabledPlugin" + bytes([0x12, 0])
        assert await exchange(old, v2_frame(3, message, version=1)) == v2_frame(3, disabled)
        answer = await new.ask(AuthRequest(3, 5, "sasl", b"x"))
        assert answer == AuthResponse(3, 5, Status.OK, "AuthDisabledPlugin", b"")

    world.run(body)


def test_row_9_flags_are_one_value_and_write_flags_are_bits(world: World) -> None:
    """`writeFlags` 3 has the bit of deferred sync and one more; `requested` 1 and 2 are bits too."""

    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        entry = package(1, 0, b"x")
        fields = bytes([0x08, 1, 0x10, 0, 0x1A, 20]) + KEY + bytes([0x22, len(entry)]) + entry
        with_bits = fields + bytes([0x28, 3])
        request = bytes([0xAA, 0x06, len(with_bits)]) + with_bits
        (answer,) = ResponseDecoder("v3", SIZE_MAX).feed(await exchange(client, v3_frame(2, request)))
        assert answer == AddResponses(3, Status.OK, 1, range(1), range(5, 6))
        assert (await client.ask(GetBookieInfoRequest(3, 6, 2))).total_disk_capacity is None
        assert (await client.ask(GetBookieInfoRequest(3, 6, 1))).free_disk_space is None

    world.run(body)


def test_row_10_both_statuses_and_the_message_are_always_there(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        client.send(ReadRequest(3, 5, 7, 0), ForceLedgerRequest(3, 6, 7), ListEntriesRequest(3, 7, 7))
        for _ in range(3):
            found = v3.schema.RESPONSE.parse(frame := await client.frame(), 4, len(frame))
            (message,) = [value for value in found.values() if isinstance(value, dict) and "txnId" not in value]
            assert message.get("status", 0) == found["status"]
            assert message["ledgerId"] == 7

    world.run(body)


# -- reads ---------------------------------------------------------------------------------------------------------
def test_row_11_a_long_poll_without_an_entry_says_minus_1(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        await client.add(adds(1, [0, 1], version=3))
        request = ReadRequest(3, 5, 1, -1, previous_lac=5, timeout_ms=100, wants_piggyback=True)
        answer = await client.ask(request)
        assert isinstance(answer, ReadResponse)
        assert (answer.status, answer.entry_id, answer.body, answer.max_lac) == (Status.OK, -1, None, 0)

    world.run(body)


def test_row_12_the_answer_to_a_fencing_read_has_no_lac(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        await client.add(adds(1, [0, 1], version=3))
        assert (await client.ask(ReadRequest(3, 5, 1, 1))).max_lac == 0
        assert (await client.ask(ReadRequest(3, 5, 1, 1, KEY, is_fencing=True))).max_lac is None

    world.run(body)


def test_rows_13_and_14_digests_and_keys() -> None:
    sizes = {DigestType.CRC32: 8, DigestType.CRC32C: 4, DigestType.HMAC: 20, DigestType.DUMMY: 0}
    for kind, size in sizes.items():
        body = digest.package_entry(kind, digest.mac_key(b""), 1, 2, 1, 3, b"abc")
        assert len(body) == 32 + size + 3
        if kind is DigestType.CRC32:
            assert body[32:36] == bytes(4)
    assert digest.mac_key(b"pw") == hashlib.sha1(b"macpw").digest()
    assert digest.master_key(b"pw") == hashlib.sha1(b"ledgerpw").digest()
    assert digest.master_key(b"") == hashlib.sha1(b"ledger").digest()


def test_row_17_reads_need_no_key(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        old, new = await world.connect(server), await world.connect(server)
        await old.add(adds(1, [0], key=OTHER_KEY))
        for client, version in ((old, 2), (new, 3)):
            assert (await client.ask(ReadRequest(version, 5, 1, 0))).status is Status.OK
        assert (await old.ask(BatchReadRequest(2, 5, 1, 0, 5, 1000))).status is Status.OK
        for request in (ReadLacRequest(3, 5, 1), ListEntriesRequest(3, 5, 1), ForceLedgerRequest(3, 5, 1)):
            assert (await new.ask(request)).status is Status.OK

    world.run(body)


def test_row_20_the_lac_of_an_unknown_ledger_is_no_entry(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        assert (await client.ask(ReadLacRequest(3, 5, 77))).status is Status.NO_ENTRY

    world.run(body)


def test_row_26_a_batch_read_always_brings_its_first_entry(world: World) -> None:
    """The budget counts 36 bytes of the answer's head, and for each entry 4 more than its size."""

    async def body(world: World) -> None:
        client = await open_client(world)
        await client.add(adds(1, range(3)))
        size = len(package(1, 0, b"1/0 " * 12))
        for size_max, count in ((0, 1), (36 + 2 * (size + 4) - 1, 1), (36 + 2 * (size + 4), 2)):
            answer = await client.ask(BatchReadRequest(2, 5, 1, 0, 0, size_max))
            assert isinstance(answer, BatchReadResponse)
            assert len(answer.records) - answer.start == count * (size + 4)

    world.run(body)


# -- writes --------------------------------------------------------------------------------------------------------
def test_row_15_the_ledger_is_the_one_in_the_body(world: World) -> None:
    """Of a WRITE_LAC; an ADD that names another than its body is refused (5.4)."""

    async def body(world: World) -> None:
        client = await open_client(world)
        lac = digest.package_lac(DigestType.CRC32C, b"", 8, 3)
        assert (await client.ask(WriteLacRequest(3, 5, 1, 99, KEY, lac))).status is Status.OK
        assert (await client.ask(ReadLacRequest(3, 5, 8))).lac_body == lac
        assert (await client.ask(ReadLacRequest(3, 5, 1))).status is Status.NO_ENTRY

    world.run(body)


@pytest.mark.parametrize("by", ["add", "lac", "fence"])
def test_row_16_ledgers_begin_with_the_first_who_brings_a_key(world: World, by: str) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        lac = WriteLacRequest(3, 5, 1, 3, KEY, digest.package_lac(DigestType.CRC32C, b"", 1, 3))
        if by == "add":
            await client.add(adds(1, [0], version=3))
        else:
            await client.ask(lac if by == "lac" else ReadRequest(3, 5, 1, -1, KEY, is_fencing=True))
        assert (await client.ask(ReadRequest(3, 5, 1, 0))).status is not Status.NO_LEDGER
        (answer,) = await client.add(adds(1, [5], version=3, key=OTHER_KEY))
        assert answer.status is Status.UNAUTHORIZED

    world.run(body)


def test_row_18_recovery_passes_the_fence_and_priority_the_full_disk(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, [0]))
        await client.ask(ReadRequest(2, 5, 1, -1, KEY, is_fencing=True))

        async def add(entry_id: int, *, is_recovery: bool, is_high_priority: bool) -> Status:
            batch = adds(1, [entry_id], is_recovery=is_recovery, is_high_priority=is_high_priority)
            return (await client.add(batch))[0].status

        assert await add(1, is_recovery=True, is_high_priority=False) is Status.OK
        assert await add(2, is_recovery=False, is_high_priority=True) is Status.FENCED
        server.state.hold_read_only(True)
        assert await add(3, is_recovery=True, is_high_priority=False) is Status.READ_ONLY
        assert await add(4, is_recovery=True, is_high_priority=True) is Status.OK

    world.run(body)


def test_row_19_entries_are_stored_as_they_come(world: World) -> None:
    """Whatever LAC they have, and whatever another replica has."""

    async def body(world: World) -> None:
        client = await open_client(world)
        first, second = package(1, 0, b"x", lac=9), package(1, 0, b"x", lac=-1)
        assert digest.verify_entry(DigestType.CRC32C, b"", first, 1, 0)
        for entry in (first, second):
            batch = add_request(2, 1, KEY, [0], Records.of([entry]), 9)
            assert (await client.add(batch))[0].status is Status.OK
        assert (await client.ask(ReadRequest(2, 5, 1, 0))).body in (first, second)

    world.run(body)


def test_row_23_v2_never_hears_of_an_unknown_state() -> None:
    """Its clients die of 107."""
    from bookies.wire.server import encode_response

    answer = b"".join(map(bytes, encode_response(ReadResponse(2, 0, Status.UNKNOWN_LEDGER_STATE, 1, 5))))
    assert answer == v2_frame(2, (101).to_bytes(4, "big") + ids(1, 5))


def test_row_24_a_fence_is_durable_before_no_entry_is_said(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.ask(ReadRequest(2, 5, 1, -1, KEY, is_fencing=True))
        await world.on_bookie(server.abort())
        _, driver = world.forget_last()
        await world.on_bookie(driver.close())
        world.disk.crash(Loss(survival=0.0))
        again = await world.connect(await world.start())
        assert (await again.add(adds(1, [0])))[0].status is Status.FENCED

    world.run(body)


def test_row_25_a_read_that_breaks_is_answered(world: World) -> None:
    """With an error, not with silence; entry lists are answered too, and failed SASL (tests of `wire/auth.py`)."""

    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, [0], version=3))

        def broken(*arguments: object, **options: object) -> None:
            raise OSError(5, "Input/output error")

        server.store.read = broken  # type: ignore[assignment,method-assign]
        assert (await client.ask(ReadRequest(3, 5, 1, 0))).status is Status.IO_ERROR

    world.run(body)


def test_row_27_batch_read_has_no_messages_in_v3(world: World) -> None:
    async def body(world: World) -> None:
        client = await open_client(world)
        for operation in (3, 4, 12):
            answer = await exchange(client, v3_frame(operation))
            assert answer[4:] == bytes([0x0A, 6, 0x08, 3, 0x10, operation, 0x18, 5, 0x10, 0x94, 0x03])

    world.run(body)


def test_rows_28_and_29_lacs_and_forces_where_adds_are_refused(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        lac = WriteLacRequest(3, 5, 1, 3, KEY, digest.package_lac(DigestType.CRC32C, b"", 1, 3))
        await client.ask(ReadRequest(3, 5, 1, -1, KEY, is_fencing=True))
        assert (await client.ask(lac)).status is Status.OK
        server.state.hold_read_only(True)
        assert (await client.ask(lac)).status is Status.READ_ONLY
        for ledger_id in (1, 12345):
            assert (await client.ask(ForceLedgerRequest(3, 5, ledger_id))).status is Status.OK

    world.run(body)


# -- the rest ------------------------------------------------------------------------------------------------------
def test_row_22_start_tls_is_v3_and_may_be_refused(world: World) -> None:
    """Also on a connection that speaks v2 afterwards. What happens when it is granted: tests/live/test_security.py."""

    async def body(world: World) -> None:
        client = await open_client(world)
        assert await client.ask(StartTlsRequest(3, 5)) == StartTlsResponse(3, 5, Status.BAD_REQUEST)
        assert (await client.add(adds(1, [0])))[0].status is Status.OK

    world.run(body)


def test_row_30_lists_have_one_group_for_each_run() -> None:
    """Periods are read all the same: `Checklist row 30` beside the parser."""
    data = pack_availability([range(3), range(5, 6)])
    assert data[4:8] == (2).to_bytes(4, "big")
    assert [data[at + 20 : at + 24] for at in (64, 88)] == [bytes(4)] * 2


def test_every_row_has_its_test() -> None:
    named: set[int] = set()
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text()
        named.update(int(number) for number in re.findall(r"Checklist row (\d+)", text))
        if path.name == "test_checklist.py":
            for head in re.findall(r"def test_rows?_([\d_and]+)_", text):
                named.update(map(int, re.findall(r"\d+", head)))
    assert sorted(set(range(1, 32)) - named) == []
