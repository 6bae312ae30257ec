"""Transactions on logs: once, all or nothing, whatever goes wrong at whatever step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.client.log import Log, transaction
from bookies.client.log.transaction import abort, commit
from bookies.client.log.transaction_writer import PartWriter, open_part
from bookies.config import ClientConfig
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerClosed,
    LogError,
    LogFenced,
    LogInUse,
    LogNotFound,
    MetadataError,
    TransactionRefused,
)
from bookies.metadata.embedded import MemoryDriver
from bookies.protocol.log.log_model import Written
from bookies.protocol.log.transaction import Origin, Transaction

Act = Callable[[World, Client, Log], Awaitable[None]]
OPERATIONS = ("read_record", "read_ledger", "transact")  # what a commit and an abort ask of the store


def with_log(act: Act) -> None:
    async def main(world: World) -> None:
        client = await world.client(add_timeout_ms=300, read_timeout_ms=300, connect_timeout_ms=1_000)
        log = client.log("orders")
        await log.create()
        await act(world, client, log)

    play(main)


async def payloads(log: Log) -> list[bytes]:
    async with log.open() as reader:
        return [entry.payload async for entry in reader.read()]


async def ledgers(client: Client) -> list[int]:
    return [each.ledger_id async for each in client.ledgers()]


async def written(
    client: Client, version: int, *batches: list[bytes], app: str = "app", query: str = "q"
) -> Transaction:
    """A transaction with a ledger for each batch, not committed yet."""
    parts = []
    for partition, batch in enumerate(batches):
        part = await begin(client, Origin(app, version, query, partition, "1"))
        await part.append_many(batch)
        parts.append((await part.finish(), part.token))
    ids = tuple(each for finished, _ in parts for each in finished)
    return Transaction(app, version, query, {"orders": ids}, {"orders": parts[0][1] if parts else ""})


async def begin(client: Client, origin: Origin) -> PartWriter:
    return await open_part(client.transactions(), "orders", origin)


# -- by one process ------------------------------------------------------------------------------------------------


def test_a_block_is_in_the_log_as_a_whole_and_once() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        for expected in (False, True):
            async with log.transaction("loader", 7, ledger_size=10) as txn:
                await txn.append(b"one")
                await txn.append_many([b"two", b"three", b"four"])
                assert await payloads(log) == ([b"one", b"two", b"three", b"four"] if expected else [])
            assert txn.was_committed_before is expected
        assert await payloads(log) == [b"one", b"two", b"three", b"four"]
        assert await ledgers(client) == (await log.manifest()).ledger_ids
        with pytest.raises(LedgerClosed):
            await txn.append(b"too late")
        with pytest.raises(InvalidArgument):
            log.transaction("", 0)

    with_log(act)


def test_a_block_that_fails_leaves_nothing() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async def fail() -> None:
            async with log.transaction("loader", 7) as txn:
                await txn.append(b"one")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await payloads(log) == []
        assert await ledgers(client) == []
        with pytest.raises(LogNotFound):
            await client.log("nowhere").transaction("loader", 1).__aenter__()

    with_log(act)


def test_replacing_deletes_what_was_there() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        for version, values in enumerate([[b"a", b"b"], [b"c"], []]):
            async with log.transaction("loader", version, is_replacing=True) as txn:
                await txn.append_many(values)
            assert await payloads(log) == values
            assert await ledgers(client) == (await log.manifest()).ledger_ids

    with_log(act)


def test_a_transaction_has_the_password_of_its_log() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        async def add(log: Log, version: int, *, is_replacing: bool = False) -> None:
            async with log.transaction("loader", version, is_replacing=is_replacing) as txn:
                await txn.append(b"%d" % version)

        secret = client.log("orders", password=b"s3cret")
        await add(secret, 1)
        with pytest.raises(TransactionRefused, match="its password is not the one of the log's other ledgers"):
            await add(log, 2)
        await add(secret, 3)
        assert await payloads(secret) == [b"1", b"3"]
        await add(log, 4, is_replacing=True)
        assert await payloads(log) == [b"4"]

    with_log(act)


# -- beside a leader -----------------------------------------------------------------------------------------------


def test_a_leader_keeps_transactions_out_until_it_has_closed() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"led")
        txn = await written(client, 0, [b"late"])
        with pytest.raises(LogInUse, match="the last one of log orders, is being written by a leader"):
            await commit(client.transactions(), txn)
        await writer.close()
        assert await commit(client.transactions(), txn)
        async with log.lead() as writer:
            await writer.append(b"led again")
        assert await payloads(log) == [b"led", b"late", b"led again"]

    with_log(act)


def test_fencing_ends_the_leader_who_notices_at_the_next_append() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"led")
        assert await commit(client.transactions(), await written(client, 0, [b"txn"]), on_open_tail="fence")
        with pytest.raises(LogFenced):
            await writer.append(b"too late")
        await writer.abandon()
        assert await payloads(log) == [b"led", b"txn"]

    with_log(act)


def test_a_leader_who_has_nothing_to_append_notices_at_the_next_roll() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        assert await commit(client.transactions(), await written(client, 0, [b"txn"]), on_open_tail="fence")
        with pytest.raises(LogFenced):
            await writer.roll()
        await writer.abandon()
        assert await payloads(log) == [b"txn"]

    with_log(act)


def test_a_leader_who_left_its_ledger_closed_but_not_noted_is_in_nobodys_way() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        writer = await log.lead()
        await writer.append(b"led")
        await writer.abandon()
        [ledger_id] = (await log.manifest()).open_ledgers
        await (await client.recover(ledger_id)).close()
        assert await commit(client.transactions(), await written(client, 0, [b"txn"]))
        assert await payloads(log) == [b"led", b"txn"]

    with_log(act)


# -- several logs, several processes -------------------------------------------------------------------------------


def test_two_logs_get_their_ledgers_at_one_moment() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        other = client.log("other")
        await other.create()
        parts = client.transactions()
        ids, tokens = {}, {}
        for name in ("orders", "other"):
            part = await open_part(parts, name, Origin("app", 1, "q", 0, "1"))
            await part.append_many([name.encode()])
            ids[name], tokens[name] = await part.finish(), part.token
        txn = Transaction("app", 1, "q", ids, tokens)
        writer = await other.lead()
        with pytest.raises(LogInUse):
            await commit(parts, txn)
        assert await payloads(log) == []
        await writer.close()
        assert await commit(parts, txn)
        assert not await commit(parts, txn)
        assert (await payloads(log), await payloads(other)) == ([b"orders"], [b"other"])

    with_log(act)


def test_many_committers_at_once() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        txns = [await written(client, 0, [b"%d" % number], app=f"app{number}") for number in range(12)]
        assert all(await asyncio.gather(*[commit(client.transactions(), txn) for txn in txns]))
        assert sorted(await payloads(log)) == sorted(b"%d" % number for number in range(12))

    with_log(act)


def test_what_cannot_be_committed_is_refused() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        parts = client.transactions()
        assert await commit(parts, await written(client, 4, [b"x"]))
        with pytest.raises(TransactionRefused, match="choose another txnAppId"):
            await commit(parts, await written(client, 0, [b"y"], query="new checkpoint"))
        txn = await written(client, 5, [b"a"], [b"b"])
        await client.delete(txn.ledger_ids[1])
        with pytest.raises(TransactionRefused, match="gave the transaction up"):
            await commit(parts, txn)
        with pytest.raises(InvalidArgument):
            await commit(parts, txn, on_open_tail="maybe")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument):
            await commit(parts, Transaction("app", 9, "q", {}, {}))
        stale = await written(client, 6, [b"a"])
        await log.delete()
        with pytest.raises(LogNotFound):
            await commit(parts, stale)
        await log.create()
        with pytest.raises(TransactionRefused, match="deleted and recreated"):
            await commit(parts, stale)
        unsealed = await begin(client, Origin("app", 7, "q", 0, "1"))
        await unsealed.append_many([b"a"])
        [ledger_id] = [each.ledger_id async for each in client.ledgers(("sink.version", "7"))]
        open_txn = Transaction("app", 7, "q", {"orders": (Written(ledger_id, 0, 1),)}, {"orders": unsealed.token})
        with pytest.raises(LogError, match="conflicts in a row"):
            await commit(parts, open_txn, conflicts_max=5)
        with pytest.raises(LogError, match="may or may not be in log orders"):
            await commit(parts, open_txn, timeout=3)
        await unsealed.discard()
        assert await payloads(log) == []

    with_log(act)


def test_an_abort_after_a_commit_deletes_nothing_and_before_it_everything() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        parts = client.transactions()
        txn = await written(client, 0, [b"a"], [b"b"])
        assert await commit(parts, txn)
        assert await abort(parts, txn)
        assert await payloads(log) == [b"a", b"b"]
        other = await written(client, 1, [b"c"])
        assert await abort(parts, other)
        assert await ledgers(client) == txn.ledger_ids
        with pytest.raises(TransactionRefused):
            await commit(parts, other)

    with_log(act)


# -- the reaper ----------------------------------------------------------------------------------------------------


def test_the_reaper_deletes_what_nobody_will_commit() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        parts = client.transactions()
        txn = await written(client, 1, [b"a"])
        lost = await written(client, 1, [b"a"])
        assert await commit(parts, txn)
        pending = await written(client, 2, [b"b"])
        dead = await begin(client, Origin("app", 1, "q", 0, "zombie"))
        await dead.append_many([b"z"])

        async def outcomes(**options: float | bool | str) -> list[str]:
            return [each.outcome async for each in log.reap(**options)]  # type: ignore[arg-type]

        assert await outcomes() == ["young"] * 3
        await asyncio.sleep(30)
        assert await outcomes(dry_run=True, replay_grace=20) == ["garbage", "young", "garbage"]
        assert await outcomes(app="nobody", replay_grace=20) == []
        assert await outcomes(app="app", replay_grace=20) == ["deleted", "young", "deleted"]
        assert await ledgers(client) == [*txn.ledger_ids, *pending.ledger_ids]
        assert lost.ledger_ids[0] not in await ledgers(client)
        await dead.append_many([b"the zombie goes on"])
        with pytest.raises(BookKeeperError):
            await dead.finish()  # It was fenced.
        assert await outcomes(orphan_grace=20) == ["deleted"]
        with pytest.raises(TransactionRefused):
            await commit(parts, pending)
        assert await payloads(log) == [b"a"]

    with_log(act)


# -- every step fails in every way ---------------------------------------------------------------------------------


class FailAt:
    """The way to the store: call number `at` fails before its effect, or after it, or meets a change."""

    def __init__(self, kind: str, at: int, act: Callable[[], Awaitable[None]] | None = None) -> None:
        self.kind = kind
        self.at = at
        self.count = 0
        self.was_hit = False
        self._act = act

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        if operation not in OPERATIONS:
            return
        self.count += 1
        if self.count != self.at:
            return
        self.was_hit = True
        if self.kind == "lost request":
            raise MetadataError("the connection broke")
        if self.kind == "crash before":
            raise asyncio.CancelledError
        if self.kind == "conflict" and self._act is not None:
            await self._act()

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        if self.count != self.at or operation not in OPERATIONS:
            return
        if self.kind == "lost reply":
            raise MetadataError("the connection broke")
        if self.kind == "crash after":
            raise asyncio.CancelledError


async def failing_client(world: World, faults: FailAt) -> Client:
    runtime = world.runtime("victim")
    driver = MemoryDriver(world.store, runtime)
    client = Client(runtime, driver, ClientConfig(add_timeout_ms=300))
    await client.open_session()
    driver._faults = faults
    return client


@pytest.mark.parametrize("kind", ["lost request", "lost reply", "crash before", "crash after", "conflict"])
@pytest.mark.parametrize("others", ["nobody", "repetition", "abort"])
def test_a_failure_at_any_step_of_a_commit(kind: str, others: str) -> None:
    """Whatever is lost, the batch is in the log once after a repetition with new ledgers, and nothing else is there."""

    def trial(at: int) -> bool:
        faults = FailAt(kind, at)

        async def act(world: World, client: Client, log: Log) -> None:
            parts = client.transactions()
            assert await commit(parts, await written(client, 0, [b"first"]))
            txn = await written(client, 1, [b"a"], [b"b"])
            rival = await written(client, 1, [b"a", b"b"])

            async def meanwhile() -> None:
                if others == "repetition":
                    await commit(parts, rival)
                elif others == "abort":
                    await abort(parts, txn)
                else:
                    await commit(parts, await written(client, 0, [b"other"], app="other"))

            faults._act = meanwhile
            victim = await failing_client(world, faults)
            try:
                await commit(victim.transactions(), txn)
            except (asyncio.CancelledError, TransactionRefused):
                pass
            if others == "abort" and kind != "conflict":
                await abort(parts, txn)
            await commit(parts, rival)
            await victim.close()
            assert await abort(parts, txn)
            found = await payloads(log)
            assert [each for each in found if each != b"other"] == [b"first", b"a", b"b"]
            listed = (await log.manifest()).ledger_ids
            assert sorted(listed) == await ledgers(client)

        with_log(act)
        return faults.was_hit

    at = 1
    while trial(at):
        at += 1
    assert at > 4


@pytest.mark.parametrize("kind", ["lost request", "lost reply", "crash before", "crash after", "conflict"])
def test_a_failure_at_any_step_of_an_abort(kind: str) -> None:
    """The commit that comes in between wins, or is refused; no list names what is not there."""

    def trial(at: int) -> bool:
        faults = FailAt(kind, at)

        async def act(world: World, client: Client, log: Log) -> None:
            parts = client.transactions()
            txn = await written(client, 1, [b"a"], [b"b"])

            async def meanwhile() -> None:
                await commit(parts, txn)

            faults._act = meanwhile
            victim = await failing_client(world, faults)
            is_committed = False
            try:
                await abort(victim.transactions(), txn)
                is_committed = await commit(parts, txn) or True
            except asyncio.CancelledError:
                is_committed = False
            except TransactionRefused:
                assert await payloads(log) == []
            await victim.close()
            found = await payloads(log)
            assert found in ([], [b"a", b"b"])
            assert found or not is_committed

        with_log(act)
        return faults.was_hit

    at = 1
    while trial(at):
        at += 1
    assert at > 3


def test_without_the_check_of_the_ledgers_a_list_names_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would notice."""

    async def unchecked(self: object, found: object) -> list[object]:
        return []

    monkeypatch.setattr(transaction._Commit, "_checked_ledgers", unchecked)
    with pytest.raises((AssertionError, BookKeeperError)):
        test_a_failure_at_any_step_of_a_commit("conflict", "abort")


def test_without_the_check_of_the_list_an_abort_deletes_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unchecked(driver: MemoryDriver, log: str, version: int, ledgers: dict[int, int]) -> None:
        for ledger_id in ledgers:
            await driver.delete_ledger(ledger_id)

    monkeypatch.setattr(transaction, "_delete_at", unchecked)
    with pytest.raises((AssertionError, BookKeeperError)):
        test_a_failure_at_any_step_of_an_abort("conflict")
