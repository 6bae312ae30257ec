"""The rows of the matrix: what one client writes, the others read. Each takes a `Stage` and the name of the writer.

A cell raises AssertionError when something is not as it should be, and `NotThere` when one side does not have it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from tests.interop.processes import Bookie, Client, Failed, wait_until

from bookies.errors import Status

CLIENTS = ("ours-v2", "ours-v3", "java-v2", "java-v3")
SIZES = [0, 1, 17, 100, 333, 1024, 100, 4096, 10, 700, 100, 20_000, 250]
APPENDS = 10_000
ENTRIES = 200
# Apache's says "closed" of what was appended after it had heard of the fence, perhaps before "fenced" of the others.
FENCED = ("LedgerFenced", "BKLedgerFencedException", "BKLedgerClosedException")
UNAUTHORIZED = ("Unauthorized", "BKUnauthorizedAccessException")
NO_LEDGER = ("LedgerNotFound", "BKNoSuchLedgerExistsException", "BKNoSuchLedgerExistsOnMetadataServerException")
_ids = itertools.count(random.SystemRandom().randrange(1 << 20))


class NotThere(Exception):
    """One side does not have this; why."""


class User:
    """A client of one cluster in one version of the wire protocol."""

    def __init__(self, name: str, client: Client, uri: str) -> None:
        self.name, self.client, self.uri = name, client, uri
        self.wire = name.rpartition("-")[2]

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("ours")

    @property
    def speaks_v3(self) -> bool:
        """Ours asks in v3 whatever v2 has not; Apache's does not."""
        return self.is_ours or self.wire == "v3"

    def start(self, do: str, **arguments: Any) -> Future[dict[str, Any]]:
        return self.client.start(do, uri=self.uri, wire=self.wire, sizes=SIZES, **arguments)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        return self.client.ask(do, uri=self.uri, wire=self.wire, sizes=SIZES, **arguments)


@dataclass
class Stage:
    """One cluster. `kind`: "ours", "java" or "mixed"; `quorums`: ensemble, write quorum, ack quorum of its ledgers."""

    layout: str
    version: str
    kind: str
    uri: str
    users: dict[str, User]
    bookies: dict[str, Bookie]
    quorums: tuple[int, int, int]
    new_client: Callable[[str], Client]
    turn: int = 0

    def others(self, writer: str) -> list[User]:
        """The clients of the other kind."""
        is_ours = self.users[writer].is_ours
        return [each for each in self.users.values() if each.is_ours != is_ours]

    def wait_writable(self) -> None:
        """Until all bookies are registered, and every client has seen it."""
        everybody = dict.fromkeys(self.bookies, "writable")

        def is_whole() -> bool:
            answer = self.users["ours-v2"].ask("bookies")
            return all(answer.get(name) == mode for name, mode in everybody.items())

        wait_until(is_whole, f"{', '.join(everybody)} are writable")

    def create(self, user: User, **arguments: Any) -> Handle:
        ensemble, write_quorum, ack_quorum = self.quorums
        quorums = {"ensemble": ensemble, "write_quorum": write_quorum, "ack_quorum": ack_quorum}
        made = user.ask("create", **(quorums | arguments))
        return Handle(user, made["handle"], made["ledger"])


@dataclass(frozen=True)
class Handle:
    """An open ledger of a writer."""

    user: User
    number: int
    ledger: int

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        return self.user.ask(do, handle=self.number, **arguments)

    def append(self, count: int, **arguments: Any) -> dict[str, Any]:
        answer = self.ask("append", count=count, **arguments)
        assert answer["failure"] == "", f"the writer failed: {answer}"
        return answer

    def append_for_ever(self, **arguments: Any) -> Future[dict[str, Any]]:
        return self.user.start("append", handle=self.number, count=10**9, **arguments)

    def confirmed(self) -> int:
        confirmed: int = self.ask("progress")["confirmed"]
        return confirmed

    def wait_confirmed(self, entry: int) -> None:
        wait_until(lambda: self._has_confirmed(entry), f"entry {entry} of ledger {self.ledger} is confirmed")

    def _has_confirmed(self, entry: int) -> bool:
        """A writer that has failed would be waited for in vain."""
        progress = self.ask("progress")
        assert progress["failure"] == "", f"the writer has failed: {progress}"
        return bool(progress["confirmed"] >= entry)

    def close(self) -> int:
        confirmed: int = self.ask("close")["confirmed"]
        return confirmed


@contextlib.contextmanager
def failing(names: tuple[str, ...]) -> Iterator[None]:
    """The block raises `Failed` with one of these names."""
    try:
        yield
    except Failed as error:
        if error.name in names:
            return
        raise
    raise AssertionError(f"no error instead of {' or '.join(names)}")


def check_read(
    user: User,
    ledger: int,
    count: int,
    *,
    is_sealed: bool = True,
    is_in_order: bool = True,
    recoverer: User | None = None,
    **arguments: Any,
) -> None:
    """All entries are there, as they were written, and the ledger ends with them.

    `is_in_order`: whether they were written so; otherwise the last one does not know how long the ledger is.
    `recoverer`: who ended the ledger; Apache's recovery may count entries twice in its length (client-protocol D-10).
    """
    answer = user.ask("read", ledger=ledger, **arguments)
    length = sum(SIZES[entry % len(SIZES)] for entry in range(count))
    if not is_in_order:
        answer["entry_length"] = length
    if recoverer is not None and not recoverer.is_ours:
        answer["length"] = min(answer["length"], length)
    found = (answer["count"], answer["good"], answer["sealed"], answer["lac"], answer["length"], answer["entry_length"])
    assert found == (count, count, is_sealed, count - 1, length, length), f"{user.name} reads {answer}, not {count}"


def append(stage: Stage, writer: str) -> None:
    """10,000 entries of 0 to 20,000 bytes; every client reads them, and sees the same record."""
    ledger = stage.create(stage.users[writer], labels={"a": "1", "äh": "ö"})
    ledger.append(APPENDS)
    ledger.close()
    records = [user.ask("metadata", ledger=ledger.ledger) | {"id": 0} for user in stage.users.values()]
    assert all(each == records[0] for each in records), records
    assert records[0]["state"] == "CLOSED"
    assert records[0]["last"] == APPENDS - 1
    for user in stage.users.values():
        check_read(user, ledger.ledger, APPENDS)


def tail(stage: Stage, writer: str) -> None:
    """All others follow while it writes."""
    ledger = stage.create(stage.users[writer])
    ledger.append(1)
    followers = [user.start("tail", ledger=ledger.ledger, until=ENTRIES - 2) for user in stage.others(writer)]
    ledger.append(ENTRIES - 2, pause_ms=2, window=10)
    ledger.append(1)  # alone, so that it says that all before it are confirmed
    for follower in followers:
        answer = follower.result(60)
        assert answer["count"] == answer["good"] >= ENTRIES - 1, answer
    ledger.close()


def long_poll(stage: Stage, writer: str) -> None:
    """A reader waits at the bookies for an entry that comes later."""
    ledger = stage.create(stage.users[writer])
    ledger.append(1)
    entry = 0
    for user in stage.others(writer):
        if not user.speaks_v3:
            continue
        for parallel in (False, True):
            ledger.append(1)
            entry += 1
            waiting = user.start("long_poll", ledger=ledger.ledger, entry=entry, wait_ms=20_000, parallel=parallel)
            ledger.append(1, pause_ms=200)  # which says that the one before is confirmed
            entry += 1
            answer = waiting.result(30)
            assert answer["found"], answer
            assert answer["good"], answer
            assert answer["lac"] >= entry - 1, answer
    ledger.close()


def batch_read(stage: Stage, writer: str) -> None:
    """Many entries a request; a bound in entries and in bytes."""
    ledger = stage.create(stage.users[writer])
    ledger.append(1000)
    ledger.close()
    for user in stage.others(writer):
        if not user.is_ours and (stage.version < "4.17" or user.wire == "v3"):
            continue  # Apache's client has it since 4.17, in v2 only.
        for count_max, size_max in ((100, 1 << 20), (1000, 10_000)):
            answer = user.ask("batch_read", ledger=ledger.ledger, count_max=count_max, size_max=size_max)
            assert answer["count"] == answer["good"] == 1000, answer
    if stage.version < "4.17" and stage.users[writer].is_ours:
        raise NotThere("Apache's client has batch reads since 4.17")


def explicit_lac(stage: Stage, writer: str) -> None:
    """An idle writer tells its last entry."""
    user = stage.users[writer]
    if not user.speaks_v3:
        raise NotThere("Apache's v2 has none")
    ledger = stage.create(user)
    ledger.append(5)
    readers = [each for each in stage.others(writer) if each.speaks_v3]
    for reader in readers:

        def knows(reader: User = reader) -> bool:
            answer = reader.ask("lac", ledger=ledger.ledger, explicit=True)
            return bool(max(answer["read"], answer["explicit"]) == 4)

        wait_until(knows, f"{reader.name} learns the last entry", 20)
    ledger.close()


def deferred_sync(stage: Stage, writer: str) -> None:
    """Nothing is confirmed before `force`."""
    user = stage.users[writer]
    if not user.speaks_v3:
        raise NotThere("Apache's v2 has none")
    ledger = stage.create(user, deferred_sync=True)
    answer = ledger.append(50)
    assert answer["lac"] == -1, answer
    assert ledger.ask("force")["lac"] == 49
    ledger.append(10)
    assert ledger.ask("force")["lac"] == 59
    ledger.close()
    for reader in stage.users.values():
        check_read(reader, ledger.ledger, 60)


def advanced(stage: Stage, writer: str) -> None:
    """Ids of the writer's choice, of entries and of the ledger."""
    ids = list(range(ENTRIES))
    random.Random(7).shuffle(ids)
    large = [2**31 - 1 - next(_ids)] + ([2**40 + next(_ids)] if stage.layout != "flat" else [])
    for chosen in ({"advanced": True}, *({"ledger": each} for each in large)):
        ledger = stage.create(stage.users[writer], **chosen)
        assert ledger.ledger == chosen.get("ledger", ledger.ledger)
        ledger.ask("write", ids=ids)
        ledger.close()
        for reader in stage.others(writer):
            check_read(reader, ledger.ledger, ENTRIES, is_in_order=False)
            with failing(("LedgerExists", "BKLedgerExistException")):
                stage.create(reader, ledger=ledger.ledger)


def digests(stage: Stage, writer: str) -> None:
    """Each type of digest, with a password."""
    for digest in ("crc32c", "crc32", "hmac", "none"):
        ledger = stage.create(stage.users[writer], digest=digest, password="geheim")
        ledger.append(ENTRIES)
        ledger.close()
        for reader in stage.users.values():
            check_read(reader, ledger.ledger, ENTRIES, digest=digest, password="geheim")


def password(stage: Stage, writer: str) -> None:
    """A wrong one opens and fences nothing."""
    ledger = stage.create(stage.users[writer], password="right")
    ledger.append(10)
    for reader in stage.others(writer):
        for do in ("read", "recover"):
            with failing(UNAUTHORIZED):
                reader.ask(do, ledger=ledger.ledger, password="wrong")
    ledger.append(10)
    ledger.close()
    for reader in stage.others(writer):
        check_read(reader, ledger.ledger, 20, password="right")


def empty(stage: Stage, writer: str) -> None:
    """A ledger without entries; one whose writer never wrote is recovered to nothing."""
    ledger, abandoned = stage.create(stage.users[writer]), stage.create(stage.users[writer])
    ledger.close()
    for reader in stage.others(writer):
        check_read(reader, ledger.ledger, 0)
        answer = reader.ask("recover", ledger=abandoned.ledger)
        assert (answer["lac"], answer["length"], answer["sealed"]) == (-1, 0, True), answer


def delete(stage: Stage, writer: str) -> None:
    """Listed by all, then deleted by another client, then listed and opened by nobody."""
    for deleter in stage.others(writer):
        ledger = stage.create(stage.users[writer])
        ledger.append(10)
        ledger.close()
        assert all(ledger.ledger in user.ask("list")["ledgers"] for user in stage.users.values())
        deleter.ask("delete", ledger=ledger.ledger)
        for user in stage.users.values():
            assert ledger.ledger not in user.ask("list")["ledgers"], user.name
            with failing(NO_LEDGER):
                user.ask("read", ledger=ledger.ledger)


def fencing(stage: Stage, writer: str) -> None:
    """Another client ends a ledger that is being written: nothing confirmed is lost, nothing is confirmed after."""
    others = stage.others(writer)
    recoverer = others[stage.turn % len(others)]
    ledger = stage.create(stage.users[writer], password="p")
    appending = ledger.append_for_ever(window=50)
    ledger.wait_confirmed(ENTRIES)
    answer = recoverer.ask("recover", ledger=ledger.ledger, password="p")
    ended = appending.result(60)
    assert ended["failure"] in FENCED, ended
    assert answer["sealed"], answer
    assert answer["lac"] >= ended["confirmed"], (answer, ended)
    for user in stage.users.values():
        check_read(user, ledger.ledger, answer["lac"] + 1, recoverer=recoverer, password="p")


def recovery(stage: Stage, writer: str) -> None:
    """The writer's process is killed; another client recovers the ledger."""
    others = stage.others(writer)
    recoverer = others[stage.turn % len(others)]
    client = stage.new_client(writer)
    try:
        ledger = stage.create(User(writer, client, stage.uri))
        appending = ledger.append_for_ever(window=50)
        ledger.wait_confirmed(ENTRIES)
        confirmed = ledger.confirmed()
    finally:
        client.kill()
    with failing(("Ended",)):
        appending.result(60)
    answer = recoverer.ask("recover", ledger=ledger.ledger)
    assert answer["sealed"], answer
    assert answer["lac"] >= confirmed, (answer, confirmed)
    for user in stage.users.values():
        check_read(user, ledger.ledger, answer["lac"] + 1, recoverer=recoverer)


def ensemble_change(stage: Stage, writer: str) -> None:
    """A bookie is killed while a ledger is written to it: the writer goes on with another one."""
    user = stage.users[writer]
    for kind in sorted({each.kind for each in stage.bookies.values()}):
        ledger = stage.create(user)
        before = user.ask("metadata", ledger=ledger.ledger)["fragments"]["0"]
        victim = next(stage.bookies[name] for name in before if stage.bookies[name].kind == kind)
        appending = ledger.append_for_ever(window=20, pause_ms=1)
        ledger.wait_confirmed(ENTRIES)
        victim.kill()
        try:
            wait_until(
                lambda ledger=ledger: len(user.ask("metadata", ledger=ledger.ledger)["fragments"]) > 1,
                f"bookie {victim.name} is replaced",
            )
            ledger.wait_confirmed(ledger.confirmed() + ENTRIES)
            ledger.ask("stop")
            ended = appending.result(60)
            assert ended["failure"] == "", ended
            last = ledger.close()
            after = list(user.ask("metadata", ledger=ledger.ledger)["fragments"].values())[-1]
            assert victim.name not in after, after
            for each in stage.users.values():
                check_read(each, ledger.ledger, last + 1)
        finally:
            victim.start()
        stage.wait_writable()


def collection(stage: Stage, writer: str) -> None:
    """What another client deletes goes from the bookies, of either kind; what it does not stays."""
    others = stage.others(writer)
    deleter = others[stage.turn % len(others)]
    ours = stage.users["ours-v2"]
    doomed, kept = stage.create(stage.users[writer]), stage.create(stage.users[writer])
    for ledger in (doomed, kept):
        ledger.append(ENTRIES)
        ledger.close()
    ensemble = [stage.bookies[name] for name in ours.ask("metadata", ledger=doomed.ledger)["fragments"]["0"]]
    assert any(each.read(doomed.ledger, 0) is Status.OK for each in ensemble)
    deleter.ask("delete", ledger=doomed.ledger)
    # Not by its list of entries: Apache's lists what it has in memory, deleted or not.
    for bookie in ensemble:
        wait_until(
            lambda bookie=bookie: bookie.read(doomed.ledger, 0) is Status.NO_LEDGER,
            f"bookie {bookie.name} has dropped ledger {doomed.ledger}",
            60,
        )
    for user in stage.users.values():
        check_read(user, kept.ledger, ENTRIES)


QUIET = (append, tail, long_poll, batch_read, explicit_lac, deferred_sync, advanced, digests, password, empty, delete)
KILLS = (fencing, recovery, ensemble_change, collection)
