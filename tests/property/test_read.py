"""Reads under any order of answers, failures and delays: the pure cores against what the protocol says in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.examples import scaled
from tests.fakes.world import World, play

from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    DigestMismatch,
    EntryNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
)
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.lac import LacRead, LongPollRound, TryLacRead
from bookies.protocol.ledger.read import NEGATIVE, ReplicaReads
from bookies.wire.messages import BatchReadRequest, ReadRequest

ERRORS = (EntryNotFound, LedgerUnknownToBookie, BookieUnreachable, BookieTimeout, ReadFailed, DigestMismatch)
NAMES = tuple(BookieId(f"b{number}") for number in range(6))


@given(
    st.permutations(range(4)),
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.sampled_from(ERRORS)), max_size=30),
)
def test_replicas_are_asked_once_and_given_up_only_when_all_have_failed(
    order: list[int], is_parallel: bool, events: list[tuple[bool, int, type[BookKeeperError]]]
) -> None:
    reads = ReplicaReads(order, is_parallel=is_parallel)
    asked: list[int] = []
    waiting: list[int] = []
    failed: dict[int, type[BookKeeperError]] = {}
    for is_late, which, kind in [*events, *[(False, 0, ReadFailed)] * 4]:
        due = reads.due()
        assert not (due and waiting), "asked another although somebody may still answer"
        asked += due
        waiting += due
        if is_late:
            company = reads.late()
            asked += company
            waiting += company
        elif waiting:
            position = waiting.pop(which % len(waiting))
            failed[position] = kind
            reads.failed(NAMES[position], kind())
        assert asked == list(order)[: len(asked)]
        assert reads.has_failed == (len(failed) == len(order))
    assert reads.has_failed
    chosen = reads.error
    assert isinstance(chosen, NEGATIVE) == all(issubclass(kind, NEGATIVE) for kind in failed.values())
    if any(not issubclass(kind, (*NEGATIVE, BookieUnreachable)) or kind is BookieTimeout for kind in failed.values()):
        assert type(chosen) is not BookieUnreachable, "a lost connection is the least informative failure"


@given(st.data())
def test_a_lac_read_is_certain_exactly_when_no_unknown_bookies_can_hide_a_confirmed_entry(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    write_quorum = data.draw(st.integers(1, size))
    ack_quorum = data.draw(st.integers(1, write_quorum))
    record = LedgerMetadata(7, size, write_quorum, ack_quorum, ((0, NAMES[:size]),))
    core, quick = LacRead(record), TryLacRead(record, 5)
    known: list[int] = []
    values: list[int] = []
    for position in data.draw(st.permutations(range(size))):
        assert not quick.is_done
        value = data.draw(st.integers(-1, 9) | st.sampled_from(ERRORS))
        if isinstance(value, int):
            core.answered(position, value, 0)
            quick.answered(position, value, 0)
        else:
            core.failed(position, value())
            quick.failed(position, value())
        if isinstance(value, int) or issubclass(value, NEGATIVE):
            known.append(position)
            values.append(value if isinstance(value, int) else -1)
        hidden = [
            first
            for first in range(size)
            if sum((first + offset) % size not in known for offset in range(write_quorum)) >= ack_quorum
        ]
        assert core.is_covered == (not hidden)
        assert core.last_add_confirmed == max(values, default=-1)
        if max(values, default=-1) > 5:
            assert quick.is_covered
            break
    else:
        assert quick.is_done
        assert quick.is_covered == bool(values)


@given(st.booleans(), st.lists(st.sampled_from(["empty", "late", *ERRORS]), max_size=20))
def test_a_round_of_long_polls_ends_with_enough_empty_answers_or_everybody(
    is_parallel: bool, events: list[str | type[BookKeeperError]]
) -> None:
    record = LedgerMetadata(7, 5, 3, 2, ((0, NAMES[:5]),))
    polls = LongPollRound(record, range(5), is_parallel=is_parallel)
    waiting: list[int] = []
    asked = empties = 0
    for event in [*events, *["empty"] * 5]:
        if polls.is_over:
            break
        due = list(polls.due())
        waiting += due
        asked += len(due)
        if event == "late":
            company = list(polls.late())
            waiting += company
            asked += len(company)
            continue
        position = waiting.pop(0)
        if isinstance(event, type):
            polls.failed(NAMES[position], event())
        else:
            polls.empty()
            empties += 1
    assert polls.is_over
    assert asked <= 5
    assert (polls.failure() is None) == (empties > 0)


@scaled(25)
@given(
    st.sampled_from(["v2", "v3"]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.003, 0.05, 0.7, "drop", "silent"])), max_size=4),
    st.booleans(),
)
def test_whatever_the_other_replicas_do_one_good_one_is_enough(
    wire: str, quorums: tuple[int, int], trouble: list[tuple[int, float | str]], is_hedging: bool
) -> None:
    """Each write set keeps one bookie without trouble; everything is read, once, in order, in bounded time."""
    ensemble, write_quorum = max(quorums), min(quorums)

    async def act(world: World) -> None:
        store = await world.client(
            wire=wire, read_timeout_ms=400, hedged_reads=is_hedging, hedge_delay_max_ms=30, read_ahead_size=64 * 1024
        )
        # All replicas are stored. Adds on a new connection wait for a check of the record (I-33) and may be late.
        writer = await store.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=write_quorum)
        payloads = [b"%d " % number * (number % 40) for number in range(300)]
        await writer.append_many(payloads)
        await writer.seal()
        bad: list[int] = []
        for position, kind in trouble:
            kept = {*range(ensemble)} - {*bad, position}
            if position >= ensemble or any(
                all((first + offset) % ensemble not in kept for offset in range(write_quorum))
                for first in range(ensemble)
            ):
                continue
            bad.append(position)
            bookie = world.bookies[writer.metadata.last_ensemble[position]]
            if isinstance(kind, float):
                bookie.delay_s = lambda request, delay=kind: (
                    delay if isinstance(request, ReadRequest | BatchReadRequest) else 0
                )
            elif kind == "drop":
                bookie.intercept = lambda request, bookie=bookie: bookie.drop_connections() or []
            else:
                bookie.intercept = lambda request: []
        ledger = await store.open(writer.ledger_id)
        begun = world.loop.time()
        entries = [entry async for entry in ledger.read()]
        assert [entry.id for entry in entries] == list(range(300))
        assert [entry.payload for entry in entries] == payloads
        assert world.loop.time() - begun < 20

    play(act, ensemble)
