"""A cluster of Apache's bookies becomes one of ours, bookie by bookie on the same directories, and Apache's again.

All the while clients of both kinds write: no append fails, nothing is lost. docs/howto/move-from-apache.md and
return-to-apache.md are this test in words.
"""

from __future__ import annotations

import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.apache.apache import VERSION
from tests.apache.zookeeper import zookeeper_server
from tests.interop.cells import User, check_read
from tests.interop.processes import Bookie, Client, java_client, our_client, wait_until

pytestmark = pytest.mark.apache
ENTRIES = 300
WRITERS = ("java-v3", "java-v2", "ours-v2")
# A ledger on all three bookies has no spare one: its writer must be content with the other two for a while, and no
# ledger like it can be created meanwhile. So there is one for all the time.
PAIRS = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2}
ALL = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}
SETTINGS = {"delayEnsembleChange": "true"}


class Load:
    """Writes until it is stopped, ledger after ledger or into one. `written`: ledger to entries; `failure`: its end."""

    def __init__(self, user: User, *, is_one: bool) -> None:
        self.written: dict[int, int] = {}
        self.failure: BaseException | None = None
        self.is_one = is_one
        self._user = user
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                made = self._user.ask("create", **(ALL | {"settings": SETTINGS} if self.is_one else PAIRS))
                self._append(made)
                while self.is_one and not self._is_over.is_set():
                    self._append(made)
                self._user.ask("close", handle=made["handle"])
        except BaseException as error:  # noqa: BLE001  (shown by whoever started it)
            self.failure = error

    def _append(self, made: dict[str, Any]) -> None:
        answer = self._user.ask("append", handle=made["handle"], count=ENTRIES, window=20, pause_ms=3)
        assert answer["failure"] == "", answer
        count = self.written.get(made["ledger"], 0) + ENTRIES
        assert answer["confirmed"] == count - 1, answer
        self.written[made["ledger"]] = count

    @property
    def count(self) -> int:
        return sum(self.written.values())

    def check(self) -> None:
        assert self.failure is None, f"{self._user.name}: {self.failure}"

    def wait_more(self) -> None:
        """Until a good number of entries has been appended from now on."""
        before = self.count
        wait_until(lambda: self.failure is not None or self.count > before + ENTRIES, "more entries", 60)
        self.check()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()


def replace(bookie: Bookie, kind: str) -> None:
    """What an operator does: stop it, start the other one. An index in RocksDB is served as it is."""
    bookie.stop()
    bookie.kind = kind
    bookie.start()


@contextlib.contextmanager
def apache_cluster(folder: pathlib.Path, storage: str) -> Iterator[tuple[dict[str, User], list[Bookie]]]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(zookeeper_server(folder))
        uri = f"zk+hierarchical://{server.address}/ledgers"
        clients: dict[str, Client] = {"java": java_client(VERSION, folder), "ours": our_client(folder)}
        for client in clients.values():
            stack.callback(client.kill)
        users = {name: User(name, clients[name.partition("-")[0]], uri) for name in WRITERS}
        users["java-v3"].ask("init")
        bookies = [Bookie("java", f"b-{n}", folder / f"b-{n}", uri, version=VERSION, storage=storage) for n in range(3)]
        for bookie in bookies:
            stack.callback(bookie.kill)
            bookie.launch()
        for bookie in bookies:
            bookie.wait_ready()
        wait_until(lambda: writable(users) == 3, "three bookies are writable")
        yield users, bookies


def writable(users: dict[str, User]) -> int:
    return list(users["ours-v2"].ask("bookies").values()).count("writable")


@pytest.mark.parametrize("storage", ["sorted", "interleaved", "rocksdb"])
def test_bookie_by_bookie_and_back_without_a_failed_append(tmp_path: pathlib.Path, storage: str) -> None:
    with apache_cluster(tmp_path, storage) as (users, bookies):
        loads = [Load(users[name], is_one=name == "java-v2") for name in WRITERS]
        try:
            for kind in ("ours", "java"):
                for bookie in bookies:
                    for load in loads:
                        load.wait_more()
                    replace(bookie, kind)
                    wait_until(lambda: writable(users) == 3, f"{bookie.name} is back")
            for load in loads:
                load.wait_more()
        finally:
            for load in loads:
                load.stop()
        for load in loads:
            load.check()
            for ledger, count in load.written.items():
                for user in users.values():
                    check_read(user, ledger, count)
                if not load.is_one:  # Every replica of every append was waited for.
                    found = users["ours-v2"].ask("check", ledger=ledger)
                    assert found["is_ok"], found
