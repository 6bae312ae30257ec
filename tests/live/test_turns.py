"""Leaders, consumers and locks in processes that are killed: the next one continues after the `ttl`, and not before."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from subprocess import PIPE

import pytest
from tests.live.command import PATIENCE_S, Family, bk, started
from tests.live.turns import TTL_S

import bookies
from bookies.admin.cluster import LocalCluster

pytestmark = pytest.mark.live

ENTRIES = 10_000  # more than a consumer handles while another process starts
SETTINGS = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "checkpoint_interval_ms": 100}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("turns") / "bk-data"
    with LocalCluster(directory, 3, settings=SETTINGS) as cluster:
        yield cluster.metadata_uri


@contextlib.contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.live.turns", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started
        finally:
            started.kill()


def line(started: subprocess.Popen[str], word: str) -> str:
    """Read lines until one begins with this word; return its rest."""
    assert started.stdout is not None
    for text in started.stdout:
        first, _, rest = text.strip().partition(" ")
        if first == word:
            return rest
    raise AssertionError(f"the process ended without {word}")


def kill(started: subprocess.Popen[str]) -> float:
    started.send_signal(signal.SIGKILL)
    started.wait()
    return time.monotonic()


def wait_queued(uri: str, record: str, count: int) -> None:
    """Wait until so many processes are in a queue."""
    with bookies.blocking.connect(uri) as store:
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            data, _ = store._thread.call(store._inner._driver.read_record(record))
            if len(json.loads(data)["queue"]) == count:
                return
            time.sleep(0.05)
    raise AssertionError(f"{record} does not have {count} processes")


def test_a_waiting_leader_leads_after_the_ttl_of_a_killed_one(uri: str) -> None:
    with bookies.blocking.connect(uri) as store:
        log = store.log("led")
        log.create()
        with process("leader", uri, "led", "a") as first:
            assert line(first, "epoch") == "1"
            with process("leader", uri, "led", "b") as second:
                wait_queued(uri, "leaders/led", 2)
                confirmed = int(line(first, "appended"))
                killed_s = kill(first)
                assert line(second, "epoch") == "2"
                assert time.monotonic() - killed_s > 5  # most of the 10 s since its last renewal
                line(second, "appended")
        with log.lead(), log.open() as reader:
            payloads = [entry.payload.decode().split() for entry in reader.read()]
    names = [name for name, _ in payloads]
    assert names == sorted(names)
    assert [int(number) for name, number in payloads if name == "a"][: confirmed + 1] == list(range(confirmed + 1))


def test_a_consumer_that_was_killed_is_followed_from_its_last_commit(uri: str) -> None:
    with bookies.blocking.connect(uri) as store:
        log = store.log("consumed")
        log.create()
        with log.lead() as writer:
            writer.append_many([b"%d" % number for number in range(ENTRIES)])
        with process("consumer", uri, "consumed", "billing") as first:
            token = int(line(first, "token"))
            with process("consumer", uri, "consumed", "billing") as second:
                while (handled := int(line(first, "handled"))) < 50:
                    pass
                wait_queued(uri, "consumers/consumed/billing", 2)
                kill(first)
                assert first.stdout is not None
                handled = int((first.stdout.read().split() or [handled])[-1])
                committed = log.cursors()["billing"].position.entry_id
                assert 30 < committed <= handled + 1
                assert int(line(second, "token")) > token
                assert int(line(second, "handled")) == committed
                assert int(line(second, "handled")) == committed + 1
        with log.consumer("audit") as rows:
            assert [next(rows).payload for _ in range(3)] == [b"0", b"1", b"2"]
            for entry in rows:
                assert entry.payload == b"3"
                break
            rows.commit()
            assert rows.lag().rows == ENTRIES - 4
            audit, billing = bk("log", "cursors", "consumed", "--json", metadata=uri).json()
            assert (audit["cursor"], audit["entries_behind"], len(audit["processes"])) == ("audit", ENTRIES - 4, 1)
            assert (billing["cursor"], 0 < billing["entries_behind"] < ENTRIES) == ("billing", True)
            assert next(rows).payload == b"4"
        assert log.cursors()["audit"].position.entry_id == 5


def test_processes_that_share_a_consumer_are_killed_and_suspended(uri: str) -> None:
    """Each entry is handled, by one that is left, and a process that was suspended too long commits nothing."""
    with bookies.blocking.connect(uri) as store:
        log = store.log("shared")
        log.create()
        with log.lead() as writer:
            writer.append_many([b"%d" % number for number in range(2_000)])
        with (
            process("shared", uri, "shared", "billing") as killed,
            process("shared", uri, "shared", "billing") as suspended,
            process("shared", uri, "shared", "billing") as left,
        ):
            handled = {int(line(started, "handled")) for started in (killed, suspended, left)}
            suspended.send_signal(signal.SIGSTOP)
            kill(killed)
            assert killed.stdout is not None
            words = killed.stdout.read().split()
            handled.update(int(word) for word in words if word.isdigit())
            wait_queued(uri, "consumers/shared/billing", 1)
            suspended.send_signal(signal.SIGCONT)
            assert suspended.stdout is not None
            for text in suspended.stdout:
                word, _, rest = text.strip().partition(" ")
                if word == "lost":
                    assert "was not renewed in time" in rest
                    break
                handled.add(int(rest))
            [billing] = bk("log", "cursors", "shared", "--json", metadata=uri).json()
            assert [member["process"].endswith(f":{left.pid}") for member in billing["members"]] == [True]
            while len(handled) < 2_000:
                handled.add(int(line(left, "handled")))
            left.send_signal(signal.SIGINT)
            left.wait()
        with log.consumer("billing", shared=True) as rows:
            records = rows.records()
            with log.lead() as writer:
                writer.append(b"last")
            values = [next(records).value]
            while values[-1] != b"last":
                values.append(next(records).value)
            rows.commit()
            assert rows.lag().rows == 0


def test_bk_lock_runs_a_command_while_it_has_the_lock(
    uri: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BK_METADATA", uri)
    token = tmp_path / "token"
    done = bk("lock", "backup", "--", "sh", "-c", f"echo $BK_LEASE_TOKEN > {token}; exit 7")
    assert (done.status, done.err, token.read_text()) == (7, "", "1\n")
    missing = bk("lock", "backup", "--", "no-such-program")
    assert (missing.status, missing.sentence) == (127, "bk lock: no-such-program: not found")
    forbidden = bk("lock", "backup", "--", token)
    assert (forbidden.status, forbidden.sentence) == (126, f"bk lock: {token}: Permission denied")
    assert bk("lock", "--election", "mailer", "--", "sh", "-c", "kill -9 $$").status == 137
    command = [sys.executable, "-m", "bookies", "lock", "--ttl", "2", "backup", "--"]
    script = f"trap '' TERM; echo $BK_LEASE_TOKEN > {token}; echo $$; sleep 60"
    with subprocess.Popen([*command, "sh", "-c", script], stdout=PIPE, stderr=PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        ended = os.pidfd_open(int(holder.stdout.readline()))
        held = bk("lock", "--no-wait", "backup", "--", "true")
        assert (held.status, "was not started: lock backup is held by" in held.sentence) == (75, True)
        late = bk("lock", "--timeout", "0.5", "backup", "--", "true")
        assert (late.status, "not done within 0.5 s" in late.sentence) == (75, True)
        holder.send_signal(signal.SIGSTOP)
        assert bk("lock", "backup", "--", "true").status == 0  # after the ttl of the suspended one
        assert select.select([ended], [], [], PATIENCE_S)[0], "the command of a suspended process goes on"
        os.close(ended)
        holder.send_signal(signal.SIGCONT)
        assert "was not renewed in time, so another process may have it: the command was ended" in holder.stderr.read()
        assert holder.wait() == 124
    with subprocess.Popen([*command, "sleep", "60"], stderr=subprocess.DEVNULL) as interrupted:
        wait_queued(uri, "locks/backup", 1)
        interrupted.send_signal(signal.SIGTERM)
        assert interrupted.wait() == 130
    script = "(trap '' TERM; echo ready; while :; do sleep 0.1; done) & wait"
    with subprocess.Popen([*command, "sh", "-c", script], stdout=subprocess.PIPE) as interrupted:
        assert interrupted.stdout is not None
        assert interrupted.stdout.readline() == b"ready\n"
        interrupted.send_signal(signal.SIGTERM)
        interrupted.communicate(timeout=60)  # until the child has ended too, which ignores SIGTERM
        assert interrupted.returncode == 130
    with bookies.blocking.connect(uri) as store, store.lock("backup", wait=False) as lease:
        assert lease.token > int(token.read_text())


def runs(pid: int) -> bool:
    """Report whether a process lives. One that has died stays until its parent asks for its status."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_command_of_a_killed_bk_lock_ends(uri: str, family: Family) -> None:
    for trap in ("", "trap '' TERM; "):
        words = ("lock", "--metadata", uri, "--ttl", 2, "killed", "--")
        with started(*words, "sh", "-c", f"{trap}echo ready; while :; do sleep 0.1; done", family=family) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "ready\n"
            killed.kill()
            family.wait_gone()  # also the guard


def test_a_lock_of_a_killed_process(uri: str) -> None:
    with process("lock", uri, "nightly") as first:
        assert line(first, "token") == "1"
        with process("lock", uri, "nightly") as second:
            wait_queued(uri, "locks/nightly", 2)
            killed_s = kill(first)
            assert line(second, "token") == "2"
            assert time.monotonic() - killed_s > TTL_S / 2
            with process("lock", uri, "nightly") as third:
                wait_queued(uri, "locks/nightly", 2)
                second.send_signal(signal.SIGSTOP)
                assert line(third, "token") == "3"
                second.send_signal(signal.SIGCONT)
                assert "was not renewed in time" in line(second, "lost")
            with process("lock", uri, "nightly") as second, bookies.blocking.connect(uri) as store:
                assert int(line(second, "token")) > 3
                with pytest.raises(bookies.LeaseHeld, match="lock nightly is held by"):
                    store.lock("nightly", wait=False)
                kill(second)
                with store.lock("nightly", wait=False) as lease:
                    assert lease.is_held
                    assert lease.token > 4
                    lease.check()
                with pytest.raises(bookies.LeaseLost):
                    lease.check()
                election = store.election("mailer")
                with election.lead(text="here"):
                    assert election.leader() == "here"
