"""One connection: matching of answers, order, timeouts, loss. On virtual time, against a transport that records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.transport.connection import TRANSITIONS, Connection, Event, Flushes, State
from bookies.client.transport.open_ledgers import Holder, OpenLedgers, OpenProof
from bookies.client.transport.unanswered import AddQueue, Outcome, PendingAdds
from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    LedgerFenced,
    Status,
    Unauthorized,
    WriteFailed,
)
from bookies.lab.sim.world.loop import SimLoop
from bookies.model import BookieId
from bookies.wire.messages import (
    AddResponses,
    BareResponse,
    BatchReadResponse,
    Operation,
    ReadLacResponse,
    ReadResponse,
    Response,
)
from bookies.wire.server import encode_response

B1 = BookieId("b1")


class Transport(asyncio.Transport):
    """Keeps what is written; `unsent` is what it claims not to have sent."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unsent = 0
        self.is_aborted = False
        self.failure: Exception | None = None  # of the next write

    def write(self, data: Any) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_aborted = True


class Sink:
    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.failed: list[tuple[list[int], BookKeeperError]] = []

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        self.acknowledged += entry_ids

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        self.failed.append((list(entry_ids), error))


def deadline(timeout_ms: int) -> float:
    return asyncio.get_running_loop().time() + timeout_ms / 1000


class Owner:
    """Notes in its bench what a connection reports."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def established(self, connection: Connection) -> None:
        self._bench.established.append(connection)

    def ended(self, connection: Connection, error: BookKeeperError) -> None:
        self._bench.ended.append(error)

    def suspect(self, bookie: BookieId) -> None:
        self._bench.timeouts.append(bookie)


class Bench:
    """A connection and what it talks to."""

    def __init__(self, wire: str = "v2", *, is_connected: bool = True, flushes: Flushes | None = None) -> None:
        self.established: list[Connection] = []
        self.ended: list[BookKeeperError] = []
        self.timeouts: list[BookieId] = []
        self.sink = Sink()
        self.transport = Transport()
        scratch = memoryview(bytearray(4096))
        self.connection = Connection(B1, wire, 1 << 20, Owner(self), scratch, flushes or Flushes())
        if is_connected:
            self.connection.connection_made(self.transport)

    def add(self, first: int, count: int, *, ledger_id: int = 7, timeout_ms: int = 5000) -> None:
        ids = range(first, first + count)
        keys = ids if self.connection.wire == "v2" else self.connection.next_txn_ids(count)
        adds = PendingAdds(ledger_id, keys, ids, self.sink, deadline(timeout_ms), count * 10)
        self.connection.send_adds(adds, [b"F" * count * 10])

    def answer(self, *responses: Response) -> None:
        for response in responses:
            self.receive(b"".join(map(bytes, encode_response(response))))

    def receive(self, data: bytes) -> None:
        """As a transport does."""
        while data:
            room = memoryview(self.connection.get_buffer(len(data)))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def acknowledge(self, ids: Sequence[int], status: Status = Status.OK, ledger_id: int = 7) -> None:
        self.answer(AddResponses(2, status, ledger_id, ids))

    def read(self, entry_id: int, *, is_fencing: bool = False, timeout_ms: int = 5000) -> asyncio.Future[Outcome]:
        return self.connection.request([b"R"], timeout_ms, key=(7, entry_id), is_fencing=is_fencing)


class BusyLoop(SimLoop):
    """A loop whose every iteration takes a quarter of a second."""

    def _advance(self, deadline: float) -> None:
        super()._advance(deadline)
        self._now += 0.25


def play(act: Callable[[], Coroutine[Any, Any, None]], kind: type[SimLoop] = SimLoop) -> None:
    loop = kind()
    try:
        loop.run(act())
        assert not loop.errors, loop.errors
    finally:
        loop.close()


# -- the table of states: what becomes of requests by how the connection ended ---------------------------------------
class Requests:
    """One request of each kind, queued or sent: adds, an add of a recovery, two reads (one given up), a batch read."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        bench.add(0, 3)
        recovery = PendingAdds(7, range(9, 10), range(9, 10), bench.sink, deadline(5000), 10)
        bench.connection.send_adds(recovery, [b"F"], is_recovery=True)
        self.futures = [bench.read(1), bench.connection.request([b"R"], 5000, txn_id=5)]
        bench.read(2).cancel()

    def check(self, kind: type[BookKeeperError], *, was_connected: bool) -> None:
        """Every request has failed once, with the one error that `on_end` got."""
        assert [ids for ids, _ in self.bench.sink.failed] == [[0, 1, 2], [9]]
        errors = [error for _, error in self.bench.sink.failed] + [future.result() for future in self.futures]
        [ended] = self.bench.ended
        assert all(error is ended for error in errors)
        assert type(ended) is kind
        assert getattr(ended, "was_connected", False) is was_connected
        assert self.bench.connection.adds_size == 0


def drop(bench: Bench) -> None:
    """End a connection as its checks do."""
    bench.connection._drop("too many reads without answer")


ENDINGS: dict[Event, tuple[Callable[[Bench], None], type[BookKeeperError], bool]] = {
    Event.REFUSED: (lambda b: b.connection.refused(Unauthorized("no")), Unauthorized, False),
    Event.LOST: (lambda b: b.connection.connection_lost(None), BookieUnreachable, True),
    Event.DROPPED: (drop, BookieUnreachable, False),
    Event.CLOSED: (lambda b: b.connection.close(ClientClosed("the client was closed")), ClientClosed, False),
}


@pytest.mark.parametrize(("state", "event"), TRANSITIONS)
def test_every_row_of_the_table(state: State, event: Event) -> None:
    async def act() -> None:
        bench = Bench(is_connected=state is not State.CONNECTING)
        requests = Requests(bench)
        sent = [] if state is State.CONNECTING else [b"F" * 31 + b"R"]
        assert bench.transport.writes == sent, "the first request is sent at once, and those that were queued before it"
        if state is State.CLOSED:
            bench.connection.close(ClientClosed("the client was closed"))
        assert bench.connection.state is state
        if event is Event.CONNECTED:
            bench.connection.connection_made(bench.transport)
            is_first = state is State.CONNECTING
            assert bench.transport.writes == ([b"F" * 31 + b"RRR"] if is_first else sent)
            assert bench.transport.is_aborted is not is_first
        else:
            end, kind, was_connected = ENDINGS[event]
            end(bench)
            requests.check(kind, was_connected=was_connected)
            assert bench.transport.is_aborted is (state is State.OPEN and event is not Event.LOST)
            end(bench)
            bench.connection.close(ClientClosed("the client was closed"))
            requests.check(kind, was_connected=was_connected)
            await asyncio.sleep(0)
            assert bench.transport.writes == sent, "what was queued is not sent"
        assert bench.connection.state is TRANSITIONS[state, event]

    play(act)


@given(st.lists(st.sampled_from(list(Event)), max_size=6))
def test_random_events_take_rows_of_the_table_only(events: list[Event]) -> None:
    async def act() -> None:
        bench = Bench(is_connected=False)
        requests = Requests(bench)
        ended: Event | None = None
        for event in events:
            before = bench.connection.state
            if (before, event) in ((State.OPEN, Event.CONNECTED), (State.CONNECTING, Event.LOST)):
                continue  # No transport does this.
            if event is Event.CONNECTED:
                bench.connection.connection_made(bench.transport)
            else:
                ENDINGS[event][0](bench)
                ended = ended or event
            is_repeated = before is State.CLOSED and event is not Event.CONNECTED
            assert bench.connection.state is (before if is_repeated else TRANSITIONS[before, event])
        if ended is None:
            assert not bench.ended
            assert not bench.sink.failed
        else:
            requests.check(ENDINGS[ended][1], was_connected=ENDINGS[ended][2])

    play(act)


# -- adds ----------------------------------------------------------------------------------------------------------


def test_adds_of_one_turn_share_a_write_and_are_answered_in_runs() -> None:
    async def act() -> None:
        bench = Bench()
        bench.add(0, 3)
        bench.add(3, 4)
        assert bench.transport.writes == []
        await asyncio.sleep(0)
        assert bench.transport.writes == [b"F" * 70]
        assert bench.connection.adds_size == 70
        bench.acknowledge(range(5))
        assert bench.sink.acknowledged == [0, 1, 2, 3, 4]
        assert bench.connection.adds_size == 20
        bench.acknowledge([5, 6])
        assert bench.sink.acknowledged == list(range(7))
        assert bench.connection.adds_size == 0
        assert not bench.sink.failed

    play(act)


def test_a_write_that_fails_does_not_silence_other_connections() -> None:
    async def act() -> None:
        flushes = Flushes()
        benches = [Bench(flushes=flushes) for _ in range(3)]
        benches[0].transport.failure = MemoryError("no memory")
        for bench in benches:
            bench.add(0, 1)
        flushes.expect()
        flushes.flush()
        for bench in benches:
            bench.add(1, 1)
        await asyncio.sleep(0)
        assert [len(bench.transport.writes) for bench in benches[1:]] == [2, 2]
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        assert [bench.transport.is_aborted for bench in benches] == [True, False, False]
        assert len(loop.errors) == 1
        assert "no memory" in loop.errors[0]
        loop.errors.clear()

    play(act)


def test_a_refusal_overtakes_earlier_adds() -> None:
    async def act() -> None:
        bench = Bench()
        bench.add(0, 5)
        bench.add(5, 5)
        bench.acknowledge(range(4, 7), Status.FENCED)
        assert [(ids, type(error)) for ids, error in bench.sink.failed] == [([4], LedgerFenced), ([5, 6], LedgerFenced)]
        bench.acknowledge(range(4))
        bench.acknowledge(range(7, 10), Status.IO_ERROR)
        assert bench.sink.acknowledged == [0, 1, 2, 3]
        assert type(bench.sink.failed[-1][1]) is WriteFailed
        assert bench.connection.adds_size == 0

    play(act)


def test_ledgers_do_not_mix() -> None:
    async def act() -> None:
        bench = Bench()
        bench.add(0, 2, ledger_id=7)
        bench.add(0, 2, ledger_id=8)
        bench.acknowledge(range(2), ledger_id=8)
        assert bench.sink.acknowledged == [0, 1]
        assert bench.connection.adds_size == 20
        bench.acknowledge(range(2), ledger_id=9)
        assert bench.connection.adds_size == 20

    play(act)


def test_v3_adds_are_matched_by_transaction_id() -> None:
    async def act() -> None:
        bench = Bench("v3")
        bench.add(0, 3)
        bench.add(0, 3, ledger_id=8)
        bench.answer(AddResponses(3, Status.OK, 8, range(2), range(4, 6)))
        assert bench.sink.acknowledged == [0, 1]
        bench.answer(BareResponse(3, 6, Operation.ADD, Status.UNAUTHORIZED))
        assert bench.sink.failed[0][0] == [2]
        bench.answer(AddResponses(3, Status.OK, 7, range(3), range(1, 4)))
        assert bench.sink.acknowledged == [0, 1, 0, 1, 2]
        assert bench.connection.adds_size == 0

    play(act)


def test_a_refusal_is_the_writers_and_a_success_the_recoverys() -> None:
    async def act() -> None:
        writer, recovery = Sink(), Sink()
        bench = Bench()
        for sink, is_recovery in ((writer, False), (recovery, True)):
            adds = PendingAdds(7, range(3, 5), range(3, 5), sink, deadline(5000), 1)
            bench.connection.send_adds(adds, [b"F"], is_recovery=is_recovery)
        bench.acknowledge(range(3, 5))
        assert recovery.acknowledged == [3, 4]
        bench.acknowledge(range(3, 5), Status.FENCED)
        assert [ids for ids, _ in writer.failed] == [[3, 4]]
        assert not recovery.failed

    play(act)


def test_adds_time_out_once_and_late_answers_are_dropped() -> None:
    async def act() -> None:
        bench = Bench()
        bench.add(0, 3, timeout_ms=1000)
        await asyncio.sleep(0.5)
        bench.add(3, 2, timeout_ms=1000)
        bench.acknowledge(range(1))
        await asyncio.sleep(0.7)
        assert [(ids, type(error)) for ids, error in bench.sink.failed] == [([1, 2], BookieTimeout)]
        assert bench.timeouts == [B1]
        bench.acknowledge(range(1, 3))
        bench.acknowledge(range(3, 5))
        assert bench.sink.acknowledged == [0, 3, 4]
        assert len(bench.sink.failed) == 1
        assert bench.connection.adds_size == 0
        assert not bench.ended

    play(act)


def test_time_limits_expire_on_a_loop_that_is_always_late() -> None:
    """A late check waits for one more iteration, in which answers can be read, and not for ever."""

    async def act() -> None:
        bench = Bench()
        bench.add(0, 3, timeout_ms=1000)
        future = bench.read(1, timeout_ms=1000)
        await asyncio.sleep(3)
        assert [(ids, type(error)) for ids, error in bench.sink.failed] == [([0, 1, 2], BookieTimeout)]
        assert isinstance(future.result(), BookieTimeout)

    play(act, BusyLoop)


def test_a_bookie_that_takes_no_bytes_loses_its_connection() -> None:
    async def act() -> None:
        bench = Bench()
        bench.transport.unsent = 1
        bench.add(0, 3, timeout_ms=300)
        bench.add(0, 3, ledger_id=8, timeout_ms=9000)
        await asyncio.sleep(0.5)
        assert bench.transport.is_aborted
        assert [type(error) for _, error in bench.sink.failed] == [BookieTimeout, BookieUnreachable]

    play(act)


# -- life ----------------------------------------------------------------------------------------------------------


def test_what_is_sent_while_connecting_keeps_its_order() -> None:
    async def act() -> None:
        bench = Bench(is_connected=False)
        bench.read(1)
        bench.add(0, 1)
        bench.read(2)
        assert bench.transport.writes == []
        bench.connection.connection_made(bench.transport)
        assert bench.transport.writes == [b"R" + b"F" * 10 + b"R"]

    play(act)


def test_requests_of_one_turn_share_a_write_and_adds_do_not_overtake_them() -> None:
    """The first one is sent at once, because nothing else is unanswered: a lone request waits for no turn."""

    async def act() -> None:
        bench = Bench()
        bench.read(1)
        assert bench.transport.writes == [b"R"]
        bench.read(2)
        bench.add(0, 1)
        bench.read(3)
        assert bench.transport.writes == [b"R"]
        await asyncio.sleep(0)
        assert bench.transport.writes == [b"R", b"R" + b"F" * 10 + b"R"]

    play(act)


def test_a_lost_connection_fails_everything_once() -> None:
    """Checklist row 31: a reset may swallow the last answer; nothing depends on having read it."""

    async def act() -> None:
        bench = Bench()
        bench.add(0, 3)
        read, batch = bench.read(1), bench.connection.request([b"B"], 5000, txn_id=1)
        bench.connection.connection_lost(ConnectionResetError("reset"))
        bench.connection.connection_lost(None)
        assert [ids for ids, _ in bench.sink.failed] == [[0, 1, 2]]
        assert len(bench.ended) == 1
        for outcome in (bench.sink.failed[0][1], await read, await batch):
            assert type(outcome) is BookieUnreachable
            assert outcome.bookie == B1
        assert bench.connection.adds_size == 0
        await asyncio.sleep(10)
        assert len(bench.sink.failed) == 1

    play(act)


def test_bytes_that_are_no_protocol_drop_the_connection() -> None:
    async def act() -> None:
        bench = Bench()
        bench.add(0, 3)
        bench.receive(b"\xff\xff\xff\xff junk")
        assert bench.transport.is_aborted
        assert type(bench.sink.failed[0][1]) is BookieUnreachable
        bench.acknowledge(range(3))
        assert bench.sink.acknowledged == []

    play(act)


def test_a_sink_may_close_or_send_while_it_hears_of_a_failure() -> None:
    async def act() -> None:
        bench = Bench()

        class Closing(Sink):
            def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
                super().on_failed(bookie, entry_ids, error)
                bench.connection.close(ClientClosed("closed"))

        sink = Closing()
        for ledger_id in (7, 8):
            bench.connection.send_adds(PendingAdds(ledger_id, range(2), range(2), sink, deadline(1000), 1), [b"F"])
        await asyncio.sleep(2)
        assert [type(error) for _, error in sink.failed] == [BookieTimeout, ClientClosed]

    play(act)


def test_a_sink_may_close_while_adds_are_held_for_one_proof() -> None:
    """Each is answered once, although the first answer ends the connection."""

    class Reading:
        def now_s(self) -> float:
            return 0.0

        def demand(self, proof: OpenProof, holder: Holder) -> None:
            """The store never answers."""

    async def act() -> None:
        bench = Bench()
        proof = OpenProof(cast(OpenLedgers, Reading()), cast(MetadataLoop, None), 0)

        class Closing(Sink):
            def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
                super().on_failed(bookie, entry_ids, error)
                bench.connection.close(ClientClosed("closed"))

        sink = Closing()
        for first in (0, 2):
            ids = range(first, first + 2)
            bench.connection.hold_adds(PendingAdds(7, ids, ids, sink, deadline(1000), 1), [b"F"], proof)
        await asyncio.sleep(2)
        assert [(ids, type(error)) for ids, error in sink.failed] == [([0, 1], BookieTimeout), ([2, 3], ClientClosed)]
        assert bench.connection.adds_size == 0

    play(act)


def test_a_process_that_stood_still_does_not_blame_the_bookie() -> None:
    async def act() -> None:
        loop = asyncio.get_running_loop()
        bench = Bench()
        bench.add(0, 1, timeout_ms=1000)
        await asyncio.sleep(0.95)
        loop._now += 60.0  # type: ignore[attr-defined]  # As after SIGSTOP: the clock went on, nothing else did.
        await asyncio.sleep(0.05)
        bench.acknowledge([0])
        await asyncio.sleep(1)
        assert bench.sink.acknowledged == [0]
        assert not bench.sink.failed

    play(act)


# -- reads ---------------------------------------------------------------------------------------------------------


def test_answers_come_in_any_order() -> None:
    async def act() -> None:
        bench = Bench()
        one, two, last = bench.read(1), bench.read(2), bench.read(-1)
        bench.answer(
            ReadResponse(2, 0, Status.OK, 7, -1, b"last" * 8),
            ReadResponse(2, 0, Status.NO_ENTRY, 7, 2),
            ReadResponse(2, 0, Status.OK, 7, 1, b"one" * 10),
            ReadResponse(2, 0, Status.OK, 7, 1, b"nobody asked"),
        )
        assert (await one).body == b"one" * 10  # type: ignore[union-attr]
        assert (await two).status is Status.NO_ENTRY  # type: ignore[union-attr]
        assert (await last).body == b"last" * 8  # type: ignore[union-attr]

    play(act)


def test_two_reads_of_one_entry_take_one_answer_each() -> None:
    """Checklist row 8: one answer completes any one of the equal requests."""

    async def act() -> None:
        bench = Bench()
        first, second = bench.read(1), bench.read(1)
        bench.answer(ReadResponse(2, 0, Status.OK, 7, 1, b"x" * 32))
        assert first.done()
        assert not second.done()
        bench.answer(ReadResponse(2, 0, Status.OK, 7, 1, b"y" * 32))
        assert (await second).body == b"y" * 32  # type: ignore[union-attr]

    play(act)


def test_a_cancelled_read_leaves_its_answer_to_the_next() -> None:
    async def act() -> None:
        bench = Bench()
        given_up, waiting = bench.read(1), bench.read(1)
        given_up.cancel()
        bench.answer(ReadResponse(2, 0, Status.OK, 7, 1, b"x" * 32))
        assert (await waiting).body == b"x" * 32  # type: ignore[union-attr]

    play(act)


def test_plain_and_fencing_reads_of_one_entry_are_kept_apart() -> None:
    async def act() -> None:
        key = (7, -1)
        bench = Bench()
        plain = bench.read(-1)
        assert bench.connection.accepts_read(key, is_fencing=False)
        assert not bench.connection.accepts_read(key, is_fencing=True)
        assert bench.connection.accepts_read((8, -1), is_fencing=True)
        bench.answer(ReadResponse(2, 0, Status.OK, 7, -1, b"x" * 32))
        await plain
        fencing = bench.read(-1, is_fencing=True)
        assert not bench.connection.accepts_read(key, is_fencing=False)
        bench.answer(ReadResponse(2, 0, Status.NO_ENTRY, 7, -1))
        await fencing
        assert bench.connection.accepts_read(key, is_fencing=False)

    play(act)


def test_the_late_answer_of_a_plain_read_cannot_acknowledge_a_fence() -> None:
    async def act() -> None:
        key = (7, -1)
        bench = Bench()
        timed_out, cancelled = bench.read(-1, timeout_ms=200), bench.read(-1)
        cancelled.cancel()
        await asyncio.sleep(0.5)
        assert type(await timed_out) is BookieTimeout
        assert not bench.connection.accepts_read(key, is_fencing=True)
        bench.answer(ReadResponse(2, 0, Status.OK, 7, -1, b"late" * 8))
        assert not bench.connection.accepts_read(key, is_fencing=True)  # One more answer may come.
        bench.answer(ReadResponse(2, 0, Status.OK, 7, -1, b"late" * 8))
        assert bench.connection.accepts_read(key, is_fencing=True)

    play(act)


def test_batch_reads_and_v3_requests_are_matched_by_number() -> None:
    async def act() -> None:
        bench = Bench()
        one, two = (bench.connection.request([b"B"], 5000, txn_id=number) for number in (1, 2))
        bench.answer(BatchReadResponse(2, 2, Status.OK, 7, 0, b"two!"), BatchReadResponse(2, 9, Status.OK, 7, 0, b""))
        assert (await two).records == b"two!"  # type: ignore[union-attr]
        assert not one.done()
        other = Bench("v3")
        lac = other.connection.request([b"L"], 5000, txn_id=5)
        other.answer(ReadLacResponse(3, 5, Status.OK, 7, b"lac"))
        assert (await lac).lac_body == b"lac"  # type: ignore[union-attr]

    play(act)


def test_repr_shows_state() -> None:
    async def act() -> None:
        bench = Bench(is_connected=False)
        assert repr(bench.connection) == "<Connection b1 v2 connecting unanswered=0 bytes of adds>"
        bench.connection.connection_made(bench.transport)
        bench.add(0, 100)
        assert repr(bench.connection) == "<Connection b1 v2 open unanswered=1,000 bytes of adds>"
        bench.connection.close(ClientClosed("closed"))
        assert repr(bench.connection) == "<Connection b1 v2 closed unanswered=0 bytes of adds>"

    play(act)


# -- the queue, against a dictionary ---------------------------------------------------------------------------------


@given(st.data())
def test_add_queue_gives_out_every_entry_exactly_once(data: st.DataObject) -> None:
    queue = AddQueue()
    sink = Sink()
    waiting: dict[int, None] = {}
    next_id = 0
    for _ in range(data.draw(st.integers(1, 6))):
        ids: Sequence[int]
        if data.draw(st.booleans()):
            ids = range(next_id, next_id + data.draw(st.integers(1, 8)))
        else:  # What a position of a striped ensemble stores.
            ids = [entry_id for entry_id in range(next_id, next_id + 9) if entry_id % 3]
        next_id = ids[-1] + 1
        queue.append(PendingAdds(7, ids, ids, sink, 0.0, 10 * len(ids)))
        waiting.update(dict.fromkeys(ids))
    total = 10 * len(waiting)
    while waiting:
        start = data.draw(st.sampled_from([*list(waiting)[:3], *waiting]))
        keys: Sequence[int] = range(start, start + data.draw(st.integers(1, 12)))
        if data.draw(st.booleans()):
            keys = list(keys)
        taken, unknown = queue.take(keys)
        given_out = [entry_id for adds in taken for entry_id in adds.entry_ids]
        assert sorted(given_out) == [key for key in keys if key in waiting]
        assert sorted(unknown) == [key for key in keys if key not in waiting]
        total -= sum(adds.size for adds in taken)
        for entry_id in given_out:
            del waiting[entry_id]
    assert not queue
    assert total == 0
