"""The same operation by Apache's client and bookies and by ours leaves the same znodes: all of them, byte for byte.

What cannot be the same is first made so: the instance id, ports, the token of a creation, and which bookies a ledger's
ensemble was drawn from.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from tests.apache.apache import VERSION
from tests.apache.zookeeper import zookeeper_server
from tests.interop.cells import Handle, User
from tests.interop.processes import Bookie, Client, java_client, our_client, wait_until

from bookies.metadata.formats import pack_ledger, parse_ledger
from bookies.metadata.formats.serde import pack_bookie_info, parse_bookie_info
from bookies.model import BookieId

pytestmark = pytest.mark.apache
LAYOUTS = ("hierarchical", "longhierarchical", "flat")
LEDGER = re.compile(r"/L\d+$")
QUORUMS = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2}


@dataclass
class Side:
    """A cluster in which everything is Apache's, or ours."""

    root: str
    user: User
    bookies: list[Bookie]
    zookeeper: KazooClient

    def create(self, **arguments: object) -> Handle:
        made = self.user.ask("create", **(QUORUMS | arguments))
        return Handle(self.user, made["handle"], made["ledger"])

    def tree(self) -> dict[str, tuple[bytes, bool, str]]:
        """Each znode below the root: data, whether it is ephemeral, and who may do what with it."""
        found: dict[str, tuple[bytes, bool, str]] = {}
        paths = [self.root]
        while paths:
            path = paths.pop()
            try:
                data, stat = self.zookeeper.get(path)
                acls = str(self.zookeeper.get_acls(path)[0])
                paths += [f"{path}/{child}" for child in self.zookeeper.get_children(path)]
            except NoNodeError:
                continue
            below = path.removeprefix(self.root)
            if not below.startswith(("/idgen/", "/ID-")):  # go at once, perhaps not before we look
                found[below] = (self._alike(below, data or b""), stat.ephemeralOwner != 0, acls)
        return found

    def _alike(self, path: str, data: bytes) -> bytes:
        if path == "/INSTANCEID":
            assert re.fullmatch(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", data)
            return b"(instance)"
        if path.startswith("/cookies/"):
            data = data.replace(self.zookeeper.get(f"{self.root}/INSTANCEID")[0], b"(instance)")
            return re.sub(rb'bookieHost: "[^"]*"', b"(host)", data)
        if path.startswith(("/available/b-", "/available/readonly/b-")):
            return self._info_alike(path, data)
        if LEDGER.search(path):
            return self._ledger_alike(path, data)
        return data

    def _info_alike(self, path: str, data: bytes) -> bytes:
        info = parse_bookie_info(BookieId(path.rpartition("/")[2]), data)
        assert pack_bookie_info(info) == data, f"we would write {info} otherwise"
        bookie = next(each for each in self.bookies if each.name == path.rpartition("/")[2])
        return data.replace(_varint(bookie.port), b"(port)")

    def _ledger_alike(self, path: str, data: bytes) -> bytes:
        record = parse_ledger(0, data)
        assert pack_ledger(record) == data, f"we would write {record} otherwise"
        if len(record.ensembles) == 1 and record.last_entry_id < 0 and record.state.name == "OPEN":
            assert record.creator_token > 0
            data = pack_ledger(record.replace(creator_token=1))
        names = dict.fromkeys(name for _, ensemble in record.ensembles for name in ensemble)
        for number, name in enumerate(names):
            data = data.replace(name.encode(), b"%3d" % number)
        return data


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


@contextlib.contextmanager
def both_sides(folder: pathlib.Path, layout: str) -> Iterator[tuple[Side, Side]]:
    """Three bookies on each side, running, after one has started before the others."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(zookeeper_server(folder))
        zookeeper = KazooClient(hosts=server.address)
        zookeeper.start()
        stack.callback(zookeeper.close)
        stack.callback(zookeeper.stop)
        sides = []
        for kind in ("java", "ours"):
            uri = f"zk+{layout}://{server.address}/{kind}"
            client: Client = java_client(VERSION, folder) if kind == "java" else our_client(folder)
            stack.callback(client.kill)
            user = User(f"{kind}-v3", client, uri)
            bookies = [Bookie(kind, f"b-{n}", folder / f"{kind}-{n}", uri, version=VERSION) for n in range(3)]
            for bookie in bookies:
                stack.callback(bookie.kill)
            sides.append(Side(f"/{kind}", user, bookies, zookeeper))
        yield sides[0], sides[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_znode_is_the_same(tmp_path: pathlib.Path, layout: str) -> None:
    with both_sides(tmp_path, layout) as sides:
        apache, ours = sides

        def check(what: str) -> None:
            # Registrations may still be under way, or a session that ended not yet be over.
            with contextlib.suppress(TimeoutError):
                wait_until(lambda: apache.tree() == ours.tree(), what, 15)
            assert ours.tree() == apache.tree(), what

        for side in sides:
            side.user.ask("init")
        check("a new cluster")
        for side in sides:
            for bookie in side.bookies:
                bookie.start()
        check("bookies, registered")
        ledgers = {side.root: change_ledgers(side) for side in sides}
        check("ledgers: open, closed, recovered, empty")
        for side in sides:
            change_ensemble(side)
        check("a ledger with two fragments")
        for side in sides:
            for ledger in ledgers[side.root]:
                side.user.ask("delete", ledger=ledger)
        check("deleted ledgers")
        for side in sides:
            for bookie in side.bookies:
                bookie.stop()
        check("stopped bookies")


def change_ledgers(side: Side) -> list[int]:
    """One of each kind; their ids."""
    made = []
    for digest in ("crc32c", "crc32", "hmac", "none"):
        made.append(side.create(digest=digest, password="geheim", labels={"name": "wert"}))
    closed, empty, abandoned, silent = side.create(), side.create(), side.create(), side.create()
    chosen = [side.create(ledger=77_777)]
    if "flat" not in side.user.uri:
        chosen.append(side.create(ledger=2**33 + 5))
    closed.append(10)
    closed.close()
    empty.close()
    abandoned.append(10)
    for each in (abandoned, silent):
        side.user.ask("recover", ledger=each.ledger)
    return [each.ledger for each in (*made, closed, empty, abandoned, silent, *chosen)]


def change_ensemble(side: Side) -> None:
    """A bookie of a ledger's ensemble dies under its writer; then the ledger is closed."""
    ledger = side.create()
    ledger.append(10)
    record = side.user.ask("metadata", ledger=ledger.ledger)
    victim = next(each for each in side.bookies if each.name == record["fragments"]["0"][0])
    victim.kill()
    ledger.append(10)
    ledger.close()
    victim.start()
