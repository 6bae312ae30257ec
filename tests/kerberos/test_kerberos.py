"""Kerberos with a real KDC, between our clients and our bookies."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apache.place import Place
from tests.interop.processes import Failed, wait_until
from tests.kerberos.kdc import REALM, Kdc

pytestmark = pytest.mark.kerberos


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("ours")
    place = Place(folder, "")
    (folder / "metadata").mkdir()
    place.uri = f"file:{folder}/metadata"
    with place.client("ours") as client:
        client.ask("init", uri=place.uri, wire="v2")
    return place


def bookie(kdc: Kdc, **others: str) -> dict[str, Any]:
    settings = {"authentication": "sasl", "users_file": str(kdc.folder / "users")}
    return settings | {"kerberos_keytab": str(kdc.folder / "services.keytab")} | others


def login(place: Place, kdc: Kdc, name: str = "app", **others: str) -> dict[str, Any]:
    """Settings of a client with a keytab."""
    keys = {"principal": f"{name}@{REALM}", "keytab": str(kdc.folder / f"{name}.keytab")} | others
    text = 'mechanism = "GSSAPI"\n' + "".join(f'{key} = "{value}"\n' for key, value in keys.items() if value)
    return {"sasl_file": place.file("login.toml", text), "connect_timeout_ms": 20_000}


@contextlib.contextmanager
def refused(*words: str) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect a failure whose text has these words."""
    with pytest.raises((Failed, AssertionError)) as caught:
        yield caught
    for word in words:
        assert word in str(caught.value)


def test_keytabs_and_tickets(place: Place, kdc: Kdc) -> None:
    with place.serving("ours", bookie(kdc)) as server:
        for wire in ("v2", "v3"):
            place.use("ours", wire, login(place, kdc))
        kdc.run("kinit", "-k", "-t", f"{kdc.folder}/app.keytab", f"app@{REALM}")
        place.use("ours", "v3", login(place, kdc, principal="", keytab=""))
        with refused("Unauthorized"):
            place.use("ours", "v3", login(place, kdc, "low"))
        with refused("Unauthorized"):
            place.use("ours", "v3", login(place, kdc, "stranger"))
        log = (server.folder / "bookie.log").read_text()
    assert "audit.denied who=low" in log
    assert f"detail=stranger@{REALM}" in log


def test_sentences_of_a_client(place: Place, kdc: Kdc) -> None:
    tickets = {"principal": "", "keytab": ""}
    with place.serving("ours", bookie(kdc)):
        with refused("keytab /none is missing, unreadable or without a key of app"):
            place.use("ours", "v3", login(place, kdc, keytab="/none"))
        with refused("without a key of other@BOOKIES.TEST: klist -k"):
            place.use("ours", "v3", login(place, kdc, principal=f"other@{REALM}"))
        with refused("Server hdfs/", "not found in Kerberos database: create this principal at the KDC"):
            place.use("ours", "v3", login(place, kdc, service="hdfs"))
        kdc.run("kdestroy", "-q")
        with refused("run kinit, or name a keytab"):
            place.use("ours", "v3", login(place, kdc, **tickets))
        kdc.run("kinit", "-k", "-t", f"{kdc.folder}/app.keytab", "-l", "1s", f"app@{REALM}")
        wait_until(lambda: is_expired(kdc), "the ticket expires")
        with refused("Ticket expired: run kinit, or name a keytab"):
            place.use("ours", "v3", login(place, kdc, **tickets))
        kdc.configure(kdc.port, realm="OTHER.TEST")
        try:
            with refused("keytab", "OTHER.TEST"):
                place.use("ours", "v3", login(place, kdc, principal="app@OTHER.TEST"))
            kdc.configure(1)  # where no KDC is
            with refused("Cannot contact any KDC for realm", "start the KDC, or correct its address in krb5.conf"):
                place.use("ours", "v3", login(place, kdc))
        finally:
            kdc.configure(kdc.port)


def is_expired(kdc: Kdc) -> bool:
    try:
        kdc.run("klist", "-s")
    except AssertionError:
        return True
    return False


def test_a_renewed_keytab_applies_without_a_restart(place: Place, kdc: Kdc, tmp_path: pathlib.Path) -> None:
    kdc.principal("svc/localhost")
    kdc.principal("svc/127.0.0.1")
    names = ("svc/localhost", "svc/127.0.0.1")
    keytab = tmp_path / "svc.keytab"
    shutil.copy(kdc.keytab("svc.keytab", *names), keytab)
    settings = login(place, kdc, service="svc")
    with place.serving("ours", bookie(kdc, kerberos_keytab=str(keytab))) as server:
        place.use("ours", "v3", settings)
        renewed = kdc.keytab("svc.keytab", *names, is_new_key=True)
        with refused("Unauthorized"):  # The KDC has the new key, and the bookie the old one.
            place.use("ours", "v3", settings)
        log = (server.folder / "bookie.log").read_text()
        assert "keytab is likely out of date: the key was changed: export the keytab again" in log
        shutil.copy(renewed, tmp_path / "new")
        os.replace(tmp_path / "new", keytab)
        place.use("ours", "v3", settings)
        keytab.unlink()
        with refused("Unauthorized"):
            place.use("ours", "v3", settings)
    with (
        refused("kerberos_keytab", "is nonexistent or empty"),
        place.serving("ours", bookie(kdc, kerberos_keytab="/none")),
    ):
        pass


def test_a_revoked_user_is_out(place: Place, kdc: Kdc, tmp_path: pathlib.Path) -> None:
    users = tmp_path / "users"
    shutil.copy(kdc.folder / "users", users)
    words = {"uri": place.uri, "wire": "v3", "password": "x", "settings": login(place, kdc)}
    with place.serving("ours", bookie(kdc, users_file=str(users))) as server, place.client("ours") as client:
        handle = client.ask("create", **words, ensemble=1, write_quorum=1, ack_quorum=1)["handle"]
        client.ask("append", handle=handle, count=1, sizes=[1])
        (tmp_path / "less").write_text(f"low viewer kerberos:low@{REALM}\n")
        os.replace(tmp_path / "less", users)
        wait_until(lambda: "users.reloaded" in (server.folder / "bookie.log").read_text(), "users")
        client.ask("append", handle=handle, count=1, sizes=[1])
        with refused("Unauthorized"):
            client.ask("close", handle=handle)
