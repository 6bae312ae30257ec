"""`bk bookie gc` and its like: which bookie is meant, what they print, and what they say when it does not run."""

from __future__ import annotations

import json
import pathlib
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bookies.admin.cli import main
from bookies.storage.identity import Cookie
from bookies.storage.identity.cookie import FILE_NAME


class Endpoint(socketserver.ThreadingTCPServer):
    """Answers as a bookie does, and remembers what it was asked."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.answer: dict[str, Any] = {}


class Handler(socketserver.StreamRequestHandler):
    server: Endpoint

    def handle(self) -> None:
        if line := self.rfile.readline():
            self.server.asked.append(json.loads(line))
            if self.server.answer:
                self.wfile.write(json.dumps(self.server.answer).encode() + b"\n")


@pytest.fixture
def endpoint(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.chdir(tmp_path)
    ledgers = tmp_path / "bk-data" / "b1" / "ledgers"
    (ledgers / "current").mkdir(parents=True)
    (ledgers / "current" / "1f.log").write_bytes(b"")
    with Endpoint() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        facts = {"bookie": "b1", "host": "127.0.0.1", "port": server.server_address[1], "token": "t"}
        (ledgers / "control.json").write_text(json.dumps(facts))
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("words", "call", "arguments"),
    [
        (["gc"], "gc", {"force": False, "wait": False}),
        (["gc", "--force", "--wait", "--bookie", "b1"], "gc", {"force": True, "wait": True}),
        (["gc", "--surplus"], "gc", {"force": False, "wait": False, "surplus": True}),
        (["gc", "--suspend"], "suspend", {"suspended": True}),
        (["gc", "--resume"], "suspend", {"suspended": False}),
        (["compact"], "compact", {"kind": "minor", "wait": False}),
        (["compact", "--major", "--wait"], "compact", {"kind": "major", "wait": True}),
        (["undelete", "17", "--ledger-dir", "bk-data/b1/ledgers"], "undelete", {"ledger": 17}),
        (["why-not-deleted", "1f"], "why", {"log": "1f"}),
        (["why-not-deleted", "bk-data/b1/ledgers/current/1f.log"], "why", {"log": "bk-data/b1/ledgers/current/1f.log"}),
        (["space"], "space", {}),
        (["disks"], "disks", {}),
        (["state"], "state", {}),
        (["read-only"], "hold", {"read_only": True}),
        (["read-write", "--bookie", "b1"], "hold", {"read_only": False}),
    ],
)
def test_each_verb_is_a_call(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], words: list[str], call: str, arguments: dict[str, object]
) -> None:
    results: dict[str, object] = {"undelete": None, "suspend": None, "why": ["one", "two"]}
    endpoint.answer = {
        "result": results.get(call, {"live_bytes": 2048, "alarm": None, "logs_set_aside": {"1": "torn"}})
    }
    assert main(["bookie", *words]) == 0
    assert endpoint.asked == [{"token": "t", "call": call, "arguments": arguments}]
    printed = capsys.readouterr().out
    expected = {"undelete": "b1: done\n", "suspend": "b1: done\n", "why": "b1: one\nb1: two\n"}
    assert printed == expected.get(call, "b1: live_bytes             2.0 KiB\nb1: logs_set_aside 1: torn\n")
    assert main(["bookie", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"b1": endpoint.answer["result"]}


def test_orphans_are_listed_with_their_state(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    states = (("found", None), ("quarantined", 3_600_000), ("pinned", None))
    rows = [
        {"ledger": number, "state": state, "since_ms": None, "left_ms": left_ms}
        for number, (state, left_ms) in enumerate(states)
    ]
    endpoint.answer = {"result": rows}
    assert main(["bookie", "orphans"]) == 0
    assert endpoint.asked == [{"token": "t", "call": "orphans", "arguments": {}}]
    assert capsys.readouterr().out.splitlines() == [
        "b1: ledger 0: no record; the next garbage collection puts it into quarantine",
        "b1: ledger 1: no record, in quarantine, deleted in 60 min unless its record is back",
        "b1: ledger 2: no record, pinned by an operator: it is kept",
    ]
    endpoint.answer = {"result": []}
    assert main(["bookie", "orphans"]) == 0
    assert capsys.readouterr().out == "b1: every ledger has a record\n"


def test_bytes_by_key_have_a_unit(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.answer = {"result": {"bytes_under_key": {"66107e80": 15 << 20}}}
    assert main(["bookie", "encryption"]) == 0
    assert capsys.readouterr().out == "b1: bytes_under_key 66107e80: 15.0 MiB\n"


def test_a_setting_has_its_place(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"name": "port", "value": 4000, "source": "file", "where": "bk.toml:5", "changeable": False}
    endpoint.answer = {"result": [row, row | {"name": "host", "source": "default", "where": ""}]}
    assert main(["bookie", "settings"]) == 0
    assert capsys.readouterr().out == "b1: port = 4000 (bk.toml:5)\nb1: host = 4000 (default)\n"


def test_a_suspension_says_one_thing_only(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--suspend", "--wait"], ["--resume", "--force"], ["--resume", "--surplus"]):
        assert main(["bookie", "gc", *words]) == 2
        assert "in a separate call" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bookie", "gc", "--suspend", "--resume"])
    assert not endpoint.asked


@pytest.mark.parametrize("ledger", ["-1", "99999999999999999999"])
def test_what_is_no_ledger_id_is_named(endpoint: Endpoint, capsys: pytest.CaptureFixture[str], ledger: str) -> None:
    assert main(["bookie", "undelete", ledger]) == 2
    text = f"bk bookie: {ledger} is not a ledger id: the range is 0 to 9223372036854775807\n"
    assert capsys.readouterr().err == text
    assert not endpoint.asked


def test_one_bookie_at_a_time_is_made_read_only(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    other = pathlib.Path("bk-data/b2/ledgers")
    other.mkdir(parents=True)
    (other / "control.json").write_bytes(pathlib.Path("bk-data/b1/ledgers/control.json").read_bytes())
    assert main(["bookie", "read-only"]) == 2
    assert "name one of the bookies b1, b2" in capsys.readouterr().err
    assert not endpoint.asked
    endpoint.answer = {"result": {"mode": "read-only"}}
    assert main(["bookie", "read-only", "--bookie", "b1"]) == 0


def test_what_goes_wrong_is_one_sentence(endpoint: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    endpoint.answer = {"error": "wrong token"}
    assert main(["bookie", "gc"]) == 2
    assert capsys.readouterr().err == "bk bookie: bookie b1: wrong token\n"
    endpoint.answer = {}
    assert main(["bookie", "gc"]) == 2
    assert "stopped before it answered" in capsys.readouterr().err
    assert main(["bookie", "gc", "--bookie", "b7"]) == 2
    assert "has no running bookie b7; it has b1" in capsys.readouterr().err
    assert main(["bookie", "gc", "--ledger-dir", "elsewhere"]) == 2
    assert "no bookie has run there" in capsys.readouterr().err
    endpoint.server_close()
    assert main(["bookie", "space"]) == 2
    assert "bookie b1 does not run" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", "[]", '{"bookie": "b1"}'])
def test_a_damaged_file_says_what_it_is(endpoint: Endpoint, capsys: pytest.CaptureFixture[str], text: str) -> None:
    pathlib.Path("bk-data/b1/ledgers/control.json").write_text(text)
    assert main(["bookie", "space"]) == 2
    error = capsys.readouterr().err
    assert "control.json, which holds the address of the running bookie, is damaged: restart the bookie" in error


def test_a_file_that_leads_nowhere_gives_way_to_that_of_another_directory(
    endpoint: Endpoint, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    first, second = tmp_path / "bk-data" / "b1" / "ledgers", tmp_path / "second"
    (second / "current").mkdir(parents=True)
    cookie = Cookie("b1", str(tmp_path / "journal"), (str(first), str(second)), instance_id="i")
    (first / "current" / FILE_NAME).write_bytes(cookie.pack())
    endpoint.answer = {"result": {"runs": 7}}
    good = (first / "control.json").read_bytes()
    (second / "control.json").write_bytes(good)
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as gone:
        port = gone.server_address[1]
    stale = {"bookie": "b1", "host": "127.0.0.1", "port": port, "token": "old"}
    for text in ("{", json.dumps(stale)):
        (first / "control.json").write_text(text)
        assert main(["bookie", "space"]) == 0
        assert "runs                   7" in capsys.readouterr().out


def test_a_bookie_that_does_not_run_keeps_no_other_from_being_asked(
    endpoint: Endpoint, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.answer = {"result": {"writable": True}}
    ended = tmp_path / "bk-data" / "b0" / "ledgers"
    ended.mkdir(parents=True)
    (ended / "control.json").write_text(json.dumps({"bookie": "b0", "host": "127.0.0.1", "port": 1, "token": "t"}))
    assert main(["bookie", "space", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"b1": {"writable": True}}
    assert err.startswith("bk bookie space: bookie b0 does not run: ")
    endpoint.answer = {"result": []}
    assert main(["bookie", "orphans"]) == 1
    out, err = capsys.readouterr()
    assert out == "b1: every ledger has a record\n"
    assert err.startswith("bk bookie orphans: bookie b0 does not run: ")
    scrub = {"is_running": False, "is_suspended": False, "damaged_entries": 0}
    endpoint.answer = {"result": scrub}
    assert main(["bookie", "scrub", "--now", "--wait", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"b1": scrub}
    assert err.count("b0 does not run") == 1
    (tmp_path / "bk-data" / "b1" / "ledgers" / "control.json").unlink()
    assert main(["bookie", "space"]) == 2
