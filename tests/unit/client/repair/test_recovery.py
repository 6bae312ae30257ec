"""Recovery over fake bookies: what it finds, what it writes back, and that it may die anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.pool import PASSWORD, Stage, on_stage, play
from tests.fakes.world import LaggingDriver

from bookies import errors
from bookies.client.write import LedgerWriter
from bookies.client.write.adds import FRAME_OVERHEAD
from bookies.errors import VersionConflict
from bookies.kernels import pack_add_frames
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.shared.nodes import Delete, Key, Table
from bookies.model import DigestType, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ledger import Author, closed, illegality, in_recovery, with_ensemble
from bookies.wire.digest import mac_key, master_key
from bookies.wire.v2 import add_head


def put(stage: Stage, ledger: LedgerWriter, entry_id: int, *names: str, lac: int = 9, length: int = 0) -> None:
    """Store an entry that the writer never confirmed on some bookies."""
    head = add_head(master_key(PASSWORD))
    payloads = [b"%010d" % entry_id]
    before = (length or (entry_id + 1) * 10) - 10
    digest = ledger.metadata.digest_type
    assert digest is not None
    frames, _, _ = pack_add_frames(head, ledger.ledger_id, entry_id, lac, before, payloads, digest, mac_key(PASSWORD))
    for name in names:
        stage.pool[name].add(frames)


async def abandoned(stage: Stage, quorums: str = "3/3/2", count: int = 10, **options: Any) -> LedgerWriter:
    """A ledger whose writer has died after entries 0 to count - 1 were stored everywhere."""
    ledger = await stage.create(quorums, **options)
    if count:
        await ledger.append_many([b"%010d" % entry_id for entry_id in range(count)])
    await stage.settle()
    await ledger.close()
    stage.pool.log.clear()
    return ledger


def replicated(stage: Stage, record: LedgerMetadata) -> None:
    """I-2: everything up to the end is on an ack quorum of the recorded bookies."""
    for entry_id in range(record.last_entry_id + 1):
        assert len(stage.replicas(record, entry_id)) >= record.ack_quorum, entry_id


@pytest.mark.parametrize("quorums", ["3/3/2", "3/2/2", "5/3/2", "4/2/2", "1/1/1", "5/5/3"])
@pytest.mark.parametrize("has_batch_reads", [True, False])
@on_stage()
async def test_writer_crashed_idle(stage: Stage, quorums: str, has_batch_reads: bool) -> None:
    """X-1: the last entry is read and rewritten, because its header could only say that the one before is confirmed."""
    stage.pool.has_batch_reads = has_batch_reads
    ledger = await abandoned(stage, quorums, 10)
    record = await stage.recover(ledger.ledger_id)
    assert (record.state, record.last_entry_id, record.length) == (LedgerState.CLOSED, 9, 100)
    assert 9 in [entry_id for _, ids in stage.pool.asked("recovery add") for entry_id in ids]
    replicated(stage, record)
    assert (await stage.recover(ledger.ledger_id)) == record, "at once, when it is closed"


@on_stage()
async def test_a_server_that_lags_behind_does_not_answer_that_there_is_no_such_ledger(stage: Stage) -> None:
    ledger = await abandoned(stage)
    async with lagging(stage):
        assert (await stage.recover(ledger.ledger_id)).last_entry_id == 9
        with pytest.raises(errors.LedgerNotFound):
            await stage.recover(ledger.ledger_id + 1)


@asynccontextmanager
async def lagging(stage: Stage) -> AsyncIterator[None]:
    """Let recoveries read from a server that lags behind."""
    fresh, stage.driver = stage.driver, LaggingDriver(stage.store, stage.runtime)
    await stage.driver.open()
    yield
    await stage.driver.close()
    stage.driver = fresh


@on_stage()
async def test_nothing_was_ever_written(stage: Stage) -> None:
    """X-5: closed at -1; a delayed first add is refused although the bookie had never seen the ledger."""
    ledger = await abandoned(stage, count=0)
    record = await stage.recover(ledger.ledger_id)
    assert (record.state, record.last_entry_id, record.length) == (LedgerState.CLOSED, -1, 0)
    with pytest.raises(errors.LedgerFenced):
        put(stage, ledger, 0, "a", lac=-1)


@pytest.mark.parametrize("has_batch_reads", [True, False])
@on_stage(("a", "b", "c", "d", "e"))
async def test_the_entry_behind_the_last_is_asked_of_as_many_as_have_to_deny_it(
    stage: Stage, has_batch_reads: bool
) -> None:
    """At once, and not one after the other. Those that bookies have told of are asked of one."""
    stage.pool.has_batch_reads = has_batch_reads
    ledger = await abandoned(stage, "5/5/3", 0)
    for entry_id in range(8, 12):
        put(stage, ledger, entry_id, *"abcde", lac=9)

    def hold_at_the_end(kind: str, entry_id: int) -> None:
        for name in "abcde":
            stage.pool[name].is_held = stage.pool[name].is_held or entry_id >= 12

    for name in "abcde":
        stage.pool[name].on_request = hold_at_the_end
    recovering = asyncio.ensure_future(stage.recover(ledger.ledger_id))
    await stage.settle(300)
    reads = [ids[0] for kind, _, ids in stage.pool.log if kind in ("fence", "batch") and 0 <= ids[0] <= 12]
    assert reads == ([10, 12, 12, 12] if has_batch_reads else [10, 11, 12, 12, 12])
    for name in "abcde":
        stage.pool[name].on_request = None
        stage.pool[name].is_held = False
        stage.pool[name].release()
    assert (await recovering).last_entry_id == 11


@on_stage()
async def test_single_copy_found_first_is_kept_and_spread(stage: Stage) -> None:
    """X-2a. The mutant without write-back would leave one copy: then the loss of c loses the entry (I-2)."""
    ledger = await abandoned(stage)
    put(stage, ledger, 10, "b")  # asked first: 10 mod 3 = 1
    record = await stage.recover(ledger.ledger_id)
    assert record.last_entry_id == 10
    replicated(stage, record)
    assert len(stage.replicas(record, 10)) == 3


@on_stage()
async def test_single_copy_asked_last_is_absent(stage: Stage) -> None:
    """X-2b: two negatives are enough; both ends are legal."""
    ledger = await abandoned(stage)
    put(stage, ledger, 10, "a")  # write set order b, c, a
    stage.pool["a"].is_held = True
    record = await stage.recover(ledger.ledger_id)
    assert record.last_entry_id == 9
    stage.pool["a"].release()


@on_stage()
async def test_undecided_aborts_without_a_trace(stage: Stage) -> None:
    """X-3: one negative is not enough, the others are unreachable. Mutants caught: errors as negatives, and closing on
    a recovery's error. Later, with c back, the entry is found.
    """
    ledger = await abandoned(stage)
    put(stage, ledger, 10, "c")
    for name in "bc":  # they fence, then are gone
        stage.pool[name].on_request = _down_after_fence(stage, name)
    with pytest.raises(errors.RecoveryFailed, match="nothing was lost") as caught:
        await stage.recover(ledger.ledger_id)
    assert isinstance(caught.value.__cause__, errors.BookieUnreachable)
    record = await stage.record(ledger.ledger_id)
    assert (record.state, record.ensembles) == (LedgerState.IN_RECOVERY, ledger.metadata.ensembles)
    for name in "bc":
        stage.pool[name].is_down, stage.pool[name].on_request = False, None
    assert (await stage.recover(ledger.ledger_id)).last_entry_id == 10


def _down_after_fence(stage: Stage, name: str) -> Callable[[str, int], None]:
    def on_request(kind: str, entry_id: int) -> None:
        if entry_id != -1:
            stage.pool[name].is_down = True

    return on_request


@on_stage()
async def test_timeouts_pass_through(stage: Stage) -> None:
    ledger = await abandoned(stage)
    stage.pool["a"].is_silent = stage.pool["b"].is_silent = True
    with pytest.raises(errors.BookieTimeout):
        await stage.recover(ledger.ledger_id)
    assert (await stage.record(ledger.ledger_id)).state is LedgerState.IN_RECOVERY


def test_one_hung_bookie_does_not_block_and_hardly_delays() -> None:
    """Speculation: a silent replica gets company after a moment, and is asked last from its timeout on."""

    async def act(stage: Stage) -> float:
        ledger = await abandoned(stage, "5/3/2", 40)
        for entry_id in range(40, 60):
            positions = [(entry_id + offset) % 5 for offset in range(3)]
            put(stage, ledger, entry_id, *["abcde"[position] for position in positions], lac=30)
        stage.pool["b"].is_silent = True
        started = stage.loop.time()
        record = await stage.recover(ledger.ledger_id)
        assert record.last_entry_id == 59
        return stage.loop.time() - started

    assert play(act, ("a", "b", "c", "d", "e", "f")) < 6


@on_stage()
async def test_ack_quorum_one_needs_everybody(stage: Stage) -> None:
    """X-8: without one bookie it cannot finish, and loses nothing."""
    ledger = await abandoned(stage, "3/3/1")
    stage.pool["c"].is_down = True
    with pytest.raises(errors.RecoveryFailed):
        await stage.recover(ledger.ledger_id)
    stage.pool["c"].is_down = False
    assert (await stage.recover(ledger.ledger_id)).last_entry_id == 9


@pytest.mark.parametrize("quorums", ["1/1/1", "3/3/2", "4/2/2"])
@pytest.mark.parametrize("has_batch_reads", [True, False])
@on_stage()
async def test_tail_ends_at_the_first_gap(stage: Stage, quorums: str, has_batch_reads: bool) -> None:
    """X-10: 10 and 12 are durable everywhere, 11 was never sent: 12 is dropped."""
    stage.pool.has_batch_reads = has_batch_reads
    ledger = await abandoned(stage, quorums)
    for entry_id in (10, 12):
        put(stage, ledger, entry_id, *"abcd")
    record = await stage.recover(ledger.ledger_id)
    assert (record.last_entry_id, record.length) == (10, 110)


@pytest.mark.parametrize("has_batch_reads", [True, False])
@on_stage()
async def test_every_recovery_read_fences(stage: Stage, has_batch_reads: bool) -> None:
    """X-11: coverage leaves b unfenced; its negative answer is final only because the read fenced it first. The mutant
    with plain reads would let the delayed add of entry 10 reach b after its "no".
    """
    stage.pool.has_batch_reads = has_batch_reads
    ledger = await abandoned(stage)
    put(stage, ledger, 10, "a")
    late = stage.pool["b"]  # its first fencing request is delayed; a and c cover
    late.on_request = lambda kind, entry_id: setattr(late, "is_silent", entry_id == -1)
    record = await stage.recover(ledger.ledger_id)
    assert record.last_entry_id == 9, "b and c said no"
    with pytest.raises(errors.LedgerFenced):
        put(stage, ledger, 10, "b")
    assert {ids[0] for _, ids in stage.pool.asked("read")} <= {9}, "only the length is read without the fence"


@on_stage()
async def test_announced_before_anybody_is_fenced(stage: Stage) -> None:
    """X-13. The mutant that fences first would let the writer move to an unfenced ensemble (I-5)."""
    ledger = await abandoned(stage)
    states: list[LedgerState] = []

    def look(kind: str, entry_id: int) -> None:
        if kind == "fence" and entry_id == -1:
            data = stage.store.get([Key(Table.LEDGERS, ledger.ledger_id)])[0]
            assert data is not None
            states.append(LedgerState.IN_RECOVERY if b"IN_RECOVERY" in data.data or announced else LedgerState.OPEN)

    announced = False
    write = stage.driver.write_ledger

    async def spy(metadata: LedgerMetadata, expected_version: int, *rest: Any) -> Versioned:
        nonlocal announced
        written = await write(metadata, expected_version, *rest)
        announced = announced or metadata.state is LedgerState.IN_RECOVERY
        return written

    stage.driver.write_ledger = spy  # type: ignore[method-assign]
    for name in "abc":
        stage.pool[name].on_request = look
    await stage.recover(ledger.ledger_id)
    assert states == [LedgerState.IN_RECOVERY] * 3


class Interference:
    """Calls `act` once, before the first write of a ledger, after the record has been read."""

    def __init__(self) -> None:
        self.act: Callable[[], Any] | None = None

    async def before(self, operation: str, driver: Any) -> None:
        if operation == "write_ledger" and self.act is not None:
            act, self.act = self.act, None
            await act()

    async def after(self, operation: str, driver: Any) -> None:
        pass


def test_fences_the_ensemble_of_the_announcing_record() -> None:
    """X-14: the writer changed its ensemble between our read and our announcement. The mutant that fences the stale
    ensemble would leave the new one writable.
    """
    interference = Interference()

    async def act(stage: Stage) -> None:
        ledger = await abandoned(stage)

        async def change() -> None:
            versioned = await stage.driver.read_ledger(ledger.ledger_id)
            changed = with_ensemble(versioned.metadata, 10, tuple(stage.writable[2:5]))
            await stage.driver.write_ledger(changed, versioned.version)

        interference.act = change
        record = await stage.recover(ledger.ledger_id)
        assert [bookie for bookie, ids in stage.pool.asked("fence") if ids == [-1]] == ["c", "d", "e"]
        assert (record.last_entry_id, record.length) == (9, 100)
        assert record.ensembles[-1] == (10, ("c", "d", "e")), "an empty last fragment stays"

    play(act, faults=interference)


@on_stage()
async def test_fragment_created_but_never_sent_to(stage: Stage) -> None:
    """X-6, X-7: the start floor keeps recovery from writing entries of earlier fragments into the last ensemble; with a
    bookie dying during write-back the mutant without floor would never finish.
    """
    ledger = await abandoned(stage)
    versioned = await stage.driver.read_ledger(ledger.ledger_id)
    changed = with_ensemble(versioned.metadata, 10, ("a", "b", "d"))  # type: ignore[arg-type]
    await stage.driver.write_ledger(changed, versioned.version)
    put(stage, ledger, 10, "a", "b", lac=4)  # copies left on the kept bookies, sent when 4 was confirmed
    stage.pool["d"].refuses_adds = errors.WriteFailed
    record = await stage.recover(ledger.ledger_id)
    written = [entry_id for _, ids in stage.pool.asked("recovery add") for entry_id in ids]
    assert min(written) == 10
    assert record.last_entry_id == 10
    replicated(stage, record)


@pytest.mark.parametrize("has_batch_reads", [True, False])
@on_stage()
async def test_failure_during_write_back_stays_in_memory_until_the_end(stage: Stage, has_batch_reads: bool) -> None:
    """Recovery reads go to the announced bookies only, whatever write-back replaced (I-10). The mutant that reads from
    the modified ensemble would count the truthful "no" of a replacement and cut the ledger.
    """
    stage.pool.has_batch_reads = has_batch_reads
    ledger = await abandoned(stage)
    for entry_id in range(10, 300):
        put(stage, ledger, entry_id, "b", "c", lac=9)
    stage.pool["b"].refuses_adds = errors.WriteFailed
    record = await stage.recover(ledger.ledger_id)
    assert record.last_entry_id == 299
    assert record.ensembles[0] == (0, ("a", "b", "c"))
    assert "b" not in record.last_ensemble
    replicated(stage, record)
    asked = {bookie for kind in ("fence", "batch", "read") for bookie, _ in stage.pool.asked(kind)}
    assert asked <= {"a", "b", "c"}


@on_stage()
async def test_replacements_of_two_rounds_add_up(stage: Stage) -> None:
    """Two bookies fail one after the other while the same entries are written back."""
    ledger = await abandoned(stage)
    put(stage, ledger, 10, *"abc")
    stage.pool["a"].refuses_adds = stage.pool["b"].refuses_adds = errors.WriteFailed
    record = await stage.recover(ledger.ledger_id)
    assert set(record.last_ensemble) == {"c", "d", "e"}
    replicated(stage, record)


@on_stage(("a", "b", "c"))
async def test_not_enough_bookies_for_write_back_does_not_close(stage: Stage) -> None:
    ledger = await abandoned(stage)
    put(stage, ledger, 10, *"abc")
    stage.pool["a"].refuses_adds = stage.pool["b"].refuses_adds = errors.WriteFailed
    with pytest.raises(errors.RecoveryFailed) as caught:
        await stage.recover(ledger.ledger_id)
    assert isinstance(caught.value.__cause__, errors.NotEnoughBookies)
    record = await stage.record(ledger.ledger_id)
    assert (record.state, len(record.ensembles)) == (LedgerState.IN_RECOVERY, 1)


@pytest.mark.parametrize("has_batch_reads", [True, False])
@on_stage()
async def test_headers_keep_the_starting_point(stage: Stage, has_batch_reads: bool) -> None:
    """D-5, X-24. The mutant that advances the LAC would advertise a provisional tail as confirmed (I-14)."""
    stage.pool.has_batch_reads = has_batch_reads
    ledger = await abandoned(stage)
    for entry_id in range(10, 200):
        put(stage, ledger, entry_id, "b", "c", lac=9)
    record = await stage.recover(ledger.ledger_id)
    assert record.last_entry_id == 199
    assert {stage.header("a", ledger.ledger_id, entry_id)[0] for entry_id in range(10, 200)} == {9}
    assert [stage.header("a", ledger.ledger_id, e)[1] for e in (10, 199)] == [110, 2000]


@on_stage()
async def test_limbo_is_no_negative(stage: Stage) -> None:
    """X-45: c was wiped and came back in limbo; it may have had the entry."""
    ledger = await abandoned(stage)
    put(stage, ledger, 10, "a")
    stage.pool["c"].entries.clear()
    stage.pool["c"].is_limbo = True
    assert (await stage.recover(ledger.ledger_id)).last_entry_id == 10


@pytest.mark.parametrize("has_batch_reads", [True, False])
@on_stage()
async def test_rotten_copy_is_no_copy_and_no_answer(stage: Stage, has_batch_reads: bool) -> None:
    """X-48, X-49, X-52: another replica is asked; a good prefix of a batch is used."""
    stage.pool.has_batch_reads = has_batch_reads
    ledger = await abandoned(stage)
    for entry_id in range(10, 16):
        put(stage, ledger, entry_id, *"abc")
    entries = stage.pool["b"].entries
    for entry_id in (10, 13):
        body = entries[ledger.ledger_id, entry_id]
        entries[ledger.ledger_id, entry_id] = body[:-1] + bytes([body[-1] ^ 1])
    stage.pool["c"].entries[ledger.ledger_id, 11] = stage.pool["c"].entries[ledger.ledger_id, 12]
    record = await stage.recover(ledger.ledger_id)
    assert (record.last_entry_id, record.length) == (15, 160)
    replicated(stage, record)


@on_stage()
async def test_wrong_passwords(stage: Stage) -> None:
    """X-23: refused locally; at a bookie it ends the recovery, which then has only announced itself."""
    ledger = await abandoned(stage)
    with pytest.raises(errors.Unauthorized, match="password"):
        await stage.recover(ledger.ledger_id, password=b"wrong")
    assert stage.pool.log == []
    stage.pool["b"].keys[ledger.ledger_id] = b"another"
    with pytest.raises(errors.Unauthorized):
        await stage.recover(ledger.ledger_id)
    assert (await stage.record(ledger.ledger_id)).state is LedgerState.IN_RECOVERY


@on_stage()
async def test_no_such_ledger(stage: Stage) -> None:
    with pytest.raises(errors.LedgerNotFound):
        await stage.recover(99)


@on_stage()
async def test_length_is_read_when_nothing_was_written_back(stage: Stage) -> None:
    """D-10: a fresh last fragment whose bookies hold nothing would give length 0; a rejected entry too much."""
    ledger = await abandoned(stage)
    versioned = await stage.driver.read_ledger(ledger.ledger_id)
    changed = with_ensemble(versioned.metadata, 10, ("c", "d", "e"))  # type: ignore[arg-type]
    await stage.driver.write_ledger(changed, versioned.version)
    stage.pool["a"].is_down = True
    record = await stage.recover(ledger.ledger_id)
    assert (record.last_entry_id, record.length) == (9, 100)
    # Unreadable: never a reason to fail.
    other = await abandoned(stage, "1/1/1")
    stage.pool["a"].is_down = False
    versioned = await stage.driver.read_ledger(other.ledger_id)
    changed = with_ensemble(versioned.metadata, 10, ("e",))  # type: ignore[arg-type]
    await stage.driver.write_ledger(changed, versioned.version)
    stage.pool["a"].entries.clear()
    assert (await stage.recover(other.ledger_id)).last_entry_id == 9


@on_stage()
async def test_lengths_that_do_not_add_up_are_kept(stage: Stage) -> None:
    """Ledgers whose writer chose the ids have lengths in call order; each entry keeps its own."""
    ledger = await abandoned(stage)
    for entry_id, length in ((10, 120), (11, 110), (12, 130)):
        put(stage, ledger, entry_id, "b", "c", length=length)
    record = await stage.recover(ledger.ledger_id)
    assert (record.last_entry_id, record.length) == (12, 130)
    assert [stage.header("a", ledger.ledger_id, e)[1] for e in (10, 11, 12)] == [120, 110, 130]


@on_stage()
async def test_writer_in_full_flight_is_stopped(stage: Stage) -> None:
    """X-16, X-22: everything the writer confirmed is inside the end; what is pending fails as unknown."""
    ledger = await stage.create()
    confirmed: list[int] = []

    async def write() -> None:
        while True:
            confirmed.append(await ledger.append_many([b"x" * 10] * 7))

    writing = asyncio.create_task(write())
    await stage.settle(200)
    record = await stage.recover(ledger.ledger_id)
    with pytest.raises((errors.LedgerFenced, errors.LedgerClosed)):
        await writing
    assert confirmed
    assert confirmed[-1] <= record.last_entry_id
    replicated(stage, record)
    await ledger.close()
    assert await stage.record(ledger.ledger_id) == record


@on_stage()
async def test_two_recoveries_converge(stage: Stage) -> None:
    """X-20, X-24: they may see different tails; the first end is everybody's."""
    ledger = await abandoned(stage)
    for entry_id in range(10, 20):
        put(stage, ledger, entry_id, "abc"[entry_id % 3])
    ends = await asyncio.gather(*[stage.recover(ledger.ledger_id) for _ in range(3)])
    assert ends[0] == ends[1] == ends[2] == await stage.record(ledger.ledger_id)
    replicated(stage, ends[0])


@on_stage()
async def test_end_decided_by_another_is_adopted(stage: Stage) -> None:
    """X-25, X-24: the writer, or another recovery, closed the ledger before our last swap. The mutant that ignores an
    existing CLOSED would decide a second end.
    """
    ledger = await abandoned(stage)
    put(stage, ledger, 10, *"abc")

    async def close_first() -> None:
        versioned = await stage.driver.read_ledger(ledger.ledger_id)
        await stage.driver.write_ledger(closed(versioned.metadata, 9, 100), versioned.version)

    closing: list[Any] = []
    stage.pool["a"].on_request = lambda kind, entry_id: (
        closing.append(asyncio.create_task(close_first())) if kind == "recovery add" and not closing else None
    )
    record = await stage.recover(ledger.ledger_id)
    assert (record.last_entry_id, record.length) == (9, 100)
    await asyncio.gather(*closing)


@on_stage()
async def test_deleted_during_recovery_is_not_created_again(stage: Stage) -> None:
    """X-26."""
    ledger = await abandoned(stage)
    put(stage, ledger, 10, *"abc")
    stage.pool["a"].on_request = lambda kind, entry_id: (
        stage.store.commit([], [Delete(Key(Table.LEDGERS, ledger.ledger_id))]) if kind == "recovery add" else None
    )
    with pytest.raises(errors.RecoveryFailed):
        await stage.recover(ledger.ledger_id)
    with pytest.raises(errors.LedgerNotFound):
        await stage.record(ledger.ledger_id)


@on_stage()
async def test_foreign_fragment_during_recovery_fails(stage: Stage) -> None:
    """No correct client adds fragments then; publishing an end over it would hide whatever happened."""
    ledger = await abandoned(stage)
    put(stage, ledger, 10, *"abc")

    async def intrude() -> None:
        versioned = await stage.driver.read_ledger(ledger.ledger_id)
        changed = with_ensemble(versioned.metadata, 15, ("c", "d", "e"))  # type: ignore[arg-type]
        await stage.driver.write_ledger(changed, versioned.version)

    intruding: list[Any] = []
    stage.pool["a"].on_request = lambda kind, entry_id: (
        intruding.append(asyncio.create_task(intrude())) if kind == "recovery add" and not intruding else None
    )
    with pytest.raises(errors.RecoveryFailed) as caught:
        await stage.recover(ledger.ledger_id)
    assert isinstance(caught.value.__cause__, errors.LocalProtocolError)
    await asyncio.gather(*intruding)


@pytest.mark.parametrize("quorums", ["3/3/2", "4/2/2"])
def test_killed_at_any_step_and_repeated(quorums: str) -> None:
    """X-4: whatever a recovery had done when it died, the next one comes to a legal end, and every commit on the way
    was a legal transition. Mutants caught: recovery reads from the modified ensemble, fragments published early.
    """

    async def act(stage: Stage, steps: int) -> bool:
        ledger = await abandoned(stage, quorums)
        for entry_id in range(10, 14):
            put(stage, ledger, entry_id, *"abcd"[: 4 if quorums == "4/2/2" else 3])
        put(stage, ledger, 14, "c")
        stage.pool["b"].refuses_adds = errors.WriteFailed
        write = stage.driver.write_ledger

        async def spy(metadata: LedgerMetadata, expected_version: int, *rest: Any) -> Versioned:
            before = await stage.record(metadata.ledger_id)
            problem = illegality(before, metadata, Author.RECOVERY)
            assert problem == "", problem
            return await write(metadata, expected_version, *rest)

        stage.driver.write_ledger = spy  # type: ignore[method-assign]
        task = asyncio.create_task(stage.recover(ledger.ledger_id))
        for _ in range(steps):
            await asyncio.sleep(0)
        is_done = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await stage.record(ledger.ledger_id)).ensembles == ledger.metadata.ensembles or is_done
        record = await stage.recover(ledger.ledger_id)
        assert record.last_entry_id in (13, 14)
        assert record.length == (record.last_entry_id + 1) * 10
        replicated(stage, record)
        return is_done

    steps = 0
    while not play(lambda stage, steps=steps: act(stage, steps), ("a", "b", "c", "d", "e", "f")):  # type: ignore[misc]
        steps += 1
    assert steps > 20


def test_conflicts_while_announcing_and_closing() -> None:
    """S1 and S6 re-apply on a record that only re-replication has touched."""

    class Conflicts:
        count = 0

        async def before(self, operation: str, driver: Any) -> None:
            if operation == "write_ledger":
                self.count += 1
                if self.count in (1, 3, 4):
                    raise VersionConflict()

        async def after(self, operation: str, driver: Any) -> None:
            pass

    async def act(stage: Stage) -> None:
        ledger = await abandoned(stage)
        assert (await stage.recover(ledger.ledger_id)).last_entry_id == 9

    play(act, faults=Conflicts())


@on_stage(memory_limit=1 << 20)
async def test_large_tail_stays_within_memory(stage: Stage) -> None:
    """Reading runs ahead of the write-back only as far as the memory limit allows."""
    ledger = await abandoned(stage, count=0)
    payload = b"p" * 100_000
    head = add_head(master_key(PASSWORD))
    for entry_id in range(60):
        frames, _, _ = pack_add_frames(
            head, ledger.ledger_id, entry_id, -1, entry_id * 100_000, [payload], DigestType.CRC32C, b""
        )
        for name in "bc":
            stage.pool[name].add(frames)
    slow = stage.pool["a"]
    slow.on_request = lambda kind, entry_id: setattr(slow, "is_held", kind == "recovery add")
    recovering = asyncio.create_task(stage.recover(ledger.ledger_id))
    await stage.settle(500)
    sent = sum(len(ids) for bookie, ids in stage.pool.asked("recovery add") if bookie == "a")
    assert 0 < sent <= 1 + (1 << 20) // (100_000 + FRAME_OVERHEAD)
    slow.on_request, slow.is_held = None, False
    slow.release()
    record = await recovering
    assert (record.last_entry_id, record.length) == (59, 6_000_000)
    replicated(stage, record)


@on_stage()
async def test_already_announced_is_not_announced_again(stage: Stage) -> None:
    ledger = await abandoned(stage)
    versioned = await stage.driver.read_ledger(ledger.ledger_id)
    await stage.driver.write_ledger(in_recovery(versioned.metadata), versioned.version)
    commits: list[LedgerMetadata] = []
    write = stage.driver.write_ledger

    async def spy(metadata: LedgerMetadata, expected_version: int, *rest: Any) -> Versioned:
        commits.append(metadata)
        return await write(metadata, expected_version, *rest)

    stage.driver.write_ledger = spy  # type: ignore[method-assign]
    await stage.recover(ledger.ledger_id)
    assert [metadata.state for metadata in commits] == [LedgerState.CLOSED]


@on_stage()
async def test_bookies_without_batch_reads(stage: Stage) -> None:
    """X-63: they drop the connection; plain reads find the same, and nobody is asked for a batch again."""
    ledger = await abandoned(stage)
    for entry_id in range(10, 15):
        put(stage, ledger, entry_id, *"abc")

    async def read_batch(bookie: str, *_: Any, **__: Any) -> bytes:
        stage.pool.log.append(("batch", bookie, []))
        raise errors.BookieUnreachable("connection closed")

    stage.pool.read_batch = read_batch  # type: ignore[method-assign, assignment]
    assert (await stage.recover(ledger.ledger_id)).last_entry_id == 14
    assert len(stage.pool.asked("batch")) == 1
