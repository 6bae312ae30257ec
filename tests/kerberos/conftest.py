"""A KDC with the principals of the tests, and what its processes need to know."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from tests.apache.place import environment
from tests.kerberos.kdc import REALM, Kdc, missing_program
from tests.kerberos.kdc import kdc as running_kdc

SERVICES = ("bookkeeper/localhost", "bookkeeper/127.0.0.1", "zookeeper/localhost")
CLIENTS = ("app", "low", "stranger")


@pytest.fixture(scope="session")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    missing = missing_program()
    if missing is not None:
        pytest.skip(f"{missing} is not installed (Debian: krb5-kdc, krb5-admin-server, krb5-user)")
    pytest.importorskip("gssapi", reason="pip install 'bookies[kerberos]', which needs a compiler and libkrb5-dev")
    folder: pathlib.Path = tmp_path_factory.mktemp("kdc")
    with running_kdc(folder) as kdc, environment(kdc.environment):
        for name in SERVICES + CLIENTS:
            kdc.principal(name)
        kdc.keytab("services.keytab", *SERVICES)
        for name in CLIENTS:
            kdc.keytab(f"{name}.keytab", name)
        lines = [f"{name} {role} kerberos:{name}@{REALM}\n" for name, role in (("app", "writer"), ("low", "viewer"))]
        (folder / "users").write_text("".join(lines))
        yield kdc
