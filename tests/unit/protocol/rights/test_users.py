"""The file of users: what it accepts, and the roles on ledgers."""

from __future__ import annotations

import pytest

from bookies.errors import ConfigError
from bookies.protocol.rights import Role, User, parse_users
from bookies.protocol.rights.users import Grant, hash_of, is_principal

ONE = f"ann operator {hash_of('one')}\n"
SCRAM = "scram-sha-256:4096:AAAA:BBBB:CCCC="
TEXT = f"""# head

{ONE}bob viewer certificate:commonName=bob, organizationName=x
app none {SCRAM}
app  none  digest-md5:{"0" * 32}
app writer log=orders-*
app reader team=billing
app limit bytes=10m requests=500
app limit requests=400
"""


def test_users_have_roles_credentials_and_limits() -> None:
    users = parse_users(TEXT)
    ann, bob, app = users.by_name.values()
    assert (ann.name, ann.role, ann.credentials) == ("ann", Role.OPERATOR, (hash_of("one"),))
    assert bob.credentials == ("certificate:commonName=bob, organizationName=x",)
    assert not bob.is_limited
    assert app == User(
        "app",
        Role.ANYONE,
        (SCRAM, "digest-md5:" + "0" * 32),
        (Grant(Role.WRITER, "log", "orders-*"), Grant(Role.READER, "team", "billing")),
        10 << 20,
        400,
    )
    assert app.is_limited
    assert users.by_credential == {
        hash_of("one"): ann,
        bob.credentials[0]: bob,
        **dict.fromkeys(app.credentials, app),
    }
    assert (app.credential("scram-sha-256:"), app.credential("sha256:")) == (SCRAM, None)
    assert app.rights == "app has the role none everywhere, writer on log=orders-*, reader on team=billing"
    assert ann.rights == "ann has the role operator everywhere"


@pytest.mark.parametrize(
    ("labels", "role"),
    [
        (None, Role.ANYONE),
        ({}, Role.ANYONE),
        ({"log": b"orders-1"}, Role.WRITER),
        ({"log": b"Orders-1"}, Role.ANYONE),
        ({"team": b"billing"}, Role.READER),
        ({"team": b"billings"}, Role.ANYONE),
        ({"team": b"\xff", "log": b"orders-\xff"}, Role.WRITER),
        ({"team": b"billing", "log": b"orders-"}, Role.WRITER),
    ],
)
def test_roles_by_label(labels: dict[str, bytes] | None, role: Role) -> None:
    app = parse_users(TEXT).by_name["app"]
    assert app.role_on(labels) == role
    assert app.highest_role is Role.WRITER
    ann = parse_users(ONE).by_name["ann"]
    assert ann.role_on(labels) is ann.highest_role is Role.OPERATOR


@pytest.mark.parametrize(
    ("line", "is_lost"),
    [
        (TEXT, False),
        (TEXT + "app reader x=y\n", False),
        (TEXT.replace("requests=400", "requests=1"), False),
        (TEXT.replace("app none", "app viewer").replace("app  none", "app viewer"), False),
        (TEXT.replace("app reader team=billing\n", ""), True),
        (TEXT.replace("AAAA", "AAAB"), True),
    ],
)
def test_lost_rights(line: str, is_lost: bool) -> None:
    app = parse_users(TEXT).by_name["app"]
    assert app.lost_rights(parse_users(line).by_name["app"]) is is_lost
    assert parse_users(ONE).by_name["ann"].lost_rights(parse_users(ONE.replace("operator", "viewer")).by_name["ann"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ann", "line 1: the role of ann"),
        ("ann root sha256:00", "viewer, reader, writer, operator, administrator, none"),
        ("ann anyone sha256:00", "viewer, reader, writer, operator, administrator, none"),
        ("ann viewer", "needs a credential"),
        ("ann viewer secret", "needs a credential"),
        ("ann viewer certificate:", "needs a credential"),
        ("ann viewer kerberos:ann", "needs a credential .*kerberos:NAME@REALM"),
        ("ann viewer scram-sha-256:4096:secret=", "needs a credential"),
        ("ann viewer =secret", "needs a credential"),
        (f"{ONE}ann viewer {hash_of('two')}", "line 2: ann has another role in a line above"),
        (f"app none {SCRAM}\napp none {SCRAM}", "line 2: app has a password in a line above"),
        (ONE + ONE.replace("ann", "bob"), "ann and bob have the same credential"),
        ("a:b viewer sha256:00", "is not a name"),
        ("ann reader log=x", "line 1: ann has no line with a credential"),
        (f"{ONE}ann limit", "line 2: the limit of ann"),
        (f"{ONE}ann limit bytes=0", "line 2: the limit of ann"),
        (f"{ONE}ann limit secret=1", "line 2: the limit of ann"),
        (f"{ONE}ann limit bytes={'9' * 5000}", "line 2: the limit of ann"),
    ],
)
def test_a_malformed_line_is_named_without_its_credential(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse_users(text)
    assert "secret" not in str(caught.value) or "limit" in text


def test_a_role_has_a_word() -> None:
    assert Role.ADMINISTRATOR.word == "administrator"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("app@EXAMPLE.ORG", True),
        ("bookkeeper/b1.example.org@EXAMPLE.ORG", True),
        ("app", False),
        ("@EXAMPLE.ORG", False),
        ("app@", False),
        ("", False),
    ],
)
def test_principals_have_a_name_and_a_realm(text: str, expected: bool) -> None:
    assert is_principal(text) is expected
