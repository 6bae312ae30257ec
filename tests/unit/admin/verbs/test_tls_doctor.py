"""What `bk doctor tls --certificate` says of files, and about bookies that do not answer."""

from __future__ import annotations

import datetime
import pathlib
import socket

import pytest
from tests.fakes.certificates import Authority

from bookies.admin import cli
from bookies.admin.verbs.tls_doctor import of_file
from bookies.config import ClientConfig

DAY = datetime.timedelta(days=1)


def said(path: str, key: str | None = None) -> str:
    return "\n".join(f"{each.level} {each.what}" for each in of_file(path, key))


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> Authority:
    return Authority(tmp_path)


def test_a_good_pair(authority: Authority) -> None:
    files = authority.issue("b1", units=("0:admin",), ends=90 * DAY)
    text = said(files.certificate, files.key)
    assert "bad" not in text
    assert "warn" not in text
    assert "roles: admin" in text
    assert "ok certificate and key match" in text


def test_time(authority: Authority) -> None:
    for ends, expected in ((-DAY, "bad"), (10 * DAY, "warn"), (90 * DAY, "ok")):
        files = authority.issue("b1", begins=-20 * DAY, ends=ends)
        assert said(files.certificate).startswith(f"{expected} certificate 1 belongs to commonName=b1, signed by")
    files = authority.issue("b1", begins=DAY, ends=2 * DAY)
    assert "not valid before" in said(files.certificate)


def test_pairs_and_chains_that_do_not_fit(authority: Authority, tmp_path: pathlib.Path) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    assert "bad certificate and key do not match" in said(one.certificate, other.key)
    chain = tmp_path / "chain.pem"
    texts = [pathlib.Path(path).read_text() for path in (one.certificate, authority.path, other.certificate)]
    chain.write_text(texts[0] + texts[1])
    assert "did not sign" not in said(str(chain))
    chain.write_text(texts[0] + texts[2])
    assert "bad certificate 2 did not sign the one before it" in said(str(chain))


def test_files_that_are_something_else(authority: Authority, tmp_path: pathlib.Path) -> None:
    files = authority.issue("b1")
    assert "holds no certificate" in said(files.key)
    assert "No such file" in said(str(tmp_path / "missing"))
    old = tmp_path / "old.key"
    old.write_text(pathlib.Path(files.key).read_text().replace("PRIVATE KEY", "RSA PRIVATE KEY"))
    assert "warn the key is BEGIN RSA PRIVATE KEY, which Apache's" in said(files.certificate, str(old))
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    assert "not an X.509 certificate" in said(str(broken))


def test_the_command(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    files = authority.issue("b1", begins=-20 * DAY, ends=-DAY)
    assert cli.main(["doctor", "tls", "--certificate", files.certificate, "--key", files.key]) == 1
    assert "-> renew it" in capsys.readouterr().out
    assert cli.main(["doctor", "--certificate", files.certificate]) == 2
    assert "are for `bk doctor tls`" in capsys.readouterr().err


def test_a_bookie_that_is_not_there() -> None:
    from bookies.admin.verbs.tls_doctor import of_bookie

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(OSError):
            list(of_bookie("b1", *probe.getsockname(), ClientConfig()))
