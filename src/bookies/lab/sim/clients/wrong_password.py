"""Clients that do not know a ledger's password: whatever they ask for is refused, and changes nothing.

    password   no handle without the password; no bookie that holds entries of a ledger takes adds, a last add
               confirmed or a fence with another one's key

Half of them use the public client, which looks into the ledger's record. The others send what such a client would not:
the bookies look for themselves. A bookie that holds nothing of the ledger knows no key either, and is not asked.

Source: client-protocol 3.1; storage F-23.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookies.client.transport import BookiePool
from bookies.errors import BookKeeperError, EntryNotFound, LedgerFenced, Unauthorized
from bookies.kernels import pack_add_frames
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.clients.roles import Roles
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.cluster import resolve
from bookies.model import BookieId, DigestType
from bookies.wire.digest import mac_key, master_key, package_lac
from bookies.wire.v2 import add_head

WRONG = (b"", b"s3cret", b"S3cret", b"s3cret ")
ACCEPTED = (EntryNotFound, LedgerFenced)  # what only somebody with the key is told


class _Outcome:
    """What became of an add: an `AddSink`."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Intruders:
    """The acts of all intruders of a workload."""

    def __init__(self, roles: Roles) -> None:
        self._history = roles.history
        self._random = roles.random
        self._bookies = [BookieId(name) for name in roles.cluster.bookies]

    async def intrude(self, client: SimClient, story: Story) -> None:
        """Try one thing with a wrong password."""
        password = self._random.choice([each for each in WRONG if each != story.password])
        what = self._random.choice(("open", "recover", "fence", "fence", "add", "write back", "announce"))
        try:
            if what == "open":
                await client.client.open(story.ledger_id, password=password)
            elif what == "recover":
                await client.client.recover(story.ledger_id, password=password)
            elif not await self._ask(client, story, password, what):
                return
        except Unauthorized:
            self._history.count("intrusions refused")
            return
        except ACCEPTED as error:
            self._accepted(client, story, what, f"is told {type(error).__name__}")
            return
        except BookKeeperError as error:
            self._history.failed(client.name, f"intrusion into {story.ledger_id}", error)
            return
        self._accepted(client, story, what, "succeeds")

    def _accepted(self, client: SimClient, story: Story, what: str, how: str) -> None:
        text = f"{client.name} has a wrong password for ledger {story.ledger_id}, wants to {what}, and {how}"
        self._history.violated("password", text)

    async def _ask(self, client: SimClient, story: Story, password: bytes, what: str) -> bool:
        """Send a request to a bookie that must know better; False: there is none. Raises what it answers."""
        witness = self._history.witness
        holders = [each for each in self._bookies if witness is not None and witness.has_any(each, story.ledger_id)]
        if not holders:
            return False
        bookie, ledger_id = self._random.choice(holders), story.ledger_id
        entry_id = self._random.randint(0, story.started + 1)
        pool = BookiePool(client.runtime, client.client.config, resolve)
        try:
            if what == "fence":
                which = self._random.choice((-1, entry_id))
                await pool.read_entry(bookie, ledger_id, which, key=master_key(password))
            elif what == "announce":
                body = package_lac(DigestType.CRC32C, mac_key(password), ledger_id, entry_id)
                await pool.write_lac(bookie, ledger_id, entry_id, master_key(password), body)
            else:
                head = add_head(master_key(password), is_recovery=what == "write back")
                given = (head, ledger_id, entry_id, -1, 0, [b"intruder"], DigestType.CRC32C, mac_key(password))
                outcome = _Outcome()
                pool.send_adds(bookie, ledger_id, range(entry_id, entry_id + 1), pack_add_frames(*given)[0], outcome)
                await outcome.future
        finally:
            await pool.close()
        return True
