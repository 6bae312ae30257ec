"""Acts of writers: append in every way, choose entry ids, force, seal, close without sealing, or leave early.

Source: client-protocol 2; I-23, I-24, I-31 of 8.2.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookies.client.write import AdvancedLedgerWriter
from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.clients.advanced_writer import ScatteredWriter
from bookies.lab.sim.clients.plan import Plan
from bookies.lab.sim.clients.roles import Roles
from bookies.lab.sim.world import SimClient

if TYPE_CHECKING:
    from bookies.client.write import LedgerWriter

PASSWORDS = (b"", b"s3cret")
# The longest pause after failures; then the time after which a probe counts as lost; then the duration of a probe.
TRUST_PAUSES_S = (31.0, 16.0, 2.0)
CHOICES = 50  # ensembles of half of the bookies: chance leaves out a given bookie every time once in 2 ** 50 runs
LEAVING_S = 1.0  # operations of a closed client end long before


class Writers:
    """The acts of all writers of a workload."""

    def __init__(self, roles: Roles, plan: Plan) -> None:
        self._roles = roles
        self._history = roles.history
        self._random = roles.random
        self._plan = plan
        self._switched: dict[str, None] = {}  # clients whose `allow_ensemble_changes` was called
        self._left: dict[str, list[asyncio.Task[None]]] = {}  # client that left -> its pending writes

    async def write_ledgers(self, client: SimClient) -> None:
        """Write a random number of ledgers, one after the other."""
        for _ in range(self._random.randint(1, self._plan.ledgers_max)):
            if self._roles.is_stopping or client.name in self._left:
                return
            if self._plan.ledgers_in_turn > 1:
                await self._write_in_turn(client)
            else:
                await self._write_ledger(client)
        if not self._plan.is_replaced:
            self._roles.nudge()

    async def serve(self, client: SimClient) -> None:
        """Write one ledger after the other until all faults have ended. Then check that every bookie is chosen again.

        A client probes bookies that have failed only when it chooses bookies, so it has to create ledgers.
        """
        while not self._roles.is_stopping:
            await self._write_ledger(client)
        await self._roles.healed.wait()
        for pause_s in TRUST_PAUSES_S:
            await asyncio.sleep(pause_s)
            await self._choose_bookies(client)
        chosen: dict[str, None] = {}
        for _ in range(CHOICES):
            chosen |= await self._choose_bookies(client)
        for bookie in self._roles.cluster.bookies:
            if bookie not in chosen:
                self._history.violated(
                    "health",
                    f"{client.name} has chosen {', '.join(chosen)} for {CHOICES} ledgers and never {bookie}, which has "
                    f"been well for {sum(TRUST_PAUSES_S):.0f} s",
                )

    async def _choose_bookies(self, client: SimClient) -> dict[str, None]:
        """Create an empty ledger on half of the bookies, and return its bookies."""
        size = len(self._roles.cluster.bookies) // 2
        ledger = await client.client.create(ensemble=size, write_quorum=size, ack_quorum=1, password=b"")
        bookies = dict.fromkeys(map(str, ledger.metadata.last_ensemble))
        await ledger.seal()
        await ledger.close()
        return bookies

    async def _write_in_turn(self, client: SimClient) -> None:
        """Fill many ledgers in turn, some faster than others, so that adds of many ledgers share the connections.

        They have one password, because a bookie gathers only adds with the same key.
        """
        random = self._random
        password = random.choice(PASSWORDS)
        opened = [await self._create_ledger(client, password) for _ in range(self._plan.ledgers_in_turn)]
        shares = [random.random() for _ in opened]  # of the rounds in which the ledger receives an entry
        for _ in range(random.randint(self._plan.entries_min, self._plan.entries_max)):
            if self._roles.is_stopping:
                break
            chosen = [
                (ledger, story)
                for (ledger, story), share in zip(opened, shares, strict=True)
                if random.random() < share and not story.is_over
            ]
            random.shuffle(chosen)
            appends = [self._append(ledger, story) for ledger, story in chosen]
            for (_, story), outcome in zip(chosen, await asyncio.gather(*appends, return_exceptions=True), strict=True):
                if isinstance(outcome, BookKeeperError):
                    self._history.failed(client.name, f"append to {story.ledger_id}", outcome)
                    self._history.count("failed appends")
                elif outcome is not None:
                    raise outcome
            await self._roles.sleep(self._plan.pause_ms)
        for ledger, story in opened:
            await self._finish(client, ledger, story, None)

    async def _create_ledger(self, client: SimClient, password: bytes | None = None) -> tuple[LedgerWriter, Story]:
        """Create a ledger with random properties. `password`: instead of a random one."""
        random = self._random
        config = client.client.config
        count = len(self._roles.cluster.bookies)
        sizes = [sizes for sizes in self._plan.quorums if sizes[1 if config.opportunistic_striping else 0] <= count]
        ensemble, write_quorum, ack_quorum = random.choice(sizes)
        password = random.choice(PASSWORDS) if password is None else password
        digest = random.choice(self._plan.digests)
        is_deferred = random.random() < self._plan.deferred_probability
        is_advanced = self._is_chosen(self._plan.advanced_probability)
        ledger = await client.client.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=password,
            deferred_sync=is_deferred,
            advanced=is_advanced,
        )
        story = Story(
            ledger.ledger_id, password, ack_quorum, client.name, is_deferred=is_deferred, is_advanced=is_advanced
        )
        if self._plan.payload_sizes_min:
            story.payload_size_min = random.choice(self._plan.payload_sizes_min)
        self._history.stories[ledger.ledger_id] = story
        self._history.count("ledgers")
        self._note_settings(client, ledger, story, ensemble)
        return ledger, story

    async def _write_ledger(self, client: SimClient) -> None:
        random = self._random
        ledger, story = await self._create_ledger(client)
        scattered = (
            ScatteredWriter(self._roles, self._plan, ledger, story)
            if isinstance(ledger, AdvancedLedgerWriter)
            else None
        )
        try:
            goal = random.randint(self._plan.entries_min, self._plan.entries_max)
            while story.started < goal and not story.is_over and not self._roles.is_stopping:
                self._maybe_switch(client, ledger)
                if scattered is not None:
                    await scattered.write_some()
                else:
                    await self._append_some(ledger, story)
                if story.is_deferred and random.random() < 0.5:
                    await self._force(ledger, story)
                await self._roles.sleep(self._plan.pause_ms)
        except BookKeeperError as error:
            self._history.failed(client.name, f"append to {ledger.ledger_id}", error)
            self._history.count("failed appends")
        if scattered is not None and not story.is_over and await scattered.leaves():
            self._left[client.name] = scattered.waiting
            return
        await self._finish(client, ledger, story, scattered)

    def _is_chosen(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def _note_settings(self, client: SimClient, ledger: LedgerWriter, story: Story, ensemble: int) -> None:
        """Pass the client's settings for this ledger to the checkers."""
        config, checker, tap = client.client.config, self._history.writer_settings, self._history.tap
        is_timed = not (story.is_deferred or story.is_advanced)
        was_switched = client.name in self._switched
        may_change = config.ensemble_changes_allowed or was_switched
        checker.created(ledger.metadata, config, ensemble, is_timed=is_timed, may_change=may_change)
        if tap is not None and (config.delay_ensemble_change or not config.ensemble_changes_allowed or was_switched):
            tap.excuse_late(ledger.ledger_id)

    def _maybe_switch(self, client: SimClient, ledger: LedgerWriter) -> None:
        """Now and then allow or disallow the client to change ensembles."""
        if not self._is_chosen(self._plan.switch_probability):
            return
        is_allowed = self._random.random() < 0.5
        self._switched[client.name] = None
        if is_allowed:
            self._history.writer_settings.switched(ledger.ledger_id)
        if self._history.tap is not None:
            self._history.tap.excuse_late(ledger.ledger_id)
        client.client.allow_ensemble_changes(is_allowed)

    async def departed(self, client: SimClient) -> None:
        """Check that the pending writes of a closed client end."""
        for task in self._left.pop(client.name, []):
            done, _ = await asyncio.wait([task], timeout=LEAVING_S)
            if not done:
                task.cancel()
                self._history.violated("I-19", f"{task.get_name()} still waits after its client was closed")
            elif (error := task.exception()) is not None and not isinstance(error, BookKeeperError):
                self._history.unexpected(client.name, "write", error)

    async def _append_some(self, ledger: LedgerWriter, story: Story) -> None:
        """Append one entry, many that overlap, or a batch."""
        act = self._random.choice((0, 1, 1, 2))
        if act == 0:
            await self._append(ledger, story)
        elif act == 1:
            await self._append_overlapping(ledger, story, self._random.randint(2, 2 * self._plan.in_flight_max))
        else:
            first = self._history.begins(story, self._random.randint(2, self._plan.in_flight_max))
            last = story.started - 1
            payloads = [story.payload(number) for number in range(first, last + 1)]
            try:
                answered = await ledger.append_many(payloads)
            except BaseException as error:
                self._failed(story, first, error)
                raise
            self._acknowledged(story, first, last, answered)

    async def _append_overlapping(self, ledger: LedgerWriter, story: Story, count: int) -> None:
        """Append `count` entries with as many in flight as the plan allows."""
        appends: list[asyncio.Task[None]] = []
        try:
            for number in range(count):
                if number >= self._plan.in_flight_max:
                    await appends[number - self._plan.in_flight_max]
                if self._random.random() < 0.5:
                    await self._roles.sleep(self._plan.spread_ms)
                appends.append(asyncio.create_task(self._append(ledger, story)))
        finally:
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
        _raise_first(outcomes)

    async def _append(self, ledger: LedgerWriter, story: Story) -> None:
        number = self._history.begins(story, 1)
        try:
            answered = await ledger.append(story.payload(number))
        except BaseException as error:
            self._failed(story, number, error)
            raise
        self._acknowledged(story, number, number, answered)

    def _failed(self, story: Story, entry_id: int, error: BaseException) -> None:
        story.is_over = True
        self._history.writer_settings.check_failure(story.ledger_id, entry_id, error)

    def _acknowledged(self, story: Story, first: int, last: int, answered: int) -> None:
        if not story.is_deferred:
            self._history.confirmed(story, first, last, answered)
        elif answered != last:
            self._history.violated("I-3", f"ledger {story.ledger_id}: entry {last} is acknowledged as {answered}")

    async def _force(self, ledger: LedgerWriter, story: Story) -> None:
        overlapping = []
        if self._is_chosen(self._plan.overlap_probability):
            overlapping = [asyncio.create_task(self._append(ledger, story)) for _ in range(2)]
        try:
            last = await ledger.force()
            if last >= story.confirmed:
                self._history.confirmed(story, story.confirmed, last, last)
        finally:
            outcomes = await asyncio.gather(*overlapping, return_exceptions=True)
        _raise_first(outcomes)

    async def _finish(
        self, client: SimClient, ledger: LedgerWriter, story: Story, scattered: ScatteredWriter | None
    ) -> None:
        """Seal the ledger or only close it, now and then with appends in flight."""
        in_flight = []
        if scattered is not None:
            in_flight = await scattered.last_writes()
        elif self._random.random() < 0.3 and not story.is_over:
            in_flight = [
                asyncio.create_task(self._append(ledger, story)) for _ in range(min(3, self._plan.in_flight_max))
            ]
            await asyncio.sleep(0)
        try:
            if self._random.random() < 0.6:
                is_forced = not (story.is_deferred and self._is_chosen(self._plan.unforced_probability))
                await ledger.seal(force=is_forced)
                if not is_forced and ledger.last_add_confirmed != story.confirmed - 1:
                    text = f"ledger {story.ledger_id} is sealed at {ledger.last_add_confirmed} without a force"
                    self._history.violated("I-25", f"{text}, and entries up to {story.confirmed - 1} were forced")
                await self._check_seal(ledger, story)
                self._history.ended(story, client.name, ledger.last_add_confirmed, ledger.length)
                self._history.count("ledgers sealed")
        except BookKeeperError as error:
            self._history.failed(client.name, f"seal of {ledger.ledger_id}", error)
        finally:
            await ledger.close()
            for outcome in await asyncio.gather(*in_flight, return_exceptions=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, BookKeeperError):
                    self._history.unexpected(client.name, "append", outcome)
            story.is_over = True
        await self._check_closed(ledger, story)

    async def _check_seal(self, ledger: LedgerWriter, story: Story) -> None:
        """Check I-24: record and handle have the same end, and another seal does not change it."""
        own = (ledger.last_add_confirmed, ledger.length)
        record = self._history.record_of(story.ledger_id)
        if record is not None and (not record.is_closed or (record.last_entry_id, record.length) != own):
            self._history.violated("I-24", f"ledger {story.ledger_id} is sealed at {own}, but {record!r}")
        if self._random.random() < 0.3 and (again := await ledger.seal()) != own[0]:
            self._history.violated("I-24", f"ledger {story.ledger_id} is sealed at {own[0]}, and then at {again}")

    async def _check_closed(self, ledger: LedgerWriter, story: Story) -> None:
        """Check I-23: a closed handle accepts no further entry."""
        try:
            late = ledger.write(story.started + 1, b"late") if story.is_advanced else ledger.append(b"late")
            entry_id = await late
        except BookKeeperError:
            return
        self._history.violated("I-23", f"entry {entry_id} of ledger {story.ledger_id} was acknowledged after the close")


def _raise_first(outcomes: list[BaseException | None]) -> None:
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
