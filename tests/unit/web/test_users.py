"""The file of users: what it accepts, and how it is read again."""

from __future__ import annotations

import asyncio

import pytest
from bookies.web.users import RECHECK_S, Role, UsersFile, hash_of, parse_users
from tests.unit.bookie.conftest import World

from bookies.errors import ConfigError

ONE = f"ann operator {hash_of('one')}\n"


def test_users_have_a_role_and_a_token_or_a_certificate() -> None:
    users = parse_users(f"# head\n\n{ONE}bob viewer certificate:commonName=bob, organizationName=x\n")
    assert [(user.name, user.role) for user in users] == [("ann", Role.OPERATOR), ("bob", Role.VIEWER)]
    assert users[1].credential == "certificate:commonName=bob, organizationName=x"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ann", "line 1: the role of ann"),
        ("ann root sha256:00", "viewer, reader, writer, operator, administrator"),
        ("ann anyone sha256:00", "viewer, reader, writer, operator, administrator"),
        ("ann viewer", "needs sha256:HASH"),
        ("ann viewer secret", "needs sha256:HASH"),
        ("ann viewer certificate:", "needs sha256:HASH"),
        (ONE + ONE, "line 2: 'ann'"),
        ("a:b viewer sha256:00", "is not a name"),
    ],
)
def test_a_malformed_line_is_named_without_its_credential(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_users(text)
    assert "secret" not in str(caught.value)


def test_a_changed_file_counts_and_a_damaged_one_does_not() -> None:
    async def body(world: World) -> None:
        runtime = world.runtime("bookie")
        with pytest.raises(ConfigError, match="/users cannot be read"):
            UsersFile(runtime.disk, "/users", runtime.clock)
        runtime.disk.replace_bytes("/users", ONE.encode())
        users = UsersFile(runtime.disk, "/users", runtime.clock)
        assert users.find(hash_of("one")) is not None
        for text, first, second in (
            (f"ann viewer {hash_of('two')}\n", False, True),
            ("nonsense", False, True),
            (ONE, True, False),
            ("# none", False, False),
        ):
            runtime.disk.replace_bytes("/users", text.encode())
            await asyncio.sleep(RECHECK_S)
            assert (users.find(hash_of("one")) is not None, users.find(hash_of("two")) is not None) == (first, second)

    World().run(body)
