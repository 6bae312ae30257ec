"""Bookies are emptied behind an idle writer and return under their ids: Apache's client on our bookies, ours on
Apache's. Issue 4812.
"""

from __future__ import annotations

import pathlib
import shutil

import pytest
from tests.apache.apache import VERSION
from tests.apache.zookeeper import zookeeper_server
from tests.interop.cells import FENCED, User
from tests.interop.processes import Bookie, Failed, java_client, our_client, wait_until
from tests.live.command import bk

pytestmark = pytest.mark.apache
COUNT = 20
QUORUMS = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2}


def empty(bookies: list[Bookie], uri: str) -> None:
    """Kill, delete the cookies by force, remove the directories, start again."""
    for bookie in bookies:
        bookie.kill()
    for bookie in bookies:
        wait_until(
            lambda name=bookie.name: bk("cookie", "delete", name, "--force", metadata=uri).status == 0,
            f"the cookie of {bookie.name} can be deleted",
        )
        for part in ("journal", "ledgers"):
            shutil.rmtree(bookie.folder / part)
        bookie.launch()
    for bookie in bookies:
        bookie.wait_ready()


def can_write(user: User) -> bool:
    """Write a new ledger, on all three bookies."""
    try:
        made = user.ask("create", **(QUORUMS | {"ack_quorum": 3}))
        return bool(user.ask("append", handle=made["handle"], count=COUNT)["failure"] == "")
    except Failed:
        return False


@pytest.mark.parametrize(("writer", "kind"), [("java-v2", "ours"), ("java-v3", "ours"), ("ours-v2", "java")])
def test_an_idle_writer_is_refused_after_the_end(tmp_path: pathlib.Path, writer: str, kind: str) -> None:
    with zookeeper_server(tmp_path) as server:
        uri = f"zk+hierarchical://{server.address}/ledgers"
        folders = [tmp_path / f"b{number}" for number in range(3)]
        bookies = [Bookie(kind, folder.name, folder, uri, version=VERSION) for folder in folders]
        java, ours = java_client(VERSION, tmp_path), our_client(tmp_path)
        try:
            names = dict.fromkeys((writer, "java-v3", "ours-v2"))
            users = {name: User(name, java if name.startswith("java") else ours, uri) for name in names}
            users["java-v3"].ask("init")
            for bookie in bookies:
                bookie.launch()
            for bookie in bookies:
                bookie.wait_ready()
            wait_until(lambda: len(users["ours-v2"].ask("bookies")) >= 3, "the bookies are registered")
            made = users[writer].ask("create", **QUORUMS)
            assert users[writer].ask("append", handle=made["handle"], count=COUNT)["failure"] == ""
            sealed = users["ours-v2"].ask("recover", ledger=made["ledger"])
            assert sealed["lac"] == COUNT - 1
            empty(bookies, uri)
            wait_until(lambda: can_write(users[writer]), f"{writer} knows the bookies again")
            answer = users[writer].ask("append", handle=made["handle"], count=1)
            assert answer["failure"] in FENCED, answer
            assert answer["confirmed"] == COUNT - 1
        finally:
            for client in (java, ours):
                client.kill()
            for bookie in bookies:
                bookie.kill()
