"""Users whom Kerberos identifies, at a bookie in virtual time, with a KDC that is made up."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.fakes.kerberos import FakeKerberos
from tests.unit.bookie.conftest import World

from bookies.bookie.server import BookieServer
from bookies.client.client import Client
from bookies.config import BookieConfig, ClientConfig, validate
from bookies.errors import BookKeeperError, ConfigError, NotEnoughBookies, Unauthorized
from bookies.metadata.embedded import MemoryDriver

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
USERS = b"app writer kerberos:app@REALM\nlow none kerberos:low@REALM\nlow reader team=a\n"


@pytest.fixture
def kerberos(world: World) -> FakeKerberos:
    return world.kerberos


async def start(world: World, **settings: Any) -> BookieServer:
    world.disk.replace_bytes("/users", USERS)
    security = {"authentication": "sasl", "users_file": "/users", "kerberos_keytab": "/good.keytab"}
    return await world.start(**security | settings)


async def append(world: World, text: str) -> BookKeeperError | None:
    """Append with these lines of `sasl_file`; return what failed."""
    world.disk.replace_bytes("/sasl.toml", f"mechanism = 'GSSAPI'\n{text}\n".encode())
    runtime = world.runtime("client")
    config = ClientConfig(sasl_file="/sasl.toml", wire="v3", connect_timeout_ms=1000)
    client = await Client(runtime, MemoryDriver(world.metadata, runtime), config).open_session()
    try:
        writer = await client.create(**ONE)
        await writer.append(b"x")
        await writer.close()
    except BookKeeperError as error:
        return error
    finally:
        await client.close()
    return None


def test_a_principal_is_a_user_with_its_rights(
    world: World, kerberos: FakeKerberos, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def body(world: World) -> None:
        server = await start(world)
        assert await append(world, "principal = 'app@REALM'") is None
        assert kerberos.hosts[0].startswith("bookkeeper/")
        assert await append(world, "principal = 'app@REALM'\nservice = 'bk'") is None
        assert kerberos.hosts[-1].startswith("bk/")
        assert isinstance(await append(world, "principal = 'low@REALM'"), Unauthorized)
        assert "who=low" in caplog.text
        for principal in ("other@REALM", "app@OTHER", "expired"):
            assert isinstance(await append(world, f"principal = '{principal}'"), Unauthorized)
        assert server.security is not None
        assert set(server.security.refusals) == {
            "users_file lists no user with its principal (bk token add --kerberos)",
            "its Kerberos ticket is not accepted",
        }
        assert "detail=other@REALM" in caplog.text
        assert "Ticket expired: run kinit" in caplog.text
        kerberos.is_down = True
        failed = await append(world, "principal = 'app@REALM'")
        assert isinstance(failed, NotEnoughBookies)  # not a final refusal
        assert "Cannot contact any KDC" in str(failed)
        kerberos.is_silent = True
        failed = await append(world, "principal = 'app@REALM'")
        assert "no answer in time while the client waited for a Kerberos ticket from the KDC" in str(failed)

    world.run(body)


def test_a_principal_that_is_taken_out_is_out_within_a_second(world: World, kerberos: FakeKerberos) -> None:
    async def body(world: World) -> None:
        await start(world)
        world.disk.replace_bytes("/sasl.toml", b"mechanism = 'GSSAPI'\nprincipal = 'app@REALM'")
        runtime = world.runtime("client")
        client = await Client(
            runtime, MemoryDriver(world.metadata, runtime), ClientConfig(sasl_file="/sasl.toml")
        ).open_session()
        writer = await client.create(**ONE)
        await writer.append(b"x")
        world.disk.replace_bytes("/users", b"low writer kerberos:low@REALM\n")
        await asyncio.sleep(0.9)
        with pytest.raises(BookKeeperError):
            await writer.append(b"y")
        await client.close()

    world.run(body)


def test_allowed_ids_are_about_the_principal_as_apaches(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, sasl_allowed_ids="bookkeeper.*")
        assert isinstance(await append(world, "principal = 'app@REALM'"), Unauthorized)
        assert server.security is not None
        assert "its principal is known, but does not match sasl_allowed_ids" in server.security.refusals

    world.run(body)


def test_without_a_keytab_tickets_are_refused(world: World) -> None:
    async def body(world: World) -> None:
        server = await start(world, kerberos_keytab="")
        assert isinstance(await append(world, "principal = 'app@REALM'"), Unauthorized)
        assert server.security is not None
        assert list(server.security.refusals) == [
            "it presents a Kerberos ticket, and this bookie has no kerberos_keytab"
        ]

    world.run(body)


def test_what_a_bookie_and_a_client_do_not_start_with(world: World) -> None:
    async def body(world: World) -> None:
        with pytest.raises(ConfigError, match=r"kerberos_keytab /none: Kerberos: Keytab /none is nonexistent or empty"):
            await start(world, kerberos_keytab="/none")
        for text, reason in (("username = 'x'", "principal, keytab and service"), ("keytab = 1", "all texts")):
            with pytest.raises(ConfigError, match=reason):
                await append(world, text)

    world.run(body)
    with pytest.raises(ConfigError, match="kerberos_keytab needs authentication = sasl"):
        validate(BookieConfig(kerberos_keytab="/k", bookie_id="b", journal_directories=("/j",)))
