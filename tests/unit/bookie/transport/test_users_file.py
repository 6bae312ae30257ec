"""The file of users, and how it is read again."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.bookie.conftest import World

from bookies.bookie.transport.users_file import RECHECK_S, UsersFile
from bookies.errors import ConfigError
from bookies.protocol.rights.users import hash_of

ONE = f"ann operator {hash_of('one')}\n"


def test_a_changed_file_counts_and_a_damaged_one_does_not() -> None:
    async def body(world: World) -> None:
        runtime = world.runtime("bookie")
        with pytest.raises(ConfigError, match="/users cannot be read"):
            UsersFile(runtime.disk, "/users", runtime.clock)
        runtime.disk.replace_bytes("/users", ONE.encode())
        users = UsersFile(runtime.disk, "/users", runtime.clock)
        assert hash_of("one") in users.current().by_credential
        for text, first, second in (
            (f"ann viewer {hash_of('two')}\n", False, True),
            ("nonsense", False, True),
            ("ann viewer scram-sha-256:4096:AAAA:AAAA:AAAA", False, True),
            (ONE, True, False),
            ("# none", False, False),
        ):
            runtime.disk.replace_bytes("/users", text.encode())
            await asyncio.sleep(2 * RECHECK_S)
            found = users.current().by_credential
            assert (hash_of("one") in found, hash_of("two") in found) == (first, second)

    World().run(body)
