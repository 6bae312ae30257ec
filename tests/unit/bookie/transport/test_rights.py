"""Rights and rates of users at one bookie, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn

import pytest
from tests.unit.bookie.conftest import KEY, RawClient, World, adds

from bookies.bookie.server import BookieServer
from bookies.bookie.transport.rights import HELD_REQUESTS_MAX, HELD_SIZE_MAX, LABELS_S, REFUSED_MAX
from bookies.client.client import Client
from bookies.config import ClientConfig
from bookies.errors import BookKeeperError, MetadataError, Status, Unauthorized
from bookies.metadata.embedded import MemoryDriver
from bookies.model import DigestType
from bookies.wire import digest
from bookies.wire.messages import (
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    ForceLedgerRequest,
    GetBookieInfoRequest,
    GetBookieInfoResponse,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    Request,
    WriteLacRequest,
)
from bookies.wire.sasl.mechanisms import SCRAM, sasl_client
from bookies.wire.sasl.scram import verifier_of

ADMIN, APP, PEER = (verifier_of(name, b"salt-" + name.encode()).text for name in ("admin", "app", "peer"))
USERS = f"admin administrator {ADMIN}\npeer writer {PEER}\n"
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
READS, WRITES = ("read", "batch read", "read LAC", "list"), ("add", "write LAC", "force", "fence")


def app_with(*lines: str, role: str = "none") -> bytes:
    return (USERS + "".join(f"app {line}\n" for line in (f"{role} {APP}", *lines))).encode()


async def start(world: World, users: bytes, **settings: Any) -> BookieServer:
    world.disk.replace_bytes("/users", users)
    return await world.start(authentication="sasl", users_file="/users", **settings)


async def sign_in(world: World, server: BookieServer, user: str = "app", version: int = 3) -> RawClient:
    client = await world.connect(server)
    steps = sasl_client(SCRAM, user, user, "cnonce")
    message: bytes | None = steps.first()
    while message is not None:
        answer = await client.ask(AuthRequest(version, 1, "sasl", message))
        assert isinstance(answer, AuthResponse), answer
        message = steps.respond(answer.payload)
    return client


async def new_client(world: World, user: str = "admin") -> Client:
    world.disk.replace_bytes(
        f"/{user}.toml", f'mechanism = "SCRAM-SHA-256"\nusername = "{user}"\npassword = "{user}"\n'.encode()
    )
    runtime = world.runtime("client")
    client = Client(runtime, MemoryDriver(world.metadata, runtime), ClientConfig(sasl_file=f"/{user}.toml"))
    return await client.open_session()


async def new_ledger(world: World, *, is_sealed: bool = False, **labels: str) -> int:
    """Create a ledger with one entry and return its id."""
    client = await new_client(world)
    writer = await client.create(**ONE, labels=labels)
    await writer.append(b"x")
    await (writer.seal() if is_sealed else writer.close())
    await client.close()
    return writer.ledger_id


def operation(name: str, ledger_id: int, version: int = 3) -> Request:
    lac = digest.package_lac(DigestType.CRC32C, b"", ledger_id, 0)
    requests: dict[str, Request] = {
        "read": ReadRequest(version, 5, ledger_id, 0),
        "batch read": BatchReadRequest(2, 5, ledger_id, 0, 10, 1000),
        "read LAC": ReadLacRequest(3, 5, ledger_id),
        "list": ListEntriesRequest(3, 5, ledger_id),
        "add": adds(ledger_id, [1], version=version),
        "write LAC": WriteLacRequest(3, 5, ledger_id, 0, KEY, lac),
        "force": ForceLedgerRequest(3, 5, ledger_id),
        "fence": ReadRequest(version, 5, ledger_id, 0, KEY, is_fencing=True),
        "info": GetBookieInfoRequest(3, 5, 3),
    }
    return requests[name]


@pytest.mark.parametrize(
    ("lines", "role", "reads", "writes"),
    [
        ((), "none", False, False),
        ((), "viewer", False, False),
        ((), "reader", True, False),
        ((), "writer", True, True),
        ((), "operator", True, True),
        ((), "administrator", True, True),
        (("reader team=a",), "none", True, False),
        (("writer team=a",), "none", True, True),
        (("writer team=a",), "reader", True, True),
        (("reader log=orders-*",), "none", True, False),
        (("writer log=orders-*",), "none", True, True),
        (("administrator team=*",), "none", True, True),
        (("writer team=b", "writer log=Orders-*", "writer color=*"), "none", False, False),
    ],
)
def test_user_by_right_by_operation(world: World, lines: tuple[str, ...], role: str, reads: bool, writes: bool) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with(*lines, role=role))
        for version in (2, 3):
            ledger_id = await new_ledger(world, team="a", log="orders-1")
            for name in (*READS, *WRITES, "info"):
                is_allowed = name == "info" or (reads if name in READS else writes)
                client = await sign_in(world, server)
                request = operation(name, ledger_id, version)
                answer = await client.ask(request)
                assert (answer.status is Status.OK) == is_allowed, name
                assert is_allowed or answer.status is Status.UNAUTHORIZED
                client.transport.close()

    world.run(body)


def test_a_denial_is_an_audit_line_and_its_repeats_are_counted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("reader team=a"))
        client, ledger_id = await sign_in(world, server), await new_ledger(world, team="a")
        with caplog.at_level(logging.WARNING, "bookies.audit"):
            for _ in range(100):
                assert (await client.ask(operation("add", ledger_id))).status is Status.UNAUTHORIZED
            (line,) = caplog.messages
            assert line.startswith("audit.denied who=app peer=")
            assert f'call=add what="ledger {ledger_id}"' in line
            assert (
                'rule="app has the role none everywhere, reader on team=a; this needs writer" requests=1 others=0'
                in line
            )
            await asyncio.sleep(60)
            await client.ask(operation("add", ledger_id))
            assert caplog.messages[1].endswith("requests=100 others=0")
            for number in range(100):
                await client.ask(operation("add", 1000 + number))
            assert len(caplog.messages) < 15  # other ledgers are named, a few of them
            await asyncio.sleep(60)
            await client.ask(operation("add", 1000))
            assert "others=" in caplog.messages[-1]
            assert "others=0" not in caplog.messages[-1]
        assert server.rights.denials.count == 202

    world.run(body)


def test_adds_of_several_ledgers_are_told_apart(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a"))
        mine, other = await new_ledger(world, team="a"), await new_ledger(world)
        client = await sign_in(world, server, version=2)
        client.send(adds(mine, [1]), adds(other, [1]), adds(mine, [2]))
        statuses = {}
        for _ in range(3):
            answer = await client.response()
            statuses[answer.ledger_id, answer.entry_ids[0]] = answer.status
        assert statuses == {(mine, 1): Status.OK, (other, 1): Status.UNAUTHORIZED, (mine, 2): Status.OK}

    world.run(body)


def test_an_explicit_lac_counts_for_the_ledger_in_its_body(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a"))
        mine, other = await new_ledger(world, team="a"), await new_ledger(world)
        client = await sign_in(world, server)
        lac = digest.package_lac(DigestType.CRC32C, b"", other, 0)
        assert (await client.ask(WriteLacRequest(3, 5, mine, 0, KEY, lac))).status is Status.UNAUTHORIZED
        assert (await client.ask(WriteLacRequest(3, 5, mine, 0, KEY, b"short"))).status is Status.BAD_REQUEST

    world.run(body)


def test_our_client_reads_what_it_may_and_names_the_refusal(world: World) -> None:
    async def body(world: World) -> None:
        await start(world, app_with("reader team=a"))
        mine, other = await new_ledger(world, is_sealed=True, team="a"), await new_ledger(world, is_sealed=True)
        client = await new_client(world, "app")
        reader = await client.open(mine)
        assert (await reader.read_entry(0)).payload == b"x"
        with pytest.raises(Unauthorized):
            await (await client.open(other)).read_entry(0)
        writer = await client.create(**ONE, labels={"team": "a"})
        with pytest.raises(Unauthorized):
            await writer.append(b"y")
        await client.close()

    world.run(body)


def test_a_leader_without_the_right_ends_at_once_and_leaves_few_ledgers(world: World) -> None:
    async def body(world: World) -> None:
        await start(world, app_with("writer log=orders-*"))
        client, started = await new_client(world, "app"), world.loop.time()
        for name, is_allowed in (("orders-1", True), ("other", False)):
            await client.log(name).create(**ONE)
            writer = await client.log(name).lead()
            if is_allowed:
                await writer.append(b"x")
                continue
            with pytest.raises(Unauthorized):
                await writer.append(b"x")
        assert world.loop.time() - started < 1
        assert len(writer.manifest.ledger_ids) <= 2
        await client.close()

    world.run(body)


def test_roles_are_kept_for_a_minute_and_missing_records_for_a_second(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("reader team=a"))
        ledger_id = await new_ledger(world, team="a")
        client, reads = await sign_in(world, server), world.drivers[0].asked
        reads.clear()
        for _ in range(50):
            assert (await client.ask(operation("read", ledger_id))).status is Status.OK
        assert reads == [ledger_id]
        await asyncio.sleep(LABELS_S)
        await client.ask(operation("read", ledger_id))
        assert reads == [ledger_id, ledger_id]
        later = ledger_id + 1
        assert (await client.ask(operation("read", later))).status is Status.UNAUTHORIZED
        assert await new_ledger(world, team="a") == later
        await asyncio.sleep(1)
        assert (await client.ask(operation("read", later))).status is Status.OK

    world.run(body)


async def no_answer() -> NoReturn:
    raise MetadataError("no answer")


def test_without_the_metadata_store_nothing_is_allowed_or_denied(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a"))
        ledger_id = await new_ledger(world, team="a")
        client = await sign_in(world, server)

        world.drivers[0].instead = no_answer
        client.send(operation("read", ledger_id), operation("add", ledger_id))
        answers = [await client.response("v3"), await client.response("v3")]
        assert [answer.status for answer in answers] == [Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE]

    world.run(body)


@pytest.mark.parametrize(
    ("users", "is_out"),
    [
        (USERS.encode(), True),
        (app_with("writer team=a").replace(b"app none", b"app none" + b"x"), False),  # damaged: the old ones stay
        (app_with("reader team=a"), True),
        (app_with("writer team=a", "reader team=b"), False),
        (app_with("writer team=a", "limit requests=1000"), False),
        (app_with(role="writer"), True),  # one right is gone, although another one includes it
    ],
)
def test_who_lost_a_right_is_out_within_a_second(world: World, users: bytes, is_out: bool) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a"))
        ledger_id = await new_ledger(world, team="a")
        client, peer = await sign_in(world, server), await sign_in(world, server, "peer")
        gone = await sign_in(world, server, "peer")
        gone.transport.close()
        assert (await client.ask(operation("read", ledger_id))).status is Status.OK
        world.disk.replace_bytes("/users", users)
        await asyncio.sleep(0.9)
        assert client.is_lost == is_out
        assert not peer.is_lost
        if not is_out:
            assert (await client.ask(operation("add", ledger_id))).status is Status.OK

    world.run(body)


def test_a_client_follows_a_changed_password_and_keeps_the_old_one_while_its_file_is_damaged(world: World) -> None:
    async def body(world: World) -> None:
        await start(world, app_with(role="writer"))
        client = await new_client(world, "app")
        file, other = world.disk.read_bytes("/app.toml"), verifier_of("other", b"salt").text

        async def is_in() -> bool:
            await asyncio.sleep(1)
            try:
                await (await client.create(**ONE)).append(b"x")
            except BookKeeperError:
                return False
            return True

        assert await is_in()
        world.disk.replace_bytes("/app.toml", b"half a fi")
        world.disk.replace_bytes("/users", app_with("limit requests=1000", role="writer"))
        assert await is_in()
        world.disk.replace_bytes("/users", app_with(role="writer").replace(APP.encode(), other.encode()))
        assert not await is_in()
        world.disk.replace_bytes("/app.toml", file.replace(b'password = "app"', b'password = "other"'))
        await asyncio.sleep(30)  # the bookie was marked as failed
        assert await is_in()
        await client.close()

    world.run(body)


def test_rates_delay_first_and_refuse_what_would_wait_for_long(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("limit requests=100", role="writer"))
        ledger_id = await new_ledger(world)
        client = await sign_in(world, server)
        await asyncio.sleep(1)
        started = world.loop.time()
        client.send(*[adds(ledger_id, [entry_id], version=3) for entry_id in range(1, 501)])
        answers = [await client.response("v3") for _ in range(500)]
        statuses = [answer.status for answer in answers]
        served = statuses.count(Status.OK)
        assert 150 <= served <= 220  # the second that it may make up for, and the one that may wait
        assert statuses.count(Status.TOO_MANY_REQUESTS) == 500 - served
        assert 0.5 < world.loop.time() - started < 1.5
        assert server.rights.delays > 0
        assert server.rights.refusals == 500 - served

    world.run(body)


def test_what_arrives_while_others_wait_is_refused_and_so_is_all_after_a_large_entry(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("limit requests=100 bytes=100k", role="writer"))
        ledger_id = await new_ledger(world)
        client = await sign_in(world, server)
        await asyncio.sleep(1)

        async def send(first: int, last: int, size: int = 10) -> None:
            client.send(*[adds(ledger_id, [number], version=3, size=size) for number in range(first, last)])
            await asyncio.sleep(0.01)

        await send(1, 301)
        await send(301, 501)
        client.send(*[ReadLacRequest(3, number, ledger_id) for number in range(REFUSED_MAX + 100)])
        answers = [(await client.response("v3")).status for _ in range(500 + REFUSED_MAX + 100)]
        assert set(answers) == {Status.OK, Status.TOO_MANY_REQUESTS}
        assert answers.count(Status.OK) < 220
        await asyncio.sleep(3)
        await send(1000, 1001, size=900_000)
        assert (await client.response("v3")).status is Status.OK
        started = world.loop.time()
        await send(1001, 1002)
        assert (await client.response("v3")).status is Status.TOO_MANY_REQUESTS
        assert round(world.loop.time() - started) == 1  # refusals are late, so that clients do not come back at once
        await asyncio.sleep(10)
        await send(1001, 1002)
        assert (await client.response("v3")).status is Status.OK

    world.run(body)


def test_bytes_of_answers_count_and_limited_users_do_not_delay_others(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("limit bytes=1m", role="reader"))
        ledger_id = await new_ledger(world)
        client, peer = await sign_in(world, server), await sign_in(world, server, "peer")
        big = adds(ledger_id, range(1, 6), version=3, size=400_000)
        assert {answer.status for answer in await peer.add(big)} == {Status.OK}

        async def read(client: RawClient) -> tuple[list[Status], float]:
            started = world.loop.time()
            statuses = []
            for entry_id in range(1, 6):
                statuses.append((await client.ask(ReadRequest(3, 5, ledger_id, entry_id))).status)
            return statuses, world.loop.time() - started

        (mine, mine_s), (other, other_s) = await asyncio.gather(read(client), read(peer))
        assert set(mine) == set(other) == {Status.OK}
        assert other_s < 0.1 < 0.3 < mine_s
        await asyncio.sleep(3)
        client.send(*[ReadRequest(3, number, ledger_id, 1) for number in range(60)])
        statuses = [(await client.response("v3")).status for _ in range(60)]
        assert 2 <= statuses.count(Status.OK) <= 25  # although no size is known before an answer
        assert statuses.count(Status.OK) + statuses.count(Status.TOO_MANY_REQUESTS) == 60

    world.run(body)


def test_ten_users_at_their_rates_delay_nobody_else(world: World) -> None:
    names = [f"user{number}" for number in range(10)]
    lines = [f"{name} writer {verifier_of(name, name.encode()).text}\n{name} limit bytes=50k\n" for name in names]

    async def body(world: World) -> None:
        server = await start(world, (USERS + "".join(lines)).encode())
        ledger_ids = [await new_ledger(world) for _ in range(11)]
        peer = await sign_in(world, server, "peer")

        async def p99_s(first: int) -> float:
            times = []
            for entry_id in range(first, first + 300):
                started = world.loop.time()
                assert (await peer.add(adds(ledger_ids[10], [entry_id], version=3)))[0].status is Status.OK
                times.append(world.loop.time() - started)
                await asyncio.sleep(0.02)
            return sorted(times)[-4]

        async def flood(name: str, ledger_id: int) -> list[Status]:
            client, statuses = await sign_in(world, server, name), list[Status]()
            for round_ in range(6):
                numbers = range(1 + 100 * round_, 101 + 100 * round_)
                statuses += [
                    answer.status for answer in await client.add(adds(ledger_id, numbers, version=3, size=1000))
                ]
            return statuses

        alone_s = await p99_s(1)
        floods = [
            asyncio.ensure_future(flood(name, ledger_id)) for name, ledger_id in zip(names, ledger_ids, strict=False)
        ]
        assert await p99_s(301) <= 1.2 * alone_s
        for statuses in await asyncio.gather(*floods):
            assert set(statuses) == {Status.OK, Status.TOO_MANY_REQUESTS}

    world.run(body)


def test_what_waits_is_bounded_and_dropped_with_its_connection(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a"))
        ledger_id = await new_ledger(world, team="a")
        client = await sign_in(world, server)
        world.drivers[0].instead = asyncio.Event().wait
        count = HELD_REQUESTS_MAX + 5
        client.send(*[ReadLacRequest(3, number, ledger_id) for number in range(count)])
        refused = [await client.response("v3") for _ in range(5)]
        assert {response.status for response in refused} == {Status.TOO_MANY_REQUESTS}
        (account,) = [account for name, account in server.rights._accounts.items() if name == "app"]
        assert account.held_count == HELD_REQUESTS_MAX
        client.transport.abort()
        await asyncio.sleep(1)
        assert (account.held_count, account.held_size) == (0, 0)

    world.run(body)


def test_many_connections_of_a_user_hold_no_more_than_one(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a"))
        ledger_id = await new_ledger(world, team="a")
        world.drivers[0].instead = asyncio.Event().wait
        clients = [await sign_in(world, server) for _ in range(12)]
        for client in clients:
            client.send(adds(ledger_id, [1], version=3, size=2_000_000))  # a megabyte
        await asyncio.sleep(1)
        assert 0 < server.rights._accounts["app"].held_size <= HELD_SIZE_MAX
        statuses = [(await client.response("v3")).status for client in clients]
        assert statuses.count(Status.TOO_MANY_REQUESTS) == 4
        assert statuses.count(Status.UNKNOWN_LEDGER_STATE) == 8

    world.run(body)


def test_every_request_that_waits_is_answered(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a", "limit requests=10"))
        ledger_id = await new_ledger(world, team="a")
        client = await sign_in(world, server)

        world.drivers[0].instead = no_answer
        auth = AuthRequest(3, 7, "sasl", b"")
        client.send(operation("read", ledger_id), operation("info", ledger_id), auth)
        answers = [await client.response("v3") for _ in range(3)]
        assert [answer.status for answer in answers] == [Status.IO_ERROR, Status.IO_ERROR, Status.OK]
        world.drivers[0].instead = None
        await asyncio.sleep(2)
        client.send(*[operation("info", ledger_id)] * 100, *[auth] * 100)
        answers = [await client.response("v3") for _ in range(200)]
        infos = [answer.status for answer in answers if isinstance(answer, GetBookieInfoResponse)]
        assert 10 <= infos.count(Status.OK) <= 30
        assert infos.count(Status.TOO_MANY_REQUESTS) == 100 - infos.count(Status.OK)

    world.run(body)


def test_what_waits_is_dropped_with_a_connection_that_closes_at_once(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, app_with("writer team=a"))
        ledger_id = await new_ledger(world, team="a")
        await sign_in(world, server)
        (service,) = [service for service in server.rights._services if service.account.user.name == "app"]
        service.handle(service.connection, [operation("add", ledger_id)])
        service.connection.close()  # before the task that reads the labels has begun
        await asyncio.sleep(1)
        assert (service.account.held_count, service.account.held_size) == (0, 0)

    world.run(body)
