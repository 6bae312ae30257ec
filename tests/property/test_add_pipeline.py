"""The add pipeline against a naive model with one object per entry, on random schedules.

The model is the protocol's pseudo-code, entry by entry and set by set. The world around both plays bookies that
acknowledge, fail, answer twice, late and out of order, and a metadata store that agrees, agrees in part, closes or
refuses. After each event both must have had the same effects, and the invariants must hold:

* I-3 confirmed ids are dense and ascending, nothing is confirmed after a failure;
* I-8 nothing is confirmed while the ensemble changes; a new fragment starts behind the last confirmed entry;
* I-9 a confirmed entry is held by an ack quorum of the bookies that the recorded fragment lists for it;
* I-19 every entry gets exactly one outcome, and everybody whose answer is awaited has been asked.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from tests.fakes.adds import Observed

from bookies import errors
from bookies.model import BookieId, Ensemble, LedgerMetadata, LedgerState
from bookies.protocol.ledger.add import (
    TRANSITIONS,
    AddEvent,
    AddRules,
    AddState,
    ChangeEnsemble,
    CloseLedger,
    Confirmed,
    Effects,
    Failed,
    RetryLater,
    Send,
)
from bookies.protocol.ledger.add_advanced import AdvancedAddPipeline
from bookies.protocol.ledger.ledger import with_ensemble
from bookies.protocol.quorums import write_set

CONFIGURATIONS = [(3, 3, 2), (3, 2, 2), (6, 2, 2), (5, 3, 2), (4, 3, 2), (1, 1, 1), (3, 3, 3), (5, 5, 3), (4, 2, 1)]
FATAL = (errors.LedgerFenced, errors.Unauthorized)
FAILURES = (errors.BookieTimeout, errors.BookieUnreachable, errors.WriteFailed, errors.BookieReadOnly)


class AdvancedPipeline(Observed, AdvancedAddPipeline):
    """An advanced pipeline that keeps the pairs of its table that it took."""


class Op:
    """One pending add."""

    def __init__(self, entry_id: int) -> None:
        self.id = entry_id
        self.acks: set[int] = set()
        self.failures: set[int] = set()


class Model:
    """Client-protocol 2.3 to 2.13, 2.17 and 2.18 as written, plus: a bookie just being replaced does not fail again,
    and entries that a partial replacement would leave without a chance are sent again.
    """

    def __init__(self, metadata: LedgerMetadata, rules: AddRules, start: int | None) -> None:
        self.rules = rules
        self.allows = True
        self.forced = -1 if start is None else start
        self.retrying: set[tuple[int, BookieId]] = set()
        self.attempts: dict[int, int] = {}
        self.size, self.write, self.ack = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        self.ensemble = metadata.last_ensemble
        self.state = metadata.state
        self.is_recovery = start is not None
        self.head = self.lap = -1 if start is None else start
        self.pending: list[Op] = []
        self.late: dict[int, BookieId] = {}
        self.replacing: dict[int, BookieId] = {}
        self.gone: list[BookieId] = []
        self.changing = False
        self.changes_left = rules.changes_max
        self.ended = False
        self.out: list[tuple[Any, ...]] = []

    def write_set(self, entry_id: int) -> list[int]:
        return [(entry_id + k) % self.size for k in range(self.write)]

    def complete(self, op: Op) -> bool:
        domains = {self.rules.domains.get(self.ensemble[i], "") for i in op.acks}
        return len(op.acks) >= self.ack and len(domains) >= min(self.rules.domains_min, self.write)

    @property
    def last_add_confirmed(self) -> int:
        return self.forced if self.rules.is_deferred_sync else self.head

    def deliver(self) -> None:
        while self.pending and not self.changing and self.is_next(self.pending[0]):
            self.head = self.pending.pop(0).id
            self.out.append(("confirmed", self.head))

    def is_next(self, op: Op) -> bool:
        return op.id == self.head + 1 and self.complete(op)

    def send(self, op: Op, position: int) -> None:
        op.failures.discard(position)
        self.out.append(("send", position, self.ensemble[position], op.id))

    def add(self, count: int) -> None:
        self.write_ids(list(range(self.lap + 1, self.lap + 1 + count)))

    def write_ids(self, ids: list[int]) -> None:
        new = [Op(entry_id) for entry_id in ids]
        self.lap = max(self.lap, *ids)
        self.pending = sorted([*self.pending, *new], key=lambda op: op.id)
        if self.late and self.allows:
            late, self.late = self.late, {}
            self.handle_failure(late)
        for op in new:
            if not self.ended:
                for position in self.write_set(op.id):
                    self.send(op, position)

    def ack_one(self, position: int, bookie: BookieId, ids: list[int]) -> None:
        if self.ensemble[position] == bookie:
            self.attempts.pop(position, None)
        for op in self.pending:
            if op.id in ids and self.ensemble[position] == bookie and not self.ended:
                op.acks.add(position)
        if not self.ended:
            self.deliver()

    def fail_one(self, position: int, bookie: BookieId, ids: list[int], error: errors.BookKeeperError) -> None:
        if self.ended or self.ensemble[position] != bookie:
            return
        incomplete = False
        for op in self.pending:
            if op.id in ids:
                op.failures.add(position)
                incomplete = incomplete or not self.complete(op)
        if incomplete and isinstance(error, FATAL):
            self.fatal(error)
        elif self.rules.is_deferred_sync:
            self.fatal(errors.WriteFailed())
        elif not self.allows and not self.is_recovery:
            if incomplete and (position, bookie) not in self.retrying:
                self.retrying.add((position, bookie))
                self.out.append(("retry", position, bookie, self.attempts.get(position, 0)))
                self.attempts[position] = self.attempts.get(position, 0) + 1
        elif self.rules.delays_changes:
            self.fail_delayed(ids, isinstance(error, errors.BookieReadOnly))
        elif self.changing:
            if self.replacing.get(position) != bookie:
                self.late[position] = bookie
        elif incomplete:
            self.handle_failure({position: bookie})
        else:
            self.late[position] = bookie

    def fail_delayed(self, ids: list[int], is_urgent: bool) -> None:
        failed: dict[int, BookieId] = {}
        for op in self.pending:
            bad = op.failures - op.acks
            if op.id in ids and not self.complete(op) and (is_urgent or len(bad) > self.write - self.ack):
                failed.update((i, self.ensemble[i]) for i in bad)
        if self.changing:
            self.late.update((i, b) for i, b in failed.items() if self.replacing.get(i) != b)
        elif failed:
            self.handle_failure(failed)

    def retry(self, position: int, bookie: BookieId) -> None:
        self.retrying.discard((position, bookie))
        if self.ended or self.changing or self.ensemble[position] != bookie:
            return
        if self.allows:
            self.handle_failure({position: bookie})
            return
        for op in self.pending:
            if position in op.failures - op.acks:
                self.send(op, position)

    def handle_failure(self, failed: dict[int, BookieId]) -> None:
        failed = {i: b for i, b in failed.items() if self.ensemble[i] == b}
        if self.changing:
            self.late.update(failed)
            return
        if not failed:
            self.deliver()
            return
        to_replace = self.late | failed
        self.late = {}
        self.gone = []
        self.change_loop(to_replace)

    def change_loop(self, to_replace: dict[int, BookieId]) -> None:
        if not self.is_recovery:
            self.changes_left -= 1
            if self.changes_left < 0:
                self.changing = False
                self.fatal(errors.WriteFailed())
                return
        self.changing = True
        self.replacing = to_replace
        self.out.append(("change", self.head + 1, tuple(sorted(to_replace.items())), sorted(self.gone)))
        self.gone += [bookie for bookie in to_replace.values() if bookie not in self.gone]

    def changed(self, state: LedgerState, ensemble: Ensemble) -> None:
        self.state = state
        if self.ended:
            self.changing = False
            return
        if not self.is_recovery and state is not LedgerState.OPEN:
            self.changing = False
            self.fatal(errors.LedgerClosed() if state is LedgerState.CLOSED else errors.LedgerFenced())
            return
        late, self.late = {i: b for i, b in self.late.items() if ensemble[i] == b}, {}
        if late and (self.allows or self.is_recovery):
            self.change_loop(late)
            return
        replaced = [i for i in range(self.size) if self.ensemble[i] != ensemble[i]]
        self.ensemble = ensemble
        to_send = []
        for op in self.pending:
            for i in replaced:
                if i in self.write_set(op.id):
                    op.acks.discard(i)
                    op.failures.discard(i)
                    to_send.append((op, i))
        self.changing = False
        self.replacing = {}
        for op, i in to_send:
            self.send(op, i)
        self.deliver()
        for op in self.pending:
            for i in sorted(op.failures - op.acks):
                self.send(op, i)

    def change_failed(self, error: errors.BookKeeperError) -> None:
        self.changing = False
        if not self.ended:
            self.fatal(error)

    def drain(self, error: errors.BookKeeperError) -> None:
        self.ended = True
        if self.pending:
            self.out.append(("failed", self.head + 1, self.lap, type(error)))
        self.pending = []
        self.lap = self.head

    def fatal(self, error: errors.BookKeeperError) -> None:
        self.drain(error)
        if not self.is_recovery and self.state is not LedgerState.IN_RECOVERY:
            self.out.append(("close", self.last_add_confirmed, True))

    def close(self) -> None:
        if not self.ended:
            self.drain(errors.LedgerClosed())
            self.out.append(("close", self.last_add_confirmed, False))

    def take(self) -> list[tuple[Any, ...]]:
        out, self.out = self.out, []
        return out


def flatten(effects: Effects) -> list[tuple[Any, ...]]:
    """Effects in the model's terms: one item per entry."""
    out: list[tuple[Any, ...]] = []
    for effect in effects:
        match effect:
            case Send(position, bookie, ids):
                assert list(ids) == sorted(set(ids))
                out += [("send", position, bookie, entry_id) for entry_id in ids]
            case Confirmed(first, last):
                out += [("confirmed", entry_id) for entry_id in range(first, last + 1)]
            case Failed(first, last, error):
                out.append(("failed", first, last, type(error)))
            case ChangeEnsemble(first, failed, excluded):
                out.append(("change", first, failed, sorted(excluded)))
            case RetryLater(position, bookie, attempt):
                out.append(("retry", position, bookie, attempt))
            case CloseLedger(last, is_implicit):
                out.append(("close", last, is_implicit))
    return out


def same(effects: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Order matters except among sends: those of one bookie are in order of ids anyway."""
    sends = sorted(effect for effect in effects if effect[0] == "send")
    return sends, [effect for effect in effects if effect[0] != "send"]


class World:
    """Bookies and metadata around one pipeline and its model."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        size, write, ack = self.random.choice(CONFIGURATIONS)
        ensemble = tuple(BookieId(f"b{n}") for n in range(size))
        self.is_recovery = self.random.random() < 0.3
        start = self.random.randrange(-1, 8) if self.is_recovery else None
        state = LedgerState.IN_RECOVERY if self.is_recovery else LedgerState.OPEN
        self.record = LedgerMetadata(7, size, write, ack, ((0, ensemble),), state=state)
        rules = AddRules(changes_max=self.random.choice((0, 2, 1000)))
        self.is_switched = False
        if not self.is_recovery:
            choice = self.random.random()
            self.is_switched = choice > 0.8
            rules = replace(
                rules,
                delays_changes=choice < 0.25,
                is_deferred_sync=0.25 < choice < 0.35,
                domains={BookieId(f"b{n}"): f"rack{n % 2}" for n in range(1000)} if 0.35 < choice < 0.5 else {},
                domains_min=2 if 0.35 < choice < 0.5 else 0,
            )
        self.is_advanced = not self.is_recovery and self.random.random() < 0.2
        self.written: set[int] = set()
        if self.is_advanced:
            self.pipeline: Observed = AdvancedPipeline(self.record, rules=rules)
        else:
            self.pipeline = Observed(self.record, rules=rules, recovery_start=start)
        self.model = Model(self.record, rules, start)
        self.retries: list[tuple[int, BookieId]] = []
        self.first = self.confirmed = -1 if start is None else start
        self.outstanding: list[tuple[int, BookieId, int]] = []  # position, bookie, id
        self.answered: dict[tuple[int, BookieId, int], None] = {}
        self.stored: set[tuple[BookieId, int]] = set()
        self.since = [0] * size  # by position: the first entry its present bookie was sent
        self.change: ChangeEnsemble | None = None
        self.fresh = size
        self.has_failed = False
        self.log: list[str] = []

    def step(self) -> None:
        choice = self.random.random()
        if self.change is not None and choice < 0.25:
            self.end_change()
        elif choice < 0.3 and self.pipeline.is_open and self.is_advanced:
            free = [e for e in range(self.model.head + 1, self.model.lap + 6) if e not in self.written]
            self.write(self.random.choice(free))
        elif choice < 0.3 and self.pipeline.is_open:
            count = self.random.randrange(1, 6)
            self.compare(f"add {count}", self.pipeline.add(count), lambda: self.model.add(count))
        elif choice < 0.75:
            self.answer(self.outstanding, is_failure=False)
        elif choice < 0.9:
            self.answer(self.outstanding, is_failure=True)
        elif choice < 0.95:
            self.answer(list(self.answered), is_failure=self.random.random() < 0.2)  # duplicates
        elif choice < 0.96 and self.retries:
            self.retry()
        elif choice < 0.97 and self.is_switched:
            self.model.allows = self.pipeline.allows_changes = not self.pipeline.allows_changes
        elif choice < 0.98 and self.model.rules.is_deferred_sync and self.pipeline.is_open:
            self.model.forced = self.model.head
            self.compare("force", self.pipeline.forced(self.model.head), lambda: None)
        elif choice < 0.985:
            self.compare("close", self.pipeline.close(), self.model.close)

    def write(self, entry_id: int) -> None:
        assert isinstance(self.pipeline, AdvancedAddPipeline)
        self.pipeline.check(entry_id)
        self.written.add(entry_id)
        self.compare(f"write {entry_id}", self.pipeline.write(entry_id), lambda: self.model.write_ids([entry_id]))
        for used in (entry_id, self.random.choice(sorted(self.written)), -1):
            with pytest.raises(errors.EntryExists):
                self.pipeline.check(used)

    def answer(self, among: list[tuple[int, BookieId, int]], *, is_failure: bool) -> None:
        if not among:
            return
        position, bookie, _ = self.random.choice(among)
        ids = sorted({e for p, b, e in among if (p, b) == (position, bookie)})
        if self.random.random() < 0.5:
            ids = ids[: self.random.randrange(1, len(ids) + 1)]
        else:
            ids = [e for e in ids if self.random.random() < 0.7] or ids[:1]
        for entry_id in ids:
            if among is self.outstanding:
                among.remove((position, bookie, entry_id))
                self.answered[position, bookie, entry_id] = None
        shaped: Any = range(ids[0], ids[-1] + 1) if len(ids) == ids[-1] - ids[0] + 1 else ids
        if not is_failure:
            self.stored.update((bookie, entry_id) for entry_id in ids)
            self.compare(
                f"ack {position}:{bookie} {ids}",
                self.pipeline.acknowledged(position, bookie, shaped),
                lambda: self.model.ack_one(position, bookie, ids),
            )
            return
        kind = self.random.choice(FATAL if self.random.random() < 0.03 else FAILURES)
        self.compare(
            f"fail {position}:{bookie} {ids} {kind.__name__}",
            self.pipeline.failed(position, bookie, shaped, kind()),
            lambda: self.model.fail_one(position, bookie, ids, kind()),
        )

    def retry(self) -> None:
        position, bookie = self.retries.pop(self.random.randrange(len(self.retries)))
        self.compare(
            f"retry {position}:{bookie}",
            self.pipeline.retry(position, bookie),
            lambda: self.model.retry(position, bookie),
        )

    def end_change(self) -> None:
        change, self.change = self.change, None
        assert change is not None
        choice = self.random.random()
        if choice < 0.05:
            error = self.random.choice((errors.NotEnoughBookies, errors.SessionExpired))()
            self.compare("change failed", self.pipeline.change_failed(error), lambda: self.model.change_failed(error))
            return
        if choice < 0.08 and not self.is_recovery:
            state = self.random.choice((LedgerState.CLOSED, LedgerState.IN_RECOVERY))
            self.record = self.record.replace(state=state)
            ensemble = self.record.last_ensemble
        else:
            state = self.record.state
            before = self.record.last_ensemble
            new = list(before)
            for number, (position, bookie) in enumerate(change.failed):
                if new[position] == bookie and (number == 0 or self.random.random() < 0.7):  # partially, sometimes
                    new[position] = self.replacement(new)
            ensemble = tuple(new)
            if ensemble != before:
                self.record = with_ensemble(self.record, change.first_entry_id, ensemble)
        if self.is_recovery:
            effects = self.pipeline.ensemble_chosen(ensemble)
        else:
            effects = self.pipeline.metadata_changed(self.record)
        self.compare(f"changed {state.name} {ensemble}", effects, lambda: self.model.changed(state, ensemble))

    def replacement(self, members: list[BookieId]) -> BookieId:
        """A bookie that never served, or one that once did."""
        if self.random.random() < 0.3:
            old = [BookieId(f"b{n}") for n in range(self.fresh)]
            old = [bookie for bookie in old if bookie not in members and bookie not in self.model.gone]
            if old:
                return self.random.choice(old)
        self.fresh += 1
        return BookieId(f"b{self.fresh - 1}")

    def compare(self, event: str, effects: Effects, in_model: Any) -> None:
        was_changing = self.model.changing
        before, head = self.model.ensemble, self.model.head
        in_model()
        for position, (old, new) in enumerate(zip(before, self.model.ensemble, strict=True)):
            if old != new:
                self.since[position] = head + 1
        got, expected = flatten(effects), self.model.take()
        self.log.append(f"{event} -> {got}")
        assert same(got) == same(expected)
        assert self.pipeline.head == self.model.head
        assert self.pipeline.last_add_confirmed == self.model.last_add_confirmed
        assert self.pipeline.last_add_pushed == self.model.lap
        assert self.pipeline.is_changing == self.model.changing
        for effect in got:
            if effect[0] == "send":
                self.outstanding.append(effect[1:])
                self.answered.pop(effect[1:], None)
            elif effect[0] == "retry":
                self.retries.append(effect[1:3])
            elif effect[0] == "change":
                assert self.change is None, "one change at a time"
                assert effect[1] == self.confirmed + 1, "I-8"
                self.change = next(each for each in effects if isinstance(each, ChangeEnsemble))
            elif effect[0] == "confirmed":
                assert effect[1] == self.confirmed + 1, "I-3"
                assert not self.has_failed, "I-3"
                assert not (was_changing and self.model.changing), "I-8"
                self.confirmed += 1
                self.check_provenance(effect[1])
            elif effect[0] == "failed":
                assert not self.has_failed, "I-19"
                assert effect[1] == self.confirmed + 1, "I-19"
                self.has_failed = True
        self.check_answered()

    def check_provenance(self, entry_id: int) -> None:
        """I-9, from the record alone: its fragment's bookies at the write set, and what was really acknowledged."""
        ensemble = self.record.ensemble_at(entry_id)
        positions = write_set(entry_id, self.record.ensemble_size, self.record.write_quorum)
        holders = sum((ensemble[position], entry_id) in self.stored for position in positions)
        assert holders >= self.record.ack_quorum, "I-9"

    def check_answered(self) -> None:
        """Bytes are released only when no bookie still in place owes an answer, and nothing pending needs them."""
        bound = self.pipeline.answered_bound
        # A bookie that came back to its old position may still owe answers from its first time there.
        owed = [
            entry_id
            for position, bookie, entry_id in self.outstanding
            if self.pipeline.ensemble[position] == bookie
            and entry_id >= self.since[position]
            and (position, bookie, entry_id) not in self.answered
        ]
        assert all(entry_id >= bound for entry_id in owed)
        if self.pipeline.is_open:
            assert bound <= self.pipeline.head + 1

    def finish(self) -> None:
        """Heal: every bookie answers, every change succeeds. Then everything has an outcome and no bytes are held."""
        holes = [e for e in range(self.model.lap) if self.is_advanced and e not in self.written]
        for _ in range(1000):
            if holes and self.pipeline.is_open:
                self.write(holes.pop())
            elif self.change is not None:
                self.end_change()
            elif self.outstanding:
                self.answer(self.outstanding, is_failure=False)
            elif self.retries:
                self.retry()
            else:
                break
        if not self.pipeline.is_open or not self.model.rules.domains_min:  # an ensemble may span too few domains
            assert not self.pipeline.has_undelivered, "nothing is stranded"
            assert self.pipeline.answered_bound == self.pipeline._sent_bound
        self.compare("close", self.pipeline.close(), self.model.close)


@pytest.mark.parametrize("block", range(4))
def test_pipeline_agrees_with_the_model(block: int) -> None:
    taken: set[tuple[AddState, AddEvent]] = set()
    for seed in range(block * 200, (block + 1) * 200):
        world = World(seed)
        try:
            for _ in range(world.random.randrange(5, 80)):
                world.step()
            world.finish()
        except AssertionError as error:
            error.add_note(f"seed {seed}, {world.record!r}\n" + "\n".join(world.log))
            raise
        taken.update(world.pipeline.taken)
    assert taken == set(TRANSITIONS), "random events take every row of the table, and no pair that it lacks"
