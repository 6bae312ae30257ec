"""Bookies as processes: signals, crashes, start-up failures, and that nothing stays behind."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from bookies.admin.cluster import LocalCluster
from bookies.admin.cluster.local_cluster import local
from bookies.errors import BookKeeperError, ConfigError
from bookies.wire import digest

pytestmark = pytest.mark.live

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1  # of linux/prctl.h and linux/capability.h
KEY = digest.master_key(b"")
PATIENCE_S = 120
FAST = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "write_cache_size": 4 << 20}


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(tmp_path / "bk-data", 1, lease_ms=2000, settings=FAST)
    yield cluster
    cluster.stop()


class Wire:
    """A blocking v2 connection."""

    def __init__(self, cluster: LocalCluster, index: int = 0) -> None:
        bookie = cluster.bookies[index]
        assert bookie.host is not None
        self.socket = socket.create_connection((bookie.host, bookie.port), timeout=PATIENCE_S)
        self._file = self.socket.makefile("rb")

    def add(self, ledger_id: int, entry_id: int, payload: bytes = b"payload") -> int:
        """The error code."""
        body = b"".join(each.to_bytes(8, "big", signed=True) for each in (ledger_id, entry_id, entry_id - 1, 7))
        frame = bytes.fromhex("02010000") + KEY + body + payload
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        return self._answer()[0]

    def read(self, ledger_id: int, entry_id: int) -> tuple[int, bytes]:
        """(error code, payload)."""
        frame = bytes.fromhex("02020000") + b"".join(each.to_bytes(8, "big") for each in (ledger_id, entry_id))
        self.socket.sendall(len(frame).to_bytes(4, "big") + frame)
        code, body = self._answer()
        return code, body[32:]

    def _answer(self) -> tuple[int, bytes]:
        size = int.from_bytes(self._file.read(4), "big")
        data = self._file.read(size)
        assert len(data) == size > 0, "the bookie closed the connection"
        return int.from_bytes(data[4:8], "big"), data[24:]

    def is_closed(self) -> bool:
        return self._file.read(1) == b""

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def test_kill_9_and_restart_lose_nothing_that_was_acknowledged(cluster: LocalCluster) -> None:
    cluster.start()
    wire = Wire(cluster)
    for entry_id in range(50):
        assert wire.add(1, entry_id, b"entry %d" % entry_id) == 0
    cluster.kill(0)
    assert wire.is_closed()
    wire.close()
    assert cluster.pids() == []
    cluster.restart("b1")
    wire = Wire(cluster)
    for entry_id in range(50):
        assert wire.read(1, entry_id) == (0, b"entry %d" % entry_id)
    assert wire.read(1, 50)[0] == 2
    wire.close()


def test_sigterm_ends_it_within_seconds_and_cleanly(cluster: LocalCluster) -> None:
    cluster.start()
    wire = Wire(cluster)
    assert wire.add(1, 0) == 0
    process = cluster.bookies[0].process
    assert process is not None
    began = time.monotonic()
    cluster.kill(0, signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began < 20
    assert wire.is_closed()
    wire.close()
    assert not (pathlib.Path(cluster.directory) / "b1" / "ledgers" / "current" / "DIRTY").exists()
    assert "bookie.stopped" in cluster.bookies[0].log.read_text()
    cluster.restart(0)
    wire = Wire(cluster)
    assert wire.read(1, 0) == (0, b"payload")
    wire.close()


def test_garbage_on_the_port_disturbs_nobody(cluster: LocalCluster) -> None:
    cluster.start()
    good = Wire(cluster)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", bytes(64), os.urandom(1000)):
        bad = Wire(cluster)
        bad.socket.sendall(garbage)
        assert bad.is_closed()
        bad.close()
        assert good.add(1, len(garbage)) == 0
    good.close()


def test_a_cluster_ends_with_its_owner(tmp_path: pathlib.Path) -> None:
    """However the owner dies, and without it doing anything."""
    script = (
        "import sys, time\n"
        "from bookies.admin.cluster.local_cluster import LocalCluster\n"
        f"cluster = LocalCluster(sys.argv[1], 2, settings={FAST!r})\n"
        "cluster.start()\n"
        "print(*cluster.pids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "bk-data")], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    descriptors = [os.pidfd_open(pid) for pid in pids]
    owner.kill()
    owner.wait()
    owner.stdout.close()
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], "a bookie outlived its owner"
        os.close(descriptor)


def test_a_detached_cluster_is_found_again(tmp_path: pathlib.Path) -> None:
    directory = tmp_path / "bk-data"
    with pytest.raises(ConfigError, match="no local cluster"):
        LocalCluster.load(directory)
    first = LocalCluster(directory, 2, settings=FAST, detach=True)
    assert first.start() == ["b1", "b2"]
    pids = first.pids()
    processes = [bookie.process for bookie in first.bookies]
    second = LocalCluster.load(directory)
    try:
        assert second.pids() == pids
        assert second.start() == []
        assert [each["id"] for each in second.describe()["bookies"]] == ["b1", "b2"]
        third = LocalCluster(directory, 3, detach=True)
        assert third.start() == ["b3"]
    finally:
        stopped = LocalCluster.load(directory).stop()
        for process in processes:
            assert process is not None
            process.wait(PATIENCE_S)
            process.stdout.close()  # type: ignore[union-attr]
        for bookie in third.bookies[2:]:
            bookie.process.wait(PATIENCE_S)  # type: ignore[union-attr]
            bookie.process.stdout.close()  # type: ignore[union-attr]
    assert stopped == ["b1", "b2", "b3"]
    assert LocalCluster.load(directory).pids() == []
    assert json.loads((directory / "cluster.json").read_text())["metadata"] == f"file:{directory}/metadata"


def run_bookie(directory: pathlib.Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A bookie that is expected to fail."""
    (directory / "metadata").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "bookies.admin.cli", "bookie", "run", "--bookie-id", "b1", "--port", "0"]
    command += ["--metadata", f"file:{directory}/metadata", "--journal-dir", "b1/journal", "--ledger-dir", "b1/ledgers"]
    return subprocess.run(
        [*command, *options],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | environment,
        preexec_fn=obey_permissions,
    )


def obey_permissions() -> None:
    """In a child: permission bits count for root too (without the capability DAC_OVERRIDE)."""
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)


@pytest.mark.parametrize("which", ["--journal-dir", "--ledger-dir"])
def test_a_directory_that_cannot_be_written_is_named(which: str, tmp_path: pathlib.Path) -> None:
    locked = tmp_path / "locked"
    (locked / "old").mkdir(parents=True)
    for path in (locked / "old", locked):
        path.chmod(0o555)
    try:
        for place in ("locked/new", "locked/old"):
            result = run_bookie(tmp_path, which, place)
            assert result.returncode == 5
            assert result.stdout == ""
            assert f"cannot start bookie b1: cannot use {place}" in result.stderr
            assert "permission denied" in result.stderr
            assert "this user can write" in result.stderr
            assert "Traceback" not in result.stderr
            assert not list((locked / "old").iterdir())
    finally:
        for path in (locked, locked / "old"):
            path.chmod(0o755)


def test_start_failures_are_one_sentence(cluster: LocalCluster, tmp_path: pathlib.Path) -> None:
    cluster.start()
    directory = pathlib.Path(cluster.directory)

    result = run_bookie(directory)
    assert result.returncode == 5
    assert result.stdout == ""
    assert "cannot start bookie b1: " in result.stderr
    assert "is in use by another process. Nothing was changed." in result.stderr
    assert "Traceback" not in result.stderr

    port = str(cluster.bookies[0].port)
    result = run_bookie(tmp_path, "--port", port)
    assert result.returncode == 2
    assert result.stderr.strip().startswith(
        f"cannot start bookie b1: port {port} of 127.0.0.1 is in use by another process. Nothing was changed."
    )
    assert not (tmp_path / "b1").exists()

    result = run_bookie(directory, "--bookie-id", "b7")
    assert result.returncode == 5
    assert "belongs to bookie b1" in result.stderr
    assert "Nothing was changed" in result.stderr

    (tmp_path / "file").write_text("")
    result = run_bookie(tmp_path, "--journal-dir", "file/journal")
    assert result.returncode == 5
    assert "file" in result.stderr
    assert "Traceback" not in result.stderr

    result = run_bookie(tmp_path, "--bookie-id", "no good")
    assert result.returncode in (1, 2)
    assert "letters, digits" in result.stderr

    result = run_bookie(tmp_path, "--metadata", f"file:{tmp_path}/file/nothing")
    assert result.returncode == 4
    assert "cannot start bookie b1: " in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bk-data" / "b2").mkdir(parents=True)
    (tmp_path / "bk-data" / "b2" / "ledgers").write_text("in the way")
    cluster = LocalCluster(tmp_path / "bk-data", 2, settings=FAST)
    with pytest.raises(BookKeeperError, match=r"cannot start bookie b2: .*ledgers"):
        cluster.start()
    assert cluster.pids() == []


def test_a_stopped_process_is_stopped_too(cluster: LocalCluster) -> None:
    cluster.start()
    cluster.kill("b1", signal.SIGSTOP)
    process = cluster.bookies[0].process
    assert cluster.stop() == ["b1"]
    assert process is not None
    assert process.returncode == 0


def test_local_is_gone_when_it_is_left() -> None:
    with local(bookies=1, settings=FAST) as cluster:
        directory = pathlib.Path(cluster.directory)
        assert directory.is_dir()
        assert repr(cluster) == f"<LocalCluster {directory}, 1 of 1 bookies run>"
        (pid,) = cluster.pids()
    assert not directory.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
